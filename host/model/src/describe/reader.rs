//! Reads tables of a description, key by key, and notes every key that is not known.

use bulkhead_abi::plan::NAME;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::code::Code;
use super::finding::{Finding, Span};
use super::foreign::foreign;
use super::keys::{
    Flag, Key, Kind, Number, Numbers, Quantity, TABLES, Table, Text, TextOrTexts, Word,
};
use super::suggest::{nearest, one_of};

/// Reports a name of shared memory or of a doorbell that a device tree cannot carry.
pub(super) fn check_name(
    name: &Placed<String>,
    code: Code,
    what: &str,
    findings: &mut Vec<Finding>,
) {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if !name.value.chars().all(letters) || name.value.is_empty() || name.value.len() > NAME {
        let text = format!("`{}` cannot be the name of {what}", name.value);
        let label = format!("1 to {NAME} of the characters a-z A-Z 0-9 -");
        findings.push(
            Finding::new(code, text)
                .at(name.span.clone(), label)
                .help(rename(&name.value)),
        );
    }
}

/// Remedy for a name that is not allowed: the most similar one that is.
pub(super) fn rename(name: &str) -> String {
    let letters = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
    let sound: String = letters.take(NAME).collect();
    match sound.trim_matches('-') {
        "" => "give it another name, such as `one`".to_owned(),
        sound if sound == name => format!("give it another name, such as `my-{name}`"),
        sound => format!("give it another name, such as `{sound}`"),
    }
}

/// A value with its place in the text.
#[derive(Clone, Debug)]
pub struct Placed<T> {
    /// The value.
    pub value: T,
    /// Its place.
    pub span: Span,
}

impl<T> Placed<T> {
    /// The same place with something made of the value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Placed<U> {
        Placed {
            value: f(self.value),
            span: self.span,
        }
    }
}

/// An entry of a list that has both.
pub enum TextOrTable<'a, 'i> {
    /// A string.
    Text(String),
    /// A table.
    Table(&'a DeTable<'i>),
}

/// A table being read. Dropping it without [`Reader::finish`] would lose unknown keys.
pub struct Reader<'a, 'i, 'f> {
    table: &'a DeTable<'i>,
    /// Name of the table for messages: "a VM", "the board".
    what: &'static str,
    known: &'static Table,
    findings: &'f mut Vec<Finding>,
}

impl<'a, 'i, 'f> Reader<'a, 'i, 'f> {
    /// Starts to read `table`, which may have the keys of `known`.
    pub fn new(
        table: &'a DeTable<'i>,
        what: &'static str,
        known: &'static Table,
        findings: &'f mut Vec<Finding>,
    ) -> Self {
        Self {
            table,
            what,
            known,
            findings,
        }
    }

    /// Reports keys that are not known.
    pub fn finish(self) {
        for (key, _) in self.unknown() {
            let name: &str = key.get_ref();
            let finding = Finding::new(
                Code::KeyUnknown,
                format!("{} has no key `{name}`", self.what),
            )
            .at(key.span(), "not known here");
            let elsewhere = || {
                TABLES
                    .iter()
                    .find(|table| table.names().any(|key| key == name))
            };
            let help = if let Some(foreign) = foreign(self.known.name, name) {
                foreign.advice.to_owned()
            } else if let Some(known) = nearest(name, self.known.names()) {
                format!("did you mean `{known}`?")
            } else if let Some(table) = elsewhere() {
                format!("it is a key of {}", table.heading)
            } else if self.known.keys.is_empty() {
                "leave it out: there are none".to_owned()
            } else {
                let names: Vec<_> = self.known.names().collect();
                format!("the keys are {}", names.join(", "))
            };
            self.findings.push(finding.help(help));
        }
    }

    /// The keys that are not known.
    pub fn unknown(
        &self,
    ) -> impl Iterator<Item = (&'a Spanned<DeString<'i>>, &'a Spanned<DeValue<'i>>)> + use<'a, 'i>
    {
        let known = self.known;
        let unknown = move |key: &str| known.names().all(|name| name != key);
        let table = self.table;
        table.iter().filter(move |(key, _)| unknown(key.get_ref()))
    }

    /// The names of keys that the table has to have, and has not. One that is misspelt is not missing.
    pub fn missing(&self) -> Vec<&'static str> {
        let required = self.known.required();
        required.filter(|key| self.stated(key).is_none()).collect()
    }

    /// The entry of a key, or one that is not known and most likely means it.
    fn stated(&self, name: &str) -> Option<(&'a Spanned<DeString<'i>>, &'a Spanned<DeValue<'i>>)> {
        let exact = self.table.iter().find(|(key, _)| key.get_ref() == name);
        exact.or_else(|| {
            self.unknown().find(|(key, _)| {
                let written: &str = key.get_ref();
                let meant = match foreign(self.known.name, written) {
                    Some(foreign) => foreign.key,
                    None => nearest(written, self.known.names()),
                };
                meant == Some(name)
            })
        })
    }

    /// Reports something about this table.
    pub fn report(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// The value of a key, of any kind; of one that is misspelt, too, so that nothing follows from that but the
    /// finding about its name.
    ///
    /// # Panics
    /// The key is one of another table.
    pub fn value(&self, key: &Key) -> Option<&'a Spanned<DeValue<'i>>> {
        let (written, value) = self.stated(self.key_name(key))?;
        // What other tools hold there is something else.
        foreign(self.known.name, written.get_ref())
            .is_none()
            .then_some(value)
    }

    /// The name of a key of this table.
    fn key_name(&self, key: &Key) -> &'static str {
        assert!(
            self.known.names().any(|known| known == key.name),
            "`{}` is a key of another table than {}",
            key.name,
            self.known.name
        );
        key.name
    }

    /// Whether the table has a key, misspelt perhaps.
    ///
    /// # Panics
    /// As [`Self::value`].
    pub fn has(&self, key: &Key) -> bool {
        self.stated(self.key_name(key)).is_some()
    }

    /// Place of a key's name.
    pub fn key_span(&self, key: &Key) -> Option<Span> {
        self.stated(key.name).map(|(name, _)| name.span())
    }

    fn wrong_type(&mut self, key: &Key, value: &Spanned<DeValue>, wanted: &str) {
        let found = value.get_ref().type_str();
        let example = meant(value.get_ref(), wanted).unwrap_or_else(|| key.example());
        let name = key.name;
        self.findings.push(
            Finding::new(Code::ValueType, format!("`{name}` must be {wanted}"))
                .at(value.span(), format!("this is {} {found}", article(found)))
                .help(format!("write {name} = {example}, for instance")),
        );
    }

    /// The tables in the list of a key, with their places. What is no list of tables is reported.
    pub fn tables(&mut self, key: &Key) -> Vec<(&'a DeTable<'i>, Span)> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let list = value.get_ref().as_array();
        let wrong = match list {
            None => Some(value),
            Some(list) => list.iter().find(|item| item.get_ref().as_table().is_none()),
        };
        if let Some(wrong) = wrong {
            let name = key.name;
            self.findings.push(
                Finding::new(
                    Code::ValueType,
                    format!("`{name}` must be a list of tables"),
                )
                .at(wrong.span(), "no table, or in no list")
                .help(format!("write {name} = [{{ .. }}], or [[vm.NAME.{name}]]")),
            );
            return Vec::new();
        }
        let tables = list.into_iter().flat_map(|list| list.iter());
        tables
            .filter_map(|item| Some((item.get_ref().as_table()?, item.span())))
            .collect()
    }

    /// The strings and tables in the list of a key, with their places. What is no list, or something else in it, is reported.
    pub fn texts_and_tables(&mut self, key: &Key) -> Vec<(TextOrTable<'a, 'i>, Span)> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let Some(list) = value.get_ref().as_array() else {
            self.wrong_type(key, value, TEXTS);
            return Vec::new();
        };
        let read = |value: &'a DeValue<'i>| match value.as_table() {
            Some(table) => Some(TextOrTable::Table(table)),
            None => text(value).map(TextOrTable::Text),
        };
        let mut all = Vec::new();
        for item in list.iter() {
            match read(item.get_ref()) {
                Some(read) => all.push((read, item.span())),
                None => {
                    let (name, found) = (key.name, item.get_ref().type_str());
                    let what = format!("an entry of `{name}` is a string or a table");
                    self.findings.push(
                        Finding::new(Code::ValueType, what)
                            .at(item.span(), format!("this is {} {found}", article(found)))
                            .help(format!("such as {name} = {}", key.example())),
                    );
                }
            }
        }
        all
    }

    /// The value of a key as what the key holds. That there is none is not reported, that it is
    /// something else is.
    pub fn read<T: Typed>(&mut self, key: T) -> Option<T::Value> {
        key.read(self)
    }

    fn text(&mut self, key: &Key) -> Option<Placed<String>> {
        self.one(key, TEXT, text)
    }

    fn one<T>(
        &mut self,
        key: &Key,
        wanted: &str,
        read: impl Fn(&DeValue) -> Option<T>,
    ) -> Option<Placed<T>> {
        let value = self.value(key)?;
        let read = read(value.get_ref());
        if read.is_none() {
            self.wrong_type(key, value, wanted);
        }
        let span = value.span();
        read.map(|value| Placed { value, span })
    }

    fn list<T>(
        &mut self,
        key: &Key,
        wanted: &str,
        read: impl Fn(&DeValue) -> Option<T>,
    ) -> Option<Placed<Vec<Placed<T>>>> {
        let value = self.value(key)?;
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(key, value, wanted);
            return None;
        };
        let mut list = Vec::new();
        for item in array.iter() {
            match read(item.get_ref()) {
                Some(read) => list.push(Placed {
                    value: read,
                    span: item.span(),
                }),
                None => {
                    self.wrong_type(key, item, wanted);
                    return None;
                }
            }
        }
        Some(Placed {
            value: list,
            span: value.span(),
        })
    }
}

/// A key of which it is known what it holds.
pub trait Typed {
    /// That, with its place.
    type Value;

    /// Reads it; reports what is something else.
    fn read(self, reader: &mut Reader) -> Option<Self::Value>;
}

impl Typed for Text {
    type Value = Placed<String>;

    fn read(self, reader: &mut Reader) -> Option<Self::Value> {
        reader.text(self.0)
    }
}

impl Typed for Flag {
    type Value = Placed<bool>;

    fn read(self, reader: &mut Reader) -> Option<Self::Value> {
        reader.one(self.0, FLAG, |value| value.as_bool())
    }
}

impl Typed for Number {
    type Value = Placed<u32>;

    fn read(self, reader: &mut Reader) -> Option<Self::Value> {
        reader.one(self.0, NUMBER, number)
    }
}

impl Typed for Numbers {
    type Value = Placed<Vec<Placed<u32>>>;

    fn read(self, reader: &mut Reader) -> Option<Self::Value> {
        reader.list(self.0, NUMBERS, number)
    }
}

impl Typed for TextOrTexts {
    type Value = Vec<Placed<String>>;

    fn read(self, reader: &mut Reader) -> Option<Self::Value> {
        let value = reader.value(self.0)?;
        if let Some(text) = text(value.get_ref()) {
            let span = value.span();
            return Some(vec![Placed { value: text, span }]);
        }
        Some(reader.list(self.0, TEXT_OR_TEXTS, text)?.value)
    }
}

impl Typed for Quantity {
    type Value = Placed<u64>;

    fn read(self, reader: &mut Reader) -> Option<Self::Value> {
        let Self(key, notation) = self;
        let text = reader.text(key)?;
        match (notation.parse)(&text.value) {
            Ok(value) => Some(text.map(|_| value)),
            Err(why) => {
                let (_, what) = notation.code.short().split_once("::").unwrap_or_default();
                reader.report(
                    Finding::new(notation.code, format!("`{}` is no {what}", text.value))
                        .at(text.span, why)
                        .help(format!("such as {}", key.example())),
                );
                None
            }
        }
    }
}

impl Typed for Word {
    type Value = Placed<&'static str>;

    fn read(self, reader: &mut Reader) -> Option<Self::Value> {
        let Self(key, words) = self;
        let text = reader.text(key)?;
        let known = || words.sound.iter().chain(words.refused).copied();
        if let Some(word) = known().find(|word| *word == text.value) {
            return Some(text.map(|_| word));
        }
        let (name, what) = (key.name, reader.what);
        let message = format!("`{name}` of {what} cannot be `{}`", text.value);
        let mut choice = one_of(words.sound.iter().copied());
        if matches!(key.kind, Kind::Or(..)) {
            choice.push_str(", or a table");
        }
        let help = match nearest(&text.value, known()) {
            // Alone it would be refused as well.
            Some(word) if words.refused.contains(&word) => {
                format!("did you mean a table with `{word}`?")
            }
            Some(word) => format!("did you mean `{word}`?"),
            None => format!("say {name} = {}, for instance", key.example()),
        };
        reader.report(
            Finding::new(Code::ValueWord, message)
                .at(text.span, choice)
                .help(help),
        );
        None
    }
}

// Kinds of values, for messages.
const TEXT: &str = "a string";
const FLAG: &str = "true or false";
const NUMBER: &str = "a number that is not negative";
const NUMBERS: &str = "a list of numbers";
const TEXTS: &str = "a list of strings";
const TEXT_OR_TEXTS: &str = "a string or a list of strings";

/// Value most likely meant by one of another kind: the number in a string, the list of one.
fn meant(found: &DeValue, wanted: &str) -> Option<String> {
    match (found, wanted) {
        (DeValue::String(text), NUMBER) => Some(text.parse::<u32>().ok()?.to_string()),
        (DeValue::String(text), FLAG) => Some(text.parse::<bool>().ok()?.to_string()),
        (DeValue::Integer(_), FLAG) => Some((number(found)? != 0).to_string()),
        (DeValue::Integer(_), NUMBERS) => Some(format!("[{}]", number(found)?)),
        // As it is written in a file: with its quotes, and what needs them escaped.
        (DeValue::String(text), TEXTS) => {
            Some(format!("[{}]", toml::Value::String(text.to_string())))
        }
        _ => None,
    }
}

/// A string.
fn text(value: &DeValue) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// A number that is not negative and fits 32 bits.
fn number(value: &DeValue) -> Option<u32> {
    let integer = value.as_integer()?;
    u32::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// "a" or "an".
fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'u']) {
        "an"
    } else {
        "a"
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::{BOARD, VM};
    use super::*;

    fn read(text: &str, key: &Key) -> bool {
        let table = DeTable::parse(text).expect("TOML");
        let mut findings = Vec::new();
        let reader = Reader::new(table.get_ref(), "a VM", VM, &mut findings);
        let has = reader.has(key);
        reader.finish();
        assert!(findings.is_empty(), "{findings:?}");
        has
    }

    #[test]
    fn a_key_of_the_table_is_read() {
        assert!(read("vcpus = 1", const { VM.key("vcpus") }));
        assert!(!read("vcpus = 1", const { VM.key("cpu") }));
    }

    #[test]
    fn a_key_that_is_misspelt_is_reported_once_and_is_not_missing() {
        let text = "memroy = \"4MiB\"\ncpus = 2\nipa = 1";
        let table = DeTable::parse(text).expect("TOML");
        let mut findings = Vec::new();
        let mut reader = Reader::new(table.get_ref(), "a VM", VM, &mut findings);
        let memory = reader.read(const { VM.quantity("memory") });
        assert_eq!(memory.map(|memory| memory.value), Some(4 << 20));
        assert!(reader.missing().is_empty());
        // Another tool's `cpus` need not be a number of vCPUs.
        assert!(reader.read(const { VM.number("vcpus") }).is_none());
        assert!(reader.has(const { VM.key("vcpus") }) && !reader.has(const { VM.key("cpu") }));
        reader.finish();
        let help = |finding: &Finding| finding.help.clone().expect("a remedy");
        assert_eq!(help(&findings[0]), "did you mean `memory`?");
        assert!(help(&findings[1]).starts_with("`vcpus` is how many CPUs the VM has"));
        assert_eq!(help(&findings[2]), "it is a key of `memory`");
        assert_eq!(findings.len(), 3);
    }

    #[test]
    #[should_panic(expected = "`uarts` is a key of another table than vm")]
    fn a_key_of_another_table_is_not_read() {
        read("vcpus = 1", const { BOARD.key("uarts") });
    }
}

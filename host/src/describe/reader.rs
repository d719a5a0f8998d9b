//! Reads tables of a description, key by key, and notes every key that nobody asked for.

use std::collections::BTreeSet;

use bulkhead_abi::plan::NAME;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::code::Code;
use super::finding::{Finding, Span};
use super::size::{parse_address, parse_duration, parse_percent, parse_size, parse_time};
use super::suggest::nearest;

/// Reports a name of something that VMs have together which a device tree cannot carry.
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

/// A remedy for a name that cannot be: one that can, and is as much like it as possible.
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

/// A table being read. Dropping it without [`Reader::finish`] would lose unknown keys.
pub struct Reader<'a, 'i, 'f> {
    table: &'a DeTable<'i>,
    /// What the table is, for messages: "a VM", "the board".
    what: &'static str,
    known: &'static [&'static str],
    asked: BTreeSet<&'static str>,
    findings: &'f mut Vec<Finding>,
}

impl<'a, 'i, 'f> Reader<'a, 'i, 'f> {
    /// Starts to read `table`, which may have the keys `known`.
    pub fn new(
        table: &'a DeTable<'i>,
        what: &'static str,
        known: &'static [&'static str],
        findings: &'f mut Vec<Finding>,
    ) -> Self {
        Self {
            table,
            what,
            known,
            asked: BTreeSet::new(),
            findings,
        }
    }

    /// Reports keys that nobody knows.
    pub fn finish(self) {
        for (key, _) in self.table.iter() {
            let name: &str = key.get_ref();
            if self.known.contains(&name) {
                continue;
            }
            let finding = Finding::new(
                Code::KeyUnknown,
                format!("{} has no key `{name}`", self.what),
            )
            .at(key.span(), "not known here");
            self.findings
                .push(match nearest(name, self.known.iter().copied()) {
                    Some(known) => finding.help(format!("did you mean `{known}`?")),
                    None => finding.help(format!("the keys are {}", self.known.join(", "))),
                });
        }
        debug_assert!(self.asked.iter().all(|key| self.known.contains(key)));
    }

    /// Reports something about this table.
    pub fn report(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// The value of a key, whatever it is.
    pub fn value(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'i>>> {
        self.asked.insert(key);
        self.table.get(key)
    }

    /// Place of a key's name.
    pub fn key_span(&self, key: &str) -> Option<Span> {
        self.table
            .iter()
            .find(|(name, _)| name.get_ref() == key)
            .map(|(name, _)| name.span())
    }

    fn wrong_type(&mut self, key: &str, value: &Spanned<DeValue>, wanted: Wanted) {
        let found = value.get_ref().type_str();
        let Wanted(wanted, example) = wanted;
        let example = meant(value.get_ref(), wanted).unwrap_or_else(|| example.to_owned());
        self.findings.push(
            Finding::new(Code::ValueType, format!("`{key}` must be {wanted}"))
                .at(value.span(), format!("this is {} {found}", article(found)))
                .help(format!("write {key} = {example}, for instance")),
        );
    }

    /// A string.
    pub fn text(&mut self, key: &'static str) -> Option<Placed<String>> {
        self.text_like(key, example(key))
    }

    /// A string such as `example`, which stands in quotes.
    fn text_like(&mut self, key: &'static str, example: &str) -> Option<Placed<String>> {
        let value = self.value(key)?;
        match value.get_ref().as_str() {
            Some(text) => Some(Placed {
                value: text.to_owned(),
                span: value.span(),
            }),
            None => {
                self.wrong_type(key, value, Wanted(TEXT, example));
                None
            }
        }
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &'static str) -> Option<Placed<bool>> {
        let value = self.value(key)?;
        match value.get_ref().as_bool() {
            Some(flag) => Some(Placed {
                value: flag,
                span: value.span(),
            }),
            None => {
                self.wrong_type(key, value, Wanted(FLAG, "true"));
                None
            }
        }
    }

    /// A number that is not negative.
    pub fn number(&mut self, key: &'static str) -> Option<Placed<u32>> {
        let value = self.value(key)?;
        match number(value.get_ref()) {
            Some(number) => Some(Placed {
                value: number,
                span: value.span(),
            }),
            None => {
                self.wrong_type(key, value, Wanted(NUMBER, example(key)));
                None
            }
        }
    }

    /// A list of numbers.
    pub fn numbers(&mut self, key: &'static str) -> Option<Placed<Vec<Placed<u32>>>> {
        self.list(key, Wanted(NUMBERS, example(key)), number)
    }

    /// A list of strings.
    pub fn texts(&mut self, key: &'static str) -> Option<Placed<Vec<Placed<String>>>> {
        self.list(key, Wanted(TEXTS, example(key)), |value| {
            value.as_str().map(str::to_owned)
        })
    }

    /// A string, or a list of strings.
    pub fn texts_or_one(&mut self, key: &'static str) -> Option<Vec<Placed<String>>> {
        let value = self.value(key)?;
        if let Some(text) = value.get_ref().as_str() {
            return Some(vec![Placed {
                value: text.to_owned(),
                span: value.span(),
            }]);
        }
        let list = self.list(key, Wanted(TEXT_OR_TEXTS, example(key)), |value| {
            value.as_str().map(str::to_owned)
        });
        Some(list?.value)
    }

    fn list<T>(
        &mut self,
        key: &'static str,
        wanted: Wanted,
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

    /// A size such as `"4KiB"`.
    pub fn size(&mut self, key: &'static str) -> Option<Placed<u64>> {
        let text = self.text_like(key, "\"64MiB\"")?;
        self.parsed((Code::ValueSize, "64MiB"), text, parse_size)
    }

    /// An address such as `"0x40000000"`.
    pub fn address(&mut self, key: &'static str) -> Option<Placed<u64>> {
        let text = self.text_like(key, "\"0x40000000\"")?;
        self.parsed((Code::ValueAddress, "0x40000000"), text, parse_address)
    }

    /// A time such as `"60s"`, in seconds.
    pub fn time(&mut self, key: &'static str) -> Option<Placed<u64>> {
        let text = self.text_like(key, "\"60s\"")?;
        self.parsed((Code::ValueTime, "60s"), text, parse_time)
    }

    /// A short time such as `"2ms"`, in nanoseconds.
    pub fn duration(&mut self, key: &'static str) -> Option<Placed<u64>> {
        let text = self.text_like(key, "\"2ms\"")?;
        self.parsed((Code::ValueTime, "2ms"), text, parse_duration)
    }

    /// A part such as `"30%"`, 1 to 100.
    pub fn percent(&mut self, key: &'static str) -> Option<Placed<u64>> {
        let text = self.text_like(key, "\"30%\"")?;
        self.parsed((Code::ValuePart, "30%"), text, parse_percent)
    }

    fn parsed<T>(
        &mut self,
        (code, example): (Code, &str),
        text: Placed<String>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Placed<T>> {
        match parse(&text.value) {
            Ok(value) => Some(Placed {
                value,
                span: text.span,
            }),
            Err(why) => {
                let (_, what) = code.short().split_once("::").unwrap_or_default();
                self.findings.push(
                    Finding::new(code, format!("`{}` is no {what}", text.value))
                        .at(text.span, why)
                        .help(format!("such as \"{example}\"")),
                );
                None
            }
        }
    }

    /// One of some words.
    pub fn word(
        &mut self,
        key: &'static str,
        words: &[&'static str],
    ) -> Option<Placed<&'static str>> {
        let example = format!("\"{}\"", words.first().unwrap_or(&""));
        let text = self.text_like(key, &example)?;
        if let Some(word) = words.iter().find(|word| **word == text.value) {
            return Some(Placed {
                value: word,
                span: text.span,
            });
        }
        let finding = Finding::new(
            Code::ValueWord,
            format!(
                "`{}` is not a {key} that {} can have",
                text.value, self.what
            ),
        )
        .at(text.span, format!("must be one of: {}", words.join(", ")));
        self.findings
            .push(match nearest(&text.value, words.iter().copied()) {
                Some(word) => finding.help(format!("did you mean `{word}`?")),
                None => finding.help(format!(
                    "say {key} = \"{}\", for instance",
                    words.first().unwrap_or(&"")
                )),
            });
        None
    }
}

/// What a value has to be, and an example as it stands in a file.
#[derive(Clone, Copy)]
struct Wanted<'a>(&'static str, &'a str);

const TEXT: &str = "a string";
const FLAG: &str = "true or false";
const NUMBER: &str = "a number that is not negative";
const NUMBERS: &str = "a list of numbers";
const TEXTS: &str = "a list of strings";
const TEXT_OR_TEXTS: &str = "a string or a list of strings";

/// A value that a key can have, where its kind does not say enough.
fn example(key: &str) -> &'static str {
    match key {
        "name" => "\"qemu-virt\"",
        "dtb" => "\"board.dtb\"",
        "kernel" => "\"debian:kernel\"",
        "initrd" => "\"debian:initramfs\"",
        "image" => "\"guest:hello\"",
        "cmdline" => "\"console=ttyAMA0\"",
        "overlay" => "\"board.dtbo\"",
        "devices" => "[\"/pl061@9030000\"]",
        "firmware" => "\"none\"",
        "from" | "to" | "notify" => "\"one\"",
        "gic" | "restart" => "3",
        "intid" => "40",
        "pcpus" | "pool" => "[0]",
        "smc" => "[0x82000001]",
        "service" => "0",
        _ => "1",
    }
}

/// What was most likely meant by a value of another kind: the number in a string, the list of one.
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

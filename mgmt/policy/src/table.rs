//! Tables of a file, read key by key: what is of the wrong kind and keys that are not known are mistakes with a place.

use bulkhead_control::words;
use std::time::Duration;
use strsim::levenshtein;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::fault::{Fault, Span};
use crate::rule::Placed;

/// A table being read.
pub struct Reader<'a, 'i, 'f> {
    table: &'a DeTable<'i>,
    /// Where it begins: for keys that are missing.
    span: Span,
    /// What it is, in messages.
    what: String,
    known: &'static [&'static str],
    faults: &'f mut Vec<Fault>,
}

/// A value of the file.
pub type Value<'a, 'i> = &'a Spanned<DeValue<'i>>;

impl<'a, 'i, 'f> Reader<'a, 'i, 'f> {
    /// Begins to read a table that may have the keys `known`, and reports others.
    pub fn new(
        table: &'a DeTable<'i>,
        span: Span,
        what: impl Into<String>,
        known: &'static [&'static str],
        faults: &'f mut Vec<Fault>,
    ) -> Self {
        let what = what.into();
        for (key, _) in table {
            let name: &str = key.get_ref();
            if known.contains(&name) {
                continue;
            }
            let help = nearest(name, known.iter().copied()).map_or_else(
                || format!("the keys are {}", known.join(", ")),
                |meant| format!("did you mean `{meant}`?"),
            );
            let message = format!("{what} has no key `{name}`");
            faults
                .push(Fault::new("policy::key", message, key.span(), "not known here").help(help));
        }
        Self {
            table,
            span,
            what,
            known,
            faults,
        }
    }

    /// The value of a key, if it is there.
    pub fn get(&self, key: &str) -> Option<Value<'a, 'i>> {
        debug_assert!(self.known.contains(&key), "{key}");
        let mut entries = self.table.iter();
        let found = entries.find(|(name, _)| name.get_ref() == key);
        found.map(|(_, value)| value)
    }

    /// The value of a key that has to be there; that it is not is a mistake, with what to write.
    pub fn need(&mut self, key: &str, example: &str) -> Option<Value<'a, 'i>> {
        let found = self.get(key);
        let mut names = self
            .table
            .iter()
            .map(|(name, _)| -> &str { name.get_ref() });
        let known = || self.known.iter().copied();
        // One that is misspelt is not missing, too.
        let is_misspelt =
            names.any(|name| !self.known.contains(&name) && nearest(name, known()) == Some(key));
        if found.is_none() && !is_misspelt {
            let message = format!("{} has no `{key}`", self.what);
            let fault = Fault::new("policy::missing", message, self.span.clone(), "here");
            self.faults
                .push(fault.help(format!("add `{key} = {example}`")));
        }
        found
    }

    /// Reports a value that is not what it has to be.
    pub fn wrong(&mut self, span: Span, message: impl Into<String>, label: &str, help: &str) {
        let fault = Fault::new("policy::value", message, span, label);
        self.faults.push(fault.help(help));
    }

    /// A string, with what it is read as; a mistake says what is wanted.
    pub fn read<T>(
        &mut self,
        key: &str,
        value: Value<'_, '_>,
        example: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<Placed<T>> {
        let span = value.span();
        let DeValue::String(text) = value.get_ref() else {
            let label = kind(value.get_ref());
            let help = format!("write `{key} = {example}`");
            self.wrong(span, format!("`{key}` is a string"), label, &help);
            return None;
        };
        match read(text) {
            Ok(value) => Some(Placed { value, span }),
            Err(why) => {
                let help = format!("such as `{key} = {example}`");
                self.wrong(span, format!("`{key}` cannot be read"), &why, &help);
                None
            }
        }
    }

    /// A whole number between two.
    pub fn number(
        &mut self,
        key: &str,
        value: Value<'_, '_>,
        least: u64,
        most: u64,
    ) -> Option<u64> {
        let number = match value.get_ref() {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        let number = number.filter(|number| (least..=most).contains(number));
        if number.is_none() {
            let message = format!("`{key}` is a whole number from {least} to {most}");
            let label = match value.get_ref() {
                DeValue::Integer(_) => "out of range",
                other => kind(other),
            };
            let help = format!("such as `{key} = {}`", least.max(1));
            self.wrong(value.span(), message, label, &help);
        }
        number
    }

    /// A time of at least `least` and at most `most`, or what it is when it is not stated.
    pub fn time(
        &mut self,
        key: &str,
        least: Duration,
        most: Duration,
        otherwise: Duration,
    ) -> Duration {
        let Some(value) = self.get(key) else {
            return otherwise;
        };
        let example = "\"5s\"";
        let Some(time) = self.read(key, value, example, words::time) else {
            return otherwise;
        };
        let read = Duration::from_nanos(time.value);
        if !(least..=most).contains(&read) {
            let text = crate::rule::text_of;
            let message = format!("`{key}` is {} to {}", text(least), text(most));
            self.wrong(
                time.span,
                message,
                "out of range",
                "choose a time between them",
            );
            return otherwise;
        }
        read
    }

    /// A table.
    pub fn table<'v, 'w>(
        &mut self,
        key: &str,
        value: Value<'v, 'w>,
        example: &str,
    ) -> Option<&'v DeTable<'w>> {
        if let DeValue::Table(table) = value.get_ref() {
            return Some(table);
        }
        let message = format!("`{key}` is a table");
        let help = format!("write `{key} = {example}`");
        self.wrong(value.span(), message, kind(value.get_ref()), &help);
        None
    }

    /// A list of strings, one at least, with what each is read as.
    pub fn list<T>(
        &mut self,
        key: &str,
        value: Value<'_, '_>,
        example: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<Placed<T>>> {
        let DeValue::Array(list) = value.get_ref() else {
            let help = format!("write `{key} = {example}`");
            let message = format!("`{key}` is a list of strings");
            self.wrong(value.span(), message, kind(value.get_ref()), &help);
            return None;
        };
        if list.is_empty() {
            let message = format!("`{key}` is empty");
            let help = format!("such as `{key} = {example}`");
            self.wrong(value.span(), message, "nothing is in it", &help);
            return None;
        }
        let mut all = Vec::new();
        for one in list {
            all.push(self.read(key, one, example, &read)?);
        }
        Some(all)
    }

    /// Where mistakes go.
    pub fn faults(&mut self) -> &mut Vec<Fault> {
        self.faults
    }

    /// Where it begins.
    pub fn span(&self) -> Span {
        self.span.clone()
    }
}

/// What a value is, in words.
pub fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a number without quotes",
        DeValue::Float(_) => "a number with a point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// The known word that a misspelt one most likely means.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.map(|one| (levenshtein(word, one), one));
    let near = near.filter(|(distance, one)| *distance <= one.len().div_ceil(3));
    near.min().map(|(_, one)| one)
}

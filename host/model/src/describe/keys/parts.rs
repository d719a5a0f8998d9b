//! What tables of keys consist of.

use crate::describe::size::Notation;

/// A key of a table.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Kind of its value.
    pub kind: Kind,
    /// A value as it stands in a file, where the kind does not have one.
    pub(super) example: &'static str,
    /// Meaning, for the book and the JSON schema.
    pub meaning: &'static str,
}

/// Kind of value that a key holds.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A string.
    Text,
    /// `true` or `false`.
    Flag,
    /// A number from the first to the second.
    Number(u32, u32),
    /// A list of numbers.
    Numbers,
    /// A list of strings.
    Texts,
    /// A list of strings and of tables, which may be mixed.
    TextsAndTables(&'static Table),
    /// A string or a list of strings.
    TextOrTexts,
    /// A string with a number and a unit.
    Quantity(&'static Notation),
    /// One of some words.
    Words(Words),
    /// A table.
    Table(&'static Table),
    /// A table, or the first instead.
    Or(&'static Kind, &'static Table),
    /// A list of tables.
    Tables(&'static Table),
    /// Tables with names, at least so many, and names that they cannot have.
    Named(&'static Table, usize, &'static [&'static str]),
    /// A table of VMs with one of some words for each, from so many VMs to so many.
    PerVm(&'static [&'static str], usize, usize),
    /// A table of VMs, or `*` for all, with some of these words for each.
    WordsPerVm(&'static [&'static str]),
}

/// Words that a key can have.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// Words that it can have.
    pub sound: &'static [&'static str],
    /// Words that the reader knows and refuses, with a reason of its own.
    pub refused: &'static [&'static str],
}

/// Rule about which keys of a table go together.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// It has these keys.
    Has(&'static [&'static str]),
    /// It has all keys of one group, and none of the others.
    Either(&'static [&'static [&'static str]]),
    /// It has one of these keys at least.
    Any(&'static [&'static str]),
    /// If it has one of these two keys, it has the other, too.
    Both(&'static str, &'static str),
    /// If it has the first key, it has none of the others.
    Without(&'static str, &'static [&'static str]),
    /// If the key has this value, the table has these keys.
    When(&'static str, &'static str, &'static [&'static str]),
    /// The same, and else it has none of them.
    OnlyWhen(&'static str, &'static str, &'static [&'static str]),
    /// If the key has this value, the table has one of these keys at least; else it has not the first of them.
    AnyWhen(&'static str, &'static str, &'static [&'static str]),
}

/// A table of a description.
#[derive(Debug)]
pub struct Table {
    /// A word for it.
    pub name: &'static str,
    /// Heading of the table, as a description writes it.
    pub heading: &'static str,
    /// Purpose of the table.
    pub about: &'static str,
    /// Its keys, in the order in which people read about them.
    pub keys: &'static [Key],
    /// Rules about which keys go together.
    pub rules: &'static [Rule],
}

pub(super) const fn key(
    name: &'static str,
    kind: Kind,
    example: &'static str,
    meaning: &'static str,
) -> Key {
    Key {
        name,
        kind,
        example,
        meaning,
    }
}

/// A key whose kind has an example.
pub(super) const fn plain(name: &'static str, kind: Kind, meaning: &'static str) -> Key {
    key(name, kind, "", meaning)
}

pub(super) const fn words(sound: &'static [&'static str]) -> Kind {
    let refused = &[];
    Kind::Words(Words { sound, refused })
}

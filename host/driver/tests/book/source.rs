//! Reads what a source file says about its public items: names, values, and the comments above them.

use std::fs;
use std::path::Path;

/// A constant, a field or a variant.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Type of a field, value of a constant or variant.
    pub value: String,
    /// The comment above it, on one line.
    pub says: String,
}

/// Kind of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A structure with fields.
    Struct,
    /// An enumeration with variants.
    Enum,
    /// A constant: one entry, itself.
    Const,
}

/// An item of a source file.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// The comment above it, on one line.
    pub says: String,
    /// Its entries.
    pub entries: Vec<Entry>,
}

/// The items of a file, by its path from the root of the checkout, up to its tests. Constants need not be public.
pub fn items(path: &str) -> Vec<Item> {
    let path = Path::new("../..").join(path);
    let text = fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut items: Vec<Item> = Vec::new();
    let mut comment = String::new();
    let (mut inside, mut attribute) = (false, false);
    for line in text.lines() {
        let indented = line.starts_with("    ");
        let bare = line.trim();
        let public = bare.strip_prefix("pub ").unwrap_or(bare);
        let says = || plain(&comment);
        if let Some(words) = bare.strip_prefix("///") {
            comment.push(' ');
            comment.push_str(words.trim());
            continue;
        }
        attribute |= bare.starts_with("#[");
        if attribute {
            attribute = !bare.ends_with(']');
            continue;
        }
        let opened = |word: &str| Some(public.strip_prefix(word)?.strip_suffix(" {")?.to_owned());
        let named = opened("struct ").map(|name| (Kind::Struct, name));
        let named = named.or_else(|| opened("enum ").map(|name| (Kind::Enum, name)));
        if let (Some((kind, name)), false) = (named, indented) {
            inside = true;
            let (says, entries) = (says(), Vec::new());
            items.push(Item {
                kind,
                name,
                says,
                entries,
            });
        } else if let (Some(rest), false) = (public.strip_prefix("const "), indented) {
            if let Some((name, value)) = constant(rest) {
                let entry = Entry {
                    name: name.clone(),
                    value,
                    says: says(),
                };
                items.push(Item {
                    kind: Kind::Const,
                    name,
                    says: says(),
                    entries: vec![entry],
                });
            }
        } else if let (true, true, Some(item)) = (inside, indented, items.last_mut()) {
            let parts = match item.kind {
                Kind::Enum => public.trim_end_matches(',').split_once(" = "),
                _ => public.trim_end_matches(',').split_once(": "),
            };
            let says = says();
            item.entries.extend(parts.map(|(name, value)| Entry {
                name: name.to_owned(),
                value: value.to_owned(),
                says,
            }));
        } else if line == "}" {
            inside = false;
        }
        comment.clear();
    }
    items
}

/// `NAME: TYPE = VALUE;`
fn constant(text: &str) -> Option<(String, String)> {
    let (name, rest) = text.split_once(": ")?;
    let (_, value) = rest.split_once(" = ")?;
    let value = value.strip_suffix(';')?.trim_start_matches("super::");
    Some((name.to_owned(), value.to_owned()))
}

/// A comment without links to items.
fn plain(comment: &str) -> String {
    let mut parts = comment.trim().split("`]");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // Where the item is, for one that the file does not have.
        let path = part.strip_prefix('(').and_then(|path| path.split_once(')'));
        text.push('`');
        text.push_str(path.map_or(part, |(_, behind)| behind));
    }
    text.replace("[`", "`").replace('|', "\\|")
}

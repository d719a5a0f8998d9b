//! The JSON schema of descriptions, by which editors complete and check them while they are written.
//!
//! It says what can be said of a description without a board and without files: keys, kinds of
//! values, words, what goes together in one table. All of that comes from the tables of
//! [`keys`](super::keys); tests hold kinds and words against what the readers do.

use bulkhead_abi::plan::NAME;
use serde_json::{Map, Value, json};

use super::keys::{Kind, Rule, SYSTEM, Table};
use super::size::Notation;

/// Path of the schema in the repository.
pub const FILE: &str = "docs/reference/description.schema.json";

/// The schema of a whole description (JSON Schema, draft 2020-12).
pub fn schema() -> Value {
    let mut schema = table(SYSTEM);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("A system of Bulkhead");
    schema["description"] = json!(SYSTEM.about);
    schema
}

/// The schema as the text of a file.
pub fn text() -> String {
    format!("{:#}\n", schema())
}

/// The schema of one table.
pub fn table(table: &Table) -> Value {
    let properties: Map<String, Value> = table
        .keys
        .iter()
        .map(|key| {
            let mut schema = kind(&key.kind);
            schema["description"] = json!(key.meaning);
            (key.name.to_owned(), schema)
        })
        .collect();
    let mut schema =
        json!({ "type": "object", "additionalProperties": false, "properties": properties });
    for rule in table.rules {
        add(rule, &mut schema);
    }
    schema
}

/// Adds what goes together to the schema of a table.
fn add(rule: &Rule, schema: &mut Value) {
    let when = |key: &str, value: &str| json!({ "required": [key], "properties": { key: { "const": value } } });
    let mut implies = |implication: Value| match schema["allOf"].as_array_mut() {
        Some(all) => all.push(implication),
        None => schema["allOf"] = json!([implication]),
    };
    match *rule {
        Rule::Has(keys) => schema["required"] = json!(keys),
        Rule::Either(groups) => {
            let groups: Vec<_> = groups.iter().map(|keys| has(keys)).collect();
            schema["oneOf"] = json!(groups);
        }
        Rule::Any(keys) => {
            let one: Vec<_> = keys.iter().map(|key| has(&[key])).collect();
            schema["anyOf"] = json!(one);
        }
        Rule::Both(one, other) => {
            schema["dependentRequired"] = json!({ one: [other], other: [one] });
        }
        Rule::Without(key, keys) => schema["dependentSchemas"][key] = none_of(keys),
        Rule::When(key, value, keys) => {
            implies(json!({ "if": when(key, value), "then": has(keys) }));
        }
        Rule::OnlyWhen(key, value, keys) => {
            implies(json!({ "if": when(key, value), "then": has(keys), "else": none_of(keys) }));
        }
        Rule::AnyWhen(key, value, keys) => {
            let one: Vec<_> = keys.iter().map(|key| has(&[key])).collect();
            let without = none_of(&keys[..1]);
            implies(json!({ "if": when(key, value), "then": { "anyOf": one }, "else": without }));
        }
    }
}

fn has(keys: &[&str]) -> Value {
    json!({ "required": keys })
}

fn none_of(keys: &[&str]) -> Value {
    let keys: Vec<_> = keys.iter().map(|key| has(&[key])).collect();
    json!({ "not": { "anyOf": keys } })
}

/// The schema of a value.
fn kind(of: &Kind) -> Value {
    match *of {
        Kind::Text => json!({ "type": "string" }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Number(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Kind::Numbers => json!({ "type": "array", "items": kind(&Kind::Number(0, u32::MAX)) }),
        Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::TextsAndTables(of) => {
            json!({ "type": "array", "items": { "anyOf": [kind(&Kind::Text), table(of)] } })
        }
        Kind::TextOrTexts => json!({ "anyOf": [kind(&Kind::Text), kind(&Kind::Texts)] }),
        Kind::Quantity(notation) => quantity(notation),
        Kind::Words(words) => json!({ "enum": words.sound }),
        Kind::Table(of) => table(of),
        Kind::Tables(of) => json!({ "type": "array", "items": table(of) }),
        Kind::Or(value, of) => json!({ "anyOf": [kind(value), table(of)] }),
        Kind::Named(of, least, reserved) => named(of, least, reserved),
        Kind::PerVm(words, least, most) => json!({
            "type": "object",
            "minProperties": least,
            "maxProperties": most,
            "additionalProperties": { "enum": words },
        }),
        Kind::WordsPerVm(words) => json!({
            "type": "object",
            "minProperties": 1,
            "additionalProperties": { "type": "array", "minItems": 1, "items": { "enum": words } },
        }),
    }
}

/// A string with a number and a unit. Editors show what it is, and how one looks.
fn quantity(notation: &Notation) -> Value {
    json!({
        "type": "string",
        "title": notation.title,
        "examples": [notation.example],
        "pattern": notation.pattern,
    })
}

/// Tables with names.
fn named(of: &Table, least: usize, reserved: &[&str]) -> Value {
    let pattern = format!("^[A-Za-z0-9-]{{1,{NAME}}}$");
    let mut schema = json!({
        "type": "object",
        "propertyNames": { "pattern": pattern, "not": { "enum": reserved } },
        "additionalProperties": table(of),
    });
    if least > 0 {
        schema["minProperties"] = json!(least);
    }
    schema
}

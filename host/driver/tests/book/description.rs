//! The page about the keys of a description, made from their tables and from the JSON schema, which
//! tests hold against the reader.

use std::fmt::Write;

use bulkhead_abi::plan::MAX_VMS;
use serde_json::Value;

use bulkhead_model::describe::{keys, schema};

/// The page.
pub fn page() -> String {
    let schema = schema::schema();
    let mut text = "# Description\n\n\
        All keys of a description, as the [JSON schema](description.schema.json) has them, by which [editors](../how-to/your-own-board.md#in-an-editor) complete and check them. \
        What goes together beyond one table, `./bulkhead check` says, and `./bulkhead explain` lists all that it can say.\n\n"
        .to_owned();
    let name = at(&schema, "/properties/vm/propertyNames/pattern");
    let reserved = words(at(&schema, "/properties/vm/propertyNames/not/enum"));
    let _ = writeln!(
        text,
        "The file is TOML. Names of VMs, shared memory, doorbells, networks and disks are `{}`; {reserved} are no names of VMs. There are at most {MAX_VMS} VMs.",
        name.as_str().expect("a pattern").trim_matches(['^', '$'])
    );
    for table in keys::TABLES {
        let schema = schema::table(table);
        let _ = write!(text, "\n## {}\n\n{}", table.heading, table.about);
        for rule in rules(&schema) {
            let _ = write!(text, " {rule}");
        }
        text += "\n";
        if !table.keys.is_empty() {
            text += "\n| key | value | meaning |\n| --- | --- | --- |\n";
        }
        for key in table.keys {
            let value = kind(&schema["properties"][key.name]);
            let meaning = key.meaning.replace('|', "\\|");
            let _ = writeln!(text, "| `{}` | {value} | {meaning} |", key.name);
        }
    }
    text
}

/// Returns the part of the schema at a place.
fn at<'a>(schema: &'a Value, place: &str) -> &'a Value {
    schema
        .pointer(place)
        .unwrap_or_else(|| panic!("the schema has nothing at {place}"))
}

/// Words or keys, as code.
fn words(list: &Value) -> String {
    let words = list.as_array().expect("a list");
    let words: Vec<_> = words
        .iter()
        .map(|word| format!("`{}`", word.as_str().expect("a word")))
        .collect();
    words.join(", ")
}

/// The keys that alternatives of a schema require.
fn required(alternatives: &Value) -> Vec<String> {
    let alternatives = alternatives.as_array().expect("alternatives");
    alternatives
        .iter()
        .map(|one| words(&one["required"]).replace(", ", " with "))
        .collect()
}

/// Describes the possible values of a schema.
fn kind(value: &Value) -> String {
    if let Some(alternatives) = value["anyOf"].as_array() {
        let all: Vec<_> = alternatives.iter().map(kind).collect();
        return all.join(", or ");
    }
    if !value["enum"].is_null() {
        return words(&value["enum"]);
    }
    if let Some(word) = value["const"].as_str() {
        return format!("`{word}`");
    }
    match value["type"].as_str() {
        Some("string") => match (value["title"].as_str(), value["examples"][0].as_str()) {
            (Some(title), Some(example)) => format!("{title}: `\"{example}\"`"),
            _ => "text".to_owned(),
        },
        Some("boolean") => "`true`, `false`".to_owned(),
        Some("integer") => {
            let least = value["minimum"].as_u64().expect("a least");
            match value["maximum"].as_u64().expect("a most") {
                most if most == u64::from(u32::MAX) => format!("number from {least}"),
                most => format!("number from {least} to {most}"),
            }
        }
        Some("array") if value["items"]["type"] == "integer" => "list of numbers".to_owned(),
        Some("array") if value["items"]["type"] == "object" => "list of tables".to_owned(),
        Some("array") if value["items"]["anyOf"].is_array() => {
            "list of texts, or of tables".to_owned()
        }
        Some("array") => "list of texts".to_owned(),
        Some("object") if value["properties"].is_object() => "table".to_owned(),
        Some("object") if value["additionalProperties"]["type"] == "array" => format!(
            "table of names, each with a list of {}",
            words(&value["additionalProperties"]["items"]["enum"])
        ),
        Some("object") => format!(
            "table of names: {}",
            words(&value["additionalProperties"]["enum"])
        ),
        _ => panic!("a kind that the page does not know: {value}"),
    }
}

/// Returns the rules for keys that go together in a table.
fn rules(table: &Value) -> Vec<String> {
    let known = [
        "required",
        "oneOf",
        "anyOf",
        "dependentRequired",
        "dependentSchemas",
        "allOf",
    ];
    let others = ["type", "properties", "additionalProperties", "description"];
    for word in table
        .as_object()
        .expect("a table")
        .keys()
        .map(String::as_str)
    {
        let known = known.contains(&word) || others.contains(&word);
        assert!(known, "a rule that the page does not know: {word}");
    }
    let mut rules = Vec::new();
    if !table["required"].is_null() {
        let has = words(&table["required"]).replace(", ", " and ");
        rules.push(format!("It has {has}."));
    }
    if !table["oneOf"].is_null() {
        let has = required(&table["oneOf"]).join(" or ");
        rules.push(format!("It has either {has}."));
    }
    if !table["anyOf"].is_null() {
        let has = required(&table["anyOf"]).join(" or ");
        rules.push(format!("It has {has}, or both."));
    }
    // `oneOf` says it already where each key needs the other.
    if table["oneOf"].is_null() {
        let pairs = table["dependentRequired"].as_object();
        if let Some((key, others)) = pairs.and_then(|pairs| pairs.iter().next()) {
            rules.push(format!("`{key}` goes with {}.", words(others)));
        }
    }
    for (key, without) in table["dependentSchemas"].as_object().into_iter().flatten() {
        let without = required(&without["not"]["anyOf"]).join(" or ");
        rules.push(format!("With `{key}` it has no {without}."));
    }
    let implications = table["allOf"].as_array().into_iter().flatten();
    rules.extend(implications.map(implied));
    rules
}

/// A rule of the form "if a key has this value".
fn implied(rule: &Value) -> String {
    let conditions = rule["if"]["properties"].as_object().expect("a condition");
    let (key, value) = conditions.iter().next().expect("one key");
    let value = value["const"].as_str().expect("a value");
    if rule["then"]["anyOf"].is_array() {
        let one = required(&rule["then"]["anyOf"]).join(" or ");
        let without = required(&rule["else"]["not"]["anyOf"]).join(", ");
        return format!("With `{key} = \"{value}\"` it has {one}, else no {without}.");
    }
    let then = words(&rule["then"]["required"]).replace(", ", " and ");
    match rule.get("else") {
        None => format!("With `{key} = \"{value}\"` it has {then}."),
        Some(other) => {
            let without = required(&other["not"]["anyOf"]).join(", ");
            assert_eq!(then, without, "{rule}");
            format!("With `{key} = \"{value}\"` it has {then}, else not.")
        }
    }
}

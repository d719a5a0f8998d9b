//! The JSON schema is the one that the repository publishes, and says what the reader does.
//!
//! `BULKHEAD_BLESS=1 cargo test -p bulkhead-driver --test schema` writes the published one anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::{Value, json};

use bulkhead_driver::testing::{SystemSource, scenarios};
use bulkhead_model::describe::keys::{self, Table};
use bulkhead_model::describe::{Code, Finding, Text, parse, schema};
use bulkhead_runner::Effort;
use bulkhead_runner::prepare::{Stopped, prepare};

/// Codes that tell of something which a schema can tell, too, whatever else a description says.
const EXPRESSIBLE: [Code; 33] = [
    Code::ChannelEnds,
    Code::ChannelIncomplete,
    Code::ChannelName,
    Code::BoardBoth,
    Code::BoardMissing,
    Code::BoardParameter,
    Code::ClassLacking,
    Code::CpuWeight,
    Code::CrashBoth,
    Code::CrashIncomplete,
    Code::CrashLimit,
    Code::DeviceIncomplete,
    Code::DeviceIntid,
    Code::DiskIncomplete,
    Code::DoorbellIncomplete,
    Code::DoorbellName,
    Code::KeyUnknown,
    Code::NetworkIncomplete,
    Code::NetworkName,
    Code::NetworkVlan,
    Code::ServiceBoth,
    Code::ServiceIncomplete,
    Code::SharedAccess,
    Code::SharedAlone,
    Code::SharedIncomplete,
    Code::SharedName,
    Code::ValueAddress,
    Code::ValuePart,
    Code::ValueSize,
    Code::ValueTime,
    Code::ValueType,
    Code::ValueWord,
    Code::VcpuCount,
];
/// More such codes: of VMs.
const OF_VMS: [Code; 6] = [
    Code::ManagesRight,
    Code::VmImage,
    Code::VmMemory,
    Code::VmName,
    Code::VmNone,
    Code::VmStray,
];
/// Fixtures whose mistake a schema can tell although others of the same code are beyond it.
const ALSO: [&str; 5] = [
    "bandwidth-number.toml",
    "channel-shape.toml",
    "board-no-cpu.toml",
    "class-superfluous.toml",
    "cpu-incomplete.toml",
];

/// The published schema, ready to judge.
struct Judge {
    schemas: Schemas,
    index: SchemaIndex,
}

impl Judge {
    fn new() -> Self {
        let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
        let at = "description.schema.json";
        compiler.add_resource(at, schema::schema()).expect("JSON");
        let index = compiler.compile(at, &mut schemas);
        let index = index.unwrap_or_else(|why| panic!("the schema is none: {why}"));
        Self { schemas, index }
    }

    /// Returns why a description is not what the schema says; `None` if it is.
    fn refusal(&self, text: &str) -> Option<String> {
        let table: toml::Table = text.parse().expect("TOML");
        let json = serde_json::to_value(table).expect("JSON");
        let result = self.schemas.validate(&json, self.index);
        result.err().map(|why| format!("{why:#}"))
    }
}

fn descriptions(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect(folder);
    let files = entries.map(|entry| entry.expect("entry").path());
    let ends = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "toml");
    let files: Vec<_> = files.filter(ends).collect();
    assert!(!files.is_empty(), "nothing in {folder}");
    files
}

#[test]
fn the_published_schema_is_that_of_the_reader() {
    let file = Path::new("../..").join(schema::FILE);
    if std::env::var_os("BULKHEAD_BLESS").is_some() {
        fs::write(&file, schema::text()).expect("write");
    }
    let published = fs::read_to_string(&file).expect("the published schema");
    assert!(
        published == schema::text(),
        "{} is not what `bulkhead schema` prints",
        schema::FILE
    );
}

#[test]
fn every_description_names_the_schema_and_is_what_it_says() {
    let judge = Judge::new();
    let folders = [
        "../../systems",
        "../../lab/systems",
        "../../tests/attach",
        "../../tests/boot",
        "../../tests/plan",
        "../../tests/refuse",
        "../cli/tests/fixtures/good",
    ];
    for folder in folders {
        for file in descriptions(folder) {
            let text = fs::read_to_string(&file).expect("a description");
            let refusal = judge.refusal(&text);
            assert!(refusal.is_none(), "{}: {refusal:?}", file.display());
            if folder.starts_with("../../") {
                let first = text.lines().next().unwrap_or_default();
                let named = first
                    .strip_prefix("#:schema ")
                    .map(|named| Path::new(folder).join(named));
                let found = named.is_some_and(|named| {
                    named.canonicalize().ok()
                        == Path::new("../..").join(schema::FILE).canonicalize().ok()
                });
                assert!(found, "{} does not name the schema", file.display());
            }
        }
    }
}

#[test]
fn the_system_of_every_scenario_is_what_the_schema_says() {
    let judge = Judge::new();
    let scenarios = scenarios(Path::new("../..")).unwrap_or_else(|why| panic!("{why}"));
    let mut count = 0;
    for (name, scenario) in scenarios {
        if let SystemSource::Tables(system) = scenario.system {
            let refusal = judge.refusal(&system.to_string());
            assert!(refusal.is_none(), "{name}: {refusal:?}");
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
}

#[test]
fn mistakes_that_a_schema_can_tell_are_told_and_no_others() {
    let judge = Judge::new();
    let mut told = BTreeSet::new();
    for file in descriptions("../cli/tests/fixtures/bad") {
        let findings = match prepare(&file, Effort::WhatIsThere) {
            Ok(prepared) => prepared.findings,
            Err(Stopped::Description(_, findings)) => findings,
            Err(Stopped::Failure(failure)) => panic!("{failure}"),
        };
        let codes: Vec<Code> = findings.iter().map(|finding| finding.code).collect();
        let none = [Code::TomlSyntax, Code::TomlTwice];
        if codes.iter().any(|code| none.contains(code)) {
            continue;
        }
        let name = file
            .file_name()
            .expect("name")
            .to_string_lossy()
            .into_owned();
        let can = |code: &Code| EXPRESSIBLE.contains(code) || OF_VMS.contains(code);
        let expressible = codes.iter().any(can) || ALSO.contains(&&*name);
        let text = fs::read_to_string(&file).expect("a description");
        let refusal = judge.refusal(&text);
        assert_eq!(
            refusal.is_some(),
            expressible,
            "{name}: {codes:?}: {refusal:?}"
        );
        told.extend(codes.into_iter().filter(can));
    }
    assert_eq!(told.len(), EXPRESSIBLE.len() + OF_VMS.len(), "{told:?}");
}

/// A description with one value in one table, and the schema for that value.
fn with(table: &str, key: &str, value: &str) -> String {
    let vm = "memory = \"4MiB\"\nimage = \"raw.bin\"\n";
    let line = format!("{key} = {value}\n");
    let (mut board, mut one, mut rest) =
        ("name = \"x\"\n".to_owned(), vm.to_owned(), String::new());
    match table {
        "board" if key == "name" || key == "dtb" => board = line,
        "board" => board += &line,
        "vm" if key == "memory" => one = format!("image = \"raw.bin\"\n{line}"),
        "vm" if key == "image" => one = format!("memory = \"4MiB\"\n{line}"),
        "vm" if key == "kernel" || key == "initrd" => {
            one = "memory = \"4MiB\"\n".to_owned();
            one += if key == "initrd" {
                "kernel = \"k\"\n"
            } else {
                ""
            };
            one += &line;
        }
        "vm" => one += &line,
        "memory" if key == "size" => {
            one = format!("image = \"i\"\nmemory = {{ size = {value} }}\n")
        }
        "memory" => {
            one = format!("image = \"i\"\nmemory = {{ size = \"4MiB\", {key} = {value} }}\n");
        }
        "emulated" => {
            one += &format!("console = {{ {key} = {value} }}\nrtc = {{ {key} = {value} }}\n")
        }
        "gic" => one += &format!("gic = {{ {key} = {value} }}\n"),
        "disk" | "port" | "device" => {
            let (list, sound) = match table {
                "device" => ("devices", ["path = \"/a\""].as_slice()),
                "disk" => ("disks", ["name = \"a\"", "size = \"4KiB\""].as_slice()),
                _ => ("networks", ["name = \"a\""].as_slice()),
            };
            let others = sound
                .iter()
                .filter(|line| !line.starts_with(&format!("{key} =")));
            let others: String = others.map(|line| format!("{line}, ")).collect();
            one += &format!("{list} = [{{ {others}{key} = {value} }}]\n");
        }
        // Somebody has to have the right to stop it.
        "stop" => {
            let other = match key {
                "by" => "",
                _ => "by = \"word\", ",
            };
            one += &format!("stop = {{ {other}{key} = {value} }}\n");
            rest = "manages = { one = [\"stop\"] }\n".to_owned();
        }
        "crash" | "reset" => {
            let other = match key {
                "restart" => ", within = \"60s\"",
                "within" => ", restart = 3",
                _ => "",
            };
            one += &format!("{table} = {{ {key} = {value}{other} }}\n");
        }
        _ => {
            let sound = match table {
                "shared" => "size = \"4KiB\"\nipa = \"0x70000000\"\nvms = { one = \"r\" }\n",
                "doorbell" => "from = \"one\"\nto = \"two\"\n",
                "channel" => "ends = { one = \"doorbell\", two = \"poll\" }\n",
                "service" if key == "budget" => "period = \"1ms\"\n",
                "service" if key == "period" => "budget = \"1ms\"\n",
                _ => "",
            };
            let others = sound
                .lines()
                .filter(|line| !line.starts_with(&format!("{key} =")));
            let named = !["console", "service", "el2"].contains(&table);
            let name = if named { ".a" } else { "" };
            rest = format!(
                "[{table}{name}]\n{}\n{line}",
                others.collect::<Vec<_>>().join("\n")
            );
        }
    }
    format!("[board]\n{board}[vm.one]\n{one}[vm.two]\n{vm}{rest}")
}

/// Returns what the reader says of the kind of a value.
fn kinds(text: &str) -> Vec<Finding> {
    let text = Text {
        name: "a.toml".to_owned(),
        source: text.into(),
    };
    let mut findings = Vec::new();
    parse(&text, &mut findings);
    let of_kind =
        |finding: &Finding| finding.code.subject() == "value" || finding.code == Code::SharedAccess;
    findings.into_iter().filter(of_kind).collect()
}

/// The keys of all tables, each with the word for its table.
fn all_keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    let of = |table: &'static Table| table.names().map(move |key| (table.name, key));
    keys::TABLES.into_iter().flat_map(of)
}

#[test]
fn every_key_of_the_tables_is_read() {
    // No key holds a date: whoever reads it says so, and says it there.
    const DATE: &str = "1979-05-27";
    let top = keys::SYSTEM.names().map(|key| format!("{key} = {DATE}\n"));
    let below = all_keys().map(|(table, key)| with(table, key, DATE));
    for text in top.chain(below) {
        let read = kinds(&text).into_iter().any(|finding| {
            let mut places = finding.labels.into_iter();
            finding.code == Code::ValueType && places.any(|(place, _)| &text[place] == DATE)
        });
        assert!(read, "nobody reads the date in\n{text}");
    }
}

#[test]
fn the_schema_takes_the_kinds_and_words_that_the_reader_takes() {
    let judge = Judge::new();
    let values = [
        "1",
        "33",
        "{}",
        "-1",
        "true",
        "1.5",
        "\"\"",
        "\"word\"",
        "\"halt\"",
        "\"4KiB\"",
        "\"64 MiB\"",
        "\"0MiB\"",
        "\"4MB\"",
        "\"0x1000\"",
        "\"0x\"",
        "\"0x1_0\"",
        "\"1000\"",
        "\"60s\"",
        "\"1h\"",
        "\"2ms\"",
        "\"5us\"",
        "\"30%\"",
        "\"0%\"",
        "\"101%\"",
        "[]",
        "[1]",
        "[-1]",
        "[\"a\"]",
        "[\"a\", 1]",
        "4294967295",
        "4294967296",
    ];
    // Limits and what goes together come behind the kind: these keys are tried with what is sound there.
    let mut tried = 0;
    for (table, key) in all_keys() {
        for value in values {
            let text = with(table, key, value);
            let read = kinds(&text);
            if read.is_empty() {
                continue;
            }
            tried += 1;
            let refusal = judge.refusal(&text);
            assert!(
                refusal.is_some(),
                "{table}.{key} = {value}: the reader says {read:#?}"
            );
        }
        // One value at least is taken by both, if the reader takes any of the list.
        let both = values.iter().any(|value| {
            let text = with(table, key, value);
            kinds(&text).is_empty() && judge.refusal(&text).is_none()
        });
        let words = words_of(table, key);
        assert!(
            both || !words.is_empty() || ["vms", "ends", "manages"].contains(&key),
            "{table}.{key}: the schema takes nothing"
        );
        check_words(table, key, &words);
    }
    assert!(tried > 500, "only {tried} refusals were tried");
}

/// The examples that a schema shows of a value, those of its parts included.
fn examples(schema: &Value) -> Vec<&Value> {
    match schema {
        Value::Object(map) => {
            let own = map.get("examples").and_then(Value::as_array);
            let parts = map.iter().filter(|(key, _)| *key == "anyOf");
            let parts = parts.flat_map(|(_, part)| examples(part));
            own.into_iter().flatten().chain(parts).collect()
        }
        Value::Array(parts) => parts.iter().flat_map(examples).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn examples_that_editors_show_are_taken_by_the_reader_and_by_the_schema() {
    let judge = Judge::new();
    let mut tried = 0;
    for table in keys::TABLES {
        let schema = schema::table(table);
        for key in table.names() {
            for example in examples(&schema["properties"][key]) {
                tried += 1;
                let text = with(table.name, key, &example.to_string());
                let (read, refusal) = (kinds(&text), judge.refusal(&text));
                assert!(
                    read.is_empty() && refusal.is_none(),
                    "{}.{key} = {example}: {read:#?} {refusal:?}",
                    table.name
                );
            }
        }
    }
    assert!(tried > 15, "only {tried} examples were tried");
}

/// The words that the reader says a key can have.
fn words_of(table: &str, key: &str) -> Vec<String> {
    let findings = kinds(&with(table, key, "\"no-such-word\""));
    let label = findings.iter().find_map(|finding| {
        let label = &finding.labels.first()?.1;
        let label = label.strip_suffix(", or a table").unwrap_or(label);
        label
            .strip_prefix("must be one of: ")
            .or_else(|| label.strip_prefix("must be `")?.strip_suffix('`'))
    });
    let words = label.map(|label| label.split(", ").map(str::to_owned).collect());
    words.unwrap_or_default()
}

/// The schema has exactly the words of the reader.
fn check_words(table: &str, key: &str, words: &[String]) {
    if words.is_empty() || table != "vm" {
        return;
    }
    let schema = schema::schema();
    let properties = &schema["properties"]["vm"]["additionalProperties"]["properties"];
    // Some have a table besides.
    let known = match &properties[key]["anyOf"][0]["enum"] {
        Value::Null => &properties[key]["enum"],
        known => known,
    };
    let mut known: Vec<Value> = known.as_array().cloned().unwrap_or_default();
    let mut expected: Vec<Value> = words.iter().map(|word| json!(word)).collect();
    known.sort_by_key(Value::to_string);
    expected.sort_by_key(Value::to_string);
    assert_eq!(known, expected, "words of {key}");
}

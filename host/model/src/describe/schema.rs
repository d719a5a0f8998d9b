//! The JSON schema of descriptions, by which editors complete and check them while they are written.
//!
//! It says what can be said of a description without a board and without files: keys, kinds of values, words, what goes together in one
//! table. Its properties are the key tables of the readers; tests hold kinds and words against what the readers do.

use bulkhead_abi::plan::{MAX_VCPUS_PER_VM, MAX_WEIGHT, NAME};
use serde_json::{Map, Value, json};

use super::{board, class, cpu, doorbell, emulated, policy, shared, vm};

/// Where the repository has it.
pub const FILE: &str = "docs/reference/description.schema.json";

/// What a value is.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Flag,
    /// A number from the first to the second.
    Number(u32, u32),
    Numbers,
    Texts,
    TextOrTexts,
    Size,
    Address,
    /// In seconds.
    Time,
    /// In nanoseconds.
    Duration,
    Percent,
    Words(&'static [&'static str]),
    Memory,
    /// A device that EL2 emulates: this, or a table that says where it is.
    Emulated(&'static [&'static str]),
    Gic,
    Crash,
    Access,
}

/// A key: its table, its name, what it holds, what it means.
type Key = (&'static str, &'static str, Kind, &'static str);

/// Keys of `memory` as a table.
const MEMORY: &[&str] = vm::MEMORY_KEYS;
const CLASSES: [&str; 4] = [
    class::CLASSES[0].0,
    class::CLASSES[1].0,
    class::CLASSES[2].0,
    class::CLASSES[3].0,
];

/// What each key means.
#[rustfmt::skip]
const MEANINGS: &[Key] = &[
    ("board", "name", Kind::Text, "A board of boards/, such as qemu-virt."),
    ("board", "dtb", Kind::Text, "A device tree that says what the board is: a path from the folder of this file."),
    ("board", "cpu", Kind::Text, "CPU type of an emulated board."),
    ("board", "cpus", Kind::Number(1, u32::MAX), "CPUs of an emulated board."),
    ("board", "memory", Kind::Size, "Memory of an emulated board, in whole MiB."),
    ("board", "gic", Kind::Number(0, u32::MAX), "GIC version of an emulated board."),
    ("board", "firmware", Kind::Text, "Firmware at EL3 of an emulated board."),
    ("board", "uarts", Kind::Number(0, u32::MAX), "PL011s of an emulated board; the first carries the consoles."),
    ("vm", "class", Kind::Words(&CLASSES), "What the VM is promised: defaults of `cpu`, `interrupts` and `reclaim` follow from it. Default: general."),
    ("vm", "control", Kind::Words(&["none"]), "A deviation, less than the class asks for: the control port of a management VM, which this version has not."),
    ("vm", "interrupts", Kind::Words(&["vgic", "gppt", "gppt-pmr-trapped", "gppt-pmr-direct", "gppt-gicv2"]),
        "vgic: through the virtual GIC. gppt: it takes them itself, without an exit; pinned, one vCPU. On a GICv3 gppt masks by DAIF only; with gppt-pmr-trapped priority masks work, an exit for each; with gppt-pmr-direct without one, for one VM of the system. Default: gppt for hard-realtime, for which vgic is a deviation; else vgic."),
    ("vm", "reclaim", Kind::Words(&["guaranteed", "cooperative", "sdei"]),
        "How EL2 gets the CPU back from a VM that takes its interrupts itself on a GICv2 or with gppt-pmr-direct. guaranteed: an exit for each WFI. cooperative: not while it sleeps with its CPU interface closed. sdei: on a GICv3 by an event of firmware that has Group 0. Default: cooperative for hard-realtime, else guaranteed."),
    ("vm", "vcpus", Kind::Number(1, MAX_VCPUS_PER_VM as u32), "vCPUs. Default: 1."),
    ("vm", "pcpus", Kind::Numbers, "The board's CPU on which each vCPU starts, counted from 0; VMs that are not pinned may name the same one. Default: the planner chooses, one for each."),
    ("vm", "cpu", Kind::Words(&cpu::WORDS), "What each vCPU gets of its CPU. pinned: all of it. rt: `budget` in each `period`, before others. fair: a share of the rest, by `weight`. Default: fair for management and general; rt for soft-realtime with a budget; else pinned."),
    ("vm", "weight", Kind::Number(1, MAX_WEIGHT as u32), "Fair: the share while others want the CPU, too. Default: 1."),
    ("vm", "cap", Kind::Percent, "Fair: the most that each vCPU gets of its CPU in each `period`. Default: no cap."),
    ("vm", "budget", Kind::Duration, "Server: time that each vCPU gets in each period."),
    ("vm", "period", Kind::Duration, "Server: its period. Fair: the window of `cap`, 100ms by default. 100us to 10s."),
    ("vm", "pool", Kind::Numbers, "Fair: CPUs among which the load balancer may move the vCPUs. Default: they stay."),
    ("vm", "memory", Kind::Memory, "RAM: a size, or a table of size, ipa and pa."),
    ("vm", "kernel", Kind::Text, "A Linux Image, also packed by gzip or zstd or as EFI zboot: a path from the folder of this file; or debian:kernel, debian:kernel-rt, debian:kernel-6.12, debian:kernel-6.12-rt."),
    ("vm", "initrd", Kind::TextOrTexts, "Initial RAM disks, one behind the other: paths, debian:initramfs, or guest:NAME, which has that program as its /init."),
    ("vm", "overlay", Kind::TextOrTexts, "Overlays (.dtbo) for the guest's device tree, in their order: paths from the folder of this file. Labels are gic, console, and each node's name with `_` (cpu_0)."),
    ("vm", "cmdline", Kind::Text, "The command line: /chosen/bootargs in the guest's device tree."),
    ("vm", "image", Kind::Text, "A program at EL1, ELF or raw: a path from the folder of this file, guest:NAME (guests/src/bin), or debian:u-boot."),
    ("vm", "load", Kind::Address, "Guest address of a raw program."),
    ("vm", "entry", Kind::Address, "Where a raw program starts. Default: its first byte."),
    ("vm", "console", Kind::Emulated(&["pl011", "none"]), "The emulated console, or a table of its ipa and intid. Default: pl011."),
    ("vm", "gic", Kind::Gic, "Where the interrupt controller is."),
    ("vm", "crash", Kind::Crash, "What happens when the VM crashes. halt: it stays stopped. A table: it starts again so often at most, or another VM is told. Default: halt."),
    ("vm", "devices", Kind::Texts, "Devices of the board that the VM gets: paths in its device tree; `board show` lists those that can be given."),
    ("vm", "rtc", Kind::Emulated(&[]), "An emulated real-time clock (PL031): true, or a table of its ipa and intid."),
    ("vm", "watchdog", Kind::Emulated(&[]), "An emulated watchdog (SBSA): true, or a table of its ipa and intid."),
    ("vm", "ptimer", Kind::Words(&["emulated", "own"]), "The EL1 physical timer: emulated, or that of its CPU. Default: emulated."),
    ("vm", "time", Kind::Words(&["runs", "stops"]), "Whether virtual time goes on while the VM is paused. Default: runs."),
    ("vm", "smc", Kind::Numbers, "Calls of the SoC's or board's vendor or of a trusted OS that the VM may make: function identifiers such as 0x82000001."),
    ("vm", "deterministic", Kind::Flag, "Fixed seeds in the device tree, for runs that are the same each time."),
    ("memory", "size", Kind::Size, "Bytes, in pages of 4 KiB."),
    ("memory", "ipa", Kind::Address, "Guest address, a multiple of 2 MiB. Default: 0x40000000."),
    ("memory", "pa", Kind::Address, "Physical address, a multiple of 2 MiB. Without it the planner chooses."),
    ("emulated", "ipa", Kind::Address, "Guest address, a multiple of 4 KiB. Default: that of QEMU's virt; 0x9080000 for the watchdog."),
    ("emulated", "intid", Kind::Number(emulated::FIRST_INTID, emulated::LAST_INTID), "Its interrupt. Default: 33 of the console, 34 of the clock, 35 of the watchdog."),
    ("gic", "gicd", Kind::Address, "Guest address of the distributor, a multiple of 64 KiB. Default: 0x8000000."),
    ("gic", "gicr", Kind::Address, "GICv3: guest address of the redistributors, a multiple of 64 KiB. Default: 0x80a0000."),
    ("gic", "gicc", Kind::Address, "GICv2: guest address of the CPU interface, a multiple of 64 KiB. Default: 0x8010000."),
    ("crash", "restart", Kind::Number(1, u16::MAX as u32), "Start again, so often at most."),
    ("crash", "within", Kind::Time, "In this time."),
    ("crash", "notify", Kind::Text, "Stay stopped, and tell this VM."),
    ("shared", "size", Kind::Size, "Bytes, in pages of 4 KiB."),
    ("shared", "ipa", Kind::Address, "Guest address in all its VMs."),
    ("shared", "vms", Kind::Access, "The VMs that have it, each with r or rw."),
    ("doorbell", "from", Kind::Text, "The VM that rings."),
    ("doorbell", "to", Kind::Text, "The VM that is interrupted."),
    ("doorbell", "shared", Kind::Text, "The shared memory that it is about."),
    ("doorbell", "apart", Kind::Duration, "Least time from one interrupt to the next. Default: 100us."),
    ("console", "service", Kind::Number(0, u32::MAX), "The board's CPU that drains the console. Without it the planner chooses."),
];

/// The keys that the reader of each table knows.
pub const TABLES: [(&str, &[&str]); 9] = [
    ("board", board::KEYS),
    ("vm", vm::KEYS),
    ("memory", MEMORY),
    ("emulated", emulated::DEVICE_KEYS),
    ("gic", emulated::GIC_KEYS),
    ("crash", policy::KEYS),
    ("shared", shared::KEYS),
    ("doorbell", doorbell::KEYS),
    ("console", super::CONSOLE_KEYS),
];

impl Kind {
    fn schema(self) -> Value {
        // Editors show what kind of text it is, and how one looks.
        let pattern = |title: &str, example: &str, pattern: &str| json!({ "type": "string", "title": title, "examples": [example], "pattern": pattern });
        match self {
            Self::Text => json!({ "type": "string" }),
            Self::Flag => json!({ "type": "boolean" }),
            Self::Number(least, most) => {
                json!({ "type": "integer", "minimum": least, "maximum": most })
            }
            Self::Numbers => {
                let number = Self::Number(0, u32::MAX).schema();
                json!({ "type": "array", "items": number })
            }
            Self::Texts => json!({ "type": "array", "items": { "type": "string" } }),
            Self::TextOrTexts => json!({ "anyOf": [Self::Text.schema(), Self::Texts.schema()] }),
            Self::Size => pattern(
                "size",
                "64MiB",
                r"^\s*[0-9]*[1-9][0-9]*\s*(KiB|MiB|GiB)\s*$",
            ),
            Self::Address => pattern(
                "address",
                "0x48000000",
                r"^\s*0x[0-9a-fA-F_]*[0-9a-fA-F][0-9a-fA-F_]*\s*$",
            ),
            Self::Time => pattern("time", "60s", r"^\s*[0-9]+\s*(s|min|h)\s*$"),
            Self::Duration => pattern("duration", "500us", r"^\s*[0-9]+\s*(s|ms|us|ns)\s*$"),
            Self::Percent => pattern("share", "30%", r"^\s*0*([1-9][0-9]?|100)\s*%\s*$"),
            Self::Words(words) => json!({ "enum": words }),
            Self::Memory => {
                let mut table = table("memory");
                table["required"] = json!(["size"]);
                json!({ "anyOf": [Self::Size.schema(), table] })
            }
            Self::Emulated(words) => {
                let word = match words {
                    [] => Self::Flag.schema(),
                    words => Self::Words(words).schema(),
                };
                json!({ "anyOf": [word, table("emulated")] })
            }
            Self::Gic => table("gic"),
            Self::Crash => {
                let mut table = table("crash");
                table["oneOf"] =
                    json!([{ "required": ["restart", "within"] }, { "required": ["notify"] }]);
                table["dependentRequired"] =
                    json!({ "restart": ["within"], "within": ["restart"] });
                json!({ "anyOf": [{ "const": "halt" }, table] })
            }
            Self::Access => json!({
                "type": "object",
                "minProperties": 1,
                "additionalProperties": { "enum": ["r", "rw"] },
            }),
        }
    }
}

/// The schema of a table by its keys alone.
fn table(name: &str) -> Value {
    let keys = TABLES.iter().find(|(table, _)| *table == name);
    let mut properties = Map::new();
    for key in keys.map_or(&[][..], |(_, keys)| keys) {
        let known = MEANINGS
            .iter()
            .find(|(of, known, ..)| (of, known) == (&name, key));
        // A key without a meaning is found by a test.
        if let Some((_, _, kind, meaning)) = known {
            let mut schema = kind.schema();
            schema["description"] = json!(meaning);
            properties.insert((*key).to_owned(), schema);
        }
    }
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

/// Tables with names.
fn named(table: &Value, reserved: &[&str]) -> Value {
    let pattern = format!("^[A-Za-z0-9-]{{1,{NAME}}}$");
    json!({
        "type": "object",
        "propertyNames": { "pattern": pattern, "not": { "enum": reserved } },
        "additionalProperties": table,
    })
}

/// The schema of a whole description (JSON Schema, draft 2020-12).
pub fn schema() -> Value {
    let has = |key: &str| json!({ "required": [key] });
    let is = |key: &str, value: &str| json!({ "required": [key], "properties": { key: { "const": value } } });
    let none_of = |keys: &[&str]| {
        let keys: Vec<_> = keys.iter().map(|key| has(key)).collect();
        json!({ "not": { "anyOf": keys } })
    };
    let mut board = table("board");
    board["oneOf"] = json!([has("name"), has("dtb")]);
    let parameters: Vec<&str> = board::KEYS
        .iter()
        .copied()
        .filter(|key| !["name", "dtb"].contains(key))
        .collect();
    board["dependentSchemas"] = json!({ "dtb": none_of(&parameters) });

    let mut vm = table("vm");
    vm["required"] = json!(["memory"]);
    vm["oneOf"] = json!([has("kernel"), has("image")]);
    vm["dependentSchemas"] = json!({
        "kernel": none_of(&["load", "entry"]),
        "image": none_of(&["initrd"]),
    });
    vm["allOf"] = json!([
        { "if": is("cpu", "rt"), "then": { "required": ["budget", "period"] } },
        { "if": is("class", "management"), "then": { "required": ["control"] }, "else": none_of(&["control"]) },
    ]);
    let mut shared = table("shared");
    shared["required"] = json!(shared::KEYS);
    let mut doorbell = table("doorbell");
    doorbell["required"] = json!(["from", "to"]);
    let mut vms = named(&vm, &vm::RESERVED);
    vms["minProperties"] = json!(1);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A system of Bulkhead",
        "description": "Which board, which VMs, and what they have together. `bulkhead check` says the rest.",
        "type": "object",
        "additionalProperties": false,
        "required": ["board", "vm"],
        "properties": {
            "board": board,
            "vm": vms,
            "shared": named(&shared, &[]),
            "doorbell": named(&doorbell, &[]),
            "console": table("console"),
        },
    })
}

/// The schema as the text of a file.
pub fn text() -> String {
    format!("{:#}\n", schema())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_the_tables_of_the_reader_and_each_key_has_a_meaning() {
        for (table, keys) in TABLES {
            for key in keys {
                let known = MEANINGS
                    .iter()
                    .filter(|(of, known, ..)| (of, known) == (&table, key));
                assert_eq!(known.count(), 1, "{key} of {table}");
            }
        }
        let keys: usize = TABLES.iter().map(|(_, keys)| keys.len()).sum();
        assert_eq!(
            keys,
            MEANINGS.len(),
            "meanings of keys that no reader knows"
        );
        let schema = schema();
        let top = schema["properties"].as_object().expect("an object");
        assert!(super::super::KEYS.iter().all(|key| top.contains_key(*key)));
        assert_eq!(top.len(), super::super::KEYS.len());
    }
}

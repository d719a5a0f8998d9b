//! Differences between two plans, found in their JSON: entries of lists are told apart by their keys, not by their
//! positions, so that one that comes or goes leaves the others alone.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use serde_json::{Map, Value, json};

use bulkhead_model::describe::{Duration, Size};

use super::count;

/// Keys that say the same again, or why something is so and where it stands in the image.
const ECHOES: [&str; 8] = [
    "why",
    "usage",
    "offset",
    "plan_offset",
    "plan_size",
    "pool_offset",
    "ppm",
    "vcpus",
];
/// Lists, and the keys by which their entries are known.
const LISTS: [(&str, &[&str]); 16] = [
    ("memory", &["pa"]),
    ("vms", &["name"]),
    ("cpus", &["cpu"]),
    ("regions", &["what"]),
    ("loads", &["what"]),
    ("interrupts", &["device", "pintid"]),
    ("emulated", &["kind"]),
    ("deviations", &["stated"]),
    ("doorbells", &["name"]),
    ("channels", &["name"]),
    ("ends", &["vm"]),
    ("quiets", &["device", "pa"]),
    ("declared", &["device"]),
    ("lacks", &["property", "path"]),
    ("virtio", &["kind", "name"]),
    ("threads", &["cpu"]),
];

/// One difference. A value that is only in one plan has none on the other side.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The VM that it is about.
    pub vm: Option<String>,
    /// Keys from the plan down to it.
    pub path: Vec<String>,
    /// In the old plan.
    pub old: Option<Value>,
    /// In the new one.
    pub new: Option<Value>,
}

/// All differences from an old plan.
#[derive(Clone, Debug)]
pub struct Differences {
    /// Name of the old plan.
    pub old: String,
    /// In the order of the plan's parts.
    pub changes: Vec<Change>,
}

/// Compares two plans as [`super::json`] or [`super::bytes`] give them, both from the same of the two.
pub fn compare(name: &str, old: &Value, new: &Value) -> Differences {
    let mut changes = Vec::new();
    for part in [
        "name",
        "provisional",
        "board",
        "cpus",
        "vms",
        "service",
        "doorbells",
        "channels",
        "image",
    ] {
        walk(
            &mut vec![part.to_owned()],
            old.get(part),
            new.get(part),
            &mut changes,
        );
    }
    Differences {
        old: name.to_owned(),
        changes,
    }
}

#[derive(Serialize)]
struct Document<'a> {
    old: &'a str,
    changes: Vec<Told<'a>>,
    vms: Vec<Vm<'a>>,
}

/// A change, for programs and in words.
#[derive(Serialize)]
struct Told<'a> {
    path: &'a [String],
    vm: Option<&'a str>,
    subject: String,
    what: String,
    old: Option<String>,
    new: Option<String>,
    old_value: Option<&'a Value>,
    new_value: Option<&'a Value>,
}

/// A VM, and whether it is "new", "gone" or "changed".
#[derive(Serialize)]
struct Vm<'a> {
    name: &'a str,
    kind: &'static str,
}

fn walk(
    path: &mut Vec<String>,
    old: Option<&Value>,
    new: Option<&Value>,
    changes: &mut Vec<Change>,
) {
    if old == new {
        return;
    }
    let keyed = |value: Option<&Value>| entries(path.last().map_or("", String::as_str), value?);
    match (old, new, keyed(old), keyed(new)) {
        (.., Some(old), Some(new)) => both(path, &old, &new, changes),
        (Some(Value::Object(old)), Some(Value::Object(new)), ..) => {
            let borrow = |map: &'_ Map<String, Value>| -> BTreeMap<String, Value> {
                let kept = map
                    .iter()
                    .filter(|(key, _)| !ECHOES.contains(&key.as_str()));
                kept.map(|(key, value)| (key.clone(), value.clone()))
                    .collect()
            };
            both(path, &borrow(old), &borrow(new), changes);
        }
        _ => changes.push(Change {
            vm: path.get(1).filter(|_| path[0] == "vms").cloned(),
            path: path.clone(),
            old: old.cloned(),
            new: new.cloned(),
        }),
    }
}

fn both(
    path: &mut Vec<String>,
    old: &BTreeMap<String, Value>,
    new: &BTreeMap<String, Value>,
    changes: &mut Vec<Change>,
) {
    let added = new.keys().filter(|key| !old.contains_key(*key));
    for key in old.keys().chain(added) {
        path.push(key.clone());
        walk(path, old.get(key), new.get(key), changes);
        path.pop();
    }
}

/// The entries of a list by what they are; those that are alike in that get numbers.
fn entries(list: &str, value: &Value) -> Option<BTreeMap<String, Value>> {
    let (_, keys) = LISTS.iter().find(|(name, _)| *name == list)?;
    let rows = value.as_array()?;
    let mut known = BTreeMap::new();
    for row in rows {
        let parts = keys.iter().filter_map(|key| row.get(key));
        let parts: Vec<String> = parts.map(plain).collect();
        if parts.is_empty() {
            return None;
        }
        let name = parts.join(" ");
        let alike = |number: u32| match number {
            1 => name.clone(),
            more => format!("{name} #{more}"),
        };
        let free = (1..).map(alike).find(|name| !known.contains_key(name))?;
        known.insert(free, row.clone());
    }
    Some(known)
}

/// A value without quotes.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "none".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(parts) if parts.is_empty() => "none".to_owned(),
        Value::Array(parts) => {
            let parts: Vec<String> = parts.iter().map(plain).collect();
            parts.join(", ")
        }
        other => other.to_string(),
    }
}

/// A value for people, with the unit that its key tells.
fn words(key: &str, value: &Value) -> String {
    let number = value.as_u64();
    match (key, number, value) {
        ("size" | "el2_bytes", Some(bytes), _) => Size(bytes).to_string(),
        (_, Some(ns), _) if key.ends_with("_ns") => Duration(ns).to_string(),
        (_, _, Value::Object(map)) => {
            let parts = map.iter().filter(|(key, value)| {
                let list = value
                    .as_array()
                    .is_some_and(|parts| parts.iter().any(Value::is_object));
                !value.is_null() && !list && !ECHOES.contains(&key.as_str())
            });
            let parts =
                parts.filter(|(_, value)| value.as_array().is_none_or(|list| !list.is_empty()));
            let parts: Vec<String> = parts
                .map(|(key, value)| format!("{} {}", said(key), words(key, value)))
                .collect();
            parts.join(", ")
        }
        _ => plain(value),
    }
}

/// A whole VM in a few words.
fn vm(value: &Value) -> String {
    let class = value["class"].as_str().unwrap_or("VM");
    let cpus = value["cpus"].as_array().map_or(0, Vec::len);
    let regions = value["regions"].as_array().into_iter().flatten();
    let ram = regions.filter(|region| region["what"] == "RAM");
    let ram: u64 = ram.filter_map(|region| region["size"].as_u64()).sum();
    // Several vCPUs may have the same one.
    let mut places: Vec<String> = Vec::new();
    for cpu in value["cpus"].as_array().into_iter().flatten().map(plain) {
        if !places.contains(&cpu) {
            places.push(cpu);
        }
    }
    let many = if places.len() == 1 { "" } else { "s" };
    let (vcpus, places) = (count(cpus, "vCPU"), places.join(", "));
    format!(
        "{class}, {vcpus} on CPU{many} {places}, {} of RAM",
        Size(ram)
    )
}

/// A whole doorbell in a few words.
fn bell(value: &Value) -> String {
    let between = match (value["from"].as_str(), value["to"].as_str()) {
        (Some(from), Some(to)) => format!("{from} to {to}, "),
        _ => String::new(),
    };
    format!(
        "{between}INTID {}, IPA {}",
        plain(&value["intid"]),
        plain(&value["ipa"])
    )
}

/// A whole channel, likewise.
fn channel(value: &Value) -> String {
    let ends = value["ends"].as_array().into_iter().flatten();
    let ends: Vec<_> = ends.filter_map(|end| end["vm"].as_str()).collect();
    format!(
        "between {}, {} messages of {} bytes",
        ends.join(" and "),
        plain(&value["messages"]),
        plain(&value["message"])
    )
}

/// A key as people say it.
fn said(key: &str) -> String {
    let known = [
        ("ipa", "IPA"),
        ("pa", "PA"),
        ("mpidr", "MPIDR"),
        ("mac", "MAC"),
        ("vlan", "VLAN"),
        ("vm", "VM"),
        ("cpu", "CPU"),
        ("cpus", "CPUs"),
        ("spis", "SPIs"),
        ("vintid", "INTID"),
        ("intid", "INTID"),
        ("pintid", "INTID of the board"),
        ("gic", "GIC"),
        ("gicd", "distributor"),
        ("gicr", "redistributors"),
        ("gicc", "CPU interface"),
        ("qemu", "QEMU"),
        ("smc", "SMCs"),
        ("s2_pages", "stage-2 pages"),
        ("ptimer", "physical timer"),
        ("interrupt_mode", "interrupts"),
        ("apart_ns", "time between two"),
        ("poll_ns", "polled each"),
        ("el2_bytes", "memory of EL2"),
    ];
    let found = known.iter().find(|(word, _)| *word == key);
    found.map_or_else(
        || key.strip_suffix("_ns").unwrap_or(key).replace('_', " "),
        |(_, said)| (*said).to_owned(),
    )
}

impl Change {
    /// Subject of the change: a VM, a CPU, the board.
    pub fn subject(&self) -> String {
        let second = self.path.get(1).map_or("", String::as_str);
        match self.path[0].as_str() {
            "vms" => format!("VM {second}"),
            "cpus" => format!("CPU {second}"),
            "doorbells" => format!("doorbell {second}"),
            "channels" => format!("channel {second}"),
            "name" | "provisional" => "plan".to_owned(),
            other => other.to_owned(),
        }
    }

    /// Property of the subject that changed.
    pub fn what(&self) -> String {
        let listed = ["vms", "cpus", "doorbells", "channels"].contains(&self.path[0].as_str());
        let behind = match (listed, self.path.len()) {
            (true, 2..) => &self.path[2..],
            (false, 2..) => &self.path[1..],
            _ => &self.path[..],
        };
        // The name of a list says nothing that its entry does not.
        let mut parts = Vec::new();
        for (at, key) in behind.iter().enumerate() {
            let list = LISTS.iter().any(|(name, _)| name == key) && at + 1 < behind.len();
            let entry = at > 0 && LISTS.iter().any(|(name, _)| *name == behind[at - 1]);
            if entry && behind[at - 1] == "threads" {
                parts.push(format!("thread on CPU {key}"));
            } else if entry {
                parts.push(key.clone());
            } else if !list && key != "policy" && key != "mode" {
                parts.push(said(key));
            }
        }
        if parts.is_empty() {
            return "all of it".to_owned();
        }
        parts.join(", ")
    }

    /// Old value, for people.
    pub fn was(&self) -> Option<String> {
        self.side(self.old.as_ref())
    }

    /// New value, for people.
    pub fn is(&self) -> Option<String> {
        self.side(self.new.as_ref())
    }

    fn side(&self, value: Option<&Value>) -> Option<String> {
        let key = self.path.last().map_or("", String::as_str);
        value.map(|value| match self.path.as_slice() {
            [part, _] if part == "vms" => vm(value),
            [part, _] if part == "doorbells" => bell(value),
            [part, _] if part == "channels" => channel(value),
            _ => words(key, value),
        })
    }
}

impl Differences {
    /// VMs that are "new", "gone" or "changed".
    fn vms(&self) -> BTreeMap<&str, &'static str> {
        let mut vms = BTreeMap::new();
        for change in &self.changes {
            let Some(vm) = &change.vm else { continue };
            let kind = match (change.path.len(), &change.old, &change.new) {
                (2, None, _) => "new",
                (2, _, None) => "gone",
                _ => "changed",
            };
            vms.insert(vm.as_str(), kind);
        }
        vms
    }

    /// For programs and for the page.
    pub fn json(&self) -> Value {
        let changes = self.changes.iter().map(|change| Told {
            path: &change.path,
            vm: change.vm.as_deref(),
            subject: change.subject(),
            what: change.what(),
            old: change.was(),
            new: change.is(),
            old_value: change.old.as_ref(),
            new_value: change.new.as_ref(),
        });
        let vms = self.vms().into_iter();
        json!(Document {
            old: &self.old,
            changes: changes.collect(),
            vms: vms.map(|(name, kind)| Vm { name, kind }).collect(),
        })
    }

    /// For people.
    pub fn text(&self, name: &str) -> String {
        if self.changes.is_empty() {
            return format!("{name} is planned as {} is\n", self.old);
        }
        let number = count(self.changes.len(), "difference");
        let mut out = format!("{name} against {}: {number}\n", self.old);
        let mut subject = String::new();
        for change in &self.changes {
            if subject != change.subject() {
                subject = change.subject();
                let _ = writeln!(out, "\n{subject}");
            }
            let what = change.what();
            let _ = match (change.was(), change.is()) {
                (Some(was), Some(is)) => writeln!(out, "  ~ {what}: {was} -> {is}"),
                (None, Some(is)) => writeln!(out, "  + {what}: {is}"),
                (Some(was), None) => writeln!(out, "  - {what}: {was}"),
                (None, None) => Ok(()),
            };
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Value {
        json!({
            "name": "demo",
            "vms": [
                { "name": "a", "class": "general", "cpus": [0], "cpu": { "policy": "rt", "budget_ns": 400_000, "why": "line 3" },
                  "regions": [
                    { "what": "RAM", "ipa": "0x40000000", "size": 4_194_304 },
                    { "what": "RAM", "ipa": "0x80000000", "size": 4096 },
                  ] },
                { "name": "b", "class": "general", "cpus": [1], "regions": [] },
            ],
            "image": { "base": "0x40200000", "plan_size": 8 },
        })
    }

    #[test]
    fn a_plan_does_not_differ_from_itself_nor_by_reasons_and_order() {
        let mut other = plan();
        other["vms"].as_array_mut().unwrap().reverse();
        other["vms"][1]["cpu"]["why"] = json!("line 4");
        other["image"]["plan_size"] = json!(16);
        let same = compare("old.toml", &plan(), &other);
        assert_eq!(same.changes, []);
        assert_eq!(same.text("demo"), "demo is planned as old.toml is\n");
    }

    #[test]
    fn each_difference_has_its_place_and_both_sides() {
        let mut new = plan();
        new["vms"][0]["class"] = json!("management");
        new["vms"][0]["cpu"]["budget_ns"] = json!(1_500_000);
        new["vms"][0]["regions"][1]["size"] = json!(8192);
        new["vms"][1]["name"] = json!("c");
        new["image"]["base"] = json!("0x40400000");
        let differences = compare("old.toml", &plan(), &new);
        assert_eq!(
            differences.text("demo"),
            "demo against old.toml: 6 differences\n\
             \nVM a\n\
             \x20 ~ class: general -> management\n\
             \x20 ~ CPU, budget: 400 us -> 1.5 ms\n\
             \x20 ~ RAM #2, size: 4 KiB -> 8 KiB\n\
             \nVM b\n\
             \x20 - all of it: general, 1 vCPU on CPU 1, 0 bytes of RAM\n\
             \nVM c\n\
             \x20 + all of it: general, 1 vCPU on CPU 1, 0 bytes of RAM\n\
             \nimage\n\
             \x20 ~ base: 0x40200000 -> 0x40400000\n"
        );
        let json = differences.json();
        assert_eq!(
            json["vms"],
            json!([
                { "name": "a", "kind": "changed" }, { "name": "b", "kind": "gone" }, { "name": "c", "kind": "new" },
            ])
        );
        assert_eq!(
            json["changes"][2]["path"],
            json!(["vms", "a", "regions", "RAM #2", "size"])
        );
        assert_eq!(json["changes"][2]["new_value"], 8192);
    }
}

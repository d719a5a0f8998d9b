//! Rules of the house that no lint can check for code that is built for another machine: where `unsafe`
//! may stand, that each block says which invariant makes it sound, how long a file may be, and which modules may import
//! which.

#[path = "house/imports.rs"]
mod imports;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use imports::{Graph, Modules, circle, leaving};

/// Crates between whose modules there is no circle of imports: name in paths, first file.
const CRATES: &[(&str, &str)] = &[
    ("bulkhead_abi", "abi/src/lib.rs"),
    ("bulkhead_el2", "el2/src/main.rs"),
    ("bulkhead_service", "service/src/lib.rs"),
    ("bulkhead_model", "host/model/src/lib.rs"),
    ("bulkhead_planner", "host/planner/src/lib.rs"),
    ("bulkhead_runner", "host/runner/src/lib.rs"),
    ("bulkhead_cli", "host/cli/src/lib.rs"),
    ("bulkhead_driver", "host/driver/src/lib.rs"),
    ("bulkhead_channel_linux", "channel/linux/src/lib.rs"),
    ("bulkhead_control", "mgmt/control/src/lib.rs"),
    ("bulkhead_policy", "mgmt/policy/src/lib.rs"),
    ("bulkheadctl", "mgmt/bulkheadctl/src/lib.rs"),
    ("bulkheadd", "mgmt/bulkheadd/src/lib.rs"),
];

/// Modules that import nothing of their crate but what is in them, since all others may import them.
const BOTTOM: &[&str] = &[
    "bulkhead_el2::hw",
    "bulkhead_model::checkout",
    "bulkhead_model::failure",
    "bulkhead_runner::columns",
    "bulkhead_runner::command",
    "bulkhead_runner::progress",
    "bulkhead_runner::sys",
    "bulkhead_runner::temp_files",
];

/// Paths in which `unsafe` is allowed.
const ROOMS: [&str; 10] = [
    "el2/src/hw/",
    "guests/",
    "lab/pacer/",
    "lab/plugin/",
    "lab/caches/",
    "lab/profiler/",
    "lab/sanitizer/",
    "channel/linux/src/sys.rs",
    "host/runner/src/sys.rs",
    "fuzz/src/sys.rs",
];

/// File through which the assembly and `hw` enter EL2: the attribute that gives a function its symbol is the only
/// `unsafe` there.
const ENTRY: &str = "el2/src/entry.rs";

/// Names that had meanings of this project's own, and those of the field that took their place. No item, field or module
/// has one of them.
const OLD_WORDS: &[(&str, &str)] = &[
    ("Own", "Gppt"),
    ("own", "gppt, or what it belongs to"),
    ("attend", "sync_lrs, do_exit_work"),
    ("review", "sync_lr"),
    ("grant", "apply_requests, allows"),
    ("wish", "request"),
    ("Wish", "Request"),
    ("wishes", "requests"),
    ("Wishes", "Requests"),
    ("parked", "spilled"),
    ("linked", "hw"),
    ("quick", "fastpath"),
    ("usual", "fast"),
    ("step_out", "vcpu_put"),
    ("step_in", "vcpu_load"),
    ("breathe", "yield_point"),
    ("home", "pcpu"),
    ("Seat", "RunSlot"),
    ("seat", "run_slot"),
    ("news", "pending"),
    ("Passenger", "MigratingVcpu"),
    ("Traveller", "MigratingSlot"),
    ("berth", "inbox"),
    ("Places", "VcpuLocation, DeviceIpas"),
    ("standing", "usage"),
    ("Standing", "Usage"),
    ("spent", "cpu_time"),
    ("wanted", "limits, deliverable"),
    ("Wanted", "Limits"),
    ("grip", "claim"),
    ("Grip", "Stage2Claim"),
    ("undo", "sgi_rewind"),
    ("alter", "corrupt"),
    ("further", "recover"),
    ("leftovers", "temp_files"),
    ("whence", "attribute"),
    ("room", "free, capacity"),
    ("is_there", "has_gppt_vm, or what is there"),
    ("lay_down", "discard_stack"),
    ("keep_on_board", "leave_to_gic"),
    ("make_way", "uncover_npie"),
    ("Windows", "CopyWindows"),
    ("Pool", "PagePool; the field `pool` is of pCPUs"),
    ("pool_base", "page_pool::base"),
    ("pool_offset", "page_pool_offset"),
    ("pool_pages", "page_pool_pages"),
    ("Load", "Payload"),
    ("loads_of", "payloads_of"),
    ("Line", "TextLine, ConsoleLine, CacheLine"),
];
/// Those of them that are plain English where they name a value.
const PLAIN: &[&str] = &["linked", "news", "own", "room", "usual", "wanted"];
/// Ends of names that had such a meaning.
const OLD_ENDS: &[(&str, &str)] = &[("_usual", "_fast"), ("_own", "_gppt")];

/// Words that mean one thing each (`GLOSSARY.md`), and where that thing is. In other code they are no identifiers.
const ONE_MEANING: &[(&str, &str, &[&str])] = &[
    (
        "slot",
        "a vCPU's place on its pCPU, or a part of a device's window",
        SLOTS,
    ),
    (
        "slots",
        "the vCPUs' places on their pCPU, or parts of a device's window",
        SLOTS,
    ),
    (
        "loads",
        "how much of the pCPUs their vCPUs want, or load instructions",
        &[
            "core/src/sched/",
            "core/src/sync/inbox.rs",
            "lab/gates/src/",
            "lab/interleave/tests/moves.rs",
        ],
    ),
    (
        "window",
        "of a device, by which EL2 and a backend exchange bytes, or a browser's; EL2 has copy windows, a cap has a period",
        &[
            "abi/src/device/",
            "abi/src/plan/io.rs",
            "core/src/plan/",
            "core/src/virtio/",
            "el2/src/service.rs",
            "fuzz/src/targets/virtio.rs",
            "guests/src/bin/hostile-backend.rs",
            "host/cli/tests/virtio.rs",
            "host/driver/src/testing/page/",
            "host/planner/src/guest_tree/virtio.rs",
            "host/planner/src/io/",
            "host/planner/src/show/virtio.rs",
            "host/runner/src/run/gdb/",
            "service/",
        ],
    ),
    (
        "pool",
        "pCPUs among which a vCPU moves; EL2 has a page pool",
        &[
            "abi/",
            "core/",
            "el2/src/balance.rs",
            "el2/src/sched.rs",
            "host/",
            "lab/tables/",
            "mgmt/",
        ],
    ),
];
const SLOTS: &[&str] = &[
    "abi/src/device/",
    "abi/src/plan/io.rs",
    "core/src/plan/",
    "core/src/virtio/",
    "el2/src/service.rs",
    "fuzz/src/targets/virtio.rs",
    "host/planner/src/io/",
    "service/",
    "core/src/sched/",
    "el2/src/balance.rs",
    "el2/src/bandwidth.rs",
    "el2/src/hw/state.rs",
    "el2/src/hw/thread.rs",
    "el2/src/lifecycle.rs",
    "el2/src/monitor.rs",
    "el2/src/pcpu.rs",
    "el2/src/sched.rs",
    "el2/src/sched/",
    "el2/src/vcpu.rs",
    "lab/interleave/tests/moves.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Rust files of the workspace, as path from the root and text.
fn sources() -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = [
        "abi", "channel", "core", "el2", "fuzz", "guests", "host", "lab", "mgmt", "poll", "service",
    ]
    .iter()
    .map(|name| root.join(name))
    .collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path
                    .strip_prefix(&root)
                    .unwrap()
                    .to_string_lossy()
                    .into_owned();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 50, "the sources were not found");
    found
}

/// The code of a line, without comment and without what stands in quotes.
fn code(line: &str) -> String {
    let mut code = String::new();
    let mut quoted = false;
    for part in line.split('"') {
        if !quoted {
            code.push_str(part);
        }
        quoted = !quoted;
    }
    code.split("//").next().unwrap_or_default().to_owned()
}

fn is_word(code: &str, word: &str) -> bool {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|one| one == word)
}

#[test]
fn unsafe_stays_in_its_rooms() {
    for (name, text) in sources() {
        if ROOMS.iter().any(|room| name.starts_with(room))
            || name.starts_with("host/driver/tests/house")
        {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let symbol = name == ENTRY && line == "#[unsafe(no_mangle)]";
            assert!(
                symbol || !is_word(&code(line), "unsafe"),
                "{name}:{}: unsafe outside its rooms",
                number + 1
            );
        }
    }
}

#[test]
fn every_unsafe_block_names_its_invariant() {
    let invariants = fs::read_to_string(root().join("docs/internals/unsafe.md")).unwrap();
    let mut blocks = 0;
    for (name, text) in sources() {
        if !name.starts_with("el2/src/hw/") {
            continue;
        }
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let code = code(line);
            if !is_word(&code, "unsafe")
                || !code.contains("unsafe {") && !code.trim_end().ends_with("unsafe")
            {
                continue;
            }
            blocks += 1;
            let place = format!("{name}:{}", number + 1);
            let above = &lines[number.saturating_sub(5)..number];
            let tag = above.iter().rev().find_map(|line| {
                line.split_once("SAFETY: [")?
                    .1
                    .split_once(']')
                    .map(|(tag, _)| tag)
            });
            let tag = tag.unwrap_or_else(|| panic!("{place}: no `// SAFETY: [R-..]` above"));
            assert!(
                invariants.contains(tag),
                "{place}: docs/internals/unsafe.md does not know {tag}"
            );
        }
    }
    assert!(blocks > 30, "the blocks were not found");
}

/// Keywords behind which stands the name of an item.
const KINDS: &[&str] = &[
    "fn", "struct", "enum", "trait", "mod", "const", "static", "type",
];

/// Names that a line of code gives: of items, and of fields and parameters.
fn given(line: &str) -> Vec<(String, bool)> {
    let mut names = Vec::new();
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let code = code(line);
    let mut before = "";
    let mut rest = code.as_str();
    while let Some(start) = rest.find(word) {
        let found = &rest[start..];
        let end = found.find(|c| !word(c)).unwrap_or(found.len());
        let (name, behind) = found.split_at(end);
        let introduced = KINDS.contains(&before);
        if introduced || behind.starts_with(": ") {
            names.push((name.to_owned(), introduced));
        }
        before = name;
        rest = behind;
    }
    names
}

#[test]
fn names_are_found_where_they_are_given() {
    let of = |line| {
        let names: Vec<_> = given(line).into_iter().map(|(name, _)| name).collect();
        names.join(" ")
    };
    assert_eq!(
        of("    pub fn news(&self, seat: usize) -> u32 {"),
        "news seat"
    );
    assert_eq!(of("    pub home: Option<u32>, // own: comment"), "home");
    assert_eq!(of("pub(super) struct Grip(AtomicU32);"), "Grip");
    assert_eq!(of("let spent = now; spent.sum::<u64>()"), "");
    assert_eq!(of("\"wanted: by text\""), "");
}

#[test]
fn words_that_only_this_project_had_stay_out() {
    let mut found = Vec::new();
    for (file, text) in sources() {
        if file.starts_with("host/driver/tests/house") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            for (name, item) in given(line) {
                let whole = OLD_WORDS.iter().find(|(old, _)| name == *old);
                let whole = whole.filter(|_| item || !PLAIN.contains(&name.as_str()));
                let end = OLD_ENDS.iter().find(|(old, _)| name.ends_with(old));
                // A test says in a sentence what it shows.
                let sentence = name.matches('_').count() > 3;
                if let (Some((_, better)), false) = (whole.or(end), sentence) {
                    found.push(format!("{file}:{}: `{name}`: {better}", number + 1));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_word_is_used_where_its_one_meaning_is() {
    let mut found = Vec::new();
    let mut used = vec![false; ONE_MEANING.len()];
    for (file, text) in sources() {
        if file.starts_with("host/driver/tests/house") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let code = code(line);
            for ((word, meaning, places), used) in ONE_MEANING.iter().zip(&mut used) {
                if !is_word(&code, word) {
                    continue;
                }
                *used = true;
                if !places.iter().any(|place| file.starts_with(place)) {
                    let at = number + 1;
                    found.push(format!("{file}:{at}: `{word}` is {meaning}"));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    let unused = ONE_MEANING.iter().zip(used).find(|(_, used)| !used);
    assert!(unused.is_none(), "nobody uses {unused:?}");
}

#[test]
fn no_file_is_a_room_to_get_lost_in() {
    for (name, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= 600, "{name} has {lines} lines");
    }
}

/// Returns the number of modules of [`CRATES`], and what they import.
fn host() -> (usize, Graph) {
    let root = root();
    let mut modules = Modules::default();
    for (name, file) in CRATES {
        modules.add(name, &root.join(file), &|path| {
            fs::read_to_string(path).ok()
        });
    }
    (modules.len(), modules.graph())
}

#[test]
fn modules_import_each_other_in_no_circle() {
    let (modules, graph) = host();
    let edges: usize = graph.values().map(BTreeMap::len).sum();
    assert!(
        modules > 150 && edges > 400,
        "{modules} modules, {edges} imports: the sources were not understood"
    );
    if let Some(circle) = circle(&graph) {
        panic!("modules import each other in a circle:\n{circle}");
    }
}

#[test]
fn modules_at_the_bottom_import_nothing_above_them() {
    let (_, graph) = host();
    let found: Vec<String> = BOTTOM
        .iter()
        .flat_map(|module| leaving(&graph, module))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The graph of a crate `one` with these files.
fn made_up(files: &[(&str, &str)]) -> Graph {
    let files: BTreeMap<PathBuf, &str> = files
        .iter()
        .map(|(path, text)| (PathBuf::from(path), *text))
        .collect();
    let mut modules = Modules::default();
    modules.add("one", Path::new("lib.rs"), &|path| {
        files.get(path).map(|text| (*text).to_owned())
    });
    modules.graph()
}

#[test]
fn a_circle_is_found_through_names_that_are_passed_on() {
    let graph = made_up(&[
        ("lib.rs", "mod high; mod low; mod aside;"),
        ("high/mod.rs", "mod part; pub use part::Part;"),
        (
            "high/part.rs",
            "use crate::low::{self, Thing as Other}; pub struct Part(Other);",
        ),
        (
            "low.rs",
            "pub struct Thing; fn f() { let _ = g!(crate::high::Part::new(1)); }",
        ),
        ("aside.rs", "use super::low::Thing;"),
    ]);
    assert_eq!(
        circle(&graph).as_deref(),
        Some(
            "one::high::part imports one::low by `crate::low`\n\
             one::low imports one::high::part by `crate::high::Part::new`"
        )
    );
    assert_eq!(
        leaving(&graph, "one::high"),
        ["one::high::part imports one::low by `crate::low`"]
    );
    assert_eq!(leaving(&graph, "one::low").len(), 1);
}

#[test]
fn tests_and_names_of_other_crates_make_no_circle() {
    let graph = made_up(&[
        ("lib.rs", "pub mod high; pub mod low;"),
        (
            "high.rs",
            "use super::low::*; use std::low; fn f() { g::low::h(); x.low::<u8>(); }",
        ),
        (
            "low.rs",
            "#[cfg(test)] mod tests { use crate::high; } #[cfg(test)] use crate::high::f; \
             /// Not [`crate::high::f`].\npub fn crate_high() {}",
        ),
    ]);
    assert_eq!(circle(&graph), None);
    assert_eq!(
        leaving(&graph, "one::high"),
        ["one::high imports one::low by `super::low`"]
    );
    assert!(leaving(&graph, "one::low").is_empty());
}

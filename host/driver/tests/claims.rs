//! What documents say can be held against the code: tests that they name exist, each defence of the threat model has one,
//! numbers in sentences are the constants that they stand for.

mod checkout;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use bulkhead_abi::control::{
    EVENT_LIMITS, EVENT_OUTPUT, EVENT_STATE, Kind, Message, PORT_NAME, Request, Status, right,
};
use bulkhead_abi::plan::{
    MAX_MANAGERS, MAX_PCPUS, MAX_ROWS, MAX_SPIS, MAX_VCPUS_PER_PCPU, MAX_VCPUS_PER_VM, MAX_VMS,
};
use bulkhead_cli::demo;
use bulkhead_core::boot_tree;
use bulkhead_core::console::mux::{SILENT_MS, TURN_MS};
use bulkhead_core::sched::balance;
use bulkhead_core::sched::bound::Costs;
use bulkhead_core::vgic::PRIORITY_BITS;
use bulkhead_driver::testing;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use checkout::{root, text};

/// What looks like the name of a test and is a folder of the reader's.
const OTHERS: [&str; 1] = ["boards/mine"];
const THREATS: &str = "docs/internals/threat-model.md";

/// Paths of the documents at the root and in the book.
fn documents() -> Vec<String> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.join("docs")];
    let top = fs::read_dir(&root).expect("the root");
    let mut files: Vec<PathBuf> = top.map(|entry| entry.expect("an entry").path()).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the book") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    for file in files {
        if file.is_file() && file.extension().is_some_and(|kind| kind == "md") {
            let name = file.strip_prefix(&root).expect("below the root");
            found.push(name.display().to_string());
        }
    }
    found.sort();
    assert!(found.len() > 40, "{found:?}");
    found
}

/// Names of tests, and of what stands before their first slash.
struct Tests {
    names: Vec<String>,
    kinds: BTreeSet<String>,
}

impl Tests {
    fn all() -> Self {
        let tests = testing::all(&root()).expect("the tests");
        let names: Vec<String> = tests.into_iter().map(|test| test.name).collect();
        let kind = |name: &String| Some(name.split_once('/')?.0.to_owned());
        let kinds = names.iter().filter_map(kind).collect();
        Self { names, kinds }
    }

    /// Whether words in code are to be the name of a test, or the beginning of one: not a path, nor a pattern.
    fn is_named_by(&self, code: &str) -> bool {
        let Some((kind, rest)) = code.split_once('/') else {
            return false;
        };
        let pattern = rest.is_empty()
            || rest != "README" && rest.contains(|c: char| c.is_ascii_uppercase() || c == ' ');
        self.kinds.contains(kind)
            && !pattern
            && !root().join(code).exists()
            && !OTHERS.contains(&code)
    }

    /// Whether there is such a test: up to the end or a slash, or to a star at the end.
    fn has(&self, code: &str) -> bool {
        let (start, open) = code
            .strip_suffix('*')
            .map_or((code, false), |start| (start, true));
        self.names.iter().any(|name| {
            let rest = name.strip_prefix(start);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || open)
        })
    }
}

/// Words in code within sentences.
fn codes(text: &str) -> Vec<String> {
    let parser = Parser::new_ext(text, Options::ENABLE_TABLES);
    parser
        .filter_map(|event| match event {
            Event::Code(code) => Some(code.into_string()),
            _ => None,
        })
        .collect()
}

#[test]
fn documents_name_tests_that_exist() {
    let tests = Tests::all();
    let (mut count, mut wrong) = (0, Vec::new());
    for name in documents() {
        for code in codes(&text(&name)) {
            if tests.is_named_by(&code) {
                count += 1;
                if !tests.has(&code) {
                    wrong.push(format!("{name} names `{code}`, which is no test"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 150, "{count}");
}

#[test]
fn a_name_that_is_no_test_is_found() {
    let tests = Tests::all();
    for (code, is_named, is_there) in [
        ("system/hostile", true, true),
        ("system/hostile/cortex-a53", true, true),
        ("system/hostil", true, false),
        ("system/gppt-tf-a*", true, true),
        ("system/gppt-tf-b*", true, false),
        ("docs/README", true, true),
        ("system/NAME", false, false),
        ("fuzz/src/sys.rs", false, false),
        ("abi/src/plan.rs", false, false),
        ("fuzz/", false, false),
    ] {
        assert_eq!(tests.is_named_by(code), is_named, "{code}");
        assert_eq!(is_named && tests.has(code), is_there, "{code}");
    }
}

/// Last cells of the rows of the table with this heading over its last column, with the first cell of each.
fn last_cells(text: &str, heading: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let (mut row, mut cell): (Vec<(String, Vec<String>)>, _) = (Vec::new(), None);
    let mut is_wanted = false;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::TableRow | Tag::TableHead) => row.clear(),
            Event::Start(Tag::TableCell) => cell = Some((String::new(), Vec::new())),
            Event::End(TagEnd::TableCell) => row.extend(cell.take()),
            Event::End(TagEnd::TableHead) => {
                is_wanted = row.last().is_some_and(|(words, _)| words == heading);
            }
            Event::End(TagEnd::TableRow) if is_wanted => {
                let (first, last) = (row.first().cloned(), row.pop());
                found.extend(first.zip(last).map(|(first, last)| (first.0, last.1)));
            }
            Event::Text(words) => {
                if let Some((text, _)) = &mut cell {
                    text.push_str(&words);
                }
            }
            Event::Code(code) => {
                if let Some((text, codes)) = &mut cell {
                    text.push_str(&code);
                    codes.push(code.into_string());
                }
            }
            _ => {}
        }
    }
    found
}

#[test]
fn each_defence_of_the_threat_model_names_what_notices_its_absence() {
    let tests = Tests::all();
    let text = text(THREATS);
    let edges = last_cells(&text, "noticed by");
    assert!(edges.len() > 20, "{edges:?}");
    let (_, defended) = text
        .split_once("\n## What is defended\n")
        .expect("what is defended");
    let (defended, _) = defended.split_once("\n## ").expect("what is not");
    let points: Vec<(String, Vec<String>)> = defended
        .split("\n* ")
        .skip(1)
        .map(|point| (point.chars().take(40).collect(), codes(point)))
        .collect();
    assert!(points.len() > 6, "{points:?}");
    for (what, codes) in edges.iter().chain(&points) {
        let named = codes.iter().any(|code| tests.has(code));
        assert!(named, "{THREATS}: no test notices if `{what}` is not so");
    }
}

/// A sentence of a document with the numbers of the code in it.
fn says(name: &str, sentence: &str) {
    let text = text(name).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(sentence), "{name} does not say `{sentence}`");
}

#[test]
fn numbers_in_sentences_are_those_of_the_code() {
    says(
        "CAVEATS.md",
        &format!(
            "At most {MAX_PCPUS} pCPUs, {MAX_VMS} VMs, {MAX_VCPUS_PER_VM} vCPUs in a VM, {MAX_VCPUS_PER_PCPU} vCPUs on a \
             pCPU; {MAX_ROWS} rows in a table of the plan"
        ),
    );
    says("README.md", &format!("up to {MAX_PCPUS} CPUs"));
    says(
        "docs/reference/boards.md",
        &format!(
            "reads up to {kept} ranges that the firmware keeps",
            kept = boot_tree::KEPT
        ),
    );
    says(
        "docs/tutorial/demo.md",
        &format!("{} ns for each instruction", 1 << demo::SHIFT),
    );
    // Numbers that are words.
    assert_eq!(MAX_MANAGERS, 4);
    says("docs/how-to/manage.md", "and up to four can");
    let kept = boot_tree::KEPT;
    says(
        "CAVEATS.md",
        &format!(
            "**{kept} ranges of memory, {kept} reserved ranges, {kept} CPUs** and {kept} UARTs of its kind from the boot \
             tree, at most {} levels deep, and at most 2 MiB of tree. A board with more reserved ranges is refused",
            boot_tree::DEPTH,
        ),
    );
    says(
        "CAVEATS.md",
        &format!(
            "counts {} instructions for a switch between vCPUs",
            Costs::OF_BUILD.switch
        ),
    );
    says(
        "CAVEATS.md",
        &format!(
            "periods of {} ms while another CPU of its pool",
            balance::PERIOD_MS
        ),
    );
    says(
        "CAVEATS.md",
        &format!(
            "have INTIDs of the board up to {}. The plan's proof refuses an SPI from {} on",
            31 + MAX_SPIS,
            32 + MAX_SPIS
        ),
    );
    says(
        "CAVEATS.md",
        &format!("**vGIC**: {} bits of priority", PRIORITY_BITS.count_ones()),
    );
    says(
        "CAVEATS.md",
        &format!(
            "holds up the console's other output for up to {}, and for up to {SILENT_MS} ms where it goes on with a line \
             that was cut",
            match TURN_MS {
                1000 => "a second",
                _ => "another time",
            }
        ),
    );
}

/// Cells of the rows of a table whose head begins with these cells.
fn rows(text: &str, head: &[&str]) -> Vec<Vec<String>> {
    let cells = |line: &str| -> Vec<String> {
        let inner = line
            .strip_prefix('|')
            .and_then(|line| line.strip_suffix('|'));
        let cells = inner.unwrap_or_default().split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    let mut lines = text.lines();
    lines
        .by_ref()
        .find(|line| cells(line).iter().zip(head).filter(|(a, b)| a == b).count() == head.len())
        .unwrap_or_else(|| panic!("a table {head:?}"));
    lines
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(cells)
        .collect()
}

#[test]
fn the_control_protocol_is_that_of_the_code() {
    let text = text("docs/reference/control.md");
    let kinds = rows(&text, &["kind", "name", "right"]);
    for (kind, row) in Kind::ALL.iter().zip(&kinds) {
        let words = right::ALL.iter().filter(|(bit, _)| kind.needs() & bit != 0);
        let words: Vec<&str> = words.map(|(_, word)| *word).collect();
        let right = words.join(" or ");
        let number = (*kind as u16).to_string();
        let name = format!("{kind:?}").to_ascii_lowercase();
        assert_eq!(row[..3], [number.as_str(), &name, &right], "{row:?}");
    }
    let events: Vec<&str> = kinds[Kind::ALL.len()..]
        .iter()
        .map(|row| row[0].as_str())
        .collect();
    assert_eq!(
        events,
        [EVENT_STATE, EVENT_LIMITS, EVENT_OUTPUT].map(|kind| format!("{kind:#x}"))
    );
    let statuses = rows(&text, &["status", "meaning", "value 0"]);
    let numbers: Vec<String> = statuses
        .iter()
        .flat_map(|row| row[0].split(", ").map(str::to_owned))
        .collect();
    let known = Status::ALL.map(|status| (status as u16).to_string());
    assert_eq!(numbers, known);
    // Offsets and sizes of the fields follow each other, up to the size of the whole.
    let page: Vec<&str> = text.split("\n## ").collect();
    for (heading, size) in [
        ("Requests", size_of::<Request>()),
        ("Messages", size_of::<Message>()),
    ] {
        let section = page.iter().find(|section| section.starts_with(heading));
        let mut end = 0;
        for row in rows(section.expect(heading), &["offset", "bytes", "field"]) {
            assert_eq!(row[0], end.to_string(), "{row:?}");
            end += row[1].parse::<usize>().expect("bytes");
        }
        assert_eq!(end, size, "{heading}");
    }
    let name = "docs/reference/control.md";
    says(name, &format!("the name `{PORT_NAME}`"));
    says(
        name,
        &format!("with {} readable bytes", size_of::<Request>()),
    );
    says(
        name,
        &format!("at least {} writable bytes", size_of::<Message>()),
    );
}

/// Paths that the code map of ARCHITECTURE names: a folder of the root, or of the folder above in which it is indented.
fn mapped() -> BTreeSet<String> {
    let text = text("ARCHITECTURE.md");
    let map = text.split("## Code map").nth(1).expect("a code map");
    let map = map.split("```").nth(1).expect("the map itself");
    let (mut above, mut found) = (String::new(), BTreeSet::new());
    for line in map.lines().skip(1) {
        let Some(name) = line.split_whitespace().next() else {
            continue;
        };
        let path = match line.starts_with(' ') {
            true => format!("{above}{name}"),
            false => name.to_owned(),
        };
        if !line.starts_with(' ') {
            above = path.clone();
        }
        found.insert(path.trim_end_matches('/').to_owned());
    }
    found
}

#[test]
fn the_demo_and_its_page_have_the_same_commands_to_try() {
    let hint = text("guests/linux/demo");
    let hint = hint.split_once("Try:").expect("a hint").1;
    let hint = hint.split_once("HINT").expect("its end").0;
    let of_hint: Vec<&str> = hint
        .lines()
        .map(|line| line.split('(').next().unwrap_or_default().trim())
        .filter(|line| line.starts_with("bulkheadctl "))
        .collect();
    let page = text("docs/tutorial/demo.md");
    let of_page: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("* `")?.split('`').next())
        .filter(|code| code.starts_with("bulkheadctl "))
        .collect();
    assert_eq!(
        of_hint, of_page,
        "guests/linux/demo and docs/tutorial/demo.md"
    );
    assert_eq!(of_hint.len(), 3);
}

#[test]
fn the_code_map_has_each_folder_and_nothing_else() {
    let (root, mapped) = (root(), mapped());
    assert!(mapped.len() > 30, "{mapped:?}");
    for path in &mapped {
        let in_sources = path.replacen('/', "/src/", 1);
        let exists = root.join(path).exists() || root.join(in_sources).exists();
        assert!(exists, "{path} is on the map only");
    }
    for above in ["", "core/src/", "host/"] {
        for entry in fs::read_dir(root.join(above)).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().to_string_lossy().into_owned();
            let made = name.starts_with('.') || ["target", "out"].contains(&name.as_str());
            let of_tests = name.ends_with("tests");
            if !entry.path().is_dir() || made || !above.is_empty() && of_tests {
                continue;
            }
            let path = format!("{}{name}", above.replace("/src/", "/"));
            assert!(mapped.contains(&path), "{path} is not on the map");
        }
    }
}

/// A sum that goes wrong at EL2 is found by the gate only if it is checked: without that it would be another number.
#[test]
fn arithmetic_of_the_machine_is_checked() {
    let workspace: toml::Table = text("Cargo.toml").parse().expect("the workspace");
    let profile = &workspace["profile"]["machine"];
    assert_eq!(profile["overflow-checks"].as_bool(), Some(true));
    assert_eq!(profile["panic"].as_str(), Some("abort"));
    let of_packages = profile.get("package").and_then(|all| all.as_table());
    for (name, package) in of_packages.into_iter().flatten() {
        let checks = package.get("overflow-checks").and_then(|it| it.as_bool());
        assert_ne!(checks, Some(false), "{name}");
    }
}

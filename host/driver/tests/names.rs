//! Pages about the inside of EL2 and decisions name what is there: a word in code is a name of the sources, and no word that pCPUs share is
//! forgotten.

mod checkout;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use checkout::{root, text};

/// Pages in which each word in code is a name of the sources, beside the decisions.
const PAGES: [&str; 6] = [
    "docs/internals/classes.md",
    "docs/internals/errata.md",
    "docs/internals/interrupts.md",
    "docs/internals/locking.md",
    "docs/internals/memory.md",
    "docs/internals/unsafe.md",
];
/// Names of others, of which these pages and the decisions speak: of Linux, of virtio, of another engine; and the beginning of names.
const FOREIGN: [&str; 10] = [
    "bolero",
    "BOLERO_LIBFUZZER_ARGS",
    "fuzzing_libfuzzer",
    "DEV_DAX",
    "IO_STRICT_DEVMEM",
    "ZONE_DEVICE",
    "pmem",
    "uio_pdrv_genirq",
    "idx",
    "net_",
];
/// Where these names are.
const SOURCES: [&str; 13] = [
    "abi", "boards", "channel", "core", "el2", "fuzz", "guests", "host", "lab", "mgmt", "poll",
    "service", "tests",
];
const LOCKING: &str = "docs/internals/locking.md";
const UNSAFE: &str = "docs/internals/unsafe.md";

/// Texts of files below these folders with one of the endings, by path from the root.
fn files(folders: &[&str], endings: &[&str]) -> BTreeMap<String, String> {
    let root = root();
    let mut left: Vec<PathBuf> = folders.iter().map(|name| root.join(name)).collect();
    let mut found = BTreeMap::new();
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let ending = path.extension().unwrap_or_default();
            if path.is_dir() {
                left.push(path);
            } else if endings.iter().any(|wanted| ending == *wanted) {
                let name = path.strip_prefix(&root).expect("below the root");
                let text = fs::read_to_string(&path).expect("a text");
                found.insert(name.display().to_string(), text);
            }
        }
    }
    found
}

/// Names in a text: words of letters, digits and underscores that do not begin with a digit.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'))
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

/// Links whose whole text is a name in code, with the files to which they lead, from the root; others than Rust and assembly do not count.
fn names_with_links(page: &str, text: &str) -> Vec<(String, PathBuf)> {
    let folder = root().join(page);
    let folder = folder.parent().expect("a folder");
    let (mut found, mut link, mut words) = (Vec::new(), None, Vec::<(bool, String)>::new());
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. }) => {
                link = Some(dest_url.into_string());
                words.clear();
            }
            Event::End(TagEnd::Link) => {
                let target = link.take().map(|url| folder.join(url));
                let target = target.filter(|file| file.is_file());
                let is_source = |file: &PathBuf| {
                    file.extension()
                        .is_some_and(|ending| ending == "rs" || ending == "s")
                };
                if let ([(true, name)], Some(file)) = (&words[..], target.filter(is_source)) {
                    found.push((name.clone(), file));
                }
            }
            Event::Code(code) => words.push((true, code.into_string())),
            Event::Text(text) => words.push((false, text.into_string())),
            _ => {}
        }
    }
    found
}

/// The names of the sources, each with the files that have it.
struct Names(BTreeMap<String, BTreeSet<String>>);

impl Names {
    fn of(files: &BTreeMap<String, String>) -> Self {
        let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (path, text) in files {
            let of_path = path.split(['/', '.']);
            for name in names(text).chain(of_path.flat_map(names)) {
                found
                    .entry(name.to_owned())
                    .or_default()
                    .insert(path.clone());
            }
        }
        Self(found)
    }

    /// What of words in code is no name; of a path `a::b`, whether `b` is in a file or folder `a`, or in a file that has the type `a`.
    fn lacks(&self, code: &str) -> Option<String> {
        let none = BTreeSet::new();
        let with = |name: &str| self.0.get(name).unwrap_or(&none);
        let mut known = names(code).filter(|name| !FOREIGN.contains(name));
        if let Some(lacking) = known.find(|name| with(name).is_empty()) {
            return Some(lacking.to_owned());
        }
        let (above, name) = code.rsplit_once("::")?;
        let above = names(above).last()?;
        let name = names(name).next()?;
        if FOREIGN.contains(&above) {
            return None;
        }
        let is_type = above.starts_with(|c: char| c.is_ascii_uppercase());
        let is_there = with(name).iter().any(|path| {
            let mut parts = path.split(['/', '.']);
            parts.any(|part| part == above) || is_type && with(above).contains(path)
        });
        (!is_there).then(|| code.to_owned())
    }
}

#[test]
fn pages_about_the_inside_name_what_is_there() {
    let mut sources = files(&SOURCES, &["rs", "s", "toml", "ld"]);
    sources.insert("Cargo.toml".to_owned(), text("Cargo.toml"));
    let names = Names::of(&sources);
    let (mut count, mut wrong) = (0, Vec::new());
    let decisions = files(&["docs/adr"], &["md"]);
    for page in PAGES
        .into_iter()
        .chain(decisions.keys().map(String::as_str))
    {
        for code in codes(&text(page)) {
            count += 1;
            let lacking = names.lacks(&code);
            wrong.extend(lacking.map(|what| format!("{page}: `{code}`: no {what}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 300, "{count}");
}

/// A link from a name leads to a file that has it.
#[test]
fn a_name_with_a_link_is_in_the_file_behind_it() {
    let (mut count, mut wrong) = (0, Vec::new());
    for (page, text) in files(&["docs"], &["md"]) {
        for (name, file) in names_with_links(&page, &text) {
            // Files are followed by the test of links, and words that are names of tests, programs and crates are not code.
            let is_code =
                name.contains("::") || name.contains(|c: char| c.is_uppercase() || c == '_');
            if !is_code || name.contains(['/', '.']) {
                continue;
            }
            count += 1;
            let sources = fs::read_to_string(&file).expect("a text");
            let has = |word: &str| names(&sources).any(|name| name == word);
            let last = name.rsplit("::").next().unwrap_or_default();
            if !names(last).all(has) {
                wrong.push(format!("{page}: `{name}` is not in {}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 5, "{count}");
}

#[test]
fn a_name_that_is_not_there_is_found() {
    let made_up = BTreeMap::from([
        (
            "el2/src/hw/mmu.rs".to_owned(),
            "pub fn translate() {}".to_owned(),
        ),
        (
            "el2/src/vm.rs".to_owned(),
            "/// Not of mmu.\nstatic RUNNING: u32 = 0;".to_owned(),
        ),
    ]);
    let names = Names::of(&made_up);
    for (code, lacking) in [
        ("RUNNING", None),
        ("mmu::translate", None),
        ("hw::mmu::translate", None),
        ("mmu::RUNNING", Some("mmu::RUNNING")),
        ("mmu::translates", Some("translates")),
        ("vm::translate", Some("vm::translate")),
        ("Vm::translate", Some("Vm")),
        ("el2/src/hw/mmu.rs", None),
        ("u32 = 0", None),
        ("WALKING", Some("WALKING")),
    ] {
        assert_eq!(names.lacks(code).as_deref(), lacking, "{code}");
    }
}

/// What pCPUs share outside of tables and pages is a static.
#[test]
fn each_static_of_el2_is_on_the_page_of_what_pcpus_share() {
    let page: BTreeSet<String> = codes(&text(LOCKING)).into_iter().collect();
    let mut statics = BTreeSet::new();
    for text in files(&["el2/src"], &["rs"]).values() {
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = words.iter().position(|word| *word == "static");
            let [name, ..] = at.map_or(&[][..], |at| &words[at + 1..]) else {
                continue;
            };
            let rest = if *name == "mut" {
                words.get(at.unwrap_or(0) + 2)
            } else {
                Some(name)
            };
            if let Some(name) = rest.and_then(|name| name.strip_suffix(':')) {
                statics.insert(name.to_owned());
            }
        }
    }
    assert!(statics.len() > 30, "{statics:?}");
    let of_linker = |name: &&String| name.starts_with("__") || name.chars().any(char::is_lowercase);
    let missing: Vec<_> = statics
        .difference(&page)
        .filter(|name| !of_linker(name))
        .collect();
    assert!(missing.is_empty(), "{LOCKING} does not name {missing:?}");
}

/// Each invariant has a heading, and is one that code relies on.
#[test]
fn the_invariants_are_those_of_the_code() {
    let text = text(UNSAFE);
    let headings: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("### ")?.split_once(':'))
        .map(|(tag, _)| tag)
        .collect();
    let sources = files(&["el2/src"], &["rs"]);
    let used: BTreeSet<&str> = sources
        .values()
        .flat_map(|text| text.split("SAFETY: [").skip(1))
        .filter_map(|rest| rest.split_once(']'))
        .map(|(tag, _)| tag)
        .collect();
    assert_eq!(headings, used);
    assert!(used.len() > 10, "{used:?}");
}

/// Rules of the guests' runtime in a text: I- and a word of capitals.
fn rules(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let is_rule = |word: &&str| {
        word.strip_prefix("I-").is_some_and(|rest| {
            rest.len() > 1
                && rest
                    .chars()
                    .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
        })
    };
    words.filter(is_rule).map(str::to_owned).collect()
}

#[test]
fn the_rules_of_guests_are_those_that_their_code_names() {
    let sources = files(&["guests/src"], &["rs"]);
    let used: BTreeSet<String> = sources
        .values()
        .flat_map(|text| text.lines())
        .filter(|line| !line.starts_with("//!"))
        .flat_map(rules)
        .collect();
    assert!(used.len() > 5, "{used:?}");
    let top = text("guests/src/lib.rs");
    let top: Vec<&str> = top.lines().filter(|line| line.starts_with("//!")).collect();
    assert_eq!(
        rules(&top.join("\n")),
        used,
        "at the top of guests/src/lib.rs"
    );
    assert_eq!(rules(&text(UNSAFE)), used, "{UNSAFE}");
}

//! What decisions (docs/adr) say that can be held against the code: numbers that are constants, libraries, and where figures come from.

mod checkout;

use std::collections::BTreeSet;
use std::fs;

use bulkhead_abi::control::{Message, Request};
use bulkhead_abi::plan::{
    MAX_MANAGERS, MIN_APART, PCPU_PAGES, TABLES, VCPU_PAGES, VERSION, VIRTIO_PAGES, VM_PAGES,
};
use bulkhead_core::console::mux::{FLUSH_MS, LINE, LOOK, OUTPUT, SILENT_MS, TURN_BYTES, TURN_MS};
use bulkhead_core::console::stats::LAST_EXITS;
use bulkhead_core::control::APART_US;
use bulkhead_core::sched::balance;
use bulkhead_core::sched::bound::DRAIN_NS;
use bulkhead_core::vgic::Distributor;
use bulkhead_core::virtio::queue::{Budget, SUPPLY};
use bulkhead_core::virtio::round::SLICE;

use checkout::{root, text};

const FIGURES: &str = "(../reference/figures.md)";

/// The decisions, by name of the file, with single spaces.
fn decisions() -> Vec<(String, String)> {
    let folder = fs::read_dir(root().join("docs/adr")).expect("decisions");
    let mut found: Vec<_> = folder
        .map(|entry| {
            let name = entry.expect("an entry").file_name();
            let name = name.to_string_lossy().into_owned();
            let text = text(&format!("docs/adr/{name}"));
            let words: Vec<&str> = text.split_whitespace().collect();
            (name, words.join(" "))
        })
        .collect();
    found.sort();
    assert!(found.len() > 25, "{}", found.len());
    found
}

fn says(number: &str, sentence: &str) {
    let all = decisions();
    let one = all.iter().find(|(name, _)| name.starts_with(number));
    let (name, words) = one.expect("a decision");
    assert!(words.contains(sentence), "{name} does not say `{sentence}`");
}

#[test]
fn numbers_in_decisions_are_those_of_the_code() {
    says("0002", &format!("layout version {VERSION}"));
    says("0002", &format!("then {TABLES} tables of fixed rows"));
    says("0002", &format!("| {VERSION} | "));
    says(
        "0003",
        &format!("The last {LAST_EXITS} exits stay in a ring"),
    );
    says(
        "0005",
        &format!(
            "EL2 costs {PCPU_PAGES} pages for each pCPU, {VCPU_PAGES} for each vCPU and service thread, {VM_PAGES} for each VM and \
             {VIRTIO_PAGES} for each virtio device"
        ),
    );
    says("0007", &format!("before a stream of {OUTPUT} bytes"));
    says("0007", &format!("goes out when {FLUSH_MS} ms have passed"));
    says(
        "0007",
        &format!(
            "has been silent for {SILENT_MS} ms, has taken a second, or has had {TURN_BYTES} bytes"
        ),
    );
    says(
        "0007",
        &format!("has turns of {SILENT_MS} ms and {LINE} bytes"),
    );
    says("0007", &format!("It moves at most {LOOK} bytes in a turn"));
    assert_eq!((TURN_MS, DRAIN_NS), (1000, 1_000_000));
    says("0007", "the drain has one turn in a millisecond");
    let bytes = size_of::<Distributor>();
    says(
        "0008",
        &format!("{} KiB for 8 vCPUs and 256 SPIs", bytes as f64 / 1024.0),
    );
    says(
        "0018",
        &format!(
            "Every {} ms each pCPU of a pool measures",
            balance::PERIOD_MS
        ),
    );
    says(
        "0018",
        &format!(
            "for {} ms at most, a server notices nothing",
            4 * balance::PERIOD_MS
        ),
    );
    assert_eq!(SLICE, Budget::of(12, 8192));
    says("0024", "**A slice is twelve descriptors and two pages");
    assert_eq!(SUPPLY, 4);
    says("0024", "while the backend has four of the largest");
    let (request, message) = (size_of::<Request>(), size_of::<Message>());
    says(
        "0027",
        &format!(
            "a write is a request of {request} bytes, and what is read is a message of {message}"
        ),
    );
    assert_eq!((MAX_MANAGERS, APART_US), (4, 1000));
    says("0027", "at most four managers");
    says("0027", "a manager asks at most once in a millisecond");
    says(
        "0019",
        &format!("this is the default, {}us to 1s", MIN_APART / 1000),
    );
}

/// Names of crates from elsewhere that manifests have as dependencies, by their manifest.
fn libraries(manifests: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for name in manifests {
        let manifest: toml::Table = text(name).parse().expect("a manifest");
        let mut tables = vec![&manifest];
        let mut lists = Vec::new();
        while let Some(table) = tables.pop() {
            for (key, value) in table {
                let Some(inner) = value.as_table() else {
                    continue;
                };
                let lists_them = ["dependencies", "build-dependencies"].contains(&key.as_str());
                match lists_them {
                    true => lists.push(inner),
                    false => tables.push(inner),
                }
            }
        }
        let own = |crate_: &str| crate_.starts_with("bulkhead");
        let names = lists.into_iter().flat_map(toml::Table::keys);
        found.extend(names.filter(|name| !own(name)).cloned());
    }
    found
}

/// Who adds a crate to what runs at EL2 says why, and changes this.
#[test]
fn two_libraries_run_at_el2() {
    let el2 = libraries(&[
        "abi/Cargo.toml",
        "core/Cargo.toml",
        "el2/Cargo.toml",
        "el2/random/Cargo.toml",
    ]);
    let expected = ["chacha20", "zerocopy"].map(str::to_owned);
    assert_eq!(el2, BTreeSet::from(expected));
    says(
        "0006",
        "At EL2 there are two besides this project's own crates: * **`zerocopy`** (in `abi` and `core`)",
    );
    says("0006", "* **`chacha20`**:");
}

#[test]
fn each_library_of_the_host_is_named() {
    let (_, words) = decisions()
        .into_iter()
        .find(|(name, _)| name.starts_with("0006"))
        .expect("a decision");
    let libraries = libraries(&["Cargo.toml", "lab/interleave/Cargo.toml"]);
    assert!(libraries.len() > 15, "{libraries:?}");
    for name in libraries {
        assert!(
            words.contains(&format!("`{name}`")),
            "docs/adr/0006 does not name {name}"
        );
    }
}

/// An instruction count is of its time: where there is one, there is a link to what is measured now.
#[test]
fn decisions_with_instructions_say_where_figures_are() {
    let mut count = 0;
    for (name, text) in decisions() {
        let words: Vec<&str> = text.split(' ').collect();
        let is_number = |word: &str| word.parse::<f64>().is_ok();
        let counts = words
            .windows(2)
            .any(|pair| is_number(pair[0]) && pair[1].starts_with("instructions"));
        if counts || text.contains("| instructions |") {
            count += 1;
            assert!(
                text.contains(FIGURES),
                "{name} has instructions and no link to figures"
            );
        }
    }
    assert!(count > 6, "{count}");
}

/// A decision has a status, and none is of a version that is not there yet.
#[test]
fn decisions_are_accepted_and_of_no_version_to_come() {
    let workspace: toml::Table = text("Cargo.toml").parse().expect("the workspace");
    let version = &workspace["workspace"]["package"]["version"];
    let parts = |version: &str| -> Option<Vec<u32>> {
        let parts = version.split('.').map(str::parse);
        parts.collect::<Result<Vec<u32>, _>>().ok()
    };
    let version = parts(version.as_str().expect("a version")).expect("numbers");
    for (name, text) in decisions() {
        let status = text.split(" Status: ").nth(1);
        let status = status.and_then(|rest| rest.split(" ## ").next());
        let status = status.unwrap_or_else(|| panic!("{name}: no status"));
        assert!(status.starts_with("accepted"), "{name}: {status}");
        for word in status.split([' ', ',']) {
            let named = parts(word.trim_end_matches(['.', ';']));
            let named = named.filter(|parts| parts.len() == version.len());
            assert!(named.is_none_or(|named| named <= version), "{name}: {word}");
        }
    }
}

/// Ends of channels and words that are polled are used where exclusives do not work (memory that nobody caches) and where the other side only reads:
/// by loads and stores alone.
#[test]
fn ends_of_channels_load_and_store_and_do_nothing_else() {
    let rust = [
        "channel/src/queue/mod.rs",
        "channel/src/lib.rs",
        "poll/src/word.rs",
        "poll/src/lib.rs",
    ];
    let c = [
        "channel/include/bulkhead_channel.h",
        "channel/include/bulkhead_channel_linux.h",
    ];
    let mut accesses = 0;
    for name in rust.into_iter().chain(c) {
        let text = text(name);
        for line in text
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default())
        {
            let at_once = [
                "fetch_",
                ".swap(",
                "compare_exchange",
                "__sync_",
                "__atomic_exchange",
                "__atomic_compare",
                "__atomic_fetch",
            ];
            let other = at_once.iter().find(|word| line.contains(**word));
            assert!(other.is_none(), "{name}: {line}");
            let plain = [".load(", ".store(", "__atomic_load_n(", "__atomic_store_n("];
            accesses += plain.iter().filter(|word| line.contains(**word)).count();
        }
    }
    assert!(accesses > 20, "{accesses}");
    says("0025", "Only loads and stores of 64 bits, no exclusives");
}

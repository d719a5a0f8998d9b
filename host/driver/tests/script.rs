//! `./bulkhead`: which program it hands over to, and with which words.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Writes a program that prints its name and its words.
fn program(path: &Path) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, "#!/bin/sh\necho \"${0##*/} $*\"\n").expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a file of ours");
}

/// What the tool is made of: nothing of it is newer than the tool.
const SOURCES: [&str; 12] = [
    "Cargo.toml",
    "Cargo.lock",
    "abi",
    "channel",
    "core",
    "el2/random",
    "host",
    "lab",
    "mgmt",
    "service",
    "guests/linux",
    "guests/rootfs",
];

/// Output of the script in a checkout with all that it would build.
fn handed_over(words: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bulkhead");
    fs::copy(script, at("bulkhead")).expect("the script");
    for source in SOURCES {
        fs::create_dir_all(at(source)).expect("a folder");
    }
    let tools = [
        "bin/cargo",
        "bin/qemu-system-aarch64",
        "bin/aarch64-linux-gnu-gcc",
        "target/release/bulkhead",
    ];
    for name in tools.into_iter().chain(["target/release/bulkhead-driver"]) {
        program(&at(name));
    }
    let stamps = ["bulkhead.env", "bulkhead.built", "bulkhead-driver.built"];
    for name in stamps {
        let cargo = format!("{}\n\n", at("bin/cargo").display());
        fs::write(at("target").join(name), cargo).expect("a file");
    }
    // Older than what is made of it.
    let touched = Command::new("touch")
        .args(["-d", "2001-01-01"])
        .arg(at("bulkhead"))
        .args(SOURCES.map(at))
        .status();
    assert!(touched.expect("touch").success());
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(at("bulkhead"))
        .args(words)
        .env("PATH", format!("{}:{path}", at("bin").display()))
        .env("BULKHEAD_CACHE", at("cache"))
        .env_remove("BULKHEAD_CARGO")
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}");
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}

#[test]
fn words_of_the_script_may_stand_anywhere_and_the_verb_chooses_the_program() {
    for (words, handed) in [
        (&["--yes", "demo"][..], "bulkhead --yes demo"),
        (&["demo", "--yes"], "bulkhead demo --yes"),
        (&["--yes", "test", "x"], "bulkhead-driver --yes test x"),
        (&["book", "-y"], "bulkhead-driver book -y"),
        (
            &["run", "test", "--", "--yes"],
            "bulkhead run test -- --yes",
        ),
        (&["--help"], "bulkhead --help"),
    ] {
        assert_eq!(handed_over(words), handed);
    }
}

/// What the host tool is made of makes it be built anew: each crate of the workspace that one of its crates names.
#[test]
fn the_script_looks_at_all_that_the_tool_is_made_of() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| fs::read_to_string(root.join(name)).expect("a text");
    let script = read("bulkhead");
    let looks = script
        .lines()
        .find_map(|line| line.split_once("find Cargo.toml ")?.1.split_once(" -newer"));
    let looks: Vec<_> = looks.expect("a search").0.split(' ').collect();
    let workspace = read("Cargo.toml");
    let paths = workspace.lines().filter_map(|line| {
        let (name, rest) = line.split_once(" = { path = \"")?;
        Some((name, rest.split('"').next()?))
    });
    let named: String = ["cli", "driver", "model", "planner", "runner"]
        .map(|name| read(&format!("host/{name}/Cargo.toml")))
        .concat();
    let mut count = 0;
    for (name, folder) in paths {
        let is_named = named
            .lines()
            .any(|line| line.split([' ', '.']).next() == Some(name));
        if is_named {
            count += 1;
            let looked = looks.iter().any(|top| Path::new(folder).starts_with(top));
            assert!(looked, "`bulkhead` does not look at {folder}");
        }
    }
    assert!(count > 5, "{count}");
}

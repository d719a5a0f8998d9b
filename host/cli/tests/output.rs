//! Outputs of the tool, and their readers.
#![allow(missing_docs)]

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// A reader may stop before the end: nothing is said about it, and the status is that of SIGPIPE.
#[test]
fn a_reader_that_stops_is_no_fault() {
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let child = Command::new(env!("CARGO_BIN_EXE_bulkhead"))
        .arg("explain")
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool starts");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(141));
}

/// `init` in a folder: its status, and what it says of mistakes.
fn init(file: &Path, words: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_bulkhead"))
        .arg("init")
        .arg(file)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .expect("the tool starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

/// A description that is there stays, unless it is to be replaced; one that would not be sound is not written at all.
#[test]
fn init_writes_what_is_sound_and_replaces_nothing_unasked() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("one.toml");
    let read = || fs::read_to_string(&file).expect("a description");
    assert_eq!(init(&file, &["--guest", "one=guest:hello"]).0, Some(0));
    let first = read();
    assert!(first.contains("[vm.one]"), "{first}");
    let (status, said) = init(&file, &["--guest", "two=guest:hello"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("is there already"), "{said}");
    assert_eq!(read(), first);
    let (status, said) = init(&file, &["--guest", "two=guest:hello", "--force"]);
    assert_eq!(status, Some(0), "{said}");
    let second = read();
    assert!(second.contains("[vm.two]") && !second.contains("[vm.one]"));
    // A program that no machine runs: neither is it written anew, nor over what is there.
    let broken = folder.path().join("broken.elf");
    fs::write(&broken, b"\x7fELF and no more").expect("a file");
    let guest = format!("three={}", broken.display());
    for name in ["one.toml", "three.toml"] {
        let (status, said) = init(&folder.path().join(name), &["--guest", &guest, "--force"]);
        assert_eq!(status, Some(2), "{said}");
    }
    assert_eq!(read(), second);
    let left: Vec<_> = fs::read_dir(folder.path()).expect("a folder").collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

//! Outputs of the tool, and their readers.
#![allow(missing_docs)]

use std::io;
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

//! `logs` and `console`, with an EL2 behind a socket where the daemon's would be.

mod board;

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bulkhead_abi::control::{Phase, right};
use bulkhead_fake_el2::Fake;

use board::{Board, command};

impl Board {
    fn command(&self, words: &str) -> Command {
        command(&self.folder.path().join("sock"), words)
    }

    /// Has a VM print something.
    fn print(&self, vm: u16, text: &[u8]) {
        let served = self.served.lock().expect("a list");
        served.last().expect("a connection").print(vm, text);
    }

    fn wait_for(&self, what: impl Fn(&Fake) -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !what(&self.fake.lock().expect("a board")) {
            assert!(Instant::now() < end, "it does not come");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn printed(text: &[u8]) -> Fake {
    let mut fake = Fake::default();
    fake.vms[1].printed = text.to_vec();
    fake
}

#[test]
fn logs_are_the_bytes_that_are_kept() {
    let board = Board::start(printed(b"[    0.0] Linux\r\n\x1b[1mlogin:\x1b[0m "));
    assert_eq!(
        board.text("logs linux"),
        "[    0.0] Linux\r\n\x1b[1mlogin:\x1b[0m "
    );
    assert_eq!(board.text("logs linux --lines=1"), "\x1b[1mlogin:\x1b[0m ");
    assert_eq!(board.text("logs rt"), "");
    let long: String = (0..100).map(|n| format!("line {n}\n")).collect();
    board.fake.lock().expect("a board").vms[1].printed = long.repeat(3).into_bytes();
    let text = board.text("logs linux");
    assert!(
        text.len() == 1000 && text.ends_with("line 98\nline 99\n"),
        "{text}"
    );
}

#[test]
fn as_json_each_line_is_a_document() {
    let board = Board::start(printed(b"one\r\ntwo \xff\nthr"));
    let text = board.text("logs linux --json");
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let words: Vec<&str> = lines
        .iter()
        .map(|line| line["line"].as_str().expect("text"))
        .collect();
    assert_eq!(words, ["one", "two \u{fffd}", "thr"]);
    assert!(lines.iter().all(|line| line["vm"] == "linux"));
}

#[test]
fn logs_that_follow_go_on_with_what_comes() {
    let board = Board::start(printed(b"one\n"));
    let mut child = board
        .command("logs linux -f")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut output = child.stdout.take().expect("a pipe");
    let mut bytes = [0; 100];
    let mut text = Vec::new();
    for more in ["two\n", "three\n"] {
        while !text.ends_with(b"\n") {
            let read = output.read(&mut bytes).expect("it prints");
            text.extend(&bytes[..read]);
        }
        // It has to listen before there is more: EL2 says so to who has read all.
        board.wait_for(|fake| fake.vms[1].is_heard);
        board.print(1, more.as_bytes());
        while !text.ends_with(more.as_bytes()) {
            let read = output.read(&mut bytes).expect("it prints");
            assert_ne!(read, 0, "it ended");
            text.extend(&bytes[..read]);
        }
    }
    assert_eq!(text, b"one\ntwo\nthree\n");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

#[test]
fn a_pipe_is_typed_and_answered() {
    let board = Board::start(printed(b"old\n"));
    let mut command = board.command("console linux");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut input = child.stdin.take().expect("a pipe");
    let line = "cat /proc/version; echo more than one request\n";
    input.write_all(line.as_bytes()).expect("it reads");
    board.wait_for(|fake| fake.vms[1].typed == line.as_bytes());
    board.print(1, b"Linux version 6\n");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    assert_eq!(
        output.stdout, b"Linux version 6\n",
        "nothing that was before"
    );
}

#[test]
fn what_a_vm_has_no_room_for_waits() {
    let mut fake = printed(b"");
    fake.vms[1].takes = 5;
    let board = Board::start(fake);
    let mut command = board.command("console linux");
    command.stdin(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(b"0123456789")
        .expect("it reads");
    board.wait_for(|fake| fake.vms[1].typed == b"01234");
    thread::sleep(Duration::from_millis(50));
    board.fake.lock().expect("a board").vms[1].takes = 100;
    assert!(child.wait().expect("it ends").success());
    board.wait_for(|fake| fake.vms[1].typed == b"0123456789");
}

#[test]
fn what_is_refused_says_what_is_missing() {
    let mut fake = printed(b"x");
    fake.vms[1].rights = right::LIST | right::LOGS;
    fake.vms[2].rights = right::LIST;
    fake.vms[2].phase = Phase::Down;
    let board = Board::start(fake);
    assert_eq!(board.text("logs linux"), "x");
    let says = |words: &str, typed: &[u8], expected: &[&str]| {
        let mut command = board.command(words);
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        // One that is refused at once does not read.
        let _ = child.stdin.take().expect("a pipe").write_all(typed);
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words}: {text}");
        for word in expected {
            assert!(text.contains(word), "{words}: {text}");
        }
    };
    says(
        "console linux",
        b"x",
        &[
            "cannot type on the console of linux",
            "\"console\" for linux",
        ],
    );
    says(
        "logs rt",
        b"",
        &["cannot read the console of rt", "\"logs\" or \"console\""],
    );
    board.fake.lock().expect("a board").vms[2].rights = right::LIST | right::CONSOLE;
    says(
        "console rt",
        b"x",
        &["it is stopped", "bulkheadctl start rt"],
    );
    board.fake.lock().expect("a board").vms[3].rights = right::LIST | right::CONSOLE;
    says("console control", b"x", &["promised"]);
}

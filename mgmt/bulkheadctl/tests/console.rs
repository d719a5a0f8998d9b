//! `logs` and `console`, with an EL2 behind a socket where the daemon's would be, and keys of a terminal.

mod board;
mod terminal;

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bulkhead_abi::control::{Phase, right};
use bulkhead_fake_el2::Fake;

use board::{Board, command};
use terminal::{Terminal, end, wait};

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

#[test]
fn a_console_takes_each_key_and_leaves_the_terminal_as_it_was() {
    let mut fake = Fake::default();
    let lines: String = (0..30).map(|n| format!("line {n}\r\n")).collect();
    fake.vms[1].printed = (lines + "login: ").into_bytes();
    let board = Board::start(fake);
    let typed = |expected: &[u8]| {
        wait(|| board.fake.lock().expect("a board").vms[1].typed == expected);
    };
    let terminal = Terminal::open().expect("a terminal");
    let before = terminal.settings();
    let child = terminal.run(&board, "console linux");
    terminal.wait_for("line 29\r\nlogin: ");
    assert!(
        !String::from_utf8_lossy(&terminal.shown.lock().expect("a screen")).contains("line 9\r")
    );
    assert_ne!(terminal.settings(), before, "keys go through");
    // Without a line end, and what else a terminal would keep to itself.
    terminal.press(b"ro");
    typed(b"ro");
    terminal.press(b"\x03\x04\r");
    typed(b"ro\x03\x04\r");
    let served = board.served.lock().expect("a list");
    let el2 = served.last().expect("a connection");
    el2.print(1, b"\r\nPassword: ");
    terminal.wait_for("login: \r\nPassword: ");
    // Its end is told, and what is typed then is lost with a word.
    el2.board().vms[1].phase = Phase::Down;
    el2.tell(1);
    terminal.wait_for("[linux: stopped, life 1]");
    terminal.press(b"x");
    terminal.wait_for("it is stopped; what was typed is lost");
    drop(served);
    terminal.press(b"more\x1d");
    assert_eq!(end(child), Some(0));
    assert_eq!(terminal.settings(), before);
}

#[test]
fn q_ends_top() {
    let board = Board::start(Fake::default());
    for key in [b"q", b"\x03"] {
        let terminal = Terminal::open().expect("a terminal");
        let before = terminal.settings();
        let child = terminal.run(&board, "top --interval=100ms");
        terminal.wait_for("EXITS/s");
        terminal.press(b"x");
        terminal.press(key);
        assert_eq!(end(child), Some(0));
        assert_eq!(terminal.settings(), before);
    }
}

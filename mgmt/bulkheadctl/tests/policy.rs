//! `bulkheadctl policy`, with an EL2 behind a socket where the daemon's would be.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use bulkhead_abi::control::{Kind, TRIAL, right};
use bulkhead_fake_el2::{Demand, El2, Fake};
use serde_json::Value;
use tempfile::TempDir;

const BUSY: &str = "
interval = \"100ms\"

[rule.busy]
vms = [\"linux\"]
weight = { from = 100, to = 300, step = 100 }
when = { measure = \"waiting\", above = \"20%\", for = \"200ms\" }
back = { measure = \"cpu\", below = \"10%\", for = \"200ms\" }
pause = \"100ms\"
";

/// A folder with a policy and a board.
struct Bench {
    folder: TempDir,
    fake: Arc<Mutex<Fake>>,
}

impl Bench {
    fn new(policy: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("policy.toml"), policy).expect("a file");
        let mut fake = Fake::default();
        fake.vms[1].demand = Some(Demand {
            wants: 1000,
            rivals: 100,
            ..Demand::default()
        });
        let fake = Arc::new(Mutex::new(fake));
        let listener = UnixListener::bind(folder.path().join("control.sock")).expect("a socket");
        let board = Arc::clone(&fake);
        thread::spawn(move || {
            let mut served = Vec::new();
            for stream in listener.incoming().flatten() {
                served.push(El2::serve(Arc::clone(&board), stream));
            }
        });
        Self { folder, fake }
    }

    fn ctl(&self, words: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_bulkheadctl"))
            .current_dir(self.folder.path())
            .args(["--socket", "control.sock", "--port", "/nonexistent/port"])
            .args(words.split(' '))
            .output()
            .expect("it runs")
    }

    fn text(&self, words: &str) -> String {
        let output = self.ctl(words);
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && why.is_empty(), "{words}: {why}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

#[test]
fn a_sound_policy_is_told_rule_by_rule() {
    let bench = Bench::new(BUSY);
    assert_eq!(
        bench.text("policy check policy.toml"),
        "busy: weight of linux from 100 to 300 when waiting above 20.0% for 200ms; back when cpu below 10.0% for 200ms; 100ms between moves\n\
         policy.toml: sound, and the board allows it\n"
    );
    let document: Value =
        serde_json::from_str(&bench.text("policy check policy.toml --json")).expect("JSON");
    assert_eq!(document["ok"], true);
}

#[test]
fn mistakes_of_the_file_and_of_the_board_have_places_and_a_status() {
    let bench = Bench::new(&BUSY.replace("weight", "wait"));
    let output = bench.ctl("policy check --offline policy.toml");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.starts_with("error: policy.toml:4:7: "), "{said}");

    let bench = Bench::new(BUSY);
    bench.fake.lock().expect("a board").vms[1].rights = right::LIST | right::STATS;
    let output = bench.ctl("policy check policy.toml --json");
    assert_eq!(output.status.code(), Some(2));
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let finding = &document["findings"][0];
    assert_eq!(
        (&document["ok"], &finding["code"]),
        (&Value::from(false), &Value::from("policy::rights"))
    );
    assert_eq!(
        (
            &finding["places"][0]["line"],
            &finding["places"][0]["column"]
        ),
        (&Value::from(5), &Value::from(8))
    );
    assert!(
        finding["remedy"]
            .as_str()
            .is_some_and(|help| help.contains("\"limits\""))
    );
    bench.text("policy check --offline policy.toml");

    fs::remove_file(bench.folder.path().join("control.sock")).expect("removed");
    let output = bench.ctl("policy check policy.toml");
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--offline"));
}

#[test]
fn a_dry_run_says_what_it_would_move() {
    let bench = Bench::new(BUSY);
    let text = bench.text("policy dry-run policy.toml --time=2s");
    let line = text
        .lines()
        .find(|line| line.contains("100 -> 200"))
        .expect("said");
    assert!(
        line.contains(
            "  linux: weight 100 -> 200; rule=busy outcome=would measure=waiting value=50.0%"
        ),
        "{line}"
    );
    let fake = bench.fake.lock().expect("a board");
    let asked = fake.requests.iter();
    let flags: Vec<u32> = asked
        .filter(|request| request.kind == Kind::Weight as u16)
        .map(|request| request.flags)
        .collect();
    assert!(!flags.is_empty() && flags.iter().all(|flags| *flags == TRIAL));
    assert_eq!(fake.vms[1].weight, 100);
}

#[test]
fn what_the_daemon_follows_is_shown() {
    let bench = Bench::new(BUSY);
    let output = bench.ctl("policy");
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("nobody follows a policy"));
    let listener = UnixListener::bind(bench.folder.path().join("policy.sock")).expect("a socket");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let condition =
                |text: &str, now: &str| serde_json::json!({ "text": text, "measured_text": now });
            let document = serde_json::json!({
                "file": "p.toml", "state": "works", "interval_s": 0.5, "dry_run": false, "findings": [],
                "rules": [{
                    "rule": "busy", "vm": "linux", "moves": "weight", "now_text": "200", "from_text": "100",
                    "to_text": "300", "when": condition("waiting above 20.0% for 1s", "33.3%"),
                    "back": condition("cpu below 5.0% for 1s", "66.7%"), "state": "pauses",
                }],
                "decisions": [{ "time": 3661.5, "text": "linux: weight 100 -> 200; rule=busy" }],
            });
            stream
                .write_all(document.to_string().as_bytes())
                .expect("it listens");
        }
    });
    let text = bench.text("policy");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "policy p.toml: works, a look each 500ms");
    assert!(
        lines[2].starts_with(
            "busy  linux  weight  200   100  300  waiting above 20.0% for 1s, now 33.3%  cpu below"
        ),
        "{text}"
    );
    assert_eq!(
        lines[3],
        "01:01:01.500  linux: weight 100 -> 200; rule=busy"
    );
    assert_eq!(bench.text("policy show"), text);
}

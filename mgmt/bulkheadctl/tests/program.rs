//! The program itself, with an EL2 behind a socket where the daemon's would be.

mod board;

use std::process::Command;
use std::thread;
use std::time::Duration;

use bulkhead_abi::control::{EVENT_LIMITS, Message, Phase, VERSION, right};
use bulkhead_fake_el2::Fake;
use serde_json::Value;

use board::{Board, ctl};

impl Board {
    fn json(&self, words: &str) -> Value {
        let text = self.text(&format!("--json {words}"));
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("{words}: {why}: {text}"))
    }
}

#[test]
fn list_shows_each_vm_with_its_state_and_rights() {
    let mut fake = Fake::default();
    fake.vms[2].phase = Phase::Paused;
    fake.vms[3].rights = 0;
    let board = Board::start(fake);
    let text = board.text("list");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "one is not to be seen: {text}");
    assert!(
        lines[1].starts_with("manager (this)  running") && lines[1].ends_with("list,stats"),
        "{text}"
    );
    assert!(
        lines[3].contains("paused") && lines[3].ends_with("all"),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "no colours but for a terminal");
    let list = board.json("list");
    assert_eq!(
        (&list["ok"], &list["pcpus"]),
        (&Value::from(true), &Value::from(4))
    );
    assert_eq!(list["vms"][2]["phase"], "paused");
    assert_eq!(
        list["vms"][1]["rights"].as_array().map(Vec::len),
        Some(right::ALL.len())
    );
}

#[test]
fn a_vm_is_stopped_started_and_paused_by_its_name() {
    let board = Board::start(Fake::default());
    assert_eq!(
        board.text("stop linux --force --wait"),
        "linux: stopped, life 1: ordered to stop\n"
    );
    assert_eq!(board.text("stop linux"), "linux: already stopped, life 1\n");
    assert_eq!(
        board.text("start linux --wait=3"),
        "linux: running, life 2\n"
    );
    assert_eq!(board.text("pause linux"), "linux: paused, life 2\n");
    assert_eq!(board.json("resume linux")["vm"]["phase"], "running");
    let done = board.json("restart linux --wait");
    assert_eq!(
        (&done["changed"], &done["vm"]["lives"]),
        (&Value::from(true), &Value::from(3))
    );
}

#[test]
fn a_stop_asks_and_says_what_comes_of_it() {
    let mut fake = Fake::default();
    fake.vms[2].obeys = false;
    fake.vms[3].stop_ms = 0;
    let board = Board::start(fake);
    let done = board.text("stop linux --wait");
    assert_eq!(done, "linux: stopped, life 1: power off\n");
    assert_eq!(board.text("stop linux"), "linux: already stopped, life 1\n");
    // One that does not obey is asked at first, and then it is not there any more.
    let asked = board.text("stop rt");
    assert_eq!(asked, "rt: asked, life 1; ended in 60s if it does not\n");
    let done = board.json("stop rt --wait");
    let vm = &done["vm"];
    assert_eq!(
        (&vm["phase"], &done["changed"]),
        (&"stopped".into(), &false.into())
    );
    assert_eq!(vm["end"], "asked to stop, and did not in time");
    assert_eq!(
        (&vm["stop"], &vm["stop_timeout_ms"]),
        (&"power-key".into(), &60_000.into())
    );
    // One that cannot be asked is not ended behind the back of who asked.
    let refused = board.ctl("stop control");
    assert_eq!(refused.status.code(), Some(1));
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        why.contains("does not say how it is asked") && why.contains("--force"),
        "{why}"
    );
    assert_eq!(board.json("list")["vms"][3]["phase"], "running");
    assert_eq!(board.json("list")["vms"][3]["stop"], Value::Null);
    assert_eq!(board.json("stop control --force")["vm"]["phase"], "stopped");
    board.fake.lock().expect("a board").vms[1].phase = Phase::Paused;
    let paused = board.ctl("stop linux");
    let why = String::from_utf8_lossy(&paused.stderr).into_owned();
    assert!(
        why.contains("it is paused") && why.contains("bulkheadctl resume linux"),
        "{why}"
    );
}

#[test]
fn what_el2_refuses_is_a_failure_with_a_status_and_a_shape() {
    let board = Board::start(Fake::default());
    let output = board.ctl("stop manager");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.starts_with("error: cannot stop manager\n  | ") && text.contains("\n  = help: "),
        "{text}"
    );
    let output = board.ctl("stop nobody --json");
    assert_eq!(output.status.code(), Some(2));
    let failure: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&failure["ok"], &failure["findings"][0]["code"]),
        (&Value::from(false), &Value::from("control::no-vm"))
    );
    assert!(failure["findings"][0]["remedy"].is_string() && output.stderr.is_empty());
    assert_eq!(board.ctl("weights linux many").status.code(), Some(2));
    let nobody = ctl(
        &board.folder.path().join("none"),
        "list --port /nonexistent/port",
    );
    assert_eq!(nobody.status.code(), Some(3));
}

#[test]
fn limits_are_set_as_they_are_written() {
    let board = Board::start(Fake::default());
    assert_eq!(board.text("weights linux 250"), "linux: weight 250\n");
    assert_eq!(board.text("caps linux 3ms/20ms"), "linux: cap 3ms/20ms\n");
    assert_eq!(board.text("pools linux 1"), "linux: pool 1\n");
    assert_eq!(board.json("budgets rt 500us/2ms")["budget_ns"], 500_000);
    {
        let fake = board.fake.lock().expect("a board");
        let [linux, rt] = [&fake.vms[1], &fake.vms[2]];
        assert_eq!(
            (linux.weight, linux.limits, linux.pool),
            (250, [3_000_000, 20_000_000], 0b10)
        );
        assert_eq!(rt.limits, [500_000, 2_000_000]);
    }
    let stats = board.json("stats linux");
    assert_eq!(stats["vms"][0]["vcpus"][1]["pool"], serde_json::json!([1]));
    assert_eq!(board.text("caps linux none"), "linux: no cap\n");
    assert_eq!(
        board.text("weights --dry-run linux 9"),
        "linux: could have weight 9\n"
    );
    assert_eq!(board.json("caps -n linux 1ms/20ms")["dry_run"], true);
    assert_eq!(board.ctl("weights -n linux 1001").status.code(), Some(1));
    {
        let fake = board.fake.lock().expect("a board");
        let linux = &fake.vms[1];
        assert_eq!((linux.weight, linux.limits[0]), (250, linux.limits[1]));
    }
    let refused = board.ctl("weights rt 7");
    assert_eq!(refused.status.code(), Some(1));
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("it has a budget"), "{refused}");
}

#[test]
fn stats_add_up_and_say_what_is_not_told() {
    let board = Board::start(Fake::default());
    let stats = board.json("stats");
    let vms = stats["vms"].as_array().expect("VMs");
    assert_eq!(vms.len(), 4);
    let vcpu = &vms[1]["vcpus"][0];
    let classes = vcpu["exits"]["classes"].as_object().expect("classes");
    let sum: u64 = classes
        .values()
        .filter_map(|class| class["count"].as_u64())
        .sum();
    assert_eq!(Some(sum), vcpu["exits"]["total"].as_u64());
    assert_eq!(vcpu["waits"].as_array().map(Vec::len), Some(40));
    assert_eq!(vcpu["waits"][0]["below_ns"], 16);
    let control = &vms[3]["vcpus"][0];
    assert_eq!(
        (&control["exits"], &control["time"]),
        (&Value::Null, &Value::Null)
    );
    assert!(control["exits_untold"].is_string());
    let text = board.text("stats");
    assert!(text.lines().all(|line| line.len() < 80), "{text}");
    assert!(text.contains("promised not to be interrupted"), "{text}");
}

#[test]
fn top_fits_a_terminal_and_shows_shares() {
    let board = Board::start(Fake::default());
    let text = board.text("top --once --interval=100ms");
    assert!(text.lines().all(|line| line.len() < 80), "{text}");
    assert!(
        text.contains("50.0%") && text.contains("EXITS/s BY CLASS") && !text.contains('\x1b'),
        "{text}"
    );
    let top = board.json("top --once --interval=100ms");
    let vcpus = top["vcpus"].as_array().expect("vCPUs");
    assert_eq!(vcpus.len(), 5);
    assert_eq!(
        (&vcpus[1]["share"], &vcpus[1]["waiting"]),
        (&Value::from(0.5), &Value::from(0.25))
    );
    assert_eq!(vcpus[4]["share"], Value::Null);
}

#[test]
fn top_shows_lives_crashes_and_what_devices_take() {
    let board = Board::start(Fake::default());
    let line = |text: &str| {
        let lives = text.split("LAST END").nth(1).expect("the second table");
        let line = lives.lines().find(|line| line.starts_with("linux "));
        line.expect("a line of the VM").to_owned()
    };
    let before = line(&board.text("top --once --interval=100ms"));
    assert!(!before.contains("crash"), "{before}");
    board.fake.lock().expect("a board").crash(1, 2);
    let text = board.text("top --once --interval=100ms");
    assert!(text.lines().all(|line| line.len() < 80), "{text}");
    let after = line(&text);
    assert!(after.ends_with("crash, crash 2"), "{after}");
    let listed = board.json("list")["vms"][1].clone();
    let top = board.json("top --once --interval=100ms");
    let vms = top["vms"].as_array().expect("VMs");
    let linux = vms.iter().find(|vm| vm["name"] == "linux").expect("it");
    for key in ["name", "phase", "lives", "restarts", "end", "crash"] {
        assert_eq!(linux[key], listed[key], "{key}");
    }
    assert_eq!(linux["crash"]["life"], 2);
    let columns: Vec<&str> = after.split_whitespace().collect();
    assert_eq!(columns[1], listed["lives"].to_string(), "{after}");
    assert!(linux["service"]["longest_ns"].as_u64() > Some(0), "{linux}");
    assert!(linux["service"]["share"].is_f64() && linux["service"]["slices_per_second"].is_f64());
}

#[test]
fn events_are_followed_from_how_vms_stand() {
    let board = Board::start(Fake::default());
    assert_eq!(board.text("events").lines().count(), 4);
    let socket = board.folder.path().join("sock");
    let mut follower = Command::new(env!("CARGO_BIN_EXE_bulkheadctl"))
        .arg("--socket")
        .arg(&socket)
        .args(["--json", "events", "--follow"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(
        follower.stdout.take().expect("a pipe"),
    ));
    let mut next = || -> Value {
        let line = lines.next().expect("a line").expect("text");
        serde_json::from_str(&line).expect("JSON")
    };
    for name in ["manager", "linux", "rt", "control"] {
        let event = next();
        assert_eq!(
            (&event["event"], &event["vm"]["name"]),
            (&Value::from("state"), &Value::from(name))
        );
    }
    {
        board.fake.lock().expect("a board").vms[1].phase = Phase::Ended;
        let served = board.served.lock().expect("a list");
        let el2 = served.last().expect("the follower");
        el2.tell(1);
        el2.say(&Message {
            version: VERSION,
            kind: EVENT_LIMITS,
            vm: 2,
            ..Message::default()
        });
    }
    let event = next();
    assert_eq!(event["vm"]["phase"], "ended");
    let event = next();
    assert_eq!(
        (&event["event"], &event["vm"]["name"]),
        (&Value::from("limits"), &Value::from("rt"))
    );
    // The daemon starts anew, and a VM has changed meanwhile.
    board.fake.lock().expect("a board").vms[1].phase = Phase::Down;
    board
        .served
        .lock()
        .expect("a list")
        .pop()
        .expect("the follower")
        .unplug();
    let event = next();
    assert_eq!(
        (&event["vm"]["name"], &event["vm"]["phase"]),
        (&Value::from("linux"), &Value::from("stopped"))
    );
    follower.kill().expect("it runs");
    follower.wait().expect("it ends");
}

#[test]
fn the_report_of_a_crash_is_shown_whole() {
    let board = Board::start(Fake::default());
    assert_eq!(board.text("report linux"), "linux: it has not crashed\n");
    assert_eq!(board.json("list")["vms"][1]["crash"], Value::Null);
    board.fake.lock().expect("a board").crash(1, 2);
    let text = board.text("report linux");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..2],
        [
            "linux: crash of life 2, vCPU 1: access to an address that the VM does not have",
            "pc=0x40000040 class=0x24 syndrome=0x92000046 address=0xdead0000"
        ]
        .map(|line| line.replace(
            "access to an address that the VM does not have",
            "access to a device by an instruction without syndrome"
        )),
        "{text}"
    );
    assert!(lines[2].starts_with("1.000 s"), "{text}");
    assert_eq!(lines.len(), 3 + 16);
    assert!(
        lines[3].starts_with("hvc ") && lines[3].contains("pc=0x100f"),
        "{text}"
    );
    let report = &board.json("report linux")["report"];
    assert_eq!(
        (&report["life"], &report["at_s"]),
        (&Value::from(2), &Value::from(1.0))
    );
    assert_eq!(report["last"][15]["pc"], 0x1000);
    assert_eq!(board.json("list")["vms"][1]["crash"]["pc"], 0x4000_0040);
    let events = board.text("events");
    assert!(
        events.contains("crash of life 2: access to a device"),
        "{events}"
    );
    board.fake.lock().expect("a board").vms[1].rights = 0;
    assert_eq!(board.ctl("report linux").status.code(), Some(2));
}

#[test]
fn a_dump_is_there_whole_or_not_at_all() {
    let mut fake = Fake::default();
    fake.vms[1].phase = Phase::Down;
    fake.vms[1].ram = vec![(0x4000_0000, vec![7; 0x3000])];
    fake.vms[3].phase = Phase::Paused;
    fake.vms[3].ram = vec![(0x4000_0000, vec![8; 0x1000])];
    let board = Board::start(fake);
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let files = || std::fs::read_dir(folder.path()).expect("a folder").count();
    let core = path("core");
    // What is left of one that was broken off, which others could read.
    std::fs::write(path("core.partial"), "old").expect("written");
    let text = board.text(&format!("dump linux -o {}", core.display()));
    assert!(
        text.starts_with("linux: 12 KiB of life 1, registers of 2 of 2 vCPUs, in "),
        "{text}"
    );
    let bytes = std::fs::read(&core).expect("a file");
    assert!(bytes.starts_with(b"\x7fELF") && bytes.len() > 0x3000);
    let mode = std::fs::metadata(&core).expect("a file").permissions();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777,
        0o600
    );
    assert_eq!(files(), 1);
    // A paused control loop is not asked for its registers.
    let other = path("other");
    let dumped = board.json(&format!("dump control -o {}", other.display()));
    assert_eq!(dumped["vcpus"], serde_json::json!([]));
    assert!(dumped["untold"].is_string());
    std::fs::remove_file(&other).expect("it was there");
    let running = board.ctl(&format!("dump rt -o {}", other.display()));
    assert_eq!(running.status.code(), Some(1));
    let why = String::from_utf8_lossy(&running.stderr).into_owned();
    assert!(
        why.contains("cannot dump rt") && why.contains("running"),
        "{why}"
    );
    board.fake.lock().expect("a board").vms[1].rights &= !right::DUMP;
    let foreign = board.ctl(&format!("dump linux -o {}", other.display()));
    let why = String::from_utf8_lossy(&foreign.stderr).into_owned();
    assert!(why.contains("add \"dump\" for linux"), "{why}");
    assert_eq!(files(), 1);
    let nowhere = board.ctl("dump linux -o /nonexistent/core");
    assert_eq!(nowhere.status.code(), Some(3));
}

#[test]
fn doctor_asks_each_pcpu_and_says_what_is_wrong() {
    let board = Board::start(Fake::default());
    let found = board.json("doctor");
    let list = found["found"].as_array().expect("a list");
    let state = |what: &str| {
        let one = list.iter().find(|one| one["what"] == what);
        one.map(|one| one["state"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(state("daemon").as_deref(), Some("good"));
    assert_eq!(state("pCPU 0").as_deref(), Some("good"));
    assert_eq!(state("pCPU 2").as_deref(), Some("absent"));
    assert_eq!(state("pCPU 3").as_deref(), Some("absent"));
    board.fake.lock().expect("a board").manner.version = 9;
    let output = board.ctl("doctor");
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("bad     EL2") && text.contains("version 9"),
        "{text}"
    );
}

#[test]
fn a_reader_that_stops_is_no_failure_to_talk_about() {
    let board = Board::start(Fake::default());
    let socket = board.folder.path().join("sock");
    let mut child = Command::new(env!("CARGO_BIN_EXE_bulkheadctl"))
        .arg("--socket")
        .arg(&socket)
        .args(["top", "--interval=100ms"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it runs");
    drop(child.stdout.take());
    thread::sleep(Duration::from_millis(10));
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), output.stderr.len()), (Some(141), 0));
}

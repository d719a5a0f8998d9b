//! The daemon with a policy, between a board and those who look on.

mod daemon;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bulkhead_abi::control::{Kind, Phase, Request};
use bulkhead_fake_el2::{Demand, El2, Fake};
use bulkheadd::cli::PolicyFile;
use bulkheadd::journal::Journal;
use bulkheadd::policy::{Keeper, Shown, read, show};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use daemon::{Daemon, Log};

const BUSY: &str = "
interval = \"100ms\"

[rule.busy]
vms = [\"linux\"]
weight = { from = 100, to = 300, step = 100 }
when = { measure = \"waiting\", above = \"20%\", for = \"200ms\" }
back = { measure = \"cpu\", below = \"10%\", for = \"200ms\" }
pause = \"100ms\"
";

/// A budget of `rt` that has to grow and may not.
const ENOUGH: &str = "
interval = \"100ms\"

[rule.enough]
vms = [\"rt\"]
budget = { from = \"2ms/10ms\", to = \"8ms/10ms\", step = \"2ms\" }
when = { measure = \"overruns\", above = 1, for = \"100ms\" }
back = { measure = \"used\", below = \"1%\" }
pause = \"0s\"
";

/// A daemon with a policy.
struct Follows {
    daemon: Daemon,
    file: PathBuf,
    again: UnixStream,
    shown: Arc<Shown>,
    log: Log,
}

impl Follows {
    fn start(source: &str, is_dry: bool) -> Self {
        let daemon = Daemon::start();
        let file = daemon.folder.path().join("policy.toml");
        fs::write(&file, source).expect("a file");
        let named = PolicyFile {
            path: file.clone(),
            is_named: true,
        };
        let policy = read(&named).unwrap_or_else(|failures| panic!("{}", failures[0]));
        let (again, told) = UnixStream::pair().expect("a pair of sockets");
        let shown = Arc::new(Shown::default());
        let log = Log::default();
        let (control, to, to_show) = (daemon.socket(), log.clone(), Arc::clone(&shown));
        thread::spawn(move || {
            let journal = Journal::new(to);
            // It ends with the test.
            let _ = Keeper::new((named, policy), is_dry, &control, journal, told, &to_show).run();
        });
        Self {
            daemon,
            file,
            again,
            shown,
            log,
        }
    }

    fn reload(&mut self, source: &str) {
        fs::write(&self.file, source).expect("a file");
        self.again.write_all(b"x").expect("it listens");
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&self.log.0.lock().expect("a log")).into_owned()
    }

    fn wait_for(&self, what: &str) {
        let end = Instant::now() + Duration::from_secs(20);
        while !self.said().contains(what) {
            assert!(Instant::now() < end, "{what}: {}", self.said());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for some more looks.
    fn look_on(&self, el2: &El2) {
        let asked = |el2: &El2| {
            let board = el2.board();
            let times = board.requests.iter();
            times
                .filter(|request| request.kind == Kind::Time as u16)
                .count()
        };
        let before = asked(el2);
        let end = Instant::now() + Duration::from_secs(20);
        while asked(el2) < before + 20 {
            assert!(Instant::now() < end, "{}", self.said());
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn document(&self) -> Value {
        self.shown.document()
    }
}

/// A board on which `linux` wants this much of its CPU beside others of weight 100.
fn board(wants: u64) -> Fake {
    let mut fake = Fake::default();
    fake.vms[1].demand = Some(Demand {
        wants,
        rivals: 100,
        ..Demand::default()
    });
    fake
}

fn want(el2: &El2, wants: u64) {
    if let Some(demand) = &mut el2.board().vms[1].demand {
        demand.wants = wants;
    }
}

fn weight(el2: &El2) -> u64 {
    el2.board().vms[1].weight
}

fn limits(el2: &El2) -> usize {
    let kinds = [Kind::Weight, Kind::Cap, Kind::Budget, Kind::Pool].map(|kind| kind as u16);
    let board = el2.board();
    let requests = board.requests.iter();
    requests
        .filter(|request| kinds.contains(&request.kind) && request.flags == 0)
        .count()
}

#[test]
fn a_load_is_followed_up_and_down_and_each_move_is_said_shown_and_counted() {
    let follows = Follows::start(BUSY, false);
    let el2 = follows.daemon.plug(board(1000));
    follows.wait_for("<5>linux: weight 200 -> 300; ");
    let said = follows.said();
    let first = said
        .lines()
        .find(|line| line.contains("100 -> 200"))
        .expect("said");
    assert!(
        first.starts_with(
            "<5>linux: weight 100 -> 200; rule=busy outcome=done measure=waiting value=50.0% above=20.0% for="
        ),
        "{first}"
    );
    follows.look_on(&el2);
    assert_eq!((weight(&el2), limits(&el2)), (300, 2), "the bound");
    assert_eq!(follows.document()["rules"][0]["state"], "is at its bound");
    want(&el2, 20);
    follows.wait_for(
        "weight 200 -> 100; rule=busy outcome=done measure=cpu value=2.0% below=10.0% for=",
    );
    follows.look_on(&el2);
    assert_eq!((weight(&el2), limits(&el2)), (100, 4));

    let document = follows.document();
    assert_eq!(document["state"], "works");
    let rule = &document["rules"][0];
    assert_eq!(
        (&rule["vm"], &rule["now"]),
        (&Value::from("linux"), &Value::from(100))
    );
    assert_eq!(rule["back"]["measured_text"], "2.0%");
    let decisions = document["decisions"].as_array().expect("a list");
    let to: Vec<u64> = decisions
        .iter()
        .filter_map(|one| one["to"].as_u64())
        .collect();
    assert_eq!(to, [200, 300, 200, 100]);
    // What is not measured is not asked for.
    let board = el2.board();
    let mut asked = board.requests.iter();
    assert!(asked.all(|request| request.kind != Kind::Exits as u16));
}

#[test]
fn metrics_and_the_socket_tell_the_same() {
    let follows = Follows::start(BUSY, false);
    let _el2 = follows.daemon.plug(board(1000));
    follows.wait_for("weight 200 -> 300");
    let at = |name: &str| follows.daemon.folder.path().join(name);
    let metrics = bulkheadd::listen(&at("metrics.sock")).expect("a socket");
    let (control, shown) = (follows.daemon.socket(), Arc::clone(&follows.shown));
    thread::spawn(move || {
        bulkheadd::metrics::serve(&metrics, &control, &|more| shown.add_to(more))
    });
    let mut stream = UnixStream::connect(at("metrics.sock")).expect("it listens");
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
        .expect("it listens");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    for line in [
        "bulkhead_policy_decisions_total{rule=\"busy\",vm=\"linux\",outcome=\"done\"} 2",
        "bulkhead_policy_value{rule=\"busy\",vm=\"linux\",moves=\"weight\"} 300",
        "bulkhead_policy_reloads_total{taken=\"yes\"} 0",
        "# TYPE bulkhead_policy_measure gauge",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
    assert!(
        text.contains("bulkhead_policy_measure{rule=\"busy\",vm=\"linux\",condition=\"back\",measure=\"cpu\"} 0."),
        "{text}"
    );
    let listener = bulkheadd::listen(&at("policy.sock")).expect("a socket");
    let shown = Arc::clone(&follows.shown);
    thread::spawn(move || show(&listener, &shown));
    let mut text = String::new();
    let mut stream = UnixStream::connect(at("policy.sock")).expect("it listens");
    stream.read_to_string(&mut text).expect("a document");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(document["rules"][0]["now"], 300);
}

#[test]
fn a_dry_run_says_what_it_would_do_and_does_nothing() {
    let follows = Follows::start(BUSY, true);
    let el2 = follows.daemon.plug(board(1000));
    follows.wait_for("<6>linux: weight 200 -> 300; rule=busy outcome=would ");
    follows.look_on(&el2);
    assert_eq!((weight(&el2), limits(&el2)), (100, 0));
    let said = follows.said();
    assert_eq!(said.matches("outcome=would").count(), 2, "{said}");
    assert!(said.contains("dry run: nothing is moved"), "{said}");
}

/// A board whose server wants more than half of its pCPU, which is all that can be promised.
fn starved() -> Fake {
    let mut fake = Fake::default();
    fake.vms[2].demand = Some(Demand {
        wants: 1000,
        overruns: 1,
        ..Demand::default()
    });
    fake.most = 500_000;
    fake
}

/// EL2 knows what the manager does not see: it is asked, and nothing changes there.
#[test]
fn a_dry_run_is_refused_what_el2_would_refuse() {
    let follows = Follows::start(ENOUGH, true);
    let fake = starved();
    let el2 = follows.daemon.plug(fake);
    follows.wait_for("rt: budget 2ms/10ms -> 4ms/10ms; rule=enough outcome=would measure=overruns");
    follows.wait_for(
        "<4>rt: budget 4ms/10ms -> 6ms/10ms; rule=enough outcome=refused measure=overruns",
    );
    follows.wait_for("refusal=\"the budgets on a pCPU would take more than all of it");
    follows.look_on(&el2);
    assert_eq!(el2.board().vms[2].limits, [2_000_000, 10_000_000]);
}

#[test]
fn a_refusal_is_said_with_its_reason_and_not_asked_for_again() {
    let follows = Follows::start(ENOUGH, false);
    let fake = starved();
    let el2 = follows.daemon.plug(fake);
    follows.wait_for("rt: budget 2ms/10ms -> 4ms/10ms; rule=enough outcome=done measure=overruns");
    follows.wait_for(
        "<4>rt: budget 4ms/10ms -> 6ms/10ms; rule=enough outcome=refused measure=overruns",
    );
    follows.wait_for("refusal=\"the budgets on a pCPU would take more than all of it");
    follows.look_on(&el2);
    let refused = || follows.said().matches("outcome=refused").count();
    assert_eq!((refused(), limits(&el2)), (1, 2));
    assert_eq!(
        follows.document()["rules"][0]["state"],
        "EL2 refuses the next step"
    );
    // Somebody changes what another VM has: it is tried once more, and goes on when it can.
    el2.board().most = 700_000;
    let change = Request {
        kind: Kind::Weight as u16,
        vm: 1,
        values: [200, 0, 0, 0],
        ..Request::default()
    };
    let answer = follows.daemon.client().call(change).expect("answered");
    assert_eq!(answer.status, 0);
    follows.wait_for("4ms/10ms -> 6ms/10ms; rule=enough outcome=done");
    follows.wait_for("6ms/10ms -> 8ms/10ms; rule=enough outcome=refused");
    follows.look_on(&el2);
    assert_eq!((refused(), limits(&el2)), (2, 5));
}

#[test]
fn a_move_of_another_rule_is_one_more_chance_and_its_event_is_none() {
    // Both decide at the same look, the one that is refused behind the other.
    let enough = ENOUGH.replace("interval = \"100ms\"", "");
    let both = format!("{BUSY}{}", enough.replace("100ms", "200ms"));
    let follows = Follows::start(&both, false);
    let mut fake = board(1000);
    fake.vms[2].demand = Some(Demand {
        wants: 1000,
        overruns: 1,
        ..Demand::default()
    });
    fake.most = 300_000;
    let el2 = follows.daemon.plug(fake);
    follows.wait_for("linux: weight 200 -> 300");
    follows.look_on(&el2);
    let refused = follows.said().matches("outcome=refused").count();
    assert_eq!(refused, 2, "{}", follows.said());
}

#[test]
fn a_bad_file_leaves_the_old_policy_at_work_and_a_good_one_takes_its_place() {
    let mut follows = Follows::start(BUSY, false);
    let el2 = follows.daemon.plug(board(20));
    follows.wait_for("<6>rule busy: weight of linux from 100 to 300");
    follows.reload(&BUSY.replace("waiting", "wating"));
    follows.wait_for("<3>  = help: such as `measure");
    follows.wait_for("<3>the new policy is not taken: the old one stays");
    let said = follows.said();
    assert!(
        said.contains("policy.toml:7:20: `measure` cannot be read"),
        "{said}"
    );
    // What the board does not allow is as bad.
    follows.reload(&BUSY.replace("[\"linux\"]", "[\"control\"]"));
    follows.wait_for("control has no weight that could be moved");
    want(&el2, 1000);
    follows.wait_for("linux: weight 200 -> 300");
    follows.reload(&BUSY.replace("300", "500").replace("20%", "15%"));
    follows.wait_for("linux: weight 400 -> 500");
    fs::remove_file(&follows.file).expect("removed");
    follows.again.write_all(b"x").expect("it listens");
    follows.wait_for("cannot read ");
    want(&el2, 20);
    follows.wait_for("linux: weight 200 -> 100");
    let document = follows.document();
    assert_eq!(document["rules"][0]["to"], 500);
}

#[test]
fn what_the_board_does_not_allow_is_refused_with_its_place_before_anything_moves() {
    let source = BUSY.replace("[\"linux\"]", "[\"linux\", \"linus\"]");
    let mut follows = Follows::start(&source, false);
    let el2 = follows.daemon.plug(board(1000));
    follows.wait_for("<3>the board does not allow the policy: nothing is moved");
    let said = follows.said();
    assert!(
        said.contains("policy.toml:5:17: there is no VM `linus` that this VM may see")
            && said.contains("did you mean `linux`?"),
        "{said}"
    );
    thread::sleep(Duration::from_millis(500));
    assert_eq!(limits(&el2), 0);
    let document = follows.document();
    assert_eq!(document["state"], "refused");
    assert_eq!(document["findings"][0]["code"], "policy::vm");
    follows.reload(BUSY);
    follows.wait_for("linux: weight 200 -> 300");
}

#[test]
fn a_port_that_goes_and_comes_and_a_vm_that_stops_are_borne() {
    let follows = Follows::start(BUSY, false);
    let el2 = follows.daemon.plug(board(1000));
    follows.wait_for("weight 200 -> 300");
    let fake = el2.board().clone();
    el2.unplug();
    let end = Instant::now() + Duration::from_secs(20);
    while follows.document()["state"] != "waits for EL2" {
        assert!(Instant::now() < end, "{}", follows.document());
        thread::sleep(Duration::from_millis(5));
    }
    let el2 = follows.daemon.plug(fake);
    el2.board().vms[1].phase = Phase::Down;
    follows.wait_for("<5>linux: weight 300 -> 100; rule=busy outcome=done stopped");
    assert_eq!(el2.board().vms[1].weight, 100);
}

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bulkheadd"));
    command
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[test]
fn the_program_does_not_start_with_a_policy_that_has_mistakes() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.toml");
    fs::write(&file, "interval = 5\n[rule.a]\nvms = 3\n").expect("a file");
    let socket = folder.path().join("control.sock");
    let at = |path: &std::path::Path| path.display().to_string();
    let arguments = [
        "--socket",
        &at(&socket),
        "--metrics",
        "none",
        "--policy",
        &at(&file),
    ];
    let output = program(&arguments).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("policy.toml:1:12: ") && said.contains("policy.toml:3:7: "),
        "{said}"
    );
    assert!(!socket.exists());
    let missing = [
        "--socket",
        &at(&socket),
        "--metrics",
        "none",
        "--policy",
        "/nonexistent",
    ];
    let output = program(&missing).output().expect("it runs");
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn the_program_reads_its_policy_again_by_sighup() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("policy.toml"), BUSY).expect("a file");
    let mut child = program(&["--socket", &at("control.sock"), "--metrics", "none"])
        .args([
            "--port",
            "/nonexistent/port",
            "--policy",
            &at("policy.toml"),
        ])
        .spawn()
        .expect("it runs");
    let document = || -> Option<Value> {
        let mut stream = UnixStream::connect(at("policy.sock")).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    };
    let wait = |what: &dyn Fn(&Value) -> bool| {
        let end = Instant::now() + Duration::from_secs(20);
        while !document().is_some_and(|document| what(&document)) {
            assert!(Instant::now() < end, "{:?}", document());
            thread::sleep(Duration::from_millis(10));
        }
    };
    wait(&|document| document["rules"][0]["to"] == 300);
    fs::write(at("policy.toml"), BUSY.replace("300", "400")).expect("a file");
    kill_process(Pid::from_child(&child), Signal::HUP).expect("it runs");
    wait(&|document| document["rules"][0]["to"] == 400);
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(
        fs::read_dir(folder.path()).expect("a folder").count(),
        1,
        "the file is left"
    );
}

//! The daemon between an EL2 and its clients.

mod daemon;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use bulkhead_abi::call::End;
use bulkhead_abi::control::{EVENT_STATE, Kind, Message, Phase, Request, Status, VERSION};
use bulkhead_control::connection::Trouble;
use bulkhead_control::manager::Manager;
use bulkhead_fake_el2::{El2, Fake, Manner};
use rustix::process::{Pid, Signal, kill_process};
use zerocopy::IntoBytes;

use daemon::Daemon;

fn of(kind: Kind, vm: u16) -> Request {
    Request {
        kind: kind as u16,
        vm,
        ..Request::default()
    }
}

const SOON: Option<Duration> = Some(Duration::from_secs(5));

#[test]
fn two_clients_with_the_same_numbers_get_their_own_answers() {
    let daemon = Daemon::start();
    let _el2 = daemon.plug(Fake {
        manner: Manner {
            chatty: true,
            ..Manner::default()
        },
        ..Fake::default()
    });
    thread::scope(|scope| {
        for vm in 0..4 {
            let mut client = daemon.client();
            scope.spawn(move || {
                for _ in 0..200 {
                    let answer = client.call(of(Kind::Vm, vm)).expect("answered");
                    assert_eq!((answer.vm, answer.kind), (vm, Kind::Vm as u16));
                }
            });
        }
    });
}

#[test]
fn many_requests_at_once_are_all_answered() {
    let daemon = Daemon::start();
    let _el2 = daemon.plug(Fake::default());
    let mut client = daemon.client();
    // More than the daemon takes of a client at a time.
    let numbers: Vec<u32> = (0..100)
        .map(|n| client.send(of(Kind::Vm, n % 4)).expect("sent"))
        .collect();
    for (n, number) in (0..).zip(numbers) {
        assert_eq!(client.answer(number).expect("answered").vm, n % 4);
    }
}

#[test]
fn each_crash_is_logged_once_with_its_last_exits() {
    let daemon = Daemon::start();
    let mut fake = Fake::default();
    fake.crash(1, 1);
    let el2 = daemon.plug(fake);
    let last = "<6>linux: exit 16 before it: hvc              pc=0x1000 ";
    daemon.wait_for(|log| log.contains(last));
    assert!(daemon.logged().contains(
        "<4>linux: crash of life 1, vCPU 1: access to a device by an instruction without syndrome, pc=0x40000040 "
    ));
    el2.tell(1);
    el2.board().crash(1, 2);
    el2.tell(1);
    el2.tell(1);
    daemon.wait_for(|log| log.matches(last).count() == 2);
    let mut client = daemon.client();
    client.call(of(Kind::Hello, 0)).expect("answered");
    let log = daemon.logged();
    assert_eq!(log.matches("linux: crash of life").count(), 2, "{log}");
}

#[test]
fn what_follows_an_answer_goes_with_it() {
    let daemon = Daemon::start();
    let mut fake = Fake::default();
    let ram: Vec<u8> = (0..0x5000u32).map(|n| (n / 7) as u8).collect();
    fake.vms[1].phase = Phase::Down;
    fake.vms[1].ram = vec![(0x4000_0000, ram.clone())];
    let _el2 = daemon.plug(fake);
    let mut manager = Manager::greet(daemon.client()).expect("it answers");
    let vm = manager.find("linux").expect("it is there");
    let path = daemon.folder.path().join("core");
    // Another client asks in between.
    thread::scope(|scope| {
        let mut other = daemon.client();
        scope.spawn(move || {
            for _ in 0..50 {
                assert_eq!(other.call(of(Kind::Vm, 2)).expect("answered").vm, 2);
            }
        });
        let file = fs::File::create(&path).expect("a file");
        manager.dump(&vm, file).expect("it is down");
    });
    let core = fs::read(&path).expect("a file");
    // The file's first range of memory, in its second program header.
    let begin = u64::from_le_bytes(core[64 + 56 + 8..][..8].try_into().expect("a word")) as usize;
    assert_eq!(core[begin..begin + ram.len()], ram);
}

#[test]
fn events_go_to_all_clients_and_to_the_log() {
    let daemon = Daemon::start();
    let el2 = daemon.plug(Fake::default());
    let mut clients = [daemon.client(), daemon.client()];
    for client in &mut clients {
        client.call(of(Kind::Hello, 0)).expect("answered");
    }
    {
        let mut board = el2.board();
        board.vms[1].phase = Phase::Ended;
        board.vms[1].end = Some(End::Crash);
    }
    el2.tell(1);
    for client in &mut clients {
        let event = client.event(SOON).expect("connected").expect("an event");
        assert_eq!((event.kind, event.vm, event.number), (EVENT_STATE, 1, 0));
    }
    daemon.wait_for(|log| log.contains("<4>linux: ended, life 1; crash"));
    // The same again is no news.
    let lines = daemon.logged().lines().count();
    el2.tell(1);
    clients[0]
        .event(SOON)
        .expect("connected")
        .expect("an event");
    assert_eq!(daemon.logged().lines().count(), lines);
}

#[test]
fn a_client_that_dies_in_the_middle_harms_nobody() {
    let daemon = Daemon::start();
    let el2 = daemon.plug(Fake {
        manner: Manner {
            piece: 31,
            ..Manner::default()
        },
        ..Fake::default()
    });
    let mut other = daemon.client();
    for round in 0..20 {
        // Half a request, and one whose answer nobody is there for.
        let mut dies = UnixStream::connect(daemon.socket()).expect("it listens");
        let request = Request {
            version: VERSION,
            number: 1,
            ..of(Kind::Vm, 3)
        };
        dies.write_all(request.as_bytes()).expect("it listens");
        dies.write_all(&request.as_bytes()[..20])
            .expect("it listens");
        drop(dies);
        let answer = other.call(of(Kind::Vm, 1)).expect("answered");
        assert_eq!(answer.vm, 1, "{round}");
    }
    assert!(
        el2.board()
            .requests
            .iter()
            .all(|request| request.version == VERSION)
    );
}

#[test]
fn a_client_that_does_not_read_loses_events_and_nothing_else() {
    let daemon = Daemon::start();
    let el2 = daemon.plug(Fake::default());
    let mut sleeper = daemon.client();
    sleeper.call(of(Kind::Hello, 0)).expect("answered");
    let mut other = daemon.client();
    for _ in 0..20_000 {
        el2.tell(1);
    }
    let answer = other.call(of(Kind::Vm, 2)).expect("answered");
    assert_eq!(answer.vm, 2);
    sleeper.patience = Duration::from_secs(20);
    let answer = sleeper.call(of(Kind::Vm, 3)).expect("answered");
    assert_eq!(answer.vm, 3);
}

#[test]
fn who_comes_before_the_port_is_told_so_by_the_end() {
    let daemon = Daemon::start();
    daemon.wait_for(|log| log.contains("<4>no port: there is no port"));
    let gone = daemon.client().call(of(Kind::Hello, 0));
    assert!(matches!(gone, Err(Trouble::Gone)), "{gone:?}");
    // It has been tried again meanwhile.
    thread::sleep(Duration::from_millis(1200));
    let said = daemon.logged();
    assert_eq!(said, "<4>no port: there is no port\n", "said once");
    let _el2 = daemon.plug(Fake::default());
    daemon.client().call(of(Kind::Hello, 0)).expect("answered");
}

#[test]
fn after_the_port_was_gone_clients_are_served_by_the_new_one() {
    let daemon = Daemon::start();
    let el2 = daemon.plug(Fake::default());
    let mut client = daemon.client();
    client.call(of(Kind::Hello, 0)).expect("answered");
    el2.board().manner.is_silent = true;
    let number = client.send(of(Kind::Vm, 1)).expect("sent");
    el2.unplug();
    let gone = client.answer(number);
    assert!(matches!(gone, Err(Trouble::Gone)), "{gone:?}");
    daemon.wait_for(|log| log.contains("<4>the port is gone"));
    let mut fake = Fake::default();
    fake.vms[1].lives = 7;
    let _el2 = daemon.plug(fake);
    let answer = daemon.client().call(of(Kind::Vm, 1)).expect("answered");
    assert_eq!(answer.values[4], 7);
    daemon.wait_for(|log| log.contains("linux: running, life 7"));
}

#[test]
fn clients_that_ask_for_exits_at_once_do_not_disturb_each_other() {
    let daemon = Daemon::start();
    let _el2 = daemon.plug(Fake::default());
    thread::scope(|scope| {
        for name in ["linux", "rt", "manager"] {
            let client = daemon.client();
            scope.spawn(move || {
                let mut manager = Manager::greet(client).expect("greeted");
                let vm = manager.find(name).expect("there");
                for _ in 0..100 {
                    let exits = manager.exits(&vm, 0).expect("answered").expect("told");
                    assert!(exits.total > 0);
                    manager.time(&vm, 0).expect("answered").expect("told");
                }
            });
        }
    });
}

#[test]
fn requests_come_in_pieces_too() {
    let daemon = Daemon::start();
    let _el2 = daemon.plug(Fake::default());
    let mut client = UnixStream::connect(daemon.socket()).expect("it listens");
    let requests = [1, 2].map(|vm| Request {
        version: VERSION,
        number: 5 + u32::from(vm),
        ..of(Kind::Vm, vm)
    });
    let bytes = requests.as_bytes();
    // The end of the first one, and with it the second.
    for piece in [&bytes[..20], &bytes[20..]] {
        client.write_all(piece).expect("it listens");
        thread::sleep(Duration::from_millis(20));
    }
    client.set_read_timeout(SOON).expect("a socket");
    for vm in [1, 2] {
        let mut bytes = [0; size_of::<Message>()];
        client.read_exact(&mut bytes).expect("an answer");
        let answer: Message = zerocopy::FromBytes::read_from_bytes(&bytes).expect("a message");
        assert_eq!((answer.vm, answer.number), (vm, 5 + u32::from(vm)));
    }
}

#[test]
fn number_0_is_refused_as_el2_does() {
    let daemon = Daemon::start();
    let el2 = daemon.plug(Fake::default());
    let before = el2.board().requests.len();
    let mut client = UnixStream::connect(daemon.socket()).expect("it listens");
    let request = Request {
        version: VERSION,
        ..of(Kind::Stop, 1)
    };
    client.write_all(request.as_bytes()).expect("it listens");
    let mut bytes = [0; size_of::<Message>()];
    client.read_exact(&mut bytes).expect("an answer");
    let answer: Message = zerocopy::FromBytes::read_from_bytes(&bytes).expect("a message");
    assert_eq!((answer.number, answer.status), (0, Status::Reserved as u16));
    assert_eq!(el2.board().requests.len(), before);
}

#[test]
fn an_el2_of_another_version_is_said_once() {
    let daemon = Daemon::start();
    let (_el2, port) = El2::start(Fake {
        manner: Manner {
            version: 3,
            ..Manner::default()
        },
        ..Fake::default()
    });
    daemon.ports.lock().expect("ports").push(port);
    daemon.wait_for(|log| log.contains("<3>EL2 speaks version 3 "));
    let failure = Manager::greet(daemon.client()).expect_err("another version");
    assert_eq!(failure.code, "control::version");
}

#[test]
fn orders_go_through_with_all_that_they_wait_for() {
    let daemon = Daemon::start();
    let mut fake = Fake::default();
    fake.vms[1].reports = 1;
    let _el2 = daemon.plug(fake);
    let mut manager = Manager::greet(daemon.client()).expect("greeted");
    manager.order(Kind::Stop, "linux", None).expect("taken");
    let soon = SOON.map(bulkhead_control::order::Wait::For);
    let done = manager.order(Kind::Start, "linux", soon).expect("started");
    assert_eq!((done.vm.lives, done.vm.phase_word()), (2, "running"));
}

#[test]
fn a_place_is_taken_from_the_dead_and_not_from_the_living() {
    let daemon = Daemon::start();
    let failure = bulkheadd::listen(&daemon.socket()).expect_err("it lives");
    assert_eq!(failure.code, "control::busy");
    let dead = daemon.folder.path().join("dead.sock");
    drop(bulkheadd::listen(&dead).expect("a socket"));
    assert!(dead.exists());
    bulkheadd::listen(&dead).expect("nobody is there");
}

#[test]
fn metrics_are_collected_once_a_second() {
    let daemon = Daemon::start();
    let el2 = daemon.plug(Fake::default());
    let path = daemon.folder.path().join("metrics.sock");
    let listener = bulkheadd::listen(&path).expect("a socket");
    let control = daemon.socket();
    thread::spawn(move || bulkheadd::metrics::serve(&listener, &control, &|_| {}));
    let scrape = || {
        let mut stream = UnixStream::connect(&path).expect("it listens");
        stream
            .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
            .expect("it listens");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    };
    let idle = el2.board().requests.len();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(el2.board().requests.len(), idle, "nobody has scraped");
    let text = scrape();
    for line in [
        "bulkhead_vm_lives_total{vm=\"linux\"} 1",
        "bulkhead_vm_phase{vm=\"linux\",phase=\"running\"} 1",
        "bulkhead_vm_phase{vm=\"linux\",phase=\"paused\"} 0",
        "# TYPE bulkhead_vcpu_exits_total counter",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
    assert!(
        text.contains("bulkhead_vcpu_exits_total{vm=\"linux\",vcpu=\"1\",class=\"gicd\"} "),
        "{text}"
    );
    assert!(
        !text.contains("bulkhead_vcpu_exits_total{vm=\"control\""),
        "it is promised none: {text}"
    );
    let heads = text
        .lines()
        .filter(|line| line.starts_with("# TYPE bulkhead_vcpu_exits_total"))
        .count();
    assert_eq!(heads, 1);
    let asked = el2.board().requests.len();
    assert_eq!(scrape(), text);
    assert_eq!(el2.board().requests.len(), asked);
    thread::sleep(Duration::from_millis(1100));
    scrape();
    assert!(el2.board().requests.len() > asked);
}

#[test]
fn the_program_says_when_it_is_ready_and_ends_by_sigterm() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let notified = std::os::unix::net::UnixDatagram::bind(at("notify")).expect("a socket");
    notified.set_read_timeout(SOON).expect("a socket");
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_bulkheadd"))
        .arg("--socket")
        .arg(at("run/control.sock"))
        .arg("--metrics")
        .arg(at("run/metrics.sock"))
        .args(["--port", "/nonexistent/port", "--policy", "none"])
        .env("NOTIFY_SOCKET", at("notify"))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut bytes = [0; 32];
    let mut next = || {
        let length = notified.recv(&mut bytes).expect("a word");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    assert_eq!(next(), "READY=1");
    assert!(at("run/control.sock").exists());
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert_eq!(next(), "STOPPING=1");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.starts_with("<4>no port: cannot open /nonexistent/port: "),
        "{said}"
    );
    assert_eq!(
        fs::read_dir(at("run")).expect("a folder").count(),
        0,
        "sockets are removed"
    );
}

//! Asking an EL2 that behaves well, and one that does not.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bulkhead_abi::control::{EVENT_STATE, Kind, Message, Phase, Request, Status, VERSION};
use bulkhead_control::board::Vm;
use bulkhead_control::connection::{Connection, Trouble};
use bulkhead_control::failure::{Failure, Outcome};
use bulkhead_control::manager::Manager;
use bulkhead_control::order::Wait;
use bulkhead_fake_el2::{El2, Fake, Manner};
use zerocopy::IntoBytes;

fn connect(manner: Manner) -> (El2, Connection<UnixStream>) {
    let fake = Fake {
        manner,
        ..Fake::default()
    };
    let (el2, port) = El2::start(fake);
    (el2, Connection::new(port, 41))
}

fn manage(fake: Fake) -> (El2, Manager<UnixStream>) {
    let (el2, port) = El2::start(fake);
    let manager = Manager::greet(Connection::new(port, u32::MAX - 3)).expect("it answers");
    (el2, manager)
}

fn of(kind: Kind, vm: u16) -> Request {
    Request {
        kind: kind as u16,
        vm,
        ..Request::default()
    }
}

#[test]
fn answers_out_of_order_are_given_to_who_asked() {
    let (_el2, mut connection) = connect(Manner {
        swaps: true,
        ..Manner::default()
    });
    let first = connection.send(of(Kind::Vm, 1)).expect("sent");
    let second = connection.send(of(Kind::Vm, 2)).expect("sent");
    assert_ne!(first, second);
    let first = connection.answer(first).expect("answered");
    let second = connection.answer(second).expect("answered");
    assert_eq!((first.vm, second.vm), (1, 2));
    assert_eq!(Vm::of(&second).name, "rt");
}

#[test]
fn events_in_between_are_kept_in_their_order() {
    let (el2, mut connection) = connect(Manner {
        chatty: true,
        ..Manner::default()
    });
    for vm in [1, 2] {
        assert_eq!(connection.call(of(Kind::Vm, vm)).expect("answered").vm, vm);
    }
    el2.tell(3);
    let soon = Some(Duration::from_secs(5));
    let mut next = || {
        connection
            .event(soon)
            .expect("the port is there")
            .map(|event| event.vm)
    };
    assert_eq!([next(), next(), next()], [Some(1), Some(2), Some(3)]);
    let none = connection
        .event(Some(Duration::ZERO))
        .expect("the port is there");
    assert!(none.is_none());
}

#[test]
fn messages_come_in_pieces_of_any_length() {
    for piece in [1, 7, 100, 127] {
        let (_el2, mut connection) = connect(Manner {
            piece,
            chatty: true,
            ..Manner::default()
        });
        for vm in 0..4 {
            let answer = connection.call(of(Kind::Vm, vm)).expect("answered");
            assert_eq!((answer.vm, answer.values[4]), (vm, 1), "{piece}");
        }
    }
}

#[test]
fn answers_to_who_had_the_port_before_are_nobodys() {
    let (_el2, mut connection) = connect(Manner {
        stale: true,
        ..Manner::default()
    });
    // The numbers come back: what was kept would be taken for an answer then.
    for _ in 0..3000 {
        let number = connection.send(of(Kind::Vm, 2)).expect("sent");
        let answer = connection.answer(number).expect("answered");
        assert_eq!((answer.number, answer.vm), (number, 2));
    }
    assert_eq!(connection.event(Some(Duration::ZERO)).ok(), Some(None));
}

#[test]
fn another_version_is_said_by_its_number() {
    for piece in [128, 50] {
        let (_el2, port) = El2::start(Fake {
            manner: Manner {
                version: VERSION + 6,
                piece,
                ..Manner::default()
            },
            ..Fake::default()
        });
        let failure = Manager::greet(Connection::new(port, 0)).expect_err("another version");
        assert_eq!(
            (failure.code, failure.outcome),
            ("control::version", Outcome::Environment)
        );
        assert!(failure.why.contains("version 7"), "{failure}");
    }
    // An EL2 that answers in our version that it wants another.
    let (mut port, link) = UnixStream::pair().expect("a pair of sockets");
    let mut connection = Connection::new(link, 0);
    let number = connection.send(of(Kind::Vm, 1)).expect("sent");
    let mut refused = Message {
        version: VERSION,
        number,
        status: Status::Version as u16,
        ..Message::default()
    };
    refused.values[0] = 9;
    port.write_all(refused.as_bytes()).expect("a socket");
    let answer = connection.answer(number);
    assert!(matches!(answer, Err(Trouble::Version(9))), "{answer:?}");
    // One that says something else in its own.
    let event = Message {
        version: 8,
        kind: EVENT_STATE,
        ..Message::default()
    };
    port.write_all(event.as_bytes()).expect("a socket");
    let event = connection.event(Some(Duration::from_secs(5)));
    assert!(matches!(event, Err(Trouble::Version(8))), "{event:?}");
}

#[test]
fn silence_ends_in_time_and_a_late_answer_is_dropped() {
    let (el2, mut connection) = connect(Manner {
        is_silent: true,
        ..Manner::default()
    });
    connection.patience = Duration::from_millis(60);
    let start = Instant::now();
    let number = connection.send(of(Kind::Vm, 1)).expect("sent");
    let silent = connection.answer(number);
    assert!(matches!(silent, Err(Trouble::Silent(_))), "{silent:?}");
    assert!(start.elapsed() >= Duration::from_millis(60));
    el2.board().manner.is_silent = false;
    let late = Message {
        version: VERSION,
        number,
        vm: 3,
        ..Message::default()
    };
    el2.say(&late);
    connection.patience = Duration::from_secs(5);
    let answer = connection.call(of(Kind::Vm, 2)).expect("answered");
    assert_eq!(answer.vm, 2);
    connection.patience = Duration::ZERO;
    let asked_again = connection.answer(number);
    assert!(asked_again.is_err(), "nobody waits for it any more");
}

#[test]
fn a_port_that_is_unplugged_is_said_to_be_gone() {
    let (el2, mut connection) = connect(Manner::default());
    connection.call(of(Kind::Hello, 0)).expect("answered");
    el2.tell(1);
    el2.unplug();
    // What it said before is still heard.
    let event = connection
        .event(None)
        .expect("in the socket")
        .expect("an event");
    assert_eq!((event.kind, event.vm), (EVENT_STATE, 1));
    let gone = connection.event(None);
    assert!(matches!(gone, Err(Trouble::Gone)), "{gone:?}");
    let failure = Failure::from(connection.call(of(Kind::Hello, 0)).expect_err("no port"));
    assert_eq!(failure.code, "control::gone");
}

#[test]
fn numbers_pass_over_0() {
    let (el2, mut manager) = manage(Fake::default());
    for _ in 0..8 {
        manager.vms().expect("answered");
    }
    assert!(
        el2.board()
            .requests
            .iter()
            .all(|request| request.number != 0)
    );
}

#[test]
fn states_and_statistics_are_read() {
    let (_el2, mut manager) = manage(Fake::default());
    assert_eq!((manager.hello.vms, manager.hello.pcpus), (4, 4));
    let linux = manager.find("linux").expect("there");
    assert_eq!(
        (linux.index, linux.vcpus, linux.class_word()),
        (1, 2, "general")
    );
    assert_eq!(manager.vcpu(&linux, 1).expect("there").pcpu, 1);
    let time = manager
        .time(&linux, 0)
        .expect("answered")
        .expect("it shares");
    assert_eq!(
        (time.since, time.overruns * 1000),
        (2 * time.cpu_time, time.since)
    );
    let exits = manager
        .exits(&linux, 0)
        .expect("answered")
        .expect("there are some");
    let sum: u64 = exits.classes.iter().map(|class| class.count).sum();
    assert_eq!(sum, exits.total);
    assert_eq!(
        (exits.classes[17].shortest, exits.classes[17].longest),
        (217, 417)
    );
    assert_eq!(exits.classes[16].cycles, 4800);
    let waits = manager
        .waits(&linux, 0)
        .expect("answered")
        .expect("it shares");
    let expected: Vec<u32> = (100..140).collect();
    assert_eq!(waits.0[..], expected);
    let control = manager.find("control").expect("there");
    assert!(manager.exits(&control, 0).expect("answered").is_err());
    assert!(manager.time(&control, 0).expect("answered").is_err());
    let failure = manager.find("linuz").expect_err("none");
    assert_eq!(failure.outcome, Outcome::BadInput);
    assert!(failure.why.contains("linux"), "{failure}");
}

#[test]
fn exits_are_asked_again_when_another_manager_came_between() {
    for same in [false, true] {
        let (el2, mut manager) = manage(Fake::default());
        let linux = manager.find("linux").expect("there");
        {
            let mut board = el2.board();
            let others = if same {
                &mut board.others_ask_same
            } else {
                &mut board.others_ask
            };
            *others = 3;
        }
        let exits = manager
            .exits(&linux, 0)
            .expect("answered")
            .expect("in the end");
        let of_class: Vec<u64> = (1..)
            .zip(&exits.classes[1..])
            .map(|(n, class)| class.count / n)
            .collect();
        assert!(
            of_class.iter().all(|ticks| *ticks == of_class[0]),
            "{of_class:?}"
        );
        assert_eq!(of_class.len(), 17);
        el2.board().others_ask = 100;
        let exits = manager.exits(&linux, 0).expect("answered");
        assert_eq!(exits, Err("others ask all the time"));
    }
}

const WAIT: Option<Wait> = Some(Wait::For(Duration::from_secs(5)));

#[test]
fn a_start_waits_for_the_life_that_it_made() {
    let (_el2, mut manager) = manage(Fake::default());
    let done = manager.order(Kind::Stop, "linux", WAIT).expect("stopped");
    assert!(done.changed && done.vm.is(Phase::Down));
    let again = manager
        .order(Kind::Stop, "linux", WAIT)
        .expect("it is down");
    assert!(!again.changed);
    let done = manager.order(Kind::Start, "linux", WAIT).expect("started");
    assert!(done.vm.is(Phase::Running) && done.vm.lives == 2);
    let again = manager.order(Kind::Start, "linux", WAIT).expect("it runs");
    assert!(!again.changed && again.vm.lives == 2);
    let done = manager
        .order(Kind::Restart, "linux", WAIT)
        .expect("restarted");
    assert_eq!(done.vm.lives, 3);
}

#[test]
fn a_start_during_the_reports_is_given_again_when_it_is_down() {
    let mut fake = Fake::default();
    fake.vms[1].reports = 2;
    let (el2, mut manager) = manage(fake);
    manager.order(Kind::Stop, "linux", None).expect("taken");
    assert_eq!(el2.board().vms[1].phase, Phase::Ended);
    // The second attempt finds it ended too, and then it is down.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            el2.board().vms[1].phase = Phase::Down;
            el2.tell(1);
        });
        let done = manager.order(Kind::Start, "linux", WAIT).expect("started");
        assert_eq!((done.vm.lives, done.changed), (2, true));
    });
}

#[test]
fn states_are_asked_for_should_an_event_be_lost() {
    let mut fake = Fake::default();
    fake.manner.no_events = true;
    let (_el2, mut manager) = manage(fake);
    let done = manager
        .order(Kind::Restart, "linux", WAIT)
        .expect("restarted");
    assert_eq!(done.vm.lives, 2);
}

#[test]
fn an_event_of_the_life_before_is_not_the_new_one() {
    let mut fake = Fake::default();
    fake.manner.chatty = true;
    let (_el2, mut manager) = manage(fake);
    let done = manager
        .order(Kind::Restart, "linux", WAIT)
        .expect("restarted");
    assert_eq!((done.vm.lives, done.vm.phase_word()), (2, "running"));
}

#[test]
fn what_does_not_come_in_time_and_a_crash_are_failures() {
    let mut fake = Fake::default();
    fake.vms[1].starts_to = Phase::Starting;
    fake.vms[2].starts_to = Phase::Ended;
    fake.vms[2].end = Some(bulkhead_abi::call::End::Crash);
    let (_el2, mut manager) = manage(fake);
    let short = Some(Wait::For(Duration::from_millis(50)));
    let failure = manager
        .order(Kind::Restart, "linux", short)
        .expect_err("it hangs");
    assert_eq!(failure.code, "control::not-in-time");
    let failure = manager
        .order(Kind::Restart, "rt", WAIT)
        .expect_err("it crashes");
    assert_eq!(
        (failure.code, failure.outcome),
        ("control::ended", Outcome::Failed)
    );
    let failure = manager
        .order(Kind::Stop, "manager", None)
        .expect_err("no right");
    assert_eq!(failure.code, "control::rights");
    let failure = manager
        .order(Kind::Resume, "linux", None)
        .expect_err("it is not paused");
    assert_eq!(failure.code, "control::phase");
}

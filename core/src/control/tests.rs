//! Requests against a board that does what it is told.

use std::vec::Vec;

use bulkhead_abi::control::{
    DATA, EVENT_LIMITS, EVENT_STATE, INPUT_DATA, Kind, Message, OUTPUT_DATA, Request, Status,
    TRIAL, VERSION, crash, right,
};
use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::Class;

use super::events::Changed;
use super::session::APART_US;
use super::test_world::{Fake, US, World, request};
use super::{Denied, Order};
use crate::console::stats::ExitStats;
use crate::cpu::power::{self, Phase};
use crate::monitor;
use crate::sched::{Account, Change, Policy, Refusal, RunState, Usage};
use crate::virtio::ports::Manager;

#[test]
fn each_request_needs_its_right_and_no_other() {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.is_about_vm()) {
        for (bit, word) in right::ALL {
            let mut world = World::new(Fake::new(bit, Class::General));
            let values =
                [100_000, 100_000, 0, 0].map(|value| value * u64::from(kind.values() != 0));
            let mut asked = request(kind, values);
            asked.values[kind.values()..].fill(0);
            if [
                Kind::Exits,
                Kind::Waits,
                Kind::Report,
                Kind::Registers,
                Kind::Memory,
            ]
            .contains(&kind)
            {
                asked.values = [0; 4];
            }
            let status = world.status(&asked);
            let granted = kind.needs() & (bit | right::LIST) != 0;
            assert_eq!(
                status != Some(Status::Rights),
                granted,
                "{kind:?} by {word}"
            );
            let did = world.board.orders.len() + world.board.changes.len();
            let did = did + world.board.shut_down.len();
            let asked = world.board.asked.borrow().len();
            assert!(granted || did + asked == 0, "{kind:?} by {word}");
        }
    }
}

#[test]
fn what_is_wrong_in_any_field_has_no_effect() {
    type Harm = fn(&mut Request);
    let harms: [(Harm, Status); 13] = [
        (|it| it.version = 0, Status::Version),
        (|it| it.version = VERSION + 1, Status::Version),
        (|it| it.kind = 0, Status::Kind),
        (|it| it.kind = Kind::ALL.len() as u16 + 1, Status::Kind),
        (|it| it.kind = 0x101, Status::Kind),
        (|it| it.number = 0, Status::Reserved),
        (|it| it.flags = 2, Status::Reserved),
        (|it| it.vcpu = 1, Status::Reserved),
        (|it| it.values[0] = 1, Status::Reserved),
        (|it| it.values[3] = 1 << 63, Status::Reserved),
        (|it| it.vm = 2, Status::Vm),
        (|it| it.vm = u16::MAX, Status::Vm),
        (|it| it.kind = Kind::Hello as u16, Status::Reserved),
    ];
    for (harm, expected) in harms {
        let mut world = World::new(Fake::all());
        let mut asked = request(Kind::Restart, [0; 4]);
        harm(&mut asked);
        assert_eq!(world.status(&asked), Some(expected), "{asked:?}");
        assert_eq!(world.board.orders, [], "{asked:?}");
    }
    let mut world = World::new(Fake::all());
    for bytes in [0, 47, 49, 96] {
        let answer = world
            .ask(&request(Kind::Restart, [0; 4]), bytes)
            .expect("at once");
        let told = (Status::of(answer.status), answer.values[0], answer.number);
        assert_eq!(told, (Some(Status::Length), bytes.into(), 0));
    }
    for vcpu in [1, u16::MAX] {
        let mut asked = request(Kind::Vcpu, [0; 4]);
        asked.vcpu = vcpu;
        assert_eq!(world.status(&asked), Some(Status::Vcpu));
    }
    assert_eq!(world.board.orders, []);
}

/// A request of each kind that is taken as it is, with values other than 0 where it has some.
fn sound(kind: Kind) -> Request {
    let values = match kind {
        Kind::Input => [24, 1, 2, 3],
        Kind::Exits | Kind::Registers => [0; 4],
        _ => [2, 2, 2, 2].map(|value| value * u64::from(kind.values() != 0)),
    };
    let mut sound = request(kind, values);
    if kind != Kind::Input {
        sound.values[kind.values()..].fill(0);
    }
    sound
}

/// All requests that differ from this one in a single field and are to be refused, each with the status that says so; `own`: what the manager may
/// do with its own VM.
fn altered(sound: &Request, kind: Kind, own: u32) -> Vec<(Request, Status)> {
    let mut all = Vec::new();
    let mut with = |status, harm: &dyn Fn(&mut Request)| {
        let mut request = *sound;
        harm(&mut request);
        assert_ne!(&request, sound);
        all.push((request, status));
    };
    let words = |of: u16| (0..16).map(move |bit| of ^ 1 << bit);
    for version in words(VERSION) {
        with(Status::Version, &|it| it.version = version);
    }
    for other in words(kind as u16).filter(|other| Kind::of(*other).is_none()) {
        with(Status::Kind, &|it| it.kind = other);
    }
    with(Status::Reserved, &|it| it.number = 0);
    for vm in words(sound.vm) {
        // The first is the manager itself, over which it has other rights.
        let status = match vm {
            _ if !kind.is_about_vm() => Status::Reserved,
            0 if kind.needs() & own != 0 => continue,
            0 => Status::Rights,
            _ => Status::Vm,
        };
        with(status, &|it| it.vm = vm);
    }
    for vcpu in words(0) {
        let there = kind.is_about_vcpu();
        let status = if there {
            Status::Vcpu
        } else {
            Status::Reserved
        };
        with(status, &|it| it.vcpu = vcpu);
    }
    for flag in (0..32).map(|bit| 1 << bit) {
        if kind.flags() & flag == 0 {
            with(Status::Reserved, &|it| it.flags = flag);
        }
    }
    for (n, bit) in (kind.values()..4).flat_map(|n| (0..64).map(move |bit| (n, bit))) {
        with(Status::Reserved, &|it| it.values[n] = 1 << bit);
    }
    // Those that it has, where they are too large for anything.
    let (n, most) = match kind {
        Kind::Waits => {
            with(Status::Value, &|it| it.values[0] = 3);
            return all;
        }
        Kind::Exits | Kind::Registers => (1, 1),
        Kind::Memory => (1, DATA as u64),
        Kind::Output => (1, OUTPUT_DATA as u64),
        Kind::Input => {
            with(Status::Value, &|it| it.values[0] = 0);
            (0, INPUT_DATA as u64)
        }
        Kind::Report => (0, crash::WORDS as u64 - 1),
        Kind::Weight => (0, u16::MAX.into()),
        Kind::Pool => (0, u32::MAX.into()),
        // Budgets and periods have all 64 bits: what is none of them is for the scheduler's rules.
        _ => return all,
    };
    for value in [most + 1, most + 2, 1 << 63, u64::MAX] {
        with(Status::Value, &|it| it.values[n] = value);
    }
    all
}

#[test]
fn each_kind_with_each_field_altered_is_answered_and_does_nothing() {
    let untouched = |world: &World, what: &dyn core::fmt::Debug| {
        let board = &world.board;
        let did = (&*board.orders, &*board.changes, &*board.trials);
        assert_eq!(did, (&[][..], &[][..], &[][..]), "{what:?}");
        assert_eq!(board.shut_down, [], "{what:?}");
        assert!(board.asked.borrow().is_empty(), "{what:?}");
        assert_eq!(board.typed.give(|_, _| true), None, "{what:?}");
        assert_eq!(world.session.again(), None, "it waits: {what:?}");
    };
    for kind in Kind::ALL {
        let sound = sound(kind);
        let mut world = World::new(Fake::all());
        if kind.needs() == right::DUMP {
            world.board.phase = Phase::Paused;
        }
        let own = world.board.plan.right(0, 0);
        for (request, status) in altered(&sound, kind, own) {
            let answer = world.ask(&request, 48).expect("at once");
            assert_eq!(Status::of(answer.status), Some(status), "{request:?}");
            // It says to which request, and no more than why.
            let echo = (answer.version, answer.kind, answer.number);
            assert_eq!(echo, (VERSION, request.kind, request.number));
            assert_eq!((answer.vm, answer.vcpu), (request.vm, request.vcpu));
            assert_eq!(
                (answer.data, answer.values[1..].to_vec()),
                (0, [0; 13].to_vec())
            );
            untouched(&world, &request);
        }
        for bytes in (0..200).chain([u32::MAX]).filter(|bytes| *bytes != 48) {
            let answer = world.ask(&sound, bytes).expect("at once");
            let told = (Status::of(answer.status), answer.values[0], answer.number);
            assert_eq!(told, (Some(Status::Length), bytes.into(), 0), "{kind:?}");
            untouched(&world, &bytes);
        }
        // None of it is left in the way of what is right.
        let status = world.status(&sound);
        let taken = [None, Some(Status::Done), Some(Status::Nothing)];
        assert!(taken.contains(&status), "{kind:?}: {status:?}");
    }
}

#[test]
fn orders_and_changes_are_those_that_were_asked_for() {
    let mut world = World::new(Fake::all());
    for kind in [
        Kind::Start,
        Kind::Stop,
        Kind::Restart,
        Kind::Pause,
        Kind::Resume,
    ] {
        assert_eq!(world.status(&request(kind, [0; 4])), Some(Status::Done));
    }
    let orders = [
        Order::Start,
        Order::Stop,
        Order::Restart,
        Order::Pause,
        Order::Resume,
    ];
    assert_eq!(world.board.orders, orders.map(|order| (order, 1)));
    for (kind, values) in [
        (Kind::Weight, [7, 0, 0, 0]),
        (Kind::Cap, [1, 2, 0, 0]),
        (Kind::Budget, [3, 4, 0, 0]),
        (Kind::Pool, [6, 0, 0, 0]),
    ] {
        assert_eq!(world.status(&request(kind, values)), Some(Status::Done));
    }
    let changes = [
        Change::Weight(7),
        Change::Cap {
            quota: 1,
            period: 2,
        },
        Change::Server {
            budget: 3,
            period: 4,
        },
        Change::Pool(6),
    ];
    assert_eq!(world.board.changes, changes.map(|change| (1, change)));
    for (kind, values) in [(Kind::Weight, [8, 0, 0, 0]), (Kind::Budget, [5, 6, 0, 0])] {
        let mut trial = request(kind, values);
        trial.flags = TRIAL;
        assert_eq!(world.status(&trial), Some(Status::Done));
        trial.flags = TRIAL << 1 | TRIAL;
        assert_eq!(world.status(&trial), Some(Status::Reserved));
    }
    let budget = Change::Server {
        budget: 5,
        period: 6,
    };
    assert_eq!(world.board.trials, [(1, Change::Weight(8)), (1, budget)]);
    assert_eq!(world.board.changes.len(), 4, "nothing more has changed");
    let mut trial = request(Kind::Start, [0; 4]);
    trial.flags = TRIAL;
    assert_eq!(world.status(&trial), Some(Status::Reserved));
    for (kind, value) in [
        (Kind::Weight, 1 << 16),
        (Kind::Pool, 1 << 32),
        (Kind::Waits, 3),
    ] {
        let status = world.status(&request(kind, [value, 0, 0, 0]));
        assert_eq!(status, Some(Status::Value), "{kind:?}");
    }
    world.board.denies = Some(Denied::Phase(Phase::Ended));
    let answer = world
        .ask(&request(Kind::Start, [0; 4]), 48)
        .expect("at once");
    assert_eq!((answer.status, answer.values[0]), (Status::Phase as u16, 5));
    let load = 1_000_001;
    world.board.denies = Some(Denied::Refused(Refusal::Overload { pcpu: 3, load }));
    let answer = world
        .ask(&request(Kind::Budget, [1, 1, 0, 0]), 48)
        .expect("at once");
    assert_eq!(answer.status, Status::Refused as u16);
    assert_eq!(answer.values[..3], [8, 3, load]);
}

#[test]
fn an_order_that_meets_another_one_is_tried_again_and_nothing_comes_before() {
    let mut world = World::new(Fake::all());
    world.board.busy = 2;
    assert_eq!(world.status(&request(Kind::Stop, [0; 4])), None);
    for _ in 0..2 {
        let at = world.session.again().expect("a time");
        assert!(at > world.board.now);
        assert_eq!(world.answer(), None, "too early");
        assert_eq!(world.board.orders, []);
        world.board.now = at;
        if world.board.busy != 0 {
            assert_eq!(world.answer(), None, "busy once more");
        }
    }
    let answer = world.answer().expect("now");
    assert_eq!((answer.number, answer.status), (77, 0));
    assert_eq!(world.board.orders, [(Order::Stop, 1)]);
    assert_eq!((world.session.again(), world.answer()), (None, None));
    // Not for a manager that has gone away meanwhile.
    world.board.busy = 1;
    assert_eq!(world.status(&request(Kind::Start, [0; 4])), None);
    let mut with = world.session.with(&mut world.board, &world.events);
    with.open();
    assert_eq!(world.session.again(), None);
    world.board.now += 1_000_000 * US;
    assert_eq!(world.answer(), None);
    assert_eq!(world.board.orders.len(), 1);
}

fn usage() -> Usage {
    let mut account = Account {
        ran: 10 * US,
        stolen: 3 * US,
        longest: 2 * US,
        turns: 4,
        overruns: 5,
        moves: 6,
        ..Account::default()
    };
    for (class, count) in account.waits.iter_mut().enumerate() {
        *count = class as u32 + 1;
    }
    Usage {
        policy: Policy::Pinned,
        run_state: RunState::Throttled(9),
        account,
        passed: 20 * US,
    }
}

/// Answers the question that is asked.
fn answer_question(board: &Fake) {
    let (id, _, _) = *board.asked.borrow().last().expect("a question");
    let question = board.published.question(id).expect("not answered yet");
    match question.request {
        monitor::Request::Time => {
            board.published.answer_time(
                question,
                monitor::State::On,
                Some(&usage()),
                US * 1_000_000,
            );
        }
        _ => {
            let mut stats = ExitStats::new(0);
            for (n, class) in (1..).zip(ExitClass::ALL) {
                (0..n).for_each(|_| stats.count(class, 0, 7, 0, 0));
            }
            board.published.answer_exits(question, &stats, None);
        }
    }
}

#[test]
fn questions_are_apart_and_their_answers_are_what_was_told() {
    let mut world = World::new(Fake::all());
    assert_eq!(world.status(&request(Kind::Time, [0; 4])), None);
    let first = world.board.now;
    assert_eq!(world.answer(), None, "nobody has answered");
    answer_question(&world.board);
    let answer = world.answer().expect("told");
    assert_eq!(
        answer.values[..8],
        [3, 10_000, 20_000, 3_000, 2_000, 4, 5, 6]
    );
    // The next one comes at once, and waits.
    world.board.now += US;
    assert_eq!(world.status(&request(Kind::Waits, [28, 0, 0, 0])), None);
    assert_eq!(world.board.asked.borrow().len(), 1);
    let at = world.session.again().expect("a time");
    assert_eq!(at, first + APART_US * US);
    world.board.now = at;
    assert_eq!(world.answer(), None, "it is asked");
    answer_question(&world.board);
    let answer = world.answer().expect("told");
    assert_eq!(answer.values[0], 29 | 30 << 32);
    assert_eq!(answer.values[5], 39 | 40 << 32);
    assert_eq!(answer.values[6..], [0; 8]);
    let apart: Vec<u64> = world.board.asked.borrow().iter().map(|it| it.2).collect();
    assert!(apart[1] - apart[0] >= APART_US * US);
}

#[test]
fn exits_come_two_classes_at_a_time_from_one_question() {
    let mut world = World::new(Fake::all());
    assert_eq!(
        world.status(&request(Kind::Exits, [0, 1, 0, 0])),
        Some(Status::Nothing)
    );
    assert_eq!(world.status(&request(Kind::Exits, [0; 4])), None);
    answer_question(&world.board);
    let answer = world.answer().expect("told");
    assert_eq!(answer.values[0], (1..=18).sum::<u64>());
    assert_eq!(
        answer.values[4..12],
        [1, 7, 49, 7 | 7 << 32, 2, 14, 98, 7 | 7 << 32]
    );
    for first in [2, 16, 17, 18, u64::MAX] {
        let more = world
            .ask(&request(Kind::Exits, [first, 1, 0, 0]), 48)
            .expect("at once");
        let count = if first < 18 { first + 1 } else { 0 };
        assert_eq!((more.status, more.values[4]), (0, count), "{first}");
    }
    assert_eq!(world.board.asked.borrow().len(), 1);
    // Another vCPU's are not those.
    let mut other = request(Kind::Exits, [0, 1, 0, 0]);
    other.vm = 0;
    assert_eq!(world.status(&other), Some(Status::Rights));
    // Nor are they kept beyond another question, or a manager that goes away.
    let mut with = world.session.with(&mut world.board, &world.events);
    with.open();
    assert_eq!(
        world.status(&request(Kind::Exits, [0, 1, 0, 0])),
        Some(Status::Nothing)
    );
}

#[test]
fn who_does_not_answer_is_reported_and_a_loop_is_not_asked() {
    let mut world = World::new(Fake::all());
    assert_eq!(world.status(&request(Kind::Exits, [0; 4])), None);
    let until = world.session.again().expect("a time");
    assert_eq!(until, world.board.now + 100_000 * US);
    world.board.now = until - 1;
    assert_eq!(world.answer(), None);
    world.board.now = until;
    let answer = world.answer().expect("in the end");
    assert_eq!(answer.status, Status::Silent as u16);
    assert_eq!(
        world.status(&request(Kind::Exits, [0, 1, 0, 0])),
        Some(Status::Nothing)
    );
    let mut world = World::new(Fake::new(right::STATS, Class::HardRealtime));
    for kind in [Kind::Time, Kind::Waits, Kind::Exits] {
        for (phase, refused) in [
            (Phase::Running, true),
            (Phase::Asked(power::End::Ordered), true),
            (Phase::Paused, true),
            (Phase::Down, false),
        ] {
            world.board.phase = phase;
            world.board.now += 1_000_000 * US;
            let status = world.status(&request(kind, [0; 4]));
            assert_eq!(
                status == Some(Status::WouldExit),
                refused,
                "{kind:?} {phase:?}"
            );
            let mut with = world.session.with(&mut world.board, &world.events);
            with.open();
        }
    }
    assert_eq!(
        world.board.asked.borrow().len(),
        3,
        "once each, of who is down"
    );
}

#[test]
fn events_are_of_the_moment_at_which_they_are_told() {
    let mut world = World::new(Fake::all());
    assert_eq!(world.event(), None);
    assert!(
        world.events.mark(1, Changed::Limits),
        "nobody serves the port"
    );
    for _ in 0..3 {
        assert!(
            world.events.mark(1, Changed::State),
            "nobody serves the port"
        );
    }
    assert!(
        world.events.mark(0, Changed::State),
        "nobody serves the port"
    );
    world.board.phase = Phase::Paused;
    let told: Vec<Message> = core::iter::from_fn(|| world.event()).collect();
    let what: Vec<_> = told.iter().map(|it| (it.kind, it.vm, it.number)).collect();
    assert_eq!(
        what,
        [
            (EVENT_STATE, 0, 0),
            (EVENT_STATE, 1, 0),
            (EVENT_LIMITS, 1, 0)
        ]
    );
    assert_eq!(told[1].values[3], 3, "paused");
    assert_eq!(told[2].values, [0; 14]);
    // Opening the port forgets them: what is asked then is newer.
    assert!(
        world.events.mark(63, Changed::State),
        "nobody serves the port"
    );
    let mut with = world.session.with(&mut world.board, &world.events);
    with.open();
    assert_eq!(world.event(), None);
}

#[test]
fn a_manager_finds_who_is_there() {
    let mut world = World::new(Fake::new(right::STOP, Class::General));
    let hello = world
        .ask(&request(Kind::Hello, [0; 4]), 48)
        .expect("at once");
    assert_eq!(
        hello.values[..6],
        [2, 0, 4, US * 1_000_000, 1_000_000, 0b11]
    );
    let vm = world.ask(&request(Kind::Vm, [0; 4]), 48).expect("at once");
    let name = vm.values[0].to_le_bytes();
    assert_eq!(name[..4], { world.board.plan.vms[1] }.name[..4]);
    assert_eq!(vm.values[2], (right::LIST | right::STOP).into());
    assert_eq!(vm.values[3..5], [2, 3]);
    assert_eq!(vm.values[6..9], [0, 0, 0], "no life has ended");
    let vcpu = world
        .ask(&request(Kind::Vcpu, [0; 4]), 48)
        .expect("at once");
    assert_eq!(vcpu.values[..3], [2, 3, 0]);
}

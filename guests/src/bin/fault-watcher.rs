//! Claim: a manager that resets itself, crashes, powers off, resets its device, is paused or is stopped while it has an order in hand leaves nothing
//! half done: another one finds the VM in some state that it can order anything about, at once, and nothing happens to that afterwards. While it floods, both order the same VM: each order is answered, and the
//! last one that was taken holds.
//!
//! The VMs are, by index: itself, `target`, `faulty` ([`faulty-manager`](faulty-manager.rs)) and `locked`, a control loop.
#![no_std]
#![no_main]

use bulkhead_abi::control::{EVENT_STATE, Kind, Message, Phase, Status};
use bulkhead_guests::virtio::port::{ControlPort, expect};
use bulkhead_guests::{Board, check, gic, guest, println, shared, timer};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Release};

guest!(main = main);

const TARGET: u16 = 1;
const FAULTY: u16 = 2;
const NONE: [u64; 4] = [0; 4];
/// Each way to go, with each end.
const ROUNDS: u64 = 24;
/// The way that goes on until it is stopped.
const FLOODS: u64 = 8;
/// Orders beside each flood, at least.
const QUARREL: u64 = 50;
/// Orders that each of two managers at odds has to have taken.
const TAKEN: u64 = 8;

fn main(board: &'static Board) {
    gic::init();
    let Some(gate) = board.shared("gate").map(shared::words) else {
        return println!("FAIL fault-watcher: there is no gate");
    };
    let Some(mut port) = ControlPort::of(board) else {
        return println!("FAIL fault-watcher: there is no control port");
    };
    for round in 1..=ROUNDS {
        if phase(&mut port, FAULTY) == Phase::Down as u64 {
            let (status, _) = port.about(Kind::Start, FAULTY, NONE);
            expect("start of who has gone", status, Status::Done);
        }
        let lives = reaches(&mut port, FAULTY, Phase::Running).values[4];
        check::equal("its life", lives, round);
        gate[0].store(round, Release);
        if round % FLOODS == 0 {
            let end = timer::now() + timer::ticks(5_000_000);
            while gate[1].load(Acquire) != round && timer::now() < end {
                timer::spin(100);
            }
            timer::spin(20_000);
            quarrels(&mut port, &gate[2]);
            order(&mut port, FAULTY, Kind::Pause, Phase::Paused);
            last_holds(&mut port, (round / FLOODS).is_multiple_of(2));
            obeys(&mut port);
            order(&mut port, FAULTY, Kind::Resume, Phase::Running);
            timer::spin(20_000);
            order(&mut port, FAULTY, Kind::Stop, Phase::Down);
        } else {
            has_gone(&mut port, round);
        }
        obeys(&mut port);
    }
    for vm in [TARGET, FAULTY] {
        if phase(&mut port, vm) != Phase::Down as u64 {
            order(&mut port, vm, Kind::Stop, Phase::Down);
        }
    }
    check::holds("the device works", !port.has_failed(), "it needs a reset");
    check::done();
}

fn phase(port: &mut ControlPort, vm: u16) -> u64 {
    port.about(Kind::Vm, vm, NONE).1.values[3]
}

/// Waits until a VM is in a phase; gives its state then.
fn reaches(port: &mut ControlPort, vm: u16, phase: Phase) -> Message {
    let is_it = |it: &Message| it.vm == vm && it.values[3] == phase as u64;
    // Events of before say nothing about now.
    port.forget();
    let now = port.about(Kind::Vm, vm, NONE).1;
    if is_it(&now) {
        return now;
    }
    let event = port.wait(|it| it.kind == EVENT_STATE && is_it(it));
    check::holds(
        format_args!("VM {vm} is {}", phase.word()),
        event.is_ok(),
        "it is not",
    );
    event.unwrap_or_default()
}

/// Gives an order that has to be taken, and waits for what it is to lead to.
fn order(port: &mut ControlPort, vm: u16, kind: Kind, to: Phase) -> Message {
    let (status, message) = port.about(kind, vm, NONE);
    check::holds(
        format_args!("{kind:?} of VM {vm}"),
        status == Some(Status::Done),
        format_args!("{status:?} {}", message.values[0]),
    );
    reaches(port, vm, to)
}

/// Waits until the manager of a round has gone: it is down, or in its next life.
fn has_gone(port: &mut ControlPort, round: u64) {
    let end = timer::now() + timer::ticks(5_000_000);
    loop {
        let state = port.about(Kind::Vm, FAULTY, NONE).1;
        let has = state.values[3] == Phase::Down as u64 || state.values[4] > round;
        if has || timer::now() > end {
            check::holds(
                format_args!("the manager of round {round} has gone"),
                has,
                "not",
            );
            return;
        }
        timer::spin(100);
    }
}

/// Gives the target orders while the other manager gives it orders too, of which `theirs` counts those that were taken, until both had some
/// of theirs taken. Each is answered, by the phase that it does not fit if it was not taken.
fn quarrels(port: &mut ControlPort, theirs: &AtomicU64) {
    let before = theirs.load(Acquire);
    let (mut given, mut taken, mut refused, mut of_other) = (0u64, 0, 0, 0);
    let end = timer::now() + timer::ticks(5_000_000);
    let orders = [Kind::Pause, Kind::Stop, Kind::Start, Kind::Resume];
    for kind in orders.into_iter().cycle() {
        let enough = given >= QUARREL && taken >= TAKEN && of_other >= TAKEN;
        if enough || timer::now() > end {
            break;
        }
        given += 1;
        match port.about(kind, TARGET, NONE).0 {
            Some(Status::Done) => taken += 1,
            Some(Status::Phase) => refused += 1,
            _ => {}
        }
        port.forget();
        // At another moment of what the other one does each time.
        timer::spin(50 + given % 16 * 25);
        of_other = theirs.load(Acquire) - before;
    }
    check::equal("orders of two at odds answered", taken + refused, given);
    check::holds(
        "both had some taken",
        taken >= TAKEN && of_other >= TAKEN,
        format_args!("{taken} and {of_other}"),
    );
}

/// When the other manager gives no more orders, the last one that is taken holds, whatever was ordered before it and is not done yet.
fn last_holds(port: &mut ControlPort, starts: bool) {
    let mut last = Phase::Down;
    let end = timer::now() + timer::ticks(5_000_000);
    let mut give = |kind, to: Phase| {
        // While reports of an end are printed no order is taken. One for what it is already is none.
        while timer::now() < end {
            let (status, message) = port.about(kind, TARGET, NONE);
            if status == Some(Status::Done) || message.values[0] == to as u64 {
                break;
            }
            timer::spin(100);
        }
        last = to;
    };
    give(Kind::Stop, Phase::Down);
    if starts {
        give(Kind::Start, Phase::Running);
    }
    reaches(port, TARGET, last);
    timer::spin(5_000);
    check::equal("the last order holds", phase(port, TARGET), last as u64);
}

/// The target does what it is told, once, and nothing else.
fn obeys(port: &mut ControlPort) {
    // What was ordered before is done soon.
    let mut found = 0;
    for _ in 0..10_000 {
        found = phase(port, TARGET);
        let settled = [Phase::Down, Phase::Running, Phase::Paused];
        if settled.iter().any(|phase| *phase as u64 == found) {
            break;
        }
        timer::spin(100);
    }
    if found != Phase::Down as u64 {
        order(port, TARGET, Kind::Stop, Phase::Down);
    }
    let before = port.about(Kind::Vm, TARGET, NONE).1.values[4];
    order(port, TARGET, Kind::Start, Phase::Running);
    order(port, TARGET, Kind::Pause, Phase::Paused);
    order(port, TARGET, Kind::Resume, Phase::Running);
    timer::spin(5_000);
    let after = port.about(Kind::Vm, TARGET, NONE).1;
    check::equal("it runs on", after.values[3], Phase::Running as u64);
    check::equal("in the life that was ordered", after.values[4], before + 1);
}

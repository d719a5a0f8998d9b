//! Claim: a manager that is no Linux starts, stops, pauses and restarts the VMs over which the plan gives it rights, and no others; each request is
//! answered, each change is an event, and a request that is wrong in any way has no effect but its answer.
//!
//! The VMs are, by index: itself, `worker` (all rights), `waits` (starts when it is told), `locked` (list and stats) and `foreign` (no right).
#![no_std]
#![no_main]

use bulkhead_abi::call::End;
use bulkhead_abi::control::{
    EVENT_LIMITS, EVENT_STATE, Kind, Message, Phase, Refusal, Request, Status, TRIAL, VERSION,
    right,
};
use bulkhead_guests::virtio::port::{ControlPort, expect};
use bulkhead_guests::{Board, check, gic, guest, println, timer};
use zerocopy::IntoBytes;

guest!(main = main);

const SELF: u16 = 0;
const WORKER: u16 = 1;
const WAITS: u16 = 2;
const LOCKED: u16 = 3;
const FOREIGN: u16 = 4;
const NONE: [u64; 4] = [0; 4];

fn main(board: &'static Board) {
    gic::init();
    let Some(mut port) = ControlPort::of(board) else {
        return println!("FAIL manager: there is no control port");
    };
    hello(&mut port);
    vms(&mut port);
    lives(&mut port);
    pauses(&mut port);
    limits(&mut port);
    statistics(&mut port);
    rights(&mut port);
    wrong(&mut port);
    altered(&mut port);
    flood(&mut port);
    sessions(&mut port);
    let (status, _) = port.about(Kind::Stop, WORKER, NONE);
    expect("the last order", status, Status::Done);
    check::holds("the device works", !port.has_failed(), "it needs a reset");
    check::done();
}

/// Waits until a VM is in a phase, as its events say.
fn reaches(port: &mut ControlPort, vm: u16, phase: Phase) -> Option<Message> {
    let is_it = |message: &Message| {
        message.kind == EVENT_STATE && message.vm == vm && message.values[3] == phase as u64
    };
    let found = port.wait(is_it).ok();
    check::holds(
        format_args!("event: VM {vm} is {}", phase.word()),
        found.is_some(),
        "it did not come",
    );
    found
}

fn state(port: &mut ControlPort, vm: u16) -> Message {
    port.about(Kind::Vm, vm, NONE).1
}

fn hello(port: &mut ControlPort) {
    let (status, message) = port.about(Kind::Hello, 0, NONE);
    expect("hello", status, Status::Done);
    check::equal("VMs", message.values[0], 5);
    check::equal("own VM", message.values[1], SELF.into());
    check::equal("pCPUs", message.values[2], 3);
    check::equal("frequency", message.values[3], timer::frequency());
    check::equal("VMs over which it has rights", message.values[5], 0b1111);
}

fn vms(port: &mut ControlPort) {
    let worker = state(port, WORKER);
    let name = [worker.values[0], worker.values[1]];
    check::holds(
        "name of the worker",
        name.as_bytes() == b"worker\0\0\0\0\0\0\0\0\0\0",
        format_args!("{name:x?}"),
    );
    check::equal(
        "phase of the worker",
        worker.values[3],
        Phase::Running as u64,
    );
    check::equal("its first life", worker.values[4], 1);
    check::equal("no life of it has ended", worker.values[6], 0);
    let waits = state(port, WAITS);
    check::equal("phase of who waits", waits.values[3], Phase::Down as u64);
    check::equal("it had no life", waits.values[4], 0);
    let locked = state(port, LOCKED);
    let granted = u64::from(right::LIST | right::STATS);
    check::equal("rights over who is locked", locked.values[2], granted);
    let (status, message) = port.about(Kind::Vcpu, WORKER, NONE);
    expect("vCPU of the worker", status, Status::Done);
    check::equal("it is on", message.values[1], 3);
    check::equal("it is fair", message.values[2], 2);
}

fn lives(port: &mut ControlPort) {
    let (status, _) = port.about(Kind::Start, WAITS, NONE);
    expect("start", status, Status::Done);
    reaches(port, WAITS, Phase::Running);
    // It powers off by itself.
    if let Some(event) = reaches(port, WAITS, Phase::Down) {
        check::equal("its end", event.values[6], End::Off as u64);
    }
    for life in 2..4 {
        let (status, _) = port.about(Kind::Restart, WORKER, NONE);
        expect("restart", status, Status::Done);
        if let Some(event) = reaches(port, WORKER, Phase::Running) {
            check::equal("lives", event.values[4], life);
            check::equal(
                "what ended the last",
                event.values[6],
                End::OrderedRestart as u64,
            );
        }
    }
    let (status, _) = port.about(Kind::Stop, WORKER, NONE);
    expect("stop", status, Status::Done);
    if let Some(event) = reaches(port, WORKER, Phase::Down) {
        check::equal("what ended it", event.values[6], End::Ordered as u64);
    }
    let (status, message) = port.about(Kind::Stop, WORKER, NONE);
    expect("stop of who is down", status, Status::Phase);
    check::equal("which it says", message.values[0], Phase::Down as u64);
    let (status, _) = port.about(Kind::Start, WORKER, NONE);
    expect("start of who was stopped", status, Status::Done);
    reaches(port, WORKER, Phase::Running);
    let (status, message) = port.about(Kind::Start, WORKER, NONE);
    expect("start of who runs", status, Status::Phase);
    check::equal(
        "which it says, too",
        message.values[0],
        Phase::Running as u64,
    );
    // The last order that was answered counts.
    let (first, _) = port.about(Kind::Stop, WORKER, NONE);
    let (second, message) = port.about(Kind::Start, WORKER, NONE);
    expect("stop before a start", first, Status::Done);
    match second {
        Some(Status::Done) => {
            reaches(port, WORKER, Phase::Running);
        }
        // It had ended meanwhile: its reports are being printed.
        _ => {
            check::equal("or it has ended", message.values[0], Phase::Ended as u64);
            reaches(port, WORKER, Phase::Down);
            let (status, _) = port.about(Kind::Start, WORKER, NONE);
            expect("start once it is down", status, Status::Done);
            reaches(port, WORKER, Phase::Running);
        }
    }
}

fn pauses(port: &mut ControlPort) {
    port.forget();
    for _ in 0..3 {
        let (status, _) = port.about(Kind::Pause, WORKER, NONE);
        expect("pause", status, Status::Done);
        reaches(port, WORKER, Phase::Paused);
        let (status, _) = port.about(Kind::Pause, WORKER, NONE);
        expect("pause of who is paused", status, Status::Phase);
        let (status, _) = port.about(Kind::Resume, WORKER, NONE);
        expect("resume", status, Status::Done);
        reaches(port, WORKER, Phase::Running);
    }
    let (status, _) = port.about(Kind::Resume, WORKER, NONE);
    expect("resume of who runs", status, Status::Phase);
}

fn limits(port: &mut ControlPort) {
    let change = |port: &mut ControlPort, kind, values, expected| {
        let (status, message) = port.about(kind, WORKER, values);
        expect("a change of limits", status, expected);
        message.values[0]
    };
    change(port, Kind::Weight, [7, 0, 0, 0], Status::Done);
    let event = port.wait(|it| it.kind == EVENT_LIMITS && it.vm == WORKER);
    check::holds("event: limits", event.is_ok(), "it did not come");
    let (_, vcpu) = port.about(Kind::Vcpu, WORKER, NONE);
    check::equal("the new weight", vcpu.values[3], 7);
    let mut trial = port.request(Kind::Weight, WORKER, 0, [9, 0, 0, 0]);
    trial.flags = TRIAL;
    let status = |port: &mut ControlPort, trial| port.ask(trial).ok().map(|it| it.status);
    let said = [
        status(port, &trial),
        status(
            port,
            &Request {
                kind: Kind::Cap as u16,
                ..trial
            },
        ),
        status(
            port,
            &Request {
                flags: TRIAL << 1,
                ..trial
            },
        ),
        status(
            port,
            &Request {
                kind: Kind::Stop as u16,
                values: NONE,
                ..trial
            },
        ),
    ];
    let expected = [
        Status::Done,
        Status::Refused,
        Status::Reserved,
        Status::Reserved,
    ];
    check::holds(
        "trials",
        said == expected.map(|status| Some(status as u16)),
        format_args!("{said:?}"),
    );
    let (_, vcpu) = port.about(Kind::Vcpu, WORKER, NONE);
    check::equal("what was tried changes nothing", vcpu.values[3], 7);
    change(port, Kind::Cap, [3_000_000, 10_000_000, 0, 0], Status::Done);
    let (_, vcpu) = port.about(Kind::Vcpu, WORKER, NONE);
    check::equal("the new quota", vcpu.values[4], 3_000_000);
    check::equal("the new period", vcpu.values[5], 10_000_000);
    for (kind, values, why) in [
        (Kind::Weight, [0, 0, 0, 0], Refusal::Weight),
        (Kind::Weight, [1001, 0, 0, 0], Refusal::Weight),
        (Kind::Cap, [1, 99_999, 0, 0], Refusal::Period),
        (Kind::Cap, [2_000_000, 1_000_000, 0, 0], Refusal::Budget),
        (
            Kind::Budget,
            [1_000_000, 2_000_000, 0, 0],
            Refusal::NotServer,
        ),
        (Kind::Pool, [0, 0, 0, 0], Refusal::Pool),
        (Kind::Pool, [1 << 31, 0, 0, 0], Refusal::Pool),
    ] {
        let told = change(port, kind, values, Status::Refused);
        check::equal("why it is refused", told, why as u64);
    }
    change(port, Kind::Weight, [1 << 32 | 7, 0, 0, 0], Status::Value);
    change(port, Kind::Pool, [1 << 32, 0, 0, 0], Status::Value);
    let (_, vcpu) = port.about(Kind::Vcpu, WORKER, NONE);
    check::equal("what was refused changes nothing", vcpu.values[3], 7);
    change(
        port,
        Kind::Cap,
        [10_000_000, 10_000_000, 0, 0],
        Status::Done,
    );
}

fn statistics(port: &mut ControlPort) {
    let (status, message) = port.about(Kind::Time, WORKER, NONE);
    expect("CPU time", status, Status::Done);
    let [_, ran, passed, ..] = message.values;
    check::holds(
        "it ran",
        ran != 0 && ran <= passed,
        format_args!("{ran} of {passed}"),
    );
    let (status, message) = port.about(Kind::Exits, WORKER, NONE);
    expect("exits", status, Status::Done);
    let all = message.values[0];
    let mut sum = 0;
    for first in (0..18).step_by(2) {
        let (status, message) = port.about(Kind::Exits, WORKER, [first, 1, 0, 0]);
        check::holds(
            "more exits",
            status == Some(Status::Done),
            format_args!("{status:?}"),
        );
        sum += message.values[4] + message.values[8];
    }
    check::equal("the classes together", sum, all);
    check::holds("it had exits", all != 0, "none");
    let (status, message) = port.about(Kind::Waits, WORKER, NONE);
    expect("waits", status, Status::Done);
    let more = port.about(Kind::Waits, WORKER, [28, 0, 0, 0]).1;
    let both = message.values.iter().chain(&more.values);
    let waits = both.fold(0, |sum, pair| sum + (pair & 0xffff_ffff) + (pair >> 32));
    check::holds("it has waited", waits != 0, "never");
    let (status, _) = port.about(Kind::Service, SELF, NONE);
    expect(
        "slices of a VM that gives no right to it",
        status,
        Status::Rights,
    );
    // It would be the only exit of a control loop.
    for kind in [Kind::Time, Kind::Waits, Kind::Exits] {
        let (status, _) = port.about(kind, LOCKED, NONE);
        expect(
            "a question to who is not to be interrupted",
            status,
            Status::WouldExit,
        );
    }
}

fn rights(port: &mut ControlPort) {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.is_about_vm()) {
        let (status, message) = port.about(kind, FOREIGN, NONE);
        check::holds(
            format_args!("{kind:?} of a VM without a right"),
            status == Some(Status::Rights) && message.values[0] == 0,
            format_args!("{status:?}"),
        );
    }
    for kind in [
        Kind::Start,
        Kind::Stop,
        Kind::Restart,
        Kind::Pause,
        Kind::Resume,
        Kind::Weight,
    ] {
        let (status, _) = port.about(kind, LOCKED, NONE);
        expect("an order to who is locked", status, Status::Rights);
    }
    let (status, _) = port.about(Kind::Stop, SELF, NONE);
    expect(
        "an order to itself, without the right",
        status,
        Status::Rights,
    );
}

/// Requests in which something is wrong.
fn wrong(port: &mut ControlPort) {
    let lives = state(port, WORKER).values[4];
    let mut broken = |name: &str, expected, harm: &dyn Fn(&mut Request)| {
        let mut request = port.request(Kind::Restart, WORKER, 0, NONE);
        harm(&mut request);
        let status = port.ask(&request).ok().and_then(|it| Status::of(it.status));
        expect(name, status, expected);
    };
    for version in [0, VERSION + 1, u16::MAX] {
        broken("version", Status::Version, &|it| it.version = version);
    }
    for kind in [0, Kind::ALL.len() as u16 + 1, 0x101, 0x7fff] {
        broken("kind", Status::Kind, &|it| {
            it.kind = kind & 0xff | kind & 0x7f00
        });
    }
    broken("number", Status::Reserved, &|it| it.number = 0);
    for vm in [5, 64, u16::MAX] {
        broken("VM", Status::Vm, &|it| it.vm = vm);
    }
    broken("vCPU", Status::Reserved, &|it| it.vcpu = 1);
    broken("flags", Status::Reserved, &|it| it.flags = 1 << 31);
    for n in 0..4 {
        broken("values", Status::Reserved, &|it| it.values[n] = 1);
    }
    for vcpu in [1, 8, u16::MAX] {
        let mut request = port.request(Kind::Vcpu, WORKER, 0, NONE);
        request.vcpu = vcpu;
        let status = port.ask(&request).ok().and_then(|it| Status::of(it.status));
        expect("a vCPU that is not there", status, Status::Vcpu);
    }
    let (status, _) = port.about(Kind::Waits, WORKER, [1, 0, 0, 0]);
    expect("an odd class", status, Status::Value);
    let (status, message) = port.about(Kind::Exits, WORKER, [u64::MAX, 0, 0, 0]);
    expect("classes far behind the last", status, Status::Done);
    check::equal("of which there is nothing", message.values[4], 0);
    let (status, _) = port.about(Kind::Exits, WORKER, [0, 2, 0, 0]);
    expect("neither asking nor going on", status, Status::Value);
    // Writes that are no request.
    let request = port.request(Kind::Restart, WORKER, 0, NONE);
    let mut bytes = [0; 4 * size_of::<Request>()];
    bytes[..size_of::<Request>()].copy_from_slice(request.as_bytes());
    for length in [1, 8, 47, 49, 96, bytes.len()] {
        let written = port.write(&bytes[..length], 1).is_ok();
        let is_it = |message: &Message| message.number == 0 && message.kind == 0;
        let answer = port.wait(is_it).ok();
        let told = answer.map(|it| (Status::of(it.status), it.values[0]));
        check::holds(
            format_args!("a write of {length} bytes"),
            written && told == Some((Some(Status::Length), length as u64)),
            format_args!("{told:?}"),
        );
    }
    check::equal(
        "none of it was carried out",
        state(port, WORKER).values[4],
        lives,
    );
    // One request in pieces is a request.
    for pieces in 2..5 {
        let request = port.request(Kind::Vm, WORKER, 0, NONE);
        let written = port.write(request.as_bytes(), pieces).is_ok();
        let answer = port.wait(|it| it.number == request.number).ok();
        let done = answer.is_some_and(|it| it.status == 0 && it.values[4] == lives);
        check::holds(
            format_args!("{pieces} pieces"),
            written && done,
            "no answer",
        );
    }
}

/// Requests of each kind with one field altered: each is answered by what is wrong, and none does anything.
fn altered(port: &mut ControlPort) {
    let before = state(port, WORKER);
    let vcpu = port.about(Kind::Vcpu, WORKER, NONE).1;
    for kind in Kind::ALL {
        let about_vm = kind.is_about_vm();
        let of_vm = if about_vm {
            Status::Vm
        } else {
            Status::Reserved
        };
        let of_vcpu = match kind {
            // There is no right to it, which is looked at before.
            Kind::Registers => Status::Rights,
            _ if kind.is_about_vcpu() => Status::Vcpu,
            _ => Status::Reserved,
        };
        let mut all = true;
        let mut with = |expected: Status, harm: &dyn Fn(&mut Request)| {
            let mut request = port.request(kind, u16::from(about_vm) * WORKER, 0, NONE);
            harm(&mut request);
            let answer = port.ask(&request).ok();
            all &= answer.is_some_and(|it| it.status == expected as u16);
        };
        with(Status::Version, &|it| it.version ^= 1 << 15);
        with(Status::Kind, &|it| it.kind |= 1 << 14);
        with(Status::Reserved, &|it| it.number = 0);
        with(of_vm, &|it| it.vm = 5);
        with(of_vcpu, &|it| it.vcpu = 9);
        with(Status::Reserved, &|it| it.flags = 1 << 31);
        for n in kind.values()..NONE.len() {
            with(Status::Reserved, &|it| it.values[n] = 1 << 40);
        }
        check::holds(
            format_args!("{kind:?} with a field altered"),
            all,
            "another answer, or none",
        );
    }
    let after = state(port, WORKER);
    let now = port.about(Kind::Vcpu, WORKER, NONE).1;
    check::holds(
        "the worker is as it was",
        after.values == before.values && now.values == vcpu.values,
        format_args!("{:x?} {:x?}", after.values, now.values),
    );
}

/// Requests and orders as fast as they are taken.
fn flood(port: &mut ControlPort) {
    port.forget();
    let (mut done, mut refused) = (0u64, 0u64);
    for round in 0..400 {
        let kind = match round % 4 {
            0 => Kind::Pause,
            1 => Kind::Vm,
            2 => Kind::Resume,
            _ => Kind::Hello,
        };
        let vm = if kind == Kind::Hello { 0 } else { WORKER };
        match port.about(kind, vm, NONE).0 {
            Some(Status::Done) => done += 1,
            _ => refused += 1,
        }
    }
    check::holds(
        "each of 400 in a row was answered, none refused",
        done == 400 && refused == 0,
        format_args!("{done} done, {refused} refused"),
    );
    check::equal(
        "and it runs",
        state(port, WORKER).values[3],
        Phase::Running as u64,
    );
}

/// A manager that goes away and comes back.
fn sessions(port: &mut ControlPort) {
    // A question whose answer nobody waits for, and an event that nobody reads.
    let question = port.request(Kind::Time, WORKER, 0, NONE);
    let written = port.write(question.as_bytes(), 1).is_ok();
    let reopened = port.reopen().is_ok();
    check::holds("it comes back", written && reopened, "not");
    let (status, message) = port.about(Kind::Vm, WORKER, NONE);
    expect("it is served anew", status, Status::Done);
    check::equal(
        "the worker runs still",
        message.values[3],
        Phase::Running as u64,
    );
    let late = port
        .message()
        .is_some_and(|it| it.number == question.number);
    check::holds("no answer of before comes", !late, "one has come");
}

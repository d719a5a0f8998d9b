//! Claim: a manager with the right to do so reads the memory of a VM that does not run, all of it and nothing else, and the registers with which its
//! vCPU stopped, however it did; nobody reads a VM that runs, or has had no life, or one without the right.
//!
//! The VMs ([`dumped`](dumped.rs)) are, by index: itself, `abort`, `vector`, `off` (each ends by itself), `spins` (does not), `foreign` (without the
//! right, and ended) and `waits` (never started).
#![no_std]
#![no_main]

use bulkhead_abi::control::{DATA, EVENT_STATE, Kind, Message, Phase, Status, registers, right};
use bulkhead_guests::dumped::{MAGIC, NUMBER, PAGE_WORDS};
use bulkhead_guests::virtio::port::{ControlPort, expect};
use bulkhead_guests::{Board, check, gic, guest, println, ruin};

guest!(main = main);

const ABORT: u16 = 1;
const VECTOR: u16 = 2;
const OFF: u16 = 3;
const SPINS: u16 = 4;
const FOREIGN: u16 = 5;
const WAITS: u16 = 6;
const NONE: [u64; 4] = [0; 4];
const PAGE: u64 = 4096;
/// Memory of each VM.
const RAM: u64 = 4 << 20;

fn main(board: &'static Board) {
    gic::init();
    let Some(mut port) = ControlPort::of(board) else {
        return println!("FAIL dump-manager: there is no control port");
    };
    for vm in [ABORT, VECTOR, OFF, FOREIGN] {
        reaches(&mut port, vm, Phase::Down);
    }
    let Some(page) = whole(&mut port) else {
        return println!("FAIL dump-manager: the page is nowhere");
    };
    for (vm, at) in [
        (ABORT, Some(ruin::NOWHERE as u64)),
        (VECTOR, Some(ruin::NOWHERE as u64)),
        (OFF, None),
    ] {
        stopped(&mut port, vm, at);
        is_written(&mut port, vm, page);
    }
    runs(&mut port, page);
    refused(&mut port);
    expect(
        "the last order",
        port.about(Kind::Stop, SPINS, NONE).0,
        Status::Done,
    );
    check::holds("the device works", !port.has_failed(), "it needs a reset");
    check::done();
}

/// Waits until a VM is in a phase.
fn reaches(port: &mut ControlPort, vm: u16, phase: Phase) {
    let is_it = |it: &Message| it.vm == vm && it.values[3] == phase as u64;
    let now = port.about(Kind::Vm, vm, NONE).1;
    let reached = is_it(&now) || port.wait(|it| it.kind == EVENT_STATE && is_it(it)).is_ok();
    check::holds(
        format_args!("VM {vm} is {}", phase.word()),
        reached,
        "it is not",
    );
}

/// Reads memory. The bytes are [`ControlPort::data`].
fn read(port: &mut ControlPort, vm: u16, ipa: u64, most: u64) -> (Option<Status>, Message) {
    for _ in 0..100_000 {
        let (status, message) = port.about(Kind::Memory, vm, [ipa, most, 0, 0]);
        // One that is being paused.
        if status != Some(Status::Silent) {
            return (status, message);
        }
    }
    (None, Message::default())
}

fn word(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?))
}

/// Reads all memory of a VM; gives where its page is.
fn whole(port: &mut ControlPort) -> Option<u64> {
    let (status, message) = read(port, ABORT, 0, 0);
    expect("where its memory is", status, Status::Done);
    let [first, bytes, life, ..] = message.values;
    check::equal("all of it", bytes, RAM);
    check::equal("its life", life, 1);
    check::equal("without bytes of it", port.data().len() as u64, 0);
    let (mut next, mut page, mut sound) = (first, None, true);
    while next < first + RAM {
        let most = DATA as u64;
        let (status, message) = read(port, ABORT, next, most);
        let data = port.data();
        let wanted = most.min(first + RAM - next);
        sound &= status == Some(Status::Done) && message.values[..2] == [next, first + RAM - next];
        // Windows of 2 MiB end between two messages.
        let (end, to_window) = (next + wanted, (2 << 20) - next % (2 << 20));
        sound &=
            data.len() as u64 == wanted || data.len() as u64 == to_window && next + to_window < end;
        if data.is_empty() {
            break;
        }
        let of_page = next.next_multiple_of(PAGE) - next;
        let is_it = |at: &u64| data.get(*at as usize..).and_then(word) == Some(MAGIC);
        page = page.or(Some(of_page).filter(is_it).map(|at| next + at));
        next += data.len() as u64;
    }
    check::holds(
        "each message has what was asked for",
        sound && next == first + RAM,
        next,
    );
    let (status, message) = read(port, ABORT, next, 1);
    expect("behind it", status, Status::Done);
    check::equal("there is nothing", message.values[1], 0);
    page
}

/// Looks at the page of a VM.
fn is_written(port: &mut ControlPort, vm: u16, page: u64) {
    let (status, _) = read(port, vm, page, DATA as u64);
    expect("its page", status, Status::Done);
    let data = port.data();
    let right = (0..)
        .zip(data.chunks_exact(8))
        .all(|(n, bytes)| word(bytes) == Some(MAGIC.wrapping_mul(2 * n + 1)));
    let whole = data.len() == DATA && DATA / 8 < PAGE_WORDS;
    check::holds(
        format_args!("the page of VM {vm}"),
        right && whole,
        "is another",
    );
}

/// Registers of a VM.
fn registers_of(port: &mut ControlPort, vm: u16) -> [u64; registers::WORDS] {
    let mut words = [0; registers::WORDS];
    for (first, places) in (0..).step_by(14).zip(words.chunks_mut(14)) {
        let goes_on = u64::from(first != 0);
        let (status, message) = port.about(Kind::Registers, vm, [first, goes_on, 0, 0]);
        expect("registers", status, Status::Done);
        for (place, value) in places.iter_mut().zip(message.values) {
            *place = value;
        }
    }
    words
}

/// Looks at the registers with which a VM stopped: at this PC, if it is known.
fn stopped(port: &mut ControlPort, vm: u16, at: Option<u64>) {
    let words = registers_of(port, vm);
    let wrong = (2..31).find(|n| words[registers::X + n] != NUMBER + *n as u64);
    check::holds(
        format_args!("registers of VM {vm}"),
        wrong.is_none(),
        format_args!("x{wrong:?} of {:x?}", &words[registers::X..]),
    );
    check::equal("x1", words[registers::X + 1], ruin::NOWHERE as u64);
    let pc = words[registers::PC];
    let known = at.is_none_or(|at| pc == at + 0x200);
    check::holds("its PC", pc != 0 && known, format_args!("{pc:#x}"));
    check::equal("EL1 with its own stack", words[registers::PSTATE] & 0xf, 5);
    check::holds("its stack", words[registers::SP_EL1] != 0, "is at 0");
    let state = port.about(Kind::Vm, vm, NONE).1.values[3];
    let told = if state == Phase::Paused as u64 { 3 } else { 4 };
    check::equal("its state", words[registers::STATE], told);
}

/// A VM that runs, is paused, goes on, is stopped, and begins a new life.
fn runs(port: &mut ControlPort, page: u64) {
    reaches(port, SPINS, Phase::Running);
    is_refused(port);
    expect(
        "pause",
        port.about(Kind::Pause, SPINS, NONE).0,
        Status::Done,
    );
    is_written(port, SPINS, page);
    stopped(port, SPINS, None);
    expect(
        "resume",
        port.about(Kind::Resume, SPINS, NONE).0,
        Status::Done,
    );
    is_refused(port);
    for life in 1..3 {
        expect("stop", port.about(Kind::Stop, SPINS, NONE).0, Status::Done);
        reaches(port, SPINS, Phase::Down);
        if life == 1 {
            is_written(port, SPINS, page);
            stopped(port, SPINS, None);
        }
        check::equal("its life", read(port, SPINS, 0, 0).1.values[2], life);
        expect(
            "start",
            port.about(Kind::Start, SPINS, NONE).0,
            Status::Done,
        );
        reaches(port, SPINS, Phase::Running);
    }
}

fn is_refused(port: &mut ControlPort) {
    let (status, message) = read(port, SPINS, 0, 64);
    expect("memory of who runs", status, Status::Phase);
    check::equal("none came", port.data().len() as u64, 0);
    check::equal("which it says", message.values[0], Phase::Running as u64);
    let (status, _) = port.about(Kind::Registers, SPINS, NONE);
    expect("registers of who runs", status, Status::Phase);
}

fn refused(port: &mut ControlPort) {
    let granted = u64::from(right::LIST | right::START);
    for kind in [Kind::Memory, Kind::Registers] {
        let (status, message) = port.about(kind, FOREIGN, NONE);
        expect("without the right", status, Status::Rights);
        check::equal("which it says", message.values[0], granted);
        check::equal("none came", port.data().len() as u64, 0);
    }
    let (status, _) = read(port, WAITS, 0, 64);
    expect("who has had no life", status, Status::Nothing);
    check::equal("nothing came", port.data().len() as u64, 0);
    let (status, _) = read(port, OFF, 0, DATA as u64 + 1);
    expect("more than a page", status, Status::Value);
}

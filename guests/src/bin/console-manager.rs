//! Claim: a manager with the right to do so reads what a VM prints, byte for byte, types on its console, and is told when there is more; without the
//! right it does not; nobody waits for it, and what it has missed is counted.
//!
//! The VMs ([`talker`](talker.rs)) are, by index: itself, `talks`, `deaf` (console rights), `quiet` (logs alone), `locked` (hard real-time, console
//! rights) and `foreign` (list).
#![no_std]
#![no_main]

use arrayvec::ArrayVec;
use bulkhead_abi::control::{
    EVENT_OUTPUT, EVENT_STATE, INPUT_DATA, Kind, Message, OUTPUT_DATA, Phase, Status, right,
};
use bulkhead_guests::virtio::port::{ControlPort, expect};
use bulkhead_guests::{Board, check, gic, guest, println, timer};

guest!(main = main);

const TALKS: u16 = 1;
const DEAF: u16 = 2;
const QUIET: u16 = 3;
const LOCKED: u16 = 4;
const FOREIGN: u16 = 5;
const NONE: [u64; 4] = [0; 4];
/// What a talker says first.
const READY: &[u8] = b"talker: ready\r\n";
/// Lines of its burst, and the bytes of each.
const LINES: u64 = 600;
const LINE: u64 = 17;
/// What the guest's stream for input has room for.
const ROOM: usize = 256;

type Text = ArrayVec<u8, 2048>;

fn main(board: &'static Board) {
    gic::init();
    let Some(mut port) = ControlPort::of(board) else {
        return println!("FAIL console-manager: there is no control port");
    };
    rights(&mut port);
    let mut next = begins(&mut port);
    next = answers(&mut port, next);
    next = bursts(&mut port, next);
    lives(&mut port, next);
    deaf(&mut port);
    values(&mut port);
    hammers(&mut port);
    for vm in [TALKS, DEAF, QUIET] {
        expect(
            "the last order",
            port.about(Kind::Stop, vm, NONE).0,
            Status::Done,
        );
    }
    check::holds("the device works", !port.has_failed(), "it needs a reset");
    check::done();
}

/// Reads what a VM has printed from a byte on: number of the first, and of the next that it will print. The bytes are [`ControlPort::data`].
fn read(port: &mut ControlPort, vm: u16, from: u64) -> (u64, u64) {
    let (status, message) = port.about(Kind::Output, vm, [from, OUTPUT_DATA as u64, 0, 0]);
    if status != Some(Status::Done) {
        expect("what it has printed", status, Status::Done);
    }
    (message.values[0], message.values[1])
}

/// Waits until a VM has printed more than the manager has read of it.
fn is_told(port: &mut ControlPort, vm: u16) -> bool {
    port.wait(|it| it.kind == EVENT_OUTPUT && it.vm == vm)
        .is_ok()
}

/// Reads from a byte on until a line ends with this text. Gives all that was read, and the number of the next byte.
fn until(port: &mut ControlPort, vm: u16, mut next: u64, end: &[u8]) -> (Text, u64) {
    let mut text = Text::new();
    loop {
        let (first, newest) = read(port, vm, next);
        if first != next {
            check::equal("nothing is missing", first, next);
        }
        let data = port.data();
        let fits = text.try_extend_from_slice(data).is_ok();
        next = first + data.len() as u64;
        if text.ends_with(end) || !fits {
            return (text, next);
        }
        if next == newest && !is_told(port, vm) {
            return (text, next);
        }
    }
}

fn says(name: &str, text: &[u8], expected: &[u8]) {
    let text_words = core::str::from_utf8(text).unwrap_or("no text");
    check::holds(name, text == expected, format_args!("{text_words:?}"));
}

/// Types, and gives how many bytes were taken.
fn type_on(port: &mut ControlPort, vm: u16, text: &[u8]) -> (Option<Status>, u64) {
    let mut values = [text.len() as u64, 0, 0, 0];
    for (word, bytes) in values[1..].iter_mut().zip(text.chunks(8)) {
        for (place, byte) in (0..).step_by(8).zip(bytes) {
            *word |= u64::from(*byte) << place;
        }
    }
    let (status, message) = port.about(Kind::Input, vm, values);
    (status, message.values[0])
}

fn begins(port: &mut ControlPort) -> u64 {
    let (text, next) = until(port, TALKS, 0, READY);
    says("its first line", &text, READY);
    let (first, newest) = read(port, TALKS, 3);
    check::equal("from the middle", first, 3);
    says("the rest of it", port.data(), &READY[3..]);
    let (first, _) = read(port, TALKS, u64::MAX);
    check::equal("behind the end is the end", first, newest);
    check::equal("without a byte", port.data().len() as u64, 0);
    next
}

/// What is typed arrives, whole and in order, and what comes of it is told.
fn answers(port: &mut ControlPort, mut next: u64) -> u64 {
    for round in 0..20u8 {
        // All lengths, the longest in two requests.
        let mut line = ArrayVec::<u8, 64>::new();
        line.extend((0..round * 2).map(|n| b'a' + (n + round) % 26));
        let mut heard = ArrayVec::<u8, 64>::new();
        heard.extend(b"heard ".iter().chain(&line).chain(b"\r\n").copied());
        line.push(b'\n');
        for part in line.chunks(INPUT_DATA) {
            let (status, taken) = type_on(port, TALKS, part);
            expect("typing", status, Status::Done);
            check::equal("bytes that were taken", taken, part.len() as u64);
        }
        let (text, behind) = until(port, TALKS, next, &heard);
        says("its answer", &text, &heard);
        next = behind;
    }
    next
}

/// A VM that prints faster than the manager reads does not wait for it: what is read is right to the byte, and what is not is counted.
fn bursts(port: &mut ControlPort, start: u64) -> u64 {
    let (status, _) = type_on(port, TALKS, b"!");
    expect("a burst", status, Status::Done);
    // The manager has something else to do.
    timer::spin(200_000);
    let (mut next, end) = (start, start + LINES * LINE);
    let (mut missed, mut wrong, mut got) = (0, None, 0);
    while next < end {
        let (first, newest) = read(port, TALKS, next);
        missed += first - next;
        for (number, byte) in (first..).zip(port.data()) {
            let at = number - start;
            let expected = expected_byte(at);
            if *byte != expected {
                wrong = wrong.or(Some((at, *byte, expected)));
            }
        }
        got += port.data().len() as u64;
        next = first + port.data().len() as u64;
        if next == newest && next < end && !is_told(port, TALKS) {
            break;
        }
    }
    check::holds(
        "each byte in its place",
        wrong.is_none(),
        format_args!("{wrong:?}"),
    );
    check::equal("read and missed together", got + missed, LINES * LINE);
    check::holds("some of it was missed", missed != 0, "none");
    check::holds("some of it was read", got > 1900, got);
    next
}

/// A byte of a burst.
fn expected_byte(at: u64) -> u8 {
    let (line, column) = (at / LINE, at % LINE);
    match column {
        0..6 => b"burst "[column as usize],
        6..14 => b'0' + (line / 10u64.pow(13 - column as u32) % 10) as u8,
        14 => b'.',
        15 => b'\r',
        _ => b'\n',
    }
}

/// Bytes are counted through all lives of a VM, and those of one that has ended are there.
fn lives(port: &mut ControlPort, start: u64) {
    let (status, _) = port.about(Kind::Stop, TALKS, NONE);
    expect("stop", status, Status::Done);
    reaches(port, Phase::Down);
    let (first, newest) = read(port, TALKS, start - LINE);
    check::holds(
        "it is silent",
        first == start - LINE && newest == start,
        format_args!("{first} {newest}"),
    );
    says("the last words", port.data(), b"burst 00000599.\r\n");
    let (status, _) = type_on(port, TALKS, b"x");
    expect("nobody types to who is down", status, Status::Phase);
    let (status, _) = port.about(Kind::Start, TALKS, NONE);
    expect("start", status, Status::Done);
    let (text, next) = until(port, TALKS, start, READY);
    says("the first line of its next life", &text, READY);
    check::equal("behind that of the last", next, start + READY.len() as u64);
}

fn reaches(port: &mut ControlPort, phase: Phase) {
    let is_it = |it: &Message| it.vm == TALKS && it.values[3] == phase as u64;
    let now = port.about(Kind::Vm, TALKS, NONE).1;
    let reached = is_it(&now) || port.wait(|it| it.kind == EVENT_STATE && is_it(it)).is_ok();
    check::holds(phase.word(), reached, "it is not");
}

/// What a VM does not read has an end, which the manager is told.
fn deaf(port: &mut ControlPort) {
    let (mut all, mut none) = (0, 0);
    for _ in 0..20 {
        let (status, taken) = type_on(port, DEAF, &[b'x'; INPUT_DATA]);
        if status != Some(Status::Done) {
            expect("typing where there may be no room", status, Status::Done);
        }
        all += taken;
        none += u64::from(taken == 0);
    }
    check::equal("as much as there is room for", all, ROOM as u64);
    check::equal(
        "then none is taken",
        none,
        20 - (ROOM as u64).div_ceil(INPUT_DATA as u64),
    );
}

fn rights(port: &mut ControlPort) {
    let (text, _) = until(port, QUIET, 0, READY);
    says("who may read only reads", &text, READY);
    let (status, _) = type_on(port, QUIET, b"x");
    expect("and does not type", status, Status::Rights);
    for (kind, values) in [(Kind::Output, NONE), (Kind::Input, [1, 0x78, 0, 0])] {
        let (status, message) = port.about(kind, FOREIGN, values);
        expect("without the right", status, Status::Rights);
        check::equal("which it says", message.values[0], right::LIST.into());
        check::equal("no byte came", port.data().len() as u64, 0);
    }
    read(port, LOCKED, 0);
    let (status, _) = type_on(port, LOCKED, b"x");
    expect("it is not interrupted", status, Status::WouldExit);
}

fn values(port: &mut ControlPort) {
    for size in [0, INPUT_DATA as u64 + 1, 1 << 32 | 1, u64::MAX] {
        let (status, _) = port.about(Kind::Input, TALKS, [size, 0, 0, 0]);
        expect("so many bytes are not typed", status, Status::Value);
    }
    for most in [OUTPUT_DATA as u64 + 1, 1 << 16, u64::MAX] {
        let (status, _) = port.about(Kind::Output, TALKS, [0, most, 0, 0]);
        expect("so many bytes are not read", status, Status::Value);
    }
    let (status, message) = port.about(Kind::Output, TALKS, [0, 0, 0, 0]);
    expect("none are read", status, Status::Done);
    check::equal("and none come", u64::from(message.data), 0);
    for bytes in [1, 7, 8, 9, OUTPUT_DATA as u64] {
        let (_, newest) = read(port, TALKS, u64::MAX);
        let from = newest - OUTPUT_DATA as u64;
        let (_, message) = port.about(Kind::Output, TALKS, [from, bytes, 0, 0]);
        check::equal("as many as were asked for", port.data().len() as u64, bytes);
        check::equal("from where", message.values[0], from);
    }
}

/// Types without reading, and reads without end, while the VM talks.
fn hammers(port: &mut ControlPort) {
    let (_, start) = read(port, TALKS, u64::MAX);
    let (mut typed, mut wrong) = (0u64, 0u64);
    let end = timer::now() + timer::ticks(200_000);
    while timer::now() < end {
        let (status, taken) = type_on(port, TALKS, b"ab\n");
        wrong += u64::from(status != Some(Status::Done) || taken != 0 && taken != 3);
        typed += u64::from(taken == 3);
        let (status, _) = port.about(Kind::Output, TALKS, [start, 8, 0, 0]);
        wrong += u64::from(status != Some(Status::Done));
    }
    check::holds(
        "all were answered",
        wrong == 0 && typed > 10,
        format_args!("{wrong} of {typed}"),
    );
    port.forget();
    let (mut next, mut heard) = (start, 0);
    loop {
        let (first, newest) = read(port, TALKS, next);
        heard += port.data().iter().filter(|byte| **byte == b'\n').count() as u64;
        let data = port.data().len() as u64;
        (heard, next) = (heard + (first - next) / 10, first + data);
        if heard >= typed || next == newest && !is_told(port, TALKS) {
            break;
        }
    }
    check::equal("each line that was typed was heard", heard, typed);
}

//! Claim: a program at EL0 has of the performance monitors what PMUSERENR_EL0 gives it, is told by its own kernel (and not by the hypervisor) of the rest, and counters
//! tell EL0 from EL1.
//!
//! Without translation, as the code is run at both levels.
#![no_std]
#![no_main]

use bulkhead_guests::entry::{self, Entry};
use bulkhead_guests::pmu::{
    CONTROL, CYCLE_COUNTER, CYCLES, Code, DISABLE, ENABLE, INST_RETIRED, NOT_EL0, NOT_EL1, SW_INCR,
    USER, kind, value,
};
use bulkhead_guests::{Board, check, guest};

guest!(main = main, mmu = off);

/// SPSR of EL0 and of EL1 with its own stack, all masked.
const FROM: [u64; 2] = [0x3c0, 0x3c5];
/// PMUSERENR_EL0: EN, SW, CR, ER.
const EN: u64 = 1;
const SW: u64 = 2;
const CR: u64 = 4;
const ER: u64 = 8;
/// Exception classes.
const UNDEFINED: u64 = 0;
const TRAPPED: u64 = 0x18;
/// How often all is done.
const TURNS: u64 = 40;

fn run(code: Code, spsr: u64, x0: u64) -> (u64, Entry) {
    let entry = entry::go((code.pc(), spsr), x0, 0);
    (entry.esr >> 26, entry)
}

fn main(_: &Board) {
    let mut wrong = [0u64; 3];
    for _ in 0..TURNS {
        wrong[0] += levels();
        wrong[1] += rights();
        wrong[2] += increments();
    }
    for (wrong, name) in wrong.into_iter().zip([
        "EL0 and EL1 are told apart",
        "EL0 has what it is given",
        "EL0 increments",
    ]) {
        check::equal(name, wrong, 0);
    }
    check::done();
}

/// Counts a hundred NOPs at each level.
fn levels() -> u64 {
    let mut wrong = 0;
    kind(0).write(INST_RETIRED | NOT_EL1);
    kind(1).write(INST_RETIRED | NOT_EL0);
    kind(2).write(INST_RETIRED);
    for (level, spsr) in FROM.into_iter().enumerate() {
        CONTROL.write(1 | 1 << 1 | 1 << 6);
        ENABLE.write(0b111);
        let (class, _) = run(Code::Nops, spsr, 0);
        DISABLE.write(0b111);
        wrong += u64::from(class != UNDEFINED);
        let [at_el0, at_el1, at_both] = [0, 1, 2].map(|n| value(n).read());
        wrong += u64::from(at_el0 + at_el1 != at_both);
        // Around them EL1 writes the registers.
        wrong += u64::from(if level == 0 {
            !(100..=102).contains(&at_el0)
        } else {
            at_el0 != 0 || at_el1 < 100
        });
    }
    wrong
}

fn rights() -> u64 {
    let all = [
        (Code::ReadUser, EN | SW | CR | ER | 1 << 4),
        (Code::ReadCycles, EN | CR),
        (Code::WriteCycles, EN),
        (Code::ReadEvent, EN | ER),
        (Code::ReadEnabled, EN),
        (Code::Increment, EN | SW),
    ];
    let mut wrong = 0;
    CONTROL.write(1 << 6);
    ENABLE.write(1 << CYCLES);
    for user in 0..16 {
        USER.write(user);
        for (code, given) in all {
            CYCLE_COUNTER.write(0x1234_5678_9abc);
            value(0).write(0x55);
            let (class, entry) = run(code, FROM[0], 0x77);
            // PMUSERENR_EL0 can always be read.
            let allowed = (user | 1 << 4) & given != 0;
            let expected = if allowed { UNDEFINED } else { TRAPPED };
            wrong += u64::from(class != expected);
            wrong += u64::from(entry.vector != 0x400);
            wrong += u64::from(entry.elr - code.pc() != if allowed { 4 } else { 0 });
            let read = match code {
                _ if !allowed => 0,
                Code::ReadUser => user,
                Code::ReadCycles => 0x1234_5678_9abc,
                Code::ReadEvent => 0x55,
                Code::ReadEnabled => 1 << CYCLES,
                _ => 0,
            };
            wrong += u64::from(entry.results[0] != read);
            let cycles = match code {
                Code::WriteCycles if allowed => 0x77,
                _ => 0x1234_5678_9abc,
            };
            wrong += u64::from(CYCLE_COUNTER.read() != cycles);
        }
    }
    USER.write(0);
    DISABLE.write(1 << CYCLES);
    wrong
}

fn increments() -> u64 {
    let mut wrong = 0;
    USER.write(SW);
    CONTROL.write(1 | 1 << 1 | 1 << 6);
    for (filter, expected) in [(0, 1), (NOT_EL1, 1), (NOT_EL0, 0)] {
        kind(0).write(SW_INCR | filter);
        value(0).write(0);
        ENABLE.write(1);
        let _ended = run(Code::Increment, FROM[0], 1);
        DISABLE.write(1);
        wrong += u64::from(value(0).read() != expected);
    }
    USER.write(0);
    wrong
}

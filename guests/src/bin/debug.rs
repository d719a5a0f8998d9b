//! Claim: breakpoints, watchpoints and single steps work in a VM with `debug`, from EL0 and EL1, as the architecture says, whoever shares its pCPU;
//! and no other VM notices any of them.
//!
//! In a VM without, which OSLSR_EL1 tells, the code at which others break and step, at the same addresses in all, runs without a single debug
//! exception. Without translation, as the code is run at both levels; so nothing is read from the device tree.
#![no_std]
#![no_main]

use bulkhead_guests::debug::{Code, MDSCR, OSLAR, OSLSR, Which, pair, set_context};
use bulkhead_guests::entry::{self, Entry};
use bulkhead_guests::{Board, check, cpu, guest, mrs, power, println, timer};

guest!(main = main, mmu = off);

/// SPSR of EL0 and of EL1 with its own stack: debug exceptions are open, all others masked.
const FROM: [(&str, u64); 2] = [("EL0", 0x1c0), ("EL1", 0x1c5)];
/// PSTATE.SS.
const SS: u64 = 1 << 21;
/// Exception classes, of which those from the same level are one more.
const UNDEFINED: u64 = 0;
const BREAKPOINT: u64 = 0x30;
const STEP: u64 = 0x32;
const WATCHPOINT: u64 = 0x34;
/// MDSCR_EL1.SS, KDE, MDE.
const STEPS: u64 = 1;
const KDE: u64 = 1 << 13;
const MDE: u64 = 1 << 15;
/// DBGBCR<n>_EL1: E, all of an instruction; DBGWCR<n>_EL1: E, all of a word of 64 bits. At EL0 and EL1.
const BREAK: u64 = 1 | 15 << 5 | BOTH;
const WATCH: u64 = 1 | 0xff << 5 | BOTH;
const BOTH: u64 = 3 << 1;
/// A breakpoint by address that is linked to one of a context, and such a one.
const LINKED: u64 = 1 << 20;
const CONTEXT: u64 = 3 << 20;

static WORDS: [core::sync::atomic::AtomicU64; 2] =
    [const { core::sync::atomic::AtomicU64::new(0) }; 2];

/// OSLSR_EL1 with the lock open.
const UNLOCKED: u64 = 0b1000;
/// How often all is done, in VMs with debug registers and without.
const TURNS: u64 = 60;
const PLAIN_TURNS: u64 = 25_000;

/// What ended a piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ended {
    class: u64,
    /// Bytes from its beginning.
    at: u64,
}

/// Runs a piece of code from a level; `flags` are more bits of PSTATE.
fn run(code: Code, (_, spsr): (&str, u64), flags: u64, x0: u64) -> (Ended, Entry) {
    let entry = entry::go((code.pc(), spsr | flags), x0, 0);
    let class = entry.esr >> 26;
    let same = spsr & 0xf != 0 && class != UNDEFINED;
    let ended = Ended {
        class: class - u64::from(same),
        at: entry.elr.wrapping_sub(code.pc()),
    };
    (ended, entry)
}

/// A part of what is done in each turn, with the number of breakpoints and watchpoints and the context.
type Part = fn([u64; 2], u64, &mut Wrong);

/// A value for register `n`.
const fn pattern(n: u64) -> u64 {
    (n + 1) * 0x0011_1111_1111_1111
}

/// What has gone wrong first.
struct Wrong(Option<(&'static str, u64, Ended)>);

impl Wrong {
    fn expect(&mut self, what: &'static str, n: u64, ended: Ended, class: u64, at: u64) {
        if ended != (Ended { class, at }) && self.0.is_none() {
            self.0 = Some((what, n, ended));
        }
    }

    fn holds(&mut self, what: &'static str, n: u64, condition: bool) {
        if !condition && self.0.is_none() {
            let ended = Ended { class: 0, at: 0 };
            self.0 = Some((what, n, ended));
        }
    }

    fn report(self, name: &str) {
        match self.0 {
            None => check::holds(name, true, ""),
            Some((what, n, Ended { class, at })) => {
                check::holds(
                    name,
                    false,
                    format_args!("{what} {n}: class {class:#x} at {at}"),
                );
            }
        }
    }
}

fn set(n: u64, which: Which, value: u64) {
    assert!(pair(n as u32, which).write(value).is_ok());
}

fn main(_: &Board) {
    if OSLSR.read() == Ok(UNLOCKED) {
        return plain();
    }
    // One of each VM's own.
    let context = timer::now() & 0xffff_fff0;
    set_context(context);
    let dfr0 = mrs!("id_aa64dfr0_el1");
    let counts = [dfr0 >> 12 & 15, dfr0 >> 20 & 15].map(|field| field + 1);
    let contexts = (dfr0 >> 28 & 15) + 1;
    println!("debug: {counts:?} breakpoints and watchpoints, {contexts} of contexts");
    check::equal("the lock at the start", OSLSR.read().unwrap_or(0), 0b1010);
    check::equal("nothing is on", MDSCR.read().unwrap_or(1), 0);
    locked();
    assert!(OSLAR.write(0).is_ok());
    check::equal("the lock is open", OSLSR.read().unwrap_or(0), UNLOCKED);
    registers(counts);
    let all: [(&str, Part); 4] = [
        ("breakpoints", breakpoints),
        ("breakpoints of contexts", of_contexts),
        ("watchpoints", watchpoints),
        ("steps", steps),
    ];
    let mut wrong = all.map(|_| Wrong(None));
    for _ in 0..TURNS {
        for ((_, each), wrong) in all.iter().zip(&mut wrong) {
            each(counts, context, wrong);
            assert!(MDSCR.write(0).is_ok());
        }
    }
    for ((name, _), wrong) in all.iter().zip(wrong) {
        wrong.report(name);
    }
    second(counts);
    check::done();
}

/// As long as the OS lock is locked nothing is on.
fn locked() {
    set(0, Which::BreakValue, Code::Nops.pc());
    set(0, Which::BreakControl, BREAK);
    assert!(MDSCR.write(MDE | KDE | STEPS).is_ok());
    let mut wrong = Wrong(None);
    for from in FROM {
        let (ended, _) = run(Code::Nops, from, SS, 0);
        wrong.expect("locked", 0, ended, UNDEFINED, 32);
    }
    assert!(MDSCR.write(0).is_ok());
    set(0, Which::BreakControl, 0);
    wrong.report("the lock holds all back");
}

/// Each register has what was written, and there are as many as the ID register says.
fn registers(counts: [u64; 2]) {
    let mut wrong = Wrong(None);
    let kinds = [
        (Which::BreakValue, counts[0], u64::MAX),
        (Which::BreakControl, counts[0], 0x003f_01e7),
        (Which::WatchValue, counts[1], u64::MAX),
        (Which::WatchControl, counts[1], 0x1f1f_1fff),
    ];
    for (which, count, bits) in kinds {
        for n in 0..16 {
            let (register, value) = (pair(n as u32, which), pattern(n) & bits);
            let done = register.write(value);
            wrong.holds("there", n, done.is_ok() == (n < count));
        }
        for n in 0..count {
            let value = pattern(n) & bits;
            wrong.holds("kept", n, pair(n as u32, which).read() == Ok(value));
        }
        for n in 0..count {
            set(n, which, 0);
        }
    }
    // What is for external debuggers, or about EL2, is not there.
    assert!(MDSCR.write(!(STEPS | MDE)).is_ok());
    wrong.holds(
        "halting",
        0,
        MDSCR.read().is_ok_and(|value| value == KDE | 1 << 12),
    );
    set(0, Which::BreakControl, 7 << 13);
    let read = pair(0, Which::BreakControl).read();
    wrong.holds("levels", 0, read == Ok(0));
    wrong.report("registers");
}

fn breakpoints(counts: [u64; 2], _: u64, wrong: &mut Wrong) {
    for n in 0..counts[0] {
        let at = n % 8 * 4;
        set(n, Which::BreakValue, Code::Nops.pc() + at);
        for (control, levels) in [(BREAK, 3), (BREAK & !(1 << 1), 1), (BREAK & !(2 << 1), 2)] {
            set(n, Which::BreakControl, control);
            assert!(MDSCR.write(MDE | KDE).is_ok());
            for (level, from) in FROM.into_iter().enumerate() {
                let (ended, _) = run(Code::Nops, from, 0, 0);
                if levels >> level & 1 == 1 {
                    wrong.expect("breakpoint", n, ended, BREAKPOINT, at);
                } else {
                    wrong.expect("breakpoint of another level", n, ended, UNDEFINED, 32);
                }
            }
        }
        // EL1 only with KDE, nothing without MDE.
        for (control, levels) in [(MDE, 1), (KDE, 0)] {
            set(n, Which::BreakControl, BREAK);
            assert!(MDSCR.write(control).is_ok());
            for (level, from) in FROM.into_iter().enumerate() {
                let (ended, _) = run(Code::Nops, from, 0, 0);
                let on = levels >> level & 1 == 1;
                let expected = if on {
                    (BREAKPOINT, at)
                } else {
                    (UNDEFINED, 32)
                };
                wrong.expect("breakpoint that is off", n, ended, expected.0, expected.1);
            }
        }
        set(n, Which::BreakControl, 0);
    }
}

fn of_contexts(counts: [u64; 2], context: u64, wrong: &mut Wrong) {
    let last = counts[0] - 1;
    set(0, Which::BreakValue, Code::Nops.pc() + 8);
    set(0, Which::BreakControl, BREAK | LINKED | last << 16);
    set(last, Which::BreakControl, BREAK | CONTEXT);
    for other in [0, 1] {
        set(last, Which::BreakValue, context + other);
        assert!(MDSCR.write(MDE | KDE).is_ok());
        for from in FROM {
            let (ended, _) = run(Code::Nops, from, 0, 0);
            let expected = if other == 0 {
                (BREAKPOINT, 8)
            } else {
                (UNDEFINED, 32)
            };
            wrong.expect("context", other, ended, expected.0, expected.1);
        }
    }
    set(0, Which::BreakControl, 0);
    set(last, Which::BreakControl, 0);
}

fn watchpoints(counts: [u64; 2], _: u64, wrong: &mut Wrong) {
    let [word, other] = [&WORDS[0], &WORDS[1]].map(|word| core::ptr::from_ref(word).addr() as u64);
    for n in 0..counts[1] {
        set(n, Which::WatchValue, word);
        for kinds in [1, 2, 3] {
            set(n, Which::WatchControl, WATCH | kinds << 3);
            assert!(MDSCR.write(MDE | KDE).is_ok());
            for from in FROM {
                for (bit, code) in [(1, Code::Load), (2, Code::Store)] {
                    let (ended, entry) = run(code, from, 0, word);
                    if kinds & bit != 0 {
                        wrong.expect("watchpoint", n, ended, WATCHPOINT, 0);
                        wrong.holds("its address", n, entry.far == word);
                    } else {
                        wrong.expect("watchpoint of the other kind", n, ended, UNDEFINED, 4);
                    }
                    let (ended, _) = run(code, from, 0, other);
                    wrong.expect("watchpoint elsewhere", n, ended, UNDEFINED, 4);
                }
            }
        }
        set(n, Which::WatchControl, 0);
    }
}

fn steps(_: [u64; 2], _: u64, wrong: &mut Wrong) {
    let dfr0 = mrs!("id_aa64dfr0_el1");
    // UARTFR of the emulated UART.
    let flags = 0x900_0018;
    const PSCI_VERSION: u64 = 0x8400_0000;
    assert!(MDSCR.write(STEPS | KDE).is_ok());
    let (low, high) = (0, 1);
    for from in FROM {
        let (ended, entry) = run(Code::Move, from, SS, 0);
        wrong.expect("step", 0, ended, STEP, 4);
        wrong.holds("step done", 0, entry.results[low] == 5);
        // Without PSTATE.SS it is over before the first instruction.
        let (ended, entry) = run(Code::Move, from, 0, 0);
        wrong.expect("step that is over", 0, ended, STEP, 0);
        wrong.holds("nothing done", 0, entry.results[low] == 0);
    }
    let el1 = FROM[1];
    let emulated = [
        (Code::Id, 0, Some((low, dfr0))),
        (Code::IdHigh, 0, Some((high, dfr0))),
        (Code::Mmio, flags, None),
        (Code::MmioHigh, flags, None),
        (Code::Hvc, PSCI_VERSION, None),
        (Code::Smc, PSCI_VERSION, None),
        (Code::Wfe, 0, None),
    ];
    for (n, (code, x0, result)) in (0..).zip(emulated) {
        let (ended, entry) = run(code, el1, SS, x0);
        wrong.expect("step of what is emulated", n, ended, STEP, 4);
        wrong.holds(
            "not before it is done",
            n,
            entry.results != [6, 0] && entry.results[1] != 6,
        );
        if let Some((which, value)) = result {
            wrong.holds("its result", n, entry.results[which] == value);
        }
    }
    // Should it sleep, its timer wakes it. QEMU takes it for a NOP while it steps, which it may be.
    timer::arm(timer::now() + timer::ticks(50));
    let (ended, _) = run(Code::Wfi, el1, SS, 0);
    wrong.expect("step of WFI", 0, ended, STEP, 4);
    timer::disarm();
    // An instruction that is not executed is stepped later.
    let (ended, entry) = run(Code::Undefined, el1, SS, 0);
    wrong.expect("step of what is undefined", 0, ended, UNDEFINED, 0);
    wrong.holds("still to be stepped", 0, entry.saved & SS != 0);
}

/// A CPU that starts has nothing of what was before.
fn second(counts: [u64; 2]) {
    use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
    static SEEN: AtomicU64 = AtomicU64::new(0);
    fn starts(breakpoints: u64) {
        let mut seen = OSLSR.read().unwrap_or(1) == 0b1010 && MDSCR.read() == Ok(0);
        for n in 0..breakpoints {
            seen &= pair(n as u32, Which::BreakControl).read() == Ok(0);
            set(n, Which::BreakValue, Code::Nops.pc());
            set(n, Which::BreakControl, BREAK);
        }
        assert!(OSLAR.write(0).is_ok() && MDSCR.write(MDE | KDE | STEPS).is_ok());
        SEEN.fetch_add(1 + u64::from(!seen) * 1000, SeqCst);
    }
    for turn in 1..=3 {
        if cpu::start(1, starts, counts[0]) != 0 {
            // There is none.
            return;
        }
        while SEEN.load(SeqCst) % 1000 < turn || power::affinity_info(1, 0) != 1 {
            core::hint::spin_loop();
        }
    }
    check::equal("a CPU that starts", SEEN.load(SeqCst), 3);
}

/// A VM without debug registers.
fn plain() {
    let mut wrong = Wrong(None);
    assert!(MDSCR.write(u64::MAX).is_ok());
    wrong.holds("MDSCR", 0, MDSCR.read() == Ok(0));
    let word = core::ptr::from_ref(&WORDS[0]).addr() as u64;
    for n in 0..PLAIN_TURNS {
        for from in FROM {
            let (ended, _) = run(Code::Nops, from, SS, 0);
            wrong.expect("breakpoint of another VM", n, ended, UNDEFINED, 32);
            for code in [Code::Load, Code::Store] {
                let (ended, _) = run(code, from, SS, word);
                wrong.expect("watchpoint of another VM", n, ended, UNDEFINED, 4);
            }
            let (ended, _) = run(Code::Move, from, SS, 0);
            wrong.expect("step of another VM", n, ended, UNDEFINED, 8);
        }
    }
    wrong.report("nothing of others");
    check::done();
}

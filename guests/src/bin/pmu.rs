//! Claim: the counters of a VM with performance monitors count what its own instructions do and nothing else, whoever shares its pCPU and whatever
//! EL2 does for it in between; they interrupt when they overflow, also one that is about to sleep; and no VM sees another's.
//!
//! An instruction takes 8 ns, and QEMU's cycles are nanoseconds. `own=1`: it has two pCPUs, and looks at what the second one has when it starts. `moves=`: it is moved between pCPUs in so many rounds.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering};

use bulkhead_guests::pmu::{
    CONTROL, CPU_CYCLES, CYCLE_COUNTER, CYCLES, DISABLE, ENABLE, EVENTS, INCREMENT, INST_RETIRED,
    INTERRUPTS, INTID, NO_INTERRUPTS, NOT_EL1, OVERFLOWS, Register, SELECT, SELECTED_TYPE,
    SELECTED_VALUE, SET_OVERFLOWS, SW_INCR, USER, kind, over_calls, over_loop, over_wfi, value,
};
use bulkhead_guests::{Board, check, cpu, gic, guest, mrs, msr, power, println, sysreg, timer};

guest!(main = main, irq = on_irq);

/// PMCR_EL0: E, P, C, LC.
const E: u64 = 1;
const P: u64 = 1 << 1;
const C: u64 = 1 << 2;
const LC: u64 = 1 << 6;
/// Cycles of an instruction.
const INSTRUCTION: u64 = 8;
/// Turns of a loop that takes longer than a turn of the vCPU.
const LONG: u64 = 1_000_000;

static TAKEN: AtomicU64 = AtomicU64::new(0);
static OVERFLOWED: AtomicU64 = AtomicU64::new(0);
/// How often only the timer came, though a counter had overflowed.
static LATE: AtomicU64 = AtomicU64::new(0);

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    // Before the access below, which would make up for a line that was forgotten.
    let pending = gic::most_urgent() == INTID;
    // Not as elsewhere: what has been interrupted may be code that reads or writes one.
    let overflows = mrs!("pmovsclr_el0");
    if taken.intid() == INTID {
        TAKEN.fetch_add(1, Ordering::Relaxed);
        OVERFLOWED.store(overflows, Ordering::Relaxed);
        msr!("pmovsclr_el0", overflows);
    } else {
        if overflows != 0 && !pending {
            LATE.fetch_add(1, Ordering::Relaxed);
        }
        timer::disarm();
    }
    gic::end(taken);
}

fn is_about(seen: u64, expected: u64) -> bool {
    // The instructions around the loop.
    seen.wrapping_sub(expected) <= 4 + expected / 5000
}

fn main(board: &'static Board) {
    let version = mrs!("id_aa64dfr0_el1") >> 8 & 15;
    let counters = (CONTROL.read() >> 11 & 31) as u32;
    println!("pmu: version {version}, {counters} counters");
    check::holds(
        "a version that guests have",
        matches!(version, 1 | 4),
        version,
    );
    check::holds("counters", (1..30).contains(&counters), counters);
    let all = ((1u64 << counters) - 1) | 1 << CYCLES;
    reset(counters, all);
    gic::init();
    gic::enable(INTID);
    gic::enable(timer::INTID);
    registers(counters, all);
    if board.argument("own") == Some(1) {
        software(counters);
        second();
        return check::done();
    }
    if let Some(rounds) = board.argument("moves") {
        software(counters);
        moved(counters, rounds);
        return check::done();
    }
    counts();
    cycles();
    overflow();
    software(counters);
    asleep();
    kept(counters, all);
    check::done();
}

/// After a reset nothing counts.
fn reset(counters: u32, all: u64) {
    let zero = [ENABLE, OVERFLOWS, INTERRUPTS, USER, SELECT, CYCLE_COUNTER];
    for register in zero {
        check::equal(
            format_args!("{register:?} after a reset"),
            register.read(),
            0,
        );
    }
    check::equal("nothing is on after a reset", CONTROL.read() & 0x7ff, 0);
    check::holds(
        "events",
        EVENTS.read() >> INST_RETIRED & 1 == 1 && EVENTS.read() >> CPU_CYCLES & 1 == 1,
        EVENTS.read(),
    );
    ENABLE.write(u64::MAX);
    check::equal("counters that can be enabled", DISABLE.read(), all);
    DISABLE.write(all);
    for n in counters..31 {
        let there = value(n).try_read().is_ok() || kind(n).try_write(0).is_ok();
        check::holds(format_args!("no counter {n}"), !there, "it is there");
    }
}

/// Each register has what was written and what a VM has of it.
fn registers(counters: u32, all: u64) {
    for n in 0..counters {
        SELECT.write(n.into());
        SELECTED_TYPE.write(u64::MAX);
        let seen = kind(n).read();
        // P, U and the event, of 10 or 16 bits.
        let fits = matches!(seen, 0xc000_03ff | 0xc000_ffff);
        check::holds(format_args!("kind {n}"), fits, format_args!("{seen:#x}"));
        value(n).write(0xffff_0000_1234_5678 + u64::from(n));
        check::equal(
            "selected value",
            SELECTED_VALUE.read(),
            0x1234_5678 + u64::from(n),
        );
        kind(n).write(0);
    }
    kind(CYCLES).write(u64::MAX);
    SELECT.write(CYCLES.into());
    check::equal("filter of cycles", SELECTED_TYPE.read(), 0xc000_0000);
    kind(CYCLES).write(0);
    for (set, clear) in [(INTERRUPTS, NO_INTERRUPTS), (SET_OVERFLOWS, OVERFLOWS)] {
        set.write(u64::MAX);
        check::equal(format_args!("{set:?}"), set.read(), all);
        clear.write(!1);
        check::equal(format_args!("{clear:?}"), clear.read(), 1);
        clear.write(u64::MAX);
    }
    // PMMIR_EL1 came with a version that guests do not have.
    let later = Register(0, 9, 14, 6).try_read();
    check::holds("nothing later", later.is_err(), format_args!("{later:?}"));
    CONTROL.write(E | P | C | LC);
    check::equal("P resets", value(0).read(), 0);
}

/// Counts of event counters: of EL1's own instructions, over turns of others and exits.
fn counts() {
    kind(0).write(INST_RETIRED);
    kind(1).write(INST_RETIRED | NOT_EL1);
    for turns in [10, 1000, LONG] {
        CONTROL.write(E | P | LC);
        over_loop(0b11, turns);
        let seen = value(0).read();
        check::holds(
            format_args!("instructions of {turns} turns"),
            is_about(seen, 2 * turns),
            seen,
        );
        check::equal("not those of EL1", value(1).read(), 0);
    }
    CONTROL.write(E | P | LC);
    over_calls(0b11, 1500);
    let seen = value(0).read();
    check::holds("nothing of EL2", is_about(seen, 4 * 1500), seen);
    check::equal("nothing of EL2 where EL1 is left out", value(1).read(), 0);
    CONTROL.write(P | LC);
    over_loop(0b11, 1000);
    check::equal("nothing without E", value(0).read(), 0);
    CONTROL.write(E | P | LC);
    over_loop(0b10, 1000);
    check::equal("nothing that is not enabled", value(0).read(), 0);
}

fn cycles() {
    kind(0).write(CPU_CYCLES);
    let turn = |name, run: fn(u64, u64), turns, instructions: u64| {
        CONTROL.write(E | P | C | LC);
        run(1 << CYCLES | 1, turns);
        let seen = [CYCLE_COUNTER.read(), value(0).read()];
        let expected = instructions * INSTRUCTION;
        let fits = seen
            .iter()
            .all(|seen| seen.abs_diff(expected) <= 4 * INSTRUCTION + expected / 1000);
        check::holds(name, fits, format_args!("{seen:?} of {expected}"));
    };
    turn("cycles of a short loop", over_loop, 1000, 2000);
    turn("cycles of a long loop", over_loop, LONG, 2 * LONG);
    turn("no cycles of EL2", over_calls, 1500, 4 * 1500);
    // 64 bits, of which the upper half is counted by overflows.
    let begin = 0x5_ffff_ff00;
    CYCLE_COUNTER.write(begin);
    over_loop(1 << CYCLES, 1000);
    let seen = CYCLE_COUNTER.read();
    check::holds(
        "cycles beyond 32 bits",
        seen - begin >= 2000 * INSTRUCTION && seen - begin < 2100 * INSTRUCTION,
        format_args!("{seen:#x}"),
    );
    check::equal("no overflow of 64 bits", OVERFLOWS.read(), 0);
    CONTROL.write(E);
    CYCLE_COUNTER.write(begin);
    over_loop(1 << CYCLES, 1000);
    check::equal("an overflow of 32 bits", OVERFLOWS.read(), 1 << CYCLES);
    OVERFLOWS.write(u64::MAX);
    CONTROL.write(E | LC);
}

/// An overflow interrupts, once, and where it is.
fn overflow() {
    kind(0).write(CPU_CYCLES);
    sysreg::irq_on();
    for (n, name) in [(0, "an event counter"), (CYCLES, "the cycle counter")] {
        let bit = 1u64 << n;
        TAKEN.store(0, Ordering::Relaxed);
        // The cycle counter overflows at 64 bits.
        value(0).write(0x1_0000_0000 - 1000 * INSTRUCTION);
        CYCLE_COUNTER.write(0u64.wrapping_sub(1000 * INSTRUCTION));
        over_loop(bit, 2000);
        let overflows = OVERFLOWS.read();
        check::equal(format_args!("{name} overflows"), overflows, bit);
        check::equal("without an interrupt", TAKEN.load(Ordering::Relaxed), 0);
        // It is pending: the interrupt comes as soon as it may.
        INTERRUPTS.write(bit);
        sysreg::isb();
        let mut taken = TAKEN.load(Ordering::Relaxed);
        check::equal(format_args!("{name} interrupts"), taken, 1);
        check::equal("that one", OVERFLOWED.load(Ordering::Relaxed), bit);
        check::equal("and is answered", OVERFLOWS.read(), 0);
        value(0).write(0x1_0000_0000 - 1000 * INSTRUCTION);
        CYCLE_COUNTER.write(0u64.wrapping_sub(1000 * INSTRUCTION));
        over_loop(bit, 2000);
        taken = TAKEN.load(Ordering::Relaxed);
        check::equal(format_args!("{name} interrupts while it counts"), taken, 2);
        NO_INTERRUPTS.write(bit);
    }
    sysreg::irq_off();
    // The line falls with each of the three.
    SET_OVERFLOWS.write(1);
    INTERRUPTS.write(1);
    let pending = || gic::most_urgent() == INTID;
    check::holds(
        "an overflow that is set interrupts",
        pending(),
        "it does not",
    );
    CONTROL.write(LC);
    check::holds("not without E", !pending(), "it does");
    CONTROL.write(E | LC);
    check::holds("again with E", pending(), "it does not");
    NO_INTERRUPTS.write(1);
    check::holds("not if it may not", !pending(), "it does");
    INTERRUPTS.write(1);
    OVERFLOWS.write(1);
    check::holds("not once it is cleared", !pending(), "it does");
    NO_INTERRUPTS.write(u64::MAX);
}

fn software(counters: u32) {
    kind(0).write(SW_INCR);
    CONTROL.write(E | P | LC);
    ENABLE.write(1);
    value(0).write(0xffff_fffe);
    for _ in 0..3 {
        INCREMENT.write(1);
    }
    check::equal("increments of software", value(0).read(), 1);
    check::equal("overflow", OVERFLOWS.read(), 1);
    OVERFLOWS.write(1);
    kind(0).write(SW_INCR | NOT_EL1);
    INCREMENT.write((1 << counters) - 1);
    check::equal("none at EL1", value(0).read(), 1);
    DISABLE.write(1);
    kind(0).write(SW_INCR);
    INCREMENT.write(1);
    check::equal("none of one that is off", value(0).read(), 1);
    check::holds(
        "what can only be written",
        INCREMENT.try_read().is_err(),
        "it can be read",
    );
}

/// A counter overflows around a WFI, at each instruction: the interrupt comes, and not only when something else wakes the vCPU.
fn asleep() {
    kind(0).write(CPU_CYCLES);
    TAKEN.store(0, Ordering::Relaxed);
    INTERRUPTS.write(1);
    let (mut flagged, mut lost) = (0, 0);
    for round in 0..200u64 {
        let before = TAKEN.load(Ordering::Relaxed);
        value(0).write(0x1_0000_0000 - (round % 10 + 1) * INSTRUCTION);
        timer::arm(timer::now() + timer::ticks(100));
        over_wfi(1);
        // With interrupts masked until here: what has woken it is taken now.
        sysreg::irq_on();
        sysreg::isb();
        sysreg::irq_off();
        let taken = TAKEN.load(Ordering::Relaxed) - before;
        flagged += taken;
        lost += u64::from(OVERFLOWS.read() != 0);
    }
    timer::disarm();
    NO_INTERRUPTS.write(1);
    println!("pmu: {flagged} overflows of 200 around a WFI");
    check::holds("overflows around a WFI", flagged >= 60, flagged);
    check::equal("none is lost", lost, 0);
    check::equal("none is late", LATE.load(Ordering::Relaxed), 0);
}

/// Everything stays, while others have the pCPU.
fn kept(counters: u32, all: u64) {
    let seed = timer::now();
    let pattern = |n: u32| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (n & 15)) & 0xffff_fffe;
    DISABLE.write(all);
    for n in 0..counters {
        kind(n).write(NOT_EL1 | pattern(n) & 0x3ff);
        value(n).write(pattern(n + 7));
    }
    CYCLE_COUNTER.write(seed << 20);
    USER.write(seed & 15);
    SELECT.write(seed & 31);
    INTERRUPTS.write(seed & all);
    // E and what is enabled, of which nothing counts at EL1.
    kind(CYCLES).write(NOT_EL1);
    CONTROL.write(E | LC);
    ENABLE.write(all);
    let mut wrong = 0;
    for _ in 0..25 {
        timer::sleep(200);
        timer::spin(300);
        for n in 0..counters {
            wrong += u64::from(kind(n).read() != NOT_EL1 | pattern(n) & 0x3ff);
            wrong += u64::from(value(n).read() != pattern(n + 7));
        }
        wrong += u64::from(CYCLE_COUNTER.read() != seed << 20);
        wrong += u64::from(USER.read() != seed & 15);
        wrong += u64::from(SELECT.read() != seed & 31);
        wrong += u64::from(INTERRUPTS.read() != seed & all);
        wrong += u64::from(ENABLE.read() != all);
        wrong += u64::from(CONTROL.read() & 0x7ff != E | LC);
    }
    check::equal("all stays as it is", wrong, 0);
    CONTROL.write(0);
    NO_INTERRUPTS.write(all);
    USER.write(0);
}

/// Nothing is lost of what is counted, and other counters stay, on whichever pCPU. QEMU adds what other pCPUs do.
fn moved(counters: u32, rounds: u64) {
    for n in 0..counters {
        kind(n).write(NOT_EL1 | INST_RETIRED);
        value(n).write(0x1000 + u64::from(n));
    }
    kind(0).write(INST_RETIRED);
    ENABLE.write((1 << counters) - 2);
    CONTROL.write(E | LC);
    let (mut lost, mut wrong) = (0, 0);
    for round in 0..rounds {
        value(0).write(0);
        over_loop(1, 20_000);
        lost += u64::from(value(0).read() < 40_000);
        for n in 1..counters {
            wrong += u64::from(value(n).read() != 0x1000 + u64::from(n));
        }
        timer::sleep(100);
        if round % 16 == 15 {
            println!("pmu: {} rounds", round + 1);
        }
    }
    check::equal("rounds in which something was lost", lost, 0);
    check::equal("counters that did not stay", wrong, 0);
}

/// A CPU that starts has nothing on, neither the first time nor after it has left something.
fn second() {
    for _ in 0..2 {
        check::holds("the other CPU starts", cpu::hire(1), "it does not");
        let Some(seen) = cpu::call(1, left, 0) else {
            return check::holds("the other CPU answers", false, "it does not");
        };
        check::equal("a CPU that starts has nothing on", seen, 0);
        cpu::give(1, off, 0);
        let gone = cpu::wait(|| power::affinity_info(1, 0) == 1);
        check::holds("the other CPU goes off", gone, "it does not");
    }
}

fn left(_: u64) -> u64 {
    let seen = [
        ENABLE,
        INTERRUPTS,
        OVERFLOWS,
        USER,
        kind(0),
        value(0),
        CYCLE_COUNTER,
    ];
    let sum = seen
        .iter()
        .fold(CONTROL.read() & 0x7ff, |sum, it| sum | it.read());
    for register in seen {
        register.write(u64::MAX);
    }
    CONTROL.write(E | LC);
    sum
}

fn off(_: u64) -> u64 {
    cpu::off()
}

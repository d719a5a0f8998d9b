//! Claim: whatever a VM writes into the registers of its performance monitors, its own counters are all that it reaches: who shares its CPU keeps its
//! limit of accesses, which is counted beside them, and EL2 its clock.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering};

use bulkhead_guests::pmu::{CONTROL, CYCLE_COUNTER, CYCLES, INTID, Register, kind, value};
use bulkhead_guests::random::Random;
use bulkhead_guests::{Board, check, gic, guest, mrs, msr, println, sysreg};

guest!(main = main, irq = on_irq);

static TAKEN: AtomicU64 = AtomicU64::new(0);

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.intid() == INTID {
        TAKEN.fetch_add(1, Ordering::Relaxed);
        // Sometimes only what interrupts, so that the overflow stays.
        if TAKEN.load(Ordering::Relaxed) & 1 == 0 {
            msr!("pmovsclr_el0", u64::MAX);
        }
        msr!("pmintenclr_el1", u64::MAX);
    }
    gic::end(taken);
}

/// Any register of the monitors, and what would be one.
fn register(random: &mut Random) -> Register {
    let op2 = random.below(8) as u32;
    if random.below(2) == 0 {
        let op1 = if random.below(3) == 0 { 0 } else { 3 };
        Register(op1, 9, 12 + random.below(4) as u32, op2)
    } else {
        // Mostly such as there are.
        let group = if random.below(2) == 0 { 4 } else { 0 };
        let n = if random.below(3) == 0 {
            random.below(8)
        } else {
            0
        };
        Register(3, 14, 8 + group + n as u32 % 4, op2)
    }
}

fn main(board: &'static Board) {
    let rounds = board.argument("rounds").unwrap_or(1000);
    gic::init();
    gic::enable(INTID);
    sysreg::irq_on();
    let counters = (CONTROL.read() >> 11 & 31) as u32;
    let mut random = Random::new(0x504d_5521);
    let (mut there, mut undefined) = (0u64, 0u64);
    for round in 0..rounds {
        let chosen = register(&mut random);
        let what = match random.below(6) {
            0 => u64::MAX,
            1 => 1 << 31,
            2 => 1 << random.below(64),
            3 => 0u64.wrapping_sub(random.below(100)),
            4 => !7 & random.draw(),
            _ => random.draw(),
        };
        let done = chosen.try_write(what).is_ok() | chosen.try_read().is_ok();
        there += u64::from(done);
        undefined += u64::from(!done);
        if round % 16 == 0 {
            // Something counts, too, and overflows soon.
            sysreg::masked(|| {
                CONTROL.write(1);
                CYCLE_COUNTER.write(0xffff_ff00);
            });
        }
    }
    println!(
        "pmu-hostile: {there} accesses, {undefined} to nothing, {} interrupts",
        TAKEN.load(Ordering::Relaxed)
    );
    check::holds("accesses", there > rounds / 4, there);
    check::holds("to nothing", undefined > rounds / 20, undefined);
    check::holds("interrupts", TAKEN.load(Ordering::Relaxed) > 10, "none");
    let still = CONTROL.read() >> 11 & 31;
    check::equal("as many counters as before", still, counters.into());
    for n in counters..CYCLES {
        let more = value(n).try_read().is_ok() || kind(n).try_read().is_ok();
        check::holds(format_args!("no counter {n}"), !more, "it is there");
    }
    // EL2's clock is not the guest's, and the guest's is what it is set to.
    CONTROL.write(0);
    CYCLE_COUNTER.write(5);
    let clock = mrs!("pmccntr_el0");
    check::equal("its own cycle counter", clock, 5);
    check::done();
}

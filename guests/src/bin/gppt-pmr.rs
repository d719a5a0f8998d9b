//! Claim: a GPPT VM masks by priority and ends interrupts in two steps, if its mode has that.
//!
//! Checks which interrupts the priority mask (PMR) lets through, the running priority in a handler,
//! and that with EOImode 1 an interrupt stays active until it is deactivated. Works on any GICv3.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, alive, check, gic, guest, mrs, msr, sysreg, timer};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

/// SGIs by their urgency.
const URGENT: u32 = 1;
const PATIENT: u32 = 2;
/// ICC_CTLR_EL1.EOImode.
const TWO_STEPS: u64 = 1 << 1;

/// INTIDs in the order in which they came, four bits each, the latest lowest.
static ORDER: AtomicU64 = AtomicU64::new(0);
/// The running priority that the handler saw.
static RUNNING: AtomicU64 = AtomicU64::new(0);
/// The handler deactivates.
static DEACTIVATES: AtomicBool = AtomicBool::new(true);

fn main(board: &'static Board) {
    // Of 32 on a board a VM may have fewer.
    let levels = board.argument("levels").unwrap_or(32);
    let masks = if levels < 16 {
        [0, 0x20, 0x40, 0x60, 0xa0, 0xc0, 0xe0]
    } else {
        [0, 0x10, 0x40, 0x50, 0xa0, 0xb0, 0xf0]
    };
    check::same("mask after a reset", gic::mask().into(), 0);
    gic::init();
    for (intid, priority) in [(URGENT, 0x40), (PATIENT, 0xa0)] {
        gic::set_priority(intid, priority);
        gic::enable(intid);
    }
    sysreg::irq_on();
    for mask in masks {
        gic::set_mask(mask);
        check::same(
            format_args!("mask {mask:#x} reads as written"),
            gic::mask().into(),
            mask.into(),
        );
        let through = [(URGENT, 0x40), (PATIENT, 0xa0)].into_iter();
        let through = through.filter(|(_, priority)| *priority < mask);
        let expected = through.fold(0, |order, (intid, _)| order << 4 | u64::from(intid));
        check::equal(format_args!("interrupts under {mask:#x}"), sent(), expected);
        gic::set_mask(0xf0);
        settle();
    }
    check::equal(
        "running priority in the handler",
        RUNNING.load(Relaxed),
        0xa0,
    );
    lowest((0x100 / levels) as u8);
    check::equal("running priority outside", mrs!("icc_rpr_el1") & 0xff, 0xff);
    two_steps();
    msr!("icc_ctlr_el1", 0);
    alive::check_some("after that", alive::LOW_SGIS);
    check::done();
}

/// The lowest priority, no mask lets through: none is less urgent. The one before comes.
fn lowest(step: u8) {
    gic::set_mask(0xff);
    let lowest = 0u8.wrapping_sub(step);
    gic::set_priority(PATIENT, lowest);
    check::equal("the lowest priority does not come", sent(), 1);
    gic::set_priority(PATIENT, lowest - step);
    settle();
    check::equal("the one before it comes", ORDER.load(Relaxed), 0x12);
    gic::set_priority(PATIENT, 0xa0);
    gic::set_mask(0xf0);
}

/// Sends both; what has come.
fn sent() -> u64 {
    sysreg::masked(|| {
        ORDER.store(0, Relaxed);
        gic::send_to_self(PATIENT);
        gic::send_to_self(URGENT);
    });
    settle();
    ORDER.load(Relaxed)
}

/// Time for interrupts to come.
fn settle() {
    timer::spin(20);
}

/// EOImode 1.
fn two_steps() {
    msr!("icc_ctlr_el1", TWO_STEPS);
    sysreg::isb();
    check::equal(
        "EOImode reads as written",
        mrs!("icc_ctlr_el1") & TWO_STEPS,
        TWO_STEPS,
    );
    DEACTIVATES.store(false, Relaxed);
    check::equal("both come once", sent(), 0x12);
    check::holds(
        "it is active",
        gic::bit(gic::ISACTIVER, URGENT),
        "it is not",
    );
    check::equal("and does not come while it is", sent(), 0);
    DEACTIVATES.store(true, Relaxed);
    for intid in [URGENT, PATIENT] {
        msr!("icc_dir_el1", intid.into());
        sysreg::isb();
    }
    settle();
    check::equal("it comes when it is not", ORDER.load(Relaxed), 0x12);
    check::holds("none is active", !gic::bit(gic::ISACTIVER, URGENT), "it is");
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    let intid = taken.intid();
    RUNNING.store(mrs!("icc_rpr_el1") & 0xff, Relaxed);
    ORDER.store(ORDER.load(Relaxed) << 4 | u64::from(intid), Relaxed);
    alive::note(intid);
    gic::end(taken);
    if mrs!("icc_ctlr_el1") & TWO_STEPS != 0 && DEACTIVATES.load(Relaxed) {
        gic::deactivate(taken);
    }
}

//! Claim: a VM whose pCPU EL2 takes back in the middle of anything stands still, and finds nothing
//! changed when it goes on.
//!
//! It takes one posture after the other, prints `HOLD n` before each, and keeps it until another VM
//! raises the second word of the page that they share (label `gate`) to n; the first word counts
//! what it does meanwhile. Then it checks that all is as it was. In the end it prints `CLOSED` and
//! sleeps with all masks closed, to be restarted. In its second life, which the third word counts,
//! it crashes in a handler; in its third it is done, prints `CLOSED`, and sleeps again. Each life finds the binary
//! point of the first, which the fourth word keeps.
//!
//! With `open=1` it sleeps with the masks of its CPU interface open, in which case EL2's interrupt
//! can wake it.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::{read32, write32};
use bulkhead_guests::pl061::{GPIOIE, GPIOIEV, GPIOIS, PL061, PL061_INTID};
use bulkhead_guests::shared::Words;
use bulkhead_guests::{
    Board, alive, board, check, gic, guest, mmu, mrs, msr, println, ruin, shared, sysreg, timer,
};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

/// Value of its own registers while it is held.
const PATTERN: u64 = 0x5eed_0f7e_57ed_ca5c;
/// SGIs, of priorities that differ, as that of the PL061 does.
const URGENT: u32 = 2;
const PATIENT: u32 = 3;
const FLOOD: u32 = 4;
const HELD: u32 = 5;

/// INTIDs in the order in which they came, eight bits each, the latest lowest.
static ORDER: AtomicU64 = AtomicU64::new(0);
/// SGIs of the flood that have come.
static TAKEN: AtomicU32 = AtomicU32::new(0);
/// The handler of [`HELD`] is to stay where it is.
static STAYS: AtomicBool = AtomicBool::new(false);
/// That handler is to crash.
static CRASHES: AtomicBool = AtomicBool::new(false);
/// The running priority in that handler was the same afterwards.
static SAME: AtomicBool = AtomicBool::new(false);
/// The running priority that this handler read.
static RUNNING: AtomicU32 = AtomicU32::new(0);
/// Count of unexpected interrupts.
static SPURIOUS: AtomicU32 = AtomicU32::new(0);
/// It sleeps with its CPU interface open.
static OPEN: AtomicBool = AtomicBool::new(false);
/// Address of the shared page.
static GATE: AtomicUsize = AtomicUsize::new(0);

fn gate() -> Words {
    shared::words(board::Range {
        base: GATE.load(Relaxed),
        size: 4096,
    })
}

/// Does something again and again until it is let go for the `n`th time.
fn hold(n: u64, mut action: impl FnMut()) {
    let gate = gate();
    while gate[1].load(Relaxed) < n {
        gate[0].fetch_add(1, Relaxed);
        action();
    }
}

fn main(board: &'static Board) {
    let page = board.shared("gate").map_or(0, |range| range.base);
    GATE.store(page, Relaxed);
    OPEN.store(board.argument("open") == Some(1), Relaxed);
    let life = gate()[2].fetch_add(1, Relaxed);
    let point = gic::binary_point().into();
    if life == 0 {
        gate()[3].store(point, Relaxed);
    }
    let first = gate()[3].load(Relaxed);
    check::equal("binary point at the start", point, first);
    alive::check_some("at first", alive::LOW_SGIS);
    if life == 0 {
        masked();
        in_a_handler(board.argument("running"));
        by_its_own_means();
        flooded();
        queued();
        if OPEN.load(Relaxed) {
            interruptible();
        }
        alive::check_some("in the end", alive::LOW_SGIS);
    }
    if life == 1 {
        // In the handler of an interrupt that is the most urgent of all: the next life has nothing
        // active.
        println!("CRASH");
        CRASHES.store(true, Relaxed);
        gic::set_priority(HELD, 0);
        sysreg::irq_on();
        gic::send_to_self(HELD);
        alive::wait(|| false);
    }
    if life == 2 {
        check::done();
    }
    before_sleep();
    println!("CLOSED");
    loop {
        sysreg::wfi();
    }
}

/// Closes what is closed while it sleeps.
fn before_sleep() {
    if OPEN.load(Relaxed) {
        sysreg::mask_all();
    } else {
        close();
    }
}

/// Every mask there is, and ends that do not deactivate (EOImode), which must not be EL2's.
fn close() {
    sysreg::mask_all();
    gic::set_mask(0);
    gic::set_binary_point(7);
    if gic::version() == 2 {
        write32(gic::v2::cpu_interface() + gic::v2::GICC_CTLR, 1 << 9);
    } else {
        msr!("icc_ctlr_el1", 1 << 1);
        msr!("icc_igrpen1_el1", 0);
    }
    sysreg::isb();
}

/// Its group is on.
fn is_on() -> bool {
    if gic::version() == 2 {
        read32(gic::v2::cpu_interface() + gic::v2::GICC_CTLR) & 1 != 0
    } else {
        mrs!("icc_igrpen1_el1") & 1 != 0
    }
}

/// Spinning and asleep with everything closed.
fn masked() {
    println!("HOLD 1");
    close();
    msr!("elr_el1", PATTERN);
    msr!("spsr_el1", PATTERN & 0xf000_0000 | 0x3c5);
    hold(1, || {});
    let same = mrs!("elr_el1") == PATTERN && mrs!("spsr_el1") == PATTERN & 0xf000_0000 | 0x3c5;
    check::holds("ELR and SPSR after it span", same, "they changed");
    let open = OPEN.load(Relaxed);
    if open {
        alive::check_some("before it sleeps", alive::LOW_SGIS);
        before_sleep();
    }
    let mask = gic::mask();
    println!("HOLD 2");
    hold(2, sysreg::wfi);
    let same = is_on() == open;
    check::holds("the group after its sleep", same, "it changed");
    check::same("its mask after its sleep", gic::mask().into(), mask.into());
    check::holds("whether that is open", open == (mask != 0), "it is not so");
    gic::set_binary_point(0);
    alive::check_some("after both", alive::LOW_SGIS);
}

/// In the handler of an interrupt that is the most urgent of all, whose running priority reads as `running` says.
fn in_a_handler(running: Option<u64>) {
    gic::set_priority(HELD, 0);
    gic::set_binary_point(7);
    sysreg::irq_on();
    println!("HOLD 3");
    STAYS.store(true, Relaxed);
    gic::send_to_self(HELD);
    check::holds(
        "the handler stayed",
        gate()[1].load(Relaxed) == 3,
        "it did not",
    );
    check::holds(
        "running priority in the handler",
        SAME.load(Relaxed),
        "it changed",
    );
    if let Some(running) = running {
        check::equal("what that reads as", RUNNING.load(Relaxed).into(), running);
    }
    gic::set_binary_point(0);
    alive::check_some("after a handler", alive::LOW_SGIS);
}

/// With vectors that are none, and with translation on and off.
fn by_its_own_means() {
    println!("HOLD 4");
    sysreg::mask_all();
    let vectors = mrs!("vbar_el1");
    let mut next = 0;
    hold(4, || {
        next = (next + 0x800) & 0xffff_f800;
        msr!("vbar_el1", next);
    });
    msr!("vbar_el1", vectors);
    sysreg::isb();
    println!("HOLD 5");
    hold(5, mmu::blink);
    alive::check_some("after it changed its vectors and tables", alive::LOW_SGIS);
}

/// SGIs to itself without end: each comes once.
fn flooded() {
    TAKEN.store(0, Relaxed);
    sysreg::irq_on();
    let mut sent = 0;
    let mut wrong = 0;
    let mut flood = || {
        gic::send_to_self(FLOOD);
        sent += 1;
        alive::wait(|| TAKEN.load(Relaxed) >= sent);
        wrong += u32::from(TAKEN.load(Relaxed) != sent);
    };
    (0..100).for_each(|_| flood());
    println!("HOLD 6");
    hold(6, flood);
    check::same("SGIs of a flood that are lost or double", wrong, 0);
}

/// Interrupts that wait while it is held come once, and in the order of their priorities.
fn queued() {
    let all = [PL061_INTID, URGENT, timer::INTID, PATIENT];
    sysreg::irq_off();
    for (intid, priority) in all.into_iter().zip([0x20, 0x40, 0x80, 0xc0]) {
        gic::set_priority(intid, priority);
        gic::enable(intid);
    }
    ORDER.store(0, Relaxed);
    write32(PL061 + GPIOIEV, 0);
    write32(PL061 + GPIOIS, 1);
    write32(PL061 + GPIOIE, 1);
    timer::arm(timer::now());
    gic::send_to_self(PATIENT);
    gic::send_to_self(URGENT);
    println!("HOLD 7");
    hold(7, || {});
    sysreg::irq_on();
    timer::spin(1000);
    sysreg::irq_off();
    let expected = all
        .into_iter()
        .fold(0, |order, intid| order << 8 | u64::from(intid));
    check::equal("interrupts that waited", ORDER.load(Relaxed), expected);
}

/// Spinning and asleep with everything open and nothing to come: nobody's interrupt shows.
fn interruptible() {
    sysreg::irq_on();
    println!("HOLD 8");
    hold(8, || {});
    println!("HOLD 9");
    hold(9, sysreg::wfi);
    sysreg::irq_off();
    let spurious = SPURIOUS.load(Relaxed);
    check::same("interrupts of nobody", spurious, 0);
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        SPURIOUS.fetch_add(1, Relaxed);
        return;
    }
    let intid = taken.intid();
    match intid {
        HELD if CRASHES.load(Relaxed) => ruin::crash(),
        HELD if STAYS.swap(false, Relaxed) => {
            let before = gic::running_priority();
            RUNNING.store(before.into(), Relaxed);
            hold(3, || {});
            SAME.store(gic::running_priority() == before, Relaxed);
        }
        FLOOD => _ = TAKEN.fetch_add(1, Relaxed),
        PL061_INTID => write32(PL061 + GPIOIE, 0),
        _ => {}
    }
    alive::note(intid);
    let before = ORDER.load(Relaxed);
    ORDER.store(before << 8 | u64::from(intid), Relaxed);
    gic::end(taken);
}

//! Claim: the vGIC does what IHI 0048 (GICv2) or IHI 0069 (GICv3) says.
//!
//! Registers read back as written, with their reserved bits; interrupts fire when they are enabled,
//! pending, in an enabled group and urgent enough, and not otherwise; they pre-empt each other by group
//! priority; more of them can be pending than there are list registers; a level fires until it falls.
#![no_std]
#![no_main]

use bulkhead_guests::gic::{self, v2, v3};
use bulkhead_guests::mmio::{read8, read32, read64, write8, write32, write64};
use bulkhead_guests::{Board, check, cpu, guest, mrs, sysreg, timer};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

/// An SPI that no device drives.
const SPI: u32 = 45;
const LOW: u32 = 8;
const HIGH: u32 = 9;

// What the handler has seen since `forget`: INTIDs in their order, how many, how deep handlers were
// nested, and the running priority in the latest one.
static ORDER: [AtomicU32; 32] = [const { AtomicU32::new(0) }; 32];
static TAKEN: AtomicU32 = AtomicU32::new(0);
static DEPTH: AtomicU32 = AtomicU32::new(0);
static DEEPEST: AtomicU32 = AtomicU32::new(0);
static PRIORITY: AtomicU32 = AtomicU32::new(0);
/// In the handler of this SGI, this one is sent, and the mask opened.
static NEST: AtomicU64 = AtomicU64::new(0);
/// After this many interrupts of the timer it is disarmed.
static REPEATS: AtomicU32 = AtomicU32::new(0);

fn main(board: &'static Board) {
    gic::init();
    match gic::version() {
        2 => v2_only(board),
        _ => v3_only(board),
    }
    banks();
    configuration();
    priorities();
    pending_and_active();
    delivery();
    group_disable();
    priority_mask();
    preemption();
    split_end();
    many_pending();
    level();
    check::done();
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    let intid = taken.intid();
    if taken.is_none() {
        return;
    }
    let place = TAKEN.fetch_add(1, Relaxed) as usize;
    if let Some(entry) = ORDER.get(place) {
        entry.store(intid, Relaxed);
    }
    PRIORITY.store(gic::running_priority().into(), Relaxed);
    let depth = DEPTH.fetch_add(1, Relaxed) + 1;
    DEEPEST.fetch_max(depth, Relaxed);
    if intid == timer::INTID && REPEATS.fetch_sub(1, Relaxed) == 1 {
        timer::disarm();
    }
    let nest = NEST.load(Relaxed);
    if nest != 0 && nest >> 32 == u64::from(intid) {
        NEST.store(0, Relaxed);
        gic::send_to_self(nest as u32);
        sysreg::irq_on();
        settle();
        sysreg::irq_off();
    }
    DEPTH.fetch_sub(1, Relaxed);
    gic::end(taken);
}

/// Time for an interrupt to arrive that is on its way.
fn settle() {
    sysreg::isb();
    timer::spin(20);
}

fn forget() {
    TAKEN.store(0, Relaxed);
    DEEPEST.store(0, Relaxed);
}

/// Opens the mask for a while and says how many interrupts came.
fn listen() -> u32 {
    forget();
    sysreg::irq_on();
    settle();
    sysreg::irq_off();
    TAKEN.load(Relaxed)
}

fn order(place: usize) -> u32 {
    ORDER[place].load(Relaxed)
}

fn same(name: impl core::fmt::Display, seen: u32, expected: u32) {
    check::equal(name, seen.into(), expected.into());
}

/// Checks the identification; with affinity routing INTIDs 0 to 31 belong to the redistributor.
fn v3_only(board: &Board) {
    let (gicd, gicr) = (gic::distributor(), v3::redistributor());
    same("GICD_PIDR2.ArchRev", read32(gicd + v3::PIDR2) >> 4 & 15, 3);
    same("GICR_PIDR2.ArchRev", read32(gicr + v3::PIDR2) >> 4 & 15, 3);
    let lines = read32(gicd + gic::TYPER) & 31;
    check::holds("GICD_TYPER.ITLinesNumber", lines >= 1, "no SPIs");
    let typer = read64(gicr + v3::GICR_TYPER);
    let here = cpu::affinity(cpu::number());
    check::equal(
        "GICR_TYPER.Affinity",
        typer >> 32,
        (here >> 8) & 0xff00_0000 | here & 0xff_ffff,
    );
    let last = u64::from(board.cpus == 1);
    check::equal("GICR_TYPER.Last", typer >> 4 & 1, last);
    let ctlr = read32(gicd + gic::CTLR);
    same(
        "GICD_CTLR",
        ctlr & (v3::CTLR_ARE | v3::CTLR_GROUP1 | 1),
        v3::CTLR_ARE | v3::CTLR_GROUP1,
    );
    for (name, register) in [
        ("GICD_ISENABLER0", gic::ISENABLER),
        ("GICD_ISPENDR0", gic::ISPENDR),
        ("GICD_ISACTIVER0", gic::ISACTIVER),
        ("GICD_IPRIORITYR0", gic::IPRIORITYR),
        ("GICD_ITARGETSR8", gic::ITARGETSR + 0x20),
        ("GICD_SGIR", v2::SGIR),
    ] {
        write32(gicd + register, u32::MAX);
        same(format_args!("{name} is RAZ/WI"), read32(gicd + register), 0);
    }
    let route = gicd + v3::IROUTER + 8 * SPI as usize;
    write64(route, here);
    check::equal("GICD_IROUTER", read64(route), here);
}

/// Checks the identification; INTIDs 0 to 31 are banked, their targets fixed; SGIs have senders.
fn v2_only(board: &Board) {
    let (gicd, gicc) = (gic::distributor(), v2::cpu_interface());
    same("ICPIDR2.ArchRev", read32(gicd + v2::ICPIDR2) >> 4 & 15, 2);
    same(
        "GICC_IIDR version",
        read32(gicc + v2::GICC_IIDR) >> 16 & 15,
        2,
    );
    let cpus = read32(gicd + gic::TYPER) >> 5 & 7;
    same("GICD_TYPER.CPUNumber", cpus, board.cpus as u32 - 1);
    same("GICD_CTLR", read32(gicd + gic::CTLR) & 3, v2::CTLR_GROUP0);
    let targets = gicd + gic::ITARGETSR;
    write32(targets, u32::MAX);
    // One CPU: a GIC may leave the targets out and read as zero.
    let seen = read32(targets);
    check::holds(
        "GICD_ITARGETSR0 is read-only",
        seen == 0 || seen == 0x0101_0101,
        format_args!("{seen:#x}"),
    );
    for (name, register) in [
        ("SPENDSGIR2", v2::SPENDSGIR + 8),
        ("CPENDSGIR2", v2::CPENDSGIR + 8),
    ] {
        same(format_args!("GICD_{name} idle"), read32(gicd + register), 0);
    }
    write8(gicd + v2::SPENDSGIR + LOW as usize, 1);
    same(
        "GICD_SPENDSGIR names the sender",
        read8(gicd + v2::CPENDSGIR + LOW as usize).into(),
        1,
    );
    write32(gicd + gic::ICPENDR, 1 << LOW);
    check::holds(
        "GICD_ICPENDR0 leaves SGIs alone",
        gic::bit(gic::ISPENDR, LOW),
        "not pending",
    );
    gic::clear_pending(LOW);
    same("GICD_SGIR reads as zero", read32(gicd + v2::SGIR), 0);
}

/// Enables and groups of SPIs: set and clear registers show the same bits; what is beyond the last
/// SPI is RAZ/WI.
fn banks() {
    let gicd = gic::distributor();
    gic::close();
    let set = gicd + gic::ISENABLER + 4;
    let clear = gicd + gic::ICENABLER + 4;
    write32(set, 0xa5a5_0ff0);
    same("GICD_ISENABLER1 sets", read32(set), 0xa5a5_0ff0);
    same("GICD_ICENABLER1 shows the same", read32(clear), 0xa5a5_0ff0);
    write32(set, 0);
    same("GICD_ISENABLER1 ignores zeros", read32(set), 0xa5a5_0ff0);
    write32(clear, 0x0000_0ff0);
    same("GICD_ICENABLER1 clears", read32(set), 0xa5a5_0000);
    write32(clear, u32::MAX);
    same("GICD_ICENABLER1 clears all", read32(set), 0);
    let group = gicd + gic::IGROUPR + 4;
    write32(group, 0x1234_5678);
    same("GICD_IGROUPR1", read32(group), 0x1234_5678);
    write32(group, if gic::version() == 2 { 0 } else { u32::MAX });
    let beyond = gic::interrupts() as usize;
    if beyond < 1020 {
        for (name, register) in [("ISENABLER", gic::ISENABLER), ("ISPENDR", gic::ISPENDR)] {
            let address = gicd + register + beyond / 8;
            write32(address, u32::MAX);
            same(
                format_args!("GICD_{name} beyond the last SPI"),
                read32(address),
                0,
            );
        }
    }
    gic::open();
}

fn configuration() {
    let sgis = gic::frame(0) + gic::ICFGR;
    write32(sgis, 0);
    same("ICFGR0: SGIs are edges", read32(sgis), 0xaaaa_aaaa);
    // INTIDs 48 to 63: no device of the guest is there.
    let spis = gic::distributor() + gic::ICFGR + 12;
    write32(spis, u32::MAX);
    same(
        "GICD_ICFGR3: edges, low bits reserved",
        read32(spis),
        0xaaaa_aaaa,
    );
    write32(spis, 0);
    same("GICD_ICFGR3: levels", read32(spis), 0);
}

/// Priorities take bytes and words; the low bits that are not there read as 0.
fn priorities() {
    let bytes = gic::distributor() + gic::IPRIORITYR + 44;
    write32(bytes, 0);
    write8(bytes + 1, 0xff);
    let implemented = read8(bytes + 1);
    check::holds(
        "priority bits are the upper ones, four at least",
        implemented.leading_ones() >= 4
            && implemented.leading_ones() + implemented.trailing_zeros() == 8,
        format_args!("{implemented:#x}"),
    );
    same(
        "a byte leaves its neighbours alone",
        read32(bytes),
        u32::from(implemented) << 8,
    );
    write32(bytes, 0x4080_c0a0);
    let read = [0, 1, 2, 3].map(|n| read8(bytes + n));
    check::holds(
        "bytes of a word",
        read == [0xa0, 0xc0, 0x80, 0x40],
        format_args!("{read:x?}"),
    );
    let sgi = gic::frame(LOW) + gic::IPRIORITYR + LOW as usize;
    write8(sgi, 0x50);
    same("IPRIORITYR of an SGI takes a byte", read8(sgi).into(), 0x50);
    write8(sgi, gic::PRIORITY);
}

/// Pending and active can be set and cleared by hand, and an active interrupt is not taken again.
fn pending_and_active() {
    for (intid, name) in [(LOW, "SGI"), (SPI, "SPI")] {
        gic::disable(intid);
        // A GICv2 may have SGIs that are always enabled (IHI 0048B, 4.3.6).
        let can_disable = !gic::bit(gic::ISENABLER, intid);
        gic::set_pending(intid);
        check::holds(
            format_args!("{name}: set pending"),
            gic::bit(gic::ISPENDR, intid),
            "not pending",
        );
        if can_disable {
            let name = format_args!("{name}: not taken while disabled");
            same(name, listen(), 0);
        }
        gic::clear_pending(intid);
        check::holds(
            format_args!("{name}: clear pending"),
            !gic::bit(gic::ISPENDR, intid),
            "pending",
        );
        gic::set(gic::ISACTIVER, intid);
        check::holds(
            format_args!("{name}: set active"),
            gic::bit(gic::ISACTIVER, intid),
            "not active",
        );
        gic::enable(intid);
        gic::set_pending(intid);
        same(format_args!("{name}: not taken while active"), listen(), 0);
        gic::set(gic::ICACTIVER, intid);
        same(
            format_args!("{name}: taken when active no longer"),
            listen(),
            1,
        );
        check::holds(
            format_args!("{name}: then idle"),
            !gic::bit(gic::ISACTIVER, intid),
            "active",
        );
        gic::disable(intid);
    }
}

fn delivery() {
    gic::enable(LOW);
    gic::send_to_self(LOW);
    check::holds(
        "SGI waits while masked",
        gic::bit(gic::ISPENDR, LOW),
        "not pending",
    );
    same("HPPIR names it", gic::most_urgent(), LOW);
    same("SGI is taken once", listen(), 1);
    same("it is the one that was sent", order(0), LOW);
    same(
        "RPR in the handler",
        PRIORITY.load(Relaxed),
        gic::PRIORITY.into(),
    );
    same("RPR afterwards", gic::running_priority().into(), 0xff);
    same("IAR without an interrupt", gic::acknowledge().intid(), 1023);
    same("nothing comes by itself", listen(), 0);
    gic::disable(LOW);
    if !gic::bit(gic::ISENABLER, LOW) {
        gic::send_to_self(LOW);
        same("disabled SGI does not fire", listen(), 0);
        gic::enable(LOW);
        same("but waits until it is enabled", listen(), 1);
        gic::disable(LOW);
    }
}

fn group_disable() {
    gic::enable(LOW);
    gic::close();
    check::holds("GICD_CTLR reads as disabled", !gic::is_open(), "enabled");
    gic::send_to_self(LOW);
    same("nothing fires from a disabled group", listen(), 0);
    gic::open();
    same("it fires when the group is enabled", listen(), 1);
    gic::disable(LOW);
}

fn priority_mask() {
    gic::set_priority(LOW, 0xc0);
    gic::enable(LOW);
    gic::set_mask(0x80);
    gic::send_to_self(LOW);
    same("PMR holds back what is less urgent", listen(), 0);
    gic::set_mask(0xff);
    same("and lets it go when it opens", listen(), 1);
    gic::disable(LOW);
}

/// Sends `inner` from the handler of `outer`; says how deep the handlers were nested.
fn nested(outer: u32, inner: u32) -> u32 {
    NEST.store(u64::from(outer) << 32 | u64::from(inner), Relaxed);
    gic::send_to_self(outer);
    same("both were taken", listen(), 2);
    DEEPEST.load(Relaxed)
}

fn preemption() {
    gic::set_priority(LOW, 0xc0);
    gic::set_priority(HIGH, 0x80);
    gic::enable(LOW);
    gic::enable(HIGH);
    gic::set_binary_point(0);
    same("the more urgent one pre-empts", nested(LOW, HIGH), 2);
    same("the less urgent one waits", nested(HIGH, LOW), 1);
    gic::set_binary_point(7); // only bit 7 decides, and both have it set
    same("one group priority: no pre-emption", nested(LOW, HIGH), 1);
    gic::set_binary_point(0);
    gic::set_priority(HIGH, 0xc0);
    same("same priority: no pre-emption", nested(LOW, HIGH), 1);
    gic::disable(LOW);
    gic::disable(HIGH);
}

/// EOImode 1: the end drops the priority, the interrupt stays active until it is deactivated.
fn split_end() {
    gic::split_end(true);
    for intid in [LOW, SPI] {
        gic::enable(intid);
        gic::set_pending(intid);
        let taken = gic::acknowledge();
        same("EOImode 1: acknowledged", taken.intid(), intid);
        check::holds(
            "EOImode 1: priority raised",
            gic::running_priority() != 0xff,
            "idle",
        );
        gic::end(taken);
        same(
            "EOImode 1: end drops the priority",
            gic::running_priority().into(),
            0xff,
        );
        check::holds(
            "EOImode 1: still active",
            gic::bit(gic::ISACTIVER, intid),
            "not active",
        );
        gic::deactivate(taken);
        check::holds(
            "EOImode 1: deactivated",
            !gic::bit(gic::ISACTIVER, intid),
            "active",
        );
        gic::disable(intid);
    }
    gic::split_end(false);
}

/// All 16 SGIs at once, in the wrong order: each comes once, the most urgent first.
fn many_pending() {
    for intid in 0..16 {
        gic::set_priority(intid, (15 - intid as u8) * 0x10);
        gic::enable(intid);
    }
    for intid in 0..16 {
        gic::send_to_self(intid);
    }
    same("16 SGIs pending", gic::pending_sgis(), 0xffff);
    same("16 SGIs taken", listen(), 16);
    let in_order = (0..16).all(|place| order(place) == 15 - place as u32);
    check::holds(
        "the most urgent first",
        in_order,
        format_args!("{:?}", &ORDER[..16]),
    );
    same("none left", gic::pending_sgis(), 0);
    for intid in 0..16 {
        gic::disable(intid);
        gic::set_priority(intid, gic::PRIORITY);
    }
}

/// The timer's line stays high until it is disarmed, and so fires again after each end.
fn level() {
    gic::enable(timer::INTID);
    timer::arm(timer::now());
    check::holds(
        "timer line high: pending",
        gic::bit(gic::ISPENDR, timer::INTID),
        "not pending",
    );
    REPEATS.store(4, Relaxed);
    same("level fires until disarmed", listen(), 4);
    same("and then no more", listen(), 0);
    check::holds(
        "timer line low: not pending",
        !gic::bit(gic::ISPENDR, timer::INTID),
        "pending",
    );
    gic::disable(timer::INTID);
    REPEATS.store(1, Relaxed);
    timer::arm(timer::now());
    same("disabled timer does not fire", listen(), 0);
    gic::enable(timer::INTID);
    same("but waits until it is enabled", listen(), 1);
    check::equal("timer is disarmed", mrs!("cntv_ctl_el0") & 1, 0);
    gic::disable(timer::INTID);
}

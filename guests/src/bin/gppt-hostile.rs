//! Claim: a GPPT VM gets its own interrupts and no others, whatever it does to the GIC, and EL2
//! gets its pCPU back whatever it masks.
//!
//! Interrupts of its timer, and SGIs to itself; then every SGI to everybody by each register there
//! is, and ones, zeros and single bits into each register of both frames in each size and of the
//! CPU interface; then interrupts again. In the end it closes all masks and sleeps: the test then
//! has it paused, resumed and stopped.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::{read32, write8, write16, write32, write64};
use bulkhead_guests::{Board, alive, check, gic, guest, msr, println, sysreg, timer};

guest!(main = main, irq = alive::on_irq);

/// SGIs that such a VM has.
const OWN_SGIS: u32 = 0xff;
/// Offsets of both kinds of frames at which there are registers of interrupts.
const OFFSETS: [core::ops::Range<usize>; 5] = [
    0..0x100,
    0x100..0xd00,
    0xf00..0xf40,
    0x6000..0x6180,
    0xffc0..0x1_0000,
];

/// Offsets of the page of a GICv2's CPU interface, and of its GICC_DIR.
const INTERFACE: [core::ops::Range<usize>; 2] = [0..0x1000, 0x1000..0x1010];
/// GICC_AEOIR: ends of interrupts of Group 1.
const AEOIR: usize = 0x24;
/// GICC_NSAPR.
const NSAPR: usize = 0xe0;

fn main(_: &'static Board) {
    works("at first");
    if gic::version() == 3 {
        gic::set_mask(0);
        works("with a mask that masks nothing");
    }
    shout();
    works("after SGIs to everybody");
    scribble(gic::distributor(), &OFFSETS);
    if gic::version() == 2 {
        end_others();
        scribble(gic::v2::cpu_interface(), &INTERFACE);
        read_all(gic::v2::cpu_interface());
        // Active priorities of Group 1, which others do not have.
        for n in 0..4 {
            write32(gic::v2::cpu_interface() + NSAPR + 4 * n, 0);
        }
    } else {
        scribble(gic::v3::redistributor(), &OFFSETS);
        scribble(gic::v3::redistributor() + gic::v3::SGI_FRAME, &OFFSETS);
        scribble_interface();
    }
    works("after writes to everything");
    check::done();
    sysreg::mask_all();
    gic::set_mask(0);
    gic::set_binary_point(7);
    // Both groups off.
    if gic::version() == 2 {
        write32(gic::v2::cpu_interface() + gic::v2::GICC_CTLR, 0);
    } else {
        msr!("icc_igrpen1_el1", 0);
        msr!("icc_igrpen0_el1", 0);
    }
    sysreg::isb();
    println!("CLOSED");
    loop {
        sysreg::wfi();
    }
}

/// Its timer's interrupts come, its own SGIs come, and those that are not its own do not.
fn works(when: &str) {
    sysreg::irq_off();
    timer::disarm();
    gic::init();
    gic::enable(timer::INTID);
    (0..16).for_each(gic::enable);
    alive::take_sgis();
    let before = alive::ticks();
    sysreg::irq_on();
    for round in 1..=10 {
        timer::arm(timer::now() + timer::ticks(20));
        alive::wait(|| alive::ticks() == before + round);
    }
    check::equal(
        format_args!("timer interrupts {when}"),
        (alive::ticks() - before).into(),
        10,
    );
    (0..16).for_each(gic::send_to_self);
    timer::arm(timer::now() + timer::ticks(20));
    alive::wait(|| alive::ticks() == before + 11);
    check::equal(
        format_args!("SGIs {when}"),
        alive::take_sgis().into(),
        OWN_SGIS.into(),
    );
    timer::disarm();
}

/// Every SGI to every CPU that a register can name.
fn shout() {
    sysreg::irq_off();
    if gic::version() == 2 {
        return shout_v2();
    }
    for intid in 0..16u64 {
        let everybody = [0xffff, 1 << 40, 1 << 40 | 0xffff];
        let elsewhere = (16..56).map(|bit| 1 << bit | 0xffff);
        for whom in everybody.into_iter().chain(elsewhere) {
            let value = intid << 24 | whom;
            msr!("icc_sgi1r_el1", value);
            msr!("icc_sgi0r_el1", value);
            msr!("icc_asgi1r_el1", value);
        }
    }
    sysreg::isb();
}

/// Every SGI by GICD_SGIR with every list, each target list filter and NSATT, and by GICD_SPENDSGIR from everybody.
fn shout_v2() {
    let gicd = gic::distributor();
    for intid in 0..16usize {
        for whom in (0..8).map(|cpu| 1 << cpu).chain([0, 0xff]) {
            for filter in [0, 1 << 24, 2 << 24, 3 << 24, 1 << 15] {
                write32(gicd + gic::v2::SGIR, whom << 16 | filter | intid as u32);
            }
        }
        write8(gicd + gic::v2::SPENDSGIR + intid, 0xff);
    }
}

/// Ends, and deactivates in EOImode 1, every interrupt there can be, from every CPU: none of them has been taken.
fn end_others() {
    sysreg::irq_off();
    let interface = gic::v2::cpu_interface();
    for split in [false, true] {
        gic::split_end(split);
        for value in 0..0x2000 {
            write32(interface + gic::v2::EOIR, value);
            write32(interface + AEOIR, value);
            if split && value < 0x400 {
                gic::deactivate(gic::Taken(value));
            }
        }
    }
    gic::split_end(false);
}

/// Ones, single bits and zeros into each register of the CPU interface of a GICv3 that every CPU has, and ends of every interrupt there
/// can be, in one step and in two: none of them has been taken.
fn scribble_interface() {
    sysreg::irq_off();
    let bits = (0..64).map(|bit| 1 << bit);
    for value in [u64::MAX].into_iter().chain(bits).chain([0]) {
        msr!("icc_ctlr_el1", value);
        msr!("icc_pmr_el1", value);
        msr!("icc_igrpen1_el1", value);
        msr!("icc_igrpen0_el1", value);
        msr!("icc_bpr1_el1", value);
        msr!("icc_bpr0_el1", value);
        msr!("icc_ap0r0_el1", value);
        msr!("icc_ap1r0_el1", value);
        sysreg::isb();
    }
    for split in [false, true] {
        gic::split_end(split);
        for intid in 0..1024u64 {
            msr!("icc_eoir1_el1", intid);
            msr!("icc_eoir0_el1", intid);
            msr!("icc_dir_el1", intid);
        }
    }
    gic::split_end(false);
}

/// Reads a page of registers: what waits is acknowledged.
fn read_all(frame: usize) {
    for at in (0..0x1000).step_by(4) {
        core::hint::black_box(read32(frame + at));
    }
}

/// Ones, zeros and single bits in each size.
fn scribble(frame: usize, offsets: &[core::ops::Range<usize>]) {
    sysreg::irq_off();
    for at in offsets.iter().cloned().flatten().step_by(4) {
        let address = frame + at;
        for value in [u32::MAX, 0] {
            write32(address, value);
            write8(address + at / 4 % 4, value as u8);
            write16(address + at / 4 % 2 * 2, value as u16);
            if at % 8 == 0 {
                write64(address, u64::from(value) << 32 | u64::from(value));
            }
        }
        write32(address, 1 << (at / 4 % 32));
    }
}

//! Claim: a VM that takes its interrupts itself gets its own and no others, whatever it does to the GIC, and EL2 gets
//! its pCPU back whatever it masks.
//!
//! Interrupts of its timer, and SGIs to itself; then every SGI to everybody by each register there is, and ones, zeros and
//! single bits into each register of both frames in each size; then interrupts again. In the end it closes all masks
//! and sleeps: who reads this makes it stand still, go on and stop.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::{write8, write16, write32, write64};
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

fn main(_: &'static Board) {
    works("at first");
    gic::set_mask(0);
    works("with a mask that masks nothing");
    shout();
    works("after SGIs to everybody");
    scribble(gic::distributor());
    scribble(gic::v3::redistributor());
    scribble(gic::v3::redistributor() + gic::v3::SGI_FRAME);
    works("after writes to everything");
    check::done();
    sysreg::mask_all();
    gic::set_mask(0);
    gic::set_binary_point(7);
    // Both groups off.
    msr!("icc_igrpen1_el1", 0);
    msr!("icc_igrpen0_el1", 0);
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

/// Ones, zeros and single bits in each size.
fn scribble(frame: usize) {
    sysreg::irq_off();
    for at in OFFSETS.into_iter().flatten().step_by(4) {
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

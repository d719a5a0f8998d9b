//! Claim: the ways in which a GPPT VM can keep its pCPU from EL2 are those of `CAVEATS.md`, and
//! harm no other VM.
//!
//! With `how=1` it forges active priorities (GICv3), with `how=2` it only closes its CPU interface,
//! and then it sleeps; with `how=3` it faults at a vector that its tables do not translate, and so
//! again without end. With `how=4` it does nothing but call EL2, which is then what interrupts
//! mostly find.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::write32;
use bulkhead_guests::{Board, alive, gic, guest, msr, power, println, ruin, sysreg};

guest!(main = main, irq = alive::on_irq);

/// In the upper half of the addresses, for which a guest of this project has no tables (TCR_EL1.EPD1).
const NOWHERE: u64 = 0xffff_ffff_8000_0000;

const PSCI_VERSION: u32 = 0x8400_0000;

fn main(board: &'static Board) {
    let how = board.argument("how").unwrap_or(0);
    alive::check_some("before it leaves", alive::LOW_SGIS);
    println!("LEAVES");
    sysreg::mask_all();
    match how {
        1 => msr!("icc_ap1r0_el1", 1),
        2 => {
            gic::set_mask(0);
            if gic::version() == 2 {
                write32(gic::v2::cpu_interface() + gic::v2::GICC_CTLR, 0);
            } else {
                msr!("icc_igrpen1_el1", 0);
            }
        }
        4 => loop {
            power::hvc(PSCI_VERSION, [0; 7]);
        },
        _ => {
            msr!("vbar_el1", NOWHERE);
            sysreg::isb();
            ruin::undefined();
        }
    }
    sysreg::isb();
    loop {
        sysreg::wfi();
    }
}

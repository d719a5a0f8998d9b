//! Claim: AArch32 is not there at EL1, and a guest that goes to EL0 in AArch32 although the ID registers
//! hide it is stopped at the first fault that EL2 has to give it.
//!
//! Returns to AArch32 at EL1 and at EL0. Where EL0 has it, an SVC comes back to EL1 without EL2 knowing;
//! then a load from nowhere does not come back at all.
#![no_std]
#![no_main]

use bulkhead_guests::probe::{self, Fault};
use bulkhead_guests::{Board, check, guest, mmu, mrs, println};

guest!(main = main);

/// MSR ELR_EL1, x0; MSR SPSR_EL1, x1; ERET.
const RETURN: [u32; 3] = [0xd518_4020, 0xd518_4001, 0xd69f_03e0];
/// SPSR_EL1 of A32: all masks closed, User mode or Supervisor mode (which would be EL1).
const USER: u64 = 0x1d0;
const SUPERVISOR: u64 = 0x1d3;
/// In A32: `svc #0`, and `ldr r0, [r2]`.
const SVC: u32 = 0xef00_0000;
const LOAD: u32 = 0xe592_0000;
/// An address of 32 bits where no guest has anything.
const NOWHERE: u64 = 0xf000_0000;

/// Exception classes: illegal execution state, SVC from AArch32.
const ILLEGAL: u64 = 0x0e;
const SVC32: u64 = 0x11;

fn main(board: &'static Board) {
    let field = |low: u32| mrs!("id_aa64pfr0_el1") >> low & 15;
    check::equal("ID_AA64PFR0_EL1.EL0: AArch64 only", field(0), 1);
    check::equal("ID_AA64PFR0_EL1.EL1: AArch64 only", field(4), 1);
    let class = class(go(cpu_entry(), SUPERVISOR));
    check::equal("EL1 in AArch32 is an illegal state", class, ILLEGAL);
    // The last 2 MiB of the memory hold nothing of ours.
    let end = board.memory.first().map_or(0, |memory| memory.end());
    let code = mmu::open_to_el0(end - 4096);
    mmu::open_to_el0(NOWHERE as usize);
    let seen = user(code, SVC);
    check::holds(
        "EL0 in AArch32 is not there, or its SVC comes to EL1",
        seen == ILLEGAL || seen == SVC32,
        format_args!("exception class {seen:#x}"),
    );
    if seen == ILLEGAL {
        println!("aarch32: EL0 has none");
    } else {
        println!("aarch32: EL0 has it; a load from nowhere comes next");
        let back = user(code, LOAD);
        check::holds(
            "a VM in AArch32 is stopped at its first fault",
            false,
            format_args!("it came back with exception class {back:#x}"),
        );
    }
    check::done();
}

/// Any address that can be executed: an illegal state comes before what is there.
fn cpu_entry() -> u64 {
    bulkhead_guests::cpu::entry()
}

/// Runs one instruction in AArch32 at EL0; gives the class of the exception that ended it.
fn user(code: usize, instruction: u32) -> u64 {
    probe::place(code, &[instruction, SVC]);
    class(go(code as u64, USER))
}

/// Returns from an exception to `address` with `state`; gives the fault that came of it.
fn go(address: u64, state: u64) -> Result<(), Fault> {
    let mut registers = [address, state, NOWHERE, 0, 0, 0, 0, 0];
    probe::code(&RETURN, &mut registers)
}

/// Class of the exception; all ones if there was none.
fn class(result: Result<(), Fault>) -> u64 {
    result.err().map_or(u64::MAX, Fault::class)
}

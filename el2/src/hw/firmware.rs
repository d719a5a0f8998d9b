//! Calls to the firmware: PSCI by SMC (DEN0022E).

use super::mmu::physical;

unsafe extern "C" {
    fn start_secondary_cpu();
}

fn smc(function: u64, x1: u64, x2: u64, x3: u64) -> u64 {
    let mut x0 = function;
    // SAFETY: [R-SMC] SMCCC: x0 to x17 may change, everything else is kept.
    unsafe {
        core::arch::asm!(
            "smc #0",
            inout("x0") x0, inout("x1") x1 => _, inout("x2") x2 => _, inout("x3") x3 => _,
            out("x4") _, out("x5") _, out("x6") _, out("x7") _, out("x8") _, out("x9") _,
            out("x10") _, out("x11") _, out("x12") _, out("x13") _, out("x14") _, out("x15") _,
            out("x16") _, out("x17") _, options(nostack)
        );
    }
    x0
}

/// Starts a pCPU (CPU_ON); the firmware's answer, 0 for success. Only the affinity fields go out:
/// some firmware fails on the others.
pub fn start_pcpu(mpidr: u64, index: usize) -> u64 {
    let entry = physical(start_secondary_cpu as *const () as u64);
    smc(0xc400_0003, mpidr & 0xff_00ff_ffff, entry, index as u64)
}

/// A call of the SMC Calling Convention that takes x1 and gives x0.
pub fn call(function: u32, x1: u64) -> u64 {
    smc(u64::from(function), x1, 0, 0)
}

/// Makes a call for a guest: x0 to x7, and x0 to x3 of the answer.
pub fn forward(registers: [u64; 8]) -> [u64; 4] {
    let [mut x0, mut x1, mut x2, mut x3, x4, x5, x6, x7] = registers;
    // SAFETY: [R-SMC] the plan lets the guest make this call; SMCCC: x0 to x17 may change.
    unsafe {
        core::arch::asm!(
            "smc #0",
            inout("x0") x0, inout("x1") x1, inout("x2") x2, inout("x3") x3,
            inout("x4") x4 => _, inout("x5") x5 => _, inout("x6") x6 => _, inout("x7") x7 => _,
            out("x8") _, out("x9") _, out("x10") _, out("x11") _, out("x12") _, out("x13") _,
            out("x14") _, out("x15") _, out("x16") _, out("x17") _, options(nostack)
        );
    }
    [x0, x1, x2, x3]
}

/// Switches the board off (SYSTEM_OFF). If the firmware cannot, sleeps.
pub fn power_off() -> ! {
    smc(0x8400_0008, 0, 0, 0);
    super::cpu::halt()
}

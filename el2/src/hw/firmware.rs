//! Calls to the firmware: PSCI by SMC (DEN0022E). With the feature `spin-table` there is no
//! firmware to call: CPUs wait for an address (Linux, Documentation/arch/arm64/booting.rst), and
//! each call returns "not supported".

use bulkhead_abi::plan::Pcpu;

use super::mmu::CopyWindows;
use super::page_pool::loaded;

unsafe extern "C" {
    #[cfg(not(feature = "spin-table"))]
    fn start_secondary_cpu();
    #[cfg(feature = "spin-table")]
    fn start_waiting_cpu();
}

#[cfg(feature = "spin-table")]
fn smc(_: u64, _: u64, _: u64, _: u64) -> u64 {
    u64::MAX
}

#[cfg(not(feature = "spin-table"))]
fn smc(function: u64, x1: u64, x2: u64, x3: u64) -> u64 {
    let mut x0 = function;
    // SAFETY: [R-SMC] SMCCC: x0 to x17 may change, everything else is preserved.
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

/// Starts a pCPU (CPU_ON) and returns the firmware's answer, 0 for success. Passes only the
/// affinity fields of the MPIDR: some firmware fails on the other bits. A pCPU that waits for an
/// address needs a build with `spin-table`.
#[cfg(not(feature = "spin-table"))]
pub fn start_pcpu(_: &mut CopyWindows, row: &Pcpu, index: usize) -> u64 {
    if row.release != 0 {
        return u64::MAX;
    }
    let entry = loaded(start_secondary_cpu as *const () as u64);
    smc(0xc400_0003, row.mpidr & 0xff_00ff_ffff, entry, index as u64)
}

/// Starts a pCPU that waits for an address, which the pCPU reads past the caches. Returns 0 for
/// success, which cannot be checked. The pCPU finds its index by its MPIDR, among those that
/// `mmu::set_mpidr` has stored: several pCPUs may wait at one address.
#[cfg(feature = "spin-table")]
pub fn start_pcpu(copy_windows: &mut CopyWindows, row: &Pcpu, _: usize) -> u64 {
    if row.release == 0 {
        return u64::MAX;
    }
    let entry = loaded(start_waiting_cpu as *const () as u64);
    let place = copy_windows.open(super::layout::TARGET, row.release, super::mmu::Use::Write);
    // SAFETY: [R-COPY-WINDOW] the eight bytes lie in the copy window that was just opened; the
    // proof of the plan says that nothing else uses them.
    unsafe {
        core::arch::asm!("str {0}, [{1}]", "dc cvac, {1}", "dsb sy", "sev", in(reg) entry, in(reg) place, options(nostack));
    }
    copy_windows.close(super::layout::TARGET);
    0
}

/// Makes a call of the SMC Calling Convention that takes x1 and returns x0.
pub fn call(function: u32, x1: u64) -> u64 {
    smc(u64::from(function), x1, 0, 0)
}

/// Makes a call for a guest: passes x0 to x7, and returns x0 to x3.
#[cfg(feature = "spin-table")]
pub fn forward(_: [u64; 8]) -> [u64; 4] {
    [u64::MAX, 0, 0, 0]
}

/// Makes a call for a guest: passes x0 to x7, and returns x0 to x3.
#[cfg(not(feature = "spin-table"))]
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

/// Switches the board off (SYSTEM_OFF). Sleeps if the firmware cannot.
pub fn power_off() -> ! {
    smc(0x8400_0008, 0, 0, 0);
    #[cfg(feature = "spin-table")]
    if let Some(uart) = super::boot::uart_at_hand() {
        for byte in b"[el2] nobody can switch this board off: it sleeps\r\n" {
            uart.send_polled(*byte);
        }
        uart.flush();
    }
    super::cpu::halt()
}

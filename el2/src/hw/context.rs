//! The hardware state of a vCPU, saved while another vCPU has the pCPU.

#[cfg(doc)]
use super::cpu;
use super::gic::VirtualInterface;
use super::timer::GuestTimers;

unsafe extern "C" {
    fn save_registers(place: *mut Registers, quirks: u64);
    fn restore_registers(place: *const Registers, quirks: u64);
    fn save_machine(place: *mut Registers);
}

/// The registers of EL1 and EL0, and those of EL2 that belong to a vCPU, in the order of
/// `switch.s`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
struct Registers {
    system: [u64; 32],
    vectors: [u128; 32],
}

/// The saved hardware state of a vCPU.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Context {
    registers: Registers,
    /// The virtual interface: list registers, active priorities and control registers.
    pub interface: VirtualInterface,
    /// The timers.
    pub timers: GuestTimers,
    /// The private physical interrupts of the vCPU that are active on the board.
    pub active: u32,
}

impl Context {
    /// The state of a vCPU that has not started.
    pub const NEW: Self = Self {
        registers: Registers {
            system: [0; 32],
            vectors: [0; 32],
        },
        interface: VirtualInterface::NEW,
        timers: GuestTimers::OFF,
        active: 0,
    };

    /// Saves the registers of the vCPU, on a pCPU with these quirks ([`cpu::switch_quirks`]). The
    /// hardware keeps them as well.
    #[inline(always)]
    pub fn save_registers(&mut self, quirks: u64) {
        // SAFETY: [R-SYSREG] reads registers and writes this structure, whose layout `switch.s`
        // knows.
        unsafe { save_registers(&raw mut self.registers, quirks) }
    }

    /// Saves the registers that only EL2 sets for a vCPU: stage 2, MPIDR and counter offset. They
    /// change so seldom that the code that changes them saves them.
    pub fn save_machine(&mut self) {
        // SAFETY: [R-SYSREG] reads registers and writes this structure, whose layout `switch.s`
        // knows.
        unsafe { save_machine(&raw mut self.registers) }
    }

    /// Restores the registers of the vCPU. They take effect when its guest is entered.
    #[inline(always)]
    pub fn restore_registers(&self, quirks: u64) {
        // SAFETY: [R-SYSREG] the values are those of a vCPU of this pCPU, or zeros, which belong to
        // no vCPU.
        unsafe { restore_registers(&raw const self.registers, quirks) }
    }
}

/// Invalidates the translations and instructions that this pCPU has cached for the current VM from
/// before one of its vCPUs migrated here: from a former life of the VM, or from another boot.
/// Changes that the guest itself has made elsewhere are broadcast (HCR_EL2.FB). The caller has
/// synchronised VTTBR_EL2; the return to the guest synchronises the rest, which EL2 does not use.
pub fn forget_former_life() {
    // SAFETY: [R-TLB] the guest has not run since its registers were restored.
    unsafe {
        core::arch::asm!(
            "dsb nshst",
            "tlbi vmalls12e1",
            "ic iallu",
            "dsb nsh",
            options(nostack, preserves_flags)
        )
    }
}

/// Invalidates the stage-1 translations that this pCPU has cached for the current VM: another of
/// its vCPUs made them, for which the same ASID may have meant another address space. The return to
/// the guest synchronises that.
pub fn forget_translations() {
    // SAFETY: [R-TLB] the guest has not run since its registers were restored.
    unsafe {
        core::arch::asm!(
            "isb",
            "dsb nshst",
            "tlbi vmalle1",
            "dsb nsh",
            options(nostack, preserves_flags)
        )
    }
}

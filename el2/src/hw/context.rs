//! What the hardware has of the vCPU that runs, kept while another one has the pCPU.

#[cfg(doc)]
use super::cpu;
use super::gic::VirtualInterface;
use super::timer::GuestTimers;

unsafe extern "C" {
    fn save_registers(place: *mut Registers, auxiliary: u64);
    fn restore_registers(place: *const Registers, auxiliary: u64);
    fn save_machine(place: *mut Registers);
}

/// Registers of EL1 and EL0, and those of EL2 that belong to a vCPU, in the order of `switch.s`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
struct Registers {
    system: [u64; 32],
    vectors: [u128; 32],
}

/// See the module.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Context {
    registers: Registers,
    /// List registers and what belongs to them.
    pub interface: VirtualInterface,
    /// The timers.
    pub timers: GuestTimers,
    /// Its private physical interrupts that are active on the board.
    pub active: u32,
}

impl Context {
    /// That of a vCPU that has not started.
    pub const NEW: Self = Self {
        registers: Registers {
            system: [0; 32],
            vectors: [0; 32],
        },
        interface: VirtualInterface::NEW,
        timers: GuestTimers::OFF,
        active: 0,
    };

    /// Keeps the registers of the vCPU, on a pCPU that may have auxiliary ones ([`cpu::has_auxiliary_registers`]). They stay in the
    /// hardware as well.
    #[inline(always)]
    pub fn save_registers(&mut self, auxiliary: u64) {
        // SAFETY: [R-SYSREG] reads registers and writes this structure, which `switch.s` knows.
        unsafe { save_registers(&raw mut self.registers, auxiliary) }
    }

    /// Keeps what EL2 alone gives the vCPU: stage 2, name, and time. It changes so seldom that who changes it keeps it.
    pub fn save_machine(&mut self) {
        // SAFETY: [R-SYSREG] as above.
        unsafe { save_machine(&raw mut self.registers) }
    }

    /// Brings the registers of the vCPU back. They are in effect when its guest is entered.
    #[inline(always)]
    pub fn restore_registers(&self, auxiliary: u64) {
        // SAFETY: [R-SYSREG] the values are those of a vCPU of this pCPU, or zeros, which are none's.
        unsafe { restore_registers(&raw const self.registers, auxiliary) }
    }
}

/// Drops what this pCPU has of the VM that runs, from a time before a vCPU of it came here: of a former life, or of another boot.
/// What the guest itself has changed elsewhere is broadcast (HCR_EL2.FB).
pub fn forget_former_life() {
    // SAFETY: [R-TLB] the guest has not run since its registers were brought.
    unsafe {
        core::arch::asm!(
            "isb",
            "dsb nshst",
            "tlbi vmalls12e1",
            "ic iallu",
            "dsb nsh",
            "isb",
            options(nostack, preserves_flags)
        )
    }
}

/// Drops what this pCPU has of the stage-1 translations of the VM that runs: another of its vCPUs made them, which may
/// have meant something else by the same ASID.
pub fn forget_translations() {
    // SAFETY: [R-TLB] the guest has not run since its registers were brought.
    unsafe {
        core::arch::asm!(
            "isb",
            "dsb nshst",
            "tlbi vmalle1",
            "dsb nsh",
            "isb",
            options(nostack, preserves_flags)
        )
    }
}

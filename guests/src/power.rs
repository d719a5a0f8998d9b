//! Calls to whoever is above EL1 (SMCCC), and turning the machine off.

use crate::sysreg::{mask_all, wfi};
use smccc::{Hvc, psci};

pub use smccc::psci::{PSCI_FEATURES, PSCI_SYSTEM_OFF, PSCI_SYSTEM_RESET, PSCI_VERSION};

/// PSCI_VERSION by HVC: major version in the upper, minor in the lower 16 bits.
#[inline(always)]
pub fn psci_version() -> u32 {
    smccc::hvc32(PSCI_VERSION, [0; 7])[0]
}

/// HVC with a function id and seven arguments; the results are x0 to x3.
pub fn hvc(function: u32, arguments: [u64; 7]) -> [u64; 4] {
    first_four(smccc::hvc64(function, seventeen(arguments)))
}

/// SMC with a function id and seven arguments; the results are x0 to x3.
pub fn smc(function: u32, arguments: [u64; 7]) -> [u64; 4] {
    first_four(smccc::smc64(function, seventeen(arguments)))
}

/// PSCI answers.
pub mod answer {
    /// Done.
    pub const SUCCESS: i32 = 0;
    /// There is no such function here.
    pub const NOT_SUPPORTED: i32 = -1;
    /// An argument names nothing.
    pub const INVALID_PARAMETERS: i32 = -2;
    /// Not allowed.
    pub const DENIED: i32 = -3;
    /// That CPU is on.
    pub const ALREADY_ON: i32 = -4;
    /// That CPU is about to be on.
    pub const ON_PENDING: i32 = -5;
    /// The entry point is nowhere.
    pub const INVALID_ADDRESS: i32 = -9;
}

/// Starts a CPU (CPU_ON, 64 bits): affinity, address of its first instruction, what it finds in x0.
pub fn cpu_on(affinity: u64, entry: u64, context: u64) -> i32 {
    hvc(0xc400_0003, [affinity, entry, context, 0, 0, 0, 0])[0] as i32
}

/// Turns this CPU off; gives the answer if that is refused.
pub fn cpu_off() -> i32 {
    hvc(0x8400_0002, [0; 7])[0] as i32
}

/// Whether a CPU is on (0), off (1) or about to be on (2); negative if there is none.
pub fn affinity_info(affinity: u64, level: u64) -> i32 {
    hvc(0xc400_0004, [affinity, level, 0, 0, 0, 0, 0])[0] as i32
}

/// Waits for an interrupt (CPU_SUSPEND to standby, 64 bits).
pub fn cpu_suspend(state: u32, entry: u64, context: u64) -> i32 {
    hvc(0xc400_0001, [state.into(), entry, context, 0, 0, 0, 0])[0] as i32
}

/// Asks for a reset (SYSTEM_RESET).
pub fn reset() -> ! {
    hvc(PSCI_SYSTEM_RESET, [0; 7]);
    // Refused: nothing else to do.
    loop {
        crate::sysreg::wfi();
    }
}

/// Turns the machine off. Does not return, whatever the answer is.
pub fn off() -> ! {
    // An error has no one left to tell: the loop below is then what remains.
    let _refused = psci::system_off::<Hvc>();
    mask_all();
    loop {
        wfi();
    }
}

fn seventeen(arguments: [u64; 7]) -> [u64; 17] {
    let mut all = [0; 17];
    all[..7].copy_from_slice(&arguments);
    all
}

fn first_four(results: [u64; 18]) -> [u64; 4] {
    let [a, b, c, d, ..] = results;
    [a, b, c, d]
}

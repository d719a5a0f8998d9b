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

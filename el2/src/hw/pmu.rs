//! The event counter by which EL2 keeps budgets of events (DDI 0487, D13). It is the last one of the CPU, beyond MDCR_EL2.HPMN: guests would
//! not reach it if they had a PMU. PMSELR_EL0 selects it for good, because no guest may write that (MDCR_EL2.TPM).
//!
//! It counts at EL1 and EL0, not at EL2: PMEVTYPER.NSH is 0, which holds without FEAT_HPMN or HPMD, too (D13.5.3). An exception to EL2 or
//! from it is a context synchronization event, so that what is read here is all that the guest has brought about, and what is written is in
//! effect when it goes on.

use super::cpu::event_counters;
use super::sysreg::{isb, read, write};

/// The bit of the counter, in the sets of counters.
fn bit() -> u64 {
    1u64.wrapping_shl(last())
}

/// The number of the counter.
fn last() -> u32 {
    (event_counters() as u32).wrapping_sub(1)
}

/// Whether this CPU has a counter, and counts the event as far as it says what it counts (PMCEID0_EL0 and PMCEID1_EL0; those from 64 on are
/// each implementation's).
pub fn counts(event: u32) -> bool {
    let known = match event {
        0..32 => read!("pmceid0_el0").wrapping_shr(event) & 1,
        32..64 => read!("pmceid1_el0").wrapping_shr(event.wrapping_sub(32)) & 1,
        _ => 1,
    };
    event_counters() != 0 && known != 0
}

/// Prepares the counter of this CPU, which is off. Its overflow interrupts.
pub fn start(event: u32) {
    stop();
    write!("pmselr_el0", u64::from(last()));
    isb();
    // P, U, NSK, NSU, NSH and M 0: counts at EL1 and EL0.
    write!("pmxevtyper_el0", u64::from(event));
    write!("pmintenset_el1", bit());
    isb();
}

/// Starts the counter from a value.
pub fn count_from(preset: u32) {
    write!("pmovsclr_el0", bit());
    write!("pmxevcntr_el0", u64::from(preset));
    write!("pmcntenset_el0", bit());
}

/// Stops the counter, and takes its interrupt back. Returns its value.
pub fn stop() -> u32 {
    write!("pmcntenclr_el0", bit());
    isb();
    let value = read!("pmxevcntr_el0") as u32;
    write!("pmovsclr_el0", bit());
    isb();
    value
}

//! The event counters of this CPU (DDI 0487, D13). By the last one EL2 keeps budgets of events; the others count for the vCPU that runs, if it
//! has performance monitors. No guest reaches any (MDCR_EL2.TPM). PMSELR_EL0 selects the last one, but for moments.
//!
//! They count at EL1 and EL0, not at EL2: PMEVTYPER.NSH is 0, which holds without FEAT_HPMN or HPMD, too (D13.5.3). An exception to EL2 or
//! from it is a context synchronization event, so that what is read here is all that the guest has brought about, and what is written is in
//! effect when it goes on.

use bulkhead_core::cpu::pmu::{Features, KEPT_BACK, Pmu};

use super::cpu::event_counters;
use super::sysreg::{clear, isb, read, write};

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

/// What this CPU says of its performance monitors.
pub fn features() -> Features {
    Features {
        control: read!("pmcr_el0"),
        events: [read!("pmceid0_el0"), read!("pmceid1_el0")],
        version: read!("id_aa64dfr0_el1") >> 8 & 15,
    }
}

/// Whether guests can have performance monitors here: EL2 keeps one counter, and another one counts a guest's cycles.
pub fn are_enough() -> bool {
    event_counters() >= u64::from(KEPT_BACK)
}

/// Stops all event counters of this CPU, and prepares the one of budgets. Its overflow interrupts.
pub fn start(event: u32) {
    let all = (1u64 << 31).wrapping_sub(1);
    write!("pmcntenclr_el0", all);
    write!("pmintenclr_el1", all);
    write!("pmuserenr_el0", 0);
    write!("pmselr_el0", u64::from(last()));
    isb();
    write!("pmovsclr_el0", all);
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

/// Gives the CPU what a vCPU counts, which goes on when its guest does.
pub fn load(pmu: &Pmu) {
    write!("pmuserenr_el0", u64::from(pmu.user()));
    if pmu.counting() == 0 {
        return;
    }
    let (mut counting, mut telling) = (0u64, 0u64);
    let mut rest = pmu.counting();
    while let Some((n, counter)) = pmu.next_of(&mut rest, event_counters() as u32) {
        write!("pmselr_el0", counter.number.into());
        isb();
        write!("pmxevtyper_el0", counter.kind.into());
        write!("pmxevcntr_el0", counter.value.into());
        let bit = 1u64.wrapping_shl(counter.number);
        counting |= bit;
        if pmu.telling().wrapping_shr(n) & 1 != 0 {
            telling |= bit;
        }
    }
    select_last();
    write!("pmovsclr_el0", counting);
    write!("pmintenset_el1", telling);
    write!("pmcntenset_el0", counting);
}

/// Takes from the CPU what some of a vCPU's counters have counted, which go on: nothing counts at EL2.
pub fn look(pmu: &mut Pmu, counters: u32) {
    if counters == 0 {
        return;
    }
    let overflows = read!("pmovsclr_el0");
    let (mut rest, mut taken) = (counters, 0u64);
    while let Some((n, counter)) = pmu.next_of(&mut rest, event_counters() as u32) {
        let bit = 1u64.wrapping_shl(counter.number);
        pmu.take(n, selected(counter.number), overflows & bit != 0);
        taken |= bit;
    }
    select_last();
    write!("pmovsclr_el0", overflows & taken);
}

/// Selects a counter and reads it.
fn selected(number: u32) -> u32 {
    write!("pmselr_el0", number.into());
    isb();
    read!("pmxevcntr_el0") as u32
}

/// Takes from the CPU what a vCPU has counted since it was loaded.
pub fn put(pmu: &mut Pmu) {
    clear!("pmuserenr_el0");
    if pmu.counting() == 0 {
        return;
    }
    let own = 1u64.wrapping_shl(last()).wrapping_sub(1);
    write!("pmcntenclr_el0", own);
    write!("pmintenclr_el1", own);
    isb();
    // They are cleared by whoever counts there next.
    let overflows = read!("pmovsclr_el0");
    let mut rest = pmu.counting();
    while let Some((n, counter)) = pmu.next_of(&mut rest, event_counters() as u32) {
        let value = selected(counter.number);
        pmu.take(n, value, overflows.wrapping_shr(counter.number) & 1 != 0);
    }
    select_last();
}

/// Selects the counter of budgets, for whoever accesses it next.
fn select_last() {
    write!("pmselr_el0", u64::from(last()));
    isb();
}

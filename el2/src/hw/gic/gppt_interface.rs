//! Registers of a GICv3's CPU interface on the pCPU of a GPPT VM.

use bulkhead_core::gppt::{Common, Controls};

use super::super::sysreg::{isb, read, write};

/// The value of ICC_RPR_EL1 while no interrupt is active.
pub(super) const IDLE: u64 = 0xff;
/// HCR_EL2.FMO and IMO.
const TO_EL2: u64 = 1 << 3 | 1 << 4;

/// Reads a register that both groups have in common, in the board's view.
pub fn common(which: Common) -> u64 {
    match which {
        Common::Mask => read!("icc_pmr_el1"),
        Common::Running => read!("icc_rpr_el1"),
        Common::Control => read!("icc_ctlr_el1"),
    }
}

/// Writes a register that both groups have in common.
pub fn set_common(which: Common, value: u64) {
    match which {
        Common::Mask => write!("icc_pmr_el1", value),
        Common::Running => {}
        Common::Control => write!("icc_ctlr_el1", value),
    }
    isb();
}

/// Reads ICC_IGRPEN1_EL1.
pub fn group1() -> u64 {
    read!("icc_igrpen1_el1") & 1
}

/// Disables Group 1 interrupts, which could otherwise end the sleep of EL2 while the guest does not
/// have the pCPU. Returns the value for [`restore_group1`].
pub fn disable_group1() -> u64 {
    let enabled = read!("icc_igrpen1_el1");
    write!("icc_igrpen1_el1", 0);
    isb();
    enabled
}

/// Restores the guest's enable of Group 1.
pub fn restore_group1(enabled: u64) {
    write!("icc_igrpen1_el1", enabled);
    isb();
}

/// Routes interrupts to EL2.
pub fn route_to_el2() {
    write!("hcr_el2", read!("hcr_el2") | TO_EL2);
    isb();
}

/// Routes interrupts as the guest has them.
pub fn route_to_guest(controls: Controls) {
    let rest = read!("hcr_el2") & !TO_EL2;
    write!("hcr_el2", rest | controls.hcr & TO_EL2);
    isb();
}

/// Returns the number of priority bits (ICC_CTLR_EL1.PRIbits), on which the number of active
/// priorities registers depends.
pub(super) fn priority_bits() -> u64 {
    (common(Common::Control) >> 8 & 7).saturating_add(1)
}

//! The generic timers (DDI 0487, D12): EL2's own, and what guests get.

use super::sysreg::{isb, read, write};

/// INTID of the EL2 physical timer (BSA 1.0, table 8: PPI 26).
pub const EL2_TIMER: u32 = 26;

/// The physical counter.
pub fn now() -> u64 {
    isb();
    read!("cntpct_el0")
}

/// Ticks in a number of milliseconds.
pub fn milliseconds(n: u64) -> u64 {
    (read!("cntfrq_el0") / 1000).saturating_mul(n)
}

/// Arms EL2's timer.
pub fn arm(ticks: u64) {
    write!("cnthp_cval_el2", now().saturating_add(ticks));
    write!("cnthp_ctl_el2", 1);
    isb();
}

/// Disarms EL2's timer.
pub fn disarm() {
    write!("cnthp_ctl_el2", 0);
    isb();
}

/// Takes the virtual timer away from a guest that stopped.
pub fn stop_guest_timer() {
    write!("cntv_ctl_el0", 0);
    isb();
}

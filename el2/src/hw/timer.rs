//! The generic timers (DDI 0487, D12): EL2's own, and what guests get.

use super::sysreg::{isb, read, write};

/// The physical counter.
pub fn now() -> u64 {
    isb();
    read!("cntpct_el0")
}

/// Ticks in a number of milliseconds.
pub fn milliseconds(n: u64) -> u64 {
    (read!("cntfrq_el0") / 1000).saturating_mul(n)
}

/// Ticks in a number of seconds.
pub fn seconds(n: u64) -> u64 {
    read!("cntfrq_el0").saturating_mul(n)
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

/// Switches the virtual timer of a guest off that stands still. Gives what [`release_guest_timer`] needs.
pub fn hold_guest_timer() -> u64 {
    let control = read!("cntv_ctl_el0");
    stop_guest_timer();
    control
}

/// Switches the virtual timer on again as it was.
pub fn release_guest_timer(control: u64) {
    // ENABLE and IMASK; ISTATUS follows.
    write!("cntv_ctl_el0", control & 0b11);
    isb();
}

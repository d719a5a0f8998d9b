//! The generic timers (DDI 0487, D12): EL2's own, and those of guests.

use super::sysreg::{clear, isb, read, write};

/// Reads the physical counter.
pub fn now() -> u64 {
    isb();
    read!("cntpct_el0")
}

/// Reads the physical counter at the start of an exit; the exception entry orders the read.
#[inline(always)]
pub fn now_at_exit() -> u64 {
    read!("cntpct_el0")
}

/// Returns the ticks in a number of milliseconds.
pub fn milliseconds(n: u64) -> u64 {
    (read!("cntfrq_el0") / 1000).saturating_mul(n)
}

/// Returns the ticks in a number of seconds.
pub fn seconds(n: u64) -> u64 {
    read!("cntfrq_el0").saturating_mul(n)
}

/// Returns the ticks of the counters in a second (CNTFRQ_EL0).
pub fn frequency() -> u64 {
    read!("cntfrq_el0")
}

/// Enables EL2's timer, armed for never.
pub fn start() {
    set(u64::MAX);
    write!("cnthp_ctl_el2", 1);
    isb();
}

/// Arms EL2's timer for a value of the physical counter; [`u64::MAX`] is never.
pub fn set(at: u64) {
    set_on_leaving(at);
    isb();
}

/// Arms EL2's timer like [`set`]; takes effect by the exception return from EL2.
#[inline(always)]
pub fn set_on_leaving(at: u64) {
    write!("cnthp_cval_el2", at);
}

/// Sets CNTVOFF_EL2, and whether the guest has the EL1 physical timer to itself
/// (CNTHCTL_EL2.EL1PCEN). The guest can read the physical counter in any case (EL1PCTEN).
pub fn give_guest_time(offset: u64, own_physical: bool) {
    write!("cntvoff_el2", offset);
    write!("cnthctl_el2", 1 | u64::from(own_physical) << 1);
    isb();
}

/// Disables the timers of a guest that has stopped.
pub fn stop_guest_timer() {
    write!("cntv_ctl_el0", 0);
    write!("cntp_ctl_el0", 0);
    isb();
}

/// Disables the timers of a guest whose VM is paused. Returns their control registers for
/// [`release_guest_timer`].
pub fn hold_guest_timer() -> [u64; 2] {
    let controls = [read!("cntv_ctl_el0"), read!("cntp_ctl_el0")];
    stop_guest_timer();
    controls
}

/// Restores the control registers of the guest's timers, with CNTVOFF_EL2 set to `offset`.
pub fn release_guest_timer([virtual_control, physical_control]: [u64; 2], offset: u64) {
    write!("cntvoff_el2", offset);
    // ENABLE and IMASK; ISTATUS follows.
    write!("cntv_ctl_el0", virtual_control & 0b11);
    write!("cntp_ctl_el0", physical_control & 0b11);
    isb();
}

/// The saved timers of a vCPU while another vCPU has the pCPU: control and compare value.
#[derive(Clone, Copy, Debug)]
pub struct GuestTimers {
    virtual_one: [u64; 2],
    /// Off where EL2 emulates the physical timer.
    physical: [u64; 2],
}

impl GuestTimers {
    /// Both timers off.
    pub const OFF: Self = Self {
        virtual_one: [0; 2],
        physical: [0; 2],
    };

    /// Saves the virtual timer and disables it; the caller goes on to [`settle`].
    #[inline(always)]
    pub fn save_virtual(&mut self) {
        self.virtual_one = virtual_timer();
        clear!("cntv_ctl_el0");
    }

    /// Saves the physical timer and disables it; the caller goes on to [`settle`].
    pub fn save_physical(&mut self) {
        self.physical = physical_timer();
        clear!("cntp_ctl_el0");
    }

    /// Restores the virtual timer.
    #[inline(always)]
    pub fn restore_virtual(&self) {
        let [control, compare] = self.virtual_one;
        write!("cntv_cval_el0", compare);
        // ISTATUS cannot be written.
        write!("cntv_ctl_el0", control);
    }

    /// Restores the physical timer.
    pub fn restore_physical(&self) {
        let [control, compare] = self.physical;
        write!("cntp_cval_el0", compare);
        write!("cntp_ctl_el0", control);
    }

    /// Returns the value of the virtual counter at which the virtual timer interrupts, if it does.
    #[inline(always)]
    pub fn virtual_due(&self) -> Option<u64> {
        let [control, compare] = self.virtual_one;
        (control & 0b11 == 1).then_some(compare)
    }

    /// Returns the value of the physical counter at which the physical timer interrupts, if it
    /// does.
    pub fn physical_due(&self) -> Option<u64> {
        let [control, compare] = self.physical;
        (control & 0b11 == 1).then_some(compare)
    }
}

/// Makes the writes to the timers take effect, so that the board's interrupts follow them.
#[inline(always)]
pub fn settle() {
    isb();
}

/// Returns the ticks in a number of nanoseconds, rounded up.
#[inline(never)]
pub fn nanoseconds(n: u64) -> u64 {
    let (seconds, rest) = (n / 1_000_000_000, n % 1_000_000_000);
    let part = rest.saturating_mul(frequency()).div_ceil(1_000_000_000);
    seconds.saturating_mul(frequency()).saturating_add(part)
}

/// Reads CNTV_CTL_EL0 and CNTV_CVAL_EL0.
pub fn virtual_timer() -> [u64; 2] {
    [read!("cntv_ctl_el0"), read!("cntv_cval_el0")]
}

/// Reads CNTP_CTL_EL0 and CNTP_CVAL_EL0.
pub fn physical_timer() -> [u64; 2] {
    [read!("cntp_ctl_el0"), read!("cntp_cval_el0")]
}

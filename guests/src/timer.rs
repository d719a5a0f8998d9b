//! The virtual timer (DDI 0487, D12): `CNTV_*_EL0`.

use crate::sysreg::isb;

/// INTID of the virtual timer (a PPI).
pub const INTID: u32 = 27;

/// Ticks per second.
pub fn frequency() -> u64 {
    mrs!("cntfrq_el0")
}

/// The counter now. The barrier keeps the read from being done early.
#[inline(always)]
pub fn now() -> u64 {
    isb();
    mrs!("cntvct_el0")
}

/// Ticks as nanoseconds.
pub fn nanoseconds(ticks: u64) -> u64 {
    let product = u128::from(ticks) * 1_000_000_000 / u128::from(frequency().max(1));
    u64::try_from(product).unwrap_or(u64::MAX)
}

/// Microseconds as ticks, rounded up.
pub fn ticks(microseconds: u64) -> u64 {
    (frequency() * microseconds).div_ceil(1_000_000)
}

/// Sets the compare value and turns the timer on, its interrupt open.
#[inline(always)]
pub fn arm(compare: u64) {
    msr!("cntv_cval_el0", compare);
    msr!("cntv_ctl_el0", 1);
    isb();
}

/// Lets the interrupt line fall, and rise again if the timer is on and due. After a guest has ended a
/// linked interrupt whose line stayed high, QEMU's GICv2 does not look at the line before one changes.
pub fn move_line() {
    let control = mrs!("cntv_ctl_el0") & 1;
    msr!("cntv_ctl_el0", control | 2);
    isb();
    msr!("cntv_ctl_el0", control);
    isb();
}

/// Turns the timer off; its interrupt line falls.
#[inline(always)]
pub fn disarm() {
    msr!("cntv_ctl_el0", 0);
    isb();
}

/// Compare value.
#[inline(always)]
pub fn compare() -> u64 {
    mrs!("cntv_cval_el0")
}

/// Waits in a loop.
pub fn spin(microseconds: u64) {
    let end = now() + ticks(microseconds);
    while now() < end {}
}

/// The EL1 physical timer: `CNTP_*_EL0`.
pub mod physical {
    use crate::sysreg::isb;

    /// Its INTID (a PPI).
    pub const INTID: u32 = 30;
    /// CTL: on.
    pub const ENABLE: u64 = 1;
    /// CTL: interrupt masked.
    pub const IMASK: u64 = 1 << 1;
    /// CTL: due.
    pub const ISTATUS: u64 = 1 << 2;

    /// The physical counter now.
    #[inline(always)]
    pub fn now() -> u64 {
        isb();
        mrs!("cntpct_el0")
    }

    /// CNTP_CTL_EL0.
    pub fn control() -> u64 {
        isb();
        mrs!("cntp_ctl_el0")
    }

    /// Writes CNTP_CTL_EL0.
    pub fn set_control(value: u64) {
        msr!("cntp_ctl_el0", value);
        isb();
    }

    /// CNTP_CVAL_EL0.
    pub fn compare() -> u64 {
        mrs!("cntp_cval_el0")
    }

    /// Writes CNTP_CVAL_EL0.
    pub fn set_compare(value: u64) {
        msr!("cntp_cval_el0", value);
        isb();
    }

    /// CNTP_TVAL_EL0.
    pub fn value() -> u64 {
        isb();
        mrs!("cntp_tval_el0")
    }

    /// Writes CNTP_TVAL_EL0.
    pub fn set_value(value: u64) {
        msr!("cntp_tval_el0", value);
        isb();
    }
}

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

/// Smallest jump of the counter between two reads that means another vCPU had the pCPU, in microseconds.
const JUMP_US: u64 = 20;

/// What a vCPU had of its pCPU while it worked, in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Worked {
    /// For how long it ran.
    pub had: u64,
    /// Of this time.
    pub of: u64,
}

/// Reads the counter without end, as long as `goes_on` says so of the ticks that have passed, and counts those in which nobody else ran.
#[inline(always)]
pub fn work(mut goes_on: impl FnMut(u64) -> bool) -> Worked {
    let (from, jump) = (now(), ticks(JUMP_US));
    let (mut last, mut had) = (from, 0);
    while goes_on(last - from) {
        let now = now();
        let passed = now - last;
        if passed <= jump {
            had += passed;
        }
        last = now;
    }
    Worked {
        had,
        of: last - from,
    }
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

/// Sleeps, with the interrupt of the timer open at the GIC ([`crate::gic::enable`]) and closed here.
pub fn sleep(microseconds: u64) {
    let end = now() + ticks(microseconds);
    arm(end);
    while now() < end {
        crate::sysreg::wfi();
    }
    disarm();
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

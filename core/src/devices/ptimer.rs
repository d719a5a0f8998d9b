//! The emulated EL1 physical timer of a vCPU whose VM does not own the board's (DDI 0487, D12.2.4
//! and the descriptions of CNTP_CTL_EL0, CNTP_CVAL_EL0 and CNTP_TVAL_EL0). It compares with the
//! physical counter, which guests read directly.

/// Registers of the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// CNTP_CTL_EL0.
    Control,
    /// CNTP_CVAL_EL0.
    Compare,
    /// CNTP_TVAL_EL0.
    Value,
}

const ENABLE: u64 = 1;
const IMASK: u64 = 1 << 1;
const ISTATUS: u64 = 1 << 2;

/// State of an emulated timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhysicalTimer {
    control: u64,
    compare: u64,
}

impl PhysicalTimer {
    /// State at reset: disabled.
    pub const fn new() -> Self {
        Self {
            control: 0,
            compare: 0,
        }
    }

    /// The timer condition, a comparison of unsigned numbers of 64 bits.
    const fn is_due(&self, now: u64) -> bool {
        self.control & ENABLE != 0 && now >= self.compare
    }

    /// State of the interrupt line.
    pub const fn line(&self, now: u64) -> bool {
        self.is_due(now) && self.control & IMASK == 0
    }

    /// Value of the counter at which the line will be raised without an access, if ever.
    pub const fn deadline(&self, now: u64) -> Option<u64> {
        if self.control & (ENABLE | IMASK) == ENABLE && now < self.compare {
            Some(self.compare)
        } else {
            None
        }
    }

    /// Reads a register.
    pub const fn read(&self, register: Register, now: u64) -> u64 {
        match register {
            // ISTATUS is UNKNOWN while the timer is disabled; here it is 0.
            Register::Control if self.is_due(now) => self.control | ISTATUS,
            Register::Control => self.control,
            Register::Compare => self.compare,
            // 32 bits, zero-extended. UNKNOWN while the timer is disabled; here it is the
            // difference then, too.
            Register::Value => self.compare.wrapping_sub(now) & 0xffff_ffff,
        }
    }

    /// Writes a register.
    pub const fn write(&mut self, register: Register, value: u64, now: u64) {
        match register {
            Register::Control => self.control = value & (ENABLE | IMASK),
            Register::Compare => self.compare = value,
            // A signed number of 32 bits.
            Register::Value => self.compare = now.wrapping_add(value as u32 as i32 as i64 as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Register::{Compare, Control, Value};
    use proptest::prelude::*;

    #[test]
    fn the_line_follows_the_condition_and_the_mask() {
        let mut timer = PhysicalTimer::new();
        timer.write(Compare, 1_000, 0);
        assert_eq!(timer.deadline(0), None, "disabled");
        assert!(!timer.line(2_000));
        assert_eq!(timer.read(Control, 2_000), 0);
        timer.write(Control, ENABLE, 0);
        assert_eq!(timer.deadline(999), Some(1_000));
        assert_eq!(timer.read(Control, 999), ENABLE);
        assert!(!timer.line(999));
        assert!(timer.line(1_000));
        assert_eq!(timer.deadline(1_000), None, "it is up already");
        assert_eq!(timer.read(Control, 1_000), 0b101, "ENABLE and ISTATUS");
        timer.write(Control, ENABLE | IMASK, 1_000);
        assert!(!timer.line(1_000));
        assert_eq!(timer.read(Control, 1_000), 0b111);
        assert_eq!(timer.deadline(0), None, "nobody would see it");
    }

    #[test]
    fn only_two_bits_of_the_control_can_be_written() {
        let mut timer = PhysicalTimer::new();
        timer.write(Compare, u64::MAX, 0);
        timer.write(Control, u64::MAX, 0);
        assert_eq!(timer.read(Control, 0), ENABLE | IMASK);
    }

    #[test]
    fn a_value_is_a_signed_distance_of_32_bits() {
        let mut timer = PhysicalTimer::new();
        let now = 0x1_0000_0000;
        timer.write(Value, 100, now);
        assert_eq!(timer.read(Compare, now), now + 100);
        timer.write(Value, 0xffff_ffff, now);
        assert_eq!(timer.read(Compare, now), now - 1);
        assert_eq!(timer.read(Value, now), 0xffff_ffff);
        timer.write(Value, 0x8000_0000, now);
        assert_eq!(timer.read(Compare, now), 0x8000_0000);
        timer.write(Value, 0xdead_0000_0000_0001, now);
        assert_eq!(
            timer.read(Compare, now),
            now + 1,
            "the upper half is ignored"
        );
        timer.write(Value, 0x8000_0000, 0);
        assert_eq!(timer.read(Compare, 0), 0xffff_ffff_8000_0000);
        assert!(!timer.line(0), "unsigned: far ahead");
    }

    proptest! {
        /// The line is raised exactly at the deadline, and a register reads back correctly at any
        /// time.
        #[test]
        fn nothing_is_early_or_late(now in 0u64..1 << 60, value: u32, later in 0u64..1 << 33) {
            let mut timer = PhysicalTimer::new();
            timer.write(Value, u64::from(value), now);
            timer.write(Control, ENABLE, now);
            prop_assert_eq!(timer.read(Value, now), u64::from(value));
            let shown = timer.read(Value, now.wrapping_add(later));
            prop_assert_eq!(shown, u64::from(value.wrapping_sub(later as u32)));
            match timer.deadline(now) {
                Some(deadline) => {
                    prop_assert!(!timer.line(deadline - 1) && timer.line(deadline));
                    prop_assert_eq!(deadline, now + u64::from(value));
                }
                None => prop_assert_eq!(timer.line(now), now >= timer.read(Compare, now)),
            }
        }
    }
}

//! The emulated generic watchdog (DEN0029D and DEN0094, "Generic Watchdog", architecture revision
//! 1): a control frame and a refresh frame of 4 KiB each. Its time is the VM's virtual counter,
//! which is what the guest reads: if a VM's time stops, its watchdog stops with it.
//!
//! A refresh (any write to WRR, WOR or WCS) clears both signals and starts a new period. At the end
//! of a period WS0, the interrupt, is raised and another period starts; at the end of that one WS1
//! is raised, which is a crash of the VM.

/// Size of a frame in bytes.
pub const FRAME: u64 = 0x1000;
/// Size of both frames in bytes: the control frame, then the refresh frame.
pub const SIZE: u64 = 2 * FRAME;

/// Control and status: bit 0 enables, bits 1 and 2 are WS0 and WS1.
const WCS: u64 = 0x000;
const WOR_LOW: u64 = 0x008;
const WOR_HIGH: u64 = 0x00c;
const WCV_LOW: u64 = 0x010;
const WCV_HIGH: u64 = 0x014;
/// Identification register, in both frames.
const W_IIDR: u64 = 0xfcc;
const WRR: u64 = FRAME;

const ENABLE: u32 = 1;
const WS0: u32 = 1 << 1;
const WS1: u32 = 1 << 2;

/// W_IIDR: no implementer, product 'B', architecture revision 1 (a period of 48 bits).
const IIDR: u32 = 0x4201_0000;
/// Mask of a period.
const PERIOD: u64 = (1 << 48) - 1;

/// State of an emulated watchdog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watchdog {
    enabled: bool,
    ws0: bool,
    ws1: bool,
    /// Ticks from a refresh to the end of the period.
    period: u64,
    /// WCV: the period ends when the counter is greater.
    compare: u64,
}

impl Watchdog {
    /// State at reset: disabled, all else 0.
    pub const fn new() -> Self {
        Self {
            enabled: false,
            ws0: false,
            ws1: false,
            period: 0,
            compare: 0,
        }
    }

    const fn begin_period(&mut self, now: u64) {
        self.compare = now.wrapping_add(self.period);
    }

    const fn refresh(&mut self, now: u64) {
        self.ws0 = false;
        self.ws1 = false;
        self.begin_period(now);
    }

    /// Advances the watchdog to `now`, over the end of one period at most: a VM that could not run
    /// meanwhile, because it was paused, still gets the second period in full.
    pub const fn advance(&mut self, now: u64) {
        if !self.enabled || self.ws1 || now <= self.compare {
            return;
        }
        if self.ws0 {
            self.ws1 = true;
        } else {
            self.ws0 = true;
            self.begin_period(now);
        }
    }

    /// WS0, the interrupt line, as of the last [`Self::advance`].
    pub const fn line(&self) -> bool {
        self.ws0
    }

    /// WS1, as of the last [`Self::advance`]: the guest did not refresh after the interrupt.
    pub const fn bites(&self) -> bool {
        self.ws1
    }

    /// Value of the counter at which the next period ends, if one does.
    pub const fn deadline(&self) -> Option<u64> {
        if self.enabled && !self.ws1 {
            Some(self.compare.saturating_add(1))
        } else {
            None
        }
    }

    /// Reads 4 or 8 bytes at `offset`; other sizes read as zero.
    pub fn read(&mut self, offset: u64, size: u64, now: u64) -> u64 {
        self.advance(now);
        match size {
            4 => u64::from(self.word(offset)),
            8 if offset.is_multiple_of(8) => {
                u64::from(self.word(offset)) | u64::from(self.word(offset | 4)) << 32
            }
            _ => 0,
        }
    }

    const fn word(&self, offset: u64) -> u32 {
        match offset {
            WCS => {
                let mut value = 0;
                if self.enabled {
                    value |= ENABLE;
                }
                if self.ws0 {
                    value |= WS0;
                }
                if self.ws1 {
                    value |= WS1;
                }
                value
            }
            WOR_LOW => self.period as u32,
            WOR_HIGH => (self.period >> 32) as u32,
            WCV_LOW => self.compare as u32,
            WCV_HIGH => (self.compare >> 32) as u32,
            offset if offset & (FRAME - 1) == W_IIDR => IIDR,
            // WRR reads as zero.
            _ => 0,
        }
    }

    /// Writes 4 or 8 bytes at `offset`; other sizes are ignored.
    pub fn write(&mut self, offset: u64, size: u64, value: u64, now: u64) {
        self.advance(now);
        match (offset, size) {
            (WCS, 4 | 8) => self.enabled = value as u32 & ENABLE != 0,
            (WOR_LOW, 4) => self.period = join(value, self.period >> 32),
            (WOR_HIGH, 4) => self.period = join(self.period, value),
            (WOR_LOW, 8) => self.period = value & PERIOD,
            (WCV_LOW, 4) => self.compare = self.compare >> 32 << 32 | value & 0xffff_ffff,
            (WCV_HIGH, 4) => self.compare = value << 32 | self.compare & 0xffff_ffff,
            (WCV_LOW, 8) => self.compare = value,
            (WRR, 4 | 8) => {}
            _ => return,
        }
        if !matches!(offset, WCV_LOW | WCV_HIGH) {
            self.refresh(now);
        }
    }
}

/// Joins the low 32 bits of `low` and the low 16 bits of `high` to a period.
const fn join(low: u64, high: u64) -> u64 {
    (high << 32 | low & 0xffff_ffff) & PERIOD
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn running(period: u64, now: u64) -> Watchdog {
        let mut dog = Watchdog::new();
        dog.write(WOR_LOW, 4, period, now);
        dog.write(WCS, 4, 1, now);
        dog
    }

    #[test]
    fn two_periods_without_a_refresh_are_a_bite() {
        let mut dog = running(100, 1_000);
        assert_eq!(dog.deadline(), Some(1_101));
        dog.advance(1_100);
        assert!(!dog.line(), "the counter must be greater");
        dog.advance(1_101);
        assert!(dog.line() && !dog.bites());
        assert_eq!(dog.read(WCS, 4, 1_101), 3);
        assert_eq!(dog.deadline(), Some(1_202));
        dog.advance(1_202);
        assert!(dog.line() && dog.bites());
        assert_eq!(dog.read(WCS, 4, 1_202), 7);
        assert_eq!(dog.deadline(), None);
    }

    #[test]
    fn every_refresh_takes_the_signals_back() {
        for (offset, value) in [(WRR, 0), (WOR_LOW, 100), (WOR_HIGH, 0), (WCS, 1)] {
            let mut dog = running(100, 0);
            dog.advance(101);
            dog.advance(202);
            assert!(dog.bites());
            dog.write(offset, 4, value, 300);
            assert!(!dog.line() && !dog.bites(), "{offset:#x}");
            assert_eq!(dog.read(WCV_LOW, 8, 300), 400, "{offset:#x}");
        }
    }

    #[test]
    fn the_compare_value_can_be_set_without_a_refresh() {
        let mut dog = running(100, 0);
        dog.advance(101);
        dog.write(WCV_LOW, 4, 0x5555_5555, 101);
        dog.write(WCV_HIGH, 4, 0x77, 101);
        assert!(dog.line(), "WS0 stays");
        assert_eq!(dog.read(WCV_LOW, 8, 101), 0x77_5555_5555);
        assert_eq!(dog.read(WCV_HIGH, 4, 101), 0x77);
        assert_eq!(dog.deadline(), Some(0x77_5555_5556));
        dog.write(WCV_LOW, 8, u64::MAX, 101);
        assert_eq!(dog.read(WCV_LOW, 8, 101), u64::MAX);
        dog.advance(u64::MAX);
        assert!(!dog.bites(), "nothing is greater");
    }

    #[test]
    fn a_period_has_48_bits() {
        let mut dog = Watchdog::new();
        dog.write(WOR_LOW, 8, u64::MAX, 0);
        assert_eq!(dog.read(WOR_LOW, 8, 0), PERIOD);
        dog.write(WOR_HIGH, 4, 0xffff_1234, 0);
        assert_eq!(dog.read(WOR_HIGH, 4, 0), 0x1234);
        dog.write(WOR_LOW, 4, 0xffff_ffff_0000_0001, 0);
        assert_eq!(dog.read(WOR_LOW, 8, 0), 0x1234_0000_0001);
        assert_eq!(dog.read(WCV_LOW, 8, 0), 0x1234_0000_0001);
    }

    #[test]
    fn one_that_is_off_bites_nobody() {
        let mut dog = Watchdog::new();
        dog.advance(u64::MAX);
        assert!(!dog.line());
        assert_eq!(dog.deadline(), None);
        let mut dog = running(10, 0);
        dog.write(WCS, 4, 0, 5);
        dog.advance(1_000);
        assert_eq!(dog.read(WCS, 4, 1_000), 0);
        dog.write(WCS, 4, 1, 1_000);
        assert_eq!(dog.deadline(), Some(1_011), "enabling is a refresh");
    }

    #[test]
    fn who_was_away_for_long_is_warned_first() {
        let mut dog = running(10, 0);
        dog.advance(1_000_000);
        assert!(dog.line() && !dog.bites());
        assert_eq!(dog.deadline(), Some(1_000_011));
    }

    #[test]
    fn both_frames_say_who_they_are_and_the_rest_is_silent() {
        let mut dog = Watchdog::new();
        assert_eq!(dog.read(W_IIDR, 4, 0) >> 16 & 15, 1);
        assert_eq!(dog.read(W_IIDR, 4, 0), dog.read(FRAME + W_IIDR, 4, 0));
        assert_eq!(dog.read(WRR, 4, 0), 0);
        let before = dog;
        for (offset, size) in [
            (WCS, 1),
            (WOR_LOW, 2),
            (WCV_HIGH, 8),
            (0x20, 4),
            (WRR + 4, 4),
            (W_IIDR, 4),
        ] {
            dog.write(offset, size, u64::MAX, 7);
            assert_eq!(dog, before, "{offset:#x} of {size}");
        }
        assert_eq!(dog.read(W_IIDR, 1, 0), 0);
    }

    proptest! {
        /// WS1 comes only after WS0, and there is a deadline while the watchdog is enabled, for any
        /// writes.
        #[test]
        fn a_bite_is_always_announced(
            steps in proptest::collection::vec((0u64..300, 0u8..7, any::<u64>()), 1..60),
        ) {
            let mut dog = Watchdog::new();
            let mut now = 0u64;
            for (wait, what, value) in steps {
                now += wait;
                let announced = dog.line();
                dog.advance(now);
                prop_assert!(!dog.bites() || announced);
                let offset = [WCS, WOR_LOW, WOR_HIGH, WCV_LOW, WCV_HIGH, WRR, 0x20][usize::from(what)];
                // Small numbers, so that periods end.
                let value = if what == 2 || what == 4 { 0 } else { value & 0xff };
                dog.write(offset, 4, value, now);
                prop_assert_eq!(dog.deadline().is_some(), dog.enabled && !dog.ws1);
                if let Some(deadline) = dog.deadline() && deadline > now {
                    let mut early = dog;
                    early.advance(deadline - 1);
                    prop_assert_eq!(early, dog, "nothing happens before the deadline");
                    early.advance(deadline);
                    prop_assert!(early != dog, "something happens at it");
                }
            }
        }
    }
}

//! The emulated PL031 real-time clock (DDI 0224C, r1p3, chapter 3). Time is a value of the physical
//! counter and its frequency: the time of day goes on while a VM is paused.
//!
//! Seconds begin where the counter is a multiple of its frequency, as in a free-running clock: a
//! write to RTCLR does not move the beginning of a second. The clock runs from the start, as on a
//! board whose firmware has enabled it, so RTCCR always reads as 1.

/// Size of the register frame in bytes.
pub const SIZE: u64 = 0x1000;

const DR: u64 = 0x00;
const MR: u64 = 0x04;
const LR: u64 = 0x08;
const CR: u64 = 0x0c;
const IMSC: u64 = 0x10;
const RIS: u64 = 0x14;
const MIS: u64 = 0x18;
const ICR: u64 = 0x1c;

/// Identification registers from 0xfe0: PL031 r1p3 and PrimeCell.
const ID: [u8; 8] = [0x31, 0x10, 0x34, 0x00, 0x0d, 0xf0, 0x05, 0xb1];

/// A time: a value of the physical counter and its frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// CNTPCT_EL0.
    pub count: u64,
    /// CNTFRQ_EL0 in Hz.
    pub frequency: u64,
}

impl Now {
    const fn seconds(self) -> u64 {
        match self.count.checked_div(self.frequency) {
            Some(seconds) => seconds,
            None => 0,
        }
    }
}

/// State of an emulated PL031.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pl031 {
    /// Offset from the seconds of the counter, modulo 2^32.
    offset: u32,
    /// The value last written to RTCLR.
    loaded: u32,
    alarm: u32,
    mask: bool,
    raised: bool,
    /// Second of the counter up to which the alarm has been compared, so that each second is
    /// compared once.
    seen: u64,
}

impl Pl031 {
    /// A clock that shows `time` (seconds since 1970, modulo 2^32) at `now`, otherwise in the state
    /// at reset (table 3-1).
    pub const fn new(time: u32, now: Now) -> Self {
        let seen = now.seconds();
        Self {
            offset: time.wrapping_sub(seen as u32),
            loaded: 0,
            alarm: 0,
            mask: false,
            raised: false,
            seen,
        }
    }

    /// RTCDR in the second `seen`.
    const fn time(&self) -> u32 {
        (self.seen as u32).wrapping_add(self.offset)
    }

    /// Seconds from `seen` to the alarm, at least 1: the second `seen` has been compared, and its
    /// value comes again only after 2^32.
    const fn ahead(&self) -> u64 {
        match self.alarm.wrapping_sub(self.time()) {
            0 => 1 << 32,
            ahead => ahead as u64,
        }
    }

    /// Advances the clock to `now`: raises the alarm if its second has come.
    pub const fn advance(&mut self, now: Now) {
        let seconds = now.seconds();
        // Another pCPU may have advanced the clock to a moment after this one read its counter.
        let passed = seconds.saturating_sub(self.seen);
        if self.ahead() <= passed {
            self.raised = true;
        }
        self.seen = self.seen.wrapping_add(passed);
    }

    /// State of the interrupt line, as of the last [`Self::advance`].
    pub const fn line(&self) -> bool {
        self.raised && self.mask
    }

    /// Value of the counter at which the line will be raised without an access, if ever.
    pub const fn deadline(&self, frequency: u64) -> Option<u64> {
        if self.raised || !self.mask {
            return None;
        }
        Some(
            self.seen
                .saturating_add(self.ahead())
                .saturating_mul(frequency),
        )
    }

    /// Reads the register at `offset`.
    pub fn read(&mut self, offset: u64, now: Now) -> u32 {
        self.advance(now);
        match offset {
            DR => self.time(),
            MR => self.alarm,
            LR => self.loaded,
            CR => 1,
            IMSC => u32::from(self.mask),
            RIS => u32::from(self.raised),
            MIS => u32::from(self.line()),
            0xfe0..=0xffc if offset & 3 == 0 => ID
                .get(((offset - 0xfe0) / 4) as usize)
                .map_or(0, |id| u32::from(*id)),
            _ => 0,
        }
    }

    /// Writes the register at `offset`.
    pub fn write(&mut self, offset: u64, value: u32, now: Now) {
        self.advance(now);
        match offset {
            MR => self.alarm = value,
            LR => {
                self.loaded = value;
                self.offset = value.wrapping_sub(self.seen as u32);
            }
            IMSC => self.mask = value & 1 != 0,
            ICR => self.raised &= value & 1 == 0,
            _ => {}
        }
        // A time or an alarm that was just set is compared at once.
        if matches!(offset, MR | LR) && self.alarm == self.time() {
            self.raised = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HZ: u64 = 62_500_000;

    fn at(milliseconds: u64) -> Now {
        Now {
            count: milliseconds * HZ / 1000,
            frequency: HZ,
        }
    }

    #[test]
    fn it_shows_the_time_it_was_started_with_and_goes_on() {
        let mut rtc = Pl031::new(1_700_000_000, at(2_500));
        assert_eq!(rtc.read(DR, at(2_500)), 1_700_000_000);
        assert_eq!(rtc.read(DR, at(2_999)), 1_700_000_000);
        assert_eq!(rtc.read(DR, at(3_000)), 1_700_000_001);
        assert_eq!(rtc.read(DR, at(3_602_000)), 1_700_003_600 - 1 + 1);
        rtc.write(LR, 5, at(3_602_900));
        assert_eq!(rtc.read(LR, at(3_602_900)), 5);
        assert_eq!(rtc.read(DR, at(3_602_999)), 5);
        assert_eq!(
            rtc.read(DR, at(3_603_000)),
            6,
            "seconds begin where they began"
        );
        rtc.write(DR, 9, at(3_603_000));
        assert_eq!(rtc.read(DR, at(3_603_000)), 6, "RTCDR cannot be written");
    }

    #[test]
    fn it_cannot_be_stopped() {
        let mut rtc = Pl031::new(0, at(0));
        rtc.write(CR, 0, at(0));
        assert_eq!(rtc.read(CR, at(0)), 1);
        assert_eq!(rtc.read(DR, at(1_000)), 1);
    }

    #[test]
    fn the_alarm_comes_in_its_second_and_stays_until_it_is_cleared() {
        let mut rtc = Pl031::new(100, at(0));
        rtc.write(MR, 103, at(0));
        assert_eq!(rtc.deadline(HZ), None, "nobody would see it");
        rtc.write(IMSC, 1, at(200));
        assert_eq!(rtc.deadline(HZ), Some(3 * HZ));
        rtc.advance(at(2_999));
        assert!(!rtc.line());
        rtc.advance(at(3_000));
        assert!(rtc.line());
        assert_eq!(rtc.deadline(HZ), None);
        assert_eq!((rtc.read(RIS, at(3_000)), rtc.read(MIS, at(3_000))), (1, 1));
        rtc.write(IMSC, 0, at(3_000));
        assert_eq!((rtc.read(RIS, at(3_000)), rtc.read(MIS, at(3_000))), (1, 0));
        rtc.write(IMSC, 3, at(3_000));
        assert_eq!(rtc.read(IMSC, at(3_000)), 1);
        rtc.write(ICR, 0, at(3_100));
        assert!(rtc.line(), "zeros clear nothing");
        rtc.write(ICR, 1, at(3_100));
        assert!(!rtc.line());
        assert_eq!(rtc.read(ICR, at(3_100)), 0, "RTCICR is write-only");
        rtc.advance(at(3_999));
        assert!(!rtc.line(), "a second is compared once");
        assert_eq!(rtc.deadline(HZ), Some((3 + (1 << 32)) * HZ));
    }

    #[test]
    fn a_late_look_sees_an_alarm_that_has_passed() {
        let mut rtc = Pl031::new(100, at(0));
        rtc.write(MR, 103, at(0));
        assert_eq!(rtc.read(RIS, at(60_000)), 1);
        let mut rtc = Pl031::new(100, at(0));
        rtc.write(MR, 99, at(0));
        assert_eq!(rtc.read(RIS, at(60_000)), 0, "the past stays the past");
    }

    #[test]
    fn an_alarm_at_the_time_that_is_or_is_set_comes_at_once() {
        let mut rtc = Pl031::new(100, at(0));
        rtc.write(MR, 100, at(500));
        assert_eq!(rtc.read(RIS, at(500)), 1);
        let mut rtc = Pl031::new(100, at(0));
        rtc.write(MR, 7, at(500));
        rtc.write(LR, 7, at(500));
        assert_eq!(rtc.read(RIS, at(500)), 1);
    }

    #[test]
    fn the_time_wraps_and_the_alarm_with_it() {
        let mut rtc = Pl031::new(u32::MAX - 1, at(0));
        rtc.write(MR, 1, at(0));
        rtc.write(IMSC, 1, at(0));
        assert_eq!(rtc.deadline(HZ), Some(3 * HZ));
        rtc.advance(at(2_500));
        assert!(!rtc.line());
        assert_eq!(rtc.read(DR, at(3_500)), 1);
        assert!(rtc.line());
    }

    #[test]
    fn linux_finds_a_primecell() {
        let mut rtc = Pl031::new(0, at(0));
        let mut id = |first: u64| {
            (0..4).fold(0, |all, n| {
                all | (rtc.read(first + n * 4, at(0)) & 0xff) << (n * 8)
            })
        };
        assert_eq!(id(0xfe0), 0x0034_1031);
        assert_eq!(id(0xff0), 0xb105_f00d);
        for offset in [0x20, 0xfdc, 0xfe1, 0xffd] {
            assert_eq!(rtc.read(offset, at(0)), 0, "{offset:#x}");
        }
    }

    #[test]
    fn a_board_without_a_frequency_has_a_clock_that_stands() {
        let now = |count| Now {
            count,
            frequency: 0,
        };
        let mut rtc = Pl031::new(7, now(0));
        assert_eq!(rtc.read(DR, now(u64::MAX)), 7);
    }

    /// Reference model: a clock that compares each second.
    struct Ticking {
        time: u32,
        alarm: u32,
        raised: bool,
    }

    proptest! {
        /// However rarely the clock is advanced, the line is as if each second had been compared.
        #[test]
        fn it_agrees_with_a_clock_that_ticks(
            start: u32,
            steps in proptest::collection::vec((0u64..5, 0u8..4, 0u32..6), 1..40),
        ) {
            let mut rtc = Pl031::new(start, at(0));
            let mut slow = Ticking { time: start, alarm: 0, raised: false };
            let mut second = 0;
            for (wait, what, value) in steps {
                second += wait;
                for _ in 0..wait {
                    slow.time = slow.time.wrapping_add(1);
                    slow.raised |= slow.time == slow.alarm;
                }
                let now = at(second * 1000 + 1);
                let value = start.wrapping_add(value);
                match what {
                    0 => { rtc.write(MR, value, now); slow.alarm = value; slow.raised |= slow.time == value; }
                    1 => { rtc.write(LR, value, now); slow.time = value; slow.raised |= slow.alarm == value; }
                    2 => { rtc.write(ICR, 1, now); slow.raised = false; }
                    _ => {}
                }
                prop_assert_eq!(rtc.read(DR, now), slow.time);
                prop_assert_eq!(rtc.read(RIS, now), u32::from(slow.raised));
            }
        }
    }
}

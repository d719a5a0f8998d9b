//! Exit statistics of a vCPU and the ring of its last exits. They are always on, so every
//! instruction of them counts.

use bulkhead_abi::exit::ExitClass;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Sums over the exits of one class. Times are cycles of PMCCNTR_EL0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ClassStats {
    /// Number of exits.
    pub count: u64,
    /// Cycles at EL2, sum over all exits.
    pub total: u64,
    /// Sum of the squares of the cycles of each exit.
    pub squares: u64,
    /// Cycles of the shortest exit; `u32::MAX` before the first.
    pub min: u32,
    /// Cycles of the longest exit.
    pub max: u32,
}

impl ClassStats {
    /// Statistics before the first exit.
    pub const NEW: Self = Self {
        count: 0,
        total: 0,
        squares: 0,
        min: u32::MAX,
        max: 0,
    };

    /// Extends the minimum or the maximum.
    #[cold]
    #[inline(never)]
    const fn widen(&mut self, took: u32) {
        if took < self.min {
            self.min = took;
        }
        if took > self.max {
            self.max = took;
        }
    }

    /// Mean length of an exit in cycles, 0 without exits.
    pub const fn mean(&self) -> u64 {
        match self.total.checked_div(self.count) {
            Some(mean) => mean,
            None => 0,
        }
    }

    /// Standard deviation in cycles, rounded down.
    pub const fn deviation(&self) -> u64 {
        let Some(mean_square) = self.squares.checked_div(self.count) else {
            return 0;
        };
        let mean = self.mean();
        root(mean_square.saturating_sub(mean.saturating_mul(mean)))
    }
}

/// Square root, rounded down, computed one bit at a time. `u64::isqrt` may panic as far as the
/// gates can see.
const fn root(value: u64) -> u64 {
    let mut root = 0u64;
    let mut bit = 1u64 << 31;
    while bit != 0 {
        let tried = root | bit;
        if tried.saturating_mul(tried) <= value {
            root = tried;
        }
        bit >>= 1;
    }
    root
}

/// One of the last exits.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LastExit {
    /// Address at which the guest was left (ELR_EL2).
    pub pc: u64,
    /// ESR_EL2, or the INTID of an interrupt.
    pub syndrome: u64,
    /// Cycle counter at the end of the exit.
    pub at: u64,
    /// [`ExitClass`] as a number.
    pub class: u64,
}

/// Number of exits in the ring; a power of two.
pub const LAST_EXITS: usize = 16;

/// Words of all of them.
pub const RING: usize = LAST_EXITS * size_of::<LastExit>() / 8;

/// Number of the most frequent classes, which are the first ones.
const FREQUENT: usize = ExitClass::Uart as usize + 1;

/// Statistics of one vCPU. The fields of frequent exits come first: they follow the guest's
/// registers in memory, within reach of the offset of load and store pairs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ExitStats {
    frequent: [ClassStats; FREQUENT],
    last: [LastExit; LAST_EXITS],
    exits: u64,
    started: u64,
    others: [ClassStats; ExitClass::COUNT - FREQUENT],
    away: u64,
    /// Elapsed cycles and exits at the last [`Self::enter`].
    ran: u64,
    left: u64,
}

impl ExitStats {
    /// Those of nobody: zeros, which need no copy. They count after [`Self::begin`].
    pub const NONE: Self = {
        let none = ClassStats {
            min: 0,
            ..ClassStats::NEW
        };
        Self {
            frequent: [none; FREQUENT],
            last: [LastExit {
                pc: 0,
                syndrome: 0,
                at: 0,
                class: 0,
            }; LAST_EXITS],
            exits: 0,
            started: 0,
            others: [none; ExitClass::COUNT - FREQUENT],
            away: 0,
            ran: 0,
            left: 0,
        }
    };

    /// Statistics of a vCPU that starts when the cycle counter reads `now`.
    pub fn new(now: u64) -> Self {
        let mut stats = Self::NONE;
        stats.begin();
        stats.started = now;
        stats
    }

    /// Makes those of nobody the ones of a vCPU that has not started.
    pub fn begin(&mut self) {
        for class in self.frequent.iter_mut().chain(&mut self.others) {
            class.min = ClassStats::NEW.min;
        }
    }

    /// Starts counting at `now` (cycle counter), when the vCPU starts for the first time or again
    /// after it was off: the time before, such as preparing its memory, does not count.
    pub const fn enter(&mut self, now: u64) {
        self.ran = self.elapsed();
        self.left = self.exits;
        self.started = now;
    }

    /// Counts an exit that began at `begin` and ends at `end` (cycle counter).
    #[inline(always)]
    pub const fn count(&mut self, class: ExitClass, begin: u64, end: u64, pc: u64, syndrome: u64) {
        let Self {
            frequent,
            last,
            exits,
            others,
            ..
        } = self;
        let number = class as usize;
        let stats = if number < FREQUENT {
            &mut frequent[number]
        } else {
            // No class is larger; the compiler does not always know that.
            let other = number - FREQUENT;
            if other < others.len() {
                &mut others[other]
            } else {
                &mut frequent[0]
            }
        };
        let before = *exits;
        let took = end.wrapping_sub(begin);
        stats.count = stats.count.wrapping_add(1);
        stats.total = stats.total.wrapping_add(took);
        stats.squares = stats.squares.wrapping_add(took.wrapping_mul(took));
        // Here, so that the multiplication does not come right behind a store: the workaround for
        // Cortex-A53 835769 would put a NOP in between.
        *exits = before.wrapping_add(1);
        last[before as usize % LAST_EXITS] = LastExit {
            pc,
            syndrome,
            at: end,
            class: class as u64,
        };
        // Rare, and last, so that the call needs no stack.
        let (short, min, max) = (took as u32, stats.min, stats.max);
        if (short < min) | (short > max) {
            stats.widen(short);
        }
    }

    /// The last exits as words, each at its number modulo their number, and how many there were.
    pub const fn ring(&self) -> (&[u64; RING], u64) {
        (zerocopy::transmute_ref!(&self.last), self.exits)
    }

    /// The sums of one class.
    pub const fn class(&self, class: ExitClass) -> &ClassStats {
        let class = class as usize;
        if class < FREQUENT {
            &self.frequent[class]
        } else {
            &self.others[class - FREQUENT]
        }
    }

    /// Number of exits of all classes.
    pub const fn exits(&self) -> u64 {
        self.exits
    }

    /// Number of exits that the guest or its devices caused: all but EL2's own interrupts, of which
    /// a question of the monitor makes one, its keys and other VMs' orders as many as they like.
    pub const fn of_guest(&self) -> u64 {
        self.exits
            .wrapping_sub(self.class(ExitClass::ServiceIrq).count)
    }

    /// Cycles at EL2, all classes together.
    fn hypervisor(&self) -> u64 {
        self.frequent
            .iter()
            .chain(&self.others)
            .fold(0, |sum, class| sum.wrapping_add(class.total))
    }

    /// Adds the time for which the vCPU, which is on, was away from its pCPU: from `left` to `now`,
    /// both of the cycle counter.
    pub const fn was_away(&mut self, left: u64, now: u64) {
        self.away = self.away.wrapping_add(now.wrapping_sub(left));
    }

    /// Cycles for which the vCPU was away from its pCPU: asleep, or not in its turn.
    pub const fn away(&self) -> u64 {
        self.away
    }

    /// Cycles in the guest, of those for which the vCPU was on.
    pub fn guest(&self, elapsed: u64) -> u64 {
        elapsed
            .saturating_sub(self.hypervisor())
            .saturating_sub(self.away)
    }

    /// Cycles for which the vCPU was on (in the guest, in an exit, away from its pCPU), up to its
    /// last exit.
    pub const fn elapsed(&self) -> u64 {
        let now = match self.last(0) {
            Some(last) if self.exits != self.left => last.at.wrapping_sub(self.started),
            _ => 0,
        };
        self.ran.wrapping_add(now)
    }

    /// The same, up to `now` (cycle counter), at which it is on.
    pub const fn elapsed_at(&self, now: u64) -> u64 {
        self.ran.wrapping_add(now.wrapping_sub(self.started))
    }

    /// The `n`th last exit; 0 is the newest.
    pub const fn last(&self, n: usize) -> Option<&LastExit> {
        if n >= LAST_EXITS || n as u64 >= self.exits {
            return None;
        }
        let index = (self.exits as usize).wrapping_sub(n).wrapping_sub(1) % LAST_EXITS;
        Some(&self.last[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_definition() {
        let mut stats = ExitStats::new(100);
        for (begin, end) in [(110, 120), (150, 180), (200, 220)] {
            stats.count(ExitClass::Hvc, begin, end, 0, 0);
        }
        let hvc = stats.class(ExitClass::Hvc);
        assert_eq!(
            (hvc.count, hvc.total, hvc.min, hvc.max, hvc.mean()),
            (3, 60, 10, 30, 20)
        );
        // Variance of 10, 30, 20: 200 / 3.
        assert_eq!(hvc.deviation(), 8);
        assert_eq!(
            (stats.guest(stats.elapsed()), stats.elapsed()),
            (10 + 30 + 20, 120)
        );
        assert_eq!(stats.class(ExitClass::Smc).mean(), 0);
    }

    #[test]
    fn neither_getting_ready_nor_being_off_is_time_of_the_guest() {
        let mut stats = ExitStats::new(0);
        stats.enter(1_000_000);
        stats.count(ExitClass::Hvc, 1_000_050, 1_000_060, 0, 0);
        assert_eq!((stats.guest(stats.elapsed()), stats.elapsed()), (50, 60));
        stats.enter(5_000_000);
        assert_eq!((stats.guest(stats.elapsed()), stats.elapsed()), (50, 60));
        stats.count(ExitClass::Hvc, 5_000_007, 5_000_010, 0, 0);
        assert_eq!((stats.guest(stats.elapsed()), stats.elapsed()), (57, 70));
    }

    #[test]
    fn a_pause_is_time_that_a_vcpu_is_on_before_it_has_ended() {
        let mut stats = ExitStats::new(0);
        stats.enter(1_000);
        stats.count(ExitClass::Hvc, 1_050, 1_060, 0, 0);
        // Paused in the guest at 1100; asked at 4100.
        stats.was_away(1_100, 4_100);
        let elapsed = stats.elapsed_at(4_100);
        assert_eq!((elapsed, stats.guest(elapsed)), (3_100, 90));
        stats.count(ExitClass::ServiceIrq, 4_100, 4_200, 0, 0);
        stats.enter(9_000);
        assert_eq!(stats.elapsed_at(9_010), 3_210, "off in between");
    }

    #[test]
    fn each_class_has_sums_of_its_own() {
        let mut stats = ExitStats::new(0);
        for (n, class) in (1..).zip(ExitClass::ALL) {
            stats.count(class, 0, n, 0, 0);
        }
        for (n, class) in (1..).zip(ExitClass::ALL) {
            let sums = stats.class(class);
            assert_eq!((sums.count, sums.total), (1, n), "{}", class.name());
            assert_eq!((sums.min, sums.max), (n as u32, n as u32));
        }
        let all = ExitClass::COUNT as u64;
        assert_eq!(stats.hypervisor(), all * (all + 1) / 2);
    }

    #[test]
    fn interrupts_for_el2_are_not_the_guests_exits() {
        let mut stats = ExitStats::new(0);
        stats.count(ExitClass::ServiceIrq, 0, 1, 0, 0);
        stats.count(ExitClass::ServiceIrq, 1, 2, 0, 0);
        assert_eq!((stats.exits(), stats.of_guest()), (2, 0));
        stats.count(ExitClass::VtimerIrq, 2, 3, 0, 0);
        stats.count(ExitClass::ServiceIrq, 3, 4, 0, 0);
        assert_eq!((stats.exits(), stats.of_guest()), (4, 1));
    }

    #[test]
    fn roots_are_those_of_the_library() {
        for value in (0..1_000).chain([u64::MAX, u64::MAX - 1, 1 << 62, 0xffff_fffe_0000_0001]) {
            assert_eq!(root(value), value.isqrt(), "{value}");
        }
    }

    #[test]
    fn the_ring_keeps_the_newest() {
        let mut stats = ExitStats::new(0);
        assert_eq!(stats.last(0), None);
        for n in 0..40 {
            stats.count(ExitClass::Gicd, n, n, n, n);
        }
        assert_eq!(stats.last(0).map(|e| e.pc), Some(39));
        assert_eq!(
            stats.last(LAST_EXITS - 1).map(|e| e.pc),
            Some(40 - LAST_EXITS as u64)
        );
        assert_eq!(stats.last(LAST_EXITS), None);
    }
}

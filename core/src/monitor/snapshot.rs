//! What a pCPU tells the monitor about its vCPU: words, published by the one and read by the other.

use core::sync::atomic::{AtomicU64, Ordering};

use bulkhead_abi::exit::ExitClass;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::stats::{ClassStats, ExitStats, LAST_EXITS, LastExit};

/// What a vCPU does, in [`Snapshot::state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum State {
    /// It is switched off.
    Off = 0,
    /// Its VM is being made ready.
    Starting = 1,
    /// It is on, and its VM is not paused.
    On = 2,
    /// It is on, and its VM is paused.
    Paused = 3,
    /// Its VM has stopped.
    Stopped = 4,
}

impl State {
    /// The state of a word.
    pub const fn of(word: u64) -> Self {
        match word {
            1 => Self::Starting,
            2 => Self::On,
            3 => Self::Paused,
            4 => Self::Stopped,
            _ => Self::Off,
        }
    }
}

/// Names of [`Snapshot::el1`].
pub const EL1: [&str; EL1_COUNT] = [
    "sctlr",
    "tcr",
    "mair",
    "ttbr0",
    "ttbr1",
    "vbar",
    "elr",
    "spsr",
    "esr",
    "far",
    "sp_el1",
    "sp_el0",
    "tpidr",
    "cpacr",
    "contextidr",
];
/// How many registers of EL1 are shown.
pub const EL1_COUNT: usize = 15;
/// Interrupts that a snapshot names.
pub const PENDING: usize = 4;
/// [`Snapshot::before`]: the instruction cannot be read.
pub const UNREADABLE: u64 = u64::MAX;

/// A timer of the vCPU.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Timer {
    /// CTL: bit 0 enabled, bit 1 masked, bit 2 due.
    pub control: u64,
    /// Ticks until it is due; 0 if it is.
    pub ahead: u64,
    /// CVAL.
    pub compare: u64,
}

/// What stands between interrupts and the vCPU besides each one's own configuration.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Gate {
    /// Priority mask of its CPU interface: what is not below waits.
    pub mask: u64,
    /// Running priority: that of the most urgent interrupt that it has taken and not ended; 0x100 for
    /// none.
    pub running: u64,
    /// Groups that the CPU interface lets through: a bit for each.
    pub groups: u64,
    /// Groups that the distributor lets through.
    pub forwarded: u64,
    /// Groups that come as FIQ; the others come as IRQ.
    pub fiq: u64,
}

/// A pending interrupt, in a word.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Pending(u64);

impl Pending {
    /// An interrupt that is pending for the vCPU.
    pub const fn new(intid: u32, enabled: bool, group: u32, priority: u8) -> Self {
        Self(
            1 << 63
                | (enabled as u64) << 48
                | ((group & 1) as u64) << 40
                | (priority as u64) << 32
                | intid as u64,
        )
    }

    /// It is one.
    pub const fn is_some(self) -> bool {
        self.0 >> 63 != 0
    }

    /// INTID.
    pub const fn intid(self) -> u64 {
        self.0 & 0xffff
    }

    /// Enabled in the distributor.
    pub const fn is_enabled(self) -> bool {
        self.0 >> 48 & 1 != 0
    }

    /// 0 or 1.
    pub const fn group(self) -> u64 {
        self.0 >> 40 & 1
    }

    /// Less is more urgent.
    pub const fn priority(self) -> u64 {
        self.0 >> 32 & 0xff
    }
}

/// What is asked for several times to see whether a vCPU gets anywhere.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Sample {
    /// Where it is.
    pub pc: u64,
    /// The instruction before that one, or [`UNREADABLE`].
    pub before: u64,
    /// Exits that have been counted.
    pub exits: u64,
}

/// A vCPU at a moment.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Snapshot {
    /// [`State`]
    pub state: u64,
    /// Where it is.
    pub sample: Sample,
    /// SPSR_EL2.
    pub spsr: u64,
    /// x0 to x30.
    pub x: [u64; 31],
    /// Registers named by [`EL1`].
    pub el1: [u64; EL1_COUNT],
    /// The virtual timer.
    pub virtual_timer: Timer,
    /// The physical timer.
    pub physical_timer: Timer,
    /// What stands between interrupts and the vCPU.
    pub gate: Gate,
    /// Pending interrupts, as many as fit, private ones first.
    pub pending: [Pending; PENDING],
    /// Ticks of the counters in a second.
    pub frequency: u64,
}

const SNAPSHOT: usize = size_of::<Snapshot>() / 8;
const CLASS: usize = size_of::<ClassStats>() / 8;
const LAST: usize = size_of::<LastExit>() / 8;
/// Sums of all classes, then the last exits, then three words.
const STATS: usize = CLASS * ExitClass::COUNT + LAST * LAST_EXITS + TOTALS;
const TOTALS: usize = 3;

/// A question of the monitor, as who is asked takes it and gives it back with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// What is asked for.
    pub wish: Wish,
    asked: u64,
}

/// What the monitor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Wish {
    /// A [`Sample`] only.
    Sample = 1,
    /// Everything.
    All = 2,
}

/// Sums over all exits of a vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// How many.
    pub exits: u64,
    /// Cycles in the guest.
    pub guest: u64,
    /// Cycles altogether.
    pub elapsed: u64,
}

/// Where one pCPU at a time writes what the monitor has asked it for. The monitor alone asks, one thing
/// at a time; who is asked writes the words and then, with release, whose they are.
#[derive(Debug)]
pub struct Published {
    /// What is asked: number of the question, pCPU and [`Wish`].
    asked: AtomicU64,
    /// The question that the words answer.
    answered: AtomicU64,
    snapshot: [AtomicU64; SNAPSHOT],
    stats: [AtomicU64; STATS],
}

impl Default for Published {
    fn default() -> Self {
        Self::new()
    }
}

impl Published {
    /// Nothing is asked.
    pub const fn new() -> Self {
        Self {
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            snapshot: [const { AtomicU64::new(0) }; SNAPSHOT],
            stats: [const { AtomicU64::new(0) }; STATS],
        }
    }

    /// For the monitor: asks a pCPU, which must then be told. A question that was not answered is
    /// forgotten.
    pub fn ask(&self, pcpu: usize, wish: Wish) {
        let number = (self.asked.load(Ordering::Relaxed) >> 16).wrapping_add(1);
        let question = number << 16 | (pcpu as u64 & 0xff) << 8 | wish as u64;
        self.asked.store(question, Ordering::Release);
    }

    /// For a pCPU that has been told: what it is asked for, if it is.
    pub fn question(&self, own: usize) -> Option<Question> {
        let asked = self.asked.load(Ordering::Acquire);
        if asked >> 8 & 0xff != own as u64 || asked == self.answered.load(Ordering::Relaxed) {
            return None;
        }
        let wish = match asked & 0xff {
            1 => Wish::Sample,
            2 => Wish::All,
            _ => return None,
        };
        Some(Question { wish, asked })
    }

    /// For the pCPU that is asked for a sample.
    pub fn answer_sample(&self, question: Question, state: State, sample: &Sample) {
        // Only what `State` and `Sample` take of a snapshot is looked at afterwards.
        let words = [state as u64, sample.pc, sample.before, sample.exits];
        for (slot, word) in self.snapshot.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        self.answered.store(question.asked, Ordering::Release);
    }

    /// For the pCPU that is asked for everything.
    pub fn answer_all(&self, question: Question, snapshot: &Snapshot, stats: &ExitStats) {
        let words: &[u64; SNAPSHOT] = zerocopy::transmute_ref!(snapshot);
        for (slot, word) in self.snapshot.iter().zip(words) {
            slot.store(*word, Ordering::Relaxed);
        }
        let classes = ExitClass::ALL.iter().flat_map(|class| {
            let sums: &[u64; CLASS] = zerocopy::transmute_ref!(stats.class(*class));
            *sums
        });
        let last = (0..LAST_EXITS).flat_map(|n| {
            let exit = stats.last(n).copied().unwrap_or_default();
            let words: [u64; LAST] = zerocopy::transmute!(exit);
            words
        });
        let totals = [stats.exits(), stats.guest(), stats.elapsed()];
        for (slot, word) in self.stats.iter().zip(classes.chain(last).chain(totals)) {
            slot.store(word, Ordering::Relaxed);
        }
        self.answered.store(question.asked, Ordering::Release);
    }

    /// For the monitor: the last question has been answered.
    pub fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire) == self.asked.load(Ordering::Relaxed)
    }

    /// For the monitor, after an answer.
    pub fn snapshot(&self) -> Snapshot {
        let mut words = [0u64; SNAPSHOT];
        for (word, slot) in words.iter_mut().zip(&self.snapshot) {
            *word = slot.load(Ordering::Relaxed);
        }
        zerocopy::transmute!(words)
    }

    fn words<const N: usize>(&self, first: usize) -> [u64; N] {
        let mut words = [0u64; N];
        let from = self.stats.get(first..).unwrap_or(&[]);
        for (word, slot) in words.iter_mut().zip(from) {
            *word = slot.load(Ordering::Relaxed);
        }
        words
    }

    /// For the monitor: sums of a class.
    pub fn class(&self, class: ExitClass) -> ClassStats {
        zerocopy::transmute!(self.words::<CLASS>((class as usize).wrapping_mul(CLASS)))
    }

    /// For the monitor: the `n`th last exit, if there have been so many.
    pub fn last(&self, n: usize) -> Option<LastExit> {
        if n >= LAST_EXITS || n as u64 >= self.totals().exits {
            return None;
        }
        let first = (CLASS * ExitClass::COUNT).wrapping_add(n.wrapping_mul(LAST));
        Some(zerocopy::transmute!(self.words::<LAST>(first)))
    }

    /// For the monitor: sums over all exits.
    pub fn totals(&self) -> Totals {
        let [exits, guest, elapsed] = self.words(STATS - TOTALS);
        Totals {
            exits,
            guest,
            elapsed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_what_was_published() {
        let published = Published::new();
        assert_eq!(published.question(3), None, "nothing is asked");
        published.ask(3, Wish::All);
        assert!(!published.is_answered());
        assert_eq!(published.question(2), None, "another one is asked");
        let question = published.question(3).unwrap();
        assert_eq!(question.wish, Wish::All);
        let snapshot = Snapshot {
            state: State::Paused as u64,
            spsr: 0x3c5,
            x: core::array::from_fn(|n| n as u64 + 100),
            frequency: 62_500_000,
            pending: [Pending::new(27, true, 1, 0xa0); PENDING],
            ..Snapshot::default()
        };
        let mut stats = ExitStats::new(10);
        stats.count(ExitClass::Hvc, 20, 30, 0x4000, 7);
        stats.count(ExitClass::Uart, 40, 45, 0x5000, 8);
        published.answer_all(question, &snapshot, &stats);
        assert!(published.is_answered());
        assert_eq!(published.question(3), None, "answered");
        assert_eq!(published.snapshot(), snapshot);
        for class in ExitClass::ALL {
            assert_eq!(published.class(class), *stats.class(class));
        }
        assert_eq!(published.last(0), stats.last(0).copied());
        assert_eq!(published.last(1).map(|exit| exit.pc), Some(0x4000));
        assert_eq!(published.last(2), None);
        let totals = published.totals();
        assert_eq!((totals.exits, totals.guest, totals.elapsed), (2, 20, 35));
    }

    #[test]
    fn a_sample_has_a_place_in_the_snapshot() {
        let published = Published::new();
        published.ask(0, Wish::Sample);
        let sample = Sample {
            pc: 1,
            before: 2,
            exits: 3,
        };
        let question = published.question(0).unwrap();
        published.answer_sample(question, State::On, &sample);
        let snapshot = published.snapshot();
        assert_eq!((snapshot.state, snapshot.sample), (2, sample));
    }

    #[test]
    fn a_late_answer_is_not_taken_for_the_next_one() {
        let published = Published::new();
        published.ask(1, Wish::Sample);
        let first = published.question(1).unwrap();
        published.ask(1, Wish::Sample);
        published.answer_sample(first, State::Off, &Sample::default());
        assert!(!published.is_answered());
        let second = published.question(1).unwrap();
        assert_ne!(first, second);
        published.answer_sample(second, State::Off, &Sample::default());
        assert!(published.is_answered());
    }

    #[test]
    fn a_pending_interrupt_keeps_its_parts() {
        let pending = Pending::new(287, true, 1, 0xf8);
        assert!(pending.is_some() && pending.is_enabled());
        assert_eq!(
            (pending.intid(), pending.group(), pending.priority()),
            (287, 1, 0xf8)
        );
        let pending = Pending::new(0, false, 0, 0);
        assert!(pending.is_some() && !pending.is_enabled());
        assert!(!Pending::default().is_some());
    }

    #[test]
    fn states_are_read_back() {
        for state in [
            State::Off,
            State::Starting,
            State::On,
            State::Paused,
            State::Stopped,
        ] {
            assert_eq!(State::of(state as u64), state);
        }
    }
}

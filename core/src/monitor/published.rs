//! Answers of pCPUs to the monitor: words that the queried pCPU writes and the pCPU of the monitor
//! reads.

use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use bulkhead_abi::control::registers;
use bulkhead_abi::exit::ExitClass;

use super::cpu_time::Look;
use super::snapshot::{Interrupts, Registers, Sample, Snapshot, State, Timer};
use crate::console::report::Totals;
use crate::console::stats::{ClassStats, ExitStats, LAST_EXITS, LastExit};
use crate::sched::{Usage, UsageWords};

const REGISTERS: usize = size_of::<Registers>() / 8;
/// Managers read them by these numbers.
const _: () = assert!(
    REGISTERS == registers::WORDS
        && X == registers::X
        && HEAD == registers::EL1
        && SAMPLE == registers::PC
        && SPSR == registers::PSTATE
);
const INTERRUPTS: usize = size_of::<Interrupts>() / 8;
/// Number of words of [`Registers`] with which a [`Snapshot`] starts.
const HEAD: usize = offset_of!(Registers, el1) / 8;
const _: () = assert!(HEAD * 8 == offset_of!(Snapshot, interrupts));
const SPSR: usize = offset_of!(Registers, spsr) / 8;
const FREQUENCY: usize = offset_of!(Registers, frequency) / 8;
const SAMPLE: usize = offset_of!(Registers, sample) / 8;
const X: usize = offset_of!(Registers, x) / 8;
const TIME: usize = size_of::<UsageWords>() / 8;
const CLASS: usize = size_of::<ClassStats>() / 8;
const LAST: usize = size_of::<LastExit>() / 8;
/// Sums of all classes, then the last exits, then the totals.
const STATS: usize = CLASS * ExitClass::COUNT + LAST * LAST_EXITS + TOTALS;
const TOTALS: usize = 4;

/// A question of the monitor, which the queried pCPU takes and returns with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The kind of the question.
    pub request: Request,
    asked: u64,
}

/// Kind of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Request {
    /// A [`Sample`] only.
    Sample = 1,
    /// [`Registers`].
    Registers = 2,
    /// [`Interrupts`].
    Interrupts = 3,
    /// Exit statistics.
    Exits = 4,
    /// CPU time. The pCPU is asked, not the vCPU, which the question would wake.
    Time = 5,
}

/// The question of the monitor, and the words in which one pCPU at a time answers. Only the monitor
/// asks, one question at a time; the queried pCPU writes the words and then, with release, the
/// number of the question.
#[derive(Debug)]
pub struct Published {
    /// The last question: number, vCPU and [`Request`].
    asked: AtomicU64,
    /// The question that the words answer.
    answered: AtomicU64,
    registers: [AtomicU64; REGISTERS],
    interrupts: [AtomicU64; INTERRUPTS],
    stats: [AtomicU64; STATS],
    /// Ticks in a second, or 0 if the vCPU is not on its pCPU; then a [`UsageWords`].
    time: [AtomicU64; 1 + TIME],
}

impl Default for Published {
    fn default() -> Self {
        Self::new()
    }
}

impl Published {
    /// The state without a question.
    pub const fn new() -> Self {
        Self {
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            registers: [const { AtomicU64::new(0) }; REGISTERS],
            interrupts: [const { AtomicU64::new(0) }; INTERRUPTS],
            stats: [const { AtomicU64::new(0) }; STATS],
            time: [const { AtomicU64::new(0) }; 1 + TIME],
        }
    }

    /// Monitor: asks about a vCPU (row of the plan), which must then be notified. An earlier
    /// question that was not answered is dropped.
    pub fn ask(&self, vcpu: usize, request: Request) {
        let number = (self.asked.load(Ordering::Relaxed) >> 16).wrapping_add(1);
        let question = number << 16 | (vcpu as u64 & 0xff) << 8 | request as u64;
        self.asked.store(question, Ordering::Release);
    }

    /// vCPU, once notified: the question for it, if there is one.
    pub fn question(&self, own: usize) -> Option<Question> {
        let asked = self.asked.load(Ordering::Acquire);
        if asked >> 8 & 0xff != own as u64 || asked == self.answered.load(Ordering::Relaxed) {
            return None;
        }
        let request = match asked & 0xff {
            1 => Request::Sample,
            2 => Request::Registers,
            3 => Request::Interrupts,
            4 => Request::Exits,
            5 => Request::Time,
            _ => return None,
        };
        Some(Question { request, asked })
    }

    /// Queried pCPU: answers with a sample.
    pub fn answer_sample(&self, question: Question, state: State, sample: &Sample) {
        let words = [state as u64, sample.pc, sample.before, sample.exits];
        store(&self.registers, &words);
        self.answered.store(question.asked, Ordering::Release);
    }

    /// Queried pCPU: answers with registers.
    pub fn answer_registers(&self, question: Question, registers: &Registers) {
        let words: &[u64; REGISTERS] = zerocopy::transmute_ref!(registers);
        store(&self.registers, words);
        self.answered.store(question.asked, Ordering::Release);
    }

    /// Queried pCPU: answers with interrupts.
    pub fn answer_interrupts(&self, question: Question, interrupts: &Interrupts) {
        let words: &[u64; INTERRUPTS] = zerocopy::transmute_ref!(interrupts);
        store(&self.interrupts, words);
        self.answered.store(question.asked, Ordering::Release);
    }

    /// Queried pCPU: answers with exit statistics.
    /// `now`: the cycle counter, if the vCPU is on.
    pub fn answer_exits(&self, question: Question, stats: &ExitStats, now: Option<u64>) {
        let (classes, rest) = self.stats.split_at(CLASS * ExitClass::COUNT);
        for (class, places) in ExitClass::ALL.iter().zip(classes.chunks(CLASS)) {
            let words: &[u64; CLASS] = zerocopy::transmute_ref!(stats.class(*class));
            store(places, words);
        }
        let (last, totals) = rest.split_at(LAST * LAST_EXITS);
        for (n, places) in last.chunks(LAST).enumerate() {
            if let Some(exit) = stats.last(n) {
                let words: &[u64; LAST] = zerocopy::transmute_ref!(exit);
                store(places, words);
            }
        }
        let sums = Totals::of(stats, now);
        store(totals, &[sums.exits, sums.guest, sums.elapsed, sums.away]);
        self.answered.store(question.asked, Ordering::Release);
    }

    /// Queried pCPU: answers with the state and the CPU time of a vCPU.
    pub fn answer_time(
        &self,
        question: Question,
        state: State,
        usage: Option<&Usage>,
        frequency: u64,
    ) {
        store(&self.registers, &[state as u64]);
        let (first, words) = self.time.split_at(1);
        store(first, &[usage.map_or(0, |_| frequency)]);
        if let Some(usage) = usage {
            let all: &[u64; TIME] = &zerocopy::transmute!(UsageWords::of(usage));
            store(words, all);
        }
        self.answered.store(question.asked, Ordering::Release);
    }

    /// Monitor: the CPU time of the vCPU, and ticks in a second.
    pub fn time(&self) -> Option<(Usage, u64)> {
        let frequency = register(&self.time, 0);
        let words: UsageWords = zerocopy::transmute!(load::<TIME>(&self.time, 1));
        (frequency != 0).then(|| (words.usage(), frequency))
    }

    /// Monitor: how much CPU time the vCPU has had, and when that was.
    pub fn look(&self) -> Option<Look> {
        let [since, passed, ran] =
            UsageWords::LOOK.map(|word| register(&self.time, word.wrapping_add(1)));
        self.has_time().then_some(Look {
            at: since.wrapping_add(passed),
            since,
            ran,
        })
    }

    /// Monitor: whether [`Self::time`] is `Some`. Cheap, as are the next two.
    pub fn has_time(&self) -> bool {
        register(&self.time, 0) != 0
    }

    /// Monitor: whether the vCPU shares its pCPU.
    pub fn is_shared(&self) -> bool {
        self.has_time() && register(&self.time, 1 + UsageWords::POLICY) != 0
    }

    /// Monitor: whether there have been waits of these classes. Both ends of the range are even.
    pub fn has_waits(&self, classes: Range<usize>) -> bool {
        const FIRST: usize = 1 + UsageWords::WAITS;
        (classes.start / 2..classes.end / 2)
            .any(|word| register(&self.time, FIRST.wrapping_add(word)) != 0)
    }

    /// Monitor: whether the last question has been answered.
    pub fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire) == self.asked.load(Ordering::Relaxed)
    }

    /// Monitor: the snapshot for a diagnosis, from registers and interrupts that have been
    /// answered.
    pub fn snapshot(&self) -> Snapshot {
        let mut words = [0; HEAD + INTERRUPTS];
        let from = self.registers.iter().take(HEAD).chain(&self.interrupts);
        for (word, place) in words.iter_mut().zip(from) {
            *word = place.load(Ordering::Relaxed);
        }
        zerocopy::transmute!(words)
    }

    /// Monitor: the sample that was answered, and the state.
    pub fn sample(&self) -> (State, Sample) {
        (
            self.state(),
            zerocopy::transmute!(load::<3>(&self.registers, SAMPLE)),
        )
    }

    /// Monitor: the state that was answered.
    pub fn state(&self) -> State {
        State::of(register(&self.registers, 0))
    }

    /// Monitor: SPSR_EL2.
    pub fn spsr(&self) -> u64 {
        register(&self.registers, SPSR)
    }

    /// Monitor: ticks of the counters in a second.
    pub fn frequency(&self) -> u64 {
        register(&self.registers, FREQUENCY)
    }

    /// Monitor: the virtual timer (0) or the physical timer (1).
    pub fn timer(&self, n: usize) -> Timer {
        const TIMER: usize = size_of::<Timer>() / 8;
        let first = (offset_of!(Registers, timers) / 8).wrapping_add(n.wrapping_mul(TIMER));
        zerocopy::transmute!(load::<TIMER>(&self.registers, first))
    }

    /// Monitor: the register that [`EL1`](super::EL1) names at index `n`.
    pub fn el1(&self, n: usize) -> u64 {
        register(&self.registers, HEAD.wrapping_add(n))
    }

    /// Monitor: general-purpose register `n`.
    pub fn x(&self, n: usize) -> u64 {
        register(&self.registers, X.wrapping_add(n))
    }

    /// Monitor: all registers as words.
    pub const fn registers(&self) -> &[AtomicU64; REGISTERS] {
        &self.registers
    }

    /// Monitor: the interrupts.
    pub fn interrupts(&self) -> Interrupts {
        zerocopy::transmute!(load::<INTERRUPTS>(&self.interrupts, 0))
    }

    /// Monitor: number of exits of a class.
    pub fn count(&self, class: ExitClass) -> u64 {
        register(&self.stats, (class as usize).wrapping_mul(CLASS))
    }

    /// Monitor: sums of a class.
    pub fn class(&self, class: ExitClass) -> ClassStats {
        zerocopy::transmute!(load::<CLASS>(
            &self.stats,
            (class as usize).wrapping_mul(CLASS)
        ))
    }

    /// Monitor: the `n`th last exit, if there have been that many.
    pub fn last(&self, n: usize) -> Option<LastExit> {
        if n >= LAST_EXITS || n as u64 >= self.totals().exits {
            return None;
        }
        let first = (CLASS * ExitClass::COUNT).wrapping_add(n.wrapping_mul(LAST));
        Some(zerocopy::transmute!(load::<LAST>(&self.stats, first)))
    }

    /// Monitor: sums over all exits.
    pub fn totals(&self) -> Totals {
        let [exits, guest, elapsed, away] = load(&self.stats, STATS - TOTALS);
        Totals {
            exits,
            guest,
            elapsed,
            away,
        }
    }
}

fn store(places: &[AtomicU64], words: &[u64]) {
    for (place, word) in places.iter().zip(words) {
        place.store(*word, Ordering::Relaxed);
    }
}

fn register(places: &[AtomicU64], n: usize) -> u64 {
    places
        .get(n)
        .map_or(0, |place| place.load(Ordering::Relaxed))
}

fn load<const N: usize>(places: &[AtomicU64], first: usize) -> [u64; N] {
    let mut words = [0; N];
    let from = places.get(first..).unwrap_or(&[]);
    for (word, place) in words.iter_mut().zip(from) {
        *word = place.load(Ordering::Relaxed);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::snapshot::{Gate, PENDING, Pending};
    use crate::sched::{Account, Policy, RunState};

    #[test]
    fn an_answer_is_what_was_published() {
        let published = Published::new();
        assert_eq!(published.question(3), None, "nothing is asked");
        let ask = |request| {
            published.ask(3, request);
            assert!(!published.is_answered());
            assert_eq!(published.question(2), None, "another one is asked");
            let question = published.question(3).unwrap();
            assert_eq!(question.request, request);
            question
        };
        let timer = |n| Timer {
            control: n,
            ahead: n + 1,
            compare: n + 2,
        };
        let registers = Registers {
            state: State::Paused as u64,
            sample: Sample {
                pc: 1,
                before: 2,
                exits: 3,
            },
            spsr: 0x3c5,
            frequency: 62_500_000,
            timers: [timer(10), timer(20)],
            el1: core::array::from_fn(|n| n as u64 + 200),
            x: core::array::from_fn(|n| n as u64 + 100),
        };
        published.answer_registers(ask(Request::Registers), &registers);
        assert!(published.is_answered());
        assert_eq!(published.question(3), None, "answered");
        let interrupts = Interrupts {
            gate: Gate {
                mask: 1,
                running: 2,
                groups: 3,
                forwarded: 4,
                fiq: 5,
            },
            pending: [Pending::new(27, true, 1, 0xa0); PENDING],
        };
        published.answer_interrupts(ask(Request::Interrupts), &interrupts);
        assert_eq!(published.sample(), (State::Paused, registers.sample));
        assert_eq!(published.spsr(), 0x3c5);
        assert_eq!(published.frequency(), 62_500_000);
        assert_eq!([published.timer(0), published.timer(1)], registers.timers);
        assert_eq!(core::array::from_fn(|n| published.x(n)), registers.x);
        assert_eq!(core::array::from_fn(|n| published.el1(n)), registers.el1);
        assert_eq!(published.interrupts(), interrupts);
        let snapshot = Snapshot {
            state: registers.state,
            sample: registers.sample,
            spsr: registers.spsr,
            frequency: registers.frequency,
            timers: registers.timers,
            interrupts,
        };
        assert_eq!(published.snapshot(), snapshot);
        let mut stats = ExitStats::new(10);
        stats.count(ExitClass::Hvc, 20, 30, 0x4000, 7);
        stats.count(ExitClass::Uart, 40, 45, 0x5000, 8);
        published.answer_exits(ask(Request::Exits), &stats, None);
        for class in ExitClass::ALL {
            assert_eq!(published.class(class), *stats.class(class));
            assert_eq!(published.count(class), stats.class(class).count);
        }
        assert_eq!(published.last(0), stats.last(0).copied());
        assert_eq!(published.last(1).map(|exit| exit.pc), Some(0x4000));
        assert_eq!(published.last(2), None);
        let totals = published.totals();
        assert_eq!((totals.exits, totals.guest, totals.elapsed), (2, 20, 35));
    }

    #[test]
    fn time_comes_back_as_it_was_published() {
        let published = Published::new();
        assert_eq!(published.time(), None);
        let policies = [
            Policy::Pinned,
            Policy::Server {
                budget: 1,
                period: 2,
            },
            Policy::Fair {
                weight: 3,
                quota: 4,
                period: 5,
            },
        ];
        let doings = [
            RunState::Blocked,
            RunState::Ready,
            RunState::Running,
            RunState::Throttled(77),
        ];
        for (policy, run_state) in policies.iter().flat_map(|p| doings.map(|d| (*p, d))) {
            let usage = Usage {
                policy,
                run_state,
                account: Account {
                    ran: 11,
                    waits: core::array::from_fn(|n| n as u32),
                    ..Account::new(9)
                },
                passed: 12,
            };
            published.ask(0, Request::Time);
            let question = published.question(0).unwrap();
            published.answer_time(question, State::On, Some(&usage), 62);
            assert!(published.is_answered());
            assert_eq!(published.time(), Some((usage, 62)));
            assert_eq!(published.is_shared(), policy != Policy::Pinned);
            // Class 0 has no waits; classes from 40 on do not exist.
            assert!(published.has_waits(0..2) && published.has_waits(38..40));
            assert!(!published.has_waits(40..44));
        }
        published.ask(0, Request::Time);
        let question = published.question(0).unwrap();
        published.answer_time(question, State::On, None, 62);
        assert_eq!(published.time(), None);
        assert!(!published.has_time() && !published.is_shared());
        let none = Usage {
            policy: policies[2],
            run_state: RunState::Ready,
            account: Account::new(9),
            passed: 12,
        };
        published.ask(0, Request::Time);
        let question = published.question(0).unwrap();
        published.answer_time(question, State::On, Some(&none), 62);
        assert!(published.is_shared() && !published.has_waits(0..40));
    }

    #[test]
    fn a_sample_is_a_part_of_the_registers() {
        let published = Published::new();
        published.ask(0, Request::Sample);
        let sample = Sample {
            pc: 1,
            before: 2,
            exits: 3,
        };
        let question = published.question(0).unwrap();
        published.answer_sample(question, State::On, &sample);
        assert_eq!(published.sample(), (State::On, sample));
    }

    #[test]
    fn a_late_answer_is_not_taken_for_the_next_one() {
        let published = Published::new();
        published.ask(1, Request::Sample);
        let first = published.question(1).unwrap();
        published.ask(1, Request::Sample);
        published.answer_sample(first, State::Off, &Sample::default());
        assert!(!published.is_answered());
        let second = published.question(1).unwrap();
        assert_ne!(first, second);
        published.answer_sample(second, State::Off, &Sample::default());
        assert!(published.is_answered());
    }
}

//! Every interleaving of vCPUs that want the turn to report, and of a change of limits and the pCPU that follows it.
//!
//! Planted there, one at a time, and found:
//!
//! | planted | fails |
//! | --- | --- |
//! | the mark of who waits set behind the attempt; those who wait taken before the turn is free; the turn taken by a load and a store | [`a_turn_is_one_vcpus_and_who_waits_is_told`] |
//! | no look at the turn where the board is switched off; the turn passed on before the last words are said; nobody woken behind that | [`the_board_is_switched_off_behind_the_last_words`] |
//! | no look at the turn; nobody woken behind a report when all VMs have stopped | [`a_report_at_the_end_does_not_keep_the_board_on`] |
//! | no fence behind the odd version, or before it is read again; the version not read again; the even version stored relaxed | [`limits_are_read_whole_or_not_at_all`] |

use bulkhead_abi::plan::{CpuPolicy, Vcpu};
use bulkhead_interleave::report_turn::ReportTurn;
use bulkhead_interleave::sched::{Change, Limits};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use trying::model;
use zerocopy::FromZeros;

mod trying;

/// The turn, who has it, the messages of the vCPUs, and how many reports each has said.
#[derive(Default)]
struct Reports {
    turn: ReportTurn,
    inside: AtomicU32,
    mail: [AtomicU32; 2],
    said: [AtomicU32; 2],
}

impl Reports {
    /// A vCPU has something to say, and tries once, as the thread of a vCPU whose VM has stopped does.
    fn report(&self, id: usize) {
        if !self.turn.take(id) {
            return;
        }
        assert_eq!(
            self.inside.fetch_add(1, Ordering::Relaxed),
            0,
            "two have the turn"
        );
        self.said[id].fetch_add(1, Ordering::Relaxed);
        self.inside.fetch_sub(1, Ordering::Relaxed);
        let waiting = self.turn.pass();
        for (other, mail) in self.mail.iter().enumerate() {
            if waiting >> other & 1 != 0 {
                mail.fetch_or(1, Ordering::AcqRel);
            }
        }
    }
}

#[test]
fn a_turn_is_one_vcpus_and_who_waits_is_told() {
    model(|| {
        let reports = Arc::new(Reports::default());
        // Loom's atomics are made at their first use, which is to be before there are two threads; a turn leaves nothing.
        assert!(reports.turn.take(0));
        assert_eq!(reports.turn.pass(), 0);
        let theirs = Arc::clone(&reports);
        let other = thread::spawn(move || theirs.report(1));
        reports.report(0);
        other.join().unwrap();
        for id in [0, 1] {
            let said = reports.said[id].load(Ordering::Relaxed);
            let told = reports.mail[id].swap(0, Ordering::AcqRel) != 0;
            assert!(said == 1 || told, "{id} waits, and nobody tells it");
            if said == 0 {
                reports.report(id);
                assert_eq!(
                    reports.said[id].load(Ordering::Relaxed),
                    1,
                    "the turn is not free"
                );
            }
        }
    });
}

/// The last VM's end, and the pCPU that drains the console and switches the board off: `finish`, `all_stopped` and the loop of an idle pCPU.
#[derive(Default)]
struct LastWords {
    turn: ReportTurn,
    running: AtomicU32,
    /// Lines that were not sent yet.
    log: AtomicU32,
    woken: AtomicU32,
    sent: AtomicU32,
}

impl LastWords {
    /// With so many VMs that run. Loom's atomics are made at their first use, which is to be before there are two threads.
    fn new(running: u32) -> Self {
        let words = Self::default();
        words.running.store(running, Ordering::Relaxed);
        for atomic in [&words.log, &words.woken, &words.sent] {
            atomic.store(0, Ordering::Relaxed);
        }
        words
    }

    /// A vCPU in its turn counts its VM out.
    fn finish(&self) {
        let last = self.running.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            self.log.fetch_add(1, Ordering::AcqRel);
        }
        self.turn.pass();
        if last || self.stopped() {
            self.woken.fetch_or(1, Ordering::AcqRel);
        }
    }

    /// One round of who drains; `true` where it would switch the board off.
    fn drain(&self) -> bool {
        let sent = self.log.swap(0, Ordering::AcqRel);
        self.sent.fetch_add(sent, Ordering::Relaxed);
        self.stopped() && self.log.load(Ordering::Acquire) == 0
    }

    fn stopped(&self) -> bool {
        self.running.load(Ordering::Acquire) == 0 && self.turn.is_free()
    }

    /// The report of a VM that does not count, which may begin when all others have stopped.
    fn say(&self, id: usize) {
        if self.turn.take(id) {
            self.turn.pass();
            if self.stopped() {
                self.woken.fetch_or(1, Ordering::AcqRel);
            }
        }
    }
}

#[test]
fn the_board_is_switched_off_behind_the_last_words() {
    model(|| {
        let words = Arc::new(LastWords::new(1));
        assert!(words.turn.take(0));
        let theirs = Arc::clone(&words);
        let last = thread::spawn(move || theirs.finish());
        let mut off = false;
        for _ in 0..2 {
            off = off || words.drain();
            assert!(
                !off || words.sent.load(Ordering::Relaxed) == 1,
                "off before the last words"
            );
        }
        last.join().unwrap();
        // It sleeps until it is woken.
        if !off {
            assert_ne!(words.woken.load(Ordering::Acquire), 0, "nobody wakes it");
            off = words.drain();
        }
        assert!(off, "the board stays on");
    });
}

#[test]
fn a_report_at_the_end_does_not_keep_the_board_on() {
    model(|| {
        let words = Arc::new(LastWords::new(0));
        assert!(words.turn.take(0));
        words.turn.pass();
        let theirs = Arc::clone(&words);
        let report = thread::spawn(move || theirs.say(1));
        let off = words.drain();
        report.join().unwrap();
        let woken = words.woken.load(Ordering::Acquire) != 0;
        assert!(off || woken && words.drain(), "the board stays on");
    });
}

/// The limits before a change and behind it, as budgets; each period is twice that.
const BUDGETS: [u64; 2] = [1_000_000, 2_000_000];

#[test]
fn limits_are_read_whole_or_not_at_all() {
    let row = Vcpu {
        policy: CpuPolicy::Fair as u16,
        weight: 1,
        budget: BUDGETS[0],
        period: 2 * BUDGETS[0],
        ..Vcpu::new_zeroed()
    };
    model(move || {
        let limits = Arc::new(Limits::new());
        // As above: a change to what the plan says.
        let cap = |budget| Change::Cap {
            quota: budget,
            period: 2 * budget,
        };
        limits.change(&[row], 0, cap(BUDGETS[0])).unwrap();
        let message = Arc::new(AtomicU32::new(0));
        let theirs = (Arc::clone(&limits), Arc::clone(&message));
        let writer = thread::spawn(move || {
            let (limits, message) = theirs;
            limits.change(&[row], 0, cap(BUDGETS[1])).unwrap();
            message.fetch_or(1, Ordering::AcqRel);
        });
        let told = message.swap(0, Ordering::AcqRel) != 0;
        let found = limits.of(&[row], 0);
        if let Some(found) = found {
            assert!(BUDGETS.contains(&found.budget), "{}", found.budget);
            assert_eq!(found.period, 2 * found.budget, "halves of both");
            assert!(
                !told || found.budget != BUDGETS[0],
                "an old row behind the message"
            );
        }
        writer.join().unwrap();
        // What was not read now comes with the message that follows each change.
        let last = limits.of(&[row], 0).map(|row| row.budget);
        assert_eq!(last, Some(BUDGETS[1]));
        let seen = found.map(|row| row.budget) == last;
        assert!(
            seen || message.load(Ordering::Acquire) != 0,
            "nobody is told"
        );
    });
}

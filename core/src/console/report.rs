//! The report about a vCPU that stopped: lines, one at a time, so that the caller decides how many
//! it prints in a turn.

use bulkhead_abi::console::{
    self, ExitsOf, FaultAt, Hex, Name, Outcome, Padded, Percent, Rest, ServiceTime, VmEnd, Word,
};
use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::{NAME, Vm as Row};

use super::cpu_time;
use super::stats::{ClassStats, ExitStats, LAST_EXITS, LastExit};
use super::text::TextLine;
use crate::cpu::exit;
use crate::cpu::inject::Fault;
use crate::cpu::life::{Follows, Settled};
use crate::cpu::power::End;
use crate::sched::Usage;

/// Reason why a VM no longer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A request of the guest or the console, or an expired watchdog.
    Ended(End),
    /// A fault that could not be injected into the guest, or that ends it.
    Fault {
        /// ESR_EL2.
        syndrome: u64,
        /// FAR_EL2.
        address: u64,
        /// PC of the guest.
        pc: u64,
        /// The fault that was to be injected.
        fault: Option<Fault>,
    },
}

/// Consequence of the end of a VM, and the words for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The end, as it was settled.
    pub settled: Settled,
    /// Restarts that the policy of the VM allows after such an end, if it has a limit.
    pub limit: u16,
    /// Period of that limit, in seconds.
    pub seconds: u16,
    /// The VM that is notified, if one is.
    pub told: [u8; NAME],
}

impl Verdict {
    /// Returns the consequence of this end of the VM with this row in the plan. `told`: the VM that
    /// the row has notified of crashes.
    pub const fn of(settled: Settled, row: &Row, told: [u8; NAME]) -> Self {
        let (limit, seconds) = match settled.end {
            End::Reset => (row.resets, row.reset_seconds),
            _ => (row.restarts, row.restart_seconds),
        };
        Self {
            settled,
            limit,
            seconds,
            told,
        }
    }
}

/// A report, with its progress.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    name: [u8; NAME],
    vcpu: u64,
    /// `None`: another vCPU's report has the reason; this one has only statistics.
    reason: Option<(Reason, Verdict)>,
    /// CPU time on a shared pCPU, and ticks in a second.
    time: Option<(Usage, u64)>,
    next: usize,
}

/// Header, details, table header, classes, totals, CPU time, service, ring header, ring.
const LINES: usize = LAST + 1 + LAST_EXITS;
const CLASSES: usize = 4;
const TOTALS: usize = CLASSES + ExitClass::COUNT;
const TIME: usize = TOTALS + 1;
const SERVICE: usize = TIME + cpu_time::LINES;
const LAST: usize = SERVICE + 1;

impl Report {
    /// A report of a vCPU of the VM `name`: why the VM ended and what happens, if this vCPU says
    /// so, and the statistics of the vCPU, unless the VM starts again. `time`: the CPU time of the
    /// vCPU on a shared pCPU, and ticks in a second.
    pub const fn new(
        name: [u8; NAME],
        vcpu: u64,
        reason: Option<(Reason, Verdict)>,
        time: Option<(Usage, u64)>,
    ) -> Self {
        Self {
            name,
            vcpu,
            reason,
            time,
            next: 0,
        }
    }

    /// Whether the report has the reason, so that it has to be printed before the others of the VM.
    pub const fn gives_reason(&self) -> bool {
        self.reason.is_some()
    }

    /// Whether the report has only the reason, without the statistics, because the VM starts again.
    pub fn is_brief(&self) -> bool {
        self.reason
            .is_some_and(|(_, verdict)| verdict.settled.is_restart())
    }

    /// Returns the next line, or `None` at the end. A line takes a bounded number of steps. `service` is what the VM's virtio devices have had
    /// of the service thread, if this vCPU says so.
    pub fn next(
        &mut self,
        stats: &ExitStats,
        service: impl Fn() -> ServiceTime,
    ) -> Option<TextLine> {
        let mut line = TextLine::new();
        while self.next < LINES {
            let n = self.next;
            // Between its first two lines and its last ones, a brief report has nothing to say.
            self.next = if n == 1 && self.is_brief() {
                LAST
            } else {
                n.saturating_add(1)
            };
            self.write(n, stats, &service, &mut line);
            if !line.as_bytes().is_empty() {
                line.text("\r\n");
                return Some(line);
            }
        }
        None
    }

    fn write(
        &self,
        n: usize,
        stats: &ExitStats,
        service: &impl Fn() -> ServiceTime,
        line: &mut TextLine,
    ) {
        match n {
            0 => self.headline(line),
            1 => self.details(line),
            2 => {
                let (vm, vcpu) = (Name(&self.name), self.vcpu);
                ExitsOf { vm, vcpu }.write(line);
            }
            3 => {
                line.text(console::HEADINGS);
            }
            TOTALS => totals(&Totals::of(stats, None), line),
            n if n < TOTALS => {
                if let Some(class) = ExitClass::ALL.get(n.wrapping_sub(CLASSES)) {
                    row(*class, stats.class(*class), stats.elapsed(), line);
                }
            }
            n if n < SERVICE => {
                if let Some((usage, frequency)) = &self.time {
                    cpu_time::write(n.wrapping_sub(TIME), usage, *frequency, line);
                }
            }
            n if n < LAST => {
                let service = service();
                if service.slices != 0 {
                    service.write(line);
                }
            }
            n => self.last(n.wrapping_sub(LAST), stats, line),
        }
    }

    fn headline(&self, line: &mut TextLine) {
        let Some((reason, verdict)) = self.reason else {
            return;
        };
        let settled = verdict.settled;
        let outcome = if settled.is_restart() {
            Outcome::Restarts
        } else {
            Outcome::Stopped
        };
        let (words, of_vector) = match reason {
            Reason::Ended(end) => (end.words(), false),
            Reason::Fault {
                syndrome, fault, ..
            } => (
                exit::words(syndrome),
                matches!(fault, Some(Fault::Fetch(_))),
            ),
        };
        VmEnd {
            vm: Name(&self.name),
            outcome,
            why: Rest(words),
        }
        .write(line);
        if of_vector {
            line.text(" (its exception vector)");
        }
        if settled.end.is_order() {
            // Without a fault the words above are those of the order.
            if matches!(reason, Reason::Fault { .. }) {
                line.text(" (").text(settled.end.words()).byte(b')');
            }
            return;
        }
        match settled.follows {
            Follows::Stays | Follows::Restarts => return,
            Follows::Tells => {
                line.text(" (told to ").name(&verdict.told).byte(b')');
                return;
            }
            Follows::Exhausted => line.text(" (after restarts: "),
            Follows::Retries => line
                .text(" (restart ")
                .decimal(u64::from(settled.count))
                .text(" of at most "),
        };
        line.decimal(u64::from(verdict.limit)).text(" in ");
        line.decimal(u64::from(verdict.seconds)).text(" s)");
    }

    fn details(&self, line: &mut TextLine) {
        if let Some((
            Reason::Fault {
                syndrome,
                address,
                pc,
                ..
            },
            _,
        )) = self.reason
        {
            FaultAt {
                vm: Name(&self.name),
                vcpu: self.vcpu,
                pc: Hex(pc),
                class: Hex(exit::class(syndrome)),
                syndrome: Hex(syndrome),
                address: Hex(address),
            }
            .write(line);
        }
    }

    /// Writes the last exits of a vCPU that crashed, newest first.
    fn last(&self, n: usize, stats: &ExitStats, line: &mut TextLine) {
        if !matches!(self.reason, Some((Reason::Fault { .. }, _))) {
            return;
        }
        if n == 0 {
            line.text(console::LAST_EXITS);
            return;
        }
        let Some(exit) = stats.last(n.wrapping_sub(1)) else {
            return;
        };
        last_exit(exit, line);
    }
}

/// Appends one of the last exits.
pub(crate) fn last_exit(exit: &LastExit, line: &mut TextLine) {
    let name = ExitClass::ALL
        .get(exit.class as usize)
        .map_or("?", |class| class.name());
    console::LastExit {
        class: Padded(Word(name)),
        pc: Hex(exit.pc),
        syndrome: Hex(exit.syndrome),
        at: exit.at,
    }
    .write(line);
}

/// Appends the sums of a class, of a vCPU that has been on for `elapsed` cycles; nothing if it has
/// no exits.
pub(crate) fn row(class: ExitClass, sums: &ClassStats, elapsed: u64, line: &mut TextLine) {
    if sums.count == 0 {
        return;
    }
    console::ClassRow {
        class,
        count: sums.count,
        min: u64::from(sums.min),
        mean: sums.mean(),
        max: u64::from(sums.max),
        total: sums.total,
        deviation: sums.deviation(),
        share: Percent {
            part: sums.total,
            of: elapsed,
        },
        per_second: per_second(sums.count, elapsed),
    }
    .write(line);
}

/// Exits per second of counted time: cycles are about a nanosecond on the boards at hand.
const fn per_second(exits: u64, elapsed: u64) -> u64 {
    match exits.saturating_mul(1_000_000_000).checked_div(elapsed) {
        Some(rate) => rate,
        None => 0,
    }
}

/// Sums over all exits of a vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of exits.
    pub exits: u64,
    /// Cycles in the guest.
    pub guest: u64,
    /// Cycles for which the vCPU was on.
    pub elapsed: u64,
    /// Cycles of `elapsed` for which it was away from its pCPU: asleep, or not in its turn.
    pub away: u64,
}

impl Totals {
    /// Computes the totals of statistics: up to `now` (cycle counter) of a vCPU that is on, or up to its last exit. What it was
    /// away since that exit counts already.
    pub fn of(stats: &ExitStats, now: Option<u64>) -> Self {
        let elapsed = match now {
            Some(now) => stats.elapsed_at(now),
            None => stats.elapsed(),
        };
        Self {
            exits: stats.exits(),
            guest: stats.guest(elapsed),
            elapsed,
            away: stats.away(),
        }
    }
}

/// Appends the sums of all classes.
pub(crate) fn totals(sums: &Totals, line: &mut TextLine) {
    console::Totals {
        exits: sums.exits,
        guest: sums.guest,
        elapsed: sums.elapsed,
        share: Percent {
            part: sums.guest,
            of: sums.elapsed,
        },
        away: sums.away,
        away_share: Percent {
            part: sums.away,
            of: sums.elapsed,
        },
        per_second: per_second(sums.exits, sums.elapsed),
    }
    .write(line);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::{Account, Policy, RunState};
    use std::{string::String, vec::Vec};

    fn verdict(end: End, follows: Follows) -> Verdict {
        Verdict {
            settled: Settled {
                end,
                follows,
                count: 2,
            },
            limit: 3,
            seconds: 60,
            told: *b"supervisor\0\0\0\0\0\0",
        }
    }

    fn lines(reason: Reason, stats: &ExitStats) -> Vec<String> {
        let mut name = [0; NAME];
        name[..5].copy_from_slice(b"linux");
        let mut report = Report::new(
            name,
            0,
            Some((reason, verdict(End::Off, Follows::Stays))),
            None,
        );
        std::iter::from_fn(|| report.next(stats, ServiceTime::default))
            .map(|line| String::from_utf8(line.as_bytes().to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn a_power_off_is_told_with_its_statistics() {
        let mut stats = ExitStats::new(0);
        stats.count(ExitClass::Hvc, 1_000, 1_100, 0, 0);
        stats.count(ExitClass::Hvc, 9_700, 10_000, 0, 0);
        let text = lines(Reason::Ended(End::Off), &stats);
        assert_eq!(text[0], "vm linux stopped: power off\r\n");
        assert_eq!(text[1], "exits vm=linux vcpu=0\r\n");
        let words: Vec<_> = text[3].split_whitespace().collect();
        assert_eq!(
            words,
            [
                "hvc", "2", "100", "200", "300", "400", "100", "4.00", "200000"
            ]
        );
        assert_eq!(
            text[4],
            "  all 2 exits, guest 9600 of 10000 cycles ( 96.00%), away 0 (  0.00%), per s 200000\r\n"
        );
        assert_eq!(text.len(), 5, "no last exits without a crash");
    }

    #[test]
    fn time_on_a_shared_pcpu_is_said_once_and_not_before_a_restart() {
        let mut stats = ExitStats::new(0);
        stats.count(ExitClass::Hvc, 900, 1_000, 0, 0);
        stats.was_away(100, 700);
        let usage = Usage {
            policy: Policy::Pinned,
            run_state: RunState::Running,
            account: Account {
                ran: 4,
                turns: 2,
                ..Account::new(0)
            },
            passed: 10,
        };
        let said = |follows| {
            let reason = (Reason::Ended(End::Off), verdict(End::Off, follows));
            let time = Some((usage, 1_000_000_000));
            let mut report = Report::new([b'a'; NAME], 1, Some(reason), time);
            std::iter::from_fn(|| report.next(&stats, ServiceTime::default))
                .map(|line| String::from_utf8(line.as_bytes().to_vec()).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            said(Follows::Stays)[4..],
            [
                "  all 1 exits, guest 300 of 1000 cycles ( 30.00%), away 600 ( 60.00%), per s 1000000\r\n",
                "  time ran=4 of=10 stolen=0 longest=0\r\n",
                "  time turns=2 overruns=0\r\n",
            ]
        );
        assert_eq!(said(Follows::Restarts).len(), 1);
    }

    #[test]
    fn the_service_of_devices_is_said_behind_the_sums_and_not_without_any() {
        let stats = ExitStats::new(0);
        let said = |slices| {
            let service = ServiceTime {
                slices,
                ns: 900,
                longest: 70,
            };
            let mut report = Report::new([b'a'; NAME], 0, None, None);
            std::iter::from_fn(|| report.next(&stats, || service))
                .map(|line| String::from_utf8(line.as_bytes().to_vec()).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            said(12).last().map(String::as_str),
            Some("  service slices=12 ns=900 longest=70\r\n")
        );
        assert_eq!(said(12).len(), said(0).len() + 1);
    }

    #[test]
    fn what_happens_next_is_said_with_its_limit_and_who_ordered_it() {
        let stats = ExitStats::new(0);
        let fault = Reason::Fault {
            syndrome: 0,
            address: 0,
            pc: 0,
            fault: None,
        };
        let end = |end| Reason::Ended(end);
        for (reason, of, follows, words) in [
            (
                end(End::Off),
                End::Off,
                Follows::Stays,
                "stopped: power off",
            ),
            (
                end(End::Reset),
                End::Reset,
                Follows::Restarts,
                "restarts: reset requested",
            ),
            (
                end(End::Reset),
                End::Reset,
                Follows::Retries,
                "restarts: reset requested (restart 2 of at most 3 in 60 s)",
            ),
            (
                end(End::Reset),
                End::Reset,
                Follows::Exhausted,
                "stopped: reset requested (after restarts: 3 in 60 s)",
            ),
            (
                fault,
                End::Crash,
                Follows::Tells,
                "stopped: undefined instruction (told to supervisor)",
            ),
            (
                fault,
                End::Ordered,
                Follows::Stays,
                "stopped: undefined instruction (ordered to stop)",
            ),
            (
                fault,
                End::OrderedRestart,
                Follows::Restarts,
                "restarts: undefined instruction (ordered to restart)",
            ),
            (
                end(End::Ordered),
                End::Ordered,
                Follows::Stays,
                "stopped: ordered to stop",
            ),
        ] {
            let reason = Some((reason, verdict(of, follows)));
            let line = Report::new(*b"a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 0, reason, None)
                .next(&stats, ServiceTime::default);
            let line = String::from_utf8(line.unwrap().as_bytes().to_vec()).unwrap();
            assert_eq!(line, std::format!("vm a {words}\r\n"));
        }
    }

    #[test]
    fn a_crash_names_place_and_last_exits() {
        let mut stats = ExitStats::new(0);
        stats.count(ExitClass::Uart, 1, 2, 0x4000_1000, 7);
        let fault = Some(Fault::Fetch(0xbad0_0200));
        let reason = Reason::Fault {
            syndrome: 0x8200_0005,
            address: 0xbad0_0200,
            pc: 0xbad0_0200,
            fault,
        };
        let text = lines(reason, &stats);
        assert!(
            text[0]
                .contains("fetch from an address that the VM does not have (its exception vector)")
        );
        assert!(text[1].contains("pc=0xbad00200 class=0x20 syndrome=0x82000005"));
        assert!(
            text.last()
                .unwrap()
                .contains("uart         pc=0x40001000 syndrome=0x7 at=2"),
            "{text:?}"
        );
    }
}

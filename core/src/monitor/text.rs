//! The lines of a monitor report about a vCPU, numbered so that each can be written when the
//! console has room for it.

use bulkhead_abi::console::{HEADINGS as COLUMNS, LAST_EXITS};
use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::NAME;

use crate::console::text::TextLine;
use crate::console::{cpu_time, report};

use super::published::Published;
use super::snapshot::{EL1, EL1_COUNT, Interrupts, State, Timer};

/// The vCPU that a report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Name of its VM, padded with 0.
    pub name: [u8; NAME],
    /// Number of the vCPU in its VM.
    pub vcpu: u64,
    /// Index of its pCPU.
    pub pcpu: u64,
}

impl Subject {
    /// Writes the start of a line about the vCPU, with the name from the column behind its share to `end`.
    pub fn begin(&self, end: usize, line: &mut TextLine) {
        line.name(&self.name)
            .column(end)
            .text(" vcpu ")
            .decimal(self.vcpu)
            .text(" on pcpu ")
            .decimal(self.pcpu)
            .text(": ");
    }
}

const PER_LINE: usize = 3;
/// What the vCPU does for its pCPU's scheduler, and its policy.
const STANDS: usize = 1;
const TIME: usize = STANDS + 1;
const PC: usize = TIME + cpu_time::LINES;
const GENERAL: usize = PC + 1;
const REGISTERS: usize = GENERAL + 31usize.div_ceil(PER_LINE);
const VIRTUAL: usize = REGISTERS + EL1_COUNT.div_ceil(PER_LINE);
const PHYSICAL: usize = VIRTUAL + 1;
const GATE: usize = PHYSICAL + 1;
const PENDING: usize = GATE + 1;
const HEADINGS: usize = PENDING + 1;
const CLASSES: usize = HEADINGS + 1;
const TOTALS: usize = CLASSES + ExitClass::COUNT;
const LAST: usize = TOTALS + 1;
/// Number of last exits that are shown.
const SHOWN: usize = 8;
/// Number of lines of a report about a vCPU; some may be empty.
pub const LINES: usize = LAST + 1 + SHOWN;

/// Whether line `n` is empty. Cheap, because a report has many empty lines.
pub fn is_empty(n: usize, published: &Published) -> bool {
    match n {
        0 => false,
        STANDS => !published.has_time(),
        TIME..PC => {
            let classes = cpu_time::classes(n.wrapping_sub(TIME));
            !published.is_shared() || classes.is_some_and(|some| !published.has_waits(some))
        }
        // A vCPU that is not on has no registers.
        PC..HEADINGS => !matches!(published.state(), State::On | State::Paused),
        HEADINGS | TOTALS | LAST => published.totals().exits == 0,
        CLASSES..TOTALS => ExitClass::ALL
            .get(n.wrapping_sub(CLASSES))
            .is_none_or(|class| published.count(*class) == 0),
        n => published.totals().exits <= n.wrapping_sub(LAST).wrapping_sub(1) as u64,
    }
}

/// Writes line `n` of a report, from 1 on.
pub fn write(n: usize, published: &Published, line: &mut TextLine) {
    match n {
        STANDS => {
            line.text("  cpu time: ");
            stands(published, line);
        }
        TIME..PC => {
            if let Some((usage, frequency)) = published.time() {
                cpu_time::write(n.wrapping_sub(TIME), &usage, frequency, line);
            }
        }
        PC => place(published, line),
        GENERAL..REGISTERS => {
            let first = n.wrapping_sub(GENERAL).wrapping_mul(PER_LINE);
            for number in first..first.wrapping_add(PER_LINE).min(31) {
                line.text("  x").decimal(number as u64).byte(b'=');
                line.hex(published.x(number));
            }
        }
        REGISTERS..VIRTUAL => {
            let first = n.wrapping_sub(REGISTERS).wrapping_mul(PER_LINE);
            let names = EL1.get(first..).unwrap_or(&[]).iter().enumerate();
            for (number, name) in names.take(PER_LINE) {
                let value = published.el1(first.wrapping_add(number));
                line.text("  ").text(name).byte(b'=').hex(value);
            }
        }
        VIRTUAL => timer("virtual", &published.timer(0), line),
        PHYSICAL => timer("physical", &published.timer(1), line),
        GATE | PENDING => interrupts(n, &published.interrupts(), line),
        HEADINGS => {
            line.text(COLUMNS);
        }
        CLASSES..TOTALS => {
            if let Some(class) = ExitClass::ALL.get(n.wrapping_sub(CLASSES)) {
                let elapsed = published.totals().elapsed;
                report::row(*class, &published.class(*class), elapsed, line);
            }
        }
        TOTALS => {
            report::totals(&published.totals(), line);
        }
        LAST => {
            line.text(LAST_EXITS);
        }
        n => {
            if let Some(exit) = published.last(n.wrapping_sub(LAST).wrapping_sub(1)) {
                report::last_exit(&exit, line);
            }
        }
    }
}

/// Writes what the vCPU does for its pCPU's scheduler, and its policy.
pub fn stands(published: &Published, line: &mut TextLine) {
    match published.time() {
        Some((usage, frequency)) => {
            super::cpu_time::stands(published.state(), &usage, frequency, line);
        }
        None => {
            line.text("not there");
        }
    }
}

fn interrupts(n: usize, interrupts: &Interrupts, line: &mut TextLine) {
    if n == GATE {
        let gate = &interrupts.gate;
        line.text("  interrupts: pmr=").hex(gate.mask);
        if gate.running > 0xff {
            line.text(" running=none");
        } else {
            line.text(" running=").hex(gate.running);
        }
        line.text(" groups: interface=").hex(gate.groups);
        line.text(" distributor=").hex(gate.forwarded);
        return;
    }
    line.text("  pending:");
    for one in interrupts.pending.iter().filter(|one| one.is_some()) {
        line.byte(b' ').decimal(one.intid()).text(" (");
        line.text(if one.is_enabled() { "on" } else { "off" });
        line.text(", group ").decimal(one.group());
        line.text(", ").hex(one.priority()).byte(b')');
    }
    if !interrupts.pending.iter().any(|one| one.is_some()) {
        line.text(" nothing");
    }
}

/// Writes the PC and PSTATE of the vCPU.
fn place(published: &Published, line: &mut TextLine) {
    let spsr = published.spsr();
    line.text("  pc=").hex(published.sample().1.pc);
    line.text(" spsr=").hex(spsr).text(" (");
    line.text(match spsr & 0x1f {
        0 => "EL0",
        4 => "EL1t",
        5 => "EL1h",
        0x10..=0x1f => "AArch32",
        _ => "?",
    });
    for (bit, name) in [
        (1 << 9, " D"),
        (1 << 8, " A"),
        (1 << 7, " I"),
        (1 << 6, " F"),
    ] {
        if spsr & bit != 0 {
            line.text(name);
        }
    }
    line.byte(b')');
}

fn timer(name: &str, timer: &Timer, line: &mut TextLine) {
    line.text("  ").text(name).text(" timer: ctl=");
    line.hex(timer.control).text(" cval=").hex(timer.compare);
    if timer.control & 1 == 0 {
        line.text(" (off)");
    } else if timer.ahead == 0 {
        line.text(" (due)");
    } else {
        line.text(" (due in ").decimal(timer.ahead).text(" ticks)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::mux;
    use crate::console::stats::ExitStats;
    use crate::monitor::published::Request;
    use crate::monitor::snapshot::{Gate, Pending, Registers};
    use crate::sched::{Account, Policy, RunState, Usage};
    use std::{format, string::String, vec::Vec};

    fn report(state: State, stats: &ExitStats) -> Vec<String> {
        let published = Published::new();
        let ask = |request| {
            published.ask(1, request);
            published.question(1).unwrap()
        };
        let mut registers = Registers {
            state: state as u64,
            spsr: 0x3c5,
            x: core::array::from_fn(|n| n as u64),
            el1: core::array::from_fn(|n| 0x100 + n as u64),
            ..Registers::default()
        };
        registers.sample.pc = 0x4008_0000;
        registers.timers[0] = Timer {
            control: 1,
            ahead: 40,
            compare: 0x77,
        };
        published.answer_registers(ask(Request::Registers), &registers);
        let mut interrupts = Interrupts {
            gate: Gate {
                mask: 0xf8,
                running: 0x100,
                groups: 2,
                forwarded: 2,
                fiq: 1,
            },
            ..Interrupts::default()
        };
        interrupts.pending[0] = Pending::new(27, true, 1, 0xa0);
        interrupts.pending[1] = Pending::new(45, false, 0, 0);
        published.answer_interrupts(ask(Request::Interrupts), &interrupts);
        published.answer_exits(ask(Request::Exits), stats, None);
        let usage = Usage {
            policy: Policy::Fair {
                weight: 2,
                quota: 1,
                period: 1,
            },
            run_state: RunState::Ready,
            account: Account {
                ran: 25,
                turns: 3,
                ..Account::new(0)
            },
            passed: 100,
        };
        published.answer_time(ask(Request::Time), state, Some(&usage), 1_000_000_000);
        (1..LINES)
            .filter(|n| !is_empty(*n, &published))
            .map(|n| {
                let mut line = TextLine::new();
                write(n, &published, &mut line);
                assert!(!line.as_bytes().is_empty(), "{n}");
                String::from_utf8(line.as_bytes().to_vec()).unwrap()
            })
            .collect()
    }

    #[test]
    fn everything_about_a_vcpu_is_said() {
        let mut stats = ExitStats::new(0);
        for n in 0..12 {
            stats.count(ExitClass::Hvc, n * 100, n * 100 + 10, 0x5000 + n, 9);
        }
        let text = report(State::On, &stats);
        assert_eq!(
            text[..5],
            [
                "  cpu time: ready          fair weight 2",
                "  time ran=25 of=100 stolen=0 longest=0",
                "  time turns=3 overruns=0",
                "  pc=0x40080000 spsr=0x3c5 (EL1h D A I F)",
                "  x0=0x0  x1=0x1  x2=0x2",
            ]
        );
        let all = text.join("\n");
        for n in 0..31 {
            assert!(all.contains(&format!("  x{n}={n:#x}")), "x{n}");
        }
        for (n, name) in EL1.iter().enumerate() {
            assert!(
                all.contains(&format!("  {name}={:#x}", 0x100 + n)),
                "{name}"
            );
        }
        for line in [
            "  virtual timer: ctl=0x1 cval=0x77 (due in 40 ticks)",
            "  physical timer: ctl=0x0 cval=0x0 (off)",
            "  interrupts: pmr=0xf8 running=none groups: interface=0x2 distributor=0x2",
            "  pending: 27 (on, group 1, 0xa0) 45 (off, group 0, 0x0)",
            "  last exits, newest first:",
        ] {
            assert!(text.iter().any(|said| said == line), "{line}");
        }
        assert!(all.contains("  hvc                12         10"), "{all}");
        assert!(all.contains("  all 12 exits, guest 990 of 1110 cycles"));
        assert_eq!(all.matches("    hvc          pc=").count(), SHOWN);
        assert!(all.contains("    hvc          pc=0x500b syndrome=0x9 at=1110"));
    }

    #[test]
    fn a_vcpu_that_is_off_shows_no_registers() {
        for state in [State::Off, State::Stopped, State::Starting] {
            let text = report(state, &ExitStats::new(0));
            assert_eq!(text.len(), 3, "but CPU time: {text:?}");
        }
        assert!(report(State::Paused, &ExitStats::new(0)).len() > 15);
    }

    #[test]
    fn no_line_is_cut() {
        let mut stats = ExitStats::new(0);
        for n in 0..20 {
            stats.count(ExitClass::FetchAbort, 0, u64::MAX >> 20, u64::MAX, n);
        }
        for line in report(State::On, &stats) {
            // Including the label and the line end.
            assert!(line.len() + "[monitor] \r\n".len() <= mux::LINE, "{line}");
        }
    }
}

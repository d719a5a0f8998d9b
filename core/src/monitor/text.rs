//! The monitor's lines about a vCPU, by number, so that each is made when there is room for it.

use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::NAME;

use crate::report;
use crate::text::Line;

use super::diagnosis::Diagnosis;
use super::snapshot::{EL1, EL1_COUNT, Published, Snapshot, State, Timer};

/// A line that the monitor says.
pub type Said = Line<128>;

/// Which vCPU a report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Name of its VM, padded with 0.
    pub name: [u8; NAME],
    /// Its number in the VM.
    pub vcpu: u64,
    /// Index of its pCPU.
    pub pcpu: u64,
}

impl Subject {
    /// Starts a line about it.
    pub fn begin(&self, line: &mut Said) {
        line.name(&self.name)
            .text(" vcpu ")
            .decimal(self.vcpu)
            .text(" on pcpu ")
            .decimal(self.pcpu)
            .text(": ");
    }
}

const PER_LINE: usize = 3;
const PC: usize = 1;
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
/// Last exits that are shown.
const SHOWN: usize = 8;
/// Lines of a report about a vCPU; some may be empty.
pub const LINES: usize = LAST + 1 + SHOWN;

/// Writes line `n` of a report; empty where there is nothing to say.
pub fn write(
    n: usize,
    subject: &Subject,
    diagnosis: &Diagnosis,
    published: &Published,
    line: &mut Said,
) {
    let snapshot = published.snapshot();
    // A vCPU that is not on has no registers.
    let is_on = matches!(State::of(snapshot.state), State::On | State::Paused);
    match n {
        0 => {
            subject.begin(line);
            diagnosis.write(snapshot.frequency, line);
        }
        PC..HEADINGS if is_on => registers(n, &snapshot, line),
        _ if published.totals().exits == 0 => {}
        HEADINGS => {
            line.text(report::HEADINGS);
        }
        CLASSES..TOTALS => {
            if let Some(class) = ExitClass::ALL.get(n.wrapping_sub(CLASSES)) {
                let elapsed = published.totals().elapsed;
                report::row(*class, &published.class(*class), elapsed, line);
            }
        }
        TOTALS => {
            let sums = published.totals();
            report::totals(sums.exits, sums.guest, sums.elapsed, line);
        }
        LAST => {
            line.text("  last exits, newest first:");
        }
        n if n > LAST => {
            if let Some(exit) = published.last(n.wrapping_sub(LAST).wrapping_sub(1)) {
                report::last_exit(&exit, line);
            }
        }
        _ => {}
    }
}

fn registers(n: usize, snapshot: &Snapshot, line: &mut Said) {
    match n {
        PC => place(snapshot, line),
        GENERAL..REGISTERS => {
            let first = n.wrapping_sub(GENERAL).wrapping_mul(PER_LINE);
            let row = snapshot.x.get(first..).unwrap_or(&[]).iter();
            for (number, value) in row.take(PER_LINE).enumerate() {
                let number = first.wrapping_add(number) as u64;
                line.text("  x").decimal(number).byte(b'=').hex(*value);
            }
        }
        REGISTERS..VIRTUAL => {
            let first = n.wrapping_sub(REGISTERS).wrapping_mul(PER_LINE);
            let names = EL1.get(first..).unwrap_or(&[]).iter();
            let values = snapshot.el1.get(first..).unwrap_or(&[]);
            for (name, value) in names.zip(values).take(PER_LINE) {
                line.text("  ").text(name).byte(b'=').hex(*value);
            }
        }
        VIRTUAL => timer("virtual", &snapshot.virtual_timer, line),
        PHYSICAL => timer("physical", &snapshot.physical_timer, line),
        GATE => {
            let gate = &snapshot.gate;
            line.text("  interrupts: pmr=").hex(gate.mask);
            if gate.running > 0xff {
                line.text(" running=none");
            } else {
                line.text(" running=").hex(gate.running);
            }
            line.text(" groups: interface=")
                .hex(gate.groups)
                .text(" distributor=")
                .hex(gate.forwarded);
        }
        _ => {
            line.text("  pending:");
            for one in snapshot.pending.iter().filter(|one| one.is_some()) {
                line.byte(b' ').decimal(one.intid()).text(" (");
                line.text(if one.is_enabled() { "on" } else { "off" });
                line.text(", group ").decimal(one.group());
                line.text(", ").hex(one.priority()).byte(b')');
            }
            if !snapshot.pending.iter().any(|one| one.is_some()) {
                line.text(" nothing");
            }
        }
    }
}

/// Where the vCPU is, and PSTATE.
fn place(snapshot: &Snapshot, line: &mut Said) {
    line.text("  pc=").hex(snapshot.sample.pc);
    line.text(" spsr=").hex(snapshot.spsr).text(" (");
    line.text(match snapshot.spsr & 0x1f {
        0 => "EL0",
        4 => "EL1t",
        5 => "EL1h",
        0x10..=0x1f => "AArch32",
        _ => "?",
    });
    for (bit, name) in [(9, " D"), (8, " A"), (7, " I"), (6, " F")] {
        if snapshot.spsr >> bit & 1 != 0 {
            line.text(name);
        }
    }
    line.byte(b')');
}

fn timer(name: &str, timer: &Timer, line: &mut Said) {
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
    use crate::monitor::diagnosis::Activity;
    use crate::monitor::snapshot::{Gate, Pending, Sample, Wish};
    use crate::stats::ExitStats;
    use std::{format, string::String, vec::Vec};

    fn report(state: State, stats: &ExitStats) -> Vec<String> {
        let published = Published::new();
        published.ask(1, Wish::All);
        let mut snapshot = Snapshot {
            state: state as u64,
            sample: Sample {
                pc: 0x4008_0000,
                ..Sample::default()
            },
            spsr: 0x3c5,
            x: core::array::from_fn(|n| n as u64),
            el1: core::array::from_fn(|n| 0x100 + n as u64),
            virtual_timer: Timer {
                control: 1,
                ahead: 40,
                compare: 0x77,
            },
            gate: Gate {
                mask: 0xf8,
                running: 0x100,
                groups: 2,
                forwarded: 2,
                fiq: 1,
            },
            ..Snapshot::default()
        };
        snapshot.pending[0] = Pending::new(27, true, 1, 0xa0);
        snapshot.pending[1] = Pending::new(45, false, 0, 0);
        let question = published.question(1).unwrap();
        published.answer_all(question, &snapshot, stats);
        let mut name = [0; NAME];
        name[..5].copy_from_slice(b"linux");
        let subject = Subject {
            name,
            vcpu: 2,
            pcpu: 1,
        };
        let diagnosis = Diagnosis::Does(Activity::Runs);
        (0..LINES)
            .map(|n| {
                let mut line = Said::new();
                write(n, &subject, &diagnosis, &published, &mut line);
                String::from_utf8(line.as_bytes().to_vec()).unwrap()
            })
            .filter(|line| !line.is_empty())
            .collect()
    }

    #[test]
    fn everything_about_a_vcpu_is_said() {
        let mut stats = ExitStats::new(0);
        for n in 0..12 {
            stats.count(ExitClass::Hvc, n * 100, n * 100 + 10, 0x5000 + n, 9);
        }
        let text = report(State::On, &stats);
        assert_eq!(text[0], "linux vcpu 2 on pcpu 1: runs");
        assert_eq!(text[1], "  pc=0x40080000 spsr=0x3c5 (EL1h D A I F)");
        assert_eq!(text[2], "  x0=0x0  x1=0x1  x2=0x2");
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
            assert_eq!(text, ["linux vcpu 2 on pcpu 1: runs"]);
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
            // With the label and the line end.
            assert!(line.len() + "[monitor] \r\n".len() <= 128, "{line}");
        }
    }
}

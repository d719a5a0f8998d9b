//! Exit statistics of a vCPU as EL2 prints them: a header line, then one row for each class.

use bulkhead_abi::console::{self, ExitsOf, Ran, ServiceTime, Totals, Turns};
use serde::{Deserialize, Serialize};

/// Exits of one class. Times are cycles of PMCCNTR_EL0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassRow {
    /// Name of the exit class.
    pub class: String,
    /// Number of exits.
    pub count: u64,
    /// Shortest.
    pub min: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Longest.
    pub max: u64,
    /// All together.
    pub total: u64,
    /// Standard deviation.
    pub stddev: f64,
    /// Share of the time that EL2 spent on this vCPU, in percent.
    pub percent: f64,
}

impl ClassRow {
    /// Reads `<class> count min mean max total stddev %time`; further columns are left alone. `None`
    /// for everything else, for instance the row of column titles.
    pub fn parse(text: &str) -> Option<Self> {
        let row = console::ClassRow::<f64>::parse(text)?;
        Some(Self {
            class: row.class.name().to_owned(),
            count: row.count,
            min: row.min,
            mean: row.mean,
            max: row.max,
            total: row.total,
            stddev: row.deviation,
            percent: row.share.hundredths() as f64 / 100.0,
        })
    }
}

/// Waits of about the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// They were shorter than this, and not shorter than half of it; none: longer than all others.
    pub below_ns: Option<u64>,
    /// Number of waits.
    pub count: u64,
}

/// CPU time of a vCPU on a pCPU that it does not have to itself. Times in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// It ran.
    pub ran_ns: u64,
    /// Since it came to its pCPU.
    pub of_ns: u64,
    /// It was ready and did not run.
    pub stolen_ns: u64,
    /// Longest wait from being woken to running.
    pub longest_ns: u64,
    /// Turns.
    pub turns: u64,
    /// Its budget or cap was used up while it had more to do.
    pub overruns: u64,
    /// Times that it was moved to another pCPU.
    pub moves: u64,
    /// Waits from being woken to running, the short ones first.
    pub waits: Vec<Waits>,
}

impl CpuTime {
    /// Takes a line of EL2's into what earlier ones said; `false` if it is none about CPU time.
    fn take(into: &mut Option<Self>, text: &str) -> bool {
        let (ran, turns, waits) = (
            Ran::parse(text),
            Turns::parse(text),
            console::waits(text).map(Vec::from_iter),
        );
        if ran.is_none() && turns.is_none() && waits.is_none() {
            return false;
        }
        let time = into.get_or_insert_default();
        if let Some(ran) = ran {
            time.ran_ns = ran.ran;
            time.of_ns = ran.of;
            time.stolen_ns = ran.stolen;
            time.longest_ns = ran.longest;
        }
        if let Some(turns) = turns {
            time.turns = turns.turns;
            time.overruns = turns.overruns;
            time.moves = turns.moves;
        }
        let waits = waits.into_iter().flatten();
        time.waits.extend(waits.map(|waits| Waits {
            below_ns: waits.below,
            count: waits.count,
        }));
        true
    }

    /// Share of its pCPU that it had, in percent.
    pub fn percent(&self) -> f64 {
        100.0 * self.ran_ns as f64 / self.of_ns.max(1) as f64
    }
}

/// Exits of one vCPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExitTable {
    /// Name of the VM.
    pub vm: String,
    /// Number of the vCPU in its VM.
    pub vcpu: u16,
    /// One row for each class that occurred.
    pub rows: Vec<ClassRow>,
    /// Cycles in which the vCPU was on, up to its last exit; 0 if the table has no last line.
    pub elapsed: u64,
    /// Cycles of those in which it was away from its pCPU; 0 if the table has no last line.
    #[serde(skip)]
    pub away: u64,
    /// Its CPU time on a pCPU that it does not have to itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<CpuTime>,
    /// What the VM's virtio devices have had of EL2's service thread: with its first vCPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<InService>,
}

/// What virtio devices have had of EL2's service thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InService {
    /// Slices.
    pub slices: u64,
    /// Their time.
    pub ns: u64,
    /// The longest of them.
    pub longest_ns: u64,
}

impl ExitTable {
    /// Reads the header `exits vm=<name> vcpu=<n>`; further words are left alone.
    pub fn header(text: &str) -> Option<Self> {
        let of = ExitsOf::parse(text)?;
        Some(Self {
            vm: of.vm.as_str().to_owned(),
            vcpu: of.vcpu.try_into().ok()?,
            rows: Vec::new(),
            elapsed: 0,
            away: 0,
            time: None,
            service: None,
        })
    }

    /// Takes a row behind the header.
    pub fn take(&mut self, text: &str) {
        if CpuTime::take(&mut self.time, text) {
            return;
        }
        if let Some(service) = ServiceTime::parse(text) {
            self.service = Some(InService {
                slices: service.slices,
                ns: service.ns,
                longest_ns: service.longest,
            });
            return;
        }
        self.rows.extend(ClassRow::parse(text));
        if let Some(totals) = Totals::parse(text) {
            (self.elapsed, self.away) = (totals.elapsed, totals.away);
        }
    }

    /// All exits.
    pub fn exits(&self) -> u64 {
        self.rows.iter().map(|row| row.count).sum()
    }

    /// Returns the number of exits of a class.
    pub fn count(&self, class: &str) -> u64 {
        let of_class = self.rows.iter().filter(|row| row.class == class);
        of_class.map(|row| row.count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_seven_numbers_and_titles_are_no_row() {
        let row = ClassRow::parse("  vtimer-irq 1000 180 201.5 950 201500 12.25 61.3%").unwrap();
        assert_eq!(row.class, "vtimer-irq");
        assert_eq!(
            (row.count, row.min, row.max, row.total),
            (1000, 180, 950, 201_500)
        );
        assert_eq!((row.mean, row.stddev, row.percent), (201.5, 12.25, 61.3));
        assert_eq!(
            ClassRow::parse("  class count min mean max total stddev %time"),
            None
        );
        assert_eq!(ClassRow::parse("  hvc 1 2 3"), None);
        assert_eq!(ClassRow::parse(""), None);
    }

    #[test]
    fn a_header_names_vm_and_vcpu() {
        let table = ExitTable::header("exits vm=linux vcpu=0 (cycles)").unwrap();
        assert_eq!((table.vm.as_str(), table.vcpu), ("linux", 0));
        assert_eq!(ExitTable::header("exits vm=linux"), None);
        assert_eq!(ExitTable::header("vm linux stopped: powered off"), None);
    }

    #[test]
    fn time_on_a_shared_pcpu_is_read_from_its_rows() {
        let mut table = ExitTable::header("exits vm=a vcpu=0").unwrap();
        table.take("  hvc 1 180 201.5 950 201500 12.25 61.3%");
        assert_eq!(table.time, None, "a vCPU that has its pCPU to itself");
        for row in [
            "  time ran=250 of=1000 stolen=500 longest=64 later=1",
            "  time turns=7 overruns=2",
            "  waits 16=3 32=1 2048=9",
            "  waits more=4",
            "  service slices=40 ns=90000 longest=3000",
        ] {
            table.take(row);
        }
        let service = table.service.expect("a VM with devices");
        assert_eq!((service.slices, service.ns), (40, 90_000));
        assert_eq!(service.longest_ns, 3000);
        let time = table.time.unwrap();
        assert_eq!((time.ran_ns, time.of_ns, time.stolen_ns), (250, 1000, 500));
        assert_eq!((time.longest_ns, time.turns, time.overruns), (64, 7, 2));
        let waits: Vec<_> = time.waits.iter().map(|w| (w.below_ns, w.count)).collect();
        assert_eq!(
            waits,
            [(Some(16), 3), (Some(32), 1), (Some(2048), 9), (None, 4)]
        );
        assert_eq!(time.percent(), 25.0);
        assert_eq!(table.rows.len(), 1);
    }

    #[test]
    fn the_last_line_has_the_cycles_on_and_away() {
        let mut table = ExitTable::default();
        table.take(
            "  all 17 exits, guest 1200 of 1500 cycles (80.0%), away 200 (13.33%), per s 11333333",
        );
        assert_eq!((table.elapsed, table.away), (1500, 200));
        table.take("  hvc 1 180 201.5 950 201500 12.25 61.3%");
        assert_eq!((table.elapsed, table.away), (1500, 200));
    }
}

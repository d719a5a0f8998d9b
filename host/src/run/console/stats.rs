//! Exit statistics of a vCPU as EL2 prints them: a header line, then one row for each class.

use serde::Serialize;

/// Exits of one class. Times are cycles of PMCCNTR_EL0.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassRow {
    /// Name of the exit class.
    pub class: String,
    /// How many exits.
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
        let mut words = text.split_ascii_whitespace();
        let class = words.next()?.to_owned();
        let mut whole = || words.next();
        Some(Self {
            class,
            count: whole()?.parse().ok()?,
            min: whole()?.parse().ok()?,
            mean: whole()?.parse().ok()?,
            max: whole()?.parse().ok()?,
            total: whole()?.parse().ok()?,
            stddev: whole()?.parse().ok()?,
            percent: whole()?.trim_end_matches('%').parse().ok()?,
        })
    }
}

/// Exits of one vCPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ExitTable {
    /// Name of the VM.
    pub vm: String,
    /// Number of the vCPU in its VM.
    pub vcpu: u16,
    /// One row for each class that occurred.
    pub rows: Vec<ClassRow>,
    /// Cycles in which the vCPU was on, up to its last exit; 0 if the table has no last line.
    pub elapsed: u64,
}

impl ExitTable {
    /// Reads the header `exits vm=<name> vcpu=<n>`; further words are left alone.
    pub fn header(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix("exits ")?.split_ascii_whitespace();
        Some(Self {
            vm: words.next()?.strip_prefix("vm=")?.to_owned(),
            vcpu: words.next()?.strip_prefix("vcpu=")?.parse().ok()?,
            rows: Vec::new(),
            elapsed: 0,
        })
    }

    /// Reads the elapsed cycles of the last line, `all <n> exits, guest <n> of <n> cycles (...`.
    pub fn elapsed(text: &str) -> Option<u64> {
        let (_, rest) = text.trim_start().strip_prefix("all ")?.split_once(" of ")?;
        rest.split_once(" cycles")?.0.parse().ok()
    }

    /// All exits.
    pub fn exits(&self) -> u64 {
        self.rows.iter().map(|row| row.count).sum()
    }

    /// How many exits of a class there were.
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
    fn the_last_line_has_the_elapsed_cycles() {
        let line = "  all 17 exits, guest 1200 of 1500 cycles (80.0%), descheduled 0";
        assert_eq!(ExitTable::elapsed(line), Some(1500));
        assert_eq!(
            ExitTable::elapsed("  hvc 1 180 201.5 950 201500 12.25 61.3%"),
            None
        );
    }
}

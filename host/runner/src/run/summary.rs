//! Cost of EL2 in a run, by VM and by class of VM: exits, CPU time, waits of vCPUs for their pCPUs. From EL2's reports
//! of VMs that have stopped.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::columns::{Column, Columns};

use super::console::{CpuTime, ExitTable, InService, Waits};

/// Columns of exits. The least widths keep still what `demo` shows while it runs.
const EXITS: [Column; 5] = [
    Column::Left(24),
    Column::Right(8),
    Column::Right(9),
    Column::Right(9),
    Column::Right(9),
];
/// Columns of the CPU time of vCPUs that share a pCPU, likewise.
const TIMES: [Column; 6] = [
    Column::Left(24),
    Column::Right(8),
    Column::Right(9),
    Column::Right(8),
    Column::Right(12),
    Column::Left(0),
];
/// Columns of the time in the service thread, likewise.
const SERVICE: [Column; 4] = [
    Column::Left(24),
    Column::Right(8),
    Column::Right(9),
    Column::Right(9),
];

/// Exits of one class, added up over vCPUs. Times are cycles of PMCCNTR_EL0.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Exits {
    /// Name of the exit class.
    pub class: String,
    /// Number of exits.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Longest.
    pub max: u64,
    /// Share of the time in which the vCPUs were on, in percent.
    pub percent: f64,
}

/// Some vCPUs together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Group {
    /// Name of the VM, or of the class of VMs.
    pub name: String,
    /// The class of the VM.
    pub class: String,
    /// vCPUs.
    pub vcpus: u64,
    /// All exits.
    pub all: Exits,
    /// By exit class.
    pub exits: Vec<Exits>,
    /// CPU time of the vCPUs that did not have their pCPU to themselves.
    pub time: Option<CpuTime>,
    /// What its virtio devices have had of EL2's service thread; summed up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<InService>,
}

impl Group {
    /// A VM, for a table.
    fn title(&self) -> String {
        format!("{} ({})", self.name, self.class)
    }
}

/// Cost of EL2 in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunSummary {
    /// By VM, in the order in which they stopped.
    pub vms: Vec<Group>,
    /// By class of VM.
    pub classes: Vec<Group>,
}

impl RunSummary {
    /// Adds up what EL2 reported; `classes`: class of each VM by name.
    pub fn new(tables: &[ExitTable], classes: &BTreeMap<String, String>) -> Self {
        let class_of = |table: &ExitTable| {
            let class = classes.get(&table.vm);
            class.map_or("unknown", String::as_str).to_owned()
        };
        let groups = |name: &dyn Fn(&ExitTable) -> String| {
            let mut names: Vec<String> = Vec::new();
            for table in tables {
                if !names.contains(&name(table)) {
                    names.push(name(table));
                }
            }
            let of = |wanted: String| {
                let own: Vec<_> = tables.iter().filter(|t| name(t) == wanted).collect();
                let class = own
                    .first()
                    .map_or_else(String::new, |table| class_of(table));
                group(wanted, class, &own)
            };
            names.into_iter().map(of).collect()
        };
        Self {
            vms: groups(&|table| table.vm.clone()),
            classes: groups(&class_of),
        }
    }

    /// Whether nothing was reported.
    pub fn is_empty(&self) -> bool {
        self.vms.is_empty()
    }

    /// For a terminal or a log, each line indented.
    pub fn text(&self) -> String {
        let head = ["exits, in cycles", "count", "mean", "max", "% of time"];
        let mut exits = Columns::new(&EXITS);
        exits.row(head.map(str::to_owned));
        for vm in &self.vms {
            exits.row(exits_row(vm.title(), &vm.all));
            for class in &vm.exits {
                exits.row(exits_row(format!("  {}", class.class), class));
            }
        }
        for class in &self.classes {
            exits.row(exits_row(format!("all {}", class.name), &class.all));
        }
        let text = exits.text("  ") + &self.in_service();
        if self.vms.iter().all(|vm| vm.time.is_none()) {
            return text;
        }
        let head = [
            "on shared CPUs",
            "had %",
            "stolen %",
            "overruns",
            "longest wait",
            "   waits: shorter than",
        ];
        let mut times = Columns::new(&TIMES);
        times.row(head.map(str::to_owned));
        let vms = self.vms.iter().map(|vm| (vm.title(), vm));
        let classes = self.classes.iter();
        let classes = classes.map(|class| (format!("all {}", class.name), class));
        for (name, group) in vms.chain(classes) {
            if let Some(time) = &group.time {
                times.row(time_row(name, time));
            }
        }
        text + &times.text("  ")
    }

    /// What each VM's devices have had of the service thread; empty if no VM has devices.
    fn in_service(&self) -> String {
        let head = ["in EL2's service thread", "slices", "time", "longest"];
        let mut columns = Columns::new(&SERVICE);
        columns.row(head.map(str::to_owned));
        let mut any = false;
        for vm in &self.vms {
            let Some(service) = vm.service else { continue };
            any = true;
            columns.row([
                vm.title(),
                service.slices.to_string(),
                duration(service.ns),
                duration(service.longest_ns),
            ]);
        }
        if any {
            columns.text("  ")
        } else {
            String::new()
        }
    }
}

/// Adds up tables.
fn group(name: String, class: String, tables: &[&ExitTable]) -> Group {
    let elapsed: u64 = tables.iter().map(|table| table.elapsed).sum();
    let mut sums: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    for row in tables.iter().flat_map(|table| &table.rows) {
        for class in [row.class.as_str(), ""] {
            let (count, total, max) = sums.entry(class).or_default();
            *count += row.count;
            *total += row.total;
            *max = row.max.max(*max);
        }
    }
    let exits = |(class, (count, total, max)): (&str, (u64, u64, u64))| Exits {
        class: class.to_owned(),
        count,
        mean: total as f64 / count.max(1) as f64,
        max,
        percent: 100.0 * total as f64 / elapsed.max(1) as f64,
    };
    let all = exits(("all", sums.remove("").unwrap_or_default()));
    let mut by_class: Vec<Exits> = sums.into_iter().map(exits).collect();
    by_class.sort_by(|a, b| b.percent.total_cmp(&a.percent));
    let times = tables.iter().filter_map(|table| table.time.as_ref());
    let services = tables.iter().filter_map(|table| table.service);
    Group {
        name,
        class,
        vcpus: tables.len() as u64,
        all,
        exits: by_class,
        time: times.cloned().reduce(|sum, time| add(sum, &time)),
        service: services.reduce(|sum, other| InService {
            slices: sum.slices + other.slices,
            ns: sum.ns + other.ns,
            longest_ns: sum.longest_ns.max(other.longest_ns),
        }),
    }
}

/// Adds up what two vCPUs had.
fn add(mut sum: CpuTime, other: &CpuTime) -> CpuTime {
    sum.ran_ns += other.ran_ns;
    sum.of_ns += other.of_ns;
    sum.stolen_ns += other.stolen_ns;
    sum.longest_ns = sum.longest_ns.max(other.longest_ns);
    sum.turns += other.turns;
    sum.overruns += other.overruns;
    for waits in &other.waits {
        match sum
            .waits
            .iter_mut()
            .find(|own| own.below_ns == waits.below_ns)
        {
            Some(own) => own.count += waits.count,
            None => sum.waits.push(*waits),
        }
    }
    // What is longer than all comes last.
    sum.waits
        .sort_by_key(|waits| waits.below_ns.unwrap_or(u64::MAX));
    sum
}

fn exits_row(name: String, exits: &Exits) -> [String; 5] {
    [
        name,
        exits.count.to_string(),
        format!("{:.0}", exits.mean),
        exits.max.to_string(),
        format!("{:.3}", exits.percent),
    ]
}

fn time_row(name: String, time: &CpuTime) -> [String; 6] {
    let waits = time.waits.iter();
    let waits: Vec<_> = waits.map(|w| format!("{} {}", bound(w), w.count)).collect();
    let stolen = 100.0 * time.stolen_ns as f64 / time.of_ns.max(1) as f64;
    [
        name,
        format!("{:.2}", time.percent()),
        format!("{stolen:.2}"),
        time.overruns.to_string(),
        duration(time.longest_ns),
        format!("   {}", waits.join(", ")),
    ]
}

fn bound(waits: &Waits) -> String {
    waits.below_ns.map_or_else(|| "any".to_owned(), duration)
}

/// Nanoseconds in a unit in which they are short.
fn duration(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(vm: &str, vcpu: u16, lines: &[&str]) -> ExitTable {
        let mut table = ExitTable::header(&format!("exits vm={vm} vcpu={vcpu}")).unwrap();
        lines.iter().for_each(|line| table.take(line));
        table
    }

    fn summary() -> RunSummary {
        let tables = [
            table(
                "a",
                0,
                &[
                    "  hvc 2 10 20 30 40 5 4.00 7",
                    "  uart 1 60 60 60 60 0 6.00 7",
                    "  all 3 exits, guest 900 of 1000 cycles ( 90.00%), away 0 (  0.00%), per s 3000000",
                    "  time ran=25 of=100 stolen=50 longest=9",
                    "  time turns=4 overruns=1",
                    "  waits 16=3",
                    "  waits more=1",
                    "  service slices=40 ns=90000 longest=3000",
                ],
            ),
            table(
                "a",
                1,
                &[
                    "  hvc 2 100 100 100 200 0 20.00 7",
                    "  all 2 exits, guest 800 of 1000 cycles ( 80.00%), away 0 (  0.00%), per s 3000000",
                    "  time ran=75 of=100 stolen=10 longest=20000",
                    "  time turns=4 overruns=2",
                    "  waits 16=1 32768=2",
                ],
            ),
            table(
                "b",
                0,
                &[
                    "  vtimer-irq 5 1 1 1 5 0 0.50 7",
                    "  all 5 exits, guest 995 of 1000 cycles ( 99.50%), away 0 (  0.00%), per s 3000000",
                ],
            ),
        ];
        let classes = [("a", "general"), ("b", "hard-realtime")];
        let classes = classes.map(|(vm, class)| (vm.to_owned(), class.to_owned()));
        RunSummary::new(&tables, &BTreeMap::from(classes))
    }

    #[test]
    fn vcpus_are_added_up_by_vm_and_by_class() {
        let summary = summary();
        let names = |groups: &[Group]| -> Vec<_> {
            groups.iter().map(|g| (g.name.clone(), g.vcpus)).collect()
        };
        assert_eq!(names(&summary.vms), [("a".into(), 2), ("b".into(), 1)]);
        assert_eq!(
            names(&summary.classes),
            [("general".into(), 2), ("hard-realtime".into(), 1)]
        );
        let a = &summary.vms[0];
        assert_eq!((a.all.count, a.all.mean, a.all.max), (5, 60.0, 100));
        assert_eq!(a.all.percent, 15.0);
        let hvc = &a.exits[0];
        assert_eq!((hvc.class.as_str(), hvc.count, hvc.mean), ("hvc", 4, 60.0));
        assert_eq!((hvc.max, hvc.percent), (100, 12.0));
        let time = a.time.as_ref().unwrap();
        assert_eq!((time.percent(), time.overruns), (50.0, 3));
        assert_eq!(time.longest_ns, 20_000);
        let waits: Vec<_> = time.waits.iter().map(|w| (w.below_ns, w.count)).collect();
        assert_eq!(waits, [(Some(16), 4), (Some(32768), 2), (None, 1)]);
        assert_eq!(summary.vms[1].time, None);
    }

    #[test]
    fn the_table_has_a_row_for_each_and_the_picture_a_bar() {
        let summary = summary();
        let text = summary.text();
        let rows: Vec<Vec<_>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows[1], ["a", "(general)", "5", "60", "100", "15.000"]);
        assert_eq!(rows[2], ["hvc", "4", "60", "100", "12.000"]);
        assert_eq!(rows[7], ["all", "hard-realtime", "5", "1", "1", "0.500"]);
        assert!(
            text.contains(
                " 50.00      30.00         3       20.0 us     16 ns 4, 32.8 us 2, any 1"
            ),
            "{text}"
        );
        let served = rows.iter().find(|row| row.get(2) == Some(&"40"));
        assert_eq!(
            served.expect("a has devices")[..],
            ["a", "(general)", "40", "90.0", "us", "3000", "ns"]
        );
        assert!(summary.vms[1].service.is_none(), "b has none");
    }
}

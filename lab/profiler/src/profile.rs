//! Results of the profiler.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The result, as JSON in the file that the configuration names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// All that ran at EL2 in its linked range, idle code included.
    pub total: Cost,
    /// Marked figures, by number: on the CPU of the marks.
    pub figures: BTreeMap<u64, Figure>,
    /// The same on all other CPUs, where marks bound what all of them do.
    #[serde(default)]
    pub elsewhere: BTreeMap<u64, Figure>,
    /// Instructions of guests at EL1 and EL0, by figure and by VMID, where marks bound what all CPUs do.
    #[serde(default)]
    pub guests: BTreeMap<u64, BTreeMap<u64, u64>>,
    /// Exits by cause: `sync EC 0x16`, `irq 27`, `fiq`, `serror`.
    pub exits: BTreeMap<String, Exits>,
    /// Number of exits by their instructions, of each kind.
    pub lengths: BTreeMap<String, BTreeMap<u64, u64>>,
    /// The same on the CPU whose timer is watched.
    #[serde(default)]
    pub watched: BTreeMap<String, BTreeMap<u64, u64>>,
    /// The exit with most instructions.
    pub longest: Option<Longest>,
    /// Interrupts one behind the other, between which no guest has executed anything: with most instructions together.
    #[serde(default)]
    pub longest_row: Option<Row>,
    /// From the first instruction at EL2 to the first guest.
    pub boot: Option<Boot>,
    /// Periods of the watched timer.
    pub periods: Option<Periods>,
}

/// Numbers of executed instructions, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// All instructions.
    pub instructions: u64,
    /// `MRS` and `MSR`.
    pub sysregs: u64,
    /// `DSB`, `DMB`, `ISB` and `SB`.
    pub barriers: u64,
    /// Load and store instructions; a pair counts once.
    pub memory: u64,
}

impl Cost {
    /// Adds `other`.
    pub fn add(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.sysregs += other.sysregs;
        self.barriers += other.barriers;
        self.memory += other.memory;
    }
}

/// Work of EL2 between two marks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figure {
    /// All that EL2 executed.
    pub cost: Cost,
    /// Exits taken.
    pub exits: u64,
    /// Instructions by function.
    pub symbols: BTreeMap<String, u64>,
    /// Executions by linked address.
    pub addresses: BTreeMap<u64, u64>,
}

/// Exits of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exits {
    /// Number of exits.
    pub count: u64,
    /// Instructions of all together.
    pub total: u64,
    /// Instructions of the longest.
    pub max: u64,
}

/// The exit with most instructions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Longest {
    /// Its cause, as in [`Profile::exits`].
    pub kind: String,
    /// Cost of what it executed.
    pub cost: Cost,
    /// ELR_EL2 at its start: where the guest was.
    pub guest_pc: u64,
    /// ESR_EL2 at its start; says nothing for interrupts.
    pub esr: u64,
    /// The CPU, as the configuration tells CPUs apart.
    pub cpu: u64,
    /// Functions in the order in which it went through them.
    pub path: Vec<Visit>,
}

/// Exits one behind the other, which to a guest are one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Instructions of all together.
    pub instructions: u64,
    /// Their causes, as in [`Profile::exits`], with the instructions of each.
    pub exits: Vec<(String, u64)>,
}

/// A stay in one function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Visit {
    /// Its name.
    pub symbol: String,
    /// Instructions until another function came.
    pub instructions: u64,
}

/// The way to the first guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// Whether a guest was entered; if not, the rest counts to the end of the run.
    pub reached_guest: bool,
    /// Cost of what was executed.
    pub cost: Cost,
    /// The same by function.
    pub symbols: BTreeMap<String, Cost>,
    /// Executions by linked address.
    #[serde(default)]
    pub addresses: BTreeMap<u64, u64>,
}

/// EL2 in the periods of a timer on one CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Periods {
    /// Whole periods seen.
    pub count: u64,
    /// Most EL2 instructions in one.
    pub max: u64,
    /// Exits in all of them together.
    pub exits: u64,
    /// Number of periods by EL2 instructions in them.
    pub histogram: BTreeMap<u64, u64>,
}

//! Configuration of the profiler: addresses of the EL2 image and of the guest's marks.

use std::path::PathBuf;

use bulkhead_plugin::Symbol;
use serde::{Deserialize, Serialize};

/// Configuration, as JSON in the file that the plugin's `config=` names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Path of the file to which the [`crate::Profile`] is written when QEMU ends.
    pub output: PathBuf,
    /// First address of EL2's code as it is linked.
    pub text_start: u64,
    /// First address behind it.
    pub text_end: u64,
    /// Address of the exception vectors; exits begin at its lower-EL half.
    pub vectors: u64,
    /// Address of the vectors of a CPU that guards EL2's boundary, which go on at the others.
    #[serde(default)]
    pub guarded: Option<u64>,
    /// Addresses at which an exit ends besides `ERET`: code of a pCPU that has nothing to run.
    pub idle: Vec<u64>,
    /// Addresses at which EL2 looks for something more urgent, or goes on with the work of another vCPU: what was
    /// begun ends, and a slice begins.
    pub looks: Vec<u64>,
    /// Physical address of `text_start`, to count EL2 before its MMU is on.
    pub boot: Option<u64>,
    /// Functions of EL2 for the attribution, by linked address.
    pub symbols: Vec<Symbol>,
    /// Marks in a guest around what is measured.
    pub marks: Option<Marks>,
    /// Key by which CPUs are told apart.
    pub cpus: CpuKey,
    /// Address at which EL2 reads GICC_IAR, which acknowledges an interrupt of a GICv2, in EL2's own addresses.
    pub iar: Option<u64>,
    /// Count by periods of a timer on one CPU.
    pub period: Option<Period>,
}

/// Two functions of a guest that take the number of a figure in x0: what EL2 does from the first call of
/// one to the first of the other is charged to that figure: on the CPU that calls, or on all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Marks {
    /// Address of the function that begins a figure.
    pub begin: u64,
    /// Address of the function that ends it.
    pub end: u64,
    /// Whether a mark on one CPU bounds what all of them do, and what guests execute is counted, too.
    #[serde(default)]
    pub everywhere: bool,
}

/// Key by which CPUs are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CpuKey {
    /// By TPIDR_EL2, which holds another pointer on each pCPU. Right under `-icount`, where QEMU names the
    /// wrong CPU for code that several share.
    Tpidr,
    /// By QEMU's index. Right with one host thread for each CPU.
    Index,
}

/// A timer whose periods are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Period {
    /// The CPU: an index or a value of TPIDR_EL2, as [`Config::cpus`] says.
    pub cpu: u64,
    /// Physical INTID of the timer.
    pub intid: u64,
    /// The guest acknowledges it itself (ICC_IAR1_EL1 at EL1), not EL2.
    pub by_guest: bool,
}

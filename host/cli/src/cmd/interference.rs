//! `bulkhead interference`: what VMs do to each other through the shared cache. The driver performs it.

use std::path::PathBuf;

/// Cores whose caches are modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Caches {
    /// As on a ZCU104
    CortexA53,
    /// As on a Raspberry Pi 4
    CortexA72,
}

/// Measure what VMs do to each other through the shared cache, by a model of caches
#[derive(clap::Args)]
#[command(
    after_help = "Work in the manner of MiBench runs in a VM, alone and beside three VMs that stride through more
than the shared cache has. QEMU has no caches: a plugin models those of four Cortex-A53 (32 KiB
each, 1 MiB shared, TLBs and their walks) or Cortex-A72, for each access that the run makes. Misses
and cycles are the model's, and no hardware's. Two runs give the same numbers. All works take some
ten minutes; with all of them comes the latency of a timer. What Bao has on hardware
stands beside.

Examples:
  bulkhead interference                                   # the table
  bulkhead interference --work qsort-large --json         # one work, as one JSON document
  bulkhead interference --caches cortex-a72               # those of another core
  bulkhead interference --linux                           # the works of a Linux, in ten minutes, too
  bulkhead interference --work susan-small --timer 10000  # a timer of 10 ms beside one work
  bulkhead interference --svg interference.svg            # a picture as well

Exit status: 0 if all was measured; 1 if a run failed, or the model contradicts QEMU; 2 if there is
no such work."
)]
pub struct Args {
    /// Only this work; may be given several times
    #[arg(long, value_name = "NAME")]
    pub work: Vec<String>,
    /// The kernels of that set in a program of Linux, beside the same VMs, instead of on bare metal
    #[arg(long, conflicts_with = "work")]
    pub linux: bool,
    /// Measure the latency of a timer with this period in microseconds, too; with all works 500. 10000 takes ten minutes
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub timer: Option<u32>,
    /// Whose caches
    #[arg(long, value_name = "CORE", default_value = "cortex-a53")]
    pub caches: Caches,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Write a picture
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

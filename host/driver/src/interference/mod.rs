//! What VMs do to each other through the shared cache (source S2): work is measured alone and beside three VMs that stride through more than the cache
//! has, by a model of caches that sees every access of the run.

mod run;
mod show;
mod source;

pub use run::{Lab, Latency, PERIOD, Run, Setting, TICKS, WORKS, Work, measure, work};
pub use show::{latencies, svg, table};
pub use source::{BAO, OnHardware};

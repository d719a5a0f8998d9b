//! Counts what EL2 takes of each period of the control loop, with the profiler.

use std::ffi::OsString;

use bulkhead_core::plan::{Plan, rows_of};
use bulkhead_profiler::{CpuKey, Period};
use zerocopy::IntoBytes;

use super::progress::CONTROL;
use super::summary::El2Periods;
use crate::bench::{Attached, Instrument, Program};
use crate::failure::Failure;
use crate::run::System;

/// TPIDR_EL2 of a pCPU: the address of its state in EL2's own map (`el2/src/hw/layout.rs`), where each
/// pCPU has a slot of 2 MiB that starts with its guarded stack.
const fn state_of(pcpu: u64) -> u64 {
    0x20_0100_0000 + 3 * 4096 + (pcpu << 21)
}

/// A count under way.
pub struct El2Count {
    attached: Attached,
}

impl El2Count {
    /// Builds the profiler and tells it to watch the timer of the pCPU on which the loop runs.
    ///
    /// # Errors
    ///
    /// The profiler cannot be built, or the plan has no such VM.
    pub fn prepare(system: &System) -> Result<Self, Failure> {
        let (pcpu, intid) = place(&system.plan).ok_or_else(|| {
            let what = format!("the demo has no VM `{CONTROL}`");
            Failure::input(
                what,
                "its timer is what the demo watches",
                "see systems/demo.toml",
            )
        })?;
        let el2 = Program::read(&system.el2)?;
        let instrument = Instrument {
            el2: &el2,
            boot: None,
            marks: None,
            // The demo runs on the instruction clock, where QEMU's own index is not to be trusted.
            cpus: CpuKey::Tpidr,
            period: Some(Period {
                cpu: state_of(pcpu),
                intid,
            }),
        };
        let attached = instrument.attach(&system.folder)?;
        Ok(Self { attached })
    }

    /// Value of QEMU's `-plugin`.
    pub fn plugin(&self) -> OsString {
        self.attached.argument.clone()
    }

    /// What was counted. There is nothing if QEMU was killed.
    pub fn read(&self) -> Option<El2Periods> {
        let periods = self.attached.profile().ok()?.periods?;
        Some(El2Periods {
            count: periods.count,
            max: periods.max,
            histogram: periods.histogram,
        })
    }
}

/// pCPU of the loop and INTID of its timer.
fn place(plan: &[u8]) -> Option<(u64, u64)> {
    // A vector of bytes need not be aligned as a plan is.
    let words: Vec<u64> = plan
        .chunks_exact(8)
        .map(|chunk| {
            chunk
                .iter()
                .rev()
                .fold(0, |word, &byte| word << 8 | u64::from(byte))
        })
        .collect();
    let plan = Plan::open(words.as_bytes()).ok()?;
    let named = |name: &[u8]| name.split(|byte| *byte == 0).next() == Some(CONTROL.as_bytes());
    let vm = plan.vms.iter().position(|vm| named(&vm.name))?;
    let vcpu = rows_of(plan.vcpus, vm).first()?;
    Some((vcpu.pcpu.into(), plan.header.board.vtimer_intid.into()))
}

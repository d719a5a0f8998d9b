//! Timer that the profiler watches for the periods of a VM.

use bulkhead_abi::plan::InterruptMode;
use bulkhead_core::plan::{Plan, rows_of};
use bulkhead_profiler::Period;
use zerocopy::IntoBytes;

/// TPIDR_EL2 of a pCPU: the address of its state in EL2's own map (`el2/src/hw/layout.rs`), where each
/// pCPU has a block of 2 MiB that starts with its guarded stack.
const fn state_of(pcpu: u64) -> u64 {
    0x20_0100_0000 + 3 * 4096 + (pcpu << 21)
}

/// Address at which EL2 for a GICv2 reads GICC_IAR: in page 272 of the block that all pCPUs share
/// (`el2/src/hw/layout.rs`, `el2/src/hw/gic/v2.rs`).
pub(super) const GICC_IAR: u64 = 0x20_0020_0000 + 272 * 4096 + 0xc;

/// The timer of the first vCPU of a VM; none if the plan has no such VM.
pub fn period_of(plan: &[u8], vm: &str) -> Option<Period> {
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
    let named = |name: &[u8]| name.split(|byte| *byte == 0).next() == Some(vm.as_bytes());
    let vm = plan.vms.iter().position(|vm| named(&vm.name))?;
    let by_guest = plan.vms.get(vm)?.interrupts != InterruptMode::Vgic as u16;
    let vcpu = rows_of(plan.vcpus, vm).first()?;
    Some(Period {
        cpu: state_of(vcpu.pcpu.into()),
        intid: plan.header.board.vtimer_intid.into(),
        by_guest,
    })
}

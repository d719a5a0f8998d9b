//! Timer that the profiler watches for the periods of a VM.

use bulkhead_abi::plan::{InterruptMode, VM_BACKGROUND};
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

/// A plan at an address that is aligned as a plan is.
fn aligned(plan: &[u8]) -> Vec<u64> {
    let chunks = plan.as_chunks().0;
    chunks
        .iter()
        .map(|chunk| u64::from_le_bytes(*chunk))
        .collect()
}

/// The names of the VMs of a plan, and whether each keeps the board on; none if it is none.
pub fn vms_of(plan: &[u8]) -> Vec<(String, bool)> {
    let words = aligned(plan);
    let plan = Plan::open(words.as_bytes());
    let vms = plan.map_or(&[][..], |plan| plan.vms);
    let stays_on = |flags| flags & VM_BACKGROUND == 0;
    let vms = vms.iter();
    vms.map(|row| (text(&row.name), stays_on(row.flags)))
        .collect()
}

fn text(name: &[u8]) -> String {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// The timer of the first vCPU of a VM; none if the plan has no such VM.
pub fn period_of(plan: &[u8], vm: &str) -> Option<Period> {
    let words = aligned(plan);
    let plan = Plan::open(words.as_bytes()).ok()?;
    let vm = plan.vms.iter().position(|row| text(&row.name) == vm)?;
    let by_guest = plan.vms.get(vm)?.interrupts != InterruptMode::Vgic as u16;
    let vcpu = rows_of(plan.vcpus, vm).first()?;
    Some(Period {
        cpu: state_of(vcpu.pcpu.into()),
        intid: plan.header.board.vtimer_intid.into(),
        by_guest,
    })
}

//! GPPT VMs, which take their physical interrupts at EL1 (`bulkhead_core::gppt`,
//! `docs/adr/0016-gppt.md`). Such a VM has one vCPU, which has its pCPU to itself.

#[cfg(feature = "gicv2")]
mod kept_v2;
#[cfg(not(feature = "gicv2"))]
mod kept_v3;
mod revoke;
pub mod state;
#[cfg(feature = "gicv2")]
mod v2;
#[cfg(feature = "gicv2")]
use v2 as version;
#[cfg(not(feature = "gicv2"))]
mod v3;
#[cfg(not(feature = "gicv2"))]
use v3 as version;

use bulkhead_abi::exit::ExitClass;
use bulkhead_core::cpu::exit::Mmio;
use bulkhead_core::cpu::psci;
use bulkhead_core::gppt::Kick;
use bulkhead_core::vgic::VCPUS;

use crate::hw::gic;
use crate::vcpu::Vcpu;

pub use revoke::{is_gone, wait};
pub use version::{
    acknowledge, common, deactivate, finish_revoke, poll_event, send_sgi, was_revoked,
};

/// Whether no timer of EL2's can interrupt the guest while it runs.
pub fn has_no_deadlines(vcpu: &Vcpu) -> bool {
    let gppt = vcpu.gppt.as_ref();
    gppt.is_some_and(|gppt| gppt.mode.kick() == Kick::RevokeAndPoke)
}

/// Returns the affinity fields of the MPIDR that a vCPU shows: its number; or those of its pCPU if
/// its SGIs go to the board's pCPUs unfiltered.
pub fn affinity(vcpu: &Vcpu) -> u64 {
    match &vcpu.gppt {
        Some(gppt) if !gppt.mode.filters_sgis() => gic::gppt::name(vcpu.index),
        _ => vcpu.number as u64,
    }
}

/// Replaces the affinity in a PSCI call, where the guest names vCPUs by the board's affinities, by
/// the number of the vCPU in its VM.
pub fn rename(vcpu: &Vcpu, function: u32, args: &mut [u64; 3]) {
    if let Some(gppt) = &vcpu.gppt
        && !gppt.mode.filters_sgis()
        && psci::names_vcpu(function)
    {
        let own = args[0] == gic::gppt::name(vcpu.index);
        // A number that no vCPU has.
        args[0] = if own {
            vcpu.number as u64
        } else {
            VCPUS as u64
        };
    }
}

/// Performs an access of a GPPT VM if it is one to its GIC.
#[inline(always)]
pub fn access(vcpu: &mut Vcpu, mmio: Mmio) -> Option<ExitClass> {
    let gppt = vcpu.gppt.as_mut()?;
    let (private, offset) = gppt.place(mmio.ipa)?;
    let mmio = mmio.at(offset);
    if mmio.is_write() {
        let value = mmio.stored(vcpu.frame.get(mmio.register()));
        gppt.write(&vcpu.gic, private, mmio, value);
    } else {
        let value = gppt.read(&vcpu.gic, private, offset, mmio.size());
        vcpu.frame.set(mmio.register(), mmio.loaded(value));
    }
    Some(if private {
        ExitClass::Gicr
    } else {
        ExitClass::Gicd
    })
}

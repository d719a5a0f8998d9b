//! Revoke and poke: reclaiming the pCPU of a VM that could mask EL2's interrupts. The VM's stage 2
//! is taken away, and an interrupt wakes the pCPU if it sleeps; the guest's next fetch or access
//! faults to EL2 (`docs/adr/0016-gppt.md`).

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use bulkhead_abi::plan::MAX_PCPUS;
use bulkhead_core::sync::Stage2Claim;

use super::super::mmu;
use super::super::page_pool;
use super::super::plan::plan;
use super::super::sysreg::{dsb, isb, send_event};

/// The VM of each pCPU that is reclaimed in this way, plus one; 0 for other pCPUs.
static OWNERS: [AtomicU8; MAX_PCPUS] = [const { AtomicU8::new(0) }; MAX_PCPUS];
/// The claim on the root of the stage 2 of each pCPU's VM.
static STAGE2_CLAIMS: [Stage2Claim; MAX_PCPUS] = [const { Stage2Claim::new() }; MAX_PCPUS];

/// Records that pCPU `index` runs GPPT VM `vm`, whose stage 2 can be taken away. Called by the boot
/// pCPU.
pub fn give_to(index: usize, vm: usize) {
    mmu::share_root(vm, page_pool::stage2_root(vm));
    if let Some(place) = OWNERS.get(index) {
        place.store((vm as u8).wrapping_add(1), Relaxed);
    }
}

#[inline(always)]
fn owner(index: usize) -> Option<usize> {
    let owner = OWNERS.get(index)?.load(Relaxed);
    usize::from(owner).checked_sub(1)
}

/// Whether pCPU `index` runs a VM that is reclaimed in this way.
#[cfg(feature = "gicv2")]
pub fn has_gppt_vm(index: usize) -> bool {
    owner(index).is_some()
}

/// Makes pCPU `index` enter EL2: takes the stage 2 of its VM away and sends an interrupt by `poke`,
/// which must have made it pending there when it returns. `false`: the pCPU is not reclaimed in
/// this way.
pub(super) fn revoke(index: usize, poke: impl Fn()) -> bool {
    let (Some(vm), Some(claim)) = (owner(index), STAGE2_CLAIMS.get(index)) else {
        return false;
    };
    if !claim.take() {
        return true;
    }
    mark_root(vm, false);
    let vmid = plan().vms.get(vm).map_or(0, |row| row.vmid);
    mmu::forget_vm(vmid, page_pool::stage2_root(vm));
    // A guest that sleeps in WFE is not woken by an interrupt that it masks, and without a fetch it
    // does not fault (DDI 0487, "Wait for Event", WFE wake-up events).
    send_event();
    loop {
        claim.serve();
        poke();
        // Repeated for other pCPUs that have left messages meanwhile, which are not looked at
        // before this ends: at most once for each kind of message.
        if claim.taken() {
            return true;
        }
    }
}

/// Makes the entries of the root of a VM's stage 2 invalid or valid again. The caller has the
/// claim.
fn mark_root(vm: usize, valid: bool) {
    for region in plan().regions_of(vm) {
        let last = region.ipa.wrapping_add(region.size).wrapping_sub(1);
        for index in region.ipa >> 30..=last >> 30 {
            mmu::mark_root(vm, index as usize, valid);
        }
    }
}

/// Whether the stage 2 of this pCPU's VM has been taken away, or is just being taken.
#[inline(always)]
pub fn is_gone(index: usize) -> bool {
    STAGE2_CLAIMS.get(index).is_some_and(Stage2Claim::is_gone)
}

/// Restores the stage 2, and clears the interrupt that was sent with the revocation by `forget`.
/// `false`: another pCPU has the claim.
pub(super) fn restore(index: usize, forget: impl FnOnce()) -> bool {
    let (Some(vm), Some(claim)) = (owner(index), STAGE2_CLAIMS.get(index)) else {
        return true;
    };
    claim.give(|| {
        mark_root(vm, true);
        forget();
        dsb();
        isb();
    })
}

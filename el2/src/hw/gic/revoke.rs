//! Getting the pCPU back of a VM that could mask EL2's interrupts: its stage 2 is taken away, and an interrupt wakes it if it sleeps; the
//! next fetch or access faults to EL2 (`docs/adr/0016-gppt.md`).

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use bulkhead_abi::plan::MAX_PCPUS;
use bulkhead_core::gppt::Stage2Claim;

use super::super::mmu;
use super::super::plan::plan;
use super::super::pool;
use super::super::sysreg::{dsb, isb};

/// The VM of each pCPU that is like this, plus one; 0 for others.
static OWNERS: [AtomicU8; MAX_PCPUS] = [const { AtomicU8::new(0) }; MAX_PCPUS];
/// Who is at the root of its stage 2.
static STAGE2_CLAIMS: [Stage2Claim; MAX_PCPUS] = [const { Stage2Claim::new() }; MAX_PCPUS];

/// pCPU `index` is that of VM `vm`, which takes its interrupts itself. For the boot pCPU.
pub fn give_to(index: usize, vm: usize) {
    mmu::share_root(vm, pool::stage2_root(vm));
    if let Some(slot) = OWNERS.get(index) {
        slot.store((vm as u8).wrapping_add(1), Relaxed);
    }
}

fn owner(index: usize) -> Option<usize> {
    let owner = OWNERS.get(index)?.load(Relaxed);
    usize::from(owner).checked_sub(1)
}

/// pCPU `index` is such a one.
#[cfg(feature = "gicv2")]
pub fn is_there(index: usize) -> bool {
    owner(index).is_some()
}

/// Gets pCPU `index` to EL2, with an interrupt that `poke` makes pending there and that is so when it returns. `false`: it is none of
/// these.
pub(super) fn revoke(index: usize, poke: impl Fn()) -> bool {
    let (Some(vm), Some(claim)) = (owner(index), STAGE2_CLAIMS.get(index)) else {
        return false;
    };
    if !claim.take() {
        return true;
    }
    mark_root(vm, false);
    let vmid = plan().vms.get(vm).map_or(0, |row| row.vmid);
    mmu::forget_vm(vmid, pool::stage2_root(vm));
    loop {
        claim.serve();
        poke();
        // As often as others have left messages meanwhile, which are not looked at before this ends: at most one of each kind.
        if claim.taken() {
            return true;
        }
    }
}

/// Takes away, or gives back, what the root of a VM's stage 2 maps. Under its grip.
fn mark_root(vm: usize, valid: bool) {
    for region in plan().regions_of(vm) {
        let last = region.ipa.wrapping_add(region.size).wrapping_sub(1);
        for index in region.ipa >> 30..=last >> 30 {
            mmu::mark_root(vm, index as usize, valid);
        }
    }
}

/// The stage 2 of this pCPU's VM is away, or just being taken.
#[inline(always)]
pub fn is_gone(index: usize) -> bool {
    STAGE2_CLAIMS.get(index).is_some_and(Stage2Claim::is_gone)
}

/// Gives it back, with the interrupt that came with that taken away by `forget`. `false`: another pCPU is at it.
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

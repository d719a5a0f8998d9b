//! Doorbells: pages by which VMs signal each other. `bulkhead_core::devices::doorbell` decides when
//! a ring is passed on.

use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::{Doorbell as Row, MAX_DOORBELLS, PAGE};
use bulkhead_core::cpu::exit::Mmio;
use bulkhead_core::devices::deadlines::Purpose;
use bulkhead_core::devices::doorbell::{Doorbell, Rung};

use crate::emulated::Done;
use crate::hw::{gic, timer};
use crate::plan::{Bells, plan};
use crate::vcpu::Vcpu;
use crate::{deadlines, gppt, vm};

/// The doorbells, by row of the plan.
static BELLS: [Doorbell; MAX_DOORBELLS] = [const { Doorbell::new() }; MAX_DOORBELLS];

/// Returns those that a VM rings, with their rows.
#[inline(always)]
fn all(bells: Bells) -> impl Iterator<Item = (&'static Doorbell, &'static Row)> {
    let rows = bells.rows.iter().zip(bells.first..MAX_DOORBELLS);
    rows.filter_map(|(row, n)| Some((BELLS.get(n)?, row)))
}

/// Returns the one whose page has an address.
#[inline(always)]
fn find(bells: Bells, ipa: u64) -> Option<(&'static Doorbell, &'static Row)> {
    all(bells).find(|(_, row)| ipa.wrapping_sub(row.ipa) < PAGE)
}

/// Notes how far apart rings are heard, when the board starts.
pub fn start() {
    for (bell, row) in BELLS.iter().zip(plan().doorbells) {
        let ticks = timer::nanoseconds(row.apart);
        bell.set_apart(u32::try_from(ticks).unwrap_or(u32::MAX));
    }
}

/// Performs a word written where the VM may have a doorbell. `None`: it has none there; `Some(false)`: the guest has to ring again.
#[inline(always)]
pub fn write_word(vcpu: &mut Vcpu, ipa: u64) -> Option<bool> {
    let (bell, row) = find(vcpu.bells, ipa)?;
    Some(ipa != row.ipa || ring(vcpu, bell, row))
}

/// Performs another access to the page of a doorbell: it reads as zero and ignores writes.
#[inline(never)]
pub fn access(vcpu: &mut Vcpu, mmio: &Mmio) -> Done {
    if !vcpu
        .bells
        .pages()
        .any(|page| mmio.ipa.wrapping_sub(page) < PAGE)
    {
        return Done::Nothing;
    }
    if !mmio.is_write() {
        vcpu.frame.set(mmio.register(), 0);
    }
    Done::Yes(ExitClass::Device)
}

/// Rings a doorbell. `false`: it is too early, and the guest has to ring again.
#[inline(always)]
fn ring(vcpu: &mut Vcpu, bell: &Doorbell, row: &Row) -> bool {
    if bell.try_ring(timer::now_at_exit()) == Rung::Heard {
        pass_on(vcpu, row);
        return true;
    }
    if gppt::has_no_deadlines(vcpu) {
        return false;
    }
    bell.wait();
    look(vcpu);
    true
}

/// Passes on the rings of the VM that have waited long enough, and sets a deadline for the rest.
#[inline(never)]
pub fn look(vcpu: &mut Vcpu) {
    let mut next = None;
    for (bell, row) in all(vcpu.bells) {
        match bell.look(timer::now()) {
            Some(Rung::Heard) => pass_on(vcpu, row),
            Some(Rung::Later(at)) => next = Some(next.map_or(at, |next: u64| next.min(at))),
            None => {}
        }
    }
    deadlines::set(vcpu, Purpose::Doorbell, next);
}

/// Makes the interrupt of a doorbell pending, after everything that was written before the ring: by the GIC, or in the vGIC of the VM that hears it.
#[inline(never)]
fn pass_on(vcpu: &Vcpu, row: &Row) {
    let intid = u32::from(row.pintid);
    if intid != 0 && gic::spis::is_usable(intid) {
        gic::publish();
        vcpu.gic.set_pending(intid, true);
        return;
    }
    let to = vm::vm(row.to.into());
    vm::notify(to, to.dist.post(u32::from(row.vintid), 0));
}

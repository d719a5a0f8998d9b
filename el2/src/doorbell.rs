//! Doorbells: pages by which VMs signal each other. `bulkhead_core::devices::doorbell` decides when
//! a ring is passed on.

use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::{Doorbell as Row, MAX_DOORBELLS, PAGE};
use bulkhead_core::cpu::exit::Mmio;
use bulkhead_core::devices::deadlines::Purpose;
use bulkhead_core::devices::doorbell::{Doorbell, Rung};

use crate::emulated::Done;
use crate::hw::{gic, timer};
use crate::plan::plan;
use crate::vcpu::Vcpu;
use crate::{deadlines, gppt, vm};

/// The doorbells, by row of the plan.
static BELLS: [Doorbell; MAX_DOORBELLS] = [const { Doorbell::new() }; MAX_DOORBELLS];

/// Returns the doorbells that a VM rings.
fn of(vm: Option<usize>) -> impl Iterator<Item = (&'static Doorbell, &'static Row)> {
    let all = BELLS.iter().zip(plan().doorbells);
    all.filter(move |(_, row)| Some(usize::from(row.vm)) == vm)
}

/// Performs an access to the page of a doorbell. A word written to its start rings; all else reads
/// as zero and ignores writes.
#[inline(never)]
pub fn access(vcpu: &mut Vcpu, mmio: &Mmio) -> Done {
    let offset = |row: &Row| mmio.ipa.wrapping_sub(row.ipa);
    let Some((bell, row)) = of(vcpu.vm).find(|(_, row)| offset(row) < PAGE) else {
        return Done::Nothing;
    };
    if !mmio.is_write() {
        vcpu.frame.set(mmio.register(), 0);
    } else if offset(row) == 0 && mmio.size() == 4 && !ring(vcpu, bell, row) {
        return Done::NotYet(ExitClass::Device);
    }
    Done::Yes(ExitClass::Device)
}

/// Rings a doorbell. `false`: it is too early, and the guest has to ring again.
fn ring(vcpu: &mut Vcpu, bell: &Doorbell, row: &Row) -> bool {
    let (now, apart) = (timer::now(), timer::nanoseconds(row.apart));
    if gppt::has_no_deadlines(vcpu) {
        let heard = bell.try_ring(now, apart) == Rung::Heard;
        if heard {
            pass_on(vcpu, row);
        }
        return heard;
    }
    match bell.ring(now, apart) {
        Rung::Heard => pass_on(vcpu, row),
        Rung::Later(_) => look(vcpu),
    }
    true
}

/// Passes on the rings of the VM that have waited long enough, and sets a deadline for the rest.
#[inline(never)]
pub fn look(vcpu: &mut Vcpu) {
    let mut next = None;
    for (bell, row) in of(vcpu.vm) {
        match bell.look(timer::now(), timer::nanoseconds(row.apart)) {
            Some(Rung::Heard) => pass_on(vcpu, row),
            Some(Rung::Later(at)) => next = Some(next.map_or(at, |next: u64| next.min(at))),
            None => {}
        }
    }
    deadlines::set(vcpu, Purpose::Doorbell, next);
}

/// Makes the interrupt of a doorbell pending, after everything that was written before the ring.
fn pass_on(vcpu: &Vcpu, row: &Row) {
    if row.pintid != 0 {
        gic::publish();
        vcpu.gic.set_pending(u32::from(row.pintid), true);
        return;
    }
    let to = usize::from(row.to);
    let whom = vm::vm(to).dist.post(u32::from(row.vintid), 0);
    vm::notify(to, whom);
}

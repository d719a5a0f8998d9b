//! The inbox of a pCPU, by which vCPUs migrate there: one at a time, and nobody waits
//! (`docs/adr/0018-moving-vcpus.md`, `docs/internals/locking.md`).

use core::sync::atomic::{Ordering, fence};

use super::vcpu_location::VcpuLocation;
use crate::sched::balance::Loads;

/// Something that one pCPU uses at a time, without waiting.
pub trait TryUse<T> {
    /// Uses it; `None` if another pCPU does so at this moment. What was done with it before is
    /// ordered before `act`.
    fn try_use<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R>;
}

/// Puts a vCPU into the inbox of pCPU `to` and lets that pCPU know by `tell`. `detach` removes the
/// vCPU from the pCPU that it is on; it returns the row of the vCPU in the plan and what migrates,
/// or `None` if the vCPU cannot migrate now. `false`: the vCPU stays, because of that, because the
/// inbox is full or in use, or because `to` has no free slot.
#[inline(always)]
pub fn send<T>(
    inbox: &impl TryUse<Option<T>>,
    to: usize,
    loads: &Loads,
    locations: &VcpuLocation,
    detach: impl FnOnce() -> Option<(usize, T)>,
    tell: impl FnOnce(),
) -> bool {
    let put = |place: &mut Option<T>| {
        if place.is_some() || loads.free(to) == 0 {
            return false;
        }
        let Some((id, migrating)) = detach() else {
            return false;
        };
        locations.set(id, to);
        *place = Some(migrating);
        true
    };
    let sent = inbox.try_use(put) == Some(true);
    if sent {
        tell();
    }
    sent
}

/// Takes the vCPU from this pCPU's own inbox. `attach` takes it out, unless the inbox is empty, and
/// publishes that it uses one of the free slots. `None`: there is no vCPU now. If that is because
/// another pCPU uses the inbox at this moment, `again` has to make this pCPU try again.
///
/// The vCPU finds what others left for it on the way when it runs, which it may do once this has
/// returned ([`VcpuLocation`]).
#[inline(always)]
pub fn receive<T, R>(
    inbox: &impl TryUse<Option<T>>,
    attach: impl FnOnce(&mut Option<T>) -> Option<R>,
    again: impl FnOnce(),
) -> Option<R> {
    let Some(taken) = inbox.try_use(attach) else {
        again();
        return None;
    };
    fence(Ordering::SeqCst);
    taken
}

//! VMs that are asked to stop ([ADR 27](../../docs/adr/0027-control.md)): by an interrupt, or by a word that they read; and what becomes of those
//! that do not. `bulkhead_core::cpu::power` decides what an order means, `bulkhead_core::control::asked` when their time is over.

use bulkhead_abi::plan::Stop;
use bulkhead_core::control::asked::{Asked, Due};
use bulkhead_core::cpu::power::Phase;

use crate::hw::{memory, state, timer};
use crate::orders::{self, ManageVms};
use crate::plan::plan;
use crate::vm;

/// Until when VMs have time that were asked. Who has the authority over VMs writes it.
static ASKED: Asked = Asked::new();

/// Ticks of the counter in a time of the plan.
fn ticks(stop: &Stop) -> u64 {
    timer::nanoseconds(u64::from(stop.timeout).saturating_mul(1_000_000))
}

/// Asks a VM to stop. Returns the ticks that are left to it; 0 if it ends already.
pub fn ask(_: &mut ManageVms, index: usize) -> Result<u64, Phase> {
    let life = &vm::vm(index).life;
    let Some(stop) = plan().stop_of(index) else {
        // The request was refused before.
        return Err(life.power.phase());
    };
    let now = timer::now();
    let before = life.power.ask()?;
    match before {
        Phase::Running => {
            let again = if stop.vintid == 0 {
                0
            } else {
                now.saturating_add(timer::seconds(1))
            };
            ASKED.set(index, now.saturating_add(ticks(stop)), again);
        }
        Phase::Asked(_) => {}
        _ => {
            if before == Phase::Starting {
                orders::notify_vcpus(index);
                orders::changed(index);
            }
            return Ok(0);
        }
    }
    // A life that has ended meanwhile begins again by an order only, and nobody else gives one now: a new life, which forgets the
    // interrupt and the word, is not told.
    tell(index, stop);
    orders::changed(index);
    Ok(ASKED.until(index).saturating_sub(now))
}

/// Tells the guest.
fn tell(index: usize, stop: &Stop) {
    if stop.vintid == 0 {
        let word = state::stop_word(index);
        let times = word.load(core::sync::atomic::Ordering::Relaxed);
        memory::tell(word, times.saturating_add(1));
        return;
    }
    let vm = vm::vm(index);
    vm::notify(vm, vm.dist.post(u32::from(stop.vintid), 0));
}

/// A VM that starts was not asked yet. Called before its first instruction.
pub fn forget(index: usize) {
    if plan().stop_of(index).is_some_and(|stop| stop.word != 0) {
        memory::tell(state::stop_word(index), 0);
    }
}

/// When a service thread has to look without being told (physical counter).
pub fn next() -> Option<u64> {
    ASKED.next()
}

/// Ends a VM that was asked and whose time is over, and presses the key of one once more: one that begins may not have looked at it yet. If somebody
/// gives an order at this moment, the next look does. Returns whether this one did something.
pub fn look(now: u64) -> bool {
    if ASKED.next().is_none_or(|next| next > now) {
        return false;
    }
    let looked = orders::try_manage(|_| {
        let Some((index, due)) = ASKED.take(now, timer::seconds(1)) else {
            return;
        };
        if !matches!(vm::vm(index).life.power.phase(), Phase::Asked(_)) {
            ASKED.forget(index);
        } else if due == Due::Over {
            orders::overdue(index);
        } else if let Some(stop) = plan().stop_of(index) {
            tell(index, stop);
        }
    });
    looked.is_some()
}

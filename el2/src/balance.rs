//! Migration of vCPUs between pCPUs. `bulkhead_core::sched::balance` decides which vCPU migrates;
//! this module carries it out (ADR 18).
//!
//! The pCPU of a vCPU detaches it while its thread does not run, puts it into the inbox of the
//! other pCPU and sends that pCPU a message. The state of a vCPU lies in pages that all pCPUs of its
//! pool map; the inbox, which all pCPUs map, holds none of it. The fields that depend on the pCPU are
//! updated by the vCPU's thread when it first runs on the new pCPU.

use bulkhead_abi::plan::{MAX_PCPUS, Vcpu as Row};
use bulkhead_core::devices::deadlines::Purpose;
use bulkhead_core::sched::MigratingSlot;
use bulkhead_core::sched::balance::{self, Balancer, LoadTrack, Loads, Move, PAUSE_MS, PERIOD_MS};
use bulkhead_core::sync::{TryUse, inbox};

use crate::hw::claim::Claim;
use crate::hw::mmu::CopyWindows;
use crate::hw::state::IDLE;
use crate::hw::{cpu, sysreg as reg, timer};
use crate::pcpu::{Pcpu, RunSlot};
use crate::plan::plan;
use crate::vcpu::Vcpu;
use crate::vm::VCPU_LOCATION;
use crate::{deadlines, mailbox};

/// A vCPU on its way to another pCPU.
#[derive(Clone, Copy, Debug)]
struct MigratingVcpu {
    run_slot: RunSlot,
    /// The stack pointer of its thread.
    stack: u64,
    migrating_slot: MigratingSlot,
    load_track: LoadTrack,
}

/// The loads of the pCPUs, as they publish them to each other.
static LOADS: Loads = Loads::new();
/// The inboxes, by pCPU: each holds a vCPU that migrates there.
static INBOXES: [Claim<Option<MigratingVcpu>>; MAX_PCPUS] = [const { Claim::new(None) }; MAX_PCPUS];

impl<T> TryUse<T> for Claim<T> {
    #[inline(always)]
    fn try_use<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        Claim::try_use(self, act)
    }
}

/// Returns the pCPUs between which a vCPU migrates now ([`bulkhead_core::plan::Plan::pool_of`]).
pub fn pool(row: &Row) -> u32 {
    plan().pool_of(row)
}

/// Starts the balancer of this pCPU, if it shares a pool with another pCPU. Must precede the
/// assignment of vCPUs to slots.
pub fn start(idle: &mut Vcpu) {
    let is_here = |row: &Row| pool(row).wrapping_shr(idle.index as u32) & 1 != 0;
    let mut rows = plan().vcpus.iter();
    if !rows.any(|row| is_here(row) && row.pool.count_ones() > 1) {
        return;
    }
    let (index, gic) = (idle.index, idle.gic);
    if let Some(pcpu) = idle.pcpu.as_deref_mut() {
        pcpu.gic = gic;
        pcpu.sched.track_sleep();
        pcpu.balancer = Some(Balancer::new(index, kind()));
    }
    look_again(idle, PERIOD_MS);
}

/// Returns a number for everything about a pCPU that a guest may notice ([`balance::kind`]).
fn kind() -> u64 {
    let speculation = cpu::speculation();
    let first = [speculation.midr, speculation.pfr0];
    let ids = cpu::id_registers();
    balance::kind(first.iter().chain(&ids))
}

/// Tells the balancer that a slot of this pCPU has a vCPU.
pub fn track(pcpu: &mut Pcpu, slot: usize, row: &Row, now: u64) {
    if let Some(balancer) = &mut pcpu.balancer {
        balancer.add(slot, LoadTrack::new(pool(row), now));
    }
}

fn look_again(vcpu: &mut Vcpu, after: u64) {
    let at = timer::now().saturating_add(timer::milliseconds(after));
    deadlines::set(vcpu, Purpose::Balance, Some(at));
}

/// Measures the load once in a period, and a little later decides which vCPU migrates. The two are
/// separate so that each is short and the other pCPUs have measured, too, before the decision.
#[inline(never)]
pub fn look(vcpu: &mut Vcpu) {
    let Some(pcpu) = vcpu.pcpu.as_deref_mut() else {
        return;
    };
    let Some(balancer) = &mut pcpu.balancer else {
        return;
    };
    pcpu.measured = !pcpu.measured;
    if pcpu.measured {
        balancer.measure(&mut pcpu.sched, &LOADS, timer::now());
        return look_again(vcpu, PAUSE_MS);
    }
    if !pcpu.moves.has_outgoing()
        && let Some(chosen) = balancer.choose(&LOADS)
    {
        pcpu.moves.set_outgoing(chosen);
        // The vCPU migrates after the next switch. Marking all slots pending keeps that switch off
        // the fast path.
        pcpu.pending = u32::MAX;
        // If the vCPU runs, its turn ends here, and it migrates after the switch.
        pcpu.sched.bar(chosen.slot, true);
        vcpu.ask_again();
        migrate_away(vcpu);
    }
    look_again(vcpu, PERIOD_MS.wrapping_sub(PAUSE_MS));
}

/// Does the migration work after a switch, before the thread that now has the pCPU is loaded.
/// `true`: that thread has come from another pCPU.
#[inline(never)]
pub fn switched(vcpu: &mut Vcpu) -> bool {
    let is_new = settle(vcpu);
    migrate_away(vcpu);
    is_new.is_some()
}

/// Updates the fields that depend on the pCPU if the thread has come from another one; `None` if it has not.
fn settle(vcpu: &mut Vcpu) -> Option<()> {
    let pcpu = vcpu.pcpu.as_deref_mut()?;
    let slot = pcpu.sched.current().filter(|_| vcpu.slot != IDLE)?;
    if !pcpu.moves.take_incoming(slot) {
        return None;
    }
    vcpu.slot = slot;
    vcpu.index = pcpu.index;
    let siblings = vcpu.gic.siblings;
    vcpu.gic = pcpu.gic;
    vcpu.gic.siblings = siblings;
    vcpu.copy_windows = CopyWindows::of(pcpu.index);
    vcpu.sort();
    // The cycle counter is that of another core.
    vcpu.left = reg::cycles();
    if vcpu.runs {
        vcpu.stats.enter(vcpu.left);
    }
    Some(())
}

/// Sends the vCPU that is to migrate to its new pCPU, if its thread does not run.
fn migrate_away(vcpu: &mut Vcpu) {
    let own = vcpu.slot;
    let Some(pcpu) = vcpu.pcpu.as_deref_mut() else {
        return;
    };
    let Some(Move { slot, to }) = pcpu.moves.take_outgoing(own) else {
        return;
    };
    // What the guest has begun here (maintenance, stores) is complete before it goes on elsewhere:
    // the registers of each vCPU are saved behind a DSB (`sched::vcpu_put`).
    let sent = INBOXES.get(to).is_some_and(|inbox| {
        let detach = || detach(pcpu, slot, to);
        inbox::send(inbox, to, &LOADS, &VCPU_LOCATION, detach, || arrival(to))
    });
    if !sent {
        // The next decision may choose this vCPU again.
        pcpu.sched.bar(slot, false);
        vcpu.ask_again();
    }
}

/// Makes a pCPU look into its inbox.
fn arrival(pcpu: usize) {
    mailbox::send(mailbox::of_pcpu(pcpu), mailbox::ARRIVAL);
}

/// Removes a vCPU that does not run from this pCPU. Returns its row in the plan, and what migrates.
fn detach(pcpu: &mut Pcpu, slot: usize, to: usize) -> Option<(usize, MigratingVcpu)> {
    let load_track = pcpu.balancer.as_ref()?.load_track(slot)?;
    let run_slot = pcpu.run_slots.get(slot).copied().flatten()?;
    let stack = pcpu.stacks.get(slot).copied()?;
    let migrating_slot = pcpu.sched.detach(slot, timer::now())?;
    pcpu.clear_wake(slot);
    if let Some(place) = pcpu.run_slots.get_mut(slot) {
        *place = None;
    }
    pcpu.count_slots();
    if let Some(rests) = pcpu.resting.get_mut(slot) {
        *rests = None;
    }
    // The vCPU may have migrated here and not run yet.
    pcpu.moves.take_incoming(slot);
    if pcpu.loaded == slot {
        pcpu.loaded = IDLE;
    }
    if let Some(balancer) = &mut pcpu.balancer {
        balancer.set(slot, None, &LOADS);
        balancer.sent(&load_track, to, &LOADS);
    }
    let migrating = MigratingVcpu {
        run_slot,
        stack,
        migrating_slot,
        load_track,
    };
    Some((run_slot.id.into(), migrating))
}

/// Takes in a vCPU that migrates to this pCPU; `false` if there is none now.
#[inline(never)]
pub fn migrate_in(vcpu: &mut Vcpu) -> bool {
    let Some(pcpu) = vcpu.pcpu.as_deref_mut() else {
        return false;
    };
    let own = pcpu.index;
    let Some(inbox) = INBOXES.get(own) else {
        return false;
    };
    let attach = |place: &mut Option<MigratingVcpu>| {
        // The sender has checked that a slot is free.
        let slot = pcpu.run_slots.iter().position(Option::is_none)?;
        let migrating = place.take()?;
        if let Some(balancer) = &mut pcpu.balancer {
            balancer.set(slot, Some(migrating.load_track), &LOADS);
        }
        Some((slot, migrating))
    };
    let Some((slot, migrating)) = inbox::receive(inbox, attach, || arrival(own)) else {
        return false;
    };
    if let Some(place) = pcpu.stacks.get_mut(slot) {
        *place = migrating.stack;
    }
    if let Some(place) = pcpu.run_slots.get_mut(slot) {
        *place = Some(migrating.run_slot);
    }
    pcpu.count_slots();
    pcpu.moves.add_incoming(slot);
    pcpu.sched
        .attach(slot, migrating.migrating_slot, timer::now());
    true
}

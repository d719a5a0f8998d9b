//! CPU time: which thread runs on this pCPU. `bulkhead_core::sched` decides; this module carries
//! the decision out.
//!
//! A switch saves the timers and registers of the thread that leaves the pCPU. What arrives for its
//! vCPU meanwhile stays in its mailbox, in the vGIC's shared words, and in its [`RunSlot`]; the
//! vCPU catches up when it runs again.

use core::sync::atomic::Ordering;

use bulkhead_abi::plan::{CpuPolicy, NONE};
use bulkhead_core::sched::{Policy, SLOTS, Turn};
use bulkhead_core::vgic::{self, VTIMER, WORDS};

use crate::hw::cpu::Waits;
use crate::hw::state::IDLE;
use crate::hw::{context, cpu, gic, memory, sysreg as reg, thread, timer, upcall};
use crate::pcpu::{NO_VM, POLLS, Pcpu, RunSlot};
use crate::plan::{self, plan};
use crate::profile::IO;
use crate::vcpu::Vcpu;
use crate::{balance, bandwidth, deadlines, debug, mailbox, pmu, vm};

mod sleep;
mod wake;

pub use sleep::wait;
use wake::{bit, set_traps};
pub use wake::{is_over, notify_one, on_mail, on_sibling_sgi, on_spi, timer_fired};

/// Creates the vCPUs of this pCPU and their threads, each of which starts with its first turn.
pub fn make_vcpus(idle: &mut Vcpu) {
    let index = idle.index;
    let own = || {
        let rows = plan().vcpus.iter().enumerate();
        rows.filter(move |(_, row)| usize::from(row.pcpu) == index)
    };
    if let Some(pcpu) = idle.pcpu.as_deref_mut() {
        for (run_slot, (id, row)) in pcpu.run_slots.iter_mut().zip(own()) {
            *run_slot = Some(RunSlot {
                id: id as u8,
                vm: row.vm as u8,
                number: row.mpidr as u8,
                has_arrived: false,
                arrived: [0; WORDS],
            });
            pcpu.used = pcpu.used.wrapping_add(1);
        }
    }
    balance::start(idle);
    for (slot, (id, row)) in own().enumerate().take(SLOTS) {
        let (state, stack) = thread::make(id, idle.index);
        state.become_vcpu(idle, id, row, slot);
        if let Some(pcpu) = idle.pcpu.as_deref_mut() {
            if let Some(place) = pcpu.stacks.get_mut(slot) {
                *place = stack;
            }
            let now = timer::now();
            pcpu.sched.add(slot, policy(row), row.vm, now);
            balance::track(pcpu, slot, row, now);
            pcpu.sched.wake(slot, now);
            pcpu.pending |= bit(slot);
            pcpu.look_again = true;
        }
    }
    if IO {
        make_service(idle);
    }
}

/// Leaves the idle thread for good where a pCPU has one vCPU only; here it waits for its turn like others.
pub const fn leave_idle(_: &mut Vcpu) {}

/// Creates the service thread of this pCPU, if it has one.
fn make_service(idle: &mut Vcpu) {
    let rows = plan().service_threads().iter().enumerate();
    let mut own = rows.filter(|(_, row)| usize::from(row.pcpu) == idle.index);
    let Some((service, row)) = own.next() else {
        return;
    };
    let id = plan::service_thread(service);
    let slot = idle.pcpu.as_deref().map_or(SLOTS, |pcpu| pcpu.used);
    if slot >= SLOTS {
        return;
    }
    let (state, stack) = thread::make(id, idle.index);
    state.become_service(idle, service, slot);
    let policy = policy_of(row.policy, row.weight, row.budget, row.period);
    if let Some(pcpu) = idle.pcpu.as_deref_mut() {
        if let (Some(place), Some(run_slot)) =
            (pcpu.stacks.get_mut(slot), pcpu.run_slots.get_mut(slot))
        {
            *place = stack;
            *run_slot = Some(RunSlot {
                id: id as u8,
                vm: NO_VM,
                number: 0,
                has_arrived: false,
                arrived: [0; WORDS],
            });
        }
        pcpu.used = pcpu.used.wrapping_add(1);
        let now = timer::now();
        pcpu.sched.add(slot, policy, NONE, now);
        pcpu.sched.wake(slot, now);
        pcpu.pending |= bit(slot);
        pcpu.look_again = true;
    }
}

/// Applies limits that the console has changed to the vCPUs of this pCPU.
pub fn apply_limits(vcpu: &mut Vcpu) {
    let Some(pcpu) = vcpu.pcpu.as_deref_mut() else {
        return;
    };
    for (slot, run_slot) in (0..SLOTS).zip(&pcpu.run_slots) {
        let Some(run_slot) = run_slot else { continue };
        // If the console is changing the row at this moment, a message follows when it is done.
        let row = vm::LIMITS.of(plan().vcpus, run_slot.id.into());
        if let Some(policy) = row.as_ref().map(policy)
            && pcpu.sched.policy(slot) != Some(policy)
        {
            pcpu.sched.change(slot, policy, timer::now());
        }
        if let (Some(balancer), Some(row)) = (&mut pcpu.balancer, row) {
            balancer.allow(slot, balance::pool(&row));
        }
    }
    vcpu.ask_again();
}

/// Returns the scheduling policy that a row of the plan gives a vCPU.
fn policy(row: &bulkhead_abi::plan::Vcpu) -> Policy {
    policy_of(row.policy, row.weight, row.budget, row.period)
}

/// Returns the same from the fields that rows of vCPUs and of service threads have.
fn policy_of(policy: u16, weight: u16, budget: u64, period: u64) -> Policy {
    let ticks = timer::nanoseconds;
    if policy == CpuPolicy::Server as u16 {
        Policy::Server {
            budget: ticks(budget),
            period: ticks(period),
        }
    } else if policy == CpuPolicy::Fair as u16 {
        Policy::Fair {
            weight,
            quota: ticks(budget),
            period: ticks(period),
        }
    } else {
        Policy::Pinned
    }
}

/// Asks the scheduler which thread runs and switches to it. Returns when this thread has its turn
/// again.
pub fn reschedule(vcpu: &mut Vcpu) {
    switch_to_next(vcpu, Why::Look(timer::now()));
}

/// Ends the turn of this vCPU at `now`, like [`reschedule`], but only where nothing else has
/// happened and the thread has nothing left to do at EL2: all registers of the guest are in the
/// frame. Returns if the vCPU keeps the pCPU.
pub fn end_turn(vcpu: &mut Vcpu, now: u64) {
    switch_to_next(vcpu, Why::Over(now));
}

/// Starts a thread in the first turn of its vCPU: the part of [`reschedule`] after the switch.
pub fn begin(vcpu: &mut Vcpu) {
    vcpu.left = reg::cycles();
    switch_to_next(vcpu, Why::Comes);
}

/// Resumes a thread that has rested, like [`begin`]. It returns to its guest next.
pub fn go_on(vcpu: &mut Vcpu) {
    switch_to_next(vcpu, Why::Comes);
}

/// The reason for which a thread asks the scheduler.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Something has happened that may change whose turn it is; the time now.
    Look(u64),
    /// The turn of the thread has ended, at this time.
    Over(u64),
    /// The thread sleeps, and the scheduler has said who runs.
    Sleeps(usize),
    /// The thread has its turn, and has just come to the pCPU.
    Comes,
}

/// Switches to the thread that runs next. One function for all cases, so that both vcpu_put and
/// vcpu_load are inlined.
///
/// Between two threads that have nothing left to do at EL2 the stack changes only at the very end:
/// the next vCPU is loaded on the stack of the one that leaves.
#[inline(never)]
fn switch_to_next(vcpu: &mut Vcpu, why: Why) {
    let Some(mut pcpu) = vcpu.pcpu.take() else {
        return;
    };
    let mut comes = vcpu;
    let mut rests = None;
    let mut is_new = false;
    // First, because it is the most frequent case.
    let (known, now) = match why {
        Why::Over(now) => (next_after_turn(pcpu, now), now),
        Why::Look(now) => (None, now),
        Why::Sleeps(slot) => (Some(slot), 0),
        Why::Comes => (None, 0),
    };
    if why == Why::Comes {
        if let Some(place) = pcpu.resting.get_mut(comes.slot) {
            *place = None;
        }
    } else {
        let slot = known.unwrap_or_else(|| pick_next(pcpu, now));
        if slot == comes.slot {
            pcpu.renew_soonest();
            comes.pcpu = Some(pcpu);
            return deadlines::set_timer(comes);
        }
        vcpu_put(comes, pcpu);
        if matches!(why, Why::Look(_) | Why::Sleeps(_)) {
            pcpu = thread::switch(pcpu, comes.slot, slot);
        } else {
            thread::discard_stack(comes, pcpu);
            // If something has arrived for the next vCPU, its thread handles that on its own stack.
            // While a migration is under way, every slot counts as having something.
            let has_pending = pcpu.has_pending(slot);
            let waits = pcpu.resting.get_mut(slot).filter(|_| !has_pending);
            let Some(other) = waits.and_then(Option::take) else {
                thread::rest(comes, pcpu, slot)
            };
            rests = Some(comes);
            comes = other;
        }
    }
    if rests.is_none() && pcpu.moves.are_under_way() {
        comes.pcpu = Some(pcpu);
        is_new = balance::switched(comes);
        match comes.pcpu.take() {
            Some(again) => pcpu = again,
            None => return,
        }
    }
    let slot = comes.slot;
    let has_pending = pcpu.has_pending(slot);
    vcpu_load(comes, pcpu);
    if let Some(rests) = rests {
        thread::pass(rests, comes)
    }
    // EL2 goes on at once, and relies on the registers that were restored.
    reg::isb();
    if is_new {
        context::forget_former_life();
    }
    // Something may have come for it on its way here.
    if has_pending || is_new {
        catch_up(comes);
    }
}

/// Returns the slot that runs after the end of a turn, if that is known without a full decision.
#[inline(always)]
fn next_after_turn(pcpu: &mut Pcpu, now: u64) -> Option<usize> {
    let (slot, until) = pcpu.sched.end_turn(now)?;
    pcpu.until = until;
    Some(slot)
}

/// Asks the scheduler for the slot that runs now, or [`IDLE`], and sets the traps of WFI and WFE as
/// it says.
#[inline(never)]
fn pick_next(pcpu: &mut Pcpu, now: u64) -> usize {
    let turn = pcpu.sched.next(now);
    set_turn(pcpu, turn)
}

/// Notes a turn that begins. Returns its slot, or [`IDLE`].
#[inline(always)]
fn set_turn(pcpu: &mut Pcpu, turn: Turn) -> usize {
    pcpu.look_again = false;
    pcpu.until = turn.until;
    set_traps(pcpu, Waits::new(turn.trap_wfi, turn.trap_wfe));
    turn.slot.unwrap_or(IDLE)
}

/// Leaves the pCPU because the vCPU has nothing to do until it is woken. Returns when it has been
/// woken and runs again.
pub fn block(vcpu: &mut Vcpu) {
    if let Some(pcpu) = vcpu.pcpu.as_deref_mut() {
        pcpu.sched.block(timer::now());
        reschedule(vcpu);
    }
}

/// Yields the pCPU to other vCPUs, because the guest waits for an event by WFE.
pub fn yield_cpu(vcpu: &mut Vcpu) {
    if let Some(pcpu) = vcpu.pcpu.as_deref_mut() {
        pcpu.sched.yield_cpu();
        reschedule(vcpu);
    }
}

/// Lets other vCPUs have their turns between two slices of long work.
pub fn yield_point(vcpu: &mut Vcpu) {
    if vcpu.pcpu.as_deref().is_some_and(|pcpu| pcpu.look_again) {
        reschedule(vcpu);
    }
}

/// Saves the vCPU from the hardware. Registers that no other code uses until the next vcpu_load
/// stay there as well.
#[inline(always)]
fn vcpu_put(vcpu: &mut Vcpu, pcpu: &mut Pcpu) {
    let mut wakes_at = vcpu.deadlines.next().unwrap_or(u64::MAX);
    if vcpu.needs_full_switch {
        if vcpu.vm.is_none() {
            if IO && vcpu.slot != IDLE {
                put_service(vcpu, pcpu, wakes_at);
            }
            return;
        }
        wakes_at = wakes_at.min(vcpu_put_full(vcpu, pcpu));
    } else {
        vcpu.context.timers.save_virtual();
        timer::settle();
        vcpu.context.active = vcpu.gic.save_active(vcpu.timer_bits);
        vcpu.context.interface.save_fast();
    }
    // What the guest's stores have brought about is charged to it, and not to the next one, whose
    // ERET would let it through.
    if reg::serror_is_pending() {
        vcpu.serror = cpu::serror();
        vcpu.exit_work = true;
        pcpu.pending |= bit(vcpu.slot);
    }
    vcpu.context.save_registers(pcpu.quirks);
    pcpu.enabled = vcpu.vgic.hw_enabled();
    vcpu.left = reg::cycles();
    if let Some(at) = vcpu.context.timers.virtual_due() {
        wakes_at = wakes_at.min(virtual_wakes_at(vcpu, at));
    }
    if wakes_at != u64::MAX {
        vcpu.sleeps = true;
        pcpu.set_wake(vcpu.slot, wakes_at);
    }
}

/// Ends the turn of a service thread, which is to be woken at this time: what its copies have brought about is no guest's.
#[inline(never)]
fn put_service(vcpu: &mut Vcpu, pcpu: &mut Pcpu, wakes_at: u64) {
    timer::settle();
    if reg::serror_is_pending() {
        cpu::serror();
    }
    if wakes_at != u64::MAX {
        vcpu.sleeps = true;
        pcpu.set_wake(vcpu.slot, wakes_at);
    }
}

/// Saves the additional state of a vCPU with [`Vcpu::needs_full_switch`]. Returns when its physical
/// timer has to wake it.
#[inline(never)]
fn vcpu_put_full(vcpu: &mut Vcpu, pcpu: &mut Pcpu) -> u64 {
    if IO && vcpu.meter.exists() {
        bandwidth::put(vcpu, pcpu);
    }
    if IO && vcpu.has_debugging() {
        debug::put(vcpu);
    }
    if IO && vcpu.has_pmu() {
        pmu::put(vcpu);
    }
    if let Some(gppt) = &mut vcpu.gppt {
        gppt.save_interface(&vcpu.gic);
        // A message can arrive without leaving a pending interrupt.
        pcpu.pending |= bit(vcpu.slot);
    }
    let timers = &mut vcpu.context.timers;
    timers.save_virtual();
    if vcpu.has_ptimer {
        timers.save_physical();
    }
    timer::settle();
    let due = timers.physical_due();
    vcpu.context.active = vcpu.gic.save_active(vcpu.timer_bits);
    vcpu.context.interface.save(&vcpu.gic);
    due.filter(|_| !is_active(vcpu, plan().header.board.ptimer_intid))
        .unwrap_or(u64::MAX)
}

/// Whether a private interrupt is active: it was taken and is being handled, so its timer does not
/// interrupt again.
fn is_active(vcpu: &Vcpu, intid: u32) -> bool {
    vcpu.context.active & 1 << (intid % 32) != 0
}

/// Returns when the virtual timer, due at `at`, has to wake a vCPU.
fn virtual_wakes_at(vcpu: &Vcpu, at: u64) -> u64 {
    if is_active(vcpu, plan().header.board.vtimer_intid) {
        return u64::MAX;
    }
    let offset = vcpu.vm().map_or(0, |vm| vm.time.offset());
    at.saturating_add(offset)
}

/// Loads the vCPU into the hardware.
#[inline(always)]
fn vcpu_load(vcpu: &mut Vcpu, pcpu: &'static mut Pcpu) {
    let slot = vcpu.slot;
    // Threads without a guest leave the registers of the vCPU that was here where they are.
    if vcpu.vm.is_none() {
        gic::signal_nothing();
        if IO && vcpu.sleeps {
            vcpu.sleeps = false;
            pcpu.clear_wake(slot);
        }
        vcpu.pcpu = Some(pcpu);
        if slot == IDLE && mailbox::has_mail(vcpu.id) {
            upcall::deliver_mail(vcpu);
        }
        return deadlines::set_timer(vcpu);
    }
    if vcpu.sleeps {
        vcpu.sleeps = false;
        pcpu.clear_wake(slot);
    }
    let loaded = pcpu.loaded == slot;
    if loaded {
        vcpu.context.interface.signal_again();
    } else {
        pcpu.loaded = slot;
        vcpu.context.restore_registers(pcpu.quirks);
        if vcpu.needs_full_switch {
            vcpu.context.interface.restore(&vcpu.gic);
        } else {
            vcpu.context.interface.restore_fast();
        }
        if pcpu.enabled != vcpu.vgic.hw_enabled() {
            vcpu.gic
                .enable_private(vcpu.timer_bits, board_interrupts(vcpu));
        }
        let number = vcpu.number as u8;
        if vcpu.vcpus > 1
            && let Some(vm) = vcpu.vm
            && let Some(last) = pcpu.last.get_mut(vm)
            && core::mem::replace(last, number) != number
            && vcpu.runs
        {
            context::forget_translations();
        }
    }
    vcpu.gic.restore_active(vcpu.context.active);
    vcpu.context.timers.restore_virtual();
    if vcpu.needs_full_switch {
        vcpu_load_full(vcpu, pcpu);
    }
    if vcpu.runs {
        vcpu.stats.was_away(vcpu.left, reg::cycles());
        if let Some(told) = vcpu.told {
            // No other pCPU writes this word.
            let all = pcpu.sched.stolen(slot);
            let new = pcpu.in_nanoseconds(all.wrapping_sub(vcpu.stolen));
            vcpu.stolen = all;
            memory::tell(told, told.load(Ordering::Relaxed).wrapping_add(new));
        }
    }
    timer::set_on_leaving(deadlines::next_deadline(vcpu, pcpu));
    vcpu.pcpu = Some(pcpu);
}

/// Restores the additional state of a vCPU with [`Vcpu::needs_full_switch`].
#[inline(never)]
fn vcpu_load_full(vcpu: &mut Vcpu, pcpu: &mut Pcpu) {
    if IO && vcpu.meter.exists() {
        bandwidth::load(vcpu, pcpu);
    }
    if IO && vcpu.has_debugging() {
        debug::load(vcpu);
    }
    if IO && vcpu.has_pmu() {
        pmu::load(vcpu);
    }
    if vcpu.has_ptimer {
        vcpu.context.timers.restore_physical();
    }
    if let Some(gppt) = vcpu.gppt.as_mut().filter(|_| vcpu.runs) {
        gppt.restore_interface(&vcpu.gic);
    }
}

/// Returns the ticks that the scheduler has counted as stolen from a vCPU so far.
pub fn stolen(vcpu: &Vcpu) -> u64 {
    let pcpu = vcpu.pcpu.as_deref();
    pcpu.map_or(0, |pcpu| pcpu.sched.stolen(vcpu.slot))
}

/// Returns the board's interrupts behind the private interrupts that the guest has enabled.
fn board_interrupts(vcpu: &Vcpu) -> u32 {
    let board = &plan().header.board;
    let enabled = vcpu.vgic.hw_enabled();
    let bit = |intid: u32, virtual_intid: u32| (enabled >> virtual_intid & 1) << (intid % 32);
    bit(board.vtimer_intid, VTIMER) | bit(board.ptimer_intid, plan::PHYSICAL_TIMER)
}

/// Delivers the SPIs that arrived for the vCPU.
#[inline(never)]
fn raise_arrived(vcpu: &mut Vcpu) {
    let slot = vcpu.slot;
    let run_slot = vcpu
        .pcpu
        .as_deref_mut()
        .and_then(|pcpu| pcpu.run_slot(slot));
    let words = run_slot.map(|run_slot| core::mem::take(&mut run_slot.arrived));
    for (word, bits) in (0u32..).zip(words.unwrap_or_default()) {
        let mut rest = bits;
        while rest != 0 {
            let intid = word.wrapping_mul(32).wrapping_add(rest.trailing_zeros());
            rest &= rest.wrapping_sub(1);
            vcpu.change_interrupts(|vgic, dist, host| vgic.raise(dist, host, intid));
        }
    }
}

/// Delivers what arrived for the vCPU while it did not run: SPIs, SGIs of siblings, messages.
#[inline(never)]
fn catch_up(vcpu: &mut Vcpu) {
    let slot = vcpu.slot;
    let mut arrived = false;
    if let Some(pcpu) = vcpu.pcpu.as_deref_mut() {
        pcpu.pending &= !bit(slot);
        if let Some(run_slot) = pcpu.run_slot(slot) {
            arrived = core::mem::take(&mut run_slot.has_arrived);
        }
    }
    if let Some(vm) = vcpu.vm() {
        if arrived {
            raise_arrived(vcpu);
        }
        // Mostly it is one SGI.
        if vcpu.runs
            && !vcpu.vgic.on_notify_fast(&vm.dist, &mut vcpu.gic)
            && vm.dist.calls(vcpu.number)
        {
            vcpu.change_interrupts(vgic::Cpu::on_notify_slow);
        }
    }
    if mailbox::has_mail(mailbox::of_pcpu(vcpu.index)) || mailbox::has_mail(vcpu.id) {
        upcall::deliver_mail(vcpu);
    }
}

/// Does the work that other pCPUs and the console ask of this pCPU between two slices of long work,
/// and lets other vCPUs have their turns. `false`: more interrupts may be pending.
pub fn poll_and_yield(vcpu: &mut Vcpu) -> bool {
    // More than there can be sources of interrupts, so that the last look finds none, and the work of
    // an interrupt does not add to the next slice.
    let mut quiet = false;
    for _ in 0..POLLS {
        quiet = !upcall::poll(vcpu);
        if quiet {
            break;
        }
    }
    yield_point(vcpu);
    quiet
}

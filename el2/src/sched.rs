//! CPU time: whose thread runs on this pCPU. Decided by `bulkhead_core::sched`; here is what follows from it.
//!
//! A thread that leaves the pCPU takes its timers and registers with it. Whatever comes for its vCPU meanwhile waits, in
//! its mailbox, in the vGIC's shared words, and in its [`Seat`]; it catches up when it comes back.

use core::sync::atomic::Ordering;

use bulkhead_abi::plan::CpuPolicy;
use bulkhead_core::deadlines::Deadlines;
use bulkhead_core::sched::{Policy, SLOTS, Wanted};
use bulkhead_core::vgic::{VTIMER, WORDS};

use crate::hw::{context, cpu, gic, memory, sysreg as reg, thread, timer};
use crate::pcpu::{IDLE, Pcpu, Seat};
use crate::start::plan;
use crate::vcpu::Vcpu;
use crate::{balance, lifecycle, mailbox, timed, vm};

/// Makes the vCPUs of this pCPU and their threads, each of which starts with its first turn.
pub fn make_vcpus(idle: &mut Vcpu) {
    let index = idle.index;
    let own = || {
        let rows = plan().vcpus.iter().enumerate();
        rows.filter(move |(_, row)| usize::from(row.pcpu) == index)
    };
    if let Some(home) = idle.home.as_deref_mut() {
        for (seat, (id, row)) in home.seats.iter_mut().zip(own()) {
            *seat = Some(Seat {
                id: id as u8,
                vm: row.vm as u8,
                number: row.mpidr as u8,
                wakes_at: u64::MAX,
                arrived: [0; WORDS],
            });
            home.used = home.used.wrapping_add(1);
        }
    }
    balance::start(idle);
    for (slot, (id, row)) in own().enumerate().take(SLOTS) {
        let (state, stack) = thread::make(id, idle.index);
        state.become_vcpu(idle, id, row, slot);
        if let Some(home) = idle.home.as_deref_mut() {
            if let Some(place) = home.stacks.get_mut(slot) {
                *place = stack;
            }
            let now = timer::now();
            home.sched.add(slot, policy(row), row.vm, now);
            balance::seat(home, slot, row, now);
            home.sched.wake(slot, now);
            home.news |= bit(slot);
            home.look_again = true;
        }
    }
}

/// What vCPUs may have now. Changed by the pCPU that serves the console, which tells their pCPUs ([`follow`]).
pub static WANTED: Wanted = Wanted::new();

/// Somebody with authority has changed what vCPUs of this pCPU may have.
pub fn follow(vcpu: &mut Vcpu) {
    let Some(home) = vcpu.home.as_deref_mut() else {
        return;
    };
    for (slot, seat) in (0..SLOTS).zip(&home.seats) {
        let Some(seat) = seat else { continue };
        // One that is just being changed is told about afterwards.
        let row = WANTED.of(plan().vcpus, seat.id.into());
        if let Some(policy) = row.as_ref().map(policy)
            && home.sched.policy(slot) != Some(policy)
        {
            home.sched.change(slot, policy, timer::now());
        }
        if let (Some(balancer), Some(row)) = (&mut home.balancer, row) {
            balancer.allow(slot, balance::pool(&row));
        }
    }
    home.look_again = true;
    vcpu.attention = true;
}

/// What a row of the plan gives a vCPU of its pCPU.
fn policy(row: &bulkhead_abi::plan::Vcpu) -> Policy {
    let ticks = timer::nanoseconds;
    if row.policy == CpuPolicy::Server as u16 {
        Policy::Server {
            budget: ticks(row.budget),
            period: ticks(row.period),
        }
    } else if row.policy == CpuPolicy::Fair as u16 {
        Policy::Fair {
            weight: row.weight,
            quota: ticks(row.budget),
            window: ticks(row.period),
        }
    } else {
        Policy::Pinned
    }
}

/// Asks who runs, and leaves the pCPU to it if that is another one. Returns when it is the turn of this thread.
pub fn reschedule(vcpu: &mut Vcpu) {
    turn(vcpu, Why::Look);
}

/// The same where nothing but the turn of this vCPU has come to its end, at `now`, and its thread has nothing to do here any
/// more: all registers of the guest are in the frame. Returns if the turn goes on.
pub fn hand_over(vcpu: &mut Vcpu, now: u64) {
    turn(vcpu, Why::Over(now));
}

/// What [`reschedule`] does behind the switch, for a thread that starts: the first turn of its vCPU.
pub fn begin(vcpu: &mut Vcpu) {
    vcpu.left = reg::cycles();
    turn(vcpu, Why::Comes);
}

/// The same for a thread that has rested. Its guest comes next.
pub fn go_on(vcpu: &mut Vcpu) {
    turn(vcpu, Why::Comes);
    if vcpu.attention {
        lifecycle::attend(vcpu);
    }
}

/// Why a thread asks whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Something has happened.
    Look,
    /// It is the end of its turn.
    Over(u64),
    /// It has it, and has just come to the pCPU.
    Comes,
}

/// One function for all, so that neither what leaves the hardware nor what comes to it is called.
///
/// From a thread that has nothing to do here any more to another one like it no stack is changed until the very end: the vCPU
/// that comes is brought from the stack of the one that leaves.
#[inline(never)]
fn turn(vcpu: &mut Vcpu, why: Why) {
    let Some(mut home) = vcpu.home.take() else {
        return;
    };
    let mut comes = vcpu;
    let mut rests = None;
    let mut is_new = false;
    // First, because it is what happens most.
    let known = match why {
        Why::Over(now) => hand_on(home, now),
        _ => None,
    };
    if known.is_none() && why == Why::Comes {
        if let Some(place) = home.resting.get_mut(comes.slot) {
            *place = None;
        }
    } else {
        let slot = known.unwrap_or_else(|| look(home));
        if slot == comes.slot {
            comes.home = Some(home);
            return set_timer(comes);
        }
        step_out(comes, home);
        if why == Why::Look {
            home = thread::switch(home, comes.slot, slot);
        } else {
            thread::lay_down(comes, home);
            // What has come for the other one it does on its own stack; and if somebody moves, all have news.
            let has_news = home.has_news(slot);
            let waits = home.resting.get_mut(slot).filter(|_| !has_news);
            let Some(other) = waits.and_then(Option::take) else {
                thread::rest(comes, home, slot)
            };
            rests = Some(comes);
            comes = other;
        }
    }
    if rests.is_none() && home.moves != 0 {
        comes.home = Some(home);
        is_new = balance::switched(comes);
        match comes.home.take() {
            Some(again) => home = again,
            None => return,
        }
    }
    let slot = comes.slot;
    let has_news = home.has_news(slot);
    step_in(comes, home);
    if let Some(rests) = rests {
        thread::pass(rests, comes)
    }
    // EL2 goes on, and relies on what has been brought.
    reg::isb();
    if is_new {
        context::forget_former_life();
    }
    if has_news {
        catch_up(comes);
    }
}

/// Whose turn it is at the end of one, if that is known.
#[inline(always)]
fn hand_on(home: &mut Pcpu, now: u64) -> Option<usize> {
    let (slot, until) = home.sched.hand_over(now)?;
    home.turn.until = until;
    Some(slot)
}

/// Asks the scheduler whose turn it is: the slot, or [`IDLE`]. WFI and WFE trap as the turn says.
#[inline(never)]
fn look(home: &mut Pcpu) -> usize {
    home.look_again = false;
    home.turn = home.sched.next(timer::now());
    let traps = [home.turn.trap_wfi, home.turn.trap_wfe];
    if traps != home.traps {
        home.traps = traps;
        cpu::trap_waits(traps[0], traps[1]);
    }
    home.turn.slot.unwrap_or(IDLE)
}

/// The vCPU has nothing to do until it is woken: leaves the pCPU. Returns when it has.
pub fn block(vcpu: &mut Vcpu) {
    if let Some(home) = vcpu.home.as_deref_mut() {
        home.sched.block(timer::now());
        reschedule(vcpu);
    }
}

/// The guest waits for an event by WFE: others go first.
pub fn pass(vcpu: &mut Vcpu) {
    if let Some(home) = vcpu.home.as_deref_mut() {
        home.sched.pass();
        reschedule(vcpu);
    }
}

/// Between two slices of long work: lets others have their turns.
pub fn breathe(vcpu: &mut Vcpu) {
    if vcpu.home.as_deref().is_some_and(|home| home.look_again) {
        reschedule(vcpu);
    }
}

/// A vCPU of this pCPU has something to do.
fn wake(vcpu: &mut Vcpu, slot: usize) {
    if let Some(home) = vcpu.home.as_deref_mut()
        && home.sched.wake(slot, timer::now())
    {
        home.look_again = true;
        vcpu.attention = true;
    }
}

/// Takes the vCPU from the hardware, except for registers that may stay there until another one comes.
#[inline(always)]
fn step_out(vcpu: &mut Vcpu, home: &mut Pcpu) {
    let mut wakes_at = vcpu.deadlines.next().unwrap_or(u64::MAX);
    if vcpu.is_special {
        if vcpu.slot == IDLE {
            return;
        }
        wakes_at = wakes_at.min(step_out_special(vcpu, home));
    } else {
        vcpu.context.timers.keep_virtual();
        timer::settle();
        vcpu.context.active = vcpu.gic.take_active(vcpu.timer_bits);
        vcpu.context.interface.keep_usual();
    }
    vcpu.context.keep_registers(home.auxiliary);
    home.enabled = vcpu.vgic.enabled_on_board();
    vcpu.left = reg::cycles();
    if let Some(at) = vcpu.context.timers.virtual_due() {
        wakes_at = wakes_at.min(virtual_wakes_at(vcpu, at));
    }
    if wakes_at != u64::MAX {
        vcpu.sleeps = true;
        home.set_wake(vcpu.slot, wakes_at);
    }
}

/// What is its own of a vCPU that [`Vcpu::is_special`]. Gives when its physical timer has to wake it.
#[inline(never)]
fn step_out_special(vcpu: &mut Vcpu, home: &mut Pcpu) -> u64 {
    if let Some(own) = &mut vcpu.own {
        own.hide(&vcpu.gic);
        // Not every way to tell it something leaves an interrupt that waits.
        home.news |= bit(vcpu.slot);
    }
    let timers = &mut vcpu.context.timers;
    timers.keep_virtual();
    if vcpu.owns_physical {
        timers.keep_physical();
    }
    timer::settle();
    let due = timers.physical_due();
    vcpu.context.active = vcpu.gic.take_active(vcpu.timer_bits);
    vcpu.context.interface.keep(&vcpu.gic);
    due.filter(|_| !is_active(vcpu, plan().header.board.ptimer_intid))
        .unwrap_or(u64::MAX)
}

/// A private interrupt has come already and is being handled: its timer does not interrupt again.
fn is_active(vcpu: &Vcpu, intid: u32) -> bool {
    vcpu.context.active & 1 << (intid % 32) != 0
}

/// When the virtual timer, due at `at`, has to wake a vCPU.
fn virtual_wakes_at(vcpu: &Vcpu, at: u64) -> u64 {
    if is_active(vcpu, plan().header.board.vtimer_intid) {
        return u64::MAX;
    }
    let offset = vcpu.vm().map_or(0, |vm| vm.time.offset());
    at.saturating_add(offset)
}

/// Brings the vCPU back.
#[inline(always)]
fn step_in(vcpu: &mut Vcpu, home: &'static mut Pcpu) {
    let slot = vcpu.slot;
    if slot == IDLE {
        gic::keep_silent();
        vcpu.home = Some(home);
        if mailbox::is_for(vcpu.id) {
            mailbox::open(vcpu);
        }
        return set_timer(vcpu);
    }
    if vcpu.sleeps {
        vcpu.sleeps = false;
        home.wakes(slot);
    }
    let loaded = home.loaded == slot;
    if loaded {
        vcpu.context.interface.signal_again();
    } else {
        home.loaded = slot;
        vcpu.context.bring_registers(home.auxiliary);
        if vcpu.is_special {
            vcpu.context.interface.bring(&vcpu.gic);
        } else {
            vcpu.context.interface.bring_usual();
        }
        if home.enabled != vcpu.vgic.enabled_on_board() {
            vcpu.gic
                .enable_private(vcpu.timer_bits, board_interrupts(vcpu));
        }
        let number = vcpu.number as u8;
        if vcpu.vcpus > 1
            && let Some(vm) = vcpu.vm
            && let Some(last) = home.last.get_mut(vm)
            && core::mem::replace(last, number) != number
            && vcpu.runs
        {
            context::forget_translations();
        }
    }
    vcpu.gic.give_active(vcpu.context.active);
    vcpu.context.timers.bring_virtual();
    if vcpu.is_special {
        step_in_special(vcpu);
    }
    if vcpu.runs {
        vcpu.stats.was_away(vcpu.left, reg::cycles());
        if let Some(told) = vcpu.told {
            // Nobody else writes it.
            let all = home.sched.stolen(slot);
            let new = home.in_nanoseconds(all.wrapping_sub(vcpu.stolen));
            vcpu.stolen = all;
            memory::tell(told, told.load(Ordering::Relaxed).wrapping_add(new));
        }
    }
    timer::set_on_leaving(next_deadline(vcpu, home));
    vcpu.home = Some(home);
}

/// What is its own of a vCPU that [`Vcpu::is_special`].
#[inline(never)]
fn step_in_special(vcpu: &mut Vcpu) {
    if vcpu.owns_physical {
        vcpu.context.timers.bring_physical();
    }
    if let Some(own) = vcpu.own.as_mut().filter(|_| vcpu.runs) {
        own.show(&vcpu.gic);
    }
}

/// What the scheduler has counted as stolen from a vCPU so far, in ticks.
pub fn stolen(vcpu: &Vcpu) -> u64 {
    let home = vcpu.home.as_deref();
    home.map_or(0, |home| home.sched.stolen(vcpu.slot))
}

/// The board's interrupts behind the private ones that the guest has enabled.
fn board_interrupts(vcpu: &Vcpu) -> u32 {
    let board = &plan().header.board;
    let enabled = vcpu.vgic.enabled_on_board();
    let bit = |intid: u32, virtual_intid: u32| (enabled >> virtual_intid & 1) << (intid % 32);
    bit(board.vtimer_intid, VTIMER) | bit(board.ptimer_intid, timed::PHYSICAL_TIMER)
}

/// The bit of a slot.
const fn bit(slot: usize) -> u32 {
    1u32.wrapping_shl(slot as u32)
}

/// What came for the vCPU while it did not run: SPIs, SGIs of siblings, messages.
#[inline(never)]
fn catch_up(vcpu: &mut Vcpu) {
    let slot = vcpu.slot;
    let arrived = vcpu.home.as_deref_mut().and_then(|home| {
        home.news &= !bit(slot);
        Some(core::mem::take(&mut home.seat(slot)?.arrived))
    });
    if let (Some(vm), Some(words)) = (vcpu.vm(), arrived) {
        for (word, bits) in (0u32..).zip(words) {
            let mut rest = bits;
            while rest != 0 {
                let intid = word.wrapping_mul(32).wrapping_add(rest.trailing_zeros());
                rest &= rest.wrapping_sub(1);
                let whom = vcpu.vgic.raise(&vm.dist, &mut vcpu.gic, intid);
                vcpu.notify(whom);
            }
        }
        if vcpu.runs && vm.dist.calls(vcpu.number) {
            let whom = vcpu.vgic.look(&vm.dist, &mut vcpu.gic);
            vcpu.notify(whom);
        }
    }
    mailbox::open(vcpu);
}

/// Arms EL2's timer for what is due next: of the vCPU that runs, of those that do not, of the pCPU itself.
pub fn set_timer(vcpu: &mut Vcpu) {
    if let Some(home) = vcpu.home.take() {
        timer::set(next_deadline(vcpu, home));
        vcpu.home = Some(home);
    }
}

#[inline(always)]
fn next_deadline(vcpu: &Vcpu, home: &mut Pcpu) -> u64 {
    let next = |deadlines: &Deadlines| deadlines.next().unwrap_or(u64::MAX);
    home.rest = next(&vcpu.deadlines).min(home.due);
    home.rest.min(home.turn.until)
}

fn others(home: &Pcpu, own: usize) -> impl Iterator<Item = (usize, &Seat)> {
    let all = (0..home.used).zip(&home.seats);
    all.filter_map(move |(slot, seat)| Some((slot, seat.as_ref().filter(|_| slot != own)?)))
}

/// The slots of those other vCPUs of this pCPU for which `has_news` holds, a bit for each.
fn slots(vcpu: &Vcpu, has_news: impl Fn(&Seat) -> bool) -> u32 {
    let mut found = 0;
    if let Some(home) = vcpu
        .home
        .as_deref()
        .filter(|home| home.has_others(vcpu.slot))
    {
        for (slot, seat) in others(home, vcpu.slot) {
            if has_news(seat) {
                found |= bit(slot);
            }
        }
    }
    found
}

fn wake_all(vcpu: &mut Vcpu, found: u32) {
    for slot in numbers(found) {
        wake(vcpu, slot);
    }
}

/// Something has come for these, which do not run.
fn tell_all(vcpu: &mut Vcpu, found: u32) {
    if let Some(home) = vcpu.home.as_deref_mut() {
        home.news |= found;
    }
    wake_all(vcpu, found);
}

/// Numbers of the bits that are set.
fn numbers(bits: u32) -> impl Iterator<Item = usize> {
    let mut rest = bits;
    core::iter::from_fn(move || {
        let number = rest.trailing_zeros() as usize;
        (rest != 0).then(|| {
            rest &= rest.wrapping_sub(1);
            number
        })
    })
}

/// EL2's timer has fired for the end of the turn, and for nothing else.
#[inline(always)]
pub fn is_over(vcpu: &Vcpu, now: u64) -> bool {
    let home = vcpu.home.as_deref();
    home.is_some_and(|home| now < home.rest && now >= home.turn.until)
}

/// EL2's timer: wakes the vCPUs whose time has come, and ends the turn if it is over. `true`: [`reschedule`] comes next,
/// which sets the timer.
#[inline(always)]
pub fn timer_fired(vcpu: &mut Vcpu, now: u64) -> bool {
    if vcpu.home.as_deref().is_some_and(|home| home.soonest <= now) {
        wake_due(vcpu, now);
    }
    let Some(home) = vcpu.home.as_deref_mut() else {
        return false;
    };
    if now >= home.turn.until {
        home.turn.until = u64::MAX;
        home.look_again = true;
        vcpu.attention = true;
    }
    home.look_again
}

#[inline(never)]
fn wake_due(vcpu: &mut Vcpu, now: u64) {
    let found = slots(vcpu, |seat| seat.wakes_at <= now);
    for slot in numbers(found) {
        if let Some(home) = vcpu.home.as_deref_mut() {
            home.wakes(slot);
        }
    }
    wake_all(vcpu, found);
}

/// A sibling of a vCPU of this pCPU that does not run has called it.
pub fn called(vcpu: &mut Vcpu) {
    let found = slots(vcpu, |seat| {
        vm::vm(seat.vm.into()).dist.calls(seat.number.into())
    });
    tell_all(vcpu, found);
}

/// There is a message for one of the threads of this pCPU that do not run.
pub fn mail(vcpu: &mut Vcpu) {
    let found = slots(vcpu, |seat| mailbox::is_for(seat.id.into()));
    tell_all(vcpu, found);
}

/// A physical SPI has come, and its priority has been dropped: wakes the vCPU of this pCPU that it is for, if that is one
/// that does not run.
pub fn arrived(vcpu: &mut Vcpu, pintid: u32) -> bool {
    let found = slots(vcpu, |seat| vm::vm(seat.vm.into()).behind(pintid).is_some());
    let slot = found.trailing_zeros() as usize;
    let Some(seat) = vcpu.home.as_deref_mut().and_then(|home| home.seat(slot)) else {
        return false;
    };
    let Some(vintid) = vm::vm(seat.vm.into()).behind(pintid) else {
        return false;
    };
    if let Some(word) = seat.arrived.get_mut((vintid / 32) as usize) {
        *word |= 1 << (vintid % 32);
    }
    tell_all(vcpu, bit(slot));
    true
}

/// The guest has nothing to do until an interrupt comes (WFI).
pub fn wait(vcpu: &mut Vcpu) {
    let gate = gic::gate();
    let below = gate.mask.min(gate.running);
    if !vcpu.vgic.is_called(&vcpu.gic, gate.groups as u32, below) {
        block(vcpu);
    }
    lifecycle::attend(vcpu);
}

//! vCPUs that move between pCPUs. Who moves is decided by `bulkhead_core::sched::balance`; here is how (ADR 18).
//!
//! The pCPU that has a vCPU takes it out, once its thread does not run, and lays it into the berth of the other pCPU, which a message
//! tells. What the vCPU is lies in pages that all pCPUs see. What of it is its pCPU's, its thread changes when it goes on there.

use core::sync::atomic::{Ordering, fence};

use bulkhead_abi::plan::{self, CpuPolicy, MAX_PCPUS};
use bulkhead_core::deadlines::Purpose;
use bulkhead_core::sched::balance::{Balancer, Course, Loads, Move, PAUSE_MS, PERIOD_MS};
use bulkhead_core::sched::{SLOTS, Traveller};

use crate::hw::claim::Claim;
use crate::hw::mmu::Windows;
use crate::hw::{cpu, sysreg as reg, timer};
use crate::pcpu::{IDLE, LEAVES, Pcpu, Seat};
use crate::start::plan;
use crate::vcpu::Vcpu;
use crate::vm::PLACES;
use crate::{deadlines, mailbox, sched, watch};

/// A vCPU on its way.
#[derive(Clone, Copy, Debug)]
struct Passenger {
    seat: Seat,
    /// Stack pointer of its thread.
    stack: u64,
    traveller: Traveller,
    course: Course,
}

/// What the pCPUs know of each other.
static LOADS: Loads = Loads::new();
/// By pCPUs: the vCPU that comes.
static BERTHS: [Claim<Option<Passenger>>; MAX_PCPUS] = [const { Claim::new(None) }; MAX_PCPUS];

/// pCPUs on which a vCPU may be, a bit for each; 0 if it stays. One whose VM has interrupts of the board stays: they are
/// routed to its pCPU.
pub fn pool(row: &plan::Vcpu) -> u32 {
    if row.policy == CpuPolicy::Fair as u16 && plan().irqs_of(usize::from(row.vm)).is_empty() {
        row.pool
    } else {
        0
    }
}

/// The balancer of this pCPU, if it is in a pool with another one. Before its vCPUs are seated.
pub fn start(idle: &mut Vcpu) {
    let is_here = |row: &plan::Vcpu| pool(row).wrapping_shr(idle.index as u32) & 1 != 0;
    let mut rows = plan().vcpus.iter();
    if !rows.any(|row| is_here(row) && row.pool.count_ones() > 1) {
        return;
    }
    let (index, gic) = (idle.index, idle.gic);
    if let Some(home) = idle.home.as_deref_mut() {
        home.gic = gic;
        home.sched.watch_sleep();
        home.balancer = Some(Balancer::new(index, kind()));
    }
    look_again(idle, PERIOD_MS);
}

/// What a guest may notice of a pCPU, in a number that is not 0.
fn kind() -> u64 {
    let speculation = cpu::speculation();
    let first = [speculation.midr, speculation.pfr0];
    let ids = cpu::id_registers();
    // FNV-1a, a word at a time.
    let all = first.iter().chain(&ids);
    all.fold(0xcbf2_9ce4_8422_2325, |hash: u64, word| {
        (hash ^ word).wrapping_mul(0x100_0000_01b3)
    }) | 1
}

/// There is a vCPU in a slot of this pCPU.
pub fn seat(home: &mut Pcpu, slot: usize, row: &plan::Vcpu, now: u64) {
    if let Some(balancer) = &mut home.balancer {
        balancer.add(slot, Course::new(pool(row), now));
    }
}

fn look_again(vcpu: &mut Vcpu, after: u64) {
    let at = timer::now().saturating_add(timer::milliseconds(after));
    deadlines::set(vcpu, Purpose::Balance, Some(at));
}

/// Once in a period: measures; and a little later, so that each of the two is short and the others have measured, too, decides
/// who leaves.
#[inline(never)]
pub fn look(vcpu: &mut Vcpu) {
    let Some(home) = vcpu.home.as_deref_mut() else {
        return;
    };
    let Some(balancer) = &mut home.balancer else {
        return;
    };
    home.measured = !home.measured;
    if home.measured {
        balancer.measure(&mut home.sched, &LOADS, timer::now());
        return look_again(vcpu, PAUSE_MS);
    }
    if home.leaves.is_none()
        && let Some(chosen) = balancer.choose(&LOADS)
    {
        home.leaves = Some(chosen);
        home.moves |= LEAVES;
        // It leaves behind the next switch, which so is no short one.
        home.news = u32::MAX;
        // If it runs, its turn ends here, and it leaves behind the switch.
        home.sched.bar(chosen.slot, true);
        home.look_again = true;
        vcpu.attention = true;
        give_away(vcpu);
    }
    look_again(vcpu, PERIOD_MS.wrapping_sub(PAUSE_MS));
}

/// Behind a switch, before the thread that has the pCPU now is brought back. `true`: it has come from another pCPU.
#[inline(never)]
pub fn switched(vcpu: &mut Vcpu) -> bool {
    let is_new = settle(vcpu);
    give_away(vcpu);
    is_new
}

/// A thread that has come from another pCPU makes this one its own.
fn settle(vcpu: &mut Vcpu) -> bool {
    let Some(home) = vcpu.home.as_deref_mut() else {
        return false;
    };
    let Some(slot) = home.sched.current().filter(|_| vcpu.slot != IDLE) else {
        return false;
    };
    let mark = 1u32.wrapping_shl(slot as u32);
    if home.moves & mark == 0 {
        return false;
    }
    home.moves &= !mark;
    vcpu.slot = slot;
    vcpu.index = home.index;
    let siblings = vcpu.gic.siblings;
    vcpu.gic = home.gic;
    vcpu.gic.siblings = siblings;
    vcpu.windows = Windows::of(home.index);
    vcpu.sort();
    // The cycle counter is another one.
    vcpu.left = reg::cycles();
    if vcpu.runs {
        vcpu.stats.enter(vcpu.left);
    }
    true
}

/// The vCPU that is to leave does so, if its thread does not run.
fn give_away(vcpu: &mut Vcpu) {
    let own = vcpu.slot;
    let Some(home) = vcpu.home.as_deref_mut() else {
        return;
    };
    let Some(Move { slot, to }) = home.leaves.filter(|chosen| chosen.slot != own) else {
        return;
    };
    home.leaves = None;
    home.moves &= !LEAVES;
    // What the guest has begun here (maintenance, stores) is finished before it goes on elsewhere.
    reg::dsb();
    let sent = BERTHS.get(to).and_then(|berth| {
        let lay = |place: &mut Option<Passenger>| {
            if place.is_none() && LOADS.free(to) > 0 {
                *place = take_out(home, slot, to);
                place.is_some()
            } else {
                false
            }
        };
        berth.try_use(lay)
    });
    if sent == Some(true) {
        mailbox::send(mailbox::of_pcpu(to), mailbox::ARRIVAL);
    } else {
        // The next look may choose it again.
        home.sched.bar(slot, false);
        home.look_again = true;
        vcpu.attention = true;
    }
}

/// Takes a vCPU that does not run out of this pCPU.
fn take_out(home: &mut Pcpu, slot: usize, to: usize) -> Option<Passenger> {
    let course = home.balancer.as_ref()?.course(slot)?;
    let seat = home.seats.get(slot).copied().flatten()?;
    let stack = home.stacks.get(slot).copied()?;
    let traveller = home.sched.depart(slot, timer::now())?;
    home.wakes(slot);
    if let Some(place) = home.seats.get_mut(slot) {
        *place = None;
    }
    while home.used > 0 && home.seats.get(home.used.wrapping_sub(1)) == Some(&None) {
        home.used = home.used.wrapping_sub(1);
    }
    let mark = 1u32.wrapping_shl(slot as u32);
    if let Some(rests) = home.resting.get_mut(slot) {
        *rests = None;
    }
    home.news &= !mark;
    // It may have come and not run yet.
    home.moves &= !mark;
    if home.loaded == slot {
        home.loaded = IDLE;
    }
    if let Some(balancer) = &mut home.balancer {
        balancer.set(slot, None, &LOADS);
        balancer.sent(&course, to, &LOADS);
    }
    PLACES.set(seat.id.into(), to);
    Some(Passenger {
        seat,
        stack,
        traveller,
        course,
    })
}

/// A vCPU has come to this pCPU.
#[inline(never)]
pub fn take_in(vcpu: &mut Vcpu) {
    let Some(home) = vcpu.home.as_deref_mut() else {
        return;
    };
    let own = mailbox::of_pcpu(home.index);
    let Some(berth) = BERTHS.get(home.index) else {
        return;
    };
    let taken = berth.try_use(|place| {
        // Who lays one here has looked whether there is a slot.
        let slot = home.seats.iter().position(Option::is_none)?;
        let passenger = place.take()?;
        if let Some(balancer) = &mut home.balancer {
            balancer.set(slot, Some(passenger.course), &LOADS);
        }
        Some((slot, passenger))
    });
    let Some(taken) = taken else {
        // Somebody looks into it at this moment.
        return mailbox::send(own, mailbox::ARRIVAL);
    };
    let Some((slot, passenger)) = taken else {
        return;
    };
    if let Some(place) = home.stacks.get_mut(slot) {
        *place = passenger.stack;
    }
    let seat = Seat {
        wakes_at: u64::MAX,
        ..passenger.seat
    };
    if let Some(place) = home.seats.get_mut(slot) {
        *place = Some(seat);
    }
    home.used = home.used.max(slot.wrapping_add(1)).min(SLOTS);
    let mark = 1u32.wrapping_shl(slot as u32);
    home.moves |= mark;
    home.news |= mark;
    if let Some(last) = home.last.get_mut(usize::from(seat.vm)) {
        *last = u8::MAX;
    }
    // What was left for it on the way is seen when it runs, which it does now: see `Places`.
    fence(Ordering::SeqCst);
    home.sched.arrive(slot, passenger.traveller, timer::now());
    // What it may have has perhaps changed on the way, and somebody may have asked the pCPU that it has left.
    sched::follow(vcpu);
    watch::answer(vcpu);
}

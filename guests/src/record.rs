//! Interrupts that each CPU has taken: the handler of programs that count interrupts.

use crate::cpu::{self, MOST};
use crate::gic::{self, Taken};
use crate::{sysreg, timer};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// INTIDs that are counted.
pub const INTIDS: usize = 96;
/// Interrupts of a CPU whose order is kept.
const KEPT: usize = 64;

static COUNTS: [[AtomicU32; INTIDS]; MOST] =
    [const { [const { AtomicU32::new(0) }; INTIDS] }; MOST];
static ORDER: [[AtomicU32; KEPT]; MOST] = [const { [const { AtomicU32::new(0) }; KEPT] }; MOST];
static TAKEN: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
/// GICv2: bit n of the word for an SGI: CPU n has sent it.
static SENDERS: [[AtomicU32; 16]; MOST] = [const { [const { AtomicU32::new(0) }; 16] }; MOST];
/// Value that a CPU has written before it sent the SGI of its own number.
static MARKS: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// The mark of each CPU as each other one read it when it took that SGI.
static SEEN: [[AtomicU64; MOST]; MOST] = [const { [const { AtomicU64::new(0) }; MOST] }; MOST];
/// A handler of this CPU waits while its bit is set.
static HOLD: AtomicU32 = AtomicU32::new(0);
/// The timer is armed again until it was taken so often.
static TICKS: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

/// The handler: counts, waits if [`hold`] says so, ends the interrupt.
pub fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    count(taken);
    let here = cpu::number();
    while HOLD.load(Acquire) & 1 << here != 0 {
        sysreg::cpu_yield();
    }
    gic::end(taken);
}

/// Counts an interrupt that was acknowledged by hand.
pub fn count(taken: Taken) {
    let (here, intid) = (cpu::number(), taken.intid());
    if intid == timer::INTID {
        if TICKS[here].load(Relaxed) > 1 {
            TICKS[here].fetch_sub(1, Relaxed);
            timer::arm(timer::now() + timer::ticks(20));
        } else {
            timer::disarm();
        }
    }
    if gic::version() == 2 && intid < 16 {
        SENDERS[here][intid as usize].fetch_or(1 << taken.source(), Relaxed);
    }
    if let Some(mark) = MARKS.get(intid as usize) {
        SEEN[here][intid as usize].store(mark.load(Acquire), Release);
    }
    let place = TAKEN[here].load(Relaxed);
    if let Some(entry) = ORDER[here].get(place as usize) {
        entry.store(intid, Relaxed);
    }
    TAKEN[here].store(place + 1, Release);
    if let Some(count) = COUNTS[here].get(intid as usize) {
        count.fetch_add(1, Release);
    }
}

/// Forgets everything, of all CPUs. None of them may be in its handler.
pub fn forget() {
    for cpu in 0..MOST {
        TAKEN[cpu].store(0, Relaxed);
        COUNTS[cpu].iter().for_each(|count| count.store(0, Relaxed));
        SENDERS[cpu].iter().for_each(|word| word.store(0, Relaxed));
        SEEN[cpu].iter().for_each(|word| word.store(0, Relaxed));
    }
    sysreg::dsb();
}

/// Returns the number of interrupts that a CPU has taken since [`forget`].
pub fn taken(cpu: usize) -> u32 {
    TAKEN[cpu].load(Acquire)
}

/// Returns the number of interrupts of one INTID that a CPU has taken.
pub fn of(cpu: usize, intid: u32) -> u32 {
    COUNTS[cpu][intid as usize].load(Acquire)
}

/// Returns the number of interrupts of one INTID that all CPUs have taken.
pub fn everywhere(intid: u32) -> u32 {
    (0..MOST).map(|cpu| of(cpu, intid)).sum()
}

/// The interrupt that a CPU took in this place.
pub fn order(cpu: usize, place: usize) -> u32 {
    ORDER[cpu][place].load(Acquire)
}

/// Returns the CPUs that have sent an SGI to a CPU, a bit for each (GICv2).
pub fn senders(cpu: usize, intid: u32) -> u32 {
    SENDERS[cpu][intid as usize].load(Acquire)
}

/// Writes the mark of this CPU, for CPUs that take the SGI of its number.
pub fn mark(value: u64) {
    MARKS[cpu::number()].store(value, Release);
}

/// The mark of `from` when `cpu` last took the SGI of that number.
pub fn seen(cpu: usize, from: usize) -> u64 {
    SEEN[cpu][from].load(Acquire)
}

/// Handlers of these CPUs (a bit for each) wait before they end their interrupt.
pub fn hold(cpus: u32) {
    HOLD.store(cpus, Release);
}

/// Has this CPU's timer fire `times` times, every 20 us.
pub fn tick(times: u64) {
    TICKS[cpu::number()].store(times, Relaxed);
    timer::arm(timer::now() + timer::ticks(20));
}

/// Time for what is on its way to arrive, here and at other CPUs: an emulator may run one at a time.
pub fn settle() {
    sysreg::isb();
    let end = timer::now() + timer::ticks(50);
    while timer::now() < end {
        sysreg::cpu_yield();
    }
}

/// Opens the mask of this CPU for a while, then says how many interrupts it has taken.
pub fn listen() -> u32 {
    sysreg::irq_on();
    settle();
    sysreg::irq_off();
    taken(cpu::number())
}

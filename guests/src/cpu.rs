//! The CPUs of the machine: which one this is, starting others (PSCI, DEN0022), work for them.

use crate::sysreg::{cpu_yield, mask_all, sev, wfi};
use crate::{check, power, timer};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

/// Most CPUs that a program can use.
pub const MOST: usize = 8;
/// Guest time after which another CPU counts as lost: a guard against hanging, no measure.
const PATIENCE_US: u64 = 5_000_000;

/// Number of this CPU, from 0.
#[inline(always)]
pub fn number() -> usize {
    // Affinity 0 is the number, on `virt` and for each guest of up to eight CPUs.
    (mrs!("mpidr_el1") & 7) as usize
}

/// Affinity of a CPU, as MPIDR_EL1 holds it and PSCI and GICD_IROUTER want it.
pub fn affinity(cpu: usize) -> u64 {
    mrs!("mpidr_el1") & 0xff_00ff_ff00 | cpu as u64
}

/// Address of the function that each CPU calls when it has started.
static ENTRY: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];

unsafe extern "C" {
    fn secondary_start();
}

/// Returns the entry point of a CPU that is started, for calls of PSCI by hand. The CPU then calls
/// the function of the latest [`prepare`] for it.
pub fn entry() -> u64 {
    secondary_start as *const () as u64
}

/// Says what a CPU does when it starts: `work` gets the context that CPU_ON was given. When it
/// returns, the CPU turns itself off.
pub fn prepare(cpu: usize, work: fn(u64)) {
    ENTRY[cpu].store(work as usize, Release);
}

/// Starts a CPU; gives PSCI's answer, 0 for success.
pub fn start(cpu: usize, work: fn(u64), context: u64) -> i32 {
    prepare(cpu, work);
    power::cpu_on(affinity(cpu), entry(), context)
}

#[unsafe(no_mangle)]
extern "C" fn secondary_rust(context: u64) -> ! {
    let work = ENTRY[number()].load(Acquire);
    // SAFETY: `prepare` stored a function of this type, and it comes before CPU_ON (I-ONCE).
    let work = unsafe { core::mem::transmute::<usize, fn(u64)>(work) };
    work(context);
    off()
}

/// Turns this CPU off.
pub fn off() -> ! {
    mask_all();
    power::cpu_off();
    // Refused: no one is left to tell.
    loop {
        wfi();
    }
}

/// Waits in a loop until `condition` holds; gives up after seconds of guest time.
pub fn wait(condition: impl Fn() -> bool) -> bool {
    let end = timer::now() + timer::ticks(PATIENCE_US);
    while !condition() {
        if timer::now() > end {
            return false;
        }
        cpu_yield();
    }
    true
}

/// Work for a CPU that is in [`serve`]: a function, and its argument.
struct Desk {
    work: AtomicUsize,
    argument: AtomicU64,
    result: AtomicU64,
    /// Number of times that work was given, and done.
    given: AtomicU64,
    done: AtomicU64,
}

static DESKS: [Desk; MOST] = [const {
    Desk {
        work: AtomicUsize::new(0),
        argument: AtomicU64::new(0),
        result: AtomicU64::new(0),
        given: AtomicU64::new(0),
        done: AtomicU64::new(0),
    }
}; MOST];

/// Runs on a CPU that works for others: sets up its GIC, then does the work of [`call`] and [`give`]
/// for ever.
pub fn serve(_context: u64) {
    crate::gic::init_cpu();
    let desk = &DESKS[number()];
    loop {
        let next = desk.done.load(Relaxed) + 1;
        while desk.given.load(Acquire) < next {
            cpu_yield();
        }
        // SAFETY: `give` stored a function of this type before it counted.
        let work =
            unsafe { core::mem::transmute::<usize, fn(u64) -> u64>(desk.work.load(Relaxed)) };
        desk.result
            .store(work(desk.argument.load(Relaxed)), Relaxed);
        desk.done.store(next, Release);
        sev();
    }
}

/// Starts a CPU that serves; waits until it does.
pub fn hire(cpu: usize) -> bool {
    start(cpu, serve, 0) == 0 && call(cpu, |_| 0, 0).is_some()
}

/// Starts CPUs that serve, and reports each as a check.
pub fn hire_all(cpus: Range<usize>) {
    for cpu in cpus {
        check::holds(format_args!("CPU {cpu} serves"), hire(cpu), "no answer");
    }
}

/// Has a CPU in [`serve`] do something; does not wait. Its earlier work must be done.
pub fn give(cpu: usize, work: fn(u64) -> u64, argument: u64) {
    let desk = &DESKS[cpu];
    desk.work.store(work as usize, Relaxed);
    desk.argument.store(argument, Relaxed);
    desk.given.fetch_add(1, Release);
    sev();
}

/// Whether a CPU has done all that it was given.
pub fn is_done(cpu: usize) -> bool {
    DESKS[cpu].done.load(Acquire) == DESKS[cpu].given.load(Relaxed)
}

/// Returns the result of the latest work of a CPU; none if it does not come to an end.
pub fn result(cpu: usize) -> Option<u64> {
    wait(|| is_done(cpu)).then(|| DESKS[cpu].result.load(Relaxed))
}

/// Has a CPU in [`serve`] do something and waits for the result; none if it does not come.
pub fn call(cpu: usize, work: fn(u64) -> u64, argument: u64) -> Option<u64> {
    give(cpu, work, argument);
    result(cpu)
}

/// Opens the interrupt mask of a CPU in [`serve`].
pub fn unmask(cpu: usize) {
    let open = |_| {
        crate::sysreg::irq_on();
        0
    };
    call(cpu, open, 0);
}

/// Closes it.
pub fn mask(cpu: usize) {
    let close = |_| {
        crate::sysreg::irq_off();
        0
    };
    call(cpu, close, 0);
}

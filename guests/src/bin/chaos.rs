//! Claim: several CPUs of a guest that do anything at all at once cost that guest only, and it can be
//! stopped in the middle of it.
//!
//! Each CPU draws from calls, SGIs, changes of SPIs (routes, enables, pending, active), accesses to the
//! interrupt controller, faults, sleeps, turning siblings on and itself off, for `ms=` of the boot
//! arguments (200 if there is none). Then everything has to work again. At last all CPUs do the same
//! once more, and one of them ends the machine in the middle: `end=` says which and how: its number, plus
//! 0 for power off, 10 for reset, 20 for an exception that no vector takes, 30 for tables that lie nowhere.
//! With a shared page `boots` it starts again for each of `boots=` starts, each with another seed and end.
#![no_std]
#![no_main]

use bulkhead_guests::power::{self, PSCI_SYSTEM_RESET};
use bulkhead_guests::probe::{self, Width};
use bulkhead_guests::random::Random;
use bulkhead_guests::{Board, alive, check, cpu, gic, guest, println, ruin, shared, sysreg, timer};
use core::sync::atomic::{AtomicU64, Ordering::*};

guest!(main = main, irq = on_irq);

const DEFAULT_MS: u64 = 200;
/// SPIs that no device drives.
const FIRST: u64 = 40;
const SPIS: u64 = 20;

static CPUS: AtomicU64 = AtomicU64::new(0);
static SEED: AtomicU64 = AtomicU64::new(0);
/// Counter value at which a CPU stops.
static UNTIL: AtomicU64 = AtomicU64::new(0);
/// CPU that ends the machine then, and the way; [`NOBODY`] for none.
static END: AtomicU64 = AtomicU64::new(NOBODY);
const NOBODY: u64 = u64::MAX;
/// Answers and faults that must not come, and everything that was done.
static WRONG: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicU64 = AtomicU64::new(0);
static STARTS: AtomicU64 = AtomicU64::new(0);
static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

fn main(board: &'static Board) {
    let boots = board.shared("boots").map(shared::words);
    let boot = boots.map_or(1, |page| page[0].fetch_add(1, Relaxed) + 1);
    let last = board.argument("boots").unwrap_or(1);
    let ticks = timer::frequency() / 1000 * board.argument("ms").unwrap_or(DEFAULT_MS);
    println!("chaos: boot {boot} of {last}, {} CPUs", board.cpus);
    CPUS.store(board.cpus as u64, Relaxed);
    SEED.store(boot, Relaxed);
    gic::init();

    turmoil(board, ticks, NOBODY);
    let off = (1..board.cpus).all(|cpu| cpu::wait(|| is_off(cpu)));
    check::holds("all others are off afterwards", off, "one is still on");
    check::equal("answers that must not come", WRONG.load(Relaxed), 0);
    let (done, starts) = (DONE.load(Relaxed), STARTS.load(Relaxed));
    println!(
        "chaos: {done} things done, {starts} starts, {} interrupts",
        INTERRUPTS.load(Relaxed)
    );
    check::holds("enough was done", done > 1000, done);
    alive::check("after chaos");
    for cpu in 1..board.cpus {
        let answer = cpu::start(cpu, |_| {}, 0);
        check::holds(
            format_args!("CPU {cpu} starts as ever"),
            answer == 0 && cpu::wait(|| is_off(cpu)),
            answer,
        );
    }
    check::done();

    // The last boot ends as it was told, the others in all ways by turns.
    let how = if boot < last {
        boot % board.cpus as u64 + 20 + boot % 2 * 10
    } else {
        board.argument("end").unwrap_or(0)
    };
    println!("chaos: CPU {} ends it, way {}", how % 10, how / 10);
    gic::init();
    let short = Random::new(boot).below(ticks / 4) + ticks / 20;
    turmoil(board, short, how);
    // Another CPU ends the machine.
    ruin::spin();
}

fn is_off(cpu: usize) -> bool {
    power::affinity_info(cpu::affinity(cpu), 0) == 1
}

/// Lets all CPUs loose.
fn turmoil(board: &Board, ticks: u64, end: u64) {
    UNTIL.store(timer::now() + ticks, Relaxed);
    END.store(end, Release);
    for cpu in 1..board.cpus {
        cpu::prepare(cpu, come);
        power::cpu_on(cpu::affinity(cpu), cpu::entry(), cpu as u64);
    }
    loose(0);
    sysreg::irq_off();
    timer::disarm();
}

/// Runs on a CPU that has been turned on.
fn come(context: u64) {
    STARTS.fetch_add(1, Relaxed);
    gic::init_cpu();
    loose(context);
    sysreg::irq_off();
    timer::disarm();
}

/// Does anything at all, until it is time.
fn loose(context: u64) {
    let here = cpu::number();
    let seed = SEED.load(Relaxed) << 48 ^ (here as u64) << 40 ^ context;
    let mut random = Random::new(seed);
    gic::enable(timer::INTID);
    (0..16).for_each(gic::enable);
    sysreg::irq_on();
    while timer::now() < UNTIL.load(Relaxed) {
        DONE.fetch_add(1, Relaxed);
        if something(&mut random).is_none() && here != 0 {
            return;
        }
    }
    let end = END.load(Acquire);
    if end != NOBODY && end % 10 == here as u64 {
        finish(end / 10);
    }
    if end != NOBODY {
        // In the middle of something for as long as the machine lives.
        loop {
            something(&mut random);
        }
    }
}

fn finish(how: u64) {
    match how {
        0 => power::off(),
        1 => _ = power::hvc(PSCI_SYSTEM_RESET, [0; 7]),
        2 => ruin::crash(),
        _ => {
            ruin::vectors_at(ruin::NOWHERE);
            ruin::tables_at(ruin::NOWHERE)
        }
    }
}

/// One thing; none if this CPU is to turn itself off.
fn something(random: &mut Random) -> Option<()> {
    let cpus = CPUS.load(Relaxed);
    let spi = (FIRST + random.below(SPIS)) as u32;
    match random.below(24) {
        0..4 => gic::send(random.below(16) as u32, random.below(1 << cpus) as u8),
        4 => gic::send_to_others(random.below(16) as u32),
        5 => gic::route(spi, random.below(cpus) as usize),
        6..9 => gic::set(gic::ISPENDR, spi),
        9 => gic::set(gic::ICPENDR, spi),
        10 => gic::enable(spi),
        11 => gic::set(gic::ICENABLER, spi),
        12 => gic::set_priority(spi, random.draw() as u8),
        13 => gic::set_edge(spi, random.below(2) == 0),
        14 => {
            // Active by hand, and not for long: an active one is dead until somebody clears it.
            gic::set(gic::ISACTIVER, spi);
            gic::set(gic::ICACTIVER, spi);
        }
        15 => _ = gic::bit(gic::ISPENDR, spi) | gic::bit(gic::ISACTIVER, spi),
        16 => {
            // Masked, so that the interrupt does not come before the sleep that it has to end.
            sysreg::irq_off();
            timer::arm(timer::now() + timer::ticks(random.below(50)));
            sysreg::wfi();
            sysreg::irq_on();
        }
        17 => {
            sysreg::sev();
            sysreg::wfe();
        }
        18 => {
            let address = ruin::NOWHERE + random.below(1 << 20) as usize * 8;
            let fault = probe::read(Width::Double, address).err();
            note(fault.is_some_and(|fault| fault.is_data_external_abort()));
        }
        19 => {
            let function = 0x8400_0000 | random.below(0x40) as u32 | 0x1000;
            let answer = power::hvc(function, [random.draw(); 7]);
            note(answer[0] as i32 == power::answer::NOT_SUPPORTED);
        }
        20 => {
            let info = power::affinity_info(cpu::affinity(random.below(cpus) as usize), 0);
            note((0..=2).contains(&info));
        }
        21 | 22 => {
            let target = random.below(cpus) as usize;
            let answer = power::cpu_on(cpu::affinity(target), cpu::entry(), random.draw() >> 32);
            note(matches!(answer, 0 | -4 | -5));
        }
        // Now and then only: what is off does nothing.
        _ if random.below(8) == 0 => return None,
        _ => {}
    }
    Some(())
}

fn note(right: bool) {
    if !right {
        WRONG.fetch_add(1, Relaxed);
    }
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    INTERRUPTS.fetch_add(1, Relaxed);
    alive::note(taken.intid());
    gic::end(taken);
}

//! Claim: what all CPUs of a guest ask for at once, as fast as they can, costs that guest only.
//!
//! One flood after the other, by all CPUs together: SGIs to themselves and to all others, sleeps that end at once, calls
//! by HVC and SMC with anything in the registers, each other turned on and themselves off. After each, interrupts
//! and all CPUs have to work as ever.
#![no_std]
#![no_main]

use bulkhead_guests::power::{self, answer};
use bulkhead_guests::random::Random;
use bulkhead_guests::{Board, alive, calls, check, cpu, gic, guest, println, sysreg, timer};
use core::sync::atomic::{AtomicU64, Ordering::*};

guest!(main = main, irq = on_irq);

/// Name of a flood, the function that each CPU calls, and its count.
type Flood = (&'static str, fn(u64) -> u64, u64);

const FLOODS: [Flood; 3] = [
    ("SGIs", sgis, 12_000),
    ("sleeps", sleeps, 8000),
    ("calls", random_calls, 25_000),
];
/// Attempts of each CPU to turn on each other one.
const STARTS: u64 = 1500;

/// Interrupts that came, and answers that must not come.
static TAKEN: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
/// Starts that came to life, and calls that said they would.
static ALIVE: AtomicU64 = AtomicU64::new(0);
static STARTED: AtomicU64 = AtomicU64::new(0);
/// Attempts that are left in the last flood.
static LEFT: AtomicU64 = AtomicU64::new(0);
static CPUS: AtomicU64 = AtomicU64::new(0);

fn main(board: &'static Board) {
    CPUS.store(board.cpus as u64, Relaxed);
    gic::init();
    for cpu in 1..board.cpus {
        check::holds(
            format_args!("CPU {cpu} starts"),
            cpu::hire(cpu),
            "it does not",
        );
    }
    for (name, flood, count) in FLOODS {
        TAKEN.store(0, Relaxed);
        for cpu in 1..board.cpus {
            cpu::unmask(cpu);
            cpu::give(cpu, flood, count);
        }
        sysreg::irq_on();
        flood(count);
        let finished = (1..board.cpus).all(|cpu| cpu::result(cpu).is_some());
        sysreg::irq_off();
        check::holds(
            format_args!("{name} come to an end"),
            finished,
            "a CPU is stuck",
        );
        check::equal(
            format_args!("wrong answers in {name}"),
            WRONG.load(Relaxed),
            0,
        );
        println!("flood: {name}: {} interrupts", TAKEN.load(Relaxed));
        for cpu in 1..board.cpus {
            cpu::mask(cpu);
        }
        alive::check(name);
    }
    check::holds(
        "enough SGIs came",
        TAKEN_SGIS.load(Relaxed) > 10_000,
        TAKEN_SGIS.load(Relaxed),
    );
    descending();
    starts(board);
    alive::check("starts");
    check::done();
}

/// SGIs that came in all.
static TAKEN_SGIS: AtomicU64 = AtomicU64::new(0);

fn sgis(count: u64) -> u64 {
    (0..16).for_each(gic::enable);
    for n in 0..count {
        match n % 3 {
            0 => gic::send_to_others((n % 16) as u32),
            1 => gic::send_to_self((n % 16) as u32),
            _ => gic::send((n % 16) as u32, 0xf),
        }
    }
    0
}

/// An event is set, an interrupt pending but masked, or one on its way: none of these lasts.
fn sleeps(count: u64) -> u64 {
    sysreg::irq_off();
    gic::enable(timer::INTID);
    for n in 0..count {
        match n % 4 {
            0 => {
                timer::arm(timer::now());
                sysreg::wfi();
            }
            1 => {
                sysreg::sev();
                sysreg::wfe();
            }
            2 => sysreg::cpu_yield(),
            _ => {
                timer::arm(timer::now() + timer::ticks(1));
                sysreg::wfi();
            }
        }
    }
    timer::disarm();
    sysreg::irq_on();
    0
}

fn random_calls(count: u64) -> u64 {
    let mut random = Random::new(0xca11 + cpu::number() as u64);
    for _ in 0..count {
        let function = calls::function(&mut random);
        // Turned on anywhere, a sibling would crash the machine, as it should.
        if function & !0x4000_0000 == calls::CPU_ON {
            continue;
        }
        let arguments = core::array::from_fn(|_| random.draw());
        // Without EL2 below, or EL3, this would be undefined; this program needs one.
        let results = if random.below(3) == 0 {
            power::smc(function, arguments)
        } else {
            power::hvc(function, arguments)
        };
        // Fast calls of owners behind the vendor's hypervisor (DEN0028F, table 6-1): nobody is there.
        let nobody = function >> 31 == 1 && function >> 24 & 0x3f > 6;
        if nobody && results[0] as i32 != answer::NOT_SUPPORTED {
            WRONG.fetch_add(1, Relaxed);
        }
    }
    0
}

/// SGIs that CPU 1 has taken since it was asked, one bit each.
static SEEN: AtomicU64 = AtomicU64::new(0);

/// Two SGIs in a row to a CPU that sleeps, and to one that does not, the less urgent one first by turns.
fn descending() {
    const ROUNDS: u64 = 500;
    let mut lost = 0u64;
    cpu::call(
        1,
        |_| {
            gic::enable(1);
            gic::enable(2);
            0
        },
        0,
    );
    for round in 0..ROUNDS {
        SEEN.store(0, Relaxed);
        cpu::give(1, take_both, round % 2);
        let pair = if round % 4 < 2 { [2, 1] } else { [1, 2] };
        pair.into_iter().for_each(|intid| gic::send(intid, 2));
        if cpu::result(1).is_none() {
            lost += 1;
            break;
        }
    }
    check::equal("SGI 2 then SGI 1 to one CPU", lost, 0);
}

/// Until both have come: asleep in between if `asleep` is not 0.
fn take_both(asleep: u64) -> u64 {
    while SEEN.load(Relaxed) & 6 != 6 {
        if asleep != 0 {
            sysreg::irq_off();
            if SEEN.load(Relaxed) & 6 != 6 {
                // Wakes for what is masked too: none is missed.
                sysreg::wfi();
            }
        }
        sysreg::irq_on();
        sysreg::isb();
    }
    sysreg::irq_off();
    0
}

/// All turn each other on and themselves off.
fn starts(board: &Board) {
    for cpu in 1..board.cpus {
        cpu::give(cpu, |_| cpu::off(), 0);
        let off = cpu::wait(|| power::affinity_info(cpu::affinity(cpu), 0) == 1);
        check::holds(format_args!("CPU {cpu} goes off"), off, "it stays on");
    }
    LEFT.store(STARTS * CPUS.load(Relaxed), Relaxed);
    for cpu in 1..board.cpus {
        cpu::prepare(cpu, come);
    }
    race(0);
    let off =
        (1..board.cpus).all(|cpu| cpu::wait(|| power::affinity_info(cpu::affinity(cpu), 0) == 1));
    check::holds("all are off in the end", off, "one is still on");
    check::equal("wrong answers in starts", WRONG.load(Relaxed), 0);
    let started = STARTED.load(Relaxed);
    check::equal(
        "each start that was promised came",
        ALIVE.load(Relaxed),
        started,
    );
    check::holds("enough starts", started > 200, started);
}

fn come(_context: u64) {
    ALIVE.fetch_add(1, Relaxed);
    race(cpu::number() as u64);
}

/// Asks for siblings; all but the first CPU go off after a few.
fn race(number: u64) {
    let mut random = Random::new(number + ALIVE.load(Relaxed) * 8);
    let mut few = random.below(6);
    while LEFT.load(Relaxed) != 0 && (number == 0 || few != 0) {
        few = few.wrapping_sub(1);
        if LEFT
            .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
            .is_err()
        {
            return;
        }
        let target = 1 + random.below(CPUS.load(Relaxed) - 1);
        match power::cpu_on(cpu::affinity(target as usize), cpu::entry(), target) {
            0 => _ = STARTED.fetch_add(1, Relaxed),
            answer::ALREADY_ON | answer::ON_PENDING => {}
            _ => _ = WRONG.fetch_add(1, Relaxed),
        }
        let info = power::affinity_info(cpu::affinity(target as usize), 0);
        if !(0..=2).contains(&info) {
            WRONG.fetch_add(1, Relaxed);
        }
    }
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    TAKEN.fetch_add(1, Relaxed);
    if taken.intid() < 16 {
        TAKEN_SGIS.fetch_add(1, Relaxed);
        if cpu::number() == 1 {
            SEEN.fetch_or(1 << taken.intid(), Relaxed);
        }
    }
    alive::note(taken.intid());
    gic::end(taken);
}

//! Claim: a vCPU finds every register as it left it, whoever had the pCPU meanwhile, and after a
//! restart none of a former life.
//!
//! All that holds a value (the tables of `state`) gets a pattern of `number=` (of the VM), CPU, life,
//! round and register. Then the CPU loses its pCPU: its turn ends while it spins, or it sleeps. All
//! is compared then, every round until the virtual counter is at `to=` milliseconds; with `pause=1`
//! not before it has once stood still for 400 ms. An interrupt is active all the time. With `tells=1` it
//! counts its rounds aloud.
//!
//! With a shared page `lives` the VM resets itself after each life but the third, with patterns in
//! all registers, and each CPU looks at what it finds when it starts. The second CPU, if there is
//! one, does the same, and goes off and on between two lives of the VM.
#![no_std]
#![no_main]

use bulkhead_guests::state::{self, Values, Wait};
use bulkhead_guests::timer::physical;
use bulkhead_guests::{Board, check, cpu, gic, guest, power, println, shared, sysreg, timer};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

guest!(main = main, irq = on_irq, begin = state);

const CPUS: usize = 2;
/// Lives of a VM that resets itself.
const LIVES: u64 = 3;
/// Rounds of a spin, of two instructions: long enough for turns to end in many of them.
const SPIN: u64 = 60_000;
/// Length of a sleep, in microseconds.
const SLEEP_US: u64 = 300;
/// A pause is longer than any turn of others (microseconds).
const PAUSE_US: u64 = 400_000;
/// Rounds of which it tells, if it does.
const SOME: u64 = 32;
/// Rounds after a pause.
const AFTER: u64 = 20;
/// The interrupt that is active while the registers have their patterns.
const HELD: u32 = 3;
/// Calls of PSCI: SYSTEM_RESET, CPU_OFF.
const RESET: u32 = 0x8400_0009;
const OFF: u32 = 0x8400_0002;

static NUMBER: AtomicU64 = AtomicU64::new(0);
static LIFE: AtomicU64 = AtomicU64::new(1);
static TO: AtomicU64 = AtomicU64::new(0);
static TELLS: AtomicBool = AtomicBool::new(false);
static PAUSE: AtomicBool = AtomicBool::new(false);
/// Results of each CPU.
static SEEN: [Seen; CPUS] = [const { Seen::new() }; CPUS];

struct Seen {
    rounds: AtomicU64,
    /// Rounds in which another had the pCPU for as long as one spins.
    away: AtomicU64,
    paused: AtomicBool,
    wrong: AtomicU64,
    ticks: AtomicU32,
    done: AtomicU64,
}

impl Seen {
    const fn new() -> Self {
        Self {
            rounds: AtomicU64::new(0),
            away: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            wrong: AtomicU64::new(0),
            ticks: AtomicU32::new(0),
            done: AtomicU64::new(0),
        }
    }

    /// Counts a value that is not as it should be; the first few are printed.
    fn wrong(&self, what: &str, number: usize, seen: u64, expected: u64) {
        if self.wrong.fetch_add(1, Relaxed) < 4 {
            let (cpu, life) = (cpu::number(), LIFE.load(Relaxed));
            let round = self.rounds.load(Relaxed);
            println!(
                "FAIL CPU {cpu} life {life} round {round}: {what} {number}: {seen:#x} seen, {expected:#x} expected"
            );
        }
    }
}

fn main(board: &'static Board) {
    look_at_start();
    let lives = board.shared("lives").map(shared::words);
    let life = lives.map_or(1, |lives| lives[0].fetch_add(1, Relaxed) + 1);
    LIFE.store(life, Relaxed);
    NUMBER.store(board.argument("number").unwrap_or(0), Relaxed);
    TELLS.store(board.argument("tells").is_some(), Relaxed);
    PAUSE.store(board.argument("pause").is_some(), Relaxed);
    let length = timer::frequency() / 1000 * board.argument("to").unwrap_or(500);
    TO.store(
        if life == 1 {
            length
        } else {
            timer::now() + length
        },
        Relaxed,
    );
    gic::init();
    println!("registers: life {life}");
    for _ in 0..if board.cpus > 1 { 2 } else { 0 } {
        let before = SEEN[1].done.load(Acquire);
        check::equal("CPU_ON", cpu::start(1, second, 0) as u64, 0);
        rounds();
        let over = || SEEN[1].done.load(Acquire) > before;
        check::holds("the second CPU is done", cpu::wait(over), "it is not");
        let off = || power::affinity_info(cpu::affinity(1), 0) == 1;
        check::holds("the second CPU is off", cpu::wait(off), "it is not");
        TO.store(timer::now() + length / 4, Relaxed);
    }
    rounds();
    for (n, seen) in SEEN.iter().enumerate().take(board.cpus.min(CPUS)) {
        let (rounds, away) = (seen.rounds.load(Relaxed), seen.away.load(Relaxed));
        println!("registers: CPU {n}: {rounds} rounds, {away} with others");
        let name = format_args!("life {life}: registers of CPU {n}");
        check::equal(name, seen.wrong.load(Relaxed), 0);
        check::holds("rounds", rounds > 10, rounds);
        check::holds("others run", away > 5, away);
    }
    check::done();
    if lives.is_some() && life < LIVES {
        leave(RESET);
    }
}

fn second(_: u64) {
    look_at_start();
    gic::init_cpu();
    rounds();
    SEEN[1].done.fetch_add(1, Release);
    leave(OFF);
}

/// Compares the registers with their values at a start, before anything has changed them.
fn look_at_start() {
    let here = cpu::number();
    let seen = &SEEN[here];
    let mut n = 0;
    let mut look = |name: &'static str, value, expected| {
        if value != expected {
            seen.wrong(name, n, value, expected);
        }
        n += 1;
    };
    state::begun(here, &mut look);
    state::untouched(&mut look);
}

fn seed(round: u64) -> u64 {
    let who = NUMBER.load(Relaxed) << 8 | (cpu::number() as u64) << 4 | LIFE.load(Relaxed);
    state::pattern(round, who)
}

/// The area of this CPU: another one in each VM.
fn place() -> usize {
    NUMBER.load(Relaxed) as usize * CPUS + cpu::number()
}

/// Ends this life with patterns everywhere.
fn leave(function: u32) -> ! {
    let seed = seed(u64::MAX);
    sysreg::mask_all();
    state::open_vectors();
    for (n, register) in (0..).zip(&state::SYSTEM) {
        give(
            register,
            state::pattern(seed, n),
            state::fixed(register.name),
        );
    }
    let refused = state::hold(place(), Values::of(seed), Wait::Call(function));
    panic!("refused: {refused:?}")
}

/// Gives a register its pattern; gives the value that it has then.
fn give(register: &state::Register, pattern: u64, fixed: u64) -> u64 {
    let bits = register.bits();
    let value = register.read() & !bits | pattern & bits | fixed;
    register.write(value);
    value
}

/// Seldom, so that the turns of others end between two sleeps, and not by them only.
fn sleeps(round: u64) -> bool {
    round % 16 == 15
}

fn rounds() {
    let seen = &SEEN[cpu::number()];
    sysreg::irq_off();
    state::open_vectors();
    gic::enable(timer::INTID);
    gic::enable(HELD);
    gic::set_priority(timer::INTID, 0);
    let (mut shortest, mut after) = (u64::MAX, 0);
    let mut last = physical::now();
    let pause = PAUSE.load(Relaxed);
    while timer::now() < TO.load(Relaxed) || pause && after < AFTER {
        let round = seen.rounds.fetch_add(1, Relaxed);
        let took = one(seen, round);
        if TELLS.load(Relaxed) && round.is_multiple_of(SOME) {
            println!("registers: {round} rounds");
        }
        if !sleeps(round) {
            shortest = shortest.min(took);
            if took > 2 * shortest {
                seen.away.fetch_add(1, Relaxed);
            }
        }
        // It may come between two waits, too.
        let now = physical::now();
        if now - last > timer::ticks(PAUSE_US) {
            seen.paused.store(true, Relaxed);
        }
        last = now;
        after += u64::from(seen.paused.load(Relaxed));
    }
}

/// Patterns everywhere, a wait, and a look; gives how long it was.
fn one(seen: &Seen, round: u64) -> u64 {
    let seed = seed(round);
    let sleeps = sleeps(round);
    let wait = match round % 2 {
        _ if sleeps => Wait::Sleep,
        0 => Wait::Spin(SPIN),
        _ => Wait::SpinLast(SPIN),
    };
    gic::set_mask(0xff);
    // Less urgent than what wakes it, by the bits that each binary point here leaves.
    gic::set_priority(HELD, 0x80 | state::pattern(seed, 50) as u8 & 0x70);
    gic::send_to_self(HELD);
    cpu::wait(|| gic::most_urgent() == HELD);
    let held = gic::acknowledge();
    if held.intid() != HELD {
        seen.wrong("the interrupt that is held", 0, held.0.into(), HELD.into());
    }
    let interface = state::interface();
    let kept: [u64; 5] =
        core::array::from_fn(|n| interface.get(n).map_or(0, state::Register::read));
    let mut own = [0; 5];
    for (n, register) in interface.iter().enumerate() {
        let fixed = state::fixed_interface(register.name);
        own[n] = give(register, state::pattern(seed, 60 + n as u64), fixed);
    }
    let active = state::active_priorities();

    let before: [u64; state::SYSTEM.len()] = core::array::from_fn(|n| state::SYSTEM[n].read());
    let mut values = [0; state::SYSTEM.len()];
    for (n, register) in state::SYSTEM.iter().enumerate() {
        values[n] = give(
            register,
            state::pattern(seed, n as u64),
            state::fixed(register.name),
        );
    }
    let from = physical::now();
    if sleeps {
        // One timer cannot have any value when it is to wake.
        let at = timer::now() + timer::ticks(SLEEP_US);
        timer::arm(at);
        for (register, value) in state::SYSTEM.iter().zip(&mut values) {
            match register.name {
                "cntv_cval_el0" => *value = at,
                "cntv_ctl_el0" => *value = 1,
                _ => {}
            }
        }
    }
    if let Err(other) = state::hold(place(), Values::of(seed), wait) {
        seen.wrong(other.name, other.number, other.seen, other.expected);
    }
    let to = physical::now();
    // All are read before the first is as before: the state of a timer follows its compare value.
    let found: [u64; state::SYSTEM.len()] = core::array::from_fn(|n| state::SYSTEM[n].read());
    for (register, old) in state::SYSTEM.iter().zip(before) {
        register.write(old);
    }
    for ((register, expected), value) in state::SYSTEM.iter().zip(values).zip(found) {
        // ISTATUS of the one that wakes.
        let status = if sleeps && register.name == "cntv_ctl_el0" {
            4
        } else {
            0
        };
        if value & !status != expected {
            seen.wrong(register.name, 0, value, expected);
        }
    }
    for (register, (expected, old)) in interface.iter().zip(own.into_iter().zip(kept)) {
        let value = register.read();
        if value != expected {
            seen.wrong(register.name, 0, value, expected);
        }
        register.write(old);
    }
    for (n, (value, expected)) in state::active_priorities()
        .into_iter()
        .zip(active)
        .enumerate()
    {
        if value != expected || active == [0; 2] {
            seen.wrong("active priorities", n, value, expected);
        }
    }
    gic::end(held);
    if sleeps {
        // Its interrupt comes now, if it did not already end the sleep.
        let ticks = seen.ticks.load(Relaxed);
        timer::arm(timer::now());
        sysreg::irq_on();
        if !cpu::wait(|| seen.ticks.load(Relaxed) > ticks) {
            seen.wrong("timer interrupts", 0, ticks.into(), u64::from(ticks) + 1);
        }
        sysreg::irq_off();
    }
    to - from
}

fn on_irq(_: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    timer::disarm();
    SEEN[cpu::number()].ticks.fetch_add(1, Relaxed);
    gic::end(taken);
}

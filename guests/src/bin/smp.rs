//! Claim: the CPUs of a VM come, go and sleep as PSCI (DEN0022) says, however many ask at once.
//!
//! CPU_ON, CPU_OFF, AFFINITY_INFO and CPU_SUSPEND with right and wrong arguments; then thousands of
//! rounds (`rounds=` of the boot arguments) in which several CPUs turn one on that turns itself off. At
//! the end a CPU that was started ends the machine, while the others spin with all masks closed.
//!
//! `native=1` leaves out what QEMU's own PSCI does not check.
#![no_std]
#![no_main]

use bulkhead_guests::cpu::{self, MOST};
use bulkhead_guests::power::{self, answer};
use bulkhead_guests::random::Random;
use bulkhead_guests::{Board, check, gic, guest, mrs, println, ruin, sysreg, timer};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

guest!(main = main, irq = on_irq);

const DEFAULT_ROUNDS: u64 = 2000;
const ON: i32 = 0;
const OFF: i32 = 1;

// What a CPU that was started saw.
static CAME: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
static MPIDR: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
static STATE: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// Starts of each CPU.
static STARTS: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

fn main(board: &'static Board) {
    let others = 1..board.cpus;
    check::holds("several CPUs", board.cpus > 1, "the device tree names one");
    if board.cpus > 1 {
        gic::init();
        first_start(board);
        misuse(board);
        suspend();
        for cpu in others.clone() {
            again(cpu);
        }
        if board.cpus > 2 {
            many_starters(board);
            token(board);
        }
        on_while_going_off(board);
        println!("smp: a CPU that was started ends the machine");
        for cpu in others.clone().skip(1) {
            let answer = cpu::start(cpu, spin, 0);
            check::equal("started to spin", answer as u64, 0);
        }
        cpu::start(1, end, 0);
        ruin::spin();
    }
    check::done();
}

/// Reports and powers off, from a CPU other than the first.
fn end(_: u64) {
    check::done();
    power::off()
}

fn spin(_: u64) {
    ruin::spin()
}

/// Notes what a CPU finds when it starts, then turns it off.
fn note(context: u64) {
    let here = cpu::number();
    STARTS[here].fetch_add(1, Relaxed);
    MPIDR[here].store(mrs!("mpidr_el1"), Relaxed);
    STATE[here].store(mrs!("currentel") | mrs!("daif") << 32, Relaxed);
    CAME[here].store(context, Release);
}

fn is_off(cpu: usize) -> bool {
    cpu::wait(|| power::affinity_info(cpu::affinity(cpu), 0) == OFF)
}

fn is(name: impl core::fmt::Display, seen: i32, expected: i32) {
    check::holds(
        name,
        seen == expected,
        format_args!("{seen} seen, {expected} expected"),
    );
}

fn first_start(board: &Board) {
    is(
        "AFFINITY_INFO of this CPU",
        power::affinity_info(cpu::affinity(0), 0),
        ON,
    );
    for cpu in 1..board.cpus {
        let target = cpu::affinity(cpu);
        is(
            format_args!("CPU {cpu} is off at first"),
            power::affinity_info(target, 0),
            OFF,
        );
        let context = 0x1234_5678_9abc_def0 + cpu as u64;
        is(
            format_args!("CPU {cpu}: CPU_ON"),
            cpu::start(cpu, note, context),
            answer::SUCCESS,
        );
        let came = cpu::wait(|| CAME[cpu].load(Acquire) == context);
        check::holds(
            format_args!("CPU {cpu} has its context in x0"),
            came,
            format_args!("{:#x}", CAME[cpu].load(Relaxed)),
        );
        check::equal(
            format_args!("CPU {cpu}: MPIDR_EL1"),
            MPIDR[cpu].load(Relaxed) & 0xff_00ff_ffff,
            target & 0xff_00ff_ffff,
        );
        // CurrentEL bits 3:2; DAIF bits 9:6.
        check::equal(
            format_args!("CPU {cpu} starts at EL1 with all masks closed"),
            STATE[cpu].load(Relaxed),
            1 << 2 | 0x3c0 << 32,
        );
        check::holds(
            format_args!("CPU {cpu} has turned itself off"),
            is_off(cpu),
            "still on",
        );
    }
}

/// Wrong arguments have their own answers, and start nothing.
fn misuse(board: &Board) {
    let entry = cpu::entry();
    let mine = cpu::affinity(0);
    is(
        "CPU_ON of the caller",
        power::cpu_on(mine, entry, 0),
        answer::ALREADY_ON,
    );
    // PSCI wants bits 63:40 and 31:24 zero. MPIDR_EL1 has bit 31 set: a caller may forget to mask it.
    let second = cpu::affinity(1);
    for (name, target) in [
        ("an affinity beyond the last", cpu::affinity(board.cpus)),
        ("affinity 1 that nobody has", second | 0x4500),
        ("affinity 2 that nobody has", second | 0x45_0000),
        ("affinity 3 that nobody has", second | 1 << 32),
        ("MPIDR bit 31", second | 1 << 31),
        ("bits above affinity 3", second | 1 << 40),
        ("all ones", u64::MAX),
    ] {
        is(
            format_args!("CPU_ON with {name}"),
            power::cpu_on(target, entry, 0),
            answer::INVALID_PARAMETERS,
        );
        is(
            format_args!("AFFINITY_INFO with {name}"),
            power::affinity_info(target, 0),
            answer::INVALID_PARAMETERS,
        );
    }
    // QEMU takes any level and any entry.
    if board.argument("native").is_none() {
        is(
            "AFFINITY_INFO of a level that there is not",
            power::affinity_info(mine, 4),
            answer::INVALID_PARAMETERS,
        );
        let end = board.memory.iter().map(|range| range.end()).max();
        let gicd = gic::distributor() as u64;
        for (name, address) in [
            ("in a device", gicd),
            ("behind the memory", end.unwrap_or_default() as u64),
            ("beyond 39 bits", 1 << 40),
            ("all ones", u64::MAX),
            ("not aligned", entry + 2),
        ] {
            is(
                format_args!("CPU_ON with an entry {name}"),
                power::cpu_on(second, address, 0),
                answer::INVALID_ADDRESS,
            );
        }
    }
    let starts: u64 = STARTS.iter().map(|count| count.load(Relaxed)).sum();
    check::equal("nothing has started by that", starts, board.cpus as u64 - 1);
    let stay = |_| {
        while CAME[1].load(Relaxed) != 0 {
            sysreg::cpu_yield();
        }
    };
    cpu::start(1, stay, 0);
    let twice = power::cpu_on(second, entry, 0);
    check::holds(
        "CPU_ON twice",
        matches!(twice, answer::ALREADY_ON | answer::ON_PENDING),
        twice,
    );
    let on = cpu::wait(|| power::affinity_info(second, 0) == ON);
    check::holds("AFFINITY_INFO of a CPU that runs", on, "never on");
    is(
        "CPU_ON of one that runs",
        power::cpu_on(second, entry, 0),
        answer::ALREADY_ON,
    );
    CAME[1].store(0, Relaxed);
    check::holds("and then off", is_off(1), "still on");
}

static TAKEN: AtomicU32 = AtomicU32::new(0);

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    if taken.intid() == timer::INTID {
        timer::disarm();
    }
    TAKEN.fetch_add(1, Relaxed);
    gic::end(taken);
}

/// CPU_SUSPEND to standby comes back when an interrupt is there, whether it is masked or not.
fn suspend() {
    gic::enable(timer::INTID);
    for round in 0..10 {
        let due = timer::now() + timer::ticks(200);
        timer::arm(due);
        let answer = power::cpu_suspend(0, cpu::entry(), 0);
        if answer != 0 || round == 0 {
            is("CPU_SUSPEND", answer, answer::SUCCESS);
        }
        // A suspend may come back early (DEN0022, 5.4), a masked interrupt still ends it.
        while timer::now() < due {}
        sysreg::irq_on();
        sysreg::isb();
        sysreg::irq_off();
    }
    check::equal(
        "interrupts behind CPU_SUSPEND",
        TAKEN.load(Relaxed).into(),
        10,
    );
    gic::disable(timer::INTID);
}

/// On and off a hundred times: each context arrives, once.
fn again(target: usize) {
    let before = STARTS[target].load(Relaxed);
    let mut wrong = 0;
    for round in 1..=100 {
        if cpu::start(target, note, round) != 0
            || !cpu::wait(|| CAME[target].load(Acquire) == round)
            || !is_off(target)
        {
            wrong += 1;
        }
    }
    check::equal(format_args!("CPU {target}: 100 times on and off"), wrong, 0);
    let starts = STARTS[target].load(Relaxed) - before;
    check::equal(format_args!("CPU {target}: starts"), starts, 100);
}

// Races. Contexts say who asked, and in which attempt: no two are alike.
static ROUNDS: AtomicU64 = AtomicU64::new(0);
static STOP: AtomicU64 = AtomicU64::new(0);
/// Successful answers, answers that must not come, and the sum of the contexts that were granted.
static GRANTED: AtomicU64 = AtomicU64::new(0);
static ODD: AtomicU64 = AtomicU64::new(0);
static GRANTED_SUM: AtomicU64 = AtomicU64::new(0);
/// Starts that happened, and the sum of the contexts that they had.
static RAN: AtomicU64 = AtomicU64::new(0);
static RAN_SUM: AtomicU64 = AtomicU64::new(0);

fn reset_race(board: &Board) {
    let rounds = board.argument("rounds").unwrap_or(DEFAULT_ROUNDS);
    for (word, value) in [
        (&ROUNDS, rounds),
        (&STOP, 0),
        (&GRANTED, 0),
        (&ODD, 0),
        (&GRANTED_SUM, 0),
        (&RAN, 0),
        (&RAN_SUM, 0),
    ] {
        word.store(value, Relaxed);
    }
}

/// Runs on a CPU that a race has started: counts, and returns.
fn run(context: u64) {
    RAN_SUM.fetch_add(context, Relaxed);
    RAN.fetch_add(1, Release);
}

/// Asks for `target` until enough were granted.
fn ask(target: u64) -> u64 {
    let here = cpu::number() as u64;
    let mut attempt = 0;
    while GRANTED.load(Relaxed) < ROUNDS.load(Relaxed) && STOP.load(Relaxed) == 0 {
        attempt += 1;
        let context = here << 32 | attempt;
        let target = cpu::affinity(target as usize);
        match power::cpu_on(target, cpu::entry(), context) {
            answer::SUCCESS => {
                GRANTED_SUM.fetch_add(context, Relaxed);
                GRANTED.fetch_add(1, Release);
            }
            answer::ALREADY_ON | answer::ON_PENDING => {}
            _ => _ = ODD.fetch_add(1, Relaxed),
        }
        let info = power::affinity_info(target, 0);
        if !(0..=2).contains(&info) {
            ODD.fetch_add(1, Relaxed);
        }
    }
    attempt
}

fn judge(name: &str, attempts: u64) {
    let all = cpu::wait(|| RAN.load(Acquire) == GRANTED.load(Acquire));
    let (granted, ran) = (GRANTED.load(Relaxed), RAN.load(Relaxed));
    println!("smp: {name}: {attempts} calls, {granted} granted");
    check::holds(
        format_args!("{name}: each success is a start"),
        all,
        format_args!("{granted} granted, {ran} started"),
    );
    check::equal(
        format_args!("{name}: with its own context"),
        RAN_SUM.load(Relaxed),
        GRANTED_SUM.load(Relaxed),
    );
    check::equal(format_args!("{name}: other answers"), ODD.load(Relaxed), 0);
    check::holds(
        format_args!("{name}: enough of them"),
        granted >= ROUNDS.load(Relaxed),
        granted,
    );
}

/// All CPUs but the last ask for the last, at once.
fn many_starters(board: &Board) {
    reset_race(board);
    let target = board.cpus - 1;
    cpu::prepare(target, run);
    let others = 1..target;
    cpu::hire_all(others.clone());
    for cpu in others.clone() {
        cpu::give(cpu, ask, target as u64);
    }
    let mut attempts = ask(target as u64);
    for cpu in others.clone() {
        attempts += cpu::result(cpu).unwrap_or_default();
    }
    judge("CPU_ON by several", attempts);
    check::holds("the target is off at last", is_off(target), "still on");
    for cpu in others {
        cpu::give(cpu, |_| cpu::off(), 0);
        check::holds(format_args!("CPU {cpu} is off"), is_off(cpu), "still on");
    }
}

/// One CPU asks, and the target goes off at some time of its own: the answer is "already on" until it
/// is not.
fn on_while_going_off(board: &Board) {
    reset_race(board);
    cpu::prepare(1, |context| {
        // Not always the same way from start to end.
        let mut random = Random::new(context);
        for _ in 0..random.below(40) {
            sysreg::isb();
        }
        run(context);
    });
    let attempts = ask(1);
    judge("CPU_ON against CPU_OFF", attempts);
    check::holds("CPU 1 is off at last", is_off(1), "still on");
}

/// Each CPU turns the next one on and itself off: the token goes round.
fn token(board: &Board) {
    reset_race(board);
    CPUS.store(board.cpus as u64, Relaxed);
    for cpu in 1..board.cpus {
        cpu::prepare(cpu, pass_on);
    }
    pass_on(ROUNDS.load(Relaxed));
    let done = cpu::wait(|| STOP.load(Acquire) != 0);
    check::holds(
        "a token goes round from CPU to CPU",
        done && RAN.load(Relaxed) == ROUNDS.load(Relaxed),
        format_args!("{} of {} steps", RAN.load(Relaxed), ROUNDS.load(Relaxed)),
    );
    for cpu in 1..board.cpus {
        check::holds(
            format_args!("CPU {cpu} is off behind it"),
            is_off(cpu),
            "on",
        );
    }
}

static CPUS: AtomicU64 = AtomicU64::new(0);

fn pass_on(left: u64) {
    if left == 0 {
        STOP.store(1, Release);
        return;
    }
    RAN.fetch_add(1, Relaxed);
    let cpus = CPUS.load(Relaxed) as usize;
    let next = cpu::number() % (cpus - 1) + 1;
    let target = cpu::affinity(next);
    // It may be on its way out still.
    while power::cpu_on(target, cpu::entry(), left - 1) != answer::SUCCESS {
        sysreg::cpu_yield();
    }
}

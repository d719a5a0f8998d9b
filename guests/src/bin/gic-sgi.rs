//! Claim: SGIs and private interrupts of several CPUs do what IHI 0048 (GICv2) or IHI 0069 (GICv3)
//! says; none is lost, doubled or taken by the wrong CPU.
//!
//! SGIs to each, to several, to all others, to nobody, to sleepers, without end; private registers of
//! one CPU seen by another. Needs three CPUs; `rounds=` of the boot arguments says how long races last.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::{read32, write8, write32};
use bulkhead_guests::random::Random;
use bulkhead_guests::{Board, check, cpu, gic, guest, power, record, sysreg, timer};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use gic::{v2, v3};

guest!(main = main, irq = record::on_irq);

const DEFAULT_ROUNDS: u64 = 500;

fn main(board: &'static Board) {
    check::holds("three CPUs", board.cpus >= 3, board.cpus);
    if board.cpus >= 3 {
        let rounds = board.argument("rounds").unwrap_or(DEFAULT_ROUNDS);
        gic::init();
        cpu::hire_all(1..board.cpus);
        for cpu in 1..board.cpus {
            cpu::call(cpu, |_| prepare(), 0);
        }
        prepare();
        sgi_targets(board);
        sgi_order(rounds);
        if gic::version() == 2 {
            senders(board);
        } else {
            strange_targets(board);
            groups();
            remote_redistributor();
        }
        banked(board);
        storm(board, rounds);
        wake(rounds);
        timers(board);
    }
    check::done();
    power::off();
}

static ROUNDS: AtomicU64 = AtomicU64::new(0);

/// Enables all SGIs of this CPU.
fn prepare() -> u64 {
    (0..16).for_each(gic::enable);
    0
}

/// Each SGI reaches those that it names, once, and nobody else.
fn sgi_targets(board: &Board) {
    (1..board.cpus).for_each(cpu::unmask);
    sysreg::irq_on();
    let all = (1u32 << board.cpus) - 1;
    let mut wrong = 0;
    for from in 0..board.cpus {
        for targets in 1..=all {
            let intid = targets % 16;
            record::forget();
            let send = |value: u64| {
                gic::send(value as u32 & 15, (value >> 4) as u8);
                0
            };
            let value = u64::from(intid | targets << 4);
            if from == 0 {
                send(value);
            } else {
                cpu::call(from, send, value);
            }
            cpu::wait(|| record::everywhere(intid) >= targets.count_ones());
            record::settle();
            for to in 0..board.cpus {
                let expected = targets >> to & 1;
                if record::of(to, intid) != expected || record::taken(to) != expected {
                    wrong += 1;
                }
            }
        }
    }
    check::equal("SGIs from each CPU to each set of CPUs", wrong, 0);
    let mut wrong = 0;
    for from in 0..board.cpus {
        record::forget();
        let send = |intid: u64| {
            gic::send_to_others(intid as u32);
            0
        };
        if from == 0 {
            send(7);
        } else {
            cpu::call(from, send, 7);
        }
        cpu::wait(|| record::everywhere(7) as usize >= board.cpus - 1);
        record::settle();
        for to in 0..board.cpus {
            wrong += u64::from(record::of(to, 7) != u32::from(to != from));
        }
    }
    check::equal("SGIs to all but the sender", wrong, 0);
    sysreg::irq_off();
    (1..board.cpus).for_each(cpu::mask);
}

/// A peer of this project hangs when SGI 2 and then SGI 1 are sent to one CPU.
fn sgi_order(rounds: u64) {
    cpu::unmask(1);
    let mut lost = 0;
    for round in 0..rounds as u32 {
        record::forget();
        gic::send(2, 1 << 1);
        gic::send(1, 1 << 1);
        let both = cpu::wait(|| record::of(1, 1) == 1 && record::of(1, 2) == 1);
        lost += u64::from(!both);
        if !both {
            bulkhead_guests::println!("  round {round}: {} taken", record::taken(1));
            break;
        }
    }
    cpu::mask(1);
    check::equal("SGI 2 then SGI 1 to one CPU, awake", lost, 0);
    record::forget();
    gic::send(2, 1 << 1);
    gic::send(1, 1 << 1);
    check::same("masked: none is taken", record::taken(1), 0);
    let taken = cpu::call(1, |_| record::listen().into(), 0);
    check::equal(
        "SGI 2 then SGI 1 to one CPU, masked",
        taken.unwrap_or(99),
        2,
    );
}

/// GICv2: an SGI of several senders is as many interrupts, each with its sender.
fn senders(board: &Board) {
    record::forget();
    let target = board.cpus - 1;
    for from in 0..target {
        let send = |to: u64| {
            gic::send(3, 1 << to);
            gic::send(3, 1 << to);
            0
        };
        if from == 0 {
            send(target as u64);
        } else {
            cpu::call(from, send, target as u64);
        }
    }
    let pending = cpu::call(
        target,
        |_| u64::from(read32(gic::distributor() + v2::SPENDSGIR) >> 24),
        0,
    );
    let all = (1 << target) - 1;
    check::equal(
        "GICD_SPENDSGIR names all senders",
        pending.unwrap_or(0),
        all,
    );
    let taken = cpu::call(target, |_| record::listen().into(), 0);
    check::equal(
        "an SGI for each sender, sent twice",
        taken.unwrap_or(99),
        target as u64,
    );
    check::equal(
        "each with its sender",
        record::senders(target, 3).into(),
        all,
    );
    // One of two senders is taken away.
    record::forget();
    gic::send(4, 1 << target);
    cpu::call(
        1,
        |to| {
            gic::send(4, 1 << to);
            0
        },
        target as u64,
    );
    cpu::call(
        target,
        |_| {
            write8(gic::distributor() + v2::CPENDSGIR + 4, 1 << 0);
            0
        },
        0,
    );
    let taken = cpu::call(target, |_| record::listen().into(), 0);
    check::equal("GICD_CPENDSGIR takes one away", taken.unwrap_or(99), 1);
    check::equal("and leaves the other", record::senders(target, 4).into(), 2);
}

/// GICv3: targets that nobody is get nothing, and disturb nobody.
fn strange_targets(board: &Board) {
    record::forget();
    let here = v3::sgi(5, 0xff);
    for value in [
        v3::sgi(5, 0),
        here | 0xff00,
        here | 1 << 16,
        here | 1 << 32,
        here | 1 << 48,
    ] {
        // Of those that name this cluster only the CPUs that are not there stay.
        let there = (1u64 << board.cpus) - 1;
        let value = if value >> 32 == 0 && value >> 16 & 0xff == 0 {
            value & !there
        } else {
            value
        };
        bulkhead_guests::msr!("icc_sgi1r_el1", value);
        sysreg::isb();
    }
    let mut pending = gic::pending_sgis();
    for cpu in 1..board.cpus {
        pending |= cpu::call(cpu, |_| gic::pending_sgis().into(), 0).unwrap_or(1) as u32;
    }
    check::same("SGIs to CPUs that are not there reach nobody", pending, 0);
}

/// GICv3 with one Security state: ICC_SGI0R_EL1 brings SGIs that are in Group 0, and ICC_SGI1R_EL1 those of both groups.
fn groups() {
    let word = |register| v3::word_of(0, register);
    let pends = |group0: bool, by_sgi0r: bool| {
        let all = read32(word(gic::IGROUPR));
        write32(
            word(gic::IGROUPR),
            if group0 { all & !(1 << 9) } else { all },
        );
        sysreg::irq_off();
        let value = v3::sgi(9, 1);
        if by_sgi0r {
            bulkhead_guests::msr!("icc_sgi0r_el1", value);
        } else {
            bulkhead_guests::msr!("icc_sgi1r_el1", value);
        }
        sysreg::isb();
        let pending = read32(word(gic::ISPENDR)) >> 9 & 1;
        write32(word(gic::ICPENDR), 1 << 9);
        write32(word(gic::IGROUPR), all);
        sysreg::irq_on();
        pending
    };
    check::same("ICC_SGI0R_EL1 for an SGI of Group 0", pends(true, true), 1);
    check::same("ICC_SGI1R_EL1 for an SGI of Group 0", pends(true, false), 1);
    check::same("ICC_SGI0R_EL1 for an SGI of Group 1", pends(false, true), 0);
    check::same(
        "ICC_SGI1R_EL1 for an SGI of Group 1",
        pends(false, false),
        1,
    );
}

/// GICv3: a CPU may write the private registers of another.
fn remote_redistributor() {
    let word = |register| v3::word_of(1, register);
    record::forget();
    write32(word(gic::ICENABLER), 1 << 6);
    while read32(v3::redistributor_of(1) + gic::CTLR) & v3::GICR_RWP != 0 {}
    check::same(
        "GICR_ISENABLER0 of another CPU",
        read32(word(gic::ISENABLER)) & 0xffff,
        0xffbf,
    );
    write32(word(gic::ISPENDR), 1 << 6);
    check::same(
        "GICR_ISPENDR0 of another CPU",
        read32(word(gic::ISPENDR)) & 0xffff,
        1 << 6,
    );
    let taken = cpu::call(1, |_| record::listen().into(), 0);
    check::equal("disabled by another CPU", taken.unwrap_or(99), 0);
    write32(word(gic::ISENABLER), 1 << 6);
    let taken = cpu::call(1, |_| record::listen().into(), 0);
    check::equal("enabled by another CPU", taken.unwrap_or(99), 1);
    write32(word(gic::ISPENDR), 1 << 9);
    write32(word(gic::ICPENDR), 1 << 9);
    let taken = cpu::call(1, |_| record::listen().into(), 0);
    check::equal("pending taken away by another CPU", taken.unwrap_or(99), 1);
    let priority = word(gic::IPRIORITYR) + 6;
    write8(priority, 0x40);
    let seen = cpu::call(
        1,
        |_| u64::from(read32(gic::frame(0) + gic::IPRIORITYR + 4) >> 16 & 0xff),
        0,
    );
    check::equal("priority written by another CPU", seen.unwrap_or(0), 0x40);
    write8(priority, gic::PRIORITY);
}

/// Priorities, enables and pending bits of private interrupts belong to one CPU.
fn banked(board: &Board) {
    let last = board.cpus - 1;
    gic::set_priority(11, 0x30);
    cpu::call(
        last,
        |_| {
            gic::set_priority(11, 0x50);
            gic::disable(12);
            0
        },
        0,
    );
    let priority = |_| u64::from(read32(gic::frame(0) + gic::IPRIORITYR + 8) >> 24);
    check::equal("priority of an SGI here", priority(0), 0x30);
    let there = cpu::call(last, priority, 0).unwrap_or(0);
    check::equal("priority of the same SGI there", there, 0x50);
    check::holds(
        "disabled there, enabled here",
        gic::bit(gic::ISENABLER, 12),
        "off",
    );
    gic::set_priority(11, gic::PRIORITY);
    cpu::call(
        last,
        |_| {
            gic::set_priority(11, gic::PRIORITY);
            gic::enable(12);
            0
        },
        0,
    );
}

/// Sends SGIs to all others, a new mark before each.
fn send_storm(_: u64) -> u64 {
    for round in 1..=ROUNDS.load(Relaxed) {
        record::mark(round);
        gic::send_to_others(cpu::number() as u32);
    }
    0
}

/// All CPUs send to all others as fast as they can, masks open: the last of each arrives.
fn storm(board: &Board, rounds: u64) {
    record::forget();
    ROUNDS.store(rounds, Relaxed);
    (1..board.cpus).for_each(cpu::unmask);
    sysreg::irq_on();
    for cpu in 1..board.cpus {
        cpu::give(cpu, send_storm, 0);
    }
    send_storm(0);
    let done = (1..board.cpus).all(|cpu| cpu::result(cpu).is_some());
    check::holds("SGI storm ends", done, "a CPU does not come back");
    let pairs = || {
        let all = 0..board.cpus;
        all.clone()
            .flat_map(move |from| all.clone().map(move |to| (from, to)))
            .filter(|(from, to)| from != to)
    };
    // SGIs merge while they are pending, but behind the last mark one more is bound to be taken.
    let complete = || pairs().all(|(from, to)| record::seen(to, from) == rounds);
    check::holds(
        "SGI storm: everyone has seen the last of each",
        cpu::wait(complete),
        "an SGI is lost",
    );
    let many = pairs().filter(|(from, to)| u64::from(record::of(*to, *from as u32)) > rounds);
    check::equal("SGI storm: more taken than sent", many.count() as u64, 0);
    sysreg::irq_off();
    (1..board.cpus).for_each(cpu::mask);
    let mut pending = gic::pending_sgis();
    for cpu in 1..board.cpus {
        pending |= cpu::call(cpu, |_| gic::pending_sgis().into(), 0).unwrap_or(1) as u32;
    }
    check::same("SGI storm: nothing left", pending, 0);
}

/// A CPU that goes to sleep while an SGI is on its way wakes up.
fn wake(rounds: u64) {
    record::forget();
    ROUNDS.store(rounds, Relaxed);
    cpu::give(
        1,
        |_| {
            let mut woken = 0;
            for round in 1..=ROUNDS.load(Relaxed) {
                while u64::from(record::of(1, 14)) < round {
                    sysreg::sleep();
                }
                woken += 1;
                gic::send(13, 1 << 0);
            }
            woken
        },
        0,
    );
    let mut random = Random::new(14);
    let mut lost = 0;
    for round in 1..=rounds {
        for _ in 0..random.below(60) {
            sysreg::isb();
        }
        gic::send(14, 1 << 1);
        sysreg::irq_on();
        let answer = cpu::wait(|| u64::from(record::of(0, 13)) >= round);
        sysreg::irq_off();
        if !answer {
            lost += 1;
            break;
        }
    }
    check::equal("SGIs to a CPU that falls asleep", lost, 0);
    check::equal("it woke up as often", cpu::result(1).unwrap_or(0), rounds);
}

/// The timer of each CPU is its own, a level, and fires again and again.
fn timers(board: &Board) {
    const TIMES: u32 = 50;
    record::forget();
    let ticking = |_| {
        gic::enable(timer::INTID);
        record::tick(TIMES.into());
        sysreg::irq_on();
        let here = cpu::number();
        cpu::wait(|| record::of(here, timer::INTID) >= TIMES);
        record::settle();
        sysreg::irq_off();
        gic::disable(timer::INTID);
        record::of(here, timer::INTID).into()
    };
    for cpu in 1..board.cpus {
        cpu::give(cpu, ticking, 0);
    }
    check::equal("timer of CPU 0", ticking(0), TIMES.into());
    for cpu in 1..board.cpus {
        let name = format_args!("timer of CPU {cpu}");
        check::equal(name, cpu::result(cpu).unwrap_or(0), TIMES.into());
    }
}

//! Claim: an SPI that one CPU changes while another has it does what IHI 0048 (GICv2) or IHI 0069
//! (GICv3) says; none is lost, doubled or taken by the wrong CPU.
//!
//! SPIs that move while they are pending, active, or fired without end; enables, pending and active
//! bits read and written by another CPU; more pending than there are list registers. Needs three CPUs;
//! `rounds=` of the boot arguments says how long races last. `native=1` leaves out what QEMU's own
//! GICv2 gets wrong.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::{read32, read64, write64};
use bulkhead_guests::random::Random;
use bulkhead_guests::{Board, check, cpu, gic, guest, power, record, sysreg};
use core::sync::atomic::{AtomicU64, Ordering::*};
use gic::v3;

guest!(main = main, irq = record::on_irq);

/// An SPI that no device drives.
const SPI: u32 = 45;
const DEFAULT_ROUNDS: u64 = 500;

fn main(board: &'static Board) {
    check::holds("three CPUs", board.cpus >= 3, board.cpus);
    if board.cpus >= 3 {
        let rounds = board.argument("rounds").unwrap_or(DEFAULT_ROUNDS);
        gic::init();
        cpu::hire_all(1..board.cpus);
        if gic::version() == 3 {
            one_of_n();
        }
        routes(board);
        moved_pending();
        moved_active(board);
        moved_under_load(board, rounds);
        remote_disable(rounds);
        remote_pending();
        remote_active();
        remote_deactivate();
        overflow();
    }
    check::done();
    power::off();
}

static ROUNDS: AtomicU64 = AtomicU64::new(0);

/// GICv3: 1-of-N is refused: the distributor says that it has none, and an SPI stays with one CPU.
fn one_of_n() {
    let gicd = gic::distributor();
    check::same("GICD_TYPER.No1N", read32(gicd + gic::TYPER) >> 25 & 1, 1);
    let route = gicd + v3::IROUTER + 8 * SPI as usize;
    write64(route, cpu::affinity(1) | 1 << 31);
    record::forget();
    gic::enable(SPI);
    gic::set_pending(SPI);
    let here = record::listen();
    let there = cpu::call(1, |_| record::listen().into(), 0);
    check::same(
        "an SPI routed to any is taken once",
        record::everywhere(SPI),
        1,
    );
    check::holds(
        "by one CPU",
        u64::from(here) + there.unwrap_or(99) == 1,
        format_args!("{here} and {there:?}"),
    );
    gic::disable(SPI);
    write64(route, cpu::affinity(0));
    check::equal(
        "GICD_IROUTER without IRM",
        read64(route),
        cpu::affinity(0) & 0xff_00ff_ffff,
    );
}

/// An SPI goes where it is routed.
fn routes(board: &Board) {
    gic::enable(SPI);
    let mut wrong = 0;
    for to in 0..board.cpus {
        record::forget();
        gic::route(SPI, to);
        gic::set_pending(SPI);
        for cpu in 1..board.cpus {
            cpu::call(cpu, |_| record::listen().into(), 0);
        }
        record::listen();
        for cpu in 0..board.cpus {
            wrong += u64::from(record::of(cpu, SPI) != u32::from(cpu == to));
        }
    }
    check::equal("an SPI goes where it is routed", wrong, 0);
}

/// Pending at a CPU that has its mask closed, it moves with its route.
fn moved_pending() {
    record::forget();
    gic::route(SPI, 1);
    gic::set_pending(SPI);
    record::settle();
    gic::route(SPI, 2);
    record::settle();
    let second = cpu::call(2, |_| record::listen().into(), 0);
    check::equal(
        "a pending SPI moves to the new CPU",
        second.unwrap_or(99),
        1,
    );
    let first = cpu::call(1, |_| record::listen().into(), 0);
    check::equal("and is gone from the old one", first.unwrap_or(99), 0);
}

/// Active at one CPU, pending again and moved, it waits until the first has ended it.
fn moved_active(board: &Board) {
    record::forget();
    gic::route(SPI, 1);
    record::hold(1 << 1);
    cpu::unmask(2);
    cpu::give(1, |_| record::listen().into(), 0);
    gic::set_pending(SPI);
    let taken = cpu::wait(|| record::of(1, SPI) == 1);
    check::holds("an SPI is taken and held", taken, "not taken");
    gic::route(SPI, 2);
    gic::set_pending(SPI);
    record::settle();
    // QEMU's GICv2 keeps an active state for each CPU.
    if gic::version() == 3 || board.argument("native").is_none() {
        check::same("active elsewhere: not taken again", record::of(2, SPI), 0);
    }
    record::hold(0);
    let second = cpu::wait(|| record::of(2, SPI) == 1);
    check::holds("ended there, taken here", second, record::of(2, SPI));
    cpu::result(1);
    cpu::mask(2);
    check::same("and once only", record::everywhere(SPI), 2);
}

static STOP: AtomicU64 = AtomicU64::new(0);

/// One CPU moves an SPI about while another makes it pending: each time it is taken once.
fn moved_under_load(board: &Board, rounds: u64) {
    record::forget();
    let mover = board.cpus - 1;
    ROUNDS.store(mover as u64, Relaxed);
    STOP.store(0, Relaxed);
    (1..mover).for_each(cpu::unmask);
    sysreg::irq_on();
    gic::set_edge(SPI, true);
    cpu::give(
        mover,
        |_| {
            let (targets, mut random, mut moves) = (ROUNDS.load(Relaxed), Random::new(7), 0);
            while STOP.load(Acquire) == 0 {
                gic::route(SPI, random.below(targets) as usize);
                moves += 1;
            }
            moves
        },
        0,
    );
    let mut lost = 0;
    for round in 1..=rounds as u32 {
        gic::set_pending(SPI);
        if !cpu::wait(|| record::everywhere(SPI) >= round) {
            lost += 1;
            break;
        }
    }
    STOP.store(1, Release);
    let moves = cpu::result(mover).unwrap_or(0);
    record::settle();
    sysreg::irq_off();
    (1..mover).for_each(cpu::mask);
    check::equal("an SPI that moves without end: lost", lost, 0);
    check::equal(
        "taken as often as made pending",
        record::everywhere(SPI).into(),
        rounds,
    );
    check::holds("moved meanwhile", moves > rounds / 10, moves);
    gic::set_edge(SPI, false);
}

/// Once a disable has taken effect, a CPU takes the interrupt no more, whatever was under way.
fn remote_disable(rounds: u64) {
    gic::route(SPI, 1);
    record::forget();
    gic::set_pending(SPI);
    gic::disable(SPI);
    let masked = cpu::call(1, |_| record::listen().into(), 0);
    check::equal(
        "pending, then disabled by another CPU",
        masked.unwrap_or(99),
        0,
    );
    gic::enable(SPI);
    let masked = cpu::call(1, |_| record::listen().into(), 0);
    check::equal("and enabled again", masked.unwrap_or(99), 1);
    cpu::unmask(1);
    let (mut late, mut lost) = (0, 0);
    for _ in 0..rounds / 5 {
        record::forget();
        gic::set_pending(SPI);
        gic::disable(SPI);
        // It may have been taken before; its handler gets time to say so.
        record::settle();
        let before = record::of(1, SPI);
        gic::set_pending(SPI);
        record::settle();
        late += u64::from(record::of(1, SPI) != before);
        gic::enable(SPI);
        lost += u64::from(!cpu::wait(|| record::of(1, SPI) == before + 1));
    }
    cpu::mask(1);
    check::equal("taken although disabled", late, 0);
    check::equal("not taken when enabled again", lost, 0);
}

/// Pending at another CPU can be seen and taken away.
fn remote_pending() {
    record::forget();
    gic::set_pending(SPI);
    record::settle();
    check::holds(
        "GICD_ISPENDR of another CPU's SPI",
        gic::bit(gic::ISPENDR, SPI),
        "0",
    );
    gic::clear_pending(SPI);
    check::holds(
        "GICD_ICPENDR of another CPU's SPI",
        !gic::bit(gic::ISPENDR, SPI),
        "1",
    );
    let taken = cpu::call(1, |_| record::listen().into(), 0);
    check::equal("taken away by another CPU", taken.unwrap_or(99), 0);
}

/// Active at another CPU can be seen, with and without pending.
fn remote_active() {
    record::forget();
    record::hold(1 << 1);
    cpu::give(1, |_| record::listen().into(), 0);
    gic::set_pending(SPI);
    cpu::wait(|| record::of(1, SPI) == 1);
    check::holds(
        "GICD_ISACTIVER of another CPU's SPI",
        gic::bit(gic::ISACTIVER, SPI),
        "0",
    );
    check::holds(
        "active and not pending",
        !gic::bit(gic::ISPENDR, SPI),
        "pending",
    );
    gic::set_pending(SPI);
    check::holds(
        "active and pending",
        gic::bit(gic::ISPENDR, SPI),
        "not pending",
    );
    record::hold(0);
    let taken = cpu::result(1);
    check::equal("then taken again", taken.unwrap_or(99), 2);
    check::holds("and not active", !gic::bit(gic::ISACTIVER, SPI), "active");
}

/// EOImode 1: what one CPU took and dropped, another deactivates through GICD_ICACTIVER.
fn remote_deactivate() {
    record::forget();
    gic::set_pending(SPI);
    let taken = cpu::call(
        1,
        |_| {
            gic::split_end(true);
            let taken = gic::acknowledge();
            gic::end(taken);
            taken.intid().into()
        },
        0,
    );
    check::equal(
        "EOImode 1: taken and dropped",
        taken.unwrap_or(0),
        SPI.into(),
    );
    check::holds(
        "EOImode 1: active for others",
        gic::bit(gic::ISACTIVER, SPI),
        "0",
    );
    gic::set_pending(SPI);
    let masked = cpu::call(1, |_| gic::most_urgent().into(), 0);
    check::holds(
        "EOImode 1: not taken again while active",
        masked >= Some(1020),
        "taken",
    );
    gic::set(gic::ICACTIVER, SPI);
    check::holds(
        "GICD_ICACTIVER of another CPU's SPI",
        !gic::bit(gic::ISACTIVER, SPI),
        "1",
    );
    let taken = cpu::call(
        1,
        |_| {
            let taken = gic::acknowledge();
            gic::end(taken);
            gic::deactivate(taken);
            gic::split_end(false);
            taken.intid().into()
        },
        0,
    );
    check::equal("then taken again", taken.unwrap_or(0), SPI.into());
    check::holds("and deactivated", !gic::bit(gic::ISACTIVER, SPI), "active");
}

/// More pending than any CPU has list registers, from several senders: each once, by priority.
fn overflow() {
    // The priority behind them would be 0xf8, which no mask of 5 bits lets through.
    const SPIS: core::ops::Range<u32> = 40..55;
    record::forget();
    cpu::call(
        1,
        |_| {
            for intid in 0..16 {
                gic::enable(intid);
                gic::set_priority(intid, (intid as u8) * 0x10);
            }
            0
        },
        0,
    );
    for intid in SPIS {
        gic::set_priority(intid, ((intid - 40) as u8) * 0x10 + 8);
        gic::route(intid, 1);
        gic::enable(intid);
    }
    // From the least urgent to the most urgent one: each has to push others out.
    for n in (0..16).rev() {
        if SPIS.contains(&(40 + n)) {
            gic::set_pending(40 + n);
        }
        if n % 2 == 0 {
            gic::send(n, 1 << 1);
        } else {
            cpu::call(
                2,
                |intid| {
                    gic::send(intid as u32, 1 << 1);
                    0
                },
                n.into(),
            );
        }
    }
    let taken = cpu::call(1, |_| record::listen().into(), 0);
    check::equal("16 SGIs and 15 SPIs at once", taken.unwrap_or(99), 31);
    let expected = |place: usize| {
        if place.is_multiple_of(2) {
            place as u32 / 2
        } else {
            40 + place as u32 / 2
        }
    };
    let wrong = (0..31).find(|place| record::order(1, *place) != expected(*place));
    check::holds(
        "the most urgent first",
        wrong.is_none(),
        format_args!("place {wrong:?}: {}", record::order(1, wrong.unwrap_or(0))),
    );
    SPIS.for_each(gic::disable);
}

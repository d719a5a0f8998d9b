//! Claim: a VM that restarts finds everything as at its first start, whatever it did to itself
//! before.
//!
//! Each life compares what it finds with what the first one found (shared page `lives`): its image
//! and device tree (but for the seeds in it, which no life before had), the rest of its RAM, its interrupt controller, timers, devices, other CPUs; and
//! checks that nothing comes which an earlier life has left behind. Then it leaves interrupts
//! enabled, pending and active on all CPUs, of all kinds, those of its passed-through devices (a
//! second PL011, a PL061) too, whose lines stay up; overwrites all of its RAM but a page, tables
//! and vectors included; and crashes while the other CPUs are busy.
#![no_std]
#![no_main]

use bulkhead_guests::board::{Device, Range};
use bulkhead_guests::mmio::{read32, read64, write32};
use bulkhead_guests::pl061::{GPIODIR, GPIOIE, GPIOIEV, GPIOIS, GPIOMIS};
use bulkhead_guests::ruin::{Busy, Refuge};
use bulkhead_guests::timer::physical;
use bulkhead_guests::{
    Board, check, cpu, gic, guest, memory, mrs, msr, power, println, sysreg, timer,
};
use bulkhead_guests::{shared, uart};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

guest!(main = main, irq = on_irq);

/// Value written over all of RAM: no instruction, no valid descriptor, no device tree.
const RUIN: u64 = 0x0000_dead_0000_dead;
/// Index of the first seed in the shared page: two words for each life.
const SEEDS: usize = 32;
/// CPUs that take part.
const CPUS: usize = 4;

static LIFE: AtomicU64 = AtomicU64::new(0);
/// State in which each CPU has found its own interrupts, and the number of unexpected interrupts.
static FOUND: [AtomicU64; CPUS] = [const { AtomicU64::new(0) }; CPUS];
static STRAY: [AtomicU32; CPUS] = [const { AtomicU32::new(0) }; CPUS];
static LAST_STRAY: AtomicU32 = AtomicU32::new(0);
/// INTIDs of the two devices, and how often they came.
static DEVICES: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
static CAME: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
/// Addresses of the two devices.
static BASES: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// CPUs that have made their part of the mess.
static READY: AtomicU32 = AtomicU32::new(0);
static REFUGE: AtomicUsize = AtomicUsize::new(0);

fn main(board: &'static Board) {
    // Before anything is touched.
    let timers = mrs!("cntv_ctl_el0") & 1 | mrs!("cntp_ctl_el0") & 1;
    let console = read32(uart::base() + uart::IFLS);
    let image = memory::checksum(board.loaded);
    let seeds = board.seeds.map(|seed| seed.map_or(0, take_seed));
    let tree = board.tree.map_or(0, memory::checksum);
    let found = (distributor(), private());
    let Some(lives) = board.shared("lives").map(shared::words) else {
        return println!("FAIL restart: it needs a shared page `lives`");
    };
    let (Some(second), Some(gpio)) = (board.second_uart, board.gpio) else {
        return println!("FAIL restart: it needs a second PL011 and a PL061");
    };
    let life = lives[0].fetch_add(1, Relaxed) + 1;
    LIFE.store(life, Relaxed);
    for (n, device) in [second, gpio].into_iter().enumerate() {
        DEVICES[n].store(device.intid, Relaxed);
        BASES[n].store(device.base, Relaxed);
    }
    println!("restart: life {life}");

    same("image", lives, 1, image);
    same("device tree", lives, 2, tree);
    let earlier = &lives[SEEDS..][..2 * life as usize];
    let fresh = |seed: &u64| *seed != 0 && earlier.iter().all(|word| word.load(Relaxed) != *seed);
    holds("seeds of its own", seeds.iter().all(fresh), seeds[0]);
    for (n, seed) in seeds.into_iter().enumerate() {
        lives[SEEDS + 2 * life as usize + n].store(seed, Relaxed);
    }
    let mut set = None;
    memory::free_pages(board, |page| set = set.or(page.first_set()));
    let at = set.unwrap_or(0);
    holds("the rest of RAM is zero", set.is_none(), at as u64);
    holds("timers are off", timers == 0, timers);
    same("PL011 of its own", lives, 3, console.into());
    same("distributor", lives, 4, found.0);
    same("interrupts of CPU 0", lives, 5, found.1);
    let waiting = waiting();
    holds(
        "nothing is enabled, pending or active",
        waiting == 0,
        waiting,
    );
    if life > 1 {
        quiet(second, gpio);
    }
    for cpu in 1..CPUS {
        let info = power::affinity_info(cpu::affinity(cpu), 0);
        holds(format_args!("CPU {cpu} is off"), info == 1, info as u64);
    }
    for (cpu, found) in FOUND.iter().enumerate().skip(1) {
        let answer = cpu::start(cpu, look, 0);
        let over = cpu::wait(|| power::affinity_info(cpu::affinity(cpu), 0) == 1);
        let looked = answer == 0 && over;
        holds(format_args!("CPU {cpu} looks"), looked, answer as u64);
        let name = format_args!("interrupts of CPU {cpu}");
        same(name, lives, 5 + cpu, found.load(Acquire));
    }
    let came = listen(true);
    holds("nothing comes to CPU 0", came == 0, came.into());
    for (cpu, came) in STRAY.iter().enumerate().skip(1) {
        let came = came.load(Acquire);
        holds(
            format_args!("nothing comes to CPU {cpu}"),
            came == 0,
            LAST_STRAY.load(Relaxed).into(),
        );
    }
    devices_work(second, gpio);
    check::done();
    mess(board, second, gpio)
}

fn holds(name: impl core::fmt::Display, condition: bool, seen: u64) {
    let life = LIFE.load(Relaxed);
    check::holds(
        format_args!("life {life}: {name}"),
        condition,
        format_args!("{seen:#x}"),
    );
}

/// The first life keeps a value in a word of the shared page, the others compare theirs with it.
fn same(name: impl core::fmt::Display, lives: &[AtomicU64], word: usize, seen: u64) {
    if LIFE.load(Relaxed) == 1 {
        lives[word].store(seen, Relaxed);
    }
    holds(
        format_args!("{name} as at first"),
        lives[word].load(Relaxed) == seen,
        seen,
    );
}

/// Reads a seed of the device tree and wipes it, as Linux does; what stays is as at first.
fn take_seed(seed: Range) -> u64 {
    let words = (seed.base..seed.end()).step_by(4);
    words.fold(0, |sum, at| {
        let word = read32(at);
        write32(at, 0);
        mix(sum, word.into())
    })
}

fn mix(sum: u64, value: u64) -> u64 {
    (sum ^ value).wrapping_mul(0x0000_0100_0000_01b3)
}

/// The state of the distributor without private interrupts, as one number.
fn distributor() -> u64 {
    let gicd = gic::distributor();
    let mut sum = mix(1, read32(gicd + gic::CTLR).into());
    for first in (32..gic::interrupts()).step_by(32) {
        sum = mix(sum, words(first));
    }
    for intid in 32..gic::interrupts() as usize {
        let route = if gic::version() == 2 {
            u64::from(read32(gicd + gic::ITARGETSR + (intid & !3)))
        } else {
            read64(gicd + gic::v3::IROUTER + 8 * intid)
        };
        sum = mix(sum, route);
    }
    sum
}

/// The state of this CPU's own interrupts and of its interface, as one number.
fn private() -> u64 {
    let sum = words(0);
    if gic::version() == 2 {
        let gicc = gic::v2::cpu_interface();
        use gic::v2::{APR, BPR, GICC_CTLR, PMR, RPR};
        let registers = [GICC_CTLR, PMR, BPR, RPR, APR];
        registers
            .into_iter()
            .fold(sum, |sum, at| mix(sum, read32(gicc + at).into()))
    } else {
        msr!("icc_sre_el1", 7);
        sysreg::isb();
        let registers = [
            mrs!("icc_pmr_el1"),
            mrs!("icc_bpr1_el1"),
            mrs!("icc_ctlr_el1"),
            mrs!("icc_igrpen0_el1"),
            mrs!("icc_igrpen1_el1"),
            mrs!("icc_rpr_el1"),
            mrs!("icc_ap1r0_el1"),
        ];
        registers.into_iter().fold(sum, mix)
    }
}

/// The registers of 32 interrupts.
fn words(first: u32) -> u64 {
    let banks = [gic::IGROUPR, gic::ISENABLER, gic::ISPENDR, gic::ISACTIVER];
    let mut sum = banks.into_iter().fold(2, |sum, bank| {
        mix(sum, read32(gic::word(bank, first)).into())
    });
    for offset in (0..32).step_by(4) {
        sum = mix(
            sum,
            read32(gic::frame(first) + gic::IPRIORITYR + first as usize + offset).into(),
        );
    }
    for half in 0..2 {
        sum = mix(
            sum,
            read32(gic::frame(first) + gic::ICFGR + first as usize / 4 + 4 * half).into(),
        );
    }
    sum
}

/// Bits of what is enabled (SGIs may always be), pending or active, of all interrupts of this CPU.
fn waiting() -> u64 {
    let mut bits = 0;
    for first in (0..gic::interrupts()).step_by(32) {
        let sgis = if first == 0 { 0xffff } else { 0 };
        bits |= read32(gic::word(gic::ISENABLER, first)) & !sgis;
        bits |= read32(gic::word(gic::ISPENDR, first)) | read32(gic::word(gic::ISACTIVER, first));
    }
    bits.into()
}

/// The passed-through devices interrupt nobody and drive nothing.
fn quiet(second: Device, gpio: Device) {
    let uart = |offset| u64::from(read32(second.base + offset));
    let open = uart(uart::IMSC) | uart(uart::MIS) | uart(uart::CR) | uart(uart::LCR_H);
    holds("the second PL011 is quiet", open == 0, open);
    let pins = |offset| u64::from(read32(gpio.base + offset));
    let open = pins(GPIOIE) | pins(GPIOMIS) | pins(GPIODIR);
    holds("the PL061 is quiet", open == 0, open);
}

/// Runs first on another CPU.
fn look(_context: u64) {
    let here = cpu::number();
    FOUND[here].store(private(), Release);
    listen(false);
}

/// Opens everything for a while; returns the number of unexpected interrupts.
fn listen(all: bool) -> u32 {
    gic::expose(all);
    sysreg::irq_on();
    timer::spin(2_000);
    sysreg::irq_off();
    STRAY[cpu::number()].load(Relaxed)
}

/// The devices interrupt once for each time that they are asked to.
fn devices_work(second: Device, gpio: Device) {
    gic::init();
    sysreg::irq_on();
    for device in [second, gpio] {
        gic::enable(device.intid);
    }
    for round in 1..=3 {
        raise_uart(second.base);
        raise_gpio(gpio.base);
        cpu::wait(|| CAME.iter().all(|came| came.load(Relaxed) >= round));
        timer::spin(100);
    }
    sysreg::irq_off();
    for (came, name) in CAME.iter().zip(["second PL011", "PL061"]) {
        let came = came.load(Relaxed);
        holds(
            format_args!("interrupts of the {name}"),
            came == 3,
            came.into(),
        );
    }
}

/// A PL011 raises its line when a byte has left.
fn raise_uart(base: usize) {
    write32(base + uart::LCR_H, 0b111_0000);
    write32(base + uart::CR, 0b11_0000_0001);
    write32(base + uart::IMSC, uart::INT_TX);
    write32(base + uart::DR, 0);
}

/// A pin of the PL061 that interrupts while it is low, which it is.
fn raise_gpio(base: usize) {
    write32(base + GPIOIEV, 0);
    write32(base + GPIOIS, 0xff);
    write32(base + GPIOIE, 1);
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    let which = DEVICES
        .iter()
        .position(|intid| intid.load(Relaxed) == taken.intid());
    match which {
        // Only when they have been asked.
        Some(0) if read32(BASES[0].load(Relaxed) + uart::MIS) != 0 => {
            CAME[0].fetch_add(1, Relaxed);
            write32(BASES[0].load(Relaxed) + uart::IMSC, 0);
            write32(BASES[0].load(Relaxed) + uart::ICR, 0x7ff);
        }
        Some(1) if read32(BASES[1].load(Relaxed) + GPIOMIS) != 0 => {
            CAME[1].fetch_add(1, Relaxed);
            write32(BASES[1].load(Relaxed) + GPIOIE, 0);
        }
        _ => {
            LAST_STRAY.store(taken.intid(), Relaxed);
            STRAY[cpu::number()].fetch_add(1, Relaxed);
            gic::disable(taken.intid());
        }
    }
    gic::end(taken);
}

/// Leaves everything as bad as can be.
fn mess(board: &'static Board, second: Device, gpio: Device) -> ! {
    let mut page = None;
    memory::free_pages(board, |free| page = Some(free));
    let refuge = page.map(|page| (Refuge::new(&page), page.base()));
    let Some((refuge, place)) = refuge else {
        println!("FAIL restart: no page is left");
        power::off()
    };
    REFUGE.store(place, Release);
    gic::init();
    // The console: an interrupt open and pending, and a trigger level that is none of after a reset.
    write32(uart::base() + uart::IFLS, 0);
    write32(uart::base() + uart::IMSC, uart::INT_TX);
    for first in (32..gic::interrupts()).step_by(32) {
        write32(gic::word(gic::ISENABLER, first), u32::MAX);
    }
    // SPIs that no device drives: pending, active, with edges and other priorities.
    for intid in 44..56 {
        gic::set_edge(intid, true);
        gic::set_priority(intid, 0xc0);
        gic::set(
            if intid % 2 == 0 {
                gic::ISPENDR
            } else {
                gic::ISACTIVER
            },
            intid,
        );
    }
    gic::route(gpio.intid, 2);
    for cpu in 1..CPUS {
        cpu::start(cpu, mess_of_another, 0);
    }
    cpu::wait(|| READY.load(Acquire) == CPUS as u32 - 1);
    raise_uart(second.base);
    let taken = private_mess() + u32::from(acknowledge(second.intid, 0x10));
    let waits = read32(gic::word(gic::ISPENDR, 32)) != 0;
    let active = read32(gic::word(gic::ISACTIVER, second.intid));
    println!(
        "restart: CPU 0 has taken {taken}, SPIs pending: {waits}, active: {active:#x}; now it ruins itself"
    );
    while read32(uart::base() + uart::FR) & uart::FR_TXFE == 0 {}
    refuge.wreck(board.memory[0], RUIN)
}

fn mess_of_another(_context: u64) {
    let here = cpu::number();
    gic::init_cpu();
    if here == 2 {
        // The line of the PL061 comes up, and stays active here.
        raise_gpio(BASES[1].load(Relaxed));
        cpu::wait(|| gic::most_urgent() == DEVICES[1].load(Relaxed));
        acknowledge(DEVICES[1].load(Relaxed), 0xb0);
    }
    private_mess();
    READY.fetch_add(1, Release);
    let refuge = Refuge::at(REFUGE.load(Acquire));
    refuge.stay(match here {
        1 => Busy::Spins,
        2 => Busy::Sleeps,
        _ if gic::version() == 2 => Busy::Stores(gic::distributor() + gic::v2::SGIR, 0xf << 16 | 9),
        _ => Busy::Sends(gic::v3::sgi(9, 0xf)),
    })
}

/// Private interrupts of this CPU: SGIs, timers and others active, some of them pending again, all enabled.
/// Says how many it could take.
fn private_mess() -> u32 {
    write32(gic::word(gic::ISENABLER, 0), u32::MAX);
    timer::arm(0);
    physical::set_compare(0);
    physical::set_control(physical::ENABLE);
    let mut taken = 0;
    for (n, intid) in [3, 20, timer::INTID, physical::INTID]
        .into_iter()
        .enumerate()
    {
        gic::set_priority(intid, 0x90 - 0x10 * n as u8);
        if intid < 27 {
            gic::set_pending(intid);
        }
        taken += u32::from(acknowledge(intid, 0x90 - 0x10 * n as u8));
    }
    for intid in [3, 5, 7, 21] {
        gic::set_pending(intid);
    }
    taken
}

/// Takes an interrupt without ending it; whether it was the one.
fn acknowledge(intid: u32, priority: u8) -> bool {
    gic::set_priority(intid, priority);
    cpu::wait(|| gic::most_urgent() == intid);
    gic::acknowledge().intid() == intid
}

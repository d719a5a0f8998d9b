//! Claim: a disk that all CPUs drive at once costs this VM only, and works again when one of them alone brings it up.
//!
//! One CPU resets the device again and again, and starts it as a driver does. The others write its registers, in every size,
//! offer requests, notify and acknowledge; in the second part they also say where the queue is, in the third they draw the
//! tables and the available ring, and in the fourth a start leaves no time for anything. `rounds=` is how often each does
//! something in a part.
#![no_std]
#![no_main]

use bulkhead_abi::device::ring;
use bulkhead_guests::probe::{self, Width};
use bulkhead_guests::virtio::noise::{NOWHERE, Noise};
use bulkhead_guests::virtio::raw::{
    INDIRECT_DESC, Page, Raw, SIZE, VERSION_1, place, register, status,
};
use bulkhead_guests::{Board, check, cpu, gic, guest, println, sysreg, timer, virtio};
use bulkhead_service::memory::Memory;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use virtio_drivers::transport::DeviceType;

guest!(main = main);

const FEATURES: u64 = VERSION_1 | INDIRECT_DESC;
const PARTS: u64 = 4;
/// Microseconds from one start to the next reset.
const BETWEEN_US: u64 = 5000;
/// Where a used ring may be besides: nothing else is there.
const ELSEWHERE: u64 = place::ANSWER + 0x100;

/// Writes that faulted, which none of these may, and answers that came meanwhile.
static FAULTS: AtomicU64 = AtomicU64::new(0);
static ANSWERS: AtomicU64 = AtomicU64::new(0);
/// A CPU offers a request.
static OFFERS: AtomicBool = AtomicBool::new(false);
/// How often the device was seen as it is when it is reset, is driven, and cannot go on.
static SEEN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

fn main(board: &'static Board) {
    gic::init();
    let Some(device) = virtio::devices(board, DeviceType::Block).next() else {
        return println!("FAIL virtio-vcpus: there is no disk");
    };
    let Some(mut raw) = Raw::new(device) else {
        return println!("FAIL virtio-vcpus: there is no memory for a queue");
    };
    let first = raw.start(FEATURES).then(|| raw.read()).flatten();
    let Some(sector) = first else {
        return println!("FAIL virtio-vcpus: the disk cannot be read");
    };
    let before = Page::of(&raw);
    check::equal("CPUs", board.cpus as u64, 4);
    cpu::hire_all(1..board.cpus);
    let rounds = board.argument("rounds").unwrap_or(2000);
    for part in 1..=PARTS {
        (1..board.cpus).for_each(|cpu| cpu::give(cpu, disturb, rounds << 8 | part));
        // As long as one of them is at it.
        while !(1..board.cpus).all(cpu::is_done) {
            restart(&mut raw);
            if part < PARTS {
                timer::spin(BETWEEN_US);
            }
        }
        let finished = (1..board.cpus).all(|cpu| cpu::result(cpu).is_some());
        check::holds("all come to an end", finished, "a CPU is stuck");
        let again = raw.works(FEATURES, sector, &before);
        check::report(
            format_args!("part {part}: one CPU alone drives it again"),
            again,
        );
    }
    check::equal("writes that faulted", FAULTS.load(Relaxed), 0);
    let seen = |which: usize| SEEN[which].load(Relaxed);
    let [reset, driven, broken] = [seen(0), seen(1), seen(2)];
    let answers = ANSWERS.load(Relaxed);
    println!(
        "virtio-vcpus: seen reset {reset}, driven {driven}, broken {broken} times; {answers} answers"
    );
    check::holds(
        "it was reset, driven, broken and used in the middle of it",
        [reset, driven, broken].iter().all(|times| *times > 100) && answers >= 10,
        "not often enough",
    );
    check::done();
}

/// Takes the device from the others, and drives it where the queue belongs.
fn restart(raw: &mut Raw) {
    raw.set(register::STATUS, 0);
    // Whatever the others write there meanwhile.
    note(raw);
    raw.take_features(raw.offered() & FEATURES);
    for at in [place::AVAILABLE, place::USED] {
        assert!(raw.memory.store16(at + ring::INDEX, 0).is_ok());
    }
    let [table, available, used] = places_of(raw);
    raw.set_queue(SIZE.into(), table, available, used);
    raw.drive();
    note(raw);
}

fn places_of(raw: &Raw) -> [u64; 3] {
    [place::TABLE, place::AVAILABLE, place::USED].map(|at| raw.address(at))
}

fn note(raw: &Raw) {
    let which = match raw.get(register::STATUS) {
        0 => 0,
        status if status & status::NEEDS_RESET != 0 => 2,
        status if status & status::DRIVER_OK != 0 => 1,
        _ => return,
    };
    SEEN[which].fetch_add(1, Relaxed);
}

/// What the other CPUs do.
fn disturb(argument: u64) -> u64 {
    let (rounds, part) = (argument >> 8, argument & 0xff);
    let Some(raw) = Raw::beside() else {
        return 0;
    };
    let mut noise = Noise::new(cpu::number() as u64 ^ part << 8);
    if part > 2 {
        noise.fill(&raw);
    }
    let mut last = used(&raw);
    for _ in 0..rounds {
        match noise.below(8) {
            0 => write_any(&raw, &mut noise),
            1 => raw.set(register::INTERRUPT_ACK, noise.below(4) as u32),
            2 if part > 1 => write_queue(&raw, &mut noise),
            3 | 4 if part > 2 => offer(&raw, &mut noise),
            5 if part > 2 => (0..8).for_each(|_| noise.rewrite(&raw)),
            _ => offer_read(&raw),
        }
        note(&raw);
        let now = used(&raw);
        ANSWERS.fetch_add(u64::from(now != last), Relaxed);
        last = now;
    }
    0
}

fn used(raw: &Raw) -> u16 {
    raw.memory
        .load16(place::USED + ring::INDEX)
        .expect("outside")
}

/// Any register but those that say where the queue is, in any size.
fn write_any(raw: &Raw, noise: &mut Noise) {
    let width = Width::ALL[noise.below(4) as usize];
    let aligned = noise.below(0x180) as usize / width.bytes() * width.bytes();
    let place = register::QUEUE_DESC..register::QUEUE_DEVICE + 8;
    if place.contains(&aligned) {
        return;
    }
    let value = [0, noise.below(16), noise.below(256), u64::MAX][noise.below(4) as usize];
    if probe::write(width, raw.base + aligned, value).is_err() {
        FAULTS.fetch_add(1, Relaxed);
    }
}

/// Says that the queue is somewhere, and of some size, or is not.
fn write_queue(raw: &Raw, noise: &mut Noise) {
    let one = |noise: &mut Noise, places: [u64; 3]| places[noise.below(3) as usize];
    let [table, available, used] = places_of(raw);
    let table = one(noise, [table, raw.address(place::INDIRECT), NOWHERE]);
    let available = one(noise, [available, table, NOWHERE]);
    // Where a ring is that the device writes, there is no table.
    let used = one(noise, [used, raw.address(ELSEWHERE), NOWHERE]);
    let size = [SIZE, 16, 48, 0][noise.below(4) as usize];
    raw.set_queue(size.into(), table, available, used);
    raw.set(register::QUEUE_READY, noise.below(2) as u32);
}

/// Shows up to four chains more than were there, which may be none.
fn offer(raw: &Raw, noise: &mut Noise) {
    let at = place::AVAILABLE + ring::INDEX;
    let index = raw.memory.load16(at).expect("outside");
    let more = noise.below(5) as u16;
    for number in 0..more {
        put(raw, index.wrapping_add(number), noise.number());
    }
    let stored = raw.memory.store16(at, index.wrapping_add(more));
    assert!(stored.is_ok());
    raw.set(register::QUEUE_NOTIFY, noise.below(3) as u32);
}

/// Shows a request to read, if there is room for one and no other CPU does: else nearly all rings would be broken.
fn offer_read(raw: &Raw) {
    if OFFERS.swap(true, Acquire) {
        return;
    }
    let at = place::AVAILABLE + ring::INDEX;
    let index = raw.memory.load16(at).expect("outside");
    if index.wrapping_sub(used(raw)) < SIZE / 4 {
        raw.describe_read(place::TABLE);
        put(raw, index, 0);
        sysreg::dsb();
        assert!(raw.memory.store16(at, index.wrapping_add(1)).is_ok());
    }
    OFFERS.store(false, Release);
    raw.set(register::QUEUE_NOTIFY, 0);
}

fn put(raw: &Raw, index: u16, head: u16) {
    let entry = u64::from(index % SIZE) * ring::AVAILABLE_ENTRY;
    let at = place::AVAILABLE + ring::ENTRIES + entry;
    assert!(raw.memory.store16(at, head).is_ok());
}

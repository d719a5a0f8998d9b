//! Claim: a VM that keeps the queue of its disk full, or notifies it without end, does not keep the requests of another VM with
//! the same backend from going on, at a bounded cost.
//!
//! One of the two has `flood=1`, and does what the other one says in the shared page `flood`: nothing, a full queue,
//! notifications, the end. The other reads as many sectors, one at a time, in each of the three, and compares how long that
//! takes, by its counter. `times=` is how many times as long it may take in a flood: the backend serves a quota of 32 requests
//! of the flood before it comes to the other's, and each of them takes a quarter of what one takes alone.
#![no_std]
#![no_main]

use bulkhead_guests::shared::Words;
use bulkhead_guests::virtio::raw::{INDIRECT_DESC, Raw, SIZE, VERSION_1, place, register};
use bulkhead_guests::{Board, check, guest, println, shared, timer, virtio};
use core::sync::atomic::Ordering::Relaxed;
use virtio_drivers::transport::DeviceType;

guest!(main = main);

const FEATURES: u64 = VERSION_1 | INDIRECT_DESC;
/// Requests of who measures, in each part.
const REQUESTS: u64 = 200;

/// Words of the shared page: what is to be done, and how much of it was done.
const PART: usize = 0;
const DONE: usize = 1;

/// What is to be done.
const FULL: u64 = 1;
const NOTIFIED: u64 = 2;
const END: u64 = 3;

fn main(board: &'static Board) {
    let Some(page) = board.shared("flood").map(shared::words) else {
        return println!("FAIL virtio-flood: there is no page `flood`");
    };
    let device = virtio::devices(board, DeviceType::Block).next();
    let Some(mut raw) = device.and_then(Raw::new) else {
        return println!("FAIL virtio-flood: there is no disk");
    };
    let works = raw.start(FEATURES) && raw.read().is_some();
    check::holds("the disk works", works, "it does not");
    if board.argument("flood") == Some(1) {
        flood(&mut raw, page);
    } else {
        measure(&mut raw, page, board.argument("times").unwrap_or(10));
    }
    check::done();
}

fn flood(raw: &mut Raw, page: Words) {
    let is_part = |part| page[PART].load(Relaxed) == part;
    while !is_part(FULL) {}
    raw.describe_read(place::TABLE);
    (0..SIZE).for_each(|_| raw.put(0));
    raw.show(0);
    let mut left = SIZE;
    while left > 0 {
        let came = raw.take_used();
        page[DONE].fetch_add(came.into(), Relaxed);
        left -= came;
        if came > 0 && is_part(FULL) {
            (0..came).for_each(|_| raw.put(0));
            raw.show(0);
            left += came;
        }
    }
    while is_part(NOTIFIED) {
        raw.set(register::QUEUE_NOTIFY, 0);
        page[DONE].fetch_add(1, Relaxed);
    }
    check::holds(
        "the disk works at last",
        raw.read().is_some(),
        "it does not",
    );
}

fn measure(raw: &mut Raw, page: Words, times: u64) {
    let alone = requests(raw);
    println!(
        "virtio-flood: {REQUESTS} requests take {} ticks alone",
        alone.unwrap_or(0)
    );
    for (part, name) in [(FULL, "requests"), (NOTIFIED, "notifications")] {
        page[PART].store(part, Relaxed);
        page[DONE].store(0, Relaxed);
        while page[DONE].load(Relaxed) < REQUESTS {}
        let before = page[DONE].load(Relaxed);
        let beside = requests(raw);
        let done = page[DONE].load(Relaxed) - before;
        println!(
            "virtio-flood: they take {} ticks beside {done} {name}",
            beside.unwrap_or(0)
        );
        let holds = alone.zip(beside);
        check::holds(
            format_args!("requests go on beside a flood of {name}"),
            holds.is_some_and(|(alone, beside)| beside <= alone * times),
            "it takes too long",
        );
        check::holds(
            format_args!("it was a flood of {name}"),
            done >= REQUESTS * 2,
            done,
        );
    }
    page[PART].store(END, Relaxed);
}

/// Ticks that the requests take, one after the other; `None` if one does not work.
fn requests(raw: &mut Raw) -> Option<u64> {
    let begin = timer::now();
    let work = (0..REQUESTS).all(|_| raw.read().is_some());
    work.then(|| timer::now() - begin)
}

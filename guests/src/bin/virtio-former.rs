//! Claim: no request of a former life touches the memory of a life that follows, even if that has the same descriptors at the same
//! place, and a ring in which nothing seems to be new.
//!
//! Rings that do not follow from what was seen before end a device: a RAM of zeros does that to most queues, before a request of
//! the former life can be answered into it. So the first life asks for as many requests as the index of a ring counts, which is
//! zero again then, and ends while the last of them are under way. The second one describes the same request where the former
//! one did, and looks whether anything comes. Which life it is stands in the shared page `lives`. What the UART reads tells it to go on.
#![no_std]
#![no_main]

use bulkhead_abi::device::ring::WRITE;
use bulkhead_guests::virtio::raw::{Raw, SIZE, VERSION_1, place};
use bulkhead_guests::{Board, check, guest, println, shared, timer, uart, virtio};
use bulkhead_service::memory::Memory;
use core::sync::atomic::Ordering::Relaxed;
use virtio_drivers::transport::DeviceType;

guest!(main = main);

/// Requests of the first life: as many as the index of a ring counts, without the last queue full of them.
const BEFORE: u32 = 0x1_0000 - SIZE as u32;
/// The type of a request that no disk has: it is answered without any data.
const UNKNOWN: u64 = 0xfe;
/// What the data is that no request has written.
const PATTERN: u64 = 0x5a5a_a5a5_5a5a_a5a5;
/// Microseconds in which the second life would see an answer.
const LOOKS: u64 = 100_000;

fn main(board: &'static Board) {
    let Some(lives) = board.shared("lives").map(shared::words) else {
        return println!("FAIL virtio-former: there is no page `lives`");
    };
    let device = virtio::devices(board, DeviceType::Block).next();
    let Some(mut raw) = device.and_then(Raw::new) else {
        return println!("FAIL virtio-former: there is no disk");
    };
    if lives[0].fetch_add(1, Relaxed) == 0 {
        former(&mut raw);
    } else {
        latter(&mut raw);
    }
    check::done();
}

/// Ends with a queue full of requests under way. Whoever ends it waits until it says so.
fn former(raw: &mut Raw) -> ! {
    let works = raw.start(VERSION_1) && raw.read().is_some();
    check::holds("the disk works", works, "it does not");
    let started = raw.start(VERSION_1);
    raw.describe_read(place::TABLE);
    assert!(raw.memory.store64(place::HEADER, UNKNOWN).is_ok());
    raw.describe(place::TABLE, 1, raw.address(place::ANSWER), 1, WRITE, 0);
    let mut left = BEFORE;
    while left > 0 && started {
        (0..SIZE).for_each(|_| raw.put(0));
        raw.show(0);
        let mut under_way = SIZE;
        while under_way > 0 {
            under_way -= raw.take_used();
        }
        left -= u32::from(SIZE);
    }
    println!("virtio-former: {BEFORE} requests have come back");
    while uart::get().is_none() {}
    raw.describe_read(place::TABLE);
    (0..SIZE).for_each(|_| raw.put(0));
    raw.show(0);
    // Long enough for the service thread to hand them on.
    timer::spin(2000);
    let came = raw.take_used();
    check::equal(
        "requests that have come back of the last ones",
        came.into(),
        0,
    );
    println!("virtio-former: the last ones are under way");
    loop {
        core::hint::spin_loop();
    }
}

/// Looks whether a request of the former life is answered.
fn latter(raw: &mut Raw) {
    raw.describe_read(place::TABLE);
    let data = || (place::DATA..place::DATA + place::DATA_BYTES).step_by(8);
    assert!(data().all(|at| raw.memory.store64(at, PATTERN).is_ok()));
    println!("virtio-former: it looks");
    while uart::get().is_none() {}
    timer::spin(LOOKS);
    let came = raw.take_used();
    check::equal("requests of the former life that come back", came.into(), 0);
    let changed = data().filter(|at| raw.memory.load64(*at) != Ok(PATTERN));
    check::equal("words that they have written", changed.count() as u64, 0);
    let works = raw.start(VERSION_1) && raw.read().is_some();
    check::holds("the disk works", works, "it does not");
}

//! Claim: a driver that breaks every rule is paused, goes on and starts again in the middle of it, with requests under way,
//! and finds its disk as it should be each time.
//!
//! It says in the middle of its noise, and while it keeps its queue full of requests, that it is there: somebody
//! pauses it then, or starts it again. In the first life both have to be paused for `pause=` milliseconds, and the full queue ends then. What
//! was under way when a life ended stands in the shared page `lives`, which outlives the VM. `lives=` is the last one.
#![no_std]
#![no_main]

use bulkhead_abi::device::ring::{self, INDIRECT, NEXT, WRITE};
use bulkhead_guests::shared::Words;
use bulkhead_guests::virtio::noise::Noise;
use bulkhead_guests::virtio::raw::{INDIRECT_DESC, Page, Raw, SIZE, VERSION_1, place, register};
use bulkhead_guests::{Board, check, guest, println, shared, timer, uart, virtio};
use bulkhead_service::memory::Memory;
use core::fmt::Arguments;
use core::sync::atomic::Ordering::Relaxed;
use virtio_drivers::transport::DeviceType;

guest!(main = main);

const FEATURES: u64 = VERSION_1 | INDIRECT_DESC;
/// Bytes of a request's data, and how many requests share a place for it.
const BYTES: u64 = 4096;
const PLACES: u64 = place::DATA_BYTES / BYTES;
/// Bytes of the indirect table of a request.
const TABLE: u64 = 3 * ring::DESCRIPTOR;
/// Seconds without an answer after which there will be none.
const PATIENCE: u64 = 5;

/// What an answer is before it is there.
const NO_ANSWER: u8 = 0xee;
/// Queues of noise of a life.
const ROUNDS: u64 = 60;
/// So many have come back before it speaks.
const FIRST: u64 = 100;
/// Requests of a full queue in a life, if nobody ends it.
const MANY: u64 = 2000;
/// So many are to be under way when somebody interferes.
const FEW: u16 = 8;

type Outcome = Result<(), &'static str>;

/// Words of the shared page: the number of the life, and the requests under way at the latest look.
const LIFE: usize = 0;
const UNDER_WAY: usize = 1;

fn main(board: &'static Board) {
    let Some(lives) = board.shared("lives").map(shared::words) else {
        return println!("FAIL virtio-stops: there is no page `lives`");
    };
    let life = lives[LIFE].fetch_add(1, Relaxed) + 1;
    let last = board.argument("lives").unwrap_or(3);
    println!("virtio-stops: life {life} of {last}");
    let Some(device) = virtio::devices(board, DeviceType::Block).next() else {
        return println!("FAIL virtio-stops: there is no disk");
    };
    let Some(mut raw) = Raw::new(device) else {
        return println!("FAIL virtio-stops: there is no memory for a queue");
    };
    let status = raw.get(register::STATUS);
    check::same("status before a driver", status, 0);
    check::equal(
        "words that a former life's requests write",
        touched(&raw),
        0,
    );
    let under_way = lives[UNDER_WAY].swap(0, Relaxed);
    if life == last {
        check::holds(
            "requests were under way when the last life ended",
            under_way >= FEW.into(),
            under_way,
        );
        println!("virtio-stops: {under_way} requests were under way when the last life ended");
    }
    let first = raw.start(FEATURES).then(|| raw.read()).flatten();
    let Some(sector) = first else {
        return println!("FAIL virtio-stops: the disk cannot be read");
    };
    let before = Page::of(&raw);
    let pause = board.argument("pause").filter(|_| life == 1);
    let first = noise(&mut raw, life, format_args!("noise of life {life}"), pause)
        .and_then(|()| raw.works(FEATURES, sector, &before));
    check::report(format_args!("life {life}: noise"), first);
    let full =
        full(&mut raw, life, pause, lives).and_then(|()| raw.works(FEATURES, sector, &before));
    check::report(format_args!("life {life}: a full queue"), full);
    let again = noise(
        &mut raw,
        !life,
        format_args!("the last noise of life {life}"),
        None,
    )
    .and_then(|()| raw.works(FEATURES, sector, &before));
    check::report(format_args!("life {life}: the last noise"), again);
    check::done();
}

/// Leaves the memory alone for a while; returns how many of its words have changed meanwhile.
fn touched(raw: &Raw) -> u64 {
    const PATTERN: u64 = 0x5a5a_a5a5_5a5a_a5a5;
    let words = || (0..place::BYTES).step_by(8);
    let stored = words().all(|at| raw.memory.store64(at, PATTERN).is_ok());
    assert!(stored);
    timer::spin(20_000);
    let changed = words().filter(|at| raw.memory.load64(*at) != Ok(PATTERN));
    changed.count() as u64
}

/// Says in the middle of it that it is there, and finds out whether somebody has paused it between then and the last round for
/// `pause` milliseconds.
fn noise(raw: &mut Raw, seed: u64, name: Arguments<'_>, pause: Option<u64>) -> Outcome {
    let mut noise = Noise::new(seed);
    let mut before = timer::now();
    let mut longest = (0, 0);
    for round in 0..ROUNDS {
        noise.round(raw, FEATURES)?;
        let now = timer::now();
        longest = longest.max((now - before, round));
        before = now;
        if round == ROUNDS / 4 {
            println!("virtio-stops: in the middle of {name}");
        }
    }
    let Some(pause) = pause else {
        return Ok(());
    };
    let (ticks, round) = longest;
    let ms = ticks * 1000 / timer::frequency();
    println!("virtio-stops: it stood still for {ms} ms in round {round} of {ROUNDS} of {name}");
    if ms < pause || round <= ROUNDS / 4 {
        return Err("it was not paused in the middle");
    }
    Ok(())
}

/// Keeps the queue full of requests until many have come back, or until somebody has paused it for
/// `pause` milliseconds. Between looks it says what it does, a byte at a time: who interferes then does so behind a look.
fn full(raw: &mut Raw, life: u64, pause: Option<u64>, lives: Words) -> Outcome {
    if !raw.start(FEATURES) {
        return Err("it does not start");
    }
    for at in (place::DATA..place::DATA + place::DATA_BYTES).step_by(8) {
        assert!(raw.memory.store64(at, u64::MAX).is_ok());
    }
    (0..SIZE).for_each(|number| offer(raw, number));
    raw.show(0);
    let jump = pause.map(|ms| timer::ticks(ms * 1000));
    let (mut back, mut left, mut stood) = (0, SIZE, None);
    let name = [
        b"virtio-stops: kept full in life ",
        &[b'0' + life as u8][..],
        b"\n",
    ];
    let mut text = name.iter().copied().flatten().copied();
    let mut now = timer::now();
    let mut end = now + timer::frequency() * PATIENCE;
    while left > 0 {
        lives[UNDER_WAY].store(left.into(), Relaxed);
        if back >= FIRST {
            text.next().into_iter().for_each(uart::put);
        }
        let before = core::mem::replace(&mut now, timer::now());
        if jump.is_some_and(|jump| now - before >= jump) && stood.is_none() {
            stood = Some(left);
            end += now - before;
        }
        if now > end {
            return Err("requests are lost");
        }
        let goes_on = match pause {
            Some(_) => stood.is_none(),
            None => back < MANY,
        };
        let came = raw.take_used();
        for _ in 0..came {
            let number = head(raw, back);
            take(raw, number)?;
            back += 1;
            if goes_on {
                offer(raw, number);
            } else {
                left -= 1;
            }
        }
        if came > 0 && goes_on {
            raw.show(0);
        }
    }
    text.for_each(uart::put);
    println!("virtio-stops: {back} requests have come back in life {life}");
    let mut data = (place::DATA..place::DATA + place::DATA_BYTES).step_by(8);
    if !data.all(|at| raw.memory.load64(at) == Ok(0)) {
        return Err("it reads something else");
    }
    let Some(stood) = stood.filter(|_| pause.is_some()) else {
        return pause.map_or(Ok(()), |_| Err("it was not paused"));
    };
    println!("virtio-stops: {stood} requests were under way when it was paused");
    if stood < FEW {
        return Err("too few were under way when it was paused");
    }
    Ok(())
}

/// The request that has come back as number `back`.
fn head(raw: &Raw, back: u64) -> u16 {
    let entry = back % u64::from(SIZE) * ring::USED_ENTRY;
    raw.memory
        .load32(place::USED + ring::ENTRIES + entry)
        .expect("outside") as u16
}

/// Looks at a request that has come back: it was under way, and it has worked.
fn take(raw: &Raw, number: u16) -> Outcome {
    let mut answer = [NO_ANSWER];
    let place = place::ANSWER + u64::from(number);
    if number >= SIZE || raw.memory.read(place, &mut answer).is_err() || answer != [0] {
        return Err("an error, or an answer to nothing");
    }
    Ok(())
}

/// Puts a request to read into the ring, by an indirect table of its own.
fn offer(raw: &mut Raw, number: u16) {
    let table = place::INDIRECT + u64::from(number) * TABLE;
    let data = place::DATA + u64::from(number) % PLACES * BYTES;
    let answer = place::ANSWER + u64::from(number);
    let at = |place| raw.address(place);
    assert!(raw.memory.write(answer, &[NO_ANSWER]).is_ok());
    raw.describe(table, 0, at(place::HEADER), 16, NEXT, 1);
    raw.describe(table, 1, at(data), BYTES as u32, NEXT | WRITE, 2);
    raw.describe(table, 2, at(answer), 1, WRITE, 0);
    raw.describe(place::TABLE, number, at(table), TABLE as u32, INDIRECT, 0);
    raw.put(number);
}

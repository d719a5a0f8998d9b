//! Claim: whatever a driver does to the virtqueue and the registers of a disk, the device says that it needs a reset or
//! does nothing, touches nothing that it was not given, and works again after a reset.
//!
//! Rings as ADR 24 lists them under broken rings, queues that cannot be where they are said to be, resets with requests in
//! flight, registers of a queue that is in use, writes to every offset of the page of registers in every size, and at last
//! queues full of noise (`rounds=`).
//!
//! `native=1` leaves out what QEMU's own device does otherwise: it reads and writes what is not memory, takes features and
//! indirect tables that were not negotiated, knows no longest request, and lets queues be moved and enabled that are in use
//! or not there.
#![no_std]
#![no_main]

use bulkhead_abi::device::ring::{self, INDIRECT, NEXT, WRITE};
use bulkhead_guests::probe::{self, Fault, Width};
use bulkhead_guests::random::Random;
use bulkhead_guests::virtio::noise::{NOWHERE, Noise};
use bulkhead_guests::virtio::ranges::ranges;
use bulkhead_guests::virtio::raw::{
    CONFIG_CHANGED, INDIRECT_DESC, Page, Raw, SECTOR, SIZE, VERSION_1, place, register, status,
};
use bulkhead_guests::{Board, check, guest, mrs, msr, println, timer, virtio};
use bulkhead_service::memory::Memory;
use virtio_drivers::transport::DeviceType;

guest!(main = main);

/// All features that this driver knows, and the one that indirect tables need.
const FEATURES: u64 = VERSION_1 | INDIRECT_DESC;
const SEED: u64 = 0xd15c;

type Outcome = Result<(), &'static str>;

/// A queue that is broken, and whether QEMU's own device says so, too.
struct Case {
    name: &'static str,
    native: bool,
    features: u64,
    breaks: fn(&mut Raw, &Board),
}

const fn case(name: &'static str, breaks: fn(&mut Raw, &Board)) -> Case {
    Case {
        name,
        native: true,
        features: FEATURES,
        breaks,
    }
}

const fn only(case: Case) -> Case {
    Case {
        native: false,
        ..case
    }
}

/// A request to read whose descriptor `number` is another one.
fn with(raw: &mut Raw, number: u16, address: u64, bytes: u32, flags: u16, next: u16) {
    raw.describe_read(place::TABLE);
    raw.describe(place::TABLE, number, address, bytes, flags, next);
    raw.offer(0);
}

/// A request to read by an indirect table, whose own descriptor is another one.
fn indirect(raw: &mut Raw, address: u64, bytes: u32, flags: u16) {
    raw.describe_read(place::INDIRECT);
    raw.describe(place::TABLE, 0, address, bytes, flags, 1);
    raw.offer(0);
}

const CASES: &[Case] = &[
    case("an index one too far", |raw, _| {
        raw.describe_read(place::TABLE);
        raw.show(SIZE + 1);
    }),
    case("an index that goes back", |raw, _| raw.show(u16::MAX)),
    case("a head behind the table", |raw, _| raw.offer(SIZE)),
    case("a head of all ones", |raw, _| raw.offer(u16::MAX)),
    case("a next one behind the table", |raw, _| {
        with(raw, 0, raw.address(place::HEADER), 16, NEXT, SIZE);
    }),
    case("a circle of one", |raw, _| {
        with(raw, 0, raw.address(place::HEADER), 16, NEXT, 0);
    }),
    case("a circle of two", |raw, _| {
        with(raw, 1, raw.address(place::DATA), 8, NEXT, 0);
    }),
    case("readable behind writable", |raw, _| {
        with(raw, 2, raw.address(place::ANSWER), 1, 0, 0);
    }),
    case("an indirect table of a table and a half", |raw, _| {
        indirect(raw, raw.address(place::INDIRECT), 24, INDIRECT);
    }),
    only(case("an indirect table without descriptors", |raw, _| {
        indirect(raw, raw.address(place::INDIRECT), 0, INDIRECT);
    })),
    only(case("an indirect table that is too long", |raw, _| {
        indirect(raw, raw.address(place::DATA), 257 * 16, INDIRECT);
    })),
    only(case("an indirect table with a next one", |raw, _| {
        indirect(raw, raw.address(place::INDIRECT), 48, INDIRECT | NEXT);
    })),
    case("an indirect table in one", |raw, _| {
        let [first, second] = [place::INDIRECT, place::SECOND];
        raw.describe_read(second);
        raw.describe(first, 0, raw.address(second), 48, INDIRECT, 0);
        raw.describe(place::TABLE, 0, raw.address(first), 48, INDIRECT, 0);
        raw.offer(0);
    }),
    case("an indirect table nowhere", |raw, _| {
        indirect(raw, NOWHERE, 48, INDIRECT);
    }),
    only(Case {
        features: VERSION_1,
        ..case("an indirect table without its feature", |raw, _| {
            indirect(raw, raw.address(place::INDIRECT), 48, INDIRECT);
        })
    }),
    case("a circle in an indirect table", |raw, _| {
        let header = raw.address(place::HEADER);
        raw.describe_read(place::INDIRECT);
        raw.describe(place::INDIRECT, 0, header, 16, NEXT, 0);
        let table = raw.address(place::INDIRECT);
        raw.describe(place::TABLE, 0, table, 48, INDIRECT, 0);
        raw.offer(0);
    }),
    case("a next one behind an indirect table", |raw, _| {
        let header = raw.address(place::HEADER);
        raw.describe_read(place::INDIRECT);
        raw.describe(place::INDIRECT, 0, header, 16, NEXT, 3);
        let table = raw.address(place::INDIRECT);
        raw.describe(place::TABLE, 0, table, 48, INDIRECT, 0);
        raw.offer(0);
    }),
    only(case("a readable buffer nowhere", |raw, _| {
        with(raw, 0, NOWHERE, 16, NEXT, 1)
    })),
    only(case("a writable buffer nowhere", |raw, _| {
        with(raw, 1, NOWHERE, SECTOR, NEXT | WRITE, 2);
    })),
    only(case("a buffer beyond all addresses", |raw, _| {
        with(raw, 0, 1 << 60, 16, NEXT, 1);
    })),
    only(case(
        "a buffer around the end of all addresses",
        |raw, _| {
            with(raw, 0, u64::MAX - 7, 16, NEXT, 1);
        },
    )),
    only(case(
        "a writable buffer that ends behind the RAM",
        |raw, board| {
            let end = board.memory.last().map_or(0, |range| range.end());
            with(raw, 1, end as u64 - 256, SECTOR, NEXT | WRITE, 2);
        },
    )),
    only(case("a readable buffer in the registers", |raw, _| {
        with(raw, 0, raw.base as u64, 16, NEXT, 1);
    })),
    only(case("a writable buffer in the registers", |raw, _| {
        with(raw, 1, raw.base as u64, SECTOR, NEXT | WRITE, 2);
    })),
    only(case(
        "a writable buffer in memory that is read-only",
        |raw, board| {
            let readonly = board.shared("readonly");
            let base = readonly.map_or(NOWHERE, |range| range.base as u64);
            with(raw, 1, base, SECTOR, NEXT | WRITE, 2);
        },
    )),
    only(case("an answer in the registers", |raw, _| {
        with(raw, 2, (raw.base + register::STATUS) as u64, 1, WRITE, 0);
    })),
    only(case("more readable bytes than a request has", |raw, _| {
        many(raw, NEXT);
    })),
    only(case("more writable bytes than a request has", |raw, _| {
        many(raw, NEXT | WRITE);
    })),
    only(case("a buffer of almost 4 GiB", |raw, _| {
        with(raw, 1, raw.address(place::DATA), u32::MAX, NEXT | WRITE, 2);
    })),
    only(case("lengths whose sum wraps", |raw, _| {
        let data = raw.address(place::DATA);
        raw.describe_read(place::TABLE);
        raw.describe(place::TABLE, 0, data, u32::MAX - 15, NEXT, 1);
        raw.describe(place::TABLE, 1, data, 32, NEXT, 2);
        raw.offer(0);
    })),
];

/// A chain of all descriptors, all of the same data.
fn many(raw: &mut Raw, flags: u16) {
    raw.describe_read(place::TABLE);
    let data = raw.address(place::DATA);
    let bytes = place::DATA_BYTES as u32;
    for number in 1..SIZE - 1 {
        raw.describe(place::TABLE, number, data, bytes, flags, number + 1);
    }
    raw.describe(
        place::TABLE,
        SIZE - 1,
        raw.address(place::ANSWER),
        1,
        WRITE,
        0,
    );
    raw.offer(0);
}

/// Queues that cannot be there: size, and places of table, available ring and used ring.
type Misplaced = (&'static str, fn(&Raw) -> (u32, u64, u64, u64));

const MISPLACED: &[Misplaced] = &[
    ("a table nowhere", |raw| {
        placed(raw, SIZE.into(), Some(NOWHERE), None, None)
    }),
    ("an available ring nowhere", |raw| {
        placed(raw, SIZE.into(), None, Some(NOWHERE), None)
    }),
    ("a used ring nowhere", |raw| {
        placed(raw, SIZE.into(), None, None, Some(NOWHERE))
    }),
    ("a used ring around the end of all addresses", |raw| {
        placed(raw, SIZE.into(), None, None, Some(u64::MAX - 63))
    }),
    ("a table in the registers", |raw| {
        placed(raw, SIZE.into(), Some(raw.base as u64), None, None)
    }),
    ("a used ring in the registers", |raw| {
        placed(raw, SIZE.into(), None, None, Some(raw.base as u64))
    }),
    ("a table that is not aligned", |raw| {
        placed(
            raw,
            SIZE.into(),
            Some(raw.address(place::TABLE) + 8),
            None,
            None,
        )
    }),
    ("an available ring that is not aligned", |raw| {
        placed(
            raw,
            SIZE.into(),
            None,
            Some(raw.address(place::AVAILABLE) + 1),
            None,
        )
    }),
    ("a used ring that is not aligned", |raw| {
        placed(
            raw,
            SIZE.into(),
            None,
            None,
            Some(raw.address(place::USED) + 2),
        )
    }),
    ("a queue without entries", |raw| {
        placed(raw, 0, None, None, None)
    }),
    ("a queue of 48 entries", |raw| {
        placed(raw, 48, None, None, None)
    }),
    ("a queue of 65,536 entries", |raw| {
        placed(raw, 0x1_0000, None, None, None)
    }),
];

/// What else a driver may do, and whether QEMU's own device takes it as it should.
type Other = (&'static str, bool, fn(&mut Raw) -> Outcome);

const OTHERS: &[Other] = &[
    ("features that are not offered", false, unknown_features),
    ("a reset with requests in flight", true, reset_in_flight),
    ("registers of a queue that is in use", false, rewrite_queue),
    ("notifications of other queues", false, notify_others),
    ("ranges to discard and to set to zero", false, ranges),
];

fn placed(
    raw: &Raw,
    size: u32,
    table: Option<u64>,
    available: Option<u64>,
    used: Option<u64>,
) -> (u32, u64, u64, u64) {
    (
        size,
        table.unwrap_or(raw.address(place::TABLE)),
        available.unwrap_or(raw.address(place::AVAILABLE)),
        used.unwrap_or(raw.address(place::USED)),
    )
}

fn main(board: &'static Board) {
    let Some(device) = virtio::devices(board, DeviceType::Block).next() else {
        return println!("FAIL virtio-hostile: there is no disk");
    };
    let Some(mut raw) = Raw::new(device) else {
        return println!("FAIL virtio-hostile: there is no memory for a queue");
    };
    if let Some(range) = board.shared("readonly") {
        // In one page of several it is as far from the registers of a device as those of two devices from each other.
        let words = range.base..range.end();
        let writes = words
            .step_by(4)
            .map(|word| probe::write(Width::Word, word, 1));
        let refused = writes.filter(|written| written.is_err_and(Fault::is_data_external_abort));
        check::equal(
            "words refused of pages that are read-only and no device's",
            refused.count() as u64,
            range.size as u64 / 4,
        );
    }
    let native = board.argument("native").is_some();
    let first = raw.start(FEATURES).then(|| raw.read()).flatten();
    let Some(sector) = first else {
        return println!("FAIL virtio-hostile: the disk cannot be read");
    };
    if let Some(range) = board.shared("readonly") {
        // What this VM may only read, its device may read.
        let read = raw.read_by(range.base as u64);
        check::holds(
            "a request whose header is in memory that is read-only",
            read == Some(sector),
            "it is not served",
        );
    }
    let before = Page::of(&raw);
    for case in CASES.iter().filter(|case| case.native || !native) {
        let broken = break_queue(&mut raw, case, board);
        let again = broken.and_then(|()| raw.works(FEATURES, sector, &before));
        check::report(case.name, again);
    }
    if !native {
        for (name, place) in MISPLACED {
            let broken = misplace(&mut raw, *place);
            let again = broken.and_then(|()| raw.works(FEATURES, sector, &before));
            check::report(name, again);
        }
    }
    for (name, on_qemu, does) in OTHERS {
        if *on_qemu || !native {
            let done = does(&mut raw).and_then(|()| raw.works(FEATURES, sector, &before));
            check::report(name, done);
        }
    }
    let bytes = if native { 0x200 } else { 0x1000 };
    let written =
        write_everywhere(&mut raw, bytes).and_then(|()| raw.works(FEATURES, sector, &before));
    check::report("writes to every register", written);
    let rounds = board.argument("rounds").unwrap_or(200);
    let mut noise = Noise::new(SEED);
    let noise = (0..rounds).try_for_each(|_| noise.round(&mut raw, FEATURES));
    let noise = noise.and_then(|()| raw.works(FEATURES, sector, &before));
    check::report(format_args!("{rounds} queues of noise"), noise);
    check::done();
}

/// Bits of PAR_EL1 that each CPU has, of a translation that has worked.
const TRANSLATED: u64 = 0xff00_0000_1234_5380;

fn break_queue(raw: &mut Raw, case: &Case, board: &Board) -> Outcome {
    if !raw.start(case.features) {
        return Err("it does not start");
    }
    raw.read().ok_or("it does not read")?;
    // EL2 translates the address of a write to these registers by an instruction whose result is in PAR_EL1.
    msr!("par_el1", TRANSLATED);
    raw.set(register::INTERRUPT_ACK, 3);
    if mrs!("par_el1") != TRANSLATED {
        return Err("PAR_EL1 has changed");
    }
    (case.breaks)(raw, board);
    says_so(raw)
}

fn misplace(raw: &mut Raw, place: fn(&Raw) -> (u32, u64, u64, u64)) -> Outcome {
    let reset = raw.reset();
    if !reset || !raw.take_features(FEATURES & raw.offered()) {
        return Err("it does not start");
    }
    let (size, table, available, used) = place(raw);
    raw.set_queue(size, table, available, used);
    raw.drive();
    raw.set(register::QUEUE_NOTIFY, 0);
    says_so(raw)
}

/// The device says that it needs a reset, and that it has said so.
fn says_so(raw: &Raw) -> Outcome {
    if !raw.needs_reset() {
        return Err("it does not say that it needs a reset");
    }
    if raw.get(register::INTERRUPT_STATUS) & CONFIG_CHANGED == 0 {
        // It is told behind the status.
        timer::spin(1000);
    }
    if raw.get(register::INTERRUPT_STATUS) & CONFIG_CHANGED == 0 {
        return Err("it does not interrupt for it");
    }
    Ok(())
}

fn unknown_features(raw: &mut Raw) -> Outcome {
    for features in [1 << 63 | VERSION_1, 1 << 33 | VERSION_1, 0] {
        if raw.offered() & features & !VERSION_1 != 0 {
            continue;
        }
        if !raw.reset() || raw.take_features(features) {
            return Err("it takes them");
        }
        raw.set_usual_queue();
        raw.drive();
        if raw.get(register::STATUS) & status::DRIVER_OK != 0 {
            return Err("it is driven");
        }
    }
    Ok(())
}

fn reset_in_flight(raw: &mut Raw) -> Outcome {
    for _ in 0..20 {
        if !raw.start(FEATURES) {
            return Err("it does not start");
        }
        raw.describe_read(place::TABLE);
        (0..SIZE).for_each(|_| raw.put(0));
        raw.show(0);
        if !raw.reset() {
            return Err("it does not reset");
        }
        let answer = raw.memory.write(place::ANSWER, &[0x77]);
        let index = raw.memory.load16(place::USED + ring::INDEX);
        timer::spin(500);
        let mut now = [0];
        let read = raw.memory.read(place::ANSWER, &mut now);
        let same = index == raw.memory.load16(place::USED + ring::INDEX);
        if answer.is_err() || read.is_err() || now != [0x77] || !same {
            return Err("it has written after the reset");
        }
    }
    Ok(())
}

fn rewrite_queue(raw: &mut Raw) -> Outcome {
    if !raw.start(FEATURES) {
        return Err("it does not start");
    }
    let places = [
        register::QUEUE_DESC,
        register::QUEUE_DRIVER,
        register::QUEUE_DEVICE,
    ];
    for value in [0, u32::MAX, 0x4000_0000] {
        raw.set(register::QUEUE_NUM, value);
        for place in places {
            raw.set(place, value);
            raw.set(place + 4, value);
        }
        raw.set(register::QUEUE_READY, 1);
        raw.drive();
        raw.read().ok_or("it does not read where the queue was")?;
    }
    Ok(())
}

fn notify_others(raw: &mut Raw) -> Outcome {
    if !raw.start(FEATURES) {
        return Err("it does not start");
    }
    for queue in [1, 2, 7, 8, 31, 32, 63, 64, 255, 0xffff, 0x1_0000, u32::MAX] {
        raw.set(register::QUEUE_NOTIFY, queue);
        raw.set(register::QUEUE_SEL, queue);
        raw.set(register::QUEUE_READY, 1);
        if raw.get(register::QUEUE_READY) != 0 && raw.get(register::QUEUE_NUM_MAX) == 0 {
            return Err("there is a queue that is not there");
        }
    }
    raw.read().map(|_| ()).ok_or("it does not read")
}

/// Writes all offsets in all sizes, of the device as it was reset, as it is driven, and as it needs a reset.
fn write_everywhere(raw: &mut Raw, bytes: usize) -> Outcome {
    let mut random = Random::new(SEED);
    for width in [Width::Byte, Width::Half, Width::Word, Width::Double] {
        for start in 0..3 {
            match start {
                0 => _ = raw.reset(),
                1 => _ = raw.start(FEATURES),
                _ => raw.offer(SIZE),
            }
            for offset in 0..bytes {
                let value = match random.below(4) {
                    0 => 0,
                    1 => random.below(4),
                    2 => u64::MAX,
                    _ => random.draw(),
                };
                // Those that are not aligned fault here; of those that are, some may.
                _ = probe::write(width, raw.base + offset, value);
                _ = probe::read(width, raw.base + offset);
            }
        }
    }
    Ok(())
}

//! Queues against the model of a driver, and against bytes that no driver writes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use bulkhead_abi::device::ring::{self, Ring};
use bulkhead_service::memory::Memory;
use bulkhead_service::queue::{Chain, Queue};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::el2::Driver;
use crate::memory::{Life, TestMemory};

const SIZE: u16 = 8;
const SLOTS: u64 = 0x1000;

fn memory() -> TestMemory {
    TestMemory::new(0x1000 + 8 * 2048)
}

#[derive(Clone, Debug)]
enum Event {
    /// The driver adds chains of readable and writable pieces.
    Add(Vec<u8>, Vec<u8>),
    Take,
    Untake(u16),
    /// Gives back the one of those taken.
    GiveBack(usize),
    Publish,
    Arm,
    DriverTakes,
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (vec(0..9u8, 0..3), vec(0..9u8, 0..3)).prop_map(|(r, w)| Event::Add(r, w)),
        4 => Just(Event::Take),
        1 => (0..3u16).prop_map(Event::Untake),
        4 => (0..8usize).prop_map(Event::GiveBack),
        3 => Just(Event::Publish),
        1 => Just(Event::Arm),
        3 => Just(Event::DriverTakes),
    ]
}

/// Takes every chain through the queue until the indexes are near their end.
fn wind(driver: &mut Driver, queue: &mut Queue, memory: &TestMemory, count: u32) {
    for _ in 0..count {
        driver.add(&[], &[1]).unwrap();
        let chain = queue.take(memory).unwrap().unwrap();
        queue.give_back(memory, &chain, 0).unwrap();
        queue.publish(memory).unwrap();
        assert_eq!(driver.take().len(), 1);
    }
    driver.kick();
}

struct Taken {
    chain: Chain,
    bytes: Vec<u8>,
}

fn bytes_of(memory: &TestMemory, chain: &Chain) -> Vec<u8> {
    let mut bytes = vec![0; chain.readable() as usize + 1];
    let read = chain.reader().read(memory, &mut bytes).unwrap();
    assert_eq!(read, chain.readable() as usize);
    bytes.truncate(read);
    bytes
}

fn against_a_model(events: Vec<Event>, start: u32) {
    let memory = memory();
    let mut driver = Driver::new(&memory, 0, SIZE, SLOTS);
    let mut queue = Queue::new(&memory, 0, u32::from(SIZE)).unwrap();
    wind(&mut driver, &mut queue, &memory, start);
    let mut waiting = VecDeque::new();
    let mut taken: Vec<Taken> = Vec::new();
    let mut given: VecDeque<Vec<u8>> = VecDeque::new();
    let mut shown = 0;
    let mut fresh = 0;
    let mut armed_at = None;
    for event in events {
        match event {
            Event::Add(readable, writable) => {
                let pieces: Vec<Vec<u8>> = readable.iter().map(|n| vec![*n; *n as usize]).collect();
                let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
                let space: Vec<u32> = writable.iter().map(|n| u32::from(*n)).collect();
                if driver.add(&pieces, &space).is_some() {
                    waiting.push_back((pieces.concat(), space.iter().sum::<u32>()));
                    let kick = driver.kick();
                    if armed_at.take() == Some(driver.available.wrapping_sub(1)) {
                        assert!(kick, "armed, and not told");
                    }
                }
            }
            Event::Take => {
                let chain = queue.take(&memory).unwrap();
                assert_eq!(chain.is_some(), !waiting.is_empty());
                if let (Some(chain), Some((bytes, space))) = (chain, waiting.pop_front()) {
                    assert_eq!(bytes_of(&memory, &chain), bytes);
                    assert_eq!(chain.writable(), space);
                    taken.push(Taken { chain, bytes });
                    fresh += 1;
                }
            }
            // Only what was taken last and not used.
            Event::Untake(count) if usize::from(count) <= fresh.min(taken.len()) => {
                queue.untake(count);
                for _ in 0..count {
                    let back = taken.pop().unwrap();
                    waiting.push_front((back.bytes, back.chain.writable()));
                }
                fresh -= usize::from(count);
            }
            Event::GiveBack(which) if !taken.is_empty() => {
                let one = taken.remove(which % taken.len());
                fresh = 0;
                let value = vec![given.len() as u8; one.chain.writable() as usize + 3];
                let written = one.chain.writer().write(&memory, &value).unwrap();
                assert_eq!(written, one.chain.writable() as usize);
                queue
                    .give_back(&memory, &one.chain, written as u32)
                    .unwrap();
                given.push_back(value[..written].to_vec());
            }
            Event::Publish => {
                // The driver wants to be told of the first after what it has seen.
                let expected = shown == 0 && !given.is_empty();
                assert_eq!(queue.publish(&memory).unwrap(), expected);
                shown = given.len();
            }
            Event::Arm => {
                assert_eq!(queue.arm(&memory).unwrap(), !waiting.is_empty());
                armed_at = waiting.is_empty().then_some(driver.available);
            }
            Event::DriverTakes => {
                let back = driver.take();
                assert_eq!(back.len(), shown);
                for (one, value) in back.into_iter().zip(given.drain(..shown)) {
                    assert_eq!((one.bytes as usize, one.written), (value.len(), value));
                }
                shown = 0;
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn chains_come_once_in_order_and_go_back_with_what_was_written(
        events in vec(events(), 0..120),
        start in prop_oneof![Just(0), 0..20u32],
    ) {
        against_a_model(events, start);
    }

    /// A table and rings of any bytes: what comes out is inside the window, and it comes to an end.
    #[test]
    fn any_bytes_are_broken_or_harmless(
        bytes in vec(prop_oneof![Just(0u8), Just(1), Just(2), any::<u8>()], 400),
        sane in any::<bool>(),
    ) {
        let memory = TestMemory::new(0x1000);
        memory.write(0, &bytes).unwrap();
        let mut queue = Queue::new(&memory, 0, u32::from(SIZE)).unwrap();
        let ring = Ring::new(0, SIZE);
        for number in 0..u64::from(if sane { SIZE } else { 0 }) {
            memory.store64(number * 16, number * 8).unwrap();
            memory.store32(number * 16 + 8, u32::from(bytes[number as usize]) * 20).unwrap();
            memory.store16(number * 16 + 12, u16::from(bytes[number as usize] % 4)).unwrap();
            memory.store16(number * 16 + 14, u16::from(bytes[40 + number as usize] % 9)).unwrap();
        }
        memory.store16(ring.available + 2, 8).unwrap();
        for _ in 0..20 {
            let Ok(Some(chain)) = queue.take(&memory) else { continue };
            let all = u64::from(chain.readable()) + u64::from(chain.writable());
            prop_assert!(all <= 8 * 0x1000);
            let mut from = chain.reader();
            while let Ok(Some(piece)) = from.take(&memory, 33) {
                prop_assert!(piece.bytes > 0 && memory.holds(piece.at, piece.bytes.into()));
            }
            let mut into = chain.writer();
            // The table itself may be what is written: then it is nonsense, and still ends.
            let _ = chain.reader().copy(&memory, &mut into, &memory, u32::MAX);
            let _ = queue.give_back(&memory, &chain, 0);
            let _ = queue.publish(&memory);
        }
    }

    #[test]
    fn bytes_are_copied_whatever_the_pieces_are(
        from in vec(0..50usize, 1..5),
        to in vec(0..50u32, 1..4),
        skip in 0..30u32,
        limit in 0..150u32,
    ) {
        let memory = memory();
        let mut driver = Driver::new(&memory, 0, SIZE, SLOTS);
        let mut queue = Queue::new(&memory, 0, u32::from(SIZE)).unwrap();
        let mut count = 0u8;
        let pieces: Vec<Vec<u8>> = from
            .iter()
            .map(|n| (0..*n).map(|_| { count = count.wrapping_add(1); count }).collect())
            .collect();
        let slices: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        driver.add(&slices, &to).unwrap();
        let chain = queue.take(&memory).unwrap().unwrap();
        let mut reader = chain.reader();
        reader.skip(&memory, skip).unwrap();
        let mut writer = chain.writer();
        let copied = reader.copy(&memory, &mut writer, &memory, limit).unwrap() as usize;
        let all = pieces.concat();
        let rest = all.get(skip as usize..).unwrap_or(&[]);
        let space: u32 = to.iter().sum();
        prop_assert_eq!(copied, rest.len().min(space as usize).min(limit as usize));
        writer.zero(&memory, 2).unwrap();
        queue.give_back(&memory, &chain, chain.writable()).unwrap();
        queue.publish(&memory).unwrap();
        let written = driver.take().remove(0).written;
        prop_assert_eq!(&written[..copied], &rest[..copied]);
        for (at, byte) in written.iter().enumerate().skip(copied) {
            prop_assert_eq!(*byte, if at < copied + 2 { 0 } else { 0xee });
        }
    }
}

#[test]
fn indexes_go_around() {
    let run = |extra| {
        let memory = memory();
        let mut driver = Driver::new(&memory, 0, SIZE, SLOTS);
        let mut queue = Queue::new(&memory, 0, u32::from(SIZE)).unwrap();
        wind(&mut driver, &mut queue, &memory, 65_533);
        for round in 0..8u16 {
            let count = (extra + round) % SIZE + 1;
            for _ in 0..count {
                driver.add(&[&[7]], &[]).unwrap();
            }
            assert!(driver.kick() || round == 0, "{round}: armed, and not told");
            for left in (0..count).rev() {
                let chain = queue.take(&memory).unwrap().unwrap();
                queue.give_back(&memory, &chain, 0).unwrap();
                assert_eq!(queue.arm(&memory).unwrap(), left > 0);
            }
            assert!(queue.take(&memory).unwrap().is_none());
            assert!(
                queue.publish(&memory).unwrap(),
                "the driver waits for the first"
            );
            assert!(!queue.publish(&memory).unwrap());
            assert_eq!(driver.take().len(), usize::from(count));
        }
    };
    run(0);
    run(3);
}

#[test]
fn queues_that_cannot_be_are_none() {
    let memory = TestMemory::new(0x1000);
    for (table, size) in [
        (0, 0),
        (0, 3),
        (0, 512),
        (0, 65_544),
        (8, 8),
        (0xff0, 8),
        (u64::MAX - 15, 8),
        (u64::MAX / 2 + 1, 1),
    ] {
        assert!(
            Queue::new(&memory, table, size).is_none(),
            "{table:#x} {size}"
        );
    }
    let end = Ring::new(0, 8).end;
    let at = (0x1000 - end) / 16 * 16;
    assert!(Queue::new(&memory, at, 8).is_some());
    assert!(Queue::new(&memory, at + 16, 8).is_none());
}

#[test]
fn chains_that_cannot_be_are_broken() {
    let memory = memory();
    let end = memory.bytes();
    let chain = |descriptors: &[(u64, u32, u16, u16)], head: u16, index: u16| {
        let mut queue = Queue::new(&memory, 0, 4).unwrap();
        for (number, (at, bytes, flags, next)) in descriptors.iter().enumerate() {
            let place = number as u64 * 16;
            memory.store64(place, *at).unwrap();
            memory.store32(place + 8, *bytes).unwrap();
            memory.store16(place + 12, *flags).unwrap();
            memory.store16(place + 14, *next).unwrap();
        }
        let ring = Ring::new(0, 4);
        memory.store16(ring.available + 2, index).unwrap();
        memory.store16(ring.available + 4, head).unwrap();
        queue.take(&memory).map(|chain| chain.is_some())
    };
    let (next, write) = (ring::NEXT, ring::WRITE);
    assert_eq!(chain(&[(0, 1, 0, 9)], 0, 1), Ok(true));
    assert_eq!(chain(&[(0, 1, 0, 9)], 0, 0), Ok(false));
    assert!(chain(&[(0, 1, 0, 9)], 0, 5).is_err(), "the index jumps");
    assert!(
        chain(&[(0, 1, 0, 9)], 0, 0xffff).is_err(),
        "the index goes back"
    );
    assert!(chain(&[(0, 1, 0, 9)], 4, 1).is_err(), "head");
    assert!(chain(&[(0, 1, next, 4)], 0, 1).is_err(), "next");
    assert!(chain(&[(0, 1, next, 0)], 0, 1).is_err(), "circle");
    assert!(
        chain(&[(0, 1, ring::INDIRECT, 0)], 0, 1).is_err(),
        "indirect"
    );
    assert!(
        chain(&[(0, 1, next | write, 1), (0, 1, 0, 0)], 0, 1).is_err(),
        "order"
    );
    assert!(chain(&[(end, 1, 0, 0)], 0, 1).is_err(), "outside");
    assert!(
        chain(&[(u64::MAX, 2, 0, 0)], 0, 1).is_err(),
        "around the end"
    );
    assert_eq!(chain(&[(end, 0, 0, 0)], 0, 1), Ok(true));
    let four = [
        (0, 1, next, 1),
        (0, 1, next, 2),
        (0, 1, next, 3),
        (0, 1, write, 0),
    ];
    assert_eq!(chain(&four, 0, 1), Ok(true), "as many as the queue has");
}

/// The driver adds a chain before any one access of the device: either the device finds it when it looks again, or the driver
/// has to tell.
#[test]
fn what_comes_while_arming_is_not_missed() {
    for step in 0..6 {
        let memory = memory();
        let driver = Rc::new(RefCell::new(Driver::new(&memory, 0, SIZE, SLOTS)));
        let mut queue = Queue::new(&memory, 0, u32::from(SIZE)).unwrap();
        driver.borrow_mut().add(&[&[1]], &[]).unwrap();
        driver.borrow_mut().kick();
        queue.take(&memory).unwrap().unwrap();
        let life = Rc::new(Life::default());
        let device = memory.with(&life);
        let kicked = Rc::new(RefCell::new(false));
        let (other, heard) = (driver.clone(), kicked.clone());
        life.at(step, move || {
            let mut driver = other.borrow_mut();
            driver.add(&[&[2]], &[]).unwrap();
            *heard.borrow_mut() = driver.kick();
        });
        let found = queue.take(&device).unwrap().is_some() || queue.arm(&device).unwrap();
        let added = driver.borrow().available == 2;
        assert!(!added || found || *kicked.borrow(), "step {step}");
    }
}

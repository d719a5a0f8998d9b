//! Disks against an array of bytes, with requests cut into any pieces.

use arrayvec::ArrayVec;
use bulkhead_abi::device::Refusal;
use bulkhead_service::disk::{DISCARD, Disk, RO, WRITE_ZEROES};
use bulkhead_service::memory::Memory;
use bulkhead_service::queue::Queue;
use bulkhead_service::session::{Description, Live};
use bulkhead_service::store::{AnyStore, Image, Overlay, Ram, overlay_bytes};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::el2::Driver;
use crate::memory::TestMemory;

const SECTORS: u64 = 20;
const SIZE: u16 = 64;
const NAME: [u8; 20] = *b"twenty bytes of name";
const ALL: u64 = DISCARD | WRITE_ZEROES;

fn config(sectors: u64) -> Vec<u8> {
    let mut config = vec![0; 60];
    config[..8].copy_from_slice(&sectors.to_le_bytes());
    for (at, value) in [(36, 12u32), (40, 2), (48, 10), (52, 3)] {
        config[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    config
}

fn plan(offered: u64, config: &[u8]) -> Description {
    Description {
        id: 2,
        index: 0,
        unit: 0,
        offered,
        bytes: 0,
        config: config.iter().copied().collect::<ArrayVec<_, 256>>(),
    }
}

struct World {
    memory: TestMemory,
    drivers: [Driver; 2],
    disk: Disk<AnyStore<TestMemory>>,
}

impl World {
    fn new(store: AnyStore<TestMemory>, offered: u64) -> Self {
        let memory = TestMemory::new(0x4000 + 2 * 64 * 2048);
        let areas = |queue| 0x4000 + queue * 64 * 2048;
        let drivers = [0, 1].map(|n| Driver::new(&memory, n * 0x2000, SIZE, areas(n)));
        let mut disk = Disk::new(store, NAME);
        disk.configure(&plan(offered, &config(SECTORS))).unwrap();
        let mut queues: [Option<Queue>; 8] = Default::default();
        for (number, queue) in queues.iter_mut().enumerate().take(2) {
            *queue = Queue::new(&memory, number as u64 * 0x2000, SIZE.into());
        }
        disk.open(Live {
            features: offered,
            queues,
        });
        Self {
            memory,
            drivers,
            disk,
        }
    }

    fn post(&mut self, queue: usize, request: &[u8], space: u32, cuts: &[Index]) -> Option<u16> {
        let readable = pieces(request.len(), cuts);
        let writable = pieces(space as usize, cuts);
        let mut at = 0;
        let mut parts: Vec<&[u8]> = Vec::new();
        for bytes in readable {
            parts.push(&request[at..at + bytes]);
            at += bytes;
        }
        let space: Vec<u32> = writable.into_iter().map(|bytes| bytes as u32).collect();
        self.drivers[queue].add(&parts, &space)
    }

    /// Does one request on its own; returns what was written.
    fn request(&mut self, request: &[u8], space: u32, cuts: &[Index]) -> Vec<u8> {
        self.post(0, request, space, cuts).unwrap();
        let served = self.disk.serve(&self.memory, 100).unwrap();
        assert_eq!((served.more, served.ring), (false, true));
        let back = self.drivers[0].take().remove(0);
        assert_eq!(back.bytes, space);
        back.written
    }

    fn status(&mut self, request: &[u8], space: u32) -> u8 {
        *self.request(request, space, &[]).last().unwrap()
    }
}

/// Lengths of pieces, none longer than a area.
fn pieces(bytes: usize, cuts: &[Index]) -> Vec<usize> {
    if bytes == 0 {
        return Vec::new();
    }
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes + 1)).collect();
    places.extend((0..=bytes).step_by(2048));
    places.push(bytes);
    places.sort_unstable();
    places.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

fn header(kind: u32, sector: u64) -> Vec<u8> {
    let mut header = kind.to_le_bytes().to_vec();
    header.extend([0xaa; 4]);
    header.extend(sector.to_le_bytes());
    header
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut range = sector.to_le_bytes().to_vec();
    range.extend(sectors.to_le_bytes());
    range.extend(flags.to_le_bytes());
    range
}

fn ram(sectors: u64) -> AnyStore<TestMemory> {
    AnyStore::Ram(Ram::new(TestMemory::new((sectors * 512) as usize)))
}

fn overlay() -> AnyStore<TestMemory> {
    let bytes = SECTORS * 512;
    let memory = TestMemory::new(overlay_bytes(bytes).unwrap() as usize);
    AnyStore::Overlay(Overlay::new(TestMemory::new(100), memory, bytes).unwrap())
}

/// What a disk has to answer, over an array of bytes.
fn expected(bytes: &mut [u8], request: &[u8], space: u32) -> Vec<u8> {
    let mut written = vec![0; space as usize];
    let (status, data) = written.split_last_mut().unwrap();
    *status = answer(bytes, request, data);
    written
}

fn answer(bytes: &mut [u8], request: &[u8], data: &mut [u8]) -> u8 {
    let Some((header, rest)) = request.split_at_checked(16) else {
        return 1;
    };
    let kind = u32::from_le_bytes(header[..4].try_into().unwrap());
    let sector = u64::from_le_bytes(header[8..].try_into().unwrap());
    let place = |sector: u64, length: usize| {
        let start = usize::try_from(u128::from(sector) * 512).ok()?;
        let end = start.checked_add(length)?;
        (length.is_multiple_of(512) && end <= SECTORS as usize * 512).then_some(start..end)
    };
    match kind {
        0 => match place(sector, data.len()) {
            Some(range) => data.copy_from_slice(&bytes[range]),
            None => return 1,
        },
        1 => match place(sector, rest.len()) {
            Some(range) => bytes[range].copy_from_slice(rest),
            None => return 1,
        },
        4 => {}
        8 if data.len() >= 20 => data[..20].copy_from_slice(&NAME),
        8 => return 1,
        11 | 13 => {
            let (most, longest, flags) = if kind == 11 { (2, 12, 0) } else { (3, 10, 1) };
            let count = rest.len() / 16;
            if rest.len() % 16 != 0 || count == 0 || count > most {
                return 1;
            }
            let mut ranges = Vec::new();
            for range in rest.chunks(16) {
                let sector = u64::from_le_bytes(range[..8].try_into().unwrap());
                let sectors = u32::from_le_bytes(range[8..12].try_into().unwrap());
                if u32::from_le_bytes(range[12..].try_into().unwrap()) & !flags != 0 {
                    return 2;
                }
                let Some(range) = place(sector, sectors.min(1000) as usize * 512) else {
                    return 1;
                };
                if sectors > longest {
                    return 1;
                }
                ranges.push(range);
            }
            if kind == 13 {
                ranges.into_iter().for_each(|range| bytes[range].fill(0));
            }
        }
        _ => return 2,
    }
    0
}

fn requests() -> impl Strategy<Value = (Vec<u8>, u32)> {
    let sector = prop_oneof![8 => 0..SECTORS + 2, 1 => Just(u64::MAX), 1 => Just(1 << 55), 1 => Just(u64::MAX / 512)];
    let length = prop_oneof![4 => (0..6u32).prop_map(|n| n * 512), 1 => 0..1500u32];
    let kind = prop_oneof![5 => 0..2u32, 1 => Just(4), 1 => Just(8), 3 => Just(11), 3 => Just(13), 1 => any::<u32>()];
    let flags = prop_oneof![6 => Just(0), 3 => Just(1u32), 1 => Just(2u32)];
    let ranges = vec((0..SECTORS + 1, 0..13u32, flags), 0..4);
    (
        kind,
        sector,
        length,
        ranges,
        any::<u8>(),
        0..40usize,
        0..60u32,
    )
        .prop_map(|(kind, sector, length, ranges, value, cut, extra)| {
            let mut request = header(kind, sector);
            let mut space = 1;
            match kind {
                0 => space += length,
                1 => request.extend((0..length).map(|at| value.wrapping_add(at as u8))),
                11 | 13 => request.extend(ranges.iter().flat_map(|(a, b, c)| range(*a, *b, *c))),
                _ => space += extra,
            }
            // Some are cut short.
            if cut < 3 {
                request.truncate(cut * 8);
            }
            (request, space)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_disk_is_an_array_of_bytes(
        requests in vec((requests(), vec(any::<Index>(), 0..6)), 1..25),
        copied in any::<bool>(),
    ) {
        let store = if copied { overlay() } else { ram(SECTORS + 1) };
        let mut world = World::new(store, ALL);
        let mut bytes = vec![0; SECTORS as usize * 512];
        for ((request, space), cuts) in requests {
            let wanted = expected(&mut bytes, &request, space);
            prop_assert!(world.request(&request, space, &cuts) == wanted, "{:?}", &request[..request.len().min(40)]);
        }
        let mut all: Vec<u8> = Vec::new();
        for first in (0..SECTORS).step_by(10) {
            all.extend_from_slice(&world.request(&header(0, first), 10 * 512 + 1, &[])[..10 * 512]);
        }
        prop_assert!(all == bytes);
    }

    #[test]
    fn requests_of_any_bytes_are_answered(
        request in vec(prop_oneof![Just(0u8), 0..16u8, any::<u8>()], 1..100),
        space in 0..600u32,
        cuts in vec(any::<Index>(), 0..6),
    ) {
        let mut world = World::new(ram(SECTORS), ALL);
        let mut bytes = vec![0; SECTORS as usize * 512];
        if space == 0 {
            world.request(&request, 0, &cuts);
            prop_assert_eq!(world.disk.counters().mute, 1);
        } else {
            let wanted = expected(&mut bytes, &request, space);
            prop_assert_eq!(world.request(&request, space, &cuts), wanted);
        }
    }
}

#[test]
fn a_read_only_disk_is_not_written() {
    let image = TestMemory::new(3000);
    image.write(0, &[5; 3000]).unwrap();
    let image = || AnyStore::Image(Image::new(image.clone(), SECTORS * 512));
    let write = [header(1, 0), vec![1; 512]].concat();
    let zeroes = [header(13, 0), range(0, 1, 0)].concat();
    for store in [image(), ram(SECTORS)] {
        let mut world = World::new(store, RO | ALL);
        let before = world.request(&header(0, 0), 513, &[]);
        assert_eq!(world.status(&write, 1), 1);
        assert_eq!(world.status(&zeroes, 1), 1);
        assert_eq!(world.status(&header(4, 0), 1), 0);
        assert_eq!(world.request(&header(0, 0), 513, &[]), before);
        assert_eq!(world.disk.counters().failed, 2);
        assert_eq!(world.disk.counters().done(), 3);
    }
    let mut disk = Disk::new(image(), NAME);
    let refused = disk.configure(&plan(0, &config(SECTORS)));
    assert_eq!(refused, Err(Refusal::Features), "it would be written");
}

#[test]
fn what_was_not_offered_is_not_understood() {
    let mut world = World::new(ram(SECTORS), 0);
    for kind in [11, 13] {
        let request = [header(kind, 0), range(0, 1, 0)].concat();
        assert_eq!(world.status(&request, 1), 2);
    }
}

#[test]
fn a_plan_that_cannot_be_served_is_refused() {
    let mut disk = Disk::new(ram(SECTORS), NAME);
    let mut refusal = |offered, config: &[u8]| disk.configure(&plan(offered, config)).err();
    assert_eq!(refusal(ALL, &config(SECTORS)), None);
    assert_eq!(refusal(0, &config(SECTORS + 1)), Some(Refusal::Size));
    assert_eq!(refusal(0, &config(1 << 55)), Some(Refusal::Size));
    assert_eq!(refusal(0, &[0; 7]), Some(Refusal::Config));
    assert_eq!(refusal(0, &config(SECTORS)[..8]), None);
    assert_eq!(
        refusal(WRITE_ZEROES, &config(SECTORS)[..50]),
        Some(Refusal::Config)
    );
    let mut limits = config(SECTORS);
    limits[52..56].copy_from_slice(&[17, 0, 0, 0]);
    assert_eq!(
        refusal(WRITE_ZEROES, &limits),
        Some(Refusal::Config),
        "too many ranges"
    );
    limits[48..56].copy_from_slice(&[0, 8, 0, 0, 1, 0, 0, 0]);
    assert_eq!(refusal(WRITE_ZEROES, &limits), None);
    limits[48..56].copy_from_slice(&[1, 8, 0, 0, 1, 0, 0, 0]);
    assert_eq!(
        refusal(WRITE_ZEROES, &limits),
        Some(Refusal::Config),
        "too long"
    );
}

/// One queue full of requests does not keep another from being served, and a call has an end.
#[test]
fn queues_are_served_in_turn_and_within_the_quota() {
    let mut world = World::new(ram(SECTORS), 0);
    for _ in 0..20 {
        world.post(0, &header(4, 0), 1, &[]).unwrap();
    }
    for _ in 0..2 {
        world.post(1, &header(4, 0), 1, &[]).unwrap();
    }
    let served = world.disk.serve(&world.memory, 4).unwrap();
    assert_eq!((served.more, served.ring), (true, true));
    assert_eq!(
        [world.drivers[0].take().len(), world.drivers[1].take().len()],
        [2, 2]
    );
    // A request of 8 KiB counts as three.
    let mut world = World::new(ram(SECTORS), 0);
    for _ in 0..4 {
        world.post(0, &header(0, 0), 8 * 1024 + 1, &[]).unwrap();
    }
    world.disk.serve(&world.memory, 4).unwrap();
    assert_eq!(world.drivers[0].take().len(), 2);
    assert!(world.disk.arm(&world.memory).unwrap(), "there is more");
    world.disk.close();
    assert!(!world.disk.serve(&world.memory, 4).unwrap().more);
    assert_eq!(world.drivers[0].take().len(), 0);
}

//! Ranges of a disk that are to be discarded or set to zero, driven by hand.

use super::raw::{Raw, SECTOR, VERSION_1, place, register};
use crate::println;
use bulkhead_abi::device::ring::NEXT;
use bulkhead_service::memory::Memory;

/// Features of a disk that can be written: DISCARD and WRITE_ZEROES (VIRTIO 1.2, 5.2.3).
const SPARSE: u64 = 1 << 13 | 1 << 14;
/// Types of requests (5.2.6).
const OUT: u64 = 1;
const DISCARD: u64 = 11;
const WRITE_ZEROES: u64 = 13;
/// Their answers.
const OK: u8 = 0;
const IO_ERR: u8 = 1;
const UNSUPP: u8 = 2;

/// Sets sectors to zero, discards some, and asks for both where that cannot be: what is wrong gets an error and changes nothing.
pub fn ranges(raw: &mut Raw) -> Result<(), &'static str> {
    const PATTERN: u64 = 0x1111_2222_3333_4444;
    const WORDS: usize = SECTOR as usize / 8;
    if raw.offered() & SPARSE != SPARSE || !raw.start(VERSION_1 | SPARSE) {
        return Err("it does not offer them");
    }
    let limit = |at| u64::from(raw.get(register::CONFIG + at));
    let (capacity, [discarded, discards]) = (limit(0), [36, 40].map(limit));
    let [zeroes, ranges] = [48, 52].map(limit);
    let range = |sector: u64, sectors: u64, flags: u64| [sector, sectors | flags << 32];
    let asked: &[(u64, [u64; 2], u64, u8)] = &[
        (WRITE_ZEROES, range(9, 1, 0), 1, OK),
        (WRITE_ZEROES, range(9, 1, 1), 1, OK),
        (DISCARD, range(8, 1, 0), discards, OK),
        (DISCARD, range(0, capacity, 0), 1, OK),
        (DISCARD, range(8, 1, 1), 1, UNSUPP),
        (WRITE_ZEROES, range(8, 1, 2), 1, UNSUPP),
        (DISCARD, range(8, 1, 0), discards + 1, IO_ERR),
        (WRITE_ZEROES, range(8, 1, 0), ranges + 1, IO_ERR),
        (DISCARD, range(0, discarded + 1, 0), 1, IO_ERR),
        (WRITE_ZEROES, range(0, zeroes + 1, 0), 1, IO_ERR),
        (WRITE_ZEROES, range(8, 0xffff_ffff, 0), 1, IO_ERR),
        (WRITE_ZEROES, range(capacity, 1, 0), 1, IO_ERR),
        (WRITE_ZEROES, range(capacity - 1, 2, 0), 1, IO_ERR),
        (WRITE_ZEROES, range(1 << 55, 8, 0), 1, IO_ERR),
        (DISCARD, range(u64::MAX, 1, 0), 1, IO_ERR),
        (WRITE_ZEROES, range(u64::MAX, 2, 0), 1, IO_ERR),
        (WRITE_ZEROES, range(u64::MAX - 7, 8, 0), 1, IO_ERR),
        (WRITE_ZEROES, range(u64::MAX / 512, 2, 0), 1, IO_ERR),
    ];
    let two = [PATTERN; 2 * WORDS];
    if request(raw, OUT, 8, &two) != Some(OK) {
        return Err("it does not write");
    }
    for (number, (kind, range, times, answer)) in asked.iter().enumerate() {
        let mut words = [0; 40];
        let used = words.get_mut(..2 * *times as usize).ok_or("its limits")?;
        used.chunks_exact_mut(2)
            .for_each(|place| place.copy_from_slice(range));
        if request(raw, *kind, 0, used) != Some(*answer) {
            println!("virtio-hostile: range {number} of {} is", asked.len());
            return Err("answered otherwise");
        }
    }
    // Only the second of the two sectors is another one now, and the first one goes, too.
    for (sector, value) in [(8, PATTERN), (9, 0), (capacity - 1, 0)] {
        if read_word(raw, sector) != Some(value) {
            return Err("other sectors are zero");
        }
    }
    let last = request(raw, WRITE_ZEROES, 0, &range(8, 1, 0));
    if last != Some(OK) || read_word(raw, 8) != Some(0) {
        return Err("it does not set the last one to zero");
    }
    Ok(())
}

/// Does a request with these words of data; returns its status.
fn request(raw: &mut Raw, kind: u64, sector: u64, words: &[u64]) -> Option<u8> {
    raw.describe_read(place::TABLE);
    let data = (place::DATA..).step_by(8).zip(words.iter().copied());
    for (at, word) in data.chain([(place::HEADER, kind), (place::HEADER + 8, sector)]) {
        raw.memory.store64(at, word).ok()?;
    }
    let bytes = size_of_val(words) as u32;
    raw.describe(place::TABLE, 1, raw.address(place::DATA), bytes, NEXT, 2);
    raw.ask()
}

/// The first word of a sector, if all others are as it is.
fn read_word(raw: &mut Raw, sector: u64) -> Option<u64> {
    raw.describe_read(place::TABLE);
    raw.memory.store64(place::HEADER + 8, sector).ok()?;
    let read = raw.ask() == Some(OK);
    let mut words = (place::DATA..).step_by(8).take(SECTOR as usize / 8);
    let first = raw.memory.load64(place::DATA).ok().filter(|_| read)?;
    let same = words.all(|at| raw.memory.load64(at) == Ok(first));
    same.then_some(first)
}

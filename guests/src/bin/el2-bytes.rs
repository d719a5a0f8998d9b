//! Claim: the functions by which EL2 copies, fills and compares values do so at every length and alignment, and touch nothing beside.
//!
//! It is EL2's own code, of the same file, at EL1, where it takes the place of what the compiler would call otherwise. What is expected is found
//! byte by byte.
#![no_std]
#![no_main]
// Assembly that takes the place of functions which the compiler calls.
#![allow(unsafe_code)]

use bulkhead_guests::{Board, check, guest, println, simd};
use core::cmp::Ordering;
use core::hint::black_box;

core::arch::global_asm!(include_str!("../../../el2/src/hw/bytes.s"));
core::arch::global_asm!(include_str!("../../../el2/src/hw/copy.s"), options(raw));

unsafe extern "C" {
    fn copy_mapped(to: *mut u8, from: *const u8, bytes: usize);
}

guest!(main = main);

/// Lengths that are tried: more than two turns of the longest loop.
const LENGTHS: usize = 280;
/// What the vector registers are filled with.
const SEED: u64 = 0x0f1e_2d3c_4b5a_6978;
/// Alignments.
const SHIFTS: usize = 8;
/// Bytes of an area: the longest value, with room in front and behind.
const ROOM: usize = SHIFTS + LENGTHS + SHIFTS;

/// A byte for each place, none of which is another's neighbour's, and none 0.
fn pattern(place: usize, salt: usize) -> u8 {
    (place.wrapping_mul(37).wrapping_add(salt) % 251 + 1) as u8
}

/// Sets each byte by `value`, which the compiler makes no call of.
fn set(area: &mut [u8; ROOM], value: impl Fn(usize) -> u8) {
    for (place, byte) in area.iter_mut().enumerate() {
        *byte = black_box(value(place));
    }
}

/// The first place that is not as expected.
fn wrong(area: &[u8; ROOM], expected: impl Fn(usize) -> u8) -> Option<usize> {
    (0..ROOM).find(|place| area[*place] != black_box(expected(*place)))
}

fn copies(
    from: &mut [u8; ROOM],
    to: &mut [u8; ROOM],
    copy: fn(&mut [u8], &[u8]),
) -> Result<(), (usize, usize, usize)> {
    for length in 0..LENGTHS {
        for (source, target) in (0..SHIFTS).flat_map(|s| (0..SHIFTS).map(move |t| (s, t))) {
            set(from, |place| pattern(place, 1));
            set(to, |place| pattern(place, 2));
            let (source_end, target_end) = (source + length, target + length);
            copy(
                black_box(&mut to[target..target_end]),
                &from[source..source_end],
            );
            let is_as_expected = wrong(to, |place| match place.checked_sub(target) {
                Some(at) if at < length => pattern(source + at, 1),
                _ => pattern(place, 2),
            });
            if is_as_expected.is_some() || wrong(from, |p| pattern(p, 1)).is_some() {
                return Err((length, source, target));
            }
        }
    }
    Ok(())
}

/// By what EL2 copies between VMs, which use the vector registers.
fn by_vectors(to: &mut [u8], from: &[u8]) {
    // SAFETY: two slices of this length.
    unsafe { copy_mapped(to.as_mut_ptr(), from.as_ptr(), to.len()) }
}

fn fills(to: &mut [u8; ROOM]) -> Result<(), (usize, usize, usize)> {
    for length in 0..LENGTHS {
        for (target, byte) in (0..SHIFTS).flat_map(|t| [0usize, 0x5a, 0xa5].map(|b| (t, b))) {
            set(to, |place| pattern(place, 3));
            black_box(&mut to[target..target + length]).fill(byte as u8);
            let is_as_expected = wrong(to, |place| match place.checked_sub(target) {
                Some(at) if at < length => byte as u8,
                _ => pattern(place, 3),
            });
            if is_as_expected.is_some() {
                return Err((length, target, byte));
            }
        }
    }
    Ok(())
}

fn compares(one: &mut [u8; ROOM], other: &mut [u8; ROOM]) -> Result<(), (usize, usize, usize)> {
    for length in 0..LENGTHS {
        let shifts = (length % SHIFTS, length / SHIFTS % SHIFTS);
        // At `length` they differ behind what is compared.
        for place in 0..=length {
            set(one, |at| pattern(at.wrapping_sub(shifts.0), 4));
            set(other, |at| pattern(at.wrapping_sub(shifts.1), 4));
            let (low, high) = (&mut one[shifts.0..], &mut other[shifts.1..]);
            // The bytes behind are in the other order, so that the first one has to decide.
            (low[place], high[place]) = (0x7f, 0x80);
            (low[place + 1], high[place + 1]) = (2, 1);
            let (low, high) = (black_box(&low[..length]), black_box(&high[..length]));
            let (less, more) = (low.cmp(high), high.cmp(low));
            let expected = if place < length {
                Ordering::Less
            } else {
                Ordering::Equal
            };
            if (less, more) != (expected, expected.reverse()) {
                return Err((length, place, shifts.0));
            }
        }
    }
    Ok(())
}

fn report(name: &str, result: Result<(), (usize, usize, usize)>) {
    let why = result.map_err(|(length, one, other)| {
        println!("{name}: {length} bytes, {one}, {other}");
        "not byte by byte"
    });
    check::report(name, why);
}

fn main(_: &Board) {
    let (mut one, mut other) = ([0; ROOM], [0; ROOM]);
    report(
        "copies",
        copies(&mut one, &mut other, <[u8]>::copy_from_slice),
    );
    simd::fill(SEED);
    report(
        "copies of VMs' memory",
        copies(&mut one, &mut other, by_vectors),
    );
    check::equal("vector registers", simd::damage(SEED), 0);
    report("fills", fills(&mut other));
    report("compares", compares(&mut one, &mut other));
    check::done();
}

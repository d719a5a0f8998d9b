//! Work in the manner of MiBench's automotive set (Guthaus and others, "MiBench: A free, commercially representative embedded benchmark suite", 2001), on
//! which others have measured what VMs on one board do to each other: what sorts, what smooths a picture, what counts bits, what computes. Written anew and
//! without floating point, so that the instructions are others; what of the caches they use is alike.
//!
//! All of them work in [`DATA`], from the start of it on, with numbers from one generator: two runs are alike to the instruction.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Words of [`DATA`]: 2 MiB.
const WORDS: usize = 1 << 18;
/// Words of a cache line.
const LINE: usize = 8;

/// Memory that they work in. Atomic, so that it is no `static mut`; relaxed accesses are plain loads and stores.
static DATA: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

fn get(index: usize) -> u64 {
    DATA[index % WORDS].load(Relaxed)
}

fn set(index: usize, value: u64) {
    DATA[index % WORDS].store(value, Relaxed);
}

/// A generator of numbers (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Reads a word in each line of so many KiB; with `writes`, writes it as well.
pub fn stride(kib: usize, writes: bool) -> u64 {
    let lines = (kib << 10) / 64;
    let mut sum = 0_u64;
    for line in 0..lines {
        let index = line * LINE;
        let word = get(index);
        if writes {
            set(index, word.wrapping_add(1));
        }
        sum = sum.wrapping_add(word);
    }
    sum
}

/// Makes so many points of three coordinates, and sorts them by their distance from the origin, which is the fourth word of each. Gives that in their middle, or 0 if they are
/// not sorted.
pub fn qsort(points: usize) -> u64 {
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    for point in 0..points {
        let mut distance = 0;
        for axis in 0..3 {
            let coordinate = numbers.next() & 0xffff;
            set(4 * point + axis, coordinate);
            distance += coordinate * coordinate;
        }
        set(4 * point + 3, distance);
    }
    sort(0, points);
    let sorted = (1..points).all(|point| get(4 * point - 1) <= get(4 * point + 3));
    if sorted { get(4 * (points / 2) + 3) } else { 0 }
}

/// Sorts points from `first` on, the shorter part by a call, so that calls are no deeper than the logarithm of their number.
fn sort(mut first: usize, mut points: usize) {
    while points > 1 {
        // Never the last point: then both parts have one at least.
        let pivot = get(4 * (first + (points - 1) / 2) + 3);
        let (mut low, mut high) = (first, first + points - 1);
        loop {
            while get(4 * low + 3) < pivot {
                low += 1;
            }
            while get(4 * high + 3) > pivot {
                high -= 1;
            }
            if low >= high {
                break;
            }
            for word in 0..4 {
                let (a, b) = (get(4 * low + word), get(4 * high + word));
                set(4 * low + word, b);
                set(4 * high + word, a);
            }
            low += 1;
            high -= 1;
        }
        let (left, right) = (high + 1 - first, first + points - high - 1);
        if left < right {
            sort(first, left);
            first = high + 1;
            points = right;
        } else {
            sort(high + 1, right);
            points = left;
        }
    }
}

/// Smooths a picture of eight bits a pixel: each becomes the mean of its neighbours up to two away, those of like brightness counting most.
pub fn susan(width: usize, height: usize) -> u64 {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let row = width.div_ceil(8);
    let picture = |y: usize, x: usize| get(y * row + x / 8) >> (x % 8 * 8) & 0xff;
    for word in 0..row * height {
        set(word, numbers.next());
    }
    // Weights by the difference in brightness, and the smoothed picture, lie behind it.
    let (weights, smooth) = (row * height, row * height + 256);
    for difference in 0..256 {
        set(
            weights + difference,
            1024 / (1 + (difference * difference / 400) as u64),
        );
    }
    let mut sum = 0_u64;
    for y in 2..height.saturating_sub(2) {
        let mut eight = 0;
        for x in 2..width.saturating_sub(2) {
            let here = picture(y, x);
            let (mut total, mut weight) = (0, 0);
            for near_y in y - 2..=y + 2 {
                for near_x in x - 2..=x + 2 {
                    let there = picture(near_y, near_x);
                    let counts = get(weights + here.abs_diff(there) as usize);
                    total += counts * there;
                    weight += counts;
                }
            }
            let mean = total / weight.max(1);
            eight = eight >> 8 | mean << 56;
            if x % 8 == 7 {
                set(smooth + y * row + x / 8, eight);
            }
            sum = sum.wrapping_add(mean);
        }
    }
    sum
}

/// Counts the bits of so many numbers in four ways.
pub fn bitcount(numbers: u64) -> u64 {
    for byte in 0..256_u64 {
        set(byte as usize, u64::from(byte.count_ones()));
    }
    let mut sum = 0;
    let mut number = 1_u64;
    for _ in 0..numbers {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(13);
        let mut rest = number;
        while rest != 0 {
            rest &= rest - 1;
            sum += 1;
        }
        sum += (0..8)
            .map(|byte| get((number >> (8 * byte) & 0xff) as usize))
            .sum::<u64>();
        sum += (0..64).filter(|bit| number >> bit & 1 != 0).count() as u64;
        sum += u64::from(number.count_ones());
    }
    sum
}

/// Square roots and roots of cubics, in whole numbers, into a table; then angles from degrees to 1/65536 radians.
pub fn basicmath(numbers: u64) -> u64 {
    let mut sum = 0_u64;
    for number in 0..numbers {
        let square = root(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), 2);
        let cubic = root(number.wrapping_mul(0xd134_2543_de82_ef95), 3);
        let radians = (number % 360) * 205_887 / 180;
        set(number as usize % (WORDS / 4), square ^ cubic << 32);
        sum = sum
            .wrapping_add(square)
            .wrapping_add(cubic)
            .wrapping_add(radians);
    }
    sum
}

/// The largest whole number whose power is not above `of`, bit by bit.
fn root(of: u64, power: u32) -> u64 {
    let mut root = 0_u64;
    for bit in (0..64 / power).rev() {
        let next = root | 1 << bit;
        if next.checked_pow(power).is_some_and(|value| value <= of) {
            root = next;
        }
    }
    root
}

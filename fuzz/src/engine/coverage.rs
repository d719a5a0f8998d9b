//! Coverage of inputs, from the counters of the instrumentation.

use crate::sys;

/// Counters that are looked at together. Most are zero, and a block of them is passed over by one comparison, for which the C
/// library has no loop that is instrumented itself; a line by a few.
const BLOCK: usize = 2048;
/// See [`BLOCK`].
const LINE: usize = 64;
/// A block that nobody has reached.
static ZERO: [u8; BLOCK] = [0; BLOCK];

/// Counters that inputs have reached, by how often: once, up to 3, 7, 15, 31, 63, more.
pub struct Coverage {
    /// A bit for each number of times in which a counter was seen; all bits of a counter that nobody asks for.
    seen: Vec<u8>,
    /// The counters of one run.
    counts: Vec<u8>,
    reached: usize,
}

impl Coverage {
    /// Nothing was reached.
    pub fn new() -> Self {
        Self {
            seen: vec![0; sys::counters()],
            counts: Vec::with_capacity(sys::counters()),
            reached: 0,
        }
    }

    /// Returns the number of counters.
    pub const fn counters(&self) -> usize {
        self.seen.len()
    }

    /// Returns the number of counters that some input has reached.
    pub const fn reached(&self) -> usize {
        self.reached
    }

    /// Ignores the counters that have counted since they were cleared: these are the engine's own, and never new.
    pub fn ignore(&mut self) {
        sys::take_counters(&mut self.counts);
        for (seen, count) in self.seen.iter_mut().zip(&self.counts) {
            if *count != 0 {
                *seen = u8::MAX;
            }
        }
    }

    /// Takes the counters of a run; `true` if one of them is new.
    pub fn take(&mut self) -> bool {
        sys::take_counters(&mut self.counts);
        let (news, reached) = merge(&mut self.seen, &self.counts);
        self.reached += reached;
        news
    }
}

/// Adds what was counted to what was seen. Returns whether something is new, and the number of counters that were
/// not seen before.
fn merge(seen: &mut [u8], counts: &[u8]) -> (bool, usize) {
    let (mut news, mut reached) = (false, 0);
    let blocks = seen.chunks_mut(BLOCK).zip(counts.chunks(BLOCK));
    let blocks = blocks.filter(|(_, counts)| *counts != &ZERO[..counts.len()]);
    let lines = blocks.flat_map(|(seen, counts)| seen.chunks_mut(LINE).zip(counts.chunks(LINE)));
    for (seen, counts) in lines {
        if is_zero(counts) {
            continue;
        }
        for (seen, counts) in seen.chunks_mut(8).zip(counts.chunks(8)) {
            let mut word = word(counts);
            while word != 0 {
                let byte = word.trailing_zeros() / 8;
                let count = (word >> (8 * byte)) as u8;
                word &= !(0xff << (8 * byte));
                let bucket = bucket(count);
                // Not beyond the end: there are as many seen as counted.
                if let Some(seen) = seen.get_mut(byte as usize)
                    && *seen & bucket == 0
                {
                    reached += usize::from(*seen == 0);
                    *seen |= bucket;
                    news = true;
                }
            }
        }
    }
    (news, reached)
}

/// The bit of a number of times that is not zero.
const fn bucket(count: u8) -> u8 {
    let bits = 8 - count.leading_zeros();
    1 << if bits < 7 { bits } else { 7 }
}

/// Up to eight counters as a number, the first one lowest.
fn word(counts: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    match counts.try_into() {
        Ok(all) => bytes = all,
        Err(_) => bytes[..counts.len()].copy_from_slice(counts),
    }
    u64::from_le_bytes(bytes)
}

/// Whether up to [`LINE`] counters are all zero.
fn is_zero(counts: &[u8]) -> bool {
    match <&[u8; LINE]>::try_from(counts) {
        Ok(line) => {
            let (words, _) = line.as_chunks::<8>();
            words
                .iter()
                .fold(0, |all, word| all | u64::from_ne_bytes(*word))
                == 0
        }
        Err(_) => counts.iter().all(|count| *count == 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_is_found_wherever_it_is() {
        for length in [1, 7, 8, 9, 63, 64, 65, 200, BLOCK, BLOCK + 3] {
            let mut seen = vec![0; length];
            for at in 0..length {
                let mut counts = vec![0; length];
                counts[at] = 1;
                assert_eq!(merge(&mut seen, &counts), (true, 1), "{at} of {length}");
                assert_eq!(merge(&mut seen, &counts), (false, 0), "{at} of {length}");
            }
            assert_eq!(merge(&mut seen, &vec![1; length]), (false, 0));
        }
    }

    #[test]
    fn another_number_of_times_is_new_but_no_other_counter() {
        let mut seen = [0; 100];
        let mut run = |count| {
            let mut counts = [0; 100];
            counts[70] = count;
            merge(&mut seen, &counts)
        };
        assert_eq!(run(1), (true, 1));
        let times = [
            (2, true),
            (3, false),
            (4, true),
            (7, false),
            (8, true),
            (15, false),
        ];
        for (count, news) in times {
            assert_eq!(run(count), (news, 0), "{count}");
        }
        let times = [
            (16, true),
            (32, true),
            (63, false),
            (64, true),
            (255, false),
        ];
        for (count, news) in times {
            assert_eq!(run(count), (news, 0), "{count}");
        }
    }

    #[test]
    fn what_is_the_engines_own_is_never_new() {
        let mut seen = [u8::MAX, 0];
        assert_eq!(merge(&mut seen, &[3, 0]), (false, 0));
        assert_eq!(merge(&mut seen, &[0, 3]), (true, 1));
    }
}

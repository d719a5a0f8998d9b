//! Variants of inputs.

use super::Random;

/// Numbers at which things tend to break.
const EDGES: [u64; 18] = [
    0,
    1,
    7,
    8,
    0x1f,
    0x20,
    0x7f,
    0x80,
    0xff,
    0x3fc,
    0xfff,
    0x1000,
    0xffff,
    0x20_0000,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 39,
    u64::MAX,
];

/// A variant of one of `corpus`, changed once or a few times.
pub fn variant(random: &mut Random, corpus: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let Some(chosen) = corpus.get(random.below(corpus.len())) else {
        return Vec::new();
    };
    let mut input = chosen.clone();
    for _ in 0..1 << random.below(4) {
        change(random, &mut input, corpus, words);
    }
    input
}

fn change(random: &mut Random, input: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[&str]) {
    let at = random.below(input.len() + 1);
    match random.below(9) {
        0 if !input.is_empty() => {
            let at = random.below(input.len());
            input[at] ^= 1 << random.below(8);
        }
        1 | 2 => number(random, input),
        3 => {
            let fresh: Vec<u8> = (0..1 + random.below(8))
                .map(|_| random.number() as u8)
                .collect();
            input.splice(at..at, fresh);
        }
        4 => {
            let end = (at + 1 + random.below(16)).min(input.len());
            input.drain(at..end);
        }
        5 => {
            let end = (at + 1 + random.below(32)).min(input.len());
            let piece = input[at..end].to_vec();
            let to = random.below(input.len() + 1);
            input.splice(to..to, piece);
        }
        6 => {
            // The rest of another input.
            if let Some(other) = corpus.get(random.below(corpus.len())) {
                let from = random.below(other.len() + 1);
                input.truncate(at);
                input.extend(&other[from..]);
            }
        }
        7 if !words.is_empty() => {
            let word = words[random.below(words.len())];
            let gone = (at + random.below(8)).min(input.len());
            input.splice(at..gone, word.bytes());
        }
        _ => input.push(random.number() as u8),
    }
}

/// Changes an aligned number of 1, 2, 4 or 8 bytes: to an edge, or by a little or a page.
fn number(random: &mut Random, input: &mut [u8]) {
    let width = 1_usize << random.below(4);
    let places = input.len() / width;
    if places == 0 {
        return;
    }
    let start = random.below(places) * width;
    let bytes = &mut input[start..start + width];
    let mut old = [0; 8];
    old[..width].copy_from_slice(bytes);
    let old = u64::from_le_bytes(old);
    let edge = EDGES[random.below(EDGES.len())];
    let new = match random.below(4) {
        0 => edge,
        1 => old.wrapping_add(edge),
        2 => old.wrapping_sub(edge),
        _ => random.number(),
    };
    // Device trees count from the other end.
    let mut new = new.to_le_bytes();
    if random.below(4) == 0 {
        new[..width].reverse();
    }
    bytes.copy_from_slice(&new[..width]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_differ_and_are_the_same_every_time() {
        let corpus = vec![vec![0; 64], b"some words".to_vec()];
        let make = |seed| {
            let mut random = Random::new(seed);
            let make = |_| variant(&mut random, &corpus, &["word"]);
            (0..200).map(make).collect::<Vec<_>>()
        };
        let first = make(1);
        assert_eq!(first, make(1));
        let changed = first.iter().filter(|one| !corpus.contains(one));
        assert!(changed.count() > 150);
        assert!(
            first
                .iter()
                .any(|one| one.windows(4).any(|part| part == b"word"))
        );
        assert!(first.iter().any(|one| one.len() < 10) && first.iter().any(|one| one.len() > 64));
    }

    #[test]
    fn nothing_has_no_variants_but_itself_or_more() {
        let mut random = Random::new(3);
        assert_eq!(variant(&mut random, &[], &[]), b"");
        for _ in 0..200 {
            variant(&mut random, &[Vec::new()], &[]);
        }
    }
}

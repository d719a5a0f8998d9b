//! Physical memory as far as CPUs have been seen to write it: for descriptors, which no callback of QEMU shows.

use std::collections::HashMap;

/// Words of a page.
const WORDS: usize = 512;

/// A page that something was written to.
#[derive(Debug)]
struct Page {
    /// A bit for each word that is known.
    known: [u64; WORDS / 64],
    /// Absent while all that is known is 0: pages are zeroed before a VM has them.
    words: Option<Box<[u64; WORDS]>>,
}

/// Memory, by page.
#[derive(Debug, Default)]
pub struct Memory {
    pages: HashMap<u64, Page>,
}

impl Memory {
    /// Bytes were written, within 16 bytes of a page.
    pub fn write(&mut self, physical: u64, bytes: &[u8]) {
        let mut rest = bytes;
        let mut at = physical;
        while !rest.is_empty() {
            let offset = usize::try_from(at % 8).unwrap_or(0);
            let (now, later) = rest.split_at(rest.len().min(8 - offset));
            let before = self.word(at).unwrap_or(0).to_le_bytes();
            let mut word = before;
            word[offset..offset + now.len()].copy_from_slice(now);
            // A part of a word that is not known makes it no better known.
            if now.len() == 8 || self.word(at).is_some() {
                self.set(at, u64::from_le_bytes(word));
            }
            at += now.len() as u64;
            rest = later;
        }
    }

    /// A line was zeroed.
    pub fn zero(&mut self, physical: u64, size: u64) {
        for at in (physical..physical + size).step_by(8) {
            self.set(at, 0);
        }
    }

    /// The word there, if it is known.
    pub fn word(&self, physical: u64) -> Option<u64> {
        let page = self.pages.get(&(physical / 4096))?;
        let word = index(physical);
        let known = page.known[word / 64] >> (word % 64) & 1 == 1;
        known.then(|| page.words.as_ref().map_or(0, |words| words[word]))
    }

    fn set(&mut self, physical: u64, value: u64) {
        let page = self.pages.entry(physical / 4096).or_insert(Page {
            known: [0; WORDS / 64],
            words: None,
        });
        let word = index(physical);
        page.known[word / 64] |= 1 << (word % 64);
        if value != 0 || page.words.is_some() {
            page.words.get_or_insert_with(|| Box::new([0; WORDS]))[word] = value;
        }
    }
}

fn index(physical: u64) -> usize {
    usize::try_from(physical / 8 % WORDS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_known_once_they_are_written_whole() {
        let mut memory = Memory::default();
        memory.write(0x1004, &[1, 2, 3, 4]);
        assert_eq!(memory.word(0x1000), None);
        memory.zero(0x1000, 64);
        assert_eq!(memory.word(0x1000), Some(0));
        memory.write(0x1004, &[1, 2, 3, 4]);
        assert_eq!(memory.word(0x1000), Some(0x0403_0201_0000_0000));
        assert_eq!(memory.word(0x1007), memory.word(0x1000));
        memory.write(0x1ffc, &[0xff; 12]);
        assert_eq!(memory.word(0x1ff8), None);
        assert_eq!(memory.word(0x2000), Some(u64::MAX));
        assert_eq!(memory.word(0x2008), None);
    }
}

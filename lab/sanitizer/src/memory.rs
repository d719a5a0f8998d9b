//! Physical memory as EL2 has written it: values, and the state of each cache line.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use crate::tables::Table;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of a cache line; a longer one is cleaned by the same instructions.
pub const LINE: u64 = 64;
/// Lines in a page.
const LINES: usize = (PAGE / LINE) as usize;
/// 64-bit words in a page.
pub const WORDS: usize = 512;

/// A store of EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// Number of the CPU in the model.
    pub cpu: u8,
    /// Its clock of barriers then.
    pub at: u64,
    /// The instruction.
    pub pc: u64,
}

/// State of a cache line that EL2 has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CacheLine {
    /// Not written, or clean and complete.
    #[default]
    Clean,
    /// Written through the cache.
    Dirty(Store),
    /// Written, and cleaned by CPU `by`, which has not waited for it.
    Cleaning {
        /// The last store.
        store: Store,
        /// CPU that cleans.
        by: u8,
    },
    /// Written past the cache, which may hold what was there before.
    Past(Store),
    /// The same, and invalidated by CPU `by`, which has not waited for it.
    Dropping {
        /// The last store.
        store: Store,
        /// CPU that invalidates.
        by: u8,
    },
}

impl CacheLine {
    /// The store that is not complete or not clean, if any.
    pub fn store(self) -> Option<Store> {
        match self {
            Self::Clean => None,
            Self::Dirty(store) | Self::Past(store) => Some(store),
            Self::Cleaning { store, .. } | Self::Dropping { store, .. } => Some(store),
        }
    }
}

/// A page that EL2 has written.
#[derive(Debug, Default)]
pub struct Page {
    /// A bit for each word whose value is known.
    known: [u64; 8],
    /// Values of known words; all are 0 if absent.
    words: Option<Box<[u64; WORDS]>>,
    /// Absent when all are clean.
    lines: Option<Box<[CacheLine; LINES]>>,
    unclean: u8,
    /// Time at which a clean of it was last complete.
    pub cleaned: u64,
    /// It is a translation table.
    pub table: Option<Box<Table>>,
    /// CPUs whose maps have it, and for which generation of maps that holds.
    pub mapped_by: (u64, u64),
}

impl Page {
    /// The value of a word, if it is known.
    pub fn word(&self, index: usize) -> Option<u64> {
        let known = self.known[index / 64] >> (index % 64) & 1 == 1;
        known.then(|| self.words.as_ref().map_or(0, |words| words[index]))
    }

    /// Sets the value of a word.
    pub fn set_word(&mut self, index: usize, value: u64) {
        self.known[index / 64] |= 1 << (index % 64);
        if let Some(words) = &mut self.words {
            words[index] = value;
        } else if value != 0 {
            let mut words = Box::new([0; WORDS]);
            words[index] = value;
            self.words = Some(words);
        }
    }

    /// Sets all words of a line to 0. `false`: it does not, because there are values that are to be looked at one by one.
    pub fn zero_line(&mut self, index: usize) -> bool {
        let simple = self.words.is_none() && self.table.is_none();
        if simple {
            self.known[index / 8] |= 0xff << (index % 8 * 8);
        }
        simple
    }

    /// Forgets all values: somebody else may write them.
    pub fn forget(&mut self) {
        self.known = [0; 8];
        self.words = None;
    }

    /// Returns the state of a line.
    pub fn line(&self, index: usize) -> CacheLine {
        self.lines
            .as_ref()
            .map_or(CacheLine::Clean, |lines| lines[index % LINES])
    }

    /// Sets the state of a line; returns the one before.
    pub fn set_line(&mut self, index: usize, line: CacheLine) -> CacheLine {
        if self.lines.is_none() && line == CacheLine::Clean {
            return CacheLine::Clean;
        }
        let lines = self
            .lines
            .get_or_insert_with(|| Box::new([CacheLine::Clean; LINES]));
        let old = std::mem::replace(&mut lines[index % LINES], line);
        match (old == CacheLine::Clean, line == CacheLine::Clean) {
            (true, false) => self.unclean += 1,
            (false, true) => self.unclean -= 1,
            _ => {}
        }
        if self.unclean == 0 {
            self.lines = None;
        }
        old
    }

    /// Lines that are not clean: index and state.
    pub fn unclean(&self) -> impl Iterator<Item = (usize, CacheLine)> + '_ {
        let lines = self.lines.iter().flat_map(|lines| lines.iter().enumerate());
        lines
            .map(|(index, line)| (index, *line))
            .filter(|(_, line)| *line != CacheLine::Clean)
    }
}

/// A hash for numbers of pages, which come in runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// A map by number of page or address.
pub type ByNumber<T> = HashMap<u64, T, BuildHasherDefault<Spread>>;

/// A set of numbers of pages or addresses.
pub type Numbers = HashSet<u64, BuildHasherDefault<Spread>>;

/// Physical memory, by number of page.
#[derive(Debug, Default)]
pub struct Memory {
    /// Where each page is in `pages`.
    index: ByNumber<u32>,
    /// Each page that EL2 has written, with its number.
    pages: Vec<(u64, Page)>,
    /// Where the page is that was looked at last, mostly the next one, too: EL2 zeroes and copies line by line.
    last: Cell<u32>,
}

impl Memory {
    fn place(&self, pa: u64) -> Option<usize> {
        let number = pa / PAGE;
        let last = self.last.get() as usize;
        if self.pages.get(last).is_some_and(|page| page.0 == number) {
            return Some(last);
        }
        let place = *self.index.get(&number)?;
        self.last.set(place);
        Some(place as usize)
    }

    /// The page of an address, if EL2 has written it.
    pub fn get(&self, pa: u64) -> Option<&Page> {
        self.place(pa).map(|place| &self.pages[place].1)
    }

    /// The page of an address.
    pub fn page(&mut self, pa: u64) -> &mut Page {
        let place = self.place(pa).unwrap_or_else(|| {
            let place = self.pages.len();
            self.pages.push((pa / PAGE, Page::default()));
            self.index.insert(pa / PAGE, place as u32);
            self.last.set(place as u32);
            place
        });
        &mut self.pages[place].1
    }

    /// The page of an address, if EL2 has written it.
    pub fn get_mut(&mut self, pa: u64) -> Option<&mut Page> {
        self.place(pa).map(|place| &mut self.pages[place].1)
    }

    /// Returns the state of the line of an address.
    pub fn line(&self, pa: u64) -> CacheLine {
        self.get(pa)
            .map_or(CacheLine::Clean, |page| page.line(line_index(pa)))
    }

    /// All pages: address and page.
    pub fn pages(&mut self) -> impl Iterator<Item = (u64, &mut Page)> {
        let pages = self.pages.iter_mut();
        pages.map(|(number, page)| (*number * PAGE, page))
    }
}

/// Index of a line in its page.
pub fn line_index(pa: u64) -> usize {
    (pa % PAGE / LINE) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Stage;

    const STORE: Store = Store {
        cpu: 0,
        at: 0,
        pc: 0,
    };

    #[test]
    fn words_are_known_once_written_and_zeros_take_no_room() {
        let mut page = Page::default();
        assert_eq!(page.word(5), None);
        page.set_word(5, 0);
        assert_eq!((page.word(5), page.word(6)), (Some(0), None));
        assert!(page.words.is_none());
        page.set_word(70, 9);
        assert_eq!((page.word(5), page.word(70)), (Some(0), Some(9)));
        page.forget();
        assert_eq!(page.word(70), None);
    }

    #[test]
    fn a_line_of_zeros_is_eight_known_words() {
        let mut page = Page::default();
        assert!(page.zero_line(9));
        let known: Vec<usize> = (0..WORDS).filter(|n| page.word(*n) == Some(0)).collect();
        assert_eq!(known, (72..80).collect::<Vec<_>>());
        page.set_word(72, 5);
        assert!(!page.zero_line(9));
        assert_eq!((page.word(72), page.word(80)), (Some(5), None));
        let mut table = Page {
            table: Some(Box::new(Table {
                stage: Stage::El2,
                level: 3,
                base: 0,
                roots: Vec::new(),
            })),
            ..Page::default()
        };
        assert!(!table.zero_line(0));
        assert_eq!(table.word(0), None);
    }

    #[test]
    fn pages_are_found_whichever_was_looked_at_last() {
        let mut memory = Memory::default();
        assert!(memory.get(0).is_none() && memory.get_mut(5 * PAGE).is_none());
        memory.page(5 * PAGE + 8).set_word(1, 7);
        memory.page(9 * PAGE).set_word(0, 8);
        for _ in 0..2 {
            let word = |pa, index| memory.get(pa).and_then(|page| page.word(index));
            assert_eq!((word(5 * PAGE, 1), word(9 * PAGE, 0)), (Some(7), Some(8)));
            assert!(memory.get(6 * PAGE).is_none());
        }
        assert_eq!(memory.page(5 * PAGE).word(1), Some(7));
        let all: Vec<u64> = memory.pages().map(|(pa, _)| pa).collect();
        assert_eq!(all, [5 * PAGE, 9 * PAGE]);
    }

    #[test]
    fn a_page_of_clean_lines_takes_no_room() {
        let mut page = Page::default();
        page.set_line(3, CacheLine::Clean);
        assert!(page.lines.is_none());
        page.set_line(3, CacheLine::Dirty(STORE));
        page.set_line(3, CacheLine::Dirty(STORE));
        page.set_line(4, CacheLine::Past(STORE));
        let cleaning = CacheLine::Cleaning {
            store: STORE,
            by: 1,
        };
        assert_eq!(page.set_line(3, cleaning), CacheLine::Dirty(STORE));
        assert_eq!(page.unclean().map(|(n, _)| n).collect::<Vec<_>>(), [3, 4]);
        page.set_line(3, CacheLine::Clean);
        page.set_line(4, CacheLine::Clean);
        assert!(page.lines.is_none());
        assert_eq!(page.line(4), CacheLine::Clean);
    }
}

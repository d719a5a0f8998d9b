//! RAM that the program does not use itself: filled with a pattern that names each word's address.

use crate::board::{Board, Range};

const PAGE: usize = 4096;

/// Calls `each` for every page of RAM that holds neither the program nor the device tree.
pub fn free_pages(board: &Board, mut each: impl FnMut(Page)) {
    let used = [Some(board.image), board.tree];
    for range in &board.memory {
        for base in (range.base..range.end()).step_by(PAGE) {
            let page = Range { base, size: PAGE };
            if !used.iter().flatten().any(|used| used.overlaps(page)) {
                each(Page(page.base));
            }
        }
    }
}

/// A page of RAM that nothing else uses. Only [`free_pages`] makes one.
pub struct Page(usize);

impl Page {
    /// Its address.
    pub fn base(&self) -> usize {
        self.0
    }

    /// Address of the first word that is not 0.
    pub fn first_set(&self) -> Option<usize> {
        self.words().find(|address| read(*address) != 0)
    }

    /// Writes the pattern.
    pub fn fill(&self, seed: u64) {
        for address in self.words() {
            let word = core::ptr::with_exposed_provenance_mut::<u64>(address);
            // SAFETY: a word of RAM that nothing else uses, aligned (I-FREE).
            unsafe { word.write_volatile(pattern(address, seed)) };
        }
    }

    /// Address and value of the first word that is not as [`Page::fill`] left it.
    pub fn damage(&self, seed: u64) -> Option<(usize, u64)> {
        self.words().find_map(|address| {
            let value = read(address);
            (value != pattern(address, seed)).then_some((address, value))
        })
    }

    fn words(&self) -> impl Iterator<Item = usize> {
        (self.0..self.0 + PAGE).step_by(8)
    }
}

/// A number that is another one if any word of the range changes. Parts of words at its end do not count.
pub fn checksum(range: Range) -> u64 {
    let words = (range.base..range.end() & !7).step_by(8);
    words.fold(0xcbf2_9ce4_8422_2325, |sum: u64, address| {
        (sum ^ read(address)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn read(address: usize) -> u64 {
    let word = core::ptr::with_exposed_provenance::<u64>(address);
    // SAFETY: callers name aligned words of RAM, of pages that nothing else uses (I-FREE) or of what nothing
    // writes while they look.
    unsafe { word.read_volatile() }
}

fn pattern(address: usize, seed: u64) -> u64 {
    (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed
}

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
            let word = core::ptr::with_exposed_provenance::<u64>(address);
            // SAFETY: a word of RAM that nothing else uses, aligned (I-FREE).
            let value = unsafe { word.read_volatile() };
            (value != pattern(address, seed)).then_some((address, value))
        })
    }

    fn words(&self) -> impl Iterator<Item = usize> {
        (self.0..self.0 + PAGE).step_by(8)
    }
}

fn pattern(address: usize, seed: u64) -> u64 {
    (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed
}

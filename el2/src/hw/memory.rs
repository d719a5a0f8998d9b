//! Guest memory, which EL2 does not map permanently: copying and scrubbing go through a copy
//! window, in slices.

use core::sync::atomic::{AtomicU64, Ordering};

use bulkhead_core::virtio::memory::{At, Memory};

use super::bytes::{clean, copy_words, zero_lines};
use super::gic;
use super::layout::{self, BLOCK_SIZE, SOURCE, TARGET};
use super::mmu::{CopyWindows, Use};
use super::service::Mapped;

/// The largest number of bytes that are copied in a slice.
const COPIED: u64 = 8 * 1024;
/// The largest number of bytes that are zeroed in a slice.
const SCRUBBED: u64 = 32 * 1024;
/// No block: none has such an address.
const NOTHING: u64 = 1;

/// The copy windows in which memory is copied and zeroed, slice by slice: one stays open as long as it has the next slice, too. Nothing else may use
/// them before [`Self::close`].
#[derive(Debug)]
pub struct Slices {
    /// The blocks that are open.
    source: u64,
    target: u64,
}

impl Slices {
    /// Nothing is open.
    pub const fn new() -> Self {
        Self {
            source: NOTHING,
            target: NOTHING,
        }
    }

    /// Copies the start of `left` bytes between physical addresses that are multiples of 8, and cleans
    /// and invalidates the copy to the point of coherency ([`zero_lines`]). Returns the number of bytes copied: a multiple of 8, not 0.
    pub fn copy(&mut self, windows: &mut CopyWindows, from: u64, to: u64, left: u64) -> u64 {
        let bytes = within(from, within(to, left)).min(COPIED);
        let source = reach(windows, SOURCE, &mut self.source, from, Use::Read);
        let target = reach(windows, TARGET, &mut self.target, to, Use::Write);
        // SAFETY: [R-COPY-WINDOW] both ranges lie in copy windows that are open.
        unsafe { copy_words(source, target, bytes) };
        // SAFETY: [R-COPY-WINDOW] as before.
        unsafe { clean(target, bytes) };
        bytes
    }

    /// Closes them.
    #[inline(never)]
    pub fn close(&mut self, windows: &mut CopyWindows) {
        *self = Self::new();
        windows.close(SOURCE);
        windows.close(TARGET);
    }
}

/// The address of `pa` in a copy window, which is opened on its block if it is open on another one.
#[inline(always)]
fn reach(windows: &mut CopyWindows, block: usize, open: &mut u64, pa: u64, how: Use) -> u64 {
    let start = pa & !BLOCK_SIZE.wrapping_sub(1);
    if *open != start {
        *open = start;
        windows.open(block, start, how);
    }
    layout::block(block).wrapping_add(pa % BLOCK_SIZE)
}

/// Returns the number of bytes up to the end of the block or the range.
#[inline(always)]
fn within(pa: u64, left: u64) -> u64 {
    left.min(BLOCK_SIZE.wrapping_sub(pa % BLOCK_SIZE))
}

/// Reads a word of guest memory; `pa` is a multiple of 4.
pub fn read_word(copy_windows: &mut CopyWindows, pa: u64) -> u32 {
    let address = copy_windows.open(SOURCE, pa, Use::Read);
    let value: u32;
    // SAFETY: [R-COPY-WINDOW] the word lies in the copy window that was just opened.
    unsafe {
        core::arch::asm!("ldr {0:w}, [{1}]", out(reg) value, in(reg) address, options(nostack));
    }
    copy_windows.close(SOURCE);
    value
}

/// Copies memory of a VM that does not run to where the map of a service thread's pCPU, which this is, has that of another one. The range lies in
/// one block.
pub fn copy_out(copy_windows: &mut CopyWindows, pa: u64, to: At, bytes: u32) {
    let source = copy_windows.open(SOURCE, pa, Use::Read);
    Mapped.copy(At::new(source), to, bytes.into());
    copy_windows.close(SOURCE);
}

/// Zeroes the start of `left` bytes of memory, slice by slice until an interrupt waits, or one slice if `once`, and cleans it to the point of
/// coherency. `pa` is a multiple of a page. Returns the number of bytes zeroed, and whether it ended for other work.
#[inline(never)]
pub fn scrub_slices(
    slices: &mut Slices,
    windows: &mut CopyWindows,
    pa: u64,
    left: u64,
    once: bool,
) -> (u64, bool) {
    let mut at = reach(windows, TARGET, &mut slices.target, pa, Use::Write);
    let start = at;
    let end = at.wrapping_add(within(pa, left));
    loop {
        let bytes = end.wrapping_sub(at).min(SCRUBBED);
        scrub_lines(at, bytes);
        at = at.wrapping_add(bytes);
        let other = once || gic::el2_look();
        if other || at >= end {
            return (at.wrapping_sub(start), other);
        }
    }
}

/// Zeroes lines. A function of its own for measurements.
#[inline(never)]
fn scrub_lines(target: u64, bytes: u64) {
    // SAFETY: [R-COPY-WINDOW] the range lies in a copy window that was just opened for writing.
    unsafe { zero_lines::<true>(target, bytes) }
    super::sysreg::dsb();
}

/// Writes a word and cleans its line, because a guest may read it with its caches off.
#[inline(always)]
pub fn tell(place: &AtomicU64, value: u64) {
    place.store(value, Ordering::Relaxed);
    // SAFETY: [R-COPY-WINDOW] it cleans the line of a mapped word, and changes nothing.
    unsafe { core::arch::asm!("dc cvac, {0}", "dsb sy", in(reg) place, options(nostack)) };
}

/// Writes the first ones of some words to guest memory, and cleans their lines. `pa` is a multiple of 4. Returns the number of words written: not
/// 0, if there is one.
pub fn write_slice(copy_windows: &mut CopyWindows, pa: u64, words: &[u32]) -> usize {
    let room = BLOCK_SIZE.wrapping_sub(pa % BLOCK_SIZE) / 4;
    let mut address = copy_windows.open(TARGET, pa, Use::Write);
    for word in words.iter().take(room as usize) {
        // SAFETY: [R-COPY-WINDOW] the word lies in the copy window that was just opened.
        unsafe {
            core::arch::asm!("str {0:w}, [{1}]", "dc civac, {1}", in(reg) *word, in(reg) address, options(nostack));
        }
        address = address.wrapping_add(4);
    }
    super::sysreg::dsb();
    copy_windows.close(TARGET);
    words.len().min(room as usize)
}

/// Writes a device register of `width` bytes (1, 2 or 4) at a physical address.
pub fn write_register(copy_windows: &mut CopyWindows, pa: u64, width: u16, value: u32) {
    let frame = copy_windows.registers(TARGET, pa, 4);
    match width {
        1 => frame.write8(0, value as u8),
        2 => frame.write16(0, value as u16),
        _ => frame.write(0, value),
    }
    copy_windows.close(TARGET);
}

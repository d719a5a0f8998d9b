//! Guest memory, which EL2 does not map permanently: copying and scrubbing go through a copy
//! window, in slices.

use core::sync::atomic::{AtomicU64, Ordering};

use bulkhead_core::virtio::memory::{At, Memory};

use super::bytes::{clean, copy_words, zero_lines};
use super::gic;
use super::layout::{BLOCK_SIZE, SOURCE, TARGET};
use super::mmu::{CopyWindows, Use};
use super::service::Mapped;

/// The largest number of bytes that are copied between two looks for other work.
const COPIED: u64 = 8 * 1024;
/// The largest number of bytes that are zeroed between two looks for other work.
const SCRUBBED: u64 = 32 * 1024;

/// How long copying and zeroing go on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Until there may be other work, at the next look.
    Interrupt,
    /// For one slice: an interrupt does not show all that may be asked of this pCPU.
    Slice,
}

impl Until {
    /// Handles `bytes` of one open copy window by `slice`, which takes where one of `size` or less begins, and its size. Returns the number of
    /// bytes handled, which is not 0 if there are any.
    #[inline(always)]
    fn handle(self, bytes: u64, size: u64, mut slice: impl FnMut(u64, u64)) -> u64 {
        let mut done = 0;
        while done < bytes {
            let next = bytes.wrapping_sub(done).min(size);
            slice(done, next);
            done = done.wrapping_add(next);
            if self == Self::Slice || gic::el2_look() {
                break;
            }
        }
        done
    }
}

/// Returns the number of bytes up to the end of the block or the range.
fn within(pa: u64, left: u64) -> u64 {
    left.min(BLOCK_SIZE.wrapping_sub(pa % BLOCK_SIZE))
}

/// Copies the start of `left` bytes between physical addresses that are multiples of 8, and cleans
/// and invalidates the copy to the point of coherency ([`zero_lines`]). Returns the number of bytes copied: a multiple of 8, not 0.
pub fn copy(copy_windows: &mut CopyWindows, from: u64, to: u64, left: u64, until: Until) -> u64 {
    let source = copy_windows.open(SOURCE, from, Use::Read);
    let target = copy_windows.open(TARGET, to, Use::Write);
    let bytes = within(from, within(to, left));
    let done = until.handle(bytes, COPIED, |at, size| {
        let (source, target) = (source.wrapping_add(at), target.wrapping_add(at));
        // SAFETY: [R-COPY-WINDOW] both ranges lie in copy windows that were just opened.
        unsafe { copy_words(source, target, size) };
        // SAFETY: [R-COPY-WINDOW] as before.
        unsafe { clean(target, size) };
    });
    copy_windows.close(SOURCE);
    copy_windows.close(TARGET);
    done
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

/// Zeroes the start of `left` bytes of memory and cleans it to the point of coherency. `pa` is a
/// multiple of a page. Returns the number of bytes zeroed.
pub fn scrub(copy_windows: &mut CopyWindows, pa: u64, left: u64, until: Until) -> u64 {
    let target = copy_windows.open(TARGET, pa, Use::Write);
    let done = until.handle(within(pa, left), SCRUBBED, |at, size| {
        scrub_lines(target.wrapping_add(at), size);
    });
    copy_windows.close(TARGET);
    done
}

/// Zeroes the lines for `scrub`.
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

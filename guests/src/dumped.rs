//! What `dumped` leaves behind for `dump-manager` to find.

use crate::ruin;
use core::arch::asm;

/// Words of its page: number `n`, from 0, is `2 n + 1` times [`MAGIC`].
pub const PAGE_WORDS: usize = 512;
/// The first of them.
pub const MAGIC: u64 = 0x9d5b_1c6f_42e7_a803;
/// Register `n` has this and `n`, from x2 on.
pub const NUMBER: u64 = 0x4100;

/// SYSTEM_OFF.
const OFF: usize = 0x8400_0008;

/// Puts a number into each register but x0 and x1, and does something from which there is no way back.
macro_rules! end_with {
    ($instruction:literal, $x0:expr, $x1:expr) => {
        // SAFETY: the program ends here: that is what it is for.
        unsafe {
            asm!(
                ".irp n, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30",
                "movz x\\n, #({number} + \\n)",
                ".endr",
                $instruction,
                "2: b 2b",
                number = const NUMBER,
                in("x0") $x0, in("x1") $x1,
                options(noreturn)
            )
        }
    };
}

/// Ends the program with these registers, in one of five ways.
pub fn end(way: u64) -> ! {
    if way < 2 {
        ruin::vectors_at(ruin::NOWHERE);
    }
    let number = NUMBER as usize;
    match way {
        0 => end_with!("ldr x0, [x1]", number, ruin::NOWHERE),
        1 => end_with!("udf #0", number, ruin::NOWHERE),
        2 => end_with!("hvc #0", OFF, ruin::NOWHERE),
        3 => end_with!("nop", number, ruin::NOWHERE),
        _ => end_with!("3: wfi\n b 3b", number, ruin::NOWHERE),
    }
}

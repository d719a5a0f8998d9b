//! Priorities of a VM that takes its interrupts itself, in the upper half of the board's: what the architecture does to
//! those of Non-secure software where there are two Security states (IHI 0069H, 4.8.6; IHI 0048B, 3.8.1).
//!
//! The guest's highest priority, 0, is 0x80 on the board. EL2's kick has priority 0, and so pre-empts whatever the
//! guest has active: also with `ICC_BPR1_EL1` = 7, by which all priorities below 0x80 would be one. The price is a bit of
//! precision.

/// Most urgent priority that a guest has on the board.
pub const MOST_URGENT: u8 = 0x80;
/// Priority of EL2's own interrupts on such a pCPU.
pub const KICK: u8 = 0;

/// The board's priority for one that a guest writes: of an interrupt, or as priority mask.
pub const fn to_board(guest: u8) -> u8 {
    MOST_URGENT | guest >> 1
}

/// What a guest sees of a priority of the board, of an interrupt or as priority mask. One of EL2's reads as 0.
pub const fn to_guest(board: u8) -> u8 {
    if board & MOST_URGENT == 0 {
        0
    } else {
        board << 1
    }
}

/// What a guest sees of the running priority (`ICC_RPR_EL1`): as [`to_guest`], but that the idle one stays idle.
pub const fn running_to_guest(board: u8) -> u8 {
    if board == 0xff { 0xff } else { to_guest(board) }
}

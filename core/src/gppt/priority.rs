//! The priorities of a GPPT VM, in the upper half of the board's, as the architecture has it for
//! those of Non-secure software where there are two Security states (IHI 0069H, 4.8.6; IHI 0048B,
//! 3.8.1).
//!
//! The guest's highest priority, 0, is 0x80 on the board. EL2's kick has priority 0, and so
//! pre-empts whatever the guest has active: also with `ICC_BPR1_EL1` = 7, with which all priorities
//! below 0x80 would count as one. The price is one bit of precision.

/// The most urgent priority that a guest has on the board.
pub const MOST_URGENT: u8 = 0x80;
/// The priority of EL2's own interrupts on the pCPU of a GPPT VM.
pub const KICK: u8 = 0;

/// Converts a priority that a guest writes, for an interrupt or as priority mask, to the board's.
pub const fn to_board(guest: u8) -> u8 {
    MOST_URGENT | guest >> 1
}

/// Converts a priority of the board, of an interrupt or as priority mask, to what a guest sees. A
/// priority of EL2 reads as 0.
pub const fn to_guest(board: u8) -> u8 {
    if board & MOST_URGENT == 0 {
        0
    } else {
        board << 1
    }
}

/// Converts the running priority (`ICC_RPR_EL1`) to what a guest sees: as [`to_guest`], except that
/// the idle priority stays as it is.
pub const fn running_to_guest(board: u8) -> u8 {
    if board == 0xff { 0xff } else { to_guest(board) }
}

//! The page in which a control loop reports about itself, so that telling costs no exit. One writer (the
//! loop), any number of readers. `sequence` is odd while the writer is at work; a reader that sees it odd, or changed, reads
//! again.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First word of a valid report: the bytes "CTRLRPT1".
pub const MAGIC: u64 = u64::from_le_bytes(*b"CTRLRPT1");

/// Report of a periodic loop. All times are ticks of the generic timer (`frequency` per second).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Report {
    /// [`MAGIC`] once the loop has started.
    pub magic: u64,
    /// Odd while the writer changes the fields below.
    pub sequence: u64,
    /// CNTFRQ_EL0: ticks per second.
    pub frequency: u64,
    /// Length of a period in ticks.
    pub period: u64,
    /// Periods whose work was done.
    pub periods: u64,
    /// Periods that went by without their work: the loop was late by a whole period or more.
    pub lost: u64,
    /// Periods for which the interrupt came more than once.
    pub doubled: u64,
    /// Smallest lateness of a period: compare value to first instruction of the handler.
    pub late_min: u64,
    /// Largest lateness.
    pub late_max: u64,
    /// Sum of the lateness of all periods.
    pub late_sum: u64,
    /// Counter value when the loop started.
    pub started: u64,
    /// Counter value at the latest period.
    pub latest: u64,
    /// 0 while running, 1 when the loop has ended by itself.
    pub ended: u64,
}

/// Offset in the page of the word by which a peer asks the loop to end: any value but 0. It lies in
/// the second half of the page, which the peer may write.
pub const STOP_OFFSET: usize = 2048;

/// Offset of the word by which that peer has others work that map the page: any value but 0.
pub const WORK_OFFSET: usize = STOP_OFFSET + 8;

//! What a control loop tells about itself, so that telling costs no exit: in a page, and through a channel.
//!
//! The page has one writer (the loop) and any number of readers. `sequence` is odd while the writer is at work; a reader that sees it
//! odd, or changed, reads again. Through the channel [`CHANNEL`] the same [`Report`] is a message, some of each second, and the
//! other end's messages are [`Order`]s, a word each.

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

/// Name of the channel, if there is one.
pub const CHANNEL: &str = "loop";

/// What the other end of the channel asks of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Order {
    /// It is to have others work that map the page ([`WORK_OFFSET`]).
    Work = 1,
    /// It is to end, and they ([`STOP_OFFSET`]).
    Stop = 2,
}

impl Order {
    /// The message.
    pub const fn to_bytes(self) -> [u8; 8] {
        (self as u64).to_le_bytes()
    }

    /// Reads a message; `None` if it is none of these.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = u64::from_le_bytes(bytes.try_into().ok()?);
        [Self::Work, Self::Stop]
            .into_iter()
            .find(|order| *order as u64 == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written_and_nothing_else_is_one() {
        for order in [Order::Work, Order::Stop] {
            assert_eq!(Order::from_bytes(&order.to_bytes()), Some(order));
        }
        for other in [&[][..], &[1], &[0; 8], &[3, 0, 0, 0, 0, 0, 0, 0], &[1; 9]] {
            assert_eq!(Order::from_bytes(other), None, "{other:?}");
        }
    }
}

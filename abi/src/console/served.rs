//! Lines of the service VM about what its disks and its ports have done.

use super::field::Word;
use super::{Field, Name, Sink};

/// Reasons for which a frame goes nowhere, in the order in which [`Dropped`] counts them: of frames that come from the VM,
/// then of frames for it.
pub const REASONS: [&str; 10] = [
    "short",
    "long",
    "offload",
    "tagged",
    "source",
    "reserved",
    "nowhere",
    "down",
    "no-buffer",
    "small",
];

/// Frames that went nowhere, by [reason](REASONS): `3: source 2, small 1`, or `0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped(pub [u64; REASONS.len()]);

impl Dropped {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// Those that there are, with their number.
    pub fn reasons(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = REASONS.into_iter().zip(self.0);
        all.filter(|(_, count)| *count > 0)
    }
}

impl Field<'_> for Dropped {
    fn write(&self, to: &mut impl Sink) {
        to.decimal(self.total());
        for (number, (reason, count)) in self.reasons().enumerate() {
            to.text(if number == 0 { ": " } else { ", " });
            to.text(reason);
            to.text(" ");
            to.decimal(count);
        }
    }

    fn parse(text: &mut &str) -> Option<Self> {
        let total = u64::parse(text)?;
        let mut dropped = Self::default();
        let mut next = text.strip_prefix(": ");
        while let Some(rest) = &mut next {
            let reason = Word::parse(rest)?;
            *rest = rest.strip_prefix(' ')?;
            let count = u64::parse(rest)?;
            let mut places = REASONS.iter().zip(&mut dropped.0);
            *places.find(|(name, _)| **name == reason.0)?.1 = count;
            *text = *rest;
            next = text.strip_prefix(", ");
        }
        (dropped.total() == total).then_some(dropped)
    }
}

sequence! {
    /// What a disk has done since the board started: `disk 0, data of one: read 491520 bytes in 120, written 245760 in 60, flushed 3, failed 0`.
    pub struct DiskDid<'a> {
        /// Its number among the disks.
        "disk ", unit: u64,
        /// Its name.
        ", ", disk: Name<'a>,
        /// The VM that has it.
        " of ", vm: Name<'a>,
        /// Bytes that were read.
        ": read ", read_bytes: u64,
        /// Requests for that.
        " bytes in ", reads: u64,
        /// Bytes that were written.
        ", written ", written_bytes: u64,
        /// Requests for that.
        " in ", writes: u64,
        /// Flushes.
        ", flushed ", flushes: u64,
        /// Requests that were not done, or that had no place for an answer.
        ", failed ", failed: u64,
    }
}

sequence! {
    /// What a port of the switch has done since the board started: `port 0, one in lan: sent 4096 bytes in 12, received 512 in 4, dropped 3: source 2, small 1`.
    pub struct PortDid<'a> {
        /// Its number.
        "port ", unit: u64,
        /// The VM at it.
        ", ", vm: Name<'a>,
        /// The network.
        " in ", network: Name<'a>,
        /// Bytes that the VM has sent.
        ": sent ", sent_bytes: u64,
        /// Frames that they were in.
        " bytes in ", sent: u64,
        /// Bytes that it has received.
        ", received ", received_bytes: u64,
        /// Frames that they were in.
        " in ", received: u64,
        /// Frames from it and for it that went nowhere. Those from it were counted as sent, too.
        ", dropped ", dropped: Dropped,
    }
}

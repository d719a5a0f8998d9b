//! What becomes of frames, for each port.
//!
//! Each frame that a guest sends is counted once in [`Counters::from_guest`]. Then it is either
//! refused, once, or each port that must get it counts it once: as [`Counters::to_guest`], or as
//! lost there.

use crate::counts::Tally;

/// Why a frame that came from the port's guest went nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Refused {
    /// Shorter than its headers.
    Runt,
    /// Longer than the port's MTU allows.
    Giant,
    /// It leaves a checksum or segments to the device, which has not offered that.
    Offload,
    /// With a VLAN tag.
    Tagged,
    /// Its source address is not one that the port may use.
    Source,
    /// To an address that bridges do not forward (IEEE 802.1Q, table 8-1).
    Reserved,
    /// No other port in the VLAN can have its destination.
    Nowhere,
}

/// Why a frame for the port's guest was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Lost {
    /// The guest does not use the device.
    Down,
    /// The guest has not provided buffers.
    NoBuffer,
    /// The guest's buffers are too small.
    Small,
}

/// Frames, and their bytes from the destination address on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of frames.
    pub frames: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// What the guest has sent, whatever became of it.
    pub from_guest: Traffic,
    /// What the guest has got.
    pub to_guest: Traffic,
    refused: [u64; 7],
    lost: [u64; 3],
}

impl Counters {
    /// Frames of the port's guest that were refused for this reason.
    pub fn refused(&self, why: Refused) -> u64 {
        self.refused.get(why as usize).copied().unwrap_or(0)
    }

    /// Frames for the port's guest that were lost for this reason.
    pub fn lost(&self, why: Lost) -> u64 {
        self.lost.get(why as usize).copied().unwrap_or(0)
    }

    /// From words, which are those of a [`Tally`].
    pub(super) fn from_words(words: [u64; COUNTERS]) -> Self {
        let [
            frames,
            bytes,
            got,
            got_bytes,
            r0,
            r1,
            r2,
            r3,
            r4,
            r5,
            r6,
            l0,
            l1,
            l2,
        ] = words;
        let traffic = |frames, bytes| Traffic { frames, bytes };
        Self {
            from_guest: traffic(frames, bytes),
            to_guest: traffic(got, got_bytes),
            refused: [r0, r1, r2, r3, r4, r5, r6],
            lost: [l0, l1, l2],
        }
    }

    /// Frames that went nowhere, by reason: those of [`Refused`], then those of [`Lost`].
    pub fn dropped(&self) -> [u64; 10] {
        let [r0, r1, r2, r3, r4, r5, r6] = self.refused;
        let [l0, l1, l2] = self.lost;
        [r0, r1, r2, r3, r4, r5, r6, l0, l1, l2]
    }
}

/// Number of counters of a port: frames and bytes from the guest, frames and bytes to it, and those
/// that went nowhere.
pub(crate) const COUNTERS: usize = 14;

const FROM_GUEST: usize = 0;
const TO_GUEST: usize = 2;
const REFUSED: usize = 4;
const LOST: usize = 11;

impl Tally<COUNTERS> {
    /// The guest has sent a frame.
    pub(super) fn sent(&mut self, bytes: u32) {
        self.add(FROM_GUEST, 1);
        self.add(FROM_GUEST + 1, bytes.into());
    }

    /// The guest has got a frame.
    pub(super) fn got(&mut self, bytes: u32) {
        self.add(TO_GUEST, 1);
        self.add(TO_GUEST + 1, bytes.into());
    }

    pub(super) fn refuse(&mut self, why: Refused) {
        self.add(REFUSED + why as usize, 1);
    }

    pub(super) fn lose(&mut self, why: Lost) {
        self.add(LOST + why as usize, 1);
    }
}

//! What becomes of frames, for each port.
//!
//! Each frame that a guest sends is counted once in [`Counters::from_guest`]. Then it is either
//! refused, once, or each port that must get it counts it once: as [`Counters::to_guest`], or as
//! lost there.

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

impl Traffic {
    pub(super) fn add(&mut self, bytes: u32) {
        self.frames = self.frames.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(u64::from(bytes));
    }
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

    /// As words, for memory that outlives this program.
    pub(crate) fn words(&self) -> [u64; 14] {
        let mut words = [0; 14];
        let traffic = [self.from_guest, self.to_guest];
        let traffic = traffic.iter().flat_map(|it| [it.frames, it.bytes]);
        let dropped = self.refused.iter().chain(&self.lost).copied();
        let all = traffic.chain(dropped);
        words.iter_mut().zip(all).for_each(|(to, from)| *to = from);
        words
    }

    pub(crate) fn from_words(words: [u64; 14]) -> Self {
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

    pub(super) fn refuse(&mut self, why: Refused) {
        if let Some(count) = self.refused.get_mut(why as usize) {
            *count = count.wrapping_add(1);
        }
    }

    pub(super) fn lose(&mut self, why: Lost) {
        if let Some(count) = self.lost.get_mut(why as usize) {
            *count = count.wrapping_add(1);
        }
    }
}

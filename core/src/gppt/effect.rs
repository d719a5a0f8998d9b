//! Accesses to the physical GIC, as values.

use crate::vgic::WORDS;

/// A frame of the physical GIC that an access goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The distributor.
    Distributor,
    /// Both frames of this pCPU's redistributor, `RD_base` first. GICv3 only.
    Redistributor,
}

/// A read of the physical GIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The frame that is read.
    pub frame: Frame,
    /// The offset in bytes from the start of the frame, a multiple of `size`.
    pub offset: u64,
    /// The size: 1, 4 or 8 bytes.
    pub size: u64,
    /// The bits that the guest sees.
    pub mask: u64,
    /// The bits that are set in addition.
    pub or: u64,
    /// The conversion of the bits in `mask` for the guest.
    pub form: Form,
}

/// The conversion of a value read from the physical GIC into what the guest sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The value as read.
    Plain,
    /// Bytes that are priorities of the upper half.
    Priorities,
    /// The affinity of a pCPU, which becomes that of the vCPU.
    Affinity,
    /// Bytes that are masks of CPU interfaces, which become masks of vCPUs.
    Interfaces,
}

/// The result of a read by the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This value; the physical GIC is not read.
    Value(u64),
    /// The value of this read of the physical GIC, converted by [`super::Filter::shown`].
    Read(Read),
}

impl Answer {
    /// A register that reads as zero.
    pub const ZERO: Self = Self::Value(0);
}

/// A write to the physical GIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The frame that is written.
    pub frame: Frame,
    /// The offset in bytes from the start of the frame, a multiple of `size`.
    pub offset: u64,
    /// The size: 1, 4 or 8 bytes.
    pub size: u64,
    /// The value that is written.
    pub value: u64,
}

/// The writes that follow from one access of the guest, in their order: at most one for each word
/// of interrupts.
#[derive(Clone, Copy, Debug)]
pub struct Writes {
    list: [Option<Write>; WORDS],
    count: usize,
}

impl Writes {
    /// No write.
    pub const NONE: Self = Self {
        list: [None; WORDS],
        count: 0,
    };

    /// Creates a list of exactly this write.
    pub fn one(write: Write) -> Self {
        let mut writes = Self::NONE;
        writes.push(write);
        writes
    }

    /// Appends a write. There are never more than fit: a word has four priorities.
    pub(super) fn push(&mut self, write: Write) {
        if let Some(place) = self.list.get_mut(self.count) {
            *place = Some(write);
            self.count = self.count.wrapping_add(1);
        }
    }

    /// Iterates over the writes, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Write> {
        self.list.iter().flatten()
    }

    /// Whether there is no write.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

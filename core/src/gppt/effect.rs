//! Accesses to the board's GIC, as values.

use crate::vgic::WORDS;

/// Which frame of the board an access goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The distributor.
    Distributor,
    /// Both frames of this pCPU's redistributor, `RD_base` first. GICv3 only.
    Redistributor,
}

/// One read of the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The frame.
    pub frame: Frame,
    /// Bytes from its start, a multiple of `size`.
    pub offset: u64,
    /// 1, 4 or 8 bytes.
    pub size: u64,
    /// Bits of it that the guest sees.
    pub mask: u64,
    /// Bits that are set besides.
    pub or: u64,
    /// How those bits look to the guest.
    pub form: Form,
}

/// How what is read on the board looks to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As it is.
    Plain,
    /// Bytes that are priorities of the upper half.
    Priorities,
    /// The affinity of a pCPU, which becomes that of a vCPU.
    Affinity,
    /// Bytes that are masks of CPU interfaces, which become masks of vCPUs.
    Interfaces,
}

/// What the guest reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This, and the board is not asked.
    Value(u64),
    /// What [`super::Filter::shown`] makes of what this read gives.
    Read(Read),
}

impl Answer {
    /// Reads as zero.
    pub const ZERO: Self = Self::Value(0);
}

/// One write to the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The frame.
    pub frame: Frame,
    /// Bytes from its start, a multiple of `size`.
    pub offset: u64,
    /// 1, 4 or 8 bytes.
    pub size: u64,
    /// What is written.
    pub value: u64,
}

/// The writes that follow from one access, in their order: at most one for each word of interrupts.
#[derive(Clone, Copy, Debug)]
pub struct Writes {
    list: [Option<Write>; WORDS],
    count: usize,
}

impl Writes {
    /// The board is not written.
    pub const NONE: Self = Self {
        list: [None; WORDS],
        count: 0,
    };

    /// Exactly this one.
    pub fn one(write: Write) -> Self {
        let mut writes = Self::NONE;
        writes.push(write);
        writes
    }

    /// Adds one behind the others. There are never more than fit: a word has four priorities.
    pub(super) fn push(&mut self, write: Write) {
        if let Some(slot) = self.list.get_mut(self.count) {
            *slot = Some(write);
            self.count = self.count.wrapping_add(1);
        }
    }

    /// They, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Write> {
        self.list.iter().flatten()
    }

    /// Nothing is written.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

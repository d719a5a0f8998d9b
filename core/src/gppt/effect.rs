//! Accesses to the physical GIC, as values.

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

/// The physical GIC as a filter writes it: at once, since a list of the writes that follow from an
/// access would cost more than most accesses do.
pub trait Board {
    /// Performs a write.
    fn write(&mut self, write: Write);
}

//! A GIC as IHI 0048B (GICv2) and IHI 0069H (GICv3) describe it, and the virtual CPU interface with its
//! list registers. Written from those documents to judge the vGIC by: it shares no code with it, has no
//! regard for speed or size, and every change takes effect at once.
//!
//! One Security state, up to 8 CPUs with affinities 0.0.0.0 to 0.0.0.7; SGIs, PPIs and SPIs. What the
//! architecture leaves to the implementer is a field of [`Config`], or a question that the caller answers
//! (which of several equally urgent interrupts comes first: [`Gic::candidates`]).

mod distributor;
mod gic;
mod interface;
mod interrupt;
mod redistributor;
mod registers;
mod sgi;
mod virtual_interface;

pub use gic::{Acknowledged, Gic};
pub use interface::Interface;
pub use interrupt::Interrupt;
pub use virtual_interface::{Deactivated, Entry, Source, VirtualInterface};

/// Version of the architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// GICv2 without Security Extensions, with interrupt grouping.
    V2,
    /// GICv3 with affinity routing always on and GICD_CTLR.DS = 1.
    V3,
}

/// Choices of the implementer of a GIC.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Version of the architecture.
    pub version: Version,
    /// CPUs, 1 to 8.
    pub cpus: usize,
    /// SPIs, a multiple of 32.
    pub spis: u32,
    /// Upper bits of a priority that exist, in the distributor and the CPU interface (4 to 8).
    pub priority_bits: u32,
    /// GICv2: enable bits of SGIs read as one and cannot be written.
    pub sgis_always_enabled: bool,
    /// PPIs whose trigger cannot be written, a bit for each INTID.
    pub fixed_ppis: u32,
}

/// Frame of registers that a CPU accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// GICD; on GICv2 the registers of INTIDs 0 to 31 are those of the CPU that accesses.
    Distributor,
    /// GICR (RD_base and SGI_base) of a CPU. GICv3 only.
    Redistributor(usize),
}

//! The saved CPU interface of a GPPT VM on a GICv2.

use bulkhead_core::gppt::{Mode, PlainV2};

use crate::hw::gic::gppt::Interface;

/// The version-specific part of the filter.
pub type Kind = PlainV2;
/// Returns the version-specific part of the filter in a mode.
pub const fn kind(_: Mode) -> Kind {
    PlainV2
}

/// The guest's CPU interface while EL2 has the pCPU, as it does at first; `None` while the guest
/// has it.
#[derive(Debug)]
pub struct Kept(pub(super) Option<Interface>);

impl Kept {
    /// Returns the state before the guest runs.
    pub const fn of(_: Mode) -> Self {
        Self(Some(Interface::RESET))
    }
}

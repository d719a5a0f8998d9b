//! The saved CPU interface of a GPPT VM on a GICv3.

use bulkhead_core::gppt::{Kick, Mode, V3};

use crate::hw::gic::gppt::Interface;

/// The version-specific part of the filter.
pub type Kind = V3;
/// Returns the version-specific part of the filter in a mode.
pub const fn kind(mode: Mode) -> Kind {
    V3(mode.view())
}

/// The state that is saved while the vCPU does not have its pCPU.
#[derive(Debug)]
pub enum Kept {
    /// ICC_IGRPEN1_EL1; EL2 needs nothing else of the guest's CPU interface out of the way.
    Group1(u64),
    /// The CPU interface while EL2 has it, as it does at first; `None` while the guest has it.
    All(Option<Interface>),
}

impl Kept {
    /// Returns the state before the guest runs.
    pub fn of(mode: Mode) -> Self {
        match mode.kick() {
            Kick::RevokeAndPoke if mode.el2_in_group0() => Self::All(Some(Interface::RESET)),
            Kick::Group0 | Kick::RevokeAndPoke => Self::Group1(0),
        }
    }
}

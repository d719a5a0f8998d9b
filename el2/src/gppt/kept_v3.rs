//! The CPU interface of a GPPT VM on a GICv3.

use bulkhead_core::gppt::{Kick, Mode, V3};

use crate::hw::gic::gppt::Interface;

/// The kind of the filter.
pub type Kind = V3;
/// The kind of the filter in a mode.
pub const fn kind(mode: Mode) -> Kind {
    V3(mode.view())
}

/// The state that is kept while the vCPU does not have its pCPU.
#[derive(Debug)]
pub enum Kept {
    /// ICC_IGRPEN1_EL1; nothing else of the guest's is in EL2's way.
    Group1(u64),
    /// The CPU interface, which EL2 has at first; `None`: the guest has it.
    All(Option<Interface>),
}

impl Kept {
    /// At first.
    pub fn of(mode: Mode) -> Self {
        match mode.kick() {
            Kick::Group0 => Self::Group1(0),
            Kick::RevokeAndPoke => Self::All(Some(Interface::RESET)),
        }
    }
}

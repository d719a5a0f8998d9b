//! Partial passthrough of the GIC (GPPT): a GPPT VM takes its physical interrupts at EL1, and
//! acknowledges and ends them without EL2 (`docs/adr/0016-gppt.md`). Its accesses to distributor
//! and redistributor trap and are filtered here, bit by bit, by the list of its INTIDs; virtual and
//! physical INTIDs are the same.
//!
//! | part | content |
//! | --- | --- |
//! | [`Mode`] | what EL2 traps, which priority mask the guest has, how EL2 reclaims the pCPU |
//! | [`Filter`] | what an access to a register reads, and what it writes to the physical GIC |
//! | [`priority`] | the guest's priorities as part of the board's |
//! | [`sgi`] | the vCPUs that an SGI reaches |
//! | [`Common`] | the registers of the CPU interface that trap in [`Mode::PmrTrapped`] |
//! | [`Stage2Claim`](crate::sync::Stage2Claim), [`Entered`] | revoke and poke, where the guest could mask EL2's kick: revoking stage 2, and undoing the exception entry that the poke caused |
//!
//! With [`View::Upper`] the guest sees the GIC as Non-secure software sees one with two Security
//! states, with EL2 in the place of the Secure side (IHI 0069H, 4.8 and the Non-secure formats of
//! chapter 12; IHI 0048B, 3.8 and 4.3): fields of interrupts that the VM does not have read as zero
//! and ignore writes, and none of its priorities is as urgent as any of EL2's.
//!
//! This module accesses no hardware register: it returns reads of the physical GIC as values, and
//! hands writes to a [`Board`].

mod common;
mod effect;
mod filter;
mod mode;
pub mod priority;
mod registers;
pub mod sgi;
mod sgi_rewind;
#[cfg(test)]
mod tests;

pub use common::{Common, TWO_STEPS};
pub use effect::{Answer, Board, Form, Frame, Read, Write};
pub use filter::{Cpus, Filter, Kind, PlainV2, V3};
pub use mode::{Controls, Kick, Mode, Reclaim, View};
pub use sgi_rewind::Entered;

use crate::vgic::WORDS;

/// The SGIs that a guest has: 0 to 7. The others are EL2's, as they are the Secure side's by the
/// convention of BSA.
pub const GUEST_SGIS: u32 = 0xff;

/// The INTIDs of a VM, a bit for each: word 0 for SGIs and PPIs, then the SPIs from 32 on.
pub type Intids = [u32; WORDS];

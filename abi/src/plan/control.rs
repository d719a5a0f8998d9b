//! Rows about who manages whom (`docs/adr/0027-control.md`). Only the profile [`Managed`](super::Profile::Managed) knows them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most VMs that have rights over others.
pub const MAX_MANAGERS: usize = 4;

/// [`Vm::flags`](super::Vm::flags): the VM does not start with the board; somebody starts it.
pub const VM_WAITS: u16 = 16;
/// [`Vm::flags`](super::Vm::flags): no manager stops, pauses, restarts or changes it. The monitor does, for who holds the board.
pub const VM_LOCKED: u16 = 32;

/// What a VM may do with another one. Rows are sorted by `manager`, then by `vm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Right {
    /// Index of the VM that has the rights. It has a console with the control port.
    pub manager: u16,
    /// Index of the VM over which it has them; perhaps itself.
    pub vm: u16,
    /// [`right::LIST`](crate::control::right::LIST) and others.
    pub rights: u32,
}

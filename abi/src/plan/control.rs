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

/// Shortest [`Stop::timeout`], in milliseconds.
pub const MIN_STOP: u32 = 10;
/// Longest of them: an hour.
pub const MAX_STOP: u32 = 3_600_000;

/// How a VM is asked to stop: by an interrupt, or by a word that it reads. Rows are sorted by VM, one for each at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Stop {
    /// Index of the VM.
    pub vm: u16,
    /// SPI of its vGIC, edge-triggered; 0 if it is asked by a word.
    pub vintid: u16,
    /// Milliseconds after which it is stopped if it has not ended: [`MIN_STOP`] to [`MAX_STOP`].
    pub timeout: u32,
    /// IPA of the page that has the word (a [`RegionKind::StopWord`](super::RegionKind::StopWord) region), at [`WORD`](crate::shared_page::stop::WORD);
    /// 0 if it is asked by an interrupt.
    pub word: u64,
}

//! What EL2 and the backend of a device share (`docs/adr/0024-shadow-virtqueues.md`): the window of the device, which starts
//! with its [`device_page`], and the [`backend_page`] of the backend's VM.
//!
//! A window is memory of the backend's VM. Behind the device page lie the backend's virtqueues, split ones
//! ([`ring`]), and the slots. Addresses in descriptors are offsets from the start of the window; descriptor `n` of a
//! queue always points to slot `n` of that queue.

pub mod ring;

/// Most queues of a device.
pub const MAX_QUEUES: usize = 8;
/// Most entries of a queue, on either side.
pub const MAX_QUEUE_SIZE: u16 = 256;
/// Most bytes of a device's config.
pub const MAX_CONFIG: usize = 256;

/// The first page of a window: offsets in it. Words have 32 bits where nothing else is said. EL2 writes the first half
/// only, and the backend the second half only; each side takes the other's words as they are, and believes none.
pub mod device_page {
    /// [`MAGIC_VALUE`]; EL2 writes it last, so that who finds it finds the rest.
    pub const MAGIC: usize = 0x000;
    /// "bulk" in memory.
    pub const MAGIC_VALUE: u32 = u32::from_le_bytes(*b"bulk");
    /// Version of this layout, [`VERSION_VALUE`].
    pub const VERSION: usize = 0x004;
    /// The only one.
    pub const VERSION_VALUE: u32 = 1;
    /// Device ID of virtio (1 network, 2 block, ...).
    pub const DEVICE_ID: usize = 0x008;
    /// Number of the queues.
    pub const QUEUES: usize = 0x00c;
    /// The session: everything older is to be let go of. EL2 adds 1 for each; the first is 1.
    pub const SESSION: usize = 0x010;
    /// The session whose rings are there: equal to [`SESSION`] while it is to be served. Before it is, features, status and queues are
    /// written.
    pub const LIVE: usize = 0x014;
    /// The index of the device in [`super::backend_page::NEWS`] and in what the backend writes to ring.
    pub const INDEX: usize = 0x01c;
    /// Features that the guest's driver has taken, 64 bits.
    pub const FEATURES: usize = 0x020;
    /// Features that the plan offers, 64 bits.
    pub const OFFERED: usize = 0x028;
    /// Bytes of the window.
    pub const WINDOW: usize = 0x030;
    /// The device's number among those of its kind that the backend serves (a disk, a port of a switch).
    pub const UNIT: usize = 0x034;
    /// Bytes of the config.
    pub const CONFIG_BYTES: usize = 0x038;
    /// The config of the plan, [`super::MAX_CONFIG`] bytes.
    pub const CONFIG: usize = 0x100;
    /// The queues, [`QUEUE_STRIDE`] bytes each.
    pub const QUEUE: usize = 0x200;
    /// Bytes from one queue to the next.
    pub const QUEUE_STRIDE: usize = 0x20;
    /// In a queue: offset of its descriptor table in the window. Its available ring and its used ring follow ([`super::ring::Ring`]).
    pub const QUEUE_TABLE: usize = 0x00;
    /// In a queue: its size, a power of two.
    pub const QUEUE_SIZE: usize = 0x04;
    /// In a queue: 1 if the guest has enabled it, else 0.
    pub const QUEUE_ENABLED: usize = 0x08;
    /// In a queue: bytes of a slot.
    pub const QUEUE_SLOT: usize = 0x0c;
    /// In a queue: offset of slot 0 in the window.
    pub const QUEUE_SLOTS: usize = 0x10;

    /// Where the backend's half starts.
    pub const BACKEND: usize = 0x800;
    /// The session that the backend can serve: it has let go of everything older. 0: there is no backend.
    pub const READY: usize = 0x800;
    /// 0, or why the backend does not serve the device (`bulkhead_abi::device::Refusal`).
    pub const REFUSAL: usize = 0x804;
    /// Incremented by the backend before and behind each change of its config: odd while it changes.
    pub const GENERATION: usize = 0x808;
    /// Session that the backend wants to be ended: one is begun if it is the present one.
    pub const RESTART: usize = 0x80c;
    /// The backend's config, [`super::MAX_CONFIG`] bytes: valid as soon as [`GENERATION`] is not 0.
    pub const BACKEND_CONFIG: usize = 0x900;
}

/// Why a backend does not serve a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// It does not know devices of this type.
    Type = 1,
    /// It needs features that are not offered, or does not know some that are.
    Features = 2,
    /// What it should serve is not there (a file, a disk of that number).
    Unit = 3,
    /// What it should serve has not the size of the plan.
    Size = 4,
    /// The plan's config has a value that it does not serve (an address, a limit).
    Config = 5,
}

/// The page of a backend's VM that says which of its devices have something to do: offsets.
pub mod backend_page {
    /// A bit for each device, 64 bits. EL2 sets bits, the backend takes all by an exchange with 0.
    pub const NEWS: usize = 0x00;
    /// 32 bits. The backend sets it to 1 before it looks a last time and sleeps. EL2 exchanges it with 0, and makes the interrupt
    /// pending if it was 1.
    pub const ARMED: usize = 0x08;
}

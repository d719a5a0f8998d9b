//! Rows about virtio devices and who serves them (`docs/adr/0024-shadow-virtqueues.md`). Only the profile
//! [`Io`](super::Profile::Io) knows them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// [`Vm::flags`](super::Vm::flags): it does not keep the board on: the board is switched off when all other VMs have stopped. From the
/// profile [`Io`](super::Profile::Io) on.
pub const VM_BACKGROUND: u16 = 8;

/// Most service threads in a plan. With the vCPUs they are [`MAX_VCPUS`](super::MAX_VCPUS) at most.
pub const MAX_SERVICE_THREADS: usize = super::MAX_PCPUS;
/// Most virtio devices in a plan; also most devices of a service thread, and of a backend.
pub const MAX_VIRTIO_DEVICES: usize = 64;
/// Pages of the page pool for each virtio device: what pCPUs share about it, and the page of its registers.
pub const VIRTIO_PAGES: u32 = 2;
/// Index of the page of registers among them.
pub const VIRTIO_REGISTERS_PAGE: u32 = 1;
/// Most bytes of the config of a device in a plan.
pub const PLAN_CONFIG: usize = 64;

/// A service thread of EL2: it moves the data of virtio devices between guests and backends. It is scheduled like a vCPU.
/// Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ServiceThread {
    /// Index of the pCPU on which it runs, where no vCPU is pinned.
    pub pcpu: u16,
    /// [`CpuPolicy`](super::CpuPolicy): a server, or fair.
    pub policy: u16,
    /// Fair: 1 to [`MAX_WEIGHT`](super::MAX_WEIGHT). Server: 0.
    pub weight: u16,
    /// Must be 0.
    pub reserved: u16,
    /// As that of a vCPU.
    pub budget: u64,
    /// As that of a vCPU.
    pub period: u64,
    /// Pages of the page pool for its state and for the tables by which it reaches the memory of VMs.
    pub pages: u32,
    /// Must be 0.
    pub reserved2: u32,
}

/// A VM that serves virtio devices of others, or EL2 itself, which serves consoles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Backend {
    /// Index of the VM; no two alike. [`NONE`](super::NONE), in the last row: EL2, and all else is 0.
    pub vm: u16,
    /// SPI of its vGIC by which it is told that devices have something to do.
    pub vintid: u16,
    /// Must be 0.
    pub reserved: u32,
    /// IPA of the page with the news ([`backend_page`](crate::device::backend_page)), in its RAM.
    pub page: u64,
    /// IPA of the page to which it writes which devices have something to do, a bit for each: those from 0 to 31 at offset 0, the
    /// others at offset 4.
    pub bell: u64,
}

/// [`VirtioDevice::id`] of a console (VIRTIO 1.2, 5.3), the type that EL2 serves: it has two queues, no window, and no features or config of its
/// own. A VM has one at most.
pub const VIRTIO_CONSOLE: u16 = 3;

/// Least [`VirtioDevice::poll`] of a polled device, in nanoseconds: looking more often would take the pCPU from what is found.
pub const MIN_POLL: u64 = 50_000;
/// Greatest [`VirtioDevice::poll`], in nanoseconds.
pub const MAX_POLL: u64 = 1_000_000_000;
/// [`VirtioDevice::flags`]: what a backend had when it ended cannot be given to another one, so that the guest has to reset the device.
pub const VIRTIO_RESETS: u16 = 1;
/// [`VirtioDevice::flags`]: of a console with the control port, which has no port 0. Only the profile [`Managed`](super::Profile::Managed) knows it.
pub const VIRTIO_NO_CONSOLE: u16 = 2;

/// A virtio device of a guest (virtio-mmio, version 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VirtioDevice {
    /// Index of the VM that has it.
    pub vm: u16,
    /// Index of the [`Backend`] that serves it; of another VM, or EL2.
    pub backend: u16,
    /// Device ID of virtio (1 network, 2 block, ...).
    pub id: u16,
    /// Its interrupt (an SPI of the VM's vGIC), an edge. A polled device has none: 0.
    pub vintid: u16,
    /// Its number among those of its kind that the backend serves.
    pub unit: u16,
    /// [`VIRTIO_RESETS`] and others, or 0.
    pub flags: u16,
    /// Its bit in the words that the backend and EL2 exchange; each device of a backend has another.
    pub index: u16,
    /// Bytes of the config.
    pub config_bytes: u16,
    /// Index of the [`ServiceThread`] that moves its data.
    pub service: u16,
    /// Must be 0.
    pub reserved: u16,
    /// Must be 0.
    pub reserved2: u32,
    /// IPA of its registers: a region [`VirtioRegisters`](super::RegionKind::VirtioRegisters).
    pub ipa: u64,
    /// IPA of its window in the RAM of the backend's VM, a multiple of a page. 0 where EL2 serves it.
    pub window: u64,
    /// Bytes of the window, whole pages. 0 where EL2 serves it.
    pub window_size: u64,
    /// Features that it offers.
    pub features: u64,
    /// Not 0: the device is polled. So often the service thread looks at its queues by itself, in nanoseconds; its driver need not notify
    /// it, and is not interrupted.
    pub poll: u64,
    /// Its first config, with zeros behind it.
    pub config: [u8; PLAN_CONFIG],
}

/// [`Virtqueue::flags`]: the length in used entries is what the backend has written. Else all writable bytes are copied.
pub const QUEUE_EXACT: u16 = 1;
/// [`Virtqueue::flags`]: chains that a backend had when it ended are given to the next one. Else they go back with length 0.
pub const QUEUE_REPLAY: u16 = 2;

/// A queue of a virtio device. Rows are sorted by device. Of one that EL2 serves, all behind `size` is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Virtqueue {
    /// Index of the device.
    pub device: u16,
    /// Most entries that the guest's queue may have: a power of two.
    pub size: u16,
    /// Entries of the backend's queue, and slots: a power of two.
    pub slots: u16,
    /// [`QUEUE_EXACT`] and others, or 0.
    pub flags: u16,
    /// Bytes of a slot: a multiple of 16.
    pub slot_bytes: u32,
    /// Most readable bytes of a chain.
    pub readable: u32,
    /// Most writable bytes of a chain.
    pub writable: u32,
    /// Offset of the backend's queue ([`Ring`](crate::device::ring::Ring)) in the window, a multiple of 16.
    pub ring: u32,
    /// Offset of slot 0 in the window, a multiple of 16.
    pub slots_at: u32,
    /// Must be 0.
    pub reserved: u32,
}

//! The plan, which the host tool proves and EL2 proves again (`docs/adr/0002-plan-format.md`).
//!
//! A plan is one block of bytes, a multiple of 8 long: [`Header`], then the tables that it names, in
//! the order of [`TableId`], each directly behind the one before. Tables are sorted by VM where their
//! rows name one. There are no pointers, no strings of variable length and no padding that is not a
//! named field which must be 0; so every byte has a meaning and every byte is checked.
//!
//! The `core::plan` module of `bulkhead-core`, which both sides call, tells which side checks what.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

mod build;
mod control;
mod cpus;
mod interrupts;
mod io;

pub use build::{Profile, UartKind};
pub use control::*;
pub use cpus::*;
pub use interrupts::*;
pub use io::*;

/// First word of a plan: the bytes "BULKHEAD".
pub const MAGIC: u64 = u64::from_le_bytes(*b"BULKHEAD");
/// Version of this layout. EL2 takes no other.
pub const VERSION: u32 = 20;
/// Translation granule everywhere.
pub const PAGE: u64 = 4096;
/// Most pCPUs in a plan.
pub const MAX_PCPUS: usize = 8;
/// Most VMs in a plan.
pub const MAX_VMS: usize = 64;
/// Most vCPUs of a VM.
pub const MAX_VCPUS_PER_VM: usize = 8;
/// Most vCPUs on a pCPU.
pub const MAX_VCPUS_PER_PCPU: usize = 8;
/// Most vCPUs in a plan: as many as the pCPUs can have.
pub const MAX_VCPUS: usize = MAX_PCPUS * MAX_VCPUS_PER_PCPU;
/// Largest weight of a fair vCPU; the smallest is 1.
pub const MAX_WEIGHT: u16 = 1000;
/// Most events in a period: what a counter of 32 bits has passed is known until the next look.
pub const MAX_EVENTS: u32 = 1 << 31;
/// The largest number of an event.
pub const MAX_EVENT: u32 = 0xffff;
/// Shortest period of a server, of a cap, and of a budget of events, in nanoseconds.
pub const MIN_PERIOD: u64 = 100_000;
/// Longest period of a server, of a cap, and of a budget of events, in nanoseconds.
pub const MAX_PERIOD: u64 = 10_000_000_000;
/// Most bytes of a plan.
pub const MAX_PLAN: u64 = 64 * 1024;
/// EL2 and the plan together fit the first block of this size of the image: EL2 maps them with one
/// table.
pub const EL2_BLOCK: u64 = 2 * 1024 * 1024;
/// Width of the IPA space of every VM in bits: one root page, start at level 1.
pub const IPA_BITS: u32 = 39;
/// Limit of the addresses at which EL2 can be loaded: below it, EL2's identity map and its own map
/// do not meet.
pub const LOAD_LIMIT: u64 = 128 << 30;
/// SPIs that a vGIC offers at most (INTIDs 32 to 287); always a multiple of 32.
pub const MAX_SPIS: u32 = 256;
/// Pages of the page pool for each pCPU: 3 translation tables, 2 of the stack on which it starts and waits, 5 of state.
pub const PCPU_PAGES: u32 = 10;
/// Pages of the page pool for each vCPU: 2 of its stack at EL2, 3 of state.
pub const VCPU_PAGES: u32 = 5;
/// Pages of the page pool for each VM besides its stage-2 tables: 2 of what the pCPUs share about it, then the one
/// in which it is told stolen time, used or not.
pub const VM_PAGES: u32 = 3;
/// Index of the page of stolen time among the pages of a VM.
pub const STOLEN_TIME_PAGE: u32 = 2;
/// Most pages of the page pool: what EL2 maps of it while it starts.
pub const MAX_PAGE_POOL: u64 = 16384;
/// Most rows in a table that has no tighter limit: the proof compares rows in pairs.
pub const MAX_ROWS: usize = 512;
/// Most doorbells in a plan.
pub const MAX_DOORBELLS: usize = 64;
/// Least [`Doorbell::apart`], in nanoseconds.
pub const MIN_APART: u64 = 10_000;
/// Most of it.
pub const MAX_APART: u64 = 1_000_000_000;
/// Bytes of a name, padded with 0.
pub const NAME: usize = 16;
/// "No such index" in 16-bit index fields.
pub const NONE: u16 = u16::MAX;

/// Start of a table (bytes from the start of the plan) and its number of rows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Table {
    /// Bytes from the start of the plan to the first row.
    pub offset: u32,
    /// Number of rows.
    pub count: u32,
}

/// Tables in the order in which they lie in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum TableId {
    /// [`Memory`]
    Memory = 0,
    /// [`Pcpu`]
    Pcpus = 1,
    /// [`Vm`]
    Vms = 2,
    /// [`Vcpu`]
    Vcpus = 3,
    /// [`Region`]
    Regions = 4,
    /// [`Payload`]
    Payloads = 5,
    /// [`Seed`]
    Seeds = 6,
    /// [`Irq`]
    Irqs = 7,
    /// [`Device`]
    Devices = 8,
    /// [`Quiet`]
    Quiets = 9,
    /// [`Call`]
    Calls = 10,
    /// [`Doorbell`]
    Doorbells = 11,
    /// [`ServiceThread`]
    ServiceThreads = 12,
    /// [`Backend`]
    Backends = 13,
    /// [`VirtioDevice`]
    VirtioDevices = 14,
    /// [`Virtqueue`]
    Virtqueues = 15,
    /// [`Right`]
    Rights = 16,
    /// [`Stop`]
    Stops = 17,
}

/// Number of tables in a plan.
pub const TABLES: usize = 18;

/// Start of every plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`]
    pub magic: u64,
    /// [`VERSION`]
    pub version: u32,
    /// Bytes of this header; also where the first table starts.
    pub header_size: u32,
    /// Bytes of the whole plan.
    pub size: u64,
    /// Checksum of the plan with this field as 0 (`core::plan::checksum`): against accidents, not
    /// against attackers.
    pub checksum: u64,
    /// The parts of the board that EL2 itself uses.
    pub board: Board,
    /// The image that carries the plan.
    pub image: Image,
    /// The tables, by [`TableId`].
    pub tables: [Table; TABLES],
}

/// Parts of the board that EL2 uses. EL2 compares each with the device tree that it is started with, the kind of the UART with its build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Board {
    /// Physical address of the distributor.
    pub gicd: u64,
    /// Bytes of the distributor frame.
    pub gicd_size: u64,
    /// GICv3: physical address of the first redistributor. GICv2: 0.
    pub gicr: u64,
    /// Bytes of the redistributor region, all redistributors together.
    pub gicr_size: u64,
    /// GICv2: physical address of the CPU interface. GICv3: 0, as are the five that follow.
    pub gicc: u64,
    /// Bytes of its frame.
    pub gicc_size: u64,
    /// Physical address of the virtual interface control.
    pub gich: u64,
    /// Bytes of its frame.
    pub gich_size: u64,
    /// Physical address of the virtual CPU interface, which VMs map as their CPU interface.
    pub gicv: u64,
    /// Bytes of its frame.
    pub gicv_size: u64,
    /// Physical address of the UART that carries the consoles: of a page, or in one for a kind that may lie so
    /// ([`UartKind::is_within_page`]).
    pub uart: u64,
    /// Bytes of its frame, in whole pages from the start of its page.
    pub uart_size: u64,
    /// Physical address of the PL031 from which EL2 takes the time of day when it starts; 0 for none.
    pub rtc: u64,
    /// INTID of that UART (an SPI).
    pub uart_intid: u32,
    /// INTID of the EL1 virtual timer (a PPI).
    pub vtimer_intid: u32,
    /// INTID of the EL1 physical timer (a PPI).
    pub ptimer_intid: u32,
    /// INTID of the EL2 physical timer (a PPI).
    pub hyp_timer_intid: u32,
    /// INTID of the GIC maintenance interrupt (a PPI).
    pub maintenance_intid: u32,
    /// GIC architecture version: 2 or 3.
    pub gic_version: u32,
    /// [`UartKind`]
    pub uart_kind: u32,
    /// Number of the event of the CPUs' performance monitors that [`Vcpu::events`] counts (DDI 0487, D13.12), up to [`MAX_EVENT`]; 0 if no
    /// vCPU has a budget of it.
    pub event: u32,
}

/// The image as the host tool built it. It may be loaded anywhere in the board's memory where it touches no VM's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Image {
    /// Physical address at which the plan keeps room for it.
    pub base: u64,
    /// Bytes that the image takes in memory, page pool included: `image_size` of its arm64 header.
    pub size: u64,
    /// Bytes from the start of the image to the plan.
    pub plan_offset: u64,
    /// Bytes from the start of the image to the page pool: behind the last payload.
    pub page_pool_offset: u64,
    /// Colours of EL2's own pages, as in [`Region::colours`]. If it has not all, it copies itself into pages of these at start.
    pub colours: u64,
    /// Pages of the page pool: for each pCPU [`PCPU_PAGES`], for each vCPU and service thread [`VCPU_PAGES`], for each VM [`VM_PAGES`], then the
    /// stage-2 tables ([`Vm::s2_root`]), then the state of each virtio device, the registers of each, for each service thread
    /// [`ServiceThread::pages`]. With [`colours`](Self::colours) EL2 and the plan follow, and each part of them starts at a multiple of 64 pages.
    pub page_pool_pages: u32,
    /// [`Profile`] of the EL2 in the image.
    pub profile: u32,
}

/// A range of the board's memory that the plan counts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Memory {
    /// Physical address.
    pub base: u64,
    /// Bytes.
    pub size: u64,
}

/// Service class of a VM, as number in [`Vm::class`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Class {
    /// Manages the board.
    Management = 0,
    /// Ordinary guest.
    General = 1,
    /// Short, bounded exits.
    SoftRealtime = 2,
    /// No exits in steady state (with a vGIC as stated deviation: one for each interrupt).
    HardRealtime = 3,
}

/// Policy for a crash of a VM, as number in [`Vm::crash`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Crash {
    /// The VM stays stopped.
    Halt = 0,
    /// The VM starts again from its pristine payloads, at most [`Vm::restarts`] times in
    /// [`Vm::restart_seconds`].
    Restart = 1,
    /// The VM stays stopped, and the VM [`Vm::notify`] is told.
    Notify = 2,
}

/// [`Vm::flags`]: seeds are the same at every boot.
pub const VM_DETERMINISTIC: u16 = 1;
/// [`Vm::flags`]: the EL1 physical timer is the VM's own (else EL2 emulates it). Pinned vCPUs only.
pub const VM_OWN_PTIMER: u16 = 2;
/// [`Vm::flags`]: the virtual counter stands still while the VM is paused.
pub const VM_TIME_STOPS: u16 = 4;
/// [`Vm::flags`]: it has pages of the same colours as others, which have this flag, too. VMs without it share a colour with nobody, if one of
/// the two does not have all colours.
pub const VM_SHARES_COLOURS: u16 = 64;
/// [`Vm::flags`]: it has the debug registers of its vCPUs: breakpoints, watchpoints and software step. Not where software step gets the CPU back
/// (`reclaim`). From the profile [`Io`](Profile::Io) on.
pub const VM_DEBUG: u16 = 128;

/// A virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Vm {
    /// Name, ASCII letters, digits and '-', padded with 0.
    pub name: [u8; NAME],
    /// [`Class`]
    pub class: u16,
    /// [`Crash`]
    pub crash: u16,
    /// [`VM_DETERMINISTIC`] and others, or 0.
    pub flags: u16,
    /// Hardware tag of its stage-2 translations; from 1, no two alike.
    pub vmid: u16,
    /// With [`Crash::Restart`]: most restarts in `restart_seconds`; else 0.
    pub restarts: u16,
    /// With [`Crash::Restart`]: seconds in which restarts are counted; else 0.
    pub restart_seconds: u16,
    /// With [`Crash::Notify`]: index of the VM that is told; else [`NONE`].
    pub notify: u16,
    /// SPI of this VM's vGIC by which it is told of other VMs' crashes; 0 if it is told of none.
    pub event_intid: u16,
    /// [`InterruptMode`]
    pub interrupts: u16,
    /// [`Reclaim`]; 0 with [`InterruptMode::Vgic`].
    pub reclaim: u16,
    /// Most restarts in `reset_seconds` because the guest asks for a reset; 0: no limit.
    pub resets: u16,
    /// Seconds in which resets are counted; 0 without a limit.
    pub reset_seconds: u16,
    /// IPA at which its boot vCPU starts, in its RAM.
    pub entry: u64,
    /// x0 at the start: IPA of its device tree, or 0.
    pub boot_arg: u64,
    /// IPA of its distributor (64 KiB).
    pub gicd: u64,
    /// GICv3: IPA of its redistributors (128 KiB for each vCPU). GICv2: 0.
    pub gicr: u64,
    /// GICv2: IPA of its CPU interface (8 KiB, a [`RegionKind::Gicv`] region). GICv3: 0.
    pub gicc: u64,
    /// IPA of the page in which EL2 tells stolen time (a [`RegionKind::StolenTime`] region; 64 bytes for each vCPU, DEN0057A 4.2); 0 if the VM is not told.
    pub stolen_time: u64,
    /// SPIs of its vGIC: a multiple of 32, at most [`MAX_SPIS`].
    pub spis: u32,
    /// Pages of its stage-2 tables, root included.
    pub s2_pages: u32,
    /// Offset in the image of the root of its stage-2 tables; the others follow, those of a VM whose RAM keeps to colours in pages of these.
    pub s2_root: u64,
}

/// Kind of a region, as number in [`Region::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RegionKind {
    /// Memory of one VM; scrubbed before the VM runs.
    Ram = 0,
    /// Registers of a device that belongs to one VM.
    Device = 1,
    /// Memory that several VMs map, because the description says so.
    Shared = 2,
    /// GICv2: the virtual CPU interface of the board, or with [`InterruptMode::GpptV2`] the physical one, at the place of the VM's CPU
    /// interface.
    Gicv = 3,
    /// The page in which EL2 tells stolen time: one page, read only. `pa` is 0 in the plan; EL2 puts there the
    /// page [`STOLEN_TIME_PAGE`] of the VM from its page pool.
    StolenTime = 4,
    /// The registers of a [`VirtioDevice`]: one page, read only. `pa` is 0 in the plan; EL2 puts there a page of its
    /// page pool.
    VirtioRegisters = 5,
    /// The page with the word by which a VM is asked to stop ([`Stop::word`]): one page, read only. `pa` is 0 in the plan; EL2 puts there the page
    /// [`STOLEN_TIME_PAGE`] of the VM from its page pool, in which it tells the VM what else it has to tell.
    StopWord = 6,
}

/// [`Region::access`]: the guest may read. Always set.
pub const ACCESS_READ: u16 = 1;
/// [`Region::access`]: the guest may write.
pub const ACCESS_WRITE: u16 = 2;
/// [`Region::access`]: the guest may fetch instructions. Set for RAM only.
pub const ACCESS_EXECUTE: u16 = 4;
/// [`Region::access`]: Normal Non-cacheable by stage 2. For shared memory only, and then in every VM that maps it.
pub const ACCESS_UNCACHED: u16 = 8;

/// A range of a VM's IPA space that stage 2 maps. All numbers are multiples of [`PAGE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Region {
    /// Index of the VM.
    pub vm: u16,
    /// [`RegionKind`]
    pub kind: u16,
    /// [`ACCESS_READ`] and others.
    pub access: u16,
    /// For shared memory its number, from 0, the same in every VM that maps it; [`NONE`] for others.
    pub shared: u16,
    /// Guest address.
    pub ipa: u64,
    /// Physical address. A multiple of [`COLOUR_GROUP`], where not all pages from there on are the region's.
    pub pa: u64,
    /// Bytes.
    pub size: u64,
    /// Which pages of memory are the region's: bit `n` those whose number (address by [`PAGE`]) is `n` modulo 64. [`ALL_COLOURS`], but for RAM
    /// and shared memory that keep to some colours of a cache.
    pub colours: u64,
}

/// Most colours of memory: bits of [`Region::colours`].
pub const MAX_COLOURS: u32 = u64::BITS;
/// [`Region::colours`] of a region whose pages follow one another.
pub const ALL_COLOURS: u64 = u64::MAX;
/// Bytes of the 64 pages that have a bit each in [`Region::colours`].
pub const COLOUR_GROUP: u64 = MAX_COLOURS as u64 * PAGE;

/// A payload: bytes of the image that EL2 copies into the RAM of a VM before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Payload {
    /// Index of the VM.
    pub vm: u16,
    /// Must be 0.
    pub reserved: [u16; 3],
    /// Bytes from the start of the image; a multiple of 8.
    pub offset: u64,
    /// Bytes; a multiple of 8 (padded with 0 by the image builder).
    pub size: u64,
    /// IPA to which they are copied; a multiple of 8.
    pub ipa: u64,
}

/// Kind of a random number in a guest's device tree, as number in [`Seed::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum SeedKind {
    /// `/chosen/rng-seed`, 64 bytes.
    Rng = 0,
    /// `/chosen/kaslr-seed`, 8 bytes.
    Kaslr = 1,
}

/// A property of a guest's device tree that EL2 fills with random bytes at boot. If the board offers
/// none, EL2 turns the property into FDT_NOP tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Seed {
    /// Index of the VM.
    pub vm: u16,
    /// [`SeedKind`]
    pub kind: u16,
    /// Bytes of the value: 64 or 8.
    pub size: u32,
    /// IPA of the FDT_PROP token; the value starts 12 bytes behind it. A multiple of 4.
    pub ipa: u64,
}

/// [`Irq::flags`]: edge-triggered (else level-sensitive).
pub const IRQ_EDGE: u16 = 1;
/// [`Irq::flags`]: no device of the board has it; EL2 makes it pending, for a [`Doorbell`] or a [`VirtioDevice`]. With [`IRQ_EDGE`].
pub const IRQ_DOORBELL: u16 = 2;

/// A physical SPI that belongs to a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Irq {
    /// Index of the VM.
    pub vm: u16,
    /// INTID that the guest sees (an SPI).
    pub vintid: u16,
    /// INTID on the board (an SPI).
    pub pintid: u16,
    /// [`IRQ_EDGE`] and others, or 0.
    pub flags: u16,
}

/// Kind of a device that EL2 emulates, as number in [`Device::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum DeviceKind {
    /// PL011 on the multiplexed console (4 KiB).
    Pl011 = 0,
    /// PL031 real-time clock (4 KiB).
    Pl031 = 1,
    /// SBSA generic watchdog: its control frame (4 KiB), then its refresh frame (4 KiB). The interrupt is
    /// WS0; WS1 is a crash of the VM.
    Watchdog = 2,
}

/// A device that EL2 emulates for a VM: at most one of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Device {
    /// Index of the VM.
    pub vm: u16,
    /// [`DeviceKind`]
    pub kind: u16,
    /// Its interrupt (an SPI of the VM's vGIC).
    pub vintid: u16,
    /// Must be 0.
    pub reserved: u16,
    /// IPA of its registers.
    pub ipa: u64,
    /// Bytes of its registers.
    pub size: u64,
}

/// A write that quiets a passed-through device before its VM starts again: no interrupts, nothing
/// under way. Rows of a device in the order in which EL2 performs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Quiet {
    /// Index of the VM.
    pub vm: u16,
    /// Bytes of the register: 1, 2 or 4.
    pub width: u16,
    /// Value that is written.
    pub value: u32,
    /// Physical address of the register, in a [`RegionKind::Device`] region of the VM.
    pub pa: u64,
}

/// An SMC of the vendor, the SoC or a trusted OS that a VM may make. EL2 hands it to the firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Call {
    /// Index of the VM.
    pub vm: u16,
    /// Must be 0.
    pub reserved: u16,
    /// Function identifier (DEN0028): a fast call of the SiP, OEM or trusted-OS ranges.
    pub function: u32,
}

/// A doorbell: an edge-triggered interrupt of one VM that another one rings (`docs/adr/0019-doorbells.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Doorbell {
    /// Index of the VM that rings.
    pub vm: u16,
    /// Index of the VM that hears it.
    pub to: u16,
    /// Its INTID there (an SPI).
    pub vintid: u16,
    /// The same for a GPPT VM, which has an [`Irq`] with it. Else 0.
    pub pintid: u16,
    /// IPA of the page by which it is rung.
    pub ipa: u64,
    /// Nanoseconds from one interrupt to the next at least: [`MIN_APART`] to [`MAX_APART`].
    pub apart: u64,
}

#[cfg(test)]
mod tests;

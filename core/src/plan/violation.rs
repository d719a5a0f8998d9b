//! The invariants of a plan, and the report that one does not hold.

use bulkhead_abi::plan::TableId;

use super::view::{IO, MANAGED};

/// Defines [`Invariant`] with a name and a sentence for each variant, in groups.
macro_rules! invariants {
    (
        plan { $($plan:ident = $plan_name:literal : $plan_meaning:literal,)* }
        board { $($board:ident = $board_name:literal : $board_meaning:literal,)* }
        io { $($io:ident = $io_name:literal : $io_meaning:literal,)* }
        managed { $($managed:ident = $managed_name:literal : $managed_meaning:literal,)* }
    ) => {
        /// A property that every plan has. The name is what EL2 prints when it refuses a plan.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Invariant {
            $(#[doc = $plan_meaning] $plan,)*
            $(#[doc = $board_meaning] $board,)*
            $(#[doc = $io_meaning] $io,)*
            $(#[doc = $managed_meaning] $managed,)*
        }

        impl Invariant {
            /// All invariants, by number.
            pub const ALL: &'static [Self] =
                &[$(Self::$plan,)* $(Self::$board,)* $(Self::$io,)* $(Self::$managed,)*];

            /// Invariants of the plan alone; the others relate it to the board.
            pub const OF_PLAN: &'static [Self] = &[$(Self::$plan,)* $(Self::$io,)* $(Self::$managed,)*];

            /// Whether this is an invariant of the plan alone.
            pub const fn is_of_plan(self) -> bool {
                !matches!(self, $(Self::$board)|*)
            }

            /// The short name, in kebab-case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$plan => $plan_name,)*
                    $(Self::$board => $board_name,)*
                    $(Self::$io => $io_name,)*
                    $(Self::$managed => $managed_name,)*
                }
            }

            /// The bytes of [`Self::name`] as EL2 has them in a profile: those before `io` break no invariant of virtio devices, and those
            /// before `managed` none of rights, and have no name of one.
            pub fn name_for<const PROFILE: u32>(self) -> &'static [u8] {
                const ALL: &str = concat!($($plan_name, "\n",)* $($board_name, "\n",)*);
                const WITH_IO: &str =
                    concat!($($plan_name, "\n",)* $($board_name, "\n",)* $($io_name, "\n",)*);
                const WITH_RIGHTS: &str = concat!(
                    $($plan_name, "\n",)* $($board_name, "\n",)* $($io_name, "\n",)* $($managed_name, "\n",)*
                );
                let names = match PROFILE {
                    MANAGED => WITH_RIGHTS,
                    IO => WITH_IO,
                    _ => ALL,
                };
                line(names, self as usize)
            }

            /// The property as a sentence. Only the host tool shows it.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$plan => $plan_meaning,)*
                    $(Self::$board => $board_meaning,)*
                    $(Self::$io => $io_meaning,)*
                    $(Self::$managed => $managed_meaning,)*
                }
            }
        }
    };
}

/// Line `number` of a list of names. A table of texts would be larger than the names.
fn line(list: &'static str, number: usize) -> &'static [u8] {
    let mut lines = list.as_bytes().split(|byte| *byte == b'\n');
    lines.nth(number).unwrap_or_default()
}

invariants! {
    plan {
        PlanLength = "plan-length": "The plan has room for its header and starts at a multiple of 8.",
        PlanMagic = "plan-magic": "The plan starts with the bytes BULKHEAD.",
        PlanVersion = "plan-version": "The layout version is the one that this build knows.",
        HeaderSize = "header-size": "The header is as long as this version's header.",
        PlanSize = "plan-size": "The plan ends with its last table, within its limit and within the bytes at hand.",
        TableLayout = "table-layout": "Each table starts where the one before ends.",
        PlanChecksum = "plan-checksum": "The checksum matches the content.",
        TableCount = "table-count": "No table has more rows than its limit, nor have vCPUs and service threads together; memory, pCPUs, VMs and vCPUs have at least one.",
        TableOrder = "table-order": "Rows that belong to a VM are sorted by VM, regions also by IPA, and the VM exists. Virtio devices ascend by VM and IPA, backends by VM; virtqueues are sorted by device, and it exists.",
        ReservedZero = "reserved-zero": "Reserved fields are 0.",
        GicVersion = "gic-version": "The interrupt controller is a GICv2 or a GICv3.",
        UartKind = "uart-kind": "The console UART is a PL011, one of Cadence's, NXP's i.MX, Amlogic's Meson or the 8250's family, and EL2 is built for it.",
        El2Colours = "el2-colours": "EL2 has a colour of memory at least; if it has not all, they are the same part of each cache, and no VM has memory of one of these unless it says so.",
        BoardFrame = "board-frame": "The frames of GIC, UART and clock have the alignment and the size that their hardware has; those of the other GIC version are 0.",
        BoardFrameOverlap = "board-frame-overlap": "The frames of GIC, UART and clock overlap neither each other nor memory.",
        BoardIntid = "board-intid": "The console UART has an SPI; the virtual, physical and EL2 timers and GIC maintenance have four different PPIs.",
        MemoryRange = "memory-range": "Ranges of memory are whole pages, not empty, ascending and disjoint.",
        PcpuRelease = "pcpu-release": "A CPU is started by firmware, or waits for an address in eight bytes of memory that nobody else has.",
        PcpuMpidr = "pcpu-mpidr": "The MPIDR of each pCPU has affinity fields only and is its alone.",
        PcpuCache = "pcpu-cache": "Each pCPU has a cache of 2 to 64 colours, a power of two, which is that of all pCPUs with the same one; or none has, and nothing keeps to colours.",
        PcpuService = "pcpu-service": "Exactly one pCPU drains the console.",
        VcpuPolicy = "vcpu-policy": "The CPU policy of a vCPU is one of the known ones; a service thread is a server or fair.",
        VcpuTime = "vcpu-time": "Servers and fair vCPUs, and service threads, have a period of 100 us to 10 s and a budget of 1 ns up to all of it; pinned ones have neither.",
        VcpuWeight = "vcpu-weight": "Fair vCPUs and service threads weigh 1 to 1000, others nothing.",
        VcpuPlacement = "vcpu-placement": "Each vCPU starts on a pCPU of the plan; a pinned one has it alone.",
        VcpuPool = "vcpu-pool": "The pool of a fair vCPU has its own pCPU, and none that is pinned to a vCPU or that the plan does not have; others have no pool.",
        PcpuCallSpi = "pcpu-call-spi": "pCPUs call each other by SPIs that nobody else has, two for each, if a VM sends SGIs that EL2 does not see; else by SGIs.",
        PcpuVcpus = "pcpu-vcpus": "A pCPU has 8 vCPUs at most, a service thread counted as one.",
        PcpuSchedulable = "pcpu-schedulable": "The servers of a pCPU get their budgets in each period, EL2's own time included, whatever everybody does.",
        VcpuCount = "vcpu-count": "Each VM has 1 to 8 vCPUs.",
        VcpuMpidr = "vcpu-mpidr": "The MPIDR that a vCPU shows is its number in its VM.",
        VmName = "vm-name": "Names are letters, digits and '-', padded with 0.",
        VmNameUnique = "vm-name-unique": "No two VMs have the same name.",
        VmClass = "vm-class": "The class of a VM is one of the known ones.",
        VmCrash = "vm-crash": "The crash policy of a VM is one of the known ones.",
        VmRestart = "vm-restart": "A VM that restarts after a crash has a limit and the seconds for which it holds; others have neither.",
        VmDebug = "vm-debug": "A VM has debug registers where software step does not get its CPU back (`reclaim`), from the profile `io` on.",
        VmPmu = "vm-pmu": "A VM that takes its interrupts itself has no performance monitors; others may have them from the profile `io` on.",
        VmReset = "vm-reset": "A VM has a limit of resets and the seconds for which it holds, or neither.",
        VmNotify = "vm-notify": "A VM whose crash is told names another VM that is told; others name none.",
        VmEvent = "vm-event": "A VM has an interrupt for crashes of others if, and only if, it is told of one's.",
        VmFlags = "vm-flags": "No unknown flag of a VM is set.",
        VmColours = "vm-colours": "No two VMs have memory of one colour, if one of them does not have all colours, unless both map it, both say so, or they meet in no cache.",
        VmOwnTimer = "vm-own-timer": "The physical timer is given to VMs with pinned vCPUs only.",
        VmInterrupts = "vm-interrupts": "The interrupt mode of a VM is one of the known ones; those without the virtual GIC are of the board's GIC version and have pinned vCPUs only.",
        VmReclaim = "vm-reclaim": "How a pCPU is got back is said for the interrupt modes in which a guest can prevent it; for others at most that it is by an event of the firmware.",
        VmInterruptsAlone = "vm-interrupts-alone": "A VM that sends SGIs that EL2 does not see is the only GPPT VM.",
        VmInterruptsBuilt = "vm-interrupts-built": "The interrupt mode of a VM is one that this build of EL2 has: the virtual GIC; or another one for a VM of one vCPU with its own physical timer, with the INTIDs of the board, and told of nobody's crash; without a watchdog and on a pCPU that does not drain the console, where it is got back in another way than by a Group 0 interrupt.",
        VmStolenTime = "vm-stolen-time": "A VM that is told stolen time has one page for it, at the address that its row names; others have none.",
        VmVmid = "vm-vmid": "The VMID of a VM is its index plus one.",
        VmEntry = "vm-entry": "A VM starts at a multiple of 4 inside something that was loaded for it.",
        VmBootArg = "vm-boot-arg": "What a VM gets in x0 is 0 or the start of something that was loaded for it.",
        VmStage2Pages = "vm-stage2-pages": "The stage-2 tables have exactly the pages that the regions of the VM need.",
        VmStage2Place = "vm-stage2-place": "The stage-2 tables of VMs follow one another in the page pool, each in the colours of the VM's RAM.",
        VgicFrame = "vgic-frame": "The frames of the virtual GIC are those of the board's version, aligned to 64 KiB and in the IPA space; those of the other version are 0.",
        VgicSpis = "vgic-spis": "The virtual GIC has SPIs in groups of 32, within its limit.",
        RegionKind = "region-kind": "The kind of a region is one of the known ones.",
        RegionAccess = "region-access": "RAM may be read, written and executed; devices and the CPU interface read and written; shared memory read, perhaps written and perhaps not cached; stolen time and registers of virtio devices read.",
        RegionRange = "region-range": "Regions are whole pages, not empty, within the IPA space and the physical address space.",
        RegionShared = "region-shared": "Shared memory has a number, counted from 0, with one place, size, cacheability and colours for all who map it; other regions have none.",
        RegionColours = "region-colours": "RAM and shared memory have a colour of memory at least, and start at a multiple of 64 pages if they have not all; other regions have all.",
        RegionCaches = "region-caches": "What keeps to colours has the same part of the cache of each pCPU on which its VM runs or is served.",
        RegionMemory = "region-memory": "RAM and shared memory lie in the board's memory.",
        RegionDevice = "region-device": "Devices lie outside the board's memory and outside the frames that EL2 uses.",
        RegionGicv = "region-gicv": "On a GICv2 each VM maps the first page of the board's virtual CPU interface, or of the physical one if it is a GPPT VM, once, at its CPU interface; on a GICv3 none does.",
        PaOverlap = "pa-overlap": "No two regions have a physical page in common, except the same shared memory, and the virtual CPU interface, in two VMs.",
        IpaOverlap = "ipa-overlap": "Regions, virtual GIC, emulated devices and the pages of doorbells and backends of a VM do not overlap in its IPA space.",
        ImageBase = "image-base": "The image starts at a multiple of 2 MiB, low enough for EL2's own map.",
        ImageMemory = "image-memory": "The image lies in one range of the board's memory.",
        ImageOverlap = "image-overlap": "The image and its pool overlap no region of a VM.",
        ImageSize = "image-size": "The image ends with its pool.",
        Profile = "profile": "EL2 has the profile that the plan names, which has all that the plan uses.",
        PlanOffset = "plan-offset": "The plan starts at a page of the image behind its first and ends in EL2's window.",
        PagePoolOffset = "pool-offset": "The pool starts at the page behind the last payload.",
        PagePoolPages = "pool-pages": "The pool has exactly the pages that pCPUs, vCPUs, VMs, stage-2 tables, service threads and virtio devices need, 16384 at most.",
        PayloadOffset = "load-offset": "Each payload starts at the page of the image behind the one before, or is one that came before.",
        PayloadSize = "load-size": "Payloads are not empty and a multiple of 8 bytes long.",
        PayloadTarget = "load-target": "Payloads go to a multiple of 8, wholly into one piece of RAM of their VM.",
        PayloadOverlap = "load-overlap": "No two payloads of a VM overlap in its IPA space.",
        SeedKind = "seed-kind": "Seeds are of a known kind, one of each kind for a VM.",
        SeedSize = "seed-size": "Seeds have the size that their kind has.",
        SeedTarget = "seed-target": "Seeds lie at a multiple of 4 inside what was loaded at the boot argument of their VM.",
        SeedOverlap = "seed-overlap": "No two seeds of a VM overlap.",
        IrqVintid = "irq-vintid": "The INTIDs that a VM sees are SPIs of its virtual GIC.",
        IrqPintid = "irq-pintid": "The physical INTIDs of passed-through devices are SPIs below 288, which is how many EL2 keeps track of.",
        IrqFlags = "irq-flags": "No unknown flag of an interrupt is set; those for doorbells are edge-triggered.",
        PintidShared = "pintid-shared": "No physical interrupt has two owners; EL2's own belong to no VM.",
        VintidShared = "vintid-shared": "No two sources of a VM have the same INTID, virtio devices and news for backends among them.",
        DeviceKind = "device-kind": "Emulated devices are of a known kind, one of each kind for a VM.",
        DeviceFrame = "device-frame": "Emulated devices have the pages of registers that their kind has, in the IPA space.",
        QuietWidth = "quiet-width": "Registers that are written to quiet a device have 1, 2 or 4 bytes, and the value fits.",
        QuietTarget = "quiet-target": "Registers that are written to quiet a device are aligned and lie in a device of the VM.",
        CallFunction = "call-function": "Calls that a VM may make are fast calls of the SiP, OEM or trusted-OS ranges.",
        CallOrder = "call-order": "The calls of a VM ascend, and none is named twice.",
        DoorbellVms = "doorbell-vms": "A doorbell is rung by one VM and heard by another.",
        DoorbellPage = "doorbell-page": "A doorbell, and EL2 by a backend, is rung by a page of the IPA space.",
        DoorbellApart = "doorbell-apart": "A doorbell is heard once in 10 us to 1 s at most.",
        DoorbellPhysical = "doorbell-physical": "A GPPT VM hears a doorbell by an SPI of the board with the same INTID, others by one or none, as virtio devices do; it is for this doorbell or device alone, and that of its VM.",
    }
    board {
        BoardTree = "board-tree": "The board's device tree has no more reserved ranges than EL2 keeps track of.",
        BoardMemory = "board-memory": "The board has the memory that the plan counts on.",
        BoardReserved = "board-reserved": "What the board's firmware reserves is used by no VM and not by EL2.",
        BoardCpu = "board-cpu": "The board has every CPU of the plan, started as the plan says, and the one that began is among them.",
        BoardGicd = "board-gicd": "The board's distributor is where the plan has it.",
        BoardGicr = "board-gicr": "The board's redistributors are where the plan has them.",
        BoardGicc = "board-gicc": "The board's CPU interface is where the plan has it.",
        BoardGich = "board-gich": "The board's virtual interface control is where the plan has it.",
        BoardGicv = "board-gicv": "The board's virtual CPU interface is where the plan has it.",
        BoardRtc = "board-rtc": "The board's clock is where the plan has it.",
        BoardUart = "board-uart": "The board's console UART is where the plan has it.",
        BoardTimer = "board-timer": "The board's timers and GIC maintenance have the interrupts of the plan.",
        BoardImage = "board-image": "The image was loaded into the board's memory, outside the memory of every VM.",
    }
    io {
        ServicePlacement = "service-placement": "A service thread runs on a pCPU of the plan to which no vCPU is pinned, no vCPU of a hard real-time VM may come, and no other service thread belongs.",
        ServicePages = "service-pages": "A service thread has exactly the pages that its state, its devices and its tables need.",
        BoardEvent = "board-event": "The plan names the event that is counted if, and only if, a vCPU has a budget of it.",
        VcpuEvents = "vcpu-events": "A budget of events is at most 2^31 in a period of 100 us to 10 s, and of a vCPU with the virtual GIC.",
        PmuInterrupt = "pmu-interrupt": "A pCPU to which a vCPU with a budget of events or with performance monitors may come has an interrupt of its own ones that nothing else has; without such vCPUs none has.",
        Backend = "backend": "A backend is a VM with the virtual GIC, or EL2, which has nothing by which it is told.",
        BackendNews = "backend-news": "The page with the news of a backend lies in the RAM of its VM, where nothing is loaded.",
        VirtioVms = "virtio-vms": "A virtio device belongs to a VM with the virtual GIC, or is polled, and a backend in another VM, or EL2, serves it.",
        VirtioService = "virtio-service": "The service thread of a virtio device is in the plan.",
        VirtioConsole = "virtio-console": "What EL2 serves is a console: one for each VM at most, with two queues, and without window, config, flags, `poll` or features of its own; one with the control port has six, and MULTIPORT with a config of two ports.",
        VirtioType = "virtio-type": "A virtio device is of a type that another VM can serve: its driver does not write to its config, and its backend needs no memory of the guest.",
        VirtioNumber = "virtio-number": "Virtio devices of a backend have different numbers below 64, and those of one type different units.",
        VirtioFlags = "virtio-flags": "No unknown flag of a virtio device or of a virtqueue is set.",
        VirtioConfig = "virtio-config": "The config of a virtio device has 64 bytes at most, and 0 in those that it does not have.",
        VirtioFeatures = "virtio-features": "A virtio device offers VERSION_1, of the other features of the transport those that EL2 has, without EVENT_IDX where it is polled, and none by which the driver writes to the config.",
        VirtioPoll = "virtio-poll": "A polled virtio device is looked at once in 50 us to 1 s, and has no interrupt.",
        VirtioRegisters = "virtio-registers": "Each virtio device has a page of registers of its own in the IPA space of its VM, which the plan gives no place.",
        VirtioWindow = "virtio-window": "The window of a virtio device is whole pages in the RAM of the backend's VM, apart from other windows, from the news, and from what is loaded.",
        VirtioQueues = "virtio-queues": "A virtio device has 1 to 8 queues.",
        VirtqueueSize = "virtqueue-size": "A virtqueue and its slots are a power of two in number, 2 to 256, and a slot is a multiple of 16 bytes long.",
        VirtqueueRequest = "virtqueue-request": "The largest legal request of a virtqueue is not empty, and fits its slots.",
        VirtqueueWindow = "virtqueue-window": "The backend's queues and their slots lie at multiples of 16 in the window of their device, behind its first page, apart from each other.",
    }
    managed {
        Rights = "rights": "Rights over a VM are known ones, `list` among them; a locked VM grants `list` and `stats` only. At most 4 VMs have some.",
        ManagerPort = "manager-port": "A VM that has rights has a console with the control port, and nobody else has one.",
        Stop = "stop": "A VM is asked to stop by an SPI of its virtual GIC or by a word in a page of its own that the plan gives no place, and has 10 ms to an hour for it.",
    }
}

/// A violated invariant and the row that shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant that does not hold.
    pub invariant: Invariant,
    /// Table of the row; `None` if the header violates the invariant.
    pub table: Option<TableId>,
    /// Index of the row in its table.
    pub row: u16,
    /// Index of the other row of a conflict, in the same table, if there is one.
    pub other: Option<u16>,
}

impl Violation {
    /// A violation in the header.
    pub const fn header(invariant: Invariant) -> Self {
        Self {
            invariant,
            table: None,
            row: 0,
            other: None,
        }
    }
}

/// Defines the names of tables, of which those of virtio devices come last.
macro_rules! table_names {
    (plan { $($table:ident = $name:literal,)* } io { $($io:ident = $io_name:literal,)* }
     managed { $($managed:ident = $managed_name:literal,)* }) => {
        /// Name of a table in messages.
        pub const fn table_name(table: TableId) -> &'static str {
            match table {
                $(TableId::$table => $name,)*
                $(TableId::$io => $io_name,)*
                $(TableId::$managed => $managed_name,)*
            }
        }

        /// The bytes of [`table_name`] as EL2 has them, as [`Invariant::name_for`].
        pub fn table_name_for<const PROFILE: u32>(table: TableId) -> &'static [u8] {
            const ALL: &str = concat!($($name, "\n",)*);
            const WITH_IO: &str = concat!($($name, "\n",)* $($io_name, "\n",)*);
            const WITH_RIGHTS: &str =
                concat!($($name, "\n",)* $($io_name, "\n",)* $($managed_name, "\n",)*);
            let names = match PROFILE {
                MANAGED => WITH_RIGHTS,
                IO => WITH_IO,
                _ => ALL,
            };
            line(names, table as usize)
        }
    };
}

table_names! {
    plan {
        Memory = "memory",
        Pcpus = "pcpu",
        Vms = "vm",
        Vcpus = "vcpu",
        Regions = "region",
        Payloads = "load",
        Seeds = "seed",
        Irqs = "irq",
        Devices = "device",
        Quiets = "quiet",
        Calls = "call",
        Doorbells = "doorbell",
    }
    io {
        ServiceThreads = "service-thread",
        Backends = "backend",
        VirtioDevices = "virtio-device",
        Virtqueues = "virtqueue",
    }
    managed {
        Rights = "right",
        Stops = "stop",
    }
}

/// Result of a check.
pub type Check = Result<(), Violation>;

/// The location of a check, which turns a condition into a [`Check`].
#[derive(Clone, Copy)]
pub(super) struct At {
    table: Option<TableId>,
    row: u16,
    other: Option<u16>,
}

impl At {
    /// The header of the plan.
    pub(super) const HEADER: Self = Self {
        table: None,
        row: 0,
        other: None,
    };

    /// Row `row` of `table`.
    pub(super) const fn row(table: TableId, row: usize) -> Self {
        Self {
            table: Some(table),
            row: row as u16,
            other: None,
        }
    }

    /// Adds the other row of a conflict.
    pub(super) const fn and(self, other: usize) -> Self {
        Self {
            other: Some(other as u16),
            ..self
        }
    }

    /// Fails with `invariant` unless `condition` holds.
    #[inline]
    pub(super) const fn ensure(self, condition: bool, invariant: Invariant) -> Check {
        if condition {
            Ok(())
        } else {
            Err(self.breaks(invariant))
        }
    }

    /// The violation of `invariant` at this location.
    pub(super) const fn breaks(self, invariant: Invariant) -> Violation {
        Violation {
            invariant,
            table: self.table,
            row: self.row,
            other: self.other,
        }
    }
}

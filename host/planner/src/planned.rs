//! Parts of a system as planned.

use bulkhead_abi::plan::{Class, DeviceKind, Doorbell, IRQ_DOORBELL, IRQ_EDGE, Irq, Stop};
use bulkhead_abi::shared_page::stop;
use bulkhead_channel::Shape;
use bulkhead_core::gppt::{Mode, Reclaim};

use bulkhead_model::board::PassthroughDevice;
use bulkhead_model::describe::{ChannelEnd, CpuTime, CrashSpec, Deviation, Limit, System};

use crate::file::Content;

/// A payload of a VM in the image.
#[derive(Clone, Debug)]
pub struct PlannedPayload {
    /// Name: "kernel", "program", "device tree".
    pub what: &'static str,
    /// IPA to which EL2 copies it.
    pub ipa: u64,
    /// Content, the same for all VMs that have it from one file.
    pub bytes: Content,
    /// Bytes from the start of the image.
    pub offset: u64,
}

/// A range that a VM's stage 2 maps.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// Name: "RAM", the name of shared memory, the path of a device.
    pub what: String,
    /// In the words of the plan.
    pub region: bulkhead_abi::plan::Region,
}

/// A device that EL2 emulates for a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmulatedDevice {
    /// Kind of the device.
    pub kind: DeviceKind,
    /// IPA of its registers.
    pub ipa: u64,
    /// Bytes of its registers.
    pub size: u64,
    /// Its interrupt, an SPI.
    pub intid: u32,
}

impl EmulatedDevice {
    /// Name for messages.
    pub fn called(&self) -> &'static str {
        match self.kind {
            DeviceKind::Pl011 => "the console (PL011)",
            DeviceKind::Pl031 => "the clock (PL031)",
            DeviceKind::Watchdog => "the watchdog (SBSA)",
        }
    }
}

/// The interrupt controller of a guest.
#[derive(Clone, Copy, Debug)]
pub struct GuestGic {
    /// Version: 2 or 3.
    pub version: u32,
    /// IPA and size of the distributor.
    pub gicd: (u64, u64),
    /// IPA and size of the redistributors (GICv3) or of the CPU interface (GICv2).
    pub interface: (u64, u64),
}

/// A doorbell as planned.
#[derive(Clone, Debug)]
pub struct PlannedDoorbell {
    /// Name.
    pub name: String,
    /// Index of the VM that rings.
    pub from: usize,
    /// Index of the VM that hears it.
    pub to: usize,
    /// IPA of the page by which it is rung; final once that VM is arranged.
    pub ipa: u64,
    /// INTID by which it is heard.
    pub intid: u32,
    /// The SPI of the board that a ring makes pending, if one does: for a GPPT VM the same INTID.
    pub spi: Option<u32>,
    /// Nanoseconds from one interrupt to the next at least.
    pub apart: u64,
    /// Name of the shared memory that it is about.
    pub shared: Option<String>,
    /// Whether it is one of a channel: no table of the description.
    pub is_added: bool,
}

impl PlannedDoorbell {
    /// Its row in the plan.
    pub(super) fn row(&self) -> Doorbell {
        Doorbell {
            vm: self.from as u16,
            to: self.to as u16,
            vintid: self.intid as u16,
            pintid: self.spi.unwrap_or(0) as u16,
            ipa: self.ipa,
            apart: self.apart,
        }
    }

    /// The row of its interrupt, if that is one of the board's.
    pub(super) fn irq(&self) -> Option<Irq> {
        spi_row(self.to, self.intid, self.spi)
    }
}

/// The row of an interrupt of VM `vm` that EL2 makes pending by an SPI of the board, if it does.
pub(crate) fn spi_row(vm: usize, intid: u32, spi: Option<u32>) -> Option<Irq> {
    spi.map(|spi| Irq {
        vm: vm as u16,
        vintid: intid as u16,
        pintid: spi as u16,
        flags: IRQ_EDGE | IRQ_DOORBELL,
    })
}

/// A channel as planned.
#[derive(Clone, Debug)]
pub struct PlannedChannel {
    /// Name.
    pub name: String,
    /// Its ends.
    pub ends: [PlannedEnd; 2],
    /// Length and number of its messages.
    pub shape: Shape,
    /// Whether its memory may be cached.
    pub cacheable: bool,
}

/// An end of a channel as planned.
#[derive(Clone, Copy, Debug)]
pub struct PlannedEnd {
    /// Index of the VM.
    pub vm: usize,
    /// IPA and size of the memory that it writes, in both VMs.
    pub memory: (u64, u64),
    /// Whether it is told of messages, by a doorbell.
    pub hears: bool,
}

impl PlannedChannel {
    /// The channels of a system.
    pub(super) fn all(system: &System) -> Vec<Self> {
        let end = |end: &ChannelEnd| {
            let memory = &system.shared[end.memory];
            PlannedEnd {
                vm: end.vm,
                memory: (memory.ipa.value, memory.size.value),
                hears: end.hears,
            }
        };
        let channels = system.channels.iter().map(|channel| Self {
            name: channel.name.value.clone(),
            ends: channel.ends.each_ref().map(end),
            shape: channel.shape,
            cacheable: system.shared[channel.ends[0].memory].cacheable,
        });
        channels.collect()
    }
}

/// A VM as planned.
#[derive(Clone, Debug)]
pub struct PlannedVm {
    /// Name.
    pub name: String,
    /// Class.
    pub class: Class,
    /// Less than the class asks for.
    pub deviations: Vec<Deviation>,
    /// Numbers of its CPUs on the board, by vCPU.
    pub cpus: Vec<usize>,
    /// Share of its CPU that each vCPU may use.
    pub time: CpuTime,
    /// Reason for `time`: the class, or a line of the description.
    pub time_why: String,
    /// Most accesses to memory of each vCPU; none: no limit.
    pub accesses: Option<Accesses>,
    /// CPUs of the board to which the load balancer may move its vCPUs, besides their own.
    pub pool: Vec<usize>,
    /// Reason for its interrupt delivery.
    pub interrupts_why: String,
    /// IPA of the page in which it is told stolen time.
    pub stolen_time: Option<u64>,
    /// First instruction.
    pub entry: u64,
    /// IPA of its device tree.
    pub tree: u64,
    /// Whether its seeds are fixed.
    pub deterministic: bool,
    /// Action when it crashes.
    pub crash: CrashSpec,
    /// Limit on resets that its guest asks for; `None`: without a limit.
    pub resets: Option<Limit>,
    /// The mode of a GPPT VM; `None`: through the vGIC.
    pub gppt: Option<Mode>,
    /// Way in which EL2 gets its CPU back, where that mode leaves a choice.
    pub reclaim: Reclaim,
    /// Reason for `reclaim`: the class, or a line of the description.
    pub reclaim_why: String,
    /// Whether the physical timer is its own; else it is emulated.
    pub own_ptimer: bool,
    /// Whether its time stands still while it is paused.
    pub time_stops: bool,
    /// Whether it has debug registers.
    pub debug: bool,
    /// Whether it has performance monitors.
    pub pmu: bool,
    /// Calls of the firmware that it may make, ascending.
    pub calls: Vec<u32>,
    /// Its interrupt controller.
    pub gic: GuestGic,
    /// Devices that EL2 emulates for it.
    pub emulated: Vec<EmulatedDevice>,
    /// SPI by which it is told of other VMs' crashes.
    pub event: Option<u32>,
    /// SPIs of its vGIC.
    pub spis: u32,
    /// Pages of its stage-2 tables.
    pub s2_pages: u32,
    /// Stage 2, ascending by IPA.
    pub regions: Vec<Mapped>,
    /// Payloads that EL2 copies into its RAM.
    pub payloads: Vec<PlannedPayload>,
    /// Passed-through devices with the INTIDs that it sees.
    pub devices: Vec<(PassthroughDevice, Vec<u32>)>,
    /// Whether it starts with the board.
    pub autostart: bool,
    /// Whether no manager stops, pauses, restarts or changes it.
    pub locked: bool,
    /// How it is asked to stop; `None`: it is not.
    pub stop: Option<PlannedStop>,
    /// VMs over which it has rights, in their order, with the words for these.
    pub rights: Vec<(String, Vec<&'static str>)>,
}

/// How a VM is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedStop {
    /// The way.
    pub way: StopWay,
    /// Milliseconds after which it is ended.
    pub timeout: u32,
}

/// The way in which a VM is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopWay {
    /// By a key, which is this SPI.
    Key(u32),
    /// By a word in the page at this IPA.
    Page(u64),
}

impl PlannedStop {
    /// IPA of the word, if there is one.
    pub fn word(&self) -> Option<u64> {
        match self.way {
            StopWay::Page(page) => Some(page + stop::WORD),
            StopWay::Key(_) => None,
        }
    }

    /// The row in the plan.
    pub(super) fn row(&self, vm: usize) -> Stop {
        let (vintid, word) = match self.way {
            StopWay::Key(intid) => (intid as u16, 0),
            StopWay::Page(page) => (0, page),
        };
        Stop {
            vm: vm as u16,
            vintid,
            timeout: self.timeout,
            word,
        }
    }
}

/// Limit of accesses to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accesses {
    /// In each period.
    pub most: u32,
    /// Length of a period, in nanoseconds.
    pub period: u64,
    /// Name of the event that is counted.
    pub event: &'static str,
}

/// A pCPU as planned.
#[derive(Clone, Debug)]
pub struct PlannedCpu {
    /// Number on the board.
    pub cpu: usize,
    /// Affinity fields of its MPIDR_EL1.
    pub mpidr: u64,
    /// vCPUs that run there at first: index of the VM, number of the vCPU.
    pub vcpus: Vec<(usize, usize)>,
    /// CPU time of the service thread, if that runs there.
    pub thread: Option<CpuTime>,
    /// Whether it drains the console.
    pub service: bool,
    /// First of two SPIs by which others call it; 0: by SGIs.
    pub call_spi: u16,
    /// Interrupt of its performance monitors, if a vCPU with a budget of accesses or with monitors may come; else 0.
    pub pmu_intid: u32,
    /// Whether a vCPU may come that has more registers than most, so that switches take longer.
    pub registers: bool,
}

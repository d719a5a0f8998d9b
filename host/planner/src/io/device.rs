//! Virtio devices: what each is, and what the plan says of it.

use bulkhead_abi::plan::{
    Irq, MAX_VIRTIO_DEVICES, QUEUE_EXACT, QUEUE_REPLAY, VIRTIO_CONSOLE, VIRTIO_NO_CONSOLE,
};
use bulkhead_core::virtio::ports::{self, MULTIPORT};
use bulkhead_core::virtio::transport::feature::{EVENT_IDX, INDIRECT_DESC, RING_RESET, VERSION_1};
use bulkhead_model::describe::{Code, DiskAccess, Finding, Mac, Span, System, VmSpec};
use bulkhead_service::disk::{DISCARD, MOST_RANGES, MOST_ZEROES, SECTOR, WRITE_ZEROES};

use super::disk::Disks;
use super::mac;
use super::window::{QueueShape, lay_out};
use crate::planned::spi_row;

/// Features of the transport that each device offers.
const TRANSPORT: u64 = VERSION_1 | EVENT_IDX | INDIRECT_DESC | RING_RESET;

/// Device IDs (VIRTIO 1.2, 5).
const NETWORK: u16 = 1;
const BLOCK: u16 = 2;

/// Features of a network card (VIRTIO 1.2, 5.1.3): MTU, MAC, STATUS.
const CARD: u64 = 1 << 3 | 1 << 5 | 1 << 16;
/// Most bytes behind the Ethernet header of a frame.
const MTU: u16 = 1500;
/// Bytes of a slot for frames.
const FRAME_SLOT: u32 = 2048;
/// Most bytes of a buffer for received frames. The largest frame is shorter, but drivers may offer whole pages.
const RECEIVED: u32 = 4096;

/// Features of a disk (VIRTIO 1.2, 5.2.3): SIZE_MAX, SEG_MAX, BLK_SIZE, FLUSH.
const DISK: u64 = 1 << 1 | 1 << 2 | 1 << 6 | 1 << 9;
/// What a disk that can be written offers besides.
const WRITABLE: u64 = DISCARD | WRITE_ZEROES;
/// Most sectors of a range that is discarded, which the service VM checks and does nothing about: what a request of Linux can have, in bytes of 32 bits.
const DISCARDED: u32 = u32::MAX / SECTOR as u32;
/// VIRTIO_BLK_F_RO.
const READ_ONLY: u64 = 1 << 5;
/// Bytes of a slot for requests of disks.
const DISK_SLOT: u32 = 4096;
/// Bytes of the header of a request, and of its status.
const HEADER: u32 = 16;
const STATUS: u32 = 1;
/// Most bytes of a segment of a request: a page, than which Linux takes nothing smaller.
const SEGMENT: u32 = 4096;
/// Where its config has the limits of DISCARD and WRITE_ZEROES.
const BEHIND_QUEUES: usize = 36;
/// Slots of each queue.
const SLOTS: u16 = 64;
/// Most segments of a request, so that two of its size, one in each direction, fit the slots.
const SEGMENTS: u32 = SLOTS as u32 / 2 - 1;
/// Most entries of a guest's queue.
const QUEUE: u16 = 128;
/// Those of a console, whose driver has a buffer of a page for each of what it receives.
const CONSOLE_QUEUE: u16 = 16;

/// What a virtio device is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// A network card.
    Card {
        /// Name of its network.
        network: String,
        /// Its VLAN there.
        vlan: Option<u16>,
        /// The number by which the switch tells networks and VLANs apart.
        domain: u16,
        /// Its address.
        mac: Mac,
    },
    /// A disk.
    Disk {
        /// Its name.
        name: String,
        /// Bytes.
        size: u64,
        /// What it holds when the board starts, with zeros behind it, by its number among the images; none: zeros.
        image: Option<usize>,
        /// IPA and bytes of its memory in the service VM; none: nobody writes to it.
        memory: Option<(u64, u64)>,
        /// Its VM does not write to it.
        read_only: bool,
        /// It is one disk with those of its name that other VMs have.
        shared: bool,
    },
    /// The VM's console, which EL2 serves itself.
    Console(Ports),
}

/// What a console has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Port 0, the console.
    Console,
    /// The control port.
    Control,
    /// Both.
    Both,
}

impl Ports {
    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Console => "console",
            Self::Control => "control",
            Self::Both => "console and control",
        }
    }
}

/// A virtio device of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedDevice {
    /// Index of its VM.
    pub vm: usize,
    /// What it is.
    pub use_: DeviceUse,
    /// IPA of its registers.
    pub ipa: u64,
    /// Its interrupt, an SPI; 0 if it is polled.
    pub intid: u32,
    /// The SPI of the board that makes that pending, if one does.
    pub spi: Option<u32>,
    /// How often the service thread looks at its queues by itself, in nanoseconds; none: its driver tells it, and is interrupted.
    pub poll: Option<u64>,
    /// Its number among those of its kind.
    pub unit: u16,
    /// Its bit in the words that the service VM and EL2 exchange.
    pub index: u16,
    /// IPA of its window in the service VM.
    pub window: u64,
    /// Bytes of its window.
    pub window_size: u64,
    /// Number of the service thread that moves its data.
    pub thread: usize,
}

impl PlannedDevice {
    /// The row of its interrupt, if that is one of the board's.
    pub(crate) fn irq(&self) -> Option<Irq> {
        spi_row(self.vm, self.intid, self.spi)
    }

    /// Features that it offers.
    pub fn features(&self) -> u64 {
        let own = self.use_.features();
        match self.poll {
            // By flags in the rings each side says once that it looks by itself. By an index it would say so again and again.
            Some(_) => own & !EVENT_IDX,
            None => own,
        }
    }
}

impl DeviceUse {
    /// Whether EL2 serves it itself.
    pub fn is_console(&self) -> bool {
        matches!(self, Self::Console(_))
    }

    /// Flags of its row.
    pub(super) fn flags(&self) -> u16 {
        match self {
            Self::Console(Ports::Control) => VIRTIO_NO_CONSOLE,
            _ => 0,
        }
    }

    /// Name for messages.
    pub fn called(&self) -> String {
        match self {
            Self::Card { network, .. } => format!("the card in {network}"),
            Self::Disk { name, .. } => format!("disk {name}"),
            Self::Console(Ports::Control) => "the control port".to_owned(),
            Self::Console(_) => "the console".to_owned(),
        }
    }

    /// Device ID.
    pub fn id(&self) -> u16 {
        match self {
            Self::Card { .. } => NETWORK,
            Self::Disk { .. } => BLOCK,
            Self::Console(_) => VIRTIO_CONSOLE,
        }
    }

    /// Features that it offers if it is not polled.
    fn features(&self) -> u64 {
        match self {
            Self::Card { .. } => TRANSPORT | CARD,
            Self::Disk {
                read_only: true, ..
            } => TRANSPORT | DISK | READ_ONLY,
            Self::Disk { .. } => TRANSPORT | DISK | WRITABLE,
            Self::Console(Ports::Console) => TRANSPORT,
            Self::Console(_) => TRANSPORT | MULTIPORT,
        }
    }

    /// Its first config (VIRTIO 1.2, 5.1.4 and 5.2.4).
    pub fn config(&self) -> Vec<u8> {
        match self {
            Self::Card { mac, .. } => {
                // Its status: the link is down until its backend is there. Its pairs of queues: one.
                let words = [0, 1, MTU].map(u16::to_le_bytes).concat();
                [mac.0.as_slice(), &words].concat()
            }
            Self::Disk {
                size, read_only, ..
            } => {
                let limits = [SEGMENT, SEGMENTS].map(u32::to_le_bytes).concat();
                let geometry = [0; 4];
                let sector = (SECTOR as u32).to_le_bytes();
                let capacity = (size / SECTOR).to_le_bytes();
                let mut config = [&capacity, limits.as_slice(), &geometry, &sector].concat();
                if !read_only {
                    // Topology, cache and queues belong to features that are not offered.
                    config.resize(BEHIND_QUEUES, 0);
                    // Ranges are discarded from any sector on. One range is set to zero, and none of that frees anything.
                    let discard = [DISCARDED, MOST_RANGES, 1];
                    let zeroes = [MOST_ZEROES as u32, 1, 0];
                    let words = discard.into_iter().chain(zeroes);
                    config.extend(words.flat_map(u32::to_le_bytes));
                }
                config
            }
            // What else there is belongs to features that are not offered (5.3.4).
            Self::Console(Ports::Console) => Vec::new(),
            Self::Console(_) => ports::CONFIG.to_vec(),
        }
    }

    /// Its queues.
    pub fn queues(&self) -> Vec<QueueShape> {
        match self {
            Self::Card { .. } => {
                let received = QueueShape {
                    size: QUEUE,
                    slots: SLOTS,
                    // Buffers in which no frame is yet: the next backend fills them.
                    flags: QUEUE_EXACT | QUEUE_REPLAY,
                    slot_bytes: FRAME_SLOT,
                    readable: 0,
                    writable: RECEIVED,
                };
                let sent = QueueShape {
                    flags: 0,
                    readable: FRAME_SLOT,
                    writable: 0,
                    ..received
                };
                vec![received, sent]
            }
            Self::Disk { .. } => vec![QueueShape {
                size: QUEUE,
                slots: SLOTS,
                flags: QUEUE_REPLAY,
                slot_bytes: DISK_SLOT,
                readable: HEADER + SEGMENT * SEGMENTS,
                writable: SEGMENT * SEGMENTS + STATUS,
            }],
            Self::Console(has) => {
                let queues = match has {
                    Ports::Console => ports::ONE,
                    Ports::Control | Ports::Both => ports::WITH_CONTROL,
                };
                let queue = QueueShape {
                    size: CONSOLE_QUEUE,
                    ..QueueShape::default()
                };
                vec![queue; queues]
            }
        }
    }
}

/// IPA in the service VM of the memory of its first disk. Others follow.
const DISKS: u64 = 4 << 30;
/// Disks start at multiples of this, so that stage 2 maps them with blocks.
pub(super) const DISK_ALIGN: u64 = 2 << 20;

/// IPA and bytes of the memory of each disk that has some.
pub(super) fn disk_places(disks: &Disks) -> Vec<Option<(u64, u64)>> {
    let (mut next, mut places) = (DISKS, Vec::new());
    for disk in &disks.all {
        places.push(match (disk.same_as, disk.memory) {
            (Some(first), _) => places.get(first).copied().flatten(),
            (None, Some(size)) => {
                let here = next;
                next = here.saturating_add(size).next_multiple_of(DISK_ALIGN);
                Some((here, size))
            }
            (None, None) => None,
        });
    }
    places
}

/// IPA in the service VM of the memory with its counters, and its bytes.
pub(super) const COUNTS: (u64, u64) = (DISKS - DISK_ALIGN, bulkhead_service::counts::BYTES);

/// VLANs of a network in the numbers of the switch.
const DOMAINS: u16 = 1 << 12;
/// Most networks: the switch has 16 bits for network and VLAN.
const MOST_NETWORKS: usize = 16;

/// The virtio devices of all VMs, in the order of the VMs, first the disks of each.
pub(super) fn all(
    system: &System,
    disks: &Disks,
    findings: &mut Vec<Finding>,
) -> Vec<PlannedDevice> {
    let macs = mac::of(system);
    let mut disks = disks.all.iter().zip(disk_places(disks));
    let mut found: Vec<PlannedDevice> = Vec::new();
    let mut add = |vm: usize, use_: DeviceUse| {
        let window_size = match use_ {
            DeviceUse::Console(_) => 0,
            _ => lay_out(&use_.queues()).1,
        };
        let poll = system.vms[vm].poll().filter(|_| !use_.is_console());
        let alike = found.iter().filter(|known| known.use_.id() == use_.id());
        found.push(PlannedDevice {
            vm,
            unit: alike.count() as u16,
            index: found.len() as u16,
            use_,
            ipa: 0,
            intid: 0,
            spi: None,
            poll,
            window: 0,
            window_size,
            thread: 0,
        });
    };
    for (vm, spec) in system.vms.iter().enumerate() {
        for (disk, (known, memory)) in spec.disks.iter().zip(&mut disks) {
            let disk = DeviceUse::Disk {
                name: disk.name.value.clone(),
                size: known.bytes,
                image: known.image,
                memory,
                read_only: disk.access == DiskAccess::ReadOnly || memory.is_none(),
                shared: disk.shared.is_some(),
            };
            add(vm, disk);
        }
        for (port, mac) in spec.ports.iter().zip(&macs[vm]) {
            let mut networks = system.networks.iter();
            let number = networks.position(|known| known.name.value == port.network.value);
            let vlan = port.vlan.as_ref().map(|vlan| vlan.value);
            // A network that there is not was reported.
            let domain = number.unwrap_or(0) as u16 % MOST_NETWORKS as u16 * DOMAINS;
            let card = DeviceUse::Card {
                network: port.network.value.clone(),
                vlan,
                domain: domain + vlan.unwrap_or(0),
                mac: *mac,
            };
            add(vm, card);
        }
        let ports = match (&spec.virtio_console, &spec.manages_place) {
            (Some(_), Some(_)) => Some(Ports::Both),
            (Some(_), None) => Some(Ports::Console),
            (None, Some(_)) => Some(Ports::Control),
            (None, None) => None,
        };
        if let Some(ports) = ports {
            add(vm, DeviceUse::Console(ports));
        }
    }
    many(system, findings);
    found
}

/// Reports more devices or networks than a plan has room for.
fn many(system: &System, findings: &mut Vec<Finding>) {
    let places = |vm: &VmSpec| {
        let disks = vm.disks.iter().map(|disk| &disk.span);
        let places = disks.chain(vm.ports.iter().map(|port| &port.network.span));
        let places = places.chain(vm.console_device());
        places.cloned().collect::<Vec<Span>>()
    };
    if let Some(first) = system.vms.iter().flat_map(places).nth(MAX_VIRTIO_DEVICES) {
        findings.push(
            Finding::new(
                Code::VirtioMany,
                "there are too many disks, network cards and consoles",
            )
            .at(first, format!("the first after {MAX_VIRTIO_DEVICES}"))
            .help("describe two systems, or give VMs fewer"),
        );
    }
    if let Some(first) = system.networks.get(MOST_NETWORKS) {
        findings.push(
            Finding::new(Code::VirtioMany, "there are too many networks")
                .at(
                    first.name.span.clone(),
                    format!("the first after {MOST_NETWORKS}"),
                )
                .help("VLANs in one network keep VMs apart, too"),
        );
    }
}

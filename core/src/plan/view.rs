//! A typed view of a plan in memory.

use bulkhead_abi::plan::{
    Backend, Call, CpuPolicy, Device, Doorbell, Header, Irq, MAGIC, MAX_PLAN, Memory, Payload,
    Pcpu, Profile, Quiet, Region, Right, Seed, ServiceThread, Stop, TableId, VERSION, Vcpu,
    VirtioDevice, Virtqueue, Vm,
};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::violation::{At, Invariant, Violation};

/// A plan whose frame is sound: every table is at the place that the header gives. [`Plan::check`]
/// checks the contents.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The header of the plan.
    pub header: &'a Header,
    /// Ranges of the board's memory.
    pub memory: &'a [Memory],
    /// pCPUs.
    pub pcpus: &'a [Pcpu],
    /// VMs.
    pub vms: &'a [Vm],
    /// vCPUs, sorted by VM.
    pub vcpus: &'a [Vcpu],
    /// Stage-2 regions, sorted by VM, then by IPA.
    pub regions: &'a [Region],
    /// Payloads, sorted by VM.
    pub payloads: &'a [Payload],
    /// Seeds, sorted by VM.
    pub seeds: &'a [Seed],
    /// Physical interrupts that are assigned to VMs, sorted by VM.
    pub irqs: &'a [Irq],
    /// Emulated devices, sorted by VM.
    pub devices: &'a [Device],
    /// Writes that quiet devices, sorted by VM.
    pub quiets: &'a [Quiet],
    /// Firmware calls that VMs may make, sorted by VM, then by identifier.
    pub calls: &'a [Call],
    /// Doorbells, sorted by the VM that rings.
    pub doorbells: &'a [Doorbell],
    service_threads: &'a [ServiceThread],
    backends: &'a [Backend],
    virtio_devices: &'a [VirtioDevice],
    virtqueues: &'a [Virtqueue],
    rights: &'a [Right],
    stops: &'a [Stop],
}

/// [`Profile::Io`], as the functions take it that depend on the profile.
pub(super) const IO: u32 = Profile::Io as u32;
/// [`Profile::Managed`], likewise.
pub(super) const MANAGED: u32 = Profile::Managed as u32;

/// A row of a table that belongs to a VM.
pub trait OfVm {
    /// Index of the VM.
    fn vm(&self) -> u16;
}

macro_rules! of_vm {
    ($($row:ty),*) => {
        $(impl OfVm for $row {
            fn vm(&self) -> u16 {
                self.vm
            }
        })*
    };
}
of_vm!(
    Vcpu,
    Region,
    Payload,
    Seed,
    Irq,
    Device,
    Quiet,
    Call,
    Doorbell,
    Backend,
    VirtioDevice,
    Stop
);

/// Returns the rows that belong to VM `vm` in a table that is sorted by VM.
pub fn rows_of<T: OfVm>(table: &[T], vm: usize) -> &[T] {
    let vm = vm as u64;
    // As `partition_point`, of which each table would have 40 bytes more.
    let (mut first, mut end) = (0, table.len());
    while first < end {
        let middle = first.wrapping_add(end) / 2;
        match table.get(middle) {
            Some(row) if u64::from(row.vm()) < vm => first = middle.wrapping_add(1),
            _ => end = middle,
        }
    }
    let rest = table.get(first..).unwrap_or_default();
    let own = rest.iter().take_while(|row| u64::from(row.vm()) == vm);
    let len = own.count();
    rest.get(..len).unwrap_or_default()
}

impl<'a> Plan<'a> {
    /// Opens the plan at the start of `bytes`, which may be longer than the plan.
    ///
    /// # Errors
    /// The first violation of an invariant of the frame: length, magic, version, sizes, table
    /// layout, checksum.
    pub fn open(bytes: &'a [u8]) -> Result<Self, Violation> {
        Self::open_for::<MANAGED>(bytes)
    }

    /// Opens the plan like [`Self::open`], for an EL2 of a [`Profile`]. Those before `io` know no tables of virtio devices, and those before
    /// `managed` none of rights and of how VMs are asked to stop: they take a plan that has rows there for one of another size.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_for<const PROFILE: u32>(bytes: &'a [u8]) -> Result<Self, Violation> {
        let at = At::HEADER;
        let (header, _) =
            Header::ref_from_prefix(bytes).map_err(|_| at.breaks(Invariant::PlanLength))?;
        at.ensure(header.magic == MAGIC, Invariant::PlanMagic)?;
        at.ensure(header.version == VERSION, Invariant::PlanVersion)?;
        at.ensure(
            header.header_size as usize == size_of::<Header>(),
            Invariant::HeaderSize,
        )?;
        let size_ok = header.size % 8 == 0 && header.size <= MAX_PLAN;
        at.ensure(size_ok, Invariant::PlanSize)?;
        let whole = bytes
            .get(..header.size as usize)
            .ok_or(at.breaks(Invariant::PlanSize))?;
        let body = whole
            .get(size_of::<Header>()..)
            .ok_or(at.breaks(Invariant::PlanSize))?;

        let mut cut = Cut {
            header,
            size: whole.len(),
            rest: body,
        };
        let mut plan = Self {
            header,
            memory: cut.table(TableId::Memory)?,
            pcpus: cut.table(TableId::Pcpus)?,
            vms: cut.table(TableId::Vms)?,
            vcpus: cut.table(TableId::Vcpus)?,
            regions: cut.table(TableId::Regions)?,
            payloads: cut.table(TableId::Payloads)?,
            seeds: cut.table(TableId::Seeds)?,
            irqs: cut.table(TableId::Irqs)?,
            devices: cut.table(TableId::Devices)?,
            quiets: cut.table(TableId::Quiets)?,
            calls: cut.table(TableId::Calls)?,
            doorbells: cut.table(TableId::Doorbells)?,
            service_threads: &[],
            backends: &[],
            virtio_devices: &[],
            virtqueues: &[],
            rights: &[],
            stops: &[],
        };
        if PROFILE >= IO {
            plan.service_threads = cut.table(TableId::ServiceThreads)?;
            plan.backends = cut.table(TableId::Backends)?;
            plan.virtio_devices = cut.table(TableId::VirtioDevices)?;
            plan.virtqueues = cut.table(TableId::Virtqueues)?;
        }
        if PROFILE >= MANAGED {
            plan.rights = cut.table(TableId::Rights)?;
            plan.stops = cut.table(TableId::Stops)?;
        }
        at.ensure(cut.rest.is_empty(), Invariant::PlanSize)?;
        at.ensure(checksum(whole) == header.checksum, Invariant::PlanChecksum)?;
        Ok(plan)
    }

    /// The vCPUs of a VM.
    pub fn vcpus_of(&self, vm: usize) -> &'a [Vcpu] {
        rows_of(self.vcpus, vm)
    }

    /// The pCPUs between which a vCPU migrates, one bit for each; 0 if it does not. A vCPU whose VM
    /// has physical interrupts does not, because they are routed to its pCPU.
    pub fn pool_of(&self, vcpu: &Vcpu) -> u32 {
        let moves = vcpu.policy == CpuPolicy::Fair as u16;
        if moves && self.irqs_of(usize::from(vcpu.vm)).is_empty() {
            vcpu.pool
        } else {
            0
        }
    }

    /// The pCPUs on which a vCPU may ever run, one bit for each. No other pCPU maps its state.
    pub fn may_run_on(&self, vcpu: &Vcpu) -> u32 {
        self.pool_of(vcpu) | 1u32.wrapping_shl(vcpu.pcpu.into())
    }

    /// The regions of a VM, ascending by IPA.
    pub fn regions_of(&self, vm: usize) -> &'a [Region] {
        rows_of(self.regions, vm)
    }

    /// The payloads of a VM.
    pub fn payloads_of(&self, vm: usize) -> &'a [Payload] {
        rows_of(self.payloads, vm)
    }

    /// The seeds of a VM.
    pub fn seeds_of(&self, vm: usize) -> &'a [Seed] {
        rows_of(self.seeds, vm)
    }

    /// The physical interrupts of a VM.
    pub fn irqs_of(&self, vm: usize) -> &'a [Irq] {
        rows_of(self.irqs, vm)
    }

    /// The emulated devices of a VM.
    pub fn devices_of(&self, vm: usize) -> &'a [Device] {
        rows_of(self.devices, vm)
    }

    /// The writes that quiet the passed-through devices of a VM, in the order of the plan.
    pub fn quiets_of(&self, vm: usize) -> &'a [Quiet] {
        rows_of(self.quiets, vm)
    }

    /// The firmware functions that a VM may call, ascending by identifier.
    pub fn calls_of(&self, vm: usize) -> &'a [Call] {
        rows_of(self.calls, vm)
    }

    /// Service threads.
    pub const fn service_threads(&self) -> &'a [ServiceThread] {
        self.service_threads
    }

    /// Backends, sorted by VM.
    pub const fn backends(&self) -> &'a [Backend] {
        self.backends
    }

    /// Virtio devices, sorted by the VM that has them, then by IPA.
    pub const fn virtio_devices(&self) -> &'a [VirtioDevice] {
        self.virtio_devices
    }

    /// Queues of virtio devices, sorted by device.
    pub const fn virtqueues(&self) -> &'a [Virtqueue] {
        self.virtqueues
    }

    /// What VMs may do with others, sorted by the one that has the right, then by the other.
    pub const fn rights(&self) -> &'a [Right] {
        self.rights
    }

    /// The rights of VM `manager`, ascending by the other VM.
    pub fn rights_of(&self, manager: usize) -> &'a [Right] {
        let of = |row: &Right| usize::from(row.manager);
        let first = self.rights.partition_point(|row| of(row) < manager);
        let rest = self.rights.get(first..).unwrap_or_default();
        let len = rest.partition_point(|row| of(row) == manager);
        rest.get(..len).unwrap_or_default()
    }

    /// What VM `manager` may do with VM `vm`: [`right::LIST`](bulkhead_abi::control::right::LIST) and others, or 0.
    pub fn right(&self, manager: usize, vm: usize) -> u32 {
        // One search, since a request waits for it.
        let key = |manager: usize, vm: usize| (manager << 16) | vm;
        let of = |row: &Right| key(row.manager.into(), row.vm.into());
        let place = self
            .rights
            .binary_search_by_key(&key(manager, vm.min(0xffff)), of);
        let row = place.ok().and_then(|place| self.rights.get(place));
        row.map_or(0, |row| row.rights)
    }

    /// Whether a VM has rights over others, or over itself.
    pub fn is_manager(&self, vm: usize) -> bool {
        !self.rights_of(vm).is_empty()
    }

    /// How VMs are asked to stop, sorted by VM.
    pub const fn stops(&self) -> &'a [Stop] {
        self.stops
    }

    /// How a VM is asked to stop; `None`: not at all.
    pub fn stop_of(&self, vm: usize) -> Option<&'a Stop> {
        rows_of(self.stops, vm).first()
    }

    /// The virtio devices of a VM, ascending by IPA.
    pub fn virtio_devices_of(&self, vm: usize) -> &'a [VirtioDevice] {
        rows_of(self.virtio_devices(), vm)
    }

    /// The queues of a virtio device.
    pub fn virtqueues_of(&self, device: usize) -> &'a [Virtqueue] {
        let of = |row: &Virtqueue| usize::from(row.device);
        let all = self.virtqueues();
        let first = all.partition_point(|row| of(row) < device);
        let rest = all.get(first..).unwrap_or_default();
        let len = rest.partition_point(|row| of(row) == device);
        rest.get(..len).unwrap_or_default()
    }
}

/// A cursor that takes one table after the other off the body of a plan.
struct Cut<'a> {
    header: &'a Header,
    size: usize,
    rest: &'a [u8],
}

impl<'a> Cut<'a> {
    fn table<T>(&mut self, id: TableId) -> Result<&'a [T], Violation>
    where
        T: FromBytes + Immutable + KnownLayout,
    {
        let at = At::row(id, 0);
        let layout = at.breaks(Invariant::TableLayout);
        let table = self.header.tables.get(id as usize).ok_or(layout)?;
        let offset = self.size.saturating_sub(self.rest.len());
        at.ensure(table.offset as usize == offset, Invariant::TableLayout)?;
        let (rows, rest) = <[T]>::ref_from_prefix_with_elems(self.rest, table.count as usize)
            .map_err(|_| layout)?;
        self.rest = rest;
        Ok(rows)
    }
}

/// Index of the word that contains the checksum.
const CHECKSUM_WORD: usize = core::mem::offset_of!(Header, checksum) / 8;

/// Computes the checksum of a plan, with the checksum field taken as 0: a multiply and a shift for
/// each word of 8 bytes. It detects accidents, not attacks. Bytes after the last whole word do not
/// count.
pub fn checksum(bytes: &[u8]) -> u64 {
    let count = bytes.len() / 8;
    match <[u64]>::ref_from_prefix_with_elems(bytes, count) {
        Ok((words, _)) => digest(words.iter().copied()),
        // The bytes are not aligned: read the same words byte by byte.
        Err(_) => digest(bytes.chunks_exact(8).map(|chunk| {
            chunk
                .iter()
                .rev()
                .fold(0, |word, &byte| (word << 8) | u64::from(byte))
        })),
    }
}

/// The checksum over all words, with 0 in place of the checksum itself.
fn digest(words: impl Iterator<Item = u64> + Clone) -> u64 {
    /// 2^64 divided by the golden ratio: odd, and its bits are well mixed.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |sum: u64, word: u64| {
        let mixed = (sum ^ word).wrapping_mul(FACTOR);
        mixed ^ (mixed >> 29)
    };
    let head = words.clone().take(CHECKSUM_WORD).fold(FACTOR, step);
    words.skip(CHECKSUM_WORD + 1).fold(step(head, 0), step)
}

/// Writes the checksum of `bytes`, a whole plan, into its header. Bytes too short for a header are
/// not changed.
pub fn seal(bytes: &mut [u8]) {
    let sum = checksum(bytes);
    let start = CHECKSUM_WORD * 8;
    if let Some(field) = bytes.get_mut(start..start + 8) {
        field.copy_from_slice(&sum.to_le_bytes());
    }
}

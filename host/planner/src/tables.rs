//! The plan as bytes, and the image around it.

use std::iter::repeat;
use std::sync::Arc;

use bulkhead_abi::plan::{
    ALL_COLOURS, Call, CpuPolicy, Crash, Device, Doorbell, Header, IRQ_EDGE, Image, Irq,
    LOAD_LIMIT, MAGIC, Memory, NAME, NONE, PAGE, PCPU_PAGES, Payload, Pcpu, Profile, Quiet, Region,
    RegionKind, Right, Seed, Stop, TABLES, Table, VCPU_PAGES, VERSION, VM_BACKGROUND, VM_DEBUG,
    VM_DETERMINISTIC, VM_LOCKED, VM_OWN_PTIMER, VM_PAGES, VM_PMU, VM_SHARES_COLOURS, VM_TIME_STOPS,
    VM_WAITS, Vcpu, Vm,
};
use bulkhead_core::plan;
use bulkhead_core::stage2;
use bulkhead_core::stage2::Placement;
use bulkhead_core::virtio::pages;
use zerocopy::{Immutable, IntoBytes};

use bulkhead_model::board::{Board, Parts};
use bulkhead_model::describe::{self, CpuTime, CrashSpec, System, VmSpec};

use super::guest::Guest;
use super::io::{self, PlannedIo};
use super::{Content, PlannedCpu, PlannedDevice, PlannedDoorbell, bandwidth, colours, gppt, share};
use crate::guest_tree::places;

/// Alignment of the image.
const IMAGE_ALIGN: u64 = 2 << 20;

/// The image before anything has a physical place.
pub(super) struct Layout {
    /// Physical address.
    pub base: u64,
    /// Bytes to the plan.
    pub plan_offset: u64,
    /// Bytes to the page pool.
    pub page_pool_offset: u64,
    /// Bytes that it takes at most.
    pub max_size: u64,
}

/// Lays out the image, and sets the offsets of payloads in it.
pub(super) fn layout(
    (el2, doorbells): (u64, &[PlannedDoorbell]),
    io: &mut Option<PlannedIo>,
    guests: &mut [Guest],
    pcpus: usize,
    system: &System,
    board: &Board,
) -> Layout {
    if let Some(io) = io {
        for thread in 0..io.threads.len() {
            io.threads[thread].pages = io::highest(io, thread, guests);
        }
    }
    let rights = size_of_val(&*rights(system)) as u64;
    let stops = guests.iter().filter(|guest| guest.stop.is_some()).count() * size_of::<Stop>();
    let devices = io.iter().flat_map(|io| &io.devices);
    let linked = devices.filter_map(PlannedDevice::irq).count() * size_of::<Irq>();
    let rows = io::Rows::of(io.as_ref(), &[]).size() as u64 + rights;
    let rows = rows + (stops + linked) as u64;
    let size = plan_size((guests, doorbells), pcpus, system, board) + rows;
    let mut next = (el2 + size).next_multiple_of(PAGE);
    let mut known: Vec<(Content, u64)> = Vec::new();
    for payload in guests
        .iter_mut()
        .flat_map(|guest| guest.payloads.iter_mut())
    {
        let same = |bytes: &Content| Arc::ptr_eq(bytes, &payload.bytes) || *bytes == payload.bytes;
        match known.iter().find(|(bytes, _)| same(bytes)) {
            Some((_, offset)) => payload.offset = *offset,
            None => {
                payload.offset = next;
                known.push((Arc::clone(&payload.bytes), next));
                next = (next + payload.bytes.len() as u64).next_multiple_of(PAGE);
            }
        }
    }
    let page_pool = most_pages(
        (el2 + size, next),
        guests,
        (pcpus, io.as_ref()),
        system,
        board,
    );
    // Loaders keep the start of memory for themselves. For an emulated board we know how much.
    let offset = board
        .emulated
        .as_ref()
        .map_or(IMAGE_ALIGN, |emulated| emulated.image_offset);
    let max_size = (next + page_pool * PAGE).next_multiple_of(IMAGE_ALIGN);
    Layout {
        base: image_base(board, offset, max_size),
        plan_offset: el2,
        page_pool_offset: next,
        max_size,
    }
}

/// Pages that the page pool takes at most: stage-2 tables depend on physical places; this is what they take if no large block fits. `image` is the
/// end of the plan in it.
fn most_pages(
    (image, start): (u64, u64),
    guests: &[Guest],
    (pcpus, io): (usize, Option<&PlannedIo>),
    system: &System,
    board: &Board,
) -> u64 {
    let own = colours::of_el2(system, board);
    let mut places = Placement::from(start);
    // A VM without a colour was reported, as was EL2.
    let _ = places.next(pages_before_tables(pcpus, system, io), own);
    for (guest, spec) in guests.iter().zip(&system.vms) {
        let regions: Vec<Region> = guest.regions.iter().map(|mapped| mapped.region).collect();
        let most = stage2::pages_needed(&regions) + (guest.ram.1 >> 30) + 2;
        let _ = places.next(most, colours::of_vm(spec, board));
    }
    if let Some(io) = io {
        for colours in [own, ALL_COLOURS] {
            let _ = places.next(io.devices.len() as u64, colours);
        }
        // Of the state and the tables, each has a start of its own.
        let between = if own == ALL_COLOURS {
            0
        } else {
            u64::from(own.count_ones())
        };
        for thread in &io.threads {
            let _ = places.next(u64::from(thread.pages) + between, own);
        }
    }
    if own != ALL_COLOURS {
        let _ = places.next(image.div_ceil(PAGE), own);
    }
    (places.end() - start) / PAGE
}

/// The lowest place for an image of `size` bytes: so far above the start of a range of memory, or above what the firmware
/// keeps there. If there is none, the first that was tried.
fn image_base(board: &Board, offset: u64, size: u64) -> u64 {
    let starts = board.memory.iter().map(|memory| memory.base + offset);
    let kept = board.reserved.iter();
    let behind = kept.clone().map(|kept| kept.base.saturating_add(kept.size));
    let aligned = |at: u64| at.checked_next_multiple_of(IMAGE_ALIGN);
    let mut places: Vec<u64> = starts.chain(behind).filter_map(aligned).collect();
    let first = places.first().copied().unwrap_or(IMAGE_ALIGN);
    places.sort_unstable();
    let fits = |&at: &u64| {
        let Some(end) = at.checked_add(size) else {
            return false;
        };
        let in_memory =
            |memory: &Memory| memory.base + offset <= at && end <= memory.base + memory.size;
        let free = |kept: &Memory| end <= kept.base || kept.base.saturating_add(kept.size) <= at;
        end <= LOAD_LIMIT && board.memory.iter().any(in_memory) && board.reserved.iter().all(free)
    };
    places.into_iter().find(fits).unwrap_or(first)
}

/// Pages of the page pool in front of the stage-2 tables.
fn pages_before_tables(pcpus: usize, system: &System, io: Option<&PlannedIo>) -> u64 {
    let vcpus: usize = system.vms.iter().map(|spec| spec.vcpus).sum();
    let counts = [
        (pcpus, PCPU_PAGES),
        (vcpus + io.map_or(0, |io| io.threads.len()), VCPU_PAGES),
        (system.vms.len(), VM_PAGES),
    ];
    let pages = |(count, each): (usize, u32)| count as u64 * u64::from(each);
    counts.into_iter().map(pages).sum()
}

/// Bytes of the plan.
fn plan_size(
    (guests, doorbells): (&[Guest], &[PlannedDoorbell]),
    pcpus: usize,
    system: &System,
    board: &Board,
) -> u64 {
    let count = |rows: &dyn Fn(&Guest) -> usize| guests.iter().map(rows).sum::<usize>();
    let payloads = count(&|guest| guest.payloads.len());
    let irqs = count(&|guest| guest.devices.iter().map(|(_, intids)| intids.len()).sum())
        + doorbells.iter().filter(|bell| bell.spi.is_some()).count();
    let regions = count(&|guest| guest.regions.len());
    let seeds = count(&|guest| guest_seeds(guest).len());
    let quiets = count(&|guest| guest_quiets(guest).count());
    let emulated = count(&|guest| guest.emulated.len());
    let vcpus: usize = system.vms.iter().map(|spec| spec.vcpus).sum();
    let calls: usize = system.vms.iter().map(|spec| spec.calls.len()).sum();
    let size = size_of::<Header>()
        + board.memory.len() * size_of::<Memory>()
        + pcpus * size_of::<Pcpu>()
        + guests.len() * size_of::<Vm>()
        + vcpus * size_of::<Vcpu>()
        + emulated * size_of::<Device>()
        + quiets * size_of::<Quiet>()
        + calls * size_of::<Call>()
        + doorbells.len() * size_of::<Doorbell>()
        + regions * size_of::<Region>()
        + payloads * size_of::<Payload>()
        + seeds * size_of::<Seed>()
        + irqs * size_of::<Irq>();
    size as u64
}

/// What VMs may do with others.
fn rights(system: &System) -> Vec<Right> {
    let vms = &system.vms;
    let all = (0..vms.len()).flat_map(|manager| (0..vms.len()).map(move |vm| (manager, vm)));
    let rows = all.map(|(manager, vm)| Right {
        manager: manager as u16,
        vm: vm as u16,
        rights: describe::rights(vms, manager, vm),
    });
    rows.filter(|row| row.rights != 0).collect()
}

/// Seeds in a guest's device tree.
fn guest_seeds(guest: &Guest) -> Vec<crate::guest_tree::SeedPlace> {
    guest
        .payloads
        .iter()
        .find(|payload| payload.ipa == guest.tree)
        .map_or_else(Vec::new, |payload| places(&payload.bytes))
}

/// Writes that quiet the passed-through devices of a guest: physical address, bytes and value.
pub(super) fn guest_quiets(guest: &Guest) -> impl Iterator<Item = &(u64, u16, u32)> {
    guest.devices.iter().flat_map(|(device, _)| &device.quiets)
}

/// Action when a VM crashes, in the words of the plan: policy, restarts, seconds, index of the VM
/// that is told.
fn crash(spec: &VmSpec, system: &System) -> (Crash, u16, u16, u16) {
    match &spec.crash {
        CrashSpec::Halt => (Crash::Halt, 0, 0, NONE),
        CrashSpec::Restart(limit) => (Crash::Restart, limit.most, limit.seconds, NONE),
        CrashSpec::Notify(told) => {
            let mut vms = system.vms.iter();
            let vm = vms.position(|vm| vm.name.value == told.value);
            (Crash::Notify, 0, 0, vm.map_or(NONE, |vm| vm as u16))
        }
    }
}

/// Bits of the pCPUs to which the load balancer may move the vCPUs of a VM.
fn pool(cpus: &[PlannedCpu], spec: &VmSpec) -> u32 {
    let pooled = |cpu: &PlannedCpu| {
        let mut pool = spec.cpu.pool.iter();
        pool.any(|wish| wish.value as usize == cpu.cpu)
    };
    let bits = cpus.iter().enumerate().filter(|(_, cpu)| pooled(cpu));
    bits.fold(0, |all, (index, _)| all | 1 << index)
}

/// The row of a vCPU: index of its VM, its number there.
fn vcpu(
    cpus: &[PlannedCpu],
    owner: (usize, usize),
    (time, (events, events_period)): (CpuTime, (u32, u64)),
    pool: u32,
) -> Vcpu {
    let (vm, number) = owner;
    let pcpu = cpus.iter().position(|cpu| cpu.vcpus.contains(&owner));
    let pcpu = pcpu.unwrap_or(0);
    let (policy, weight, budget, period) = share::in_row(time);
    let fair = policy == CpuPolicy::Fair;
    Vcpu {
        vm: vm as u16,
        pcpu: pcpu as u16,
        policy: policy as u16,
        weight,
        mpidr: number as u64,
        budget,
        period,
        pool: if fair { pool | 1 << pcpu } else { 0 },
        events,
        events_period,
    }
}

/// The plan, sealed, and its image.
pub(super) fn emit(
    board: &Board,
    (cpus, times, profile): (&[PlannedCpu], &[CpuTime], Profile),
    (guests, doorbells, io): (&mut [Guest], &[PlannedDoorbell], &mut Option<PlannedIo>),
    system: &System,
    layout: &Layout,
) -> (Vec<u8>, Image) {
    for guest in guests.iter_mut() {
        let regions: Vec<Region> = guest.regions.iter().map(|mapped| mapped.region).collect();
        guest.s2_pages = stage2::pages_needed(&regions) as u32;
    }
    let mut rows = Rows::default();
    for (index, guest) in guests.iter().enumerate() {
        let spec = &system.vms[index];
        rows.vms.push(vm(index as u16, guest, spec, system));
        let pool = pool(cpus, spec);
        let bandwidth = bandwidth::in_row(spec.bandwidth.as_ref());
        let vcpus = (0..spec.vcpus)
            .map(|number| vcpu(cpus, (index, number), (times[index], bandwidth), pool));
        rows.vcpus.extend(vcpus);
        rows.add(index, guest, spec, doorbells);
        let devices = io.iter().flat_map(|io| io.of_vm(index));
        rows.irqs.extend(devices.filter_map(PlannedDevice::irq));
    }
    renumber(&mut rows.regions);
    let stops: Vec<Stop> = guests
        .iter()
        .enumerate()
        .filter_map(|(vm, guest)| Some(guest.stop?.row(vm)))
        .collect();
    let own = colours::of_el2(system, board);
    let write = |io: Option<&PlannedIo>, (roots, pages): (&[u64], u64)| {
        let vms = rows.vms.iter().zip(roots.iter().chain(repeat(&0)));
        let vms: Vec<Vm> = vms
            .map(|(vm, root)| Vm {
                s2_root: *root,
                ..*vm
            })
            .collect();
        let mut writer = Writer::default();
        writer.table(&board.memory);
        writer.table(&pcpus(cpus, board, system));
        writer.table(&vms);
        writer.table(&rows.vcpus);
        writer.table(&rows.regions);
        writer.table(&rows.payloads);
        writer.table(&rows.seeds);
        writer.table(&rows.irqs);
        writer.table(&rows.devices);
        writer.table(&rows.quiets);
        writer.table(&rows.calls);
        let doorbells: Vec<_> = doorbells.iter().map(PlannedDoorbell::row).collect();
        writer.table(&doorbells);
        let rows = io::Rows::of(io, cpus);
        writer.table(&rows.threads);
        writer.table(&rows.backends);
        writer.table(&rows.devices);
        writer.table(&rows.queues);
        writer.table(&rights(system));
        writer.table(&stops);
        let image = image((pages, own), profile, layout);
        let header = header(board, system, image, &writer);
        let mut bytes = [header.as_bytes(), &writer.body].concat();
        plan::seal(&mut bytes);
        (bytes, image)
    };
    // The code that EL2 counts by wants a plan, in which all but what it counts is final.
    if let Some(io) = io {
        let (bytes, _) = write(Some(io), (&[], 0));
        let opened = plan::Plan::open(&bytes).ok();
        for (number, thread) in io.threads.iter_mut().enumerate() {
            let pages = opened.as_ref();
            let pages = pages.and_then(|plan| pages::pages(plan, number));
            thread.pages = pages.map_or(thread.pages, |pages| pages as u32);
        }
    }
    let (bytes, _) = write(io.as_ref(), (&[], 0));
    let mut roots = Vec::new();
    let opened = plan::Plan::open(&bytes).ok();
    let page_pool = opened.and_then(|plan| {
        plan.page_pool::<{ Profile::Managed as u32 }>(|_, place| roots.push(stage2::root(place)))
    });
    let end = page_pool.map_or(layout.page_pool_offset, |page_pool| page_pool.end);
    write(
        io.as_ref(),
        (&roots, (end - layout.page_pool_offset) / PAGE),
    )
}

/// The image with so many pages in its page pool, and EL2's colours.
const fn image((pages, colours): (u64, u64), profile: Profile, layout: &Layout) -> Image {
    Image {
        base: layout.base,
        size: layout.page_pool_offset + pages * PAGE,
        plan_offset: layout.plan_offset,
        page_pool_offset: layout.page_pool_offset,
        colours,
        page_pool_pages: pages as u32,
        profile: profile as u32,
    }
}

/// The rows of the pCPUs. They have caches if anything keeps to colours.
fn pcpus(cpus: &[PlannedCpu], board: &Board, system: &System) -> Vec<Pcpu> {
    let has_colours =
        system.el2.mask.is_some() || system.vms.iter().any(|vm| vm.colours.mask.is_some());
    let caches = if has_colours { &board.caches[..] } else { &[] };
    let rows = cpus.iter().map(|cpu| {
        let mut caches = caches.iter().enumerate();
        let cache = caches.find(|(_, cache)| cache.cpus.contains(&cpu.cpu));
        Pcpu {
            mpidr: cpu.mpidr,
            service: u16::from(cpu.service),
            call_spi: cpu.call_spi,
            pmu_intid: cpu.pmu_intid,
            release: board.cpus[cpu.cpu].release,
            cache: cache.map_or(0, |(number, _)| number as u16),
            cache_level: cache.map_or(0, |(_, cache)| cache.level as u16),
            colours: cache.map_or(0, |(_, cache)| cache.colours),
        }
    });
    rows.collect()
}

/// The header in front of what was written.
fn header(board: &Board, system: &System, image: Image, writer: &Writer) -> Header {
    Header {
        magic: MAGIC,
        version: VERSION,
        header_size: size_of::<Header>() as u32,
        size: (size_of::<Header>() + writer.body.len()) as u64,
        checksum: 0,
        board: Parts {
            // EL2 asks the board for what the VMs need, and for nothing else.
            rtc: if system.vms.iter().any(|spec| spec.rtc.is_some()) {
                board.parts.rtc
            } else {
                0
            },
            event: bandwidth::event(system, board).map_or(0, |(_, event)| event),
            ..board.parts
        },
        image,
        tables: writer.tables,
    }
}

/// The row of VM number `vm`.
fn vm(vm: u16, guest: &Guest, spec: &VmSpec, system: &System) -> Vm {
    let (crash, restarts, restart_seconds, notify) = crash(spec, system);
    let flags = [
        (spec.deterministic, VM_DETERMINISTIC),
        (spec.has_own_ptimer(), VM_OWN_PTIMER),
        (spec.time_stops, VM_TIME_STOPS),
        (spec.debug.is_some(), VM_DEBUG),
        (spec.pmu.is_some(), VM_PMU),
        (spec.waits.is_some(), VM_WAITS),
        (spec.locked.is_some(), VM_LOCKED),
        (spec.colours.shared.is_some(), VM_SHARES_COLOURS),
        (
            io::service_vm(system) == Some(usize::from(vm)),
            VM_BACKGROUND,
        ),
    ];
    let gic = &guest.gic;
    let (interface, _) = gic.interface;
    let mode = guest.gppt;
    Vm {
        name: name(&spec.name.value),
        class: spec.class as u16,
        crash: crash as u16,
        flags: flags
            .into_iter()
            .filter(|(set, _)| *set)
            .fold(0, |all, (_, flag)| all | flag),
        vmid: vm + 1,
        restarts,
        restart_seconds,
        notify,
        event_intid: guest.event.unwrap_or(0) as u16,
        interrupts: gppt::number(mode) as u16,
        reclaim: gppt::reclaim(&spec.interrupts, mode) as u16,
        resets: spec.resets.map_or(0, |limit| limit.most),
        reset_seconds: spec.resets.map_or(0, |limit| limit.seconds),
        entry: guest.entry,
        boot_arg: guest.tree,
        gicd: gic.gicd.0,
        gicr: if gic.version == 2 { 0 } else { interface },
        gicc: if gic.version == 2 { interface } else { 0 },
        stolen_time: guest.stolen_time.unwrap_or(0),
        spis: guest.spis,
        s2_pages: guest.s2_pages,
        // Known when all rows are.
        s2_root: 0,
    }
}

/// Rows of tables of which each VM has some.
#[derive(Default)]
struct Rows {
    vms: Vec<Vm>,
    vcpus: Vec<Vcpu>,
    regions: Vec<Region>,
    payloads: Vec<Payload>,
    seeds: Vec<Seed>,
    irqs: Vec<Irq>,
    devices: Vec<Device>,
    quiets: Vec<Quiet>,
    calls: Vec<Call>,
}

impl Rows {
    /// Adds the rows of VM number `index`, apart from those of the VM itself and its vCPUs.
    fn add(&mut self, index: usize, guest: &Guest, spec: &VmSpec, doorbells: &[PlannedDoorbell]) {
        let vm = index as u16;
        let regions = guest.regions.iter().map(|mapped| mapped.region);
        self.regions.extend(regions);
        self.payloads
            .extend(guest.payloads.iter().map(|payload| Payload {
                vm,
                reserved: [0; 3],
                offset: payload.offset,
                size: payload.bytes.len() as u64,
                ipa: payload.ipa,
            }));
        let seeds = guest_seeds(guest).into_iter();
        self.seeds.extend(seeds.map(|seed| Seed {
            vm,
            kind: seed.kind as u16,
            size: seed.size,
            ipa: guest.tree + seed.offset,
        }));
        self.irqs
            .extend(guest.devices.iter().flat_map(|(device, intids)| {
                device.irqs.iter().zip(intids).map(move |(irq, intid)| Irq {
                    vm,
                    vintid: *intid as u16,
                    pintid: irq.intid as u16,
                    flags: if irq.edge { IRQ_EDGE } else { 0 },
                })
            }));
        let heard = doorbells.iter().filter(|bell| bell.to == index);
        self.irqs.extend(heard.filter_map(PlannedDoorbell::irq));
        self.devices
            .extend(guest.emulated.iter().map(|device| Device {
                vm,
                kind: device.kind as u16,
                vintid: device.intid as u16,
                reserved: 0,
                ipa: device.ipa,
                size: device.size,
            }));
        let quiets = guest_quiets(guest);
        self.quiets.extend(quiets.map(|&(pa, width, value)| Quiet {
            vm,
            width,
            value,
            pa,
        }));
        self.calls.extend(spec.calls.iter().map(|&function| Call {
            vm,
            reserved: 0,
            function,
        }));
    }
}

/// A name as the plan holds it; descriptions have none that is longer.
fn name(text: &str) -> [u8; NAME] {
    let mut name = [0; NAME];
    name.iter_mut()
        .zip(text.bytes())
        .for_each(|(place, byte)| *place = byte);
    name
}

/// Numbers shared memory from 0 without gaps: a description may hold some that no VM maps.
fn renumber(regions: &mut [Region]) {
    let mut known = Vec::new();
    for region in regions
        .iter_mut()
        .filter(|region| region.kind == RegionKind::Shared as u16)
    {
        let number = known
            .iter()
            .position(|known| *known == region.shared)
            .unwrap_or(known.len());
        if number == known.len() {
            known.push(region.shared);
        }
        region.shared = number as u16;
    }
}

/// Writer of tables one behind the other.
#[derive(Default)]
struct Writer {
    body: Vec<u8>,
    tables: [Table; TABLES],
    next: usize,
}

impl Writer {
    fn table<T: IntoBytes + Immutable>(&mut self, rows: &[T]) {
        let offset = (size_of::<Header>() + self.body.len()) as u32;
        if let Some(table) = self.tables.get_mut(self.next) {
            *table = Table {
                offset,
                count: rows.len() as u32,
            };
        }
        self.next += 1;
        self.body.extend_from_slice(rows.as_bytes());
    }
}

//! The rows of virtio devices in the plan.

use bulkhead_abi::plan::{
    ALL_COLOURS, Backend, NONE, PAGE, PLAN_CONFIG, ServiceThread, VirtioDevice, Virtqueue,
};
use bulkhead_core::virtio::pages;

use super::window::lay_out;
use super::{DeviceUse, PlannedDevice, PlannedIo, PlannedThread};
use crate::guest::Guest;
use crate::{PlannedCpu, share};

/// Rows of the four tables.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub threads: Vec<ServiceThread>,
    pub backends: Vec<Backend>,
    pub devices: Vec<VirtioDevice>,
    pub queues: Vec<Virtqueue>,
}

impl Rows {
    /// The rows of a system that has virtio devices; none else.
    pub fn of(io: Option<&PlannedIo>, cpus: &[PlannedCpu]) -> Self {
        let Some(io) = io else {
            return Self::default();
        };
        let row = |vm, vintid, page, bell| Backend {
            vm,
            vintid,
            reserved: 0,
            page,
            bell,
        };
        let service = io.service.as_ref().map(|vm| {
            let intid = vm.intid as u16;
            row(vm.vm as u16, intid, vm.pending, vm.bell)
        });
        let consoles = io.devices.len() != io.served().count();
        let el2 = consoles.then(|| row(NONE, 0, 0, 0));
        let backends: Vec<Backend> = service.into_iter().chain(el2).collect();
        // EL2 is the last one.
        let last = backends.len().saturating_sub(1) as u16;
        let queues = io.devices.iter().zip(0..);
        Self {
            threads: io.threads.iter().map(|it| thread(it, cpus)).collect(),
            backends,
            devices: io.devices.iter().map(|it| device(it, last)).collect(),
            queues: queues
                .flat_map(|(device, row)| virtqueues(device, row))
                .collect(),
        }
    }

    /// Their bytes.
    pub fn size(&self) -> usize {
        size_of_val(&*self.threads)
            + size_of_val(&*self.backends)
            + size_of_val(&*self.devices)
            + size_of_val(&*self.queues)
    }
}

/// The row of a service thread.
fn thread(thread: &PlannedThread, cpus: &[PlannedCpu]) -> ServiceThread {
    let pcpu = cpus.iter().position(|cpu| cpu.cpu == thread.cpu);
    let (policy, weight, budget, period) = share::in_row(thread.time);
    ServiceThread {
        pcpu: pcpu.unwrap_or(0) as u16,
        policy: policy as u16,
        weight,
        reserved: 0,
        budget,
        period,
        pages: thread.pages,
        reserved2: 0,
    }
}

/// The row of a device; `el2` is the backend that EL2 is.
fn device(device: &PlannedDevice, el2: u16) -> VirtioDevice {
    let bytes = device.use_.config();
    let mut config = [0; PLAN_CONFIG];
    let parts = config.iter_mut().zip(&bytes);
    parts.for_each(|(place, byte)| *place = *byte);
    VirtioDevice {
        vm: device.vm as u16,
        backend: match device.use_ {
            DeviceUse::Console(_) => el2,
            DeviceUse::Card { .. } | DeviceUse::Disk { .. } => 0,
        },
        id: device.use_.id(),
        vintid: device.intid as u16,
        unit: device.unit,
        flags: device.use_.flags(),
        index: device.index,
        config_bytes: bytes.len() as u16,
        service: device.thread as u16,
        reserved: 0,
        reserved2: 0,
        ipa: device.ipa,
        window: device.window,
        window_size: device.window_size,
        features: device.features(),
        poll: device.poll.unwrap_or(0),
        config,
    }
}

/// The rows of the queues of a device.
fn virtqueues(device: &PlannedDevice, row: u16) -> Vec<Virtqueue> {
    let shapes = device.use_.queues();
    let (places, _) = lay_out(&shapes);
    let served = !device.use_.is_console();
    let queues = shapes.iter().zip(places);
    queues
        .map(|(shape, place)| Virtqueue {
            device: row,
            size: shape.size,
            slots: shape.slots,
            flags: shape.flags,
            slot_bytes: shape.slot_bytes,
            readable: shape.readable,
            writable: shape.writable,
            ring: if served { place.ring as u32 } else { 0 },
            slots_at: if served { place.slots as u32 } else { 0 },
            reserved: 0,
        })
        .collect()
}

/// Pages that a service thread needs at most, wherever the memory that it reaches will lie.
pub(crate) fn highest(io: &PlannedIo, thread: usize, guests: &[Guest]) -> u32 {
    let pages = |device: &PlannedDevice| {
        let queues = device.use_.queues();
        let slots: u64 = queues.iter().map(|queue| u64::from(queue.slots)).sum();
        let bytes = slots * (pages::SLOT_BYTES + pages::AGAIN_BYTES);
        pages::DEVICE_PAGES + bytes.div_ceil(PAGE)
    };
    let state: u64 = io.of_thread(thread).map(pages).sum();
    let own = pages::THREAD_PAGES + state;
    let guests = guests.iter().enumerate();
    let reached = guests.filter(|(vm, _)| io.reaches(thread, *vm));
    let regions = reached.flat_map(|(_, guest)| &guest.regions);
    // One for each GiB that it touches, and one for each end at which no block fits; with colours none fits anywhere.
    let tables = regions.map(|mapped| {
        let region = &mapped.region;
        let within = match region.colours {
            ALL_COLOURS => 0,
            _ => region.size >> 21,
        };
        (region.size >> 30) + 4 + within
    });
    let tables: u64 = tables.sum();
    let own_tables = pages::tables_of_state(own) + 1;
    (own + 1 + own_tables + tables) as u32
}

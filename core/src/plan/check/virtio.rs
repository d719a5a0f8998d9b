//! Rules about virtio devices and the backends that serve them.

use bulkhead_abi::device::MAX_QUEUES;
use bulkhead_abi::plan::{
    Backend, IRQ_DOORBELL, MAX_POLL, MAX_ROWS, MAX_SERVICE_THREADS, MAX_VCPUS, MAX_VIRTIO_DEVICES,
    MAX_VMS, MIN_POLL, NONE, PAGE, PLAN_CONFIG, Region, TableId, VIRTIO_CONSOLE, VIRTIO_NO_CONSOLE,
    VIRTIO_RESETS, VirtioDevice,
};

use super::cpu::VGIC;
use super::regions::{VIRTIO, is_ram, region_ipa};
use super::vms::ipa_span;
use super::{number_of, sorted};
use crate::plan::span::{Span, aligned};
use crate::plan::view::{MANAGED, Plan};
use crate::plan::violation::{At, Check, Invariant};
use crate::virtio::ports::{self, MULTIPORT};
use crate::virtio::transport::feature::{EVENT_IDX, INDIRECT_DESC, RING_RESET, VERSION_1};

/// Mask of the flags that are defined for virtio devices.
const FLAGS: u16 = VIRTIO_RESETS;
/// Bits of the features that are the transport's and not a type's: 24 to 49 (VIRTIO 1.2, 2.2).
const OF_TRANSPORT: u64 = (1 << 50) - (1 << 24);
/// Those of them that EL2 has.
const KNOWN: u64 = INDIRECT_DESC | EVENT_IDX | VERSION_1 | RING_RESET;
/// Most devices of a backend: it has a bit for each in a word.
const INDICES: u16 = u64::BITS as u16;

/// The features of a type of device by which its driver writes to the config (VIRTIO 1.2, chapter 5), where EL2 takes no
/// writes. `None`: no other VM can serve the type.
const fn writing_features(id: u16) -> Option<u64> {
    match id {
        // No device; balloons, memory and persistent memory, which hand over memory of the guest.
        0 | 5 | 13 | 24 | 27 => None,
        // The drivers of SCSI host, GPU, input and IOMMU write to the config in any case.
        8 | 16 | 18 | 23 => None,
        // Block: CONFIG_WCE.
        2 => Some(1 << 11),
        // Console: EMERG_WRITE.
        VIRTIO_CONSOLE => Some(1 << 2),
        _ => Some(0),
    }
}

/// Whether a device is a console with the control port.
pub(super) const fn has_ports(device: &VirtioDevice) -> bool {
    device.id == VIRTIO_CONSOLE && device.features & MULTIPORT != 0
}

/// Whether `features` can be offered by a device that is polled or not.
const fn can_offer(features: u64, writing: u64, polled: bool) -> bool {
    let events = if polled { EVENT_IDX } else { 0 };
    let unknown = OF_TRANSPORT & !KNOWN;
    features & VERSION_1 != 0 && features & (unknown | writing | events) == 0
}

impl Plan<'_> {
    /// Whether there is something that only an EL2 of the profile `io` has: no device is served without a service thread.
    pub(super) fn has_virtio(&self) -> bool {
        !self.service_threads().is_empty()
    }

    /// Checks the number and the order of the rows about virtio devices.
    pub(super) fn check_virtio_tables(&self) -> Check {
        let threads = self.service_threads().len();
        let (backends, devices) = (self.backends(), self.virtio_devices());
        let queues = self.virtqueues();
        let left = MAX_VCPUS.wrapping_sub(self.vcpus.len());
        for (table, count, most) in [
            (TableId::ServiceThreads, threads, MAX_SERVICE_THREADS),
            (TableId::ServiceThreads, threads, left),
            (TableId::Backends, backends.len(), MAX_VMS),
            (TableId::VirtioDevices, devices.len(), MAX_VIRTIO_DEVICES),
            (TableId::Virtqueues, queues.len(), MAX_ROWS),
        ] {
            At::row(table, count).ensure(count <= most, Invariant::TableCount)?;
        }
        let vms = self.vms.len();
        let of_vms = match backends.split_last() {
            Some((last, rest)) if is_el2(last) => rest,
            _ => backends,
        };
        sorted(TableId::Backends, of_vms, vms)?;
        sorted(TableId::VirtioDevices, devices, vms)?;
        ascending(TableId::Backends, backends.iter().map(|row| (row.vm, 0)))?;
        ascending(
            TableId::VirtioDevices,
            devices.iter().map(|row| (row.vm, row.ipa)),
        )?;
        let mut least = 0;
        for (row, device) in queues.iter().map(|queue| queue.device).enumerate() {
            let fits = least <= device && usize::from(device) < devices.len();
            At::row(TableId::Virtqueues, row).ensure(fits, Invariant::TableOrder)?;
            least = device;
        }
        Ok(())
    }

    /// Checks the backends.
    pub(super) fn check_backends(&self) -> Check {
        for (row, backend) in self.backends().iter().enumerate() {
            let at = At::row(TableId::Backends, row);
            at.ensure(backend.reserved == 0, Invariant::ReservedZero)?;
            let none = backend.vintid == 0 && backend.page == 0 && backend.bell == 0;
            let of_el2 = is_el2(backend) && none;
            let sound = of_el2 || self.has_vgic(backend.vm);
            at.ensure(sound, Invariant::Backend)?;
            if of_el2 {
                continue;
            }
            self.check_source(at, backend.vm, backend.vintid)?;

            let vm = usize::from(backend.vm);
            let page = ipa_span(backend.page, PAGE, PAGE)
                .is_some_and(|page| self.in_ram(vm, page) && !self.is_loaded(vm, page));
            at.ensure(page, Invariant::BackendNews)?;
            let bell = ipa_span(backend.bell, PAGE, PAGE);
            let bell = bell.ok_or(at.breaks(Invariant::DoorbellPage))?;
            let mut doorbells = self.doorbells.iter().filter(|row| row.vm == backend.vm);
            let free = self.is_free(vm, bell) && doorbells.all(|row| row.ipa != backend.bell);
            at.ensure(free, Invariant::IpaOverlap)?;
        }
        Ok(())
    }

    /// Checks the virtio devices, after their backends.
    pub(super) fn check_virtio_devices<const PROFILE: u32>(&self) -> Check {
        for (row, device) in self.virtio_devices().iter().enumerate() {
            let at = At::row(TableId::VirtioDevices, row);
            let ports = PROFILE >= MANAGED && has_ports(device);
            let flags = FLAGS | if ports { VIRTIO_NO_CONSOLE } else { 0 };
            at.ensure(device.flags & !flags == 0, Invariant::VirtioFlags)?;
            let reserved = device.reserved == 0 && device.reserved2 == 0;
            at.ensure(reserved, Invariant::ReservedZero)?;
            let service = usize::from(device.service) < self.service_threads().len();
            at.ensure(service, Invariant::VirtioService)?;
            let polled = device.poll != 0;
            let backend = self.backends().get(usize::from(device.backend));
            let backend = backend
                .filter(|backend| {
                    let heard = polled || self.has_vgic(device.vm);
                    backend.vm != device.vm && heard
                })
                .ok_or(at.breaks(Invariant::VirtioVms))?;
            let writing = writing_features(device.id).ok_or(at.breaks(Invariant::VirtioType))?;
            let features = can_offer(device.features, writing, polled);
            at.ensure(features, Invariant::VirtioFeatures)?;
            let bytes = usize::from(device.config_bytes);
            let config = bytes <= PLAN_CONFIG && device.config.iter().skip(bytes).all(|b| *b == 0);
            at.ensure(config, Invariant::VirtioConfig)?;
            self.check_numbers(at, row, device)?;
            if polled {
                let often = (MIN_POLL..=MAX_POLL).contains(&device.poll);
                at.ensure(often && device.vintid == 0, Invariant::VirtioPoll)?;
            } else {
                self.check_source(at, device.vm, device.vintid)?;
            }
            let mut regions = self.regions_of(usize::from(device.vm)).iter();
            let there = regions.any(|region| region.kind == VIRTIO && region.ipa == device.ipa);
            at.ensure(there, Invariant::VirtioRegisters)?;
            if is_el2(backend) {
                self.check_console::<PROFILE>(at, row, device)?;
            } else {
                self.check_window(at, row, device, usize::from(backend.vm), backend.page)?;
            }
            let queues = (1..=MAX_QUEUES).contains(&self.virtqueues_of(row).len());
            at.ensure(queues, Invariant::VirtioQueues)?;
        }
        Ok(())
    }

    /// Checks a device that EL2 serves itself.
    fn check_console<const PROFILE: u32>(
        &self,
        at: At,
        row: usize,
        device: &VirtioDevice,
    ) -> Check {
        let has_ports = PROFILE >= MANAGED && has_ports(device);
        let (features, flags) = if has_ports {
            (KNOWN | MULTIPORT, VIRTIO_NO_CONSOLE)
        } else {
            (KNOWN, 0)
        };
        let bare = device.window == 0 && device.window_size == 0 && device.poll == 0;
        let bare = bare && device.flags & !flags == 0 && device.features & !features == 0;
        let queues = self.virtqueues_of(row).len();
        let shape = if has_ports {
            let managed = self.is_manager(usize::from(device.vm));
            at.ensure(managed, Invariant::ManagerPort)?;
            queues == ports::WITH_CONTROL
                && usize::from(device.config_bytes) == ports::CONFIG.len()
                && device.config.starts_with(&ports::CONFIG)
        } else {
            queues == ports::ONE && device.config_bytes == 0
        };
        let is_console = device.id == VIRTIO_CONSOLE && bare && shape;
        at.ensure(is_console, Invariant::VirtioConsole)?;
        for (number, other) in self.virtio_devices().iter().take(row).enumerate() {
            let apart = other.backend != device.backend || other.vm != device.vm;
            at.and(number).ensure(apart, Invariant::VirtioConsole)?;
        }
        Ok(())
    }

    /// Checks the numbers that a device has for its backend.
    fn check_numbers(&self, at: At, row: usize, device: &VirtioDevice) -> Check {
        at.ensure(device.index < INDICES, Invariant::VirtioNumber)?;
        for (number, other) in self.virtio_devices().iter().take(row).enumerate() {
            let same =
                other.index == device.index || (other.id, other.unit) == (device.id, device.unit);
            let apart = other.backend != device.backend || !same;
            at.and(number).ensure(apart, Invariant::VirtioNumber)?;
        }
        Ok(())
    }

    /// Checks the window of a device, in the RAM of VM `vm`, whose backend has the page `news`.
    fn check_window(
        &self,
        at: At,
        row: usize,
        device: &VirtioDevice,
        vm: usize,
        page: u64,
    ) -> Check {
        // Offsets in it, and its size in the device page, have 32 bits.
        let whole = aligned(device.window_size, PAGE) && device.window_size <= u32::MAX.into();
        let window = ipa_span(device.window, device.window_size, PAGE)
            .filter(|window| whole && self.in_ram(vm, *window) && !self.is_loaded(vm, *window))
            .ok_or(at.breaks(Invariant::VirtioWindow))?;
        at.ensure(!window.has(page), Invariant::VirtioWindow)?;
        for (number, other) in self.virtio_devices().iter().take(row).enumerate() {
            let apart = other.backend != device.backend
                || Span::new(other.window, other.window_size)
                    .is_some_and(|other| !other.overlaps(window));
            at.and(number).ensure(apart, Invariant::VirtioWindow)?;
        }
        Ok(())
    }

    /// Checks that `vintid` is an SPI of VM `vm`, and that only one source has it.
    fn check_source(&self, at: At, vm: u16, vintid: u16) -> Check {
        at.ensure(self.has_vintid(vm, vintid), Invariant::IrqVintid)?;
        let one = self.sources_of(vm, vintid) == 1;
        at.ensure(one, Invariant::VintidShared)
    }

    /// The number of sources of VM `vm` that have this INTID; by what it is asked to stop is not among them.
    pub(super) fn sources_of(&self, vm: u16, vintid: u16) -> usize {
        let number = usize::from(vm);
        let event = self.vms.get(number).map(|row| row.event_intid);
        let heard = self.doorbells.iter().filter(|bell| bell.to == vm);
        // Those that no device of the board has are for sources that are counted here.
        let linked = self.irqs_of(number).iter();
        let linked = linked.filter(|irq| irq.flags & IRQ_DOORBELL == 0);
        let told = self.backends().iter().filter(|backend| backend.vm == vm);
        let sources = event
            .into_iter()
            .chain(linked.map(|irq| irq.vintid))
            .chain(self.devices_of(number).iter().map(|device| device.vintid))
            .chain(heard.map(|bell| bell.vintid))
            .chain(told.map(|backend| backend.vintid))
            .chain(self.virtio_devices_of(number).iter().map(|row| row.vintid));
        number_of(sources.filter(|source| *source == vintid))
    }

    /// Whether VM `vm` exists and has the virtual GIC.
    fn has_vgic(&self, vm: u16) -> bool {
        let vm = self.vms.get(usize::from(vm));
        vm.is_some_and(|vm| vm.interrupts == VGIC)
    }

    /// Whether `span` is in one piece of RAM of VM `vm`.
    fn in_ram(&self, vm: usize, span: Span) -> bool {
        let ram = self.regions_of(vm).iter().filter(|region| is_ram(region));
        ram.filter_map(region_ipa).any(|ram| ram.contains(span))
    }

    /// Whether something that is loaded for VM `vm` overlaps `span`.
    fn is_loaded(&self, vm: usize, span: Span) -> bool {
        let payloads = self.payloads_of(vm).iter();
        payloads
            .filter_map(|payload| Span::new(payload.ipa, payload.size))
            .any(|payload| payload.overlaps(span))
    }

    /// Whether `region` is the registers of a virtio device of its VM.
    pub(super) fn has_virtio_device(&self, region: &Region) -> bool {
        let mut devices = self.virtio_devices_of(usize::from(region.vm)).iter();
        region.pa == 0 && region.size == PAGE && devices.any(|device| device.ipa == region.ipa)
    }
}

/// Whether a backend is EL2 itself.
pub(super) const fn is_el2(backend: &Backend) -> bool {
    backend.vm == NONE
}

/// Checks that the keys of the rows of a table ascend, no two alike.
fn ascending(table: TableId, keys: impl Iterator<Item = (u16, u64)>) -> Check {
    let mut before = None;
    for (row, key) in keys.enumerate() {
        let ascends = before.is_none_or(|before| before < key);
        At::row(table, row).ensure(ascends, Invariant::TableOrder)?;
        before = Some(key);
    }
    Ok(())
}

//! Virtio devices of VMs and who serves them (`docs/adr/0024-shadow-virtqueues.md`): the service VM, which the planner adds,
//! its CPU, the devices with their windows, and the rows of all that.

mod device;
mod disk;
mod mac;
mod rows;
mod service;
mod threads;
mod window;

use bulkhead_abi::plan::PAGE;
use bulkhead_model::describe::{Finding, System};

pub use device::{DeviceUse, PlannedDevice, Ports};
pub(crate) use disk::{Disks, disks};
pub(crate) use rows::{Rows, highest};
pub(crate) use service::{COUNTERS, index as service_vm, is_needed, with_service};
pub use threads::PlannedThread;
pub(crate) use threads::{Chosen, choose};

use crate::file::Content;
use crate::{ipa, spis};

/// IPA of the registers of a VM's first virtio device, where QEMU's `virt` has them; also of the page by which the service VM
/// tells EL2. If that is taken, the next one that is free.
const REGISTERS: u64 = 0x0a00_0000;

/// The service VM, which the planner adds for disks and networks.
#[derive(Clone, Debug)]
pub struct ServiceVm {
    /// Index of the VM, the last.
    pub vm: usize,
    /// INTID by which it is told of its devices.
    pub intid: u32,
    /// IPA of the page with the news.
    pub pending: u64,
    /// IPA of the page by which it tells EL2.
    pub bell: u64,
    /// IPA and bytes of the memory with its counters.
    pub counts: (u64, u64),
    /// Reason for its CPU time: what else runs on its CPU.
    pub time_why: String,
}

/// The image of disks.
#[derive(Clone, Debug)]
pub struct PlannedImage {
    /// Name in the description.
    pub name: String,
    /// IPA in the service VM.
    pub ipa: u64,
    /// Content, padded with zeros.
    pub content: Content,
    /// Whether it has not been built or fetched yet, so that something else stands for it.
    pub absent: bool,
}

/// The virtio devices of a system and who serves them.
#[derive(Clone, Debug)]
pub struct PlannedIo {
    /// Who serves disks and networks; none: VMs have neither. EL2 serves consoles itself.
    pub service: Option<ServiceVm>,
    /// The service threads: first that on the CPU of the service VM, if it has devices.
    pub threads: Vec<PlannedThread>,
    /// The devices, by VM.
    pub devices: Vec<PlannedDevice>,
    /// What disks hold when the board starts.
    pub images: Vec<PlannedImage>,
}

impl PlannedIo {
    /// The devices of a VM.
    pub fn of_vm(&self, vm: usize) -> impl Iterator<Item = &PlannedDevice> {
        self.devices.iter().filter(move |device| device.vm == vm)
    }

    /// Who serves disks and networks, if that is VM `vm`.
    pub fn served_by(&self, vm: usize) -> Option<&ServiceVm> {
        self.service.as_ref().filter(|service| service.vm == vm)
    }

    /// The devices that the service VM serves.
    pub fn served(&self) -> impl Iterator<Item = &PlannedDevice> {
        let devices = self.devices.iter();
        devices.filter(|device| !device.use_.is_console())
    }

    /// The devices of a service thread, by its number.
    pub fn of_thread(&self, thread: usize) -> impl Iterator<Item = &PlannedDevice> {
        self.devices
            .iter()
            .filter(move |device| device.thread == thread)
    }

    /// Whether a service thread reaches the memory of VM `vm`.
    pub fn reaches(&self, thread: usize, vm: usize) -> bool {
        let serves = self.served_by(vm).is_some();
        self.of_thread(thread)
            .any(|device| device.vm == vm || serves && !device.use_.is_console())
    }

    /// First byte of the RAM of the service VM that its program does not have: images, windows and the page of news are from here on.
    pub fn windows(&self) -> u64 {
        let first = self.served().map(|device| device.window);
        let images = self.images.iter().map(|image| image.ipa);
        let pending = self.service.iter().map(|service| service.pending);
        first.chain(images).chain(pending).min().unwrap_or(0)
    }

    /// Gives devices of VM `vm`, or the service VM itself, INTIDs that nothing else in the VM has.
    pub(super) fn assign_intids(&mut self, vm: usize, taken: &mut Vec<u32>) {
        let interrupts = |device: &&mut PlannedDevice| device.vm == vm && device.poll.is_none();
        let own = self.devices.iter_mut().filter(interrupts);
        let intids = own.map(|device| &mut device.intid);
        let service = self.service.as_mut().filter(|service| service.vm == vm);
        let told = service.map(|service| &mut service.intid);
        let mut next = spis::EVENT_INTID + 1;
        for intid in intids.chain(told) {
            while taken.contains(&next) {
                next += 1;
            }
            *intid = next;
            taken.push(next);
        }
    }

    /// Gives devices of VM `vm`, or the service VM itself, pages at which the VM has nothing. `pages` are those that
    /// have an owner.
    pub(super) fn assign_pages(&mut self, vm: usize, things: ipa::Occupied, pages: &mut Vec<u64>) {
        let own = self.devices.iter_mut().filter(|device| device.vm == vm);
        let places = own.map(|device| &mut device.ipa);
        let service = self.service.as_mut().filter(|service| service.vm == vm);
        let bell = service.map(|service| &mut service.bell);
        let mut next = REGISTERS;
        for place in places.chain(bell) {
            *place = ipa::free_page(next, things, pages);
            next = *place + PAGE;
            pages.push(*place);
        }
    }
}

/// The devices of a system whose service VM has its CPU; `system` is that of [`with_service`].
pub(super) fn plan(
    system: &System,
    disks: &Disks,
    chosen: Option<Chosen>,
    findings: &mut Vec<Finding>,
) -> Option<PlannedIo> {
    let mut devices = device::all(system, disks, findings);
    for device in &mut devices {
        let of_vms = chosen.iter().flat_map(|chosen| &chosen.of_vms);
        device.thread = of_vms.copied().nth(device.vm).unwrap_or(0);
    }
    let windows = devices.iter().map(|device| device.window_size);
    let windows: u64 = windows.sum();
    let vm = service_vm(system);
    if vm.is_some() && !service::fits(system, windows + disks.ram_bytes(), findings) {
        return None;
    }
    let service = vm.map(|vm| {
        let ram = service::ram(system, vm);
        ServiceVm {
            vm,
            intid: 0,
            pending: ram.0 + ram.1 - PAGE,
            bell: 0,
            counts: device::COUNTS,
            time_why: chosen
                .as_ref()
                .map_or_else(String::new, |chosen| chosen.vm.1.clone()),
        }
    });
    let mut window = service
        .as_ref()
        .map_or(0, |service| service.pending - windows);
    let mut next = window.saturating_sub(disks.ram_bytes());
    let images = disks.images.iter().map(|image| {
        let ipa = next;
        next += image.ram_bytes();
        PlannedImage {
            name: image.name.clone(),
            ipa,
            content: Content::clone(&image.content),
            absent: image.absent,
        }
    });
    let images = images.collect();
    for device in devices.iter_mut().filter(|device| device.window_size != 0) {
        device.window = window;
        window += device.window_size;
    }
    Some(PlannedIo {
        service,
        threads: chosen?.threads,
        devices,
        images,
    })
}

#[cfg(test)]
mod tests;

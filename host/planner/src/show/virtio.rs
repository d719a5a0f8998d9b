//! Virtio devices in a plan, and who serves them.

use std::fmt::Write;

use bulkhead_model::describe::{CpuTime, Duration, Size};
use serde::Serialize;

use super::document::{Hex, Time};
use super::{count, listed};
use crate::io::Ports;
use crate::{DeviceUse, Planned, PlannedDevice, PlannedIo, PlannedThread};

/// CPUs to which a service thread may be moved.
const STAYS: &[usize] = &[];

/// Writes the virtio devices of a VM, or what the service VM serves.
pub(super) fn write(planned: &Planned, vm: usize, out: &mut String) -> std::fmt::Result {
    let Some(io) = &planned.io else {
        return Ok(());
    };
    for device in io.of_vm(vm) {
        let told = match device.poll {
            Some(poll) => format!("polled each {}, no interrupt", Duration(poll)),
            None => match device.spi {
                Some(spi) => format!("INTID {} by SPI {spi} of the board", device.intid),
                None => format!("INTID {}", device.intid),
            },
        };
        let place = format!("IPA {:#x}, {told}", device.ipa);
        match &device.use_ {
            DeviceUse::Disk { name, size, .. } => {
                let content = content(planned, io, device);
                writeln!(
                    out,
                    "  disk       {name}: {}{content}, {place}",
                    Size(*size)
                )?;
            }
            DeviceUse::Card {
                network, vlan, mac, ..
            } => {
                let vlan = vlan.map_or(String::new(), |vlan| format!(", VLAN {vlan}"));
                writeln!(out, "  network    {network}{vlan}: {mac}, {place}")?;
            }
            DeviceUse::Console(Ports::Control) => {
                writeln!(
                    out,
                    "  control    virtio-console without port 0, served by EL2: {place}"
                )?;
            }
            DeviceUse::Console(Ports::Console) => {
                writeln!(out, "  console    virtio-console, served by EL2: {place}")?;
            }
            DeviceUse::Console(Ports::Both) => {
                writeln!(
                    out,
                    "  console    virtio-console with the control port, served by EL2: {place}"
                )?;
            }
        }
    }
    let Some(service) = io.served_by(vm) else {
        return Ok(());
    };
    writeln!(
        out,
        "  added      by the planner, for disks and networks of other VMs; told by INTID {}, tells by the page at IPA {:#x}",
        service.intid, service.bell
    )?;
    for image in &io.images {
        writeln!(
            out,
            "  image      {}: {} at IPA {:#x}",
            image.name,
            Size(image.content.len() as u64),
            image.ipa
        )?;
    }
    for device in io.served() {
        writeln!(
            out,
            "  serves     {} of {}, by a window of {} at IPA {:#x}",
            device.use_.called(),
            planned.vms[device.vm].name,
            Size(device.window_size),
            device.window
        )?;
    }
    write_threads(planned, io, out)
}

/// What a disk holds when the board starts, where what its VM writes goes, and who else has it.
fn content(planned: &Planned, io: &PlannedIo, device: &PlannedDevice) -> String {
    let DeviceUse::Disk {
        memory,
        read_only,
        shared,
        ref name,
        ..
    } = device.use_
    else {
        return String::new();
    };
    let mut text = String::new();
    if read_only {
        text.push_str(", read-only");
    }
    if let Some(image) = image_of(io, device) {
        text.push_str(&format!(", of {image}"));
        if let Some((_, bytes)) = memory {
            text.push_str(&format!(", with {} for changes", Size(bytes)));
        }
    }
    let is_same = |other: &&PlannedDevice| match &other.use_ {
        DeviceUse::Disk {
            name: other_name,
            shared: true,
            ..
        } => shared && other_name == name && other.vm != device.vm,
        _ => false,
    };
    let others = io.served().filter(is_same);
    let others: Vec<&str> = others
        .filter_map(|other| Some(planned.vms.get(other.vm)?.name.as_str()))
        .collect();
    if !others.is_empty() {
        text.push_str(&format!(", one with that of {}", others.join(", ")));
    }
    text
}

/// Name of the image of a disk, if it has one.
fn image_of<'a>(io: &'a PlannedIo, device: &PlannedDevice) -> Option<&'a str> {
    match device.use_ {
        DeviceUse::Disk { image, .. } => Some(io.images.get(image?)?.name.as_str()),
        DeviceUse::Card { .. } | DeviceUse::Console(_) => None,
    }
}

/// Writes where the service threads run.
pub(super) fn write_threads(
    planned: &Planned,
    io: &PlannedIo,
    out: &mut String,
) -> std::fmt::Result {
    for (number, thread) in io.threads.iter().enumerate() {
        let whose = match io.threads.len() {
            1 => String::new(),
            _ => format!(
                " of {}",
                listed(served_by(planned, io, number).map(str::to_owned).collect())
            ),
        };
        write_thread(thread, &whose, out)?;
    }
    Ok(())
}

/// The VMs whose data a service thread moves.
fn served_by<'a>(
    planned: &'a Planned,
    io: &'a PlannedIo,
    thread: usize,
) -> impl Iterator<Item = &'a str> {
    let vms = planned.vms.iter().enumerate();
    let served = vms.filter(move |(vm, _)| io.of_thread(thread).any(|device| device.vm == *vm));
    served.map(|(_, vm)| vm.name.as_str())
}

/// Writes where a service thread runs; `whose` data it moves is said where there are several.
fn write_thread(thread: &PlannedThread, whose: &str, out: &mut String) -> std::fmt::Result {
    let time = match thread.time {
        CpuTime::Server { budget, period } => {
            format!(
                "a server of {} in each {}",
                Duration(budget),
                Duration(period)
            )
        }
        CpuTime::Fair { weight, .. } => format!("fair with weight {weight}"),
        CpuTime::Pinned => "pinned".to_owned(),
    };
    writeln!(
        out,
        "  thread     EL2's service thread moves the data{whose}: on CPU {}, {time} ({}), {} of pool",
        thread.cpu,
        thread.why,
        count(thread.pages as usize, "page")
    )
}

/// Who serves virtio devices.
#[derive(Serialize)]
pub(super) struct Service<'a> {
    #[serde(flatten)]
    vm: Option<Server<'a>>,
    threads: Vec<Thread<'a>>,
}

/// The service VM, if there is one.
#[derive(Serialize)]
struct Server<'a> {
    vm: &'a str,
    vintid: u32,
    pending: Hex,
    bell: Hex,
}

/// A service thread: its CPU time and the reason, and the VMs whose data it moves.
#[derive(Serialize)]
struct Thread<'a> {
    cpu: usize,
    #[serde(flatten)]
    time: Time<&'static [usize]>,
    why: &'a str,
    serves: Vec<&'a str>,
    #[serde(rename = "pool_pages")]
    page_pool_pages: u32,
}

impl<'a> Service<'a> {
    /// None, if no VM has a virtio device.
    pub fn of(planned: &'a Planned) -> Option<Self> {
        let io = planned.io.as_ref()?;
        Some(Self {
            vm: io.service.as_ref().map(|service| Server {
                vm: &planned.vms[service.vm].name,
                vintid: service.intid,
                pending: Hex(service.pending),
                bell: Hex(service.bell),
            }),
            threads: { io.threads.iter().enumerate() }
                .map(|(number, thread)| Thread {
                    cpu: thread.cpu,
                    time: Time::of(thread.time, STAYS),
                    why: &thread.why,
                    serves: served_by(planned, io, number).collect(),
                    page_pool_pages: thread.pages,
                })
                .collect(),
        })
    }
}

/// A virtio device of a VM.
#[derive(Serialize)]
pub(super) struct Device<'a> {
    kind: &'static str,
    /// Of the disk, or of the network.
    name: &'a str,
    unit: u16,
    ipa: Hex,
    #[serde(skip_serializing_if = "Option::is_none")]
    vintid: Option<u32>,
    /// Of one that is polled.
    #[serde(skip_serializing_if = "Option::is_none")]
    poll_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// Of a disk: what it holds when the board starts; none: zeros.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<&'a str>,
    /// Bytes of memory for what is written to a disk; none: nobody writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<u64>,
    /// Of a disk: its VM does not write to it.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    read_only: bool,
    /// Of a disk: it is one with those of its name that other VMs have.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    shared: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<u16>,
    /// None: EL2 serves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<Window>,
}

/// Memory of the service VM, by which a device is served.
#[derive(Serialize)]
struct Window {
    ipa: Hex,
    size: u64,
}

/// The virtio devices of a VM.
pub(super) fn devices(planned: &Planned, vm: usize) -> Vec<Device<'_>> {
    let io = planned.io.iter();
    io.flat_map(|io| io.of_vm(vm).map(|device| Device::of(io, device)))
        .collect()
}

impl<'a> Device<'a> {
    fn of(io: &'a PlannedIo, device: &'a PlannedDevice) -> Self {
        let (kind, name, size, mac, vlan) = match &device.use_ {
            DeviceUse::Disk { name, size, .. } => ("disk", name.as_str(), Some(*size), None, None),
            DeviceUse::Card {
                network, vlan, mac, ..
            } => (
                "network",
                network.as_str(),
                None,
                Some(mac.to_string()),
                *vlan,
            ),
            DeviceUse::Console(ports) => ("console", ports.name(), None, None, None),
        };
        Self {
            kind,
            name,
            unit: device.unit,
            ipa: Hex(device.ipa),
            vintid: device.poll.is_none().then_some(device.intid),
            poll_ns: device.poll,
            size,
            image: image_of(io, device),
            changes: match device.use_ {
                DeviceUse::Disk { memory, .. } => memory.map(|(_, bytes)| bytes),
                DeviceUse::Card { .. } | DeviceUse::Console(_) => None,
            },
            read_only: matches!(
                device.use_,
                DeviceUse::Disk {
                    read_only: true,
                    ..
                }
            ),
            shared: matches!(device.use_, DeviceUse::Disk { shared: true, .. }),
            mac,
            vlan,
            window: (device.window_size != 0).then_some(Window {
                ipa: Hex(device.window),
                size: device.window_size,
            }),
        }
    }
}

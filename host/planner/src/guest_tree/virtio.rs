//! Nodes of virtio devices, and of who serves them.

use bulkhead_abi::plan::PAGE;

use super::{Build, EDGE};
use crate::io::{DeviceUse, PlannedDevice, PlannedIo};

/// What the service VM serves.
#[derive(Clone, Copy, Debug)]
pub struct BackendEnd<'a> {
    /// Devices and pages.
    pub io: &'a PlannedIo,
    /// Names of all VMs.
    pub vms: &'a [&'a str],
}

/// The node of a device (Linux, Documentation/devicetree/bindings/virtio/mmio.yaml).
pub(super) fn device(device: &PlannedDevice) -> Build {
    Build::new(format!("virtio_mmio@{:x}", device.ipa))
        .texts("compatible", &["virtio,mmio"])
        .wide("reg", &[device.ipa, PAGE])
        .cells("interrupts", &[0, device.intid - 32, EDGE])
        .bytes("dma-coherent", &[])
}

/// The node that tells the service VM what it serves.
pub(super) fn backend(end: BackendEnd) -> Build {
    let io = end.io;
    let node = Build::new(format!("backend@{:x}", io.news))
        .texts("compatible", &["bulkhead,backend"])
        .wide("reg", &[io.news, PAGE, io.bell, PAGE])
        .cells("interrupts", &[0, io.intid - 32, EDGE])
        .cells("#address-cells", &[2])
        .cells("#size-cells", &[2])
        .bytes("ranges", &[]);
    let node = io.devices.iter().fold(node, |node, device| {
        let window = Build::new(format!("window@{:x}", device.window));
        node.child(window.wide("reg", &[device.window, device.window_size]))
    });
    io.devices.iter().fold(node, |node, device| {
        let unit = u32::from(device.unit);
        node.child(match &device.use_ {
            DeviceUse::Disk { name, size, memory } => Build::new(format!("disk@{memory:x}"))
                .wide("reg", &[*memory, *size])
                .cells("unit", &[unit])
                .texts("label", &[name]),
            DeviceUse::Card { domain, mac, .. } => Build::new(format!("port-{unit}"))
                .cells("unit", &[unit])
                .texts("label", &[end.vms.get(device.vm).unwrap_or(&"")])
                .cells("vlan", &[u32::from(*domain)])
                .bytes("mac-address", &mac.0),
        })
    })
}

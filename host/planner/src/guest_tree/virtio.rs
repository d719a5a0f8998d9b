//! Nodes of virtio devices, and of who serves them.

use bulkhead_abi::plan::PAGE;

use super::build::{Build, EDGE};
use crate::io::{DeviceUse, PlannedDevice, PlannedIo, ServiceVm};

/// What the service VM serves.
#[derive(Clone, Copy, Debug)]
pub struct BackendEnd<'a> {
    /// All devices.
    pub io: &'a PlannedIo,
    /// The service VM.
    pub service: &'a ServiceVm,
    /// Names of all VMs.
    pub vms: &'a [&'a str],
}

/// The node of a device (Linux, Documentation/devicetree/bindings/virtio/mmio.yaml). One that is polled has no interrupt.
pub(super) fn device(device: &PlannedDevice) -> Build {
    let node = Build::new(format!("virtio_mmio@{:x}", device.ipa))
        .texts("compatible", &["virtio,mmio"])
        .wide("reg", &[device.ipa, PAGE])
        .bytes("dma-coherent", &[]);
    match device.poll {
        Some(_) => node,
        None => node.cells("interrupts", &[0, device.intid - 32, EDGE]),
    }
}

/// The node that tells the service VM what it serves.
pub(super) fn backend(end: BackendEnd) -> Build {
    let (io, service) = (end.io, end.service);
    let node = Build::new(format!("backend@{:x}", service.pending))
        .texts("compatible", &["bulkhead,backend"])
        .wide("reg", &[service.pending, PAGE, service.bell, PAGE])
        .cells("interrupts", &[0, service.intid - 32, EDGE])
        .cells("#address-cells", &[2])
        .cells("#size-cells", &[2])
        .bytes("ranges", &[]);
    let node = io.served().fold(node, |node, device| {
        let window = Build::new(format!("window@{:x}", device.window));
        node.child(window.wide("reg", &[device.window, device.window_size]))
    });
    io.served().fold(node, |node, device| {
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
            DeviceUse::Console => unreachable!("EL2 serves it"),
        })
    })
}

#[cfg(test)]
mod tests {
    use bulkhead_model::describe::{CpuTime, Mac};
    use dtoolkit::fdt::Fdt;
    use dtoolkit::model::DeviceTree;
    use dtoolkit::{Node as _, Property as _};

    use super::*;

    /// A VM with a disk, and one with a card.
    fn io() -> PlannedIo {
        let device = |vm, use_, ipa, intid, index, window| PlannedDevice {
            vm,
            use_,
            ipa,
            intid,
            poll: None,
            unit: 0,
            index,
            window,
            window_size: 0x4_2000,
        };
        let disk = DeviceUse::Disk {
            name: "data".to_owned(),
            size: 64 << 20,
            memory: 0x1_0000_0000,
        };
        let card = DeviceUse::Card {
            network: "lan".to_owned(),
            vlan: Some(5),
            domain: 5,
            mac: Mac([2, 0, 0, 0, 0, 1]),
        };
        PlannedIo {
            service: Some(ServiceVm {
                vm: 2,
                intid: 37,
                pending: 0x403f_f000,
                bell: 0x0a00_0000,
            }),
            cpu: 3,
            time: CpuTime::Pinned,
            time_why: String::new(),
            devices: vec![
                device(0, disk, 0x0a00_0000, 37, 0, 0x4037_b000),
                device(1, card, 0x0a00_1000, 38, 1, 0x403b_d000),
            ],
            pages: 0,
        }
    }

    fn dtb(node: Build) -> Vec<u8> {
        let mut tree = DeviceTree::new();
        tree.root = Build::new("")
            .cells("#address-cells", &[2])
            .cells("#size-cells", &[2])
            .child(node)
            .0;
        tree.to_dtb()
    }

    fn value(fdt: &Fdt, path: &str, name: &str) -> Vec<u8> {
        let node = fdt.find_node(path).expect(path);
        node.property(name).expect(name).value().to_vec()
    }

    fn cells(fdt: &Fdt, path: &str, name: &str) -> Vec<u32> {
        let value = value(fdt, path, name);
        let (cells, rest) = value.as_chunks::<4>();
        assert!(rest.is_empty(), "{path} {name}");
        cells.iter().map(|cell| u32::from_be_bytes(*cell)).collect()
    }

    #[test]
    fn a_guest_finds_its_disk() {
        let bytes = dtb(device(&io().devices[0]));
        let fdt = Fdt::new(&bytes).expect("a sound tree");
        let path = "/virtio_mmio@a000000";
        assert_eq!(value(&fdt, path, "compatible"), b"virtio,mmio\0");
        assert_eq!(cells(&fdt, path, "reg"), [0, 0x0a00_0000, 0, 0x1000]);
        assert_eq!(cells(&fdt, path, "interrupts"), [0, 5, 1]);
        assert!(value(&fdt, path, "dma-coherent").is_empty());
        let mut polled = io().devices.remove(0);
        (polled.poll, polled.intid) = (Some(1_000_000), 0);
        let bytes = dtb(device(&polled));
        let fdt = Fdt::new(&bytes).expect("a sound tree");
        assert_eq!(value(&fdt, path, "compatible"), b"virtio,mmio\0");
        let node = fdt.find_node(path).expect(path);
        assert!(node.property("interrupts").is_none());
    }

    #[test]
    fn the_service_vm_finds_what_it_serves() {
        let io = io();
        let vms = ["one", "two", "service"];
        let service = io.service.as_ref().expect("a service VM");
        let end = BackendEnd {
            io: &io,
            service,
            vms: &vms,
        };
        let bytes = dtb(backend(end));
        let fdt = Fdt::new(&bytes).expect("a sound tree");
        let path = "/backend@403ff000";
        assert_eq!(value(&fdt, path, "compatible"), b"bulkhead,backend\0");
        let pages = [0, 0x403f_f000, 0, 0x1000, 0, 0x0a00_0000, 0, 0x1000];
        assert_eq!(cells(&fdt, path, "reg"), pages);
        assert_eq!(cells(&fdt, path, "interrupts"), [0, 5, 1]);
        for window in [0x4037_b000, 0x403b_d000] {
            let path = format!("{path}/window@{window:x}");
            assert_eq!(cells(&fdt, &path, "reg"), [0, window, 0, 0x4_2000]);
        }
        let disk = format!("{path}/disk@100000000");
        assert_eq!(cells(&fdt, &disk, "reg"), [1, 0, 0, 64 << 20]);
        assert_eq!(cells(&fdt, &disk, "unit"), [0]);
        assert_eq!(value(&fdt, &disk, "label"), b"data\0");
        let port = format!("{path}/port-0");
        assert_eq!(cells(&fdt, &port, "unit"), [0]);
        assert_eq!(value(&fdt, &port, "label"), b"two\0");
        assert_eq!(cells(&fdt, &port, "vlan"), [5]);
        assert_eq!(value(&fdt, &port, "mac-address"), [2, 0, 0, 0, 0, 1]);
    }
}

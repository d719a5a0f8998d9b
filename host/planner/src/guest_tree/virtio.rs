//! Nodes of virtio devices, and of who serves them.

use bulkhead_abi::plan::PAGE;

use super::build::{Build, EDGE};
use crate::io::{DeviceUse, PlannedDevice, PlannedImage, PlannedIo, ServiceVm};

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
    let (counts, bytes) = service.counts;
    let counts = Build::new(format!("counts@{counts:x}")).wide("reg", &[counts, bytes]);
    io.served().fold(node.child(counts), |node, device| {
        let unit = u32::from(device.unit);
        let vm = end.vms.get(device.vm).unwrap_or(&"");
        node.child(match &device.use_ {
            DeviceUse::Disk {
                name,
                size,
                image,
                memory,
                ..
            } => {
                let image = image.and_then(|image| io.images.get(image));
                disk(unit, image, *memory)
                    .wide("bytes", &[*size])
                    .texts("label", &[name])
                    .texts("vm", &[vm])
            }
            DeviceUse::Card {
                network,
                domain,
                mac,
                ..
            } => Build::new(format!("port-{unit}"))
                .cells("unit", &[unit])
                .texts("label", &[vm])
                .texts("network", &[network])
                .cells("vlan", &[u32::from(*domain)])
                .bytes("mac-address", &mac.0),
            DeviceUse::Console(_) => unreachable!("EL2 serves it"),
        })
    })
}

/// The node of a disk with the memory that it has: its image, and what it is written to. Several may have one image.
fn disk(unit: u32, image: Option<&PlannedImage>, memory: Option<(u64, u64)>) -> Build {
    let in_ram = image.map(|image| (image.ipa, image.content.len() as u64));
    let places = in_ram.iter().chain(&memory);
    let reg: Vec<u64> = places.flat_map(|(ipa, size)| [*ipa, *size]).collect();
    let first = reg.first().copied().unwrap_or(0);
    let mut node = Build::new(format!("disk-{unit}@{first:x}"))
        .wide("reg", &reg)
        .cells("unit", &[unit]);
    if in_ram.is_some() {
        node = node.bytes("image", &[]);
    }
    if memory.is_some() {
        node = node.bytes("memory", &[]);
    }
    node
}

#[cfg(test)]
mod tests {
    use bulkhead_model::describe::Mac;
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
            spi: None,
            poll: None,
            unit: 0,
            index,
            window,
            window_size: 0x4_2000,
            thread: 0,
        };
        let disk = DeviceUse::Disk {
            name: "data".to_owned(),
            size: 64 << 20,
            image: None,
            memory: Some((0x1_0000_0000, 64 << 20)),
            read_only: false,
            shared: false,
        };
        let copied = DeviceUse::Disk {
            name: "root".to_owned(),
            size: 1536,
            image: Some(0),
            memory: Some((0x1_0400_0000, 0x2000)),
            read_only: false,
            shared: false,
        };
        let read = DeviceUse::Disk {
            name: "docs".to_owned(),
            size: 1024,
            image: Some(0),
            memory: None,
            read_only: true,
            shared: false,
        };
        let mut root = device(0, copied, 0x0a00_2000, 39, 2, 0x4036_0000);
        let mut docs = device(1, read, 0x0a00_3000, 40, 3, 0x4034_0000);
        (root.unit, docs.unit) = (1, 2);
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
                counts: (0xffe0_0000, 0x4000),
                time_why: String::new(),
            }),
            threads: Vec::new(),
            devices: vec![
                device(0, disk, 0x0a00_0000, 37, 0, 0x4037_b000),
                device(1, card, 0x0a00_1000, 38, 1, 0x403b_d000),
                root,
                docs,
            ],
            images: vec![PlannedImage {
                name: "root.img".to_owned(),
                ipa: 0x4033_0000,
                content: vec![7; 1000].into(),
                absent: false,
            }],
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
        let counts = format!("{path}/counts@ffe00000");
        assert_eq!(cells(&fdt, &counts, "reg"), [0, 0xffe0_0000, 0, 0x4000]);
        let disk = format!("{path}/disk-0@100000000");
        assert_eq!(cells(&fdt, &disk, "reg"), [1, 0, 0, 64 << 20]);
        assert_eq!(cells(&fdt, &disk, "unit"), [0]);
        assert_eq!(cells(&fdt, &disk, "bytes"), [0, 64 << 20]);
        assert_eq!(value(&fdt, &disk, "label"), b"data\0");
        assert_eq!(value(&fdt, &disk, "vm"), b"one\0");
        let has = |disk: &str, name: &str| {
            let node = fdt.find_node(disk).expect(disk);
            node.property(name).is_some()
        };
        assert!(has(&disk, "memory") && !has(&disk, "image"));
        // Two with one image: what is written goes elsewhere, and nothing of the other one is.
        let root = format!("{path}/disk-1@40330000");
        let places = [0, 0x4033_0000, 0, 1000, 1, 0x0400_0000, 0, 0x2000];
        assert_eq!(cells(&fdt, &root, "reg"), places);
        assert_eq!(cells(&fdt, &root, "bytes"), [0, 1536]);
        assert!(has(&root, "memory") && has(&root, "image"));
        let docs = format!("{path}/disk-2@40330000");
        assert_eq!(cells(&fdt, &docs, "reg"), [0, 0x4033_0000, 0, 1000]);
        assert!(!has(&docs, "memory") && has(&docs, "image"));
        let port = format!("{path}/port-0");
        assert_eq!(cells(&fdt, &port, "unit"), [0]);
        assert_eq!(value(&fdt, &port, "label"), b"two\0");
        assert_eq!(value(&fdt, &port, "network"), b"lan\0");
        assert_eq!(cells(&fdt, &port, "vlan"), [5]);
        assert_eq!(value(&fdt, &port, "mac-address"), [2, 0, 0, 0, 0, 1]);
    }
}

//! Devices of made-up systems.

use std::collections::BTreeSet;

use bulkhead_abi::plan::{MAX_VIRTIO_DEVICES, PAGE};
use bulkhead_model::describe::{CpuTime, MemorySpec, System, Text, parse};

use super::device::{COUNTS, DISK_ALIGN, all};
use super::disk::{Disk, Image};
use super::*;
use crate::file::File;

/// A system of this name with VMs that have so many disks and cards.
fn system(name: &str, vms: &[(usize, usize)]) -> System {
    let mut source = "[board]\nname = \"qemu-virt\"\n".to_owned();
    if vms.iter().any(|(_, cards)| *cards > 0) {
        source += "[network.lan]\n";
    }
    for (number, (disks, cards)) in vms.iter().enumerate() {
        let disks: String = (0..*disks)
            .map(|disk| format!("{{ name = \"d{disk}\", size = \"{}KiB\" }}, ", 4 + 4 * disk))
            .collect();
        let cards = "{ name = \"lan\" }, ".repeat(*cards);
        source += &format!(
            "[vm.v{number}]\nmemory = \"4MiB\"\nimage = \"i\"\ndisks = [{disks}]\nnetworks = [{cards}]\n"
        );
    }
    let text = Text {
        name: format!("{name}.toml"),
        source: source.into(),
    };
    let mut findings = Vec::new();
    let system = parse(&text, &mut findings);
    let errors: Vec<_> = findings.iter().filter(|it| it.is_error()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    system
}

/// The disks of a system without images.
fn plain(system: &System) -> Disks {
    let specs = system.vms.iter().flat_map(|vm| &vm.disks);
    let sizes = specs.map(|disk| disk.size.as_ref().expect("a size").value);
    let disk = |bytes| Disk {
        bytes,
        image: None,
        memory: Some(bytes),
        same_as: None,
    };
    Disks {
        all: sizes.map(disk).collect(),
        images: Vec::new(),
    }
}

/// The devices of a system, on some CPU.
fn devices(system: &System) -> PlannedIo {
    devices_with(system, &plain(system))
}

fn devices_with(system: &System, disks: &Disks) -> PlannedIo {
    let system = with_service(system, disks);
    let chosen = Chosen {
        cpu: 0,
        vm: (CpuTime::Pinned, String::new()),
        threads: Vec::new(),
        of_vms: Vec::new(),
    };
    let mut findings = Vec::new();
    let io = plan(&system, disks, Some(chosen), &mut findings).expect("devices");
    assert!(findings.is_empty(), "{findings:?}");
    io
}

/// The addresses of the cards of a system.
fn macs(system: &System) -> Vec<[u8; 6]> {
    let devices = all(system, &plain(system), &mut Vec::new());
    let macs = devices.iter().filter_map(|device| match &device.use_ {
        DeviceUse::Card { mac, .. } => Some(mac.0),
        DeviceUse::Disk { .. } | DeviceUse::Console(_) => None,
    });
    macs.collect()
}

#[test]
fn cards_have_addresses_of_their_own_that_stay() {
    let one = system("one", &[(0, 3), (1, 2), (0, 1)]);
    let first = macs(&one);
    assert_eq!(first.len(), 6);
    assert_eq!(first, macs(&one));
    let other = macs(&system("other", &[(0, 3), (1, 2), (0, 1)]));
    let both: BTreeSet<_> = first.iter().chain(&other).collect();
    assert_eq!(both.len(), 12, "{both:x?}");
    // Locally administered, of one station.
    assert!(both.iter().all(|mac| mac[0] & 3 == 2), "{both:x?}");
    // A card that comes behind changes no other.
    assert_eq!(macs(&system("one", &[(0, 3), (1, 2), (0, 4)]))[..6], first);
}

#[test]
fn an_address_that_the_description_has_is_made_for_nobody_else() {
    let free = macs(&system("one", &[(0, 1), (0, 1)]));
    let mut taken = system("one", &[(0, 1), (0, 1)]);
    let place = taken.vms[1].ports[0].network.span.clone();
    taken.vms[1].ports[0].mac = Some(bulkhead_model::describe::Placed {
        value: bulkhead_model::describe::Mac(free[0]),
        span: place,
    });
    let [made, stated] = macs(&taken)[..] else {
        panic!("two cards");
    };
    assert_eq!(stated, free[0]);
    assert_ne!(made, stated);
}

#[test]
fn networks_and_vlans_are_apart_in_the_switch() {
    let mut system = system("one", &[(0, 4)]);
    let two = system.networks[0].clone();
    system.networks.push(two);
    system.networks[1].name.value = "dmz".to_owned();
    let ports = &mut system.vms[0].ports;
    for (port, network, vlan) in [(1, "lan", Some(5)), (2, "dmz", None), (3, "dmz", Some(5))] {
        let span = ports[port].network.span.clone();
        ports[port].network.value = network.to_owned();
        ports[port].vlan = vlan.map(|value| bulkhead_model::describe::Placed { value, span });
    }
    let devices = all(&system, &plain(&system), &mut Vec::new());
    let domains = devices.iter().map(|device| match device.use_ {
        DeviceUse::Card { domain, .. } => domain,
        DeviceUse::Disk { .. } | DeviceUse::Console(_) => panic!("a card"),
    });
    let domains: Vec<u16> = domains.collect();
    assert_eq!(domains, [0, 5, 0x1000, 0x1005]);
}

#[test]
fn windows_and_disks_are_apart_and_in_their_places() {
    for vms in [
        vec![(1, 0)],
        vec![(0, 1), (0, 1)],
        vec![(3, 2), (0, 0), (1, 1)],
        vec![(32, 32)],
        vec![(8, 8); 4],
    ] {
        let system = system("one", &vms);
        let io = devices(&system);
        let extended = with_service(&system, &plain(&system));
        let service = io.service.as_ref().expect("a service VM");
        let ram = (
            MemorySpec::USUAL,
            extended.vms[service.vm].memory.size.value,
        );
        assert_eq!(service.pending + PAGE, ram.0 + ram.1, "at the very end");
        assert!(io.windows() > ram.0);
        let mut next = io.windows();
        for (number, device) in io.devices.iter().enumerate() {
            assert_eq!(usize::from(device.index), number);
            assert_eq!(device.window, next, "one behind the other");
            assert_eq!(device.window_size % PAGE, 0);
            next += device.window_size;
        }
        assert_eq!(next, service.pending);
        assert!(io.devices.len() <= MAX_VIRTIO_DEVICES);
        // By VM, and numbered by kind from 0.
        assert!(io.devices.is_sorted_by_key(|device| device.vm));
        for id in [1, 2] {
            let alike = io.devices.iter().filter(|device| device.use_.id() == id);
            assert!(alike.zip(0..).all(|(device, unit)| device.unit == unit));
        }
        assert!(COUNTS.0 >= ram.0 + ram.1);
        let mut end = COUNTS.0 + COUNTS.1;
        for device in &io.devices {
            if let DeviceUse::Disk { size, memory, .. } = device.use_ {
                let (memory, bytes) = memory.expect("memory");
                assert!(memory >= end && memory % DISK_ALIGN == 0, "{memory:#x}");
                assert_eq!(bytes, size);
                end = memory + size;
            }
        }
        let added = extended.shared.iter().filter(|shared| shared.is_added);
        let added: u64 = added.map(|shared| shared.size.value).sum();
        let disks = added - COUNTS.1;
        let sizes = io.devices.iter().map(|device| match device.use_ {
            DeviceUse::Disk { size, .. } => size,
            DeviceUse::Card { .. } | DeviceUse::Console(_) => 0,
        });
        assert_eq!(disks, sizes.sum::<u64>());
    }
}

#[test]
fn images_lie_in_ram_before_the_windows_and_what_is_written_outlives_it() {
    let system = system("one", &[(2, 1), (2, 0)]);
    let image = |bytes: usize| Image {
        name: "i".to_owned(),
        content: File::new(vec![7; bytes]).content(),
        absent: false,
    };
    let disk = |bytes, image, memory| Disk {
        bytes,
        image,
        memory,
        same_as: None,
    };
    let disks = Disks {
        all: vec![
            disk(1024, Some(0), Some(0x2000)),
            disk(0x9000, Some(1), None),
            disk(1024, Some(0), None),
            disk(0x40_0000, None, Some(0x40_0000)),
        ],
        images: vec![image(1000), image(0x9000 - 3)],
    };
    let io = devices_with(&system, &disks);
    let [first, second] = &io.images[..] else {
        panic!("two images");
    };
    assert_eq!(second.ipa, first.ipa + PAGE);
    assert_eq!(first.ipa, io.windows());
    let window = io.devices.iter().map(|device| device.window).min();
    assert_eq!(window, Some(second.ipa + 0x9000));
    let extended = with_service(&system, &disks);
    let ram = &extended.vms[2].memory.size;
    assert!(
        MemorySpec::USUAL + 0x20_0000 <= io.windows(),
        "room for the program"
    );
    assert_eq!(
        MemorySpec::USUAL + ram.value,
        io.service.as_ref().unwrap().pending + PAGE
    );
    let added: Vec<_> = { extended.shared.iter() }
        .filter(|shared| shared.is_added)
        .map(|shared| (shared.ipa.value, shared.size.value))
        .collect();
    let disk = 4 << 30;
    let kept = [(disk, 0x2000), (disk + DISK_ALIGN, 0x40_0000), COUNTS];
    assert_eq!(added, kept);
    const READ_ONLY: u64 = 1 << 5;
    const DISCARD_AND_ZEROES: u64 = 1 << 13 | 1 << 14;
    let found: Vec<_> = { io.devices.iter() }
        .filter(|device| device.use_.id() == 2)
        .map(|device| {
            let sectors = u64::from_le_bytes(device.use_.config()[..8].try_into().unwrap());
            let read_only = device.features() & READ_ONLY != 0;
            let offered = if read_only { 0 } else { DISCARD_AND_ZEROES };
            assert_eq!(device.features() & DISCARD_AND_ZEROES, offered);
            assert_eq!(device.use_.config().len(), if read_only { 24 } else { 60 });
            (sectors, read_only)
        })
        .collect();
    assert_eq!(found, [(2, false), (72, true), (2, true), (0x2000, false)]);
}

#[test]
fn the_largest_requests_fit_the_slots() {
    let io = devices(&system("one", &[(1, 1)]));
    for device in &io.devices {
        for queue in device.use_.queues() {
            let slots = |bytes: u32| bytes.div_ceil(queue.slot_bytes);
            let wanted = slots(queue.readable) + slots(queue.writable);
            assert!(wanted <= u32::from(queue.slots), "{queue:?}");
        }
    }
}

#[test]
fn configs_are_where_drivers_look_for_them() {
    let io = devices(&system("one", &[(2, 1)]));
    let configs: Vec<Vec<u8>> = io.devices.iter().map(|it| it.use_.config()).collect();
    let field = |config: &[u8], at: usize, bytes: usize| {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(&config[at..at + bytes]);
        u64::from_le_bytes(word)
    };
    // Disks of 4 and 8 KiB: capacity in sectors, segments of a page, sectors of 512 bytes.
    for (config, sectors) in configs.iter().zip([8, 16]) {
        assert_eq!(field(config, 0, 8), sectors);
        assert_eq!(field(config, 8, 4), 4096);
        assert_eq!(field(config, 12, 4), 31);
        assert_eq!(field(config, 20, 4), 512);
        // DISCARD: ranges of what 32 bits of bytes can have, sixteen of them, from any sector on. WRITE_ZEROES: one of a mebibyte, which frees
        // nothing.
        assert_eq!(config.len(), 60);
        assert_eq!(field(config, 24, 8), 0);
        assert_eq!(field(config, 32, 4), 0);
        let limits = [36, 40, 44, 48, 52, 56].map(|at| field(config, at, 4));
        assert_eq!(limits, [0x7f_ffff, 16, 1, 2048, 1, 0]);
    }
    let card = &configs[2];
    assert_eq!(card[..6], macs(&system("one", &[(2, 1)]))[0]);
    assert_eq!(field(card, 10, 2), 1500);
}

#[test]
fn a_system_without_devices_stays_as_it_is() {
    let system = system("one", &[(0, 0), (0, 0)]);
    assert!(matches!(
        with_service(&system, &Disks::default()),
        std::borrow::Cow::Borrowed(_)
    ));
    assert_eq!(service_vm(&system), None);
}

#[test]
fn a_thread_reaches_the_vms_of_its_devices_and_who_serves_them() {
    let mut io = devices(&system("one", &[(1, 0), (1, 0)]));
    let service = io.service.as_ref().expect("a service VM").vm;
    let reached = |io: &PlannedIo, thread| [0, 1, service].map(|vm| io.reaches(thread, vm));
    io.devices[1].thread = 1;
    assert_eq!(reached(&io, 0), [true, false, true]);
    assert_eq!(reached(&io, 1), [false, true, true]);
    // EL2 serves a console itself.
    io.devices[1].use_ = DeviceUse::Console(Ports::Console);
    assert_eq!(reached(&io, 1), [false, true, false]);
}

//! Plans of systems whose VMs have disks and networks.

use std::path::Path;

use bulkhead_abi::plan::{
    ACCESS_READ, ACCESS_UNCACHED, CpuPolicy, NONE, Profile, QUEUE_EXACT, QUEUE_REPLAY, RegionKind,
};
use bulkhead_core::plan::Plan;
use bulkhead_core::virtio::pages;
use bulkhead_model::describe::Text;
use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};

use bulkhead_planner::{Planned, show};
use bulkhead_runner::Effort;
use bulkhead_runner::prepare::{prepare, prepare_text};

const FIXTURE: &str = "tests/fixtures/good/virtio.toml";

fn planned() -> Planned {
    match prepare(Path::new(FIXTURE), Effort::WhatIsThere) {
        Ok(prepared) => prepared.planned,
        Err(stopped) => panic!("{}", bulkhead_model::failure::Failure::from(stopped)),
    }
}

/// The same with a part of the description replaced.
fn with(part: &str, other: &str) -> Planned {
    with_all(&[(part, other)])
}

/// The same with several parts of it replaced.
fn with_all(parts: &[(&str, &str)]) -> Planned {
    let mut source = std::fs::read_to_string(FIXTURE).expect("a description");
    for (part, other) in parts {
        assert!(source.contains(part), "{part}");
        source = source.replace(part, other);
    }
    let text = Text {
        name: FIXTURE.to_owned(),
        source: source.into(),
    };
    match prepare_text(text, Effort::WhatIsThere) {
        Ok(prepared) => prepared.planned,
        Err(stopped) => panic!("{}", bulkhead_model::failure::Failure::from(stopped)),
    }
}

/// Runs a test on the bytes of a plan, of which core's own proof finds nothing wrong.
fn with_plan(planned: &Planned, test: impl FnOnce(Plan)) {
    let words = planned.bytes.as_chunks::<8>().0.iter();
    let words: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
    let plan = Plan::open(zerocopy::IntoBytes::as_bytes(&words[..])).expect("a plan");
    assert_eq!(plan.check(), Ok(()));
    test(plan);
}

#[test]
fn the_planner_adds_who_serves() {
    with_plan(&planned(), |plan| {
        assert_eq!(plan.header.image.profile, Profile::Io as u32);
        assert_eq!(&plan.vms[2].name[..8], b"service\0");
        let [thread] = plan.service_threads() else {
            panic!("one thread");
        };
        let [backend] = plan.backends() else {
            panic!("one backend");
        };
        // On the CPU of the console: there is no server there.
        assert_eq!((thread.pcpu, backend.vm), (0, 2));
        let places = plan.vcpus.iter().map(|vcpu| (vcpu.vm, vcpu.pcpu));
        assert!(places.eq([(0, 0), (1, 1), (2, 0)]));
        assert_eq!(thread.policy, CpuPolicy::Fair as u16);
        // What was alone on its CPU is so no longer.
        let fair = CpuPolicy::Fair as u16;
        assert_eq!(plan.vcpus[0].policy, fair);
        assert_eq!(plan.vcpus[2].policy, fair);
    });
}

#[test]
fn beside_servers_the_thread_is_a_server_that_the_cpu_can_keep() {
    let on = |more: &str| {
        with(
            "[network.lan]",
            &format!("[service]\n{more}\n[network.lan]"),
        )
    };
    with_plan(&on("pcpu = 1"), |plan| {
        let thread = &plan.service_threads()[0];
        assert_eq!((thread.pcpu, thread.policy), (1, CpuPolicy::Server as u16));
        assert_eq!((thread.budget, thread.period), (200_000, 1_000_000));
        assert_eq!(plan.vcpus[2].policy, CpuPolicy::Server as u16);
    });
    // What the description says goes before.
    with_plan(&on("pcpu = 1\nweight = 7"), |plan| {
        let thread = &plan.service_threads()[0];
        assert_eq!((thread.policy, thread.weight), (CpuPolicy::Fair as u16, 7));
    });
    with_plan(&on("budget = \"300us\"\nperiod = \"2ms\""), |plan| {
        let thread = &plan.service_threads()[0];
        assert_eq!((thread.budget, thread.period), (300_000, 2_000_000));
    });
}

/// The pCPU and the policy of each service thread of a plan.
fn threads(plan: &Plan) -> Vec<(u16, u16)> {
    let threads = plan.service_threads().iter();
    threads.map(|row| (row.pcpu, row.policy)).collect()
}

/// The VM and the service thread of each virtio device of a plan.
fn devices(plan: &Plan) -> Vec<(u16, u16)> {
    let devices = plan.virtio_devices().iter();
    devices.map(|row| (row.vm, row.service)).collect()
}

#[test]
fn a_vm_is_served_on_its_own_cpu() {
    const SERVER: u16 = CpuPolicy::Server as u16;
    const FAIR: u16 = CpuPolicy::Fair as u16;
    let own = |vm: &str| with(vm, &format!("{vm}\nservice = \"own\""));
    // That of VM two has a server on it: so is the thread there.
    let planned = own("[vm.two]");
    with_plan(&planned, |plan| {
        assert_eq!(threads(&plan), [(0, FAIR), (1, SERVER)]);
        assert_eq!(devices(&plan), [(0, 0), (0, 0), (0, 0), (1, 1)]);
        let [first, second] = [0, 1].map(|thread| {
            let reached = pages::reached(&plan, thread).map(|reached| reached.region.vm);
            reached.collect::<std::collections::BTreeSet<u16>>()
        });
        assert_eq!((first, second), ([0, 2].into(), [1, 2].into()));
    });
    let text = show::text(&planned);
    for line in [
        "thread     EL2's service thread moves the data of one: on CPU 0, fair with weight 1 (no server is on its CPU)",
        "thread     EL2's service thread moves the data of two: on CPU 1, a server of 200 us in each 1 ms (servers are on its CPU)",
    ] {
        assert!(text.contains(line), "`{line}` is not in\n{text}");
    }
    let json = show::json(&planned);
    assert_eq!(json["service"]["threads"][1]["cpu"], 1);
    assert_eq!(json["service"]["threads"][1]["serves"][0], "two");
    assert_eq!(json["cpus"][1]["thread"], true);
    // Where the service VM is anyway there is one thread.
    with_plan(&own("[vm.one]"), |plan| {
        assert_eq!(threads(&plan), [(0, FAIR)]);
    });
    // A thread that has no devices is not there: the service VM is alone on CPU 2. What is said of the CPU time is said of each.
    let all = with_all(&[
        ("dtb = \"../virt.dtb\"", "name = \"qemu-virt\"\ncpus = 3"),
        (
            "[network.lan]",
            "[service]\npcpu = 2\nweight = 3\n[network.lan]",
        ),
        ("[vm.one]", "[vm.one]\nservice = \"own\""),
        ("[vm.two]", "[vm.two]\nservice = \"own\""),
    ]);
    with_plan(&all, |plan| {
        assert_eq!(threads(&plan), [(0, FAIR), (1, FAIR)]);
        assert_eq!(devices(&plan), [(0, 0), (0, 0), (0, 0), (1, 1)]);
        assert!(plan.service_threads().iter().all(|row| row.weight == 3));
        let of_service = plan.vcpus.last().expect("the service VM");
        assert_eq!((of_service.pcpu, of_service.policy), (2, FAIR));
    });
}

#[test]
fn a_cpu_has_room_for_seven_vcpus_and_their_service_thread() {
    // One more is refused (`bad/service-own-room.toml`).
    let many = "[vm.many]\nmemory = \"4MiB\"\nimage = \"../raw.bin\"\nload = \"0x40080000\"\nvcpus = 6\ncpu = \"fair\"\npcpus = [0, 0, 0, 0, 0, 0]\n";
    let planned = with_all(&[
        ("[vm.one]", &format!("{many}[vm.one]\nservice = \"own\"")),
        ("[network.lan]", "[service]\npcpu = 1\n[network.lan]"),
    ]);
    with_plan(&planned, |plan| {
        let on = plan.vcpus.iter().filter(|vcpu| vcpu.pcpu == 0);
        assert_eq!(on.count(), 7);
        let cpus = threads(&plan).into_iter().map(|(pcpu, _)| pcpu);
        assert!(cpus.eq([1, 0]), "{:?}", threads(&plan));
    });
}

#[test]
fn devices_have_rows_registers_and_queues() {
    with_plan(&planned(), |plan| {
        let devices = plan.virtio_devices();
        let numbers = devices
            .iter()
            .map(|it| (it.vm, it.id, it.unit, it.index, it.vintid, it.ipa));
        assert!(numbers.eq([
            (0, 2, 0, 0, 37, 0x0a00_0000),
            (0, 2, 1, 1, 38, 0x0a00_1000),
            (0, 1, 0, 2, 39, 0x0a00_2000),
            (1, 1, 1, 3, 37, 0x0a00_0000),
        ]));
        assert_eq!(devices[2].config[..6], [2, 0, 0, 0, 0, 1]);
        let registers = RegionKind::VirtioRegisters as u16;
        let pages = plan.regions.iter().filter(|it| it.kind == registers);
        assert!(
            pages
                .map(|it| (it.vm, it.access, it.shared, it.pa))
                .eq([0, 0, 0, 1].map(|vm| (vm, ACCESS_READ, NONE, 0)))
        );
        let flags = |device| {
            let queues = plan.virtqueues_of(device).iter();
            queues.map(|queue| queue.flags).collect::<Vec<_>>()
        };
        assert_eq!(flags(0), [QUEUE_REPLAY]);
        assert_eq!(flags(3), [QUEUE_EXACT | QUEUE_REPLAY, 0]);
        // The memory of disks is the service VM's alone.
        let shared = RegionKind::Shared as u16;
        let disks = plan.regions.iter().filter(|it| it.kind == shared);
        let disks = disks.map(|it| (it.vm, it.shared, it.size));
        // That with its counters, too.
        assert!(disks.eq([(2, 0, 16 << 10), (2, 1, 4 << 20), (2, 2, 8 << 10)]));
    });
}

#[test]
fn the_service_vm_has_its_ram_but_for_the_windows() {
    let planned = planned();
    let io = planned.io.as_ref().expect("devices");
    let vm = &planned.vms[io.service.as_ref().expect("a service VM").vm];
    let tree = vm.payloads.iter().find(|it| it.ipa == vm.tree);
    let bytes = &tree.expect("a tree").bytes;
    // What is loaded is padded.
    let size = u32::from_be_bytes(bytes[4..8].try_into().expect("a size"));
    let fdt = Fdt::new(&bytes[..size as usize]).expect("a sound tree");
    let memory = fdt.find_node("/memory@40000000").expect("memory");
    let reg = memory.property("reg").expect("reg").value().to_vec();
    let size = io.windows() - 0x4000_0000;
    assert_eq!(reg[8..], size.to_be_bytes());
    let first = io.devices.iter().map(|device| device.window).min();
    assert_eq!(first, Some(io.windows()));
    let names = fdt.root().children().map(|node| node.name().to_owned());
    let names: Vec<_> = names.collect();
    assert!(names.iter().any(|name| name.starts_with("backend@")));
    // The disks are not among what it shares with others.
    assert!(!names.iter().any(|name| name.starts_with("shared@")));
}

#[test]
fn the_plan_says_who_has_what_and_who_serves() {
    let planned = planned();
    let text = show::text(&planned);
    for line in [
        "runs one, service and the service thread, drains the console",
        "fair    one, service and the service thread: each weight 1, 33.33 % while all others here want theirs",
        "disk       data: 4 MiB, IPA 0xa000000, INTID 37",
        "network    lan, VLAN 5: 02:00:00:00:00:01, IPA 0xa002000, INTID 39",
        "serves     disk log of one, by a window of",
        "added      by the planner",
        "thread     EL2's service thread moves the data: on CPU 0, fair with weight 1 (no server is on its CPU)",
        "disk log of one",
        "EL2's profile is io: VMs have virtio devices",
    ] {
        assert!(text.contains(line), "`{line}` is not in\n{text}");
    }
    let json = show::json(&planned);
    assert_eq!(json["service"]["vm"], "service");
    assert_eq!(json["service"]["threads"][0]["policy"], "fair");
    assert_eq!(json["cpus"][0]["thread"], true);
    assert_eq!(json["vms"][2]["added"], true);
    assert_eq!(json["vms"][0]["added"], false);
    let card = &json["vms"][0]["virtio"][2];
    assert_eq!(
        (&card["kind"], &card["name"]),
        (&"network".into(), &"lan".into())
    );
    assert_eq!(card["mac"], "02:00:00:00:00:01");
    assert_eq!(card["vlan"], 5);
}

#[test]
fn a_disk_has_the_content_of_an_image() {
    let part =
        "disks = [{ name = \"data\", size = \"4MiB\" }, { name = \"log\", size = \"8KiB\" }]";
    let own = "{ name = \"root\", image = \"../notes.txt\" }";
    let read = "{ name = \"docs\", image = \"../raw.bin\", size = \"1MiB\", read_only = true }";
    let copy = "{ name = \"copy\", image = \"../raw.bin\", copy_on_write = true }";
    let planned = with(part, &format!("disks = [{own}, {read}, {copy}]"));
    let notes = std::fs::read("tests/fixtures/notes.txt").expect("a fixture");
    let raw = std::fs::read("tests/fixtures/raw.bin").expect("a fixture");
    let io = planned.io.as_ref().expect("devices");
    let service = &planned.vms[io.service.as_ref().expect("a service VM").vm];
    // EL2 copies each image to where it is read, once for both disks.
    let [first, second] = &io.images[..] else {
        panic!("two images");
    };
    for (image, file) in [(first, &notes), (second, &raw)] {
        let loaded = { service.payloads.iter() }.find(|it| it.ipa == image.ipa);
        let loaded = loaded.expect("a payload");
        assert_eq!(loaded.bytes[..file.len()], file[..]);
        assert!(loaded.bytes[file.len()..].iter().all(|byte| *byte == 0));
        assert!(image.ipa + loaded.bytes.len() as u64 <= io.devices[0].window);
    }
    // The VM runs the second of these files: it is there once.
    let program = { planned.vms[0].payloads.iter() }.find(|it| it.what == "program");
    let of_disk = { service.payloads.iter() }.find(|it| it.ipa == second.ipa);
    let offsets = [program, of_disk].map(|it| it.expect("a payload").offset);
    assert_eq!(offsets[0], offsets[1]);
    let sectors = |bytes: usize| bytes.div_ceil(512) as u64;
    with_plan(&planned, |plan| {
        let disks = plan.virtio_devices().iter().take(3).map(|device| {
            let sectors = u64::from_le_bytes(device.config[..8].try_into().expect("8 bytes"));
            (sectors, device.features >> 5 & 1)
        });
        let wanted = [
            (sectors(notes.len()), 0),
            (2048, 1),
            (sectors(raw.len()), 0),
        ];
        assert_eq!(disks.collect::<Vec<_>>(), wanted);
        let shared = RegionKind::Shared as u16;
        let kept = plan.regions.iter().filter(|it| it.kind == shared);
        // Counters, then a block and its map for each disk that is written.
        let kept: Vec<_> = kept.map(|it| (it.vm, it.size)).collect();
        assert_eq!(kept, [(2, 16 << 10), (2, 8 << 10), (2, 8 << 10)]);
    });
    let text = show::text(&planned);
    for line in [
        ", of ../notes.txt, with 8 KiB for changes, IPA 0xa000000",
        "docs: 1 MiB, read-only, of ../raw.bin, IPA 0xa001000",
        "image      ../notes.txt: ",
    ] {
        assert!(text.contains(line), "`{line}` is not in\n{text}");
    }
    let json = show::json(&planned);
    let disks = &json["vms"][0]["virtio"];
    assert_eq!(disks[1]["image"], "../raw.bin");
    assert!(disks[1].get("changes").is_none());
    assert_eq!(disks[2]["changes"], 8 << 10);
}

#[test]
fn a_shared_disk_is_one_for_all_its_vms() {
    let part =
        "disks = [{ name = \"data\", size = \"4MiB\" }, { name = \"log\", size = \"8KiB\" }]";
    let ours = "{ name = \"ours\", image = \"../notes.txt\", size = \"64KiB\", shared = true";
    let own = "{ name = \"log\", size = \"8KiB\" }";
    // Who writes comes second: the first one's disk has the memory all the same.
    let first = format!("disks = [{own}, {ours}, read_only = true }}]");
    let second = format!(
        "[vm.three]\npcpus = [0]\nmemory = \"4MiB\"\nimage = \"../raw.bin\"\nload = \"0x40080000\"\ndisks = [{ours} }}, {own}]\n"
    );
    let source = std::fs::read_to_string(FIXTURE).expect("a description");
    assert!(source.contains(part));
    let text = Text {
        name: FIXTURE.to_owned(),
        source: (source.replace(part, &first) + &second).into(),
    };
    let planned = match prepare_text(text, Effort::WhatIsThere) {
        Ok(prepared) => prepared.planned,
        Err(stopped) => panic!("{}", bulkhead_model::failure::Failure::from(stopped)),
    };
    with_plan(&planned, |plan| {
        let disks = plan.virtio_devices().iter().filter(|device| device.id == 2);
        let disks: Vec<_> = disks
            .map(|device| (device.vm, device.features >> 5 & 1))
            .collect();
        assert_eq!(disks, [(0, 0), (0, 1), (2, 0), (2, 0)]);
        let shared = RegionKind::Shared as u16;
        let kept = plan.regions.iter().filter(|it| it.kind == shared);
        // Counters, two disks of 8 KiB, and one map and one set of blocks for the shared one.
        let kept: Vec<_> = kept.map(|it| it.size).collect();
        assert_eq!(kept, [16 << 10, 8 << 10, 68 << 10, 8 << 10]);
    });
    let text = show::text(&planned);
    for line in [
        "ours: 64 KiB, read-only, of ../notes.txt, with 68 KiB for changes, one with that of three",
        "ours: 64 KiB, of ../notes.txt, with 68 KiB for changes, one with that of one",
    ] {
        assert!(text.contains(line), "`{line}` is not in\n{text}");
    }
    assert_eq!(
        text.matches("disk ours of").count() - text.matches("serves     disk ours of").count(),
        2
    );
    let json = show::json(&planned);
    let disks = [&json["vms"][0]["virtio"][1], &json["vms"][2]["virtio"][0]];
    assert_eq!(disks.map(|disk| disk["shared"].as_bool()), [Some(true); 2]);
    assert_eq!(
        disks.map(|disk| disk["read_only"].as_bool()),
        [Some(true), None]
    );
}

#[test]
fn memory_that_nobody_caches_is_not_in_the_map_of_the_service_thread() {
    let source = std::fs::read_to_string(FIXTURE).expect("a description");
    let reached = |cacheable: &str| {
        let shared = "[shared.page]\nsize = \"4KiB\"\nipa = \"0x70000000\"\nvms = { one = \"rw\", two = \"r\" }\n";
        let text = Text {
            name: FIXTURE.to_owned(),
            source: format!("{source}\n{shared}{cacheable}\n").into(),
        };
        let planned = match prepare_text(text, Effort::WhatIsThere) {
            Ok(prepared) => prepared.planned,
            Err(stopped) => panic!("{}", bulkhead_model::failure::Failure::from(stopped)),
        };
        let mut seen = (0, 0);
        with_plan(&planned, |plan| {
            let of_page = |ipa| plan.regions.iter().find(|it| it.ipa == ipa);
            let page = of_page(0x7000_0000).expect("it is mapped");
            let in_thread = pages::reached(&plan, 0).filter(|it| it.region.pa == page.pa);
            seen = (page.access & ACCESS_UNCACHED, in_thread.count());
        });
        seen
    };
    assert_eq!(reached(""), (0, 2), "for each of its VMs");
    assert_eq!(reached("cacheable = true"), (0, 2));
    assert_eq!(reached("cacheable = false"), (ACCESS_UNCACHED, 0));
}

#[test]
fn differences_of_devices_have_their_names() {
    let (old, new) = (planned(), with("vlan = 5 }]\n\n", "vlan = 6 }]\n\n"));
    let text = show::compare("old.toml", &show::json(&old), &show::json(&new)).text("virtio");
    let line = "~ network lan, VLAN: 5 -> 6";
    assert!(text.contains(line), "`{line}` is not in\n{text}");
    let bytes = |planned: &Planned| show::bytes::read(&planned.bytes).expect("a plan");
    let thread = with("[network.lan]", "[service]\nweight = 3\n[network.lan]");
    let text = show::compare("old.bin", &bytes(&old), &bytes(&thread)).text("virtio");
    let line = "~ thread on CPU 0x0, weight: 1 -> 3";
    assert!(text.contains(line), "`{line}` is not in\n{text}");
}

#[test]
fn disks_and_cards_of_all_sizes_are_planned_and_proven() {
    let disks = ["4KiB", "2044KiB", "2MiB", "6148KiB", "700MiB"];
    let services = [
        "",
        "[service]\npcpu = 1\n",
        "[service]\nweight = 1000\nmemory = \"32772KiB\"\n",
        "[service]\nbudget = \"1us\"\nperiod = \"100us\"\n",
    ];
    let vm = |name: &str, memory: &str, rest: &str| {
        format!(
            "[vm.{name}]\nmemory = \"{memory}\"\nimage = \"../raw.bin\"\nload = \"0x40080000\"\n{rest}\n"
        )
    };
    let mut tried = 0;
    for (service, cards) in services
        .iter()
        .flat_map(|service| [0, 1, 9].map(|n| (service, n)))
    {
        for (size, memory) in disks
            .iter()
            .flat_map(|size| ["2MiB", "1028MiB"].map(|m| (size, m)))
        {
            let disk = format!(
                "disks = [{{ name = \"a\", size = \"{size}\" }}, {{ name = \"b\", size = \"8KiB\" }}]"
            );
            let cards = "{ name = \"lan\" }, ".repeat(cards);
            let network = if cards.is_empty() {
                ""
            } else {
                "[network.lan]\n"
            };
            let one = vm("one", memory, &format!("{disk}\nnetworks = [{cards}]"));
            let two = vm("two", "4MiB", &format!("networks = [{cards}]"));
            let source = format!("[board]\ndtb = \"../virt.dtb\"\n{service}{network}{one}{two}");
            let text = Text {
                name: FIXTURE.to_owned(),
                source: source.clone().into(),
            };
            match prepare_text(text, Effort::WhatIsThere) {
                Ok(prepared) => with_plan(&prepared.planned, |plan| {
                    assert!(!plan.virtio_devices().is_empty());
                }),
                Err(stopped) => {
                    let why = bulkhead_model::failure::Failure::from(stopped);
                    panic!("{source}\n{why}");
                }
            }
            tried += 1;
        }
    }
    assert_eq!(tried, 120);
}

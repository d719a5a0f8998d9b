//! Good descriptions become the plans that they ask for.

mod colours;
mod priorities;

use std::path::Path;

use bulkhead_abi::plan::{
    CpuPolicy, Crash, DeviceKind, IRQ_DOORBELL, IRQ_EDGE, InterruptMode, NONE, Quiet, Reclaim,
    RegionKind, VM_OWN_PTIMER, VM_TIME_STOPS,
};
use bulkhead_core::plan::Plan;
use dtoolkit::fdt::Fdt;

use bulkhead_cli::cmd::dtb;
use bulkhead_planner::Planned;
use bulkhead_planner::show;
use bulkhead_runner::Effort;
use bulkhead_runner::prepare::prepare;

fn planned(name: &str) -> Planned {
    let path = Path::new("tests/fixtures/good").join(name);
    match prepare(&path, Effort::WhatIsThere) {
        Ok(prepared) => prepared.planned,
        Err(stopped) => panic!("{}", bulkhead_model::failure::Failure::from(stopped)),
    }
}

/// The bytes of a plan at a multiple of 8.
fn words(bytes: &[u8]) -> Vec<u64> {
    let (words, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty(), "plans are whole words");
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Runs a test on a plan that core's own proof accepts.
fn with_plan(planned: &Planned, test: impl FnOnce(Plan)) {
    let words = words(&planned.bytes);
    let plan = Plan::open(zerocopy::IntoBytes::as_bytes(&words[..])).expect("a plan");
    assert_eq!(plan.check(), Ok(()));
    test(plan);
}

#[test]
fn a_watchdog_of_the_board_is_a_deviation_of_who_has_it() {
    let planned = planned("watchdog.toml");
    let stated: Vec<Vec<&str>> = planned
        .vms
        .iter()
        .map(|vm| vm.deviations.iter().map(|lack| lack.stated).collect())
        .collect();
    assert_eq!(stated, [vec!["board_reset = \"allowed\""], vec![]]);
    assert_eq!(planned.vms[0].devices.len(), 1);
}

#[test]
fn vcpus_run_where_the_description_says() {
    with_plan(&planned("gicv2.toml"), |plan| {
        let places: Vec<(u16, u64, u64)> = plan
            .vcpus
            .iter()
            .map(|vcpu| {
                let pcpu = &plan.pcpus[usize::from(vcpu.pcpu)];
                (vcpu.vm, vcpu.mpidr, pcpu.mpidr)
            })
            .collect();
        // CPU 0 is the first that is free for the VM that names none.
        assert_eq!(places, [(0, 0, 3), (0, 1, 1), (1, 0, 0)]);
    });
    with_plan(&planned("gicv3.toml"), |plan| {
        let places: Vec<u16> = plan.vcpus.iter().map(|vcpu| vcpu.pcpu).collect();
        assert_eq!(places, [0, 1]);
    });
}

#[test]
fn on_a_gicv2_a_vm_that_takes_its_interrupts_itself_has_the_cpu_interface() {
    let planned = planned("own-gicv2.toml");
    with_plan(&planned, |plan| {
        let how: Vec<(u16, u16)> = plan
            .vms
            .iter()
            .map(|vm| (vm.interrupts, vm.reclaim))
            .collect();
        let own = InterruptMode::GpptV2 as u16;
        let (sure, kind) = (Reclaim::Guaranteed as u16, Reclaim::Cooperative as u16);
        assert_eq!(how, [(own, kind), (own, sure), (own, sure), (0, 0)]);
        let interfaces = plan
            .regions
            .iter()
            .filter(|region| region.kind == RegionKind::Gicv as u16)
            .map(|region| region.pa);
        let board = &plan.header.board;
        let expected = [board.gicc, board.gicc, board.gicc, board.gicv];
        assert_eq!(interfaces.collect::<Vec<u64>>(), expected);
        let drains = plan.pcpus.iter().position(|pcpu| pcpu.service != 0);
        let usual = plan.vcpus_of(3).first().map(|vcpu| vcpu.pcpu);
        assert_eq!(
            drains,
            usual.map(usize::from),
            "where EL2 can be interrupted"
        );
    });
    let text = show::text(&planned);
    for line in [
        "GPPT, gicv2 (default of hard-realtime)",
        "reclaim cooperative: if it closes its masks and sleeps, only a reset of the board stops it (default of hard-realtime)",
        "reclaim guaranteed: EL2 sleeps for it, an exit for each WFI (default of general)",
        "reclaim guaranteed: EL2 sleeps for it, an exit for each WFI (line 19)",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn a_cpu_without_a_vm_drains_the_console_of_a_board_whose_vms_are_all_real_time() {
    let planned = planned("own-gicv2-alone.toml");
    let cpus = planned
        .cpus
        .iter()
        .map(|cpu| (cpu.vcpus.len(), cpu.service));
    assert_eq!(cpus.collect::<Vec<_>>(), [(1, false), (0, true)]);
    with_plan(&planned, |plan| {
        assert_eq!(plan.vms[0].interrupts, InterruptMode::GpptV2 as u16);
    });
}

#[test]
fn the_tree_that_a_vm_will_find_can_be_shown() {
    let vms = planned("gicv2.toml").vms;
    let names: Vec<&str> = vms.iter().map(|vm| vm.name.as_str()).collect();
    for vm in &vms {
        let bytes = dtb::tree(&vms, Some(&vm.name)).expect("every VM here has one");
        let tree = Fdt::new(bytes).expect("nothing stands behind it");
        let text = tree.to_string();
        let cpus = text.matches("device_type = \"cpu\"").count();
        assert_eq!(cpus, vm.cpus.len(), "{text}");
        assert!(text.contains("arm,cortex-a15-gic"), "{text}");
    }
    let wrong = |name| match dtb::tree(&vms, name) {
        Ok(_) => panic!("{name:?}"),
        Err(failure) => failure.to_string(),
    };
    assert!(wrong(None).contains(&names.join(", ")));
    let misspelt = format!("{}x", names[0]);
    assert!(wrong(Some(&misspelt)).contains(&format!("did you mean `{}`?", names[0])));
}

#[test]
fn cpu_time_is_what_the_description_says() {
    let (server, fair) = (CpuPolicy::Server as u16, CpuPolicy::Fair as u16);
    with_plan(&planned("shared.toml"), |plan| {
        let rows: Vec<_> = plan
            .vcpus
            .iter()
            .map(|v| {
                (
                    v.vm,
                    v.pcpu,
                    v.policy,
                    v.weight,
                    (v.budget, v.period),
                    v.pool,
                )
            })
            .collect();
        let uncapped = (100_000_000, 100_000_000);
        assert_eq!(
            rows,
            [
                (0, 1, server, 0, (400_000, 1_000_000), 0),
                (1, 1, fair, 3, uncapped, 0b10),
                (1, 1, fair, 3, uncapped, 0b10),
                // The emptiest CPU of its pool.
                (2, 0, fair, 1, (3_000_000, 10_000_000), 0b11),
                (3, 0, fair, 1, uncapped, 0b01),
            ]
        );
        let told = plan.vms.iter().map(|vm| vm.stolen_time);
        assert!(told.eq([0x90a_0000; 4]));
        let kind = RegionKind::StolenTime as u16;
        let pages = plan.regions.iter().filter(|region| region.kind == kind);
        assert_eq!(pages.count(), 4);
    });
    // Nobody else can run there: as cheap as if it had said so.
    with_plan(&planned("gicv3.toml"), |plan| {
        let pinned = CpuPolicy::Pinned as u16;
        let mut vcpus = plan.vcpus.iter();
        assert!(vcpus.all(|vcpu| (vcpu.policy, vcpu.budget, vcpu.period, vcpu.pool) == (pinned, 0, 0, 0)));
        assert!(plan.vms.iter().all(|vm| vm.stolen_time == 0));
    });
}

#[test]
fn cpu_time_is_shown_with_numbers_and_reasons() {
    let planned = planned("shared.toml");
    let text = show::text(&planned);
    for line in [
        "runs loop, vCPU 0 of fair and vCPU 1 of fair",
        "server  loop: 400 us in each 1 ms, needs 401.7 us with two switches of 850 ns; at most 1.2 ms without",
        "accepted: servers take 40.17 %, and 42.67 % of 100 % when EL2's longest path of 5 us comes at the worst moment, the console's drain included",
        "fair    vCPU 0 of fair: weight 3, 29.91 % while all others here want theirs",
        "fair    moved: weight 1, 30.00 % while all others here want theirs, never more than 30.00 % of the CPU",
        "cpu time   server: 400 us in each 1 ms, before all fair vCPUs (line 6)",
        "cpu time   fair: weight 3, no cap (default of general)",
        "cpu time   fair: weight 1, 3 ms in each 10 ms at most (default of general)",
        "cpu time   fair: weight 1, no cap (line 32)",
        "pool       may be moved to CPUs 0, 1",
        "interrupts through the virtual GIC (line 31)",
        "deviation  cpu = \"fair\"",
        "of EL2's pool",
    ] {
        assert!(text.contains(line), "`{line}` is not in\n{text}");
    }
    let json = show::json(&planned);
    let usage = &json["cpus"][1]["usage"];
    assert_eq!(usage["servers"][0]["load_ppm"], 426_700);
    assert_eq!(usage["schedulable"], true);
    assert_eq!(usage["fair"][1]["least_ppm"], 299_150);
    assert_eq!(json["cpus"][0]["usage"]["fair"][1]["cap_ppm"], 300_000);
    assert_eq!(json["vms"][0]["cpu"]["policy"], "rt");
    assert_eq!(json["vms"][2]["cpu"]["pool"], serde_json::json!([0, 1]));
    let alone = show::text(&self::planned("gicv3.toml"));
    let why =
        "(default of general is fair; nobody else can run there, so it is spared the switching)";
    assert!(alone.contains(why), "{alone}");
}

#[test]
fn each_version_of_the_gic_has_its_frames() {
    with_plan(&planned("gicv2.toml"), |plan| {
        let board = &plan.header.board;
        assert_eq!((board.gic_version, board.gicr), (2, 0));
        assert_eq!((board.gicc, board.gicc_size), (0x801_0000, 0x1_0000));
        assert_eq!((board.gich, board.gich_size), (0x803_0000, 0x1_0000));
        assert_eq!((board.gicv, board.gicv_size), (0x804_0000, 0x1_0000));
        for (number, vm) in plan.vms.iter().enumerate() {
            assert_eq!((vm.gicr, vm.gicc), (0, 0x801_0000));
            let kind = RegionKind::Gicv as u16;
            let regions = plan.regions_of(number).iter();
            let interfaces: Vec<_> = regions.filter(|region| region.kind == kind).collect();
            assert_eq!(interfaces.len(), 1);
            assert_eq!((interfaces[0].pa, interfaces[0].size), (0x804_0000, 0x1000));
        }
    });
    with_plan(&planned("gicv3.toml"), |plan| {
        let board = &plan.header.board;
        assert_eq!((board.gic_version, board.gicr), (3, 0x80a_0000));
        assert_eq!([board.gicc, board.gich, board.gicv], [0; 3]);
        assert_eq!((plan.vms[0].gicr, plan.vms[0].gicc), (0x80a_0000, 0));
    });
}

#[test]
fn a_vm_gets_what_it_asks_for() {
    with_plan(&planned("gicv2.toml"), |plan| {
        let (all, small) = (&plan.vms[0], &plan.vms[1]);
        assert_eq!(all.flags, VM_OWN_PTIMER | VM_TIME_STOPS);
        assert_eq!(small.flags, 0);
        let policy = (all.crash, all.restarts, all.restart_seconds, all.notify);
        assert_eq!(policy, (Crash::Restart as u16, 5, 120, NONE));
        assert_eq!((small.crash, small.notify), (Crash::Notify as u16, 0));
        assert_eq!((all.resets, all.reset_seconds), (7, 30));
        assert_eq!((small.resets, small.reset_seconds), (0, 0));
        assert_eq!((all.event_intid, small.event_intid), (36, 0));
        let kinds: Vec<(u16, u64)> = plan.devices.iter().map(|d| (d.kind, d.size)).collect();
        let (uart, clock, watchdog) = (DeviceKind::Pl011, DeviceKind::Pl031, DeviceKind::Watchdog);
        assert_eq!(
            kinds,
            [
                (uart as u16, 0x1000),
                (clock as u16, 0x1000),
                (watchdog as u16, 0x2000)
            ]
        );
        let calls: Vec<u32> = plan.calls_of(0).iter().map(|call| call.function).collect();
        assert_eq!(calls, [0x8200_0001, 0xc300_0001]);
        assert_eq!(plan.header.board.rtc, 0x901_0000);
    });
    with_plan(&planned("gicv3.toml"), |plan| {
        assert_eq!(plan.header.board.rtc, 0, "nobody needs the board's clock");
        let limits = plan.vms.iter().map(|vm| (vm.resets, vm.reset_seconds));
        assert!(limits.eq(plan.vms.iter().map(|_| (10, 60))), "the default");
    });
}

#[test]
fn passed_through_devices_bring_interrupts_and_what_quiets_them() {
    with_plan(&planned("gicv2.toml"), |plan| {
        let irqs: Vec<(u16, u16)> = plan.irqs.iter().map(|i| (i.vintid, i.pintid)).collect();
        assert_eq!(irqs, [(40, 40), (39, 39)]);
        let mask_first = Quiet {
            vm: 0,
            width: 4,
            value: 0,
            pa: 0x904_0038,
        };
        assert_eq!(plan.quiets.first(), Some(&mask_first));
        assert!(plan.quiets.iter().any(|quiet| quiet.pa == 0x903_0410));
    });
}

#[test]
fn a_guest_is_told_what_it_has() {
    let planned = planned("gicv2.toml");
    let vm = &planned.vms[0];
    let tree = vm
        .payloads
        .iter()
        .find(|payload| payload.ipa == vm.tree)
        .expect("tree");
    // Payloads are padded; the tree says how long it is.
    let size = u32::from_be_bytes(*tree.bytes[4..].first_chunk().expect("a header"));
    let fdt = Fdt::new(&tree.bytes[..size as usize]).expect("a sound tree");
    for path in [
        "/cpus/cpu@0",
        "/cpus/cpu@1",
        "/interrupt-controller@8000000",
        "/serial@9000000",
        "/rtc@9010000",
        "/watchdog@9080000",
        "/pl011@9040000",
        "/pl061@9030000",
        "/events",
    ] {
        assert!(fdt.find_node(path).is_some(), "no {path}");
    }
    assert!(fdt.find_node("/cpus/cpu@2").is_none());
    assert!(fdt.find_node("/pmu").is_none());
}

#[test]
fn the_plan_is_shown_with_all_that() {
    let planned = planned("gicv2.toml");
    let text = show::text(&planned);
    for line in [
        "VM all: general, on CPUs 3 and 1",
        "CPU 1  MPIDR 0x1  runs vCPU 1 of all",
        "crash      starts again, 5 times in 120 s at most",
        "crash      stays stopped, and all is told",
        "watchdog   SBSA watchdog at IPA 0x9080000, INTID 35",
        "calls      firmware may be asked for 0x82000001",
        "events     told of crashes of others by INTID 36",
    ] {
        assert!(text.contains(line), "`{line}` is not in\n{text}");
    }
    let json = show::json(&planned);
    assert_eq!(json["board"]["gic"], 2);
    assert_eq!(json["vms"][0]["cpus"], serde_json::json!([3, 1]));
    assert_eq!(json["vms"][0]["crash"]["seconds"], 120);
    assert_eq!(json["vms"][1]["crash"]["vm"], "all");
    assert_eq!(json["vms"][0]["quiets"][0]["pa"], "0x9040038");
    let page = show::html(&json, None);
    assert!(page.contains(&json["vms"][1]["name"].to_string()), "{page}");
    // What was saved of it before, in either form, is the same plan.
    let differences = show::compare("plan.json", &json, &show::json(&planned));
    assert_eq!(differences.changes, []);
}

#[test]
fn what_differs_is_found_in_json_and_in_bytes() {
    let (one, other) = (planned("gicv2.toml"), planned("own-gicv2.toml"));
    let json = |planned| show::json(planned);
    let bytes = |planned: &Planned| show::bytes::read(&planned.bytes).expect("a plan");
    for (old, new) in [(json(&one), json(&other)), (bytes(&one), bytes(&other))] {
        assert_eq!(show::compare("itself", &new, &new).changes, []);
        let text = show::compare("gicv2.toml", &old, &new).text("own-gicv2");
        for line in [
            "VM all\n  - all of it: general, 2 vCPUs on CPUs ",
            "\nimage\n  ~ ",
        ] {
            assert!(text.contains(line), "`{line}` is not in\n{text}");
        }
    }
    // A bit of a plan that was saved has turned.
    let mut broken = one.bytes.clone();
    broken[100] ^= 1;
    let why = show::bytes::read(&broken).expect_err("the checksum is wrong");
    assert!(why.contains("checksum"), "{why}");
    assert!(show::bytes::looks_like_one(&broken));
}

#[test]
fn compressed_kernels_and_several_ram_disks_become_what_the_guest_wants() {
    use std::io::Write;

    let folder = tempfile::tempdir().expect("a folder");
    let put = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).expect("room for a file");
    };
    let image = std::fs::read("tests/fixtures/kernel.img").expect("the fixture");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(&image).expect("to memory");
    put("Image.gz", &packed.finish().expect("to memory"));
    let (first, second) = (b"070701first".as_slice(), b"\x1f\x8bsecond".as_slice());
    put("first.cpio", first);
    put("second.gz", second);
    std::fs::copy("tests/fixtures/virt.dtb", folder.path().join("virt.dtb")).expect("a copy");
    put(
        "system.toml",
        b"[board]\ndtb = \"virt.dtb\"\n[vm.one]\nmemory = \"64MiB\"\nkernel = \"Image.gz\"\n\
          initrd = [\"first.cpio\", \"second.gz\"]\n",
    );
    let prepared = prepare(&folder.path().join("system.toml"), Effort::WhatIsThere);
    let planned = match prepared {
        Ok(prepared) => prepared.planned,
        Err(stopped) => panic!("{}", bulkhead_model::failure::Failure::from(stopped)),
    };
    let payload = |what: &str| {
        let payloads = &planned.vms[0].payloads;
        let found = payloads.iter().find(|payload| payload.what == what);
        &found.expect("it is loaded").bytes[..]
    };
    assert!(payload("kernel").starts_with(&image));
    let disk = [first, b"\0", second].concat();
    assert!(payload("initial RAM disk").starts_with(&disk));
}

#[test]
fn who_has_its_cpu_for_itself_hears_by_an_spi_that_no_device_has() {
    let planned = planned("doorbells-alone.toml");
    with_plan(&planned, |plan| {
        let heard = |bell: &bulkhead_abi::plan::Doorbell| (bell.to, bell.vintid, bell.pintid);
        let rows: Vec<_> = plan.doorbells.iter().map(heard).collect();
        // The GPPT VM has the last ones, and the others what is left.
        let expected = [
            (1, 287, 287),
            (2, 37, 285),
            (0, 37, 284),
            (1, 286, 286),
            (0, 38, 283),
        ];
        assert_eq!(rows, expected);
        let flags = IRQ_EDGE | IRQ_DOORBELL;
        for (vm, vintid, pintid) in rows {
            let is_there = |irq: &bulkhead_abi::plan::Irq| {
                (irq.vm, irq.vintid, irq.pintid, irq.flags) == (vm, vintid, pintid, flags)
            };
            assert_eq!(plan.irqs.iter().filter(|irq| is_there(irq)).count(), 1);
        }
        assert_eq!(plan.irqs.len(), 5);
    });
    let text = show::text(&planned);
    let line = "hears      side from first, INTID 37, once in 2 ms at most: SPI 285 of the board, which no device has: an exit";
    assert!(text.contains(line), "{text}");
}

#[test]
fn who_has_its_cpus_alone_hears_by_an_spi_beside_firmware_too() {
    let planned = planned("doorbells-el3.toml");
    with_plan(&planned, |plan| {
        let heard = |bell: &bulkhead_abi::plan::Doorbell| (bell.vintid, bell.pintid);
        let rows: Vec<_> = plan.doorbells.iter().map(heard).collect();
        // If it is the firmware's, EL2 latches the ring instead.
        assert_eq!(rows, [(37, 287)]);
        assert_eq!(plan.irqs[0].flags, IRQ_EDGE | IRQ_DOORBELL);
    });
}

#[test]
fn a_device_of_a_vm_that_shares_no_cpu_interrupts_by_an_spi_of_the_board() {
    let planned = planned("virtio-alone.toml");
    with_plan(&planned, |plan| {
        let vintids: Vec<_> = plan
            .virtio_devices()
            .iter()
            .map(|row| (row.vm, row.vintid))
            .collect();
        assert_eq!(vintids, [(0, 37), (1, 37)]);
        let row = |irq: &bulkhead_abi::plan::Irq| (irq.vm, irq.vintid, irq.pintid, irq.flags);
        let irqs: Vec<_> = plan.irqs.iter().map(row).collect();
        assert_eq!(irqs, [(0, 37, 287, IRQ_EDGE | IRQ_DOORBELL)]);
    });
    let text = show::text(&planned);
    assert!(text.contains("INTID 37 by SPI 287 of the board"), "{text}");
}

#[test]
fn doorbells_have_a_page_at_one_vm_and_an_interrupt_at_the_other() {
    let planned = planned("doorbells.toml");
    with_plan(&planned, |plan| {
        let rows: Vec<_> = plan
            .doorbells
            .iter()
            .map(|bell| (bell.vm, bell.to, bell.vintid, bell.pintid, bell.ipa))
            .collect();
        // Of the last word of 32 in which the board's tree has an SPI, the last ones; of vGICs what no device and no crash has.
        let expected = [
            (0, 1, 95, 95, 0x920_0000),
            (0, 2, 37, 0, 0x920_1000),
            (1, 0, 37, 0, 0x920_0000),
            (2, 1, 94, 94, 0x920_0000),
            (2, 0, 38, 0, 0x920_1000),
        ];
        assert_eq!(rows, expected);
        let apart: Vec<u64> = plan.doorbells.iter().map(|bell| bell.apart).collect();
        assert_eq!(apart, [100_000, 2_000_000, 100_000, 100_000, 100_000]);
        let irqs: Vec<_> = plan
            .irqs
            .iter()
            .map(|irq| (irq.vm, irq.vintid, irq.pintid, irq.flags))
            .collect();
        let flags = IRQ_EDGE | IRQ_DOORBELL;
        assert_eq!(irqs, [(1, 95, 95, flags), (1, 94, 94, flags)]);
    });
    let text = show::text(&planned);
    for line in [
        "rings      down to hard, by the page at IPA 0x9200000: an exit; too early, it waits",
        "hears      down from first, INTID 95, once in 100 us at most: an SPI that no device has, without an exit",
        "hears      side from first, INTID 37, once in 2 ms at most: an exit",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let json = show::json(&planned);
    assert_eq!(json["doorbells"][0]["name"], "down");
    assert_eq!(json["doorbells"][0]["physical"], true);
    assert_eq!(json["doorbells"][1]["apart_ns"], 2_000_000);
    assert_eq!(json["doorbells"][2]["shared"], "page");
    let tree = Fdt::new(dtb::tree(&planned.vms, Some("hard")).expect("one")).expect("a tree");
    let text = tree.to_string();
    for part in ["doorbell@9200000", "doorbell-95", "doorbell-94"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn what_el2_emulates_is_where_the_description_puts_it() {
    let planned = planned("placed.toml");
    with_plan(&planned, |plan| {
        let vm = &plan.vms[0];
        assert_eq!([vm.gicd, vm.gicr, vm.gicc], [0x2f00_0000, 0x2f10_0000, 0]);
        assert_eq!(vm.spis, 256, "up to the watchdog's");
        let devices: Vec<_> = plan
            .devices
            .iter()
            .map(|device| (device.kind, device.ipa, device.vintid))
            .collect();
        let expected = [
            (DeviceKind::Pl011 as u16, 0x1c09_0000, 37),
            (DeviceKind::Pl031 as u16, 0x1c17_0000, 36),
            (DeviceKind::Watchdog as u16, 0x2a44_0000, 287),
        ];
        assert_eq!(devices, expected);
    });
    let text = show::text(&planned);
    for line in [
        "gic        GICv3: distributor at IPA 0x2f000000, redistributors at IPA 0x2f100000",
        "console    PL011 at IPA 0x1c090000, INTID 37",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let tree = dtb::tree(&planned.vms, Some("one")).expect("a tree");
    let tree = Fdt::new(tree).expect("sound").to_string();
    for node in [
        "interrupt-controller@2f000000",
        "serial@1c090000",
        "rtc@1c170000",
        "watchdog@2a440000",
    ] {
        assert!(tree.contains(node), "{node}\n{tree}");
    }
}

#[test]
fn the_cpu_interface_of_a_gicv2_is_where_the_description_puts_it() {
    with_plan(&planned("placed-gicv2.toml"), |plan| {
        let vm = &plan.vms[0];
        assert_eq!([vm.gicd, vm.gicr, vm.gicc], [0x2c00_0000, 0, 0x2c01_0000]);
        let mut regions = plan.regions.iter();
        let interface = regions.find(|region| region.kind == RegionKind::Gicv as u16);
        assert_eq!(interface.map(|region| region.ipa), Some(0x2c01_0000));
    });
}

#[test]
fn what_a_guest_is_told_of_makes_way_for_what_it_expects_somewhere() {
    let planned = planned("placed-pages.toml");
    with_plan(&planned, |plan| {
        let told: Vec<u64> = plan.vms.iter().map(|vm| vm.stolen_time).collect();
        assert_eq!(told, [0x0940_1000, 0x090a_0000], "behind the console");
        let pages: Vec<u64> = plan.doorbells.iter().map(|bell| bell.ipa).collect();
        assert_eq!(pages, [0x0940_2000, 0x0940_3000]);
        let event = plan.vms[0].event_intid;
        assert_eq!(event, 37, "the console has the usual one");
    });
    let tree = dtb::tree(&planned.vms, Some("one")).expect("a tree");
    let tree = Fdt::new(tree).expect("sound").to_string();
    for node in ["doorbell@9402000", "doorbell@9403000"] {
        assert!(tree.contains(node), "{node}\n{tree}");
    }
}

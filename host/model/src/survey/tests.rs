use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};

use super::*;
use crate::board::Firmware;

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(format!("../cli/tests/fixtures/{name}")).expect("fixture")
}

fn of(name: &str) -> Survey {
    Survey::read(fixture(name)).expect("a board")
}

fn node(
    name: &str,
    properties: &[(&str, &[u32])],
    children: Vec<DeviceTreeNode>,
) -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new(name).expect("name");
    for (name, cells) in properties {
        let bytes: Vec<u8> = cells.iter().flat_map(|cell| cell.to_be_bytes()).collect();
        node.add_property(DeviceTreeProperty::new(*name, bytes).expect("property"));
    }
    for child in children {
        node.add_child(child);
    }
    node
}

fn text(mut node: DeviceTreeNode, name: &str, text: &str) -> DeviceTreeNode {
    let bytes = [text.as_bytes(), b"\0"].concat();
    node.add_property(DeviceTreeProperty::new(name, bytes).expect("property"));
    node
}

/// A board of two clusters: two CPUs with a cache in common, one with another.
fn clusters() -> Survey {
    let cpu = |number: u32, mpidr: u32, cache: u32| {
        let cells: &[(&str, &[u32])] = &[
            ("reg", &[mpidr]),
            ("phandle", &[10 + number]),
            ("next-level-cache", &[cache]),
            ("d-cache-size", &[32 << 10]),
            ("d-cache-line-size", &[64]),
            ("d-cache-sets", &[128]),
        ];
        let cpu = node(&format!("cpu@{mpidr:x}"), cells, Vec::new());
        text(
            text(cpu, "device_type", "cpu"),
            "compatible",
            "arm,cortex-a53",
        )
    };
    let cache = |name: &str, phandle: u32, size: u32| {
        let cells: &[(&str, &[u32])] = &[
            ("phandle", &[phandle]),
            ("cache-level", &[2]),
            ("cache-size", &[size]),
            // It leads to itself, as no tree should.
            ("next-level-cache", &[phandle]),
        ];
        node(name, cells, Vec::new())
    };
    let core = |name: &str, cpu: u32| node(name, &[("cpu", &[cpu])], Vec::new());
    let map = vec![
        node("cluster0", &[], vec![core("core0", 10), core("core1", 11)]),
        node("cluster1", &[], vec![core("core0", 12)]),
    ];
    let cpus = vec![
        cpu(0, 0, 20),
        cpu(1, 1, 20),
        cpu(2, 0x100, 21),
        cache("big", 20, 1 << 20),
        cache("small", 21, 512 << 10),
        node("cpu-map", &[], map),
    ];
    let cells: &[(&str, &[u32])] = &[("#address-cells", &[1]), ("#size-cells", &[0])];
    let mut tree = DeviceTree::new();
    tree.root = node("", &[], vec![node("cpus", cells, cpus)]);
    Survey::read(tree.to_dtb()).expect("a board")
}

#[test]
fn clusters_and_caches_are_those_of_the_tree() {
    let cpus = clusters().cpus;
    let members: Vec<_> = cpus
        .clusters
        .iter()
        .map(|one| (one.name.as_str(), one.cpus.clone()))
        .collect();
    assert_eq!(members, [("cluster0", vec![0, 1]), ("cluster1", vec![2])]);
    assert!(cpus.clusters_stated);
    let first: Vec<_> = cpus
        .caches
        .iter()
        .filter(|cache| cache.level == 1)
        .collect();
    assert_eq!(first.len(), 3);
    assert_eq!((first[0].kind, first[0].ways), ("data", Some(4)));
    let second: Vec<_> = cpus
        .caches
        .iter()
        .filter(|cache| cache.level == 2)
        .collect();
    let second: Vec<_> = second
        .iter()
        .map(|cache| (cache.size, cache.cpus.clone()))
        .collect();
    assert_eq!(
        second,
        [(Some(1 << 20), vec![0, 1]), (Some(512 << 10), vec![2])]
    );
}

#[test]
fn a_board_that_bulkhead_runs_on_has_no_obstacles() {
    for (name, version, frames) in [("virt.dtb", 3, 2), ("virt-v2.dtb", 2, 4)] {
        let survey = of(name);
        assert_eq!(survey.obstacles, [], "{name}");
        let gic = &survey.interrupt_controllers[0];
        assert_eq!((gic.version, gic.frames.len()), (Some(version), frames));
        assert_eq!(gic.maintenance_intid, Some(25));
        let timers = survey.timers.as_ref().expect("timers");
        assert_eq!((timers.virtual_, timers.hypervisor), (Some(27), Some(26)));
        let console: Vec<_> = survey.uarts.iter().filter(|uart| uart.console).collect();
        assert_eq!(console.len(), 1);
        assert!(console[0].driver && console[0].intid == Some(33));
        let passes = survey.devices.iter().filter(|device| device.passes);
        let passes: Vec<_> = passes.map(|device| device.path.as_str()).collect();
        let usual = ["/pl061@9030000", "/pl031@9010000"];
        assert!(passes.starts_with(&usual), "{passes:?}");
        assert!(!passes.contains(&"/pl011@9000000"));
        let virtio = survey
            .devices
            .iter()
            .find(|one| one.path == "/virtio_mmio@a000000");
        assert!(virtio.expect("listed").why.contains("DMA"));
    }
}

#[test]
fn a_board_without_a_gic_is_listed_all_the_same() {
    let survey = of("no-gic.dtb");
    let parts: Vec<_> = survey.obstacles.iter().map(|one| one.part).collect();
    assert_eq!(parts, ["GIC"]);
    let text = survey.text(false);
    for line in [
        "/intc@8000000  arm,gic-v2, for which EL2 has no driver",
        "CPU 1  MPIDR 0x0001",
        "PL011 at 0x9000000, INTID 33, the console",
        "EL2 has no driver for /intc@8000000 (arm,gic-v2)",
    ] {
        assert!(text.contains(line), "no {line}: {text}");
    }
}

#[test]
fn what_the_tree_tells_of_the_firmware_is_listed_with_its_nodes() {
    let told = |name: &str| of(name).firmware;
    let sdei = Firmware::TrustedFirmware { sdei: true };
    for (name, psci, firmware) in [
        // QEMU's own board, with nothing Secure.
        ("virt.dtb", Some("smc"), Some(Firmware::None)),
        ("smc.dtb", Some("smc"), Some(Firmware::El3)),
        ("firmware.dtb", Some("smc"), Some(sdei)),
        ("spin.dtb", None, None),
    ] {
        let told = told(name);
        assert_eq!(told.psci.as_deref(), psci, "{name}");
        assert_eq!(told.firmware(), firmware, "{name}");
        assert_eq!(told.assumed(), firmware.unwrap_or(Firmware::El3), "{name}");
    }
    let (none, no_sdei) = (Firmware::None, Firmware::TrustedFirmware { sdei: false });
    let against = |name: &str, said| told(name).against(said).map(|sign| sign.path.clone());
    assert_eq!(against("smc.dtb", none).as_deref(), Some("/psci"));
    assert_eq!(
        against("firmware.dtb", none).as_deref(),
        Some("/firmware/optee")
    );
    assert_eq!(
        against("firmware.dtb", no_sdei).as_deref(),
        Some("/firmware/sdei")
    );
    for (name, said) in [
        ("smc.dtb", no_sdei),
        ("firmware.dtb", sdei),
        ("virt.dtb", none),
        ("virt.dtb", sdei),
    ] {
        assert_eq!(against(name, said), None, "{name}");
    }
    for (name, line) in [
        (
            "virt.dtb",
            "  /: linux,dummy-virt, the board that QEMU makes up, with nothing Secure\n  so firmware = \"none\"\n",
        ),
        (
            "smc.dtb",
            "so firmware = \"el3\"; whether it has events (SDEI) is not told",
        ),
        (
            "firmware.dtb",
            "/firmware/optee: OP-TEE, which runs in the Secure state",
        ),
        (
            "spin.dtb",
            "whether there is some at EL3 is not told; plans take firmware = \"el3\"",
        ),
    ] {
        let text = of(name).text(false);
        assert!(text.contains(line), "{name}: no {line}: {text}");
    }
}

/// Properties that are strings.
type Words<'a> = &'a [(&'a str, &'a str)];

/// What a tree tells of the firmware that has one node with these properties.
fn told_by(made_up: bool, name: &str, words: Words) -> FirmwareTold {
    let mut child = node(name.rsplit('/').next().expect("name"), &[], Vec::new());
    for (key, value) in words {
        child = text(child, key, value);
    }
    let children = match name.rsplit_once('/') {
        Some((parent, _)) => vec![node(parent, &[], vec![child])],
        None => vec![child],
    };
    let mut tree = DeviceTree::new();
    let root = node("", &[], children);
    tree.root = match made_up {
        true => text(root, "compatible", "linux,dummy-virt"),
        false => root,
    };
    Survey::read(tree.to_dtb()).expect("a board").firmware
}

#[test]
fn each_sign_of_the_secure_side_counts_and_what_is_disabled_does_not() {
    let secure: Words = &[("status", "disabled"), ("secure-status", "okay")];
    let psci: Words = &[("compatible", "arm,psci-1.0"), ("method", "smc")];
    let cases: [(bool, &str, Words, Option<Firmware>); 9] = [
        // As QEMU has it with secure=on.
        (true, "pl011@9040000", secure, Some(Firmware::El3)),
        (false, "pl011@9040000", secure, Some(Firmware::El3)),
        (false, "secmon", &[("secure-status", "disabled")], None),
        (
            false,
            "reserved-memory/bl31@40000000",
            &[],
            Some(Firmware::El3),
        ),
        (false, "reserved-memory/gpu@40000000", &[], None),
        (
            false,
            "zynqmp",
            &[("compatible", "xlnx,zynqmp-firmware")],
            Some(Firmware::El3),
        ),
        (
            false,
            "optee",
            &[("compatible", "linaro,optee-tz"), ("status", "disabled")],
            None,
        ),
        (false, "psci", psci, Some(Firmware::El3)),
        // QEMU answers its calls itself.
        (true, "psci", psci, Some(Firmware::None)),
    ];
    for (made_up, name, words, firmware) in cases {
        let told = told_by(made_up, name, words);
        assert_eq!(told.firmware(), firmware, "{name} {words:?}: {told:?}");
        let paths = told
            .el3
            .iter()
            .map(|sign| sign.path.trim_start_matches('/').to_owned());
        let wanted = (firmware == Some(Firmware::El3)).then(|| name.to_owned());
        assert_eq!(paths.collect::<Vec<_>>(), Vec::from_iter(wanted));
    }
}

#[test]
fn a_board_whose_psci_is_called_by_hvc_is_refused_as_the_planner_does() {
    let survey = of("hvc.dtb");
    let parts: Vec<_> = survey.obstacles.iter().map(|one| one.part).collect();
    assert_eq!(parts, ["firmware"]);
    let why = board::facts(&fixture("hvc.dtb")).err().expect("refused");
    assert_eq!(why, survey.obstacles[0].what);
    assert!(survey.obstacles[0].help.contains("virtualization=on"));
}

/// EL2 lacks exactly what the planner refuses.
#[test]
fn everything_that_is_missing_is_said_at_once() {
    let survey = clusters();
    let parts: Vec<_> = survey.obstacles.iter().map(|one| one.part).collect();
    assert_eq!(parts, ["GIC", "timer", "console", "memory"]);
    for obstacle in &survey.obstacles {
        assert!(
            !obstacle.why.is_empty() && !obstacle.help.is_empty(),
            "{obstacle:?}"
        );
    }
}

/// A tree in which these cells of a node are others, and what the planner and the survey say of it.
fn changed(path: &str, name: &str, cells: &[u32]) -> (Result<u64, String>, Vec<String>) {
    let bytes = fixture("virt.dtb");
    let fdt = dtoolkit::fdt::Fdt::new(&bytes).expect("sound");
    let mut tree = DeviceTree::from_fdt(&fdt);
    let bytes: Vec<u8> = cells.iter().flat_map(|cell| cell.to_be_bytes()).collect();
    let node = tree.find_node_mut(path).expect("there");
    node.add_property(DeviceTreeProperty::new(name, bytes).expect("property"));
    let tree = tree.to_dtb();
    let facts = board::facts(&tree).map(|facts| facts.parts.gicr_size);
    let survey = Survey::read(tree).expect("a board");
    let what = survey.obstacles.into_iter().map(|one| one.what);
    (facts, what.collect())
}

#[test]
fn redistributors_are_enough_and_a_rest_is_left_alone() {
    let of = |size: u32| {
        let reg = [0, 0x800_0000, 0, 0x1_0000, 0, 0x80a_0000, 0, size];
        changed("/intc@8000000", "reg", &reg)
    };
    let cpus = super::tests::of("virt.dtb").cpus.cpus.len() as u32;
    // Four and a half, as the trees of TI's AM65 have.
    let size = cpus * 0x2_0000 + 0x1_0000;
    assert_eq!(of(size), (Ok(size.into()), Vec::new()));
    for size in [size - 0x2_0000, size + 0x1000] {
        let (facts, obstacles) = of(size);
        assert_eq!(obstacles, [facts.expect_err("refused")]);
    }
}

#[test]
fn interrupts_that_el2_would_not_find_are_refused() {
    for (path, cells) in [
        ("/intc@8000000", &[0x8003, 1, 9, 4][..]),
        (
            "/timer",
            &[
                0x8003, 1, 13, 4, 0x8003, 1, 14, 4, 0x8003, 1, 11, 4, 0x8003, 1, 10, 4,
            ],
        ),
        ("/pl011@9000000", &[0x8003, 0, 1, 4]),
    ] {
        let (facts, obstacles) = changed(path, "interrupts-extended", cells);
        let why = facts.expect_err("refused");
        assert!(why.contains("has `interrupts-extended`"), "{why}");
        assert_eq!(obstacles, [format!("{path} has `interrupts-extended`")]);
    }
}

#[test]
fn what_is_no_board_is_refused_in_one_line() {
    let mut overlay = DeviceTree::new();
    let fragment = node(
        "fragment@0",
        &[],
        vec![node("__overlay__", &[], Vec::new())],
    );
    overlay.root = node("", &[], vec![fragment]);
    let refused = |bytes: Vec<u8>| Survey::read(bytes).expect_err("no board");
    assert!(refused(overlay.to_dtb()).contains("overlay"));
    assert!(refused(b"hello".to_vec()).contains("no device tree"));
}

#[test]
fn any_wrong_byte_is_survived() {
    let tree = fixture("virt-v2.dtb");
    for at in (0..tree.len()).step_by(13) {
        for change in [1, 0xff] {
            let mut wrong = tree.clone();
            wrong[at] ^= change;
            if let Ok(survey) = Survey::read(wrong) {
                assert!(!survey.text(true).is_empty());
            }
        }
    }
}

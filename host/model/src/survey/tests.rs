use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};

use super::*;

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

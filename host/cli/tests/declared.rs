//! Devices that a description declares free of DMA: who is refused, what is said, what the guest finds.

use std::fs;
use std::path::Path;

use dtoolkit::fdt::Fdt;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};

use bulkhead_cli::cmd::dtb;
use bulkhead_model::board::{Tree, pass};
use bulkhead_model::survey::Survey;
use bulkhead_planner::{Planned, show};
use bulkhead_runner::Effort;
use bulkhead_runner::prepare::prepare;

/// A property: its name and its cells, or its text.
type Property<'a> = (&'a str, &'a [u32]);

fn node(name: &str, words: &str, cells: &[Property], below: Vec<DeviceTreeNode>) -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new(name).expect("name");
    let mut add = |name: &str, bytes: Vec<u8>| {
        node.add_property(DeviceTreeProperty::new(name, bytes).expect("property"));
    };
    if !words.is_empty() {
        add(
            "compatible",
            words
                .replace(' ', "\0")
                .into_bytes()
                .into_iter()
                .chain([0])
                .collect(),
        );
    }
    for (name, cells) in cells {
        add(
            name,
            cells.iter().flat_map(|cell| cell.to_be_bytes()).collect(),
        );
    }
    below.into_iter().for_each(|child| node.add_child(child));
    node
}

/// The second page of so many from 0xa800000 on.
fn reg(page: u32) -> [u32; 4] {
    [0, 0xa80_0000 + page * 0x1000, 0, 0x1000]
}

const CLOCKS: u32 = 0x9001;
const RESETS: u32 = 0x9002;
const PINS: u32 = 0x9003;
const POWER: u32 = 0x9004;
const GPIO: u32 = 0x9005;
const SUPPLY: u32 = 0x9006;
const OTHERS: u32 = 0x9007;

/// QEMU's `virt` with what a SoC has besides, and with these devices.
fn tree(devices: Vec<DeviceTreeNode>) -> Vec<u8> {
    let bytes = fs::read("tests/fixtures/virt.dtb").expect("fixture");
    let mut tree = DeviceTree::from_fdt(&Fdt::new(&bytes).expect("a tree"));
    let provider = |name: &str, words: &str, page: u32, phandle: u32, cells: &str, count: u32| {
        let (reg, phandle, count) = (reg(page), [phandle], [count]);
        let cells: [Property; 3] = [("reg", &reg), ("phandle", &phandle), (cells, &count)];
        node(name, words, &cells, Vec::new())
    };
    let reg_pins = reg(18);
    let all = [
        provider(
            "clock-controller@a810000",
            "acme,ccu",
            16,
            CLOCKS,
            "#clock-cells",
            1,
        ),
        provider(
            "reset-unit@a811000",
            "acme,rst",
            17,
            RESETS,
            "#reset-cells",
            2,
        ),
        provider(
            "power@a813000",
            "acme,pmu",
            19,
            POWER,
            "#power-domain-cells",
            0,
        ),
        provider("gpio@a814000", "acme,gpio", 20, GPIO, "#gpio-cells", 2),
        node(
            "regulator",
            "regulator-fixed",
            &[("phandle", &[SUPPLY])],
            Vec::new(),
        ),
        // A controller of GPIOs that has the pins of others, too.
        node(
            "gpio@a812000",
            "acme,pins",
            &[("reg", &reg_pins)],
            vec![
                node("mine", "", &[("phandle", &[PINS])], Vec::new()),
                node("others", "", &[("phandle", &[OTHERS])], Vec::new()),
            ],
        ),
        node("led", "gpio-leds", &[("pinctrl-0", &[OTHERS])], Vec::new()),
    ];
    for device in all.into_iter().chain(devices) {
        tree.root.add_child(device);
    }
    tree.to_dtb()
}

/// An I2C controller with all that such have; these properties besides.
fn i2c(besides: &[Property]) -> DeviceTreeNode {
    let reg = reg(0);
    let cells: [Property; 13] = [
        ("reg", &reg),
        ("interrupts", &[0, 77, 4]),
        ("clocks", &[CLOCKS, 5, CLOCKS, 6]),
        ("clock-frequency", &[400_000]),
        ("resets", &[RESETS, 1, 2]),
        ("pinctrl-0", &[PINS]),
        ("pinctrl-1", &[PINS]),
        ("power-domains", &[POWER]),
        ("scl-gpios", &[GPIO, 3, 0]),
        ("vcc-supply", &[SUPPLY]),
        ("acme,gate", &[CLOCKS, 1]),
        ("acme,width", &[32]),
        ("#address-cells", &[1]),
    ];
    node(
        "i2c@a800000",
        "acme,i2c-3",
        &[&cells, besides].concat(),
        Vec::new(),
    )
}

fn declared(
    tree: &[u8],
    path: &str,
) -> Result<bulkhead_model::board::PassthroughDevice, (String, bool)> {
    let tree = Tree::new(Fdt::new(tree).expect("a tree"));
    let passed = pass(&tree, path, "/pl011@9000000", true);
    passed.map_err(|refusal| (refusal.why, refusal.moves_memory))
}

fn planned(tree: &[u8], devices: &str) -> Planned {
    let folder = tempfile::tempdir().expect("folder");
    let program = fs::canonicalize("tests/fixtures/raw.bin").expect("fixture");
    fs::write(folder.path().join("board.dtb"), tree).expect("file");
    let text = format!(
        "[board]\ndtb = \"board.dtb\"\n\n[vm.one]\nmemory = \"4MiB\"\nimage = {program:?}\nload = \"0x40080000\"\ndevices = [{devices}]\n"
    );
    let path = folder.path().join("one.toml");
    fs::write(&path, text).expect("file");
    match prepare(Path::new(&path), Effort::WhatIsThere) {
        Ok(prepared) => prepared.planned,
        Err(stopped) => panic!("{}", bulkhead_model::failure::Failure::from(stopped)),
    }
}

#[test]
fn what_the_guest_finds_names_no_node_that_it_has_not() {
    let rates: [Property; 2] = [
        ("assigned-clocks", &[CLOCKS, 6, CLOCKS, 5]),
        ("assigned-clock-rates", &[24_000_000, 100_000_000]),
    ];
    let wish = "{ path = \"/i2c@a800000\", dma = \"none\" }";
    for (besides, clocks) in [(&rates[..], 2), (&rates[..1], 0), (&[], 0)] {
        let planned = planned(&tree(vec![i2c(besides)]), wish);
        let bytes = dtb::tree(&planned.vms, Some("one")).expect("a tree");
        let fdt = Fdt::new(bytes).expect("sound");
        let tree = Tree::new(fdt);
        let device = tree.find("/i2c@a800000").expect("it is there");
        let names: Vec<String> = dtoolkit::Node::properties(&device.node)
            .map(|property| dtoolkit::Property::name(&property).to_owned())
            .collect();
        let kept = [
            "compatible",
            "clock-frequency",
            "acme,width",
            "#address-cells",
            "reg",
            "interrupts",
        ];
        let expected: Vec<&str> = { kept.into_iter() }
            .chain((clocks != 0).then_some("clocks"))
            .collect();
        assert_eq!(names, expected);
        // The rates are those of its own clocks, in its order.
        let found = device.cells("clocks").unwrap_or_default();
        let found: Vec<_> = { found.iter() }
            .map(|phandle| {
                tree.by_phandle(*phandle)
                    .and_then(|clock| clock.cell("clock-frequency"))
            })
            .collect();
        let asked = [Some(100_000_000), Some(24_000_000)];
        assert_eq!(found, asked[..clocks]);
        assert_eq!(planned.vms[0].devices[0].1, [109]);
    }
}

#[test]
fn the_plan_says_what_the_vm_does_not_get() {
    let planned = planned(
        &tree(vec![i2c(&[])]),
        "\"/pl061@9030000\", { path = \"/i2c@a800000\", dma = \"none\" }",
    );
    let vm = &planned.vms[0];
    let stated: Vec<&str> = vm.deviations.iter().map(|lack| lack.stated).collect();
    assert_eq!(stated, ["dma = \"none\""]);
    assert!(vm.devices[1].0.quiets.is_empty() && !vm.devices[0].0.quiets.is_empty());
    let text = show::text(&planned);
    for line in [
        "  deviation  dma = \"none\"",
        "  no DMA     by the description's word: /i2c@a800000",
        "`clocks` is not the VM's and stays as firmware left it: /clock-controller@a810000",
        "`resets` is not the VM's and stays as firmware left it: /reset-unit@a811000",
        "`pinctrl-0` is not the VM's and stays as firmware left it: /gpio@a812000/mine",
        "`vcc-supply` is not the VM's and stays as firmware left it: /regulator",
        "Linux drivers that need them will probably not probe",
        "before the VM starts again it stays as it was left",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let json = show::json(&planned);
    let declared = json["vms"][0]["declared"].as_array().expect("a list");
    assert_eq!(declared.len(), 1);
    assert_eq!(declared[0]["device"], "/i2c@a800000");
    assert_eq!(declared[0]["lacks"].as_array().expect("a list").len(), 8);
    assert_eq!(
        (&declared[0]["clockless"], &declared[0]["quieted"]),
        (&true.into(), &false.into())
    );
}

#[test]
fn a_device_whose_tree_speaks_of_memory_is_not_free_of_dma() {
    assert!(declared(&tree(vec![i2c(&[])]), "/i2c@a800000").is_ok());
    for name in [
        "dmas",
        "iommus",
        "dma-coherent",
        "memory-region",
        "iommu-map",
        "#dma-cells",
        "msi-parent",
        "dma-ranges",
    ] {
        let refused = declared(&tree(vec![i2c(&[(name, &[1])])]), "/i2c@a800000");
        let (why, moves_memory) = refused.expect_err(name);
        assert!(why.contains(name) && moves_memory, "{name}: {why}");
    }
    for (name, words) in [
        ("ethernet@a800000", "acme,net"),
        ("mac@a800000", "cdns,zynqmp-gem cdns,gem"),
        ("usb@a800000", "acme,port"),
        ("port@a800000", "snps,dwc3"),
        ("card@a800000", "arasan,sdhci-8.9a"),
        ("card@a800000", "fsl,imx8mp-usdhc"),
        ("pcie@a800000", "acme,root"),
        ("gpu@a800000", "acme,pixels"),
        ("copy@a800000", "xlnx,zynqmp-dma-1.0"),
        ("post@a800000", "brcm,bcm2835-mbox"),
        ("any@a800000", "virtio,mmio"),
        ("blit@a800000", "rockchip,rk3399-rga"),
        ("debug@a800000", "arm,coresight-cpu-debug"),
        ("config@a800000", "qemu,fw-cfg-mmio"),
    ] {
        let (reg, path) = (reg(0), format!("/{name}"));
        let tree = tree(vec![node(name, words, &[("reg", &reg)], Vec::new())]);
        let (why, moves_memory) = declared(&tree, &path).expect_err(words);
        assert!(moves_memory, "{words}: {why}");
    }
    // A part of it that has registers of its own.
    let (above, below) = (reg(0), reg(4));
    let core = node(
        "core@a804000",
        "acme,core",
        &[("reg", &below), ("iommus", &[1])],
        Vec::new(),
    );
    let cells: [Property; 4] = [
        ("reg", &above),
        ("ranges", &[]),
        ("#address-cells", &[2]),
        ("#size-cells", &[2]),
    ];
    let tree = tree(vec![node(
        "wrapper@a800000",
        "acme,wrapper",
        &cells,
        vec![core],
    )]);
    let (why, _) = declared(&tree, "/wrapper@a800000").expect_err("its part has an IOMMU");
    assert!(why.contains("core@a804000 has `iommus`"), "{why}");
}

#[test]
fn who_does_not_declare_it_is_told_how_if_that_would_do() {
    let bytes = tree(vec![i2c(&[])]);
    let tree = Tree::new(Fdt::new(&bytes).expect("a tree"));
    let refused = |path| pass(&tree, path, "/pl011@9000000", false).expect_err(path);
    let refused = |path| (refused(path).why, refused(path).help);
    let (why, help) = refused("/i2c@a800000");
    assert!(why.contains("not known to be free of DMA"), "{why}");
    assert!(help.contains("dma = \"none\""), "{help}");
    let (_, help) = refused("/virtio_mmio@a000000");
    assert!(help.contains("no SMMU"), "{help}");
}

#[test]
fn what_others_stand_on_is_nobodys() {
    let tree = tree(vec![i2c(&[])]);
    for (path, part) in [
        ("/clock-controller@a810000", "#clock-cells"),
        ("/reset-unit@a811000", "#reset-cells"),
        ("/power@a813000", "#power-domain-cells"),
        ("/gpio@a812000", "pins of /"),
        ("/intc@8000000", "whole board"),
        ("/flash@0", "flash"),
        ("/pl011@9000000", "consoles"),
    ] {
        let (why, moves_memory) = declared(&tree, path).expect_err(path);
        assert!(why.contains(part) && !moves_memory, "{path}: {why}");
    }
    assert!(declared(&tree, "/gpio@a814000").is_ok());
}

#[test]
fn interrupts_and_memory_of_all_are_nobodys() {
    let reg = reg(0);
    let controller: [Property; 3] = [
        ("reg", &reg),
        ("interrupt-controller", &[]),
        ("#interrupt-cells", &[3]),
    ];
    let pins = [
        &controller[..],
        &[("gpio-controller", &[]), ("#gpio-cells", &[2])],
    ]
    .concat();
    for (name, words, cells, refused) in [
        ("power@a800000", "fsl,imx8mp-gpc", &controller[..], true),
        ("memory@a800000", "mmio-sram", &controller[..1], true),
        ("gpio@a800000", "acme,pins", &pins, false),
    ] {
        let tree = tree(vec![node(name, words, cells, Vec::new())]);
        let answer = declared(&tree, &format!("/{name}"));
        assert_eq!(answer.is_err(), refused, "{name}");
    }
}

#[test]
fn a_bus_whose_registers_span_its_devices_is_no_neighbour() {
    let (span, reg) = ([0, 0xa80_0000, 0, 0x1_0000], reg(0));
    let cells: [Property; 4] = [
        ("reg", &span),
        ("ranges", &[]),
        ("#address-cells", &[2]),
        ("#size-cells", &[2]),
    ];
    for (words, passes) in [("acme,bus simple-bus", true), ("acme,port", false)] {
        let timer = node("timer@a800000", "acme,timer", &[("reg", &reg)], Vec::new());
        let tree = tree(vec![node("bus@a800000", words, &cells, vec![timer])]);
        let passed = declared(&tree, "/bus@a800000/timer@a800000");
        assert_eq!(passed.is_ok(), passes, "{words}: {passed:?}");
    }
}

#[test]
fn an_interrupt_of_several_is_no_vms() {
    let twice = node(
        "timer@a800000",
        "acme,timer",
        &[("reg", &reg(0)), ("interrupts", &[0, 70, 4, 0, 70, 4])],
        Vec::new(),
    );
    let other = node(
        "timer@a801000",
        "acme,timer",
        &[("reg", &reg(1)), ("interrupts", &[0, 71, 4])],
        Vec::new(),
    );
    let third = node(
        "timer@a802000",
        "acme,timer",
        &[("reg", &reg(2)), ("interrupts", &[0, 71, 4])],
        Vec::new(),
    );
    let tree = tree(vec![twice, other, third]);
    let why = |path| declared(&tree, path).expect_err(path).0;
    assert!(why("/timer@a800000").contains("INTID 102 twice"));
    assert!(why("/timer@a801000").contains("/timer@a802000 has its interrupt"));
}

#[test]
fn a_watchdog_of_another_kind_asks_for_more_than_that() {
    let dog = node(
        "watchdog@a800000",
        "acme,wdt",
        &[("reg", &reg(0))],
        Vec::new(),
    );
    let passed = declared(&tree(vec![dog]), "/watchdog@a800000").expect("as a deviation");
    assert!(passed.resets_board);
}

#[test]
fn a_board_lists_them_apart() {
    let survey = Survey::read(tree(vec![i2c(&[])])).expect("a board");
    let apart = survey
        .devices
        .iter()
        .filter(|device| device.passes_declared);
    let apart: Vec<_> = apart
        .map(|device| (device.path.as_str(), &device.intids[..]))
        .collect();
    assert_eq!(
        apart,
        [("/gpio@a814000", &[][..]), ("/i2c@a800000", &[109])]
    );
    let text = survey.text(false);
    assert!(
        text.contains("(dma = \"none\"): 2\n  /gpio@a814000  acme,gpio at 0xa814000\n"),
        "{text}"
    );
    assert!(!text.contains("/i2c@a800000: "), "{text}");
}

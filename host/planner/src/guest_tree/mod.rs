//! Device trees for guests: they name what a VM has, and nothing else of the board.

mod build;
mod ends;
mod private;
mod seeds;
mod virtio;

use bulkhead_abi::plan::{DeviceKind, PAGE};
use dtoolkit::model::DeviceTree;

use bulkhead_model::board::PassthroughDevice;
use bulkhead_model::describe::PmemRegion;

use crate::io::PlannedDevice;
use crate::planned::{EmulatedDevice, GuestGic, PlannedStop};

use build::{Build, EDGE};
pub use ends::{ChannelEnd, DoorbellEnd, Way};
pub use seeds::{SeedPlace, places};
pub use virtio::BackendEnd;

/// phandle of the interrupt controller.
pub(crate) const GIC: u32 = 1;
/// phandle of the clock of the console; clocks of passed-through devices follow.
const CLOCK: u32 = 2;
/// Frequency of the clock of the console in Hz, as on QEMU's `virt`.
const CLOCK_HZ: u32 = 24_000_000;
/// Interrupt flags of the GIC binding: level-sensitive, active high.
const LEVEL: u32 = 4;

/// Contents of a guest's device tree.
#[derive(Clone, Debug)]
pub struct GuestTree<'a> {
    /// MPIDR of each vCPU, and the first word of `compatible` of its CPU.
    pub cpus: &'a [(u64, &'a str)],
    /// RAM: IPA and size.
    pub ram: (u64, u64),
    /// Interrupt controller.
    pub gic: &'a GuestGic,
    /// Devices that EL2 emulates.
    pub emulated: &'a [EmulatedDevice],
    /// INTID by which it is told of crashes of others, if it is.
    pub event: Option<u32>,
    /// Whether it has performance monitors.
    pub pmu: bool,
    /// How it is asked to stop, if it is.
    pub stop: Option<&'a PlannedStop>,
    /// Passed-through devices, each with the INTIDs that the guest sees.
    pub devices: &'a [(PassthroughDevice, Vec<u32>)],
    /// Shared memory: name, IPA and size, and whether it may be cached.
    pub shared: &'a [(String, (u64, u64), bool)],
    /// Doorbells that it rings or hears.
    pub doorbells: &'a [DoorbellEnd<'a>],
    /// Channels of which it is an end.
    pub channels: &'a [ChannelEnd<'a>],
    /// The pmem region of those that are cached, if it is a Linux that maps them.
    pub pmem: Option<&'a PmemRegion>,
    /// Its virtio devices.
    pub virtio: &'a [&'a PlannedDevice],
    /// What it serves, if it is the service VM.
    pub backend: Option<BackendEnd<'a>>,
    /// Command line.
    pub arguments: &'a str,
    /// IPA of the initial RAM disk and of the byte behind it.
    pub initrd: Option<(u64, u64)>,
}

impl GuestTree<'_> {
    /// The flattened tree. Seeds are zeros; EL2 fills them.
    pub fn to_dtb(&self) -> Vec<u8> {
        let mut root = Build::new("")
            .texts("compatible", &["bulkhead,guest"])
            .texts("model", &["Bulkhead guest"])
            .cells("#address-cells", &[2])
            .cells("#size-cells", &[2])
            .cells("interrupt-parent", &[GIC])
            .child(self.chosen())
            .child(
                Build::new(format!("memory@{:x}", self.ram.0))
                    .texts("device_type", &["memory"])
                    .wide("reg", &[self.ram.0, self.ram.1]),
            )
            .child(self.cpus())
            .child(
                Build::new("psci")
                    .texts("compatible", &["arm,psci-1.0", "arm,psci-0.2"])
                    .texts("method", &["hvc"]),
            )
            .child(self.timer())
            .child(self.interrupt_controller());
        if self.pmu {
            root = root.child(self.pmu());
        }
        for device in self.emulated {
            root = root.child(emulated(device));
        }
        if self.emulated.iter().any(|device| has_clock(device.kind)) {
            root = root.child(clock(CLOCK, CLOCK_HZ));
        }
        if let Some(intid) = self.event {
            root = root.child(
                Build::new("events")
                    .texts("compatible", &["bulkhead,vm-events"])
                    .cells("interrupts", &[0, intid - 32, EDGE]),
            );
        }
        if let Some(stop) = self.stop {
            root = root.child(ends::stop(stop));
        }
        let mut phandle = CLOCK + 1;
        for (device, intids) in self.devices {
            root = self.device(root, device, intids, &mut phandle);
        }
        for (name, (ipa, size), cacheable) in self.shared {
            let mut node = Build::new(format!("shared@{ipa:x}"))
                .texts("compatible", &["bulkhead,shared"])
                .texts("label", &[name])
                .wide("reg", &[*ipa, *size]);
            let about = |end: &&DoorbellEnd| end.shared == Some(name);
            let ends: Vec<_> = self.doorbells.iter().filter(about).collect();
            if !ends.is_empty() {
                node = node.cells("phandle", &[phandle]);
            }
            if !cacheable {
                node = node.bytes("bulkhead,uncached", &[]);
            }
            root = root.child(node);
            for end in ends {
                root = root.child(self.doorbell(end).cells("memory-region", &[phandle]));
            }
            phandle += 1;
        }
        for end in self.doorbells.iter().filter(|end| end.shared.is_none()) {
            root = root.child(self.doorbell(end));
        }
        for end in self.doorbells {
            root = root.child(ends::way(end));
        }
        for end in self.channels {
            for node in ends::channel(end, self.pmem) {
                root = root.child(node);
            }
        }
        if let Some(pmem) = self.pmem {
            root = root.child(ends::pmem(pmem));
        }
        for device in self.virtio {
            root = root.child(virtio::device(device));
        }
        if let Some(backend) = self.backend {
            root = root.child(virtio::backend(backend));
        }
        let mut tree = DeviceTree::new();
        tree.root = root.0;
        tree.to_dtb()
    }

    /// A passed-through device with copies of its clocks.
    fn device(
        &self,
        mut root: Build,
        device: &PassthroughDevice,
        intids: &[u32],
        phandle: &mut u32,
    ) -> Build {
        let registers: Vec<u64> = device
            .registers
            .iter()
            .flat_map(|&(base, size)| [base, size])
            .collect();
        let interrupts: Vec<u32> = device
            .irqs
            .iter()
            .zip(intids)
            .flat_map(|(irq, intid)| [0, intid - 32, irq.flags])
            .collect();
        let mut node = Build::new(device.name.clone());
        for (name, value) in &device.properties {
            node = node.bytes(name, value);
        }
        node = node.wide("reg", &registers);
        if !interrupts.is_empty() {
            node = node.cells("interrupts", &interrupts);
        }
        let mut clocks = Vec::new();
        for frequency in &device.clocks {
            root = root.child(clock(*phandle, *frequency));
            clocks.push(*phandle);
            *phandle += 1;
        }
        if !clocks.is_empty() {
            node = node.cells("clocks", &clocks);
        }
        root.child(node)
    }

    /// A doorbell. What is only heard has no address to be named by.
    fn doorbell(&self, end: &DoorbellEnd) -> Build {
        let node = match end.way {
            Way::Rings(ipa) => Build::new(format!("doorbell@{ipa:x}")).wide("reg", &[ipa, PAGE]),
            Way::Hears(intid) => {
                Build::new(format!("doorbell-{intid}")).cells("interrupts", &[0, intid - 32, EDGE])
            }
        };
        node.texts("compatible", &["bulkhead,doorbell"])
            .texts("label", &[end.name])
    }

    /// The timers: secure, EL1 physical, EL1 virtual, EL2 physical with INTIDs 29, 30, 27, 26. The guest
    /// has the two of EL1; the binding wants all.
    fn interrupt_controller(&self) -> Build {
        let GuestGic {
            version,
            gicd,
            interface,
        } = *self.gic;
        let words: &[&str] = match version {
            // The GIC-400 is a GICv2 with virtualization; older systems know it by the other word.
            2 => &["arm,gic-400", "arm,cortex-a15-gic"],
            _ => &["arm,gic-v3"],
        };
        Build::new(format!("interrupt-controller@{:x}", gicd.0))
            .texts("compatible", words)
            .bytes("interrupt-controller", &[])
            .cells("#interrupt-cells", &[3])
            .cells("#address-cells", &[0])
            .wide("reg", &[gicd.0, gicd.1, interface.0, interface.1])
            .cells("phandle", &[GIC])
    }

    fn chosen(&self) -> Build {
        let mut chosen = Build::new("chosen").texts("bootargs", &[self.arguments]);
        let console = self
            .emulated
            .iter()
            .find(|device| device.kind == DeviceKind::Pl011);
        if let Some(console) = console {
            chosen = chosen.texts("stdout-path", &[&format!("/{}", node_name(console))]);
        }
        if let Some((start, end)) = self.initrd {
            chosen = chosen
                .wide("linux,initrd-start", &[start])
                .wide("linux,initrd-end", &[end]);
        }
        chosen
            .bytes("rng-seed", &[0; 64])
            .bytes("kaslr-seed", &[0; 8])
    }

    fn cpus(&self) -> Build {
        // Aff3 is in the upper word.
        let wide = self.cpus.iter().any(|(mpidr, _)| mpidr >> 32 != 0);
        let cpus = Build::new("cpus")
            .cells("#address-cells", &[if wide { 2 } else { 1 }])
            .cells("#size-cells", &[0]);
        self.cpus.iter().fold(cpus, |cpus, (mpidr, kind)| {
            let words = [(mpidr >> 32) as u32, *mpidr as u32];
            cpus.child(
                Build::new(format!("cpu@{mpidr:x}"))
                    .texts("device_type", &["cpu"])
                    .texts("compatible", &[kind])
                    .cells("reg", if wide { &words } else { &words[1..] })
                    .texts("enable-method", &["psci"]),
            )
        })
    }
}

/// Name of the node of an emulated device.
fn node_name(device: &EmulatedDevice) -> String {
    let kind = match device.kind {
        DeviceKind::Pl011 => "serial",
        DeviceKind::Pl031 => "rtc",
        DeviceKind::Watchdog => "watchdog",
    };
    format!("{kind}@{:x}", device.ipa)
}

/// Whether the binding of such a device wants a clock.
fn has_clock(kind: DeviceKind) -> bool {
    matches!(kind, DeviceKind::Pl011 | DeviceKind::Pl031)
}

/// The node of an emulated device.
fn emulated(device: &EmulatedDevice) -> Build {
    let node = Build::new(node_name(device)).cells("interrupts", &[0, device.intid - 32, LEVEL]);
    let (ipa, size) = (device.ipa, device.size);
    match device.kind {
        DeviceKind::Pl011 => node
            .texts("compatible", &["arm,pl011", "arm,primecell"])
            .wide("reg", &[ipa, size])
            .texts("clock-names", &["uartclk", "apb_pclk"])
            .cells("clocks", &[CLOCK, CLOCK]),
        DeviceKind::Pl031 => node
            .texts("compatible", &["arm,pl031", "arm,primecell"])
            .wide("reg", &[ipa, size])
            .texts("clock-names", &["apb_pclk"])
            .cells("clocks", &[CLOCK]),
        // Control frame, then refresh frame.
        DeviceKind::Watchdog => node
            .texts("compatible", &["arm,sbsa-gwdt"])
            .wide("reg", &[ipa, size / 2, ipa + size / 2, size / 2]),
    }
}

/// A clock that nobody can change.
fn clock(phandle: u32, frequency: u32) -> Build {
    Build::new(format!("clock-{phandle}"))
        .texts("compatible", &["fixed-clock"])
        .cells("#clock-cells", &[0])
        .cells("clock-frequency", &[frequency])
        .cells("phandle", &[phandle])
}

#[cfg(test)]
mod tests {
    use dtoolkit::fdt::Fdt;
    use dtoolkit::{Node, Property};

    use bulkhead_channel::Shape;

    use super::*;

    fn device(kind: DeviceKind, ipa: u64, size: u64, intid: u32) -> EmulatedDevice {
        EmulatedDevice {
            kind,
            ipa,
            size,
            intid,
        }
    }

    /// The tree of a guest with two vCPUs and everything that EL2 emulates.
    fn tree(version: u32) -> Vec<u8> {
        let interface = match version {
            2 => (0x0801_0000, 0x2000),
            _ => (0x080a_0000, 0x4_0000),
        };
        GuestTree {
            cpus: &[(0, "arm,cortex-a53"), (1, "arm,cortex-a53")],
            ram: (0x4000_0000, 64 << 20),
            gic: &GuestGic {
                version,
                gicd: (0x0800_0000, 0x1_0000),
                interface,
            },
            emulated: &[
                device(DeviceKind::Pl011, 0x0900_0000, 0x1000, 33),
                device(DeviceKind::Pl031, 0x0901_0000, 0x1000, 34),
                device(DeviceKind::Watchdog, 0x0908_0000, 0x2000, 35),
            ],
            event: Some(36),
            pmu: true,
            stop: None,
            devices: &[],
            shared: &[
                ("report".to_owned(), (0x7000_0000, 4096), true),
                ("silent".to_owned(), (0x7001_0000, 4096), false),
            ],
            doorbells: &[
                DoorbellEnd {
                    name: "go",
                    way: Way::Rings(0x0920_0000),
                    shared: Some("report"),
                },
                DoorbellEnd {
                    name: "done",
                    way: Way::Hears(287),
                    shared: Some("report"),
                },
                DoorbellEnd {
                    name: "bare",
                    way: Way::Hears(37),
                    shared: None,
                },
            ],
            channels: &[
                ChannelEnd {
                    name: "orders",
                    peer: "screen",
                    memory: [(0x1000_0000, 8192), (0x1000_2000, 8192)],
                    cacheable: false,
                    shape: Shape::new(64, 32).expect("a shape"),
                    rings: Some(0x0920_1000),
                    hears: Some(38),
                },
                ChannelEnd {
                    name: "looks",
                    peer: "screen",
                    memory: [(0x1220_0000, 4096), (0x1220_1000, 4096)],
                    cacheable: true,
                    shape: Shape::new(1, 1).expect("a shape"),
                    rings: None,
                    hears: None,
                },
            ],
            pmem: Some(&PmemRegion {
                ipa: 0x1200_0000,
                size: 16 << 20,
                channels: vec![(0x1220_0000, 4096), (0x1220_1000, 4096)],
            }),
            virtio: &[],
            backend: None,
            arguments: "console=ttyAMA0",
            initrd: Some((0x4400_0000, 0x4410_0000)),
        }
        .to_dtb()
    }

    fn cells(fdt: &Fdt, path: &str, name: &str) -> Vec<u32> {
        let node = fdt.find_node(path).expect(path);
        let property = node.property(name).expect(name);
        let (cells, rest) = property.value().as_chunks::<4>();
        assert!(rest.is_empty(), "{path} {name}");
        cells.iter().map(|cell| u32::from_be_bytes(*cell)).collect()
    }

    #[test]
    fn the_gic_is_of_the_boards_version() {
        for (version, word, reg, mask) in [
            (2, "arm,gic-400", [0, 0x0801_0000, 0, 0x2000], 0x300),
            (3, "arm,gic-v3", [0, 0x080a_0000, 0, 0x4_0000], 0),
        ] {
            let dtb = tree(version);
            let fdt = Fdt::new(&dtb).expect("a sound tree");
            let path = "/interrupt-controller@8000000";
            let node = fdt.find_node(path).expect("GIC");
            let words = node.property("compatible").expect("words").value().to_vec();
            assert!(words.starts_with(word.as_bytes()), "{version}");
            assert_eq!(cells(&fdt, path, "reg")[4..], reg);
            let timers = cells(&fdt, "/timer", "interrupts");
            assert_eq!(timers[3..6], [1, 14, 4 | mask], "EL1 physical");
            assert_eq!(timers[6..9], [1, 11, 4 | mask], "EL1 virtual");
        }
    }

    #[test]
    fn every_vcpu_and_every_device_has_a_node() {
        let dtb = tree(3);
        let fdt = Fdt::new(&dtb).expect("a sound tree");
        assert_eq!(cells(&fdt, "/cpus/cpu@0", "reg"), [0]);
        assert_eq!(cells(&fdt, "/cpus/cpu@1", "reg"), [1]);
        assert!(fdt.find_node("/cpus/cpu@2").is_none());
        assert_eq!(cells(&fdt, "/rtc@9010000", "interrupts"), [0, 2, 4]);
        let frames = [0, 0x0908_0000, 0, 0x1000, 0, 0x0908_1000, 0, 0x1000];
        assert_eq!(cells(&fdt, "/watchdog@9080000", "reg"), frames);
        assert_eq!(cells(&fdt, "/events", "interrupts"), [0, 4, 1]);
    }

    #[test]
    fn channels_say_where_their_memory_is_and_how_they_are_rung_and_heard() {
        let dtb = tree(3);
        let fdt = Fdt::new(&dtb).expect("a tree");
        let path = "/channel@10000000";
        assert_eq!(
            cells(&fdt, path, "reg"),
            [
                0,
                0x1000_0000,
                0,
                8192,
                0,
                0x1000_2000,
                0,
                8192,
                0,
                0x0920_1000,
                0,
                4096
            ]
        );
        assert_eq!(cells(&fdt, path, "interrupts"), [0, 6, 1]);
        assert_eq!(cells(&fdt, path, "bulkhead,message-size"), [64]);
        assert_eq!(cells(&fdt, path, "bulkhead,messages"), [32]);
        let silent = "/channel@12200000";
        assert_eq!(
            cells(&fdt, silent, "reg"),
            [0, 0x1220_0000, 0, 4096, 0, 0x1220_1000, 0, 4096]
        );
        let node = fdt.find_node(silent).expect("node");
        assert!(node.property("interrupts").is_none());
        // Only what is cached is in the pmem region.
        let pmem = cells(&fdt, silent, "bulkhead,pmem");
        assert_eq!(pmem, [0, 0x1200_0000, 0, 0x1220_0000]);
        let node = fdt.find_node(path).expect("node");
        assert!(node.property("bulkhead,pmem").is_none());
        let pmem = cells(&fdt, "/pmem@12000000", "reg");
        assert_eq!(pmem, [0, 0x1200_0000, 0, 16 << 20]);
    }

    #[test]
    fn doorbells_say_how_they_are_rung_or_heard_and_what_they_are_about() {
        let dtb = tree(3);
        let fdt = Fdt::new(&dtb).expect("a sound tree");
        let report = cells(&fdt, "/shared@70000000", "phandle");
        let other = fdt.find_node("/shared@70010000").expect("node");
        assert!(other.property("phandle").is_none(), "nobody refers to it");
        let rung = "/doorbell@9200000";
        assert_eq!(cells(&fdt, rung, "reg"), [0, 0x0920_0000, 0, 0x1000]);
        assert_eq!(cells(&fdt, rung, "memory-region"), report);
        let node = fdt.find_node(rung).expect("node");
        assert_eq!(node.property("label").expect("label").value(), b"go\0");
        assert!(node.property("interrupts").is_none());
        assert_eq!(cells(&fdt, "/doorbell-287", "interrupts"), [0, 255, 1]);
        assert_eq!(cells(&fdt, "/doorbell-287", "memory-region"), report);
        assert_eq!(cells(&fdt, "/doorbell-37", "interrupts"), [0, 5, 1]);
        let bare = fdt.find_node("/doorbell-37").expect("node");
        assert!(bare.property("memory-region").is_none());
    }

    #[test]
    fn a_linux_finds_drivers_of_its_own_for_doorbells() {
        let dtb = tree(3);
        let fdt = Fdt::new(&dtb).expect("a sound tree");
        let text = |path: &str, name: &str| {
            let node = fdt.find_node(path).expect(path);
            node.property(name).expect(name).value().to_vec()
        };
        // A GPIO controller writes its register whole, and it may not be longer than a word of the CPU.
        for (page, label) in [(0x0920_0000, "go\0"), (0x0920_1000, "orders\0")] {
            let path = format!("/gpio@{page:x}");
            assert_eq!(text(&path, "compatible"), b"wd,mbl-gpio\0");
            assert_eq!(text(&path, "label"), label.as_bytes());
            assert_eq!(cells(&fdt, &path, "reg"), [0, page, 0, 4]);
        }
        for (intid, label) in [(287, "done"), (37, "bare"), (38, "orders")] {
            let path = format!("/gpio-keys-{intid}");
            let name = format!("bulkhead {label}\0");
            assert_eq!(text(&path, "label"), name.as_bytes());
            let key = format!("{path}/heard");
            assert_eq!(cells(&fdt, &key, "interrupts"), [0, intid - 32, 1]);
            // Released at once: a key that is still pressed says nothing of the next ring until it is let go.
            assert_eq!(cells(&fdt, &key, "debounce-interval"), [0]);
        }
        // Who neither rings nor hears has neither.
        let all = fdt.root().children().map(|node| node.name().to_owned());
        let drivers = all.filter(|name| name.starts_with("gpio"));
        assert_eq!(drivers.count(), 5);
        let uncached = |path: &str| {
            fdt.find_node(path)
                .expect(path)
                .property("bulkhead,uncached")
                .is_some()
        };
        let paths = [
            "/channel@10000000",
            "/channel@12200000",
            "/shared@70000000",
            "/shared@70010000",
        ];
        assert_eq!(paths.map(uncached), [true, false, false, true]);
    }

    #[test]
    fn tree_says_what_the_guest_has() {
        let dtb = tree(3);
        let fdt = Fdt::new(&dtb).expect("a sound tree");
        let text = |path: &str, name: &str| {
            let node = fdt.find_node(path).expect("node");
            node.property(name).expect("property").value().to_vec()
        };
        assert_eq!(text("/chosen", "bootargs"), b"console=ttyAMA0\0");
        assert_eq!(text("/chosen", "stdout-path"), b"/serial@9000000\0");
        assert_eq!(text("/psci", "method"), b"hvc\0");
        assert_eq!(text("/shared@70000000", "label"), b"report\0");
        assert_eq!(
            text("/serial@9000000", "interrupts"),
            [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 4]
        );
    }

    #[test]
    fn seeds_are_found_at_their_tokens() {
        let dtb = tree(3);
        let seeds = places(&dtb);
        assert_eq!(
            seeds.iter().map(|seed| seed.size).collect::<Vec<_>>(),
            [64, 8]
        );
        for seed in seeds {
            let at = seed.offset as usize;
            assert_eq!(dtb[at..at + 4], 3_u32.to_be_bytes());
            assert_eq!(dtb[at + 4..at + 8], seed.size.to_be_bytes());
            assert!(
                dtb[at + 12..][..seed.size as usize]
                    .iter()
                    .all(|&byte| byte == 0)
            );
        }
    }
}

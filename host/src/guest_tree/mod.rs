//! Device trees for guests: what a VM sees, and nothing of the board besides.

mod seeds;

use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};

use crate::board::Passed;

pub use seeds::{SeedPlace, places};

/// phandle of the interrupt controller.
const GIC: u32 = 1;
/// phandle of the clock of the console; clocks of passed-through devices follow.
const CLOCK: u32 = 2;
/// Frequency of the clock of the console: what QEMU's `virt` has, too.
const CLOCK_HZ: u32 = 24_000_000;
/// Interrupt flags of the GIC binding: level-sensitive, active high.
const LEVEL: u32 = 4;

/// Everything that a guest's tree says.
#[derive(Clone, Debug)]
pub struct GuestTree<'a> {
    /// First word of `compatible` of its CPU.
    pub cpu: &'a str,
    /// RAM: IPA and size.
    pub ram: (u64, u64),
    /// IPA of the distributor (64 KiB).
    pub gicd: u64,
    /// IPA and size of the redistributors.
    pub gicr: (u64, u64),
    /// IPA and INTID of the PL011, if it has one.
    pub console: Option<(u64, u32)>,
    /// Passed-through devices, each with the INTIDs that the guest sees.
    pub devices: &'a [(Passed, Vec<u32>)],
    /// Shared memory: name, IPA, size.
    pub shared: &'a [(String, u64, u64)],
    /// Command line.
    pub arguments: &'a str,
    /// IPA of the initial RAM disk and of the byte behind it.
    pub initrd: Option<(u64, u64)>,
}

/// A node under construction. Names are either literals or come from a checked tree, so that what
/// dtoolkit refuses cannot occur; such a part would be left out.
struct Build(DeviceTreeNode);

impl Build {
    fn new(name: impl Into<String>) -> Self {
        Self(DeviceTreeNode::new(name).unwrap_or_default())
    }

    fn bytes(mut self, name: &str, value: &[u8]) -> Self {
        if let Ok(property) = DeviceTreeProperty::new(name, value) {
            self.0.add_property(property);
        }
        self
    }

    fn cells(self, name: &str, cells: &[u32]) -> Self {
        let bytes: Vec<u8> = cells.iter().flat_map(|cell| cell.to_be_bytes()).collect();
        self.bytes(name, &bytes)
    }

    fn wide(self, name: &str, values: &[u64]) -> Self {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_be_bytes())
            .collect();
        self.bytes(name, &bytes)
    }

    fn texts(self, name: &str, texts: &[&str]) -> Self {
        let bytes: Vec<u8> = texts
            .iter()
            .flat_map(|text| text.bytes().chain([0]))
            .collect();
        self.bytes(name, &bytes)
    }

    fn child(mut self, child: Self) -> Self {
        self.0.add_child(child.0);
        self
    }
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
            .child(
                // Secure, non-secure, virtual, hypervisor: INTIDs 29, 30, 27, 26. The guest has the
                // virtual one; the binding wants all.
                Build::new("timer")
                    .texts("compatible", &["arm,armv8-timer"])
                    .cells(
                        "interrupts",
                        &[1, 13, LEVEL, 1, 14, LEVEL, 1, 11, LEVEL, 1, 10, LEVEL],
                    )
                    .bytes("always-on", &[]),
            )
            .child(
                Build::new(format!("interrupt-controller@{:x}", self.gicd))
                    .texts("compatible", &["arm,gic-v3"])
                    .bytes("interrupt-controller", &[])
                    .cells("#interrupt-cells", &[3])
                    .cells("#address-cells", &[0])
                    .wide("reg", &[self.gicd, 0x1_0000, self.gicr.0, self.gicr.1])
                    .cells("phandle", &[GIC]),
            );
        if let Some((ipa, intid)) = self.console {
            root = root.child(clock(CLOCK, CLOCK_HZ)).child(
                Build::new(format!("serial@{ipa:x}"))
                    .texts("compatible", &["arm,pl011", "arm,primecell"])
                    .wide("reg", &[ipa, 0x1000])
                    .cells("interrupts", &[0, intid - 32, LEVEL])
                    .texts("clock-names", &["uartclk", "apb_pclk"])
                    .cells("clocks", &[CLOCK, CLOCK]),
            );
        }
        let mut phandle = CLOCK + 1;
        for (device, intids) in self.devices {
            root = self.device(root, device, intids, &mut phandle);
        }
        for (name, ipa, size) in self.shared {
            root = root.child(
                Build::new(format!("shared@{ipa:x}"))
                    .texts("compatible", &["bulkhead,shared"])
                    .texts("label", &[name])
                    .wide("reg", &[*ipa, *size]),
            );
        }
        let mut tree = DeviceTree::new();
        tree.root = root.0;
        tree.to_dtb()
    }

    /// A passed-through device with copies of its clocks.
    fn device(&self, mut root: Build, device: &Passed, intids: &[u32], phandle: &mut u32) -> Build {
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

    fn chosen(&self) -> Build {
        let mut chosen = Build::new("chosen").texts("bootargs", &[self.arguments]);
        if let Some((ipa, _)) = self.console {
            chosen = chosen.texts("stdout-path", &[&format!("/serial@{ipa:x}")]);
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
        Build::new("cpus")
            .cells("#address-cells", &[1])
            .cells("#size-cells", &[0])
            .child(
                Build::new("cpu@0")
                    .texts("device_type", &["cpu"])
                    .texts("compatible", &[self.cpu])
                    .cells("reg", &[0])
                    .texts("enable-method", &["psci"]),
            )
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

    use super::*;

    fn tree() -> Vec<u8> {
        GuestTree {
            cpu: "arm,cortex-a53",
            ram: (0x4000_0000, 64 << 20),
            gicd: 0x0800_0000,
            gicr: (0x080a_0000, 0x2_0000),
            console: Some((0x0900_0000, 33)),
            devices: &[],
            shared: &[("report".to_owned(), 0x7000_0000, 4096)],
            arguments: "console=ttyAMA0",
            initrd: Some((0x4400_0000, 0x4410_0000)),
        }
        .to_dtb()
    }

    #[test]
    fn tree_says_what_the_guest_has() {
        let dtb = tree();
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
        let dtb = tree();
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

//! Memory, interrupt controllers, timers, UARTs and IOMMUs.

use dtoolkit::fdt::Fdt;
use serde::Serialize;

use crate::board::{Entry, GICV2, Tree, intid_of, uart_kind};

/// A range of physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Range {
    /// First byte.
    pub base: u64,
    /// Bytes.
    pub size: u64,
}

impl Range {
    pub(super) fn of(&(base, size): &(u64, u64)) -> Self {
        Self { base, size }
    }
}

/// Words of `compatible` of UARTs, and their common names.
const UARTS: [(&str, &str); 24] = [
    ("arm,pl011", "PL011"),
    ("arm,sbsa-uart", "SBSA UART"),
    ("ns16550a", "16550"),
    ("ns16550", "16550"),
    ("snps,dw-apb-uart", "DesignWare 8250"),
    ("mrvl,mmp-uart", "8250"),
    ("nvidia,tegra20-uart", "Tegra 8250"),
    ("nvidia,tegra194-tcu", "Tegra combined UART"),
    ("ti,am654-uart", "TI 8250"),
    ("brcm,bcm2835-aux-uart", "BCM2835 mini UART"),
    ("cdns,uart-r1p8", "Cadence UART"),
    ("cdns,uart-r1p12", "Cadence UART"),
    ("xlnx,xuartps", "Cadence UART"),
    ("fsl,imx6q-uart", "i.MX UART"),
    ("fsl,imx21-uart", "i.MX UART"),
    ("fsl,imx7ulp-lpuart", "LPUART"),
    ("fsl,imx8qxp-lpuart", "LPUART"),
    ("fsl,ls1021a-lpuart", "LPUART"),
    ("amlogic,meson-gx-uart", "Meson UART"),
    ("qcom,msm-uartdm", "Qualcomm UARTDM"),
    ("qcom,geni-debug-uart", "Qualcomm GENI UART"),
    ("renesas,scif", "SCIF"),
    ("mediatek,mt6577-uart", "MediaTek UART"),
    ("marvell,armada-3700-uart", "Armada 3700 UART"),
];

/// An interrupt controller.
#[derive(Clone, Debug, Serialize)]
pub struct Gic {
    /// Path of its node.
    pub path: String,
    /// Words of `compatible`.
    pub compatible: Vec<String>,
    /// Its architecture version, if EL2 has a driver for it: 2 or 3.
    pub version: Option<u32>,
    /// Frames in the order of the binding.
    pub frames: Vec<Range>,
    /// INTID of the maintenance interrupt.
    pub maintenance_intid: Option<u32>,
    /// Cells of an interrupt.
    pub cells: Option<u32>,
    /// Regions of redistributors.
    pub redistributor_regions: u32,
    /// Interrupt translation services (GICv3), which turn messages into LPIs.
    pub its: Vec<String>,
}

/// The generic timer: INTIDs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Timers {
    /// Path of its node.
    pub path: String,
    /// Secure EL1 physical.
    pub secure: Option<u32>,
    /// EL1 physical.
    pub physical: Option<u32>,
    /// EL1 virtual.
    pub virtual_: Option<u32>,
    /// EL2 physical.
    pub hypervisor: Option<u32>,
    /// Hz, where the tree has to say it because firmware does not set CNTFRQ_EL0.
    pub frequency: Option<u32>,
    /// Whether it is a timer of Armv8; else EL2 does not know it.
    pub v8: bool,
}

/// A UART.
#[derive(Clone, Debug, Serialize)]
pub struct Uart {
    /// Path of its node.
    pub path: String,
    /// Common name of such a device; else the first word of `compatible`.
    pub kind: String,
    /// Registers.
    pub registers: Vec<Range>,
    /// INTID, if it is one of the GIC.
    pub intid: Option<u32>,
    /// Whether firmware leaves it for use.
    pub enabled: bool,
    /// Whether the tree says that it is the console (`/chosen/stdout-path`).
    pub console: bool,
    /// Whether EL2 has a driver for it.
    pub driver: bool,
}

/// An SMMU, or another IOMMU.
#[derive(Clone, Debug, Serialize)]
pub struct Iommu {
    /// Path of its node.
    pub path: String,
    /// Words of `compatible`.
    pub compatible: Vec<String>,
    /// Registers.
    pub registers: Vec<Range>,
    /// Whether firmware leaves it for use.
    pub enabled: bool,
    /// Nodes whose accesses it translates.
    pub masters: usize,
}

fn ranges(entry: &Entry) -> Vec<Range> {
    entry.registers.iter().map(Range::of).collect()
}

/// Memory nodes, ascending.
pub(super) fn memory(tree: &Tree) -> Vec<Range> {
    let is_memory = |entry: &&Entry| {
        entry.text("device_type").as_deref() == Some("memory") && entry.is_enabled()
    };
    let nodes = tree.entries.iter().filter(is_memory);
    let mut all: Vec<Range> = nodes.flat_map(ranges).collect();
    all.sort_by_key(|range| range.base);
    all
}

/// Memory that firmware keeps: /reserved-memory and the reservation block.
pub(super) fn reserved(tree: &Tree, fdt: Fdt) -> Vec<Range> {
    let placed = |entry: &&Entry| entry.path.starts_with("/reserved-memory/");
    let nodes = tree.entries.iter().filter(placed).flat_map(ranges);
    let block = fdt.memory_reservations();
    let block = block.map(|one| Range {
        base: one.address(),
        size: one.size(),
    });
    let mut all: Vec<Range> = nodes.chain(block).filter(|range| range.size > 0).collect();
    all.sort_by_key(|range| range.base);
    all
}

/// Version of a GIC that EL2 knows.
fn version(entry: &Entry) -> Option<u32> {
    if entry.is("arm,gic-v3") {
        return Some(3);
    }
    GICV2.iter().any(|word| entry.is(word)).then_some(2)
}

/// Whether a node may be the interrupt controller of the CPUs: a GIC of any kind, or the one that the root names.
fn is_root_controller(tree: &Tree, entry: &Entry) -> bool {
    let words = entry.compatible();
    let gic = |word: &String| {
        let word = word.as_str();
        word.contains("gic")
            && word.starts_with("arm,")
            && !word.ends_with("-its")
            && !word.contains("v2m")
    };
    let root = tree.entries.first().and_then(|root| root.interrupt_parent);
    let named = root.is_some() && entry.cell("phandle") == root;
    entry.is_enabled()
        && entry.bytes("interrupt-controller").is_some()
        && (words.iter().any(gic) || named)
}

/// Interrupt controllers, those that EL2 knows first.
pub(super) fn controllers(tree: &Tree) -> Vec<Gic> {
    let nodes = tree
        .entries
        .iter()
        .filter(|entry| is_root_controller(tree, entry));
    let mut all: Vec<Gic> = nodes
        .map(|entry| {
            let below = format!("{}/", entry.path);
            let its = tree
                .entries
                .iter()
                .filter(|child| child.path.starts_with(&below) && child.is("arm,gic-v3-its"));
            Gic {
                path: entry.path.clone(),
                compatible: entry.compatible(),
                version: version(entry),
                frames: ranges(entry),
                maintenance_intid: intid_of(tree, entry, 0),
                cells: entry.cell("#interrupt-cells"),
                redistributor_regions: entry.cell("#redistributor-regions").unwrap_or(1),
                its: its.map(|child| child.path.clone()).collect(),
            }
        })
        .collect();
    all.sort_by_key(|gic| gic.version.is_none());
    all
}

/// The generic timer.
pub(super) fn timers(tree: &Tree) -> Option<Timers> {
    let find = |word: &str| tree.entries.iter().find(|entry| entry.is(word));
    let entry = find("arm,armv8-timer").or_else(|| find("arm,armv7-timer"))?;
    let number = |at: usize| intid_of(tree, entry, at);
    Some(Timers {
        path: entry.path.clone(),
        secure: number(0),
        physical: number(1),
        virtual_: number(2),
        hypervisor: number(3),
        frequency: entry.cell("clock-frequency"),
        v8: entry.is("arm,armv8-timer"),
    })
}

/// UARTs: known ones, nodes named `serial@` or `uart@`, and the console.
pub(super) fn uarts(tree: &Tree) -> Vec<Uart> {
    let chosen = tree
        .find("/chosen")
        .and_then(|chosen| chosen.text("stdout-path"));
    let console = chosen.and_then(|path| tree.find(&path));
    let console = console.map(|entry| entry.path.as_str());
    let uart = |entry: &Entry| {
        let words = entry.compatible();
        let known = UARTS.iter().find(|(word, _)| entry.is(word));
        let name = entry.path.rsplit('/').next().unwrap_or_default();
        let called = name.starts_with("serial@") || name.starts_with("uart@");
        let is_console = console == Some(entry.path.as_str());
        let there = entry.mapped && !entry.registers.is_empty();
        ((there && (known.is_some() || called)) || is_console).then(|| Uart {
            path: entry.path.clone(),
            kind: known.map_or_else(
                || words.first().cloned().unwrap_or_default(),
                |(_, name)| (*name).to_owned(),
            ),
            registers: ranges(entry),
            intid: intid_of(tree, entry, 0),
            enabled: entry.is_enabled(),
            console: is_console,
            driver: uart_kind(entry).is_some(),
        })
    };
    tree.entries.iter().filter_map(uart).collect()
}

/// Whether a node is an IOMMU.
pub(super) fn is_iommu(entry: &Entry) -> bool {
    entry.cell("#iommu-cells").is_some()
}

/// IOMMUs with how many devices are behind each.
pub(super) fn iommus(tree: &Tree) -> Vec<Iommu> {
    let nodes = tree.entries.iter().filter(|entry| is_iommu(entry));
    nodes
        .map(|entry| {
            let phandle = entry.cell("phandle");
            let led = |other: &&Entry| {
                // Of a map for a PCI bus the IOMMU is the second word.
                let direct = other
                    .cells("iommus")
                    .and_then(|cells| cells.first().copied());
                let mapped = other
                    .cells("iommu-map")
                    .and_then(|cells| cells.get(1).copied());
                phandle.is_some() && (direct == phandle || mapped == phandle)
            };
            Iommu {
                path: entry.path.clone(),
                compatible: entry.compatible(),
                registers: ranges(entry),
                enabled: entry.is_enabled(),
                masters: tree.entries.iter().filter(led).count(),
            }
        })
        .collect()
}

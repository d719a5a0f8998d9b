//! Devices that a description declares free of DMA: what in a device tree speaks against it, and what of it a guest does not have.

use super::facts::intid;
use super::tree::{Entry, Tree};

/// Properties of what moves memory, or has it moved.
const OF_MASTERS: [&str; 14] = [
    "dmas",
    "#dma-cells",
    "dma-channels",
    "dma-requests",
    "dma-coherent",
    "dma-noncoherent",
    "dma-ranges",
    "iommus",
    "iommu-map",
    "memory-region",
    "msi-parent",
    "msi-map",
    "interrupt-map",
    "#mbox-cells",
];

/// Names of nodes, and parts of words of `compatible`, of what moves memory by itself, or stops CPUs.
const MASTERS: [&str; 105] = [
    "adsp",
    "ahci",
    "bpu",
    "caam",
    "camera",
    "cdsp",
    "coresight",
    "crypto",
    "csi",
    "dcss",
    "decon",
    "display",
    "dma",
    "dma-controller",
    "dpu",
    "drm",
    "dsi",
    "dsp",
    "dss",
    "dwc2",
    "dwc3",
    "dwmac",
    "ehci",
    "emac",
    "emmc",
    "enetc",
    "ethernet",
    "etr",
    "fec",
    "fimd",
    "fw-cfg",
    "g2d",
    "gdsp",
    "gem",
    "genet",
    "gmac",
    "gpu",
    "hantro",
    "hdmi",
    "hevc",
    "hsi2s",
    "hvs",
    "iep",
    "ipu",
    "isp",
    "jpeg",
    "jpu",
    "lcdif",
    "mailbox",
    "mali",
    "mbox",
    "mdp",
    "mfc",
    "mixer",
    "mmc",
    "mshc",
    "nand",
    "nand-controller",
    "npu",
    "nvdec",
    "nvdla",
    "nvenc",
    "ohci",
    "panfrost",
    "pci",
    "pcie",
    "pdma",
    "pixelvalve",
    "pxp",
    "qat",
    "remoteproc",
    "rga",
    "rkvdec",
    "rproc",
    "sata",
    "scaler",
    "scsi",
    "sdhc",
    "sdhci",
    "sdio",
    "sdma",
    "sdmmc",
    "slpi",
    "smmu",
    "tcon",
    "tmc",
    "tsn",
    "txp",
    "ufs",
    "ufshc",
    "usb",
    "usdhc",
    "v3d",
    "vc4",
    "vdec",
    "venc",
    "vepu",
    "vic",
    "video-codec",
    "virtio",
    "vop",
    "vopb",
    "vopl",
    "vpu",
    "xhci",
];

/// Properties by which a node serves others, who would stop if a guest changed it.
const OF_PROVIDERS: [&str; 6] = [
    "#phy-cells",
    "#clock-cells",
    "#reset-cells",
    "#power-domain-cells",
    "#interconnect-cells",
    "#iommu-cells",
];

/// The same by its name or a word of `compatible`.
const PROVIDERS: [&str; 16] = [
    "sram",
    "sci",
    "sysctr",
    "flowctrl",
    "efuse",
    "hwspinlock",
    "msi-controller",
    "flash",
    "syscon",
    "memory-controller",
    "pinctrl",
    "pinmux",
    "clock-controller",
    "reset-controller",
    "power-controller",
    "interrupt-controller",
];

/// Properties that name other nodes, with the property of these that says how many cells follow; none: no cells do.
const REFERENCES: [(&str, &str); 20] = [
    ("clocks", "#clock-cells"),
    ("assigned-clocks", "#clock-cells"),
    ("assigned-clock-parents", "#clock-cells"),
    ("resets", "#reset-cells"),
    ("power-domains", "#power-domain-cells"),
    ("phys", "#phy-cells"),
    ("interconnects", "#interconnect-cells"),
    ("mboxes", "#mbox-cells"),
    ("pwms", "#pwm-cells"),
    ("io-channels", "#io-channel-cells"),
    ("thermal-sensors", "#thermal-sensor-cells"),
    ("hwlocks", "#hwlock-cells"),
    ("gpios", "#gpio-cells"),
    ("nvmem-cells", "#nvmem-cell-cells"),
    ("operating-points-v2", ""),
    ("required-opps", ""),
    ("phy-handle", ""),
    ("extcon", ""),
    ("syscon", ""),
    ("interrupt-parent", ""),
];

/// Properties that mean nothing without those.
const COMPANIONS: [&str; 11] = [
    "assigned-clock-rates",
    "assigned-clock-rates-u64",
    "reset-names",
    "power-domain-names",
    "phy-names",
    "interconnect-names",
    "mbox-names",
    "pwm-names",
    "io-channel-names",
    "nvmem-cell-names",
    "pinctrl-names",
];

/// A node that a device refers to and that its VM does not have.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Lack {
    /// Property that refers to it.
    pub property: String,
    /// Path of the node in the board's tree.
    pub path: String,
}

/// Name of a node without its address.
fn bare(entry: &Entry) -> String {
    let name = entry.path.rsplit('/').next().unwrap_or_default();
    name.split('@').next().unwrap_or_default().to_owned()
}

/// Which of these words is in the name of a node or in its `compatible`, alone or with others before and behind it.
fn says(entry: &Entry, known: &[&'static str]) -> Option<&'static str> {
    let words = [vec![bare(entry)], entry.compatible()].concat();
    let apart = words.join("-").replace([',', '_', '.'], "-");
    let apart = format!("-{apart}-");
    let is_there = |word: &&&str| apart.contains(&format!("-{word}-"));
    known.iter().find(is_there).copied()
}

/// What in the tree says that a device, or a part of it, moves memory by itself or has it moved.
pub(super) fn contradiction(tree: &Tree, entry: &Entry) -> Option<String> {
    let below = format!("{}/", entry.path);
    let part = |other: &&Entry| {
        other.path == entry.path
            || (other.path.starts_with(&below) && other.mapped && !other.registers.is_empty())
    };
    tree.entries.iter().filter(part).find_map(|one| {
        let whose = match one.path == entry.path {
            true => "its node".to_owned(),
            false => one.path.clone(),
        };
        if let Some(name) = OF_MASTERS.iter().find(|name| one.bytes(name).is_some()) {
            return Some(format!("{whose} has `{name}`"));
        }
        if one.text("device_type").as_deref() == Some("pci") {
            return Some(format!("{whose} is a bus of PCI"));
        }
        // A PHY is beside the controller that moves memory.
        let name = bare(one);
        if name == "phy" || name.ends_with("-phy") {
            return None;
        }
        let word = says(one, &MASTERS)?;
        Some(format!(
            "{whose} says `{word}`, which reaches memory by itself"
        ))
    })
}

/// Why a node is no device of one VM: others stand on it.
pub(super) fn serves_others(tree: &Tree, entry: &Entry) -> Option<String> {
    if let Some(name) = OF_PROVIDERS.iter().find(|name| entry.bytes(name).is_some()) {
        return Some(format!("others stand on it (`{name}`)"));
    }
    // Controllers of GPIOs hand on the interrupts of their pins; whatever else does so serves others.
    let controller =
        entry.bytes("interrupt-controller").is_some() && entry.bytes("gpio-controller").is_none();
    let memory = entry.text("device_type").is_some()
        || ["/reserved-memory/", "/cpus/"]
            .iter()
            .any(|above| entry.path.starts_with(above));
    if controller || memory {
        return Some("the whole board stands on it".to_owned());
    }
    if let Some(word) = says(entry, &PROVIDERS) {
        return Some(format!("others stand on it (`{word}`)"));
    }
    // Pins of others may be set in a controller of GPIOs.
    let below = format!("{}/", entry.path);
    let pins: Vec<u32> = tree
        .entries
        .iter()
        .filter(|other| other.path.starts_with(&below))
        .filter_map(|other| other.cell("phandle"))
        .collect();
    let user = tree.entries.iter().find(|other| {
        let cells = other.cells("pinctrl-0").unwrap_or_default();
        other.is_enabled()
            && other.path != entry.path
            && !other.path.starts_with(&below)
            && cells.iter().any(|cell| pins.contains(cell))
    })?;
    Some(format!("it has the pins of {}", user.path))
}

/// Why its interrupts are not one VM's alone: the device has one twice, or another device has it, too.
pub(super) fn shares_interrupt(tree: &Tree, entry: &Entry, intids: &[u32]) -> Option<String> {
    for (n, number) in intids.iter().enumerate() {
        if intids[..n].contains(number) {
            return Some(format!("it has INTID {number} twice"));
        }
    }
    tree.entries.iter().find_map(|other| {
        // What follows is slow on large trees, and few have the number at all.
        let cells = ["interrupts", "interrupts-extended"].map(|name| other.cells(name));
        let cells = cells.into_iter().flatten().flatten().collect::<Vec<u32>>();
        let likely = intids.iter().any(|number| cells.contains(&(number - 32)));
        if other.path == entry.path || !other.is_enabled() || !likely {
            return None;
        }
        let theirs = tree.interrupts(other).unwrap_or_default();
        let mut theirs = theirs.iter().filter_map(|(_, irq)| intid(irq));
        let shared = theirs.find(|number| intids.contains(number))?;
        Some(format!(
            "{} has its interrupt, too (INTID {shared})",
            other.path
        ))
    })
}

/// Whether a VM that has it might reset the board.
pub(super) fn is_watchdog(entry: &Entry) -> bool {
    let known = ["watchdog", "wdt", "wdog", "swdt", "rwdt", "gwdt"];
    says(entry, &known).is_some()
}

/// How many cells follow each node that a property names; the name of the property of that node which says it, if there is one.
fn cells_of(name: &str) -> Option<&'static str> {
    let known = REFERENCES.iter().find(|(known, _)| *known == name);
    known.map(|(_, cells)| *cells).or_else(|| {
        if name.ends_with("-gpios") || name.ends_with("-gpio") {
            Some("#gpio-cells")
        } else if name.ends_with("-supply")
            || name
                .strip_prefix("pinctrl-")
                .is_some_and(|number| number.parse::<u32>().is_ok())
        {
            Some("")
        } else {
            None
        }
    })
}

/// A node that is named, and what is asked of it.
type Named<'t, 'a> = (&'t Entry<'a>, Vec<u32>);

/// Reads a list of nodes, each with cells behind it. It ends where that cannot be followed.
fn named<'t, 'a>(tree: &'t Tree<'a>, list: &[u32], cells: &str) -> Vec<Named<'t, 'a>> {
    let mut rest = list;
    let mut all = Vec::new();
    while let Some((phandle, behind)) = rest.split_first() {
        // A hole in the list.
        if *phandle == 0 {
            rest = behind;
            continue;
        }
        let Some(node) = tree.by_phandle(*phandle) else {
            break;
        };
        let count = node.cell(cells).unwrap_or(0) as usize;
        let Some((specifier, behind)) = behind.split_at_checked(count) else {
            break;
        };
        all.push((node, specifier.to_vec()));
        rest = behind;
    }
    all
}

/// Whether a property of a vendor names a node: its first cell is one that serves others.
fn vendor(tree: &Tree, name: &str, cells: &[u32]) -> Option<String> {
    let first = cells.first().filter(|_| name.contains(','))?;
    let node = tree.by_phandle(*first)?;
    let serves = node.is("syscon") || OF_PROVIDERS.iter().any(|one| node.bytes(one).is_some());
    serves.then(|| node.path.clone())
}

/// What the node of a device refers to and its VM does not have, and the properties that it is without because of that.
pub(super) fn lacks(tree: &Tree, entry: &Entry) -> (Vec<Lack>, Vec<String>) {
    let mut lacks: Vec<Lack> = Vec::new();
    let mut without: Vec<String> = COMPANIONS.map(str::to_owned).to_vec();
    for property in dtoolkit::Node::properties(&entry.node) {
        let property: dtoolkit::fdt::FdtProperty = property;
        let name = dtoolkit::Property::name(&property);
        let list = entry.cells(name).unwrap_or_default();
        let paths: Vec<String> = if name == "gpio-ranges" {
            // A controller of pins, and three numbers.
            let nodes = list
                .chunks(4)
                .filter_map(|one| tree.by_phandle(*one.first()?));
            nodes.map(|node| node.path.clone()).collect()
        } else if let Some(cells) = cells_of(name) {
            let nodes = named(tree, &list, cells).into_iter();
            let others = nodes.filter(|(node, _)| !node.is("fixed-clock"));
            others.map(|(node, _)| node.path.clone()).collect()
        } else if let Some(path) = vendor(tree, name, &list) {
            vec![path]
        } else {
            continue;
        };
        without.push(name.to_owned());
        if name == "interrupt-parent" {
            continue;
        }
        for path in paths {
            let property = name.to_owned();
            let lack = Lack { property, path };
            if !lacks.contains(&lack) {
                lacks.push(lack);
            }
        }
    }
    (lacks, without)
}

/// Frequencies of its clocks: those of fixed ones, or what the tree asks to be set. None if one is not told.
pub(super) fn clocks(tree: &Tree, entry: &Entry) -> Option<Vec<u32>> {
    let all = named(
        tree,
        &entry.cells("clocks").unwrap_or_default(),
        "#clock-cells",
    );
    let assigned = entry.cells("assigned-clocks").unwrap_or_default();
    let assigned = named(tree, &assigned, "#clock-cells");
    let rates = entry.cells("assigned-clock-rates").unwrap_or_default();
    // Of a UART it is the frequency of its clock; of an I2C controller, for instance, that of its bus.
    let own = ["serial", "uart"].contains(&bare(entry).as_str());
    let own = entry.cell("clock-frequency").filter(|_| own);
    all.iter()
        .map(|(node, specifier)| {
            let fixed = node.cell("clock-frequency");
            let fixed = fixed.filter(|_| node.is("fixed-clock"));
            let place = assigned
                .iter()
                .position(|(other, which)| other.path == node.path && which == specifier);
            let asked = place.and_then(|place| rates.get(place).copied());
            fixed.or(asked.filter(|rate| *rate != 0)).or(own)
        })
        .collect()
}

//! Passing a device of the board through to a VM: whether that is possible, and what it takes.

use bulkhead_abi::plan::PAGE;

use super::declared::{self, Lack};
use super::facts::{intid, is_gicv2};
use super::quiesce;
use super::tree::{Entry, Tree};

/// Properties that name other nodes, which the guest would not have.
const REFERENCES: [&str; 9] = [
    "dmas",
    "iommus",
    "power-domains",
    "resets",
    "phys",
    "pinctrl-0",
    "interrupt-map",
    "msi-parent",
    "memory-region",
];

/// An interrupt of a passed-through device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassthroughIrq {
    /// INTID on the board.
    pub intid: u32,
    /// Whether it is edge-triggered.
    pub edge: bool,
    /// Flags of the device tree.
    pub flags: u32,
}

/// A device that can be passed through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassthroughDevice {
    /// Path in the board's tree.
    pub path: String,
    /// Name of the node.
    pub name: String,
    /// Registers: physical address and size.
    pub registers: Vec<(u64, u64)>,
    /// Interrupts in the order of the node.
    pub irqs: Vec<PassthroughIrq>,
    /// Frequencies of its clocks, all of them fixed.
    pub clocks: Vec<u32>,
    /// Writes that quiet it: physical address of the register, its bytes, the value.
    pub quiets: Vec<(u64, u16, u32)>,
    /// Whether a VM that has it can reset the board.
    pub resets_board: bool,
    /// Whether that it does no DMA is only declared.
    pub declared: bool,
    /// Nodes that it refers to and the VM does not have; only of one that is declared.
    pub lacks: Vec<Lack>,
    /// Whether the guest finds none of its clocks, because the tree does not tell how fast all of them are.
    pub clockless: bool,
    /// All other properties, for the guest's tree.
    pub properties: Vec<(String, Vec<u8>)>,
}

impl PassthroughDevice {
    /// Whole pages that stage 2 must map: address and size, ascending and merged.
    pub fn pages(&self) -> Vec<(u64, u64)> {
        let mut pages: Vec<(u64, u64)> = self
            .registers
            .iter()
            .map(|&(base, size)| {
                let start = base & !(PAGE - 1);
                (start, (base + size).next_multiple_of(PAGE) - start)
            })
            .collect();
        pages.sort_unstable();
        pages.dedup_by(|next, last| {
            let touches = next.0 <= last.0 + last.1;
            if touches {
                last.1 = last.1.max(next.0 + next.1 - last.0);
            }
            touches
        });
        pages
    }
}

/// Reason why a device cannot be passed through, with a remedy if there is one.
#[derive(Debug)]
pub struct Refusal {
    /// The reason.
    pub why: String,
    /// Remedy.
    pub help: String,
    /// Whether the tree speaks against a declaration that it does no DMA.
    pub moves_memory: bool,
}

impl Refusal {
    fn new(why: impl Into<String>, help: &str) -> Self {
        Self {
            why: why.into(),
            help: help.to_owned(),
            moves_memory: false,
        }
    }
}

/// Looks at the device at `path`; `console` is the path of the board's own console. With `declared`, the description says that
/// it does no DMA.
///
/// # Errors
/// Why a guest cannot have it.
pub fn pass(
    tree: &Tree,
    path: &str,
    console: &str,
    declared: bool,
) -> Result<PassthroughDevice, Refusal> {
    let Some(entry) = tree.entries.iter().find(|entry| entry.path == path) else {
        let paths = tree.entries.iter().map(|entry| entry.path.as_str());
        let help = crate::describe::nearest(path, paths).map_or_else(
            || "paths start with / and go from node to node".to_owned(),
            |known| format!("did you mean `{known}`?"),
        );
        return Err(Refusal::new(
            "the board's device tree has no such node",
            &help,
        ));
    };
    pass_entry(tree, entry, console, declared)
}

/// Does the same as [`pass`] for a node that was found.
///
/// # Errors
/// The same.
pub fn pass_entry(
    tree: &Tree,
    entry: &Entry,
    console: &str,
    declared: bool,
) -> Result<PassthroughDevice, Refusal> {
    let refuse = |why: String, help: &str| Err(Refusal::new(why, help));
    if entry.path == console {
        return refuse(
            "it carries the consoles of all VMs".to_owned(),
            "every VM has an emulated PL011 of its own",
        );
    }
    if !entry.is_enabled() {
        return refuse("the board's firmware has disabled it".to_owned(), "");
    }
    if !entry.mapped || entry.registers.is_empty() {
        return refuse(
            "it has no registers in the physical address space".to_owned(),
            "",
        );
    }
    let words = entry.compatible();
    if declared {
        if let Some(why) = declared::contradiction(tree, entry) {
            return Err(Refusal {
                moves_memory: true,
                ..Refusal::new(why, "")
            });
        }
        if let Some(why) = declared::serves_others(tree, entry) {
            return refuse(why, "what others need stays as firmware left it");
        }
    } else if !quiesce::is_known(&words) {
        return refuse(
            format!("it is not known to be free of DMA ({})", words.join(", ")),
            if declared::contradiction(tree, entry)
                .or_else(|| declared::serves_others(tree, entry))
                .is_some()
            {
                "DMA reaches the memory of every VM; this version sets up no SMMU and passes through only simple devices"
            } else {
                "if you know that it moves no memory by itself, say { path = \"..\", dma = \"none\" }: a deviation, shown in the plan"
            },
        );
    }
    let reference = REFERENCES.iter().find(|name| entry.bytes(name).is_some());
    if let Some(name) = reference.filter(|_| !declared) {
        return refuse(
            format!("it needs other nodes (`{name}`), which the guest has not"),
            "",
        );
    }
    neighbours(tree, entry)?;
    let irqs = interrupts(tree, entry)?;
    let intids: Vec<u32> = irqs.iter().map(|irq| irq.intid).collect();
    if let Some(why) = declared
        .then(|| declared::shares_interrupt(tree, entry, &intids))
        .flatten()
    {
        return refuse(why, "");
    }
    let (clocks, lacks, without) = if declared {
        let (lacks, without) = declared::lacks(tree, entry);
        (declared::clocks(tree, entry), lacks, without)
    } else {
        (Some(clocks(tree, entry)?), Vec::new(), Vec::new())
    };
    let clockless = clocks.is_none();
    let own = [
        "reg",
        "interrupts",
        "interrupts-extended",
        "interrupt-parent",
        "clocks",
        "phandle",
        "linux,phandle",
    ];
    let properties = dtoolkit::Node::properties(&entry.node)
        .map(|property| {
            let property: dtoolkit::fdt::FdtProperty = property;
            (
                dtoolkit::Property::name(&property).to_owned(),
                dtoolkit::Property::value(&property).to_vec(),
            )
        })
        .filter(|(name, _)| {
            let nameless = clockless && name == "clock-names";
            let left_out = own.contains(&name.as_str()) || without.contains(name);
            !(left_out || nameless)
        })
        .collect();
    Ok(PassthroughDevice {
        path: entry.path.clone(),
        name: dtoolkit::Node::name(&entry.node).to_owned(),
        registers: entry.registers.clone(),
        irqs,
        clocks: clocks.unwrap_or_default(),
        quiets: quiesce::writes(&words, &entry.registers),
        resets_board: quiesce::resets_the_board(&words)
            || (declared && declared::is_watchdog(entry)),
        declared,
        lacks,
        clockless,
        properties,
    })
}

/// Checks that no other node has registers in the pages of the device, because stage 2 maps whole pages.
fn neighbours(tree: &Tree, entry: &Entry) -> Result<(), Refusal> {
    let page = |address: u64| address / PAGE;
    // Some buses have registers that span all that is on them (i.MX's AIPS).
    let is_above = |other: &Entry| {
        other.is("simple-bus") && entry.path.starts_with(&format!("{}/", other.path))
    };
    for &(base, size) in &entry.registers {
        let Some(last) = base.checked_add(size).and_then(|end| end.checked_sub(1)) else {
            return Err(Refusal::new("its registers have no end", ""));
        };
        let other = tree.entries.iter().find(|other| {
            other.path != entry.path
                && !is_above(other)
                && other.registers.iter().any(|&(start, len)| {
                    len > 0
                        && page(start) <= page(last)
                        && page(base) <= page(start.saturating_add(len - 1))
                })
        });
        if let Some(other) = other {
            return Err(Refusal::new(
                format!("it shares a page with {}", other.path),
                "the VM would get both: memory is protected in pages of 4 KiB",
            ));
        }
    }
    Ok(())
}

/// Interrupts of a node, which must be SPIs of the GIC.
fn interrupts(tree: &Tree, entry: &Entry) -> Result<Vec<PassthroughIrq>, Refusal> {
    if entry.bytes("interrupts").is_none() && entry.bytes("interrupts-extended").is_none() {
        return Ok(Vec::new());
    }
    let gic = |parent: &Entry| parent.is("arm,gic-v3") || is_gicv2(parent);
    let all = tree.interrupts(entry).unwrap_or_default();
    if all.is_empty() || !all.iter().all(|(parent, _)| gic(parent)) {
        return Err(Refusal::new("its interrupts do not go to the GIC", ""));
    }
    all.iter()
        .map(|(_, irq)| {
            let number = intid(irq).filter(|number| (32..1020).contains(number));
            let flags = irq.get(2).copied().unwrap_or(0);
            number
                .map(|intid| PassthroughIrq {
                    intid,
                    edge: flags & 3 != 0,
                    flags,
                })
                .ok_or_else(|| Refusal::new("it has an interrupt that is no SPI", ""))
        })
        .collect()
}

/// Frequencies of its clocks, which must be fixed: another VM could stop any other clock.
fn clocks(tree: &Tree, entry: &Entry) -> Result<Vec<u32>, Refusal> {
    let Some(cells) = entry.cells("clocks") else {
        return Ok(Vec::new());
    };
    cells
        .iter()
        .map(|phandle| {
            tree.by_phandle(*phandle)
                .filter(|clock| clock.is("fixed-clock"))
                .and_then(|clock| clock.cell("clock-frequency"))
                .ok_or_else(|| {
                    Refusal::new(
                        "it needs a clock that others may stop or change",
                        "only devices with fixed clocks can be passed through",
                    )
                })
        })
        .collect()
}

//! A device tree as a list of its nodes, each with the address translation and the interrupt parent
//! that it inherits.

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node, Property};

/// A range of addresses of a bus and where its parent sees it.
#[derive(Clone, Copy, Debug)]
struct BusRange {
    child: u64,
    parent: u64,
    size: u64,
}

/// Translation of addresses below a bus to physical addresses.
#[derive(Clone, Debug)]
enum Translation {
    /// They are physical addresses.
    Identity,
    /// Through the `ranges` of one bus after the other, the nearest bus first.
    Ranges(Vec<Vec<BusRange>>),
    /// Not at all: the bus is not mapped to memory.
    None,
}

/// A node.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// Path from the root.
    pub path: String,
    /// The node itself.
    pub node: FdtNode<'a>,
    /// Registers: physical address and size; none if there are none or they have no physical address.
    pub registers: Vec<(u64, u64)>,
    /// Whether `reg` could be turned into physical addresses.
    pub mapped: bool,
    /// phandle of its interrupt parent.
    pub interrupt_parent: Option<u32>,
    /// `compatible` of the bus that it is on.
    pub bus: Vec<String>,
}

impl<'a> Entry<'a> {
    /// Words of `compatible`.
    pub fn compatible(&self) -> Vec<String> {
        self.node
            .compatible()
            .into_iter()
            .flatten()
            .map(str::to_owned)
            .collect()
    }

    /// Whether `word` is among those of `compatible`.
    pub fn is(&self, word: &str) -> bool {
        self.node
            .compatible()
            .is_some_and(|mut words| words.any(|found| found == word))
    }

    /// A property as bytes.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        self.node
            .property(name)
            .map(|property| property.value().to_vec())
    }

    /// A property as 32-bit cells; none if it is absent or not made of whole cells.
    pub fn cells(&self, name: &str) -> Option<Vec<u32>> {
        cells(&self.bytes(name)?)
    }

    /// A property that is one cell.
    pub fn cell(&self, name: &str) -> Option<u32> {
        match self.cells(name)?.as_slice() {
            [cell] => Some(*cell),
            _ => None,
        }
    }

    /// A property that is a string.
    pub fn text(&self, name: &str) -> Option<String> {
        let bytes = self.bytes(name)?;
        let text = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
        String::from_utf8(text.to_vec()).ok()
    }

    /// Whether firmware leaves the node for use (`status`).
    pub fn is_enabled(&self) -> bool {
        self.text("status")
            .is_none_or(|status| status == "okay" || status == "ok")
    }
}

/// Bytes as big-endian cells.
fn cells(bytes: &[u8]) -> Option<Vec<u32>> {
    let (cells, rest) = bytes.as_chunks::<4>();
    rest.is_empty()
        .then(|| cells.iter().map(|cell| u32::from_be_bytes(*cell)).collect())
}

/// A device tree.
#[derive(Clone, Debug)]
pub struct Tree<'a> {
    /// All nodes, each before its children.
    pub entries: Vec<Entry<'a>>,
}

impl<'a> Tree<'a> {
    /// Reads all nodes of a tree.
    pub fn new(fdt: Fdt<'a>) -> Self {
        let mut entries = Vec::new();
        let root = fdt.root();
        let above = Above {
            path: String::new(),
            translation: Translation::Identity,
            interrupt_parent: None,
            bus: Vec::new(),
        };
        visit(root, &above, &mut entries);
        Self { entries }
    }

    /// The node at `path`, which may be an alias, and may have options behind a colon.
    pub fn find(&self, path: &str) -> Option<&Entry<'a>> {
        let path = path.split(':').next().unwrap_or(path);
        if let Some(entry) = self.entries.iter().find(|entry| entry.path == path) {
            return Some(entry);
        }
        let aliases = self.entries.iter().find(|entry| entry.path == "/aliases")?;
        let target = aliases.text(path)?;
        self.entries.iter().find(|entry| entry.path == target)
    }

    /// Interrupts of a node, each as its controller and its cells: those of `interrupts-extended`, else those of
    /// `interrupts`. None if it has none, or they cannot be told apart.
    pub fn interrupts(&self, entry: &Entry) -> Option<Vec<(&Entry<'a>, Vec<u32>)>> {
        let extended = entry.cells("interrupts-extended");
        let each = extended.is_some();
        let cells = extended.or_else(|| entry.cells("interrupts"))?;
        let mut rest = cells.as_slice();
        let mut all = Vec::new();
        while !rest.is_empty() {
            let phandle = if each {
                let (phandle, behind) = rest.split_first()?;
                rest = behind;
                *phandle
            } else {
                entry.interrupt_parent?
            };
            let controller = self.by_phandle(phandle)?;
            let count = controller.cell("#interrupt-cells").unwrap_or(3) as usize;
            let (one, behind) = rest.split_at_checked(count).filter(|_| count != 0)?;
            all.push((controller, one.to_vec()));
            rest = behind;
        }
        Some(all)
    }

    /// The node with a phandle.
    pub fn by_phandle(&self, phandle: u32) -> Option<&Entry<'a>> {
        self.entries
            .iter()
            .find(|entry| entry.cell("phandle") == Some(phandle))
    }
}

/// Properties that a node inherits from its parent.
struct Above {
    path: String,
    translation: Translation,
    interrupt_parent: Option<u32>,
    bus: Vec<String>,
}

/// Adds `node` and all below it.
fn visit<'a>(node: FdtNode<'a>, above: &Above, entries: &mut Vec<Entry<'a>>) {
    let name: &str = node.name();
    let path = match (above.path.as_str(), name) {
        ("", "") => "/".to_owned(),
        ("/", name) => format!("/{name}"),
        (parent, name) => format!("{parent}/{name}"),
    };
    let mut entry = Entry {
        path,
        node,
        registers: Vec::new(),
        mapped: false,
        interrupt_parent: above.interrupt_parent,
        bus: above.bus.clone(),
    };
    entry.interrupt_parent = entry.cell("interrupt-parent").or(above.interrupt_parent);
    if let Some(registers) = registers(node, &above.translation) {
        entry.registers = registers;
        entry.mapped = true;
    }
    let below = Above {
        path: entry.path.clone(),
        translation: if entry.path == "/" {
            Translation::Identity
        } else {
            below(node, &above.translation)
        },
        interrupt_parent: entry.interrupt_parent,
        bus: if entry.path == "/" {
            Vec::new()
        } else {
            entry.compatible()
        },
    };
    entries.push(entry);
    for child in node.children() {
        visit(child, &below, entries);
    }
}

/// `reg` as physical addresses.
fn registers(node: FdtNode, translation: &Translation) -> Option<Vec<(u64, u64)>> {
    let registers = node.reg().ok()??;
    registers
        .map(|reg| {
            let (address, size) = (reg.address::<u64>().ok()?, reg.size::<u64>().ok()?);
            Some((translate(address, size, translation)?, size))
        })
        .collect()
}

/// The physical address of `size` bytes at `address` of a bus.
fn translate(address: u64, size: u64, translation: &Translation) -> Option<u64> {
    match translation {
        Translation::Identity => Some(address),
        Translation::None => None,
        Translation::Ranges(buses) => buses.iter().try_fold(address, |address, ranges| {
            if ranges.is_empty() {
                return Some(address);
            }
            let offset = |range: &BusRange| {
                let offset = address.checked_sub(range.child)?;
                let end = offset.checked_add(size)?;
                (end <= range.size).then_some(offset)
            };
            // The first that has all of it, as EL2 takes it (`bulkhead_core::boot_tree`).
            let mut found = ranges.iter().map(|range| (range, offset(range)));
            let (range, offset) = found.find_map(|(range, at)| Some((range, at?)))?;
            range.parent.checked_add(offset)
        }),
    }
}

/// Translation of addresses below `node`. An empty `ranges` means that they are not changed.
fn below(node: FdtNode, above: &Translation) -> Translation {
    let Ok(Some(ranges)) = node.ranges() else {
        return Translation::None;
    };
    let known: Option<Vec<_>> = ranges
        .map(|range| {
            Some(BusRange {
                child: range.child_bus_address::<u64>().ok()?,
                parent: range.parent_bus_address::<u64>().ok()?,
                size: range.length::<u64>().ok()?,
            })
        })
        .collect();
    match (known, above) {
        (None, _) | (_, Translation::None) => Translation::None,
        (Some(known), Translation::Identity) => Translation::Ranges(vec![known]),
        (Some(known), Translation::Ranges(above)) => {
            Translation::Ranges([vec![known], above.clone()].concat())
        }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_abi::plan::{PAGE, UartKind};
    use bulkhead_core::boot_tree::BootTree;
    use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
    use proptest::prelude::*;

    use super::*;

    /// A bus: cells of an address and of a size below it, and ranges.
    type Bus = (u32, u32, Option<Vec<u32>>);

    fn with(name: &str, properties: &[(&str, &[u8])]) -> DeviceTreeNode {
        let mut node = DeviceTreeNode::new(name).expect("name");
        for (name, value) in properties {
            let property = DeviceTreeProperty::new(*name, value.to_vec());
            node.add_property(property.expect("property"));
        }
        node
    }

    fn bytes(cells: &[u32]) -> Vec<u8> {
        cells.iter().flat_map(|cell| cell.to_be_bytes()).collect()
    }

    /// A tree whose UART is behind these buses.
    fn tree(buses: &[Bus], reg: &[u32]) -> Vec<u8> {
        let compatible: (&str, &[u8]) = ("compatible", b"arm,pl011\0");
        let mut below = with("serial@0", &[compatible, ("reg", &bytes(reg))]);
        for (n, (address, size, ranges)) in buses.iter().enumerate().rev() {
            let above = n.checked_sub(1).map_or(2, |above| buses[above].0);
            let cells = (address + above + size) as usize;
            let (address, size) = (bytes(&[*address]), bytes(&[*size]));
            let properties: [(&str, &[u8]); 2] =
                [("#address-cells", &address), ("#size-cells", &size)];
            let mut bus = with(&format!("bus{n}"), &properties);
            if let Some(ranges) = ranges {
                // Whole ones: of others the tool wants nothing to do with any, EL2 with the last.
                let whole = ranges.len() - ranges.len() % cells.max(1);
                let ranges = DeviceTreeProperty::new("ranges", bytes(&ranges[..whole]));
                bus.add_property(ranges.expect("property"));
            }
            bus.add_child(below);
            below = bus;
        }
        let cells: [(&str, &[u8]); 2] = [
            ("#address-cells", &[0, 0, 0, 2]),
            ("#size-cells", &[0, 0, 0, 2]),
        ];
        let mut root = with("", &cells);
        root.add_child(with("chosen", &[("stdout-path", b"/serial@0\0")]));
        root.add_child(below);
        let mut tree = DeviceTree::new();
        tree.root = root;
        tree.to_dtb()
    }

    /// Cells that lie near each other, and at the ends of what there is.
    fn cell() -> impl Strategy<Value = u32> {
        prop_oneof![8 => 0_u32..4, 1 => Just(u32::MAX), 1 => Just(0xffff_f000), 1 => any::<u32>()]
    }

    fn bus() -> impl Strategy<Value = Bus> {
        let ranges = prop_oneof![
            1 => Just(None),
            2 => Just(Some(Vec::new())),
            6 => prop::collection::vec(cell(), 1..20).prop_map(Some),
        ];
        let address = prop_oneof![6 => 1_u32..3, 1 => Just(3)];
        let size = prop_oneof![6 => 1_u32..3, 1 => Just(0), 1 => Just(3)];
        (address, size, ranges)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// Two readers that share no code find a UART at the same place, or both nowhere.
        #[test]
        fn el2_and_the_tool_translate_addresses_alike(
            buses in prop::collection::vec(bus(), 0..5),
            reg in prop::collection::vec(cell(), 4),
        ) {
            let (address, size) = buses.last().map_or((2, 2), |bus| (bus.0, bus.1));
            let reg = &reg[..((address + size) as usize).min(4)];
            let tree = tree(&buses, reg);
            let here = super::Tree::new(Fdt::new(&tree).expect("sound"));
            let uart = here.entries.iter().find(|entry| entry.is("arm,pl011")).expect("there");
            let here = uart.registers.first().and_then(|&(base, size)| {
                Some((base, size.checked_next_multiple_of(PAGE)?))
            });
            let there = BootTree::read(&tree, UartKind::Pl011.words()).expect("a tree");
            prop_assert_eq!(here.unwrap_or_default(), there.found(0, 0).uart);
        }
    }
}

//! A device tree as a list of its nodes, with what each inherits: address translation and interrupt
//! parent.

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node, Property};

/// A range of addresses of a bus and where its parent sees it.
#[derive(Clone, Copy, Debug)]
struct Window {
    child: u64,
    parent: u64,
    size: u64,
}

/// How addresses below a bus become physical addresses.
#[derive(Clone, Debug)]
enum Translation {
    /// They are physical addresses.
    Identity,
    /// Through one window after the other, the nearest bus first.
    Windows(Vec<Vec<Window>>),
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
    /// Whether these are not the addresses that stand in `reg`: a bus above moves them.
    pub moved: bool,
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

    /// The node with a phandle.
    pub fn by_phandle(&self, phandle: u32) -> Option<&Entry<'a>> {
        self.entries
            .iter()
            .find(|entry| entry.cell("phandle") == Some(phandle))
    }
}

/// What a node inherits.
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
        moved: false,
        interrupt_parent: above.interrupt_parent,
        bus: above.bus.clone(),
    };
    entry.interrupt_parent = entry.cell("interrupt-parent").or(above.interrupt_parent);
    if let Some(registers) = registers(node, &above.translation) {
        entry.moved = registers_of(node).is_some_and(|stated| stated != registers);
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

/// `reg` as it stands.
fn registers_of(node: FdtNode) -> Option<Vec<(u64, u64)>> {
    let registers = node.reg().ok()??;
    registers
        .map(|reg| Some((reg.address::<u64>().ok()?, reg.size::<u64>().ok()?)))
        .collect()
}

/// `reg` as physical addresses.
fn registers(node: FdtNode, translation: &Translation) -> Option<Vec<(u64, u64)>> {
    registers_of(node)?
        .into_iter()
        .map(|(address, size)| Some((translate(address, size, translation)?, size)))
        .collect()
}

/// The physical address of `size` bytes at `address` of a bus.
fn translate(address: u64, size: u64, translation: &Translation) -> Option<u64> {
    match translation {
        Translation::Identity => Some(address),
        Translation::None => None,
        Translation::Windows(buses) => buses.iter().try_fold(address, |address, windows| {
            if windows.is_empty() {
                return Some(address);
            }
            windows.iter().find_map(|window| {
                let offset = address.checked_sub(window.child)?;
                let end = offset.checked_add(size)?;
                if end <= window.size {
                    window.parent.checked_add(offset)
                } else {
                    None
                }
            })
        }),
    }
}

/// How addresses below `node` are translated. An empty `ranges` means: as they are.
fn below(node: FdtNode, above: &Translation) -> Translation {
    let Ok(Some(ranges)) = node.ranges() else {
        return Translation::None;
    };
    let windows: Option<Vec<_>> = ranges
        .map(|range| {
            Some(Window {
                child: range.child_bus_address::<u64>().ok()?,
                parent: range.parent_bus_address::<u64>().ok()?,
                size: range.length::<u64>().ok()?,
            })
        })
        .collect();
    match (windows, above) {
        (None, _) | (_, Translation::None) => Translation::None,
        (Some(windows), Translation::Identity) => Translation::Windows(vec![windows]),
        (Some(windows), Translation::Windows(above)) => {
            Translation::Windows([vec![windows], above.clone()].concat())
        }
    }
}

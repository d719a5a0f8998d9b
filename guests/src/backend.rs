//! What a machine that serves devices of others finds in its device tree: the node `bulkhead,backend`
//! (`docs/adr/0024-shadow-virtqueues.md`).

use crate::area::Area;
use crate::board::{self, Board, Range, number};
use arrayvec::ArrayVec;
use bulkhead_abi::plan::MAX_VIRTIO_DEVICES;
use dtoolkit::fdt::FdtNode;
use dtoolkit::{Node, Property};

/// Most windows, disks and ports of each kind.
pub const MOST: usize = MAX_VIRTIO_DEVICES;
/// Bytes of the page of news, and of the page that traps.
const PAGE: usize = 4096;

/// A disk.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// Its number.
    pub unit: u32,
    /// Its name in the description of the system.
    pub label: &'static str,
    /// The VM that has it.
    pub vm: &'static str,
    /// Its length in bytes.
    pub bytes: u64,
    /// What it holds when the board starts, with zeros behind it; none: zeros.
    pub image: Option<Area>,
    /// Where it is written; of a disk with an image, what an overlay takes. None: it must not be written.
    pub memory: Option<Area>,
}

/// A port of the switch.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// Its number.
    pub unit: u32,
    /// The VM at it.
    pub label: &'static str,
    /// Its network.
    pub network: &'static str,
    /// Its VLAN, 0 for none.
    pub vlan: u32,
    /// The address of the VM.
    pub mac: [u8; 6],
}

/// What this machine serves.
#[derive(Debug)]
pub struct Backend {
    /// The page of news.
    pub page: Area,
    /// Address of the page that traps: a word for devices 0 to 31, and one for the others.
    pub bell: usize,
    /// Its interrupt.
    pub intid: u32,
    /// Where counters are kept.
    pub counts: Area,
    /// The windows of the devices.
    pub windows: ArrayVec<Area, MOST>,
    /// The disks, in the order of their numbers, which are 0 and those that follow.
    pub disks: ArrayVec<Disk, MOST>,
    /// The ports, likewise.
    pub ports: ArrayVec<Port, MOST>,
}

/// Reads the node of this machine, or says what is wrong with it.
pub fn find(board: &Board) -> Result<Backend, &'static str> {
    let node = board.backend.ok_or("its tree has no bulkhead,backend")?;
    let ranges = board::ranges(node);
    let [page, bell, ..] = ranges[..] else {
        return Err("the node has not two pages");
    };
    if page.size < PAGE || bell.size < PAGE {
        return Err("a page is shorter than a page");
    }
    let kept = |child: &FdtNode<'static>| kind(*child) == "counts";
    let counts = node.children().find(kept).ok_or("it has no counts")?;
    let mut backend = Backend {
        page: area(board, page)?,
        counts: memory(board, counts)?,
        bell: bell.base,
        intid: board::interrupt(node).ok_or("the node has no interrupt")?,
        windows: ArrayVec::new(),
        disks: ArrayVec::new(),
        ports: ArrayVec::new(),
    };
    for child in node.children() {
        match kind(child) {
            "window" => add(&mut backend.windows, memory(board, child)?)?,
            "disk" => add(&mut backend.disks, disk(board, child)?)?,
            "port" => add(&mut backend.ports, port(child)?)?,
            _ => {}
        }
    }
    backend.disks.sort_unstable_by_key(|disk| disk.unit);
    backend.ports.sort_unstable_by_key(|port| port.unit);
    let disks = (0..).zip(&backend.disks).all(|(n, disk)| disk.unit == n);
    let ports = (0..).zip(&backend.ports).all(|(n, port)| port.unit == n);
    if !disks || !ports {
        return Err("the numbers of its disks or ports have gaps");
    }
    Ok(backend)
}

/// The memory that the node names, which the tree has nowhere else. It is mapped as RAM is.
pub(crate) fn ranges(node: FdtNode<'static>) -> impl Iterator<Item = Range> {
    let page = board::ranges(node).first().copied();
    let children = node.children().filter(|child| kind(*child) != "port");
    page.into_iter().chain(children.flat_map(board::ranges))
}

/// What a child is: `disk` for `disk@80000000`, `port` for `port-3`.
fn kind(node: FdtNode<'static>) -> &'static str {
    let name = node.name_without_address();
    name.split('-').next().unwrap_or(name)
}

fn add<T, const N: usize>(list: &mut ArrayVec<T, N>, item: T) -> Result<(), &'static str> {
    list.try_push(item).map_err(|_| "the node has too much")
}

fn memory(board: &Board, node: FdtNode<'static>) -> Result<Area, &'static str> {
    let range = board::ranges(node).first().copied();
    area(board, range.ok_or("a window or a disk has no memory")?)
}

/// Memory of the node, if it is none that the program uses otherwise.
fn area(board: &Board, range: Range) -> Result<Area, &'static str> {
    let used = board.memory.iter().chain([&board.image]);
    if used.chain(&board.tree).any(|used| used.overlaps(range)) {
        return Err("memory of a window or a disk is the program's");
    }
    if !crate::mmu::is_normal(range) {
        return Err("memory of a window or a disk lies beside devices");
    }
    Area::new(range).ok_or("memory of a window or a disk is not whole words")
}

fn disk(board: &Board, node: FdtNode<'static>) -> Result<Disk, &'static str> {
    let mut ranges = board::ranges(node).into_iter();
    // Its image comes first, if it has one.
    let mut next = |name: &str| {
        let range = node.property(name).and_then(|_| ranges.next());
        range.map(|range| area(board, range)).transpose()
    };
    let (image, memory) = (next("image")?, next("memory")?);
    if image.is_none() && memory.is_none() {
        return Err("a disk has no memory");
    }
    Ok(Disk {
        unit: number(node, "unit").ok_or("a disk has no unit")?,
        label: board::text(node, "label").unwrap_or_default(),
        vm: board::text(node, "vm").unwrap_or_default(),
        bytes: wide(node, "bytes").ok_or("a disk has no length")?,
        image,
        memory,
    })
}

fn port(node: FdtNode<'static>) -> Result<Port, &'static str> {
    let mut properties = node.properties();
    let mac = properties.find(|property| property.name() == "mac-address");
    let mac = mac.and_then(|mac| mac.value().try_into().ok());
    Ok(Port {
        unit: number(node, "unit").ok_or("a port has no unit")?,
        label: board::text(node, "label").unwrap_or_default(),
        network: board::text(node, "network").unwrap_or_default(),
        vlan: number(node, "vlan").ok_or("a port has no vlan")?,
        mac: mac.ok_or("a port has no address")?,
    })
}

fn wide(node: FdtNode<'static>, name: &str) -> Option<u64> {
    let mut properties = node.properties();
    let property = properties.find(|property| property.name() == name)?;
    property.value_as::<u64>().ok()
}

//! What EL2 reads from the device tree that it is started with: one pass over the flattened tree
//! (Devicetree Specification v0.4, chapter 5), nothing allocated, nothing trusted.
//!
//! Written here and not taken from a library: start-up has a budget of instructions, and a walk that
//! collects everything in one pass costs a tenth of one look-up for each question
//! (`docs/adr/0006-libraries.md`).

use bulkhead_abi::plan::Memory;

use crate::plan::Found;

const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROP: u32 = 3;
const NOP: u32 = 4;
/// Deepest node that is looked at.
const DEPTH: usize = 8;
/// Most ranges of memory, reserved ranges and CPUs that are kept.
const KEPT: usize = 16;

/// Words of `compatible` that a GICv2 with virtualization has (Linux,
/// Documentation/devicetree/bindings/interrupt-controller/arm,gic.yaml).
const GICV2: [&[u8]; 3] = [b"arm,cortex-a15-gic", b"arm,gic-400", b"arm,cortex-a7-gic"];

/// A list of at most [`KEPT`] values.
#[derive(Clone, Copy, Debug)]
struct List<T> {
    items: [T; KEPT],
    len: usize,
}

impl<T: Copy> List<T> {
    const fn new(empty: T) -> Self {
        Self {
            items: [empty; KEPT],
            len: 0,
        }
    }

    /// Keeps `item`; false if there is no room for it.
    fn push(&mut self, item: T) -> bool {
        let Some(slot) = self.items.get_mut(self.len) else {
            return false;
        };
        *slot = item;
        self.len = self.len.saturating_add(1);
        true
    }

    fn as_slice(&self) -> &[T] {
        self.items.get(..self.len).unwrap_or(&[])
    }
}

/// The properties of one node that matter, while it is being read.
#[derive(Clone, Copy, Debug, Default)]
struct Node<'a> {
    name: &'a [u8],
    compatible: &'a [u8],
    device_type: &'a [u8],
    reg: &'a [u8],
    interrupts: &'a [u8],
    address_cells: u32,
    size_cells: u32,
    reserved: bool,
}

/// A PL011 of the board.
#[derive(Clone, Copy, Debug, Default)]
struct Uart<'a> {
    name: &'a [u8],
    frame: (u64, u64),
    intid: u32,
}

/// The interrupt controller of the board.
#[derive(Clone, Copy, Debug, Default)]
struct Gic {
    version: u32,
    /// Address and size of its frames in the order of the binding: distributor and redistributors of a
    /// GICv3; distributor, CPU interface, virtual interface control, virtual CPU interface of a GICv2.
    frames: [(u64, u64); 4],
    maintenance_intid: u32,
}

impl Gic {
    /// Frame `n` of a GIC of this version; zeros for the other.
    const fn frame(&self, version: u32, n: usize) -> (u64, u64) {
        let [first, second, third, fourth] = self.frames;
        match (version == self.version, n) {
            (true, 0) => first,
            (true, 1) => second,
            (true, 2) => third,
            (true, 3) => fourth,
            _ => (0, 0),
        }
    }
}

/// What the tree says.
#[derive(Clone, Debug)]
pub struct BootTree<'a> {
    memory: List<Memory>,
    reserved: List<Memory>,
    /// More reserved ranges than the list has room for: memory that must not be used, so this matters,
    /// where missing memory or CPUs are found missing.
    more_reserved: bool,
    cpus: List<u64>,
    uarts: List<Uart<'a>>,
    gic: Gic,
    rtc: u64,
    /// Secure, EL1 physical, EL1 virtual and EL2 physical timer.
    timer_intids: [u32; 4],
    stdout: &'a [u8],
    /// `/chosen/rng-seed`.
    pub rng_seed: &'a [u8],
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*four))
}

/// Takes a number of `cells` 32-bit words off the front.
fn take(bytes: &mut &[u8], cells: u32) -> Option<u64> {
    let mut value = 0u64;
    for _ in 0..cells.min(4) {
        let (four, rest) = bytes.split_first_chunk()?;
        value = value << 32 | u64::from(u32::from_be_bytes(*four));
        *bytes = rest;
    }
    Some(value)
}

/// Bytes up to the first 0.
fn string(bytes: &[u8]) -> &[u8] {
    let mut len = 0;
    while bytes.get(len).is_some_and(|byte| *byte != 0) {
        len = len.wrapping_add(1);
    }
    bytes.get(..len).unwrap_or(&[])
}

/// INTID of the `n`th interrupt of a GIC's child: three cells, type, number and flags.
fn intid(interrupts: &[u8], n: usize) -> Option<u32> {
    let at = n.checked_mul(12)?;
    let (kind, number) = (word(interrupts, at)?, word(interrupts, at.checked_add(4)?)?);
    number.checked_add(if kind == 0 { 32 } else { 16 })
}

impl<'a> BootTree<'a> {
    /// Bytes of the tree whose first bytes these are, or `None` if they are of no tree.
    pub fn size(head: &[u8]) -> Option<u64> {
        (word(head, 0)? == 0xd00d_feed).then_some(u64::from(word(head, 4)?))
    }

    /// Reads a tree.
    pub fn read(tree: &'a [u8]) -> Option<Self> {
        Self::size(tree)?;
        let structure = tree.get(word(tree, 8)? as usize..)?;
        let strings = tree.get(word(tree, 12)? as usize..)?;
        let mut found = Self {
            memory: List::new(Memory { base: 0, size: 0 }),
            reserved: List::new(Memory { base: 0, size: 0 }),
            more_reserved: false,
            cpus: List::new(0),
            uarts: List::new(Uart::default()),
            gic: Gic::default(),
            rtc: 0,
            timer_intids: [0; 4],
            stdout: &[],
            rng_seed: &[],
        };
        found.read_reservations(tree.get(word(tree, 16)? as usize..)?);
        found.walk(structure, strings)?;
        Some(found)
    }

    fn read_reservations(&mut self, mut block: &[u8]) {
        while let (Some(base), Some(size)) = (take(&mut block, 2), take(&mut block, 2)) {
            if size == 0 {
                return;
            }
            if !self.reserved.push(Memory { base, size }) {
                self.more_reserved = true;
                return;
            }
        }
    }

    fn walk(&mut self, structure: &'a [u8], strings: &'a [u8]) -> Option<()> {
        let mut nodes = [Node::default(); DEPTH];
        let mut depth = 0usize;
        let mut at = 0usize;
        // Properties come before children: a node is whole when its first child or its end comes.
        let mut open = false;
        loop {
            let token = word(structure, at)?;
            at = at.checked_add(4)?;
            match token {
                BEGIN_NODE => {
                    if open {
                        self.node(&nodes, depth);
                    }
                    let name = string(structure.get(at..)?);
                    at = at.checked_add(name.len() / 4 * 4)?.checked_add(4)?;
                    let parent = depth.checked_sub(1).and_then(|up| nodes.get(up));
                    let reserved = parent.is_some_and(|parent| parent.name == b"reserved-memory");
                    if let Some(node) = nodes.get_mut(depth) {
                        *node = Node {
                            name,
                            address_cells: 2,
                            size_cells: 1,
                            reserved,
                            ..Node::default()
                        };
                    }
                    depth = depth.checked_add(1)?;
                    open = true;
                }
                END_NODE => {
                    if open {
                        self.node(&nodes, depth);
                    }
                    open = false;
                    depth = depth.checked_sub(1)?;
                    if depth == 0 {
                        return Some(());
                    }
                }
                PROP => {
                    let length = word(structure, at)? as usize;
                    let name = strings.get(word(structure, at.checked_add(4)?)? as usize..)?;
                    at = at.checked_add(8)?;
                    let value = structure.get(at..at.checked_add(length)?)?;
                    at = at.checked_add(length.checked_add(3)? / 4 * 4)?;
                    if let Some(node) = depth.checked_sub(1).and_then(|n| nodes.get_mut(n)) {
                        self.property(node, name, value);
                    }
                }
                NOP => {}
                _ => return None,
            }
        }
    }

    /// `name` is the strings block from the name on. Most properties are told by their first letter.
    fn property(&mut self, node: &mut Node<'a>, name: &[u8], value: &'a [u8]) {
        let is = |wanted: &[u8]| name.starts_with(wanted);
        match name.first() {
            Some(b'c') if is(b"compatible\0") => node.compatible = value,
            Some(b'd') if is(b"device_type\0") => node.device_type = string(value),
            Some(b'r') if is(b"reg\0") => node.reg = value,
            Some(b'i') if is(b"interrupts\0") => node.interrupts = value,
            Some(b'#') if is(b"#address-cells\0") => {
                node.address_cells = word(value, 0).unwrap_or(0);
            }
            Some(b'#') if is(b"#size-cells\0") => node.size_cells = word(value, 0).unwrap_or(0),
            Some(b's') if node.name == b"chosen" && is(b"stdout-path\0") => {
                self.stdout = string(value);
            }
            Some(b'r') if node.name == b"chosen" && is(b"rng-seed\0") => self.rng_seed = value,
            _ => {}
        }
    }

    /// A node whose properties are all known.
    fn node(&mut self, nodes: &[Node<'a>; DEPTH], depth: usize) {
        let own = depth.wrapping_sub(1);
        let (Some(node), Some(parent)) = (nodes.get(own), nodes.get(own.wrapping_sub(1))) else {
            return;
        };
        if node.reg.is_empty() && node.interrupts.is_empty() {
            return;
        }
        let mut reg = node.reg;
        let mut range = || {
            let base = take(&mut reg, parent.address_cells)?;
            Some((base, take(&mut reg, parent.size_cells)?))
        };
        if node.reserved || node.device_type == b"memory" {
            let list = if node.reserved {
                &mut self.reserved
            } else {
                &mut self.memory
            };
            let mut room = true;
            // A full list ends this, so a tree cannot make it long.
            while let Some((base, size)) = range().filter(|_| room) {
                room = list.push(Memory { base, size });
            }
            self.more_reserved |= node.reserved && !room;
            return;
        }
        if node.device_type == b"cpu" {
            if let Some(mpidr) = take(&mut reg, parent.address_cells) {
                let _ = self.cpus.push(mpidr & 0xff_00ff_ffff);
            }
            return;
        }
        let is = |wanted: &[u8]| {
            node.compatible
                .split(|byte| *byte == 0)
                .any(|one| one == wanted)
        };
        let version = match node.compatible.get(..6) {
            Some(b"arm,gi") if is(b"arm,gic-v3") => 3,
            Some(b"arm,gi" | b"arm,co") if GICV2.into_iter().any(is) => 2,
            _ => 0,
        };
        if version != 0 {
            self.gic = Gic {
                version,
                frames: core::array::from_fn(|_| range().unwrap_or_default()),
                maintenance_intid: intid(node.interrupts, 0).unwrap_or(0),
            };
            return;
        }
        match node.compatible.get(..6) {
            Some(b"arm,ar") if is(b"arm,armv8-timer") => {
                self.timer_intids =
                    core::array::from_fn(|n| intid(node.interrupts, n).unwrap_or(0));
            }
            Some(b"arm,pl") if is(b"arm,pl031") && self.rtc == 0 => {
                self.rtc = range().map_or(0, |(base, _)| base);
            }
            Some(b"arm,pl") if is(b"arm,pl011") => {
                let intid = intid(node.interrupts, 0).unwrap_or(0);
                let _ = self.uarts.push(Uart {
                    name: node.name,
                    frame: range().unwrap_or_default(),
                    intid,
                });
            }
            _ => {}
        }
    }

    /// The PL011 that /chosen/stdout-path names, by the last part of its path.
    fn console(&self) -> Uart<'a> {
        let path = self
            .stdout
            .split(|byte| *byte == b':')
            .next()
            .unwrap_or(&[]);
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(&[]);
        self.uarts
            .as_slice()
            .iter()
            .find(|uart| uart.name == name)
            .copied()
            .unwrap_or_default()
    }

    /// Physical address of the console UART, if there is one.
    pub fn uart(&self) -> Option<u64> {
        let (base, size) = self.console().frame;
        (size != 0).then_some(base)
    }

    /// The tree as the facts that the plan is compared with.
    pub fn found(&self, boot_cpu: u64, image: u64) -> Found<'_> {
        let uart = self.console();
        let [_, ptimer_intid, vtimer_intid, hyp_timer_intid] = self.timer_intids;
        Found {
            memory: self.memory.as_slice(),
            reserved: self.reserved.as_slice(),
            more_reserved: self.more_reserved,
            cpus: self.cpus.as_slice(),
            boot_cpu,
            gicd: self.gic.frames[0],
            gicr: self.gic.frame(3, 1),
            gicc: self.gic.frame(2, 1),
            gich: self.gic.frame(2, 2),
            gicv: self.gic.frame(2, 3),
            uart: uart.frame,
            uart_intid: uart.intid,
            rtc: self.rtc,
            vtimer_intid,
            ptimer_intid,
            hyp_timer_intid,
            maintenance_intid: self.gic.maintenance_intid,
            gic_version: self.gic.version,
            image,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Writes a flattened tree, as much of one as the tests need.
    #[derive(Default)]
    struct Writer {
        structure: Vec<u8>,
        strings: Vec<u8>,
    }

    impl Writer {
        fn word(&mut self, value: u32) {
            self.structure.extend(value.to_be_bytes());
        }

        fn padded(&mut self, bytes: &[u8]) {
            self.structure.extend(bytes);
            self.structure
                .resize(self.structure.len().next_multiple_of(4), 0);
        }

        fn node(&mut self, name: &str, inside: impl FnOnce(&mut Self)) {
            self.word(BEGIN_NODE);
            self.padded(&[name.as_bytes(), &[0]].concat());
            inside(self);
            self.word(END_NODE);
        }

        fn property(&mut self, name: &str, value: &[u8]) {
            self.word(PROP);
            self.word(value.len() as u32);
            self.word(self.strings.len() as u32);
            self.strings.extend(name.as_bytes());
            self.strings.push(0);
            self.padded(value);
        }

        fn cells(&mut self, name: &str, cells: &[u32]) {
            let value: Vec<u8> = cells.iter().flat_map(|cell| cell.to_be_bytes()).collect();
            self.property(name, &value);
        }

        fn finish(mut self) -> Vec<u8> {
            self.word(9);
            let (structure, strings) = (56, 56 + self.structure.len());
            let words = [
                0xd00d_feed,
                strings + self.strings.len(),
                structure,
                strings,
                40,
                17,
                16,
                0,
            ];
            let mut tree: Vec<u8> = words
                .iter()
                .flat_map(|word| (*word as u32).to_be_bytes())
                .collect();
            tree.extend((self.strings.len() as u32).to_be_bytes());
            tree.extend((self.structure.len() as u32).to_be_bytes());
            tree.resize(56, 0);
            tree.extend(self.structure);
            tree.extend(self.strings);
            tree
        }
    }

    /// QEMU's `virt` with a GIC of this version.
    fn virt(version: u32) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.node("", |w| {
            w.cells("#address-cells", &[2]);
            w.cells("#size-cells", &[2]);
            w.node("pl011@9000000", |w| {
                w.property("compatible", b"arm,pl011\0arm,primecell\0");
                w.cells("reg", &[0, 0x900_0000, 0, 0x1000]);
                w.cells("interrupts", &[0, 1, 4]);
            });
            w.node("pl011@9040000", |w| {
                w.property("compatible", b"arm,pl011\0arm,primecell\0");
                w.cells("reg", &[0, 0x904_0000, 0, 0x1000]);
                w.cells("interrupts", &[0, 8, 4]);
            });
            w.node("memory@40000000", |w| {
                w.cells("reg", &[0, 0x4000_0000, 0, 0x8000_0000]);
                w.property("device_type", b"memory\0");
            });
            w.node("reserved-memory", |w| {
                w.cells("#address-cells", &[1]);
                w.cells("#size-cells", &[1]);
                w.node("secure@4e000000", |w| {
                    w.cells("reg", &[0x4e00_0000, 0x10_0000])
                });
            });
            w.node("intc@8000000", |w| {
                w.cells("interrupts", &[1, 9, 4]);
                if version == 2 {
                    w.property("compatible", b"arm,cortex-a15-gic\0");
                    let frames = [0x800_0000, 0x801_0000, 0x803_0000, 0x804_0000];
                    w.cells("reg", &frames.map(|base| [0, base, 0, 0x1_0000]).concat());
                    return;
                }
                w.property("compatible", b"arm,gic-v3\0");
                w.cells(
                    "reg",
                    &[0, 0x800_0000, 0, 0x1_0000, 0, 0x80a_0000, 0, 0xf6_0000],
                );
                w.node("its@8080000", |w| {
                    w.property("compatible", b"arm,gic-v3-its\0")
                });
            });
            w.node("pl031@9010000", |w| {
                w.property("compatible", b"arm,pl031\0arm,primecell\0");
                w.cells("reg", &[0, 0x901_0000, 0, 0x1000]);
                w.cells("interrupts", &[0, 2, 4]);
            });
            w.node("cpus", |w| {
                w.cells("#address-cells", &[1]);
                w.cells("#size-cells", &[0]);
                for n in 0..2 {
                    w.node("cpu", |w| {
                        w.property("device_type", b"cpu\0");
                        w.cells("reg", &[0x8000_0000 | n]);
                    });
                }
            });
            w.node("timer", |w| {
                w.property("compatible", b"arm,armv8-timer\0arm,armv7-timer\0");
                w.cells("interrupts", &[1, 13, 4, 1, 14, 4, 1, 11, 4, 1, 10, 4]);
            });
            w.node("chosen", |w| {
                w.property("stdout-path", b"/pl011@9040000:115200\0");
                w.property("rng-seed", &[7; 32]);
            });
        });
        writer.finish()
    }

    #[test]
    fn one_pass_finds_what_the_plan_is_compared_with() {
        let bytes = virt(3);
        let tree = BootTree::read(&bytes).unwrap();
        let found = tree.found(0, 0x4020_0000);
        assert_eq!(
            found.memory,
            [Memory {
                base: 0x4000_0000,
                size: 0x8000_0000
            }]
        );
        assert_eq!(
            found.reserved,
            [Memory {
                base: 0x4e00_0000,
                size: 0x10_0000
            }]
        );
        assert_eq!(found.cpus, [0, 1], "affinity fields only");
        assert_eq!(found.gicd, (0x800_0000, 0x1_0000));
        assert_eq!(found.gicr, (0x80a_0000, 0xf6_0000));
        let none = [found.gicc, found.gich, found.gicv];
        assert_eq!((found.gic_version, none), (3, [(0, 0); 3]));
        let ppis = [
            found.maintenance_intid,
            found.hyp_timer_intid,
            found.vtimer_intid,
            found.ptimer_intid,
        ];
        assert_eq!(ppis, [25, 26, 27, 30]);
        assert!(!found.more_reserved);
        assert_eq!(found.rtc, 0x901_0000);
        assert_eq!((found.uart, found.uart_intid), ((0x904_0000, 0x1000), 40));
        assert_eq!(
            (tree.uart(), tree.rng_seed),
            (Some(0x904_0000), &[7; 32][..])
        );
    }

    #[test]
    fn a_gicv2_has_other_frames() {
        let bytes = virt(2);
        let tree = BootTree::read(&bytes).unwrap();
        let found = tree.found(0, 0x4020_0000);
        assert_eq!((found.gic_version, found.maintenance_intid), (2, 25));
        assert_eq!(found.gicd, (0x800_0000, 0x1_0000));
        assert_eq!(found.gicr, (0, 0));
        assert_eq!(found.gicc, (0x801_0000, 0x1_0000));
        assert_eq!(found.gich, (0x803_0000, 0x1_0000));
        assert_eq!(found.gicv, (0x804_0000, 0x1_0000));
    }

    /// A tree with so many reserved ranges in its reservation block, and as many in nodes.
    fn reserving(block: usize, nodes: usize) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.node("", |w| {
            w.cells("#address-cells", &[2]);
            w.cells("#size-cells", &[2]);
            w.node("reserved-memory", |w| {
                w.cells("#address-cells", &[1]);
                w.cells("#size-cells", &[1]);
                for n in 0..nodes {
                    w.node("kept", |w| w.cells("reg", &[0x4e00_0000 + n as u32, 1]));
                }
            });
        });
        let mut tree = writer.finish();
        // A block of its own at the end.
        let at = tree.len() as u32;
        tree[16..20].copy_from_slice(&at.to_be_bytes());
        for n in 0..block as u64 {
            tree.extend((0x4000_0000 + n).to_be_bytes());
            tree.extend(1_u64.to_be_bytes());
        }
        tree.extend([0; 16]);
        tree
    }

    #[test]
    fn more_reserved_ranges_than_are_kept_are_not_forgotten() {
        for (block, nodes, more) in [
            (KEPT, 0, false),
            (0, KEPT, false),
            (KEPT / 2, KEPT / 2, false),
            (KEPT + 1, 0, true),
            (0, KEPT + 1, true),
            (KEPT, 1, true),
        ] {
            let bytes = reserving(block, nodes);
            let tree = BootTree::read(&bytes).unwrap();
            let found = tree.found(0, 0);
            assert_eq!(found.more_reserved, more, "{block} and {nodes}");
            assert_eq!(found.reserved.len(), (block + nodes).min(KEPT));
        }
    }

    #[test]
    fn a_broken_tree_is_no_tree() {
        let good = virt(2);
        assert!(BootTree::read(&[]).is_none());
        assert!(BootTree::read(&[0; 64]).is_none());
        for cut in 0..good.len() {
            // Cut short it may still hold a whole structure block; it must never fail in another way.
            let _ = BootTree::read(&good[..cut]);
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0xff;
            let _ = BootTree::read(&bad);
        }
    }
}

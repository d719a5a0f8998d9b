//! Reads the device tree that EL2 is started with: one pass over the flattened tree (Devicetree
//! Specification v0.4, chapter 5), without allocation, and without trust in its contents.
//!
//! It is written here and not taken from a library because start-up has a budget of instructions: a
//! walk that collects everything in one pass costs a tenth of one look-up for each property
//! (`docs/adr/0006-libraries.md`).

#[cfg(test)]
mod tests;

use bulkhead_abi::plan::{Memory, PAGE};
use zerocopy::FromBytes;

use crate::plan::Found;

const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROP: u32 = 3;
const NOP: u32 = 4;
/// Number of levels of nodes that are read, that of the root included.
pub const DEPTH: usize = 8;
/// Maximum number of memory ranges, reserved ranges and CPUs that are kept.
pub const KEPT: usize = 24;

/// Values of `compatible` of a GICv2 with virtualization (Linux,
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

    /// Appends `item`; returns `false` if there is no room for it.
    #[inline(never)]
    fn push(&mut self, item: T) -> bool {
        let Some(place) = self.items.get_mut(self.len) else {
            return false;
        };
        *place = item;
        self.len = self.len.saturating_add(1);
        true
    }

    fn as_slice(&self) -> &[T] {
        self.items.get(..self.len).unwrap_or(&[])
    }
}

/// The relevant properties of one node, while it is being read.
#[derive(Clone, Copy, Debug, Default)]
struct Node<'a> {
    name: &'a [u8],
    compatible: &'a [u8],
    device_type: &'a [u8],
    reg: &'a [u8],
    interrupts: &'a [u8],
    /// `ranges`: the translation from addresses below the node to addresses of its parent. Empty:
    /// no translation; `None`: no access.
    ranges: Option<&'a [u8]>,
    /// Whether the `enable-method` of a CPU is "spin-table"; `release` is then the address of its
    /// spin-table word.
    spins: bool,
    release: &'a [u8],
    address_cells: u32,
    size_cells: u32,
    reserved: bool,
}

impl Node<'_> {
    /// Translates `size` bytes at the address `base` below this node to an address of its parent,
    /// which has addresses of `cells` cells: by the first range that contains them all (Devicetree
    /// Specification v0.4, 2.3.8).
    fn above(&self, cells: u32, base: u64, size: u64) -> Option<u64> {
        let mut ranges = self.ranges?;
        if ranges.is_empty() {
            return Some(base);
        }
        loop {
            let before = ranges.len();
            let child = take(&mut ranges, self.address_cells)?;
            let parent = take(&mut ranges, cells)?;
            let length = take(&mut ranges, self.size_cells)?;
            let offset = base.wrapping_sub(child);
            let end = offset.checked_add(size);
            if base >= child && end.is_some_and(|end| end <= length) {
                return parent.checked_add(offset);
            }
            // With 0 cells the same range would be read for ever.
            if ranges.len() == before {
                return None;
            }
        }
    }
}

/// The physical address of `size` bytes at the address `base` below the last of `buses`, the first
/// of which is the root.
fn physical(mut buses: &[Node], mut base: u64, size: u64) -> Option<u64> {
    while let [above @ .., bus] = buses
        && let Some(parent) = above.last()
    {
        base = bus.above(parent.address_cells, base, size)?;
        buses = above;
    }
    Some(base)
}

/// Offsets of the relevant names in the strings block, once they have been found there.
#[derive(Default)]
struct Names {
    compatible: Option<usize>,
    device_type: Option<usize>,
    reg: Option<usize>,
    interrupts: Option<usize>,
    address_cells: Option<usize>,
    size_cells: Option<usize>,
}

/// A UART of the board for which EL2 has a driver.
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
    /// Address and size of its frames in the order of the binding: distributor and redistributors
    /// of a GICv3; distributor, CPU interface, virtual interface control, virtual CPU interface of
    /// a GICv2.
    frames: [(u64, u64); 4],
    maintenance_intid: u32,
}

impl Gic {
    /// Frame `n` if the GIC is of this version; zeros otherwise.
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

/// The contents of a device tree.
#[derive(Clone, Debug)]
pub struct BootTree<'a> {
    memory: List<Memory>,
    reserved: List<Memory>,
    /// Whether there are more reserved ranges than the list has room for. They must not be used, so
    /// this has to be known; missing memory or CPUs are detected when the plan is checked against
    /// the board.
    more_reserved: bool,
    cpus: List<(u64, u64)>,
    uarts: List<Uart<'a>>,
    gic: Gic,
    rtc: u64,
    /// INTIDs of the secure, EL1 physical, EL1 virtual and EL2 physical timer.
    timer_intids: [u32; 4],
    stdout: &'a [u8],
    structure: Structure<'a>,
    strings: &'a [u8],
    /// Index of the first word inside of /aliases.
    aliases: Option<usize>,
    /// Values of `compatible` of the UARTs for which EL2 has a driver.
    words: &'static [&'static str],
    /// The value of `/chosen/rng-seed`.
    pub rng_seed: &'a [u8],
}

#[inline(never)]
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The structure block. It is read by words, as they are aligned in a tree, and one load of a word
/// costs a quarter of four loads of bytes; positions in it are numbers of words.
#[derive(Clone, Copy, Debug)]
struct Structure<'a> {
    words: &'a [u32],
    bytes: &'a [u8],
}

impl<'a> Structure<'a> {
    /// The block that begins with these bytes; `None` if they are not aligned.
    fn new(bytes: &'a [u8]) -> Option<Self> {
        let (words, _) = <[u32]>::ref_from_prefix_with_elems(bytes, bytes.len() / 4).ok()?;
        Some(Self { words, bytes })
    }

    fn word(self, at: usize) -> Option<u32> {
        Some(u32::from_be(*self.words.get(at)?))
    }

    /// `length` bytes from the word `at` on.
    fn bytes(self, at: usize, length: usize) -> Option<&'a [u8]> {
        self.bytes.get(at.checked_mul(4)?..)?.get(..length)
    }

    /// The property whose token is before the word `at`: the offset of its name in the strings
    /// block, its value, and the index of the word after it.
    fn property(self, at: usize) -> Option<(usize, &'a [u8], usize)> {
        let length = self.word(at)? as usize;
        let name = self.word(at.checked_add(1)?)? as usize;
        let value = self.bytes(at.checked_add(2)?, length)?;
        // At most the length of the block, so this does not overflow.
        let words = length.wrapping_add(3) / 4;
        Some((name, value, at.checked_add(2)?.checked_add(words)?))
    }

    /// The name at the word `at`, up to its terminating 0.
    fn name(self, at: usize) -> Option<&'a [u8]> {
        const ONES: u32 = 0x0101_0101;
        let mut whole = 0usize;
        loop {
            let four = u32::from_le(*self.words.get(at.checked_add(whole)?)?);
            // The lowest of these bits is in the first byte that is 0.
            let zeros = four.wrapping_sub(ONES) & !four & ONES << 7;
            if zeros != 0 {
                let rest = zeros.trailing_zeros() as usize / 8;
                return self.bytes(at, whole.checked_mul(4)?.checked_add(rest)?);
            }
            whole = whole.checked_add(1)?;
        }
    }
}

/// Takes a number of `cells` 32-bit words off the front; `None` if it could have more than 64 bits.
#[inline(never)]
fn take(bytes: &mut &[u8], cells: u32) -> Option<u64> {
    let mut value = 0u64;
    if cells > 2 {
        return None;
    }
    for _ in 0..cells {
        let (four, rest) = bytes.split_first_chunk()?;
        value = value << 32 | u64::from(u32::from_be_bytes(*four));
        *bytes = rest;
    }
    Some(value)
}

/// The bytes up to the first 0.
#[inline(never)]
fn string(bytes: &[u8]) -> &[u8] {
    let mut len = 0;
    while bytes.get(len).is_some_and(|byte| *byte != 0) {
        len = len.wrapping_add(1);
    }
    bytes.get(..len).unwrap_or(&[])
}

/// Whether a list of strings, each terminated by 0, contains `wanted`, which is not empty.
#[inline(never)]
fn has(mut words: &[u8], wanted: &[u8]) -> bool {
    loop {
        let rest = words.strip_prefix(wanted);
        if rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == 0)) {
            return true;
        }
        // From byte to byte: an iterator over the strings would look at each twice.
        let mut byte = 1;
        while byte != 0 {
            let Some((first, rest)) = words.split_first() else {
                return false;
            };
            (byte, words) = (*first, rest);
        }
    }
}

/// INTID of the `n`th interrupt of a GIC's child, in three cells: type, number and flags; or in four, the last of which
/// is about CPUs. Of four or five interrupts, which a timer has, only four cells make a multiple of 16 bytes other
/// than 48.
#[inline(never)]
fn intid(interrupts: &[u8], n: usize) -> Option<u32> {
    let four = interrupts.len().is_multiple_of(16) && interrupts.len() != 48;
    let at = n.checked_mul(if four { 16 } else { 12 })?;
    let (kind, number) = (word(interrupts, at)?, word(interrupts, at.checked_add(4)?)?);
    number.checked_add(if kind == 0 { 32 } else { 16 })
}

impl<'a> BootTree<'a> {
    /// The size in bytes of the tree that starts with `head`, or `None` if it is not a tree.
    pub fn size(head: &[u8]) -> Option<u64> {
        (word(head, 0)? == 0xd00d_feed).then_some(u64::from(word(head, 4)?))
    }

    /// Reads a tree; `words` are the values of `compatible` of the UARTs for which EL2 has a
    /// driver.
    pub fn read(tree: &'a [u8], words: &'static [&'static str]) -> Option<Self> {
        Self::size(tree)?;
        let structure = tree.get(word(tree, 8)? as usize..)?;
        let structure = Structure::new(structure)?;
        let strings = tree.get(word(tree, 12)? as usize..)?;
        let mut found = Self {
            memory: List::new(Memory { base: 0, size: 0 }),
            reserved: List::new(Memory { base: 0, size: 0 }),
            more_reserved: false,
            cpus: List::new((0, 0)),
            uarts: List::new(Uart::default()),
            gic: Gic::default(),
            rtc: 0,
            timer_intids: [0; 4],
            stdout: &[],
            structure,
            strings,
            aliases: None,
            words,
            rng_seed: &[],
        };
        found.read_reservations(tree.get(word(tree, 16)? as usize..)?);
        found.walk()?;
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

    fn walk(&mut self) -> Option<()> {
        let (structure, strings) = (self.structure, self.strings);
        let mut nodes = [Node::default(); DEPTH];
        let mut depth = 0usize;
        let mut at = 0usize;
        // Properties come before children: a node is complete when its first child or its end
        // comes.
        let mut open = false;
        let mut names = Names::default();
        loop {
            let token = structure.word(at)?;
            at = at.checked_add(1)?;
            match token {
                BEGIN_NODE => {
                    if open {
                        self.node(&nodes, depth);
                    }
                    let name = structure.name(at)?;
                    at = at.checked_add(name.len() / 4)?.checked_add(1)?;
                    let parent = depth.checked_sub(1).and_then(|up| nodes.get(up));
                    if depth == 1 && name == b"aliases" {
                        self.aliases = Some(at);
                    }
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
                    let (name, value, next) = structure.property(at)?;
                    let text = strings.get(name..)?;
                    at = next;
                    if let Some(node) = depth.checked_sub(1).and_then(|n| nodes.get_mut(n)) {
                        self.property(node, (name, text), &mut names, value);
                    }
                }
                NOP => {}
                _ => return None,
            }
        }
    }

    /// Reads a property. `name` is the offset of its name in the strings block, `text` the block
    /// from there on. Most properties are distinguished by their first letter, most of the rest by
    /// the offset, which is the same for all properties of the same name.
    #[inline(never)]
    fn property(
        &mut self,
        node: &mut Node<'a>,
        (name, text): (usize, &[u8]),
        names: &mut Names,
        value: &'a [u8],
    ) {
        let is = |known: &mut Option<usize>, wanted: &[u8]| {
            let same = *known == Some(name) || text.starts_with(wanted);
            if same {
                *known = Some(name);
            }
            same
        };
        match text.first() {
            Some(b'c') if is(&mut names.compatible, b"compatible\0") => node.compatible = value,
            Some(b'c') if text.starts_with(b"cpu-release-addr\0") => node.release = value,
            Some(b'e') if text.starts_with(b"enable-method\0") => {
                node.spins = string(value) == b"spin-table";
            }
            Some(b'd') if is(&mut names.device_type, b"device_type\0") => {
                node.device_type = string(value);
            }
            Some(b'r') if is(&mut names.reg, b"reg\0") => node.reg = value,
            Some(b'r') if text.starts_with(b"ranges\0") => node.ranges = Some(value),
            Some(b'i') if is(&mut names.interrupts, b"interrupts\0") => node.interrupts = value,
            Some(b'#') if is(&mut names.address_cells, b"#address-cells\0") => {
                node.address_cells = word(value, 0).unwrap_or(0);
            }
            Some(b'#') if is(&mut names.size_cells, b"#size-cells\0") => {
                node.size_cells = word(value, 0).unwrap_or(0);
            }
            Some(b's') if node.name == b"chosen" && text.starts_with(b"stdout-path\0") => {
                self.stdout = string(value);
            }
            Some(b'r') if node.name == b"chosen" && text.starts_with(b"rng-seed\0") => {
                self.rng_seed = value;
            }
            _ => {}
        }
    }

    /// Evaluates a node whose properties are all known.
    #[inline(never)]
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
            // A full list ends the loop, so a tree cannot make it long.
            while let Some((base, size)) = range().filter(|_| room) {
                room = list.push(Memory { base, size });
            }
            self.more_reserved |= node.reserved && !room;
            return;
        }
        if node.device_type == b"cpu" {
            if let Some(mpidr) = take(&mut reg, parent.address_cells) {
                let release = take(&mut { node.release }, 2).filter(|_| node.spins);
                let cpu = (mpidr & 0xff_00ff_ffff, release.unwrap_or(0));
                let _ = self.cpus.push(cpu);
            }
            return;
        }
        let is = |wanted: &[u8]| has(node.compatible, wanted);
        // Only devices are translated; memory and CPUs are not behind buses.
        let buses = nodes.get(..own).unwrap_or(&[]);
        let mut frame = || {
            let (base, size) = range()?;
            Some((physical(buses, base, size)?, size))
        };
        let version = match node.compatible.get(..6) {
            Some(b"arm,gi") if is(b"arm,gic-v3") => 3,
            Some(b"arm,gi" | b"arm,co") if GICV2.into_iter().any(is) => 2,
            _ => 0,
        };
        if version != 0 {
            self.gic = Gic {
                version,
                frames: core::array::from_fn(|_| frame().unwrap_or_default()),
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
                self.rtc = frame().map_or(0, |(base, _)| base);
            }
            _ if self.words.iter().any(|word| is(word.as_bytes())) => {
                let intid = intid(node.interrupts, 0).unwrap_or(0);
                // A frame is whole pages: if a UART has less, no other device uses the rest.
                let frame = frame()
                    .and_then(|(base, size)| Some((base, size.checked_next_multiple_of(PAGE)?)));
                let _ = self.uarts.push(Uart {
                    name: node.name,
                    frame: frame.unwrap_or_default(),
                    intid,
                });
            }
            _ => {}
        }
    }

    /// The path of an alias in /aliases.
    fn alias(&self, name: &[u8]) -> Option<&'a [u8]> {
        let mut at = self.aliases?;
        loop {
            let token = self.structure.word(at)?;
            at = at.checked_add(1)?;
            if token == PROP {
                let (text, value, next) = self.structure.property(at)?;
                if self.strings.get(text..).map(string) == Some(name) {
                    return Some(string(value));
                }
                at = next;
            } else if token != NOP {
                return None;
            }
        }
    }

    /// The UART named by the last part of the path in /chosen/stdout-path, which may be an alias.
    fn console(&self) -> Uart<'a> {
        let path = self
            .stdout
            .split(|byte| *byte == b':')
            .next()
            .unwrap_or(&[]);
        let path = self.alias(path).unwrap_or(path);
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

    /// The properties of the board that the plan is compared with.
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

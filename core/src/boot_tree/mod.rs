//! Reads the device tree that EL2 is started with: one pass over the flattened tree (Devicetree
//! Specification v0.4, chapter 5), without allocation, and without trust in its contents.
//!
//! It is written here and not taken from a library because start-up has a budget of instructions: a
//! walk that collects everything in one pass costs a tenth of one look-up for each property
//! (`docs/adr/0006-libraries.md`).

mod structure;
#[cfg(test)]
mod tests;

use bulkhead_abi::plan::{Memory, PAGE};
use zerocopy::{FromBytes, IntoBytes};

use self::structure::{
    BEGIN_NODE, END_NODE, NOP, Name, Names, PROP, Values, behind_property, length, string, take,
    take_property, take_string, word,
};
use crate::plan::Found;

/// Number of levels of nodes that are read, that of the root included.
pub const DEPTH: usize = 8;
/// Maximum number of memory ranges, reserved ranges and CPUs that are kept.
pub const KEPT: usize = 24;

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

/// What the nodes below a node have to know of it.
#[derive(Clone, Copy, Debug, Default)]
struct Bus<'a> {
    /// `ranges`: the translation from addresses below the node to addresses of its parent. Empty:
    /// no translation; `None`: no access.
    ranges: Option<&'a [u8]>,
    address_cells: u32,
    size_cells: u32,
    /// It is `/reserved-memory`.
    reserved: bool,
}

impl<'a> Bus<'a> {
    fn new(name: &[u8], values: &Values<'a>) -> Self {
        Self {
            ranges: values.get(Name::Ranges),
            address_cells: values.cells(Name::AddressCells, 2),
            size_cells: values.cells(Name::SizeCells, 1),
            reserved: name == b"reserved-memory",
        }
    }

    /// Takes the ranges of `reg` of a node below this one, one after the other.
    fn ranges(&self, values: &Values<'a>) -> impl FnMut() -> Option<(u64, u64)> {
        let mut reg = values.of(Name::Reg);
        let (address_cells, size_cells) = (self.address_cells, self.size_cells);
        move || {
            let base = take(&mut reg, address_cells)?;
            Some((base, take(&mut reg, size_cells)?))
        }
    }

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
fn physical(mut buses: &[Bus], mut base: u64, size: u64) -> Option<u64> {
    while let [above @ .., bus] = buses
        && let Some(parent) = above.last()
    {
        base = bus.above(parent.address_cells, base, size)?;
        buses = above;
    }
    Some(base)
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

/// A device of which EL2 has to know.
#[derive(Clone, Copy)]
enum Kind {
    /// A GIC of this version.
    Gic(u32),
    Timer,
    /// A PL031.
    Clock,
    /// A UART for which EL2 has a driver.
    Uart,
}

impl Kind {
    /// The one that a word of `compatible` says; for UARTs see [`BootTree::words`].
    fn of(word: &[u8]) -> Option<Self> {
        let rest = word.strip_prefix(b"arm,")?;
        // A GICv2 with virtualization: Linux, Documentation/devicetree/bindings/interrupt-controller/arm,gic.yaml.
        let kinds = [
            ("gic-v3", Self::Gic(3)),
            ("gic-400", Self::Gic(2)),
            ("cortex-a15-gic", Self::Gic(2)),
            ("cortex-a7-gic", Self::Gic(2)),
            ("armv8-timer", Self::Timer),
            ("pl031", Self::Clock),
        ];
        let mut kinds = kinds.iter();
        let found = kinds.find(|(word, _)| word.as_bytes() == rest);
        found.map(|(_, kind)| *kind)
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
    strings: &'a [u8],
    /// The structure block from the inside of /aliases on.
    aliases: &'a [u32],
    /// Values of `compatible` of the UARTs for which EL2 has a driver.
    words: &'static [&'static str],
    /// The value of `/chosen/rng-seed`.
    pub rng_seed: &'a [u8],
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

    /// The contents of no tree. Not a constant, of which the image would have a copy.
    #[inline(always)]
    pub fn none() -> Self {
        Self {
            memory: List::new(Memory { base: 0, size: 0 }),
            reserved: List::new(Memory { base: 0, size: 0 }),
            more_reserved: false,
            cpus: List::new((0, 0)),
            uarts: List::new(Uart::default()),
            gic: Gic::default(),
            rtc: 0,
            timer_intids: [0; 4],
            stdout: &[],
            strings: &[],
            aliases: &[],
            words: &[],
            rng_seed: &[],
        }
    }

    /// Reads a tree; `words` are the values of `compatible` of the UARTs for which EL2 has a
    /// driver.
    pub fn read(tree: &'a [u8], words: &'static [&'static str]) -> Option<Self> {
        let mut found = Self::none();
        found.read_in_place(tree, words)?;
        Some(found)
    }

    /// The same where the contents of none are, which is not copied then. `None`: it is no tree, and they are of no use.
    pub fn read_in_place(&mut self, tree: &'a [u8], words: &'static [&'static str]) -> Option<()> {
        Self::size(tree)?;
        let structure = tree.get(word(tree, 8)? as usize..)?;
        let (structure, _) =
            <[u32]>::ref_from_prefix_with_elems(structure, structure.len() / 4).ok()?;
        self.strings = tree.get(word(tree, 12)? as usize..)?;
        self.words = words;
        self.read_reservations(tree.get(word(tree, 16)? as usize..)?);
        self.walk(structure)
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

    /// Reads the structure block, by words, as it is aligned.
    fn walk(&mut self, words: &'a [u32]) -> Option<()> {
        let mut names = Names::new(self.strings);
        let mut buses = [Bus::default(); DEPTH];
        let mut values = Values::new(words);
        let (mut at, mut depth) = (0usize, 0usize);
        // The name of the node of which the values are.
        let mut parent = &[][..];
        // Whether the values are those of the innermost node that has not ended.
        let mut own = false;
        loop {
            let token = *words.get(at)?;
            at = at.wrapping_add(1);
            match u32::from_be(token) {
                BEGIN_NODE => {
                    let rest = words.get(at..)?;
                    let bytes = length(rest)?;
                    let name = rest.as_bytes().get(..bytes)?;
                    at = at.wrapping_add(bytes / 4).wrapping_add(1);
                    if depth == 1 && name == b"aliases" {
                        self.aliases = words.get(at..)?;
                    }
                    if own && let Some(bus) = buses.get_mut(depth.wrapping_sub(1)) {
                        *bus = Bus::new(parent, &values);
                    }
                    parent = name;
                    own = true;
                    at = names.find_values(at, &mut values)?;
                    self.node(name, &values, buses.get(..depth).unwrap_or(&[]));
                    depth = depth.wrapping_add(1);
                }
                END_NODE => {
                    own = false;
                    depth = depth.checked_sub(1)?;
                    if depth == 0 {
                        return Some(());
                    }
                }
                // Properties come before children; what comes behind them is not read.
                PROP => at = behind_property(words, at)?,
                NOP => {}
                _ => return None,
            }
        }
    }

    /// Evaluates a node that is behind these buses, the last of which is its parent.
    #[inline(never)]
    fn node(&mut self, name: &'a [u8], values: &Values<'a>, buses: &[Bus<'a>]) {
        let Some(parent) = buses.last() else {
            return;
        };
        if !values.has(Name::Reg) && !values.has(Name::Interrupts) {
            if name == b"chosen" {
                self.stdout = string(values.of(Name::Stdout));
                self.rng_seed = values.of(Name::RngSeed);
            }
            return;
        }
        let is = |kind: &[u8]| values.has(Name::DeviceType) && values.of(Name::DeviceType) == kind;
        if parent.reserved || is(b"memory\0") {
            let list = if parent.reserved {
                &mut self.reserved
            } else {
                &mut self.memory
            };
            let mut ranges = parent.ranges(values);
            let mut room = true;
            // A full list ends the loop, so a tree cannot make it long.
            while let Some((base, size)) = ranges().filter(|_| room) {
                room = list.push(Memory { base, size });
            }
            self.more_reserved |= parent.reserved && !room;
            return;
        }
        if is(b"cpu\0") {
            if let Some(mpidr) = take(&mut values.of(Name::Reg), parent.address_cells) {
                let spins = string(values.of(Name::EnableMethod)) == b"spin-table";
                let release = take(&mut values.of(Name::ReleaseAddress), 2).filter(|_| spins);
                let cpu = (mpidr & 0xff_00ff_ffff, release.unwrap_or(0));
                let _ = self.cpus.push(cpu);
            }
            return;
        }
        let mut list = values.of(Name::Compatible);
        while !list.is_empty() {
            let word = take_string(&mut list);
            let drives = self.words.iter().any(|own| own.as_bytes() == word);
            let kind = if drives {
                Some(Kind::Uart)
            } else {
                Kind::of(word)
            };
            if let Some(kind) = kind {
                return self.device(kind, name, values, buses);
            }
        }
    }

    /// Evaluates a device that is behind these buses.
    #[inline(never)]
    fn device(&mut self, kind: Kind, name: &'a [u8], values: &Values<'a>, buses: &[Bus<'a>]) {
        let Some(parent) = buses.last() else {
            return;
        };
        let interrupts = values.of(Name::Interrupts);
        // Only devices are translated; memory and CPUs are not behind buses.
        let mut ranges = parent.ranges(values);
        let mut frame = || {
            let (base, size) = ranges()?;
            Some((physical(buses, base, size)?, size))
        };
        match kind {
            Kind::Gic(version) => {
                self.gic = Gic {
                    version,
                    frames: core::array::from_fn(|_| frame().unwrap_or_default()),
                    maintenance_intid: intid(interrupts, 0).unwrap_or(0),
                };
            }
            Kind::Timer => {
                self.timer_intids = core::array::from_fn(|n| intid(interrupts, n).unwrap_or(0));
            }
            Kind::Clock if self.rtc == 0 => self.rtc = frame().map_or(0, |(base, _)| base),
            Kind::Clock => {}
            Kind::Uart => {
                // A frame is whole pages: if a UART has less, no other device uses the rest.
                let frame = frame()
                    .and_then(|(base, size)| Some((base, size.checked_next_multiple_of(PAGE)?)));
                let _ = self.uarts.push(Uart {
                    name,
                    frame: frame.unwrap_or_default(),
                    intid: intid(interrupts, 0).unwrap_or(0),
                });
            }
        }
    }

    /// The path of an alias in /aliases.
    fn alias(&self, name: &[u8]) -> Option<&'a [u8]> {
        let mut rest = self.aliases;
        loop {
            let (token, behind) = rest.split_first()?;
            rest = behind;
            match u32::from_be(*token) {
                PROP => {
                    let (text, value) = take_property(&mut rest)?;
                    if self.strings.get(text as usize..).map(string) == Some(name) {
                        return Some(string(value));
                    }
                }
                NOP => {}
                _ => return None,
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

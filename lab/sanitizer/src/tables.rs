//! Translation tables with the 4 KiB granule: their mappings, and their pages (DDI 0487, D8.2 and
//! D8.3).

use crate::memory::{Memory, PAGE, WORDS};

/// Stage of a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Stage 1 of EL2.
    El2,
    /// Stage 2 of EL1&0.
    Guest,
}

impl Stage {
    /// Returns the kind of address that it translates.
    pub const fn input(self) -> &'static str {
        match self {
            Self::El2 => "VA",
            Self::Guest => "IPA",
        }
    }
}

/// Page that holds descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its stage of translation.
    pub stage: Stage,
    /// Level of lookup, 0 to 3.
    pub level: u8,
    /// First input address that it translates.
    pub base: u64,
    /// Physical addresses of the roots that it hangs from.
    pub roots: Vec<u64>,
}

impl Table {
    /// Input addresses of the entry `index`: first, and how many.
    pub fn range(&self, index: usize) -> (u64, u64) {
        let size = entry_size(self.level);
        (self.base + index as u64 * size, size)
    }
}

/// Bytes that an entry of a level translates.
pub const fn entry_size(level: u8) -> u64 {
    PAGE << (9 * (3 - level as u64))
}

/// Kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Gives a fault.
    Invalid,
    /// Points at a table of the next level.
    Table,
    /// Maps a block or page.
    Leaf,
}

/// Returns the kind of `descriptor` in a table of `level`.
pub const fn kind(descriptor: u64, level: u8) -> Kind {
    match (descriptor & 3, level) {
        (3, 0..=2) => Kind::Table,
        (3, 3) | (1, 1 | 2) => Kind::Leaf,
        _ => Kind::Invalid,
    }
}

/// The address in a descriptor: of the next table, the block or the page.
pub const fn output(descriptor: u64) -> u64 {
    descriptor & 0x0000_ffff_ffff_f000
}

/// A range that is mapped in one piece with the same attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// First input address.
    pub input: u64,
    /// First output address.
    pub output: u64,
    /// Bytes.
    pub size: u64,
    /// Normal memory; known of stage 2 only.
    pub normal: bool,
    /// Instructions may be fetched.
    pub executable: bool,
    /// Normal memory that is not cacheable; known of EL2's own stage 1 only, by the index in MAIR_EL2 that EL2 has for it.
    pub uncached: bool,
}

/// The index in MAIR_EL2 that EL2 has for memory that is not cacheable (`boot.s`).
const UNCACHED: u64 = 2;

impl Leaf {
    fn new(stage: Stage, descriptor: u64, input: u64, level: u8) -> Self {
        let size = entry_size(level);
        let (normal, executable) = match stage {
            Stage::El2 => (true, descriptor >> 54 & 1 == 0),
            // XN[1:0] at bits 54 and 53: 0b10 is execute never.
            Stage::Guest => (descriptor >> 4 & 3 != 0, descriptor >> 53 & 3 != 2),
        };
        Self {
            input,
            output: output(descriptor) & !(size - 1),
            size,
            normal,
            executable,
            uncached: matches!(stage, Stage::El2) && descriptor >> 2 & 7 == UNCACHED,
        }
    }

    /// The output address of an input address in it.
    fn translate(&self, address: u64) -> u64 {
        address - self.input + self.output
    }
}

/// A set of tables that a TTBR0_EL2 or VTTBR_EL2 names.
#[derive(Debug)]
pub struct Root {
    /// Its stage of translation.
    pub stage: Stage,
    /// Physical address of the first page.
    pub pa: u64,
    /// TCR_EL2 or VTCR_EL2 that it goes with.
    pub control: u64,
    level: u8,
    pages: u64,
    /// A bit for each CPU whose TLB may hold entries of it.
    pub live: u64,
    /// VMIDs that it was entered with.
    pub vmids: Vec<u16>,
    /// Whether a descriptor has changed since the last walk.
    pub changed: bool,
    /// Whether its mappings were looked at since a descriptor has changed.
    pub checked: bool,
    /// Pages of its tables.
    pub tables: Vec<u64>,
    inputs: Vec<Leaf>,
    outputs: Vec<Leaf>,
    /// Lines in what it maps that EL2 has written since the last look.
    pub suspects: Vec<u64>,
    /// Time at which the last clean of executable memory in what it maps was complete.
    pub content: u64,
}

impl Root {
    /// Whether it maps anything.
    pub const fn maps(&self) -> bool {
        !self.inputs.is_empty()
    }

    /// Returns the root at `pa` with its control register, or the reason why it can't be followed.
    pub fn new(stage: Stage, pa: u64, control: u64) -> Result<Self, &'static str> {
        if control >> 14 & 3 != 0 {
            return Err("the granule is not 4 KiB");
        }
        let bits = 64 - (control & 63);
        if !(21..=48).contains(&bits) {
            return Err("the size of input addresses is out of bounds");
        }
        let level = match (stage, control >> 6 & 3) {
            (Stage::El2, _) => 4 - (bits - 12).div_ceil(9),
            (Stage::Guest, 0) => 2,
            (Stage::Guest, 1) => 1,
            (Stage::Guest, 2) => 0,
            (Stage::Guest, _) => 3,
        } as u8;
        let pages = (1 << bits) / entry_size(level) / WORDS as u64;
        if pages > 16 {
            return Err("more than 16 root tables lie behind each other");
        }
        Ok(Self {
            stage,
            pa,
            control,
            level,
            pages: pages.max(1),
            live: 0,
            vmids: Vec::new(),
            changed: true,
            checked: false,
            tables: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            suspects: Vec::new(),
            content: 0,
        })
    }

    /// The output address of an input address.
    pub fn translate(&self, address: u64) -> Option<u64> {
        find(&self.inputs, address, |leaf| leaf.input).map(|leaf| leaf.translate(address))
    }

    /// Whether an input address is mapped as memory that is not cacheable.
    pub fn is_uncached(&self, address: u64) -> bool {
        find(&self.inputs, address, |leaf| leaf.input).is_some_and(|leaf| leaf.uncached)
    }

    /// The range that maps a physical address.
    pub fn mapping(&self, pa: u64) -> Option<&Leaf> {
        find(&self.outputs, pa, |leaf| leaf.output)
    }

    /// All that it maps, in the order of output addresses.
    pub fn mappings(&self) -> &[Leaf] {
        &self.outputs
    }
}

/// The leaf around an address, in leaves that are sorted by `start`.
fn find(leaves: &[Leaf], address: u64, start: impl Fn(&Leaf) -> u64) -> Option<&Leaf> {
    let after = leaves.partition_point(|leaf| start(leaf) <= address);
    // Several inputs may have one output, so ranges of outputs can lie inside of each other.
    let mut before = leaves[..after].iter().rev().take(8);
    before.find(|leaf| address - start(leaf) < leaf.size)
}

/// Reads a page of physical memory, if the CPU at work can.
pub type Read<'a> = &'a dyn Fn(u64) -> Option<Vec<u8>>;

/// Follows the tables of `root` anew; a page of them that is not known and can't be read.
pub fn walk(root: &mut Root, memory: &mut Memory, read: Read<'_>) -> Result<(), u64> {
    let mut walk = Walk {
        stage: root.stage,
        root: root.pa,
        leaves: Vec::new(),
        tables: Vec::new(),
        unknown: None,
    };
    for page in 0..root.pages {
        let base = page * WORDS as u64 * entry_size(root.level);
        walk.table(memory, read, root.pa + page * PAGE, root.level, base);
    }
    for pa in &root.tables {
        if !walk.tables.contains(pa) {
            leave(memory, *pa, root.pa);
        }
    }
    root.tables = walk.tables;
    root.inputs.clone_from(&walk.leaves);
    root.outputs = walk.leaves;
    root.outputs.sort_by_key(|leaf| leaf.output);
    root.changed = false;
    walk.unknown.map_or(Ok(()), Err)
}

/// A page is no longer a table of the root.
fn leave(memory: &mut Memory, pa: u64, root: u64) {
    let Some(page) = memory.get_mut(pa) else {
        return;
    };
    if let Some(table) = &mut page.table {
        table.roots.retain(|known| *known != root);
        if table.roots.is_empty() {
            page.table = None;
        }
    }
}

struct Walk {
    stage: Stage,
    root: u64,
    leaves: Vec<Leaf>,
    tables: Vec<u64>,
    unknown: Option<u64>,
}

impl Walk {
    fn table(&mut self, memory: &mut Memory, read: Read<'_>, pa: u64, level: u8, base: u64) {
        self.tables.push(pa);
        let page = memory.page(pa);
        let table = page.table.get_or_insert_with(|| {
            Box::new(Table {
                stage: self.stage,
                level,
                base,
                roots: Vec::new(),
            })
        });
        (table.stage, table.level, table.base) = (self.stage, level, base);
        if !table.roots.contains(&self.root) {
            table.roots.push(self.root);
        }
        if (0..WORDS).any(|index| page.word(index).is_none()) {
            match read(pa) {
                Some(bytes) => learn(page, &bytes),
                None => self.unknown = Some(pa),
            }
        }
        let words: Vec<u64> = (0..WORDS)
            .map(|index| page.word(index).unwrap_or(0))
            .collect();
        for (index, descriptor) in words.into_iter().enumerate() {
            let input = base + index as u64 * entry_size(level);
            match kind(descriptor, level) {
                Kind::Invalid => {}
                Kind::Table => self.table(memory, read, output(descriptor), level + 1, input),
                Kind::Leaf => self.leaf(Leaf::new(self.stage, descriptor, input, level)),
            }
        }
    }

    fn leaf(&mut self, leaf: Leaf) {
        if let Some(last) = self.leaves.last_mut() {
            let joins = last.input + last.size == leaf.input
                && last.output + last.size == leaf.output
                && (last.normal, last.executable, last.uncached)
                    == (leaf.normal, leaf.executable, leaf.uncached);
            if joins {
                last.size += leaf.size;
                return;
            }
        }
        self.leaves.push(leaf);
    }
}

/// Takes over the words of memory whose values are not known.
fn learn(page: &mut crate::memory::Page, bytes: &[u8]) {
    for (index, word) in bytes.chunks_exact(8).enumerate().take(WORDS) {
        if page.word(index).is_none() {
            let mut value = [0; 8];
            value.copy_from_slice(word);
            page.set_word(index, u64::from_le_bytes(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 39 bits, 4 KiB.
    const TCR: u64 = 25;
    const VTCR: u64 = 25 | 1 << 6;

    fn table(memory: &mut Memory, pa: u64, entries: &[(usize, u64)]) {
        let page = memory.page(pa);
        for index in 0..WORDS {
            page.set_word(index, 0);
        }
        for (index, value) in entries {
            page.set_word(*index, *value);
        }
    }

    #[test]
    fn a_walk_finds_leaves_and_tables() {
        let mut memory = Memory::default();
        table(&mut memory, 0x1000, &[(0, 0x2003), (1, 0x8000_0001)]);
        table(&mut memory, 0x2000, &[(4, 0x3003), (5, 0x20_0001)]);
        table(
            &mut memory,
            0x3000,
            &[(0, 0x9003), (1, 0xa003), (3, 0xf003), (4, 0x1001)],
        );
        let mut root = Root::new(Stage::El2, 0x1000, TCR).unwrap();
        assert_eq!(walk(&mut root, &mut memory, &|_| None), Ok(()));
        assert_eq!(root.tables, [0x1000, 0x2000, 0x3000]);
        assert_eq!(root.translate(0x80_1008), Some(0xa008));
        assert_eq!(root.translate(0x80_2000), None);
        assert_eq!(root.translate(0x80_4000), None, "level 3 has no blocks");
        assert_eq!(root.translate(0xa0_0000), Some(0x20_0000));
        assert_eq!(root.translate(0x4000_1234), Some(0x8000_1234));
        assert_eq!(root.mapping(0xa000).map(|leaf| leaf.size), Some(0x2000));
        let hangs = memory.get(0x3000).unwrap().table.clone().unwrap();
        assert_eq!((hangs.level, hangs.base), (3, 0x80_0000));
        assert_eq!(hangs.range(3), (0x80_3000, 0x1000));

        memory.page(0x2000).set_word(4, 0);
        assert_eq!(walk(&mut root, &mut memory, &|_| None), Ok(()));
        assert_eq!(root.translate(0x80_1008), None);
        assert!(memory.get(0x3000).unwrap().table.is_none());
    }

    #[test]
    fn unknown_words_are_read_and_known_ones_are_not() {
        let mut memory = Memory::default();
        memory.page(0x1000).set_word(0, 0x8000_0001);
        let mut root = Root::new(Stage::Guest, 0x1000, VTCR).unwrap();
        assert_eq!(walk(&mut root, &mut memory, &|_| None), Err(0x1000));
        let read = |pa| (pa == 0x1000).then(|| vec![0xff; 4096]);
        assert_eq!(walk(&mut root, &mut memory, &read), Err(0xffff_ffff_f000));
        assert_eq!(root.translate(0x10), Some(0x8000_0010));
    }

    #[test]
    fn roots_have_the_size_that_the_register_says() {
        let size = |stage, control| {
            let root = Root::new(stage, 0, control).unwrap();
            (root.level, root.pages)
        };
        assert_eq!(size(Stage::El2, TCR), (1, 1));
        assert_eq!(size(Stage::El2, 16), (0, 1));
        assert_eq!(size(Stage::Guest, VTCR), (1, 1));
        // 40 bits from level 1: two tables behind each other.
        assert_eq!(size(Stage::Guest, 24 | 1 << 6), (1, 2));
        assert_eq!(size(Stage::Guest, 32), (2, 4));
        assert!(Root::new(Stage::El2, 0, TCR | 1 << 14).is_err());
    }

    #[test]
    fn attributes_of_stage_2_are_read() {
        let leaf = |descriptor| Leaf::new(Stage::Guest, descriptor, 0, 3);
        assert!(leaf(0x7ff).normal && leaf(0x7ff).executable);
        assert!(!leaf(0x7ff & !0x30).normal);
        assert!(!leaf(0x7ff | 1 << 54).executable);
    }
}

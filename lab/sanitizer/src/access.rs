//! Loads and stores of EL2, and what they do to descriptors.

use bulkhead_plugin::api::Access;

use crate::cpu::{Posted, Unseen};
use crate::decode::{Entries, Register};
use crate::memory::{CacheLine, LINE, PAGE, Store, line_index};
use crate::model::{At, Fresh, Machine, Model, Stale};
use crate::tables::{Kind, Stage, Table, kind, output};
use bulkhead_plugin::sanitizer::{Active, Rule};

/// Bits of a leaf that may change without break-before-make: permissions, access flag, dirty bit, and
/// those for software.
const FREE_LEAF: u64 = 3 << 6 | 1 << 10 | 1 << 51 | 3 << 53 | 15 << 55;
/// Bits of a table descriptor that may: permissions of the tables below, and ignored ones.
const FREE_TABLE: u64 = 0xfff << 51 | 0x3ff << 2;

/// Where the maps of service threads begin in EL2's address space (`core::virtio::pages`).
const SHARED: u64 = 0x20_4000_0000;

/// How a store reaches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through the caches.
    Cached,
    /// Past them, with the MMU off.
    Past,
    /// Past them, by the attributes of the mapping.
    Uncached,
    /// Through the caches, to memory that a VM shares with a device: its driver looks at it through the caches, too, so that
    /// nothing is to be cleaned.
    Shared,
}

impl Model {
    /// Whether a rule asks now what this CPU loads; if not, [`Self::access`] needs its stores alone.
    pub fn heeds_loads(&self, cpu: usize) -> bool {
        let cpu = &self.cpus[cpu];
        let memory = !cpu.translates()
            || self.past != 0
            || cpu.parent.is_some()
            || cpu.acknowledged.is_some()
            || !self.fresh.is_empty()
            || !cpu.is_quiet();
        memory || self.iar.is_some() || cpu.posted.is_some()
    }

    /// EL2 has loaded or stored.
    pub fn access(&mut self, at: At, va: u64, access: &Access, machine: &dyn Machine) {
        self.check_code(at, machine);
        if !self.fresh.is_empty() || !self.cpus[at.cpu].is_quiet() {
            self.check_use(at, va);
        }
        let Some(pa) = access.physical else { return };
        match (access.device, access.store) {
            (true, true) => {
                self.device_store(at, pa, access);
                if let Some(frame) = self.active_at(pa) {
                    self.cpus[at.cpu].posted = Some(Posted {
                        frame: frame.base,
                        pc: at.pc,
                        read_back: false,
                    });
                }
            }
            (true, false) => {
                if self.iar == Some(pa) {
                    let word = access
                        .bytes
                        .first_chunk()
                        .copied()
                        .map_or(0, u32::from_le_bytes);
                    self.acknowledge(at, word.into());
                }
                if let Some(posted) = &mut self.cpus[at.cpu].posted
                    && let Some(frame) = self.active.iter().find(|one| one.base == posted.frame)
                {
                    posted.read_back |= pa.wrapping_sub(frame.base) < frame.size;
                }
            }
            (false, true) => {
                let way = self.way(at, va);
                self.store(at, (pa, way), &access.bytes[..access.size], machine);
            }
            (false, false) => self.load(at, pa),
        }
    }

    /// The frame in which `pa` is a register that sets or clears active states.
    fn active_at(&self, pa: u64) -> Option<Active> {
        let is = |frame: &&Active| pa.wrapping_sub(frame.base + frame.offset) < 0x100;
        self.active.iter().find(is).copied()
    }

    /// Whether EL2 may count on what translates `va` now.
    fn check_use(&mut self, at: At, va: u64) {
        let own = |register| {
            matches!(
                register,
                Register::Ttbr0 | Register::Tcr | Register::Mair | Register::Sctlr
            )
        };
        let cpu = &mut self.cpus[at.cpu];
        let translates = cpu.translates();
        // With the MMU off only the write that turns it on or off matters.
        let relied = |pending: &crate::cpu::Pending| {
            own(pending.register) && (translates || pending.register == Register::Sctlr)
        };
        if let Some(index) = cpu.pending.iter().position(relied) {
            let pending = cpu.pending.remove(index);
            let what = format!(
                "accesses {va:#x} after the write of {} at pc {:#x} without ISB",
                pending.register.name(),
                pending.pc
            );
            self.report(at, Rule::RegisterWrite, what);
        }
        if !translates {
            return;
        }
        let cpu = &mut self.cpus[at.cpu];
        let covers = |issued: &crate::cpu::Issued| match issued.tlbi.entries {
            Entries::AllEl2 => true,
            Entries::AddressEl2 { .. } => address(issued.xt) == va & !(PAGE - 1),
            _ => false,
        };
        if let Some(index) = cpu.tlbis.iter().position(covers) {
            let issued = &mut cpu.tlbis[index];
            let lacks = if issued.complete { "ISB" } else { "DSB" };
            let (pc, what) = (
                issued.pc,
                format!(
                    "no {lacks} follows before {va:#x} is accessed at pc {:#x}",
                    at.pc
                ),
            );
            if issued.complete {
                cpu.tlbis.remove(index);
            }
            self.report(At { pc, ..at }, Rule::TlbiCompletion, what);
        }
        let unsafe_yet = |fresh: &Fresh| {
            let own = usize::from(fresh.store.cpu) == at.cpu;
            fresh.stage == Stage::El2
                && va.wrapping_sub(fresh.base) < fresh.size
                && fresh.live >> at.cpu & 1 == 1
                && (own || !fresh.visible)
        };
        if let Some(index) = self.fresh.iter().position(unsafe_yet) {
            let fresh = self.fresh.remove(index);
            let lacks = if fresh.visible { "ISB" } else { "DSB" };
            let what = format!(
                "uses {va:#x} without {lacks} since its descriptor was stored at pc {:#x}",
                fresh.store.pc
            );
            self.report(at, Rule::NewEntry, what);
        }
        self.check_former(at, va);
    }

    /// After a change of TTBR0_EL2 the TLB may still translate as before.
    fn check_former(&mut self, at: At, va: u64) {
        let Some(former) = self.cpus[at.cpu].former_root else {
            return;
        };
        let own = self.cpus[at.cpu].root();
        let translated = |pa| {
            let find = |root: &&crate::tables::Root| (root.stage, root.pa) == (Stage::El2, pa);
            self.roots.iter().find(find).and_then(|r| r.translate(va))
        };
        if let Some(before) = translated(former)
            && translated(own) != Some(before)
        {
            let what = format!(
                "accesses {va:#x}, which the map at {former:#x} translated otherwise; TTBR0_EL2 has \
                 changed, but no TLBI ALLE2 was completed"
            );
            self.report(at, Rule::OldEntries, what);
        }
    }

    fn load(&mut self, at: At, pa: u64) {
        if self.cpus[at.cpu].acknowledged.is_some()
            && let Some(store) = self.memory.line(pa).store()
        {
            self.check_acknowledged(at, pa, store);
        }
        let cpu = &self.cpus[at.cpu];
        let translates = cpu.translates();
        if translates && self.past == 0 && cpu.parent.is_none() {
            return;
        }
        let line = self.memory.line(pa);
        let Some(store) = line.store() else { return };
        let other = usize::from(store.cpu) != at.cpu;
        match line {
            CacheLine::Dirty(_) | CacheLine::Cleaning { .. } if !translates => {
                let what = format!(
                    "reads {pa:#x} with its caches off; it was written through a cache at pc {:#x} and not \
                     cleaned",
                    store.pc
                );
                self.report(at, Rule::PastCaches, what);
            }
            CacheLine::Past(_) | CacheLine::Dropping { .. } if translates => {
                let what = format!(
                    "reads {pa:#x} through the cache; it was written with caches off at pc {:#x}, and the \
                     cache not invalidated",
                    store.pc
                );
                self.report(at, Rule::PastCaches, what);
            }
            _ if other => self.check_parent(at, pa, store),
            _ => {}
        }
    }

    /// Checks that a store from before the start of this CPU was complete then.
    fn check_parent(&mut self, at: At, pa: u64, store: Store) {
        let parent = self.cpus[at.cpu].parent;
        let missed = |parent: crate::cpu::Parent| {
            parent.cpu == store.cpu && (parent.complete..=parent.at).contains(&store.at)
        };
        if parent.is_some_and(missed) {
            let what = format!(
                "this is read at {pa:#x} by the pCPU that it started next, without DSB before CPU_ON"
            );
            self.report(Self::place_of(store), Rule::Signal, what);
        }
    }

    /// How a store to `va` reaches memory.
    fn way(&self, at: At, va: u64) -> Way {
        let cpu = &self.cpus[at.cpu];
        if !cpu.translates() {
            return Way::Past;
        }
        if va >= SHARED {
            return Way::Shared;
        }
        let own = (Stage::El2, cpu.root());
        let mut roots = self.roots.iter();
        match roots.find(|root| (root.stage, root.pa) == own) {
            Some(root) if root.is_uncached(va) => Way::Uncached,
            _ => Way::Cached,
        }
    }

    /// A store to the RAM of the board.
    pub(crate) fn store(
        &mut self,
        at: At,
        (pa, way): (u64, Way),
        bytes: &[u8],
        machine: &dyn Machine,
    ) {
        let store = self.cpus[at.cpu].store(at.cpu, at.pc);
        if !self.stale.is_empty() {
            self.check_reuse(at, pa);
        }
        if self.cpus.len() > 1 && self.is_shared(at.cpu, pa) {
            let unseen = Some(Unseen { pa, pc: at.pc });
            let cpu = &mut self.cpus[at.cpu];
            (cpu.unseen, cpu.unordered) = (unseen, unseen);
        }
        let end = pa + bytes.len() as u64;
        let mut line = pa & !(LINE - 1);
        while line < end {
            self.write_line(at, (line, way), store);
            line += LINE;
        }
        // Memory is zeroed by whole lines.
        if pa.is_multiple_of(LINE)
            && bytes.len() as u64 == LINE
            && bytes.iter().all(|byte| *byte == 0)
            && self.memory.page(pa).zero_line(line_index(pa))
        {
            return;
        }
        let mut word = pa & !7;
        while word < end {
            let page = self.memory.page(word);
            let index = (word % PAGE / 8) as usize;
            let old = page.word(index);
            if let Some(new) = merge(old, word, pa, bytes) {
                page.set_word(index, new);
                if page.table.is_some() && old != Some(new) {
                    self.change(at, word, old.unwrap_or(0), new, store, machine);
                }
            }
            word += 8;
        }
    }

    fn write_line(&mut self, at: At, (pa, way): (u64, Way), store: Store) {
        let through = match way {
            Way::Cached => true,
            Way::Past => false,
            Way::Shared => return,
            Way::Uncached => return self.write_uncached(at, pa),
        };
        let new = if through {
            CacheLine::Dirty(store)
        } else {
            CacheLine::Past(store)
        };
        let old = self.set_line(pa, new);
        match (old, through) {
            (CacheLine::Past(before) | CacheLine::Dropping { store: before, .. }, true) => {
                let what = format!(
                    "writes {pa:#x} through the cache; it was written with caches off at pc {:#x}, and the \
                     cache not invalidated",
                    before.pc
                );
                self.report(at, Rule::PastCaches, what);
            }
            (CacheLine::Dirty(before) | CacheLine::Cleaning { store: before, .. }, false) => {
                let what = format!(
                    "writes {pa:#x} with its caches off; a cache may still write back what was stored at \
                     pc {:#x}",
                    before.pc
                );
                self.report(at, Rule::PastCaches, what);
            }
            _ => {}
        }
        if !matches!(old, CacheLine::Dirty(_)) {
            let maps = |root: &&mut crate::tables::Root| {
                root.stage == Stage::Guest && root.mapping(pa).is_some_and(|leaf| leaf.normal)
            };
            for root in self.roots.iter_mut().filter(maps) {
                root.suspects.push(pa);
            }
        }
    }

    /// What is written past the caches by its attributes is where a guest looks for it, unless a cache has the line, too.
    fn write_uncached(&mut self, at: At, pa: u64) {
        if let CacheLine::Dirty(before) | CacheLine::Cleaning { store: before, .. } =
            self.memory.line(pa)
        {
            let what = format!(
                "writes {pa:#x}, mapped as not cacheable; a cache may still write back what was stored at pc {:#x}",
                before.pc
            );
            self.report(at, Rule::PastCaches, what);
        }
    }

    /// Memory that was taken from a guest is written while TLBs may still have its mapping. What EL2 has
    /// no window on any more may well be in use by it elsewhere.
    fn check_reuse(&mut self, at: At, pa: u64) {
        let reused = self.stale.iter().find(|(_, stale)| {
            let start = output(stale.old) & !(stale.size - 1);
            let taken = stale.stage == Stage::Guest && !stale.table && !stale.narrowed;
            taken && pa.wrapping_sub(start) < stale.size
        });
        if let Some((_, stale)) = reused {
            let what = format!(
                "writes {pa:#x}, whose mapping at {} {:#x} was dropped at pc {:#x} but may still be in TLBs",
                stale.stage.input(),
                stale.base,
                stale.store.pc
            );
            self.report(at, Rule::StaleEntry, what);
        }
    }

    /// A descriptor at the physical address `location` has changed.
    fn change(
        &mut self,
        at: At,
        location: u64,
        old: u64,
        new: u64,
        store: Store,
        machine: &dyn Machine,
    ) {
        let Some(table) = self
            .memory
            .get(location)
            .and_then(|page| page.table.clone())
        else {
            return;
        };
        let mut live = 0;
        let mut vmids = Vec::new();
        let mut changed = Vec::new();
        for (index, root) in self.roots.iter_mut().enumerate() {
            if root.stage == table.stage && table.roots.contains(&root.pa) {
                (root.changed, root.checked) = (true, false);
                live |= root.live;
                vmids.extend_from_slice(&root.vmids);
                changed.push(index);
            }
        }
        if live == 0 {
            return;
        }
        let entry = Entry {
            table: &table,
            location,
            old,
            new,
            live,
            store,
        };
        let (was, is) = (kind(old, table.level), kind(new, table.level));
        match (was, is) {
            (Kind::Invalid, Kind::Invalid) => {}
            (Kind::Invalid, _) => {
                if let Some(stale) = self.stale.remove(&location) {
                    let what = format!(
                        "{entry} is valid again, but what was there before pc {:#x} dropped it may still \
                         be in TLBs",
                        stale.store.pc
                    );
                    self.report(at, Rule::BreakBeforeMake, what);
                }
                self.fresh.push(entry.fresh());
            }
            (_, Kind::Invalid) => drop(self.stale.insert(location, entry.stale(vmids, false))),
            _ if was != is || (old ^ new) & !free(was) != 0 => {
                let what = format!("{entry} was valid all the time, and TLBs may hold both");
                self.report(at, Rule::BreakBeforeMake, what);
            }
            _ if narrows(table.stage, was, old, new) => {
                let stale = entry.stale(vmids, true);
                self.stale.entry(location).or_insert(stale);
            }
            _ => {}
        }
        // Tables that hang below are to be known before they are written.
        if is == Kind::Table {
            for index in changed {
                self.walk(at, index, machine);
            }
        }
    }
}

const fn free(kind: Kind) -> u64 {
    match kind {
        Kind::Table => FREE_TABLE,
        _ => FREE_LEAF,
    }
}

/// Whether rights are taken away, so that old copies matter.
fn narrows(stage: Stage, kind: Kind, old: u64, new: u64) -> bool {
    const ACCESSED: u64 = 1 << 10;
    let (gained, lost) = (new & !old, old & !new);
    match (kind, stage) {
        (Kind::Table, _) => gained >> 59 & 15 != 0,
        // AP[2] is read-only, XN is execute never.
        (_, Stage::El2) => gained & (1 << 7 | 1 << 54) != 0 || lost & ACCESSED != 0,
        // S2AP grants; XN[1:0] at bits 54 and 53.
        (_, Stage::Guest) => lost & (3 << 6 | ACCESSED) != 0 || (old ^ new) & 3 << 53 != 0,
    }
}

/// The page that the argument of a TLBI by address names.
pub(crate) fn address(xt: u64) -> u64 {
    (xt & 0xfff_ffff_ffff) << 12
}

/// The word at `word` after `bytes` were stored at `pa`; nothing if a part of it is unknown.
fn merge(old: Option<u64>, word: u64, pa: u64, bytes: &[u8]) -> Option<u64> {
    if word >= pa
        && let Some(all) = bytes.get((word - pa) as usize..)
        && let Some(whole) = all.first_chunk()
    {
        return Some(u64::from_le_bytes(*whole));
    }
    let mut value = old?.to_le_bytes();
    for (n, byte) in value.iter_mut().enumerate() {
        let at = word + n as u64;
        if let Some(stored) = at.checked_sub(pa).and_then(|n| bytes.get(n as usize)) {
            *byte = *stored;
        }
    }
    Some(u64::from_le_bytes(value))
}

/// A descriptor that changes.
struct Entry<'a> {
    table: &'a Table,
    location: u64,
    old: u64,
    new: u64,
    live: u64,
    store: Store,
}

impl Entry<'_> {
    fn range(&self) -> (u64, u64) {
        self.table.range((self.location % PAGE / 8) as usize)
    }

    fn fresh(&self) -> Fresh {
        let (base, size) = self.range();
        Fresh {
            stage: self.table.stage,
            store: self.store,
            base,
            size,
            live: self.live,
            visible: false,
        }
    }

    fn stale(&self, vmids: Vec<u16>, narrowed: bool) -> Stale {
        let (base, size) = self.range();
        Stale {
            stage: self.table.stage,
            old: self.old,
            table: kind(self.old, self.table.level) == Kind::Table,
            base,
            size,
            store: self.store,
            need: self.live,
            stage2_gone: 0,
            vmids,
            narrowed,
        }
    }
}

impl std::fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (stage, base) = (self.table.stage.input(), self.range().0);
        let (location, old, new) = (self.location, self.old, self.new);
        write!(
            f,
            "the descriptor at {location:#x} for {stage} {base:#x}, {old:#x} to {new:#x},"
        )
    }
}

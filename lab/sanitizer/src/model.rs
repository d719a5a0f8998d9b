//! The sanitizer's model of the machine, fed with what EL2 executes.
//!
//! The rules are spread over the modules: [`crate::access`] has loads, stores and descriptors,
//! [`crate::order`] barriers, maintenance and registers, [`crate::enter`] the way into guests.

use std::collections::{BTreeMap, BTreeSet};

use crate::cpu::{Cpu, MOST, Parent, Start};
use crate::memory::{CacheLine, Memory, PAGE, Store, line_index};
use crate::tables::{self, Leaf, Root, Stage};
use bulkhead_plugin::sanitizer::{Active, Config, Rule};

/// The CPU that does something, and the instruction.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// Number of the CPU in the model.
    pub cpu: usize,
    /// Address of the instruction.
    pub pc: u64,
}

/// State of the CPU at work that the model can ask for.
pub trait Machine {
    /// A page of memory, by the virtual address of its first byte.
    fn page(&self, address: u64) -> Option<Vec<u8>>;
    /// A general-purpose register, 0 to 30.
    fn x(&self, number: u8) -> u64;
    /// SPSR_EL2
    fn spsr(&self) -> u64;
    /// ESR_EL2
    fn esr(&self) -> u64;
    /// VMPIDR_EL2
    fn vmpidr(&self) -> u64;
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The rule.
    pub rule: Rule,
    /// MPIDR_EL1 of the CPU.
    pub cpu: u64,
    /// The instruction to look at.
    pub pc: u64,
    /// Description of the defect.
    pub what: String,
}

/// An entry that became valid, which its writer has not synchronised.
#[derive(Clone, Copy, Debug)]
pub struct Fresh {
    /// Its stage of translation.
    pub stage: Stage,
    /// Store that wrote it.
    pub store: Store,
    /// First input address.
    pub base: u64,
    /// Bytes.
    pub size: u64,
    /// CPUs that may use it.
    pub live: u64,
    /// A DSB has made it visible to walks.
    pub visible: bool,
}

/// An entry that was dropped or narrowed, and may still be in TLBs.
#[derive(Clone, Debug)]
pub struct Stale {
    /// Its stage of translation.
    pub stage: Stage,
    /// Its old value.
    pub old: u64,
    /// It pointed at a table.
    pub table: bool,
    /// First input address.
    pub base: u64,
    /// Bytes.
    pub size: u64,
    /// Store that wrote it.
    pub store: Store,
    /// CPUs whose TLB may have it.
    pub need: u64,
    /// CPUs where the part of stage 2 alone is gone.
    pub stage2_gone: u64,
    /// VMIDs that it was used with.
    pub vmids: Vec<u16>,
    /// It is still valid, with fewer rights.
    pub narrowed: bool,
}

/// Where a vCPU was last entered.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// The CPU.
    pub cpu: usize,
    /// Its DSBs by then.
    pub barriers: u64,
}

/// The state of everything.
#[derive(Debug, Default)]
pub struct Model {
    pub(crate) memory: Memory,
    pub(crate) roots: Vec<Root>,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) fresh: Vec<Fresh>,
    /// By the physical address of the entry.
    pub(crate) stale: BTreeMap<u64, Stale>,
    /// Affinities of CPUs that are being started.
    pub(crate) starting: Vec<(u64, Parent)>,
    /// Counts completed maintenance of caches.
    pub(crate) sequence: u64,
    /// Generation of EL2's maps.
    pub(crate) maps: u64,
    /// Lines that were written past the caches.
    pub(crate) past: usize,
    /// Where each vCPU was last entered, by its VMID and VMPIDR_EL2.
    pub(crate) ran: BTreeMap<(u16, u64), Ran>,
    pub(crate) sgir: Option<u64>,
    pub(crate) iar: Option<u64>,
    pub(crate) active: Vec<Active>,
    told: BTreeSet<(Rule, u64)>,
    broken: Vec<Broken>,
    pub(crate) entered: Vec<u16>,
    pub(crate) seen: BTreeSet<u16>,
}

impl Model {
    /// A machine that has not started.
    pub fn new(config: &Config) -> Self {
        Self {
            sgir: config.sgir,
            iar: config.iar,
            active: config.active.clone(),
            // Pages start with generation 0, which nothing is known of.
            maps: 1,
            ..Self::default()
        }
    }

    /// A CPU that is seen at EL2 for the first time since its reset; its number. `known` is the number
    /// that it had before the reset.
    pub fn start_cpu(&mut self, start: Start, known: Option<usize>) -> usize {
        const AFFINITY: u64 = 0xff_00ff_ffff;
        let mut cpu = Cpu::new(start);
        let same = |(target, _): &(u64, Parent)| target & AFFINITY == start.mpidr & AFFINITY;
        let starter = self.starting.iter().position(same);
        cpu.parent = starter.map(|index| self.starting.swap_remove(index).1);
        self.maps += 1;
        let index = known.unwrap_or(self.cpus.len()).min(MOST - 1);
        if let Some(place) = self.cpus.get_mut(index) {
            *place = cpu;
        } else {
            self.cpus.push(cpu);
        }
        index
    }

    /// The number of the CPU with this MPIDR_EL1, if it was seen before.
    pub fn number(&self, mpidr: u64) -> Option<usize> {
        self.cpus.iter().position(|cpu| cpu.now.mpidr == mpidr)
    }

    /// Whether there is something to take.
    pub fn has_news(&self) -> bool {
        !self.broken.is_empty() || !self.entered.is_empty()
    }

    /// Rules that were broken since the last call.
    pub fn take_broken(&mut self) -> Vec<Broken> {
        std::mem::take(&mut self.broken)
    }

    /// VMIDs that were entered for the first time since the last call.
    pub fn take_entered(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.entered)
    }

    /// Notes that a rule was broken; once for each rule and instruction.
    pub(crate) fn report(&mut self, at: At, rule: Rule, what: String) {
        if self.told.insert((rule, at.pc)) {
            let cpu = self.cpus[at.cpu].now.mpidr;
            self.broken.push(Broken {
                rule,
                cpu,
                pc: at.pc,
                what,
            });
        }
    }

    /// Returns the place of a store.
    pub(crate) fn place_of(store: Store) -> At {
        At {
            cpu: usize::from(store.cpu),
            pc: store.pc,
        }
    }

    /// Whether a store is complete as far as the CPU `cpu` is concerned.
    pub(crate) fn is_complete(&self, store: Store, cpu: usize) -> bool {
        use crate::decode::Scope;
        let writer = usize::from(store.cpu);
        let scope = if writer == cpu {
            Scope::Own
        } else {
            Scope::Shared
        };
        self.cpus[writer].has_completed(store, scope)
    }

    /// Sets where a line stands; where it stood.
    pub(crate) fn set_line(&mut self, pa: u64, line: CacheLine) -> CacheLine {
        let past = |line| matches!(line, CacheLine::Past(_) | CacheLine::Dropping { .. });
        let old = self.memory.page(pa).set_line(line_index(pa), line);
        self.past = self.past + usize::from(past(line)) - usize::from(past(old));
        old
    }

    /// Index of a root; made if it is new.
    pub(crate) fn root(&mut self, at: At, stage: Stage, pa: u64, control: u64) -> Option<usize> {
        let known = self
            .roots
            .iter()
            .position(|root| (root.stage, root.pa) == (stage, pa));
        if let Some(index) = known
            && self.roots[index].control == control
        {
            return known;
        }
        match Root::new(stage, pa, control) {
            Ok(mut root) => match known {
                Some(index) => {
                    root.live = self.roots[index].live;
                    root.vmids.clone_from(&self.roots[index].vmids);
                    root.tables = std::mem::take(&mut self.roots[index].tables);
                    self.roots[index] = root;
                    known
                }
                None => {
                    self.roots.push(root);
                    Some(self.roots.len() - 1)
                }
            },
            Err(why) => {
                self.report(
                    at,
                    Rule::Unfollowed,
                    format!("the tables at {pa:#x}: {why}"),
                );
                None
            }
        }
    }

    /// Follows the tables of a root if one of them has changed.
    pub(crate) fn walk(&mut self, at: At, index: usize, machine: &dyn Machine) {
        if !self.roots[index].changed {
            return;
        }
        if self.roots[index].stage == Stage::El2 {
            self.maps += 1;
        }
        let cpu = &self.cpus[at.cpu];
        // With the MMU off addresses are physical; with it on the page must be mapped somewhere.
        let own = cpu.root();
        let find = |root: &&Root| (root.stage, root.pa) == (Stage::El2, own);
        let seen: Option<Vec<Leaf>> = cpu.translates().then(|| {
            let root = self.roots.iter().find(find);
            root.map_or(Vec::new(), |root| root.mappings().to_vec())
        });
        let read = |pa: u64| match &seen {
            None => machine.page(pa),
            Some(leaves) => {
                let leaf = leaves
                    .iter()
                    .find(|leaf| pa.wrapping_sub(leaf.output) < leaf.size)?;
                machine.page(pa - leaf.output + leaf.input)
            }
        };
        if let Err(pa) = tables::walk(&mut self.roots[index], &mut self.memory, &read) {
            let what = format!("the table at {pa:#x} was not written by EL2 and can't be read");
            self.report(at, Rule::Unfollowed, what);
        }
    }

    /// The physical address behind an address of EL2.
    pub(crate) fn translate(&mut self, at: At, va: u64, machine: &dyn Machine) -> Option<u64> {
        let cpu = &self.cpus[at.cpu];
        if !cpu.translates() {
            return Some(va);
        }
        let (pa, tcr) = (cpu.root(), cpu.now.tcr);
        let index = self.root(at, Stage::El2, pa, tcr)?;
        self.walk(at, index, machine);
        self.roots[index].translate(va)
    }

    /// Whether another CPU has a physical address in its map.
    pub(crate) fn is_shared(&mut self, cpu: usize, pa: u64) -> bool {
        let maps = self.maps;
        let known = self.memory.get(pa).map(|page| page.mapped_by);
        let mask = match known {
            Some((generation, mask)) if generation == maps => mask,
            _ => {
                let mut mask = 0;
                for (n, other) in self.cpus.iter().enumerate() {
                    let own = other.root();
                    let root = self
                        .roots
                        .iter()
                        .find(|root| (root.stage, root.pa) == (Stage::El2, own));
                    if root.is_some_and(|root| root.mapping(pa & !(PAGE - 1)).is_some()) {
                        mask |= 1 << n;
                    }
                }
                self.memory.page(pa).mapped_by = (maps, mask);
                mask
            }
        };
        mask & !(1 << cpu) != 0
    }
}

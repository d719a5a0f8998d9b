//! The model: CPUs with their TLBs, the caches, and what is counted when.

use std::collections::BTreeMap;

use crate::caches::{Access, Caches};
use crate::decode::Op;
use crate::memory::Memory;
use crate::walk::{Entries, Regime, Tlb};
use bulkhead_plugin::caches::{Counted, Counts, EL2, Geometry, LATENCY, LINE, Owner};

/// Everything.
#[derive(Debug)]
pub struct Model {
    geometry: Geometry,
    caches: Caches,
    tlbs: Vec<Tlb>,
    memory: Memory,
    checked: u64,
    wrong: u64,
    unknown_walks: u64,
    /// The figure that is open, and the counts when it began.
    open: Option<(u64, BTreeMap<Owner, Counts>)>,
    figures: BTreeMap<u64, BTreeMap<Owner, Counts>>,
    /// The CPU that has executed a block last.
    last_cpu: Option<usize>,
    /// For each CPU.
    clocks: Vec<Clock>,
    latencies: Vec<u64>,
    turns: BTreeMap<u64, u64>,
}

/// Cycles of a CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    now: u64,
    /// When it came to EL2.
    left: u64,
    at_el2: bool,
}

/// Who makes an access where.
#[derive(Clone, Copy, Debug)]
pub struct Who<'a> {
    /// Number of the CPU.
    pub cpu: usize,
    /// How it translates.
    pub regime: &'a Regime,
}

impl Who<'_> {
    fn owner(&self) -> Owner {
        if self.regime.is_el2 {
            EL2
        } else {
            self.regime.tag().vmid
        }
    }
}

impl Model {
    /// One without a CPU.
    pub fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            caches: Caches::new(geometry),
            tlbs: Vec::new(),
            memory: Memory::default(),
            checked: 0,
            wrong: 0,
            unknown_walks: 0,
            open: None,
            figures: BTreeMap::new(),
            last_cpu: None,
            clocks: Vec::new(),
            latencies: Vec::new(),
            turns: BTreeMap::new(),
        }
    }

    /// Puts a CPU into a cluster.
    pub fn set_cluster(&mut self, cpu: usize, cluster: usize) {
        self.caches.set_cluster(cpu, cluster);
    }

    /// Adds a CPU of the first cluster; returns its number.
    pub fn add_cpu(&mut self) -> usize {
        self.caches.add_cpu();
        self.clocks.push(Clock::default());
        self.tlbs.push(Tlb::new(&self.geometry));
        self.tlbs.len() - 1
    }

    /// A block of so many instructions is executed, which begins there.
    pub fn block(&mut self, who: &Who<'_>, address: u64, instructions: u64) {
        let goes_on = self.last_cpu.replace(who.cpu) == Some(who.cpu);
        if let (Some((figure, _)), false) = (&self.open, goes_on) {
            *self.turns.entry(*figure).or_default() += 1;
        }
        let clock = &mut self.clocks[who.cpu];
        if who.regime.is_el2 && !clock.at_el2 {
            clock.left = clock.now;
        }
        clock.at_el2 = who.regime.is_el2;
        self.timed(who, |model| {
            model.caches.counts(who.owner()).instructions += instructions;
            if let Some(physical) = model.translate(who, address, None) {
                let size = instructions * 4;
                model
                    .caches
                    .access(who.cpu, who.owner(), Access::Fetch, physical, size);
            }
        });
    }

    /// Does what takes a CPU time.
    fn timed(&mut self, who: &Who<'_>, what: impl FnOnce(&mut Self)) {
        let cycles = |model: &mut Self| model.caches.counts(who.owner()).cycles(&model.geometry);
        let before = cycles(self);
        what(self);
        let after = cycles(self);
        self.clocks[who.cpu].now += after - before;
    }

    /// Memory gets what is stored, before anything is modelled.
    pub fn stored(&mut self, physical: u64, bytes: &[u8]) {
        self.memory.write(physical, bytes);
    }

    /// Data is loaded or stored, where QEMU says.
    pub fn data(
        &mut self,
        who: &Who<'_>,
        address: u64,
        physical: u64,
        size: u64,
        stored: Option<&[u8]>,
    ) {
        let access = if stored.is_some() {
            Access::Store
        } else {
            Access::Load
        };
        self.timed(who, |model| {
            model.translate(who, address, Some(physical));
            model
                .caches
                .access(who.cpu, who.owner(), access, physical, size);
        });
        if let Some(bytes) = stored {
            self.memory.write(physical, bytes);
        }
    }

    /// An instruction of maintenance, with what is in its register.
    pub fn maintain(&mut self, who: &Who<'_>, op: Op, register: u64) {
        let physical = if op.is_by_address() {
            match self.translate(who, register, None) {
                Some(physical) => physical / LINE * LINE,
                None => return,
            }
        } else {
            0
        };
        // The page is in bits [43:0].
        let page = || ((register << 20).cast_signed() >> 8).cast_unsigned();
        let what = match op {
            Op::Zero => {
                self.timed(who, |model| {
                    model
                        .caches
                        .access(who.cpu, who.owner(), Access::Zero, physical, LINE);
                });
                return self.memory.zero(physical, LINE);
            }
            Op::Clean => return self.caches.clean(physical, false),
            Op::CleanInvalidate => return self.caches.clean(physical, true),
            Op::InvalidateCode => return self.caches.invalidate_code(Some(physical)),
            Op::InvalidateAllCode => return self.caches.invalidate_code(None),
            Op::InvalidatePage => Entries::Page(vm(who.regime), page()),
            Op::InvalidateEl2Page => Entries::Page(EL2, page()),
            Op::InvalidateVm => Entries::Vm(vm(who.regime)),
            Op::InvalidateEl2 => Entries::Vm(EL2),
            Op::InvalidateVms => Entries::All,
        };
        // Those of the CPU alone, too: a few entries more are dropped elsewhere than have to be.
        for tlb in &mut self.tlbs {
            tlb.invalidate(what);
        }
    }

    /// Translates an address, with the walk that it takes. `right`: the physical address that QEMU has.
    fn translate(&mut self, who: &Who<'_>, address: u64, right: Option<u64>) -> Option<u64> {
        let owner = who.owner();
        let Ok(found) = self.tlbs[who.cpu].translate(who.regime, address, &self.memory) else {
            // An instruction of maintenance may be of a page that is not there yet: it is executed again behind the fault.
            self.unknown_walks += u64::from(right.is_some());
            return right;
        };
        if found.walked {
            self.caches.counts(owner).tlb_misses += 1;
            for place in found.read {
                self.caches.access(who.cpu, owner, Access::Walk, place, 8);
            }
        }
        if let Some(right) = right {
            self.checked += 1;
            self.wrong += u64::from(right != found.physical);
        }
        Some(right.unwrap_or(found.physical))
    }

    /// A guest begins or ends a figure, or an interrupt has reached it.
    pub fn mark(&mut self, cpu: usize, figure: u64, begins: bool) {
        if figure == LATENCY {
            let clock = self.clocks[cpu];
            self.latencies.push(clock.now - clock.left);
            return;
        }
        let now: BTreeMap<_, _> = self.caches.all().collect();
        if begins {
            self.open = Some((figure, now));
        } else if let Some((open, before)) = self.open.take_if(|(open, _)| *open == figure) {
            let figure = self.figures.entry(open).or_default();
            for (owner, counts) in now {
                let before = before.get(&owner).copied().unwrap_or_default();
                figure.entry(owner).or_default().add(counts.since(before));
            }
        }
    }

    /// The result.
    pub fn counted(&self) -> Counted {
        Counted {
            geometry: self.geometry,
            all: self.caches.all().collect(),
            figures: self.figures.clone(),
            turns: self.turns.clone(),
            latencies: self.latencies.clone(),
            cpus: self.tlbs.len(),
            checked: self.checked,
            wrong: self.wrong,
            unknown_walks: self.unknown_walks,
        }
    }
}

/// The VM that VTTBR_EL2 names, at EL2, too.
const fn vm(regime: &Regime) -> u16 {
    (regime.vttbr >> 48) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_what_passes_on_the_cpu_since_it_left_its_guest() {
        let mut model = Model::new(Geometry::CORTEX_A53);
        let (cpu, other) = (model.add_cpu(), model.add_cpu());
        let guest = Regime::default();
        let el2 = Regime {
            is_el2: true,
            ..Regime::default()
        };
        let run = |model: &mut Model, cpu, regime, address, instructions| {
            model.block(&Who { cpu, regime }, address, instructions);
        };
        let miss = Geometry::CORTEX_A53.l2_cycles + Geometry::CORTEX_A53.memory_cycles;
        run(&mut model, cpu, &guest, 0x1000, 8);
        run(&mut model, cpu, &el2, 0x2000, 4);
        run(&mut model, other, &el2, 0x3000, 7);
        run(&mut model, cpu, &el2, 0x2000, 4);
        run(&mut model, cpu, &guest, 0x1000, 3);
        model.mark(cpu, LATENCY, true);
        // What EL2 needs is there now, and the guest's data is not.
        run(&mut model, cpu, &el2, 0x2000, 4);
        run(&mut model, cpu, &guest, 0x1000, 2);
        let who = Who {
            cpu,
            regime: &guest,
        };
        model.data(&who, 0x5000, 0x5000, 8, None);
        model.mark(cpu, LATENCY, true);
        assert_eq!(model.counted().latencies, [4 + miss + 4 + 3, 4 + 2 + miss]);
    }
}

//! The ways into a new translation: the MMU of EL2 turned on, its map changed, a guest entered.

use crate::decode::Register;
use crate::memory::{CacheLine, LINE, PAGE, Page, Store};
use crate::model::{At, Machine, Model, Ran};
use crate::tables::Stage;
use bulkhead_plugin::sanitizer::Rule;

/// HCR_EL2.VM
const STAGE2: u64 = 1;
/// Bits of HCR_EL2 by which ERET itself judges whether the return is legal: RW, TGE, E2H, NV.
const JUDGED: u64 = 1 << 31 | 1 << 27 | 1 << 34 | 1 << 42;
/// HCR_EL2.E2H
const HOST: u64 = 1 << 34;
/// SCTLR_EL2.EOS
const EXIT_SYNCHRONIZES: u64 = 1 << 11;

impl Model {
    /// EL2 is about to translate by the tables at `pa`.
    pub(crate) fn adopt(&mut self, at: At, pa: u64, machine: &dyn Machine) {
        let cpu = &self.cpus[at.cpu];
        if cpu.now.hcr & HOST != 0 {
            let what = "EL2 runs with HCR_EL2.E2H".to_owned();
            self.report(at, Rule::Unfollowed, what);
            return;
        }
        let tcr = cpu.now.tcr;
        let Some(index) = self.root(at, Stage::El2, pa, tcr) else {
            return;
        };
        self.roots[index].live |= 1 << at.cpu;
        self.maps += 1;
        self.walk(at, index, machine);
        self.check_tables(at, index, tcr);
    }

    /// Whether walks of the CPU see what was written to the tables of a root.
    fn check_tables(&mut self, at: At, index: usize, control: u64) {
        let cacheable = control >> 8 & 3 != 0;
        let mut found = Vec::new();
        for pa in &self.roots[index].tables {
            let lines = self.memory.get(*pa).into_iter().flat_map(Page::unclean);
            for (n, line) in lines {
                let place = pa + n as u64 * LINE;
                let Some(store) = line.store() else { continue };
                let past = matches!(line, CacheLine::Past(_) | CacheLine::Dropping { .. });
                if past && cacheable {
                    let what = format!(
                        "the table at {place:#x} was written with caches off at pc {:#x}; walks go through \
                         the cache, which was not invalidated",
                        store.pc
                    );
                    found.push((at, Rule::PastCaches, what));
                } else if !past && !cacheable {
                    let what = format!(
                        "this wrote the table at {place:#x} through the cache; walks go past it, and it \
                         is not cleaned at pc {:#x}",
                        at.pc
                    );
                    found.push((Self::place_of(store), Rule::Clean, what));
                } else if !self.is_complete(store, at.cpu) && !self.is_removal(place, store) {
                    let what = format!(
                        "the table at {place:#x} was written at pc {:#x}, and no DSB followed",
                        store.pc
                    );
                    found.push((at, Rule::NewEntry, what));
                }
            }
        }
        for (at, rule, what) in found {
            self.report(at, rule, what);
        }
    }

    /// Whether the last store to a line of a table takes a mapping away. Until the mapping is dropped from TLBs,
    /// which its writer sees to, a walk may as well find what was there.
    fn is_removal(&self, line: u64, store: Store) -> bool {
        let mut stale = self.stale.range(line..line + LINE);
        stale.any(|(_, stale)| stale.store == store)
    }

    /// ERET
    pub(crate) fn eret(&mut self, at: At, machine: &dyn Machine) {
        let spsr = machine.spsr();
        let synchronizes = self.cpus[at.cpu].now.sctlr & EXIT_SYNCHRONIZES != 0;
        let lower = spsr >> 4 & 1 == 1 || spsr >> 2 & 3 < 2;
        if lower {
            self.check_registers(at, synchronizes);
            self.check_translation(at);
            self.check_suspects(at, machine);
            self.check_posted(at);
            if self.cpus[at.cpu].now.hcr & STAGE2 != 0 {
                self.check_former_guest(at, machine);
                self.check_former_cpu(at, machine);
                self.enter(at, machine);
            }
        }
        if synchronizes {
            self.synchronize(at.cpu);
        }
        if lower {
            self.forget_walks(at.cpu);
        }
    }

    /// Checks that interrupts which EL2 has made active or inactive are so before the guest ends one.
    fn check_posted(&mut self, at: At) {
        if let Some(posted) = self.cpus[at.cpu].posted.take() {
            let lacks = if posted.read_back {
                "no DSB waits for the read behind it"
            } else {
                "nothing of the frame is read behind it"
            };
            let what = format!(
                "writes active states of the GIC; {lacks} before ERET at pc {:#x}",
                at.pc
            );
            let pc = posted.pc;
            self.report(At { pc, ..at }, Rule::PostedWrite, what);
        }
    }

    /// Checks for state that the guest before this one has left in the CPU.
    fn check_former_guest(&mut self, at: At, machine: &dyn Machine) {
        let vcpu = machine.vmpidr();
        let cpu = &mut self.cpus[at.cpu];
        let (_, vmid) = cpu.guest();
        let former = cpu.last_guest.replace(vmid);
        let looked = cpu.looked;
        (cpu.waited, cpu.looked) = (false, false);
        let sibling = cpu.stage1_of.insert(u64::from(vmid), vcpu);
        if let Some(former) = former.filter(|former| *former != vmid && !looked) {
            let what = format!(
                "enters VMID {vmid} after VMID {former}, whose SErrors were not waited for"
            );
            self.report(at, Rule::Serror, what);
        }
        if let Some(sibling) = sibling.filter(|sibling| *sibling != vcpu) {
            let what = format!(
                "enters the vCPU with MPIDR {vcpu:#x}; the TLB may hold translations of its sibling {sibling:#x} \
                 by the same ASID"
            );
            self.report(at, Rule::Siblings, what);
        }
    }

    /// Checks that what the vCPU has begun on another CPU is complete: maintenance is completed by a DSB of the CPU that has executed it, and the guest's own
    /// DSB comes here.
    fn check_former_cpu(&mut self, at: At, machine: &dyn Machine) {
        let cpu = &self.cpus[at.cpu];
        let ((_, vmid), vcpu) = (cpu.guest(), machine.vmpidr());
        let here = Ran {
            cpu: at.cpu,
            barriers: cpu.barriers,
        };
        let Some(ran) = self.ran.insert((vmid, vcpu), here) else {
            return;
        };
        if ran.cpu != at.cpu && self.cpus[ran.cpu].barriers == ran.barriers {
            let former = self.cpus[ran.cpu].now.mpidr;
            let what = format!(
                "enters the vCPU with MPIDR {vcpu:#x} of VMID {vmid}, which ran on pCPU {former:#x}, without DSB there since"
            );
            self.report(at, Rule::Migration, what);
        }
    }

    /// ERET synchronises the context (unless SCTLR_EL2.EOS is 0), but is itself judged by HCR_EL2.
    fn check_registers(&mut self, at: At, synchronizes: bool) {
        if !synchronizes {
            self.relies(at, "ERET with SCTLR_EL2.EOS = 0", |register| {
                matches!(
                    register,
                    Register::Hcr | Register::Vttbr | Register::Vtcr | Register::Cptr
                )
            });
        }
        let judged = |pending: &&crate::cpu::Pending| {
            pending.register == Register::Hcr && pending.changed & JUDGED != 0
        };
        if let Some(pending) = self.cpus[at.cpu].pending.iter().find(judged) {
            let what = format!(
                "ERET is judged by HCR_EL2, written at pc {:#x}, without ISB in between",
                pending.pc
            );
            self.report(at, Rule::RegisterWrite, what);
        }
    }

    /// Checks that EL2's changes of translations are complete before a guest runs.
    fn check_translation(&mut self, at: At) {
        let mut tlbis = std::mem::take(&mut self.cpus[at.cpu].tlbis);
        for issued in tlbis.iter().filter(|issued| !issued.complete) {
            let what = format!("no DSB completes it before ERET at pc {:#x}", at.pc);
            let pc = issued.pc;
            self.report(At { pc, ..at }, Rule::TlbiCompletion, what);
        }
        tlbis.retain(|issued| issued.complete);
        self.cpus[at.cpu].tlbis = tlbis;

        let own = |store: Store| usize::from(store.cpu) == at.cpu;
        let hidden = self.fresh.iter().find(|f| own(f.store) && !f.visible);
        if let Some(fresh) = hidden.copied() {
            let (stage, base) = (fresh.stage.input(), fresh.base);
            let what = format!(
                "maps {stage} {base:#x}; no DSB follows before ERET at pc {:#x}",
                at.pc
            );
            self.report(Self::place_of(fresh.store), Rule::NewEntry, what);
        }
        let left = self.stale.iter().find(|(_, stale)| own(stale.store));
        if let Some((location, stale)) = left.map(|(location, stale)| (*location, stale.clone())) {
            let what = format!(
                "the descriptor of {} {:#x} is {} here, and its copies in TLBs are not dropped by ERET at \
                 pc {:#x}",
                stale.stage.input(),
                stale.base,
                if stale.narrowed {
                    "narrowed"
                } else {
                    "dropped"
                },
                at.pc
            );
            self.report(Self::place_of(stale.store), Rule::StaleEntry, what);
            self.stale.remove(&location);
        }
    }

    /// Checks that EL2's writes to memory of guests since the last look are clean.
    fn check_suspects(&mut self, at: At, machine: &dyn Machine) {
        let mut found = Vec::new();
        for index in 0..self.roots.len() {
            let suspects = std::mem::take(&mut self.roots[index].suspects);
            if suspects.is_empty() {
                continue;
            }
            // What was taken from the guest since is its own no more.
            self.walk(at, index, machine);
            let root = &mut self.roots[index];
            for pa in suspects {
                if root.mapping(pa).is_none() {
                    continue;
                }
                match self.memory.line(pa).store() {
                    Some(store) if usize::from(store.cpu) == at.cpu => found.push((pa, store)),
                    // Whoever wrote it looks at its own ERET.
                    Some(_) => root.suspects.push(pa),
                    None => {}
                }
            }
        }
        for (pa, store) in found {
            self.dirty(at, pa, store);
        }
    }

    fn dirty(&mut self, at: At, pa: u64, store: Store) {
        let lacks = match self.memory.line(pa) {
            CacheLine::Cleaning { .. } => "is cleaned, but no DSB waits for it",
            CacheLine::Past(_) => "was written past the caches, which were not invalidated,",
            CacheLine::Dropping { .. } => "is invalidated, but no DSB waits for it",
            _ => "is not cleaned to the point of coherency",
        };
        let rule = match self.memory.line(pa) {
            CacheLine::Past(_) | CacheLine::Dropping { .. } => Rule::PastCaches,
            _ => Rule::Clean,
        };
        let what = format!(
            "what this stores at {pa:#x}, memory of a guest, {lacks} at ERET at pc {:#x}",
            at.pc
        );
        self.report(Self::place_of(store), rule, what);
    }

    /// A guest with stage 2 is entered.
    fn enter(&mut self, at: At, machine: &dyn Machine) {
        let cpu = &self.cpus[at.cpu];
        let ((pa, vmid), vtcr) = (cpu.guest(), cpu.now.vtcr);
        let Some(index) = self.root(at, Stage::Guest, pa, vtcr) else {
            return;
        };
        let cpu = &mut self.cpus[at.cpu];
        let before = cpu.vmids.insert(u64::from(vmid), Some(pa));
        match before {
            Some(None) => {}
            Some(Some(root)) if root == pa => {}
            Some(Some(root)) => {
                let what = format!(
                    "enters VMID {vmid} with the tables at {pa:#x}; its TLB may have entries of those at \
                     {root:#x}"
                );
                self.report(at, Rule::OldEntries, what);
            }
            None if cpu.all_dropped => {}
            None => {
                let what = format!("enters VMID {vmid} with what was in the TLB at reset");
                self.report(at, Rule::OldEntries, what);
            }
        }
        if self.seen.insert(vmid) {
            self.entered.push(vmid);
        }
        let root = &mut self.roots[index];
        root.live |= 1 << at.cpu;
        if !root.vmids.contains(&vmid) {
            root.vmids.push(vmid);
        }
        if !std::mem::replace(&mut root.checked, true) {
            self.walk(at, index, machine);
            self.check_tables(at, index, vtcr);
            self.check_memory(at, index);
        }
        let (content, invalidated) = (self.roots[index].content, self.cpus[at.cpu].invalidated);
        // An IC that was executed before the clean was complete may have fetched the old again.
        if content > invalidated {
            let what = format!(
                "enters VMID {vmid}; since EL2 wrote its memory the instruction cache of this pCPU was not \
                 invalidated"
            );
            self.report(at, Rule::Instructions, what);
            self.cpus[at.cpu].invalidated = content;
        }
    }

    /// EL2 executes no instructions that it has stored, unless the caches know them (*Synchronization and coherency issues between data and
    /// instruction accesses*).
    pub(crate) fn check_code(&mut self, at: At, machine: &dyn Machine) {
        let (cpu, page) = (&mut self.cpus[at.cpu], at.pc / PAGE);
        if cpu.executes == Some(page) {
            return;
        }
        cpu.executes = Some(page);
        if !cpu.executed.insert(page) {
            return;
        }
        let Some(pa) = self.translate(at, at.pc, machine) else {
            return;
        };
        let Some(page) = self.memory.get(pa) else {
            return;
        };
        let cleaned = page.cleaned;
        let dirty = page.unclean().find_map(|(_, line)| line.store());
        if let Some(store) = dirty {
            let what = format!(
                "is in a page that was stored to at pc {:#x} and is not cleaned",
                store.pc
            );
            self.report(at, Rule::Instructions, what);
        } else if cleaned > self.cpus[at.cpu].invalidated {
            let what = "is in a page that EL2 has stored to; since that was cleaned the instruction cache of this pCPU was not invalidated";
            self.report(at, Rule::Instructions, what.to_owned());
        }
    }

    /// All that a guest has for memory is clean.
    fn check_memory(&mut self, at: At, index: usize) {
        let mut found = Vec::new();
        let root = &mut self.roots[index];
        for (pa, page) in self.memory.pages() {
            let Some(leaf) = root.mapping(pa).filter(|leaf| leaf.normal) else {
                continue;
            };
            for (n, line) in page.unclean() {
                if let Some(store) = line.store() {
                    found.push((pa + n as u64 * LINE, store));
                }
            }
            if leaf.executable {
                root.content = root.content.max(page.cleaned);
            }
            // From now on the guest may write it.
            if page.table.is_none() {
                page.forget();
            }
        }
        for (pa, store) in found {
            self.dirty(at, pa, store);
        }
    }
}

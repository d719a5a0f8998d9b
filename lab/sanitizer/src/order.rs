//! Barriers, maintenance, register writes and signals of EL2.

use bulkhead_plugin::api::Access;

use crate::access::{Way, address};
use crate::cpu::{Issued, Pending, ROOT};
use crate::decode::{Barrier, Dc, Entries, Op, Register, Scope, Tlbi};
use crate::memory::{CacheLine, LINE, PAGE, Store};
use crate::model::{At, Machine, Model, Stale};
use crate::tables::Stage;
use bulkhead_plugin::sanitizer::Rule;

/// PSCI CPU_ON for 32 and 64 bits (DEN0022E, 5.1.4).
const CPU_ON: [u64; 2] = [0x8400_0003, 0xc400_0003];
/// The INTID in ICC_IAR1_EL1 and GICC_IAR, which has a CPU beside it in the latter, and the first one that is no SGI's.
const INTIDS: u64 = 0x3ff;
const SGIS: u64 = 16;
/// SCTLR_EL2.M
const MMU: u64 = 1;

/// Whether an exit with this ESR_EL2 sets HPFAR_EL2 (DDI 0487, HPFAR_EL2): an abort from a lower level by an address size, translation or access
/// flag fault, or by any fault of stage 2 on a walk of stage 1.
fn has_fault_address(esr: u64) -> bool {
    let (class, walk, status) = (esr >> 26 & 0x3f, esr >> 7 & 1 == 1, esr & 0x3f);
    let kind = status >> 2;
    matches!(class, 0x20 | 0x24) && (kind <= 2 || walk && kind == 3)
}

impl Model {
    /// EL2 is about to execute an instruction; `rt` is the number of its Xt.
    pub fn execute(&mut self, at: At, op: Op, rt: u8, machine: &dyn Machine) {
        self.check_code(at, machine);
        let xt = || if rt < 31 { machine.x(rt) } else { 0 };
        match op {
            Op::Isb => self.synchronize(at.cpu),
            Op::Dsb(barrier) => self.dsb(at, barrier),
            Op::Dmb(barrier) => {
                if barrier.stores && barrier.scope == Scope::Shared {
                    self.cpus[at.cpu].unordered = None;
                }
            }
            Op::Eret => self.eret(at, machine),
            Op::Smc => self.call(at, machine),
            Op::Write(register) => self.write(at, register, xt(), machine),
            Op::Tlbi(tlbi) => self.tlbi(at, tlbi, xt()),
            Op::Dc(dc) => self.dc(at, dc, xt(), machine),
            Op::Ic(scope) => {
                let now = self.sequence;
                self.cpus[at.cpu].invalidating.push((now, scope));
            }
            Op::TranslateEl2 => {
                self.relies(at, "AT of EL2", |register| {
                    matches!(register, Register::Ttbr0 | Register::Tcr | Register::Mair)
                });
                self.cpus[at.cpu].translation = Some(at.pc);
            }
            Op::TranslateEl1 => {
                self.relies(at, "AT of EL1", |register| {
                    matches!(register, Register::Hcr | Register::Vttbr | Register::Vtcr)
                });
                self.cpus[at.cpu].translation = Some(at.pc);
            }
            Op::ReadPar => {
                if let Some(pc) = self.cpus[at.cpu].translation {
                    let what = format!("reads PAR_EL1 without ISB since AT at pc {pc:#x}");
                    self.report(at, Rule::TranslationResult, what);
                }
            }
            Op::ReadFaultAddress => {
                let esr = machine.esr();
                if !has_fault_address(esr) {
                    let what =
                        format!("reads HPFAR_EL2, which is UNKNOWN where ESR_EL2 is {esr:#x}");
                    self.report(at, Rule::FaultAddress, what);
                }
            }
            Op::ReadIsr => {
                let cpu = &mut self.cpus[at.cpu];
                cpu.looked |= cpu.waited;
            }
            Op::Acknowledge => self.acknowledge(at, xt()),
            Op::Sgi => self.sgi(at, xt()),
            Op::Gic => self.relies(at, "an access to the GIC's CPU interface", |register| {
                register == Register::Sre
            }),
            Op::Counter => self.relies(at, "an access to the selected counter", |register| {
                register == Register::Selection
            }),
            Op::Fp => self.relies(at, "an FP instruction", |register| {
                register == Register::Cptr
            }),
        }
    }

    /// Checks that writes to the registers on which the current operation relies are synchronised.
    pub(crate) fn relies(&mut self, at: At, what: &str, on: impl Fn(Register) -> bool) {
        let mut pending = self.cpus[at.cpu].pending.iter();
        if let Some(pending) = pending.find(|pending| on(pending.register)).copied() {
            let what = format!(
                "{what} relies on {}, written at pc {:#x}, without ISB in between",
                pending.register.name(),
                pending.pc
            );
            self.report(at, Rule::RegisterWrite, what);
        }
    }

    /// A context synchronization event.
    pub(crate) fn synchronize(&mut self, cpu: usize) {
        let own = &mut self.cpus[cpu];
        own.pending.clear();
        own.walks.synchronize();
        own.translation = None;
        own.tlbis.retain(|issued| !issued.complete);
        self.fresh
            .retain(|fresh| usize::from(fresh.store.cpu) != cpu || !fresh.visible);
    }

    fn dsb(&mut self, at: At, barrier: Barrier) {
        let Barrier { scope, stores, all } = barrier;
        let own = 1u64 << at.cpu;
        if stores {
            let cpu = &mut self.cpus[at.cpu];
            cpu.wait_for_stores(scope);
            if scope == Scope::Shared {
                (cpu.unseen, cpu.unordered) = (None, None);
            }
            for fresh in &mut self.fresh {
                let reaches = scope == Scope::Shared || fresh.live == own;
                if usize::from(fresh.store.cpu) == at.cpu && reaches {
                    fresh.visible = true;
                }
            }
            // The way into a guest synchronises the context.
            self.fresh
                .retain(|fresh| fresh.stage == Stage::El2 || !fresh.visible);
        }
        if all {
            let cpu = &mut self.cpus[at.cpu];
            cpu.posted = cpu.posted.filter(|posted| !posted.read_back);
            cpu.waited = true;
            cpu.barriers += u64::from(scope == Scope::Shared);
            cpu.acknowledged = None;
            self.see(at.cpu);
            self.complete_tlbis(at.cpu, scope);
            self.complete_caches(at.cpu, scope);
        }
    }

    /// Notes that every load of `cpu` that follows sees what any CPU has stored by now.
    fn see(&mut self, cpu: usize) {
        let clocks: Vec<u64> = self.cpus.iter().map(|other| other.clock).collect();
        self.cpus[cpu].seen = clocks;
    }

    /// EL2 has got `intid` from the GIC. The sender of an SGI has stored something before.
    pub(crate) fn acknowledge(&mut self, at: At, intid: u64) {
        if intid & INTIDS < SGIS {
            self.cpus[at.cpu].acknowledged = Some(at.pc);
        }
    }

    /// A load may be older than the acknowledge before it until a DSB.
    pub(crate) fn check_acknowledged(&mut self, at: At, pa: u64, store: Store) {
        let cpu = &self.cpus[at.cpu];
        let (Some(pc), other) = (cpu.acknowledged, usize::from(store.cpu)) else {
            return;
        };
        let seen = cpu.seen.get(other).copied().unwrap_or(0);
        if other == at.cpu || store.at < seen {
            return;
        }
        let what = format!(
            "reads {pa:#x}, which another CPU stored at pc {:#x}, after the acknowledge of an SGI at pc {pc:#x} \
             without DSB",
            store.pc
        );
        self.cpus[at.cpu].acknowledged = None;
        self.report(at, Rule::Acknowledge, what);
    }

    fn complete_tlbis(&mut self, cpu: usize, scope: Scope) {
        let mut issued = std::mem::take(&mut self.cpus[cpu].tlbis);
        for one in &mut issued {
            let reaches = scope == Scope::Shared || one.tlbi.scope == Scope::Own;
            if !one.complete && reaches {
                one.complete = true;
                self.complete(cpu, one);
            }
        }
        // Those of EL1 have their effect by the way into a guest.
        issued.retain(|one| !one.complete || of_el2(one.tlbi.entries));
        self.cpus[cpu].tlbis = issued;
    }

    /// A TLBI of `cpu` is complete.
    fn complete(&mut self, cpu: usize, issued: &Issued) {
        let mask = match issued.tlbi.scope {
            Scope::Own => 1 << cpu,
            Scope::Shared => u64::MAX,
        };
        for location in &issued.locations {
            let Some(stale) = self.stale.get_mut(location) else {
                continue;
            };
            match issued.tlbi.entries {
                Entries::Ipa { .. } => stale.stage2_gone |= mask,
                Entries::VmidStage1 => stale.need &= !(mask & stale.stage2_gone),
                _ => stale.need &= !mask,
            }
            if stale.need == 0 {
                self.stale.remove(location);
            }
        }
        let reached = |n: usize| mask >> n & 1 == 1;
        for (n, other) in self
            .cpus
            .iter_mut()
            .enumerate()
            .filter(|(n, _)| reached(*n))
        {
            let bit = 1 << n;
            match issued.tlbi.entries {
                Entries::AllEl1 => other.stage1_of.clear(),
                Entries::Vmid | Entries::VmidStage1 => {
                    other.stage1_of.remove(&u64::from(issued.vmid));
                }
                _ => {}
            }
            match issued.tlbi.entries {
                Entries::AllEl2 => {
                    (other.el2_dropped, other.former_root) = (true, None);
                    let own = other.root();
                    let others = |root: &&mut crate::tables::Root| {
                        root.stage == Stage::El2 && root.pa != own
                    };
                    for root in self.roots.iter_mut().filter(others) {
                        root.live &= !bit;
                    }
                }
                Entries::AllEl1 | Entries::Vmid => {
                    let all = issued.tlbi.entries == Entries::AllEl1;
                    if all {
                        other.vmids.clear();
                        other.all_dropped = true;
                    } else {
                        other.vmids.insert(u64::from(issued.vmid), None);
                    }
                    // A CPU that is in the guest may have new entries already.
                    let inside = other.guest().0;
                    for root in &mut self.roots {
                        let meant = all || root.vmids.contains(&issued.vmid);
                        if root.stage == Stage::Guest && meant && (n == cpu || root.pa != inside) {
                            root.live &= !bit;
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn complete_caches(&mut self, cpu: usize, scope: Scope) {
        let invalidating = std::mem::take(&mut self.cpus[cpu].invalidating);
        for (at, reach) in invalidating {
            match (reach, scope) {
                (Scope::Own, _) => {
                    let own = &mut self.cpus[cpu];
                    own.invalidated = own.invalidated.max(at);
                }
                (Scope::Shared, Scope::Shared) => {
                    for other in &mut self.cpus {
                        other.invalidated = other.invalidated.max(at);
                    }
                }
                (Scope::Shared, Scope::Own) => self.cpus[cpu].invalidating.push((at, reach)),
            }
        }
        if scope == Scope::Own {
            return;
        }
        let lines = std::mem::take(&mut self.cpus[cpu].maintained);
        if lines.is_empty() {
            return;
        }
        self.sequence += 1;
        let now = self.sequence;
        let mut last = u64::MAX;
        for pa in lines {
            let line = self.memory.line(pa);
            let ours = match line {
                CacheLine::Cleaning { by, .. } | CacheLine::Dropping { by, .. } => {
                    usize::from(by) == cpu
                }
                _ => false,
            };
            if !ours {
                continue;
            }
            self.set_line(pa, CacheLine::Clean);
            if pa / PAGE != last {
                last = pa / PAGE;
                self.memory.page(pa).cleaned = now;
                for root in &mut self.roots {
                    let runs = root.mapping(pa).is_some_and(|leaf| leaf.executable);
                    if root.stage == Stage::Guest && runs {
                        root.content = now;
                    }
                }
            }
        }
    }

    fn tlbi(&mut self, at: At, tlbi: Tlbi, xt: u64) {
        if !of_el2(tlbi.entries) && tlbi.entries != Entries::AllEl1 {
            self.relies(at, "TLBI of a VMID", |register| register == Register::Vttbr);
        }
        if tlbi.entries == Entries::Range {
            let what = "TLBI by range: not followed".to_owned();
            self.report(at, Rule::Unfollowed, what);
        }
        let vmid = self.cpus[at.cpu].guest().1;
        let mut locations = Vec::new();
        let mut early = None;
        for (location, stale) in &self.stale {
            let reached = tlbi.scope == Scope::Shared || stale.need >> at.cpu & 1 == 1;
            if !reached || !covers(tlbi.entries, xt, vmid, stale) {
                continue;
            }
            let writer = usize::from(stale.store.cpu);
            let alone = writer == at.cpu && stale.need == 1 << at.cpu;
            let scope = if alone { Scope::Own } else { Scope::Shared };
            if self.cpus[writer].has_completed(stale.store, scope) {
                locations.push(*location);
            } else if writer == at.cpu {
                early = Some((*location, stale.store.pc));
            }
        }
        if let Some((location, pc)) = early {
            let what = format!(
                "TLBI without DSB since the descriptor at {location:#x} was changed at pc {pc:#x}: walks may \
                 bring the old one back"
            );
            self.report(at, Rule::TlbiOrder, what);
        }
        self.cpus[at.cpu].tlbis.push(Issued {
            tlbi,
            xt,
            pc: at.pc,
            vmid,
            locations,
            complete: false,
        });
    }

    fn dc(&mut self, at: At, dc: Dc, va: u64, machine: &dyn Machine) {
        let Some(pa) = self.translate(at, va, machine) else {
            let what = format!("DC of {va:#x}, which no table seen so far maps");
            self.report(at, Rule::Unfollowed, what);
            return;
        };
        let pa = pa & !(LINE - 1);
        if dc == Dc::Zero {
            self.store(at, (pa, Way::Cached), &[0; LINE as usize], machine);
            return;
        }
        let by = at.cpu as u8;
        let line = self.memory.line(pa);
        let new = match (dc, line) {
            (
                Dc::Clean | Dc::CleanInvalidate,
                CacheLine::Dirty(store) | CacheLine::Cleaning { store, .. },
            ) => CacheLine::Cleaning { store, by },
            (Dc::Clean, _) | (_, CacheLine::Clean) => return,
            (_, CacheLine::Past(store) | CacheLine::Dropping { store, .. }) => {
                CacheLine::Dropping { store, by }
            }
            (_, CacheLine::Dirty(store) | CacheLine::Cleaning { store, .. }) => {
                let what = format!(
                    "DC IVAC of {pa:#x} throws away what was stored at pc {:#x}",
                    store.pc
                );
                self.report(at, Rule::PastCaches, what);
                CacheLine::Dropping { store, by }
            }
        };
        self.set_line(pa, new);
        self.cpus[at.cpu].maintained.push(pa);
    }

    fn write(&mut self, at: At, register: Register, value: u64, machine: &dyn Machine) {
        let was_on = self.cpus[at.cpu].translates();
        if register == Register::Sctlr && !was_on && value & MMU == MMU {
            self.relies(at, "turning the MMU on", |register| {
                matches!(register, Register::Ttbr0 | Register::Tcr | Register::Mair)
            });
            if !self.cpus[at.cpu].el2_dropped {
                let what = "turns the MMU on with what was in the TLB at reset".to_owned();
                self.report(at, Rule::OldEntries, what);
            }
            let root = self.cpus[at.cpu].root();
            self.adopt(at, root, machine);
        }
        if register == Register::Ttbr0 && was_on {
            self.adopt(at, value & ROOT, machine);
        }
        // From here on the register counts as written: the tables above could be read as before.
        let cpu = &mut self.cpus[at.cpu];
        let now = &mut cpu.now;
        let place = match register {
            Register::Hcr => Some(&mut now.hcr),
            Register::Vttbr => Some(&mut now.vttbr),
            Register::Vtcr => Some(&mut now.vtcr),
            Register::Ttbr0 => Some(&mut now.ttbr0),
            Register::Tcr => Some(&mut now.tcr),
            Register::Sctlr => Some(&mut now.sctlr),
            Register::Mair | Register::Cptr | Register::Sre | Register::Selection => None,
            Register::El1Ttbr | Register::El1Tcr | Register::El1Sctlr => {
                return self.write_stage1(at, register, value);
            }
            // Seen in program order; the plugin tells CPUs apart by it.
            Register::Tpidr => return,
        };
        let old = place.map_or(!value, |place| std::mem::replace(place, value));
        if register == Register::Vttbr && (old ^ value) >> 48 != 0 {
            self.change_vmid(at, value, machine);
        }
        let cpu = &mut self.cpus[at.cpu];
        cpu.pending.push(Pending {
            register,
            pc: at.pc,
            changed: old ^ value,
        });
        if matches!(register, Register::Ttbr0 | Register::Sctlr) {
            cpu.executed.clear();
            cpu.executes = None;
        }
        if register == Register::Ttbr0 && was_on && old != value {
            cpu.former_root = Some(old & ROOT);
        }
    }

    /// SMC: the start of another CPU.
    fn call(&mut self, at: At, machine: &dyn Machine) {
        if CPU_ON.contains(&machine.x(0)) {
            let parent = self.cpus[at.cpu].start_other(at.cpu);
            self.starting.push((machine.x(1), parent));
        }
    }

    /// A write of ICC_SGI1R_EL1 or its likes (IHI 0069H, 12.2).
    fn sgi(&mut self, at: At, value: u64) {
        let cpu = &self.cpus[at.cpu];
        let Some(unseen) = cpu.unseen else { return };
        let affinity = |shift: u32| cpu.now.mpidr >> shift & 0xff;
        let named = |shift: u32| value >> shift & 0xff;
        let own = affinity(0);
        let alone = value >> 40 & 1 == 0
            && (named(48), named(32), named(16)) == (affinity(32), affinity(16), affinity(8))
            && value >> 44 & 15 == own / 16
            && value & 0xffff == 1 << (own % 16);
        if !alone {
            self.cpus[at.cpu].unseen = None;
            let what = format!(
                "SGI without DSB since {:#x}, which other pCPUs read, was written at pc {:#x}",
                unseen.pa, unseen.pc
            );
            self.report(at, Rule::Signal, what);
        }
    }

    /// A store to a device: GICD_SGIR is a signal (IHI 0048B, 4.3.15).
    pub(crate) fn device_store(&mut self, at: At, pa: u64, access: &Access) {
        const SELF_ONLY: u8 = 2;
        if self.sgir != Some(pa) || access.bytes[3] & 3 == SELF_ONLY {
            return;
        }
        if let Some(unordered) = self.cpus[at.cpu].unordered.take() {
            let what = format!(
                "SGI without DMB or DSB since {:#x}, which other pCPUs read, was written at pc {:#x}",
                unordered.pa, unordered.pc
            );
            self.report(at, Rule::Signal, what);
        }
    }
}

/// Whether a TLBI is about EL2's own translation.
const fn of_el2(entries: Entries) -> bool {
    matches!(entries, Entries::AllEl2 | Entries::AddressEl2 { .. })
}

/// Whether a TLBI drops an entry that was.
fn covers(entries: Entries, xt: u64, vmid: u16, stale: &Stale) -> bool {
    let named = address(xt).wrapping_sub(stale.base) < stale.size;
    let meant = stale.vmids.contains(&vmid);
    match (stale.stage, entries) {
        (Stage::El2, Entries::AllEl2) | (Stage::Guest, Entries::AllEl1) => true,
        // A table's whole range is dropped by all its addresses only.
        (Stage::El2, Entries::AddressEl2 { .. }) => named && !stale.table,
        (Stage::Guest, Entries::Vmid) => meant,
        (Stage::Guest, Entries::Ipa { .. }) => meant && named && !stale.table,
        (Stage::Guest, Entries::VmidStage1) => meant && stale.stage2_gone & stale.need != 0,
        _ => false,
    }
}

//! The state of a GPPT VM, whose accesses to its GIC go through a filter to the board's GIC.

use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::{InterruptMode, Reclaim as Number, Vm};
use bulkhead_core::cpu::exit::Mmio;
use bulkhead_core::gppt::{Answer, Controls, Cpus, Filter, Kick, Mode, Reclaim, Writes};
use bulkhead_core::vgic::{GICD_SIZE, GICR_SIZE, VCPUS, WORDS};

use crate::hw::gic::{self, Gic};
use crate::plan::{has_ptimer, pcpus_of, plan};

#[cfg(feature = "gicv2")]
use super::kept_v2 as kept;
#[cfg(not(feature = "gicv2"))]
use super::kept_v3 as kept;

/// A value above all priorities, which stands for "no priority".
pub(super) const NO_PRIORITY: u64 = 0x100;

/// The GIC of a GPPT VM.
#[derive(Debug)]
pub struct Gppt {
    pub(super) mode: Mode,
    pub(super) reclaim: Reclaim,
    /// The traps that are set while the guest runs.
    pub(super) controls: Controls,
    pub(super) filter: Filter<kept::Kind>,
    pub(super) gicd: u64,
    pub(super) gicr: u64,
    /// The saved CPU interface while the vCPU does not have its pCPU.
    pub(super) kept: kept::Kept,
}

/// Returns the mode of a GPPT VM; `None` for other VMs.
pub fn mode(vm: &Vm) -> Option<Mode> {
    const RECOVERABLE: u16 = InterruptMode::GpptRecoverable as u16;
    const PMR_TRAPPED: u16 = InterruptMode::GpptPmrTrapped as u16;
    const PMR_DIRECT: u16 = InterruptMode::GpptPmrDirect as u16;
    const V2: u16 = InterruptMode::GpptV2 as u16;
    const REVOCABLE: u16 = InterruptMode::GpptRevocable as u16;
    const REVOCABLE_TRAPPED: u16 = InterruptMode::GpptRevocableTrapped as u16;
    match vm.interrupts {
        RECOVERABLE => Some(Mode::Recoverable),
        PMR_TRAPPED => Some(Mode::PmrTrapped),
        PMR_DIRECT => Some(Mode::PmrDirect),
        V2 => Some(Mode::V2),
        REVOCABLE => Some(Mode::Revocable),
        REVOCABLE_TRAPPED => Some(Mode::RevocableTrapped),
        _ => None,
    }
}

/// Returns how EL2 reclaims the pCPU of a VM.
pub fn reclaim(vm: &Vm) -> Reclaim {
    const GUARANTEED: u16 = Number::Guaranteed as u16;
    const SDEI: u16 = Number::Sdei as u16;
    match vm.reclaim {
        GUARANTEED => Reclaim::Guaranteed,
        SDEI => Reclaim::Sdei,
        _ => Reclaim::Cooperative,
    }
}

/// Whether VM `index` could mask EL2's interrupts, so that its pCPU is reclaimed by revoke and
/// poke.
pub fn can_mask(index: usize) -> bool {
    let mode = plan().vms.get(index).and_then(mode);
    mode.is_some_and(|mode| mode.kick() == Kick::RevokeAndPoke)
}

/// Returns the pCPUs of GPPT VMs, each with its VM.
pub fn pcpus() -> impl Iterator<Item = (usize, usize)> {
    let rows = plan().vcpus.iter();
    rows.map(|row| (usize::from(row.pcpu), usize::from(row.vm)))
        .filter(|(_, vm)| plan().vms.get(*vm).is_some_and(|vm| mode(vm).is_some()))
}

impl Gppt {
    /// Returns the GIC state of VM `index`, if it is a GPPT VM.
    pub fn of(index: usize) -> Option<Self> {
        let row = plan().vms.get(index)?;
        let mode = mode(row)?;
        let mut given = [0; WORDS];
        for irq in plan().irqs_of(index) {
            let intid = u32::from(irq.pintid);
            if let Some(word) = given.get_mut((intid / 32) as usize) {
                *word |= 1 << (intid % 32);
            }
        }
        if has_ptimer(index) {
            given[0] |= 1 << (plan().header.board.ptimer_intid % 32);
        }
        let mut names = [0; VCPUS];
        let mut count = 0usize;
        for (name, pcpu) in names.iter_mut().zip(pcpus_of(index)) {
            *name = gic::gppt::name(pcpu);
            count = count.wrapping_add(1);
        }
        let cpus = Cpus {
            count,
            number: 0,
            names,
        };
        let reclaim = reclaim(row);
        Some(Self {
            mode,
            reclaim,
            controls: mode.controls(reclaim, plan().others_have_spis(index)),
            filter: Filter::new(kept::kind(mode), given, cpus),
            gicd: row.gicd,
            gicr: row.gicr,
            kept: kept::Kept::of(mode),
        })
    }

    /// Resets the priorities of 32 INTIDs on the board. One slice of preparing the VM.
    #[inline(never)]
    pub fn forget(&self, gic: &Gic, word: usize) {
        if self.filter.given(word) == 0 {
            return;
        }
        for four in 0..8u64 {
            let first = (word as u64).wrapping_mul(32);
            let first = first.wrapping_add(four.wrapping_mul(4));
            perform(gic, &self.filter.forget_priorities(first));
        }
    }

    /// Resets everything else of the VM's GIC, also on the board.
    #[inline(never)]
    pub fn reset(&mut self, gic: &Gic) {
        for word in (0..WORDS).filter(|word| self.filter.given(*word) != 0) {
            perform(gic, &self.filter.silence(word));
        }
        gic.settle_all();
        self.reset_interface(gic);
        self.filter.reset();
    }

    /// Returns the value that the guest reads from a 32-bit register of its distributor, or
    /// (`private`) of its redistributor.
    pub fn peek(&self, gic: &Gic, private: bool, offset: u64) -> u32 {
        let answer = if private {
            self.filter.gicr_read(offset, 4)
        } else {
            self.filter.gicd_read(offset, 4)
        };
        match answer {
            Answer::Value(value) => value as u32,
            Answer::Read(read) => self.filter.shown(&read, gic.filtered_read(&read)) as u32,
        }
    }

    /// Reads or writes a register. Returns the class of the exit and the value of a read; `None` if
    /// there is no register.
    pub(super) fn access(
        &mut self,
        gic: &Gic,
        mmio: &Mmio,
        stored: u64,
    ) -> Option<(ExitClass, u64)> {
        let filter = &mut self.filter;
        let (offset, size) = (mmio.ipa.wrapping_sub(self.gicd), mmio.size);
        let (class, answer) = if offset < GICD_SIZE {
            let answer = if mmio.write {
                Err(filter.gicd_write(offset, size, stored))
            } else {
                Ok(filter.gicd_read(offset, size))
            };
            (ExitClass::Gicd, answer)
        } else {
            let offset = mmio.ipa.wrapping_sub(self.gicr);
            if gic::VERSION == 2 || offset >= GICR_SIZE {
                return None;
            }
            let answer = if mmio.write {
                Err(filter.gicr_write(offset, size, stored))
            } else {
                Ok(filter.gicr_read(offset, size))
            };
            (ExitClass::Gicr, answer)
        };
        let value = match answer {
            Ok(Answer::Value(value)) => value,
            Ok(Answer::Read(read)) => filter.shown(&read, gic.filtered_read(&read)),
            Err(writes) => {
                perform(gic, &writes);
                0
            }
        };
        Some((class, value))
    }
}

#[inline(never)]
pub(super) fn perform(gic: &Gic, writes: &Writes) {
    for write in writes.iter() {
        gic.filtered_write(write);
    }
    gic.wait_for_writes();
}

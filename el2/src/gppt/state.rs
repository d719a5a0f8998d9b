//! The state of a GPPT VM: what it does to its GIC goes through a filter to the board's.

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

/// Above all priorities.
pub(super) const NO_PRIORITY: u64 = 0x100;

/// The GIC of such a VM.
#[derive(Debug)]
pub struct Gppt {
    pub(super) mode: Mode,
    pub(super) reclaim: Reclaim,
    /// What traps while the guest runs.
    pub(super) controls: Controls,
    pub(super) filter: Filter<kept::Kind>,
    pub(super) gicd: u64,
    pub(super) gicr: u64,
    /// Its CPU interface while it does not have its pCPU.
    pub(super) kept: kept::Kept,
}

/// The mode of a VM, if it takes its interrupts itself.
pub fn mode(vm: &Vm) -> Option<Mode> {
    const RECOVERABLE: u16 = InterruptMode::GpptRecoverable as u16;
    const PMR_TRAPPED: u16 = InterruptMode::GpptPmrTrapped as u16;
    const PMR_DIRECT: u16 = InterruptMode::GpptPmrDirect as u16;
    const V2: u16 = InterruptMode::GpptV2 as u16;
    match vm.interrupts {
        RECOVERABLE => Some(Mode::Recoverable),
        PMR_TRAPPED => Some(Mode::PmrTrapped),
        PMR_DIRECT => Some(Mode::PmrDirect),
        V2 => Some(Mode::V2),
        _ => None,
    }
}

/// How EL2 gets the pCPU of a VM back.
pub fn reclaim(vm: &Vm) -> Reclaim {
    const GUARANTEED: u16 = Number::Guaranteed as u16;
    const SDEI: u16 = Number::Sdei as u16;
    match vm.reclaim {
        GUARANTEED => Reclaim::Guaranteed,
        SDEI => Reclaim::Sdei,
        _ => Reclaim::Cooperative,
    }
}

/// VM `index` could mask EL2's interrupts, so that its pCPU is got back by taking its stage 2 away.
pub fn can_mask(index: usize) -> bool {
    let mode = plan().vms.get(index).and_then(mode);
    mode.is_some_and(|mode| mode.kick() == Kick::RevokeAndPoke)
}

/// pCPUs of such VMs, each with its VM.
pub fn pcpus() -> impl Iterator<Item = (usize, usize)> {
    let rows = plan().vcpus.iter();
    rows.map(|row| (usize::from(row.pcpu), usize::from(row.vm)))
        .filter(|(_, vm)| plan().vms.get(*vm).is_some_and(|vm| mode(vm).is_some()))
}

impl Gppt {
    /// That of VM `index`, if it is such a one.
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

    /// Of 32 INTIDs, priorities as after a reset, on the board. A slice of getting the VM ready.
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

    /// Everything else of the VM's as after a reset, on the board as well.
    #[inline(never)]
    pub fn reset(&mut self, gic: &Gic) {
        for word in (0..WORDS).filter(|word| self.filter.given(*word) != 0) {
            perform(gic, &self.filter.silence(word));
        }
        gic.settle_all();
        self.reset_interface(gic);
        self.filter.reset();
    }

    /// What the guest reads from a register of 32 bits of its distributor, or of its redistributor.
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

    /// Reads or writes a register: of which class the exit is, and what a read gives. `None`: there is none.
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
}

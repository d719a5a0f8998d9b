//! The state of a GPPT VM, whose accesses to its GIC go through a filter to the board's GIC.

use bulkhead_abi::plan::{InterruptMode, Reclaim as Number, Vm};
use bulkhead_core::cpu::exit::Mmio;
use bulkhead_core::gppt::{Answer, Controls, Cpus, Filter, Kick, Mode, Read, Reclaim};
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
        let mut board = gic.filtered();
        for four in 0..8u64 {
            let first = (word as u64).wrapping_mul(32);
            let first = first.wrapping_add(four.wrapping_mul(4));
            self.filter.forget_priorities(&mut board, first);
        }
        board.settle();
    }

    /// Resets everything else of the VM's GIC, also on the board.
    #[inline(never)]
    pub fn reset(&mut self, gic: &Gic) {
        let mut board = gic.filtered();
        for word in (0..WORDS).filter(|word| self.filter.given(*word) != 0) {
            self.filter.silence(&mut board, word);
        }
        board.settle();
        gic.settle_all();
        self.reset_interface(gic);
        self.filter.reset();
    }

    /// Returns the value that the guest reads from a 32-bit register of its distributor, or
    /// (`private`) of its redistributor.
    pub fn peek(&self, gic: &Gic, private: bool, offset: u64) -> u32 {
        self.read(gic, private, offset, 4) as u32
    }

    /// Returns whether an address is in the redistributors, and its offset there or in the
    /// distributor; `None` if it is in neither.
    #[inline(always)]
    pub(super) const fn place(&self, ipa: u64) -> Option<(bool, u64)> {
        let offset = ipa.wrapping_sub(self.gicd);
        if offset < GICD_SIZE {
            return Some((false, offset));
        }
        let offset = ipa.wrapping_sub(self.gicr);
        if gic::VERSION != 2 && offset < GICR_SIZE {
            return Some((true, offset));
        }
        None
    }

    /// Reads a register of the distributor, or (`private`) of the redistributors.
    #[inline(never)]
    pub(super) fn read(&self, gic: &Gic, private: bool, offset: u64, size: u64) -> u64 {
        let answer = if private && gic::VERSION != 2 {
            self.filter.gicr_read(offset, size)
        } else {
            self.filter.gicd_read(offset, size)
        };
        match &answer {
            Answer::Value(value) => *value,
            Answer::Read(read) => self.see(gic, read),
        }
    }

    /// Reads the board.
    #[inline(never)]
    fn see(&self, gic: &Gic, read: &Read) -> u64 {
        self.filter.shown(read, gic.filtered_read(read))
    }

    /// Writes a register of the distributor, or (`private`) of the redistributors; `mmio` has the
    /// offset in place of the IPA.
    #[inline(never)]
    pub(super) fn write(&mut self, gic: &Gic, private: bool, mmio: Mmio, value: u64) {
        let mut board = gic.filtered();
        if private && gic::VERSION != 2 {
            self.filter
                .gicr_write(&mut board, mmio.ipa, mmio.size(), value);
        } else {
            self.filter
                .gicd_write(&mut board, mmio.ipa, mmio.size(), value);
        }
        board.settle();
    }
}

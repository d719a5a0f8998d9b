//! A VM that takes its physical interrupts itself: what it does to its GIC goes through a filter to the board's
//! (`bulkhead_core::gppt`, `docs/adr/0016-own-interrupts.md`). One vCPU, on a pCPU of its own.

use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::{InterruptMode, Vm};
use bulkhead_core::exit::Mmio;
use bulkhead_core::gppt::{
    Answer, Common, Cpus, Filter, Mode, Reclaim, TWO_STEPS, UpperV3, Writes, sgi,
};
use bulkhead_core::monitor::Gate;
use bulkhead_core::vgic::{GICD_SIZE, GICR_SIZE, VCPUS, WORDS};

use crate::hw::gic::{self, Gic};
use crate::start::plan;
use crate::vcpu::Vcpu;
use crate::{timed, vm};

/// Above all priorities.
const NO_PRIORITY: u64 = 0x100;

/// The GIC of such a VM.
#[derive(Debug)]
pub struct Own {
    mode: Mode,
    filter: Filter<UpperV3>,
    gicd: u64,
    gicr: u64,
    /// ICC_IGRPEN1_EL1 while the vCPU does not have its pCPU.
    group1: u64,
}

/// The mode of a VM, if it takes its interrupts itself.
pub fn mode(vm: &Vm) -> Option<Mode> {
    const RECOVERABLE: u16 = InterruptMode::GpptRecoverable as u16;
    const PMR_TRAPPED: u16 = InterruptMode::GpptPmrTrapped as u16;
    match vm.interrupts {
        RECOVERABLE => Some(Mode::Recoverable),
        PMR_TRAPPED => Some(Mode::PmrTrapped),
        _ => None,
    }
}

/// pCPUs of such VMs, a bit for each.
pub fn pcpus() -> u32 {
    let rows = plan().vcpus.iter();
    rows.filter(|row| {
        let vm = plan().vms.get(usize::from(row.vm));
        vm.is_some_and(|vm| mode(vm).is_some())
    })
    .fold(0, |all, row| all | 1u32.wrapping_shl(u32::from(row.pcpu)))
}

impl Own {
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
        if timed::owns_physical(index) {
            given[0] |= 1 << (plan().header.board.ptimer_intid % 32);
        }
        let mut names = [0; VCPUS];
        let mut count = 0usize;
        for (name, pcpu) in names.iter_mut().zip(vm::pcpus_of(index)) {
            *name = plan().pcpus.get(pcpu).map_or(0, |row| row.mpidr);
            count = count.wrapping_add(1);
        }
        let cpus = Cpus {
            count,
            number: 0,
            names,
        };
        Some(Self {
            mode,
            filter: Filter::new(UpperV3, given, cpus),
            gicd: row.gicd,
            gicr: row.gicr,
            group1: 0,
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
        self.filter.reset();
        let trapped = self.mode == Mode::PmrTrapped;
        gic::own::reset_interface(self.mode.controls(Reclaim::Cooperative), trapped);
    }

    /// The vCPU leaves its pCPU to EL2.
    pub fn hide(&mut self) {
        self.group1 = gic::own::hide();
    }

    /// It has it again.
    pub fn show(&self) {
        gic::own::show(self.group1);
    }

    /// What the guest reads from a register of 32 bits of its distributor, or of its redistributor.
    pub fn look(&self, gic: &Gic, private: bool, offset: u64) -> u32 {
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

    /// What stands between its interrupts, which are all of group 1, and the guest.
    pub fn gate(&self, forwarded: u64) -> Gate {
        let seen = |which: Common| which.to_guest(gic::own::common(which));
        let running = seen(Common::Running);
        Gate {
            mask: if self.mode == Mode::PmrTrapped {
                seen(Common::Mask)
            } else {
                NO_PRIORITY
            },
            running: if running == 0xff {
                NO_PRIORITY
            } else {
                running
            },
            groups: gic::own::group1() << 1,
            forwarded,
            fiq: 0b01,
        }
    }

    /// Reads or writes a register: of which class the exit is, and what a read gives. `None`: there is none.
    fn access(&mut self, gic: &Gic, mmio: &Mmio, stored: u64) -> Option<(ExitClass, u64)> {
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
            if offset >= GICR_SIZE {
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
fn perform(gic: &Gic, writes: &Writes) {
    for write in writes.iter() {
        gic.filtered_write(write);
    }
}

/// Performs an access of such a VM if it is one to its GIC.
#[inline(never)]
pub fn access(vcpu: &mut Vcpu, mmio: &Mmio) -> Option<ExitClass> {
    let stored = mmio.stored(vcpu.frame.get(mmio.register));
    let own = vcpu.own.as_mut()?;
    let (class, value) = own.access(&vcpu.gic, mmio, stored)?;
    if !mmio.write {
        vcpu.frame.set(mmio.register, mmio.loaded(value));
    }
    Some(class)
}

/// A write of such a VM to ICC_SGI1R_EL1 (`group1`) or its kin. `false`: it is none.
pub fn send_sgi(vcpu: &Vcpu, value: u64, group1: bool) -> bool {
    if vcpu.own.is_none() {
        return false;
    }
    let sgi = sgi::by_register(value, vcpu.number, vcpu.vcpus).filter(|_| group1);
    if let Some(sgi) = sgi {
        for vcpu_number in sgi.vcpus.iter() {
            if let Some(pcpu) = vcpu.gic.siblings.get(vcpu_number) {
                gic::send(sgi.intid, usize::from(*pcpu));
            }
        }
    }
    true
}

/// Performs an access of such a VM to a register of the CPU interface that traps. `false`: it is none, or cannot be written.
pub fn common(vcpu: &mut Vcpu, which: Common, read: bool, gpr: u8) -> bool {
    if vcpu.own.is_none() {
        return false;
    }
    let board = gic::own::common(which);
    if read {
        vcpu.frame.set(gpr, which.to_guest(board));
        return true;
    }
    let value = which.to_board(vcpu.frame.get(gpr), board);
    if let Some(value) = value {
        gic::own::set_common(which, value);
    }
    value.is_some()
}

/// A write of such a VM to ICC_DIR_EL1. `false`: it is none.
pub fn deactivate(vcpu: &Vcpu, intid: u32) -> bool {
    let Some(own) = &vcpu.own else {
        return false;
    };
    if gic::own::common(Common::Control) & TWO_STEPS != 0
        && let Some(write) = own.filter.deactivate(intid)
    {
        vcpu.gic.filtered_write(&write);
    }
    true
}

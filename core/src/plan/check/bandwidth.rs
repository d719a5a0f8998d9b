//! Rules about budgets of events, by which vCPUs share the memory's bandwidth, and about whose performance monitors interrupt.

use bulkhead_abi::plan::{
    MAX_EVENT, MAX_EVENTS, MAX_PERIOD, MAX_SPIS, MIN_PERIOD, TableId, VM_DEBUG, VM_PMU, Vcpu,
};

use super::cpu::VGIC;
use crate::plan::view::{IO, Plan};
use crate::plan::violation::{At, Check, Invariant};

impl Plan<'_> {
    /// Whether a vCPU has a budget.
    pub fn has_budgets(&self) -> bool {
        self.vcpus.iter().any(|vcpu| vcpu.events != 0)
    }

    /// pCPUs, a bit for each, to which vCPUs may come that have performance monitors, debug registers or budgets: switches take longer there.
    pub fn have_registers(&self) -> u32 {
        if !self.keeps_budgets() {
            return 0;
        }
        let have = self.vcpus.iter().filter(|vcpu| {
            let vm = self.vms.get(usize::from(vcpu.vm));
            vcpu.events != 0 || vm.is_some_and(|vm| vm.flags & (VM_PMU | VM_DEBUG) != 0)
        });
        have.fold(0, |all, vcpu| all | self.may_run_on(vcpu))
    }

    /// Whether the EL2 that the plan is for keeps budgets; else the plan has nothing of them. That it runs on that EL2 is looked at last.
    pub(super) const fn keeps_budgets(&self) -> bool {
        self.header.image.profile >= IO
    }

    /// Checks the budgets, and the interrupts by which counters tell that they have overflowed. After what else has interrupts.
    pub(super) fn check_budgets(&self) -> Check {
        let event = self.header.board.event;
        let counts = (event != 0) == self.has_budgets() && event <= MAX_EVENT;
        At::HEADER.ensure(counts, Invariant::BoardEvent)?;
        let mut needed = 0;
        for (row, vcpu) in self.vcpus.iter().enumerate() {
            let at = At::row(TableId::Vcpus, row);
            at.ensure(self.is_budget(vcpu), Invariant::VcpuEvents)?;
            if vcpu.events != 0 || self.has_pmu(vcpu) {
                needed |= self.may_run_on(vcpu);
            }
        }
        for (row, pcpu) in self.pcpus.iter().enumerate() {
            let at = At::row(TableId::Pcpus, row);
            let counts = needed & 1_u32.wrapping_shl(row as u32) != 0;
            let sound = match pcpu.pmu_intid {
                0 => !counts,
                intid => needed != 0 && self.counts_alone_by(row, intid),
            };
            at.ensure(sound, Invariant::PmuInterrupt)?;
        }
        Ok(())
    }

    /// Whether a vCPU has performance monitors.
    fn has_pmu(&self, vcpu: &Vcpu) -> bool {
        let vm = self.vms.get(usize::from(vcpu.vm));
        vm.is_some_and(|vm| vm.flags & VM_PMU != 0)
    }

    /// Whether a vCPU has a budget that can be kept, or none.
    fn is_budget(&self, vcpu: &Vcpu) -> bool {
        if vcpu.events == 0 {
            return vcpu.events_period == 0;
        }
        // EL2 takes no interrupt where a GPPT VM runs.
        let vm = self.vms.get(usize::from(vcpu.vm));
        vm.is_some_and(|vm| vm.interrupts == VGIC)
            && vcpu.events <= MAX_EVENTS
            && MIN_PERIOD <= vcpu.events_period
            && vcpu.events_period <= MAX_PERIOD
    }

    /// Whether nobody has the interrupt but pCPU `row`, or all pCPUs, if it is private.
    fn counts_alone_by(&self, row: usize, intid: u32) -> bool {
        let board = &self.header.board;
        match intid {
            16..=31 => ![
                board.vtimer_intid,
                board.ptimer_intid,
                board.hyp_timer_intid,
                board.maintenance_intid,
            ]
            .contains(&intid),
            32.. => {
                let calls = |spi: u16| u32::from(spi)..=u32::from(spi).wrapping_add(1);
                let others = self.pcpus.iter().enumerate();
                intid < 32 + MAX_SPIS
                    && intid != board.uart_intid
                    && !self.irqs.iter().any(|irq| u32::from(irq.pintid) == intid)
                    && others.fold(true, |free, (number, other)| {
                        let own = number == row || other.pmu_intid != intid;
                        let called = other.call_spi != 0 && calls(other.call_spi).contains(&intid);
                        free && own && !called
                    })
            }
            _ => false,
        }
    }
}

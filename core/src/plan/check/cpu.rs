//! Rules about CPU time and the interrupt modes of VMs.

use bulkhead_abi::plan::{
    CpuPolicy, DeviceKind, InterruptMode, MAX_PERIOD, MAX_SPIS, MAX_VCPUS_PER_PCPU, MAX_WEIGHT,
    MIN_PERIOD, Profile, Reclaim, TableId, VM_OWN_PTIMER, Vcpu, Vm,
};

use super::number_of;
use crate::plan::view::{IO, MANAGED, Plan};
use crate::plan::violation::{At, Check, Invariant};
use crate::sched::bound::{Promise, WHOLE, worst_load};

/// [`CpuPolicy`] as encoded in the plan.
pub(super) const PINNED: u16 = CpuPolicy::Pinned as u16;
/// [`CpuPolicy`] as encoded in the plan.
pub(super) const SERVER: u16 = CpuPolicy::Server as u16;
/// [`CpuPolicy`] as encoded in the plan.
const FAIR: u16 = CpuPolicy::Fair as u16;
/// [`InterruptMode`] as encoded in the plan.
pub(super) const VGIC: u16 = InterruptMode::Vgic as u16;
/// [`InterruptMode`] as encoded in the plan.
const RECOVERABLE: u16 = InterruptMode::GpptRecoverable as u16;
/// [`InterruptMode`] as encoded in the plan.
const PMR_TRAPPED: u16 = InterruptMode::GpptPmrTrapped as u16;
/// [`Reclaim`] as encoded in the plan.
pub(super) const SDEI: u16 = Reclaim::Sdei as u16;
/// [`InterruptMode`] as encoded in the plan.
const PMR_DIRECT: u16 = InterruptMode::GpptPmrDirect as u16;
/// [`InterruptMode`] as encoded in the plan.
pub(super) const DIRECT_V2: u16 = InterruptMode::GpptV2 as u16;
/// [`InterruptMode`] as encoded in the plan.
const REVOCABLE: u16 = InterruptMode::GpptRevocable as u16;
/// [`InterruptMode`] as encoded in the plan.
const REVOCABLE_TRAPPED: u16 = InterruptMode::GpptRevocableTrapped as u16;

/// Whether the budget and the period, or the quota and the period, of a vCPU are valid.
pub(super) fn time_is_sound(vcpu: &Vcpu) -> bool {
    if vcpu.policy == PINNED {
        return vcpu.budget == 0 && vcpu.period == 0;
    }
    let period = MIN_PERIOD <= vcpu.period && vcpu.period <= MAX_PERIOD;
    period && 1 <= vcpu.budget && vcpu.budget <= vcpu.period
}

/// Whether the weight of a vCPU is valid.
pub(super) fn weight_is_sound(vcpu: &Vcpu) -> bool {
    if vcpu.policy == FAIR {
        (1..=MAX_WEIGHT).contains(&vcpu.weight)
    } else {
        vcpu.weight == 0
    }
}

impl Plan<'_> {
    /// The vCPUs that start on pCPU `pcpu`, with the indices of their rows.
    pub fn vcpus_on(&self, pcpu: usize) -> impl Iterator<Item = (usize, &Vcpu)> {
        let rows = self.vcpus.iter().enumerate();
        rows.filter(move |(_, vcpu)| usize::from(vcpu.pcpu) == pcpu)
    }

    /// The smallest profile of EL2 that has what the plan uses. `PROFILE`: as in [`Self::check_for`].
    pub fn least_profile<const PROFILE: u32>(&self) -> Profile {
        // A pinned vCPU has its pCPU alone.
        if PROFILE >= MANAGED && !self.rights().is_empty() {
            Profile::Managed
        } else if PROFILE >= IO && (self.has_virtio() || self.has_budgets()) {
            Profile::Io
        } else if self.vcpus.iter().all(|vcpu| vcpu.policy == PINNED) {
            Profile::Static
        } else {
            Profile::Shared
        }
    }

    /// Checks the policy of each vCPU, and the schedulability of each pCPU.
    pub(super) fn check_cpu_time(&self) -> Check {
        for (row, vcpu) in self.vcpus.iter().enumerate() {
            let at = At::row(TableId::Vcpus, row);
            at.ensure(vcpu.policy <= FAIR, Invariant::VcpuPolicy)?;
            at.ensure(time_is_sound(vcpu), Invariant::VcpuTime)?;
            at.ensure(weight_is_sound(vcpu), Invariant::VcpuWeight)?;
            let exists = usize::from(vcpu.pcpu) < self.pcpus.len();
            at.ensure(exists, Invariant::VcpuPlacement)?;
            let others = self.vcpus.iter().enumerate().take(row);
            for (number, other) in others.filter(|(_, other)| other.pcpu == vcpu.pcpu) {
                let alone = vcpu.policy == PINNED || other.policy == PINNED;
                at.and(number).ensure(!alone, Invariant::VcpuPlacement)?;
            }
        }
        for (row, vcpu) in self.vcpus.iter().enumerate() {
            At::row(TableId::Vcpus, row).ensure(self.pool_is_sound(vcpu), Invariant::VcpuPool)?;
        }
        for row in 0..self.pcpus.len() {
            let at = At::row(TableId::Pcpus, row);
            let count = number_of(self.vcpus_on(row));
            at.ensure(count <= MAX_VCPUS_PER_PCPU, Invariant::PcpuVcpus)?;
            at.ensure(
                self.is_schedulable(row, self.promises(row)),
                Invariant::PcpuSchedulable,
            )?;
        }
        Ok(())
    }

    /// Whether the pool of a vCPU that has passed the other rules is valid for the load balancer.
    fn pool_is_sound(&self, vcpu: &Vcpu) -> bool {
        if vcpu.policy != FAIR {
            return vcpu.pool == 0;
        }
        let bit = |pcpu: usize| 1_u32.wrapping_shl(pcpu as u32);
        let known = self.pcpus.len() < 32 && vcpu.pool < bit(self.pcpus.len());
        let own = vcpu.pool & bit(usize::from(vcpu.pcpu)) != 0;
        let mut pinned = self.vcpus.iter().filter(|other| other.policy == PINNED);
        known && own && pinned.all(|other| vcpu.pool & bit(usize::from(other.pcpu)) == 0)
    }

    /// The promises of the servers among the vCPUs of a pCPU.
    pub(super) fn promises(&self, pcpu: usize) -> impl Iterator<Item = Promise> {
        let vcpus = self.vcpus_on(pcpu);
        let servers = vcpus.filter(|(_, vcpu)| vcpu.policy == SERVER);
        servers.map(|(_, vcpu)| Promise {
            budget: vcpu.budget,
            period: vcpu.period,
            held: vcpu.events_period,
        })
    }

    /// Whether the servers of a pCPU, at most the allowed number, keep their promises.
    pub(super) fn is_schedulable(
        &self,
        pcpu: usize,
        promises: impl Iterator<Item = Promise>,
    ) -> bool {
        let drains = self.pcpus.get(pcpu).is_some_and(|row| row.service != 0);
        let registers = self.have_registers().wrapping_shr(pcpu as u32) & 1 != 0;
        worst_load(promises, drains, registers).is_some_and(|load| load <= WHOLE)
    }

    /// Checks the interrupt modes of VMs, and everything else that requires pinned vCPUs.
    pub(super) fn check_modes(&self) -> Check {
        for (row, vm) in self.vms.iter().enumerate() {
            let at = At::row(TableId::Vms, row);
            let mut vcpus = self.vcpus_of(row).iter();
            let pinned = vcpus.all(|vcpu| vcpu.policy == PINNED);
            let own_timer = vm.flags & VM_OWN_PTIMER != 0;
            at.ensure(pinned || !own_timer, Invariant::VmOwnTimer)?;
            let mode = self.is_possible(vm) && (pinned || vm.interrupts == VGIC);
            at.ensure(mode, Invariant::VmInterrupts)?;
            let reclaim = match vm.interrupts {
                VGIC => vm.reclaim == Reclaim::Always as u16,
                RECOVERABLE | PMR_TRAPPED => [Reclaim::Always as u16, SDEI].contains(&vm.reclaim),
                _ => {
                    [Reclaim::Guaranteed as u16, Reclaim::Cooperative as u16].contains(&vm.reclaim)
                }
            };
            at.ensure(reclaim, Invariant::VmReclaim)?;
            if vm.interrupts == PMR_DIRECT {
                let own = |vm: &&Vm| vm.interrupts != VGIC;
                let alone = self.vms.iter().filter(own).nth(1).is_none();
                at.ensure(alone, Invariant::VmInterruptsAlone)?;
            }
            at.ensure(self.is_built(row, vm), Invariant::VmInterruptsBuilt)?;
        }
        Ok(())
    }

    /// Checks the SPIs by which pCPUs interrupt each other, after the physical interrupts have been
    /// checked. If a VM sends SGIs that EL2 does not trap, it could also send an SGI of EL2 that is
    /// enabled on any pCPU, or one of another VM: Group 0 by `ICC_SGI0R_EL1`, which traps only if
    /// the priority mask does, too. Where EL2 shares Group 1 with a VM, the SGIs are the VM's or the
    /// firmware's; on a GICv2, only if there is firmware.
    pub(super) fn check_call_spis(&self) -> Check {
        let unseen = self.vms.iter().any(|vm| vm.interrupts == PMR_DIRECT);
        for (row, pcpu) in self.pcpus.iter().enumerate() {
            let at = At::row(TableId::Pcpus, row);
            let first = u32::from(pcpu.call_spi);
            let has = |mode| {
                let vms = self.vcpus_on(row).map(|(_, vcpu)| usize::from(vcpu.vm));
                let mut vms = vms.filter_map(|vm| self.vms.get(vm));
                vms.any(|vm| vm.interrupts == mode)
            };
            let shared = has(REVOCABLE) || has(REVOCABLE_TRAPPED);
            let either = has(DIRECT_V2) && first == 0;
            if !unseen && !shared && !has(DIRECT_V2) || either {
                at.ensure(first == 0, Invariant::PcpuCallSpi)?;
                continue;
            }
            let both = first..=first.wrapping_add(1);
            let spis = 32 <= first && *both.end() < 32 + MAX_SPIS;
            let lent = self.irqs.iter().map(|irq| u32::from(irq.pintid));
            let free = !lent
                .chain([self.header.board.uart_intid])
                .any(|intid| both.contains(&intid));
            at.ensure(spis && free, Invariant::PcpuCallSpi)?;
            for (number, other) in self.pcpus.iter().take(row).enumerate() {
                let apart = u32::from(other.call_spi).abs_diff(first) >= 2;
                at.and(number).ensure(apart, Invariant::PcpuCallSpi)?;
            }
        }
        Ok(())
    }

    /// Whether a VM other than `vm` has SPIs, whose active state belongs to that VM.
    pub fn others_have_spis(&self, vm: usize) -> bool {
        self.irqs.iter().any(|irq| usize::from(irq.vm) != vm)
    }

    /// Whether the interrupt mode of a VM is possible with the board's GIC.
    fn is_possible(&self, vm: &Vm) -> bool {
        match vm.interrupts {
            VGIC => true,
            DIRECT_V2 => self.is_gicv2(),
            mode => mode <= REVOCABLE_TRAPPED && !self.is_gicv2(),
        }
    }

    /// Whether this build of EL2 implements the interrupt mode of a VM. A GPPT VM sees the INTIDs
    /// of the board, and gets no interrupts that EL2 generates.
    fn is_built(&self, row: usize, vm: &Vm) -> bool {
        let own_timer = vm.flags & VM_OWN_PTIMER != 0;
        let alone = self.vcpus_of(row).len() == 1;
        let mut irqs = self.irqs_of(row).iter();
        vm.interrupts == VGIC
            || (matches!(vm.interrupts, RECOVERABLE | PMR_TRAPPED)
                && (vm.reclaim != SDEI || self.is_quiet(row))
                || matches!(
                    vm.interrupts,
                    PMR_DIRECT | DIRECT_V2 | REVOCABLE | REVOCABLE_TRAPPED
                ) && self.is_quiet(row))
                && own_timer
                && alone
                && vm.event_intid == 0
                && irqs.all(|irq| irq.vintid == irq.pintid)
    }

    /// Whether EL2 needs no interrupt on the pCPUs of a VM while the VM runs there: an interrupt of
    /// EL2 would be taken by the guest.
    fn is_quiet(&self, row: usize) -> bool {
        let mut devices = self.devices_of(row).iter();
        let mut vcpus = self.vcpus_of(row).iter();
        devices.all(|device| device.kind != DeviceKind::Watchdog as u16)
            && vcpus.all(|vcpu| {
                let pcpu = self.pcpus.get(usize::from(vcpu.pcpu));
                pcpu.is_some_and(|pcpu| pcpu.service == 0)
            })
    }
}

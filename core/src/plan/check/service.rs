//! Rules about service threads, which move the data of virtio devices.

use bulkhead_abi::plan::{
    Class, CpuPolicy, MAX_VCPUS_PER_PCPU, NONE, ServiceThread, TableId, Vcpu,
};

use super::cpu::{PINNED, SERVER, time_is_sound, weight_is_sound};
use super::number_of;
use crate::plan::view::Plan;
use crate::plan::violation::{At, Check, Invariant};
use crate::sched::bound::Promise;
use crate::virtio::pages::is_counted;

/// [`Class`] as encoded in the plan.
const HARD_REALTIME: u16 = Class::HardRealtime as u16;

/// A vCPU with the CPU time of a service thread, for the rules that both have.
const fn as_vcpu(thread: &ServiceThread) -> Vcpu {
    Vcpu {
        vm: NONE,
        pcpu: thread.pcpu,
        policy: thread.policy,
        weight: thread.weight,
        mpidr: 0,
        budget: thread.budget,
        period: thread.period,
        pool: 0,
        events: 0,
        events_period: 0,
    }
}

impl Plan<'_> {
    /// Checks the service threads, after the vCPUs.
    pub(super) fn check_service_threads(&self) -> Check {
        let threads = self.service_threads();
        for (row, thread) in threads.iter().enumerate() {
            let at = At::row(TableId::ServiceThreads, row);
            let reserved = thread.reserved == 0 && thread.reserved2 == 0;
            at.ensure(reserved, Invariant::ReservedZero)?;
            let policies = [CpuPolicy::Server as u16, CpuPolicy::Fair as u16];
            let policy = policies.contains(&thread.policy);
            at.ensure(policy, Invariant::VcpuPolicy)?;
            let as_vcpu = as_vcpu(thread);
            at.ensure(time_is_sound(&as_vcpu), Invariant::VcpuTime)?;
            at.ensure(weight_is_sound(&as_vcpu), Invariant::VcpuWeight)?;
            self.check_place(at, row, thread)?;

            let pcpu = usize::from(thread.pcpu);
            let at = At::row(TableId::Pcpus, pcpu);
            let room = number_of(self.vcpus_on(pcpu)) < MAX_VCPUS_PER_PCPU;
            at.ensure(room, Invariant::PcpuVcpus)?;
            let promise = (thread.policy == SERVER).then_some(Promise {
                budget: thread.budget,
                period: thread.period,
                held: 0,
            });
            let promises = self.promises(pcpu).chain(promise);
            let keeps = self.is_schedulable(pcpu, promises);
            at.ensure(keeps, Invariant::PcpuSchedulable)?;
        }
        Ok(())
    }

    /// Checks the pCPU of a service thread.
    fn check_place(&self, at: At, row: usize, thread: &ServiceThread) -> Check {
        let pcpu = usize::from(thread.pcpu);
        let hard = |vcpu: &Vcpu| {
            let vm = self.vms.get(usize::from(vcpu.vm));
            vm.is_some_and(|vm| vm.class == HARD_REALTIME)
        };
        // The balancer moves a fair vCPU to any pCPU of its pool.
        let comes = |vcpu: &Vcpu| {
            vcpu.pcpu == thread.pcpu || vcpu.pool & 1_u32.wrapping_shl(pcpu as u32) != 0
        };
        let mut vcpus = self.vcpus.iter().filter(|vcpu| comes(vcpu));
        let place =
            pcpu < self.pcpus.len() && vcpus.all(|vcpu| vcpu.policy != PINNED && !hard(vcpu));
        at.ensure(place, Invariant::ServicePlacement)?;
        let mut others = self.service_threads().iter().take(row);
        match others.position(|other| other.pcpu == thread.pcpu) {
            None => Ok(()),
            Some(other) => Err(at.and(other).breaks(Invariant::ServicePlacement)),
        }
    }

    /// Checks the pages of service threads, after everything by which they are counted.
    pub(super) fn check_service_pages(&self) -> Check {
        for (row, thread) in self.service_threads().iter().enumerate() {
            let at = At::row(TableId::ServiceThreads, row);
            at.ensure(is_counted(self, row, thread), Invariant::ServicePages)?;
        }
        Ok(())
    }
}

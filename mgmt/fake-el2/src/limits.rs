//! Changes of weights, caps, budgets and pools.

use bulkhead_abi::control::{Kind, Refusal, Request};
use bulkhead_abi::plan::CpuPolicy;

use crate::Fake;

impl Fake {
    pub(crate) fn limit(&mut self, kind: Kind, request: &Request) -> Result<(), Refusal> {
        let vm = &mut self.vms[usize::from(request.vm)];
        let [first, second, ..] = request.values;
        let load = first.saturating_mul(1_000_000) / second.max(1);
        match (vm.policy, kind) {
            (CpuPolicy::Pinned, _) => return Err(Refusal::Pinned),
            (CpuPolicy::Server, Kind::Budget) if load > self.most => {
                return Err(Refusal::Overload);
            }
            (CpuPolicy::Server, Kind::Budget) => vm.limits = [first, second],
            (CpuPolicy::Server, _) => return Err(Refusal::NotFair),
            (_, Kind::Budget) => return Err(Refusal::NotServer),
            (_, Kind::Weight) if !(1..=1000).contains(&first) => return Err(Refusal::Weight),
            (_, Kind::Weight) => vm.weight = first,
            (_, Kind::Pool) if first == 0 || first & !self.pool != 0 => return Err(Refusal::Pool),
            (_, Kind::Pool) => vm.pool = first,
            _ if first == 0 || first > second => return Err(Refusal::Budget),
            _ => vm.limits = [first, second],
        }
        Ok(())
    }
}

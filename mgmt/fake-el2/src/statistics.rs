//! Statistics of vCPUs and of devices.

use bulkhead_abi::control::{Kind, Request, Status};
use bulkhead_abi::plan::CpuPolicy;

use crate::Fake;

impl Fake {
    /// Answers a question for them; gives the values.
    pub(crate) fn statistics(
        &mut self,
        kind: Kind,
        request: &Request,
    ) -> Result<Vec<u64>, (Status, u64)> {
        let vm = &self.vms[usize::from(request.vm)];
        if vm.is_undisturbed && kind == Kind::Exits {
            return Err((Status::WouldExit, 0));
        }
        if vm.policy == CpuPolicy::Pinned && matches!(kind, Kind::Time | Kind::Waits) {
            return Err((Status::Nothing, 0));
        }
        let [first, again, ..] = request.values;
        let asked = (request.vm, request.vcpu);
        if kind == Kind::Exits && again == 1 {
            if first == 6 && self.others_ask > 0 {
                self.others_ask -= 1;
                self.exits_of = None;
            }
            if first == 6 && self.others_ask_same > 0 {
                self.others_ask_same -= 1;
                self.ticks += 1;
            }
            if self.exits_of != Some(asked) {
                return Err((Status::Nothing, 0));
            }
        } else if kind != Kind::Service {
            self.exits_of = (kind == Kind::Exits).then_some(asked);
        }
        if kind == Kind::Time || kind == Kind::Exits && again == 0 {
            self.ticks += 1;
        }
        let t = self.ticks;
        let vm = &mut self.vms[usize::from(request.vm)];
        let weight = vm.weight;
        if let (Kind::Time, Some(demand)) = (kind, &mut vm.demand) {
            let [cpu, since, waited] = demand.go_on(weight);
            let overruns = demand.overruns * demand.asked;
            return Ok(vec![2, cpu, since, waited, 70, 7 * t, overruns, 1]);
        }
        Ok(match kind {
            Kind::Time => vec![2, 500 * t, 1000 * t, 250 * t, 70, 7 * t, t, 1],
            Kind::Waits if first % 2 != 0 || first >= 40 => return Err((Status::Value, 0)),
            Kind::Waits => {
                // Class n has 100 + n waits, the last ones stay 0.
                let count = |class: u64| if class < 40 { 100 + class } else { 0 };
                let pairs = (0..14).map(|pair| first + 2 * pair);
                pairs
                    .map(|class| count(class) | count(class + 1) << 32)
                    .collect()
            }
            Kind::Exits if first >= 18 => return Err((Status::Value, 0)),
            Kind::Exits => {
                let of = |class: u64| {
                    [
                        class * t,
                        class * 300,
                        class * 90_000,
                        (200 + class) | (400 + class) << 32,
                    ]
                };
                let total = 153 * t;
                [
                    vec![total, 900 * t, 1000 * t, 100 * t],
                    of(first).to_vec(),
                    of(first + 1).to_vec(),
                ]
                .concat()
            }
            _ => vec![t, 1000 * t, 5000],
        })
    }
}

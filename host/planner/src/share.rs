//! Shares of a pCPU that its vCPUs get, in numbers.

use bulkhead_abi::plan::CpuPolicy;
use bulkhead_core::sched::bound::{Bound, Costs, Promise, WHOLE, bound};

use bulkhead_model::describe::{Code, CpuTime, Duration, Finding, System};

use super::{PlannedCpu, bandwidth};

/// What the scheduler of a pCPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// A vCPU.
    Vcpu {
        /// Index of its VM.
        vm: usize,
        /// Its number there.
        vcpu: usize,
    },
    /// The service thread.
    Thread,
}

/// A server on a pCPU.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    /// Whose it is.
    pub of: Runs,
    /// Budget and period that it was promised, in nanoseconds.
    pub promise: Promise,
    /// Result of the schedulability test for it. Nanoseconds, and millionths of the pCPU.
    pub bound: Bound,
}

/// The share of who is fair on a pCPU.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Whose it is.
    pub of: Runs,
    /// Its weight.
    pub weight: u16,
    /// Millionths of the pCPU that it gets while all vCPUs there want all that they may use. What caps leave is
    /// divided among the others.
    pub least: u64,
    /// Millionths of the pCPU that it gets at most; none: it has no cap.
    pub cap: Option<u64>,
}

/// Shares of a pCPU that its vCPUs get.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Servers, in the order of their VMs, the service thread last.
    pub servers: Vec<Server>,
    /// Millionths of the pCPU that the servers take, their switches included.
    pub load: u64,
    /// Who is fair, in the order of their VMs, the service thread last.
    pub shares: Vec<Share>,
}

impl Usage {
    /// Whether all servers get what they were promised.
    pub fn holds(&self) -> bool {
        self.servers.iter().all(|server| server.bound.holds())
    }
}

/// What EL2 takes on a pCPU.
pub fn costs(cpu: &PlannedCpu) -> Costs {
    Costs::OF_BUILD.on(cpu.service, cpu.registers)
}

/// Computes the shares of a pCPU that its vCPUs get, and the service thread; `times` by VM, and `held`, the period of a VM's limit of accesses or 0.
pub fn usage(cpu: &PlannedCpu, times: &[CpuTime], held: impl Fn(usize) -> u64) -> Usage {
    let mut promised = Vec::new();
    let mut fair = Vec::new();
    let vcpus = cpu.vcpus.iter();
    let vcpus = vcpus.map(|&(vm, vcpu)| (Runs::Vcpu { vm, vcpu }, times[vm]));
    for (of, time) in vcpus.chain(cpu.thread.map(|time| (Runs::Thread, time))) {
        match time {
            CpuTime::Pinned => {}
            CpuTime::Server { budget, period } => {
                let held = match of {
                    Runs::Vcpu { vm, .. } => held(vm),
                    Runs::Thread => 0,
                };
                let promise = Promise {
                    budget,
                    period,
                    held,
                };
                promised.push((of, promise));
            }
            CpuTime::Fair {
                weight,
                quota,
                period,
            } => fair.push((of, weight, (quota, period))),
        }
    }
    let costs = costs(cpu);
    let promises: Vec<Promise> = promised.iter().map(|(_, promise)| *promise).collect();
    let servers: Vec<Server> = promised
        .iter()
        .enumerate()
        .filter_map(|(which, &(of, promise))| {
            let bound = bound(&promises, which, costs)?;
            Some(Server { of, promise, bound })
        })
        .collect();
    let part = |time: u64, of: u64| (u128::from(time) * u128::from(WHOLE) / u128::from(of)) as u64;
    let load: u64 = servers
        .iter()
        .map(|server| part(server.bound.need, server.promise.period))
        .sum();
    let left = WHOLE.saturating_sub(load);
    let mut shares: Vec<Share> = fair
        .into_iter()
        .map(|(of, weight, (quota, period))| Share {
            of,
            weight,
            least: 0,
            cap: (quota < period).then(|| part(quota, period)),
        })
        .collect();
    divide(left, &mut shares);
    Usage {
        servers,
        load,
        shares,
    }
}

/// Divides millionths by weight. Who would get more than its cap gets that, and the rest is for the others.
fn divide(mut left: u64, shares: &mut [Share]) {
    let mut open: Vec<&mut Share> = shares.iter_mut().collect();
    loop {
        let weights: u64 = open.iter().map(|share| u64::from(share.weight)).sum();
        for share in &mut open {
            share.least = left * u64::from(share.weight) / weights.max(1);
        }
        let reached = |share: &&mut Share| share.cap.is_some_and(|cap| cap <= share.least);
        let (capped, rest): (Vec<_>, Vec<_>) = open.into_iter().partition(reached);
        if capped.is_empty() {
            return;
        }
        for share in capped {
            share.least = share.cap.unwrap_or(share.least);
            left = left.saturating_sub(share.least);
        }
        open = rest;
    }
}

/// Millionths as percent with two decimals, rounded down.
pub fn percent(millionths: u64) -> String {
    format!("{}.{:02} %", millionths / 10_000, millionths / 100 % 100)
}

/// Reports servers of a pCPU that cannot all have what they were promised.
pub(super) fn overload(
    system: &System,
    cpu: &PlannedCpu,
    times: &[CpuTime],
    findings: &mut Vec<Finding>,
) {
    let held = |vm: usize| bandwidth::in_row(system.vms[vm].bandwidth.as_ref()).1;
    let usage = usage(cpu, times, held);
    if usage.holds() {
        return;
    }
    let worst = usage.servers.iter().map(|server| server.bound.load).max();
    let mut finding = Finding::new(
        Code::CpuOverload,
        format!("the budgets on CPU {} are more than it can give", cpu.cpu),
    );
    let mut seen = Vec::new();
    for server in &usage.servers {
        let needs = format!(
            "needs {} in each {}",
            Duration(server.bound.need),
            Duration(server.promise.period)
        );
        let Runs::Vcpu { vm, .. } = server.of else {
            // What the planner chooses fits.
            let stated = system.io.time.as_ref().map(|time| time.span.clone());
            finding = finding.also(stated, format!("the service thread {needs}"));
            continue;
        };
        let spec = &system.vms[vm];
        if let (false, Some(span)) = (seen.contains(&vm), &spec.cpu.budget) {
            let here = cpu.vcpus.iter().filter(|(of, _)| *of == vm).count();
            let times = if here == 1 {
                String::new()
            } else {
                format!(", {here} times")
            };
            finding = finding.at(
                span.clone(),
                format!("`{}` {needs}{times}", spec.name.value),
            );
        }
        seen.push(vm);
    }
    let costs = costs(cpu);
    findings.push(finding.help(format!(
        "together {} of the CPU, two switches of {} for each budget{} and once the longest path of EL2, {}, \
         included; smaller budgets, longer periods, or another CPU for one of them",
        percent(worst.unwrap_or(0)),
        Duration(costs.switch),
        if cpu.service { ", the console's drain" } else { "" },
        Duration(costs.longest)
    )));
}

/// CPU time as rows of a plan have it: policy, weight, budget, period.
pub(super) fn in_row(time: CpuTime) -> (CpuPolicy, u16, u64, u64) {
    match time {
        CpuTime::Pinned => (CpuPolicy::Pinned, 0, 0, 0),
        CpuTime::Server { budget, period } => (CpuPolicy::Server, 0, budget, period),
        CpuTime::Fair {
            weight,
            quota,
            period,
        } => (CpuPolicy::Fair, weight, quota, period),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares of those who have these weights and caps, in thousandths of a pCPU of which so much is left.
    fn divided(left: u64, fair: &[(u16, Option<u64>)]) -> Vec<u64> {
        let share = |&(weight, cap): &(u16, Option<u64>)| Share {
            of: Runs::Thread,
            weight,
            least: 0,
            cap: cap.map(|cap| cap * 1000),
        };
        let mut shares: Vec<_> = fair.iter().map(share).collect();
        divide(left * 1000, &mut shares);
        shares.iter().map(|share| share.least / 1000).collect()
    }

    #[test]
    fn what_a_cap_leaves_is_divided_by_weight_among_the_others() {
        assert_eq!(
            divided(800, &[(3, None), (1, None), (1, Some(100))]),
            [525, 175, 100]
        );
        // One that the rest brings to its cap leaves something, too.
        assert_eq!(
            divided(1000, &[(1, Some(100)), (1, Some(340)), (1, None)]),
            [100, 340, 560]
        );
        assert_eq!(divided(1000, &[(1, Some(200)), (1, Some(300))]), [200, 300]);
        assert_eq!(divided(600, &[(2, Some(900)), (1, None)]), [400, 200]);
        assert_eq!(divided(600, &[]), [0; 0]);
    }
    #[test]
    fn a_server_with_a_limit_of_accesses_needs_what_its_holds_take() {
        const US: u64 = 1_000;
        let cpu = PlannedCpu {
            cpu: 0,
            mpidr: 0,
            vcpus: vec![(0, 0), (1, 0)],
            thread: None,
            service: false,
            call_spi: 0,
            pmu_intid: 0,
            registers: false,
        };
        let server = CpuTime::Server {
            budget: 100 * US,
            period: 1_000 * US,
        };
        let held = |vm: usize| [0, 100 * US][vm];
        let usage = usage(&cpu, &[server; 2], held);
        let need: Vec<u64> = usage
            .servers
            .iter()
            .map(|server| server.bound.need)
            .collect();
        let switches = |count: u64| 100 * US + count * 2 * Costs::OF_BUILD.switch;
        assert_eq!(need, [switches(1), switches(12)]);
    }
}

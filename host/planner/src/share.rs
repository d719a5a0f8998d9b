//! Shares of a pCPU that its vCPUs get, in numbers.

use bulkhead_core::sched::bound::{Bound, Costs, Promise, WHOLE, bound};

use bulkhead_model::describe::{Code, CpuTime, Duration, Finding, System};

use super::PlannedCpu;

/// A server on a pCPU.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    /// Index of its VM.
    pub vm: usize,
    /// Number of the vCPU there.
    pub vcpu: usize,
    /// Budget and period that it was promised, in nanoseconds.
    pub promise: Promise,
    /// Result of the schedulability test for it. Nanoseconds, and millionths of the pCPU.
    pub bound: Bound,
}

/// A fair vCPU on a pCPU.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Index of its VM.
    pub vm: usize,
    /// Number of the vCPU there.
    pub vcpu: usize,
    /// Its weight.
    pub weight: u16,
    /// Millionths of the pCPU that it gets while all vCPUs there want all that they may use; its cap apart.
    pub least: u64,
    /// Millionths of the pCPU that it gets at most; none: it has no cap.
    pub cap: Option<u64>,
}

/// Shares of a pCPU that its vCPUs get.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Servers, in the order of their VMs.
    pub servers: Vec<Server>,
    /// Millionths of the pCPU that the servers take, their switches included.
    pub load: u64,
    /// Fair vCPUs, in the order of their VMs.
    pub shares: Vec<Share>,
}

impl Usage {
    /// Whether all servers get what they were promised.
    pub fn holds(&self) -> bool {
        self.servers.iter().all(|server| server.bound.holds())
    }
}

/// Computes the shares of a pCPU that its vCPUs get; `times` by VM.
pub fn usage(cpu: &PlannedCpu, times: &[CpuTime]) -> Usage {
    let mut promised = Vec::new();
    let mut fair = Vec::new();
    for &(vm, vcpu) in &cpu.vcpus {
        match times[vm] {
            CpuTime::Pinned => {}
            CpuTime::Server { budget, period } => {
                promised.push((vm, vcpu, Promise { budget, period }));
            }
            CpuTime::Fair {
                weight,
                quota,
                period,
            } => fair.push((vm, vcpu, weight, (quota, period))),
        }
    }
    let promises: Vec<Promise> = promised.iter().map(|(.., promise)| *promise).collect();
    let servers: Vec<Server> = promised
        .iter()
        .enumerate()
        .filter_map(|(which, &(vm, vcpu, promise))| {
            let bound = bound(&promises, which, Costs::OF_BUILD.on(cpu.service))?;
            Some(Server {
                vm,
                vcpu,
                promise,
                bound,
            })
        })
        .collect();
    let part = |time: u64, of: u64| (u128::from(time) * u128::from(WHOLE) / u128::from(of)) as u64;
    let load: u64 = servers
        .iter()
        .map(|server| part(server.bound.need, server.promise.period))
        .sum();
    let left = WHOLE.saturating_sub(load);
    let weights: u64 = fair
        .iter()
        .map(|(_, _, weight, _)| u64::from(*weight))
        .sum();
    let shares = fair
        .into_iter()
        .map(|(vm, vcpu, weight, (quota, period))| Share {
            vm,
            vcpu,
            weight,
            least: left * u64::from(weight) / weights.max(1),
            cap: (quota < period).then(|| part(quota, period)),
        })
        .collect();
    Usage {
        servers,
        load,
        shares,
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
    let usage = usage(cpu, times);
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
        let spec = &system.vms[server.vm];
        if let (false, Some(span)) = (seen.contains(&server.vm), &spec.cpu.budget) {
            let here = cpu.vcpus.iter().filter(|(vm, _)| *vm == server.vm).count();
            let times = if here == 1 {
                String::new()
            } else {
                format!(", {here} times")
            };
            finding = finding.at(
                span.clone(),
                format!(
                    "`{}` needs {} in each {}{times}",
                    spec.name.value,
                    Duration(server.bound.need),
                    Duration(server.promise.period)
                ),
            );
        }
        seen.push(server.vm);
    }
    let costs = Costs::OF_BUILD;
    findings.push(finding.help(format!(
        "together {} of the CPU, two switches of {} for each budget{} and once the longest path of EL2, {}, \
         included; smaller budgets, longer periods, or another CPU for one of them",
        percent(worst.unwrap_or(0)),
        Duration(costs.switch),
        if cpu.service { ", the console's drain" } else { "" },
        Duration(costs.longest)
    )));
}

//! What virtio devices cost: EL2 on the pCPU of the vCPU that uses one, EL2 on the others, and everything that all pCPUs
//! execute. On an idle service pCPU, and on one on which another VM works.
//!
//! Instructions are counted on all pCPUs while an operation is under way. A pCPU that waits is in WFI and executes none; only the VM
//! that works beside the service is left out, because its work is not the operation's.

use std::collections::BTreeMap;

use bulkhead_profiler::{self as counted, Cost, Profile};

use bulkhead_model::checkout;
use bulkhead_model::failure::Failure;
use bulkhead_runner::build::build;
use bulkhead_runner::profile::Program;

use super::attribute::by_place;
use super::budgets::{Budget, Gic, ServicePcpu, Share};
use super::figure::{Figure, Part};
use super::subject::operations::{DEVICE_RUNS, DEVICES, Figure as Group, device_run};
use super::subject::{Run, Subject};

/// The systems: the board's GIC, what the service pCPU has to do, and the description.
const SYSTEMS: [(Gic, ServicePcpu, &str); 10] = [
    (Gic::V3, ServicePcpu::Idle, "lab/systems/bench-device.toml"),
    (
        Gic::V3,
        ServicePcpu::Busy,
        "lab/systems/bench-device-busy.toml",
    ),
    (
        Gic::V2,
        ServicePcpu::Idle,
        "lab/systems/bench-device-gicv2.toml",
    ),
    (
        Gic::V2,
        ServicePcpu::Busy,
        "lab/systems/bench-device-busy-gicv2.toml",
    ),
    (
        Gic::V3,
        ServicePcpu::Control,
        "lab/systems/bench-control.toml",
    ),
    (
        Gic::V2,
        ServicePcpu::Control,
        "lab/systems/bench-control-gicv2.toml",
    ),
    (
        Gic::V3,
        ServicePcpu::Own,
        "lab/systems/bench-device-own.toml",
    ),
    (
        Gic::V3,
        ServicePcpu::OwnBusy,
        "lab/systems/bench-device-own-busy.toml",
    ),
    (
        Gic::V2,
        ServicePcpu::Own,
        "lab/systems/bench-device-own-gicv2.toml",
    ),
    (
        Gic::V2,
        ServicePcpu::OwnBusy,
        "lab/systems/bench-device-own-busy-gicv2.toml",
    ),
];
/// Name of the guest program.
const GUEST: &str = "device-cost";
/// The VM whose work is not the operation's.
const BESIDE: &str = "beside";

/// Counts of a system.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Of the profiler.
    pub profile: Profile,
    /// Names of VMs by their VMIDs.
    pub vms: BTreeMap<u64, String>,
    /// Ticks that a guest has seen an operation take, by the name of its group.
    pub latencies: BTreeMap<String, u64>,
}

/// The counts of all systems.
#[derive(Default)]
pub struct DeviceRuns {
    /// By the board's GIC and what else the service pCPU has to do.
    pub counts: Vec<(Gic, ServicePcpu, Counts)>,
    /// EL2 of each of them.
    pub el2: Vec<Program>,
}

/// One run of a group, by share.
struct Seen {
    here: Cost,
    elsewhere: Cost,
    vms: Vec<(String, u64)>,
}

impl DeviceRuns {
    /// Builds all systems and runs them.
    ///
    /// # Errors
    ///
    /// Something can't be built or run, or the guest does not get to its end.
    pub fn measure() -> Result<Self, Failure> {
        Self::measure_those(|_, _| true)
    }

    /// The same of the systems whose GIC and whose service pCPU are wanted.
    pub(super) fn measure_those(
        wanted: impl Fn(Gic, ServicePcpu) -> bool,
    ) -> Result<Self, Failure> {
        let mut runs = Self::default();
        let systems = SYSTEMS.iter().copied();
        for (gic, load, system) in systems.filter(|(gic, load, _)| wanted(*gic, *load)) {
            let built = build(&checkout::root().join(system)).map_err(Failure::from)?;
            // The VMID is the index plus one (`bulkhead_core::plan`).
            let names = built.planned.vms.iter().map(|vm| vm.name.clone());
            let vms = (1..).zip(names).collect();
            let el2 = Program::read(&built.el2)?;
            let subject = Subject::of(built, GUEST, format!("{GUEST}: all seen"))?;
            let Run { profile, latencies } = subject.run_everywhere(&el2)?;
            let counts = Counts {
                profile,
                vms,
                latencies,
            };
            runs.counts.push((gic, load, counts));
            runs.el2.push(el2);
        }
        Ok(runs)
    }

    /// Attributes EL2's part of the figure of this budget, in the first run.
    ///
    /// # Errors
    ///
    /// It was not measured, or EL2's ELF file can't be read.
    pub(super) fn attribute(&self, budget: &Budget, share: Share) -> Result<String, Failure> {
        let (known, place) = self.find(budget)?;
        let empty = counted::Figure::default();
        let (mut counted, program) = (empty.clone(), self.el2.get(place));
        let (Some(program), Some((_, _, counts))) = (program, self.counts.get(place)) else {
            return Err(missing(budget));
        };
        let profile = &counts.profile;
        let all = [&profile.figures, &profile.elsewhere];
        let parts = match share {
            Share::Vcpu => &all[..1],
            Share::Service => &all[1..],
            Share::El2 | Share::Total => &all[..],
        };
        for part in parts {
            let part = part.get(&device_run(known.id, 0)).unwrap_or(&empty);
            counted.cost.add(part.cost);
            for (name, count) in &part.symbols {
                *counted.symbols.entry(name.clone()).or_default() += count;
            }
            for (address, count) in &part.addresses {
                *counted.addresses.entry(*address).or_default() += count;
            }
        }
        by_place(
            &counted,
            known.operations * known.events,
            program,
            &budget.name,
        )
    }

    /// The group of a budget, and the place of its system among the counts.
    fn find(&self, budget: &Budget) -> Result<(&'static Group, usize), Failure> {
        let name = budget.measured.as_deref().unwrap_or(&budget.name);
        let known = DEVICES.iter().find(|known| known.name == name);
        let is_it = |(gic, load, _): &(Gic, ServicePcpu, Counts)| {
            (*gic, *load) == (budget.gic, budget.load)
        };
        let place = self.counts.iter().position(is_it);
        known.zip(place).ok_or_else(|| missing(budget))
    }

    /// Returns the figure of this budget: the worst of the runs.
    pub(super) fn figure(&self, budget: &Budget, share: Share) -> Result<Figure, Failure> {
        let (known, place) = self.find(budget)?;
        let counts = self.counts.get(place).map(|(_, _, counts)| counts);
        if budget.latency {
            let ticks = counts.and_then(|counts| counts.latencies.get(known.name));
            let ticks = ticks.ok_or_else(|| missing(budget))?;
            return Ok(Figure::new(budget, *ticks as f64));
        }
        let runs = (0..DEVICE_RUNS).map(|run| counts?.seen(device_run(known.id, run)));
        let runs: Option<Vec<Seen>> = runs.collect();
        let worst = runs
            .into_iter()
            .flatten()
            .max_by_key(|seen| seen.sum(share));
        let worst = worst.ok_or_else(|| missing(budget))?;
        let events = known.operations * known.events;
        let mut figure = Figure::new(budget, worst.sum(share) as f64 / f64::from(events));
        let beside = match share {
            Share::Vcpu => Some(worst.here),
            Share::Service => Some(worst.elsewhere),
            Share::El2 | Share::Total => None,
        };
        if let Some(cost) = beside {
            figure = figure.beside(cost, events);
        }
        if share == Share::Total {
            figure.note = format!("in {events} operations, the worst of {DEVICE_RUNS} runs");
            let el2 = [
                ("EL2 on the pCPU of the vCPU", worst.here.instructions),
                ("EL2 on other pCPUs", worst.elsewhere.instructions),
            ];
            let el2 = el2.map(|(name, value)| (name.to_owned(), value));
            let vms = worst
                .vms
                .into_iter()
                .map(|(vm, value)| (format!("VM {vm}"), value));
            let parts = el2.into_iter().chain(vms);
            figure.parts = parts.map(|(name, value)| Part { name, value }).collect();
        }
        Ok(figure)
    }
}

fn missing(budget: &Budget) -> Failure {
    let advice = "lab/budgets.toml and guests/src/figures.rs have to name the same figures";
    Failure::failed(format!("`{}` was not measured", budget.name), "", advice)
}

impl Counts {
    /// What a run of a group has taken; `None` if it was not marked, or if a VM is not known.
    fn seen(&self, id: u64) -> Option<Seen> {
        let guests = self.profile.guests.get(&id)?.iter();
        let vms = guests.map(|(vmid, count)| Some((self.vms.get(vmid)?.clone(), *count)));
        let vms: Option<Vec<_>> = vms.collect();
        let mut vms = vms?;
        vms.retain(|(name, _)| name != BESIDE);
        Some(Seen {
            here: self.profile.figures.get(&id)?.cost,
            elsewhere: self.profile.elsewhere.get(&id)?.cost,
            vms,
        })
    }
}

impl Seen {
    fn sum(&self, share: Share) -> u64 {
        let (here, elsewhere) = (self.here.instructions, self.elsewhere.instructions);
        match share {
            Share::Vcpu => here,
            Share::Service => elsewhere,
            Share::El2 => here + elsewhere,
            Share::Total => here + elsewhere + self.vms.iter().map(|vm| vm.1).sum::<u64>(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::budgets::Budgets;
    use super::*;

    /// In each operation of run `n`: 10 + n of EL2 on the pCPU of the vCPU, 20 elsewhere, 30 of a VM, 40 of one beside.
    pub fn counted() -> DeviceRuns {
        let mut counts = Counts {
            vms: [(1, "one"), (2, BESIDE)]
                .map(|(vmid, name)| (vmid, name.to_owned()))
                .into(),
            latencies: [("channel_doorbell".to_owned(), 714)].into(),
            ..Counts::default()
        };
        let profile = &mut counts.profile;
        for known in &DEVICES {
            // Where nobody rings EL2 does nothing, and its ceiling is that.
            let rings = u64::from(known.name != "channel_polled");
            let each = u64::from(known.operations * known.events) * rings;
            for run in 0..DEVICE_RUNS {
                let figure = |instructions| counted::Figure {
                    cost: Cost {
                        instructions: instructions * each,
                        ..Cost::default()
                    },
                    ..counted::Figure::default()
                };
                let id = device_run(known.id, run);
                profile.figures.insert(id, figure(10 + run));
                profile.elsewhere.insert(id, figure(20));
                let guests = [(1, 30 * each), (2, 40 * each)];
                profile.guests.insert(id, guests.into());
            }
        }
        let of = |(gic, load, _)| (gic, load, counts.clone());
        DeviceRuns {
            counts: SYSTEMS.map(of).into(),
            el2: Vec::new(),
        }
    }

    fn value(runs: &DeviceRuns, name: &str) -> Option<f64> {
        let budgets = Budgets::load().expect("they are in the repository");
        let budget = budgets.get(name).expect("a budget");
        let figure = runs.figure(budget, budget.share.expect("of a device"));
        figure.ok().map(|figure| figure.value)
    }

    #[test]
    fn the_worst_run_counts_and_nothing_but_the_vm_beside_is_left_out() {
        let runs = counted();
        for (name, expected) in [
            ("virtio_notify", 12.0),
            ("blk_service_busy", 20.0),
            ("net_el2_b32", 32.0),
            ("blk_total_busy_v2", 62.0),
            ("channel_doorbell", 32.0),
            ("channel_latency_v2", 714.0),
        ] {
            assert_eq!(value(&runs, name), Some(expected), "{name}");
        }
    }

    #[test]
    fn what_was_not_counted_is_a_failure() {
        let mut unknown = counted();
        for (_, _, counts) in &mut unknown.counts {
            counts.vms.remove(&1);
        }
        assert_eq!(value(&unknown, "blk_total"), None, "whose instructions?");
        let mut gap = counted();
        let blk = DEVICES
            .iter()
            .find(|known| known.name == "blk")
            .expect("there");
        for (_, _, counts) in &mut gap.counts {
            counts.profile.elsewhere.remove(&device_run(blk.id, 1));
        }
        assert_eq!(value(&gap, "blk_vcpu"), None, "one of the runs");
        assert!(value(&gap, "virtio_notify").is_some());
    }
}

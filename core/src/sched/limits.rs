//! Scheduling parameters of each vCPU as they hold now: those of the plan until the console or a
//! manager changes them. This is the only way in which weights, caps, budgets, periods and pools change
//! while a system runs.
//!
//! [`Limits::change`] is for one pCPU at a time, which has the authority over VMs. An accepted
//! change has passed the rules of the plan; the caller notifies the pCPUs of the VM, which read it
//! ([`Limits::of`]) and pass it to their schedulers.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use bulkhead_abi::plan::{CpuPolicy, MAX_PERIOD, MAX_VCPUS, MAX_WEIGHT, MIN_PERIOD, Vcpu};

use super::bound::{Promise, WHOLE, worst_load};
use crate::console::text::TextLine;

/// A change to all vCPUs of a VM. Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Weight of fair vCPUs.
    Weight(u16),
    /// Cap of fair vCPUs: at most `quota` in each `period`; equal to it for no cap.
    Cap {
        /// CPU time in each period, at least 1.
        quota: u64,
        /// Length of the period, at least `quota`.
        period: u64,
    },
    /// Parameters of servers: `budget` in each `period`.
    Server {
        /// CPU time in each period, at least 1.
        budget: u64,
        /// Time from one deadline to the next, at least `budget`.
        period: u64,
    },
    /// The pCPUs on which fair vCPUs may run, one bit for each; a subset of the pool of the plan.
    Pool(u32),
}

/// Reason for refusing a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The VM does not exist.
    Nobody,
    /// The vCPUs of the VM are pinned.
    Pinned,
    /// A weight, a cap or a pool for a VM of servers.
    NotFair,
    /// A budget for a VM of fair vCPUs.
    NotServer,
    /// The weight is not 1 to [`MAX_WEIGHT`].
    Weight,
    /// The period is not [`MIN_PERIOD`] to [`MAX_PERIOD`].
    Period,
    /// The budget is 0 or more than its period.
    Budget,
    /// The pool is empty or contains a pCPU that is not in the pool of the plan.
    Pool,
    /// The servers of a pCPU would not all keep their promises.
    Overload {
        /// Index of the pCPU.
        pcpu: u16,
        /// Millionths of the pCPU that the servers would take.
        load: u64,
    },
}

impl Refusal {
    /// Appends the reason to `line`.
    pub fn write(self, line: &mut TextLine) {
        match self {
            Self::Nobody => line.text("there is no such VM"),
            Self::Pinned => line.text("it has its pcpu to itself"),
            Self::NotFair => line.text("it has a budget, and so neither weight nor cap nor pool"),
            Self::NotServer => line.text("it has a weight, and so no budget"),
            Self::Weight => line.text("a weight is 1 to ").decimal(MAX_WEIGHT.into()),
            Self::Period => {
                line.text("a period is ").decimal(MIN_PERIOD / 1000);
                line.text(" to ").decimal(MAX_PERIOD / 1000).text(" us")
            }
            Self::Budget => line.text("it is to be more than nothing and at most the whole period"),
            Self::Pool => line.text("each is to be a cpu of the pool in the description"),
            Self::Overload { pcpu, load } => {
                line.text("the budgets on pcpu ").decimal(pcpu.into());
                line.text(" would take ").decimal(load / 10_000).byte(b'.');
                line.decimal(load / 1000 % 10).decimal(load / 100 % 10);
                line.text("% of it, what they cost included")
            }
        };
    }
}

/// Scheduling parameters of a vCPU, guarded by a sequence count: an odd version is being written.
#[derive(Debug)]
struct Row {
    version: AtomicU64,
    weight: AtomicU64,
    budget: AtomicU64,
    period: AtomicU64,
    pool: AtomicU32,
}

/// The current scheduling parameters of all vCPUs. Until a vCPU's first change its row of the plan
/// holds.
#[derive(Debug)]
pub struct Limits {
    rows: [Row; MAX_VCPUS],
    /// Index of the pCPU that drains the console, and 1; 0 before that is known.
    drainer: AtomicU32,
    /// pCPUs, a bit for each, to which vCPUs may come that have more to save and restore than most.
    registers: AtomicU32,
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}

impl Limits {
    /// Limits without changes: the plan holds.
    pub const fn new() -> Self {
        Self {
            rows: [const {
                Row {
                    version: AtomicU64::new(0),
                    weight: AtomicU64::new(0),
                    budget: AtomicU64::new(0),
                    period: AtomicU64::new(0),
                    pool: AtomicU32::new(0),
                }
            }; MAX_VCPUS],
            drainer: AtomicU32::new(0),
            registers: AtomicU32::new(0),
        }
    }

    /// Sets the pCPU that drains the console, during start-up.
    pub fn set_drainer(&self, index: usize) {
        let number = (index as u32).wrapping_add(1);
        self.drainer.store(number, Ordering::Relaxed);
    }

    /// Sets the pCPUs, a bit for each, whose switches take longer ([`Plan::have_registers`](crate::plan::Plan::have_registers)), during start-up.
    pub fn set_registers(&self, pcpus: u32) {
        self.registers.store(pcpus, Ordering::Relaxed);
    }

    /// Returns row `id` of the plan as it holds now. `None` while a change is being written: the
    /// writer notifies the pCPU afterwards.
    #[inline(never)]
    pub fn of(&self, vcpus: &[Vcpu], id: usize) -> Option<Vcpu> {
        let (mut vcpu, row) = (*vcpus.get(id)?, self.rows.get(id)?);
        let version = row.version.load(Ordering::Acquire);
        if version == 0 {
            return Some(vcpu);
        }
        vcpu.weight = row.weight.load(Ordering::Relaxed) as u16;
        vcpu.budget = row.budget.load(Ordering::Relaxed);
        vcpu.period = row.period.load(Ordering::Relaxed);
        vcpu.pool = row.pool.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let whole = version & 1 == 0 && row.version.load(Ordering::Relaxed) == version;
        whole.then_some(vcpu)
    }

    fn store(&self, id: usize, vcpu: &Vcpu) {
        let Some(row) = self.rows.get(id) else { return };
        let version = row.version.load(Ordering::Relaxed);
        row.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        row.weight.store(vcpu.weight.into(), Ordering::Relaxed);
        row.budget.store(vcpu.budget, Ordering::Relaxed);
        row.period.store(vcpu.period, Ordering::Relaxed);
        row.pool.store(vcpu.pool, Ordering::Relaxed);
        row.version
            .store(version.wrapping_add(2), Ordering::Release);
    }

    /// Changes the scheduling parameters of the vCPUs of `vm`. For one pCPU at a time.
    ///
    /// # Errors
    ///
    /// The reason for a refusal; nothing has changed then.
    pub fn change(&self, vcpus: &[Vcpu], vm: usize, change: Change) -> Result<(), Refusal> {
        self.change_or_try(vcpus, vm, change, false)
    }

    /// The same; a trial changes nothing and says what the change would say.
    ///
    /// # Errors
    ///
    /// The reason for a refusal.
    pub fn change_or_try(
        &self,
        vcpus: &[Vcpu],
        vm: usize,
        change: Change,
        is_trial: bool,
    ) -> Result<(), Refusal> {
        let own = |vcpu: &Vcpu| usize::from(vcpu.vm) == vm;
        let after = |id: usize| {
            let vcpu = self.of(vcpus, id)?;
            Some(if own(&vcpu) {
                change.of(vcpu, vcpus.get(id)?.pool).ok()?
            } else {
                vcpu
            })
        };
        let mut found = Err(Refusal::Nobody);
        let mut checked = None;
        let rows = || (0..MAX_VCPUS).zip(vcpus);
        for (id, row) in rows().filter(|(_, row)| own(row)) {
            change.of(self.of(vcpus, id).ok_or(Refusal::Nobody)?, row.pool)?;
            found = Ok(());
            // Fair vCPUs have no promise to check; vCPUs of a VM on the same pCPU are mostly
            // adjacent.
            if !is(row, CpuPolicy::Server) || checked == Some(row.pcpu) {
                continue;
            }
            checked = Some(row.pcpu);
            let servers = rows()
                .filter(|(_, other)| other.pcpu == row.pcpu && is(other, CpuPolicy::Server))
                .filter_map(|(id, _)| after(id));
            let promises = servers.map(|server| Promise {
                budget: server.budget,
                period: server.period,
                held: server.events_period,
            });
            let drainer = self.drainer.load(Ordering::Relaxed);
            let drains = u32::from(row.pcpu).wrapping_add(1) == drainer;
            let registers = self.registers.load(Ordering::Relaxed);
            let registers = registers.wrapping_shr(row.pcpu.into()) & 1 != 0;
            let load = worst_load(promises, drains, registers).unwrap_or(u64::MAX);
            if load > WHOLE {
                let pcpu = row.pcpu;
                return Err(Refusal::Overload { pcpu, load });
            }
        }
        found?;
        for (id, _) in rows().filter(|(_, row)| !is_trial && own(row)) {
            if let Some(vcpu) = after(id) {
                self.store(id, &vcpu);
            }
        }
        Ok(())
    }
}

fn is(vcpu: &Vcpu, policy: CpuPolicy) -> bool {
    vcpu.policy == policy as u16
}

impl Change {
    /// Applies the change to a row; `pool` is the pool of the plan.
    fn of(self, mut vcpu: Vcpu, pool: u32) -> Result<Vcpu, Refusal> {
        let fair = is(&vcpu, CpuPolicy::Fair);
        if is(&vcpu, CpuPolicy::Pinned) {
            return Err(Refusal::Pinned);
        }
        match self {
            Self::Weight(_) | Self::Cap { .. } | Self::Pool(_) if !fair => {
                return Err(Refusal::NotFair);
            }
            Self::Server { .. } if fair => return Err(Refusal::NotServer),
            Self::Pool(asked) => {
                if asked == 0 || asked & !pool != 0 {
                    return Err(Refusal::Pool);
                }
                vcpu.pool = asked;
            }
            Self::Weight(weight) => {
                if !(1..=MAX_WEIGHT).contains(&weight) {
                    return Err(Refusal::Weight);
                }
                vcpu.weight = weight;
            }
            Self::Cap {
                quota: budget,
                period,
            }
            | Self::Server { budget, period } => {
                if !(MIN_PERIOD..=MAX_PERIOD).contains(&period) {
                    return Err(Refusal::Period);
                }
                if budget == 0 || budget > period {
                    return Err(Refusal::Budget);
                }
                vcpu.budget = budget;
                vcpu.period = period;
            }
        }
        Ok(vcpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{string::String, vec::Vec};
    use zerocopy::FromZeros;

    const MS: u64 = 1_000_000;

    /// VM 0 is pinned on pCPU 0; VM 1 (server) and VM 2 (fair, two vCPUs) are on pCPU 1; VM 3 has a
    /// server on pCPU 1 and one on pCPU 2.
    fn rows() -> Vec<Vcpu> {
        let row = |vm, pcpu, policy: CpuPolicy, weight, budget, period| Vcpu {
            vm,
            pcpu,
            policy: policy as u16,
            weight,
            budget,
            period,
            pool: if policy == CpuPolicy::Fair { 0b110 } else { 0 },
            ..Vcpu::new_zeroed()
        };
        [
            row(0, 0, CpuPolicy::Pinned, 0, 0, 0),
            row(1, 1, CpuPolicy::Server, 0, MS, 4 * MS),
            row(2, 1, CpuPolicy::Fair, 1, 100 * MS, 100 * MS),
            row(2, 1, CpuPolicy::Fair, 1, 100 * MS, 100 * MS),
            row(3, 1, CpuPolicy::Server, 0, 2 * MS, 10 * MS),
            row(3, 2, CpuPolicy::Server, 0, 2 * MS, 10 * MS),
        ]
        .into()
    }

    fn times(limits: &Limits, rows: &[Vcpu]) -> Vec<(u16, u64, u64)> {
        (0..rows.len())
            .map(|id| limits.of(rows, id).unwrap())
            .map(|vcpu| (vcpu.weight, vcpu.budget, vcpu.period))
            .collect()
    }

    #[test]
    fn a_change_is_that_of_each_vcpu_of_its_vm_alone() {
        let (limits, rows) = (Limits::new(), rows());
        let plan = times(&limits, &rows);
        assert_eq!(limits.change(&rows, 2, Change::Weight(7)), Ok(()));
        let cap = Change::Cap {
            quota: 30 * MS,
            period: 100 * MS,
        };
        assert_eq!(limits.change(&rows, 2, cap), Ok(()));
        let server = Change::Server {
            budget: 4 * MS,
            period: 20 * MS,
        };
        assert_eq!(limits.change(&rows, 3, server), Ok(()));
        let mut expected = plan;
        expected[2] = (7, 30 * MS, 100 * MS);
        expected[3] = expected[2];
        expected[4] = (0, 4 * MS, 20 * MS);
        expected[5] = expected[4];
        assert_eq!(times(&limits, &rows), expected);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_reason_and_changes_nothing() {
        let (limits, rows) = (Limits::new(), rows());
        let plan = times(&limits, &rows);
        let server = |budget, period| Change::Server { budget, period };
        let cap = |quota, period| Change::Cap { quota, period };
        for (vm, change, refusal) in [
            (9, Change::Weight(1), Refusal::Nobody),
            (0, Change::Weight(1), Refusal::Pinned),
            (1, Change::Weight(1), Refusal::NotFair),
            (1, cap(MS, MS), Refusal::NotFair),
            (1, Change::Pool(2), Refusal::NotFair),
            (2, Change::Pool(0), Refusal::Pool),
            (2, Change::Pool(0b1010), Refusal::Pool),
            (2, server(MS, MS), Refusal::NotServer),
            (2, Change::Weight(0), Refusal::Weight),
            (2, Change::Weight(1001), Refusal::Weight),
            (2, cap(0, MS), Refusal::Budget),
            (2, cap(MS + 1, MS), Refusal::Budget),
            (2, cap(1, 99_999), Refusal::Period),
            (1, server(MS, 10_000_000_001), Refusal::Period),
        ] {
            assert_eq!(limits.change(&rows, vm, change), Err(refusal), "{change:?}");
        }
        // It would fit alone on pCPU 2, but not beside the other server on pCPU 1.
        let refused = limits.change(&rows, 3, server(8 * MS, 10 * MS));
        let Err(Refusal::Overload { pcpu: 1, load }) = refused else {
            panic!("{refused:?}");
        };
        assert!((1_050_000..1_060_000).contains(&load), "{load}");
        assert_eq!(times(&limits, &rows), plan);
        let mut line = TextLine::new();
        Refusal::Overload {
            pcpu: 1,
            load: 1_051_870,
        }
        .write(&mut line);
        assert_eq!(
            String::from_utf8(line.as_bytes().to_vec()).unwrap(),
            "the budgets on pcpu 1 would take 105.18% of it, what they cost included"
        );
    }

    #[test]
    fn a_pool_is_part_of_that_of_the_plan_and_can_grow_again() {
        let (limits, rows) = (Limits::new(), rows());
        let pool = |id| limits.of(&rows, id).unwrap().pool;
        for mask in [0b100, 0b110, 0b010] {
            assert_eq!(limits.change(&rows, 2, Change::Pool(mask)), Ok(()));
            assert_eq!([2, 3].map(pool), [mask; 2]);
        }
        assert_eq!(limits.change(&rows, 2, Change::Weight(9)), Ok(()));
        assert_eq!(pool(2), 0b010, "it stays what it was");
        assert_eq!(pool(1), 0);
    }

    #[test]
    fn later_changes_count_against_earlier_ones() {
        let (limits, rows) = (Limits::new(), rows());
        let server = |budget| Change::Server {
            budget,
            period: 10 * MS,
        };
        assert_eq!(limits.change(&rows, 1, server(7 * MS)), Ok(()));
        assert!(limits.change(&rows, 3, server(3 * MS)).is_err());
        assert_eq!(limits.change(&rows, 1, server(6 * MS)), Ok(()));
        assert_eq!(limits.change(&rows, 3, server(3 * MS)), Ok(()));
    }

    /// What a trial says is what the change says, and nothing has changed behind it.
    #[test]
    fn a_trial_changes_nothing() {
        let (rows, limits) = (rows(), Limits::new());
        let server = |budget| Change::Server {
            budget,
            period: 10 * MS,
        };
        for (vm, change) in [
            (2, Change::Weight(7)),
            (3, server(3 * MS)),
            (3, server(8 * MS)),
            (2, server(MS)),
        ] {
            let before: Vec<Option<Vcpu>> =
                (0..rows.len()).map(|id| limits.of(&rows, id)).collect();
            let said = limits.change_or_try(&rows, vm, change, true);
            let behind: Vec<Option<Vcpu>> =
                (0..rows.len()).map(|id| limits.of(&rows, id)).collect();
            assert_eq!(before, behind, "{change:?}");
            assert_eq!(said, limits.change(&rows, vm, change), "{change:?}");
        }
    }

    #[test]
    fn switches_that_take_longer_count_on_their_pcpu() {
        // 2 of 10 ms are the other server's; a switch takes 850 ns, or 2850 ns.
        let almost_all = Change::Server {
            budget: 7_988_000,
            period: 10 * MS,
        };
        for (pcpus, fits) in [(0, true), (0b101, true), (0b010, false)] {
            let (limits, rows) = (Limits::new(), rows());
            limits.set_registers(pcpus);
            let changed = limits.change(&rows, 1, almost_all);
            assert_eq!(changed.is_ok(), fits, "{pcpus:#b}: {changed:?}");
        }
    }

    #[test]
    fn a_row_that_is_being_written_is_not_read() {
        let (limits, rows) = (Limits::new(), rows());
        limits.rows[2].version.store(1, Ordering::Relaxed);
        assert!(limits.of(&rows, 2).is_none());
        assert!(limits.of(&rows, 3).is_some());
    }
}

//! What lies between two looks at a VM: counters are EL2's and only grow within a life, measures are their differences.

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_abi::control::Phase;
use bulkhead_abi::plan::CpuPolicy;
use bulkhead_control::board::{Exits, Time, Vcpu};
use bulkhead_control::manager::Told;

use crate::rule::Measure;

/// Power state of a vCPU that is on.
const ON: u64 = 3;

/// What a look has found of a vCPU.
#[derive(Clone, Debug)]
pub struct VcpuLook {
    /// Its state.
    pub state: Vcpu,
    /// Its CPU time; not if nobody asked.
    pub time: Told<Time>,
    /// Its exits; not if nobody asked.
    pub exits: Told<Exits>,
}

/// What a look has found of a VM.
#[derive(Clone, Debug)]
pub struct VmLook {
    /// [`Phase`] as number.
    pub phase: u64,
    /// Lives so far.
    pub lives: u64,
    /// Its vCPUs, by number.
    pub vcpus: Vec<VcpuLook>,
}

impl VmLook {
    /// Whether it is in this phase.
    pub fn is(&self, phase: Phase) -> bool {
        self.phase == phase as u64
    }

    /// The pCPUs on which its vCPUs are or may be, a bit for each.
    pub fn pcpus(&self) -> u64 {
        let bits = self.vcpus.iter().map(|vcpu| {
            let here = 1u64.checked_shl(vcpu.state.pcpu.into()).unwrap_or(0);
            if vcpu.state.is(CpuPolicy::Fair) {
                here | vcpu.state.pool
            } else {
                here
            }
        });
        bits.fold(0, |all, one| all | one)
    }
}

/// A look at the VMs by name. Those that could not be looked at are not there.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// When: time that never goes back.
    pub at: Duration,
    /// What it has found.
    pub vms: BTreeMap<String, VmLook>,
}

/// A measure of a VM, or why there is none.
pub type Measured = Told<f64>;

/// Why there is no measure.
pub mod none {
    /// The VM could not be looked at.
    pub const AWAY: &str = "it cannot be seen";
    /// It is stopped, or on its way there or from there.
    pub const STOPPED: &str = "it does not run";
    /// It is paused.
    pub const PAUSED: &str = "it is paused";
    /// There is no earlier look at this life.
    pub const FIRST: &str = "this is the first look at this life";
    /// A counter has gone back without a new life.
    pub const BACK: &str = "its counters began anew";
    /// No vCPU is on.
    pub const OFF: &str = "no vCPU of it is on";
    /// The counters say that no time has passed.
    pub const NO_TIME: &str = "no time has passed for it";
}

/// Counters of the look before.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    before: Look,
}

/// Measures of the time between two looks.
#[derive(Clone, Debug)]
pub struct Between {
    before: Look,
    now: Look,
}

impl Meter {
    /// Takes a look; gives what lies between the one before and this one.
    pub fn take(&mut self, look: &Look) -> Between {
        let before = std::mem::replace(&mut self.before, look.clone());
        Between {
            before,
            now: look.clone(),
        }
    }
}

impl Between {
    /// When the time that it measures began.
    pub const fn since(&self) -> Duration {
        self.before.at
    }

    /// A measure of a VM: of its vCPUs that are on the greatest part, or the sum of the rates.
    pub fn measure(&self, vm: &str, measure: Measure) -> Measured {
        let now = self.now.vms.get(vm).ok_or(none::AWAY)?;
        if now.is(Phase::Paused) {
            return Err(none::PAUSED);
        }
        if !now.is(Phase::Running) {
            return Err(none::STOPPED);
        }
        let before = self.before.vms.get(vm).ok_or(none::FIRST)?;
        if before.lives != now.lives || !before.is(Phase::Running) {
            return Err(none::FIRST);
        }
        let seconds = self.now.at.saturating_sub(self.before.at).as_secs_f64();
        let mut found = None;
        for (earlier, later) in before.vcpus.iter().zip(&now.vcpus) {
            if later.state.power != ON {
                continue;
            }
            if earlier.state.power != ON {
                return Err(none::FIRST);
            }
            let one = of_vcpu(earlier, later, measure, seconds)?;
            let all = found.get_or_insert(0.0_f64);
            *all = if measure.is_rate() {
                *all + one
            } else {
                all.max(one)
            };
        }
        found.ok_or(none::OFF)
    }
}

/// The difference of a counter.
fn grown(before: u64, now: u64) -> Told<f64> {
    let grown = now.checked_sub(before).ok_or(none::BACK)?;
    Ok(grown as f64)
}

/// A part of something that has grown.
fn part(part: f64, whole: f64) -> Measured {
    if whole <= 0.0 {
        return Err(none::NO_TIME);
    }
    Ok(part / whole)
}

fn of_vcpu(before: &VcpuLook, now: &VcpuLook, measure: Measure, seconds: f64) -> Measured {
    let times = || {
        let (before, now) = (before.time?, now.time?);
        let passed = grown(before.since, now.since)?;
        Ok((before, now, passed))
    };
    let cycles = || {
        let (before, now) = (before.exits.as_ref(), now.exits.as_ref());
        let (before, now) = (before.map_err(|why| *why)?, now.map_err(|why| *why)?);
        let on = grown(before.on, now.on)?;
        Ok((before, now, on))
    };
    let cpu = || {
        if now.state.is(CpuPolicy::Pinned) {
            let (before, now, on) = cycles()?;
            return part(grown(before.in_guest, now.in_guest)?, on);
        }
        let (before, now, passed) = times()?;
        part(grown(before.cpu_time, now.cpu_time)?, passed)
    };
    match measure {
        Measure::Cpu => cpu(),
        Measure::Used => {
            let allowed = now.state.amount as f64;
            part(cpu()? * now.state.period as f64, allowed)
        }
        Measure::Waiting => {
            let (before, now, passed) = times()?;
            part(grown(before.waited, now.waited)?, passed)
        }
        Measure::Overruns => {
            let (before, now, passed) = times()?;
            part(grown(before.overruns, now.overruns)?, passed / 1e9)
        }
        Measure::Exits => {
            let (before, now, _) = cycles()?;
            part(grown(before.total, now.total)?, seconds)
        }
        Measure::El2 => {
            let (before, now, on) = cycles()?;
            let in_guest = grown(before.in_guest, now.in_guest)?;
            let away = grown(before.away, now.away)?;
            part((on - in_guest - away).max(0.0), on)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look at one VM `vm` of these vCPUs, at a second.
    fn look(second: u64, lives: u64, vcpus: Vec<VcpuLook>) -> Look {
        let vm = VmLook {
            phase: Phase::Running as u64,
            lives,
            vcpus,
        };
        Look {
            at: Duration::from_secs(second),
            vms: [("vm".to_owned(), vm)].into(),
        }
    }

    /// A fair vCPU with a cap of 2 ms in 5 that has had this CPU time and waits in so many seconds, all in milliseconds.
    fn vcpu(cpu: u64, waited: u64, since: u64) -> VcpuLook {
        let state = Vcpu {
            pcpu: 1,
            power: ON,
            policy: CpuPolicy::Fair as u64,
            weight: 100,
            amount: 2_000_000,
            period: 5_000_000,
            pool: 0b110,
        };
        let ms = |ms: u64| ms * 1_000_000;
        let time = Time {
            cpu_time: ms(cpu),
            waited: ms(waited),
            since: ms(since),
            overruns: cpu,
            ..Time::default()
        };
        let exits = Exits {
            total: 10 * cpu,
            on: 100 * since,
            in_guest: 90 * cpu,
            away: 100 * (since - cpu),
            ..Exits::default()
        };
        VcpuLook {
            state,
            time: Ok(time),
            exits: Ok(exits),
        }
    }

    fn between(before: &Look, now: &Look) -> Between {
        let mut meter = Meter::default();
        meter.take(before);
        meter.take(now)
    }

    #[test]
    fn each_measure_is_of_the_time_between_the_looks() {
        let before = look(10, 1, vec![vcpu(1000, 500, 10_000)]);
        let now = look(12, 1, vec![vcpu(1600, 1500, 12_000)]);
        let between = between(&before, &now);
        assert_eq!(between.since(), Duration::from_secs(10));
        for (measure, expected) in [
            (Measure::Cpu, 0.3),
            (Measure::Used, 0.75),
            (Measure::Waiting, 0.5),
            (Measure::Overruns, 300.0),
            (Measure::Exits, 3000.0),
            (Measure::El2, 0.03),
        ] {
            let found = between.measure("vm", measure).expect("measured");
            assert!((found - expected).abs() < 1e-9, "{measure:?}: {found}");
        }
        assert_eq!(between.measure("other", Measure::Cpu), Err(none::AWAY));
    }

    #[test]
    fn parts_are_the_greatest_and_rates_the_sum_of_the_vcpus_that_are_on() {
        let before = look(0, 1, vec![vcpu(0, 0, 1000), vcpu(0, 0, 1000)]);
        let mut now = look(1, 1, vec![vcpu(100, 0, 2000), vcpu(300, 0, 2000)]);
        let whole = between(&before, &now);
        assert_eq!(whole.measure("vm", Measure::Cpu), Ok(0.3));
        assert_eq!(whole.measure("vm", Measure::Overruns), Ok(400.0));
        let vm = now.vms.get_mut("vm").expect("there");
        vm.vcpus[1].state.power = 0;
        vm.vcpus[1].time = Err("nothing");
        let one = between(&before, &now);
        assert_eq!(one.measure("vm", Measure::Cpu), Ok(0.1));
        now.vms.get_mut("vm").expect("there").vcpus[0].state.power = 0;
        assert_eq!(
            between(&before, &now).measure("vm", Measure::Cpu),
            Err(none::OFF)
        );
        // One that has just come on has no difference yet.
        let later = look(2, 1, vec![vcpu(200, 0, 3000), vcpu(300, 0, 3000)]);
        assert_eq!(
            between(&now, &later).measure("vm", Measure::Cpu),
            Err(none::FIRST)
        );
    }

    #[test]
    fn a_new_life_a_pause_and_counters_that_go_back_give_no_measure() {
        let before = look(0, 1, vec![vcpu(1000, 0, 10_000)]);
        let now = look(1, 2, vec![vcpu(2000, 0, 20_000)]);
        let measure = |before: &Look, now: &Look| between(before, now).measure("vm", Measure::Cpu);
        assert_eq!(measure(&before, &now), Err(none::FIRST));
        let mut again = look(1, 1, vec![vcpu(900, 0, 20_000)]);
        assert_eq!(measure(&before, &again), Err(none::BACK));
        again = look(1, 1, vec![vcpu(1100, 0, 9_000)]);
        assert_eq!(measure(&before, &again), Err(none::BACK));
        again = look(1, 1, vec![vcpu(1000, 0, 10_000)]);
        assert_eq!(measure(&before, &again), Err(none::NO_TIME));
        let mut paused = look(1, 1, vec![vcpu(1100, 0, 11_000)]);
        let of = |look: &mut Look, phase: Phase| {
            look.vms.get_mut("vm").expect("there").phase = phase as u64;
        };
        of(&mut paused, Phase::Paused);
        assert_eq!(measure(&before, &paused), Err(none::PAUSED));
        // Time in which it stood still is not measured with what comes then.
        let now = look(2, 1, vec![vcpu(1200, 0, 12_000)]);
        assert_eq!(measure(&paused, &now), Err(none::FIRST));
        of(&mut paused, Phase::Ended);
        assert_eq!(measure(&before, &paused), Err(none::STOPPED));
    }

    #[test]
    fn a_missing_answer_is_told_as_such() {
        let before = look(0, 1, vec![vcpu(1000, 0, 10_000), vcpu(1000, 0, 10_000)]);
        let mut now = look(1, 1, vec![vcpu(1100, 0, 11_000), vcpu(1100, 0, 11_000)]);
        let vm = now.vms.get_mut("vm").expect("there");
        vm.vcpus[1].time = Err("its pCPU does not answer");
        let found = between(&before, &now);
        assert_eq!(
            found.measure("vm", Measure::Cpu),
            Err("its pCPU does not answer")
        );
        assert_eq!(found.measure("vm", Measure::Exits), Ok(2000.0));
    }

    #[test]
    fn a_pinned_vcpu_is_measured_by_cycles() {
        let pinned = |cpu, since| {
            let mut one = vcpu(cpu, 0, since);
            one.state.policy = CpuPolicy::Pinned as u64;
            one.time = Err("nothing");
            one
        };
        let before = look(0, 1, vec![pinned(0, 1000)]);
        let now = look(1, 1, vec![pinned(500, 2000)]);
        assert_eq!(between(&before, &now).measure("vm", Measure::Cpu), Ok(0.45));
    }
}

//! One look at all vCPUs that may be asked, and what lies between two.

use std::fs::File;
use std::time::Instant;

use bulkhead_abi::control::right;
use bulkhead_abi::exit::ExitClass;
use bulkhead_control::board::{Exits, Service, Time, Vcpu, Vm, WAIT_CLASSES, Waits};
use bulkhead_control::failure::Failure;
use bulkhead_control::manager::{Manager, Told};

/// What a vCPU has done.
#[derive(Clone, Debug)]
pub struct VcpuSample {
    /// Its number.
    pub number: u16,
    /// Its state.
    pub state: Vcpu,
    /// Its CPU time.
    pub time: Told<Time>,
    /// Its exits.
    pub exits: Told<Exits>,
    /// Its waits.
    pub waits: Told<Waits>,
    /// When it was asked.
    pub at: Instant,
}

/// What a VM has done.
#[derive(Clone, Debug)]
pub struct VmSample {
    /// Its state.
    pub vm: Vm,
    /// Its vCPUs.
    pub vcpus: Vec<VcpuSample>,
    /// What its devices had.
    pub service: Told<Service>,
    /// When that was asked.
    pub at: Instant,
}

/// Asks about a VM.
///
/// # Errors
/// EL2 does not answer.
pub fn look(manager: &mut Manager<File>, vm: Vm) -> Result<VmSample, Failure> {
    let mut vcpus = Vec::new();
    for number in 0..vm.vcpus {
        vcpus.push(VcpuSample {
            number,
            state: manager.vcpu(&vm, number)?,
            at: Instant::now(),
            time: manager.time(&vm, number)?,
            exits: manager.exits(&vm, number)?,
            waits: manager.waits(&vm, number)?,
        });
    }
    let at = Instant::now();
    let service = manager.service(&vm)?;
    Ok(VmSample {
        vm,
        vcpus,
        service,
        at,
    })
}

/// Asks about all VMs whose statistics the manager may have.
///
/// # Errors
/// EL2 does not answer.
pub fn look_at_all(manager: &mut Manager<File>) -> Result<Vec<VmSample>, Failure> {
    let mut samples = Vec::new();
    for vm in manager.vms()? {
        if vm.allows(right::STATS) {
            samples.push(look(manager, vm)?);
        }
    }
    Ok(samples)
}

/// What a vCPU did from one look to the next.
#[derive(Clone, Debug)]
pub struct Change {
    /// Part of the time that it had its pCPU.
    pub share: Option<f64>,
    /// Part of the time that it was ready and others ran.
    pub waiting: Option<f64>,
    /// Exits in a second.
    pub exits: Option<f64>,
    /// Exits of each class in a second.
    pub classes: Vec<(ExitClass, f64)>,
    /// An upper bound in nanoseconds of the longest wait from being woken to running.
    pub longest_wake: Option<u64>,
    /// Overruns.
    pub overruns: Option<u64>,
}

/// What the devices of a VM had from one look to the next of EL2's service thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// Slices in a second.
    pub slices: f64,
    /// Part of the time that they took.
    pub share: f64,
    /// The longest one since the board started, in nanoseconds.
    pub longest: u64,
}

/// What lies between two looks at the devices of the same VM, if EL2 tells.
pub fn served(before: &VmSample, after: &VmSample) -> Option<Served> {
    let seconds = after.at.duration_since(before.at).as_secs_f64().max(1e-9);
    let (Ok(before), Ok(after)) = (&before.service, &after.service) else {
        return None;
    };
    let rate = |number: u64, earlier: u64| number.saturating_sub(earlier) as f64 / seconds;
    Some(Served {
        slices: rate(after.slices, before.slices),
        share: rate(after.time, before.time) / 1e9,
        longest: after.longest,
    })
}

/// Ticks of the counter in nanoseconds: below 2^`class`.
pub fn bound(class: usize, frequency: u64) -> u64 {
    let nanos = (1u128 << class) * 1_000_000_000 / u128::from(frequency.max(1));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// What lies between two looks at the same vCPU. A life that began in between counts from its begin.
pub fn change(before: &VcpuSample, after: &VcpuSample, frequency: u64) -> Change {
    let seconds = after.at.duration_since(before.at).as_secs_f64().max(1e-9);
    let mut change = Change {
        share: None,
        waiting: None,
        exits: None,
        classes: Vec::new(),
        longest_wake: None,
        overruns: None,
    };
    if let (Ok(before), Ok(after)) = (&before.time, &after.time) {
        let before = if after.since < before.since {
            Time::default()
        } else {
            *before
        };
        let passed = after.since.saturating_sub(before.since);
        let part = |part: u64, earlier: u64| {
            let part = part.saturating_sub(earlier);
            (passed > 0).then(|| part as f64 / passed as f64)
        };
        change.share = part(after.cpu_time, before.cpu_time);
        change.waiting = part(after.waited, before.waited);
        change.overruns = Some(after.overruns.saturating_sub(before.overruns));
    }
    if let (Ok(before), Ok(after)) = (&before.exits, &after.exits) {
        let none = Exits::default();
        let before = if after.total < before.total {
            &none
        } else {
            before
        };
        let rate = |number: u64, earlier: u64| number.saturating_sub(earlier) as f64 / seconds;
        change.exits = Some(rate(after.total, before.total));
        let classes = ExitClass::ALL
            .iter()
            .zip(&after.classes)
            .zip(&before.classes);
        let classes =
            classes.map(|((class, after), before)| (*class, rate(after.count, before.count)));
        change.classes = classes.filter(|(_, rate)| *rate > 0.0).collect();
        change
            .classes
            .sort_by(|one, other| other.1.total_cmp(&one.1));
        // One that has its pCPU to itself is told by its cycles only.
        let on = after.on.saturating_sub(before.on);
        if change.share.is_none() && on > 0 {
            let in_guest = after.in_guest.saturating_sub(before.in_guest);
            change.share = Some(in_guest as f64 / on as f64);
        }
    }
    if let (Ok(before), Ok(after)) = (&before.waits, &after.waits) {
        let longest = (0..WAIT_CLASSES)
            .rev()
            .find(|class| after.0[*class] > before.0[*class]);
        change.longest_wake = longest.map(|class| bound(class, frequency));
    }
    change
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bulkhead_abi::control::Message;

    use super::*;

    fn sample(at: Instant, time: Time) -> VcpuSample {
        let exits = Exits {
            total: time.turns * 10,
            in_guest: time.cpu_time * 2,
            on: time.since * 2,
            ..Exits::default()
        };
        VcpuSample {
            number: 0,
            state: Vcpu {
                pcpu: 0,
                power: 3,
                policy: 2,
                weight: 1,
                amount: 1,
                period: 1,
                pool: 1,
            },
            time: Ok(time),
            exits: Ok(exits),
            waits: Ok(Waits::default()),
            at,
        }
    }

    #[test]
    fn a_share_is_of_the_time_between_the_looks() {
        let start = Instant::now();
        let before = Time {
            cpu_time: 1_000,
            since: 100_000,
            waited: 5,
            turns: 7,
            overruns: 3,
            ..Time::default()
        };
        let after = Time {
            cpu_time: 1_500,
            since: 102_000,
            waited: 205,
            turns: 17,
            overruns: 4,
            ..before
        };
        let mut one = sample(start, before);
        let mut other = sample(start + Duration::from_secs(2), after);
        if let Ok(waits) = &mut other.waits {
            waits.0[3] = 1;
            waits.0[9] = 2;
        }
        if let Ok(waits) = &mut one.waits {
            waits.0[9] = 2;
            waits.0[3] = 0;
        }
        if let Ok(exits) = &mut other.exits {
            exits.classes[5].count = 4;
            exits.classes[1].count = 6;
        }
        let found = change(&one, &other, 1_000_000_000);
        assert_eq!(
            (found.share, found.waiting, found.overruns),
            (Some(0.25), Some(0.1), Some(1))
        );
        assert_eq!((found.exits, found.longest_wake), (Some(50.0), Some(8)));
        assert_eq!(
            found.classes,
            [(ExitClass::ALL[1], 3.0), (ExitClass::ALL[5], 2.0)]
        );
        // Pinned: by cycles.
        one.time = Err("pinned");
        let found = change(&one, &other, 1);
        assert_eq!((found.share, found.overruns), (Some(0.25), None));
    }

    #[test]
    fn a_new_life_counts_from_its_begin() {
        let start = Instant::now();
        let before = Time {
            cpu_time: 900,
            since: 1_000,
            turns: 900,
            ..Time::default()
        };
        let after = Time {
            cpu_time: 10,
            since: 100,
            turns: 1,
            ..Time::default()
        };
        let found = change(
            &sample(start, before),
            &sample(start + Duration::from_secs(1), after),
            1,
        );
        assert_eq!((found.share, found.exits), (Some(0.1), Some(10.0)));
    }

    #[test]
    fn what_devices_had_is_of_the_time_between_the_looks() {
        let start = Instant::now();
        let vm = Vm::of(&Message::default());
        let mut before = VmSample {
            vm,
            vcpus: Vec::new(),
            service: Ok(Service {
                slices: 10,
                time: 1_000_000_000,
                longest: 70,
            }),
            at: start,
        };
        let after = VmSample {
            service: Ok(Service {
                slices: 50,
                time: 1_500_000_000,
                longest: 80,
            }),
            at: start + Duration::from_secs(2),
            ..before.clone()
        };
        let found = Served {
            slices: 20.0,
            share: 0.25,
            longest: 80,
        };
        assert_eq!(served(&before, &after), Some(found));
        before.service = Err("not told");
        assert_eq!(served(&before, &after), None);
    }

    #[test]
    fn the_classes_of_waits_are_powers_of_ticks() {
        assert_eq!(bound(0, 62_500_000), 16);
        assert_eq!(bound(10, 1_000_000_000), 1024);
        assert!(bound(39, 1) > 1 << 60);
    }
}

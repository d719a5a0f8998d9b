//! Diagnosis of a silent guest, from a few samples and a snapshot.

use crate::console::text::TextLine;

use super::snapshot::{Pending, Sample, Snapshot, State};

/// Number of samples that are taken of a vCPU, including the one of the snapshot.
pub const SAMPLES: usize = 4;
/// Longest loop in bytes that counts as spinning.
const LOOP: u64 = 256;
/// Encodings of WFI and WFE.
const WAITS: [u64; 2] = [0xd503_207f, 0xd503_205f];
/// SPSR_EL2: IRQ and FIQ masked.
const SPSR_I: u64 = 1 << 7;
const SPSR_F: u64 = 1 << 6;
const ENABLED: u64 = 1;
const ENABLED_MASKED: u64 = 3;

/// The reason why a pending interrupt is not taken by the vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// The interrupt is not enabled in the distributor or redistributor.
    Disabled,
    /// The group of the interrupt is disabled in GICD_CTLR.
    Distributor,
    /// The group of the interrupt is disabled in the CPU interface (ICC_IGRPEN0_EL1,
    /// ICC_IGRPEN1_EL1, GICC_CTLR).
    Group,
    /// The interrupt is masked by priority (ICC_PMR_EL1, GICC_PMR).
    Priority,
    /// An interrupt of at least the same priority is active and has had no priority drop.
    Running,
    /// The interrupt is masked by PSTATE.I or PSTATE.F.
    Pstate,
}

/// Activity of a vCPU over the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The vCPU makes progress, or has exits of its own.
    Runs,
    /// The vCPU waits in WFI or WFE.
    Sleeps,
    /// The PC was between these addresses in all samples, and the guest caused no exits.
    Spins(u64, u64),
}

/// Result of a diagnosis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diagnosis {
    /// The vCPU is not running, and has this state.
    Not(State),
    /// The vCPU has this activity, and nothing is wrong with that.
    Does(Activity),
    /// The vCPU sleeps until a timer is due, in so many ticks.
    SleepsFor(u64),
    /// The vCPU sleeps, no timer is armed and nothing is pending.
    SleepsForGood,
    /// The vCPU sleeps; a timer is armed whose interrupt is masked in the timer.
    TimerMasked,
    /// The vCPU has this activity while an interrupt is pending that is blocked by this barrier.
    Blocked(Activity, Pending, Barrier),
}

/// Returns the barrier between `pending` and the vCPU, if there is one.
pub fn barrier(snapshot: &Snapshot, pending: Pending) -> Option<Barrier> {
    let gate = &snapshot.interrupts.gate;
    let group = 1 << pending.group();
    let pstate = if gate.fiq & group == 0 {
        SPSR_I
    } else {
        SPSR_F
    };
    Some(if !pending.is_enabled() {
        Barrier::Disabled
    } else if gate.forwarded & group == 0 {
        Barrier::Distributor
    } else if gate.groups & group == 0 {
        Barrier::Group
    } else if pending.priority() >= gate.mask {
        Barrier::Priority
    } else if pending.priority() >= gate.running {
        Barrier::Running
    } else if snapshot.spsr & pstate != 0 {
        Barrier::Pstate
    } else {
        return None;
    })
}

/// The activity that the samples show.
fn activity(samples: &[Sample]) -> Activity {
    let quiet = samples
        .windows(2)
        .all(|pair| matches!(pair, [one, next] if next.exits == one.exits));
    if samples.iter().all(|sample| WAITS.contains(&sample.before)) && !samples.is_empty() {
        return Activity::Sleeps;
    }
    let low = samples.iter().fold(u64::MAX, |low, one| low.min(one.pc));
    let high = samples.iter().fold(0, |high, one| high.max(one.pc));
    if quiet && samples.len() > 1 && high.saturating_sub(low) <= LOOP {
        return Activity::Spins(low, high);
    }
    Activity::Runs
}

/// Diagnoses a vCPU. `samples` are in their order; the last one is that of the snapshot.
pub fn diagnose(samples: &[Sample], snapshot: &Snapshot) -> Diagnosis {
    let state = State::of(snapshot.state);
    if state != State::On {
        return Diagnosis::Not(state);
    }
    let activity = activity(samples);
    if activity == Activity::Runs {
        return Diagnosis::Does(activity);
    }
    let mut blocked = None;
    for pending in snapshot
        .interrupts
        .pending
        .iter()
        .filter(|one| one.is_some())
    {
        match barrier(snapshot, *pending) {
            // The vCPU is about to take this interrupt.
            None => return Diagnosis::Does(Activity::Runs),
            Some(barrier) if blocked.is_none() => blocked = Some((*pending, barrier)),
            Some(_) => {}
        }
    }
    if let Some((pending, barrier)) = blocked {
        return Diagnosis::Blocked(activity, pending, barrier);
    }
    if activity != Activity::Sleeps {
        return Diagnosis::Does(activity);
    }
    let armed = |mask| {
        snapshot
            .timers
            .iter()
            .filter(move |one| one.control & 3 == mask)
    };
    match armed(ENABLED).map(|timer| timer.ahead).min() {
        Some(ahead) => Diagnosis::SleepsFor(ahead),
        None if armed(ENABLED_MASKED).next().is_some() => Diagnosis::TimerMasked,
        None => Diagnosis::SleepsForGood,
    }
}

impl Diagnosis {
    /// Appends the diagnosis in words. `frequency`: ticks in a second.
    pub fn write(&self, frequency: u64, line: &mut TextLine) {
        match *self {
            Self::Not(state) => line.text(state.words()),
            Self::Does(activity) => activity.write(line),
            Self::SleepsFor(ahead) => {
                let microseconds = ahead.saturating_mul(1_000).checked_div(frequency / 1_000);
                line.text("asleep, its timer is due in ")
                    .decimal(microseconds.unwrap_or(0))
                    .text(" us")
            }
            Self::SleepsForGood => line.text("asleep with no timer armed and nothing pending"),
            Self::TimerMasked => line.text("asleep, and its timer's interrupt is masked in CTL"),
            Self::Blocked(activity, pending, barrier) => {
                activity.write(line);
                line.text(", INTID ")
                    .decimal(pending.intid())
                    .text(" is pending but ")
                    .text(barrier.words())
            }
        };
    }
}

impl Activity {
    fn write<'a>(&self, line: &'a mut TextLine) -> &'a mut TextLine {
        match *self {
            Self::Runs => line.text("runs"),
            Self::Sleeps => line.text("asleep"),
            Self::Spins(low, high) if low == high => line.text("spinning on ").hex(low),
            Self::Spins(low, high) => line.text("spinning from ").hex(low).text(" to ").hex(high),
        }
    }
}

impl Barrier {
    /// Describes the barrier.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Disabled => "not enabled",
            Self::Distributor => "its group is off in the distributor",
            Self::Group => "its group is off in the CPU interface",
            Self::Priority => "masked by priority (PMR)",
            Self::Running => "held back by an interrupt that was not ended",
            Self::Pstate => "masked by DAIF",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::snapshot::{Gate, Interrupts, PENDING, Timer};
    use std::string::String;

    const OPEN: Gate = Gate {
        mask: 0xff,
        running: 0x100,
        groups: 3,
        forwarded: 3,
        fiq: 1,
    };

    fn still(pc: u64, before: u64) -> [Sample; SAMPLES] {
        core::array::from_fn(|_| Sample {
            pc,
            before,
            exits: 7,
        })
    }

    fn on(pending: &[Pending]) -> Snapshot {
        let mut all = [Pending::default(); PENDING];
        all[..pending.len()].copy_from_slice(pending);
        Snapshot {
            state: State::On as u64,
            spsr: 5,
            interrupts: Interrupts {
                gate: OPEN,
                pending: all,
            },
            frequency: 62_500_000,
            ..Snapshot::default()
        }
    }

    fn words(diagnosis: Diagnosis) -> String {
        let mut line = TextLine::new();
        diagnosis.write(62_500_000, &mut line);
        String::from_utf8(line.as_bytes().to_vec()).unwrap()
    }

    fn gated(gate: Gate) -> Snapshot {
        let mut snapshot = on(&[]);
        snapshot.interrupts.gate = gate;
        snapshot
    }

    const TIMER: Pending = Pending::new(27, true, 1, 0xa0);

    #[test]
    fn a_vcpu_that_does_not_run_needs_no_other_reason() {
        for (state, said) in [
            (State::Off, "off"),
            (State::Starting, "starting"),
            (State::Paused, "paused"),
            (State::Stopped, "stopped"),
        ] {
            let snapshot = Snapshot {
                state: state as u64,
                ..on(&[TIMER])
            };
            let diagnosis = diagnose(&still(0x1000, WAITS[0]), &snapshot);
            assert_eq!(diagnosis, Diagnosis::Not(state));
            assert_eq!(words(diagnosis), said);
        }
    }

    #[test]
    fn sleep_without_an_alarm_clock() {
        for wait in WAITS {
            let diagnosis = diagnose(&still(0x1000, wait), &on(&[]));
            assert_eq!(diagnosis, Diagnosis::SleepsForGood);
        }
        assert_eq!(
            words(Diagnosis::SleepsForGood),
            "asleep with no timer armed and nothing pending"
        );
    }

    #[test]
    fn sleep_until_the_nearer_timer() {
        let timer = |control, ahead| Timer {
            control,
            ahead,
            compare: 0,
        };
        let with = |virtual_timer, physical_timer| {
            let snapshot = Snapshot {
                timers: [virtual_timer, physical_timer],
                ..on(&[])
            };
            diagnose(&still(0x1000, WAITS[0]), &snapshot)
        };
        assert_eq!(
            with(timer(1, 500), timer(1, 62_500)),
            Diagnosis::SleepsFor(500)
        );
        assert_eq!(
            with(timer(3, 500), timer(1, 62_500)),
            Diagnosis::SleepsFor(62_500)
        );
        assert_eq!(with(timer(3, 500), timer(2, 0)), Diagnosis::TimerMasked);
        assert_eq!(with(timer(2, 500), timer(0, 0)), Diagnosis::SleepsForGood);
        assert_eq!(
            words(Diagnosis::SleepsFor(62_500)),
            "asleep, its timer is due in 1000 us"
        );
    }

    #[test]
    fn every_barrier_is_named() {
        let disabled = Pending::new(45, false, 1, 0xa0);
        let group0 = Pending::new(3, true, 0, 0x20);
        let open = on(&[]);
        for (snapshot, pending, expected) in [
            (open, disabled, Barrier::Disabled),
            (
                gated(Gate {
                    forwarded: 1,
                    ..OPEN
                }),
                TIMER,
                Barrier::Distributor,
            ),
            (gated(Gate { groups: 1, ..OPEN }), TIMER, Barrier::Group),
            (gated(Gate { groups: 2, ..OPEN }), group0, Barrier::Group),
            (gated(Gate { mask: 0xa0, ..OPEN }), TIMER, Barrier::Priority),
            (
                gated(Gate {
                    running: 0xa0,
                    ..OPEN
                }),
                TIMER,
                Barrier::Running,
            ),
            (Snapshot { spsr: 0x85, ..open }, TIMER, Barrier::Pstate),
            (Snapshot { spsr: 0x45, ..open }, group0, Barrier::Pstate),
        ] {
            assert_eq!(barrier(&snapshot, pending), Some(expected));
        }
        let irq = gated(Gate { fiq: 0, ..OPEN });
        let masked = Snapshot { spsr: 0x85, ..irq };
        assert_eq!(barrier(&masked, group0), Some(Barrier::Pstate), "GICv2");
        for (snapshot, pending) in [
            (open, TIMER),
            (gated(Gate { mask: 0xa8, ..OPEN }), TIMER),
            (
                gated(Gate {
                    running: 0xa8,
                    ..OPEN
                }),
                TIMER,
            ),
            (Snapshot { spsr: 0x45, ..open }, TIMER),
            (Snapshot { spsr: 0x85, ..open }, group0),
        ] {
            assert_eq!(barrier(&snapshot, pending), None);
        }
    }

    #[test]
    fn an_interrupt_that_cannot_get_through_is_named() {
        let masked = Snapshot {
            spsr: 0x3c5,
            ..on(&[TIMER])
        };
        let diagnosis = diagnose(&still(0x4000_0010, 0), &masked);
        assert_eq!(
            words(diagnosis),
            "spinning on 0x40000010, INTID 27 is pending but masked by DAIF"
        );
        let diagnosis = diagnose(&still(0x1000, WAITS[0]), &{
            let mut snapshot = on(&[TIMER]);
            snapshot.interrupts.gate.mask = 0;
            snapshot
        });
        assert_eq!(
            words(diagnosis),
            "asleep, INTID 27 is pending but masked by priority (PMR)"
        );
        // An interrupt that is not blocked wakes it.
        let both = on(&[Pending::new(45, false, 1, 0), TIMER]);
        let diagnosis = diagnose(&still(0x1000, WAITS[0]), &both);
        assert_eq!(diagnosis, Diagnosis::Does(Activity::Runs));
    }

    #[test]
    fn spinning_is_a_small_place_without_exits() {
        let mut samples = still(0x1000, 0);
        samples[2].pc = 0x1000 + LOOP;
        assert_eq!(
            diagnose(&samples, &on(&[])),
            Diagnosis::Does(Activity::Spins(0x1000, 0x1100))
        );
        assert_eq!(
            words(diagnose(&samples, &on(&[]))),
            "spinning from 0x1000 to 0x1100"
        );
        samples[1].pc = 0x1000 - 4;
        assert_eq!(
            diagnose(&samples, &on(&[])),
            Diagnosis::Does(Activity::Runs)
        );
        let mut samples = still(0x1000, 0);
        samples[3].exits += 1;
        assert_eq!(
            diagnose(&samples, &on(&[])),
            Diagnosis::Does(Activity::Runs),
            "it makes exits"
        );
        assert_eq!(
            diagnose(&still(0x1000, 0)[..1], &on(&[])),
            Diagnosis::Does(Activity::Runs),
            "one sample shows nothing"
        );
    }

    #[test]
    fn one_that_wakes_now_and_then_does_not_sleep_for_good() {
        let mut samples = still(0x1000, WAITS[0]);
        samples[1].before = 0;
        samples[1].pc = 0x9000;
        samples[1].exits += 5;
        assert_eq!(
            diagnose(&samples, &on(&[])),
            Diagnosis::Does(Activity::Runs)
        );
    }
}

//! Orders to start, stop, pause and restart, and waiting for what comes of them.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bulkhead_abi::control::{EVENT_STATE, Kind, Phase, Status};

use crate::board::Vm;
use crate::failure::Failure;
use crate::manager::Manager;
use crate::refusal;

/// Time after which a state is asked for, should its event have been lost.
const LOOK: Duration = Duration::from_millis(500);
/// Time in which a VM that has ended prints its reports.
pub const REPORTS: Duration = Duration::from_secs(20);

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Half a minute; for a VM that is asked to stop until it is ended in any case, and has printed its reports.
    Usual,
    /// This time.
    For(Duration),
}

/// [`Wait::Usual`].
const USUAL: Duration = Duration::from_secs(30);

/// What came of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The VM: as it was last heard of.
    pub vm: Vm,
    /// Something has changed: it was not already as ordered.
    pub changed: bool,
    /// Time that is left to a VM that was asked to stop.
    pub left: Option<Duration>,
}

impl<T: Read + Write + AsFd> Manager<T> {
    /// Orders and, if `wait` says so, waits up to that time for what is to come of it. An order that comes while the VM prints its
    /// reports is given again when it is down.
    ///
    /// # Errors
    /// EL2 refuses, or what was ordered does not come.
    pub fn order(&mut self, kind: Kind, name: &str, wait: Option<Wait>) -> Result<Done, Failure> {
        let before = self.find(name)?;
        let reports = Instant::now() + REPORTS;
        let mut lives = before.lives;
        let mut changed = true;
        let mut left = None;
        loop {
            // What was told up to now is of before the order.
            self.connection.forget_events();
            let answer = self.request(kind, before.index, 0, &[])?;
            let phase = Phase::of(answer.values[0]);
            match (Status::of(answer.status), phase) {
                (Some(Status::Done), _) => {
                    left = (kind == Kind::Shutdown && answer.values[0] != 0)
                        .then(|| Duration::from_nanos(answer.values[0]));
                    break;
                }
                (Some(Status::Phase), Some(phase)) if is_already(kind, phase) => {
                    // It may be on its way only. If it is starting, that life may have been counted.
                    changed = false;
                    lives = lives.saturating_sub(1);
                    break;
                }
                (Some(Status::Phase), Some(Phase::Ended | Phase::Stopping))
                    if matches!(kind, Kind::Start | Kind::Restart) =>
                {
                    let down = |vm: &Vm| !vm.is(Phase::Ended) && !vm.is(Phase::Stopping);
                    if self.watch(before.index, reports, down)?.is_none() {
                        return Err(refusal::failure(kind, name, &answer));
                    }
                }
                _ => return Err(refusal::failure(kind, name, &answer)),
            }
        }
        let Some(wait) = wait else {
            let vm = self.vm(before.index)?;
            return Ok(Done { vm, changed, left });
        };
        let wait = match wait {
            Wait::Usual => left.map_or(USUAL, |left| left + REPORTS),
            Wait::For(time) => time,
        };
        let end = Instant::now() + wait;
        let came = if changed {
            self.watch(before.index, end, |vm| is_over(kind, lives, vm))?
        } else {
            // No event has to come any more.
            let vm = self.vm(before.index)?;
            if is_over(kind, lives, &vm) {
                Some(vm)
            } else {
                self.watch(before.index, end, |vm| is_over(kind, lives, vm))?
            }
        };
        let Some(vm) = came else {
            let vm = self.vm(before.index)?;
            let what = format!(
                "{name} is {} after {} s",
                vm.phase_word(),
                wait.as_secs_f64()
            );
            return Err(Failure::failed("control::not-in-time", what, "the order was taken, and may still come true")
                .advise(format!("bulkheadctl events --follow shows what becomes of {name}; --wait=SECONDS waits longer")));
        };
        if matches!(kind, Kind::Start | Kind::Restart)
            && !vm.is(Phase::Running)
            && let Some(end) = vm.end
            && !end.is_orderly()
        {
            let what = format!("{name} was started, and has ended");
            return Err(Failure::failed("control::ended", what, end.words())
                .advise("the console of the board says more"));
        }
        Ok(Done { vm, changed, left })
    }

    /// Waits until the state of a VM is as wanted; none if it is not before `end`.
    fn watch(
        &mut self,
        index: u16,
        end: Instant,
        is_wanted: impl Fn(&Vm) -> bool,
    ) -> Result<Option<Vm>, Failure> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let event = self.connection.event(Some(left.min(LOOK)))?;
            let vm = match event {
                Some(event) if event.kind == EVENT_STATE && event.vm == index => {
                    Some(Vm::of(&event))
                }
                Some(_) => None,
                None => Some(self.vm(index)?),
            };
            if let Some(vm) = vm.filter(|vm| is_wanted(vm)) {
                return Ok(Some(vm));
            }
            if left.is_zero() {
                return Ok(None);
            }
        }
    }
}

/// Whether a VM in this phase is already as an order wants it.
const fn is_already(kind: Kind, phase: Phase) -> bool {
    match kind {
        Kind::Start => matches!(phase, Phase::Starting | Phase::Running),
        Kind::Stop | Kind::Shutdown => {
            matches!(phase, Phase::Down | Phase::Stopping | Phase::Ended)
        }
        Kind::Pause => matches!(phase, Phase::Paused),
        Kind::Resume => matches!(phase, Phase::Running),
        _ => false,
    }
}

/// Whether an order has come true, or cannot any more. A short life may be over before it is seen: the number of lives tells.
fn is_over(kind: Kind, lives: u64, vm: &Vm) -> bool {
    match kind {
        Kind::Start | Kind::Restart => {
            let fresh = vm.lives > lives;
            fresh
                && [Phase::Running, Phase::Down, Phase::Ended]
                    .iter()
                    .any(|phase| vm.is(*phase))
        }
        Kind::Stop | Kind::Shutdown => vm.is(Phase::Down),
        Kind::Pause => !vm.is(Phase::Running) && !vm.is(Phase::Asked),
        Kind::Resume => !vm.is(Phase::Paused),
        _ => true,
    }
}

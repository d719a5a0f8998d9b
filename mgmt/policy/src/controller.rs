//! What is to be moved: looks in, decisions with their reasons out. It is pure: time comes with the looks, and what became of a decision
//! is told to it.

use std::fmt;
use std::time::Duration;

use bulkhead_abi::control::Phase;

use crate::backoff::Backoff;
use crate::meter::{Between, Look, Measured, VmLook, none};
use crate::rule::{Condition, Policy, Rule, Setting, Side, text_of};

/// Why something is to be moved.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// A condition was met.
    Met {
        /// The condition.
        condition: Condition,
        /// The measure now.
        measured: f64,
        /// How long it has been met.
        held: Duration,
    },
    /// The VM is stopped: what it does not need goes back.
    Stopped,
    /// A rule of greater priority whose VM shares a pCPU is above its threshold.
    Yields {
        /// Name of the rule.
        rule: String,
        /// Its VM.
        vm: String,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Met {
                condition,
                measured,
                held,
            } => {
                let measure = condition.measure.value;
                if let Some(vm) = &condition.vm {
                    write!(f, "vm={} ", vm.value)?;
                }
                write!(
                    f,
                    "measure={} value={} {}={} for={}",
                    measure.word(),
                    measure.text(*measured),
                    condition.side.word(),
                    measure.text(condition.threshold),
                    text_of(*held)
                )
            }
            Self::Stopped => f.write_str("stopped"),
            Self::Yields { rule, vm } => write!(f, "yields-to={rule} of={vm}"),
        }
    }
}

/// Something that is to be moved.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Index of the rule.
    pub rule: usize,
    /// Name of the VM.
    pub vm: String,
    /// What it has.
    pub from: Setting,
    /// What it is to have.
    pub to: Setting,
    /// The reason.
    pub why: Why,
    /// Index of what the controller keeps about the rule and the VM.
    case: usize,
}

/// What became of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done; or it would have been, where nothing is done.
    Done,
    /// EL2 refuses.
    Refused {
        /// It may not when something of another VM has changed.
        may_pass: bool,
    },
}

/// Why a rule moves nothing now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rests {
    /// Neither condition has been met for long enough.
    Between,
    /// It is at its bound.
    AtBound,
    /// It is where it is without load.
    AtRest,
    /// It has moved a short time ago.
    Pauses,
    /// The last such step had to be taken back: not before this time.
    Holds(Duration),
    /// EL2 has refused the next step.
    Refused,
    /// The VM is not seen, paused or stopped.
    Away(&'static str),
    /// It moves.
    Moves,
}

impl Rests {
    /// In words.
    pub fn text(self, now: Duration) -> String {
        match self {
            Self::Between => "waits for a condition".to_owned(),
            Self::AtBound => "is at its bound".to_owned(),
            Self::AtRest => "is at rest".to_owned(),
            Self::Pauses => "pauses".to_owned(),
            Self::Holds(until) => {
                let left = text_of(until.saturating_sub(now));
                format!("holds for {left}: the last such step had to be taken back")
            }
            Self::Refused => "EL2 refuses the next step".to_owned(),
            Self::Away(why) => why.to_owned(),
            Self::Moves => "moves".to_owned(),
        }
    }
}

/// A rule and one of its VMs.
#[derive(Clone, Debug)]
pub struct Case {
    /// Index of the rule.
    pub rule: usize,
    /// Name of the VM.
    pub vm: String,
    /// What it had at the last look, or has been given since.
    pub value: Option<Setting>,
    /// What was measured for both conditions.
    pub measured: [Measured; 2],
    /// Why it moves nothing.
    pub rests: Rests,
    /// Since when each condition has been met.
    met: [Option<Duration>; 2],
    /// It has been above, and not below since: rules of less priority yield to it.
    is_pressed: bool,
    moved: Option<Duration>,
    lives: Option<u64>,
    refused: Option<(Setting, bool)>,
    /// Against steps back, and against steps up from which others make it yield.
    backoffs: [Backoff; 2],
}

const UP: usize = 1;
const BACK: usize = 0;

/// The rules with what has to be known of the past.
#[derive(Clone, Debug)]
pub struct Controller {
    rules: Vec<Rule>,
    interval: Duration,
    /// By priority, then in the order of the file.
    cases: Vec<Case>,
}

impl Controller {
    /// A controller that knows nothing of the past.
    pub fn new(policy: &Policy) -> Self {
        let rules = policy.rules.clone();
        let mut cases: Vec<Case> = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            cases.extend(rule.vms.iter().map(|vm| Case {
                rule: index,
                vm: vm.value.clone(),
                value: None,
                measured: [Err(none::AWAY); 2],
                rests: Rests::Away(none::AWAY),
                met: [None; 2],
                is_pressed: false,
                moved: None,
                lives: None,
                refused: None,
                backoffs: [Backoff::default(); 2],
            }));
        }
        cases.sort_by_key(|case| std::cmp::Reverse(rules[case.rule].priority));
        Self {
            rules,
            interval: policy.interval,
            cases,
        }
    }

    /// Each rule with each of its VMs, those of greater priority first.
    pub fn cases(&self) -> &[Case] {
        &self.cases
    }

    /// What is to be moved after this look. Each decision has to be [told](Self::told) what became of it before the next look.
    pub fn look(&mut self, look: &Look, between: &Between) -> Vec<Decision> {
        for case in &mut self.cases {
            case.measure(&self.rules[case.rule], look, between);
        }
        let decided = (0..self.cases.len()).map(|at| self.decide(at, look));
        let decided: Vec<Result<Decision, Rests>> = decided.collect();
        let mut decisions = Vec::new();
        for (case, decided) in self.cases.iter_mut().zip(decided) {
            match decided {
                Ok(decision) => {
                    case.rests = Rests::Moves;
                    decisions.push(decision);
                }
                Err(rests) => case.rests = rests,
            }
        }
        decisions
    }

    fn decide(&self, at: usize, look: &Look) -> Result<Decision, Rests> {
        let case = &self.cases[at];
        let rule = &self.rules[case.rule];
        let vm = look.vms.get(&case.vm);
        let (Some(vm), Some(now)) = (vm, case.value) else {
            return Err(Rests::Away(none::AWAY));
        };
        let (to, why) = if vm.is(Phase::Down) {
            // What somebody has set beside the rule's values stays.
            let is_moved = position(&rule.steps, now).is_some_and(|at| at > 0);
            let to = is_moved.then(|| rule.rest());
            (to.ok_or(Rests::Away(none::STOPPED))?, Why::Stopped)
        } else if !vm.is(Phase::Running) {
            let is_paused = vm.is(Phase::Paused);
            let why = if is_paused {
                none::PAUSED
            } else {
                none::STOPPED
            };
            return Err(Rests::Away(why));
        } else {
            self.step(at, look, now)?
        };
        if case.refused.is_some_and(|(refused, _)| refused.is(to)) {
            return Err(Rests::Refused);
        }
        Ok(Decision {
            rule: case.rule,
            vm: case.vm.clone(),
            from: now,
            to,
            why,
            case: at,
        })
    }

    /// The next step of a VM that runs.
    fn step(&self, at: usize, look: &Look, now: Setting) -> Result<(Setting, Why), Rests> {
        let case = &self.cases[at];
        let rule = &self.rules[case.rule];
        let held = |which: usize| case.met[which].map(|since| look.at.saturating_sub(since));
        let met = |which: usize| {
            let condition = rule.conditions()[which].clone();
            let held = held(which).filter(|held| *held >= condition.held)?;
            let measured = case.measured[which].ok()?;
            Some(Why::Met {
                condition,
                measured,
                held,
            })
        };
        // A VM that is short of time may do little: what is short comes first.
        let (why, side) = match (self.yields(at, look), met(0), met(1)) {
            (Some(why), ..) => (why, BACK),
            (None, Some(why), _) => (why, UP),
            (None, None, Some(why)) if case.met[0].is_none() => (why, BACK),
            _ => return Err(Rests::Between),
        };
        let to = if side == UP {
            next(&rule.steps, now).ok_or(Rests::AtBound)?
        } else {
            previous(&rule.steps, now).ok_or(Rests::AtRest)?
        };
        let pause = case.moved.map(|moved| look.at.saturating_sub(moved));
        if pause.is_some_and(|passed| passed < rule.pause) {
            return Err(Rests::Pauses);
        }
        let backoff = case.backoffs[side];
        let (measure, of) = match (&why, side) {
            (Why::Met { measured, .. }, BACK) => (Some(*measured), rule.back.side),
            _ => (None, Side::Below),
        };
        let yields = matches!(why, Why::Yields { .. });
        if !yields && backoff.holds(look.at, measure, of) {
            return Err(Rests::Holds(backoff.until(look.at).unwrap_or(look.at)));
        }
        Ok((to, why))
    }

    /// The rule of greater priority to which this one has to yield.
    fn yields(&self, at: usize, look: &Look) -> Option<Why> {
        let case = &self.cases[at];
        let pcpus = look.vms.get(&case.vm).map_or(0, VmLook::pcpus);
        let shares = |other: &Case| {
            let others = look.vms.get(&other.vm);
            others.is_some_and(|vm| vm.pcpus() & pcpus != 0)
        };
        let priority = |case: &Case| self.rules[case.rule].priority;
        let before = self.cases.iter().take(at);
        let found = before
            .filter(|other| priority(other) > priority(case) && other.vm != case.vm)
            .find(|other| other.is_pressed && shares(other))?;
        Some(Why::Yields {
            rule: self.rules[found.rule].name.value.clone(),
            vm: found.vm.clone(),
        })
    }

    /// What became of a decision, at a time.
    pub fn told(&mut self, decision: &Decision, outcome: Outcome, at: Duration) {
        let Some(case) = self.cases.get_mut(decision.case) else {
            return;
        };
        let rule = &self.rules[case.rule];
        if let Outcome::Refused { may_pass } = outcome {
            case.refused = Some((decision.to, may_pass));
            return;
        }
        case.moved = Some(at);
        case.value = Some(decision.to);
        // Only what is measured from now on says anything about the new value.
        case.met = [None; 2];
        let base = rule.pause + rule.back.held + self.interval;
        let soon = (rule.pause + rule.when.held + self.interval) * 2;
        match &decision.why {
            Why::Met {
                condition,
                measured,
                ..
            } => {
                if *condition == rule.when {
                    case.backoffs[BACK].taken_back(at, soon, base);
                    case.backoffs[UP].tried(at, None);
                } else {
                    case.backoffs[BACK].tried(at, Some(*measured));
                }
            }
            Why::Yields { .. } => case.backoffs[UP].taken_back(at, soon, base),
            Why::Stopped => case.backoffs = [Backoff::default(); 2],
        }
    }

    /// Something of a VM has changed, whoever did it: what EL2 has refused others for want of CPU time it may not refuse now.
    pub fn changed(&mut self, vm: &str) {
        for case in &mut self.cases {
            if case.vm != vm && case.refused.is_some_and(|(_, may_pass)| may_pass) {
                case.refused = None;
            }
        }
    }
}

impl Case {
    /// Takes over what a look says about the VM and both conditions.
    fn measure(&mut self, rule: &Rule, look: &Look, between: &Between) {
        let vm = look.vms.get(&self.vm);
        let lives = vm.map(|vm| vm.lives);
        if lives.is_some() && lives != self.lives {
            self.lives = lives;
            self.backoffs = [Backoff::default(); 2];
        }
        let value = vm.and_then(|vm| vm.vcpus.first());
        let value = value.map(|vcpu| rule.quantity.value.of(&vcpu.state));
        let pair = self.value.zip(value);
        let by_others = pair.is_some_and(|(before, now)| !before.is(now));
        if by_others {
            // It counts as a move, and what is measured with it says nothing about the new value yet.
            self.moved = Some(look.at);
            self.met = [None; 2];
            self.refused = None;
        }
        self.value = value.or(self.value);
        for (which, condition) in rule.conditions().into_iter().enumerate() {
            let name = Rule::measured(condition, &self.vm);
            let measured = between.measure(name, condition.measure.value);
            let is_met = !by_others && measured.is_ok_and(|value| condition.is_met(value));
            self.measured[which] = measured;
            self.met[which] = if is_met {
                self.met[which].or(Some(between.since()))
            } else {
                None
            };
        }
        let held = |which: usize, condition: &Condition| {
            let since = self.met[which];
            since.is_some_and(|since| look.at.saturating_sub(since) >= condition.held)
        };
        if held(0, &rule.when) {
            self.is_pressed = true;
        } else if self.measured[0].is_err() || held(1, &rule.back) {
            self.is_pressed = false;
        }
    }
}

/// Which of the values it is.
fn position(steps: &[Setting], now: Setting) -> Option<usize> {
    steps.iter().position(|step| step.is(now))
}

/// Whether one lies behind the other on the way from the first value to the last.
fn is_beyond(steps: &[Setting], one: Setting, other: Setting) -> bool {
    let ends = steps.first().zip(steps.last());
    let grows = ends.is_some_and(|(first, last)| last.number() > first.number());
    if grows {
        one.number() > other.number()
    } else {
        one.number() < other.number()
    }
}

/// The value behind this one; from one that is none of them the nearest on the way. Sets of pCPUs have no way between: the first.
fn next(steps: &[Setting], now: Setting) -> Option<Setting> {
    match (position(steps, now), now) {
        (Some(at), _) => steps.get(at + 1).copied(),
        (None, Setting::Pool(_)) => steps.first().copied(),
        (None, _) => { steps.iter().copied() }.find(|step| is_beyond(steps, *step, now)),
    }
}

/// The value before this one, likewise.
fn previous(steps: &[Setting], now: Setting) -> Option<Setting> {
    match (position(steps, now), now) {
        (Some(at), _) => steps.get(at.checked_sub(1)?).copied(),
        (None, Setting::Pool(_)) => steps.first().copied(),
        (None, _) => { steps.iter().copied().rev() }.find(|step| is_beyond(steps, now, *step)),
    }
}

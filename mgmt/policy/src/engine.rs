//! A policy at work on a connection to EL2: it looks, decides, and orders what was decided, or only says so.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bulkhead_abi::control::{EVENT_LIMITS, Refusal, Status, TRIAL};
use bulkhead_control::failure::Failure;
use bulkhead_control::manager::Manager;
use bulkhead_control::refusal;
use serde_json::{Value, json};

use crate::ask::{self, Needs};
use crate::check;
use crate::controller::{Case, Controller, Decision, Outcome};
use crate::fault::Fault;
use crate::meter::{Look, Meter};
use crate::rule::{Condition, Measure, Policy, Quantity, Setting, text_of};

/// What a decision has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Done {
    /// EL2 has done it.
    Done,
    /// It would have been ordered, if this were no dry run.
    Would,
    /// EL2 has refused it.
    Refused,
}

impl Done {
    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Would => "would",
            Self::Refused => "refused",
        }
    }
}

/// A decision with what has become of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Time since 1970.
    pub time: Duration,
    /// Name of the rule.
    pub rule: String,
    /// Name of the VM.
    pub vm: String,
    /// What is moved.
    pub quantity: Quantity,
    /// From where.
    pub from: Setting,
    /// Where to.
    pub to: Setting,
    /// What it has led to.
    pub done: Done,
    /// The reason, as words of the form `name=value`.
    pub why: String,
    /// Why EL2 has refused.
    pub refusal: Option<String>,
}

impl Record {
    /// A line for people and for programs.
    pub fn line(&self) -> String {
        let Self {
            vm,
            from,
            to,
            rule,
            why,
            ..
        } = self;
        let (word, done) = (self.quantity.word(), self.done.word());
        let mut line = format!("{vm}: {word} {from} -> {to}; rule={rule} outcome={done} {why}");
        if let Some(refusal) = &self.refusal {
            line += &format!(" refusal=\"{refusal}\"");
        }
        line
    }

    /// The same as JSON.
    pub fn document(&self) -> Value {
        json!({
            "time": self.time.as_secs_f64(),
            "rule": self.rule,
            "vm": self.vm,
            "moves": self.quantity.word(),
            "from": value(self.from),
            "to": value(self.to),
            "outcome": self.done.word(),
            "why": self.why,
            "refusal": self.refusal,
            "text": self.line(),
        })
    }
}

/// A setting as JSON.
fn value(setting: Setting) -> Value {
    match setting {
        Setting::Weight(weight) => json!(weight),
        Setting::Cap(share) => json!({ "quota_ns": share.amount, "period_ns": share.period }),
        Setting::Budget(share) => json!({ "budget_ns": share.amount, "period_ns": share.period }),
        Setting::Pool(pool) => {
            let pcpus = (0..64).filter(|pcpu| pool >> pcpu & 1 == 1);
            json!(pcpus.collect::<Vec<u32>>())
        }
    }
}

/// A number about a rule and a VM.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Name of the rule.
    pub rule: String,
    /// Name of the VM.
    pub vm: String,
    /// What is moved.
    pub quantity: Quantity,
    /// Its value as a number: a weight, a part of a pCPU, how many pCPUs.
    pub value: Option<f64>,
    /// What was measured for `when` and for `back`.
    pub measured: [(Measure, Option<f64>); 2],
}

/// A policy at work.
#[derive(Debug)]
pub struct Engine {
    policy: Policy,
    controller: Controller,
    meter: Meter,
    vms: BTreeMap<String, (u16, Needs)>,
    /// What would have been moved where to, in a dry run.
    as_if: Option<BTreeMap<(String, Quantity), Setting>>,
    /// VMs that were moved since the last look: EL2 has an event for each.
    moved: BTreeSet<u16>,
    at: Duration,
}

impl Engine {
    /// A policy that nothing is known of yet; with `is_dry` it orders nothing.
    pub fn new(policy: Policy, is_dry: bool) -> Self {
        Self {
            controller: Controller::new(&policy),
            policy,
            meter: Meter::default(),
            vms: BTreeMap::new(),
            as_if: is_dry.then(BTreeMap::new),
            moved: BTreeSet::new(),
            at: Duration::ZERO,
        }
    }

    /// The policy.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether it orders nothing.
    pub const fn is_dry(&self) -> bool {
        self.as_if.is_some()
    }

    /// Begins on a connection: finds the VMs, and whether the board allows the policy. Gives what is worth knowing, or the mistakes.
    ///
    /// # Errors
    /// EL2 does not answer.
    pub fn meet<T: Read + Write + AsFd>(
        &mut self,
        manager: &mut Manager<T>,
    ) -> Result<Result<Vec<String>, Vec<Fault>>, Failure> {
        let facts = ask::facts(manager)?;
        let faults = check::faults(&self.policy, &facts);
        if !faults.is_empty() {
            return Ok(Err(faults));
        }
        let mut needs = ask::needs(&self.policy);
        let seen = facts.vms.iter().map(|seen| &seen.vm);
        self.vms = seen
            .filter_map(|vm| Some((vm.name.clone(), (vm.index, needs.remove(&vm.name)?))))
            .collect();
        // What lies between two connections is not measured.
        self.meter = Meter::default();
        self.moved.clear();
        Ok(Ok(check::notes(&self.policy, &facts)))
    }

    /// Looks, and does what that leads to: what was decided comes to `records`. `at`: time that never goes back.
    ///
    /// # Errors
    /// EL2 does not answer; what was decided last may have been done or not.
    pub fn look<T: Read + Write + AsFd>(
        &mut self,
        manager: &mut Manager<T>,
        at: Duration,
        records: &mut Vec<Record>,
    ) -> Result<(), Failure> {
        self.hear(manager)?;
        self.at = at;
        let mut look = ask::look(manager, &self.vms, at)?;
        let between = self.meter.take(&look);
        if let Some(as_if) = &self.as_if {
            pretend(as_if, &mut look);
        }
        for decision in self.controller.look(&look, &between) {
            records.push(self.carry_out(manager, &decision)?);
        }
        Ok(())
    }

    /// Hears which VMs somebody has changed.
    fn hear<T: Read + Write + AsFd>(&mut self, manager: &mut Manager<T>) -> Result<(), Failure> {
        while let Some(event) = manager.connection.event(Some(Duration::ZERO))? {
            if event.kind == EVENT_LIMITS && !self.moved.contains(&event.vm) {
                // One that no rule is about may have had the CPU time that a rule was refused.
                let mut known = self.vms.iter();
                let name = known.find(|(_, (index, _))| *index == event.vm);
                let name = name.map_or_else(String::new, |(name, _)| name.clone());
                self.controller.changed(&name);
            }
        }
        self.moved.clear();
        Ok(())
    }

    fn carry_out<T: Read + Write + AsFd>(
        &mut self,
        manager: &mut Manager<T>,
        decision: &Decision,
    ) -> Result<Record, Failure> {
        let rule = &self.policy.rules[decision.rule];
        let quantity = rule.quantity.value;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut record = Record {
            time: now.unwrap_or_default(),
            rule: rule.name.value.clone(),
            vm: decision.vm.clone(),
            quantity,
            from: decision.from,
            to: decision.to,
            done: Done::Done,
            why: decision.why.to_string(),
            refusal: None,
        };
        let mut outcome = Outcome::Done;
        let index = self.vms.get(&decision.vm).map_or(0, |(index, _)| *index);
        let (kind, values) = decision.to.order();
        // EL2 says of a trial what it would say of the order, as things stand there: without what would have been moved before.
        let flags = if self.is_dry() { TRIAL } else { 0 };
        let answer = manager.change(kind, index, &values, flags)?;
        if answer.status != Status::Done as u16 {
            let why = refusal::failure(kind, &decision.vm, &answer).why;
            record.done = Done::Refused;
            record.refusal = Some(why);
            // All else is so as long as the board is.
            let may_pass = answer.status == Status::Refused as u16
                && answer.values[0] == Refusal::Overload as u64;
            outcome = Outcome::Refused { may_pass };
        } else if let Some(as_if) = &mut self.as_if {
            record.done = Done::Would;
            as_if.insert((decision.vm.clone(), quantity), decision.to);
        } else {
            self.moved.insert(index);
        }
        self.controller.told(decision, outcome, self.at);
        if outcome == Outcome::Done {
            self.controller.changed(&decision.vm);
        }
        Ok(record)
    }

    /// The rules with what was last measured, as JSON.
    pub fn document(&self) -> Value {
        let rules: Vec<Value> = { self.controller.cases() }
            .iter()
            .map(|case| self.case(case))
            .collect();
        json!(rules)
    }

    fn case(&self, case: &Case) -> Value {
        let rule = &self.policy.rules[case.rule];
        let condition = |which: usize, condition: &Condition| {
            let measure = condition.measure.value;
            let (found, why) = match case.measured[which] {
                Ok(found) => (Some(found), None),
                Err(why) => (None, Some(why)),
            };
            json!({
                "vm": condition.vm.as_ref().map_or(&case.vm, |vm| &vm.value),
                "measure": measure.word(),
                "measured": found,
                "measured_text": found.map(|found| measure.text(found)),
                "not_measured": why,
                "side": condition.side.word(),
                "threshold": condition.threshold,
                "for_s": condition.held.as_secs_f64(),
                "text": condition.text(),
            })
        };
        json!({
            "rule": rule.name.value,
            "vm": case.vm,
            "priority": rule.priority,
            "moves": rule.quantity.value.word(),
            "now": case.value.map(value),
            "now_text": case.value.map(|value| value.to_string()),
            "from": value(rule.rest()),
            "from_text": rule.rest().to_string(),
            "to": value(rule.bound()),
            "to_text": rule.bound().to_string(),
            "pause_s": rule.pause.as_secs_f64(),
            "when": condition(0, &rule.when),
            "back": condition(1, &rule.back),
            "state": case.rests.text(self.at),
        })
    }

    /// The rules with what was last measured, as numbers.
    pub fn readings(&self) -> Vec<Reading> {
        let cases = self.controller.cases().iter();
        let reading = |case: &Case| {
            let rule = &self.policy.rules[case.rule];
            let measured = |which: usize| {
                let measure = rule.conditions()[which].measure.value;
                (measure, case.measured[which].ok())
            };
            Reading {
                rule: rule.name.value.clone(),
                vm: case.vm.clone(),
                quantity: rule.quantity.value,
                value: case.value.map(Setting::number),
                measured: [measured(0), measured(1)],
            }
        };
        cases.map(reading).collect()
    }

    /// The rules in words, a line for each.
    pub fn rules(&self) -> Vec<String> {
        rules(&self.policy)
    }
}

/// The rules of a policy in words, a line for each.
pub fn rules(policy: &Policy) -> Vec<String> {
    let line = |rule: &crate::rule::Rule| {
        let vms: Vec<&str> = rule.vms.iter().map(|vm| vm.value.as_str()).collect();
        format!(
            "{}: {} of {} from {} to {} when {}; back when {}; {} between moves",
            rule.name.value,
            rule.quantity.value.word(),
            vms.join(", "),
            rule.rest(),
            rule.bound(),
            rule.when.text(),
            rule.back.text(),
            text_of(rule.pause)
        )
    };
    policy.rules.iter().map(line).collect()
}

/// Writes into a look what would have been moved.
fn pretend(as_if: &BTreeMap<(String, Quantity), Setting>, look: &mut Look) {
    for ((vm, _), setting) in as_if {
        let vcpus = look.vms.get_mut(vm).map(|vm| &mut vm.vcpus);
        for vcpu in vcpus.into_iter().flatten() {
            match setting {
                Setting::Weight(weight) => vcpu.state.weight = *weight,
                Setting::Pool(pool) => vcpu.state.pool = *pool,
                Setting::Cap(share) | Setting::Budget(share) => {
                    (vcpu.state.amount, vcpu.state.period) = (share.amount, share.period);
                }
            }
        }
    }
}

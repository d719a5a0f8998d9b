//! Rules: what is measured, when something is moved, what, and how far.

use std::fmt;
use std::time::Duration;

use bulkhead_abi::control::Kind;
use bulkhead_control::board::Vcpu;
use bulkhead_control::words::{Share, cpu_list, share_text};

use crate::fault::{Span, Text};

/// What is measured of a VM from one look to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Part of the time that it had its pCPU.
    Cpu,
    /// Part of what its cap or budget allows that it used.
    Used,
    /// Part of the time in which it was ready and did not run: others did, or its cap or budget was used up.
    Waiting,
    /// Times in a second that its cap or budget was used up.
    Overruns,
    /// Exits in a second.
    Exits,
    /// Part of the time that EL2 took of it for its exits.
    El2,
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Cpu,
        Self::Used,
        Self::Waiting,
        Self::Overruns,
        Self::Exits,
        Self::El2,
    ];

    /// Its word in a file.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Used => "used",
            Self::Waiting => "waiting",
            Self::Overruns => "overruns",
            Self::Exits => "exits",
            Self::El2 => "el2",
        }
    }

    /// Whether it is a number in a second; else it is a part of a whole.
    pub const fn is_rate(self) -> bool {
        matches!(self, Self::Overruns | Self::Exits)
    }

    /// Whether exits have to be asked for, of a VM that shares its pCPUs.
    pub const fn needs_exits(self) -> bool {
        matches!(self, Self::Exits | Self::El2)
    }

    /// A value in words: `41.2%`, `12.5/s`.
    pub fn text(self, value: f64) -> String {
        if self.is_rate() {
            return format!("{value:.1}/s");
        }
        format!("{:.1}%", value * 100.0)
    }
}

/// What is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// The weight of fair vCPUs.
    Weight,
    /// The cap of fair vCPUs.
    Cap,
    /// The budget of real-time vCPUs.
    Budget,
    /// The pCPUs on which fair vCPUs may run.
    Pool,
}

impl Quantity {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Weight, Self::Cap, Self::Budget, Self::Pool];

    /// Its word in a file.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Cap => "cap",
            Self::Budget => "budget",
            Self::Pool => "pool",
        }
    }

    /// The one that a vCPU has now.
    pub const fn of(self, vcpu: &Vcpu) -> Setting {
        let share = Share {
            amount: vcpu.amount,
            period: vcpu.period,
        };
        match self {
            Self::Weight => Setting::Weight(vcpu.weight),
            Self::Cap => Setting::Cap(share),
            Self::Budget => Setting::Budget(share),
            Self::Pool => Setting::Pool(vcpu.pool),
        }
    }
}

/// A value of what is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// 1 to 1000.
    Weight(u64),
    /// The whole period for no cap.
    Cap(Share),
    /// A budget in each period.
    Budget(Share),
    /// A bit for each pCPU.
    Pool(u64),
}

impl Setting {
    /// The request that makes it so, with its values.
    pub fn order(self) -> (Kind, Vec<u64>) {
        match self {
            Self::Weight(weight) => (Kind::Weight, vec![weight]),
            Self::Cap(Share { amount, period }) => (Kind::Cap, vec![amount, period]),
            Self::Budget(Share { amount, period }) => (Kind::Budget, vec![amount, period]),
            Self::Pool(pool) => (Kind::Pool, vec![pool]),
        }
    }

    /// A number by which values of one kind are compared: the weight, the part of a pCPU, how many pCPUs.
    pub fn number(self) -> f64 {
        match self {
            Self::Weight(weight) => weight as f64,
            Self::Cap(share) | Self::Budget(share) => {
                share.amount as f64 / share.period.max(1) as f64
            }
            Self::Pool(pool) => f64::from(pool.count_ones()),
        }
    }

    /// Whether the two mean the same: no cap is none in each period.
    pub fn is(self, other: Self) -> bool {
        let is_none = |setting| matches!(setting, Self::Cap(share) if share.amount == share.period);
        self == other || is_none(self) && is_none(other)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weight(weight) => write!(f, "{weight}"),
            Self::Cap(share) if share.amount == share.period => f.write_str("none"),
            Self::Cap(share) | Self::Budget(share) => {
                f.write_str(&share_text(share.amount, share.period))
            }
            Self::Pool(pool) => f.write_str(&cpu_list(*pool)),
        }
    }
}

/// A value of the file, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed<T> {
    /// The value.
    pub value: T,
    /// Its place.
    pub span: Span,
}

/// Which side of a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Above it.
    Above,
    /// Below it.
    Below,
}

impl Side {
    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Above => "above",
            Self::Below => "below",
        }
    }
}

/// A condition that a measure meets for some time.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// The VM that is measured, if it is not the one of which something is moved.
    pub vm: Option<Placed<String>>,
    /// What is measured of it.
    pub measure: Placed<Measure>,
    /// On which side of the threshold it has to be.
    pub side: Side,
    /// The threshold.
    pub threshold: f64,
    /// For how long, looks in between included.
    pub held: Duration,
}

impl Condition {
    /// Whether a value meets it.
    pub fn is_met(&self, value: f64) -> bool {
        match self.side {
            Side::Above => value > self.threshold,
            Side::Below => value < self.threshold,
        }
    }

    /// In words: `waiting above 30.0% for 3s`.
    pub fn text(&self) -> String {
        let measure = self.measure.value;
        format!(
            "{}{} {} {} for {}",
            self.vm
                .as_ref()
                .map_or_else(String::new, |vm| format!("{} ", vm.value)),
            measure.word(),
            self.side.word(),
            measure.text(self.threshold),
            text_of(self.held)
        )
    }
}

/// A time as files have it.
pub fn text_of(time: Duration) -> String {
    bulkhead_control::words::duration(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its name.
    pub name: Placed<String>,
    /// The VMs of which something is moved, each by itself.
    pub vms: Vec<Placed<String>>,
    /// What is moved.
    pub quantity: Placed<Quantity>,
    /// The values between which it is moved, two at least: the first one where there is no load, the last one the bound.
    pub steps: Vec<Setting>,
    /// When it is moved to the next value.
    pub when: Condition,
    /// When it is moved back.
    pub back: Condition,
    /// Least time between two moves.
    pub pause: Duration,
    /// Rules with more come first.
    pub priority: u8,
}

impl Rule {
    /// The value without load.
    pub fn rest(&self) -> Setting {
        self.steps[0]
    }

    /// The value that is not passed.
    pub fn bound(&self) -> Setting {
        self.steps[self.steps.len() - 1]
    }

    /// The VM that a condition measures when the rule is about `vm`.
    pub fn measured<'a>(condition: &'a Condition, vm: &'a str) -> &'a str {
        condition.vm.as_ref().map_or(vm, |vm| vm.value.as_str())
    }

    /// Both conditions.
    pub fn conditions(&self) -> [&Condition; 2] {
        [&self.when, &self.back]
    }
}

/// A policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Its text, for what is found out about it later.
    pub text: Text,
    /// Time from one look to the next.
    pub interval: Duration,
    /// Its rules.
    pub rules: Vec<Rule>,
}

impl Policy {
    /// What is measured of each VM: name of the VM, and the measure.
    pub fn measured(&self) -> impl Iterator<Item = (&str, Measure)> {
        self.rules.iter().flat_map(|rule| {
            rule.vms.iter().flat_map(move |vm| {
                rule.conditions().map(move |condition| {
                    let name = Rule::measured(condition, &vm.value);
                    (name, condition.measure.value)
                })
            })
        })
    }
}

//! Figures: a value, what stands beside it, and its budget.

use bulkhead_abi::plan::{Header, PAGE};
use bulkhead_profiler::{Cost, Longest, Profile};
use serde::Serialize;
use zerocopy::FromBytes;

use super::budgets::{Budget, Budgets};
use super::program::El2;
use super::subject::operations::{FIGURES, OPERATIONS};
use crate::failure::Failure;

/// One figure, as it stands in the JSON output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Name.
    pub name: String,
    /// What is measured.
    pub operation: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: String,
    /// More fails.
    pub ceiling: u64,
    /// What is aimed at.
    pub goal: u64,
    /// The best other hypervisor's.
    pub peer: Option<u64>,
    /// Its name.
    pub peer_name: Option<String>,
    /// System-register accesses in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysregs: Option<f64>,
    /// Barriers in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub barriers: Option<f64>,
    /// Load and store instructions in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// Exits in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exits: Option<f64>,
    /// Parts by name: functions reported apart, or the way of the longest exit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// What else is to say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A part of a figure, or something reported apart from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// A function of EL2.
    pub name: String,
    /// How much.
    pub value: u64,
}

impl Figure {
    /// Whether it is at or under its ceiling.
    pub fn holds(&self) -> bool {
        self.value <= self.ceiling as f64
    }

    /// Whether it is at or under its goal.
    pub fn reached(&self) -> bool {
        self.value <= self.goal as f64
    }

    fn new(budget: &Budget, value: f64) -> Self {
        Self {
            name: budget.name.clone(),
            operation: budget.operation.clone(),
            value,
            unit: budget.unit.clone(),
            ceiling: budget.ceiling,
            goal: budget.goal,
            peer: budget.peer.as_ref().map(|peer| peer.value),
            peer_name: budget.peer.as_ref().map(|peer| peer.name.clone()),
            sysregs: None,
            barriers: None,
            memory: None,
            exits: None,
            parts: Vec::new(),
            note: String::new(),
        }
    }

    fn beside(self, cost: Cost, divisor: u32) -> Self {
        let each = |count: u64| Some(count as f64 / f64::from(divisor));
        let (sysregs, barriers) = (each(cost.sysregs), each(cost.barriers));
        Self {
            sysregs,
            barriers,
            memory: each(cost.memory),
            ..self
        }
    }
}

/// All figures that the profiles and programs give, in the order of the budgets.
///
/// # Errors
///
/// An operation has no marks, no guest was entered, or a plan can't be read.
pub fn figures(
    budgets: &Budgets,
    profile: &Profile,
    el2: &El2,
    demo: &[u8],
    others: &[Profile],
) -> Result<Vec<Figure>, Failure> {
    let mut figures = Vec::new();
    for budget in &budgets.figures {
        figures.push(match budget.name.as_str() {
            "boot_to_guest" => boot(budget, profile)?,
            "longest_exit" => {
                let all = others
                    .iter()
                    .chain([profile])
                    .filter_map(|profile| profile.longest.as_ref());
                match all.max_by_key(|longest| longest.cost.instructions) {
                    Some(longest) => longest_exit(budget, longest),
                    None => return Err(Failure::failed("no exit was seen in any run", "", "")),
                }
            }
            "image_bytes" => Figure::new(budget, el2.image_bytes as f64),
            "ram_bytes" => Figure::new(budget, ram(demo)? as f64),
            name => operation(budget, name, profile)?,
        });
    }
    Ok(figures)
}

fn operation(budget: &Budget, name: &str, profile: &Profile) -> Result<Figure, Failure> {
    let known = FIGURES.iter().find(|figure| figure.name == name);
    let counted = known.and_then(|figure| profile.figures.get(&figure.id));
    let Some(counted) = counted else {
        let advice = "lab/budgets.toml and guests/src/figures.rs have to name the same figures";
        return Err(Failure::failed(
            format!("`{name}` was not measured"),
            "",
            advice,
        ));
    };
    let value = counted.cost.instructions as f64 / f64::from(OPERATIONS);
    let mut figure = Figure::new(budget, value).beside(counted.cost, OPERATIONS);
    figure.exits = Some(counted.exits as f64 / f64::from(OPERATIONS));
    Ok(figure)
}

fn boot(budget: &Budget, profile: &Profile) -> Result<Figure, Failure> {
    let boot = profile.boot.as_ref().filter(|boot| boot.reached_guest);
    let Some(boot) = boot else {
        return Err(Failure::failed("EL2 entered no guest", "", ""));
    };
    let apart = |name: &str| budget.apart.iter().any(|part| name.contains(part.as_str()));
    let mut counted = Cost::default();
    let mut parts = Vec::new();
    for (name, cost) in &boot.symbols {
        if apart(name) {
            let (name, value) = (name.clone(), cost.instructions);
            parts.push(Part { name, value });
        } else {
            counted.add(*cost);
        }
    }
    let value = counted.instructions as f64;
    let mut figure = Figure::new(budget, value).beside(counted, 1);
    figure.parts = parts;
    figure
        .parts
        .sort_by_key(|part| std::cmp::Reverse(part.value));
    figure.note = "counted apart".to_owned();
    Ok(figure)
}

fn longest_exit(budget: &Budget, longest: &Longest) -> Figure {
    let mut figure = Figure::new(budget, longest.cost.instructions as f64).beside(longest.cost, 1);
    let part = |visit: &bulkhead_profiler::Visit| Part {
        name: visit.symbol.clone(),
        value: visit.instructions,
    };
    figure.parts = longest.path.iter().map(part).collect();
    figure.note = format!(
        "{} at guest pc {:#x}, ESR {:#x}",
        longest.kind, longest.guest_pc, longest.esr
    );
    figure
}

/// RAM that EL2 keeps: its binary, the plan and the pool.
fn ram(plan: &[u8]) -> Result<u64, Failure> {
    let (header, _) = Header::read_from_prefix(plan)
        .map_err(|_| Failure::failed("the plan of the demo is too short", "", "build it anew"))?;
    let plan = header.size.next_multiple_of(PAGE);
    Ok(header.image.plan_offset + plan + u64::from(header.image.pool_pages) * PAGE)
}

//! A figure: a value, what stands beside it, and its budget.

use bulkhead_profiler::Cost;
use serde::{Deserialize, Serialize};

use super::budgets::Budget;

/// One figure, as it stands in the JSON output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Name.
    pub name: String,
    /// Operation that is measured.
    pub operation: String,
    /// Value, in `unit`.
    pub value: f64,
    /// Unit of the value.
    pub unit: String,
    /// Ceiling: the figure fails above it.
    pub ceiling: u64,
    /// Ceiling that was asked for, if the one that holds is higher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<u64>,
    /// Goal for the figure.
    pub goal: u64,
    /// Value of the best other hypervisor.
    pub peer: Option<u64>,
    /// Name of that hypervisor.
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
    /// Further remarks.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A part of a figure, or something reported apart from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Name, such as that of a function of EL2.
    pub name: String,
    /// Value of the part.
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

    /// A figure with its budget and nothing beside it.
    pub(super) fn new(budget: &Budget, value: f64) -> Self {
        Self {
            name: budget.name.clone(),
            operation: budget.operation.clone(),
            value,
            unit: budget.unit.clone(),
            ceiling: budget.ceiling,
            asked: budget.asked,
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

    /// The figure, with the other costs of the operation beside it.
    pub(super) fn beside(self, cost: Cost, divisor: u32) -> Self {
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

//! Ceilings, goals and peers: `lab/budgets.toml`.

use serde::Deserialize;

use bulkhead_model::checkout;
use bulkhead_model::failure::Failure;
use bulkhead_runner::profile::El2;

/// What else the service pCPU has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServicePcpu {
    /// Nothing.
    #[default]
    Idle,
    /// Another VM works there.
    Busy,
    /// Nothing, and what it serves is a control port.
    Control,
    /// It is that of the vCPU (`service = "own"`), and nobody else is there.
    Own,
    /// It is that of the vCPU, and another VM works there.
    OwnBusy,
}

/// Whose instructions a figure of a device counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Share {
    /// EL2's on the pCPU of the vCPU that does the operation.
    Vcpu,
    /// EL2's on all other pCPUs.
    Service,
    /// EL2's on all pCPUs.
    El2,
    /// All that pCPUs execute, VMs included.
    Total,
}

/// All budgets, in the order in which they are shown.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budgets {
    /// Budgets, one for each figure.
    #[serde(rename = "figure")]
    pub figures: Vec<Budget>,
}

/// The budget of one figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Name in JSON.
    pub name: String,
    /// Operation that is measured.
    pub operation: String,
    /// Unit that is counted.
    pub unit: String,
    /// Ceiling: the figure fails above it.
    pub ceiling: u64,
    /// Ceiling that was asked for, if the one that holds is higher.
    pub asked: Option<u64>,
    /// Goal for the figure.
    pub goal: u64,
    /// Figure of the best other hypervisor.
    pub peer: Option<Peer>,
    /// Name of the guest's operation, if it is not that of the figure.
    pub measured: Option<String>,
    /// Version of the GIC on the board on which it is measured: 3 unless it says 2.
    #[serde(default)]
    pub gic: Gic,
    /// What else the service pCPU has to do while a device is measured.
    #[serde(default)]
    pub load: ServicePcpu,
    /// Whose instructions count, of a figure of a device.
    pub share: Option<Share>,
    /// Whether the figure is what the guest sees, in ticks of which each is an instruction of any CPU, and not only
    /// what EL2 executes.
    #[serde(default)]
    pub latency: bool,
    /// Value without a hypervisor, on the scale of ceiling, goal and peer. A native measurement in the same run is set
    /// equal to it.
    pub native: Option<u64>,
    /// Parts of names of EL2 functions that are reported apart and not counted.
    #[serde(default)]
    pub apart: Vec<String>,
    /// Parts of names of EL2 functions that alone are counted; all, if there are none.
    #[serde(default)]
    pub only: Vec<String>,
}

/// Version of the GIC on the board that is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Gic {
    /// GICv2.
    #[serde(rename = "v2")]
    V2,
    /// GICv3.
    #[default]
    #[serde(rename = "v3")]
    V3,
}

/// Another hypervisor's figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Name of the hypervisor.
    pub name: String,
    /// Value of its figure.
    pub value: u64,
}

impl Budgets {
    /// Reads the project's budgets.
    ///
    /// # Errors
    ///
    /// The file is missing or says something else than budgets.
    pub fn load() -> Result<Self, Failure> {
        let path = checkout::root().join("lab/budgets.toml");
        let text = std::fs::read_to_string(&path).map_err(|error| {
            let advice = "the tool works on a checkout of the project; set BULKHEAD_ROOT to it";
            Failure::environment(format!("cannot read {}", path.display()), error, advice)
        })?;
        toml::from_str(&text)
            .map_err(|error| Failure::input(format!("{} is wrong", path.display()), error, ""))
    }

    /// Checks the names of EL2's functions by which figures on a board with this GIC count against EL2 as it was
    /// linked.
    ///
    /// # Errors
    ///
    /// EL2 has no function of such a name.
    pub fn check_names(&self, gic: Gic, el2: &El2) -> Result<(), Failure> {
        for budget in self.figures.iter().filter(|budget| budget.gic == gic) {
            let who = format!("`{}` in lab/budgets.toml", budget.name);
            for part in budget.apart.iter().chain(&budget.only) {
                el2.functions(part, &who)?;
            }
        }
        Ok(())
    }

    /// The budget of the figure `name`.
    pub fn get(&self, name: &str) -> Option<&Budget> {
        self.figures.iter().find(|budget| budget.name == name)
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_core::sched::bound::Costs;
    use bulkhead_profiler::Symbol;

    use super::*;

    #[test]
    fn each_name_of_a_function_has_to_be_one_of_el2() {
        let mut budgets = Budgets::load().expect("the project's budgets are right");
        let names: Vec<String> = budgets
            .figures
            .iter()
            .flat_map(|budget| budget.apart.iter().chain(&budget.only).cloned())
            .collect();
        assert!(names.len() > 4, "{names:?}");
        let symbol = |name: &String| Symbol {
            name: format!("bulkhead_el2::{name}words"),
            ..Symbol::default()
        };
        let el2 = El2 {
            symbols: names.iter().map(symbol).collect(),
            ..El2::default()
        };
        assert!(budgets.check_names(Gic::V3, &el2).is_ok());
        // Renamed in EL2, of what is counted alone and of what is counted apart.
        for (figure, name) in [
            ("vcpu_context", "save_registers"),
            ("boot_to_guest", "bytes::clean"),
        ] {
            let mut el2 = el2.clone();
            el2.symbols.retain(|symbol| !symbol.name.contains(name));
            let failure = budgets.check_names(Gic::V3, &el2).expect_err("gone");
            let expected = format!(
                "EL2 has no function `{name}`, by which `{figure}` in lab/budgets.toml counts"
            );
            assert_eq!(failure.what, expected);
        }
        // EL2 for the other GIC is another image.
        let first = budgets
            .figures
            .iter_mut()
            .find(|budget| budget.gic == Gic::V2);
        first.expect("some").only.push("gone".to_owned());
        assert!(budgets.check_names(Gic::V3, &el2).is_ok());
        assert!(budgets.check_names(Gic::V2, &el2).is_err());
    }

    #[test]
    fn promises_of_cpu_time_count_on_the_ceilings() {
        let budgets = Budgets::load().expect("the project's budgets are right");
        let ceiling = |name| budgets.get(name).map(|budget| budget.ceiling);
        let costs = Costs::OF_BUILD;
        assert_eq!(ceiling("longest_exit"), Some(costs.longest));
        for name in [
            "vcpu_switch",
            "vcpu_switch_v2",
            "server_switch",
            "server_switch_v2",
        ] {
            assert!(ceiling(name).is_some_and(|ceiling| ceiling <= costs.switch));
        }
    }

    #[test]
    fn what_colours_cost_in_a_plan_is_the_ceiling_of_what_is_measured() {
        let budgets = Budgets::load().expect("the project's budgets are right");
        let ceiling = budgets.get("boot_colours_page").expect("there").ceiling;
        assert_eq!(bulkhead_planner::show::colours_cost::START, ceiling);
    }

    #[test]
    fn every_budget_of_the_project_aims_below_its_ceiling() {
        let budgets = Budgets::load().expect("the project's budgets are right");
        assert!(budgets.figures.len() > 20);
        for budget in &budgets.figures {
            // Nothing aims below nothing.
            let aims = budget.goal < budget.ceiling || budget.ceiling == 0;
            assert!(aims && budget.goal <= budget.ceiling, "{}", budget.name);
            let asked = budget.asked.unwrap_or(budget.goal);
            assert!(
                (budget.goal..=budget.ceiling).contains(&asked),
                "{}",
                budget.name
            );
            assert!(
                matches!(
                    &*budget.unit,
                    "instructions" | "bytes" | "ms" | "percent" | "exits"
                ),
                "{}",
                budget.name
            );
        }
    }
}

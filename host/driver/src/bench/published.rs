//! The published figures: the results of a measurement are kept in `lab/figures.toml`, from which the page of the book
//! and the README are made.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::budgets::{Budget, Budgets};
use super::figure::{Figure, Part};
use super::table::number;
use bulkhead_model::checkout;
use bulkhead_model::failure::Failure;

/// The file, from the root of the repository.
pub const FILE: &str = "lab/figures.toml";
/// The unit of ratios.
const RATIO: &str = "percent";
/// The figures of the README.
const FIRST: [&str; 6] = [
    "vtimer_irq",
    "uart_read",
    "sgi_sibling_wfi",
    "boot_to_guest",
    "image_bytes_static",
    "image_bytes",
];

/// Results of a measurement, and the commit that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The commit, as `git rev-parse --short HEAD` has it.
    pub commit: String,
    /// The longest exit of all system tests in instructions, measured by `figures/longest-exit`.
    pub longest_of_tests: u64,
    /// One for each budget, in their order.
    #[serde(rename = "figure")]
    pub figures: Vec<Value>,
}

/// A value and what was counted beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// The name of the figure.
    pub name: String,
    /// Value in the unit of the budget.
    pub value: f64,
    /// System-register accesses in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysregs: Option<f64>,
    /// Barriers in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub barriers: Option<f64>,
    /// Load and store instructions in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// What the parts of a ratio are, with their unit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// The raw values that a ratio is made of. A record that was made before they were kept has none.
    #[serde(default, rename = "part", skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

impl Value {
    /// What is kept of a figure. Only ratios keep their parts: what they compare cannot be seen in them.
    fn of(figure: &Figure) -> Self {
        let (note, parts) = match figure.unit.as_str() {
            RATIO => (figure.note.clone(), figure.parts.clone()),
            _ => (String::new(), Vec::new()),
        };
        Self {
            name: figure.name.clone(),
            value: figure.value,
            sysregs: figure.sysregs,
            barriers: figure.barriers,
            memory: figure.memory,
            note,
            parts,
        }
    }
}

/// The ceiling, and the one that was asked for if it does not hold yet.
fn ceiling(budget: &Budget) -> String {
    match budget.asked {
        Some(asked) => format!("{}, asked: {asked}", budget.ceiling),
        None => budget.ceiling.to_string(),
    }
}

impl Published {
    /// Reads the published figures.
    ///
    /// # Errors
    ///
    /// The file is missing or is no such record.
    pub fn load() -> Result<Self, Failure> {
        let path = checkout::root().join(FILE);
        let text = std::fs::read_to_string(&path).map_err(|error| {
            let advice = "`bulkhead bench --publish` writes it";
            Failure::environment(format!("cannot read {}", path.display()), error, advice)
        })?;
        toml::from_str(&text)
            .map_err(|error| Failure::input(format!("{} is wrong", path.display()), error, ""))
    }

    /// The same record with other figures.
    #[must_use]
    pub fn with(self, commit: String, figures: &[Figure]) -> Self {
        Self {
            commit,
            figures: figures.iter().map(Value::of).collect(),
            ..self
        }
    }

    /// The text of the file.
    ///
    /// # Errors
    ///
    /// A number is none that TOML can have.
    pub fn text(&self) -> Result<String, Failure> {
        let text = toml::to_string(self)
            .map_err(|error| Failure::failed("the figures make no TOML", error, ""))?;
        Ok(format!(
            "# What `bulkhead bench --publish` has measured. docs/reference/figures.md and the README are made from it:\n\
             # `BULKHEAD_BLESS=1 cargo test -p bulkhead-driver --test book`.\n\n{text}"
        ))
    }

    /// Returns why a measured figure is missing on the page, if it is.
    pub fn missing(&self, figure: &Figure) -> Option<String> {
        let found = self.figures.iter().any(|one| one.name == figure.name);
        (!found).then(|| format!("{} is not in {FILE}", figure.name))
    }

    /// Returns each budget with the value that was measured for it.
    ///
    /// # Errors
    ///
    /// The record has others, or in another order.
    fn beside<'a>(&'a self, budgets: &'a Budgets) -> Result<Vec<(&'a Budget, &'a Value)>, String> {
        let names = |all: Vec<&str>| all.join(", ");
        let wanted = budgets.figures.iter().map(|one| one.name.as_str());
        let found = self.figures.iter().map(|one| one.name.as_str());
        if !wanted.clone().eq(found.clone()) {
            return Err(format!(
                "{FILE} has {}, lab/budgets.toml {}",
                names(found.collect()),
                names(wanted.collect())
            ));
        }
        Ok(budgets.figures.iter().zip(&self.figures).collect())
    }

    /// The page of the book.
    ///
    /// # Errors
    ///
    /// The record and the budgets are not of the same figures.
    pub fn page(&self, budgets: &Budgets) -> Result<String, String> {
        let optional = |value: Option<f64>| value.map_or_else(String::new, number);
        let mut rows = String::new();
        for (budget, measured) in self.beside(budgets)? {
            let _ = writeln!(
                rows,
                "| `{}` | {} | **{}** | {} | {} | {} | {} | {} | {} |",
                budget.name,
                operation(budget),
                number(measured.value),
                ceiling(budget),
                budget.goal,
                peer(budget).unwrap_or_default(),
                optional(measured.sysregs),
                optional(measured.barriers),
                optional(measured.memory)
            );
        }
        Ok(format!(
            "# Figures\n\n\
             EL2 instructions for one operation, counted by a plugin of this project in QEMU (GICv3, cortex-a53, `-icount`) over 1000 operations, on the binary \
             that ships, statistics on. They are lengths of paths, not times. Peers were counted in the same way (Bao 2.0, hvisor 6a3fb78, Xen 4.17). An instruction count alone \
             rewards the wrong code, so system-register accesses, barriers and memory accesses stand beside it.\n\n\
             `./bulkhead bench` prints them; ceilings and goals are in [`lab/budgets.toml`](../../lab/budgets.toml). `./bulkhead test figures/` fails above a \
             ceiling, where two measurements differ, and where a figure is missing on this page.\n\n\
             Measured at commit {}; `_v2`: on a GICv2.\n\n\
             | name | operation | value | ceiling | goal | best peer | system registers | barriers | memory |\n\
             | --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |\n\
             {rows}\n\
             {}\
             The longest exit in all system tests together, hostile guests included, is {} instructions: `./bulkhead test` holds it to the same ceiling. Interrupts of \
             a GPPT VM, beside the bare board and the virtual GIC: [ADR 16](../adr/0016-gppt.md).\n",
            self.commit,
            self.ratios(),
            self.longest_of_tests
        ))
    }

    /// The section of the page with the raw values of ratios; empty if none were kept.
    fn ratios(&self) -> String {
        let mut rows = String::new();
        for one in &self.figures {
            for Part { name, value } in &one.parts {
                let _ = writeln!(rows, "| `{}` | {} | {name} | {value} |", one.name, one.note);
            }
        }
        if rows.is_empty() {
            return rows;
        }
        format!(
            "What ratios are made of:\n\n\
             | figure | what | of which | raw value |\n\
             | --- | --- | --- | ---: |\n\
             {rows}\n"
        )
    }

    /// The table of the README.
    ///
    /// # Errors
    ///
    /// The record and the budgets are not of the same figures, or one of them is not among them.
    pub fn first(&self, budgets: &Budgets) -> Result<String, String> {
        let all = self.beside(budgets)?;
        let mut text = "| operation | Bulkhead | best peer |\n| --- | ---: | --- |\n".to_owned();
        for name in FIRST {
            let found = all.iter().find(|(budget, _)| budget.name == name);
            let (budget, measured) = found.ok_or_else(|| format!("no figure is named {name}"))?;
            let peer = peer(budget).ok_or_else(|| format!("{name} has no peer"))?;
            let value = number(measured.value);
            let _ = writeln!(text, "| {} | **{value}** | {peer} |", operation(budget));
        }
        Ok(text)
    }
}

/// Returns the operation that is measured, with its unit where that is not instructions.
fn operation(budget: &Budget) -> String {
    match budget.unit.as_str() {
        "instructions" => budget.operation.clone(),
        unit => format!("{}, {unit}", budget.operation),
    }
}

fn peer(budget: &Budget) -> Option<String> {
    let peer = budget.peer.as_ref()?;
    Some(format!("{} {}", peer.name, peer.value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> (Published, Budgets) {
        let published = Published::load().expect("they are in the repository");
        (published, Budgets::load().expect("so are the budgets"))
    }

    fn figure(name: &str, value: f64) -> Figure {
        let (_, budgets) = both();
        Figure::new(budgets.get(name).expect("a figure"), value)
    }

    #[test]
    fn what_is_published_keeps_its_ceilings() {
        let (published, budgets) = both();
        let all = published.beside(&budgets).expect("the same figures");
        for (budget, measured) in all {
            let figure = Figure::new(budget, measured.value);
            assert!(figure.holds(), "{}: {}", budget.name, measured.value);
        }
        let longest = budgets.get("longest_exit").expect("a budget");
        assert!(published.longest_of_tests <= longest.ceiling);
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let (published, budgets) = both();
        let text = published.text().expect("TOML");
        assert_eq!(
            toml::from_str::<Published>(&text).ok(),
            Some(published.clone())
        );
        let figures = [Figure {
            memory: Some(38.5),
            ..figure("hvc_null", 45.0)
        }];
        let other = published.with("abc".to_owned(), &figures);
        assert_eq!(other.commit, "abc");
        assert_eq!(other.figures[0].memory, Some(38.5));
        let why = other.page(&budgets).expect_err("figures are missing");
        assert!(why.contains("lab/budgets.toml"), "{why}");
    }

    #[test]
    fn the_raw_values_of_a_ratio_are_kept_and_stand_on_the_page() {
        let (published, budgets) = both();
        let part = |name: &str, value| Part {
            name: name.to_owned(),
            value,
        };
        let with_parts = |name: &str| Figure {
            note: "nanoseconds to its init".to_owned(),
            parts: vec![part("as a VM", 1017), part("on the bare board", 1011)],
            ..figure(name, 100.5)
        };
        let all = budgets
            .figures
            .iter()
            .map(|budget| with_parts(&budget.name));
        let kept = published.with("abc".to_owned(), &all.collect::<Vec<_>>());
        let read: Published = toml::from_str(&kept.text().expect("TOML")).expect("as it was");
        assert_eq!(read, kept);
        let page = read.page(&budgets).expect("the same figures");
        for row in [
            "| `linux_boot_ratio` | nanoseconds to its init | as a VM | 1017 |\n",
            "| `linux_boot_ratio` | nanoseconds to its init | on the bare board | 1011 |\n",
            "| `rt_latency_ratio` | nanoseconds to its init | as a VM | 1017 |\n",
        ] {
            assert_eq!(page.matches(row).count(), 1, "{row}");
        }
        // What others are made of is no part of the record.
        assert!(!page.contains("| `hvc_null` | nanoseconds"), "{page}");
    }

    #[test]
    fn a_record_without_raw_values_is_read_and_its_page_has_no_table_of_them() {
        let (mut published, budgets) = both();
        for figure in &mut published.figures {
            figure.parts.clear();
            figure.note.clear();
        }
        let text = published.text().expect("TOML");
        assert!(!text.contains("[[figure.part]]"), "{text}");
        let read: Published = toml::from_str(&text).expect("a record");
        let page = read.page(&budgets).expect("the same figures");
        assert!(!page.contains("raw value"), "{page}");
    }

    #[test]
    fn a_figure_that_was_never_published_is_missing() {
        let (published, _) = both();
        assert_eq!(published.missing(&figure("hvc_null", 1.0)), None);
        let unknown = Figure {
            name: "new".to_owned(),
            ..figure("hvc_null", 1.0)
        };
        assert!(published.missing(&unknown).is_some());
    }
}

//! System tests as data: `tests/FOLDER/NAME.toml`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use bulkhead_model::failure::Failure;
use bulkhead_runner::profile::Profile;
use bulkhead_runner::run::Clock;

use super::description::{self, GICS};
use super::row::Row;
use super::suite::Context;

/// A system, booted in QEMU, and what its console must say.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Claim that the test proves, as a sentence.
    pub claim: String,
    /// The system that boots.
    pub system: SystemSource,
    /// Versions of the GIC, if it runs on boards with each of them. Then the system does not say which its board has, and
    /// the test on a GICv2 has a name that ends in `-gicv2`.
    #[serde(default)]
    pub gic: Vec<u8>,
    /// Keys that differ on a GICv2: they take the place of those above, in tables those that they name.
    #[serde(default)]
    pub gicv2: toml::Table,
    /// Keys that differ on a GICv3.
    #[serde(default)]
    pub gicv3: toml::Table,
    /// Whether it also runs on the profile `static` of EL2, which has no monitor. That test has a name that ends in
    /// `-static`.
    #[serde(default)]
    pub on_static: bool,
    /// CPU models; the test runs once on each.
    #[serde(default = "default_cpus")]
    pub cpus: Vec<String>,
    /// Further CPU models, on which it runs on request: its claim has nothing to do with the model.
    #[serde(default)]
    pub further_cpus: Vec<String>,
    /// Whether the firmware of its board starts U-Boot, which loads the image from a disk.
    #[serde(default)]
    pub u_boot: bool,
    /// Clock that the guests' clocks follow.
    #[serde(default)]
    pub clock: ScenarioClock,
    /// Seconds after which the test counts as hanging. Nothing else depends on the host's time.
    #[serde(default = "default_guard")]
    pub guard: u64,
    /// End of the run.
    #[serde(default)]
    pub end: ScenarioEnd,
    /// VMs that must report `DONE n passed, 0 failed` with n at least 1.
    #[serde(default)]
    pub done: Vec<String>,
    /// Checks that must be among those that passed, by VM.
    #[serde(default)]
    pub passes: BTreeMap<String, Vec<String>>,
    /// Parts of lines that must come and are shown with the result, by VM: what was measured.
    #[serde(default)]
    pub shows: BTreeMap<String, Vec<String>>,
    /// Reasons for which VMs stop: a part of EL2's words, by VM.
    #[serde(default)]
    pub stops: BTreeMap<String, String>,
    /// Limits on what EL2 takes of each period of a VM's timer.
    pub period: Option<Period>,
    /// Conditions on EL2's statistics of stopped VMs.
    #[serde(default)]
    pub exits: Vec<Exits>,
    /// Percent of its pCPU that a vCPU of a VM must have had by EL2's report, least and most, by VM.
    #[serde(default)]
    pub shares: BTreeMap<String, [f64; 2]>,
    /// Times that the vCPUs of a VM must have been moved to another pCPU by EL2's report, least and most, by VM.
    #[serde(default)]
    pub moves: BTreeMap<String, [u64; 2]>,
    /// Slices of EL2's service thread that the devices of a VM must have had by EL2's report, least and most, by VM.
    #[serde(default)]
    pub slices: BTreeMap<String, [u64; 2]>,
    /// Whether EL2's stage-2 tables are read from the board's memory, when each VM has said something and when all have
    /// stopped, and compared with the plan.
    #[serde(default)]
    pub stage2: bool,
    /// Whether EL2's own maps are read from the board's memory at the same times, and compared with what may run on each
    /// pCPU. Implied by `stage2`, which wants that VMs do not share pCPUs.
    #[serde(default)]
    pub el2_maps: bool,
    /// Whether the board's memory has bytes of somebody's before it starts: QEMU writes some into each page of the VMs' RAM
    /// and shared memory.
    #[serde(default)]
    pub dirty: bool,
    /// VMs whose own counts (`TALLY class=N ...`) must be those of EL2's statistics.
    #[serde(default)]
    pub tally: Vec<String>,
    /// Reason that it runs only when it is asked for: it takes long, or needs what nothing else does.
    pub on_request: Option<String>,
    /// Lines that must come, in this order for each speaker, and what is typed then.
    #[serde(default, rename = "step")]
    pub steps: Vec<Step>,
    /// Rows of lines that must have come whole and in order, by VM.
    #[serde(default)]
    pub rows: BTreeMap<String, Row>,
    /// A part of a line behind which nobody reads the console until that is full, and takes no more bytes.
    pub jam: Option<String>,
    /// Lines that must not come.
    #[serde(default)]
    pub never: Vec<Never>,
    /// Most lines that EL2 may say; no limit if absent. A guest must not be able to make it print.
    pub words: Option<usize>,
}

/// Place of the description of a scenario's system.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum SystemSource {
    /// In a file of its own, relative to the repository.
    File(String),
    /// In the scenario: the tables of a description, `[system.board]`, `[system.vm.NAME]` and so on. Paths in it start at
    /// `out/test/systems/`.
    Tables(toml::Table),
}

impl SystemSource {
    /// The name of the system. `test` is that of the scenario.
    pub fn name(&self, test: &str) -> String {
        match self {
            Self::File(file) => {
                let stem = Path::new(file).file_stem().unwrap_or_default();
                stem.to_string_lossy().into_owned()
            }
            Self::Tables(_) => test.to_owned(),
        }
    }

    /// The file with the description, which is written if the scenario has it.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn file(&self, context: &Context, test: &str) -> Result<PathBuf, String> {
        match self {
            Self::File(file) => Ok(context.root.join(file)),
            Self::Tables(system) => description::write(context, test, &system.to_string()),
        }
    }
}

/// Limits on what EL2 takes of each period of a VM's timer, counted by the profiler.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Period {
    /// The VM; the timer is that of its first vCPU.
    pub vm: String,
    /// Most instructions at EL2 in a period.
    pub most: u64,
    /// Least number of periods.
    pub periods: u64,
    /// Most exits in all of them together; no limit if absent.
    pub exits: Option<u64>,
}

impl Period {
    /// Returns what is wrong with the periods that were counted.
    pub fn flaw(&self, profile: &Profile) -> Option<String> {
        let seen = profile.periods.as_ref();
        let (count, max) = seen.map_or((0, 0), |periods| (periods.count, periods.max));
        let exits = seen.map_or(0, |periods| periods.exits);
        if count < self.periods {
            let (vm, least) = (&self.vm, self.periods);
            return Some(format!(
                "`{vm}` had {count} periods instead of {least} or more"
            ));
        }
        if let Some(most) = self.exits.filter(|most| exits > *most) {
            let vm = &self.vm;
            return Some(format!(
                "`{vm}` made {exits} exits in its periods, above {most}"
            ));
        }
        (max > self.most).then(|| {
            let (vm, most) = (&self.vm, self.most);
            format!("EL2 took {max} instructions of a period of `{vm}`, above {most}")
        })
    }
}

/// Bounds on the number of exits of a class that a VM has had, over all its vCPUs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exits {
    /// The VM.
    pub vm: String,
    /// Name of the class; all exits if absent.
    pub class: Option<String>,
    /// Least number.
    #[serde(default)]
    pub least: u64,
    /// Most; no limit if absent.
    pub most: Option<u64>,
}

/// A line that must come.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Speaker of the line: a VM's name or `el2`.
    pub from: String,
    /// A part of the line. With `keys` the line need not have ended: it may be a prompt.
    pub line: String,
    /// Keys that are typed on the console once it came.
    pub keys: Option<String>,
}

/// A line that must not come.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Never {
    /// Speaker that must not say it; anybody if absent.
    pub from: Option<String>,
    /// A part of the line.
    pub line: String,
}

/// Clock that the guests' clocks follow in a test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScenarioClock {
    /// Instructions, 8 ns each: about as fast as emulation goes, so that timers keep their usual
    /// relation to work.
    #[default]
    Instructions,
    /// The host's clock, CPUs in parallel: real races, no figures.
    Host,
}

impl From<ScenarioClock> for Clock {
    fn from(clock: ScenarioClock) -> Self {
        match clock {
            ScenarioClock::Instructions => Self::Instructions { shift: 3 },
            ScenarioClock::Host => Self::Host,
        }
    }
}

/// End of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScenarioEnd {
    /// All VMs stop and EL2 powers the board off.
    #[default]
    PowerOff,
    /// The last step has come; what still runs is killed.
    LastStep,
}

fn default_cpus() -> Vec<String> {
    vec!["cortex-a53".to_owned()]
}

const fn default_guard() -> u64 {
    120
}

impl Scenario {
    /// Reads the scenarios of a file, by name: that of the file, or one for each version of the GIC.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is not TOML of this form, or expects nothing.
    pub fn load(path: &Path) -> Result<Vec<(String, Self)>, Failure> {
        let what = || format!("cannot use the test `{}`", path.display());
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::environment(what(), error, ""))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Self::read(&name, &text)
            .map_err(|flaw| Failure::input(what(), flaw, "see docs/internals/testing.md"))
    }

    /// The scenarios of a text.
    fn read(name: &str, text: &str) -> Result<Vec<(String, Self)>, String> {
        let mut all = Vec::new();
        for (name, scenario) in Self::of_gics(name, text)? {
            let smaller = scenario.on_static.then(|| scenario.without_monitor());
            let smaller = smaller.transpose()?;
            let ending = format!("{name}-static");
            all.push((name, scenario));
            all.extend(smaller.map(|scenario| (ending, scenario)));
        }
        Ok(all)
    }

    /// The same on the profile `static`.
    fn without_monitor(&self) -> Result<Self, String> {
        let mut scenario = self.clone();
        let SystemSource::Tables(system) = &mut scenario.system else {
            return Err("`on_static` needs the system in the scenario".to_owned());
        };
        description::leave_monitor_out(system)?;
        Ok(scenario)
    }

    /// The scenarios of a text for each version of the GIC.
    fn of_gics(name: &str, text: &str) -> Result<Vec<(String, Self)>, String> {
        let scenario: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut base: toml::Table = toml::from_str(text).map_err(|error| error.to_string())?;
        if scenario.gic.is_empty() {
            if !(scenario.gicv2.is_empty() && scenario.gicv3.is_empty()) {
                return Err("`gicv2` or `gicv3` without `gic = [2, 3]`".to_owned());
            }
            return match scenario.flaw() {
                Some(flaw) => Err(flaw.to_owned()),
                None => Ok(vec![(name.to_owned(), scenario)]),
            };
        }
        if scenario.gic != GICS {
            return Err(format!(
                "`gic` is not {GICS:?}: one version alone is said of the board, in `[system.board]`"
            ));
        }
        for key in ["gic", "gicv2", "gicv3"] {
            base.remove(key);
        }
        let on = |version: u8| {
            let (ending, differs) = match version {
                2 => ("-gicv2", &scenario.gicv2),
                _ => ("", &scenario.gicv3),
            };
            let mut table = base.clone();
            overlay(&mut table, differs);
            let read = table.try_into::<Self>().map_err(|error| error.to_string());
            let read = read.and_then(|mut scenario| {
                let SystemSource::Tables(system) = &mut scenario.system else {
                    return Err("`gic` needs the system in the scenario".to_owned());
                };
                if !scenario.gic.is_empty() {
                    return Err("a version has versions".to_owned());
                }
                description::set_gic(system, version)?;
                match scenario.flaw() {
                    Some(flaw) => Err(flaw.to_owned()),
                    None => Ok(scenario),
                }
            });
            let read = read.map_err(|why| format!("on a GICv{version}: {why}"))?;
            Ok((format!("{name}{ending}"), read))
        };
        GICS.into_iter().map(on).collect()
    }

    /// A scenario that the code makes, from the same text as those in files.
    pub fn made(text: &str) -> Result<Self, String> {
        let scenario: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        match scenario.flaw() {
            Some(flaw) => Err(flaw.to_owned()),
            None => Ok(scenario),
        }
    }

    /// The CPU models that it is for, each with the reason why it runs there on request only.
    pub fn runs(&self) -> impl Iterator<Item = (&str, Option<String>)> {
        let always = self.cpus.iter().map(|cpu| (cpu, None));
        let why =
            "what it claims has nothing to do with the CPU model, and another one runs each time";
        let further = self.further_cpus.iter().map(move |cpu| (cpu, Some(why)));
        let all = always.chain(further);
        all.map(|(cpu, why)| {
            let why = self.on_request.clone().or_else(|| why.map(str::to_owned));
            (cpu.as_str(), why)
        })
    }

    /// Time after which the test counts as hanging.
    pub fn guard(&self) -> Duration {
        Duration::from_secs(self.guard)
    }

    fn flaw(&self) -> Option<&'static str> {
        if self.steps.is_empty() && self.done.is_empty() && self.stops.is_empty() {
            return Some("it expects nothing: no `step`, `done` or `stops`");
        }
        if self
            .on_request
            .as_deref()
            .is_some_and(|why| why.trim().is_empty())
        {
            return Some("`on_request` without a reason");
        }
        if self.period.is_some() && self.clock == ScenarioClock::Host {
            return Some(
                "`period` with `clock = \"host\"`: periods are counted on the instruction clock",
            );
        }
        if self.period.is_some() && self.end != ScenarioEnd::PowerOff {
            return Some(
                "`period` without a power-off: QEMU must end by itself to leave its counts",
            );
        }
        if (self.stage2 || self.el2_maps) && self.end != ScenarioEnd::PowerOff {
            return Some(
                "`stage2` or `el2_maps` without a power-off: tables are read a second time at the end",
            );
        }
        let hopeless = |exits: &Exits| exits.least == 0 && exits.most.is_none();
        if self.exits.iter().any(hopeless) {
            return Some("an entry of `exits` has neither `least` nor `most`");
        }
        if self.further_cpus.iter().any(|cpu| self.cpus.contains(cpu)) {
            return Some("a CPU model is in `cpus` and in `further_cpus`");
        }
        if self.cpus.is_empty() {
            return Some("it runs on no CPU: `cpus` is empty");
        }
        if self.end == ScenarioEnd::LastStep && self.steps.is_empty() {
            return Some("`end = \"last-step\"` without a `step`");
        }
        if self.steps.iter().any(|step| step.line.is_empty()) {
            return Some("a `step` has an empty `line`, which every line contains");
        }
        None
    }
}

/// Puts the values of `over` into `base`: a table into a table key by key, anything else in place of what is there.
fn overlay(base: &mut toml::Table, over: &toml::Table) {
    for (key, value) in over {
        match (base.get_mut(key), value) {
            (Some(toml::Value::Table(base)), toml::Value::Table(over)) => overlay(base, over),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWINS: &str = "claim = \"c\"\ngic = [2, 3]\ndone = [\"a\"]\nwords = 3\n\
        [gicv2]\ndone = [\"b\"]\n[gicv2.passes]\nb = [\"x\"]\n\
        [gicv3]\nwords = 4\n[gicv3.system.vm.a]\nrtc = true\n\
        [system.board]\nname = \"qemu-virt\"\n[system.vm.a]\nmemory = \"4MiB\"\n[passes]\na = [\"y\"]\n";

    fn system(scenario: &Scenario) -> String {
        match &scenario.system {
            SystemSource::Tables(system) => system.to_string(),
            SystemSource::File(file) => panic!("{file}"),
        }
    }

    #[test]
    fn a_scenario_runs_on_the_profile_static_without_the_monitor() {
        let text = TWINS.replace("words = 3", "words = 3\non_static = true");
        let all = Scenario::read("t", &text).unwrap();
        let names: Vec<_> = all.iter().map(|(name, _)| &name[..]).collect();
        assert_eq!(names, ["t-gicv2", "t-gicv2-static", "t", "t-static"]);
        for (name, scenario) in &all {
            let without = system(scenario).contains("[console]\nmonitor = false\n");
            assert_eq!(without, name.ends_with("-static"), "{name}");
        }
        assert_eq!(all[1].1.done, all[0].1.done);
        let twice = text + "[system.console]\nmonitor = true\n";
        let why = Scenario::read("t", &twice).unwrap_err();
        assert!(why.contains("already"), "{why}");
    }

    #[test]
    fn a_scenario_of_two_gics_is_two_tests() {
        let twins = Scenario::read("t", TWINS).unwrap();
        let [(name2, v2), (name3, v3)] = &twins[..] else {
            panic!("{twins:?}");
        };
        assert_eq!((&name2[..], &name3[..]), ("t-gicv2", "t"));
        assert_eq!(v2.done, ["b"]);
        assert_eq!(v3.done, ["a"]);
        assert_eq!((v2.words, v3.words), (Some(3), Some(4)));
        assert_eq!(v2.passes.len(), 2);
        assert_eq!(v3.passes.len(), 1);
        assert_eq!(
            system(v2),
            "[board]\nname = \"qemu-virt\"\ngic = 2\n\n[vm.a]\nmemory = \"4MiB\"\n"
        );
        assert_eq!(
            system(v3),
            "[board]\nname = \"qemu-virt\"\ngic = 3\n\n[vm.a]\nmemory = \"4MiB\"\nrtc = true\n"
        );
    }

    #[test]
    fn what_would_be_of_no_effect_is_refused() {
        let flaw =
            |from: &str, to: &str| Scenario::read("t", &TWINS.replace(from, to)).unwrap_err();
        assert!(flaw("gic = [2, 3]\n", "").contains("without"));
        assert!(flaw("[2, 3]", "[2]").contains("one version alone"));
        assert!(flaw("qemu-virt\"\n", "qemu-virt\"\ngic = 2\n").contains("already"));
        assert!(flaw("[gicv2]\n", "[gicv2]\ngic = [2]\n").contains("GICv2"));
        assert!(flaw("[gicv2]\n", "[gicv2]\nwords = true\n").contains("GICv2"));
        assert!(flaw("[gicv2]\n", "[gicv2]\nwrods = 1\n").contains("wrods"));
        assert!(flaw("[gicv3]\n", "[gicv3]\ndone = []\n").contains("expects nothing"));
        let file = "claim = \"c\"\ngic = [2, 3]\nsystem = \"s.toml\"\ndone = [\"a\"]\n";
        let why = Scenario::read("t", file).unwrap_err();
        assert!(why.contains("needs the system"), "{why}");
    }

    #[test]
    fn a_test_that_expects_nothing_is_none() {
        let text = "claim = \"c\"\nsystem = \"s.toml\"\n";
        let scenario: Scenario = toml::from_str(text).unwrap();
        assert!(scenario.flaw().unwrap().contains("expects nothing"));
        let scenario: Scenario = toml::from_str(&format!("{text}done = [\"a\"]")).unwrap();
        assert_eq!(scenario.flaw(), None);
        assert_eq!(scenario.cpus, ["cortex-a53"]);
    }

    #[test]
    fn what_runs_on_request_says_why() {
        let read = |why| {
            let text = "claim = \"c\"\nsystem = \"s.toml\"\ndone = [\"a\"]\n";
            Scenario::read("t", &format!("{text}on_request = {why}\n"))
        };
        let scenario = read("\"it takes minutes\"").unwrap().remove(0).1;
        assert_eq!(scenario.on_request.as_deref(), Some("it takes minutes"));
        assert!(read("\" \"").unwrap_err().contains("without a reason"));
        assert!(read("true").is_err());
    }

    #[test]
    fn periods_are_held_against_their_limits() {
        let period = Period {
            vm: "a".to_owned(),
            most: 300,
            periods: 10,
            exits: Some(7),
        };
        let profile = |count, max, exits| {
            let mut profile = Profile::default();
            let mut periods = bulkhead_runner::profile::Periods::default();
            (periods.count, periods.max, periods.exits) = (count, max, exits);
            profile.periods = Some(periods);
            profile
        };
        assert_eq!(period.flaw(&profile(10, 300, 7)), None);
        let flaw = period.flaw(&profile(10, 301, 7)).unwrap();
        assert!(flaw.contains("301 instructions"), "{flaw}");
        let flaw = period.flaw(&profile(10, 300, 8)).unwrap();
        assert!(flaw.contains("8 exits"), "{flaw}");
        let flaw = period.flaw(&profile(9, 1, 0)).unwrap();
        assert!(flaw.contains("9 periods"), "{flaw}");
    }

    #[test]
    fn a_misspelt_key_is_refused() {
        let text = "claim = \"c\"\nsystem = \"s.toml\"\ndoen = [\"a\"]\n";
        assert!(toml::from_str::<Scenario>(text).is_err());
    }

    #[test]
    fn all_tests_of_the_repository_can_be_used() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let scenarios = super::super::systems::scenarios(&root);
        let scenarios = scenarios.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(!scenarios.is_empty());
        for (name, scenario) in scenarios {
            assert!(
                scenario.claim.ends_with('.'),
                "{name}: a claim is a sentence"
            );
        }
    }
}

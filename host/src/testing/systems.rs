//! System tests: a description is built, booted in QEMU, and its console judged.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::judge::Judge;
use super::sanitizer::Sanitizer;
use super::scenario::Scenario;
use super::stage2::Tables;
use super::suite::{Context, Job, Test};
use crate::bench::{Attached, CpuKey, Instrument, Period, Program, period_of};
use crate::failure::Failure;
use crate::run::console::Transcript;
use crate::run::{Emulator, Logs, Output, Qemu, System};

type Build = Arc<OnceLock<Result<System, String>>>;

/// Systems that tests have built, so that each is built once.
#[derive(Debug, Default)]
pub struct Builds(Mutex<BTreeMap<PathBuf, Build>>);

impl Builds {
    /// The built system of a description; whoever comes first builds it.
    pub fn get(&self, description: &Path) -> Result<System, String> {
        let mut builds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let build = Arc::clone(builds.entry(description.to_owned()).or_default());
        drop(builds);
        let built = build.get_or_init(|| {
            System::build(description).map_err(|stopped| Failure::from(stopped).to_string())
        });
        built.clone()
    }
}

/// The tests of this file: one for each system that scenarios use and one for each scenario and CPU.
///
/// # Errors
///
/// A scenario cannot be used.
pub fn tests(root: &Path) -> Result<Vec<Test>, Failure> {
    let mut tests = Vec::new();
    let mut systems = BTreeMap::new();
    for (name, scenario) in scenarios(root)? {
        let scenario = Arc::new(scenario);
        // A system that is run on request only is built on request only: it may need more than the others.
        let built = systems.entry(scenario.system.name(&name));
        let built = built.or_insert_with(|| (name.clone(), Arc::clone(&scenario), true));
        built.2 &= scenario.on_request;
        for cpu in &scenario.cpus {
            let (cpu, scenario) = (cpu.clone(), Arc::clone(&scenario));
            let test_name = format!("system/{name}/{cpu}");
            let folder = test_name.replace('/', "-");
            let (name, claim, on_request) =
                (name.clone(), scenario.claim.clone(), scenario.on_request);
            let job: Job = Box::new(move |context| {
                let system = scenario.system.file(context, &name);
                boot(
                    context,
                    &folder,
                    &system.map_err(|why| vec![why])?,
                    &scenario,
                    &cpu,
                )
            });
            let test = Test::parallel(test_name, claim, job);
            tests.push(if on_request { test.on_request() } else { test });
        }
    }
    let builds = systems
        .into_iter()
        .map(|(system, (name, scenario, on_request))| {
            let claim = format!("The system `{system}` is free of conflicts and becomes an image.");
            let job: Job = Box::new(move |context| {
                let file = scenario.system.file(context, &name);
                let built = file.and_then(|file| context.builds.get(&file));
                let built = built.map_err(|why| vec![why])?;
                let bytes = std::fs::metadata(&built.qemu.image)
                    .map_err(|e| vec![e.to_string()])?
                    .len();
                Ok(format!("{} KiB", bytes.div_ceil(1024)))
            });
            let test = Test::build(format!("build/{system}"), claim, job);
            if on_request { test.on_request() } else { test }
        });
    let mut all: Vec<_> = builds.collect();
    all.extend(tests);
    Ok(all)
}

/// Rooms of `tests/` that have scenarios, by subject. What else is there belongs to tests of that name.
const ROOMS: [&str; 9] = [
    "gic",
    "gppt",
    "smp",
    "sched",
    "devices",
    "hostile",
    "lifecycle",
    "linux",
    "boards",
];

/// The scenarios in the rooms of `tests/` below `root`, by name.
///
/// # Errors
///
/// A room cannot be read, a scenario cannot be used, or two have the same name.
pub fn scenarios(root: &Path) -> Result<BTreeMap<String, Scenario>, Failure> {
    let mut scenarios = BTreeMap::new();
    for room in ROOMS {
        let folder = root.join("tests").join(room);
        let entries = folder.read_dir().map_err(|error| {
            Failure::environment(format!("cannot read `{}`", folder.display()), error, "")
        })?;
        let paths = entries.flatten().map(|entry| entry.path());
        for path in paths.filter(|path| path.extension().is_some_and(|ending| ending == "toml")) {
            for (name, scenario) in Scenario::load(&path)? {
                if scenarios.insert(name.clone(), scenario).is_some() {
                    return Err(Failure::input(
                        format!("two tests are called `{name}`"),
                        format!("one of them is of `{}`", path.display()),
                        "give one of the files another name",
                    ));
                }
            }
        }
    }
    Ok(scenarios)
}

/// Runs a scenario with the system that the file `description` describes on a CPU model, and judges it. `folder` is the
/// name of its logs.
pub(super) fn boot(
    context: &Context,
    folder: &str,
    description: &Path,
    scenario: &Scenario,
    cpu: &str,
) -> Result<String, Vec<String>> {
    let system = context.builds.get(description).map_err(|why| vec![why])?;
    let period = match &scenario.period {
        Some(period) => Some(
            period_of(&system.plan, &period.vm)
                .ok_or_else(|| vec![format!("`{}` is no VM of the system", period.vm)])?,
        ),
        None => None,
    };
    let why = |failure: Failure| vec![failure.to_string()];
    let instruments = context.logs.join("profiles").join(folder);
    let profile = profiler(&instruments, &system.el2, period).map_err(why)?;
    let sanitizer = Sanitizer::attach(&instruments, &system).map_err(why)?;
    let mut qemu = Qemu {
        cpu: cpu.to_owned(),
        clock: scenario.clock.into(),
        ..system.qemu.clone()
    };
    qemu.plugins.push(profile.argument.clone());
    qemu.plugins.push(sanitizer.argument.clone());
    let mut tables = match scenario.stage2 {
        true => Some(Tables::attach(&mut qemu, &system).map_err(why)?),
        false => None,
    };
    let mut judge = Judge::new(scenario);
    let ended = watch(&qemu, scenario.guard(), |bytes| {
        let keys = judge.push(bytes);
        let tables = tables.as_mut();
        let next = tables.map_or(Next::Watch, |tables| tables.look(&judge.transcript));
        match next {
            Next::Watch => (keys, judge.finished().into()),
            next => (keys, next),
        }
    });
    let ended = ended.map_err(|failure| vec![failure.to_string()])?;
    let (mut wrong, transcript) = judge.verdict(ended.powered_off);
    if ended.hangs {
        wrong.push(format!("it still ran after {} s", scenario.guard));
    }
    if let Some((invariant, place)) = &transcript.refused {
        wrong.push(format!("EL2 refused the plan: {invariant}: {place}"));
    }
    wrong.extend(tables.into_iter().flat_map(Tables::verdict));
    match sanitizer.verdict() {
        Ok(0) => wrong.push("the sanitizer saw no VM entered".to_owned()),
        Ok(_) => {}
        Err(found) => wrong.extend(found),
    }
    // A QEMU that the test ended has not written its profile.
    if ended.powered_off {
        let profile = profile
            .profile()
            .map_err(|failure| vec![failure.to_string()])?;
        wrong.extend(
            scenario
                .period
                .as_ref()
                .and_then(|period| period.flaw(&profile)),
        );
        let mut profiles = context
            .profiles
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        profiles.push((folder.to_owned(), profile));
    }
    if wrong.is_empty() {
        let exits: u64 = transcript.exits.iter().map(|table| table.exits()).sum();
        return Ok(format!("{} lines, {exits} exits", transcript.lines.len()));
    }
    wrong.extend(evidence(
        &context.logs.join(folder),
        &transcript,
        &ended.messages,
    ));
    Err(wrong)
}

/// Has the profiler count what EL2 costs in a run.
fn profiler(folder: &Path, el2: &Path, period: Option<Period>) -> Result<Attached, Failure> {
    std::fs::create_dir_all(folder).map_err(|error| {
        Failure::environment(format!("cannot make `{}`", folder.display()), error, "")
    })?;
    let el2 = Program::read(el2)?;
    let cpus = CpuKey::Tpidr;
    Instrument {
        cpus,
        period,
        ..Instrument::new(&el2)
    }
    .attach(folder)
}

/// What [`watch`] does after a look at the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It goes on.
    Watch,
    /// It ends the emulator, however far that is.
    Kill,
    /// The board is off, and the emulator stayed for a debugger: it may end now.
    Release,
}

impl From<bool> for Next {
    /// `true` for [`Next::Kill`].
    fn from(enough: bool) -> Self {
        if enough { Self::Kill } else { Self::Watch }
    }
}

/// How an emulator ended.
#[derive(Debug)]
pub struct Ended {
    /// By itself and with success.
    pub powered_off: bool,
    /// The guard time was over.
    pub hangs: bool,
    /// What QEMU said on its standard error.
    pub messages: String,
}

/// Runs QEMU until it ends, `judge` says that it is enough, or the guard time is over. `judge` gives
/// keys to type; it is asked with no bytes now and then when nothing was said.
///
/// # Errors
///
/// QEMU cannot be started or read.
pub fn watch<N: Into<Next>>(
    qemu: &Qemu,
    guard: Duration,
    mut judge: impl FnMut(&[u8]) -> (Vec<u8>, N),
) -> Result<Ended, Failure> {
    let mut emulator = Emulator::start(qemu.command())?;
    let deadline = Instant::now() + guard;
    let mut buffer = [0; 16 * 1024];
    let failed = |error| Failure::environment("cannot read the console of QEMU", error, "");
    let (mut powered_off, mut hangs) = (false, false);
    loop {
        let output = emulator.read(&mut buffer, Duration::from_millis(100));
        let bytes = match output.map_err(failed)? {
            Output::Bytes(n) => &buffer[..n],
            Output::Silence => &[],
            Output::Closed => {
                powered_off = emulator.wait().map_err(failed)?.success();
                break;
            }
        };
        let (keys, next) = judge(bytes);
        match next.into() {
            Next::Watch => emulator.send(&keys),
            Next::Kill => break,
            Next::Release => emulator.release().map_err(failed)?,
        }
        if Instant::now() >= deadline {
            hangs = true;
            break;
        }
    }
    emulator.kill();
    Ok(Ended {
        powered_off,
        hangs,
        messages: emulator.messages(),
    })
}

/// Keeps the logs of a failed run, and gives the part that a reader wants to see first.
fn evidence(folder: &Path, transcript: &Transcript, messages: &str) -> Vec<String> {
    const SHOWN: usize = 25;
    let mut lines = Vec::new();
    if !messages.is_empty() {
        lines.push(format!("QEMU said: {messages}"));
    }
    let first = transcript.lines.len().saturating_sub(SHOWN);
    lines.push(format!(
        "the last {} lines of the console:",
        transcript.lines.len() - first
    ));
    for line in &transcript.lines[first..] {
        lines.push(format!("  [{}] {}", line.speaker, line.text));
    }
    let kept = Logs::create(folder).and_then(|mut logs| {
        transcript
            .lines
            .iter()
            .try_for_each(|line| logs.add(line))?;
        std::fs::File::create(folder.join("qemu.log"))?.write_all(messages.as_bytes())
    });
    lines.push(match kept {
        Ok(()) => format!("all of it: {}", folder.display()),
        Err(error) => format!(
            "the logs could not be kept in {}: {error}",
            folder.display()
        ),
    });
    lines
}

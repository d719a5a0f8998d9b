//! System tests: a description is built, booted in QEMU, and its console judged.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::thread;

use bulkhead_abi::plan::{PAGE, RegionKind};
use bulkhead_core::plan::Plan;
use bulkhead_model::failure::Failure;
use bulkhead_runner::cross_build;
use bulkhead_runner::profile::{
    Attached, CpuKey, Instrument, Pace, Period, Program, period_of, vms_of,
};
use bulkhead_runner::run::console::Transcript;
use bulkhead_runner::run::{Logs, Qemu, System};

use zerocopy::IntoBytes;

use super::code;
use super::exits;
use super::judge::{self, Judge};
use super::sanitizer::Sanitizer;
use super::scenario::{Scenario, ScenarioClock};
use super::suite::{Context, Job, Test};
use super::tables::Tables;
use super::trial::Trial;
use super::uboot;
use super::watch::{Ending, Next, watch_paced};

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
        let built = built.or_insert_with(|| {
            (
                name.clone(),
                Arc::clone(&scenario),
                scenario.on_request.clone(),
            )
        });
        built.2 = built.2.take().filter(|_| scenario.on_request.is_some());
        for (cpu, on_request) in scenario.runs() {
            let (cpu, scenario) = (cpu.to_owned(), Arc::clone(&scenario));
            let test_name = format!("system/{name}/{cpu}");
            let folder = test_name.replace('/', "-");
            let (name, claim) = (name.clone(), scenario.claim.clone());
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
            tests.push(match on_request {
                Some(why) => test.on_request(why),
                None => test,
            });
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
            match on_request {
                Some(why) => test.on_request(why),
                None => test,
            }
        });
    let claim = "EL2 compiles for each profile and each kind of board, and all guest programs and those of a manager do.";
    let mut all = vec![Test::build(
        "build/programs",
        claim,
        Box::new(|_| programs()),
    )];
    all.extend(builds);
    all.extend(tests);
    Ok(all)
}

/// Programs of the Linux that manages a board, each of which takes half a minute.
const MANAGERS: [&str; 2] = ["bulkheadctl", "bulkheadd"];

/// Builds what the systems consist of. Each EL2 is one unit of compilation, so that guests are built beside it, and a manager's programs.
fn programs() -> Result<String, Vec<String>> {
    let (el2s, guests) = thread::scope(|scope| {
        let el2s = scope
            .spawn(|| code::usual_el2s().try_for_each(|build| cross_build::el2(build).map(drop)));
        let guests = cross_build::small_guests();
        let managers = { MANAGERS.into_iter() }.try_for_each(|it| cross_build::guest(it).map(drop));
        (el2s.join(), managers.and(guests))
    });
    let why = |failure: Failure| vec![failure.to_string()];
    el2s.map_err(|_| vec!["building EL2 panicked".to_owned()])?
        .map_err(why)?;
    let guests = guests.map_err(why)?;
    Ok(format!(
        "EL2 in {} builds, {guests} guests",
        code::usual_el2s().count()
    ))
}

/// Folders of `tests/` that have scenarios, by subject. Everything else there belongs to tests of that name.
const ROOMS: [&str; 11] = [
    "gic",
    "gppt",
    "smp",
    "sched",
    "devices",
    "virtio",
    "control",
    "hostile",
    "lifecycle",
    "linux",
    "boards",
];

/// The scenarios in the folders of `tests/` below `root`, by name.
///
/// # Errors
///
/// A folder cannot be read, a scenario cannot be used, or two have the same name.
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

/// Options by which QEMU fills all RAM and shared memory of the plan's VMs before the board starts, from a file that this
/// writes.
fn old_bytes(plan: &[u8], file: &Path) -> Result<Vec<String>, String> {
    // A vector of bytes need not be aligned as a plan is.
    let words = plan.as_chunks().0.iter();
    let words: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
    let plan = Plan::open(words.as_bytes()).map_err(|_| "the plan is broken")?;
    let kinds = [RegionKind::Ram as u16, RegionKind::Shared as u16];
    let mut regions: Vec<(u64, u64)> = plan
        .regions
        .iter()
        .filter(|region| kinds.contains(&region.kind))
        .filter_map(bulkhead_core::colours::span)
        .map(|span| (span.start, span.end - span.start))
        .collect();
    regions.sort_unstable();
    // Those that keep to some colours lie among each other.
    regions.dedup_by(|next, last| {
        let meets = next.0 < last.0 + last.1;
        if meets {
            last.1 = last.1.max(next.0 + next.1 - last.0);
        }
        meets
    });
    let mut options = Vec::new();
    for (mut pa, mut size) in regions {
        if plan.memory.iter().any(|memory| memory.base == pa) {
            // QEMU's own first instructions are there.
            (pa, size) = (pa + PAGE, size - PAGE);
        }
        let file = file.with_extension(format!("{pa:x}"));
        let old = vec![0xa5; usize::try_from(size).map_err(|error| error.to_string())?];
        fs::write(&file, old).map_err(|error| format!("{}: {error}", file.display()))?;
        let file = file.to_string_lossy().replace(',', ",,");
        let loader = format!("loader,file={file},addr={pa:#x},force-raw=on");
        options.extend(["-device".to_owned(), loader]);
    }
    Ok(options)
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
    let system = context.system(description).map_err(|why| vec![why])?;
    let period = match &scenario.period {
        Some(period) => Some(
            period_of(&system.plan, &period.vm)
                .ok_or_else(|| vec![format!("`{}` is no VM of the system", period.vm)])?,
        ),
        None => None,
    };
    let why = |failure: Failure| vec![failure.to_string()];
    let trial = context.trial.as_ref();
    let logs = trial.map_or(&context.logs, |trial| &trial.folder);
    let instruments = logs.join("profiles").join(folder);
    let profile = profiler(&instruments, &system.el2, period);
    let profile = profile.inspect_err(|failure| {
        if let Some(trial) = trial {
            trial.note_refusal(failure);
        }
    });
    let profile = profile.map_err(why)?;
    let sanitizer = Sanitizer::attach(&instruments, &system).map_err(why)?;
    let mut qemu = Qemu {
        cpu: cpu.to_owned(),
        clock: scenario.clock.into(),
        ..system.qemu.clone()
    };
    qemu.plugins.push(profile.argument.clone());
    qemu.plugins.push(sanitizer.argument.clone());
    if scenario.dirty {
        let bytes = instruments.join("old-bytes");
        let options = old_bytes(&system.plan, &bytes).map_err(|why| vec![why])?;
        qemu.options.extend(options);
    }
    let mut tables = match scenario.stage2 || scenario.el2_maps {
        true => Some(Tables::attach(&mut qemu, &system, scenario.stage2).map_err(why)?),
        false => None,
    };
    let pace = pace(scenario, &system).map_err(why)?;
    let mut judge = Judge::new(scenario);
    let mut typist = None;
    if scenario.u_boot {
        let between = uboot::between(context, &instruments, &system);
        let (start, types) = between.map_err(|why| vec![why])?;
        qemu.start = start;
        typist = Some(types);
    }
    let mut jam = scenario.jam.as_deref();
    let bounds = trial.map_or_else(|| scenario.guard().into(), Trial::bounds);
    let ended = watch_paced(&qemu, pace, bounds, |bytes, held| {
        let keys = match &mut typist {
            Some(typist) => {
                let (typed, said) = typist.push(bytes);
                [typed, judge.push(&said)].concat()
            }
            None => judge.push(bytes),
        };
        // Who tries many other EL2s wants to know that one fails, not all that it does.
        if trial.is_some() && judge.has_failed() {
            return (keys, Next::Kill);
        }
        if !held && jam.take_if(|text| judge.heard(text)).is_some() {
            return (keys, Next::Jam);
        }
        let tables = tables.as_mut().filter(|_| !held);
        let next = tables.map_or(Next::Watch, |tables| tables.look(&judge.transcript));
        match next {
            Next::Watch => (keys, judge.finished().into()),
            next => (keys, next),
        }
    });
    let ended = ended.map_err(|failure| vec![failure.to_string()])?;
    if let Some(trial) = trial {
        trial.note(&ended);
    }
    let (mut wrong, transcript) = judge.verdict(ended.powered_off);
    if ended.hangs {
        wrong.push(format!("it still ran after {} s", scenario.guard));
    }
    match ended.ending {
        Ending::CpuTime => wrong.push("it took far more CPU time than it does".to_owned()),
        Ending::Still => wrong.push("it stood still".to_owned()),
        Ending::Itself | Ending::Judge | Ending::Guard | Ending::Unfit => {}
    }
    if let Some((invariant, place)) = &transcript.refused {
        wrong.push(format!("EL2 refused the plan: {invariant}: {place}"));
    }
    if let Some(typist) = typist.filter(|typist| !typist.started) {
        wrong.push("U-Boot did not start the image; it said".to_owned());
        let said = String::from_utf8_lossy(&typist.said).into_owned();
        wrong.extend(said.lines().map(|line| format!("  {line}")));
    }
    if let Some(text) = jam {
        wrong.push(format!(
            "nobody said `{text}`, so the console was never full"
        ));
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
        wrong.extend(exits::uncounted(
            &vms_of(&system.plan),
            &transcript,
            &profile,
        ));
        let mut profiles = context
            .profiles
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        profiles.push((folder.to_owned(), profile));
    }
    if wrong.is_empty() {
        let exits: u64 = transcript.exits.iter().map(|table| table.exits()).sum();
        let results = judge::results(scenario, &transcript);
        let lines = transcript.lines.len();
        return Ok(format!("{lines} lines, {exits} exits{results}"));
    }
    if trial.is_some() {
        return Err(wrong);
    }
    wrong.extend(evidence(
        &context.logs.join(folder),
        &transcript,
        &ended.messages,
    ));
    Err(wrong)
}

/// Returns the pacer of a run: on the instruction clock it is held where keys are typed.
fn pace(scenario: &Scenario, system: &System) -> Result<Option<Pace>, Failure> {
    let typed = scenario.steps.iter().filter(|step| step.keys.is_some());
    let marks: Vec<_> = typed.map(|step| step.line.clone()).collect();
    match scenario.clock {
        ScenarioClock::Host => Ok(None),
        ScenarioClock::Instructions if marks.is_empty() => Pace::new().map(Some),
        ScenarioClock::Instructions => Pace::holding(system, marks).map(Some),
    }
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

/// Keeps the logs of a failed run, and returns the part that a reader wants to see first.
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

/// The description of the system of the scenario `name`.
///
/// # Errors
///
/// There is none of that name, or it cannot be written.
pub fn of_scenario(context: &Context, name: &str) -> Result<PathBuf, String> {
    let scenarios = scenarios(&context.root).map_err(|why| why.to_string())?;
    let scenario = scenarios.get(name);
    let scenario = scenario.ok_or_else(|| format!("there is no scenario `{name}`"))?;
    scenario.system.file(context, name)
}

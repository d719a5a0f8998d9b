//! Whether a run depends on what else the host does.

use bulkhead_runner::profile::Pace;
use bulkhead_runner::run::{Clock, Qemu};

use super::judge::Judge;
use super::suite::{Context, Job, Test};
use super::systems::{of_scenario, scenarios};
use super::watch::watch_paced;

/// The scenarios: CPUs that sleep, and orders at the monitor; CPUs that work side by side and sleep in each millisecond.
const SCENARIOS: [&str; 2] = ["pause", "polled"];
/// Runs of each: alone, and in a QEMU whose threads pause at random places.
const SHAKEN: [bool; 3] = [false, true, true];

/// The test of this file.
pub fn tests() -> Vec<Test> {
    let job: Job = Box::new(|context| runs(context).map_err(|why| vec![why]));
    let test = Test::parallel(
        "runs/alike",
        "A run with input says the same to the byte, statistics and all, whatever else the host does.",
        job,
    );
    vec![test.long()]
}

fn runs(context: &Context) -> Result<String, String> {
    let all = SCENARIOS.map(|scenario| alike(context, scenario));
    let bytes = all.into_iter().sum::<Result<usize, _>>()?;
    let runs = SCENARIOS.len() * SHAKEN.len();
    Ok(format!("{bytes} bytes, {runs} runs"))
}

/// Runs a scenario so often. Returns how many bytes it says.
fn alike(context: &Context, scenario: &str) -> Result<usize, String> {
    let mut first = Vec::new();
    for is_shaken in SHAKEN {
        let said = run(context, scenario, is_shaken)?;
        if first.is_empty() {
            first = said;
        } else if first != said {
            let at = first.iter().zip(&said).position(|(a, b)| a != b);
            let at = at.unwrap_or(first.len().min(said.len()));
            let line = |said: &[u8]| {
                let begin = said[..at].iter().rposition(|byte| *byte == b'\n');
                let line = said[begin.map_or(0, |end| end + 1)..].split(|byte| *byte == b'\n');
                let line = line.into_iter().next().unwrap_or_default();
                String::from_utf8_lossy(line).trim_end().to_owned()
            };
            return Err(format!(
                "shaken, `{scenario}` says `{}` instead of `{}`",
                line(&said),
                line(&first)
            ));
        }
    }
    Ok(first.len())
}

/// Returns what the console says.
fn run(context: &Context, name: &str, is_shaken: bool) -> Result<Vec<u8>, String> {
    let scenarios = scenarios(&context.root).map_err(|why| why.to_string())?;
    let scenario = scenarios
        .get(name)
        .ok_or_else(|| format!("there is no scenario `{name}`"))?;
    let system = context.builds.get(&of_scenario(context, name)?)?;
    let mut qemu = Qemu {
        clock: Clock::Instructions { shift: 3 },
        ..system.qemu.clone()
    };
    // Seeds would be others each time.
    qemu.machine.push_str(",dtb-randomness=off");
    let typed = scenario.steps.iter().filter(|step| step.keys.is_some());
    let marks = typed.map(|step| step.line.clone()).collect();
    let pace = match is_shaken {
        false => Pace::holding(&system, marks),
        true => Pace::shaken(&system, marks),
    };
    let pace = pace.map_err(|why| why.to_string())?;
    let mut judge = Judge::new(scenario);
    let mut said = Vec::new();
    let ended = watch_paced(&qemu, Some(pace), scenario.guard(), |bytes, _| {
        said.extend(bytes);
        (judge.push(bytes), false)
    });
    let ended = ended.map_err(|why| why.to_string())?;
    match ended.powered_off {
        true => Ok(said),
        false => Err(format!(
            "it did not end by itself; QEMU said: {}",
            ended.messages
        )),
    }
}

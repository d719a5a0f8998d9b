//! EL2 refuses a plan that is wrong in any field, and names what is wrong.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bulkhead_abi::plan::{Header, Image};
use bulkhead_core::plan::corrupt::{CASES, Case, GICV2_CASES, IO_CASES, MANAGED_CASES};
use bulkhead_core::plan::{Plan, Violation, table_name};

use bulkhead_runner::run::console::Transcript;
use bulkhead_runner::run::{Qemu, System};

use super::description;
use super::sanitizer::Sanitizer;
use super::suite::{Context, Job, Test};
use super::watch::watch;

/// The system whose plans are altered, with a row in every table but those about virtio devices.
const SYSTEM: &str = "tests/plan/every-table.toml";
/// The one with rows in those.
const VIRTIO: &str = "tests/plan/virtio.toml";

/// The one with rights.
const MANAGED: &str = "tests/plan/managed.toml";

/// The system; whether the board has a GICv2; the alterations; the name of the test.
const TESTS: [(&str, bool, &[Case], &str); 4] = [
    (SYSTEM, false, CASES, "plan/corruptions"),
    (SYSTEM, true, GICV2_CASES, "plan/corruptions-gicv2"),
    (VIRTIO, false, IO_CASES, "plan/corruptions-virtio"),
    (MANAGED, false, MANAGED_CASES, "plan/corruptions-managed"),
];

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let claim = "A plan with one wrong field and a right checksum is refused by EL2 with the name of \
                 the broken invariant and its rows, and by the host tool with the same ones.";
    let test = |(path, gicv2, cases, name): (&'static str, bool, &'static [Case], &'static str)| {
        let job: Job = Box::new(move |context| {
            let system = match gicv2 {
                true => description::on_gicv2(context, path).map_err(|why| vec![why])?,
                false => context.root.join(path),
            };
            alter_all(context, &system, cases)
        });
        Test::parallel(name, claim, job)
    };
    TESTS.into_iter().map(test).collect()
}

fn alter_all(context: &Context, system: &Path, cases: &[Case]) -> Result<String, Vec<String>> {
    let system = context.builds.get(system).map_err(|why| vec![why])?;
    let image = fs::read(&system.qemu.image).map_err(|e| vec![e.to_string()])?;
    let plan = &system.plan;
    let folder = context.logs.join("plan").join(&system.name);
    fs::create_dir_all(&folder).map_err(|e| vec![e.to_string()])?;
    let offset = plan_offset(plan).ok_or_else(|| vec!["the plan has no header".to_owned()])?;
    if image.get(offset..offset + plan.len()) != Some(&plan[..]) {
        return Err(vec![
            "the image does not carry plan.bin where the plan says".to_owned(),
        ]);
    }
    let wrong = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    let one = |index: usize, case: &Case| {
        let mut altered = plan.clone();
        let applied = case.apply(&mut altered);
        let file = folder.join(format!("{index}.img"));
        let found = if applied {
            judge_host(case, &altered).and_then(|place| {
                let place = place.as_deref();
                judge_el2(&system, (case, place), &image, offset, &altered, &file)
            })
        } else {
            Err("the plan has no such row".to_owned())
        };
        if let Err(why) = found {
            let why = format!("{:?}: {why}", case.changes);
            wrong
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .push(why);
        }
    };
    // Each takes a moment and little work; two at a time use both CPUs of a small machine.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(index) else {
                        break;
                    };
                    one(index, case);
                }
            });
        }
    });
    let wrong = wrong
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if !wrong.is_empty() {
        return Err(wrong);
    }
    Ok(format!("{} corruptions", cases.len()))
}

fn plan_offset(plan: &[u8]) -> Option<usize> {
    let at = std::mem::offset_of!(Header, image) + std::mem::offset_of!(Image, plan_offset);
    let bytes = plan.get(at..at + 8)?;
    usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()
}

/// Checks that the host's check names the same invariant, and gives the place that it names. Those about the board need the board.
fn judge_host(case: &Case, plan: &[u8]) -> Result<Option<String>, String> {
    let wanted = case.breaks.name();
    // A vector of bytes need not be aligned as a plan is.
    let words: Vec<u64> = plan
        .chunks(8)
        .map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        })
        .collect();
    let found = Plan::open(zerocopy::IntoBytes::as_bytes(&words[..])).and_then(|plan| plan.check());
    match found {
        Ok(()) if !case.breaks.is_of_plan() => Ok(None),
        Ok(()) => Err(format!("the host finds nothing wrong instead of {wanted}")),
        Err(violation) if violation.invariant == case.breaks => Ok(Some(place_of(&violation))),
        Err(violation) => Err(format!(
            "the host names {} instead of {wanted}",
            violation.invariant.name()
        )),
    }
}

/// The rows of a violation, as EL2 says them.
fn place_of(violation: &Violation) -> String {
    let Some(table) = violation.table.map(table_name) else {
        return "header".to_owned();
    };
    let row = violation.row;
    match violation.other {
        Some(other) => format!("{table} {row} and {table} {other}"),
        None => format!("{table} {row}"),
    }
}

/// `place`: what the host's check has found, if that is about the plan alone.
fn judge_el2(
    system: &System,
    (case, place): (&Case, Option<&str>),
    image: &[u8],
    offset: usize,
    plan: &[u8],
    file: &Path,
) -> Result<(), String> {
    let mut altered = image.to_vec();
    altered[offset..offset + plan.len()].copy_from_slice(plan);
    fs::write(file, altered).map_err(|error| error.to_string())?;
    let instruments = file.with_extension("");
    fs::create_dir_all(&instruments).map_err(|error| error.to_string())?;
    let sanitizer = Sanitizer::attach(&instruments, system).map_err(|why| why.to_string())?;
    let mut qemu = Qemu {
        image: file.to_owned(),
        ..system.qemu.clone()
    };
    qemu.plugins.push(sanitizer.argument.clone());
    let mut transcript = Transcript::default();
    let ended = watch(&qemu, Duration::from_secs(60), |bytes| {
        transcript.push(bytes);
        (Vec::new(), false)
    });
    // A failure to remove it would show at the next write.
    let _ = fs::remove_file(file);
    let ended = ended.map_err(|failure| failure.to_string())?;
    transcript.finish();
    sanitizer.verdict().map_err(|found| found.join("; "))?;
    let wanted = case.breaks.name();
    match &transcript.refused {
        None => Err(format!("EL2 does not refuse it; expected {wanted}")),
        Some((name, _)) if name != wanted => Err(format!("EL2 names {name} instead of {wanted}")),
        Some((_, said)) if place.is_some_and(|place| place != said) => Err(format!(
            "EL2 says {wanted} of {said}, the host of {}",
            place.unwrap_or_default()
        )),
        Some(_) if !ended.powered_off => Err("EL2 refuses it and does not power off".to_owned()),
        Some(_) => Ok(()),
    }
}

//! EL2 starts on every kind of CPU that the boards know, and on one to eight of them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_abi::plan::MAX_PCPUS;

use super::description::{self, GICS};
use super::sanitizer::Sanitizer;
use super::suite::{Context, Job, Test};
use super::systems::watch;
use crate::run::console::Transcript;
use crate::run::{Qemu, System};

/// CPU models that the boards know, as QEMU names them.
pub(super) const MODELS: [&str; 6] = [
    "cortex-a53",
    "cortex-a57",
    "cortex-a72",
    "cortex-a76",
    "neoverse-n1",
    "max",
];

/// The tests of this file: one for each kind of CPU and each GIC.
pub fn tests() -> Vec<Test> {
    let each = GICS
        .into_iter()
        .rev()
        .flat_map(|gic| MODELS.map(|model| (model, gic)));
    each.map(|(kind, gic)| {
        let claim = format!(
            "On one to eight {kind} with a GICv{gic}, as many VMs start, stop and leave the board switched off."
        );
        let job: Job = Box::new(move |context| start_all(context, kind, gic));
        Test::parallel(format!("cpus/{kind}/gicv{gic}"), claim, job)
    })
    .collect()
}

fn start_all(context: &Context, kind: &str, gic: u8) -> Result<String, Vec<String>> {
    let mut wrong = Vec::new();
    for cpus in 1..=MAX_PCPUS {
        let system = describe(context, cpus, gic).and_then(|path| context.builds.get(&path));
        let folder = context.logs.join(format!("cpus/{kind}-gicv{gic}-{cpus}"));
        let ran = system.and_then(|system| start(&system, kind, cpus, &folder));
        if let Err(why) = ran {
            wrong.push(format!("{cpus} pCPUs: {why}"));
        }
    }
    if wrong.is_empty() {
        Ok(format!("1 to {MAX_PCPUS} pCPUs"))
    } else {
        Err(wrong)
    }
}

/// Writes the description of a system with a VM on each of `cpus` pCPUs.
fn describe(context: &Context, cpus: usize, gic: u8) -> Result<PathBuf, String> {
    let mut text = format!("[board]\nname = \"qemu-virt\"\ncpus = {cpus}\ngic = {gic}\n");
    for vm in 1..=cpus {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n[vm.on-{vm}]\nmemory = \"4MiB\"\nimage = \"guest:hello\"\n"
        );
    }
    description::write(context, &format!("pcpus-{cpus}-gicv{gic}"), &text)
}

fn start(system: &System, kind: &str, cpus: usize, folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let sanitizer = Sanitizer::attach(folder, system).map_err(|why| why.to_string())?;
    let mut qemu = Qemu {
        cpu: kind.to_owned(),
        ..system.qemu.clone()
    };
    qemu.plugins.push(sanitizer.argument.clone());
    let mut transcript = Transcript::default();
    let ended = watch(&qemu, Duration::from_secs(120), |bytes| {
        transcript.push(bytes);
        (Vec::new(), false)
    });
    let ended = ended.map_err(|failure| failure.to_string())?;
    transcript.finish();
    if let Some((invariant, place)) = &transcript.refused {
        return Err(format!("EL2 refused it: {invariant}: {place}"));
    }
    for vm in 1..=cpus {
        let name = format!("on-{vm}");
        match transcript.end_of(&name) {
            Some(end) if end.reason.contains("power off") => {}
            Some(end) => return Err(format!("{name} stopped with `{}`", end.reason)),
            None => {
                return Err(format!(
                    "{name} never stopped; QEMU said: {}",
                    ended.messages
                ));
            }
        }
        // A guest that the host leaves alone in the middle of a line has it shown in two pieces.
        let said: String = transcript.of(&name).collect();
        if !said.contains("hello from EL1") {
            return Err(format!("{name} said nothing"));
        }
    }
    match sanitizer.verdict() {
        Err(found) => Err(found.join("; ")),
        Ok(entered) if entered != cpus => {
            Err(format!("the sanitizer saw {entered} VMs entered of {cpus}"))
        }
        Ok(_) if ended.powered_off => Ok(()),
        Ok(_) => Err("the board was not switched off".to_owned()),
    }
}

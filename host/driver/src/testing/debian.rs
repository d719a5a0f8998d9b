//! The page about all boards of Debian's kernel: which of them Bulkhead plans two VMs for, and what stops each other one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use bulkhead_model::board;
use bulkhead_model::survey::{Range, Survey};
use bulkhead_runner::prepare::{self, Stopped};
use bulkhead_runner::{Effort, cross_build};

/// The page, from the root of the checkout.
const PAGE: &str = "docs/reference/debian-boards.md";
/// The variable with which the test writes the page, instead of comparing it.
const BLESS: &str = "BULKHEAD_BLESS";
/// Bytes of memory that are stated for a board whose tree tells of none.
const STATED: u64 = 1 << 30;
/// Where they may be, if the tree does not say where memory begins: the first place at which it has no registers is taken.
const PLACES: [u64; 4] = [0x4000_0000, 0x8000_0000, 0, 0x1_0000_0000];

/// What came of a board.
struct Tried {
    /// `VENDOR/NAME`
    name: String,
    /// Whether EL2 drives its console.
    driven: bool,
    /// Whether its memory had to be stated.
    stated: bool,
    /// Devices that a VM can have.
    devices: usize,
    /// Devices that a VM could have besides, if a description declared that they do no DMA.
    declared: usize,
    /// What stops it; none: two VMs are planned.
    stopped: Option<String>,
}

/// Tries all boards in a folder of folders, and compares what came of them with the page.
///
/// # Errors
/// The page is another one, or the tool failed at a board.
pub(super) fn page(root: &Path, logs: &Path, folder: &Path) -> Result<String, Vec<String>> {
    cross_build::guest("hello").map_err(|why| vec![why.to_string()])?;
    let work = logs.join("debian-boards");
    fs::create_dir_all(&work).map_err(|why| vec![why.to_string()])?;
    let mut all = Vec::new();
    let mut wrong = Vec::new();
    for (name, file) in trees(folder) {
        match tried(name.clone(), &file, &work.join("system.toml")) {
            Ok(one) => all.push(one),
            Err(why) => wrong.push(format!("{name}: {why}")),
        }
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let text = write(&all);
    let place = root.join(PAGE);
    let planned = all.iter().filter(|one| one.stopped.is_none()).count();
    let done = Ok(format!("{planned} of {} boards", all.len()));
    if std::env::var_os(BLESS).is_some() {
        fs::write(&place, text).map_err(|why| vec![why.to_string()])?;
        return done;
    }
    if fs::read_to_string(&place).unwrap_or_default() != text {
        let how = format!("{BLESS}=1 ./bulkhead test boards/debian-page");
        return Err(vec![format!("{PAGE} is not what `{how}` writes")]);
    }
    done
}

/// All trees, by name.
fn trees(folder: &Path) -> BTreeMap<String, PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all = BTreeMap::new();
    for vendor in entries(folder) {
        for file in entries(&vendor.path()) {
            let path = file.path();
            let name = path.strip_prefix(folder).ok().and_then(Path::to_str);
            if let Some(name) = name.and_then(|name| name.strip_suffix(".dtb")) {
                all.insert(name.to_owned(), path.clone());
            }
        }
    }
    all
}

fn tried(name: String, file: &Path, system: &Path) -> Result<Tried, String> {
    let bytes = fs::read(file).map_err(|why| why.to_string())?;
    let bytes = board::open(bytes).map_err(|why| format!("it is {why}"))?;
    let survey = Survey::read(bytes.clone()).map_err(|why| format!("it is {why}"))?;
    let console = survey.uarts.iter().find(|uart| uart.console);
    let lacking = board::lacks_memory(&bytes);
    let mut one = Tried {
        name,
        driven: console.is_some_and(|uart| uart.driver),
        stated: lacking,
        devices: survey.devices.iter().filter(|device| device.passes).count(),
        declared: { survey.devices.iter() }
            .filter(|device| device.passes_declared)
            .count(),
        stopped: None,
    };
    one.stopped = match console {
        None => Some("the tree names no console".to_owned()),
        Some(uart) if !uart.driver => Some(format!("no driver for its console ({})", uart.kind)),
        Some(_) => {
            let text = description(file, lacking.then(|| free(&survey)));
            fs::write(system, text).map_err(|why| why.to_string())?;
            stopped(system)?
        }
    };
    Ok(one)
}

/// A place for memory that is stated.
fn free(survey: &Survey) -> u64 {
    let uarts = survey.uarts.iter().flat_map(|one| &one.registers);
    let gics = survey
        .interrupt_controllers
        .iter()
        .flat_map(|one| &one.frames);
    let devices = survey.devices.iter().flat_map(|one| &one.registers);
    let taken: Vec<&Range> = uarts.chain(gics).chain(devices).collect();
    let is_free = |at: &u64| {
        let apart = |one: &&Range| one.base >= at + STATED || one.base + one.size <= *at;
        taken.iter().all(apart)
    };
    // A tree may say where memory begins, and leave its size alone.
    let begins = survey.memory.first().map(|range| range.base);
    let mut places = begins.into_iter().chain(PLACES);
    places.find(is_free).unwrap_or(PLACES[0])
}

/// Two VMs on the board, and its memory if it has to be stated.
fn description(tree: &Path, memory: Option<u64>) -> String {
    let mut text = format!("[board]\ndtb = {:?}\n", tree.display().to_string());
    if let Some(at) = memory {
        let _ = writeln!(text, "memory_ranges = \"1GiB at {at:#x}\"");
    }
    for vm in ["one", "two"] {
        let _ = writeln!(
            text,
            "\n[vm.{vm}]\nmemory = \"16MiB\"\nimage = \"guest:hello\""
        );
    }
    text
}

/// What stops a system from being planned, without what is of this board only.
fn stopped(system: &Path) -> Result<Option<String>, String> {
    match prepare::prepare(system, Effort::WhatIsThere) {
        Ok(_) => Ok(None),
        Err(Stopped::Failure(why)) => Err(why.to_string()),
        Err(Stopped::Description(_, findings)) => {
            let error = findings.iter().find(|finding| finding.is_error());
            let error = error.ok_or("it is stopped without an error")?;
            let label = error.labels.first().map_or("", |(_, label)| label);
            let what = format!("{}: {label}", error.message);
            let words = what.split(' ').map(|word| match word.strip_prefix('/') {
                Some(_) => "...",
                None => word,
            });
            Ok(Some(words.collect::<Vec<_>>().join(" ")))
        }
    }
}

fn write(all: &[Tried]) -> String {
    let count = |is: &dyn Fn(&Tried) -> bool| all.iter().filter(|one| is(one)).count();
    let driven = count(&|one| one.driven);
    let planned = count(&|one| one.stopped.is_none());
    let stated = count(&|one| one.stopped.is_none() && one.stated);
    let passing = count(&|one| one.stopped.is_none() && one.devices != 0);
    let declared = count(&|one| one.stopped.is_none() && one.declared != 0);
    let mut text = format!(
        "<!-- Made by `{BLESS}=1 ./bulkhead test boards/debian-page`: changes go to host/driver/src/testing/debian.rs. -->\n\n\
         # Boards of Debian's kernel\n\n\
         For each arm64 device tree of Debian's kernel package a system of two VMs with consoles is planned, and the plan proven. None of these boards has run but\n\
         [those that are named](boards.md#what-was-tried): that a plan is sound does not mean that a board works. Where a tree leaves the memory to the firmware, 1 GiB is stated\n\
         (`memory_ranges`), where the tree says that memory begins, or else where it has no registers; of more than 8 CPUs the first 8 are used. A board of metal has what its firmware says.\n\n\
         | boards | |\n| --- | ---: |\n\
         | trees | {} |\n\
         | whose console EL2 drives | {driven} |\n\
         | of which two VMs are planned | {planned} ({} %) |\n\
         | of these, with memory that the test states | {stated} |\n\
         | of these, with a device that a VM can have besides | {passing} |\n\
         | of these, with a device that a VM can have if it is [declared free of DMA](../how-to/devices.md#of-other-kinds) | {declared} |\n\n\
         ## What stops the others\n\n\
         | boards | reason |\n| ---: | --- |\n",
        all.len(),
        planned * 100 / driven.max(1),
    );
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for one in all {
        if let Some(why) = &one.stopped {
            reasons.entry(why).or_default().push(&one.name);
        }
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    for (why, names) in &reasons {
        let _ = writeln!(text, "| {} | {why} |", names.len());
    }
    text.push_str("\n## Boards by reason\n");
    for (why, names) in &reasons {
        let _ = writeln!(text, "\n### {why}\n\n{}", names.join(", "));
    }
    text.push_str("\n## Boards with a plan\n\nBehind a name is the number of devices that a VM can have, if there are any, and behind a plus that of those which it can have if the description declares them free of DMA.\n\n");
    let shown = all.iter().filter(|one| one.stopped.is_none());
    let shown = shown.map(|one| match (one.devices, one.declared) {
        (0, 0) => one.name.clone(),
        (devices, 0) => format!("{} ({devices})", one.name),
        (devices, declared) => format!("{} ({devices} + {declared})", one.name),
    });
    text.push_str(&shown.collect::<Vec<_>>().join(", "));
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_counts_boards_and_reasons() {
        let one = |name: &str, driven, stopped: Option<&str>| Tried {
            name: name.to_owned(),
            driven,
            stated: false,
            devices: 2,
            declared: 3,
            stopped: stopped.map(str::to_owned),
        };
        let page = write(&[
            one("a/one", true, None),
            one("a/two", true, Some("no CPU")),
            one("b/three", false, Some("no driver")),
            one("b/four", false, Some("no driver")),
        ]);
        assert!(
            page.contains("| of which two VMs are planned | 1 (50 %) |"),
            "{page}"
        );
        assert!(page.contains("| 2 | no driver |\n| 1 | no CPU |"), "{page}");
        assert!(page.contains("### no driver\n\nb/three, b/four"), "{page}");
        assert!(page.ends_with("a/one (2 + 3)\n"), "{page}");
    }
}

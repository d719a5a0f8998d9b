//! gdb on a running system, as a user drives it: on request, because it takes `gdb-multiarch`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bulkhead_runner::run::gdb;

use super::process::{Process, tool};
use crate::testing::suite::{Context, Job, Test};
use crate::testing::systems;

/// What stands before each of the scripts below.
const COMMON: &str = include_str!("common.py");
/// Script that checks what gdb says about VMs that share a pCPU.
const SHARED: &str = include_str!("shared.py");
/// Script that checks what gdb says about Linux kernels.
const LINUX: &str = include_str!("linux.py");
/// Script that checks what gdb says about virtio devices.
const DEVICES: &str = include_str!("devices.py");
/// Words that are said when a script has come to its end.
const DONE: &str = "all was looked at";

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let tests: [(&str, &str, Job); 4] = [
        (
            "attach/gdb",
            "gdb names functions of EL2 at its link address and of a guest at EL1, and tells what each vCPU does.",
            Box::new(one_vm),
        ),
        (
            "attach/gdb-share",
            "Of two VMs on one CPU with the same program gdb stops the one that it is told to; what it shows of the \
             other one is what that has when it goes on.",
            Box::new(two_vms),
        ),
        (
            "attach/gdb-linux",
            "gdb finds where two Linux kernels have moved themselves, and the symbols of a vmlinux are right there.",
            Box::new(linux),
        ),
        (
            "attach/gdb-devices",
            "gdb tells who drives and who serves each virtio device, and how many requests are under way.",
            Box::new(devices),
        ),
    ];
    let tests = tests.into_iter();
    let why = "it needs gdb for other machines (gdb-multiarch)";
    let tests = tests.map(|(name, claim, job)| Test::build(name, claim, job).on_request(why));
    tests.collect()
}

/// Runs a system, with gdb as its user wants it; returns the run and gdb's command file.
fn run(system: &Path, when: &str) -> Result<(Process, PathBuf), Vec<String>> {
    if !gdb::is_installed() {
        let advice = "`apt-get install gdb-multiarch` brings it";
        return Err(vec![format!(
            "skipped, which counts as failed: there is no gdb-multiarch; {advice}"
        )]);
    }
    let system = system.display().to_string();
    let mut run = Process::start("run", tool(&["run", &system, when])?)?;
    let line = run.until("gdb-multiarch -x ")?;
    let script = line.split_once("gdb-multiarch -x ");
    let script = script.map(|(_, file)| file.into());
    Ok((
        run,
        script.ok_or_else(|| vec![format!("no file in `{line}`")])?,
    ))
}

/// Drives gdb without a terminal; returns what it said.
fn drive(script: &Path, commands: &[&str]) -> Result<String, Vec<String>> {
    let mut command = Command::new("timeout");
    command
        .args(["180", "gdb-multiarch", "-nx", "-batch", "-x"])
        .arg(script);
    for line in commands {
        command.args(["-ex", line]);
    }
    let ran = command.stdin(Stdio::null()).output();
    let ran = ran.map_err(|error| vec![format!("gdb: {error}")])?;
    let mut said = String::from_utf8_lossy(&ran.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&ran.stderr));
    Ok(said)
}

/// Runs a script in gdb; what it finds wrong are lines that begin with `FAIL`.
fn scripted(attach: &Path, text: &str) -> Result<(), Vec<String>> {
    let why = |error: std::io::Error| vec![error.to_string()];
    let folder = tempfile::tempdir().map_err(why)?;
    let script = folder.path().join("script.py");
    fs::write(&script, format!("{COMMON}\n{text}\nprint({DONE:?})\n")).map_err(why)?;
    let source = format!("source {}", script.display());
    let said = drive(attach, &[&source, "kill"])?;
    if said.lines().any(|line| line.starts_with("FAIL")) || !said.contains(DONE) {
        return Err(vec![format!("gdb said:\n{said}")]);
    }
    Ok(())
}

fn one_vm(context: &Context) -> Result<String, Vec<String>> {
    let (mut run, script) = run(&context.root.join("tests/attach/attach.toml"), "--gdb")?;
    let commands = [
        "break data_exit",
        "continue",
        // The function, not what the compiler has put into it.
        "python print('el2 is at', gdb.execute('info symbol $pc', to_string=True))",
        "bulkhead vcpus",
        "delete",
        "bulkhead vm input",
        "break console_input::main",
        "continue",
        "python print('guest is at', gdb.selected_frame().name())",
        "bulkhead vcpus",
        "bulkhead vm input",
        "bulkhead vcpu input",
        "kill",
    ];
    let said = drive(&script, &commands)?;
    let mut wrong = Vec::new();
    for (what, words) in [
        ("EL2 at its link address", "el2 is at data_exit"),
        ("the vCPU at EL2", "input/0  0     1           is with EL2"),
        ("the guest's function", "guest is at console_input::main"),
        ("the vCPU at EL1", "input/0  0     1           runs at EL1"),
        ("its thread", "input/0: thread 1, at EL1; "),
        (
            "its last exits",
            "(data abort) FAR 0x9000030 (guest address 0x9000030)",
        ),
        ("its registers", "sctlr_el1 0x30d0180d"),
    ] {
        if !said.contains(words) {
            wrong.push(format!("{what}: no `{words}`"));
        }
    }
    if !wrong.is_empty() {
        wrong.push(format!("gdb said:\n{said}"));
        return Err(wrong);
    }
    run.ended().map(|()| "EL2 and a guest".to_owned())
}

fn two_vms(context: &Context) -> Result<String, Vec<String>> {
    let (mut run, attach) = run(&context.root.join("tests/attach/gdb-share.toml"), "--gdb")?;
    scripted(&attach, SHARED)?;
    run.ended().map(|()| "two VMs on a CPU".to_owned())
}

fn devices(context: &Context) -> Result<String, Vec<String>> {
    let system = systems::of_scenario(context, "virtio-disk").map_err(|why| vec![why])?;
    let (mut run, attach) = run(&system, "--gdb")?;
    scripted(&attach, DEVICES)?;
    run.ended().map(|()| "two disks".to_owned())
}

fn linux(context: &Context) -> Result<String, Vec<String>> {
    let why = |error: std::io::Error| vec![error.to_string()];
    let system = systems::of_scenario(context, "linux-share").map_err(|why| vec![why])?;
    let (mut run, attach) = run(&system, "--gdb=now")?;
    // Each of them says so once.
    run.until("Enter 'help'")?;
    run.until("Enter 'help'")?;
    let mut console = Process::start("the console", tool(&["console", "linux-share"])?)?;
    let mut kernels = Vec::new();
    for (vm, focus) in [("first", "\u{14}1"), ("second", "\u{14}2")] {
        console.type_keys(focus)?;
        console.until(&format!("input goes to {vm}"))?;
        console.type_keys("grep -E ' (_stext|cpu_do_idle)$' /proc/kallsyms\n")?;
        // Where the kernel itself says that they are.
        let mut address = |name: &str| {
            let line = console.until(&format!(" T {name}"))?;
            let digits = line.split_whitespace().nth(1).unwrap_or_default();
            u64::from_str_radix(digits, 16).map_err(|_| vec![format!("no address in `{line}`")])
        };
        kernels.push((vm, address("_stext")?, address("cpu_do_idle")?));
    }
    console.type_keys("\u{14}d")?;
    console.ended()?;
    let folder = tempfile::tempdir().map_err(why)?;
    let vmlinux = folder.path().join("vmlinux");
    let (_, start, idle) = kernels[0];
    fs::write(&vmlinux, elf(start, idle)).map_err(why)?;
    let mut script = format!("VMLINUX = {vmlinux:?}\nKERNELS = [");
    for (vm, start, idle) in &kernels {
        // Writing to a string cannot fail.
        let _ = write!(script, "({vm:?}, {start:#x}, {idle:#x}),");
    }
    scripted(&attach, &format!("{script}]\n{LINUX}"))?;
    run.ended().map(|()| "two kernels".to_owned())
}

/// A vmlinux with two symbols, as linked: `_text`, 64 KiB before `_stext`, and a function.
fn elf(start: u64, function: u64) -> Vec<u8> {
    const LINK: u64 = 0xffff_8000_0800_0000;
    let behind = function - start + 0x1_0000;
    let names = b"\0_text\0cpu_do_idle\0";
    let symbol = |name: u32, value: u64| {
        let mut bytes = name.to_le_bytes().to_vec();
        // A global function of section 1.
        bytes.extend([0x12, 0, 1, 0]);
        bytes.extend(value.to_le_bytes());
        bytes.extend(4_u64.to_le_bytes());
        bytes
    };
    let head = 64_u64;
    let section = |kind: u32, at: u64, size: u64, link: u32, entry: u64| {
        // Loaded and executed.
        let flags: u64 = if kind == 1 { 6 } else { 0 };
        let address = if kind == 1 { LINK + behind } else { 0 };
        let mut bytes = [1_u32.to_le_bytes(), kind.to_le_bytes()].concat();
        for word in [flags, address, at, size] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(link.to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(8_u64.to_le_bytes());
        bytes.extend(entry.to_le_bytes());
        bytes
    };
    let symbols = [vec![0; 24], symbol(1, LINK), symbol(7, LINK + behind)].concat();
    let strings_at = head + symbols.len() as u64;
    let sections_at = (strings_at + names.len() as u64).next_multiple_of(8);
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    // An executable for AArch64; no program headers; four sections of 64 bytes.
    file.extend([2, 0, 183, 0, 1, 0, 0, 0]);
    file.extend(LINK.to_le_bytes());
    file.extend(0_u64.to_le_bytes());
    file.extend(sections_at.to_le_bytes());
    file.extend([0, 0, 0, 0, 64, 0, 56, 0, 0, 0, 64, 0, 4, 0, 3, 0]);
    file.extend(symbols);
    file.extend(names);
    file.resize(sections_at as usize, 0);
    for bytes in [
        vec![0; 64],
        // The function's first instruction, whatever it is.
        section(1, 0, 4, 0, 0),
        section(2, head, 72, 3, 24),
        section(3, strings_at, names.len() as u64, 0, 0),
    ] {
        file.extend(bytes);
    }
    file
}

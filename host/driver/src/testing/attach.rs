//! Attaching to a system that runs: several consoles, which come and go, and a debugger. The tool is run as a user runs
//! it.

mod core;
mod gdb;
mod process;

use std::fs;

use serde_json::Value;

use super::suite::{Context, Job, Test};
use process::{Process, tool};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let console: Job = Box::new(consoles);
    let console = Test::build(
        "attach/console",
        "Two consoles attach to a running system, see the same and type; one leaves, the system runs on; the \
         recording of the run has it all.",
        console,
    );
    let tests = [console, core::test()].into_iter();
    tests.chain(gdb::tests()).collect()
}

fn consoles(context: &Context) -> Result<String, Vec<String>> {
    let why = |error: &dyn std::fmt::Display| vec![error.to_string()];
    let folder = tempfile::tempdir().map_err(|error| why(&error))?;
    let record = folder.path().join("run");
    let system = context.root.join("tests/attach/attach.toml");
    let (system, file) = (system.display().to_string(), record.display().to_string());
    let mut run = Process::start(
        "run",
        tool(&["run", &system, "--icount", "--record", &file])?,
    )?;
    run.until("[input] READY")?;
    let mut first = Process::start("the first console", tool(&["console", "attach"])?)?;
    let mut second = Process::start("the second console", tool(&["console", "attach"])?)?;
    // Who comes late sees what was said before.
    first.until("[input] READY")?;
    second.until("[input] READY")?;
    first.type_keys("w")?;
    first.until("[input] waited")?;
    second.until("[input] waited")?;
    first.type_keys("\u{14}d")?;
    first.until("which runs on")?;
    first.ended()?;
    second.type_keys("w")?;
    second.until("[input] waited")?;
    let mut third = Process::start("the third console", tool(&["console", "attach"])?)?;
    third.until("[input] waited")?;
    second.type_keys("x")?;
    for console in [&mut second, &mut third] {
        console.until("has ended")?;
        console.ended()?;
    }
    run.until("vm input stopped: power off")?;
    run.ended()?;
    if !first
        .seen
        .iter()
        .any(|line| line.contains("attached to `attach`"))
    {
        return Err(vec!["a console does not say where it is".to_owned()]);
    }
    recorded(&file)?;
    let logs = context.root.join("out/attach/logs/input.log");
    let log =
        fs::read_to_string(&logs).map_err(|error| vec![format!("{}: {error}", logs.display())])?;
    match log.matches("waited").count() {
        2 => Ok("3 consoles".to_owned()),
        other => Err(vec![format!(
            "the log of the VM has `waited` {other} times"
        )]),
    }
}

/// Looks at the recording with `show`.
fn recorded(file: &str) -> Result<(), Vec<String>> {
    let show = |arguments: &[&str]| -> Result<String, Vec<String>> {
        let ran = tool(&["show", file])?.args(arguments).output();
        let ran = ran.map_err(|error| vec![error.to_string()])?;
        if !ran.status.success() {
            return Err(vec![String::from_utf8_lossy(&ran.stderr).into_owned()]);
        }
        Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
    };
    let text = show(&["--vm", "input"])?;
    let json: Value =
        serde_json::from_str(&show(&["--json"])?).map_err(|error| vec![error.to_string()])?;
    let mut wrong = Vec::new();
    if text.matches("input  waited").count() != 2 || text.contains("el2 ") {
        wrong.push(format!("`show --vm input` says\n{text}"));
    }
    for (what, right) in [
        ("the end", json["tail"]["ended"] == "powered-off"),
        (
            "the VM's end",
            json["tail"]["stopped"][0]["reason"] == "power off",
        ),
        (
            "exits",
            json["summary"]["vms"][0]["all"]["count"]
                .as_u64()
                .is_some_and(|count| count > 0),
        ),
    ] {
        if !right {
            wrong.push(format!("the recording lacks {what}: {}", json["tail"]));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

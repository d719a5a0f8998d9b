//! Who attaches to a system that runs: several consoles, which come and go, and a debugger. The tool is run as a user
//! runs it.

mod gdb;

use std::fs;
use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use serde_json::Value;

use super::programs::lines;
use super::suite::{Context, Job, Test};

/// A guard against hanging; nothing is measured.
const GUARD: Duration = Duration::from_secs(180);

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let console: Job = Box::new(consoles);
    let console = Test::build(
        "attach/console",
        "Two consoles attach to a running system, see the same and type; one leaves, the system runs on; the \
         recording of the run has it all.",
        console,
    );
    std::iter::once(console).chain(gdb::tests()).collect()
}

/// A process of the tool, whose lines come as they are said.
struct Process {
    name: &'static str,
    child: Child,
    keys: Option<ChildStdin>,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Process {
    fn start(name: &'static str, mut command: Command) -> Result<Self, Vec<String>> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| vec![format!("{name}: {error}")])?;
        let lines = lines(&mut child);
        Ok(Self {
            name,
            keys: child.stdin.take(),
            child,
            lines,
            seen: Vec::new(),
        })
    }

    /// Waits for a line with these words; gives it.
    fn until(&mut self, words: &str) -> Result<String, Vec<String>> {
        loop {
            match self.lines.recv_timeout(GUARD) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(words) {
                        return Ok(line);
                    }
                }
                Err(why) => return Err(self.lacks(words, why)),
            }
        }
    }

    fn lacks(&self, words: &str, why: RecvTimeoutError) -> Vec<String> {
        let why = match why {
            RecvTimeoutError::Timeout => "it says nothing any more",
            RecvTimeoutError::Disconnected => "it has ended",
        };
        let last = self.seen.iter().rev().take(12).rev().cloned();
        let first = format!(
            "{}: no line with `{words}`; {why}; its last lines:",
            self.name
        );
        [first].into_iter().chain(last).collect()
    }

    fn type_keys(&mut self, keys: &str) -> Result<(), Vec<String>> {
        let Some(stdin) = &mut self.keys else {
            return Err(vec![format!("{}: its input is closed", self.name)]);
        };
        stdin
            .write_all(keys.as_bytes())
            .and_then(|()| stdin.flush())
            .map_err(|error| vec![format!("{}: {error}", self.name)])
    }

    /// Waits for its end, which must be a good one.
    fn ended(&mut self) -> Result<(), Vec<String>> {
        let status = self.child.wait().map_err(|error| vec![error.to_string()])?;
        if status.success() {
            Ok(())
        } else {
            Err(vec![format!("{} ended with {status}", self.name)])
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already, if all is well. A run ends its emulator when it is told to end, not when it is killed.
        if let (Ok(None), Ok(id)) = (self.child.try_wait(), i32::try_from(self.child.id())) {
            if let Some(pid) = rustix::process::Pid::from_raw(id) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
            let _ = self.child.wait();
        }
    }
}

/// This tool with arguments.
fn tool(arguments: &[&str]) -> Result<Command, Vec<String>> {
    let path = std::env::current_exe().map_err(|e| vec![format!("where is this tool? {e}")])?;
    let mut command = Command::new(path);
    command.args(arguments);
    Ok(command)
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

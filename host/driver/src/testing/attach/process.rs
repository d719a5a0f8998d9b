//! The tool as a process whose console is read and typed on.

use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::testing::programs::lines;
use crate::testing::tool;

/// A guard against hanging; nothing is measured.
const GUARD: Duration = Duration::from_secs(180);

/// A process of the tool, whose lines come as they are said.
pub(super) struct Process {
    name: &'static str,
    child: Child,
    keys: Option<ChildStdin>,
    lines: Receiver<String>,
    pub(super) seen: Vec<String>,
}

impl Process {
    pub(super) fn start(name: &'static str, mut command: Command) -> Result<Self, Vec<String>> {
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

    /// Waits for a line with these words; returns it.
    pub(super) fn until(&mut self, words: &str) -> Result<String, Vec<String>> {
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

    pub(super) fn type_keys(&mut self, keys: &str) -> Result<(), Vec<String>> {
        let Some(stdin) = &mut self.keys else {
            return Err(vec![format!("{}: its input is closed", self.name)]);
        };
        stdin
            .write_all(keys.as_bytes())
            .and_then(|()| stdin.flush())
            .map_err(|error| vec![format!("{}: {error}", self.name)])
    }

    /// Waits for its end, which must be a good one.
    pub(super) fn ended(&mut self) -> Result<(), Vec<String>> {
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
pub(super) fn tool(arguments: &[&str]) -> Result<Command, Vec<String>> {
    let path = tool::path().map_err(|e| vec![format!("where is this tool? {e}")])?;
    let mut command = Command::new(path);
    command.args(arguments);
    Ok(command)
}

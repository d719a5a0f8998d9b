//! A first description: the one that `init` writes runs.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use rustix::process::Signal;

use bulkhead_runner::sys;

use super::programs::{end, without_ignored_signals};
use super::suite::{Context, Job, Test};
use super::terminal::Terminal;
use super::tool;

/// A guard against hanging; nothing is measured.
const GUARD: Duration = Duration::from_secs(120);

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let unasked: Job = Box::new(first_try);
    let asked: Job = Box::new(person);
    vec![
        Test::parallel(
            "init/run",
            "What `init` writes without a question is sound, and runs at the first try; it is not written over.",
            unasked,
        ),
        Test::parallel(
            "init/terminal",
            "On a terminal `init` asks again after a wrong answer, takes answers back, writes nothing after Ctrl-D or Ctrl-C, and \
             leaves the terminal as it was; what it writes runs.",
            asked,
        ),
    ]
}

/// Runs this tool in the repository, without a terminal.
fn tool(context: &Context, words: &[&str], file: &Path) -> Result<Output, Vec<String>> {
    let path = tool::path().map_err(|e| vec![format!("where is this tool? {e}")])?;
    let mut command = Command::new(path);
    command.current_dir(&context.root).stdin(Stdio::null());
    let output = command.args(words).arg(file).output();
    output.map_err(|e| vec![e.to_string()])
}

fn first_try(context: &Context) -> Result<String, Vec<String>> {
    let folder = tempfile::tempdir().map_err(|e| vec![e.to_string()])?;
    let file = folder.path().join("new/first-try.toml");
    let init: &[&str] = &[
        "init",
        "--guest",
        "guest:hello",
        "--guest",
        "again=guest:hello",
    ];
    let steps = [
        (init, 0),
        (&["check"], 0),
        (&["run", "--timeout", "120"], 0),
        (init, 2),
    ];
    let mut said = String::new();
    let mut written = None;
    for (words, wanted) in steps {
        let output = tool(context, words, &file)?;
        if output.status.code() != Some(wanted) {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(vec![
                format!("{words:?} ended with {}, not {wanted}", output.status),
                errors,
            ]);
        }
        said.push_str(&String::from_utf8_lossy(&output.stdout));
        let now = fs::read(&file).map_err(|e| vec![e.to_string()])?;
        if written.get_or_insert_with(|| now.clone()) != &now {
            return Err(vec![format!("{words:?} has changed the description")]);
        }
    }
    match said.matches("hello from EL1").count() {
        2 => Ok("two guests".to_owned()),
        n => Err(vec![format!("{n} guests said hello, not 2"), said]),
    }
}

/// The tool on a terminal of its own.
struct Person {
    terminal: Terminal,
    child: Child,
    said: String,
    /// Bytes of it that were waited for.
    at: usize,
    settings: String,
}

impl Person {
    fn starts(context: &Context, words: &[&str], file: &Path) -> Result<Self, Vec<String>> {
        let why = |error: std::io::Error| vec![error.to_string()];
        let terminal = Terminal::open().map_err(why)?;
        let settings = terminal.settings().map_err(why)?;
        let theirs = || terminal.theirs.try_clone().map_err(why);
        let path = tool::path().map_err(why)?;
        let mut command = without_ignored_signals();
        command.arg(path).args(words).arg(file);
        command.current_dir(&context.root);
        command.stdin(theirs()?).stdout(theirs()?).stderr(theirs()?);
        let child = sys::own_terminal(&mut command).spawn().map_err(why)?;
        Ok(Self {
            terminal,
            child,
            said: String::new(),
            at: 0,
            settings,
        })
    }

    /// Waits until words are on the screen, behind those that came before, and types keys.
    fn sees(&mut self, words: &str, keys: &str) -> Result<(), Vec<String>> {
        loop {
            if let Some(found) = self.said[self.at..].find(words) {
                self.at += found + words.len();
                let typed = self.terminal.keys.write_all(keys.as_bytes());
                return typed.map_err(|error| vec![error.to_string()]);
            }
            match self.terminal.screen.recv_timeout(GUARD) {
                Ok(bytes) => self.said.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let _ = self.child.kill();
                    let first = format!("`{words}` does not come; the screen:");
                    return Err(vec![first, self.said.clone()]);
                }
            }
        }
    }

    /// Waits for its end. The terminal has to be as it was.
    fn ends(mut self) -> Result<ExitStatus, Vec<String>> {
        let why = |error: std::io::Error| vec![error.to_string()];
        let status = end(&mut self.child).map_err(why)?;
        let now = self.terminal.settings().map_err(why)?;
        if now != self.settings {
            let was = &self.settings;
            return Err(vec![format!("the terminal was {was} and is {now}")]);
        }
        Ok(status)
    }
}

fn person(context: &Context) -> Result<String, Vec<String>> {
    let folder = tempfile::tempdir().map_err(|e| vec![e.to_string()])?;
    let file = folder.path().join("asked.toml");
    // Ctrl-D and Ctrl-C at each question.
    let answers = [
        ("Which board? [qemu-virt] ", "\n"),
        ("First guest? [guest:hello] ", "\n"),
        ("Another guest? [no] ", "\n"),
        ("Write it? [yes] ", "\n"),
    ];
    for (key, interrupts) in [("\u{4}", false), ("\u{3}", true)] {
        for last in 0..answers.len() {
            let mut person = Person::starts(context, &["init"], &file)?;
            for (question, answer) in &answers[..last] {
                person.sees(question, answer)?;
            }
            person.sees(answers[last].0, key)?;
            if !interrupts {
                person.sees("not written", "")?;
            }
            let status = person.ends()?;
            let right = match interrupts {
                true => status.signal() == Some(Signal::INT.as_raw()),
                false => status.code() == Some(1),
            };
            if !right {
                return Err(vec![format!(
                    "{key:?} at question {last}: it ended with {status}"
                )]);
            }
            let left = fs::read_dir(folder.path()).map_err(|e| vec![e.to_string()])?;
            if left.count() != 0 {
                return Err(vec![format!("{key:?} at question {last} leaves files")]);
            }
        }
    }
    let mut person = Person::starts(context, &["init"], &file)?;
    for (words, keys) in [
        ("Which board? [qemu-virt] ", "qemu-vrit\n"),
        ("no board `qemu-vrit`", ""),
        ("Which board? [qemu-virt] ", "\n"),
        ("First guest? [guest:hello] ", "linus:debian\n"),
        ("did you mean `linux:debian`?", ""),
        // What was typed wrongly and rubbed out.
        ("First guest? [guest:hello] ", "two=guest:hellp\u{7f}o\n"),
        ("Another guest? [no] ", "wrong=guest:victim\n"),
        ("Another guest? [no] ", "back\n"),
        ("Another guest? [no] ", "again=guest:hello\n"),
        ("Another guest? [no] ", "\n"),
        ("two              guest:hello", ""),
        ("Write it? [yes] ", "\n"),
        ("next: bulkhead run", ""),
    ] {
        person.sees(words, keys)?;
    }
    let status = person.ends()?;
    let text = fs::read_to_string(&file).map_err(|e| vec![e.to_string()])?;
    let tables: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("[vm."))
        .collect();
    if !status.success() || tables != ["[vm.two]", "[vm.again]"] {
        return Err(vec![format!("`init` ended with {status} and wrote"), text]);
    }
    let checked = tool(context, &["check"], &file)?;
    if !checked.status.success() {
        return Err(vec![String::from_utf8_lossy(&checked.stderr).into_owned()]);
    }
    // On the same kind of terminal, where it sets that for keys to guests.
    let mut run = Person::starts(context, &["run", "--timeout", "120"], &file)?;
    run.sees("hello from EL1", "")?;
    run.sees("hello from EL1", "")?;
    match run.ends()? {
        status if status.success() => Ok("9 dialogues".to_owned()),
        status => Err(vec![format!("`run` ended with {status}")]),
    }
}

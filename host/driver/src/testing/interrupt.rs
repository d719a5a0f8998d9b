//! Ctrl-C in the middle: nothing stays behind. The signal goes to the tool alone, so that it has to end by itself what it
//! has started.

use std::fs;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process_group};

use bulkhead_runner::run::attach::{SOCKET, connect};

use super::programs::{end, lines, without_ignored_signals};
use super::proxy::package;
use super::suite::{Context, Job, Test};
use super::tool;

/// A guard against hanging; nothing is measured.
const GUARD: Duration = Duration::from_secs(120);
/// Bytes of a package that takes a while to unpack.
const LARGE: u64 = 512 << 20;

/// The tests of this file. They run alone: compilers and folders of builds are in them.
pub fn tests() -> Vec<Test> {
    let tests: [(&str, &str, Job); 4] = [
        (
            "interrupt/fetch",
            "Ctrl-C while `fetch` opens the cache or unpacks leaves no file, no program, and a cache that is sound.",
            Box::new(fetch),
        ),
        (
            "interrupt/build",
            "Ctrl-C while `build` compiles leaves no file and no compiler, and the next build succeeds.",
            Box::new(build),
        ),
        (
            "interrupt/run",
            "Ctrl-C ends a run with its QEMU, and its sockets are gone; with `nohup` a run goes on without its terminal.",
            Box::new(run),
        ),
        (
            "interrupt/test",
            "Ctrl-C ends the tests with all that they have started and put away for a while.",
            Box::new(test),
        ),
    ];
    let tests = tests.into_iter();
    tests
        .map(|(name, claim, job)| Test::build(name, claim, job))
        .collect()
}

fn why(error: io::Error) -> Vec<String> {
    vec![error.to_string()]
}

/// The program that has the verb of these arguments: the user's tool, or this one.
fn program(words: &[&str]) -> io::Result<PathBuf> {
    match words.first() {
        Some(&"test") => tool::driver(),
        _ => tool::path(),
    }
}

/// The tool, in a process group and with a folder for temporary files of its own.
struct Tool {
    child: Child,
    id: Pid,
    lines: Receiver<String>,
    temporary: PathBuf,
}

impl Tool {
    fn start(folder: &Path, words: &[&str]) -> Result<Self, Vec<String>> {
        let mut command = without_ignored_signals();
        command.arg(program(words).map_err(why)?);
        Self::start_by(command, folder, words)
    }

    /// Starts it as `nohup` does.
    fn start_for_good(folder: &Path, words: &[&str]) -> Result<Self, Vec<String>> {
        let mut command = without_ignored_signals();
        command.args(["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]);
        command.arg(program(words).map_err(why)?);
        Self::start_by(command, folder, words)
    }

    fn start_by(mut command: Command, folder: &Path, words: &[&str]) -> Result<Self, Vec<String>> {
        let temporary = folder.join("tmp");
        fs::create_dir_all(&temporary).map_err(why)?;
        command.args(words).process_group(0);
        command.env("TMPDIR", &temporary);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, own) in [("BULKHEAD_CACHE", "cache"), ("CARGO_TARGET_DIR", "target")] {
            if folder.join(own).is_dir() {
                command.env(name, folder.join(own));
            }
        }
        let mut child = command.spawn().map_err(why)?;
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let id = id.ok_or_else(|| vec!["a process without number".to_owned()])?;
        let lines = lines(&mut child);
        Ok(Self {
            child,
            id,
            lines,
            temporary,
        })
    }

    /// Waits until it says words.
    fn says(&mut self, words: &str) -> Result<(), Vec<String>> {
        let mut seen = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(GUARD) {
            seen.push(line);
            if seen.last().is_some_and(|line| line.contains(words)) {
                return Ok(());
            }
        }
        seen.push(format!("`{words}` does not come"));
        Err(seen)
    }

    /// Waits until something holds.
    fn until(&mut self, what: &str, holds: impl Fn() -> bool) -> Result<(), Vec<String>> {
        let deadline = Instant::now() + GUARD;
        while !holds() {
            if self.child.try_wait().map_err(why)?.is_some() || Instant::now() > deadline {
                let mut said: Vec<String> = self.lines.try_iter().collect();
                said.push(format!("it has ended before {what}"));
                return Err(said);
            }
            thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Presses Ctrl-C. All that it has started has to end, and what is temporary has to go.
    fn interrupt(mut self) -> Result<(), Vec<String>> {
        kill_process(self.id, Signal::INT).map_err(|error| why(error.into()))?;
        let status = end(&mut self.child).map_err(why)?;
        if status.signal() != Some(Signal::INT.as_raw()) {
            return Err(vec![format!("it ended with {status}, not by the signal")]);
        }
        let deadline = Instant::now() + GUARD;
        while test_kill_process_group(self.id).is_ok() {
            if Instant::now() > deadline {
                return Err(vec!["something that it has started still runs".to_owned()]);
            }
            thread::sleep(Duration::from_millis(5));
        }
        empty(&self.temporary)
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        // It has ended already, if all is well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the names in a folder.
fn entries(folder: &Path) -> Vec<String> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = all
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn empty(folder: &Path) -> Result<(), Vec<String>> {
    match entries(folder) {
        left if left.is_empty() => Ok(()),
        left => Err(vec![format!("{} still has {left:?}", folder.display())]),
    }
}

/// Runs the tool to its end, which must be a good one.
fn succeeds(folder: &Path, words: &[&str]) -> Result<(), Vec<String>> {
    let mut tool = Tool::start(folder, words)?;
    let status = tool.child.wait().map_err(why)?;
    match status.success() {
        true => empty(&tool.temporary),
        false => Err(vec![format!("{words:?} ended with {status}")]),
    }
}

fn fetch(_: &Context) -> Result<String, Vec<String>> {
    let folder = tempfile::tempdir().map_err(why)?;
    let debs = folder.path().join("debs");
    let cache = folder.path().join("cache");
    fs::create_dir(&debs).map_err(why)?;
    fs::create_dir(&cache).map_err(why)?;
    package(&debs, &[("vmlinuz-6.1.0-99-arm64", LARGE)]).map_err(why)?;
    let from = debs.display().to_string();
    let words = ["fetch", "kernel", "--from", &from];
    let unpacked = cache.join("unpacked");
    let begun = || !entries(&unpacked).is_empty();
    let half = || {
        entries(&unpacked)
            .iter()
            .any(|name| unpacked.join(name).join("boot").is_dir())
    };
    let moments: [(&str, &dyn Fn() -> bool); 3] = [
        ("it opens the cache", &|| cache.join("lock").is_file()),
        ("it begins to unpack", &begun),
        ("it has unpacked a part", &half),
    ];
    for (what, came) in moments {
        let mut tool = Tool::start(folder.path(), &words)?;
        tool.until(what, came)?;
        tool.interrupt()?;
        empty(&unpacked).map_err(|left| [vec![format!("when {what}:")], left].concat())?;
    }
    succeeds(folder.path(), &words)?;
    succeeds(folder.path(), &["fetch", "kernel", "--offline"])?;
    match entries(&cache).as_slice() {
        [a, b, c] if [a, b, c] == ["chosen.json", "lock", "unpacked"] => {
            Ok(format!("{} moments", moments.len()))
        }
        other => Err(vec![format!("the cache has {other:?}")]),
    }
}

/// A system of its own name.
fn system(context: &Context, folder: &Path) -> Result<String, Vec<String>> {
    let text = fs::read_to_string(context.root.join("tests/attach/attach.toml")).map_err(why)?;
    let file = folder.join("interrupted.toml");
    fs::write(&file, text).map_err(why)?;
    Ok(file.display().to_string())
}

fn build(context: &Context) -> Result<String, Vec<String>> {
    let folder = tempfile::tempdir().map_err(why)?;
    let file = system(context, folder.path())?;
    let out = folder.path().join("out/interrupted");
    // Where nothing is compiled yet, so that there is time.
    let target = folder.path().join("target");
    fs::create_dir(&target).map_err(why)?;
    let mut tool = Tool::start(folder.path(), &["build", &file])?;
    tool.says("building EL2")?;
    let objects =
        || !entries(&target.join("el2/aarch64-unknown-none-softfloat/machine/deps")).is_empty();
    tool.until("it compiles", objects)?;
    tool.interrupt()?;
    if target
        .join("el2/aarch64-unknown-none-softfloat/machine/bulkhead-el2")
        .exists()
    {
        return Err(vec!["the compiler has gone on to its end".to_owned()]);
    }
    fs::remove_dir_all(&target).map_err(why)?;
    succeeds(folder.path(), &["build", &file])?;
    let there = entries(&out);
    let temporary = there.iter().filter(|name| name.starts_with('.')).count();
    match temporary == 0 && there.contains(&"bulkhead.img".to_owned()) {
        true => Ok("compiling".to_owned()),
        false => Err(vec![format!("{} has {there:?}", out.display())]),
    }
}

fn run(context: &Context) -> Result<String, Vec<String>> {
    let folder = tempfile::tempdir().map_err(why)?;
    let file = system(context, folder.path())?;
    let out = folder.path().join("out/interrupted");
    succeeds(folder.path(), &["build", &file])?;
    for words in ["attach with", "READY"] {
        let mut tool = Tool::start(folder.path(), &["run", &file, "--gdb=now"])?;
        tool.says(words)?;
        tool.interrupt()?;
        let sockets = entries(&out);
        if let Some(left) = sockets.iter().find(|name| *name == SOCKET) {
            return Err(vec![format!("{left} stays")]);
        }
    }
    // It goes on without its terminal, up to its end, which a console asks for.
    let mut tool = Tool::start_for_good(folder.path(), &["run", &file])?;
    tool.says("READY")?;
    kill_process(tool.id, Signal::HUP).map_err(|error| why(error.into()))?;
    let mut console = connect(&out).map_err(why)?;
    console.write_all(b"w").map_err(why)?;
    tool.says("waited")?;
    console.write_all(b"x").map_err(why)?;
    let status = tool.child.wait().map_err(why)?;
    if !status.success() {
        return Err(vec![format!("with `nohup` it ended with {status}")]);
    }
    Ok("2 moments".to_owned())
}

fn test(_: &Context) -> Result<String, Vec<String>> {
    let folder = tempfile::tempdir().map_err(why)?;
    let mut tool = Tool::start(folder.path(), &["test", "attach/console"])?;
    let temporary = tool.temporary.clone();
    // The test's own folder, in that of all tests.
    let begun = || {
        let all = entries(&temporary);
        all.iter()
            .any(|name| !entries(&temporary.join(name)).is_empty())
    };
    tool.until("a test has begun", begun)?;
    tool.interrupt()?;
    Ok("a test with programs".to_owned())
}

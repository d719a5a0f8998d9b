//! Does what a page says, as its reader would: in a folder, with a shell, and on a terminal where keys are typed.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::page::{Step, differs, same, steps};
use crate::testing::terminal::Terminal;

/// How a program on the console asks: the shell of the initramfs, root's shell of a Debian, and its login.
const PROMPTS: [&str; 3] = ["/ # ", ":~# ", " login: "];
/// Key by which the console's own commands start.
const ESCAPE: &str = "Ctrl-T ";

/// Place in which a page is read.
pub struct Place {
    /// The reader's working folder.
    pub folder: PathBuf,
    /// The shell that does what it is given in that folder.
    pub shell: Box<dyn Fn(&str) -> Command>,
    /// Time after which a command that hangs is ended.
    pub guard: Duration,
}

impl Place {
    /// Does one step.
    ///
    /// # Errors
    ///
    /// It cannot be done, it failed, or something else came than is shown.
    pub fn follow(&self, step: &Step) -> Result<(), String> {
        match step {
            Step::File { name, text } => {
                fs::write(self.folder.join(name), text).map_err(|why| format!("{name}: {why}"))
            }
            Step::Edit { name, from, to } => self.edit(name, from, to),
            Step::Command { text, shows } => {
                let result = if shows.iter().any(|line| typed(line).is_some()) {
                    self.converse(text, shows)
                } else {
                    self.run(text, shows)
                };
                result.map_err(|why| format!("`{text}`: {why}"))
            }
        }
    }

    fn edit(&self, name: &str, from: &[String], to: &[String]) -> Result<(), String> {
        let path = self.folder.join(name);
        let text = fs::read_to_string(&path).map_err(|why| format!("{name}: {why}"))?;
        let changed = replace(&text, from, to).map_err(|why| format!("{name}: {why}"))?;
        fs::write(&path, changed).map_err(|why| format!("{name}: {why}"))
    }

    /// Runs a command without a terminal. The page shows both of its streams.
    fn run(&self, text: &str, shows: &[String]) -> Result<(), String> {
        let (status, said) = self.output(text).map_err(|why| why.to_string())?;
        let lines: Vec<&str> = said.lines().collect();
        if !status.success() {
            return Err(format!("ended with {status}\n{said}"));
        }
        match differs(shows, &lines).filter(|_| !shows.is_empty()) {
            Some(why) => Err(format!("{why}\nof all that came:\n{said}")),
            None => Ok(()),
        }
    }

    fn output(&self, text: &str) -> io::Result<(ExitStatus, String)> {
        let mut file = tempfile::tempfile()?;
        let mut command = (self.shell)(text);
        command.stdin(Stdio::null());
        command.stdout(file.try_clone()?).stderr(file.try_clone()?);
        let mut child = command.process_group(0).spawn()?;
        let status = end(&mut child, Instant::now() + self.guard)?;
        let mut said = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut said)?;
        Ok((status, plain(&said)))
    }

    /// Runs a command on a terminal and types what the page shows behind prompts. All that the page shows has to come,
    /// in that order; other lines may come in between.
    fn converse(&self, text: &str, shows: &[String]) -> Result<(), String> {
        let deadline = Instant::now() + self.guard;
        let (mut keys, screen, mut child) = self.terminal(text).map_err(|why| why.to_string())?;
        let mut seen = Seen {
            screen,
            said: Vec::new(),
            at: 0,
        };
        let mut result = Ok(());
        for line in shows.iter().filter(|line| *line != "...") {
            result = match typed(line) {
                Some((prompt, bytes)) => seen
                    .until(deadline, |left| Some(left.find(&prompt)? + prompt.len()))
                    .and_then(|()| keys.write_all(&bytes).map_err(|why| why.to_string())),
                None => seen.until(deadline, |left| end_of(line, left)),
            }
            .map_err(|why| format!("{why}, waiting for\n  {line}\nof all that came:\n"));
            if result.is_err() {
                break;
            }
        }
        let limit = if result.is_ok() {
            deadline
        } else {
            Instant::now()
        };
        let status = seen.rest(&mut child, limit).map_err(|why| why.to_string());
        let said = plain(&seen.said);
        result.map_err(|why| format!("{why}{said}"))?;
        match status? {
            status if status.success() => Ok(()),
            status => Err(format!("ended with {status}\n{said}")),
        }
    }

    /// Starts a command on a terminal of its own; returns the file to type into, what it says, and the child.
    fn terminal(&self, text: &str) -> io::Result<(File, Receiver<Vec<u8>>, Child)> {
        let terminal = Terminal::open()?;
        let theirs = terminal.theirs;
        let mut command = (self.shell)(text);
        command.stdin(theirs.try_clone()?);
        command.stdout(theirs.try_clone()?).stderr(theirs);
        let child = command.process_group(0).spawn()?;
        Ok((terminal.keys, terminal.screen, child))
    }
}

/// Output of a terminal.
struct Seen {
    screen: Receiver<Vec<u8>>,
    said: Vec<u8>,
    /// Bytes of the plain text that were compared.
    at: usize,
}

impl Seen {
    /// Reads until `find` finds the end of something in what was not compared yet.
    fn until(
        &mut self,
        deadline: Instant,
        find: impl Fn(&str) -> Option<usize>,
    ) -> Result<(), String> {
        loop {
            let text = plain(&self.said);
            if let Some(end) = find(text.get(self.at..).unwrap_or_default()) {
                self.at += end;
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.said.extend(bytes),
                Err(RecvTimeoutError::Timeout) => return Err("nothing came for long".to_owned()),
                Err(RecvTimeoutError::Disconnected) => return Err("the command ended".to_owned()),
            }
        }
    }

    /// Reads until the command has ended.
    fn rest(&mut self, child: &mut Child, deadline: Instant) -> io::Result<ExitStatus> {
        while let Ok(bytes) = self
            .screen
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            self.said.extend(bytes);
        }
        end(child, deadline)
    }
}

/// Waits for the end of a child; at the deadline its group is asked to end.
fn end(child: &mut Child, deadline: Instant) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            if let Some(group) = group {
                // It may have ended meanwhile.
                let _ = kill_process_group(group, Signal::TERM);
            }
            return child.wait();
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns what is typed at a line that a page shows: after which text, and which bytes.
fn typed(line: &str) -> Option<(String, Vec<u8>)> {
    if let Some(key) = line.strip_prefix(ESCAPE) {
        return Some((String::new(), [b"\x14", key.trim().as_bytes()].concat()));
    }
    // Behind the label of the VM stands no more than who asks.
    let (_, shown) = line.strip_prefix('[')?.split_once("] ")?;
    let asked = |prompt: &str| {
        let (who, keys) = shown.split_once(prompt)?;
        (!who.contains(' ')).then_some(keys)
    };
    let keys = PROMPTS.into_iter().find_map(asked)?;
    let prompt = line.get(..line.len() - keys.len())?;
    Some((prompt.to_owned(), [keys.as_bytes(), b"\n"].concat()))
}

/// Returns the end of the first whole line of `text` that is as shown.
fn end_of(shown: &str, text: &str) -> Option<usize> {
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        end += line.len();
        if line.ends_with('\n') && same(shown, line) {
            return Some(end);
        }
    }
    None
}

/// Text without carriage returns and without the terminal's control sequences. One that wipes a line ends it. More bytes
/// never change what came before.
fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut pieces = text.split('\x1b');
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let Some(sequence) = piece.strip_prefix('[') else {
            plain.push_str(piece);
            continue;
        };
        let ends = |c: char| c.is_ascii_alphabetic();
        plain.push_str(if sequence.starts_with("2K") { "\n" } else { "" });
        plain.push_str(sequence.split_once(ends).map_or("", |(_, rest)| rest));
    }
    plain.retain(|c| c != '\r');
    plain
}

/// `text` with the lines `from`, which have to be there once, as `to`.
fn replace(text: &str, from: &[String], to: &[String]) -> Result<String, String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = (0..lines.len()).filter(|&at| {
        let here = lines.get(at..at + from.len());
        here.is_some_and(|here| here.iter().zip(from).all(|(a, b)| a == b))
    });
    let (Some(at), None) = (found.next().filter(|_| !from.is_empty()), found.next()) else {
        return Err("the lines to change are not there, or more than once".to_owned());
    };
    let to: Vec<&str> = to.iter().map(String::as_str).collect();
    let parts = [&lines[..at], &to, &lines[at + from.len()..]];
    Ok(parts.concat().join("\n") + "\n")
}

/// Does everything that `text`, the page of this name, says.
pub fn read(page: &str, text: &str, place: &Place) -> Result<String, Vec<String>> {
    let steps = steps(text).map_err(|why| vec![format!("{page}: {why}")])?;
    for (line, step) in &steps {
        place
            .follow(step)
            .map_err(|why| vec![format!("{page}:{line}: {why}")])?;
    }
    Ok(format!("{} steps", steps.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(page: &str) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let place = Place {
            folder: path.clone(),
            shell: Box::new(move |text| {
                let mut command = Command::new("sh");
                command.args(["-c", text]).current_dir(&path);
                command
            }),
            guard: Duration::from_secs(60),
        };
        let steps = steps(page).unwrap();
        steps.iter().try_for_each(|(_, step)| place.follow(step))
    }

    #[test]
    fn files_are_made_changed_and_used() {
        let page = "```text\n# a.txt\none\ntwo\n```\n```diff\n--- a.txt\n-one\n+1\n two\n```\n\
            ```console\n$ cat a.txt\n# a.txt\n1\ntwo\n```\n";
        assert_eq!(read(page), Ok(()));
        let twice = "```text\n# a.txt\none\none\n```\n```diff\n--- a.txt\n-one\n+1\n```\n";
        assert!(read(twice).is_err());
    }

    #[test]
    fn what_fails_or_says_something_else_is_found() {
        assert_eq!(read("```sh\ntrue\n```\n"), Ok(()));
        assert!(read("```sh\nfalse\n```\n").is_err());
        let shown =
            "```console\n$ echo a; echo b >&2; (exit 2) || echo status $?\na\nb\nstatus 2\n```\n";
        assert_eq!(read(shown), Ok(()));
        assert!(read("```console\n$ echo a\nb\n```\n").is_err());
    }

    #[test]
    fn keys_are_typed_at_prompts() {
        let page = |answer: &str| {
            format!(
                "```console\n$ printf 'boot\\n[a] / # '; read x; echo \"had $x\"\nboot\n[a] / # go on\n{answer}\n```\n"
            )
        };
        assert_eq!(read(&page("...\nhad go on")), Ok(()));
        let why = read(&page("had something else")).unwrap_err();
        assert!(why.contains("had something else"), "{why}");
        let escape =
            "```console\n$ stty -icanon; head -c 2 | od -An -c\nCtrl-T q\n...024   q\n```\n";
        assert_eq!(read(escape), Ok(()));
    }

    #[test]
    fn prompts_are_those_of_the_initramfs_and_of_a_debian() {
        let said = |line: &str| {
            typed(line).map(|(prompt, keys)| (prompt, String::from_utf8(keys).unwrap()))
        };
        for (prompt, keys) in [
            ("[a] / # ", "ls / # x"),
            ("[a] root@a:~# ", "cat /x"),
            ("[a] a login: ", "root"),
        ] {
            let line = format!("{prompt}{keys}");
            assert_eq!(said(&line), Some((prompt.to_owned(), format!("{keys}\n"))));
        }
        for other in [
            "[a] the last login: today",
            "/ # x",
            "[a] ends with x / # ",
            "[a]",
        ] {
            assert_eq!(said(other), None, "{other}");
        }
    }

    #[test]
    fn control_sequences_are_taken_out() {
        assert_eq!(plain(b"\x1b[1;32m[a]\x1b[0m x\r\n\x1b["), "[a] x\n");
        assert_eq!(plain(b"\r  working\r\x1b[2K[a] x"), "  working\n[a] x");
    }
}

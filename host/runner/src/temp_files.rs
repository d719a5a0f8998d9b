//! Temporary files and folders beside what they are for. They go with the tool, also when a signal ends it, and with them the
//! programs that it has started.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::{NamedTempFile, TempDir};

/// Paths of the temporary files and folders that exist now.
static THERE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
/// Number of sessions that end in good order themselves, and the signal that they have to end for, or 0. One lock for both:
/// each signal either ends the tool or is seen by a session, also one that begins just now.
static SESSIONS: Mutex<(usize, i32)> = Mutex::new((0, 0));
/// Attempts at a removal while programs that were told to end still write.
const TRIES: u32 = 100;

fn sessions() -> MutexGuard<'static, (usize, i32)> {
    SESSIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn there() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    THERE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something temporary, of which [`watch`] knows.
#[derive(Debug)]
pub struct Noted<T> {
    /// The file or folder.
    pub value: T,
    _note: Note,
}

/// Entry of a temporary file or folder, by its path.
#[derive(Debug)]
pub struct Note(PathBuf);

impl Note {
    /// Makes an entry for this path: any file or folder made there is temporary from now on.
    pub fn of(path: &Path) -> Self {
        there().insert(path.to_owned());
        Self(path.to_owned())
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        there().remove(&self.0);
    }
}

/// Makes something temporary; under the lock, so that no signal comes between that and the note.
fn noted<T>(
    make: impl FnOnce() -> io::Result<T>,
    path: impl Fn(&T) -> &Path,
) -> io::Result<Noted<T>> {
    let mut there = there();
    let value = make()?;
    let path = path(&value).to_owned();
    there.insert(path.clone());
    let _note = Note(path);
    Ok(Noted { value, _note })
}

/// A temporary file in a folder.
///
/// # Errors
/// It cannot be made there.
pub fn file_in(folder: &Path) -> io::Result<Noted<NamedTempFile>> {
    noted(|| NamedTempFile::new_in(folder), NamedTempFile::path)
}

/// Writes a file for everybody to read, so that it is whole or as it was before. What is no plain file, such as a pipe, is
/// written as it is.
///
/// # Errors
/// It cannot be written there.
pub fn write(path: &Path, data: &[u8]) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        return fs::write(path, data);
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let mut partial = file_in(folder.unwrap_or(Path::new(".")))?;
    partial.value.write_all(data)?;
    partial
        .value
        .as_file()
        .set_permissions(fs::Permissions::from_mode(0o644))?;
    partial.value.persist(path)?;
    Ok(())
}

/// A temporary folder in another one.
///
/// # Errors
/// It cannot be made there.
pub fn folder_in(folder: &Path) -> io::Result<Noted<TempDir>> {
    noted(|| tempfile::tempdir_in(folder), TempDir::path)
}

/// A temporary folder where the system keeps such, with a name that begins so.
///
/// # Errors
/// It cannot be made there.
pub fn folder(prefix: &str) -> io::Result<Noted<TempDir>> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix);
    noted(|| builder.tempdir(), TempDir::path)
}

/// Session that handles signals itself, as long as this exists.
#[derive(Debug)]
pub struct Session(());

impl Session {
    /// Begins.
    pub fn begin() -> Self {
        sessions().0 += 1;
        Self(())
    }

    /// The last signal that came while a session was there to heed it, if one came.
    pub fn signal(&self) -> Option<i32> {
        Some(sessions().1).filter(|signal| *signal != 0)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        sessions().0 -= 1;
    }
}

/// From now on a signal that ends the tool also ends what it has started and removes what is temporary; a [`Session`] gets it
/// instead. A terminal that goes ends what runs on it, but not what was started with `nohup`.
pub fn watch() {
    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter();
    let Ok(mut signals) = Signals::new(wanted.filter(|signal| !is_ignored(*signal))) else {
        return;
    };
    thread::spawn(move || {
        for signal in signals.forever() {
            take(signal);
        }
    });
}

/// Gives a signal to the session that is there, or ends the tool.
fn take(signal: i32) {
    let mut sessions = sessions();
    if sessions.0 > 0 {
        sessions.1 = signal;
        return;
    }
    drop(sessions);
    end(signal);
}

/// Whether the tool was started with the signal ignored (`nohup`). Right only before the signal is caught.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let digits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // A bit for each signal, from 1 on.
    let bits = digits.map_or(0, |digits| {
        u64::from_str_radix(digits.trim(), 16).unwrap_or(0)
    });
    bits >> (signal - 1) & 1 != 0
}

/// Ends the tool as the signal would have, without what is temporary, of which nothing is made any more meanwhile.
pub fn end(signal: i32) {
    let mut there = there();
    for child in children() {
        // It may have ended just now.
        let _ = kill_process(child, Signal::TERM);
    }
    for path in std::mem::take(&mut *there) {
        for _ in 0..TRIES {
            let _ = match path.is_dir() {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
            if path.symlink_metadata().is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
    // Returns only if the signal has no default action, which those caught here have.
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}

/// The programs that the tool has started and that run.
fn children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    let lists = tasks
        .flatten()
        .map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let mut found = Vec::new();
    for list in lists {
        let ids = list.split_whitespace().filter_map(|id| id.parse().ok());
        found.extend(ids.filter_map(Pid::from_raw));
    }
    found
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_file_is_replaced_as_a_whole_or_stays_as_it_was() {
        let top = tempfile::tempdir().unwrap();
        let file = top.path().join("image");
        write(&file, b"old").unwrap();
        let before = fs::File::open(&file).unwrap();
        write(&file, b"newer").unwrap();
        assert_eq!(io::read_to_string(before).unwrap(), "old");
        assert_eq!(fs::read(&file).unwrap(), b"newer");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        assert!(write(&top.path().join("no/image"), b"").is_err());
        assert_eq!(fs::read_dir(top.path()).unwrap().count(), 1);
        // Neither a rename nor a new file in /dev.
        write(Path::new("/dev/null"), b"gone").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    use super::*;

    #[test]
    fn what_is_temporary_is_known_as_long_as_it_is_there() {
        let top = tempfile::tempdir().unwrap();
        let file = file_in(top.path()).unwrap();
        let path = file.value.path().to_owned();
        assert!(there().contains(&path));
        file.value.persist(top.path().join("kept")).unwrap();
        let folder = folder_in(top.path()).unwrap();
        let inside = folder.value.path().to_owned();
        assert!(there().contains(&inside) && inside.is_dir());
        drop(folder);
        assert!(!there().contains(&inside) && !inside.exists());
    }

    #[test]
    fn a_session_sees_the_signals_that_come_while_it_is_there() {
        let session = Session::begin();
        assert_eq!(session.signal(), None);
        take(SIGTERM);
        assert_eq!(session.signal(), Some(SIGTERM));
    }

    #[test]
    fn programs_that_run_are_found() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let id = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(children().contains(&id));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children().contains(&id));
    }
}

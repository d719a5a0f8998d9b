//! `bulkhead doctor`: whether this computer has what the other verbs need.

use std::env;
use std::fs;
use std::io::{IsTerminal, stdout};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::statvfs;
use serde::Serialize;

use super::book;
use bulkhead_model::checkout;
use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_model::payload::DebianPayload;
use bulkhead_runner::cross_build;
use bulkhead_runner::fetch;
use bulkhead_runner::fetch::cache::{self, Cache};
use bulkhead_runner::run::{self, gdb};

/// Look whether this computer has what the other verbs need
#[derive(clap::Args)]
#[command(
    after_help = "Nothing is installed, fetched or built. Exit status 3 when something is missing.

Examples:
  bulkhead doctor          # a line for each, with what to do
  bulkhead doctor --json   # one JSON document"
)]
pub struct Args {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    /// It is there.
    Good,
    /// It is not there, and can wait: a verb gets it when it needs it, or one option alone wants it.
    Later,
    /// It is not there, and some verb cannot do without.
    Missing,
}

/// One thing that verbs need.
#[derive(Debug, Serialize)]
struct Found {
    what: &'static str,
    state: State,
    /// Version, place or reason.
    detail: String,
    /// Verbs that need it.
    needed: &'static str,
    /// Advice to the user, unless it is good.
    remedy: &'static str,
}

/// Size to which the cache grows with all that the tests fetch, rounded up.
const CACHE_GIB: u64 = 2;
/// Size to which cargo's target folder grows with all tests, rounded up.
const TARGET_GIB: u64 = 4;
/// Free space that is wanted also where all is there already, for what a run writes.
const SPARE_GIB: u64 = 1;
/// The first QEMU whose GICv3 and EL2 timers are right; the same as in `./bulkhead`.
const QEMU_MIN: (u32, u32) = (8, 2);

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    let found = look();
    if args.json {
        match serde_json::to_string_pretty(&found) {
            Ok(text) => println!("{text}"),
            Err(error) => {
                return Failure::failed("what was found makes no JSON", error, "").report();
            }
        }
    } else {
        let colours = stdout().is_terminal() && env::var_os("NO_COLOR").is_none();
        print!("{}", text(&found, colours));
    }
    if found.iter().any(|found| found.state == State::Missing) {
        Outcome::Environment
    } else {
        Outcome::Done
    }
}

fn look() -> Vec<Found> {
    vec![
        emulator(),
        compiler(),
        debian(),
        payloads(),
        debugger(),
        book(),
        disk_space("the cache", &cache::folder(), CACHE_GIB),
        disk_space("the target folder", &target(), TARGET_GIB),
    ]
}

/// Returns the first line that a program prints when asked for its version.
fn version(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    let output = command
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().next()?.trim().to_owned();
    (output.status.success() && !line.is_empty()).then_some(line)
}

/// Major and minor number in such a line.
fn numbers(line: &str) -> Option<(u32, u32)> {
    let word = line
        .split_whitespace()
        .find(|word| word.starts_with(|first: char| first.is_ascii_digit()))?;
    let mut parts = word.split(|part: char| !part.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn emulator() -> Found {
    let program = run::program();
    let named = program.display().to_string();
    let (state, detail) = match version(&program) {
        None => (State::Missing, format!("{named} does not run")),
        Some(line) if numbers(&line).is_none_or(|found| found < QEMU_MIN) => {
            let (major, minor) = QEMU_MIN;
            (
                State::Missing,
                format!("{line}: older than {major}.{minor}"),
            )
        }
        Some(line) => (State::Good, line),
    };
    Found {
        what: "QEMU",
        state,
        detail,
        needed: "run, demo, test, bench",
        remedy: "install the package with qemu-system-aarch64, or name one in $BULKHEAD_QEMU",
    }
}

fn compiler() -> Found {
    let (state, detail) = match cross_build::toolchain() {
        Ok(line) => (State::Good, line),
        Err(failure) => (State::Missing, failure.what),
    };
    Found {
        what: "Rust for EL2",
        state,
        detail,
        needed: "build and all that run something",
        remedy: "run the tool through `./bulkhead`, which chooses or installs a toolchain",
    }
}

fn debian() -> Found {
    let absent: Vec<_> = ["apt-get", "dpkg-deb"]
        .into_iter()
        .filter(|name| version(Path::new(name)).is_none())
        .collect();
    let keys = Path::new("/usr/share/keyrings/debian-archive-keyring.gpg");
    let (state, detail) = if !absent.is_empty() {
        (State::Missing, format!("no {}", absent.join(", no ")))
    } else if !keys.is_file() {
        (State::Missing, "no archive keys of Debian".to_owned())
    } else {
        (State::Good, "apt, dpkg, archive keys".to_owned())
    };
    Found {
        what: "Debian's tools",
        state,
        detail,
        needed: "fetch",
        remedy: "on other systems: bulkhead fetch --from a folder of .deb files, with dpkg-deb",
    }
}

fn payloads() -> Found {
    let there = || {
        let cache = Cache::open()?;
        let mut names = Vec::new();
        for payload in DebianPayload::ALL {
            if fetch::cached(&cache, payload)?.is_some() {
                names.push(payload.name());
            }
        }
        Ok::<_, Failure>(names)
    };
    let folder = cache::folder();
    let (state, detail) = match there() {
        Err(failure) => (State::Missing, failure.what),
        Ok(names)
            if DebianPayload::USUAL
                .iter()
                .all(|one| names.contains(&one.name())) =>
        {
            (
                State::Good,
                format!("{} in {}", names.join(", "), folder.display()),
            )
        }
        Ok(names) if names.is_empty() => (State::Later, format!("none in {}", folder.display())),
        Ok(names) => {
            let names = names.join(", ");
            (
                State::Later,
                format!("only {names} in {}", folder.display()),
            )
        }
    };
    Found {
        what: "Linux for guests",
        state,
        detail,
        needed: "systems that name debian:...",
        remedy: "bulkhead fetch gets them, and so does the first build that needs them",
    }
}

fn debugger() -> Found {
    let (state, detail) = match version(Path::new(gdb::PROGRAM)) {
        None => (State::Later, format!("no {}", gdb::PROGRAM)),
        Some(line) => (State::Good, line),
    };
    Found {
        what: "gdb",
        state,
        detail,
        needed: "run --gdb",
        remedy: "apt-get install gdb-multiarch",
    }
}

fn book() -> Found {
    let (state, detail) = match version(Path::new(book::RENDERER)) {
        None => (State::Later, format!("no {}", book::RENDERER)),
        Some(line) => (State::Good, line),
    };
    Found {
        what: "mdBook",
        state,
        detail,
        needed: "book",
        remedy: book::ADVICE,
    }
}

/// Returns cargo's target folder.
fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| checkout::root().join("target"), PathBuf::from)
}

/// Looks whether there is room for a folder to grow to `gib`.
fn disk_space(what: &'static str, folder: &Path, gib: u64) -> Found {
    let existing = folder.ancestors().find(|folder| folder.is_dir());
    let at = existing.unwrap_or(Path::new("/"));
    let free = statvfs(at).map(|system| system.f_bavail.saturating_mul(system.f_frsize) >> 30);
    let writable = fs::metadata(at).is_ok_and(|data| !data.permissions().readonly());
    let (state, detail) = match free {
        Err(why) => (State::Missing, format!("{}: {why}", at.display())),
        Ok(_) if !writable => (State::Missing, format!("{} is read-only", at.display())),
        Ok(free) => match too_little(free, gib, || size(folder) >> 30) {
            Some(wanted) => (
                State::Missing,
                format!("{free} GiB free in {}, {wanted} wanted", at.display()),
            ),
            None => (State::Good, format!("{free} GiB free in {}", at.display())),
        },
    };
    Found {
        what,
        state,
        detail,
        needed: "build, fetch, test",
        remedy: "make room; $BULKHEAD_CACHE and $CARGO_TARGET_DIR say where things go",
    }
}

/// Returns what is wanted if it is more than is free, where a folder that has `has` is to grow to
/// `gib`. `has` is asked only where it matters: that takes a while.
fn too_little(free: u64, gib: u64, has: impl FnOnce() -> u64) -> Option<u64> {
    if free >= gib {
        return None;
    }
    let wanted = gib.saturating_sub(has()).max(SPARE_GIB);
    (free < wanted).then_some(wanted)
}

/// Returns the room that the files below a folder take, in bytes; what cannot be read takes none.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => size(&entry.path()),
        Ok(data) => data.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

fn text(found: &[Found], colours: bool) -> String {
    let mut text = String::new();
    for one in found {
        let (word, colour) = match one.state {
            State::Good => ("ok", "32"),
            State::Later => ("later", "33"),
            State::Missing => ("MISSING", "31"),
        };
        let word = format!("{word:<8}");
        let word = if colours {
            format!("\x1b[{colour}m{word}\x1b[0m")
        } else {
            word
        };
        text += &format!("{word}{:<17} {}\n", one.what, one.detail);
        if one.state != State::Good {
            text += &format!(
                "{:8}{:<17} needed by {}: {}\n",
                "", "", one.needed, one.remedy
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        let qemu = "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)";
        assert_eq!(numbers(qemu), Some((10, 0)));
        assert_eq!(numbers("apt 2.6.1 (amd64)"), Some((2, 6)));
        assert_eq!(numbers("no number"), None);
        assert!(numbers("QEMU emulator version 7.2.1") < Some(QEMU_MIN));
    }

    #[test]
    fn what_a_folder_has_needs_no_room_again() {
        assert_eq!(too_little(4, 4, || unreachable!()), None);
        assert_eq!(too_little(3, 4, || 0), Some(4));
        assert_eq!(too_little(3, 4, || 1), None);
        assert_eq!(too_little(1, 4, || 9), None);
        assert_eq!(too_little(0, 4, || 9), Some(SPARE_GIB));
        let folder = env::temp_dir().join(format!("bulkhead-size-{}", std::process::id()));
        let deep = folder.join("deep/er");
        fs::create_dir_all(&deep).unwrap();
        let empty = size(&folder);
        fs::write(deep.join("file"), vec![1; 100_000]).unwrap();
        let full = size(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert!(full >= empty + 100_000, "{empty} {full}");
    }

    #[test]
    fn what_is_missing_says_who_needs_it_and_what_to_do() {
        let none = Path::new("/nonexistent/program");
        assert_eq!(version(none), None);
        let all = look();
        for what in ["QEMU", "gdb", "mdBook"] {
            assert!(all.iter().any(|found| found.what == what), "{what}");
        }
        for found in all {
            assert!(
                !found.detail.is_empty() && !found.needed.is_empty(),
                "{found:?}"
            );
            assert!(!found.remedy.is_empty(), "{found:?}");
        }
        let lacking = Found {
            what: "QEMU",
            state: State::Missing,
            detail: "x does not run".to_owned(),
            needed: "run",
            remedy: "install it",
        };
        let shown = text(&[lacking], false);
        assert!(shown.starts_with("MISSING QEMU"), "{shown}");
        assert!(
            shown.contains("needed by run: install it") && !shown.contains('\x1b'),
            "{shown}"
        );
    }
}

//! The second stage: Debian's kernel on an emulated board without Bulkhead, in which the packages configure themselves.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use bulkhead_model::failure::Failure;
use bulkhead_planner::cpio::{Entry, Tree};

use crate::command::program;
use crate::progress::Step;
use crate::sys::die_with_parent;

/// The program of the initramfs that does it, and what it runs inside the root file system.
pub const SCRIPTS: [&str; 2] = [
    include_str!("../../../../../guests/rootfs/configure-rootfs"),
    include_str!("../../../../../guests/rootfs/second-stage"),
];

/// A second stage that says nothing for so long has hung: the longest silence of one that works is some seconds.
const SILENCE: Duration = Duration::from_secs(180);
/// Lines of the log in a message.
const TAIL: usize = 12;

/// A line of the emulated board's console.
#[derive(Debug, PartialEq, Eq)]
enum ConsoleLine<'a> {
    /// The script of a package that runs before it is unpacked has run.
    Prepared(&'a str),
    /// dpkg has configured a package.
    Configured(&'a str),
    /// Everything is configured.
    AllConfigured,
    /// The file system is whole on the disk.
    Written,
    /// The scripts have given up, for this reason.
    Failed(&'a str),
    /// What programs say.
    Other,
}

impl<'a> ConsoleLine<'a> {
    fn parse(line: &'a str) -> Self {
        let line = line.trim();
        if let Some(said) = line.strip_prefix("rootfs: ") {
            return match said.split_once(' ') {
                Some(("prepared", package)) => Self::Prepared(package),
                Some(("FAILED", why)) => Self::Failed(why),
                None if said == "configured" => Self::AllConfigured,
                None if said == "written" => Self::Written,
                _ => Self::Other,
            };
        }
        // status: libc6:arm64: installed
        let package = line
            .strip_prefix("status: ")
            .and_then(|said| said.strip_suffix(": installed"));
        package.map_or(Self::Other, |package| {
            let name = package.split(':').next().unwrap_or(package);
            Self::Configured(name)
        })
    }
}

/// What is known from the console so far.
#[derive(Debug, Default)]
struct Account {
    /// Packages that are configured; a trigger makes one so once more.
    configured: std::collections::BTreeSet<String>,
    /// Everything is configured.
    complete: bool,
    /// The file system is written.
    written: bool,
    /// Reason for which the scripts have given up: the first one.
    failed: Option<String>,
}

impl Account {
    /// Takes a line; gives the package that is configured by now.
    fn take<'a>(&mut self, line: &'a str) -> Option<&'a str> {
        match ConsoleLine::parse(line) {
            ConsoleLine::Configured(package) => {
                let new = self.configured.insert(package.to_owned());
                return new.then_some(package);
            }
            ConsoleLine::AllConfigured => self.complete = true,
            ConsoleLine::Written => self.written = true,
            ConsoleLine::Failed(why) => {
                self.failed.get_or_insert_with(|| why.to_owned());
            }
            ConsoleLine::Prepared(_) | ConsoleLine::Other => {}
        }
        None
    }

    /// Whether it went well, else why not.
    fn verdict(self) -> Result<(), String> {
        match self.failed {
            Some(why) => Err(why),
            None if !self.complete => Err("the board stopped before all was configured".to_owned()),
            None if !self.written => Err("the board stopped before all was written".to_owned()),
            None => Ok(()),
        }
    }
}

/// An emulator that ends when it is dropped.
struct Emulator(Child);

impl Drop for Emulator {
    fn drop(&mut self) {
        // It may have ended by itself; there is nobody to tell.
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Boots a kernel with an initramfs and lets the packages in an image, in apt's order, configure themselves, with the modules of this kernel release; the console goes into the log.
pub fn run(
    (kernel, initramfs): (&Path, &Path),
    (image, log): (&Path, &Path),
    packages: &[&str],
    release: &str,
) -> Result<(), Failure> {
    let failed = |why: String| {
        Failure::environment(
            "Debian's packages did not configure themselves in the emulator",
            why,
            format!("all that it said is in {}", log.display()),
        )
    };
    let initrd = image.with_extension("initrd");
    let prepare = || {
        let mut archive = fs::read(initramfs)?;
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend(scripts(packages, release).to_bytes());
        fs::write(&initrd, archive)?;
        File::create(log)
    };
    let mut log_file = prepare().map_err(|e| failed(e.to_string()))?;

    let step = Step::start(format!(
        "{} packages configure themselves in the emulator",
        packages.len()
    ));
    let mut command = Command::new(program());
    command
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-machine", "virt", "-cpu", "cortex-a57", "-smp", "2"])
        .args(["-m", "1G", "-accel", "tcg,thread=multi"])
        .args(["-serial", "stdio", "-kernel"])
        .arg(kernel)
        .arg("-initrd")
        .arg(&initrd)
        .args([
            "-append",
            "console=ttyAMA0 quiet panic=-1 bulkhead.run=configure-rootfs",
        ])
        // The image counts only once it is whole: nothing has to reach the host's disk before.
        .arg("-drive")
        .arg(drive(image))
        .args(["-device", "virtio-blk-device,drive=root"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = die_with_parent(&mut command).spawn();
    let child = child.map_err(|e| failed(format!("{}: {e}", program().display())))?;
    let mut emulator = Emulator(child);

    let (sender, lines) = mpsc::channel();
    let pipes = emulator.0.stdout.take().map(read_into(sender.clone()));
    let errors = emulator.0.stderr.take().map(read_into(sender));
    let mut account = Account::default();
    let mut tail: Vec<String> = Vec::new();
    loop {
        let line = match lines.recv_timeout(SILENCE) {
            Ok(line) => line,
            // The board is off: both pipes are closed.
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                account
                    .failed
                    .get_or_insert(format!("nothing came for {} s", SILENCE.as_secs()));
                break;
            }
        };
        writeln!(log_file, "{line}").map_err(|e| failed(e.to_string()))?;
        if let Some(package) = account.take(&line) {
            let done = account.configured.len();
            step.count(done, packages.len(), format_args!("configuring {package}"));
        }
        tail.push(line);
        if tail.len() > TAIL {
            tail.remove(0);
        }
    }
    drop(emulator);
    for reader in [pipes, errors].into_iter().flatten() {
        // It has nothing to give; had it failed, lines would lack, and the account says so.
        let _read = reader.join();
    }
    account
        .verdict()
        .map_err(|why| failed(format!("{why}\n{}", tail.join("\n"))))
}

/// A thread that sends the lines of a pipe.
fn read_into<P: std::io::Read + Send + 'static>(
    sender: mpsc::Sender<String>,
) -> impl FnOnce(P) -> std::thread::JoinHandle<()> {
    move |pipe| {
        std::thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            // Programs of a guest may say what is no UTF-8.
            while pipe.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                if sender.send(text).is_err() {
                    break;
                }
            }
        })
    }
}

/// The value of QEMU's `-drive` for the image; a comma in a path is said twice.
fn drive(image: &Path) -> String {
    let path = image.display().to_string().replace(',', ",,");
    format!("if=none,id=root,format=raw,cache=unsafe,file={path}")
}

/// What goes behind the initramfs.
fn scripts(packages: &[&str], release: &str) -> Tree {
    let [outside, inside] = SCRIPTS;
    let mut tree = Tree::default();
    let file = |mode: u32, text: &str| Entry::File(mode, text.as_bytes().to_vec());
    tree.add("bin/configure-rootfs", file(0o755, outside));
    tree.add("rootfs/second-stage", file(0o644, inside));
    let names: String = packages.iter().map(|name| format!("{name}\n")).collect();
    tree.add("rootfs/packages", file(0o644, &names));
    tree.add("rootfs/release", file(0o644, &format!("{release}\n")));
    tree
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_tells_what_is_done() {
        let mut account = Account::default();
        let lines = [
            "rootfs: prepared libc6",
            "status: libc6:arm64: unpacked",
            "processing: configure: libc6",
            "status: libc6:arm64: installed",
            "Setting up dash (0.5.12-2) ...",
            "status: dash: installed\r",
            "processing: trigproc: libc-bin",
            "status: libc6:arm64: installed",
            "rootfs: configured",
            "rootfs: written",
        ];
        let done: Vec<&str> = lines.iter().filter_map(|line| account.take(line)).collect();
        assert_eq!(done, ["libc6", "dash"]);
        assert_eq!(account.verdict(), Ok(()));
        assert_eq!(
            ConsoleLine::parse("rootfs: prepared base-passwd"),
            ConsoleLine::Prepared("base-passwd")
        );
        assert_eq!(ConsoleLine::parse("rootfs: writtenx"), ConsoleLine::Other);
    }

    #[test]
    fn whatever_ends_early_is_no_root_file_system() {
        let verdict = |lines: &[&str]| {
            let mut account = Account::default();
            for line in lines {
                account.take(line);
            }
            account.verdict().expect_err("not whole")
        };
        let early = "the board stopped before all was configured";
        assert_eq!(verdict(&[]), early);
        assert_eq!(verdict(&["status: dash: installed"]), early);
        // Written, but not by a second stage that has reached its end.
        assert_eq!(verdict(&["rootfs: written"]), early);
        assert_eq!(
            verdict(&["rootfs: configured"]),
            "the board stopped before all was written"
        );
        assert_eq!(
            verdict(&[
                "rootfs: FAILED packages do not configure themselves",
                "rootfs: FAILED something still uses the file system",
                "rootfs: written",
            ]),
            "packages do not configure themselves"
        );
    }

    #[test]
    fn a_comma_in_the_path_of_the_cache_does_not_end_it() {
        let value = drive(Path::new("/a,b/image"));
        assert!(value.ends_with(",file=/a,,b/image"), "{value}");
    }
}

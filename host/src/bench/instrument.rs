//! The profiler on a run: builds the plugin, tells it what to count, reads what it counted.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use bulkhead_profiler::{Config, CpuKey, Marks, Period, Profile};

use super::program::Program;
use crate::failure::Failure;
use crate::progress::Step;
use crate::{fetch, machine};

/// What to count in a run.
pub struct Instrument<'a> {
    /// EL2 as it was linked.
    pub el2: &'a Program,
    /// Where the image is loaded, to count the boot from its first instruction.
    pub boot: Option<u64>,
    /// A guest's marks.
    pub marks: Option<Marks>,
    /// How CPUs are told apart: by [`CpuKey::Tpidr`] under `-icount`, else by [`CpuKey::Index`].
    pub cpus: CpuKey,
    /// A timer whose periods are watched.
    pub period: Option<Period>,
}

/// The profiler, ready for one run of QEMU.
pub struct Attached {
    /// Value for QEMU's `-plugin`.
    pub argument: OsString,
    output: PathBuf,
}

impl Instrument<'_> {
    /// Builds the plugin if needed and leaves its configuration in `folder`.
    ///
    /// # Errors
    ///
    /// The plugin can't be built, EL2 lacks a symbol, or the folder can't be written.
    pub fn attach(&self, folder: &Path) -> Result<Attached, Failure> {
        let plugin = build()?;
        let el2 = self.el2.el2()?;
        let output = folder.join("profile.json");
        let config = Config {
            output: output.clone(),
            text_start: el2.text_start,
            text_end: el2.text_end,
            vectors: el2.vectors,
            idle: el2.idle.to_vec(),
            boot: self.boot,
            symbols: el2.symbols,
            marks: self.marks,
            cpus: self.cpus,
            period: self.period,
        };
        let file = folder.join("profiler.json");
        let cannot = |error: &dyn std::fmt::Display| {
            Failure::environment(format!("cannot write {}", file.display()), error, "")
        };
        let text = serde_json::to_vec(&config).map_err(|error| cannot(&error))?;
        std::fs::write(&file, text).map_err(|error| cannot(&error))?;
        // A profile of an earlier run must not be taken for this one's.
        match std::fs::remove_file(&output) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(cannot(&error));
            }
            _ => {}
        }
        // QEMU takes a comma inside of a value when it is doubled.
        let plain = |path: &Path| path.as_os_str().to_string_lossy().replace(',', ",,");
        let argument = format!("{},config={}", plain(&plugin), plain(&file));
        Ok(Attached {
            argument: argument.into(),
            output,
        })
    }
}

impl Attached {
    /// What was counted, after QEMU has ended by itself or by a signal that it handles (SIGTERM).
    ///
    /// # Errors
    ///
    /// QEMU ended without a profile.
    pub fn profile(&self) -> Result<Profile, Failure> {
        read_profile(&self.output)
    }
}

/// Reads a profile from a file.
///
/// # Errors
///
/// The file is missing or holds something else.
pub fn read_profile(path: &Path) -> Result<Profile, Failure> {
    let what = || format!("there is no profile in {}", path.display());
    let advice = "QEMU writes it when it ends; it must not be killed before";
    let text = std::fs::read(path).map_err(|error| Failure::failed(what(), error, advice))?;
    serde_json::from_slice(&text).map_err(|error| Failure::failed(what(), error, advice))
}

/// Builds the plugin for this computer; gives its path.
fn build() -> Result<PathBuf, Failure> {
    let step = Step::start("building the profiler");
    let root = machine::checkout();
    let cargo = std::env::var_os("BULKHEAD_CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(&root)
        .args([
            "build",
            "--quiet",
            "--release",
            "--package",
            "bulkhead-profiler",
            "--lib",
        ])
        .arg("--message-format=json-render-diagnostics");
    let advice = "on Debian and Ubuntu `./bulkhead` installs the toolchain that it needs";
    let messages = fetch::run(&mut command, || "cannot build the profiler", advice)?;
    drop(step);
    let file = messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let files = message.get("filenames")?.as_array()?;
        let mut paths = files.iter().filter_map(|file| file.as_str());
        paths
            .rfind(|path| path.ends_with("bulkhead_profiler.so"))
            .map(PathBuf::from)
    });
    file.ok_or_else(|| Failure::failed("cargo built no plugin from lab/profiler", "", ""))
}

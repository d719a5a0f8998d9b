//! The profiler on a run: builds the plugin, tells it what to count, reads what it counted.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use bulkhead_profiler::{Config, CpuKey, Marks, Period, Profile};

use bulkhead_model::checkout;
use bulkhead_model::failure::Failure;

use super::period::GICC_IAR;
use super::program::Program;
use crate::command;
use crate::progress::Step;

/// Configuration of the counts in a run.
pub struct Instrument<'a> {
    /// EL2 as it was linked.
    pub el2: &'a Program,
    /// Load address of the image, to count the boot from its first instruction.
    pub boot: Option<u64>,
    /// A guest's marks.
    pub marks: Option<Marks>,
    /// Key by which CPUs are told apart: [`CpuKey::Tpidr`] under `-icount`, else [`CpuKey::Index`].
    pub cpus: CpuKey,
    /// A timer whose periods are watched.
    pub period: Option<Period>,
    /// A function of EL2, by a part of its name: what begins with it is told apart, instead of what begins with a look at
    /// interrupts.
    pub from: Option<&'a str>,
}

/// The profiler, ready for one run of QEMU.
pub struct Attached {
    /// Value for QEMU's `-plugin`.
    pub argument: OsString,
    output: PathBuf,
}

impl<'a> Instrument<'a> {
    /// Counts exits and nothing else, on QEMU's instruction clock, where its own index of CPUs is not to be trusted.
    pub fn new(el2: &'a Program) -> Self {
        Self {
            el2,
            boot: None,
            marks: None,
            cpus: CpuKey::Tpidr,
            period: None,
            from: None,
        }
    }

    /// Builds the plugin if needed and leaves its configuration in `folder`.
    ///
    /// # Errors
    ///
    /// The plugin can't be built, EL2 lacks a symbol or has no function `from`, or the folder can't be written.
    pub fn attach(&self, folder: &Path) -> Result<Attached, Failure> {
        let plugin = build_plugin("profiler")?;
        let el2 = self.el2.el2()?;
        let output = folder.join("profile.json");
        let looks = match self.from {
            None => el2.looks.to_vec(),
            Some(part) => el2.functions(part, "the profiler")?,
        };
        let config = Config {
            output: output.clone(),
            text_start: el2.text_start,
            text_end: el2.text_end,
            vectors: el2.vectors,
            guarded: Some(el2.guarded),
            idle: el2.idle.to_vec(),
            looks,
            boot: self.boot,
            symbols: el2.symbols,
            marks: self.marks,
            cpus: self.cpus,
            // A GICv3 has no such frame, and EL2 nothing at this address.
            iar: Some(GICC_IAR),
            period: self.period,
        };
        Ok(Attached {
            argument: configure(&plugin, folder, "profiler", &config, &output)?,
            output,
        })
    }
}

impl Attached {
    /// Reads the counts, after QEMU has ended by itself or by a signal that it handles (SIGTERM).
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

/// The value of QEMU's `-plugin` for a plugin and its configuration.
fn argument(plugin: &Path, configuration: &Path) -> OsString {
    // QEMU takes a comma inside of a value when it is doubled.
    let plain = |path: &Path| path.as_os_str().to_string_lossy().replace(',', ",,");
    format!("{},config={}", plain(plugin), plain(configuration)).into()
}

/// Writes the configuration of plugin `name` to `folder`, and takes away what an earlier run has left as `output`, so
/// that it is not taken for this one's. Gives the argument of QEMU's `-plugin`.
///
/// # Errors
///
/// The folder cannot be written to.
pub fn configure(
    plugin: &Path,
    folder: &Path,
    name: &str,
    config: &impl serde::Serialize,
    output: &Path,
) -> Result<OsString, Failure> {
    let file = folder.join(name).with_extension("json");
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::environment(format!("cannot write {}", file.display()), error, "")
    };
    let text = serde_json::to_vec(config).map_err(|error| cannot(&error))?;
    std::fs::write(&file, text).map_err(|error| cannot(&error))?;
    match std::fs::remove_file(output) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(cannot(&error)),
        _ => Ok(argument(plugin, &file)),
    }
}

/// Builds the plugin in `lab/NAME` for this computer, once in a run of this tool; gives its path.
///
/// # Errors
///
/// It can't be built.
pub fn build_plugin(name: &str) -> Result<PathBuf, Failure> {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = built.get(name) {
        return Ok(path.clone());
    }
    let path = build(name)?;
    built.insert(name.to_owned(), path.clone());
    Ok(path)
}

fn build(name: &str) -> Result<PathBuf, Failure> {
    let step = Step::start(format!("building the {name}"));
    let root = checkout::root();
    let cargo = std::env::var_os("BULKHEAD_CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(&root)
        .args(["build", "--quiet", "--release", "--lib", "--package"])
        .arg(format!("bulkhead-{name}"))
        .arg("--message-format=json-render-diagnostics");
    let advice = "on Debian and Ubuntu `./bulkhead` installs the toolchain that it needs";
    let messages = command::run(&mut command, || format!("cannot build the {name}"), advice)?;
    drop(step);
    let library = format!("bulkhead_{name}.so");
    let file = messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let files = message.get("filenames")?.as_array()?;
        let mut paths = files.iter().filter_map(|file| file.as_str());
        paths
            .rfind(|path| path.ends_with(&library))
            .map(PathBuf::from)
    });
    let what = || format!("cargo built no plugin from lab/{name}");
    file.ok_or_else(|| Failure::failed(what(), "", ""))
}

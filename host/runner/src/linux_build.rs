//! Builds programs in Rust of Linux, of the one that manages a board (`mgmt/`) and of ends of channels: for arm64, static, so that they run in any root file system.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use bulkhead_model::checkout;
use bulkhead_model::failure::Failure;

use crate::cargo::{self, target_folder};
use crate::command;
use crate::fetch::rust_std;
use crate::progress::Step;

/// Their target.
const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Their profile (`Cargo.toml`).
const PROFILE: &str = "mgmt";
/// What links them, of Debian's `gcc-aarch64-linux-gnu`, with the C library of `libc6-dev-arm64-cross`.
const LINKER: &str = "aarch64-linux-gnu-gcc";

/// The path at which an earlier build has left a program.
pub fn built(name: &str) -> PathBuf {
    target_folder().join(TARGET).join(PROFILE).join(name)
}

/// Builds a program of a package; gives its path.
///
/// # Errors
/// It does not compile, or this computer lacks something to build it with.
pub fn program(name: &str, package: &str) -> Result<PathBuf, Failure> {
    let root = checkout::root();
    has_linker(name)?;
    let (mut command, rustc) = cargo::command(&root);
    let sysroot = cargo::sysroot(&rustc)?;
    let mut flags = cargo::remaps(&root, &sysroot);
    flags.extend(["-Ctarget-feature=+crt-static", "-Awarnings"].map(toml::Value::from));
    match Library::find(&rustc, &sysroot)? {
        Library::OfToolchain => {}
        Library::In(folder) => {
            let folder = folder.to_string_lossy().into_owned();
            flags.push(toml::Value::from(format!("-L{folder}")));
        }
        Library::FromSource => {
            command
                .env("RUSTC_BOOTSTRAP", "1")
                .arg("-Zbuild-std=std,panic_abort");
        }
    }
    let flags = toml::Value::Array(flags);
    for setting in [
        format!("target.{TARGET}.rustflags={flags}"),
        format!("target.{TARGET}.linker=\"{LINKER}\""),
    ] {
        command.arg("--config").arg(setting);
    }
    command.args(["build", "--package", package, "--bin", name]);
    command.args(["--target", TARGET, "--profile", PROFILE]);
    let mut programs = cargo::build(name, command)?;
    programs.remove(name).ok_or_else(|| {
        let what = format!("the package {package} gave no program `{name}`");
        Failure::failed(what, "", "see its Cargo.toml")
    })
}

/// Fails where there is nothing to link with: the linker's own words would come last, and say less.
fn has_linker(name: &str) -> Result<(), Failure> {
    let advice = "the C compiler for Arm64 is in Debian's and Ubuntu's package gcc-aarch64-linux-gnu, with libc6-dev-arm64-cross";
    let mut ask = Command::new(LINKER);
    match ask.arg("-print-file-name=libc.a").output() {
        // Of a file that it does not find it gives the name alone.
        Ok(said) if String::from_utf8_lossy(&said.stdout).contains('/') => Ok(()),
        Ok(_) => {
            let what = format!("{name} cannot be linked");
            Err(Failure::environment(
                what,
                "there is no static C library for Arm64",
                advice,
            ))
        }
        Err(why) => {
            let what = format!("{name} cannot be linked");
            Err(Failure::environment(
                what,
                format!("{LINKER}: {why}"),
                advice,
            ))
        }
    }
}

/// Where the standard library for the target is.
#[derive(Debug, PartialEq, Eq)]
enum Library {
    /// With the compiler.
    OfToolchain,
    /// In this folder.
    In(PathBuf),
    /// Nowhere yet: it is built with the program.
    FromSource,
}

impl Library {
    /// Finds it, or gets it: by rustup for its compilers, as a package for those of Debian and Ubuntu.
    fn find(rustc: &Path, sysroot: &Path) -> Result<Self, Failure> {
        /// Two that get it at once are in each other's way.
        static GETS: Mutex<()> = Mutex::new(());
        let _alone = GETS.lock().unwrap_or_else(PoisonError::into_inner);
        if is_in(sysroot) {
            return Ok(Self::OfToolchain);
        }
        if let Some(toolchain) = of_rustup(sysroot) {
            let step = Step::start(format!("asking rustup for the target {TARGET}"));
            let mut add = Command::new("rustup");
            add.args(["target", "add", "--toolchain", &toolchain, TARGET]);
            let added = command::run(&mut add, || "rustup cannot get it", "");
            drop(step);
            if added.is_ok() && is_in(sysroot) {
                return Ok(Self::OfToolchain);
            }
        }
        let rustc = which(rustc);
        let package = rust_std::folder(&rustc, TARGET);
        if let Ok(Some(folder)) = package {
            return Ok(Self::In(folder));
        }
        if sysroot.join("lib/rustlib/src/rust/library/std").is_dir() {
            return Ok(Self::FromSource);
        }
        let why = match package {
            Err(failure) => failure.to_string(),
            Ok(_) => format!(
                "the compiler {} is neither rustup's nor a package of this system",
                rustc.display()
            ),
        };
        let what = format!("there is no standard library of Rust for {TARGET}");
        let advice = format!(
            "with rustup: rustup target add {TARGET}; or see that the network reaches the mirrors of apt's sources"
        );
        Err(Failure::environment(what, why, advice))
    }
}

/// Whether a compiler has the library with it.
fn is_in(sysroot: &Path) -> bool {
    let files = sysroot
        .join("lib/rustlib")
        .join(TARGET)
        .join("lib")
        .read_dir();
    let mut files = files.into_iter().flatten().flatten();
    files.any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
}

/// The name of the toolchain, if it is one of rustup's.
fn of_rustup(sysroot: &Path) -> Option<String> {
    let folder = sysroot.parent()?.file_name()?;
    let name = sysroot.file_name()?.to_str()?;
    (folder == "toolchains").then(|| name.to_owned())
}

/// The file of a program that is named without its folder.
fn which(program: &Path) -> PathBuf {
    if program.components().count() > 1 {
        return program.to_owned();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut files = env::split_paths(&path).map(|folder| folder.join(program));
    files
        .find(|file| file.is_file())
        .unwrap_or_else(|| program.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toolchain_of_rustup_is_known_by_its_folder() {
        let name = "1.95.0-x86_64-unknown-linux-gnu";
        let sysroot = Path::new("/root/.rustup/toolchains").join(name);
        assert_eq!(of_rustup(&sysroot).as_deref(), Some(name));
        assert_eq!(of_rustup(Path::new("/usr")), None);
    }

    #[test]
    fn a_library_is_one_that_has_std() {
        let sysroot = tempfile::tempdir().expect("a folder");
        let lib = sysroot.path().join("lib/rustlib").join(TARGET).join("lib");
        std::fs::create_dir_all(&lib).expect("a folder");
        std::fs::write(lib.join("libcore-1.rlib"), "").expect("a file");
        assert!(!is_in(sysroot.path()));
        std::fs::write(lib.join("libstd-1.rlib"), "").expect("a file");
        assert!(is_in(sysroot.path()));
        let found = Library::find(Path::new("/nonexistent/rustc"), sysroot.path());
        assert_eq!(found.ok(), Some(Library::OfToolchain));
    }
}

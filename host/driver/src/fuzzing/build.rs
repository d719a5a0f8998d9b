//! Building for a search, with what the toolchain has.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bulkhead_model::checkout;
use bulkhead_model::failure::Failure;
use bulkhead_runner::progress::Step;

use crate::testing::cargo;

/// Flags for coverage: a counter of 8 bits at each edge of control flow.
const COVERAGE: [&str; 3] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=3",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
];

/// A package with targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Package {
    /// Targets of `core`, in which no unsafe code is allowed: its memory need not be watched.
    Core,
    /// Targets of the host tool, whose libraries have such code: with AddressSanitizer.
    Host,
}

impl Package {
    /// Its name for cargo.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Core => "bulkhead-fuzz",
            Self::Host => "bulkhead-fuzz-host",
        }
    }
}

/// Source of AddressSanitizer's runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sanitizer {
    /// The Rust toolchain has it, as that of rustup does.
    Toolchain,
    /// The C compiler's, as on Debian and Ubuntu: this library has to be loaded first.
    Compiler(PathBuf),
}

/// Programs that search, one for each target of a package.
#[derive(Clone, Debug)]
pub struct Fuzzer {
    folder: PathBuf,
    /// Sanitizer that watches its memory, if there is one.
    pub sanitizer: Option<Sanitizer>,
}

impl Fuzzer {
    /// A call of the program for `target`, with more options for the sanitizer.
    pub fn command(&self, target: &str, sanitizer: &str) -> Command {
        let mut command = Command::new(self.folder.join(format!("fuzz-{target}")));
        // Leaks are looked for with ptrace, which containers forbid; nothing here lives on.
        let options = format!("detect_leaks=0:exitcode=99{sanitizer}");
        command.env("ASAN_OPTIONS", options);
        if let Some(Sanitizer::Compiler(library)) = &self.sanitizer {
            command.env("LD_PRELOAD", library);
        }
        command
    }
}

/// Returns what `program` prints on stdout; `None` if it fails.
fn ask(program: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let output = command
        .args(arguments)
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Looks for AddressSanitizer's runtime.
fn sanitizer(rustc: &Path, target: &str) -> Option<Sanitizer> {
    let sysroot = PathBuf::from(ask(rustc, &["--print", "sysroot"])?);
    let library = sysroot.join("lib/rustlib").join(target).join("lib");
    let own = library
        .read_dir()
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("librustc") && name.ends_with("_rt.asan.a")
        });
    if own {
        return Some(Sanitizer::Toolchain);
    }
    // A compiler that does not have it prints the bare name.
    let path = PathBuf::from(ask(Path::new("cc"), &["-print-file-name=libasan.so"])?);
    path.is_absolute().then_some(Sanitizer::Compiler(path))
}

/// Builds the fuzzer of a package.
///
/// # Errors
/// It cannot be built, or there is no sanitizer.
pub fn build(package: Package) -> Result<Fuzzer, Failure> {
    let step = Step::start(format!("building {}", package.name()));
    let mut command = cargo();
    let program = PathBuf::from(command.get_program());
    let beside = program.with_file_name("rustc");
    let rustc = if program.is_absolute() && beside.is_file() {
        beside
    } else {
        "rustc".into()
    };
    let version = ask(&rustc, &["-vV"]).unwrap_or_default();
    let target = version.lines().find_map(|line| line.strip_prefix("host: "));
    let advice = "run the tool through `./bulkhead`, which chooses the toolchain";
    let target = target.ok_or_else(|| {
        Failure::environment("cannot ask the Rust compiler for its target", "", advice)
    })?;
    let mut flags = COVERAGE.to_vec();
    let sanitizer = match package {
        Package::Core => None,
        Package::Host => Some(sanitizer(&rustc, target).ok_or_else(|| {
            Failure::environment(
                "there is no AddressSanitizer to fuzz with",
                "neither the Rust toolchain nor the C compiler has its runtime",
                "install gcc (its libasan), or Rust by rustup",
            )
        })?),
    };
    if let Some(sanitizer) = &sanitizer {
        flags.push("-Zsanitizer=address");
        if *sanitizer != Sanitizer::Toolchain {
            flags.extend(["-Zexternal-clangrt", "-Clink-arg=-lasan"]);
        }
    }
    command
        .current_dir(checkout::root())
        .args([
            "build",
            "--quiet",
            "--package",
            package.name(),
            "--bins",
            "--profile",
            "fuzz",
        ])
        // With a target of its own, what runs while building is not instrumented.
        .args(["--target", target])
        // Sanitizers are a feature that the compiler calls unstable.
        .env("RUSTC_BOOTSTRAP", "1")
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        Failure::environment("cannot run cargo to build the fuzzer", error, advice)
    })?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Failure::failed("the fuzzer cannot be built", words, ""));
    }
    drop(step);
    let folder = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| checkout::root().join("target"), PathBuf::from);
    let folder = folder.join(target).join("fuzz");
    Ok(Fuzzer { folder, sanitizer })
}

//! Builds what runs on the machine: EL2 and the guest programs, for their own target and profile.
//!
//! Cargo decides what is out of date. Paths of this computer are mapped away, so that a checkout in
//! another folder gives the same bytes.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use bulkhead_abi::plan::{Profile, UartKind};

use bulkhead_model::board::Board;
use bulkhead_model::checkout::{self, CProgram};
use bulkhead_model::failure::Failure;

use crate::built::Built;
use crate::cargo::{self, target_folder};
use crate::command;
use crate::linux_build;
use crate::progress::Step;

/// Target of EL2 and the guests: no operating system, no FP registers.
const TARGET: &str = "aarch64-unknown-none-softfloat";
/// Profile of EL2 and the guests (`Cargo.toml`).
const PROFILE: &str = "machine";
/// Package and program of EL2.
const PACKAGE: &str = "bulkhead-el2";
const EL2: &str = "bulkhead-el2";

/// Configuration that EL2 is built for: each is other code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// Version of the GIC.
    pub gic: u32,
    /// The UART that carries the consoles.
    pub uart: UartKind,
    /// CPUs wait for an address, instead of being started by firmware.
    pub waits: bool,
    /// What it carries.
    pub profile: Profile,
}

impl Build {
    /// For QEMU's `virt` with this version of the GIC.
    pub const fn virt(gic: u32) -> Self {
        Self {
            gic,
            uart: UartKind::Pl011,
            waits: false,
            profile: Profile::Shared,
        }
    }

    /// For a board, with a profile.
    pub fn of(board: &Board, profile: Profile) -> Self {
        let waits = board.cpus.iter().any(|cpu| cpu.release != 0);
        let board = &board.parts;
        let kinds = UartKind::ALL.into_iter();
        let uart = { kinds }.find(|kind| *kind as u32 == board.uart_kind);
        Self {
            gic: board.gic_version,
            uart: uart.unwrap_or(UartKind::Pl011),
            waits,
            profile,
        }
    }

    /// Features of its package (`el2/Cargo.toml`).
    pub fn features(self) -> Vec<&'static str> {
        let gic = (self.gic == 2).then_some("gicv2");
        let uart = match self.uart {
            UartKind::Pl011 => None,
            UartKind::Cadence => Some("uart-cadence"),
            UartKind::Imx => Some("uart-imx"),
            UartKind::Meson => Some("uart-meson"),
            UartKind::Ns16550 => Some("uart-8250"),
            UartKind::Ns16550Spread => Some("uart-8250-spread"),
            UartKind::Ns16550Words => Some("uart-8250-words"),
        };
        let waits = self.waits.then_some("spin-table");
        let profile = (self.profile != Profile::Shared).then_some(self.profile.name());
        let board = gic.into_iter().chain(uart).chain(waits);
        board.chain(profile).collect()
    }

    /// Returns the path of the program of this build, of those that were built in the target folder `target`.
    fn place(self, target: &Path) -> PathBuf {
        let features = self.features();
        let name = match features.as_slice() {
            [] => "usual".to_owned(),
            some => some.join("-"),
        };
        target.join("programs").join(name).join(EL2)
    }

    /// Builds it by `command`, a call of cargo that lacks nothing but what to build; `run` runs that. Returns the path of the program.
    ///
    /// All builds have one target folder, in which what they share is compiled once, and cargo keeps what differs apart but
    /// for the program, of which it keeps the last: that is copied to [a place of its own](Self::place). Who builds waits
    /// for who does so until then.
    fn build<T>(
        self,
        target: &Path,
        mut command: Command,
        run: impl FnOnce(Command) -> Result<T, Failure>,
    ) -> Result<PathBuf, Failure> {
        command
            .args(["--package", PACKAGE, "--target-dir"])
            .arg(target);
        let features = self.features();
        if !features.is_empty() {
            command.args(["--features", &features.join(",")]);
        }
        let cannot = |why| {
            let what = format!("cannot keep EL2's program in {}", target.display());
            Failure::environment(what, why, "")
        };
        let place = self.place(target);
        let folder = place.parent().unwrap_or(target);
        fs::create_dir_all(folder).map_err(cannot)?;
        let turn = File::create(target.join("programs/turn")).map_err(cannot)?;
        turn.lock().map_err(cannot)?;
        run(command)?;
        let made = target.join(TARGET).join(PROFILE).join(EL2);
        let bytes = fs::read(&made).map_err(|why| {
            Failure::failed(
                format!("the package {PACKAGE} gives no program"),
                why,
                "see el2/Cargo.toml",
            )
        })?;
        // What reads the one from before has it whole.
        if fs::read(&place).ok().as_ref() != Some(&bytes) {
            let mut unfinished = tempfile::NamedTempFile::new_in(folder).map_err(cannot)?;
            unfinished.write_all(&bytes).map_err(cannot)?;
            unfinished.persist(&place).map_err(|e| cannot(e.error))?;
        }
        Ok(place)
    }

    /// Returns a title for people.
    fn title(self) -> String {
        match self.features().as_slice() {
            [] => "EL2".to_owned(),
            features => format!("EL2 with {}", features.join(" and ")),
        }
    }
}

/// Returns the path at which an earlier build has left a guest program.
pub fn built_guest(name: &str) -> PathBuf {
    if checkout::c_program(name).is_some() {
        return target_folder().join("c").join(name);
    }
    if checkout::linux_package(name).is_some() {
        return linux_build::built(name);
    }
    target_folder().join(TARGET).join(PROFILE).join(name)
}

/// Returns the path at which an earlier build has left EL2.
pub fn built_el2(build: Build) -> PathBuf {
    build.place(&el2_target())
}

/// Target folder of EL2. Guests have another one, so that both are built at a time.
fn el2_target() -> PathBuf {
    target_folder().join("el2")
}

/// EL2 by its builds, and guests by name.
static EL2S: Built = Built::new();
static GUESTS: Built = Built::new();

/// Builds EL2; gives the path of its ELF file.
pub fn el2(what: Build) -> Result<PathBuf, Failure> {
    EL2S.get(&what.features().join(","), || {
        let mut command = cargo(&checkout::root(), &NEAR)?;
        command.args(["build", "--target", TARGET, "--profile", PROFILE]);
        what.build(&el2_target(), command, |command| {
            cargo::build(&what.title(), command)
        })
    })
}

/// Builds EL2 from a copy of the checkout, into a target folder of its own and without a word; gives the path of its ELF file.
///
/// # Errors
/// It does not compile, with the compiler's words, or cargo cannot be run.
pub fn el2_of(root: &Path, target: &Path, what: Build) -> Result<PathBuf, Failure> {
    let mut command = cargo(root, &NEAR)?;
    command.args(["build", "--quiet", "--locked"]);
    command.args(["--target", TARGET, "--profile", PROFILE]);
    what.build(target, command, |mut command| {
        let cannot = || format!("{} cannot be built", what.title());
        command::run(&mut command, cannot, "")
    })
}

/// Builds the many small guest programs at a time, each of which keeps one CPU busy.
///
/// # Errors
/// One of them does not compile, or cargo cannot be run.
pub fn small_guests() -> Result<usize, Failure> {
    let package = checkout::SMALL_GUESTS;
    let programs = build("the small guests", &["--package", package, "--bins"])?;
    for (name, path) in &programs {
        GUESTS.get(name, || Ok(path.clone()))?;
    }
    Ok(programs.len())
}

/// Builds one guest program, that which a description calls `guest:NAME`.
pub fn guest(name: &str) -> Result<PathBuf, Failure> {
    GUESTS.get(name, || build_guest(name))
}

fn build_guest(name: &str) -> Result<PathBuf, Failure> {
    if let Some(program) = checkout::c_program(name) {
        return c_program(name, &program);
    }
    if let Some(package) = checkout::linux_package(name) {
        return linux_build::program(name, &package);
    }
    let Some(package) = checkout::guest_package(name) else {
        let advice = format!("the guests are {}", checkout::guest_names().join(", "));
        return Err(Failure::input(
            format!("there is no guest program `{name}`"),
            "",
            advice,
        ));
    };
    let mut programs = build(
        &format!("the guest {name}"),
        &["--package", &package, "--bin", name],
    )?;
    programs.remove(name).ok_or_else(|| {
        Failure::failed(
            format!("the package {package} gave no program `{name}`"),
            "",
            "",
        )
    })
}

/// The C compiler for guests and their programs, Debian's `gcc-aarch64-linux-gnu`.
const CC: &str = "aarch64-linux-gnu-gcc";
const C_FLAGS: [&str; 6] = [
    "-std=gnu11",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-static",
];
/// Flags of a guest: no library, and no FP registers, which are off until somebody switches them on.
const C_GUEST_FLAGS: [&str; 7] = [
    "-ffreestanding",
    "-mgeneral-regs-only",
    "-nostdlib",
    "-no-pie",
    "-fno-pic",
    "-Wl,--build-id=none",
    "-Wl,--no-warn-rwx-segments",
];

/// Builds a program in C, with nothing that it needs at run time but its VM, or a kernel; gives its path.
fn c_program(name: &str, program: &CProgram) -> Result<PathBuf, Failure> {
    let path = built_guest(name);
    let folder = path.parent().unwrap_or(&path);
    fs::create_dir_all(folder).map_err(|e| {
        Failure::environment(
            format!("cannot make the folder {}", folder.display()),
            e,
            "",
        )
    })?;
    let step = Step::start(format!("building {name}"));
    // Two may build it at once: each writes a file of its own.
    let cannot = |e| Failure::environment(format!("cannot write {}", path.display()), e, "");
    let unfinished = tempfile::NamedTempFile::new_in(folder).map_err(cannot)?;
    let include = checkout::root().join("channel/include");
    let mut command = Command::new(CC);
    command.args(C_FLAGS).arg("-I").arg(include);
    match program {
        CProgram::Linux(source) => command.arg(source),
        CProgram::Guest(sources, script) => command
            .args(C_GUEST_FLAGS)
            .arg("-T")
            .arg(script)
            .args(sources),
    };
    command.arg("-o").arg(unfinished.path());
    let advice = "the C compiler for Arm64 is in Debian's and Ubuntu's package gcc-aarch64-linux-gnu, with libc6-dev-arm64-cross";
    command::run(&mut command, || format!("{name} cannot be built"), advice)?;
    drop(step);
    unfinished.persist(&path).map_err(|e| cannot(e.error))?;
    Ok(path)
}

/// Runs cargo on some packages for the machine; gives the programs that it made, or found to be up to date.
fn build(what: &str, selection: &[&str]) -> Result<BTreeMap<String, PathBuf>, Failure> {
    let mut command = cargo(&checkout::root(), &[])?;
    command.arg("build").args(selection);
    command.args(["--target", TARGET, "--profile", PROFILE]);
    cargo::build(what, command)
}

/// All of EL2 lies within 1 MiB, so that an address is one instruction (`docs/adr/0022-profiles.md`). Guests may be larger: that of the demo's
/// control loop has a stack beyond it.
const NEAR: [&str; 1] = ["-Ccode-model=tiny"];

/// Cargo of the toolchain that `./bulkhead` chose (`BULKHEAD_CARGO`, `BULKHEAD_BUILD_STD`), with the
/// settings of the machine, for the checkout at `root`.
fn cargo(root: &Path, of_el2: &[&str]) -> Result<Command, Failure> {
    let (mut command, rustc) = cargo::command(root);
    if env::var_os("BULKHEAD_BUILD_STD").is_some_and(|value| value == "1") {
        command.env("RUSTC_BOOTSTRAP", "1").args([
            "-Zbuild-std=core,compiler_builtins",
            "-Zbuild-std-features=compiler-builtins-mem",
        ]);
    }
    let sysroot = cargo::sysroot(&rustc)?;
    if !brings_linker(&sysroot) {
        // Debian's compiler comes without one; this is its package `lld`.
        let linker = format!("target.{TARGET}.linker=\"ld.lld\"");
        command.arg("--config").arg(linker);
    }
    let mut flags = cargo::remaps(root, &sysroot);
    // Cortex-A53 835769: a multiply-accumulate of 64 bits right behind an access to memory. The compiler
    // knows the feature but does not list it, and warns of that for each crate; warnings of the code
    // are errors of the lints.
    let workaround = "-Ctarget-feature=+fix-cortex-a53-835769";
    // What is to be inlined for speed says so (`inline(always)`); what the compiler inlines besides is
    // to make the image smaller (docs/adr/0022-profiles.md).
    let inlining = "-Cllvm-args=-inline-threshold=25";
    for flag in [workaround, inlining, "-Awarnings"] {
        flags.push(toml::Value::from(flag));
    }
    flags.extend(of_el2.iter().copied().map(toml::Value::from));
    let flags = toml::Value::Array(flags);
    command
        .arg("--config")
        .arg(format!("target.{TARGET}.rustflags={flags}"));
    Ok(command)
}

/// The compiler that builds EL2 and the guests, as it calls itself, and how it does it.
///
/// # Errors
///
/// There is none, or it has neither the target's library nor the source to build it.
pub fn toolchain() -> Result<String, Failure> {
    let command = cargo(&checkout::root(), &[])?;
    let rustc = command
        .get_envs()
        .find(|(name, _)| *name == "RUSTC")
        .and_then(|(_, value)| value)
        .map_or_else(|| PathBuf::from("rustc"), PathBuf::from);
    let advice = "run the tool through `./bulkhead`, which chooses the toolchain";
    let said = command::run(
        Command::new(&rustc).arg("--version"),
        || "cannot ask the Rust compiler for its version",
        advice,
    )?;
    let library = cargo::sysroot(&rustc)?.join("lib/rustlib");
    let said = said.trim_end();
    if library.join(TARGET).join("lib").is_dir() {
        return Ok(format!("{said}, with the target"));
    }
    if library.join("src/rust/library/core").is_dir() {
        return Ok(format!("{said}, builds core from its source"));
    }
    let what = format!("{said} has neither {TARGET} nor the source to build it");
    Err(Failure::environment(what, "", advice))
}

/// Whether a toolchain has the linker that the target names.
fn brings_linker(sysroot: &Path) -> bool {
    let targets = sysroot.join("lib/rustlib").read_dir();
    let mut targets = targets.into_iter().flatten().flatten();
    targets.any(|target| target.path().join("bin/rust-lld").is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_board_has_a_build_of_its_own() {
        let builds = [2, 3].into_iter().flat_map(|gic| {
            let builds = UartKind::ALL.into_iter();
            builds
                .flat_map(move |uart| [false, true].map(|waits| (uart, waits)))
                .flat_map(move |(uart, waits)| {
                    Profile::ALL.map(|profile| Build {
                        gic,
                        uart,
                        waits,
                        profile,
                    })
                })
        });
        let mut places = Vec::new();
        for build in builds {
            let place = built_el2(build);
            assert!(!places.contains(&place), "{build:?}");
            places.push(place);
        }
    }

    #[test]
    fn an_unknown_guest_is_refused_before_anything_is_built() {
        let failure = guest("no-such-guest").expect_err("there is none");
        assert_eq!(failure.what, "there is no guest program `no-such-guest`");
    }
}

//! Tests of the code itself: unit tests, lints, format, and the link-time gates of the image.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use bulkhead_abi::plan::UartKind;

use bulkhead_runner::cross_build::{self, Build};

use super::suite::{Context, Job, Test};

/// Builds of EL2, each judged by the gates and the lints: those of boards in `boards/`.
const BUILDS: [(&str, Build); 5] = [
    ("code/gates", Build::virt(3)),
    ("code/gates-gicv2", Build::virt(2)),
    (
        "code/gates-cadence",
        Build {
            gic: 2,
            uart: UartKind::Cadence,
            waits: false,
        },
    ),
    (
        "code/gates-imx",
        Build {
            gic: 3,
            uart: UartKind::Imx,
            waits: false,
        },
    ),
    (
        "code/gates-spin-table",
        Build {
            gic: 2,
            uart: UartKind::Pl011,
            waits: true,
        },
    ),
];

/// Crates whose logic runs on the host, and what their tests prove.
const CRATES: [(&str, &str); 18] = [
    (
        "bulkhead-abi",
        "What crosses a boundary has the layout and the names that both sides count on.",
    ),
    (
        "bulkhead-core",
        "The logic that EL2 decides with does what the architecture says.",
    ),
    (
        "bulkhead-random",
        "What random numbers come from is the cipher of the literature.",
    ),
    (
        "bulkhead-model",
        "Descriptions and boards are read for what they say, and what is wrong has the right words.",
    ),
    (
        "bulkhead-planner",
        "A plan gives each VM what it asks for, and its device tree says so.",
    ),
    (
        "bulkhead-runner",
        "Packages, builds and consoles are understood, and what is temporary goes with the tool.",
    ),
    (
        "bulkhead",
        "The host tool refuses what is wrong with the right words, and builds what is right.",
    ),
    (
        "bulkhead-driver",
        "What judges tests, figures and the book finds what is planted; the rules of the house hold.",
    ),
    (
        "bulkhead-gates",
        "The gates find a panic, a deep stack and an indirect call in an image that has one.",
    ),
    (
        "bulkhead-poll",
        "A guest that looks for wishes once per period takes each once, whatever stands there.",
    ),
    (
        "bulkhead-interleave",
        "What pCPUs share holds under every interleaving and every order that the memory model allows.",
    ),
    (
        "bulkhead-gic-check",
        "The vGIC gives the answers of the model of the GIC, over random sequences on several vCPUs.",
    ),
    (
        "bulkhead-gic-model",
        "The model of the GIC that the vGIC is judged by does what the architecture says.",
    ),
    (
        "bulkhead-fuzz",
        "The fuzzer tries the same inputs every time, makes what it finds small, and has good seeds.",
    ),
    (
        "bulkhead-fuzz-host",
        "The fuzzer has good seeds for what the host tool reads.",
    ),
    (
        "bulkhead-plugin",
        "Plugins read their configuration and find the function of an address.",
    ),
    (
        "bulkhead-sanitizer",
        "The sanitizer finds a planted defect of each kind, and nothing in a program without it.",
    ),
    (
        "bulkhead-profiler",
        "The profiler charges instructions to the exit that caused them.",
    ),
];

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    if available("fmt") {
        let claim = "The code is formatted as rustfmt does it.";
        tests.push(Test::build(
            "code/format",
            claim,
            Box::new(|c| quiet(c, &["fmt", "--check"])),
        ));
    }
    if available("clippy") {
        let claim = "No lint of the workspace is broken: no undocumented unsafe code, no warning.";
        let job: Job = Box::new(|c| quiet(c, &["clippy", "--quiet", "--all-targets"]));
        tests.push(Test::build("code/lints", claim, job));
        // A toolchain that builds `core` itself has no `core` to check against.
        if std::env::var_os("BULKHEAD_BUILD_STD")
            .is_none_or(|value| value.is_empty() || value == "0")
        {
            let claim = "No lint is broken in what runs at EL2 and EL1: each unsafe block does one thing and \
                         says why it may.";
            let target = ["--target", "aarch64-unknown-none-softfloat"];
            let crates = [
                "bulkhead-el2",
                "bulkhead-guests",
                "bulkhead-guest-embassy",
                "bulkhead-guest-for-versal",
                "bulkhead-guest-for-virt",
                "bulkhead-guest-init",
            ];
            let crates = crates.map(|name| ["-p", name]).concat();
            let arguments = [&["clippy", "--quiet"], &target[..], &crates[..]].concat();
            // EL2 for another GIC, and for another UART, is other code.
            let job: Job = Box::new(move |context| {
                let mut done = quiet(context, &arguments)?;
                for (_, build) in BUILDS {
                    let features = build.features().join(",");
                    if !features.is_empty() {
                        let el2 = ["clippy", "--quiet", "-p", "bulkhead-el2", "--features"];
                        let arguments = [&el2[..], &[&features], &target[..]].concat();
                        done = quiet(context, &arguments)?;
                    }
                }
                Ok(done)
            });
            tests.push(Test::build("code/lints-machine", claim, job));
        }
    }
    for (name, claim) in CRATES {
        let job: Job = Box::new(move |context| unit_tests(context, name));
        tests.push(Test::build(format!("code/{name}"), claim, job));
    }
    let claim = "No panic, indirect call, recursion or allocator is reachable at EL2, and its stack \
                 is bounded: judged on the linked image.";
    for (name, build) in BUILDS {
        let job: Job = Box::new(move |_| gates(build));
        tests.push(Test::build(name, claim, job));
    }
    tests
}

/// Cargo of the toolchain that `./bulkhead` chose, for programs of the host.
pub fn cargo() -> Command {
    let program = std::env::var_os("BULKHEAD_CARGO").map_or_else(|| "cargo".into(), PathBuf::from);
    let mut command = Command::new(&program);
    // The compiler and the formatter of the same toolchain, not the first on the path.
    let folder = program.parent().filter(|_| program.is_absolute());
    if let (Some(folder), Some(path)) = (folder, std::env::var_os("PATH")) {
        let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
        if let Ok(path) = std::env::join_paths(folders) {
            command.env("PATH", path);
        }
    }
    command
}

/// Whether the toolchain has a component that distributions package apart.
fn available(component: &str) -> bool {
    let mut command = cargo();
    command
        .args([component, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs cargo; gives all that it printed.
fn output(context: &Context, arguments: &[&str]) -> Result<String, Vec<String>> {
    let shown = format!("cargo {}", arguments.join(" "));
    let mut command = cargo();
    command
        .args(arguments)
        .current_dir(&context.root)
        .stdin(Stdio::null());
    command.env("CARGO_TERM_COLOR", "never");
    let output = command
        .output()
        .map_err(|error| vec![format!("cannot run `{shown}`: {error}")])?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        return Ok(text);
    }
    let mut wrong = vec![format!("`{shown}` ended with {}", output.status)];
    wrong.extend(interesting(&text));
    Err(wrong)
}

/// The lines of cargo's output that tell what is wrong; its end if none does.
fn interesting(text: &str) -> Vec<String> {
    const MOST: usize = 60;
    let lines: Vec<_> = text.lines().collect();
    let telling = |line: &&str| {
        line.starts_with("error") || line.starts_with("Diff in") || line.starts_with("---- ")
    };
    let first = lines
        .iter()
        .position(telling)
        .unwrap_or(lines.len().saturating_sub(MOST));
    lines[first..]
        .iter()
        .take(MOST)
        .map(|line| (*line).to_owned())
        .collect()
}

fn quiet(context: &Context, arguments: &[&str]) -> Result<String, Vec<String>> {
    output(context, arguments).map(|_| String::new())
}

fn unit_tests(context: &Context, name: &str) -> Result<String, Vec<String>> {
    let text = output(context, &["test", "--package", name])?;
    match passed(&text) {
        0 => Err(vec![format!("package {name} has no test")]),
        passed => Ok(format!("{passed} tests")),
    }
}

/// How many tests passed, from the lines `test result: ok. N passed; ...`.
fn passed(text: &str) -> u32 {
    let results = text
        .lines()
        .filter_map(|line| line.strip_prefix("test result: ok. "));
    results
        .filter_map(|rest| rest.split(' ').next()?.parse::<u32>().ok())
        .sum()
}

/// Judges a build of EL2.
fn gates(build: Build) -> Result<String, Vec<String>> {
    let elf = cross_build::el2(build).map_err(|failure| vec![failure.to_string()])?;
    let bytes = std::fs::read(&elf).map_err(|e| vec![format!("{}: {e}", elf.display())])?;
    let report = bulkhead_gates::judge(&bytes, &bulkhead_gates::Limits::default())
        .map_err(|error| vec![format!("the image cannot be judged: {error}")])?;
    if report.findings.is_empty() {
        return Ok(report
            .to_string()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned());
    }
    Err(report.findings.iter().map(ToString::to_string).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_binaries_are_added() {
        let text = "test result: ok. 30 passed; 0 failed\n\ntest result: ok. 2 passed; 0 failed\n";
        assert_eq!(passed(text), 32);
        assert_eq!(passed("running 0 tests\n"), 0);
    }

    #[test]
    fn an_excerpt_starts_at_the_first_error() {
        let text = "   Compiling x\nerror[E0308]: mismatched types\n --> a.rs:1:2\n";
        assert_eq!(interesting(text)[0], "error[E0308]: mismatched types");
        assert_eq!(interesting("a\nb\n"), ["a", "b"]);
    }
}

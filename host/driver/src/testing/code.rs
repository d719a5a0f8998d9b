//! Tests of the code itself: unit tests, lints, format, and the link-time gates of the image.

use std::process::Stdio;
use std::sync::{Arc, OnceLock};

use bulkhead_abi::plan::{PAGE, Profile, UartKind};
use bulkhead_gates::Finding;

use bulkhead_model::failure::Failure;
use bulkhead_planner::image::El2;
use bulkhead_runner::cross_build::{self, Build};

use super::cargo::{cargo, interesting};
use super::suite::{Context, Job, Test};
use super::test_programs::{TestPrograms, build_test_programs};

/// The programs of all unit tests of this run, built once, or why there are none.
type Shared = Arc<OnceLock<Result<TestPrograms, Vec<String>>>>;

/// Builds of EL2, each judged by the gates and the lints: those of boards in `boards/`, and one for each kind of UART.
const BUILDS: [(&str, Build); 15] = [
    ("code/gates", Build::virt(3)),
    ("code/gates-gicv2", Build::virt(2)),
    ("code/gates-static", of_profile(3, Profile::Static)),
    ("code/gates-static-gicv2", of_profile(2, Profile::Static)),
    ("code/gates-io", of_profile(3, Profile::Io)),
    ("code/gates-io-gicv2", of_profile(2, Profile::Io)),
    ("code/gates-managed", of_profile(3, Profile::Managed)),
    ("code/gates-managed-gicv2", of_profile(2, Profile::Managed)),
    (
        "code/gates-cadence",
        Build {
            gic: 2,
            uart: UartKind::Cadence,
            waits: false,
            profile: Profile::Shared,
        },
    ),
    (
        "code/gates-imx",
        Build {
            gic: 3,
            uart: UartKind::Imx,
            waits: false,
            profile: Profile::Shared,
        },
    ),
    ("code/gates-meson", of_uart(2, UartKind::Meson)),
    ("code/gates-8250", of_uart(2, UartKind::Ns16550)),
    (
        "code/gates-8250-spread",
        of_uart(2, UartKind::Ns16550Spread),
    ),
    ("code/gates-8250-words", of_uart(3, UartKind::Ns16550Words)),
    (
        "code/gates-spin-table",
        Build {
            gic: 2,
            uart: UartKind::Pl011,
            waits: true,
            profile: Profile::Shared,
        },
    ),
];

/// UARTs for which EL2 differs little from another build, so that the gates judge these on request. Lints judge them all.
const ALIKE: [UartKind; 3] = [
    UartKind::Meson,
    UartKind::Ns16550Spread,
    UartKind::Ns16550Words,
];

/// The builds of EL2 that a usual run of the tests needs.
pub(super) fn usual_el2s() -> impl Iterator<Item = Build> {
    let all = BUILDS.into_iter().map(|(_, build)| build);
    all.filter(|build| !ALIKE.contains(&build.uart))
}

/// A build for QEMU's `virt` with a profile.
const fn of_profile(gic: u32, profile: Profile) -> Build {
    let build = Build::virt(gic);
    Build { profile, ..build }
}

/// A build for a board with another UART.
const fn of_uart(gic: u32, uart: UartKind) -> Build {
    let build = Build::virt(gic);
    Build { uart, ..build }
}

/// Crates whose logic runs on the host, and what their tests prove.
const CRATES: [(&str, &str); 28] = [
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
        "bulkhead-channel",
        "A channel is a queue each way, whoever starts again and whatever the other end writes, in Rust and in C alike.",
    ),
    (
        "bulkhead-channel-linux",
        "A program on Linux finds its end of a channel, and sleeps and rings as the other end's way asks for.",
    ),
    (
        "bulkhead-service",
        "The switch and the disks serve each frame and each request once, whatever comes and whoever starts again.",
    ),
    (
        "bulkhead-control",
        "A manager on Linux gets its own answers and all events, whatever else comes through the port and however.",
    ),
    (
        "bulkheadctl",
        "The command line orders what it says, shows what EL2 tells, and fails with the right words.",
    ),
    (
        "bulkheadd",
        "The daemon gives each client its own answers and all the events, whoever dies, and finds its port again.",
    ),
    (
        "bulkhead-policy",
        "Weights, caps, budgets and pools follow a load within their bounds and go to and fro for none, whatever EL2 answers; a file with mistakes says where and what to do.",
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
        "bulkhead-pacer",
        "The pacer finds the marks in a line, and knows a thread with nothing to do.",
    ),
    (
        "bulkhead-sanitizer",
        "The sanitizer finds a planted defect of each kind, and nothing in a program without it.",
    ),
    (
        "bulkhead-caches",
        "The model of caches counts what arithmetic says, over traces whose result is known.",
    ),
    (
        "bulkhead-tables",
        "Tables written by hand are walked as the hardware does, and parts of the image have their permissions.",
    ),
    (
        "bulkhead-profiler",
        "The profiler charges instructions to the exit that caused them.",
    ),
];

/// The crates whose documentation has examples that run.
const EXAMPLES: [&str; 2] = ["bulkhead-channel", "bulkhead-poll"];

/// The test that only builds: the others run what it has built.
const BUILT: (&str, &str) = (
    "code/build",
    "The unit tests of all crates compile, each crate once.",
);

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
                "bulkhead-guest-tcp",
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
            // One crate after the other, which keeps one CPU busy.
            tests.push(Test::parallel("code/lints-machine", claim, job).long());
        }
    }
    let shared = Shared::default();
    let (name, claim) = BUILT;
    let programs = Arc::clone(&shared);
    let job: Job = Box::new(move |context| {
        let count = built(context, &programs)?.count();
        Ok(format!("{count} programs"))
    });
    tests.push(Test::build(name, claim, job));
    for (name, claim) in CRATES {
        let shared = Arc::clone(&shared);
        let job: Job = Box::new(move |context| unit_tests(context, &shared, name));
        tests.push(Test::parallel(format!("code/{name}"), claim, job));
    }
    let claim = "No panic, indirect call, recursion or allocator is reachable at EL2, and its stack \
                 is bounded, while it starts as well: judged on the linked image.";
    for (name, build) in BUILDS {
        let job: Job = Box::new(move |_| gates(build));
        // EL2 is one unit of compilation, which keeps one CPU busy.
        let test = Test::parallel(name, claim, job);
        let is_another = ALIKE.contains(&build.uart);
        tests.push(if is_another {
            test.on_request("its UART's driver is that of another build with other distances, or a page of code")
        } else {
            test
        });
    }
    tests
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

/// Runs cargo; returns all that it printed.
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

fn quiet(context: &Context, arguments: &[&str]) -> Result<String, Vec<String>> {
    output(context, arguments).map(|_| String::new())
}

/// Returns the programs, which the first test that asks builds.
fn built<'a>(context: &Context, shared: &'a Shared) -> Result<&'a TestPrograms, Vec<String>> {
    let all = CRATES.map(|(name, _)| name);
    let chosen = chosen(&all, &context.chosen);
    let programs = shared.get_or_init(|| build_test_programs(&context.root, &chosen));
    programs.as_ref().map_err(Clone::clone)
}

/// The packages whose tests are among those that were chosen; all, if only the building of them was.
fn chosen<'a>(packages: &[&'a str], tests: &[String]) -> Vec<&'a str> {
    let mut some = packages.to_vec();
    some.retain(|package| tests.contains(&format!("code/{package}")));
    if some.is_empty() {
        packages.to_vec()
    } else {
        some
    }
}

fn unit_tests(context: &Context, shared: &Shared, name: &str) -> Result<String, Vec<String>> {
    let mut text = built(context, shared)?.run(name)?;
    if EXAMPLES.contains(&name) {
        text += &output(context, &["test", "--doc", "--package", name])?;
    }
    match passed(&text) {
        0 => Err(vec![format!("package {name} has no test")]),
        passed => Ok(format!("{passed} tests")),
    }
}

/// Returns the number of tests that passed, from the lines `test result: ok. N passed; ...`.
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
    // Threads of vCPUs and service threads start at the one, idle threads stay in the other, and no vector leads to these.
    let threads = ["vcpu_main", "bulkhead_el2::idle::wait"];
    let limits = bulkhead_gates::Limits {
        entries: threads.map(str::to_owned).to_vec(),
        absent: absent(build.profile).map(str::to_owned).collect(),
        ..bulkhead_gates::Limits::default()
    };
    let report = bulkhead_gates::judge(&bytes, &limits)
        .map_err(|error| vec![format!("the image cannot be judged: {error}")])?;
    let mut wrong: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    wrong.extend(start_up(&bytes)?);
    wrong.extend(unexpected_size(
        build,
        El2::read(&elf).map(|el2| el2.size()),
    ));
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let said = report.to_string();
    Ok(said.lines().next().unwrap_or_default().to_owned())
}

/// Parts of names of functions that a profile has to do without, as the first one that has them is another one (ADR 22).
fn absent(profile: Profile) -> impl Iterator<Item = &'static str> {
    let parts = [
        (Profile::Shared, "monitor::"),
        (Profile::Shared, "sched::balance"),
        (Profile::Io, "virtio::"),
        (Profile::Io, "bulkhead_el2::service"),
        (Profile::Managed, "control::"),
        (Profile::Managed, "bulkhead_el2::stops"),
    ];
    let later = parts.into_iter();
    let later = later.filter(move |(first, _)| profile < *first);
    later.map(|(_, part)| part)
}

/// Whether EL2 has left the size that a description is planned with before it is built.
fn unexpected_size(build: Build, size: Result<u64, Failure>) -> Option<String> {
    let expected = bulkhead_planner::expected_size(build.profile);
    match size {
        Ok(size) if (size..=size + 32 * 1024).contains(&expected) => None,
        Ok(size) => Some(format!(
            "EL2 takes {size} bytes in memory, and descriptions are planned with {expected} before it is built (`expected_size` of the planner): no less, and not 32 KiB more"
        )),
        Err(failure) => Some(failure.to_string()),
    }
}

/// Functions that start with an empty stack before any guest runs, and how much of it they may use: on the boot stack of 16 KiB, of which
/// `forget_stack` needs one below its caller, on the stack of a pCPU, on which it waits afterwards, and on that of a vCPU.
const START_UP: [(&str, u64); 3] = [
    ("primary", 15 << 10),
    ("pcpu_main", 2 * PAGE),
    ("vcpu_main", 2 * PAGE),
];

/// What start-up does wrong with its stacks, and what stays of EL2 with code that only starts it. Start-up may panic: nobody but the plan and the
/// board has a say in it.
fn start_up(elf: &[u8]) -> Result<Vec<String>, Vec<String>> {
    let mut wrong = Vec::new();
    for (entry, stack) in START_UP {
        let mut limits = bulkhead_gates::Limits {
            entries: vec![entry.to_owned()],
            stack,
            unmapped: Some(bulkhead_gates::Unmapped {
                start: "__el2_start".to_owned(),
                end: "__start_end".to_owned(),
                // It starts its pCPU before it says so.
                callers: vec!["el2_pcpu".to_owned()],
            }),
            ..bulkhead_gates::Limits::default()
        };
        // It leaves one stack for the other.
        limits.stack_setters.push("enter_private_map".to_owned());
        let report = bulkhead_gates::judge(elf, &limits)
            .map_err(|error| vec![format!("{entry} cannot be judged: {error}")])?;
        let counts = |finding: &&Finding| {
            !matches!(finding, Finding::Panic { .. } | Finding::Allocator { .. })
        };
        let findings = report.findings.iter().filter(counts);
        wrong.extend(findings.map(|finding| format!("{entry}: {finding}")));
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn only_what_was_chosen_is_built() {
        let tests = ["code/a", "code/bc"].map(str::to_owned);
        assert_eq!(chosen(&["a", "b", "bc"], &tests), ["a", "bc"]);
        assert_eq!(chosen(&["a", "b"], &["code/build".to_owned()]), ["a", "b"]);
    }

    /// Name and Rust files of each package of the workspace whose tests cargo runs on the host.
    fn packages() -> Vec<(String, Vec<String>)> {
        let root = bulkhead_model::checkout::root();
        let read = |path: &Path| -> toml::Table {
            let text = std::fs::read_to_string(path).expect("a manifest");
            text.parse().expect("TOML")
        };
        let workspace = read(&root.join("Cargo.toml"));
        let members = |key: &str| -> Vec<PathBuf> {
            let members = workspace["workspace"][key].as_array().expect("a list");
            let members = members.iter().filter_map(toml::Value::as_str);
            members.map(|member| root.join(member)).collect()
        };
        let all = members("members");
        let mut packages = Vec::new();
        for member in members("default-members") {
            let manifest = read(&member.join("Cargo.toml"));
            let name = manifest["package"]["name"].as_str().expect("a name");
            let (mut folders, mut texts) = (vec![member], Vec::new());
            while let Some(folder) = folders.pop() {
                for entry in folder.read_dir().expect("a folder").flatten() {
                    let path = entry.path();
                    if path.is_dir() && !all.contains(&path) {
                        folders.push(path);
                    } else if path.extension().is_some_and(|ending| ending == "rs") {
                        texts.push(std::fs::read_to_string(&path).expect("a text"));
                    }
                }
            }
            packages.push((name.to_owned(), texts));
        }
        packages
    }

    /// A crate that is not named here would have tests that nobody runs.
    #[test]
    fn tests_of_all_crates_run() {
        let has_tests = |text: &String| text.lines().any(|line| line.trim() == "#[test]");
        let having = packages().into_iter();
        let having = having.filter(|(_, texts)| texts.iter().any(has_tests));
        let mut having: Vec<_> = having.map(|(name, _)| name).collect();
        having.sort();
        let mut named = CRATES.map(|(name, _)| name.to_owned());
        named.sort();
        assert_eq!(having, named);
    }

    /// A test of one crate's examples would be left out if another crate had some.
    #[test]
    fn examples_of_all_crates_run() {
        let runs = |text: &String| {
            let blocks = text.lines().filter_map(|line| {
                let line = line.trim_start();
                line.strip_prefix("//! ```")
                    .or(line.strip_prefix("/// ```"))
            });
            blocks.step_by(2).any(|kind| matches!(kind, "" | "rust"))
        };
        let text = |text: &str| format!("//! ```{text}\n//! x\n//! ```");
        assert!(runs(&text("")) && !runs(&text("text")));
        let having = packages().into_iter();
        let having = having.filter(|(_, texts)| texts.iter().any(runs));
        let mut having: Vec<_> = having.map(|(name, _)| name).collect();
        having.sort();
        assert_eq!(having, EXAMPLES);
    }

    #[test]
    fn results_of_all_binaries_are_added() {
        let text = "test result: ok. 30 passed; 0 failed\n\ntest result: ok. 2 passed; 0 failed\n";
        assert_eq!(passed(text), 32);
        assert_eq!(passed("running 0 tests\n"), 0);
    }
}

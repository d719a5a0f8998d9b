//! Unit tests as programs: built by one call of cargo, then run by package.
//!
//! A call of cargo for each package would build what they share again and again: which features a crate is built with
//! depends on all packages of the call, and with other features of `rustix` everything above it is another crate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::cargo::{cargo, interesting};

/// Programs of tests by package.
#[derive(Debug)]
pub struct TestPrograms(BTreeMap<String, Vec<TestProgram>>);

/// A program with the tests of a library, of a program or of a file in `tests/`.
#[derive(Debug, PartialEq, Eq)]
struct TestProgram {
    executable: PathBuf,
    /// Folder of its package, in which it runs, as cargo does it.
    folder: PathBuf,
}

impl TestPrograms {
    /// Returns the number of programs.
    pub fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Runs the programs of a package; returns all that they printed.
    ///
    /// # Errors
    ///
    /// A test has failed, or a program cannot be run.
    pub fn run(&self, package: &str) -> Result<String, Vec<String>> {
        let mut all = String::new();
        for program in self.0.get(package).into_iter().flatten() {
            let shown = program.executable.display();
            let mut command = Command::new(&program.executable);
            command
                .current_dir(&program.folder)
                .env("CARGO_MANIFEST_DIR", &program.folder)
                .stdin(Stdio::null());
            let output = command
                .output()
                .map_err(|error| vec![format!("cannot run {shown}: {error}")])?;
            let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.push_str(&String::from_utf8_lossy(&output.stderr));
            if !output.status.success() {
                let mut wrong = vec![format!("`{shown}` ended with {}", output.status)];
                wrong.extend(interesting(&text));
                return Err(wrong);
            }
            all.push_str(&text);
        }
        Ok(all)
    }
}

/// Builds the tests of `packages`.
///
/// # Errors
///
/// They do not compile, or cargo cannot be run.
pub fn build_test_programs(root: &Path, packages: &[&str]) -> Result<TestPrograms, Vec<String>> {
    let mut command = cargo();
    command
        .args([
            "test",
            "--no-run",
            "--message-format=json-render-diagnostics",
        ])
        .args(packages.iter().flat_map(|name| ["--package", *name]))
        .current_dir(root)
        .env("CARGO_TERM_COLOR", "never")
        .stdin(Stdio::null());
    let output = command
        .output()
        .map_err(|error| vec![format!("cannot run cargo: {error}")])?;
    if !output.status.success() {
        let mut wrong = vec![format!(
            "`cargo test --no-run` ended with {}",
            output.status
        )];
        wrong.extend(interesting(&String::from_utf8_lossy(&output.stderr)));
        return Err(wrong);
    }
    Ok(programs(&String::from_utf8_lossy(&output.stdout)))
}

/// Message of cargo about something that it has built, as far as it matters here.
#[derive(Deserialize)]
struct Artifact {
    /// Id of the package, with its name behind the last `#` or, if the folder is called so, `/`.
    package_id: String,
    manifest_path: PathBuf,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Finds test programs in cargo's messages.
fn programs(messages: &str) -> TestPrograms {
    let mut found: BTreeMap<String, Vec<TestProgram>> = BTreeMap::new();
    let artifacts = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
    for artifact in artifacts.filter(|artifact| artifact.profile.test) {
        let (Some(executable), Some(folder)) =
            (artifact.executable, artifact.manifest_path.parent())
        else {
            continue;
        };
        let program = TestProgram {
            executable,
            folder: folder.to_owned(),
        };
        let package = package(&artifact.package_id).to_owned();
        found.entry(package).or_default().push(program);
    }
    for programs in found.values_mut() {
        programs.sort_by(|a, b| a.executable.cmp(&b.executable));
    }
    TestPrograms(found)
}

/// The name in a package's id: `path+file:///a/core#bulkhead-core@0.1.0`, or `path+file:///a/bulkhead-core#0.1.0`.
fn package(id: &str) -> &str {
    let (place, rest) = id.rsplit_once('#').unwrap_or((id, id));
    match rest.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit('/').next().unwrap_or(place),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = r#"{"reason":"compiler-artifact","package_id":"registry+https://a/index#toml@1.0.0","manifest_path":"/r/toml/Cargo.toml","target":{},"profile":{"opt_level":"1","test":false},"executable":null}
{"reason":"compiler-artifact","package_id":"path+file:///a/core#bulkhead-core@0.1.0","manifest_path":"/a/core/Cargo.toml","target":{},"profile":{"opt_level":"1","test":true},"executable":"/t/core-2"}
{"reason":"compiler-artifact","package_id":"path+file:///a/host/cli#bulkhead@0.1.0","manifest_path":"/a/host/cli/Cargo.toml","target":{},"profile":{"opt_level":"1","test":false},"executable":"/t/bulkhead"}
{"reason":"compiler-artifact","package_id":"path+file:///a/core#bulkhead-core@0.1.0","manifest_path":"/a/core/Cargo.toml","target":{},"profile":{"opt_level":"1","test":true},"executable":"/t/core-1"}
{"reason":"build-finished","success":true}
"#;

    #[test]
    fn tests_are_found_by_package_and_nothing_else_is() {
        let found = programs(MESSAGES);
        let program = |name: &str| TestProgram {
            executable: name.into(),
            folder: "/a/core".into(),
        };
        assert_eq!(found.count(), 2);
        assert_eq!(
            found.0["bulkhead-core"],
            [program("/t/core-1"), program("/t/core-2")]
        );
    }

    #[test]
    fn a_package_is_named_in_its_id_or_by_its_folder() {
        assert_eq!(
            package("path+file:///a/core#bulkhead-core@0.1.0"),
            "bulkhead-core"
        );
        assert_eq!(package("path+file:///a/bulkhead-abi#0.1.0"), "bulkhead-abi");
    }

    #[test]
    fn a_program_that_fails_is_said_with_its_words() {
        let program = |executable: &str| TestProgram {
            executable: executable.into(),
            folder: "/".into(),
        };
        let programs = [
            ("good", "/bin/pwd"),
            ("bad", "/bin/false"),
            ("gone", "/nonexistent"),
        ]
        .map(|(name, executable)| (name.to_owned(), vec![program(executable)]));
        let programs = TestPrograms(programs.into());
        assert_eq!(programs.run("good"), Ok("/\n".to_owned()));
        assert!(
            programs
                .run("bad")
                .is_err_and(|wrong| wrong[0].contains("ended with"))
        );
        assert!(
            programs
                .run("gone")
                .is_err_and(|wrong| wrong[0].contains("cannot run"))
        );
    }
}

//! Running the cargo that `./bulkhead` chose (`BULKHEAD_CARGO`), for what is built for another machine than this one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, thread};

use bulkhead_model::checkout;
use bulkhead_model::failure::Failure;

use crate::command;
use crate::progress::Step;

/// Returns the folder into which cargo builds.
pub fn target_folder() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| checkout::root().join("target"), PathBuf::from)
}

/// Cargo for the checkout at `root`, and the compiler that it uses.
pub fn command(root: &Path) -> (Command, PathBuf) {
    let cargo = env::var_os("BULKHEAD_CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
    let mut command = Command::new(&cargo);
    command.current_dir(root);
    // Flags of the caller's environment would make other bytes.
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_BUILD_TARGET",
        "CARGO_BUILD_RUSTFLAGS",
    ] {
        command.env_remove(name);
    }
    // The compiler that lies beside cargo: the first on the path may be another one's.
    let rustc = cargo.with_file_name("rustc");
    if cargo.is_absolute() && rustc.is_file() {
        command.env("RUSTC", &rustc);
        (command, rustc)
    } else {
        (command, PathBuf::from("rustc"))
    }
}

/// Returns the folder of the compiler and its library (`--print sysroot`).
pub fn sysroot(rustc: &Path) -> Result<PathBuf, Failure> {
    let output = command::run(
        Command::new(rustc).args(["--print", "sysroot"]),
        || "cannot ask the Rust compiler for its library",
        "run the tool through `./bulkhead`, which chooses the toolchain",
    )?;
    Ok(PathBuf::from(output.trim_end()))
}

/// Flags that map paths of this computer away.
pub fn remaps(root: &Path, sysroot: &Path) -> Vec<toml::Value> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let sources = sysroot.join("lib/rustlib/src/rust").canonicalize().ok();
    let all = [
        (Some(root.to_owned()), "/bulkhead"),
        (home, "/cargo"),
        (sources, "/rust"),
    ];
    let all = all.into_iter().filter_map(|(from, to)| Some((from?, to)));
    all.map(|(from, to)| {
        let mut flag = OsString::from("--remap-path-prefix=");
        flag.push(from);
        flag.push(format!("={to}"));
        toml::Value::from(flag.to_string_lossy().into_owned())
    })
    .collect()
}

/// Runs `cargo build`; gives the programs that it made, or found to be up to date.
pub fn build(what: &str, mut command: Command) -> Result<BTreeMap<String, PathBuf>, Failure> {
    let step = Step::start(format!("building {what}"));
    command.arg("--message-format=json-render-diagnostics");
    let advice = "on Debian and Ubuntu `./bulkhead` installs the toolchain that it needs";
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| {
            Failure::environment(format!("cannot run cargo to build {what}"), e, advice)
        })?;
    let (programs, said) = follow(&mut child, &step);
    let status = child
        .wait()
        .map_err(|e| Failure::environment("cannot wait for cargo", e, ""))?;
    if status.success() {
        return Ok(programs);
    }
    // All that the compiler said, as it said it: a diagnostic with a prefix is harder to read.
    drop(step);
    eprint!("{said}");
    Err(Failure::failed(
        format!("{what} cannot be built"),
        format!("cargo ended with {status}; its words stand above"),
        "",
    ))
}

/// Reads what cargo prints until it ends: programs from its messages, its words for people as text.
fn follow(child: &mut Child, step: &Step) -> (BTreeMap<String, PathBuf>, String) {
    let messages = child
        .stdout
        .take()
        .map(|pipe| thread::spawn(move || programs(pipe)));
    let mut said = String::new();
    if let Some(pipe) = child.stderr.take() {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let trimmed = line.trim();
            if trimmed.starts_with("Compiling") || trimmed.starts_with("Downloading") {
                step.now(trimmed);
            }
            said.push_str(&line);
            said.push('\n');
        }
    }
    let programs = messages.and_then(|thread| thread.join().ok());
    (programs.unwrap_or_default(), said)
}

/// The programs in cargo's messages, by name.
fn programs(pipe: impl Read) -> BTreeMap<String, PathBuf> {
    let lines = BufReader::new(pipe).lines().map_while(Result::ok);
    let program = |line: String| {
        let message: serde_json::Value = serde_json::from_str(&line).ok()?;
        let path = message.get("executable")?.as_str()?;
        let name = message.get("target")?.get("name")?.as_str()?;
        Some((name.to_owned(), PathBuf::from(path)))
    };
    lines.filter_map(program).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_messages_and_other_lines_ignored() {
        let text = r#"{"reason":"compiler-artifact","target":{"name":"core"},"executable":null}
not json
{"reason":"compiler-artifact","target":{"name":"control"},"executable":"/t/control"}
{"reason":"build-finished","success":true}
"#;
        let found = programs(text.as_bytes());
        assert_eq!(
            found,
            BTreeMap::from([("control".to_owned(), PathBuf::from("/t/control"))])
        );
    }
}

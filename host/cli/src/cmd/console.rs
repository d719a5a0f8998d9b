//! `bulkhead console`: attaches this terminal to a system that runs elsewhere.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use bulkhead_model::checkout;
use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_runner::run::attach::{Visit, connect, visit};

/// Attach to the console of a running system
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead console                # the system that runs, if it is the only one
  bulkhead console demo

Several terminals may attach to one system. Ctrl-T d or Ctrl-T q leaves, and the system runs on; Ctrl-T ? shows all keys.")]
pub struct Args {
    /// Name of the system, or its description
    system: Option<PathBuf>,
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    match attach(&args) {
        Ok(outcome) => outcome,
        Err(failure) => failure.report(),
    }
}

fn attach(args: &Args) -> Result<Outcome, Failure> {
    let (name, console) = find(&checkout::root().join("out"), args.system.as_deref())?;
    eprintln!("attached to `{name}`; Ctrl-T d or Ctrl-T q leaves, Ctrl-T ? shows all keys");
    let visit =
        visit(console).map_err(|error| Failure::environment("the terminal is gone", error, ""))?;
    match visit {
        Visit::Left => eprintln!("left `{name}`, which runs on"),
        Visit::Ended => eprintln!("`{name}` has ended"),
    }
    Ok(Outcome::Done)
}

/// Connects to the system of that name, or to the only one that runs.
fn find(out: &Path, system: Option<&Path>) -> Result<(String, UnixStream), Failure> {
    let running = running(out);
    let names: Vec<_> = running.iter().map(|(name, _)| name.as_str()).collect();
    let list = match names.as_slice() {
        [] => "no system runs; start one with `bulkhead run SYSTEM.toml`".to_owned(),
        names => format!("what runs: {}", names.join(", ")),
    };
    if let Some(system) = system {
        let wanted = system
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let found = running.into_iter().find(|(name, _)| *name == wanted);
        return found.ok_or_else(|| Failure::input(format!("`{wanted}` does not run"), "", list));
    }
    match names.len() {
        0 => Err(Failure::input("nothing to attach to", "", list)),
        1 => running
            .into_iter()
            .next()
            .ok_or_else(|| Failure::input("nothing to attach to", "", "")),
        _ => Err(Failure::input(
            "several systems run",
            list,
            "name the one that you mean",
        )),
    }
}

fn running(out: &Path) -> Vec<(String, UnixStream)> {
    let folders = out.read_dir().into_iter().flatten().flatten();
    let mut running: Vec<_> = folders
        .filter_map(|entry| {
            let console = connect(&entry.path()).ok()?;
            Some((entry.file_name().to_string_lossy().into_owned(), console))
        })
        .collect();
    running.sort_by(|a, b| a.0.cmp(&b.0));
    running
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_runner::run::attach::Server;

    #[test]
    fn the_only_system_needs_no_name_and_of_several_one_must_be_named() {
        let out = tempfile::tempdir().unwrap();
        let failure = find(out.path(), None).unwrap_err();
        assert!(failure.advice.contains("bulkhead run"));
        let serve = |name: &str| {
            let folder = out.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            Server::listen(&folder).unwrap()
        };
        let _demo = serve("demo");
        assert_eq!(find(out.path(), None).unwrap().0, "demo");
        let _other = serve("other");
        assert_eq!(
            find(out.path(), None).unwrap_err().why,
            "what runs: demo, other"
        );
        assert_eq!(
            find(out.path(), Some(Path::new("systems/other.toml")))
                .unwrap()
                .0,
            "other"
        );
        let failure = find(out.path(), Some(Path::new("third"))).unwrap_err();
        assert_eq!(failure.what, "`third` does not run");
    }
}

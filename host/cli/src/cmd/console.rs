//! `bulkhead console`: attaches this terminal to a system that runs elsewhere.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use bulkhead_model::checkout;
use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_runner::build;
use bulkhead_runner::run::attach::{Visit, connect, visit};

/// Attach to the console of a running system
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead console                # the system that runs, if it is the only one
  bulkhead console demo           # of several in the checkout, or in this folder
  bulkhead console mine/gateway.toml
  bulkhead console /tmp/built     # the folder of `run --output`

Several terminals may attach to one system. Ctrl-T d or Ctrl-T q leaves, and the system runs on; Ctrl-T ? shows all keys.")]
pub struct Args {
    /// Name of the system, its description, or the folder in which it was built
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
    let mut folders = vec![
        build::folder_of_systems(&checkout::root().join("systems/demo.toml")),
        build::folder_of_systems(Path::new("system.toml")),
    ];
    folders.dedup();
    let (name, console) = find(&folders, args.system.as_deref())?;
    eprintln!("attached to `{name}`; Ctrl-T d or Ctrl-T q leaves, Ctrl-T ? shows all keys");
    let visit =
        visit(console).map_err(|error| Failure::environment("the terminal is gone", error, ""))?;
    match visit {
        Visit::Left => eprintln!("left `{name}`, which runs on"),
        Visit::Ended => eprintln!("`{name}` has ended"),
    }
    Ok(Outcome::Done)
}

/// Connects to the system of that name, description or folder, or to the only one that runs. `folders` are those of systems
/// that are built.
fn find(folders: &[PathBuf], system: Option<&Path>) -> Result<(String, UnixStream), Failure> {
    let place = system.and_then(|path| match path {
        path if path.is_dir() => Some(path.to_owned()),
        path if path.is_file() => Some(build::folder(path)),
        _ => None,
    });
    // A folder here may have the name of a system of the checkout.
    if let Some(place) = place
        && let Ok(console) = connect(&place)
    {
        let name = place.file_name().unwrap_or(place.as_os_str());
        return Ok((name.to_string_lossy().into_owned(), console));
    }
    // Nor is a description that of another system with its name.
    let names_file = system.is_some_and(Path::is_file);
    let mut running: Vec<_> = folders.iter().flat_map(|folder| running(folder)).collect();
    running.sort_by(|a, b| a.0.cmp(&b.0));
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
        let mut running = running.into_iter();
        let found = running.find(|(name, _)| *name == wanted && !names_file);
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
            "name the one that you mean, or its description",
        )),
    }
}

fn running(out: &Path) -> Vec<(String, UnixStream)> {
    let folders = out.read_dir().into_iter().flatten().flatten();
    folders
        .filter_map(|entry| {
            let console = connect(&entry.path()).ok()?;
            Some((entry.file_name().to_string_lossy().into_owned(), console))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_runner::run::attach::Server;

    #[test]
    fn the_only_system_needs_no_name_and_of_several_one_must_be_named() {
        let out = tempfile::tempdir().unwrap();
        let folders = [out.path().to_owned()];
        let failure = find(&folders, None).unwrap_err();
        assert!(failure.advice.contains("bulkhead run"));
        let serve = |name: &str| {
            let folder = out.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            Server::listen(&folder).unwrap()
        };
        let _demo = serve("demo");
        assert_eq!(find(&folders, None).unwrap().0, "demo");
        let _other = serve("other");
        assert_eq!(
            find(&folders, None).unwrap_err().why,
            "what runs: demo, other"
        );
        assert_eq!(
            find(&folders, Some(Path::new("systems/other.toml")))
                .unwrap()
                .0,
            "other"
        );
        let failure = find(&folders, Some(Path::new("third"))).unwrap_err();
        assert_eq!(failure.what, "`third` does not run");
    }

    #[test]
    fn a_description_or_a_folder_is_that_system_and_no_other_of_its_name() {
        let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let place = |project: &Path| {
            let description = project.join("gateway.toml");
            std::fs::write(&description, "").unwrap();
            let folder = build::folder(&description);
            std::fs::create_dir_all(&folder).unwrap();
            (description, folder)
        };
        let (first, first_folder) = place(one.path());
        let (second, _) = place(two.path());
        let _server = Server::listen(&first_folder).unwrap();
        let folders = [one.path().join("out")];
        let found = |system: &Path| find(&folders, Some(system)).map(|(name, _)| name);
        assert_eq!(found(&first).unwrap(), "gateway");
        assert_eq!(found(&first_folder).unwrap(), "gateway");
        assert_eq!(found(&second).unwrap_err().what, "`gateway` does not run");
    }
}

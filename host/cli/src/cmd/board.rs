//! `bulkhead board`: which boards there are, what they have, and how another one comes in.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde::Serialize;
use serde_json::json;

use bulkhead_model::board::{self, Kind, Named};
use bulkhead_model::describe::nearest;
use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_model::survey::Survey;
use bulkhead_runner::columns::{Column, Columns};
use bulkhead_runner::temp_files;
use bulkhead_runner::{emulated, fetch};

/// List boards, show what one has, or import one from its device tree
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead board list
  bulkhead board show qemu-virt
  bulkhead board show /sys/firmware/fdt --all         # a tree in a file, not imported
  bulkhead board import zcu102.dtb --name zcu102      # then: [board] name = \"zcu102\"
  bulkhead board import debian:broadcom/bcm2711-rpi-4-b

A board is found by name in boards/ beside the description, in a folder above it, or in Bulkhead's own.
debian:VENDOR/NAME is a tree of Debian's kernel package, which is fetched if need be.")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// The boards that a description in this folder can name
    List(List),
    /// What a board has: CPUs, caches, memory, GIC, timers, UARTs, SMMUs, devices for VMs
    Show(Show),
    /// Make a board usable by name, and show what it has
    Import(Import),
}

#[derive(clap::Args)]
struct List {
    /// Print them as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Show {
    /// A board's name, a .dtb file, or debian:VENDOR/NAME
    board: String,
    /// Each device that no VM can have on a line of its own
    #[arg(long)]
    all: bool,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Import {
    /// A .dtb file, or debian:VENDOR/NAME
    tree: String,
    /// Name of the board; else that of the file
    #[arg(long)]
    name: Option<String>,
    /// Folder of boards
    #[arg(long, value_name = "FOLDER", default_value = "boards")]
    to: PathBuf,
    /// Replace the board that has this name there
    #[arg(long)]
    force: bool,
    /// Print what it has as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    let done = match args.verb {
        Verb::List(args) => list(&args),
        Verb::Show(args) => show(&args),
        Verb::Import(args) => import(&args),
    };
    match done {
        Ok(()) => Outcome::Done,
        Err(failure) => failure.report(),
    }
}

/// Output of `list --json`.
#[derive(Serialize)]
struct Document {
    boards: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    file: String,
    #[serde(flatten)]
    about: About,
}

/// Kind, title and fit of a board, or the error in reading it.
#[derive(Serialize)]
#[serde(untagged)]
enum About {
    Sound {
        kind: &'static str,
        title: String,
        fits: bool,
    },
    Broken {
        error: String,
    },
}

fn list(args: &List) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for board in board::all(Path::new(".")) {
        // A board that is broken does not hide the others.
        let about = match board.kind() {
            Ok(Kind::Emulated) => Ok(("qemu", "QEMU".to_owned(), true)),
            Ok(Kind::Imported) => survey_of(&board)
                .map(|survey| ("imported", survey.title(), survey.obstacles.is_empty())),
            Err(failure) => Err(failure),
        };
        rows.push((board, about));
    }
    if args.json {
        let row = |(board, about): &(Named, Result<(&'static str, String, bool), Failure>)| {
            let about = match about {
                Ok((kind, title, fits)) => About::Sound {
                    kind,
                    title: title.clone(),
                    fits: *fits,
                },
                Err(failure) => About::Broken {
                    error: failure.to_string(),
                },
            };
            Listed {
                name: board.name.clone(),
                file: board.file.display().to_string(),
                about,
            }
        };
        let boards = rows.iter().map(row).collect();
        println!("{:#}", json!(Document { boards }));
        return Ok(());
    }
    let mut columns = Columns::new(&[Column::Left(0); 2]);
    for (board, about) in rows {
        let said = match about {
            Ok((_, title, true)) => title,
            Ok((_, title, false)) => format!("{title}; Bulkhead cannot run on it"),
            Err(failure) => format!("broken: {}", failure.what),
        };
        columns.row([board.name, format!("{said}  ({})", board.file.display())]);
    }
    print!("{}", columns.text(""));
    Ok(())
}

/// Reads the survey of an own or imported board.
fn survey_of(board: &Named) -> Result<Survey, Failure> {
    survey(
        board.bytes(&emulated::device_tree)?,
        &board.file.display().to_string(),
    )
}

/// Reads a tree that came from `place`.
fn survey(bytes: Vec<u8>, place: &str) -> Result<Survey, Failure> {
    Survey::read(bytes).map_err(|why| {
        Failure::input(
            format!("{place} gives no board"),
            format!("it is {why}"),
            "give the flattened device tree of an arm64 board (.dtb)",
        )
    })
}

/// The bytes of `debian:NAME` or of a file; none if there is no such file and the word may be a name.
fn bytes(source: &str) -> Result<Option<Vec<u8>>, Failure> {
    if let Some(name) = source.strip_prefix("debian:") {
        return board::read_file(&fetch::device_tree(name)?).map(Some);
    }
    let file = Path::new(source);
    if !file.exists() && board::is_name(source) {
        return Ok(None);
    }
    board::read_file(file).map(Some)
}

fn show(args: &Show) -> Result<(), Failure> {
    let here = Path::new(".");
    let named = board::find(&args.board, here);
    let given = if named.is_some() {
        None
    } else {
        bytes(&args.board)?
    };
    let survey = match (named, given) {
        (Some(board), _) => survey_of(&board)?,
        (None, Some(bytes)) => survey(bytes, &args.board)?,
        (None, None) => {
            let boards = board::all(here);
            let names: Vec<&str> = boards.iter().map(|board| board.name.as_str()).collect();
            let near = nearest(&args.board, names.iter().copied());
            let help = near.map_or("give one of them, or a .dtb file".to_owned(), |known| {
                format!("did you mean `{known}`?")
            });
            return Err(Failure::input(
                format!("there is no board `{}`, and no such file", args.board),
                format!("there are {}", names.join(", ")),
                help,
            ));
        }
    };
    say(&survey, args.all, args.json);
    Ok(())
}

fn say(survey: &Survey, whole: bool, json: bool) {
    if json {
        println!("{:#}", json!(survey));
    } else {
        print!("{}", survey.text(whole));
    }
}

/// A name made of that of a file: what no name may have becomes `-`.
fn name_of(source: &str) -> String {
    let last = source.rsplit(['/', ':']).next().unwrap_or_default();
    let stem = last.strip_suffix(".dtb").unwrap_or(last);
    let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    stem.chars().map(letter).collect()
}

fn import(args: &Import) -> Result<(), Failure> {
    let bytes = match bytes(&args.tree)? {
        Some(bytes) => bytes,
        None => board::read_file(Path::new(&args.tree))?,
    };
    let survey = survey(bytes.clone(), &args.tree)?;
    let name = args.name.clone().unwrap_or_else(|| name_of(&args.tree));
    if !board::is_name(&name) {
        return Err(Failure::input(
            format!("`{name}` cannot be the name of a board"),
            "1 to 64 of the characters a-z A-Z 0-9 -",
            "give another one with --name",
        ));
    }
    let folder = args.to.join(&name);
    write(&folder, args, &name, &bytes)?;
    say(&survey, false, args.json);
    // What a program reads stays alone on standard output.
    let place = folder.display();
    eprintln!(
        "\n{name}: imported into {place}; a description names it by [board] name = \"{name}\""
    );
    if !survey.obstacles.is_empty() {
        eprintln!(
            "{name}: Bulkhead cannot run on it yet, for the reasons above; `check` and `plan` will refuse it"
        );
    }
    Ok(())
}

/// Writes the folder of a board: both files, or nothing.
fn write(folder: &Path, args: &Import, name: &str, bytes: &[u8]) -> Result<(), Failure> {
    if folder.exists() && !(args.force && folder.join("board.dtb").is_file()) {
        let help = if folder.join("board.dtb").is_file() {
            "give another --name, or --force to replace it"
        } else {
            "it is not an imported one, and is not replaced; give another --name"
        };
        let what = format!("there is a board `{name}` already");
        return Err(Failure::input(what, folder.display(), help));
    }
    if board::find(name, Path::new("."))
        .is_some_and(|own| own.kind().is_ok_and(|kind| kind == Kind::Emulated))
    {
        let what = format!("`{name}` is one of Bulkhead's own boards");
        return Err(Failure::input(what, "", "give another --name"));
    }
    let failed = |why: std::io::Error| {
        let what = format!("cannot write the board into {}", folder.display());
        Failure::environment(what, why, "choose another folder with --to")
    };
    fs::create_dir_all(&args.to).map_err(failed)?;
    let partial = temp_files::folder_in(&args.to).map_err(failed)?;
    let about = format!(
        "# Imported by `bulkhead board import {}`.\ndtb = \"board.dtb\"\n",
        args.tree.replace(|c: char| c.is_control(), "?")
    );
    fs::write(partial.value.path().join("board.dtb"), bytes).map_err(failed)?;
    fs::write(partial.value.path().join("board.toml"), about).map_err(failed)?;
    // A temporary folder is its owner's alone; a board may be read by others.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(partial.value.path(), open).map_err(failed)?;
    if args.force {
        match fs::remove_dir_all(folder) {
            Err(why) if why.kind() != ErrorKind::NotFound => return Err(failed(why)),
            _ => {}
        }
    }
    fs::rename(partial.value.path(), folder).map_err(failed)?;
    // It has moved: there is nothing left to delete.
    let _moved: PathBuf = partial.value.keep();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(to: &Path, force: bool) -> Import {
        Import {
            tree: "tests/fixtures/virt.dtb".to_owned(),
            name: Some("mine".to_owned()),
            to: to.to_owned(),
            force,
            json: true,
        }
    }

    #[test]
    fn an_imported_board_is_found_and_not_replaced_by_accident() {
        let top = tempfile::tempdir().expect("folder");
        let boards = top.path().join("boards");
        import(&args(&boards, false)).expect("imported");
        let found = board::find("mine", top.path()).expect("found");
        assert_eq!(found.kind().expect("sound"), Kind::Imported);
        assert_eq!(
            found.bytes(&emulated::device_tree).expect("there"),
            fs::read("tests/fixtures/virt.dtb").expect("fixture")
        );
        let again = import(&args(&boards, false)).expect_err("it is there");
        assert!(again.advice.contains("--force"), "{again}");
        import(&args(&boards, true)).expect("replaced");
        // Nothing half-written is left beside it.
        assert_eq!(fs::read_dir(&boards).expect("folder").count(), 1);
    }

    #[test]
    fn a_folder_that_import_did_not_make_is_never_replaced() {
        let top = tempfile::tempdir().expect("folder");
        fs::create_dir(top.path().join("mine")).expect("folder");
        fs::write(top.path().join("mine/precious"), "x").expect("file");
        import(&args(top.path(), true)).expect_err("not a board");
        assert!(top.path().join("mine/precious").is_file());
    }

    #[test]
    fn a_name_is_made_of_that_of_the_file() {
        assert_eq!(
            name_of("a/zynqmp-zcu102-rev1.1.dtb"),
            "zynqmp-zcu102-rev1-1"
        );
        assert_eq!(
            name_of("debian:broadcom/bcm2711-rpi-4-b"),
            "bcm2711-rpi-4-b"
        );
        assert!(!board::is_name(&name_of("..")) || name_of("..") == "--");
    }
}

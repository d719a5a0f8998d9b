//! `bulkhead board`: which boards there are, what they have, and how another one comes in.

mod import;
mod memory;
mod tree;

use std::path::Path;

use clap::Subcommand;
use serde::Serialize;
use serde_json::json;

use bulkhead_model::board::{self, Kind, Named};
use bulkhead_model::describe::nearest;
use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_model::survey::Survey;
use bulkhead_runner::columns::{Column, Columns};
use bulkhead_runner::emulated;

use tree::{bytes, say, survey};

/// List boards, show what one has, or import one from its device tree
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead board list
  bulkhead board show qemu-virt
  bulkhead board show /sys/firmware/fdt --all         # a tree in a file, not imported
  bulkhead board import zcu102.dtb --name zcu102      # then: [board] name = \"zcu102\"
  bulkhead board import debian:broadcom/bcm2711-rpi-4-b --firmware tf-a-no-sdei

What the tree does not tell of the firmware `import` asks on a terminal; without one it takes what most boards have, and says so.
Memory that the tree leaves to the firmware it asks too; without a terminal --memory-ranges has to say it.

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
    Import(import::Import),
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

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    let done = match args.verb {
        Verb::List(args) => list(&args).map(|()| Outcome::Done),
        Verb::Show(args) => show(&args).map(|()| Outcome::Done),
        Verb::Import(args) => import::run(&args),
    };
    done.unwrap_or_else(Failure::report)
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
        &board.memory()?,
        &board.file.display().to_string(),
    )
}

fn show(args: &Show) -> Result<(), Failure> {
    let here = Path::new(".");
    let named = board::find(&args.board, here);
    let given = if named.is_some() {
        None
    } else {
        bytes(&args.board)?
    };
    let stated = match &named {
        Some(board) => board.firmware()?.map(|it| (it, board.file.as_path())),
        None => None,
    };
    let survey = match (&named, given) {
        (Some(board), _) => survey_of(board)?,
        (None, Some(bytes)) => survey(bytes, &[], &args.board)?,
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
    say(&survey, stated, (args.all, args.json));
    Ok(())
}

//! `bulkhead init`: a first description.

use std::fs;
use std::io::{Write, stderr, stdin};
use std::path::{Path, PathBuf};

use bulkhead_model::board::{self, Kind};
use bulkhead_model::describe::Text;
use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_runner::Effort;
use bulkhead_runner::prepare;
use bulkhead_runner::temp_files;

use crate::init::{self, BoardChoice, BoardKind, Chosen, Guest, MOST_CPUS, Questions, ask};
use crate::question;

/// The file in a folder.
const FILE: &str = "system.toml";
/// Default board and guest.
const BOARD: &str = "qemu-virt";
const GUEST: &str = "guest:hello";

/// Write a commented description for a board and some guests
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead init                                        # asks; writes system.toml
  bulkhead init mine.toml --guest linux:debian --guest control=guest:hello
  bulkhead init mine/ --board zcu102 --guest rtos.elf --guest linux:Image,root.cpio

A guest is [NAME=]KIND:WHAT with linux:debian, debian:rootfs (Debian with systemd, on a root disk),
linux:IMAGE[,INITRD], program:FILE[@ADDRESS] or guest:NAME, a program of Bulkhead's own; or [NAME=]FILE if the file is an ELF program or a kernel.
+hard-realtime behind it is its class; +hard-realtime=pmr says that it masks interrupts by its priority
mask, as FreeRTOS ports do, =daif that it does not. Nothing said is asked, or =pmr, in which both work.
What no flag says is asked on a terminal; without one, the defaults are qemu-virt and guest:hello.
The description is checked before it is written.")]
pub struct Args {
    /// The description to write, or its folder
    #[arg(value_name = "FILE or FOLDER", default_value = FILE)]
    path: PathBuf,
    /// A board's name (see `bulkhead board list`), or its .dtb file
    #[arg(long)]
    board: Option<String>,
    /// A guest; may be given several times
    #[arg(long = "guest", value_name = "GUEST")]
    guests: Vec<String>,
    /// Take the defaults for what no flag says, and ask nothing
    #[arg(short = 'y', long)]
    pub(super) yes: bool,
    /// Replace the file if it is there
    #[arg(long)]
    force: bool,
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    let asks = !args.yes && question::can_ask();
    start(&args, asks).unwrap_or_else(Failure::report)
}

/// The file to write: a folder, or what ends like one, gets a file in it.
fn file(path: &Path) -> PathBuf {
    let folder = path.is_dir() || path.to_string_lossy().ends_with('/');
    if folder {
        path.join(FILE)
    } else {
        path.to_owned()
    }
}

fn start(args: &Args, asks: bool) -> Result<Outcome, Failure> {
    let file = file(&args.path);
    let there = || {
        let help = "give another name, or --force to replace it";
        Failure::input(format!("{} is there already", file.display()), "", help)
    };
    if !args.force && file.symlink_metadata().is_ok() {
        return Err(there());
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    let place = |word: &str| place(word, folder);
    let parse = |spec: &str, taken: &[Guest]| Guest::parse(spec, taken, place);
    let find = |word: &str| choose_board(word, folder, place);
    let board = match &args.board {
        Some(word) => Some((word.clone(), find(word)?)),
        None => None,
    };
    let mut guests: Vec<(String, Guest)> = Vec::new();
    for spec in &args.guests {
        let taken: Vec<Guest> = guests.iter().map(|(_, guest)| guest.clone()).collect();
        guests.push((spec.clone(), parse(spec, &taken)?));
    }
    // On a GICv2 it does not matter what a guest masks by.
    let matters = board.as_ref().is_none_or(|(_, board)| board.gic != 2);
    let open = guests.iter().any(|(_, guest)| matters && guest.is_open());
    let asks = asks && (board.is_none() || guests.is_empty() || open);
    let chosen = if asks {
        let questions = Questions {
            boards: &known_boards(folder),
            defaults: (BOARD, GUEST),
            file: &file.display().to_string(),
            board: board.as_ref(),
            guests: &guests,
        };
        let said = ask((&mut stdin().lock(), &mut stderr()), questions, find, parse);
        let said = said
            .map_err(|why| Failure::environment("cannot ask on the terminal", why, "give flags"))?;
        let Some(said) = said else {
            eprintln!("{}: not written", file.display());
            return Ok(Outcome::Failed);
        };
        said
    } else {
        if guests.is_empty() {
            guests.push((GUEST.to_owned(), parse(GUEST, &[])?));
        }
        let board = match board {
            Some(board) => board,
            None => (BOARD.to_owned(), find(BOARD)?),
        };
        Chosen { board, guests }
    };
    let (_, board) = &chosen.board;
    let guests: Vec<Guest> = chosen
        .guests
        .iter()
        .map(|(_, guest)| guest.clone())
        .collect();
    if guests.len() > MOST_CPUS {
        let what = format!(
            "{} guests, each with a CPU of its own, are too many",
            guests.len()
        );
        let help = "name fewer, and see docs/how-to/share-a-cpu.md";
        return Err(Failure::input(
            what,
            format!("a board has {MOST_CPUS} CPUs at most"),
            help,
        ));
    }
    let text = Text {
        name: file.display().to_string(),
        source: init::text(board, &guests).into(),
    };
    let prepared = match prepare::prepare_text(text.clone(), Effort::WhatIsThere) {
        Ok(prepared) => prepared,
        Err(stopped) => {
            let outcome = stopped.report(false);
            eprintln!("{}: not written", file.display());
            if asks {
                eprintln!("the same again: {}", again(args, &chosen));
            }
            return Ok(outcome);
        }
    };
    write(&file, &text.source, args.force, there)?;
    let matters = board.gic != 2;
    let open = |guest: &&Guest| matters && guest.is_open();
    for guest in guests.iter().filter(open) {
        let name = &guest.name;
        eprintln!(
            "{name}: taken to mask interrupts by its priority mask; if it masks by DAIF alone, +hard-realtime=daif saves exits"
        );
    }
    let vms: Vec<&str> = prepared
        .planned
        .vms
        .iter()
        .map(|vm| vm.name.as_str())
        .collect();
    println!(
        "{}: {} on {}",
        file.display(),
        vms.join(", "),
        prepared.planned.board.name
    );
    let verb = if prepared.planned.board.emulated.is_some() {
        "run"
    } else {
        "build"
    };
    println!("next: bulkhead {verb} {}", file.display());
    Ok(Outcome::Done)
}

/// The boards that can be named, and what each is.
fn known_boards(folder: &Path) -> Vec<(String, &'static str)> {
    let about = |kind| match kind {
        Ok(Kind::Emulated) => "in QEMU, to run at once",
        Ok(Kind::Imported) => "its device tree was imported",
        Err(_) => "broken: see `bulkhead board list`",
    };
    let all = board::all(folder).into_iter();
    all.map(|board| (board.name.clone(), about(board.kind())))
        .collect()
}

/// The command that answers all questions as they were answered.
fn again(args: &Args, chosen: &Chosen) -> String {
    let mut words = vec!["bulkhead init".to_owned(), args.path.display().to_string()];
    words.push(format!("--board {}", chosen.board.0));
    words.extend(
        chosen
            .guests
            .iter()
            .map(|(word, _)| format!("--guest {word}")),
    );
    words.join(" ")
}

/// A file as a description in `folder` names it: as it was said where that is the current folder, else in full.
fn place(word: &str, folder: &Path) -> String {
    let same = folder == Path::new("") || folder == Path::new(".");
    match Path::new(word).canonicalize() {
        Ok(whole) if !same => {
            let below = folder.canonicalize().ok();
            let below =
                below.and_then(|folder| whole.strip_prefix(folder).ok().map(Path::to_owned));
            below.unwrap_or(whole).display().to_string()
        }
        _ => word.to_owned(),
    }
}

fn choose_board(
    said: &str,
    folder: &Path,
    place: impl Fn(&str) -> String,
) -> Result<BoardChoice, Failure> {
    let found = board::find(said, folder);
    match found {
        Some(found) => {
            let gic = found.gic()?;
            let kind = match found.kind()? {
                Kind::Emulated => BoardKind::Emulated(found.name),
                Kind::Imported => BoardKind::Imported(found.name),
            };
            Ok(BoardChoice { kind, gic })
        }
        None if Path::new(said).is_file() => Ok(BoardChoice {
            kind: BoardKind::Tree(place(said)),
            gic: board::gic_version(board::read_file(Path::new(said))?),
        }),
        None => {
            let known: Vec<String> = board::all(folder)
                .into_iter()
                .map(|board| board.name)
                .collect();
            Err(Failure::input(
                format!("there is no board `{said}`, and no such file"),
                format!("there are {}", known.join(", ")),
                "`bulkhead board import BOARD.dtb` adds one",
            ))
        }
    }
}

/// Writes the file: all of it or nothing, and over nothing that is there.
fn write(file: &Path, text: &str, force: bool, there: impl Fn() -> Failure) -> Result<(), Failure> {
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let failed = |why: std::io::Error| {
        let what = format!("cannot write {}", file.display());
        Failure::environment(what, why, "choose another place")
    };
    fs::create_dir_all(folder).map_err(failed)?;
    let mut partial = temp_files::file_in(folder).map_err(failed)?;
    partial.value.write_all(text.as_bytes()).map_err(failed)?;
    // A temporary file is its owner's alone; a description may be read by others.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    partial
        .value
        .as_file()
        .set_permissions(open)
        .map_err(failed)?;
    let kept = if force {
        partial.value.persist(file)
    } else {
        partial.value.persist_noclobber(file)
    };
    match kept {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => Err(there()),
        Err(error) => Err(failed(error.error)),
    }
}

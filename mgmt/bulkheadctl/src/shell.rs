//! The command line told to shells and to `man`.

use std::fs;
use std::io;
use std::path::Path;

use bulkhead_control::failure::{Failure, Outcome};
use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use serde_json::json;

use crate::cli::{Cli, CompletionArgs, ManArgs};
use crate::output::Printer;
use crate::verb::Ended;

/// Name of the program.
const NAME: &str = "bulkheadctl";

/// What makes a shell complete the command line.
pub fn complete(shell: Shell) -> Vec<u8> {
    // Into memory first: `generate` panics when a pipe is closed.
    let mut text = Vec::new();
    generate(shell, &mut Cli::command(), NAME, &mut text);
    text
}

/// Writes manual pages into a folder, one for each verb; gives their number.
///
/// # Errors
/// They cannot be written.
pub fn pages(folder: &Path) -> io::Result<usize> {
    fs::create_dir_all(folder)?;
    let mut command = Cli::command();
    command.build();
    write_of(folder, &command)
}

/// Writes the page of a command, and those of its verbs.
fn write_of(folder: &Path, command: &Command) -> io::Result<usize> {
    // `build` has given verbs names like `bulkheadctl-list`.
    let name = command.get_display_name().unwrap_or(NAME);
    let mut text = Vec::new();
    Man::new(command.clone()).render(&mut text)?;
    fs::write(folder.join(format!("{name}.1")), text)?;
    let verbs = command
        .get_subcommands()
        .filter(|verb| verb.get_name() != "help");
    let mut written = 1;
    for verb in verbs {
        written += write_of(folder, verb)?;
    }
    Ok(written)
}

/// Prints completions.
pub fn print_completions(printer: &Printer, args: CompletionArgs) -> Ended {
    printer.text(&String::from_utf8_lossy(&complete(args.shell)))?;
    Ok(Outcome::Done)
}

/// Writes pages, and says how many.
pub fn write_pages(printer: &Printer, args: ManArgs) -> Ended {
    let folder = args.folder.display();
    let count = pages(&args.folder).map_err(|error| {
        let what = format!("cannot write manual pages into {folder}");
        Failure::environment("control::io", what, error).advise("choose another folder")
    })?;
    if printer.json {
        printer.document(&json!({ "ok": true, "pages": count }))?;
    } else {
        printer.text(&format!("{count} pages in {folder}\n"))?;
    }
    Ok(Outcome::Done)
}

//! `bulkhead completions` and `bulkhead man`: the command line told to shells and to `man`.

use std::fs;
use std::io::{self, Write, stdout};
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use bulkhead_model::failure::{Failure, Outcome};

const NAME: &str = "bulkhead";

/// Print what makes a shell complete the command line
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead completions bash > ~/.local/share/bash-completion/completions/bulkhead
  bulkhead completions zsh > ~/.zfunc/_bulkhead
  bulkhead completions fish > ~/.config/fish/completions/bulkhead.fish")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Write manual pages, one for each verb
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead man ~/.local/share/man/man1
  bulkhead man /tmp/man && man /tmp/man/bulkhead-plan.1")]
pub struct Pages {
    /// The folder, which is made if it is not there
    folder: PathBuf,
}

/// Prints completions for `command`.
pub fn completions(args: Completions, mut command: Command) -> Outcome {
    // Into memory first: `generate` panics when a pipe is closed.
    let mut text = Vec::new();
    generate(args.shell, &mut command, NAME, &mut text);
    match stdout().write_all(&text) {
        Ok(()) => Outcome::Done,
        Err(why) => Failure::environment("cannot print the completions", why, "").report(),
    }
}

/// Writes the pages of `command`.
pub fn pages(args: Pages, command: Command) -> Outcome {
    match write(&args.folder, command) {
        Ok(count) => {
            println!("{count} pages in {}", args.folder.display());
            Outcome::Done
        }
        Err(why) => {
            let what = format!("cannot write manual pages into {}", args.folder.display());
            Failure::environment(what, why, "choose another folder").report()
        }
    }
}

fn write(folder: &Path, mut command: Command) -> io::Result<usize> {
    fs::create_dir_all(folder)?;
    command.build();
    write_of(folder, &command)
}

/// Writes the page of a command, and those of its verbs.
fn write_of(folder: &Path, command: &Command) -> io::Result<usize> {
    // `build` has given verbs names like `bulkhead-plan`.
    let name = command.get_display_name().unwrap_or(NAME);
    let mut text = Vec::new();
    Man::new(command.clone()).render(&mut text)?;
    fs::write(folder.join(format!("{name}.1")), text)?;
    let verbs = command.get_subcommands();
    let shown = verbs.filter(|verb| verb.get_name() != "help" && !verb.is_hide_set());
    shown
        .map(|verb| write_of(folder, verb))
        .sum::<io::Result<usize>>()
        .map(|below| below + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        Command::new(NAME)
            .about("Describes systems.")
            .subcommand(Command::new("plan").about("Shows who owns what."))
            .subcommand(Command::new("board").subcommand(Command::new("list")))
    }

    #[test]
    fn there_is_a_page_for_each_verb_and_those_below() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("man1");
        assert_eq!(write(&place, command()).expect("it can be written"), 4);
        assert!(place.join("bulkhead-board-list.1").is_file());
        let page = |name: &str| fs::read_to_string(place.join(name)).expect("there");
        assert!(page("bulkhead.1").contains("Describes systems."));
        let plan = page("bulkhead-plan.1");
        assert!(
            plan.contains("bulkhead\\-plan") && plan.contains("Shows who owns what."),
            "{plan}"
        );
    }

    #[test]
    fn bash_completes_a_verb_and_what_is_below_it() {
        let mut text = Vec::new();
        generate(Shell::Bash, &mut command(), NAME, &mut text);
        let asked = r#"
            COMP_WORDS=(./bulkhead board l); COMP_CWORD=2; _bulkhead ./bulkhead l board
            echo "${COMPREPLY[@]}"; complete -p bulkhead"#;
        let script = String::from_utf8(text).expect("a script") + asked;
        let bash = std::process::Command::new("bash")
            .args(["-c", &script])
            .output();
        let said = String::from_utf8(bash.expect("bash").stdout).expect("text");
        let mut lines = said.lines();
        assert_eq!(lines.next(), Some("list"), "{said}");
        assert!(
            lines.any(|line| line.ends_with("-F _bulkhead bulkhead")),
            "{said}"
        );
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert!(write(&file.path().join("man1"), command()).is_err());
    }
}

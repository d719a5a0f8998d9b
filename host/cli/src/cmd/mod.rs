//! The verbs of the command line, one module each.

pub mod bench;
pub mod board;
pub mod book;
pub mod build;
pub mod check;
pub mod console;
pub mod demo;
pub mod doctor;
pub mod dtb;
pub mod explain;
pub mod fetch;
pub mod fuzz;
pub mod init;
pub mod interference;
pub mod mutants;
pub mod package;
pub mod plan;
pub mod run;
pub mod schema;
pub mod shell;
pub mod show;
pub mod test;

use clap::{CommandFactory, Parser, Subcommand};

use bulkhead_model::failure::{Failure, Outcome};

/// Describe, check, build, run and measure a Bulkhead system.
#[derive(Parser)]
#[command(
    name = "bulkhead",
    // The driver reads the same command line.
    bin_name = "bulkhead",
    version,
    about,
    after_help = "`./bulkhead` in a checkout installs what is missing; with --yes (-y), anywhere on the line, it does not ask.

Exit status: 0 done; 1 what was asked for failed; 2 wrong input; 3 the environment lacks something."
)]
pub struct Cli {
    /// Install what is missing without a question: a word for `./bulkhead`. Verbs that have one of the same name
    /// ask nothing either.
    #[arg(short = 'y', long, global = true, hide = true)]
    yes: bool,
    /// The verb with its arguments.
    #[command(subcommand)]
    pub verb: Verb,
}

/// One variant for each verb; the arguments live in the module of the verb.
#[derive(Subcommand)]
#[expect(
    missing_docs,
    reason = "a comment would be its help: that of its arguments is"
)]
pub enum Verb {
    Check(check::Args),
    Explain(explain::Args),
    Schema(schema::Args),
    Plan(plan::Args),
    Dtb(dtb::Args),
    Board(board::Args),
    Init(init::Args),
    Build(build::Args),
    Bench(bench::Args),
    Run(run::Args),
    Show(show::Args),
    Console(console::Args),
    Demo(demo::Args),
    Test(test::Args),
    Fuzz(fuzz::Args),
    Interference(interference::Args),
    Mutants(mutants::Args),
    Fetch(fetch::Args),
    Package(package::Args),
    Doctor(doctor::Args),
    Book(book::Args),
    Completions(shell::Completions),
    Man(shell::Pages),
}

impl Cli {
    /// Does what the command line asks for.
    pub fn perform(self) -> Outcome {
        match self.verb {
            Verb::Check(args) => check::run(args),
            Verb::Explain(args) => explain::run(args),
            Verb::Schema(args) => schema::run(args),
            Verb::Plan(args) => plan::run(args),
            Verb::Dtb(args) => dtb::run(args),
            Verb::Board(args) => board::run(args),
            Verb::Book(_) => of_driver("book"),
            Verb::Init(args) => init::run(args),
            Verb::Build(args) => build::run(args),
            Verb::Bench(_) => of_driver("bench"),
            Verb::Run(args) => run::run(args),
            Verb::Show(args) => show::run(args),
            Verb::Console(args) => console::run(args),
            Verb::Demo(args) => demo::run(args),
            Verb::Test(_) => of_driver("test"),
            Verb::Fuzz(_) => of_driver("fuzz"),
            Verb::Interference(_) => of_driver("interference"),
            Verb::Mutants(_) => of_driver("mutants"),
            Verb::Fetch(args) => fetch::run(args),
            Verb::Package(args) => package::run(args),
            Verb::Doctor(args) => doctor::run(args),
            Verb::Completions(args) => shell::completions(args, Self::command()),
            Verb::Man(args) => shell::pages(args, Self::command()),
        }
    }
}

/// The answer to a verb of those who work on Bulkhead.
fn of_driver(verb: &str) -> Outcome {
    let what = format!("`{verb}` is for work on Bulkhead itself, and not in this program");
    let advice = format!("start `./bulkhead {verb}` in a checkout: it builds what performs it");
    Failure::environment(what, "", advice).report()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::ErrorKind;

    /// What the tool makes of words, with `--help` behind them.
    fn kind(words: &[&str]) -> ErrorKind {
        let words = ["bulkhead"].iter().chain(words).chain(&["--help"]);
        match Cli::try_parse_from(words) {
            Err(error) => error.kind(),
            Ok(_) => panic!("no help"),
        }
    }

    #[test]
    fn every_verb_takes_the_words_of_the_script_on_either_side() {
        for verb in Cli::command().get_subcommands() {
            let verb = verb.get_name();
            for words in [["--yes", verb], [verb, "--yes"], [verb, "-y"]] {
                assert_eq!(kind(&words), ErrorKind::DisplayHelp, "{words:?}");
            }
        }
        assert_eq!(
            kind(&["board", "import", "x.dtb", "-y"]),
            ErrorKind::DisplayHelp
        );
    }

    #[test]
    fn on_either_side_of_the_verb_it_answers_the_questions_of_the_verb_too() {
        for words in [["bulkhead", "init", "--yes"], ["bulkhead", "--yes", "init"]] {
            let Verb::Init(args) = Cli::parse_from(words).verb else {
                panic!("another verb");
            };
            assert!(args.yes, "{words:?}");
        }
    }
}

//! `bulkhead plan`: who gets what.

use std::fs;
use std::path::PathBuf;

use super::Outcome;
use crate::failure::Failure;
use crate::planner::Effort;
use crate::{show, system};

/// Show who owns what, at which address and at what cost
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead plan systems/demo.toml
  bulkhead plan systems/demo.toml --svg demo.svg
  bulkhead plan systems/demo.toml --json | jq .memory

Nothing is built or fetched: without EL2 or a payload the plan is provisional, and says so.")]
pub struct Args {
    /// The description
    file: PathBuf,
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
    /// Draw the plan into this file, too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    let prepared = match system::prepare(&args.file, Effort::WhatIsThere) {
        Ok(prepared) => prepared,
        Err(stopped) => return stopped.report(args.json),
    };
    eprint!(
        "{}",
        prepared.text.render(&prepared.findings, system::colours())
    );
    if let Some(file) = &args.svg
        && let Err(why) = fs::write(file, show::svg(&prepared.planned))
    {
        let what = format!("cannot write {}", file.display());
        return Failure::environment(what, why, "choose another file").report();
    }
    if args.json {
        println!("{:#}", show::json(&prepared.planned));
    } else {
        print!("{}", show::text(&prepared.planned));
    }
    Outcome::Done
}

//! `bulkhead check`: is a description sound?

use std::path::PathBuf;

use bulkhead_core::plan::Invariant;
use serde_json::json;

use bulkhead_model::describe::Text;
use bulkhead_model::failure::Outcome;
use bulkhead_model::plural::count;
use bulkhead_runner::Effort;
use bulkhead_runner::prepare;

/// Check a system description, and prove the plan made of it
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead check systems/demo.toml
  bulkhead check my.toml --json       # findings with places, reasons and remedies; bulkhead explain CODE says more

Nothing is built or fetched: what is not there yet is taken on trust, with a warning.")]
pub struct Args {
    /// The description
    file: PathBuf,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    let prepared = match prepare::prepare(&args.file, Effort::WhatIsThere) {
        Ok(prepared) => prepared,
        Err(stopped) => return stopped.report(args.json),
    };
    if args.json {
        println!("{:#}", json!(prepared.text.verdict(&prepared.findings)));
        return Outcome::Done;
    }
    eprint!(
        "{}",
        prepared.text.render(&prepared.findings, prepare::colours())
    );
    eprint!("{}", Text::hint(&prepared.findings));
    let planned = &prepared.planned;
    println!(
        "{}: sound; {} on {} of {} CPUs, {} invariants proven",
        prepared.text.name,
        count(planned.vms.len(), "VM"),
        planned.cpus.len(),
        planned.board.cpus.len(),
        Invariant::OF_PLAN.len(),
    );
    Outcome::Done
}

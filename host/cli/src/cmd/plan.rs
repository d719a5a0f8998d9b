//! `bulkhead plan`: who gets what, and what differs from another plan.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use bulkhead_model::describe::Text;
use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_planner::Planned;
use bulkhead_planner::show::{self, Differences};
use bulkhead_runner::Effort;
use bulkhead_runner::prepare::{self, Stopped};
use bulkhead_runner::temp_files;

/// Show who owns what, at which address and at what cost
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead plan systems/demo.toml
  bulkhead plan systems/demo.toml --html demo.html     # a page to look at and to hand on
  bulkhead plan systems/demo.toml --json | jq .memory
  bulkhead plan new.toml --diff old.toml
  bulkhead plan systems/demo.toml --diff out/demo/plan.json --html demo.html

The page is one file and needs no network. Nothing is built or fetched: without EL2 or a payload the plan is
provisional, and says so.")]
pub struct Args {
    /// The description
    file: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Write a page for the browser, too
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print only what differs from this one: a description, or plan.json or plan.bin of an earlier build
    #[arg(long, value_name = "OLD")]
    diff: Option<PathBuf>,
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    let json = args.json;
    show(args).unwrap_or_else(|stopped| stopped.report(json))
}

fn show(args: Args) -> Result<Outcome, Stopped> {
    let prepared = prepare::prepare(&args.file, Effort::WhatIsThere)?;
    eprint!(
        "{}",
        prepared.text.render(&prepared.findings, prepare::colours())
    );
    let planned = prepared.planned;
    let plan = show::json(&planned);
    let differences = args
        .diff
        .map(|old| differences(&old, &planned, &plan))
        .transpose()?;
    if let Some(file) = &args.html {
        temp_files::write(file, show::html(&plan, differences.as_ref()).as_bytes()).map_err(
            |why| {
                let what = format!("cannot write {}", file.display());
                Failure::environment(what, why, "choose another file")
            },
        )?;
    }
    match differences {
        Some(differences) if args.json => println!("{:#}", differences.json()),
        Some(differences) => print!("{}", differences.text(&planned.name)),
        None if args.json => println!("{plan:#}"),
        None => print!("{}", show::text(&planned)),
    }
    Ok(Outcome::Done)
}

/// Returns the differences from the plan in a file, or from the one that the description there makes.
fn differences(file: &Path, planned: &Planned, plan: &Value) -> Result<Differences, Stopped> {
    let name = file.display().to_string();
    let content = fs::read(file).map_err(|why| {
        Failure::input(
            format!("cannot read {name}"),
            why,
            "name a description, or plan.json or plan.bin of an earlier build",
        )
    })?;
    let broken = |why: String| {
        let what = format!("{name} is no plan that can be compared");
        Failure::input(
            what,
            why,
            "save one with `bulkhead plan --json`, or build it again",
        )
    };
    if show::bytes::looks_like_one(&content) {
        // Bytes know less than JSON: then both sides are taken from bytes.
        let old = show::bytes::read(&content).map_err(broken)?;
        let new = show::bytes::read(&planned.bytes).map_err(broken)?;
        return Ok(show::compare(&name, &old, &new));
    }
    if content.trim_ascii_start().starts_with(b"{") {
        let old: Value = serde_json::from_slice(&content).map_err(|why| broken(why.to_string()))?;
        // What `build --json` printed has the plan inside.
        let old = if old["vms"].is_array() {
            &old
        } else {
            &old["plan"]
        };
        if !old["vms"].is_array() {
            return Err(broken("it has no list `vms`".to_owned()).into());
        }
        return Ok(show::compare(&name, old, plan));
    }
    let text = String::from_utf8(content).map_err(|why| broken(why.to_string()))?;
    let old = prepare::prepare_text(
        Text {
            name: name.clone(),
            source: text.into(),
        },
        Effort::WhatIsThere,
    )?;
    Ok(show::compare(&name, &show::json(&old.planned), plan))
}

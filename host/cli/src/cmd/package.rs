//! `bulkhead package`: what manages a board, as a Debian package.

use std::path::PathBuf;

use serde_json::json;

use bulkhead_model::failure::Outcome;
use bulkhead_runner::package::managers;

/// Build the Debian package of what manages a board: bulkheadctl and bulkheadd
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead package
  bulkhead package --output /tmp/mgmt.deb
  bulkhead package --json | jq -r .package

It is for arm64 and depends on no other. Install it in the Linux that the description lets manage the others.")]
pub struct Args {
    /// The package, instead of bulkhead-mgmt_VERSION_arm64.deb in the folder of what is built
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print what was built as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    match managers::build(args.output) {
        Ok(package) if args.json => {
            println!("{:#}", json!({ "ok": true, "package": package }));
            Outcome::Done
        }
        Ok(package) => {
            println!("{}", package.display());
            Outcome::Done
        }
        Err(failure) => failure.report(),
    }
}

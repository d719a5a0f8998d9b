//! `bulkhead schema`: the JSON schema of descriptions.

use bulkhead_model::describe::schema;
use bulkhead_model::failure::Outcome;

/// Print the JSON schema of descriptions, by which editors complete and check them
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead schema > description.schema.json

Then a description names it in its first line, for editors with a TOML language server (taplo, Even Better TOML):
  #:schema description.schema.json")]
pub struct Args {}

/// Runs the verb.
pub fn run(_: Args) -> Outcome {
    print!("{}", schema::text());
    Outcome::Done
}

//! `bulkhead`: hands each verb of the command line to its module.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Describe, check, build, run and measure a Bulkhead system.
#[derive(Parser)]
#[command(name = "bulkhead", version, about)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// One variant for each verb; the arguments live in the module of the verb.
#[derive(Subcommand)]
enum Verb {}

fn main() -> ExitCode {
    match Cli::parse().verb {}
}

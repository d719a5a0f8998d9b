//! `bulkhead mutants`: whether tests notice defects of EL2. The driver performs it.

/// Plant defects in EL2, one at a time, and see whether a system test fails
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead mutants el2/src/lifecycle.rs            # all mutants of a file
  bulkhead mutants el2/src/hw --sample 20          # 20 of a folder's
  bulkhead mutants --sample 20 --seed 7            # 20 others, of all files
  bulkhead mutants el2/src/hw/cpu.rs --only 'hcr::FB'
  bulkhead mutants el2/src/hw --list               # which there are
  bulkhead mutants --known --record                # whether what is known to die dies still

Each is built from a copy of the sources, which goes with the tool. Exit status: 0 all died or survive for a
reason that lab/mutants/survivors.toml says, 1 another survived, 2 there is no such file.")]
pub struct Args {
    /// Files or folders of el2/src and core/src; all if none is named
    pub files: Vec<String>,
    /// Try so many, drawn at random [default: 10 if no file is named]
    #[arg(long, value_name = "N", conflicts_with = "all")]
    pub sample: Option<usize>,
    /// Where the random numbers of a sample start
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Try all of them, also if no file is named
    #[arg(long)]
    pub all: bool,
    /// Only those whose line in `--list` contains this text, or one of several
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Leave out those that are known to die or to survive
    #[arg(long)]
    pub new: bool,
    /// Only those that a test is known to kill, each with that test alone
    #[arg(long, conflicts_with_all = ["new", "sample"])]
    pub known: bool,
    /// So many at a time
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub jobs: usize,
    /// Keep which test kills which in lab/mutants/killed.toml
    #[arg(long)]
    pub record: bool,
    /// Print the mutants, try none
    #[arg(long)]
    pub list: bool,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

//! `bulkhead test`: runs everything that proves what the project claims. The driver performs it.

/// Run all tests: the code, the image, and systems booted in QEMU
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead test                   # everything, as continuous integration does
  bulkhead test system/           # tests whose name contains `system/`, those on request among them
  bulkhead test --all             # the whole matrix of kernels, CPUs and interrupt controllers as well
  bulkhead test --list            # what each test proves

Exit status: 0 if all tests passed, 1 if one failed, 2 if no test has such a name. The last line is
`N passed, N failed`. A test that cannot run has failed.")]
pub struct Args {
    /// Run only tests whose name contains one of these
    pub filter: Vec<String>,
    /// Run the tests that only run on request, too (`--list` marks them)
    #[arg(long)]
    pub all: bool,
    /// Print names and claims, run nothing
    #[arg(long)]
    pub list: bool,
    /// Print one JSON document on stdout
    #[arg(long)]
    pub json: bool,
    /// How many systems run at a time; the host's CPUs are shared among them
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub jobs: usize,
}

//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use bulkhead_control::order::Wait;
use bulkhead_control::port::{Access, SOCKET};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::words::{Share, cpus, share, time};

/// Manage the VMs of a board, from the VM that its description lets do it.
#[derive(Debug, Parser)]
#[command(
    name = "bulkheadctl",
    version,
    about,
    after_help = "Examples:
  bulkheadctl list
  bulkheadctl restart linux --wait
  bulkheadctl caps linux 3ms/10ms
  bulkheadctl top
  bulkheadctl events --follow --json | jq .vm

It asks bulkheadd if that runs, else EL2 itself by the port org.bulkhead.control, which one program at a time can have.

Exit status: 0 done; 1 EL2 refuses, or what was waited for did not come; 2 wrong input; 3 the environment lacks something."
)]
pub struct Cli {
    /// Print JSON, failures too
    #[arg(long, global = true)]
    pub json: bool,
    /// Socket of bulkheadd; `none`: do not ask it
    #[arg(long, global = true, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    /// Device of the port, if it is not to be looked for
    #[arg(long, global = true, value_name = "PATH")]
    port: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub verb: Verb,
}

impl Cli {
    /// Where to find EL2.
    pub(crate) fn access(&self) -> Access {
        let asks = self.socket.as_os_str() != "none";
        Access {
            socket: asks.then(|| self.socket.clone()),
            port: self.port.clone(),
            ..Access::default()
        }
    }
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show the VMs that this VM may see, with their states
    List,
    /// Start a VM that is stopped
    ///
    /// While a VM that has ended prints its reports this waits for it.
    #[command(after_help = "Examples:
  bulkheadctl start linux
  bulkheadctl start linux --wait=5")]
    Start(OrderArgs),
    /// Stop a VM: ask it to end, in the way that its description says
    ///
    /// If it has not ended in the time that the description gives it, EL2 ends it. Asked again, it is told again. With --force it is ended at once,
    /// whatever it does.
    #[command(after_help = "Examples:
  bulkheadctl stop linux --wait && bulkheadctl start linux --wait
  bulkheadctl stop linux --force")]
    Stop(StopArgs),
    /// Stop a VM and start it again from its pristine payloads
    #[command(after_help = "Examples:
  bulkheadctl restart linux --wait")]
    Restart(OrderArgs),
    /// Pause a VM: its CPUs stand still
    #[command(after_help = "Examples:
  bulkheadctl pause linux
  bulkheadctl resume linux")]
    Pause(VmArgs),
    /// Let a paused VM go on
    Resume(VmArgs),
    /// Show what VMs have done: CPU time, exits, waits, work for their devices
    #[command(after_help = "Examples:
  bulkheadctl stats linux
  bulkheadctl stats --json | jq '.vms[].vcpus[].exits'")]
    Stats(StatsArgs),
    /// Set the weight of a VM's vCPUs: their part of what is left on their pCPUs, 1 to 1000
    #[command(after_help = "Examples:
  bulkheadctl weights linux 200")]
    Weights(WeightArgs),
    /// Set the most that a VM's vCPUs get of their pCPUs in each period
    #[command(after_help = "Examples:
  bulkheadctl caps linux 3ms/10ms
  bulkheadctl caps linux none")]
    Caps(CapArgs),
    /// Set what a VM's vCPUs are promised of their pCPUs in each period
    #[command(after_help = "Examples:
  bulkheadctl budgets rt 500us/2ms
  bulkheadctl budgets --dry-run rt 900us/1ms")]
    Budgets(BudgetArgs),
    /// Set the pCPUs on which a VM's vCPUs may run
    #[command(after_help = "Examples:
  bulkheadctl pools linux 0-2,5")]
    Pools(PoolArgs),
    /// Show how each VM stands, and what becomes of it
    #[command(after_help = "Examples:
  bulkheadctl events
  bulkheadctl events --follow --json")]
    Events(EventArgs),
    /// Show what EL2 says of the last crash of a VM
    ///
    /// EL2 keeps it until the VM crashes again, also while the VM runs anew. A Linux that panics does not crash so: it resets, or stands still.
    #[command(after_help = "Examples:
  bulkheadctl report linux
  bulkheadctl report linux --json | jq '.report.last[0]'")]
    Report(VmArgs),
    /// Write memory and registers of a VM that is stopped or paused into a file, as an ELF core
    ///
    /// gdb opens it, and of a Linux `crash` does. It has what the VM knew, keys and passwords too; the file is for this user only.
    #[command(after_help = "Examples:
  bulkheadctl dump linux -o linux.core
  bulkheadctl pause linux && bulkheadctl dump linux -o linux.core && bulkheadctl resume linux")]
    Dump(DumpArgs),
    /// Be the console of a VM, beside the board's UART
    ///
    /// Shows the last lines that it has printed, then what it prints; what is typed goes to it. Ctrl-] ends that. Where the input is no terminal, all of it is
    /// typed, and the console ends when the VM has been silent for a second.
    #[command(after_help = "Examples:
  bulkheadctl console linux
  printf 'uname -r\\n' | bulkheadctl console linux")]
    Console(VmArgs),
    /// Show what a VM has printed on its console
    ///
    /// bulkheadd keeps the last 64 KiB of each VM, of all its lives; without it there are the last 2 KiB.
    #[command(after_help = "Examples:
  bulkheadctl logs linux --lines=20
  bulkheadctl logs linux --follow")]
    Logs(LogArgs),
    /// Show all the time what each vCPU does
    ///
    /// On a terminal `q` ends it.
    #[command(after_help = "Examples:
  bulkheadctl top
  bulkheadctl top --once --interval=10s
  bulkheadctl top --json | jq '.vcpus[] | select(.overruns > 0)'")]
    Top(TopArgs),
    /// Show the policy that bulkheadd follows, what it has measured and decided; check one, or try it
    #[command(after_help = "Examples:
  bulkheadctl policy
  bulkheadctl policy check policy.toml
  bulkheadctl policy dry-run policy.toml --time=60s
  bulkheadctl policy --json | jq '.decisions[-1]'")]
    Policy(PolicyArgs),
    /// Find out what is wrong: the port, the daemon, the version, rights, pCPUs
    Doctor,
    /// Print what makes a shell complete the command line
    #[command(after_help = "Examples:
  bulkheadctl completions bash > /etc/bash_completion.d/bulkheadctl")]
    Completions(CompletionArgs),
    /// Write manual pages, one for each verb
    #[command(after_help = "Examples:
  bulkheadctl man /usr/local/share/man/man1")]
    Man(ManArgs),
}

/// A VM.
#[derive(Debug, Args)]
pub struct VmArgs {
    /// Name of the VM
    pub vm: String,
}

/// A VM to be started, stopped or both.
#[derive(Debug, Args)]
pub struct OrderArgs {
    /// Name of the VM
    pub vm: String,
    /// Wait until it is done, at most this time
    #[arg(long, visible_alias = "timeout", value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = USUAL, value_parser = wait)]
    pub wait: Option<Wait>,
}

/// A VM to be stopped.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// The VM, and how long to wait
    #[command(flatten)]
    pub order: OrderArgs,
    /// End it at once, whatever it does
    #[arg(long)]
    pub force: bool,
}

impl From<VmArgs> for OrderArgs {
    fn from(args: VmArgs) -> Self {
        Self {
            vm: args.vm,
            wait: None,
        }
    }
}

/// A VM, and a file.
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// Name of the VM
    pub vm: String,
    /// The file, which is there when all of it is
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// A VM, or all.
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// Name of the VM; without one, all
    pub vm: Option<String>,
}

/// A VM whose limits are changed, or could be.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Name of the VM
    pub vm: String,
    /// Change nothing: say whether EL2 would
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// A VM and a weight.
#[derive(Debug, Args)]
pub struct WeightArgs {
    /// Whose, and how
    #[command(flatten)]
    pub order: LimitArgs,
    /// 1 to 1000
    pub weight: u64,
}

/// A VM and a cap.
#[derive(Debug, Args)]
pub struct CapArgs {
    /// Whose, and how
    #[command(flatten)]
    pub order: LimitArgs,
    /// QUOTA/PERIOD, times as 3ms or 500us; or `none`
    #[arg(value_parser = cap)]
    pub cap: Share,
}

/// A VM and a budget.
#[derive(Debug, Args)]
pub struct BudgetArgs {
    /// Whose, and how
    #[command(flatten)]
    pub order: LimitArgs,
    /// BUDGET/PERIOD, times as 3ms or 500us
    #[arg(value_parser = share)]
    pub budget: Share,
}

/// A VM and pCPUs.
#[derive(Debug, Args)]
pub struct PoolArgs {
    /// Whose, and how
    #[command(flatten)]
    pub order: LimitArgs,
    /// Numbers and ranges of pCPUs: 0-2,5
    #[arg(value_parser = cpus)]
    pub cpus: u64,
}

/// Which events.
#[derive(Debug, Args)]
pub struct EventArgs {
    /// Go on with the events as they come
    #[arg(short, long)]
    pub follow: bool,
}

/// Whose log, and how much of it.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Name of the VM
    pub vm: String,
    /// Go on with what it prints
    #[arg(short, long)]
    pub follow: bool,
    /// Only the last lines
    #[arg(short = 'n', long, value_name = "N")]
    pub lines: Option<usize>,
}

/// How to watch.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Show one interval, and end
    #[arg(long)]
    pub once: bool,
    /// Time between two looks: 500ms, 2s
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    pub interval: Duration,
}

/// What to do with a policy.
#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// What to do, other than to show it
    #[command(subcommand)]
    pub verb: Option<PolicyVerb>,
}

/// What can be done with a policy.
#[derive(Debug, Subcommand)]
pub enum PolicyVerb {
    /// Show the rules, what they have measured, and the last decisions
    Show,
    /// Look for mistakes in a policy, and whether the board allows it
    #[command(after_help = "Examples:
  bulkheadctl policy check policy.toml
  bulkheadctl policy check --offline policy.toml")]
    Check(CheckArgs),
    /// Follow a policy without moving anything, and say what it would move
    #[command(after_help = "Examples:
  bulkheadctl policy dry-run policy.toml
  bulkheadctl policy dry-run policy.toml --time=30s --json")]
    DryRun(DryRunArgs),
}

/// A policy to be checked.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The policy
    pub file: PathBuf,
    /// Look at the file only, and ask no board
    #[arg(long)]
    pub offline: bool,
}

/// A policy to be tried.
#[derive(Debug, Args)]
pub struct DryRunArgs {
    /// The policy
    pub file: PathBuf,
    /// How long, such as 30s; without it until it is ended
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub time: Option<Duration>,
}

/// A shell.
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell
    pub shell: Shell,
}

/// A folder.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The folder, which is made if it is not there
    pub folder: PathBuf,
}

/// What stands for no time of one's own.
const USUAL: &str = "usual";

fn wait(text: &str) -> Result<Wait, String> {
    if text == USUAL {
        return Ok(Wait::Usual);
    }
    seconds(text).map(Wait::For)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "a number of seconds is wanted, such as 5 or 0.5")?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = Duration::from_nanos(time(text)?);
    let least = Duration::from_millis(100);
    if interval < least {
        return Err("the least interval is 100ms: each look asks all vCPUs".to_owned());
    }
    Ok(interval)
}

/// A period for a cap that is none.
const UNCAPPED: u64 = 10_000_000;

fn cap(text: &str) -> Result<Share, String> {
    if text == "none" {
        return Ok(Share {
            amount: UNCAPPED,
            period: UNCAPPED,
        });
    }
    share(text)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Verb, clap::Error> {
        Cli::try_parse_from(line.split(' ')).map(|cli| cli.verb)
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wait_has_a_time_or_none() {
        let half = Wait::For(Duration::from_millis(500));
        for (line, wait) in [
            ("ctl start linux", None),
            ("ctl start linux --wait", Some(Wait::Usual)),
            ("ctl start --wait linux", Some(Wait::Usual)),
            ("ctl start linux --wait=0.5", Some(half)),
            ("ctl start linux --timeout=0.5", Some(half)),
        ] {
            let Ok(Verb::Start(args)) = parse(line) else {
                panic!("{line}");
            };
            assert_eq!((args.vm.as_str(), args.wait), ("linux", wait), "{line}");
        }
        assert!(parse("ctl start linux --wait=soon").is_err());
        for (line, force) in [("ctl stop linux", false), ("ctl stop linux --force", true)] {
            assert!(
                matches!(parse(line), Ok(Verb::Stop(args)) if args.force == force),
                "{line}"
            );
        }
    }

    #[test]
    fn no_cap_is_a_whole_period() {
        let Ok(Verb::Caps(args)) = parse("ctl caps linux none") else {
            panic!("a cap");
        };
        assert_eq!(args.cap.amount, args.cap.period);
        assert!(parse("ctl budgets rt none").is_err());
        assert!(parse("ctl top --interval 1ms").is_err());
    }
}

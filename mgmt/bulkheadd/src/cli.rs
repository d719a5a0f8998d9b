//! The command line.

use std::path::{Path, PathBuf};

use bulkhead_control::port::SOCKET;
use clap::Parser;

/// Share the control port of a manager VM: bulkheadctl asks through it, events go to the log, metrics to Prometheus
#[derive(Debug, Parser)]
#[command(
    name = "bulkheadd",
    version,
    about,
    after_help = "Examples:
  systemctl enable --now bulkheadd
  curl --unix-socket /run/bulkhead/metrics.sock http://localhost/metrics
  bulkheadd --socket /tmp/control.sock --metrics none
  bulkheadd --policy policy.toml --dry-run

It may end at any time: no VM needs it. Without it bulkheadctl asks EL2 itself.
With a policy it moves weights, caps, budgets and pools by measured load; SIGHUP reads the file again.

Exit status: 0 it was told to end; 2 wrong input; 3 the environment lacks something."
)]
pub struct Cli {
    /// Socket for clients
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pub socket: PathBuf,
    /// Socket for metrics; `none`: no metrics
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/bulkhead/metrics.sock"
    )]
    metrics: PathBuf,
    /// Device of the port, if it is not to be looked for
    #[arg(long, value_name = "PATH")]
    pub port: Option<PathBuf>,
    /// Policy that moves weights, caps, budgets and pools; `none`: no policy [default: /etc/bulkhead/policy.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Write each line that VMs print on their consoles into the log, too
    #[arg(long)]
    pub journal_consoles: bool,
    /// Say what the policy would move, and move nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// The policy that is looked for when none is named.
const POLICY: &str = "/etc/bulkhead/policy.toml";

/// Where the policy is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFile {
    /// The file.
    pub path: PathBuf,
    /// Somebody has named it: it has to be there.
    pub is_named: bool,
}

impl Cli {
    /// The socket for metrics, if there are to be any.
    pub fn metrics(&self) -> Option<&Path> {
        (self.metrics.as_os_str() != "none").then_some(&self.metrics)
    }

    /// The policy, if there may be any.
    pub fn policy(&self) -> Option<PolicyFile> {
        let path = self.policy.clone().unwrap_or_else(|| POLICY.into());
        let is_named = self.policy.is_some();
        (path.as_os_str() != "none").then_some(PolicyFile { path, is_named })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        let cli = Cli::parse_from(["bulkheadd", "--metrics=none"]);
        assert_eq!(cli.metrics(), None);
        let policy = cli.policy().expect("the usual one");
        assert_eq!(
            (policy.path.as_path(), policy.is_named),
            (Path::new(POLICY), false)
        );
        let cli = Cli::parse_from(["bulkheadd", "--policy", "none"]);
        assert_eq!(cli.policy(), None);
    }
}

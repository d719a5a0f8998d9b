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

It may end at any time: no VM needs it. Without it bulkheadctl asks EL2 itself.

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
}

impl Cli {
    /// The socket for metrics, if there are to be any.
    pub fn metrics(&self) -> Option<&Path> {
        (self.metrics.as_os_str() != "none").then_some(&self.metrics)
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
    }
}

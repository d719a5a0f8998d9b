//! `bulkhead demo`: VMs of all classes side by side, with a summary of what happened.

use std::io;
use std::path::Path;
use std::time::Duration;

use bulkhead_model::checkout;
use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_runner::profile::Pace;
use bulkhead_runner::run::{Clock, Emulator, End, Options, System, is_terminal, session};

use super::run::{die, serve};
use crate::demo::{El2Count, Progress, SHIFT, Screen, Summary};

/// Watch a Debian that manages the board, a real-time Linux, a 1 kHz control loop, and two VMs that share a CPU
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead demo                   # three or four minutes, then a shell in Debian
  bulkhead demo --minutes 10      # a soak: ten minutes of the guests' time
  bulkhead demo --json </dev/null # without a terminal it ends by itself

Exit status: 0 if the loop kept all its periods and EL2 its budget, else 1.")]
pub struct Args {
    /// Let Linux work for so many minutes of its time
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    minutes: Option<u64>,
    /// Let Linux work for so many seconds of its time
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u64,
    /// Print one JSON document on stdout; the console goes to stderr
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    let description = checkout::root().join("systems/mixed.toml");
    let system = match System::build(&description, None) {
        Ok(system) => system,
        Err(stopped) => return stopped.report(args.json),
    };
    show(&args, system).unwrap_or_else(Failure::report)
}

fn show(args: &Args, mut system: System) -> Result<Outcome, Failure> {
    let seconds = args
        .minutes
        .map_or(args.seconds, |minutes| minutes.saturating_mul(60))
        .max(2);
    let stay = is_terminal() && !args.json && args.minutes.is_none();
    // See the module `demo` for why not the host's clock.
    system.qemu.clock = Clock::Instructions { shift: SHIFT };
    let count = El2Count::prepare(&system)?;
    system.qemu.plugins.push(count.plugin());
    let pace = Pace::new()?;
    pace.put_on(&mut system.qemu);
    let server = serve(&system)?;

    let mut emulator = Emulator::start(system.qemu.command())?;
    let progress = Progress::new(seconds, stay);
    let classes = system.classes.clone();
    let midway =
        Box::new(move |progress: &Progress| Summary::new(progress, &classes, None, false).text());
    let mut screen = Screen::new(progress, is_terminal(), args.json, midway);
    let options = Options {
        server: Some(server),
        // Against hanging only: emulation of work at full load takes about as long as it says.
        limit: (!stay).then(|| Duration::from_secs(600 + 10 * seconds)),
        interactive: true,
    };
    let end = session(&mut emulator, options, &mut screen);
    screen.close();
    let end = end.map_err(|error| Failure::environment("the console is gone", error, ""))?;
    if let End::Signal(signal) = end {
        return Ok(die(signal));
    }
    if let End::Emulator(status) = end
        && !status.success()
    {
        let why = emulator.messages();
        return Err(Failure::failed(
            format!("QEMU ended with {status}"),
            why,
            "",
        ));
    }
    let whole = !matches!(end, End::Quit);
    let mut summary = Summary::new(&screen.progress, &system.classes, count.read(), whole);
    if end == End::TimedOut {
        summary
            .findings
            .push("the demo did not come to its end in time".to_owned());
    }
    conclude(args, &system.folder, &summary)
}

fn conclude(args: &Args, folder: &Path, summary: &Summary) -> Result<Outcome, Failure> {
    let page = folder.join("summary.html");
    let write = || -> io::Result<()> {
        std::fs::write(&page, summary.html())?;
        let json = serde_json::to_string_pretty(summary)?;
        std::fs::write(folder.join("summary.json"), json + "\n")
    };
    write()
        .map_err(|e| Failure::environment(format!("cannot write `{}`", page.display()), e, ""))?;
    if args.json {
        let json = serde_json::to_string(summary)
            .map_err(|e| Failure::environment("cannot print the summary", e, ""))?;
        println!("{json}");
    } else {
        println!("\n{}  as a picture: {}", summary.text(), page.display());
    }
    Ok(if summary.passed() {
        Outcome::Done
    } else {
        Outcome::Failed
    })
}

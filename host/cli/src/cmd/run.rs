//! `bulkhead run`: boots a system in QEMU and connects the terminal with its console.

use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_runner::run::attach::Server;
use bulkhead_runner::run::console::{ConsoleLine, ExitTable, Output, Served, Transcript, VmEnd};
use bulkhead_runner::run::recording::{Recorder, Tail};
use bulkhead_runner::run::{
    Clock, Emulator, End, Flow, Logs, Options, RunSummary, System, View, gdb, session,
};
use bulkhead_runner::temp_files;

/// Build a system and boot it in QEMU, with its console on this terminal
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead run systems/demo.toml
  bulkhead run systems/demo.toml --log logs --timeout 60 </dev/null
  bulkhead run systems/demo.toml --gdb                 # waits for gdb, and says how to attach it
  bulkhead run systems/demo.toml --gdb=now --symbols linux=vmlinux
  bulkhead run systems/demo.toml --record demo.run     # then: bulkhead show demo.run

On a terminal, keys go to the VM that has the focus; Ctrl-T 1..9, Ctrl-T 010..064 and Ctrl-T n change
it, Ctrl-T q quits. Without a terminal the console is copied to stdout until the board is powered off. What each
VM said is in out/NAME/logs/ afterwards, or where --log says. `bulkhead build --help` says where out/ is.

Exit status: 0 if the board was powered off or the user quit; 1 if a VM crashed, EL2 refused the
plan, or the time was over.")]
pub struct Args {
    /// Description of the system
    system: PathBuf,
    /// Build it in this folder, instead of out/NAME
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Clock of the guests follows instructions (8 ns each), not the host: slower, and every run alike
    #[arg(long)]
    icount: bool,
    /// Write what each VM says to files in this folder, instead of out/NAME/logs
    #[arg(long, visible_alias = "logs", value_name = "DIR")]
    log: Option<PathBuf>,
    /// Keep console, exits and figures in this file, for `bulkhead show`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Let gdb attach, with the symbols of EL2 and of VMs: the board waits for it, or with `now` does not
    #[arg(
        long,
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "wait"
    )]
    gdb: Option<Attach>,
    /// Where a VM's symbols are, if its `image` does not have them: VM=FILE; may be given several times
    #[arg(long, value_name = "VM=FILE", requires = "gdb", value_parser = symbols)]
    symbols: Vec<(String, PathBuf)>,
    /// End the run after so many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Print one JSON document on stdout; the console goes to stderr
    #[arg(long)]
    json: bool,
}

/// Time at which gdb attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Attach {
    /// The board waits for it before its first instruction
    Wait,
    /// The board runs; gdb may attach at any time
    Now,
}

/// `VM=FILE`.
fn symbols(text: &str) -> Result<(String, PathBuf), String> {
    let (vm, file) = text.split_once('=').ok_or("it is VM=FILE")?;
    Ok((vm.to_owned(), file.into()))
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    let system = match System::build(&args.system, args.output.as_deref()) {
        Ok(system) => system,
        Err(stopped) => return stopped.report(args.json),
    };
    boot(&args, system).unwrap_or_else(Failure::report)
}

/// Copies the console to the user, to logs and to a transcript.
struct Screen {
    transcript: Transcript,
    logs: Logs,
    recorder: Option<Recorder>,
    output: Output,
}

impl View for Screen {
    fn console(&mut self, bytes: &[u8], _: &mut Vec<u8>) -> io::Result<Flow> {
        self.output.write(bytes)?;
        let first = self.transcript.push(bytes);
        self.keep(first)?;
        Ok(Flow::Continue)
    }
}

impl Screen {
    fn keep(&mut self, first: usize) -> io::Result<()> {
        let lines = &self.transcript.lines[first..];
        if let Some(recorder) = &mut self.recorder {
            recorder.add(lines)?;
        }
        lines
            .iter()
            .try_for_each(|line: &ConsoleLine| self.logs.add(line))
    }
}

fn boot(args: &Args, mut system: System) -> Result<Outcome, Failure> {
    if args.icount {
        system.qemu.clock = Clock::Instructions { shift: 3 };
    }
    // First, so that a run that is refused because the system runs already touches no file of that run.
    let server = serve(&system)?;
    let files = args.gdb.map(|_| gdb::Files::write(&system, &args.symbols));
    let files = files.transpose()?;
    if let (Some(files), Some(when)) = (&files, args.gdb) {
        system.qemu.gdb = Some((files.socket.clone(), when == Attach::Wait));
    }
    let folder = system.folder.join("logs");
    let logs = match &args.log {
        Some(folder) => (folder, Logs::create(folder)),
        None => (&folder, Logs::renew(&folder)),
    };
    let advice = "choose another folder with --log";
    let (folder, logs) = logs;
    let logs = logs.map_err(|error| {
        let what = format!("cannot write logs to `{}`", folder.display());
        Failure::environment(what, error, advice)
    })?;
    let recorder = args.record.as_deref().map(|file| {
        Recorder::create(file, &system.name, &system.classes).map_err(|error| {
            let what = format!("cannot write the recording `{}`", file.display());
            Failure::environment(what, error, "choose another file")
        })
    });
    let mut screen = Screen {
        transcript: Transcript::default(),
        logs,
        recorder: recorder.transpose()?,
        output: Output::new(args.json),
    };
    let options = Options {
        server: Some(server),
        limit: args.timeout.map(Duration::from_secs),
        interactive: true,
    };
    let mut emulator = Emulator::start(system.qemu.command())?;
    if let (Some(files), Some(when)) = (&files, args.gdb) {
        announce_gdb(files, when);
    }
    let end = session(&mut emulator, options, &mut screen)
        .map_err(|error| Failure::environment("the console is gone", error, ""))?;
    let first = screen.transcript.lines.len();
    screen.transcript.finish();
    // The run has ended; a log that lacks its last half line is no reason to call it failed.
    let _ = screen.keep(first);
    if let Some(recorder) = screen.recorder.take() {
        let transcript = &screen.transcript;
        let tail = Tail {
            ended: ended(end).to_owned(),
            ms: 0,
            stopped: transcript.ended.clone(),
            refused: transcript.refused.clone(),
            exits: transcript.exits.clone(),
        };
        recorder.end(tail).map_err(|error| {
            Failure::environment("the recording cannot be ended", error, "make room")
        })?;
    }
    conclude(args, &system, end, &screen.transcript, &emulator.messages())
}

/// Says how to attach gdb, as soon as QEMU listens.
fn announce_gdb(files: &gdb::Files, when: Attach) {
    // If it fails instead, the session says why.
    let patience = Instant::now() + Duration::from_secs(10);
    while !files.socket.exists() && Instant::now() < patience {
        thread::sleep(Duration::from_millis(10));
    }
    let waits = match when {
        Attach::Wait => "the board waits for it; `continue` there starts it",
        Attach::Now => "the board runs until then",
    };
    eprintln!(
        "attach with: {} -x {}\n({waits}; `help bulkhead` there names commands)",
        gdb::PROGRAM,
        files.script.display()
    );
    if !gdb::is_installed() {
        eprintln!(
            "(there is no {0} here: `apt-get install {0}` brings it)",
            gdb::PROGRAM
        );
    }
}

/// Opens the console for `bulkhead console`.
pub(super) fn serve(system: &System) -> Result<Server, Failure> {
    Server::listen(&system.folder).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Failure::input(
            format!("`{}` runs already", system.name),
            "its console is open in another run",
            format!(
                "attach to it with `bulkhead console {}`",
                system.folder.display()
            ),
        ),
        _ => Failure::environment(
            format!(
                "cannot open a console socket in `{}`",
                system.folder.display()
            ),
            error,
            "",
        ),
    })
}

/// Ends the tool as the signal would have, after everything was put in order.
pub(super) fn die(signal: i32) -> Outcome {
    temp_files::end(signal);
    Outcome::Failed
}

/// Returns the end of a session as a word for programs.
fn ended(end: End) -> &'static str {
    match end {
        End::Emulator(_) => "powered-off",
        End::Quit | End::View => "quit",
        End::Signal(_) => "signal",
        End::TimedOut => "timed-out",
    }
}

/// Output of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    system: &'a str,
    ended: &'static str,
    /// None: it did not report that it has booted.
    el2: Option<Booted<'a>>,
    refused: Option<Refused<'a>>,
    stopped: &'a [VmEnd],
    exits: &'a [ExitTable],
    summary: &'a RunSummary,
    /// What disks and networks have done, where VMs have any.
    #[serde(skip_serializing_if = "Served::is_empty")]
    served: &'a Served,
}

/// Report of EL2 after it has booted.
#[derive(Serialize)]
struct Booted<'a> {
    version: &'a str,
    pcpus: u32,
    vms: u32,
}

/// Reason for which EL2 refused the plan.
#[derive(Serialize)]
struct Refused<'a> {
    invariant: &'a str,
    place: &'a str,
}

fn conclude(
    args: &Args,
    system: &System,
    end: End,
    transcript: &Transcript,
    messages: &str,
) -> Result<Outcome, Failure> {
    let crashed: Vec<_> = transcript
        .ended
        .iter()
        .filter(|end| !end.orderly())
        .collect();
    let failed = match end {
        End::Emulator(status) if !status.success() => {
            Some((format!("QEMU ended with {status}"), messages.to_owned()))
        }
        End::TimedOut => Some((
            "the time was over; the system was stopped".to_owned(),
            String::new(),
        )),
        _ => None,
    };
    let refused = transcript.refused.as_ref();
    let summary = RunSummary::new(&transcript.exits, &system.classes);
    if !args.json && !summary.is_empty() {
        print!(
            "\nWhat EL2 took, of VMs that have stopped\n{}",
            summary.text()
        );
    }
    if !args.json && !transcript.served.is_empty() {
        print!(
            "\nWhat disks and networks have done\n{}",
            transcript.served.text()
        );
    }
    if args.json {
        let el2 = transcript.booted.as_ref();
        let document = Document {
            system: &system.name,
            ended: ended(end),
            el2: el2.map(|(version, pcpus, vms)| Booted {
                version,
                pcpus: *pcpus,
                vms: *vms,
            }),
            refused: refused.map(|(invariant, place)| Refused { invariant, place }),
            stopped: &transcript.ended,
            exits: &transcript.exits,
            summary: &summary,
            served: &transcript.served,
        };
        println!("{}", json!(document));
    }
    if let End::Signal(signal) = end {
        return Ok(die(signal));
    }
    if let Some((what, why)) = failed {
        return Err(Failure::failed(what, why, ""));
    }
    if let Some((invariant, place)) = refused {
        return Err(Failure::failed(
            format!("EL2 refused the plan: {invariant}"),
            place,
            "build it again; if that does not help, the board is not as the description and its tree say",
        ));
    }
    for end in &crashed {
        eprintln!("error: VM `{}` stopped: {}", end.vm, end.reason);
    }
    Ok(if crashed.is_empty() {
        Outcome::Done
    } else {
        Outcome::Failed
    })
}

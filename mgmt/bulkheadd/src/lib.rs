//! `bulkheadd`: has EL2's control port open and shares it. It keeps nothing that matters: it may end at any time.
#![forbid(unsafe_code)]

pub mod cli;
pub mod consoles;
pub mod journal;
pub mod metrics;
pub mod notify;
pub mod policy;
pub mod relay;
pub mod server;

use std::env;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use bulkhead_control::failure::Failure;
use bulkhead_control::port::{Access, is_nobody};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use cli::Cli;
use journal::{Journal, Priority};
use policy::{Keeper, Shown};
use server::Server;

/// Serves until a signal ends it.
///
/// # Errors
/// A socket cannot be had, or the policy has mistakes: a failure for each.
pub fn run(cli: &Cli) -> Result<(), Vec<Failure>> {
    let policy = match cli.policy() {
        Some(file) => Some((file.clone(), policy::read(&file)?)),
        None => None,
    };
    serve(cli, policy).map_err(|failure| vec![failure])
}

/// Serves with a policy that was read, if there may be one.
fn serve(cli: &Cli, policy: Option<Read>) -> Result<(), Failure> {
    let stop = signals(&[SIGTERM, SIGINT])?;
    let listener = listen(&cli.socket)?;
    let metrics = cli.metrics().map(listen).transpose()?;
    let access = Access {
        socket: None,
        port: cli.port.clone(),
        ..Access::default()
    };
    let open = Box::new(move || access.open_port().map(|(port, _)| port));
    let journal = Journal::new(io::stdout());
    let failed = |error| Failure::environment("control::io", "cannot wait for clients", error);
    let mut server = Server::new(open, listener, journal).map_err(failed)?;
    server.journals_consoles = cli.journal_consoles;
    let shown = Arc::new(Shown::default());
    let policy_socket = policy.is_some().then(|| policy_socket(&cli.socket));
    if let Some(policy) = policy {
        keep(cli, policy, &shown)?;
    }
    if let Some(metrics) = metrics {
        let control = cli.socket.clone();
        // It ends with the process.
        thread::spawn(move || metrics::serve(&metrics, &control, &|more| shown.add_to(more)));
    }
    tell("READY=1");
    let served = server.run(&stop);
    tell("STOPPING=1");
    // Who comes now is to ask EL2 itself.
    for socket in [
        Some(cli.socket.as_path()),
        cli.metrics(),
        policy_socket.as_deref(),
    ]
    .into_iter()
    .flatten()
    {
        let _ = fs::remove_file(socket);
    }
    served.map_err(failed)
}

/// A file of a policy, and what is in it.
type Read = (cli::PolicyFile, Option<bulkhead_policy::rule::Policy>);

/// Lets the policy work, and shows it. Both end with the process.
fn keep(cli: &Cli, policy: Read, shown: &Arc<Shown>) -> Result<(), Failure> {
    let again = signals(&[SIGHUP])?;
    let listener = listen(&policy_socket(&cli.socket))?;
    let (control, is_dry) = (cli.socket.clone(), cli.dry_run);
    let to_show = Arc::clone(shown);
    thread::spawn(move || policy::show(&listener, &to_show));
    let shown = Arc::clone(shown);
    thread::spawn(move || {
        let journal = Journal::new(io::stdout());
        let ended = Keeper::new(policy, is_dry, &control, journal, again, &shown).run();
        if let Err(error) = ended {
            let text = format!("the policy has ended: {error}");
            Journal::new(io::stdout()).say(Priority::Error, &text);
        }
    });
    Ok(())
}

/// Where the policy is shown: beside the socket for clients.
pub fn policy_socket(control: &Path) -> PathBuf {
    control.with_file_name("policy.sock")
}

/// Tells systemd.
fn tell(text: &str) {
    let socket = env::var_os("NOTIFY_SOCKET");
    if let Err(error) = notify::notify(socket.as_deref(), text) {
        let text = format!("systemd does not listen: {error}");
        Journal::new(io::stdout()).say(Priority::Warning, &text);
    }
}

/// What can be read when one of these signals has come.
fn signals(signals: &[i32]) -> Result<UnixStream, Failure> {
    let register = || {
        let (read, write) = UnixStream::pair()?;
        for signal in signals {
            pipe::register(*signal, write.try_clone()?)?;
        }
        Ok::<_, io::Error>(read)
    };
    register().map_err(|error| Failure::environment("control::io", "cannot hear signals", error))
}

/// Listens at a path, in the place of a daemon that died, but not of one that lives.
///
/// # Errors
/// A daemon listens there, or nobody can.
pub fn listen(path: &Path) -> Result<UnixListener, Failure> {
    let what = format!("cannot listen at {}", path.display());
    let failed = |error: io::Error| {
        Failure::environment("control::io", what.clone(), error)
            .advise("be root, or name another place with --socket and --metrics")
    };
    match UnixStream::connect(path) {
        Ok(_) => {
            return Err(Failure::environment(
                "control::busy",
                what.clone(),
                "another bulkheadd listens there",
            )
            .advise("systemctl status bulkheadd"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if is_nobody(&error) => fs::remove_file(path).map_err(failed)?,
        Err(error) => return Err(failed(error)),
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    // Who may connect may stop VMs: root, and the group of the socket.
    fs::set_permissions(path, Permissions::from_mode(0o660)).map_err(failed)?;
    Ok(listener)
}

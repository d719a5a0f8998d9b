//! `bulkheadd`: has EL2's control port open and shares it. It keeps nothing that matters: it may end at any time.
#![forbid(unsafe_code)]

pub mod cli;
pub mod journal;
pub mod metrics;
pub mod notify;
pub mod relay;
pub mod server;

use std::env;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use bulkhead_control::failure::Failure;
use bulkhead_control::port::{Access, is_nobody};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use cli::Cli;
use journal::{Journal, Priority};
use server::Server;

/// Serves until a signal ends it.
///
/// # Errors
/// A socket cannot be had.
pub fn run(cli: &Cli) -> Result<(), Failure> {
    let stop = signals()
        .map_err(|error| Failure::environment("control::io", "cannot hear signals", error))?;
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
    if let Some(metrics) = metrics {
        let control = cli.socket.clone();
        // It ends with the process.
        thread::spawn(move || metrics::serve(&metrics, &control));
    }
    tell("READY=1");
    let served = server.run(&stop);
    tell("STOPPING=1");
    // Who comes now is to ask EL2 itself.
    for socket in [Some(cli.socket.as_path()), cli.metrics()]
        .into_iter()
        .flatten()
    {
        let _ = fs::remove_file(socket);
    }
    served.map_err(failed)
}

/// Tells systemd.
fn tell(text: &str) {
    let socket = env::var_os("NOTIFY_SOCKET");
    if let Err(error) = notify::notify(socket.as_deref(), text) {
        let text = format!("systemd does not listen: {error}");
        Journal::new(io::stdout()).say(Priority::Warning, &text);
    }
}

/// What can be read when a signal has come that ends the process.
fn signals() -> io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        pipe::register(signal, write.try_clone()?)?;
    }
    Ok(read)
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

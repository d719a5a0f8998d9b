//! A daemon in this process, to whose port a test gives an EL2.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bulkhead_control::connection::Connection;
use bulkhead_control::failure::Failure;
use bulkhead_fake_el2::{El2, Fake};
use bulkheadd::journal::Journal;
use bulkheadd::server::Server;
use tempfile::TempDir;

/// A log that a test reads.
#[derive(Clone, Default)]
pub struct Log(pub Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("a log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Ports that are there to be opened, the next one last.
pub type Ports = Arc<Mutex<Vec<UnixStream>>>;

pub struct Daemon {
    pub folder: TempDir,
    pub ports: Ports,
    log: Log,
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = bulkheadd::listen(&folder.path().join("control.sock")).expect("a socket");
        let ports = Ports::default();
        let log = Log::default();
        let (stop, stopped) = UnixStream::pair().expect("a pair of sockets");
        let (all, to) = (Arc::clone(&ports), log.clone());
        let thread = thread::spawn(move || {
            let open = move || {
                let port = all.lock().expect("ports").pop();
                let port = port.ok_or_else(|| {
                    Failure::environment("control::no-port", "there is no port", "")
                })?;
                port.set_nonblocking(true).expect("a socket");
                Ok(File::from(OwnedFd::from(port)))
            };
            let mut server =
                Server::new(Box::new(open), listener, Journal::new(to)).expect("a server");
            server.journals_consoles = true;
            server.run(&stopped).expect("it ends in good order");
        });
        Self {
            folder,
            ports,
            log,
            stop,
            thread: Some(thread),
        }
    }

    /// Plugs an EL2 in, and waits until the daemon knows it.
    pub fn plug(&self, fake: Fake) -> El2 {
        let (el2, port) = El2::start(fake);
        let before = self.logged().matches("EL2 answers").count();
        self.ports.lock().expect("ports").push(port);
        self.wait_for(|log| {
            log.matches("EL2 answers").count() > before && log.contains("control: ")
        });
        el2
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    pub fn client(&self) -> Connection<UnixStream> {
        Connection::new(UnixStream::connect(self.socket()).expect("it listens"), 0)
    }

    pub fn logged(&self) -> String {
        String::from_utf8_lossy(&self.log.0.lock().expect("a log")).into_owned()
    }

    pub fn wait_for(&self, what: impl Fn(&str) -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !what(&self.logged()) {
            assert!(Instant::now() < end, "{}", self.logged());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.write_all(b"x").expect("it listens");
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}

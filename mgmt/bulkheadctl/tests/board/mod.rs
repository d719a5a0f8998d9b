//! A board behind a socket, and the program that is to ask it.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use bulkhead_fake_el2::{El2, Fake};
use tempfile::TempDir;

/// A board, and the folder with its socket.
pub struct Board {
    pub fake: Arc<Mutex<Fake>>,
    /// Connections that were made.
    pub served: Arc<Mutex<Vec<El2>>>,
    pub folder: TempDir,
}

impl Board {
    pub fn start(fake: Fake) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("sock")).expect("a socket");
        let fake = Arc::new(Mutex::new(fake));
        let board = Arc::clone(&fake);
        let served = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&served);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let el2 = El2::serve(Arc::clone(&board), stream);
                all.lock().expect("a list").push(el2);
            }
        });
        Self {
            fake,
            served,
            folder,
        }
    }

    pub fn ctl(&self, words: &str) -> Output {
        ctl(&self.folder.path().join("sock"), words)
    }

    /// What is printed, of a verb that succeeds.
    pub fn text(&self, words: &str) -> String {
        let output = self.ctl(words);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success() && why.is_empty(),
            "{words}: {text}{why}"
        );
        text
    }
}

pub fn ctl(socket: &Path, words: &str) -> Output {
    command(socket, words).output().expect("it runs")
}

pub fn command(socket: &Path, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bulkheadctl"));
    command.arg("--socket").arg(socket).args(words.split(' '));
    command
}

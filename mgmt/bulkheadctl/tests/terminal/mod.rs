//! A terminal for programs that are to have one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::tcgetattr;

use crate::board::{Board, command};

/// A terminal, and what is shown on it.
pub struct Terminal {
    keys: File,
    theirs: File,
    pub shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    pub fn open() -> io::Result<Self> {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let name = ptsname(&ours, Vec::new())?;
        let name = name.to_str().map_err(io::Error::other)?;
        let mut options = File::options();
        options.custom_flags(OFlags::NOCTTY.bits() as i32);
        let theirs = options.read(true).write(true).open(name)?;
        let keys = File::from(ours);
        let (mut screen, shown) = (keys.try_clone()?, Arc::new(Mutex::new(Vec::new())));
        let to = Arc::clone(&shown);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails when the last of the other side is closed.
            while let Ok(read @ 1..) = screen.read(&mut bytes) {
                to.lock()
                    .expect("a screen")
                    .extend_from_slice(&bytes[..read]);
            }
        });
        Ok(Self {
            keys,
            theirs,
            shown,
        })
    }

    pub fn settings(&self) -> String {
        let set = tcgetattr(&self.theirs).expect("a terminal");
        format!(
            "{:?} {:?} {:?}",
            set.input_modes, set.output_modes, set.local_modes
        )
    }

    /// Runs the program on it.
    pub fn run(&self, board: &Board, words: &str) -> Child {
        let end = || Stdio::from(self.theirs.try_clone().expect("a terminal"));
        let mut command = command(&board.folder.path().join("sock"), words);
        command.stdin(end()).stdout(end()).stderr(end());
        command.spawn().expect("it runs")
    }

    pub fn press(&self, keys: &[u8]) {
        (&self.keys).write_all(keys).expect("a terminal");
    }

    pub fn wait_for(&self, text: &str) {
        wait(|| {
            let shown = self.shown.lock().expect("a screen");
            String::from_utf8_lossy(&shown).contains(text)
        });
    }
}

pub fn wait(what: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !what() {
        assert!(Instant::now() < end, "it does not come");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for the end of a program; gives its status.
pub fn end(mut child: Child) -> Option<i32> {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        if let Some(status) = child.try_wait().expect("it runs") {
            return status.code();
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("it runs");
    panic!("it does not end");
}

//! A terminal for programs that are to have one.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

/// A terminal without a program.
pub struct Terminal {
    /// File into which keys are typed.
    pub keys: File,
    /// Bytes that are said on it.
    pub screen: Receiver<Vec<u8>>,
    /// The end for programs. The screen ends when nobody has this any more.
    pub theirs: File,
}

impl Terminal {
    /// Opens a terminal of 132 columns.
    pub fn open() -> io::Result<Self> {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let name = ptsname(&ours, Vec::new())?;
        let name = name.to_str().map_err(io::Error::other)?;
        // A leader of a session without a terminal must not get this one: the command would be a background job, and stop.
        let mut options = File::options();
        options.custom_flags(OFlags::NOCTTY.bits() as i32);
        let theirs = options.read(true).write(true).open(name)?;
        let size = Winsize {
            ws_row: 40,
            ws_col: 132,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&theirs, size)?;
        let keys = File::from(ours);
        let mut reader = keys.try_clone()?;
        let (send, screen) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Reading fails when the last of the other side is closed.
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                if send.send(buffer[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            keys,
            screen,
            theirs,
        })
    }

    /// Returns its settings: those that programs may change and have to restore.
    pub fn settings(&self) -> io::Result<String> {
        let set = tcgetattr(&self.theirs)?;
        Ok(format!(
            "{:?} {:?} {:?} {:?}",
            set.input_modes, set.output_modes, set.control_modes, set.local_modes
        ))
    }
}

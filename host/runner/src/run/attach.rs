//! The console of a running system for other terminals: a socket in the folder of the system's build.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::console::Output;
use super::keys::{Action, Keys};
use super::terminal::{RawMode, is_terminal};
use crate::temp_files::Note;

/// File name of the socket.
pub const SOCKET: &str = "console.sock";

/// Path of the socket in a folder, short enough for a socket address (108 bytes) however deep the
/// folder lies; valid while the folder stays open.
fn address(folder: &File) -> PathBuf {
    format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd()).into()
}

/// Connects to the console of the system whose build lies in the folder.
///
/// # Errors
///
/// No such folder, or nobody listens: the system does not run.
pub fn connect(folder: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(address(&File::open(folder)?))
}

/// Serves the console to everybody who attaches.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    socket: PathBuf,
    _note: Note,
    clients: Vec<Client>,
    /// Latest output, for clients that attach later.
    recent: VecDeque<u8>,
}

/// Somebody who is attached.
#[derive(Debug)]
struct Client {
    stream: UnixStream,
    /// Output that it has not taken yet.
    waiting: VecDeque<u8>,
}

impl Client {
    /// Bytes that may wait for a client. The system waits for nobody: of what is older, lines are left out.
    const WAITING: usize = 1 << 20;

    fn show(&mut self, bytes: &[u8]) -> bool {
        self.waiting.extend(bytes);
        if self.waiting.len() > Self::WAITING {
            let kept = Self::WAITING / 2;
            let old = self.waiting.len() - kept;
            let line = self.waiting.range(old..).position(|&byte| byte == b'\n');
            let lost = line.map_or(old, |line| old + line + 1);
            self.waiting.drain(..lost);
            let note = format!("\r\n({lost} bytes are left out: this terminal was too slow)\r\n");
            for byte in note.bytes().rev() {
                self.waiting.push_front(byte);
            }
        }
        self.send()
    }

    /// Sends what it takes now; tells whether it is still there.
    fn send(&mut self) -> bool {
        while !self.waiting.is_empty() {
            let (next, _) = self.waiting.as_slices();
            match self.stream.write(next) {
                Ok(0) => return false,
                Ok(sent) => drop(self.waiting.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }
}

impl Server {
    /// Bytes of past output that a new client is shown.
    const RECENT: usize = 16 * 1024;

    /// Listens in the folder.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if the system runs already; else the system call's.
    pub fn listen(folder: &Path) -> io::Result<Self> {
        if connect(folder).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let socket = folder.join(SOCKET);
        // Left behind by a tool that was killed; nobody listens there.
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let note = Note::of(&socket);
        let listener = UnixListener::bind(address(&File::open(folder)?))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            socket,
            _note: note,
            clients: Vec::new(),
            recent: VecDeque::new(),
        })
    }

    /// Everything to wait for with [`poll`], and for what.
    pub fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let clients = self.clients.iter().map(|client| {
            let flags = match client.waiting.is_empty() {
                true => PollFlags::IN,
                false => PollFlags::IN | PollFlags::OUT,
            };
            (client.stream.as_fd(), flags)
        });
        std::iter::once((self.listener.as_fd(), PollFlags::IN)).chain(clients)
    }

    /// Shows output to all clients. For one that does not keep up it waits, and not for ever all of it: the
    /// system must not be held up.
    pub fn show(&mut self, bytes: &[u8]) {
        self.clients.retain_mut(|client| client.show(bytes));
        self.recent.extend(bytes);
        let excess = self.recent.len().saturating_sub(Self::RECENT);
        self.recent.drain(..excess);
    }

    /// Takes new clients in, sends what waits, and gives the keys that clients have typed.
    pub fn serve(&mut self) -> Vec<u8> {
        while let Ok((stream, _)) = self.listener.accept() {
            let recent = self.recent.make_contiguous();
            // The oldest line is likely cut; start behind it.
            let start = recent
                .iter()
                .position(|&b| b == b'\n')
                .map_or(0, |at| at + 1);
            let mut client = Client {
                stream,
                waiting: VecDeque::new(),
            };
            if client.stream.set_nonblocking(true).is_ok() && client.show(&recent[start..]) {
                self.clients.push(client);
            }
        }
        let mut keys = Vec::new();
        self.clients.retain_mut(|client| {
            let mut buffer = [0; 1024];
            match client.stream.read(&mut buffer) {
                Ok(0) => false,
                Ok(n) => {
                    keys.extend_from_slice(&buffer[..n]);
                    true
                }
                Err(error) => matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ),
            }
        });
        self.clients.retain_mut(Client::send);
        keys
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The last words, which are those that say why it ended; somebody who does not read them is not waited for.
        for client in &mut self.clients {
            let patience = Some(Duration::from_secs(1));
            let waits = client.stream.set_nonblocking(false).is_ok();
            if waits && client.stream.set_write_timeout(patience).is_ok() {
                client.send();
            }
        }
        // A socket left behind is recognised and removed by the next run.
        let _ = fs::remove_file(&self.socket);
    }
}

/// Keys that this tool takes from a visitor, beside the help of the console itself.
const HELP: &[u8] = b"\r\nCtrl-T d or Ctrl-T q: leave this console, the system runs on\r\n";

/// End of a client's visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// The user left.
    Left,
    /// The system has ended.
    Ended,
}

/// Connects the user's terminal (or pipes) with a console until one of them ends.
///
/// # Errors
///
/// The terminal or the output is gone.
pub fn visit(mut console: UnixStream) -> io::Result<Visit> {
    let _raw = is_terminal().then(RawMode::enter).transpose()?;
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut screen = Output::new(false);
    let mut keys = Keys::default();
    let mut typing = true;
    let mut buffer = [0; 4096];
    loop {
        let mut fds = vec![PollFd::new(&console, PollFlags::IN)];
        if typing {
            fds.push(PollFd::new(&stdin, PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let output = !fds[0].revents().is_empty();
        let typed = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        if output {
            match console.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return Ok(Visit::Ended),
                Ok(n) => screen.write(&buffer[..n])?,
            }
        }
        if typed {
            let n = stdin.read(&mut buffer)?;
            typing = n > 0;
            let (pass, action) = keys.filter(&buffer[..n]);
            if keys.asks_for_help() {
                screen.write(HELP)?;
            }
            if console.write_all(&pass).is_err() {
                return Ok(Visit::Ended);
            }
            if let Some(Action::Quit | Action::Detach) = action {
                return Ok(Visit::Left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(client: &mut UnixStream, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        client.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn several_attach_see_the_same_and_type() {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Server::listen(folder.path()).unwrap();
        server.show(b"cut\nearlier\n");
        let mut a = connect(folder.path()).unwrap();
        let mut b = connect(folder.path()).unwrap();
        assert_eq!(server.serve(), b"");
        server.show(b"now\n");
        assert_eq!(read(&mut a, 12), b"earlier\nnow\n");
        assert_eq!(read(&mut b, 12), b"earlier\nnow\n");
        a.write_all(b"ls\r").unwrap();
        assert_eq!(server.serve(), b"ls\r");
        drop(a);
        // The child that another test is just starting has it, too, until it becomes its program.
        while server.clients.len() > 1 {
            assert_eq!(server.serve(), b"");
        }
        server.show(b"later\n");
        assert_eq!(read(&mut b, 6), b"later\n");
    }

    #[test]
    fn a_second_run_is_refused_and_a_dead_socket_is_not_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::listen(folder.path()).unwrap();
        let second = Server::listen(folder.path()).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        let socket = server.socket.clone();
        drop(server);
        assert!(!socket.exists());
        drop(UnixListener::bind(&socket).unwrap());
        assert!(socket.exists());
        // The child that another test is just starting has the listener, too, until it becomes its program.
        while connect(folder.path()).is_ok() {}
        Server::listen(folder.path()).unwrap();
    }

    #[test]
    fn a_folder_of_any_depth_will_do() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("x".repeat(120)).join("y".repeat(120));
        fs::create_dir_all(&deep).unwrap();
        let server = Server::listen(&deep).unwrap();
        connect(&deep).unwrap();
        drop(server);
        assert_eq!(connect(&deep).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_client_that_reads_late_stays_and_misses_old_lines_only() {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Server::listen(folder.path()).unwrap();
        let mut client = connect(folder.path()).unwrap();
        server.serve();
        // More than a socket takes, and less than may wait.
        let line = [&[b'x'; 79][..], b"\n"].concat();
        let lines = 8 * 1024;
        for _ in 0..lines {
            server.show(&line);
        }
        assert_eq!(server.clients.len(), 1);
        let reader = std::thread::spawn(move || {
            let all = read(&mut client, lines * 80);
            (all, client)
        });
        while !server.clients[0].waiting.is_empty() {
            server.serve();
        }
        let (all, mut client) = reader.join().unwrap();
        assert_eq!(all, line.repeat(lines));
        for _ in 0..1000 {
            server.show(&[b'y'; 4096]);
        }
        server.show(b"\nlast\n");
        let reader = std::thread::spawn(move || {
            let mut rest = String::new();
            client.read_to_string(&mut rest).unwrap();
            rest
        });
        // Its last words wait for who is still reading.
        while server.clients[0].waiting.len() > 1024 {
            server.serve();
        }
        drop(server);
        let rest = reader.join().unwrap();
        assert!(rest.contains("bytes are left out: this terminal was too slow)"));
        assert!(rest.ends_with("\nlast\n"));
    }
}

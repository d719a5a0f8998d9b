//! Where EL2 is spoken to: the daemon's socket, or the port itself, which one program at a time can have open.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bulkhead_abi::control::PORT_NAME;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::connection::Connection;
use crate::failure::Failure;

/// Socket of the daemon.
pub const SOCKET: &str = "/run/bulkhead/control.sock";
/// Another program that asks a few questions is done within this time.
const OTHERS: Duration = Duration::from_secs(2);

/// Where EL2 may be spoken to.
#[derive(Clone, Debug)]
pub struct Access {
    /// The daemon's socket; none: it is not asked.
    pub socket: Option<PathBuf>,
    /// The port's device; none: it is looked for.
    pub port: Option<PathBuf>,
    /// The root of the file system.
    pub root: PathBuf,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            socket: Some(SOCKET.into()),
            port: None,
            root: "/".into(),
        }
    }
}

/// What leads to EL2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// The daemon, by this socket.
    Daemon(PathBuf),
    /// The port itself.
    Port(PathBuf),
}

impl Via {
    /// Its path.
    pub fn path(&self) -> &Path {
        let (Self::Daemon(path) | Self::Port(path)) = self;
        path
    }
}

/// Finds the device of the control port: by the link that udev makes, or by the kernel's own list, where there is no udev.
pub fn find(root: &Path) -> Option<PathBuf> {
    let link = root.join("dev/virtio-ports").join(PORT_NAME);
    if link.exists() {
        return Some(link);
    }
    let ports = fs::read_dir(root.join("sys/class/virtio-ports")).ok()?;
    let port = ports.flatten().find(|port| {
        let name = fs::read_to_string(port.path().join("name"));
        name.is_ok_and(|name| name.trim_end() == PORT_NAME)
    })?;
    Some(root.join("dev").join(port.file_name()))
}

impl Access {
    /// The device of the port: the one that was named, or the one that is found.
    ///
    /// # Errors
    /// There is none.
    pub fn device(&self) -> Result<PathBuf, Failure> {
        let found = self.port.clone().or_else(|| find(&self.root));
        found.ok_or_else(|| {
            let why = format!("no virtio-console of this VM has a port `{PORT_NAME}`");
            Failure::environment("control::no-port", "this VM has no control port", why).advise(
                "the port comes with `manages` of a VM in the description; in an initramfs mount devtmpfs on /dev and sysfs on /sys, and load virtio_mmio and virtio_console",
            )
        })
    }

    /// Opens the port itself.
    ///
    /// # Errors
    /// There is none, or somebody else has it, or this user may not.
    pub fn open_port(&self) -> Result<(File, PathBuf), Failure> {
        let path = self.device()?;
        match open(&path) {
            Ok(port) => Ok((port, path)),
            Err(error) => Err(cannot_open(&path, error, self.socket.as_deref())),
        }
    }

    /// Connects to EL2: through the daemon if it runs, else by the port.
    ///
    /// # Errors
    /// Neither can be had.
    pub fn connect(&self) -> Result<(Connection<File>, Via), Failure> {
        let end = Instant::now() + OTHERS;
        loop {
            if let Some(socket) = &self.socket {
                match UnixStream::connect(socket) {
                    Ok(stream) => {
                        let file = File::from(OwnedFd::from(stream));
                        let connection = Connection::new(file, first_number());
                        return Ok((connection, Via::Daemon(socket.clone())));
                    }
                    // Of a daemon that died its socket is left; the port is free then.
                    Err(error) if is_nobody(&error) => {}
                    Err(error) => return Err(cannot_open(socket, error, None)),
                }
            }
            match self.open_port() {
                Err(failure) if failure.code == BUSY && Instant::now() < end => {
                    thread::sleep(Duration::from_millis(50));
                }
                Err(failure) => return Err(failure),
                Ok((port, path)) => {
                    let connection = Connection::new(port, first_number());
                    return Ok((connection, Via::Port(path)));
                }
            }
        }
    }
}

/// Whether nobody listens at a socket.
pub fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// Opens a port. Without O_NONBLOCK the kernel would turn round and round in a write until EL2 has taken it.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Code of the failure that somebody else has the port.
pub const BUSY: &str = "control::busy";

fn cannot_open(path: &Path, error: io::Error, socket: Option<&Path>) -> Failure {
    let what = format!("cannot open {}", path.display());
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    match code {
        Some(Errno::BUSY) => {
            let daemon = socket.map_or_else(
                || "bulkheadd has it open".to_owned(),
                |socket| {
                    let socket = socket.display();
                    format!(
                        "another program has it open, and bulkheadd does not listen at {socket}"
                    )
                },
            );
            Failure::environment(BUSY, what, format!("{daemon}; one at a time can have the port"))
                .advise("with bulkheadd many can ask at once: systemctl start bulkheadd, when a `bulkheadctl top` or `events --follow` elsewhere has ended")
        }
        Some(Errno::ACCESS | Errno::PERM) => Failure::environment("control::denied", what, error)
            .advise("be root: sudo bulkheadctl ..."),
        _ => Failure::environment("control::io", what, error).advise("see `bulkheadctl doctor`"),
    }
}

/// A number that hardly anybody used just before: nanoseconds of now.
fn first_number() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A root with these ports in /sys, by number and name.
    fn root(ports: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(root.path().join("dev")).expect("a folder");
        for (port, name) in ports {
            let folder = root.path().join("sys/class/virtio-ports").join(port);
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join("name"), format!("{name}\n")).expect("a file");
        }
        root
    }

    #[test]
    fn without_udev_the_port_is_found_by_its_name_in_sys() {
        let root = root(&[
            ("vport0p1", "org.bulkhead.control.x"),
            ("vport2p3", PORT_NAME),
        ]);
        assert_eq!(find(root.path()), Some(root.path().join("dev/vport2p3")));
    }

    #[test]
    fn the_link_of_udev_comes_first() {
        let root = root(&[("vport2p3", PORT_NAME)]);
        let links = root.path().join("dev/virtio-ports");
        fs::create_dir_all(&links).expect("a folder");
        fs::write(root.path().join("dev/vport9p9"), "").expect("a file");
        symlink("../vport9p9", links.join(PORT_NAME)).expect("a link");
        assert_eq!(find(root.path()), Some(links.join(PORT_NAME)));
        // One that leads nowhere is none.
        fs::remove_file(root.path().join("dev/vport9p9")).expect("removed");
        assert_eq!(find(root.path()), Some(root.path().join("dev/vport2p3")));
    }

    #[test]
    fn a_vm_without_a_port_is_told_so() {
        let root = root(&[("vport0p1", "org.bulkhead.control.x")]);
        let access = Access {
            socket: Some(root.path().join("none.sock")),
            port: None,
            root: root.path().to_owned(),
        };
        let failure = access.connect().expect_err("no port");
        assert_eq!(failure.code, "control::no-port");
    }

    #[test]
    fn a_socket_that_a_dead_daemon_left_is_passed_over() {
        let root = root(&[("vport0p1", PORT_NAME)]);
        fs::write(root.path().join("dev/vport0p1"), "").expect("a file");
        let socket = root.path().join("control.sock");
        drop(UnixListener::bind(&socket).expect("a socket"));
        let access = Access {
            socket: Some(socket.clone()),
            port: None,
            root: root.path().to_owned(),
        };
        let (_, via) = access.connect().expect("the port");
        assert_eq!(via, Via::Port(root.path().join("dev/vport0p1")));
        fs::remove_file(&socket).expect("removed");
        let _daemon = UnixListener::bind(&socket).expect("a socket");
        let (_, via) = access.connect().expect("the daemon");
        assert_eq!(via, Via::Daemon(socket));
    }

    #[test]
    fn a_busy_port_names_the_daemon() {
        let error = || io::Error::from_raw_os_error(Errno::BUSY.raw_os_error());
        let failure = cannot_open(Path::new("/dev/vport0p1"), error(), None);
        assert_eq!(failure.code, BUSY);
        assert!(failure.why.contains("bulkheadd"), "{failure}");
        let socket = Some(Path::new(SOCKET));
        let failure = cannot_open(Path::new("/dev/vport0p1"), error(), socket);
        assert!(failure.why.contains(SOCKET), "{failure}");
        let denied = io::Error::from_raw_os_error(Errno::ACCESS.raw_os_error());
        let failure = cannot_open(Path::new("/dev/vport0p1"), denied, None);
        assert_eq!(failure.code, "control::denied");
    }
}

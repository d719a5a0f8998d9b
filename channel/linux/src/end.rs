//! An end of a channel: its maps, what it hears by and what it rings.

use std::error::Error;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_channel::{Receiver, Sender, Shape, open};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

use crate::node::{Memory, Node, Range, TREE};
use crate::sys::{self, Map};

/// Reason that an end was not opened.
#[derive(Debug)]
pub enum OpenError {
    /// The device tree has no channel of that name.
    NoChannel(String),
    /// Its memory is cached, and this VM has no pmem region in which a program could map it: the description is not to say `cacheable = true`.
    Cacheable(String),
    /// A driver that is to hear or to ring is missing: its name, and that of the device that it should have.
    NoDriver(&'static str, String),
    /// A file cannot be opened or used. Busy is a GPIO line that another program has: it has this end open. An invalid argument of
    /// `/dev/mem` is a kernel whose pages are larger than the channel's memory is aligned. No such device, of a `/dev/daxN.M`: device_dax is not
    /// loaded.
    File(PathBuf, io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoChannel(name) => write!(f, "this VM has no channel `{name}`"),
            Self::Cacheable(name) => write!(
                f,
                "no program of this kernel maps the memory of channel `{name}`, which is cached: its description is not to say cacheable = true"
            ),
            Self::NoDriver(driver, device) => {
                write!(f, "there is no device `{device}`: is {driver} loaded?")
            }
            Self::File(path, why) => write!(f, "{}: {why}", path.display()),
        }
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::File(_, why) => Some(why),
            _ => None,
        }
    }
}

/// An end of a channel. When it is dropped what was sent stays.
#[derive(Debug)]
pub struct End {
    own: Map,
    peer: Map,
    shape: Shape,
    /// The input device.
    heard: Option<OwnedFd>,
    /// The line of a GPIO controller.
    line: Option<OwnedFd>,
}

impl End {
    /// Opens this VM's end of the channel with this name. Who opens one whose other end hears rings that once.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(name: &str) -> Result<Self, OpenError> {
        let no_channel = || OpenError::NoChannel(name.to_owned());
        let node = Node::find(Path::new(TREE), name).ok_or_else(no_channel)?;
        let (path, base, flags) = match node.memory {
            // As Device memory.
            Memory::Uncached => (PathBuf::from("/dev/mem"), 0, OFlags::SYNC),
            Memory::Cached { start, data } => (dax(start)?, data, OFlags::empty()),
            Memory::OfKernel => return Err(OpenError::Cacheable(name.to_owned())),
        };
        let memory = open_file(&path, OFlags::RDWR | flags)?;
        let failed = |why| OpenError::File(path, why);
        let mut end = Self::map(&memory, base, &node)
            .map_err(failed)?
            .ok_or_else(no_channel)?;
        if node.hears {
            let heard = open_file(&input(name)?, OFlags::RDONLY | OFlags::NONBLOCK)?;
            end.heard = Some(heard);
        }
        if let Some(doorbell) = node.doorbell {
            let chip = gpio_chip(doorbell)?;
            let line = sys::request_line(open_file(&chip, OFlags::RDWR)?);
            end.line = Some(line.map_err(|why| OpenError::File(chip, why))?);
        }
        Ok(end)
    }

    /// Maps both regions by a file that starts at address `base`; none if they do not hold the channel.
    fn map(memory: impl AsFd, base: u64, node: &Node) -> io::Result<Option<Self>> {
        let map = |Range { start, bytes }, own| {
            let start = start.checked_sub(base);
            let start = start.ok_or(io::ErrorKind::InvalidData)?;
            Map::new(&memory, Range { start, bytes }, own)
        };
        let end = Self {
            own: map(node.own, true)?,
            peer: map(node.peer, false)?,
            shape: node.shape,
            heard: None,
            line: None,
        };
        let holds = open(end.own.words(), end.peer.words(), end.shape).is_some();
        Ok(holds.then_some(end))
    }

    /// How long messages are, and how many wait.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The direction in which this end sends. All that it has to know is in memory: there may be another one later.
    pub fn sender(&mut self) -> Sender<'_> {
        self.directions().0
    }

    /// The direction in which this end receives, likewise.
    pub fn receiver(&mut self) -> Receiver<'_> {
        self.directions().1
    }

    /// Both, for who wants to keep them.
    pub fn directions(&mut self) -> (Sender<'_>, Receiver<'_>) {
        // `map` has tried it.
        open(self.own.words(), self.peer.words(), self.shape).expect("regions that hold it")
    }

    /// Whether the other end may sleep though this one has sent or taken: an earlier life ended before it rang. To be asked when a
    /// program starts, and answered by [`End::ring`].
    pub fn owes(&mut self) -> bool {
        let (sender, receiver) = self.directions();
        sender.owes() || receiver.owes()
    }

    /// Rings the other end.
    ///
    /// # Errors
    /// That of the system call; [`io::ErrorKind::Unsupported`] if the other end polls.
    pub fn ring(&self) -> io::Result<()> {
        let line = self.line.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        sys::stores_before_ring();
        sys::set_line(line)
    }

    /// What can be read when the other end has rung, to be polled among other files; none if this end polls. [`End::heard`] makes
    /// it unreadable again.
    pub fn heard_by(&self) -> Option<BorrowedFd<'_>> {
        self.heard.as_ref().map(AsFd::as_fd)
    }

    /// Tells whether the other end has rung since the last call. To be called before looking for messages.
    ///
    /// # Errors
    /// That of the system call.
    pub fn heard(&self) -> io::Result<bool> {
        let mut any = false;
        let Some(heard) = &self.heard else {
            return Ok(any);
        };
        // Some events of 24 bytes.
        let mut events = [0; 24 * 64];
        loop {
            match rustix::io::read(heard, &mut events) {
                Ok(0) | Err(rustix::io::Errno::AGAIN) => return Ok(any),
                Ok(_) => any = true,
                Err(rustix::io::Errno::INTR) => {}
                Err(why) => return Err(why.into()),
            }
        }
    }

    /// Sleeps until the other end rings, or for so long. Tells whether it has rung.
    ///
    /// # Errors
    /// That of the system call; [`io::ErrorKind::Interrupted`] after a signal; [`io::ErrorKind::Unsupported`] if this end polls.
    pub fn sleep(&self, limit: Option<Duration>) -> io::Result<bool> {
        let heard = self.heard.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let limit = limit.map(Timespec::try_from).transpose();
        let limit = limit.map_err(|_| io::ErrorKind::InvalidInput)?;
        poll(&mut [PollFd::new(heard, PollFlags::IN)], limit.as_ref())?;
        self.heard()
    }
}

fn open_file(path: &Path, flags: OFlags) -> Result<OwnedFd, OpenError> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
        .map_err(|why| OpenError::File(path.to_owned(), why.into()))
}

/// The file by which the pmem region that starts at an address is mapped.
fn dax(start: u64) -> Result<PathBuf, OpenError> {
    let folder = Path::new("/sys/bus/dax/devices");
    let device = format!("{start:x}.pmem");
    let of_region = |name: &String| {
        let path = fs::canonicalize(folder.join(name)).unwrap_or_default();
        path.iter().any(|part| part == device.as_str())
    };
    let file = names("/sys/bus/dax/devices").find(of_region);
    let file = file.map(|name| Path::new("/dev").join(name));
    file.ok_or(OpenError::NoDriver(
        "device_dax, dax_pmem or of_pmem",
        device,
    ))
}

/// The file of the input device that is pressed when the channel's doorbell to this VM is rung.
fn input(channel: &str) -> Result<PathBuf, OpenError> {
    let wanted = format!("bulkhead {channel}");
    let file = names("/sys/class/input").find(|name| {
        let device = Path::new("/sys/class/input").join(name).join("device/name");
        name.starts_with("event") && fs::read_to_string(device).is_ok_and(|is| is.trim() == wanted)
    });
    let file = file.map(|name| Path::new("/dev/input").join(name));
    file.ok_or(OpenError::NoDriver("gpio_keys or evdev", wanted))
}

/// The file of the GPIO controller whose register is at an address.
fn gpio_chip(address: u64) -> Result<PathBuf, OpenError> {
    let device = format!("{address:x}.gpio");
    let chip = names(&format!("/sys/bus/platform/devices/{device}"))
        .find(|name| name.starts_with("gpiochip"));
    let chip = chip.map(|name| Path::new("/dev").join(name));
    chip.ok_or(OpenError::NoDriver("gpio-mmio", device))
}

/// The names of what is in a folder.
fn names(folder: &str) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use bulkhead_channel::SendError;

    use super::*;

    /// A file for memory, and the nodes of both ends.
    fn two_ends() -> (fs::File, [Node; 2]) {
        let file = tempfile::tempfile().expect("a file");
        let bytes = 0x10000;
        file.set_len(2 * bytes).expect("two regions");
        let range = |start| Range {
            start,
            bytes: bytes as usize,
        };
        let node = |own, peer| Node {
            own: range(own),
            peer: range(peer),
            doorbell: None,
            hears: false,
            memory: Memory::Uncached,
            shape: Shape::new(16, 4).expect("a channel"),
        };
        (file, [node(0, bytes), node(bytes, 0)])
    }

    #[test]
    fn messages_go_both_ways_through_maps_and_outlive_an_end() {
        let (file, nodes) = two_ends();
        let open = |node| End::map(&file, 0, node).expect("maps").expect("it fits");
        let [mut one, mut other] = nodes.each_ref().map(open);
        for (from, to) in [(true, b"one"), (false, b"two")] {
            let (sender, receiver) = if from {
                (&mut one, &mut other)
            } else {
                (&mut other, &mut one)
            };
            assert_eq!(sender.sender().send(to), Ok(false));
            let mut message = [0; 16];
            assert_eq!(receiver.receiver().look(&mut message), Ok(Some(3)));
            assert_eq!(&message[..3], to);
        }
        // The other end starts again: what it has seen and not taken is there.
        drop(other);
        let mut other = open(&nodes[1]);
        assert_eq!(other.receiver().taken(), 0);
        assert!(!other.receiver().take());
        assert!(other.receiver().wait());
        assert_eq!(one.sender().send(b"three"), Ok(true));
        // Each wrote into its own region: first the number of what it has sent.
        let sent = |start| {
            let mut head = [0; 8];
            file.read_exact_at(&mut head, start).expect("two regions");
            u64::from_ne_bytes(head)
        };
        assert_eq!((sent(0), sent(0x10000)), (2, 1));
        assert!(one.owes() && !other.owes());
        for _ in 0..3 {
            assert!(one.sender().send(b"more").is_ok());
        }
        assert_eq!(one.sender().send(b"too much"), Err(SendError::Full));
    }

    #[test]
    fn a_file_that_starts_at_an_address_is_mapped_from_there() {
        let (file, [mut node, _]) = two_ends();
        let base = 0x7820_0000;
        node.own.start += base;
        node.peer.start += base;
        let mut end = End::map(&file, base, &node)
            .expect("maps")
            .expect("it fits");
        assert!(end.sender().send(b"one").is_ok());
        let mut head = [0; 8];
        file.read_exact_at(&mut head, 0).expect("two regions");
        assert_eq!(u64::from_ne_bytes(head), 1);
        let below = End::map(&file, base + 1, &node);
        assert!(below.is_err_and(|why| why.kind() == io::ErrorKind::InvalidData));
    }

    #[test]
    fn an_end_that_polls_neither_sleeps_nor_rings_one_that_does() {
        let (file, [node, _]) = two_ends();
        let end = End::map(&file, 0, &node).expect("maps").expect("it fits");
        let unsupported = |said: io::Error| said.kind() == io::ErrorKind::Unsupported;
        assert!(end.ring().is_err_and(unsupported));
        assert!(end.sleep(None).is_err_and(unsupported));
        assert!(end.heard_by().is_none());
        assert!(end.heard().is_ok_and(|heard| !heard));
    }

    #[test]
    fn an_end_hears_each_ring_until_it_says_so() {
        let (file, [node, _]) = two_ends();
        let mut end = End::map(&file, 0, &node).expect("maps").expect("it fits");
        let (reads, writes) = std::os::unix::net::UnixStream::pair().expect("two files");
        reads.set_nonblocking(true).expect("a file of ours");
        end.heard = Some(reads.into());
        let short = Some(Duration::from_millis(1));
        assert!(end.sleep(short).is_ok_and(|rung| !rung));
        io::Write::write_all(&mut &writes, &[0; 48]).expect("room");
        assert!(end.sleep(None).is_ok_and(|rung| rung));
        assert!(end.sleep(short).is_ok_and(|rung| !rung));
    }

    #[test]
    fn regions_that_are_too_small_are_no_channel() {
        let (file, [mut node, _]) = two_ends();
        node.shape = Shape::new(4096, 64).expect("a channel");
        assert!(End::map(&file, 0, &node).expect("maps").is_none());
        let none = dax(0x7800_0000);
        assert!(matches!(none, Err(OpenError::NoDriver(_, device)) if device == "78000000.pmem"));
        assert!(matches!(End::open("none"), Err(OpenError::NoChannel(_))));
    }
}

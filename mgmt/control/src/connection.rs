//! Requests out, messages in: answers are matched by their numbers, events are kept until somebody wants them.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use bulkhead_abi::control::{EVENT_STATE, Message, Request, Status, VERSION};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerocopy::{FromBytes, IntoBytes};

use crate::failure::Failure;

/// Length of a message.
pub const MESSAGE: usize = size_of::<Message>();
/// Length of a request.
pub const REQUEST: usize = size_of::<Request>();
/// Time in which EL2 answers: it gives up on a pCPU after 100 ms, and many may have asked before.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two attempts to write to a port whose other end is not open.
const NOT_OPEN_YET: Duration = Duration::from_millis(20);
/// Events that are kept for somebody who does not take them.
const KEPT: usize = 1024;

/// Why there is no answer.
#[derive(Debug)]
pub enum Trouble {
    /// The system call failed.
    Io(io::Error),
    /// The other end is not there any more.
    Gone,
    /// Nothing came in time.
    Silent(Duration),
    /// The other end speaks this version.
    Version(u64),
}

impl Trouble {
    /// The trouble that an error of reading or writing is: a port that was unplugged and a socket without a peer are gone.
    pub fn of(error: io::Error) -> Self {
        /// ENODEV, which has no kind of its own.
        const NO_DEVICE: i32 = 19;
        match error.kind() {
            ErrorKind::BrokenPipe
            | ErrorKind::ConnectionReset
            | ErrorKind::NotConnected
            | ErrorKind::UnexpectedEof => Self::Gone,
            _ if error.raw_os_error() == Some(NO_DEVICE) => Self::Gone,
            _ => Self::Io(error),
        }
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        let what = "EL2 cannot be asked";
        match trouble {
            Trouble::Io(why) => Self::environment("control::io", what, why),
            Trouble::Gone => {
                let why = "the other end closed the connection";
                Self::environment("control::gone", what, why).advise(
                    "see `bulkheadctl doctor`, and if bulkheadd runs: journalctl -u bulkheadd",
                )
            }
            Trouble::Silent(after) => {
                let why = format!("no answer within {} s", after.as_secs_f64());
                Self::environment("control::silent", what, why)
                    .advise("the console of the board may say more")
            }
            Trouble::Version(theirs) => {
                let why = format!(
                    "it speaks version {theirs} of the control protocol, this program {VERSION}"
                );
                Self::environment("control::version", what, why).advise(
                    "install the bulkhead-mgmt package that belongs to the EL2 of this board",
                )
            }
        }
    }
}

/// Puts messages together from what reads give: a read may end anywhere.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    /// The message is whole, with what follows it.
    is_whole: bool,
}

impl Incoming {
    /// Reads once; gives a message if that has completed one, and what follows it ([`Message::data`]).
    ///
    /// # Errors
    /// Reading failed, [`ErrorKind::UnexpectedEof`] at the end, or [`ErrorKind::WouldBlock`] when there is nothing now.
    pub fn read(&mut self, from: &mut impl Read) -> io::Result<Option<(Message, &[u8])>> {
        if self.is_whole {
            self.bytes.clear();
            self.is_whole = false;
        }
        let filled = self.bytes.len();
        self.bytes.resize(self.length(), 0);
        let read = from.read(&mut self.bytes[filled..]);
        self.bytes.truncate(filled + *read.as_ref().unwrap_or(&0));
        if read? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.is_whole = self.bytes.len() == self.length();
        let message = Message::read_from_prefix(&self.bytes).ok();
        let whole = message.filter(|_| self.is_whole);
        Ok(whole)
    }

    /// Length of the message that is being read, as far as is known.
    fn length(&self) -> usize {
        let message = Message::read_from_prefix(&self.bytes).ok();
        // Other versions are for those to say who know them.
        let data = message.filter(|(message, _)| message.version == VERSION);
        MESSAGE + data.map_or(0, |(message, _)| message.data.into())
    }
}

/// A connection to EL2, over the port itself or the daemon's socket.
#[derive(Debug)]
pub struct Connection<T> {
    link: T,
    incoming: Incoming,
    last: u32,
    /// Numbers of requests whose answers somebody waits for.
    awaited: Vec<u32>,
    /// Answers, each with what follows it.
    answers: Vec<(Message, Vec<u8>)>,
    events: VecDeque<Message>,
    /// Time in which an answer has to come.
    pub patience: Duration,
}

impl<T: Read + Write + AsFd> Connection<T> {
    /// A connection over `link`. Numbers of requests begin behind `last`: a port may still hold an answer to who had it open before,
    /// which has to have another number.
    pub fn new(link: T, last: u32) -> Self {
        Self {
            link,
            incoming: Incoming::default(),
            last,
            awaited: Vec::new(),
            answers: Vec::new(),
            events: VecDeque::new(),
            patience: PATIENCE,
        }
    }

    /// Sends a request and waits for its answer, whatever its status is. Version and number are filled in.
    ///
    /// # Errors
    /// No answer came, or one of another version.
    pub fn call(&mut self, request: Request) -> Result<Message, Trouble> {
        let number = self.send(request)?;
        self.answer(number)
    }

    /// Sends a request; gives the number that its answer will have.
    ///
    /// # Errors
    /// It cannot be sent in time.
    pub fn send(&mut self, request: Request) -> Result<u32, Trouble> {
        let number = self.number();
        let request = Request {
            version: VERSION,
            number,
            ..request
        };
        self.awaited.push(number);
        let sent = self.write(request.as_bytes());
        if sent.is_err() {
            self.awaited.retain(|one| *one != number);
        }
        sent.map(|()| number)
    }

    /// Waits for the answer to the request with this number.
    ///
    /// # Errors
    /// None came in time, or one of another version.
    pub fn answer(&mut self, number: u32) -> Result<Message, Trouble> {
        self.answer_data(number).map(|(answer, _)| answer)
    }

    /// The same, with the bytes that follow the answer.
    ///
    /// # Errors
    /// None came in time, or one of another version.
    pub fn answer_data(&mut self, number: u32) -> Result<(Message, Vec<u8>), Trouble> {
        let end = Instant::now() + self.patience;
        let answer = loop {
            let kept = self
                .answers
                .iter()
                .position(|(one, _)| one.number == number);
            if let Some(at) = kept {
                break Ok(self.answers.swap_remove(at));
            }
            match self.receive(Some(end)) {
                Ok(true) => {}
                Ok(false) => break Err(Trouble::Silent(self.patience)),
                Err(trouble) => break Err(trouble),
            }
        };
        self.awaited.retain(|one| *one != number);
        let (answer, data) = answer?;
        if answer.status == Status::Version as u16 {
            return Err(Trouble::Version(answer.values[0]));
        }
        Ok((answer, data))
    }

    /// The next event: one that was kept, or the first that comes within `timeout`; without one it waits for ever.
    ///
    /// # Errors
    /// The connection broke.
    pub fn event(&mut self, timeout: Option<Duration>) -> Result<Option<Message>, Trouble> {
        let end = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if !self.receive(end)? {
                return Ok(None);
            }
        }
    }

    /// What to wait for, where somebody waits for something else, too: when it is ready there may be an event.
    pub const fn link(&self) -> &T {
        &self.link
    }

    /// Events that were kept, which nobody has taken.
    pub fn events(&self) -> impl Iterator<Item = &Message> {
        self.events.iter()
    }

    /// Forgets the events that were kept.
    pub fn forget_events(&mut self) {
        self.events.clear();
    }

    /// The next number: not 0, and not one whose answer is still to come.
    fn number(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.awaited.contains(&self.last) {
                return self.last;
            }
        }
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), Trouble> {
        let end = Instant::now() + self.patience;
        while !bytes.is_empty() {
            match self.link.write(bytes) {
                Ok(0) => return Err(Trouble::Gone),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let ready = wait(&self.link, PollFlags::OUT, Some(end))?;
                    if ready.is_empty() || Instant::now() >= end {
                        return Err(Trouble::Silent(self.patience));
                    }
                    // The other end of a port that was just found is not open yet: poll does not wait for that.
                    if !ready.contains(PollFlags::OUT) {
                        thread::sleep(NOT_OPEN_YET);
                    }
                }
                Err(error) => return Err(Trouble::of(error)),
            }
        }
        Ok(())
    }

    /// Reads once, when there is something before `end`, and puts away what that completes. False: there was nothing.
    fn receive(&mut self, end: Option<Instant>) -> Result<bool, Trouble> {
        if wait(&self.link, PollFlags::IN, end)?.is_empty() {
            return Ok(false);
        }
        let (message, data) = match self.incoming.read(&mut self.link) {
            Ok(Some(whole)) => whole,
            Ok(None) => return Ok(true),
            Err(error)
                if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) =>
            {
                return Ok(true);
            }
            Err(error) => return Err(Trouble::of(error)),
        };
        if message.version != VERSION {
            return Err(Trouble::Version(message.version.into()));
        }
        if message.number != 0 {
            // Others are answers to who had the port before, or that came too late.
            if self.awaited.contains(&message.number) {
                self.answers.push((message, data.to_vec()));
            }
        } else if message.kind >= EVENT_STATE {
            if self.events.len() == KEPT {
                self.events.pop_front();
            }
            self.events.push_back(message);
        }
        Ok(true)
    }
}

/// Waits until `link` is ready; gives for what, which is nothing if it is not before `end`. A link that has hung up is ready: what it
/// still has can be read, and the read says that there is no more.
fn wait(link: &impl AsFd, what: PollFlags, end: Option<Instant>) -> Result<PollFlags, Trouble> {
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [PollFd::new(link, what)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => return Ok(fds[0].revents()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Trouble::Io(error.into())),
        }
    }
}

//! The loop that has the port and serves clients.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bulkhead_abi::control::{
    EVENT_OUTPUT, EVENT_STATE, Kind, Message, OUTPUT_DATA, Request, Status, VERSION,
};
use bulkhead_control::board::{Hello, Vm};
use bulkhead_control::connection::{Incoming, REQUEST};
use bulkhead_control::crash::Reading;
use bulkhead_control::failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerocopy::{FromBytes, IntoBytes};

use crate::consoles::Consoles;
use crate::journal::{Journal, Priority};
use crate::relay::{Asker, Relay, Route};

/// Time between two attempts to open the port.
const AGAIN: Duration = Duration::from_secs(1);
/// Clients at a time.
const CLIENTS: usize = 64;
/// Requests of a client that are not answered; the others wait in its socket.
const PENDING: usize = 16;
/// Bytes for a client that does not read. Events beyond are not for it: states can be asked for.
const BACKLOG: usize = 64 * 1024;

/// The port, while it is there.
struct Port {
    file: File,
    incoming: Incoming,
    /// Requests to be written, and how much of the first one is.
    out: VecDeque<Request>,
    written: usize,
}

struct Client {
    stream: UnixStream,
    partial: Vec<u8>,
    out: VecDeque<u8>,
    /// VMs of which it has read all that they have printed: it is told of what follows.
    listens: BTreeSet<u16>,
}

/// What opens the port.
pub type Opener = Box<dyn FnMut() -> Result<File, Failure>>;

/// The daemon.
pub struct Server {
    open: Opener,
    listener: UnixListener,
    journal: Journal,
    relay: Relay,
    port: Option<Port>,
    /// When the port is tried again.
    again: Instant,
    /// What was last said about the port: it is said once.
    said: String,
    clients: BTreeMap<u64, Client>,
    last_client: u64,
    /// Reports of crashes that are being read, by VM.
    reports: BTreeMap<u16, Reading>,
    consoles: Consoles,
    /// Lines of consoles go into the journal.
    pub journals_consoles: bool,
}

impl Server {
    /// A daemon that opens the port by `open` and has clients at `listener`.
    ///
    /// # Errors
    /// The listener cannot be made not to block.
    pub fn new(open: Opener, listener: UnixListener, journal: Journal) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Self {
            open,
            listener,
            journal,
            relay: Relay::new(now.map_or(0, |now| now.subsec_nanos())),
            port: None,
            again: Instant::now(),
            said: String::new(),
            clients: BTreeMap::new(),
            last_client: 0,
            reports: BTreeMap::new(),
            consoles: Consoles::default(),
            journals_consoles: false,
        })
    }

    /// Serves until something can be read from `stop`.
    ///
    /// # Errors
    /// Waiting failed.
    pub fn run(&mut self, stop: &impl AsFd) -> io::Result<()> {
        loop {
            if self.port.is_none() && Instant::now() >= self.again {
                self.open_port();
            }
            let ready = self.wait(stop.as_fd())?;
            if ready.stop {
                return Ok(());
            }
            if let Some(flags) = ready.port {
                self.serve_port(flags);
            }
            for (id, flags) in ready.clients {
                self.serve_client(id, flags);
            }
            if ready.listener {
                self.accept();
            }
            self.write_port();
        }
    }

    /// Waits until something can be done.
    fn wait(&self, stop: BorrowedFd<'_>) -> io::Result<Ready> {
        let mut fds = vec![
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        if let Some(port) = &self.port {
            let out = if port.out.is_empty() {
                PollFlags::empty()
            } else {
                PollFlags::OUT
            };
            fds.push(PollFd::new(&port.file, PollFlags::IN | out));
        }
        for (id, client) in &self.clients {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::OUT, !client.out.is_empty());
            // Who asks and does not read the answers is not asked for more.
            let takes =
                self.relay.pending(Asker::Client(*id)) < PENDING && client.out.len() < BACKLOG;
            flags.set(PollFlags::IN, takes);
            fds.push(PollFd::new(&client.stream, flags));
        }
        let timeout = match self.port {
            Some(_) => None,
            None => Timespec::try_from(self.again.saturating_duration_since(Instant::now())).ok(),
        };
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Ready::default()),
            Err(error) => return Err(error.into()),
        }
        let mut flags = fds.iter().map(PollFd::revents);
        let mut next = || flags.next().unwrap_or(PollFlags::empty());
        let mut ready = Ready {
            stop: !next().is_empty(),
            listener: !next().is_empty(),
            ..Ready::default()
        };
        if self.port.is_some() {
            ready.port = Some(next());
        }
        let clients = self.clients.keys().map(|id| (*id, next()));
        ready.clients = clients.filter(|(_, flags)| !flags.is_empty()).collect();
        Ok(ready)
    }

    fn open_port(&mut self) {
        self.again = Instant::now() + AGAIN;
        match (self.open)() {
            Ok(file) => {
                self.port = Some(Port {
                    file,
                    incoming: Incoming::default(),
                    out: VecDeque::new(),
                    written: 0,
                });
                self.consoles.begin();
                self.ask(Kind::Hello, 0, [0; 2]);
            }
            Err(failure) => {
                let why = if failure.why.is_empty() { "" } else { ": " };
                let said = format!("no port: {}{why}{}", failure.what, failure.why);
                self.say_once(Priority::Warning, said);
            }
        }
    }

    fn say_once(&mut self, priority: Priority, text: String) {
        if self.said != text {
            self.journal.say(priority, &text);
            self.said = text;
        }
    }

    /// Asks something for the daemon itself.
    fn ask(&mut self, kind: Kind, vm: u16, values: [u64; 2]) {
        let [first, second] = values;
        let request = Request {
            version: VERSION,
            kind: kind as u16,
            vm,
            values: [first, second, 0, 0],
            ..Request::default()
        };
        self.send(Asker::Daemon, request);
    }

    fn send(&mut self, asker: Asker, request: Request) {
        if let Some(port) = &mut self.port {
            port.out.push_back(self.relay.forward(asker, request));
        }
    }

    /// The port is not there any more: nobody gets an answer, which clients learn by the end of their connections.
    fn lose_port(&mut self, why: &str) {
        self.port = None;
        self.again = Instant::now() + AGAIN;
        self.relay = Relay::new(self.relay.last());
        self.clients.clear();
        self.reports.clear();
        self.say_once(Priority::Warning, format!("the port is gone: {why}"));
    }

    fn write_port(&mut self) {
        let Some(port) = &mut self.port else { return };
        while let Some(request) = port.out.front() {
            match port.file.write(&request.as_bytes()[port.written..]) {
                Ok(written) => {
                    // EL2 takes a request as a whole; only a test's socket cuts one.
                    port.written += written;
                    if port.written == REQUEST {
                        port.out.pop_front();
                        port.written = 0;
                    } else if written == 0 {
                        return self.lose_port("it takes nothing");
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => return self.lose_port(&error.to_string()),
            }
        }
    }

    fn serve_port(&mut self, flags: PollFlags) {
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        // One message a turn: clients have theirs in between.
        let Some(port) = &mut self.port else { return };
        match port.incoming.read(&mut port.file) {
            Ok(Some((message, data))) => {
                let data = data.to_vec();
                self.take(message, &data);
            }
            Ok(None) => {}
            Err(error) if is_later(&error) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                self.lose_port("EL2 has closed it")
            }
            Err(error) => self.lose_port(&error.to_string()),
        }
    }

    fn take(&mut self, message: Message, data: &[u8]) {
        match self.relay.route(message) {
            Route::Answer(Asker::Daemon, answer) => self.take_answer(&answer, data),
            Route::Answer(Asker::Client(id), answer) => self.give(id, &answer, data),
            Route::Event(event) if event.kind == EVENT_OUTPUT && self.consoles.keeps(event.vm) => {
                self.read_on(event.vm);
            }
            Route::Event(event) => {
                if event.kind == EVENT_STATE {
                    self.take_state(Vm::of(&event));
                } else {
                    self.journal.event(&event);
                }
                let all: Vec<u64> = self.clients.keys().copied().collect();
                for id in all {
                    let is_behind = |client: &Client| client.out.len() >= BACKLOG;
                    if !self.clients.get(&id).is_some_and(is_behind) {
                        self.give(id, &event, &[]);
                    }
                }
            }
            Route::Nobody => {}
        }
    }

    /// An answer to the daemon's own question.
    fn take_answer(&mut self, answer: &Message, data: &[u8]) {
        if answer.version != VERSION || answer.status == Status::Version as u16 {
            let theirs = match answer.version {
                VERSION => answer.values[0],
                version => version.into(),
            };
            let text = format!(
                "EL2 speaks version {theirs} of the control protocol, this bulkheadd {VERSION}"
            );
            return self.say_once(Priority::Error, text);
        }
        if answer.kind == Kind::Output as u16 {
            return self.take_output(answer, data);
        }
        if answer.status != Status::Done as u16 {
            return;
        }
        if answer.kind == Kind::Hello as u16 {
            let hello = Hello::of(answer);
            let seen = hello.seen().count();
            self.said.clear();
            self.journal.say(
                Priority::Info,
                &format!(
                    "EL2 answers: {} VMs, of which {seen} are to be seen",
                    hello.vms
                ),
            );
            for vm in hello.seen() {
                self.ask(Kind::Vm, vm, [0; 2]);
                self.read_on(vm);
            }
        } else if answer.kind == Kind::Report as u16 {
            self.take_report(answer);
        } else {
            self.take_state(Vm::of(answer));
        }
    }

    /// Takes the state of a VM, and reads the report of its crash if that is a new one.
    fn take_state(&mut self, vm: Vm) {
        let (index, is_new) = (vm.index, self.journal.is_new_crash(&vm));
        let reads = self.consoles.see(&vm);
        self.journal.state(vm);
        if let Some(from) = reads {
            self.read_from(index, from);
        }
        // A report that is being read becomes that of this crash by itself.
        if is_new && !self.reports.contains_key(&index) {
            self.reports.insert(index, Reading::default());
            self.ask(Kind::Report, index, [0; 2]);
        }
    }

    /// Reads what a VM has printed, unless EL2 has been asked already.
    fn read_on(&mut self, vm: u16) {
        if let Some(from) = self.consoles.more(vm) {
            self.read_from(vm, from);
        }
    }

    fn read_from(&mut self, vm: u16, from: u64) {
        self.ask(Kind::Output, vm, [from, OUTPUT_DATA as u64]);
    }

    /// Takes what a VM has printed, and tells clients that listen.
    fn take_output(&mut self, answer: &Message, data: &[u8]) {
        let taken = self.consoles.take(answer, data);
        if self.journals_consoles {
            for line in &taken.lines {
                self.journal.console(answer.vm, line);
            }
        }
        if let Some(from) = taken.asks {
            self.read_from(answer.vm, from);
        }
        if !taken.is_news {
            return;
        }
        let event = Message {
            version: VERSION,
            kind: EVENT_OUTPUT,
            vm: answer.vm,
            ..Message::default()
        };
        let listen = self.clients.iter_mut();
        let listen =
            listen.filter_map(|(id, client)| client.listens.remove(&answer.vm).then_some(*id));
        let listen: Vec<u64> = listen.collect();
        for id in listen {
            self.give(id, &event, &[]);
        }
    }

    /// Takes words of a report, and asks for the next ones.
    fn take_report(&mut self, answer: &Message) {
        let Some(reading) = self.reports.get_mut(&answer.vm) else {
            return;
        };
        match reading.take(answer) {
            None => {
                let first = reading.first();
                self.ask(Kind::Report, answer.vm, [first, 0]);
            }
            Some(report) => {
                self.reports.remove(&answer.vm);
                self.journal.crash(answer.vm, &report);
            }
        }
    }

    fn give(&mut self, id: u64, message: &Message, data: &[u8]) {
        // Who has gone gets nothing.
        if let Some(client) = self.clients.get_mut(&id) {
            client.out.extend(message.as_bytes());
            client.out.extend(data);
            self.write_client(id);
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            // Without a port nobody can be served: the end of the connection says so.
            if self.port.is_none()
                || self.clients.len() >= CLIENTS
                || stream.set_nonblocking(true).is_err()
            {
                continue;
            }
            self.last_client += 1;
            let client = Client {
                stream,
                partial: Vec::new(),
                out: VecDeque::new(),
                listens: BTreeSet::new(),
            };
            self.clients.insert(self.last_client, client);
        }
    }

    fn serve_client(&mut self, id: u64, flags: PollFlags) {
        if flags.contains(PollFlags::OUT) {
            self.write_client(id);
        }
        if flags.intersects(PollFlags::HUP | PollFlags::ERR) && !flags.contains(PollFlags::IN) {
            // It has gone, perhaps in the middle of its requests.
            self.clients.remove(&id);
        } else if flags.contains(PollFlags::IN) {
            self.read_client(id);
        }
    }

    /// Takes requests as long as there are some and the client may have more: what it sends together goes to the port together.
    fn read_client(&mut self, id: u64) {
        while self.relay.pending(Asker::Client(id)) < PENDING {
            let Some(client) = self.clients.get_mut(&id) else {
                return;
            };
            // What is kept here is answered at once.
            if client.out.len() >= BACKLOG {
                return;
            }
            let mut bytes = [0; REQUEST];
            // Never beyond the end of a request: what comes behind waits until there may be more.
            let wanted = REQUEST - client.partial.len();
            match client.stream.read(&mut bytes[..wanted]) {
                Ok(0) => {
                    self.clients.remove(&id);
                }
                Ok(read) => {
                    client.partial.extend_from_slice(&bytes[..read]);
                    if let Ok(request) = Request::read_from_bytes(&client.partial) {
                        client.partial.clear();
                        self.forward(id, request);
                    }
                }
                Err(error) if is_later(&error) => return,
                Err(_) => {
                    self.clients.remove(&id);
                }
            }
        }
    }

    fn forward(&mut self, id: u64, request: Request) {
        if request.number == 0 {
            // On the port it would have a number, and EL2 could not say that it has none.
            let answer = Message {
                version: VERSION,
                kind: request.kind,
                vm: request.vm,
                vcpu: request.vcpu,
                status: Status::Reserved as u16,
                ..Message::default()
            };
            return self.give(id, &answer, &[]);
        }
        if let Some((answer, data)) = self.consoles.answer(&request) {
            if answer.values[0] + data.len() as u64 == answer.values[1]
                && let Some(client) = self.clients.get_mut(&id)
            {
                client.listens.insert(answer.vm);
            }
            return self.give(id, &answer, &data);
        }
        self.send(Asker::Client(id), request);
    }

    fn write_client(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        while !client.out.is_empty() {
            let (bytes, _) = client.out.as_slices();
            match client.stream.write(bytes) {
                Ok(written) => {
                    client.out.drain(..written);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.clients.remove(&id);
                    return;
                }
            }
        }
    }
}

/// What can be done.
#[derive(Default)]
struct Ready {
    stop: bool,
    listener: bool,
    port: Option<PollFlags>,
    clients: Vec<(u64, PollFlags)>,
}

/// Whether an error says only that there is nothing now.
fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

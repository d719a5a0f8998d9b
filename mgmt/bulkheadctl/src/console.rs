//! `console`: a VM's console on this terminal, beside the board's UART.

use std::fs::File;
use std::io::{Write, stderr, stdin};
use std::time::{Duration, Instant};

use bulkhead_abi::control::{EVENT_OUTPUT, EVENT_STATE, Message};
use bulkhead_control::board::Vm;
use bulkhead_control::failure::{Failure, Outcome};
use bulkhead_control::manager::Manager;
use bulkhead_control::port::Access;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cli::VmArgs;
use crate::logs::{go_on, kept, last_lines, raw};
use crate::terminal::Keys;
use crate::verb::{Ended, Stop, connect};

/// Ctrl-], which ends it, as in telnet, virsh and xl.
const ESCAPE: u8 = 0x1d;
/// Lines that are shown first.
const LINES: usize = 20;
/// Time after which bytes are typed again that the VM had no room for.
const AGAIN: Duration = Duration::from_millis(20);
/// How long the VM is silent at the end of an input that is no terminal.
const SILENT: Duration = Duration::from_secs(1);
/// How long it may leave such an input unread.
const UNREAD: Duration = Duration::from_secs(10);
/// Bytes that wait for the VM before no more are read.
const WAITING: usize = 4096;

/// A console.
struct Console {
    manager: Manager<File>,
    vm: Vm,
    /// Number of the next byte that it prints.
    next: u64,
    /// What is to be typed.
    waiting: Vec<u8>,
    /// There is more to be read from the standard input.
    is_open: bool,
    is_terminal: bool,
    /// When the VM has last taken or printed something.
    heard: Instant,
}

/// Is the console of a VM.
pub fn run(access: &Access, args: VmArgs) -> Ended {
    let mut manager = connect(access)?;
    let vm = manager.find(&args.vm)?;
    let (text, next) = kept(&mut manager, &vm)?;
    let keys = Keys::take_raw();
    if keys.is_some() {
        note(&format!(
            "console of {}, {}; Ctrl-] ends it",
            vm.name,
            vm.phase_word()
        ));
        raw(last_lines(&text, LINES))?;
    }
    let mut console = Console {
        manager,
        vm,
        next,
        waiting: Vec::new(),
        is_open: true,
        is_terminal: keys.is_some(),
        heard: Instant::now(),
    };
    let ended = console.run();
    drop(keys);
    if console.is_terminal {
        note("");
    }
    ended
}

/// Says something that the VM has not said.
fn note(text: &str) {
    // Who does not see it misses nothing of the VM's.
    let _ = if text.is_empty() {
        write!(stderr(), "\r\n")
    } else {
        write!(stderr(), "\r\n[{text}]\r\n")
    };
}

impl Console {
    fn run(&mut self) -> Ended {
        loop {
            while let Some(event) = self.event()? {
                self.hear(&event)?;
            }
            let ready = self.wait()?;
            if ready && self.read() {
                return Ok(Outcome::Done);
            }
            self.type_in()?;
            if !self.is_open && self.is_over()? {
                return Ok(Outcome::Done);
            }
        }
    }

    fn event(&mut self) -> Result<Option<Message>, Stop> {
        let event = self.manager.connection.event(Some(Duration::ZERO));
        Ok(event.map_err(Failure::from)?)
    }

    fn hear(&mut self, event: &Message) -> Result<(), Stop> {
        if event.vm != self.vm.index {
            return Ok(());
        }
        if event.kind == EVENT_OUTPUT {
            self.heard = Instant::now();
            let mut print = |bytes: &[u8]| Ok(raw(bytes)?);
            self.next = go_on(&mut self.manager, &self.vm, self.next, &mut print)?;
        } else if event.kind == EVENT_STATE && self.is_terminal {
            let vm = Vm::of(event);
            if (vm.phase, vm.lives) != (self.vm.phase, self.vm.lives) {
                note(&format!(
                    "{}: {}, life {}",
                    vm.name,
                    vm.phase_word(),
                    vm.lives
                ));
                self.vm = vm;
            }
        }
        Ok(())
    }

    /// Waits for an event, or for keys: `true` if there are some.
    fn wait(&self) -> Result<bool, Failure> {
        let input = stdin();
        let mut fds = vec![PollFd::new(self.manager.connection.link(), PollFlags::IN)];
        if self.is_open && self.waiting.len() < WAITING {
            fds.push(PollFd::new(&input, PollFlags::IN));
        }
        let timeout = if !self.waiting.is_empty() {
            Some(AGAIN)
        } else if self.is_open {
            None
        } else {
            Some((self.heard + SILENT).saturating_duration_since(Instant::now()))
        };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => Ok(fds.get(1).is_some_and(|input| !input.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(Failure::environment(
                "control::io",
                "cannot wait for keys",
                error,
            )),
        }
    }

    /// Reads keys. `true`: one of them ends it.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 256];
        let read = rustix::io::read(stdin(), &mut bytes).unwrap_or(0);
        let keys = &bytes[..read];
        if read == 0 {
            self.is_open = false;
            self.heard = Instant::now();
            // A terminal that has gone.
            return self.is_terminal;
        }
        let end = keys.iter().position(|key| *key == ESCAPE);
        let end = end.filter(|_| self.is_terminal);
        self.waiting.extend(&keys[..end.unwrap_or(read)]);
        end.is_some()
    }

    /// Types what waits, as far as the VM has room.
    fn type_in(&mut self) -> Result<(), Stop> {
        while !self.waiting.is_empty() {
            let taken = match self.manager.type_on(&self.vm, &self.waiting) {
                Ok(taken) => taken,
                // Who sits before it sees that, and may wait for the next life.
                Err(failure) if self.is_terminal && failure.code == "control::phase" => {
                    note(&format!("{}; what was typed is lost", failure.why));
                    self.waiting.clear();
                    return Ok(());
                }
                Err(failure) => return Err(failure.into()),
            };
            if taken == 0 {
                break;
            }
            self.waiting.drain(..taken);
            self.heard = Instant::now();
        }
        Ok(())
    }

    /// Whether all of an input that is no terminal has been typed, and what came of it is there.
    fn is_over(&self) -> Result<bool, Failure> {
        if self.waiting.is_empty() {
            return Ok(self.heard.elapsed() >= SILENT);
        }
        if self.heard.elapsed() < UNREAD {
            return Ok(false);
        }
        let what = format!("cannot type on the console of {}", self.vm.name);
        let why = format!("it has not read {} bytes for 10 s", self.waiting.len());
        Err(Failure::failed("control::unread", what, why))
    }
}

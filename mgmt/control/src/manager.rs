//! Questions to EL2, with answers that are read or made failures.

use std::fmt;
use std::io::{Read, Write};
use std::os::fd::AsFd;

use bulkhead_abi::control::{Kind, Message, Request, Status};
use bulkhead_abi::exit::ExitClass;

use crate::board::{Exits, Hello, Service, Time, Vcpu, Vm, WAIT_CLASSES, Waits};
use crate::connection::{Connection, Trouble};
use crate::crash::{Reading, Report};
use crate::failure::Failure;
use crate::refusal;

/// Attempts at the exits of a vCPU while somebody else asks for those of another one.
const TRIES: u32 = 10;

/// A manager: a connection, and who is on the board.
#[derive(Debug)]
pub struct Manager<T> {
    /// The connection.
    pub connection: Connection<T>,
    /// What EL2 said first.
    pub hello: Hello,
}

/// Statistics that may not be there: why is a word for people.
pub type Told<T> = Result<T, &'static str>;

impl<T: Read + Write + AsFd> Manager<T> {
    /// Greets EL2.
    ///
    /// # Errors
    /// It does not answer, or speaks another version.
    pub fn greet(mut connection: Connection<T>) -> Result<Self, Failure> {
        let request = Request {
            kind: Kind::Hello as u16,
            ..Request::default()
        };
        let answer = connection.call(request)?;
        if answer.status != Status::Done as u16 {
            return Err(refusal::failure(Kind::Hello, "", &answer));
        }
        let hello = Hello::of(&answer);
        Ok(Self { connection, hello })
    }

    /// Asks, or orders; gives the answer whatever its status is.
    ///
    /// # Errors
    /// There is none.
    pub fn request(
        &mut self,
        kind: Kind,
        vm: u16,
        vcpu: u16,
        given: &[u64],
    ) -> Result<Message, Trouble> {
        self.connection.call(request_of(kind, vm, vcpu, given))
    }

    /// The same where limits are changed, or only tried, as `flags` say.
    ///
    /// # Errors
    /// There is no answer.
    pub fn change(
        &mut self,
        kind: Kind,
        vm: u16,
        given: &[u64],
        flags: u32,
    ) -> Result<Message, Trouble> {
        self.connection.call(Request {
            flags,
            ..request_of(kind, vm, 0, given)
        })
    }

    /// The same, with the bytes that follow the answer.
    ///
    /// # Errors
    /// There is no answer.
    pub fn request_data(
        &mut self,
        kind: Kind,
        vm: u16,
        given: &[u64],
    ) -> Result<(Message, Vec<u8>), Trouble> {
        let number = self.connection.send(request_of(kind, vm, 0, given))?;
        self.connection.answer_data(number)
    }

    /// The same where another status than "done" is a failure; `name` is that of the VM.
    ///
    /// # Errors
    /// There is no answer, or EL2 refuses.
    pub fn ask(
        &mut self,
        kind: Kind,
        vm: (u16, &str),
        vcpu: u16,
        given: &[u64],
    ) -> Result<Message, Failure> {
        let (index, name) = vm;
        let answer = self.request(kind, index, vcpu, given)?;
        if answer.status == Status::Done as u16 {
            return Ok(answer);
        }
        Err(refusal::failure(kind, name, &answer))
    }

    /// State of a VM.
    ///
    /// # Errors
    /// EL2 does not tell it.
    pub fn vm(&mut self, index: u16) -> Result<Vm, Failure> {
        let name = format!("VM {index}");
        let answer = self.ask(Kind::Vm, (index, &name), 0, &[])?;
        Ok(Vm::of(&answer))
    }

    /// States of all VMs that the manager sees.
    ///
    /// # Errors
    /// EL2 does not tell one.
    pub fn vms(&mut self) -> Result<Vec<Vm>, Failure> {
        self.hello.seen().map(|index| self.vm(index)).collect()
    }

    /// The VM of this name.
    ///
    /// # Errors
    /// The manager sees none.
    pub fn find(&mut self, name: &str) -> Result<Vm, Failure> {
        let vms = self.vms()?;
        let names: Vec<String> = vms.iter().map(|vm| vm.name.clone()).collect();
        let found = vms.into_iter().find(|vm| vm.name == name);
        found.ok_or_else(|| {
            let what = format!("there is no VM `{name}` that this VM may see");
            Failure::input(
                "control::no-vm",
                what,
                format_args!("it sees: {}", Names(&names)),
            )
            .advise("see bulkheadctl list")
        })
    }

    /// State of a vCPU.
    ///
    /// # Errors
    /// EL2 does not tell it.
    pub fn vcpu(&mut self, vm: &Vm, vcpu: u16) -> Result<Vcpu, Failure> {
        let answer = self.ask(Kind::Vcpu, (vm.index, &vm.name), vcpu, &[])?;
        Ok(Vcpu::of(&answer))
    }

    /// CPU time of a vCPU.
    ///
    /// # Errors
    /// EL2 does not answer.
    pub fn time(&mut self, vm: &Vm, vcpu: u16) -> Result<Told<Time>, Failure> {
        let answer = self.statistics(Kind::Time, vm, vcpu, &[])?;
        Ok(answer.map(|answer| Time::of(&answer)))
    }

    /// Waits of a vCPU.
    ///
    /// # Errors
    /// EL2 does not answer.
    pub fn waits(&mut self, vm: &Vm, vcpu: u16) -> Result<Told<Waits>, Failure> {
        let mut waits = Waits::default();
        let mut first = 0;
        while first < WAIT_CLASSES {
            match self.statistics(Kind::Waits, vm, vcpu, &[first as u64])? {
                Ok(answer) => first = waits.add(first, &answer),
                Err(why) => return Ok(Err(why)),
            }
        }
        Ok(Ok(waits))
    }

    /// Exits of a vCPU, all of one moment.
    ///
    /// # Errors
    /// EL2 does not answer.
    pub fn exits(&mut self, vm: &Vm, vcpu: u16) -> Result<Told<Exits>, Failure> {
        for _ in 0..TRIES {
            // All at once: the daemon hands on what comes together, and nobody's question stands between them.
            let mut numbers = Vec::new();
            for class in (0..ExitClass::COUNT).step_by(2) {
                let goes_on = u64::from(class > 0);
                let given = [class as u64, goes_on];
                let request = request_of(Kind::Exits, vm.index, vcpu, &given);
                numbers.push((class, self.connection.send(request)?));
            }
            let mut found: Option<Told<Exits>> = None;
            let mut is_whole = true;
            for (class, number) in numbers {
                let answer = self.connection.answer(number)?;
                match &mut found {
                    None => {
                        let first = told(Kind::Exits, vm, &answer)?;
                        found = Some(first.map(|answer| {
                            let mut exits = Exits::of(&answer);
                            exits.add(class, &answer);
                            exits
                        }));
                    }
                    Some(Ok(exits)) => {
                        let is_done = answer.status == Status::Done as u16;
                        if is_done && exits.is_same_moment(&answer) {
                            exits.add(class, &answer);
                        } else {
                            is_whole = false;
                        }
                    }
                    // Of what is not told there is no more.
                    Some(Err(_)) => {}
                }
            }
            if let Some(found) = found.filter(|_| is_whole) {
                return Ok(found);
            }
        }
        Ok(Err("others ask all the time"))
    }

    /// What the devices of a VM have had of the service thread.
    ///
    /// # Errors
    /// EL2 does not answer.
    pub fn service(&mut self, vm: &Vm) -> Result<Told<Service>, Failure> {
        let answer = self.statistics(Kind::Service, vm, 0, &[])?;
        Ok(answer.map(|answer| Service::of(&answer)))
    }

    /// The report of the last crash of a VM, if it has crashed.
    ///
    /// # Errors
    /// EL2 does not tell it.
    pub fn report(&mut self, vm: &Vm) -> Result<Option<Report>, Failure> {
        let mut reading = Reading::default();
        loop {
            let answer = self.request(Kind::Report, vm.index, 0, &[reading.first()])?;
            match Status::of(answer.status) {
                Some(Status::Done) => {}
                Some(Status::Nothing) => return Ok(None),
                _ => return Err(refusal::failure(Kind::Report, &vm.name, &answer)),
            }
            if let Some(report) = reading.take(&answer) {
                return Ok(Some(report));
            }
        }
    }

    /// A question for statistics: that there are none is an answer, too.
    fn statistics(
        &mut self,
        kind: Kind,
        vm: &Vm,
        vcpu: u16,
        given: &[u64],
    ) -> Result<Told<Message>, Failure> {
        let answer = self.request(kind, vm.index, vcpu, given)?;
        told(kind, vm, &answer)
    }
}

/// A request; its version and number are the connection's to fill in.
fn request_of(kind: Kind, vm: u16, vcpu: u16, given: &[u64]) -> Request {
    let mut values = [0; 4];
    for (value, given) in values.iter_mut().zip(given) {
        *value = *given;
    }
    Request {
        kind: kind as u16,
        vm,
        vcpu,
        values,
        ..Request::default()
    }
}

/// An answer about statistics: that there are none is one, too.
fn told(kind: Kind, vm: &Vm, answer: &Message) -> Result<Told<Message>, Failure> {
    match Status::of(answer.status) {
        Some(Status::Done) => Ok(Ok(*answer)),
        Some(status @ (Status::Nothing | Status::WouldExit | Status::Silent | Status::Rights)) => {
            Ok(Err(status.words()))
        }
        _ => Err(refusal::failure(kind, &vm.name, answer)),
    }
}

/// Names with commas between them.
struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        f.write_str(&self.0.join(", "))
    }
}

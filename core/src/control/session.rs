//! A manager that has the port open. One request at a time is in hand; it is answered before the next is taken, so that the state here has a
//! fixed size, and a manager that floods waits for itself.

use bulkhead_abi::control::{
    EVENT_LIMITS, EVENT_STATE, Message, Refusal as Told, Request, Status, VALUES, VERSION,
};
use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::Class;

use super::events::{Changed, Events};
use super::request::{About, Command, Of, check};
use super::{Board, Denied, VmState, crash, phase};
use crate::console::cpu_time::nanoseconds;
use crate::console::stats::ClassStats;
use crate::cpu::power;
use crate::monitor;
use crate::sched::{Refusal, RunState};
use crate::virtio::ports::Manager;

/// A question interrupts the vCPU or its pCPU, so that a manager asks once in so many microseconds at most: at 1500 instructions, of a
/// nanosecond each, that is 0.15 percent of a pCPU.
pub const APART_US: u64 = 1000;
/// Microseconds within which a pCPU answers, unless EL2 itself fails there.
const PATIENCE_US: u64 = 100_000;
/// Microseconds after which an order is tried again that came while somebody else gave one.
const AGAIN_US: u64 = 20;

/// What is in hand.
#[derive(Clone, Copy, Debug)]
enum Hand {
    /// Nothing.
    Nothing,
    /// A command that is to be carried out when the counter reads this.
    Later(Request, Command, u64),
    /// The question has been asked, and is answered when the counter reads this at the latest.
    Asked(Request, About, u64),
}

/// The state of a manager.
#[derive(Debug)]
pub struct Session {
    /// The VM of the manager.
    own: usize,
    hand: Hand,
    /// The next question is not asked before the counter reads this.
    next: u64,
    /// The vCPU (row of the plan) whose exits were asked for last.
    exits_of: Option<usize>,
}

impl Session {
    /// The state of VM `own` before it has opened the port.
    pub const fn new(own: usize) -> Self {
        Self {
            own,
            hand: Hand::Nothing,
            next: 0,
            exits_of: None,
        }
    }

    /// When there is something to do without being told (physical counter).
    pub const fn again(&self) -> Option<u64> {
        match self.hand {
            Hand::Nothing => None,
            Hand::Later(_, _, at) | Hand::Asked(_, _, at) => Some(at),
        }
    }

    /// The manager with the board that it manages, and what it is to be told.
    pub const fn with<'a, B: Board>(
        &'a mut self,
        board: &'a mut B,
        events: &'a Events,
    ) -> InSession<'a, B> {
        InSession {
            session: self,
            board,
            events,
        }
    }
}

/// A manager with the board.
#[derive(Debug)]
pub struct InSession<'a, B> {
    session: &'a mut Session,
    board: &'a mut B,
    events: &'a Events,
}

/// An answer without values.
const fn answer(request: &Request, status: Status) -> Message {
    Message {
        version: VERSION,
        kind: request.kind,
        number: request.number,
        vm: request.vm,
        vcpu: request.vcpu,
        status: status as u16,
        reserved: 0,
        values: [0; VALUES],
    }
}

/// The first values of a message.
fn fill(message: &mut Message, values: &[u64]) {
    for (place, value) in message.values.iter_mut().zip(values) {
        *place = *value;
    }
}

impl<B: Board> Manager for InSession<'_, B> {
    fn open(&mut self) {
        self.session.hand = Hand::Nothing;
        self.session.exits_of = None;
        self.events.forget();
    }

    fn request(&mut self, request: &Request, bytes: u32) -> Option<Message> {
        match check(self.board.plan(), self.session.own, request, bytes) {
            Ok(command) => self.carry_out(request, command),
            Err((status, values)) => {
                // What is not a whole request has no number.
                let known = if status == Status::Length {
                    Request::default()
                } else {
                    *request
                };
                let mut message = answer(&known, status);
                fill(&mut message, &values);
                Some(message)
            }
        }
    }

    fn answer(&mut self) -> Option<Message> {
        let [now, _] = self.board.time();
        match self.session.hand {
            Hand::Nothing => None,
            Hand::Later(request, command, at) => {
                if now < at {
                    return None;
                }
                self.session.hand = Hand::Nothing;
                self.carry_out(&request, command)
            }
            Hand::Asked(request, about, until) => {
                let answered = self.board.published().is_answered();
                if !answered && now < until {
                    return None;
                }
                self.session.hand = Hand::Nothing;
                if answered {
                    return Some(self.tell(&request, about));
                }
                self.session.exits_of = None;
                Some(answer(&request, Status::Silent))
            }
        }
    }

    fn event(&mut self) -> Option<Message> {
        let (vm, changed) = self.events.take()?;
        let kind = match changed {
            Changed::State => EVENT_STATE,
            Changed::Limits => EVENT_LIMITS,
        };
        let request = Request {
            kind,
            vm: vm as u16,
            ..Request::default()
        };
        let mut message = answer(&request, Status::Done);
        if changed == Changed::State {
            self.vm(&mut message, vm);
        }
        Some(message)
    }

    fn is_asked(&self) -> bool {
        !matches!(self.session.hand, Hand::Nothing)
    }
}

impl<B: Board> InSession<'_, B> {
    /// Does what a request asks for. `None`: later.
    fn carry_out(&mut self, request: &Request, command: Command) -> Option<Message> {
        let mut message = answer(request, Status::Done);
        match command {
            Command::Hello => self.hello(&mut message),
            Command::Vm(vm) => self.vm(&mut message, vm),
            Command::Vcpu(of) => return self.vcpu(request, message, of),
            Command::Service(vm) => fill(&mut message, &self.board.service(vm)),
            Command::Report(part, vm) => {
                match self.board.last_crash(vm).tell(part, &mut message.values) {
                    crash::Told::All => {}
                    crash::Told::Nothing => message.status = Status::Nothing as u16,
                    crash::Told::NotYet => {
                        self.later(request, command, AGAIN_US);
                        return None;
                    }
                }
            }
            Command::Order(order, vm) => {
                let done = self.board.order(order, vm);
                return self.done(request, command, message, done);
            }
            Command::ShutDown(vm) => {
                let left = self.board.shut_down(vm);
                fill(&mut message, &[left.unwrap_or(0)]);
                return self.done(request, command, message, left.map(drop));
            }
            Command::Change(change, vm) => {
                let done = self.board.change(vm, change);
                return self.done(request, command, message, done);
            }
            Command::Ask(about, of) => return self.ask(request, about, of),
            Command::GoOn(about, of) => {
                let same = self.session.exits_of == Some(of.id);
                if !same {
                    return Some(answer(request, Status::Nothing));
                }
                return Some(self.tell(request, about));
            }
        }
        Some(message)
    }

    /// Comes back to a command in so many microseconds.
    fn later(&mut self, request: &Request, command: Command, us: u64) {
        let at = self.in_us(us);
        self.session.hand = Hand::Later(*request, command, at);
    }

    fn in_us(&self, us: u64) -> u64 {
        let [now, frequency] = self.board.time();
        now.saturating_add((frequency / 1000).saturating_mul(us) / 1000)
    }

    /// Answers an order or a change.
    fn done(
        &mut self,
        request: &Request,
        command: Command,
        mut message: Message,
        done: Result<(), Denied>,
    ) -> Option<Message> {
        match done {
            Ok(()) => {}
            Err(Denied::Phase(now)) => {
                message.status = Status::Phase as u16;
                fill(&mut message, &[phase(now) as u64]);
            }
            Err(Denied::Refused(why)) => {
                message.status = Status::Refused as u16;
                fill(&mut message, &refusal(why));
            }
            Err(Denied::Busy) => {
                self.later(request, command, AGAIN_US);
                return None;
            }
        }
        Some(message)
    }

    fn hello(&self, message: &mut Message) {
        let (plan, own) = (self.board.plan(), self.session.own);
        let bits = { plan.rights_of(own) }.iter();
        let managed = bits.fold(0, |all, row| all | 1u64.wrapping_shl(row.vm.into()));
        let [now, frequency] = self.board.time();
        let values = [
            plan.vms.len() as u64,
            own as u64,
            plan.pcpus.len() as u64,
            frequency,
            now,
            managed,
        ];
        fill(message, &values);
    }

    fn vm(&self, message: &mut Message, vm: usize) {
        let plan = self.board.plan();
        let Some(row) = plan.vms.get(vm) else { return };
        let VmState {
            phase: now,
            lives,
            settled,
        } = self.board.vm(vm);
        // Of one that is being written there is another event, when it is there.
        let mut crash = [0; VALUES];
        let told = self.board.last_crash(vm).tell(0, &mut crash);
        let [life, _, syndrome, address, pc, ..] = match told {
            crash::Told::All => crash,
            _ => [0; VALUES],
        };
        let [head, tail] = zerocopy::transmute!(row.name);
        let vcpus = plan.vcpus_of(vm).len() as u64;
        let kind = u64::from(row.class) | vcpus << 16 | u64::from(row.flags) << 32;
        let values = [
            head,
            tail,
            plan.right(self.session.own, vm).into(),
            phase(now) as u64,
            lives.into(),
            kind,
            settled.map_or(0, |it| it.end as u64),
            settled.map_or(0, |it| it.follows as u64),
            settled.map_or(0, |it| it.count.into()),
            plan.stop_of(vm).map_or(0, |stop| {
                let way = if stop.word == 0 { 1 } else { 2 };
                way | u64::from(stop.timeout) << 32
            }),
            life,
            syndrome,
            address,
            pc,
        ];
        fill(message, &values);
    }

    fn vcpu(&mut self, request: &Request, mut message: Message, of: Of) -> Option<Message> {
        let Some(limits) = self.board.limits(of.id) else {
            self.later(request, Command::Vcpu(of), AGAIN_US);
            return None;
        };
        let (pcpu, power) = self.board.vcpu(of.id, of.vm, of.number);
        let values = [
            pcpu as u64,
            power as u64,
            limits.policy.into(),
            limits.weight.into(),
            limits.budget,
            limits.period,
            limits.pool.into(),
        ];
        fill(&mut message, &values);
        Some(message)
    }

    /// Asks a vCPU, or its pCPU, unless it is too early.
    fn ask(&mut self, request: &Request, about: About, of: Of) -> Option<Message> {
        let hard = Class::HardRealtime as u16;
        let row = self.board.plan().vms.get(of.vm);
        let is_up = matches!(
            self.board.vm(of.vm).phase,
            power::Phase::Running | power::Phase::Asked(_) | power::Phase::Paused
        );
        if row.is_some_and(|row| row.class == hard) && is_up {
            return Some(answer(request, Status::WouldExit));
        }
        let [now, _] = self.board.time();
        if now < self.session.next {
            self.session.hand = Hand::Later(*request, Command::Ask(about, of), self.session.next);
            return None;
        }
        self.session.next = self.in_us(APART_US);
        self.session.exits_of = None;
        let question = match about {
            About::Exits(_) => monitor::Request::Exits,
            About::Time | About::Waits(_) => monitor::Request::Time,
        };
        if let About::Exits(_) = about {
            self.session.exits_of = Some(of.id);
        }
        self.session.hand = Hand::Asked(*request, about, self.in_us(PATIENCE_US));
        self.board.ask(of.id, question);
        None
    }

    /// Tells what was answered.
    fn tell(&self, request: &Request, about: About) -> Message {
        let mut message = answer(request, Status::Done);
        let published = self.board.published();
        match about {
            About::Exits(first) => {
                let totals = published.totals();
                let sums = [totals.exits, totals.guest, totals.elapsed, totals.away];
                fill(&mut message, &sums);
                let mut places = message.values.iter_mut().skip(sums.len());
                for class in ExitClass::ALL.iter().skip(first).take(2) {
                    let words = words_of(&published.class(*class));
                    for (word, place) in words.into_iter().zip(&mut places) {
                        *place = word;
                    }
                }
            }
            About::Time | About::Waits(_) => {
                let Some((usage, frequency)) = published.time() else {
                    message.status = Status::Nothing as u16;
                    return message;
                };
                let account = &usage.account;
                if let About::Waits(first) = about {
                    let classes = account.waits.chunks_exact(2).skip(first / 2);
                    for (place, pair) in message.values.iter_mut().zip(classes) {
                        if let [low, high] = pair {
                            *place = u64::from(*low) | u64::from(*high) << 32;
                        }
                    }
                    return message;
                }
                let ns = |ticks| nanoseconds(ticks, frequency);
                let state = match usage.run_state {
                    RunState::Blocked => 0,
                    RunState::Ready => 1,
                    RunState::Running => 2,
                    RunState::Throttled(_) => 3,
                };
                let values = [
                    state,
                    ns(account.ran),
                    ns(usage.passed),
                    ns(account.stolen),
                    ns(account.longest),
                    account.turns,
                    account.overruns,
                    account.moves,
                ];
                fill(&mut message, &values);
            }
        }
        message
    }
}

/// Sums of a class as messages have them.
const fn words_of(stats: &ClassStats) -> [u64; 4] {
    let range = stats.min as u64 | (stats.max as u64) << 32;
    // The longest of a class without an exit is 0, and so is the shortest.
    let range = if stats.count == 0 { 0 } else { range };
    [stats.count, stats.total, stats.squares, range]
}

/// A refusal as messages have it.
const fn refusal(why: Refusal) -> [u64; 3] {
    let (why, pcpu, load) = match why {
        // The VM of a request is there.
        Refusal::Nobody | Refusal::Pinned => (Told::Pinned, 0, 0),
        Refusal::NotFair => (Told::NotFair, 0, 0),
        Refusal::NotServer => (Told::NotServer, 0, 0),
        Refusal::Weight => (Told::Weight, 0, 0),
        Refusal::Period => (Told::Period, 0, 0),
        Refusal::Budget => (Told::Budget, 0, 0),
        Refusal::Pool => (Told::Pool, 0, 0),
        Refusal::Overload { pcpu, load } => (Told::Overload, pcpu as u64, load),
    };
    [why as u64, pcpu, load]
}

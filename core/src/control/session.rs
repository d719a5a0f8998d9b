//! A manager that has the port open. One request at a time is in hand; it is answered before the next is taken, so that the state here has a
//! fixed size, and a manager that floods waits for itself.

mod console;

use core::sync::atomic::Ordering;

use bulkhead_abi::control::{
    EVENT_LIMITS, EVENT_OUTPUT, EVENT_STATE, Message, OUTPUT_DATA, Refusal as Told, Request,
    Status, TRIAL, VALUES, VERSION,
};
use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::{Class, Region, RegionKind};
use zerocopy::IntoBytes;

use super::events::{Changed, Events};
use super::request::{About, Command, Of, check};
use super::{Board, Denied, VmState, crash, phase};
use crate::colours::{self, Piece};
use crate::console::cpu_time::nanoseconds;
use crate::console::stats::ClassStats;
use crate::cpu::power::Phase;
use crate::monitor;
use crate::sched::{Refusal, RunState};
use crate::virtio::memory::At;
use crate::virtio::ports::Manager;

/// A question interrupts the vCPU or its pCPU, so that a manager asks once in so many microseconds at most: at 1500 instructions, of a
/// nanosecond each, that is 0.15 percent of a pCPU.
pub const APART_US: u64 = 1000;
/// Microseconds within which a pCPU answers, unless EL2 itself fails there.
const PATIENCE_US: u64 = 100_000;
/// Microseconds after which an order is tried again that came while somebody else gave one.
const AGAIN_US: u64 = 20;

/// Bytes of physical memory that one window shows, from a multiple of them on.
const WINDOW: u64 = 2 << 20;

/// What is in hand.
#[derive(Clone, Copy, Debug)]
enum Hand {
    /// Nothing.
    Nothing,
    /// A command that is to be carried out at [`Session::due`].
    Later(Request, Command),
    /// The question has been asked, and is answered at that time at the latest.
    Asked(Request, About),
    /// Bytes have been typed, and the same holds.
    Typed(Request),
}

/// What follows the answer in hand.
#[derive(Clone, Copy, Debug)]
enum Data {
    /// Memory, from this physical address on.
    Memory(u64),
    /// What a VM has printed.
    Printed,
}

/// The state of a manager.
#[derive(Debug)]
pub struct Session {
    /// The VM of the manager.
    own: usize,
    hand: Hand,
    /// When there is something to do for what is in hand (physical counter).
    due: u64,
    /// The next question is not asked before the counter reads this.
    next: u64,
    /// The vCPU (row of the plan) whose exits, or registers, were asked for last.
    told: Option<(usize, monitor::Request)>,
    data: Data,
    /// What was read of what a VM has printed.
    printed: [u64; OUTPUT_DATA / 8],
}

impl Session {
    /// The state of VM `own` before it has opened the port.
    pub const fn new(own: usize) -> Self {
        Self {
            own,
            hand: Hand::Nothing,
            due: 0,
            next: 0,
            told: None,
            data: Data::Memory(0),
            printed: [0; OUTPUT_DATA / 8],
        }
    }

    /// Whether something is in hand.
    const fn is_busy(&self) -> bool {
        !matches!(self.hand, Hand::Nothing)
    }

    /// When there is something to do without being told (physical counter).
    pub fn again(&self) -> Option<u64> {
        self.is_busy().then_some(self.due)
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

/// Makes an answer without values in its place.
fn begin(to: &mut Message, request: &Request, status: Status) {
    (to.version, to.kind, to.number) = (VERSION, request.kind, request.number);
    (to.vm, to.vcpu) = (request.vm, request.vcpu);
    (to.status, to.data) = (status as u16, 0);
    to.values = [0; VALUES];
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
        self.session.told = None;
        self.events.forget();
    }

    fn request(&mut self, request: &Request, bytes: u32, to: &mut Message) -> bool {
        match check(self.board.plan(), self.session.own, request, bytes) {
            Ok(command) => self.carry_out(request, command, to),
            Err((status, values)) => {
                // What is not a whole request has no number.
                let known = if status == Status::Length {
                    Request::default()
                } else {
                    *request
                };
                begin(to, &known, status);
                fill(to, &values);
                true
            }
        }
    }

    #[inline(always)]
    fn answer(&mut self, to: &mut Message) -> bool {
        self.session.is_busy() && self.answer_to_hand(to)
    }

    #[inline(always)]
    fn event(&mut self, to: &mut Message) -> bool {
        self.events.any() && self.take_event(to)
    }

    fn is_asked(&self) -> bool {
        self.session.is_busy()
    }

    fn copy(&mut self, from: u32, to: At, bytes: u32) {
        match self.session.data {
            Data::Memory(pa) => self.board.copy(pa.wrapping_add(from.into()), to, bytes),
            Data::Printed => {
                let end = from.wrapping_add(bytes) as usize;
                let part = self.session.printed.as_bytes().get(from as usize..end);
                self.board.write(part.unwrap_or_default(), to);
            }
        }
    }
}

impl<B: Board> InSession<'_, B> {
    /// Answers what is in hand, if that can be done now.
    #[inline(never)]
    fn answer_to_hand(&mut self, to: &mut Message) -> bool {
        let [now, _] = self.board.time();
        let is_over = now >= self.session.due;
        match self.session.hand {
            Hand::Later(request, command) if is_over => {
                self.session.hand = Hand::Nothing;
                self.carry_out(&request, command, to)
            }
            Hand::Asked(request, about) => {
                let answered = self.board.published().is_answered();
                if !answered && !is_over {
                    return false;
                }
                self.session.hand = Hand::Nothing;
                begin(to, &request, Status::Done);
                if answered {
                    self.tell(to, about);
                } else {
                    self.session.told = None;
                    to.status = Status::Silent as u16;
                }
                true
            }
            Hand::Typed(request) => {
                let taken = self.board.taken();
                if taken.is_none() && !is_over {
                    return false;
                }
                self.session.hand = Hand::Nothing;
                begin(to, &request, Status::Done);
                match taken {
                    Some(bytes) => fill(to, &[bytes.into()]),
                    None => to.status = Status::Silent as u16,
                }
                true
            }
            _ => false,
        }
    }

    /// Takes an event, and makes it.
    #[inline(never)]
    fn take_event(&mut self, to: &mut Message) -> bool {
        let Some((vm, changed)) = self.events.take() else {
            return false;
        };
        let kind = match changed {
            Changed::State => EVENT_STATE,
            Changed::Limits => EVENT_LIMITS,
            Changed::Output => EVENT_OUTPUT,
        };
        let request = Request {
            kind,
            vm: vm as u16,
            ..Request::default()
        };
        begin(to, &request, Status::Done);
        if changed == Changed::State {
            self.vm(to, vm);
        }
        true
    }

    /// Does what a request asks for, and makes the answer. `false`: later.
    fn carry_out(&mut self, request: &Request, command: Command, message: &mut Message) -> bool {
        begin(message, request, Status::Done);
        let done = match command {
            Command::Hello => {
                self.hello(message);
                Ok(())
            }
            Command::Vm(vm) => {
                self.vm(message, vm);
                Ok(())
            }
            Command::Vcpu(of) => self.vcpu(message, of),
            Command::Service(vm) => {
                fill(message, &self.board.service(vm));
                Ok(())
            }
            Command::Report(first, vm) => {
                let kept = self.board.last_crash(vm);
                match kept.tell(first, &mut message.values) {
                    crash::Told::All => Ok(()),
                    crash::Told::Nothing => {
                        message.status = Status::Nothing as u16;
                        Ok(())
                    }
                    crash::Told::NotYet => Err(Denied::Busy),
                }
            }
            Command::Order(order, vm) => self.board.order(order, vm),
            Command::ShutDown(vm) => {
                let left = self.board.shut_down(vm);
                fill(message, &[left.unwrap_or(0)]);
                left.map(drop)
            }
            Command::Change(change, vm) => {
                let is_trial = request.flags & TRIAL != 0;
                self.board.change(vm, change, is_trial)
            }
            Command::Memory(vm, ipa, most) => self.memory(message, vm, ipa, most),
            Command::Output(vm, from, most) => {
                self.output(message, vm, from, most);
                Ok(())
            }
            Command::Input(vm, bytes, words) => match self.input(request, vm, bytes, words) {
                Ok(None) => return false,
                Ok(Some(status)) => {
                    message.status = status as u16;
                    Ok(())
                }
                Err(denied) => Err(denied),
            },
            Command::Ask(about, of) => match self.ask(request, about, of) {
                Ok(None) => return false,
                Ok(Some(status)) => {
                    message.status = status as u16;
                    Ok(())
                }
                Err(denied) => Err(denied),
            },
            Command::GoOn(about, of) => {
                if self.session.told == Some((of.id, question(about))) {
                    self.tell(message, about);
                } else {
                    message.status = Status::Nothing as u16;
                }
                Ok(())
            }
        };
        match done {
            Ok(()) => {}
            Err(Denied::Phase(now)) => {
                message.status = Status::Phase as u16;
                fill(message, &[phase(now) as u64]);
            }
            Err(Denied::Refused(why)) => {
                message.status = Status::Refused as u16;
                fill(message, &refusal(why));
            }
            // Somebody else is at it at this moment.
            Err(Denied::Busy) => {
                self.session.due = self.in_us(AGAIN_US);
                self.session.hand = Hand::Later(*request, command);
                return false;
            }
        }
        true
    }

    /// Whether a VM does not run, and so may be read.
    fn rests(&self, vm: usize) -> Result<(), Denied> {
        match self.board.vm(vm).phase {
            Phase::Down | Phase::Ended | Phase::Paused => Ok(()),
            phase => Err(Denied::Phase(phase)),
        }
    }

    /// Finds memory of a VM, which is copied when the answer lies in the manager's buffer.
    fn memory(
        &mut self,
        message: &mut Message,
        vm: usize,
        ipa: u64,
        most: u16,
    ) -> Result<(), Denied> {
        self.rests(vm)?;
        let VmState { phase, lives, .. } = self.board.vm(vm);
        if lives == 0 {
            message.status = Status::Nothing as u16;
            return Ok(());
        }
        if phase == Phase::Paused && !self.board.is_paused(vm) {
            message.status = Status::Silent as u16;
            return Ok(());
        }
        let is_ram = |row: &&Region| {
            let end = row.ipa.saturating_add(row.size);
            row.kind == RegionKind::Ram as u16 && ipa < end
        };
        let (mut first, mut left, mut shown) = (0, 0, 0);
        if let Some(row) = self.board.plan().regions_of(vm).iter().find(is_ram) {
            first = ipa.max(row.ipa);
            let offset = first.wrapping_sub(row.ipa);
            left = row.size.wrapping_sub(offset);
            let piece = colours::piece(row, offset);
            let Piece { pa, size } = piece.unwrap_or(Piece { pa: 0, size: 0 });
            self.session.data = Data::Memory(pa);
            // A window shows so much of memory.
            shown = WINDOW.wrapping_sub(pa % WINDOW).min(size);
        }
        message.data = left.min(shown).min(most.into()) as u16;
        fill(message, &[first, left, lives.into()]);
        Ok(())
    }

    /// Whether a VM is promised that it has no exits.
    fn is_promised_no_exits(&self, vm: usize) -> bool {
        let row = self.board.plan().vms.get(vm);
        row.is_some_and(|row| row.class == Class::HardRealtime as u16)
    }

    fn in_us(&self, us: u64) -> u64 {
        let [now, frequency] = self.board.time();
        now.saturating_add((frequency / 1000).saturating_mul(us) / 1000)
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
        let kept = self.board.last_crash(vm);
        if kept.tell(0, &mut message.values) != crash::Told::All {
            message.values = [0; VALUES];
        }
        let [life, _, syndrome, address, pc, ..] = message.values;
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

    fn vcpu(&self, message: &mut Message, of: Of) -> Result<(), Denied> {
        let limits = self.board.limits(of.id).ok_or(Denied::Busy)?;
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
        fill(message, &values);
        Ok(())
    }

    /// Asks a vCPU, or its pCPU, unless it is too early. Gives a status if it is not to be asked.
    fn ask(&mut self, request: &Request, about: About, of: Of) -> Result<Option<Status>, Denied> {
        if let About::Registers(_) = about {
            self.rests(of.vm)?;
        }
        if self.is_promised_no_exits(of.vm) && is_up(self.board.vm(of.vm).phase) {
            return Ok(Some(Status::WouldExit));
        }
        let [now, _] = self.board.time();
        if now < self.session.next {
            self.session.due = self.session.next;
            self.session.hand = Hand::Later(*request, Command::Ask(about, of));
            return Ok(None);
        }
        self.session.next = self.in_us(APART_US);
        self.session.told = None;
        let question = question(about);
        if question != monitor::Request::Time {
            self.session.told = Some((of.id, question));
        }
        self.session.due = self.in_us(PATIENCE_US);
        self.session.hand = Hand::Asked(*request, about);
        self.board.ask(of.id, question);
        Ok(None)
    }

    /// Tells what was answered.
    fn tell(&self, message: &mut Message, about: About) {
        let published = self.board.published();
        match about {
            About::Registers(first) => {
                let words = published.registers().iter().skip(first);
                for (place, word) in message.values.iter_mut().zip(words) {
                    *place = word.load(Ordering::Relaxed);
                }
            }
            About::Exits(first) => {
                let totals = published.totals();
                let sums = [totals.exits, totals.guest, totals.elapsed, totals.away];
                fill(message, &sums);
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
                    return;
                };
                let account = &usage.account;
                if let About::Waits(first) = about {
                    let waits = account.waits.get(first & !1..).unwrap_or_default();
                    for (place, pair) in message.values.iter_mut().zip(waits.chunks_exact(2)) {
                        if let [low, high] = pair {
                            *place = u64::from(*low) | u64::from(*high) << 32;
                        }
                    }
                    return;
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
                fill(message, &values);
            }
        }
    }
}

/// Whether a VM in this phase is up.
const fn is_up(phase: Phase) -> bool {
    matches!(phase, Phase::Running | Phase::Asked(_) | Phase::Paused)
}

/// What the vCPU, or its pCPU, is asked.
const fn question(about: About) -> monitor::Request {
    match about {
        About::Exits(_) => monitor::Request::Exits,
        About::Registers(_) => monitor::Request::Registers,
        About::Time | About::Waits(_) => monitor::Request::Time,
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

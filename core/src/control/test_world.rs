//! A board that does what it is told, for tests.

use std::vec::Vec;

use bulkhead_abi::control::{Kind, Message, Request, Status, VERSION, right};
use bulkhead_abi::plan::{Class, RegionKind, Vcpu};

use super::{Board, Denied, Events, LastCrash, Order, Session, Typed, VmState};
use crate::console::backlog::{Backlog, Found};
use crate::cpu::power::{self, Phase};
use crate::monitor::{self, Published};
use crate::plan::Plan;
use crate::plan::rights_tests::managed;
use crate::sched::Change;
use crate::virtio::memory::At;
use crate::virtio::ports::Manager;

/// Ticks of the counter in a microsecond.
pub(super) const US: u64 = 50;

pub(super) struct Fake {
    pub(super) plan: Plan<'static>,
    pub(super) now: u64,
    pub(super) phase: Phase,
    /// Somebody else gives an order so often.
    pub(super) busy: u32,
    pub(super) orders: Vec<(Order, usize)>,
    pub(super) changes: Vec<(usize, Change)>,
    /// Those that were only tried.
    pub(super) trials: Vec<(usize, Change)>,
    /// VMs that were asked to stop.
    pub(super) shut_down: Vec<usize>,
    /// What is answered to them.
    pub(super) denies: Option<Denied>,
    pub(super) published: Published,
    pub(super) asked: core::cell::RefCell<Vec<(usize, monitor::Request, u64)>>,
    pub(super) crash: LastCrash,
    pub(super) lives: u32,
    pub(super) paused: bool,
    pub(super) copied: Vec<(u64, u64, u32)>,
    /// What the second VM has printed.
    pub(super) backlog: Backlog<256>,
    pub(super) typed: Typed,
    /// What was written for the manager.
    pub(super) written: Vec<u8>,
    /// The VM prints this behind the look that finds nothing.
    pub(super) prints: core::cell::Cell<&'static [u8]>,
}

impl Fake {
    /// The board of a plan in which the first VM has these rights over the second, which is of a class.
    pub(super) fn new(rights: u32, class: Class) -> Self {
        let mut sample = managed();
        sample.rights[1].rights = right::LIST | rights;
        sample.vms[1].class = class as u16;
        // The first is not asked to stop.
        sample.stops.retain(|stop| stop.vm == 1);
        sample
            .regions
            .retain(|row| row.kind != RegionKind::StopWord as u16);
        let words: Vec<u64> = { sample.bytes() }
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight")))
            .collect();
        // For each test once: a plan lives as long as its board.
        let bytes = zerocopy::IntoBytes::as_bytes(&*words.leak());
        Self {
            plan: Plan::open(bytes).expect("sound"),
            now: 1_000_000,
            phase: Phase::Running,
            busy: 0,
            orders: Vec::new(),
            changes: Vec::new(),
            trials: Vec::new(),
            shut_down: Vec::new(),
            denies: None,
            published: Published::new(),
            asked: Vec::new().into(),
            crash: LastCrash::new(),
            lives: 3,
            paused: true,
            copied: Vec::new(),
            backlog: Backlog::new(),
            typed: Typed::new(),
            written: Vec::new(),
            prints: core::cell::Cell::default(),
        }
    }

    pub(super) fn all() -> Self {
        let every = right::ALL.iter().fold(0, |all, (bit, _)| all | bit);
        Self::new(every, Class::General)
    }

    fn done(&mut self) -> Result<(), Denied> {
        if self.busy != 0 {
            self.busy -= 1;
            return Err(Denied::Busy);
        }
        self.denies.map_or(Ok(()), Err)
    }
}

impl Board for Fake {
    fn plan(&self) -> &Plan<'_> {
        &self.plan
    }
    fn time(&self) -> [u64; 2] {
        [self.now, US * 1_000_000]
    }
    fn vm(&self, _: usize) -> VmState {
        VmState {
            phase: self.phase,
            lives: self.lives,
            settled: None,
        }
    }
    fn vcpu(&self, id: usize, vm: usize, number: usize) -> (usize, power::State) {
        assert_eq!(usize::from(self.plan.vcpus[id].vm), vm);
        assert_eq!(self.plan.vcpus[id].mpidr, number as u64);
        (2, power::State::On)
    }
    fn limits(&self, id: usize) -> Option<Vcpu> {
        self.plan.vcpus.get(id).copied()
    }
    fn shut_down(&mut self, vm: usize) -> Result<u64, Denied> {
        self.done()?;
        self.shut_down.push(vm);
        Ok(7_000)
    }
    fn order(&mut self, order: Order, vm: usize) -> Result<(), Denied> {
        self.done()?;
        self.orders.push((order, vm));
        Ok(())
    }
    fn change(&mut self, vm: usize, change: Change, is_trial: bool) -> Result<(), Denied> {
        self.done()?;
        if is_trial {
            self.trials.push((vm, change));
        } else {
            self.changes.push((vm, change));
        }
        Ok(())
    }
    fn service(&self, vm: usize) -> [u64; 3] {
        [vm as u64, 5, 6]
    }
    fn last_crash(&self, _: usize) -> &LastCrash {
        &self.crash
    }
    fn is_paused(&self, vm: usize) -> bool {
        assert_eq!(vm, 1);
        self.paused
    }
    fn copy(&mut self, pa: u64, to: At, bytes: u32) {
        self.copied.push((pa, to.address(), bytes));
    }
    fn write(&mut self, bytes: &[u8], to: At) {
        assert_eq!(to.address(), 0x9000);
        self.written.extend(bytes);
    }
    fn printed(&self, vm: usize, from: u64, most: u32, to: &mut [u64]) -> Found {
        assert_eq!(vm, 1);
        let found = self.backlog.read(from, most, to);
        self.backlog.append(self.prints.take().iter().copied());
        found
    }
    fn type_on(&self, vm: usize, bytes: u32, words: [u64; 3]) -> bool {
        self.typed.post(vm, bytes, words)
    }
    fn taken(&self) -> Option<u32> {
        self.typed.taken()
    }
    fn published(&self) -> &Published {
        &self.published
    }
    fn ask(&self, id: usize, request: monitor::Request) {
        self.published.ask(id, request);
        self.asked.borrow_mut().push((id, request, self.now));
    }
}

/// A request about the second VM.
pub(super) fn request(kind: Kind, values: [u64; 4]) -> Request {
    Request {
        version: VERSION,
        kind: kind as u16,
        number: 77,
        vm: u16::from(kind.is_about_vm()),
        vcpu: 0,
        flags: 0,
        values,
    }
}

pub(super) struct World {
    pub(super) board: Fake,
    pub(super) session: Session,
    pub(super) events: Events,
}

impl World {
    pub(super) fn new(board: Fake) -> Self {
        Self {
            board,
            session: Session::new(0),
            events: Events::new(),
        }
    }

    pub(super) fn ask(&mut self, request: &Request, bytes: u32) -> Option<Message> {
        let mut to = Message::default();
        let mut with = self.session.with(&mut self.board, &self.events);
        with.request(request, bytes, &mut to).then_some(to)
    }

    /// The answer, at once.
    pub(super) fn status(&mut self, request: &Request) -> Option<Status> {
        self.ask(request, 48).and_then(|it| Status::of(it.status))
    }

    pub(super) fn answer(&mut self) -> Option<Message> {
        let mut to = Message::default();
        let mut with = self.session.with(&mut self.board, &self.events);
        with.answer(&mut to).then_some(to)
    }

    /// Copies what follows the answer.
    pub(super) fn copy(&mut self, from: u32, bytes: u32) {
        let mut with = self.session.with(&mut self.board, &self.events);
        with.copy(from, At::new(0x9000), bytes);
    }

    pub(super) fn event(&mut self) -> Option<Message> {
        let mut to = Message::default();
        let mut with = self.session.with(&mut self.board, &self.events);
        with.event(&mut to).then_some(to)
    }
}

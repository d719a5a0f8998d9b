//! An EL2 that speaks the control protocol over a socket, for tests of the manager's side. It decides as the contract says
//! ([`bulkhead_abi::control`]), and can be told to behave badly.
#![forbid(unsafe_code)]

mod console;
mod demand;
mod dump;
mod limits;
mod statistics;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use bulkhead_abi::call::End;
use bulkhead_abi::control::{
    EVENT_LIMITS, EVENT_OUTPUT, EVENT_STATE, Kind, Message, Phase, Request, Status, TRIAL, VALUES,
    VERSION, crash, right,
};
use bulkhead_abi::plan::{Class, CpuPolicy};
use zerocopy::{FromBytes, IntoBytes};

pub use demand::Demand;

/// A VM.
#[derive(Clone, Debug)]
pub struct FakeVm {
    /// Its name, up to 16 bytes.
    pub name: &'static str,
    /// The manager's rights over it.
    pub rights: u32,
    /// Its phase.
    pub phase: Phase,
    /// Lives so far.
    pub lives: u64,
    /// Its class.
    pub class: Class,
    /// Why its last life ended.
    pub end: Option<End>,
    /// pCPU of each vCPU.
    pub pcpus: Vec<u64>,
    /// Policy of its vCPUs.
    pub policy: CpuPolicy,
    /// Weight of its vCPUs.
    pub weight: u64,
    /// Budget or quota, and period.
    pub limits: [u64; 2],
    /// pCPUs on which they may run.
    pub pool: u64,
    /// Questions to its vCPUs would be exits that it is promised not to have.
    pub is_undisturbed: bool,
    /// How many times a start is refused because it prints its reports, when it was stopped.
    pub reports: u32,
    /// What a start leads to.
    pub starts_to: Phase,
    /// Milliseconds that it has when it is asked to stop; 0: it is not asked.
    pub stop_ms: u64,
    /// It ends when it is asked; else when its time is over, which is at the next question for its state.
    pub obeys: bool,
    /// What it wants, in place of always the same.
    pub demand: Option<Demand>,
    /// Words of its last crash, if it has crashed.
    pub crash: Option<[u64; crash::WORDS]>,
    /// Its RAM, by IPA.
    pub ram: Vec<(u64, Vec<u8>)>,
    /// What it has printed.
    pub printed: Vec<u8>,
    /// Managers are told of what it prints next.
    pub is_heard: bool,
    /// What was typed.
    pub typed: Vec<u8>,
    /// How many more bytes it takes.
    pub takes: usize,
}

/// How the EL2 speaks.
#[derive(Clone, Debug)]
pub struct Manner {
    /// It writes this many bytes at a time.
    pub piece: usize,
    /// It answers in pairs, the later first.
    pub swaps: bool,
    /// It says nothing at all.
    pub is_silent: bool,
    /// Its version.
    pub version: u16,
    /// Before each answer it sends one with a number of somebody else.
    pub stale: bool,
    /// Before each answer it sends an event that was on its way: the state of the VM before the request.
    pub chatty: bool,
    /// It says no events of what it does.
    pub no_events: bool,
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            piece: size_of::<Message>(),
            swaps: false,
            is_silent: false,
            version: VERSION,
            stale: false,
            chatty: false,
            no_events: false,
        }
    }
}

/// The board.
#[derive(Clone, Debug)]
pub struct Fake {
    /// Its VMs.
    pub vms: Vec<FakeVm>,
    /// How it speaks.
    pub manner: Manner,
    /// Requests so far.
    pub requests: Vec<Request>,
    /// Multiplies all statistics; each question for the first ones adds 1.
    pub ticks: u64,
    /// The vCPU whose exits were asked for last: another question ends that.
    pub exits_of: Option<(u16, u16)>,
    /// How many more times another manager asks in the middle of the exits of a vCPU.
    pub others_ask: u32,
    /// The same, where it asks for the exits of the same vCPU.
    pub others_ask_same: u32,
    /// Most millionths of a pCPU that a budget may take.
    pub most: u64,
    /// The pool of the plan.
    pub pool: u64,
    /// Bytes that follow the answer that is being made.
    pub data: u16,
}

impl Default for Fake {
    fn default() -> Self {
        let all = right::ALL.iter().fold(0, |all, (bit, _)| all | bit);
        let vm = |name, class, pcpus: &[u64], policy| FakeVm {
            name,
            rights: all,
            phase: Phase::Running,
            lives: 1,
            class,
            end: None,
            pcpus: pcpus.to_vec(),
            policy,
            weight: 100,
            limits: [10_000_000, 10_000_000],
            pool: 0b11,
            is_undisturbed: false,
            reports: 0,
            starts_to: Phase::Running,
            demand: None,
            crash: None,
            ram: Vec::new(),
            printed: Vec::new(),
            is_heard: false,
            typed: Vec::new(),
            takes: usize::MAX,
            stop_ms: 60_000,
            obeys: true,
        };
        let manager = FakeVm {
            rights: right::LIST | right::STATS,
            ..vm("manager", Class::Management, &[0], CpuPolicy::Fair)
        };
        let control = FakeVm {
            is_undisturbed: true,
            weight: 0,
            limits: [0, 0],
            ..vm("control", Class::HardRealtime, &[3], CpuPolicy::Pinned)
        };
        let general = vm("linux", Class::General, &[0, 1], CpuPolicy::Fair);
        let server = FakeVm {
            weight: 0,
            limits: [2_000_000, 10_000_000],
            ..vm("rt", Class::SoftRealtime, &[1], CpuPolicy::Server)
        };
        Self {
            vms: vec![manager, general, server, control],
            manner: Manner::default(),
            requests: Vec::new(),
            ticks: 1,
            exits_of: None,
            others_ask: 0,
            others_ask_same: 0,
            most: 1_000_000,
            pool: 0b11,
            data: 0,
        }
    }
}

impl Fake {
    /// The message that tells the state of a VM.
    pub fn state(&self, index: u16) -> Message {
        let mut message = Message {
            version: self.manner.version,
            kind: EVENT_STATE,
            vm: index,
            ..Message::default()
        };
        let vm = &self.vms[usize::from(index)];
        let mut name = [0; 16];
        name[..vm.name.len()].copy_from_slice(vm.name.as_bytes());
        let half = |at: usize| u64::read_from_bytes(&name[at..at + 8]).unwrap_or(0);
        message.values[..10].copy_from_slice(&[
            half(0),
            half(8),
            vm.rights.into(),
            vm.phase as u64,
            vm.lives,
            vm.class as u64 | (vm.pcpus.len() as u64) << 16,
            vm.end.map_or(0, |end| end as u64),
            0,
            0,
            if vm.stop_ms == 0 {
                0
            } else {
                1 | vm.stop_ms << 32
            },
        ]);
        if let Some([life, _, syndrome, address, pc, ..]) = vm.crash {
            message.values[10..].copy_from_slice(&[life, syndrome, address, pc]);
        }
        message
    }

    /// Crashes a VM in this life: the exit with number `n` was at PC 0x1000 and `n` more.
    pub fn crash(&mut self, index: u16, life: u64) {
        let exits = (0..crash::EXITS as u64).flat_map(|n| [0x1000 + n, 0x5600_0000, 900, 3]);
        let head = [
            life,
            1,
            0x9200_0046,
            0xdead_0000,
            0x4000_0040,
            crash::DATA,
            62_500_000,
            16,
        ];
        let words: Vec<u64> = head.into_iter().chain(exits).collect();
        let vm = &mut self.vms[usize::from(index)];
        vm.crash = words.try_into().ok();
        (vm.lives, vm.end) = (life, Some(End::Crash));
    }

    /// What it says to a request, in that order.
    pub fn take(&mut self, request: &Request) -> Vec<Message> {
        self.requests.push(*request);
        let mut answer = Message {
            version: self.manner.version,
            kind: request.kind,
            number: request.number,
            vm: request.vm,
            vcpu: request.vcpu,
            ..Message::default()
        };
        let is_vm = usize::from(request.vm) < self.vms.len();
        let before = is_vm.then(|| self.state(request.vm));
        let mut events = Vec::new();
        match self.perform(request, &mut events) {
            Ok(values) => {
                answer.values[..values.len()].copy_from_slice(&values);
                answer.data = std::mem::take(&mut self.data);
            }
            Err((status, value)) => {
                answer.status = status as u16;
                answer.values[0] = value;
            }
        }
        if self.manner.no_events {
            events.clear();
        }
        let mut said = Vec::new();
        if self.manner.stale {
            let number = request.number.wrapping_add(1000).max(1);
            let vm = request.vm.wrapping_add(1);
            said.push(Message {
                number,
                vm,
                ..answer
            });
        }
        if self.manner.chatty {
            said.extend(before);
        }
        said.push(answer);
        said.extend(events);
        said
    }

    fn perform(
        &mut self,
        request: &Request,
        events: &mut Vec<Message>,
    ) -> Result<Vec<u64>, (Status, u64)> {
        if request.version != self.manner.version {
            return Err((Status::Version, self.manner.version.into()));
        }
        let kind = Kind::of(request.kind).ok_or((Status::Kind, 0))?;
        let unused = request.values.iter().skip(kind.values());
        if request.number == 0
            || request.flags & !kind.flags() != 0
            || unused.into_iter().any(|value| *value != 0)
        {
            return Err((Status::Reserved, 0));
        }
        if kind == Kind::Hello {
            let seen = (0..).zip(&self.vms).filter(|(_, vm)| vm.rights != 0);
            let visible = seen.fold(0, |all, (index, _)| all | 1 << index);
            return Ok(vec![self.vms.len() as u64, 0, 4, 62_500_000, 1, visible]);
        }
        let vm = self
            .vms
            .get(usize::from(request.vm))
            .ok_or((Status::Vm, 0))?;
        if vm.rights & kind.needs() == 0 {
            return Err((Status::Rights, vm.rights.into()));
        }
        if kind.is_about_vcpu() && usize::from(request.vcpu) >= vm.pcpus.len() {
            return Err((Status::Vcpu, 0));
        }
        match kind {
            Kind::Hello | Kind::Vm => {
                let state = self.state(request.vm).values.to_vec();
                let vm = &mut self.vms[usize::from(request.vm)];
                if vm.phase == Phase::Asked {
                    (vm.phase, vm.end) = (Phase::Down, Some(End::Overdue));
                    events.push(self.state(request.vm));
                }
                Ok(state)
            }
            Kind::Report => {
                let words = vm.crash.ok_or((Status::Nothing, 0))?;
                let first = request.values[0] as usize;
                let from = words.get(first..).filter(|it| !it.is_empty());
                let from = from.ok_or((Status::Value, 0))?;
                Ok(from[..from.len().min(VALUES)].to_vec())
            }
            Kind::Registers | Kind::Memory => {
                let (values, data) = dump::perform(vm, kind, request)?;
                self.data = data as u16;
                Ok(values)
            }
            Kind::Output => {
                let (values, data) = console::output(vm, request)?;
                self.vms[usize::from(request.vm)].is_heard |=
                    values[0] + u64::from(data) == values[1];
                self.data = data;
                Ok(values)
            }
            Kind::Input => console::input(&mut self.vms[usize::from(request.vm)], request),
            Kind::Shutdown if vm.stop_ms == 0 => Err((Status::Unasked, 0)),
            Kind::Shutdown => {
                let left = vm.stop_ms * 1_000_000;
                self.order(kind, request.vm, events).map(|()| vec![left])
            }
            Kind::Vcpu => {
                let pcpu = vm.pcpus[usize::from(request.vcpu)];
                let [amount, period] = vm.limits;
                let on = if vm.phase == Phase::Down { 0 } else { 3 };
                Ok(vec![
                    pcpu,
                    on,
                    vm.policy as u64,
                    vm.weight,
                    amount,
                    period,
                    vm.pool,
                ])
            }
            Kind::Start | Kind::Stop | Kind::Restart | Kind::Pause | Kind::Resume => {
                self.order(kind, request.vm, events).map(|()| Vec::new())
            }
            Kind::Time | Kind::Waits | Kind::Exits | Kind::Service => {
                self.statistics(kind, request)
            }
            Kind::Weight | Kind::Cap | Kind::Budget | Kind::Pool => {
                let is_trial = request.flags & TRIAL != 0;
                let before = self.vms[usize::from(request.vm)].clone();
                self.limit(kind, request)
                    .map_err(|why| (Status::Refused, why as u64))?;
                if is_trial {
                    self.vms[usize::from(request.vm)] = before;
                    return Ok(Vec::new());
                }
                events.push(Message {
                    version: self.manner.version,
                    kind: EVENT_LIMITS,
                    vm: request.vm,
                    ..Message::default()
                });
                Ok(Vec::new())
            }
        }
    }

    fn order(
        &mut self,
        kind: Kind,
        index: u16,
        events: &mut Vec<Message>,
    ) -> Result<(), (Status, u64)> {
        let vm = &mut self.vms[usize::from(index)];
        let refused = Err((Status::Phase, vm.phase as u64));
        match (kind, vm.phase) {
            (Kind::Start, Phase::Ended) => {
                if vm.reports > 1 {
                    vm.reports -= 1;
                } else {
                    vm.phase = Phase::Down;
                    events.push(self.state(index));
                }
                return refused;
            }
            (Kind::Start, Phase::Down) | (Kind::Restart, _) => {
                vm.lives += 1;
                vm.phase = Phase::Starting;
                let target = vm.starts_to;
                events.push(self.state(index));
                self.vms[usize::from(index)].phase = target;
            }
            (Kind::Stop, Phase::Running | Phase::Paused | Phase::Starting) => {
                vm.phase = if vm.reports == 0 {
                    Phase::Down
                } else {
                    Phase::Ended
                };
                vm.end = Some(End::Ordered);
            }
            (Kind::Shutdown, Phase::Running | Phase::Asked) => {
                vm.phase = Phase::Asked;
                if vm.obeys {
                    events.push(self.state(index));
                    let vm = &mut self.vms[usize::from(index)];
                    (vm.phase, vm.end) = (Phase::Down, Some(End::Off));
                }
            }
            (Kind::Pause, Phase::Running) => vm.phase = Phase::Paused,
            (Kind::Resume, Phase::Paused) => vm.phase = Phase::Running,
            _ => return refused,
        }
        events.push(self.state(index));
        Ok(())
    }
}

/// A running EL2, and the end of its port.
#[derive(Debug)]
pub struct El2 {
    fake: Arc<Mutex<Fake>>,
    /// Whoever has the lock writes whole messages.
    stream: Arc<Mutex<UnixStream>>,
    thread: Option<JoinHandle<()>>,
}

impl El2 {
    /// Starts it; gives the other end of the port.
    ///
    /// # Panics
    /// There is no socket to be had.
    pub fn start(fake: Fake) -> (Self, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        (Self::serve(Arc::new(Mutex::new(fake)), ours), theirs)
    }

    /// Serves a board on one more connection.
    ///
    /// # Panics
    /// The socket cannot be shared with a thread.
    pub fn serve(fake: Arc<Mutex<Fake>>, stream: UnixStream) -> Self {
        let at_port = stream.try_clone().expect("a socket");
        let board = Arc::clone(&fake);
        let stream = Arc::new(Mutex::new(stream));
        let to = Arc::clone(&stream);
        let thread = thread::spawn(move || answer_all(&board, at_port, &to));
        Self {
            fake,
            stream,
            thread: Some(thread),
        }
    }

    /// The board.
    pub fn board(&self) -> MutexGuard<'_, Fake> {
        lock(&self.fake)
    }

    /// Says something without being asked.
    pub fn say(&self, message: &Message) {
        // Who does not listen any more misses it.
        let _ = lock(&self.stream).write_all(message.as_bytes());
    }

    /// Says what has become of a VM.
    pub fn tell(&self, index: u16) {
        let message = self.board().state(index);
        self.say(&message);
    }

    /// Has a VM print something.
    pub fn print(&self, index: u16, text: &[u8]) {
        let mut board = self.board();
        let version = board.manner.version;
        let vm = &mut board.vms[usize::from(index)];
        vm.printed.extend(text);
        let is_heard = std::mem::take(&mut vm.is_heard);
        drop(board);
        if is_heard {
            self.say(&Message {
                version,
                kind: EVENT_OUTPUT,
                vm: index,
                ..Message::default()
            });
        }
    }

    /// Unplugs the port.
    pub fn unplug(mut self) {
        let _ = lock(&self.stream).shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer_all(board: &Mutex<Fake>, mut stream: UnixStream, to: &Mutex<UnixStream>) {
    let mut held: Vec<Vec<Vec<u8>>> = Vec::new();
    let mut bytes = [0; size_of::<Request>()];
    while stream.read_exact(&mut bytes).is_ok() {
        let Ok(request) = Request::read_from_bytes(&bytes) else {
            return;
        };
        let mut board = lock(board);
        let said = board.take(&request);
        let with_data = |message: &Message| {
            let data =
                board
                    .vms
                    .get(usize::from(message.vm))
                    .map(|vm| match Kind::of(message.kind) {
                        Some(Kind::Output) => console::data(vm, message),
                        _ => dump::data(vm, message),
                    });
            [message.as_bytes(), data.unwrap_or_default()].concat()
        };
        let said: Vec<Vec<u8>> = said.iter().map(with_data).collect();
        let manner = board.manner.clone();
        drop(board);
        if manner.is_silent {
            continue;
        }
        held.push(said);
        if manner.swaps && held.len() < 2 {
            continue;
        }
        let text: Vec<u8> = held.drain(..).rev().flatten().flatten().collect();
        let mut to = lock(to);
        for piece in text.chunks(manner.piece) {
            if to.write_all(piece).is_err() {
                return;
            }
            if manner.piece < size_of::<Message>() {
                thread::yield_now();
            }
        }
    }
}

//! The control port: whatever a manager asks for, and whatever becomes of the board meanwhile.

use std::cell::{Cell, RefCell};
use std::sync::LazyLock;

use bulkhead_abi::control::{DATA, Kind, Message, Request, Status, VERSION, right};
use bulkhead_abi::plan::{RegionKind, Vcpu};
use bulkhead_core::colours;
use bulkhead_core::console::backlog::{Backlog, Found};
use bulkhead_core::control::events::Changed;
use bulkhead_core::control::{Board, Denied, Events, LastCrash, Order, Session, Typed, VmState};
use bulkhead_core::cpu::power::{self, End, Phase};
use bulkhead_core::monitor::{self, Published};
use bulkhead_core::plan::Plan;
use bulkhead_core::sched::{Change, Refusal};
use bulkhead_core::virtio::memory::At;
use bulkhead_core::virtio::ports::Manager;
use zerocopy::IntoBytes;

use super::description;
use bulkhead_fuzz::Target;
use bulkhead_fuzz::engine::Input;

/// This target.
pub const TARGET: Target = Target {
    name: "control",
    seeds,
    words: &[],
    run,
};

/// A manager, a VM over which it has all rights, one over which it has a few, one that is locked, and one over which it has none.
const SYSTEM: &str = "[board]\ndtb = \"virt.dtb\"\n\
    [console]\nservice = 0\n[service]\npcpu = 0\n\
    [vm.a]\nmemory = \"2MiB\"\nimage = \"raw.bin\"\nload = \"0x40080000\"\npcpus = [0]\n\
    manages = { b = [\"start\", \"stop\", \"pause\", \"restart\", \"stats\", \"limits\", \"dump\", \"console\"], c = [\"logs\", \"stats\", \"dump\"], d = [\"stats\"] }\n\
    [vm.b]\nmemory = \"2MiB\"\nimage = \"raw.bin\"\nload = \"0x40080000\"\npcpus = [0]\ncpu = \"fair\"\nstop = { by = \"word\", timeout = \"1s\" }\n\
    [vm.c]\nmemory = \"2MiB\"\nimage = \"raw.bin\"\nload = \"0x40080000\"\npcpus = [0]\ncpu = \"fair\"\n\
    [vm.d]\nmemory = \"2MiB\"\nimage = \"raw.bin\"\nload = \"0x40080000\"\npcpus = [0]\ncpu = \"fair\"\nlocked = true\n\
    [vm.e]\nmemory = \"2MiB\"\nimage = \"raw.bin\"\nload = \"0x40080000\"\npcpus = [0]\ncpu = \"fair\"\n";

static PLAN: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let Some(planned) = description::plan(SYSTEM) else {
        panic!("the system is not planned");
    };
    let words = planned.bytes.chunks_exact(8);
    words
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
        .collect()
});

/// Steps: one request of each kind, each followed by time and by what the board does.
fn seeds() -> Vec<Vec<u8>> {
    let ask = |kind: Kind, first: u64, second: u64| {
        let head = [0, kind as u8, u8::from(kind.is_about_vm()), 0];
        [&head[..], &first.to_le_bytes(), &second.to_le_bytes()].concat()
    };
    let all: Vec<u8> = Kind::ALL
        .into_iter()
        .flat_map(|kind| [ask(kind, 1, 2), vec![4, 200], vec![5], vec![6], vec![2]].concat())
        .collect();
    // Each with a bit of each value in turn.
    let altered: Vec<u8> = Kind::ALL
        .into_iter()
        .zip((4..8).cycle())
        .flat_map(|(kind, field)| [vec![9, field], ask(kind, 1, 2), vec![4, 200]].concat())
        .collect();
    let dump = [
        vec![1, 3],
        ask(Kind::Memory, 0x4000_0000, 300),
        ask(Kind::Registers, 0, 0),
        vec![6, 4, 9],
    ];
    let logs = [
        vec![7, 30],
        ask(Kind::Output, 0, 100),
        vec![7, 9, 2],
        ask(Kind::Output, 30, 504),
    ];
    vec![all, altered, dump.concat(), logs.concat()]
}

/// The board, on which everything is checked that a manager brings about.
struct World {
    plan: Plan<'static>,
    now: u64,
    phase: Phase,
    lives: u32,
    /// Somebody else gives an order at this moment.
    busy: bool,
    paused: bool,
    published: Published,
    /// The row that was asked for last, and about what.
    asked: Cell<Option<(usize, monitor::Request)>>,
    crash: LastCrash,
    backlog: Backlog<4>,
    typed: Typed,
    copied: RefCell<u32>,
    /// Whether the request in hand is: nothing may come of another one.
    is_sound: bool,
}

impl World {
    /// The manager is the first VM.
    fn may(&self, vm: usize, rights: u32) {
        let has = self.plan.right(0, vm);
        assert!(
            has & rights != 0,
            "VM {vm} grants {has:#x}, not {rights:#x}"
        );
    }

    fn acted(&self, vm: usize, rights: u32) -> Result<(), Denied> {
        self.may(vm, rights);
        assert!(
            self.is_sound,
            "something is done by a request that is not sound"
        );
        if self.busy { Err(Denied::Busy) } else { Ok(()) }
    }
}

impl Board for World {
    fn plan(&self) -> &Plan<'_> {
        &self.plan
    }
    fn time(&self) -> [u64; 2] {
        [self.now, 62_500_000]
    }
    fn vm(&self, vm: usize) -> VmState {
        self.may(vm, right::LIST);
        VmState {
            phase: self.phase,
            lives: self.lives,
            settled: None,
        }
    }
    fn vcpu(&self, id: usize, vm: usize, number: usize) -> (usize, power::State) {
        let row = self.plan.vcpus[id];
        assert_eq!((usize::from(row.vm), row.mpidr), (vm, number as u64));
        (0, power::State::On)
    }
    fn limits(&self, id: usize) -> Option<Vcpu> {
        self.plan.vcpus.get(id).copied().filter(|_| !self.busy)
    }
    fn shut_down(&mut self, vm: usize) -> Result<u64, Denied> {
        assert!(self.plan.stop_of(vm).is_some());
        self.acted(vm, right::STOP).map(|()| 5)
    }
    fn order(&mut self, order: Order, vm: usize) -> Result<(), Denied> {
        self.acted(
            vm,
            match order {
                Order::Start => right::START,
                Order::Stop => right::STOP,
                Order::Restart => right::RESTART,
                Order::Pause | Order::Resume => right::PAUSE,
            },
        )
    }
    fn change(&mut self, vm: usize, change: Change, _is_trial: bool) -> Result<(), Denied> {
        self.acted(vm, right::LIMITS)?;
        match change {
            Change::Weight(0) => Err(Denied::Refused(Refusal::Weight)),
            _ => Ok(()),
        }
    }
    fn service(&self, vm: usize) -> [u64; 3] {
        self.may(vm, right::STATS);
        [1, 2, 3]
    }
    fn last_crash(&self, vm: usize) -> &LastCrash {
        self.may(vm, right::LIST);
        &self.crash
    }
    fn is_paused(&self, vm: usize) -> bool {
        self.may(vm, right::DUMP);
        self.paused
    }
    fn copy(&mut self, pa: u64, _: At, bytes: u32) {
        let readable =
            (0..self.plan.vms.len()).filter(|vm| self.plan.right(0, *vm) & right::DUMP != 0);
        let mut ram = readable
            .flat_map(|vm| self.plan.regions_of(vm))
            .filter(|row| row.kind == RegionKind::Ram as u16);
        let end = pa + u64::from(bytes);
        assert!(
            ram.any(|row| colours::has(row, pa) && colours::has(row, end - 1)),
            "{pa:#x}"
        );
        assert_eq!(pa >> 21, (end - 1) >> 21, "more than a window");
        *self.copied.borrow_mut() += bytes;
    }
    fn write(&mut self, bytes: &[u8], _: At) {
        *self.copied.borrow_mut() += bytes.len() as u32;
    }
    fn printed(&self, vm: usize, from: u64, most: u32, to: &mut [u64]) -> Found {
        self.may(vm, right::LOGS | right::CONSOLE);
        self.backlog.read(from, most, to)
    }
    fn type_on(&self, vm: usize, bytes: u32, words: [u64; 3]) -> bool {
        self.may(vm, right::CONSOLE);
        assert!(
            self.is_sound,
            "something is typed by a request that is not sound"
        );
        self.typed.post(vm, bytes, words)
    }
    fn taken(&self) -> Option<u32> {
        self.typed.taken()
    }
    fn published(&self) -> &Published {
        &self.published
    }
    fn ask(&self, id: usize, request: monitor::Request) {
        let vm = usize::from(self.plan.vcpus[id].vm);
        let registers = request == monitor::Request::Registers;
        self.may(vm, if registers { right::DUMP } else { right::STATS });
        assert!(
            self.is_sound,
            "somebody is asked by a request that is not sound"
        );
        self.published.ask(id, request);
        self.asked.set(Some((id, request)));
    }
}

/// Whether no field of a request of `length` bytes is one that its kind does not have, or has another way (`docs/reference/control.md`).
fn is_sound(request: &Request, length: u32) -> bool {
    let Some(kind) = Kind::of(request.kind) else {
        return false;
    };
    let can_be_tried = matches!(kind, Kind::Weight | Kind::Cap | Kind::Budget | Kind::Pool);
    let mut unused = request.values.iter().skip(kind.values());
    (length, request.version) == (48, VERSION)
        && request.number != 0
        && request.flags <= u32::from(can_be_tried)
        && (request.vm == 0 || kind.is_about_vm())
        && (request.vcpu == 0 || kind.is_about_vcpu())
        && unused.all(|value| *value == 0)
}

/// Corrupts a field that not every kind has, or that can have one value only.
fn corrupt(request: &mut Request, field: u8) {
    let bit = 1 << (field >> 4);
    match field % 8 {
        0 => request.version ^= bit as u16,
        1 => request.number = 0,
        2 | 3 => request.flags ^= bit,
        value => {
            if let Some(value) = request.values.get_mut(usize::from(value - 4)) {
                *value ^= u64::from(bit);
            }
        }
    }
}

/// Holds a message against the request that it answers.
fn answered(
    session: &mut Session,
    world: &mut World,
    events: &Events,
    request: &Request,
    answer: &Message,
) {
    assert_eq!(answer.version, VERSION);
    let Some(status) = Status::of(answer.status) else {
        panic!("status {}", answer.status);
    };
    if status != Status::Length {
        let echo = (answer.kind, answer.number, answer.vm, answer.vcpu);
        assert_eq!(
            echo,
            (request.kind, request.number, request.vm, request.vcpu)
        );
    }
    assert!(usize::from(answer.data) <= DATA && (answer.data == 0 || status == Status::Done));
    *world.copied.borrow_mut() = 0;
    let half = u32::from(answer.data) / 2;
    let parts = [(0, half), (half, u32::from(answer.data) - half)];
    for (from, bytes) in parts.into_iter().filter(|(_, bytes)| *bytes != 0) {
        session
            .with(world, events)
            .copy(from, At::new(0x1000), bytes);
    }
    assert_eq!(*world.copied.borrow(), u32::from(answer.data));
}

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let Ok(plan) = Plan::open(PLAN.as_bytes()) else {
        unreachable!("it was planned");
    };
    let mut world = World {
        plan,
        now: 1 << 20,
        phase: Phase::Running,
        lives: 1,
        busy: false,
        paused: true,
        published: Published::new(),
        asked: Cell::new(None),
        crash: LastCrash::new(),
        backlog: Backlog::new(),
        typed: Typed::new(),
        copied: RefCell::new(0),
        is_sound: false,
    };
    world.backlog.keep();
    let (mut session, events) = (Session::new(0), Events::new());
    let mut hand: Option<Request> = None;
    let mut altered = None;
    while !input.is_empty() {
        match input.u8() % 10 {
            0 if hand.is_none() => {
                let mut request = Request {
                    version: VERSION,
                    kind: u16::from(input.u8()),
                    number: 7,
                    vm: u16::from(input.u8()),
                    vcpu: u16::from(input.u8()),
                    ..Request::default()
                };
                let used = Kind::of(request.kind).map_or(4, Kind::values);
                for value in request.values.iter_mut().take(used) {
                    *value = input.u64();
                }
                if let Some(field) = altered.take() {
                    corrupt(&mut request, field);
                }
                world.is_sound = is_sound(&request, 48);
                hand = Some(request);
                let mut answer = Message::default();
                let mut with = session.with(&mut world, &events);
                if with.request(&request, 48, &mut answer) {
                    answered(&mut session, &mut world, &events, &request, &answer);
                    hand = None;
                }
            }
            8 if hand.is_none() => {
                let mut request = Request::default();
                for byte in request.as_mut_bytes() {
                    *byte = input.u8();
                }
                let length = if input.u8() & 1 == 0 { 48 } else { input.u32() };
                world.is_sound = is_sound(&request, length);
                hand = Some(request);
                let mut answer = Message::default();
                let mut with = session.with(&mut world, &events);
                if with.request(&request, length, &mut answer) {
                    answered(&mut session, &mut world, &events, &request, &answer);
                    hand = None;
                }
            }
            9 => altered = Some(input.u8()),
            1 => {
                world.phase = [
                    Phase::Down,
                    Phase::Starting,
                    Phase::Running,
                    Phase::Paused,
                    Phase::Ended,
                    Phase::Asked(End::Ordered),
                ][input.below(6)];
            }
            2 => (world.busy, world.paused) = (!world.busy, input.u8() & 1 == 0),
            3 => world.lives = u32::from(input.u8()),
            4 => world.now += u64::from(input.u8()) << 16,
            5 => {
                world.asked.take();
            }
            6 => {
                let mut room = input.u8();
                world.typed.give(|vm, _| {
                    assert_ne!(world.plan.right(0, vm) & right::CONSOLE, 0);
                    room = room.saturating_sub(1);
                    room != 0
                });
            }
            7 => {
                let text = vec![b'x'; input.u8().into()];
                world.backlog.append(text.iter().copied());
                if events.heard(0b111) {
                    let _wakes = events.mark(1, Changed::State);
                }
            }
            _ => {}
        }
        if let Some(request) = hand {
            assert!(session.again().is_some(), "nobody looks again");
            let mut answer = Message::default();
            if session.with(&mut world, &events).answer(&mut answer) {
                answered(&mut session, &mut world, &events, &request, &answer);
                hand = None;
            }
        }
        let mut event = Message::default();
        while session.with(&mut world, &events).event(&mut event) {
            assert!(event.number == 0 && event.data == 0);
        }
    }
    // Whatever was asked for is answered, when others have done their part and time has passed.
    world.busy = false;
    for _ in 0..4 {
        let Some(request) = hand else { return };
        world.typed.give(|_, _| true);
        world.now = session.again().map_or(world.now, |at| at.max(world.now));
        let mut answer = Message::default();
        if session.with(&mut world, &events).answer(&mut answer) {
            answered(&mut session, &mut world, &events, &request, &answer);
            hand = None;
        }
    }
    assert!(hand.is_none(), "it is never answered");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rights_are_what_they_are_meant_to_be() {
        let plan = Plan::open(PLAN.as_bytes()).expect("sound");
        let rights = |vm| plan.right(0, vm);
        let all = right::ALL.iter().fold(0, |all, (bit, _)| all | bit);
        assert_eq!(rights(1) | right::LOGS, all);
        assert_eq!(rights(3), right::OF_LOCKED);
        assert_eq!(rights(4), 0);
    }
}

//! A VM, its vCPUs' threads, and those who give orders, a step at a time.

use bulkhead_abi::call::End;
use bulkhead_abi::console::Order;
use bulkhead_abi::plan::{Crash, Vm as Row};
use bulkhead_core::cpu::life::{Follows, Life, Printed, Settled, Work};
use bulkhead_core::cpu::power::{Phase, Start};
use proptest::prelude::*;
use zerocopy::FromZeros;

pub const VCPUS: usize = 3;
/// Ticks in a second.
pub const SECOND: u64 = 10;
const START: Start = Start {
    entry: 0x4000_0000,
    context: 0,
};

/// The row of a VM that starts again after a crash twice in a minute, and after a reset three times.
pub fn row() -> Row {
    Row {
        crash: Crash::Restart as u16,
        restarts: 2,
        restart_seconds: 60,
        resets: 3,
        reset_seconds: 60,
        ..Row::new_zeroed()
    }
}

/// The next event.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// Somebody types this order.
    Order(Order),
    /// A manager asks the guest to end.
    Ask,
    /// A manager starts the VM.
    Start,
    /// The time of a VM that was asked is over.
    Overdue,
    /// The guest on this vCPU ends the VM.
    End(usize, End),
    /// It crashes.
    Crash(usize),
    /// It switches another vCPU on.
    On(usize, usize),
    /// It switches itself off.
    Off(usize),
    /// The watchdog expires.
    Bite,
    /// The thread of this vCPU does its next step at EL2.
    Step(usize),
    /// Time passes.
    Seconds(u64),
}

pub fn events() -> impl Strategy<Value = Event> {
    let vcpu = || 0..VCPUS;
    let ends = [End::Off, End::Reset, End::Reset];
    prop_oneof![
        4 => proptest::sample::select(Order::ALL.to_vec()).prop_map(Event::Order),
        3 => Just(Event::Ask),
        2 => Just(Event::Start),
        1 => Just(Event::Overdue),
        2 => (vcpu(), proptest::sample::select(ends.to_vec())).prop_map(|(vcpu, end)| Event::End(vcpu, end)),
        2 => vcpu().prop_map(Event::Crash),
        3 => (vcpu(), vcpu()).prop_map(|(vcpu, other)| Event::On(vcpu, other)),
        1 => vcpu().prop_map(Event::Off),
        1 => Just(Event::Bite),
        24 => vcpu().prop_map(Event::Step),
        1 => (0..40_u64).prop_map(Event::Seconds),
    ]
}

/// Content of a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TextLine {
    /// Reason of the VM's end, and its consequence.
    Reason(Option<usize>, Settled),
    /// Statistics of this vCPU.
    Statistics(usize),
    /// It is down now.
    Down,
    /// A life begins.
    Begins,
}

/// The thread of a vCPU, as `el2/src/idle.rs` and `el2/src/lifecycle.rs` have it.
#[derive(Clone, Copy, Default)]
struct Thread {
    runs: bool,
    prepares: bool,
    /// Reason of the VM's end: a crash of this vCPU, or something else.
    reason: Option<bool>,
    report: Option<(TextLine, bool)>,
    reported: u32,
}

pub struct Machine {
    pub life: Life,
    pub row: Row,
    threads: [Thread; VCPUS],
    pub now: u64,
    pub said: Vec<TextLine>,
    /// VMs that run: as `vm::start` and `vm::one_less` count them.
    pub running: i32,
    /// The last order that the VM took and that asks for an end, since it was last started or settled.
    pub ordered: Option<Order>,
    /// That was to ask its guest, or an order to one that was asked: it ends for a reason of its own.
    pub asked: bool,
    /// Whether the last order that was taken wants the VM to be up; `None`: by its guest's and its policy's will since.
    pub wanted: Option<bool>,
    /// The vCPU that has crashed the VM in this life.
    pub crashed: Option<usize>,
    pub resets: Vec<u64>,
}

impl Machine {
    pub fn new(row: Row) -> Self {
        let machine = Self {
            life: Life::new(),
            row,
            threads: [Thread::default(); VCPUS],
            now: 0,
            said: Vec::new(),
            running: 1,
            ordered: None,
            asked: false,
            wanted: None,
            crashed: None,
            resets: Vec::new(),
        };
        assert_eq!(machine.life.start(), Ok(()));
        machine
    }

    pub fn order(&mut self, order: Order) {
        let before = self.life.power.phase();
        let power = &self.life.power;
        let done = match order {
            Order::Pause => power.pause(true),
            Order::Resume => power.pause(false),
            Order::Stop => power.stop(End::Ordered).map(drop),
            Order::Restart => match power.stop(End::OrderedRestart) {
                Err(Phase::Down) => {
                    self.running += 1;
                    self.life.start()
                }
                done => done.map(drop),
            },
        };
        match done {
            Err(phase) => assert_eq!((phase, phase), (before, self.life.power.phase())),
            Ok(()) if before == Phase::Down => self.wanted = Some(true),
            Ok(()) if matches!(order, Order::Stop | Order::Restart) => {
                self.ordered = Some(order);
                self.asked = false;
                self.wanted = Some(order == Order::Restart);
            }
            Ok(()) => {}
        }
    }

    /// As `el2/src/stops.rs` does.
    fn ask(&mut self) {
        let before = self.life.power.phase();
        let Ok(found) = self.life.power.ask() else {
            assert_eq!(self.life.power.phase(), before);
            let by_order = matches!(before, Phase::Stopping(_)) && self.wanted == Some(false);
            let deaf = matches!(before, Phase::Down | Phase::Paused | Phase::Ended);
            assert!(by_order || deaf, "{before:?}");
            return;
        };
        assert_eq!(found, before);
        self.asked = match before {
            // It is stopped, as it has done nothing yet, or was ordered to end at once before.
            Phase::Starting => false,
            Phase::Stopping(end) => !end.is_order(),
            _ => true,
        };
        self.ordered = Some(Order::Stop);
        self.wanted = Some(false);
    }

    /// As `el2/src/orders.rs` does.
    fn start(&mut self) {
        let power = &self.life.power;
        match power.phase() {
            Phase::Down => {
                self.running += 1;
                assert_eq!(self.life.start(), Ok(()));
            }
            Phase::Stopping(_) => {
                if power.stop(End::OrderedRestart).is_err() {
                    assert_eq!(self.wanted, Some(true));
                    return;
                }
                self.asked = false;
                self.ordered = Some(Order::Restart);
            }
            Phase::Asked(_) => {
                assert_eq!(power.again(), Ok(()));
                self.ordered = Some(Order::Restart);
            }
            _ => return,
        }
        self.wanted = Some(true);
    }

    fn leave(&mut self, vcpu: usize) {
        self.threads[vcpu].runs = false;
        if !self.life.power.leave(vcpu) {
            return;
        }
        let settled = self.life.settle(&self.row, self.now, SECOND);
        let (settled, leads) = settled.expect("it is being stopped");
        let asked = core::mem::take(&mut self.asked);
        match self.ordered.take() {
            Some(order) if asked => {
                // However it has ended: the order holds, and its policy counts nothing.
                assert!(!settled.end.is_order());
                let restarts = order == Order::Restart;
                assert_eq!((settled.is_restart(), settled.count), (restarts, 0));
            }
            Some(Order::Stop) => assert_eq!(
                (settled.end, settled.follows),
                (End::Ordered, Follows::Stays)
            ),
            Some(_) => assert_eq!(
                (settled.end, settled.follows),
                (End::OrderedRestart, Follows::Restarts)
            ),
            None => {
                assert!(!settled.end.is_order());
                // By its guest's will, and by its policy.
                self.wanted = None;
            }
        }
        assert!(self.wanted.is_none_or(|up| up == settled.is_restart()));
        assert_eq!(leads, self.crashed.is_none());
        if settled.follows == Follows::Retries && settled.end == End::Reset {
            self.resets.push(self.now);
        }
        if leads {
            self.threads[vcpu].reason = Some(false);
        }
    }

    /// The thread of a vCPU does its next step at EL2; whether there was one.
    pub fn step(&mut self, vcpu: usize) -> bool {
        let thread = self.threads[vcpu];
        if thread.runs {
            assert!(!matches!(
                self.life.power.phase(),
                Phase::Down | Phase::Ended | Phase::Starting
            ));
            let leaves = matches!(self.life.power.phase(), Phase::Stopping(_));
            if leaves {
                self.leave(vcpu);
            }
            return leaves;
        }
        if thread.prepares {
            self.threads[vcpu].prepares = false;
            if self.life.power.begin() {
                self.threads[vcpu].runs = true;
            } else {
                self.leave(vcpu);
            }
            return true;
        }
        if let Some((report, brief)) = thread.report {
            let leads = matches!(report, TextLine::Reason(..));
            if !self.life.may_print(leads) {
                return false;
            }
            self.said.push(report);
            self.threads[vcpu].report = None;
            if self.life.printed(leads, brief) == Printed::Down {
                self.said.push(TextLine::Down);
                self.running -= 1;
            }
            return true;
        }
        match self
            .life
            .work(vcpu, thread.reason.is_some(), thread.reported)
        {
            Work::Nothing => return false,
            Work::Report => {
                let settled = self.life.settled();
                let reason = self.threads[vcpu].reason.take();
                let report = match reason {
                    Some(crash) => TextLine::Reason(crash.then_some(vcpu), settled),
                    None => TextLine::Statistics(vcpu),
                };
                if !settled.is_restart() {
                    self.threads[vcpu].reported = self.life.number();
                }
                self.threads[vcpu].report =
                    Some((report, reason.is_some() && settled.is_restart()));
            }
            Work::Prepare => {
                assert!(self.threads.iter().all(|thread| {
                    !thread.runs && thread.report.is_none() && thread.reason.is_none()
                }));
                self.life.begin(VCPUS);
                self.threads[vcpu].prepares = true;
                self.crashed = None;
                self.said.push(TextLine::Begins);
            }
            Work::Enter(start) => {
                assert_eq!(start, START);
                self.threads[vcpu].runs = true;
            }
        }
        true
    }

    pub fn event(&mut self, event: Event) {
        let can_act = |vcpu: usize| self.threads[vcpu].runs && self.life.power.is_running();
        match event {
            Event::Order(order) => self.order(order),
            Event::Ask => self.ask(),
            Event::Start => self.start(),
            Event::Overdue => {
                let before = self.life.power.phase();
                let ended = self.life.power.stop(End::Overdue);
                let asked = matches!(before, Phase::Asked(_));
                assert_eq!(ended, if asked { Ok(true) } else { Err(before) });
            }
            Event::End(vcpu, end) if can_act(vcpu) => {
                assert_eq!(self.life.power.stop(end), Ok(true));
                self.leave(vcpu);
            }
            Event::Crash(vcpu) if can_act(vcpu) => {
                if self.life.crash() {
                    self.threads[vcpu].reason = Some(true);
                    self.crashed = Some(vcpu);
                }
                self.leave(vcpu);
            }
            Event::On(vcpu, other) if can_act(vcpu) => {
                let _refused = self.life.power.switch_on(other, VCPUS, START);
            }
            Event::Off(vcpu) if can_act(vcpu) => self.leave(vcpu),
            Event::Bite if self.life.power.is_running() => {
                assert_eq!(self.life.power.stop(End::Watchdog), Ok(true));
            }
            Event::Step(vcpu) => _ = self.step(vcpu),
            Event::Seconds(seconds) => self.now += seconds * SECOND,
            _ => {}
        }
        assert_eq!(
            self.running,
            i32::from(self.life.power.phase() != Phase::Down)
        );
    }

    /// All threads do the work that there is.
    pub fn settle(&mut self) {
        for _ in 0..1000 {
            let worked = [0, 1, 2].map(|vcpu| self.step(vcpu));
            if worked == [false; VCPUS] {
                return;
            }
        }
        panic!("it never ends: {:?}", self.said);
    }

    /// Each life begins, ends for one reason, and is reported once: shortly if another follows, else by everybody.
    pub fn check_log(&self) {
        let mut lines = self.said.iter().peekable();
        while lines.next_if_eq(&&TextLine::Begins).is_some() {
            let Some(TextLine::Reason(crashed, settled)) = lines.next() else {
                break;
            };
            if settled.end == End::Crash {
                assert!(crashed.is_some());
            }
            if settled.is_restart() {
                continue;
            }
            let told: Vec<_> = lines
                .by_ref()
                .take_while(|line| **line != TextLine::Down)
                .collect();
            let mut vcpus: Vec<_> = (0..VCPUS)
                .filter(|vcpu| told.contains(&&TextLine::Statistics(*vcpu)))
                .collect();
            vcpus.extend(*crashed);
            vcpus.dedup();
            assert_eq!(told.len(), VCPUS - 1, "{:?}", self.said);
            assert!(vcpus.len() >= VCPUS - 1, "{:?}", self.said);
        }
        assert_eq!(lines.next(), None, "{:?}", self.said);
    }
}

/// A machine of which vCPU 0 runs.
pub fn up(row: Row) -> Machine {
    let mut machine = Machine::new(row);
    machine.settle();
    assert_eq!(machine.life.power.phase(), Phase::Running);
    machine
}

pub fn reasons(machine: &Machine) -> Vec<(End, Follows, u16)> {
    let said = machine.said.iter();
    said.filter_map(|said| match said {
        TextLine::Reason(_, settled) => Some((settled.end, settled.follows, settled.count)),
        _ => None,
    })
    .collect()
}

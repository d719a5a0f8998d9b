//! The lives of a VM, in any order in which its vCPUs' threads and the console can come: nothing is lost, nothing is said twice, and what
//! was ordered last holds.

use bulkhead_abi::call::End;
use bulkhead_abi::console::Order;
use bulkhead_abi::plan::{Crash, Vm as Row};
use bulkhead_core::cpu::life::{Follows, Life, Printed, Settled, Work};
use bulkhead_core::cpu::power::{Phase, Start};
use proptest::collection::vec;
use proptest::prelude::*;
use zerocopy::FromZeros;

const VCPUS: usize = 3;
/// Ticks in a second.
const SECOND: u64 = 10;
const START: Start = Start {
    entry: 0x4000_0000,
    context: 0,
};

/// The row of a VM that starts again after a crash twice in a minute, and after a reset three times.
fn row() -> Row {
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
enum Event {
    /// Somebody types this order.
    Order(Order),
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

fn events() -> impl Strategy<Value = Event> {
    let vcpu = || 0..VCPUS;
    let ends = [End::Off, End::Reset, End::Reset];
    prop_oneof![
        4 => proptest::sample::select(Order::ALL.to_vec()).prop_map(Event::Order),
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
enum TextLine {
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

struct Machine {
    life: Life,
    row: Row,
    threads: [Thread; VCPUS],
    now: u64,
    said: Vec<TextLine>,
    /// VMs that run: as `vm::start` and `vm::one_less` count them.
    running: i32,
    /// The last order that the VM took and that asks for an end, since it was last started or settled.
    ordered: Option<Order>,
    /// The vCPU that has crashed the VM in this life.
    crashed: Option<usize>,
    resets: Vec<u64>,
}

impl Machine {
    fn new(row: Row) -> Self {
        let machine = Self {
            life: Life::new(),
            row,
            threads: [Thread::default(); VCPUS],
            now: 0,
            said: Vec::new(),
            running: 1,
            ordered: None,
            crashed: None,
            resets: Vec::new(),
        };
        assert_eq!(machine.life.start(), Ok(()));
        machine
    }

    fn order(&mut self, order: Order) {
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
            Ok(()) if before == Phase::Down => {}
            Ok(()) if matches!(order, Order::Stop | Order::Restart) => self.ordered = Some(order),
            Ok(()) => {}
        }
    }

    fn leave(&mut self, vcpu: usize) {
        self.threads[vcpu].runs = false;
        if !self.life.power.leave(vcpu) {
            return;
        }
        let settled = self.life.settle(&self.row, self.now, SECOND);
        let (settled, leads) = settled.expect("it is being stopped");
        match self.ordered.take() {
            Some(Order::Stop) => assert_eq!(
                (settled.end, settled.follows),
                (End::Ordered, Follows::Stays)
            ),
            Some(_) => assert_eq!(
                (settled.end, settled.follows),
                (End::OrderedRestart, Follows::Restarts)
            ),
            None => assert!(!settled.end.is_order()),
        }
        assert_eq!(leads, self.crashed.is_none());
        if settled.end == End::Reset && settled.is_restart() {
            self.resets.push(self.now);
        }
        if leads {
            self.threads[vcpu].reason = Some(false);
        }
    }

    /// The thread of a vCPU does its next step at EL2; whether there was one.
    fn step(&mut self, vcpu: usize) -> bool {
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

    fn event(&mut self, event: Event) {
        let can_act = |vcpu: usize| self.threads[vcpu].runs && self.life.power.is_running();
        match event {
            Event::Order(order) => self.order(order),
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
    fn settle(&mut self) {
        for _ in 0..1000 {
            let worked = [0, 1, 2].map(|vcpu| self.step(vcpu));
            if worked == [false; VCPUS] {
                return;
            }
        }
        panic!("it never ends: {:?}", self.said);
    }

    /// Each life begins, ends for one reason, and is reported once: shortly if another follows, else by everybody.
    fn check_log(&self) {
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_last_order_holds_and_each_end_is_said_once(events in vec(events(), 0..160)) {
        let mut machine = Machine::new(row());
        for event in events {
            machine.event(event);
        }
        machine.settle();
        machine.check_log();
        let phase = machine.life.power.phase();
        prop_assert!(matches!(phase, Phase::Down | Phase::Running | Phase::Paused), "{phase:?}");
        for resets in machine.resets.windows(4) {
            prop_assert!(resets[3] - resets[0] >= 60 * SECOND, "{resets:?}");
        }
        // Whatever came before: it is stopped now, and stays so, and then it starts.
        let stopped = phase == Phase::Down;
        prop_assert_eq!(machine.life.power.stop(End::Ordered).is_ok(), !stopped);
        machine.ordered = (!stopped).then_some(Order::Stop);
        machine.settle();
        machine.check_log();
        prop_assert_eq!(machine.life.power.phase(), Phase::Down);
        prop_assert_eq!(machine.running, 0);
        machine.order(Order::Restart);
        machine.settle();
        prop_assert_eq!(machine.life.power.phase(), Phase::Running);
    }
}

/// A machine of which vCPU 0 runs.
fn up(row: Row) -> Machine {
    let mut machine = Machine::new(row);
    machine.settle();
    assert_eq!(machine.life.power.phase(), Phase::Running);
    machine
}

fn reasons(machine: &Machine) -> Vec<(End, Follows, u16)> {
    let said = machine.said.iter();
    said.filter_map(|said| match said {
        TextLine::Reason(_, settled) => Some((settled.end, settled.follows, settled.count)),
        _ => None,
    })
    .collect()
}

#[test]
fn a_guest_that_resets_in_a_loop_comes_to_its_limit() {
    let mut machine = up(row());
    for _ in 0..4 {
        machine.event(Event::End(0, End::Reset));
        machine.settle();
    }
    assert_eq!(machine.life.power.phase(), Phase::Down);
    assert_eq!(
        reasons(&machine),
        [
            (End::Reset, Follows::Retries, 1),
            (End::Reset, Follows::Retries, 2),
            (End::Reset, Follows::Retries, 3),
            (End::Reset, Follows::Exhausted, 0),
        ]
    );
    // An order starts it, and the minute counts on.
    machine.order(Order::Restart);
    machine.settle();
    machine.now = 60 * SECOND - 1;
    machine.event(Event::End(0, End::Reset));
    machine.settle();
    assert_eq!(reasons(&machine)[4], (End::Reset, Follows::Exhausted, 0));
    machine.order(Order::Restart);
    machine.settle();
    machine.now = 60 * SECOND;
    machine.event(Event::End(0, End::Reset));
    machine.settle();
    assert_eq!(reasons(&machine)[5], (End::Reset, Follows::Retries, 1));
    assert_eq!(machine.life.power.phase(), Phase::Running);
}

#[test]
fn resets_without_a_limit_are_not_counted_and_crashes_are_apart() {
    let mut machine = up(Row {
        resets: 0,
        reset_seconds: 0,
        ..row()
    });
    for _ in 0..20 {
        machine.event(Event::End(0, End::Reset));
        machine.settle();
    }
    let resets = reasons(&machine);
    assert_eq!(resets, [(End::Reset, Follows::Restarts, 0); 20]);
    machine.event(Event::Crash(0));
    machine.settle();
    machine.event(Event::Bite);
    machine.settle();
    machine.event(Event::Crash(0));
    machine.settle();
    assert_eq!(
        reasons(&machine)[20..],
        [
            (End::Crash, Follows::Retries, 1),
            (End::Watchdog, Follows::Retries, 2),
            (End::Crash, Follows::Exhausted, 0),
        ]
    );
}

#[test]
fn what_a_policy_does_not_restart_stays_down() {
    for (crash, follows) in [
        (Crash::Halt, Follows::Stays),
        (Crash::Notify, Follows::Tells),
    ] {
        let row = Row {
            crash: crash as u16,
            restarts: 0,
            restart_seconds: 0,
            ..row()
        };
        for event in [Event::Crash(0), Event::Bite] {
            let mut machine = up(row);
            machine.event(event);
            machine.settle();
            assert_eq!(reasons(&machine)[0].1, follows);
            assert_eq!(machine.life.power.phase(), Phase::Down);
        }
        let mut machine = up(row);
        machine.event(Event::End(0, End::Off));
        machine.settle();
        assert_eq!(reasons(&machine), [(End::Off, Follows::Stays, 0)]);
        assert_eq!(machine.life.last_end(), End::Off);
    }
}

/// A stop that comes while a restart is under way: before its vCPUs have left, before its reason is printed, before it is prepared, and
/// while it is.
#[test]
fn a_stop_after_any_restart_holds() {
    let restarts = [
        Event::Order(Order::Restart),
        Event::Crash(0),
        Event::End(0, End::Reset),
        Event::Bite,
    ];
    for event in restarts {
        let mut came = Vec::new();
        for steps in 0.. {
            let mut machine = up(row());
            machine.event(Event::On(0, 1));
            machine.settle();
            machine.event(event);
            for _ in 0..steps {
                let _worked = machine.step(1) || machine.step(0);
            }
            let phase = machine.life.power.phase();
            if phase == Phase::Running {
                break;
            }
            came.push(matches!(phase, Phase::Stopping(_)));
            machine.order(Order::Stop);
            machine.settle();
            machine.check_log();
            assert_eq!(
                machine.ordered, None,
                "{event:?} {steps}: refused or forgotten"
            );
            assert_eq!(machine.life.power.phase(), Phase::Down, "{event:?} {steps}");
            let last = machine.life.settled();
            assert_eq!((last.end, last.follows), (End::Ordered, Follows::Stays));
        }
        assert!(
            came.contains(&true) && came.contains(&false),
            "{event:?} {came:?}"
        );
    }
}

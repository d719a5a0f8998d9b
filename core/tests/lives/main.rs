//! The lives of a VM, in any order in which its vCPUs' threads and the console can come: nothing is lost, nothing is said twice, and what
//! was ordered last holds.

mod machine;

use bulkhead_abi::call::End;
use bulkhead_abi::console::Order;
use bulkhead_abi::plan::{Crash, Vm as Row};
use bulkhead_core::cpu::life::Follows;
use bulkhead_core::cpu::power::Phase;
use proptest::collection::vec;
use proptest::prelude::*;

use machine::{Event, Machine, SECOND, events, reasons, row, up};

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
        prop_assert!(
            matches!(phase, Phase::Down | Phase::Running | Phase::Asked(_) | Phase::Paused),
            "{phase:?}"
        );
        match (machine.wanted, phase) {
            (None, _) => {}
            // Until its guest ends, or its time is over.
            (Some(up), Phase::Asked(order)) => {
                prop_assert_eq!(up, order == End::OrderedRestart);
            }
            (Some(up), phase) => prop_assert_eq!(up, phase != Phase::Down),
        }
        for resets in machine.resets.windows(4) {
            prop_assert!(resets[3] - resets[0] >= 60 * SECOND, "{resets:?}");
        }
        // Whatever came before: it is stopped now, and stays so, and then it starts.
        let stopped = phase == Phase::Down;
        prop_assert_eq!(machine.life.power.stop(End::Ordered).is_ok(), !stopped);
        machine.ordered = (!stopped).then_some(Order::Stop);
        machine.asked = false;
        machine.wanted = Some(false);
        machine.settle();
        machine.check_log();
        prop_assert_eq!(machine.life.power.phase(), Phase::Down);
        prop_assert_eq!(machine.running, 0);
        machine.order(Order::Restart);
        machine.settle();
        prop_assert_eq!(machine.life.power.phase(), Phase::Running);
    }
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

/// However a guest ends that was asked to, and whatever its policy is: it stays down, and starts again if that was ordered meanwhile.
#[test]
fn no_policy_starts_who_was_asked_to_stop() {
    let ends = [
        Event::End(0, End::Off),
        Event::End(0, End::Reset),
        Event::Crash(0),
        Event::Bite,
        Event::Overdue,
        Event::Off(0),
    ];
    for crash in [Crash::Halt, Crash::Restart, Crash::Notify] {
        let limits = if crash == Crash::Restart { 2 } else { 0 };
        let row = Row {
            crash: crash as u16,
            restarts: limits,
            ..row()
        };
        for end in ends {
            for (starts, wanted) in [(false, Phase::Down), (true, Phase::Running)] {
                let mut machine = up(row);
                machine.event(Event::Ask);
                if starts {
                    machine.event(Event::Start);
                }
                machine.event(end);
                machine.settle();
                machine.check_log();
                let phase = machine.life.power.phase();
                assert_eq!(phase, wanted, "{crash:?} {end:?}");
                let settled = machine.life.settled();
                let crashed = matches!(settled.end, End::Crash | End::Watchdog);
                let follows = match (starts, crashed, crash) {
                    (true, ..) => Follows::Restarts,
                    (_, true, Crash::Notify) => Follows::Tells,
                    _ => Follows::Stays,
                };
                assert_eq!(settled.follows, follows, "{crash:?} {end:?}");
            }
        }
    }
    // The next life was not asked.
    let mut machine = up(row());
    machine.event(Event::Ask);
    machine.event(Event::Start);
    machine.event(Event::End(0, End::Off));
    machine.settle();
    machine.event(Event::Crash(0));
    machine.settle();
    assert_eq!(machine.life.settled().follows, Follows::Retries);
}

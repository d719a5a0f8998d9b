//! Each change from each phase.

use super::*;

const START: Start = Start {
    entry: 0x4000_0000,
    context: 7,
};

fn starting() -> Power {
    let power = Power::new();
    assert_eq!(power.start(), Ok(()));
    power
}

fn running() -> Power {
    let power = starting();
    assert!(power.begin());
    power
}

fn asked() -> Power {
    let power = running();
    assert_eq!(power.ask(), Ok(Phase::Running));
    power
}

fn stopping(end: End) -> Power {
    let power = if end == End::Overdue {
        asked()
    } else {
        running()
    };
    assert_eq!(power.stop(end), Ok(true));
    power
}

/// That of a VM that was not asked.
fn ending(end: End) -> Ending {
    stopping(end).ending().expect("it is being stopped")
}

#[test]
fn a_vcpu_is_switched_on_once() {
    let power = running();
    assert_eq!(power.switch_on(1, 2, START), Ok(()));
    assert_eq!(power.switch_on(1, 2, START), Err(Refused::Pending));
    assert_eq!(power.arrive(1), Some(START));
    assert_eq!(power.switch_on(1, 2, START), Err(Refused::On));
    assert_eq!(power.switch_on(0, 2, START), Err(Refused::On));
    assert_eq!(power.switch_on(2, 2, START), Err(Refused::Absent));
    assert_eq!(power.switch_on(usize::MAX, 2, START), Err(Refused::Absent));
    assert_eq!(power.arrive(1), None, "a vCPU that runs does not arrive");
}

#[test]
fn the_last_vcpu_that_leaves_ends_the_vm() {
    let power = running();
    power.switch_on(1, 2, START).unwrap();
    assert!(!power.leave(0));
    assert_eq!(power.phase(), Phase::Running);
    assert!(power.arrive(1).is_some());
    assert!(power.leave(1));
    assert_eq!(power.phase(), Phase::Stopping(End::LastCpuOff));
    let power = running();
    assert_eq!(power.pause(true), Ok(()));
    assert!(power.leave(0));
    assert_eq!(power.phase(), Phase::Stopping(End::LastCpuOff));
}

#[test]
fn of_reasons_that_are_no_orders_the_first_counts() {
    let all = End::ALL.into_iter().filter(|end| !end.is_order());
    for first in all.clone() {
        for second in all.clone() {
            let power = stopping(first);
            assert_eq!(power.stop(second), Err(Phase::Stopping(first)));
            assert_eq!(power.phase(), Phase::Stopping(first));
        }
    }
}

#[test]
fn an_order_counts_more_and_the_last_order_most() {
    for first in End::ALL {
        for order in [End::Ordered, End::OrderedRestart] {
            let power = stopping(first);
            let told = if first == order {
                Err(Phase::Stopping(first))
            } else {
                Ok(false)
            };
            assert_eq!(power.stop(order), told, "{first:?} {order:?}");
            assert_eq!(power.phase(), Phase::Stopping(order));
            for late in End::ALL.into_iter().filter(|end| !end.is_order()) {
                assert_eq!(power.stop(late), Err(Phase::Stopping(order)));
            }
            assert!(power.leave(0));
            assert_eq!(power.phase(), Phase::Stopping(order));
            if first != order {
                assert!(
                    !power.settle(ending(first), true),
                    "that is not the reason any more"
                );
            }
            assert!(power.settle(ending(order), false));
            assert_eq!(power.stop(End::Ordered), Err(Phase::Ended));
            assert_eq!(power.stop(End::OrderedRestart), Err(Phase::Ended));
        }
    }
}

#[test]
fn each_phase_is_left_only_for_those_that_may_follow() {
    use Phase::{Down, Ended, Paused, Running, Starting};
    const ASKED: Phase = Phase::Asked(End::Ordered);
    let ended = || {
        let power = stopping(End::Off);
        assert!(power.settle(ending(End::Off), false));
        power
    };
    let paused = || {
        let power = running();
        power.pause(true).unwrap();
        power
    };
    let phases: [(Phase, &dyn Fn() -> Power); 7] = [
        (Down, &Power::new),
        (Starting, &starting),
        (Running, &running),
        (ASKED, &asked),
        (Paused, &paused),
        (Phase::Stopping(End::Reset), &|| stopping(End::Reset)),
        (Ended, &ended),
    ];
    for (is, make) in phases {
        let power = make();
        assert_eq!(power.phase(), is);
        assert_eq!(power.is_running(), [Running, ASKED].contains(&is));
        assert_eq!(power.is_starting(), is == Starting);
        assert_eq!(power.is_up(), [Running, ASKED, Paused].contains(&is));
        let may = |from: &[Phase]| {
            let may = from.contains(&is);
            if may { Ok(()) } else { Err(is) }
        };
        assert_eq!(make().start(), may(&[Down]));
        assert_eq!(make().begin(), is == Starting);
        assert_eq!(make().pause(true), may(&[Running]));
        assert_eq!(make().pause(false), may(&[Paused]));
        assert_eq!(make().down(), is == Ended);
        let stops = [Starting, Running, ASKED, Paused].contains(&is);
        let told = if stops { Ok(true) } else { Err(is) };
        assert_eq!(make().stop(End::Crash), told);
        let overdue = if is == ASKED { Ok(true) } else { Err(is) };
        assert_eq!(make().stop(End::Overdue), overdue);
        assert_eq!(make().again(), may(&[ASKED]));
        let hears = [Starting, Running, ASKED, Phase::Stopping(End::Reset)];
        let told = if hears.contains(&is) { Ok(is) } else { Err(is) };
        assert_eq!(make().ask(), told);
        let again = make().settle(ending(End::Reset), true);
        assert_eq!(again, is == Phase::Stopping(End::Reset));
        assert!(
            !make().settle(ending(End::Off), true),
            "it is not for that reason"
        );
    }
}

#[test]
fn a_vm_that_starts_is_stopped_but_not_restarted() {
    let power = starting();
    assert_eq!(power.stop(End::OrderedRestart), Err(Phase::Starting));
    assert_eq!(power.stop(End::Ordered), Ok(true));
    assert!(!power.begin());
    assert!(
        power.leave(0),
        "its boot vCPU counts, so that one end follows"
    );
    assert_eq!(power.phase(), Phase::Stopping(End::Ordered));
}

#[test]
fn of_orders_to_one_that_is_asked_the_last_holds() {
    let order = |power: &Power| power.ending().and_then(|ending| ending.asked);
    for end in End::ALL.into_iter().filter(|end| !end.is_order()) {
        let power = asked();
        assert_eq!(power.stop(end), Ok(true));
        assert_eq!(order(&power), Some(End::Ordered), "{end:?}");
        let power = asked();
        assert_eq!(power.again(), Ok(()));
        assert_eq!(power.phase(), Phase::Asked(End::OrderedRestart));
        assert_eq!(power.again(), Ok(()), "it is so already");
        assert_eq!(power.stop(end), Ok(true));
        assert_eq!(order(&power), Some(End::OrderedRestart), "{end:?}");
        // Nor is it too late, until the end is settled: by what was read before, it is not.
        let before = power.ending().expect("it is being stopped");
        assert_eq!(power.ask(), Ok(Phase::Stopping(end)));
        assert_eq!(order(&power), Some(End::Ordered), "{end:?}");
        assert_eq!(power.ask(), Err(Phase::Stopping(end)), "it is so already");
        assert!(power.leave(0));
        assert!(!power.settle(before, true));
        let ending = power.ending().expect("it is being stopped");
        assert_eq!((ending.end, power.settle(ending, false)), (end, true));
        assert_eq!(power.phase(), Phase::Ended);
    }
    // Asked again it stays down.
    let power = asked();
    assert_eq!(power.again(), Ok(()));
    assert_eq!(power.ask(), Ok(Phase::Asked(End::OrderedRestart)));
    assert_eq!(power.phase(), Phase::Asked(End::Ordered));
    // One that was not asked before it ended has its policy, until somebody asks.
    let power = stopping(End::Reset);
    assert_eq!(order(&power), None);
    assert_eq!(power.ask(), Ok(Phase::Stopping(End::Reset)));
    assert_eq!(order(&power), Some(End::Ordered));
    // An order that ends it at once takes the place of all that.
    for end in [End::Ordered, End::OrderedRestart] {
        let power = asked();
        assert_eq!(power.stop(end), Ok(true));
        assert_eq!(order(&power), None, "{end:?}");
        let told = if end == End::Ordered {
            Err(Phase::Stopping(end))
        } else {
            Ok(Phase::Stopping(end))
        };
        assert_eq!(power.ask(), told);
        assert_eq!(power.phase(), Phase::Stopping(End::Ordered));
    }
}

#[test]
fn who_starts_has_nothing_to_end_and_is_stopped_when_asked() {
    let power = starting();
    assert_eq!(power.ask(), Ok(Phase::Starting));
    assert_eq!(power.phase(), Phase::Stopping(End::Ordered));
    assert!(!power.begin());
}

#[test]
fn a_vcpu_that_was_switched_on_while_its_vm_ends_still_counts() {
    let power = running();
    power.switch_on(1, 2, START).unwrap();
    assert_eq!(power.stop(End::Off), Ok(true));
    assert!(!power.leave(0));
    assert!(power.is_wanted(1), "its pCPU has to take it off");
    assert!(power.leave(1));
}

#[test]
fn ends_are_told_apart() {
    for (end, number) in End::ALL.into_iter().zip(1..) {
        assert_eq!(stopping(end).phase(), Phase::Stopping(end));
        assert_eq!((End::of(number), end as u32), (end, number));
    }
    assert_eq!(End::of(0), End::Crash);
    assert_eq!(End::of(9), End::Crash);
    let orders = End::ALL.into_iter().filter(|end| end.is_order());
    assert!(orders.eq([End::Ordered, End::OrderedRestart]));
}

#[test]
fn a_vcpu_goes_through_its_states() {
    let power = starting();
    assert_eq!(power.online(), 0);
    assert!(power.begin());
    assert_eq!(power.online(), 1);
    let states = || [0, 1, 2, MAX_VCPUS_PER_VM].map(|vcpu| power.state(vcpu));
    assert_eq!(states(), [State::On, State::Off, State::Off, State::Off]);
    power.switch_on(1, 3, START).unwrap();
    assert_eq!(states()[1], State::Pending);
    assert!(power.is_wanted(0) && power.is_wanted(1) && !power.is_wanted(2));
    assert_eq!(power.online(), 2);
    power.arrive(1).unwrap();
    assert_eq!(states()[1], State::On);
    power.vcpus[2]
        .state
        .store(State::Claimed as u32, Ordering::Relaxed);
    assert_eq!(states()[2], State::Claimed);
    assert!(!power.is_wanted(2), "it has no place to start from yet");
    assert_eq!(power.switch_on(2, 3, START), Err(Refused::Pending));
}

#[test]
fn a_pause_does_not_outlive_the_vm() {
    let power = running();
    power.pause(true).unwrap();
    assert_eq!(power.stop(End::OrderedRestart), Ok(true));
    assert!(power.leave(0));
    assert!(power.settle(ending(End::OrderedRestart), true));
    assert!(power.begin());
    assert_eq!(power.phase(), Phase::Running);
}

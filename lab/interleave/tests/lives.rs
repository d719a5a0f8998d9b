//! Every interleaving of the threads that end and start a VM: its vCPUs' at EL2, and the console's, whose orders win. The code is that of
//! EL2 ([`bulkhead_interleave::life`], [`bulkhead_interleave::power`]).
//!
//! Planted there, one at a time, and found:
//!
//! | planted | fails |
//! | --- | --- |
//! | the phase settled by a store; an order that does not replace a reason | [`a_stop_that_comes_while_a_restart_is_settled_holds`], [`a_stop_after_an_order_to_restart_holds`] |
//! | an end settled for a reason that no longer counts | [`a_guest_that_resets_is_prepared_once_while_the_console_restarts_it`] |
//! | a life begun by a store; vCPU 0 not on when its life could not begin | [`a_stop_that_comes_while_a_vm_is_prepared_holds`] |
//! | a VM that is paused not stopped | [`a_pause_is_of_one_life`] |
//! | `unsaid` lowered by a load and a store | [`of_two_reports_the_last_takes_the_vm_down`] |
//! | `online` lowered by a load and a store | [`the_last_vcpu_that_leaves_is_one_and_ends_the_vm`], [`a_crash_and_a_stop_settle_one_end`] |
//! | who crashes leaves no mark of it | [`a_crash_and_a_stop_settle_one_end`] |
//! | an end that forgets that the VM was asked; one settled though somebody has asked since it was judged | [`a_guest_that_resets_while_it_is_asked_to_stop_does_not_begin_again`] |
//! | a VM that is ended at the end of its time in whatever phase it is | [`the_end_of_the_time_of_one_life_does_not_end_the_next`] |
//! | a VM that starts again by a store | [`a_start_that_comes_while_who_was_asked_ends_holds_if_it_is_taken`] |

use bulkhead_interleave::life::{Follows, Life};
use bulkhead_interleave::power::{End, Phase, Refused, Start};
use loom::sync::Arc;
use loom::thread;
use threads::{Thread, finish, made, running};
use trying::model;

mod threads;
mod trying;

const START: [Start; 2] = [
    Start {
        entry: 0x1000,
        context: 1,
    },
    Start {
        entry: 0x2000,
        context: 2,
    },
];

/// The VM is down, by an order, and each of its vCPUs has said so.
fn is_stopped_by_order(life: &Life, threads: &[Thread]) {
    assert_eq!(life.power.phase(), Phase::Down);
    let last = life.settled();
    assert_eq!((last.end, last.follows), (End::Ordered, Follows::Stays));
    let statistics: usize = threads.iter().map(|thread| thread.statistics).sum();
    assert_eq!(statistics, 1, "all but the one that says why");
    let downs = threads.iter().filter(|thread| thread.took_down).count();
    assert_eq!(downs, 1);
    let whys = threads.iter().flat_map(|thread| &thread.why);
    assert_eq!(whys.filter(|(_, settled)| *settled == last).count(), 1);
}

#[test]
fn a_stop_that_comes_while_a_restart_is_settled_holds() {
    for end in [End::Reset, End::Watchdog] {
        model(move || {
            let (life, mut vcpu) = running();
            let other = Arc::clone(&life);
            let thread = thread::spawn(move || {
                vcpu.end(&other, end);
                vcpu.step(&other);
                vcpu
            });
            let stopped = life.power.stop(End::Ordered);
            let mut threads = [thread.join().unwrap(), Thread::new(1)];
            assert!(stopped.is_ok(), "{stopped:?}");
            finish(&life, &mut threads);
            is_stopped_by_order(&life, &threads);
        });
    }
}

#[test]
fn a_stop_after_an_order_to_restart_holds() {
    model(|| {
        let (life, mut vcpu) = running();
        let other = Arc::clone(&life);
        let thread = thread::spawn(move || {
            for _ in 0..3 {
                vcpu.step(&other);
            }
            vcpu
        });
        assert_eq!(life.power.stop(End::OrderedRestart), Ok(true));
        let stopped = life.power.stop(End::Ordered);
        let mut threads = [thread.join().unwrap(), Thread::new(1)];
        assert!(stopped.is_ok(), "{stopped:?}");
        finish(&life, &mut threads);
        is_stopped_by_order(&life, &threads);
    });
}

#[test]
fn a_stop_that_comes_while_a_vm_is_prepared_holds() {
    model(|| {
        let life = Arc::new(made());
        assert_eq!(life.start(), Ok(()));
        let other = Arc::clone(&life);
        let thread = thread::spawn(move || {
            let mut vcpu = Thread::new(0);
            vcpu.step(&other);
            vcpu.step(&other);
            vcpu
        });
        assert_eq!(life.power.stop(End::Ordered), Ok(true));
        let mut threads = [thread.join().unwrap(), Thread::new(1)];
        finish(&life, &mut threads);
        is_stopped_by_order(&life, &threads);
    });
}

#[test]
fn a_crash_and_a_stop_settle_one_end() {
    // vCPU 1 runs, too, and leaves when it sees that the VM ends.
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let (life, mut first) = running();
        assert_eq!(life.power.switch_on(1, 2, START[1]), Ok(()));
        let mut second = Thread::new(1);
        assert!(second.step(&life) && second.runs);
        let [crashes, leaves] = [(), ()].map(|()| Arc::clone(&life));
        let crashes = thread::spawn(move || {
            first.crash(&crashes);
            first
        });
        let leaves = thread::spawn(move || {
            second.step(&leaves);
            second
        });
        let stopped = life.power.stop(End::Ordered);
        let mut threads = [crashes.join().unwrap(), leaves.join().unwrap()];
        assert!(stopped.is_ok(), "{stopped:?}");
        finish(&life, &mut threads);
        is_stopped_by_order(&life, &threads);
        // If the crash came first, its reason is said: by the vCPU that has it, in the line about the end.
        let crashed = stopped == Ok(false) || threads[0].why.iter().any(|(crash, _)| *crash);
        let whys: Vec<_> = threads.iter().flat_map(|thread| &thread.why).collect();
        assert_eq!(whys.first().is_some_and(|(crash, _)| *crash), crashed);
    });
}

#[test]
fn a_guest_that_resets_is_prepared_once_while_the_console_restarts_it() {
    model(|| {
        let (life, mut vcpu) = running();
        let other = Arc::clone(&life);
        let thread = thread::spawn(move || {
            vcpu.end(&other, End::Reset);
            vcpu.step(&other);
            vcpu
        });
        let restarted = life.power.stop(End::OrderedRestart);
        let mut threads = [thread.join().unwrap(), Thread::new(1)];
        // Before, meanwhile, or when it starts anyway.
        assert!(
            matches!(restarted, Ok(_) | Err(Phase::Starting)),
            "{restarted:?}"
        );
        finish(&life, &mut threads);
        assert_eq!(life.power.phase(), Phase::Running);
        assert_eq!(life.number(), 2);
        assert_eq!(threads[0].why.len(), 1);
    });
}

#[test]
fn a_pause_is_of_one_life() {
    model(|| {
        let (life, mut vcpu) = running();
        let other = Arc::clone(&life);
        let thread = thread::spawn(move || {
            vcpu.crash(&other);
            vcpu
        });
        let paused = life.power.pause(true);
        let mut threads = [thread.join().unwrap(), Thread::new(1)];
        assert!(!matches!(paused, Err(Phase::Running)), "{paused:?}");
        finish(&life, &mut threads);
        assert_eq!((life.power.phase(), life.number()), (Phase::Running, 2));
    });
}

#[test]
fn of_two_reports_the_last_takes_the_vm_down() {
    model(|| {
        let (life, mut first) = running();
        first.end(&life, End::Off);
        assert!(first.step(&life), "it finds that it has to say why");
        let other = Arc::clone(&life);
        let thread = thread::spawn(move || {
            let mut second = Thread::new(1);
            second.step(&other);
            second.step(&other);
            second
        });
        first.step(&life);
        // What does not come too early is that the VM is started again.
        let started = life.start();
        let mut threads = [first, thread.join().unwrap()];
        finish(&life, &mut threads);
        let statistics: usize = threads.iter().map(|thread| thread.statistics).sum();
        let downs = threads.iter().filter(|thread| thread.took_down).count();
        assert_eq!((statistics, downs), (1, 1));
        let phase = if started.is_ok() {
            Phase::Running
        } else {
            Phase::Down
        };
        assert_eq!(life.power.phase(), phase);
    });
}

#[test]
fn of_two_reasons_one_counts() {
    model(|| {
        let (life, _) = running();
        let other = Arc::clone(&life);
        let thread = thread::spawn(move || other.power.stop(End::Crash));
        let mine = life.power.stop(End::Off);
        let other = thread.join().unwrap();
        assert!((mine == Ok(true)) != (other == Ok(true)));
        let end = if mine.is_ok() { End::Off } else { End::Crash };
        assert_eq!(life.power.phase(), Phase::Stopping(end));
    });
}

#[test]
fn of_two_that_switch_a_vcpu_on_one_does_and_it_starts_where_that_one_said() {
    model(|| {
        let (life, _) = running();
        let power = &life.power;
        assert_eq!(power.switch_on(2, 3, START[0]), Ok(()));
        assert_eq!(power.arrive(2), Some(START[0]));
        let other = Arc::clone(&life);
        let thread = thread::spawn(move || other.power.switch_on(1, 3, START[1]));
        let mine = power.switch_on(1, 3, START[0]);
        let early = power.arrive(1);
        let other = thread.join().unwrap();
        let winner = if mine.is_ok() { START[0] } else { START[1] };
        assert!(mine.is_ok() != other.is_ok(), "{mine:?} {other:?}");
        let refused = if mine.is_ok() { other } else { mine };
        assert!(matches!(refused, Err(Refused::Pending | Refused::On)));
        assert_eq!(early.or_else(|| power.arrive(1)), Some(winner));
        assert_eq!(power.online(), 3);
    });
}

#[test]
fn the_last_vcpu_that_leaves_is_one_and_ends_the_vm() {
    model(|| {
        let (life, _) = running();
        assert_eq!(life.power.switch_on(1, 2, START[0]), Ok(()));
        let other = Arc::clone(&life);
        let thread = thread::spawn(move || {
            assert!(other.power.arrive(1).is_some());
            other.power.leave(1)
        });
        let mine = life.power.leave(0);
        let other = thread.join().unwrap();
        assert!(mine != other, "{mine} {other}");
        assert_eq!(life.power.phase(), Phase::Stopping(End::LastCpuOff));
    });
}

#[test]
fn a_vcpu_is_switched_on_again_while_it_goes_off() {
    model(|| {
        let (life, _) = running();
        let power = &life.power;
        assert_eq!(power.switch_on(1, 2, START[0]), Ok(()));
        let other = Arc::clone(&life);
        let thread = thread::spawn(move || {
            assert_eq!(other.power.arrive(1), Some(START[0]));
            assert!(!other.power.leave(1), "vCPU 0 is on");
            other.power.arrive(1)
        });
        let again = power.switch_on(1, 2, START[1]);
        let start = thread.join().unwrap().or_else(|| power.arrive(1));
        assert_eq!(start, again.is_ok().then_some(START[1]));
        assert_eq!(power.online(), 1 + u32::from(again.is_ok()));
    });
}

#[test]
fn a_guest_that_resets_while_it_is_asked_to_stop_does_not_begin_again() {
    model(|| {
        let (life, mut vcpu) = running();
        let other = Arc::clone(&life);
        let thread = thread::spawn(move || {
            vcpu.end(&other, End::Reset);
            vcpu.step(&other);
            vcpu
        });
        let asked = life.power.ask();
        let mut threads = [thread.join().unwrap(), Thread::new(1)];
        finish(&life, &mut threads);
        match asked {
            // It had ended before, and is asked in its next life.
            Ok(Phase::Running) if life.number() == 2 => {
                assert_eq!(life.power.phase(), Phase::Asked(End::Ordered));
            }
            Ok(Phase::Running | Phase::Stopping(End::Reset)) => {
                assert_eq!((life.power.phase(), life.number()), (Phase::Down, 1));
                let last = life.settled();
                assert_eq!((last.end, last.follows), (End::Reset, Follows::Stays));
            }
            Ok(Phase::Starting) => is_stopped_by_order(&life, &threads),
            _ => panic!("{asked:?}"),
        }
    });
}

#[test]
fn who_is_ended_at_the_end_of_its_time_ends_once_and_stays_down() {
    model(|| {
        let (life, mut vcpu) = running();
        assert_eq!(life.power.ask(), Ok(Phase::Running));
        let other = Arc::clone(&life);
        let thread = thread::spawn(move || {
            vcpu.crash(&other);
            vcpu.step(&other);
            vcpu
        });
        let overdue = life.power.stop(End::Overdue);
        let mut threads = [thread.join().unwrap(), Thread::new(1)];
        finish(&life, &mut threads);
        assert_eq!((life.power.phase(), life.number()), (Phase::Down, 1));
        let end = if overdue.is_ok() {
            End::Overdue
        } else {
            End::Crash
        };
        let last = life.settled();
        assert_eq!((last.end, last.follows), (end, Follows::Stays));
        let whys = threads.iter().flat_map(|thread| &thread.why);
        assert_eq!(whys.count(), 1);
    });
}

#[test]
fn the_end_of_the_time_of_one_life_does_not_end_the_next() {
    model(|| {
        let (life, mut vcpu) = running();
        assert_eq!(life.power.ask(), Ok(Phase::Running));
        assert_eq!(life.power.again(), Ok(()));
        let other = Arc::clone(&life);
        let thread = thread::spawn(move || {
            vcpu.end(&other, End::Off);
            for _ in 0..3 {
                vcpu.step(&other);
            }
            vcpu
        });
        let overdue = life.power.stop(End::Overdue);
        let mut threads = [thread.join().unwrap(), Thread::new(1)];
        finish(&life, &mut threads);
        assert_eq!((life.power.phase(), life.number()), (Phase::Running, 2));
        let end = if overdue.is_ok() {
            End::Overdue
        } else {
            End::Off
        };
        assert_eq!(life.settled().end, end);
    });
}

#[test]
fn a_start_that_comes_while_who_was_asked_ends_holds_if_it_is_taken() {
    model(|| {
        let (life, mut vcpu) = running();
        assert_eq!(life.power.ask(), Ok(Phase::Running));
        let other = Arc::clone(&life);
        let thread = thread::spawn(move || {
            vcpu.end(&other, End::Off);
            vcpu.step(&other);
            vcpu
        });
        // As `el2/src/orders.rs` gives it.
        let started = match life.power.again() {
            Err(Phase::Stopping(_)) => life.power.stop(End::OrderedRestart).map(drop),
            done => done,
        };
        let mut threads = [thread.join().unwrap(), Thread::new(1)];
        finish(&life, &mut threads);
        let (phase, lives) = match started {
            Ok(()) => (Phase::Running, 2),
            Err(refused) => {
                assert_eq!(refused, Phase::Ended);
                (Phase::Down, 1)
            }
        };
        assert_eq!((life.power.phase(), life.number()), (phase, lives));
    });
}

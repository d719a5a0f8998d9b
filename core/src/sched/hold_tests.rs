//! What holds change, and what they do not.

use super::*;

const MS: u64 = 1_000_000;
const FAIR: Policy = Policy::Fair {
    weight: 1,
    quota: 1,
    period: 1,
};

fn with(policies: &[Policy]) -> Scheduler {
    let mut scheduler = Scheduler::new(6 * MS);
    for (slot, policy) in policies.iter().enumerate() {
        scheduler.add(slot, *policy, slot as u16, 0);
        scheduler.wake(slot, 0);
    }
    scheduler
}

/// Runs until `end`; slot 0 is held whenever it has run for `most` in the period of `period`.
fn run(scheduler: &mut Scheduler, end: u64, most: u64, period: u64) {
    let (mut now, mut had, mut of) = (0, 0, 0);
    while now < end {
        let turn = scheduler.next(now);
        assert!(turn.until > now, "a turn of no length at {now}: {turn:?}");
        if now / period != of {
            (of, had) = (now / period, 0);
        }
        let next = (of + 1) * period;
        let mut until = turn.until.min(end).min(next);
        if turn.slot == Some(0) {
            assert!(had < most, "it runs at {now} although it is held");
            until = until.min(now + most - had);
            had += until - now;
        }
        now = until;
        if turn.slot == Some(0) && had == most {
            scheduler.hold(0, next, now);
        }
    }
    scheduler.next(end);
}

fn ran(scheduler: &Scheduler, slot: usize) -> u64 {
    scheduler.account(slot).unwrap().ran
}

#[test]
fn who_is_held_leaves_its_time_to_others_or_to_nobody() {
    for policy in [
        Policy::Pinned,
        FAIR,
        Policy::Server {
            budget: 9 * MS,
            period: 10 * MS,
        },
    ] {
        let mut alone = with(&[policy]);
        run(&mut alone, 1_000 * MS, 2 * MS, 10 * MS);
        assert_eq!(ran(&alone, 0), 200 * MS, "{policy:?}");
        assert_eq!(alone.account(0).unwrap().overruns, 100);
        if policy != Policy::Pinned {
            let mut beside = with(&[policy, FAIR]);
            run(&mut beside, 1_000 * MS, 2 * MS, 10 * MS);
            assert_eq!(ran(&beside, 0), 200 * MS, "{policy:?}");
            assert_eq!(ran(&beside, 1), 800 * MS, "{policy:?}");
        }
    }
}

#[test]
fn a_hold_of_one_takes_nothing_from_a_server_beside_it() {
    // Together they fill the pCPU. Held from 1 to 9 ms, the first one has 5 ms left and a deadline at 10 ms: with these it would
    // go before the second one, which needs all of its time.
    let server = |budget, period| Policy::Server { budget, period };
    let mut scheduler = with(&[server(6 * MS, 10 * MS), server(8 * MS, 20 * MS)]);
    let turn = scheduler.next(0);
    assert_eq!((turn.slot, turn.until), (Some(0), 6 * MS));
    scheduler.hold(0, 9 * MS, MS);
    let turn = scheduler.next(MS);
    assert_eq!((turn.slot, turn.until), (Some(1), 9 * MS));
    // It has had its budget. A new period of the first one begins, since 5 of 1 ms were too much to ask for.
    let turn = scheduler.next(9 * MS);
    assert_eq!((turn.slot, turn.until), (Some(0), 15 * MS));
    assert_eq!(ran(&scheduler, 1), 8 * MS);
    let turn = scheduler.next(15 * MS);
    assert_eq!((turn.slot, turn.until), (None, 19 * MS));
}

#[test]
fn a_hold_is_not_saved_up() {
    let mut scheduler = with(&[FAIR, FAIR]);
    scheduler.next(0);
    scheduler.hold(0, 500 * MS, 0);
    let mut now = 0;
    while now < 500 * MS {
        let turn = scheduler.next(now);
        assert_eq!(turn.slot, Some(1));
        now = turn.until.min(500 * MS);
    }
    let before = scheduler.usage(1, now).unwrap().account.ran;
    while now < 600 * MS {
        now = scheduler.next(now).until.min(600 * MS);
    }
    scheduler.next(now);
    let others = ran(&scheduler, 1) - before;
    assert!(
        others.abs_diff(50 * MS) <= 6 * MS,
        "the other one has {others} of 100 ms"
    );
}

#[test]
fn a_hold_is_seen_and_ends_with_a_move_or_with_the_vcpu() {
    let mut scheduler = with(&[FAIR, FAIR]);
    scheduler.next(0);
    scheduler.hold(1, 7 * MS, 0);
    scheduler.next(0);
    let state = scheduler.usage(1, 2 * MS).unwrap().run_state;
    assert_eq!(state, RunState::Throttled(5 * MS));
    let taken = scheduler.detach(1, 2 * MS).unwrap();
    let mut other = Scheduler::<true>::new(6 * MS);
    other.attach(3, taken, 2 * MS);
    assert_eq!(other.next(2 * MS).slot, Some(3));
    // Who comes into its place is not held.
    scheduler.block(2 * MS);
    scheduler.add(1, FAIR, 1, 2 * MS);
    scheduler.wake(1, 2 * MS);
    assert_eq!(scheduler.next(2 * MS).slot, Some(1));
    scheduler.remove(1, 2 * MS);
    scheduler.wake(0, 2 * MS);
    scheduler.next(2 * MS);
    scheduler.hold(0, 9 * MS, 2 * MS);
    scheduler.remove(0, 3 * MS);
    scheduler.add(0, FAIR, 0, 3 * MS);
    scheduler.wake(0, 3 * MS);
    assert_eq!(scheduler.next(3 * MS).slot, Some(0));
    // Of nobody it is no hold.
    scheduler.hold(5, 9 * MS, 3 * MS);
    scheduler.add(5, FAIR, 0, 4 * MS);
    scheduler.wake(5, 4 * MS);
    scheduler.remove(0, 4 * MS);
    assert_eq!(scheduler.next(4 * MS).slot, Some(5));
}

#[test]
fn of_two_that_are_held_each_has_its_time() {
    let mut scheduler = with(&[FAIR, FAIR]);
    scheduler.next(0);
    scheduler.hold(0, 5 * MS, 0);
    scheduler.hold(1, 3 * MS, 0);
    let turn = scheduler.next(0);
    assert_eq!((turn.slot, turn.until), (None, 3 * MS));
    let turn = scheduler.next(3 * MS);
    assert_eq!((turn.slot, turn.until), (Some(1), 5 * MS));
    assert!(scheduler.next(5 * MS).slot.is_some());
    assert!(scheduler.next(5 * MS).trap_wfe);
}

#[test]
fn no_server_is_interrupted_for_a_fair_vcpu_that_waits() {
    let capped = Policy::Fair {
        weight: 1,
        quota: MS,
        period: 20 * MS,
    };
    let server = Policy::Server {
        budget: 8 * MS,
        period: 10 * MS,
    };
    // The capped one has had its quota, the other one is held.
    let mut scheduler = with(&[capped, FAIR]);
    assert_eq!(scheduler.next(0).slot, Some(0));
    scheduler.hold(1, 3 * MS, 0);
    let turn = scheduler.next(MS);
    assert_eq!((turn.slot, turn.until), (None, 3 * MS));
    scheduler.add(2, server, 2, MS);
    scheduler.wake(2, MS);
    let turn = scheduler.next(MS);
    assert_eq!((turn.slot, turn.until), (Some(2), 9 * MS));
    // When its turn is over, what has come meanwhile is seen.
    let turn = scheduler.next(9 * MS);
    assert_eq!((turn.slot, turn.until), (Some(1), 11 * MS));
    // Another server that is held does interrupt.
    scheduler.add(3, server, 3, 9 * MS);
    scheduler.wake(3, 9 * MS);
    scheduler.hold(3, 12 * MS, 9 * MS);
    scheduler.wake(2, 11 * MS);
    let turn = scheduler.next(11 * MS);
    assert_eq!((turn.slot, turn.until), (Some(2), 12 * MS));
}

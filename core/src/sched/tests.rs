//! Named cases. Properties that hold in general are in `model`.

use super::bound::{Costs, DRAIN_NS, Promise, REGISTERS_NS, bound, supply, worst_load};
use super::*;

const MS: u64 = 1_000_000;
const FAIR: fn(u16) -> Policy = |weight| Policy::Fair {
    weight,
    quota: 1,
    period: 1,
};

fn capped(quota: u64, period: u64) -> Policy {
    Policy::Fair {
        weight: 1,
        quota,
        period,
    }
}

fn server(budget: u64, period: u64) -> Policy {
    Policy::Server { budget, period }
}

fn with(policies: &[Policy]) -> Scheduler {
    let mut scheduler = Scheduler::new(6 * MS);
    for (slot, policy) in policies.iter().enumerate() {
        scheduler.add(slot, *policy, slot as u16, 0);
    }
    scheduler
}

/// Runs all vCPUs that are awake until `end`; none of them sleeps.
fn run(scheduler: &mut Scheduler, from: u64, end: u64) {
    let mut now = from;
    while now < end {
        let turn = scheduler.next(now);
        assert!(turn.until > now, "a turn of no length at {now}: {turn:?}");
        now = turn.until.min(end);
    }
    scheduler.next(end);
}

fn ran(scheduler: &Scheduler, slot: usize) -> u64 {
    scheduler.account(slot).unwrap().ran
}

#[test]
fn weights_1_2_4_get_their_share_of_a_second_within_a_hundredth() {
    let mut scheduler = with(&[FAIR(1), FAIR(2), FAIR(4)]);
    for slot in 0..3 {
        scheduler.wake(slot, 0);
    }
    run(&mut scheduler, 0, 1_000 * MS);
    for (slot, weight) in [(0, 1u64), (1, 2), (2, 4)] {
        let share = 1_000 * MS * weight / 7;
        assert!(
            ran(&scheduler, slot).abs_diff(share) <= share / 100,
            "{slot}: {}",
            ran(&scheduler, slot)
        );
    }
}

#[test]
fn a_cap_holds_in_each_window_and_the_rest_is_for_others() {
    let mut scheduler = with(&[capped(2 * MS, 20 * MS), FAIR(1)]);
    scheduler.wake(0, 0);
    scheduler.wake(1, 0);
    run(&mut scheduler, 0, 1_000 * MS);
    assert_eq!(ran(&scheduler, 0), 100 * MS);
    assert_eq!(ran(&scheduler, 1), 900 * MS);
    assert_eq!(scheduler.account(0).unwrap().overruns, 50);
}

#[test]
fn a_capped_vcpu_alone_leaves_its_pcpu_idle() {
    let mut scheduler = with(&[capped(5 * MS, 20 * MS)]);
    assert!(scheduler.wake(0, 0));
    let turn = scheduler.next(0);
    assert_eq!((turn.slot, turn.until), (Some(0), 5 * MS));
    assert!(turn.trap_wfi && !turn.trap_wfe);
    let idle = scheduler.next(5 * MS);
    assert_eq!((idle.slot, idle.until), (None, 20 * MS));
    assert_eq!(scheduler.next(20 * MS).slot, Some(0));
}

#[test]
fn what_a_late_timer_gave_too_much_is_paid_back() {
    let mut scheduler = with(&[capped(2 * MS, 10 * MS), server(MS, 10 * MS)]);
    scheduler.wake(0, 0);
    assert_eq!(scheduler.next(0).until, 2 * MS);
    // Half a millisecond late.
    assert_eq!(scheduler.next(2 * MS + MS / 2).slot, None);
    assert_eq!(scheduler.next(10 * MS).until, 11 * MS + MS / 2);
    scheduler.block(10 * MS);
    scheduler.wake(1, 20 * MS);
    assert_eq!(scheduler.next(20 * MS).until, 21 * MS);
    assert_eq!(scheduler.next(21 * MS + MS / 4).slot, None);
    assert_eq!(scheduler.next(30 * MS).until, 30 * MS + MS * 3 / 4);
}

#[test]
fn sleep_is_not_saved_up() {
    let mut scheduler = with(&[FAIR(1), FAIR(1)]);
    scheduler.wake(0, 0);
    run(&mut scheduler, 0, 1_000 * MS);
    // After a second of sleep it gets half a round more than the other vCPU, not a second.
    assert!(scheduler.wake(1, 1_000 * MS));
    run(&mut scheduler, 1_000 * MS, 1_100 * MS);
    assert!(
        ran(&scheduler, 1) <= 50 * MS + 6 * MS,
        "{}",
        ran(&scheduler, 1)
    );
    assert!(ran(&scheduler, 1) >= 50 * MS);
}

#[test]
fn who_wakes_often_goes_first_and_gets_no_more_than_its_share() {
    let mut scheduler = with(&[FAIR(1), FAIR(1)]);
    scheduler.wake(0, 0);
    scheduler.next(0);
    // Long enough for it to be clearly behind.
    let mut now = 5 * MS;
    for _ in 0..1_000 {
        assert!(scheduler.wake(1, now), "not before the other at {now}");
        assert_eq!(scheduler.next(now).slot, Some(1));
        now += MS / 10;
        scheduler.block(now);
        assert_eq!(scheduler.next(now).slot, Some(0));
        now += MS * 9 / 10;
    }
    assert_eq!(ran(&scheduler, 1), 100 * MS);
    assert_eq!(scheduler.account(1).unwrap().longest, 0);
}

#[test]
fn a_server_goes_before_fair_vcpus_and_leaves_them_the_rest() {
    let mut scheduler = with(&[FAIR(1), server(3 * MS, 10 * MS)]);
    scheduler.wake(0, 0);
    assert_eq!(scheduler.next(0).slot, Some(0));
    assert!(scheduler.wake(1, 5 * MS));
    let turn = scheduler.next(5 * MS);
    assert_eq!((turn.slot, turn.until), (Some(1), 8 * MS));
    // It wants more than its budget: the others run until its next period.
    let turn = scheduler.next(8 * MS);
    assert_eq!((turn.slot, turn.until), (Some(0), 15 * MS));
    assert_eq!(scheduler.account(1).unwrap().overruns, 1);
    let turn = scheduler.next(15 * MS);
    assert_eq!((turn.slot, turn.until), (Some(1), 18 * MS));
}

#[test]
fn the_earlier_deadline_goes_first() {
    let mut scheduler = with(&[server(4 * MS, 20 * MS), server(2 * MS, 5 * MS)]);
    scheduler.wake(0, 0);
    assert_eq!(scheduler.next(0).slot, Some(0));
    assert!(scheduler.wake(1, MS));
    assert_eq!(scheduler.next(MS).slot, Some(1));
    scheduler.block(2 * MS);
    assert_eq!(scheduler.next(2 * MS).slot, Some(0));
    // Its deadline is at 6 ms, that of the other server at 20 ms.
    assert!(scheduler.wake(1, 3 * MS));
}

#[test]
fn a_server_that_sleeps_in_its_period_does_not_get_more_than_its_share() {
    let mut scheduler = with(&[server(5 * MS, 10 * MS)]);
    scheduler.wake(0, 0);
    scheduler.next(0);
    scheduler.block(4 * MS);
    // 1 ms left for 1 ms: more than a half, so a new period with the whole budget begins.
    scheduler.wake(0, 9 * MS);
    assert_eq!(scheduler.next(9 * MS).until, 14 * MS);
    scheduler.block(13 * MS);
    // 1 ms left for 4 ms: the old deadline stays.
    scheduler.wake(0, 15 * MS);
    let turn = scheduler.next(15 * MS);
    assert_eq!((turn.slot, turn.until), (Some(0), 16 * MS));
}

#[test]
fn one_that_spins_lets_its_sibling_go_first() {
    let mut scheduler: Scheduler = Scheduler::new(6 * MS);
    for (slot, group) in [(0, 7), (1, 8), (2, 7)] {
        scheduler.add(slot, FAIR(1), group, 0);
        scheduler.wake(slot, 0);
    }
    assert_eq!(scheduler.next(0).slot, Some(0));
    assert!(scheduler.next(0).trap_wfe);
    scheduler.yield_cpu();
    assert_eq!(scheduler.next(10).slot, Some(2));
    // No other vCPU of the VM is ready: the yield goes to any vCPU.
    scheduler.block(20);
    assert_eq!(scheduler.next(20).slot, Some(1));
    scheduler.yield_cpu();
    assert_eq!(scheduler.next(30).slot, Some(0));
    scheduler.block(40);
    assert_eq!(scheduler.next(40).slot, Some(1));
    // No other vCPU is ready: it goes on.
    scheduler.yield_cpu();
    let turn = scheduler.next(50);
    assert_eq!(turn.slot, Some(1));
    // No vCPU is ready that could hold what it waits for; but its sleep would count as run time.
    assert!(!turn.trap_wfe && turn.trap_wfi);
}

#[test]
fn a_server_does_not_pass_its_turn() {
    let mut scheduler = with(&[server(5 * MS, 10 * MS), FAIR(1)]);
    scheduler.wake(0, 0);
    scheduler.wake(1, 0);
    let turn = scheduler.next(0);
    assert_eq!(
        (turn.slot, turn.trap_wfe, turn.trap_wfi),
        (Some(0), false, true)
    );
    scheduler.yield_cpu();
    assert_eq!(scheduler.next(10).slot, Some(0));
}

#[test]
fn pinned_has_no_timer_and_no_traps() {
    let mut scheduler = with(&[Policy::Pinned]);
    assert!(scheduler.wake(0, 5));
    let turn = scheduler.next(5);
    assert_eq!(
        turn,
        Turn {
            slot: Some(0),
            until: u64::MAX,
            trap_wfi: false,
            trap_wfe: false
        }
    );
    assert!(!scheduler.wake(0, 6), "it runs already");
    scheduler.block(7);
    assert_eq!(scheduler.next(7).slot, None);
}

#[test]
fn who_has_a_pcpu_alone_sleeps_in_hardware() {
    let mut scheduler = with(&[FAIR(1)]);
    scheduler.wake(0, 0);
    assert!(!scheduler.next(0).trap_wfi);
    // Also when the other vCPU has been removed.
    let mut scheduler = with(&[FAIR(1), FAIR(1)]);
    scheduler.wake(0, 0);
    assert!(scheduler.next(0).trap_wfi);
    scheduler.remove(1, 10);
    assert!(!scheduler.next(10).trap_wfi);
}

#[test]
fn a_second_fair_vcpu_puts_an_end_to_a_turn_without_end() {
    let mut scheduler = with(&[FAIR(1), FAIR(1)]);
    scheduler.wake(0, 0);
    let turn = scheduler.next(0);
    assert_eq!((turn.until, turn.trap_wfi), (u64::MAX, true));
    // Equal virtual times: it does not go first, but the turn must have an end now.
    scheduler.block(0);
    scheduler.wake(1, 0);
    scheduler.next(0);
    assert!(scheduler.wake(0, 0));
    let turn = scheduler.next(0);
    assert_eq!(turn.until, 3 * MS);
    assert!(turn.trap_wfi && turn.trap_wfe);
}

#[test]
fn stolen_time_is_waiting_not_sleeping() {
    let mut scheduler = with(&[FAIR(1), FAIR(1)]);
    scheduler.wake(0, 0);
    scheduler.wake(1, 0);
    scheduler.next(0);
    scheduler.next(3 * MS);
    assert_eq!(scheduler.current(), Some(1));
    assert_eq!(scheduler.account(1).unwrap().stolen, 3 * MS);
    scheduler.block(4 * MS);
    scheduler.next(4 * MS);
    assert_eq!(scheduler.account(0).unwrap().stolen, MS);
    scheduler.wake(1, 50 * MS);
    scheduler.next(50 * MS);
    assert_eq!(scheduler.account(1).unwrap().stolen, 3 * MS);
}

#[test]
fn policies_change_while_they_run() {
    let mut scheduler = with(&[FAIR(1), FAIR(1)]);
    scheduler.wake(0, 0);
    scheduler.wake(1, 0);
    run(&mut scheduler, 0, 100 * MS);
    scheduler.change(0, FAIR(3), 100 * MS);
    let before = (ran(&scheduler, 0), ran(&scheduler, 1));
    run(&mut scheduler, 100 * MS, 500 * MS);
    let gained = (ran(&scheduler, 0) - before.0, ran(&scheduler, 1) - before.1);
    assert!(gained.0.abs_diff(300 * MS) < 6 * MS, "{gained:?}");
    scheduler.change(1, server(MS, 4 * MS), 500 * MS);
    let before = ran(&scheduler, 1);
    run(&mut scheduler, 500 * MS, 900 * MS);
    assert_eq!(ran(&scheduler, 1) - before, 100 * MS);
    assert_eq!(scheduler.policy(1), Some(server(MS, 4 * MS)));
    let had = scheduler.remove(1, 900 * MS).unwrap();
    assert_eq!(had.ran, before + 100 * MS);
    assert_eq!((scheduler.account(1), scheduler.policy(1)), (None, None));
    assert_eq!(scheduler.load(), 3);
}

#[test]
fn wrong_slots_do_nothing() {
    let mut scheduler = with(&[FAIR(1)]);
    assert!(!scheduler.wake(SLOTS, 0));
    assert!(!scheduler.wake(1, 0));
    scheduler.add(SLOTS, FAIR(1), 0, 0);
    scheduler.change(1, FAIR(2), 0);
    assert_eq!(scheduler.remove(1, 0), None);
    assert_eq!(scheduler.remove(SLOTS, 0), None);
    scheduler.block(0);
    scheduler.yield_cpu();
    assert_eq!(scheduler.next(0).slot, None);
}

#[test]
fn a_set_of_servers_is_accepted_up_to_the_whole_pcpu_and_not_beyond() {
    let free = Costs {
        switch: 0,
        longest: 0,
        drain: 0,
    };
    let half = Promise {
        budget: 5,
        period: 10,
        held: 0,
    };
    let third = Promise {
        budget: 10,
        period: 20,
        held: 0,
    };
    let all = [half, third];
    assert_eq!(bound(&all, 0, free).unwrap().load, 500_000);
    let both = bound(&all, 1, free).unwrap();
    assert_eq!((both.load, both.gap, both.need), (1_000_000, 20, 10));
    assert!(both.holds());
    // One tick of blocking is too much for the second server, and a switch for the first of these.
    let blocked = Costs {
        switch: 0,
        longest: 1,
        drain: 0,
    };
    assert!(bound(&all, 0, blocked).unwrap().holds());
    assert!(!bound(&all, 1, blocked).unwrap().holds());
    let dear = Costs {
        switch: 1,
        longest: 0,
        drain: 0,
    };
    assert_eq!(bound(&all, 0, dear).unwrap().need, 7);
    assert!(!bound(&all, 1, dear).unwrap().holds());
    assert_eq!(bound(&all, 2, free), None);
    // Who may be held comes back once more for each of these periods, and one that has begun before.
    for (held, need) in [(0, 7), (10, 11), (4, 13), (11, 9)] {
        let one = [Promise { held, ..half }];
        assert_eq!(bound(&one, 0, dear).unwrap().need, need, "{held}");
    }
    // Two exits of the drain, of one tick each: in each 40 ticks, and once more in each period.
    let drained = Costs {
        drain: 40,
        ..blocked
    };
    let elsewhere = bound(&all, 0, blocked).unwrap().load;
    assert_eq!(
        bound(&all, 0, drained).unwrap().load - elsewhere,
        50_000 + 200_000
    );
}

#[test]
fn more_registers_make_each_switch_longer() {
    let one = Promise {
        budget: 500_000,
        period: 1_000_000,
        held: 0,
    };
    let load = |registers| worst_load([one; 2].into_iter(), false, registers).unwrap();
    // Two servers, two switches each: 8000 ns in a millisecond.
    assert_eq!(load(true) - load(false), 8_000);
    let drains = Costs::OF_BUILD.on(true, true);
    assert_eq!(drains.switch, Costs::OF_BUILD.switch + REGISTERS_NS);
    assert_eq!(drains.drain, DRAIN_NS);
}

#[test]
fn supply_comes_after_the_gap_and_by_whole_budgets() {
    let promise = Promise {
        budget: 3,
        period: 10,
        held: 0,
    };
    assert_eq!(supply(promise, 14), 0);
    assert_eq!(supply(promise, 15), 1);
    assert_eq!(supply(promise, 17), 3);
    assert_eq!(supply(promise, 24), 3);
    assert_eq!(supply(promise, 27), 6);
}

#[test]
fn siblings_that_spin_for_each_other_do_not_shut_others_out() {
    let mut scheduler: Scheduler = Scheduler::new(6 * MS);
    for (slot, group) in [(0, 7), (1, 7), (2, 8)] {
        scheduler.add(slot, FAIR(1), group, 0);
        scheduler.wake(slot, 0);
    }
    let mut now = 0;
    while now < 300 * MS {
        let turn = scheduler.next(now);
        // The two vCPUs of one VM yield after a microsecond, the other vCPU never.
        now = if turn.slot == Some(2) {
            turn.until
        } else {
            scheduler.yield_cpu();
            now + 1_000
        };
    }
    assert!(
        ran(&scheduler, 2).abs_diff(100 * MS) <= 6 * MS,
        "{}",
        ran(&scheduler, 2)
    );
}

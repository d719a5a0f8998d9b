//! The controller against VMs whose load a test chooses.

mod plant;

use bulkhead_abi::plan::CpuPolicy;
use bulkhead_policy::controller::{Outcome, Rests, Why};
use bulkhead_policy::rule::{Quantity, Setting};

use plant::{Board, Second, Vm};

/// The weight of `vm` from 100 to 400 while it waits, each step after 3 s, a pause of 5 s.
const BUSY: &str = "
[rule.busy]
vms = [\"vm\"]
weight = { from = 100, to = 400, step = 100 }
when = { measure = \"waiting\", above = \"30%\", for = \"3s\" }
back = { measure = \"waiting\", below = \"10%\", for = \"4s\" }
pause = \"5s\"
";

fn rests(board: &Board) -> Rests {
    board.controller.cases()[0].rests
}

#[test]
fn a_load_that_lasts_is_followed_step_by_step_up_to_the_bound_and_back() {
    let mut board = Board::new(BUSY, &["vm"]);
    // The look at second 1 was the first: the load is seen from then on.
    assert_eq!(board.moves(60, |_| 0.5), [(4, 200), (9, 300), (14, 400)]);
    assert_eq!(rests(&board), Rests::AtBound);
    assert_eq!(board.moves(60, |_| 0.02), [(65, 300), (70, 200), (75, 100)]);
    assert_eq!(rests(&board), Rests::AtRest);
}

#[test]
fn a_decision_has_the_measure_and_how_long_it_was_met_as_its_reason() {
    let mut board = Board::new(BUSY, &["vm"]);
    board.moves(2, |_| 0.4);
    let decisions = board.go(&[Second::Waits(0.5)]);
    let [decision] = &decisions[..] else {
        panic!("{decisions:?}");
    };
    assert_eq!(
        decision.why.to_string(),
        "measure=waiting value=50.0% above=30.0% for=3s"
    );
    assert_eq!(
        (decision.from, decision.to),
        (Setting::Weight(100), Setting::Weight(200))
    );
}

#[test]
fn between_the_thresholds_and_for_less_than_the_time_nothing_moves() {
    let mut board = Board::new(BUSY, &["vm"]);
    assert_eq!(board.moves(100, |_| 0.3), [], "above, not at");
    for _ in 0..50 {
        assert_eq!(board.moves(2, |_| 0.9), []);
        assert_eq!(board.moves(1, |_| 0.2), []);
    }
    board.vms[0].state.weight = 300;
    assert_eq!(board.moves(100, |_| 0.1), [], "below, not at");
}

#[test]
fn an_answer_that_is_missing_is_neither_load_nor_its_absence() {
    let mut board = Board::new(BUSY, &["vm"]);
    for _ in 0..30 {
        assert_eq!(board.moves(2, |_| 0.9), []);
        assert_eq!(board.go(&[Second::Silent]), []);
    }
    board.vms[0].state.weight = 400;
    for _ in 0..30 {
        assert_eq!(board.moves(3, |_| 0.0), []);
        assert_eq!(board.go(&[Second::Silent]), []);
        // The next answer has nothing to compare with.
        assert_eq!(board.moves(1, |_| 0.0), []);
    }
}

#[test]
fn a_vm_that_stops_gives_back_what_it_had_and_a_new_life_begins_anew() {
    let mut board = Board::new(BUSY, &["vm"]);
    board.moves(10, |_| 0.5);
    assert_eq!(board.weight(), 300);
    let decisions = board.go(&[Second::Down]);
    assert_eq!(decisions[0].why, Why::Stopped);
    assert_eq!((board.weight(), decisions.len()), (100, 1));
    assert_eq!(board.go(&[Second::Down]), []);
    assert_eq!(board.go(&[Second::Starts]), [], "the first look");
    assert_eq!(board.moves(2, |_| 0.5), []);
    assert_eq!(board.moves(2, |_| 0.5).len(), 1);
    // A pause changes nothing, and does not count.
    let weight = board.weight();
    for _ in 0..20 {
        assert_eq!(board.go(&[Second::Paused]), []);
    }
    assert_eq!(board.moves(3, |_| 0.9), [], "the first look after it");
    assert_eq!(board.weight(), weight);
    // What somebody has set beside the values is left to them.
    board.vms[0].state.weight = 77;
    assert_eq!(board.go(&[Second::Down]), []);
}

#[test]
fn what_el2_refuses_is_not_asked_for_again_until_something_else_has_changed() {
    for may_pass in [true, false] {
        let mut board = Board::new(BUSY, &["vm"]);
        board.moves(2, |_| 0.5);
        let decisions = board.decide(&[Second::Waits(0.5)]);
        board.tell(&decisions[0], Outcome::Refused { may_pass });
        assert_eq!(board.moves(1000, |_| 0.5), []);
        assert_eq!(rests(&board), Rests::Refused);
        // Its own changes are none of others.
        board.controller.changed("vm");
        assert_eq!(board.moves(100, |_| 0.5), []);
        board.controller.changed("other");
        let again = board.decide(&[Second::Waits(0.5)]);
        assert_eq!(again.len(), usize::from(may_pass));
        if may_pass {
            board.tell(&again[0], Outcome::Refused { may_pass });
        }
        // When the load has gone and come again it is as refused as before.
        board.moves(100, |_| 0.0);
        assert_eq!(board.moves(100, |_| 0.5), []);
    }
}

#[test]
fn what_somebody_else_sets_counts_as_a_move_and_is_the_new_start() {
    let mut board = Board::new(BUSY, &["vm"]);
    board.moves(2, |_| 0.5);
    board.vms[0].state.weight = 250;
    let second = board.second;
    let moves = board.moves(20, |_| 0.5);
    assert_eq!(moves, [(second + 6, 300), (second + 11, 400)]);
    // From beyond a bound there is only the way back into it.
    board.vms[0].state.weight = 900;
    assert_eq!(board.moves(50, |_| 0.5), []);
    let moves = board.moves(40, |_| 0.0);
    let weights: Vec<u64> = moves.iter().map(|(_, weight)| *weight).collect();
    assert_eq!(weights, [400, 300, 200, 100]);
}

#[test]
fn thresholds_closer_than_a_step_do_not_make_it_go_to_and_fro() {
    // Two that share a pCPU: it waits for 100 / (100 + weight) of the time. 29.9 % is below, 33 % is above.
    let narrow = BUSY.replace("10%", "29.95%").replace("30%", "29.99%");
    let mut board = Board::new(&narrow, &["vm"]);
    let waits = |weight: u64| match weight {
        100 => 0.5,
        200 => 0.33,
        _ => 0.299,
    };
    let moves = board.moves(100_000, waits);
    // Without the backoff there is a move each 5 seconds.
    assert!((5..40).contains(&moves.len()), "{}: {moves:?}", moves.len());
    // A load that is really less is followed at once.
    let at = board.second;
    let moves = board.moves(20, |_| 0.05);
    assert!(moves[0].0 - at <= 5, "{moves:?}");
}

#[test]
fn a_new_life_is_another_load() {
    let narrow = BUSY.replace("10%", "29.95%").replace("30%", "29.99%");
    let waits = |weight: u64| if weight == 100 { 0.5 } else { 0.2 };
    let mut board = Board::new(&narrow, &["vm"]);
    // A step back that had to be taken back holds.
    assert_eq!(board.moves(25, waits).len(), 3);
    assert!(matches!(rests(&board), Rests::Holds(_)));
    board.go(&[Second::Starts]);
    let moves = board.moves(6, waits);
    assert_eq!(moves.len(), 1, "{moves:?}");
}

#[test]
fn each_step_needs_the_whole_time_anew() {
    let mut board = Board::new(&BUSY.replace("5s", "0s"), &["vm"]);
    assert_eq!(board.moves(12, |_| 0.5), [(4, 200), (7, 300), (10, 400)]);
    assert_eq!(board.moves(13, |_| 0.0), [(17, 300), (21, 200), (25, 100)]);
}

#[test]
fn what_is_short_of_time_is_not_taken_for_idle() {
    let source = "
[rule.busy]
vms = [\"vm\"]
weight = { from = 100, to = 400, step = 100 }
when = { measure = \"waiting\", above = \"30%\", for = \"3s\" }
back = { measure = \"cpu\", below = \"20%\", for = \"1s\" }
pause = \"0s\"
";
    let mut board = Board::new(source, &["vm"]);
    board.vms[0].state.weight = 200;
    board.go(&[Second::Waits(0.5)]);
    // It waits for 90 percent of the time, and so runs for 10.
    assert_eq!(board.moves(30, |_| 0.9), [(5, 300), (8, 400)]);
}

#[test]
fn a_budget_that_just_suffices_is_not_taken_away_all_the_time() {
    let source = "
[rule.enough]
vms = [\"vm\"]
budget = { from = \"2ms/10ms\", to = \"6ms/10ms\", step = \"1ms\" }
when = { measure = \"overruns\", above = 1, for = \"2s\" }
back = { below = 0.5 }
pause = \"4s\"
";
    let mut board = Board::new(source, &["vm"]);
    board.vms[0].state.policy = CpuPolicy::Server as u64;
    board.vms[0].state.amount = 2_000_000;
    let mut moves = 0;
    for _ in 0..100_000 {
        let short = board.vms[0].state.amount < 4_000_000;
        board.vms[0].time.overruns += if short { 100 } else { 0 };
        moves += board.go(&[Second::Waits(0.2)]).len();
    }
    assert!((3..40).contains(&moves), "{moves}");
    assert_eq!(board.vms[0].state.amount, 4_000_000);
}

const TWO: &str = "
[rule.second]
vms = [\"less\"]
cap = { from = \"2ms/10ms\", to = \"none\", step = \"4ms\" }
when = { measure = \"waiting\", above = \"30%\", for = \"1s\" }
back = { below = \"10%\" }
pause = \"2s\"
priority = 1

[rule.first]
vms = [\"more\"]
weight = { from = 100, to = 200, step = 100 }
when = { measure = \"waiting\", above = \"30%\", for = \"1s\" }
back = { below = \"10%\" }
pause = \"2s\"
priority = 2
";

#[test]
fn a_rule_yields_to_one_of_greater_priority_on_the_same_pcpu() {
    let busy = [Second::Waits(0.5), Second::Waits(0.05)];
    let both = [Second::Waits(0.5), Second::Waits(0.5)];
    let between = [Second::Waits(0.5), Second::Waits(0.2)];
    for shares in [true, false] {
        let mut board = Board::new(TWO, &["less", "more"]);
        board.vms[0].state.amount = 2_000_000;
        if !shares {
            board.vms[1].state.pcpu = 2;
            board.vms[1].state.pool = 0b100;
        }
        for _ in 0..20 {
            board.go(&busy);
        }
        assert_eq!(board.vms[0].state.amount, 10_000_000);
        let mut said = Vec::new();
        for _ in 0..20 {
            said.extend(board.go(&both));
        }
        let less = board.vms[0].state.amount;
        assert_eq!(board.vms[1].state.weight, 200);
        if !shares {
            assert_eq!(less, 10_000_000);
            continue;
        }
        assert_eq!(less, 2_000_000, "{said:?}");
        assert_eq!(said[0].vm, "more", "the first comes first");
        assert_eq!(said[1].why.to_string(), "yields-to=first of=more");
        // As long as the first one has not been below its lower threshold the second does not come back.
        for _ in 0..50 {
            assert_eq!(board.go(&between), []);
        }
        for _ in 0..20 {
            board.go(&busy);
        }
        assert_eq!(board.vms[0].state.amount, 10_000_000);
    }
}

#[test]
fn two_rules_that_push_each_other_do_so_ever_more_rarely() {
    let mut board = Board::new(TWO, &["less", "more"]);
    board.vms[0].state.amount = 2_000_000;
    let mut moves = 0;
    for _ in 0..50_000 {
        // With its cap the one is nothing to the other, without it is everything.
        let waits = if board.vms[0].state.amount > 2_000_000 {
            0.5
        } else {
            0.0
        };
        moves += board.go(&[Second::Waits(0.5), Second::Waits(waits)]).len();
    }
    assert!(moves < 100, "{moves}");
}

#[test]
fn pools_go_through_their_list() {
    let source = "
[rule.wide]
vms = [\"vm\"]
pool = [\"1\", \"1-2\", \"0-3\"]
when = { measure = \"waiting\", above = \"30%\", for = \"1s\" }
back = { below = \"10%\" }
pause = \"0s\"
";
    let mut board = Board::new(source, &["vm"]);
    let mut pools = Vec::new();
    for waits in [0.5, 0.5, 0.5, 0.0, 0.0, 0.0] {
        board.go(&[Second::Waits(waits)]);
        pools.push(board.vms[0].state.pool);
    }
    assert_eq!(pools, [0b110, 0b1111, 0b1111, 0b110, 0b10, 0b10]);
    // A set of pCPUs that is none of them leads to the first.
    board.vms[0].state.pool = 0b1000;
    board.go(&[Second::Waits(0.5)]);
    board.go(&[Second::Waits(0.5)]);
    assert_eq!(board.vms[0].state.pool, 0b10);
}

#[test]
fn another_vm_can_be_what_is_measured() {
    let source = "
[rule.protect]
vms = [\"less\"]
cap = { from = \"none\", to = \"3ms/10ms\", step = \"7ms\" }
when = { vm = \"more\", measure = \"waiting\", above = \"30%\", for = \"1s\" }
back = { below = \"10%\" }
pause = \"2s\"
";
    let mut board = Board::new(source, &["less", "more"]);
    for _ in 0..20 {
        assert_eq!(board.go(&[Second::Waits(0.9), Second::Waits(0.2)]), []);
    }
    let decisions = board.go(&[Second::Waits(0.0), Second::Waits(0.9)]);
    assert_eq!(
        decisions[0].why.to_string(),
        "vm=more measure=waiting value=90.0% above=30.0% for=1s"
    );
    assert_eq!(board.vms[0].state.amount, 3_000_000);
    assert_eq!(decisions[0].vm, "less");
    for _ in 0..5 {
        board.go(&[Second::Waits(0.9), Second::Waits(0.0)]);
    }
    assert_eq!(board.vms[0].state.amount, 10_000_000);
}

#[test]
fn the_quantity_is_read_from_the_state() {
    let vm = Vm::new("vm");
    assert_eq!(Quantity::Weight.of(&vm.state), Setting::Weight(100));
    assert_eq!(Quantity::Pool.of(&vm.state), Setting::Pool(0b10));
    assert_eq!(Quantity::Cap.of(&vm.state).to_string(), "none");
}

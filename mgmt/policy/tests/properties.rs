//! The controller against whatever may happen.

mod plant;

use bulkhead_policy::controller::{Outcome, Why};
use bulkhead_policy::rule::Setting;
use proptest::prelude::*;

use plant::{Board, Second, policy};

fn second() -> impl Strategy<Value = Second> {
    prop_oneof![
        12 => (0.0..1.0).prop_map(Second::Waits),
        4 => Just(Second::Waits(0.9)),
        4 => Just(Second::Waits(0.0)),
        1 => Just(Second::Silent),
        1 => Just(Second::Down),
        1 => Just(Second::Paused),
        1 => Just(Second::Starts),
    ]
}

/// A rule with these figures, and its values.
fn rule() -> impl Strategy<Value = (String, Vec<u64>, u64)> {
    let figures = (1u64..1000, 1u64..1000, 1u64..400, 0u64..6, 0u64..6, 0u64..8);
    figures
        .prop_filter("one value", |(from, to, ..)| from != to)
        .prop_map(|(from, to, step, up, back, pause)| {
            let source = format!(
                "[rule.any]\nvms = [\"vm\"]\nweight = {{ from = {from}, to = {to}, step = {step} }}\n\
                 when = {{ measure = \"waiting\", above = \"60%\", for = \"{up}s\" }}\n\
                 back = {{ below = \"30%\", for = \"{back}s\" }}\npause = \"{pause}s\"\n"
            );
            let steps = policy(&source).rules[0].steps.clone();
            let weight = |step: Setting| match step {
                Setting::Weight(weight) => weight,
                _ => 0,
            };
            (source, steps.into_iter().map(weight).collect(), pause)
        })
}

proptest! {
    #[test]
    fn whatever_happens_values_stay_between_the_bounds_and_moves_apart(
        (source, steps, pause) in rule(),
        seconds in prop::collection::vec((second(), 0..20u8), 1..200),
    ) {
        let mut board = Board::new(&source, &["vm"]);
        board.vms[0].state.weight = steps[0];
        let mut last = None;
        let mut before = Second::Waits(0.0);
        for (second, luck) in seconds {
            let had = board.weight();
            let decisions = board.decide(&[second]);
            prop_assert!(decisions.len() <= 1);
            for decision in decisions {
                prop_assert_eq!(decision.from, Setting::Weight(had));
                let Setting::Weight(to) = decision.to else { panic!("{decision:?}") };
                let (from, to) = (
                    steps.iter().position(|step| *step == had).expect("one of them"),
                    steps.iter().position(|step| *step == to).expect("one of them"),
                );
                match (&decision.why, second) {
                    (Why::Stopped, Second::Down) => prop_assert!(to == 0 && from > 0),
                    (Why::Met { measured, condition, .. }, Second::Waits(part)) => {
                        prop_assert!((measured - part).abs() < 1e-6 || before == Second::Silent);
                        let up = condition.threshold == 0.6;
                        prop_assert_eq!((*measured > 0.6, *measured < 0.3), (up, !up));
                        prop_assert_eq!(to, if up { from + 1 } else { from - 1 });
                        let apart = last.is_none_or(|last| board.second - last >= pause);
                        prop_assert!(apart, "{:?}", decision);
                    }
                    other => panic!("{other:?}"),
                }
                if luck == 0 {
                    board.tell(&decision, Outcome::Refused { may_pass: true });
                } else {
                    board.tell(&decision, Outcome::Done);
                    last = Some(board.second);
                }
            }
            before = second;
        }
    }

    #[test]
    fn a_load_that_stays_the_same_leads_somewhere_and_no_further(
        (source, steps, pause) in rule(),
        part in 0.0..1.0,
        start in 0..1000usize,
    ) {
        let mut board = Board::new(&source, &["vm"]);
        let start = start % steps.len();
        board.vms[0].state.weight = steps[start];
        let moves = board.moves(8 * (steps.len() as u64 + 3) * (pause + 8) / 4, |_| part);
        let weights: Vec<u64> = moves.iter().map(|(_, weight)| *weight).collect();
        let expected: Vec<u64> = if part > 0.6 {
            steps[start + 1..].to_vec()
        } else if part < 0.3 {
            steps[..start].iter().rev().copied().collect()
        } else {
            Vec::new()
        };
        prop_assert_eq!(weights, expected);
    }

    #[test]
    fn whatever_a_step_does_to_the_load_moves_become_rare(
        (source, steps, _) in rule(),
        parts in prop::collection::vec(prop_oneof![Just(0.0), Just(0.9), 0.0..1.0], 1..8),
    ) {
        let mut board = Board::new(&source, &["vm"]);
        board.vms[0].state.weight = steps[0];
        let of = |weight: u64| {
            let at = steps.iter().position(|step| *step == weight).unwrap_or(0);
            parts[at % parts.len()]
        };
        let seconds = 20_000 + steps.len() as u64 * 30;
        let moves = board.moves(seconds, of);
        prop_assert!(moves.len() < 2 * steps.len() + 40, "{}", moves.len());
    }
}

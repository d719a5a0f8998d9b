//! Crashes as managers are told of them.

use std::vec::Vec;

use bulkhead_abi::control::{EVENT_STATE, Kind, Status, crash, right};
use bulkhead_abi::plan::Class;

use super::events::Changed;
use super::test_world::{Fake, World, request};
use crate::console::report::Reason;
use crate::console::stats::ExitStats;

fn crash(world: &World, life: u32) {
    let reason = Reason::Fault {
        syndrome: 20,
        address: 30,
        pc: 40,
        fault: None,
    };
    let stats = ExitStats::new(0);
    world.board.crash.keep(life, 3, &reason, &stats, 70);
    assert!(
        world.events.mark(1, Changed::State),
        "nobody serves the port"
    );
}

#[test]
fn a_crash_is_an_event_and_can_be_asked_for_afterwards() {
    let mut world = World::new(Fake::new(right::LIST, Class::General));
    let from = |n| request(Kind::Report, [n, 0, 0, 0]);
    let answer = world.ask(&from(0), 48).expect("at once");
    assert_eq!(answer.status, Status::Nothing as u16, "it has not crashed");
    let untold = world.ask(&request(Kind::Vm, [0; 4]), 48).expect("at once");
    assert_eq!(untold.values[10..], [0; 4]);
    crash(&world, 1);
    crash(&world, 2);
    let told: Vec<_> = core::iter::from_fn(|| world.event()).collect();
    let kinds: Vec<_> = told.iter().map(|it| (it.kind, it.vm)).collect();
    assert_eq!(kinds, [(EVENT_STATE, 1)]);
    assert_eq!(told[0].values[10..], [2, 20, 30, 40]);
    let answer = world.ask(&from(0), 48).expect("at once");
    let head = [2, 3, 20, 30, 40, crash::SERROR, 70, 0];
    assert_eq!(answer.values[..8], head);
    for n in [0, 2, crash::WORDS as u64 - 1] {
        let answer = world.ask(&from(n), 48).expect("at once");
        let first = [2, 3, 20].get(n as usize).copied().unwrap_or(0);
        assert_eq!((answer.status, answer.values[0]), (0, first), "word {n}");
    }
    for n in [crash::WORDS as u64, u64::MAX] {
        let answer = world.ask(&from(n), 48).expect("at once");
        assert_eq!(answer.status, Status::Value as u16, "word {n}");
    }
}

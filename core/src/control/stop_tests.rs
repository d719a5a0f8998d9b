//! VMs that are asked to stop.

use bulkhead_abi::control::{Kind, Status};

use super::Denied;
use super::test_world::{Fake, World, request};
use crate::cpu::power::{self, Phase};

#[test]
fn a_vm_is_asked_to_stop_if_its_description_says_how() {
    let mut world = World::new(Fake::all());
    let shutdown = request(Kind::Shutdown, [0; 4]);
    let answer = world.ask(&shutdown, 48).expect("at once");
    assert_eq!((answer.status, answer.values[0]), (0, 7_000));
    assert_eq!(
        (&*world.board.shut_down, &*world.board.orders),
        (&[1][..], &[][..])
    );
    let vm = world.ask(&request(Kind::Vm, [0; 4]), 48).expect("at once");
    assert_eq!(vm.values[9], 1 | 1500 << 32);
    world.board.phase = Phase::Asked(power::End::OrderedRestart);
    let vm = world.ask(&request(Kind::Vm, [0; 4]), 48).expect("at once");
    assert_eq!(vm.values[3], 6);
    // The first VM is not asked, whoever has the right.
    let mut own = shutdown;
    own.vm = 0;
    assert_eq!(world.status(&own), Some(Status::Unasked));
    own.kind = Kind::Vm as u16;
    assert_eq!(world.ask(&own, 48).expect("at once").values[9], 0);
    assert_eq!(world.board.shut_down, [1]);
    // While others give orders it waits, as any order does.
    world.board.busy = 1;
    assert_eq!(world.status(&shutdown), None);
    world.board.now = world.session.again().expect("a time");
    assert_eq!(world.answer().map(|it| it.values[0]), Some(7_000));
    world.board.denies = Some(Denied::Phase(Phase::Paused));
    let answer = world.ask(&shutdown, 48).expect("at once");
    assert_eq!((answer.status, answer.values[0]), (Status::Phase as u16, 3));
}

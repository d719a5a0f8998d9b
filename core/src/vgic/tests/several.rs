//! Several vCPUs: SGIs, routes, requests and answers.

use super::bench::Vm;
use crate::vgic::*;

type V2 = Vm<true>;
type V3 = Vm<false>;

fn sibling<const V: bool>() {
    let mut vm = Vm::<V>::ready(4, 4, &[]);
    vm.post_sgi(0, 1 << 2, 7);
    assert_eq!(vm.inbox, Notify(1 << 2));
    vm.post_sgi(1, 1 << 2, 7);
    assert_eq!(vm.inbox, Notify(1 << 2));
    let before = vm.boards[2].writes;
    vm.look();
    assert!(vm.boards[2].writes > before);
    assert_eq!(vm.acknowledge(2), Some(7));
    vm.end(2, 7);
    // On a GICv2 each sender's is one of its own.
    assert_eq!(vm.acknowledge(2), V.then_some(7));
    for n in [0, 1, 3] {
        assert_eq!(vm.acknowledge(n), None);
    }
}

#[test]
fn an_sgi_reaches_its_sibling_and_nobody_else() {
    sibling::<true>();
    sibling::<false>();
}

#[test]
fn a_route_moves_an_interrupt() {
    let mut vm = V3::ready(3, 4, &[(40, 140, false)]);
    vm.bits(0, 2, 1, 1 | 1 << 8);
    vm.post(32);
    vm.wire(0, 140, true);
    vm.route(1, 32, 2);
    vm.route(1, 40, 1);
    assert_eq!(vm.acknowledge(0), None);
    assert_eq!(vm.acknowledge(2), Some(32));
    assert_eq!(vm.acknowledge(1), Some(40));
    let _ = V2::ready(1, 4, &[]);
}

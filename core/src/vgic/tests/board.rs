//! Tests that a register write of the guest reaches the physical interrupt behind the virtual one,
//! and no other.

use std::{format, vec::Vec};

use super::bench::{Vm, Wire};
use crate::vgic::*;

type V3 = Vm<false>;

/// The hardware interrupts: two PPIs, two SPIs of word 1, and one of word 2.
const LINKS: [(u32, u32, bool); 5] = [
    (29, 28, false),
    (30, 26, true),
    (40, 140, true),
    (41, 141, false),
    (70, 170, true),
];

fn wires<const V: bool>(vm: &Vm<V>) -> Vec<(usize, u32, Wire)> {
    let mut wires = vm.wires.borrow_mut();
    let of = |pcpu| (0..32).map(move |pintid| (pcpu, pintid));
    of(0)
        .chain(of(1))
        .chain((32..288).map(|pintid| (0, pintid)))
        .map(|(pcpu, pintid)| (pcpu, pintid, *wires.at(pcpu, pintid)))
        .collect()
}

/// Returns the physical interrupts (pCPU, INTID) whose state has changed.
fn differ<const V: bool>(vm: &Vm<V>, before: &[(usize, u32, Wire)]) -> Vec<(usize, u32)> {
    wires(vm)
        .iter()
        .zip(before)
        .filter(|(now, before)| now != before)
        .map(|(now, _)| (now.0, now.1))
        .collect()
}

/// The states that the interrupts have before the write.
const STATES: [&str; 7] = [
    "idle",
    "enabled",
    "pending",
    "disabled while pending",
    "pending by a register",
    "active",
    "active by a register",
];

fn bring<const V: bool>(vm: &mut Vm<V>, n: usize, state: &str, words: &[(u64, u32)]) {
    let mut all = |bank: u64| {
        for (word, bits) in words {
            vm.bits(n, bank, *word, *bits);
        }
    };
    if state != "idle" {
        all(2);
    }
    match state {
        "pending by a register" => all(4),
        "active by a register" => all(6),
        _ => {}
    }
    if matches!(state, "pending" | "disabled while pending" | "active") {
        for (_, pintid, _) in LINKS {
            if words[0].0 != 0 && pintid >= 32 || words[0].0 == 0 && pintid < 32 {
                vm.wire(n, pintid, true);
            }
        }
        if state == "active" {
            while vm.acknowledge(n).is_some() {
                vm.boards[n].running.clear();
            }
        }
    }
    if state == "disabled while pending" {
        for (word, bits) in words {
            vm.bits(n, 3, *word, *bits);
        }
    }
}

/// Checks SPI 40, whatever has been done to it before: once cleared and enabled, it comes once for
/// an edge of its line, and once more for the next.
fn still_works<const V: bool>(vm: &mut Vm<V>, what: &str) {
    for bank in [3, 5, 7] {
        for word in 1..3 {
            vm.bits(0, bank, word, u32::MAX);
        }
    }
    for n in 0..2 {
        vm.boards[n].running.clear();
    }
    assert_eq!(vm.read_bits(1, 4, 1) & 0x500, 0, "{what}");
    assert_eq!(vm.read_bits(1, 6, 1), 0, "{what}");
    vm.route(0, 40, 1);
    vm.bits(0, 2, 1, 0x100);
    for _ in 0..2 {
        vm.wire(1, 140, false);
        assert_eq!(vm.drain(1), [], "{what}");
        vm.wire(1, 140, true);
        assert_eq!(vm.drain(1), [40], "{what}");
    }
    assert_eq!(vm.drain(0), [], "{what}");
}

fn spis<const V: bool>() {
    for owner in 0..3 {
        for state in STATES {
            for bank in 1..8 {
                let mut vm = Vm::<V>::ready(2, 8, &LINKS);
                if owner < 2 {
                    for intid in [40, 41, 42, 70] {
                        vm.route(0, intid, owner);
                    }
                }
                bring(&mut vm, owner % 2, state, &[(1, 0x300), (2, 0x40)]);
                if owner == 2 {
                    route_to_nobody(&mut vm);
                }
                let before = wires(&vm);
                // No physical interrupt backs 42.
                vm.bits(0, bank, 1, 0x500);
                let differ = differ(&vm, &before);
                let expected = if differ.is_empty() {
                    &[][..]
                } else {
                    &[(0, 140)]
                };
                assert_eq!(differ, expected, "bank {bank}, {state}, of {owner}");
                let wire = *vm.wires.borrow_mut().at(0, 140);
                match bank {
                    2 => assert!(wire.enabled, "{state}"),
                    3 => assert!(!wire.enabled, "{state}"),
                    6 => assert!(wire.active, "{state}"),
                    _ => {}
                }
                still_works(&mut vm, &format!("bank {bank}, {state}, of {owner}"));
            }
        }
    }
}

#[test]
fn a_register_of_spis_reaches_those_that_it_names() {
    spis::<true>();
    spis::<false>();
}

/// Routes the SPIs to no vCPU.
fn route_to_nobody<const V: bool>(vm: &mut Vm<V>) {
    for intid in [40, 41, 42, 70] {
        if V {
            vm.gicd_sized(0, 0x800 + intid, 1, 0);
        } else {
            vm.gicd_sized(0, 0x6000 + 8 * intid, 8, 1 << 32);
        }
    }
}

/// Makes an SPI active and ends it by register writes: its edge comes if it was pending, and only
/// once.
fn active_and_back<const V: bool>() {
    for owner in 0..3 {
        for state in STATES {
            let mut vm = Vm::<V>::ready(2, 8, &LINKS);
            for intid in [40, 41, 42, 70] {
                vm.route(0, intid, owner % 2);
            }
            bring(&mut vm, owner % 2, state, &[(1, 0x300), (2, 0x40)]);
            if owner == 2 {
                route_to_nobody(&mut vm);
            }
            vm.wire(0, 141, false);
            vm.bits(0, 6, 1, 0x100);
            assert_eq!(vm.read_bits(0, 6, 1) & 0x100, 0x100, "{state}, of {owner}");
            vm.route(1, 40, 1);
            vm.bits(1, 7, 1, 0x100);
            assert_eq!(vm.read_bits(0, 6, 1) & 0x100, 0, "{state}, of {owner}");
            vm.bits(1, 2, 1, 0x100);
            let comes = state.contains("pending");
            let expected: &[u32] = if comes { &[40] } else { &[] };
            vm.bits(0, 3, 1, 0x200);
            vm.bits(0, 3, 2, 0x40);
            assert_eq!(vm.drain(1), expected, "{state}, of {owner}");
            let wire = *vm.wires.borrow_mut().at(0, 140);
            assert!(!wire.active && !wire.pending, "{state}, of {owner}");
        }
    }
}

#[test]
fn an_edge_made_active_by_a_register_stays_pending_if_it_was() {
    active_and_back::<true>();
    active_and_back::<false>();
}

fn ppis<const V: bool>(writer: usize) {
    for state in STATES {
        for bank in 1..8 {
            let mut vm = Vm::<V>::ready(2, 8, &LINKS);
            bring(&mut vm, 1, state, &[(0, 0x6000_0000)]);
            let before = wires(&vm);
            // No physical interrupt backs 20.
            let bits = 1 << 30 | 1 << 20;
            if V {
                vm.gicd(1, bank * 0x80, bits);
            } else {
                vm.gicr(writer, 1, 0x1_0000 + bank * 0x80, bits);
            }
            let differ = differ(&vm, &before);
            let expected = if differ.is_empty() {
                &[][..]
            } else {
                &[(1, 26)]
            };
            assert_eq!(differ, expected, "bank {bank}, {state}, by {writer}");
            let wire = *vm.wires.borrow_mut().at(1, 26);
            match bank {
                2 => assert!(wire.enabled, "{state}"),
                3 => assert!(!wire.enabled, "{state}"),
                6 => assert!(wire.active, "{state}"),
                _ => {}
            }
        }
    }
}

#[test]
fn a_register_of_ppis_reaches_those_that_it_names() {
    ppis::<true>(1);
    ppis::<false>(1);
    ppis::<false>(0);
}

#[test]
fn a_vcpu_that_leaves_lets_go_of_its_own_on_the_board() {
    for state in STATES {
        let mut vm = V3::ready(2, 8, &LINKS);
        bring(&mut vm, 0, state, &[(0, 0x6000_0000)]);
        bring(&mut vm, 1, state, &[(0, 0x6000_0000)]);
        vm.bits(1, 2, 0, 1 << VTIMER);
        let before = wires(&vm);
        vm.leave(1);
        let mine = [(1, 26), (1, 27), (1, 28)];
        for at in differ(&vm, &before) {
            assert!(mine.contains(&at), "{at:?}, {state}");
        }
        for (pcpu, pintid) in mine {
            let wire = *vm.wires.borrow_mut().at(pcpu, pintid);
            let left = wire.enabled || wire.pending || wire.active;
            assert!(!left, "{pintid}, {state}: {wire:?}");
        }
    }
}

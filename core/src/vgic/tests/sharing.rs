//! Tests of the choice of list registers, and of interrupts that are active and pending, or
//! spilled.

use core::sync::atomic::Ordering::SeqCst;
use std::vec::Vec;

use super::bench::Vm;
use crate::vgic::*;

type V2 = Vm<true>;
type V3 = Vm<false>;

fn held<const V: bool>(vm: &Vm<V>) -> Vec<u64> {
    vm.boards[0].held().collect()
}

/// Returns the state of SPI 33, in the only list register in use, and whether a maintenance
/// interrupt is requested at its end.
fn only<const V: bool>(vm: &Vm<V>) -> (u64, bool) {
    let held = held(vm);
    assert_eq!(held.len(), 1, "{held:x?}");
    assert_eq!(lr::vintid(held[0]), 33);
    (held[0] & lr::STATE, held[0] & lr::EOI != 0)
}

/// Creates a VM in which SPI 33, edge-triggered, is active.
fn active<const V: bool>(lrs: usize) -> Vm<V> {
    let mut vm = Vm::<V>::ready(1, lrs, &[]);
    vm.bits(0, 2, 1, 0xfe);
    vm.gicd(0, 0xc08, 0xaaaa);
    for (intid, priority) in [(33, 0x80), (34, 0x40), (35, 0x60), (36, 0x20)] {
        vm.priority(0, intid, priority);
    }
    vm.post(33);
    assert_eq!(vm.acknowledge(0), Some(33));
    vm
}

fn again<const V: bool>() {
    let mut vm = active::<V>(4);
    assert_eq!(only(&vm), (lr::ACTIVE, false));
    vm.post(33);
    assert_eq!(only(&vm), (lr::STATE, false), "one list register for both");
    vm.end(0, 33);
    assert_eq!(vm.drain(0), [33]);

    let mut vm = active::<V>(4);
    vm.priority(0, 33, 0x10);
    vm.post(33);
    assert_eq!(
        only(&vm),
        (lr::ACTIVE, true),
        "active with another priority"
    );
    vm.end(0, 33);
    let entry = vm.boards[0].acknowledge().unwrap();
    assert_eq!((lr::vintid(entry), lr::priority(entry)), (33, 0x10));

    let mut vm = active::<V>(4);
    vm.bits(0, 1, 1, if V { 2 } else { 0 });
    vm.post(33);
    assert_eq!(only(&vm), (lr::ACTIVE, true), "active in another group");
    vm.end(0, 33);
    let entry = vm.boards[0].acknowledge().unwrap();
    assert_eq!(entry & lr::GROUP1 != 0, V);

    let mut vm = active::<V>(2);
    vm.post(33);
    assert_eq!(only(&vm), (lr::ACTIVE, true), "others may need it");
    vm.end(0, 33);
    assert_eq!(vm.drain(0), [33]);
}

#[test]
fn what_is_pending_again_shares_its_list_register_if_it_is_the_same() {
    again::<true>();
    again::<false>();
}

fn all_again<const V: bool>() {
    const ACTIVE: core::ops::Range<u32> = 16..25;
    const OTHER: u32 = 25;
    let mut vm = Vm::<V>::ready(1, 16, &[]);
    vm.bits(0, 2, 0, 0x3ff << 16);
    for intid in ACTIVE {
        vm.priority(0, intid, 0xf0 - 8 * (intid - 16) as u8);
        vm.bits(0, 4, 0, 1 << intid);
        assert_eq!(vm.acknowledge(0), Some(intid));
    }
    // With their new priority they cannot be pending in their list registers, and are more than one exit looks at.
    for intid in ACTIVE {
        vm.priority(0, intid, 0x10);
    }
    vm.priority(0, OTHER, 0x20);
    vm.bits(0, 4, 0, 0x3ff << 16);
    let pending: Vec<_> = held(&vm)
        .into_iter()
        .filter(|entry| entry & lr::STATE == lr::PENDING)
        .map(lr::vintid)
        .collect();
    assert_eq!(pending, [OTHER]);
    let all = held(&vm).into_iter();
    let told = all.filter(|entry| entry & lr::STATE == lr::ACTIVE && entry & lr::EOI != 0);
    assert_eq!(told.count(), ACTIVE.len());
    assert_eq!(vm.acknowledge(0), Some(OTHER));
    vm.end(0, OTHER);
    for intid in ACTIVE.rev() {
        vm.end(0, intid);
    }
    let mut rest = vm.drain(0);
    rest.sort_unstable();
    assert_eq!(rest, ACTIVE.collect::<Vec<_>>());
}

#[test]
fn many_that_wait_for_their_ends_keep_no_other_waiting() {
    all_again::<true>();
    all_again::<false>();
}

fn nobody_parks<const V: bool>() {
    let mut vm = active::<V>(3);
    vm.post(34);
    // Not more urgent than 34, which is pending: it waits, and 33 stays.
    vm.post(35);
    let intids: Vec<_> = held(&vm).iter().map(|entry| lr::vintid(*entry)).collect();
    assert_eq!(intids, [33, 34]);
    let asked = vm.boards[0].asked;
    assert!(asked.refill && !asked.eoi);
    // 37 is only as urgent as 34, so it waits too.
    vm.priority(0, 37, 0x40);
    vm.post(37);
    let intids: Vec<_> = held(&vm).iter().map(|entry| lr::vintid(*entry)).collect();
    assert_eq!(intids, [33, 34]);
    vm.bits(0, 5, 1, 0x20);
    // 36 is more urgent than 34, and takes its list register.
    vm.post(36);
    let intids: Vec<_> = held(&vm).iter().map(|entry| lr::vintid(*entry)).collect();
    assert_eq!(intids, [33, 36]);
    assert_eq!(vm.acknowledge(0), Some(36));
    // Nothing is pending in list registers: 33, the least urgent active one, is spilled.
    let asked = vm.boards[0].asked;
    assert!(asked.refill && asked.eoi);
    let intids: Vec<_> = held(&vm).iter().map(|entry| lr::vintid(*entry)).collect();
    assert_eq!(intids, [34, 36]);
    vm.end(0, 36);
    assert_eq!(vm.drain(0), [34, 35]);
    vm.end(0, 33);
    assert_eq!(vm.read_bits(0, 6, 1), 0);
}

#[test]
fn what_is_active_makes_way_only_if_nothing_is_pending_inside() {
    nobody_parks::<true>();
    nobody_parks::<false>();
}

fn line_and_register<const V: bool>() {
    // Pending by its line and by a register write; whichever ends first, it stays pending by the
    // other.
    for cleared_first in [false, true] {
        let mut vm = Vm::<V>::ready(1, 4, &[]);
        vm.bits(0, 2, 1, 2);
        vm.line(0, 33, true);
        vm.bits(0, 4, 1, 2);
        for turn in 0..2 {
            assert_eq!(vm.read_bits(0, 4, 1), 2);
            assert_eq!(vm.boards[0].held().count(), 1);
            if cleared_first == (turn == 0) {
                vm.bits(0, 5, 1, 2);
            } else {
                vm.line(0, 33, false);
            }
        }
        assert_eq!(vm.read_bits(0, 4, 1), 0);
        assert_eq!(vm.acknowledge(0), None);
    }
}

#[test]
fn a_level_is_pending_by_its_line_or_by_a_register() {
    line_and_register::<true>();
    line_and_register::<false>();
}

fn waits_by_both<const V: bool>() {
    for (by_line, by_register) in [(true, false), (false, true), (true, true)] {
        let mut vm = Vm::<V>::ready(1, 2, &[]);
        vm.bits(0, 2, 1, 6);
        vm.priority(0, 33, 0x80);
        vm.priority(0, 34, 0x40);
        vm.post(34);
        if by_line {
            vm.line(0, 33, true);
        }
        if by_register {
            vm.bits(0, 4, 1, 2);
        }
        assert_eq!(lr::vintid(held(&vm)[0]), 34);
        vm.priority(0, 33, 0x20);
        assert_eq!(lr::vintid(held(&vm)[0]), 33, "{by_line} {by_register}");
        // The same for a change while it is in a list register.
        vm.priority(0, 33, 0x28);
        let entry = held(&vm)[0];
        assert_eq!((lr::vintid(entry), lr::priority(entry)), (33, 0x28));
    }
}

#[test]
fn what_waits_follows_its_priority_whatever_it_is_pending_by() {
    waits_by_both::<true>();
    waits_by_both::<false>();
}

fn counted_before<const V: bool>() {
    let mut vm = active::<V>(2);
    // The guest has written EOIR for something that is not active.
    vm.boards[0].eoi_count = 3;
    vm.post(34);
    assert_eq!(vm.acknowledge(0), Some(34));
    assert_eq!(
        vm.read_bits(0, 6, 1),
        0b110,
        "33 is spilled, and has not ended"
    );
    vm.end(0, 34);
    vm.end(0, 33);
    assert_eq!(vm.read_bits(0, 6, 1), 0);
}

#[test]
fn ends_counted_before_anything_was_parked_end_nothing() {
    counted_before::<true>();
    counted_before::<false>();
}

fn in_turn<const V: bool>() {
    const ALL: [u32; 7] = [3, 20, 33, 49, 50, 64, 95];
    for first in ALL {
        let mut vm = Vm::<V>::ready(1, 2, &[]);
        for intid in ALL {
            let (word, bit) = (u64::from(intid / 32), 1 << (intid % 32));
            vm.bits(0, 2, word, bit);
            vm.priority(0, intid, if intid == first { 0x10 } else { 0x80 });
        }
        // While one that is more urgent is pending, the others wait.
        for intid in ALL {
            if intid < 16 {
                vm.sgi(0, 1, intid);
            } else {
                vm.bits(0, 4, u64::from(intid / 32), 1 << (intid % 32));
            }
            if intid == first {
                let held: Vec<_> = held(&vm).iter().map(|e| lr::vintid(*e)).collect();
                assert_eq!(held, [first]);
            }
        }
        let mut order: Vec<_> = ALL.iter().copied().filter(|n| *n > first).collect();
        order.extend(ALL.iter().copied().filter(|n| *n < first));
        order.insert(0, first);
        assert_eq!(vm.drain(0), order, "after {first}");
    }
}

#[test]
fn among_equals_it_goes_round_from_the_last_one() {
    in_turn::<true>();
    in_turn::<false>();
}

fn pending_again<const V: bool>(times: u32) {
    let mut vm = Vm::<V>::ready(1, 4, &[]);
    vm.bits(0, 2, 1, 2);
    // A level-sensitive SPI made pending by register writes, however often, is in a list register.
    for _ in 0..times {
        vm.bits(0, 4, 1, 2);
        assert_eq!(vm.read_bits(0, 4, 1), 2);
        assert_eq!(vm.dist.bank(0, 1).latch.load(SeqCst), 0);
    }
    vm.priority(0, 33, 0x40);
    assert_eq!(vm.read_bits(0, 4, 1), 2, "it has no line to be pending by");
    vm.bits(0, 3, 1, 2);
    assert_eq!(vm.read_bits(0, 4, 1), 2);
    vm.bits(0, 2, 1, 2);
    assert_eq!(vm.drain(0), [33]);
    assert_eq!(vm.read_bits(0, 4, 1), 0);
}

#[test]
fn a_level_made_pending_again_stays_pending() {
    for times in 1..4 {
        pending_again::<true>(times);
        pending_again::<false>(times);
    }
}

#[test]
fn an_active_interrupt_that_is_not_pending_again_after_all_stays_its_vcpus() {
    let mut vm = V3::ready(2, 16, &[]);
    for word in 1..3 {
        vm.gicd(0, 0xc00 + 8 * word, 0xaaaa_aaaa);
        vm.gicd(0, 0xc04 + 8 * word, 0xaaaa_aaaa);
        vm.bits(0, 2, word, 0xf_ffff);
    }
    vm.priority(0, 64, 0xf0);
    vm.post(64);
    assert_eq!(vm.acknowledge(0), Some(64));
    // vCPU 1 makes 20 other SPIs pending, and 64 again: too many looks for one exit.
    let write = |vm: &mut V3, offset: u64, value: u64| {
        let (cpu, dist, board) = (&mut vm.cpus[1], &vm.dist, &mut vm.boards[1]);
        let _them = cpu.gicd_write(dist, board, offset, 4, value);
    };
    write(&mut vm, 0x204, 0xf_ffff);
    let _all = vm.cpus[0].on_notify(&vm.dist, &mut vm.boards[0]);
    write(&mut vm, 0x208, 1);
    let _all = vm.cpus[0].on_notify(&vm.dist, &mut vm.boards[0]);
    assert_eq!(vm.dist.bank(0, 2).latch.load(SeqCst), 1, "64 waits");
    // vCPU 1 takes that back.
    write(&mut vm, 0x184, u64::from(u32::MAX));
    write(&mut vm, 0x288, 1);
    let _all = vm.cpus[0].on_notify(&vm.dist, &mut vm.boards[0]);
    assert_eq!(vm.dist.bank(0, 2).held.load(SeqCst), 1);
    assert_eq!(vm.dist.vcpu_words(0).holds.get(2), 1);
    vm.inbox = Notify(3);
    vm.settle();
    vm.route(0, 64, 1);
    vm.post(64);
    assert_eq!(vm.acknowledge(1), None, "active on vCPU 0");
}

/// Tests spilled interrupts of different groups: SGIs 4 and 5, and SPIs 40 and 41, of which the
/// second is in the other group, are active; more urgent ones have taken their list registers and
/// ended.
fn parked_groups<const V: bool>() {
    for (first, second, word) in [(4u32, 5u32, 0), (40, 41, 1)] {
        for swap in [false, true] {
            let mut vm = Vm::<V>::ready(3, 3, &[]);
            vm.bits(0, 2, 1, u32::MAX);
            let odd = if swap { first } else { second };
            let odd = 1u32 << (odd % 32);
            vm.bits(0, 1, word, if V { odd } else { !odd });
            vm.priority(0, first, 0x80);
            vm.priority(0, second, 0x60);
            let mut taken = Vec::new();
            for intid in [first, second] {
                if intid < 16 {
                    vm.sgi(2, 1, intid);
                } else {
                    vm.post(intid);
                }
                taken.push(vm.boards[0].acknowledge().unwrap());
                vm.settle();
            }
            for intid in [50, 51] {
                vm.post(intid);
                vm.priority(0, intid, 0x40 - 8 * (intid as u8 - 50));
                assert_eq!(vm.acknowledge(0), Some(intid));
            }
            assert_eq!(vm.read_bits(0, 6, word) & 0x330, 0x30 << (word * 4));
            for intid in [51, 50] {
                vm.end(0, intid);
            }
            vm.bits(0, 2, 0, 1 << 22);
            let mut back = held(&vm);
            back.sort_by_key(|entry| lr::vintid(*entry));
            let without = |entry: &u64| entry & !lr::EOI;
            assert_eq!(
                back.iter().map(without).collect::<Vec<_>>(),
                taken.iter().map(without).collect::<Vec<_>>()
            );
            for intid in [second, first] {
                vm.end(0, intid);
            }
            assert_eq!(vm.read_bits(0, 6, word), 0);
        }
    }
}

#[test]
fn group_priority_and_sender_come_back_with_what_was_parked() {
    parked_groups::<true>();
    parked_groups::<false>();
}

#[test]
fn an_sgi_made_active_by_a_register_has_no_sender() {
    for made in [3u32, 15] {
        let mut vm = V2::ready(3, 2, &[]);
        vm.bits(0, 2, 1, 2);
        vm.priority(0, made, 0x80);
        vm.priority(0, 33, 0x40);
        // Sent by vCPU 2, spilled, ended.
        vm.sgi(2, 1, made);
        assert_eq!(vm.acknowledge(0), Some(made));
        vm.post(33);
        assert_eq!(vm.acknowledge(0), Some(33));
        for intid in [33, made] {
            vm.end(0, intid);
        }
        vm.bits(0, 2, 0, 1 << 22);
        assert_eq!(held(&vm), []);
        vm.bits(0, 6, 0, 1 << made);
        let found: Vec<_> = held(&vm)
            .iter()
            .map(|e| (lr::vintid(*e), lr::source(*e)))
            .collect();
        assert_eq!(found, [(made, 0)]);
    }
}

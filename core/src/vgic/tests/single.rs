//! Tests with one vCPU: order, overflow, pre-emption, ends, level-sensitive and hardware
//! interrupts.

use std::vec::Vec;

use super::bench::Vm;
use crate::vgic::*;

type V2 = Vm<true>;
type V3 = Vm<false>;

/// Creates a VM with SGI n at priority 0x80 - 8n.
fn graded<const V: bool>(lrs: usize) -> Vm<V> {
    let mut vm = Vm::ready(1, lrs, &[]);
    for intid in 0..16 {
        vm.priority(0, intid, 0x80 - 8 * intid as u8);
    }
    vm
}

fn most_urgent_first<const V: bool>() {
    let mut vm = graded::<V>(4);
    for intid in [3, 1, 7, 2, 15, 9, 0, 12] {
        vm.sgi(0, 1, intid);
    }
    assert!(vm.boards[0].asked.refill);
    assert_eq!(vm.drain(0), [15, 12, 9, 7, 3, 2, 1, 0]);
    assert!(!vm.boards[0].asked.refill);
}

#[test]
fn more_interrupts_than_list_registers_arrive_most_urgent_first() {
    most_urgent_first::<true>();
    most_urgent_first::<false>();
}

/// Sends SGIs each more urgent than the one before, each while the one before is active.
fn nest<const V: bool>(split: bool) {
    let mut vm = graded::<V>(4);
    vm.boards[0].split = split;
    for intid in 0..16 {
        vm.sgi(0, 1, intid);
        assert_eq!(vm.acknowledge(0), Some(intid));
    }
    assert_eq!(vm.read_bits(0, 6, 0) & 0xffff, 0xffff, "all are active");
    assert!(vm.boards[0].asked.eoi);
    for intid in (0..16).rev() {
        vm.end(0, intid);
        assert_eq!(vm.read_bits(0, 6, 0) & 0xffff, (1 << intid) - 1);
    }
    assert_eq!(vm.boards[0].asked, Maintenance::default());
    assert_eq!(vm.boards[0].held().count(), 0);
}

#[test]
fn more_active_interrupts_than_list_registers_nest_and_end() {
    for split in [false, true] {
        nest::<true>(split);
        nest::<false>(split);
    }
}

#[test]
fn with_eoi_mode_1_they_end_in_any_order() {
    let mut vm = graded::<false>(4);
    vm.boards[0].split = true;
    for intid in 0..8 {
        vm.sgi(0, 1, intid);
        assert_eq!(vm.acknowledge(0), Some(intid));
    }
    for intid in (0..8).rev() {
        vm.boards[0].end(intid);
        vm.settle();
    }
    assert_eq!(vm.read_bits(0, 6, 0), 0xff, "a priority drop ends nothing");
    let mut left = 0xff;
    for intid in [2, 7, 0, 5, 1, 6, 4, 3] {
        vm.deactivate(0, intid);
        left &= !(1 << intid);
        assert_eq!(vm.read_bits(0, 6, 0), left);
    }
}

#[test]
fn what_waits_gets_a_register_although_others_stay_active() {
    // Three stay active with their priority dropped and keep the list registers, yet a less urgent
    // one must arrive.
    let mut vm = graded::<false>(4);
    vm.boards[0].split = true;
    for intid in [9, 8, 7] {
        vm.sgi(0, 1, intid);
        assert_eq!(vm.acknowledge(0), Some(intid));
        vm.boards[0].end(intid);
    }
    vm.sgi(0, 1, 1);
    assert_eq!(vm.acknowledge(0), Some(1));
}

#[test]
fn among_equals_nobody_waits_for_a_list_register_for_ever() {
    // Which of several equally urgent interrupts in list registers comes first is the hardware's
    // choice (IHI 0069H, 4.8), but all must get a list register.
    let mut vm = V3::ready(1, 4, &[]);
    vm.bits(0, 2, 1, u32::MAX);
    for intid in 0..4 {
        vm.sgi(0, 1, intid);
    }
    for intid in 32..40 {
        vm.post(intid);
    }
    // The handlers of the SGIs send them again each time.
    let mut placed = Vec::new();
    for _ in 0..40 {
        placed.extend(vm.boards[0].held().map(lr::vintid));
        let intid = vm.acknowledge(0).unwrap();
        if intid < 16 {
            vm.sgi(0, 1, intid);
        }
        vm.end(0, intid);
    }
    for intid in (0..4).chain(32..40) {
        assert!(placed.contains(&intid), "{intid} {placed:?}");
    }
}

#[test]
fn a_masked_timer_does_not_hide_that_registers_are_free() {
    let mut vm = graded::<false>(4);
    vm.priority(0, 27, 0xa0);
    vm.bits(0, 2, 0, 1 << 27);
    vm.wire(0, 27, true);
    vm.boards[0].mask = 0x90;
    for intid in 0..8 {
        vm.sgi(0, 1, intid);
    }
    assert_eq!(vm.drain(0), [7, 6, 5, 4, 3, 2, 1, 0]);
    vm.boards[0].mask = 0x100;
    assert_eq!(vm.acknowledge(0), Some(27));
}

#[test]
fn a_group_that_is_off_in_the_cpu_interface_blocks_nobody() {
    let mut vm = graded::<false>(4);
    // SGIs 8 to 15, the urgent ones, in group 0, which the guest does not take.
    vm.bits(0, 1, 0, 0xff);
    vm.boards[0].groups = 2;
    for intid in (0..16).rev() {
        vm.inbox |=
            vm.cpus[0].send_sgi(&vm.dist, &mut vm.boards[0], 1 << 0 | intid << 24, intid < 8);
        vm.settle();
    }
    assert_eq!(vm.drain(0), [7, 6, 5, 4, 3, 2, 1, 0]);
    vm.boards[0].groups = 3;
    vm.settle();
    assert_eq!(vm.drain(0), [15, 14, 13, 12, 11, 10, 9, 8]);
}

fn sent_again<const V: bool>() {
    let mut vm = Vm::<V>::ready(1, 4, &[]);
    vm.sgi(0, 1, 5);
    vm.sgi(0, 1, 5);
    assert_eq!(vm.acknowledge(0), Some(5));
    vm.sgi(0, 1, 5);
    vm.sgi(0, 1, 5);
    assert_eq!(vm.read_bits(0, 6, 0), 1 << 5);
    assert_eq!(vm.read_bits(0, 4, 0), 1 << 5);
    vm.end(0, 5);
    assert_eq!(vm.acknowledge(0), Some(5));
    vm.end(0, 5);
    assert_eq!(vm.acknowledge(0), None);
}

#[test]
fn an_sgi_sent_again_while_active_comes_again_once() {
    sent_again::<true>();
    sent_again::<false>();
}

#[test]
fn the_timer_has_its_list_register_ready_and_follows_the_guest() {
    let mut vm = V3::ready(1, 4, &[]);
    assert_eq!(vm.cpus[0].vtimer_entry(), 0);
    vm.priority(0, 27, 0x20);
    vm.bits(0, 2, 0, 1 << 27);
    assert!(vm.wires.borrow_mut().at(0, 27).enabled);
    let entry = vm.cpus[0].vtimer_entry();
    assert_eq!(entry, lr::entry(27, 0x20, true) | lr::hw(27) | lr::PENDING);
    vm.wire(0, 27, true);
    assert_eq!(vm.boards[0].lrs[0], entry);
    assert_eq!(vm.read_bits(0, 4, 0), 1 << 27);
    // The guest disables it before it takes it: it is back in the physical GIC, disabled there.
    vm.bits(0, 3, 0, 1 << 27);
    assert_eq!((vm.boards[0].lrs[0], vm.cpus[0].vtimer_entry()), (0, 0));
    let wire = *vm.wires.borrow_mut().at(0, 27);
    assert!(!wire.enabled && !wire.active);
    assert_eq!(vm.read_bits(0, 4, 0), 1 << 27, "its line is still up");
    vm.bits(0, 2, 0, 1 << 27);
    assert_eq!(vm.acknowledge(0), Some(27));
    vm.wire(0, 27, false);
    vm.end(0, 27);
    assert_eq!(vm.acknowledge(0), None);
    assert!(!vm.wires.borrow_mut().at(0, 27).active);
}

fn level<const V: bool>() {
    let mut vm = Vm::<V>::ready(1, 4, &[]);
    vm.bits(0, 2, 1, 2);
    vm.line(0, 33, true);
    assert_eq!(vm.acknowledge(0), Some(33));
    assert_eq!(vm.read_bits(0, 4, 1), 2, "up, so pending as well");
    vm.end(0, 33);
    assert_eq!(vm.acknowledge(0), Some(33), "the line is still up");
    vm.line(0, 33, false);
    vm.end(0, 33);
    assert_eq!(vm.acknowledge(0), None);
    assert_eq!(vm.read_bits(0, 4, 1), 0);
    // The line rises and falls before the guest takes the interrupt.
    vm.line(0, 33, true);
    vm.line(0, 33, false);
    assert_eq!(vm.acknowledge(0), None);
    // Pending by a register write as well: a falling line does not clear that.
    vm.line(0, 33, true);
    vm.bits(0, 4, 1, 2);
    vm.line(0, 33, false);
    assert_eq!(vm.drain(0), [33]);
    // A clear does not clear what is pending by the line.
    vm.line(0, 33, true);
    vm.bits(0, 5, 1, 2);
    assert_eq!(vm.read_bits(0, 4, 1), 2);
    assert_eq!(vm.acknowledge(0), Some(33));
}

#[test]
fn a_level_stays_pending_until_the_line_falls() {
    level::<true>();
    level::<false>();
}

#[test]
fn an_edge_stays_pending_when_the_line_falls() {
    let mut vm = V3::ready(1, 4, &[]);
    vm.bits(0, 2, 1, 2);
    vm.gicd(0, 0xc08, 8);
    vm.line(0, 33, true);
    vm.line(0, 33, false);
    assert_eq!(vm.drain(0), [33]);
    vm.line(0, 33, true);
    vm.bits(0, 5, 1, 2);
    assert_eq!(
        vm.acknowledge(0),
        None,
        "an edge is cleared although the line is up"
    );
}

fn disabled<const V: bool>() {
    let mut vm = Vm::<V>::ready(1, 4, &[]);
    vm.bits(0, 3, 0, 1 << 4);
    vm.sgi(0, 1, 4);
    assert_eq!(vm.acknowledge(0), None);
    assert_eq!(vm.read_bits(0, 4, 0), 0x10);
    vm.bits(0, 2, 0, 1 << 4);
    assert_eq!(vm.drain(0), [4]);
    // Disabled while in a list register.
    vm.sgi(0, 1, 4);
    vm.bits(0, 3, 0, 1 << 4);
    assert_eq!(vm.acknowledge(0), None);
    vm.bits(0, 2, 0, 1 << 4);
    assert_eq!(vm.drain(0), [4]);
    // Disabled by the group enables while in a list register.
    vm.sgi(0, 1, 6);
    vm.gicd(0, 0, 0);
    assert_eq!(vm.acknowledge(0), None);
    assert_eq!(vm.read_bits(0, 4, 0), 0x40);
    vm.gicd(0, 0, 3);
    assert_eq!(vm.drain(0), [6]);
}

#[test]
fn disabled_interrupts_wait() {
    disabled::<true>();
    disabled::<false>();
}

fn hw<const V: bool>(edge: bool) {
    let mut vm = Vm::<V>::ready(1, 4, &[(40, 140, edge)]);
    vm.bits(0, 2, 1, 1 << 8);
    assert!(vm.wires.borrow_mut().at(0, 140).enabled);
    vm.wire(0, 140, true);
    assert!(vm.wires.borrow_mut().at(0, 140).active);
    assert_eq!(vm.acknowledge(0), Some(40));
    vm.wire(0, 140, false);
    vm.end(0, 40);
    assert!(!vm.wires.borrow_mut().at(0, 140).active);
    // The second time it takes the fast path.
    let before = vm.boards[0].writes;
    vm.wire(0, 140, true);
    assert_eq!(vm.boards[0].writes, before + 1);
    // Cleared before it is taken: a level-sensitive interrupt comes again, an edge is gone.
    vm.bits(0, 5, 1, 1 << 8);
    if edge {
        assert_eq!(vm.acknowledge(0), None);
        assert!(!vm.wires.borrow_mut().at(0, 140).active);
    } else {
        assert_eq!(vm.acknowledge(0), Some(40));
        vm.wire(0, 140, false);
        vm.end(0, 40);
    }
    // Disabled before it is taken: it stays pending in the physical GIC.
    vm.wire(0, 140, false);
    vm.wire(0, 140, true);
    vm.bits(0, 3, 1, 1 << 8);
    let wire = *vm.wires.borrow_mut().at(0, 140);
    assert!(!wire.active && !wire.enabled);
    assert_eq!(vm.read_bits(0, 4, 1), 1 << 8);
    assert_eq!(vm.acknowledge(0), None);
    vm.bits(0, 2, 1, 1 << 8);
    assert_eq!(vm.acknowledge(0), Some(40));
    vm.wire(0, 140, false);
    vm.bits(0, 7, 1, 1 << 8);
    assert!(
        !vm.wires.borrow_mut().at(0, 140).active,
        "ended by a register"
    );
    assert_eq!(vm.boards[0].held().count(), 0);
}

#[test]
fn a_linked_interrupt_follows_the_guest_to_the_board() {
    for edge in [false, true] {
        hw::<true>(edge);
        hw::<false>(edge);
    }
}

#[test]
fn a_linked_interrupt_made_pending_by_a_register_comes_from_the_board() {
    let mut vm = V3::ready(1, 4, &[(40, 140, true)]);
    vm.bits(0, 4, 1, 1 << 8);
    assert!(vm.wires.borrow_mut().at(0, 140).pending);
    assert_eq!(vm.read_bits(0, 4, 1), 1 << 8);
    vm.bits(0, 2, 1, 1 << 8);
    assert_eq!(vm.drain(0), [40]);
    // Made active by a register write: it stays pending in the physical GIC until it ends.
    vm.bits(0, 6, 1, 1 << 8);
    vm.wire(0, 140, true);
    assert_eq!(vm.acknowledge(0), None);
    assert_eq!(vm.read_bits(0, 6, 1), 1 << 8);
    vm.bits(0, 7, 1, 1 << 8);
    assert_eq!(vm.drain(0), [40]);
}

#[test]
fn linked_interrupts_that_overflow_stay_active_on_the_board_and_end_there() {
    let links: Vec<_> = (0..6).map(|n| (40 + n, 140 + n, false)).collect();
    let mut vm = V3::ready(1, 4, &links);
    vm.boards[0].split = true;
    vm.bits(0, 2, 1, 0x3f00);
    for n in 0..6 {
        vm.priority(0, 40 + n, 0x80 - 8 * n as u8);
    }
    for n in 0..6 {
        vm.wire(0, 140 + n, true);
        assert_eq!(vm.acknowledge(0), Some(40 + n));
        vm.boards[0].end(40 + n);
        vm.wire(0, 140 + n, false);
    }
    for n in [3, 0, 5, 1, 4, 2] {
        assert!(vm.wires.borrow_mut().at(0, 140 + n).active);
        vm.deactivate(0, 40 + n);
        assert!(!vm.wires.borrow_mut().at(0, 140 + n).active);
    }
}

#[test]
fn group_and_priority_of_what_waits_in_a_list_register_follow_the_guest() {
    let mut vm = graded::<false>(4);
    vm.sgi(0, 1, 3);
    vm.sgi(0, 1, 2);
    vm.priority(0, 2, 0x10);
    assert_eq!(
        vm.boards[0].best().map(|n| lr::vintid(vm.boards[0].lrs[n])),
        Some(2)
    );
    vm.bits(0, 1, 0, !4);
    let entry = vm.boards[0].held().find(|e| lr::vintid(*e) == 2).unwrap();
    assert_eq!(entry & lr::GROUP1, 0);
    assert_eq!(vm.drain(0), [2, 3]);
}

#[test]
fn a_stopped_vm_leaves_nothing_behind() {
    let links = [(40, 140, false), (41, 141, true), (30, 30, false)];
    let mut vm = V2::ready(2, 4, &links);
    vm.bits(0, 2, 1, 0x300);
    for n in 0..2 {
        vm.bits(n, 2, 0, 1 << 27 | 1 << 30);
        vm.wire(n, 27, true);
        vm.wire(n, 30, true);
    }
    vm.wire(0, 140, true);
    vm.wire(0, 141, true);
    while vm.acknowledge(0).is_some() {}
    vm.wire(0, 141, false);
    vm.wire(0, 141, true);
    let wires = vm.stop();
    for n in 0..2 {
        for pintid in [27, 30, 140, 141] {
            let wire = *wires.borrow_mut().at(n, pintid);
            assert!(
                !wire.enabled && !wire.active && !wire.pending,
                "{pintid} {wire:?}"
            );
        }
    }
}

/// Tests SGI 0 and the PPIs of EL2 itself, which arrive in the same way as interrupts of the VM.
fn own_interrupts_of_el2<const V: bool>() {
    let mut vm = Vm::<V>::ready(1, 4, &[]);
    for pintid in 0..32 {
        let taken = vm.cpus[0].raise_fast(&vm.dist, &mut vm.boards[0], pintid);
        assert!(!taken, "{pintid} is none of the VM's");
    }
    assert_eq!(vm.boards[0].held().count(), 0);
}

#[test]
fn interrupts_that_the_vm_has_no_link_to_are_not_taken_for_its_own() {
    own_interrupts_of_el2::<true>();
    own_interrupts_of_el2::<false>();
}

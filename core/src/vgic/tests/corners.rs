//! Tests of rare cases in which an error loses or repeats an interrupt: two changes in one word,
//! requests that meet before a vCPU acts on them, spilled interrupts that return to a list
//! register.

use std::vec::Vec;

use super::bench::Vm;
use crate::vgic::*;

type V2 = Vm<true>;
type V3 = Vm<false>;

/// Writes to the distributor as vCPU `n`. The other vCPUs do not act on it yet.
fn write<const V: bool>(vm: &mut Vm<V>, n: usize, offset: u64, size: u64, value: u64) {
    let (cpu, dist, board) = (&mut vm.cpus[n], &vm.dist, &mut vm.boards[n]);
    vm.inbox |= cpu.gicd_write(dist, board, offset, size, value).1;
}

/// Writes to the redistributor of vCPU `of`, as vCPU `n`. The other vCPUs do not act on it yet.
fn write_private(vm: &mut Vm<false>, n: usize, of: u64, offset: u64, value: u64) {
    let (cpu, dist, board) = (&mut vm.cpus[n], &vm.dist, &mut vm.boards[n]);
    let at = of * GICR_SIZE + offset;
    vm.inbox |= cpu.gicr_write(dist, board, at, 4, value).1;
}

#[test]
fn those_to_notify_are_those_of_both() {
    assert_eq!(Notify(1) | Notify(3), Notify(3));
    let mut both = Notify(6);
    both |= Notify(5);
    assert_eq!(both, Notify(7));
}

#[test]
fn what_is_too_much_for_one_exit_concerns_nobody_else() {
    let mut vm = V3::ready(2, 4, &[]);
    // All words have to be scanned.
    let notify = vm.cpus[0].reset(&vm.dist, &mut vm.boards[0]);
    assert_eq!(notify, Notify(1));
}

#[test]
fn a_vm_has_no_more_spis_than_there_can_be() {
    let dist = Distributor::new();
    dist.reset(Version::V3, 1, 1000, 27);
    assert_eq!(dist.read_fast(4).unwrap() & 31, 8);
}

/// Creates a VM in which an SGI from vCPU `from` is active; a more urgent SPI has taken its list
/// register, and has ended.
fn spilled<const V: bool>(from: usize) -> Vm<V> {
    let mut vm = Vm::<V>::ready(3, 2, &[]);
    vm.bits(0, 2, 1, 2);
    vm.priority(0, 5, 0x80);
    vm.priority(0, 33, 0x40);
    vm.sgi(from, 1, 5);
    assert_eq!(vm.acknowledge(0), Some(5));
    vm.post(33);
    assert_eq!(vm.acknowledge(0), Some(33));
    vm.end(0, 33);
    vm
}

fn comes_back<const V: bool>() {
    let mut vm = spilled::<V>(2);
    // Any write that makes vCPU 0 run `sync_lrs`.
    vm.bits(0, 2, 0, 1 << 22);
    let held: Vec<_> = vm.boards[0].held().collect();
    assert_eq!(held.len(), 1);
    assert_eq!((lr::vintid(held[0]), held[0] & lr::STATE), (5, lr::ACTIVE));
    assert_ne!(held[0] & lr::EOI, 0, "another sender may wait for its end");
    assert_eq!(lr::source(held[0]), if V { 2 } else { 0 });
    assert!(!vm.boards[0].asked.eoi, "its end needs no interrupt");
    vm.end(0, 5);
    assert_eq!(vm.boards[0].eoi_count, 0);
    assert_eq!(vm.read_bits(0, 6, 0), 0);
}

#[test]
fn what_is_parked_comes_back_as_it_was() {
    comes_back::<true>();
    comes_back::<false>();
}

fn no_second<const V: bool>() {
    let mut vm = spilled::<V>(1);
    vm.post_sgi(1, 1, 5);
    vm.on_notify();
    let held: Vec<_> = vm.boards[0].held().collect();
    assert!(held.len() <= 1);
    assert!(
        held.iter().all(|entry| entry & lr::ACTIVE != 0),
        "a second list register for what is active: {held:x?}"
    );
    vm.settle();
    vm.end(0, 5);
    assert_eq!(vm.drain(0), [5]);
}

#[test]
fn an_sgi_that_is_parked_gets_no_second_list_register() {
    no_second::<true>();
    no_second::<false>();
}

#[test]
fn a_timer_made_active_by_a_register_has_its_list_register() {
    let mut vm = V3::ready(1, 4, &[]);
    vm.bits(0, 6, 0, 1 << VTIMER);
    let entry = vm.boards[0].lrs[VTIMER_LR as usize];
    assert_eq!((lr::vintid(entry), entry & lr::STATE), (VTIMER, lr::ACTIVE));
    assert_ne!(entry & lr::HW, 0);
}

fn active_edge<const V: bool>() {
    let mut vm = Vm::<V>::ready(1, 4, &[(41, 141, true)]);
    vm.bits(0, 2, 1, 1 << 9);
    vm.wire(0, 141, true);
    assert_eq!(vm.acknowledge(0), Some(41));
    vm.bits(0, 6, 1, 1 << 9);
    assert!(!vm.wires.borrow_mut().at(0, 141).pending);
    assert_eq!(vm.read_bits(0, 4, 1), 0);
}

#[test]
fn making_active_what_is_active_does_not_make_it_pending() {
    active_edge::<true>();
    active_edge::<false>();
}

#[test]
fn a_ppi_is_no_sgi_of_another_number() {
    let mut vm = V2::ready(2, 4, &[]);
    vm.bits(0, 2, 0, 1 << 16);
    vm.bits(0, 4, 0, 1 << 16);
    vm.bits(0, 3, 0, 1);
    vm.sgi(0, 1, 0);
    vm.bits(0, 2, 0, 1);
    let mut order = vm.drain(0);
    order.sort();
    assert_eq!(order, [0, 16]);
}

/// Makes an interrupt pending by a register write, then disables and enables it several times.
fn to_and_fro<const V: bool>(vcpu: usize, intid: u32, edge: bool) {
    let mut vm = Vm::<V>::ready(2, 4, &[(intid, 140, edge)]);
    let bit = 1 << (intid % 32);
    vm.route(0, intid, vcpu);
    vm.bits(0, 2, 1, bit);
    vm.bits(0, 4, 1, bit);
    for turn in 0..3 {
        assert_eq!(vm.boards[vcpu].held().count(), 1, "turn {turn}");
        vm.bits(0, 3, 1, bit);
        assert_eq!(vm.boards[vcpu].held().count(), 0);
        assert!(vm.wires.borrow_mut().at(0, 140).pending, "turn {turn}");
        vm.bits(0, 2, 1, bit);
    }
    assert_eq!(vm.drain(vcpu), [intid]);
}

#[test]
fn what_a_register_has_made_pending_stays_so_while_it_is_disabled() {
    for vcpu in 0..2 {
        for edge in [false, true] {
            to_and_fro::<true>(vcpu, 41, edge);
            to_and_fro::<false>(vcpu, 41, edge);
        }
    }
}

#[test]
fn a_request_to_make_active_follows_the_interrupt() {
    let mut vm = V3::ready(2, 4, &[]);
    vm.bits(0, 2, 1, 2);
    vm.gicd(0, 0xc08, 8);
    vm.route(0, 33, 1);
    // The request goes to vCPU 1, the owner. Before vCPU 1 acts on it, the SPI is routed to vCPU 0
    // and becomes pending.
    write(&mut vm, 0, 0x304, 4, 2);
    write(&mut vm, 0, 0x6000 + 33 * 8, 8, 0);
    vm.inbox |= vm.dist.post(33, 0);
    let _also = vm.cpus[0].on_notify(&vm.dist, &mut vm.boards[0]);
    vm.settle();
    assert_eq!(vm.read_bits(0, 6, 1), 2);
    assert_eq!(vm.acknowledge(0), None, "active");
    vm.bits(0, 7, 1, 2);
    assert_eq!(vm.drain(0), [33]);
}

fn line_and_latch<const V: bool>() {
    let mut vm = Vm::<V>::ready(2, 4, &[]);
    vm.bits(0, 2, 1, 2);
    vm.gicd(0, 0xc08, 8);
    vm.line(0, 33, true);
    assert_eq!(vm.acknowledge(0), Some(33));
    vm.route(0, 33, 1);
    vm.line(0, 33, false);
    vm.line(0, 33, true);
    assert_eq!(vm.acknowledge(1), None, "vCPU 0 has it");
    vm.end(0, 33);
    assert_eq!(vm.drain(1), [33]);
    // The line has not moved: no edge.
    vm.line(0, 33, true);
    assert_eq!(vm.drain(1), []);
    // Pending by its line and by a register.
    vm.line(0, 34, true);
    vm.bits(0, 4, 1, 4);
    vm.bits(0, 2, 1, 4);
    assert_eq!(vm.boards[0].held().count(), 1);
}

#[test]
fn an_interrupt_whose_line_is_up_may_be_latched_too() {
    line_and_latch::<true>();
    line_and_latch::<false>();
}

fn urgent_again<const V: bool>() {
    let mut vm = Vm::<V>::ready(1, 2, &[(40, 140, false)]);
    vm.bits(0, 2, 1, 0x102);
    vm.priority(0, 33, 0x40);
    vm.priority(0, 40, 0x80);
    vm.post(33);
    vm.wire(0, 140, true);
    vm.priority(0, 40, 0x20);
    assert_eq!(vm.acknowledge(0), Some(40));
}

#[test]
fn a_linked_interrupt_that_waits_follows_its_priority() {
    urgent_again::<true>();
    urgent_again::<false>();
}

#[test]
fn a_request_is_taken_back_for_the_interrupt_that_is_named() {
    let mut vm = V3::ready(2, 4, &[(30, 30, false)]);
    let both = 1 << 30 | 1 << VTIMER;
    write_private(&mut vm, 1, 0, 0x1_0200, both);
    write(&mut vm, 0, 0x284, 4, 1 << 30);
    write_private(&mut vm, 0, 0, 0x1_0280, 1 << VTIMER);
    vm.settle();
    assert_eq!(vm.read_bits(0, 4, 0), 1 << 30);
}

#[test]
fn what_waits_for_a_vcpu_that_is_off_can_be_cleared() {
    let mut vm = V3::ready(2, 4, &[(40, 140, false)]);
    vm.bits(0, 2, 1, 0x102);
    vm.route(0, 40, 1);
    vm.route(0, 33, 1);
    vm.wire(1, 140, true);
    vm.leave(1);
    vm.wire(1, 140, false);
    vm.post(33);
    vm.wires.borrow_mut().at(0, 0).active = true;
    vm.bits(0, 5, 1, 1 << 8);
    assert!(!vm.wires.borrow_mut().at(0, 140).active);
    assert_eq!(vm.read_bits(0, 4, 1), 2);
    assert!(
        vm.wires.borrow_mut().at(0, 0).active,
        "nothing of the board's"
    );
}

fn never_active<const V: bool>() {
    let mut vm = Vm::<V>::ready(2, 4, &[]);
    vm.bits(0, 2, 1, 2);
    vm.route(0, 33, 1);
    vm.post(33);
    write(&mut vm, 0, 0x304, 4, 2);
    write(&mut vm, 0, 0x384, 4, 2);
    vm.settle();
    assert_eq!(vm.read_bits(0, 6, 1), 0);
    assert_eq!(vm.drain(1), [33]);
}

#[test]
fn what_was_made_active_and_inactive_before_its_holder_looks_is_not_active() {
    never_active::<true>();
    never_active::<false>();
}

fn all_three<const V: bool>() {
    let mut vm = Vm::<V>::ready(2, 4, &[]);
    vm.bits(0, 2, 1, 2);
    vm.post_sgi(1, 1, 0);
    vm.post_sgi(1, 1, 1);
    vm.inbox |= vm.dist.post(33, 0);
    vm.settle();
    let mut order = vm.drain(0);
    order.sort();
    assert_eq!(order, [0, 1, 33]);
}

#[test]
fn sgis_beside_an_spi_are_all_seen() {
    all_three::<true>();
    all_three::<false>();
}

#[test]
fn an_sgi_comes_from_its_own_sender() {
    let mut vm = V2::ready(3, 4, &[]);
    vm.gicd(0, 0x180, 1 << 12 | 1 << 15);
    vm.sgi(2, 1, 12);
    vm.sgi(2, 1, 15);
    vm.sgi(1, 1, 3);
    let entry = vm.boards[0].acknowledge().unwrap();
    assert_eq!((lr::vintid(entry), lr::source(entry)), (3, 1));
    vm.end(0, 3);
    assert_eq!(vm.drain(0), []);
    vm.gicd(0, 0x100, 1 << 12 | 1 << 15);
    for intid in [12, 15] {
        let entry = vm.boards[0].acknowledge().unwrap();
        assert_eq!((lr::vintid(entry), lr::source(entry)), (intid, 2));
        vm.end(0, intid);
    }
}

#[test]
fn senders_of_an_sgi_take_turns() {
    let mut vm = V2::ready(3, 4, &[]);
    vm.sgi(1, 1, 7);
    vm.sgi(2, 1, 7);
    let mut senders = Vec::new();
    for _ in 0..12 {
        let entry = vm.boards[0].acknowledge().unwrap();
        senders.push(lr::source(entry));
        // The same vCPU sends it again.
        vm.sgi(lr::source(entry) as usize, 1, 7);
        vm.end(0, 7);
    }
    // The short cuts do not take turns into account, so the order is not strict.
    for sender in [1, 2] {
        let turns = senders.iter().filter(|n| **n == sender).count();
        assert!(turns >= 3, "{senders:?}");
    }
}

fn two_ready<const V: bool>() {
    let mut vm = Vm::<V>::ready(1, 4, &[(40, 140, true), (70, 170, true)]);
    vm.bits(0, 2, 1, 1 << 8);
    vm.bits(0, 2, 2, 1 << 6);
    for wire in [140, 170] {
        vm.wire(0, wire, true);
        vm.wire(0, wire, false);
    }
    assert_eq!(vm.drain(0).len(), 2);
    for (intid, wire) in [(40, 140), (70, 170)] {
        vm.priority(0, intid, 0x10);
        vm.wire(0, wire, true);
        let entry = vm.boards[0].acknowledge().unwrap();
        assert_eq!((lr::vintid(entry), lr::priority(entry)), (intid, 0x10));
        vm.end(0, intid);
    }
}

#[test]
fn entries_that_are_ready_follow_the_priorities_of_each_word() {
    two_ready::<true>();
    two_ready::<false>();
}

#[test]
fn a_gicv3_has_no_registers_of_a_gicv2() {
    let mut vm = V3::ready(2, 4, &[]);
    for offset in (0xfd0..0x1000).step_by(4) {
        assert_eq!(vm.gicd_read(0, offset), 0, "{offset:#x}");
    }
    vm.gicd(0, 0xf00, 1 << 16 | 3);
    vm.gicd(0, 0xf00, 1 << 17 | 3);
    assert_eq!((vm.acknowledge(0), vm.acknowledge(1)), (None, None));
}

#[test]
fn a_byte_of_a_redistributor_is_that_of_its_interrupt() {
    let mut vm = V3::ready(2, 4, &[]);
    vm.priority(1, 5, 0x40);
    vm.priority(1, 26, 0x50);
    let mut read = |at: u64, size: u64| {
        let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
        cpu.gicr_read(dist, board, GICR_SIZE + at, size).0
    };
    assert_eq!(read(0x1_0405, 1), Answer::Value(0x40));
    assert_eq!(read(0x1_041a, 1), Answer::Value(0x50));
    for (at, size) in [(0x1_0100, 2), (0x1_0100, 8), (0x10, 8), (0x1_0402, 4)] {
        assert_eq!(read(at, size), Answer::Value(0), "{at:#x}, {size} bytes");
    }
}

#[test]
fn the_private_interrupts_of_another_are_not_ones_own() {
    let mut vm = V3::ready(2, 4, &[]);
    vm.sgi(0, 1, 3);
    assert_eq!(vm.gicr_read(0, 0, 0x1_0200), 8);
    assert_eq!(vm.gicr_read(0, 1, 0x1_0200), 0);
}

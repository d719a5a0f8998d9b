//! Tests of pending and active state that register writes make and clear, and of which vCPU has the
//! interrupt afterwards.

use super::bench::Vm;
use crate::vgic::*;

type V2 = Vm<true>;
type V3 = Vm<false>;

fn only_one<const V: bool>() {
    let mut vm = Vm::<V>::ready(1, 4, &[]);
    vm.bits(0, 2, 1, 2);
    vm.post(33);
    vm.priority(0, 33, 0x40);
    let held: std::vec::Vec<_> = vm.boards[0].held().collect();
    assert_eq!((held.len(), lr::priority(held[0])), (1, 0x40));
}

#[test]
fn the_only_pending_spi_follows_its_priority() {
    only_one::<true>();
    only_one::<false>();
}

fn cleared_level<const V: bool>() {
    let mut vm = Vm::<V>::ready(1, 4, &[(40, 140, false), (41, 141, false)]);
    // Both are made pending by register writes; one is cleared.
    vm.bits(0, 4, 1, 0x300);
    vm.bits(0, 5, 1, 0x100);
    assert_eq!(vm.read_bits(0, 4, 1), 0x200);
    // Pending by its line and in a list register, then back in the physical GIC by a disable; then
    // the line falls.
    vm.wire(0, 140, true);
    vm.bits(0, 2, 1, 0x300);
    assert_eq!(vm.boards[0].held().count(), 2);
    vm.bits(0, 3, 1, 0x300);
    vm.wire(0, 140, false);
    assert_eq!(
        vm.read_bits(0, 4, 1),
        0x200,
        "the line has fallen; what a register has made pending stays"
    );
}

#[test]
fn a_cleared_linked_level_is_pending_by_its_line_alone() {
    cleared_level::<true>();
    cleared_level::<false>();
}

fn active_level<const V: bool>() {
    let mut vm = Vm::<V>::ready(1, 4, &[(40, 140, false)]);
    vm.bits(0, 2, 1, 1 << 8);
    vm.wire(0, 140, true);
    assert_eq!(vm.boards[0].held().count(), 1);
    vm.bits(0, 6, 1, 1 << 8);
    vm.wire(0, 140, false);
    vm.bits(0, 7, 1, 1 << 8);
    assert_eq!(vm.read_bits(0, 4, 1), 0);
    assert_eq!(vm.acknowledge(0), None);
}

#[test]
fn a_linked_level_made_active_while_pending_still_follows_its_line() {
    active_level::<true>();
    active_level::<false>();
}

fn nobodys<const V: bool>() {
    let mut vm = Vm::<V>::ready(2, 4, &[(40, 140, true)]);
    vm.bits(0, 2, 1, 0x101);
    for intid in [32, 40] {
        if V {
            vm.gicd_sized(0, 0x800 + intid, 1, 0);
        } else {
            vm.gicd_sized(0, 0x6000 + 8 * intid, 8, 1 << 32);
        }
    }
    vm.bits(1, 6, 1, 0x101);
    assert_eq!(vm.read_bits(0, 6, 1), 0x101);
    assert!(vm.wires.borrow_mut().at(0, 140).active);
    vm.post(32);
    vm.wire(1, 140, true);
    for intid in [32, 40] {
        vm.route(0, intid, 1);
    }
    assert_eq!(vm.acknowledge(1), None, "active");
    assert_eq!(vm.read_bits(0, 6, 1), 0x101);
    vm.bits(0, 7, 1, 0x101);
    assert_eq!(vm.drain(1), [32, 40]);
}

#[test]
fn an_interrupt_of_nobody_can_be_made_active() {
    nobodys::<true>();
    nobodys::<false>();
}

fn two_words<const V: bool>() {
    let mut vm = Vm::<V>::ready(2, 4, &[]);
    for word in 1..3 {
        vm.bits(0, 2, word, 1);
        vm.gicd(0, 0xc00 + 8 * word, 2);
    }
    vm.post(32);
    vm.post(64);
    assert_eq!(vm.acknowledge(0), Some(32));
    vm.end(0, 32);
    // vCPU 0 learns of the end of the first while it holds the second.
    vm.bits(0, 2, 0, 1 << 22);
    assert_eq!(vm.drain(0), [64]);
    for intid in [32, 64] {
        vm.route(0, intid, 1);
        vm.post(intid);
    }
    vm.priority(0, 64, 0x20);
    assert_eq!(vm.drain(1), [32, 64]);
}

#[test]
fn what_has_ended_in_two_words_is_free_for_others() {
    two_words::<true>();
    two_words::<false>();
}

fn routed_away<const V: bool>() {
    let mut vm = Vm::<V>::ready(2, 4, &[(40, 140, true)]);
    vm.bits(0, 2, 1, 1 << 8);
    vm.route(0, 40, 1);
    // pCPU 0 has acknowledged it before the guest routed it away.
    vm.wires.borrow_mut().at(0, 140).active = true;
    let notify = vm.cpus[0].raise(&vm.dist, &mut vm.boards[0], 40);
    assert_eq!(notify, Notify(2));
    vm.inbox |= notify;
    vm.settle();
    assert_eq!(vm.drain(1), [40]);
    assert!(!vm.wires.borrow_mut().at(0, 140).active);
}

#[test]
fn an_interrupt_that_comes_to_its_former_pcpu_reaches_its_vcpu() {
    routed_away::<true>();
    routed_away::<false>();
}

fn private<const V: bool>() {
    let mut vm = Vm::<V>::ready(1, 4, &[]);
    for intid in [15, 16, 31, 32, 63, 64, 95] {
        let (word, bit) = (u64::from(intid / 32), 1 << (intid % 32));
        vm.bits(0, 2, word, bit);
        if intid < 16 {
            vm.sgi(0, 1, intid);
        } else {
            vm.bits(0, 4, word, bit);
        }
        assert_eq!(vm.read_bits(0, 4, word), bit, "{intid}");
        assert_eq!(vm.drain(0), [intid]);
    }
}

#[test]
fn the_first_and_the_last_of_each_kind_arrive() {
    private::<true>();
    private::<false>();
}

#[test]
fn enabling_a_group_waits_for_nobody() {
    let mut vm = V3::ready(2, 4, &[]);
    vm.gicd(0, 0, 0);
    let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
    let (_, notify) = cpu.gicd_write(dist, board, 0, 4, 3);
    assert_eq!(notify.0 & 2, 2, "the other one looks");
    assert_eq!(vm.gicd_read(0, 0) >> 31, 0, "RWP");
    let mut vm = V2::ready(2, 4, &[]);
    vm.gicd(0, 0, 0);
    let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
    let (answer, _) = cpu.gicd_write(dist, board, 0, 4, 3);
    assert_eq!(answer, Answer::Value(0));
}

/// Tests that registers accept only the sizes that they have, bytes and aligned words.
fn odd_sizes<const V: bool>(registers: &[u64]) {
    let mut vm = Vm::<V>::ready(2, 4, &[]);
    for register in registers {
        let before = vm.gicd_read(0, *register);
        for (at, size) in [(0, 2), (0, 8), (1, 4), (2, 4), (3, 4), (1, 2), (4, 8)] {
            for value in [0, 0x0202_0202_0202_0202, u64::MAX] {
                vm.gicd_sized(0, register + at, size, value);
                let now = vm.gicd_read(0, *register);
                assert_eq!(now, before, "{register:#x} + {at}, {size} bytes");
            }
            assert_eq!(vm.gicd_read_sized(0, register + at, size) & 0xffff, 0);
        }
    }
}

#[test]
fn other_sizes_change_nothing_and_read_as_zero() {
    odd_sizes::<true>(&[
        0x84, 0x104, 0x184, 0x204, 0x284, 0x304, 0x384, 0x404, 0x420, 0x820, 0xc04, 0xc08, 0xf10,
        0xf20,
    ]);
    odd_sizes::<false>(&[0x84, 0x104, 0x184, 0x204, 0x284, 0x304, 0x384, 0x420, 0xc08]);
}

#[test]
fn other_sizes_change_nothing_in_a_redistributor() {
    let mut vm = V3::ready(2, 4, &[]);
    for register in [0x14, 0x1_0080, 0x1_0100, 0x1_0180, 0x1_0404, 0x1_0c04] {
        let before = vm.gicr_read(0, 1, register);
        for (at, size) in [(0, 2), (0, 8), (1, 4), (2, 4), (3, 4)] {
            for value in [0, 0x0202_0202_0202_0202, u64::MAX] {
                let at = GICR_SIZE + register + at;
                let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
                vm.inbox |= cpu.gicr_write(dist, board, at, size, value).1;
                vm.settle();
                let now = vm.gicr_read(0, 1, register);
                assert_eq!(now, before, "{register:#x} + {at:#x}, {size} bytes");
            }
        }
    }
}

#[test]
fn a_latch_of_no_sender_is_no_pending_sgi() {
    let mut vm = V2::ready(2, 4, &[]);
    let shared = vm.dist.vcpu_words(0);
    // The sender has set its source, the target takes the SGI by an earlier latch, and only then
    // the sender sets the latch.
    shared
        .bank
        .latch
        .fetch_or(0b110, core::sync::atomic::Ordering::SeqCst);
    shared.sources[2].store(0b10, core::sync::atomic::Ordering::SeqCst);
    assert_eq!(vm.read_bits(0, 4, 0), 0b100);
}

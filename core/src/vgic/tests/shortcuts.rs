//! Tests of the fast paths, the short cuts and the slow path: when each is taken, and what it must
//! not overtake.

use super::bench::Vm;
use crate::vgic::*;

type V2 = Vm<true>;
type V3 = Vm<false>;

fn takes_directly<const V: bool>(vm: &mut Vm<V>, pintid: u32) -> bool {
    vm.cpus[0].raise_fast(&vm.dist, &mut vm.boards[0], pintid)
}

/// Creates a VM with two hardware interrupts, edge-triggered, each taken once, so that its entry is
/// ready: 40 in word 1, 70 in word 2.
fn two_ready<const V: bool>() -> Vm<V> {
    let mut vm = Vm::<V>::ready(1, 4, &[(40, 140, true), (70, 171, true)]);
    for (word, intid, pintid) in [(1, 40, 140), (2, 70, 171)] {
        vm.bits(0, 2, word, 1 << (intid % 32));
        for _ in 0..2 {
            vm.wire(0, pintid, true);
            vm.wire(0, pintid, false);
            assert_eq!(vm.drain(0), [intid]);
        }
    }
    vm
}

fn ready_entries<const V: bool>() {
    let mut vm = two_ready::<V>();
    assert!(takes_directly(&mut vm, 140));
    assert_eq!(vm.drain(0), [40]);
    // The guest configures 70, which does not affect 40.
    vm.priority(0, 70, 0x40);
    assert!(!takes_directly(&mut vm, 171), "its priority has changed");
    assert!(takes_directly(&mut vm, 140), "its word has not");
    assert_eq!(vm.drain(0), [40]);
}

#[test]
fn a_change_forgets_the_ready_entries_of_its_own_word_only() {
    ready_entries::<true>();
    ready_entries::<false>();
}

#[test]
fn a_linked_interrupt_does_not_overtake_what_waits() {
    let mut vm = two_ready::<false>();
    // SGIs 0 to 2 fill the list registers, 3 waits; then the first list register becomes free.
    for intid in 0..4 {
        vm.sgi(0, 1, intid);
    }
    assert_eq!(vm.acknowledge(0), Some(0));
    vm.boards[0].end(0);
    assert_eq!(vm.boards[0].lrs[1] & lr::STATE, 0);
    assert!(!takes_directly(&mut vm, 140));
}

#[test]
fn an_sgi_hides_nothing_that_came_with_it() {
    fn both<const V: bool>() {
        let mut vm = Vm::<V>::ready(2, 4, &[]);
        vm.bits(0, 2, 1, 2);
        vm.post_sgi(1, 1, 3);
        vm.inbox |= vm.dist.post(33, 0);
        vm.settle();
        assert_eq!(vm.drain(0), [3, 33]);
    }
    both::<true>();
    both::<false>();
}

#[test]
fn an_sgi_of_a_gicv2_to_one_vcpu_takes_the_short_path() {
    let mut vm = V2::ready(2, 4, &[]);
    let mut send = |targets: u32| {
        let value = targets << 16 | 5;
        vm.cpus[0].send_sgir_fast(&vm.dist, &mut vm.boards[0], value)
    };
    assert_eq!(send(0b10), Some(Notify(2)));
    assert_eq!(send(0b01), Some(Notify::NOBODY));
    assert_eq!(send(0b11), None, "two targets");
    assert_eq!(send(0), None, "nobody");
    assert_eq!(send(0x200), None, "the filter \"this vCPU\"");
    assert_eq!(send(0x3fe), None, "a filter that does not exist");
    vm.inbox = Notify(2);
    vm.settle();
    assert_eq!((vm.drain(0), vm.drain(1)), ([5].into(), [5].into()));
}

#[test]
fn only_the_type_and_enables_of_spis_are_read_at_once() {
    let mut vm = V3::ready(1, 4, &[]);
    vm.bits(0, 2, 1, 0xf0);
    assert_eq!(vm.dist.read_fast(0x104), Some(0xf0));
    assert_eq!(vm.dist.read_fast(0x108), Some(0));
    assert_eq!(vm.dist.read_fast(4), Some(vm.gicd_read(0, 4)));
    for offset in [0, 0x100, 0x180, 0x184, 0x204] {
        assert_eq!(vm.dist.read_fast(offset), None, "{offset:#x}");
    }
}

fn untouched<const V: bool>() {
    let mut vm = Vm::<V>::ready(1, 6, &[]);
    // A level-sensitive SPI pending by its line, one pending by a register write, and an
    // edge-triggered one, all pending in list registers.
    vm.bits(0, 2, 1, 0xff);
    vm.gicd(0, 0xc08, 0b10 << 6);
    vm.line(0, 33, true);
    vm.bits(0, 4, 1, 1 << 2);
    vm.post(35);
    let before = vm.boards[0].writes;
    vm.bits(0, 4, 1, 1 << 4);
    assert_eq!(vm.boards[0].writes, before + 1);
    assert_eq!(vm.boards[0].held().count(), 4);
}

#[test]
fn what_stays_in_its_list_register_is_not_written_again() {
    untouched::<true>();
    untouched::<false>();
}

#[test]
fn list_registers_that_a_change_does_not_concern_are_read_once() {
    let mut vm = V3::ready(1, 6, &[]);
    vm.bits(0, 2, 1, 7);
    vm.bits(0, 2, 2, 3);
    for intid in 32..35 {
        vm.post(intid);
    }
    let before = vm.boards[0].reads.get();
    // Two at once are no short cut's.
    vm.bits(0, 4, 2, 3);
    assert_eq!(vm.boards[0].reads.get(), before + 3);
}

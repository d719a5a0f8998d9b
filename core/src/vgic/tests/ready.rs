//! Tests of precomputed entries: when a hardware interrupt may be written into a list register as
//! precomputed, and when not.

use core::sync::atomic::Ordering::SeqCst;

use super::bench::Vm;
use crate::vgic::*;

type V3 = Vm<false>;

/// Creates a VM in which hardware interrupt 40, edge-triggered, has been taken before, so that its
/// entry is ready, and SPI 33. Whether that is in the first list register or in the third depends
/// on `others`, SGIs that are pending.
fn ready<const V: bool>(others: u32) -> Vm<V> {
    let mut vm = Vm::<V>::ready(2, 4, &[(40, 140, true)]);
    vm.bits(0, 2, 1, 0x102);
    vm.bits(0, 2, 0, 1 << VTIMER);
    for _ in 0..2 {
        vm.wire(0, 140, true);
        vm.wire(0, 140, false);
        assert_eq!(vm.drain(0), [40]);
    }
    for intid in 0..others {
        vm.sgi(0, 1, intid);
    }
    vm
}

/// Tests the conditions of the fast path, with one of them failing at a time.
fn conditions<const V: bool>() {
    type Set<const V: bool> = fn(&mut Vm<V>);
    let conditions: [(&str, Set<V>); 6] = [
        ("the first list register is in use", |vm| vm.post(33)),
        ("something else is to be done", |vm| {
            vm.dist.vcpu_words(0).busy.store(4, SeqCst);
        }),
        ("something waits", |vm| {
            for intid in 0..4 {
                vm.sgi(0, 1, intid);
            }
            vm.boards[0].lrs[1] = 0;
        }),
        ("its priority has changed", |vm| vm.priority(0, 40, 0x40)),
        ("it is disabled", |vm| vm.bits(0, 3, 1, 0x100)),
        ("it is another's", |vm| vm.route(0, 40, 1)),
    ];
    for (why, set) in conditions {
        let mut vm = ready::<V>(0);
        set(&mut vm);
        let writes = vm.boards[0].writes;
        let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
        assert!(!cpu.raise_fast(dist, board, 140), "{why}");
        assert_eq!(vm.boards[0].writes, writes, "{why}");
    }
    let mut vm = ready::<V>(0);
    let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
    // Physical INTIDs that share its entry in `ready`, and those that an empty entry might match.
    for other in [132, 148, 12, 4, 0, 8, 139, 1164] {
        assert!(!cpu.raise_fast(dist, board, other), "{other}");
    }
    assert!(cpu.raise_fast(dist, board, 140));
    let entry = vm.boards[0].lrs[1];
    assert_eq!((lr::vintid(entry), lr::pintid(entry)), (40, 140));
    assert_eq!(entry & (lr::STATE | lr::HW), lr::PENDING | lr::HW);
    assert_eq!(vm.dist.vcpu_words(0).holds.get(1), 0x100);
    // List registers no longer hold only SGIs, so an SGI cannot go beside it unchecked.
    let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
    assert!(!cpu.send_sgi_beside(dist, board, 4 << 24 | 1));
}

#[test]
fn an_entry_that_is_ready_is_written_if_nothing_else_is_to_be_done() {
    conditions::<true>();
    conditions::<false>();
}

#[test]
fn the_first_and_the_last_physical_spi_have_entries_too() {
    let mut vm = V3::ready(1, 4, &[(40, 32, true), (41, 287, true)]);
    vm.bits(0, 2, 1, 0x300);
    for (intid, pintid) in [(40, 32), (41, 287)] {
        vm.wire(0, pintid, true);
        assert_eq!(vm.drain(0), [intid]);
        let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
        assert!(cpu.raise_fast(dist, board, pintid), "{pintid}");
        assert_eq!(vm.drain(0), [intid]);
    }
}

#[test]
fn the_arrival_of_one_leaves_those_of_others_ready_and_a_change_of_their_word_does_not() {
    let mut vm = V3::ready(2, 4, &[(40, 140, true), (41, 141, true)]);
    vm.bits(0, 2, 1, 0x300);
    for (intid, pintid) in [(40, 140), (41, 141)] {
        vm.wire(0, pintid, true);
        assert_eq!(vm.drain(0), [intid]);
    }
    let fast = |vm: &mut V3, pintid| {
        let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
        cpu.raise_fast(dist, board, pintid)
    };
    for (intid, pintid) in [(40, 140), (41, 141), (40, 140)] {
        assert!(fast(&mut vm, pintid), "{pintid}");
        assert_eq!(vm.drain(0), [intid]);
    }
    // Another vCPU has changed something of them, of which this one learns when one arrives.
    vm.dist.vcpu_words(0).busy.fetch_or(1 << 1, SeqCst);
    vm.wire(0, 140, false);
    vm.wires.borrow_mut().at(0, 140).pending = true;
    vm.settle();
    assert_eq!(vm.drain(0), [40]);
    assert!(!fast(&mut vm, 141));
    assert!(fast(&mut vm, 140));
    assert_eq!(vm.drain(0), [40]);
}

fn beside<const V: bool>() {
    let raise = |vm: &mut Vm<V>| {
        let before = (vm.boards[0].writes, vm.boards[0].reads.get());
        vm.wires.borrow_mut().at(0, 140).active = true;
        let notify = vm.cpus[0].raise(&vm.dist, &mut vm.boards[0], 40);
        assert_eq!(notify, Notify::NOBODY);
        let reads = vm.boards[0].reads.get() - before.1;
        (vm.boards[0].writes - before.0, reads)
    };
    // With SGIs in list registers: written to the next free one, without reading any.
    let mut vm = ready::<V>(2);
    assert_eq!(raise(&mut vm), (1, 0));
    assert_eq!(lr::vintid(vm.boards[0].lrs[3]), 40);
    assert_eq!(vm.dist.vcpu_words(0).holds.get(1), 0x100);
    vm.settle();
    assert_eq!(vm.drain(0), [0, 1, 40]);
    // No list register is free.
    let mut vm = ready::<V>(3);
    let (writes, reads) = raise(&mut vm);
    assert!(writes == 0 && reads != 0);
    vm.settle();
    assert_eq!(vm.drain(0), [0, 1, 2, 40]);
    // Other interrupts wait before it.
    let mut vm = ready::<V>(4);
    vm.boards[0].acknowledge().unwrap();
    vm.boards[0].end(0);
    assert_ne!(raise(&mut vm).1, 0);
    vm.settle();
    let mut order = vm.drain(0);
    order.sort();
    assert_eq!(order, [1, 2, 3, 40]);
    // There is something else to do: it has been disabled.
    let mut vm = ready::<V>(0);
    vm.dist.bank(0, 1).enable.fetch_and(!0x100, SeqCst);
    vm.dist.vcpu_words(0).busy.store(2, SeqCst);
    raise(&mut vm);
    assert_eq!(vm.boards[0].held().count(), 0);
    assert_eq!(vm.dist.bank(0, 1).latch.load(SeqCst), 0x100);
}

#[test]
fn a_ready_entry_finds_a_free_list_register_unread() {
    beside::<true>();
    beside::<false>();
}

fn never_ready<const V: bool>() {
    type Set<const V: bool> = fn(&mut Vm<V>);
    let conditions: [(&str, Set<V>, bool); 4] = [
        ("taken once", |_| {}, true),
        ("disabled", |vm| vm.bits(0, 3, 1, 0x100), false),
        ("its group is off", |vm| vm.gicd(0, 0, 0), false),
        ("pending by a register", |vm| vm.bits(0, 4, 1, 0x100), false),
    ];
    for (why, set, expected) in conditions {
        let mut vm = Vm::<V>::ready(1, 4, &[(40, 140, false)]);
        vm.bits(0, 2, 1, 0x100);
        set(&mut vm);
        if vm.boards[0].held().count() == 0 {
            vm.wires.borrow_mut().at(0, 140).active = true;
            let _nobody = vm.cpus[0].raise(&vm.dist, &mut vm.boards[0], 40);
        }
        for entry in &mut vm.boards[0].lrs {
            *entry = 0;
        }
        let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
        assert_eq!(cpu.raise_fast(dist, board, 140), expected, "{why}");
    }
}

#[test]
fn an_entry_gets_ready_when_it_is_wanted_and_plain() {
    never_ready::<true>();
    never_ready::<false>();
}

#[test]
fn an_interrupt_that_the_vm_does_not_have_is_not_raised() {
    let mut vm = ready::<false>(0);
    let before = vm.boards[0].writes;
    for intid in [96, 287, 288, 1019, u32::MAX] {
        let notify = vm.cpus[0].raise(&vm.dist, &mut vm.boards[0], intid);
        assert_eq!(notify, Notify::NOBODY);
        assert_eq!(vm.dist.post(intid, 0), Notify::NOBODY);
        assert_eq!(vm.dist.post_line(intid, true, 0), Notify::NOBODY);
        let notify = vm.cpus[0].deactivate(&vm.dist, &mut vm.boards[0], intid);
        assert_eq!(notify, Notify::NOBODY);
    }
    assert_eq!(vm.boards[0].writes, before);
    for word in 3..WORDS {
        let bank = vm.dist.bank(0, word);
        assert_eq!(bank.latch.load(SeqCst) | bank.level.load(SeqCst), 0);
    }
}

/// Tests the INTID field of ICC_DIR_EL1 and GICC_DIR: the bits `beside` are not part of it, `more`
/// is.
fn ends_by_name<const V: bool>(beside: u32, more: u32) {
    for (bits, is_ended) in [(0, true), (beside, true), (more, false), (1, false)] {
        let mut vm = Vm::<V>::ready(1, 4, &[]);
        vm.bits(0, 2, 1, 0x10);
        vm.boards[0].split = true;
        vm.post(36);
        assert_eq!(vm.acknowledge(0), Some(36));
        vm.boards[0].end(36);
        vm.deactivate(0, 36 | bits);
        assert_eq!(vm.read_bits(0, 6, 1) == 0, is_ended, "{bits:#x}");
    }
}

#[test]
fn a_write_to_dir_names_an_interrupt() {
    // GICC_DIR has 10 bits of INTID and the sender of an SGI, ICC_DIR_EL1 24 bits.
    ends_by_name::<true>(7 << 10, 1 << 9);
    ends_by_name::<false>(0xff << 24, 1 << 23);
}

#[test]
fn the_entry_of_the_timer_is_there_while_it_may_be_written() {
    let with = |set: fn(&mut V3)| {
        let mut vm = ready::<false>(0);
        set(&mut vm);
        vm.cpus[0].vtimer_entry()
    };
    let entry = with(|_| {});
    assert_eq!((lr::vintid(entry), lr::pintid(entry)), (VTIMER, 27));
    assert_eq!(entry & (lr::STATE | lr::HW), lr::PENDING | lr::HW);
    assert_eq!(with(|vm| vm.bits(0, 3, 0, 1 << VTIMER)), 0);
    assert_eq!(with(|vm| vm.gicd(0, 0, 0)), 0);
    let lower = with(|vm| vm.priority(0, VTIMER, 0x98));
    assert_eq!(lr::priority(lower), 0x98);
    let group0 = with(|vm| vm.bits(0, 1, 0, !(1 << VTIMER)));
    assert_eq!(group0 & lr::GROUP1, 0);
    assert_ne!(entry & lr::GROUP1, 0);
    // Another private interrupt is disabled.
    assert_eq!(with(|vm| vm.bits(0, 3, 0, 1 << 4)), entry);
    assert_eq!(with(|vm| vm.bits(0, 4, 0, 1 << VTIMER)), 0, "by a register");
    // An interrupt waits, and then waits no longer.
    let wait = |vm: &mut V3| {
        for intid in 0..4 {
            vm.sgi(0, 1, intid);
        }
    };
    assert_eq!(with(wait), 0);
    let mut vm = ready::<false>(0);
    wait(&mut vm);
    assert_eq!(vm.drain(0).len(), 4);
    assert_eq!(vm.cpus[0].vtimer_entry(), entry);
}

//! Tests with several vCPUs: SGIs, routes, requests, answers, starting and leaving.

use std::vec::Vec;

use super::bench::Vm;
use crate::vgic::*;

type V2 = Vm<true>;
type V3 = Vm<false>;

fn sibling<const V: bool>() {
    let mut vm = Vm::<V>::ready(4, 4, &[]);
    vm.post_sgi(0, 1 << 2, 7);
    assert_eq!(vm.inbox, Notify(1 << 2));
    let before = vm.boards[2].writes;
    vm.on_notify();
    assert_eq!(
        vm.boards[2].writes,
        before + 1,
        "one list register, by the short path"
    );
    assert_eq!(vm.drain(2), [7]);
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
fn an_sgi_that_is_sent_twice_notifies_once() {
    let mut vm = V3::ready(2, 4, &[]);
    let mut send =
        |intid: u64| vm.cpus[0].send_sgi_fast(&vm.dist, &mut vm.boards[0], intid << 24 | 2);
    assert_eq!(send(3), Some(Notify(2)));
    assert_eq!(send(3), Some(Notify::NOBODY));
    assert_eq!(send(4), Some(Notify(2)));
    vm.inbox = Notify(2);
    vm.settle();
    vm.drain(1).sort();
    assert_eq!(vm.acknowledge(1), None);
}

#[test]
fn on_a_gicv2_each_sender_counts() {
    let mut vm = V2::ready(4, 4, &[]);
    for n in [0, 1, 3, 1] {
        vm.post_sgi(n, 1 << 2, 7);
    }
    vm.settle();
    assert_eq!(vm.gicd_read_sized(2, 0xf17, 1), 0b1011);
    let mut senders = Vec::new();
    while let Some(entry) = vm.boards[2].acknowledge() {
        assert_eq!(lr::vintid(entry), 7);
        senders.push(lr::source(entry));
        // Sent again while active: by another vCPU, and by the same.
        if senders.len() == 1 {
            vm.sgi(2, 1 << 2, 7);
            vm.sgi(lr::source(entry) as usize, 1 << 2, 7);
        }
        assert!(
            vm.boards[2].held().count() == 1,
            "one list register for an SGI"
        );
        vm.end(2, 7);
    }
    let mut expected = [0, 1, 2, 3, senders[0]];
    expected.sort();
    senders.sort();
    assert_eq!(senders, expected);
}

#[test]
fn sgi_pending_registers_of_a_gicv2() {
    let mut vm = V2::ready(2, 4, &[]);
    vm.bits(1, 3, 0, 0xffff);
    vm.gicd_sized(1, 0xf20, 4, 0x0003_0201);
    assert_eq!(vm.gicd_read(1, 0xf20), 0x0003_0201);
    assert_eq!(vm.gicd_read(1, 0xf10), 0x0003_0201);
    assert_eq!(vm.gicd_read(0, 0xf20), 0, "they are banked");
    assert_eq!(vm.gicd_read(1, 0x200), 7);
    vm.gicd_sized(1, 0xf12, 1, 1);
    assert_eq!(vm.gicd_read(1, 0xf20), 0x0002_0201);
    vm.gicd_sized(1, 0xf10, 4, 0x0000_ff00);
    assert_eq!(vm.gicd_read(1, 0x200), 5);
    vm.gicd_sized(1, 0xf23, 1, 0xfc);
    assert_eq!(vm.gicd_read(1, 0x200), 5, "senders that do not exist");
    vm.bits(1, 4, 0, 0xffff);
    vm.bits(1, 5, 0, 0xffff);
    assert_eq!(vm.gicd_read(1, 0x200), 5, "not by the other registers");
    // Also where it is in a list register.
    vm.bits(1, 2, 0, 0xffff);
    assert_eq!(vm.boards[1].held().count(), 2);
    vm.gicd_sized(1, 0xf10, 4, 0xffff_ffff);
    assert_eq!(vm.acknowledge(1), None);
    assert_eq!(vm.gicd_read(1, 0xf20), 0);
}

#[test]
fn targets_of_an_sgi_on_a_gicv3() {
    let mut vm = V3::ready(4, 4, &[]);
    let mut reached = |value: u64, group1: bool| {
        vm.inbox |= vm.cpus[1].send_sgi(&vm.dist, &mut vm.boards[1], value, group1);
        vm.settle();
        (0..4).filter(|n| vm.drain(*n) == [3]).collect::<Vec<_>>()
    };
    let sgi = 3 << 24;
    assert_eq!(reached(sgi | 0b1101, true), [0, 2, 3]);
    assert_eq!(reached(sgi | 0xfff0, true), [], "none of the VM");
    assert_eq!(
        reached(sgi | 1 << 40, true),
        [0, 2, 3],
        "all but the sender"
    );
    assert_eq!(reached(sgi | 1 << 40 | 0xf, true), [0, 2, 3]);
    for other in [1 << 16, 1 << 32, 1 << 48, 1 << 44] {
        assert_eq!(
            reached(sgi | 0xf | other, true),
            [],
            "another affinity or range"
        );
    }
    assert_eq!(reached(sgi | 0xf, false), [], "all are in group 1");
    vm.gicr(0, 2, 0x1_0080, !8);
    let mut reached = |group1: bool| {
        vm.inbox |= vm.cpus[1].send_sgi(&vm.dist, &mut vm.boards[1], sgi | 0xf, group1);
        vm.settle();
        (0..4).filter(|n| vm.drain(*n) == [3]).collect::<Vec<_>>()
    };
    assert_eq!(reached(false), [2], "group 0 by the register for group 0");
    assert_eq!(reached(true), [0, 1, 2, 3]);
}

#[test]
fn targets_of_an_sgi_on_a_gicv2() {
    let mut vm = V2::ready(4, 4, &[]);
    let mut reached = |value: u32| {
        vm.gicd(1, 0xf00, value | 9);
        (0..4).filter(|n| vm.drain(*n) == [9]).collect::<Vec<_>>()
    };
    assert_eq!(reached(0b1011 << 16), [0, 1, 3]);
    assert_eq!(reached(0xf0 << 16), []);
    assert_eq!(reached(1 << 24 | 2 << 16), [0, 2, 3]);
    assert_eq!(reached(2 << 24 | 1 << 16), [1]);
    assert_eq!(reached(3 << 24 | 0xf << 16), []);
}

fn move_pending<const V: bool>() {
    let mut vm = Vm::<V>::ready(3, 4, &[(40, 140, false)]);
    vm.bits(0, 2, 1, 1 | 1 << 8);
    vm.post(32);
    vm.wire(0, 140, true);
    assert_eq!(vm.boards[0].held().count(), 2);
    vm.route(1, 32, 2);
    vm.route(1, 40, 1);
    assert_eq!(vm.acknowledge(0), None);
    assert_eq!(vm.acknowledge(2), Some(32));
    assert_eq!(vm.acknowledge(1), Some(40));
    assert_eq!(vm.wires.borrow_mut().at(0, 140).vcpu, 1);
    vm.wire(0, 140, false);
    vm.end(1, 40);
    assert!(!vm.wires.borrow_mut().at(0, 140).active);
}

#[test]
fn a_route_moves_what_is_pending() {
    move_pending::<true>();
    move_pending::<false>();
}

fn move_active<const V: bool>() {
    let mut vm = Vm::<V>::ready(2, 4, &[]);
    vm.bits(0, 2, 1, 1);
    vm.gicd(0, 0xc08, 2);
    vm.post(32);
    assert_eq!(vm.acknowledge(0), Some(32));
    vm.route(0, 32, 1);
    vm.post(32);
    assert_eq!(vm.acknowledge(1), None, "active on one vCPU at a time");
    assert_eq!(vm.read_bits(1, 6, 1), 1);
    assert_eq!(vm.read_bits(1, 4, 1), 1);
    vm.end(0, 32);
    assert_eq!(vm.drain(1), [32]);
    // Pending again before it is routed away.
    vm.route(0, 32, 0);
    vm.post(32);
    assert_eq!(vm.acknowledge(0), Some(32));
    vm.post(32);
    vm.route(1, 32, 1);
    assert_eq!(vm.acknowledge(1), None);
    vm.end(0, 32);
    assert_eq!(vm.acknowledge(0), None);
    assert_eq!(vm.drain(1), [32]);
}

#[test]
fn what_is_active_stays_until_it_ends_and_then_moves() {
    move_active::<true>();
    move_active::<false>();
}

#[test]
fn an_interrupt_that_goes_to_nobody_waits() {
    let mut vm = V2::ready(2, 4, &[(40, 140, true)]);
    vm.bits(0, 2, 1, 1 | 1 << 8);
    for intid in [32, 40] {
        vm.gicd_sized(0, 0x800 + intid, 1, 0xfc);
        assert_eq!(
            vm.gicd_read_sized(0, 0x800 + intid, 1),
            0,
            "vCPUs that do not exist"
        );
    }
    vm.post(32);
    vm.wire(0, 140, true);
    assert_eq!((vm.acknowledge(0), vm.acknowledge(1)), (None, None));
    assert_eq!(vm.read_bits(1, 4, 1), 0x101);
    vm.bits(1, 5, 1, 1 << 8);
    assert!(
        !vm.wires.borrow_mut().at(0, 140).active,
        "cleared although it is nobody's"
    );
    vm.gicd_sized(0, 0x820, 1, 2);
    assert_eq!(vm.drain(1), [32]);
    let mut vm = V3::ready(2, 4, &[]);
    vm.bits(0, 2, 1, 1);
    vm.gicd_sized(0, 0x6100, 8, 1 << 32);
    vm.post(32);
    assert_eq!((vm.acknowledge(0), vm.acknowledge(1)), (None, None));
    vm.gicd_sized(0, 0x6104, 4, 0);
    assert_eq!(vm.drain(0), [32]);
}

fn remote_state<const V: bool>() {
    let mut vm = Vm::<V>::ready(3, 4, &[]);
    vm.bits(0, 2, 1, u32::MAX);
    for intid in 32..35 {
        vm.route(0, intid, 1);
        vm.post(intid);
    }
    vm.priority(0, 33, 0xf0);
    vm.priority(0, 34, 0xf8);
    assert_eq!(vm.acknowledge(1), Some(32));
    let before = vm.repeats;
    assert_eq!(vm.read_bits(2, 4, 1), 0b110);
    assert_eq!(vm.read_bits(2, 6, 1), 0b001);
    assert_eq!(vm.repeats, before + 2, "each had to ask once");
    // No vCPU is asked that holds none of the interrupts.
    assert_eq!(vm.read_bits(2, 4, 2), 0);
    assert_eq!(vm.repeats, before + 2);
    vm.bits(0, 5, 1, 0b010);
    vm.bits(2, 7, 1, 0b001);
    assert_eq!(vm.read_bits(0, 4, 1), 0b100);
    assert_eq!(vm.read_bits(0, 6, 1), 0);
    vm.bits(2, 6, 1, 0b100);
    assert_eq!(vm.read_bits(0, 6, 1), 0b100);
    assert_eq!(vm.acknowledge(1), None, "active and pending");
    vm.bits(0, 6, 1, 0b1000);
    assert_eq!(vm.read_bits(2, 6, 1), 0b1100, "one that nobody had");
    vm.bits(1, 7, 1, 0b1100);
    vm.boards[1].running.clear();
    assert_eq!(vm.drain(1), [34]);
}

#[test]
fn pending_and_active_state_in_another_vcpus_list_registers() {
    remote_state::<true>();
    remote_state::<false>();
}

#[test]
fn a_remote_disable_shows_rwp_until_it_is_in_effect() {
    let mut vm = V3::ready(2, 4, &[]);
    vm.bits(0, 2, 1, 1);
    vm.route(0, 32, 1);
    vm.post(32);
    let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
    let (answer, notify) = cpu.gicd_write(dist, board, 0x184, 4, 1);
    assert_eq!((answer, notify), (Answer::Value(0), Notify(2)));
    let rwp = |vm: &mut V3, n: usize| vm.gicd_read(n, 0) >> 31;
    assert_eq!((rwp(&mut vm, 0), rwp(&mut vm, 1)), (1, 1));
    vm.inbox |= notify;
    vm.settle();
    assert_eq!(rwp(&mut vm, 0), 0);
    assert_eq!(vm.acknowledge(1), None);
    // If no vCPU has it, there is nothing to wait for.
    let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
    assert_eq!(cpu.gicd_write(dist, board, 0x188, 4, 1).1, Notify::NOBODY);
    assert_eq!(rwp(&mut vm, 0), 0);
    // Disabling a private interrupt of another vCPU, and a group.
    for (offset, is_gicr) in [(GICR_SIZE + 0x1_0180, true), (0, false)] {
        vm.bits(1, 2, 0, 2);
        vm.sgi(1, 2, 1);
        let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
        let (answer, notify) = if is_gicr {
            cpu.gicr_write(dist, board, offset, 4, 2)
        } else {
            cpu.gicd_write(dist, board, offset, 4, 0)
        };
        assert_eq!((answer, notify.0 & 2), (Answer::Value(0), 2));
        assert_eq!(vm.gicr_read(0, 1, 0) & 8, 8);
        assert_eq!(vm.gicr_read(0, 0, 0) & 8, 0);
        vm.inbox |= notify;
        vm.settle();
        assert_eq!(vm.gicr_read(0, 1, 0) & 8, 0);
        assert_eq!(vm.acknowledge(1), None);
    }
}

#[test]
fn a_remote_disable_on_a_gicv2_takes_until_it_is_in_effect() {
    let mut vm = V2::ready(2, 4, &[]);
    vm.bits(0, 2, 1, 1);
    vm.route(0, 32, 1);
    for (offset, value, back) in [(0x184, 1, 0x104), (0, 0, 0)] {
        vm.post(32);
        let write = |vm: &mut V2| {
            let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
            cpu.gicd_write(dist, board, offset, 4, value)
        };
        let (answer, notify) = write(&mut vm);
        assert_eq!((answer, notify.0 & 2), (Answer::Again, 2));
        assert_eq!(write(&mut vm), (Answer::Again, Notify::NOBODY));
        vm.inbox |= notify;
        vm.settle();
        assert_eq!(write(&mut vm), (Answer::Value(0), Notify::NOBODY));
        assert_eq!(vm.acknowledge(1), None);
        vm.gicd(0, back, if back == 0 { 3 } else { 1 });
        assert_eq!(vm.drain(1), [32]);
    }
}

#[test]
fn any_vcpu_may_set_up_any_redistributor() {
    let mut vm = V3::ready(3, 4, &[(30, 26, false)]);
    vm.gicr(0, 2, 0x1_0180, u32::MAX);
    vm.gicr(0, 2, 0x1_0100, 1 << 30 | 1 << 5 | 1 << 27);
    assert_eq!(vm.gicr_read(1, 2, 0x1_0100), 1 << 30 | 1 << 5 | 1 << 27);
    assert_ne!(vm.cpus[2].vtimer_entry(), 0, "the timer's entry follows");
    assert!(vm.wires.borrow_mut().at(2, 26).enabled);
    assert!(!vm.wires.borrow_mut().at(0, 26).enabled);
    vm.gicr(0, 2, 0x1_0200, 1 << 30 | 1 << 6);
    assert!(
        vm.boards[2]
            .held()
            .any(|e| lr::vintid(e) == 30 && lr::pintid(e) == 26)
    );
    assert_eq!(vm.gicr_read(0, 2, 0x1_0200), 1 << 30 | 1 << 6);
    assert_eq!(vm.acknowledge(2), Some(30));
    assert_eq!(vm.gicr_read(0, 2, 0x1_0300), 1 << 30);
    vm.gicr(0, 2, 0x1_0380, 1 << 30);
    assert!(!vm.wires.borrow_mut().at(2, 26).active);
    vm.gicr(0, 2, 0x1_0280, 1 << 6);
    assert_eq!(vm.gicr_read(0, 2, 0x1_0200), 0);
    vm.gicr(0, 2, 0x1_0180, 1 << 30);
    assert!(!vm.wires.borrow_mut().at(2, 26).enabled);
    vm.gicr(0, 2, 0x1_0300, 1 << 5);
    vm.boards[2].running.clear();
    vm.sgi(0, 4, 5);
    assert_eq!(vm.acknowledge(2), None, "made active by a sibling");
    vm.gicr(0, 2, 0x1_0380, 1 << 5);
    assert_eq!(vm.drain(2), [5]);
}

#[test]
fn a_vcpu_that_leaves_gives_back_and_one_that_starts_takes_up() {
    let mut vm = V3::ready(2, 4, &[(40, 140, false), (30, 30, false)]);
    vm.bits(0, 2, 1, 0x103);
    vm.bits(1, 2, 0, 1 << 30 | 1 << 27);
    for intid in [32, 33, 40] {
        vm.route(0, intid, 1);
    }
    vm.post(32);
    vm.wire(1, 140, true);
    vm.wire(1, 27, true);
    vm.sgi(0, 2, 4);
    vm.leave(1);
    vm.settle();
    assert_eq!(vm.boards[1].held().count(), 0);
    for pintid in [27, 30] {
        let wire = *vm.wires.borrow_mut().at(1, pintid);
        assert!(!wire.enabled && !wire.active, "{pintid}");
    }
    // A vCPU that is off is not notified, asked or waited for.
    vm.post_sgi(0, 2, 4);
    vm.post(33);
    assert_eq!(vm.inbox, Notify::NOBODY);
    assert_eq!(vm.dist.notify_all(), Notify(1));
    assert_eq!(vm.read_bits(0, 4, 1), 0x103);
    vm.bits(0, 3, 1, 2);
    assert_eq!(vm.gicd_read(0, 0) >> 31, 0);
    vm.bits(0, 2, 1, 2);
    assert_eq!(vm.gicr_read(0, 1, 0x1_0200), 0);
    // Another vCPU takes what is routed to it.
    vm.route(0, 40, 0);
    assert_eq!(vm.acknowledge(0), Some(40));
    vm.wire(0, 140, false);
    vm.end(0, 40);
    vm.start(1);
    vm.settle();
    assert_eq!(
        vm.gicr_read(1, 1, 0x1_0100),
        0,
        "private ones as after a reset"
    );
    assert_eq!(vm.gicr_read(1, 1, 0x14), 6);
    vm.drain(1)
        .iter()
        .zip([32, 33])
        .for_each(|(a, b)| assert_eq!(*a, b));
    assert_eq!(vm.read_bits(0, 4, 1), 0);
}

#[test]
fn two_that_ask_each_other_both_get_an_answer() {
    let mut vm = V3::ready(2, 4, &[]);
    vm.bits(0, 2, 1, 3);
    vm.route(0, 33, 1);
    vm.post(32);
    vm.post(33);
    let mut done = [false; 2];
    for _ in 0..4 {
        for (n, done) in done.iter_mut().enumerate() {
            let (answer, notify) = vm.cpus[n].gicd_read(&vm.dist, &mut vm.boards[n], 0x204, 4);
            vm.inbox |= notify;
            *done |= answer == Answer::Value(3);
        }
        vm.on_notify();
    }
    assert_eq!(done, [true, true]);
}

#[test]
fn lines_and_events_reach_the_owner_from_any_pcpu() {
    let mut vm = V3::ready(2, 4, &[]);
    vm.bits(0, 2, 1, 3);
    vm.route(0, 33, 1);
    // The device is emulated on vCPU 0, its interrupt is routed to vCPU 1.
    vm.line(0, 33, true);
    assert_eq!(vm.acknowledge(0), None);
    assert_eq!(vm.acknowledge(1), Some(33));
    vm.line(0, 33, false);
    vm.end(1, 33);
    assert_eq!(vm.acknowledge(1), None);
    // From a pCPU that runs another VM.
    assert_eq!(vm.dist.post_line(33, true, 0), Notify(2));
    assert_eq!(vm.dist.post_line(33, true, 0), Notify::NOBODY);
    vm.inbox = Notify(2);
    vm.settle();
    assert_eq!(vm.acknowledge(1), Some(33));
    vm.inbox |= vm.dist.post_line(33, false, 0);
    vm.end(1, 33);
    assert_eq!(vm.dist.post(32, 0), Notify(1));
    assert_eq!(vm.dist.post(32, 0), Notify::NOBODY);
    assert_eq!(vm.dist.post(96, 0), Notify::NOBODY, "the VM has 64 SPIs");
    vm.inbox = Notify(1);
    vm.settle();
    assert_eq!(vm.drain(0), [32]);
}

#[test]
fn a_request_hits_nothing_that_comes_after_it() {
    let mut vm = V3::ready(2, 4, &[(41, 141, true)]);
    vm.bits(0, 2, 1, 1 << 9);
    vm.wire(0, 141, true);
    vm.drain(0);
    vm.wire(0, 141, false);
    // vCPU 1 clears what is not pending; before vCPU 0 acts on that, the SGI becomes pending.
    for (offset, bit) in [(0x1_0280, 1 << 12), (0x1_0280, 1 << 3)] {
        let (cpu, dist, board) = (&mut vm.cpus[1], &vm.dist, &mut vm.boards[1]);
        let (_, notify) = cpu.gicr_write(dist, board, offset, 4, bit);
        vm.post_sgi(0, 1, bit.trailing_zeros());
        vm.inbox |= notify;
        vm.settle();
        assert_eq!(vm.drain(0), [bit.trailing_zeros()]);
    }
}

/// Tests that an interrupt that one vCPU clears for another is gone when the other acts on it.
fn cleared_is_gone<const V: bool>() {
    let mut vm = Vm::<V>::ready(4, 4, &[]);
    vm.route(0, 40, 1);
    vm.bits(0, 2, 1, 1 << 8);
    vm.bits(0, 4, 1, 1 << 8);
    assert_ne!(vm.read_bits(0, 4, 1) & 1 << 8, 0);
    let value = 1u64 << 8;
    let (_, notify) = vm.cpus[0].gicd_write(&vm.dist, &mut vm.boards[0], 0x284, 4, value);
    let (answer, more) = vm.cpus[0].gicd_read(&vm.dist, &mut vm.boards[0], 0x204, 4);
    assert_eq!(answer, Answer::Again);
    let _all = notify | more;
    let third = vm.cpus[1].on_notify(&vm.dist, &mut vm.boards[1]);
    assert!(third.is_empty());
    let (answer, _) = vm.cpus[0].gicd_read(&vm.dist, &mut vm.boards[0], 0x204, 4);
    assert_eq!(answer, Answer::Value(0));
}

#[test]
fn what_is_cleared_at_another_vcpu_does_not_show() {
    cleared_is_gone::<false>();
    cleared_is_gone::<true>();
}

//! Tests that an access notifies or asks each vCPU that it concerns, once, and no other vCPU.

use core::sync::atomic::Ordering::SeqCst;

use super::bench::Vm;
use crate::vgic::*;

type V2 = Vm<true>;
type V3 = Vm<false>;

/// Reads the distributor as vCPU `n`. The other vCPUs do not act on it yet.
fn read<const V: bool>(vm: &mut Vm<V>, n: usize, offset: u64) -> (Answer, Notify) {
    vm.cpus[n].gicd_read(&vm.dist, &mut vm.boards[n], offset, 4)
}

/// Reads word 0 of the redistributor of vCPU `of`, as vCPU `n`. The other vCPUs do not act on it
/// yet.
fn read_private(vm: &mut V3, n: usize, of: u64, offset: u64) -> (Answer, Notify) {
    let at = of * GICR_SIZE + offset;
    vm.cpus[n].gicr_read(&vm.dist, &mut vm.boards[n], at, 4)
}

/// Writes to the distributor as vCPU `n`; returns the vCPUs to notify.
fn write<const V: bool>(vm: &mut Vm<V>, n: usize, offset: u64, size: u64, value: u64) -> Notify {
    let (cpu, dist, board) = (&mut vm.cpus[n], &vm.dist, &mut vm.boards[n]);
    let (_, notify) = cpu.gicd_write(dist, board, offset, size, value);
    vm.inbox |= notify;
    notify
}

fn tickets<const V: bool>(vm: &Vm<V>) -> [u32; 4] {
    core::array::from_fn(|n| vm.dist.vcpu_words(n).asked.load(SeqCst))
}

const AGAIN: Answer = Answer::Again;

/// Creates a VM in which vCPU 1 has SPIs 33 and 65 in list registers, and vCPU 2 has 34.
fn spread_out<const V: bool>() -> Vm<V> {
    let mut vm = Vm::<V>::ready(4, 4, &[]);
    vm.bits(0, 2, 1, u32::MAX);
    vm.bits(0, 2, 2, u32::MAX);
    for (intid, vcpu) in [(33, 1), (65, 1), (34, 2)] {
        vm.gicd_sized(0, 0xc00 + u64::from(intid / 16 * 4), 4, 0xaaaa_aaaa);
        vm.route(0, intid, vcpu);
        vm.post(intid);
    }
    vm
}

fn asks<const V: bool>() {
    let mut vm = spread_out::<V>();
    assert_eq!(read(&mut vm, 0, 0x204), (AGAIN, Notify(0b110)));
    let asked = tickets(&vm);
    // The same access again, and through the other register with the same state.
    assert_eq!(read(&mut vm, 0, 0x204), (AGAIN, Notify::NOBODY));
    assert_eq!(read(&mut vm, 0, 0x284), (AGAIN, Notify::NOBODY));
    assert_eq!(tickets(&vm), asked, "nobody is asked twice");
    assert_eq!(read(&mut vm, 0, 0x384).0, AGAIN);
    let asked = tickets(&vm);
    assert_eq!(read(&mut vm, 0, 0x304), (AGAIN, Notify::NOBODY));
    assert_eq!(tickets(&vm), asked, "nobody is asked twice");
    // An access to another register has to ask again.
    for other in [0x208, 0x304, 0x204, 0x308, 0x288] {
        let before = tickets(&vm);
        assert_eq!(read(&mut vm, 0, other).0, AGAIN, "{other:#x}");
        let after = tickets(&vm);
        assert_eq!(after[1], before[1] + 1, "{other:#x}");
        let second = u32::from(other & 0x7f == 4);
        assert_eq!(after[2], before[2] + second, "{other:#x}");
        assert_eq!((after[0], after[3]), (before[0], before[3]), "{other:#x}");
    }
    // Both have to answer.
    vm.inbox = Notify::NOBODY;
    assert_eq!(read(&mut vm, 0, 0x204).0, AGAIN);
    vm.inbox = Notify(2);
    vm.on_notify();
    assert_eq!(read(&mut vm, 0, 0x204).0, AGAIN, "vCPU 2 has not answered");
    vm.inbox = Notify(0b110);
    vm.settle();
    assert_eq!(read(&mut vm, 0, 0x204), (Answer::Value(6), Notify::NOBODY));
    // An answer is good for one access.
    let before = tickets(&vm);
    assert_eq!(read(&mut vm, 0, 0x204), (AGAIN, Notify(0b110)));
    assert_ne!(tickets(&vm), before);
}

#[test]
fn a_read_asks_those_who_may_have_something_once() {
    asks::<true>();
    asks::<false>();
}

#[test]
fn a_read_of_private_state_asks_its_vcpu() {
    let mut vm = V3::ready(4, 4, &[]);
    for (of, offset, fresh) in [
        (1, 0x1_0200, true),
        (1, 0x1_0280, false),
        (1, 0x1_0300, true),
        (1, 0x1_0380, false),
        (2, 0x1_0380, true),
        (3, 0x1_0380, true),
        (1, 0x1_0380, true),
        (1, 0x1_0200, true),
    ] {
        let before = tickets(&vm);
        assert_eq!(read_private(&mut vm, 0, of, offset).0, AGAIN);
        let mut after = before;
        after[of as usize] += u32::from(fresh);
        assert_eq!(tickets(&vm), after, "{offset:#x} of {of}");
    }
    let before = tickets(&vm);
    let own = read_private(&mut vm, 0, 0, 0x1_0200);
    assert_eq!(own, (Answer::Value(0), Notify::NOBODY));
    vm.leave(2);
    let off = read_private(&mut vm, 0, 2, 0x1_0200);
    assert_eq!(off, (Answer::Value(0), Notify::NOBODY));
    assert_eq!(tickets(&vm), before);
    // A vCPU that is asked and goes off before it has answered.
    assert_eq!(read_private(&mut vm, 0, 3, 0x1_0200).0, AGAIN);
    vm.leave(3);
    assert_eq!(read_private(&mut vm, 0, 3, 0x1_0200).0, Answer::Value(0));
}

fn has_nothing<const V: bool>() {
    let mut vm = spread_out::<V>();
    assert_eq!(vm.acknowledge(1), Some(33));
    assert_eq!(vm.acknowledge(2), Some(34));
    vm.end(2, 34);
    // vCPU 2 looks at its list registers.
    vm.priority(2, 20, 0x40);
    vm.bits(0, 3, 1, 1 << 4);
    vm.route(0, 36, 1);
    vm.route(0, 66, 1);
    // The guest ends 33. vCPU 1 has more to scan than one exit does: 36, which is disabled, and 66.
    vm.boards[1].end(33);
    assert_eq!(read(&mut vm, 0, 0x204), (AGAIN, Notify(2)));
    let _told = vm.dist.post(36, 0) | vm.dist.post(66, 0);
    let notify = vm.cpus[1].on_notify(&vm.dist, &mut vm.boards[1]);
    assert_eq!(notify, Notify(2), "it has not come to the answer");
    assert_eq!(read(&mut vm, 0, 0x204).0, Answer::Value(0x10));
}

#[test]
fn nobody_waits_for_the_answer_of_a_vcpu_that_has_nothing_left() {
    has_nothing::<true>();
    has_nothing::<false>();
}

fn concerned<const V: bool>() {
    // Changes of group, priority and trigger of an SPI that is pending on vCPU 2.
    for (offset, size, value) in [
        (0x84, 4, if V { 2 } else { !2 }),
        (0x421, 1, 0x40),
        (0xc08, 4, 8),
    ] {
        for n in 0..3 {
            let mut vm = Vm::<V>::ready(4, 4, &[]);
            vm.bits(0, 2, 1, 6);
            vm.route(0, 33, 2);
            vm.route(0, 34, 1);
            vm.line(0, 34, true);
            vm.line(0, 33, true);
            let others = if n == 2 { Notify::NOBODY } else { Notify(4) };
            let notify = write(&mut vm, n, offset, size, value);
            assert_eq!(notify, others, "{offset:#x} by {n}");
            // A write that changes nothing, and one to an SPI that is not pending.
            vm.settle();
            assert_eq!(write(&mut vm, n, offset, size, value), Notify::NOBODY);
            let idle = write(&mut vm, n, 0x428, 1, 0x40);
            assert_eq!(idle, Notify::NOBODY, "by {n}");
        }
    }
}

#[test]
fn a_change_of_an_interrupt_concerns_its_vcpu_alone() {
    concerned::<true>();
    concerned::<false>();
}

/// Writes each register that changes state as vCPU 0, for SPI 33, which is routed to vCPU 2.
fn state_of_another<const V: bool>() {
    for (bank, waits) in [
        (2, true),
        (3, true),
        (4, true),
        (5, true),
        (6, true),
        (7, true),
    ] {
        let mut vm = Vm::<V>::ready(4, 4, &[]);
        vm.route(0, 33, 2);
        vm.route(0, 65, 1);
        if bank == 2 {
            vm.post(33);
        } else {
            vm.bits(0, 2, 1, 2);
            if bank != 4 {
                vm.post(33);
            }
        }
        let notify = write(&mut vm, 0, bank * 0x80 + 4, 4, 2);
        assert_eq!(notify, Notify(if waits { 4 } else { 0 }), "bank {bank}");
        vm.settle();
        // For an SPI that is not pending, not enabled and in no list register.
        if matches!(bank, 2 | 3 | 5 | 7) {
            let notify = write(&mut vm, 0, bank * 0x80 + 8, 4, 2);
            assert_eq!(notify, Notify::NOBODY, "bank {bank}");
        }
    }
}

#[test]
fn state_registers_notify_who_has_the_interrupt() {
    state_of_another::<true>();
    state_of_another::<false>();
}

#[test]
fn a_private_register_of_another_notifies_it() {
    for offset in [
        0x1_0080, 0x1_0100, 0x1_0180, 0x1_0200, 0x1_0280, 0x1_0300, 0x1_0380, 0x1_0400, 0x1_0c04,
    ] {
        let mut vm = V3::ready(4, 4, &[]);
        let value = match offset {
            0x1_0080 => !2,
            0x1_0100 => 1 << 20,
            0x1_0400 => 0x4040,
            _ => 2 | 2 << 16,
        };
        if offset == 0x1_0280 {
            vm.gicr(0, 2, 0x1_0200, 2);
        }
        let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
        let at = 2 * GICR_SIZE + offset;
        assert_eq!(
            cpu.gicr_write(dist, board, at, 4, value).1,
            Notify(4),
            "{offset:#x}"
        );
    }
}

#[test]
fn a_vcpu_is_called_while_it_runs_and_something_is_left_for_it() {
    fn calls<const V: bool>() {
        let mut vm = Vm::<V>::ready(3, 4, &[]);
        vm.bits(0, 2, 1, 2);
        vm.route(0, 33, 1);
        let called = |vm: &Vm<V>| [0, 1, 2].map(|n| vm.dist.calls(n));
        assert_eq!(called(&vm), [false; 3]);
        vm.post_sgi(0, 2, 3);
        assert_eq!(called(&vm), [false, true, false], "an SGI");
        vm.settle();
        assert_eq!(called(&vm), [false; 3]);
        vm.inbox |= vm.dist.post(33, 0);
        assert_eq!(called(&vm), [false, true, false], "an SPI");
        vm.settle();
        // The vCPU has already acted on a PPI that is pending and disabled.
        vm.bits(1, 4, 0, 1 << 20);
        assert_eq!(called(&vm), [false; 3]);
        vm.leave(1);
        let left = vm.dist.post(33, 0);
        assert_eq!(left, Notify::NOBODY);
        assert_eq!(called(&vm), [false; 3], "off");
        assert_eq!(vm.dist.notify_all(), Notify(0b101));
    }
    calls::<true>();
    calls::<false>();
}

fn wakes<const V: bool>() {
    let mut vm = Vm::<V>::ready(2, 2, &[]);
    let called = |vm: &Vm<V>, groups, below| {
        let called = vm.cpus[0].is_called(&vm.boards[0], groups, below);
        assert!(!called || vm.cpus[0].may_be_called(&vm.boards[0]));
        called
    };
    assert!(!called(&vm, 3, 0x100), "nothing is there");
    vm.priority(0, 5, 0x80);
    vm.sgi(1, 1, 5);
    let own = if V { 1 } else { 2 };
    for (groups, below, expected) in [
        (3, 0x100, true),
        (own, 0x81, true),
        (own, 0x80, false),
        (own, 0, false),
        (3 - own, 0x100, false),
        (0, 0x100, false),
    ] {
        let found = called(&vm, groups, below);
        assert_eq!(found, expected, "groups {groups:#b}, below {below:#x}");
    }
    assert_eq!(vm.acknowledge(0), Some(5));
    assert!(!called(&vm, 3, 0x100), "it has been taken");
    vm.end(0, 5);
    // In the timer's list register.
    vm.bits(0, 2, 0, 1 << VTIMER);
    vm.wire(0, 27, true);
    assert!(called(&vm, own, 1));
    assert_eq!(vm.acknowledge(0), Some(VTIMER));
    assert!(!called(&vm, 3, 0x100));
    // Some SGIs wait for a list register, so the guest has to go on.
    vm.sgi(1, 1, 5);
    vm.sgi(1, 1, 6);
    assert!(called(&vm, 0, 0));
    // The guest has ended the others, and EL2 has not been told yet.
    vm.boards[0].lrs.fill(0);
    assert!(called(&vm, 0, 0));
}

#[test]
fn wfi_ends_for_what_the_guest_can_take() {
    wakes::<true>();
    wakes::<false>();
}

fn disabled_while_it_waits<const V: bool>() {
    let mut vm = Vm::<V>::ready(1, 4, &[]);
    for sgi in 1..5 {
        vm.sgi(0, 1, sgi);
    }
    assert!(vm.boards[0].asked.refill, "one waits");
    // The guest has ended the others, and EL2 has not been told yet.
    vm.boards[0].lrs.fill(0);
    let waits = (1..5).find(|n| vm.read_bits(0, 4, 0) >> n & 1 != 0);
    vm.bits(0, 3, 0, 1 << waits.expect("one waits"));
    assert!(!vm.cpus[0].is_called(&vm.boards[0], 3, 0x100));
    assert!(!vm.boards[0].asked.refill);
    assert_eq!(vm.boards[0].held().count(), 0);
}

#[test]
fn what_is_disabled_while_it_waits_wakes_nobody() {
    disabled_while_it_waits::<true>();
    disabled_while_it_waits::<false>();
}

fn held_elsewhere<const V: bool>() {
    let mut vm = Vm::<V>::ready(2, 4, &[]);
    vm.bits(0, 2, 1, 2);
    vm.gicd(0, 0xc08, 8);
    vm.post(33);
    assert_eq!(vm.acknowledge(0), Some(33));
    vm.route(0, 33, 1);
    vm.settle();
    let before = vm.maintenances;
    vm.post(33);
    assert_eq!(vm.maintenances, before, "vCPU 1 has nothing to place");
    assert!(!vm.boards[1].asked.refill);
    assert!(!vm.cpus[1].is_called(&vm.boards[1], 3, 0x100));
    assert_eq!(vm.boards[1].held().count(), 0);
    vm.end(0, 33);
    assert_eq!(vm.drain(1), [33]);
}

#[test]
fn what_another_vcpu_still_has_wakes_nobody() {
    held_elsewhere::<true>();
    held_elsewhere::<false>();
}

#[test]
fn each_of_eight_senders_of_an_sgi_counts() {
    let mut vm = V2::ready(8, 4, &[]);
    let mut expected = std::vec::Vec::new();
    for turn in 0..3 {
        for n in 0..8 {
            if turn == 0 || n != turn {
                vm.sgi(n, 1, 7);
            }
        }
        let first = vm.boards[0].held().next().unwrap();
        assert_ne!(first & lr::EOI, 0, "its end brings the next");
        let mut senders = std::vec::Vec::new();
        while let Some(entry) = vm.boards[0].acknowledge() {
            senders.push(lr::source(entry) as usize);
            vm.end(0, 7);
        }
        senders.sort();
        expected.clear();
        expected.extend((0..8).filter(|n| turn == 0 || *n != turn));
        assert_eq!(senders, expected);
    }
}

#[test]
fn an_sgi_of_one_sender_that_is_pending_twice_is_pending_once() {
    let mut vm = V2::ready(2, 4, &[]);
    vm.sgi(1, 1, 7);
    vm.sgi(1, 1, 7);
    let held: std::vec::Vec<_> = vm.boards[0].held().collect();
    assert_eq!(held.len(), 1);
    assert_eq!(held[0] & lr::EOI, 0, "nothing comes after it");
    assert_eq!(vm.dist.vcpu_words(0).bank.latch.load(SeqCst), 0);
    assert_eq!(vm.drain(0), [7]);
}

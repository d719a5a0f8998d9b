//! Tests of each fast path and short cut by itself: that it is taken when it should be, and not
//! when one of its conditions fails.

use super::bench::Vm;
use crate::vgic::*;

const SEQ: core::sync::atomic::Ordering = core::sync::atomic::Ordering::SeqCst;

type V2 = Vm<true>;
type V3 = Vm<false>;

/// Sends SGI 4 from vCPU 0 to itself, while its list registers hold something.
fn beside<const V: bool>(vm: &mut Vm<V>) -> bool {
    let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
    if V {
        cpu.send_sgir_beside(dist, board, 1 << 16 | 4)
    } else {
        cpu.send_sgi_beside(dist, board, 4 << 24 | 1)
    }
}

/// Creates a VM in which vCPU 0 holds only SGIs: 1 and so on, `count` of them, at priority 0x80.
/// SPI 33 is enabled.
fn with_sgis<const V: bool>(lrs: usize, count: u32) -> Vm<V> {
    let mut vm = Vm::<V>::ready(2, lrs, &[]);
    vm.bits(0, 2, 0, 1 << VTIMER);
    vm.bits(0, 2, 1, 2);
    for intid in 0..16 {
        vm.priority(0, intid, 0x80);
    }
    for intid in 1..=count {
        vm.post_sgi(0, 1, intid);
    }
    vm
}

fn beside_with_room<const V: bool>() {
    let mut vm = with_sgis::<V>(4, 1);
    let reads = vm.boards[0].reads.get();
    assert!(beside(&mut vm));
    assert_eq!(vm.boards[0].reads.get(), reads, "no list register is read");
    let entry = vm.boards[0].lrs[2];
    assert_eq!((lr::vintid(entry), entry & lr::STATE), (4, lr::PENDING));
    assert!(!beside(&mut vm), "it is there already");
    assert_eq!(vm.drain(0), [1, 4]);

    let mut vm = with_sgis::<V>(4, 0);
    assert!(!beside(&mut vm), "nothing there: that is the fast path's");

    let mut vm = with_sgis::<V>(4, 1);
    vm.dist.vcpu_words(0).busy.store(2, SEQ);
    assert!(!beside(&mut vm), "something else is to be done");

    let mut vm = with_sgis::<V>(4, 1);
    vm.post(33);
    vm.post_sgi(0, 1, 2);
    assert!(!beside(&mut vm), "an SPI is among them");

    let mut vm = with_sgis::<V>(4, 1);
    vm.bits(0, 3, 0, 1 << 4);
    vm.post_sgi(0, 1, 2);
    assert!(!beside(&mut vm), "disabled");
}

#[test]
fn an_sgi_beside_sgis_takes_a_free_list_register_unread() {
    beside_with_room::<true>();
    beside_with_room::<false>();
}

fn beside_without_room<const V: bool>() {
    let mut vm = with_sgis::<V>(3, 2);
    let writes = vm.boards[0].writes;
    assert!(beside(&mut vm));
    assert_eq!(vm.boards[0].writes, writes, "it waits");
    assert!(vm.boards[0].asked.refill);
    assert_eq!(vm.cpus[0].vtimer_entry(), 0, "nothing overtakes it");
    assert_eq!(vm.cpus[0].direct(), 0);
    assert_eq!(vm.drain(0), [1, 2, 4]);
    assert!(!vm.boards[0].asked.refill);

    let mut vm = with_sgis::<V>(3, 2);
    vm.dist.vcpu_words(0).priority.set(4, 0x40);
    vm.cpus[0].sgis_changed(&vm.dist);
    assert!(!beside(&mut vm), "more urgent than one of those");

    let mut vm = with_sgis::<V>(3, 2);
    vm.wire(0, 27, true);
    assert!(beside(&mut vm), "the timer is more urgent");
    let mut vm = with_sgis::<V>(3, 2);
    vm.dist.vcpu_words(0).priority.set(27, 0x88);
    vm.cpus[0].hot_changed(&vm.dist);
    vm.wire(0, 27, true);
    assert!(!beside(&mut vm), "more urgent than the timer");

    let mut vm = with_sgis::<V>(3, 2);
    vm.dist.vcpu_words(0).bank.enable.fetch_and(!(1 << 4), SEQ);
    assert!(!beside(&mut vm), "disabled");

    let mut vm = with_sgis::<V>(3, 2);
    vm.boards[0].groups = 0;
    assert!(!beside(&mut vm), "the guest has switched its groups");
}

#[test]
fn an_sgi_beside_sgis_waits_where_all_are_as_urgent() {
    beside_without_room::<true>();
    beside_without_room::<false>();
}

#[test]
fn short_paths_of_an_sgi_are_for_this_vcpu_and_one_affinity() {
    let mut vm = with_sgis::<false>(4, 1);
    let sgi = 4 << 24;
    for bit in (1..16).chain(16..24).chain(32..41).chain(44..56) {
        let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
        for list in [0, 1] {
            let value = sgi | 1 << bit | list;
            assert!(!cpu.send_sgi_beside(dist, board, value), "{value:#x}");
            // The fast path takes the write that names vCPU 1 alone.
            if value != sgi | 2 {
                assert_eq!(cpu.send_sgi_fast(dist, board, value), None, "{value:#x}");
            }
        }
    }
    // Bits without a meaning.
    for bit in (28..32).chain(41..44).chain(56..64) {
        let mut vm = with_sgis::<false>(4, 1);
        let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
        assert!(cpu.send_sgi_beside(dist, board, sgi | 1 << bit | 1));
        let fast = cpu.send_sgi_fast(dist, board, sgi | 1 << bit | 2);
        assert_eq!(fast, Some(Notify(2)));
    }
    let mut vm = with_sgis::<true>(4, 1);
    for bit in (17..24).chain([24, 25]) {
        let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
        for list in [0, 1 << 16] {
            let value = 4 | 1 << bit | list;
            assert!(!cpu.send_sgir_beside(dist, board, value), "{value:#x}");
            if value != 4 | 1 << 17 {
                assert_eq!(cpu.send_sgir_fast(dist, board, value), None, "{value:#x}");
            }
        }
    }
}

/// Sends SGI 4 from vCPU 0 to vCPU `to` by the fast path.
fn send_fast<const V: bool>(vm: &mut Vm<V>, to: usize) -> Option<Notify> {
    let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
    if V {
        cpu.send_sgir_fast(dist, board, 1 << (16 + to) | 4)
    } else {
        cpu.send_sgi_fast(dist, board, 4 << 24 | 1 << to)
    }
}

fn send_fast_to_self<const V: bool>() {
    let mut vm = with_sgis::<V>(4, 0);
    assert_eq!(send_fast(&mut vm, 0), Some(Notify::NOBODY));
    assert_eq!(vm.boards[0].lrs[1] & lr::STATE, lr::PENDING);
    assert_eq!(send_fast(&mut vm, 0), None, "list registers are in use");
    assert_eq!(vm.drain(0), [4]);
    vm.wire(0, 27, true);
    assert_eq!(
        send_fast(&mut vm, 0),
        Some(Notify::NOBODY),
        "the timer's is not"
    );
    let mut vm = with_sgis::<V>(4, 0);
    vm.dist.vcpu_words(0).busy.store(1, SEQ);
    assert_eq!(send_fast(&mut vm, 0), None, "something else is to be done");
    let mut vm = with_sgis::<V>(4, 0);
    vm.bits(0, 3, 0, 1 << 4);
    assert_eq!(send_fast(&mut vm, 0), None, "disabled");
}

fn send_fast_to_another<const V: bool>() {
    let mut vm = with_sgis::<V>(4, 0);
    assert_eq!(send_fast(&mut vm, 1), Some(Notify(2)));
    assert_eq!(send_fast(&mut vm, 1), Some(Notify::NOBODY), "has been told");
    assert_eq!(send_fast(&mut vm, 2), None, "the VM has two");
    vm.leave(1);
    assert_eq!(send_fast(&mut vm, 1), None, "off");
}

#[test]
fn the_fast_path_of_an_sgi_needs_nothing_else_to_do() {
    send_fast_to_self::<true>();
    send_fast_to_self::<false>();
    send_fast_to_another::<true>();
    send_fast_to_another::<false>();
}

fn notified<const V: bool>(vm: &mut Vm<V>) -> bool {
    vm.cpus[0].on_notify_fast(&vm.dist, &mut vm.boards[0])
}

fn notify_fast<const V: bool>() {
    let mut vm = with_sgis::<V>(4, 0);
    assert!(!notified(&mut vm), "nothing has come");
    vm.post_sgi(1, 1, 4);
    assert!(notified(&mut vm));
    let entry = vm.boards[0].lrs[1];
    let from = if V { 1 } else { 0 };
    assert_eq!((lr::vintid(entry), lr::source(entry)), (4, from));
    vm.post_sgi(1, 1, 5);
    assert!(!notified(&mut vm), "list registers are in use");
    vm.settle();
    assert_eq!(vm.drain(0), [4, 5]);

    vm.post_sgi(1, 1, 4);
    vm.post_sgi(1, 1, 5);
    assert!(!notified(&mut vm), "two");
    vm.settle();
    assert_eq!(vm.drain(0), [4, 5]);

    vm.post_sgi(1, 1, 4);
    vm.inbox |= vm.dist.post(33, 0);
    assert!(!notified(&mut vm), "an SPI as well");
    vm.settle();
    assert_eq!(vm.drain(0).len(), 2);

    vm.bits(0, 3, 0, 1 << 4);
    vm.post_sgi(1, 1, 4);
    assert!(!notified(&mut vm), "disabled");
    vm.bits(0, 2, 0, 1 << 4);
    assert_eq!(vm.drain(0), [4]);
}

#[test]
fn the_fast_path_of_a_notification_finds_one_sgi_and_nothing_else() {
    notify_fast::<true>();
    notify_fast::<false>();
    // Two senders count separately.
    let mut vm = V2::ready(3, 4, &[]);
    vm.post_sgi(1, 1, 4);
    vm.post_sgi(2, 1, 4);
    assert!(!notified(&mut vm));
    vm.settle();
    assert_eq!(vm.drain(0), [4, 4]);
}

#[test]
fn sgis_are_taken_without_a_look_at_anything_else() {
    let taken = |vm: &mut V3| vm.cpus[0].take_sgis(&vm.dist, &mut vm.boards[0]);
    let mut vm = with_sgis::<false>(4, 1);
    for intid in [4, 5] {
        vm.post_sgi(1, 1, intid);
    }
    assert!(taken(&mut vm));
    assert_eq!(vm.boards[0].held().count(), 3);
    vm.post_sgi(1, 1, 6);
    assert!(!taken(&mut vm), "no list register is free");
    vm.post_sgi(1, 1, 4);
    vm.settle();
    let mut all = vm.drain(0);
    all.sort();
    assert_eq!(all, [1, 4, 5, 6]);

    // Sent again while active: it goes into the same list register, unless the priority differs.
    vm.sgi(1, 1, 4);
    assert_eq!(vm.acknowledge(0), Some(4));
    vm.post_sgi(1, 1, 4);
    assert!(taken(&mut vm));
    assert_eq!(vm.boards[0].lrs[1] & lr::STATE, lr::STATE);
    vm.end(0, 4);
    assert_eq!(vm.drain(0), [4]);
    vm.sgi(1, 1, 4);
    assert_eq!(vm.acknowledge(0), Some(4));
    vm.priority(0, 4, 0x20);
    vm.post_sgi(1, 1, 4);
    assert!(!taken(&mut vm));
    vm.settle();
    vm.end(0, 4);
    let entry = vm.boards[0].acknowledge().unwrap();
    assert_eq!((lr::vintid(entry), lr::priority(entry)), (4, 0x20));

    let mut vm = with_sgis::<false>(4, 1);
    vm.post_sgi(1, 1, 4);
    vm.dist.vcpu_words(0).busy.store(1, SEQ);
    assert!(!taken(&mut vm), "something else is to be done");
    let mut vm = with_sgis::<true>(4, 1);
    vm.post_sgi(1, 1, 4);
    let (cpu, board) = (&mut vm.cpus[0], &mut vm.boards[0]);
    assert!(!cpu.take_sgis(&vm.dist, board), "of whom, on a GICv2?");
}

#[test]
fn an_sgi_to_several_reaches_the_sender_by_its_list_register() {
    let sent = |vm: &mut V3| vm.cpus[0].send_to_self(&vm.dist, &mut vm.boards[0], 4);
    let mut vm = with_sgis::<false>(3, 1);
    assert!(sent(&mut vm));
    assert_eq!(vm.drain(0), [1, 4]);
    let mut vm = with_sgis::<false>(3, 2);
    assert!(!sent(&mut vm), "no list register is free");
    let mut vm = with_sgis::<false>(3, 1);
    vm.dist.vcpu_words(0).busy.store(1, SEQ);
    assert!(!sent(&mut vm), "something else is to be done");
    let mut vm = with_sgis::<false>(3, 1);
    vm.bits(0, 3, 0, 1 << 4);
    assert!(!sent(&mut vm), "disabled");
    let mut vm = with_sgis::<true>(3, 1);
    let (cpu, board) = (&mut vm.cpus[0], &mut vm.boards[0]);
    assert!(
        !cpu.send_to_self(&vm.dist, board, 4),
        "from whom, on a GICv2?"
    );
}

/// Handles a maintenance interrupt by the short cut; returns whether that was all.
fn handle_fast<const V: bool>(vm: &mut Vm<V>) -> bool {
    let mut notify = Notify::NOBODY;
    let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
    let all = cpu.handle_maintenance_fast(dist, board, &mut notify);
    vm.inbox |= notify;
    all
}

/// Creates a VM in which the guest has ended level-sensitive SPI 64, with its line still up or not.
fn ended<const V: bool>(up: bool) -> Vm<V> {
    let mut vm = Vm::<V>::ready(2, 4, &[]);
    vm.bits(0, 2, 2, 1);
    vm.line(0, 64, true);
    assert_eq!(vm.acknowledge(0), Some(64));
    if !up {
        vm.line(0, 64, false);
    }
    // The line of another SPI of the word is up, and does not matter.
    vm.line(0, 65, true);
    vm.boards[0].end(64);
    vm
}

fn fast_ends<const V: bool>() {
    let mut vm = ended::<V>(false);
    assert!(handle_fast(&mut vm));
    assert_eq!(vm.boards[0].lrs[1], 0);
    assert_eq!(vm.dist.bank(0, 2).held.load(SEQ), 0, "others may have it");
    let mut vm = ended::<V>(true);
    assert!(!handle_fast(&mut vm), "it is pending again");
    let mut vm = ended::<V>(false);
    vm.inbox |= vm.dist.post(64, 0);
    vm.dist.vcpu_words(0).busy.store(0, SEQ);
    assert!(!handle_fast(&mut vm), "it is pending again");
    let mut vm = ended::<V>(false);
    vm.dist.vcpu_words(0).busy.store(4, SEQ);
    assert!(!handle_fast(&mut vm), "something else is to be done");
    // Interrupts that have not ended stay.
    let mut vm = ended::<V>(false);
    vm.sgi(1, 1, 3);
    let before = vm.boards[0].held().count();
    handle_fast(&mut vm);
    assert_eq!(vm.boards[0].held().count(), before);
}

#[test]
fn an_end_after_which_nothing_comes_is_quick() {
    fast_ends::<true>();
    fast_ends::<false>();
}

/// Creates a VM with more SGIs than list registers; the guest has taken and ended all that it had.
fn refill<const V: bool>(waiting: u32) -> Vm<V> {
    let mut vm = with_sgis::<V>(3, 2 + waiting);
    for intid in [1, 2] {
        let entry = vm.boards[0].acknowledge().unwrap();
        assert_eq!(lr::vintid(entry), intid);
        vm.boards[0].end(intid);
    }
    assert_eq!(vm.boards[0].held().count(), 0);
    vm
}

fn fast_refill<const V: bool>() {
    let mut vm = refill::<V>(1);
    assert!(handle_fast(&mut vm));
    assert_eq!(vm.boards[0].held().count(), 1);
    assert!(!vm.boards[0].asked.refill, "nothing waits any more");
    assert_ne!(vm.cpus[0].vtimer_entry(), 0);
    assert_eq!(vm.drain(0), [3]);

    let mut vm = refill::<V>(4);
    assert!(handle_fast(&mut vm));
    assert_eq!(vm.boards[0].held().count(), 2);
    assert!(vm.boards[0].asked.refill);
    assert_eq!(vm.drain(0), [3, 4, 5, 6]);

    let mut vm = refill::<V>(1);
    vm.boards[0].groups = 0;
    assert!(!handle_fast(&mut vm), "the guest has switched its groups");

    let mut vm = with_sgis::<V>(3, 3);
    assert!(!handle_fast(&mut vm), "no list register is free");

    let mut vm = refill::<V>(1);
    vm.dist.bank(0, 1).latch.fetch_or(2, SEQ);
    vm.dist.vcpu_words(0).busy.store(2, SEQ);
    assert!(!handle_fast(&mut vm), "an SPI comes as well");
    vm.inbox = Notify(1);
    vm.settle();
    assert_eq!(vm.drain(0).len(), 2);
}

#[test]
fn sgis_that_waited_are_moved_up_quickly() {
    fast_refill::<true>();
    fast_refill::<false>();
}

#[test]
fn what_waits_beside_sgis_is_not_moved_up_quickly() {
    for other in [20u32, 33] {
        let mut vm = with_sgis::<false>(3, 2);
        let (word, bit) = (u64::from(other / 32), 1 << (other % 32));
        vm.bits(0, 2, word, bit);
        vm.priority(0, other, 0xa0);
        vm.bits(0, 4, word, bit);
        for intid in [1, 2] {
            vm.boards[0].acknowledge().unwrap();
            vm.boards[0].end(intid);
        }
        assert!(!handle_fast(&mut vm), "{other}");
        vm.settle();
        assert_eq!(vm.drain(0), [other]);
    }
}

/// Moves the line of SPI 33, level-sensitive and routed to vCPU 0; returns whether the short cut
/// handled it.
fn follows<const V: bool>(vm: &mut Vm<V>, up: bool) -> bool {
    assert!(vm.dist.move_line(33, up, 0));
    let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
    cpu.follow_line(dist, board, 33, up)
}

fn level<const V: bool>() -> Vm<V> {
    let mut vm = Vm::<V>::ready(2, 4, &[]);
    vm.bits(0, 2, 1, 0b110);
    vm
}

fn fast_line<const V: bool>() {
    let mut vm = level::<V>();
    assert!(follows(&mut vm, true));
    assert_eq!(vm.boards[0].held().count(), 1);
    assert!(follows(&mut vm, false));
    assert_eq!(vm.boards[0].held().count(), 0);
    assert_eq!(vm.dist.bank(0, 1).held.load(SEQ), 0, "others may have it");
    assert!(follows(&mut vm, true));
    assert_eq!(vm.acknowledge(0), Some(33));
    assert!(follows(&mut vm, false), "what is active stays");
    assert_eq!(vm.boards[0].held().count(), 1);
    assert!(!follows(&mut vm, true), "pending again while active");
    vm.settle();
    vm.end(0, 33);
    assert_eq!(vm.acknowledge(0), Some(33));

    // Pending by a register write too: it stays when the line falls.
    let mut vm = level::<V>();
    vm.bits(0, 4, 1, 2);
    assert_eq!(vm.boards[0].held().count(), 1);
    vm.line(0, 33, true);
    assert!(!follows(&mut vm, false));
    assert_eq!(vm.boards[0].held().count(), 1);

    let mut vm = level::<V>();
    vm.bits(0, 3, 1, 2);
    assert!(follows(&mut vm, true), "disabled");
    assert!(follows(&mut vm, false));
    assert_eq!(vm.boards[0].held().count(), 0);
}

fn line_beside<const V: bool>() {
    type Set<const V: bool> = fn(&mut Vm<V>);
    let conditions: [(&str, Set<V>); 6] = [
        ("an edge", |vm| vm.gicd(0, 0xc08, 8)),
        ("latched", |vm| {
            vm.dist.bank(0, 1).latch.store(2, SEQ);
        }),
        ("something else is to be done", |vm| {
            vm.dist.vcpu_words(0).busy.store(4, SEQ);
        }),
        ("another's", |vm| vm.route(0, 33, 1)),
        ("something waits", |vm| {
            for intid in 0..4 {
                vm.sgi(0, 1, intid);
            }
        }),
        ("another vCPU has it", |vm| {
            vm.dist.bank(0, 1).held.store(2, SEQ);
        }),
    ];
    for (why, set) in conditions {
        let mut vm = level::<V>();
        set(&mut vm);
        let before = vm.boards[0].held().count();
        assert!(!follows(&mut vm, true), "{why}");
        assert_eq!(vm.boards[0].held().count(), before, "{why}");
    }
}

#[test]
fn the_line_of_a_device_is_followed_by_one_list_register() {
    fast_line::<true>();
    fast_line::<false>();
    line_beside::<true>();
    line_beside::<false>();
}

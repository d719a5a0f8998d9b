//! Tests of the short cut for edges that another pCPU makes pending: when it is taken, and what it must not hide or overtake.

use core::sync::atomic::Ordering::SeqCst;
use std::vec::Vec;

use super::bench::Vm;
use crate::vgic::*;

/// Creates a VM of two vCPUs. Of vCPU 0 are: the edge-triggered SPIs 33 and 34, the level-sensitive 36, and the hardware interrupt 40,
/// whose entry is ready.
fn edges<const V: bool>() -> Vm<V> {
    let mut vm = Vm::<V>::ready(2, 4, &[(40, 140, true)]);
    vm.gicd(0, 0xc08, 0b10_10 << 2);
    vm.bits(0, 2, 1, 0x116);
    vm
}

/// As EL2 does when it is notified: what the short cut leaves goes to [`Cpu::sync_lrs`]. `true`: it has left nothing.
fn take<const V: bool>(vm: &mut Vm<V>) -> bool {
    let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
    let taken = cpu.take_edge(dist, board);
    vm.inbox |= taken.unwrap_or_else(|| cpu.sync_lrs(dist, board, 0));
    vm.settle();
    taken.is_some()
}

fn post<const V: bool>(vm: &mut Vm<V>, intid: u32) {
    // Who is notified looks by `take`.
    let _ = vm.dist.post(intid, 0);
}

fn is_taken<const V: bool>() {
    let mut vm = edges::<V>();
    for round in [0, 8, 16] {
        vm.priority(0, 33, 0x40 + round);
        post(&mut vm, 33);
        assert!(take(&mut vm));
        let entry = vm.boards[0].lrs[1];
        assert_eq!((lr::vintid(entry), lr::priority(entry)), (33, 0x40 + round));
        assert_eq!(entry & (lr::STATE | lr::HW | lr::EOI), lr::PENDING);
        assert_eq!(vm.dist.vcpu_words(0).holds.get(1), 2);
        let bank = vm.dist.bank(0, 1);
        assert_eq!((bank.held.load(SeqCst), bank.latch.load(SeqCst)), (2, 0));
        assert_eq!(vm.drain(0), [33]);
    }
}

#[test]
fn an_edge_goes_into_a_list_register_with_what_it_has_now() {
    is_taken::<true>();
    is_taken::<false>();
}

/// A level-sensitive interrupt that a register write makes pending is pending until it has been taken, and then as its line is.
fn pends<const V: bool>() {
    let mut vm = edges::<V>();
    for up in [false, true] {
        let writes = vm.boards[0].writes;
        vm.bits(0, 4, 1, 1 << 4);
        assert_eq!(
            vm.boards[0].writes,
            writes + 1,
            "the short cut writes its list register"
        );
        let entry = vm.boards[0].lrs[1];
        assert_eq!(lr::vintid(entry), 36);
        assert_eq!(
            entry & (lr::STATE | lr::HW | lr::EOI),
            lr::PENDING | lr::EOI
        );
        assert_eq!(vm.cpus[0].latched.get(1), 1 << 4);
        assert_eq!(vm.dist.bank(0, 1).latch.load(SeqCst), 0);
        if up {
            vm.line(0, 36, true);
            assert!(vm.cpus[0].latched.get(1) == 1 << 4 || vm.boards[0].lrs[1] & lr::PENDING != 0);
        }
        assert_eq!(vm.acknowledge(0), Some(36));
        vm.end(0, 36);
        vm.settle();
        let again = vm.boards[0]
            .held()
            .any(|entry| lr::vintid(entry) == 36 && entry & lr::PENDING != 0);
        assert_eq!(again, up, "as its line is");
    }
}

#[test]
fn what_a_register_write_makes_pending_goes_into_a_list_register() {
    pends::<true>();
    pends::<false>();
}

/// One condition after the other that the short cut must not pass over, and what the guest takes then.
fn leaves<const V: bool>() {
    type Set<const V: bool> = fn(&mut Vm<V>);
    let conditions: [(&str, Set<V>, &[u32]); 9] = [
        ("two at once", |vm| post(vm, 34), &[33, 34]),
        ("an SGI with it", |vm| vm.post_sgi(1, 1, 3), &[3, 33]),
        (
            "a line with it",
            |vm| {
                let _ = vm.dist.post_line(36, true, 0);
            },
            &[33],
        ),
        (
            "its line with it",
            |vm| {
                vm.dist.bank(0, 1).latch.store(1 << 4, SeqCst);
                let _ = vm.dist.post_line(36, true, 0);
            },
            &[],
        ),
        (
            "disabled meanwhile",
            |vm| vm.dist.bank(0, 1).enable.store(0, SeqCst),
            &[],
        ),
        (
            "taken back meanwhile",
            |vm| vm.dist.bank(0, 1).latch.store(0, SeqCst),
            &[],
        ),
        (
            "another vCPU has it still",
            |vm| {
                vm.dist.bank(0, 1).held.fetch_or(2, SeqCst);
                vm.dist.vcpu_words(1).holds.set(1, 2);
            },
            &[],
        ),
        (
            "no list register is free",
            |vm| {
                for n in 1..4 {
                    vm.boards[0].lrs[n] = lr::entry(3, 0x80, true) | lr::ACTIVE;
                }
            },
            // One that is active makes room.
            &[33],
        ),
        (
            "it is active",
            |vm| {
                vm.boards[0].lrs[2] = lr::entry(33, 0x80, true) | lr::ACTIVE;
                vm.dist.bank(0, 1).held.fetch_or(2, SeqCst);
                vm.cpus[0].hold(&vm.dist, 1, 2);
            },
            &[33],
        ),
    ];
    for (why, set, expected) in conditions {
        let mut vm = edges::<V>();
        post(&mut vm, 33);
        set(&mut vm);
        assert!(!take(&mut vm), "{why}");
        let mut taken: Vec<u32> = vm.boards[0].held().map(lr::vintid).collect();
        taken.retain(|intid| *intid != 3 || expected.contains(intid));
        taken.retain(|intid| *intid != 36);
        taken.sort_unstable();
        assert_eq!(taken, expected, "{why}");
    }
}

#[test]
fn what_comes_with_an_edge_is_not_lost() {
    leaves::<true>();
    leaves::<false>();
}

/// An edge that comes while the guest handles another one, which still holds its list register, and one that ended after that.
fn joins<const V: bool>() {
    let mut vm = edges::<V>();
    post(&mut vm, 34);
    assert!(take(&mut vm));
    vm.boards[0].lrs[1] = vm.boards[0].lrs[1] & !lr::STATE | lr::ACTIVE;
    vm.cpus[0].inside = 1 << 3;
    post(&mut vm, 33);
    assert!(!take(&mut vm), "the mark may be for the other one");
    let held: Vec<_> = vm.boards[0].held().collect();
    let state = |entry: &u64| (lr::vintid(*entry), entry & lr::STATE);
    let held: Vec<_> = held.iter().map(state).collect();
    assert_eq!(held, [(34, lr::ACTIVE), (33, lr::PENDING)]);
    assert_eq!(vm.dist.vcpu_words(0).holds.get(1), 2 | 4, "both");
    assert_eq!(vm.cpus[0].inside, 0, "more than SGIs are there");
}

#[test]
fn an_edge_joins_those_that_are_handled() {
    joins::<true>();
    joins::<false>();
}

/// An SPI that has ended here, for which another vCPU waits, and another one of its word.
fn releases<const V: bool>() {
    let mut vm = edges::<V>();
    post(&mut vm, 34);
    assert!(take(&mut vm));
    assert_eq!(vm.drain(0), [34]);
    assert_eq!(vm.dist.vcpu_words(0).holds.get(1), 4, "not looked at since");
    // It is the other vCPU's now, as the distributor has it before anybody is told.
    vm.dist.vcpu_words(0).owns.set(1, !4);
    vm.dist.vcpu_words(1).owns.set(1, 4);
    vm.dist.bank(0, 1).latch.fetch_or(4, SeqCst);
    post(&mut vm, 33);
    assert!(take(&mut vm));
    assert_eq!(vm.dist.vcpu_words(0).holds.get(1), 2);
    assert_eq!((vm.drain(0), vm.drain(1)), ([33].into(), [34].into()));
}

#[test]
fn an_edge_does_not_keep_others_of_its_word_held() {
    releases::<true>();
    releases::<false>();
}

/// A change of the word's configuration comes with an edge.
fn forgets<const V: bool>() {
    let mut vm = edges::<V>();
    for _ in 0..2 {
        vm.wire(0, 140, true);
        vm.wire(0, 140, false);
        assert_eq!(vm.drain(0), [40]);
    }
    // What has ended is released at the next look, here because of a private interrupt.
    vm.inbox |= vm.dist.mark(0, 1);
    vm.settle();
    assert_eq!(vm.dist.vcpu_words(0).holds.get(1), 0);
    post(&mut vm, 33);
    assert!(!take(&mut vm), "an entry of the word is ready");
    assert_eq!(vm.drain(0), [33]);
    let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
    assert!(!cpu.raise_fast(dist, board, 140), "it may have changed");
}

#[test]
fn an_edge_leaves_no_ready_entry_that_may_have_changed() {
    forgets::<true>();
    forgets::<false>();
}

/// An interrupt that is active in no list register is not passed over, whatever the list registers hold.
#[test]
fn an_edge_does_not_go_past_one_that_is_spilled() {
    let mut vm = edges::<false>();
    vm.cpus[0].spilled.add(1, 4);
    post(&mut vm, 33);
    let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
    assert_eq!(cpu.take_edge(dist, board), None);
    assert_eq!(vm.dist.vcpu_words(0).busy.load(SeqCst), 2, "nothing done");
}

/// Whoever makes an edge pending notifies its owner, once, and only one that is on.
fn notifies_once<const V: bool>() {
    let mut vm = edges::<V>();
    assert_eq!(vm.dist.post(33, 0), Notify(1));
    assert_eq!(vm.dist.post(34, 0), Notify::NOBODY, "it looks at both");
    assert_eq!(vm.dist.post(33, 0), Notify::NOBODY, "it is pending");
    assert!(!take(&mut vm));
    assert_eq!(vm.drain(0), [33, 34]);
    vm.route(0, 34, 1);
    vm.settle();
    assert_eq!(vm.dist.post(34, 0), Notify(2));
    vm.leave(1);
    vm.dist.vcpu_words(1).busy.store(0, SeqCst);
    vm.dist.bank(1, 1).latch.store(0, SeqCst);
    assert_eq!(vm.dist.post(34, 0), Notify::NOBODY, "it is off");
}

#[test]
fn an_edge_notifies_its_owner_once() {
    notifies_once::<true>();
    notifies_once::<false>();
}

/// A line that goes down as another interrupt becomes pending, an edge or by a register write: its list register is empty then.
fn goes_down<const V: bool>() {
    for other in [33, 37] {
        let mut vm = edges::<V>();
        vm.bits(0, 2, 1, 1 << 5);
        let _ = vm.dist.post_line(36, true, 0);
        assert!(!take(&mut vm));
        post(&mut vm, other);
        let _ = vm.dist.post_line(36, false, 0);
        assert!(!take(&mut vm));
        assert_eq!(vm.drain(0), [other]);
        post(&mut vm, other);
        assert!(take(&mut vm), "what has ended has no line");
    }
}

#[test]
fn a_line_that_goes_down_is_not_passed_over() {
    goes_down::<true>();
    goes_down::<false>();
}

/// An interrupt in a list register whose group another vCPU changes as an edge comes for one of the same word.
fn changes<const V: bool>() {
    let mut vm = edges::<V>();
    post(&mut vm, 34);
    assert!(take(&mut vm));
    let group1 = |vm: &Vm<V>| {
        let mut held = vm.boards[0].held();
        let entry = held.find(|entry| lr::vintid(*entry) == 34).unwrap();
        entry & lr::GROUP1 != 0
    };
    let (before, groups) = (group1(&vm), vm.read_bits(0, 1, 1));
    post(&mut vm, 33);
    vm.bits(1, 1, 1, groups ^ 4);
    assert!(!take(&mut vm));
    assert_eq!(group1(&vm), !before);
    assert_eq!(vm.dist.bank(0, 1).latch.load(SeqCst), 0, "33 has come, too");
}

#[test]
fn a_change_of_one_that_is_held_is_not_passed_over() {
    changes::<true>();
    changes::<false>();
}

//! Tests that one exit does a bounded amount of work, and the next exits do the rest.

use core::sync::atomic::Ordering::SeqCst;

use super::bench::Vm;
use crate::vgic::*;

/// Creates a VM of one vCPU with SPIs 32 to 287, all of them enabled and of priority 0.
fn large<const V: bool>(lrs: usize) -> Vm<V> {
    let mut vm = Vm::<V>::new(1, lrs, &[]);
    let version = if V { Version::V2 } else { Version::V3 };
    vm.dist.reset(version, 1, 256, 27);
    vm.start(0);
    vm.gicd(0, 0, 3);
    for word in 1..9 {
        vm.bits(0, 2, word, u32::MAX);
    }
    vm
}

fn held<const V: bool>(vm: &Vm<V>) -> std::vec::Vec<u32> {
    let mut held: std::vec::Vec<_> = vm.boards[0].held().map(lr::vintid).collect();
    held.sort_unstable();
    held
}

/// Returns what the guest takes, sorted by INTID.
fn drained<const V: bool>(vm: &mut Vm<V>) -> std::vec::Vec<u32> {
    let mut taken = vm.drain(0);
    taken.sort_unstable();
    taken
}

#[test]
fn one_exit_looks_at_the_changes_of_one_word() {
    let mut vm = large::<false>(5);
    for intid in [40, 70, 280] {
        assert_eq!(vm.dist.post(intid, 0), Notify(1));
    }
    for (notify, expected) in [(1, &[40][..]), (1, &[40, 70]), (0, &[40, 70, 280])] {
        let more = vm.cpus[0].on_notify(&vm.dist, &mut vm.boards[0]);
        assert_eq!((more, held(&vm).as_slice()), (Notify(notify), expected));
        let left = [0x104, 0x100, 0][expected.len() - 1];
        let busy = vm.dist.vcpu_words(0).busy.load(SeqCst);
        assert_eq!(busy, left, "words that are left, and nothing else");
    }
}

#[test]
fn one_exit_does_not_choose_among_many_for_each_list_register() {
    let mut vm = large::<false>(8);
    vm.bits(0, 3, 2, u32::MAX);
    vm.bits(0, 4, 2, u32::MAX);
    let mut notify = vm.cpus[0]
        .gicd_write(&vm.dist, &mut vm.boards[0], 0x108, 4, 0xffff_ffff)
        .1;
    let mut exits = 0;
    while !notify.is_empty() {
        let before = held(&vm).len();
        notify = vm.cpus[0].on_notify(&vm.dist, &mut vm.boards[0]);
        let now = held(&vm).len();
        assert!(now > before || now == 7, "an exit that does nothing");
        assert!(now <= before + 3, "{before} {now}");
        exits += 1;
    }
    assert_eq!(held(&vm), (64..71).collect::<std::vec::Vec<_>>());
    assert!(exits >= 2, "{exits}");
    assert_eq!(drained(&mut vm), (64..96).collect::<std::vec::Vec<_>>());
}

fn looked_at_again<const V: bool>() {
    let mut vm = large::<V>(2);
    for word in 1..9 {
        vm.post(32 * word);
    }
    assert_eq!(held(&vm), [32]);
    // The guest changes the enabled groups of its CPU interface, so what waits in words 2 to 8 has
    // to be scanned again.
    vm.boards[0].groups = if V { 2 } else { 1 };
    let notify = vm.cpus[0].handle_maintenance(&vm.dist, &mut vm.boards[0]);
    assert_eq!(notify, Notify(1));
    let busy = &vm.dist.vcpu_words(0).busy;
    let left = busy.load(SeqCst);
    assert_eq!(
        left, 0b1_1100_0000,
        "as many as the work of an exit has room for"
    );
}

#[test]
fn one_exit_looks_at_what_waits_in_some_words() {
    looked_at_again::<true>();
    looked_at_again::<false>();
}

fn switched_group<const V: bool>() {
    let mut vm = large::<V>(4);
    // One SPI for each word: those of the upper four words are in group 1, and more urgent.
    let spi = |word: u32| word * 32 + word;
    for word in 1..9 {
        let upper = word > 4;
        vm.gicd(
            0,
            0x80 + u64::from(word) * 4,
            if upper { u32::MAX } else { 0 },
        );
        vm.priority(0, spi(word), if upper { 0x10 } else { 0x80 });
        vm.post(spi(word));
    }
    assert_eq!(held(&vm), [spi(5), spi(6), spi(7)]);
    // The guest's CPU interface signals group 0 only.
    vm.boards[0].groups = 1;
    vm.settle();
    assert_eq!(held(&vm), [spi(1), spi(2), spi(3)]);
    assert_eq!(drained(&mut vm), [1, 2, 3, 4].map(spi));
    vm.boards[0].groups = 3;
    vm.settle();
    assert_eq!(drained(&mut vm), [5, 6, 7, 8].map(spi));
}

#[test]
fn a_group_that_is_switched_off_makes_way_in_all_words() {
    switched_group::<true>();
    switched_group::<false>();
}

/// Makes `most` SPIs active, each pre-empting the one before, in words 1 to 8 by turns, the first
/// the least urgent.
fn nest<const V: bool>(vm: &mut Vm<V>, most: u32) -> std::vec::Vec<u32> {
    let spis: std::vec::Vec<u32> = (0..most).map(|n| 32 + n % 8 * 32 + n).collect();
    for (n, intid) in (0u8..).zip(&spis) {
        vm.priority(0, *intid, 0xf0 - 8 * n);
        vm.post(*intid);
        assert_eq!(vm.acknowledge(0), Some(*intid));
    }
    spis
}

fn active<const V: bool>(vm: &mut Vm<V>) -> std::vec::Vec<u32> {
    (1..9)
        .flat_map(|word| each(word, vm.read_bits(0, 6, word as u64)))
        .collect()
}

fn ends_together<const V: bool>() {
    for (nested, ended) in [(31, 31), (31, 30), (31, 12), (20, 17), (5, 1)] {
        let mut vm = large::<V>(4);
        let spis = nest(&mut vm, nested);
        // An interrupt made active by a register write, more urgent than all of them: no counted
        // end belongs to it.
        vm.bits(0, 6, 3, 1 << 31);
        // The guest ends that many before EL2 runs.
        for intid in spis.iter().rev().take(ended) {
            vm.boards[0].end(*intid);
        }
        vm.settle();
        let mut left: std::vec::Vec<u32> = spis[..spis.len() - ended].to_vec();
        left.push(127);
        left.sort_unstable();
        assert_eq!(active(&mut vm), left, "{ended} of {nested}");
        // The others still end in the order in which they nest.
        for intid in spis.iter().rev().skip(ended) {
            vm.end(0, *intid);
            left.retain(|other| other != intid);
            assert_eq!(active(&mut vm), left, "{ended} of {nested}, then {intid}");
        }
    }
}

#[test]
fn ends_that_are_counted_together_are_those_of_the_most_urgent() {
    ends_together::<true>();
    ends_together::<false>();
}

fn made_and_ended<const V: bool>() {
    let mut vm = large::<V>(4);
    for word in 1..9 {
        vm.bits(0, 6, word, u32::MAX);
    }
    assert_eq!(active(&mut vm).len(), 256);
    // The guest has taken none of them, so none nests, and a counted end belongs to none of them.
    vm.boards[0].eoi_count = 3;
    vm.settle();
    assert_eq!(active(&mut vm).len(), 256);
    for word in 1..9 {
        vm.bits(0, 7, word, 0xffff_0000);
    }
    assert_eq!(active(&mut vm).len(), 128);
    vm.leave(0);
    vm.start(0);
    assert_eq!(active(&mut vm), []);
}

#[test]
fn all_spis_are_made_active_and_end() {
    made_and_ended::<true>();
    made_and_ended::<false>();
}

#[test]
fn one_exit_moves_few_out_of_list_registers() {
    let mut vm = large::<false>(8);
    vm.gicd(0, 0x84, 0);
    for intid in 33..40 {
        vm.priority(0, intid, 0x80);
        vm.post(intid);
    }
    assert_eq!(held(&vm), (33..40).collect::<std::vec::Vec<_>>());
    // Seven more urgent ones at once.
    for intid in 50..57 {
        _ = vm.dist.post(intid, 0);
    }
    vm.inbox = vm.cpus[0].on_notify(&vm.dist, &mut vm.boards[0]);
    let urgent = held(&vm).iter().filter(|intid| **intid >= 50).count();
    assert_eq!((vm.inbox, urgent), (Notify(1), 2));
    vm.settle();
    assert_eq!(held(&vm), (50..57).collect::<std::vec::Vec<_>>());
    assert_eq!(vm.drain(0).len(), 14);
}

/// Whether an exit leaves all scans to the next one, that of word 0, too.
fn leaves_all<const V: bool>(vm: &mut Vm<V>) -> bool {
    vm.inbox |= vm.cpus[0].on_notify(&vm.dist, &mut vm.boards[0]);
    vm.dist.vcpu_words(0).busy.load(SeqCst) & 1 != 0
}

fn busy_otherwise<const V: bool>() {
    // Ten ends of spilled interrupts; what they leave behind is scanned in another exit.
    let mut vm = large::<V>(4);
    let spis = nest(&mut vm, 14);
    for intid in spis.iter().rev().take(12) {
        vm.boards[0].end(*intid);
    }
    assert!(leaves_all(&mut vm), "ends");
    vm.settle();
    assert_eq!(active(&mut vm).len(), 2);

    // A word made active, and three ends.
    let mut vm = large::<V>(4);
    let spis = nest(&mut vm, 8);
    for intid in spis.iter().rev().take(6) {
        vm.boards[0].end(*intid);
    }
    vm.dist.vcpu_words(0).set_active.add(4, 0xff00_0000);
    _ = vm.dist.mark(0, 0x10 | crate::vgic::shared::REQUESTS);
    assert!(leaves_all(&mut vm), "a word made active");
    vm.settle();
    assert_eq!(active(&mut vm).len(), 10);

    // Interrupts of four words end that another vCPU waits for.
    let mut vm = Vm::<V>::new(2, 5, &[]);
    let version = if V { Version::V2 } else { Version::V3 };
    vm.dist.reset(version, 2, 256, 27);
    vm.start(0);
    vm.start(1);
    vm.gicd(0, 0, 3);
    for word in 1..5 {
        let intid = 32 * word;
        vm.bits(0, 2, u64::from(word), 1);
        vm.priority(0, intid, 0xf0 - 8 * word as u8);
        vm.route(0, intid, 0);
        vm.post(intid);
        assert_eq!(vm.acknowledge(0), Some(intid));
    }
    for word in 1..5 {
        vm.route(0, 32 * word, 1);
        vm.post(32 * word);
    }
    for word in (1..5).rev() {
        vm.boards[0].end(32 * word);
    }
    assert!(leaves_all(&mut vm), "passed on");
    vm.settle();
    let mut taken = vm.drain(1);
    taken.sort_unstable();
    assert_eq!(taken, [32, 64, 96, 128]);
}

#[test]
fn an_exit_that_has_done_much_leaves_scans_to_the_next() {
    busy_otherwise::<true>();
    busy_otherwise::<false>();
}

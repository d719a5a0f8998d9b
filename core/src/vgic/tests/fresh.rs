//! Tests that a reset leaves nothing of a VM that has run, and tests of the words that hold the
//! state.

use core::sync::atomic::Ordering::SeqCst;
use std::{format, string::String};

use super::bench::Vm;
use crate::vgic::shared::VcpuWords;
use crate::vgic::words::{SharedWords, Words};
use crate::vgic::*;

const LINKS: [(u32, u32, bool); 3] = [(30, 26, true), (40, 140, true), (70, 170, false)];

/// Creates a VM in which everything has been written and something is pending, active, spilled and
/// waiting.
fn used<const V: bool>() -> Vm<V> {
    let mut vm = Vm::<V>::ready(2, 3, &LINKS);
    for n in 0..2 {
        for bank in [2, 4] {
            vm.bits(n, bank, 0, u32::MAX);
        }
        vm.priority(n, 20, 0x40);
        vm.bits(n, 6, 0, 1 << 21 | 1 << 3 | 1 << 30);
        vm.sgi(n, 3, 5);
    }
    for word in 1..3 {
        vm.gicd(0, 0xc00 + 8 * word, u32::MAX);
        for intid in [0, 1, 31] {
            let intid = 32 * word as u32 + intid;
            vm.priority(0, intid, 0x50);
            vm.route(0, intid, 1);
            vm.line(0, intid, true);
        }
        for bank in [1, 2, 4] {
            vm.bits(0, bank, word, u32::MAX);
        }
        vm.bits(0, 6, word, 0x8000_0c00);
    }
    vm.wire(0, 140, true);
    vm.wire(1, 27, true);
    for n in [0, 1, 0, 1] {
        vm.acknowledge(n);
    }
    vm
}

/// Formats the distributor without the counts of tickets, which a reset keeps.
fn shown(dist: &Distributor) -> String {
    for n in 0..VCPUS {
        let shared = dist.vcpu_words(n);
        for count in [&shared.asked, &shared.answered, &shared.disabling] {
            count.store(0, SeqCst);
        }
    }
    format!("{dist:x?}")
}

fn of_a_vm<const V: bool>() {
    let version = if V { Version::V2 } else { Version::V3 };
    let vm = used::<V>();
    for (vcpus, spis) in [(2, 64), (1, 64), (4, 256), (8, 32)] {
        let fresh = Distributor::new();
        fresh.reset(version, vcpus, spis, 26);
        // Words and vCPUs beyond those of the VM are not read, so they need not be cleared.
        vm.dist.reset(version, VCPUS, 256, 26);
        vm.dist.reset(version, vcpus, spis, 26);
        let other = Distributor::new();
        other.reset(version, VCPUS, 256, 26);
        other.reset(version, vcpus, spis, 26);
        assert_eq!(shown(&vm.dist), shown(&other), "{vcpus} vCPUs, {spis} SPIs");
        assert_eq!(fresh.words(), spis as usize / 32 + 1);
        for intid in 32..32 + spis {
            assert_eq!(fresh.route(intid), 0);
            let owner = (!V || vcpus == 1).then_some(0);
            assert_eq!(fresh.owner(intid), owner, "{intid}");
            let (word, bit) = place(intid);
            for n in 0..vcpus {
                let owns = fresh.owns(n, word) & bit != 0;
                assert_eq!(owns, owner == Some(n), "{intid} of {n}");
            }
        }
    }
}

#[test]
fn a_distributor_that_is_reset_is_as_new() {
    of_a_vm::<true>();
    of_a_vm::<false>();
}

#[test]
fn a_reset_clears_words_that_the_vm_has_in_each_step() {
    for word in 1..3 {
        let vm = used::<false>();
        vm.dist.reset_word(word);
        for intid in 32..96 {
            let (its_word, bit) = place(intid);
            let bank = vm.dist.bank(0, its_word);
            let is_left = [&bank.enable, &bank.group].map(|bits| bits.load(SeqCst) & bit != 0);
            assert_eq!(is_left, [its_word != word; 2], "{intid}");
            let configured = [0, 1, 31].contains(&(intid % 32)) && its_word != word;
            assert_eq!(vm.dist.priority(0, intid) != 0, configured, "{intid}");
            assert_eq!(vm.dist.route(intid) != 0, configured, "{intid}");
            let hw = [40, 70].contains(&intid) && its_word != word;
            assert_eq!(vm.dist.physical(intid) != 0, hw, "{intid}");
        }
        assert_eq!(vm.dist.physical(VTIMER), 27);
    }
}

/// Formats the state of a vCPU without the priorities of spilled interrupts, which mean nothing for
/// interrupts that are not spilled.
fn of_cpu(cpu: &Cpu) -> String {
    let all = format!("{cpu:x?}");
    let (first, rest) = all.split_once("nesting: ").unwrap();
    let (nesting, last) = rest.split_once(", waiting: ").unwrap();
    let tops = nesting.matches("top: ff").count();
    assert_eq!(tops, WORDS);
    format!("{first}{last}")
}

fn of_a_vcpu<const V: bool>() {
    let mut vm = used::<V>();
    for n in 0..2 {
        assert_ne!(format!("{:x?}", vm.cpus[n]), format!("{:x?}", Cpu::new(n)));
        vm.leave(n);
        assert_eq!(of_cpu(&vm.cpus[n]), of_cpu(&Cpu::new(n)));
        let shared = vm.dist.vcpu_words(n);
        let owned = shared.owns.get(1);
        assert_eq!(shared.bank.enable.load(SeqCst), 0);
        assert_eq!(shared.concerns(1) | shared.concerns(2), 0);
        assert_eq!(shared.owns.get(1), owned, "routes stay");
        assert_eq!(shared.asked.load(SeqCst), shared.answered.load(SeqCst));
    }
    let wires = vm.stop();
    for (pcpu, pintid) in [(0, 26), (1, 26), (0, 27), (1, 27), (0, 140), (0, 170)] {
        let wire = *wires.borrow_mut().at(pcpu, pintid);
        assert!(!wire.enabled && !wire.active && !wire.pending, "{pintid}");
    }
}

#[test]
fn a_vcpu_that_has_left_is_as_new() {
    of_a_vcpu::<true>();
    of_a_vcpu::<false>();
}

#[test]
fn an_answer_is_good_for_all_tickets_before_it() {
    let shared = VcpuWords::new();
    for answered in [0, 5, u32::MAX, 0x7fff_ffff] {
        shared.answered.store(answered, SeqCst);
        for (behind, has) in [
            (0, true),
            (1, false),
            (2, false),
            (3, false),
            (0x7fff_ffff, false),
            (0x8000_0001, true),
            (u32::MAX - 1, true),
            (u32::MAX, true),
        ] {
            let ticket = answered.wrapping_add(behind);
            assert_eq!(
                shared.has_answered(ticket),
                has,
                "{ticket:#x} of {answered:#x}"
            );
        }
    }
}

#[test]
fn a_vcpu_is_concerned_by_what_it_has_and_by_each_request() {
    for n in 0..4 {
        let shared = VcpuWords::new();
        assert_eq!(shared.concerns(2), 0);
        let words = [
            &shared.holds,
            &shared.set_active,
            &shared.clear_active,
            &shared.clear_pending,
        ];
        words[n].set(2, 0x30);
        assert_eq!((shared.concerns(2), shared.concerns(1)), (0x30, 0));
        // An interrupt may be in two of them.
        let other = words[(n + 1) % 4];
        other.set(2, 0x50);
        assert_eq!((shared.concerns(2), shared.concerns(1)), (0x70, 0));
    }
}

#[test]
fn words_know_which_of_them_are_empty() {
    let mut words = Words::new();
    assert!(words.is_empty());
    words.set(3, 0b110);
    words.add(3, 0b011);
    words.add(8, 1);
    assert_eq!((words.get(3), words.get(8), words.get(0)), (0b111, 1, 0));
    assert_eq!(words.some(), 1 << 3 | 1 << 8);
    words.remove(3, 0b101);
    assert_eq!((words.get(3), words.some()), (0b010, 1 << 3 | 1 << 8));
    words.remove(3, 0b011);
    assert_eq!((words.get(3), words.some()), (0, 1 << 8));
    words.set(8, 0);
    assert!(words.is_empty());
    words.add(WORDS, u32::MAX);
    assert!(words.is_empty());
    assert_eq!(words.get(WORDS), 0);
}

#[test]
fn shared_words_say_what_was_there_before() {
    let words = SharedWords::new();
    words.set(8, 0b0110);
    assert_eq!(words.add(8, 0b1100), 0b0110);
    assert_eq!(words.remove(8, 0b0101), 0b1110);
    assert_eq!(words.get(8), 0b1010);
    assert!(!words.take_bit(8, 0b0100));
    assert!(!words.take_bit(7, 0b0010));
    assert!(words.take_bit(8, 0b0010));
    assert_eq!(
        (words.take(8), words.take(8), words.take(7)),
        (0b1000, 0, 0)
    );
    words.fill(5);
    for word in 0..WORDS {
        assert_eq!(words.get(word), 5);
        assert_eq!(words.at(word).swap(word as u32, SeqCst), 5);
    }
    assert_eq!((words.get(8), words.get(WORDS)), (8, 0));
    words.set(WORDS, 9);
    assert_eq!((words.add(WORDS, 9), words.remove(WORDS, 9)), (0, 0));
    assert_eq!(words.take(WORDS), 0);
    assert_eq!(words.get(0), 0);
}

#[test]
fn a_route_means_a_vcpu_of_the_vm() {
    let dist = Distributor::new();
    for vcpus in 1..=VCPUS {
        assert!(vcpus <= VCPUS);
        dist.reset(Version::V3, vcpus, 64, 27);
        assert_eq!(dist.all_vcpus(), 0xff >> (VCPUS - vcpus));
        for route in 0..10 {
            let expected = (route < vcpus).then_some(route);
            assert_eq!(dist.target(route as u32), expected, "{route} of {vcpus}");
        }
        assert_eq!(dist.target(0x100), None);
        assert_eq!(dist.target(0x0100_0000), None);
        dist.reset(Version::V2, vcpus, 64, 27);
        for route in 0..0x200 {
            let first = route & dist.all_vcpus();
            let expected = match vcpus {
                1 => Some(0),
                _ => (first != 0).then(|| first.trailing_zeros() as usize),
            };
            assert_eq!(dist.target(route), expected, "{route:#x} of {vcpus}");
        }
    }
}

#[test]
fn a_mark_that_is_there_needs_no_second_notification() {
    let vm = Vm::<false>::ready(3, 4, &[]);
    assert_eq!(vm.dist.mark(1, 0b110), Notify(2));
    assert_eq!(vm.dist.mark(1, 0b010), Notify::NOBODY);
    assert_eq!(vm.dist.mark(1, 0b110), Notify::NOBODY);
    assert_eq!(vm.dist.mark(1, 0b011), Notify(2), "one of them is new");
    assert_eq!(vm.dist.vcpu_words(1).busy.load(SeqCst), 0b111);
    assert_eq!(vm.dist.vcpu_words(0).busy.load(SeqCst), 0);
    // Only holders, all but one, and only for SPIs.
    for n in 0..3 {
        vm.dist.vcpu_words(n).busy.store(0, SeqCst);
        vm.dist.vcpu_words(n).holds.set(1, 1 << n);
    }
    assert_eq!(vm.dist.mark_holders(1, 1, 0b011), Notify(1));
    assert_eq!(vm.dist.mark_holders(1, 1, 0b100), Notify(4));
    assert_eq!(vm.dist.mark_holders(1, 0, 0b111), Notify::NOBODY);
    assert_eq!(vm.dist.mark_holders(1, 2, 0b111), Notify::NOBODY);
    let busy = |n: usize| vm.dist.vcpu_words(n).busy.load(SeqCst);
    assert_eq!([busy(0), busy(1), busy(2)], [2, 0, 2]);
}

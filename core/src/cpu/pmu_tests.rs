//! Registers of performance monitors, and a CPU that counts for them.

use std::vec::Vec;

use proptest::prelude::*;

use super::exit::sysreg;
use super::pmu::{Counter, Features, KEPT_BACK, Pmu, Register, Word, register};

/// PMCR_EL0 of a Cortex-A53, with six counters; it counts SW_INCR, instructions, cycles and CHAIN.
const A53: Features = Features {
    control: 0x4103_3000,
    events: [0x6002_0101, 0],
    version: 1,
};
const E: u64 = 1;
const LC: u64 = 1 << 6;
const CYCLES: u32 = 31;

fn write(pmu: &mut Pmu, register: Register, value: u64) {
    assert_eq!(pmu.write(register, value, false), Some(()), "{register:?}");
}

/// A vCPU that counts with `counters`, each of which counts event 8.
fn counting(counters: u32) -> Pmu {
    let mut pmu = Pmu::new(A53);
    for n in 0..4 {
        write(&mut pmu, Register::Type(n), 8);
    }
    write(&mut pmu, Register::Set(Word::Enabled), counters.into());
    write(&mut pmu, Register::Control, E | LC);
    pmu
}

/// What of a CPU with so many counters counts.
fn counters(pmu: &Pmu, all: u32) -> Vec<(u32, Counter)> {
    let mut rest = pmu.counting();
    core::iter::from_fn(|| pmu.next_of(&mut rest, all)).collect()
}

/// The CPU counts so many events by each counter that is on.
fn count(pmu: &mut Pmu, events: u64) {
    for (n, counter) in counters(pmu, 6) {
        let value = u64::from(counter.value) + events;
        assert!(value < 1 << 33, "it overflows once at most");
        pmu.take(n, value as u32, value >> 32 != 0);
    }
}

#[test]
fn registers_are_found_by_encoding() {
    let all = [
        ((3, 9, 12, 0), Some(Register::Control)),
        ((3, 9, 12, 1), Some(Register::Set(Word::Enabled))),
        ((3, 9, 12, 2), Some(Register::Clear(Word::Enabled))),
        ((3, 9, 12, 3), Some(Register::Clear(Word::Overflows))),
        ((3, 9, 12, 4), Some(Register::Increment)),
        ((3, 9, 12, 5), Some(Register::Select)),
        ((3, 9, 12, 6), Some(Register::Events(0))),
        ((3, 9, 12, 7), Some(Register::Events(1))),
        ((3, 9, 13, 0), Some(Register::Cycles)),
        ((3, 9, 13, 1), Some(Register::SelectedType)),
        ((3, 9, 13, 2), Some(Register::SelectedValue)),
        ((3, 9, 14, 0), Some(Register::User)),
        ((3, 9, 14, 3), Some(Register::Set(Word::Overflows))),
        ((0, 9, 14, 1), Some(Register::Set(Word::Interrupts))),
        ((0, 9, 14, 2), Some(Register::Clear(Word::Interrupts))),
        ((3, 14, 8, 0), Some(Register::Value(0))),
        ((3, 14, 9, 1), Some(Register::Value(9))),
        ((3, 14, 11, 6), Some(Register::Value(30))),
        ((3, 14, 12, 0), Some(Register::Type(0))),
        ((3, 14, 15, 6), Some(Register::Type(30))),
        ((3, 14, 15, 7), Some(Register::Type(31))),
        // No PMEVCNTR31_EL0; CNTP_CTL_EL0, PMMIR_EL1, and one of EL1 where one of EL0 would be.
        ((3, 14, 11, 7), None),
        ((3, 14, 2, 1), None),
        ((0, 9, 14, 6), None),
        ((0, 9, 12, 0), None),
    ];
    for ((op1, crn, crm, op2), expected) in all {
        assert_eq!(register(sysreg(3, op1, crn, crm, op2)), expected);
    }
    assert_eq!(register(sysreg(2, 3, 9, 12, 0)), None);
}

#[test]
fn a_guest_has_the_counters_but_the_last_two() {
    let mut pmu = Pmu::new(A53);
    assert_eq!(pmu.read(Register::Control), Some(0x4103_2000));
    for n in 0..CYCLES {
        let there = (n < 4).then_some(());
        assert_eq!(pmu.write(Register::Value(n), 7, false), there, "{n}");
        assert_eq!(pmu.read(Register::Value(n)), there.map(|()| 7));
        assert_eq!(pmu.write(Register::Type(n), 8, false), there);
        assert_eq!(pmu.read(Register::Type(n)), there.map(|()| 8));
        write(&mut pmu, Register::Select, n.into());
        assert_eq!(pmu.read(Register::SelectedValue), there.map(|()| 7));
        assert_eq!(pmu.write(Register::SelectedType, 8, false), there);
    }
    write(&mut pmu, Register::Set(Word::Enabled), u64::MAX);
    let enabled = pmu.read(Register::Clear(Word::Enabled));
    assert_eq!(enabled, Some(0x8000_000f));
    write(&mut pmu, Register::Control, E);
    let of_cpu = |all| {
        let all = counters(&pmu, all).into_iter();
        all.map(|(_, counter)| counter.number).collect::<Vec<u32>>()
    };
    assert_eq!(of_cpu(6), [0, 1, 2, 3, 4]);
    // On a CPU that has fewer, nothing of EL2's is touched.
    assert_eq!(of_cpu(4), [0, 1, 2]);
    assert_eq!(of_cpu(1), []);
    pmu.reset();
    assert_eq!(pmu, Pmu::new(A53));
}

#[test]
fn a_cpu_shows_no_more_than_guests_have() {
    let of = |version| Features { version, ..A53 }.seen();
    let seen = [0, 1, 4, 5, 6, 7, 8, 15].map(of);
    assert_eq!(seen, [0, 1, 4, 4, 4, 4, 4, 0]);
    let all = Features {
        events: [u64::MAX; 2],
        control: 2 << 11,
        version: 1,
    };
    let old = Pmu::new(all);
    assert_eq!(old.read(Register::Events(1)), Some(0xffff_ffff));
    let new = Pmu::new(Features { version: 6, ..all });
    assert_eq!(new.read(Register::Events(0)), Some(u64::MAX));
    let many = Features {
        control: 31 << 11,
        ..all
    };
    assert_eq!(many.counters(), 8);
    // Two counters are EL2's: what is left is the cycle counter.
    assert_eq!(old.read(Register::Value(0)), None);
    assert_eq!(old.read(Register::Control), Some(0));
}

#[test]
fn nothing_counts_until_both_say_so() {
    let mut pmu = counting(0);
    assert_eq!(pmu.counting(), 0);
    write(&mut pmu, Register::Set(Word::Enabled), 0b101);
    assert_eq!(pmu.counting(), 0b101);
    count(&mut pmu, 3);
    write(&mut pmu, Register::Control, LC);
    assert_eq!(pmu.counting(), 0);
    let values = [0, 1, 2].map(|n| pmu.read(Register::Value(n)));
    assert_eq!(values, [Some(3), Some(0), Some(3)]);
    write(&mut pmu, Register::Control, E);
    write(&mut pmu, Register::Clear(Word::Enabled), 0b100);
    assert_eq!(pmu.counting(), 1);
}

#[test]
fn a_read_depends_on_what_it_reads() {
    let mut pmu = counting(0b11 | 1 << CYCLES);
    write(&mut pmu, Register::Select, 1);
    let by = [
        (Register::Value(0), 1),
        (Register::SelectedValue, 0b10),
        (Register::Value(2), 0),
        (Register::Cycles, 1 << CYCLES),
        (Register::Set(Word::Overflows), 0b11 | 1 << CYCLES),
        (Register::Clear(Word::Overflows), 0b11 | 1 << CYCLES),
        (Register::Set(Word::Enabled), 0),
        (Register::SelectedType, 0),
        (Register::Control, 0),
    ];
    for (register, counters) in by {
        assert_eq!(pmu.read_by(register), counters, "{register:?}");
    }
    write(&mut pmu, Register::Control, LC);
    assert_eq!(pmu.read_by(Register::Value(0)), 0);
}

#[test]
fn an_overflow_interrupts_while_all_three_say_so() {
    let mut pmu = counting(0b11);
    write(&mut pmu, Register::Value(1), 0xffff_fffe);
    count(&mut pmu, 1);
    assert_eq!(pmu.read(Register::Set(Word::Overflows)), Some(0));
    count(&mut pmu, 1);
    assert_eq!(pmu.read(Register::Clear(Word::Overflows)), Some(2));
    assert!(!pmu.line());
    write(&mut pmu, Register::Set(Word::Interrupts), 2);
    assert!(pmu.line());
    write(&mut pmu, Register::Control, 0);
    assert!(!pmu.line());
    write(&mut pmu, Register::Control, E);
    write(&mut pmu, Register::Clear(Word::Interrupts), 2);
    assert!(!pmu.line());
    write(&mut pmu, Register::Set(Word::Interrupts), 3);
    write(&mut pmu, Register::Clear(Word::Overflows), 1);
    assert!(pmu.line());
    write(&mut pmu, Register::Clear(Word::Overflows), 2);
    assert!(!pmu.line());
    write(&mut pmu, Register::Set(Word::Overflows), 1);
    assert!(pmu.line());
    // EL2 is told of the cycle counter's in any case.
    assert_eq!(pmu.telling(), 0b11 | 1 << CYCLES);
}

#[test]
fn the_cycle_counter_has_64_bits_and_overflows_at_32_or_64() {
    let mut pmu = counting(1 << CYCLES);
    write(&mut pmu, Register::Cycles, 0x1_ffff_fff0);
    count(&mut pmu, 0x20);
    assert_eq!(pmu.read(Register::Cycles), Some(0x2_0000_0010));
    assert_eq!(pmu.read(Register::Set(Word::Overflows)), Some(0));
    write(&mut pmu, Register::Cycles, u64::MAX);
    count(&mut pmu, 1);
    assert_eq!(pmu.read(Register::Cycles), Some(0));
    assert_eq!(pmu.read(Register::Set(Word::Overflows)), Some(1 << CYCLES));
    write(&mut pmu, Register::Clear(Word::Overflows), u64::MAX);
    write(&mut pmu, Register::Control, E);
    write(&mut pmu, Register::Cycles, 0xffff_ffff);
    count(&mut pmu, 1);
    assert_eq!(pmu.read(Register::Set(Word::Overflows)), Some(1 << CYCLES));
    assert_eq!(pmu.read(Register::Cycles), Some(1 << 32));
    // C resets it, P the others.
    count(&mut pmu, 1);
    write(&mut pmu, Register::Value(0), 5);
    write(&mut pmu, Register::Control, E | 2);
    assert_eq!(pmu.read(Register::Cycles), Some((1 << 32) + 1));
    assert_eq!(pmu.read(Register::Value(0)), Some(0));
    write(&mut pmu, Register::Value(0), 5);
    write(&mut pmu, Register::Control, E | 4);
    assert_eq!(pmu.read(Register::Cycles), Some(0));
    assert_eq!(pmu.read(Register::Value(0)), Some(5));
    // D, LP and reserved bits are not there.
    write(&mut pmu, Register::Control, u64::MAX);
    assert_eq!(pmu.read(Register::Control), Some(0x4103_2071));
}

#[test]
fn software_counts_where_it_may() {
    let mut pmu = counting(0b1111);
    let increment = |pmu: &mut Pmu, at_el0| {
        pmu.write(Register::Increment, u64::MAX, at_el0).unwrap();
        [0, 1, 2, 3].map(|n| pmu.read(Register::Value(n)).unwrap())
    };
    assert_eq!(increment(&mut pmu, false), [0; 4]);
    write(&mut pmu, Register::Type(0), 0);
    write(&mut pmu, Register::Type(1), 1 << 31);
    write(&mut pmu, Register::Type(2), 1 << 30);
    assert_eq!(increment(&mut pmu, false), [1, 0, 1, 0]);
    assert_eq!(increment(&mut pmu, true), [2, 1, 1, 0]);
    // An odd counter that is chained counts overflows of the even one before it, and that overflows nonetheless.
    write(&mut pmu, Register::Type(3), 0x1e);
    write(&mut pmu, Register::Value(2), 0xffff_ffff);
    write(&mut pmu, Register::Value(3), 0xffff_ffff);
    assert_eq!(increment(&mut pmu, false), [3, 1, 0, 0]);
    assert_eq!(pmu.read(Register::Set(Word::Overflows)), Some(0b1100));
    write(&mut pmu, Register::Clear(Word::Enabled), 0b1000);
    write(&mut pmu, Register::Value(2), 0xffff_ffff);
    assert_eq!(increment(&mut pmu, false), [4, 1, 0, 0]);
    assert_eq!(pmu.read(Register::Increment), None);
}

#[test]
fn el0_has_what_it_is_given() {
    let all = [
        (Register::Control, true, 1),
        (Register::Set(Word::Enabled), true, 1),
        (Register::Clear(Word::Overflows), false, 1),
        (Register::Increment, false, 1 | 2),
        (Register::Cycles, true, 1 | 4),
        (Register::Cycles, false, 1),
        (Register::Select, true, 1 | 8),
        (Register::Select, false, 1 | 8),
        (Register::SelectedValue, true, 1 | 8),
        (Register::SelectedValue, false, 1),
        (Register::Value(2), true, 1 | 8),
        (Register::Value(2), false, 1),
        (Register::SelectedType, true, 1),
        (Register::Type(2), true, 1),
        (Register::Events(0), true, 1),
    ];
    let mut pmu = Pmu::new(A53);
    for user in 0..16 {
        write(&mut pmu, Register::User, user | 1 << 4);
        assert_eq!(pmu.read(Register::User), Some(user));
        assert_eq!(pmu.user(), user != 0);
        assert!(pmu.is_user(Register::User, true));
        for (register, read, given) in all {
            let expected = user & given != 0;
            assert_eq!(pmu.is_user(register, read), expected, "{register:?} {user}");
        }
    }
}

proptest! {
    /// Whatever a guest writes, what the CPU gets counts at EL1 and EL0 only, and none of EL2's counters is among it.
    #[test]
    fn nothing_is_about_el2(
        writes in prop::collection::vec(
            (prop::bool::ANY, prop::bool::ANY, 0u32..16, 0u32..8, any::<u64>(), any::<bool>()),
            0..200,
        ),
        version in 1u64..9,
        all in 0u32..32,
    ) {
        let mut pmu = Pmu::new(Features { version, ..A53 });
        for (of_el0, at_14, crm, op2, value, at_el0) in writes {
            let (op1, crn) = (if of_el0 { 3 } else { 0 }, if at_14 { 14 } else { 9 });
            if let Some(register) = register(sysreg(3, op1, crn, crm, op2)) {
                let _undefined = pmu.write(register, value, at_el0);
                let _undefined = pmu.read(register);
            }
            for (n, counter) in counters(&pmu, all) {
                prop_assert!(counter.number + KEPT_BACK <= all || n == CYCLES && counter.number + 1 < all);
                // Of the filters P and U are the guest's, and M says the contrary of P.
                let filters = counter.kind >> 16;
                prop_assert_eq!(filters & !(1 << 15 | 1 << 14 | 1 << 10), 0);
                prop_assert!(filters >> 15 != filters >> 10 & 1);
                prop_assert!(n != CYCLES || counter.kind & 0xffff == 0x11);
            }
        }
    }
}

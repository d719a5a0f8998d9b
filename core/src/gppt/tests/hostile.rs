//! Tests that the guest, whatever it does to its registers, neither changes nor sees interrupts
//! that the VM does not have.

use proptest::prelude::*;

use super::board::{Board, INTIDS, Irq};
use super::{filter, is_of_vm, kinds};
use crate::vgic::{Version, WORDS};

/// An access of the guest: to a redistributor, write, offset, size, value.
type Access = (bool, bool, u64, u64, u64);

/// Offsets with registers, and all others.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0u64..0xd00,
        2 => 0xf00u64..0xf40,
        2 => 0x6000u64..0x6a00,
        4 => 0x1_0000u64..0x1_0d00,
        1 => 0xffc0u64..0x1_0000,
        1 => 0x2_0000u64..0x2_0010,
        1 => 0x3_0000u64..0x3_0d00,
        1 => 0u64..0x4_0000,
    ]
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        Just(u64::MAX),
        Just(0),
        0u64..4,
        (0u32..64).prop_map(|n| 1 << n)
    ]
}

fn access() -> impl Strategy<Value = Access> {
    (
        any::<bool>(),
        any::<bool>(),
        offset(),
        0u32..4,
        any::<bool>(),
        value(),
    )
        .prop_map(|(redistributor, write, offset, log, aligned, value)| {
            let size = 1 << log;
            let offset = if aligned {
                offset & !(size - 1)
            } else {
                offset
            };
            (redistributor, write, offset, size, value)
        })
}

fn irq() -> impl Strategy<Value = Irq> {
    (any::<[bool; 4]>(), any::<[u8; 3]>(), 0u64..4).prop_map(
        |([enabled, pending, active, edge], [priority, targets, sources], route)| Irq {
            enabled,
            pending,
            active,
            edge,
            priority,
            route,
            targets,
            sources,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn others_interrupts_neither_change_nor_show(
        foreign in proptest::collection::vec(irq(), INTIDS),
        accesses in proptest::collection::vec(access(), 1..200),
    ) {
        for (version, view, count) in kinds() {
            let mut filter = filter(version, view, count);
            let mut board = Board::new(version);
            let mut other = Board::new(version);
            for (intid, irq) in foreign.iter().enumerate().filter(|(intid, _)| !is_of_vm(*intid)) {
                other.irqs[intid] = *irq;
            }
            for &(redistributor, write, offset, size, value) in &accesses {
                if redistributor && version == Version::V2 {
                    continue;
                }
                let what = std::format!("{version:?} {redistributor} {write} {offset:#x} {size} {value:#x}");
                if write {
                    let both = &mut (&mut board, &mut other);
                    if redistributor {
                        filter.gicr_write(both, offset, size, value);
                    } else {
                        filter.gicd_write(both, offset & 0xffff, size, value);
                    }
                } else {
                    let answer = if redistributor {
                        filter.gicr_read(offset, size)
                    } else {
                        filter.gicd_read(offset & 0xffff, size)
                    };
                    let seen = board.answer(&filter, answer);
                    prop_assert_eq!(seen, other.answer(&filter, answer), "{}", what);
                    prop_assert!(size == 8 || seen >> (8 * size) == 0, "{} {:#x}", what, seen);
                }
            }
            let fresh = Board::new(version);
            for (intid, before) in foreign.iter().enumerate() {
                let (here, there) = (&board.irqs[intid], &other.irqs[intid]);
                if is_of_vm(intid) {
                    prop_assert_eq!(here, there, "{}", intid);
                    let ours = here.route == 0x1_0003 || here.route == 2;
                    prop_assert!(ours, "routed to {:#x}", here.route);
                    prop_assert_eq!((here.targets | here.sources) & !0x12, 0, "{}", intid);
                    if view == super::View::Upper {
                        prop_assert!(here.priority >= 0x80, "{} is as urgent as EL2", intid);
                    }
                } else {
                    prop_assert_eq!(here, &fresh.irqs[intid], "{}", intid);
                    prop_assert_eq!(there, before, "{}", intid);
                }
            }
            for sgi in &board.sgis {
                prop_assert_eq!(sgi & !0x12_0007, 0, "{:#x}", sgi);
            }
            let both = &mut (&mut board, &mut other);
            for word in 0..WORDS {
                filter.silence(both, word);
            }
            for first in (0..WORDS as u64 * 32).step_by(4) {
                filter.forget_priorities(both, first);
            }
            for (intid, before) in foreign.iter().enumerate() {
                let irq = &board.irqs[intid];
                if is_of_vm(intid) {
                    prop_assert!(!(irq.enabled || irq.pending || irq.active), "{}", intid);
                    prop_assert_eq!(irq.sources, 0, "{}", intid);
                    let highest = if view == super::View::Upper { 0x80 } else { 0 };
                    prop_assert_eq!(irq.priority, highest, "{}", intid);
                } else {
                    prop_assert_eq!(&other.irqs[intid], before, "{}", intid);
                }
            }
        }
    }
}

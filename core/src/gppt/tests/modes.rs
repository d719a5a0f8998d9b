//! Tests of modes, priorities and SGIs.

use crate::gppt::priority::{MOST_URGENT, running_to_guest, to_board, to_guest};
use crate::gppt::sgi::{Sgi, by_distributor, by_register};
use crate::gppt::{Kick, Mode, Reclaim, View};
use crate::vgic::{Notify, Version};

const ALL: [Mode; 6] = [
    Mode::Recoverable,
    Mode::PmrTrapped,
    Mode::PmrDirect,
    Mode::V2,
    Mode::Revocable,
    Mode::RevocableTrapped,
];

#[test]
fn order_of_priorities_is_kept_and_none_is_as_urgent_as_the_kick() {
    for guest in 0..=255u8 {
        let board = to_board(guest);
        assert!(board >= MOST_URGENT);
        assert_eq!(to_guest(board), guest & 0xfe);
        // A priority mask lets through what is more urgent than the mask.
        for other in 0..=255u8 {
            let lets = to_board(other) < to_board(guest);
            assert_eq!(lets, other & 0xfe < guest & 0xfe);
        }
        // With the coarsest binary point the kick still pre-empts.
        assert!(super::super::priority::KICK & 0x80 < board & 0x80);
    }
    assert_eq!(to_guest(0x7f), 0);
    assert_eq!([0xff, 0xc0, 0].map(running_to_guest), [0xff, 0x80, 0]);
}

#[test]
fn interrupts_of_group_1_come_to_el1_in_every_mode() {
    for mode in ALL {
        for (reclaim, lent) in [
            (Reclaim::Cooperative, true),
            (Reclaim::Guaranteed, true),
            (Reclaim::Cooperative, false),
            (Reclaim::Guaranteed, false),
        ] {
            let controls = mode.controls(reclaim, lent);
            assert_eq!(controls.hcr & 1 << 4, 0, "IMO");
            let sgis_trap = mode.kick() == Kick::Group0
                || matches!(mode, Mode::Revocable | Mode::RevocableTrapped);
            assert_eq!(controls.hcr & 1 << 3 != 0, sgis_trap, "FMO");
            assert_eq!(
                controls.hcr & 1 << 13 != 0,
                reclaim == Reclaim::Guaranteed,
                "TWI"
            );
            assert_eq!(controls.ich & 1, 0, "no virtual interrupts");
            // With a kick that nothing masks, the guest must not reach the physical priority mask
            // without a trap.
            let masks = controls.hcr & 1 << 3 == 0;
            assert_eq!(masks, mode.view() == View::Plain);
        }
    }
    let ich = |lent| ALL.map(|mode| mode.controls(Reclaim::Cooperative, lent).ich);
    assert_eq!(ich(false), [0, 1 << 10, 1 << 11, 0, 0, 1 << 10]);
    let dir = 1 << 14;
    assert_eq!(
        ich(true),
        [0, 1 << 10, 1 << 11 | dir, 0, 0, 1 << 10],
        "others' SPIs"
    );
}

#[test]
fn a_mode_that_the_board_cannot_do_says_why() {
    use Version::{V2, V3};
    for mode in ALL {
        assert_eq!(mode.refusal(mode.version(), true, false), None);
        let other = if mode == Mode::V2 { V3 } else { V2 };
        assert!(mode.refusal(other, true, false).is_some());
        let two_states = mode.refusal(mode.version(), false, false);
        assert_eq!(two_states.is_some(), mode.el2_in_group0());
        let strangers = mode.refusal(mode.version(), true, true);
        assert_eq!(strangers.is_some(), mode == Mode::PmrDirect);
        assert_eq!(strangers.is_some(), !mode.filters_sgis());
        let lacks = mode.lacks();
        assert!(
            lacks.contains("priorities, ")
                && lacks.contains("the lowest of which is never signalled"),
            "{lacks}"
        );
        let [sure, kind] =
            [Reclaim::Guaranteed, Reclaim::Cooperative].map(|reclaim| mode.escapes(reclaim));
        assert!(!sure.is_empty() && kind.contains(sure));
        assert_eq!(
            kind.contains("sleeping"),
            mode.kick() == Kick::RevokeAndPoke
        );
    }
}

fn sent(intid: u32, vcpus: u8) -> Option<Sgi> {
    Some(Sgi {
        intid,
        vcpus: Notify(vcpus),
    })
}

#[test]
fn sgis_reach_own_vcpus_with_own_intids() {
    let sgi = |intid: u64, rest: u64| intid << 24 | rest;
    assert_eq!(by_register(sgi(7, 0b1011), 0, 3), sent(7, 0b011));
    assert_eq!(
        by_register(sgi(0, 1 << 40), 1, 3),
        sent(0, 0b101),
        "all but itself"
    );
    assert_eq!(
        by_register(sgi(0, 1 << 40 | 0xff), 0, 1),
        None,
        "there is no other"
    );
    for intid in 8..16 {
        assert_eq!(by_register(sgi(intid, 1), 0, 1), None, "EL2's");
    }
    for bit in (16..24).chain(32..40).chain(44..56) {
        assert_eq!(
            by_register(sgi(1, 1 | 1 << bit), 0, 8),
            None,
            "affinity bit {bit}"
        );
    }
    assert_eq!(
        by_register(sgi(1, 0xff00), 0, 8),
        None,
        "vCPUs that there are not"
    );
    assert_eq!(by_register(sgi(1, 0xffff), 0, 8), sent(1, 0xff));
    assert_eq!(by_distributor(0x00ff_0003, 0, 2), sent(3, 0b11));
    assert_eq!(by_distributor(0x01ff_0003, 1, 2), sent(3, 0b01));
    assert_eq!(by_distributor(0x02ff_0003, 1, 2), sent(3, 0b10));
    assert_eq!(by_distributor(0x03ff_0003, 1, 2), None);
    assert_eq!(by_distributor(0x0004_0003, 0, 2), None);
    assert_eq!(by_distributor(0x00ff_0008, 0, 2), None);
}

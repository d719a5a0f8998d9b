//! Sides that do not keep to the rules. Whatever they write, EL2 touches nothing but the window and what the VM itself may access so ([`Ram`] fails
//! otherwise), each call ends within its budget, and slots are neither lost nor used twice.

use proptest::prelude::*;

use bulkhead_abi::device::ring::{ENTRIES, INDEX, INDIRECT, NEXT, WRITE};

use super::parts::*;
use crate::virtio::backend_ring::BackendRing;
use crate::virtio::guest_ring::{self, Features, GuestRing, Setup, Walk};
use crate::virtio::queue::{Broken, Budget, Queue, Step};

const FEATURES: Features = Features {
    indirect: true,
    event_idx: true,
    polled: false,
};

const PLENTY: Budget = Budget::of(1000, 1 << 20);

fn raw(ram: &Ram, index: u16, ipa: u64, len: u32, flags: u16, next: u16) {
    let at = setup().table + 16 * u64::from(index);
    put(ram, at, &ipa.to_le_bytes());
    put(ram, at + 8, &len.to_le_bytes());
    put(ram, at + 12, &flags.to_le_bytes());
    put(ram, at + 14, &next.to_le_bytes());
}

/// Makes chains available: their heads, behind those that were.
fn available(ram: &Ram, from: u16, heads: &[u16]) {
    for (entry, head) in (from..).zip(heads) {
        let at = setup().available + ENTRIES + 2 * u64::from(entry % GUEST_SIZE);
        put(ram, at, &head.to_le_bytes());
    }
    let index = from.wrapping_add(heads.len() as u16);
    put(ram, setup().available + INDEX, &index.to_le_bytes());
}

fn forward(ram: &Ram, queue: &mut Queue) -> Result<Step, Broken> {
    let mut budget = PLENTY;
    let step = queue.forward(ram, &Vm, &mut budget);
    queue.publish_to_backend(ram);
    step
}

/// A descriptor: address, length, flags, next.
type Raw = (u64, u32, u16, u16);

/// One chain of these descriptors.
fn chain(descriptors: &[Raw]) -> Result<Step, Broken> {
    let ram = Ram::new();
    let mut queue = queue(&ram, FEATURES, POLICY);
    for (index, (ipa, len, flags, next)) in (0..).zip(descriptors) {
        raw(&ram, index, *ipa, *len, *flags, *next);
    }
    available(&ram, 0, &[0]);
    forward(&ram, &mut queue)
}

const BUFFER: u64 = 0x4000_0800;
const READ_ONLY: u64 = 0x5000_0000;

#[test]
fn chains_that_break_a_rule() {
    let broken = Err(Broken::Guest);
    let cases: &[(&str, &[Raw])] = &[
        ("a loop", &[(BUFFER, 1, NEXT, 1), (BUFFER, 1, NEXT, 0)]),
        ("itself", &[(BUFFER, 0, NEXT, 0)]),
        ("next behind the table", &[(BUFFER, 1, NEXT, GUEST_SIZE)]),
        (
            "readable behind writable",
            &[(BUFFER, 1, NEXT | WRITE, 1), (BUFFER, 1, 0, 0)],
        ),
        ("nowhere", &[(0x1000, 1, 0, 0)]),
        ("out of the end of RAM", &[(0x4000_647f, 2, 0, 0)]),
        ("around the end of the addresses", &[(u64::MAX, 2, 0, 0)]),
        ("more than the largest", &[(BUFFER, LARGEST + 1, 0, 0)]),
        (
            "more in sum",
            &[(BUFFER, LARGEST, NEXT, 1), (BUFFER, 1, 0, 0)],
        ),
        (
            "a sum that wraps",
            &[(BUFFER, 1, NEXT | WRITE, 1), (BUFFER, u32::MAX, WRITE, 0)],
        ),
        (
            "an indirect table and a next one",
            &[(BUFFER, 16, INDIRECT | NEXT, 1)],
        ),
        (
            "an indirect table of no descriptor",
            &[(BUFFER, 0, INDIRECT, 0)],
        ),
        (
            "an indirect table that is cut",
            &[(BUFFER, 24, INDIRECT, 0)],
        ),
        (
            "an indirect table of too many",
            &[(BUFFER, 16 * 257, INDIRECT, 0)],
        ),
        ("an indirect table nowhere", &[(0x1000, 16, INDIRECT, 0)]),
    ];
    for (what, descriptors) in cases {
        assert_eq!(chain(descriptors), broken, "{what}");
    }
}

#[test]
fn chains_that_are_only_odd() {
    let cases: &[(&str, &[Raw])] = &[
        ("no byte", &[(BUFFER, 0, 0, 0)]),
        ("no byte anywhere", &[(0x1000, 0, 0, 0)]),
        (
            "the largest both ways",
            &[(BUFFER, LARGEST, NEXT, 1), (BUFFER, LARGEST, WRITE, 0)],
        ),
        ("read-only memory is read", &[(READ_ONLY, 100, 0, 0)]),
        ("across two regions", &[(0x4000_2400, 0x100, 0, 0)]),
        ("unknown flags", &[(BUFFER, 1, 0xfff8, 0)]),
        (
            "all descriptors",
            &[
                (BUFFER, 1, NEXT, 1),
                (BUFFER, 1, NEXT, 2),
                (BUFFER, 1, NEXT, 3),
                (BUFFER, 1, NEXT, 4),
                (BUFFER, 1, NEXT, 5),
                (BUFFER, 1, NEXT, 6),
                (BUFFER, 1, NEXT, 7),
                (BUFFER, 1, 0, 0),
            ],
        ),
    ];
    for (what, descriptors) in cases {
        assert_eq!(chain(descriptors), Ok(Step::Idle), "{what}");
    }
}

#[test]
fn a_table_in_a_table() {
    let ram = Ram::new();
    let mut queue = queue(&ram, FEATURES, POLICY);
    raw(&ram, 0, BUFFER, 16, INDIRECT, 0);
    put(&ram, BUFFER, &BUFFER.to_le_bytes());
    put(&ram, BUFFER + 8, &16u32.to_le_bytes());
    put(&ram, BUFFER + 12, &INDIRECT.to_le_bytes());
    available(&ram, 0, &[0]);
    assert_eq!(forward(&ram, &mut queue), Err(Broken::Guest));
}

#[test]
fn an_indirect_table_is_broken_where_it_was_not_taken() {
    let ram = Ram::new();
    let features = Features {
        indirect: false,
        ..FEATURES
    };
    let mut queue = queue(&ram, features, POLICY);
    raw(&ram, 0, BUFFER, 16, INDIRECT, 0);
    available(&ram, 0, &[0]);
    assert_eq!(forward(&ram, &mut queue), Err(Broken::Guest));
}

/// What is read-only for the VM is so for its device.
#[test]
fn a_device_does_not_write_what_its_vm_may_not() {
    let ram = Ram::new();
    let mut queue = queue(&ram, FEATURES, POLICY);
    raw(&ram, 0, READ_ONLY, 8, WRITE, 0);
    available(&ram, 0, &[0]);
    assert_eq!(forward(&ram, &mut queue), Err(Broken::Guest));
}

#[test]
fn an_index_that_jumps() {
    for (index, expected) in [
        (GUEST_SIZE, Ok(Step::Idle)),
        (GUEST_SIZE + 1, Err(Broken::Guest)),
        (u16::MAX, Err(Broken::Guest)),
    ] {
        let ram = Ram::new();
        let mut queue = queue(&ram, FEATURES, POLICY);
        raw(&ram, 0, BUFFER, 1, 0, 0);
        put(&ram, setup().available + INDEX, &index.to_le_bytes());
        assert_eq!(forward(&ram, &mut queue), expected, "{index}");
    }
    let ram = Ram::new();
    let mut queue = queue(&ram, FEATURES, POLICY);
    available(&ram, 0, &[GUEST_SIZE]);
    assert_eq!(forward(&ram, &mut queue), Err(Broken::Guest), "a head");
}

/// Fewer writable bytes than there were when the request came. Where each slot is for one place, the bytes go to where the buffer was.
#[test]
fn a_chain_that_shrinks_while_the_backend_has_it() {
    for (two, expected) in [(false, Ok(Step::Idle)), (true, Err(Broken::Guest))] {
        let ram = Ram::new();
        let mut queue = queue(&ram, FEATURES, POLICY);
        let first = if two { NEXT } else { 0 };
        raw(&ram, 0, BUFFER, 250, WRITE | first, 1);
        raw(&ram, 1, BUFFER + 512, 250, WRITE, 0);
        available(&ram, 0, &[0]);
        assert_eq!(forward(&ram, &mut queue), Ok(Step::Idle));
        let mut backend = Backend::new(true);
        backend.look(&ram);
        backend.answer(&ram, 0, 255);
        backend.publish(&ram);
        raw(&ram, 0, BUFFER, 249, WRITE | first, 1);
        let back = queue.back(&ram, &Vm, &mut PLENTY.clone());
        assert_eq!(back, expected, "{two}");
    }
}

#[test]
fn rings_that_cannot_be() {
    let good = setup();
    let ring = |setup: Setup| GuestRing::new(&setup, FEATURES, &Vm).is_some();
    assert!(ring(good));
    let bad = [
        Setup { size: 0, ..good },
        Setup { size: 6, ..good },
        Setup { size: 512, ..good },
        Setup {
            table: good.table + 8,
            ..good
        },
        Setup {
            available: good.available + 1,
            ..good
        },
        Setup {
            used: good.used + 2,
            ..good
        },
        Setup {
            table: 0x1000,
            ..good
        },
        Setup {
            used: READ_ONLY,
            ..good
        },
        Setup {
            table: 0x4000_6480 - 112,
            ..good
        },
        Setup {
            available: 0u64.wrapping_sub(8),
            ..good
        },
    ];
    for setup in bad {
        assert!(!ring(setup), "{setup:?}");
    }
    // A ring that the device only reads may be in memory that the VM only reads; and any part may lie across two regions.
    assert!(ring(Setup {
        table: READ_ONLY,
        ..good
    }));
    assert!(ring(Setup {
        table: 0x4000_2450,
        ..good
    }));
    assert!(ring(Setup {
        used: 0x4000_2478,
        ..good
    }));
}

/// A ring across two regions works there as well.
#[test]
fn a_ring_across_two_regions() {
    let ram = Ram::new();
    let setup = Setup {
        used: 0x4000_2478,
        ..setup()
    };
    let mut ring = GuestRing::new(&setup, FEATURES, &Vm).unwrap();
    for head in 0..GUEST_SIZE {
        ring.give(head, 5, &ram, &Vm).unwrap();
    }
    ring.publish(&ram, &Vm).unwrap();
    for head in 0..GUEST_SIZE {
        let entry = setup.used + ENTRIES + 8 * u64::from(head);
        assert_eq!(ram.get32(reached(entry)), u32::from(head));
        assert_eq!(ram.get32(reached(entry + 4)), 5);
    }
    assert_eq!(ram.get16(reached(setup.used + INDEX)), GUEST_SIZE);
}

/// The same for the table of descriptors, the ring's own and an indirect one, where the border lies between two of them and in the midst of
/// one, which is nowhere as a whole.
#[test]
fn a_table_across_two_regions() {
    let border = 0x4000_2480;
    for (behind, expected) in [(0, Ok([7, 9])), (8, Err(guest_ring::Broken))] {
        let ram = Ram::new();
        let table = border - 16 - behind;
        for (at, ipa, flags) in [(table, BUFFER + 7, NEXT), (table + 16, BUFFER + 9, 0)] {
            put(&ram, at, &ipa.to_le_bytes());
            let rest = 1 | u64::from(flags) << 32 | 1 << 48;
            put(&ram, at + 8, &rest.to_le_bytes());
        }
        raw(&ram, 0, table, 32, INDIRECT, 0);
        let indirect = walked(&GuestRing::new(&setup(), FEATURES, &Vm).unwrap(), &ram);
        assert_eq!(indirect, expected, "indirect, {behind}");
        if behind == 0 {
            let own = GuestRing::new(&Setup { table, ..setup() }, FEATURES, &Vm).unwrap();
            assert_eq!(walked(&own, &ram), expected, "its own");
        }
    }
}

/// Where the two buffers of chain 0 lie.
fn walked(ring: &GuestRing, ram: &Ram) -> Result<[u64; 2], guest_ring::Broken> {
    let mut walk = Walk::new(ring, 0);
    let mut found = [0; 2];
    for place in &mut found {
        assert!(walk.next(ring, ram, &Vm)?);
        *place = walk.buffer().0 - BUFFER;
    }
    Ok(found)
}

/// A buffer that takes many slots takes more than one slice.
#[test]
fn slots_of_a_long_buffer_are_counted() {
    let ram = Ram::new();
    let mut queue = queue(&ram, FEATURES, POLICY);
    raw(&ram, 0, BUFFER, LARGEST, WRITE, 0);
    available(&ram, 0, &[0]);
    let slices = (1..20).find(|_| {
        let step = queue.forward(&ram, &Vm, &mut Budget::of(3, 0)).unwrap();
        step == Step::Idle
    });
    assert_eq!(
        slices,
        Some(3),
        "a chain, a descriptor and six further slots"
    );
}

/// So does one that lies across regions, however few slots it takes.
#[test]
fn regions_of_a_buffer_are_counted() {
    let ram = Ram::new();
    let mut queue = queue(&ram, FEATURES, POLICY);
    raw(&ram, 0, 0x4000_2480 - 50, 100, WRITE, 0);
    available(&ram, 0, &[0]);
    let steps = [Step::More, Step::Idle];
    let slices = steps.map(|_| queue.forward(&ram, &Vm, &mut Budget::of(3, 0)).unwrap());
    assert_eq!(slices, steps);
}

/// A backend that has one chain, and gives this back.
fn given(give: impl FnOnce(&Ram, &mut Backend)) -> Result<Step, Broken> {
    let ram = Ram::new();
    let mut queue = queue(&ram, FEATURES, POLICY);
    raw(&ram, 0, BUFFER, 10, NEXT, 1);
    raw(&ram, 1, BUFFER, 300, WRITE, 0);
    available(&ram, 0, &[0]);
    assert_eq!(forward(&ram, &mut queue), Ok(Step::Idle));
    let mut backend = Backend::new(true);
    backend.look(&ram);
    give(&ram, &mut backend);
    backend.publish(&ram);
    queue.back(&ram, &Vm, &mut PLENTY.clone())
}

#[test]
fn backends_that_break_a_rule() {
    let cases: [(&str, u32, u32); 6] = [
        ("an id that is a slot but no head", 1, 0),
        ("an id that was not used", 9, 0),
        ("an id that is no slot", 16, 0),
        ("an id of more than 16 bits", 0x1_0000, 0),
        ("a length above the writable bytes", 0, 301),
        ("the largest length", 0, u32::MAX),
    ];
    for (what, id, len) in cases {
        let found = given(|ram, backend| backend.give(ram, id, len));
        assert_eq!(found, Err(Broken::Backend), "{what}");
    }
    let twice = given(|ram, backend| {
        backend.give(ram, 0, 300);
        backend.give(ram, 0, 300);
    });
    assert_eq!(twice, Err(Broken::Backend), "more than it has");
    assert_eq!(
        given(|ram, backend| backend.give(ram, 0, 300)),
        Ok(Step::Idle)
    );
}

#[test]
fn an_id_twice_while_others_are_outstanding() {
    let ram = Ram::new();
    let mut queue = queue(&ram, FEATURES, POLICY);
    for head in 0..3 {
        raw(&ram, head, BUFFER, 10, WRITE, 0);
    }
    available(&ram, 0, &[0, 1, 2]);
    assert_eq!(forward(&ram, &mut queue), Ok(Step::Idle));
    let mut backend = Backend::new(true);
    backend.look(&ram);
    backend.give(&ram, 1, 10);
    backend.give(&ram, 1, 10);
    backend.publish(&ram);
    assert_eq!(
        queue.back(&ram, &Vm, &mut PLENTY.clone()),
        Err(Broken::Backend)
    );
    // What was right goes to the guest, and the others to the next session: it is not the guest who has broken a rule.
    assert_eq!(
        queue.end_session(&ram, &Vm, &mut PLENTY.clone()),
        Ok(Step::Idle)
    );
    queue.publish_to_guest(&ram, &Vm).unwrap();
    let used = reached(setup().used);
    assert_eq!((ram.get16(used + INDEX), ram.get32(used + ENTRIES)), (1, 1));
    queue.begin_session(&ram);
    assert_eq!(forward(&ram, &mut queue), Ok(Step::Idle));
    assert_eq!(queue.backend().outstanding(), 2);
}

/// A backend that answers, to a guest which has reset the device, what it had before.
#[test]
fn an_id_of_before_a_reset() {
    let ram = Ram::new();
    let mut old = queue(&ram, FEATURES, POLICY);
    for head in 0..3 {
        raw(&ram, head, BUFFER, 10, WRITE, 0);
    }
    available(&ram, 0, &[0, 1, 2]);
    assert_eq!(forward(&ram, &mut old), Ok(Step::Idle));
    let store = old.into_store();
    let guest = GuestRing::new(&setup(), FEATURES, &Vm).unwrap();
    let backend = BackendRing::new(layout(), store.slots);
    let mut queue = Queue::new(guest, backend, POLICY, store.again);
    queue.begin_session(&ram);
    let mut budget = Budget::of(3, 100);
    queue.forward(&ram, &Vm, &mut budget).unwrap();
    queue.publish_to_backend(&ram);
    assert_eq!(queue.backend().outstanding(), 1);
    let mut backend = Backend::new(true);
    backend.give(&ram, 2, 10);
    backend.publish(&ram);
    assert_eq!(
        queue.back(&ram, &Vm, &mut PLENTY.clone()),
        Err(Broken::Backend)
    );
}

/// Bytes that somebody writes at any time.
#[derive(Clone, Debug)]
enum Poke {
    Guest {
        offset: u64,
        bytes: [u8; 4],
    },
    Window {
        offset: u64,
        bytes: [u8; 4],
    },
    Available {
        add: u16,
    },
    Used {
        add: u16,
    },
    Descriptor {
        index: u16,
        ipa: u64,
        len: u32,
        flags: u16,
        next: u16,
    },
    Slice {
        descriptors: u32,
        bytes: u32,
    },
    Answer {
        which: usize,
    },
    Restart,
}

fn pokes() -> impl Strategy<Value = Poke> {
    let ipa = prop_oneof![
        4 => 0x4000_0800u64..0x4000_2800,
        1 => 0x4000_6400u64..0x4000_6500,
        1 => 0x5000_0000u64..0x5000_1100,
        1 => any::<u64>(),
    ];
    let len = prop_oneof![4 => 0u32..400, 1 => 1700u32..2000, 1 => any::<u32>()];
    let flags = prop_oneof![6 => 0u16..8, 1 => any::<u16>()];
    prop_oneof![
        2 => (0u64..0x120, any::<[u8; 4]>()).prop_map(|(offset, bytes)| Poke::Guest { offset, bytes }),
        1 => (0x1000u64..0x1200, any::<[u8; 4]>()).prop_map(|(offset, bytes)| Poke::Window { offset, bytes }),
        4 => (1u16..4).prop_map(|add| Poke::Available { add }),
        1 => (0u16..3).prop_map(|add| Poke::Used { add }),
        6 => (0..GUEST_SIZE, ipa, len, flags, 0..GUEST_SIZE + 1).prop_map(
            |(index, ipa, len, flags, next)| Poke::Descriptor { index, ipa, len, flags, next }
        ),
        6 => (1u32..6, 1u32..600).prop_map(|(descriptors, bytes)| Poke::Slice { descriptors, bytes }),
        4 => any::<usize>().prop_map(|which| Poke::Answer { which }),
        1 => Just(Poke::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn bytes_that_change_at_any_time(
        replay: bool,
        exact: bool,
        good_backend: bool,
        pokes in proptest::collection::vec(pokes(), 1..80),
    ) {
        let ram = Ram::new();
        let policy = crate::virtio::queue::Policy { replay, exact, ..POLICY };
        let mut queue = queue(&ram, FEATURES, policy);
        let mut backend = Backend::new(exact);
        let bump = |at: u64, add: u16| {
            let index = ram.get16(at).wrapping_add(add);
            ram.write(at, &index.to_le_bytes());
        };
        let mut ended = None;
        for poke in &pokes {
            match poke {
                Poke::Guest { offset, bytes } => put(&ram, setup().table + offset, bytes),
                Poke::Window { offset, bytes } if !good_backend => {
                    ram.write(WINDOW.start + offset, bytes);
                }
                Poke::Used { add } if !good_backend => {
                    bump(WINDOW.start + layout().ring.used + INDEX, *add);
                }
                Poke::Available { add } => bump(reached(setup().available + INDEX), *add),
                Poke::Descriptor { index, ipa, len, flags, next } => {
                    raw(&ram, *index, *ipa, *len, *flags, *next);
                }
                Poke::Slice { descriptors, bytes } => {
                    let mut budget = Budget::of(*descriptors, *bytes);
                    let back = queue.back(&ram, &Vm, &mut budget);
                    let told = queue.publish_to_guest(&ram, &Vm);
                    let forward = queue.forward(&ram, &Vm, &mut budget);
                    queue.publish_to_backend(&ram);
                    ended = back.err().or(told.err()).or(forward.err());
                    prop_assert!(
                        !good_backend || ended != Some(Broken::Backend),
                        "a driver makes no backend break a rule"
                    );
                }
                Poke::Answer { which } if good_backend => {
                    backend.look(&ram);
                    backend.answer(&ram, *which, 200);
                    backend.publish(&ram);
                }
                Poke::Restart => {
                    let mut budget = PLENTY;
                    ended = queue.back(&ram, &Vm, &mut budget).err();
                    if ended.is_none() {
                        ended = queue.end_session(&ram, &Vm, &mut budget).err();
                    }
                    if ended.is_none() {
                        prop_assert_eq!(queue.backend().free(), SLOTS);
                        queue.begin_session(&ram);
                        backend = Backend::new(exact);
                    }
                }
                _ => {}
            }
            prop_assert!(queue.backend().outstanding() <= SLOTS);
            prop_assert!(queue.backend().free() <= SLOTS);
            if ended.is_some() {
                break;
            }
        }
    }
}

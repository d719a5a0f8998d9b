//! Copy on write over an image, through lives that end at any access.

use std::rc::Rc;

use bulkhead_service::memory::Memory;
use bulkhead_service::store::{BLOCK, Image, Overlay, Ram, Store, overlay_bytes};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::memory::{Life, TestMemory};

/// Four and a half blocks, over an image that ends in the third.
const DISK: u64 = BLOCK * 4 + 2048;
const IMAGE: usize = BLOCK as usize * 2 + 700;

fn image() -> (TestMemory, Vec<u8>) {
    let memory = TestMemory::new(IMAGE);
    let mut bytes: Vec<u8> = (0..IMAGE).map(|at| (at % 251) as u8 | 1).collect();
    memory.write(0, &bytes).unwrap();
    bytes.resize(DISK as usize, 0);
    (memory, bytes)
}

/// A write of these bytes, or of zeros.
#[derive(Clone, Debug)]
struct Change {
    at: u64,
    bytes: u64,
    value: Option<u8>,
}

fn changes() -> impl Strategy<Value = Change> {
    let block = (0..5u64, 0..3u64).prop_map(|(first, count)| (first * BLOCK, count * BLOCK));
    let other = (0..=DISK, 0..=3 * BLOCK);
    (prop_oneof![block, other], proptest::option::of(any::<u8>())).prop_map(
        |((at, bytes), value)| {
            let at = at.min(DISK);
            let bytes = bytes.min(DISK - at);
            Change { at, bytes, value }
        },
    )
}

fn window() -> TestMemory {
    TestMemory::new(DISK as usize)
}

fn read(store: &impl Store<TestMemory>) -> Vec<u8> {
    let window = window();
    store.read(0, &window, 0, DISK).unwrap();
    window.bytes_of(0, DISK)
}

fn apply(store: &impl Store<TestMemory>, life: &Rc<Life>, change: &Change) {
    match change.value {
        Some(value) => {
            let window = window();
            window
                .write(0, &vec![value; change.bytes as usize])
                .unwrap();
            store
                .write(change.at, &window.with(life), 0, change.bytes)
                .unwrap();
        }
        None => store.zero(change.at, change.bytes).unwrap(),
    }
}

fn model(bytes: &mut [u8], change: &Change) {
    bytes[change.at as usize..][..change.bytes as usize].fill(change.value.unwrap_or(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Each life ends at some access. What was acknowledged is there in the next, what was under way is old or new in each byte,
    /// everything else is untouched; done anew, it is new.
    #[test]
    fn what_was_acknowledged_survives(lives in vec((vec(changes(), 1..4), 0..150u64), 1..6)) {
        let (image, mut bytes) = image();
        let memory = TestMemory::new(overlay_bytes(DISK).unwrap() as usize);
        for (changes, end) in lives {
            let life = Rc::new(Life::default());
            life.ends.set(Some(end));
            let store = Overlay::new(image.with(&life), memory.with(&life), DISK).unwrap();
            for change in changes {
                apply(&store, &life, &change);
                let acknowledged = life.steps.get() <= end;
                let next = Overlay::new(image.clone(), memory.clone(), DISK).unwrap();
                let old = bytes.clone();
                model(&mut bytes, &change);
                if acknowledged {
                    prop_assert!(read(&next) == bytes, "{change:?}");
                    continue;
                }
                for (at, now) in read(&next).into_iter().enumerate() {
                    prop_assert!(now == old[at] || now == bytes[at], "{change:?}: byte {at}");
                }
                apply(&next, &Rc::default(), &change);
                prop_assert!(read(&next) == bytes, "{change:?}, anew");
                break;
            }
        }
        prop_assert!(image.bytes_of(0, 5) == bytes_of_image());
    }
}

fn bytes_of_image() -> Vec<u8> {
    image().1[..5].to_vec()
}

#[test]
fn ranges_outside_change_nothing() {
    let (image, bytes) = image();
    let memory = TestMemory::new(overlay_bytes(DISK).unwrap() as usize);
    let overlay = Overlay::new(image.clone(), memory.clone(), DISK).unwrap();
    let plain = Image::new(image, DISK);
    let ram = Ram::new(TestMemory::new(DISK as usize));
    let window = window();
    for (at, length) in [
        (DISK, 1),
        (DISK - 1, 2),
        (u64::MAX, 1),
        (1, u64::MAX),
        (0, DISK + 1),
    ] {
        for store in [&overlay as &dyn Store<TestMemory>, &plain, &ram] {
            assert!(store.read(at, &window, 0, length).is_err());
            assert!(store.write(at, &window, 0, length).is_err());
            assert!(store.zero(at, length).is_err());
        }
    }
    // A window that is too short.
    assert!(overlay.read(0, &window, DISK, BLOCK).is_err());
    assert!(overlay.write(0, &window, DISK, BLOCK).is_err());
    assert!(overlay.write(0, &window, u64::MAX, 2 * BLOCK).is_err());
    assert_eq!(read(&overlay), bytes);
    assert_eq!(Store::read(&plain, 0, &window, 0, DISK), Ok(()));
    assert_eq!(window.bytes_of(0, DISK), bytes);
    assert!(plain.write(0, &window, 0, 1).is_err() && plain.zero(0, 1).is_err());
}

#[test]
fn memory_is_as_long_as_is_said() {
    let needed = |bytes| overlay_bytes(bytes);
    assert_eq!(needed(0), Some(0));
    assert_eq!(needed(1), Some(2 * BLOCK));
    assert_eq!(needed(8 * BLOCK * BLOCK), Some(8 * BLOCK * BLOCK + BLOCK));
    assert_eq!(
        needed(8 * BLOCK * BLOCK + 1),
        Some(8 * BLOCK * BLOCK + 3 * BLOCK)
    );
    assert_eq!(needed(u64::MAX), None);
    let (image, _) = image();
    let short = needed(DISK).unwrap() as usize - 1;
    assert!(Overlay::new(image, TestMemory::new(short), DISK).is_none());
}

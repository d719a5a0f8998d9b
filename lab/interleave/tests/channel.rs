//! Every interleaving of the two ends of a channel ([`bulkhead_interleave::channel`]).
//!
//! Planted there, one at a time, and found: the number of a message sent stored or loaded relaxed; that of one taken, likewise; no fence behind the number, or behind the wish to be rung, in either direction.

use bulkhead_interleave::channel::{Receiver, Sender, Shape, open};
use bulkhead_loom_atomics::sync::atomic::AtomicU64;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;
use trying::model;

mod trying;

/// The two regions of a channel with one slot.
struct Regions {
    a: Vec<AtomicU64>,
    b: Vec<AtomicU64>,
    /// Loom lets no load see what is stored later, and so not what a slot is given too early. This stands for the slot: whoever
    /// uses it has to come after the other.
    place: UnsafeCell<()>,
}

fn shape() -> Shape {
    Shape::new(8, 1).unwrap()
}

impl Regions {
    fn new() -> Arc<Self> {
        let region = || -> Vec<AtomicU64> {
            let words = (0..shape().words()).map(|_| AtomicU64::new(0));
            words.collect()
        };
        let regions = Self {
            a: region(),
            b: region(),
            place: UnsafeCell::new(()),
        };
        // Loom's words are made at their first use, which must not be by two at a time.
        for word in regions.a.iter().chain(&regions.b) {
            assert_eq!(word.load(Ordering::Relaxed), 0);
        }
        Arc::new(regions)
    }

    /// Sends a message if there is room.
    fn send(&self, sender: &mut Sender, number: u64) -> bool {
        let free = sender.free() == Ok(1);
        if free {
            self.place.with_mut(|_| ());
            assert_eq!(sender.send(&number.to_ne_bytes()), Ok(false));
        }
        free
    }

    /// Sees the next message, which must be this one, if it is there, and takes it.
    fn take(&self, receiver: &mut Receiver, number: u64) -> bool {
        let mut seen = [0; 8];
        let length = receiver.look(&mut seen).unwrap();
        if length.is_some() {
            self.place.with(|_| ());
            assert_eq!((length, u64::from_ne_bytes(seen)), (Some(8), number));
            receiver.take();
        }
        length.is_some()
    }

    fn sender(&self) -> Sender<'_> {
        open(&self.a, &self.b, shape()).unwrap().0
    }

    fn receiver(&self) -> Receiver<'_> {
        open(&self.b, &self.a, shape()).unwrap().1
    }
}

#[test]
fn a_message_is_seen_whole() {
    model(|| {
        let regions = Regions::new();
        let far = Arc::clone(&regions);
        let thread = thread::spawn(move || {
            let mut receiver = far.receiver();
            let mut next = 7;
            for _ in 0..3 {
                next += u64::from(far.take(&mut receiver, next));
            }
        });
        let mut sender = regions.sender();
        assert!(regions.send(&mut sender, 7));
        regions.send(&mut sender, 8);
        thread.join().unwrap();
    });
}

#[test]
fn a_slot_is_written_when_it_was_read() {
    model(|| {
        let regions = Regions::new();
        assert!(regions.send(&mut regions.sender(), 7));
        let far = Arc::clone(&regions);
        let thread = thread::spawn(move || far.send(&mut far.sender(), 8));
        let mut receiver = regions.receiver();
        assert!(regions.take(&mut receiver, 7));
        let sent = thread.join().unwrap();
        assert_eq!(regions.take(&mut receiver, 8), sent);
    });
}

#[test]
fn who_sleeps_for_a_message_is_rung() {
    model(|| {
        let regions = Regions::new();
        let far = Arc::clone(&regions);
        let thread = thread::spawn(move || {
            far.place.with_mut(|_| ());
            far.sender().send(&7u64.to_ne_bytes()).unwrap()
        });
        let mut receiver = regions.receiver();
        let sleeps = !regions.take(&mut receiver, 7) && receiver.wait();
        let rung = thread.join().unwrap();
        assert!(rung || !sleeps);
        if receiver.taken() == 0 {
            assert!(regions.take(&mut receiver, 7), "it was sent");
        }
    });
}

#[test]
fn who_sleeps_for_room_is_rung() {
    model(|| {
        let regions = Regions::new();
        assert_eq!(regions.sender().send(&7u64.to_ne_bytes()), Ok(false));
        let far = Arc::clone(&regions);
        let thread = thread::spawn(move || far.receiver().take());
        let mut sender = regions.sender();
        let sleeps = sender.send(&8u64.to_ne_bytes()).is_err() && sender.wait();
        let rung = thread.join().unwrap();
        assert!(rung || !sleeps);
    });
}

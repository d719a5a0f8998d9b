extern crate std;

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

/// The two regions of a channel.
struct Regions {
    shape: Shape,
    a: Vec<AtomicU64>,
    b: Vec<AtomicU64>,
}

impl Regions {
    fn new(message: usize, most: usize) -> Self {
        let shape = Shape::new(message, most).unwrap();
        let zeros = || (0..shape.words()).map(|_| AtomicU64::new(0)).collect();
        Self {
            shape,
            a: zeros(),
            b: zeros(),
        }
    }

    fn a(&self) -> (Sender<'_>, Receiver<'_>) {
        open(&self.a, &self.b, self.shape).unwrap()
    }

    fn b(&self) -> (Sender<'_>, Receiver<'_>) {
        open(&self.b, &self.a, self.shape).unwrap()
    }
}

#[test]
fn a_channel_has_a_shape() {
    for (message, most) in [(0, 1), (1, 0), (1, 3), (4097, 1), (1, 131_072)] {
        assert_eq!(Shape::new(message, most), None);
    }
    let shape = Shape::new(9, 4).unwrap();
    assert_eq!(shape.bytes(), 256 + 4 * (8 + 16));
    let regions = Regions::new(9, 4);
    assert!(open(&regions.a[1..], &regions.b, shape).is_none());
    assert!(open(&regions.a, &regions.b[1..], shape).is_none());
}

/// Each length of a message, each place of a slot, no byte of another message.
#[test]
fn messages_come_as_they_were_sent() {
    for message in 1..=17 {
        let regions = Regions::new(message, 2);
        let (mut sender, mut receiver) = (regions.a().0, regions.b().1);
        for (number, length) in (0..=message).chain((0..=message).rev()).enumerate() {
            let sent: Vec<u8> = (0..length).map(|byte| (number * 31 + byte) as u8).collect();
            assert_eq!(sender.send(&sent), Ok(false));
            let mut seen = vec![0xee; message + 1];
            assert_eq!(receiver.look(&mut seen), Ok(Some(length)));
            assert_eq!(seen[..length], sent);
            assert!(seen[length..].iter().all(|byte| *byte == 0xee));
            assert_eq!(receiver.look(&mut seen), Ok(Some(length)), "it stays");
            assert!(!receiver.take());
            assert_eq!(receiver.look(&mut seen), Ok(None));
            assert!(!receiver.take(), "there is none");
        }
        assert_eq!(sender.send(&vec![0; message + 1]), Err(SendError::TooLong));
        let taken = 2 * (message as u64 + 1);
        assert_eq!((sender.sent(), receiver.taken()), (taken, taken));
    }
}

#[test]
fn a_message_that_does_not_fit_stays() {
    let regions = Regions::new(8, 1);
    let (mut sender, mut receiver) = (regions.a().0, regions.b().1);
    sender.send(b"12345").unwrap();
    let mut seen = [0; 8];
    assert_eq!(receiver.look(&mut seen[..4]), Err(LookError::Small(5)));
    assert_eq!(receiver.look(&mut seen), Ok(Some(5)));
}

/// What a test does at an end, and what a reference says of it.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(u8),
    Look,
    Take,
    WaitMessage,
    WaitRoom,
    /// The end starts again.
    Again,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u8>().prop_map(Step::Send),
        2 => Just(Step::Look),
        4 => Just(Step::Take),
        2 => Just(Step::WaitMessage),
        2 => Just(Step::WaitRoom),
        1 => Just(Step::Again),
    ]
}

/// One direction, and what its ends wait for.
#[derive(Default)]
struct Reference {
    queue: VecDeque<u8>,
    receiver_waits: bool,
    sender_waits: bool,
}

proptest! {
    /// Both ends do what they like, in any order: each queue is a queue, an end is told to ring exactly when the other has asked
    /// for that and was not rung since, and starting again changes nothing.
    #[test]
    fn both_directions_are_queues(most in 0u32..4, steps in prop::collection::vec((any::<bool>(), step()), 1..200)) {
        let most = 1 << most;
        let regions = Regions::new(1, most);
        let mut ends = [regions.a(), regions.b()];
        let mut references = [Reference::default(), Reference::default()];
        for (side, step) in steps {
            let (own, other) = (usize::from(side), usize::from(!side));
            let (sender, receiver) = &mut ends[own];
            match step {
                Step::Send(byte) => {
                    let reference = &mut references[own];
                    if reference.queue.len() == most {
                        prop_assert_eq!(sender.send(&[byte]), Err(SendError::Full));
                    } else {
                        let ring = std::mem::take(&mut reference.receiver_waits);
                        prop_assert_eq!(sender.send(&[byte]), Ok(ring));
                        reference.queue.push_back(byte);
                    }
                }
                Step::Look => {
                    let mut seen = [0];
                    let front = references[other].queue.front();
                    prop_assert_eq!(receiver.look(&mut seen), Ok(front.map(|_| 1)));
                    prop_assert!(front.is_none_or(|byte| *byte == seen[0]));
                }
                Step::Take => {
                    let reference = &mut references[other];
                    let taken = reference.queue.pop_front().is_some();
                    let ring = taken && std::mem::take(&mut reference.sender_waits);
                    prop_assert_eq!(receiver.take(), ring);
                }
                Step::WaitMessage => {
                    let reference = &mut references[other];
                    let empty = reference.queue.is_empty();
                    prop_assert_eq!(receiver.wait(), empty);
                    // What it asked for has come already: the next message is another.
                    reference.receiver_waits = empty;
                }
                Step::WaitRoom => {
                    let reference = &mut references[own];
                    prop_assert_eq!(sender.wait(), reference.queue.len() == most);
                    // Rung at the next message that is taken, whether it may sleep or not.
                    reference.sender_waits = true;
                }
                Step::Again => ends[own] = if side { regions.b() } else { regions.a() },
            }
            for (own, other) in [(0, 1), (1, 0)] {
                let (sender, receiver) = (&ends[own].0, &ends[other].1);
                prop_assert_eq!(sender.sent() - receiver.taken(), references[own].queue.len() as u64);
                prop_assert_eq!(sender.free(), Ok(most - references[own].queue.len()));
            }
        }
    }

    /// The other end writes anything anywhere in its region. This end's numbers go up by one for each message at most, or to what
    /// the other end says; each call ends; and when the other end keeps the protocol again, so does the channel.
    #[test]
    fn a_hostile_end_harms_itself(writes in prop::collection::vec((0usize..48, prop_oneof![any::<u64>(), 0u64..8, (0u64..8).prop_map(|n| n.wrapping_neg())], 0u8..4), 1..100)) {
        let regions = Regions::new(8, 4);
        let (mut sender, mut receiver) = regions.a();
        for (word, value, call) in writes {
            regions.b[word % regions.b.len()].store(value, Ordering::Relaxed);
            let (sent, taken) = (sender.sent(), receiver.taken());
            match call {
                0 => {
                    let result = sender.send(b"message");
                    prop_assert_eq!(sender.sent() - sent, u64::from(result.is_ok()));
                }
                1 => {
                    let mut seen = [0; 8];
                    match receiver.look(&mut seen) {
                        Ok(Some(length)) => prop_assert!(length <= 8),
                        Ok(None) => prop_assert_eq!(receiver.taken(), taken),
                        Err(why) => prop_assert_eq!(why, LookError::Broken),
                    }
                }
                2 => { receiver.take(); }
                // It may sleep while nothing changes: no matter what stands there, it does not go round.
                _ => {
                    let _ = receiver.wait();
                    prop_assert!(receiver.wait() || receiver.waiting().is_ok_and(|waiting| waiting > 0));
                    prop_assert!(sender.wait() || sender.free().is_ok_and(|free| free > 0));
                }
            }
        }
        // From here on the other end behaves, with whatever its region says.
        let (mut their_sender, mut their_receiver) = regions.b();
        let mut seen = [0; 8];
        // Each message at most, and once what was broken.
        for _ in 0..=5 {
            let _ = their_receiver.look(&mut seen);
            their_receiver.take();
        }
        prop_assert_eq!(their_receiver.look(&mut seen), Ok(None));
        prop_assert_eq!(sender.free(), Ok(4));
        let _ = receiver.waiting();
        for _ in 0..=5 {
            let _ = receiver.look(&mut seen);
            receiver.take();
        }
        prop_assert_eq!(receiver.look(&mut seen), Ok(None));
        for text in [b"one", b"two"] {
            their_sender.send(text).unwrap();
            prop_assert_eq!(receiver.look(&mut seen), Ok(Some(3)));
            prop_assert_eq!(&seen[..3], text);
            receiver.take();
        }
    }
}

/// As many messages as there are places are believed, and one more is not; what was not sent cannot have been taken.
#[test]
fn numbers_are_believed_up_to_what_can_be() {
    let regions = Regions::new(8, 4);
    let (mut sender, mut receiver) = regions.a();
    let say = |word: usize, value: u64| regions.b[word].store(value, Ordering::Relaxed);
    say(SENT, 4);
    assert_eq!(receiver.waiting(), Ok(4));
    say(SENT, 5);
    assert_eq!(receiver.waiting(), Err(Broken));
    assert_eq!((receiver.taken(), receiver.waiting()), (5, Ok(0)));
    say(SENT, 4);
    assert_eq!(receiver.waiting(), Err(Broken), "it goes back");
    for _ in 0..4 {
        sender.send(b"message").unwrap();
    }
    assert_eq!(sender.send(b"message"), Err(SendError::Full));
    say(TAKEN, 4);
    assert_eq!(sender.free(), Ok(4));
    say(TAKEN, 5);
    assert_eq!(sender.free(), Err(SendError::Broken));
    // A message is as long as the channel has, or no message.
    say(SENT, 6);
    say(regions.shape.place(4), 8);
    let mut seen = [0; 32];
    assert_eq!(receiver.look(&mut seen), Ok(Some(8)));
    say(regions.shape.place(4), 9);
    assert_eq!(receiver.look(&mut seen), Err(LookError::Broken));
}

/// An end that ends between a number and the ring leaves a debt, which its next life sees, and which is paid by ringing once: the
/// other end asks anew before it sleeps.
#[test]
fn a_ring_that_was_not_rung_is_owed() {
    let regions = Regions::new(8, 1);
    let (mut sender, mut receiver) = (regions.a().0, regions.b().1);
    assert!(!sender.owes() && !receiver.owes(), "nothing was sent");
    assert!(receiver.wait());
    assert!(!sender.owes());
    assert_eq!(sender.send(b"1"), Ok(true));
    assert!(regions.a().0.owes());
    assert!(sender.wait());
    assert!(receiver.take());
    assert!(regions.b().1.owes());
    assert!(receiver.wait());
    assert!(!regions.a().0.owes());
    assert_eq!(sender.send(b"2"), Ok(true));
    assert!(!receiver.wait(), "one is there");
    receiver.take();
    assert!(receiver.wait());
}

#[test]
fn numbers_that_wrap_go_on() {
    let regions = Regions::new(8, 2);
    let start = u64::MAX;
    for (region, word) in [(&regions.a, SENT), (&regions.b, TAKEN)] {
        region[word].store(start, Ordering::Relaxed);
    }
    let (mut sender, mut receiver) = (regions.a().0, regions.b().1);
    let mut seen = [0; 8];
    for text in [b"a", b"b", b"c"] {
        assert!(receiver.wait());
        assert_eq!(sender.send(text), Ok(true));
        assert_eq!(receiver.look(&mut seen), Ok(Some(1)));
        assert_eq!(&seen[..1], text);
        // At zero it rings for nothing: nobody has ever asked for that.
        receiver.take();
    }
}

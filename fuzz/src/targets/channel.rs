//! A channel whose other end writes anything.

use std::sync::atomic::{AtomicU64, Ordering};

use bulkhead_channel::{LookError, Shape, open};

use crate::Target;
use crate::engine::Input;

/// This target.
pub const TARGET: Target = Target {
    name: "channel",
    seeds,
    words: &[],
    run,
};

/// Words of the other end's region at which this one looks, besides slots.
const HEAD: [usize; 4] = [0, 8, 16, 24];

/// Returns seeds: the shape, and steps. What an honest end does, and one that counts too far.
fn seeds() -> Vec<Vec<u8>> {
    let write = |word: u8, value: u64| [&[0x80 | word][..], &value.to_le_bytes()].concat();
    let honest = [
        vec![8, 2, 0, 5],
        write(2, 1),
        vec![0, 5],
        write(4, 3),
        write(0, 1),
        vec![1, 8, 2, 1, 8],
    ];
    let broken = [
        vec![8, 2],
        write(0, 77),
        vec![1, 8],
        write(1, 9),
        vec![0, 1, 4],
    ];
    vec![honest.concat(), broken.concat(), vec![1, 0, 3, 4, 3, 4]]
}

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let message = usize::from(input.u8() % 24) + 1;
    let Some(shape) = Shape::new(message, 1 << (input.u8() % 4)) else {
        unreachable!("a shape of these numbers");
    };
    let region = || -> Vec<AtomicU64> { (0..shape.words()).map(|_| AtomicU64::new(0)).collect() };
    let (own, peer) = (region(), region());
    let Some((mut sender, mut receiver)) = open(&own, &peer, shape) else {
        unreachable!("regions of its size");
    };
    let most = shape.messages();
    while !input.is_empty() {
        let (sent, taken) = (sender.sent(), receiver.taken());
        let told = peer[0].load(Ordering::Relaxed);
        // Either as before, one further, or where the other end says.
        let mut one = (sent, taken);
        match input.u8() {
            what @ 0x80.. => {
                let what = usize::from(what & 0x7f);
                let word = HEAD.get(what).copied().unwrap_or(28 + what);
                peer[word % peer.len()].store(input.u64(), Ordering::Relaxed);
            }
            0 => {
                let length = usize::from(input.u8());
                let free = sender.free();
                let result = sender.send(&vec![0x5a; length]);
                let fits = length <= message && free.is_ok_and(|free| free > 0);
                assert_eq!(result.is_ok(), fits);
                one.0 = sent.wrapping_add(u64::from(fits));
            }
            1 => {
                let mut seen = vec![0xee; usize::from(input.u8())];
                let before = seen.clone();
                match receiver.look(&mut seen) {
                    Ok(Some(length)) => {
                        assert!(length <= message);
                        assert_eq!(seen[length..], before[length..]);
                    }
                    Ok(None) => assert_eq!(seen, before),
                    Err(LookError::Small(length)) => assert!(length > seen.len()),
                    Err(LookError::Broken) => one.1 = taken.wrapping_add(1),
                }
            }
            2 => {
                receiver.take();
                one.1 = taken.wrapping_add(1);
            }
            3 => {
                receiver.wait();
                // A second time, there is nothing that it has not seen.
                let sleeps = receiver.wait();
                assert_eq!(sleeps, receiver.waiting() == Ok(0));
            }
            _ => {
                let sleeps = sender.wait();
                assert_eq!(sleeps, !sender.free().is_ok_and(|free| free > 0));
            }
        }
        assert_eq!(sender.sent(), one.0);
        let now = receiver.taken();
        assert!(now == taken || now == one.1 || now == told);
    }
    // The other end behaves from here on, with what its region says.
    let Some((mut theirs, mut reads)) = open(&peer, &own, shape) else {
        unreachable!("the same regions");
    };
    let mut seen = vec![0; message];
    while reads.look(&mut seen) != Ok(None) {
        reads.take();
    }
    assert_eq!(sender.free(), Ok(most));
    while receiver.look(&mut seen) != Ok(None) {
        receiver.take();
    }
    for number in 0..2 * most {
        let text = vec![number as u8; message];
        assert!(theirs.send(&text).is_ok());
        assert_eq!(receiver.look(&mut seen), Ok(Some(message)));
        assert_eq!(seen, text);
        receiver.take();
    }
}

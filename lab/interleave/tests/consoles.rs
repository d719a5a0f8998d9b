//! What a manager reads of a VM's console and types there, while the pCPU that drains the console goes on.
//!
//! Planted, one at a time, each of which fails a model: bytes that are not announced, or without the fence behind; a reader without its fence, or that does
//! not look at the announcement again; the head stored relaxed; no fence in `listen` or in `heard`; typed bytes posted relaxed. (Loom runs no load late, so that it does not see why they are given with release.)

use bulkhead_interleave::backlog::Backlog;
use bulkhead_interleave::events::{Changed, Events};
use bulkhead_interleave::typed::Typed;
use loom::sync::Arc;
use loom::thread;
use trying::model;

mod trying;

/// Reads: the number of the first byte, and the bytes.
fn read<const N: usize>(log: &Backlog<N>, from: u64, most: u32) -> (u64, Vec<u8>, u64) {
    let mut words = [0; 8];
    let found = log.read(from, most, &mut words);
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    let bytes = bytes.take(found.bytes as usize);
    (found.first, bytes.collect(), found.next)
}

#[test]
fn what_a_reader_finds_is_in_its_place_while_it_is_overtaken() {
    model(|| {
        let log = Arc::new(Backlog::<4>::new());
        log.keep();
        log.append(0..30);
        let reader = Arc::clone(&log);
        let thread = thread::spawn(move || {
            let (first, bytes, next) = read(&reader, 12, 8);
            for (number, byte) in (first..).zip(&bytes) {
                assert_eq!(u64::from(*byte), number);
            }
            assert!(first + bytes.len() as u64 <= next);
        });
        // Over the bytes from 12 on.
        log.append(30..38);
        log.append(38..46);
        thread.join().unwrap();
    });
}

#[test]
fn who_has_read_all_is_told_of_what_follows() {
    model(|| {
        let log = Arc::new(Backlog::<4>::new());
        let events = Arc::new(Events::new());
        log.keep();
        // Loom wants each to be read once before it is shared.
        assert!(!events.heard(u64::MAX));
        assert_eq!((read(&log, 0, 8).2, events.take()), (0, None));
        let (to, told) = (Arc::clone(&log), Arc::clone(&events));
        let thread = thread::spawn(move || {
            to.append(0..1);
            told.heard(1 << 5)
        });
        // As the session does it.
        let (first, mut bytes, mut next) = read(&log, 0, 8);
        if first + bytes.len() as u64 == next {
            events.listen(5);
            (_, bytes, next) = read(&log, 0, 8);
        }
        let is_told = thread.join().unwrap();
        assert!(is_told || next == 1, "it sleeps for ever");
        assert!(bytes.len() as u64 == next);
        assert_eq!(events.take(), is_told.then_some((5, Changed::Output)));
    });
}

#[test]
fn what_is_typed_is_given_once_and_whole() {
    model(|| {
        let typed = Arc::new(Typed::new());
        assert_eq!(typed.taken(), None);
        let other = Arc::clone(&typed);
        let drainer = thread::spawn(move || {
            let mut got = Vec::new();
            for _ in 0..2 {
                other.give(|vm, byte| {
                    got.push((vm, byte));
                    got.len() != 3
                });
            }
            got
        });
        assert!(typed.post(3, 2, [0x6261, 0, 0]));
        let first = typed.taken();
        assert!(matches!(first, None | Some(2)));
        // The next ones only when these have been given.
        let next = first.is_some() && typed.post(4, 2, [0x6463, 0, 0]);
        let mut got = drainer.join().unwrap();
        typed.give(|vm, byte| {
            got.push((vm, byte));
            true
        });
        let both = [(3, b'a'), (3, b'b'), (4, b'c'), (4, b'd')];
        let expected = if next { &both[..] } else { &both[..2] };
        assert_eq!(got, expected);
        assert!(typed.taken().is_some());
    });
}

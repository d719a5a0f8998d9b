//! Every interleaving of a guest that looks for wishes and a VM that has them ([`bulkhead_interleave::word`]).
//!
//! Planted there, one at a time, and found: the request or the answer stored relaxed; no fence behind the look.

use bulkhead_interleave::word::{Asker, Listener, Reply, Request, Requests};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use trying::model;

mod trying;

/// Words between two VMs, one a wish and one its answer, and what each is about.
#[derive(Default)]
struct Wished {
    request: Word,
    answer: Word,
    before: AtomicU32,
    after: AtomicU32,
}

/// A word as the library takes it in here.
struct Word(bulkhead_loom_atomics::sync::atomic::AtomicU64);

impl Default for Word {
    fn default() -> Self {
        Self(bulkhead_loom_atomics::sync::atomic::AtomicU64::new(0))
    }
}

#[test]
fn a_wish_is_seen_with_what_was_written_before_it_and_so_is_its_answer() {
    model(|| {
        let wished = Arc::new(Wished::default());
        // Loom's words are made at their first use, which must not be by two at a time.
        for word in [&wished.request, &wished.answer] {
            assert_eq!(word.0.load(Ordering::Relaxed), 0);
        }
        let guest = Arc::clone(&wished);
        let thread = thread::spawn(move || {
            let mut listener = Listener::new(&guest.request.0, &guest.answer.0, Requests::ALL);
            for _ in 0..2 {
                let wish = listener.look();
                if let Some(wish) = wish {
                    assert_eq!(wish, Request::Pause);
                    assert_eq!(guest.before.load(Ordering::Relaxed), 1);
                    guest.after.store(1, Ordering::Relaxed);
                }
                listener.answer();
            }
        });
        let mut asker = Asker::new(&wished.request.0, &wished.answer.0);
        wished.before.store(1, Ordering::Relaxed);
        asker.ask(Request::Pause);
        if let Some(reply) = asker.reply() {
            assert_eq!(reply, Reply::Done);
            assert_eq!(wished.after.load(Ordering::Relaxed), 1);
        }
        thread.join().unwrap();
    });
}

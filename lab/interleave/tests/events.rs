//! What managers are told of VMs that change meanwhile.
//!
//! Planted, one at a time, each of which fails a model: the mark relaxed, or set by a load and a store; the bit cleared relaxed or by a store;
//! `forget` relaxed; no fence behind a mark, or behind a turn; a turn that ends without a look; a look before the turn ends.

use bulkhead_interleave::events::{Changed, Events};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use trying::model;

mod trying;

/// A VM that changes twice, and what its manager is told. How the thread sleeps and is woken that tells it is in `models.rs`.
struct Board {
    state: AtomicU32,
    events: Events,
}

impl Board {
    fn new() -> Arc<Self> {
        let board = Arc::new(Self {
            state: AtomicU32::new(0),
            events: Events::new(),
        });
        // Loom wants each to be read once before it is shared.
        assert_eq!(board.tell(), None);
        board.events.forget();
        assert_eq!(board.state.load(Ordering::Relaxed), 0);
        board
    }

    fn change(&self, to: u32) {
        self.state.store(to, Ordering::Relaxed);
        let _wakes = self.events.mark(5, Changed::State);
    }

    /// Tells what there is to tell: the state that the manager has then.
    fn tell(&self) -> Option<u32> {
        let mut told = None;
        while let Some((vm, changed)) = self.events.take() {
            assert_eq!((vm, changed), (5, Changed::State));
            told = Some(self.state.load(Ordering::Relaxed));
        }
        told
    }
}

#[test]
fn what_a_manager_is_told_last_is_what_holds() {
    model(|| {
        let board = Board::new();
        let other = Arc::clone(&board);
        let thread = thread::spawn(move || (1..=2).for_each(|state| other.change(state)));
        let mut last = 0;
        for _ in 0..2 {
            last = board.tell().unwrap_or(last);
        }
        thread.join().unwrap();
        let left = board.tell();
        assert_eq!(left.unwrap_or(last), 2);
    });
}

#[test]
fn two_changes_of_two_pcpus_are_both_told() {
    model(|| {
        let events = Arc::new(Events::new());
        let states = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        assert_eq!(events.take(), None);
        assert!(states.iter().all(|it| it.load(Ordering::Relaxed) == 0));
        let both = [0, 1].map(|vm: usize| {
            let (events, states) = (Arc::clone(&events), Arc::clone(&states));
            thread::spawn(move || {
                states[vm].store(1, Ordering::Relaxed);
                let _wakes = events.mark(vm, Changed::State);
            })
        });
        let mut told = [0, 0];
        let mut tell = || {
            while let Some((vm, _)) = events.take() {
                told[vm] = states[vm].load(Ordering::Relaxed);
            }
        };
        tell();
        for thread in both {
            thread.join().unwrap();
        }
        tell();
        assert_eq!(told, [1, 1]);
    });
}

#[test]
fn what_is_read_after_a_port_was_opened_is_as_new_as_what_was_forgotten() {
    model(|| {
        let board = Board::new();
        let other = Arc::clone(&board);
        let thread = thread::spawn(move || other.change(1));
        board.events.forget();
        let read = board.state.load(Ordering::Relaxed);
        thread.join().unwrap();
        assert!(read == 1 || board.tell() == Some(1));
    });
}

/// Who serves the port finds what somebody has marked who did not wake anybody for it.
#[test]
fn what_is_marked_during_a_turn_is_found_or_somebody_is_woken() {
    model(|| {
        let events = Arc::new(Events::new());
        let woken = Arc::new(AtomicU32::new(0));
        assert!(!events.any());
        events.begin_turn();
        assert!(!events.end_turn());
        assert_eq!(woken.load(Ordering::Relaxed), 0);
        let (other, wakes) = (Arc::clone(&events), Arc::clone(&woken));
        let marker = thread::spawn(move || {
            for vm in [3, 9] {
                if other.mark(vm, Changed::Limits) {
                    wakes.store(1, Ordering::Relaxed);
                }
            }
        });
        let (mut told, mut left) = (0u64, false);
        for _ in 0..2 {
            events.begin_turn();
            while let Some((vm, _)) = events.take() {
                told |= 1 << vm;
            }
            left = events.end_turn();
        }
        marker.join().unwrap();
        let looks = left || woken.load(Ordering::Relaxed) == 1;
        assert!(told == 1 << 3 | 1 << 9 || looks, "told {told:#x}");
    });
}

//! The window of a device in the memory of its backend's VM, from one life of that VM to the next, under loom.
//!
//! With at most three switches that are not forced. Planted, one at a time, in [`served`](bulkhead_interleave::served): what the service thread changes is
//! relaxed; `has_gone`, `get` or `comes` is; a window that is made is `Up` whatever has happened meanwhile; who has asked goes on at once; a VM that ends
//! before its window is made does not ask. Each fails the model.

use bulkhead_interleave::served::{Served, ServedWord};
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;
use trying::model_of;

mod trying;

/// Lives of the backend's VM.
const LIVES: u32 = 2;
/// What the memory holds that a window was made in.
const WINDOW: u32 = 10;
/// What the last words of the service thread to a VM that has ended leave there.
const LAST: u32 = 20;

/// The word, the memory of the VM, whether it has ended for good, and by what the two sides are told.
struct Shared {
    served: ServedWord,
    memory: AtomicU32,
    ended: AtomicU32,
    to_service: Notify,
    to_vm: Notify,
}

/// The service thread: it makes a window where the memory is new, and touches none of it behind `Gone`.
fn serve(shared: &Shared) {
    while shared.ended.load(Ordering::Relaxed) == 0 {
        match shared.served.get() {
            Served::Comes => {
                let memory = shared.memory.load(Ordering::Relaxed);
                assert!(memory <= LIVES, "memory that was not made anew: {memory}");
                shared.memory.store(WINDOW, Ordering::Relaxed);
                shared.served.made();
                continue;
            }
            Served::Up => {
                let memory = shared.memory.load(Ordering::Relaxed);
                assert_eq!(memory, WINDOW, "a window that is not there");
            }
            Served::Leaves => {
                shared.memory.store(LAST, Ordering::Relaxed);
                shared.served.let_go();
                shared.to_vm.notify();
                continue;
            }
            Served::Gone => {}
        }
        shared.to_service.wait();
    }
}

/// No life's memory is touched by who served the one before, and each window is made in memory that is new.
#[test]
fn a_window_is_let_go_of_before_the_next_life() {
    model_of(10_000, Some(3), || {
        let shared = Arc::new(Shared {
            served: ServedWord::new(),
            memory: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            to_service: Notify::new(),
            to_vm: Notify::new(),
        });
        assert_eq!(shared.served.get(), Served::Gone);
        let other = Arc::clone(&shared);
        let service = thread::spawn(move || serve(&other));
        for life in 1..=LIVES {
            shared.memory.store(life, Ordering::Relaxed);
            assert_eq!(shared.memory.load(Ordering::Relaxed), life, "touched");
            shared.served.comes();
            shared.to_service.notify();
            while !shared.served.has_gone() {
                shared.to_service.notify();
                shared.to_vm.wait();
            }
        }
        shared.ended.store(1, Ordering::Relaxed);
        shared.to_service.notify();
        service.join().unwrap();
    });
}

//! A guest that must not be interrupted looks once per period whether somebody wants it to pause or to stop, and answers by itself. A look
//! is a load and a comparison: no exit, and nothing that depends on who asks.
//!
//! Who asks is another VM. Each side writes one word of memory that it shares with the other, and reads the other's:
//!
//! | word | where | written by |
//! | --- | --- | --- |
//! | request | first of a region that the one who asks has `"rw"` and the guest `"r"` | [`Asker`] |
//! | answer | first of a region that the guest has `"rw"` and the one who asks `"r"` | [`Listener`] |
//!
//! ```toml
//! [shared.wishes]
//! size = "4KiB"
//! ipa = "0x70000000"
//! vms = { requester = "rw", loop = "r" }
//!
//! [shared.answers]
//! size = "4KiB"
//! ipa = "0x70001000"
//! vms = { requester = "r", loop = "rw" }
//! ```
//!
//! Words have 64 bits: a [`Wish`] in the lowest eight, a sequence number in bits 8 to 39, zeros above. The answer is the request that it is
//! about, with a [`Reply`] in its place of the wish. Zeros, which is what shared memory holds when the board starts, are no request.
//!
//! **The other side may write anything, at any time.** A [`Listener`] takes what it does not know, or does not grant, for a wish
//! that it refuses; one look answers one request at most, so a flood of them costs a period what one request does. An [`Asker`] takes an
//! answer to another request, or to none, for no answer.
//!
//! # In a control loop
//!
//! ```
//! # use bulkhead_poll::{Listener, Wish, Wishes};
//! # use core::sync::atomic::AtomicU64;
//! # let (request, answer) = (AtomicU64::new(0), AtomicU64::new(0));
//! # bulkhead_poll::Asker::new(&request, &answer).ask(Wish::Stop);
//! let mut listener = Listener::new(&request, &answer, Wishes::ALL);
//! let mut paused = false;
//! loop {
//!     // Here: wait for the next period.
//!     match listener.look() {
//!         None => {}
//!         Some(Wish::Run) => paused = false,
//!         Some(Wish::Pause) => paused = true,
//!         Some(Wish::Stop) => break,
//!     }
//!     // What has been done for the wish is done; whoever asked may rely on it.
//!     listener.answer();
//!     if !paused {
//!         // The work of a period.
//!     }
//! }
//! ```
//!
//! The answer is a promise: what the guest wrote before it is seen by whoever has read it, and what the other side wrote before it
//! asked is seen after the look.
#![no_std]
#![forbid(unsafe_code)]

mod word;

pub use word::{Asker, Listener, Reply, Wish, Wishes};

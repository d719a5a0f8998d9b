//! A guest that must not be interrupted polls once per period for a request to pause or to stop,
//! and answers when it has complied. A poll is a load and a comparison: no exit, and no dependence
//! on the side that asks.
//!
//! The asker is another VM. Each side writes one word of memory that it shares with the other, and
//! reads the other's word:
//!
//! | word | place | written by |
//! | --- | --- | --- |
//! | request | first word of a region that the asker has `"rw"` and the guest `"r"` | [`Asker`] |
//! | answer | first word of a region that the guest has `"rw"` and the asker `"r"` | [`Listener`] |
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
//! Words have 64 bits: a [`Request`] in the lowest eight, a sequence number in bits 8 to 39, zeros
//! above. The answer is the request word with a [`Reply`] in place of the request. A word of zeros,
//! which is what shared memory holds when the board starts, is no request.
//!
//! **The other side may write anything, at any time.** A [`Listener`] refuses a request that it
//! does not know or does not allow; one poll answers one request at most, so a flood of requests
//! costs a period as much as one. An [`Asker`] ignores an answer to another request, or to none.
//!
//! # In a control loop
//!
//! ```
//! # use bulkhead_poll::{Listener, Request, Requests};
//! # use core::sync::atomic::AtomicU64;
//! # let (request, answer) = (AtomicU64::new(0), AtomicU64::new(0));
//! # bulkhead_poll::Asker::new(&request, &answer).ask(Request::Stop);
//! let mut listener = Listener::new(&request, &answer, Requests::ALL);
//! let mut paused = false;
//! loop {
//!     // Here: wait for the next period.
//!     match listener.look() {
//!         None => {}
//!         Some(Request::Run) => paused = false,
//!         Some(Request::Pause) => paused = true,
//!         Some(Request::Stop) => break,
//!     }
//!     // The guest has complied; the asker may rely on it.
//!     listener.answer();
//!     if !paused {
//!         // The work of a period.
//!     }
//! }
//! ```
//!
//! The answer is a promise: an asker that has read it sees what the guest wrote before it, and the
//! guest sees after the poll what the asker wrote before the request.
#![no_std]
#![forbid(unsafe_code)]

mod word;

pub use word::{Asker, Listener, Reply, Request, Requests};

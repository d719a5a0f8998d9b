//! Messages between two VMs over a channel (`[channel.NAME]` of a description): a queue each way, in order, none twice, no lock,
//! and no trust in the other end. `include/bulkhead_channel.h` is the same for C, from the same table:
//!
//! | bytes of an end's own region | what | written by its owner |
//! | --- | --- | --- |
//! | 0 | messages that it has sent, ever | after the message |
//! | 64 | messages that it has taken from the other end's region, ever | after it has read the message |
//! | 128 | it is to be rung when the other end's number at 0 gets here | before it sleeps for a message |
//! | 192 | it is to be rung when the other end's number at 64 gets here | before it sleeps for room |
//! | 256 + n x slot | slot of message m, n = m modulo the number of slots: its bytes, then the message | before the number at 0 |
//!
//! Numbers are 64 bits wide, in the byte order of the machine. A slot is 8 bytes and as many as the longest message has,
//! rounded up to 8. How long that is, how many slots there are (a power of two) and where the regions lie is in the node
//! `bulkhead,channel` of the device tree: nothing of it is read from memory that the other end writes. Memory of zeros, which is
//! what is there when the board starts, is an empty channel.
//!
//! **The other end may write anything, at any time.** It can lose and damage messages that it sends, and those that it was sent;
//! it cannot make this end read or write elsewhere, or do more in a call than copy one message. What it says is looked at once.
//!
//! **Either end may start again.** All that it has to know is in its own region, which outlives it: a message is sent when its
//! number is written, and taken by [`Receiver::take`], when whoever took it has done what it says. What was sent once comes once;
//! a message that was [seen](Receiver::look) and not taken is seen again. A doorbell that was not rung any more is owed
//! ([`Sender::owes`], [`Receiver::owes`]).
//!
//! ```
//! # use core::sync::atomic::AtomicU64;
//! use bulkhead_channel::{Shape, open};
//!
//! let shape = Shape::new(16, 4).expect("four messages of 16 bytes");
//! # let zeros = || -> Vec<AtomicU64> { (0..shape.words()).map(|_| AtomicU64::new(0)).collect() };
//! # let (sensor, screen) = (zeros(), zeros());
//! // At one end: its own region, and that of the other.
//! let (mut sender, _) = open(&sensor, &screen, shape).expect("regions that hold it");
//! assert_eq!(sender.send(b"42 degrees"), Ok(false), "nobody sleeps");
//!
//! // At the other.
//! let (_, mut receiver) = open(&screen, &sensor, shape).expect("regions that hold it");
//! let mut message = [0; 16];
//! assert_eq!(receiver.look(&mut message), Ok(Some(10)));
//! assert_eq!(&message[..10], b"42 degrees");
//! assert!(!receiver.take());
//! assert!(receiver.wait(), "nothing more is there: it may sleep until it is rung");
//! assert_eq!(sender.send(b"43 degrees"), Ok(true), "that is, now");
//! ```
//!
//! Whoever is told to ring writes to the doorbell's page after a DSB (`dsb ishst`), which orders the write after those of the
//! message. An end that polls never calls `wait`, and is never rung.
#![no_std]
#![forbid(unsafe_code)]

mod queue;

pub use queue::{Broken, LookError, Receiver, SendError, Sender, Shape, open};

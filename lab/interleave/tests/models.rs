//! Every interleaving of two or three pCPUs.
//!
//! A model that passes with the defect that it is there for says nothing. So these were planted, one at a time, in the code of `core` that they run. Each fails a model:
//!
//! | protocol | planted | fails |
//! | --- | --- | --- |
//! | mailbox | the bit set by a load and a store, or relaxed; the SGI before the bit | [`a_message_is_seen_with_what_was_written_before_it`] |
//! | waking the drainer | no fence on either side | [`the_drainer_does_not_sleep_on_a_byte`] |
//! | room | the mark by a store; a consumer that only reads it | [`nobody_waits_for_room_that_is_there`] |
//! | the root of a VM | the message after the grip is asked for; the mailbox opened before the root is given back; given back without the grip | [`a_root_is_never_there_with_the_sgi_and_no_message_is_left`] |
//! | | no mark for who comes second, or it is forgotten behind the SGI | [`el2_wakes_for_each_message_while_it_has_the_pcpu`] |
//! | requests of a device | `released`, or `release` that finds it, relaxed; a mark relaxed on either side; marks taken by a store | [`a_release_is_the_end_of_what_the_service_thread_does`], [`a_mark_brings_its_chain`] |
//! | InterruptStatus | one of the two fences gone; no second look | [`the_page_says_what_the_interrupt_status_is`] |
//! | telling a backend | a fence that orders no store before a load; the bits set by a load and a store; the word taken so | [`no_backend_sleeps_on_what_it_is_told`], [`one_of_two_threads_interrupts_a_backend`] |
//!
//! Likewise in the doorbell itself: `waits` cleared by a store, or behind the interrupt, or not set.

use bulkhead_interleave::awake::Awake;
use bulkhead_interleave::doorbell::{Doorbell, Rung};
use bulkhead_interleave::interrupt::{CONFIG, Copied, InterruptStatus, USED};
use bulkhead_interleave::mailbox::Mailboxes;
use bulkhead_interleave::pending::PendingDevices;
use bulkhead_interleave::requests::{Release, Requests};
use bulkhead_interleave::ring::Ring;
use bulkhead_interleave::said::Said;
use bulkhead_interleave::sgis::Sgis;
use bulkhead_interleave::stage2_claim::Stage2Claim;
use bulkhead_interleave::told::{self, tell};
use bulkhead_interleave::vcpu_location::VcpuLocation;
use bulkhead_interleave::wants_space::WantsSpace;
use bulkhead_loom_atomics::sync::atomic;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;
use trying::model;

mod trying;

#[test]
fn a_ring_loses_and_doubles_nothing() {
    model(|| {
        let ring = Arc::new(Ring::<2>::new());
        assert_eq!(ring.len(), 0);
        let consumer = Arc::clone(&ring);
        let take = move || (0..2).filter_map(|_| consumer.pop()).collect::<Vec<u8>>();
        let thread = thread::spawn(take);
        let sent: Vec<u8> = (1..=3).filter(|byte| ring.push(*byte)).collect();
        let mut got = thread.join().unwrap();
        got.extend(std::iter::from_fn(|| ring.pop()));
        assert_eq!(got, sent);
    });
}

#[test]
fn several_bytes_are_seen_together_or_not_at_all() {
    model(|| {
        let ring = Arc::new(Ring::<4>::new());
        assert_eq!(ring.len(), 0);
        let consumer = Arc::clone(&ring);
        let take = move || (0..4).map_while(|_| consumer.pop()).collect::<Vec<u8>>();
        let thread = thread::spawn(take);
        for both in [b"ab", b"cd"] {
            assert!(ring.push_all(both));
        }
        let mut got = thread.join().unwrap();
        assert!(got.len().is_multiple_of(2), "half a line: {got:?}");
        got.extend(std::iter::from_fn(|| ring.pop()));
        assert_eq!(got, b"abcd");
    });
}

/// The mailboxes, where vCPU 0 is, and the SGI of its pCPU.
#[derive(Default)]
struct Mail {
    mailboxes: Mailboxes,
    location: VcpuLocation,
    sgis: Sgis<1>,
}

impl Mail {
    fn new() -> Self {
        let mail = Self::default();
        // Loom's words are made at their first use, which must not be by two at a time.
        assert_eq!((mail.location.of(0), mail.mailboxes.take(0)), (0, 0));
        mail
    }

    /// The messages of vCPU 0, if the SGI says that there are some.
    fn receive(&self) -> u32 {
        if self.sgis.take(0) {
            self.mailboxes.take(0)
        } else {
            0
        }
    }
}

#[test]
fn a_message_is_seen_with_what_was_written_before_it() {
    model(|| {
        let mail = Arc::new(Mail::new());
        let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let senders = [0, 1].map(|n: usize| {
            let (mail, words) = (Arc::clone(&mail), Arc::clone(&words));
            thread::spawn(move || {
                words[n].store(1, Ordering::Relaxed);
                let Mail {
                    mailboxes,
                    location,
                    sgis,
                } = &*mail;
                mailboxes.post(0, 1 << n, location, sgis);
            })
        });
        let mut seen = mail.receive();
        for n in 0..2 {
            assert!(seen >> n & 1 == 0 || words[n].load(Ordering::Relaxed) == 1);
        }
        for sender in senders {
            sender.join().unwrap();
        }
        seen |= mail.receive();
        assert_eq!(seen, 3, "a message without an SGI");
    });
}

#[test]
fn the_drainer_does_not_sleep_on_a_byte() {
    model(|| {
        let awake = Arc::new(Awake::new());
        assert!(awake.wake());
        let ring = Arc::new(Ring::<2>::new());
        assert!(ring.is_empty());
        let producer = (Arc::clone(&awake), Arc::clone(&ring));
        let thread = thread::spawn(move || {
            assert!(producer.1.push(7));
            producer.0.wake()
        });
        let taken = ring.pop().is_some();
        let sleeps = !taken && {
            awake.sleep();
            ring.pop().is_none()
        };
        let told = thread.join().unwrap();
        assert!(!sleeps || told, "it sleeps, and nobody tells it");
    });
}

/// Two VMs say something, one of which had said something before that has been looked at: the drainer finds what each has, or is told.
#[test]
fn the_drainer_looks_at_who_has_said_something() {
    model(|| {
        let (awake, said) = (Arc::new(Awake::new()), Arc::new(Said::new()));
        let rings = [0, 1].map(|_| Arc::new(Ring::<2>::new()));
        said.say(0);
        assert!(awake.wake() && rings.iter().all(|ring| ring.is_empty()));
        let producer = (Arc::clone(&awake), Arc::clone(&said));
        let theirs = rings.each_ref().map(Arc::clone);
        // It wakes once for both: of two swaps beside a store, loom (0.7.2) does not know that the store cannot come between what a swap reads and
        // what it writes.
        let thread = thread::spawn(move || {
            for (n, ring) in theirs.iter().enumerate() {
                assert!(ring.push(7));
                producer.1.say(n);
            }
            producer.0.wake()
        });
        let mut taken = [false; 2];
        let look = |taken: &mut [bool; 2]| {
            let bits = said.take();
            for n in 0..2 {
                taken[n] |= bits >> n & 1 != 0 && rings[n].pop().is_some();
            }
        };
        look(&mut taken);
        awake.sleep();
        look(&mut taken);
        let told = thread.join().unwrap();
        assert!(told || taken == [true; 2], "it sleeps, and nobody tells it");
        look(&mut taken);
        assert_eq!(taken, [true; 2], "it has been told, and looks elsewhere");
    });
}

#[test]
fn nobody_waits_for_room_that_is_there() {
    model(|| {
        let wants = Arc::new(WantsSpace::new());
        assert!(!wants.made());
        let ring = Arc::new(Ring::<1>::new());
        assert!(ring.push(1));
        let producer = (Arc::clone(&wants), Arc::clone(&ring));
        let thread = thread::spawn(move || {
            producer.1.free() > 0 || {
                producer.0.want();
                producer.1.free() > 0
            }
        });
        assert_eq!(ring.pop(), Some(1));
        let tells = wants.made();
        let found = thread.join().unwrap();
        assert!(found || tells, "the producer waits, and nobody tells it");
    });
}

/// The pCPU of a VM whose stage 2 others take away: the root is there, the SGI is pending, messages.
#[derive(Default)]
struct Taken {
    claim: Stage2Claim,
    gone: AtomicU32,
    sgi: AtomicU32,
    mail: AtomicU32,
}

impl Taken {
    /// Another pCPU wants this one (`hw/gic/revoke.rs`, `mailbox.rs`).
    fn kick(&self, message: u32) {
        self.mail.fetch_or(message, Ordering::AcqRel);
        if !self.claim.take() {
            return;
        }
        self.gone.store(1, Ordering::Relaxed);
        loop {
            self.claim.serve();
            // The barriers before the SGI, and the SGI.
            self.sgi.swap(1, Ordering::AcqRel);
            if self.claim.taken() {
                break;
            }
        }
    }

    /// EL2 has the pCPU, and takes the SGI if it is pending; the messages that it finds.
    fn poll(&self) -> u32 {
        if self.sgi.swap(0, Ordering::AcqRel) == 0 {
            return 0;
        }
        self.mail.swap(0, Ordering::AcqRel)
    }

    /// The guest runs for a moment, and comes to EL2 if it cannot; the messages that EL2 finds.
    fn run(&self) -> u32 {
        if self.sgi.load(Ordering::Acquire) != 0 {
            let gone = self.gone.load(Ordering::Relaxed);
            assert_eq!(gone, 1, "the guest gets an SGI that is not its own");
        }
        if !self.claim.is_gone() {
            return 0;
        }
        let given = self.claim.give(|| {
            self.gone.store(0, Ordering::Relaxed);
            self.sgi.swap(0, Ordering::AcqRel);
        });
        if given {
            self.mail.swap(0, Ordering::AcqRel)
        } else {
            0
        }
    }
}

/// Two others want the pCPU, while it does `look` once; then it does so until it `is_done`.
fn wanted_by_two(look: fn(&Taken) -> u32, is_done: fn(&Taken) -> bool) {
    // Three pCPUs with that many steps are too much for all: each switch of pCPUs that is not forced counts, and four are made.
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(move || {
        let shared = Arc::new(Taken::default());
        assert!(!shared.claim.is_gone());
        let kickers = [1, 2].map(|message| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.kick(message))
        });
        let mut got = look(&shared);
        for kicker in kickers {
            kicker.join().unwrap();
        }
        while !is_done(&shared) {
            got |= look(&shared);
        }
        assert_eq!(got, 3, "a message is left");
        // The guest finds nothing of it.
        shared.run();
        assert_eq!(shared.gone.load(Ordering::Relaxed), 0);
        assert_eq!(shared.sgi.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_root_is_never_there_with_the_sgi_and_no_message_is_left() {
    wanted_by_two(Taken::run, |shared| !shared.claim.is_gone());
}

#[test]
fn el2_wakes_for_each_message_while_it_has_the_pcpu() {
    wanted_by_two(Taken::poll, |shared| {
        shared.sgi.load(Ordering::Acquire) == 0
    });
}

/// Ticks from one interrupt of the doorbell to the next.
const APART: u32 = 100;

/// A doorbell, the writes of those that ring before they did, a bit for each, and those of the writes that the
/// hearer has seen.
struct Told {
    bell: Doorbell,
    written: AtomicU32,
    seen: AtomicU32,
    heard: AtomicU32,
}

impl Told {
    /// Rings at a time, and comes back when it is told to.
    fn ring(&self, who: u32, now: u64) {
        self.written.fetch_or(1 << who, Ordering::Relaxed);
        let mut rung = Some(self.bell.try_ring(now));
        if rung != Some(Rung::Heard) {
            self.bell.wait();
            rung = self.bell.look(now);
        }
        while let Some(Rung::Later(at)) = rung {
            rung = self.bell.look(at);
        }
        if rung.is_some() {
            let seen = self.written.load(Ordering::SeqCst);
            self.seen.fetch_or(seen, Ordering::Relaxed);
            self.heard.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn each_ring_is_heard_with_what_was_written_before_it() {
    // Two at once; and one that rings when another comes back.
    for times in [[200, 200], [50, 100]] {
        model(move || {
            let bell = Doorbell::new();
            bell.set_apart(APART);
            let told = Arc::new(Told {
                bell,
                written: AtomicU32::new(0),
                seen: AtomicU32::new(0),
                heard: AtomicU32::new(0),
            });
            told.ring(0, 0);
            let other = Arc::clone(&told);
            let other = thread::spawn(move || other.ring(1, times[0]));
            told.ring(2, times[1]);
            other.join().unwrap();
            assert_eq!(told.seen.load(Ordering::Relaxed), 0b111, "a ring got lost");
            assert!(told.heard.load(Ordering::Relaxed) <= 3, "one too many");
        });
    }
}

/// The copy of InterruptStatus that the guest reads.
struct Page(AtomicU32);

impl Copied for Page {
    fn store(&self, bits: u32) {
        self.0.store(bits, Ordering::Relaxed);
    }
}

/// The service thread sets a bit while a vCPU clears another: whoever comes last, the page says what holds.
#[test]
fn the_page_says_what_the_interrupt_status_is() {
    model(|| {
        let shared = Arc::new((InterruptStatus::new(), Page(AtomicU32::new(CONFIG))));
        assert!(shared.0.set(CONFIG));
        let vcpu = Arc::clone(&shared);
        let clears = thread::spawn(move || {
            vcpu.0.clear(CONFIG);
            assert!(vcpu.0.publish(&vcpu.1));
        });
        assert!(shared.0.set(USED));
        assert!(shared.0.publish(&shared.1));
        clears.join().unwrap();
        assert_eq!(shared.1.0.load(Ordering::Relaxed), USED);
    });
}

/// The driver clears the bit that it has seen and looks at its ring; a bit that is set meanwhile interrupts it.
#[test]
fn a_bit_that_is_set_while_it_is_cleared_interrupts() {
    model(|| {
        let shared = Arc::new((InterruptStatus::new(), AtomicU32::new(1)));
        assert!(shared.0.set(USED));
        let vcpu = Arc::clone(&shared);
        let handler = thread::spawn(move || {
            vcpu.0.clear(USED);
            vcpu.1.load(Ordering::Relaxed)
        });
        shared.1.store(2, Ordering::Relaxed);
        let interrupts = shared.0.set(USED);
        let seen = handler.join().unwrap();
        assert!(
            seen == 2 || interrupts,
            "a used buffer that nobody looks at"
        );
    });
}

/// Behind a release that is done, the service thread uses nothing any more: what it did lies before it.
#[test]
fn a_release_is_the_end_of_what_the_service_thread_does() {
    model(|| {
        let shared = Arc::new((Requests::new(), AtomicU32::new(0)));
        assert!(!shared.0.any());
        assert!(!shared.0.release(Release::All));
        let vcpu = Arc::clone(&shared);
        let repeats = thread::spawn(move || {
            let done = vcpu.0.release(Release::All);
            if done {
                assert_eq!(vcpu.1.load(Ordering::Relaxed), 1, "it goes on");
            }
            done
        });
        shared.1.store(1, Ordering::Relaxed);
        assert_eq!(shared.0.asked(), Some(Release::All));
        shared.0.released(Release::All);
        let done = repeats.join().unwrap();
        assert!(done || shared.0.release(Release::All));
        assert!(!shared.0.any());
    });
}

/// A device is marked for a service thread that is about to sleep: it looks at the device, and at what was written before, or is woken.
#[test]
fn no_device_is_marked_while_the_service_thread_sleeps_on() {
    model(|| {
        let shared = Arc::new((PendingDevices::new(), AtomicU32::new(0)));
        assert_eq!(shared.0.take(), 0);
        shared.0.awake();
        let other = Arc::clone(&shared);
        let marks = thread::spawn(move || {
            other.1.store(1, Ordering::Relaxed);
            other.0.mark(5)
        });
        let mut found = shared.0.take();
        let written = |found: u64| found == 0 || shared.1.load(Ordering::Relaxed) == 1;
        assert!(written(found), "not yet there");
        let slept = found == 0 && shared.0.sleep();
        let woken = marks.join().unwrap();
        // Who does not sleep after all may be woken once too often.
        assert!(woken || !slept, "it sleeps on");
        shared.0.awake();
        found |= shared.0.take();
        assert_eq!(found, 1 << 5);
        assert_eq!(shared.1.load(Ordering::Relaxed), 1);
        assert!(shared.0.sleep());
    });
}

/// Whoever takes a mark sees the chain, and none is lost between two that come at once.
#[test]
fn a_mark_brings_its_chain() {
    model(|| {
        let chains = [AtomicU32::new(0), AtomicU32::new(0)];
        let shared = Arc::new((PendingDevices::new(), chains));
        assert_eq!(shared.0.take(), 0);
        shared.0.awake();
        let vcpus: Vec<_> = (0..2)
            .map(|device| {
                let vcpu = Arc::clone(&shared);
                thread::spawn(move || {
                    vcpu.1[device].store(1, Ordering::Relaxed);
                    assert!(!vcpu.0.mark(device), "it is awake");
                })
            })
            .collect();
        let mut found = 0;
        let mut take = || {
            let bits = shared.0.take();
            for (device, chain) in shared.1.iter().enumerate() {
                if bits >> device & 1 != 0 {
                    assert_eq!(chain.load(Ordering::Relaxed), 1, "not yet there");
                }
            }
            found |= bits;
        };
        take();
        for vcpu in vcpus {
            vcpu.join().unwrap();
        }
        take();
        assert_eq!(found, 3);
        assert_eq!(shared.0.take(), 0);
    });
}

/// The words by which a backend is told, with which nobody has begun.
fn words(armed: u32) -> Arc<(atomic::AtomicU64, atomic::AtomicU32)> {
    let words = Arc::new((atomic::AtomicU64::new(0), atomic::AtomicU32::new(armed)));
    assert_eq!(words.0.load(Ordering::Relaxed), 0);
    assert_eq!(words.1.load(Ordering::Relaxed), armed);
    words
}

/// A service thread tells a backend that is about to sleep: it finds the device before it does, or is interrupted.
#[test]
fn no_backend_sleeps_on_what_it_is_told() {
    model(|| {
        let words = words(0);
        let other = Arc::clone(&words);
        let thread = thread::spawn(move || tell(&other.0, &other.1, 1));
        // As the service VM does it.
        let mut found = words.0.swap(0, Ordering::Acquire);
        words.1.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let sleeps = words.0.load(Ordering::Relaxed) == 0;
        let woken = thread.join().unwrap() == told::Told::Sleeps;
        assert!(woken || !sleeps || found == 1, "it sleeps on");
        found |= words.0.swap(0, Ordering::Acquire);
        assert_eq!(found, 1);
    });
}

/// Two service threads tell a backend that sleeps: it is interrupted once, and finds the devices of both.
#[test]
fn one_of_two_threads_interrupts_a_backend() {
    model(|| {
        let words = words(1);
        let threads = [1u64, 2].map(|device| {
            let words = Arc::clone(&words);
            thread::spawn(move || tell(&words.0, &words.1, device))
        });
        let came = threads.map(|thread| thread.join().unwrap());
        let woken = came.iter().filter(|it| **it == told::Told::Sleeps).count();
        assert_eq!(woken, 1);
        assert_eq!(words.0.swap(0, Ordering::Acquire), 3);
    });
}

//! Every interleaving of pCPUs of which one gives a vCPU to another ([`bulkhead_interleave::inbox`]), by inboxes that
//! are EL2's claims ([`bulkhead_interleave::claim`]), and of somebody who leaves something for that vCPU.
//!
//! Planted there, in the mailboxes or in the locations, one at a time, and found:
//!
//! | planted | fails |
//! | --- | --- |
//! | no fence behind the arrival, or before the location is read; the location read before something is left | [`what_is_left_for_a_vcpu_that_moves_is_seen_where_it_goes`] |
//! | the inbox full, and filled again; no look at the free slots; nobody told of the arrival | [`an_inbox_takes_one_vcpu_and_only_as_many_as_there_are_slots`] |
//! | who finds its inbox in use does not try again | [`who_comes_while_another_looks_into_the_inbox_is_taken_in`] |
//! | a claim that is taken by a load and a store, or relaxed, or given up relaxed | both of these |

use std::sync::Mutex;

use bulkhead_abi::plan::MAX_PCPUS;
use bulkhead_interleave::bandwidth::Meter;
use bulkhead_interleave::claim::Claim;
use bulkhead_interleave::inbox::{self, TryUse};
use bulkhead_interleave::mailbox::Mailboxes;
use bulkhead_interleave::sched::SLOTS;
use bulkhead_interleave::sched::balance::{Balancer, LoadTrack, Loads};
use bulkhead_interleave::sgis::Sgis;
use bulkhead_interleave::vcpu_location::VcpuLocation;
use loom::sync::Arc;
use loom::thread;
use trying::model;

mod trying;

const ARRIVAL: u32 = 128;
const POOL: u32 = 0b111;
/// Events that a vCPU brings about on each pCPU; it may have two times as many in its period.
const EVENTS: u32 = 50;

/// A vCPU that migrates: its row, and its measurements.
type Migrating = (usize, LoadTrack);

/// The inbox of pCPU 1.
#[derive(Debug)]
struct Inbox(Claim<Option<Migrating>>);

impl TryUse<Option<Migrating>> for Inbox {
    fn try_use<R>(&self, act: impl FnOnce(&mut Option<Migrating>) -> R) -> Option<R> {
        self.0.try_use(act)
    }
}

/// State that pCPUs share.
#[derive(Debug)]
struct Shared {
    inbox: Inbox,
    loads: Loads,
    locations: VcpuLocation,
    mailboxes: Mailboxes,
    sgis: Sgis<3>,
    /// State of each vCPU that only its pCPU touches, by row.
    states: [loom::cell::UnsafeCell<u32>; 2],
    /// Its budget of events, which is some of that: loom looks at who touches it there.
    meters: [Mutex<Meter>; 2],
}

impl Shared {
    /// Takes what a vCPU has brought about off its budget.
    fn charge(&self, row: usize) {
        let meter = || self.meters[row].lock().unwrap().charge(EVENTS);
        self.states[row].with_mut(|_| meter());
    }
}

/// A pCPU, and the vCPUs that it has.
struct Pcpu {
    shared: Arc<Shared>,
    index: usize,
    balancer: Balancer,
    slots: [Option<usize>; SLOTS],
    /// Messages that were left for its vCPUs, or for those that it had.
    seen: u32,
}

impl Pcpu {
    fn has(&self) -> usize {
        self.slots.iter().flatten().filter(|row| **row < 8).count()
    }

    fn arrival(shared: &Shared, pcpu: usize) {
        let to = Mailboxes::of_pcpu(pcpu);
        shared
            .mailboxes
            .post(to, ARRIVAL, &shared.locations, &shared.sgis);
    }

    /// Gives its vCPU to pCPU 1 (`el2/src/balance.rs`); `false`: it cannot now.
    fn give_away(&mut self) -> bool {
        let Self {
            shared,
            balancer,
            slots,
            ..
        } = self;
        let detach = || {
            let slot = slots.iter().position(Option::is_some)?;
            let row = slots[slot].take()?;
            shared.charge(row);
            let load_track = balancer.load_track(slot)?;
            balancer.set(slot, None, &shared.loads);
            balancer.sent(&load_track, 1, &shared.loads);
            Some((row, (row, load_track)))
        };
        let Shared {
            inbox,
            loads,
            locations,
            ..
        } = &**shared;
        inbox::send(inbox, 1, loads, locations, detach, || {
            Self::arrival(shared, 1)
        })
    }

    /// Takes the vCPU from its inbox.
    fn take_in(&mut self) {
        let Self {
            shared,
            balancer,
            slots,
            ..
        } = self;
        let attach = |place: &mut Option<Migrating>| {
            let slot = slots.iter().position(Option::is_none)?;
            let (row, load_track) = place.take()?;
            balancer.set(slot, Some(load_track), &shared.loads);
            Some((slot, row))
        };
        let again = || Self::arrival(shared, 1);
        if let Some((slot, row)) = inbox::receive(&shared.inbox, attach, again) {
            slots[slot] = Some(row);
            shared.charge(row);
            self.run(row);
        }
    }

    /// The vCPU runs and looks at what was left for it.
    fn run(&mut self, row: usize) {
        self.shared.states[row].with_mut(|_| ());
        self.seen |= self.shared.mailboxes.take(row);
    }

    /// The pCPU takes its SGI, if it is pending.
    fn look(&mut self) {
        if !self.shared.sgis.take(self.index) {
            return;
        }
        if self.shared.mailboxes.take(Mailboxes::of_pcpu(self.index)) & ARRIVAL != 0 {
            self.take_in();
        }
        for row in self.slots.into_iter().flatten().filter(|row| *row < 8) {
            self.run(row);
        }
    }
}

/// Three pCPUs, of which pCPU 1 has `free` slots left and no vCPU that moves, and each other one vCPU.
fn pcpus(free: usize) -> [Pcpu; 3] {
    let shared = Arc::new(Shared {
        inbox: Inbox(Claim::new(None)),
        loads: Loads::new(),
        locations: VcpuLocation::new(),
        mailboxes: Mailboxes::new(),
        sgis: Sgis::default(),
        states: std::array::from_fn(|_| loom::cell::UnsafeCell::new(0)),
        meters: std::array::from_fn(|_| {
            let mut meter = Meter::new(2 * EVENTS, 1000);
            meter.refill(0);
            Mutex::new(meter)
        }),
    });
    // Loom's words are made at their first use, which must not be by two at a time.
    assert_eq!(shared.inbox.try_use(|place| place.is_none()), Some(true));
    for row in 0..2 {
        shared.locations.set(row, 2 * row);
        assert_eq!(shared.mailboxes.take(row), 0);
    }
    assert_eq!(shared.mailboxes.take(Mailboxes::of_pcpu(1)), 0);
    const { assert!(MAX_PCPUS >= 3) };
    [0, 1, 2].map(|index| {
        let mut pcpu = Pcpu {
            shared: Arc::clone(&shared),
            index,
            balancer: Balancer::new(index, 1),
            slots: [None; SLOTS],
            seen: 0,
        };
        let taken = if index == 1 { SLOTS - free } else { 1 };
        for slot in 0..taken {
            pcpu.slots[slot] = Some(if index == 1 { 8 } else { index / 2 });
            let load_track = LoadTrack::new(POOL, 0);
            pcpu.balancer.set(slot, Some(load_track), &shared.loads);
        }
        pcpu
    })
}

#[test]
fn what_is_left_for_a_vcpu_that_moves_is_seen_where_it_goes() {
    model(|| {
        let [mut first, mut second, _] = pcpus(1);
        // Of one that it has found there before.
        Pcpu::arrival(&first.shared, 1);
        let shared = Arc::clone(&first.shared);
        let sender = thread::spawn(move || {
            shared.mailboxes.post(0, 1, &shared.locations, &shared.sgis);
        });
        let first = thread::spawn(move || {
            first.look();
            let given = first.give_away();
            first.look();
            (first, given)
        });
        second.look();
        sender.join().unwrap();
        let (mut first, given) = first.join().unwrap();
        // What is pending is taken in the end.
        for _ in 0..2 {
            first.look();
            second.look();
        }
        assert_eq!(second.has(), usize::from(given), "a vCPU got lost");
        assert_eq!(first.has(), usize::from(!given));
        assert_eq!(first.seen | second.seen, 1, "a wake-up got lost");
        let spent = second.shared.meters[0].lock().unwrap().is_spent();
        assert_eq!(spent, given, "its budget is not what both pCPUs left of it");
    });
}

/// pCPU 1 looks while two others send it a vCPU, each once, and has as many as were sent in the end: that many.
fn sent_by_two(free: usize) -> usize {
    let [first, mut second, third] = pcpus(free);
    let others = [first, third].map(|mut other| {
        thread::spawn(move || {
            let sent = other.give_away();
            assert_eq!(other.has(), usize::from(!sent));
            usize::from(sent)
        })
    });
    second.look();
    let sent = others.map(|other| other.join().unwrap()).iter().sum();
    for _ in 0..2 {
        second.look();
    }
    assert_eq!(second.has(), sent, "a vCPU got lost");
    sent
}

#[test]
fn who_comes_while_another_looks_into_the_inbox_is_taken_in() {
    model(|| {
        sent_by_two(2);
    });
}

#[test]
fn an_inbox_takes_one_vcpu_and_only_as_many_as_there_are_slots() {
    for free in [0, 1] {
        model(move || {
            let sent = sent_by_two(free);
            assert_eq!(sent, free);
        });
    }
}

//! Interleavings of those who have the authority over VMs, who take turns, and of a VM that ends by itself: all of those with at most three switches of pCPUs
//! that nothing forces, of those with the end of a time to stop at most two. The code is that of EL2 ([`bulkhead_interleave::life`], [`bulkhead_interleave::power`],
//! [`bulkhead_interleave::asked`]).
//!
//! Planted there, one at a time, and found: a start of a VM that ends that does nothing and says that it was taken; one of a VM that was asked and has ended meanwhile; an end of the
//! guest's that forgets that the VM was asked; a pause by a plain store, which a guest that ends at that moment loses its end to. Of the end of a time: one that ends the life behind
//! the one that was asked; one that forgets the order to start again; a time that stays that of the life before when the next one is asked. Of the last CPU that goes off: an end by a
//! plain store; one of a VM that runs only, and not of one that is asked; one that takes the place of an order.

use bulkhead_interleave::asked::{Asked, Due};
use bulkhead_interleave::life::Life;
use bulkhead_interleave::power::{End, Phase, Start};
use loom::sync::{Arc, Mutex};
use loom::thread;
use threads::{Thread, finish, running};

mod threads;
mod trying;

/// An order of somebody who has the authority over VMs: the person at the monitor, or a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Start,
    Stop,
    Restart,
    Shutdown,
    Pause,
    Resume,
}

impl Order {
    /// Carries it out, as EL2 does (`el2/src/orders.rs`). Whether it was taken.
    fn is_taken(self, life: &Life) -> bool {
        match self {
            Self::Start => life.order_start(true, || life.start()).is_ok(),
            Self::Stop => life.power.stop(End::Ordered).is_ok(),
            Self::Restart => life.order_restart(|| life.start()).is_ok(),
            Self::Shutdown => life.power.ask().is_ok(),
            Self::Pause => life.power.pause(true).is_ok(),
            Self::Resume => life.power.pause(false).is_ok(),
        }
    }

    /// Whether it says what the VM does once its guest has ended. One that is paused ends all the same if its guest was about to.
    fn outlasts_the_end(self) -> bool {
        !matches!(self, Self::Pause | Self::Resume)
    }
}

/// What a guest does that ends a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// A call, a fault, or what it leaves undone.
    Ends(End),
    /// CPU_OFF of the CPU that is on.
    LastCpuOff,
}

const ACTS: [Act; 5] = [
    Act::Ends(End::Off),
    Act::Ends(End::Reset),
    Act::Ends(End::Watchdog),
    Act::Ends(End::Crash),
    Act::LastCpuOff,
];

impl Act {
    /// The vCPU's thread does what comes of it.
    fn by(self, vcpu: &mut Thread, life: &Life) {
        match self {
            Self::Ends(End::Crash) => vcpu.crash(life),
            Self::Ends(end) => vcpu.end(life, end),
            Self::LastCpuOff => vcpu.leave(life),
        }
        vcpu.step(life);
    }

    /// Whether the VM starts again when nobody has given an order.
    fn starts_again(self) -> bool {
        !matches!(self, Self::Ends(End::Off) | Self::LastCpuOff)
    }
}

const ORDERS: [Order; 6] = [
    Order::Start,
    Order::Stop,
    Order::Restart,
    Order::Shutdown,
    Order::Pause,
    Order::Resume,
];

/// All pairs of orders.
fn pairs() -> impl Iterator<Item = [Order; 2]> {
    ORDERS
        .into_iter()
        .flat_map(|first| ORDERS.map(|second| [first, second]))
}

/// Whether the VM is as the last order says that was taken; without one, as what the guest did says.
fn holds(life: &Life, act: Act, taken: &[Order]) -> bool {
    let runs = match taken.iter().rfind(|order| order.outlasts_the_end()) {
        Some(order) => !matches!(order, Order::Stop | Order::Shutdown),
        None => act.starts_again(),
    };
    let phase = life.power.phase();
    // A later life that is asked ends when its guest wants.
    let waits = matches!(phase, Phase::Asked(_)) && taken.contains(&Order::Shutdown);
    let expected = if runs { Phase::Running } else { Phase::Down };
    phase == expected || waits
}

/// The monitor and a manager give an order each, one after the other as the claim on the authority has it, while the VM ends by itself, also by the
/// last of its CPUs that goes off: what the last order says that was taken is what comes of it; without one, what the end says.
#[test]
fn of_the_orders_that_are_taken_the_last_holds_however_the_guest_ends() {
    for (act, [of_monitor, of_manager]) in ACTS
        .into_iter()
        .flat_map(|act| pairs().map(move |orders| (act, orders)))
        // A pause ends where a life does, whichever end that is: two of them, for the time that all take.
        .filter(|(act, orders)| {
            let lasting = orders.iter().all(|order| order.outlasts_the_end());
            lasting || matches!(act, Act::Ends(End::Off | End::Crash))
        })
    {
        trying::model_of(1_000, Some(3), move || {
            let (life, mut vcpu) = running();
            let taken = Arc::new(Mutex::new(Vec::new()));
            let guest = Arc::clone(&life);
            let guest = thread::spawn(move || {
                act.by(&mut vcpu, &guest);
                vcpu
            });
            let give = |order: Order, life: &Life, taken: &Mutex<Vec<Order>>| {
                // The authority: who has it gives a whole order.
                let mut taken = taken.lock().unwrap();
                if order.is_taken(life) {
                    taken.push(order);
                }
            };
            let manager = (Arc::clone(&life), Arc::clone(&taken));
            let manager = thread::spawn(move || give(of_manager, &manager.0, &manager.1));
            give(of_monitor, &life, &taken);
            manager.join().unwrap();
            let mut threads = [guest.join().unwrap(), Thread::new(1)];
            finish(&life, &mut threads);
            let taken = taken.lock().unwrap();
            let phase = life.power.phase();
            assert!(holds(&life, act, &taken), "{act:?}, {taken:?}: {phase:?}");
        });
    }
}

/// When the time is over of a VM that was asked, and of one that is asked later.
const OVER: u64 = 10;
const LATER: u64 = 1_000;

/// What there is behind the claim on the authority.
struct Authority {
    asked: Asked,
    taken: Vec<Order>,
    /// A life was ended because it had not in its time.
    overdue: bool,
}

impl Authority {
    /// An order: a VM that is asked has time until then, as `el2/src/stops.rs` has it.
    fn give(&mut self, order: Order, life: &Life, until: u64) {
        if order == Order::Shutdown {
            match life.power.ask() {
                Ok(Phase::Running) => self.asked.set(0, until, 0),
                Ok(_) => {}
                Err(_) => return,
            }
        } else if !order.is_taken(life) {
            return;
        }
        self.taken.push(order);
    }

    /// A look of the service thread at that moment, as there.
    fn look(&mut self, life: &Life, now: u64) {
        if self.asked.next().is_none_or(|next| next > now) {
            return;
        }
        let Some((0, due)) = self.asked.take(now, 1) else {
            return;
        };
        if !matches!(life.power.phase(), Phase::Asked(_)) {
            self.asked.forget(0);
        } else if due == Due::Over && life.power.stop(End::Overdue).is_ok() {
            self.overdue = true;
        }
    }
}

/// The VM was asked, and its time is over: the service thread ends it, beside two orders of a manager and an end of the guest's own. The last
/// order that was taken still holds, and the life that is ended is the one whose time it was: not the next one, which may have been asked anew.
#[test]
fn the_end_of_its_time_ends_the_life_that_was_asked_and_the_last_order_holds() {
    for (act, orders) in [Act::Ends(End::Off), Act::Ends(End::Crash)]
        .into_iter()
        .flat_map(|act| pairs().map(move |orders| (act, orders)))
        // Who is asked is not paused: only the next life can be.
        .filter(|(_, [first, second])| {
            first.outlasts_the_end()
                && (second.outlasts_the_end() || *first != Order::Stop && *second == Order::Pause)
        })
    {
        trying::model_of(1_000, Some(2), move || {
            let (life, mut vcpu) = running();
            let authority = Arc::new(Mutex::new(Authority {
                asked: Asked::new(),
                taken: Vec::new(),
                overdue: false,
            }));
            authority.lock().unwrap().give(Order::Shutdown, &life, OVER);
            let guest = Arc::clone(&life);
            let guest = thread::spawn(move || {
                act.by(&mut vcpu, &guest);
                // Says why it has ended, and prepares the next life if there is one.
                for _ in 0..2 {
                    vcpu.step(&guest);
                }
                vcpu
            });
            let manager = (Arc::clone(&life), Arc::clone(&authority));
            let manager = thread::spawn(move || {
                for order in orders {
                    manager.1.lock().unwrap().give(order, &manager.0, LATER);
                }
            });
            authority.lock().unwrap().look(&life, OVER);
            manager.join().unwrap();
            let mut threads = [guest.join().unwrap(), Thread::new(1)];
            finish(&life, &mut threads);
            let authority = authority.lock().unwrap();
            let (taken, overdue) = (&authority.taken, authority.overdue);
            let phase = life.power.phase();
            // A later life is paused and stays so; the first one has ended.
            let pauses = taken.last() == Some(&Order::Pause) && life.number() > 1;
            let rests = pauses && phase == Phase::Paused;
            let is_right = rests || holds(&life, act, taken);
            assert!(is_right, "{act:?}, {taken:?}: {phase:?}");
            // Why each of the lives has ended.
            let mut later = threads[0].why.iter().skip(1);
            let spared = later.all(|(_, settled)| settled.end != End::Overdue);
            assert!(spared, "{act:?}, {taken:?}: {:?}", threads[0].why);
            // The reason is told to managers, unless an order took its place, or a later life has ended.
            let only = taken[1..].iter().all(|order| *order == Order::Shutdown);
            if overdue && only {
                let last = life.settled();
                assert_eq!((last.end, life.number()), (End::Overdue, 1), "{taken:?}");
            }
        });
    }
}

/// Both CPUs of a guest go off, and so its VM ends, beside an order: who goes last ends it, once, and the order holds.
#[test]
fn an_order_holds_that_comes_while_the_last_of_two_cpus_goes_off() {
    for order in ORDERS {
        trying::model_of(1_000, Some(3), move || {
            let (life, first) = running();
            let start = Start {
                entry: 0x1000,
                context: 1,
            };
            assert_eq!(life.power.switch_on(1, 2, start), Ok(()));
            let mut second = Thread::new(1);
            assert!(second.step(&life) && second.runs);
            let [first, second] = [first, second].map(|mut vcpu| {
                let life = Arc::clone(&life);
                thread::spawn(move || {
                    Act::LastCpuOff.by(&mut vcpu, &life);
                    vcpu
                })
            });
            let taken: Vec<_> = Some(order)
                .filter(|it| it.is_taken(&life))
                .into_iter()
                .collect();
            let mut threads = [first.join().unwrap(), second.join().unwrap()];
            finish(&life, &mut threads);
            let phase = life.power.phase();
            assert!(
                holds(&life, Act::LastCpuOff, &taken),
                "{taken:?}: {phase:?}"
            );
            // Asked in its next life, or running in it, or down: that it ended is said once.
            let whys: usize = threads.iter().map(|thread| thread.why.len()).sum();
            assert_eq!(whys, 1, "{taken:?}: {phase:?}");
        });
    }
}

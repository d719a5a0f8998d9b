//! Interleavings of those who have the authority over VMs, who take turns, and of a VM that ends by itself: all of those with at most three switches of pCPUs
//! that nothing forces. The code is that of EL2 ([`bulkhead_interleave::life`], [`bulkhead_interleave::power`]).
//!
//! Planted there, one at a time, and found: a start of a VM that ends that does nothing and says that it was taken; one of a VM that was asked and has ended meanwhile; an end of the
//! guest's that forgets that the VM was asked; a pause by a plain store, which a guest that ends at that moment loses its end to.

use bulkhead_interleave::life::Life;
use bulkhead_interleave::power::{End, Phase};
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

/// What ends a life from within.
const ENDS: [End; 4] = [End::Off, End::Reset, End::Watchdog, End::Crash];

/// The monitor and a manager give an order each, one after the other as the claim on the authority has it, while the VM ends by itself:
/// what the last order says that was taken is what comes of it; without one, what the end says.
#[test]
fn of_the_orders_that_are_taken_the_last_holds_however_the_guest_ends() {
    let orders = [
        Order::Start,
        Order::Stop,
        Order::Restart,
        Order::Shutdown,
        Order::Pause,
        Order::Resume,
    ];
    for (end, of_monitor, of_manager) in ENDS
        .into_iter()
        .flat_map(|end| orders.map(|order| (end, order)))
        .flat_map(|(end, first)| orders.map(|second| (end, first, second)))
        // A pause ends where a life does, whichever end that is: two of them, for the time that all take.
        .filter(|(end, first, second)| {
            let lasting = first.outlasts_the_end() && second.outlasts_the_end();
            lasting || matches!(end, End::Off | End::Crash)
        })
    {
        trying::model_of(1_000, Some(3), move || {
            let (life, mut vcpu) = running();
            let taken = Arc::new(Mutex::new(Vec::new()));
            let guest = Arc::clone(&life);
            let guest = thread::spawn(move || {
                match end {
                    End::Crash => vcpu.crash(&guest),
                    end => vcpu.end(&guest, end),
                }
                vcpu.step(&guest);
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
            let runs = match taken.iter().rfind(|order| order.outlasts_the_end()) {
                Some(order) => !matches!(order, Order::Stop | Order::Shutdown),
                None => end != End::Off,
            };
            let phase = life.power.phase();
            // A later life that is asked ends when its guest wants.
            let waits = matches!(phase, Phase::Asked(_)) && taken.contains(&Order::Shutdown);
            let expected = if runs { Phase::Running } else { Phase::Down };
            assert!(phase == expected || waits, "{end:?}, {taken:?}: {phase:?}");
        });
    }
}

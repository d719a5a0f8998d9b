//! Embassy's clock: the virtual counter in microseconds, and one alarm on the virtual timer.

use bulkhead_guests::timer;
use core::cell::RefCell;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::task::Waker;
use critical_section::{CriticalSection, Mutex};
use embassy_time_driver::{Driver, TICK_HZ, time_driver_impl};
use embassy_time_queue_utils::Queue;

struct Clock {
    queue: Mutex<RefCell<Queue>>,
}

time_driver_impl!(static CLOCK: Clock = Clock {
    queue: Mutex::new(RefCell::new(Queue::new())),
});

/// Interrupts of the timer.
pub static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

impl Driver for Clock {
    fn now(&self) -> u64 {
        scale(timer::now(), TICK_HZ, timer::frequency())
    }

    fn schedule_wake(&self, at: u64, waker: &Waker) {
        critical_section::with(|section| {
            if self.queue.borrow_ref_mut(section).schedule_wake(at, waker) {
                self.set_alarm(section);
            }
        });
    }
}

impl Clock {
    /// Wakes what is due and arms the timer for what is next. A compare value in the past fires at once.
    fn set_alarm(&self, section: CriticalSection<'_>) {
        let next = self
            .queue
            .borrow_ref_mut(section)
            .next_expiration(self.now());
        if next == u64::MAX {
            timer::disarm();
        } else {
            // Rounded up: an alarm never comes before its time.
            timer::arm(scale(next, timer::frequency(), TICK_HZ) + 1);
        }
    }
}

fn scale(value: u64, to: u64, from: u64) -> u64 {
    let product = u128::from(value) * u128::from(to) / u128::from(from.max(1));
    u64::try_from(product).unwrap_or(u64::MAX)
}

/// The timer's interrupt.
pub fn on_irq() {
    INTERRUPTS.fetch_add(1, Relaxed);
    critical_section::with(|section| CLOCK.set_alarm(section));
}

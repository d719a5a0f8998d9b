//! Embassy's executor on this machine: polls what was woken, sleeps in WFI when nothing was; and critical
//! sections, which close the mask of interrupts, as there is one CPU.

use bulkhead_guests::{mrs, sysreg};
use core::sync::atomic::{AtomicBool, Ordering::*};
use embassy_executor::{Spawner, raw};

static WOKEN: AtomicBool = AtomicBool::new(false);

#[unsafe(export_name = "__pender")]
fn pender(_context: *mut ()) {
    WOKEN.store(true, Release);
}

/// Runs tasks for ever. `init` spawns the first ones.
pub fn run(executor: &'static raw::Executor, init: impl FnOnce(Spawner)) -> ! {
    init(executor.spawner());
    loop {
        WOKEN.store(false, Relaxed);
        // SAFETY: this is the only place that polls, in the one thread of the program, and `pender`
        // does not call it.
        unsafe { executor.poll() };
        // Masked, so that no interrupt comes between the question and the sleep; WFI ends all the same.
        sysreg::irq_off();
        if !WOKEN.load(Acquire) {
            sysreg::wfi();
        }
        sysreg::irq_on();
        sysreg::isb();
    }
}

struct Masked;

critical_section::set_impl!(Masked);

// SAFETY: one CPU, and while its mask is closed no handler runs.
unsafe impl critical_section::Impl for Masked {
    unsafe fn acquire() -> bool {
        let open = mrs!("daif") & 1 << 7 == 0;
        sysreg::irq_off();
        open
    }

    unsafe fn release(open: bool) {
        if open {
            sysreg::irq_on();
        }
    }
}

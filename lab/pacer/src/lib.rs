//! A QEMU plugin that keeps the load of the host out of a run on the instruction clock.
//!
//! There QEMU's CPUs share a thread, and time is what they have executed. Two things still depend on when the host
//! lets which thread run:
//!
//! * **Who runs QEMU's timers, and when.** Each time that a timer is due, and when all CPUs sleep, the thread of the CPUs
//!   wakes the main thread, by a write to an eventfd, and goes on. When the main thread has QEMU's big lock, it runs what timers
//!   are due by then, moves the clock if all CPUs sleep, and sends the CPUs out of their turns. That may be in the next
//!   turn, or between the end of one and the moment at which the CPUs' thread has the lock again. So after such a write that thread
//!   lets go of the lock and waits until the main thread sleeps. The pacer has to see both calls, and so is preloaded, too.
//! * **When input comes.** Who answers a line of the console needs time for it, in which the guests run on. So the
//!   machine is held at that line until the answer was typed and the main thread has it given to the UART.
//!
//! It is loaded by `LD_PRELOAD=FILE qemu-system-aarch64 -plugin FILE,config=CONFIG.json`; [`bulkhead_plugin::pacer`] has the configuration.

mod line;
mod main_thread;
mod plugin;
mod preloaded;

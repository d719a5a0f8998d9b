//! A QEMU plugin that keeps the load of the host out of a run on the instruction clock.
//!
//! There QEMU's CPUs share a thread, and time is what they have executed. Two things still depend on when the host
//! lets which thread run:
//!
//! * **How long a CPU sleeps.** When all CPUs are in WFI, QEMU's main thread moves the clock to the next timer. A CPU
//!   counts as asleep from the middle of its WFI, but what it has executed since its turn began is added to the clock
//!   when the turn is over. If the main thread looks in between, the clock passes the timer by those instructions.
//!   It looks whenever it is awake, and a timer that has run wakes it. So a CPU waits before each WFI until the main
//!   thread sleeps.
//! * **When input comes.** Who answers a line of the console needs time for it, in which the guests run on. So the
//!   machine is held at that line until the answer was typed and the main thread has it given to the UART.
//!
//! It is loaded by `qemu-system-aarch64 -plugin FILE,config=CONFIG.json`; [`bulkhead_plugin::pacer`] has the configuration.

mod line;
mod main_thread;
mod plugin;

//! Faults of EL2 itself.

use core::sync::atomic::{AtomicBool, Ordering};

use bulkhead_abi::console::label;
use bulkhead_core::console::text::TextLine;

use super::{boot, cpu, firmware};

/// Prints EL2's last words about its own fault. During start-up the boot map has the UART; later
/// only the pCPU that drains the console has it, and the others can only stop.
pub fn el2_fault(line: &TextLine) -> ! {
    // Without firmware that can switch the board off, the call for that is the next exception: once
    // is enough.
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed)
        && let Some(uart) = boot::uart_at_hand()
    {
        for byte in label::EL2_ANEW
            .as_bytes()
            .iter()
            .chain(line.as_bytes())
            .chain(b"\r\n")
        {
            uart.send_polled(*byte);
        }
        uart.flush();
        firmware::power_off();
    }
    cpu::halt()
}

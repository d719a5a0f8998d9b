//! Devices that can be passed through, and the register writes that quiet them.
//!
//! They are known to move no memory by themselves: a device that can (DMA) would reach the memory of
//! every VM, because this version sets up no SMMU. And a few writes are known after which they interrupt
//! nobody and drive nothing: EL2 performs them before a VM that has the device starts again.

/// A write to a register of the first frame: bytes from the frame's start, value (32 bits).
type Write = (u64, u32);

/// Devices that reset the board, all VMs and EL2 with it, when nobody serves them in time: watchdogs whose signal goes to
/// the board's reset or to its firmware.
const RESET_THE_BOARD: [&str; 2] = ["arm,sp805", "arm,sbsa-gwdt"];

/// Known devices: a word of `compatible`, and the writes that quiet the device, in order.
const KNOWN: [(&str, &[Write]); 6] = [
    // UARTIMSC: no interrupts; UARTCR: off; UARTLCR_H: FIFOs off, which empties them; UARTICR: nothing
    // pending (DDI 0183G, chapter 3).
    (
        "arm,pl011",
        &[(0x38, 0), (0x30, 0), (0x2c, 0), (0x44, 0x7ff)],
    ),
    // RTCIMSC: no interrupt; RTCICR: none pending (DDI 0224C, chapter 3).
    ("arm,pl031", &[(0x10, 0), (0x1c, 1)]),
    // GPIOIE: no interrupts; GPIODIR: all pins are inputs; GPIOIC: nothing pending (DDI 0190B, chapter 3).
    ("arm,pl061", &[(0x410, 0), (0x400, 0), (0x41c, 0xff)]),
    // TimerXControl: off; TimerXIntClr: not pending; for both timers (DDI 0271D, chapter 3).
    ("arm,sp804", &[(0x08, 0), (0x0c, 1), (0x28, 0), (0x2c, 1)]),
    // WdogLock: writable; WdogControl: off; WdogIntClr: not pending; WdogLock: locked (DDI 0270B, chapter 3).
    (
        "arm,sp805",
        &[(0xc00, 0x1acc_e551), (0x08, 0), (0x0c, 1), (0xc00, 0)],
    ),
    // WCS of the control frame, the first one: off, which also clears both signals (Server Base System Architecture,
    // DEN0029, generic watchdog).
    ("arm,sbsa-gwdt", &[(0x000, 0)]),
];

/// The entry of a device with these words in `compatible`.
fn known(words: &[String]) -> Option<&'static [Write]> {
    let known = KNOWN
        .iter()
        .find(|(name, _)| words.iter().any(|word| word == name));
    known.map(|(_, writes)| *writes)
}

/// Whether such a device can be passed through.
pub(super) fn is_known(words: &[String]) -> bool {
    known(words).is_some()
}

/// Whether a VM that has such a device can reset the board.
pub(super) fn resets_the_board(words: &[String]) -> bool {
    words
        .iter()
        .any(|word| RESET_THE_BOARD.contains(&word.as_str()))
}

/// The writes that quiet a device: physical address, bytes, value. Registers that lie outside of its
/// frame are left out; there are none in a sound tree.
pub(super) fn writes(words: &[String], registers: &[(u64, u64)]) -> Vec<(u64, u16, u32)> {
    let (Some(writes), Some(&(base, size))) = (known(words), registers.first()) else {
        return Vec::new();
    };
    let inside = writes.iter().filter(|(offset, _)| offset + 4 <= size);
    inside
        .map(|(offset, value)| (base + offset, 4, *value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uart_is_silenced_before_it_is_switched_off() {
        let words = ["arm,pl011".to_owned(), "arm,primecell".to_owned()];
        let writes = writes(&words, &[(0x904_0000, 0x1000)]);
        assert_eq!(writes[0], (0x904_0038, 4, 0));
        assert_eq!(writes[1], (0x904_0030, 4, 0));
        assert_eq!(writes.len(), 4);
    }

    #[test]
    fn watchdogs_and_nothing_else_reset_the_board() {
        for (name, _) in &KNOWN {
            let words = ["vendor,part".to_owned(), (*name).to_owned()];
            let watchdog = name.contains("wdt") || name.ends_with("sp805");
            assert_eq!(resets_the_board(&words), watchdog, "{name}");
        }
    }

    #[test]
    fn registers_outside_of_the_frame_are_left_alone() {
        let words = ["arm,pl061".to_owned()];
        assert_eq!(writes(&words, &[(0x903_0000, 0x404)]), [(0x903_0400, 4, 0)]);
        assert!(!is_known(&["virtio,mmio".to_owned()]));
    }
}

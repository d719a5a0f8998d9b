//! The emulated PL011 (DDI 0183G, chapter 3). Transmission takes no time: a byte that the guest
//! sends is transmitted once it is in the output stream, so the transmitter is busy only while the
//! stream is full.

use core::sync::atomic::Ordering::Relaxed;

use crate::console::mux::{OUTPUT, Stream, Streams};

/// Size of the register frame in bytes.
pub const SIZE: u64 = 0x1000;

/// Offset of UARTDR, the data.
pub const DR: u64 = 0x00;
/// Offset of UARTFR, the flags.
pub const FR: u64 = 0x18;
const IMSC: u64 = 0x38;

const FR_TXFE: u32 = 1 << 7;
const FR_RXFF: u32 = 1 << 6;
const FR_TXFF: u32 = 1 << 5;
const FR_RXFE: u32 = 1 << 4;
const FR_BUSY: u32 = 1 << 3;
/// Clear to send, data set ready, data carrier detect: always set.
const FR_MODEM: u32 = 0b111;

const INT_RX: u32 = 1 << 4;
const INT_TX: u32 = 1 << 5;
const INT_RT: u32 = 1 << 6;
/// Interrupts that a guest may unmask: the eleven of the UARTIMSC register.
const INT_ALL: u32 = 0x7ff;

/// Free bytes in the output stream from which on the transmit interrupt is raised.
const SPACE: u32 = 128;

/// Identification registers from 0xfe0: PL011 r1p5 and PrimeCell.
const ID: [u8; 8] = [0x11, 0x10, 0x34, 0x00, 0x0d, 0xf0, 0x05, 0xb1];

/// State of an emulated PL011, except its streams.
#[derive(Clone, Debug)]
pub struct Pl011 {
    mask: u32,
    sent: bool,
    control: u32,
    line_control: u32,
    integer_divisor: u32,
    fractional_divisor: u32,
    levels: u32,
    /// The state of the interrupt line that [`Self::moved_line`] has told.
    told: bool,
}

/// Work of EL2 after an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Whether the interrupt line may have changed: ask [`Pl011::moved_line`].
    pub line: bool,
    /// Whether there is output to drain.
    pub output: bool,
}

impl Effect {
    /// Nothing.
    const QUIET: Self = Self {
        line: false,
        output: false,
    };
    /// The line may have changed.
    pub const LINE: Self = Self {
        line: true,
        output: false,
    };
}

impl Default for Pl011 {
    fn default() -> Self {
        Self::new()
    }
}

impl Pl011 {
    /// State at reset (DDI 0183G, table 3-1).
    pub const fn new() -> Self {
        Self {
            mask: 0,
            sent: false,
            control: 0x300,
            line_control: 0,
            integer_divisor: 0,
            fractional_divisor: 0,
            levels: 0x12,
            told: false,
        }
    }

    fn raw(&self, streams: &Streams) -> u32 {
        let waiting = streams.input.len();
        let mut raw = 0;
        if waiting != 0 {
            raw |= INT_RT;
        }
        if waiting >= 8 {
            raw |= INT_RX;
        }
        if self.sent {
            raw |= INT_TX;
        }
        raw
    }

    /// State of the interrupt line.
    pub fn line(&self, streams: &Streams) -> bool {
        self.raw(streams) & self.mask != 0
    }

    /// Returns the state of the interrupt line if it is not the one that was returned last, which is
    /// low after a reset.
    #[inline(always)]
    pub fn moved_line(&mut self, streams: &Streams) -> Option<bool> {
        let line = self.line(streams);
        let moved = line != self.told;
        self.told = line;
        moved.then_some(line)
    }

    /// Raises the transmit interrupt if the pCPU that drains the console has made enough room.
    pub fn space_again(&mut self, streams: &Streams) {
        if streams.output.free() >= SPACE {
            self.sent = true;
        }
    }

    /// Value of UARTFR.
    #[inline(always)]
    pub fn flags(streams: &Streams) -> u32 {
        let waiting = streams.input.len();
        let mut flags = FR_MODEM;
        flags |= if streams.output.free() == 0 {
            FR_TXFF | FR_BUSY
        } else {
            FR_TXFE
        };
        if waiting == 0 {
            flags |= FR_RXFE;
        } else if waiting >= 16 {
            flags |= FR_RXFF;
        }
        flags
    }

    /// Reads the register at `offset`.
    #[inline(always)]
    pub fn read(&mut self, streams: &Streams, offset: u64) -> (u32, Effect) {
        if offset == FR {
            return (Self::flags(streams), Effect::QUIET);
        }
        self.read_other(streams, offset)
    }

    #[inline(never)]
    fn read_other(&mut self, streams: &Streams, offset: u64) -> (u32, Effect) {
        let value = match offset {
            DR => return (u32::from(streams.input.pop().unwrap_or(0)), Effect::LINE),
            0x24 => self.integer_divisor,
            0x28 => self.fractional_divisor,
            0x2c => self.line_control,
            0x30 => self.control,
            0x34 => self.levels,
            IMSC => self.mask,
            0x3c => self.raw(streams),
            0x40 => self.raw(streams) & self.mask,
            0xfe0..=0xffc if offset & 3 == 0 => ID
                .get(((offset - 0xfe0) / 4) as usize)
                .map_or(0, |id| u32::from(*id)),
            _ => 0,
        };
        (value, Effect::QUIET)
    }

    /// Writes the register at `offset`.
    #[inline(always)]
    pub fn write(&mut self, streams: &Streams, offset: u64, value: u32) -> Effect {
        if offset == DR {
            return self.send(streams, value as u8);
        }
        self.write_other(streams, offset, value)
    }

    /// Writes a register other than UARTDR.
    #[inline(never)]
    pub fn write_other(&mut self, streams: &Streams, offset: u64, value: u32) -> Effect {
        match offset {
            0x24 => self.integer_divisor = value & 0xffff,
            0x28 => self.fractional_divisor = value & 0x3f,
            0x2c => self.line_control = value & 0xff,
            0x30 => self.control = value & 0xffff,
            0x34 => self.levels = value & 0x3f,
            IMSC => self.mask = value & INT_ALL,
            0x44 => {
                if value & INT_TX != 0 {
                    self.sent = false;
                    streams.wants_space.forget();
                }
            }
            _ => return Effect::QUIET,
        }
        Effect::LINE
    }

    /// Writes a byte to UARTDR where that changes nothing but the stream: whether the drainer has to be told. `None`: it has not been done.
    #[inline(always)]
    pub fn send_only(&self, streams: &Streams, byte: u8) -> Option<bool> {
        // There is room behind it, too.
        let done = self.sent && streams.output.push_below(byte, OUTPUT - SPACE);
        done.then(|| Self::tells(streams, byte, streams.output.len()))
    }

    /// Whether the drainer has to be told of `byte`, with which the stream has `waiting` bytes.
    #[inline(always)]
    fn tells(streams: &Streams, byte: u8, waiting: u32) -> bool {
        Stream::<{ OUTPUT as usize }>::is_news(byte, waiting) || streams.eager.load(Relaxed) != 0
    }

    /// Writes a byte to UARTDR. One for which there is no room is lost, as in a full FIFO.
    pub fn send(&mut self, streams: &Streams, byte: u8) -> Effect {
        streams.output.push(byte);
        // Not before the byte is in the stream: the draining pCPU sees either that or the notification.
        let waiting = streams.output.len();
        let roomy = waiting <= OUTPUT - SPACE;
        Effect {
            line: !(roomy && self.sent) && self.set_sent(streams, roomy),
            output: Self::tells(streams, byte, waiting),
        }
    }

    /// Raises the transmit interrupt if there is room (`roomy`), or lowers it until there is. Returns
    /// whether that changes anything.
    #[inline(never)]
    fn set_sent(&mut self, streams: &Streams, roomy: bool) -> bool {
        let before = self.sent;
        self.sent = roomy;
        if !roomy {
            streams.wants_space.want();
            // The draining pCPU may have made room before it could see `wants_space`.
            self.sent = streams.output.free() >= SPACE;
        }
        self.sent != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn flags_follow_the_streams() {
        let (mut uart, streams) = (Pl011::new(), Streams::default());
        assert_eq!(uart.read(&streams, FR).0, FR_TXFE | FR_RXFE | FR_MODEM);
        for _ in 0..1024 {
            uart.write(&streams, DR, 0x41);
        }
        assert_eq!(
            uart.read(&streams, FR).0,
            FR_TXFF | FR_BUSY | FR_RXFE | FR_MODEM
        );
        assert!(streams.input.push(0x62));
        assert_eq!(uart.read(&streams, FR).0 & FR_RXFE, 0);
        assert_eq!(uart.read(&streams, DR).0, 0x62);
        assert_eq!(uart.read(&streams, DR).0, 0, "an empty FIFO reads as zero");
    }

    /// What the short way does is what the long one does, and it does nothing where the interrupt has to move.
    #[test]
    fn a_byte_that_only_goes_into_the_stream_is_told_of_as_any_other() {
        let (mut uart, streams) = (Pl011::new(), Streams::default());
        let (mut long, other) = (Pl011::new(), Streams::default());
        assert_eq!(uart.send_only(&streams, b'a'), None, "the interrupt comes");
        assert!(streams.output.is_empty());
        for (uart, streams) in [(&mut uart, &streams), (&mut long, &other)] {
            assert!(uart.send(streams, b'a').line);
        }
        let mut told = Vec::new();
        for byte in b"bc\nd".iter().cycle().take(2000) {
            let output = long.send(&other, *byte).output;
            match uart.send_only(&streams, *byte) {
                Some(tells) => told.push(tells == output),
                None => break,
            }
        }
        assert_eq!(streams.output.len(), OUTPUT - SPACE);
        assert_eq!(told, [true; (OUTPUT - SPACE) as usize - 1]);
        streams.output.pop();
        streams.eager.store(1, Relaxed);
        assert_eq!(uart.send_only(&streams, b'e'), Some(true));
    }

    #[test]
    fn the_transmit_interrupt_comes_when_there_is_room() {
        let (mut uart, streams) = (Pl011::new(), Streams::default());
        uart.write(&streams, IMSC, INT_TX);
        assert!(!uart.line(&streams), "nothing was sent yet");
        uart.write(&streams, DR, 0x41);
        assert!(uart.line(&streams));
        uart.write(&streams, 0x44, INT_TX);
        assert!(!uart.line(&streams));
        for _ in 0..1024 {
            uart.write(&streams, DR, 0x41);
        }
        assert!(!uart.line(&streams));
        assert!(streams.wants_space.made());
        uart.space_again(&streams);
        assert!(!uart.line(&streams), "there is no room yet");
    }

    #[test]
    fn the_line_is_told_when_it_moves_and_a_byte_says_when_that_may_be() {
        let (mut uart, streams) = (Pl011::new(), Streams::default());
        uart.write(&streams, IMSC, INT_TX | INT_RT);
        assert_eq!(uart.moved_line(&streams), None, "it was low before");
        assert!(uart.write(&streams, DR, 0x41).line);
        assert_eq!(uart.moved_line(&streams), Some(true));
        assert!(!uart.write(&streams, DR, 0x41).line, "it stays up");
        assert_eq!(uart.moved_line(&streams), None);
        uart.write(&streams, 0x44, INT_TX);
        assert_eq!(uart.moved_line(&streams), Some(false));
        assert!(uart.write(&streams, DR, 0x41).line, "sent again");
        assert_eq!(uart.moved_line(&streams), Some(true));
        // The byte behind which less than the threshold is free is the one that lowers it.
        let falls = (4..1025).find(|_| uart.write(&streams, DR, 0x41).line);
        assert_eq!(falls, Some(1024 - SPACE as usize + 1));
        assert_eq!(uart.moved_line(&streams), Some(false));
        streams.input.push(1);
        assert_eq!(uart.moved_line(&streams), Some(true));
    }

    #[test]
    fn the_drainer_hears_of_the_first_byte_the_end_of_a_line_and_a_full_stream() {
        let (mut uart, streams) = (Pl011::new(), Streams::default());
        assert!(uart.write(&streams, DR, 0x41).output);
        assert!(!uart.write(&streams, DR, 0x41).output);
        assert!(uart.write(&streams, DR, b'\n'.into()).output);
        let full = (4..1025).find(|_| uart.write(&streams, DR, 0x41).output);
        assert_eq!(full, Some(769), "more than three quarters");
        streams.eager.store(1, Relaxed);
        while streams.output.pop().is_some() {}
        uart.write(&streams, DR, 0x41);
        assert!(uart.write(&streams, DR, 0x41).output, "at once");
    }

    #[test]
    fn the_receive_interrupt_is_up_while_bytes_wait() {
        let (mut uart, streams) = (Pl011::new(), Streams::default());
        uart.write(&streams, IMSC, INT_RX | INT_RT);
        assert!(!uart.line(&streams));
        streams.input.push(1);
        assert!(uart.line(&streams));
        uart.write(&streams, 0x44, INT_ALL);
        assert!(uart.line(&streams), "clearing does not empty the FIFO");
        assert_eq!(uart.read(&streams, DR), (1, Effect::LINE));
        assert!(!uart.line(&streams));
    }

    #[test]
    fn linux_finds_a_primecell() {
        let (mut uart, streams) = (Pl011::new(), Streams::default());
        let mut id = |first: u64| {
            (0..4).fold(0, |all, n| {
                all | (uart.read(&streams, first + n * 4).0 & 0xff) << (n * 8)
            })
        };
        assert_eq!(id(0xfe0), 0x0034_1011);
        assert_eq!(id(0xff0), 0xb105_f00d);
    }
}

//! What disks and ports have done, as lines for the console, which say it to people and to tools
//! alike ([`bulkhead_abi::console`]).
//!
//! Nobody ever waits for the console: [`Lines::next`] gives out bytes one at a time, for as long as
//! there is room. How many lines there are is limited, since a guest that starts its device anew
//! all the time has one for each time: [`BURST`] at once, and then one in each `rest` ticks. What
//! is not said then is said later, with the counters of then.

use bulkhead_abi::console::{DiskDid, Dropped, Name, PortDid, Sink};
use heapless::Vec;

use crate::backend::Units;
use crate::bits::bits;
use crate::{disk, switch};

/// Lines that may come at once.
pub const BURST: u64 = 128;
/// Most bytes of a line: of a port whose numbers all have 20 digits.
const LINE: usize = 512;

/// Who has the counters, and the names.
pub trait Counted {
    /// Name of a disk, name of its VM, counters.
    fn disk(&self, unit: usize) -> Option<(&str, &str, disk::Counters)>;
    /// Name of a port's network, name of its VM, counters.
    fn port(&self, unit: usize) -> Option<(&str, &str, switch::Counters)>;
}

/// What [`Lines::next`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A byte, which is to be sent before the next one is asked for.
    Byte(u8),
    /// Nothing before this time.
    At(u64),
    /// Nothing.
    Nothing,
}

/// Lines that are to be said.
#[derive(Debug)]
pub struct Lines {
    due: Units,
    line: Vec<u8, LINE>,
    sent: usize,
    /// Ticks of a line.
    rest: u64,
    /// When the lines so far would have been said at one in `rest`.
    free: u64,
}

impl Lines {
    /// None yet.
    pub const fn new(rest: u64) -> Self {
        Self {
            due: Units { ports: 0, disks: 0 },
            line: Vec::new(),
            sent: 0,
            rest,
            free: 0,
        }
    }

    /// Says a line about each of these.
    pub fn say(&mut self, units: Units) {
        self.due.ports |= units.ports;
        self.due.disks |= units.disks;
    }

    /// The next byte.
    pub fn next(&mut self, counted: &impl Counted, now: u64) -> Next {
        if let Some(byte) = self.line.get(self.sent) {
            return Next::Byte(*byte);
        }
        loop {
            let (disk, port) = (bits(self.due.disks).next(), bits(self.due.ports).next());
            if disk.or(port).is_none() {
                return Next::Nothing;
            }
            let earliest = self.free.saturating_sub(BURST * self.rest);
            if now < earliest {
                return Next::At(earliest);
            }
            self.line.clear();
            self.sent = 0;
            let mut to = Writer(&mut self.line);
            if let Some(unit) = disk {
                self.due.disks &= !(1 << unit);
                about_disk(counted, unit, &mut to);
            } else if let Some(unit) = port {
                self.due.ports &= !(1 << unit);
                about_port(counted, unit, &mut to);
            }
            if let Some(byte) = self.line.first() {
                self.free = self.free.max(now).saturating_add(self.rest);
                return Next::Byte(*byte);
            }
        }
    }

    /// The byte was sent.
    pub fn sent(&mut self) {
        self.sent += 1;
    }
}

fn about_disk(counted: &impl Counted, unit: usize, to: &mut Writer) {
    let Some((name, vm, did)) = counted.disk(unit) else {
        return;
    };
    let line = DiskDid {
        unit: unit as u64,
        disk: Name(name.as_bytes()),
        vm: Name(vm.as_bytes()),
        read_bytes: did.read_bytes,
        reads: did.reads,
        written_bytes: did.written_bytes,
        writes: did.writes,
        flushes: did.flushes,
        failed: did.failed.wrapping_add(did.mute),
    };
    line.write(to);
    to.text("\r\n");
}

fn about_port(counted: &impl Counted, unit: usize, to: &mut Writer) {
    let Some((network, vm, did)) = counted.port(unit) else {
        return;
    };
    let line = PortDid {
        unit: unit as u64,
        vm: Name(vm.as_bytes()),
        network: Name(network.as_bytes()),
        sent_bytes: did.from_guest.bytes,
        sent: did.from_guest.frames,
        received_bytes: did.to_guest.bytes,
        received: did.to_guest.frames,
        dropped: Dropped(did.dropped()),
    };
    line.write(to);
    to.text("\r\n");
}

/// Writes a line; what does not fit is cut off.
struct Writer<'a>(&'a mut Vec<u8, LINE>);

impl Sink for Writer<'_> {
    fn text(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.byte(byte));
    }

    fn byte(&mut self, byte: u8) {
        let _ = self.0.push(byte);
    }

    fn name(&mut self, name: &[u8]) {
        let name = name.split(|byte| *byte == 0).next();
        name.iter()
            .flat_map(|name| name.iter())
            .for_each(|byte| self.byte(*byte));
    }

    fn decimal(&mut self, value: u64) {
        self.padded(value, 1);
    }

    fn padded(&mut self, value: u64, width: usize) {
        let mut digits = [b' '; 20];
        let mut left = value;
        let mut first = digits.len();
        for (place, digit) in digits.iter_mut().enumerate().rev() {
            if left == 0 && first < 20 {
                break;
            }
            *digit = b'0' + (left % 10) as u8;
            left /= 10;
            first = place;
        }
        let start = first.min(20usize.saturating_sub(width));
        let shown = digits.get(start..).unwrap_or_default();
        shown.iter().for_each(|byte| self.byte(*byte));
    }

    fn cell(&mut self, value: u64, width: usize) {
        self.byte(b' ');
        self.padded(value, width);
    }

    fn hex(&mut self, value: u64) {
        self.text("0x");
        let digits = 16 - (value.leading_zeros() as usize / 4).min(15);
        for place in (0..digits).rev() {
            let digit = (value >> (4 * place) & 15) as u8;
            self.byte(match digit {
                0..10 => b'0' + digit,
                _ => b'a' + digit - 10,
            });
        }
    }

    fn column(&mut self, column: usize) {
        while self.0.len() < column {
            self.byte(b' ');
        }
    }
}

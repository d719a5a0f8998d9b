//! Queues in which everything is drawn, and which change while the device looks at them.

use super::raw::{Raw, SIZE, place};
use crate::random::Random;
use bulkhead_abi::device::ring::INDIRECT;
use bulkhead_service::memory::Memory;

/// An address where no VM has anything, in the 39 bits of its tables.
pub const NOWHERE: u64 = 0x7f_ffff_f000;

/// So many descriptors at the end of a table always name the indirect one, and no other does: a descriptor is two words, and the device
/// may see one of them beside the other of what was there before, or of what another CPU writes.
const INDIRECT_ONES: u16 = 4;

/// A source of it.
pub struct Noise {
    random: Random,
}

impl Noise {
    /// The same noise for the same seed.
    pub fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
        }
    }

    /// Draws a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    /// Starts the device and offers it a queue of noise, which changes behind the notification.
    ///
    /// # Errors
    ///
    /// The device does not start, or has written where no request is.
    pub fn round(&mut self, raw: &mut Raw, features: u64) -> Result<(), &'static str> {
        if !raw.start(features) {
            return Err("it does not start");
        }
        self.fill(raw);
        for _ in 0..self.below(u64::from(SIZE) + 1) {
            raw.put(self.number());
        }
        let more = if self.below(8) == 0 {
            self.random.draw() as u16
        } else {
            0
        };
        raw.show(more);
        for _ in 0..self.below(200) {
            self.rewrite(raw);
            if self.below(16) == 0 {
                raw.show(self.below(2) as u16);
            }
        }
        if !raw.is_canary_whole() {
            return Err("it has written elsewhere");
        }
        Ok(())
    }

    /// Fills tables with noise, and data with what is no header of a request that writes.
    pub fn fill(&mut self, raw: &Raw) {
        let words = place::DATA_BYTES as usize / 8;
        for at in (place::DATA..).step_by(8).take(words) {
            assert!(raw.memory.store64(at, u64::MAX).is_ok(), "outside");
        }
        for table in [place::TABLE, place::INDIRECT] {
            (0..SIZE).for_each(|number| self.describe(raw, table, number));
        }
    }

    /// Writes another descriptor.
    pub fn rewrite(&mut self, raw: &Raw) {
        let table = [place::TABLE, place::INDIRECT][self.below(2) as usize];
        let number = self.below(SIZE.into()) as u16;
        self.describe(raw, table, number);
    }

    /// The number of a descriptor, now and then of one behind the table.
    pub fn number(&mut self) -> u16 {
        let numbers = u64::from(SIZE) + u64::from(self.below(64) == 0);
        self.below(numbers) as u16
    }

    fn describe(&mut self, raw: &Raw, table: u64, number: u16) {
        // An address of the tables is read only: what is written there would be other descriptors than those drawn here.
        let in_table = number >= SIZE - INDIRECT_ONES;
        let address = match self.below(32) {
            _ if in_table => raw.address(place::INDIRECT),
            0 => NOWHERE,
            1 => self.random.draw(),
            _ => raw.address(place::DATA + self.below(place::DATA_BYTES / 2)),
        };
        let bytes = match self.below(16) {
            0 => 0,
            1 => self.below(64) * 16,
            // Longer than the RAM: a buffer that is not would be memory that the device may write.
            2 => u64::from(u32::MAX) - self.below(4096),
            _ => self.below(place::DATA_BYTES / 2),
        };
        let flags = if in_table {
            INDIRECT
        } else {
            self.below(4) as u16
        };
        let next = self.number();
        raw.describe(table, number, address, bytes as u32, flags, next);
    }
}

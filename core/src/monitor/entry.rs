//! Input of a value in the monitor: a weight, a cap, a budget, or the CPUs of a pool.

use crate::sched::Change;

/// Kind of the value that is being typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Weight of a fair VM.
    Weight,
    /// Cap of a fair VM, in percent, optionally with its period in microseconds.
    Cap,
    /// Budget of a server, in microseconds, optionally with its period.
    Budget,
    /// Pool of a fair VM: CPUs, one digit for each.
    Pool,
}

impl What {
    /// The name of the value in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Cap => "cap",
            Self::Budget => "budget",
            Self::Pool => "pool",
        }
    }

    /// Instructions for typing it.
    pub const fn form(self) -> &'static str {
        match self {
            Self::Weight => "type N, then Enter; Esc leaves it",
            Self::Cap => {
                "type PERCENT or PERCENT/WINDOW in us (100: none), then Enter; Esc leaves it"
            }
            Self::Budget => "type BUDGET or BUDGET/PERIOD in us, then Enter; Esc leaves it",
            Self::Pool => "type the CPUs, such as 01 for 0 and 1, then Enter; Esc leaves it",
        }
    }
}

/// Effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typed {
    /// The key is accepted; the value is not complete.
    More,
    /// The key is not part of such a value.
    Wrong,
    /// The value is complete.
    Done,
    /// The input is cancelled.
    Left,
}

/// A value that is being typed.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Kind of the value.
    pub what: What,
    /// The number before a slash.
    first: Option<u32>,
    number: Option<u32>,
    /// The set of digits that were typed, one bit for each.
    digits: u32,
}

impl Entry {
    /// An input of which nothing has been typed.
    pub const fn new(what: What) -> Self {
        Self {
            what,
            first: None,
            number: None,
            digits: 0,
        }
    }

    /// Handles a key.
    pub fn key(&mut self, key: u8) -> Typed {
        match key {
            b'0'..=b'9' => {
                let digit = u32::from(key.wrapping_sub(b'0'));
                let before = self.number.unwrap_or(0).saturating_mul(10);
                self.number = Some(before.saturating_add(digit));
                self.digits |= 1u32.wrapping_shl(digit);
                Typed::More
            }
            b'/' if matches!(self.what, What::Cap | What::Budget)
                && self.first.is_none()
                && self.number.is_some() =>
            {
                self.first = self.number.take();
                Typed::More
            }
            b'\r' | b'\n' if self.number.is_some() => Typed::Done,
            0x1b => Typed::Left,
            _ => Typed::Wrong,
        }
    }

    /// The change that was typed. `period` is the current period in nanoseconds.
    pub fn change(&self, period: u64) -> Change {
        let number = self.number.unwrap_or(0);
        let (first, period) = match self.first {
            Some(first) => (first, u64::from(number).saturating_mul(1000)),
            None => (number, period),
        };
        match self.what {
            What::Weight => Change::Weight(u16::try_from(first).unwrap_or(u16::MAX)),
            What::Cap => Change::Cap {
                quota: (period / 100).saturating_mul(first.into()),
                period,
            },
            What::Budget => Change::Server {
                budget: u64::from(first).saturating_mul(1000),
                period,
            },
            What::Pool => Change::Pool(self.digits),
        }
    }
}

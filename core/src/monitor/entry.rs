//! A number that is being typed: a weight, a cap, a budget, or the CPUs of a pool.

use crate::sched::Change;

/// What is being typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Of a fair VM.
    Weight,
    /// Of a fair VM, in percent, perhaps with its window in microseconds.
    Cap,
    /// Of a server, in microseconds, perhaps with its period.
    Budget,
    /// Of a fair VM: CPUs, a digit for each.
    Pool,
}

impl What {
    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Cap => "cap",
            Self::Budget => "budget",
            Self::Pool => "pool",
        }
    }

    /// How to type it.
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

/// What a key has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typed {
    /// More is to come.
    More,
    /// It is no part of a number.
    Wrong,
    /// The whole number is there.
    Done,
    /// Never mind.
    Left,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What it is.
    pub what: What,
    /// What was typed before a slash.
    first: Option<u32>,
    number: Option<u32>,
    /// Digits that were typed, a bit for each.
    digits: u32,
}

impl Entry {
    /// Nothing is typed yet.
    pub const fn new(what: What) -> Self {
        Self {
            what,
            first: None,
            number: None,
            digits: 0,
        }
    }

    /// Takes a key.
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

    /// What has been asked for; `period`: nanoseconds of the window or period as it is.
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
                window: period,
            },
            What::Budget => Change::Server {
                budget: u64::from(first).saturating_mul(1000),
                period,
            },
            What::Pool => Change::Pool(self.digits),
        }
    }
}

//! CPU time of a vCPU that does not have its pCPU to itself, in nanoseconds:
//!
//! ```text
//!   time ran=1000 of=5000 stolen=3000 longest=800
//!   time turns=12 overruns=0
//!   waits 128=3 1024=9
//!   service slices=40 ns=90000 longest=3000
//! ```
//!
//! Tools find a value by its key, wherever it stands in its line; one that is missing is 0.

use super::Sink;

/// The number behind a key among `key=value` words; 0 if it is not there or no number.
fn value(text: &str, key: &str) -> u64 {
    let mut pairs = text
        .split_ascii_whitespace()
        .filter_map(|word| word.split_once('='));
    let found = pairs.find(|(known, _)| *known == key);
    found.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// Returns the text behind `first`, the word with which a line begins, or `None` if it begins otherwise. Blanks in
/// front of that word do not count.
fn behind<'a>(text: &'a str, first: &str) -> Option<&'a str> {
    let rest = text
        .trim_ascii_start()
        .strip_prefix(first.trim_ascii_start())?;
    (rest.is_empty() || rest.starts_with(' ')).then_some(rest)
}

/// Declares a line of `key=value` words: a struct, how it is written and how it is parsed. A key behind a semicolon is
/// written if its value is not 0.
macro_rules! pairs {
    (
        $(#[$doc:meta])*
        pub struct $name:ident = $begins:literal {
            $(#[$first_doc:meta])* $first:ident
            $(, $(#[$field_doc:meta])* $field:ident)*
            $(; $(#[$last_doc:meta])* $last:ident)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $(#[$first_doc])* pub $first: u64,
            $($(#[$field_doc])* pub $field: u64,)*
            $($(#[$last_doc])* pub $last: u64,)?
        }

        impl $name {
            /// Appends the line.
            #[inline(always)]
            pub fn write(&self, to: &mut impl Sink) {
                to.text(concat!($begins, " ", stringify!($first), "="));
                to.decimal(self.$first);
                $(
                    to.text(concat!(" ", stringify!($field), "="));
                    to.decimal(self.$field);
                )*
                $(
                    if self.$last != 0 {
                        to.text(concat!(" ", stringify!($last), "="));
                        to.decimal(self.$last);
                    }
                )?
            }

            /// Reads the line; `None` if none of its keys is there.
            pub fn parse(text: &str) -> Option<Self> {
                let rest = behind(text, $begins)?;
                let keys = [stringify!($first), $(stringify!($field),)* $(stringify!($last),)?];
                let mut words = rest.split_ascii_whitespace();
                words
                    .any(|word| word.split_once('=').is_some_and(|(key, _)| keys.contains(&key)))
                    .then(|| Self {
                        $first: value(rest, stringify!($first)),
                        $($field: value(rest, stringify!($field)),)*
                        $($last: value(rest, stringify!($last)),)?
                    })
            }
        }
    };
}

pairs! {
    /// Times for which the vCPU ran and waited.
    pub struct Ran = "  time" {
        /// Time for which it ran.
        ran,
        /// Time since it came to its pCPU.
        of,
        /// Time for which it was ready and did not run.
        stolen,
        /// Longest wait from being woken to running.
        longest
    }
}

pairs! {
    /// Numbers of turns, overruns and moves of the vCPU.
    pub struct Turns = "  time" {
        /// Turns.
        turns,
        /// Times that its budget or cap was used up while it had more to do.
        overruns;
        /// Times that it was moved to another pCPU.
        moves
    }
}

pairs! {
    /// What the virtio devices of a VM have had of the service thread.
    pub struct ServiceTime = "  service" {
        /// Slices.
        slices,
        /// Their time.
        ns,
        /// The longest of them.
        longest
    }
}

/// First word of a line of [`Waits`], with the blanks in front of it.
pub const WAITS: &str = "  waits";

/// The key of [`Waits`] without a bound.
const MORE: &str = "more";

/// Waits of about the same length, from being woken to running: a word of a line that begins with [`WAITS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Upper bound: the waits were shorter than this, and not shorter than half of it; `None`: longer than all others.
    pub below: Option<u64>,
    /// Number of waits.
    pub count: u64,
}

impl Waits {
    /// Appends a blank and the word.
    #[inline(always)]
    pub fn write(&self, to: &mut impl Sink) {
        to.byte(b' ');
        match self.below {
            None => to.text(MORE),
            Some(below) => to.decimal(below),
        }
        to.byte(b'=');
        to.decimal(self.count);
    }

    fn parse(word: &str) -> Option<Self> {
        let (bound, count) = word.split_once('=')?;
        let below = match bound {
            MORE => None,
            bound => Some(bound.parse().ok()?),
        };
        let count = count.parse().ok()?;
        Some(Self { below, count })
    }
}

/// Reads a line of waits; words that are none are left alone.
pub fn waits(text: &str) -> Option<impl Iterator<Item = Waits>> {
    let words = behind(text, WAITS)?.split_ascii_whitespace();
    Some(words.filter_map(Waits::parse))
}

//! Exit statistics of a vCPU: a line that names it, the headings, a row for each class, the sums; behind a crash, where it
//! was and its last exits. Times are cycles of PMCCNTR_EL0.

use core::str::FromStr;

use super::field::Padded;
use super::{Field, Hex, Name, Percent, Sink, Word};
use crate::exit::ExitClass;

sequence! {
    /// The vCPU whose statistics follow: `exits vm=linux vcpu=0`.
    pub struct ExitsOf<'a> {
        /// Name of the VM.
        "exits vm=", vm: Name<'a>,
        /// Number of the vCPU in it.
        " vcpu=", vcpu: u64,
    }
}

/// Headings of the columns of a [`ClassRow`].
pub const HEADINGS: &str = "  class           count        min       mean        max          total    stddev  %time   per s";

/// The sums of a class of exits, in columns. `N`: what mean and deviation are, whole numbers as EL2 writes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassRow<N = u64> {
    /// The class.
    pub class: ExitClass,
    /// Exits.
    pub count: u64,
    /// Shortest.
    pub min: u64,
    /// Arithmetic mean.
    pub mean: N,
    /// Longest.
    pub max: u64,
    /// All together.
    pub total: u64,
    /// Standard deviation.
    pub deviation: N,
    /// Share of the cycles in which the vCPU was on.
    pub share: Percent,
    /// Exits in a billion of those cycles, about a second on the boards at hand.
    pub per_second: u64,
}

impl ClassRow {
    /// Appends the row.
    #[inline(always)]
    pub fn write(&self, to: &mut impl Sink) {
        to.text("  ");
        to.text(self.class.name());
        to.column(14);
        to.padded(self.count, 9);
        to.cell(self.min, 10);
        to.cell(self.mean, 10);
        to.cell(self.max, 10);
        to.cell(self.total, 14);
        to.cell(self.deviation, 9);
        to.byte(b' ');
        self.share.write(to);
        to.cell(self.per_second, 7);
    }
}

impl<N: FromStr> ClassRow<N> {
    /// Reads a row; `None` for the headings, too. A row that ends behind the share has 0 exits in a second.
    pub fn parse(text: &str) -> Option<Self> {
        fn number<T: FromStr>(word: Option<&str>) -> Option<T> {
            word?.parse().ok()
        }
        let mut words = text.split_ascii_whitespace();
        Some(Self {
            class: ExitClass::of_name(words.next()?)?,
            count: number(words.next())?,
            min: number(words.next())?,
            mean: number(words.next())?,
            max: number(words.next())?,
            total: number(words.next())?,
            deviation: number(words.next())?,
            share: Percent::parse(&mut words.next()?)?,
            per_second: number(words.next()).unwrap_or_default(),
        })
    }
}

sequence! {
    /// The sums of all classes: `  all 3 exits, guest 600 of 1000 cycles ( 60.00%), away 300 ( 30.00%), per s 3000000`.
    pub struct Totals {
        /// Exits.
        "  all ", exits: u64,
        /// Cycles in the guest.
        " exits, guest ", guest: u64,
        /// Cycles in which the vCPU was on, up to its last exit.
        " of ", elapsed: u64,
        /// The guest's share of them.
        " cycles (", share: Percent,
        /// Cycles of those in which it was away from its pCPU, asleep or because others had their turns.
        "%), away ", away: u64,
        /// Their share.
        " (", away_share: Percent,
        /// Exits in a billion cycles, as in a [`ClassRow`].
        "%), per s ", per_second: u64,
    }
}

sequence! {
    /// Place of a vCPU's crash, with the registers that tell the cause.
    pub struct FaultAt<'a> {
        /// Name of the VM.
        "  vm=", vm: Name<'a>,
        /// Number of the vCPU in it.
        " vcpu=", vcpu: u64,
        /// ELR_EL2.
        " pc=", pc: Hex,
        /// Exception class (ESR_EL2.EC).
        " class=", class: Hex,
        /// ESR_EL2.
        " syndrome=", syndrome: Hex,
        /// FAR_EL2.
        " address=", address: Hex,
    }
}

/// The line in front of the rows of [`LastExit`].
pub const LAST_EXITS: &str = "  last exits, newest first:";

sequence! {
    /// One of the last exits of a vCPU.
    pub struct LastExit<'a> {
        /// Name of its class, `?` if no class has its number.
        "    ", class: Padded<Word<'a>, 16>,
        /// Guest address at which it left (ELR_EL2).
        " pc=", pc: Hex,
        /// ESR_EL2, or the INTID of an interrupt.
        " syndrome=", syndrome: Hex,
        /// Cycle counter at the end of the exit.
        " at=", at: u64,
    }
}

//! Lines about the CPU time of a vCPU that shares its pCPU, for reports at its end and for the
//! monitor: sums ([`Ran`]), counts ([`Turns`]), and a histogram of the waits from being woken to
//! running ([`Waits`]). Times are in nanoseconds.

use bulkhead_abi::console::{Ran, Turns, WAITS, Waits};

use super::text::TextLine;
use crate::sched::account::CLASSES;
use crate::sched::{Account, Usage};

/// Classes of waits in a line: as many as fit 126 bytes, of a counter with 1 MHz or more.
const PER_LINE: usize = 4;
/// Number of lines about a vCPU; those after the second may be empty.
pub const LINES: usize = 2 + CLASSES.div_ceil(PER_LINE);

/// Converts ticks to nanoseconds, rounded down.
#[inline(never)]
pub const fn nanoseconds(ticks: u64, frequency: u64) -> u64 {
    const SECOND: u64 = 1_000_000_000;
    let (Some(seconds), Some(rest)) = (ticks.checked_div(frequency), ticks.checked_rem(frequency))
    else {
        return 0;
    };
    // The rest is below the frequency, which has 32 bits.
    let rest = match rest.saturating_mul(SECOND).checked_div(frequency) {
        Some(rest) => rest,
        None => 0,
    };
    seconds.saturating_mul(SECOND).saturating_add(rest)
}

/// The classes of waits in line `n`; `None` for lines that are never empty.
pub const fn classes(n: usize) -> Option<core::ops::Range<usize>> {
    let Some(n) = n.checked_sub(2) else {
        return None;
    };
    let first = n.wrapping_mul(PER_LINE);
    Some(first..first.wrapping_add(PER_LINE))
}

/// Appends line `n` about a vCPU; nothing if it is empty. `frequency`: ticks in a second.
pub fn write(n: usize, usage: &Usage, frequency: u64, line: &mut TextLine) {
    let account = &usage.account;
    let time = |ticks| nanoseconds(ticks, frequency);
    match n {
        0 => {
            Ran {
                ran: time(account.ran),
                of: time(usage.passed),
                stolen: time(account.stolen),
                longest: time(account.longest),
            }
            .write(line);
        }
        1 => {
            Turns {
                turns: account.turns,
                overruns: account.overruns,
                moves: account.moves,
            }
            .write(line);
        }
        n => waits(classes(n).unwrap_or(0..0), account, frequency, line),
    }
}

/// Appends those of `classes` that have waits.
fn waits(classes: core::ops::Range<usize>, account: &Account, frequency: u64, line: &mut TextLine) {
    for class in classes {
        let Some(count) = account.waits.get(class).filter(|count| **count != 0) else {
            continue;
        };
        if line.as_bytes().is_empty() {
            line.text(WAITS);
        }
        let bounded = class < CLASSES.wrapping_sub(1);
        Waits {
            below: bounded.then(|| nanoseconds(1u64.wrapping_shl(class as u32), frequency)),
            count: u64::from(*count),
        }
        .write(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::{Policy, RunState};
    use std::{string::String, vec::Vec};

    fn lines(account: Account, passed: u64, frequency: u64) -> Vec<String> {
        let usage = Usage {
            policy: Policy::Pinned,
            run_state: RunState::Running,
            account,
            passed,
        };
        (0..LINES)
            .map(|n| {
                // Longest text of a line of a report.
                let mut line = TextLine::new();
                write(n, &usage, frequency, &mut line);
                String::from_utf8(line.as_bytes().to_vec()).unwrap()
            })
            .filter(|line| !line.is_empty())
            .collect()
    }

    #[test]
    fn times_are_nanoseconds_and_waits_are_named_by_their_bound() {
        let mut account = Account {
            ran: 1_000,
            stolen: 500,
            longest: 64,
            turns: 7,
            overruns: 2,
            ..Account::default()
        };
        account.waits[0] = 3;
        account.waits[1] = 1;
        account.waits[7] = 9;
        account.waits[CLASSES - 1] = 4;
        assert_eq!(
            lines(account, 4_000, 62_500_000),
            [
                "  time ran=16000 of=64000 stolen=8000 longest=1024",
                "  time turns=7 overruns=2",
                "  waits 16=3 32=1",
                "  waits 2048=9",
                "  waits more=4",
            ]
        );
        assert_eq!(lines(Account::default(), 0, 62_500_000).len(), 2);
    }

    #[test]
    fn no_line_is_cut() {
        let most = Account {
            ran: u64::MAX,
            stolen: u64::MAX,
            longest: u64::MAX,
            turns: u64::MAX,
            overruns: u64::MAX,
            waits: [u32::MAX; CLASSES],
            ..Account::default()
        };
        let text = lines(most, u64::MAX, 1_000_000);
        assert_eq!(text.len(), LINES);
        for line in &text {
            assert!(line.len() < 126, "{line}");
        }
        let named = text.join(" ").matches("=4294967295").count();
        assert_eq!(named, CLASSES, "each class once");
    }

    #[test]
    fn ticks_become_nanoseconds_without_overflow() {
        assert_eq!(nanoseconds(u64::MAX, 1_000_000_000), u64::MAX);
        assert_eq!(nanoseconds(3, 2), 1_500_000_000);
        assert_eq!(nanoseconds(62_499_999, 62_500_000), 999_999_984);
        assert_eq!(nanoseconds(5, 0), 0);
    }
}

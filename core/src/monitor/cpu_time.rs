//! CPU time of a vCPU: what it has had of its pCPU in the last second, which is the difference of two looks at its account, what it
//! does, and its policy.

use core::sync::atomic::{AtomicU32, Ordering};

use bulkhead_abi::console::{Field, Percent};
use bulkhead_abi::plan::MAX_VCPUS;

use super::published::Published;
use super::snapshot::State;
use crate::console::cpu_time::nanoseconds;
use crate::console::text::TextLine;
use crate::sched::{Policy, RunState, Usage};

/// The column behind a share.
pub const SHARE: usize = 9;
/// Width of what a vCPU does, and the blanks behind it.
const DOES: usize = 15;

/// CPU time of a vCPU (ticks).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// When that was (physical counter).
    pub at: u64,
    /// Since when it is counted.
    pub since: u64,
    /// For how long the vCPU ran.
    pub ran: u64,
}

/// The first look at each vCPU, in the order of the plan: when it was and for how long the vCPU had run, both in [`UNIT`]s and
/// modulo 2^32; 0: it was not there. Apart from the monitor, because start-up writes that, and clears this with much else.
#[derive(Debug)]
pub struct Shares([[AtomicU32; 2]; MAX_VCPUS]);

/// Ticks, as a power of two: with counters of 1 MHz to 1 GHz shares are exact to a hundredth of a percent, and the second look may
/// come a minute after the first.
const UNIT: u32 = 4;

impl Default for Shares {
    fn default() -> Self {
        Self::new()
    }
}

impl Shares {
    /// Nobody was looked at.
    pub const fn new() -> Self {
        Self([const { [const { AtomicU32::new(0) }; 2] }; MAX_VCPUS])
    }

    /// Forgets the vCPU in `row`, which is about to be looked at: what was kept may be older than differences can say.
    pub fn forget(&self, row: usize) {
        if let Some([at, _]) = self.0.get(row) {
            at.store(0, Ordering::Relaxed);
        }
    }

    /// Keeps the answer about the vCPU in `row` as the first look.
    pub fn keep(&self, row: usize, published: &Published) {
        if let (Some([at, ran]), Some(look)) = (self.0.get(row), published.look()) {
            at.store(((look.at >> UNIT) as u32).max(1), Ordering::Relaxed);
            ran.store((look.ran >> UNIT) as u32, Ordering::Relaxed);
        }
    }

    /// Returns the share between the first look at the vCPU in `row` and the answer about it, or since it
    /// started if it did so in between; `None` if it was not there at one of them.
    pub fn of(&self, row: usize, published: &Published) -> Option<Percent> {
        let (look, [at, ran]) = (published.look()?, self.0.get(row)?);
        if at.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let since = |now: u64, then: &AtomicU32| {
            u64::from(((now >> UNIT) as u32).wrapping_sub(then.load(Ordering::Relaxed)))
        };
        let (passed, age) = (since(look.at, at), look.at.wrapping_sub(look.since));
        if age >> UNIT < passed {
            return Some(Percent {
                part: look.ran,
                of: age,
            });
        }
        // Rounded, as what was left out may make a whole percent less than that.
        let part = since(look.ran, ran).saturating_add(passed / 20_000);
        Some(Percent {
            part: part.min(passed),
            of: passed,
        })
    }
}

/// Appends a share as the first column of a line.
pub fn share(share: Option<Percent>, line: &mut TextLine) {
    if let Some(share) = share {
        share.write(line);
        line.byte(b'%');
    }
    line.column(SHARE);
}

/// Appends what a vCPU does and its policy: `out of budget  rt 500/2000 us, more in 120 us`.
pub fn stands(state: State, usage: &Usage, frequency: u64, line: &mut TextLine) {
    let us = |ticks| nanoseconds(ticks, frequency) / 1000;
    let words = match (state, usage.run_state) {
        (State::On, RunState::Blocked) => "asleep",
        (State::On, RunState::Ready) => "ready",
        (State::On, RunState::Running) => "running",
        (State::On, RunState::Throttled(_)) => "out of budget",
        (state, _) => state.words(),
    };
    line.text(words);
    for _ in words.len()..DOES {
        line.byte(b' ');
    }
    match usage.policy {
        Policy::Pinned => {
            line.text("pinned");
        }
        Policy::Server { budget, period } => {
            line.text("rt ").decimal(us(budget)).byte(b'/');
            line.decimal(us(period)).text(" us");
        }
        Policy::Fair {
            weight,
            quota,
            period,
        } => {
            line.text("fair weight ").decimal(weight.into());
            if quota < period {
                line.text(" cap ").decimal(us(quota)).byte(b'/');
                line.decimal(us(period)).text(" us");
            }
        }
    }
    if let (State::On, RunState::Throttled(ticks)) = (state, usage.run_state) {
        line.text(", more in ").decimal(us(ticks)).text(" us");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::Request;
    use crate::sched::Account;
    use std::string::String;

    fn text(write: impl FnOnce(&mut TextLine)) -> String {
        let mut line = TextLine::new();
        write(&mut line);
        String::from_utf8(line.as_bytes().to_vec()).unwrap()
    }

    fn usage(since: u64, passed: u64, ran: u64) -> Usage {
        Usage {
            policy: Policy::Pinned,
            run_state: RunState::Running,
            account: Account {
                ran,
                ..Account::new(since)
            },
            passed,
        }
    }

    fn answer(published: &Published, usage: Option<&Usage>) {
        published.ask(3, Request::Time);
        let question = published.question(3).unwrap();
        published.answer_time(question, State::On, usage, 1_000_000);
    }

    #[test]
    fn a_share_is_of_the_time_between_two_looks() {
        let (published, shares) = (Published::new(), Shares::new());
        let of = |now: Option<&Usage>| {
            answer(&published, now);
            shares.of(3, &published).map(|share| share.hundredths())
        };
        // The counter has long gone past 2^36.
        let start = 1 << 50;
        assert_eq!(of(None), None, "it is not on its pcpu");
        answer(&published, Some(&usage(start, 100_000, 40_000)));
        shares.keep(3, &published);
        assert_eq!(of(Some(&usage(start, 300_032, 90_048))), Some(2_501));
        // A minute later, with a counter of 1 GHz.
        let minute = 60_000_000_000;
        let late = usage(start, 100_000 + minute, 40_000 + minute / 4);
        assert_eq!(of(Some(&late)), Some(2_500));
        // Started in between: of the time since then.
        assert_eq!(
            of(Some(&usage(start + 290_000, 60_000, 6_000))),
            Some(1_000)
        );
        // One that is gone at the first look, or whose pCPU does not answer, has no share: the look before may be hours old.
        shares.forget(3);
        answer(&published, None);
        shares.keep(3, &published);
        assert_eq!(of(Some(&usage(start, 300_032, 90_048))), None);
        shares.keep(MAX_VCPUS, &published);
        assert!(shares.of(MAX_VCPUS, &published).is_none());
    }

    #[test]
    fn shares_are_a_column() {
        let half = Percent { part: 1, of: 2 };
        let all = Percent { part: 2, of: 2 };
        assert_eq!(text(|line| share(Some(half), line)), " 50.00%  ");
        assert_eq!(text(|line| share(Some(all), line)), "100.00%  ");
        assert_eq!(text(|line| share(None, line)), "         ");
    }

    #[test]
    fn what_a_vcpu_does_and_its_policy_are_said() {
        let cap = Policy::Fair {
            weight: 1000,
            quota: 9_999_999,
            period: 10_000_000,
        };
        let server = Policy::Server {
            budget: 500,
            period: 2000,
        };
        let throttled = RunState::Throttled(10_000_000);
        for (state, run_state, policy, said) in [
            (
                State::On,
                throttled,
                cap,
                "out of budget  fair weight 1000 cap 9999999/10000000 us, more in 10000000 us",
            ),
            (
                State::On,
                RunState::Blocked,
                server,
                "asleep         rt 500/2000 us",
            ),
            (
                State::On,
                RunState::Ready,
                server,
                "ready          rt 500/2000 us",
            ),
            (
                State::On,
                RunState::Running,
                Policy::Pinned,
                "running        pinned",
            ),
            // Nobody who is stopped sleeps, or waits for a budget.
            (
                State::Stopped,
                RunState::Blocked,
                server,
                "stopped        rt 500/2000 us",
            ),
            (
                State::Paused,
                throttled,
                server,
                "paused         rt 500/2000 us",
            ),
            (
                State::Off,
                RunState::Blocked,
                Policy::Pinned,
                "off            pinned",
            ),
        ] {
            let usage = Usage {
                policy,
                run_state,
                ..usage(0, 3, 1)
            };
            assert_eq!(text(|line| stands(state, &usage, 1_000_000, line)), said);
        }
    }
}

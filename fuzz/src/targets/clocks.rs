//! The devices that know the time: a guest programs them as it likes while time goes on in jumps.

use bulkhead_core::devices::pl031::{Now, Pl031};
use bulkhead_core::devices::ptimer::{PhysicalTimer, Register};
use bulkhead_core::devices::watchdog::Watchdog;

use crate::Target;
use crate::engine::Input;

/// This target.
pub const TARGET: Target = Target {
    name: "clocks",
    seeds,
    words: &[],
    run,
};

/// Returns seeds made of steps: the access, the ticks that pass before it, a value.
fn seeds() -> Vec<Vec<u8>> {
    let step = |what: u8, offset: u16, ticks: u32, value: u64| {
        let mut bytes = vec![what];
        bytes.extend(offset.to_le_bytes());
        bytes.extend(ticks.to_le_bytes());
        bytes.extend(value.to_le_bytes());
        bytes
    };
    vec![
        [
            step(1, 4, 10, 100),
            step(1, 0x10, 10, 1),
            step(0, 0, 100_000, 0),
        ]
        .concat(),
        [
            step(3, 0x8, 0, 50),
            step(3, 0, 0, 1),
            step(2, 0, 60, 0),
            step(2, 0, 60, 0),
        ]
        .concat(),
        [step(5, 2, 0, 77), step(5, 0, 0, 1), step(4, 0, 80, 0)].concat(),
    ]
}

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let frequency = 1000;
    let mut count = 1 << 20;
    let mut clock = Pl031::new(7, Now { count, frequency });
    let mut watchdog = Watchdog::new();
    let mut timer = PhysicalTimer::new();
    while !input.is_empty() {
        let what = input.u8();
        let offset = u64::from(input.u16() & 0x1fff);
        count += u64::from(input.u32());
        let now = Now { count, frequency };
        let value = input.u64();
        let register = [Register::Control, Register::Compare, Register::Value][offset as usize % 3];
        match what % 6 {
            0 => drop(clock.read(offset & 0xfff, now)),
            1 => clock.write(offset & 0xfff, value as u32, now),
            2 => drop(watchdog.read(offset, 1 << (what >> 6), count)),
            3 => watchdog.write(offset, 1 << (what >> 6), value, count),
            4 => drop(timer.read(register, count)),
            _ => timer.write(register, value, count),
        }
        // A line that is to rise by itself rises at its deadline, neither earlier nor later.
        if let Some(at) = timer.deadline(count) {
            assert!(at > count && !timer.line(at - 1) && timer.line(at));
        }
        clock.advance(now);
        if let Some(at) = clock.deadline(frequency) {
            let mut before = clock;
            before.advance(Now {
                count: at - 1,
                frequency,
            });
            let mut after = clock;
            after.advance(Now {
                count: at,
                frequency,
            });
            assert!(!clock.line() && !before.line() && after.line());
        }
        watchdog.advance(count);
        if let Some(at) = watchdog.deadline() {
            let mut before = watchdog;
            before.advance(at.saturating_sub(1).max(count));
            let mut after = watchdog;
            after.advance(at);
            let signals = |watchdog: &Watchdog| (watchdog.line(), watchdog.bites());
            assert!(at <= count || signals(&before) == signals(&watchdog));
            assert!(
                at == u64::MAX || signals(&after) != signals(&watchdog),
                "{watchdog:?} at {at}"
            );
        }
        assert!(
            !watchdog.bites() || watchdog.line(),
            "the second signal comes after the first"
        );
    }
}

//! Test reports: `PASS name`, `FAIL name: why`, and at the end `DONE n passed, m failed`.

use crate::println;
use core::fmt::Display;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

static PASSED: AtomicU32 = AtomicU32::new(0);
static FAILED: AtomicU32 = AtomicU32::new(0);

/// Reports one check.
pub fn report(name: impl Display, result: Result<(), impl Display>) {
    match result {
        Ok(()) => {
            PASSED.fetch_add(1, Relaxed);
            println!("PASS {name}");
        }
        Err(why) => {
            FAILED.fetch_add(1, Relaxed);
            println!("FAIL {name}: {why}");
        }
    }
}

/// Reports one check that is a condition; `why` says what was seen.
pub fn holds(name: impl Display, condition: bool, why: impl Display) {
    report(name, if condition { Ok(()) } else { Err(why) });
}

/// Reports one check that two values are equal.
pub fn equal(name: impl Display, seen: u64, expected: u64) {
    holds(
        name,
        seen == expected,
        format_args!("{seen:#x} seen, {expected:#x} expected"),
    );
}

/// [`equal`] for 32 bits.
pub fn same(name: impl Display, seen: u32, expected: u32) {
    equal(name, seen.into(), expected.into());
}

/// Prints the last line. `main` calls it when all checks are done.
pub fn done() {
    println!(
        "DONE {} passed, {} failed",
        PASSED.load(Relaxed),
        FAILED.load(Relaxed)
    );
}

//! Claim: a vCPU gets the share of its pCPU that it has at the time, also when that is changed
//! while it runs.
//!
//! It never sleeps. For each digit that it receives it measures half a second, in which it has to
//! get so many tenths of the time, to a tenth of that; an `x` ends it. Where the counter jumps by
//! more than 20 µs, another vCPU had the pCPU.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, check, guest, println, timer, uart};

guest!(main = main);

/// A jump from which on somebody else had the pCPU, in microseconds.
const JUMP_US: u64 = 20;
/// Length of a measurement in microseconds.
const SAMPLE_US: u64 = 500_000;

fn main(_board: &'static Board) {
    println!("READY");
    loop {
        match uart::get() {
            Some(digit @ b'1'..=b'9') => measure(u64::from(digit - b'0')),
            Some(b'x') => break,
            _ => timer::spin(100),
        }
    }
    check::done();
}

fn measure(tenths: u64) {
    let (sample, jump) = (timer::ticks(SAMPLE_US), timer::ticks(JUMP_US));
    let from = timer::now();
    let (mut last, mut had) = (from, 0);
    while last - from < sample {
        let now = timer::now();
        let passed = now - last;
        if passed <= jump {
            had += passed;
        }
        last = now;
    }
    let due = (last - from) * tenths / 10;
    println!("{had} of {} ticks, due {due}", last - from);
    check::holds(
        "portion",
        had.abs_diff(due) * 10 <= due,
        format_args!("{had} of {due} ticks"),
    );
    println!("MEASURED {tenths}");
}

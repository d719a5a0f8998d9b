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
    let sample = timer::ticks(SAMPLE_US);
    let timer::Worked { had, of } = timer::work(|passed| passed < sample);
    let due = of * tenths / 10;
    println!("{had} of {of} ticks, due {due}");
    check::holds(
        "portion",
        had.abs_diff(due) * 10 <= due,
        format_args!("{had} of {due} ticks"),
    );
    println!("MEASURED {tenths}");
}

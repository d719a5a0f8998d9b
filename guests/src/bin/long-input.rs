//! Claim: input that comes faster than a guest reads it waits, and comes whole and in order.
//!
//! Prints `READY`, reads `bytes=` bytes slowly, small letters in the order of the alphabet again and
//! again, and echoes each; then waits for an `X`, which ends it.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, check, guest, print, println, timer, uart};

guest!(main = main);

/// Microseconds from one byte to the next.
const GAP: u64 = 1_000;

fn main(board: &'static Board) {
    let bytes = board.argument("bytes").unwrap_or(600);
    println!("READY");
    let mut wrong = None;
    for n in 0..bytes {
        let byte = next();
        let expected = b'a' + (n % 26) as u8;
        print!("{}", char::from(byte));
        if expected == b'z' {
            println!();
        }
        if byte != expected {
            wrong = wrong.or(Some(n));
        }
        timer::spin(GAP);
    }
    println!();
    let first = wrong.unwrap_or(bytes);
    check::holds(
        "all bytes in order",
        wrong.is_none(),
        format_args!("byte {first}"),
    );
    println!("reader: all read");
    while next() != b'X' {}
    check::done();
}

fn next() -> u8 {
    loop {
        if let Some(byte) = uart::get() {
            return byte;
        }
    }
}

//! Companion of programs that are watched from outside: has the console's input, and says a line when
//! they have had time to do what they do.
//!
//! Says `READY` after half a second. For each `w` that it receives it says `waited` a second later; an `x`
//! ends it.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, guest, println, timer, uart};

guest!(main = main);

fn main(_board: &'static Board) {
    timer::spin(500_000);
    println!("READY");
    loop {
        match uart::get() {
            Some(b'w') => {
                timer::spin(1_000_000);
                println!("waited");
            }
            Some(b'x') => return,
            _ => timer::spin(100),
        }
    }
}

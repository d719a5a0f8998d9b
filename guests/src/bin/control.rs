//! Claim: a 1 kHz loop keeps its periods, whatever the neighbours do ([`control`]).
#![no_std]
#![no_main]

use bulkhead_guests::{Board, control, guest};

guest!(main = main, irq = control::on_irq);

fn main(board: &'static Board) {
    control::run(board, || ());
}

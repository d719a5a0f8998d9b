//! Sleeps for five seconds, without a word, and ends: a VM that is there while another one is measured.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, gic, guest, timer};

guest!(main = main);

fn main(_board: &'static Board) {
    gic::init();
    gic::enable(timer::INTID);
    timer::sleep(5_000_000);
}

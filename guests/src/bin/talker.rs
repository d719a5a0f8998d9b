//! Companion of those who read and type on its console: it says `talker: ready`, and `heard ...` behind each line that it gets. At a `!` it says
//! `lines=` numbered lines at once. It sleeps until the UART's interrupt says that there is something. With `busy=1` it looks all the time instead. With `deaf=1` it reads
//! nothing.
#![no_std]
#![no_main]

use arrayvec::ArrayVec;
use bulkhead_guests::{Board, gic, guest, print, println, sysreg, timer, uart};

guest!(main = main);

fn main(board: &'static Board) {
    gic::init();
    gic::enable(board.uart_intid);
    uart::interrupt_for_input();
    println!("talker: ready");
    while board.argument("deaf").is_some() {
        timer::spin(1_000_000);
    }
    let busy = board.argument("busy").is_some();
    let lines = board.argument("lines").unwrap_or(1000);
    let mut line = ArrayVec::<u8, 128>::new();
    loop {
        match uart::get() {
            None if busy => timer::spin(100),
            // It wakes for an interrupt that is masked, too, and reads until the line falls.
            None => sysreg::wfi(),
            Some(b'!') => (0..lines).for_each(|n| println!("burst {n:08}.")),
            Some(b'\n') => {
                print!("heard ");
                for byte in line.drain(..) {
                    print!("{}", char::from(byte));
                }
                println!();
            }
            Some(byte) => {
                let _full = line.try_push(byte);
            }
        }
    }
}

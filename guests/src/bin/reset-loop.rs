//! Claim: a VM starts again as often as its description and the person at the monitor say, and no
//! more often.
//!
//! Counts its lives in the shared page `lives`, if it has one. `way=` (boot arguments): 0 resets
//! itself at once, 1 takes an exception that no vector takes after a tenth of a second, 2 waits for
//! ever, 3 resets itself after 0.4 s, until the counter is at 2 s, and then powers off, 4 resets
//! itself in its first life and waits in the second.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, gic, guest, power, println, ruin, shared, sysreg, timer};
use core::sync::atomic::Ordering::Relaxed;

guest!(main = main);

fn main(board: &'static Board) {
    let lives = board.shared("lives").map(shared::words);
    let life = lives.map_or(1, |page| page[0].fetch_add(1, Relaxed) + 1);
    println!("reset-loop: life {life}");
    match board.argument("way") {
        Some(1) => {
            timer::spin(100_000);
            ruin::crash()
        }
        Some(2) => wait(),
        Some(4) if life > 1 => wait(),
        Some(3) => {
            gic::init();
            gic::enable(timer::INTID);
            timer::arm(timer::now() + timer::ticks(400_000));
            sysreg::wfi();
            if timer::now() < timer::ticks(2_000_000) {
                power::reset()
            }
        }
        _ => power::reset(),
    }
}

/// Waits for ever.
fn wait() -> ! {
    loop {
        sysreg::wfi();
    }
}

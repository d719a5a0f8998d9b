//! Claim: a VM hears that it is to stop in the way that its device tree names, by a key (an interrupt) or by a word that it polls with all interrupts
//! masked, and a new life was not asked yet.
//!
//! `way=` says what it does then: 0 powers off, 1 nothing, 2 resets itself, 3 crashes, 4 reads nothing at all, and waits for ever. In the shared
//! memory `heard` it has four words from 4 times `place=` on: how often it was asked in this life, its lives, rounds of its loop, and whether it
//! was asked when it began.
#![no_std]
#![no_main]

use bulkhead_guests::board::Stop;
use bulkhead_guests::{Board, gic, guest, mmio, power, println, ruin, shared, sysreg, timer};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

/// INTID of the key.
static KEY: AtomicU32 = AtomicU32::new(0);
/// How often it was pressed.
static PRESSED: AtomicU64 = AtomicU64::new(0);

fn main(board: &'static Board) {
    let Some(stop) = board.stop else {
        return println!("FAIL stop-asked: nothing says how it is asked");
    };
    let first = 4 * board.argument("place").unwrap_or(0) as usize;
    let way = board.argument("way").unwrap_or(0);
    let Some(told) = board
        .shared("heard")
        .map(|heard| &shared::words(heard)[first..][..4])
    else {
        return println!("FAIL stop-asked: it can tell nobody");
    };
    let life = told[1].fetch_add(1, Relaxed) + 1;
    if way == 4 {
        told[2].store(1, Relaxed);
        loop {
            sysreg::wfi();
        }
    }
    if let Stop::Key(intid) = stop {
        KEY.store(intid, Relaxed);
        gic::init();
        gic::set_edge(intid, true);
        gic::enable(intid);
        sysreg::irq_on();
    }
    let asked = || match stop {
        Stop::Key(_) => PRESSED.load(Relaxed),
        Stop::Word(at) => mmio::read64(at),
    };
    // What was pressed before would come now.
    timer::spin(50);
    told[3].store(asked(), Relaxed);
    told[0].store(0, Relaxed);
    let mut before = 0;
    loop {
        let now = asked();
        told[2].fetch_add(1, Relaxed);
        told[0].store(now, Relaxed);
        if now != before {
            before = now;
            println!("asked {now} in life {life}");
            match way {
                0 => return,
                2 => power::reset(),
                3 => ruin::crash(),
                _ => {}
            }
        }
        timer::spin(20);
    }
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.intid() == KEY.load(Relaxed) {
        PRESSED.fetch_add(1, Relaxed);
    }
    gic::end(taken);
}

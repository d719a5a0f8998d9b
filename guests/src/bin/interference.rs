//! Work whose use of the caches is measured, or what disturbs it.
//!
//! `stride=KIB` (with `writes=1`, writing), `qsort=POINTS`, `susan=WIDTH` (three quarters as high), `bitcount=NUMBERS` and `basicmath=NUMBERS` are done `rounds=` times, once
//! without having been counted before (`warm=0`: not), each between the marks of figure 1. With `ms=` the work is repeated for so many milliseconds of the counter instead and
//! counted by nobody; `after=` milliseconds are slept before. `tick=` microseconds: so often the timer interrupts it; on an emulator whose CPUs take turns, that ends the turns of all. `latency=1`: a mark of figure 2
//! says when such an interrupt has come.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, check, gic, guest, kernels, marks, println, sysreg, timer};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

/// Ticks of the counter from one interrupt to the next.
static TICK: AtomicU64 = AtomicU64::new(0);
/// Whether interrupts are marked.
static MARKS: AtomicBool = AtomicBool::new(false);

fn main(board: &'static Board) {
    let work = || {
        let argument = |name| board.argument(name);
        let mut sum = 0_u64;
        let mut add = |more: u64| sum = sum.wrapping_mul(31).wrapping_add(more);
        if let Some(kib) = argument("stride") {
            add(kernels::stride(kib as usize, argument("writes").is_some()));
        }
        if let Some(points) = argument("qsort") {
            add(kernels::qsort(points as usize));
        }
        if let Some(width) = argument("susan") {
            add(kernels::susan(width as usize, width as usize / 4 * 3));
        }
        if let Some(numbers) = argument("bitcount") {
            add(kernels::bitcount(numbers));
        }
        if let Some(numbers) = argument("basicmath") {
            add(kernels::basicmath(numbers));
        }
        sum
    };
    if let Some(ms) = board.argument("after") {
        gic::init();
        gic::enable(timer::INTID);
        timer::arm(timer::now() + timer::ticks(ms * 1000));
        // The interrupt stays pending, which ends the sleep and is taken by nobody.
        sysreg::wfi();
        timer::disarm();
    }
    if let Some(us) = board.argument("tick") {
        TICK.store(timer::ticks(us), Relaxed);
        MARKS.store(board.argument("latency").is_some(), Relaxed);
        gic::init();
        gic::enable(timer::INTID);
        timer::arm(timer::now() + timer::ticks(us));
        sysreg::irq_on();
    }
    if let Some(ms) = board.argument("ms") {
        let end = timer::now() + timer::ticks(ms * 1000);
        while timer::now() < end {
            work();
        }
        return check::done();
    }
    let first = if board.argument("warm") == Some(0) {
        None
    } else {
        Some(work())
    };
    let mut all_alike = true;
    let mut last = 0;
    for _ in 0..board.argument("rounds").unwrap_or(1) {
        marks::mark_begin(1);
        last = work();
        marks::mark_end(1);
        all_alike &= first.is_none_or(|first| first == last);
    }
    println!("interference: result={last:#x}");
    let strides = board.argument("stride").is_some() && board.argument("writes").is_some();
    check::holds("alike", strides || all_alike, format_args!("{last:#x}"));
    let sorts = board.argument("qsort").is_some();
    check::holds("sorted", !sorts || last != 0, "its points are not");
    check::done();
}

fn on_irq(_entered: u64) {
    if MARKS.load(Relaxed) {
        marks::mark_begin(2);
    }
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    timer::arm(timer::now() + TICK.load(Relaxed));
    gic::end(taken);
}

//! Claim: a program on an existing framework runs as it is: Embassy's executor and timers on the timer's
//! interrupts, its channels behind an interrupt-driven console, and a new start after a crash.
//!
//! Commands, one a line: `ticks` (what the periodic tasks have counted), `boots` (starts so far, in the
//! page that is shared under the label `boots`), `panic` (a task panics, which crashes the machine), `off`.
#![no_std]
#![no_main]
#![allow(unsafe_code)]

mod console;
mod executor;
mod time;

use bulkhead_guests::{Board, crash_on_panic, gic, guest, power, shared, sysreg, timer};
use core::fmt::Write as _;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use embassy_executor::raw;
use embassy_sync::blocking_mutex::raw::CriticalSectionRawMutex;
use embassy_sync::signal::Signal;
use embassy_time::{Duration, Instant, Ticker, Timer};

guest!(main = main, irq = on_irq);

/// Starts of this program, this one included.
static BOOTS: AtomicU64 = AtomicU64::new(1);
static UART_INTID: AtomicU32 = AtomicU32::new(0);
/// Ticks that the tasks of 1 ms and 10 ms have counted.
static TICKS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
/// Ticks that came before their time.
static EARLY: AtomicU32 = AtomicU32::new(0);
/// Every hundredth tick of 1 ms.
static HUNDRED: Signal<CriticalSectionRawMutex, u32> = Signal::new();

/// Has a task panic.
static PANIC: Signal<CriticalSectionRawMutex, u64> = Signal::new();

static EXECUTOR: Place = Place(core::cell::UnsafeCell::new(None));

struct Place(core::cell::UnsafeCell<Option<raw::Executor>>);

// SAFETY: used once, by `main`, before any interrupt is open.
unsafe impl Sync for Place {}

fn main(board: &'static Board) {
    if let Some(page) = board.shared("boots").map(shared::words) {
        BOOTS.store(page[0].fetch_add(1, Relaxed) + 1, Relaxed);
    }
    crash_on_panic();
    gic::init();
    gic::enable(timer::INTID);
    gic::enable(board.uart_intid);
    UART_INTID.store(board.uart_intid, Relaxed);
    console::open();
    // SAFETY: nothing else looks at the place, and `main` runs once.
    let place = unsafe { &mut *EXECUTOR.0.get() };
    let executor = place.insert(raw::Executor::new(core::ptr::null_mut()));
    sysreg::irq_on();
    executor::run(executor, |spawner| {
        for token in [every(0, 1), every(1, 10)] {
            spawner.spawn(token.expect("room for two"));
        }
        spawner.spawn(shell().expect("room for one"));
        spawner.spawn(fragile().expect("room for one"));
    })
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    if taken.intid() == timer::INTID {
        time::on_irq();
    } else if taken.intid() == UART_INTID.load(Relaxed) {
        console::on_irq();
    }
    gic::end(taken);
}

/// Counts periods.
#[embassy_executor::task(pool_size = 2)]
async fn every(which: usize, milliseconds: u64) {
    let period = Duration::from_millis(milliseconds);
    let mut due = Instant::now() + period;
    let mut ticker = Ticker::every(period);
    loop {
        ticker.next().await;
        // The ticker started a little after `due` was worked out.
        if Instant::now() < due {
            EARLY.fetch_add(1, Relaxed);
        }
        due += period;
        let count = TICKS[which].fetch_add(1, Relaxed) + 1;
        if which == 0 && count.is_multiple_of(100) {
            HUNDRED.signal(count);
        }
    }
}

/// Panics when it is told to.
#[embassy_executor::task]
async fn fragile() {
    let boots = PANIC.wait().await;
    panic!("a task gives up in boot {boots}");
}

#[embassy_executor::task]
async fn shell() {
    let mut text = Text::new();
    let boots = BOOTS.load(Relaxed);
    text.say(format_args!(
        "embassy: boot {boots}, 1 ms and 10 ms tasks run"
    ))
    .await;
    loop {
        console::send("> ").await;
        let mut line = [0; 32];
        let length = take_line(&mut line).await;
        match core::str::from_utf8(&line[..length]).unwrap_or_default() {
            "ticks" => ticks(&mut text).await,
            "boots" => text.say(format_args!("boots={boots}")).await,
            "panic" => {
                text.say(format_args!("another task panics")).await;
                console::flush().await;
                PANIC.signal(boots);
            }
            "off" => {
                text.say(format_args!("off")).await;
                console::flush().await;
                power::off()
            }
            other => text.say(format_args!("no such command: {other}")).await,
        }
    }
}

/// Waits for 200 ticks of 1 ms, sleeps 20 ms more, and says whether the numbers fit each other.
async fn ticks(text: &mut Text) {
    HUNDRED.reset();
    let first = HUNDRED.wait().await;
    let started = Instant::now();
    let before = TICKS[1].load(Relaxed);
    HUNDRED.wait().await;
    let second = HUNDRED.wait().await;
    let took = started.elapsed().as_millis();
    let tens = TICKS[1].load(Relaxed) - before;
    Timer::after_millis(20).await;
    let verdict = second - first == 200
        && (199..=201).contains(&took)
        && (19..=21).contains(&tens)
        && EARLY.load(Relaxed) == 0;
    text.say(format_args!(
        "{} ticks: 200 of 1 ms in {took} ms, {tens} of 10 ms, {} early, {} timer interrupts",
        if verdict { "PASS" } else { "FAIL" },
        EARLY.load(Relaxed),
        time::INTERRUPTS.load(Relaxed),
    ))
    .await;
    let [received, sent] = &console::INTERRUPTS;
    text.say(format_args!(
        "console interrupts: {} received, {} sent",
        received.load(Relaxed),
        sent.load(Relaxed)
    ))
    .await;
}

/// Bytes to the end of a line; what does not fit is dropped.
async fn take_line(line: &mut [u8]) -> usize {
    let mut length = 0;
    loop {
        match console::receive().await {
            b'\r' | b'\n' if length != 0 => return length,
            b'\r' | b'\n' => {}
            byte => {
                if let Some(place) = line.get_mut(length) {
                    *place = byte;
                    length += 1;
                }
            }
        }
    }
}

/// A line in the making.
struct Text {
    bytes: [u8; 160],
    length: usize,
}

impl Text {
    const fn new() -> Self {
        Self {
            bytes: [0; 160],
            length: 0,
        }
    }

    async fn say(&mut self, arguments: core::fmt::Arguments<'_>) {
        self.length = 0;
        // What does not fit is cut off.
        _ = self.write_fmt(arguments);
        let text = core::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default();
        console::send(text).await;
        console::send("\r\n").await;
    }
}

impl core::fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = self.bytes.len() - self.length;
        let taken = text.len().min(room);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

//! The 1 kHz control loop of the demo, its report in the page that VMs share (label `report`) and through the channel `loop`, and its end.
//!
//! The loop runs on the virtual timer with absolute compare values, so that lateness never adds up. Its work is done in the
//! interrupt handler. It reports through both, which costs no exit, until the peer writes the stop word or sends that order;
//! with neither it runs `periods=` of the boot arguments (5000 if there is none). Then it prints one line.

use crate::{Board, gic, println, shared, sysreg, timer};
use bulkhead_abi::report::{CHANNEL, MAGIC, Order, Report, STOP_OFFSET, WORK_OFFSET};
use bulkhead_channel::{Receiver, Sender, open};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering::*, fence};
use zerocopy::IntoBytes;

const PERIODS_PER_SECOND: u64 = 1000;
const DEFAULT_PERIODS: u64 = 5000;
/// Periods between two reports through the channel.
const TOLD_EACH: u64 = 100;
/// How long the last report waits for room in the channel, in microseconds.
const LAST_WORDS_US: u64 = 1_000_000;

// Counters of the loop. The handler writes, `main` reads: plain loads and stores, no read-modify-write.
static PERIOD: AtomicU64 = AtomicU64::new(0);
static PERIODS: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static DOUBLED: AtomicU64 = AtomicU64::new(0);
static LATE_MIN: AtomicU64 = AtomicU64::new(u64::MAX);
static LATE_MAX: AtomicU64 = AtomicU64::new(0);
static LATE_SUM: AtomicU64 = AtomicU64::new(0);
static LATEST: AtomicU64 = AtomicU64::new(0);

/// Runs the loop to its end. `between` is what there is to do between two periods, with interrupts open, such as to look at a polled device.
pub fn run(board: &'static Board, mut between: impl FnMut()) {
    let page = board.shared("report").map(shared::words);
    let mut peer = Peer::of(board);
    let limit = board.argument("periods").unwrap_or(DEFAULT_PERIODS);
    let period = timer::frequency() / PERIODS_PER_SECOND;
    PERIOD.store(period, Relaxed);
    gic::init();
    gic::enable(timer::INTID);
    let started = timer::now();
    timer::arm(started + period);
    sysreg::irq_on();
    loop {
        sysreg::wfi();
        between();
        let report = report(started, false);
        if let Some(page) = page {
            publish(page, &report);
        }
        let order = peer.as_mut().and_then(|peer| {
            peer.tell(&report);
            peer.order()
        });
        if let (Some(order), Some(page)) = (order, page) {
            let offset = match order {
                Order::Work => WORK_OFFSET,
                Order::Stop => STOP_OFFSET,
            };
            page[offset / 8].store(1, Release);
        }
        let stop = match page {
            _ if order == Some(Order::Stop) => true,
            Some(page) => page[STOP_OFFSET / 8].load(Acquire) != 0,
            None => peer.is_none() && report.periods + report.lost >= limit,
        };
        if stop {
            break;
        }
    }
    sysreg::irq_off();
    timer::disarm();
    let report = report(started, true);
    if let Some(page) = page {
        publish(page, &report);
    }
    if let Some(peer) = &mut peer {
        peer.tell_last(&report);
    }
    summary();
}

/// The other end of the channel. It may do what it likes: it can lose what it is told, and order nothing.
struct Peer {
    sender: Sender<'static>,
    receiver: Receiver<'static>,
    /// Periods at the last report.
    told: u64,
}

impl Peer {
    fn of(board: &'static Board) -> Option<Self> {
        let channel = board
            .channels
            .iter()
            .find(|channel| channel.label == CHANNEL)?;
        let [own, peer] = channel.memory.map(shared::words);
        let (sender, receiver) = open(own, peer, channel.shape)?;
        Some(Self {
            sender,
            receiver,
            told: 0,
        })
    }

    /// Sends the report if it is time; if there is no room, nobody reads.
    fn tell(&mut self, report: &Report) {
        if report.periods >= self.told + TOLD_EACH {
            self.told = report.periods;
            let _unread = self.sender.send(report.as_bytes());
        }
    }

    /// Sends the last report, and waits a while for room.
    fn tell_last(&mut self, report: &Report) {
        let until = timer::now() + timer::ticks(LAST_WORDS_US);
        while self.sender.send(report.as_bytes()).is_err() && timer::now() < until {}
    }

    /// Takes an order, if one has come.
    fn order(&mut self) -> Option<Order> {
        let mut message = [0; size_of::<Order>()];
        let length = self.receiver.look(&mut message).ok()??;
        self.receiver.take();
        Order::from_bytes(message.get(..length)?)
    }
}

/// The handler of interrupts, one period: `entered` is the counter at the vector.
pub fn on_irq(entered: u64) {
    let taken = gic::acknowledge();
    let intid = taken.intid();
    if taken.is_none() {
        return;
    }
    let due = timer::compare();
    if intid != timer::INTID || entered < due {
        // The compare value lies in the future: this period has had its interrupt already.
        bump(&DOUBLED, 1);
        gic::end(taken);
        return;
    }
    let late = entered - due;
    let period = PERIOD.load(Relaxed);
    let missed = late / period;
    timer::arm(due + period * (missed + 1));
    bump(&PERIODS, 1);
    bump(&LOST, missed);
    bump(&LATE_SUM, late);
    LATE_MIN.store(LATE_MIN.load(Relaxed).min(late), Relaxed);
    LATE_MAX.store(LATE_MAX.load(Relaxed).max(late), Relaxed);
    LATEST.store(entered, Relaxed);
    gic::end(taken);
}

fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed) + by, Relaxed);
}

/// The state of the loop, which began at `started`.
fn report(started: u64, ended: bool) -> Report {
    // The handler must not change one counter between the reads of two.
    let counted = sysreg::masked(|| Report {
        periods: PERIODS.load(Relaxed),
        lost: LOST.load(Relaxed),
        doubled: DOUBLED.load(Relaxed),
        late_min: LATE_MIN.load(Relaxed),
        late_max: LATE_MAX.load(Relaxed),
        late_sum: LATE_SUM.load(Relaxed),
        latest: LATEST.load(Relaxed),
        ..Report::default()
    });
    Report {
        magic: MAGIC,
        frequency: timer::frequency(),
        period: PERIOD.load(Relaxed),
        started,
        ended: u64::from(ended),
        ..counted
    }
}

/// Writes the report into the page: the sequence is odd while the other words change.
fn publish(page: &[AtomicU64], report: &Report) {
    const SEQUENCE: usize = offset_of!(Report, sequence) / size_of::<u64>();
    let report: [u64; size_of::<Report>() / size_of::<u64>()] = zerocopy::transmute!(*report);
    let sequence = page[SEQUENCE].load(Relaxed) | 1;
    page[SEQUENCE].store(sequence, Relaxed);
    fence(SeqCst);
    // The first word, which makes it a report, comes last.
    for (n, value) in report.into_iter().enumerate().rev() {
        if n != SEQUENCE {
            page[n].store(value, Relaxed);
        }
    }
    fence(SeqCst);
    page[SEQUENCE].store(sequence.wrapping_add(1), Relaxed);
}

fn summary() {
    let periods = PERIODS.load(Relaxed);
    let average = LATE_SUM.load(Relaxed) / periods.max(1);
    println!(
        "control: periods={periods} lost={} doubled={} late_ns min={} avg={} max={}",
        LOST.load(Relaxed),
        DOUBLED.load(Relaxed),
        timer::nanoseconds(if periods == 0 {
            0
        } else {
            LATE_MIN.load(Relaxed)
        }),
        timer::nanoseconds(average),
        timer::nanoseconds(LATE_MAX.load(Relaxed)),
    );
}

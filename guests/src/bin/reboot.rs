//! Claim: a VM that resets itself starts again, from the beginning, and no other VM does.
//!
//! Counts its lives and its periods of 1 ms in the shared page `page` (words 0 and 1), and does
//! what the peer writes there (word 2): 1 has it reset itself by SYSTEM_RESET2, 2 has it end a
//! second later.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, check, gic, guest, memory, power, println, shared, sysreg, timer};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

const SEED: u64 = 0x1dea_0f4e_b007_5eed;
/// SYSTEM_RESET2, 64 bits; type 0 is a warm reset of the whole system.
const SYSTEM_RESET2: u32 = 0xc400_0012;
const WARM: u64 = 0;

static PERIOD: AtomicU64 = AtomicU64::new(0);
static PERIODS: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);

fn main(board: &'static Board) {
    let Some(page) = board.shared("page").map(shared::words) else {
        return println!("FAIL reboot: it needs a shared page `page`");
    };
    let life = page[0].fetch_add(1, Relaxed) + 1;
    println!("reboot: life {life}");
    let mut set = None;
    memory::free_pages(board, |free| {
        set = set.or(free.first_set());
        free.fill(SEED);
    });
    check::holds("its RAM was zero", set.is_none(), "it was not");
    gic::init();
    gic::enable(timer::INTID);
    PERIOD.store(timer::frequency() / 1000, Relaxed);
    timer::arm(timer::now() + PERIOD.load(Relaxed));
    sysreg::irq_on();
    let mut last = u64::MAX;
    let order = loop {
        sysreg::wfi();
        let periods = PERIODS.load(Relaxed);
        page[1].store(periods, Relaxed);
        let order = page[2].load(Relaxed);
        if order == 2 && last == u64::MAX {
            last = periods + 1000;
        }
        if order == 1 || periods >= last {
            break order;
        }
    };
    sysreg::irq_off();
    page[2].store(0, Relaxed);
    let mut damage = None;
    memory::free_pages(board, |free| damage = damage.or(free.damage(SEED)));
    check::holds(
        "its RAM is as it left it",
        damage.is_none(),
        format_args!("{damage:x?}"),
    );
    let periods = PERIODS.load(Relaxed);
    check::holds("it has had periods", periods > 100, periods);
    println!("reboot: {periods} periods, {} lost", LOST.load(Relaxed));
    check::done();
    if order == 1 {
        let answer = power::hvc(SYSTEM_RESET2, [WARM, 0, 0, 0, 0, 0, 0])[0];
        check::equal("SYSTEM_RESET2 does not return", answer, 0);
    }
}

fn on_irq(entered: u64) {
    let taken = gic::acknowledge();
    if taken.intid() == timer::INTID {
        let (due, period) = (timer::compare(), PERIOD.load(Relaxed));
        let late = entered.saturating_sub(due) / period;
        timer::arm(due + period * (late + 1));
        PERIODS.fetch_add(1 + late, Relaxed);
        LOST.fetch_add(late, Relaxed);
    }
    if !taken.is_none() {
        gic::end(taken);
    }
}

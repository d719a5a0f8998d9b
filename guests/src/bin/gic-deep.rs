//! Claim: pre-emption nests as deep as there are priorities, and more interrupts can be active or pending
//! than there are list registers, in both EOI modes; each is taken when it is due, and once.
//!
//! Handlers nested up to 16 deep; SPIs dropped and not deactivated; then random sequences of making
//! pending, acknowledging, dropping, deactivating, and changing by hand, compared step by step with a
//! model of a GIC with as many list registers as anybody wants. One CPU; `rounds=` of the boot arguments
//! says how many steps (10000 if there is none).
#![no_std]
#![no_main]

use bulkhead_guests::gic::{self, Taken};
use bulkhead_guests::random::Random;
use bulkhead_guests::{Board, check, guest, println, sysreg, timer};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

const DEFAULT_STEPS: u64 = 10_000;
/// SPIs that no device drives, the first of [`MANY`].
const FIRST: u32 = 40;
const MANY: usize = 16;

// Nested handlers: how deep they are to get, how deep they are, what was seen.
static LEVELS: AtomicU32 = AtomicU32::new(0);
static DEPTH: AtomicU32 = AtomicU32::new(0);
static DEEPEST: AtomicU32 = AtomicU32::new(0);
static TAKEN: AtomicU32 = AtomicU32::new(0);
static WRONG: AtomicU32 = AtomicU32::new(0);
static ORDER: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];

fn main(board: &'static Board) {
    gic::init();
    // The lowest bit that decides about pre-emption says how deep it can nest.
    let lowest = gic::set_binary_point(0);
    let levels = (1u32 << 8u8.saturating_sub(lowest)).min(MANY as u32);
    println!("gic-deep: {levels} levels");
    check::holds("16 priorities pre-empt each other", levels == 16, levels);
    for depth in [2, 5, 8, levels] {
        nested(depth);
    }
    late_comers(levels);
    timer_behind_many();
    many_active();
    let steps = board.argument("rounds").unwrap_or(DEFAULT_STEPS);
    for split in [false, true] {
        for seed in 1..=2 {
            against_the_model(split, seed, steps / 4);
        }
    }
    check::done();
}

/// Urgency of level `n`: the higher, the more urgent.
fn priority(level: u32) -> u8 {
    (0xf0 - level * 0x10) as u8
}

/// The interrupt of a level: SGIs and SPIs by turns.
fn of_level(level: u32) -> u32 {
    if level.is_multiple_of(2) {
        level / 2
    } else {
        FIRST + level
    }
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    if taken.intid() == timer::INTID {
        timer::disarm();
    }
    let place = TAKEN.fetch_add(1, Relaxed) as usize;
    ORDER[place % 64].store(taken.intid(), Relaxed);
    let depth = DEPTH.fetch_add(1, Relaxed);
    DEEPEST.fetch_max(depth + 1, Relaxed);
    let levels = LEVELS.load(Relaxed);
    if place < levels as usize {
        let level = place as u32;
        // On the way down: each level brings the next, more urgent one.
        if taken.intid() != of_level(level) || gic::running_priority() != priority(level) {
            WRONG.fetch_add(1, Relaxed);
        }
        if level + 1 < levels {
            gic::set_pending(of_level(level + 1));
        }
        open_for_a_while();
        // The deeper ones have ended: this one runs again.
        if gic::running_priority() != priority(level) {
            WRONG.fetch_add(1, Relaxed);
        }
    }
    DEPTH.fetch_sub(1, Relaxed);
    gic::end(taken);
}

fn open_for_a_while() {
    sysreg::irq_on();
    settle();
    sysreg::irq_off();
}

fn settle() {
    sysreg::isb();
    timer::spin(5);
}

fn prepare(levels: u32) {
    for word in [&DEPTH, &DEEPEST, &TAKEN, &WRONG] {
        word.store(0, Relaxed);
    }
    LEVELS.store(levels, Relaxed);
    for level in 0..levels {
        gic::set_priority(of_level(level), priority(level));
        gic::enable(of_level(level));
    }
}

/// A pre-empts B pre-empts C, as deep as `levels`, and back.
fn nested(levels: u32) {
    prepare(levels);
    gic::set_mask(0xff);
    // The least urgent priority of all is one that no mask lets through: not used.
    gic::set_pending(of_level(0));
    open_for_a_while();
    // From the deepest level back, with time to settle at each.
    settle();
    let name = format_args!("{levels} handlers in each other");
    check::same(name, DEEPEST.load(Relaxed), levels);
    check::same(
        format_args!("{levels} levels: taken"),
        TAKEN.load(Relaxed),
        levels,
    );
    check::same(
        format_args!("{levels} levels: out of place"),
        WRONG.load(Relaxed),
        0,
    );
    idle(format_args!("{levels} levels"));
}

/// Checks that nothing is active, pending or running.
fn idle(name: core::fmt::Arguments<'_>) {
    check::same(
        format_args!("{name}: then idle"),
        gic::running_priority().into(),
        0xff,
    );
    let left = (0..16)
        .chain(FIRST..FIRST + MANY as u32)
        .filter(|intid| gic::bit(gic::ISACTIVER, *intid) || gic::bit(gic::ISPENDR, *intid));
    check::same(format_args!("{name}: nothing left"), left.count() as u32, 0);
}

/// At the deepest level less urgent ones become pending; they come when it is their turn.
fn late_comers(levels: u32) {
    prepare(levels);
    let late = [(10, 0x98), (11, 0x48), (12, 0xd8), (13, 0x88), (14, 0x18)];
    for (intid, priority) in late {
        gic::set_priority(intid, priority);
        gic::enable(intid);
        gic::set_pending(intid);
    }
    // Held back by the mask until the chain runs: it begins with the less urgent one of all.
    gic::set_mask(0x10);
    gic::set_pending(of_level(0));
    let mut order = [0; 5];
    for place in &mut order {
        gic::set_mask(0xe8);
        *place = gic::most_urgent();
        gic::clear_pending(*place);
        settle();
    }
    check::holds(
        "most urgent first, one after the other",
        order == [14, 11, 13, 10, 12],
        format_args!("{order:?}"),
    );
    gic::set_mask(0xff);
    open_for_a_while();
    settle();
    check::same("the chain behind them", TAKEN.load(Relaxed), levels);
    check::same(
        "the chain behind them: out of place",
        WRONG.load(Relaxed),
        0,
    );
    idle(format_args!("late comers"));
}

/// The timer fires while more SGIs wait than there are list registers: it comes, and comes again when they are gone.
fn timer_behind_many() {
    const SGIS: u32 = 12;
    LEVELS.store(0, Relaxed);
    TAKEN.store(0, Relaxed);
    for intid in 0..SGIS {
        gic::set_priority(intid, gic::PRIORITY);
        gic::enable(intid);
        gic::send(intid, 1);
    }
    gic::set_priority(timer::INTID, gic::PRIORITY);
    gic::enable(timer::INTID);
    timer::arm(timer::now());
    settle();
    let mut came = 0;
    for (again, wanted) in [(false, SGIS + 1), (true, SGIS + 2)] {
        if again {
            timer::arm(timer::now());
        }
        for _ in 0..4 {
            open_for_a_while();
        }
        let taken = TAKEN.load(Relaxed);
        let behind = if again { "nothing" } else { "many" };
        check::same(format_args!("a timer behind {behind}"), taken, wanted);
        let timers = (came..taken).filter(|n| ORDER[*n as usize].load(Relaxed) == timer::INTID);
        check::same(
            format_args!("and it is the timer: {behind}"),
            timers.count() as u32,
            1,
        );
        came = taken;
    }
    gic::disable(timer::INTID);
    idle(format_args!("a timer behind many"));
}

/// EOImode 1: 16 SPIs are dropped and not deactivated; an SGI still comes; they end in any order.
fn many_active() {
    LEVELS.store(0, Relaxed);
    gic::split_end(true);
    let mut taken = [Taken(1023); MANY];
    for n in 0..MANY as u32 {
        gic::set_priority(FIRST + n, gic::PRIORITY);
        gic::enable(FIRST + n);
        gic::set_pending(FIRST + n);
        settle();
        taken[n as usize] = gic::acknowledge();
        gic::end(taken[n as usize]);
    }
    let right = (0..MANY as u32).all(|n| taken[n as usize].intid() == FIRST + n);
    check::holds(
        "16 SPIs taken and dropped",
        right,
        format_args!("{taken:?}"),
    );
    let active = (0..MANY as u32).filter(|n| gic::bit(gic::ISACTIVER, FIRST + n));
    check::same("all of them active", active.count() as u32, MANY as u32);
    gic::set_priority(3, gic::PRIORITY);
    gic::enable(3);
    gic::send_to_self(3);
    settle();
    let sgi = gic::acknowledge();
    check::same("an SGI beside them", sgi.intid(), 3);
    gic::end(sgi);
    gic::deactivate(sgi);
    // All again, while active: none may come.
    (0..MANY as u32).for_each(|n| gic::set_pending(FIRST + n));
    settle();
    check::same("none comes while active", gic::acknowledge().intid(), 1023);
    let mut random = Random::new(16);
    let mut left: [usize; MANY] = core::array::from_fn(|n| n);
    let mut wrong = 0;
    for many in (1..=MANY).rev() {
        let at = random.below(many as u64) as usize;
        let n = left[at];
        left[at] = left[many - 1];
        gic::deactivate(taken[n]);
        settle();
        let again = gic::acknowledge();
        if again.intid() != FIRST + n as u32 {
            let (seen, expected) = (again.intid(), FIRST + n as u32);
            println!("gic-deep: with {many} active: {seen} taken instead of {expected}");
            wrong += 1;
        }
        if !again.is_none() {
            gic::end(again);
            gic::deactivate(again);
        }
    }
    check::same("each comes when it is deactivated", wrong, 0);
    gic::split_end(false);
    idle(format_args!("16 active"));
}

/// Model of a GIC without list registers.
struct Model {
    pending: u32,
    active: u32,
    /// Dropped but still active.
    dropped: u32,
    /// Running interrupts, the most urgent last.
    running: [(u32, Taken); MANY],
    depth: usize,
    split: bool,
}

impl Model {
    /// Priority of an SPI of the model, by its bit: no two alike, and not in the order of their numbers.
    fn priority(bit: u32) -> u8 {
        (bit * 5 % 16 * 0x10) as u8
    }

    fn running_priority(&self) -> u8 {
        match self.depth {
            0 => 0xff,
            depth => Self::priority(self.running[depth - 1].0),
        }
    }

    /// Returns the interrupt that an acknowledge gives.
    fn due(&self) -> Option<u32> {
        let bits = (0..MANY as u32).filter(|bit| self.pending & !self.active & 1 << bit != 0);
        let best = bits.min_by_key(|bit| Self::priority(*bit))?;
        (Self::priority(best) < self.running_priority()).then_some(best)
    }
}

/// A bit of `set`, at random.
fn pick(random: &mut Random, set: u32) -> Option<u32> {
    let bits = || (0..MANY as u32).filter(move |bit| set & 1 << bit != 0);
    let count = bits().count() as u64;
    if count == 0 {
        return None;
    }
    bits().nth(random.below(count) as usize)
}

fn word(register: usize) -> u32 {
    let low = gic::word(register, FIRST);
    let high = gic::word(register, FIRST + 31);
    let both = u64::from(bulkhead_guests::mmio::read32(low))
        | u64::from(bulkhead_guests::mmio::read32(high)) << 32;
    (both >> (FIRST % 32)) as u32 & 0xffff
}

fn against_the_model(split: bool, seed: u64, steps: u64) {
    gic::init();
    gic::set_binary_point(0);
    gic::split_end(split);
    for bit in 0..MANY as u32 {
        gic::set_priority(FIRST + bit, Model::priority(bit));
        gic::set_edge(FIRST + bit, true);
        gic::enable(FIRST + bit);
    }
    let mut random = Random::new(seed);
    let mut model = Model {
        pending: 0,
        active: 0,
        dropped: 0,
        running: [(0, Taken(1023)); MANY],
        depth: 0,
        split,
    };
    let name = format_args!("EOImode {}, sequence {seed}", u32::from(split));
    for step in 0..steps {
        if let Err((what, seen, expected)) = one_step(&mut model, &mut random) {
            check::holds(
                name,
                false,
                format_args!("step {step}: {what}: {seen:#x} seen, {expected:#x} expected"),
            );
            return;
        }
    }
    check::holds(name, true, "");
    // Out of everything that runs, so that the next sequence starts idle.
    while model.depth > 0 {
        model.depth -= 1;
        gic::end(model.running[model.depth].1);
    }
    gic::split_end(false);
    gic::init();
    idle(name);
}

type Difference = (&'static str, u32, u32);

fn one_step(model: &mut Model, random: &mut Random) -> Result<(), Difference> {
    match random.below(16) {
        0..5 => {
            let bit = random.below(MANY as u64) as u32;
            gic::set_pending(FIRST + bit);
            model.pending |= 1 << bit;
        }
        5..9 => {
            let taken = gic::acknowledge();
            let due = model.due();
            let expected = due.map_or(1023, |bit| FIRST + bit);
            if taken.intid() != expected {
                return Err(("acknowledged", taken.intid(), expected));
            }
            if let Some(bit) = due {
                model.pending &= !(1 << bit);
                model.active |= 1 << bit;
                model.running[model.depth] = (bit, taken);
                model.depth += 1;
            }
        }
        9..12 if model.depth > 0 => {
            model.depth -= 1;
            let (bit, taken) = model.running[model.depth];
            gic::end(taken);
            if model.split {
                model.dropped |= 1 << bit;
            } else {
                model.active &= !(1 << bit);
            }
        }
        12..14 => {
            if let Some(bit) = pick(random, model.dropped) {
                gic::deactivate(Taken(FIRST + bit));
                model.dropped &= !(1 << bit);
                model.active &= !(1 << bit);
            }
        }
        14 => {
            let bit = random.below(MANY as u64) as u32;
            gic::clear_pending(FIRST + bit);
            model.pending &= !(1 << bit);
        }
        _ => {
            if let Some(bit) = pick(random, model.dropped) {
                gic::set(gic::ICACTIVER, FIRST + bit);
                model.dropped &= !(1 << bit);
                model.active &= !(1 << bit);
            }
        }
    }
    sysreg::isb();
    let running: u32 = gic::running_priority().into();
    if running != model.running_priority().into() {
        return Err(("running priority", running, model.running_priority().into()));
    }
    for (what, register, expected) in [
        ("pending", gic::ISPENDR, model.pending),
        ("active", gic::ISACTIVER, model.active),
    ] {
        let seen = word(register);
        if seen != expected {
            return Err((what, seen, expected));
        }
    }
    Ok(())
}

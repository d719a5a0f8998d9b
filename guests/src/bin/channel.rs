//! Claim: messages go both ways through a channel, all of them, in order and unaltered, between ends that sleep and ends that poll,
//! also while either end starts again.
//!
//! Each end sends `messages=` of them and takes as many from the other. With `resets=1` it resets itself twice in the middle: once
//! when it has seen a message and not taken it, and once when it has sent one and not rung. An end that hears sleeps whenever it
//! can neither take nor send.
//!
//! With `lie=1` an end writes anything into its memory instead, and with `bear=1` the other goes on all the same.
#![no_std]
#![no_main]

use bulkhead_channel::{LookError, Receiver, SendError, Sender, open};
use bulkhead_guests::board::Channel;
use bulkhead_guests::mmio::write32;
use bulkhead_guests::random::Random;
use bulkhead_guests::{Board, check, gic, guest, power, println, shared, sysreg, timer};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

guest!(main = main, irq = on_irq);

/// Milliseconds of sleep after which a ring is lost, and without anything new after which the other end is gone; `patience=` says other ones.
const PATIENCE: u64 = 200;
/// Bytes of a message's number, with which it begins.
const NUMBER: usize = 8;
/// Calls of an end that bears lies, and lies.
const CALLS: u64 = 50_000;

static INTID: AtomicU32 = AtomicU32::new(0);
static HEARD: AtomicU64 = AtomicU64::new(0);
/// Sleeps that the guard ended.
static LATE: AtomicU64 = AtomicU64::new(0);

fn main(board: &'static Board) {
    let Some(channel) = board.channels.first() else {
        return println!("FAIL channel: there is none");
    };
    let [own, peer] = channel.memory.map(shared::words);
    let Some((sender, receiver)) = open(own, peer, channel.shape) else {
        return println!("FAIL channel: its memory does not hold it");
    };
    if board.argument("lie").is_some() {
        return lie(own, peer);
    }
    if board.argument("bear").is_some() {
        return bear(sender, receiver);
    }
    gic::init();
    gic::enable(timer::INTID);
    if let Some(intid) = channel.intid {
        INTID.store(intid, Relaxed);
        gic::set_edge(intid, true);
        gic::enable(intid);
    }
    let mut end = End {
        channel,
        sender,
        receiver,
        messages: board.argument("messages").unwrap_or(1000),
        patience: timer::ticks(board.argument("patience").unwrap_or(PATIENCE) * 1000),
        // Behind the last slot, where the channel has nothing.
        resets: board.argument("resets").and(own.last()),
        wrong: 0,
        rings: 0,
        sleeps: 0,
    };
    end.exchange();
    end.report();
}

/// An end, and what became of it.
struct End {
    channel: &'static Channel,
    sender: Sender<'static>,
    receiver: Receiver<'static>,
    messages: u64,
    /// Ticks of [`PATIENCE`].
    patience: u64,
    /// Ways in which it has reset itself, a bit for each, if it is to.
    resets: Option<&'static AtomicU64>,
    /// Messages that are others than were sent.
    wrong: u64,
    rings: u64,
    sleeps: u64,
}

impl End {
    fn exchange(&mut self) {
        if self.sender.owes() || self.receiver.owes() {
            self.ring();
        }
        let (mut before, mut since) = ((0, 0), timer::now());
        loop {
            self.send();
            self.take();
            let done = (self.sender.sent(), self.receiver.taken());
            if done == (self.messages, self.messages) {
                return;
            }
            if done != before {
                (before, since) = (done, timer::now());
            } else if timer::now() - since > 2 * self.patience {
                return;
            }
            if self.channel.intid.is_some() {
                self.sleep();
            }
        }
    }

    /// Sends as many as there is room for.
    fn send(&mut self) {
        let mut message = [0; 64];
        while self.sender.sent() < self.messages {
            let number = self.sender.sent();
            let length = compose(number, &mut message[..self.channel.shape.message()]);
            match self.sender.send(&message[..length]) {
                Ok(ring) => {
                    self.reset_once(1, number >= self.messages / 2);
                    if ring {
                        self.ring();
                    }
                }
                Err(SendError::Full) => return,
                Err(_) => {
                    self.wrong += 1;
                    return;
                }
            }
        }
    }

    /// Takes all that are there.
    fn take(&mut self) {
        let (mut seen, mut sent) = ([0; 64], [0; 64]);
        loop {
            match self.receiver.look(&mut seen) {
                Ok(None) => return,
                Ok(Some(length)) => {
                    let number = self.receiver.taken();
                    let wanted = compose(number, &mut sent[..self.channel.shape.message()]);
                    self.wrong += u64::from(seen[..length] != sent[..wanted]);
                    self.reset_once(2, number >= self.messages / 4);
                    if self.receiver.take() {
                        self.ring();
                    }
                }
                Err(_) => {
                    self.wrong += 1;
                    return;
                }
            }
        }
    }

    /// Resets the VM if it is time to, and it is to, and has not done so in this way.
    fn reset_once(&mut self, way: u64, time: bool) {
        if let Some(resets) = self.resets
            && time
            && resets.load(Relaxed) & way == 0
        {
            resets.fetch_or(way, Relaxed);
            power::reset();
        }
    }

    fn ring(&mut self) {
        self.rings += 1;
        if let Some(page) = self.channel.page {
            sysreg::dsb();
            write32(page, 0);
        } else {
            // Nobody sleeps at an end that polls.
            self.wrong += 1;
        }
    }

    /// Sleeps until the other end rings, if nothing is to be done.
    fn sleep(&mut self) {
        let nothing_came = self.receiver.taken() == self.messages || self.receiver.wait();
        let nothing_goes = self.sender.sent() == self.messages || self.sender.wait();
        if !(nothing_came && nothing_goes) {
            return;
        }
        self.sleeps += 1;
        timer::arm(timer::now() + self.patience);
        sysreg::sleep();
        timer::disarm();
    }

    fn report(&self) {
        let (sent, taken) = (self.sender.sent(), self.receiver.taken());
        let (rings, sleeps, heard) = (self.rings, self.sleeps, HEARD.load(Relaxed));
        println!(
            "channel: {sent} sent, {taken} taken; {rings} rings, {sleeps} sleeps, {heard} heard"
        );
        check::equal("sent", sent, self.messages);
        check::equal("taken", taken, self.messages);
        check::equal("messages that were others", self.wrong, 0);
        check::equal("sleeps that nobody ended", LATE.load(Relaxed), 0);
        if let Some(resets) = self.resets {
            check::equal("resets", resets.load(Relaxed), 3);
        }
        check::holds(
            "interrupts at an end that sleeps, and at no other",
            (heard > 0) == self.channel.intid.is_some(),
            format_args!("{heard} heard"),
        );
        check::done();
    }
}

/// Message `number`: its number, and bytes and a length that depend on it.
fn compose(number: u64, message: &mut [u8]) -> usize {
    let length = NUMBER + number as usize % (message.len() - NUMBER + 1);
    message[..NUMBER].copy_from_slice(&number.to_le_bytes());
    message[NUMBER..length].fill(number as u8);
    length
}

/// Writes anything anywhere, most often where the other end looks, and there also what might be true.
fn lie(own: shared::Words, peer: shared::Words) {
    let mut random = Random::new(1);
    for _ in 0..CALLS {
        // What this end has sent belongs to what the other has taken, and the other way round.
        let word = match random.below(8) {
            0 => random.below(own.len() as u64) as usize,
            head => head as usize % 5 * 8,
        };
        let near = peer[if word == 0 { 8 } else { 0 }].load(Relaxed);
        let value = match random.below(8) {
            0 => random.draw(),
            1 => random.below(200).wrapping_neg(),
            2 => random.below(200),
            _ => near.wrapping_add(random.below(9)).wrapping_sub(4),
        };
        own[word].store(value, Relaxed);
    }
    println!("channel: {CALLS} lies");
    check::same("all of them", CALLS as u32, CALLS as u32);
    check::done();
}

/// Goes on with an end that lies: each call ends, moves by a message at most or says that it is broken, and touches nothing else.
fn bear(mut sender: Sender, mut receiver: Receiver) {
    let (mut broken, mut seen, mut sent, mut odd) = (0, 0, 0, 0u64);
    let mut message = [0xee; 64 + 8];
    for call in 0..CALLS {
        let before = (sender.sent(), receiver.taken());
        let mut moved = (0, 0);
        match call % 4 {
            0 => match sender.send(&message[..8]) {
                Ok(_) => {
                    sent += 1;
                    moved.0 = 1;
                }
                Err(SendError::Broken) => broken += 1,
                Err(_) => {}
            },
            1 => match receiver.look(&mut message[..64]) {
                Ok(length) => seen += u64::from(length.is_some()),
                Err(LookError::Broken) => {
                    broken += 1;
                    // It has left out what it was told.
                    moved.1 = receiver.taken().wrapping_sub(before.1);
                }
                Err(_) => odd += 1,
            },
            2 => {
                receiver.take();
                moved.1 = receiver.taken().wrapping_sub(before.1);
            }
            _ => {
                receiver.wait();
                sender.wait();
                moved.1 = receiver.taken().wrapping_sub(before.1);
            }
        }
        let after = (
            before.0.wrapping_add(moved.0),
            before.1.wrapping_add(moved.1),
        );
        odd += u64::from((sender.sent(), receiver.taken()) != after);
        odd += u64::from(message[64..] != [0xee; 8]);
    }
    println!("channel: {sent} sent, {seen} seen, {broken} times broken");
    check::equal("what no call does", odd, 0);
    check::holds(
        "lies that were seen",
        broken > 0 && seen > 0 && sent > 0,
        format_args!("{broken}, {seen}, {sent}"),
    );
    check::done();
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    if taken.intid() == INTID.load(Relaxed) {
        HEARD.fetch_add(1, Relaxed);
    } else {
        LATE.fetch_add(1, Relaxed);
        timer::disarm();
    }
    gic::end(taken);
}

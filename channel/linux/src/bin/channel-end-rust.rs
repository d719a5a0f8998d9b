//! Claim: a program in Rust of a stock Linux is an end of a channel, through the crate that users have: messages go both ways, all of
//! them, in order and unaltered, and it sleeps by `poll`. The other end is guests/src/bin/channel.rs, whose messages these are.
//!
//! `channel-end-rust NAME MESSAGES`: it ends when all its runs together have sent and taken so many. It gives up all rights that it
//! has when it has opened the channel.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use bulkhead_channel_linux::{End, SendError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Gid, Uid};
use rustix::process::geteuid;
use rustix::thread::{set_thread_gid, set_thread_uid};

/// Bytes of a message's number, with which it begins.
const NUMBER: usize = 8;
/// Sleep after which a ring is lost.
const PATIENCE: Duration = Duration::from_secs(20);
/// `nobody` and its group.
const NOBODY: u32 = 65534;

/// What became of an end.
#[derive(Debug, Default)]
struct Tally {
    rings: u64,
    sleeps: u64,
    /// Sleeps that nobody ended.
    late: u64,
    /// Messages and answers that are others than they should be.
    wrong: u64,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => {
            println!("channel-end-rust: PASS");
            ExitCode::SUCCESS
        }
        Ok(false) => {
            println!("channel-end-rust: FAIL");
            ExitCode::FAILURE
        }
        Err(why) => {
            println!("channel-end-rust: FAIL {why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [name, messages] = words.as_slice() else {
        return Err("channel-end-rust NAME MESSAGES".into());
    };
    let messages = messages.parse()?;
    let mut end = End::open(name)?;
    if geteuid().is_root() {
        set_thread_gid(Gid::from_raw(NOBODY))?;
        set_thread_uid(Uid::from_raw(NOBODY))?;
    }
    let before = (end.sender().sent(), end.receiver().taken());
    if before != (0, 0) {
        let (sent, taken) = before;
        println!("channel-end-rust: goes on behind {sent} sent and {taken} taken");
    }
    let mut tally = Tally::default();
    if end.owes() {
        tally.ring(&end)?;
    }
    loop {
        tally.send_all(&mut end, messages)?;
        tally.take_all(&mut end, messages)?;
        if end.sender().sent() == messages && end.receiver().taken() == messages {
            break;
        }
        if end.heard_by().is_some() && !tally.sleep(&mut end, messages)? {
            break;
        }
    }
    let (sent, taken) = (end.sender().sent(), end.receiver().taken());
    let (
        hears,
        Tally {
            rings,
            sleeps,
            late,
            wrong,
        },
    ) = (end.heard_by().is_some(), tally);
    println!(
        "channel-end-rust: {sent} sent, {taken} taken; {rings} rings, {sleeps} sleeps, {late} late, {wrong} wrong"
    );
    let all = (sent, taken) == (messages, messages);
    Ok(all && late == 0 && wrong == 0 && (sleeps > 0) == hears)
}

impl Tally {
    fn ring(&mut self, end: &End) -> Result<(), Box<dyn Error>> {
        self.rings += 1;
        Ok(end.ring()?)
    }

    /// Sends as many as there is room for.
    fn send_all(&mut self, end: &mut End, messages: u64) -> Result<(), Box<dyn Error>> {
        let longest = end.shape().message();
        while end.sender().sent() < messages {
            let message = compose(end.sender().sent(), longest);
            match end.sender().send(&message) {
                Ok(true) => self.ring(end)?,
                Ok(false) => {}
                Err(SendError::Full) => return Ok(()),
                Err(why) => return Err(format!("cannot send: {why:?}").into()),
            }
        }
        Ok(())
    }

    /// Takes all that are there.
    fn take_all(&mut self, end: &mut End, messages: u64) -> Result<(), Box<dyn Error>> {
        let longest = end.shape().message();
        let mut seen = vec![0; longest];
        while end.receiver().taken() < messages {
            let length = match end.receiver().look(&mut seen) {
                Ok(Some(length)) => length,
                Ok(None) => return Ok(()),
                Err(why) => return Err(format!("cannot look: {why:?}").into()),
            };
            let wanted = compose(end.receiver().taken(), longest);
            self.wrong += u64::from(seen[..length] != wanted);
            if end.receiver().take() {
                self.ring(end)?;
            }
        }
        Ok(())
    }

    /// Sleeps by the descriptor, as a program that polls others beside it would, if nothing is to be done. False if a ring was lost.
    fn sleep(&mut self, end: &mut End, messages: u64) -> Result<bool, Box<dyn Error>> {
        let (mut sender, mut receiver) = end.directions();
        let nothing_came = receiver.taken() == messages || receiver.wait();
        let nothing_goes = sender.sent() == messages || sender.wait();
        if !(nothing_came && nothing_goes) {
            return Ok(true);
        }
        self.sleeps += 1;
        let heard = end.heard_by().ok_or("it hears nothing")?;
        let limit = Timespec::try_from(PATIENCE)?;
        poll(&mut [PollFd::new(&heard, PollFlags::IN)], Some(&limit))?;
        let rung = end.heard()?;
        self.late += u64::from(!rung);
        Ok(rung)
    }
}

/// Message `number`: its number, and bytes and a length that depend on it.
fn compose(number: u64, longest: usize) -> Vec<u8> {
    let length = NUMBER + (number % (longest - NUMBER + 1) as u64) as usize;
    let mut message = number.to_le_bytes().to_vec();
    message.resize(length, number as u8);
    message
}

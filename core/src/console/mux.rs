//! The multiplexed console: many VMs on one UART, a line at a time.
//!
//! A VM's bytes wait in its streams until a line is complete, so lines of two VMs do not mix. A
//! partial line (a prompt) is printed when it has waited for [`FLUSH_MS`]; from then on that VM's
//! bytes are printed at once, and nobody else's until the line has ended, or its turn is over: it
//! has been silent for [`SILENT_MS`], or takes longer than [`TURN_MS`] or [`TURN_BYTES`]. Only then
//! may another line cut it, and the label of what follows says that it goes on
//! ([`label::write`]).

use core::iter;
use core::sync::atomic::{AtomicU32, Ordering};

use bulkhead_abi::console::label;

use crate::console::ring::Ring;
use crate::console::text::TextLine;
use crate::sync::WantsSpace;

/// Milliseconds for which a partial line waits for the rest.
pub const FLUSH_MS: u64 = 10;
/// Milliseconds after which an open line may be cut that has been silent for as long. A program that
/// is in the middle of a line is held up for less than that by anything but a debugger (others on
/// its CPU, a UART of 9600 baud), and a person who waits behind a prompt for others' output hardly
/// notices it.
pub const SILENT_MS: u64 = 250;
/// Milliseconds after which an open line may be cut in any case, so that a guest which sends a byte
/// now and then holds up nobody for longer.
pub const TURN_MS: u64 = 1000;
/// Bytes after which an open line may be cut in any case, so that a guest which never ends a line
/// takes turns with the others.
pub const TURN_BYTES: u32 = 1024;
/// Length in bytes of a line of EL2, label and line end included.
pub const LINE: usize = 160;
/// Bytes of messages that wait.
const NOTICE: usize = 128;

/// Bytes of a guest's output that fit in its stream.
pub const OUTPUT: u32 = 1024;

/// A byte stream that counts the whole lines in it.
#[derive(Debug)]
#[repr(C)]
pub struct Stream<const N: usize> {
    ring: Ring<N>,
    lines_in: AtomicU32,
    lines_out: AtomicU32,
}

impl<const N: usize> Default for Stream<N> {
    fn default() -> Self {
        Self {
            ring: Ring::new(),
            lines_in: AtomicU32::new(0),
            lines_out: AtomicU32::new(0),
        }
    }
}

impl<const N: usize> Stream<N> {
    /// Producer: appends a byte; `false` if there is no room.
    #[inline]
    pub fn push(&self, byte: u8) -> bool {
        self.push_below(byte, N as u32)
    }

    /// Producer: appends a byte to fewer than `most`, which are no more than fit; `false` if there are as many.
    #[inline(always)]
    pub fn push_below(&self, byte: u8, most: u32) -> bool {
        let done = self.ring.push_below(byte, most);
        if done && byte == b'\n' {
            let lines = self.lines_in.load(Ordering::Relaxed).wrapping_add(1);
            self.lines_in.store(lines, Ordering::Release);
        }
        done
    }

    /// Producer: appends all bytes or none, so that the consumer never finds half a line of EL2 and
    /// breaks it.
    pub fn push_all(&self, bytes: &[u8]) -> bool {
        let fits = self.ring.push_all(bytes);
        if fits {
            let before = self.lines_in.load(Ordering::Relaxed);
            let ends = bytes.iter().filter(|byte| **byte == b'\n');
            let lines = ends.fold(before, |lines, _| lines.wrapping_add(1));
            self.lines_in.store(lines, Ordering::Release);
        }
        fits
    }

    /// Number of bytes that fit.
    #[inline]
    pub fn free(&self) -> u32 {
        self.ring.free()
    }

    /// Whether no byte is in the stream.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Number of bytes in the stream.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.ring.len()
    }

    /// Producer: how many bytes it has appended, modulo 2^32.
    #[inline(always)]
    pub fn appended(&self) -> u32 {
        self.ring.appended()
    }

    /// Producer, after it has appended `byte`, when the stream has `len` bytes: whether to notify the
    /// pCPU that drains the console. A byte of a line that would not be printed yet needs no
    /// notification; one behind which the stream is empty again gets one, which is rare and does no
    /// harm.
    #[inline(always)]
    pub const fn is_news(byte: u8, len: u32) -> bool {
        byte == b'\n' || len <= 1 || len > N as u32 - N as u32 / 4
    }

    /// Consumer: takes the oldest byte.
    pub fn pop(&self) -> Option<u8> {
        let byte = self.ring.pop()?;
        if byte == b'\n' {
            let lines = self.lines_out.load(Ordering::Relaxed).wrapping_add(1);
            self.lines_out.store(lines, Ordering::Relaxed);
        }
        Some(byte)
    }

    /// Consumer: whether there is a whole line, or so much of one that it cannot wait longer.
    fn ready(&self) -> bool {
        self.lines_in.load(Ordering::Acquire) != self.lines_out.load(Ordering::Relaxed)
            || self.ring.free() < N as u32 / 4
    }
}

/// The streams of one VM, shared by the pCPUs of its vCPUs and the pCPU that drains the console.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Streams {
    /// Output of the guest. Producer: the vCPU's pCPU.
    pub output: Stream<{ OUTPUT as usize }>,
    /// Messages of EL2 about the VM. Producer: the vCPU's pCPU.
    pub log: Stream<512>,
    /// Input of the guest. Producer: the pCPU that drains the console.
    pub input: Ring<256>,
    /// Whether the guest waits for room in `output`.
    pub wants_space: WantsSpace,
    /// Whether a line of the VM is open on the console, so that every byte is printed at once.
    pub eager: AtomicU32,
    /// Whether the service thread waits for room in `output`, for a virtio-console.
    pub device_wants_space: WantsSpace,
}

/// Access of the multiplexer to the VMs.
pub trait Sources {
    /// The number of VMs.
    fn count(&self) -> usize;
    /// The VMs, one bit for each, that may have added something since this was asked last.
    fn said(&self) -> u64;
    /// The streams of a VM.
    fn streams(&self, vm: usize) -> Option<&Streams>;
    /// The name of a VM, padded with 0.
    fn name(&self, vm: usize) -> &[u8];
    /// Told of a guest's bytes as they leave its stream.
    fn leave(&self, _vm: usize, _bytes: impl ExactSizeIterator<Item = u8>) {}
}

/// Result of [`Mux::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A byte for the UART.
    Byte(u8),
    /// Not all VMs that may have output have been searched: ask again. At most [`LOOK`] VMs are searched in a call.
    Later,
    /// Nothing to print yet: a partial line waits for its rest, or all wait for that of the open
    /// line. Ask again, with `flush`, at [`Mux::again_at`]. All VMs that may have output have been searched since the last byte, `Held` or `Empty`.
    Held,
    /// Nothing to print. All VMs that may have output have been searched, as for `Held`.
    Empty,
}

/// The time at which the multiplexer is asked (ticks of a counter).
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// Now.
    pub ticks: u64,
    /// Ticks of a millisecond.
    pub millisecond: u64,
}

impl Now {
    const fn after(self, milliseconds: u64) -> u64 {
        let ticks = self.millisecond.wrapping_mul(milliseconds);
        self.ticks.wrapping_add(ticks)
    }
}

/// Number of VMs that a call searches for output, so that other work can run in between.
pub const LOOK: usize = 16;

/// The writer of a line: a VM's guest, or EL2 about a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Speaker {
    vm: usize,
    log: bool,
}

impl Speaker {
    fn pop(self, sources: &impl Sources) -> Option<u8> {
        let streams = sources.streams(self.vm)?;
        if self.log {
            return streams.log.pop();
        }
        let byte = streams.output.pop()?;
        sources.leave(self.vm, iter::once(byte));
        Some(byte)
    }

    fn is_silent(self, sources: &impl Sources) -> bool {
        sources.streams(self.vm).is_none_or(|streams| {
            if self.log {
                streams.log.is_empty()
            } else {
                streams.output.is_empty()
            }
        })
    }
}

/// The multiplexer, which merges the streams of all VMs.
#[derive(Clone, Debug)]
pub struct Mux {
    speaker: Option<Speaker>,
    last: usize,
    /// VMs that may have output, one bit for each: those that have said something and were not found without output since.
    waiting: u64,
    /// Those of them that this round has not searched yet.
    rest: u64,
    /// Whether a round is under way.
    searching: bool,
    /// Whether one of those that it has searched had a partial line.
    held: bool,
    line_open: bool,
    /// The turn of the open line: when it is over if the line stays silent, how long that can be put
    /// off at most (`u64::MAX`: the next byte begins a turn), and how many bytes are left of it.
    until: u64,
    over_at: u64,
    left: u32,
    /// VMs whose last line was cut, one bit for each.
    cut: u64,
    insert: TextLine,
    inserted: usize,
    /// Message that waits to be printed.
    notice: TextLine,
}

impl Default for Mux {
    fn default() -> Self {
        Self::new()
    }
}

impl Mux {
    /// A multiplexer at the start of a line.
    pub const fn new() -> Self {
        Self {
            speaker: None,
            last: 0,
            waiting: 0,
            rest: 0,
            searching: false,
            held: false,
            line_open: false,
            until: 0,
            over_at: 0,
            left: 0,
            cut: 0,
            insert: TextLine::new(),
            inserted: 0,
            notice: TextLine::new(),
        }
    }

    /// Whether everything that was inserted has been printed.
    fn drained(&self) -> bool {
        self.inserted >= self.insert.as_bytes().len() && self.notice.as_bytes().is_empty()
    }

    /// Prints a message of the console, on a separate line, when the open line has ended or its turn
    /// is over. Of several messages that wait the last are printed, as far as there is room.
    pub fn notice(&mut self, text: &TextLine) {
        let (before, after) = (self.notice.as_bytes().len(), text.as_bytes().len());
        let all = before
            .wrapping_add(label::EL2_ANEW.len())
            .wrapping_add(after);
        if before == 0 || all > NOTICE {
            self.notice = *text;
        } else {
            self.notice.text(label::EL2_ANEW);
            self.notice.all(text.as_bytes());
        }
    }

    /// Starts the message that waits, unless a line is being printed.
    fn say_notice(&mut self, sources: &impl Sources, now: Now) {
        if self.notice.as_bytes().is_empty() || !self.may_cut(sources, now) {
            return;
        }
        let notice = core::mem::take(&mut self.notice);
        self.say(label::EL2, |line| {
            line.all(notice.as_bytes());
            true
        });
    }

    /// Whether a line is open whose turn is over.
    pub fn is_over(&self, sources: &impl Sources, now: Now) -> bool {
        self.line_open && self.may_cut(sources, now)
    }

    /// Whether another line may be printed now: none is open, or its turn is over.
    fn may_cut(&self, sources: &impl Sources, now: Now) -> bool {
        let Some(speaker) = self.speaker.filter(|_| self.line_open) else {
            return true;
        };
        self.left == 0 || now.ticks >= self.silent_until() && speaker.is_silent(sources)
    }

    /// The time at which the turn of the open line is over if it has no byte for it.
    fn silent_until(&self) -> u64 {
        self.until.min(self.over_at)
    }

    /// Returns the time (ticks) at which to ask again after `Held`.
    pub fn again_at(&self, now: Now) -> u64 {
        let until = self.silent_until();
        if self.line_open && now.ticks < until {
            until
        } else {
            now.after(FLUSH_MS)
        }
    }

    /// Whether nothing is being printed, except perhaps a line whose turn is over.
    pub fn is_free(&self, sources: &impl Sources, now: Now) -> bool {
        self.drained() && self.may_cut(sources, now)
    }

    /// Prints a line with a label, whose text `write` appends; `write` and this return `false` if
    /// there is no text. It cuts the open line. A line that has not been printed completely is
    /// lost: see [`Self::is_free`].
    pub fn say(&mut self, label: &str, write: impl FnOnce(&mut TextLine) -> bool) -> bool {
        self.insert.clear();
        self.inserted = 0;
        let open = self.line_open;
        if open {
            self.insert.text("\r\n");
        }
        self.insert.label(label);
        if !write(&mut self.insert) {
            self.insert.clear();
            return false;
        }
        self.insert.text("\r\n");
        if open {
            self.mark_cut();
        }
        self.line_open = false;
        self.speaker = None;
        true
    }

    /// Remembers that the open line is cut, if it is a guest's.
    fn mark_cut(&mut self) {
        if let Some(speaker) = self.speaker.filter(|speaker| !speaker.log) {
            self.cut |= 1u64.wrapping_shl(speaker.vm as u32);
        }
    }

    /// Returns the next byte for the UART. `flush`: partial lines have waited long enough.
    pub fn next(&mut self, sources: &impl Sources, flush: bool, now: Now) -> Next {
        if self.inserted >= self.insert.as_bytes().len() {
            self.say_notice(sources, now);
        }
        if let Some(byte) = self.insert.as_bytes().get(self.inserted) {
            self.inserted = self.inserted.saturating_add(1);
            return Next::Byte(*byte);
        }
        if let Some(next) = self.go_on(sources, now) {
            return next;
        }
        if let Some(speaker) = self.choose(sources, flush) {
            self.searching = false;
            self.held = false;
            return self.open(sources, speaker, now);
        }
        if self.rest != 0 {
            return Next::Later;
        }
        self.searching = false;
        let held = core::mem::take(&mut self.held);
        // Nobody has wanted to cut the open line.
        self.over_at = u64::MAX;
        if self.left == 0 {
            self.left = LINE as u32;
            if let Some(next) = self.go_on(sources, now) {
                return next;
            }
        }
        if held { Next::Held } else { Next::Empty }
    }

    /// Goes on with the open line while its turn lasts.
    fn go_on(&mut self, sources: &impl Sources, now: Now) -> Option<Next> {
        let speaker = self.speaker.filter(|_| self.line_open)?;
        if self.may_cut(sources, now) {
            return None;
        }
        let Some(byte) = speaker.pop(sources) else {
            if speaker.log {
                return None;
            }
            if sources.streams(speaker.vm)?.log.is_empty() {
                return Some(Next::Held);
            }
            // The VM has ended, and its line does not go on.
            let log = Speaker {
                log: true,
                ..speaker
            };
            return Some(self.open(sources, log, now));
        };
        if byte == b'\n' {
            self.close(sources);
        } else if !speaker.log {
            self.left = self.left.wrapping_sub(1);
            self.spoke(now);
        }
        Some(Next::Byte(byte))
    }

    /// Puts off the end of the turn, because the open line goes on.
    fn spoke(&mut self, now: Now) {
        self.until = now.after(SILENT_MS);
        if self.over_at == u64::MAX {
            self.over_at = self.until;
        }
    }

    /// Passes the bytes behind the one that [`Self::next`] has just returned to `send` until it
    /// returns `false`: what follows without a choice, up to the end of the line, which is left to
    /// `next`.
    #[inline(always)]
    pub fn go_on_line(
        &mut self,
        sources: &impl Sources,
        now: Now,
        mut send: impl FnMut(u8) -> bool,
    ) {
        let mut takes = |byte| byte != b'\n' && send(byte);
        while let Some(byte) = self.insert.as_bytes().get(self.inserted) {
            if !takes(*byte) {
                return;
            }
            self.inserted = self.inserted.saturating_add(1);
        }
        let Some(speaker) = self.speaker.filter(|_| self.line_open) else {
            return;
        };
        let Some(streams) = sources.streams(speaker.vm) else {
            return;
        };
        let bytes = if speaker.log {
            streams.log.ring.readable()
        } else {
            let bytes = streams.output.ring.readable();
            bytes.get(..self.left as usize).unwrap_or(bytes)
        };
        let sent = bytes
            .iter()
            .take_while(|byte| takes(byte.load(Ordering::Relaxed)));
        let sent = sent.count() as u32;
        if speaker.log {
            streams.log.ring.drop_front(sent);
        } else if sent != 0 {
            let bytes = bytes.get(..sent as usize).unwrap_or_default();
            let bytes = bytes.iter().map(|byte| byte.load(Ordering::Relaxed));
            sources.leave(speaker.vm, bytes);
            streams.output.ring.drop_front(sent);
            self.left = self.left.wrapping_sub(sent);
            self.spoke(now);
        }
    }

    /// Closes the line, because it is complete or another one cuts it.
    fn close(&mut self, sources: &impl Sources) {
        self.line_open = false;
        if let Some(streams) = self.speaker.and_then(|speaker| sources.streams(speaker.vm)) {
            streams.eager.store(0, Ordering::Relaxed);
        }
    }

    /// The VM whose bytes were returned last.
    pub fn last_speaker(&self) -> Option<usize> {
        self.speaker.map(|speaker| speaker.vm)
    }

    /// Chooses the next speaker among those who may have output and have not been searched in this round, starting after the last one.
    fn choose(&mut self, sources: &impl Sources, flush: bool) -> Option<Speaker> {
        if !self.searching {
            self.searching = true;
            self.waiting |= sources.said();
            self.rest = self.waiting;
        }
        let up_to_last = 2u64.wrapping_shl(self.last as u32).wrapping_sub(1);
        for _ in 0..LOOK {
            if self.rest == 0 {
                break;
            }
            let behind = self.rest & !up_to_last;
            let from = if behind == 0 { self.rest } else { behind };
            let (vm, bit) = (from.trailing_zeros() as usize, from & from.wrapping_neg());
            self.rest ^= bit;
            let streams = sources.streams(vm);
            // The guest's output comes before the messages about it.
            let output = streams.is_some_and(|streams| !streams.output.is_empty());
            let log = streams.is_some_and(|streams| !streams.log.is_empty());
            let Some(streams) = streams.filter(|_| output || log) else {
                self.waiting ^= bit;
                continue;
            };
            if output && self.line_open && self.speaker == Some(Speaker { vm, log: false }) {
                // It goes on if nobody else wants to.
                continue;
            }
            if output && (flush || log || streams.output.ready()) || log {
                self.last = vm;
                return Some(Speaker { vm, log: !output });
            }
            self.held |= output;
        }
        None
    }

    /// Starts a line with its label.
    fn open(&mut self, sources: &impl Sources, speaker: Speaker, now: Now) -> Next {
        self.insert.clear();
        self.inserted = 1;
        if self.line_open {
            self.insert.text("\r\n");
            self.mark_cut();
            self.close(sources);
        }
        let bit = 1u64.wrapping_shl(speaker.vm as u32);
        let goes_on = self.cut & bit != 0;
        self.cut &= !bit;
        // A line that was cut once does not hold up anybody for so long again.
        (self.left, self.over_at) = if goes_on {
            (LINE as u32, now.after(SILENT_MS))
        } else {
            (TURN_BYTES, now.after(TURN_MS))
        };
        self.until = now.after(SILENT_MS);
        if let Some(streams) = sources.streams(speaker.vm) {
            streams
                .eager
                .store(u32::from(!speaker.log), Ordering::Relaxed);
        }
        if speaker.log {
            self.insert.text(label::EL2);
        } else {
            // Cyan, yellow, green, magenta, blue, red: readable on light and on dark.
            let colour = *b"632541".get(speaker.vm % 6).unwrap_or(&b'7');
            label::write(&mut self.insert, colour, sources.name(speaker.vm), goes_on);
        }
        self.line_open = true;
        self.speaker = Some(speaker);
        self.insert
            .as_bytes()
            .first()
            .map_or(Next::Empty, |byte| Next::Byte(*byte))
    }

    /// Whether nothing is left to print, neither whole nor partial lines.
    pub fn is_done(&self, sources: &impl Sources) -> bool {
        self.drained()
            && (0..sources.count()).all(|vm| {
                sources
                    .streams(vm)
                    .is_none_or(|s| s.output.is_empty() && s.log.is_empty())
            })
    }
}

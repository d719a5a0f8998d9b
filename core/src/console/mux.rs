//! The multiplexed console: many VMs on one UART, a line at a time.
//!
//! A VM's bytes wait in its streams until a line is complete, so lines of two VMs do not mix. A
//! partial line (a prompt) is printed when it has waited for [`FLUSH_MS`]; from then on that VM's
//! bytes are printed at once until another VM has a whole line.

use core::sync::atomic::{AtomicU32, Ordering};

use bulkhead_abi::console::label;

use crate::console::ring::Ring;
use crate::console::text::Line;
use crate::sync::WantsSpace;

/// Milliseconds for which a partial line waits for the rest.
pub const FLUSH_MS: u64 = 10;
/// Length in bytes of a line of EL2, label and line end included.
pub const LINE: usize = 160;

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
        let done = self.ring.push(byte);
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

    /// Producer, after it has appended `byte`: whether to notify the pCPU that drains the console.
    /// A byte of a line that would not be printed yet needs no notification.
    #[inline]
    pub fn is_news(&self, byte: u8) -> bool {
        byte == b'\n' || self.ring.len() == 1 || self.ring.free() < N as u32 / 4
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
    pub output: Stream<1024>,
    /// Messages of EL2 about the VM. Producer: the vCPU's pCPU.
    pub log: Stream<512>,
    /// Input of the guest. Producer: the pCPU that drains the console.
    pub input: Ring<256>,
    /// Whether the guest waits for room in `output`.
    pub wants_space: WantsSpace,
    /// Whether a line of the VM is open on the console, so that every byte is printed at once.
    pub eager: AtomicU32,
}

/// Access of the multiplexer to the VMs.
pub trait Sources {
    /// The number of VMs.
    fn count(&self) -> usize;
    /// The streams of a VM.
    fn streams(&self, vm: usize) -> Option<&Streams>;
    /// The name of a VM, padded with 0.
    fn name(&self, vm: usize) -> &[u8];
}

/// Result of [`Mux::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A byte for the UART.
    Byte(u8),
    /// Not all VMs have been searched: ask again. At most [`LOOK`] VMs are searched in a call.
    Later,
    /// Nothing to print yet: a partial line waits for its rest. Ask again, with `flush`, after
    /// [`FLUSH_MS`]. All VMs have been searched since the last byte, `Held` or `Empty`.
    Held,
    /// Nothing to print. All VMs have been searched, as for `Held`.
    Empty,
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
            streams.log.pop()
        } else {
            streams.output.pop()
        }
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
    /// Number of VMs behind `last` that have been searched and had nothing to print.
    looked: usize,
    /// Whether one of them had a partial line.
    held: bool,
    line_open: bool,
    insert: Line<LINE>,
    inserted: usize,
    /// Message that waits to be printed.
    notice: Line<128>,
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
            looked: 0,
            held: false,
            line_open: false,
            insert: Line::new(),
            inserted: 0,
            notice: Line::new(),
        }
    }

    /// Whether everything that was inserted has been printed.
    fn drained(&self) -> bool {
        self.inserted >= self.insert.as_bytes().len() && self.notice.as_bytes().is_empty()
    }

    /// Prints a message of the console, on a separate line. It breaks a line of a guest, which may
    /// never end, and waits for the end of a line of EL2. Of several messages that wait only the
    /// last is printed.
    pub fn notice(&mut self, text: &Line<128>) {
        self.notice = *text;
    }

    /// Starts the message that waits, unless a line of EL2 is being printed.
    fn say_notice(&mut self, sources: &impl Sources) {
        if self.notice.as_bytes().is_empty() {
            return;
        }
        let under_way = self
            .speaker
            .is_some_and(|speaker| self.line_open && speaker.log && !speaker.is_silent(sources));
        if under_way {
            return;
        }
        let notice = core::mem::take(&mut self.notice);
        self.say(label::EL2, |line| {
            line.all(notice.as_bytes());
            true
        });
    }

    /// Whether nothing is being printed, except perhaps a partial line that waits for its rest.
    pub fn is_free(&self, sources: &impl Sources) -> bool {
        self.drained()
            && (!self.line_open
                || self
                    .speaker
                    .is_none_or(|speaker| speaker.is_silent(sources)))
    }

    /// Prints a line with a label, whose text `write` appends; `write` and this return `false` if
    /// there is no text. A line that has not been printed completely is lost: see
    /// [`Self::is_free`].
    pub fn say(&mut self, label: &str, write: impl FnOnce(&mut Line<LINE>) -> bool) -> bool {
        self.insert.clear();
        self.inserted = 0;
        if self.line_open {
            self.insert.text("\r\n");
        }
        self.insert.text(label);
        if !write(&mut self.insert) {
            self.insert.clear();
            return false;
        }
        self.insert.text("\r\n");
        self.line_open = false;
        self.speaker = None;
        true
    }

    /// Returns the next byte for the UART. `flush`: partial lines have waited long enough.
    pub fn next(&mut self, sources: &impl Sources, flush: bool) -> Next {
        if self.inserted >= self.insert.as_bytes().len() {
            self.say_notice(sources);
        }
        if let Some(byte) = self.insert.as_bytes().get(self.inserted) {
            self.inserted = self.inserted.saturating_add(1);
            return Next::Byte(*byte);
        }
        // An open line continues, unless its speaker has stopped and another one has a whole line.
        if self.line_open
            && let Some(speaker) = self.speaker
            && let Some(byte) = speaker.pop(sources)
        {
            if byte == b'\n' {
                self.close(sources);
            }
            return Next::Byte(byte);
        }
        if let Some(speaker) = self.choose(sources, flush) {
            self.looked = 0;
            self.held = false;
            return self.open(sources, speaker);
        }
        if self.looked < sources.count() {
            return Next::Later;
        }
        self.looked = 0;
        if core::mem::take(&mut self.held) {
            Next::Held
        } else {
            Next::Empty
        }
    }

    /// Closes the line, because it is complete or another one breaks it.
    fn close(&mut self, sources: &impl Sources) {
        self.line_open = false;
        if let Some(streams) = self.speaker.and_then(|speaker| sources.streams(speaker.vm)) {
            streams.eager.store(0, Ordering::Relaxed);
        }
    }

    /// Chooses the next speaker, starting after the last one and the VMs that have been searched.
    fn choose(&mut self, sources: &impl Sources, flush: bool) -> Option<Speaker> {
        let count = sources.count();
        for _ in 0..LOOK {
            if self.looked >= count {
                break;
            }
            self.looked = self.looked.wrapping_add(1);
            let vm = self.last.wrapping_add(self.looked) % count;
            let Some(streams) = sources.streams(vm) else {
                continue;
            };
            // The guest's output comes before the messages about it.
            let output = !streams.output.is_empty();
            let log = !streams.log.is_empty();
            if output && (flush || log || streams.output.ready()) || log {
                self.last = vm;
                return Some(Speaker { vm, log: !output });
            }
            self.held |= output;
        }
        None
    }

    /// Starts a line with its label.
    fn open(&mut self, sources: &impl Sources, speaker: Speaker) -> Next {
        self.insert = Line::new();
        self.inserted = 1;
        if self.line_open {
            self.insert.text("\r\n");
            self.close(sources);
        }
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
            label::write(&mut self.insert, colour, sources.name(speaker.vm));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::{string::String, vec::Vec};

    struct Two([Streams; 2]);

    impl Sources for Two {
        fn count(&self) -> usize {
            2
        }
        fn streams(&self, vm: usize) -> Option<&Streams> {
            self.0.get(vm)
        }
        fn name(&self, vm: usize) -> &[u8] {
            [b"alpha\0", b"beta\0\0"][vm]
        }
    }

    fn two() -> Two {
        Two([Streams::default(), Streams::default()])
    }

    fn drain(mux: &mut Mux, sources: &impl Sources, flush: bool) -> String {
        let mut bytes = Vec::new();
        loop {
            match mux.next(sources, flush) {
                Next::Byte(byte) => bytes.push(byte),
                Next::Later => {}
                Next::Held | Next::Empty => break,
            }
        }
        String::from_utf8(bytes)
            .unwrap()
            .replace("\x1b[36m", "")
            .replace("\x1b[33m", "")
            .replace("\x1b[0m", "")
    }

    /// VMs that count how often one of them is searched.
    struct Many(Vec<Streams>, std::cell::Cell<usize>);

    impl Sources for Many {
        fn count(&self) -> usize {
            self.0.len()
        }
        fn streams(&self, vm: usize) -> Option<&Streams> {
            self.1.set(self.1.get() + 1);
            self.0.get(vm)
        }
        fn name(&self, _: usize) -> &[u8] {
            b"many\0"
        }
    }

    /// However many VMs there are, all of them with partial lines that may not be printed yet: no
    /// call searches more than [`LOOK`] VMs, a round searches each once, and a VM with a whole line
    /// gets it printed.
    #[test]
    fn a_look_is_bounded_and_a_round_is_whole() {
        for count in [1, LOOK - 1, LOOK, LOOK + 1, 64] {
            let many = Many((0..count).map(|_| Streams::default()).collect(), 0.into());
            let mut mux = Mux::new();
            for streams in &many.0 {
                streams.output.push_all(b"part");
            }
            for _ in 0..3 {
                let mut looks = 0;
                loop {
                    many.1.set(0);
                    let next = mux.next(&many, false);
                    assert!(many.1.get() <= LOOK, "{} of {count}", many.1.get());
                    looks += many.1.get();
                    if next != Next::Later {
                        assert_eq!(next, Next::Held);
                        break;
                    }
                }
                assert_eq!(looks, count);
            }
            for vm in [0, count / 2, count - 1] {
                many.0[vm].output.push_all(b" whole\r\n");
                assert!(drain(&mut mux, &many, false).ends_with(" whole\r\n"));
                many.0[vm].output.push_all(b"part");
            }
            let shown = drain(&mut mux, &many, true);
            assert_eq!(shown.matches("part").count(), count);
            assert!(mux.is_done(&many));
        }
    }

    #[test]
    fn lines_do_not_mix() {
        let (two, mut mux) = (two(), Mux::new());
        two.0[0].output.push_all(b"one\r\ntw");
        two.0[1].output.push_all(b"eins\r\n");
        let shown = drain(&mut mux, &two, false);
        assert_eq!(mux.next(&two, false), Next::Held);
        two.0[0].output.push_all(b"o\r\n");
        let shown = shown + &drain(&mut mux, &two, false);
        assert_eq!(shown, "[beta] eins\r\n[alpha] one\r\n[alpha] two\r\n");
        assert_eq!(mux.next(&two, false), Next::Empty);
        assert!(mux.is_done(&two));
    }

    #[test]
    fn a_prompt_shows_after_a_while_and_gives_way_to_a_line() {
        let (two, mut mux) = (two(), Mux::new());
        two.0[0].output.push_all(b"~ # ");
        assert_eq!(drain(&mut mux, &two, false), "");
        assert_eq!(drain(&mut mux, &two, true), "[alpha] ~ # ");
        two.0[0].output.push_all(b"ls");
        assert_eq!(drain(&mut mux, &two, false), "ls", "an echo passes at once");
        two.0[1].log.push_all(b"vm beta stopped\r\n");
        assert_eq!(
            drain(&mut mux, &two, false),
            "\r\n[el2] vm beta stopped\r\n"
        );
        two.0[0].output.push_all(b"\r\nfile\r\n");
        assert_eq!(drain(&mut mux, &two, false), "[alpha] \r\n[alpha] file\r\n");
    }

    #[test]
    fn a_notice_breaks_an_open_line() {
        let (two, mut mux) = (two(), Mux::new());
        two.0[1].output.push_all(b"$ ");
        drain(&mut mux, &two, true);
        let mut text = Line::new();
        text.text("hello");
        mux.notice(&text);
        assert!(!mux.is_free(&two) && !mux.is_done(&two));
        assert_eq!(drain(&mut mux, &two, false), "\r\n[el2] hello\r\n");
        assert!(mux.is_free(&two) && mux.is_done(&two));
    }

    #[test]
    fn a_notice_waits_for_the_end_of_what_el2_says() {
        // However many bytes of the line have been printed, those of its label included.
        for out in 0..30 {
            let (two, mut mux) = (two(), Mux::new());
            two.0[0].log.push_all(b"vm alpha stopped: power off\r\n");
            let mut shown: String = (0..out)
                .map(|_| match mux.next(&two, false) {
                    Next::Byte(byte) => char::from(byte),
                    other => panic!("{other:?}"),
                })
                .collect();
            let mut text = Line::new();
            text.text("input goes to beta");
            mux.notice(&text);
            shown += &drain(&mut mux, &two, false);
            let (stopped, input) = (
                "[el2] vm alpha stopped: power off\r\n",
                "[el2] input goes to beta\r\n",
            );
            let expected = if out == 0 {
                [input, stopped]
            } else {
                [stopped, input]
            };
            assert_eq!(shown, expected.concat());
        }
    }

    #[test]
    fn a_line_of_the_monitor_waits_for_the_end_of_a_guests_line() {
        let (two, mut mux) = (two(), Mux::new());
        let state = |line: &mut Line<LINE>| {
            line.text("state");
            true
        };
        assert!(mux.is_free(&two));
        two.0[0].output.push_all(b"one\r\n");
        assert!(matches!(mux.next(&two, false), Next::Byte(_)));
        assert!(!mux.is_free(&two), "the label is under way");
        while two.0[0].output.free() == 1024 - 5 {
            mux.next(&two, false);
        }
        assert!(!mux.is_free(&two), "the line is under way");
        drain(&mut mux, &two, false);
        assert!(mux.is_free(&two));
        assert!(mux.say("[monitor] ", state));
        assert!(!mux.is_free(&two));
        assert_eq!(drain(&mut mux, &two, false), "[monitor] state\r\n");
        two.0[1].output.push_all(b"$ ");
        drain(&mut mux, &two, true);
        assert!(mux.is_free(&two), "a prompt does not hold it up");
        assert!(!mux.say("[monitor] ", |_| false));
        assert_eq!(drain(&mut mux, &two, false), "", "nothing to say");
        assert!(mux.say("[monitor] ", state));
        assert_eq!(drain(&mut mux, &two, false), "\r\n[monitor] state\r\n");
    }
}

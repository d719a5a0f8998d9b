//! Both sides of the two words.

use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Bits of the sequence number.
const SEQUENCE: u64 = 0xff_ffff_ff00;
/// One more.
const NEXT: u64 = 0x100;

/// What somebody wants of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Request {
    /// To go on.
    Run = 1,
    /// To do nothing, but to look.
    Pause = 2,
    /// To end.
    Stop = 3,
}

impl Request {
    const fn of(word: u64) -> Option<Self> {
        match word as u8 {
            1 => Some(Self::Run),
            2 => Some(Self::Pause),
            3 => Some(Self::Stop),
            _ => None,
        }
    }
}

/// Requests that a guest grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// [`Request::Pause`] and [`Request::Run`].
    pub pause: bool,
    /// [`Request::Stop`].
    pub stop: bool,
}

impl Requests {
    /// All of them.
    pub const ALL: Self = Self {
        pause: true,
        stop: true,
    };

    const fn allows(self, request: Request) -> bool {
        match request {
            Request::Run | Request::Pause => self.pause,
            Request::Stop => self.stop,
        }
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    /// It is done.
    Done = 1,
    /// The guest does not know it, or does not allow it. Nothing has changed.
    Refused = 2,
}

/// The guest's side.
#[derive(Debug)]
pub struct Listener<'a> {
    request: &'a AtomicU64,
    answer: &'a AtomicU64,
    grants: Requests,
    /// The request that was seen last.
    seen: u64,
    /// What is still to be answered.
    owed: Option<u64>,
}

impl<'a> Listener<'a> {
    /// One that grants these wishes. A request that waits already is found by the first look, unless an earlier life of the guest has
    /// answered it.
    pub fn new(request: &'a AtomicU64, answer: &'a AtomicU64, grants: Requests) -> Self {
        let asked = request.load(Ordering::Relaxed);
        // Nobody else writes this one.
        let last = answer.load(Ordering::Relaxed);
        let answered = last != 0 && last & SEQUENCE == asked & SEQUENCE;
        Self {
            request,
            answer,
            grants,
            seen: if answered { asked } else { 0 },
            owed: None,
        }
    }

    /// What somebody wants now, if it is granted and has not been seen. After that comes [`Self::answer`], when it is done. What is
    /// refused is answered here.
    ///
    /// Without a request: a load, a comparison, a branch.
    #[inline(always)]
    pub fn look(&mut self) -> Option<Request> {
        let request = self.request.load(Ordering::Relaxed);
        if request == self.seen {
            return None;
        }
        self.take(request)
    }

    #[cold]
    #[inline(never)]
    fn take(&mut self, word: u64) -> Option<Request> {
        // What was written before the request.
        fence(Ordering::Acquire);
        self.seen = word;
        let request = Request::of(word).filter(|request| self.grants.allows(*request));
        let reply = if request.is_some() {
            Reply::Done
        } else {
            Reply::Refused
        };
        self.owed = Some(word & SEQUENCE | reply as u64);
        if request.is_none() {
            self.answer();
        }
        request
    }

    /// Says that what the last look has given is done. Does nothing if that was nothing.
    #[inline(always)]
    pub fn answer(&mut self) {
        if let Some(owed) = self.owed.take() {
            self.answer.store(owed, Ordering::Release);
        }
    }
}

/// The side that asks.
#[derive(Debug)]
pub struct Asker<'a> {
    request: &'a AtomicU64,
    answer: &'a AtomicU64,
    /// The last request.
    asked: u64,
}

impl<'a> Asker<'a> {
    /// One that goes on behind the last request that stands there: its own word, which nobody else writes.
    pub fn new(request: &'a AtomicU64, answer: &'a AtomicU64) -> Self {
        let asked = request.load(Ordering::Relaxed);
        Self {
            request,
            answer,
            asked,
        }
    }

    /// Asks for something. A request before this one that has not been seen is forgotten.
    pub fn ask(&mut self, request: Request) {
        let sequence = self.asked.wrapping_add(NEXT) & SEQUENCE;
        self.asked = sequence | request as u64;
        self.request.store(self.asked, Ordering::Release);
    }

    /// What became of it, as soon as the guest has said so.
    pub fn reply(&self) -> Option<Reply> {
        let answer = self.answer.load(Ordering::Acquire);
        if self.asked == 0 {
            return None;
        }
        let sequence = self.asked & SEQUENCE;
        match answer.checked_sub(sequence) {
            Some(1) => Some(Reply::Done),
            Some(2) => Some(Reply::Refused),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_seen_once_and_its_answer_is_read_by_who_asked() {
        let (request, answer) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut listener = Listener::new(&request, &answer, Requests::ALL);
        let mut asker = Asker::new(&request, &answer);
        assert_eq!((listener.look(), asker.reply()), (None, None));
        for request in [Request::Pause, Request::Run, Request::Run, Request::Stop] {
            asker.ask(request);
            assert_eq!(asker.reply(), None);
            assert_eq!(listener.look(), Some(request));
            assert_eq!(asker.reply(), None, "it is not done");
            listener.answer();
            assert_eq!(asker.reply(), Some(Reply::Done));
            assert_eq!(listener.look(), None);
            listener.answer();
        }
        // Who starts anew asks for something that has not been seen.
        let mut asker = Asker::new(&request, &answer);
        asker.ask(Request::Stop);
        assert_eq!(asker.reply(), None);
        assert_eq!(listener.look(), Some(Request::Stop));
    }

    #[test]
    fn what_an_earlier_life_has_answered_is_not_asked_again() {
        let (request, answer) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut asker = Asker::new(&request, &answer);
        asker.ask(Request::Stop);
        let mut first = Listener::new(&request, &answer, Requests::ALL);
        assert_eq!(first.look(), Some(Request::Stop));
        let mut second = Listener::new(&request, &answer, Requests::ALL);
        assert_eq!(second.look(), Some(Request::Stop), "not answered");
        second.answer();
        let mut third = Listener::new(&request, &answer, Requests::ALL);
        assert_eq!(third.look(), None);
        asker.ask(Request::Run);
        assert_eq!(third.look(), Some(Request::Run));
    }

    #[test]
    fn what_is_not_granted_is_refused() {
        for (pause, stop) in [(false, false), (false, true), (true, false)] {
            let (request, answer) = (AtomicU64::new(0), AtomicU64::new(0));
            let mut listener = Listener::new(&request, &answer, Requests { pause, stop });
            let mut asker = Asker::new(&request, &answer);
            for (request, granted) in [
                (Request::Pause, pause),
                (Request::Run, pause),
                (Request::Stop, stop),
            ] {
                asker.ask(request);
                assert_eq!(listener.look(), granted.then_some(request));
                listener.answer();
                let reply = if granted { Reply::Done } else { Reply::Refused };
                assert_eq!(asker.reply(), Some(reply));
            }
        }
    }

    /// Words that nobody would write who keeps the rules: every byte in the place of the request, bits beyond, all kinds of sequences.
    #[test]
    fn whatever_stands_there_is_a_wish_or_refused_and_costs_one_answer() {
        let (request, answer) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut listener = Listener::new(&request, &answer, Requests::ALL);
        for byte in 0..=0xffu64 {
            for rest in [0, NEXT, 7 * NEXT, SEQUENCE, 1 << 40, 1 << 63, !0xff] {
                request.store(rest | byte, Ordering::Relaxed);
                let before = answer.load(Ordering::Relaxed);
                let request = listener.look();
                assert_eq!(request.is_some(), (1..=3).contains(&byte));
                if request.is_some() {
                    assert_eq!(answer.load(Ordering::Relaxed), before, "not yet");
                }
                listener.answer();
                let expected = if request.is_some() { 1 } else { 2 };
                if rest | byte != 0 {
                    assert_eq!(answer.load(Ordering::Relaxed), rest & SEQUENCE | expected);
                }
                assert_eq!(listener.look(), None, "once");
            }
        }
    }

    #[test]
    fn an_answer_to_something_else_is_none() {
        let (request, answer) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut asker = Asker::new(&request, &answer);
        for junk in [1, 2, u64::MAX, NEXT | 1] {
            answer.store(junk, Ordering::Relaxed);
            assert_eq!(asker.reply(), None, "nothing was asked");
        }
        asker.ask(Request::Pause);
        let good = request.load(Ordering::Relaxed) & SEQUENCE;
        for junk in [
            0,
            good,
            good | 3,
            good | 0xff,
            (good + NEXT) | 1,
            good | 1 << 40 | 1,
        ] {
            answer.store(junk, Ordering::Relaxed);
            assert_eq!(asker.reply(), None, "{junk:#x}");
        }
        answer.store(good | 2, Ordering::Relaxed);
        assert_eq!(asker.reply(), Some(Reply::Refused));
    }

    #[test]
    fn a_sequence_that_wraps_is_another_one() {
        let (request, answer) = (AtomicU64::new(SEQUENCE | 2), AtomicU64::new(0));
        let mut listener = Listener::new(&request, &answer, Requests::ALL);
        assert_eq!(listener.look(), Some(Request::Pause));
        listener.answer();
        let mut asker = Asker::new(&request, &answer);
        asker.ask(Request::Run);
        assert_eq!(request.load(Ordering::Relaxed), 1);
        assert_eq!(asker.reply(), None);
        assert_eq!(listener.look(), Some(Request::Run));
        listener.answer();
        assert_eq!(asker.reply(), Some(Reply::Done));
    }
}

//! Both sides of the protocol of the two words.

use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Mask of the sequence number.
const SEQUENCE: u64 = 0xff_ffff_ff00;
/// Increment of the sequence number.
const NEXT: u64 = 0x100;

/// A request to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Request {
    /// Continue the work.
    Run = 1,
    /// Do no work, but go on polling.
    Pause = 2,
    /// End.
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

/// The requests that a guest allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// [`Request::Pause`] and [`Request::Run`].
    pub pause: bool,
    /// [`Request::Stop`].
    pub stop: bool,
}

impl Requests {
    /// All requests.
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

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    /// The guest has complied.
    Done = 1,
    /// The guest does not know the request or does not allow it. Nothing has changed.
    Refused = 2,
}

/// The side of the guest.
#[derive(Debug)]
pub struct Listener<'a> {
    request: &'a AtomicU64,
    answer: &'a AtomicU64,
    grants: Requests,
    /// The last request word that was seen.
    seen: u64,
    /// The answer that is still to be written.
    owed: Option<u64>,
}

impl<'a> Listener<'a> {
    /// A listener that allows the requests in `grants`. A request that is already pending is
    /// returned by the first poll, unless the guest answered it before a restart.
    pub fn new(request: &'a AtomicU64, answer: &'a AtomicU64, grants: Requests) -> Self {
        let asked = request.load(Ordering::Relaxed);
        // Only this guest writes the answer word.
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

    /// Polls: returns a request that is allowed and has not been seen. The caller complies and then
    /// calls [`Self::answer`]. A request that is not allowed is refused here.
    ///
    /// The cost without a request is a load, a comparison and a branch.
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
        // Orders after the request what the asker wrote before it.
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

    /// Answers that the request from the last poll is done. Has no effect if there was none.
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
    /// The last request word.
    asked: u64,
}

impl<'a> Asker<'a> {
    /// An asker that continues the sequence of the request word, which no other side writes.
    pub fn new(request: &'a AtomicU64, answer: &'a AtomicU64) -> Self {
        let asked = request.load(Ordering::Relaxed);
        Self {
            request,
            answer,
            asked,
        }
    }

    /// Sends a request. An earlier request that has not been seen is overwritten.
    pub fn ask(&mut self, request: Request) {
        let sequence = self.asked.wrapping_add(NEXT) & SEQUENCE;
        self.asked = sequence | request as u64;
        self.request.store(self.asked, Ordering::Release);
    }

    /// The outcome of the last request, once the guest has answered.
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
        // A new asker continues the sequence, so its request counts as not seen.
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

    /// Words that no correct asker writes: every byte in the place of the request, bits above, all
    /// kinds of sequence numbers.
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

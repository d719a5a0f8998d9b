//! Both directions of a channel, as one end sees them.

use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Number of messages that the owner of a region has sent, ever.
const SENT: usize = 0;
/// Number of messages that it has taken from the other region, ever.
const TAKEN: usize = 8;
/// The other's [`SENT`] at which it is to be rung.
const WANTS_MESSAGE: usize = 16;
/// The other's [`TAKEN`] at which it is to be rung.
const WANTS_ROOM: usize = 24;
/// First slot. Each of the words above has a cache line of 64 bytes.
const MESSAGES: usize = 32;
/// Bytes of a word.
const WORD: usize = 8;
/// Bytes of the longest message that a channel may have.
const LONGEST: usize = 4096;
/// Most slots of a queue.
const MOST: usize = 65536;

/// Messages of a channel: how long they are, and how many wait in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    message: usize,
    messages: usize,
}

impl Shape {
    /// Messages of up to `message` bytes, of which up to `messages` wait; none if there is no such channel: 1 to 4096 bytes, 1 to
    /// 65536 slots, a power of two.
    pub const fn new(message: usize, messages: usize) -> Option<Self> {
        if message == 0 || message > LONGEST || !messages.is_power_of_two() || messages > MOST {
            return None;
        }
        Some(Self { message, messages })
    }

    /// Bytes of the longest message.
    pub const fn message(self) -> usize {
        self.message
    }

    /// Messages that wait in each direction at most.
    pub const fn messages(self) -> usize {
        self.messages
    }

    /// Words of 64 bits in a region.
    pub const fn words(self) -> usize {
        MESSAGES + self.messages * self.message_words()
    }

    /// Bytes of a region.
    pub const fn bytes(self) -> usize {
        self.words() * WORD
    }

    const fn message_words(self) -> usize {
        1 + self.message.div_ceil(WORD)
    }

    /// First word of the slot of a message.
    const fn place(self, number: u64) -> usize {
        MESSAGES + (number as usize & (self.messages - 1)) * self.message_words()
    }
}

/// Reason that a message was not sent. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// It is longer than the channel's messages.
    TooLong,
    /// All slots have messages that the other end has not taken.
    Full,
    /// The other end says that it has taken what was not sent.
    Broken,
}

/// The other end has not kept the protocol. What it did is left out; the next message is looked for where it says. To be
/// answered by a ring: the other end may wait for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Reason that there is no message to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookError {
    /// The message is longer than the buffer: so many bytes. It stays.
    Small(usize),
    /// See there.
    Broken,
}

impl From<Broken> for LookError {
    fn from(Broken: Broken) -> Self {
        Self::Broken
    }
}

/// The direction in which this end sends.
#[derive(Debug)]
pub struct Sender<'a> {
    own: &'a [AtomicU64],
    peer: &'a [AtomicU64],
    shape: Shape,
}

/// The direction in which this end receives.
#[derive(Debug)]
pub struct Receiver<'a> {
    own: &'a [AtomicU64],
    peer: &'a [AtomicU64],
    shape: Shape,
}

/// Opens a channel whose regions are mapped: this end's own, and the other's, of which nothing is written. None if one of them is
/// too small. There may be one sender and one receiver of each end at a time.
pub fn open<'a>(
    own: &'a [AtomicU64],
    peer: &'a [AtomicU64],
    shape: Shape,
) -> Option<(Sender<'a>, Receiver<'a>)> {
    let (own, peer) = (own.get(..shape.words())?, peer.get(..shape.words())?);
    Some((Sender { own, peer, shape }, Receiver { own, peer, shape }))
}

/// Whether a number that went from `before` to `after` has come to `wanted`.
const fn reached(wanted: u64, before: u64, after: u64) -> bool {
    after.wrapping_sub(wanted) < after.wrapping_sub(before)
}

impl Sender<'_> {
    /// Sends a message; tells whether the other end is to be rung.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(&mut self, message: &[u8]) -> Result<bool, SendError> {
        if message.len() > self.shape.message {
            return Err(SendError::TooLong);
        }
        if self.free()? == 0 {
            return Err(SendError::Full);
        }
        let sent = self.sent();
        let place = &self.own[self.shape.place(sent)..];
        let (length, words) = (&place[0], &place[1..]);
        length.store(message.len() as u64, Ordering::Relaxed);
        for (word, bytes) in words.iter().zip(message.chunks(WORD)) {
            let mut value = [0; WORD];
            value[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
        }
        let next = sent.wrapping_add(1);
        self.own[SENT].store(next, Ordering::Release);
        // The number before the look: either the other end sees it when it wants to sleep, or this end sees that it wants to.
        fence(Ordering::SeqCst);
        Ok(self.is_wanted(next))
    }

    /// Messages that this end has sent, ever: where one that starts again goes on.
    pub fn sent(&self) -> u64 {
        self.own[SENT].load(Ordering::Relaxed)
    }

    /// Slots that are free.
    ///
    /// # Errors
    /// The other end says that it has taken what was not sent.
    pub fn free(&self) -> Result<usize, SendError> {
        // Its reads of a slot come before what is written there next.
        let taken = self.peer[TAKEN].load(Ordering::Acquire);
        let waiting = self.sent().wrapping_sub(taken);
        let most = self.shape.messages as u64;
        let free = most.checked_sub(waiting).ok_or(SendError::Broken)?;
        Ok(free as usize)
    }

    /// Asks the other end to ring when it has taken a message. False if there is room already: then it may ring all the same.
    /// While the other end is broken there is none.
    pub fn wait(&mut self) -> bool {
        let taken = self.peer[TAKEN].load(Ordering::Relaxed);
        self.own[WANTS_ROOM].store(taken.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.free().is_ok_and(|free| free > 0)
    }

    /// Whether the other end may sleep though a message is there: this end has ended between sending and ringing. To be asked when
    /// it starts again.
    pub fn owes(&self) -> bool {
        self.sent() != 0 && self.is_wanted(self.sent())
    }

    /// Whether the other end has asked for the last of so many messages.
    fn is_wanted(&self, sent: u64) -> bool {
        let wanted = self.peer[WANTS_MESSAGE].load(Ordering::Relaxed);
        reached(wanted, sent.wrapping_sub(1), sent)
    }
}

impl Receiver<'_> {
    /// Copies the next message to `buffer` and tells its length, if there is one. It stays until it is [taken](Self::take).
    ///
    /// # Errors
    /// It does not fit, or the other end is [`Broken`].
    pub fn look(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, LookError> {
        let waiting = self.waiting()?;
        if waiting == 0 {
            return Ok(None);
        }
        let place = &self.peer[self.shape.place(self.taken())..];
        let (length, words) = (&place[0], &place[1..]);
        let length = length.load(Ordering::Relaxed);
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= self.shape.message);
        let Some(length) = length else {
            self.own[TAKEN].store(self.taken().wrapping_add(1), Ordering::Release);
            return Err(LookError::Broken);
        };
        let Some(buffer) = buffer.get_mut(..length) else {
            return Err(LookError::Small(length));
        };
        for (bytes, word) in buffer.chunks_mut(WORD).zip(words) {
            let value = word.load(Ordering::Relaxed).to_ne_bytes();
            bytes.copy_from_slice(&value[..bytes.len()]);
        }
        Ok(Some(length))
    }

    /// Takes the message that was seen: its slot is free. Tells whether the other end is to be rung. Nothing if none is there.
    pub fn take(&mut self) -> bool {
        if !self.waiting().is_ok_and(|waiting| waiting > 0) {
            return false;
        }
        let next = self.taken().wrapping_add(1);
        // The slot was read before the other end may write there.
        self.own[TAKEN].store(next, Ordering::Release);
        fence(Ordering::SeqCst);
        self.is_wanted(next)
    }

    /// Messages that this end has taken, ever.
    pub fn taken(&self) -> u64 {
        self.own[TAKEN].load(Ordering::Relaxed)
    }

    /// Messages that wait.
    ///
    /// # Errors
    /// More than there are slots: they are left out.
    pub fn waiting(&mut self) -> Result<usize, Broken> {
        let sent = self.peer[SENT].load(Ordering::Acquire);
        let waiting = sent.wrapping_sub(self.taken());
        if waiting > self.shape.messages as u64 {
            self.own[TAKEN].store(sent, Ordering::Release);
            return Err(Broken);
        }
        Ok(waiting as usize)
    }

    /// Asks the other end to ring when it sends a message. False if one is there already: then it may ring all the same.
    pub fn wait(&mut self) -> bool {
        self.own[WANTS_MESSAGE].store(self.taken().wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.waiting() == Ok(0)
    }

    /// Whether the other end may sleep though there is room: this end has ended between taking and ringing. To be asked when it
    /// starts again.
    pub fn owes(&self) -> bool {
        self.taken() != 0 && self.is_wanted(self.taken())
    }

    fn is_wanted(&self, taken: u64) -> bool {
        let wanted = self.peer[WANTS_ROOM].load(Ordering::Relaxed);
        reached(wanted, taken.wrapping_sub(1), taken)
    }
}

#[cfg(test)]
mod tests;

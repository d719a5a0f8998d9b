//! A virtio-blk device (VIRTIO 1.2, 5.2) over a [`Store`].
//!
//! A request is a header that the device reads, data in one direction or the other, and a status
//! byte, the last that it writes. How a driver has cut them into buffers means nothing (2.7.4.1).
//!
//! All writable bytes of a request are written, zeros where there is no data, and its used length
//! is their number: the status comes last, so a length that ends before it would say that there is
//! none.
//!
//! | request | |
//! | --- | --- |
//! | IN, OUT | whole sectors, inside the disk, or IOERR and nothing is changed |
//! | FLUSH | as the [store](crate::store) says: every write is durable when it is acknowledged |
//! | GET_ID | the 20 bytes of the disk's name |
//! | DISCARD | is checked and does nothing: no store gets anything back by it, and a guest that reads what it has discarded finds what was there |
//! | WRITE_ZEROES | writes zeros; `unmap` is a permission that nobody needs |
//! | others | UNSUPP |
//!
//! Features: SIZE_MAX, SEG_MAX, RO, BLK_SIZE, FLUSH, TOPOLOGY, MQ, DISCARD, WRITE_ZEROES, and those
//! of the transport. The plan's config is what the driver keeps to, and the limits here.

use bulkhead_abi::device::{MAX_QUEUES, Refusal};

use crate::counts::Tally;
use crate::memory::{Memory, Outside};
use crate::queue::{Broken, Chain, Cursor, Queue};
use crate::session::{Description, Live};
use crate::store::Store;

/// Bytes of a sector, whatever BLK_SIZE says.
pub const SECTOR: u64 = 512;
/// VIRTIO_BLK_F_RO: the disk is read-only.
pub const RO: u64 = 1 << 5;
/// VIRTIO_BLK_F_DISCARD: DISCARD is understood, within limits that the config has.
pub const DISCARD: u64 = 1 << 13;
/// VIRTIO_BLK_F_WRITE_ZEROES: WRITE_ZEROES is understood, within limits that the config has.
pub const WRITE_ZEROES: u64 = 1 << 14;
/// Features of virtio-blk that a disk can serve.
pub const FEATURES: u64 =
    1 << 1 | 1 << 2 | RO | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 12 | DISCARD | WRITE_ZEROES;
/// Most ranges of a DISCARD or WRITE_ZEROES that a plan may offer.
pub const MOST_RANGES: u32 = 16;
/// Most sectors that one WRITE_ZEROES may clear in all its ranges by what a plan offers, so that a
/// request takes no longer than a large OUT.
pub const MOST_ZEROES: u64 = 2048;

/// Bytes of the header of a request.
const HEADER: usize = 16;
/// Bytes of a range of DISCARD and WRITE_ZEROES.
const RANGE: usize = 16;
/// Bytes of the name.
const NAME: usize = 20;
/// Bytes of data that count as much as a request.
const CHUNK: u32 = 4096;
/// Where the config has the limits: the most sectors of a range, behind it the most ranges.
const DISCARD_LIMITS: usize = 36;
const ZEROES_LIMITS: usize = 48;

/// Types of requests (5.2.6).
mod kind {
    pub(super) const IN: u32 = 0;
    pub(super) const OUT: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const GET_ID: u32 = 8;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const WRITE_ZEROES: u32 = 13;
}

/// What a status byte says (5.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// It cannot be done.
    IoErr = 1,
    /// The device knows no such request.
    Unsupp = 2,
}

/// Why a request is not done.
enum Fail {
    Answer(Status),
    Broken,
}

impl From<Broken> for Fail {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

impl From<Outside> for Fail {
    fn from(_: Outside) -> Self {
        Self::Answer(Status::IoErr)
    }
}

const IO_ERR: Fail = Fail::Answer(Status::IoErr);
const UNSUPP: Fail = Fail::Answer(Status::Unsupp);

/// What a disk has done. Requests are counted when they are answered, as one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads.
    pub reads: u64,
    /// Bytes that they had.
    pub read_bytes: u64,
    /// Writes, of zeros, too.
    pub writes: u64,
    /// Bytes that they had.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Requests of other types that were done.
    pub others: u64,
    /// Requests that were not done.
    pub failed: u64,
    /// Requests without a place for an answer.
    pub mute: u64,
}

impl Counters {
    /// Requests that were done.
    pub fn done(&self) -> u64 {
        self.reads
            .wrapping_add(self.writes)
            .wrapping_add(self.flushes)
            .wrapping_add(self.others)
    }

    /// From words, which are those of [`count`].
    fn from_words(words: [u64; COUNTERS]) -> Self {
        let [
            reads,
            read_bytes,
            writes,
            written_bytes,
            flushes,
            others,
            failed,
            mute,
        ] = words;
        Self {
            reads,
            read_bytes,
            writes,
            written_bytes,
            flushes,
            others,
            failed,
            mute,
        }
    }
}

/// Number of counters of a disk.
pub(crate) const COUNTERS: usize = 8;

/// The counters by their numbers.
mod count {
    pub const READS: usize = 0;
    pub const READ_BYTES: usize = 1;
    pub const WRITES: usize = 2;
    pub const WRITTEN_BYTES: usize = 3;
    pub const FLUSHES: usize = 4;
    pub const OTHERS: usize = 5;
    pub const FAILED: usize = 6;
    pub const MUTE: usize = 7;
}

/// What was done for a request, with the bytes that it had.
#[derive(Clone, Copy)]
enum Done {
    Read(u32),
    Written(u32),
    Zeroed(u32),
    Flushed,
    Other,
}

/// Ranges that the plan's config allows for a type of request; none if it is not offered.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    sectors: u32,
    ranges: u32,
}

/// What came of serving a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Whether there may be more requests.
    pub more: bool,
    /// Whether EL2 is to be told.
    pub ring: bool,
}

/// A disk.
#[derive(Debug)]
pub struct Disk<S> {
    store: S,
    name: [u8; NAME],
    /// Bytes that the guest sees.
    bytes: u64,
    read_only: bool,
    discard: Limits,
    zeroes: Limits,
    queues: [Option<Queue>; MAX_QUEUES],
    /// Number behind the last of them that there is.
    count: usize,
    /// The queue whose turn is next.
    turn: usize,
    tally: Tally<COUNTERS>,
}

impl<S> Disk<S> {
    /// A disk that nobody uses; its name has zeros behind it.
    pub fn new(store: S, name: [u8; 20]) -> Self {
        Self {
            store,
            name,
            bytes: 0,
            read_only: true,
            discard: Limits::default(),
            zeroes: Limits::default(),
            queues: Default::default(),
            count: 0,
            turn: 0,
            tally: Tally::new([0; COUNTERS]),
        }
    }

    /// What the disk has done.
    pub fn counters(&self) -> Counters {
        Counters::from_words(self.tally.words())
    }

    /// The counters, to be kept, or to go on with those of an earlier life of this program.
    pub(crate) fn tally(&mut self) -> &mut Tally<COUNTERS> {
        &mut self.tally
    }

    /// Takes what the plan says of the device, or says why it cannot be served.
    pub fn configure<M: Memory>(&mut self, plan: &Description) -> Result<(), Refusal>
    where
        S: Store<M>,
    {
        let capacity = field(&plan.config, 0).ok_or(Refusal::Config)?;
        let bytes = u64::from_le_bytes(capacity).checked_mul(SECTOR);
        let bytes = bytes.filter(|bytes| *bytes <= self.store.bytes());
        self.bytes = bytes.ok_or(Refusal::Size)?;
        self.read_only = plan.offered & RO != 0;
        if self.store.is_read_only() && !self.read_only {
            return Err(Refusal::Features);
        }
        let limits = |feature, at| {
            if plan.offered & feature == 0 {
                return Ok(Limits::default());
            }
            Limits::read(&plan.config, at).ok_or(Refusal::Config)
        };
        self.discard = limits(DISCARD, DISCARD_LIMITS)?;
        self.zeroes = limits(WRITE_ZEROES, ZEROES_LIMITS)?;
        let Limits { sectors, ranges } = self.zeroes;
        if u64::from(sectors) * u64::from(ranges) > MOST_ZEROES {
            return Err(Refusal::Config);
        }
        Ok(())
    }

    /// A guest uses the disk from now on.
    pub fn open(&mut self, live: Live) {
        self.queues = live.queues;
        let last = self.queues.iter().rposition(Option::is_some);
        self.count = last.map_or(0, |last| last + 1);
    }

    /// Lets go of the queues.
    pub fn close(&mut self) {
        self.queues = Default::default();
        self.count = 0;
    }

    /// Asks to be told of the next request. Returns whether there is one already.
    pub fn arm<M: Memory>(&self, memory: &M) -> Result<bool, Broken> {
        let mut more = false;
        for queue in self.queues.iter().flatten() {
            more |= queue.arm(memory)?;
        }
        Ok(more)
    }

    /// Serves requests of all queues in turn, until there are none or `quota` is spent: one for a
    /// request, one for each 4 KiB.
    pub fn serve<M: Memory>(&mut self, memory: &M, quota: u32) -> Result<Served, Broken>
    where
        S: Store<M>,
    {
        let mut served = Served::default();
        let mut work = 0u32;
        let mut empty = 0;
        while empty < self.count && !served.more {
            let number = if self.turn < self.count { self.turn } else { 0 };
            self.turn = number + 1;
            match self.serve_one(memory, number)? {
                None => empty += 1,
                Some(bytes) => {
                    empty = 0;
                    work = work.saturating_add(1 + bytes / CHUNK);
                }
            }
            served.more = work >= quota;
        }
        for queue in self.queues.iter_mut().flatten() {
            served.ring |= queue.publish(memory)?;
        }
        Ok(served)
    }

    /// Serves the next request of a queue and returns how many bytes it had; `None` if there is
    /// none.
    fn serve_one<M: Memory>(&mut self, memory: &M, number: usize) -> Result<Option<u32>, Broken>
    where
        S: Store<M>,
    {
        let next = |queue: &mut Option<Queue>| queue.as_mut()?.take(memory).transpose();
        let Some(chain) = self.queues.get_mut(number).and_then(next).transpose()? else {
            return Ok(None);
        };
        let zeroed = self.answer(memory, &chain)?;
        if let Some(Some(queue)) = self.queues.get_mut(number) {
            queue.give_back(memory, &chain, chain.writable())?;
        }
        let bytes = chain.readable().saturating_add(chain.writable());
        Ok(Some(bytes.saturating_add(zeroed)))
    }

    /// Does a request and writes its status. Returns how many bytes it has set to zero.
    fn answer<M: Memory>(&mut self, memory: &M, chain: &Chain) -> Result<u32, Broken>
    where
        S: Store<M>,
    {
        let mut into = chain.writer();
        if into.left() == 0 {
            self.tally.add(count::MUTE, 1);
            return Ok(0);
        }
        let (status, done) = match self.execute(memory, chain.reader(), &mut into) {
            Ok(done) => (Status::Ok, Some(done)),
            Err(Fail::Answer(status)) => (status, None),
            Err(Fail::Broken) => return Err(Broken),
        };
        let unwritten = into.left().saturating_sub(1);
        into.zero(memory, unwritten)?;
        into.write(memory, &[status as u8])?;
        self.count(done);
        match done {
            Some(Done::Zeroed(bytes)) => Ok(bytes),
            _ => Ok(0),
        }
    }

    /// Counts a request that is answered; `None` if it was not done.
    fn count(&mut self, done: Option<Done>) {
        let (requests, bytes) = match done {
            Some(Done::Read(bytes)) => (count::READS, Some((count::READ_BYTES, bytes))),
            Some(Done::Written(bytes) | Done::Zeroed(bytes)) => {
                (count::WRITES, Some((count::WRITTEN_BYTES, bytes)))
            }
            Some(Done::Flushed) => (count::FLUSHES, None),
            Some(Done::Other) => (count::OTHERS, None),
            None => (count::FAILED, None),
        };
        self.tally.add(requests, 1);
        if let Some((counter, bytes)) = bytes {
            self.tally.add(counter, bytes.into());
        }
    }

    fn execute<M: Memory>(
        &self,
        memory: &M,
        mut from: Cursor,
        into: &mut Cursor,
    ) -> Result<Done, Fail>
    where
        S: Store<M>,
    {
        let mut header = [0; HEADER];
        if from.read(memory, &mut header)? < HEADER {
            return Err(IO_ERR);
        }
        let kind = u32::from_le_bytes(field(&header, 0).ok_or(IO_ERR)?);
        let sector = u64::from_le_bytes(field(&header, 8).ok_or(IO_ERR)?);
        match kind {
            kind::IN => {
                let bytes = into.left().saturating_sub(1);
                self.read(memory, sector, into).map(|()| Done::Read(bytes))
            }
            kind::OUT => {
                let bytes = from.left();
                let written = self.write(memory, sector, &mut from);
                written.map(|()| Done::Written(bytes))
            }
            kind::FLUSH => Ok(self.store.flush().map(|()| Done::Flushed)?),
            kind::GET_ID => self.name(memory, into).map(|()| Done::Other),
            kind::DISCARD if self.discard.ranges > 0 => {
                self.ranges(memory, from, self.discard, 0, |_, _| Ok(()))?;
                Ok(Done::Other)
            }
            kind::WRITE_ZEROES if self.zeroes.ranges > 0 => {
                let zero = |at, bytes| self.store.zero(at, bytes);
                let zeroed = self.ranges(memory, from, self.zeroes, UNMAP, zero);
                zeroed.map(Done::Zeroed)
            }
            _ => Err(UNSUPP),
        }
    }

    #[inline(always)]
    fn read<M: Memory>(&self, memory: &M, sector: u64, into: &mut Cursor) -> Result<(), Fail>
    where
        S: Store<M>,
    {
        // The last byte is the status.
        let mut at = self.place(sector, u64::from(into.left().saturating_sub(1)))?;
        while let Some(piece) = into.take(memory, into.left().saturating_sub(1))? {
            let bytes = u64::from(piece.bytes);
            self.store.read(at, memory, piece.at, bytes)?;
            at += bytes;
        }
        Ok(())
    }

    fn write<M: Memory>(&self, memory: &M, sector: u64, from: &mut Cursor) -> Result<(), Fail>
    where
        S: Store<M>,
    {
        if self.read_only {
            return Err(IO_ERR);
        }
        let mut at = self.place(sector, u64::from(from.left()))?;
        while let Some(piece) = from.take(memory, u32::MAX)? {
            let bytes = u64::from(piece.bytes);
            self.store.write(at, memory, piece.at, bytes)?;
            at += bytes;
        }
        Ok(())
    }

    fn name(&self, memory: &impl Memory, into: &mut Cursor) -> Result<(), Fail> {
        if (into.left() as usize) <= NAME {
            return Err(IO_ERR);
        }
        into.write(memory, &self.name)?;
        Ok(())
    }

    /// Calls `each` for the ranges of a request, all of which are checked before. Returns how many
    /// bytes they have together.
    fn ranges<M: Memory>(
        &self,
        memory: &M,
        from: Cursor,
        limits: Limits,
        flags: u32,
        each: impl Fn(u64, u64) -> Result<(), Outside>,
    ) -> Result<u32, Fail> {
        if self.read_only {
            return Err(IO_ERR);
        }
        let count = from.left() as usize / RANGE;
        let whole = (from.left() as usize).is_multiple_of(RANGE);
        if !whole || count == 0 || count > limits.ranges as usize {
            return Err(IO_ERR);
        }
        let mut total = 0u64;
        let mut check = from;
        for _ in 0..count {
            let range = Range::read(memory, &mut check)?;
            if range.flags & !flags != 0 {
                return Err(UNSUPP);
            }
            if range.sectors > limits.sectors {
                return Err(IO_ERR);
            }
            let bytes = u64::from(range.sectors) * SECTOR;
            self.place(range.sector, bytes)?;
            total = total.saturating_add(bytes);
        }
        let mut again = from;
        for _ in 0..count {
            let range = Range::read(memory, &mut again)?;
            let bytes = u64::from(range.sectors) * SECTOR;
            each(self.place(range.sector, bytes)?, bytes)?;
        }
        Ok(u32::try_from(total).unwrap_or(u32::MAX))
    }

    /// Where `bytes` bytes from a sector on are in the store, if they are whole sectors of the
    /// disk.
    fn place(&self, sector: u64, bytes: u64) -> Result<u64, Fail> {
        let at = sector.checked_mul(SECTOR).ok_or(IO_ERR)?;
        let end = at.checked_add(bytes).ok_or(IO_ERR)?;
        if end > self.bytes || !bytes.is_multiple_of(SECTOR) {
            return Err(IO_ERR);
        }
        Ok(at)
    }
}

/// Flag of a range of WRITE_ZEROES: the device may deallocate.
const UNMAP: u32 = 1;

/// `struct virtio_blk_discard_write_zeroes`.
struct Range {
    sector: u64,
    sectors: u32,
    flags: u32,
}

impl Range {
    fn read(memory: &impl Memory, from: &mut Cursor) -> Result<Self, Fail> {
        let mut bytes = [0; RANGE];
        from.read(memory, &mut bytes)?;
        Ok(Self {
            sector: u64::from_le_bytes(field(&bytes, 0).ok_or(IO_ERR)?),
            sectors: u32::from_le_bytes(field(&bytes, 8).ok_or(IO_ERR)?),
            flags: u32::from_le_bytes(field(&bytes, 12).ok_or(IO_ERR)?),
        })
    }
}

impl Limits {
    fn read(config: &[u8], at: usize) -> Option<Self> {
        let sectors = u32::from_le_bytes(field(config, at)?);
        let ranges = u32::from_le_bytes(field(config, at + 4)?);
        (1..=MOST_RANGES)
            .contains(&ranges)
            .then_some(Self { sectors, ranges })
    }
}

/// The bytes of a field that starts at `at`.
fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

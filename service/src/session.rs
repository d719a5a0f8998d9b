//! The backend's side of the handshake in the device page (`docs/adr/0024-shadow-virtqueues.md`).
//!
//! EL2 begins sessions, the backend lets go of the older one and says so, EL2 makes the rings of
//! the new one and says that they are there. Each word has one writer, and what is read of the
//! others' words is believed only for what it says now.

use core::sync::atomic::{Ordering, fence};

use arrayvec::ArrayVec;
use bulkhead_abi::device::device_page as page;
use bulkhead_abi::device::{MAX_CONFIG, MAX_QUEUES, Refusal};

use crate::memory::{Memory, Outside};
use crate::queue::{Broken, Queue};

/// What a device page says of its device, and keeps saying while the machine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Device ID of virtio.
    pub id: u32,
    /// The bit of the device in the words of news.
    pub index: u32,
    /// Its number among the devices of its kind.
    pub unit: u32,
    /// Features that the plan offers.
    pub offered: u64,
    /// Bytes of the window.
    pub bytes: u64,
    /// The plan's config.
    pub config: ArrayVec<u8, MAX_CONFIG>,
}

impl Description {
    /// Reads a device page; `None` while there is none (of a known version).
    pub fn read(memory: &impl Memory) -> Result<Option<Self>, Outside> {
        if memory.load32(page::MAGIC as u64)? != page::MAGIC_VALUE {
            return Ok(None);
        }
        fence(Ordering::Acquire);
        if memory.load32(page::VERSION as u64)? != page::VERSION_VALUE {
            return Ok(None);
        }
        let length = memory.load32(page::CONFIG_BYTES as u64)? as usize;
        let mut config = ArrayVec::from([0; MAX_CONFIG]);
        config.truncate(length);
        memory.read(page::CONFIG as u64, &mut config)?;
        Ok(Some(Self {
            id: memory.load32(page::DEVICE_ID as u64)?,
            index: memory.load32(page::INDEX as u64)?,
            unit: memory.load32(page::UNIT as u64)?,
            offered: memory.load64(page::OFFERED as u64)?,
            bytes: u64::from(memory.load32(page::WINDOW as u64)?),
            config,
        }))
    }
}

/// What is served in a session.
#[derive(Clone, Debug)]
pub struct Live {
    /// Features that the guest's driver has taken.
    pub features: u64,
    /// The queues that the guest has enabled, empty, by their number.
    pub queues: [Option<Queue>; MAX_QUEUES],
}

/// What a look at the page asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing new.
    Nothing,
    /// To let go of everything that is older than this session, and then to call
    /// [`Session::let_go`].
    LetGo(u32),
    /// To call [`Session::begin`] and to serve what it returns, until told to let go.
    Begin,
    /// To tell EL2 that something was asked of it.
    Tell,
}

/// How far a device has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// This life of the backend has not let go of anything yet.
    New,
    /// It can serve the session, whose rings are not there yet.
    Ready,
    /// It serves the session.
    Live,
    /// It serves the session no more, and waits for the next.
    Over,
    /// It serves the device never.
    Refused,
}

/// The handshake of one device.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    state: State,
    /// The session that `state` is about.
    number: u32,
}

impl Default for Session {
    fn default() -> Self {
        Self::new()
    }
}

impl Session {
    /// The handshake of a life of the backend that begins.
    pub const fn new() -> Self {
        Self {
            state: State::New,
            number: 0,
        }
    }

    /// Whether the device is being served.
    pub fn is_live(&self) -> bool {
        self.state == State::Live
    }

    /// Looks at the page. Steps are to be done in the order in which they are returned; who has
    /// done one looks again.
    pub fn look(&self, memory: &impl Memory) -> Result<Step, Outside> {
        if self.state == State::Refused {
            return Ok(Step::Nothing);
        }
        let session = memory.load32(page::SESSION as u64)?;
        if session == 0 {
            return Ok(Step::Nothing);
        }
        if session != self.number {
            return self.next(memory, session);
        }
        if self.state != State::Ready || memory.load32(page::LIVE as u64)? != session {
            return Ok(Step::Nothing);
        }
        Ok(Step::Begin)
    }

    fn next(&self, memory: &impl Memory, session: u32) -> Result<Step, Outside> {
        if self.state != State::New || memory.load32(page::READY as u64)? != session {
            return Ok(Step::LetGo(session));
        }
        // An earlier life of the backend was ready for this session. How much of its rings that
        // life had taken, nobody knows.
        if memory.load32(page::RESTART as u64)? == session {
            return Ok(Step::Nothing);
        }
        memory.store32(page::RESTART as u64, session)?;
        Ok(Step::Tell)
    }

    /// Begins the session whose rings are there. `Err` if its queues are not where queues can be:
    /// the session is not served then.
    pub fn begin(&mut self, memory: &impl Memory) -> Result<Live, Broken> {
        // What EL2 wrote before LIVE is read after it.
        fence(Ordering::Acquire);
        self.state = State::Over;
        let live = Live::read(memory)?;
        self.state = State::Live;
        Ok(live)
    }

    /// Says that everything older than `session` is let go of, and that it can be served. EL2 is
    /// to be told.
    pub fn let_go(&mut self, memory: &impl Memory, session: u32) -> Result<(), Outside> {
        if memory.load32(page::REFUSAL as u64)? != 0 {
            memory.store32(page::REFUSAL as u64, 0)?;
        }
        // Nothing of the older session is read or written behind this.
        fence(Ordering::SeqCst);
        memory.store32(page::READY as u64, session)?;
        self.number = session;
        self.state = State::Ready;
        Ok(())
    }

    /// Asks for a new session in place of the present one, which is not served any more. EL2 is to
    /// be told.
    pub fn restart(&mut self, memory: &impl Memory) -> Result<(), Outside> {
        if self.state == State::Live {
            self.state = State::Over;
            memory.store32(page::RESTART as u64, self.number)?;
        }
        Ok(())
    }

    /// Says why the device is not served, ever. EL2 is to be told.
    pub fn refuse(&mut self, memory: &impl Memory, why: Refusal) -> Result<(), Outside> {
        self.state = State::Refused;
        memory.store32(page::REFUSAL as u64, why as u32)
    }
}

impl Live {
    fn read(memory: &impl Memory) -> Result<Self, Broken> {
        let mut live = Self {
            features: memory.load64(page::FEATURES as u64)?,
            queues: Default::default(),
        };
        let count = memory.load32(page::QUEUES as u64)?;
        for (number, queue) in (0..count).zip(&mut live.queues) {
            let at = page::QUEUE as u64 + u64::from(number) * page::QUEUE_STRIDE as u64;
            if memory.load32(at + page::QUEUE_ENABLED as u64)? == 0 {
                continue;
            }
            let table = u64::from(memory.load32(at + page::QUEUE_TABLE as u64)?);
            let size = memory.load32(at + page::QUEUE_SIZE as u64)?;
            *queue = Some(Queue::new(memory, table, size).ok_or(Broken)?);
        }
        Ok(live)
    }
}

/// Writes the backend's config, of at most [`MAX_CONFIG`] bytes, so that EL2 takes all of it or
/// nothing. EL2 is to be told.
pub fn set_config(memory: &impl Memory, config: &[u8]) -> Result<(), Outside> {
    let config = config.get(..MAX_CONFIG).unwrap_or(config);
    // Odd already if an earlier life of the backend ended in the middle.
    let changing = memory.load32(page::GENERATION as u64)? | 1;
    memory.store32(page::GENERATION as u64, changing)?;
    fence(Ordering::Release);
    memory.write(page::BACKEND_CONFIG as u64, config)?;
    fence(Ordering::Release);
    // 0 says that there is no config.
    let changed = changing.wrapping_add(1).max(2);
    memory.store32(page::GENERATION as u64, changed)
}

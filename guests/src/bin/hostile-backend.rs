//! Serves disks in the place of `service`: all of them as it should by the crate `bulkhead-service`, but for the one named
//! [`misdeeds::DISK`], to which it does what its driver tells it to ([`misdeeds`]).
//!
//! Claim: between two sessions EL2 leaves the rings alone until this backend says that it is ready for the one that there is, whatever else it
//! writes; and the page by which it rings reads as zero. What its disks are to show is in [`hostile-backend-disk`](hostile-backend-disk.rs).
#![no_std]
#![no_main]

use arrayvec::ArrayVec;
use bulkhead_abi::device::ring::{self, DESCRIPTOR, ENTRIES, INDEX, NEXT, Ring, USED_ENTRY};
use bulkhead_abi::device::{
    MAX_CONFIG, MAX_QUEUE_SIZE, Refusal, backend_page, device_page as page,
};
use bulkhead_guests::area::Area;
use bulkhead_guests::backend;
use bulkhead_guests::misdeeds::{
    self, ALL, Act, DATA, Death, Id, LASTS, Len, Misdeed, ORDER, REQUESTS, RESTARTS, SESSION,
};
use bulkhead_guests::mmio::{read8, read16, read32, read64, write8, write16, write32, write64};
use bulkhead_guests::random::Random;
use bulkhead_guests::{Board, gic, guest, power, println, ruin, sysreg, timer};
use bulkhead_service::backend::Backend;
use bulkhead_service::counts::Counts;
use bulkhead_service::disk::Disk;
use bulkhead_service::memory::Memory;
use bulkhead_service::queue::{Broken, Chain, Queue};
use bulkhead_service::session::Description;
use bulkhead_service::store::Ram;
use bulkhead_service::switch::Switch;

guest!(main = main);

/// Most disks.
const MOST: usize = 4;
/// What a disk may do before it is the next one's turn.
const QUOTA: u32 = 32;
/// Device ID of a disk.
const BLOCK: u32 = 2;
/// Bytes of a sector, and of a request's header.
const SECTOR: usize = 512;
const HEADER: usize = 16;
/// Types of requests: to read, and to write.
const IN: u32 = 0;
const OUT: u32 = 1;
/// Bytes of the half of the device page that EL2 writes, in words.
const EL2_WORDS: usize = page::BACKEND / 8;
/// What stands in the rings between two sessions.
const NOBODYS: u16 = 0xa5a5;
const SEED: u64 = 0xbad_bac0;

fn main(board: &'static Board) {
    let found = match backend::find(board) {
        Ok(found) => found,
        Err(why) => return println!("FAIL hostile-backend: {why}"),
    };
    gic::init();
    gic::set_edge(found.intid, true);
    gic::enable(found.intid);
    println!("hostile-backend: {} disks", found.disks.len());
    let Err(Broken) = serve(&found) else {
        return;
    };
    println!("FAIL hostile-backend: what EL2 has written is no ring, or not there");
}

fn serve(found: &backend::Backend) -> Result<(), Broken> {
    let mut disks = ArrayVec::<Disk<Ram<Area>>, MOST>::new();
    for disk in &found.disks {
        let memory = disk.memory.ok_or(Broken)?;
        disks
            .try_push(Disk::new(Ram::new(memory), [0; 20]))
            .map_err(|_| Broken)?;
    }
    let mut windows = ArrayVec::<Area, MOST>::new();
    let mut hostile = None;
    for window in &found.windows {
        let plan = loop {
            if let Some(plan) = Description::read(window)? {
                break plan;
            }
        };
        let disk = found
            .disks
            .get(plan.unit as usize)
            .filter(|_| plan.id == BLOCK);
        match disk {
            Some(disk) if disk.label == misdeeds::DISK => {
                let memory = disk.memory.ok_or(Broken)?;
                hostile = Some(Hostile::new(found, *window, memory, plan.index));
            }
            _ => windows.try_push(*window).map_err(|_| Broken)?,
        }
    }
    let mut hostile = hostile.ok_or(Broken)?;
    let switch = Switch::new(&[], 1).map_err(|_| Broken)?;
    let counts = Counts::new(found.counts);
    let mut served = Backend::new(found.page, windows, switch, disks, counts, QUOTA);
    loop {
        served.take_told()?;
        let now = timer::now();
        let more = served.serve(now);
        hostile.step(now)?;
        ring(found.bell, served.take_rings());
        if !more && hostile.doing.is_none() && !hostile.arm()? && !served.arm()? {
            sysreg::wfi();
            let taken = gic::acknowledge();
            if !taken.is_none() {
                gic::end(taken);
            }
        }
    }
}

/// Tells EL2 which devices have something to do.
fn ring(bell: usize, devices: u64) {
    // What was written to the windows is there before.
    sysreg::dsb();
    for (at, word) in [(bell, devices as u32), (bell + 4, (devices >> 32) as u32)] {
        if word != 0 {
            write32(at, word);
        }
    }
}

/// The disk with its queue.
struct Hostile {
    window: Area,
    memory: Area,
    page: Area,
    bell: usize,
    /// Its bit in what this backend rings.
    index: u32,
    random: Random,
    /// The session that it has let go for, and the one whose rings it has found.
    session: u32,
    began: u32,
    queue: Option<Queue>,
    ring: Ring,
    size: u16,
    /// Chains that were given back in this session.
    used: u16,
    /// What it is to do with the next requests for data, and those that it has kept.
    ordered: Option<&'static Misdeed>,
    held: ArrayVec<Chain, REQUESTS>,
    /// The last of the slots with which requests began when it had as many as it waits for.
    before: Option<u16>,
    /// What it does, and until when.
    doing: Option<(Act, u64)>,
    /// What it is to do in place of being ready for the next session.
    late: Option<Act>,
    /// Sessions that it still asks for.
    restarts: u32,
    /// What EL2 had written to the device page, and the index of the available ring.
    words: [u64; EL2_WORDS],
    available: u16,
}

impl Hostile {
    fn new(found: &backend::Backend, window: Area, memory: Area, index: u32) -> Self {
        Self {
            window,
            memory,
            page: found.page,
            bell: found.bell,
            index,
            random: Random::new(SEED),
            session: 0,
            began: 0,
            queue: None,
            ring: Ring::new(0, 0),
            size: 0,
            used: 0,
            ordered: None,
            held: ArrayVec::new(),
            before: None,
            doing: None,
            late: None,
            restarts: 0,
            words: [0; EL2_WORDS],
            available: 0,
        }
    }

    fn tell(&self) {
        ring(self.bell, 1 << self.index);
    }

    fn word(&self, at: usize) -> Result<u32, Broken> {
        Ok(self.window.load32(at as u64)?)
    }

    fn put(&self, at: usize, value: u32) -> Result<(), Broken> {
        Ok(self.window.store32(at as u64, value)?)
    }

    fn step(&mut self, now: u64) -> Result<(), Broken> {
        match self.doing {
            Some((act, until)) if now < until => self.go_on(act),
            Some((act, _)) => {
                self.doing = None;
                self.stop(act)
            }
            None => {
                self.look(now)?;
                self.serve(now)
            }
        }
    }

    /// Asks to be told of the next request. Returns whether there is one already.
    fn arm(&self) -> Result<bool, Broken> {
        let queue = self.queue.as_ref();
        queue.map_or(Ok(false), |queue| queue.arm(&self.window))
    }

    /// Follows the sessions.
    fn look(&mut self, now: u64) -> Result<(), Broken> {
        let session = self.word(page::SESSION)?;
        if session != self.session {
            self.session = session;
            self.queue = None;
            self.held.clear();
            if let Some(act) = self.late.take() {
                for at in self.rings(self.ring.end) {
                    self.window.store16(at, NOBODYS)?;
                }
                self.doing = Some((act, now + timer::ticks(LASTS)));
                return Ok(());
            }
            self.ready()?;
        }
        if self.began == session || self.word(page::LIVE)? != session {
            return Ok(());
        }
        self.began = session;
        let table = u64::from(self.word(page::QUEUE + page::QUEUE_TABLE)?);
        let size = self.word(page::QUEUE + page::QUEUE_SIZE)?;
        let queue = Queue::new(&self.window, table, size).ok_or(Broken)?;
        self.size = size as u16;
        self.ring = Ring::new(table, self.size);
        self.used = 0;
        if self.restarts != 0 {
            self.restarts -= 1;
            self.put(page::RESTART, session)?;
            self.tell();
        } else {
            self.queue = Some(queue);
        }
        Ok(())
    }

    fn ready(&self) -> Result<(), Broken> {
        self.put(page::REFUSAL, 0)?;
        self.put(page::READY, self.session)?;
        self.tell();
        Ok(())
    }

    fn serve(&mut self, now: u64) -> Result<(), Broken> {
        let before = self.used;
        while self.doing.is_none()
            && let Some(queue) = &mut self.queue
            && let Some(chain) = queue.take(&self.window)?
        {
            let is_data = self.answer(&chain)?;
            match self.ordered {
                Some(misdeed) if is_data => {
                    self.held.push(chain);
                    if self.held.len() == misdeed.requests() {
                        self.ordered = None;
                        self.commit(misdeed.act, now)?;
                    }
                }
                _ => self.give_back(&chain)?,
            }
        }
        if self.used != before {
            self.publish()?;
        }
        Ok(())
    }

    /// Does a request as it should be done, but for giving it back. Returns whether it reads data.
    fn answer(&mut self, chain: &Chain) -> Result<bool, Broken> {
        let mut header = [0; HEADER];
        let mut from = chain.reader();
        from.read(&self.window, &mut header)?;
        let kind = u32::from_le_bytes(header[..4].try_into().unwrap_or_default());
        let sector = u64::from_le_bytes(header[8..].try_into().unwrap_or_default());
        let mut into = chain.writer();
        let mut place = sector.wrapping_mul(SECTOR as u64);
        let mut data = [0; SECTOR];
        while kind == OUT && from.left() != 0 {
            let bytes = from.read(&self.window, &mut data)?;
            if sector == ORDER {
                let misdeed = ALL.get(usize::from(data[0]));
                self.ordered = misdeed;
            } else {
                self.memory.write(place, &data)?;
            }
            place += bytes as u64;
        }
        // The last byte is the answer.
        while kind == IN && into.left() > 1 {
            self.memory.read(place, &mut data)?;
            if sector == SESSION {
                data[..4].copy_from_slice(&self.session.to_le_bytes());
            }
            place += into.write(&self.window, &data)? as u64;
        }
        into.write(&self.window, &[0])?;
        Ok(kind == IN && sector >= DATA)
    }

    fn give_back(&mut self, chain: &Chain) -> Result<(), Broken> {
        let queue = self.queue.as_mut().ok_or(Broken)?;
        queue.give_back(&self.window, chain, chain.writable())?;
        self.used = self.used.wrapping_add(1);
        Ok(())
    }

    /// Gives back what it has kept.
    fn give_all(&mut self) -> Result<(), Broken> {
        for chain in core::mem::take(&mut self.held) {
            self.give_back(&chain)?;
        }
        self.publish()
    }

    fn publish(&mut self) -> Result<(), Broken> {
        if let Some(queue) = &mut self.queue {
            queue.publish(&self.window)?;
        }
        self.tell();
        Ok(())
    }

    /// Writes a used element.
    fn give(&mut self, (id, len): (u32, u32)) -> Result<(), Broken> {
        let entry = u64::from(self.used & (self.size - 1)) * USED_ENTRY;
        let at = self.ring.used + ENTRIES + entry;
        self.window.store32(at, id)?;
        self.window.store32(at + 4, len)?;
        self.used = self.used.wrapping_add(1);
        Ok(())
    }

    /// Shows what was given, and `more` than that.
    fn show(&self, more: u16) -> Result<(), Broken> {
        sysreg::dsb();
        let index = self.used.wrapping_add(more);
        self.window.store16(self.ring.used + INDEX, index)?;
        self.tell();
        Ok(())
    }

    /// All requests are there, and answered: begins.
    fn commit(&mut self, act: Act, now: u64) -> Result<(), Broken> {
        if self.held.is_full() {
            self.before = self.held.iter().map(Chain::head).max();
        }
        match act {
            Act::Gives(given, more) => {
                for (id, len) in given {
                    let element = (self.id(*id)?, self.len(*len)?);
                    self.give(element)?;
                }
                return self.end(more);
            }
            Act::Again => {
                let element = (self.id(Id::Of(0))?, self.len(Len::Right)?);
                self.give(element)?;
                self.show(0)?;
            }
            Act::Early => {
                self.put(page::READY, self.session.wrapping_add(1))?;
                return self.end(REQUESTS as u16 + 1);
            }
            Act::Late | Act::Refuses => {
                self.late = Some(act);
                return self.end(REQUESTS as u16 + 1);
            }
            Act::Restarts => {
                self.restarts = RESTARTS - 1;
                self.queue = None;
                self.put(page::RESTART, self.session)?;
                self.tell();
                return Ok(());
            }
            Act::Dies(Death::Crash) => ruin::crash(),
            Act::Dies(Death::Reset) => power::reset(),
            Act::Dies(Death::Off) => power::off(),
            Act::Words => {
                for (word, at) in self.words.iter_mut().zip((0..).step_by(8)) {
                    *word = self.window.load64(at)?;
                }
            }
            Act::Rings => {
                self.available = self.window.load16(self.ring.available + INDEX)?;
            }
            _ => {}
        }
        self.doing = Some((act, now + timer::ticks(LASTS)));
        Ok(())
    }

    /// Shows what breaks a rule. Nothing of the session is served any more.
    fn end(&mut self, more: u16) -> Result<(), Broken> {
        self.queue = None;
        self.show(more)
    }

    fn id(&self, id: Id) -> Result<u32, Broken> {
        let head = |number: usize| self.held.get(number).map(|chain| u32::from(chain.head()));
        Ok(match id {
            Id::Of(number) => head(number).ok_or(Broken)?,
            Id::Free => self.free()?,
            Id::Second => {
                let first = head(0).ok_or(Broken)?;
                let at = self.ring.table + u64::from(first) * DESCRIPTOR + ring::DESCRIPTOR_NEXT;
                self.window.load16(at)?.into()
            }
            Id::Behind => self.size.into(),
            Id::Wide => head(0).ok_or(Broken)? | 1 << 16,
            Id::Ones => u32::MAX,
            Id::Before => self.before.ok_or(Broken)?.into(),
        })
    }

    /// The last slot of which no chain has anything.
    fn free(&self) -> Result<u32, Broken> {
        let mut taken = [false; MAX_QUEUE_SIZE as usize];
        for chain in &self.held {
            let mut number = chain.head();
            for _ in 0..self.size {
                if let Some(taken) = taken.get_mut(usize::from(number)) {
                    *taken = true;
                }
                let at = self.ring.table + u64::from(number) * DESCRIPTOR;
                if self.window.load16(at + ring::DESCRIPTOR_FLAGS)? & NEXT == 0 {
                    break;
                }
                number = self.window.load16(at + ring::DESCRIPTOR_NEXT)?;
            }
        }
        let all = &taken[..usize::from(self.size)];
        let free = all.iter().rposition(|taken| !taken).ok_or(Broken)?;
        Ok(free as u32)
    }

    fn len(&self, len: Len) -> Result<u32, Broken> {
        // All of them are alike.
        let writable = self.held.first().ok_or(Broken)?.writable();
        Ok(match len {
            Len::Right => writable,
            Len::Above => writable + 1,
            Len::Ones => u32::MAX,
        })
    }

    /// Offsets of 16 bits each from the descriptor table on.
    fn rings(&self, end: u64) -> impl Iterator<Item = u64> + use<> {
        (self.ring.table..end).step_by(2)
    }

    /// Does a part of what takes a while.
    fn go_on(&mut self, act: Act) -> Result<(), Broken> {
        let later = self.session.wrapping_add(1 + self.random.below(9) as u32);
        match act {
            Act::Bells => {
                for (bit, at) in (0..32).flat_map(|bit| [(bit, 0), (bit, 4)]) {
                    write32(self.bell + at, 1 << bit);
                }
                ring(self.bell, u64::MAX);
            }
            Act::OddBells => self.odd_bells(),
            Act::Told => {
                // A bit that is not there is none that is lost.
                self.page.store64(backend_page::NEWS as u64, u64::MAX)?;
                let armed = self.random.draw() as u32 | 1;
                self.page.store32(backend_page::ARMED as u64, armed)?;
                self.tell();
            }
            Act::Configs | Act::HalfConfig => {
                let odd = self.word(page::GENERATION)?.wrapping_add(1) | 1;
                self.put(page::GENERATION, odd)?;
                for at in (page::BACKEND_CONFIG..).step_by(4).take(MAX_CONFIG / 4) {
                    let word = self.random.draw() as u32;
                    self.put(at, word)?;
                }
                sysreg::dsb();
                if matches!(act, Act::Configs) {
                    self.put(page::GENERATION, odd.wrapping_add(1))?;
                }
                self.tell();
            }
            Act::Words => {
                for at in (0..).step_by(8).take(EL2_WORDS) {
                    let word = self.random.draw();
                    self.window.store64(at, word)?;
                }
                self.tell();
            }
            Act::Rings => {
                for at in self.rings(self.ring.used) {
                    let noise = self.random.draw() as u16;
                    self.window.store16(at, noise)?;
                }
                self.tell();
            }
            Act::Future => {
                self.put(page::SESSION, later)?;
                self.put(page::READY, later)?;
                self.put(page::RESTART, later)?;
                self.put(page::REFUSAL, later)?;
                self.tell();
            }
            Act::Refuses => {
                self.put(page::REFUSAL, Refusal::Features as u32)?;
                self.tell();
            }
            Act::Late => {
                let earlier = self.session.wrapping_sub(1 + self.random.below(3) as u32);
                for wrong in [later, earlier, u32::MAX, 0] {
                    self.put(page::REFUSAL, wrong)?;
                    self.put(page::SESSION, wrong)?;
                    self.put(page::READY, wrong)?;
                    self.tell();
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Anything of every width, to any place; it reads as zero in every width.
    fn odd_bells(&mut self) {
        for _ in 0..32 {
            let (draw, value) = (self.random.draw(), self.random.draw());
            let at = self.bell + (draw >> 8) as usize % 4096 / 8 * 8;
            match draw % 4 {
                0 => write8(at + 3, value as u8),
                1 => write16(at + 2, value as u16),
                2 => write32(at + 4, value as u32),
                _ => write64(at, value),
            }
            write64(self.bell, value);
            write8(self.bell, value as u8);
            let read = u64::from(read8(at)) | u64::from(read16(at)) | u64::from(read32(at));
            if read | read64(at) != 0 {
                println!("FAIL hostile-backend: {at:#x} does not read as zero");
            }
        }
    }

    /// Ends what took a while, and makes good.
    fn stop(&mut self, act: Act) -> Result<(), Broken> {
        match act {
            Act::Again => {
                let element = (self.id(Id::Of(0))?, self.len(Len::Right)?);
                self.give(element)?;
                return self.end(0);
            }
            Act::Configs | Act::HalfConfig => self.put(page::GENERATION, 0)?,
            Act::Words => {
                for (word, at) in self.words.iter().zip((0..).step_by(8)) {
                    self.window.store64(at, *word)?;
                }
            }
            Act::Rings => {
                let at = self.ring.available + INDEX;
                self.window.store16(at, self.available)?;
            }
            Act::Future => {
                self.put(page::SESSION, self.session)?;
                self.put(page::READY, self.session)?;
                self.put(page::RESTART, 0)?;
                self.put(page::REFUSAL, 0)?;
            }
            Act::Late | Act::Refuses => {
                if self.word(page::LIVE)? == self.session {
                    println!("FAIL hostile-backend: a session begins that nobody is ready for");
                }
                for at in self.rings(self.ring.end) {
                    if self.window.load16(at)? != NOBODYS {
                        println!("FAIL hostile-backend: {at:#x} has changed between sessions");
                        break;
                    }
                }
                self.put(page::SESSION, self.session)?;
                return self.ready();
            }
            _ => {}
        }
        self.give_all()
    }
}

//! Claim: whatever [`hostile-backend`](hostile-backend.rs) does, its disk is slow at worst: each request comes back once and right, nothing is
//! written that was not to be, the device never needs a reset, and a session ends if and only if the backend has broken a rule of it or wants it.
//! Meanwhile the other disk that it serves works on.
//!
//! The first disk is the good one; the second takes orders, one for each of [`misdeeds`](bulkhead_guests::misdeeds).
#![no_std]
#![no_main]

use bulkhead_abi::device::ring::{ENTRIES, INDEX, NEXT, USED_ENTRY, WRITE};
use bulkhead_guests::misdeeds::{ALL, Act, DATA, Death, Id, Misdeed, ORDER, REQUESTS, SESSION};
use bulkhead_guests::virtio::disk::{Disk, SECTOR};
use bulkhead_guests::virtio::raw::{Raw, SIZE, VERSION_1, place, register, status};
use bulkhead_guests::{Board, check, guest, println, timer, virtio};
use bulkhead_service::memory::Memory;
use virtio_drivers::transport::DeviceType;

guest!(main = main);

type Outcome<T = ()> = Result<T, &'static str>;

/// Milliseconds in which everything comes back.
const PATIENCE: u64 = 1000;
/// Milliseconds after which a backend that was switched off is so, whoever has to be told.
const ALONE: u64 = 100;
/// Most milliseconds in which the service thread lets go of a device.
const LETS_GO: u64 = 20;
/// Answers of the good disk while the other one is being served badly for a while.
const AT_LEAST: u64 = 4;
/// Sectors that have data, and those of a request for them: more than a slot has room for.
const SECTORS: u64 = 144;
const RUN: u64 = 12;
/// What is where no request is, and in the place of an answer before it is there.
const MARK: u64 = 0xc0de_ca5e_5eed_f00d;
const NO_ANSWER: u8 = 0xee;
/// Words of a sector, and of the config.
const WORDS: u64 = SECTOR as u64 / 8;
const CONFIG: usize = 64;

fn main(board: &'static Board) {
    let mut disks = virtio::devices(board, DeviceType::Block);
    let (Some(good), Some(bad)) = (disks.next(), disks.next()) else {
        return println!("FAIL hostile-backend-disk: there are not two disks");
    };
    let (Some(good), Some(raw)) = (Disk::new(good), Raw::new(bad)) else {
        return println!("FAIL hostile-backend-disk: they cannot be driven");
    };
    let mut user = User {
        good: Good::new(good),
        raw,
        seen: 0,
        config: [0; CONFIG],
    };
    check::report("the disk takes data", user.fill());
    user.config = user.read_config();
    for (number, misdeed) in ALL.iter().enumerate() {
        let done = user.misdeed(number);
        check::report(misdeed.name, done);
        // What follows is judged by itself.
        if done.is_err() {
            let _again = user.start();
        }
    }
    check::report("the same disk at last", user.works());
    let good = &user.good;
    check::equal("the good disk's answers that are wrong", good.wrong, 0);
    println!(
        "hostile-backend-disk: {} answers of the good disk",
        good.done
    );
    check::done();
}

/// What a word of a sector is.
fn word(sector: u64, index: u64) -> u64 {
    (sector << 16 | index)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The disk that is served as it should be, one request after the other: each sector is written and read.
struct Good {
    disk: Disk,
    turn: u64,
    done: u64,
    wrong: u64,
}

impl Good {
    fn new(disk: Disk) -> Self {
        let mut good = Self {
            disk,
            turn: 0,
            done: 0,
            wrong: 0,
        };
        good.begin();
        good
    }

    fn sector(&self) -> u64 {
        self.turn / 2 % self.disk.capacity()
    }

    fn begin(&mut self) {
        let sector = self.sector();
        let (writes, round) = (self.turn.is_multiple_of(2), self.turn / 2);
        for (index, bytes) in (0..).zip(self.disk.data(0)[..SECTOR].chunks_exact_mut(8)) {
            let value = if writes { word(round, index) } else { !0 };
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        let begun = if writes {
            self.disk.begin_write(0, sector, SECTOR)
        } else {
            self.disk.begin_read(0, sector, SECTOR)
        };
        self.wrong += u64::from(begun.is_err());
    }

    /// Takes an answer, if there is one, and makes the next request.
    fn work(&mut self) {
        let Some((place, result)) = self.disk.finish() else {
            return;
        };
        if place != 0 || result.is_err() {
            self.wrong += 1;
            return;
        }
        let round = self.turn / 2;
        if self.turn % 2 == 1 {
            let words = (0..).zip(self.disk.data(0)[..SECTOR].chunks_exact(8));
            let mut words = words.map(|(index, bytes)| bytes == word(round, index).to_le_bytes());
            self.wrong += u64::from(!words.all(|right| right));
        }
        (self.turn, self.done) = (self.turn + 1, self.done + 1);
        self.begin();
    }
}

/// Requests that are alike.
#[derive(Clone, Copy)]
struct Kind {
    writes: bool,
    /// Sectors of each.
    run: u64,
}

const READS: Kind = Kind {
    writes: false,
    run: RUN,
};
const FILLS: Kind = Kind {
    writes: true,
    run: RUN,
};
const ASKS: Kind = Kind {
    writes: false,
    run: 1,
};
const ORDERS: Kind = Kind {
    writes: true,
    run: 1,
};

impl Kind {
    /// The type that says so, and the flags of a descriptor of data.
    fn words(self) -> (u64, u16) {
        if self.writes {
            (1, NEXT)
        } else {
            (0, NEXT | WRITE)
        }
    }

    /// Bytes of data.
    fn bytes(self) -> u64 {
        self.run * SECTOR as u64
    }

    /// Bytes that the device writes: data, and the answer.
    fn writable(self) -> u64 {
        1 + if self.writes { 0 } else { self.bytes() }
    }
}

/// Where a request has its parts.
fn header(request: usize) -> u64 {
    place::HEADER + 0x20 * request as u64
}

fn answer(request: usize) -> u64 {
    place::ANSWER + 0x20 * request as u64
}

fn data(request: usize) -> u64 {
    place::DATA + 0x2000 * request as u64 + 0x200
}

struct User {
    good: Good,
    raw: Raw,
    /// Entries of the used ring that were seen.
    seen: u16,
    config: [u32; CONFIG],
}

impl User {
    fn store(&self, at: u64, value: u64) {
        assert!(
            self.raw.memory.store64(at, value).is_ok(),
            "outside the memory"
        );
    }

    fn load(&self, at: u64) -> u64 {
        self.raw.memory.load64(at).unwrap_or(0)
    }

    /// Marks all memory but the rings.
    fn mark(&self) {
        for at in (place::INDIRECT..place::BYTES).step_by(8) {
            self.store(at, MARK);
        }
    }

    /// What a word is where [`Self::mark`] and [`Self::ask`] have written, but for data and answers.
    fn expected(at: u64, kind: Kind, sectors: &[u64]) -> Option<u64> {
        for (request, sector) in sectors.iter().enumerate() {
            let start = data(request);
            if at == header(request) {
                return Some(kind.words().0);
            }
            if at == header(request) + 8 {
                return Some(*sector);
            }
            if at == answer(request) || (start..start + kind.bytes()).contains(&at) {
                return None;
            }
        }
        Some(MARK)
    }

    fn is_whole(&self, kind: Kind, sectors: &[u64]) -> bool {
        let mut all = (place::INDIRECT..place::BYTES).step_by(8);
        all.all(|at| {
            let expected = Self::expected(at, kind, sectors);
            expected.is_none_or(|expected| self.load(at) == expected)
        })
    }

    /// Makes requests of a sector each, all at once, with these words to write.
    fn ask(&mut self, kind: Kind, sectors: &[u64], words: impl Fn(u64, u64) -> u64) {
        self.mark();
        for (request, sector) in sectors.iter().enumerate() {
            self.store(header(request), kind.words().0);
            self.store(header(request) + 8, *sector);
            let marked = MARK >> 8 << 8 | u64::from(NO_ANSWER);
            self.store(answer(request), marked);
            if kind.writes {
                for index in 0..kind.run * WORDS {
                    let value = words(*sector + index / WORDS, index % WORDS);
                    self.store(data(request) + index * 8, value);
                }
            }
            let raw = &mut self.raw;
            let first = request as u16 * 3;
            let at = |place| raw.address(place);
            let (from, to, end) = (at(header(request)), at(data(request)), at(answer(request)));
            let (bytes, flags) = (kind.bytes() as u32, kind.words().1);
            raw.describe(place::TABLE, first, from, 16, NEXT, first + 1);
            raw.describe(place::TABLE, first + 1, to, bytes, flags, first + 2);
            raw.describe(place::TABLE, first + 2, end, 1, WRITE, 0);
            raw.put(first);
        }
        self.raw.show(0);
    }

    fn says_it_needs_a_reset(&self) -> bool {
        self.raw.get(register::STATUS) & status::NEEDS_RESET != 0
    }

    fn used(&self) -> u16 {
        let index = self.raw.memory.load16(place::USED + INDEX);
        index.unwrap_or(0).wrapping_sub(self.seen)
    }

    /// Waits until as many requests have come back, while the good disk works.
    fn wait(&mut self, requests: usize, mut each: impl FnMut(&Self) -> Outcome) -> Outcome {
        let end = timer::now() + timer::frequency() / 1000 * PATIENCE;
        while usize::from(self.used()) < requests {
            self.good.work();
            each(self)?;
            if self.says_it_needs_a_reset() {
                return Err("it says that it needs a reset");
            }
            if timer::now() > end {
                return Err("no answer");
            }
        }
        Ok(())
    }

    /// Looks at what has come back: each request once, with its length.
    fn take(&mut self, kind: Kind, sectors: &[u64]) -> Outcome {
        if usize::from(self.used()) != sectors.len() {
            return Err("more comes back than there was");
        }
        let mut back = [false; REQUESTS];
        for _ in sectors {
            let entry = u64::from(self.seen % SIZE) * USED_ENTRY;
            let at = place::USED + ENTRIES + entry;
            let read = |at| self.raw.memory.load32(at).unwrap_or(u32::MAX);
            let (id, len) = (read(at), read(at + 4));
            let known = back[..sectors.len()].get_mut(id as usize / 3);
            let known = known.filter(|back| id.is_multiple_of(3) && !**back);
            *known.ok_or("a request comes back that was not there")? = true;
            if u64::from(len) != kind.writable() {
                return Err("a length is wrong");
            }
            self.seen = self.seen.wrapping_add(1);
        }
        if !self.is_whole(kind, sectors) {
            return Err("it has written elsewhere");
        }
        let mut answers = (0..sectors.len()).map(|request| self.load(answer(request)));
        if answers.all(|answer| answer == MARK >> 8 << 8) {
            Ok(())
        } else {
            Err("an answer is wrong")
        }
    }

    /// Requests of a sector each, until they have come back.
    fn all(&mut self, kind: Kind, sectors: &[u64], words: fn(u64, u64) -> u64) -> Outcome {
        self.ask(kind, sectors, words);
        self.wait(sectors.len(), |_| Ok(()))?;
        self.take(kind, sectors)
    }

    /// The sectors that a misdeed is tried with.
    fn sectors(number: usize) -> [u64; REQUESTS] {
        core::array::from_fn(|request| DATA + (number * 5 + request * 7) as u64 % (SECTORS - RUN))
    }

    fn holds_data(&self, sectors: &[u64]) -> Outcome {
        for (request, sector) in sectors.iter().enumerate() {
            let mut all = 0..RUN * WORDS;
            if !all.all(|index| {
                let right = word(*sector + index / WORDS, index % WORDS);
                self.load(data(request) + index * 8) == right
            }) {
                return Err("it reads something else");
            }
        }
        Ok(())
    }

    /// Writes all data.
    fn fill(&mut self) -> Outcome {
        self.start()?;
        for first in (0..SECTORS).step_by(REQUESTS * RUN as usize) {
            let sectors: [u64; REQUESTS] =
                core::array::from_fn(|request| DATA + first + RUN * request as u64);
            self.all(FILLS, &sectors, word)?;
        }
        self.works()
    }

    fn works(&mut self) -> Outcome {
        let sectors = Self::sectors(0);
        self.all(READS, &sectors, word)?;
        self.holds_data(&sectors)
    }

    fn start(&mut self) -> Outcome {
        self.seen = 0;
        if self.raw.start(VERSION_1) {
            Ok(())
        } else {
            Err("it does not start")
        }
    }

    fn session(&mut self) -> Outcome<u32> {
        self.all(ASKS, &[SESSION], word)?;
        Ok(self.load(data(0)) as u32)
    }

    fn read_config(&self) -> [u32; CONFIG] {
        let start = register::CONFIG;
        core::array::from_fn(|number| self.raw.get(start + number * 4))
    }

    fn order(&mut self, number: usize) -> Outcome {
        self.ask(ORDERS, &[ORDER], |_, _| number as u64);
        self.wait(1, |_| Ok(()))?;
        self.take(ORDERS, &[ORDER])
    }

    fn misdeed(&mut self, number: usize) -> Outcome {
        let Misdeed { act, sessions, .. } = ALL[number];
        if matches!(act, Act::Gives(&[(Id::Before, _)], _)) {
            self.reset_in_silence()?;
        }
        let before = self.session()?;
        let good = self.good.done;
        self.order(number)?;
        let sectors = &Self::sectors(number)[..ALL[number].requests()];
        self.ask(READS, sectors, word);
        let planned = self.config;
        // When somebody has to start it again.
        let mut alone = timer::now() + timer::frequency() / 1000 * ALONE;
        self.wait(sectors.len(), |user| {
            if matches!(act, Act::Dies(Death::Off)) && timer::now() > alone {
                println!("hostile-backend-disk: nobody answers");
                alone = u64::MAX;
            }
            let same = !matches!(act, Act::HalfConfig) || user.read_config() == planned;
            if same {
                Ok(())
            } else {
                Err("half a config is shown")
            }
        })?;
        self.take(READS, sectors)?;
        self.holds_data(sectors)?;
        let after = self.session()?;
        if after.wrapping_sub(before) != sessions {
            println!("session {before}, then {after}");
            return Err("another number of sessions");
        }
        if self.read_config() != self.config {
            return Err("the config is another one");
        }
        let good = self.good.done - good;
        println!("hostile-backend-disk: {good} answers of the good disk");
        if sessions == 0 && good < AT_LEAST {
            return Err("the good disk has been kept waiting");
        }
        Ok(())
    }

    /// The driver takes the device away from a backend that says nothing.
    fn reset_in_silence(&mut self) -> Outcome {
        let silence = ALL.iter().position(|it| matches!(it.act, Act::Silence));
        self.order(silence.ok_or("there is no silence")?)?;
        let sectors = Self::sectors(1);
        self.ask(READS, &sectors, word);
        timer::spin(1000);
        let begin = timer::now();
        let reset = self.raw.reset();
        if !reset || timer::now() - begin > timer::frequency() / 1000 * LETS_GO {
            return Err("a reset waits for it");
        }
        // What it gives back now goes nowhere.
        self.mark();
        let end = begin + timer::frequency() / 1000 * LETS_GO;
        while timer::now() < end {
            self.good.work();
        }
        let mut all = (place::INDIRECT..place::BYTES).step_by(8);
        if !all.all(|at| self.load(at) == MARK) {
            return Err("it has written after a reset");
        }
        self.start()
    }
}

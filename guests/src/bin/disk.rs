//! Claim: a virtio disk keeps what was written to it, sector by sector, and nothing else changes.
//!
//! In each of `rounds=` rounds it writes the first `most=` sectors, with runs of sectors in one order and a pattern in
//! which each word names its sector and the round, and reads them with runs of another length in another order. Up to
//! `depth=` requests are in flight; it sleeps until the device's interrupt. Between rounds it takes the device from under
//! requests and starts it anew. `sectors=` is how many it should have. A read-only disk has to stay as it is. Its SIMD registers keep a
//! pattern meanwhile, whoever copies on its CPU.
//!
//! It says how long it had to wait for an answer at most while it read, and how many requests had none then. In the first `stops=` rounds, in
//! which somebody takes away what serves the disk, `waiting=` of them should have waited, for `us=` at least.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::read32;
use bulkhead_guests::virtio;
use bulkhead_guests::virtio::disk::{DEPTH, Disk, SECTOR};
use bulkhead_guests::{Board, check, gic, guest, println, simd, sysreg, timer};
use virtio_drivers::Result;
use virtio_drivers::transport::DeviceType;

guest!(main = main);

/// Seconds without an answer after which there will be none.
const PATIENCE: u64 = 5;
/// Sectors of the runs of a pass, by turns.
const RUNS: [u64; 5] = [8, 1, 64, 3, 17];
/// Words of a sector.
const WORDS: u64 = SECTOR as u64 / 8;

/// Registers of a device (VIRTIO 1.2, 4.2.2).
const INTERRUPT_STATUS: usize = 0x60;
const STATUS: usize = 0x70;

fn main(board: &'static Board) {
    // Before anybody drives it: a driver begins with a reset.
    for device in &board.virtio {
        check::equal(
            "status before a driver",
            read32(device.base + STATUS).into(),
            0,
        );
    }
    gic::init();
    gic::enable(timer::INTID);
    let Some(device) = virtio::listen(board, DeviceType::Block).next() else {
        return println!("FAIL disk: there is none");
    };
    let Some(disk) = Disk::new(device) else {
        return println!("FAIL disk: it cannot be driven");
    };
    let capacity = disk.capacity();
    println!(
        "disk: {capacity} sectors{}, requests of {} bytes",
        if disk.is_read_only() {
            ", read-only"
        } else {
            ""
        },
        disk.longest()
    );
    if let Some(sectors) = board.argument("sectors") {
        check::equal("its sectors", capacity, sectors);
    }
    let argument = |name, usual| board.argument(name).unwrap_or(usual);
    let mut user = User {
        disk,
        depth: argument("depth", 1).clamp(1, DEPTH as u64) as usize,
        sectors: argument("most", 1024).min(capacity),
        interrupts: 0,
        lost: 0,
        foreign: 0,
        longest: Wait::default(),
        stops: Stops {
            rounds: argument("stops", 0),
            waiting: argument("waiting", 1),
            us: argument("us", 0),
        },
    };
    user.name();
    let seed = timer::now();
    simd::fill(seed);
    let used = if user.disk.is_read_only() {
        user.only_read()
    } else {
        user.rounds(argument("rounds", 2))
    };
    let Some(mut user) = used else {
        return println!("FAIL disk: it cannot be driven again");
    };
    check::equal("SIMD registers", simd::damage(seed), 0);
    println!("disk: {} interrupts", user.interrupts);
    check::holds("it interrupts", user.interrupts > 0, "it did not");
    check::equal("answers without an interrupt", user.lost, 0);
    check::equal("interrupts of nobody", user.foreign, 0);
    user.disk.acknowledge();
    let status = read32(device.base + INTERRUPT_STATUS);
    check::equal("interrupt status, acknowledged", status.into(), 0);
    check::done();
}

/// What a word of a sector is after a round.
fn word(sector: u64, round: u64, index: u64) -> u64 {
    let name = sector << 24 ^ round << 8 ^ index;
    (name + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}

fn fill(data: &mut [u8], sector: u64, round: u64) {
    for (index, bytes) in (0..).zip(data.chunks_exact_mut(8)) {
        let value = word(sector + index / WORDS, round, index % WORDS);
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

/// Number of words that are not what [`fill`] makes them.
fn damage(data: &[u8], sector: u64, round: u64) -> u64 {
    let wrong = |(index, bytes): &(u64, &[u8])| {
        let value = word(sector + index / WORDS, round, index % WORDS);
        *bytes != value.to_le_bytes()
    };
    (0..).zip(data.chunks_exact(8)).filter(wrong).count() as u64
}

/// A way through the sectors: runs of the same length but for the last one, in an order of its own.
#[derive(Clone, Copy)]
struct Pass {
    round: u64,
    writes: bool,
    run: u64,
    /// From one run to the next, without a divisor in common with their number.
    stride: u64,
    sectors: u64,
}

impl Pass {
    fn new(round: u64, writes: bool, sectors: u64, longest: u64) -> Self {
        let turn = (round * 2 + u64::from(!writes)) as usize;
        let run = RUNS[turn % RUNS.len()].min(longest);
        let runs = sectors.div_ceil(run);
        let first = if writes { runs / 3 } else { runs * 2 / 5 };
        let stride = (first.max(1)..).find(|stride| coprime(*stride, runs));
        Self {
            round,
            writes,
            run,
            stride: stride.unwrap_or(1),
            sectors,
        }
    }

    /// First sector and number of sectors of a run.
    fn run(&self, number: u64) -> Option<(u64, u64)> {
        let runs = self.sectors.div_ceil(self.run);
        let sector = number * self.stride % runs.max(1) * self.run;
        (number < runs).then_some((sector, self.run.min(self.sectors - sector)))
    }
}

fn coprime(a: u64, b: u64) -> bool {
    if b == 0 { a == 1 } else { coprime(b, a % b) }
}

/// Who uses the disk.
struct User {
    disk: Disk,
    depth: usize,
    /// Sectors that are used.
    sectors: u64,
    interrupts: u64,
    /// Requests that were finished without an interrupt.
    lost: u64,
    foreign: u64,
    /// The longest wait of a pass.
    longest: Wait,
    stops: Stops,
}

/// A wait for an answer: its ticks, and the requests that were under way all the time.
#[derive(Clone, Copy, Default)]
struct Wait {
    ticks: u64,
    requests: usize,
}

/// Rounds in which nobody serves the disk for a while, and what has to be seen of that.
#[derive(Clone, Copy)]
struct Stops {
    rounds: u64,
    waiting: u64,
    us: u64,
}

impl User {
    fn name(&mut self) {
        let name = self.disk.name();
        check::report(
            "it has a name",
            name.as_ref().map(|_| ()).map_err(|error| *error),
        );
        let name = name.unwrap_or_default();
        let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
        println!("disk: name {}", str::from_utf8(text).unwrap_or("?"));
    }

    fn rounds(mut self, rounds: u64) -> Option<Self> {
        for round in 1..=rounds {
            self.pass(round, true);
            check::report(format_args!("round {round}: flush"), self.disk.flush());
            self.pass(round, false);
            self.say_longest(round);
            self.outside(round);
            self = self.again()?;
            println!("disk: round {round} of {rounds}");
        }
        // What is there after the last start.
        self.pass(rounds, false);
        Some(self)
    }

    fn say_longest(&self, round: u64) {
        let us = self.longest.ticks * 1_000_000 / timer::frequency();
        let requests = self.longest.requests as u64;
        println!("disk: round {round}: {requests} requests have waited for {us} us");
        if round <= self.stops.rounds {
            check::holds(
                format_args!("round {round}: requests under way when nobody served them"),
                requests >= self.stops.waiting && us >= self.stops.us,
                format_args!("{requests}, for {us} us"),
            );
        }
    }

    /// Writes or reads all sectors.
    fn pass(&mut self, round: u64, writes: bool) {
        let longest = (self.disk.longest() / SECTOR) as u64;
        let pass = Pass::new(round, writes, self.sectors, longest);
        let what = if writes { "written" } else { "read" };
        let name = format_args!("round {round}: {what} in runs of {}", pass.run);
        check::report(name, self.go_through(pass));
    }

    fn go_through(&mut self, pass: Pass) -> core::result::Result<(), &'static str> {
        // The sector of each request in flight, and its sectors.
        let mut runs = [(0, 0); DEPTH];
        let (mut next, mut flying, mut wrong) = (0, 0, 0);
        self.longest = Wait::default();
        loop {
            while flying < self.depth
                && let Some((sector, sectors)) = pass.run(next)
                && let Some(place) = self.disk.free()
            {
                let bytes = sectors as usize * SECTOR;
                let data = &mut self.disk.data(place)[..bytes];
                let begun = if pass.writes {
                    fill(data, sector, pass.round);
                    self.disk.begin_write(place, sector, bytes)
                } else {
                    data.fill(0x5a);
                    self.disk.begin_read(place, sector, bytes)
                };
                begun.map_err(|_| "a request does not fit")?;
                runs[place] = (sector, sectors);
                (next, flying) = (next + 1, flying + 1);
            }
            if flying == 0 {
                break;
            }
            let begin = timer::now();
            if !self.wait() {
                return Err("no answer");
            }
            let ticks = timer::now() - begin;
            if ticks > self.longest.ticks {
                self.longest = Wait {
                    ticks,
                    requests: flying,
                };
            }
            while let Some((place, result)) = self.disk.finish() {
                result.map_err(|_| "an error")?;
                flying -= 1;
                let (sector, sectors) = runs[place];
                let data = &self.disk.data(place)[..sectors as usize * SECTOR];
                if !pass.writes {
                    wrong += damage(data, sector, pass.round);
                }
            }
        }
        if wrong == 0 {
            Ok(())
        } else {
            Err("wrong words")
        }
    }

    /// What is outside fails, and changes nothing.
    fn outside(&mut self, round: u64) {
        let end = self.disk.capacity();
        let last = end.saturating_sub(1);
        let sector = |at, bytes, writes| (at, bytes * SECTOR, writes);
        self.one(sector(last, 1, true), round).unwrap_or_default();
        let beyond = [
            sector(end, 1, true),
            sector(last, 2, true),
            sector(end, 1, false),
            sector(last, 2, false),
            sector(u64::MAX / SECTOR as u64, 1, true),
            sector(1 << 55, 1, false),
            sector(u64::MAX, 2, true),
        ];
        let mut taken = 0;
        for request in beyond {
            taken += u64::from(self.one(request, round + 100).is_ok());
        }
        check::equal(format_args!("round {round}: taken outside"), taken, 0);
        let read = self.one(sector(last, 1, false), round);
        let data = &self.disk.data(0)[..SECTOR];
        let wrong = damage(data, last, round);
        check::holds(
            format_args!("round {round}: the last sector"),
            read.is_ok() && wrong == 0,
            format_args!("{read:?}, {wrong} wrong words"),
        );
        let first = self.one(sector(0, 1, false), round);
        let wrong = damage(&self.disk.data(0)[..SECTOR], 0, round);
        check::holds(
            format_args!("round {round}: the first sector"),
            first.is_ok() && wrong == 0,
            format_args!("{first:?}, {wrong} wrong words"),
        );
    }

    /// One request, with nothing else in flight.
    fn one(&mut self, (sector, bytes, writes): (u64, usize, bool), round: u64) -> Result {
        let data = &mut self.disk.data(0)[..bytes];
        if writes {
            fill(data, sector % (1 << 32), round);
            self.disk.begin_write(0, sector, bytes)?;
        } else {
            data.fill(0x5a);
            self.disk.begin_read(0, sector, bytes)?;
        }
        if !self.wait() {
            return Err(virtio_drivers::Error::NotReady);
        }
        match self.disk.finish() {
            Some((0, result)) => result,
            _ => Err(virtio_drivers::Error::WrongToken),
        }
    }

    /// Starts the device anew with requests in flight. It has nothing to do with them any more.
    fn again(mut self) -> Option<Self> {
        for place in 0..self.depth {
            let begun = self.disk.begin_read(place, 0, SECTOR);
            check::holds("requests before a reset", begun.is_ok(), "refused");
        }
        self.disk = self.disk.again()?;
        let mut touched = 0;
        for place in 0..DEPTH {
            self.disk.data(place)[..SECTOR].fill(0xa5);
        }
        timer::spin(2000);
        for place in 0..DEPTH {
            let data = &self.disk.data(place)[..SECTOR];
            touched += u64::from(data.iter().any(|byte| *byte != 0xa5));
        }
        check::equal("buffers written after a reset", touched, 0);
        Some(self)
    }

    /// A disk that cannot be written.
    fn only_read(mut self) -> Option<Self> {
        let before = self.sum();
        let mut taken = 0;
        for sector in [0, self.disk.capacity().saturating_sub(1)] {
            taken += u64::from(self.one((sector, SECTOR, true), 1).is_ok());
        }
        check::equal("writes to a read-only disk", taken, 0);
        let flushed = self.disk.flush();
        check::report("flush", flushed);
        self = self.again()?;
        let after = self.sum();
        check::holds(
            "it is as before",
            before.is_some() && before == after,
            format_args!("{before:x?}, then {after:x?}"),
        );
        Some(self)
    }

    /// A number that is another one if a byte changes.
    fn sum(&mut self) -> Option<u64> {
        let mut sum = 0u64;
        for sector in 0..self.sectors {
            self.one((sector, SECTOR, false), 0).ok()?;
            let data = &self.disk.data(0)[..SECTOR];
            for byte in data {
                sum = (sum ^ u64::from(*byte))
                    .wrapping_mul(0x100_0000_01b3)
                    .wrapping_add(1);
            }
        }
        Some(sum)
    }

    /// Sleeps until a request is finished; gives up after [`PATIENCE`].
    fn wait(&mut self) -> bool {
        let end = timer::now() + timer::frequency() * PATIENCE;
        let mut late = false;
        timer::arm(end);
        while !self.disk.has_finished() && !late {
            sysreg::wfi();
            let taken = gic::acknowledge();
            if taken.is_none() {
                continue;
            }
            match taken.intid() {
                intid if intid == self.disk.intid() => {
                    self.interrupts += 1;
                    self.disk.acknowledge();
                }
                timer::INTID => {
                    timer::disarm();
                    late = true;
                }
                _ => self.foreign += 1,
            }
            gic::end(taken);
        }
        timer::disarm();
        let finished = self.disk.has_finished();
        self.lost += u64::from(finished && late);
        finished
    }
}

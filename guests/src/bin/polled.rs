//! Claim: a control loop has a network and a disk that are polled, by stock drivers and without an exit: frames come and go, and sectors
//! keep what was written, while it runs.
//!
//! In each of `periods=` periods of 1 kHz it takes the frames that have come, sends one to all, and has a request to its disk, if it has
//! one: it writes some sectors and reads them again. It takes no interrupt but its timer's. Frames are numbered: of those from one sender
//! each has to come once, in order and unaltered, from the first that is heard to the last. Before the first period it waits until its
//! driver has been told that nobody is to be notified, and `peers=` others have been heard. With `strict=1` no period may be lost.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::read32;
use bulkhead_guests::periods::Periods;
use bulkhead_guests::virtio::disk::{Disk, SECTOR};
use bulkhead_guests::virtio::net::{LONGEST, Net};
use bulkhead_guests::{Board, check, gic, guest, println, sysreg, timer, virtio};
use virtio_drivers::transport::DeviceType;

guest!(main = main, irq = on_irq);

/// Microseconds.
const PERIOD: u64 = 1000;
/// Milliseconds until the devices have to work, and between two frames until then.
const PATIENCE: u64 = 5000;
const CALL: u64 = 2;
/// Most senders of frames.
const PEERS: usize = 4;
/// Ethernet: for experiments (IEEE 802, 9.2.3).
const TYPE: [u8; 2] = [0x88, 0xb5];
/// Where a frame has its number, and where what is made of it begins.
const NUMBER: usize = 16;
const FILLING: usize = 24;
const SHORTEST: usize = 64;
/// Sizes of frames; from one frame to the next the size grows by [`STEP`] around them, which have no divisor in common.
const SIZES: u64 = ((LONGEST - SHORTEST) / 8 + 1) as u64;
const STEP: u64 = 55;
/// InterruptStatus (VIRTIO 1.2, 4.2.2), and its bit for used buffers.
const INTERRUPT_STATUS: usize = 0x60;
const USED: u32 = 1;
/// Sectors of a request, and requests until it begins anew.
const RUN: u64 = 2;
const RUNS: u64 = 64;

static PERIODS: Periods = Periods::new(PERIOD);

/// Who sends frames.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    mac: [u8; 6],
    next: u64,
}

struct Station {
    net: Net,
    mac: [u8; 6],
    peers: [Peer; PEERS],
    known: usize,
    sent: u64,
    received: u64,
    altered: u64,
    /// Frames that came doubled, or when an earlier one had not come.
    misplaced: u64,
    /// Frames for which there was no place.
    unsent: u64,
}

/// A disk in use: number of requests that have begun. An even one writes, and the next one reads the same.
struct Store {
    disk: Disk,
    begun: u64,
    done: u64,
    failed: u64,
    altered: u64,
}

fn main(board: &'static Board) {
    // Both before one is driven: who looks what a device is resets it.
    let disk = virtio::devices(board, DeviceType::Block).next();
    let Some(card) = virtio::devices(board, DeviceType::Network).next() else {
        return println!("FAIL polled: there is no network");
    };
    let Some(net) = Net::new(card) else {
        return println!("FAIL polled: the network cannot be driven");
    };
    let mut store = disk.and_then(Disk::new).map(Store::new);
    check::holds(
        "the disk is driven",
        disk.is_some() == store.is_some(),
        "no",
    );
    let argument = |name, usual| board.argument(name).unwrap_or(usual);
    let (periods, peers) = (argument("periods", 2000), argument("peers", 1) as usize);
    let mut station = Station::new(net);
    begin(&mut station, store.as_mut(), peers);
    println!("polled: {:02x?} begins", station.mac);
    gic::init();
    gic::enable(timer::INTID);
    PERIODS.begin();
    sysreg::irq_on();
    // Fewer than periods, where one lasts longer than a period: QEMU's CPUs share the instruction clock.
    let (mut before, mut passes) = (0, 0);
    while before < periods {
        sysreg::wfi();
        let seen = PERIODS.seen();
        if seen == before {
            continue;
        }
        before = seen;
        passes += 1;
        station.take_all();
        station.send();
        if let Some(store) = &mut store {
            store.go_on();
        }
    }
    sysreg::irq_off();
    timer::disarm();
    for device in [Some(card), disk].into_iter().flatten() {
        // A driver that looks by itself has nothing to acknowledge, which would be an exit.
        let used = read32(device.base + INTERRUPT_STATUS) & USED;
        let is_polled = device.intid == 0;
        check::holds("used buffers in the status", !is_polled || used == 0, used);
    }
    let strict = board.argument("strict").is_some();
    let least = if strict {
        periods / 10 * 9
    } else {
        periods / 2
    };
    check::holds("passes", passes >= least, passes);
    check::holds("frames sent", station.sent >= passes, station.sent);
    report(&station, store.as_ref(), (periods, peers), strict);
}

/// Until the devices are at work and the others are heard.
fn begin(station: &mut Station, mut store: Option<&mut Store>, peers: usize) {
    let end = timer::now() + timer::ticks(PATIENCE * 1000);
    let mut call = 0;
    let has_begun = |store: &Option<&mut Store>| store.as_ref().is_none_or(|store| store.done > 1);
    while timer::now() < end && !(station.known >= peers && has_begun(&store)) {
        station.take_all();
        if timer::now() >= call {
            call = timer::now() + timer::ticks(CALL * 1000);
            station.send();
        }
        if let Some(store) = &mut store {
            store.go_on();
        }
    }
}

/// Fills frames and sectors, word by word.
fn fill(data: &mut [u8], number: u64) {
    for (index, word) in (0..).zip(data.chunks_exact_mut(8)) {
        word.copy_from_slice(&word_of(number, index).to_le_bytes());
    }
}

fn is_filled(data: &[u8], number: u64) -> bool {
    let mut words = (0..).zip(data.chunks_exact(8));
    words.all(|(index, word)| *word == word_of(number, index).to_le_bytes())
}

fn word_of(number: u64, index: u64) -> u64 {
    (number << 16 | index)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Bytes of a frame: whole words behind its number.
fn size(number: u64) -> usize {
    SHORTEST + 8 * (number * STEP % SIZES) as usize
}

impl Station {
    fn new(net: Net) -> Self {
        Self {
            mac: net.mac(),
            net,
            peers: [Peer::default(); PEERS],
            known: 0,
            sent: 0,
            received: 0,
            altered: 0,
            misplaced: 0,
            unsent: 0,
        }
    }

    fn send(&mut self) {
        let (mac, number) = (self.mac, self.sent);
        let sent = self.net.send(size(number), |frame| {
            frame[..6].fill(0xff);
            frame[6..12].copy_from_slice(&mac);
            frame[12..14].copy_from_slice(&TYPE);
            frame[NUMBER..FILLING].copy_from_slice(&number.to_le_bytes());
            fill(&mut frame[FILLING..], number);
        });
        self.sent += u64::from(sent);
        self.unsent += u64::from(!sent);
    }

    fn take_all(&mut self) {
        let mut frame = [0; LONGEST];
        while let Some(bytes) = self.net.receive(&mut frame) {
            self.take(&frame[..bytes]);
        }
    }

    fn take(&mut self, frame: &[u8]) {
        let number = frame.get(NUMBER..FILLING).and_then(|it| it.try_into().ok());
        let number = number.map_or(u64::MAX, u64::from_le_bytes);
        let is_whole = number < u64::MAX / STEP
            && frame.len() == size(number)
            && is_filled(&frame[FILLING..], number);
        if !is_whole {
            self.altered += 1;
            return;
        }
        self.received += 1;
        let from = &frame[6..12];
        let known = &mut self.peers[..self.known];
        if let Some(peer) = known.iter_mut().find(|peer| peer.mac == from) {
            self.misplaced += u64::from(peer.next != number);
            peer.next = number + 1;
        } else if let Some(peer) = self.peers.get_mut(self.known) {
            peer.mac.copy_from_slice(from);
            peer.next = number + 1;
            self.known += 1;
        }
    }
}

impl Store {
    fn new(disk: Disk) -> Self {
        Self {
            disk,
            begun: 0,
            done: 0,
            failed: 0,
            altered: 0,
        }
    }

    /// Takes back the request that is in flight if it is finished, and begins the next one.
    fn go_on(&mut self) {
        if self.begun > self.done {
            let Some((place, result)) = self.disk.finish() else {
                return;
            };
            self.failed += u64::from(result.is_err());
            let number = self.done;
            self.done += 1;
            if number % 2 == 1 && result.is_ok() {
                let same = is_filled(&self.disk.data(place)[..RUN as usize * SECTOR], number / 2);
                self.altered += u64::from(!same);
            }
        }
        let Some(place) = self.disk.free() else {
            return;
        };
        let (number, bytes) = (self.begun / 2, RUN as usize * SECTOR);
        let sector = number % RUNS * RUN;
        let data = &mut self.disk.data(place)[..bytes];
        let result = if self.begun.is_multiple_of(2) {
            fill(data, number);
            self.disk.begin_write(place, sector, RUN as usize * SECTOR)
        } else {
            data.fill(0);
            self.disk.begin_read(place, sector, RUN as usize * SECTOR)
        };
        match result {
            Ok(()) => self.begun += 1,
            Err(_) => self.failed += 1,
        }
    }
}

fn report(station: &Station, store: Option<&Store>, (periods, peers): (u64, usize), strict: bool) {
    let (sent, received) = (station.sent, station.received);
    let lost = PERIODS.lost();
    println!("polled: sent={sent} received={received} lost={lost}");
    check::equal("others heard", station.known as u64, peers as u64);
    check::equal("frames without a place", station.unsent, 0);
    // Another one may begin later, and end sooner.
    check::holds(
        "frames received",
        received >= periods / 2 * peers as u64,
        received,
    );
    check::equal("altered frames", station.altered, 0);
    check::equal("misplaced frames", station.misplaced, 0);
    check::equal("broken", station.net.broken(), 0);
    if let Some(store) = store {
        println!("polled: {} requests to the disk", store.done);
        check::holds(
            "requests to the disk",
            store.done >= periods / 10,
            store.done,
        );
        check::equal("requests that failed", store.failed, 0);
        check::equal("sectors that were altered", store.altered, 0);
    }
    if strict {
        check::equal("lost periods", lost, 0);
    }
    check::done();
}

/// A period begins.
fn on_irq(entered: u64) {
    PERIODS.on_irq(entered);
}

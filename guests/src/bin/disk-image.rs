//! Claim: a disk whose content is an image holds that image with zeros behind it, and what is written to it stays its own.
//!
//! The image of each of its disks is the file `LICENSE`, which is also in this program. The first disk can be written, the second
//! cannot. It reads both, is refused what cannot be done, writes some sectors of the first in the middle of blocks and at its end,
//! and prints `disk-image: written`. Then somebody may start again what serves the disks: it looks `reads=` times whether each byte is the one
//! that it has to be. In its second life it finds what the first one wrote: with `lives=2` it resets itself once.
#![no_std]
#![no_main]

use bulkhead_guests::virtio;
use bulkhead_guests::virtio::disk::{Disk, SECTOR};
use bulkhead_guests::{Board, check, gic, guest, println, sysreg, timer};
use virtio_drivers::Result;
use virtio_drivers::transport::DeviceType;

guest!(main = main);

static IMAGE: &[u8] = include_bytes!("../../../LICENSE");

/// Seconds without an answer after which there will be none.
const PATIENCE: u64 = 5;
/// Sectors that are written: alone in a block, the first of one and the last, two at the end of the image.
const WRITTEN: [u64; 4] = [3, 8, 15, 20];

fn main(board: &'static Board) {
    gic::init();
    gic::enable(timer::INTID);
    let mut disks = virtio::listen(board, DeviceType::Block).map(Disk::new);
    let (Some(Some(own)), Some(Some(read))) = (disks.next(), disks.next()) else {
        return println!("FAIL disk-image: there are not two");
    };
    let mut disks = Disks([own, read]);
    let image = (IMAGE.len() as u64).div_ceil(SECTOR as u64);
    check::equal(
        "sectors of the first",
        disks.capacity(OWN),
        board.argument("sectors").unwrap_or(image),
    );
    check::equal("sectors of the second", disks.capacity(READ), image);
    check::holds(
        "the first can be written",
        !disks.0[OWN].is_read_only(),
        "it cannot",
    );
    check::holds(
        "the second cannot be written",
        disks.0[READ].is_read_only(),
        "it can",
    );

    let first = disks.is_first_life();
    println!(
        "disk-image: {} life",
        if first { "first" } else { "another" }
    );
    check::equal(
        "sectors of the first disk that are wrong",
        disks.wrong(OWN, !first),
        0,
    );
    check::equal(
        "sectors of the second disk that are wrong",
        disks.wrong(READ, false),
        0,
    );

    let last = disks.capacity(OWN) - 1;
    check::holds(
        "the last sector",
        disks.read(OWN, last).is_ok(),
        "cannot be read",
    );
    check::holds(
        "behind the last sector",
        disks.read(OWN, last + 1).is_err(),
        "can be read",
    );
    check::holds(
        "written behind the last",
        disks.write(OWN, last + 1).is_err(),
        "was taken",
    );
    check::holds(
        "written to the second",
        disks.write(READ, 0).is_err(),
        "was taken",
    );
    check::holds(
        "its last, too",
        disks.write(READ, image - 1).is_err(),
        "was taken",
    );

    for sector in WRITTEN.into_iter().chain([last]) {
        check::report(format_args!("written: {sector}"), disks.write(OWN, sector));
    }
    println!("disk-image: written");
    let mut wrong = 0;
    for _ in 0..board.argument("reads").unwrap_or(1) {
        wrong += disks.wrong(OWN, true) + disks.wrong(READ, false);
    }
    check::equal("sectors that were wrong behind that", wrong, 0);
    check::holds(
        "the second can still not be written",
        disks.write(READ, 0).is_err(),
        "it can",
    );
    if first && board.argument("lives") == Some(2) {
        bulkhead_guests::power::reset();
    }
    check::done();
}

/// The disks.
struct Disks([Disk; 2]);

/// The one that can be written, and the other.
const OWN: usize = 0;
const READ: usize = 1;

impl Disks {
    /// What a sector of the image has at a place.
    fn of_image(sector: u64, at: usize) -> u8 {
        let at = sector as usize * SECTOR + at;
        IMAGE.get(at).copied().unwrap_or(0)
    }

    /// What is written to a sector.
    fn of_write(sector: u64, at: usize) -> u8 {
        (sector as usize * 31 + at * 7 + 1) as u8
    }

    fn capacity(&self, disk: usize) -> u64 {
        self.0[disk].capacity()
    }

    fn is_first_life(&mut self) -> bool {
        let sector = WRITTEN[0];
        self.read(OWN, sector).is_ok() && self.0[OWN].data(0)[0] == Self::of_image(sector, 0)
    }

    /// Number of sectors that are not as they have to be, after what is written or before.
    fn wrong(&mut self, disk: usize, written: bool) -> u64 {
        let last = self.capacity(disk) - 1;
        let mut wrong = 0;
        for sector in 0..=last {
            let changed = written && (WRITTEN.contains(&sector) || sector == last);
            let byte = if changed {
                Self::of_write
            } else {
                Self::of_image
            };
            let came = self.read(disk, sector).is_ok();
            let mut bytes = self.0[disk].data(0)[..SECTOR].iter().enumerate();
            let same = came && bytes.all(|(at, seen)| *seen == byte(sector, at));
            if !same {
                println!("disk-image: sector {sector} of disk {disk} is wrong");
            }
            wrong += u64::from(!same);
        }
        wrong
    }

    fn read(&mut self, number: usize, sector: u64) -> Result {
        let disk = &mut self.0[number];
        disk.data(0)[..SECTOR].fill(0x5a);
        disk.begin_read(0, sector, SECTOR)?;
        self.finish(number)
    }

    fn write(&mut self, number: usize, sector: u64) -> Result {
        let disk = &mut self.0[number];
        for (at, byte) in disk.data(0)[..SECTOR].iter_mut().enumerate() {
            *byte = Self::of_write(sector, at);
        }
        disk.begin_write(0, sector, SECTOR)?;
        self.finish(number)
    }

    /// Sleeps until the request of a disk is finished; gives up after [`PATIENCE`].
    fn finish(&mut self, number: usize) -> Result {
        let end = timer::now() + timer::frequency() * PATIENCE;
        timer::arm(end);
        while !self.0[number].has_finished() && timer::now() < end {
            sysreg::wfi();
            let taken = gic::acknowledge();
            if taken.is_none() {
                continue;
            }
            // The other one is interrupted, too, when what serves both starts again.
            for disk in &mut self.0 {
                if disk.intid() == taken.intid() {
                    disk.acknowledge();
                }
            }
            if taken.intid() == timer::INTID {
                timer::disarm();
            }
            gic::end(taken);
        }
        timer::disarm();
        match self.0[number].finish() {
            Some((0, result)) => result,
            _ => Err(virtio_drivers::Error::NotReady),
        }
    }
}

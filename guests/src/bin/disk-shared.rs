//! Claim: two VMs with one disk see what the other one has written, and only that.
//!
//! They take turns: each writes its next number to sectors of its own (`own=`), and looks at those of the other one (`other=`) until that has answered. Every
//! word of the sectors says whose and which it is.
#![no_std]
#![no_main]

use bulkhead_guests::virtio::disk::{Disk, SECTOR};
use bulkhead_guests::{Board, check, guest, println, timer, virtio};
use virtio_drivers::transport::DeviceType;

guest!(main = main);

/// Sectors of a message.
const RUN: usize = 3;
/// Turns, if nothing is said.
const TURNS: u64 = 200;
/// How long the other one may take for an answer, in seconds.
const PATIENCE: u64 = 20;

fn main(board: &'static Board) {
    let Some(device) = virtio::devices(board, DeviceType::Block).next() else {
        return println!("FAIL disk-shared: there is no disk");
    };
    let Some(mut disk) = Disk::new(device) else {
        return println!("FAIL disk-shared: the disk cannot be driven");
    };
    let own = board.argument("own").unwrap_or(0);
    let other = board.argument("other").unwrap_or(8);
    let turns = board.argument("turns").unwrap_or(TURNS);
    let begins = own < other;
    let (mut said, mut mixed) = (0, 0);
    while said < turns {
        // Who begins has nothing to answer to.
        if said != 0 || !begins {
            let wanted = if begins { said } else { said + 1 };
            match hear(&mut disk, other, wanted) {
                Some(halves) => mixed += halves,
                None => {
                    println!("FAIL disk-shared: nothing has come after turn {said}");
                    return;
                }
            }
        }
        said += 1;
        if !write(&mut disk, own, said) {
            return println!("FAIL disk-shared: message {said} cannot be written");
        }
        if said * 2 == turns {
            println!("disk-shared: half of the turns");
        }
    }
    // Who began has not seen the last answer.
    check::holds(
        "last answer",
        !begins || hear(&mut disk, other, said).is_some(),
        "none",
    );
    check::equal("turns", said, turns);
    println!("disk-shared: {mixed} looks at a message that was there in parts");
    check::done();
}

fn word(place: u64, number: u64, index: u64) -> u64 {
    (number << 32 | place << 8 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn write(disk: &mut Disk, place: u64, number: u64) -> bool {
    let buffer = disk.free().expect("nothing is under way");
    let data = &mut disk.data(buffer)[..RUN * SECTOR];
    for (index, bytes) in (0..).zip(data.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word(place, number, index).to_le_bytes());
    }
    let begun = disk.begin_write(buffer, place, RUN * SECTOR);
    begun.is_ok() && finished(disk)
}

/// Looks until the message with this number is there. Returns how often it was there in parts.
fn hear(disk: &mut Disk, place: u64, number: u64) -> Option<u64> {
    let end = timer::now() + timer::ticks(PATIENCE * 1_000_000);
    let mut halves = 0;
    while timer::now() < end {
        let buffer = disk.free().expect("nothing is under way");
        let begun = disk.begin_read(buffer, place, RUN * SECTOR);
        if begun.is_err() || !finished(disk) {
            return None;
        }
        let data = &disk.data(buffer)[..RUN * SECTOR];
        let whole = |number| {
            (0..)
                .zip(data.chunks_exact(8))
                .filter(|(index, bytes)| *bytes == word(place, number, *index).to_le_bytes())
                .count()
        };
        let (new, old) = (whole(number), whole(number - 1));
        let words = RUN * SECTOR / 8;
        if new == words {
            return Some(halves);
        }
        halves += u64::from(new != 0);
        let zeros = data.chunks_exact(8).filter(|bytes| **bytes == [0; 8]);
        // Nobody else writes there: what is not this message is the one before it, or nothing before the first one.
        let before = if number == 1 { zeros.count() } else { old };
        if new + before != words {
            println!("FAIL disk-shared: message {number} is neither new nor old");
            return None;
        }
    }
    None
}

/// Waits for the one request that is under way, and looks by itself: the interrupt is not enabled.
fn finished(disk: &mut Disk) -> bool {
    let end = timer::now() + timer::ticks(PATIENCE * 1_000_000);
    while timer::now() < end {
        if let Some((_, result)) = disk.finish() {
            disk.acknowledge();
            return result.is_ok();
        }
        core::hint::spin_loop();
    }
    false
}

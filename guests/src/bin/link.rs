//! Claim: the link of a network goes down when what serves it ends, and up when that is back, and the driver is told each time.
//!
//! It waits until the link is up, and `times=` times until it has gone down and up again. Each change comes with another
//! generation of the config and with an interrupt that says so.
#![no_std]
#![no_main]

use bulkhead_guests::board::Device;
use bulkhead_guests::mmio::read32;
use bulkhead_guests::virtio::net::Net;
use bulkhead_guests::{Board, check, gic, guest, println, sysreg, virtio};
use virtio_drivers::transport::DeviceType;

guest!(main = main);

/// Registers of a device (VIRTIO 1.2, 4.2.2): InterruptStatus with its bit for the config, ConfigGeneration, and the word of a network's
/// config of which the upper half is its status.
const INTERRUPT_STATUS: usize = 0x60;
const CHANGED: u32 = 2;
const GENERATION: usize = 0xfc;
const LINK: usize = 0x104;
const UP: u32 = 1 << 16;

fn main(board: &'static Board) {
    gic::init();
    let Some(device) = virtio::listen(board, DeviceType::Network).next() else {
        return println!("FAIL link: there is no network");
    };
    let generation = read32(device.base + GENERATION);
    let Some(net) = Net::new(device) else {
        return println!("FAIL link: the network cannot be driven");
    };
    let mut watch = Watch {
        device,
        net,
        generation,
        of_nobody: 0,
    };
    if !watch.is_up() {
        println!("link: down, 0");
        watch.until(true, 0);
    }
    for time in 1..=board.argument("times").unwrap_or(1) {
        println!("link: up, {time}");
        watch.until(false, time);
        println!("link: down, {time}");
        watch.until(true, time);
    }
    check::equal("interrupts of nobody", watch.of_nobody, 0);
    check::done();
}

struct Watch {
    device: Device,
    net: Net,
    generation: u32,
    of_nobody: u64,
}

impl Watch {
    fn is_up(&self) -> bool {
        read32(self.device.base + LINK) & UP != 0
    }

    /// Sleeps until the link is up, or down, and this was told.
    fn until(&mut self, up: bool, time: u64) {
        let mut told = 0;
        while told == 0 || self.is_up() != up {
            sysreg::wfi();
            let taken = gic::acknowledge();
            if taken.is_none() {
                continue;
            }
            if taken.intid() == self.device.intid {
                told += u64::from(read32(self.device.base + INTERRUPT_STATUS) & CHANGED != 0);
                self.net.acknowledge();
            } else {
                self.of_nobody += 1;
            }
            gic::end(taken);
        }
        let before =
            core::mem::replace(&mut self.generation, read32(self.device.base + GENERATION));
        let what = if up { "up" } else { "down" };
        check::holds(
            format_args!("{time}: another generation when it is {what}"),
            before != self.generation,
            "the same",
        );
    }
}

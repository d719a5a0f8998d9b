//! The network card as smoltcp has it.

use bulkhead_guests::virtio::net::{LONGEST, Net};
use bulkhead_guests::{gic, sysreg, timer};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// The card, with the frame that has come last.
pub struct Wire {
    /// The card.
    pub net: Net,
    /// Interrupts that are of neither card nor timer.
    pub of_nobody: u64,
    frame: [u8; LONGEST],
}

/// A frame that has come.
pub struct Received<'a>(&'a [u8]);

/// A place for a frame that goes out.
pub struct Place<'a>(&'a mut Net);

impl Wire {
    /// Nothing has come yet.
    pub fn new(net: Net) -> Self {
        Self {
            net,
            of_nobody: 0,
            frame: [0; LONGEST],
        }
    }

    /// Sleeps until a frame has come, or for so long.
    pub fn sleep(&mut self, ms: u64) {
        timer::arm(timer::now() + timer::ticks(ms * 1000));
        loop {
            sysreg::wfi();
            let taken = gic::acknowledge();
            if taken.is_none() {
                continue;
            }
            match taken.intid() {
                intid if intid == self.net.intid() => {
                    self.net.acknowledge();
                }
                timer::INTID => timer::disarm(),
                _ => self.of_nobody += 1,
            }
            gic::end(taken);
            break;
        }
        timer::disarm();
    }
}

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

impl TxToken for Place<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, bytes: usize, fill: F) -> R {
        let mut done = None;
        self.0.send(bytes, |frame| done = Some(fill(frame)));
        // Tokens are made when there is a place, and nobody else takes it.
        done.expect("a place for the frame")
    }
}

impl Device for Wire {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Place<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Place<'_>)> {
        // The stack answers a frame at once, for which there has to be a place.
        if !self.net.can_send() {
            return None;
        }
        let bytes = self.net.receive(&mut self.frame)?;
        Some((Received(&self.frame[..bytes]), Place(&mut self.net)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Place<'_>> {
        self.net.can_send().then_some(Place(&mut self.net))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut all = DeviceCapabilities::default();
        all.medium = Medium::Ethernet;
        all.max_transmission_unit = LONGEST;
        all
    }
}

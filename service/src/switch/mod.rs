//! An Ethernet switch between virtio-net devices.
//!
//! **Ports.** A port is a device of a guest, with one address and one VLAN, both of the plan:
//!
//! * Frames with another source address are dropped. So the switch knows where each guest is
//!   without learning it, and an address that is in no plan is not behind such a port.
//! * An *uplink* is the port of a guest that passes frames on for others: a bridge to a physical
//!   network. It may use any source address but those of other ports. Addresses behind uplinks are
//!   learned and age; until then an address stays with the uplink at which it was seen.
//! * Frames with VLAN tags are dropped, and none are made. A guest in several VLANs has a port in
//!   each: that is what an integrator can read in a description and what a guest cannot change,
//!   which trunks and lists of allowed tags are not.
//!
//! **Where a frame goes**, within its VLAN and never back: to the port of its destination; to the
//! uplink where that was seen; else to all uplinks, the only ports that can know it. Groups and
//! broadcasts go to all ports.
//!
//! **Offloads** are none: no VIRTIO_NET_F_CSUM, GUEST_CSUM or segments. Whether the receiver takes
//! a frame without a checksum is known when its driver has negotiated, but what the sender's device
//! offers is the plan's; so the switch would have to complete checksums for receivers that do not,
//! and to believe `csum_start` of one guest or pass it on to another. Headers are made anew.
//!
//! A port without buffers loses its own frames. Nothing waits here.
//!
//! Features: MTU, MAC, MRG_RXBUF, STATUS, and those of the transport.

mod counters;
mod frame;
mod link;
mod stations;

use arrayvec::ArrayVec;

pub(crate) use counters::COUNTERS;
pub use counters::{Counters, Lost, Refused, Traffic};
pub use frame::{ETHERNET, HEADER, Mac};
pub use stations::STATIONS;

use crate::bits::bits;
use crate::counts::Tally;
use crate::memory::Memory;
use crate::queue::{Broken, Chain};
use crate::session::Live;
use frame::Frame;
use link::Link;
use stations::Stations;

/// VIRTIO_NET_F_MTU: the config says the MTU.
pub const MTU: u64 = 1 << 3;
/// VIRTIO_NET_F_MAC: the config says the address.
pub const MAC: u64 = 1 << 5;
/// VIRTIO_NET_F_STATUS: the config says whether the link is up.
pub const STATUS: u64 = 1 << 16;
/// Features of virtio-net that a port can serve.
pub const FEATURES: u64 = MTU | MAC | link::MRG_RXBUF | STATUS;

/// Most ports of a switch: a set of ports is a word.
pub const MOST_PORTS: usize = 64;

/// What the plan says of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// Its guest's address.
    pub mac: Mac,
    /// Its VLAN.
    pub vlan: u16,
    /// Most bytes behind the Ethernet header.
    pub mtu: u16,
    /// Whether its guest passes frames on for others.
    pub uplink: bool,
}

/// Why there is no such switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// More ports than the switch has places for.
    Ports,
    /// Two ports have one address, or a port has the address of a group.
    Address,
}

#[derive(Debug)]
struct Port<M> {
    plan: PortPlan,
    link: Option<Link<M>>,
    tally: Tally<COUNTERS>,
    /// The other ports in its VLAN.
    peers: u64,
}

/// What came of serving a port. Sets of ports have a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Whether there may be more frames.
    pub more: bool,
    /// Ports of which EL2 is to be told.
    pub ring: u64,
    /// Ports whose rings are broken. They are down now.
    pub broken: u64,
    /// Ports whose counters may be others now.
    pub touched: u64,
}

/// A switch with at most `PORTS` ports.
#[derive(Debug)]
pub struct Switch<M, const PORTS: usize> {
    ports: ArrayVec<Port<M>, PORTS>,
    uplinks: u64,
    stations: Stations,
}

impl<M: Memory, const PORTS: usize> Switch<M, PORTS> {
    /// A switch whose ports are all down. An address behind an uplink is forgotten when it was not
    /// seen for `age` ticks.
    pub fn new(plans: &[PortPlan], age: u64) -> Result<Self, PlanError> {
        let mut switch = Self {
            ports: ArrayVec::new(),
            uplinks: 0,
            stations: Stations::new(age),
        };
        for (number, plan) in plans.iter().enumerate().take(MOST_PORTS) {
            let port = Port {
                plan: *plan,
                link: None,
                tally: Tally::new([0; COUNTERS]),
                peers: peers(plans, number),
            };
            let known = switch.ports.iter().any(|other| other.plan.mac == plan.mac);
            if known || plan.mac.is_group() {
                return Err(PlanError::Address);
            }
            switch.uplinks |= u64::from(plan.uplink) << number;
            switch.ports.try_push(port).map_err(|_| PlanError::Ports)?;
        }
        if plans.len() > switch.ports.len() {
            return Err(PlanError::Ports);
        }
        Ok(switch)
    }

    /// What the plan says of a port.
    pub fn plan(&self, port: usize) -> Option<&PortPlan> {
        self.ports.get(port).map(|port| &port.plan)
    }

    /// What has become of the frames of a port.
    pub fn counters(&self, port: usize) -> Option<Counters> {
        let port = self.ports.get(port)?;
        Some(Counters::from_words(port.tally.words()))
    }

    /// The counters of a port, to be kept, or to go on with those of an earlier life of this program.
    pub(crate) fn tally(&mut self, port: usize) -> Option<&mut Tally<COUNTERS>> {
        self.ports.get_mut(port).map(|port| &mut port.tally)
    }

    /// A guest uses the port's device from now on.
    pub fn up(&mut self, port: usize, memory: M, live: Live) {
        if let Some(port) = self.ports.get_mut(port) {
            port.link = Some(Link::new(memory, live));
        }
    }

    /// Lets go of the port's queues and window.
    pub fn down(&mut self, port: usize) {
        if let Some(port) = self.ports.get_mut(port) {
            port.link = None;
        }
    }

    /// Asks to be told of the port's next frame. Returns whether there is one already.
    ///
    /// Of new buffers for the guest's frames nobody needs to tell: who has none loses the frame.
    pub fn arm(&self, port: usize) -> Result<bool, Broken> {
        let link = self.ports.get(port).and_then(|port| port.link.as_ref());
        let Some((memory, queue)) =
            link.and_then(|link| Some((&link.memory, link.transmit.as_ref()?)))
        else {
            return Ok(false);
        };
        queue.arm(memory)
    }

    /// Takes frames of a port's guest to where they go. Ends when there are none left, or when
    /// `quota` are taken or delivered: who sends to many has fewer turns.
    pub fn serve(&mut self, port: usize, quota: u32, now: u64) -> Served {
        let mut served = Served::default();
        let mut touched = bit(port);
        let mut work = 0;
        loop {
            served.more = work >= quota;
            if served.more {
                break;
            }
            match self.take(port, now, &mut served) {
                Ok(Some(targets)) => {
                    touched |= targets;
                    work += 1 + targets.count_ones();
                }
                Ok(None) => break,
                Err(Broken) => {
                    self.break_off(port, &mut served);
                    break;
                }
            }
        }
        self.publish(touched, &mut served);
        served.touched = touched;
        served
    }

    /// Takes one frame to where it goes, and returns which ports that were.
    fn take(&mut self, from: usize, now: u64, served: &mut Served) -> Result<Option<u64>, Broken> {
        let Some(link) = self.link(from) else {
            return Ok(None);
        };
        let memory = link.memory.clone();
        let Some(queue) = &mut link.transmit else {
            return Ok(None);
        };
        let Some(chain) = queue.take(&memory)? else {
            return Ok(None);
        };
        let targets = self.forward(from, &memory, &chain, now, served)?;
        if let Some(queue) = self.link(from).and_then(|link| link.transmit.as_mut()) {
            queue.give_back(&memory, &chain, 0)?;
        }
        Ok(Some(targets))
    }

    fn forward(
        &mut self,
        from: usize,
        memory: &M,
        chain: &Chain,
        now: u64,
        served: &mut Served,
    ) -> Result<u64, Broken> {
        let Some(port) = self.ports.get_mut(from) else {
            return Ok(0);
        };
        let longest = u32::from(port.plan.mtu) + ETHERNET;
        port.tally.sent(frame::length(chain));
        let routed = match frame::read(memory, chain, longest)? {
            Ok(frame) => self.route(from, &frame, now).map(|to| (frame, to)),
            Err(why) => Err(why),
        };
        match routed {
            Ok((frame, targets)) => {
                for target in bits(targets) {
                    self.deliver(target, memory, &frame, served);
                }
                Ok(targets)
            }
            Err(why) => {
                if let Some(port) = self.ports.get_mut(from) {
                    port.tally.refuse(why);
                }
                Ok(0)
            }
        }
    }

    /// The ports to which a frame goes: at least one, and not where it comes from.
    fn route(&mut self, from: usize, frame: &Frame, now: u64) -> Result<u64, Refused> {
        let port = self.ports.get(from).ok_or(Refused::Nowhere)?;
        let (plan, peers) = (port.plan, port.peers);
        if frame.source != plan.mac {
            let foreign = self.port_of(frame.source).is_some();
            if !plan.uplink || foreign || frame.source.is_group() {
                return Err(Refused::Source);
            }
            self.stations
                .learn(plan.vlan, frame.source, from, now)
                .map_err(|_| Refused::Source)?;
        }
        let targets = if frame.to.is_group() {
            peers
        } else if let Some(port) = self.port_of(frame.to) {
            // In another VLAN it is nobody's.
            bit(port) & peers
        } else if let Some(port) = self.stations.find(plan.vlan, frame.to, now) {
            bit(port) & peers
        } else {
            self.uplinks & peers
        };
        (targets != 0).then_some(targets).ok_or(Refused::Nowhere)
    }

    fn port_of(&self, mac: Mac) -> Option<usize> {
        self.ports.iter().position(|port| port.plan.mac == mac)
    }

    fn deliver(&mut self, to: usize, from: &M, frame: &Frame, served: &mut Served) {
        let Some(port) = self.ports.get_mut(to) else {
            return;
        };
        let delivered = match &mut port.link {
            Some(link) => link.deliver(from, frame),
            None => Ok(Err(Lost::Down)),
        };
        match delivered {
            Ok(Ok(())) => port.tally.got(frame.bytes),
            Ok(Err(why)) => {
                port.tally.lose(why);
            }
            Err(Broken) => {
                port.tally.lose(Lost::Down);
                self.break_off(to, served);
            }
        }
    }

    fn publish(&mut self, ports: u64, served: &mut Served) {
        for port in bits(ports) {
            match self.link(port).map_or(Ok(false), Link::publish) {
                Ok(true) => served.ring |= bit(port),
                Ok(false) => {}
                Err(Broken) => self.break_off(port, served),
            }
        }
    }

    fn break_off(&mut self, port: usize, served: &mut Served) {
        served.broken |= bit(port);
        self.down(port);
    }

    fn link(&mut self, port: usize) -> Option<&mut Link<M>> {
        self.ports.get_mut(port)?.link.as_mut()
    }
}

/// The other ports in the VLAN of a port.
fn peers(plans: &[PortPlan], port: usize) -> u64 {
    let vlan = plans.get(port).map(|plan| plan.vlan);
    let others = plans.iter().enumerate().take(MOST_PORTS);
    others
        .filter(|(other, plan)| *other != port && Some(plan.vlan) == vlan)
        .fold(0, |peers, (other, _)| peers | bit(other))
}

fn bit(port: usize) -> u64 {
    u32::try_from(port)
        .ok()
        .and_then(|port| 1u64.checked_shl(port))
        .unwrap_or(0)
}

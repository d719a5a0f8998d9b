//! The control port of a virtio-console (VIRTIO 1.2, 5.3.6): its port 1, which exists for VMs that manage others. What goes through it is whole
//! messages, each in a chain of its own: a chain that the driver makes available on the port's transmit queue is a request, and an answer or an
//! event takes a chain of its receive queue. Nothing of a request is kept when it is answered, so that a manager which stops in its middle leaves
//! nothing behind.

use bulkhead_abi::control::{Message, PORT_NAME, Request, VALUES};
use zerocopy::{FromBytes, IntoBytes};

use super::device::Outcome;
use super::guest_ring::{Broken, GuestRing, Walk};
use super::memory::{Access, At, Memory, Space};
use super::queue::{Budget, DESCRIPTOR, instructions};

/// VIRTIO_CONSOLE_F_MULTIPORT.
pub const MULTIPORT: u64 = 1 << 1;
/// Queues of a console with port 0 alone: first what the guest receives, then what it sends (5.3.2).
pub const ONE: usize = 2;
/// Queues of a console with the control port: those of port 0, then those by which ports are announced, then those of port 1.
pub const WITH_CONTROL: usize = 6;
/// The config of a console with the control port (5.3.4): no size, two ports.
pub const CONFIG: [u8; 8] = [0, 0, 0, 0, 2, 0, 0, 0];

/// The control port.
const PORT: u32 = 1;
/// Most buffers of a chain that are looked at.
const BUFFERS: u32 = 4;
/// What a request takes of a slice besides its chain.
const REQUEST: u32 = instructions(600);
/// What a request and its answer take with their chains. Less is not begun with: all of it then happens in one slice.
const WHOLE: u32 = REQUEST + 4 * DESCRIPTOR;
/// What an event takes of one.
const EVENT: u32 = instructions(200);
/// Bytes of an announcement (5.3.6.2), without a name.
const HEAD: usize = 8;
/// Bytes of the longest.
const ANNOUNCEMENT: usize = HEAD + PORT_NAME.len();

/// Events of announcements (5.3.6.2).
mod event {
    /// The driver is ready, or not.
    pub(super) const DEVICE_READY: u16 = 0;
    /// There is a port.
    pub(super) const PORT_ADD: u16 = 1;
    /// The driver has the port, or could not have it.
    pub(super) const PORT_READY: u16 = 3;
    /// The port is a console.
    pub(super) const CONSOLE_PORT: u16 = 4;
    /// The port was opened or closed, on the side that says so.
    pub(super) const PORT_OPEN: u16 = 6;
    /// The name of the port.
    pub(super) const PORT_NAME: u16 = 7;
}

/// What is announced, as bits: in this order.
const SAYS: [(u32, u16); 6] = [
    (0, event::PORT_ADD),
    (PORT, event::PORT_ADD),
    (0, event::CONSOLE_PORT),
    (0, event::PORT_OPEN),
    (PORT, event::PORT_NAME),
    (PORT, event::PORT_OPEN),
];
/// The first two, when the driver is ready.
const ADDS: u8 = 0b11;
/// The second of them.
const ADDS_CONTROL: u8 = 0b10;
/// The next two, when it has port 0.
const OF_CONSOLE: u8 = 0b1100;
/// The last two, when it has the control port.
const OF_CONTROL: u8 = 0b11_0000;

/// Who answers what comes through the port.
pub trait Manager {
    /// The manager has opened the port. Everything that was before is forgotten.
    fn open(&mut self);
    /// A request of so many bytes has come, of which the first are here. Makes the answer where it is sent from. `false`: it is made later
    /// ([`Self::answer`]), and no other request comes before.
    fn request(&mut self, request: &Request, bytes: u32, to: &mut Message) -> bool;
    /// Makes the answer that was left for later, if it is there.
    fn answer(&mut self, to: &mut Message) -> bool;
    /// Makes another event, if there is one.
    fn event(&mut self, to: &mut Message) -> bool;
    /// Copies bytes that follow the message which is being sent, from this one on.
    fn copy(&mut self, from: u32, to: At, bytes: u32);
    /// Whether an answer is still to come.
    fn is_asked(&self) -> bool;
}

/// The state of the port.
#[derive(Debug, Default)]
pub struct Ports {
    /// There is a port 0.
    console: bool,
    /// What is to be announced, bits of [`SAYS`].
    says: u8,
    /// The manager has the port open.
    open: bool,
    /// There is something to be sent.
    sends: bool,
    /// What that is.
    message: Message,
}

/// The memory of the guest, and where it is.
type Guest<'a, M, S> = (&'a M, &'a S);

impl Ports {
    /// A port of which nobody knows, beside port 0 or not.
    pub const fn new(console: bool) -> Self {
        Self {
            console,
            says: 0,
            open: false,
            sends: false,
            message: Message {
                version: 0,
                kind: 0,
                number: 0,
                vm: 0,
                vcpu: 0,
                status: 0,
                data: 0,
                values: [0; VALUES],
            },
        }
    }

    /// The driver has reset the device.
    pub const fn reset(&mut self) {
        *self = Self::new(self.console);
    }

    /// Does as much as the budget allows; `rings` are those behind port 0.
    pub fn slice<M: Memory, S: Space>(
        &mut self,
        rings: &mut [Option<GuestRing>],
        (memory, space): Guest<'_, M, S>,
        manager: &mut impl Manager,
        budget: &mut Budget,
        outcome: &mut Outcome,
    ) -> Result<(), Broken> {
        let guest = (memory, space);
        let done = self.serve(rings, guest, manager, budget);
        // What was before a broken chain is good.
        for ring in rings.iter_mut().flatten() {
            outcome.used |= ring.publish(memory, space)?;
        }
        // What the next slice has to do is found by the looks below, but for what is there to be told.
        if done? && self.open && !self.sends {
            self.sends = manager.answer(&mut self.message) || manager.event(&mut self.message);
        }
        let waits = [self.says != 0, true, self.sends, self.takes(manager)];
        for (ring, waits) in rings.iter_mut().zip(waits) {
            let Some(ring) = ring else { continue };
            if waits {
                outcome.more |= ring.ask(memory, space)?;
            } else {
                ring.hush(memory, space)?;
            }
        }
        Ok(())
    }

    /// Whether a request can be taken: there is nobody to wait for.
    fn takes(&self, manager: &impl Manager) -> bool {
        self.open && !self.sends && !manager.is_asked()
    }

    /// Handles what there is, a chain at a time. `true`: the budget is spent.
    fn serve<M: Memory, S: Space>(
        &mut self,
        rings: &mut [Option<GuestRing>],
        guest: Guest<'_, M, S>,
        manager: &mut impl Manager,
        budget: &mut Budget,
    ) -> Result<bool, Broken> {
        let (memory, space) = guest;
        let [to_driver, from_driver, messages, requests] = rings else {
            return Ok(false);
        };
        // Announcements are rare: those that come meanwhile have another slice.
        loop {
            if budget.is_spent() {
                return Ok(true);
            }
            if let Some(ring) = from_driver
                && ring.has_next(memory, space)?
            {
                let mut said = [0; HEAD];
                let bytes = take(ring, guest, budget, &mut said)?;
                if bytes as usize >= HEAD {
                    self.hear(said, manager);
                }
                continue;
            }
            if self.says != 0
                && let Some(ring) = to_driver
                && ring.has_next(memory, space)?
            {
                self.say(ring, guest, budget, manager)?;
                continue;
            }
            break;
        }
        if !self.open {
            return Ok(false);
        }
        loop {
            if budget.is_spent() {
                return Ok(true);
            }
            if !self.sends {
                self.sends = manager.answer(&mut self.message) || manager.event(&mut self.message);
                budget.spend(EVENT);
            }
            if self.sends {
                if let Some(ring) = messages
                    && ring.has_next(memory, space)?
                {
                    let more = self.message.data.into();
                    put(
                        ring,
                        guest,
                        budget,
                        self.message.as_bytes(),
                        (more, manager),
                    )?;
                    self.sends = false;
                    continue;
                }
                return Ok(false);
            }
            if self.takes(manager)
                && let Some(ring) = requests
                && ring.has_next(memory, space)?
            {
                if budget.left() < WHOLE {
                    return Ok(true);
                }
                let mut request = Request::default();
                let bytes = take(ring, guest, budget, request.as_mut_bytes())?;
                budget.spend(REQUEST);
                self.sends = manager.request(&request, bytes, &mut self.message);
                continue;
            }
            return Ok(false);
        }
    }

    /// Hears an announcement of the driver.
    fn hear(&mut self, said: [u8; HEAD], manager: &mut impl Manager) {
        let [p0, p1, p2, p3, e0, e1, v0, v1] = said;
        let port = u32::from_le_bytes([p0, p1, p2, p3]);
        let (event, value) = (u16::from_le_bytes([e0, e1]), u16::from_le_bytes([v0, v1]));
        let yes = value == 1;
        match event {
            event::DEVICE_READY => {
                let adds = if self.console { ADDS } else { ADDS_CONTROL };
                self.says = if yes { adds } else { 0 };
                self.close();
            }
            event::PORT_READY if port == PORT || port == 0 && self.console => {
                let of_port = if port == PORT { OF_CONTROL } else { OF_CONSOLE };
                self.says = if yes {
                    self.says | of_port
                } else {
                    self.says & !of_port
                };
            }
            event::PORT_OPEN if port == PORT => {
                self.close();
                if yes {
                    self.open = true;
                    manager.open();
                }
            }
            _ => {}
        }
    }

    const fn close(&mut self) {
        self.open = false;
        self.sends = false;
    }

    /// Announces what is next.
    fn say<M: Memory, S: Space>(
        &mut self,
        ring: &mut GuestRing,
        guest: Guest<'_, M, S>,
        budget: &mut Budget,
        manager: &mut impl Manager,
    ) -> Result<(), Broken> {
        let bit = self.says.trailing_zeros();
        self.says &= self.says.wrapping_sub(1);
        let Some((port, event)) = SAYS.get(bit as usize) else {
            return Ok(());
        };
        let mut bytes = [0; ANNOUNCEMENT];
        let head = (port.to_le_bytes(), event.to_le_bytes(), 1u16.to_le_bytes());
        let head = head.0.iter().chain(&head.1).chain(&head.2);
        let name = PORT_NAME.as_bytes();
        for (place, byte) in bytes.iter_mut().zip(head.chain(name)) {
            *place = *byte;
        }
        let len = if *event == event::PORT_NAME {
            ANNOUNCEMENT
        } else {
            HEAD
        };
        let bytes = bytes.get(..len).unwrap_or_default();
        put(ring, guest, budget, bytes, (0, manager))
    }
}

/// Takes a chain whose bytes the device reads, and gives it back. Returns how many bytes it has, as far as they were looked at: more than `to` has
/// where it is longer.
#[inline(never)]
fn take<M: Memory, S: Space>(
    ring: &mut GuestRing,
    (memory, space): Guest<'_, M, S>,
    budget: &mut Budget,
    to: &mut [u8],
) -> Result<u32, Broken> {
    let head = ring.take(memory, space)?;
    let mut walk = Walk::new(ring, head);
    let (mut filled, mut bytes) = (0, 0u32);
    budget.look();
    for _ in 0..BUFFERS {
        budget.look();
        if !walk.go(ring, memory, space)? {
            break;
        }
        let (mut ipa, mut len) = walk.rest(Access::Read);
        bytes = bytes.saturating_add(len);
        while len != 0 && filled < to.len() {
            let (at, behind) = space.reach(ipa, Access::Read).ok_or(Broken)?;
            let rest = to.get_mut(filled..).unwrap_or_default();
            let most = rest.len().min(len as usize).min(behind as usize);
            load(memory, at, rest.get_mut(..most).unwrap_or_default());
            filled = filled.wrapping_add(most);
            ipa = ipa.wrapping_add(most as u64);
            len = len.wrapping_sub(most as u32);
        }
    }
    ring.give(head, 0, memory, space)?;
    Ok(bytes)
}

/// Takes a chain, writes bytes there, and so many more that the manager copies, and gives it back. A chain that has no room for them breaks the
/// rules of the port.
#[inline(never)]
fn put<M: Memory, S: Space>(
    ring: &mut GuestRing,
    (memory, space): Guest<'_, M, S>,
    budget: &mut Budget,
    from: &[u8],
    (more, manager): (u32, &mut impl Manager),
) -> Result<(), Broken> {
    let head = ring.take(memory, space)?;
    let mut walk = Walk::new(ring, head);
    let (mut rest, mut copied) = (from, 0);
    budget.look();
    for _ in 0..BUFFERS {
        if rest.is_empty() && copied == more {
            break;
        }
        budget.look();
        if !walk.go(ring, memory, space)? {
            break;
        }
        let (mut ipa, mut len) = walk.rest(Access::Write);
        loop {
            let left = if rest.is_empty() {
                more.wrapping_sub(copied)
            } else {
                rest.len() as u32
            };
            let most = left.min(len);
            if most == 0 {
                break;
            }
            let (at, behind) = space.reach(ipa, Access::Write).ok_or(Broken)?;
            let most = most.min(u32::try_from(behind).unwrap_or(u32::MAX));
            match rest.split_at_checked(most as usize) {
                Some((now, later)) if !rest.is_empty() => {
                    store(memory, at, now);
                    rest = later;
                }
                _ => {
                    manager.copy(copied, at, most);
                    copied = copied.wrapping_add(most);
                    budget.spend(most);
                }
            }
            ipa = ipa.wrapping_add(most.into());
            len = len.wrapping_sub(most);
        }
    }
    if !rest.is_empty() || copied != more {
        return Err(Broken);
    }
    let bytes = (from.len() as u32).wrapping_add(more);
    ring.give(head, bytes, memory, space)
}

/// Reads bytes that lie behind one another.
fn load(memory: &impl Memory, mut at: At, to: &mut [u8]) {
    // Words that lie as words do: of others each would be put together from bytes.
    let count = to.len() / 8;
    let (words, bytes) = match <[u64]>::mut_from_prefix_with_elems(to, count) {
        Ok(both) => both,
        Err(why) => (&mut [][..], why.into_src()),
    };
    for word in words {
        *word = memory.load64(at);
        at = at.plus(8);
    }
    for byte in bytes {
        *byte = memory.load8(at);
        at = at.plus(1);
    }
}

/// Writes them.
pub fn store(memory: &impl Memory, mut at: At, from: &[u8]) {
    let (words, bytes) =
        <[u64]>::ref_from_prefix_with_elems(from, from.len() / 8).unwrap_or((&[], from));
    for word in words {
        memory.store64(at, *word);
        at = at.plus(8);
    }
    for byte in bytes {
        memory.store8(at, *byte);
        at = at.plus(1);
    }
}

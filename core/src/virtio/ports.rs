//! The control port of a virtio-console (VIRTIO 1.2, 5.3.6): its port 1, which exists for VMs that manage others. What goes through it is whole
//! messages, each in a chain of its own: a chain that the driver makes available on the port's transmit queue is a request, and an answer or an
//! event takes a chain of its receive queue. Nothing of a request is kept when it is answered, so that a manager which stops in its middle leaves
//! nothing behind.

use bulkhead_abi::control::{Message, PORT_NAME, Request, VALUES};
use zerocopy::IntoBytes;

use super::device::Outcome;
use super::guest_ring::{Broken, GuestRing, Walk};
use super::memory::{Access, At, Memory, Space};
use super::queue::{Budget, DESCRIPTOR, instructions};
use super::requests::Release;
use super::transport::Transport;

/// VIRTIO_CONSOLE_F_MULTIPORT.
pub const MULTIPORT: u64 = 1 << 1;
/// Queues of a console with port 0 alone: first what the guest receives, then what it sends (5.3.2).
pub const ONE: usize = 2;
/// Queues of a console with the control port: those of port 0, then those by which ports are announced, then those of port 1.
pub const WITH_CONTROL: usize = 6;
/// Queues behind those of port 0: announcements to the driver and from it, messages, requests.
const BEHIND: usize = WITH_CONTROL - ONE;
/// The first of the queues through which messages and requests go: what the driver notifies the device of there, [`Ports::slice`] does without a
/// look at announcements.
pub const FIRST_OF_MESSAGES: u32 = 4;
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

/// Which queues a slice looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// All.
    All,
    /// Those of the control port: the driver notifies the device of announcements by themselves.
    Messages,
}

/// The state of the ports behind port 0.
#[derive(Debug, Default)]
pub struct Ports {
    /// The queues that the driver has enabled.
    rings: [Option<GuestRing>; BEHIND],
    /// The driver drives the device, and has broken no rule since.
    driven: bool,
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
            rings: [const { None }; BEHIND],
            driven: false,
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

    /// Takes over the queues that the driver has set up, because it has started the device or enabled a queue. No vCPU uses the registers meanwhile. `false`:
    /// one of them cannot be there.
    pub fn start(&mut self, transport: &Transport, space: &impl Space) -> bool {
        let queues = (ONE..WITH_CONTROL).zip(&mut self.rings);
        let taken = transport.take_over(queues, space);
        self.driven = transport.is_driven() && taken;
        taken
    }

    /// Lets go of a queue, or of all because the driver has reset the device. Nothing of the guest's memory behind them is used afterwards.
    pub fn let_go(&mut self, what: Release) {
        match what {
            Release::All => *self = Self::new(self.console),
            Release::Queue(queue) => {
                let index = usize::from(queue).wrapping_sub(ONE);
                if let Some(ring) = self.rings.get_mut(index) {
                    *ring = None;
                }
            }
        }
    }

    /// The driver has broken a rule of another queue: nothing is served before it resets the device.
    pub const fn stop(&mut self) {
        self.driven = false;
    }

    /// Whether the next event can be told: the manager listens, and nothing waits for it to read.
    pub const fn can_tell(&self) -> bool {
        self.driven && self.open && !self.sends
    }

    /// Does as much as the budget allows.
    pub fn slice<M: Memory, S: Space>(
        &mut self,
        look: Look,
        guest: Guest<'_, M, S>,
        manager: &mut impl Manager,
        budget: &mut Budget,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        if self.driven
            && self
                .serve_and_show(look, guest, manager, budget, &mut outcome)
                .is_err()
        {
            self.driven = false;
            (outcome.failed, outcome.more) = (true, false);
        }
        outcome
    }

    /// Handles what there is, and shows the driver what was done.
    fn serve_and_show<M: Memory, S: Space>(
        &mut self,
        look: Look,
        guest: Guest<'_, M, S>,
        manager: &mut impl Manager,
        budget: &mut Budget,
        outcome: &mut Outcome,
    ) -> Result<(), Broken> {
        let mut served = match look {
            Look::All => self.announce(guest, manager, budget),
            Look::Messages => Ok(false),
        };
        loop {
            if served == Ok(false) {
                served = self.serve(guest, manager, budget);
            }
            let done = self.show(look, guest, outcome).and(served)?;
            // What the next slice has to do is found by the looks below, but for what is there to be told.
            if done && self.open && !self.sends {
                self.sends = manager.answer(&mut self.message) || manager.event(&mut self.message);
            }
            let [to_driver, from_driver, ..] = &mut self.rings;
            if look == Look::All {
                outcome.more |= wait(to_driver, self.says != 0, guest)?;
                outcome.more |= wait(from_driver, true, guest)?;
            }
            let (sends, takes) = (self.sends, self.takes(manager));
            let [_, _, messages, requests] = &mut self.rings;
            let more = wait(messages, sends, guest)? | wait(requests, takes, guest)?;
            if done || !more {
                outcome.more |= more;
                return Ok(());
            }
            // It takes its part of the budget even if the driver has taken it away meanwhile.
            budget.look();
        }
    }

    /// Whether a request can be taken: there is nobody to wait for.
    fn takes(&self, manager: &impl Manager) -> bool {
        self.open && !self.sends && !manager.is_asked()
    }

    /// Shows the driver what was done. What was before a broken chain is good.
    #[inline(always)]
    fn show<M: Memory, S: Space>(
        &mut self,
        look: Look,
        (memory, space): Guest<'_, M, S>,
        outcome: &mut Outcome,
    ) -> Result<(), Broken> {
        let [to_driver, from_driver, messages, requests] = &mut self.rings;
        if let Some(ring) = messages {
            outcome.used |= ring.publish(memory, space)?;
        }
        if let Some(ring) = requests {
            outcome.used |= ring.publish(memory, space)?;
        }
        if look == Look::All {
            for ring in [to_driver, from_driver].into_iter().flatten() {
                outcome.used |= ring.publish(memory, space)?;
            }
        }
        Ok(())
    }

    /// Handles announcements, a chain at a time. `true`: the budget is spent.
    fn announce<M: Memory, S: Space>(
        &mut self,
        guest: Guest<'_, M, S>,
        manager: &mut impl Manager,
        budget: &mut Budget,
    ) -> Result<bool, Broken> {
        let (memory, space) = guest;
        loop {
            if budget.is_spent() {
                return Ok(true);
            }
            let [to_driver, from_driver, ..] = &mut self.rings;
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
                say(&mut self.says, ring, guest, budget, manager)?;
                continue;
            }
            return Ok(false);
        }
    }

    /// Handles a request, if there is one, and what is to be told, a chain at a time. `true`: the budget is spent.
    fn serve<M: Memory, S: Space>(
        &mut self,
        guest: Guest<'_, M, S>,
        manager: &mut impl Manager,
        budget: &mut Budget,
    ) -> Result<bool, Broken> {
        let (memory, space) = guest;
        if !self.open {
            return Ok(false);
        }
        let mut taken = false;
        loop {
            if budget.is_spent() {
                return Ok(true);
            }
            if !self.sends {
                self.sends = manager.answer(&mut self.message) || manager.event(&mut self.message);
                budget.spend(EVENT);
            }
            if self.sends {
                if let [_, _, Some(ring), _] = &mut self.rings
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
            // Whether there is another one is found when the driver is asked to tell of it.
            if !taken
                && self.takes(manager)
                && let [_, _, _, Some(ring)] = &mut self.rings
                && ring.has_next(memory, space)?
            {
                if budget.left() < WHOLE {
                    return Ok(true);
                }
                let mut request = Request::default();
                let bytes = take(ring, guest, budget, request.as_mut_bytes())?;
                budget.spend(REQUEST);
                self.sends = manager.request(&request, bytes, &mut self.message);
                taken = true;
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
}

/// Asks the driver to tell of the next chain of a queue, if one is waited for, or not to. `true`: it is there.
#[inline(always)]
fn wait<M: Memory, S: Space>(
    ring: &mut Option<GuestRing>,
    waits: bool,
    (memory, space): Guest<'_, M, S>,
) -> Result<bool, Broken> {
    match ring {
        Some(ring) if waits => ring.ask(memory, space),
        Some(ring) => ring.hush(memory, space).map(|()| false),
        None => Ok(false),
    }
}

/// Announces what is next of `says`.
fn say<M: Memory, S: Space>(
    says: &mut u8,
    ring: &mut GuestRing,
    guest: Guest<'_, M, S>,
    budget: &mut Budget,
    manager: &mut impl Manager,
) -> Result<(), Broken> {
    let bit = says.trailing_zeros();
    *says &= says.wrapping_sub(1);
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
    budget.look();
    budget.look();
    let bytes = match ring.only_buffer(head, Access::Read, memory, space) {
        Some((at, len)) => {
            let most = to.len().min(len as usize);
            memory.read(at, to.get_mut(..most).unwrap_or_default());
            len
        }
        None => read_along(ring, head, (memory, space), budget, to)?,
    };
    ring.give(head, 0, memory, space)?;
    Ok(bytes)
}

/// Reads along a chain of any shape.
#[inline(never)]
fn read_along<M: Memory, S: Space>(
    ring: &GuestRing,
    head: u16,
    (memory, space): Guest<'_, M, S>,
    budget: &mut Budget,
    to: &mut [u8],
) -> Result<u32, Broken> {
    let mut walk = Walk::new(ring, head);
    let (mut filled, mut bytes) = (0, 0u32);
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
            memory.read(at, rest.get_mut(..most).unwrap_or_default());
            filled = filled.wrapping_add(most);
            ipa = ipa.wrapping_add(most as u64);
            len = len.wrapping_sub(most as u32);
        }
    }
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
    let bytes = (from.len() as u32).wrapping_add(more);
    budget.look();
    budget.look();
    match ring.only_buffer(head, Access::Write, memory, space) {
        Some((at, len)) if bytes <= len => {
            memory.write(at, from);
            if more != 0 {
                manager.copy(0, at.plus(from.len() as u64), more);
                budget.spend(more);
            }
        }
        _ => write_along(ring, head, (memory, space), budget, from, (more, manager))?,
    }
    ring.give(head, bytes, memory, space)
}

/// Writes along a chain of any shape.
#[inline(never)]
fn write_along<M: Memory, S: Space>(
    ring: &GuestRing,
    head: u16,
    (memory, space): Guest<'_, M, S>,
    budget: &mut Budget,
    from: &[u8],
    (more, manager): (u32, &mut impl Manager),
) -> Result<(), Broken> {
    let mut walk = Walk::new(ring, head);
    let (mut rest, mut copied) = (from, 0);
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
                    memory.write(at, now);
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
    if rest.is_empty() && copied == more {
        Ok(())
    } else {
        Err(Broken)
    }
}

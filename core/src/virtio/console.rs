//! virtio-console (VIRTIO 1.2, 5.3), the one type of device whose backend is EL2 itself: the VM's console is here. It has port 0, and no features
//! of its own unless its VM manages others ([`ports`](super::ports)). Bytes go between the guest's buffers and the VM's streams, in slices; a chain for which there is no room, or no input, waits where it is.

use super::device::Outcome;
use super::guest_ring::{Broken, GuestRing, Walk};
use super::memory::{Access, At, Memory, Space};
use super::queue::{Budget, instructions};
use super::requests::{Asked, Release, Requests};
use super::transport::Transport;
use crate::console::mux::Streams;

/// Its queues: first what the guest receives, then what it sends (5.3.2).
pub const QUEUES: usize = 2;
/// What a byte takes of a budget.
pub(super) const BYTE: u32 = instructions(25);
/// Room in the stream of which a guest that waits for it is told, so that it is not told of each byte.
const ROOM: u32 = 512;

/// A chain that has been begun.
#[derive(Debug)]
struct Begun {
    head: u16,
    walk: Walk,
    written: u32,
}

/// Port 0 of the device. What is behind it is [`Ports`](super::ports::Ports).
#[derive(Debug)]
pub struct Console {
    rings: [Option<GuestRing>; QUEUES],
    begun: [Option<Begun>; QUEUES],
    /// The driver drives it, and it has not failed since.
    driven: bool,
}

impl Default for Console {
    fn default() -> Self {
        Self::new()
    }
}

impl Console {
    /// A device that nobody drives.
    pub const fn new() -> Self {
        Self {
            rings: [const { None }; QUEUES],
            begun: [None, None],
            driven: false,
        }
    }

    /// Takes over what the driver has set up, because it has started the device or enabled a queue. No vCPU uses the registers meanwhile.
    pub fn start(
        &mut self,
        transport: &Transport,
        requests: &Requests,
        space: &impl Space,
    ) -> Outcome {
        requests.begin();
        self.driven = transport.is_driven();
        let queues = (0..QUEUES).zip(&mut self.rings);
        if !transport.take_over(queues, space) {
            return self.fail();
        }
        Outcome {
            more: self.driven,
            ..Outcome::default()
        }
    }

    /// The queues stay until the driver resets the device, and are not served.
    fn fail(&mut self) -> Outcome {
        self.driven = false;
        Outcome {
            failed: true,
            ..Outcome::default()
        }
    }

    /// Lets go of a queue or of all. Nothing of the guest's memory behind them is used afterwards.
    fn let_go(&mut self, what: Release) {
        let hits = |index| what == Release::All || what == Release::Queue(index as u16);
        for (index, ring) in (0..QUEUES).zip(&mut self.rings) {
            if hits(index) {
                *ring = None;
                if let Some(begun) = self.begun.get_mut(index) {
                    *begun = None;
                }
            }
        }
        self.driven &= what != Release::All;
    }

    /// Does as much as the budget allows. [`Outcome::backend`]: who prints the console has something to do. The caller is the only one
    /// who sends to the VM's stream, or takes from its input, meanwhile, and has taken the notifications before.
    pub fn slice(
        &mut self,
        asked: Asked<'_>,
        memory: &impl Memory,
        space: &impl Space,
        streams: &Streams,
        budget: &mut Budget,
    ) -> Outcome {
        if let Some(what) = asked.release() {
            self.let_go(what);
            asked.released();
            return Outcome::default();
        }
        let mut outcome = Outcome::default();
        if self.driven
            && self
                .serve(memory, space, streams, budget, &mut outcome)
                .is_err()
        {
            self.break_off(&mut outcome);
        }
        outcome
    }

    /// Whether the driver drives it, and has broken no rule since.
    pub const fn is_driven(&self) -> bool {
        self.driven
    }

    /// The driver has broken a rule of its queues, or of those behind port 0.
    #[inline(always)]
    pub const fn break_off(&mut self, outcome: &mut Outcome) {
        self.driven = false;
        (outcome.failed, outcome.more) = (true, false);
    }

    /// Moves bytes of both queues, output first.
    fn serve(
        &mut self,
        memory: &impl Memory,
        space: &impl Space,
        streams: &Streams,
        budget: &mut Budget,
        outcome: &mut Outcome,
    ) -> Result<(), Broken> {
        // Not its length: who prints takes bytes meanwhile.
        let before = streams.output.appended();
        let queues = self.rings.iter_mut().zip(&mut self.begun);
        let mut queues = queues.zip([Access::Write, Access::Read]);
        let (input, output) = (queues.next(), queues.next());
        for ((ring, begun), access) in [output, input].into_iter().flatten() {
            let Some(ring) = ring else {
                continue;
            };
            let left = transfer(ring, begun, access, (memory, space), streams, budget);
            // What was before a broken chain is good.
            outcome.backend |= streams.output.appended() != before;
            outcome.used |= ring.publish(memory, space)?;
            match left? {
                Left::More => outcome.more = true,
                Left::NoChain => outcome.more |= ring.ask(memory, space)?,
                Left::Waits => ring.hush(memory, space)?,
            }
        }
        Ok(())
    }
}

/// Why a queue was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// The budget is spent.
    More,
    /// The guest has made nothing available.
    NoChain,
    /// There is no room, or no input: who makes some tells the service thread.
    Waits,
}

/// Sends what the guest has made available ([`Access::Read`]), or puts input there. What has come goes to the guest at once, even if the buffer
/// has room for more.
fn transfer(
    ring: &mut GuestRing,
    begun: &mut Option<Begun>,
    access: Access,
    (memory, space): (&impl Memory, &impl Space),
    streams: &Streams,
    budget: &mut Budget,
) -> Result<Left, Broken> {
    let sends = access == Access::Read;
    loop {
        let no_input = !sends && streams.input.is_empty();
        if !no_input && budget.is_spent() {
            return Ok(Left::More);
        }
        if no_input && begun.as_ref().is_none_or(|chain| chain.written == 0) {
            return Ok(Left::Waits);
        }
        let Some(chain) = Begun::next(begun, ring, memory, space)? else {
            return Ok(Left::NoChain);
        };
        let look = if no_input {
            Look::End
        } else {
            chain.look(access, (ring, memory, space), budget)?
        };
        let (at, most) = match look {
            Look::Bytes(at, most) => (at, most),
            Look::Again => continue,
            Look::End => {
                ring.give(chain.head, chain.written, memory, space)?;
                *begun = None;
                continue;
            }
        };
        let mut done = 0;
        while done < most && move_byte(sends, at.plus(done.into()), memory, streams) {
            done = done.wrapping_add(1);
        }
        chain.done(done, budget);
        if !sends {
            chain.written = chain.written.wrapping_add(done);
        } else if done < most {
            streams.device_wants_space.want();
            // Who prints may have made room before it could see that.
            let roomy = streams.output.free() >= ROOM;
            return Ok(if roomy { Left::More } else { Left::Waits });
        }
    }
}

/// Moves a byte to the output, or from the input. `false`: there is no room, or none.
fn move_byte(sends: bool, at: At, memory: &impl Memory, streams: &Streams) -> bool {
    if sends {
        return streams.output.push(memory.load8(at));
    }
    let byte = streams.input.pop();
    if let Some(byte) = byte {
        memory.store8(at, byte);
    }
    byte.is_some()
}

impl Begun {
    /// The chain that was begun, or the next one; `None`: there is none.
    fn next<'a>(
        begun: &'a mut Option<Self>,
        ring: &mut GuestRing,
        memory: &impl Memory,
        space: &impl Space,
    ) -> Result<Option<&'a mut Self>, Broken> {
        if begun.is_none() && ring.has_next(memory, space)? {
            let head = ring.take(memory, space)?;
            *begun = Some(Self {
                head,
                walk: Walk::new(ring, head),
                written: 0,
            });
        }
        Ok(begun.as_mut())
    }

    /// What comes next in the chain, for bytes that the device reads or writes. Buffers for the other direction are passed over.
    fn look(
        &mut self,
        access: Access,
        (ring, memory, space): (&GuestRing, &impl Memory, &impl Space),
        budget: &mut Budget,
    ) -> Result<Look, Broken> {
        let (ipa, len) = self.walk.rest(access);
        if len == 0 {
            budget.look();
            let more = self.walk.go(ring, memory, space)?;
            return Ok(if more { Look::Again } else { Look::End });
        }
        let (at, behind) = space.reach(ipa, access).ok_or(Broken)?;
        let most = budget.left().div_ceil(BYTE).min(len);
        Ok(Look::Bytes(
            at,
            u32::try_from(behind).map_or(most, |behind| behind.min(most)),
        ))
    }

    /// So many bytes of the buffer are done.
    const fn done(&mut self, bytes: u32, budget: &mut Budget) {
        budget.spend(bytes.wrapping_mul(BYTE));
        self.walk.copied(bytes);
    }
}

/// What comes next in a chain.
enum Look {
    /// Bytes: where, and how many of them at once.
    Bytes(At, u32),
    /// It is to be asked again, if the budget is not spent.
    Again,
    /// Nothing.
    End,
}

//! The two queues of a port while a guest uses its device, and how a frame gets into a guest's
//! buffers.

use arrayvec::ArrayVec;

use super::counters::Lost;
use super::frame::{Frame, HEADER};
use crate::memory::Memory;
use crate::queue::{Broken, Chain, Queue};
use crate::session::Live;

/// VIRTIO_NET_F_MRG_RXBUF: a frame may take several buffers.
pub(super) const MRG_RXBUF: u64 = 1 << 15;

/// Most buffers of a frame: a guest whose buffers are tiny does not make others' frames expensive.
const MOST_BUFFERS: usize = 16;

/// Buffers for one frame.
type Buffers = ArrayVec<Chain, MOST_BUFFERS>;

/// A guest uses the device.
#[derive(Clone, Debug)]
pub(super) struct Link<M> {
    pub(super) memory: M,
    /// What the guest receives (5.1.2).
    receive: Option<Queue>,
    /// What it transmits.
    pub(super) transmit: Option<Queue>,
    merges: bool,
}

impl<M: Memory> Link<M> {
    pub(super) fn new(memory: M, live: Live) -> Self {
        let [receive, transmit, ..] = live.queues;
        Self {
            memory,
            receive,
            transmit,
            merges: live.features & MRG_RXBUF != 0,
        }
    }

    /// Copies a frame out of another window into the guest's buffers.
    pub(super) fn deliver(&mut self, from: &M, frame: &Frame) -> Result<Result<(), Lost>, Broken> {
        let Some(queue) = &mut self.receive else {
            return Ok(Err(Lost::Down));
        };
        let needed = u64::from(HEADER) + u64::from(frame.bytes);
        let most = if self.merges { MOST_BUFFERS } else { 1 };
        let mut buffers = Buffers::new();
        if let Err(why) = reserve(queue, &self.memory, needed, most, &mut buffers)? {
            // They stay where they are, for frames that fit.
            queue.untake(buffers.len() as u16);
            return Ok(Err(why));
        }
        fill(queue, &self.memory, &buffers, from, frame)?;
        Ok(Ok(()))
    }

    /// Shows the guest what was delivered. Returns whether EL2 wants to be told.
    pub(super) fn publish(&mut self) -> Result<bool, Broken> {
        let mut ring = false;
        for queue in [&mut self.receive, &mut self.transmit]
            .into_iter()
            .flatten()
        {
            ring |= queue.publish(&self.memory)?;
        }
        Ok(ring)
    }
}

/// Takes buffers with `needed` bytes together, `most` at most.
fn reserve(
    queue: &mut Queue,
    memory: &impl Memory,
    needed: u64,
    most: usize,
    buffers: &mut Buffers,
) -> Result<Result<(), Lost>, Broken> {
    let mut space = 0;
    while space < needed {
        if buffers.len() >= most {
            return Ok(Err(Lost::Small));
        }
        let Some(buffer) = queue.take(memory)? else {
            return Ok(Err(Lost::NoBuffer));
        };
        buffers.push(buffer);
        // Each has at least the size of the header (5.1.6.3.1).
        if buffer.writable() < HEADER {
            return Ok(Err(Lost::Small));
        }
        space += u64::from(buffer.writable());
    }
    Ok(Ok(()))
}

/// Puts a frame into buffers that are large enough, and gives them back.
fn fill<M: Memory>(
    queue: &mut Queue,
    memory: &M,
    buffers: &Buffers,
    from: &M,
    frame: &Frame,
) -> Result<(), Broken> {
    // All that the sender wrote into its header stays with it.
    let mut header = [0; HEADER as usize];
    let [.., low, high] = &mut header;
    [*low, *high] = (buffers.len() as u16).to_le_bytes();
    let mut content = frame.content;
    let mut rest = frame.bytes;
    let mut before = header.as_slice();
    for buffer in buffers {
        let mut into = buffer.writer();
        into.write(memory, before)?;
        let copied = content.copy(from, &mut into, memory, rest)?;
        rest -= copied;
        queue.give_back(memory, buffer, copied + before.len() as u32)?;
        before = &[];
    }
    Ok(())
}

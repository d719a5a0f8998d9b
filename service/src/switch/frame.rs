//! A frame as it comes from a guest: a header of virtio-net (VIRTIO 1.2, 5.1.6), and Ethernet.

use super::counters::Refused;
use crate::memory::Memory;
use crate::queue::{Broken, Chain, Cursor};

/// Bytes of the header before each frame, `struct virtio_net_hdr` with `num_buffers`.
pub const HEADER: u32 = 12;
/// Bytes of an Ethernet header: two addresses and a type.
pub const ETHERNET: u32 = 14;

/// In the header, `flags`: the checksum is left to the device.
const NEEDS_CSUM: u8 = 1;
/// Types that begin a VLAN tag: of customers, and of providers (IEEE 802.1Q, table 9-1).
const TAGS: [u16; 2] = [0x8100, 0x88a8];

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// To all.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether it is of a group, as the broadcast address is.
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether bridges do not forward what is sent to it: 01-80-C2-00-00-00 to -0F.
    fn is_reserved(self) -> bool {
        matches!(self.0, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f])
    }
}

/// A frame in a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) to: Mac,
    pub(super) source: Mac,
    /// Bytes from the destination address on.
    pub(super) bytes: u32,
    /// Stands behind the header of virtio.
    pub(super) content: Cursor,
}

/// Bytes of the frame in a chain.
pub(super) fn length(chain: &Chain) -> u32 {
    chain.readable().saturating_sub(HEADER)
}

/// Reads a frame of at most `longest` bytes, or says why it goes nowhere.
pub(super) fn read(
    memory: &impl Memory,
    chain: &Chain,
    longest: u32,
) -> Result<Result<Frame, Refused>, Broken> {
    let bytes = length(chain);
    if bytes < ETHERNET {
        return Ok(Err(Refused::Runt));
    }
    if bytes > longest {
        return Ok(Err(Refused::Giant));
    }
    let mut content = chain.reader();
    let mut header = [0; HEADER as usize];
    content.read(memory, &mut header)?;
    let [flags, segments, ..] = header;
    if flags & NEEDS_CSUM != 0 || segments != 0 {
        return Ok(Err(Refused::Offload));
    }
    let mut ethernet = [0; ETHERNET as usize];
    content.clone().read(memory, &mut ethernet)?;
    let [a, b, c, d, e, f, u, v, w, x, y, z, types @ ..] = ethernet;
    let frame = Frame {
        to: Mac([a, b, c, d, e, f]),
        source: Mac([u, v, w, x, y, z]),
        bytes,
        content,
    };
    if TAGS.contains(&u16::from_be_bytes(types)) {
        return Ok(Err(Refused::Tagged));
    }
    if frame.to.is_reserved() {
        return Ok(Err(Refused::Reserved));
    }
    Ok(Ok(frame))
}

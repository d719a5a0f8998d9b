//! The SGIs of a GPPT VM: to vCPUs of the same VM, with INTIDs that it has.

use super::GUEST_SGIS;
use crate::vgic::{Notify, VCPUS};

/// The SGIs that a register write sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sgi {
    /// The INTID, which is the same on the board.
    pub intid: u32,
    /// The vCPUs of the VM that get the SGI, the sender included if it names itself.
    pub vcpus: Notify,
}

/// The bits of `ICC_SGI1R_EL1` that have to be 0 in a VM whose vCPUs differ in Aff0 alone: Aff3,
/// RS, Aff2, Aff1.
const OTHER_AFFINITIES: u64 = 0xff << 48 | 0xf << 44 | 0xff << 32 | 0xff << 16;

/// Decodes a write of vCPU `number` to `ICC_SGI1R_EL1` (IHI 0069H, 12.2), in a VM of `vcpus` vCPUs.
/// Returns `None` if the write reaches no vCPU. `ICC_SGI0R_EL1` and `ICC_ASGI1R_EL1` never reach
/// one: Group 0 and the other Security state are EL2's.
#[inline(always)]
pub fn by_register(value: u64, number: usize, vcpus: usize) -> Option<Sgi> {
    let all = everyone(vcpus);
    let whom = if value >> 40 & 1 != 0 {
        all & !only(number)
    } else if value & OTHER_AFFINITIES != 0 {
        0
    } else {
        value as u16 & all
    };
    sgi((value >> 24) as u32 & 15, whom)
}

/// Decodes a write of vCPU `number` to `GICD_SGIR` (IHI 0048B, 4.3.15), in a VM of `vcpus` vCPUs.
/// Returns `None` if the write reaches no vCPU.
pub fn by_distributor(value: u32, number: usize, vcpus: usize) -> Option<Sgi> {
    let all = everyone(vcpus);
    let whom = match value >> 24 & 3 {
        0 => (value >> 16) as u16 & all,
        1 => all & !only(number),
        2 => only(number) & all,
        _ => 0,
    };
    sgi(value & 15, whom)
}

fn sgi(intid: u32, whom: u16) -> Option<Sgi> {
    let given = GUEST_SGIS >> intid & 1 != 0;
    (given && whom != 0).then_some(Sgi {
        intid,
        vcpus: Notify(whom as u8),
    })
}

/// Returns a bit for each vCPU of the VM; never beyond [`VCPUS`].
fn everyone(vcpus: usize) -> u16 {
    1u16.wrapping_shl(vcpus.min(VCPUS) as u32).wrapping_sub(1)
}

fn only(number: usize) -> u16 {
    1u16.wrapping_shl(number as u32)
}

//! Sets of slots.

use super::SLOTS;

/// A set of slots, one bit for each.
pub type Set = u32;

/// Iterates over the slots of a set, lowest number first.
pub fn members(set: Set) -> impl Iterator<Item = usize> {
    let mut rest = set;
    core::iter::from_fn(move || {
        let slot = rest.trailing_zeros() as usize;
        rest &= rest.wrapping_sub(1);
        (slot < SLOTS).then_some(slot)
    })
}

/// The set that contains only `slot`.
pub const fn only(slot: usize) -> Set {
    1u32.wrapping_shl(slot as u32)
}

/// Stands for no slot. It is in no set, and greater than all slots.
pub const NOBODY: usize = SLOTS;

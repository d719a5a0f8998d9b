//! Sets of numbers below 64.

/// The numbers in a set.
pub(crate) fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let next = set.trailing_zeros();
        // Clears the lowest bit.
        set &= set.wrapping_sub(1);
        (next < u64::BITS).then_some(next as usize)
    })
}

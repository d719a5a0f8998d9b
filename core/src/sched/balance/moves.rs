//! What a pCPU still has to do about vCPUs that move: one at most is to leave it, and those that have come have not run here yet.

use super::Move;
use crate::sched::SLOTS;

/// The bit of [`Moves::marks`] that says that a vCPU is to leave.
const OUTGOING: u32 = 1 << 31;
const _: () = assert!(SLOTS < 31);

/// The moves of a pCPU that are under way.
#[derive(Debug, Default)]
pub struct Moves {
    /// A bit for each slot whose vCPU has come and has not run yet, and [`OUTGOING`].
    marks: u32,
    outgoing: Option<Move>,
}

impl Moves {
    /// Returns the moves of a pCPU of which none is under way.
    pub const fn new() -> Self {
        Self {
            marks: 0,
            outgoing: None,
        }
    }

    /// Whether there is something to do after a switch.
    #[inline(always)]
    pub const fn are_under_way(&self) -> bool {
        self.marks != 0
    }

    /// Whether a vCPU is to leave.
    pub const fn has_outgoing(&self) -> bool {
        self.outgoing.is_some()
    }

    /// Notes that a vCPU is to leave as soon as it does not run.
    pub const fn set_outgoing(&mut self, chosen: Move) {
        self.outgoing = Some(chosen);
        self.marks |= OUTGOING;
    }

    /// Takes out the vCPU that is to leave, unless it runs in the slot `running`.
    pub fn take_outgoing(&mut self, running: usize) -> Option<Move> {
        let outgoing = self.outgoing.take_if(|chosen| chosen.slot != running)?;
        self.marks &= !OUTGOING;
        Some(outgoing)
    }

    /// Notes that a vCPU has come into a slot.
    pub const fn add_incoming(&mut self, slot: usize) {
        self.marks |= mark(slot);
    }

    /// Whether the vCPU in a slot has come and runs for the first time now.
    pub const fn take_incoming(&mut self, slot: usize) -> bool {
        let has_come = self.marks & mark(slot) != 0;
        self.marks &= !mark(slot);
        has_come
    }
}

const fn mark(slot: usize) -> u32 {
    1u32.wrapping_shl(slot as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Move = Move { slot: 2, to: 1 };

    #[test]
    fn who_runs_leaves_after_its_turn_and_once() {
        let mut moves = Moves::new();
        assert!(!moves.are_under_way() && !moves.has_outgoing());
        assert_eq!(moves.take_outgoing(2), None);
        moves.set_outgoing(FIRST);
        assert!(moves.are_under_way() && moves.has_outgoing());
        assert_eq!(moves.take_outgoing(2), None, "it runs");
        assert!(
            moves.are_under_way() && moves.has_outgoing(),
            "it is still to leave"
        );
        assert_eq!(moves.take_outgoing(3), Some(FIRST));
        assert!(!moves.are_under_way() && !moves.has_outgoing());
        assert_eq!(moves.take_outgoing(3), None);
    }

    #[test]
    fn who_has_come_is_told_once() {
        let mut moves = Moves::new();
        moves.add_incoming(0);
        moves.add_incoming(SLOTS - 1);
        assert!(moves.are_under_way() && !moves.has_outgoing());
        assert!(!moves.take_incoming(1));
        assert!(moves.take_incoming(0));
        assert!(!moves.take_incoming(0));
        assert!(moves.are_under_way());
        assert!(moves.take_incoming(SLOTS - 1));
        assert!(!moves.are_under_way());
    }

    #[test]
    fn incoming_and_outgoing_do_not_mix() {
        let mut moves = Moves::new();
        moves.add_incoming(2);
        moves.set_outgoing(FIRST);
        assert_eq!(moves.take_outgoing(0), Some(FIRST));
        assert!(moves.are_under_way());
        // It leaves without having run here.
        assert!(moves.take_incoming(2));
        assert!(!moves.are_under_way());
        moves.set_outgoing(FIRST);
        moves.add_incoming(1);
        assert!(moves.take_incoming(1));
        assert!(moves.are_under_way() && moves.has_outgoing());
    }
}

//! The registers of the CPU interface that both groups have in common, where accesses to them trap
//! (ICH_HCR_EL2.TC). The guest sees the registers of Non-secure software (IHI 0069H, 12.2); the
//! physical registers serve both sides.

use super::priority;

/// A register of the CPU interface that both groups have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Common {
    /// `ICC_PMR_EL1`.
    Mask,
    /// `ICC_RPR_EL1`, which is read-only.
    Running,
    /// `ICC_CTLR_EL1`.
    Control,
}

/// `ICC_CTLR_EL1.EOImode`: ending an interrupt does not deactivate it.
pub const TWO_STEPS: u64 = 1 << 1;
/// A3V, SEIS, IDbits, PRIbits: the capabilities of the interface.
const CAPABILITIES: u64 = 1 << 15 | 1 << 14 | 7 << 11 | 7 << 8;

impl Common {
    /// Converts the value `board` of the physical register to what the guest reads.
    pub const fn to_guest(self, board: u64) -> u64 {
        match self {
            Self::Mask => priority::to_guest(board as u8) as u64,
            Self::Running => priority::running_to_guest(board as u8) as u64,
            Self::Control => board & (CAPABILITIES | TWO_STEPS),
        }
    }

    /// Returns what to write to the physical register, now `board`, when the guest writes `value`;
    /// `None` if the register is read-only. The mask never covers the lower half of the priorities,
    /// which is EL2's.
    pub const fn to_board(self, value: u64, board: u64) -> Option<u64> {
        match self {
            Self::Mask => Some(priority::to_board(value as u8) as u64),
            Self::Running => None,
            Self::Control => Some(board & !TWO_STEPS | value & TWO_STEPS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_reads_as_it_was_written_and_never_masks_el2() {
        for value in 0..=0xffu64 {
            let board = Common::Mask.to_board(value, 0).expect("it can be written");
            assert!(board > u64::from(priority::KICK) && board >= u64::from(priority::MOST_URGENT));
            assert_eq!(Common::Mask.to_guest(board), value & 0xfe);
            // It masks what the guest expects it to mask, with one bit of precision less.
            for other in (0..=0xffu8).step_by(2) {
                let there = u64::from(priority::to_board(other)) < board;
                assert_eq!(
                    there,
                    u64::from(other) < value & 0xfe,
                    "{other:#x} under {value:#x}"
                );
            }
        }
    }

    #[test]
    fn the_guest_changes_eoimode_and_nothing_else() {
        let control = Common::Control;
        assert_eq!(control.to_board(u64::MAX, 0x8400), Some(0x8402));
        assert_eq!(control.to_board(0, 0x8403), Some(0x8401));
        assert_eq!(control.to_guest(0x8443), 0x8402);
    }

    #[test]
    fn the_running_priority_is_read_only() {
        assert_eq!(Common::Running.to_board(0, 0xff), None);
        assert_eq!(Common::Running.to_guest(0xff), 0xff);
        assert_eq!(Common::Running.to_guest(0xa0), 0x40);
    }
}

//! Undoing an exception entry at EL1 that was caused by EL2's poke: the SGI or SPI by which another
//! pCPU wakes the guest. It is taken to EL1 as the guest's interrupts are, and the fetch of the
//! vector faults because stage 2 is revoked (DDI 0487, D1.3 "Exception entry").

/// SPSR_ELx: A, I, F, D.
const DAIF: u64 = 0xf << 6;
const I: u64 = 1 << 7;
const F: u64 = 1 << 6;
/// SPSR_ELx: the condition flags. An entry leaves them as they are; on QEMU it clears them.
const NZCV: u64 = 0xf << 28;
/// SPSR_ELx.M: EL1 with SP_EL1.
const EL1H: u64 = 0x5;

/// The registers after a fetch of the guest has faulted.
#[derive(Clone, Copy, Debug)]
pub struct Entered {
    /// ELR_EL2: the address that the guest could not fetch.
    pub pc: u64,
    /// SPSR_EL2.
    pub spsr: u64,
    /// VBAR_EL1.
    pub vbar: u64,
    /// ELR_EL1.
    pub elr: u64,
    /// SPSR_EL1.
    pub saved: u64,
}

impl Entered {
    /// Returns ELR_EL2 and SPSR_EL2 as they were before an interrupt took the guest to its vector;
    /// `None` if the registers do not show such an entry. If an interrupt of the guest caused the
    /// entry, it is still pending and is taken again.
    pub const fn rewind(&self) -> Option<(u64, u64)> {
        // The vector group by the state before: EL0, EL1 with SP_EL0, EL1 with SP_EL1, EL0 in
        // AArch32.
        let from = match self.saved & 0x1f {
            0x00 => 0x400,
            0x04 => 0x000,
            0x05 => 0x200,
            0x10 => 0x600,
            _ => return None,
        };
        let offset = self.pc.wrapping_sub(self.vbar & !0x7ff);
        let open = match offset.wrapping_sub(from) {
            0x080 => I,
            0x100 => F,
            _ => return None,
        };
        let entry = self.spsr & 0x1f == EL1H && self.spsr & DAIF == DAIF;
        let flags = self.spsr & NZCV;
        let as_before = flags == self.saved & NZCV || flags == 0;
        if entry && as_before && self.saved & open == 0 {
            Some((self.elr, self.saved))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VBAR: u64 = 0x4008_1800;

    /// The registers after an entry at `offset` of the vectors, from the state `saved`.
    fn at(offset: u64, saved: u64) -> Entered {
        Entered {
            pc: VBAR + offset,
            spsr: saved & NZCV | 0x3c5,
            vbar: VBAR | 0x7f,
            elr: 0x4123_4568,
            saved,
        }
    }

    #[test]
    fn an_entry_by_an_interrupt_is_undone_from_everywhere() {
        for (saved, irq) in [
            (0x6000_0005, 0x280),
            (0x4, 0x80),
            (0, 0x480),
            (0x8000_0010, 0x680),
        ] {
            assert_eq!(at(irq, saved).rewind(), Some((0x4123_4568, saved)));
            assert_eq!(at(irq + 0x80, saved).rewind(), Some((0x4123_4568, saved)));
        }
        // With the flags cleared.
        let cleared = Entered {
            spsr: 0x3c5,
            ..at(0x280, 0x6000_0005)
        };
        assert!(cleared.rewind().is_some());
        // The other kind of interrupt is masked.
        assert!(at(0x280, 5 | F).rewind().is_some());
        assert!(at(0x300, 5 | I).rewind().is_some());
    }

    #[test]
    fn what_is_no_such_entry_stays() {
        // The interrupt was masked when the entry happened.
        assert_eq!(at(0x280, 5 | I).rewind(), None);
        assert_eq!(at(0x300, 5 | F).rewind(), None);
        // Another vector, or another address within it.
        for offset in [0, 0x80, 0x200, 0x284, 0x380, 0x480] {
            assert_eq!(at(offset, 5).rewind(), None, "{offset:#x}");
        }
        // From a state in which no guest is (EL2).
        assert_eq!(at(0x280, 9).rewind(), None);
        // In a state that no entry produces.
        for spsr in [0x385, 0x345, 0x3c4, 0x1c5, 0x2c5, 0x4000_03c5] {
            assert_eq!(
                Entered {
                    spsr,
                    ..at(0x280, 5)
                }
                .rewind(),
                None,
                "{spsr:#x}"
            );
        }
    }
}

//! Instructions that caches and TLBs obey (Arm DDI 0487, C5.3 "A64 System instructions for cache maintenance", C5.5 "for TLB maintenance").

/// An instruction of maintenance; its register has an address, where it takes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `DC ZVA`
    Zero,
    /// `DC CVAC`, `CVAU`, `CVAP`
    Clean,
    /// `DC CIVAC`, `IVAC`
    CleanInvalidate,
    /// `IC IVAU`
    InvalidateCode,
    /// `IC IALLU`, `IALLUIS`
    InvalidateAllCode,
    /// `TLBI` of an address at stage 1 of EL1, of the VM that runs.
    InvalidatePage,
    /// The same of EL2.
    InvalidateEl2Page,
    /// `TLBI` of all of the VM that runs, of an ASID, or of stage 2.
    InvalidateVm,
    /// All of EL2.
    InvalidateEl2,
    /// All of all VMs.
    InvalidateVms,
}

impl Op {
    /// Whether its register has an address of memory, which caches find by translation.
    pub const fn is_by_address(self) -> bool {
        matches!(
            self,
            Self::Zero | Self::Clean | Self::CleanInvalidate | Self::InvalidateCode
        )
    }
}

/// What an instruction is, with the number of its register.
pub fn decode(word: u32) -> Option<(Op, u8)> {
    // SYS op1, CRn, CRm, op2, Xt
    if word & 0xfff8_0000 != 0xd508_0000 {
        return None;
    }
    let field = |at: u32, width: u32| word >> at & ((1 << width) - 1);
    let op = match (field(16, 3), field(12, 4), field(8, 4), field(5, 3)) {
        (3, 7, 4, 1) => Op::Zero,
        (3, 7, 10..=12, 1) => Op::Clean,
        (3, 7, 14, 1) | (0, 7, 6, 1) => Op::CleanInvalidate,
        (3, 7, 5, 1) => Op::InvalidateCode,
        (0, 7, 1 | 5, 0) => Op::InvalidateAllCode,
        (0, 8, _, 1 | 3 | 5 | 7) => Op::InvalidatePage,
        (4, 8, 3 | 7, 1 | 5) => Op::InvalidateEl2Page,
        (4, 8, 3 | 7, 0) => Op::InvalidateEl2,
        (4, 8, 3 | 7, 4) => Op::InvalidateVms,
        (0 | 4, 8, _, _) => Op::InvalidateVm,
        _ => return None,
    };
    Some((op, (word & 31) as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_those_of_the_assembler() {
        for (word, op) in [
            (0xd50b_7423, Op::Zero),              // dc zva, x3
            (0xd50b_7a23, Op::Clean),             // dc cvac, x3
            (0xd50b_7b23, Op::Clean),             // dc cvau, x3
            (0xd50b_7e23, Op::CleanInvalidate),   // dc civac, x3
            (0xd508_7623, Op::CleanInvalidate),   // dc ivac, x3
            (0xd50b_7523, Op::InvalidateCode),    // ic ivau, x3
            (0xd508_8323, Op::InvalidatePage),    // tlbi vae1is, x3
            (0xd508_87a3, Op::InvalidatePage),    // tlbi vale1, x3
            (0xd50c_8323, Op::InvalidateEl2Page), // tlbi vae2is, x3
        ] {
            assert_eq!(decode(word), Some((op, 3)), "{word:#x}");
        }
        for (word, op) in [
            (0xd508_751f, Op::InvalidateAllCode), // ic iallu
            (0xd508_711f, Op::InvalidateAllCode), // ic ialluis
            (0xd508_871f, Op::InvalidateVm),      // tlbi vmalle1
            (0xd508_835f, Op::InvalidateVm),      // tlbi aside1is, xzr
            (0xd50c_83df, Op::InvalidateVm),      // tlbi vmalls12e1is
            (0xd50c_803f, Op::InvalidateVm),      // tlbi ipas2e1is, xzr
            (0xd50c_871f, Op::InvalidateEl2),     // tlbi alle2
            (0xd50c_839f, Op::InvalidateVms),     // tlbi alle1is
        ] {
            assert_eq!(decode(word), Some((op, 31)), "{word:#x}");
        }
        // dc csw, x3; at s1e1r, x3; msr tpidr_el2, x3; dsb sy
        for word in [0xd508_7a43, 0xd508_7803, 0xd51c_d043, 0xd503_3f9f] {
            assert_eq!(decode(word), None, "{word:#x}");
        }
    }
}

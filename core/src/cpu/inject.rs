//! Exceptions that EL2 injects into a guest: the register values at the entry (DDI 0487, D1.3
//! "Exception entry").

use crate::cpu::exit::{IL, class, ec};

/// SPSR_ELx: DAIF masked, EL1h.
const MASKED_EL1H: u64 = 0x3c5;
/// Data fault status: synchronous external abort, not on a translation table walk.
const EXTERNAL: u64 = 0x10;

/// Bits of VBAR_EL1 that are part of the address; the others are RES0 and may read as written
/// (DDI 0487, D24.2.206).
const VBAR: u64 = !0x7ff;

/// Bits of SPSR_ELx and SCTLR_EL1.
mod bits {
    pub const SSBS: u64 = 1 << 12;
    pub const ALLINT: u64 = 1 << 13;
    pub const PAN: u64 = 1 << 22;
    /// N, Z, C, V and DIT, which an exception leaves as they are.
    pub const KEPT: u64 = 0xf000_0000 | 1 << 24;
    pub const TCO: u64 = 1 << 25;
    pub const SPAN: u64 = 1 << 23;
    pub const DSSBS: u64 = 1 << 44;
    pub const SPINTMASK: u64 = 1 << 62;
}

/// Features of the CPU that have a bit in PSTATE which an exception sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// FEAT_PAN.
    pub pan: bool,
    /// FEAT_SSBS.
    pub ssbs: bool,
    /// FEAT_MTE2. VMs have no tags, but PSTATE.TCO is there.
    pub mte2: bool,
    /// FEAT_NMI.
    pub nmi: bool,
}

/// State of EL1 that determines how an exception enters it.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    /// ELR_EL2: the guest's PC at the exit.
    pub pc: u64,
    /// SPSR_EL2: the guest's PSTATE at the exit.
    pub spsr: u64,
    /// VBAR_EL1.
    pub vbar: u64,
    /// SCTLR_EL1.
    pub sctlr: u64,
    /// Of the CPU.
    pub features: Features,
}

impl Before {
    /// Returns the address of the vectors.
    const fn vectors(&self) -> u64 {
        self.vbar & VBAR
    }
}

/// Computes PSTATE at the entry to EL1 (DDI 0487, pseudocode of AArch64.TakeException): UAO, SS, IL
/// and BTYPE are cleared with all that is not named here.
const fn entry_state(before: &Before) -> u64 {
    let Before {
        spsr,
        sctlr,
        features,
        ..
    } = *before;
    let mut state = spsr & bits::KEPT | MASKED_EL1H;
    if features.pan {
        // SPAN 0 sets PAN, 1 leaves it as it is.
        state |= if sctlr & bits::SPAN == 0 {
            bits::PAN
        } else {
            spsr & bits::PAN
        };
    }
    if features.ssbs && sctlr & bits::DSSBS != 0 {
        state |= bits::SSBS;
    }
    if features.mte2 {
        state |= bits::TCO;
    }
    if features.nmi && sctlr & bits::SPINTMASK == 0 {
        state |= bits::ALLINT;
    }
    state
}

/// Register values after the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After {
    /// ELR_EL2: the address of the guest's vector.
    pub pc: u64,
    /// SPSR_EL2.
    pub spsr: u64,
    /// ELR_EL1.
    pub elr: u64,
    /// SPSR_EL1.
    pub saved: u64,
    /// ESR_EL1.
    pub esr: u64,
    /// FAR_EL1, if the exception has an address.
    pub far: Option<u64>,
}

/// The exception to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Undefined instruction.
    Undefined,
    /// An access to a system register from EL0 that EL1 traps: with the syndrome that EL2 got.
    Trapped,
    /// Synchronous external abort of a load or store at this virtual address.
    Data(u64),
    /// Synchronous external abort of an instruction fetch at this virtual address.
    Fetch(u64),
}

impl Fault {
    /// Returns the virtual address of the access; 0 for what is no access.
    pub const fn address(self) -> u64 {
        match self {
            Self::Data(address) | Self::Fetch(address) => address,
            Self::Undefined | Self::Trapped => 0,
        }
    }
}

/// Offset from VBAR_EL1 at which an exception enters a guest in state `spsr`, or `None` if it ran
/// in a state that a VM does not have (AArch32).
const fn vector(spsr: u64) -> Option<u64> {
    match spsr & 0x1f {
        0x00 => Some(0x400),
        0x04 => Some(0x000),
        0x05 => Some(0x200),
        _ => None,
    }
}

/// Whether the guest could not fetch its own vector, so that injecting another fault would never
/// end.
pub const fn is_lost(before: &Before, fault: Fault) -> bool {
    match (fault, vector(before.spsr)) {
        (Fault::Fetch(_), Some(0x200)) => before.pc == before.vectors().wrapping_add(0x200),
        (_, None) => true,
        _ => false,
    }
}

/// Computes the register values of the entry. `syndrome` is ESR_EL2, of which the guest's syndrome
/// keeps the direction of a data access.
pub const fn enter(before: &Before, fault: Fault, syndrome: u64) -> After {
    let same = before.spsr & 0xf != 0;
    let (esr, far) = match fault {
        Fault::Undefined => (ec::UNKNOWN << 26, None),
        // EC, IL and ISS of a trap are the same at EL1 and EL2.
        Fault::Trapped => (syndrome & 0xffff_ffff, None),
        Fault::Data(address) => {
            let ec = if same { ec::DATA_SAME } else { ec::DATA_LOWER };
            // Keep WnR and CM (cache maintenance); the rest of the syndrome is not for EL1.
            let kept = if class(syndrome) == ec::DATA_LOWER {
                syndrome & (1 << 6 | 1 << 8)
            } else {
                0
            };
            (ec << 26 | kept | EXTERNAL, Some(address))
        }
        Fault::Fetch(address) => {
            let ec = if same {
                ec::FETCH_SAME
            } else {
                ec::FETCH_LOWER
            };
            (ec << 26 | EXTERNAL, Some(address))
        }
    };
    let offset = match vector(before.spsr) {
        Some(offset) => offset,
        None => 0x400,
    };
    After {
        pc: before.vectors().wrapping_add(offset),
        spsr: entry_state(before),
        elr: before.pc,
        saved: before.spsr,
        esr: esr | IL,
        far,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EL1H: Before = Before {
        pc: 0x4008_0000,
        spsr: 0x6000_03c5,
        vbar: 0x4000_0000,
        sctlr: 1 << 23,
        features: Features {
            pan: true,
            ssbs: true,
            mte2: false,
            nmi: false,
        },
    };

    /// PSTATE after an entry from `spsr` with `sctlr`.
    fn state(spsr: u64, sctlr: u64, features: Features) -> u64 {
        let before = Before {
            spsr,
            sctlr,
            features,
            ..EL1H
        };
        enter(&before, Fault::Undefined, 0).spsr
    }

    #[test]
    fn pan_is_set_without_span_and_kept_with_it() {
        let with = EL1H.features;
        let without = Features::default();
        for spsr in [0, bits::PAN] {
            assert_eq!(state(spsr, 0, with), MASKED_EL1H | bits::PAN);
            assert_eq!(state(spsr, bits::SPAN, with), MASKED_EL1H | spsr);
            assert_eq!(state(spsr, 0, without), MASKED_EL1H);
        }
    }

    #[test]
    fn what_a_new_feature_adds_to_pstate_needs_the_feature() {
        let all = Features {
            pan: true,
            ssbs: true,
            mte2: true,
            nmi: true,
        };
        let sctlr = bits::SPAN | bits::DSSBS;
        let set = bits::SSBS | bits::TCO | bits::ALLINT;
        assert_eq!(state(0, sctlr, all), MASKED_EL1H | set);
        let cleared = bits::SPAN | bits::SPINTMASK;
        assert_eq!(
            state(bits::SSBS, cleared, all),
            MASKED_EL1H | bits::TCO,
            "SSBS is DSSBS, whatever it was"
        );
        assert_eq!(state(0, sctlr, Features::default()), MASKED_EL1H);
        // UAO, SS, IL, BTYPE and the mask bits of before are gone; DIT and the flags are not.
        let before = 0xf000_0000 | 1 << 24 | 1 << 23 | 1 << 21 | 1 << 20 | 3 << 10 | 5;
        let after = 0xf000_0000 | 1 << 24 | MASKED_EL1H;
        assert_eq!(state(before, bits::SPAN, Features::default()), after);
    }

    #[test]
    fn the_low_bits_of_vbar_are_no_address() {
        let before = Before {
            vbar: EL1H.vbar | 0x7ff,
            ..EL1H
        };
        assert_eq!(enter(&before, Fault::Undefined, 0).pc, EL1H.vbar + 0x200);
        let at_vector = Before {
            pc: EL1H.vbar + 0x200,
            ..before
        };
        assert!(is_lost(&at_vector, Fault::Fetch(at_vector.pc)));
    }

    #[test]
    fn what_is_no_access_has_no_address() {
        let faults = [
            Fault::Data(7),
            Fault::Fetch(8),
            Fault::Undefined,
            Fault::Trapped,
        ];
        assert_eq!(faults.map(Fault::address), [7, 8, 0, 0]);
    }

    #[test]
    fn an_abort_in_the_kernel_enters_the_same_level() {
        let after = enter(
            &EL1H,
            Fault::Data(0x1234),
            ec::DATA_LOWER << 26 | IL | 1 << 6 | 7,
        );
        assert_eq!(after.pc, 0x4000_0200);
        assert_eq!(
            (after.elr, after.saved, after.far),
            (EL1H.pc, EL1H.spsr, Some(0x1234))
        );
        assert_eq!(after.esr, 0x25 << 26 | IL | 1 << 6 | 0x10);
        assert_eq!(after.spsr, 0x6000_03c5);
        // DC CIVAC: CM and WnR.
        let maintenance = ec::DATA_LOWER << 26 | IL | 1 << 8 | 1 << 6 | 7;
        let after = enter(&EL1H, Fault::Data(0x1234), maintenance);
        assert_eq!(after.esr, 0x25 << 26 | IL | 1 << 8 | 1 << 6 | 0x10);
    }

    #[test]
    fn an_undefined_instruction_of_a_program_enters_from_below() {
        let trapped = 0x1_6233_a3e1;
        let after = enter(&Before { spsr: 0, ..EL1H }, Fault::Trapped, trapped);
        assert_eq!((after.esr, after.far), (0x6233_a3e1, None));
        let after = enter(&Before { spsr: 0, ..EL1H }, Fault::Undefined, 0);
        assert_eq!((after.pc, after.esr, after.far), (0x4000_0400, IL, None));
        let fetch = enter(&Before { spsr: 0, ..EL1H }, Fault::Fetch(8), 0);
        assert_eq!(fetch.esr, 0x20 << 26 | IL | 0x10);
    }

    #[test]
    fn a_vector_that_cannot_be_fetched_ends_it() {
        let at_vector = Before {
            pc: EL1H.vbar + 0x200,
            ..EL1H
        };
        assert!(is_lost(&at_vector, Fault::Fetch(at_vector.pc)));
        assert!(!is_lost(&EL1H, Fault::Fetch(EL1H.pc)));
        assert!(!is_lost(&at_vector, Fault::Data(0)));
        assert!(
            is_lost(&Before { spsr: 0x10, ..EL1H }, Fault::Undefined),
            "AArch32"
        );
    }
}

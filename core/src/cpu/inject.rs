//! Exceptions that EL2 injects into a guest: the register values at the entry (DDI 0487, D1.3
//! "Exception entry").

use crate::cpu::exit::{IL, class, ec};

/// SPSR_ELx: DAIF masked, EL1h.
const MASKED_EL1H: u64 = 0x3c5;
/// Data fault status: synchronous external abort, not on a translation table walk.
const EXTERNAL: u64 = 0x10;

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
    /// Synchronous external abort of a load or store at this virtual address.
    Data(u64),
    /// Synchronous external abort of an instruction fetch at this virtual address.
    Fetch(u64),
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
        (Fault::Fetch(_), Some(0x200)) => before.pc == before.vbar.wrapping_add(0x200),
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
        Fault::Data(address) => {
            let ec = if same { ec::DATA_SAME } else { ec::DATA_LOWER };
            // Keep WnR; the rest of the syndrome is not for EL1.
            let kept = if class(syndrome) == ec::DATA_LOWER {
                syndrome & 1 << 6
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
    // PAN is set on entry unless SCTLR_EL1.SPAN says to keep it; condition flags are kept; UAO, SS,
    // IL and BTYPE are cleared.
    let span_keeps = before.sctlr & 1 << 23 != 0;
    let pan = if span_keeps { before.spsr & 1 << 22 } else { 0 };
    After {
        pc: before.vbar.wrapping_add(offset),
        spsr: before.spsr & 0xf100_0000 | pan | MASKED_EL1H,
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
    };

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
    }

    #[test]
    fn an_undefined_instruction_of_a_program_enters_from_below() {
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

//! The A64 instructions that the rules are about (DDI 0487, C4.1 and C5).

use bulkhead_plugin::accesses_memory;

/// A system register whose writes take effect at a context synchronization event only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Register {
    /// HCR_EL2
    Hcr,
    /// VTTBR_EL2
    Vttbr,
    /// VTCR_EL2
    Vtcr,
    /// TTBR0_EL2
    Ttbr0,
    /// TCR_EL2
    Tcr,
    /// MAIR_EL2
    Mair,
    /// SCTLR_EL2
    Sctlr,
    /// CPTR_EL2
    Cptr,
    /// ICC_SRE_EL2
    Sre,
    /// PMSELR_EL0
    Selection,
    /// TTBR0_EL1 or TTBR1_EL1
    El1Ttbr,
    /// TCR_EL1
    El1Tcr,
    /// SCTLR_EL1
    El1Sctlr,
    /// TPIDR_EL2, by which CPUs are told apart; writes are seen in program order.
    Tpidr,
}

impl Register {
    /// The architecture's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hcr => "HCR_EL2",
            Self::Vttbr => "VTTBR_EL2",
            Self::Vtcr => "VTCR_EL2",
            Self::Ttbr0 => "TTBR0_EL2",
            Self::Tcr => "TCR_EL2",
            Self::Mair => "MAIR_EL2",
            Self::Sctlr => "SCTLR_EL2",
            Self::Cptr => "CPTR_EL2",
            Self::Sre => "ICC_SRE_EL2",
            Self::Selection => "PMSELR_EL0",
            Self::El1Ttbr => "TTBR0_EL1 or TTBR1_EL1",
            Self::El1Tcr => "TCR_EL1",
            Self::El1Sctlr => "SCTLR_EL1",
            Self::Tpidr => "TPIDR_EL2",
        }
    }
}

/// Scope of a barrier or a maintenance operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// On this PE.
    Own,
    /// On all PEs of the inner shareable domain, or more.
    Shared,
}

/// DSB or DMB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// Its scope.
    pub scope: Scope,
    /// It waits for (orders) stores; a barrier for loads only does not.
    pub stores: bool,
    /// It waits for loads and stores, and so for maintenance.
    pub all: bool,
}

/// TLB entries that a TLBI drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entries {
    /// Everything of EL2.
    AllEl2,
    /// EL2's entries for the address in Xt; only those of the last level if `last`.
    AddressEl2 {
        /// Not those of tables.
        last: bool,
    },
    /// Everything of EL1&0, stages 1 and 2, of all VMIDs.
    AllEl1,
    /// Stages 1 and 2 of the current VMID.
    Vmid,
    /// Stage 2 alone of the current VMID, for the IPA in Xt.
    Ipa {
        /// Not those of tables.
        last: bool,
    },
    /// Entries of the current VMID that combine both stages, or are of stage 1.
    VmidStage1,
    /// A part of those, by address or ASID.
    PartOfStage1,
    /// An address range, which is not followed further.
    Range,
}

/// TLBI
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlbi {
    /// Entries that it drops.
    pub entries: Entries,
    /// PEs on which it drops them.
    pub scope: Scope,
}

/// DC by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dc {
    /// CVAC, CVAP, CVADP: clean to the point of coherency or beyond.
    Clean,
    /// CIVAC
    CleanInvalidate,
    /// IVAC
    Invalidate,
    /// ZVA
    Zero,
}

/// An instruction that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// ISB
    Isb,
    /// DSB
    Dsb(Barrier),
    /// DMB
    Dmb(Barrier),
    /// ERET, ERETAA, ERETAB
    Eret,
    /// SMC
    Smc,
    /// MSR of a register, from Xt.
    Write(Register),
    /// TLBI, with Xt.
    Tlbi(Tlbi),
    /// DC with the address in Xt.
    Dc(Dc),
    /// IC IALLU, IALLUIS; IVAU counts for its line only and is not followed.
    Ic(Scope),
    /// AT of the EL2 regime.
    TranslateEl2,
    /// AT of the EL1&0 regime.
    TranslateEl1,
    /// MRS of PAR_EL1.
    ReadPar,
    /// MRS of HPFAR_EL2.
    ReadFaultAddress,
    /// MRS of ISR_EL1.
    ReadIsr,
    /// Behind a read of ICC_IAR0_EL1 or ICC_IAR1_EL1, whose result is in Xt.
    Acknowledge,
    /// MSR of ICC_SGI0R_EL1, ICC_SGI1R_EL1 or ICC_ASGI1R_EL1, from Xt.
    Sgi,
    /// Access to another register of the GIC's CPU interface.
    Gic,
    /// Access to PMXEVTYPER_EL0 or PMXEVCNTR_EL0, of the counter that PMSELR_EL0 selects.
    Counter,
    /// FP or SIMD instruction, which CPTR_EL2 may trap.
    Fp,
}

/// The instruction `word`, with the number of Xt, if a rule is about it.
pub fn decode(word: u32) -> Option<(Op, u8)> {
    let rt = (word & 31) as u8;
    let op = match word {
        0xd69f_03e0 | 0xd69f_0bff | 0xd69f_0fff => Op::Eret,
        _ if word & 0xffe0_001f == 0xd400_0003 => Op::Smc,
        _ if word & 0xffff_f0ff == 0xd503_30df => Op::Isb,
        _ if word & 0xffff_f0ff == 0xd503_309f => Op::Dsb(barrier(word)),
        _ if word & 0xffff_f0ff == 0xd503_30bf => Op::Dmb(barrier(word)),
        _ if word & 0xfff8_0000 == 0xd508_0000 => system(word)?,
        _ if word & 0xfff0_0000 == 0xd510_0000 => move_to(word)?,
        _ if word & 0xfff0_0000 == 0xd530_0000 => move_from(word)?,
        _ if is_fp(word) => Op::Fp,
        _ => return None,
    };
    Some((op, rt))
}

/// The number of Xt, if `word` reads ICC_IAR0_EL1 or ICC_IAR1_EL1.
pub fn acknowledges(word: u32) -> Option<u8> {
    let iar = [0xd538_c800, 0xd538_cc00].contains(&(word & !31));
    iar.then_some((word & 31) as u8)
}

/// Data processing with FP and SIMD registers, or a load or store of one.
fn is_fp(word: u32) -> bool {
    let group = word >> 25 & 15;
    matches!(group, 0b0111 | 0b1111) || accesses_memory(word) && word >> 26 & 1 == 1
}

fn barrier(word: u32) -> Barrier {
    let (domain, types) = (word >> 10 & 3, word >> 8 & 3);
    // Types 0 are reserved and behave as the full system's, as reserved options do.
    Barrier {
        scope: match domain {
            1 if types != 0 => Scope::Own,
            _ => Scope::Shared,
        },
        stores: types != 1,
        all: types == 3 || types == 0,
    }
}

/// op1, CRn, CRm, op2
const fn fields(word: u32) -> (u32, u32, u32, u32) {
    (
        word >> 16 & 7,
        word >> 12 & 15,
        word >> 8 & 15,
        word >> 5 & 7,
    )
}

/// SYS: DC, IC, AT and TLBI.
fn system(word: u32) -> Option<Op> {
    Some(match fields(word) {
        (0, 7, 1, 0) => Op::Ic(Scope::Shared),
        (0, 7, 5, 0) => Op::Ic(Scope::Own),
        (0, 7, 6, 1) => Op::Dc(Dc::Invalidate),
        (3, 7, 4, 1) => Op::Dc(Dc::Zero),
        (3, 7, 10 | 12 | 13, 1) => Op::Dc(Dc::Clean),
        (3, 7, 14, 1) => Op::Dc(Dc::CleanInvalidate),
        (4, 7, 8, 0 | 1) => Op::TranslateEl2,
        (0, 7, 8 | 9, _) | (4, 7, 8, 4..=7) => Op::TranslateEl1,
        (op1, 8, crm, op2) => Op::Tlbi(tlbi(op1, crm, op2)?),
        _ => return None,
    })
}

fn tlbi(op1: u32, crm: u32, op2: u32) -> Option<Tlbi> {
    let by_ipa = |op2| match op2 {
        1 => Some(Entries::Ipa { last: false }),
        5 => Some(Entries::Ipa { last: true }),
        2 | 6 => Some(Entries::Range),
        _ => None,
    };
    let (scope, entries) = match (op1, crm, op2) {
        (4, 0, _) => (Scope::Shared, by_ipa(op2)?),
        (4, 4, 0) => (Scope::Shared, Entries::Ipa { last: false }),
        (4, 4, 4) => (Scope::Shared, Entries::Ipa { last: true }),
        (4, 4, 3 | 7) => (Scope::Shared, Entries::Range),
        (4, 4, _) => (Scope::Own, by_ipa(op2)?),
        (_, 2 | 5, _) => (Scope::Shared, Entries::Range),
        (_, 6, _) => (Scope::Own, Entries::Range),
        (op1, 1 | 3 | 7, op2) => {
            let scope = if crm == 7 { Scope::Own } else { Scope::Shared };
            let entries = match (op1, op2) {
                (4, 0) => Entries::AllEl2,
                (4, 1) => Entries::AddressEl2 { last: false },
                (4, 5) => Entries::AddressEl2 { last: true },
                (4, 4) => Entries::AllEl1,
                (4, 6) => Entries::Vmid,
                (0, 0) => Entries::VmidStage1,
                (0, 1 | 2 | 3 | 5 | 7) => Entries::PartOfStage1,
                _ => return None,
            };
            (scope, entries)
        }
        _ => return None,
    };
    Some(Tlbi { entries, scope })
}

/// MSR (register).
fn move_to(word: u32) -> Option<Op> {
    let op0 = 2 + (word >> 19 & 1);
    let (op1, crn, crm, op2) = fields(word);
    let register = match (op0, op1, crn, crm, op2) {
        (3, 4, 1, 1, 0) => Register::Hcr,
        (3, 4, 2, 1, 0) => Register::Vttbr,
        (3, 4, 2, 1, 2) => Register::Vtcr,
        (3, 4, 2, 0, 0) => Register::Ttbr0,
        (3, 4, 2, 0, 2) => Register::Tcr,
        (3, 4, 10, 2, 0) => Register::Mair,
        (3, 4, 1, 0, 0) => Register::Sctlr,
        (3, 4, 1, 1, 2) => Register::Cptr,
        (3, 4, 12, 9, 5) => Register::Sre,
        (3, 3, 9, 12, 5) => Register::Selection,
        (3, 0, 2, 0, 0 | 1) => Register::El1Ttbr,
        (3, 0, 2, 0, 2) => Register::El1Tcr,
        (3, 0, 1, 0, 0) => Register::El1Sctlr,
        (3, 4, 13, 0, 2) => Register::Tpidr,
        (3, 3, 9, 13, 1 | 2) => return Some(Op::Counter),
        (3, 0, 12, 11, 5..=7) => return Some(Op::Sgi),
        (3, 3, 4, 4, 0 | 1) => return Some(Op::Fp),
        (3, _, _, _, _) if is_gic(op1, crn, crm) => return Some(Op::Gic),
        _ => return None,
    };
    Some(Op::Write(register))
}

/// MRS
fn move_from(word: u32) -> Option<Op> {
    let op0 = 2 + (word >> 19 & 1);
    let (op1, crn, crm, op2) = fields(word);
    match (op0, op1, crn, crm, op2) {
        (3, 0, 7, 4, 0) => Some(Op::ReadPar),
        (3, 4, 6, 0, 4) => Some(Op::ReadFaultAddress),
        (3, 0, 12, 1, 0) => Some(Op::ReadIsr),
        (3, 3, 9, 13, 1 | 2) => Some(Op::Counter),
        (3, 3, 4, 4, 0 | 1) => Some(Op::Fp),
        (3, _, _, _, _) if is_gic(op1, crn, crm) => Some(Op::Gic),
        _ => None,
    }
}

/// ICC and ICH registers (IHI 0069H, 12.1.4), but those that ICC_SRE_EL2 does not govern.
fn is_gic(op1: u32, crn: u32, crm: u32) -> bool {
    match (op1, crn) {
        (0, 4) => crm == 6,
        (0, 12) => (8..=12).contains(&crm) && crm != 10,
        (4, 12) => crm == 8 || (11..=13).contains(&crm),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(word: u32) -> Option<Op> {
        decode(word).map(|(op, _)| op)
    }

    fn tlbi(entries: Entries, scope: Scope) -> Option<Op> {
        Some(Op::Tlbi(Tlbi { entries, scope }))
    }

    #[test]
    fn barriers_have_scope_and_kind() {
        let dsb = |word| match op(word) {
            Some(Op::Dsb(barrier)) => (barrier.scope, barrier.stores, barrier.all),
            other => panic!("{word:#x}: {other:?}"),
        };
        assert_eq!(dsb(0xd503_3f9f), (Scope::Shared, true, true)); // dsb sy
        assert_eq!(dsb(0xd503_3b9f), (Scope::Shared, true, true)); // dsb ish
        assert_eq!(dsb(0xd503_3a9f), (Scope::Shared, true, false)); // dsb ishst
        assert_eq!(dsb(0xd503_379f), (Scope::Own, true, true)); // dsb nsh
        assert_eq!(dsb(0xd503_369f), (Scope::Own, true, false)); // dsb nshst
        assert_eq!(dsb(0xd503_399f), (Scope::Shared, false, false)); // dsb ishld
        assert!(matches!(op(0xd503_3bbf), Some(Op::Dmb(_)))); // dmb ish
        assert_eq!(op(0xd503_3fdf), Some(Op::Isb));
        assert_eq!(op(0xd503_30ff), None); // sb
    }

    #[test]
    fn maintenance_is_told_apart() {
        use Scope::{Own, Shared};
        assert_eq!(op(0xd50c_871f), tlbi(Entries::AllEl2, Own)); // tlbi alle2
        assert_eq!(op(0xd50c_831f), tlbi(Entries::AllEl2, Shared)); // tlbi alle2is
        assert_eq!(decode(0xd50c_8728).unwrap().1, 8); // tlbi vae2, x8
        assert_eq!(
            op(0xd50c_8728),
            tlbi(Entries::AddressEl2 { last: false }, Own)
        );
        assert_eq!(op(0xd50c_87df), tlbi(Entries::Vmid, Own)); // tlbi vmalls12e1
        assert_eq!(op(0xd50c_83df), tlbi(Entries::Vmid, Shared)); // tlbi vmalls12e1is
        assert_eq!(op(0xd50c_8420), tlbi(Entries::Ipa { last: false }, Own)); // tlbi ipas2e1, x0
        assert_eq!(op(0xd50c_80a0), tlbi(Entries::Ipa { last: true }, Shared)); // tlbi ipas2le1is, x0
        assert_eq!(op(0xd508_871f), tlbi(Entries::VmidStage1, Own)); // tlbi vmalle1
        assert_eq!(op(0xd50c_879f), tlbi(Entries::AllEl1, Own)); // tlbi alle1
        assert_eq!(op(0xd508_751f), Some(Op::Ic(Own))); // ic iallu
        assert_eq!(op(0xd508_711f), Some(Op::Ic(Shared))); // ic ialluis
        assert_eq!(decode(0xd50b_7a20), Some((Op::Dc(Dc::Clean), 0))); // dc cvac, x0
        assert_eq!(op(0xd50b_7b20), None); // dc cvau, x0
        assert_eq!(op(0xd50b_7e20), Some(Op::Dc(Dc::CleanInvalidate))); // dc civac, x0
        assert_eq!(op(0xd508_7623), Some(Op::Dc(Dc::Invalidate))); // dc ivac, x3
        assert_eq!(op(0xd50b_7420), Some(Op::Dc(Dc::Zero))); // dc zva, x0
        assert_eq!(op(0xd50c_7800), Some(Op::TranslateEl2)); // at s1e2r, x0
        assert_eq!(op(0xd50c_7880), Some(Op::TranslateEl1)); // at s12e1r, x0
    }

    #[test]
    fn registers_and_the_rest() {
        assert_eq!(decode(0xd51c_2108), Some((Op::Write(Register::Vttbr), 8)));
        assert_eq!(op(0xd51c_1100), Some(Op::Write(Register::Hcr)));
        assert_eq!(op(0xd51c_1001), Some(Op::Write(Register::Sctlr)));
        assert_eq!(op(0xd51c_d05f), Some(Op::Write(Register::Tpidr)));
        // msr ttbr0_el1, x0; msr ttbr1_el1, x0; msr tcr_el1, x0; msr sctlr_el1, x0
        let stage1 = [0xd518_2000, 0xd518_2020, 0xd518_2040, 0xd518_1000].map(op);
        let registers = [
            Register::El1Ttbr,
            Register::El1Ttbr,
            Register::El1Tcr,
            Register::El1Sctlr,
        ];
        assert_eq!(stage1, registers.map(|register| Some(Op::Write(register))));
        assert_eq!(op(0xd51c_4020), None); // msr elr_el2, x0
        assert_eq!(op(0xd518_cba0), Some(Op::Sgi)); // msr icc_sgi1r_el1, x0
        assert_eq!(op(0xd538_cc00), Some(Op::Gic)); // mrs x0, icc_iar1_el1
        assert_eq!(op(0xd51c_cc00), Some(Op::Gic)); // msr ich_lr0_el2, x0
        assert_eq!(op(0xd51c_c9a0), Some(Op::Write(Register::Sre)));
        assert_eq!(op(0xd51b_9ca0), Some(Op::Write(Register::Selection)));
        // msr pmxevtyper_el0, x0; mrs x0, pmxevcntr_el0; mrs x0, pmccntr_el0
        let counters = [0xd51b_9d20, 0xd53b_9d40, 0xd53b_9d00].map(op);
        assert_eq!(counters, [Some(Op::Counter), Some(Op::Counter), None]);
        assert_eq!(op(0xd538_7408), Some(Op::ReadPar)); // mrs x8, par_el1
        // mrs x0, hpfar_el2; mrs x0, far_el2
        let addresses = [0xd53c_6080, 0xd53c_6000].map(op);
        assert_eq!(addresses, [Some(Op::ReadFaultAddress), None]);
        assert_eq!(op(0xd69f_03e0), Some(Op::Eret));
        assert_eq!(op(0xd400_0003), Some(Op::Smc));
        assert_eq!(op(0xd400_0002), None); // hvc
        assert_eq!(op(0x6f00_e400), Some(Op::Fp)); // movi v0.2d, #0
        assert_eq!(op(0x3dc0_03e0), Some(Op::Fp)); // ldr q0, [sp]
        assert_eq!(op(0xd51b_441f), Some(Op::Fp)); // msr fpcr, xzr
        assert_eq!(op(0xf940_03e0), None); // ldr x0, [sp]
        assert!(accesses_memory(0xa9bf_07e0) && accesses_memory(0x885f_fc01));
        assert!(!accesses_memory(0x8b01_0000));
    }
}

//! System registers that trap: the effect of each access, and the values of the ID registers.
//!
//! ID registers are an allow-list: a field that is not named here reads as "not implemented" (DDI
//! 0487, D24.2). A named field either needs nothing from EL2 (instructions for programs) or is
//! virtualised.

use crate::cpu::exit::sysreg;
use crate::devices::ptimer::Register;
pub use crate::gppt::Common;

/// Effect of an access to a trapped register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// ID register number `n` of [`IdRegisters`]; writes are undefined.
    Id(usize),
    /// A write to ICC_DIR_EL1, which traps while an active interrupt is spilled, and always with
    /// ICH_HCR_EL2.TC.
    Deactivate,
    /// A register of the CPU interface that both groups share, which traps with ICH_HCR_EL2.TC.
    Common(Common),
    /// Reads as this value, writes are ignored.
    Fixed(u64),
    /// SGI registers; `true` for group 1.
    Sgi(bool),
    /// A register of the EL1 physical timer, if the timer is emulated for the VM.
    PhysicalTimer(Register),
    /// Cache maintenance by set and way: has no effect (`docs/adr/0003-exit-path.md`).
    SetWay,
    /// Undefined for guests.
    Undefined,
}

/// ICC_SGI1R_EL1.
pub const ICC_SGI1R: u32 = sysreg(3, 0, 12, 11, 5);
const ICC_ASGI1R: u32 = sysreg(3, 0, 12, 11, 6);
const ICC_SGI0R: u32 = sysreg(3, 0, 12, 11, 7);
/// ICC_DIR_EL1.
const ICC_DIR: u32 = sysreg(3, 0, 12, 11, 1);
const ICC_PMR: u32 = sysreg(3, 0, 4, 6, 0);
const ICC_RPR: u32 = sysreg(3, 0, 12, 11, 3);
const ICC_CTLR: u32 = sysreg(3, 0, 12, 12, 4);
/// Registers of Group 0, which trap with ICH_HCR_EL2.TALL0.
const ICC_IAR0: u32 = sysreg(3, 0, 12, 8, 0);
const ICC_EOIR0: u32 = sysreg(3, 0, 12, 8, 1);
const ICC_HPPIR0: u32 = sysreg(3, 0, 12, 8, 2);
const ICC_BPR0: u32 = sysreg(3, 0, 12, 8, 3);
const ICC_AP0R0: u32 = sysreg(3, 0, 12, 8, 4);
const ICC_AP0R1: u32 = sysreg(3, 0, 12, 8, 5);
const ICC_AP0R2: u32 = sysreg(3, 0, 12, 8, 6);
const ICC_AP0R3: u32 = sysreg(3, 0, 12, 8, 7);
const ICC_IGRPEN0: u32 = sysreg(3, 0, 12, 12, 6);
/// Traps where ICC_SRE_EL2.Enable can be 0.
const ICC_SRE: u32 = sysreg(3, 0, 12, 12, 5);
const ACTLR: u32 = sysreg(3, 0, 1, 0, 1);
const REVIDR: u32 = sysreg(3, 0, 0, 0, 6);
const AIDR: u32 = sysreg(3, 1, 0, 0, 7);
const MDSCR: u32 = sysreg(2, 0, 0, 2, 2);
const MDCCINT: u32 = sysreg(2, 0, 0, 2, 0);
const OSLAR: u32 = sysreg(2, 0, 1, 0, 4);
const OSLSR: u32 = sysreg(2, 0, 1, 1, 4);
const OSDLR: u32 = sysreg(2, 0, 1, 3, 4);
const CNTP_TVAL: u32 = sysreg(3, 3, 14, 2, 0);
const CNTP_CTL: u32 = sysreg(3, 3, 14, 2, 1);
const CNTP_CVAL: u32 = sysreg(3, 3, 14, 2, 2);
const DBGPRCR: u32 = sysreg(2, 0, 1, 4, 4);

/// OSLSR_EL1: the OS lock is implemented and not locked.
const UNLOCKED: u64 = 1 << 3;

/// Value of ICC_IAR0_EL1 while nothing is pending.
const NO_INTERRUPT: u64 = 1023;

/// Decides an access by the encoding of its register.
#[inline]
pub const fn access(register: u32) -> Access {
    match register {
        ICC_DIR => Access::Deactivate,
        ICC_PMR => Access::Common(Common::Mask),
        ICC_RPR => Access::Common(Common::Running),
        ICC_CTLR => Access::Common(Common::Control),
        ICC_IAR0 | ICC_HPPIR0 => Access::Fixed(NO_INTERRUPT),
        // SRE, DFB and DIB: RAO/WI.
        ICC_SRE => Access::Fixed(7),
        ICC_EOIR0 | ICC_BPR0 | ICC_IGRPEN0 => Access::Fixed(0),
        ICC_AP0R0 | ICC_AP0R1 | ICC_AP0R2 | ICC_AP0R3 => Access::Fixed(0),
        ICC_SGI1R => Access::Sgi(true),
        ICC_SGI0R => Access::Sgi(false),
        // The alias for the other Security state, which a VM does not have.
        ICC_ASGI1R | ACTLR | MDSCR | MDCCINT | OSLAR | OSDLR | DBGPRCR => Access::Fixed(0),
        // REVIDR and AIDR trap together with SMIDR_EL1, which must trap on a CPU with SME.
        REVIDR | AIDR => Access::Fixed(0),
        OSLSR => Access::Fixed(UNLOCKED),
        CNTP_TVAL => Access::PhysicalTimer(Register::Value),
        CNTP_CTL => Access::PhysicalTimer(Register::Control),
        CNTP_CVAL => Access::PhysicalTimer(Register::Compare),
        _ => rare(register),
    }
}

/// Returns the number of an ID register in [`IdRegisters`]: op0 3, op1 and CRn 0, CRm 1 to 7. `None`
/// for any other register.
#[inline(always)]
pub const fn id_register(register: u32) -> Option<usize> {
    let op2 = register >> 17 & 7;
    let crm = register >> 1 & 15;
    let others = register & (3 << 20 | 7 << 14 | 15 << 10);
    if others == 3 << 20 && matches!(crm, 1..=7) {
        Some((crm as usize - 1) * 8 + op2 as usize)
    } else {
        None
    }
}

const fn rare(register: u32) -> Access {
    if let Some(n) = id_register(register) {
        return Access::Id(n);
    }
    let op0 = register >> 20 & 3;
    let op2 = register >> 17 & 7;
    let op1 = register >> 14 & 7;
    let crn = register >> 10 & 15;
    let crm = register >> 1 & 15;
    match (op0, op1, crn, crm) {
        // DC ISW, DC CSW, DC CISW.
        (1, 0, 7, 6 | 10 | 14) if op2 == 2 => Access::SetWay,
        // Two breakpoints and two watchpoints, which the architecture requires and which have no
        // effect in a VM.
        (2, 0, 0, 0 | 1) if op2 >= 4 && op2 <= 7 => Access::Fixed(0),
        _ => Access::Undefined,
    }
}

/// Number of registers in the ID space of a guest: CRm 1 to 7, op2 0 to 7.
pub const ID_REGISTERS: usize = 56;

/// Number of an ID register from CRm and op2.
pub const fn id(crm: usize, op2: usize) -> usize {
    (crm - 1) * 8 + op2
}

/// A field that guests may see: the register, the lowest bit, and the largest value. A field is
/// four bits wide; guests see the smaller of this value and the board's.
struct Field(usize, u32, u64);

const PFR0: usize = id(4, 0);
const PFR1: usize = id(4, 1);
const DFR0: usize = id(5, 0);
const ISAR0: usize = id(6, 0);
const ISAR1: usize = id(6, 1);
const ISAR2: usize = id(6, 2);
const ISAR3: usize = id(6, 3);
const MMFR0: usize = id(7, 0);
const MMFR1: usize = id(7, 1);
const MMFR2: usize = id(7, 2);

/// Fields that count upwards from 0 = "not implemented". There are two kinds: features that
/// programs use and that need nothing from EL2, and features that no control of EL2 can disable, so
/// that hiding them would be in vain. A feature that is absent here is trapped, undefined or
/// without effect (`CAVEATS.md` says which).
const ALLOWED: [Field; 64] = [
    // Branch target identification, speculative store bypass; speculation controls, but not
    // SCXTNUM_ELx (CSV2 from 2 on), which trap; data-independent timing.
    Field(PFR1, 0, 1),
    Field(PFR1, 4, 2),
    Field(PFR0, 48, 1),
    Field(PFR0, 56, 1),
    Field(PFR0, 60, 1),
    // AES, SHA1, SHA2, CRC32, atomics, RDM, SHA3, SM3, SM4, DP, FHM, TS, TLB, RNDR.
    Field(ISAR0, 4, 2),
    Field(ISAR0, 8, 1),
    Field(ISAR0, 12, 2),
    Field(ISAR0, 16, 1),
    Field(ISAR0, 20, 3),
    Field(ISAR0, 28, 1),
    Field(ISAR0, 32, 1),
    Field(ISAR0, 36, 1),
    Field(ISAR0, 40, 1),
    Field(ISAR0, 44, 1),
    Field(ISAR0, 48, 1),
    Field(ISAR0, 52, 2),
    Field(ISAR0, 56, 2),
    Field(ISAR0, 60, 1),
    // DPB, JSCVT, FCMA, LRCPC, FRINTTS, SB, SPECRES, BF16, DGH, I8MM, XS. Pointer authentication is
    // not offered.
    Field(ISAR1, 0, 2),
    Field(ISAR1, 12, 1),
    Field(ISAR1, 16, 1),
    Field(ISAR1, 20, 3),
    Field(ISAR1, 32, 1),
    Field(ISAR1, 36, 1),
    Field(ISAR1, 40, 2),
    Field(ISAR1, 44, 2),
    Field(ISAR1, 48, 1),
    Field(ISAR1, 52, 1),
    Field(ISAR1, 56, 1),
    // WFxT, RPRES, BC, CLRBHB, RPRFM, CSSC, LUT; FAMINMAX, LSFE, FPRCVT.
    Field(ISAR2, 0, 2),
    Field(ISAR2, 4, 1),
    Field(ISAR2, 20, 1),
    Field(ISAR2, 28, 1),
    Field(ISAR2, 48, 1),
    Field(ISAR2, 52, 1),
    Field(ISAR2, 56, 1),
    Field(ISAR3, 4, 1),
    Field(ISAR3, 16, 1),
    Field(ISAR3, 28, 1),
    // PARange at most 40 bits; ASIDBits, BigEnd, SNSMem, BigEndEL0, TGran16; self-synchronising
    // counters.
    Field(MMFR0, 0, 2),
    Field(MMFR0, 4, 2),
    Field(MMFR0, 8, 1),
    Field(MMFR0, 12, 1),
    Field(MMFR0, 16, 1),
    Field(MMFR0, 20, 2),
    Field(MMFR0, 60, 1),
    // HAFDBS, HPDS, PAN, ETS, AFP, TIDCP1, CMOW, ECBHB.
    Field(MMFR1, 0, 2),
    Field(MMFR1, 12, 2),
    Field(MMFR1, 20, 3),
    Field(MMFR1, 36, 3),
    Field(MMFR1, 44, 1),
    Field(MMFR1, 52, 1),
    Field(MMFR1, 56, 1),
    Field(MMFR1, 60, 1),
    // CnP, UAO, LSM, VARange, CCIDX, ST, AT, TTL, E0PD.
    Field(MMFR2, 0, 1),
    Field(MMFR2, 4, 1),
    Field(MMFR2, 8, 1),
    Field(MMFR2, 16, 1),
    Field(MMFR2, 20, 1),
    Field(MMFR2, 28, 1),
    Field(MMFR2, 32, 1),
    Field(MMFR2, 48, 1),
    Field(MMFR2, 60, 1),
];

/// Registers with fields of [`ALLOWED`], and the largest values of these, 0 in all other fields.
const LIMITS: [(usize, u64); 9] = [
    limits(PFR0),
    limits(PFR1),
    limits(ISAR0),
    limits(ISAR1),
    limits(ISAR2),
    limits(ISAR3),
    limits(MMFR0),
    limits(MMFR1),
    limits(MMFR2),
];

const fn limits(of: usize) -> (usize, u64) {
    let mut all = 0;
    let mut n = 0;
    while n < ALLOWED.len() {
        let Field(register, shift, most) = ALLOWED[n];
        if register == of {
            all |= most << shift;
        }
        n += 1;
    }
    (of, all)
}

/// In each four bits the smaller number of both.
const fn smaller(one: u64, other: u64) -> u64 {
    const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    /// The same of every other four bits, between which there are four that are 0.
    const fn apart(one: u64, other: u64) -> u64 {
        const BORROW: u64 = 0x1010_1010_1010_1010;
        // 1 where `one` is not the smaller number: nothing was borrowed.
        let not_below = ((one | BORROW).wrapping_sub(other) & BORROW) >> 4;
        let whole = not_below.wrapping_mul(15);
        other & whole | one & !whole
    }
    let high = apart(one >> 4 & LOW, other >> 4 & LOW);
    high << 4 | apart(one & LOW, other & LOW)
}

/// Values of the ID registers as a guest reads them.
#[derive(Clone, Copy, Debug)]
pub struct IdRegisters([u64; ID_REGISTERS]);

impl IdRegisters {
    /// All zero, before the board's registers have been read.
    pub const NONE: Self = Self([0; ID_REGISTERS]);

    /// Derives the guest's values from those of the board, in the order of [`id`].
    pub const fn new(host: &[u64; ID_REGISTERS]) -> Self {
        let mut seen = [0; ID_REGISTERS];
        let mut n = 0;
        while n < LIMITS.len() {
            let (register, most) = LIMITS[n];
            seen[register] = smaller(host[register], most);
            n += 1;
        }
        // EL0 and EL1 in AArch64 only; FP and AdvSIMD as the board has them (0xf: none); the system
        // register interface of a GICv3.
        seen[PFR0] |= 0x11 | host[PFR0] & 0xff_0000 | 1 << 24;
        // Debug as in Armv8.0 with two breakpoints, two watchpoints and one context breakpoint.
        seen[DFR0] = 6 | 1 << 12 | 1 << 20;
        // TGran64 and TGran4: 0 is implemented, 0xf is not.
        seen[MMFR0] |= host[MMFR0] & 0xff00_0000;
        Self(seen)
    }

    /// The values for a VM whose CPU interface of the GIC is memory-mapped (GICv2), on a CPU that
    /// also has the system register interface: ID_AA64PFR0_EL1.GIC reads as 0.
    pub const fn with_gicv2(self) -> Self {
        let mut seen = self.0;
        seen[PFR0] &= !(15 << 24);
        Self(seen)
    }

    /// The values for a VM with the debug registers of a CPU with this ID_AA64DFR0_EL1: as many breakpoints and watchpoints, of Armv8.0.
    pub const fn with_debug(self, dfr0: u64) -> Self {
        const COUNTS: u64 = 15 << 12 | 15 << 20 | 15 << 28;
        let mut seen = self.0;
        seen[DFR0] = seen[DFR0] & !COUNTS | dfr0 & COUNTS;
        Self(seen)
    }

    /// The values for a VM with performance monitors of this version (ID_AA64DFR0_EL1.PMUVer).
    pub const fn with_pmu(self, version: u64) -> Self {
        let mut seen = self.0;
        seen[DFR0] = seen[DFR0] & !(15 << 8) | version << 8;
        Self(seen)
    }

    /// Value of register `n`.
    #[inline(always)]
    pub const fn get(&self, n: usize) -> u64 {
        if n < ID_REGISTERS { self.0[n] } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_nobody_thought_about_reads_as_absent() {
        let all = IdRegisters::new(&[u64::MAX; ID_REGISTERS]);
        // EL2, EL3, RAS, SVE, SEL2, MPAM, AMU.
        assert_eq!(all.get(PFR0) & 0x00f0_ffff_f000_ff00, 0);
        assert_eq!(all.get(PFR0) & 0xff, 0x11);
        assert_eq!(all.get(PFR1), 0x21);
        assert_ne!(all.get(PFR0) >> 24 & 15, 0);
        assert_eq!(all.with_gicv2().get(PFR0) >> 24 & 15, 0);
        // Trace, PMU, statistical profiling.
        assert_eq!(all.get(DFR0), 0x10_1006);
        assert_eq!(all.with_debug(0x1030_5106).get(DFR0), 0x1030_5006);
        assert_eq!(all.with_pmu(4).get(DFR0), 0x10_1406);
        // APA, API, GPA, GPI.
        assert_eq!(all.get(ISAR1) & 0xff00_0ff0, 0);
        assert_eq!(all.get(MMFR0) & 15, 2);
        // SCXTNUM_ELx, which comes with CSV2 2.
        assert_eq!(all.get(PFR0) >> 56 & 15, 1);
        // GPA3, APA3, MOPS, PAC_frac, 128-bit system registers and instructions.
        assert_eq!(all.get(ISAR2), 0x0111_0000_1010_0012);
        // Checked pointers, TLBI by list, PACM, unprivileged LSE.
        assert_eq!(all.get(ISAR3), 0x1001_0010);
        // Fine-grained traps, ExS.
        assert_eq!(all.get(MMFR0) & 0x0ff0_ffff_0000_0000, 0);
        // Virtualization host, VMID bits, limited ordering, SpecSEI, XNX, TWED, HCRX, nTLBPA.
        assert_eq!(all.get(MMFR1) & 0x000f_0f0f_ff0f_0ff0, 0);
        // IESB, nested virtualization, IDS, FWB, BBM, EVT.
        assert_eq!(all.get(MMFR2) & 0x0ff0_fff0_0f00_f000, 0);
        let named = [
            PFR0, PFR1, DFR0, ISAR0, ISAR1, ISAR2, ISAR3, MMFR0, MMFR1, MMFR2,
        ];
        for n in (0..ID_REGISTERS).filter(|n| !named.contains(n)) {
            assert_eq!(all.get(n), 0, "register {n}");
        }
    }

    #[test]
    fn a_board_that_has_less_shows_less() {
        let mut host = [0; ID_REGISTERS];
        host[PFR0] = 0x00ff_0022;
        host[ISAR0] = 0x0001_1120;
        host[MMFR0] = 0x0f10_1122;
        let seen = IdRegisters::new(&host);
        assert_eq!(seen.get(PFR0), 0x01ff_0011);
        assert_eq!(seen.get(ISAR0), 0x0001_1120);
        assert_eq!(seen.get(MMFR0), 0x0f10_1122);
    }

    #[test]
    fn of_each_field_the_smaller_value_is_seen() {
        for host in 0..16 {
            for most in 0..16 {
                let (host, most): (u64, u64) = (host, most);
                for shift in (0..64).step_by(4) {
                    // All other fields are as far from these as they can be, one way and the other.
                    for around in [0, !(15 << shift)] {
                        let seen = smaller(host << shift | around, most << shift);
                        assert_eq!(seen, host.min(most) << shift, "{host} {most} {shift}");
                        let seen = smaller(host << shift, most << shift | around);
                        assert_eq!(seen, host.min(most) << shift, "{host} {most} {shift}");
                    }
                }
            }
        }
        for Field(register, shift, most) in ALLOWED {
            let (_, limits) = LIMITS.iter().find(|(of, _)| *of == register).unwrap();
            assert_eq!(
                limits >> shift & 15,
                most,
                "register {register} bit {shift}"
            );
        }
        let ones = LIMITS
            .map(|(_, limits)| limits.count_ones())
            .iter()
            .sum::<u32>();
        let allowed = ALLOWED.map(|Field(_, _, most)| most.count_ones());
        assert_eq!(ones, allowed.iter().sum::<u32>());
    }

    #[test]
    fn accesses_are_decided_by_encoding() {
        assert_eq!(access(sysreg(3, 0, 0, 4, 0)), Access::Id(PFR0));
        assert_eq!(access(sysreg(3, 0, 0, 1, 0)), Access::Id(0));
        assert_eq!(access(sysreg(3, 0, 0, 7, 7)), Access::Id(55));
        assert_eq!(access(ICC_SGI1R), Access::Sgi(true));
        assert_eq!(access(sysreg(3, 0, 4, 6, 0)), Access::Common(Common::Mask));
        assert_eq!(access(OSLSR), Access::Fixed(8));
        assert_eq!(access(sysreg(3, 0, 12, 12, 5)), Access::Fixed(7));
        for (op2, register) in [
            (0, Register::Value),
            (1, Register::Control),
            (2, Register::Compare),
        ] {
            let access = access(sysreg(3, 3, 14, 2, op2));
            assert_eq!(access, Access::PhysicalTimer(register));
        }
        assert_eq!(access(REVIDR), Access::Fixed(0));
        // Group 0 does not exist: nothing is pending, and nothing can be changed.
        let group0 = [0, 1, 2, 3, 4, 5, 6, 7].map(|op2| access(sysreg(3, 0, 12, 8, op2)));
        let (none, zero) = (Access::Fixed(1023), Access::Fixed(0));
        assert_eq!(group0, [none, zero, none, zero, zero, zero, zero, zero]);
        assert_eq!(access(sysreg(3, 0, 12, 12, 6)), zero);
        assert_eq!(access(sysreg(3, 0, 12, 12, 7)), Access::Undefined);
        assert_eq!(access(sysreg(1, 0, 7, 14, 2)), Access::SetWay);
        assert_eq!(
            access(sysreg(2, 0, 0, 1, 5)),
            Access::Fixed(0),
            "DBGBCR1_EL1"
        );
        for undefined in [
            sysreg(3, 3, 9, 12, 0), // PMCR_EL0
            sysreg(3, 7, 14, 2, 1), // CNTPS_CTL_EL1
            sysreg(3, 4, 1, 1, 0),  // HCR_EL2
            sysreg(3, 0, 2, 1, 0),  // APIAKeyLo_EL1
            sysreg(3, 1, 0, 0, 6),  // SMIDR_EL1
            sysreg(2, 0, 0, 3, 4),  // DBGBVR3_EL1
            sysreg(3, 0, 10, 4, 0), // LORSA_EL1
        ] {
            assert_eq!(access(undefined), Access::Undefined, "{undefined:#x}");
        }
    }
}

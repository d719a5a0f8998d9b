//! The calls of the SMC Calling Convention itself (DEN0028E, section 7, version 1.2): its version,
//! and the workarounds for speculation attacks, which EL2 forwards to the firmware of the board if
//! it has them.
//!
//! A result is x0 (and x1 to x3 where a call says so); every other register keeps its value, as
//! version 1.2 requires of x8 to x17.

use crate::cpu::errata;
use crate::cpu::psci::answer;

/// SMCCC_VERSION.
pub const SMCCC_VERSION: u32 = 0x8000_0000;
/// SMCCC_ARCH_FEATURES.
pub const ARCH_FEATURES: u32 = 0x8000_0001;
/// Version 1.2.
const VERSION_1_2: u64 = 0x1_0002;
/// The oldest version that has SMCCC_ARCH_FEATURES: 1.1.
const VERSION_1_1: u64 = 0x1_0001;
/// PSCI_VERSION and PSCI_FEATURES, by which EL2 finds out whether the firmware implements this
/// convention.
const PSCI_VERSION: u32 = 0x8400_0000;
const PSCI_FEATURES: u32 = 0x8400_000a;
const PSCI_1_0: u64 = 0x1_0000;

/// Return values of SMCCC_ARCH_FEATURES besides success and "not supported".
const SAFE_AND_NOT_NEEDED: u64 = 1;
/// For SMCCC_ARCH_WORKAROUND_2 only: not needed, or always on, and the call does not exist.
const NOT_REQUIRED: u64 = -2i64 as u64;

/// The workarounds for attacks on speculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Workaround {
    /// SMCCC_ARCH_WORKAROUND_1: branch targets (CVE-2017-5715).
    BranchTarget = 0,
    /// SMCCC_ARCH_WORKAROUND_2: speculative store bypass (CVE-2018-3639).
    StoreBypass = 1,
    /// SMCCC_ARCH_WORKAROUND_3: branch targets and branch history (CVE-2017-5715, CVE-2022-23960).
    BranchHistory = 2,
}

impl Workaround {
    /// All workarounds.
    pub const ALL: [Self; 3] = [Self::BranchTarget, Self::StoreBypass, Self::BranchHistory];

    /// Function identifier.
    pub const fn function(self) -> u32 {
        match self {
            Self::BranchTarget => 0x8000_8000,
            Self::StoreBypass => 0x8000_7fff,
            Self::BranchHistory => 0x8000_3fff,
        }
    }

    /// The workaround that a function identifier names.
    pub const fn of(function: u32) -> Option<Self> {
        match function {
            0x8000_8000 => Some(Self::BranchTarget),
            0x8000_7fff => Some(Self::StoreBypass),
            0x8000_3fff => Some(Self::BranchHistory),
            _ => None,
        }
    }
}

/// ID registers of a CPU (DDI 0487, D24.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// MIDR_EL1.
    pub midr: u64,
    /// ID_AA64PFR0_EL1.
    pub pfr0: u64,
    /// ID_AA64PFR1_EL1.
    pub pfr1: u64,
    /// ID_AA64MMFR1_EL1.
    pub mmfr1: u64,
    /// ID_AA64ISAR2_EL1.
    pub isar2: u64,
}

impl Cpu {
    /// Whether the CPU is a core of Arm's that does not speculate far enough for any of these
    /// attacks: Cortex-A35, A53 and A55.
    const fn is_in_order(self) -> bool {
        self.midr >> 24 & 0xff == 0x41 && matches!(self.midr >> 4 & 0xfff, 0xd03..=0xd05)
    }

    /// Whether the CPU does not need a workaround, according to its ID registers or by its type.
    const fn is_immune(self, workaround: Workaround) -> bool {
        if self.is_in_order() {
            return true;
        }
        // ID_AA64PFR0_EL1.CSV2: branch targets are separated by context; 3 (CSV2_3): branch history
        // is too.
        let csv2 = self.pfr0 >> 56 & 15;
        // ID_AA64ISAR2_EL1.CLRBHB: a guest can clear the history by itself; ID_AA64MMFR1_EL1.ECBHB:
        // it need not.
        let history = self.isar2 >> 28 & 15 != 0 || self.mmfr1 >> 60 & 15 != 0;
        match workaround {
            Workaround::BranchTarget => csv2 != 0,
            Workaround::BranchHistory => csv2 >= 3 || history && csv2 != 0,
            // ID_AA64PFR1_EL1.SSBS: the guest controls it directly through PSTATE.SSBS. That is not
            // immunity, but the call would not be used either.
            Workaround::StoreBypass => self.pfr1 >> 4 & 15 != 0,
        }
    }
}

/// First action of EL2 when a guest enters it, so that branch predictions that the guest has
/// trained do not lead EL2's speculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// The CPU keeps the contexts apart by itself, or does not speculate that far.
    Nothing,
    /// So many branches, then CLRBHB, which does nothing on CPUs without it.
    Branches(u32),
    /// This call of the firmware.
    Firmware(u32),
}

/// Workarounds of a pCPU, detected once when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workarounds {
    answers: [u64; 3],
    passed_on: [bool; 3],
}

impl Workarounds {
    /// The answers before detection: nothing is offered.
    pub const NONE: Self = Self {
        answers: [answer::NOT_SUPPORTED; 3],
        passed_on: [false; 3],
    };

    /// Asks the firmware of the current CPU for its workarounds. `firmware` takes a function
    /// identifier and x1 and returns x0. The order of the calls is the one of the convention, so
    /// that old firmware does not get calls that it does not know.
    pub fn find(cpu: Cpu, mut firmware: impl FnMut(u32, u64) -> u64) -> Self {
        let known = is_version(firmware(PSCI_VERSION, 0), PSCI_1_0)
            && firmware(PSCI_FEATURES, u64::from(SMCCC_VERSION)) as i32 >= 0
            && is_version(firmware(SMCCC_VERSION, 0), VERSION_1_1);
        let mut found = Self::NONE;
        let pairs = found.answers.iter_mut().zip(&mut found.passed_on);
        for (workaround, (answer, passed_on)) in Workaround::ALL.into_iter().zip(pairs) {
            let said = if known {
                firmware(ARCH_FEATURES, u64::from(workaround.function())) as u32 as i32
            } else {
                -1
            };
            *passed_on = said == 0 || said == 1;
            *answer = decide(workaround, cpu, said);
            if matches!(workaround, Workaround::StoreBypass) && *passed_on {
                // It stays on. What a guest could turn off would be off for EL2 as well, which has the
                // memory of all, and for the next guest.
                if said == 0 {
                    firmware(workaround.function(), 1);
                }
                (*answer, *passed_on) = (NOT_REQUIRED, false);
            }
        }
        found
    }

    /// Returns what EL2 does at its own boundary on `cpu`, whose workarounds these are.
    pub const fn boundary(&self, cpu: Cpu) -> Boundary {
        let targets = Workaround::BranchTarget;
        if !cpu.is_immune(targets) {
            // The third call does what the first does, and more (DEN0028E, 7.9).
            if self.passed_on[Workaround::BranchHistory as usize] {
                return Boundary::Firmware(Workaround::BranchHistory.function());
            }
            if self.passed_on[targets as usize] {
                return Boundary::Firmware(targets.function());
            }
        }
        // ID_AA64PFR0_EL1.CSV2 3, or ID_AA64MMFR1_EL1.ECBHB: the history of a guest is not used at
        // EL2.
        if cpu.pfr0 >> 56 & 15 >= 3 || cpu.mmfr1 >> 60 & 15 != 0 {
            return Boundary::Nothing;
        }
        let clears = cpu.isar2 >> 28 & 15 != 0;
        match errata::history_length(cpu.midr) {
            _ if clears => Boundary::Branches(1),
            Some(length) => Boundary::Branches(length),
            None => Boundary::Nothing,
        }
    }

    /// Decides a call; `function` is w0, `x1` its argument. `None`: not a call of the convention.
    pub fn call(&self, function: u32, x1: u64) -> Option<Call> {
        if let Some(workaround) = Workaround::of(function) {
            let n = workaround as usize;
            let passed_on = self.passed_on.get(n).is_some_and(|passed_on| *passed_on);
            return Some(match self.answers.get(n) {
                _ if passed_on => Call::PassOn,
                // Where no workaround is needed the call has no effect.
                Some(&SAFE_AND_NOT_NEEDED) => Call::Answer(0),
                _ => Call::Answer(answer::NOT_SUPPORTED),
            });
        }
        self.about_itself(function, x1 as u32).map(Call::Answer)
    }

    /// Returns the answer to a call that asks about the convention itself and does nothing; `first`
    /// is w1. `None` for any other call.
    #[inline(always)]
    pub fn about_itself(&self, function: u32, first: u32) -> Option<u64> {
        match function {
            SMCCC_VERSION => Some(VERSION_1_2),
            ARCH_FEATURES => Some(self.features(first)),
            _ => None,
        }
    }

    #[inline(always)]
    fn features(&self, function: u32) -> u64 {
        if let Some(workaround) = Workaround::of(function) {
            let answer = self.answers.get(workaround as usize);
            return answer.copied().unwrap_or(answer::NOT_SUPPORTED);
        }
        match function {
            SMCCC_VERSION | ARCH_FEATURES => 0,
            _ => answer::NOT_SUPPORTED,
        }
    }
}

/// Effect of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// x0 of the guest is set to this value.
    Answer(u64),
    /// EL2 forwards the call to the firmware, on this pCPU, with the same x1. The call has no
    /// result.
    PassOn,
}

/// Whether `said` is a version number, not an error, and at least `least`.
const fn is_version(said: u64, least: u64) -> bool {
    said as i32 >= 0 && said & 0x7fff_ffff >= least
}

/// The answer of SMCCC_ARCH_FEATURES about a workaround for which the firmware `said` this.
const fn decide(workaround: Workaround, cpu: Cpu, said: i32) -> u64 {
    match (workaround, said) {
        (_, 0) => 0,
        (_, 1) => SAFE_AND_NOT_NEEDED,
        (Workaround::StoreBypass, -2) => NOT_REQUIRED,
        (Workaround::StoreBypass, _) if cpu.is_immune(workaround) => NOT_REQUIRED,
        (_, _) if cpu.is_immune(workaround) => SAFE_AND_NOT_NEEDED,
        // The CPU needs it, and the firmware does not have it.
        (_, _) => answer::NOT_SUPPORTED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const A53: Cpu = Cpu {
        midr: 0x410f_d034,
        pfr0: 0,
        pfr1: 0,
        mmfr1: 0,
        isar2: 0,
    };
    const A72: Cpu = Cpu {
        midr: 0x410f_d083,
        ..A53
    };
    const NEW: Cpu = Cpu {
        midr: 0x411f_d490,
        pfr0: 3 << 56,
        pfr1: 2 << 4,
        ..A53
    };
    const FIRST: u64 = Workaround::BranchTarget.function() as u64;
    const SECOND: u64 = Workaround::StoreBypass.function() as u64;
    const THIRD: u64 = Workaround::BranchHistory.function() as u64;

    /// Firmware that gives this answer about all workarounds.
    fn firmware(said: i32) -> impl FnMut(u32, u64) -> u64 {
        move |function, x1| match (function, x1) {
            (PSCI_VERSION, _) => 0x1_0001,
            (PSCI_FEATURES, 0x8000_0000) => 0,
            (SMCCC_VERSION, _) => 0x1_0002,
            (ARCH_FEATURES, FIRST | SECOND | THIRD) => said as u32 as u64,
            (0x8000_7fff, 1) => 0,
            other => panic!("{other:x?}"),
        }
    }

    fn features(found: Workarounds) -> [i32; 3] {
        [FIRST, SECOND, THIRD].map(|x1| match found.call(ARCH_FEATURES, x1) {
            Some(Call::Answer(x0)) => x0 as i32,
            other => panic!("{other:?}"),
        })
    }

    fn calls(found: Workarounds) -> [Call; 3] {
        [FIRST, SECOND, THIRD].map(|function| found.call(function as u32, 1).unwrap())
    }

    #[test]
    fn what_firmware_has_is_passed_on_but_for_what_stays_on() {
        for said in [0, 1] {
            let mut turned_on = 0;
            let found = Workarounds::find(A72, |function, x1| {
                if (u64::from(function), x1) == (SECOND, 1) {
                    turned_on += 1;
                    return 0;
                }
                firmware(said)(function, x1)
            });
            assert_eq!(
                turned_on,
                i32::from(said == 0),
                "where it makes a difference"
            );
            assert_eq!(features(found), [said, -2, said]);
            let not_there = Call::Answer(answer::NOT_SUPPORTED);
            assert_eq!(calls(found), [Call::PassOn, not_there, Call::PassOn]);
        }
    }

    #[test]
    fn each_cpu_has_its_own_boundary() {
        let boundary = |cpu, said| Workarounds::find(cpu, firmware(said)).boundary(cpu);
        assert_eq!(boundary(A53, -1), Boundary::Nothing);
        assert_eq!(boundary(A72, 0), Boundary::Firmware(0x8000_3fff));
        assert_eq!(boundary(A72, -1), Boundary::Branches(8));
        let only_first = |function, x1| match (function, x1) {
            (ARCH_FEATURES, SECOND | THIRD) => u64::MAX,
            other => firmware(0)(other.0, other.1),
        };
        let old = Workarounds::find(A72, only_first);
        assert_eq!(old.boundary(A72), Boundary::Firmware(0x8000_8000));
        let n1 = Cpu {
            midr: 0x413f_d0c1,
            pfr0: 1 << 56,
            ..A53
        };
        assert_eq!(boundary(n1, 0), Boundary::Branches(24), "CSV2: no call");
        let clears = Cpu {
            isar2: 1 << 28,
            ..n1
        };
        assert_eq!(boundary(clears, -1), Boundary::Branches(1));
        let apart = Cpu {
            mmfr1: 1 << 60,
            ..clears
        };
        assert_eq!(boundary(apart, -1), Boundary::Nothing, "ECBHB");
        assert_eq!(boundary(NEW, -1), Boundary::Nothing, "CSV2_3");
    }

    #[test]
    fn a_cpu_that_is_open_to_an_attack_is_not_said_to_be_safe() {
        let found = Workarounds::find(A72, firmware(-1));
        assert_eq!(features(found), [-1; 3]);
        assert_eq!(calls(found), [Call::Answer(answer::NOT_SUPPORTED); 3]);
        // Branch targets are separated, branch history is not.
        let found = Workarounds::find(
            Cpu {
                pfr0: 1 << 56,
                ..A72
            },
            firmware(-1),
        );
        assert_eq!(features(found), [1, -1, -1]);
        let found = Workarounds::find(
            Cpu {
                pfr0: 1 << 56,
                mmfr1: 1 << 60,
                ..A72
            },
            firmware(-1),
        );
        assert_eq!(features(found), [1, -1, 1]);
    }

    #[test]
    fn a_cpu_that_needs_nothing_says_so() {
        for cpu in [A53, NEW] {
            let found = Workarounds::find(cpu, firmware(-1));
            assert_eq!(features(found), [1, -2, 1]);
            assert_eq!(
                calls(found),
                [
                    Call::Answer(0),
                    Call::Answer(answer::NOT_SUPPORTED),
                    Call::Answer(0)
                ]
            );
        }
        // The firmware may say that no CPU of the board needs the second one.
        assert_eq!(features(Workarounds::find(A72, firmware(-2))), [-1, -2, -1]);
    }

    #[test]
    fn old_firmware_is_not_asked_what_it_cannot_know() {
        let old = |last: u32, wrong: u64| {
            let mut asked = Vec::new();
            let found = Workarounds::find(A53, |function, _| {
                asked.push(function);
                if function == last { wrong } else { 0x1_0001 }
            });
            assert_eq!(features(found), [1, -2, 1]);
            asked
        };
        assert_eq!(old(PSCI_VERSION, 2), [PSCI_VERSION]);
        assert_eq!(
            old(PSCI_VERSION, answer::NOT_SUPPORTED),
            [PSCI_VERSION],
            "no firmware at all"
        );
        assert_eq!(
            old(PSCI_FEATURES, answer::NOT_SUPPORTED),
            [PSCI_VERSION, PSCI_FEATURES]
        );
        assert_eq!(
            old(PSCI_FEATURES, 0xffff_ffff),
            [PSCI_VERSION, PSCI_FEATURES],
            "32 bits of an error"
        );
        assert_eq!(
            old(SMCCC_VERSION, 0x1_0000),
            [PSCI_VERSION, PSCI_FEATURES, SMCCC_VERSION]
        );
    }

    #[test]
    fn the_convention_is_version_1_2_and_offers_nothing_else() {
        let found = Workarounds::NONE;
        assert_eq!(found.call(SMCCC_VERSION, 0), Some(Call::Answer(0x1_0002)));
        let ask = |x1| found.call(ARCH_FEATURES, x1);
        assert_eq!(ask(u64::from(SMCCC_VERSION)), Some(Call::Answer(0)));
        assert_eq!(ask(u64::from(ARCH_FEATURES)), Some(Call::Answer(0)));
        // SMCCC_ARCH_SOC_ID, PSCI_VERSION.
        for other in [0x8000_0002, 0x8400_0000, 0] {
            assert_eq!(ask(other), Some(Call::Answer(answer::NOT_SUPPORTED)));
        }
        for other in [0x8000_0002, 0x8400_0000, 0xc000_8000, 0x8000_7ffe] {
            assert_eq!(found.call(other, 0), None, "{other:#x}");
        }
    }
}

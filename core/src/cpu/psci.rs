//! PSCI calls of a VM (DEN0022E). A call that is not listed here is not supported.

/// Return values of PSCI.
pub mod answer {
    /// Not supported.
    pub const NOT_SUPPORTED: u64 = -1i64 as u64;
    /// Invalid parameters.
    pub const INVALID_PARAMETERS: u64 = -2i64 as u64;
    /// The target CPU is already on.
    pub const ALREADY_ON: u64 = -4i64 as u64;
    /// The target CPU is being switched on.
    pub const ON_PENDING: u64 = -5i64 as u64;
    /// The entry point is not an address at which code can run.
    pub const INVALID_ADDRESS: u64 = -9i64 as u64;
}

/// Effect of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// x0 of the guest is set to this value.
    Answer(u64),
    /// SYSTEM_OFF.
    Off,
    /// SYSTEM_RESET or SYSTEM_RESET2.
    Reset,
    /// CPU_OFF of the caller.
    CpuOff,
    /// CPU_ON.
    CpuOn {
        /// Number of the vCPU.
        target: usize,
        /// IPA of the first instruction.
        entry: u64,
        /// Value of x0 at the entry point.
        context: u64,
    },
    /// AFFINITY_INFO; the number of the vCPU that it asks about.
    Affinity(usize),
}

/// PSCI_VERSION.
pub const PSCI_VERSION: u32 = 0x8400_0000;
const CPU_SUSPEND_32: u32 = 0x8400_0001;
const CPU_SUSPEND_64: u32 = 0xc400_0001;
const CPU_OFF: u32 = 0x8400_0002;
const CPU_ON_32: u32 = 0x8400_0003;
const CPU_ON_64: u32 = 0xc400_0003;
const AFFINITY_INFO_32: u32 = 0x8400_0004;
const AFFINITY_INFO_64: u32 = 0xc400_0004;
const MIGRATE_INFO_TYPE: u32 = 0x8400_0006;
const SYSTEM_OFF: u32 = 0x8400_0008;
const SYSTEM_RESET: u32 = 0x8400_0009;
const PSCI_FEATURES: u32 = 0x8400_000a;
const SYSTEM_RESET2_32: u32 = 0x8400_0012;
const SYSTEM_RESET2_64: u32 = 0xc400_0012;
/// SMCCC_VERSION, which PSCI_FEATURES reports too (DEN0022E, 5.17).
const SMCCC_VERSION: u32 = 0x8000_0000;

/// Answer of PSCI_VERSION: PSCI 1.1.
pub const VERSION_PSCI: u64 = 0x1_0001;
/// Return value of MIGRATE_INFO_TYPE: there is no trusted OS that would have to migrate.
const NO_TRUSTED_OS: u64 = 2;
/// Bits of CPU_SUSPEND's power_state in the original format that are defined: power level, state
/// type, state ID (5.4.2).
const POWER_STATE: u64 = 0x0301_ffff;

/// The functions offered, by the lowest five bits: those of 32 bits, and those of 64.
const OFFERED: [u32; 2] = {
    let mut offered = [0; 2];
    let all = [
        PSCI_VERSION,
        CPU_SUSPEND_32,
        CPU_SUSPEND_64,
        CPU_OFF,
        CPU_ON_32,
        CPU_ON_64,
        AFFINITY_INFO_32,
        AFFINITY_INFO_64,
        MIGRATE_INFO_TYPE,
        SYSTEM_OFF,
        SYSTEM_RESET,
        SYSTEM_RESET2_32,
        SYSTEM_RESET2_64,
        PSCI_FEATURES,
    ];
    let mut n = 0;
    while n < all.len() {
        offered[(all[n] >> 30 & 1) as usize] |= 1 << (all[n] & 31);
        n += 1;
    }
    offered
};

/// Whether PSCI_FEATURES reports a function.
#[inline(always)]
const fn is_offered(function: u32) -> bool {
    let [narrow, wide] = OFFERED;
    let offered = if function & 1 << 30 != 0 {
        wide
    } else {
        narrow
    };
    function & !(1 << 30 | 31) == PSCI_VERSION && offered >> (function & 31) & 1 != 0
        || function == SMCCC_VERSION
}

/// Returns the answer to a call that asks about PSCI itself and does nothing; `first` is w1. `None`
/// for any other call.
#[inline(always)]
pub const fn about_itself(function: u32, first: u32) -> Option<u64> {
    match function {
        PSCI_VERSION => Some(VERSION_PSCI),
        // There is no trusted OS that would have to migrate.
        MIGRATE_INFO_TYPE => Some(NO_TRUSTED_OS),
        PSCI_FEATURES if is_offered(first) => Some(0),
        PSCI_FEATURES => Some(answer::NOT_SUPPORTED),
        _ => None,
    }
}

/// The vCPU that an affinity names: its number, in the lowest field. `None` for numbers that the VM
/// does not have, and if bits outside the affinity are set.
fn number(target: u64, vcpus: usize) -> Option<usize> {
    usize::try_from(target).ok().filter(|n| *n < vcpus)
}

/// Whether the first argument of a function names a vCPU.
pub const fn names_vcpu(function: u32) -> bool {
    matches!(
        function,
        CPU_ON_32 | CPU_ON_64 | AFFINITY_INFO_32 | AFFINITY_INFO_64
    )
}

/// Decides a call; `function` is w0, `args` are x1 to x3, `vcpus` is the number of vCPUs of the VM.
pub fn call(function: u32, args: [u64; 3], vcpus: usize) -> Call {
    // The 32-bit forms take the low halves only.
    let args = if function & 1 << 30 == 0 {
        args.map(|arg| arg & 0xffff_ffff)
    } else {
        args
    };
    let [first, second, third] = args;
    Call::Answer(match function {
        SYSTEM_OFF => return Call::Off,
        SYSTEM_RESET => return Call::Reset,
        // SYSTEM_WARM_RESET; other types are the vendor's, or reserved.
        SYSTEM_RESET2_32 | SYSTEM_RESET2_64 if first & 0xffff_ffff == 0 => return Call::Reset,
        SYSTEM_RESET2_32 | SYSTEM_RESET2_64 => answer::INVALID_PARAMETERS,
        CPU_OFF => return Call::CpuOff,
        // A standby state may end at once, without harm. A deeper state may be made shallower.
        CPU_SUSPEND_32 | CPU_SUSPEND_64 if first & 0xffff_ffff & !POWER_STATE == 0 => 0,
        CPU_SUSPEND_32 | CPU_SUSPEND_64 => answer::INVALID_PARAMETERS,
        CPU_ON_32 | CPU_ON_64 => match number(first, vcpus) {
            Some(target) => {
                return Call::CpuOn {
                    target,
                    entry: second,
                    context: third,
                };
            }
            None => answer::INVALID_PARAMETERS,
        },
        // Only level 0: a VM has no higher power domain.
        AFFINITY_INFO_32 | AFFINITY_INFO_64 if second & 0xffff_ffff == 0 => {
            match number(first, vcpus) {
                Some(target) => return Call::Affinity(target),
                None => answer::INVALID_PARAMETERS,
            }
        }
        AFFINITY_INFO_32 | AFFINITY_INFO_64 => answer::INVALID_PARAMETERS,
        _ => about_itself(function, first as u32).unwrap_or(answer::NOT_SUPPORTED),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(function: u32, x1: u64) -> Call {
        call(function, [x1, 0x4000_0000, 7], 2)
    }

    #[test]
    fn what_is_offered_is_answered_and_nothing_else() {
        assert_eq!(ask(PSCI_VERSION, 0), Call::Answer(0x1_0001));
        assert_eq!(ask(SYSTEM_OFF, 0), Call::Off);
        assert_eq!(ask(SYSTEM_RESET, 0), Call::Reset);
        assert_eq!(ask(CPU_OFF, 0), Call::CpuOff);
        assert_eq!(ask(MIGRATE_INFO_TYPE, 0), Call::Answer(2));
        assert_eq!(ask(PSCI_FEATURES, u64::from(SYSTEM_OFF)), Call::Answer(0));
        for denied in [
            0x8200_0000,
            0xb200_0000,
            0xc500_0020,
            0x8600_0000,
            0x8400_00ff,
            0,
            0x8400_000f,
            0xc400_0000,
            0x0400_0008,
        ] {
            let none = Call::Answer(answer::NOT_SUPPORTED);
            assert_eq!(ask(denied, 0), none, "{denied:#x}");
            assert_eq!(ask(PSCI_FEATURES, u64::from(denied)), none, "{denied:#x}");
        }
    }

    /// DEN0022E, table 5.
    #[test]
    fn answers_have_the_numbers_of_the_standard() {
        let numbers = [
            answer::NOT_SUPPORTED,
            answer::INVALID_PARAMETERS,
            answer::ALREADY_ON,
            answer::ON_PENDING,
            answer::INVALID_ADDRESS,
        ];
        assert_eq!(numbers.map(|answer| answer as i64), [-1, -2, -4, -5, -9]);
    }

    #[test]
    fn vcpus_go_by_their_number_and_nothing_else() {
        let on = |target| Call::CpuOn {
            target,
            entry: 0x4000_0000,
            context: 7,
        };
        assert_eq!(ask(CPU_ON_64, 1), on(1));
        assert_eq!(ask(CPU_ON_32, 1 << 32), on(0), "32-bit form");
        // One more than there are; another cluster; bit 31 of MPIDR, which is not part of the
        // affinity.
        for bad in [2, 0x100, 1 << 31, 1 << 32, u64::MAX] {
            let invalid = Call::Answer(answer::INVALID_PARAMETERS);
            assert_eq!(ask(CPU_ON_64, bad), invalid, "{bad:#x}");
            assert_eq!(call(AFFINITY_INFO_64, [bad, 0, 0], 2), invalid, "{bad:#x}");
        }
        assert_eq!(call(AFFINITY_INFO_64, [1, 0, 0], 2), Call::Affinity(1));
        let invalid = Call::Answer(answer::INVALID_PARAMETERS);
        assert_eq!(call(AFFINITY_INFO_64, [0, 1, 0], 2), invalid);
    }

    #[test]
    fn suspending_returns_and_bad_states_are_refused() {
        let invalid = Call::Answer(answer::INVALID_PARAMETERS);
        assert_eq!(ask(CPU_SUSPEND_64, 0), Call::Answer(0));
        assert_eq!(ask(CPU_SUSPEND_64, 1 << 16), Call::Answer(0));
        assert_eq!(ask(CPU_SUSPEND_64, 1 << 26), invalid);
        assert_eq!(ask(CPU_SUSPEND_32, 1 << 17), invalid);
    }

    #[test]
    fn only_the_warm_reset_of_the_architecture_is_known() {
        assert_eq!(ask(SYSTEM_RESET2_64, 0), Call::Reset);
        let invalid = Call::Answer(answer::INVALID_PARAMETERS);
        assert_eq!(ask(SYSTEM_RESET2_64, 1), invalid);
        assert_eq!(ask(SYSTEM_RESET2_32, 1 << 31), invalid);
    }
}

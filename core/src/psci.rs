//! Calls by HVC and SMC: SMC Calling Convention (DEN0028E) and PSCI (DEN0022E) for VMs of one
//! vCPU. What is not listed here is not offered.

/// Answers of SMCCC and PSCI.
pub mod answer {
    /// SMCCC and PSCI: not supported.
    pub const NOT_SUPPORTED: u64 = -1i64 as u64;
    /// PSCI: invalid parameters.
    pub const INVALID_PARAMETERS: u64 = -2i64 as u64;
    /// PSCI: that CPU is already on.
    pub const ALREADY_ON: u64 = -4i64 as u64;
}

/// Why a VM stopped by its own wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SYSTEM_OFF.
    Off,
    /// SYSTEM_RESET. There is no restart in this version: the VM stops.
    Reset,
    /// CPU_OFF of its only vCPU.
    LastCpuOff,
}

/// What a call leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// x0 of the guest becomes this.
    Answer(u64),
    /// The VM stops.
    Stop(Stop),
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
const SMCCC_VERSION: u32 = 0x8000_0000;
const SMCCC_ARCH_FEATURES: u32 = 0x8000_0001;

/// Answer of PSCI_VERSION: PSCI 1.1.
pub const VERSION_PSCI: u64 = 0x1_0001;
/// SMCCC 1.1.
const VERSION_SMCCC: u64 = 0x1_0001;
/// MIGRATE_INFO_TYPE: there is no trusted OS that would have to migrate.
const NO_TRUSTED_OS: u64 = 2;

const OFFERED: [u32; 14] = [
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
    PSCI_FEATURES,
    SMCCC_VERSION,
    SMCCC_ARCH_FEATURES,
];

/// Decides a call; `function` is w0, `args` are x1 to x3, `own` the affinity of the calling vCPU.
pub fn call(function: u32, args: [u64; 3], own: u64) -> Call {
    let [target, second, _] = args;
    // The 32-bit forms take the low halves only.
    let target = if function & 1 << 30 == 0 {
        target & 0xffff_ffff
    } else {
        target
    };
    Call::Answer(match function {
        PSCI_VERSION => VERSION_PSCI,
        SYSTEM_OFF => return Call::Stop(Stop::Off),
        SYSTEM_RESET => return Call::Stop(Stop::Reset),
        CPU_OFF => return Call::Stop(Stop::LastCpuOff),
        // A standby state may end at once; nothing is lost by it.
        CPU_SUSPEND_32 | CPU_SUSPEND_64 => 0,
        CPU_ON_32 | CPU_ON_64 if target == own => answer::ALREADY_ON,
        AFFINITY_INFO_32 | AFFINITY_INFO_64 if target == own && second == 0 => 0,
        CPU_ON_32 | CPU_ON_64 | AFFINITY_INFO_32 | AFFINITY_INFO_64 => answer::INVALID_PARAMETERS,
        MIGRATE_INFO_TYPE => NO_TRUSTED_OS,
        PSCI_FEATURES if OFFERED.contains(&(args[0] as u32)) => 0,
        SMCCC_VERSION => VERSION_SMCCC,
        SMCCC_ARCH_FEATURES if [SMCCC_VERSION, SMCCC_ARCH_FEATURES].contains(&(args[0] as u32)) => {
            0
        }
        _ => answer::NOT_SUPPORTED,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_is_answered_and_nothing_else() {
        let ask = |function, x1| call(function, [x1, 0, 0], 0);
        assert_eq!(ask(PSCI_VERSION, 0), Call::Answer(0x1_0001));
        assert_eq!(ask(SYSTEM_OFF, 0), Call::Stop(Stop::Off));
        assert_eq!(ask(CPU_ON_64, 0), Call::Answer(answer::ALREADY_ON));
        assert_eq!(ask(CPU_ON_64, 1), Call::Answer(answer::INVALID_PARAMETERS));
        assert_eq!(
            ask(CPU_ON_32, 1 << 32),
            Call::Answer(answer::ALREADY_ON),
            "32-bit form"
        );
        assert_eq!(ask(AFFINITY_INFO_64, 0), Call::Answer(0));
        assert_eq!(ask(PSCI_FEATURES, u64::from(SYSTEM_OFF)), Call::Answer(0));
        assert_eq!(
            ask(PSCI_FEATURES, 0x8400_000e),
            Call::Answer(answer::NOT_SUPPORTED)
        );
        for denied in [
            0x8200_0000,
            0xb200_0000,
            0xc500_0020,
            0x8600_0000,
            0x8400_00ff,
            0,
            0x8400_000f,
        ] {
            assert_eq!(
                ask(denied, 0),
                Call::Answer(answer::NOT_SUPPORTED),
                "{denied:#x}"
            );
        }
    }
}

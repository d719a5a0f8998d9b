//! Syndromes (ESR_EL2, DDI 0487, D24.2.40): why a guest was left, in numbers and in words.

/// Exception classes (ESR_ELx.EC) that EL2 distinguishes.
pub mod ec {
    /// Unknown reason.
    pub const UNKNOWN: u64 = 0x00;
    /// WFI, WFE trapped.
    pub const WFX: u64 = 0x01;
    /// FP or SIMD access trapped.
    pub const FP: u64 = 0x07;
    /// HVC in AArch64.
    pub const HVC64: u64 = 0x16;
    /// SMC in AArch64.
    pub const SMC64: u64 = 0x17;
    /// MSR, MRS or system instruction in AArch64.
    pub const SYSREG: u64 = 0x18;
    /// Access to SVE trapped.
    pub const SVE: u64 = 0x19;
    /// Instruction abort from a lower exception level.
    pub const FETCH_LOWER: u64 = 0x20;
    /// Instruction abort without a change of exception level.
    pub const FETCH_SAME: u64 = 0x21;
    /// Software step from a lower exception level.
    pub const STEP_LOWER: u64 = 0x32;
    /// Data abort from a lower exception level.
    pub const DATA_LOWER: u64 = 0x24;
    /// Data abort without a change of exception level.
    pub const DATA_SAME: u64 = 0x25;
}

/// Exception class of a syndrome.
#[inline(always)]
pub const fn class(esr: u64) -> u64 {
    (esr >> 26) & 0x3f
}

/// The syndrome of an access says which one it was (ISV).
const ISV: u64 = 1 << 24;

/// Describes an exception for reports.
pub const fn words(esr: u64) -> &'static str {
    match class(esr) {
        ec::UNKNOWN => "undefined instruction",
        ec::WFX => "WFI or WFE",
        ec::FP => "FP or SIMD access",
        ec::HVC64 => "HVC",
        ec::SMC64 => "SMC",
        ec::SYSREG => "system register access",
        ec::SVE => "SVE access",
        ec::FETCH_LOWER | ec::FETCH_SAME => match esr & 0x3c {
            0x04 => "fetch from an address that the VM does not have",
            0x0c => "fetch from memory that is not executable",
            _ => "fetch abort",
        },
        ec::DATA_LOWER | ec::DATA_SAME => match esr & 0x3c {
            0x04 if esr & ISV == 0 => "access to a device by an instruction without syndrome",
            0x04 => "access to an address that the VM does not have",
            0x0c => "access that the mapping does not permit",
            0x10 => "external abort",
            _ => "data abort",
        },
        0x0e => "illegal execution state",
        0x2f => "SError",
        0x30..=0x3c => "debug exception",
        0x11..=0x15 | 0x03..=0x06 | 0x08 => "AArch32 instruction",
        _ => "other exception",
    }
}

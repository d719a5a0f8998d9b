//! Calls by HVC and SMC (DEN0028) that programs make at random.

use crate::power::{PSCI_SYSTEM_OFF, PSCI_SYSTEM_RESET};
use crate::random::Random;

/// CPU_ON.
pub const CPU_ON: u32 = 0x8400_0003;

/// Calls that end or suspend the machine as they should, and therefore prove nothing at random.
const ENDINGS: [u32; 9] = [
    PSCI_SYSTEM_OFF,
    PSCI_SYSTEM_RESET,
    0x8400_0001, // CPU_SUSPEND
    0x8400_0002, // CPU_OFF
    0x8400_000b, // CPU_FREEZE
    0x8400_000c, // CPU_DEFAULT_SUSPEND
    0x8400_000e, // SYSTEM_SUSPEND
    0x8400_0012, // SYSTEM_RESET2
    0x8400_0017, // CLEAN_INV_MEMREGION, an optional call: might take all its time for random ranges
];

/// A function near those that exist, of each owner of the convention, or anything at all; of 32 and of 64 bits.
pub fn function(random: &mut Random) -> u32 {
    loop {
        let low = random.below(0x40) as u32;
        let owner = random.below(64) as u32;
        let id = match random.below(9) {
            0 => 0x8400_0000 + low,
            1 => 0xc400_0000 + low,
            2 => 0x8000_0000 + low,
            3 => 0xc600_0000 + low,
            4 => 0x8600_ff00 + low,
            5 => low,
            6 => 0x8000_0000 | owner << 24 | low,
            7 => 0xc000_0000 | owner << 24 | random.below(0x1_0000) as u32,
            _ => random.draw() as u32,
        };
        if !ENDINGS.contains(&(id & !0x4000_0000)) {
            return id;
        }
    }
}

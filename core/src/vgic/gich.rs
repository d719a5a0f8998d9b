//! GICH_LR\<n\> of a GICv2 (IHI 0048B.b, "GICH_LRn"), which has in 32 bits the fields that
//! ICH_LR\<n\>_EL2 has in 64. The virtual GIC uses the 64-bit format ([`super::lr`]); EL2 converts
//! where it accesses the register.
//!
//! | field | GICH_LR\<n\> | ICH_LR\<n\>_EL2 |
//! | --- | --- | --- |
//! | virtual INTID | 9:0 | 31:0 |
//! | physical INTID; without HW: EOI in its highest bit, source CPU of an SGI in its lowest three | 19:10 | 41:32 |
//! | priority, its upper five bits | 27:23 | 55:51 |
//! | state: pending, active | 28, 29 | 62, 63 |
//! | group 1 | 30 | 60 |
//! | backed by hardware (HW) | 31 | 61 |

/// Returns the 32-bit form of a list register. Dropped is what does not fit: virtual INTIDs from
/// 1024 on and the lower three bits of the priority, neither of which a VM on a GICv2 has.
#[inline(always)]
pub const fn from_wide(wide: u64) -> u32 {
    let virtual_intid = wide as u32 & 0x3ff;
    let physical = (wide >> 32) as u32 & 0x3ff;
    let priority = (wide >> 51) as u32 & 0x1f;
    let state = (wide >> 62) as u32;
    // HW and the group lie side by side in both.
    let kind = (wide >> 60) as u32 & 3;
    virtual_intid | physical << 10 | priority << 23 | state << 28 | kind << 30
}

/// Returns the 64-bit form of a list register.
#[inline(always)]
pub const fn to_wide(narrow: u32) -> u64 {
    let virtual_intid = narrow & 0x3ff;
    let physical = narrow >> 10 & 0x3ff;
    let priority = narrow >> 23 & 0x1f;
    let state = narrow >> 28 & 3;
    let kind = narrow >> 30;
    let high = physical | priority << 19 | kind << 28 | state << 30;
    (high as u64) << 32 | virtual_intid as u64
}

#[cfg(test)]
mod tests {
    use super::super::lr;
    use super::*;

    #[test]
    fn every_field_has_its_place() {
        for (wide, narrow) in [
            (27, 27),
            (lr::PENDING, 1 << 28),
            (lr::ACTIVE, 1 << 29),
            (lr::GROUP1, 1 << 30),
            (lr::HW, 1 << 31),
            (lr::hw(1019), 1 << 31 | 1019 << 10),
            (lr::EOI, 1 << 19),
            (7 << 32, 7 << 10),
            (lr::entry(0, 0xf8, false), 0x1f << 23),
            (lr::entry(3, 0xa0, true), 1 << 30 | 0x14 << 23 | 3),
        ] {
            assert_eq!(from_wide(wide), narrow, "{wide:#x}");
            assert_eq!(to_wide(narrow), wide, "{narrow:#x}");
        }
    }

    #[test]
    fn there_and_back_nothing_is_lost_but_bits_20_to_22() {
        for bit in 0..32 {
            let narrow = 1 << bit;
            let kept = if (20..23).contains(&bit) { 0 } else { narrow };
            assert_eq!(from_wide(to_wide(narrow)), kept, "bit {bit}");
        }
    }
}

//! Classes of A64 instructions that are counted apart (Arm DDI 0487, C4.1).

use bulkhead_plugin::accesses_memory;

use crate::profile::Cost;

/// `MRS Xt, ICC_IAR1_EL1` without its register field: it acknowledges an interrupt.
const MRS_IAR1: u32 = 0xd538_cc00;

/// Returns the cost of one execution of `word`.
pub fn cost(word: u32) -> Cost {
    // MSR and MRS (register): op0 is 2 or 3. MSR (immediate): op0 is 0, CRn is 4, Rt is 31.
    let register = matches!(word & 0xfff0_0000, 0xd510_0000 | 0xd530_0000);
    let immediate = word & 0xfff8_f01f == 0xd500_401f;
    // Barriers: op2 4 to 7 are DSB, DMB, ISB and SB.
    let barrier = word & 0xffff_f01f == 0xd503_301f && (word >> 7) & 1 == 1;
    Cost {
        instructions: 1,
        sysregs: u64::from(register || immediate),
        barriers: u64::from(barrier),
        memory: u64::from(accesses_memory(word)),
    }
}

/// Whether `word` returns to a lower exception level.
pub fn is_eret(word: u32) -> bool {
    matches!(word, 0xd69f_03e0 | 0xd69f_0bff | 0xd69f_0fff)
}

/// The register that `word` fills with the INTID of an acknowledged interrupt.
pub fn acknowledges(word: u32) -> Option<u8> {
    (word & !31 == MRS_IAR1).then_some((word & 31) as u8)
}

/// Whether `word` is a load of 32 bits from where a register points: `LDAR Wt, [Xn]`, as EL2 reads a device.
pub fn loads_word(word: u32) -> bool {
    word & 0xffff_fc00 == 0x88df_fc00
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(word: u32) -> (u64, u64, u64) {
        let cost = cost(word);
        assert_eq!(cost.instructions, 1);
        (cost.sysregs, cost.barriers, cost.memory)
    }

    #[test]
    fn classes_of_instructions() {
        assert_eq!(classes(0xd53c_4001), (1, 0, 0)); // mrs x1, spsr_el2
        assert_eq!(classes(0xd51c_4020), (1, 0, 0)); // msr elr_el2, x0
        assert_eq!(classes(0xd538_cc00), (1, 0, 0)); // mrs x0, icc_iar1_el1
        assert_eq!(classes(0xd503_42df), (1, 0, 0)); // msr daifset, #2
        assert_eq!(classes(0xd503_3fdf), (0, 1, 0)); // isb
        assert_eq!(classes(0xd503_3f9f), (0, 1, 0)); // dsb sy
        assert_eq!(classes(0xd503_3bbf), (0, 1, 0)); // dmb ish
        assert_eq!(classes(0xd503_3f5f), (0, 0, 0)); // clrex
        assert_eq!(classes(0xd503_207f), (0, 0, 0)); // wfi
        assert_eq!(classes(0xd50c_871f), (0, 0, 0)); // tlbi alle2
        assert_eq!(classes(0xa9bf_07e0), (0, 0, 1)); // stp x0, x1, [sp, #-16]!
        assert_eq!(classes(0xf940_03e0), (0, 0, 1)); // ldr x0, [sp]
        assert_eq!(classes(0x885f_fc01), (0, 0, 1)); // ldaxr w1, [x0]
        assert_eq!(classes(0x8b01_0000), (0, 0, 0)); // add x0, x0, x1
        assert_eq!(classes(0x9400_0001), (0, 0, 0)); // bl
    }

    #[test]
    fn special_instructions() {
        assert!(is_eret(0xd69f_03e0) && !is_eret(0xd65f_03c0));
        assert_eq!(acknowledges(0xd538_cc05), Some(5));
        assert_eq!(acknowledges(0xd518_cc05), None);
        assert!(loads_word(0x88df_fd02)); // ldar w2, [x8]
        assert!(!loads_word(0xb940_0102) && !loads_word(0xc8df_fd02)); // ldr w2, [x8]; ldar x2, [x8]
        assert!(!loads_word(0x889f_fd02)); // stlr w2, [x8]
    }
}

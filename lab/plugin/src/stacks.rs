//! Which CPU runs EL2, told by its stack.
//!
//! QEMU tells a plugin the number of a CPU, but not the right one where CPUs take turns, and a system register costs many
//! times what SP costs to read. No two CPUs have EL2's SP in one page of its address space at a time, and only an
//! instruction that gives SP another value than one made from its own takes a stack to another CPU.
//!
//! A guest that runs code at the addresses of EL2's, with an SP in one of its stacks, is taken for EL2: what it does is counted, and found
//! to break rules. Nothing of EL2's is missed for that.

/// Where EL2's address space begins, as far as stacks lie there.
const EL2: u64 = 0x20_0000_0000;
/// Its size, likewise.
const SIZE: u64 = 1 << 30;
const PAGE: u64 = 4096;

/// What is known of the stacks on one thread of QEMU. One is forgotten with all others.
#[derive(Clone, Debug)]
pub struct Stacks<T> {
    known: Vec<(u64, T)>,
}

impl<T: Copy> Stacks<T> {
    /// Of no stack.
    pub const fn new() -> Self {
        Self { known: Vec::new() }
    }

    /// What was learnt of the stack of which `sp` is.
    pub fn get(&self, sp: u64) -> Option<T> {
        let page = sp / PAGE;
        let known = self.known.iter().find(|(known, _)| *known == page);
        known.map(|(_, what)| *what)
    }

    /// Learns whose stack it is of which `sp` is, unless CPUs that start may share it.
    pub fn learn(&mut self, sp: u64, what: T) {
        if sp.wrapping_sub(EL2) < SIZE {
            self.known.push((sp / PAGE, what));
        }
    }

    /// Stacks may change hands.
    pub fn forget(&mut self) {
        self.known.clear();
    }
}

impl<T: Copy> Default for Stacks<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether `word` makes it necessary to [forget](Stacks::forget): SP gets a value that is not made of itself, or TPIDR_EL2
/// one (DDI 0487, C4.1.93: add and subtract, logical, with an immediate or an extended register; C5.2 for the register).
pub const fn changes_hands(word: u32) -> bool {
    let to_sp = word & 0x1f == 31;
    let from_sp = word >> 5 & 0x1f == 31;
    // Bit 29 set would set flags, and register 31 would be XZR.
    let add = word & 0xbf80_0000 == 0x9100_0000;
    let logical = word & 0x9f80_0000 == 0x9200_0000 && word >> 29 & 3 != 3;
    let extended = word & 0xbfe0_0000 == 0x8b20_0000;
    (to_sp && !from_sp && (add || logical || extended)) || word & !0x1f == 0xd51c_d040
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_known_until_stacks_change_hands() {
        let mut stacks = Stacks::new();
        stacks.learn(EL2 + 0x1ff0, 'a');
        stacks.learn(EL2 + 0x2000, 'b');
        assert_eq!(stacks.get(EL2 + 0x1000), Some('a'));
        assert_eq!(stacks.get(EL2 + 0x2ff8), Some('b'));
        assert_eq!(stacks.get(EL2 + 0x3000), None);
        stacks.forget();
        assert_eq!(stacks.get(EL2 + 0x1000), None);
    }

    #[test]
    fn what_cpus_share_at_their_start_is_not_learnt() {
        let mut stacks = Stacks::new();
        for sp in [0, 0x4008_0000, EL2 - 16, EL2 + SIZE] {
            stacks.learn(sp, 1);
            assert_eq!(stacks.get(sp), None, "{sp:#x}");
        }
    }

    #[test]
    fn writes_of_sp_are_told_from_what_moves_within_a_stack() {
        // mov sp, x2; mov sp, x29; sub sp, x29, #16; and sp, x9, #-64; add sp, x1, x2; msr tpidr_el2, x0
        for word in [
            0x9100_005f,
            0x9100_03bf,
            0xd100_43bf,
            0x927a_e53f,
            0x8b22_603f,
            0xd51c_d040,
        ] {
            assert!(changes_hands(word), "{word:#x}");
        }
        // sub sp, sp, #32; add x29, sp, #16; cmp x1, #0; tst x0, #1; mov x0, x1; mrs x0, tpidr_el2; msr tpidr_el1, x0
        for word in [
            0xd100_83ff,
            0x9100_43fd,
            0xf100_003f,
            0xf240_001f,
            0xaa01_03e0,
            0xd53c_d040,
            0xd518_d080,
        ] {
            assert!(!changes_hands(word), "{word:#x}");
        }
    }
}

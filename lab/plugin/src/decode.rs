//! What several plugins have to know of A64 instructions.

/// Whether `word` is of the group of loads and stores (DDI 0487, C4.1), whose accesses have callbacks.
pub const fn accesses_memory(word: u32) -> bool {
    word & 0x0a00_0000 == 0x0800_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_and_stores_are_told_from_others() {
        // stp x0, x1, [sp, #-16]!; ldaxr w1, [x0]; ldr x0, [sp]
        for word in [0xa9bf_07e0, 0x885f_fc01, 0xf940_03e0] {
            assert!(accesses_memory(word), "{word:#x}");
        }
        // add x0, x0, x1; bl; dc zva, x3
        for word in [0x8b01_0000, 0x9400_0001, 0xd50b_7423] {
            assert!(!accesses_memory(word), "{word:#x}");
        }
    }
}

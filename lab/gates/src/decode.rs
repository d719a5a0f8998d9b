//! Effect of an A64 instruction on the flow of control and on the stack pointer.
//!
//! Only what the gates ask is decoded; everything else is [`Flow::Next`] and [`Stack::Keep`].
//! Encodings: Arm DDI 0487, chapter C4.

/// Number of the stack pointer where an encoding names it as register 31.
pub const SP: u8 = 31;

/// Destination of control after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// To the next instruction.
    Next,
    /// To this address only (`B`).
    Jump(u64),
    /// To this address or to the next instruction (`B.cond`, `CBZ`, `TBZ`).
    Branch(u64),
    /// To this address, and back to the next instruction if the callee returns (`BL`).
    Call(u64),
    /// To the address in this register (`BR`).
    JumpRegister(u8),
    /// To the address in this register, and back (`BLR`).
    CallRegister(u8),
    /// To the caller (`RET`).
    Return,
    /// To a lower exception level (`ERET`, `DRPS`).
    ExceptionReturn,
    /// Nowhere: `UDF`, `BRK`, `HLT` or a word that is no instruction of this class.
    Trap,
}

/// Effect of an instruction on the stack pointer, or the copy that it makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// Nothing.
    Keep,
    /// `to := from + add`, where one of both is SP or both are registers that may hold a copy of it.
    Copy {
        /// Register written; [`SP`] is the stack pointer.
        to: u8,
        /// Register read; [`SP`] is the stack pointer.
        from: u8,
        /// Bytes added.
        add: i64,
    },
    /// `SP := from & !(align - 1)`.
    Align {
        /// Register read; [`SP`] is the stack pointer.
        from: u8,
        /// Alignment in bytes.
        align: i64,
    },
    /// SP is written in a way that is not followed.
    Unknown,
}

/// Sign-extends the low `bits` of `value`.
fn sign(value: u32, bits: u32) -> i64 {
    (i64::from(value) << (64 - bits)) >> (64 - bits)
}

/// Target of a branch whose word offset is the field `shift`, `bits` wide.
fn target(pc: u64, word: u32, shift: u32, bits: u32) -> u64 {
    pc.wrapping_add_signed(sign((word >> shift) & ((1 << bits) - 1), bits) * 4)
}

/// Register field that starts at bit `shift`.
pub fn register(word: u32, shift: u32) -> u8 {
    ((word >> shift) & 31) as u8
}

/// Flow of control after the instruction `word` at `pc`.
pub fn flow(pc: u64, word: u32) -> Flow {
    match word >> 26 {
        0b00_0101 => return Flow::Jump(target(pc, word, 0, 26)),
        0b10_0101 => return Flow::Call(target(pc, word, 0, 26)),
        _ => {}
    }
    if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 {
        return Flow::Branch(target(pc, word, 5, 19));
    }
    if word & 0x7e00_0000 == 0x3600_0000 {
        return Flow::Branch(target(pc, word, 5, 14));
    }
    if word & 0xfe00_0000 == 0xd600_0000 {
        return match (word >> 21) & 0xf {
            0 | 8 => Flow::JumpRegister(register(word, 5)),
            1 | 9 => Flow::CallRegister(register(word, 5)),
            2 => Flow::Return,
            4 | 5 => Flow::ExceptionReturn,
            _ => Flow::Trap,
        };
    }
    let breaks = matches!(word & 0xffe0_001f, 0xd420_0000 | 0xd440_0000);
    if breaks || word >> 16 == 0 {
        Flow::Trap
    } else {
        Flow::Next
    }
}

/// Effect of the instruction `word` on the stack pointer and its copies.
pub fn stack(word: u32) -> Stack {
    let (rd, rn) = (register(word, 0), register(word, 5));
    // ADD and SUB (immediate), 64 bits: register 31 is SP in both places.
    if matches!(word & 0xff80_0000, 0x9100_0000 | 0xd100_0000) {
        let imm = i64::from((word >> 10) & 0xfff) << if word & (1 << 22) != 0 { 12 } else { 0 };
        let add = if word & (1 << 30) != 0 { -imm } else { imm };
        return Stack::Copy {
            to: rd,
            from: rn,
            add,
        };
    }
    // ADD and SUB (extended register): SP when rd is 31.
    if matches!(word & 0xffe0_0000, 0x8b20_0000 | 0xcb20_0000) && rd == SP {
        return Stack::Unknown;
    }
    // AND, ORR, EOR (immediate), 64 bits: SP when rd is 31. AND with a mask of high ones aligns.
    if matches!(word & 0xff80_0000, 0x9200_0000 | 0xb200_0000 | 0xd200_0000) && rd == SP {
        let (n, immr, imms) = ((word >> 22) & 1, (word >> 16) & 63, (word >> 10) & 63);
        let high_ones = n == 1 && immr == imms + 1;
        if word & 0xff80_0000 == 0x9200_0000 && high_ones {
            return Stack::Align {
                from: rn,
                align: 1 << (63 - imms),
            };
        }
        return Stack::Unknown;
    }
    if rn != SP {
        return Stack::Keep;
    }
    // Load or store pair with write-back: bits 24:23 are 01 (post-index) or 11 (pre-index).
    if word & 0x3a00_0000 == 0x2800_0000 && word & (1 << 23) != 0 {
        let (opc, vector) = (word >> 30, word & (1 << 26) != 0);
        let scale = if vector { 2 + opc } else { 2 + (opc >> 1) };
        return Stack::Copy {
            to: SP,
            from: SP,
            add: sign((word >> 15) & 0x7f, 7) << scale,
        };
    }
    // Load or store of one register with write-back: bits 11:10 are 01 or 11.
    if word & 0x3b20_0000 == 0x3800_0000 && word & (1 << 10) != 0 {
        return Stack::Copy {
            to: SP,
            from: SP,
            add: sign((word >> 12) & 0x1ff, 9),
        };
    }
    Stack::Keep
}

/// Whether `word` is `ADD rd, rn, rm, ...` (shifted or extended register, 64 bits), as it stands before
/// the `BR` of a jump table; then (rd, rn, rm).
pub fn add_registers(word: u32) -> Option<(u8, u8, u8)> {
    let shifted = word & 0xff20_0000 == 0x8b00_0000;
    let extended = word & 0xffe0_0000 == 0x8b20_0000;
    (shifted || extended).then(|| (register(word, 0), register(word, 5), register(word, 16)))
}

/// Whether `word` is `ADR` or `ADRP`; then the register and the address it forms.
pub fn address(pc: u64, word: u32) -> Option<(u8, u64)> {
    let imm = sign(((word >> 5) & 0x7_ffff) << 2 | ((word >> 29) & 3), 21);
    match word & 0x9f00_0000 {
        0x1000_0000 => Some((register(word, 0), pc.wrapping_add_signed(imm))),
        0x9000_0000 => Some((
            register(word, 0),
            (pc & !0xfff).wrapping_add_signed(imm << 12),
        )),
        _ => None,
    }
}

/// Whether `word` loads `rt` with an entry of a jump table: `LDRB`, `LDRH`, `LDRSB`, `LDRSH` or `LDRSW`
/// with a register offset or an immediate.
pub fn table_load(word: u32) -> Option<u8> {
    let loads = word & 0x3a00_0000 == 0x3800_0000 && word & (1 << 26) == 0;
    let narrow = word >> 30 < 3 && (word >> 22) & 3 != 0;
    (loads && narrow).then(|| register(word, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_are_told_apart() {
        assert_eq!(flow(0x1000, 0x1400_0002), Flow::Jump(0x1008));
        assert_eq!(flow(0x1000, 0x97ff_ffff), Flow::Call(0xffc));
        assert_eq!(flow(0x1000, 0x5400_0040), Flow::Branch(0x1008)); // b.eq
        assert_eq!(flow(0x1000, 0xb4ff_ffe0), Flow::Branch(0xffc)); // cbz x0
        assert_eq!(flow(0x1000, 0x3700_0040), Flow::Branch(0x1008)); // tbnz w0, #0
        assert_eq!(flow(0, 0xd61f_0140), Flow::JumpRegister(10));
        assert_eq!(flow(0, 0xd63f_0100), Flow::CallRegister(8));
        assert_eq!(flow(0, 0xd65f_03c0), Flow::Return);
        assert_eq!(flow(0, 0xd65f_0bff), Flow::Return); // retaa
        assert_eq!(flow(0, 0xd69f_03e0), Flow::ExceptionReturn);
        assert_eq!(flow(0, 0xd420_0020), Flow::Trap); // brk #1
        assert_eq!(flow(0, 0), Flow::Trap); // udf #0
        assert_eq!(flow(0, 0xd503_201f), Flow::Next); // nop
        assert_eq!(flow(0, 0xd400_0002), Flow::Next); // hvc #0
    }

    #[test]
    fn stack_moves_are_measured() {
        let sp = |add| Stack::Copy {
            to: SP,
            from: SP,
            add,
        };
        assert_eq!(stack(0xd100_83ff), sp(-32)); // sub sp, sp, #32
        assert_eq!(stack(0x9140_07ff), sp(4096)); // add sp, sp, #1, lsl #12
        assert_eq!(stack(0xa9bf_7bfd), sp(-16)); // stp x29, x30, [sp, #-16]!
        assert_eq!(stack(0xa8c2_7bfd), sp(32)); // ldp x29, x30, [sp], #32
        assert_eq!(stack(0xa901_4ff4), Stack::Keep); // stp x20, x19, [sp, #16]
        assert_eq!(stack(0xf81e_0ffe), sp(-32)); // str x30, [sp, #-32]!
        assert_eq!(stack(0xf842_07fe), sp(32)); // ldr x30, [sp], #32
        assert_eq!(stack(0xadbe_07e0), sp(-64)); // stp q0, q1, [sp, #-64]!
        assert_eq!(
            stack(0x9100_43fd),
            Stack::Copy {
                to: 29,
                from: SP,
                add: 16
            }
        ); // add x29, sp, #16
        assert_eq!(stack(0x927a_e53f), Stack::Align { from: 9, align: 64 }); // and sp, x9, #~63
        assert_eq!(stack(0xcb29_63ff), Stack::Unknown); // sub sp, sp, x9
        assert_eq!(stack(0xf940_0be0), Stack::Keep); // ldr x0, [sp, #16]
    }

    #[test]
    fn jump_table_parts_are_found() {
        assert_eq!(address(0x1000, 0x1000_004a), Some((10, 0x1008))); // adr x10, .+8
        assert_eq!(address(0x1234, 0xb000_0009), Some((9, 0x2000))); // adrp x9, .+0x1000
        assert_eq!(add_registers(0x8b0b_094a), Some((10, 10, 11))); // add x10, x10, x11, lsl #2
        assert_eq!(table_load(0x3868_692b), Some(11)); // ldrb w11, [x9, x8]
        assert_eq!(table_load(0xb8a8_792a), Some(10)); // ldrsw x10, [x9, x8, lsl #2]
        assert_eq!(table_load(0xf868_7920), None); // ldr x0, [x9, x8, lsl #3]
    }
}

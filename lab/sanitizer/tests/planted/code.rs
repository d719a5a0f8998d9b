//! Small programs for EL2, written as encodings so that the tests need no cross assembler
//! (DDI 0487, C6.2).

pub const ISB: u32 = 0xd503_3fdf;
pub const DSB_SY: u32 = 0xd503_3f9f;
pub const DSB_ISH: u32 = 0xd503_3b9f;
pub const DSB_ISHST: u32 = 0xd503_3a9f;
pub const DSB_NSH: u32 = 0xd503_379f;
pub const DMB_ISHST: u32 = 0xd503_3abf;
pub const RET: u32 = 0xd65f_03c0;
/// `blr x4`
pub const BLR_X4: u32 = 0xd63f_0080;
pub const ERET: u32 = 0xd69f_03e0;
pub const HVC: u32 = 0xd400_0002;
pub const SMC: u32 = 0xd400_0003;
pub const IC_IALLU: u32 = 0xd508_751f;
pub const IC_IALLUIS: u32 = 0xd508_711f;
pub const TLBI_ALLE2: u32 = 0xd50c_871f;
pub const TLBI_VMALLS12E1: u32 = 0xd50c_87df;
pub const TLBI_VMALLE1: u32 = 0xd508_871f;
/// `fmov d0, xzr`
pub const FMOV_D0: u32 = 0x9e67_03e0;
/// `mrs x3, par_el1`
pub const MRS_PAR: u32 = 0xd538_7403;
/// `mrs x3, hpfar_el2`
pub const MRS_HPFAR: u32 = 0xd53c_6083;
/// `mrs x3, isr_el1`
pub const MRS_ISR: u32 = 0xd538_c103;
/// `mrs x3, icc_iar1_el1`
pub const MRS_IAR1: u32 = 0xd538_cc03;
/// `ldr w3, [x2]`
pub const LDR_WORD: u32 = 0xb940_0043;

// With the register that `Code::sys` fills.
pub const TLBI_VAE2: u32 = 0xd50c_8720;
pub const TLBI_IPAS2E1: u32 = 0xd50c_8420;
/// `tlbi rvae2`, of Armv8.4
pub const TLBI_RVAE2: u32 = 0xd50c_8620;
pub const DC_CVAC: u32 = 0xd50b_7a20;
pub const DC_CIVAC: u32 = 0xd50b_7e20;
pub const DC_IVAC: u32 = 0xd508_7620;
pub const DC_ZVA: u32 = 0xd50b_7420;
pub const AT_S1E2R: u32 = 0xd50c_7800;
pub const SCTLR: u32 = 0xd51c_1000;
pub const HCR: u32 = 0xd51c_1100;
pub const CPTR: u32 = 0xd51c_1140;
pub const PMSELR: u32 = 0xd51b_9ca0;
pub const PMXEVCNTR: u32 = 0xd51b_9d40;
pub const TTBR0: u32 = 0xd51c_2000;
pub const TCR: u32 = 0xd51c_2040;
pub const VTTBR: u32 = 0xd51c_2100;
pub const VTCR: u32 = 0xd51c_2140;
pub const SPSR: u32 = 0xd51c_4000;
pub const ESR: u32 = 0xd51c_5200;
pub const ELR: u32 = 0xd51c_4020;
pub const MAIR: u32 = 0xd51c_a200;
pub const VBAR: u32 = 0xd51c_c000;
pub const SGI1R: u32 = 0xd518_cba0;
pub const SRE_EL2: u32 = 0xd51c_c9a0;
pub const PMR: u32 = 0xd518_4600;
pub const IGRPEN1: u32 = 0xd518_cce0;
/// TTBR0_EL1, TCR_EL1, SCTLR_EL1
pub const TTBR1: u32 = 0xd518_2000;
pub const TCR1: u32 = 0xd518_2040;
pub const SCTLR1: u32 = 0xd518_1000;
pub const TPIDR: u32 = 0xd51c_d040;
pub const VMPIDR: u32 = 0xd51c_00a0;

/// Instructions in a row.
#[derive(Clone, Debug, Default)]
pub struct Code(pub Vec<u32>);

impl Code {
    /// Adds instructions without operands.
    pub fn ops(&mut self, words: &[u32]) -> &mut Self {
        self.0.extend_from_slice(words);
        self
    }

    /// MOVZ and MOVK.
    pub fn mov(&mut self, register: u32, value: u64) -> &mut Self {
        self.0
            .push(0xd280_0000 | (value as u32 & 0xffff) << 5 | register);
        for n in 1..4u32 {
            let half = (value >> (16 * n)) as u32 & 0xffff;
            if half != 0 {
                self.0.push(0xf280_0000 | n << 21 | half << 5 | register);
            }
        }
        self
    }

    /// An instruction with an operand in x1.
    pub fn sys(&mut self, word: u32, value: u64) -> &mut Self {
        self.mov(1, value).ops(&[word | 1])
    }

    /// Stores 8 bytes.
    pub fn store(&mut self, address: u64, value: u64) -> &mut Self {
        // str x1, [x2]
        self.mov(1, value).mov(2, address).ops(&[0xf900_0041])
    }

    /// Stores 4 bytes, to a device for example.
    pub fn store_word(&mut self, address: u64, value: u64) -> &mut Self {
        // str w1, [x2]
        self.mov(1, value).mov(2, address).ops(&[0xb900_0041])
    }

    /// Loads 8 bytes.
    pub fn load(&mut self, address: u64) -> &mut Self {
        // ldr x3, [x2]
        self.mov(2, address).ops(&[0xf940_0043])
    }

    /// Loads until the 8 bytes are not 0.
    pub fn wait(&mut self, address: u64) -> &mut Self {
        // ldr x3, [x2]; cbz x3, back to it
        self.mov(2, address).ops(&[0xf940_0043, 0xb4ff_ffe3])
    }

    /// Sleeps for good.
    pub fn sleep(&mut self) -> &mut Self {
        // wfi; b back to it
        self.ops(&[0xd503_207f, 0x17ff_ffff])
    }

    /// A call of the firmware (PSCI).
    pub fn call(&mut self, function: u64, x1: u64, x2: u64) -> &mut Self {
        self.mov(0, function).mov(1, x1).mov(2, x2).ops(&[SMC])
    }

    /// The bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

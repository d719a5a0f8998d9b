//! Decoding of ESR_EL2, the reason for an exit (DDI 0487, D24.2.40 "ESR_EL2").

pub use bulkhead_abi::syndrome::{class, ec, words};

/// ESR_ELx.IL: the instruction was 32 bits long.
pub const IL: u64 = 1 << 25;

/// A load or store at an address that stage 2 does not map, with a valid syndrome (ISV = 1). Small,
/// so that it is passed in registers: what else there is to know is read from the syndrome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mmio {
    /// Address of the access (IPA).
    pub ipa: u64,
    esr: u64,
}

/// The fields of a syndrome that [`is_plain_word`] compares.
const PLAIN: u64 = ISV | S1PTW | CM | 0b111 << 21 | 0b11_1100;

/// Whether an access is a plain word access: a translation fault by a load or store of four bytes
/// with a valid syndrome and no sign extension. Nearly every access to a device is one.
#[inline(always)]
pub const fn is_plain_word(esr: u64) -> bool {
    esr & PLAIN == ISV | 0b100 << 21 | 0b00_0100
}

/// Whether an access is a store, with a valid syndrome, that stage 2 refuses although it maps the address: a permission fault.
#[inline(always)]
pub const fn is_refused_write(esr: u64) -> bool {
    esr & (ISV | S1PTW | CM | WNR | 0b11_1100) == ISV | WNR | 0b00_1100
}

/// Whether [`is_refused_write`] holds, and the store is one of four bytes, as nearly every one is.
#[inline(always)]
pub const fn is_refused_word(esr: u64) -> bool {
    esr & (ISV | S1PTW | CM | WNR | 0b11 << 22 | 0b11_1100) == ISV | WNR | 0b10 << 22 | 0b00_1100
}

/// IPA of a translation fault: `hpfar` holds IPA\[47:12\] (DDI 0487, D24.2.67 "HPFAR_EL2"), `far` the
/// offset in the page.
#[inline(always)]
pub const fn fault_ipa(far: u64, hpfar: u64) -> u64 {
    hpfar << 8 | far & 0xfff
}

/// The general-purpose register of the access, 31 is XZR.
#[inline(always)]
pub const fn access_register(esr: u64) -> u8 {
    (esr >> 16 & 31) as u8
}

/// Whether the access is a store.
#[inline(always)]
pub const fn is_store(esr: u64) -> bool {
    esr & WNR != 0
}

/// Whether a data abort may be an access to an emulated device: a translation fault with a valid syndrome. [`fault_ipa`] is its address, and
/// UNKNOWN behind some others.
#[inline(always)]
pub const fn is_mmio(esr: u64) -> bool {
    esr & (ISV | S1PTW | CM | 0b11_1100) == ISV | 0b00_0100
}

/// EL2's reaction to a data abort of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataAbort {
    /// May be an access to an emulated device: a translation fault with a valid syndrome.
    Mmio(Mmio),
    /// Cannot be emulated: no valid syndrome, a permission fault, a fault in a stage-1 walk, an
    /// external abort. EL2 injects a data abort into the guest.
    Refused,
}

const ISV: u64 = 1 << 24;
const S1PTW: u64 = 1 << 7;
const CM: u64 = 1 << 8;
const WNR: u64 = 1 << 6;

impl DataAbort {
    /// Decodes the syndrome of a data abort; `ipa` is [`fault_ipa`], which counts for translation
    /// faults only.
    #[inline(always)]
    pub const fn decode(esr: u64, ipa: u64) -> Self {
        if !is_mmio(esr) {
            return Self::Refused;
        }
        Self::Mmio(Mmio { ipa, esr })
    }
}

impl Mmio {
    /// An access that [`DataAbort::decode`] takes, with its offset in a device in place of the IPA.
    #[inline(always)]
    pub const fn at_offset(offset: u64, esr: u64) -> Self {
        Self { ipa: offset, esr }
    }

    /// The same access at another address, for instance within a device.
    #[inline(always)]
    pub const fn at(self, ipa: u64) -> Self {
        Self { ipa, ..self }
    }

    /// Size in bytes: 1, 2, 4 or 8.
    #[inline(always)]
    pub const fn size(&self) -> u64 {
        1 << ((self.esr >> 22) & 3)
    }

    /// General-purpose register, 31 is XZR.
    #[inline(always)]
    pub const fn register(&self) -> u8 {
        access_register(self.esr)
    }

    /// Whether the access is a store.
    #[inline(always)]
    pub const fn is_write(&self) -> bool {
        is_store(self.esr)
    }

    /// Whether the loaded value is sign-extended.
    #[inline(always)]
    pub const fn sign_extend(&self) -> bool {
        self.esr & (1 << 21) != 0
    }

    /// Whether the destination is an X register (matters for sign extension).
    #[inline(always)]
    pub const fn is_wide(&self) -> bool {
        self.esr & (1 << 15) != 0
    }

    /// The number of bits above the value in a register of 64: 56, 48, 32 or 0.
    #[inline(always)]
    const fn above(&self) -> u32 {
        64u32.wrapping_sub(8u32.wrapping_shl((self.esr >> 22) as u32 & 3))
    }

    /// The value that a load puts into its register when the device returns `value`.
    #[inline(always)]
    pub const fn loaded(&self, value: u64) -> u64 {
        let high = value.wrapping_shl(self.above());
        if !self.sign_extend() {
            return high.wrapping_shr(self.above());
        }
        let extended = (high as i64).wrapping_shr(self.above()) as u64;
        if self.is_wide() || self.above() == 0 {
            extended
        } else {
            extended & 0xffff_ffff
        }
    }

    /// The bytes of its register that a store writes.
    #[inline(always)]
    pub const fn stored(&self, register: u64) -> u64 {
        register
            .wrapping_shl(self.above())
            .wrapping_shr(self.above())
    }
}

/// A trapped WFI or WFE (ESR_EL2.TI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// WFI: for an interrupt.
    Interrupt,
    /// WFE: for an event.
    Event,
    /// WFIT and WFET, which the guest does not have and which may end at once.
    Timed,
}

impl Wait {
    /// Decodes the syndrome of a trapped wait.
    #[inline(always)]
    pub const fn decode(esr: u64) -> Self {
        match esr & 3 {
            0 => Self::Interrupt,
            1 => Self::Event,
            _ => Self::Timed,
        }
    }
}

/// A trapped MRS or MSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysReg {
    /// Encoding as from [`sysreg`].
    pub register: u32,
    /// General-purpose register, 31 is XZR.
    pub gpr: u8,
    /// Whether the access is MRS, not MSR.
    pub read: bool,
}

/// Encodes a system register as one number: op0, op1, CRn, CRm and op2 at their positions in the
/// ISS.
pub const fn sysreg(op0: u32, op1: u32, crn: u32, crm: u32, op2: u32) -> u32 {
    op0 << 20 | op2 << 17 | op1 << 14 | crn << 10 | crm << 1
}

impl SysReg {
    /// Decodes the syndrome of a trapped system register access.
    #[inline(always)]
    pub const fn decode(esr: u64) -> Self {
        Self {
            register: (esr & 0x3f_fc1e) as u32,
            gpr: ((esr >> 5) & 31) as u8,
            read: esr & 1 != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Word store of x20 to IPA 0x0800_0104, translation fault level 3.
    #[test]
    fn a_store_is_decoded() {
        let esr = ec::DATA_LOWER << 26 | IL | ISV | 2 << 22 | 20 << 16 | WNR | 0x07;
        let DataAbort::Mmio(mmio) = DataAbort::decode(esr, fault_ipa(0xffff_0000_0104, 0x80000))
        else {
            panic!("refused");
        };
        assert_eq!(mmio.ipa, 0x0800_0104);
        assert_eq!(
            (mmio.size(), mmio.register(), mmio.is_write()),
            (4, 20, true)
        );
        assert_eq!(mmio.stored(0x1_2345_6789), 0x2345_6789);
    }

    #[test]
    fn waits_are_told_apart() {
        let waits = [0, 1, 2, 3].map(|ti| Wait::decode(ec::WFX << 26 | IL | 0xe << 20 | ti));
        let timed = Wait::Timed;
        assert_eq!(waits, [Wait::Interrupt, Wait::Event, timed, timed]);
    }

    /// Permission fault level 3.
    #[test]
    fn stores_to_a_page_that_may_only_be_read_are_told_from_all_else() {
        let store = |size: u64| ec::DATA_LOWER << 26 | IL | ISV | size << 22 | 3 << 16 | WNR | 0x0f;
        for size in 0..4 {
            assert!(is_refused_write(store(size)));
            assert_eq!(is_refused_word(store(size)), size == 2);
        }
        let word = store(2);
        for other in [
            word & !ISV,
            word | S1PTW,
            word | CM,
            word & !WNR,
            word & !0x3f | 0x07,
            word & !0x3f | 0x0b,
        ] {
            let found = (is_refused_word(other), is_refused_write(other));
            assert_eq!(found, (false, false), "{other:#x}");
        }
        // Of any level, of any register, and with any width of the register.
        for other in [word & !0x3, word | 31 << 16, word | 1 << 15, word | 1 << 21] {
            assert!(is_refused_word(other), "{other:#x}");
        }
    }

    #[test]
    fn what_cannot_be_emulated_is_refused() {
        let good = ec::DATA_LOWER << 26 | IL | ISV | 2 << 22 | 0x07;
        assert!(matches!(DataAbort::decode(good, 0), DataAbort::Mmio(_)));
        for bad in [
            good & !ISV,
            good | S1PTW,
            good | CM,
            good & !0x3f | 0x0f,
            good & !0x3f | 0x10,
        ] {
            assert_eq!(DataAbort::decode(bad, 0), DataAbort::Refused, "{bad:#x}");
        }
    }

    #[test]
    fn plain_words_are_told_from_the_rest() {
        let plain = ec::DATA_LOWER << 26 | IL | ISV | 2 << 22 | 0x07;
        assert!(is_plain_word(plain) && is_plain_word(plain | WNR | 20 << 16 | 0x06));
        for other in [
            plain & !ISV,
            plain | S1PTW,
            plain | CM,
            plain | 1 << 21,
            plain ^ 1 << 22,
            plain ^ 1 << 3,
        ] {
            assert!(!is_plain_word(other), "{other:#x}");
        }
    }

    #[test]
    fn loads_extend_as_the_instruction_says() {
        let load = |size: u64, sign_extend: bool, wide: bool| {
            let (sign_extend, wide) = (u64::from(sign_extend), u64::from(wide));
            let how = size.ilog2() as u64;
            let esr = ec::DATA_LOWER << 26 | ISV | how << 22 | sign_extend << 21 | wide << 15 | 7;
            let DataAbort::Mmio(mmio) = DataAbort::decode(esr, 0) else {
                panic!("refused");
            };
            assert_eq!(
                (mmio.size(), mmio.sign_extend(), mmio.is_wide()),
                (size, sign_extend == 1, wide == 1)
            );
            mmio
        };
        assert_eq!(load(1, true, true).loaded(0x1_80), 0xffff_ffff_ffff_ff80);
        assert_eq!(load(1, true, false).loaded(0x80), 0xffff_ff80);
        assert_eq!(load(1, false, true).loaded(0x180), 0x80);
        assert_eq!(load(1, true, true).loaded(0x7f), 0x7f);
        assert_eq!(load(2, false, false).loaded(0x1_2345), 0x2345);
        assert_eq!(load(2, true, false).loaded(0x8000), 0xffff_8000);
        assert_eq!(load(8, false, true).loaded(u64::MAX), u64::MAX);
        assert_eq!(
            load(4, true, true).loaded(0x8000_0000),
            0xffff_ffff_8000_0000
        );
        for (size, stored) in [
            (1, 0xef),
            (2, 0xcdef),
            (4, 0x89ab_cdef),
            (8, 0x0123_4567_89ab_cdef),
        ] {
            assert_eq!(
                load(size, false, true).stored(0x0123_4567_89ab_cdef),
                stored
            );
        }
    }

    #[test]
    fn system_register_encodings_agree() {
        // MSR ICC_SGI1R_EL1, x7: op0 3, op1 0, CRn 12, CRm 11, op2 5.
        let iss: u64 = 3 << 20 | 5 << 17 | 12 << 10 | 7 << 5 | 11 << 1;
        let access = SysReg::decode(ec::SYSREG << 26 | IL | iss);
        assert_eq!(
            access,
            SysReg {
                register: sysreg(3, 0, 12, 11, 5),
                gpr: 7,
                read: false
            }
        );
        assert!(SysReg::decode(ec::SYSREG << 26 | iss | 1).read);
    }
}

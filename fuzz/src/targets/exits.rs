//! Syndromes: whatever ESR_EL2 says is decoded, and what is decoded makes sense.

use bulkhead_core::cpu::exit::{self, DataAbort, SysReg};
use bulkhead_core::cpu::inject::{self, Before, Fault, Features};

use crate::Target;
use crate::engine::Input;

/// This target.
pub const TARGET: Target = Target {
    name: "exits",
    seeds,
    words: &[],
    run,
};

fn seeds() -> Vec<Vec<u8>> {
    // Loads and stores of all sizes, with a fault address and a page; and a trapped MSR.
    let data = [
        0x9383_0007_u64,
        0x93c0_8047,
        0x9353_0046,
        0x9200_0000,
        0x6232_0407,
    ];
    data.iter()
        .map(|esr| {
            [*esr, 0xffff_0000_0800_0104, 0x8_0000, 0x3c5]
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect()
        })
        .collect()
}

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (esr, far, hpfar, spsr) = (input.u64(), input.u64(), input.u64(), input.u64());
    assert!(!exit::words(esr).is_empty());
    assert!(exit::access_register(esr) < 32);
    if let DataAbort::Mmio(mmio) = DataAbort::decode(esr, exit::fault_ipa(far, hpfar)) {
        assert!([1, 2, 4, 8].contains(&mmio.size()) && mmio.register() < 32);
        assert_eq!(mmio.ipa, exit::fault_ipa(far, hpfar));
        let value = input.u64();
        let bits = 8 * mmio.size() as u32;
        let mask = u64::MAX >> (64 - bits);
        assert_eq!(mmio.stored(value), value & mask);
        let loaded = mmio.loaded(value);
        assert_eq!(loaded & mask, value & mask);
        let negative = mmio.sign_extend() && value >> (bits - 1) & 1 != 0;
        let above = loaded >> (bits - 1) >> 1;
        let width = if mmio.is_wide() || bits == 64 { 64 } else { 32 };
        let filled = (u64::MAX >> (64 - width)) >> (bits - 1) >> 1;
        assert_eq!(
            above,
            if negative { filled } else { 0 },
            "{mmio:?} {value:#x}"
        );
    }
    // A plain word is one that the whole decoder takes too, as a word.
    if exit::is_plain_word(esr) {
        let DataAbort::Mmio(mmio) = DataAbort::decode(esr, exit::fault_ipa(far, hpfar)) else {
            panic!("a plain word is refused: {esr:#x}");
        };
        assert!(mmio.size() == 4 && !mmio.sign_extend());
    }
    let access = SysReg::decode(esr);
    assert!(access.gpr < 32);
    assert_eq!(access.register & !0x3f_fc1e, 0);

    let before = Before {
        pc: input.u64(),
        spsr,
        vbar: input.u64(),
        sctlr: input.u64(),
        features: Features {
            pan: spsr & 1 << 40 != 0,
            ssbs: spsr & 1 << 41 != 0,
            mte2: spsr & 1 << 42 != 0,
            nmi: spsr & 1 << 43 != 0,
        },
    };
    for fault in [Fault::Undefined, Fault::Data(far), Fault::Fetch(far)] {
        if inject::is_lost(&before, fault) {
            continue;
        }
        let after = inject::enter(&before, fault, esr);
        // The vectors' address has no low bits: VBAR_EL1[10:0] are RES0 and may read as written.
        let offset = after.pc.wrapping_sub(before.vbar >> 11 << 11);
        assert!(
            [0x000, 0x200, 0x400].contains(&offset),
            "vector {offset:#x}"
        );
        assert_eq!(
            after.spsr & 0x3df,
            0x3c5,
            "EL1h in AArch64 with DAIF masked"
        );
        assert_eq!((after.elr, after.saved), (before.pc, before.spsr));
        assert_eq!(after.far.is_some(), fault != Fault::Undefined);
    }
}

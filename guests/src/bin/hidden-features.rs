//! Claim: what the ID registers hide is not there, whatever the CPU has; what they show works.
//!
//! For each class of features that a VM does not get: its ID fields read as absent, and its
//! registers and instructions are undefined, or have no effect where the architecture has no trap
//! for them.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, check, guest, mrs, msr, println, probe, sysreg};

guest!(main = main);

/// A field of an ID register: CRm, op2, lowest bit.
type Field = (u32, u32, u32);

/// An encoding of a system register: op0, op1, CRn, CRm, op2.
#[derive(Clone, Copy)]
struct Register(u32, u32, u32, u32, u32);

impl Register {
    /// MRS x0.
    const fn read(self) -> u32 {
        let Self(op0, op1, crn, crm, op2) = self;
        0xd520_0000 | op0 << 19 | op1 << 16 | crn << 12 | crm << 8 | op2 << 5
    }

    /// MSR, x0.
    const fn write(self) -> u32 {
        self.read() & !0x20_0000
    }
}

/// Features that come together.
struct Class {
    name: &'static str,
    /// All read as 0.
    fields: &'static [Field],
    /// Undefined to read and to write.
    registers: &'static [(&'static str, Register)],
    /// Undefined, with 0 in x0 to x7.
    instructions: &'static [(&'static str, u32)],
}

const CLASSES: [Class; 18] = [
    Class {
        name: "SVE",
        fields: &[(4, 0, 32), (4, 4, 0), (4, 4, 32)],
        registers: &[("ZCR_EL1", Register(3, 0, 1, 2, 0))],
        instructions: &[("rdvl x0, #1", 0x04bf_5020), ("ptrue p0.b", 0x2518_e3e0)],
    },
    Class {
        name: "SME",
        fields: &[(4, 1, 24), (4, 5, 32), (4, 5, 60)],
        registers: &[
            ("SMCR_EL1", Register(3, 0, 1, 2, 6)),
            ("SMPRI_EL1", Register(3, 0, 1, 2, 4)),
            ("SVCR", Register(3, 3, 4, 2, 2)),
            ("TPIDR2_EL0", Register(3, 3, 13, 0, 5)),
        ],
        instructions: &[
            ("smstart", 0xd503_477f),
            ("rdsvl x0, #1", 0x04bf_5820),
            ("mrs x0, smidr_el1", Register(3, 1, 0, 0, 6).read()),
        ],
    },
    Class {
        name: "memory tags",
        fields: &[(4, 1, 8), (4, 1, 40)],
        registers: &[
            ("RGSR_EL1", Register(3, 0, 1, 0, 5)),
            ("GCR_EL1", Register(3, 0, 1, 0, 6)),
            ("TFSR_EL1", Register(3, 0, 5, 6, 0)),
            ("TFSRE0_EL1", Register(3, 0, 5, 6, 1)),
        ],
        instructions: &[("mrs x0, gmid_el1", Register(3, 1, 0, 0, 4).read())],
    },
    Class {
        name: "keys of pointer authentication",
        fields: &[
            (6, 1, 4),
            (6, 1, 8),
            (6, 1, 24),
            (6, 1, 28),
            (6, 2, 8),
            (6, 2, 12),
            (6, 2, 24),
        ],
        registers: &[
            ("APIAKeyLo_EL1", Register(3, 0, 2, 1, 0)),
            ("APIBKeyHi_EL1", Register(3, 0, 2, 1, 3)),
            ("APDAKeyLo_EL1", Register(3, 0, 2, 2, 0)),
            ("APDBKeyHi_EL1", Register(3, 0, 2, 2, 3)),
            ("APGAKeyLo_EL1", Register(3, 0, 2, 3, 0)),
        ],
        instructions: &[("pacga x0, x1, x2", 0x9ac2_3020)],
    },
    Class {
        name: "RAS",
        fields: &[(4, 0, 28), (4, 1, 12), (7, 2, 12)],
        registers: &[
            ("ERRSELR_EL1", Register(3, 0, 5, 3, 1)),
            ("ERXCTLR_EL1", Register(3, 0, 5, 4, 1)),
            ("ERXMISC0_EL1", Register(3, 0, 5, 5, 0)),
        ],
        instructions: &[("mrs x0, erridr_el1", Register(3, 0, 5, 3, 0).read())],
    },
    Class {
        name: "limited ordering regions",
        fields: &[(7, 1, 16)],
        registers: &[
            ("LORC_EL1", Register(3, 0, 10, 4, 3)),
            ("LORSA_EL1", Register(3, 0, 10, 4, 0)),
        ],
        instructions: &[("mrs x0, lorid_el1", Register(3, 0, 10, 4, 7).read())],
    },
    Class {
        name: "performance and activity monitors",
        fields: &[(5, 0, 8), (4, 0, 44), (5, 0, 48), (5, 0, 60)],
        registers: &[
            ("PMCR_EL0", Register(3, 3, 9, 12, 0)),
            ("PMCCNTR_EL0", Register(3, 3, 9, 13, 0)),
            ("PMCCFILTR_EL0", Register(3, 3, 14, 15, 7)),
            ("AMCR_EL0", Register(3, 3, 13, 2, 0)),
            ("AMEVCNTR00_EL0", Register(3, 3, 13, 4, 0)),
        ],
        instructions: &[],
    },
    Class {
        name: "profiling, trace and branch records",
        fields: &[(5, 0, 4), (5, 0, 32), (5, 0, 40), (5, 0, 44), (5, 0, 52)],
        registers: &[
            ("PMSCR_EL1", Register(3, 0, 9, 9, 0)),
            ("PMBLIMITR_EL1", Register(3, 0, 9, 10, 0)),
            ("TRBLIMITR_EL1", Register(3, 0, 9, 11, 0)),
            ("TRFCR_EL1", Register(3, 0, 1, 2, 1)),
            ("TRCPRGCTLR", Register(2, 1, 0, 1, 0)),
            ("BRBCR_EL1", Register(2, 1, 9, 0, 0)),
        ],
        instructions: &[],
    },
    Class {
        name: "memory partitions (MPAM)",
        fields: &[(4, 0, 40), (4, 1, 16)],
        registers: &[
            ("MPAM0_EL1", Register(3, 0, 10, 5, 1)),
            ("MPAM1_EL1", Register(3, 0, 10, 5, 0)),
        ],
        instructions: &[("mrs x0, mpamidr_el1", Register(3, 0, 10, 4, 4).read())],
    },
    Class {
        name: "software context numbers",
        fields: &[(4, 1, 32)],
        registers: &[
            ("SCXTNUM_EL0", Register(3, 3, 13, 0, 7)),
            ("SCXTNUM_EL1", Register(3, 0, 13, 0, 7)),
        ],
        instructions: &[],
    },
    Class {
        name: "non-maskable interrupts",
        fields: &[(4, 1, 36)],
        registers: &[],
        instructions: &[
            ("msr allint, x0", Register(3, 0, 4, 3, 0).write()),
            ("msr allint, #1", 0xd501_411f),
        ],
    },
    Class {
        name: "memory copy and set",
        fields: &[(6, 2, 16)],
        registers: &[],
        instructions: &[
            ("cpyfp [x0]!, [x1]!, x2!", 0x1901_0440),
            ("setp [x0]!, x1!, x2", 0x19c2_0420),
        ],
    },
    Class {
        name: "64-byte accesses",
        fields: &[(6, 1, 60)],
        registers: &[("ACCDATA_EL1", Register(3, 0, 13, 0, 5))],
        instructions: &[
            ("ld64b x0, [x8]", 0xf83f_d100),
            ("st64bv0 x9, x0, [x8]", 0xf829_a100),
        ],
    },
    Class {
        name: "permission indirection and overlays, second control registers",
        fields: &[(7, 3, 0), (7, 3, 4), (7, 3, 8), (7, 3, 16), (7, 3, 28)],
        registers: &[
            ("SCTLR2_EL1", Register(3, 0, 1, 0, 3)),
            ("TCR2_EL1", Register(3, 0, 2, 0, 3)),
            ("PIR_EL1", Register(3, 0, 10, 2, 3)),
            ("PIRE0_EL1", Register(3, 0, 10, 2, 2)),
            ("POR_EL1", Register(3, 0, 10, 2, 4)),
            ("POR_EL0", Register(3, 3, 10, 2, 4)),
            ("S2POR_EL1", Register(3, 0, 10, 2, 5)),
            ("MAIR2_EL1", Register(3, 0, 10, 2, 1)),
            ("AMAIR2_EL1", Register(3, 0, 10, 3, 1)),
        ],
        instructions: &[],
    },
    Class {
        name: "guarded control stacks",
        fields: &[(4, 1, 44)],
        registers: &[
            ("GCSCR_EL1", Register(3, 0, 2, 5, 0)),
            ("GCSCRE0_EL1", Register(3, 0, 2, 5, 2)),
            ("GCSPR_EL0", Register(3, 3, 2, 5, 1)),
        ],
        instructions: &[],
    },
    Class {
        name: "128-bit registers and read-check-write",
        fields: &[(6, 2, 32), (6, 2, 36), (4, 1, 48), (7, 3, 32)],
        registers: &[
            ("RCWMASK_EL1", Register(3, 0, 13, 0, 6)),
            ("RCWSMASK_EL1", Register(3, 0, 13, 0, 3)),
        ],
        instructions: &[("mrrs x0, x1, ttbr0_el1", 0xd578_2000)],
    },
    Class {
        name: "8-bit floating point",
        fields: &[(4, 2, 32), (4, 7, 0), (4, 7, 28)],
        registers: &[("FPMR", Register(3, 3, 4, 4, 2))],
        instructions: &[],
    },
    Class {
        name: "EL2, EL3 and what belongs to them",
        fields: &[
            (4, 0, 8),
            (4, 0, 12),
            (4, 0, 36),
            (4, 0, 52),
            (7, 0, 56),
            (7, 1, 4),
            (7, 1, 8),
            (7, 1, 28),
            (7, 1, 32),
            (7, 1, 40),
            (7, 2, 24),
            (7, 2, 40),
            (7, 2, 56),
        ],
        registers: &[
            ("HCR_EL2", Register(3, 4, 1, 1, 0)),
            ("HCRX_EL2", Register(3, 4, 1, 2, 2)),
            ("HFGRTR_EL2", Register(3, 4, 1, 1, 4)),
            ("CNTPOFF_EL2", Register(3, 4, 14, 0, 6)),
            ("SCTLR_EL12", Register(3, 5, 1, 0, 0)),
            ("VNCR_EL2", Register(3, 4, 2, 2, 0)),
        ],
        instructions: &[("at s1e2r, x0", 0xd50c_7800), ("tlbi alle2", 0xd50c_871f)],
    },
];

/// Features that are shown: name, ID field, least value with which it works, instructions to try.
const SHOWN: [(&str, Field, u64, &[u32]); 12] = [
    ("CRC32", (6, 0, 16), 1, &[0x1ac1_4000]), // crc32b w0, w0, w1
    (
        "atomics",
        (6, 0, 20),
        2,
        &[0x9100_03e4, 0xd100_8084, 0xf820_0080],
    ), // ldadd below the stack
    ("flags", (6, 0, 52), 1, &[0xd500_401f]), // cfinv
    (
        "random numbers",
        (6, 0, 60),
        1,
        &[Register(3, 3, 2, 4, 0).read()],
    ),
    ("JavaScript conversion", (6, 1, 12), 1, &[0x1e7e_0000]), // fjcvtzs w0, d0
    ("speculation barrier", (6, 1, 36), 1, &[0xd503_30ff]),   // sb
    ("rounding", (6, 1, 32), 1, &[0x1e68_4000]),              // frint32z d0, d0
    ("wait with a limit", (6, 2, 0), 2, &[0xd503_1000]),      // wfet x0
    ("branch hints", (6, 2, 20), 1, &[0x5400_0030]),          // bc.eq, to the next instruction
    ("common short sequences", (6, 2, 52), 1, &[0xdac0_2000]), // abs x0, x0
    (
        "counters without a barrier",
        (7, 0, 60),
        1,
        &[Register(3, 3, 14, 0, 6).read()],
    ),
    (
        "timing that does not depend on data",
        (4, 0, 48),
        1,
        &[0xd503_415f, 0xd503_405f],
    ), // msr dit
];

fn id(field: Field) -> u64 {
    let (crm, op2, low) = field;
    let mut x = [0; 8];
    // An ID register that cannot be read is not 0.
    match probe::code(&[Register(3, 0, 0, crm, op2).read()], &mut x) {
        Ok(()) => x[0] >> low & 15,
        Err(_) => u64::MAX,
    }
}

fn main(_board: &'static Board) {
    println!("MIDR {:#x}", mrs!("midr_el1"));
    // FP, SIMD, SVE and SME open, so that a trap to EL1 itself is not mistaken for one by EL2.
    msr!("cpacr_el1", 3 << 24 | 3 << 20 | 3 << 16);
    sysreg::isb();
    for class in &CLASSES {
        hide(class);
    }
    tags();
    authentication();
    check::holds(
        "software context numbers: not promised by CSV2",
        id((4, 0, 56)) < 2,
        format_args!("CSV2 is {}", id((4, 0, 56))),
    );
    check::holds(
        "AArch64 only",
        id((4, 0, 0)) == 1 && id((4, 0, 4)) == 1,
        format_args!("EL0 {}, EL1 {}", id((4, 0, 0)), id((4, 0, 4))),
    );
    check::equal("debug as in Armv8.0", id((5, 0, 0)), 6);
    for (name, field, least, code) in SHOWN {
        if id(field) >= least {
            check::report(
                format_args!("shown: {name}"),
                probe::code(code, &mut [0; 8]),
            );
        } else {
            println!("{name}: this CPU has none");
        }
    }
    check::done();
}

fn hide(class: &Class) {
    let mut wrong = 0;
    for field in class.fields {
        let (crm, op2, low) = *field;
        let value = id(*field);
        if value != 0 {
            wrong += 1;
            println!("  ID field S3_0_C0_C{crm}_{op2} from bit {low} is {value}");
        }
    }
    let mut undefined =
        |what: &str, name: &str, instruction: u32| match probe::code(&[instruction], &mut [0; 8]) {
            // A register of the ID space that the CPU has not may be named in the syndrome (FEAT_IDST).
            Err(fault) if fault.is_undefined() || fault.class() == 0x18 => {}
            Ok(()) => {
                wrong += 1;
                println!("  {what} {name} works");
            }
            Err(fault) => {
                wrong += 1;
                println!("  {what} {name}: {fault}");
            }
        };
    for (name, register) in class.registers {
        undefined("reading", name, register.read());
        undefined("writing", name, register.write());
    }
    for (name, instruction) in class.instructions {
        undefined("executing", name, *instruction);
    }
    let why = format_args!("{wrong} not as they should be");
    check::holds(format_args!("hidden: {}", class.name), wrong == 0, why);
}

/// Instructions for tags cannot be trapped. Without access to tags they make and find tag 0 only, if
/// they are defined at all.
fn tags() {
    const TAG: u64 = 15 << 56;
    let mut word = [0u64; 4];
    // A granule of its own on the stack: 16 bytes aligned to 16.
    let address = ((&raw mut word) as u64 + 15) & !15;
    // irg x0, x0; then with x0: stg x0, [x0]; ldg x1, [x0].
    for (name, code) in [
        ("irg", &[0x9adf_1000u32][..]),
        ("stg, ldg", &[0xd920_0800, 0xd960_0001][..]),
    ] {
        let mut x = [address, 0, 0, 0, 0, 0, 0, 0];
        let result = probe::code(code, &mut x);
        let tagless = matches!(result, Err(fault) if fault.is_undefined())
            || result.is_ok() && (x[0] | x[1]) & TAG == 0;
        check::holds(
            format_args!("hidden: {name} makes no tag"),
            tagless,
            format_args!("{result:?}, {:#x} {:#x}", x[0], x[1]),
        );
    }
}

/// With its enable bits set in SCTLR_EL1 signing traps; without them it does nothing.
fn authentication() {
    // EnIA, EnIB, EnDA, EnDB.
    const ENABLES: u64 = 1 << 31 | 1 << 30 | 1 << 27 | 1 << 13;
    let kept = mrs!("sctlr_el1");
    for (name, code, enables, undefined) in [
        ("paciza, keys off", 0xdac1_23e0u32, 0, false),
        ("paciza, keys on", 0xdac1_23e0, ENABLES, true),
        ("pacdzb, keys on", 0xdac1_2fe0, ENABLES, true),
        ("autiza, keys on", 0xdac1_33e0, ENABLES, true),
    ] {
        const VALUE: u64 = 0x1234_5670;
        let mut x = [VALUE, 0, 0, 0, 0, 0, 0, 0];
        sysreg::masked(|| {
            msr!("sctlr_el1", kept & !ENABLES | enables);
            sysreg::isb();
            let result = probe::code(&[code], &mut x);
            msr!("sctlr_el1", kept);
            sysreg::isb();
            let as_it_should = match result {
                Err(fault) => fault.is_undefined(),
                Ok(()) => !undefined && x[0] == VALUE,
            };
            check::holds(
                format_args!("hidden: {name}"),
                as_it_should,
                format_args!("{result:?}, {:#x}", x[0]),
            );
        });
    }
}

//! Claim: a guest sees the ID registers that it is meant to see, and no system register brings it
//! anything worse than an undefined instruction.
//!
//! Reads every encoding of op0 2 and 3; writes those that a guest has no business with, and to all others what was
//! read there, or 0 where nothing can be read; executes the maintenance instructions of higher exception levels.
//! Then the guest must still work.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, alive, check, guest, mrs, msr, println, probe, sysreg};

guest!(main = main, irq = alive::on_irq);

/// An encoding: op0, op1, CRn, CRm, op2.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Register(u32, u32, u32, u32, u32);

/// Not read, because reading changes something: ICC_IAR0_EL1, ICC_IAR1_EL1 and ICC_NMIAR1_EL1 acknowledge
/// an interrupt.
const SKIPPED: [Register; 3] = [
    Register(3, 0, 12, 8, 0),
    Register(3, 0, 12, 12, 0),
    Register(3, 0, 12, 9, 5),
];

impl Register {
    /// Bits of MRS, MSR and SYS.
    fn encoding(self) -> u32 {
        let Self(op0, op1, crn, crm, op2) = self;
        op0 << 19 | op1 << 16 | crn << 12 | crm << 8 | op2 << 5
    }

    /// MRS x0.
    fn read(self) -> u32 {
        0xd520_0000 | self.encoding()
    }

    /// MSR or SYS, x0.
    fn write(self) -> u32 {
        0xd500_0000 | self.encoding()
    }

    /// Whether a guest must find nothing here, not even to read.
    fn is_forbidden(self) -> bool {
        match self {
            // Debug beyond two breakpoints and two watchpoints; trace; trace buffer.
            Self(2, 0, 0, crm, 4..=7) => crm >= 2,
            Self(2, 1, ..) => true,
            // Registers of EL2, EL12, EL3 and Secure EL1.
            Self(3, 4..=7, ..) => true,
            // Pointer authentication keys, limited ordering regions.
            Self(3, 0, 2, 1..=3, _) | Self(3, 0, 10, 4, 0..=3) => true,
            // Performance monitors, their event counters; statistical profiling.
            Self(3, 3, 9, 12..=14, _) | Self(3, 0, 9, 9..=10 | 14, _) => true,
            Self(3, 3, 14, 8..=15, _) => true,
            // Activity monitors, and what the implementation adds for itself.
            Self(3, 3, 13, 2..=15, _) => true,
            Self(3, _, 11 | 15, ..) => true,
            _ => false,
        }
    }

    /// The space of registers that say what the CPU is.
    fn is_identification(self) -> bool {
        matches!(self, Self(3, 0 | 1 | 3, 0, ..))
    }

    /// Whether writing 0 here can do no good and must do no harm.
    fn is_written(self) -> bool {
        self.0 == 2 || self.is_forbidden()
    }
}

impl core::fmt::Display for Register {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self(op0, op1, crn, crm, op2) = self;
        write!(f, "S{op0}_{op1}_C{crn}_C{crm}_{op2}")
    }
}

fn all(op0: u32) -> impl Iterator<Item = Register> {
    (0..1 << 14).map(move |n| Register(op0, n >> 11, (n >> 7) & 15, (n >> 3) & 15, n & 7))
}

fn main(_board: &'static Board) {
    identification();
    // FP, SIMD, SVE and SME open, so that a trap to EL1 itself is not mistaken for one by EL2.
    msr!("cpacr_el1", 3 << 24 | 3 << 20 | 3 << 16);
    sysreg::isb();
    for op0 in [2, 3] {
        sweep(format_args!("reads of op0={op0}"), all(op0), Register::read);
        let written = all(op0).filter(|register| register.is_written());
        sweep(
            format_args!("writes of op0={op0}"),
            written,
            Register::write,
        );
    }
    write_back();
    let higher = all(1).filter(|register| register.1 >= 4);
    sweep(
        "maintenance of higher exception levels",
        higher,
        Register::write,
    );
    os_lock();
    alive::check("after all encodings");
    check::done();
}

/// The OS lock is not the guest's: what it writes there changes nothing.
fn os_lock() {
    let before = mrs!("oslsr_el1");
    for locked in [1, 0] {
        msr!("oslar_el1", locked);
        sysreg::isb();
        let name = format_args!("OS lock after {locked} was written");
        check::equal(name, mrs!("oslsr_el1"), before);
    }
}

/// Writes what a guest may write: what it reads there, so that it stays what it was.
fn write_back() {
    let (mut written, mut undefined, mut wrong) = (0, 0, 0);
    let registers = all(3).filter(|register| !register.is_written() && !SKIPPED.contains(register));
    for register in registers {
        let (read, write) = (register.read(), register.write());
        let readable = probe::code(&[read], &mut [0; 8]).is_ok();
        let both = [read, write];
        // What cannot be read may still be there to be written.
        let code = if readable { &both[..] } else { &both[1..] };
        match probe::code(code, &mut [0; 8]) {
            Ok(()) => written += 1,
            Err(fault) if fault.is_undefined() => undefined += 1,
            Err(fault) if register.is_identification() && fault.class() == 0x18 => undefined += 1,
            Err(fault) => {
                wrong += 1;
                println!("  {register}: {fault}");
            }
        }
    }
    println!("sysregs: {written} written back, {undefined} undefined");
    check::holds(
        "writes of what was read",
        // With a GICv2 there are none of the CPU interface.
        wrong == 0 && written > 30,
        format_args!("{wrong} not as they should be, {written} written"),
    );
}

/// Runs `instruction` for each register: it works or is undefined; if forbidden, it is undefined.
fn sweep(
    name: impl core::fmt::Display,
    registers: impl Iterator<Item = Register>,
    instruction: fn(Register) -> u32,
) {
    let (mut tried, mut undefined, mut wrong) = (0, 0, 0);
    for register in registers.filter(|register| !SKIPPED.contains(register)) {
        tried += 1;
        let forbidden = register.is_forbidden() || register.0 == 1;
        match probe::code(&[instruction(register)], &mut [0; 8]) {
            Err(fault) if fault.is_undefined() => undefined += 1,
            // A register of the ID space that the CPU has not may be named in the syndrome (FEAT_IDST).
            Err(fault) if register.is_identification() && fault.class() == 0x18 => undefined += 1,
            Ok(()) if !forbidden => {}
            Ok(()) => {
                wrong += 1;
                println!("  {register} works");
            }
            Err(fault) => {
                wrong += 1;
                println!("  {register}: {fault}");
            }
        }
    }
    println!("sysregs: {name}: {tried} tried, {undefined} undefined");
    check::holds(
        name,
        wrong == 0,
        format_args!("{wrong} not as they should be"),
    );
}

/// Field of four bits.
fn field(value: u64, low: u32) -> u64 {
    value >> low & 15
}

fn identification() {
    let (pfr0, pfr1) = (mrs!("id_aa64pfr0_el1"), mrs!("id_aa64pfr1_el1"));
    let (dfr0, isar1) = (mrs!("id_aa64dfr0_el1"), mrs!("id_aa64isar1_el1"));
    let (mmfr0, mmfr1) = (mrs!("id_aa64mmfr0_el1"), mrs!("id_aa64mmfr1_el1"));
    let mmfr2 = mrs!("id_aa64mmfr2_el1");
    println!(
        "MIDR {:#x}, MPIDR {:#x}",
        mrs!("midr_el1"),
        mrs!("mpidr_el1")
    );
    println!("PFR0 {pfr0:#x}, PFR1 {pfr1:#x}, DFR0 {dfr0:#x}, ISAR1 {isar1:#x}");
    println!("ISAR0 {:#x}, MMFR0 {mmfr0:#x}", mrs!("id_aa64isar0_el1"));
    println!("MMFR1 {mmfr1:#x}, MMFR2 {mmfr2:#x}");
    let absent = [
        ("EL2", pfr0, 8),
        ("EL3", pfr0, 12),
        ("RAS", pfr0, 28),
        ("SVE", pfr0, 32),
        ("MPAM", pfr0, 40),
        ("AMU", pfr0, 44),
        ("MTE", pfr1, 8),
        ("SME", pfr1, 24),
        ("trace", dfr0, 4),
        ("SPE", dfr0, 32),
        ("trace buffer", dfr0, 44),
        ("APA", isar1, 4),
        ("API", isar1, 8),
        ("GPA", isar1, 24),
        ("GPI", isar1, 28),
        ("VHE", mmfr1, 8),
        ("LOR", mmfr1, 16),
        ("nested virtualisation", mmfr2, 24),
    ];
    for (name, register, low) in absent {
        check::equal(format_args!("no {name}"), field(register, low), 0);
    }
    check::equal("AArch64 only at EL1", field(pfr0, 4), 1);
    let pmu = field(dfr0, 8);
    check::holds(
        "no PMU",
        pmu == 0 || pmu == 15,
        format_args!("PMUVer {pmu}"),
    );
    let range = field(mmfr0, 0);
    check::holds(
        "physical addresses of 40 bits at most",
        range <= 2,
        format_args!("PARange {range}"),
    );
    // 1 adds addresses of 52 bits.
    let granule = field(mmfr0, 28);
    check::holds("4 KiB granule", granule <= 1, granule);
}

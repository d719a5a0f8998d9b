//! Claim: an exception that the hypervisor injects enters EL1 as the hardware's own does, bit for
//! bit: vector, PSTATE, SPSR_EL1, ELR_EL1, ESR_EL1, FAR_EL1.
//!
//! Takes pairs of exceptions that differ only in who brings them about, from EL0, from EL1 with
//! SP_EL0 and from EL1 with its own stack, with each value of the bits of SCTLR_EL1 that decide the
//! entry, with every flag of PSTATE clear and with every flag set that this CPU has. What the
//! hardware does is the expectation; nothing of it stands here.
#![no_std]
#![no_main]

use core::fmt;

use bulkhead_guests::entry::{self, Cause, Entry};
use bulkhead_guests::{Board, check, guest, mrs, probe, ruin};

guest!(main = main, mmu = off);

/// MRS x0 of PAN, UAO, DIT, SSBS, TCO and ALLINT, and the bit of each in SPSR.
const NEWER: [(u32, u64); 6] = [
    (0xd538_4260, 1 << 22),
    (0xd538_4280, 1 << 23),
    (0xd53b_42a0, 1 << 24),
    (0xd53b_42c0, 1 << 12),
    (0xd53b_42e0, 1 << 25),
    (0xd538_4300, 1 << 13),
];
const DIT: u64 = NEWER[2].1;
/// Flags of PSTATE in SPSR.
const NZCV: u64 = 0xf000_0000;

/// Returns those of them that have an MRS here, one bit each.
fn has() -> u64 {
    let known = |(n, (mrs, _)): (usize, &(u32, u64))| {
        let is = probe::code(&[*mrs], &mut [0; 8]).is_ok();
        u64::from(is) << n
    };
    NEWER.iter().enumerate().map(known).sum()
}

/// SCTLR_EL1.SPAN, DSSBS and SPINTMASK.
const SPAN: u64 = 1 << 23;
const DSSBS: u64 = 1 << 44;
const SPINTMASK: u64 = 1 << 62;
/// SCTLR_EL1.A: accesses must be aligned.
const ALIGNED: u64 = 1 << 1;
/// ESR_ELx.DFSC and IFSC: what the fault is, which differs between the two of a pair.
const STATUS: u64 = 0x3f;

/// Exception levels that an exception is taken from: name, and SPSR.M.
const FROM: [(&str, u64); 3] = [("EL0", 0), ("EL1t", 4), ("EL1h", 5)];

/// A pair: the hardware's own exception, and one that the hypervisor injects.
struct Pair {
    name: &'static str,
    own: Cause,
    injected: Cause,
    /// Whether the injected one is the hypervisor's at this exception level.
    from: &'static [&'static str],
}

fn pairs(nothing: u64) -> [Pair; 6] {
    static WORDS: [u64; 4] = [0; 4];
    let unaligned = (&raw const WORDS).addr() as u64 + 1;
    let data = |name, code: fn(u64) -> Cause| Pair {
        name,
        // SCTLR_EL1.A: an alignment fault.
        own: code(unaligned),
        injected: code(nothing),
        from: &["EL0", "EL1t", "EL1h"],
    };
    [
        Pair {
            name: "an undefined register",
            own: Cause::Undefined,
            injected: Cause::Trapped,
            from: &["EL1t", "EL1h"],
        },
        Pair {
            name: "SVE",
            own: Cause::Undefined,
            injected: Cause::Sve,
            from: &["EL0", "EL1t", "EL1h"],
        },
        data("a load", Cause::Load),
        data("a store", Cause::Store),
        data("a store of two registers", Cause::StorePair),
        Pair {
            name: "a fetch",
            // Beyond the physical addresses of every CPU: an address size fault of stage 1.
            own: Cause::Fetch(1 << 54),
            injected: Cause::Fetch(nothing),
            from: &["EL0", "EL1t", "EL1h"],
        },
    ]
}

/// Takes an exception, and makes what is known to differ between the two of a pair equal.
fn take(cause: Cause, spsr: u64, has: u64) -> Entry {
    let mut entry = entry::take(cause, spsr, has);
    entry.elr = entry.elr.wrapping_sub(cause.pc());
    match cause.address() {
        Some(far) => {
            entry.far = entry.far.wrapping_sub(far);
            entry.esr &= !STATUS;
        }
        // FAR_EL1 is UNKNOWN.
        None => entry.far = 0,
    }
    entry
}

/// Makes NZCV and DIT what they were before the entry.
fn keep_flags(entry: &mut Entry, spsr: u64) {
    entry.state = entry.state & !NZCV | spsr & NZCV;
    entry.newer = entry.newer & !DIT | spsr & DIT;
}

fn main(_: &Board) {
    entry::allow_sve();
    let has = has();
    let flags = NEWER.iter().enumerate();
    let newer: u64 = flags
        .filter(|(n, _)| has >> n & 1 == 1)
        .map(|(_, (_, bit))| bit)
        .sum();
    let before = mrs!("sctlr_el1");
    let mut taken = 0u64;
    for pair in &pairs(ruin::NOWHERE as u64) {
        let mut result = Ok(());
        for bits in 0..8u64 {
            let pick = |n: u64, bit: u64| if bits >> n & 1 == 1 { bit } else { 0 };
            let cleared = before & !(SPAN | DSSBS | SPINTMASK) | ALIGNED;
            entry::set_sctlr(cleared | pick(0, SPAN) | pick(1, DSSBS) | pick(2, SPINTMASK));
            let from = FROM.iter().filter(|(level, _)| pair.from.contains(level));
            for (level, mode) in from {
                for flags in [0, newer | NZCV] {
                    let spsr = flags | 0x3c0 | mode;
                    let mut own = take(pair.own, spsr, has);
                    let mut injected = take(pair.injected, spsr, has);
                    taken += 2;
                    // An exception leaves NZCV and DIT as they are. QEMU clears them at its own.
                    keep_flags(&mut own, spsr);
                    if pair.injected == Cause::Sve {
                        // Where there is no SVE, both are the hardware's.
                        keep_flags(&mut injected, spsr);
                    }
                    if own != injected && result.is_ok() {
                        result = Err((level, bits, own, injected));
                    }
                }
            }
        }
        entry::set_sctlr(before);
        let result = result.map_err(|(level, bits, own, injected)| Difference {
            level,
            bits,
            own,
            injected,
        });
        check::report(pair.name, result);
    }
    check::holds(
        "exceptions were taken",
        taken == 2 * 8 * 2 * (2 + 5 * 3),
        taken,
    );
    check::holds(
        "the CPU has flags that an entry decides",
        mrs!("id_aa64mmfr1_el1") >> 20 & 15 == 0 || has & 1 == 1,
        has,
    );
    check::done();
}

/// A pair that differs.
struct Difference {
    level: &'static str,
    bits: u64,
    own: Entry,
    injected: Entry,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "from {}, SPAN DSSBS SPINTMASK {:03b}: own {}, injected {}",
            self.level, self.bits, self.own, self.injected
        )
    }
}

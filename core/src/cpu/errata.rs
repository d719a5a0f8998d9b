//! Errata of CPUs that EL2 works around by MIDR_EL1. Numbers and revisions are those of the Software
//! Developers Errata Notices of the cores and of Linux (`silicon-errata.rst`).
//! `docs/internals/errata.md` has those that every CPU gets the workaround of, and those that need
//! nothing.

/// A core's errata of one kind: from one variant and revision to another, both included.
struct Row {
    part: u64,
    first: u64,
    last: u64,
}

/// Returns variant and revision as they are compared here.
const fn revision(variant: u64, revision: u64) -> u64 {
    variant << 4 | revision
}

/// No later revision is known to be free of the erratum.
const LAST: u64 = revision(15, 15);

/// Cores whose AT by speculation may use registers of EL1 of which some are the next VM's already,
/// and leave the result in the TLB: Cortex-A55 1530923, Cortex-A57 1319537, Cortex-A72 1319367,
/// Cortex-A76 1165522.
const SPECULATIVE_AT: [Row; 4] = [
    row(0xd05, LAST),
    row(0xd07, LAST),
    row(0xd08, LAST),
    row(0xd0b, revision(2, 0)),
];

const fn row(part: u64, last: u64) -> Row {
    let first = revision(0, 0);
    Row { part, first, last }
}

/// Whether walks must be off (TCR_EL1.EPD0 and EPD1, SCTLR_EL1.M set) while a switch changes the
/// registers of EL1 and VTTBR_EL2, on the CPU with this MIDR_EL1.
pub const fn walks_by_speculation(midr: u64) -> bool {
    let (part, at) = (midr >> 4 & 0xfff, midr >> 16 & 0xf0 | midr & 15);
    let mut n = 0;
    // Implementer 0x41: Arm.
    while midr >> 24 & 0xff == 0x41 && n < SPECULATIVE_AT.len() {
        let row = &SPECULATIVE_AT[n];
        if row.part == part && row.first <= at && at <= row.last {
            return true;
        }
        n += 1;
    }
    false
}

/// Returns how many branches in a row replace the branch history of a core of Arm's that an attack
/// can use (CVE-2022-23960; Arm, "Spectre-BHB"); `None` for a core that is not known to need it.
pub const fn history_length(midr: u64) -> Option<u32> {
    if midr >> 24 & 0xff != 0x41 {
        return None;
    }
    match midr >> 4 & 0xfff {
        // Cortex-A57, A72.
        0xd07 | 0xd08 => Some(8),
        // Cortex-A76, Neoverse N1, Cortex-A77, A76AE.
        0xd0b..=0xd0e => Some(24),
        // Neoverse V1, Cortex-A78, A78AE, X1, A710, X2, Neoverse N2, Cortex-A78C, X1C.
        0xd40..=0xd42 | 0xd44 | 0xd47..=0xd49 | 0xd4b | 0xd4c => Some(32),
        // Cortex-A715, A720.
        0xd4d | 0xd81 => Some(38),
        // Cortex-X3, Neoverse V2, Cortex-X4, Neoverse V3.
        0xd4e | 0xd4f | 0xd82 | 0xd84 => Some(132),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the core of Arm's walks by speculation.
    fn walks(part: u64, variant: u64, revision: u64) -> bool {
        walks_by_speculation(0x41 << 24 | variant << 20 | 0xf << 16 | part << 4 | revision)
    }

    #[test]
    fn a_row_ends_with_its_last_revision() {
        assert!(walks(0xd0b, 0, 0) && walks(0xd0b, 2, 0));
        assert!(!walks(0xd0b, 2, 1), "1165522 ends with r2p0");
        assert!(!walks(0xd0b, 3, 0), "variant counts before revision");
    }

    #[test]
    fn each_core_has_its_own() {
        assert!(walks(0xd05, 2, 0), "Cortex-A55");
        assert!(walks(0xd07, 1, 0), "Cortex-A57");
        assert!(walks(0xd08, 0, 3), "Cortex-A72");
        assert!(!walks(0xd03, 0, 4), "Cortex-A53");
        assert!(!walks(0xd0c, 3, 1), "Neoverse N1");
    }

    #[test]
    fn the_history_is_as_long_as_the_core_makes_it() {
        let length = |part: u64| history_length(0x41 << 24 | 0xf << 16 | part << 4);
        let known = [0xd07, 0xd08, 0xd0b, 0xd0c, 0xd41, 0xd49, 0xd4d, 0xd4f].map(length);
        let expected = [8, 8, 24, 24, 32, 32, 38, 132].map(Some);
        assert_eq!(known, expected);
        // Cortex-A53, A55, A510: in order.
        assert_eq!([0xd03, 0xd05, 0xd46].map(length), [None; 3]);
        assert_eq!(history_length(0xd08 << 4), None, "another implementer");
    }

    #[test]
    fn the_parts_of_other_implementers_are_others() {
        assert!(!walks_by_speculation(0x51 << 24 | 0xf << 16 | 0xd08 << 4));
    }
}

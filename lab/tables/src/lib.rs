//! EL2's stage-2 tables and its own maps, as they are in the memory of a running board, held against the plan.
//! It shares no code with what makes them. Whether it overlooks something is tried each time: every bit of
//! what has been read is altered, and each alteration must be found.

pub mod el2;
mod el2_pages;
pub mod stage2;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::BTreeMap;

pub use self::walk::{PAGE, Reader};

/// Pages that have been read, by their physical addresses.
pub type Pages = BTreeMap<u64, Vec<u64>>;

/// Registers that tell which tables a CPU uses.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    /// VTTBR_EL2: root and VMID.
    pub vttbr: u64,
    /// VTCR_EL2.
    pub vtcr: u64,
    /// HCR_EL2, whose bit 0 turns stage 2 on.
    pub hcr: u64,
    /// TTBR0_EL2: root of EL2's own map.
    pub ttbr0: u64,
    /// TCR_EL2.
    pub tcr: u64,
    /// SCTLR_EL2.
    pub sctlr: u64,
}

/// Single bits whose change `judge` does not find, each in the first and last descriptor of each table and in
/// its first empty one.
pub fn overlooked(
    tables: &[u64],
    pages: &Pages,
    judge: &dyn Fn(&mut Reader<'_>) -> Vec<String>,
) -> Vec<String> {
    let mut pages = pages.clone();
    let mut missed = Vec::new();
    for &pa in tables {
        let table = pages.get(&pa).cloned().unwrap_or_default();
        let used = |word: &u64| *word != 0;
        let places = [
            table.iter().position(used),
            table.iter().rposition(used),
            table.iter().position(|word| *word == 0),
        ];
        for index in places.into_iter().flatten() {
            for bit in 0..64 {
                flip(&mut pages, pa, index, bit);
                let found = judge(&mut |pa| {
                    let table = pages.get(&pa).cloned();
                    table.ok_or_else(|| format!("no table at {pa:#x}"))
                });
                if found.is_empty() {
                    missed.push(format!(
                        "bit {bit} of entry {index} of the table at {pa:#x} can be changed unnoticed"
                    ));
                }
                flip(&mut pages, pa, index, bit);
            }
        }
    }
    missed
}

fn flip(pages: &mut Pages, pa: u64, index: usize, bit: u32) {
    if let Some(word) = pages.get_mut(&pa).and_then(|table| table.get_mut(index)) {
        *word ^= 1 << bit;
    }
}

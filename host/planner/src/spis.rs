//! SPIs of the board that no device has.

use std::collections::BTreeSet;

use bulkhead_abi::plan::MAX_SPIS;
use dtoolkit::fdt::Fdt;

use bulkhead_model::board::{Board, Tree};

/// SPI by which a VM is told of crashes of others, if the description gives it to nothing else.
pub(super) const EVENT_INTID: u32 = 36;
/// SPIs have INTIDs from here on.
const FIRST: u32 = 32;

/// SPIs of the board that nothing in its device tree names. The tree is read generously: a number that is not an SPI only
/// leaves one choice less.
pub(super) fn free(board: &Board) -> BTreeSet<u32> {
    let mut used = BTreeSet::from([board.parts.uart_intid]);
    // The last that a device certainly has: the GIC has at least the word of 32 that it is in.
    let mut last = board.parts.uart_intid;
    if let Ok(fdt) = Fdt::new(&board.dtb) {
        for entry in &Tree::new(fdt).entries {
            let cells = entry.cells("interrupts").unwrap_or_default();
            let spis = cells.as_chunks().0.iter();
            let spis = spis.filter(|[kind, number, _]| *kind == 0 && *number < MAX_SPIS);
            last = spis.fold(last, |last, [_, number, _]| last.max(number + FIRST));
            for name in ["interrupts", "interrupts-extended", "interrupt-map"] {
                let cells = entry.cells(name).unwrap_or_default();
                // An SPI is a 0 and its number.
                let pairs = cells.windows(2).filter(|pair| pair[0] == 0);
                used.extend(pairs.map(|pair| pair[1].saturating_add(FIRST)));
            }
            let messages = ["arm,msi-base-spi", "arm,msi-num-spis"].map(|name| entry.cell(name));
            if let [Some(first), Some(count)] = messages {
                used.extend(first..first.saturating_add(count.min(MAX_SPIS)));
            }
        }
    }
    let end = match &board.emulated {
        Some(emulated) => FIRST + emulated.spis,
        None => (last + 1).next_multiple_of(32),
    };
    (FIRST..end.min(FIRST + MAX_SPIS))
        .filter(|intid| !used.contains(intid))
        .collect()
}

//! The operations whose cost is published, and the numbers by which they are marked.
//!
//! The `micro` guest calls `mark_begin(id)`, does the operation [`OPERATIONS`] times, and calls
//! `mark_end(id)`. A TCG plugin sees both calls by their symbols; EL2 sees neither. This file depends
//! on nothing, so that the host tool can include it.

/// Operations between a pair of marks.
pub const OPERATIONS: u32 = 1000;

/// Symbol of the function that opens a group; its id is in x0.
pub const BEGIN_SYMBOL: &str = "mark_begin";
/// Symbol of the function that closes a group; its id is in x0.
pub const END_SYMBOL: &str = "mark_end";

/// One group of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// In x0 of the marks.
    pub id: u64,
    /// Name in reports.
    pub name: &'static str,
    /// What one operation is.
    pub operation: &'static str,
}

/// PSCI_VERSION by HVC.
pub const HVC_NULL: u64 = 1;
/// Virtual timer interrupt, taken out of a loop.
pub const VTIMER_IRQ: u64 = 2;
/// Virtual timer interrupt, taken out of WFI.
pub const VTIMER_IRQ_WFI: u64 = 3;
/// Read of GICD_TYPER.
pub const GICD_TYPER_READ: u64 = 4;
/// Read of GICD_ISENABLER1.
pub const GICD_ISENABLER_READ: u64 = 5;
/// Write of GICD_ISENABLER1.
pub const GICD_ISENABLER_WRITE: u64 = 6;
/// Read of the PL011's flag register.
pub const UART_READ: u64 = 7;
/// SGI to the sender, until its handler runs.
pub const SGI_SELF: u64 = 8;

/// All groups, in the order in which `micro` runs them.
pub const FIGURES: [Figure; 8] = [
    Figure {
        id: HVC_NULL,
        name: "hvc_null",
        operation: "PSCI_VERSION by HVC",
    },
    Figure {
        id: VTIMER_IRQ,
        name: "vtimer_irq",
        operation: "virtual timer interrupt to guest vector",
    },
    Figure {
        id: VTIMER_IRQ_WFI,
        name: "vtimer_irq_wfi",
        operation: "virtual timer interrupt to guest vector, guest asleep in WFI",
    },
    Figure {
        id: GICD_TYPER_READ,
        name: "gicd_typer_read",
        operation: "read GICD_TYPER",
    },
    Figure {
        id: GICD_ISENABLER_READ,
        name: "gicd_isenabler_read",
        operation: "read GICD_ISENABLER1",
    },
    Figure {
        id: GICD_ISENABLER_WRITE,
        name: "gicd_isenabler_write",
        operation: "write GICD_ISENABLER1",
    },
    Figure {
        id: UART_READ,
        name: "uart_read",
        operation: "read PL011 FR",
    },
    Figure {
        id: SGI_SELF,
        name: "sgi_self",
        operation: "SGI to self until handler",
    },
];

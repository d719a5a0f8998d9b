//! The operations whose cost is published, and the numbers by which they are marked.
//!
//! The `bench` guest calls `mark_begin(id)`, does the operation so many times, and calls
//! `mark_end(id)`. A TCG plugin sees both calls by their symbols; EL2 sees neither. This file depends
//! on nothing, so that the host tool can include it.

/// Operations between a pair of marks, unless a figure says otherwise.
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
    /// Text that describes one operation.
    pub operation: &'static str,
    /// Number of operations between the marks.
    pub operations: u32,
    /// Number of events of one operation, by which its cost is divided.
    pub events: u32,
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
/// SGI to a sibling vCPU that is asleep in WFI, until its vector.
pub const SGI_SIBLING_WFI: u64 = 9;
/// Interrupt of a passed-through device, until the guest's vector.
pub const HW_IRQ: u64 = 10;
/// As many SGIs to the sender as it takes to have one more than list registers.
pub const LR_OVERFLOW: u64 = 11;
/// SGIs of one [`LR_OVERFLOW`]: one more than the list registers of a Cortex-A53.
pub const OVERFLOWING: u32 = 5;

/// The end of a turn, until the vCPU runs whose turn is next.
pub const VCPU_SWITCH: u64 = 12;

/// A server gets the CPU from a fair vCPU at the start of its period, and gives it back when its budget is gone.
pub const SERVER_SWITCH: u64 = 13;

/// Ten calls by HVC, one after the other.
pub const HVC_MEAN: u64 = 14;
/// Calls of one [`HVC_MEAN`].
pub const CALLS: u32 = 10;
/// Write of GICD_ISENABLER that enables an SPI.
pub const GICD_ENABLE_CHANGE: u64 = 15;
/// Write of GICD_ICENABLER that disables an SPI.
pub const GICD_DISABLE_CHANGE: u64 = 16;
/// Write of GICD_IPRIORITYR that changes a priority.
pub const GICD_PRIORITY_WRITE: u64 = 17;
/// Write of GICD_ISPENDR that makes a disabled SPI pending.
pub const GICD_PEND_WRITE: u64 = 18;
/// Write of GICD_ISPENDR that makes an enabled SPI pending for the vCPU itself.
pub const GICD_PEND_ENABLED: u64 = 40;
/// Write of GICD_ISENABLER that enables an SPI behind which an interrupt of the board is.
pub const GICD_ENABLE_HW: u64 = 41;
/// Write of GICD_ICENABLER that disables it.
pub const GICD_DISABLE_HW: u64 = 42;
/// Write of ISENABLER0 that enables an SGI.
pub const GICR_ENABLE_CHANGE: u64 = 19;
/// Write of ISENABLER0 that enables the virtual timer, whose interrupt is one of the board.
pub const GICR_ENABLE_HW: u64 = 43;
/// Write of ICENABLER0 that disables it.
pub const GICR_DISABLE_HW: u64 = 44;
/// Read of an ID register.
pub const ID_REGISTER: u64 = 20;
/// Write of a byte to the UART.
pub const UART_WRITE: u64 = 21;

/// A GPPT VM's read of GICD_TYPER.
pub const GPPT_TYPER: u64 = 22;
/// A GPPT VM's write of GICD_ISENABLER that enables an interrupt of its device.
pub const GPPT_ENABLE: u64 = 23;
/// A GPPT VM's SGI to itself: the write that sends it.
pub const GPPT_SGI: u64 = 24;
/// The groups of `irq-latency` that are accesses and not interrupts, by the names of their figures.
pub const ACCESSES: [(u64, &str); 3] = [
    (GPPT_TYPER, "gppt_typer"),
    (GPPT_ENABLE, "gppt_enable"),
    (GPPT_SGI, "gppt_sgi"),
];

/// Sleep until the timer on a pCPU that another VM uses, too, which sleeps as well.
pub const WFI_SHARED: u64 = 25;
/// SGI to a sibling on the same pCPU that sleeps, and one back.
pub const SGI_SAME_PCPU: u64 = 26;
/// WFI, until the first instruction of the vCPU that runs next.
pub const VCPU_SWITCH_WFI: u64 = 27;
/// Timer of a vCPU that sleeps and ends the turn of another, until it is back behind its WFI.
pub const VCPU_SWITCH_WAKE: u64 = 28;
/// Timer of a vCPU that does not get its turn then.
pub const TIMER_AWAY: u64 = 29;
/// Sleep until the timer of a server that has its pCPU alone.
pub const SERVER_ALONE: u64 = 30;
/// [`VCPU_SWITCH`] of eight vCPUs whose timers are armed.
pub const VCPU_SWITCH_TIMER: u64 = 31;

/// A disk's QueueNotify.
pub const VIRTIO_NOTIFY: u64 = 32;
/// Read of 4 KiB from a disk, one at a time.
pub const BLK: u64 = 33;
/// The same, 32 at once.
pub const BLK_D32: u64 = 34;
/// Frame of 1514 bytes to another VM, and one back.
pub const NET: u64 = 35;
/// The same, 32 at once.
pub const NET_B32: u64 = 36;
/// Doorbell of a channel to a VM that sleeps, and one back.
pub const CHANNEL_DOORBELL: u64 = 37;
/// Request through the control port, and its answer.
pub const CONTROL_MESSAGE: u64 = 38;
/// The same, of a manager that sleeps until it is interrupted.
pub const CONTROL_MESSAGE_INTERRUPT: u64 = 45;
/// Message through a channel both of whose ends poll, and one back.
pub const CHANNEL_POLLED: u64 = 39;
/// How often `device-cost` measures each of its groups: the worst counts.
pub const DEVICE_RUNS: u64 = 3;

/// The number by which a run of a group of `device-cost` is marked.
pub const fn device_run(id: u64, run: u64) -> u64 {
    id + (run << 16)
}

/// The groups of `device-cost`.
pub const DEVICES: [Figure; 9] = [
    Figure {
        id: VIRTIO_NOTIFY,
        name: "virtio_notify",
        operation: "QueueNotify of a disk",
        operations: 200,
        events: 1,
    },
    Figure {
        id: BLK,
        name: "blk",
        operation: "read of 4 KiB",
        operations: 200,
        events: 1,
    },
    Figure {
        id: BLK_D32,
        name: "blk_d32",
        operation: "read of 4 KiB, 32 at once",
        operations: 20,
        events: 32,
    },
    // There and back again, as the next.
    Figure {
        id: NET,
        name: "net",
        operation: "frame of 1514 bytes from VM to VM",
        operations: 200,
        events: 2,
    },
    Figure {
        id: NET_B32,
        name: "net_b32",
        operation: "frame of 1514 bytes from VM to VM, 32 at once",
        operations: 20,
        events: 64,
    },
    Figure {
        id: CHANNEL_DOORBELL,
        name: "channel_doorbell",
        operation: "message to a VM that sleeps, by a doorbell",
        operations: 200,
        events: 2,
    },
    Figure {
        id: CHANNEL_POLLED,
        name: "channel_polled",
        operation: "message to a VM that polls",
        operations: 200,
        events: 2,
    },
    Figure {
        id: CONTROL_MESSAGE,
        name: "control_message",
        operation: "request through the control port and its answer",
        operations: 200,
        events: 1,
    },
    Figure {
        id: CONTROL_MESSAGE_INTERRUPT,
        name: "control_message_interrupt",
        operation: "request through the control port, its answer and the interrupt for it",
        operations: 200,
        events: 1,
    },
];

/// All groups: those of `bench` in its order, then those of `vcpu-switch-cost` and `sleep-cost`.
pub const FIGURES: [Figure; 33] = [
    Figure {
        id: HVC_NULL,
        name: "hvc_null",
        operation: "PSCI_VERSION by HVC",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: VTIMER_IRQ,
        name: "vtimer_irq",
        operation: "virtual timer interrupt to guest vector",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: VTIMER_IRQ_WFI,
        name: "vtimer_irq_wfi",
        operation: "virtual timer interrupt to guest vector, guest asleep in WFI",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: GICD_TYPER_READ,
        name: "gicd_typer_read",
        operation: "read GICD_TYPER",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: GICD_ISENABLER_READ,
        name: "gicd_isenabler_read",
        operation: "read GICD_ISENABLER1",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: GICD_ISENABLER_WRITE,
        name: "gicd_isenabler_write",
        operation: "write GICD_ISENABLER1",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: UART_READ,
        name: "uart_read",
        operation: "read PL011 FR",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: SGI_SELF,
        name: "sgi_self",
        operation: "SGI to self until handler",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: SGI_SIBLING_WFI,
        name: "sgi_sibling_wfi",
        operation: "SGI to a sibling vCPU asleep, one way",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: HW_IRQ,
        name: "hw_irq",
        operation: "passed-through SPI to guest vector",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: LR_OVERFLOW,
        name: "lr_overflow",
        operation: "one more pending interrupt than list registers, each",
        operations: OPERATIONS,
        events: OVERFLOWING,
    },
    Figure {
        id: HVC_MEAN,
        name: "hvc_mean",
        operation: "one of ten calls by HVC: PSCI, SMCCC, features, stolen time, an unknown one",
        operations: OPERATIONS,
        events: CALLS,
    },
    Figure {
        id: GICD_ENABLE_CHANGE,
        name: "gicd_enable_change",
        operation: "write GICD_ISENABLER1, which enables an SPI",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: GICD_DISABLE_CHANGE,
        name: "gicd_disable_change",
        operation: "write GICD_ICENABLER1, which disables an SPI",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: GICD_PRIORITY_WRITE,
        name: "gicd_priority_write",
        operation: "write GICD_IPRIORITYR of an SPI",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: GICD_PEND_WRITE,
        name: "gicd_pend_write",
        operation: "write GICD_ISPENDR1, which makes a disabled SPI pending",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: GICD_PEND_ENABLED,
        name: "gicd_pend_enabled",
        operation: "write GICD_ISPENDR1, which makes an enabled SPI pending for the vCPU itself",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: GICD_ENABLE_HW,
        name: "gicd_enable_hw",
        operation: "write GICD_ISENABLER1, which enables an SPI of a passed-through device",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: GICD_DISABLE_HW,
        name: "gicd_disable_hw",
        operation: "write GICD_ICENABLER1, which disables an SPI of a passed-through device",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: GICR_ENABLE_CHANGE,
        name: "gicr_enable_change",
        operation: "write ISENABLER0, which enables an SGI",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: GICR_ENABLE_HW,
        name: "gicr_enable_hw",
        operation: "write ISENABLER0, which enables the virtual timer's interrupt",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: GICR_DISABLE_HW,
        name: "gicr_disable_hw",
        operation: "write ICENABLER0, which disables the virtual timer's interrupt",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: ID_REGISTER,
        name: "id_register",
        operation: "read ID_AA64PFR0_EL1",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: UART_WRITE,
        name: "uart_write",
        operation: "write a byte to PL011 DR",
        operations: OPERATIONS,
        events: 1,
    },
    // There and back again.
    Figure {
        id: VCPU_SWITCH,
        name: "vcpu_switch",
        operation: "end of a turn to first instruction of the next vCPU",
        operations: 100,
        events: 2,
    },
    // Here, too.
    Figure {
        id: SERVER_SWITCH,
        name: "server_switch",
        operation: "start or end of a server's budget to first instruction of the next vCPU",
        operations: 100,
        events: 2,
    },
    Figure {
        id: WFI_SHARED,
        name: "wfi_shared",
        operation: "sleep and wake on a pCPU that another VM uses, too",
        operations: OPERATIONS,
        events: 1,
    },
    Figure {
        id: SGI_SAME_PCPU,
        name: "sgi_same_pcpu",
        operation: "SGI to a sibling asleep on the same pCPU, one way",
        operations: OPERATIONS,
        events: 2,
    },
    Figure {
        id: VCPU_SWITCH_WFI,
        name: "vcpu_switch_wfi",
        operation: "WFI to first instruction of the next vCPU",
        operations: 100,
        events: 1,
    },
    Figure {
        id: VCPU_SWITCH_WAKE,
        name: "vcpu_switch_wake",
        operation: "timer of a vCPU asleep that ends the turn of another, to its return from WFI",
        operations: 100,
        events: 1,
    },
    // All eight.
    Figure {
        id: VCPU_SWITCH_TIMER,
        name: "vcpu_switch_timer",
        operation: "end of a turn to first instruction of the next vCPU, of eight whose timers are armed",
        operations: 100,
        events: 8,
    },
    Figure {
        id: TIMER_AWAY,
        name: "timer_away",
        operation: "timer of a vCPU that is away and does not get its turn",
        operations: 100,
        events: 1,
    },
    Figure {
        id: SERVER_ALONE,
        name: "server_alone",
        operation: "sleep and wake of a server that has its CPU alone",
        operations: OPERATIONS,
        events: 1,
    },
];

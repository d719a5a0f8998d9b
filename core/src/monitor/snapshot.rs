//! A snapshot of a vCPU for the monitor.

use bulkhead_abi::plan::{Region, RegionKind};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::colours;

/// State of a vCPU, in [`Snapshot::state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum State {
    /// The vCPU is off.
    Off = 0,
    /// The VM is being prepared.
    Starting = 1,
    /// The vCPU is on, and its VM is not paused.
    On = 2,
    /// The vCPU is on, and its VM is paused.
    Paused = 3,
    /// The VM has stopped.
    Stopped = 4,
}

impl State {
    /// Returns the word for it.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Starting => "starting",
            Self::On => "on",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        }
    }

    /// Decodes a word; unknown values are [`Self::Off`].
    pub const fn of(word: u64) -> Self {
        match word {
            1 => Self::Starting,
            2 => Self::On,
            3 => Self::Paused,
            4 => Self::Stopped,
            _ => Self::Off,
        }
    }
}

/// Names of the registers in [`Registers::el1`].
pub const EL1: [&str; EL1_COUNT] = [
    "sctlr",
    "tcr",
    "mair",
    "ttbr0",
    "ttbr1",
    "vbar",
    "elr",
    "spsr",
    "esr",
    "far",
    "sp_el1",
    "sp_el0",
    "tpidr",
    "cpacr",
    "contextidr",
];
/// Number of EL1 registers that are shown.
pub const EL1_COUNT: usize = 15;
/// Number of pending interrupts in a snapshot.
pub const PENDING: usize = 4;
/// Value of [`Sample::before`] if the instruction cannot be read.
pub const UNREADABLE: u64 = u64::MAX;

/// Whether EL2 may read the instruction at this PA for the monitor, to which the VM's tables and stage 2 have led: a word of the VM's own RAM.
/// `regions`: those of the VM. A register of a device may change when it is read, and what others write too is no business of the monitor's.
pub fn may_read(regions: &[Region], pa: u64) -> bool {
    let is_ram =
        |region: &Region| region.kind == RegionKind::Ram as u16 && colours::has(region, pa);
    pa.is_multiple_of(4) && regions.iter().any(is_ram)
}

/// State of a timer of the vCPU.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Timer {
    /// CTL: bit 0 enabled, bit 1 masked, bit 2 due.
    pub control: u64,
    /// Ticks until the timer is due; 0 if it is due.
    pub ahead: u64,
    /// CVAL.
    pub compare: u64,
}

/// State of the GIC between all interrupts and the vCPU, apart from the configuration of each
/// interrupt.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Gate {
    /// Priority mask of its CPU interface: only interrupts of a lower value are signalled.
    pub mask: u64,
    /// Running priority: the highest priority among its active interrupts before their priority
    /// drop; 0x100 for none.
    pub running: u64,
    /// Groups that are enabled in the CPU interface, one bit for each.
    pub groups: u64,
    /// Groups that are enabled in the distributor, one bit for each.
    pub forwarded: u64,
    /// Groups that are signalled as FIQ, one bit for each; the others as IRQ.
    pub fiq: u64,
}

/// A pending interrupt, encoded in a word.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Pending(u64);

impl Pending {
    /// An interrupt that is pending for the vCPU.
    pub const fn new(intid: u32, enabled: bool, group: u32, priority: u8) -> Self {
        Self(
            1 << 63
                | (enabled as u64) << 48
                | ((group & 1) as u64) << 40
                | (priority as u64) << 32
                | intid as u64,
        )
    }

    /// Whether there is an interrupt in this entry.
    pub const fn is_some(self) -> bool {
        self.0 >> 63 != 0
    }

    /// The INTID.
    pub const fn intid(self) -> u64 {
        self.0 & 0xffff
    }

    /// Whether the interrupt is enabled in the distributor.
    pub const fn is_enabled(self) -> bool {
        self.0 >> 48 & 1 != 0
    }

    /// The group, 0 or 1.
    pub const fn group(self) -> u64 {
        self.0 >> 40 & 1
    }

    /// The priority; a lower value is more urgent.
    pub const fn priority(self) -> u64 {
        self.0 >> 32 & 0xff
    }
}

/// A sample, taken several times to see whether a vCPU makes progress.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Sample {
    /// PC of the vCPU.
    pub pc: u64,
    /// The instruction before that one, or [`UNREADABLE`].
    pub before: u64,
    /// Number of exits so far that the guest or its devices caused ([`crate::console::stats::ExitStats::of_guest`]).
    pub exits: u64,
}

/// Registers of a vCPU at a moment.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Registers {
    /// A [`State`].
    pub state: u64,
    /// PC and exits at this moment.
    pub sample: Sample,
    /// SPSR_EL2.
    pub spsr: u64,
    /// Ticks of the counters in a second.
    pub frequency: u64,
    /// The virtual timer and the physical one.
    pub timers: [Timer; 2],
    /// Registers named by [`EL1`].
    pub el1: [u64; EL1_COUNT],
    /// x0 to x30.
    pub x: [u64; 31],
}

/// Interrupts of a vCPU at a moment.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Interrupts {
    /// State of the GIC between the interrupts and the vCPU.
    pub gate: Gate,
    /// Pending interrupts, as many as fit, private interrupts first.
    pub pending: [Pending; PENDING],
}

/// The input of a diagnosis.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Snapshot {
    /// A [`State`].
    pub state: u64,
    /// PC and exits at this moment.
    pub sample: Sample,
    /// SPSR_EL2.
    pub spsr: u64,
    /// Ticks of the counters in a second.
    pub frequency: u64,
    /// The virtual timer and the physical one.
    pub timers: [Timer; 2],
    /// Interrupts of the vCPU.
    pub interrupts: Interrupts,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::rows_of;
    use crate::plan::sample::{Sample as PlanSample, region};
    use bulkhead_abi::plan::{NONE, PAGE};

    /// Aligned words at both edges of a range, and those next to it.
    fn edges(pa: u64, size: u64) -> ([u64; 2], [u64; 2]) {
        let end = pa.wrapping_add(size);
        ([pa, end.wrapping_sub(4)], [pa.wrapping_sub(4), end])
    }

    #[test]
    fn nothing_but_ram_of_the_vm_is_read() {
        let plan = PlanSample::good();
        for vm in [0, 1] {
            let regions = rows_of(&plan.regions, vm);
            for row in &plan.regions {
                let own = usize::from(row.vm) == vm && row.kind == RegionKind::Ram as u16;
                let (inside, outside) = edges(row.pa, row.size);
                for pa in inside {
                    assert_eq!(may_read(regions, pa), own, "VM {vm}: {row:?}, {pa:#x}");
                }
                if own {
                    // Words that begin in it and end behind it, too.
                    for pa in outside.into_iter().chain((1..4).map(|n| inside[1] + n)) {
                        assert!(!may_read(regions, pa), "VM {vm}: {pa:#x}");
                    }
                }
            }
            // Registers of EL2's own devices, and places at which nobody has anything.
            let board = &plan.board;
            for pa in [board.gicd, board.gicr, board.uart, board.rtc, 0, !3] {
                assert!(!may_read(regions, pa), "VM {vm}: {pa:#x}");
            }
        }
    }

    #[test]
    fn no_kind_of_region_but_ram_is_read() {
        let kinds = [
            RegionKind::Ram,
            RegionKind::Device,
            RegionKind::Shared,
            RegionKind::Gicv,
            RegionKind::StolenTime,
            RegionKind::VirtioRegisters,
            RegionKind::StopWord,
        ];
        for (number, kind) in kinds.into_iter().enumerate() {
            // Two pages of RAM around it: only the page between them is in question.
            let ram = |pa| region(0, RegionKind::Ram, 7, NONE, (pa, pa, PAGE));
            let middle = region(0, kind, 7, NONE, (0x5000, 0x5000, PAGE));
            let regions = [ram(0x4000), middle, ram(0x6000)];
            let (inside, outside) = edges(middle.pa, middle.size);
            let is_ram = kind == RegionKind::Ram;
            assert!(inside.iter().all(|pa| may_read(&regions, *pa) == is_ram));
            assert!(outside.iter().all(|pa| may_read(&regions, *pa)));
            assert_eq!(kind as usize, number, "a kind is missing");
        }
    }

    #[test]
    fn a_pending_interrupt_keeps_its_parts() {
        let pending = Pending::new(287, true, 1, 0xf8);
        assert!(pending.is_some() && pending.is_enabled());
        assert_eq!(
            (pending.intid(), pending.group(), pending.priority()),
            (287, 1, 0xf8)
        );
        let pending = Pending::new(0, false, 0, 0);
        assert!(pending.is_some() && !pending.is_enabled());
        assert!(!Pending::default().is_some());
    }

    #[test]
    fn states_are_read_back() {
        for state in [
            State::Off,
            State::Starting,
            State::On,
            State::Paused,
            State::Stopped,
        ] {
            assert_eq!(State::of(state as u64), state);
        }
    }
}

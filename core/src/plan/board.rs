//! Comparison of the board that EL2 runs on with the one that the plan was made for.

use bulkhead_abi::plan::{Memory, TableId};

use super::check::is_memory;
use super::span::Span;
use super::view::Plan;
use super::violation::{At, Check, Invariant};
use crate::colours;

/// The board as described by the boot device tree and the boot CPU. Addresses are physical.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Ranges of memory.
    pub memory: &'a [Memory],
    /// Ranges that firmware reserves: /reserved-memory and the reservation block.
    pub reserved: &'a [Memory],
    /// Whether there are more reserved ranges than these.
    pub more_reserved: bool,
    /// Affinity fields of the MPIDR_EL1 of each CPU, and the address of its spin-table word
    /// ([`bulkhead_abi::plan::Pcpu::release`]).
    pub cpus: &'a [(u64, u64)],
    /// Affinity fields of the MPIDR_EL1 of the CPU that EL2 was started on.
    pub boot_cpu: u64,
    /// Address and size of the distributor.
    pub gicd: (u64, u64),
    /// Address and size of the (first) redistributor region; zeros on a GICv2.
    pub gicr: (u64, u64),
    /// Address and size of the CPU interface of a GICv2; zeros on a GICv3, as are the next two.
    pub gicc: (u64, u64),
    /// Address and size of the virtual interface control.
    pub gich: (u64, u64),
    /// Address and size of the virtual CPU interface.
    pub gicv: (u64, u64),
    /// Address and size, in whole pages, of the UART that /chosen/stdout-path names.
    pub uart: (u64, u64),
    /// INTID of that UART.
    pub uart_intid: u32,
    /// Address of the first PL031; 0 for none.
    pub rtc: u64,
    /// INTID of the EL1 virtual timer.
    pub vtimer_intid: u32,
    /// INTID of the EL1 physical timer.
    pub ptimer_intid: u32,
    /// INTID of the EL2 physical timer.
    pub hyp_timer_intid: u32,
    /// INTID of the GIC maintenance interrupt.
    pub maintenance_intid: u32,
    /// Architecture version of the GIC.
    pub gic_version: u32,
    /// Address at which the image was loaded.
    pub image: u64,
}

/// Whether `ranges` cover all of `span`; adjacent ranges count as one.
fn covered(ranges: &[Memory], span: Span) -> bool {
    let mut start = span.start;
    // Each iteration advances to the end of a range, so the loop ends.
    while start < span.end {
        let next = ranges
            .iter()
            .filter_map(|range| Span::new(range.base, range.size))
            .find(|range| range.has(start));
        match next {
            Some(range) => start = range.end,
            None => return false,
        }
    }
    true
}

/// Whether one of `ranges` overlaps `span`.
fn touched(ranges: &[Memory], span: Span) -> bool {
    ranges
        .iter()
        .filter_map(|range| Span::new(range.base, range.size))
        .any(|range| range.overlaps(span))
}

impl Plan<'_> {
    /// Compares the board with the expectations of the plan, which has passed [`Plan::check`].
    ///
    /// # Errors
    /// The first relevant difference.
    pub fn fits(&self, found: &Found) -> Check {
        let at = At::HEADER;
        let board = &self.header.board;
        at.ensure(
            found.gic_version == board.gic_version,
            Invariant::GicVersion,
        )?;
        for (seen, wanted, invariant) in [
            (
                found.gicd,
                (board.gicd, board.gicd_size),
                Invariant::BoardGicd,
            ),
            (
                found.gicr,
                (board.gicr, board.gicr_size),
                Invariant::BoardGicr,
            ),
            (
                found.gicc,
                (board.gicc, board.gicc_size),
                Invariant::BoardGicc,
            ),
            (
                found.gich,
                (board.gich, board.gich_size),
                Invariant::BoardGich,
            ),
            (
                found.gicv,
                (board.gicv, board.gicv_size),
                Invariant::BoardGicv,
            ),
        ] {
            at.ensure(seen == wanted, invariant)?;
        }
        let uart =
            found.uart == (board.uart, board.uart_size) && found.uart_intid == board.uart_intid;
        at.ensure(uart, Invariant::BoardUart)?;
        let rtc = board.rtc == 0 || board.rtc == found.rtc;
        at.ensure(rtc, Invariant::BoardRtc)?;
        let timer = found.vtimer_intid == board.vtimer_intid
            && found.ptimer_intid == board.ptimer_intid
            && found.hyp_timer_intid == board.hyp_timer_intid
            && found.maintenance_intid == board.maintenance_intid;
        at.ensure(timer, Invariant::BoardTimer)?;

        at.ensure(!found.more_reserved, Invariant::BoardTree)?;
        for (row, memory) in self.memory.iter().enumerate() {
            let at = At::row(TableId::Memory, row);
            let there =
                Span::new(memory.base, memory.size).is_some_and(|span| covered(found.memory, span));
            at.ensure(there, Invariant::BoardMemory)?;
        }
        for (row, region) in self.regions.iter().enumerate() {
            let at = At::row(TableId::Regions, row);
            let free = colours::span(region).is_some_and(|span| !touched(found.reserved, span));
            at.ensure(!is_memory(region) || free, Invariant::BoardReserved)?;
        }
        for (row, pcpu) in self.pcpus.iter().enumerate() {
            let at = At::row(TableId::Pcpus, row);
            let cpu = (pcpu.mpidr, pcpu.release);
            at.ensure(found.cpus.contains(&cpu), Invariant::BoardCpu)?;
        }
        let started = self.pcpus.iter().any(|pcpu| pcpu.mpidr == found.boot_cpu);
        at.ensure(started, Invariant::BoardCpu)?;

        let image = Span::new(found.image, self.header.image.size)
            .ok_or(at.breaks(Invariant::BoardImage))?;
        let placed = covered(found.memory, image) && self.region_in(image).is_none();
        at.ensure(placed, Invariant::BoardImage)?;
        at.ensure(!touched(found.reserved, image), Invariant::BoardReserved)
    }
}

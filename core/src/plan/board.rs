//! The board that EL2 finds itself on, compared with the one that the plan was made for.

use bulkhead_abi::plan::{Memory, RegionKind, TableId};

use super::span::Span;
use super::view::Plan;
use super::violation::{At, Check, Invariant};

/// What the boot device tree and the boot CPU say. Addresses are physical.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Ranges of memory.
    pub memory: &'a [Memory],
    /// Ranges that firmware keeps: /reserved-memory and the reservation block.
    pub reserved: &'a [Memory],
    /// Affinity fields of the MPIDR_EL1 of all CPUs.
    pub cpus: &'a [u64],
    /// Affinity fields of the MPIDR_EL1 of the CPU that EL2 was started on.
    pub boot_cpu: u64,
    /// Address and size of the distributor.
    pub gicd: (u64, u64),
    /// Address and size of the (first) redistributor region.
    pub gicr: (u64, u64),
    /// Address and size of the PL011 that /chosen/stdout-path names.
    pub uart: (u64, u64),
    /// Its INTID.
    pub uart_intid: u32,
    /// INTID of the EL1 virtual timer.
    pub vtimer_intid: u32,
    /// INTID of the GIC maintenance interrupt.
    pub maintenance_intid: u32,
    /// Architecture version of the GIC.
    pub gic_version: u32,
    /// Where the image was loaded.
    pub image: u64,
}

/// Whether one of `ranges` holds all of `span`, ranges that touch counting as one.
fn covered(ranges: &[Memory], span: Span) -> bool {
    let mut start = span.start;
    // Each turn moves past one range at least, so this ends.
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

/// Whether one of `ranges` has an address in common with `span`.
fn touched(ranges: &[Memory], span: Span) -> bool {
    ranges
        .iter()
        .filter_map(|range| Span::new(range.base, range.size))
        .any(|range| range.overlaps(span))
}

impl Plan<'_> {
    /// Compares the board with what the plan, which has passed [`Plan::check`], expects of it.
    ///
    /// # Errors
    /// The first difference that matters.
    pub fn fits(&self, found: &Found) -> Check {
        let at = At::HEADER;
        let board = &self.header.board;
        at.ensure(
            found.gic_version == board.gic_version,
            Invariant::GicVersion,
        )?;
        at.ensure(
            found.gicd == (board.gicd, board.gicd_size),
            Invariant::BoardGicd,
        )?;
        at.ensure(
            found.gicr == (board.gicr, board.gicr_size),
            Invariant::BoardGicr,
        )?;
        let uart =
            found.uart == (board.uart, board.uart_size) && found.uart_intid == board.uart_intid;
        at.ensure(uart, Invariant::BoardUart)?;
        let timer = found.vtimer_intid == board.vtimer_intid
            && found.maintenance_intid == board.maintenance_intid;
        at.ensure(timer, Invariant::BoardTimer)?;

        for (row, memory) in self.memory.iter().enumerate() {
            let at = At::row(TableId::Memory, row);
            let there =
                Span::new(memory.base, memory.size).is_some_and(|span| covered(found.memory, span));
            at.ensure(there, Invariant::BoardMemory)?;
        }
        for (row, region) in self.regions.iter().enumerate() {
            let at = At::row(TableId::Regions, row);
            let free = Span::new(region.pa, region.size)
                .is_some_and(|span| !touched(found.reserved, span));
            let memory = region.kind != RegionKind::Device as u16;
            at.ensure(!memory || free, Invariant::BoardReserved)?;
        }
        for (row, pcpu) in self.pcpus.iter().enumerate() {
            let at = At::row(TableId::Pcpus, row);
            at.ensure(found.cpus.contains(&pcpu.mpidr), Invariant::BoardCpu)?;
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

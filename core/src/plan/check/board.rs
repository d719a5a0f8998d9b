//! Rules about the board: frames that EL2 uses, memory, pCPUs.

use bulkhead_abi::plan::{NONE, PAGE, TableId};

use super::{AFFINITY, PA_LIMIT};
use crate::plan::span::{Span, aligned};
use crate::plan::view::Plan;
use crate::plan::violation::{At, Check, Invariant};

/// Bytes of a GIC frame (IHI 0069H, 12.1).
const GIC_FRAME: u64 = 64 * 1024;
/// Bytes of a GICv3 redistributor: RD_base and SGI_base (IHI 0069H, 12.10).
pub(super) const REDISTRIBUTOR: u64 = 2 * GIC_FRAME;

/// Whether `intid` is a PPI.
const fn is_ppi(intid: u32) -> bool {
    16 <= intid && intid < 32
}

/// Whether `intid` is an SPI.
pub(super) const fn is_spi(intid: u32) -> bool {
    32 <= intid && intid < 1020
}

/// A span of whole units below the limit of physical addresses.
pub(super) fn pa_span(base: u64, size: u64, unit: u64) -> Option<Span> {
    Span::new(base, size)
        .filter(|span| aligned(base, unit) && aligned(size, unit) && span.end <= PA_LIMIT)
}

impl Plan<'_> {
    /// The frames of GIC and UART that EL2 uses; sound once `check_board` has passed.
    pub(super) fn frames(&self) -> [Option<Span>; 3] {
        let board = &self.header.board;
        [
            pa_span(board.gicd, board.gicd_size, GIC_FRAME),
            pa_span(board.gicr, board.gicr_size, GIC_FRAME),
            pa_span(board.uart, board.uart_size, PAGE),
        ]
    }

    /// Whether `span` has an address in common with a frame that EL2 uses.
    pub(super) fn touches_frame(&self, span: Span) -> bool {
        self.frames()
            .into_iter()
            .flatten()
            .any(|frame| frame.overlaps(span))
    }

    /// Whether `span` has an address in common with the board's memory.
    pub(super) fn touches_memory(&self, span: Span) -> bool {
        self.memory
            .iter()
            .filter_map(|memory| Span::new(memory.base, memory.size))
            .any(|memory| memory.overlaps(span))
    }

    /// Whether `span` lies in one range of the board's memory.
    pub(super) fn in_memory(&self, span: Span) -> bool {
        self.memory
            .iter()
            .filter_map(|memory| Span::new(memory.base, memory.size))
            .any(|memory| memory.contains(span))
    }

    /// GIC and UART.
    pub(super) fn check_board(&self) -> Check {
        let at = At::HEADER;
        let board = &self.header.board;
        at.ensure(board.gic_version == 3, Invariant::GicVersion)?;
        let enough = (self.pcpus.len() as u64).wrapping_mul(REDISTRIBUTOR);
        let sizes = board.gicr_size >= enough && aligned(board.gicr_size, REDISTRIBUTOR);
        at.ensure(sizes, Invariant::BoardFrame)?;
        let [Some(gicd), Some(gicr), Some(uart)] = self.frames() else {
            return Err(at.breaks(Invariant::BoardFrame));
        };
        let apart = !gicd.overlaps(gicr) && !gicd.overlaps(uart) && !gicr.overlaps(uart);
        at.ensure(apart, Invariant::BoardFrameOverlap)?;
        let intids = is_spi(board.uart_intid)
            && is_ppi(board.vtimer_intid)
            && is_ppi(board.maintenance_intid)
            && board.vtimer_intid != board.maintenance_intid;
        at.ensure(intids, Invariant::BoardIntid)
    }

    /// Ranges of memory.
    pub(super) fn check_memory(&self) -> Check {
        let mut end = 0;
        for (row, memory) in self.memory.iter().enumerate() {
            let at = At::row(TableId::Memory, row);
            let span = pa_span(memory.base, memory.size, PAGE)
                .filter(|span| span.start >= end)
                .ok_or(at.breaks(Invariant::MemoryRange))?;
            at.ensure(!self.touches_frame(span), Invariant::BoardFrameOverlap)?;
            end = span.end;
        }
        Ok(())
    }

    /// pCPUs, each by itself and against the others.
    pub(super) fn check_pcpus(&self) -> Check {
        let mut services = 0_u32;
        for (row, pcpu) in self.pcpus.iter().enumerate() {
            let at = At::row(TableId::Pcpus, row);
            at.ensure(pcpu.reserved == 0, Invariant::ReservedZero)?;
            at.ensure(pcpu.mpidr & !AFFINITY == 0, Invariant::PcpuMpidr)?;
            at.ensure(pcpu.service <= 1, Invariant::PcpuService)?;
            services = services.wrapping_add(u32::from(pcpu.service));
            let twin = self
                .pcpus
                .iter()
                .take(row)
                .position(|other| other.mpidr == pcpu.mpidr);
            if let Some(twin) = twin {
                return Err(at.and(twin).breaks(Invariant::PcpuMpidr));
            }
            let placed = pcpu.vcpu == NONE
                || self
                    .vcpus
                    .get(usize::from(pcpu.vcpu))
                    .is_some_and(|vcpu| usize::from(vcpu.pcpu) == row);
            at.ensure(placed, Invariant::VcpuPlacement)?;
        }
        At::row(TableId::Pcpus, 0).ensure(services == 1, Invariant::PcpuService)
    }
}

//! Rules about the board: frames that EL2 uses, memory, pCPUs.

use bulkhead_abi::plan::{MAX_PCPUS, PAGE, TableId, UartKind};

use super::{AFFINITY, PA_LIMIT};
use crate::plan::span::{Span, aligned};
use crate::plan::view::Plan;
use crate::plan::violation::{At, Check, Invariant};

/// Size of a GIC frame in bytes (IHI 0069H, 12.1).
const GIC_FRAME: u64 = 64 * 1024;
/// Size in bytes of the CPU interface of a GICv2, and of the virtual one: GICC_DIR is at 0x1000
/// (IHI 0048B, 4.1.3, 5.5).
pub(super) const GICC: u64 = 2 * PAGE;
/// Size in bytes of a GICv3 redistributor: RD_base and SGI_base (IHI 0069H, 12.10).
pub(super) const REDISTRIBUTOR: u64 = 2 * GIC_FRAME;

/// Whether `intid` is a PPI.
const fn is_ppi(intid: u32) -> bool {
    16 <= intid && intid < 32
}

/// Whether `intid` is an SPI.
pub(super) const fn is_spi(intid: u32) -> bool {
    32 <= intid && intid < 1020
}

/// A span of whole units below the limit of physical addresses; `None` if it is not.
pub(super) fn pa_span(base: u64, size: u64, unit: u64) -> Option<Span> {
    Span::new(base, size)
        .filter(|span| aligned(base, unit) && aligned(size, unit) && span.end <= PA_LIMIT)
}

impl Plan<'_> {
    /// Whether the board's GIC is a GICv2; otherwise it is a GICv3.
    pub(super) fn is_gicv2(&self) -> bool {
        self.header.board.gic_version == 2
    }

    /// The frames of GIC and UART that EL2 uses: distributor, redistributors, CPU interface,
    /// virtual interface control, virtual CPU interface, UART. Valid once `check_board` has passed;
    /// frames of the other GIC version are `None`.
    pub(super) fn frames(&self) -> [Option<Span>; 6] {
        let board = &self.header.board;
        let unit = if self.is_gicv2() { PAGE } else { GIC_FRAME };
        // Some have a page with others, which are then EL2's as well.
        let apart = board.uart_kind < UartKind::Meson as u32;
        let uart = if apart {
            board.uart
        } else {
            board.uart & !(PAGE - 1)
        };
        [
            pa_span(board.gicd, board.gicd_size, unit),
            pa_span(board.gicr, board.gicr_size, GIC_FRAME),
            pa_span(board.gicc, board.gicc_size, PAGE),
            pa_span(board.gich, board.gich_size, PAGE),
            pa_span(board.gicv, board.gicv_size, PAGE),
            pa_span(uart, board.uart_size, PAGE),
        ]
    }

    /// The frame of the real-time clock, if the plan names one. EL2 reads it once, before any VM
    /// runs, so it may be passed through to a VM.
    fn clock(&self) -> Option<Span> {
        let rtc = self.header.board.rtc;
        pa_span(rtc, PAGE, PAGE).filter(|_| rtc != 0)
    }

    /// Whether `span` overlaps a frame that EL2 uses.
    pub(super) fn touches_frame(&self, span: Span) -> bool {
        self.frames()
            .into_iter()
            .flatten()
            .any(|frame| frame.overlaps(span))
    }

    /// Whether `span` overlaps the board's memory.
    pub(super) fn touches_memory(&self, span: Span) -> bool {
        self.memory
            .iter()
            .filter_map(|memory| Span::new(memory.base, memory.size))
            .any(|memory| memory.overlaps(span))
    }

    /// Whether `span` is in one range of the board's memory.
    #[inline(never)]
    pub(super) fn in_memory(&self, span: Span) -> bool {
        self.memory
            .iter()
            .filter_map(|memory| Span::new(memory.base, memory.size))
            .any(|memory| memory.contains(span))
    }

    /// Checks GIC, UART and clock.
    pub(super) fn check_board(&self) -> Check {
        let at = At::HEADER;
        let board = &self.header.board;
        let version = board.gic_version == 2 || board.gic_version == 3;
        at.ensure(version, Invariant::GicVersion)?;
        let kind = board.uart_kind < UartKind::ALL.len() as u32;
        at.ensure(kind, Invariant::UartKind)?;
        let free = board.event == 0;
        at.ensure(free || self.keeps_budgets(), Invariant::ReservedZero)?;
        at.ensure(self.frames_are_whole(), Invariant::BoardFrame)?;
        let clock = self.clock();
        at.ensure(board.rtc == 0 || clock.is_some(), Invariant::BoardFrame)?;
        let frames = self.frames();
        let mut rest = frames.iter().flatten();
        while let Some(frame) = rest.next() {
            let apart = !rest
                .clone()
                .chain(&clock)
                .any(|other| other.overlaps(*frame));
            at.ensure(apart, Invariant::BoardFrameOverlap)?;
        }
        let mut ppis = 0_u32;
        for intid in [
            board.vtimer_intid,
            board.ptimer_intid,
            board.hyp_timer_intid,
            board.maintenance_intid,
        ] {
            at.ensure(is_ppi(intid), Invariant::BoardIntid)?;
            ppis |= 1_u32.wrapping_shl(intid);
        }
        let intids = is_spi(board.uart_intid) && ppis.count_ones() == 4;
        at.ensure(intids, Invariant::BoardIntid)
    }

    /// Whether the board has all frames of its GIC version, at least of the required size, and none
    /// of the other version.
    fn frames_are_whole(&self) -> bool {
        let board = &self.header.board;
        let there = self.frames().map(|frame| frame.is_some());
        if self.is_gicv2() {
            let none = [board.gicr, board.gicr_size];
            there == [true, false, true, true, true, true]
                && none == [0; 2]
                && board.gicc_size >= GICC
                && board.gicv_size >= GICC
        } else {
            let none = [
                board.gicc,
                board.gicc_size,
                board.gich,
                board.gich_size,
                board.gicv,
                board.gicv_size,
            ];
            let enough = (self.pcpus.len() as u64).wrapping_mul(REDISTRIBUTOR);
            there == [true, true, false, false, false, true]
                && none == [0; 6]
                && board.gicr_size >= enough
        }
    }

    /// Checks the ranges of memory.
    pub(super) fn check_memory(&self) -> Check {
        let mut end = 0;
        for (row, memory) in self.memory.iter().enumerate() {
            let at = At::row(TableId::Memory, row);
            let span = pa_span(memory.base, memory.size, PAGE)
                .filter(|span| span.start >= end)
                .ok_or(at.breaks(Invariant::MemoryRange))?;
            let clock = self.clock().is_some_and(|clock| clock.overlaps(span));
            let apart = !clock && !self.touches_frame(span);
            at.ensure(apart, Invariant::BoardFrameOverlap)?;
            end = span.end;
        }
        Ok(())
    }

    /// Whether EL2 may write the release address of a CPU. That it is not in the image either is
    /// guaranteed by the firmware, which reserves that memory; [`Plan::fits`] checks the image
    /// against reserved memory.
    fn is_release(&self, release: u64) -> bool {
        Span::new(release, 8).is_some_and(|span| {
            aligned(release, 8) && self.in_memory(span) && self.region_in(span).is_none()
        })
    }

    /// Checks the pCPUs, each by itself and against the others.
    pub(super) fn check_pcpus(&self) -> Check {
        let mut services = 0_u32;
        let mut caches = [0; MAX_PCPUS];
        for (row, pcpu) in self.pcpus.iter().enumerate() {
            let at = At::row(TableId::Pcpus, row);
            let free = pcpu.pmu_intid == 0;
            at.ensure(free || self.keeps_budgets(), Invariant::ReservedZero)?;
            at.ensure(pcpu.mpidr & !AFFINITY == 0, Invariant::PcpuMpidr)?;
            let release = pcpu.release == 0 || self.is_release(pcpu.release);
            at.ensure(release, Invariant::PcpuRelease)?;
            let cache = Self::is_cache(pcpu, &mut caches);
            at.ensure(cache, Invariant::PcpuCache)?;
            services = services.wrapping_add(u32::from(pcpu.service));
            let twin = self
                .pcpus
                .iter()
                .take(row)
                .position(|other| other.mpidr == pcpu.mpidr);
            if let Some(twin) = twin {
                return Err(at.and(twin).breaks(Invariant::PcpuMpidr));
            }
        }
        At::row(TableId::Pcpus, 0).ensure(services == 1, Invariant::PcpuService)
    }
}

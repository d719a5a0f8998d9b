//! Rules about the regions that stage 2 maps.

use bulkhead_abi::plan::{
    ACCESS_EXECUTE, ACCESS_READ, ACCESS_UNCACHED, ACCESS_WRITE, ALL_COLOURS, NONE, PAGE, Region,
    RegionKind, TableId,
};

use super::PA_LIMIT;
use super::board::pa_span;
use super::cpu::DIRECT_V2;
use super::vms::ipa_span;
use crate::colours;
use crate::plan::span::{Span, aligned};
use crate::plan::view::{IO, MANAGED, Plan, rows_of};
use crate::plan::violation::{At, Check, Invariant};

/// [`RegionKind`] as encoded in the plan.
const RAM: u16 = RegionKind::Ram as u16;
/// [`RegionKind`] as encoded in the plan.
const DEVICE: u16 = RegionKind::Device as u16;
/// [`RegionKind`] as encoded in the plan.
pub(super) const SHARED: u16 = RegionKind::Shared as u16;
/// [`RegionKind`] as encoded in the plan.
const GICV: u16 = RegionKind::Gicv as u16;
/// [`RegionKind`] as encoded in the plan.
const STOLEN: u16 = RegionKind::StolenTime as u16;
/// [`RegionKind`] as encoded in the plan.
pub(super) const VIRTIO: u16 = RegionKind::VirtioRegisters as u16;
/// [`RegionKind`] as encoded in the plan.
const STOP: u16 = RegionKind::StopWord as u16;

/// Whether the region is RAM of its VM.
pub(super) const fn is_ram(region: &Region) -> bool {
    region.kind == RAM
}

/// Whether the region is a passed-through device.
pub(super) const fn is_device(region: &Region) -> bool {
    region.kind == DEVICE
}

/// Whether the region is memory of the board: RAM or shared memory.
pub(in crate::plan) const fn is_memory(region: &Region) -> bool {
    region.kind == RAM || region.kind == SHARED
}

/// Whether the plan gives the physical address of the region; the pages for stolen time, for
/// registers of virtio devices and for the word of a stop come from EL2's page pool.
const fn has_place(region: &Region) -> bool {
    region.kind < STOLEN
}

/// The physical span of a region that has passed `check_regions`.
pub(super) fn region_pa(region: &Region) -> Option<Span> {
    colours::span(region)
}

/// The IPA span of a region that has passed `check_regions`.
pub(super) fn region_ipa(region: &Region) -> Option<Span> {
    Span::new(region.ipa, region.size)
}

/// Whether two regions are the same shared memory in two VMs.
fn same_shared(one: &Region, other: &Region) -> bool {
    one.kind == SHARED && other.kind == SHARED && one.shared == other.shared && one.vm != other.vm
}

impl Plan<'_> {
    /// Checks the regions, each by itself. From `io` on there may be registers of virtio devices, and from `managed` on words of a stop.
    pub(super) fn check_regions<const PROFILE: u32>(&self) -> Check {
        for (row, region) in self.regions.iter().enumerate() {
            let at = At::row(TableId::Regions, row);
            let last = match PROFILE {
                MANAGED.. => STOP,
                IO => VIRTIO,
                _ => STOLEN,
            };
            at.ensure(region.kind <= last, Invariant::RegionKind)?;
            let access = match region.kind {
                RAM => region.access == ACCESS_READ | ACCESS_WRITE | ACCESS_EXECUTE,
                DEVICE | GICV => region.access == ACCESS_READ | ACCESS_WRITE,
                STOLEN => region.access == ACCESS_READ,
                VIRTIO if PROFILE >= IO => region.access == ACCESS_READ,
                STOP if PROFILE >= MANAGED => region.access == ACCESS_READ,
                _ => region.access & !(ACCESS_WRITE | ACCESS_UNCACHED) == ACCESS_READ,
            };
            at.ensure(access, Invariant::RegionAccess)?;
            let ipa = ipa_span(region.ipa, region.size, PAGE);
            let pa = pa_span(region.pa, region.size, PAGE);
            let (Some(_), Some(pa), true) = (ipa, pa, aligned(region.size, PAGE)) else {
                return Err(at.breaks(Invariant::RegionRange));
            };
            let coloured = region.colours != ALL_COLOURS;
            at.ensure(
                colours::is_placed(region) && (is_memory(region) || !coloured),
                Invariant::RegionColours,
            )?;
            let pa = if coloured {
                let span = colours::span(region).filter(|span| span.end <= PA_LIMIT);
                span.ok_or(at.breaks(Invariant::RegionRange))?
            } else {
                pa
            };
            let numbered = (region.kind == SHARED) == (region.shared != NONE);
            at.ensure(numbered, Invariant::RegionShared)?;
            match region.kind {
                DEVICE => {
                    let outside = !self.touches_memory(pa) && !self.touches_frame(pa);
                    at.ensure(outside, Invariant::RegionDevice)?;
                }
                GICV => at.ensure(self.is_interface(region), Invariant::RegionGicv)?,
                STOLEN => at.ensure(self.is_stolen_time(region), Invariant::VmStolenTime)?,
                VIRTIO if PROFILE >= IO => {
                    let used = self.has_virtio_device(region);
                    at.ensure(used, Invariant::VirtioRegisters)?;
                }
                STOP if PROFILE >= MANAGED => {
                    let used = self.is_stop_word(region);
                    at.ensure(used, Invariant::Stop)?;
                }
                _ => at.ensure(self.in_memory(pa), Invariant::RegionMemory)?,
            }
        }
        for (row, vm) in self.vms.iter().enumerate() {
            // Two would overlap in the IPA space, which another rule excludes.
            let has = |kind| {
                let mut regions = self.regions_of(row).iter();
                regions.any(|region| region.kind == kind)
            };
            let at = At::row(TableId::Vms, row);
            at.ensure(has(GICV) == self.is_gicv2(), Invariant::RegionGicv)?;
            let told = vm.stolen_time != 0;
            at.ensure(has(STOLEN) == told, Invariant::VmStolenTime)?;
        }
        Ok(())
    }

    /// Whether `region` is the page for its VM's stolen time.
    fn is_stolen_time(&self, region: &Region) -> bool {
        let vm = self.vms.get(usize::from(region.vm));
        region.pa == 0
            && region.size == PAGE
            && vm.is_some_and(|vm| vm.stolen_time == region.ipa && region.ipa != 0)
    }

    /// Whether `region` maps a CPU interface of the board at the address of its VM's CPU interface:
    /// the first page of the virtual interface, or of the physical one for a GPPT VM. The second
    /// page has only GICV_DIR or GICC_DIR, which EL2 has to trap.
    fn is_interface(&self, region: &Region) -> bool {
        let board = &self.header.board;
        self.vms.get(usize::from(region.vm)).is_some_and(|vm| {
            let interface = if vm.interrupts == DIRECT_V2 {
                board.gicc
            } else {
                board.gicv
            };
            self.is_gicv2()
                && region.pa == interface
                && region.size == PAGE
                && vm.gicc == region.ipa
        })
    }

    /// Checks regions against each other, against the virtual GIC and against emulated devices.
    pub(super) fn check_overlaps<const PROFILE: u32>(&self) -> Check {
        for (row, region) in self.regions.iter().enumerate() {
            let at = At::row(TableId::Regions, row);
            let (Some(ipa), Some(pa)) = (region_ipa(region), region_pa(region)) else {
                return Err(at.breaks(Invariant::RegionRange));
            };
            self.check_colours::<PROFILE>(at, region)?;
            for (number, other) in self.regions.iter().take(row).enumerate() {
                let at = at.and(number);
                if same_shared(region, other) {
                    let differ = (region.access ^ other.access) & ACCESS_UNCACHED;
                    let same = region.pa == other.pa
                        && region.size == other.size
                        && region.colours == other.colours
                        && differ == 0;
                    at.ensure(same, Invariant::RegionShared)?;
                } else if has_place(region)
                    && has_place(other)
                    && (region.kind != GICV || other.kind != GICV)
                {
                    let apart = region.colours & other.colours == 0
                        || region_pa(other).is_some_and(|other| !other.overlaps(pa));
                    at.ensure(apart, Invariant::PaOverlap)?;
                }
                let apart = self.may_compete::<PROFILE>(region, other);
                at.ensure(apart, Invariant::VmColours)?;
                if region.vm == other.vm {
                    let apart = region_ipa(other).is_some_and(|other| !other.overlaps(ipa));
                    at.ensure(apart, Invariant::IpaOverlap)?;
                }
            }
            if region.kind == SHARED {
                let counted = region.shared == 0
                    || self
                        .regions
                        .iter()
                        .any(|other| other.shared == region.shared.wrapping_sub(1));
                at.ensure(counted, Invariant::RegionShared)?;
            }
        }
        for (row, vm) in self.vms.iter().enumerate() {
            let at = At::row(TableId::Vms, row);
            let frames = self.emulated_frames(vm, self.vcpus_of(row).len());
            for frame in frames.into_iter().flatten() {
                let free = !self.maps(row, frame);
                at.ensure(free, Invariant::IpaOverlap)?;
            }
        }
        Ok(())
    }

    /// Whether stage 2 of VM `vm` maps an address in `span`.
    pub(super) fn maps(&self, vm: usize, span: Span) -> bool {
        rows_of(self.regions, vm)
            .iter()
            .filter_map(region_ipa)
            .any(|ipa| ipa.overlaps(span))
    }
}

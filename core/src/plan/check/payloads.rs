//! Rules about the data that EL2 copies into a VM before it runs.

use bulkhead_abi::plan::{PAGE, SeedKind, TableId};

use super::regions::{is_ram, region_ipa};
use crate::plan::span::{Span, align_up, aligned};
use crate::plan::view::{Plan, rows_of};
use crate::plan::violation::{At, Check, Invariant};

/// Size in bytes of an FDT_PROP token with its length and name offset, before the value (DT spec
/// 0.4, 5.4.1).
const PROPERTY_HEAD: u64 = 12;

impl Plan<'_> {
    /// Checks the payloads: their offsets in the image and their targets.
    pub(super) fn check_payloads(&self) -> Check {
        let none = At::HEADER.breaks(Invariant::PlanOffset);
        let mut next = self.payloads_start().ok_or(none)?;
        for (row, payload) in self.payloads.iter().enumerate() {
            let at = At::row(TableId::Payloads, row);
            at.ensure(payload.reserved == [0; 3], Invariant::ReservedZero)?;
            let size = payload.size > 0 && aligned(payload.size, 8);
            at.ensure(size, Invariant::PayloadSize)?;
            if payload.offset == next {
                let end = Span::new(payload.offset, payload.size)
                    .and_then(|span| align_up(span.end, PAGE));
                next = end.ok_or(at.breaks(Invariant::PayloadSize))?;
            } else {
                let same = self
                    .payloads
                    .iter()
                    .take(row)
                    .any(|other| other.offset == payload.offset && other.size == payload.size);
                at.ensure(same, Invariant::PayloadOffset)?;
            }

            let ipa = Span::new(payload.ipa, payload.size).filter(|ipa| aligned(ipa.start, 8));
            let ipa = ipa.ok_or(at.breaks(Invariant::PayloadTarget))?;
            let inside = self
                .regions_of(usize::from(payload.vm))
                .iter()
                .filter(|region| is_ram(region))
                .filter_map(region_ipa)
                .any(|ram| ram.contains(ipa));
            at.ensure(inside, Invariant::PayloadTarget)?;
            let twin = self.payloads.iter().take(row).position(|other| {
                other.vm == payload.vm
                    && Span::new(other.ipa, other.size).is_none_or(|other| other.overlaps(ipa))
            });
            if let Some(twin) = twin {
                return Err(at.and(twin).breaks(Invariant::PayloadOverlap));
            }
        }
        At::HEADER.ensure(
            self.header.image.page_pool_offset == next,
            Invariant::PagePoolOffset,
        )
    }

    /// Checks the seeds: properties in the device tree of a VM.
    pub(super) fn check_seeds(&self) -> Check {
        for (row, seed) in self.seeds.iter().enumerate() {
            let at = At::row(TableId::Seeds, row);
            let size = match seed.kind {
                kind if kind == SeedKind::Rng as u16 => 64,
                kind if kind == SeedKind::Kaslr as u16 => 8,
                _ => return Err(at.breaks(Invariant::SeedKind)),
            };
            at.ensure(seed.size == size, Invariant::SeedSize)?;
            let boot_arg = self
                .vms
                .get(usize::from(seed.vm))
                .map_or(0, |vm| vm.boot_arg);
            let tree = rows_of(self.payloads, usize::from(seed.vm))
                .iter()
                .find(|payload| payload.ipa == boot_arg)
                .and_then(|payload| Span::new(payload.ipa, payload.size));
            let span = property(seed.ipa, seed.size).filter(|span| aligned(span.start, 4));
            let (Some(tree), Some(span)) = (tree, span) else {
                return Err(at.breaks(Invariant::SeedTarget));
            };
            at.ensure(tree.contains(span), Invariant::SeedTarget)?;
            for (number, other) in self.seeds.iter().take(row).enumerate() {
                if other.vm == seed.vm {
                    let at = at.and(number);
                    at.ensure(other.kind != seed.kind, Invariant::SeedKind)?;
                    let apart =
                        property(other.ipa, other.size).is_some_and(|other| !other.overlaps(span));
                    at.ensure(apart, Invariant::SeedOverlap)?;
                }
            }
        }
        Ok(())
    }
}

/// The bytes of a property with a value of `size` bytes.
fn property(ipa: u64, size: u32) -> Option<Span> {
    Span::new(ipa, PROPERTY_HEAD.wrapping_add(u64::from(size)))
}

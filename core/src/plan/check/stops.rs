//! Rules about how VMs are asked to stop.

use bulkhead_abi::plan::{InterruptMode, MAX_STOP, MIN_STOP, PAGE, Region, RegionKind, TableId};

use super::sorted;
use crate::plan::view::Plan;
use crate::plan::violation::{At, Check, Invariant};

impl Plan<'_> {
    /// Checks that the rows are sorted, before anybody looks for one.
    pub(super) fn check_stop_order(&self) -> Check {
        let stops = self.stops();
        sorted(TableId::Stops, stops, self.vms.len())?;
        for (row, pair) in stops.windows(2).enumerate() {
            let [first, second] = pair else { continue };
            let at = At::row(TableId::Stops, row.wrapping_add(1));
            at.ensure(first.vm != second.vm, Invariant::TableOrder)?;
        }
        Ok(())
    }

    /// Checks how VMs are asked to stop.
    pub(super) fn check_stops(&self) -> Check {
        for (row, stop) in self.stops().iter().enumerate() {
            let at = At::row(TableId::Stops, row);
            let in_time = (MIN_STOP..=MAX_STOP).contains(&stop.timeout);
            let one = (stop.vintid == 0) != (stop.word == 0);
            at.ensure(in_time && one, Invariant::Stop)?;
            let vm = usize::from(stop.vm);
            if stop.vintid == 0 {
                let kind = RegionKind::StopWord as u16;
                let mut own = self.regions_of(vm).iter();
                // Where a region of this kind is was checked with the regions.
                let page = own.any(|region| region.kind == kind);
                at.ensure(page, Invariant::Stop)?;
            } else {
                let vgic = InterruptMode::Vgic as u16;
                let hears = self.vms.get(vm).is_some_and(|vm| vm.interrupts == vgic);
                at.ensure(hears, Invariant::Stop)?;
                at.ensure(self.has_vintid(stop.vm, stop.vintid), Invariant::IrqVintid)?;
                let free = self.sources_of(stop.vm, stop.vintid) == 0;
                at.ensure(free, Invariant::VintidShared)?;
            }
        }
        Ok(())
    }

    /// Whether `region` is the page with the word by which its VM is asked to stop.
    pub(super) fn is_stop_word(&self, region: &Region) -> bool {
        let stop = self.stop_of(usize::from(region.vm));
        region.pa == 0
            && region.size == PAGE
            && stop.is_some_and(|stop| stop.word == region.ipa && region.ipa != 0)
    }
}

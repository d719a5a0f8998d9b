//! The check that a plan is free of conflicts: each rule of [`Invariant`], in an order in which
//! later rules may rely on earlier ones.

mod bandwidth;
mod board;
mod calls;
mod colours;
mod cpu;
mod doorbells;
mod image;
mod interrupts;
mod payloads;
mod regions;
mod rights;
mod service;
mod stops;
mod virtio;
mod virtqueues;
mod vms;

use bulkhead_abi::plan::{MAX_DOORBELLS, MAX_PCPUS, MAX_ROWS, MAX_VCPUS, MAX_VMS, TableId};

pub use calls::may_be_allowed;
pub(super) use regions::is_memory;

use super::page_pool::PagePool;
use super::view::{IO, MANAGED, OfVm, Plan};
use super::violation::{At, Check, Invariant, Violation};

/// Maximum number of ranges of memory in a plan.
const MAX_MEMORY: usize = 64;
/// Limit of physical addresses (Arm ARM, D8.1.6: 48 bits without LPA2).
const PA_LIMIT: u64 = 1 << 48;
/// Affinity fields of MPIDR_EL1: Aff3 and Aff2 to Aff0.
const AFFINITY: u64 = 0xff_00ff_ffff;

impl Plan<'_> {
    /// Checks every invariant that depends on the plan alone.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self) -> Check {
        self.check_for::<MANAGED>().map(|_| ())
    }

    /// Checks every invariant like [`Self::check`], and returns where the parts of the page pool lie. `PROFILE`: that of [`Plan::open_for`].
    ///
    /// # Errors
    /// The first violation.
    pub fn check_for<const PROFILE: u32>(&self) -> Result<PagePool, Violation> {
        self.check_counts()?;
        self.check_order()?;
        if PROFILE >= IO {
            self.check_virtio_tables()?;
        }
        if PROFILE >= MANAGED {
            self.check_stop_order()?;
        }
        self.check_board()?;
        self.check_memory()?;
        self.check_pcpus()?;
        self.check_vms()?;
        self.check_vcpus()?;
        self.check_cpu_time()?;
        self.check_modes()?;
        self.check_regions::<PROFILE>()?;
        self.check_overlaps::<PROFILE>()?;
        self.check_image::<PROFILE>()?;
        self.check_payloads()?;
        let page_pool = self.check_page_pool::<PROFILE>()?;
        self.check_starts()?;
        self.check_seeds()?;
        self.check_devices()?;
        self.check_irqs()?;
        self.check_call_spis()?;
        self.check_events()?;
        self.check_quiets()?;
        self.check_calls()?;
        self.check_doorbells()?;
        if PROFILE >= IO {
            self.check_budgets()?;
            self.check_service_threads()?;
            self.check_backends()?;
            self.check_virtio_devices::<PROFILE>()?;
            self.check_virtqueues()?;
            self.check_service_pages()?;
        }
        self.check_linked()?;
        if PROFILE >= MANAGED {
            self.check_rights()?;
            self.check_stops()?;
        }
        Ok(page_pool)
    }

    /// Checks the number of rows of each table.
    fn check_counts(&self) -> Check {
        let counts = [
            (TableId::Memory, self.memory.len(), 1, MAX_MEMORY),
            (TableId::Pcpus, self.pcpus.len(), 1, MAX_PCPUS),
            (TableId::Vms, self.vms.len(), 1, MAX_VMS),
            (TableId::Vcpus, self.vcpus.len(), 1, MAX_VCPUS),
            (TableId::Regions, self.regions.len(), 1, MAX_ROWS),
            (TableId::Payloads, self.payloads.len(), 1, MAX_ROWS),
            (TableId::Seeds, self.seeds.len(), 0, MAX_ROWS),
            (TableId::Irqs, self.irqs.len(), 0, MAX_ROWS),
            (TableId::Devices, self.devices.len(), 0, MAX_ROWS),
            (TableId::Quiets, self.quiets.len(), 0, MAX_ROWS),
            (TableId::Calls, self.calls.len(), 0, MAX_ROWS),
            (TableId::Doorbells, self.doorbells.len(), 0, MAX_DOORBELLS),
        ];
        for (table, count, least, most) in counts {
            let fits = least <= count && count <= most;
            At::row(table, count).ensure(fits, Invariant::TableCount)?;
        }
        Ok(())
    }

    /// Checks that rows which belong to a VM are sorted by it, and that the VM exists.
    fn check_order(&self) -> Check {
        let vms = self.vms.len();
        sorted(TableId::Vcpus, self.vcpus, vms)?;
        sorted(TableId::Regions, self.regions, vms)?;
        sorted(TableId::Payloads, self.payloads, vms)?;
        sorted(TableId::Seeds, self.seeds, vms)?;
        sorted(TableId::Irqs, self.irqs, vms)?;
        sorted(TableId::Devices, self.devices, vms)?;
        sorted(TableId::Quiets, self.quiets, vms)?;
        sorted(TableId::Calls, self.calls, vms)?;
        sorted(TableId::Doorbells, self.doorbells, vms)?;
        let mut before = None;
        for (row, region) in self.regions.iter().enumerate() {
            let place = (region.vm, region.ipa);
            let ascends = before.is_none_or(|before| before <= place);
            At::row(TableId::Regions, row).ensure(ascends, Invariant::TableOrder)?;
            before = Some(place);
        }
        Ok(())
    }
}

/// The number of items: `Iterator::count` puts a panic into EL2's image, for an overflow that
/// cannot happen.
fn number_of<T>(all: impl Iterator<Item = T>) -> usize {
    all.fold(0, |number, _| number.wrapping_add(1))
}

/// Checks that the VMs of `rows` ascend and are less than `vms`.
fn sorted<T: OfVm>(table: TableId, rows: &[T], vms: usize) -> Check {
    let mut least = 0;
    for (row, vm) in rows.iter().map(OfVm::vm).enumerate() {
        let fits = least <= vm && usize::from(vm) < vms;
        At::row(table, row).ensure(fits, Invariant::TableOrder)?;
        least = vm;
    }
    Ok(())
}

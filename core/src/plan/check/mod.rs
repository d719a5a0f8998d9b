//! The proof that a plan is free of conflicts: each rule of [`Invariant`], in an order in which later
//! rules may rely on earlier ones.

mod board;
mod calls;
mod cpu;
mod doorbells;
mod image;
mod interrupts;
mod loads;
mod regions;
mod vms;

use bulkhead_abi::plan::{MAX_DOORBELLS, MAX_PCPUS, MAX_ROWS, MAX_VCPUS, MAX_VMS, TableId};

pub use calls::may_be_allowed;
pub(super) use regions::is_memory;

use super::view::{OfVm, Plan};
use super::violation::{At, Check, Invariant};

/// Most ranges of memory in a plan.
const MAX_MEMORY: usize = 64;
/// Physical addresses have at most so many bits (Arm ARM, D8.1.6: without LPA2).
const PA_LIMIT: u64 = 1 << 48;
/// Affinity fields of MPIDR_EL1: Aff3 and Aff2 to Aff0.
const AFFINITY: u64 = 0xff_00ff_ffff;

impl Plan<'_> {
    /// Proves every invariant that can be told from the plan alone.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self) -> Check {
        self.check_counts()?;
        self.check_order()?;
        self.check_board()?;
        self.check_memory()?;
        self.check_pcpus()?;
        self.check_vms()?;
        self.check_vcpus()?;
        self.check_cpu_time()?;
        self.check_modes()?;
        self.check_regions()?;
        self.check_overlaps()?;
        self.check_image()?;
        self.check_loads()?;
        self.check_pool()?;
        self.check_starts()?;
        self.check_seeds()?;
        self.check_devices()?;
        self.check_irqs()?;
        self.check_call_spis()?;
        self.check_events()?;
        self.check_quiets()?;
        self.check_calls()?;
        self.check_doorbells()
    }

    /// Tables have as many rows as they may.
    fn check_counts(&self) -> Check {
        let counts = [
            (TableId::Memory, self.memory.len(), 1, MAX_MEMORY),
            (TableId::Pcpus, self.pcpus.len(), 1, MAX_PCPUS),
            (TableId::Vms, self.vms.len(), 1, MAX_VMS),
            (TableId::Vcpus, self.vcpus.len(), 1, MAX_VCPUS),
            (TableId::Regions, self.regions.len(), 1, MAX_ROWS),
            (TableId::Loads, self.loads.len(), 1, MAX_ROWS),
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

    /// Rows that belong to a VM are sorted by it, and it exists.
    fn check_order(&self) -> Check {
        let vms = self.vms.len();
        sorted(TableId::Vcpus, self.vcpus, vms)?;
        sorted(TableId::Regions, self.regions, vms)?;
        sorted(TableId::Loads, self.loads, vms)?;
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

/// How many there are: `Iterator::count` brings a panic into EL2's image, for a number that does not come about.
fn number_of<T>(all: impl Iterator<Item = T>) -> usize {
    all.fold(0, |number, _| number.wrapping_add(1))
}

/// The VMs of the rows of `table` ascend and are less than `vms`.
fn sorted<T: OfVm>(table: TableId, rows: &[T], vms: usize) -> Check {
    let mut least = 0;
    for (row, vm) in rows.iter().map(OfVm::vm).enumerate() {
        let fits = least <= vm && usize::from(vm) < vms;
        At::row(table, row).ensure(fits, Invariant::TableOrder)?;
        least = vm;
    }
    Ok(())
}

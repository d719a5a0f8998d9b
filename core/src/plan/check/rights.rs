//! Rules about who manages whom.

use bulkhead_abi::control::right;
use bulkhead_abi::plan::{MAX_MANAGERS, MAX_ROWS, NONE, Right, TableId, VM_LOCKED};

use super::virtio::has_ports;
use crate::plan::view::Plan;
use crate::plan::violation::{At, Check, Invariant};

/// All rights that there are.
const KNOWN: u32 = {
    let (mut all, mut n) = (0, 0);
    while n < right::ALL.len() {
        all |= right::ALL[n].0;
        n += 1;
    }
    all
};

impl Plan<'_> {
    /// Checks the rights of VMs over others.
    pub(super) fn check_rights(&self) -> Check {
        let rights = self.rights();
        At::row(TableId::Rights, rights.len())
            .ensure(rights.len() <= MAX_ROWS, Invariant::TableCount)?;
        let mut before: Option<&Right> = None;
        let mut managers = 0usize;
        for (row, right) in rights.iter().enumerate() {
            let at = At::row(TableId::Rights, row);
            let vms = usize::from(right.manager) < self.vms.len();
            let vm = self.vms.get(usize::from(right.vm)).filter(|_| vms);
            let ascends = before.is_none_or(|it| (it.manager, it.vm) < (right.manager, right.vm));
            let vm = vm.filter(|_| ascends);
            let vm = vm.ok_or(at.breaks(Invariant::TableOrder))?;
            if before.is_none_or(|it| it.manager != right.manager) {
                managers = managers.wrapping_add(1);
            }
            before = Some(right);

            let known = right.rights & !KNOWN == 0 && right.rights & right::LIST != 0;
            let locked = vm.flags & VM_LOCKED != 0 && right.rights & !right::OF_LOCKED != 0;
            let few = managers <= MAX_MANAGERS;
            at.ensure(known && !locked && few, Invariant::Rights)?;
            let port = self.has_control_port(usize::from(right.manager));
            at.ensure(port, Invariant::ManagerPort)?;
        }
        Ok(())
    }

    /// Whether a VM has a console of EL2's with the control port.
    fn has_control_port(&self, vm: usize) -> bool {
        let mut devices = self.virtio_devices_of(vm).iter();
        devices.any(|device| {
            let backend = self.backends().get(usize::from(device.backend));
            has_ports(device) && backend.is_some_and(|backend| backend.vm == NONE)
        })
    }
}

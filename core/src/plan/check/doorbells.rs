//! Rules about doorbells.

use bulkhead_abi::plan::{
    Doorbell, IRQ_DOORBELL, InterruptMode, Irq, MAX_APART, MIN_APART, PAGE, TableId,
};

use super::number_of;
use super::vms::ipa_span;
use crate::plan::span::Span;
use crate::plan::view::Plan;
use crate::plan::violation::{At, Check, Invariant};

impl Plan<'_> {
    /// Checks the doorbells, and the physical interrupts that are reserved for them.
    pub(super) fn check_doorbells(&self) -> Check {
        for (row, bell) in self.doorbells.iter().enumerate() {
            let at = At::row(TableId::Doorbells, row);
            let hears = usize::from(bell.to) < self.vms.len() && bell.to != bell.vm;
            at.ensure(hears, Invariant::DoorbellVms)?;
            let apart = (MIN_APART..=MAX_APART).contains(&bell.apart);
            at.ensure(apart, Invariant::DoorbellApart)?;
            self.check_page(at, row, bell)?;
            self.check_heard(at, row, bell)?;
        }
        Ok(())
    }

    /// Checks that each physical interrupt that no device of the board has is for one doorbell or virtio device.
    pub(super) fn check_linked(&self) -> Check {
        for (row, irq) in self.irqs.iter().enumerate() {
            let heard = self.doorbells.iter();
            let heard = number_of(heard.filter(|bell| bell.pintid == irq.pintid));
            let devices = self.virtio_devices_of(usize::from(irq.vm)).iter();
            let devices = number_of(devices.filter(|device| device.vintid == irq.vintid));
            let is_right = match irq.flags & IRQ_DOORBELL {
                0 => heard == 0,
                _ => heard.wrapping_add(devices) == 1,
            };
            At::row(TableId::Irqs, row).ensure(is_right, Invariant::DoorbellPhysical)?;
        }
        Ok(())
    }

    /// Checks the page by which the doorbell is rung.
    fn check_page(&self, at: At, row: usize, bell: &Doorbell) -> Check {
        let span = ipa_span(bell.ipa, PAGE, PAGE).ok_or(at.breaks(Invariant::DoorbellPage))?;
        let free = self.is_free(usize::from(bell.vm), span);
        at.ensure(free, Invariant::IpaOverlap)?;
        for (number, other) in self.doorbells.iter().take(row).enumerate() {
            let apart = other.vm != bell.vm || other.ipa != bell.ipa;
            at.and(number).ensure(apart, Invariant::IpaOverlap)?;
        }
        Ok(())
    }

    /// Whether stage 2 of VM `vm`, its virtual GIC and its emulated devices use no address in `span`.
    pub(super) fn is_free(&self, vm: usize, span: Span) -> bool {
        let devices = self.devices_of(vm).iter();
        let mut frames = devices.filter_map(|device| Span::new(device.ipa, device.size));
        self.is_unmapped(vm, span) && !frames.any(|frame| frame.overlaps(span))
    }

    /// Checks the interrupt that a ring makes pending.
    fn check_heard(&self, at: At, row: usize, bell: &Doorbell) -> Check {
        let vintid = self.has_vintid(bell.to, bell.vintid);
        at.ensure(vintid, Invariant::IrqVintid)?;
        let to = usize::from(bell.to);
        let Some(vm) = self.vms.get(to) else {
            return Err(at.breaks(Invariant::DoorbellVms));
        };
        let linked = self.irqs_of(to).iter();
        // `check_doorbells` checks the flag of the physical interrupt, and that no other doorbell names it.
        let own = |irq: &Irq| bell.pintid != 0 && irq.pintid == bell.pintid;
        if vm.interrupts == InterruptMode::Vgic as u16 {
            let others = self.doorbells.iter().filter(|it| it.pintid == bell.pintid);
            let mut lent = linked.clone().filter(|irq| own(irq));
            let lent = lent.any(|irq| irq.flags & IRQ_DOORBELL != 0);
            let alone = bell.pintid == 0 || lent && number_of(others) == 1;
            at.ensure(alone, Invariant::DoorbellPhysical)?;
            let mut emulated = self.devices_of(to).iter();
            let free = vm.event_intid != bell.vintid
                && linked
                    .clone()
                    .all(|irq| own(irq) || irq.vintid != bell.vintid)
                && emulated.all(|device| device.vintid != bell.vintid);
            at.ensure(free, Invariant::VintidShared)?;
        } else {
            let given = bell.pintid == bell.vintid;
            at.ensure(given, Invariant::DoorbellPhysical)?;
        }
        let named = linked.filter(|irq| own(irq) && irq.vintid == bell.vintid);
        let given = number_of(named) == usize::from(bell.pintid != 0);
        at.ensure(given, Invariant::DoorbellPhysical)?;
        for (number, other) in self.doorbells.iter().take(row).enumerate() {
            let same = other.to == bell.to && other.vintid == bell.vintid;
            at.and(number).ensure(!same, Invariant::VintidShared)?;
        }
        Ok(())
    }
}

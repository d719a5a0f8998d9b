//! Rules about emulated devices and about interrupts of both kinds.

use bulkhead_abi::plan::{DeviceKind, IRQ_EDGE, MAX_SPIS, PAGE, TableId};

use super::board::is_spi;
use super::vms::{ipa_span, vgic_frames};
use crate::plan::span::Span;
use crate::plan::view::Plan;
use crate::plan::violation::{At, Check, Invariant};

impl Plan<'_> {
    /// Whether `vintid` is an SPI of the virtual GIC of VM `vm`.
    fn has_vintid(&self, vm: u16, vintid: u16) -> bool {
        let spis = self.vms.get(usize::from(vm)).map_or(0, |vm| vm.spis);
        let intid = u32::from(vintid);
        is_spi(intid) && intid.wrapping_sub(32) < spis
    }

    /// Emulated devices.
    pub(super) fn check_devices(&self) -> Check {
        for (row, device) in self.devices.iter().enumerate() {
            let at = At::row(TableId::Devices, row);
            at.ensure(device.reserved == 0, Invariant::ReservedZero)?;
            at.ensure(
                device.kind == DeviceKind::Pl011 as u16,
                Invariant::DeviceKind,
            )?;
            let vintid = self.has_vintid(device.vm, device.vintid);
            at.ensure(vintid, Invariant::IrqVintid)?;
            let span = ipa_span(device.ipa, device.size, PAGE).filter(|_| device.size == PAGE);
            let span = span.ok_or(at.breaks(Invariant::DeviceFrame))?;
            at.ensure(
                self.is_unmapped(usize::from(device.vm), span),
                Invariant::IpaOverlap,
            )?;
            for (number, other) in self.devices.iter().take(row).enumerate() {
                if other.vm == device.vm {
                    // There is one kind, so this also keeps devices apart from each other.
                    at.and(number)
                        .ensure(other.kind != device.kind, Invariant::DeviceKind)?;
                }
            }
        }
        Ok(())
    }

    /// Whether neither stage 2 nor the virtual GIC of VM `vm` has anything in `span`.
    fn is_unmapped(&self, vm: usize, span: Span) -> bool {
        let frames = self
            .vms
            .get(vm)
            .map_or([None; 2], |row| vgic_frames(row, self.vcpus_of(vm).len()));
        !self.maps(vm, span)
            && !frames
                .into_iter()
                .flatten()
                .any(|frame| frame.overlaps(span))
    }

    /// Physical interrupts and their owners.
    pub(super) fn check_irqs(&self) -> Check {
        for (row, irq) in self.irqs.iter().enumerate() {
            let at = At::row(TableId::Irqs, row);
            at.ensure(self.has_vintid(irq.vm, irq.vintid), Invariant::IrqVintid)?;
            let pintid = u32::from(irq.pintid);
            at.ensure(
                is_spi(pintid) && pintid < 32 + MAX_SPIS,
                Invariant::IrqPintid,
            )?;
            at.ensure(irq.flags & !IRQ_EDGE == 0, Invariant::IrqFlags)?;
            let own = u32::from(irq.pintid) == self.header.board.uart_intid;
            at.ensure(!own, Invariant::PintidShared)?;
            for (number, other) in self.irqs.iter().take(row).enumerate() {
                let at = at.and(number);
                at.ensure(other.pintid != irq.pintid, Invariant::PintidShared)?;
                let same = other.vm == irq.vm && other.vintid == irq.vintid;
                at.ensure(!same, Invariant::VintidShared)?;
            }
            let emulated = self
                .devices_of(usize::from(irq.vm))
                .iter()
                .any(|device| device.vintid == irq.vintid);
            at.ensure(!emulated, Invariant::VintidShared)?;
        }
        Ok(())
    }
}

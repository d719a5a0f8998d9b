//! Rules about emulated devices and about physical and virtual interrupts.

use bulkhead_abi::plan::{DeviceKind, IRQ_DOORBELL, IRQ_EDGE, MAX_SPIS, PAGE, TableId};

use super::board::is_spi;
use super::vms::ipa_span;
use crate::plan::span::Span;
use crate::plan::view::Plan;
use crate::plan::violation::{At, Check, Invariant};

/// Size in bytes of the registers of an emulated device; `None` for an unknown kind.
const fn frame_size(kind: u16) -> Option<u64> {
    const PL011: u16 = DeviceKind::Pl011 as u16;
    const PL031: u16 = DeviceKind::Pl031 as u16;
    const WATCHDOG: u16 = DeviceKind::Watchdog as u16;
    match kind {
        PL011 | PL031 => Some(PAGE),
        WATCHDOG => Some(2 * PAGE),
        _ => None,
    }
}

impl Plan<'_> {
    /// Whether `vintid` is an SPI of the virtual GIC of VM `vm`.
    pub(super) fn has_vintid(&self, vm: u16, vintid: u16) -> bool {
        let spis = self.vms.get(usize::from(vm)).map_or(0, |vm| vm.spis);
        let intid = u32::from(vintid);
        is_spi(intid) && intid.wrapping_sub(32) < spis
    }

    /// Checks the emulated devices.
    pub(super) fn check_devices(&self) -> Check {
        for (row, device) in self.devices.iter().enumerate() {
            let at = At::row(TableId::Devices, row);
            at.ensure(device.reserved == 0, Invariant::ReservedZero)?;
            let size = frame_size(device.kind).ok_or(at.breaks(Invariant::DeviceKind))?;
            let vintid = self.has_vintid(device.vm, device.vintid);
            at.ensure(vintid, Invariant::IrqVintid)?;
            let span = ipa_span(device.ipa, device.size, PAGE).filter(|_| device.size == size);
            let span = span.ok_or(at.breaks(Invariant::DeviceFrame))?;
            at.ensure(
                self.is_unmapped(usize::from(device.vm), span),
                Invariant::IpaOverlap,
            )?;
            for (number, other) in self.devices.iter().take(row).enumerate() {
                if other.vm == device.vm {
                    let at = at.and(number);
                    at.ensure(other.kind != device.kind, Invariant::DeviceKind)?;
                    let apart =
                        Span::new(other.ipa, other.size).is_some_and(|other| !other.overlaps(span));
                    at.ensure(apart, Invariant::IpaOverlap)?;
                    at.ensure(other.vintid != device.vintid, Invariant::VintidShared)?;
                }
            }
        }
        Ok(())
    }

    /// Whether neither stage 2 nor the virtual GIC of VM `vm` uses an address in `span`.
    pub(super) fn is_unmapped(&self, vm: usize, span: Span) -> bool {
        let frames = self.vms.get(vm).map_or([None; 2], |row| {
            self.emulated_frames(row, self.vcpus_of(vm).len())
        });
        !self.maps(vm, span)
            && !frames
                .into_iter()
                .flatten()
                .any(|frame| frame.overlaps(span))
    }

    /// Checks the physical interrupts and their owners.
    pub(super) fn check_irqs(&self) -> Check {
        for (row, irq) in self.irqs.iter().enumerate() {
            let at = At::row(TableId::Irqs, row);
            at.ensure(self.has_vintid(irq.vm, irq.vintid), Invariant::IrqVintid)?;
            let pintid = u32::from(irq.pintid);
            at.ensure(
                is_spi(pintid) && pintid < 32 + MAX_SPIS,
                Invariant::IrqPintid,
            )?;
            let kinds = [0, IRQ_EDGE, IRQ_EDGE | IRQ_DOORBELL];
            at.ensure(kinds.contains(&irq.flags), Invariant::IrqFlags)?;
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

    /// Checks the interrupts that notify VMs of crashes.
    pub(super) fn check_events(&self) -> Check {
        for (row, vm) in self.vms.iter().enumerate() {
            let at = At::row(TableId::Vms, row);
            let told = self.vms.iter().any(|vm| usize::from(vm.notify) == row);
            at.ensure((vm.event_intid != 0) == told, Invariant::VmEvent)?;
            if !told {
                continue;
            }
            let spi = self.has_vintid(row as u16, vm.event_intid);
            at.ensure(spi, Invariant::IrqVintid)?;
            let linked = self.irqs_of(row).iter().map(|irq| irq.vintid);
            let emulated = self.devices_of(row).iter().map(|device| device.vintid);
            let free = !linked
                .chain(emulated)
                .any(|vintid| vintid == vm.event_intid);
            at.ensure(free, Invariant::VintidShared)?;
        }
        Ok(())
    }
}

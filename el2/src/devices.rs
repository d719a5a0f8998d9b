//! The devices that EL2 emulates for the VM of this pCPU: which device an access hits, and what
//! follows from it.

use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::PAGE;
use bulkhead_core::cpu::exit::{self, Mmio};
use bulkhead_core::devices::deadlines::Purpose;
use bulkhead_core::devices::pl011::{self, Effect, Pl011};
use bulkhead_core::vgic::{self, Answer, GICD_SIZE, Notify, Version};

use crate::console::state::output_waits;
use crate::emulated::{Done, line};
use crate::hw::gic::{self, Gic};
use crate::profile::IO;
use crate::vcpu::Vcpu;
use crate::vm::Vm;
use crate::{deadlines, doorbell, gppt, mailbox, timed, virtio};

/// GICD_SGIR of a GICv2 (IHI 0048B.b, 4.3.15).
const SGIR: u64 = 0xf00;

/// Performs a read of a word of the distributor on the fast path. `None` for any other access.
#[inline(always)]
pub fn gicd_fast(vcpu: &mut Vcpu, vm: &Vm, offset: u64, esr: u64) -> Option<()> {
    if exit::is_store(esr) {
        return None;
    }
    let value = vm.dist.read_fast(offset)?;
    vcpu.frame.set(exit::access_register(esr), u64::from(value));
    Some(())
}

/// Performs a write of GICD_SGIR on the fast path. `None`: it is another one's. The caller notifies
/// the siblings that are returned.
#[inline(always)]
pub fn sgir_fast(vcpu: &mut Vcpu, vm: &Vm, esr: u64) -> Option<Notify> {
    let value = vcpu.frame.get(exit::access_register(esr)) as u32;
    vcpu.vgic.send_sgir_fast(&vm.dist, &mut vcpu.gic, value)
}

/// Performs an access to a word of the UART if it is a read of its flags.
#[inline(always)]
pub fn uart_fast(vcpu: &mut Vcpu, vm: &Vm, offset: u64, esr: u64) -> bool {
    let flags = offset == pl011::FR && !exit::is_store(esr);
    if flags {
        let value = u64::from(Pl011::flags(&vm.streams));
        vcpu.frame.set(exit::access_register(esr), value);
    }
    flags
}

/// Whether an access to a word of the distributor is a write to GICD_SGIR of a GICv2.
#[inline(always)]
pub fn is_sgir_write(offset: u64, esr: u64) -> bool {
    gic::VIRTUAL == Version::V2 && offset == SGIR && exit::is_store(esr)
}

/// Performs a write of GICD_SGIR if it sends an SGI to this vCPU alone, besides others in its list
/// registers.
#[inline(always)]
pub fn sends_beside(vcpu: &mut Vcpu, esr: u64) -> bool {
    let value = vcpu.frame.get(exit::access_register(esr)) as u32;
    let Some(vm) = vcpu.vm() else {
        return false;
    };
    vcpu.vgic.send_sgir_beside(&vm.dist, &mut vcpu.gic, value)
}

/// Performs an access to a word of the distributor. `false`: the guest has to repeat it.
#[inline(always)]
pub fn gicd_word(vcpu: &mut Vcpu, offset: u64, esr: u64) -> bool {
    let Some(vm) = vcpu.vm() else {
        return true;
    };
    if !exit::is_store(esr) || offset & 3 != 0 {
        return gic_access(vcpu, vm, Mmio::at_offset(offset, esr), false);
    }
    let value = vcpu.frame.get(exit::access_register(esr)) as u32;
    let whom = vcpu
        .vgic
        .gicd_write_word(&vm.dist, &mut vcpu.gic, offset, value);
    if !whom.is_empty() {
        vcpu.notify(whom);
    }
    !vgic::Cpu::is_open::<Gic>(&vm.dist, offset)
}

/// Performs an access to a word of the redistributors. `false`: the guest has to repeat it.
#[inline(always)]
pub fn gicr_word(vcpu: &mut Vcpu, offset: u64, esr: u64) -> bool {
    let Some(vm) = vcpu.vm() else {
        return true;
    };
    if !exit::is_store(esr) || offset & 3 != 0 {
        return gic_access(vcpu, vm, Mmio::at_offset(offset, esr), true);
    }
    let value = vcpu.frame.get(exit::access_register(esr)) as u32;
    let whom = vcpu
        .vgic
        .gicr_write_word(&vm.dist, &mut vcpu.gic, offset, value);
    if !whom.is_empty() {
        vcpu.notify(whom);
    }
    true
}

/// Performs an access if it hits an emulated device other than the UART.
#[inline(always)]
pub fn access(vcpu: &mut Vcpu, mmio: Mmio) -> Done {
    let Some(vm) = vcpu.vm() else {
        return Done::Nothing;
    };
    // A GPPT VM has none of the devices that come next.
    if vcpu.gppt.is_none() {
        let offset = mmio.ipa.wrapping_sub(vcpu.ipas.gicr);
        if offset < vcpu.ipas.gicr_size {
            let done = gic_access(vcpu, vm, mmio.at(offset), true);
            return Done::of(ExitClass::Gicr, done);
        }
        let offset = mmio.ipa.wrapping_sub(vcpu.ipas.gicd);
        if offset < GICD_SIZE {
            let done = gic_access(vcpu, vm, mmio.at(offset), false);
            return Done::of(ExitClass::Gicd, done);
        }
    } else if let Some(class) = gppt::access(vcpu, mmio) {
        return Done::Yes(class);
    }
    other_access(vcpu, vm, mmio)
}

/// Performs an access if it hits a device that is neither the GIC nor the UART.
#[inline(never)]
fn other_access(vcpu: &mut Vcpu, vm: &Vm, mmio: Mmio) -> Done {
    let offset = mmio.ipa.wrapping_sub(vcpu.ipas.gicc_dir);
    if offset < PAGE {
        return interface_access(vcpu, offset, &mmio);
    }
    match timed::access(vcpu, vm, &mmio) {
        Done::Nothing if IO && virtio::is_bell(vcpu, &mmio) => Done::Yes(ExitClass::Device),
        Done::Nothing => doorbell::access(vcpu, &mmio),
        done => done,
    }
}

/// Performs an access to the second page of a GICv2's CPU interface, which has one writable word
/// and nothing else (IHI 0048B.b, 4.4.15).
fn interface_access(vcpu: &mut Vcpu, offset: u64, mmio: &Mmio) -> Done {
    if !mmio.is_write() {
        vcpu.frame.set(mmio.register(), 0);
    } else if offset == 0 && mmio.size() == 4 {
        let value = mmio.stored(vcpu.frame.get(mmio.register())) as u32;
        if !gppt::deactivate(vcpu, value) {
            deactivate(vcpu, value);
        }
    }
    Done::Yes(ExitClass::Gicd)
}

/// Deactivates an interrupt because the guest writes to ICC_DIR_EL1 or GICC_DIR. The write has an
/// effect in EOImode 1 only.
pub fn deactivate(vcpu: &mut Vcpu, value: u32) {
    if gic::ends_in_two_steps() {
        vcpu.change_interrupts(|vgic, dist, host| vgic.deactivate(dist, host, value));
    }
}

/// Performs an access to the distributor, or (`private`) the redistributors. `mmio` has the offset
/// in place of the IPA. `false`: the guest has to repeat it.
#[inline(never)]
fn gic_access(vcpu: &mut Vcpu, vm: &Vm, mmio: Mmio, private: bool) -> bool {
    let (dist, host, vgic) = (&vm.dist, &mut vcpu.gic, &mut vcpu.vgic);
    let (offset, size) = (mmio.ipa, mmio.size());
    let (answer, whom) = if mmio.is_write() {
        let value = mmio.stored(vcpu.frame.get(mmio.register()));
        if private {
            vgic.gicr_write(dist, host, offset, size, value)
        } else {
            vgic.gicd_write(dist, host, offset, size, value)
        }
    } else if private {
        vgic.gicr_read(dist, host, offset, size)
    } else {
        vgic.gicd_read(dist, host, offset, size)
    };
    vcpu.notify(whom);
    let Answer::Value(value) = answer else {
        return false;
    };
    if !mmio.is_write() {
        vcpu.frame.set(mmio.register(), mmio.loaded(value));
    }
    true
}

/// Performs a byte written to the emulated UART where that changes nothing but the stream: whether the drainer has to be told. `None`: it has
/// not been done.
#[inline(always)]
pub fn uart_send(vcpu: &Vcpu, vm: &Vm, esr: u64) -> Option<bool> {
    let byte = vcpu.frame.get(exit::access_register(esr)) as u8;
    vm.pl011
        .try_use(|pl011| pl011.send_only(&vm.streams, byte))
        .flatten()
}

/// Performs an access to the emulated UART. `mmio` has the offset in place of the IPA. `false`: the
/// guest has to repeat it.
#[inline(always)]
pub fn uart_access(vcpu: &mut Vcpu, mmio: Mmio) -> bool {
    let Some(vm) = vcpu.vm() else {
        return true;
    };
    if !mmio.is_write() {
        return uart_read(vcpu, vm, mmio);
    }
    let value = vcpu.frame.get(mmio.register());
    let done = vm.pl011.try_use(|pl011| {
        let effect = if mmio.ipa == pl011::DR {
            pl011.send(&vm.streams, value as u8)
        } else {
            pl011.write_other(&vm.streams, mmio.ipa, mmio.stored(value) as u32)
        };
        if effect != Effect::default() {
            uart_changed(vcpu, vm, pl011, effect);
        }
    });
    done.is_some()
}

#[inline(never)]
fn uart_read(vcpu: &mut Vcpu, vm: &Vm, mmio: Mmio) -> bool {
    let value = vm.pl011.try_use(|pl011| {
        let (value, effect) = pl011.read(&vm.streams, mmio.ipa);
        uart_changed(vcpu, vm, pl011, effect);
        value
    });
    let Some(value) = value else {
        return false;
    };
    vcpu.frame
        .set(mmio.register(), mmio.loaded(u64::from(value)));
    true
}

/// Passes on the effects of an access to the emulated UART: its line and output for the drainer. This
/// is done inside the claim, so that the vGIC learns the level of the line before another vCPU can
/// change it.
#[inline(never)]
fn uart_changed(vcpu: &mut Vcpu, vm: &Vm, pl011: &mut Pl011, effect: Effect) {
    if effect.line
        && let Some(up) = pl011.moved_line(&vm.streams)
    {
        let whom = line(vcpu, vm, vcpu.pl011_intid, up);
        vcpu.notify(whom);
    }
    if effect.output {
        output_waits(vcpu.vm.unwrap_or_default());
    }
}

/// Updates the emulated UART after input has arrived, or when there is room for output again.
pub fn console_event(vcpu: &mut Vcpu) {
    let Some(vm) = vcpu.vm() else { return };
    if vcpu.report.is_some() || vcpu.pl011_intid == 0 {
        return;
    }
    let done = vm.pl011.try_use(|pl011| {
        pl011.space_again(&vm.streams);
        uart_changed(vcpu, vm, pl011, Effect::LINE);
    });
    if done.is_none() {
        // Another vCPU is using the UART: try again after whatever this pCPU does next.
        mailbox::send(vcpu.id, mailbox::UART);
    }
}

/// Drains some of the console, if this pCPU is the drainer; `received`: the UART may have input.
pub fn drain(vcpu: &mut Vcpu, flush: bool, received: bool) {
    let Some(service) = vcpu.console() else {
        return;
    };
    let next = service.drain(flush, received);
    if next.flush.is_some() {
        deadlines::set(vcpu, Purpose::Flush, next.flush);
    }
    if next.monitor.is_some() {
        deadlines::set(vcpu, Purpose::Monitor, next.monitor);
    }
}

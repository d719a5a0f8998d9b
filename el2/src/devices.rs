//! What EL2 emulates for the VM of this pCPU: which frame an access hits, and what follows from it.

use bulkhead_abi::exit::ExitClass;
use bulkhead_core::exit::{self, Mmio};
use bulkhead_core::pl011::{self, Effect, Pl011};
use bulkhead_core::vgic::{GICD_SIZE, GICR_SIZE};

use crate::mailbox;
use crate::pcpu::Pcpu;
use crate::service;
use crate::vm::Vm;

/// Performs an access to the word at `ipa` if it is one of the usual ones, which change nothing but a
/// register of the guest.
#[inline(always)]
pub fn usual(pcpu: &mut Pcpu, vm: &Vm, ipa: u64, esr: u64) -> Option<ExitClass> {
    let register = exit::access_register(esr);
    let offset = ipa.wrapping_sub(pcpu.places.gicd);
    if offset < GICD_SIZE {
        if exit::is_store(esr) {
            let value = pcpu.frame.get(register) as u32;
            return vm
                .dist
                .changes_nothing(offset, value)
                .then_some(ExitClass::Gicd);
        }
        pcpu.frame
            .set(register, u64::from(vm.dist.usual_read(offset)?));
        return Some(ExitClass::Gicd);
    }
    if ipa == pcpu.places.pl011.wrapping_add(pl011::FR) && !exit::is_store(esr) {
        pcpu.frame
            .set(register, u64::from(Pl011::flags(&vm.streams)));
        return Some(ExitClass::Uart);
    }
    None
}

/// Performs an access if something is emulated there.
pub fn access(pcpu: &mut Pcpu, mmio: &Mmio) -> Option<ExitClass> {
    let vm = pcpu.vm()?;
    let (dist, offset) = (&vm.dist, mmio.ipa.wrapping_sub(pcpu.places.gicd));
    if offset < GICD_SIZE {
        if mmio.write {
            let value = mmio.stored(pcpu.frame.get(mmio.register));
            pcpu.vgic
                .gicd_write(dist, &mut pcpu.gic, offset, mmio.size, value);
        } else {
            let value = pcpu.vgic.gicd_read(dist, &pcpu.gic, offset, mmio.size);
            pcpu.frame.set(mmio.register, mmio.loaded(value));
        }
        return Some(ExitClass::Gicd);
    }
    let offset = mmio.ipa.wrapping_sub(pcpu.places.pl011);
    if offset < pl011::SIZE {
        let effect = if mmio.write {
            let value = mmio.stored(pcpu.frame.get(mmio.register)) as u32;
            pcpu.pl011.write(&vm.streams, offset, value)
        } else {
            let (value, effect) = pcpu.pl011.read(&vm.streams, offset);
            pcpu.frame.set(mmio.register, mmio.loaded(u64::from(value)));
            effect
        };
        if effect != Effect::default() {
            uart_changed(pcpu, effect);
        }
        return Some(ExitClass::Uart);
    }
    let offset = mmio.ipa.wrapping_sub(pcpu.places.gicr);
    if offset < GICR_SIZE {
        if mmio.write {
            let value = mmio.stored(pcpu.frame.get(mmio.register));
            pcpu.vgic
                .gicr_write(dist, &mut pcpu.gic, offset, mmio.size, value);
        } else {
            let value = pcpu.vgic.gicr_read(dist, &pcpu.gic, offset, mmio.size);
            pcpu.frame.set(mmio.register, mmio.loaded(value));
        }
        return Some(ExitClass::Gicr);
    }
    None
}

/// The emulated UART did something that others must know.
#[inline(never)]
fn uart_changed(pcpu: &mut Pcpu, effect: Effect) {
    if effect.line {
        follow_line(pcpu);
    }
    if effect.output {
        output_waits();
    }
}

/// Takes the UART's interrupt line over to the vGIC.
fn follow_line(pcpu: &mut Pcpu) {
    let Some(vm) = pcpu.vm() else { return };
    let up = pcpu.pl011.line(&vm.streams);
    pcpu.vgic
        .set_line(&vm.dist, &mut pcpu.gic, pcpu.pl011_intid, up);
}

/// Input came for the emulated UART, or room again for its output.
pub fn console_event(pcpu: &mut Pcpu) {
    let Some(vm) = pcpu.vm() else { return };
    if pcpu.report.is_none() {
        pcpu.pl011.room_again(&vm.streams);
        follow_line(pcpu);
    }
}

/// There is something for the pCPU that drains the console. It does so in an exit of its own, also if
/// it is this one.
pub fn output_waits() {
    if service::wake() {
        mailbox::send(service::drainer(), mailbox::CONSOLE);
    }
}

/// Drains some of the console, if that is this pCPU's to do.
pub fn drain(pcpu: &mut Pcpu, flush: bool) {
    if let Some(service) = &mut pcpu.service
        && service.drain(flush, pcpu.index)
    {
        console_event(pcpu);
    }
}

/// Takes keys from the board's UART.
pub fn keys(pcpu: &mut Pcpu) {
    if let Some(service) = &mut pcpu.service
        && service.keys(pcpu.index)
    {
        console_event(pcpu);
    }
}

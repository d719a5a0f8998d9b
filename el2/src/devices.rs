//! The devices that EL2 emulates for the VM of this pCPU: which device an access hits, and what
//! follows from it.

use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::PAGE;
use bulkhead_core::cpu::exit::{self, Mmio};
use bulkhead_core::devices::deadlines::Purpose;
use bulkhead_core::devices::pl011::{self, Effect, Pl011};
use bulkhead_core::vgic::{Answer, GICD_SIZE, Notify, Version};

use crate::console::state::output_waits;
use crate::emulated::{Done, line};
use crate::hw::gic;
use crate::vcpu::Vcpu;
use crate::vm::Vm;
use crate::{deadlines, doorbell, gppt, mailbox, timed};

/// GICD_SGIR of a GICv2 (IHI 0048B.b, 4.3.15).
const SGIR: u64 = 0xf00;

/// Performs an access to the word at `ipa` on the fast path, which is for SGIs and for accesses
/// that change nothing but a register of the guest. `None` for any other access.
#[inline(always)]
pub fn access_fast(vcpu: &mut Vcpu, vm: &Vm, ipa: u64, esr: u64) -> Option<ExitClass> {
    let register = exit::access_register(esr);
    let offset = ipa.wrapping_sub(vcpu.ipas.gicd);
    if offset < GICD_SIZE {
        if exit::is_store(esr) {
            let value = vcpu.frame.get(register) as u32;
            if gic::VIRTUAL == Version::V2 && offset == SGIR {
                let whom = vcpu.vgic.send_sgir_fast(&vm.dist, &mut vcpu.gic, value)?;
                if !vcpu.notify_one(whom) {
                    vcpu.notify(whom);
                }
                return Some(ExitClass::Sgi);
            }
            return vm
                .dist
                .changes_nothing(offset, value)
                .then_some(ExitClass::Gicd);
        }
        vcpu.frame
            .set(register, u64::from(vm.dist.read_fast(offset)?));
        return Some(ExitClass::Gicd);
    }
    if ipa == vcpu.ipas.pl011.wrapping_add(pl011::FR) && !exit::is_store(esr) {
        vcpu.frame
            .set(register, u64::from(Pl011::flags(&vm.streams)));
        return Some(ExitClass::Uart);
    }
    None
}

/// Whether the access is a word written to GICD_SGIR of a GICv2.
#[inline(always)]
pub fn is_sgir_write(vcpu: &Vcpu, ipa: u64, esr: u64) -> bool {
    gic::VIRTUAL == Version::V2
        && ipa.wrapping_sub(vcpu.ipas.gicd) == SGIR
        && exit::is_plain_word(esr)
        && exit::is_store(esr)
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

/// The two parts of the vGIC that guests access by address.
#[derive(Clone, Copy)]
enum Part {
    Distributor,
    Redistributors,
}

/// Performs an access if it hits an emulated device.
pub fn access(vcpu: &mut Vcpu, mmio: &Mmio) -> Done {
    let Some(vm) = vcpu.vm() else {
        return Done::Nothing;
    };
    let offset = mmio.ipa.wrapping_sub(vcpu.ipas.gicd);
    if offset < GICD_SIZE {
        let answer = gic_access(vcpu, vm, Part::Distributor, offset, mmio);
        return Done::of(ExitClass::Gicd, answer);
    }
    let offset = mmio.ipa.wrapping_sub(vcpu.ipas.pl011);
    if offset < pl011::SIZE {
        return uart_access(vcpu, vm, offset, mmio);
    }
    let offset = mmio.ipa.wrapping_sub(vcpu.ipas.gicr);
    if offset < vcpu.ipas.gicr_size {
        let answer = gic_access(vcpu, vm, Part::Redistributors, offset, mmio);
        return Done::of(ExitClass::Gicr, answer);
    }
    let offset = mmio.ipa.wrapping_sub(vcpu.ipas.gicc_dir);
    if offset < PAGE {
        return interface_access(vcpu, offset, mmio);
    }
    if let Some(class) = gppt::access(vcpu, mmio) {
        return Done::Yes(class);
    }
    match timed::access(vcpu, vm, mmio) {
        Done::Nothing => doorbell::access(vcpu, mmio),
        done => done,
    }
}

/// Performs an access to the second page of a GICv2's CPU interface, which has one writable word
/// and nothing else (IHI 0048B.b, 4.4.15).
fn interface_access(vcpu: &mut Vcpu, offset: u64, mmio: &Mmio) -> Done {
    if !mmio.write {
        vcpu.frame.set(mmio.register, 0);
    } else if offset == 0 && mmio.size == 4 {
        let value = mmio.stored(vcpu.frame.get(mmio.register)) as u32;
        if !gppt::deactivate(vcpu, value) {
            deactivate(vcpu, value);
        }
    }
    Done::Yes(ExitClass::Gicd)
}

/// Deactivates an interrupt because the guest writes to ICC_DIR_EL1 or GICC_DIR. The write has an
/// effect in EOImode 1 only.
pub fn deactivate(vcpu: &mut Vcpu, value: u32) {
    if let Some(vm) = vcpu.vm()
        && gic::ends_in_two_steps()
    {
        let whom = vcpu.vgic.deactivate(&vm.dist, &mut vcpu.gic, value);
        vcpu.notify(whom);
    }
}

fn gic_access(vcpu: &mut Vcpu, vm: &Vm, part: Part, offset: u64, mmio: &Mmio) -> Answer {
    let (dist, host, vgic, size) = (&vm.dist, &mut vcpu.gic, &mut vcpu.vgic, mmio.size);
    let (answer, whom) = if mmio.write {
        let value = mmio.stored(vcpu.frame.get(mmio.register));
        match part {
            Part::Distributor => vgic.gicd_write(dist, host, offset, size, value),
            Part::Redistributors => vgic.gicr_write(dist, host, offset, size, value),
        }
    } else {
        match part {
            Part::Distributor => vgic.gicd_read(dist, host, offset, size),
            Part::Redistributors => vgic.gicr_read(dist, host, offset, size),
        }
    };
    vcpu.notify(whom);
    if let Answer::Value(value) = answer
        && !mmio.write
    {
        vcpu.frame.set(mmio.register, mmio.loaded(value));
    }
    answer
}

fn uart_access(vcpu: &mut Vcpu, vm: &Vm, offset: u64, mmio: &Mmio) -> Done {
    let stored = mmio.stored(vcpu.frame.get(mmio.register)) as u32;
    let done = vm.pl011.try_use(|pl011| {
        let (value, effect) = if mmio.write {
            (0, pl011.write(&vm.streams, offset, stored))
        } else {
            pl011.read(&vm.streams, offset)
        };
        // The vGIC learns the level of the line before another vCPU can change it.
        let whom = if effect.line {
            line(vcpu, vm, vcpu.pl011_intid, pl011.line(&vm.streams))
        } else {
            Notify::NOBODY
        };
        (value, effect, whom)
    });
    let Some((value, effect, whom)) = done else {
        return Done::NotYet(ExitClass::Uart);
    };
    if !mmio.write {
        vcpu.frame.set(mmio.register, mmio.loaded(u64::from(value)));
    }
    if effect != Effect::default() {
        uart_changed(vcpu, effect, whom);
    }
    Done::Yes(ExitClass::Uart)
}

/// Passes on the effects of an access to the emulated UART: notifications, and output for the
/// drainer.
#[inline(never)]
fn uart_changed(vcpu: &mut Vcpu, effect: Effect, whom: Notify) {
    vcpu.notify(whom);
    if effect.output {
        output_waits();
    }
}

/// Updates the emulated UART after input has arrived, or when there is room for output again.
pub fn console_event(vcpu: &mut Vcpu) {
    let Some(vm) = vcpu.vm() else { return };
    if vcpu.report.is_some() || vcpu.pl011_intid == 0 {
        return;
    }
    let whom = vm.pl011.try_use(|pl011| {
        pl011.space_again(&vm.streams);
        line(vcpu, vm, vcpu.pl011_intid, pl011.line(&vm.streams))
    });
    match whom {
        Some(whom) => vcpu.notify(whom),
        // Another vCPU is using the UART: try again after whatever this pCPU does next.
        None => mailbox::send(vcpu.id, mailbox::UART),
    }
}

/// Drains some of the console, if this pCPU is the drainer; `received`: the UART may have input.
pub fn drain(vcpu: &mut Vcpu, flush: bool, received: bool) {
    let Some(service) = vcpu.console() else {
        return;
    };
    let next = service.drain(flush, received);
    for (purpose, at) in [
        (Purpose::Flush, next.flush),
        (Purpose::Monitor, next.monitor),
    ] {
        if at.is_some() {
            deadlines::set(vcpu, purpose, at);
        }
    }
}

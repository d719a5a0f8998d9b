//! What EL2 emulates for the VM of this pCPU: which frame an access hits, and what follows from it.

use bulkhead_abi::exit::ExitClass;
use bulkhead_core::exit::{self, Mmio};
use bulkhead_core::pl011::{self, Effect, Pl011};
use bulkhead_core::vgic::{Answer, GICD_SIZE};

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

/// What became of an access.
pub enum Done {
    /// It is done.
    Yes(ExitClass),
    /// Another vCPU has to answer first, or is using the device: the guest repeats it.
    NotYet(ExitClass),
    /// There is nothing.
    Nothing,
}

impl Done {
    fn of(class: ExitClass, answer: Answer) -> Self {
        match answer {
            Answer::Value(_) => Self::Yes(class),
            Answer::Again => Self::NotYet(class),
        }
    }
}

/// A part of the vGIC that guests reach by address.
#[derive(Clone, Copy)]
enum Part {
    Distributor,
    Redistributors,
}

/// Performs an access if something is emulated there.
pub fn access(pcpu: &mut Pcpu, mmio: &Mmio) -> Done {
    let Some(vm) = pcpu.vm() else {
        return Done::Nothing;
    };
    let offset = mmio.ipa.wrapping_sub(pcpu.places.gicd);
    if offset < GICD_SIZE {
        let answer = gic_access(pcpu, vm, Part::Distributor, offset, mmio);
        return Done::of(ExitClass::Gicd, answer);
    }
    let offset = mmio.ipa.wrapping_sub(pcpu.places.pl011);
    if offset < pl011::SIZE {
        return uart_access(pcpu, vm, offset, mmio);
    }
    let offset = mmio.ipa.wrapping_sub(pcpu.places.gicr);
    if offset < pcpu.places.gicr_size {
        let answer = gic_access(pcpu, vm, Part::Redistributors, offset, mmio);
        return Done::of(ExitClass::Gicr, answer);
    }
    Done::Nothing
}

fn gic_access(pcpu: &mut Pcpu, vm: &Vm, part: Part, offset: u64, mmio: &Mmio) -> Answer {
    let (dist, host, vgic, size) = (&vm.dist, &mut pcpu.gic, &mut pcpu.vgic, mmio.size);
    let (answer, whom) = if mmio.write {
        let value = mmio.stored(pcpu.frame.get(mmio.register));
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
    pcpu.notify(whom);
    if let Answer::Value(value) = answer
        && !mmio.write
    {
        pcpu.frame.set(mmio.register, mmio.loaded(value));
    }
    answer
}

fn uart_access(pcpu: &mut Pcpu, vm: &Vm, offset: u64, mmio: &Mmio) -> Done {
    let stored = mmio.stored(pcpu.frame.get(mmio.register)) as u32;
    let done = vm.pl011.try_use(|pl011| {
        let (value, effect) = if mmio.write {
            (0, pl011.write(&vm.streams, offset, stored))
        } else {
            pl011.read(&vm.streams, offset)
        };
        (value, effect, pl011.line(&vm.streams))
    });
    let Some((value, effect, line)) = done else {
        return Done::NotYet(ExitClass::Uart);
    };
    if !mmio.write {
        pcpu.frame
            .set(mmio.register, mmio.loaded(u64::from(value)));
    }
    if effect != Effect::default() {
        uart_changed(pcpu, vm, effect, line);
    }
    Done::Yes(ExitClass::Uart)
}

/// The emulated UART did something that others must know.
#[inline(never)]
fn uart_changed(pcpu: &mut Pcpu, vm: &Vm, effect: Effect, line: bool) {
    if effect.line {
        uart_line(pcpu, vm, line);
    }
    if effect.output {
        output_waits();
    }
}

/// Takes the UART's interrupt line over to the vGIC.
fn uart_line(pcpu: &mut Pcpu, vm: &Vm, up: bool) {
    let whom = pcpu
        .vgic
        .set_line(&vm.dist, &mut pcpu.gic, pcpu.pl011_intid, up);
    pcpu.notify(whom);
}

/// Input came for the emulated UART, or room again for its output.
pub fn console_event(pcpu: &mut Pcpu) {
    let Some(vm) = pcpu.vm() else { return };
    if pcpu.report.is_some() || pcpu.pl011_intid == 0 {
        return;
    }
    let line = vm.pl011.try_use(|pl011| {
        pl011.room_again(&vm.streams);
        pl011.line(&vm.streams)
    });
    match line {
        Some(up) => uart_line(pcpu, vm, up),
        // Another vCPU is just using it: come again after whatever this pCPU does next.
        None => mailbox::send(pcpu.index, mailbox::UART),
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

//! Loads and stores that stage 2 refuses: accesses to emulated devices, and those to nothing.

use bulkhead_abi::exit::ExitClass;
use bulkhead_core::cpu::exit::{self, Mmio};
use bulkhead_core::cpu::inject::Fault;
use bulkhead_core::devices::pl011;
use bulkhead_core::vgic::{GICD_SIZE, Version};

use super::{Exit, rare_beside};
use crate::console::state::output_waits;
use crate::emulated::Done;
use crate::hw::gic;
use crate::hw::sysreg as reg;
use crate::profile::{IO, MANAGED};
use crate::vcpu::Vcpu;
use crate::virtio::{self, Rest};
use crate::{control, devices, doorbell, gppt};

/// Handles a load or store that stage 2 refused.
#[inline(always)]
pub fn data_abort(vcpu: &mut Vcpu, esr: u64) {
    let exit = Exit::begin(esr);
    if exit::is_plain_word(esr)
        && let Some(vm) = vcpu.vm()
    {
        let ipa = fault_ipa();
        let offset = ipa.wrapping_sub(vcpu.ipas.gicd);
        if offset < GICD_SIZE {
            if devices::is_sgir_write(offset, esr) {
                return match devices::sgir_fast(vcpu, vm, esr) {
                    Some(whom) if vcpu.notify_one(whom) => exit.next(vcpu, ExitClass::Sgi),
                    Some(whom) => rare_beside(vcpu, whom, esr, exit.begin, exit.pc),
                    None => gicd_word(vcpu, esr, exit.begin, exit.pc, offset),
                };
            }
            return match devices::gicd_fast(vcpu, vm, offset, esr) {
                Some(()) => exit.next(vcpu, ExitClass::Gicd),
                None => gicd_word(vcpu, esr, exit.begin, exit.pc, offset),
            };
        }
        let offset = ipa.wrapping_sub(vcpu.ipas.pl011);
        if offset < pl011::SIZE {
            if devices::uart_fast(vcpu, vm, offset, esr) {
                return exit.next(vcpu, ExitClass::Uart);
            }
            return uart_access(vcpu, esr, exit.begin, exit.pc, offset);
        }
        let offset = ipa.wrapping_sub(vcpu.ipas.gicr);
        if gic::VIRTUAL == Version::V3 && offset < vcpu.ipas.gicr_size {
            return gicr_word(vcpu, esr, exit.begin, exit.pc, offset);
        }
        let offset = ipa.wrapping_sub(vcpu.ipas.bells);
        if offset < vcpu.ipas.bells_size && exit::is_store(esr) {
            return ring(vcpu, esr, exit.begin, exit.pc, ipa);
        }
        return device_access(vcpu, esr, exit.begin, exit.pc, ipa);
    }
    if IO && exit::is_refused_word(esr) {
        return refused_write(vcpu, esr, exit.begin, exit.pc);
    }
    other_data_abort(vcpu, esr, exit.begin, exit.pc)
}

/// Returns the address of the access; not after a permission fault, which leaves HPFAR_EL2 UNKNOWN.
#[inline(always)]
fn fault_ipa() -> u64 {
    exit::fault_ipa(reg::far(), reg::hpfar())
}

/// Handles a write to a page that the guest may only read. What drivers write for each request needs no stack frame.
#[inline(never)]
fn refused_write(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64) {
    match virtio::write_fast(vcpu, esr, reg::far()) {
        Ok(true) => reg::set_elr(pc.wrapping_add(4)),
        Ok(false) => {}
        Err(Rest::Serve(device)) if MANAGED => return serve_port(vcpu, esr, begin, pc, device),
        Err(rest) => return finish_write(vcpu, esr, begin, pc, rest),
    }
    Exit { begin, pc, esr }.stay(vcpu, ExitClass::Device);
}

/// Handles the write by which a manager tells of a request.
#[inline(never)]
fn serve_port(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64, device: usize) {
    control::serve_at_exit(vcpu, device);
    Exit { begin, pc, esr }.next(vcpu, ExitClass::Device);
}

/// Handles the rest of such a write.
#[inline(never)]
fn finish_write(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64, rest: Rest) {
    // Its address is not known, and no device is at a page that stage 2 maps, if it is none of virtio.
    let done = virtio::write(vcpu, esr, rest);
    finish(vcpu, esr, begin, pc, done)
}

/// Handles an access to a word of the distributor off the fast path.
#[inline(never)]
fn gicd_word(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64, offset: u64) {
    let exit = Exit { begin, pc, esr };
    if devices::is_sgir_write(offset, esr) && devices::sends_beside(vcpu, esr) {
        return exit.next(vcpu, ExitClass::Sgi);
    }
    if devices::gicd_word(vcpu, offset, esr) {
        reg::set_elr(pc.wrapping_add(4));
    }
    exit.stay(vcpu, ExitClass::Gicd);
}

/// Handles an access to a word of the redistributors.
#[inline(never)]
fn gicr_word(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64, offset: u64) {
    if devices::gicr_word(vcpu, offset, esr) {
        reg::set_elr(pc.wrapping_add(4));
    }
    Exit { begin, pc, esr }.stay(vcpu, ExitClass::Gicr);
}

/// Handles a word written where the pages are by which the VM rings.
#[inline(never)]
fn ring(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64, ipa: u64) {
    let done = match doorbell::write_word(vcpu, ipa) {
        Some(done) => done,
        None if IO && virtio::write_bell(vcpu, ipa, esr) => true,
        None => return device_access(vcpu, esr, begin, pc, ipa),
    };
    if done {
        reg::set_elr(pc.wrapping_add(4));
    }
    Exit { begin, pc, esr }.stay(vcpu, ExitClass::Device);
}

/// Handles an access to the emulated UART, of any size, off the fast path. A byte that only goes into the stream needs no stack frame.
#[inline(never)]
fn uart_access(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64, offset: u64) {
    let exit = Exit { begin, pc, esr };
    if offset == pl011::DR
        && exit::is_store(esr)
        && let Some(vm) = vcpu.vm()
        && let Some(tells) = devices::uart_send(vcpu, vm, esr)
    {
        if tells {
            return uart_news(vcpu, esr, begin, pc);
        }
        return exit.next(vcpu, ExitClass::Uart);
    }
    uart_other(vcpu, esr, begin, pc, offset)
}

/// Ends the exit of a byte of which the drainer has to be told.
#[inline(never)]
fn uart_news(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64) {
    output_waits(vcpu.vm.unwrap_or_default());
    Exit { begin, pc, esr }.next_rare(vcpu, ExitClass::Uart);
}

/// Handles any other access to it.
#[inline(never)]
fn uart_other(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64, offset: u64) {
    if devices::uart_access(vcpu, Mmio::at_offset(offset, esr)) {
        reg::set_elr(pc.wrapping_add(4));
    }
    Exit { begin, pc, esr }.stay_rare(vcpu, ExitClass::Uart);
}

/// Handles a data abort that is no plain access to a word.
#[inline(never)]
fn other_data_abort(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64) {
    if IO && exit::is_refused_write(esr) {
        return refused_write(vcpu, esr, begin, pc);
    }
    if !exit::is_mmio(esr) {
        return finish(vcpu, esr, begin, pc, Done::Nothing);
    }
    let ipa = fault_ipa();
    let offset = ipa.wrapping_sub(vcpu.ipas.pl011);
    if offset < pl011::SIZE {
        return uart_access(vcpu, esr, begin, pc, offset);
    }
    device_access(vcpu, esr, begin, pc, ipa)
}

/// Handles an access, of any size, to what is not the UART.
#[inline(never)]
fn device_access(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64, ipa: u64) {
    let done = devices::access(vcpu, Mmio::at_offset(ipa, esr));
    finish(vcpu, esr, begin, pc, done)
}

/// Ends the exit of an access.
#[inline(never)]
fn finish(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64, done: Done) {
    let class = match done {
        Done::Yes(class) => {
            reg::set_elr(pc.wrapping_add(4));
            class
        }
        // The guest repeats the access; pending interrupts come first.
        Done::NotYet(class) => class,
        // Without stage 2 the guest cannot fetch either, so the repeated access comes back as a
        // fetch abort.
        Done::Nothing if gppt::is_gone(vcpu) => ExitClass::ServiceIrq,
        Done::Nothing => return refuse_access(vcpu, esr, begin, pc),
    };
    Exit { begin, pc, esr }.stay(vcpu, class);
}

/// Answers an access to nothing, or one that cannot be emulated, by a data abort of the guest's.
#[inline(never)]
fn refuse_access(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64) {
    let exit = Exit { begin, pc, esr };
    exit.inject(vcpu, ExitClass::DataAbort, Fault::Data(reg::far()));
}

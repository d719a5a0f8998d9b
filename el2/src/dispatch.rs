//! Exits: decode, one match, one place that touches ELR. Reached from the vectors (`hw/vectors.s`)
//! through the functions at the end.

use bulkhead_abi::exit::ExitClass;
use bulkhead_core::exit::{self, DataAbort, SysReg, ec};
use bulkhead_core::inject::{self, Fault};
use bulkhead_core::psci::{self, Call};
use bulkhead_core::report::Reason;
use bulkhead_core::sysreg::{self, Access};

use crate::devices;
use crate::hw::{cpu, gic, sysreg as reg, timer};
use crate::mailbox;
use crate::pcpu::Pcpu;
use crate::stop;

/// How the guest goes on.
pub enum Outcome {
    /// At the same address: an exception that returns behind the instruction by itself.
    Stay,
    /// Behind the instruction.
    Next,
    /// In its exception vector.
    Inject(Fault),
    /// Not at all.
    Stop(Reason),
}

/// A synchronous exit; `esr` is ESR_EL2.
#[inline(always)]
pub fn synchronous(pcpu: &mut Pcpu, esr: u64) {
    let begin = reg::cycles();
    let pc = reg::elr();
    let (class, outcome) = match exit::class(esr) {
        ec::HVC64 => (ExitClass::Hvc, call(pcpu, Outcome::Stay)),
        ec::DATA_LOWER => data_abort(pcpu, esr),
        ec::SYSREG => system_register(pcpu, esr),
        // An SMC that traps leaves ELR at the instruction.
        ec::SMC64 => (ExitClass::Smc, call(pcpu, Outcome::Next)),
        ec::FETCH_LOWER => (
            ExitClass::FetchAbort,
            Outcome::Inject(Fault::Fetch(reg::far())),
        ),
        _ => (ExitClass::Other, Outcome::Inject(Fault::Undefined)),
    };
    let ends = match outcome {
        Outcome::Stay => None,
        Outcome::Next => {
            reg::set_elr(pc.wrapping_add(4));
            None
        }
        Outcome::Inject(fault) => inject(fault, esr),
        Outcome::Stop(reason) => Some(reason),
    };
    pcpu.stats.count(class, begin, reg::cycles(), pc, esr);
    if let Some(reason) = ends {
        stop::stop(pcpu, reason);
    }
}

/// Hands a fault to the guest, or says why it ends the VM.
#[inline(never)]
fn inject(fault: Fault, esr: u64) -> Option<Reason> {
    let before = cpu::before();
    if inject::is_lost(&before, fault) {
        let address = match fault {
            Fault::Data(address) | Fault::Fetch(address) => address,
            Fault::Undefined => 0,
        };
        return Some(Reason::Fault {
            syndrome: esr,
            address,
            pc: before.pc,
            fault: Some(fault),
        });
    }
    cpu::apply(&inject::enter(&before, fault, esr));
    None
}

/// HVC and SMC.
#[inline(always)]
fn call(pcpu: &mut Pcpu, answered: Outcome) -> Outcome {
    let function = pcpu.frame.get(0) as u32;
    let args = [pcpu.frame.get(1), pcpu.frame.get(2), pcpu.frame.get(3)];
    match psci::call(function, args, pcpu.affinity) {
        Call::Answer(x0) => {
            pcpu.frame.set(0, x0);
            answered
        }
        Call::Stop(why) => Outcome::Stop(Reason::Asked(why)),
    }
}

/// A load or store that stage 2 refused.
#[inline(always)]
fn data_abort(pcpu: &mut Pcpu, esr: u64) -> (ExitClass, Outcome) {
    let far = reg::far();
    if let DataAbort::Mmio(mmio) = DataAbort::decode(esr, far, reg::hpfar())
        && let Some(class) = devices::access(pcpu, &mmio)
    {
        return (class, Outcome::Next);
    }
    (ExitClass::DataAbort, Outcome::Inject(Fault::Data(far)))
}

/// An MRS, MSR or maintenance instruction that traps.
#[inline(always)]
fn system_register(pcpu: &mut Pcpu, esr: u64) -> (ExitClass, Outcome) {
    let trapped = SysReg::decode(esr);
    match sysreg::access(trapped.register) {
        Access::Sgi(group1) if !trapped.read => {
            let value = pcpu.frame.get(trapped.gpr);
            if let Some(vm) = pcpu.vm() {
                pcpu.vgic.send_sgi(&vm.dist, &mut pcpu.gic, value, group1);
            }
            return (ExitClass::Sgi, Outcome::Next);
        }
        Access::Id(n) if trapped.read => pcpu.frame.set(trapped.gpr, pcpu.ids.get(n)),
        Access::Fixed(value) => {
            if trapped.read {
                pcpu.frame.set(trapped.gpr, value);
            }
        }
        Access::SetWay => {}
        _ => return (ExitClass::SysReg, Outcome::Inject(Fault::Undefined)),
    }
    (ExitClass::SysReg, Outcome::Next)
}

/// A physical interrupt while the guest ran.
#[inline(always)]
pub fn interrupt(pcpu: &mut Pcpu) {
    let begin = reg::cycles();
    let intid = gic::acknowledge();
    let timer_entry = pcpu.vgic.vtimer_entry();
    let class = if intid == pcpu.vtimer_intid && timer_entry != 0 {
        gic::set_timer_register(timer_entry);
        gic::drop_priority(intid);
        ExitClass::VtimerIrq
    } else {
        handle(pcpu, intid)
    };
    pcpu.stats
        .count(class, begin, reg::cycles(), reg::elr(), u64::from(intid));
}

/// An interrupt other than that of a virtual timer that the guest wants. Also called by a pCPU that has
/// no guest to run.
#[inline(never)]
pub fn handle(pcpu: &mut Pcpu, intid: u32) -> ExitClass {
    if intid >= gic::SPURIOUS {
        return ExitClass::ServiceIrq;
    }
    gic::drop_priority(intid);
    if let Some(vm) = pcpu.vm()
        && let Some(vintid) = vm.behind(intid)
    {
        // The guest deactivates it.
        pcpu.vgic.raise(&vm.dist, &mut pcpu.gic, vintid);
        return ExitClass::DeviceIrq;
    }
    let plan = crate::start::plan();
    let class = if intid == plan.header.board.maintenance_intid {
        if let Some(vm) = pcpu.vm() {
            let ended = gic::ended_list_registers();
            pcpu.vgic.maintain(&vm.dist, &mut pcpu.gic, ended);
        }
        ExitClass::MaintenanceIrq
    } else {
        if intid == gic::KICK {
            let messages = mailbox::take(pcpu.index);
            if messages & mailbox::UART != 0 {
                devices::console_event(pcpu);
            }
            if messages & mailbox::CONSOLE != 0 {
                devices::drain(pcpu, false);
            }
        } else if intid == timer::EL2_TIMER {
            timer::disarm();
            devices::drain(pcpu, true);
        } else if intid == plan.header.board.uart_intid {
            devices::keys(pcpu);
            devices::drain(pcpu, false);
        }
        ExitClass::ServiceIrq
    };
    gic::deactivate(intid);
    class
}

/// An SError while the guest ran: charged to its VM.
pub fn serror(pcpu: &mut Pcpu) {
    let begin = reg::cycles();
    let pc = reg::elr();
    // EC 0x2f: SError.
    let syndrome = 0x2f << 26 | reg::esr() & 0x1ff_ffff;
    pcpu.stats
        .count(ExitClass::Serror, begin, reg::cycles(), pc, syndrome);
    stop::stop(
        pcpu,
        Reason::Fault {
            syndrome,
            address: 0,
            pc,
            fault: None,
        },
    );
}

/// A Group 0 interrupt: nothing in this version sends one.
pub fn fast_interrupt(pcpu: &mut Pcpu) {
    let begin = reg::cycles();
    let intid = gic::acknowledge_group0();
    pcpu.stats.count(
        ExitClass::Other,
        begin,
        reg::cycles(),
        reg::elr(),
        u64::from(intid),
    );
}

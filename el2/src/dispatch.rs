//! Exits: decode, one match, one place that touches ELR. Reached from the vectors (`hw/vectors.s`)
//! through the functions at the end.

use bulkhead_abi::exit::ExitClass;
use bulkhead_core::exit::{self, DataAbort, SysReg, ec};
use bulkhead_core::inject::{self, Fault};
use bulkhead_core::psci;
use bulkhead_core::report::Reason;
use bulkhead_core::sysreg::{self, Access};
use bulkhead_core::vgic::VTIMER;

use crate::calls::{self, After};
use crate::devices::{self, Done};
use crate::hw::gic::{self, Taken};
use crate::hw::{boot, cpu, sysreg as reg};
use crate::pcpu::Pcpu;
use crate::{deadlines, lifecycle, mailbox, timed, watch};

/// An exit under way: when it began and where the guest was. Small and copied, so that it stays in
/// registers; and every exit that is not among the usual ones is a call at the very end, so that the
/// usual ones need no stack.
#[derive(Clone, Copy)]
struct Exit {
    begin: u64,
    pc: u64,
    esr: u64,
}

impl Exit {
    #[inline(always)]
    fn begin(esr: u64) -> Self {
        Self {
            begin: reg::cycles(),
            pc: reg::elr(),
            esr,
        }
    }

    /// Goes on behind the instruction.
    #[inline(always)]
    fn next(self, pcpu: &mut Pcpu, class: ExitClass) {
        reg::set_elr(self.pc.wrapping_add(4));
        self.stay(pcpu, class);
    }

    /// Goes on where ELR is.
    #[inline(always)]
    fn stay(self, pcpu: &mut Pcpu, class: ExitClass) {
        pcpu.stats
            .count(class, self.begin, reg::cycles(), self.pc, self.esr);
    }

    /// Hands a fault to the guest, or stops the VM if its vector cannot take one.
    fn inject(self, pcpu: &mut Pcpu, class: ExitClass, fault: Fault) {
        let before = cpu::before();
        if inject::is_lost(&before, fault) {
            let address = match fault {
                Fault::Data(address) | Fault::Fetch(address) => address,
                Fault::Undefined => 0,
            };
            let (syndrome, pc) = (self.esr, self.pc);
            let reason = Reason::Fault {
                syndrome,
                address,
                pc,
                fault: Some(fault),
            };
            self.stay(pcpu, class);
            lifecycle::crash(pcpu, reason)
        }
        cpu::apply(&inject::enter(&before, fault, self.esr));
        self.stay(pcpu, class);
    }
}

/// A synchronous exit that is no access; `esr` is ESR_EL2, and `class` its EC.
#[inline(always)]
pub fn synchronous(pcpu: &mut Pcpu, esr: u64, class: u64) {
    let exit = Exit::begin(esr);
    if class == ec::HVC64 && pcpu.frame.get(0) as u32 == psci::PSCI_VERSION {
        pcpu.frame.set_x0(psci::VERSION_PSCI);
        return exit.stay(pcpu, ExitClass::Hvc);
    }
    other_synchronous(pcpu, exit.esr, exit.begin, exit.pc)
}

#[inline(never)]
fn other_synchronous(pcpu: &mut Pcpu, esr: u64, begin: u64, pc: u64) {
    let exit = Exit { begin, pc, esr };
    match exit::class(exit.esr) {
        ec::HVC64 => call(pcpu, exit, ExitClass::Hvc),
        ec::SMC64 => call(pcpu, exit, ExitClass::Smc),
        ec::FETCH_LOWER => exit.inject(pcpu, ExitClass::FetchAbort, Fault::Fetch(reg::far())),
        _ => exit.inject(pcpu, ExitClass::Other, Fault::Undefined),
    }
}

/// HVC and SMC.
fn call(pcpu: &mut Pcpu, exit: Exit, class: ExitClass) {
    let smc = class == ExitClass::Smc;
    match calls::perform(pcpu, smc) {
        // An SMC that traps leaves ELR at the instruction, an HVC behind it.
        After::Return if smc => exit.next(pcpu, class),
        After::Return => exit.stay(pcpu, class),
        After::End(end) => {
            exit.stay(pcpu, class);
            lifecycle::end(pcpu, end)
        }
        After::Off => {
            exit.stay(pcpu, class);
            lifecycle::leave(pcpu)
        }
    }
}

/// A load or store that stage 2 refused.
#[inline(always)]
pub fn data_abort(pcpu: &mut Pcpu, esr: u64) {
    let exit = Exit::begin(esr);
    let (far, hpfar) = (reg::far(), reg::hpfar());
    if exit::is_plain_word(esr)
        && let Some(vm) = pcpu.vm()
        && let Some(class) = devices::usual(pcpu, vm, exit::fault_ipa(far, hpfar), esr)
    {
        return exit.next(pcpu, class);
    }
    if devices::is_sgir_write(pcpu, exit::fault_ipa(far, hpfar), esr) {
        return sgir_write(pcpu, esr, exit.begin, exit.pc);
    }
    other_data_abort(pcpu, esr, exit.begin, exit.pc)
}

/// A write of GICD_SGIR that is not the usual one.
#[inline(never)]
fn sgir_write(pcpu: &mut Pcpu, esr: u64, begin: u64, pc: u64) {
    if devices::sends_beside(pcpu, esr) {
        return Exit { begin, pc, esr }.next(pcpu, ExitClass::Sgi);
    }
    other_data_abort(pcpu, esr, begin, pc)
}

#[inline(never)]
fn other_data_abort(pcpu: &mut Pcpu, esr: u64, begin: u64, pc: u64) {
    let exit = Exit { begin, pc, esr };
    let (far, hpfar) = (reg::far(), reg::hpfar());
    if let DataAbort::Mmio(mmio) = DataAbort::decode(exit.esr, far, hpfar) {
        match devices::access(pcpu, &mmio) {
            Done::Yes(class) => return exit.next(pcpu, class),
            // The guest repeats it; what else is pending comes first.
            Done::NotYet(class) => return exit.stay(pcpu, class),
            Done::Nothing => {}
        }
    }
    exit.inject(pcpu, ExitClass::DataAbort, Fault::Data(far));
}

/// An MRS, MSR or maintenance instruction that traps.
#[inline(always)]
pub fn system_register(pcpu: &mut Pcpu, esr: u64) {
    let exit = Exit::begin(esr);
    let trapped = SysReg::decode(esr);
    if trapped.register == sysreg::ICC_SGI1R
        && !trapped.read
        && let Some(vm) = pcpu.vm()
        && let Some(whom) =
            pcpu.vgic
                .send_sgi_usual(&vm.dist, &mut pcpu.gic, pcpu.frame.get(trapped.gpr))
    {
        pcpu.notify_one(whom);
        return exit.next(pcpu, ExitClass::Sgi);
    }
    other_system_register(pcpu, esr, exit.begin, exit.pc)
}

#[inline(never)]
fn other_system_register(pcpu: &mut Pcpu, esr: u64, begin: u64, pc: u64) {
    let exit = Exit { begin, pc, esr };
    let trapped = SysReg::decode(exit.esr);
    if trapped.register == sysreg::ICC_SGI1R
        && !trapped.read
        && let Some(vm) = pcpu.vm()
        && pcpu
            .vgic
            .send_sgi_beside(&vm.dist, &mut pcpu.gic, pcpu.frame.get(trapped.gpr))
    {
        return exit.next(pcpu, ExitClass::Sgi);
    }
    match access_register(pcpu, trapped) {
        Some(class) => exit.next(pcpu, class),
        None => exit.inject(pcpu, ExitClass::SysReg, Fault::Undefined),
    }
}

fn send_sgi(pcpu: &mut Pcpu, value: u64, group1: bool) {
    if let Some(vm) = pcpu.vm() {
        let whom = pcpu.vgic.send_sgi(&vm.dist, &mut pcpu.gic, value, group1);
        pcpu.notify(whom);
    }
}

/// Performs an access to a register; `None` if the guest has no business with it.
fn access_register(pcpu: &mut Pcpu, trapped: SysReg) -> Option<ExitClass> {
    match sysreg::access(trapped.register) {
        Access::Sgi(group1) if !trapped.read => {
            let value = pcpu.frame.get(trapped.gpr);
            send_sgi(pcpu, value, group1);
            return Some(ExitClass::Sgi);
        }
        Access::Deactivate if !trapped.read => {
            let value = pcpu.frame.get(trapped.gpr) as u32;
            devices::deactivate(pcpu, value);
        }
        Access::Id(n) if trapped.read => pcpu.frame.set(trapped.gpr, pcpu.ids.get(n)),
        Access::Fixed(value) => {
            if trapped.read {
                pcpu.frame.set(trapped.gpr, value);
            }
        }
        Access::PhysicalTimer(register) => {
            timed::access_physical(pcpu, register, trapped.read, trapped.gpr);
        }
        Access::SetWay => {}
        _ => return None,
    }
    Some(ExitClass::SysReg)
}

/// A physical interrupt while the guest ran.
#[inline(always)]
pub fn interrupt(pcpu: &mut Pcpu) {
    let begin = reg::cycles();
    let taken = gic::acknowledge();
    let intid = taken.intid();
    let timer_entry = pcpu.vgic.vtimer_entry();
    let exit = |esr| Exit {
        begin,
        pc: reg::elr(),
        esr,
    };
    if intid == pcpu.vtimer_intid && timer_entry != 0 {
        gic::set_timer_register(timer_entry);
        gic::drop_priority(taken);
        return exit(u64::from(intid)).stay(pcpu, ExitClass::VtimerIrq);
    }
    if intid == gic::SIBLING
        && let Some(vm) = pcpu.vm()
    {
        gic::drop_priority(taken);
        gic::deactivate(taken);
        if !pcpu.vgic.look_usual(&vm.dist, &mut pcpu.gic) {
            return look_closer(pcpu, begin);
        }
        return exit(u64::from(intid)).stay(pcpu, ExitClass::SiblingIrq);
    }
    if let Some(vm) = pcpu.vm()
        && pcpu.vgic.raise_usual(&vm.dist, &mut pcpu.gic, intid)
    {
        // The guest deactivates it.
        gic::drop_priority(taken);
        return exit(u64::from(intid)).stay(pcpu, ExitClass::DeviceIrq);
    }
    boot::handle_rare_interrupt(pcpu, begin, taken)
}

/// What a sibling has left is more than one SGI.
#[inline(never)]
fn look_closer(pcpu: &mut Pcpu, begin: u64) {
    if let Some(vm) = pcpu.vm() {
        let whom = pcpu.vgic.look(&vm.dist, &mut pcpu.gic);
        pcpu.notify(whom);
    }
    Exit {
        begin,
        pc: reg::elr(),
        esr: u64::from(gic::SIBLING),
    }
    .stay(pcpu, ExitClass::SiblingIrq);
}

/// An interrupt that is none of the usual ones.
pub fn other_interrupt(pcpu: &mut Pcpu, begin: u64, taken: Taken) {
    let class = handle(pcpu, taken);
    Exit {
        begin,
        pc: reg::elr(),
        esr: u64::from(taken.intid()),
    }
    .stay(pcpu, class);
    if pcpu.power_event {
        lifecycle::attend(pcpu);
    }
}

/// An interrupt other than that of a virtual timer that the guest wants. Also called by a pCPU that has
/// no guest to run.
#[inline(never)]
pub fn handle(pcpu: &mut Pcpu, taken: Taken) -> ExitClass {
    let intid = taken.intid();
    if taken.is_nothing() {
        return ExitClass::ServiceIrq;
    }
    gic::drop_priority(taken);
    if let Some(vm) = pcpu.vm()
        && let Some(vintid) = vm.behind(intid)
    {
        // The guest deactivates it.
        let whom = pcpu.vgic.raise(&vm.dist, &mut pcpu.gic, vintid);
        pcpu.notify(whom);
        return ExitClass::DeviceIrq;
    }
    let board = &crate::start::plan().header.board;
    // The timers of a VM: its own physical one, and the virtual one while the guest does not want its
    // interrupt. It waits, active on the board, and the guest deactivates it.
    let timer = if intid == pcpu.vtimer_intid {
        Some((VTIMER, ExitClass::VtimerIrq))
    } else if intid == board.ptimer_intid {
        Some((timed::PHYSICAL_TIMER, ExitClass::DeviceIrq))
    } else {
        None
    };
    if let Some((vintid, class)) = timer
        && pcpu.runs
        && let Some(vm) = pcpu.vm()
    {
        let whom = pcpu.vgic.raise(&vm.dist, &mut pcpu.gic, vintid);
        pcpu.notify(whom);
        return class;
    }
    let mut class = ExitClass::ServiceIrq;
    if intid == board.maintenance_intid {
        if let Some(vm) = pcpu.vm() {
            let whom = pcpu.vgic.maintain(&vm.dist, &mut pcpu.gic);
            pcpu.notify(whom);
        }
        class = ExitClass::MaintenanceIrq;
    } else if intid == gic::SIBLING {
        // Of a vCPU that does not run now; it looks when it starts.
        if pcpu.runs
            && let Some(vm) = pcpu.vm()
        {
            let whom = pcpu.vgic.look(&vm.dist, &mut pcpu.gic);
            pcpu.notify(whom);
        }
        class = ExitClass::SiblingIrq;
    } else if intid == gic::KICK {
        let messages = mailbox::take(pcpu.index);
        if messages & mailbox::UART != 0 {
            devices::console_event(pcpu);
        }
        if messages & mailbox::CONSOLE != 0 {
            devices::drain(pcpu, false);
        }
        if messages & mailbox::TIMED != 0 {
            timed::look(pcpu);
        }
        if messages & mailbox::MONITOR != 0 {
            watch::answer(pcpu);
            devices::output_waits();
        }
        if messages & mailbox::POWER != 0 {
            pcpu.power_event = true;
        }
    } else if intid == board.hyp_timer_intid {
        deadlines::serve(pcpu);
    } else if intid == board.uart_intid {
        devices::keys(pcpu);
        devices::drain(pcpu, false);
    }
    gic::deactivate(taken);
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
    lifecycle::crash(
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

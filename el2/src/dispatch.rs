//! Exits: decode, one match, one place that touches ELR. The vectors (`hw/vectors.s`) call the
//! functions here through `entry`.

use bulkhead_abi::exit::ExitClass;
use bulkhead_core::console::report::Reason;
use bulkhead_core::cpu::exit::{self, SysReg, Wait, ec};
use bulkhead_core::cpu::inject::{self, Fault};
use bulkhead_core::cpu::sysreg::{self, Access};
use bulkhead_core::vgic::{self, Notify, VTIMER};

mod aborts;

pub use aborts::data_abort;

use crate::calls::{self, After};
use crate::hw::gic::{self, Taken};
use crate::hw::{cpu, sysreg as reg, timer, upcall};
use crate::plan::{self, plan};
use crate::profile::IO;
use crate::vcpu::Vcpu;
use crate::{debug, deliver, devices, gppt, lifecycle, pmu, sched, timed};

// Where managers are told the registers of vCPUs, exits that may end a life go by way of `hw/rare.s`.
#[cfg(not(feature = "managed"))]
use self::{notify_beside as rare_beside, other_synchronous as rare_synchronous};
#[cfg(feature = "managed")]
use crate::hw::upcall::{
    handle_rare_beside as rare_beside, handle_rare_synchronous as rare_synchronous,
};

/// An exit under way: when it began and where the guest was. Small and copied, so that it stays in
/// registers. Every exit off the fast path is a tail call, so that the fast path needs no stack.
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

    /// Resumes the guest after the instruction.
    #[inline(always)]
    fn next(self, vcpu: &mut Vcpu, class: ExitClass) {
        reg::set_elr(self.pc.wrapping_add(4));
        self.stay(vcpu, class);
    }

    /// Resumes the guest where ELR points.
    #[inline(always)]
    fn stay(self, vcpu: &mut Vcpu, class: ExitClass) {
        vcpu.stats
            .count(class, self.begin, reg::cycles(), self.pc, self.esr);
    }

    /// Resumes the guest like [`Self::next`], by a call.
    fn next_rare(self, vcpu: &mut Vcpu, class: ExitClass) {
        reg::set_elr(self.pc.wrapping_add(4));
        self.stay_rare(vcpu, class);
    }

    /// Resumes the guest like [`Self::stay`], by a call: for exits so rare that they share the code.
    #[inline(never)]
    fn stay_rare(self, vcpu: &mut Vcpu, class: ExitClass) {
        self.stay(vcpu, class);
    }

    /// Injects a fault into the guest, or stops the VM if its vector cannot take one.
    fn inject(self, vcpu: &mut Vcpu, class: ExitClass, fault: Fault) {
        let before = cpu::before();
        if inject::is_lost(&before, fault) {
            let (syndrome, pc) = (self.esr, self.pc);
            let reason = Reason::Fault {
                syndrome,
                address: fault.address(),
                pc,
                fault: Some(fault),
            };
            self.stay_rare(vcpu, class);
            lifecycle::crash(vcpu, reason)
        }
        cpu::apply(&inject::enter(&before, fault, self.esr));
        self.stay_rare(vcpu, class);
    }
}

/// Handles a synchronous exit other than an access; `esr` is ESR_EL2, and `class` its EC.
#[inline(always)]
pub fn synchronous(vcpu: &mut Vcpu, esr: u64, class: u64) {
    let exit = Exit::begin(esr);
    if class == ec::HVC64 {
        if calls::answer_at_once(vcpu) {
            return exit.stay(vcpu, ExitClass::Hvc);
        }
    } else if gppt::was_revoked(vcpu, class) {
        return upcall::handle_rare_interrupt(vcpu, exit.begin, Taken::NOTHING);
    }
    rare_synchronous(vcpu, exit.esr, exit.begin, exit.pc)
}

/// Handles a synchronous exit off the fast path.
#[inline(never)]
pub fn other_synchronous(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64) {
    let class = exit::class(esr);
    if class == ec::WFX {
        return wait(vcpu, esr, begin, pc);
    }
    let exit = Exit { begin, pc, esr };
    match class {
        ec::HVC64 => call(vcpu, exit, ExitClass::Hvc),
        ec::SMC64 => call(vcpu, exit, ExitClass::Smc),
        ec::FETCH_LOWER => exit.inject(vcpu, ExitClass::FetchAbort, Fault::Fetch(reg::far())),
        _ => exit.inject(vcpu, ExitClass::Other, Fault::Undefined),
    }
}

/// Handles WFI and WFE that trap, which depends on the turn of the vCPU.
#[inline(never)]
fn wait(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64) {
    Exit { begin, pc, esr }.next(vcpu, ExitClass::Wfx);
    let waits = Wait::decode(esr);
    if waits == Wait::Interrupt {
        if vcpu.gppt.is_some() && gppt::wait(vcpu) {
            return;
        }
        sched::wait(vcpu);
        if vcpu.exit_work {
            lifecycle::do_exit_work(vcpu);
        }
    } else if waits == Wait::Event {
        sched::yield_cpu(vcpu);
    }
}

/// Handles HVC and SMC.
fn call(vcpu: &mut Vcpu, exit: Exit, class: ExitClass) {
    let smc = class == ExitClass::Smc;
    let after = calls::perform(vcpu, smc);
    // A trapped SMC leaves ELR at the instruction, an HVC after it.
    if smc {
        reg::set_elr(exit.pc.wrapping_add(4));
    }
    exit.stay_rare(vcpu, class);
    match after {
        After::Return => {}
        After::Yield => sched::yield_cpu(vcpu),
        After::End(end) => lifecycle::end(vcpu, end),
        After::Off => lifecycle::leave(vcpu),
    }
}

/// Handles an MRS, MSR or maintenance instruction that traps.
#[inline(always)]
pub fn system_register(vcpu: &mut Vcpu, esr: u64) {
    let exit = Exit::begin(esr);
    let trapped = SysReg::decode(esr);
    if trapped.register == sysreg::ICC_SGI1R
        && !trapped.read
        && let Some(vm) = vcpu.vm()
        && let Some(whom) =
            vcpu.vgic
                .send_sgi_fast(&vm.dist, &mut vcpu.gic, vcpu.frame.get(trapped.gpr))
    {
        if !vcpu.notify_one(whom) {
            return rare_beside(vcpu, whom, esr, exit.begin, exit.pc);
        }
        return exit.next(vcpu, ExitClass::Sgi);
    }
    if trapped.register == sysreg::ICC_SGI1R && !trapped.read {
        return sgi_register(vcpu, esr, exit.begin, exit.pc);
    }
    if trapped.read
        && let Some(n) = sysreg::id_register(trapped.register)
    {
        vcpu.frame.set(trapped.gpr, vcpu.ids.get(n));
        return exit.next(vcpu, ExitClass::SysReg);
    }
    other_system_register(vcpu, esr, exit.begin, exit.pc)
}

/// Handles the end of an SGI to a sibling on this pCPU, or of one that an SPI replaces.
#[inline(never)]
pub fn notify_beside(vcpu: &mut Vcpu, whom: Notify, esr: u64, begin: u64, pc: u64) {
    sched::notify_one(vcpu, whom);
    Exit { begin, pc, esr }.next(vcpu, ExitClass::Sgi);
    if vcpu.exit_work {
        lifecycle::do_exit_work(vcpu);
    }
}

/// Handles a write of ICC_SGI1R_EL1 off the fast path.
#[inline(never)]
fn sgi_register(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64) {
    let value = vcpu.frame.get(SysReg::decode(esr).gpr);
    let done = gppt::send_sgi(vcpu, value, true)
        || vcpu
            .vm()
            .is_some_and(|vm| vcpu.vgic.send_sgi_beside(&vm.dist, &mut vcpu.gic, value));
    if !done {
        send_virtual_sgi(vcpu, value, true);
    }
    Exit { begin, pc, esr }.next(vcpu, ExitClass::Sgi);
}

#[inline(never)]
fn other_system_register(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64) {
    let exit = Exit { begin, pc, esr };
    let trapped = SysReg::decode(exit.esr);
    match access_register(vcpu, trapped) {
        Some(class) => exit.next_rare(vcpu, class),
        None if IO && pmu::is_refused(vcpu, trapped) => {
            exit.inject(vcpu, ExitClass::SysReg, Fault::Trapped);
        }
        None => exit.inject(vcpu, ExitClass::SysReg, Fault::Undefined),
    }
}

#[inline(never)]
fn send_virtual_sgi(vcpu: &mut Vcpu, value: u64, group1: bool) {
    vcpu.change_interrupts(|vgic, dist, host| vgic.send_sgi(dist, host, value, group1));
}

/// Performs an access to a register, no read of an ID register; `None` if the guest must not access it.
fn access_register(vcpu: &mut Vcpu, trapped: SysReg) -> Option<ExitClass> {
    if IO && let Some(done) = debug::access(vcpu, trapped) {
        return done.then_some(ExitClass::SysReg);
    }
    if IO && let Some(done) = pmu::access(vcpu, trapped) {
        return done.then_some(ExitClass::SysReg);
    }
    match sysreg::access(trapped.register) {
        Access::Sgi(group1) if !trapped.read => {
            let value = vcpu.frame.get(trapped.gpr);
            if !gppt::send_sgi(vcpu, value, group1) {
                send_virtual_sgi(vcpu, value, group1);
            }
            return Some(ExitClass::Sgi);
        }
        Access::Deactivate if !trapped.read => {
            let value = vcpu.frame.get(trapped.gpr) as u32;
            if !gppt::deactivate(vcpu, value) {
                devices::deactivate(vcpu, value);
            }
        }
        Access::Common(which) => {
            if !gppt::common(vcpu, which, trapped.read, trapped.gpr) {
                return None;
            }
        }
        Access::Fixed(value) => {
            if trapped.read {
                vcpu.frame.set(trapped.gpr, value);
            }
        }
        Access::PhysicalTimer(register) => {
            timed::access_physical(vcpu, register, trapped.read, trapped.gpr);
        }
        Access::SetWay => {}
        _ => return None,
    }
    Some(ExitClass::SysReg)
}

/// Handles a physical interrupt that arrived while the guest ran.
#[inline(always)]
pub fn interrupt(vcpu: &mut Vcpu) {
    let begin = reg::cycles();
    let taken = gic::acknowledge();
    let intid = taken.intid();
    let timer_entry = vcpu.vgic.vtimer_entry();
    let exit = |esr| Exit {
        begin,
        pc: reg::elr(),
        esr,
    };
    if intid == vcpu.vtimer_intid && timer_entry != 0 {
        gic::set_timer_register(timer_entry);
        gic::drop_priority(taken);
        return exit(u64::from(intid)).stay(vcpu, ExitClass::VtimerIrq);
    }
    if intid == vcpu.sibling_intid
        && let Some(vm) = vcpu.vm()
    {
        gic::order_acknowledge();
        gic::drop_priority(taken);
        gic::deactivate(taken);
        if !vcpu.vgic.on_notify_fast(&vm.dist, &mut vcpu.gic) {
            return look_closer(vcpu, begin);
        }
        return exit(u64::from(intid)).stay(vcpu, ExitClass::SiblingIrq);
    }
    if let Some(vm) = vcpu.vm()
        && vcpu.vgic.raise_fast(&vm.dist, &mut vcpu.gic, intid)
    {
        // The guest deactivates it.
        gic::drop_priority(taken);
        return exit(u64::from(intid)).stay(vcpu, ExitClass::DeviceIrq);
    }
    upcall::handle_rare_interrupt(vcpu, begin, taken)
}

/// Handles a notification by a sibling that is more than one SGI.
#[inline(never)]
fn look_closer(vcpu: &mut Vcpu, begin: u64) {
    vcpu.change_interrupts(vgic::Cpu::on_notify_slow);
    Exit {
        begin,
        pc: reg::elr(),
        esr: u64::from(gic::SIBLING),
    }
    .stay(vcpu, ExitClass::SiblingIrq);
}

/// Handles an interrupt off the fast path. EL2's timer comes first, because turns end with it.
#[inline(always)]
pub fn rare_interrupt(vcpu: &mut Vcpu, begin: u64, taken: Taken) {
    if taken.intid() != vcpu.hyp_timer_intid {
        return other_interrupt(vcpu, begin, taken);
    }
    gic::drop_priority(taken);
    let now = timer::now_at_exit();
    if !sched::is_over(vcpu, now) {
        return deadline(vcpu, begin, taken, now);
    }
    gic::deactivate(taken);
    let exit = Exit {
        begin,
        pc: reg::elr(),
        esr: u64::from(taken.intid()),
    };
    exit.stay(vcpu, ExitClass::ServiceIrq);
    sched::end_turn(vcpu, now);
}

/// Handles EL2's timer, which fired at `now` for more than the end of a turn.
#[inline(never)]
fn deadline(vcpu: &mut Vcpu, begin: u64, taken: Taken, now: u64) {
    deliver::due(vcpu, now);
    gic::deactivate(taken);
    finish_interrupt(vcpu, begin, taken, ExitClass::ServiceIrq);
}

/// Ends the exit of an interrupt off the fast path.
#[inline(never)]
fn finish_interrupt(vcpu: &mut Vcpu, begin: u64, taken: Taken, class: ExitClass) {
    let exit = Exit {
        begin,
        pc: reg::elr(),
        esr: u64::from(taken.intid()),
    };
    exit.stay(vcpu, class);
    if vcpu.exit_work {
        lifecycle::do_exit_work(vcpu);
    }
}

#[inline(never)]
fn other_interrupt(vcpu: &mut Vcpu, begin: u64, taken: Taken) {
    let class = handle(vcpu, taken);
    finish_interrupt(vcpu, begin, taken, class);
}

/// Handles an interrupt other than that of a virtual timer that the guest has enabled. Threads
/// without a guest call it too.
#[inline(never)]
pub fn handle(vcpu: &mut Vcpu, taken: Taken) -> ExitClass {
    let intid = taken.intid();
    if taken.is_nothing() {
        gppt::finish_revoke(vcpu);
        return ExitClass::ServiceIrq;
    }
    gic::order_acknowledge();
    // A Group 0 interrupt has been ended already, when it was acknowledged.
    if !vcpu.group0 {
        gic::drop_priority(taken);
    }
    let board = &plan().header.board;
    if intid == board.hyp_timer_intid {
        deliver::due(vcpu, timer::now());
        if !vcpu.group0 {
            gic::deactivate(taken);
        }
        return ExitClass::ServiceIrq;
    }
    if let Some(vm) = vcpu.vm()
        && let Some(vintid) = vm.vintid_of(intid)
    {
        // The guest deactivates it.
        vcpu.change_interrupts(|vgic, dist, host| vgic.raise(dist, host, vintid));
        return ExitClass::DeviceIrq;
    }
    if intid >= 32 && sched::on_spi(vcpu, intid) {
        return ExitClass::DeviceIrq;
    }
    // The timers of a VM: its physical timer, if it has it to itself, and the virtual timer while
    // the guest has its interrupt disabled. The interrupt stays active on the board until the guest
    // deactivates it.
    let timer = if intid == vcpu.vtimer_intid {
        Some((VTIMER, ExitClass::VtimerIrq))
    } else if intid == board.ptimer_intid {
        Some((plan::PHYSICAL_TIMER, ExitClass::DeviceIrq))
    } else {
        None
    };
    if let Some((vintid, class)) = timer
        && vcpu.runs
    {
        vcpu.change_interrupts(|vgic, dist, host| vgic.raise(dist, host, vintid));
        return class;
    }
    let intid = gic::gppt::meaning(vcpu.index, intid);
    let mut class = ExitClass::ServiceIrq;
    if intid == board.maintenance_intid {
        vcpu.change_interrupts(vgic::Cpu::handle_maintenance);
        class = ExitClass::MaintenanceIrq;
    } else if intid == gic::SIBLING {
        // If the SGI is for a vCPU that does not run here now, that vCPU looks when it is loaded.
        if vcpu.runs {
            vcpu.change_interrupts(vgic::Cpu::on_notify);
        }
        sched::on_sibling_sgi(vcpu);
        class = ExitClass::SiblingIrq;
    } else if matches!(intid, gic::KICK | gic::GPPT_KICK) {
        upcall::deliver_mail(vcpu);
        sched::on_mail(vcpu);
    } else if intid == board.uart_intid {
        devices::drain(vcpu, false, true);
    } else if IO && pmu::is_overflow(vcpu.index, intid) {
        // Its level is low before it is deactivated.
        pmu::overflowed(vcpu);
    }
    if !vcpu.group0 {
        gic::deactivate(taken);
    }
    class
}

/// Handles an SError while the guest ran: its VM crashes.
pub fn serror(vcpu: &mut Vcpu) {
    lifecycle::crash_by_serror(vcpu, reg::esr())
}

/// Handles a FIQ: a Group 0 interrupt of EL2's on the pCPU of a GPPT VM, or an event of the
/// firmware there.
pub fn fast_interrupt(vcpu: &mut Vcpu) {
    let begin = reg::cycles();
    let taken = gppt::acknowledge(vcpu);
    upcall::handle_rare_interrupt(vcpu, begin, taken)
}

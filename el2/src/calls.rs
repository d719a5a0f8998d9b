//! HVC and SMC: PSCI, calls to Bulkhead itself, and the firmware calls that the plan allows a VM.
//! The answer to every other call is "not supported".

use core::sync::atomic::Ordering;

use bulkhead_abi::call;
use bulkhead_core::cpu::power::{Refused, Start, State};
use bulkhead_core::cpu::psci::{self, Call, answer};
use bulkhead_core::cpu::{answers, smccc, trng};

use bulkhead_core::cpu::power::End;

use crate::hw::firmware;
use crate::plan::{self, plan};
use crate::vcpu::Vcpu;
use crate::{gppt, mailbox, random, vm};

/// The action that follows a call.
pub enum After {
    /// The guest goes on.
    Return,
    /// The VM ends.
    End(End),
    /// The vCPU goes off.
    Off,
    /// The vCPU yields: others run before the guest goes on.
    Yield,
}

/// Answers the call in the guest's registers, if that can be done at once: see
/// [`answers::at_once`].
#[inline(always)]
pub fn answer_at_once(vcpu: &mut Vcpu) -> bool {
    let (function, x1) = (vcpu.frame.get(0) as u32, vcpu.frame.get(1));
    let frame = &mut vcpu.frame;
    answers::at_once(
        function,
        x1,
        &vcpu.workarounds,
        vcpu.stolen_at,
        |register, value| match register {
            0 => frame.set_x0(value),
            _ => frame.set(register, value),
        },
    )
}

/// Performs the call in the guest's registers. `smc`: by SMC, else by HVC.
pub fn perform(vcpu: &mut Vcpu, smc: bool) -> After {
    let function = vcpu.frame.get(0) as u32;
    if smc && is_allowed(vcpu, function) {
        forward(vcpu);
        return After::Return;
    }
    if smc && answer_at_once(vcpu) || convention(vcpu, function) {
        return After::Return;
    }
    let mut args = [vcpu.frame.get(1), vcpu.frame.get(2), vcpu.frame.get(3)];
    gppt::rename(vcpu, function, &mut args);
    let x0 = match psci::call(function, args, vcpu.vcpus) {
        Call::Answer(answer::NOT_SUPPORTED) if function == call::CALL_YIELD => {
            vcpu.frame.set_x0(0);
            return After::Yield;
        }
        Call::Answer(answer::NOT_SUPPORTED) if bulkhead_call(vcpu, function) => {
            return After::Return;
        }
        Call::Answer(x0) => x0,
        Call::Off => return After::End(End::Off),
        Call::Reset => return After::End(End::Reset),
        Call::CpuOff => return After::Off,
        Call::CpuOn {
            target,
            entry,
            context,
        } => switch_on(vcpu, target, Start { entry, context }),
        // DEN0022E, 5.7.1: ON, OFF, ON_PENDING.
        Call::Affinity(target) => match vcpu.vm().map(|vm| vm.life.power.state(target)) {
            Some(State::On) => 0,
            Some(State::Off) | None => 1,
            Some(State::Claimed | State::Pending) => 2,
        },
    };
    vcpu.frame.set_x0(x0);
    After::Return
}

/// Performs the workarounds of the SMC calling convention, and calls for random numbers; `false` if
/// the call is neither.
fn convention(vcpu: &mut Vcpu, function: u32) -> bool {
    let x1 = vcpu.frame.get(1);
    match vcpu.workarounds.call(function, x1) {
        Some(smccc::Call::Answer(x0)) => {
            vcpu.frame.set_x0(x0);
            return true;
        }
        Some(smccc::Call::PassOn) => {
            vcpu.frame.set_x0(firmware::call(function, x1));
            return true;
        }
        None => {}
    }
    let generator = vcpu.generator.as_mut();
    let Some(answers) = trng::call(function, x1, generator, random::next_block) else {
        return false;
    };
    for (register, value) in [0, 1, 2, 3].into_iter().zip(answers) {
        vcpu.frame.set(register, value);
    }
    true
}

/// Performs CPU_ON and returns x0.
fn switch_on(vcpu: &mut Vcpu, target: usize, start: Start) -> u64 {
    let (Some(vm), Some(index)) = (vcpu.vm(), vcpu.vm) else {
        return answer::INVALID_PARAMETERS;
    };
    if !start.entry.is_multiple_of(4) || plan::physical(index, start.entry).is_none() {
        return answer::INVALID_ADDRESS;
    }
    match vm.life.power.switch_on(target, vcpu.vcpus, start) {
        Ok(()) => {
            if let Some(id) = vm::id_of(index, target) {
                mailbox::send(id, mailbox::POWER);
            }
            0
        }
        Err(Refused::Absent) => answer::INVALID_PARAMETERS,
        Err(Refused::On) => answer::ALREADY_ON,
        Err(Refused::Pending) => answer::ON_PENDING,
    }
}

/// Performs those calls to Bulkhead itself that are not answered at once; `false` if the call is
/// none.
fn bulkhead_call(vcpu: &mut Vcpu, function: u32) -> bool {
    let answers = match function {
        call::CALL_REVISION => [
            u64::from(call::REVISION[0]),
            u64::from(call::REVISION[1]),
            0,
            0,
        ],
        call::CALL_EVENT => event(vcpu),
        _ => return false,
    };
    for (register, value) in [0, 1, 2, 3].into_iter().zip(answers) {
        vcpu.frame.set(register, value);
    }
    true
}

/// Returns the next VM that has ended and whose end this VM has not been told yet.
fn event(vcpu: &Vcpu) -> [u64; 4] {
    let none = [call::EVENT_NONE, 0, 0, 0];
    let Some(vm) = vcpu.vm() else { return none };
    let events = vm.events.load(Ordering::Acquire);
    let index = events.trailing_zeros();
    let bit = 1u64.wrapping_shl(index);
    let Some(row) = plan().vms.get(index as usize) else {
        return none;
    };
    // Another vCPU may have taken the event in the meantime.
    if vm.events.fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
        return none;
    }
    let name = u128::from_le_bytes(row.name);
    let why = vm::vm(index as usize).life.last_end();
    [0, name as u64, (name >> 64) as u64, why as u64]
}

/// Whether the plan lets this VM make the SMC.
fn is_allowed(vcpu: &Vcpu, function: u32) -> bool {
    vcpu.vm.is_some_and(|vm| {
        let calls = plan().calls_of(vm);
        calls.iter().any(|call| call.function == function)
    })
}

/// Forwards an SMC to the firmware and returns its answer to the guest (DEN0028E, 2.6: x0 to x7 in,
/// x0 to x3 out).
fn forward(vcpu: &mut Vcpu) {
    let mut registers = [0; 8];
    for (register, value) in [0, 1, 2, 3, 4, 5, 6, 7].into_iter().zip(&mut registers) {
        *value = vcpu.frame.get(register);
    }
    for (register, value) in [0, 1, 2, 3].into_iter().zip(firmware::forward(registers)) {
        vcpu.frame.set(register, value);
    }
}

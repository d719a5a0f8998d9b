//! The answers that the thread of a vCPU gives to the monitor: in an exit of its own, or while the
//! vCPU is paused or has no guest to run.

use bulkhead_core::cpu::power::{self, Phase};
use bulkhead_core::devices::ptimer::Register::{Compare, Control};
use bulkhead_core::monitor::{
    Gate, Interrupts, PENDING, Pending, Published, Registers, Request, Sample, State, Timer,
    UNREADABLE, may_read,
};
use bulkhead_core::sched::SLOTS;
use bulkhead_core::vgic::{Answer, GICR_SIZE, Version, WORDS};

use crate::hw::{cpu, gic, memory, sysreg as reg, timer};
use crate::managers;
use crate::pcpu::RunSlot;
use crate::plan::plan;
use crate::profile::MANAGED;
use crate::vcpu::{Kept, Vcpu};
use crate::vm::Vm;

/// The answer of the vCPU that was asked last.
pub static PUBLISHED: Published = Published::new();

/// Register banks of the distributor, and of the second frame of a redistributor (IHI 0069H, 12.9
/// and 12.11).
const GROUP: u64 = 0x80;
const ENABLE: u64 = 0x100;
const PENDING_BANK: u64 = 0x200;
const PRIORITY: u64 = 0x400;
const TARGET: u64 = 0x800;
const ROUTER: u64 = 0x6000;
const SGI_FRAME: u64 = 0x1_0000;

/// Answers the monitor, if it has asked this vCPU, or if it has asked the pCPU about one of its
/// vCPUs.
#[inline(never)]
pub fn answer(vcpu: &mut Vcpu) {
    answer_to(vcpu, &PUBLISHED);
    if MANAGED {
        for published in managers::questions() {
            if answer_to(vcpu, published) {
                managers::answered(published);
            }
        }
    }
}

/// Answers one who asks. `true`: there was a question.
fn answer_to(vcpu: &mut Vcpu, published: &'static Published) -> bool {
    let told = time(vcpu, published);
    let Some(question) = published.question(vcpu.id) else {
        return told;
    };
    match question.request {
        Request::Sample => {
            let (state, sample) = (state(vcpu.vm(), vcpu.number), sample(vcpu));
            published.answer_sample(question, state, &sample);
        }
        Request::Registers => {
            if MANAGED {
                look_at_registers(vcpu);
                for kept in &vcpu.kept {
                    published.answer_registers(question, &kept.registers);
                }
            } else {
                let registers = registers(vcpu);
                published.answer_registers(question, &registers);
            }
        }
        Request::Interrupts => {
            let mut interrupts = Interrupts::default();
            if vcpu.runs
                && let Some(vm) = vcpu.vm()
            {
                let forwarded = u64::from(distributor(vcpu, vm, 0)) & 3;
                interrupts.gate = match &vcpu.gppt {
                    Some(gppt) => gppt.gate(forwarded),
                    None => Gate {
                        forwarded,
                        ..gic::gate()
                    },
                };
                pending(vcpu, vm, &mut interrupts.pending);
            }
            published.answer_interrupts(question, &interrupts);
        }
        Request::Exits => {
            let now = vcpu.runs.then(reg::cycles);
            published.answer_exits(question, &vcpu.stats, now);
        }
        Request::Time => {}
    }
    true
}

/// Answers for the pCPU, if the monitor asks for the CPU time of one of its vCPUs.
fn time(vcpu: &mut Vcpu, published: &Published) -> bool {
    let Some(pcpu) = vcpu.pcpu.as_deref_mut() else {
        return false;
    };
    let asked = |(slot, run_slot): (usize, &Option<RunSlot>)| {
        let question = published.question(run_slot.as_ref()?.id.into())?;
        Some((slot, question))
    };
    if let Some((slot, question)) = (0..SLOTS).zip(&pcpu.run_slots).find_map(asked)
        && question.request == Request::Time
    {
        let usage = pcpu.sched.usage(slot, timer::now());
        let of = pcpu.run_slots.get(slot).copied().flatten();
        let state = of.map_or(State::Off, |of| state(of.vm(), of.number.into()));
        published.answer_time(question, state, usage.as_ref(), timer::frequency());
        return true;
    }
    false
}

/// The state of vCPU `number` of a VM.
fn state(vm: Option<&Vm>, number: usize) -> State {
    let Some(vm) = vm else {
        return State::Off;
    };
    let power = &vm.life.power;
    match power.phase() {
        Phase::Starting => State::Starting,
        Phase::Down | Phase::Stopping(_) | Phase::Ended => State::Stopped,
        _ if power.state(number) != power::State::On => State::Off,
        Phase::Paused => State::Paused,
        Phase::Running | Phase::Asked(_) => State::On,
    }
}

fn sample(vcpu: &mut Vcpu) -> Sample {
    let pc = if vcpu.runs { reg::elr() } else { 0 };
    Sample {
        pc,
        before: instruction_before(vcpu, pc),
        exits: vcpu.stats.of_guest(),
    }
}

/// Returns the instruction before `pc`, if it lies in the VM's RAM. It shows whether a vCPU was in
/// WFI.
fn instruction_before(vcpu: &mut Vcpu, pc: u64) -> u64 {
    let Some(vm) = vcpu.vm.filter(|_| vcpu.runs) else {
        return UNREADABLE;
    };
    let Some(pa) = cpu::translate(pc.wrapping_sub(4), cpu::before().spsr & 15 == 0) else {
        return UNREADABLE;
    };
    if !may_read(plan().regions_of(vm), pa) {
        return UNREADABLE;
    }
    u64::from(memory::read_word(&mut vcpu.copy_windows, pa))
}

/// Returns the registers of a vCPU from the hardware and the frame; for a vCPU that is off only its
/// state, sample and frequency.
fn registers(vcpu: &mut Vcpu) -> Registers {
    let mut registers = Registers {
        state: state(vcpu.vm(), vcpu.number) as u64,
        sample: sample(vcpu),
        frequency: timer::frequency(),
        ..Registers::default()
    };
    let Some(vm) = vcpu.vm().filter(|_| vcpu.runs) else {
        return registers;
    };
    registers.spsr = cpu::before().spsr;
    for (register, value) in (0..).zip(&mut registers.x) {
        *value = vcpu.frame.get(register);
    }
    registers.el1 = cpu::el1_registers();
    let now = timer::now();
    let held = vcpu.paused_timers;
    let owns = vcpu.has_ptimer;
    let second = if owns {
        shown(timer::physical_timer(), held.map(|[_, second]| second), now)
    } else {
        let timer = &vcpu.physical_timer;
        let (control, compare) = (timer.read(Control, now), timer.read(Compare, now));
        shown([control, compare], None, now)
    };
    registers.timers = [
        shown(
            timer::virtual_timer(),
            held.map(|[first, _]| first),
            vm.time.counter(now),
        ),
        second,
    ];
    registers
}

/// Looks at the registers of a vCPU, for managers. Those of one that has gone off in this life are those with which it did.
#[inline(never)]
pub fn look_at_registers(vcpu: &mut Vcpu) {
    let life = vcpu.vm().map_or(0, |vm| vm.life.number());
    let is_of_life = |kept: &Kept| kept.life == life;
    if vcpu.runs || !vcpu.kept.first().is_some_and(is_of_life) {
        let registers = registers(vcpu);
        if let Some(kept) = vcpu.kept.first_mut() {
            *kept = Kept { life, registers };
        }
    }
    let state = state(vcpu.vm(), vcpu.number) as u64;
    if let Some(kept) = vcpu.kept.first_mut() {
        kept.registers.state = state;
    }
}

/// Returns a timer as the monitor shows it; `held` is its control register while the vCPU is
/// paused.
fn shown([control, compare]: [u64; 2], held: Option<u64>, now: u64) -> Timer {
    Timer {
        control: held.unwrap_or(control),
        ahead: compare.saturating_sub(now),
        compare,
    }
}

/// Finds pending interrupts, private ones first, as many as fit into `found`.
fn pending(vcpu: &mut Vcpu, vm: &Vm, found: &mut [Pending; PENDING]) {
    let mut places = found.iter_mut();
    let spis = vcpu
        .vm
        .and_then(|vm| plan().vms.get(vm))
        .map_or(0, |row| row.spis);
    for word in 0..WORDS.min((spis / 32).saturating_add(1) as usize) as u32 {
        let mut bits = read(vcpu, vm, PENDING_BANK, word);
        while bits != 0 {
            let intid = word.wrapping_mul(32).wrapping_add(bits.trailing_zeros());
            let bit = bits & bits.wrapping_neg();
            bits &= !bit;
            if word != 0 && !is_mine(vcpu, vm, intid) {
                continue;
            }
            let enabled = read(vcpu, vm, ENABLE, word) & bit != 0;
            // A GPPT VM has one group, whatever IGROUPR says: Group 0 on a GICv2.
            let group1 = match vcpu.gppt {
                Some(_) => gic::VIRTUAL == Version::V3,
                None => read(vcpu, vm, GROUP, word) & bit != 0,
            };
            let group = u32::from(group1);
            let four = read(vcpu, vm, PRIORITY, intid / 4);
            let priority = (four >> (intid % 4 * 8)) as u8;
            let Some(place) = places.next() else { return };
            *place = Pending::new(intid, enabled, group, priority);
        }
    }
}

/// Whether an SPI goes to this vCPU.
fn is_mine(vcpu: &mut Vcpu, vm: &Vm, intid: u32) -> bool {
    if vcpu.gppt.is_some() {
        // A GPPT VM has one vCPU, so all SPIs go to it, whatever the target registers say.
        return true;
    }
    let number = vcpu.number as u32;
    match gic::VIRTUAL {
        Version::V3 => {
            let route = distributor(
                vcpu,
                vm,
                ROUTER.wrapping_add(u64::from(intid).wrapping_mul(8)),
            );
            route == number
        }
        Version::V2 => {
            let four = distributor(vcpu, vm, TARGET.wrapping_add(u64::from(intid & !3)));
            four >> (intid % 4 * 8) >> (number & 7) & 1 != 0
        }
    }
}

/// Returns word `n` of a bank, counted in words of the bank: from this vCPU's private interrupts or
/// from the VM's SPIs.
fn read(vcpu: &mut Vcpu, vm: &Vm, bank: u64, n: u32) -> u32 {
    let private = if bank == PRIORITY { n < 8 } else { n == 0 };
    let offset = bank.wrapping_add(u64::from(n).wrapping_mul(4));
    if !private || gic::VIRTUAL == Version::V2 {
        return distributor(vcpu, vm, offset);
    }
    let own = (vcpu.number as u64).wrapping_mul(GICR_SIZE);
    let offset = own.wrapping_add(SGI_FRAME).wrapping_add(offset);
    if let Some(gppt) = &vcpu.gppt {
        return gppt.peek(&vcpu.gic, true, offset);
    }
    let (answer, whom) = vcpu.vgic.gicr_read(&vm.dist, &mut vcpu.gic, offset, 4);
    vcpu.notify(whom);
    value(answer)
}

fn distributor(vcpu: &mut Vcpu, vm: &Vm, offset: u64) -> u32 {
    if let Some(gppt) = &vcpu.gppt {
        return gppt.peek(&vcpu.gic, false, offset);
    }
    let (answer, whom) = vcpu.vgic.gicd_read(&vm.dist, &mut vcpu.gic, offset, 4);
    vcpu.notify(whom);
    value(answer)
}

/// Returns the value of an answer; 0 if another vCPU would have to be asked first, because that
/// vCPU's own answer to the monitor has the value.
fn value(answer: Answer) -> u32 {
    match answer {
        Answer::Value(value) => value as u32,
        Answer::Again => 0,
    }
}

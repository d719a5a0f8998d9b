//! Emulated devices that follow the counters: the VM's real-time clock and watchdog, and the vCPU's physical
//! timer.
//!
//! Any vCPU of the VM may use the clock and the watchdog; their deadlines are with vCPU 0, also
//! while that vCPU is off.

use core::sync::atomic::{AtomicU32, Ordering};

use bulkhead_abi::exit::ExitClass;
use bulkhead_core::cpu::exit::Mmio;
use bulkhead_core::cpu::power::Phase;
use bulkhead_core::devices::deadlines::Purpose;
use bulkhead_core::devices::pl031::{Now, Pl031};
use bulkhead_core::devices::ptimer::Register;
use bulkhead_core::devices::watchdog::Watchdog;

use crate::emulated::{self, Done};
use crate::hw::timer;
use crate::vcpu::Vcpu;
use crate::vm::Vm;
use crate::{deadlines, mailbox, orders, plan};

/// Seconds since 1970 when the physical counter was 0, modulo 2^32.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// Start-up has read the board's clock: `time` (seconds since 1970) `seconds` after the counter was 0.
pub fn set_time(time: u32, seconds: u64) {
    EPOCH.store(time.wrapping_sub(seconds as u32), Ordering::Relaxed);
}

/// Seconds since 1970 so many seconds after the physical counter was 0; without a clock on the board those
/// alone.
pub fn time_of_day(seconds: u64) -> u32 {
    EPOCH.load(Ordering::Relaxed).wrapping_add(seconds as u32)
}

fn now() -> Now {
    Now {
        count: timer::now(),
        frequency: timer::frequency(),
    }
}

/// The clock and the watchdog of a VM that starts.
pub fn reset(vcpu: &mut Vcpu, vm: &Vm) {
    vm.time.reset();
    let now = now();
    let time = time_of_day(now.count.checked_div(now.frequency).unwrap_or(0));
    // Nobody else uses them: all vCPUs are off.
    let _done = vm.clock.try_use(|clock| *clock = Pl031::new(time, now));
    let _done = vm.watchdog.try_use(|dog| *dog = Watchdog::new());
    for purpose in [Purpose::Alarm, Purpose::Watchdog] {
        deadlines::set(vcpu, purpose, None);
    }
}

/// Performs an access if it hits one of these devices.
pub fn access(vcpu: &mut Vcpu, vm: &Vm, mmio: &Mmio) -> Done {
    let [clock, dog] = vcpu.ipas.timed;
    let stored = mmio.stored(vcpu.frame.get(mmio.register));
    let offset = mmio.ipa.wrapping_sub(clock.ipa);
    let loaded = if offset < clock.size {
        use_clock(vcpu, vm, |clock, now| {
            if mmio.write {
                clock.write(offset, stored as u32, now);
                0
            } else {
                u64::from(clock.read(offset, now))
            }
        })
    } else {
        let offset = mmio.ipa.wrapping_sub(dog.ipa);
        if offset >= dog.size {
            return Done::Nothing;
        }
        use_watchdog(vcpu, vm, |dog, now| {
            if mmio.write {
                dog.write(offset, mmio.size, stored, now);
                0
            } else {
                dog.read(offset, mmio.size, now)
            }
        })
    };
    let Some(loaded) = loaded else {
        return Done::NotYet(ExitClass::Device);
    };
    if !mmio.write {
        vcpu.frame.set(mmio.register, mmio.loaded(loaded));
    }
    Done::Yes(ExitClass::Device)
}

/// Uses the clock and follows its line; `None` if another vCPU is at it. The line goes to the vGIC before
/// another one can change it.
fn use_clock<R>(vcpu: &mut Vcpu, vm: &Vm, act: impl FnOnce(&mut Pl031, Now) -> R) -> Option<R> {
    let [place, _] = vcpu.ipas.timed;
    let now = now();
    let (result, before, after, whom) = vm.clock.try_use(|clock| {
        let before = clock.deadline(now.frequency);
        let result = act(clock, now);
        let whom = emulated::line(vcpu, vm, place.intid, clock.line());
        (result, before, clock.deadline(now.frequency), whom)
    })?;
    vcpu.notify(whom);
    follow(vcpu, Purpose::Alarm, before, after);
    Some(result)
}

/// Uses the watchdog, in the VM's own time, as [`use_clock`].
fn use_watchdog<R>(
    vcpu: &mut Vcpu,
    vm: &Vm,
    act: impl FnOnce(&mut Watchdog, u64) -> R,
) -> Option<R> {
    let [_, place] = vcpu.ipas.timed;
    let now = vm.time.counter(timer::now());
    let (result, before, after, bites, whom) = vm.watchdog.try_use(|dog| {
        let before = dog.deadline();
        let result = act(dog, now);
        let whom = emulated::line(vcpu, vm, place.intid, dog.line());
        (result, before, dog.deadline(), dog.bites(), whom)
    })?;
    vcpu.notify(whom);
    let physical = |at: Option<u64>| at.map(|at| vm.time.physical(at));
    follow(vcpu, Purpose::Watchdog, physical(before), physical(after));
    if bites && let Some(index) = vcpu.vm {
        orders::bite(index);
    }
    Some(result)
}

/// The deadline of a device of the VM is another one now.
fn follow(vcpu: &mut Vcpu, purpose: Purpose, before: Option<u64>, after: Option<u64>) {
    if vcpu.number == 0 {
        deadlines::set(vcpu, purpose, after);
    } else if before != after
        && let Some(first) = vcpu.vm.and_then(|vm| plan::id_of(vm, 0))
    {
        mailbox::send(first, mailbox::TIMED);
    }
}

/// Looks at the clock and the watchdog: a deadline has come, another vCPU has changed one, or the VM goes on
/// after a pause. By vCPU 0.
pub fn look(vcpu: &mut Vcpu) {
    let Some(vm) = vcpu.vm() else { return };
    // A VM that stands still is not bitten; it looks when it goes on.
    if vcpu.number != 0 || vm.power.phase() != Phase::Running || vm.power.is_paused() {
        return;
    }
    let [clock, dog] = vcpu.ipas.timed;
    let clock = clock.size == 0 || use_clock(vcpu, vm, |clock, now| clock.advance(now)).is_some();
    let dog = dog.size == 0 || use_watchdog(vcpu, vm, |dog, now| dog.advance(now)).is_some();
    if !(clock && dog) {
        // Another vCPU is just using it: come again after whatever this pCPU does next.
        mailbox::send(vcpu.id, mailbox::TIMED);
    }
}

/// An access to a register of the emulated physical timer.
pub fn access_physical(vcpu: &mut Vcpu, register: Register, read: bool, gpr: u8) {
    let now = timer::now();
    if read {
        let value = vcpu.physical_timer.read(register, now);
        vcpu.frame.set(gpr, value);
        return;
    }
    let value = vcpu.frame.get(gpr);
    vcpu.physical_timer.write(register, value, now);
    follow_physical(vcpu);
}

/// Follows the line of the emulated physical timer.
pub fn follow_physical(vcpu: &mut Vcpu) {
    let Some(vm) = vcpu.vm() else { return };
    if !vcpu.runs {
        return;
    }
    let now = timer::now();
    let whom = emulated::line(
        vcpu,
        vm,
        plan::PHYSICAL_TIMER,
        vcpu.physical_timer.line(now),
    );
    vcpu.notify(whom);
    let at = vcpu.physical_timer.deadline(now);
    deadlines::set(vcpu, Purpose::PhysicalTimer, at);
}

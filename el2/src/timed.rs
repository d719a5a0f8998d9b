//! Emulated devices that follow the counters: the real-time clock and the watchdog of the VM, and
//! the physical timer of the vCPU.
//!
//! Any vCPU of the VM may use the clock and the watchdog; vCPU 0 has their deadlines, also while it
//! is off.

use core::sync::atomic::{AtomicU32, Ordering};

use bulkhead_abi::exit::ExitClass;
use bulkhead_core::cpu::exit::Mmio;
use bulkhead_core::devices::deadlines::Purpose;
use bulkhead_core::devices::pl031::{Now, Pl031};
use bulkhead_core::devices::ptimer::Register;
use bulkhead_core::devices::watchdog::Watchdog;

use crate::emulated::{self, Done};
use crate::hw::timer;
use crate::vcpu::Vcpu;
use crate::vm::{self, Vm};
use crate::{deadlines, mailbox, orders, plan};

/// The time when the physical counter was 0, in seconds since 1970, modulo 2^32.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// Sets the time of day from the board's clock, during start-up: it read `time` (seconds since
/// 1970) `seconds` after the counter was 0.
pub fn set_time(time: u32, seconds: u64) {
    EPOCH.store(time.wrapping_sub(seconds as u32), Ordering::Relaxed);
}

/// Returns the seconds since 1970 at the time `seconds` after the physical counter was 0. Without a
/// clock on the board, returns `seconds`.
pub fn time_of_day(seconds: u64) -> u32 {
    EPOCH.load(Ordering::Relaxed).wrapping_add(seconds as u32)
}

fn now() -> Now {
    Now {
        count: timer::now(),
        frequency: timer::frequency(),
    }
}

/// Resets the clock and the watchdog of a VM that starts.
pub fn reset(vcpu: &mut Vcpu, vm: &Vm) {
    vm.time.reset();
    let now = now();
    let time = time_of_day(now.count.checked_div(now.frequency).unwrap_or(0));
    // Nobody else uses the devices: all vCPUs are off.
    let _done = vm.clock.try_use(|clock| *clock = Pl031::new(time, now));
    let _done = vm.watchdog.try_use(|dog| *dog = Watchdog::new());
    for purpose in [Purpose::Alarm, Purpose::Watchdog] {
        deadlines::set(vcpu, purpose, None);
    }
}

/// Performs an access if it hits the clock or the watchdog.
pub fn access(vcpu: &mut Vcpu, vm: &Vm, mmio: &Mmio) -> Done {
    let [clock, dog] = vcpu.ipas.timed;
    let stored = mmio.stored(vcpu.frame.get(mmio.register()));
    let offset = mmio.ipa.wrapping_sub(clock.ipa);
    let loaded = if offset < clock.size {
        use_clock(vcpu, vm, |clock, now| {
            if mmio.is_write() {
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
            if mmio.is_write() {
                dog.write(offset, mmio.size(), stored, now);
                0
            } else {
                dog.read(offset, mmio.size(), now)
            }
        })
    };
    let Some(loaded) = loaded else {
        return Done::NotYet(ExitClass::Device);
    };
    if !mmio.is_write() {
        vcpu.frame.set(mmio.register(), mmio.loaded(loaded));
    }
    Done::Yes(ExitClass::Device)
}

/// Uses the clock and updates its interrupt line and its deadline; `None` if another vCPU is using
/// it. The vGIC learns the level of the line before another vCPU can change it.
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

/// Uses the watchdog, in the VM's virtual time; otherwise like [`use_clock`].
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

/// Updates the deadline of a device of the VM, or tells vCPU 0 to do so.
fn follow(vcpu: &mut Vcpu, purpose: Purpose, before: Option<u64>, after: Option<u64>) {
    if vcpu.number == 0 {
        deadlines::set(vcpu, purpose, after);
    } else if before != after
        && let Some(first) = vcpu.vm.and_then(|vm| vm::id_of(vm, 0))
    {
        mailbox::send(first, mailbox::TIMED);
    }
}

/// Looks at the clock and the watchdog, on vCPU 0: a deadline has passed, another vCPU has changed
/// one, or the VM goes on after a pause.
pub fn look(vcpu: &mut Vcpu) {
    let Some(vm) = vcpu.vm() else { return };
    // The watchdog does not expire while the VM is paused; it is looked at when the VM goes on.
    if vcpu.number != 0 || !vm.life.power.is_running() {
        return;
    }
    let [clock, dog] = vcpu.ipas.timed;
    let clock = clock.size == 0 || use_clock(vcpu, vm, |clock, now| clock.advance(now)).is_some();
    let dog = dog.size == 0 || use_watchdog(vcpu, vm, |dog, now| dog.advance(now)).is_some();
    if !(clock && dog) {
        // Another vCPU is using the device: try again after whatever this pCPU does next.
        mailbox::send(vcpu.id, mailbox::TIMED);
    }
}

/// Performs an access to a register of the emulated physical timer.
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

/// Updates the interrupt line and the deadline of the emulated physical timer.
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

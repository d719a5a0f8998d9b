//! Preparation of a VM on its pCPU: memory scrubbed, payloads copied, seeds filled in, interrupts
//! and registers at reset. Memory is handled in slices; between two slices the pCPU does what else
//! is asked of it.

use bulkhead_abi::plan::{Payload, Region, RegionKind, Seed, SeedKind};
use bulkhead_core::colours::{self, Piece};
use bulkhead_core::cpu::power::{Phase, Power, Start};
use bulkhead_core::cpu::smccc::Workarounds;
use bulkhead_core::cpu::sysreg::IdRegisters;
use bulkhead_core::devices::pl011::Pl011;
use bulkhead_core::devices::ptimer::PhysicalTimer;
use bulkhead_core::vgic::{Version, WORDS};

use crate::console::other_cache;
use crate::hw::memory::Slices;
use crate::hw::{cpu, firmware, gic, memory, mmu, page_pool, state, thread, timer};
use crate::plan::{self, plan};
use crate::profile::{IO, MANAGED};
use crate::vcpu::{Frame, Vcpu};
use crate::vm::{self, Vm};
use crate::{debug, gppt, lifecycle, mailbox, orders, pmu, random, sched, stops, timed, virtio};

/// Does what else is asked of this pCPU, between two slices. Returns whether the VM is still to start.
fn look_up(vcpu: &mut Vcpu, power: &Power, slices: &mut Slices) -> bool {
    slices.close(&mut vcpu.copy_windows);
    sched::poll_and_yield(vcpu);
    power.is_starting()
}

/// Whether an interrupt does not tell all that is asked of this pCPU: where a GPPT VM is, events of the firmware call it as well.
const fn polls(vcpu: &Vcpu) -> bool {
    vcpu.gppt.is_some()
}

/// Zeroes a region, as long as the VM is to start.
#[inline(never)]
fn scrub(vcpu: &mut Vcpu, power: &Power, region: &Region) {
    let (mut slices, once) = (Slices::new(), polls(vcpu));
    for Piece { mut pa, size } in colours::pieces(region) {
        let end = pa.wrapping_add(size);
        while pa < end {
            let left = end.wrapping_sub(pa);
            let windows = &mut vcpu.copy_windows;
            let (done, other) = memory::scrub_slices(&mut slices, windows, pa, left, once);
            pa = pa.wrapping_add(done);
            if other && !look_up(vcpu, power, &mut slices) {
                return;
            }
        }
    }
    slices.close(&mut vcpu.copy_windows);
}

/// Zeroes shared memory, on the boot pCPU, before any VM runs.
pub fn scrub_shared(copy_windows: &mut mmu::CopyWindows) {
    let mut slices = Slices::new();
    for (n, region) in plan().regions.iter().enumerate() {
        let first = plan()
            .regions
            .iter()
            .position(|other| other.shared == region.shared);
        if region.kind != RegionKind::Shared as u16 || first != Some(n) {
            continue;
        }
        for Piece { mut pa, size } in colours::pieces(region) {
            let end = pa.wrapping_add(size);
            while pa < end {
                let left = end.wrapping_sub(pa);
                let (done, _) = memory::scrub_slices(&mut slices, copy_windows, pa, left, false);
                pa = pa.wrapping_add(done);
            }
        }
    }
    slices.close(copy_windows);
}

/// Copies a payload into the RAM of its VM, as long as the VM is to start.
fn copy(vcpu: &mut Vcpu, power: &Power, vm: usize, payload: &Payload) {
    let from = page_pool::loaded_at().wrapping_add(payload.offset);
    let (mut slices, once) = (Slices::new(), polls(vcpu));
    let mut done = 0;
    while done < payload.size {
        let Some(to) = plan::physical(vm, payload.ipa.wrapping_add(done)) else {
            break;
        };
        let (from, left) = (
            from.wrapping_add(done),
            to.size.min(payload.size.wrapping_sub(done)),
        );
        let copied = slices.copy(&mut vcpu.copy_windows, from, to.pa, left);
        done = done.wrapping_add(copied);
        if (once || gic::el2_look()) && !look_up(vcpu, power, &mut slices) {
            return;
        }
    }
    slices.close(&mut vcpu.copy_windows);
}

/// FDT_NOP, which makes a property vanish.
const NOP: u32 = u32::from_le_bytes([0, 0, 0, 4]);
/// Words of a property before its value: FDT_PROP, length, name.
const HEAD: usize = 3;

/// Fills in the seeds of a VM's device tree, word by word: the pages of a VM need not follow one another.
fn fill_seeds(vcpu: &mut Vcpu, vm: usize, seeds: &[Seed]) {
    let filled = random::seeds(vm, vcpu.id);
    for seed in seeds {
        sched::poll_and_yield(vcpu);
        let bytes: &[u8] = match &filled {
            Some(filled) if seed.kind == SeedKind::Kaslr as u16 => &filled.kaslr,
            Some(filled) => &filled.rng,
            None => &[],
        };
        let mut words = [NOP; HEAD + 16];
        let (value, _) = bytes.as_chunks();
        for (word, value) in words.iter_mut().skip(HEAD).zip(value) {
            *word = u32::from_le_bytes(*value);
        }
        let words = words.get(..(seed.size as usize / 4).wrapping_add(HEAD));
        let words = words.and_then(|words| words.get(if filled.is_some() { HEAD } else { 0 }..));
        let mut words = words.unwrap_or_default();
        let mut at = seed
            .ipa
            .wrapping_add(if filled.is_some() { HEAD as u64 * 4 } else { 0 });
        while let Some(to) = plan::physical(vm, at).filter(|_| !words.is_empty()) {
            let here = words.get(..to.size as usize / 4).unwrap_or(words);
            let done = memory::write_slice(&mut vcpu.copy_windows, to.pa, here);
            at = at.wrapping_add((done as u64).wrapping_mul(4));
            words = words.get(done..).unwrap_or_default();
        }
    }
}

/// Starts the interrupts and timers of this pCPU.
pub fn start_pcpu(vcpu: &mut Vcpu) {
    cpu::start();
    timer::start();
    let board = &plan().header.board;
    let timer = 1 << (board.hyp_timer_intid % 32);
    let (kick, rest) = if gic::gppt::has_gppt_vm(vcpu.index) {
        (1 << gic::GPPT_KICK, timer)
    } else {
        (
            1 << gic::KICK | 1 << gic::SIBLING,
            timer | 1 << (board.maintenance_intid % 32),
        )
    };
    // Where a VM of the board could send any SGI, SPIs replace these SGIs.
    let row = plan().pcpus.get(vcpu.index);
    let sgis = if row.is_some_and(|row| row.call_spi != 0) {
        0
    } else {
        kick
    };
    let overflow = if IO { pmu::start(vcpu.index) } else { 0 };
    let rest = match overflow {
        16..=31 => rest | 1 << overflow,
        _ => rest,
    };
    let wanted = if gic::gppt::has_events(vcpu.index) || gic::gppt::shares_group1(vcpu.index) {
        0
    } else {
        sgis | rest
    };
    vcpu.gic.start(vcpu.index, wanted);
    if overflow >= 32 {
        vcpu.gic.enable(overflow);
    }
    if let Some(service) = vcpu.console() {
        service.uart.start();
        vcpu.gic.enable(board.uart_intid);
    }
    let own = cpu::speculation();
    vcpu.workarounds = Workarounds::find(own, firmware::call);
    cpu::guard_boundary(vcpu.workarounds.boundary(own));
    debug::start();
    vcpu.ids = IdRegisters::new(&cpu::id_registers());
    if gic::VIRTUAL == Version::V2 {
        vcpu.ids = vcpu.ids.with_gicv2();
    }
    gic::gppt::start_events(vcpu.index);
    // A kick that arrived before this pCPU's interrupts were ready is lost; its message is still in
    // the mailbox.
    gic::gppt::kick(vcpu.index);
    if let Some(colours) = row.and_then(cpu::other_colours) {
        other_cache::refuse(vcpu, colours)
    }
}

/// Prepares VM `index` and enters it. Returns only if the VM has been stopped in the meantime: then
/// its memory is left as it is, because the next life prepares it again.
pub fn run(vcpu: &mut Vcpu, index: usize) {
    let Some(row) = plan().vms.get(index) else {
        return;
    };
    let shared = vm::vm(index);
    let power = &shared.life.power;
    shared.life.begin(vcpu.vcpus);
    sched::poll_and_yield(vcpu);
    if row.stolen_time != 0 {
        for number in 0..vcpu.vcpus {
            memory::tell(state::stolen_time(index, number), 0);
        }
    }
    if MANAGED {
        stops::forget(index);
    }
    for region in plan().regions_of(index) {
        if region.kind == RegionKind::Ram as u16 {
            scrub(vcpu, power, region);
        }
    }
    for payload in plan().payloads_of(index) {
        copy(vcpu, power, index, payload);
    }
    fill_seeds(vcpu, index, plan().seeds_of(index));
    sched::poll_and_yield(vcpu);
    reset_devices(vcpu, shared, index, row.spis);
    if vcpu.gppt.is_some() {
        for word in 0..WORDS {
            sched::poll_and_yield(vcpu);
            if let Some(gppt) = &vcpu.gppt {
                gppt.forget(&vcpu.gic, word);
            }
        }
    }
    sched::poll_and_yield(vcpu);
    let start = Start {
        entry: row.entry,
        context: row.boot_arg,
    };
    if power.begin() {
        orders::changed(index);
        enter(vcpu, index, start);
    } else {
        lifecycle::take_off(vcpu);
    }
}

/// Resets the interrupts and emulated devices of a VM.
fn reset_devices(vcpu: &mut Vcpu, shared: &Vm, index: usize, spis: u32) {
    let (version, vtimer) = (gic::VIRTUAL, vcpu.vtimer_intid);
    shared.dist.reset_shared(version, vcpu.vcpus, spis, vtimer);
    for word in 0..shared.dist.words() {
        sched::poll_and_yield(vcpu);
        shared.dist.reset_word(word);
    }
    for number in 0..vcpu.vcpus {
        sched::poll_and_yield(vcpu);
        shared.dist.reset_private(number);
    }
    sched::poll_and_yield(vcpu);
    for irq in plan().irqs_of(index) {
        let edge = irq.flags & bulkhead_abi::plan::IRQ_EDGE != 0;
        if gic::spis::is_usable(irq.pintid.into()) {
            shared.link(u32::from(irq.vintid), u32::from(irq.pintid), edge);
        }
    }
    if plan::has_ptimer(index) {
        let board = &plan().header.board;
        shared.link(plan::PHYSICAL_TIMER, board.ptimer_intid, false);
    }
    if IO {
        virtio::prepare(index);
    }
    timed::reset(vcpu, shared);
    // Nobody else uses the UART: all vCPUs are off.
    let _done = shared.pl011.try_use(|pl011| {
        *pl011 = Pl011::new();
        while shared.streams.input.pop().is_some() {}
    });
}

/// Enters a vCPU that another vCPU has switched on.
pub fn run_secondary(vcpu: &mut Vcpu, index: usize, start: Start) {
    enter(vcpu, index, start);
}

/// Starts the vCPU. Returns only if its VM has ended in the meantime.
fn enter(vcpu: &mut Vcpu, index: usize, start: Start) {
    let shared = vm::vm(index);
    vcpu.frame = Frame::default();
    vcpu.frame.set(0, start.context);
    vcpu.physical_timer = PhysicalTimer::new();
    timer::give_guest_time(shared.time.offset(), vcpu.has_ptimer);
    vcpu.gic.reset_virtual();
    // This includes the interrupts that arrived while the vCPU was off.
    let whom = vcpu.vgic.reset(&shared.dist, &mut vcpu.gic);
    // After the reset of the vGIC. A GPPT VM does not use the vGIC, and the SGI of a notification
    // would arrive in its guest.
    if let Some(gppt) = &mut vcpu.gppt {
        gppt.reset(&vcpu.gic);
    } else {
        vcpu.notify(whom);
    }
    let vmid = plan().vms.get(index).map_or(0, |row| row.vmid);
    cpu::install(
        vmid,
        page_pool::stage2_root(index),
        gppt::affinity(vcpu),
        start.entry,
    );
    if IO {
        debug::reset(vcpu);
        pmu::reset(vcpu);
    }
    vcpu.context.save_machine();
    vcpu.runs = true;
    // The time that the vCPU has waited until here was spent on starting its VM and is not stolen.
    vcpu.stolen = sched::stolen(vcpu);
    if matches!(shared.life.power.phase(), Phase::Stopping(_)) {
        return lifecycle::take_off(vcpu);
    }
    // A pause that was requested meanwhile takes effect in the first exit, which this message
    // causes.
    mailbox::send(vcpu.id, mailbox::POWER);
    vcpu.stats.enter(crate::hw::sysreg::cycles());
    if let Some(gppt) = &mut vcpu.gppt {
        gppt.restore_interface(&vcpu.gic);
    }
    cpu::enter(thread::frame_address(vcpu))
}

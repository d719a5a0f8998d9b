//! Getting a VM ready on its pCPU: memory scrubbed, payloads copied, seeds filled in, interrupts and
//! registers at reset. Memory is handled in slices; between two the pCPU does what else is asked of it.

use core::sync::atomic::{AtomicU64, Ordering};

use bulkhead_abi::plan::{DeviceKind, Load, RegionKind, Seed, SeedKind, VM_DETERMINISTIC};
use bulkhead_core::pl011::Pl011;
use bulkhead_core::power::{Phase, Start};
use bulkhead_core::ptimer::PhysicalTimer;
use bulkhead_core::smccc::Workarounds;
use bulkhead_core::sysreg::IdRegisters;
use bulkhead_core::trng::Generator;
use bulkhead_core::vgic::Version;
use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};

use crate::hw::{cpu, firmware, gic, layout, memory, mmu, timer};
use crate::pcpu::{Frame, Pcpu};
use crate::start::plan;
use crate::vm::{self, Vm};
use crate::{idle, lifecycle, mailbox, timed};

/// Random bytes of the board, from which those of the VMs are made. Zeros: the board offers none.
static ENTROPY: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
/// Where the image was loaded.
static LOADED_AT: AtomicU64 = AtomicU64::new(0);

/// Keeps what start-up has learnt from the boot device tree.
pub fn keep(load: u64, rng_seed: &[u8]) {
    LOADED_AT.store(load, Ordering::Relaxed);
    for (slot, eight) in ENTROPY.iter().zip(rng_seed.as_chunks().0) {
        slot.store(u64::from_le_bytes(*eight), Ordering::Relaxed);
    }
}

/// Physical address of an address in a VM's RAM.
pub fn physical(vm: usize, ipa: u64) -> Option<u64> {
    plan().regions_of(vm).iter().find_map(|region| {
        let offset = ipa.checked_sub(region.ipa)?;
        (region.kind == RegionKind::Ram as u16 && offset < region.size)
            .then(|| region.pa.wrapping_add(offset))
    })
}

/// Does what other pCPUs and the console ask of this one.
fn attend(pcpu: &mut Pcpu) {
    // As many as there can be sources; more can wait for the next slice.
    for _ in 0..8 {
        if !idle::poll(pcpu) {
            return;
        }
    }
}

/// Zeroes a range of physical memory.
fn scrub(pcpu: &mut Pcpu, mut pa: u64, size: u64) {
    let end = pa.wrapping_add(size);
    while pa < end {
        let done = memory::scrub_slice(&mut pcpu.windows, pa, end.wrapping_sub(pa));
        pa = pa.wrapping_add(done);
        attend(pcpu);
    }
}

/// Zeroes shared memory. By the boot pCPU, before any VM runs.
pub fn scrub_shared(windows: &mut mmu::Windows) {
    for (n, region) in plan().regions.iter().enumerate() {
        let first = plan()
            .regions
            .iter()
            .position(|other| other.shared == region.shared);
        if region.kind != RegionKind::Shared as u16 || first != Some(n) {
            continue;
        }
        let mut done = 0;
        while done < region.size {
            let left = region.size.wrapping_sub(done);
            let slice = memory::scrub_slice(windows, region.pa.wrapping_add(done), left);
            done = done.wrapping_add(slice);
        }
    }
}

/// Copies a payload into the RAM of its VM.
fn copy(pcpu: &mut Pcpu, vm: usize, load: &Load) {
    let Some(to) = physical(vm, load.ipa) else {
        return;
    };
    let from = LOADED_AT.load(Ordering::Relaxed).wrapping_add(load.offset);
    let mut done = 0;
    while done < load.size {
        let left = load.size.wrapping_sub(done);
        let slice = memory::copy_slice(
            &mut pcpu.windows,
            from.wrapping_add(done),
            to.wrapping_add(done),
            left,
        );
        done = done.wrapping_add(slice);
        attend(pcpu);
    }
}

/// The key from which the random numbers of a VM are made; `None` if the board offers none.
fn random_key(vm: usize) -> Option<[u8; 32]> {
    let fixed = plan()
        .vms
        .get(vm)
        .is_some_and(|vm| vm.flags & VM_DETERMINISTIC != 0);
    let mut key = [0u8; 32];
    if !fixed {
        for (slot, word) in key.as_chunks_mut().0.iter_mut().zip(&ENTROPY) {
            *slot = word.load(Ordering::Relaxed).to_le_bytes();
        }
    }
    (fixed || key != [0; 32]).then_some(key)
}

/// 64 bytes of a key and what they are for.
fn random_block(key: &[u8; 32], purpose: &[u8; 12]) -> [u8; 64] {
    let mut bytes = [0u8; 64];
    // One block of 2^32: it cannot be that the stream has no more, which is why the answer says nothing.
    let _done = ChaCha20::new(key.into(), purpose.into()).try_apply_keystream(&mut bytes);
    bytes
}

/// 64 bytes of a key, for a vCPU's generator.
pub fn next_block(key: &[u8; 32]) -> [u8; 64] {
    random_block(key, b"bulkhead\0\0\0\0")
}

/// The generator of this pCPU's vCPU, if the board offers random bytes.
fn generator(pcpu: &Pcpu) -> Option<Generator> {
    let vm = pcpu.vm?;
    let mut purpose = *b"bulkhead\0\0\0\0";
    purpose[8] = vm as u8;
    // Seeds have 0 and 1 here.
    purpose[9] = 2;
    purpose[10] = pcpu.number as u8;
    let bytes = random_block(&random_key(vm)?, &purpose);
    bytes.first_chunk().copied().map(Generator::new)
}

/// FDT_NOP, which makes a property vanish.
const NOP: [u8; 4] = [0, 0, 0, 4];

/// Fills the seeds of a VM's device tree.
fn fill_seeds(pcpu: &mut Pcpu, vm: usize, seeds: &[Seed]) {
    let key = random_key(vm);
    for seed in seeds {
        let Some(pa) = physical(vm, seed.ipa) else {
            continue;
        };
        let size = seed.size.min(64) as usize;
        let Some(key) = key else {
            // FDT_PROP, length, name, value: one NOP for each word.
            for word in 0..size.wrapping_add(12) / 4 {
                let at = pa.wrapping_add((word as u64).wrapping_mul(4));
                memory::write(&mut pcpu.windows, at, &NOP);
            }
            continue;
        };
        let mut purpose = *b"bulkhead\0\0\0\0";
        purpose[8] = vm as u8;
        purpose[9] = u8::from(seed.kind == SeedKind::Kaslr as u16);
        let bytes = random_block(&key, &purpose);
        memory::write(
            &mut pcpu.windows,
            pa.wrapping_add(12),
            bytes.get(..size).unwrap_or(&[]),
        );
    }
}

/// Starts the interrupts and timers of this pCPU.
pub fn start_pcpu(pcpu: &mut Pcpu) {
    cpu::start();
    let board = &plan().header.board;
    let ppis = 1 << (board.hyp_timer_intid % 32) | 1 << (board.maintenance_intid % 32);
    let wanted = 1 << gic::KICK | 1 << gic::SIBLING | ppis;
    pcpu.gic.start(pcpu.index, wanted);
    if let Some(service) = &pcpu.service {
        service.uart.start();
        pcpu.gic.enable(board.uart_intid);
    }
    for device in pcpu.vm.map_or(&[][..], |vm| plan().devices_of(vm)) {
        if device.kind == DeviceKind::Pl011 as u16 {
            pcpu.places.pl011 = device.ipa;
            pcpu.pl011_intid = u32::from(device.vintid);
        }
    }
    if let Some(vm) = pcpu.vm {
        pcpu.places.timed = timed::places(vm);
    }
    pcpu.workarounds = Workarounds::find(cpu::speculation(), firmware::call);
    pcpu.generator = generator(pcpu);
    pcpu.ids = IdRegisters::new(&cpu::id_registers());
    if gic::VIRTUAL == Version::V2 {
        pcpu.ids = pcpu.ids.with_gicv2();
    }
    pcpu.stats = bulkhead_core::stats::ExitStats::new(crate::hw::sysreg::cycles());
    // A kick that came before this pCPU's interrupts were ready is lost; what it was about is in the
    // mailbox.
    gic::send(gic::KICK, pcpu.index);
}

/// Gets the VM `index` ready and enters it. Returns only if somebody has stopped it in the meantime.
pub fn run(pcpu: &mut Pcpu, index: usize) {
    let Some(row) = plan().vms.get(index) else {
        return;
    };
    let shared = vm::vm(index);
    lifecycle::begin(shared, pcpu.vcpus);
    for region in plan().regions_of(index) {
        if region.kind == RegionKind::Ram as u16 {
            scrub(pcpu, region.pa, region.size);
        }
    }
    for load in plan().loads_of(index) {
        copy(pcpu, index, load);
    }
    fill_seeds(pcpu, index, plan().seeds_of(index));
    reset_devices(pcpu, shared, index, row.spis);
    attend(pcpu);
    let start = Start {
        entry: row.entry,
        context: row.boot_arg,
    };
    if shared.power.begin() {
        enter(pcpu, index, start);
    } else {
        lifecycle::take_off(pcpu);
    }
}

/// The interrupts and emulated devices of a VM as after a reset.
fn reset_devices(pcpu: &mut Pcpu, shared: &Vm, index: usize, spis: u32) {
    let (version, vtimer) = (gic::VIRTUAL, pcpu.vtimer_intid);
    shared.dist.reset(version, pcpu.vcpus, spis, vtimer);
    for irq in plan().irqs_of(index) {
        let edge = irq.flags & bulkhead_abi::plan::IRQ_EDGE != 0;
        shared.link(u32::from(irq.vintid), u32::from(irq.pintid), edge);
    }
    if timed::owns_physical(index) {
        let board = &plan().header.board;
        shared.link(timed::PHYSICAL_TIMER, board.ptimer_intid, false);
    }
    timed::reset(pcpu, shared);
    // Nobody else uses it: all vCPUs are off.
    let _done = shared.pl011.try_use(|pl011| {
        *pl011 = Pl011::new();
        while shared.streams.input.pop().is_some() {}
    });
}

/// Enters a vCPU that another one has switched on.
pub fn run_secondary(pcpu: &mut Pcpu, index: usize, start: Start) {
    enter(pcpu, index, start);
}

/// Gives the pCPU to its vCPU. Returns only if its VM has ended meanwhile.
fn enter(pcpu: &mut Pcpu, index: usize, start: Start) {
    let shared = vm::vm(index);
    pcpu.frame = Frame::default();
    pcpu.frame.set(0, start.context);
    pcpu.physical_timer = PhysicalTimer::new();
    timer::give_guest_time(shared.time.offset(), timed::owns_physical(index));
    pcpu.gic.reset_virtual();
    // With what came while it was off.
    let whom = pcpu.vgic.reset(&shared.dist, &mut pcpu.gic);
    pcpu.notify(whom);
    let vmid = plan().vms.get(index).map_or(0, |row| row.vmid);
    cpu::install(vmid, stage2_root(index), pcpu.number as u64, start.entry);
    pcpu.runs = true;
    if matches!(shared.power.phase(), Phase::Stopping(_)) {
        return lifecycle::take_off(pcpu);
    }
    // A pause that came meanwhile is seen in the first exit, which this is for.
    mailbox::send(pcpu.index, mailbox::POWER);
    cpu::enter(crate::hw::boot::state_address(pcpu.index))
}

/// Page of the pool at which the stage-2 tables of a VM start.
pub fn stage2_page(index: usize) -> usize {
    let plan = plan();
    let before: u32 = plan
        .vms
        .iter()
        .take(index)
        .fold(0, |sum, vm| sum.wrapping_add(vm.s2_pages));
    vm_page_number(plan.vms.len()).wrapping_add(before as usize)
}

/// Page of the pool that is the page of VM `index`.
pub fn vm_page_number(index: usize) -> usize {
    plan()
        .pcpus
        .len()
        .wrapping_mul(layout::PCPU_PAGES)
        .wrapping_add(index.wrapping_mul(bulkhead_abi::plan::VM_POOL_PAGES as usize))
}

/// Physical address of the pool.
pub fn pool_base() -> u64 {
    LOADED_AT
        .load(Ordering::Relaxed)
        .wrapping_add(plan().header.image.pool_offset)
}

fn stage2_root(index: usize) -> u64 {
    pool_base().wrapping_add((stage2_page(index) as u64).wrapping_mul(bulkhead_abi::plan::PAGE))
}

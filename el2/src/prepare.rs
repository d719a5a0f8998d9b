//! Getting a VM ready on its pCPU: memory scrubbed, payloads copied, seeds filled in, interrupts and
//! registers at reset. Memory is handled in slices; between two the pCPU does what else is asked of it.

use core::sync::atomic::{AtomicU64, Ordering};

use bulkhead_abi::plan::{Load, RegionKind, Seed, SeedKind, VM_DETERMINISTIC};
use bulkhead_core::sysreg::IdRegisters;
use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};

use crate::hw::{cpu, firmware, gic, layout, memory, mmu, timer};
use crate::pcpu::Pcpu;
use crate::start::plan;
use crate::stop;
use crate::vm;

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
fn physical(vm: usize, ipa: u64) -> Option<u64> {
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
        if !stop::poll(pcpu) {
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

/// FDT_NOP, which makes a property vanish.
const NOP: [u8; 4] = [0, 0, 0, 4];

/// Fills the seeds of a VM's device tree.
fn fill_seeds(pcpu: &mut Pcpu, vm: usize, seeds: &[Seed]) {
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
    let random = fixed || key != [0; 32];
    for seed in seeds {
        let Some(pa) = physical(vm, seed.ipa) else {
            continue;
        };
        let size = seed.size.min(64) as usize;
        if !random {
            // FDT_PROP, length, name, value: one NOP for each word.
            for word in 0..size.wrapping_add(12) / 4 {
                let at = pa.wrapping_add((word as u64).wrapping_mul(4));
                memory::write(&mut pcpu.windows, at, &NOP);
            }
            continue;
        }
        let mut nonce = *b"bulkhead\0\0\0\0";
        nonce[8] = vm as u8;
        nonce[9] = u8::from(seed.kind == SeedKind::Kaslr as u16);
        let mut bytes = [0u8; 64];
        ChaCha20::new(&key.into(), &nonce.into()).apply_keystream(&mut bytes);
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
    let wanted = 1 << gic::KICK | 1 << timer::EL2_TIMER | 1 << (board.maintenance_intid % 32);
    gic::start_redistributor(pcpu.gic.gicr, wanted);
    pcpu.gic.list_registers = gic::start_cpu_interface();
    pcpu.gic.usable = (1u32 << pcpu.gic.list_registers.min(16)).wrapping_sub(1) & !1;
    let own = plan().pcpus.get(pcpu.index).map_or(0, |row| row.mpidr);
    if let Some(service) = &pcpu.service {
        service.uart.start();
        pcpu.gic.enable(board.uart_intid);
    }
    // A kick that came before this redistributor was ready is lost; what it was about is in the mailbox.
    gic::kick(own);
}

/// Gets the VM `index` ready and enters it.
pub fn run(pcpu: &mut Pcpu, index: usize) -> ! {
    let Some(row) = plan().vms.get(index) else {
        firmware::power_off()
    };
    for region in plan().regions_of(index) {
        if region.kind == RegionKind::Ram as u16 {
            scrub(pcpu, region.pa, region.size);
        }
    }
    for load in plan().loads_of(index) {
        copy(pcpu, index, load);
    }
    fill_seeds(pcpu, index, plan().seeds_of(index));

    let shared = vm::vm(index);
    shared.dist.reset(row.spis, pcpu.vtimer_intid);
    for irq in plan().irqs_of(index) {
        let edge = irq.flags & bulkhead_abi::plan::IRQ_EDGE != 0;
        shared.link(u32::from(irq.vintid), u32::from(irq.pintid), edge);
    }
    for device in plan().devices_of(index) {
        pcpu.places.pl011 = device.ipa;
        pcpu.pl011_intid = u32::from(device.vintid);
    }
    pcpu.ids = IdRegisters::new(&cpu::id_registers());
    pcpu.frame.set(0, row.boot_arg);
    attend(pcpu);
    cpu::install(row.vmid, stage2_root(index), pcpu.affinity, row.entry);
    pcpu.stats = bulkhead_core::stats::ExitStats::new(crate::hw::sysreg::cycles());
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

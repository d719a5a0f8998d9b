//! Start-up, as one list in order. No entry of the plan is used before the plan is proven.

use bulkhead_abi::console::{Booted, Word, label};
use bulkhead_abi::plan::{
    IRQ_DOORBELL, IRQ_EDGE, InterruptMode, PAGE, Region, RegionKind, STOLEN_TIME_PAGE,
    ServiceThread, VM_PMU, VM_WAITS,
};
use bulkhead_abi::refused;
use bulkhead_core::boot_tree::BootTree;
use bulkhead_core::console::text::TextLine;
#[cfg(not(feature = "gicv2"))]
use bulkhead_core::gppt::{Mode, Reclaim};
use bulkhead_core::plan::{Invariant, PagePool as Parts, Plan, Violation, table_name_for};
use bulkhead_core::stage2::{self, Builder};
use bulkhead_core::virtio::pages;

#[cfg(not(feature = "gicv2"))]
use crate::hw::gic::gppt::GpptPcpus;
use crate::hw::mmio::Registers;
use crate::hw::mmu::{self, CopyWindows, Frame, PagePool};
use crate::hw::plan::set_plan;
#[cfg(not(feature = "gicv2"))]
use crate::hw::sdei;
use crate::hw::service::set_state_pages;
use crate::hw::uart::{self, Uart};
use crate::hw::{boot, cpu, firmware, gic, layout, page_pool, pmu, timer};
use crate::plan::{plan, service_thread};
use crate::profile::{IO, LEVEL, MANAGED, PROFILE};
use crate::vcpu::Vcpu;
use crate::{
    console, control, doorbell, gppt, managers, prepare, random, reach, sched, timed, virtio, vm,
};

/// Runs start-up on the boot pCPU: proves the plan, builds the memory maps, starts the other pCPUs,
/// and becomes a pCPU like them.
#[inline(always)]
pub fn primary(tree: u64, load: u64) -> ! {
    let mut copy_windows = CopyWindows::boot();
    let bytes = boot::boot_tree(&mut copy_windows, tree);
    let mut tree = BootTree::none();
    let read = bytes.and_then(|bytes| tree.read_in_place(bytes, uart::KIND.words()));
    let tree = read.map(|()| &tree);
    let uart = tree.and_then(BootTree::uart).or_else(plan_uart);
    let uart = Uart(match uart {
        Some(pa) => copy_windows.registers(layout::FRAMES, pa, PAGE),
        None => crate::hw::mmio::Registers::NONE,
    });
    uart.open();
    boot::set_uart(uart);
    let Some(tree) = tree else {
        let mut line = TextLine::new();
        line.text(refused!("board-tree: x0 is the address of no device tree"));
        last_words(uart, &line)
    };

    if !cpu::has_cycle_counter() {
        let mut line = TextLine::new();
        line.text(refused!(
            "board-pmu: the CPU has no performance monitors, whose cycle counter EL2 needs"
        ));
        last_words(uart, &line)
    }
    let (plan, parts) = match prove(tree, load) {
        Ok(proven) => proven,
        Err(violation) => refuse(uart, violation, load),
    };
    if IO && plan.has_budgets() && !pmu::counts(plan.header.board.event) {
        let mut line = TextLine::new();
        line.text(refused!("board-event: the CPU does not count event "))
            .hex(plan.header.board.event.into());
        last_words(uart, &line)
    }
    if IO && plan.vms.iter().any(|vm| vm.flags & VM_PMU != 0) && !pmu::are_enough() {
        let mut line = TextLine::new();
        line.text(refused!(
            "board-counters: the CPU has fewer than two event counters, and VMs with performance monitors"
        ));
        last_words(uart, &line)
    }
    set_plan(plan);
    boot::drop_behind(plan.header.size);
    page_pool::set_loaded_at(load);
    greet(uart, &plan);

    let mut page_pool = PagePool::open(&mut copy_windows, parts);
    mmu::move_image(&mut copy_windows, &page_pool);
    share_vms(&mut copy_windows, &page_pool);
    map_vcpus(&page_pool);
    random::start(&page_pool, tree.rng_seed);
    boot::forget_stack();
    build_stage2(&mut page_pool);
    start_distributor(&mut copy_windows, uart);
    read_clock(&mut copy_windows);
    make_private_maps(&mut copy_windows, &page_pool, uart);
    if IO {
        for (n, row) in plan.service_threads().iter().enumerate() {
            make_service_map(&mut page_pool, n, row);
        }
        virtio::start();
    }
    if MANAGED {
        control::start();
    }
    prepare::scrub_shared(&mut copy_windows);
    for (index, row) in plan.vms.iter().enumerate() {
        if row.flags & VM_WAITS == 0 {
            let _all_are_down = vm::start(index);
        }
    }

    if IO {
        vm::LIMITS.set_registers(plan.have_registers());
    }
    let own = cpu::affinity();
    let mut index = 0;
    for (n, pcpu) in plan.pcpus.iter().enumerate() {
        if pcpu.service != 0 {
            console::state::set_drainer(n);
            vm::LIMITS.set_drainer(n);
        }
        if pcpu.mpidr == own {
            index = n;
        }
    }
    #[cfg(feature = "spin-table")]
    for n in 0..bulkhead_abi::plan::MAX_PCPUS {
        // No CPU has the MPIDR of a pCPU that the plan does not have.
        mmu::set_mpidr(n, plan.pcpus.get(n).map_or(u64::MAX, |pcpu| pcpu.mpidr));
    }
    boot::publish();
    for (n, pcpu) in plan.pcpus.iter().enumerate() {
        if pcpu.mpidr != own && firmware::start_pcpu(&mut copy_windows, pcpu, n) != 0 {
            let mut line = TextLine::new();
            line.text("firmware does not start pcpu ").decimal(n as u64);
            last_words(uart, &line);
        }
    }
    boot::become_pcpu(index)
}

/// Starts a pCPU that has its private map, and creates its vCPUs. Apart from what follows, which stays mapped.
#[inline(never)]
pub fn pcpu(idle: &mut Vcpu) {
    prepare::start_pcpu(idle);
    sched::make_vcpus(idle);
}

/// Returns the UART that the plan names, for the last words on a board whose device tree names
/// none; `None` if an invariant of the plan is broken.
#[cold]
fn plan_uart() -> Option<u64> {
    let plan = Plan::open_for::<LEVEL>(boot::behind_el2()).ok()?;
    plan.check_for::<LEVEL>().ok()?;
    let board = &plan.header.board;
    (board.uart_kind == uart::KIND as u32).then_some(board.uart)
}

/// Reads the plan behind the EL2 binary and proves it, alone and against the board.
fn prove(tree: &BootTree, load: u64) -> Result<(Plan<'static>, Parts), Violation> {
    let plan = Plan::open_for::<LEVEL>(boot::behind_el2())?;
    let parts = plan.check_for::<LEVEL>()?;
    if plan.header.board.gic_version != gic::VERSION {
        return Err(Violation::header(Invariant::GicVersion));
    }
    if plan.header.board.uart_kind != uart::KIND as u32 {
        return Err(Violation::header(Invariant::UartKind));
    }
    if plan.header.image.profile != PROFILE as u32 {
        return Err(Violation::header(Invariant::Profile));
    }
    plan.fits(&tree.found(cpu::affinity(), load))?;
    Ok((plan, parts))
}

/// Prints which invariant is broken, where, and what it means, and switches the board off.
#[cold]
fn refuse(uart: Uart, violation: Violation, load: u64) -> ! {
    let mut line = TextLine::new();
    line.text(refused!())
        .all(violation.invariant.name_for::<LEVEL>())
        .text(": ");
    let name = violation
        .table
        .map_or(&b"header"[..], table_name_for::<LEVEL>);
    line.all(name);
    if violation.table.is_some() {
        line.byte(b' ').decimal(u64::from(violation.row));
    }
    if let Some(other) = violation.other {
        line.text(" and ")
            .all(name)
            .byte(b' ')
            .decimal(u64::from(other));
    }
    if violation.invariant == Invariant::BoardImage {
        line.text(": loaded at ").hex(load);
        if let Ok(plan) = Plan::open_for::<LEVEL>(boot::behind_el2()) {
            line.text(", made for ").hex(plan.header.image.base);
        }
    }
    last_words(uart, &line)
}

fn say(uart: Uart, line: &TextLine) {
    for part in [label::EL2.as_bytes(), line.as_bytes(), b"\r\n"] {
        for byte in part {
            uart.send_polled(*byte);
        }
    }
}

#[cold]
fn last_words(uart: Uart, line: &TextLine) -> ! {
    say(uart, line);
    uart.flush();
    firmware::power_off()
}

fn greet(uart: Uart, plan: &Plan) {
    let mut line = TextLine::new();
    Booted {
        version: Word(env!("CARGO_PKG_VERSION")),
        pcpus: plan.pcpus.len() as u64,
        vms: plan.vms.len() as u64,
    }
    .write(&mut line);
    say(uart, &line);
}

/// Maps the pages of every VM and virtio device for all pCPUs.
fn share_vms(copy_windows: &mut CopyWindows, page_pool: &PagePool) {
    for index in 0..plan().vms.len() {
        mmu::share_vm_pages(page_pool, index);
    }
    if IO {
        for device in 0..plan().virtio_devices().len() {
            mmu::share_virtio_pages(page_pool, device);
        }
    }
    mmu::share_vm_block(copy_windows);
    vm::VCPU_LOCATION.start(plan().vcpus);
    vm::find_vcpus();
    doorbell::start();
}

/// Maps the pages of every vCPU and service thread where it may run.
fn map_vcpus(page_pool: &PagePool) {
    for (id, row) in plan().vcpus.iter().enumerate() {
        mmu::map_vcpu(page_pool, id, plan().may_run_on(row));
    }
    if IO {
        for (n, row) in plan().service_threads().iter().enumerate() {
            let id = service_thread(n);
            mmu::map_vcpu(page_pool, id, 1u32.wrapping_shl(row.pcpu.into()));
            vm::VCPU_LOCATION.set(id, row.pcpu.into());
            virtio::place(n, id, row.pcpu);
        }
    }
}

/// Builds the stage-2 tables of all VMs. The proof of the plan says that this cannot fail.
fn build_stage2(page_pool: &mut PagePool) {
    for (index, row) in plan().vms.iter().enumerate() {
        let regions = plan().regions_of(index);
        let most = row.s2_pages;
        let place = stage2::with_root(row.s2_root, most.into(), stage2::colours_of(regions));
        let base = page_pool::loaded_at().wrapping_add(place.pa);
        let stolen = page_pool::vm_page_number(index).wrapping_add(STOLEN_TIME_PAGE as usize);
        let stolen = page_pool.pa(stolen);
        // Among those of other VMs, where it keeps to colours.
        let beside = *page_pool;
        let pages = page_pool.tables(base);
        let Ok(mut builder) = Builder::new(pages, base, place.colours, most as usize) else {
            continue;
        };
        for region in regions {
            let mut region = *region;
            let told = region.kind == RegionKind::StolenTime as u16
                || MANAGED && region.kind == RegionKind::StopWord as u16;
            if told {
                beside.show(stolen);
                region.pa = stolen;
            }
            if IO && region.kind == RegionKind::VirtioRegisters as u16 {
                region.pa = registers_at(&beside, index, region.ipa);
            }
            if builder.map(&region).is_err() {
                // Accesses to a region that is not mapped fault in its VM. A wrong mapping cannot
                // arise.
                break;
            }
        }
    }
}

/// Reads the time of day from the board's PL031 (RTCDR), if the board has one.
fn read_clock(copy_windows: &mut CopyWindows) {
    let rtc = plan().header.board.rtc;
    if rtc != 0 {
        let registers = copy_windows.registers(layout::FRAMES.wrapping_add(1), rtc, PAGE);
        let seconds = timer::now().checked_div(timer::frequency());
        timed::set_time(registers.read(0), seconds.unwrap_or(0));
    }
}

/// Returns the physical address of the registers of the virtio device that a VM has at an IPA.
fn registers_at(page_pool: &PagePool, vm: usize, ipa: u64) -> u64 {
    let device = virtio::of_vm(vm).find(|(_, row)| row.ipa == ipa);
    let device = device.map_or(0, |(device, _)| device);
    page_pool.page_of(&page_pool.parts.registers, device)
}

/// Builds the map of what a service thread reaches, and adds it to that of its pCPU.
fn make_service_map(page_pool: &mut PagePool, service: usize, row: &ServiceThread) {
    let Some((state, tables)) = plan().service_of(&page_pool.parts, service) else {
        return;
    };
    set_state_pages(service, state.size / PAGE);
    let start = page_pool::loaded_at();
    let (base, most) = (start.wrapping_add(tables.pa), tables.size / PAGE);
    let root = page_pool.page_of(&tables, 0);
    let pages = page_pool.tables(base);
    let Ok(mut builder) = Builder::new(pages, base, tables.colours, most as usize) else {
        return;
    };
    let own = core::iter::once(pages::state(Region {
        pa: start.wrapping_add(state.pa),
        ..state
    }));
    let memory = pages::reached(plan(), service).map(|reached| {
        reach::note(&reached);
        reached.region
    });
    for region in own.chain(memory) {
        if builder.map_for_el2(&region).is_err() {
            // The proof of the plan has counted the tables.
            break;
        }
    }
    mmu::add_service_map(page_pool, row.pcpu.into(), root, 0..512);
    if MANAGED {
        add_managers(page_pool, service, root);
    }
}

/// Adds the memory of managers, whose consoles a service thread serves, to the maps of the pCPUs on which their vCPUs may run.
fn add_managers(page_pool: &mut PagePool, service: usize, root: u64) {
    for (_, row) in managers::consoles() {
        if usize::from(row.service) != service {
            continue;
        }
        let vcpus = plan().vcpus_of(row.vm.into()).iter();
        let pcpus = vcpus.fold(0, |all, vcpu| all | plan().may_run_on(vcpu));
        for (at, size) in reach::places(row.vm) {
            let mut rest = pcpus;
            while rest != 0 {
                let index = rest.trailing_zeros() as usize;
                rest &= rest.wrapping_sub(1);
                mmu::add_service_map(page_pool, index, root, pages::root_entries(at, size));
            }
        }
    }
}

/// Puts the distributor into its first state and routes every SPI of the plan to its pCPU. The boot
/// pCPU does this for all pCPUs, because sixteen SPIs share a trigger register.
fn start_distributor(copy_windows: &mut CopyWindows, uart: Uart) {
    let plan = plan();
    let board = &plan.header.board;
    let gicd = gic::start_distributor(copy_windows, board);
    for irq in plan.irqs {
        let intid = u32::from(irq.pintid);
        let vm = plan.vms.get(usize::from(irq.vm));
        let is_vgic = vm.is_some_and(|vm| vm.interrupts == InterruptMode::Vgic as u16);
        // Without one that no device has a vGIC's is latched.
        if irq.flags & IRQ_DOORBELL == 0 || !is_vgic {
            check_spi(intid, uart);
        }
        if let Some(vcpu) = plan.vcpus_of(usize::from(irq.vm)).first() {
            gic::configure(gicd, intid, irq.flags & IRQ_EDGE != 0);
            gic::route(gicd, intid, usize::from(vcpu.pcpu));
        }
    }
    for pcpu in plan.pcpus.iter().filter(|pcpu| pcpu.call_spi != 0) {
        let first = u32::from(pcpu.call_spi);
        check_spi(first, uart);
        check_spi(first.wrapping_add(1), uart);
    }
    let drainer = plan.pcpus.iter().position(|pcpu| pcpu.service != 0);
    if let Some(drainer) = drainer {
        check_spi(board.uart_intid, uart);
        gic::configure(gicd, board.uart_intid, uart::EDGE);
        gic::route(gicd, board.uart_intid, drainer);
    }
    if IO {
        for (index, pcpu) in plan.pcpus.iter().enumerate() {
            if pcpu.pmu_intid >= 32 {
                check_spi(pcpu.pmu_intid, uart);
                gic::configure(gicd, pcpu.pmu_intid, false);
                gic::route(gicd, pcpu.pmu_intid, index);
            }
        }
    }
    give_interrupts(gicd, drainer.unwrap_or(0), uart);
}

/// Gives EL2's interrupts on the pCPUs of GPPT VMs their groups and priorities.
#[cfg(not(feature = "gicv2"))]
fn give_interrupts(gicd: Registers, drainer: usize, uart: Uart) {
    let mut pcpus = GpptPcpus::default();
    for (pcpu, vm) in gppt::state::pcpus() {
        let Some(row) = plan().vms.get(vm) else {
            continue;
        };
        let bit = 1u32.wrapping_shl(pcpu as u32);
        if gppt::state::reclaim(row) == Reclaim::Sdei {
            pcpus.events |= bit;
        } else if gppt::state::mode(row).is_some_and(Mode::el2_in_group0) {
            pcpus.group0 |= bit;
        } else {
            pcpus.shared |= bit;
        }
    }
    if pcpus.group0 | pcpus.events | pcpus.shared == 0 {
        return;
    }
    let mut line = TextLine::new();
    if pcpus.events != 0
        && let Some(what) = sdei::missing()
    {
        line.text(refused!("board-sdei: ")).text(what);
        line.text(", by which the CPU of a VM is to be got back");
        last_words(uart, &line);
    }
    if !gic::gppt::prepare(gicd, pcpus) {
        line.text(refused!(
            "board-security: GICD_CTLR.DS is 0; the plan is for no firmware at EL3"
        ));
        last_words(uart, &line);
    }
    if gic::gppt::has_gppt_vm(drainer) {
        gic::gppt::claim(gicd, plan().header.board.uart_intid, drainer);
    }
    hold_stage2_roots();
    gic::gppt::start_calls(gicd);
}

/// Refuses a board of which EL2 cannot have an SPI of the plan: the GIC does not have it, or it is the Secure side's.
fn check_spi(intid: u32, uart: Uart) {
    if gic::spis::is_usable(intid) {
        return;
    }
    let mut line = TextLine::new();
    line.text(refused!("board-spis: EL2 cannot enable INTID "))
        .decimal(u64::from(intid));
    last_words(uart, &line);
}

/// Records the stage 2 of GPPT VMs. The proof of the plan says that no GPPT VM runs on the pCPU
/// that drains the console.
#[cfg(feature = "gicv2")]
fn give_interrupts(gicd: Registers, _: usize, said: Uart) {
    let mut poked = gppt::state::pcpus().filter(|(pcpu, _)| !gic::gppt::is_called(*pcpu));
    if poked.next().is_some() && !gic::gppt::may_poke(gicd) {
        let mut line = TextLine::new();
        line.text(refused!("board-security: SGI 15 is the Secure side's"));
        last_words(said, &line);
    }
    hold_stage2_roots();
    gic::gppt::start_calls(gicd);
}

/// Records the stage 2 of the VMs that could mask EL2's interrupts, so that it can be taken away.
fn hold_stage2_roots() {
    let masking = gppt::state::pcpus().filter(|(_, vm)| gppt::state::can_mask(*vm));
    for (pcpu, vm) in masking {
        gic::gppt::give_to(pcpu, vm);
    }
}

/// Builds the private memory map of every pCPU.
fn make_private_maps(copy_windows: &mut CopyWindows, page_pool: &PagePool, said: Uart) {
    let board = &plan().header.board;
    for (index, pcpu) in plan().pcpus.iter().enumerate() {
        let Some(frames) = gic::private_frames(copy_windows, board, pcpu.mpidr) else {
            let mut line = TextLine::new();
            line.text(refused!("board-gicr: pcpu "))
                .decimal(index as u64)
                .text(" has no redistributor");
            last_words(said, &line);
        };
        let uart = (pcpu.service != 0).then_some(Frame {
            page: layout::private::UART,
            pa: uart::page_of(board.uart).0,
            pages: 1,
        });
        mmu::make_private(page_pool, index, frames.into_iter().chain(uart));
    }
}

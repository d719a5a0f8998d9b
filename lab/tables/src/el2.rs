//! Holds EL2's own map on each pCPU against what may run there: speculation at EL2, and a stray pointer, reach what is
//! mapped; and what of it is executable or writable, a wild store or jump of EL2's makes use of. A walker of its own (DDI 0487, D8.3 "Translation table descriptor formats", stage 1 with one range of addresses),
//! and the order of the page pool as `docs/internals/memory.md` has it.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bulkhead_abi::plan::{
    ACCESS_UNCACHED, ACCESS_WRITE, ALL_COLOURS, CpuPolicy, PCPU_PAGES, Region, RegionKind,
    VCPU_PAGES, VM_DETERMINISTIC, VM_PAGES, VirtioDevice,
};
use bulkhead_core::cpu::keys::Key;
use bulkhead_core::plan::Plan;
use bulkhead_core::{colours, stage2};
use object::{Object, ObjectSymbol};

use crate::el2_pages::{self, El2Pages};
use crate::stage2::{has, name};
use crate::walk::{PAGE, Reader};
use crate::{Cpu, Pages};

/// EL2's gigabyte, and its blocks.
const EL2: u64 = 0x20_0000_0000;
const EL2_SIZE: u64 = 1 << 30;
const BLOCK: u64 = 2 << 20;
/// The blocks of the vCPUs, of the first pCPU's private pages, and of copy windows.
const VCPUS: u64 = 2;
const PRIVATE: u64 = 8;
const WINDOWS: [u64; 2] = [32, 33];
/// A pCPU's pages of the page pool: root, level 2, level 3, and the rest. Mapped are the second and the rest.
const LEVEL2: u64 = 1;
const LEVEL3: u64 = 2;
/// Words of the two keys at the end of a vCPU's pages: of its VM, if it is the first, and of its generator.
const KEYS: usize = 8;

const ADDRESS: u64 = ((1 << 48) - 1) & !(PAGE - 1);
/// Normal memory by MAIR_EL2's first attribute; AP[1], which is RES1; inner shareable; accessed; execute-never.
const NORMAL: u64 = 1 << 6 | 3 << 8 | 1 << 10 | 1 << 54;
/// AttrIndx: device memory, and Normal memory that is not cacheable.
const DEVICE: u64 = NORMAL | 1 << 2;
const NON_CACHEABLE: u64 = NORMAL | 2 << 2;
/// AP[2]: EL2 cannot write.
const READ_ONLY: u64 = NORMAL | 1 << 7;
/// The hint that sixteen entries are of one run.
const CONTIGUOUS: u64 = 1 << 52;
/// [`READ_ONLY`] without execute-never.
const TEXT: u64 = READ_ONLY & !(1 << 54);
/// SCTLR_EL2: the MMU is on, and what is writable is never executable (WXN), whatever a table says.
const SCTLR: u64 = 1 << 19 | 1;

/// A mapping of EL2.
#[derive(Clone, Copy, Debug)]
struct Leaf {
    va: u64,
    pa: u64,
    size: u64,
    /// The descriptor without kind and address.
    usage: u64,
}

/// Where the parts of EL2's image end, in bytes from its start; each has permissions of its own.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// Of what only starts EL2, which is unmapped when it has.
    start: u64,
    text: u64,
    rodata: u64,
    data: u64,
    /// Start and end of the stack of start-up, in the data: unmapped, too.
    stack: (u64, u64),
    /// Of the plan, which lies behind the data. What follows is payloads of VMs: EL2 has no map of them.
    plan: u64,
}

impl Parts {
    /// Reads them from EL2's ELF file, and from where the plan is.
    pub fn of(elf: &[u8], plan_offset: u64, plan_size: u64) -> Result<Self, String> {
        let file = object::File::parse(elf).map_err(|error| error.to_string())?;
        let end = |name: &str| {
            let mut symbols = file.symbols();
            let found = symbols.find(|symbol| symbol.name() == Ok(name));
            let found = found.ok_or_else(|| format!("EL2 has no {name}"))?;
            Ok::<_, String>(found.address() - EL2)
        };
        Ok(Self {
            start: end("__start_end")?,
            text: end("__text_end")?,
            rodata: end("__rodata_end")?,
            data: end("__data_end")?,
            stack: (end("BOOT_STACK")?, end("BOOT_STACK_TOP")?),
            plan: (plan_offset + plan_size).next_multiple_of(PAGE),
        })
    }

    /// How the page that begins here is to be mapped, if it is.
    fn usage(self, offset: u64) -> Option<u64> {
        let parts = [
            (self.text, TEXT),
            (self.rodata, READ_ONLY),
            (self.data, NORMAL),
            (self.plan, READ_ONLY),
        ];
        let part = parts.into_iter().find(|(end, _)| offset < *end)?;
        Some(part.1)
    }

    /// Why a page of the image should not be mapped so.
    fn flaw(self, offset: u64, leaf: &Leaf) -> Option<&'static str> {
        if offset < self.start || (self.stack.0..self.stack.1).contains(&offset) {
            return Some("of start-up, which is over");
        }
        match self.usage(offset) {
            Some(usage) if usage == leaf.usage => None,
            Some(_) => Some("other permissions than this part of the image should have"),
            None => Some("behind the plan, where EL2 has nothing"),
        }
    }
}

/// What a page of the page pool is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// A pCPU, and the number of the page among its own.
    Pcpu(usize, u64),
    /// A vCPU by row, then service threads; and the number of the page.
    Thread(usize, u64),
    Vm,
    /// The root of a VM's stage 2.
    Root,
    Table,
    /// The state of a virtio device.
    Virtio,
    /// The registers of a virtio device, which nobody caches.
    Registers,
    /// What a service thread reaches.
    Service(usize),
    /// EL2's binary and the plan, where EL2 has moved.
    Image(u64),
}

fn walk(cpu: &Cpu, read: &mut Reader<'_>) -> Result<(Vec<Leaf>, Vec<String>), String> {
    // T0SZ: 39 bits, from level 1. TG0: 4 KiB. DS, HPD and the like, by which bits mean something else: none.
    if cpu.sctlr & SCTLR != SCTLR {
        return Err(format!("SCTLR_EL2 is {:#x}", cpu.sctlr));
    }
    if cpu.tcr & 0x3f != 25 || cpu.tcr & 3 << 14 != 0 || cpu.tcr >> 24 & 0x7f != 0 {
        return Err(format!("TCR_EL2 is {:#x}", cpu.tcr));
    }
    let (mut leaves, mut wrong) = (Vec::new(), Vec::new());
    let mut todo = vec![(cpu.ttbr0 & ADDRESS, 1, 0)];
    while let Some((table, level, first)) = todo.pop() {
        let size = 1_u64 << (12 + 9 * (3 - level));
        for (index, descriptor) in (0..).zip(read(table)?) {
            let (va, pa) = (first + index * size, descriptor & ADDRESS);
            match (descriptor & 3, level) {
                (0, _) if descriptor == 0 => {}
                (3, 1 | 2) if descriptor & !(ADDRESS | 3) == 0 => todo.push((pa, level + 1, va)),
                (1, 1 | 2) | (3, 3) if pa.is_multiple_of(size) => leaves.push(Leaf {
                    va,
                    pa,
                    size,
                    usage: descriptor & !(ADDRESS | 3),
                }),
                _ => wrong.push(format!(
                    "entry {index} of the level {level} table at {table:#x} is {descriptor:#x}"
                )),
            }
        }
    }
    Ok((leaves, wrong))
}

/// Returns what a physical page is for, if it is in the page pool.
fn owner((plan, own): (&Plan<'_>, &El2Pages), base: u64, pa: u64) -> Option<Owner> {
    let image = &plan.header.image;
    let offset = pa.checked_sub(base)?;
    if !(image.page_pool_offset..image.size).contains(&offset) {
        return None;
    }
    let parts = &own.parts;
    // Cuts one part off; gives the index of the thing that has the page, and the number of the page there.
    let part = |page: &mut u64, things: usize, pages: u32| {
        let (pages, all) = (u64::from(pages), things as u64 * u64::from(pages));
        let found = (*page < all).then(|| ((*page / pages) as usize, *page % pages));
        *page = page.saturating_sub(all);
        found
    };
    if let Some(mut page) = el2_pages::number(&parts.threads, offset) {
        if let Some((pcpu, page)) = part(&mut page, plan.pcpus.len(), PCPU_PAGES) {
            return Some(Owner::Pcpu(pcpu, page));
        }
        let threads = plan.vcpus.len() + plan.service_threads().len();
        if let Some((thread, page)) = part(&mut page, threads, VCPU_PAGES) {
            return Some(Owner::Thread(thread, page));
        }
        return part(&mut page, plan.vms.len(), VM_PAGES).map(|_| Owner::Vm);
    }
    if el2_pages::number(&parts.virtio, offset).is_some() {
        return Some(Owner::Virtio);
    }
    if el2_pages::number(&parts.registers, offset).is_some() {
        return Some(Owner::Registers);
    }
    if let Some(page) = el2_pages::number(&parts.image, offset) {
        return Some(Owner::Image(page));
    }
    let here = |part: &Region| el2_pages::number(part, offset).is_some();
    if let Some(n) = own.services.iter().position(|parts| parts.iter().any(here)) {
        return Some(Owner::Service(n));
    }
    let place = own
        .tables
        .iter()
        .find(|place| colours::has(place, offset))?;
    let is_root = offset == stage2::root(place);
    Some(if is_root { Owner::Root } else { Owner::Table })
}

/// Whether a thread may ever run on a pCPU: a vCPU by its row, then service threads.
fn may_run(plan: &Plan<'_>, thread: usize, pcpu: usize) -> bool {
    let Some(row) = plan.vcpus.get(thread) else {
        let service = plan.service_threads().get(thread - plan.vcpus.len());
        return service.is_some_and(|row| usize::from(row.pcpu) == pcpu);
    };
    let moves =
        row.policy == CpuPolicy::Fair as u16 && plan.irqs.iter().all(|irq| irq.vm != row.vm);
    usize::from(row.pcpu) == pcpu || moves && row.pool >> pcpu & 1 != 0
}

/// Returns what is wrong with EL2's maps; empty if each has what it should, nothing less and nothing more.
pub fn judge(
    plan: &Plan<'_>,
    base: u64,
    parts: Parts,
    cpus: &[Cpu],
    read: &mut Reader<'_>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let Some(own) = El2Pages::of(plan) else {
        return vec!["the plan has no page pool".to_owned()];
    };
    let mut places = BTreeMap::new();
    for (pcpu, leaves) in maps(plan, cpus, read, &mut wrong) {
        let mut add = |why: String| wrong.push(format!("pcpu {pcpu}: {why}"));
        for leaf in &leaves {
            if let Some(why) = flaw((plan, &own), base, parts, pcpu, leaf) {
                add(format!("{:#x} is mapped to {:#x}: {why}", leaf.va, leaf.pa));
            }
        }
        let at = |va: u64| {
            leaves
                .iter()
                .any(|leaf| va.wrapping_sub(leaf.va) < leaf.size)
        };
        // Where pages that follow each other are mapped in a block: there and nowhere else, between unmapped pages.
        let place = |block: u64, page: usize, pages: usize| {
            let pa = |n: u64| base + own.thread_page(page as u64 + n);
            let start = pa(0);
            let mut here = leaves
                .iter()
                .filter(|leaf| (leaf.va - EL2) / BLOCK == block);
            let va = here.find(|leaf| leaf.pa == start)?.va;
            let follows = |(n, leaf): (u64, &Leaf)| leaf.pa == pa(n) && leaf.va == va + n * PAGE;
            let run = (0..)
                .zip(leaves.iter().skip_while(|leaf| leaf.va != va))
                .take(pages);
            (run.filter(|it| follows(*it)).count() == pages && !at(va - 1)).then_some(va)
        };
        for region in served(plan, pcpu) {
            let inside =
                |leaf: &&Leaf| leaf.va >= EL2 + EL2_SIZE && has(region, leaf.pa, leaf.size);
            let mapped: u64 = leaves.iter().filter(inside).map(|leaf| leaf.size).sum();
            // Memory that several of these VMs share is there for each of them.
            if mapped < region.size || !mapped.is_multiple_of(region.size) {
                add(format!(
                    "of the {:#x} bytes at {:#x} that a service thread needs {mapped:#x} are mapped",
                    region.size, region.pa
                ));
            }
        }
        let first = pcpu * PCPU_PAGES as usize;
        let block = PRIVATE + pcpu as u64;
        if place(block, first + 3, 5).is_none()
            || !leaves
                .iter()
                .any(|leaf| owner((plan, &own), base, leaf.pa) == Some(Owner::Pcpu(pcpu, LEVEL2)))
            || (8..10).any(|page| {
                !leaves
                    .iter()
                    .any(|leaf| owner((plan, &own), base, leaf.pa) == Some(Owner::Pcpu(pcpu, page)))
            })
        {
            add("its own stack, state or table is not mapped as it should be".to_owned());
        }
        let threads = plan.vcpus.len() + plan.service_threads().len();
        for thread in (0..threads).filter(|thread| may_run(plan, *thread, pcpu)) {
            let page = plan.pcpus.len() * PCPU_PAGES as usize + thread * VCPU_PAGES as usize;
            match place(VCPUS, page, VCPU_PAGES as usize) {
                None => add(format!(
                    "thread {thread} may run here, and is not mapped as it should be"
                )),
                Some(va) if *places.entry(thread).or_insert(va) != va => {
                    add(format!("thread {thread} is not where other pCPUs have it"));
                }
                Some(_) => {}
            }
        }
    }
    wrong
}

/// Walks the maps of all pCPUs.
fn maps(
    plan: &Plan<'_>,
    cpus: &[Cpu],
    read: &mut Reader<'_>,
    wrong: &mut Vec<String>,
) -> Vec<(usize, Vec<Leaf>)> {
    let mut maps = Vec::new();
    for (pcpu, row) in plan.pcpus.iter().enumerate() {
        let cpu = usize::try_from(row.mpidr).ok().and_then(|n| cpus.get(n));
        match cpu
            .ok_or_else(|| "is not there".to_owned())
            .and_then(|cpu| walk(cpu, read))
        {
            Ok((mut leaves, flaws)) => {
                leaves.sort_by_key(|leaf| leaf.va);
                wrong.extend(flaws.iter().map(|why| format!("pcpu {pcpu}: {why}")));
                maps.push((pcpu, leaves));
            }
            Err(why) => wrong.push(format!("pcpu {pcpu}: {why}")),
        }
    }
    maps
}

/// The memory that a pCPU maps for its service threads, and for exits of managers: of each VM with a device that one of them works for, of each that
/// serves one, and of each manager that may run there, what caches may hold.
fn served<'a>(plan: &'a Plan<'_>, pcpu: usize) -> impl Iterator<Item = &'a Region> {
    let here = move |device: &&VirtioDevice| {
        let thread = plan.service_threads().get(usize::from(device.service));
        thread.is_some_and(|thread| usize::from(thread.pcpu) == pcpu)
    };
    let has_part = move |vm: u16| {
        let mut devices = plan.virtio_devices().iter().filter(here);
        let backend = |it: &VirtioDevice| plan.backends().get(usize::from(it.backend));
        devices.any(|it| it.vm == vm || backend(it).is_some_and(|backend| backend.vm == vm))
    };
    let manages = move |vm: u16| {
        let mut vcpus = plan.vcpus_of(vm.into()).iter();
        plan.is_manager(vm.into()) && vcpus.any(|it| plan.may_run_on(it) >> pcpu & 1 != 0)
    };
    plan.regions.iter().filter(move |region| {
        let kinds = [RegionKind::Ram as u16, RegionKind::Shared as u16];
        kinds.contains(&region.kind)
            && region.access & ACCESS_UNCACHED == 0
            && (has_part(region.vm) || manages(region.vm))
    })
}

/// Returns why a pCPU should not map something so.
fn flaw(
    (plan, own): (&Plan<'_>, &El2Pages),
    base: u64,
    parts: Parts,
    pcpu: usize,
    leaf: &Leaf,
) -> Option<&'static str> {
    let owner = owner((plan, own), base, leaf.pa);
    let own_service = |n: usize| usize::from(plan.service_threads()[n].pcpu) == pcpu;
    if leaf.va >= EL2 + EL2_SIZE {
        let fits = match owner {
            Some(Owner::Service(n)) => own_service(n),
            Some(_) => false,
            None => served(plan, pcpu).any(|region| {
                let writes = region.access & ACCESS_WRITE != 0;
                let usage = leaf.usage & !CONTIGUOUS == if writes { NORMAL } else { READ_ONLY };
                usage && has(region, leaf.pa, leaf.size)
            }),
        };
        return (!fits).then_some("no service thread here may reach it");
    }
    let Some(offset) = leaf.va.checked_sub(EL2) else {
        return Some("below EL2's addresses");
    };
    let block = offset / BLOCK;
    if leaf.size != PAGE {
        let is_copy = WINDOWS.contains(&block) && leaf.size == BLOCK;
        return (!is_copy).then_some("not a page, and no copy window");
    }
    let Some(owner) = owner else {
        let board = &plan.header.board;
        let frames = [
            (board.gicd, board.gicd_size),
            (board.gicr, board.gicr_size),
            (board.gicc, board.gicc_size),
            (board.gich, board.gich_size),
            (board.uart, board.uart_size),
        ];
        let device = frames
            .iter()
            .any(|(start, size)| leaf.pa.wrapping_sub(*start) < *size);
        let moved = plan.header.image.colours != ALL_COLOURS;
        if block == 0 && leaf.pa.wrapping_sub(base) == offset && !moved {
            return parts.flaw(offset, leaf);
        }
        let fits = device && leaf.usage == DEVICE;
        return (!fits).then_some("neither the image nor a device of EL2");
    };
    // By the definition of a region's colours, not by the code that chose the page.
    let coloured = ![Owner::Root, Owner::Registers].contains(&owner);
    if coloured && plan.header.image.colours >> (leaf.pa / PAGE % 64) & 1 == 0 {
        return Some("in a colour that is not EL2's");
    }
    if let Owner::Image(page) = owner {
        let there = block == 0 && page * PAGE == offset;
        return match there {
            true => parts.flaw(offset, leaf),
            false => Some("another page of the image"),
        };
    }
    let usage = match owner {
        Owner::Registers => NON_CACHEABLE,
        _ => NORMAL,
    };
    if leaf.usage != usage {
        return Some("other attributes than it should have");
    }
    match owner {
        Owner::Vm | Owner::Virtio | Owner::Registers => None,
        // EL2 takes the stage 2 of some VMs away: a GPPT VM that could mask EL2's interrupts.
        Owner::Root => None,
        Owner::Pcpu(index, page) if index == pcpu && page != 0 && page != LEVEL3 => None,
        Owner::Pcpu(..) => Some("another pCPU's, or a table"),
        Owner::Thread(thread, _) if may_run(plan, thread, pcpu) => None,
        Owner::Thread(..) => Some("the stack or state of a vCPU that cannot run here"),
        Owner::Table | Owner::Service(_) | Owner::Image(_) => {
            Some("nothing that EL2 uses after start-up")
        }
    }
}

/// Returns where a pCPU maps keys of a VM of which no vCPU may run there: of those that the vCPUs' pages have, and the first
/// ones of deterministic VMs, which can be known. `must_be`: there have to be some, which not each board offers. The board's random bytes, from which the others come, are on no page either, if these are not.
pub fn keys(
    plan: &Plan<'_>,
    base: u64,
    cpus: &[Cpu],
    must_be: bool,
    read: &mut Reader<'_>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let Some(own) = El2Pages::of(plan) else {
        return vec!["the plan has no page pool".to_owned()];
    };
    let mut secrets: Vec<(usize, u64)> = Vec::new();
    for (vm, row) in plan.vms.iter().enumerate() {
        let threads = (0..plan.vcpus.len()).filter(|id| usize::from(plan.vcpus[*id].vm) == vm);
        for id in threads {
            let last = plan.pcpus.len() as u64 * u64::from(PCPU_PAGES)
                + (id as u64 + 1) * u64::from(VCPU_PAGES)
                - 1;
            match read(base + own.thread_page(last)) {
                Ok(page) => {
                    secrets.extend(page[page.len() - KEYS..].iter().map(|word| (vm, *word)))
                }
                Err(why) => wrong.push(why),
            }
        }
        if row.flags & VM_DETERMINISTIC != 0 {
            secrets.extend(
                first_keys(vm as u8, plan.vcpus_of(vm).len())
                    .into_iter()
                    .map(|word| (vm, word)),
            );
        }
    }
    secrets.retain(|(_, word)| *word != 0);
    if must_be && secrets.is_empty() {
        wrong.push("no VM has a key that could be looked for".to_owned());
    }
    for (pcpu, leaves) in maps(plan, cpus, read, &mut wrong) {
        let runs = |vm: usize| {
            (0..plan.vcpus.len())
                .any(|id| usize::from(plan.vcpus[id].vm) == vm && may_run(plan, id, pcpu))
        };
        let foreign: Vec<_> = secrets.iter().filter(|(vm, _)| !runs(*vm)).collect();
        // Writable Normal memory, page by page.
        for leaf in leaves
            .iter()
            .filter(|leaf| leaf.size == PAGE && leaf.usage == NORMAL)
        {
            let words = match read(leaf.pa) {
                Ok(words) => words,
                Err(why) => return vec![why],
            };
            if let Some((vm, _)) = foreign.iter().find(|(_, word)| words.contains(word)) {
                let vm = name(&plan.vms[*vm]);
                wrong.push(format!(
                    "pcpu {pcpu}: {:#x} holds a key of vm {vm}, which never runs there",
                    leaf.va
                ));
            }
        }
    }
    wrong
}

/// Words of the first keys of a deterministic VM, which come from zeros.
fn first_keys(vm: u8, vcpus: usize) -> Vec<u64> {
    let words = RefCell::new(Vec::new());
    let keys: Vec<_> = (0..=vcpus).map(|_| Key::none()).collect();
    Key::start(keys.iter(), &[0; 32], vm, |key, purpose| {
        let block = bulkhead_random::block(key, purpose);
        words.borrow_mut().extend(
            block
                .as_chunks()
                .0
                .iter()
                .map(|word| u64::from_le_bytes(*word)),
        );
        block
    });
    words.into_inner()
}

/// Tables that map the image, by the level-2 table of the first pCPU, and what differs between pCPUs.
pub fn tables(plan: &Plan<'_>, base: u64, pages: &Pages) -> Vec<u64> {
    let own = El2Pages::of(plan);
    let page = |number| base + own.as_ref().map_or(0, |own| own.thread_page(number));
    let image = pages.get(&page(LEVEL2)).map(|table| table[0] & ADDRESS);
    (0..plan.pcpus.len() as u64)
        .map(|pcpu| page(pcpu * u64::from(PCPU_PAGES) + LEVEL3))
        .chain(image)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_the_image_has_its_permissions() {
        let parts = Parts {
            start: 0x1000,
            text: 0x3000,
            rodata: 0x4000,
            data: 0x6000,
            stack: (0x4000, 0x5000),
            plan: 0x7000,
        };
        let mapped = |va: u64| {
            let usage = parts.usage(va).unwrap_or(READ_ONLY);
            let leaf = Leaf {
                va,
                pa: va,
                size: PAGE,
                usage,
            };
            parts.flaw(va, &leaf).is_none()
        };
        let pages = [0, 0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6000, 0x7000];
        let of_start_up = [0, 0x4000];
        assert!(
            pages
                .iter()
                .all(|va| mapped(*va) != (of_start_up.contains(va) || *va == 0x7000))
        );
        assert_eq!(parts.usage(0x2000), Some(TEXT));
        assert_eq!(parts.usage(0x3000), Some(READ_ONLY));
        assert_eq!(parts.usage(0x4000), Some(NORMAL));
        assert_eq!(parts.usage(0x6000), Some(READ_ONLY));
        assert_eq!(parts.usage(0x7000), None);
        // DDI 0487, D8.4 "Memory access control": AP[2] is bit 7, XN bit 54.
        assert_eq!(TEXT >> 7 & 1 | (TEXT >> 54 & 1) << 1, 1);
        assert_eq!(NORMAL >> 7 & 1 | (NORMAL >> 54 & 1) << 1, 2);
    }
}

//! Properties of a board that Bulkhead reads from its device tree.

use bulkhead_abi::plan::{MAX_PCPUS, Memory, PAGE, UartKind};
use dtoolkit::fdt::Fdt;
use zerocopy::FromZeros;

use super::caches::CachesTold;
use super::firmware::FirmwareTold;
use super::open::open;
use super::tree::{Entry, Tree};

/// Affinity fields of an MPIDR in a `reg` of /cpus.
const AFFINITY: u64 = 0xff_00ff_ffff;

/// Words of `compatible` of GICv2s that EL2 knows (`bulkhead_core::boot_tree`).
pub const GICV2: [&str; 3] = ["arm,cortex-a15-gic", "arm,gic-400", "arm,cortex-a7-gic"];

/// A CPU of the board.
#[derive(Clone, Debug)]
pub struct Cpu {
    /// Affinity fields of its MPIDR_EL1.
    pub mpidr: u64,
    /// First word of `compatible`, for the guests' trees.
    pub compatible: String,
    /// Release address, at which it waits for its start address; 0: firmware starts it.
    pub release: u64,
    /// INTID of the interrupt of its performance monitors, if the tree tells.
    pub pmu_intid: Option<u32>,
}

/// Parts of the board that EL2 uses, in the words of the plan.
pub type Parts = bulkhead_abi::plan::Board;

/// Facts of a device tree.
pub struct Facts {
    /// Ranges of memory, ascending.
    pub memory: Vec<Memory>,
    /// Ranges that firmware keeps.
    pub reserved: Vec<Memory>,
    /// CPUs in the order of the tree; the first one boots.
    pub cpus: Vec<Cpu>,
    /// GIC, console, timer.
    pub parts: Parts,
    /// Path of the console in the tree.
    pub console: String,
    /// What the tree tells of the firmware.
    pub firmware: FirmwareTold,
    /// What the tree tells of caches.
    pub caches: CachesTold,
}

/// Version of the GIC of a device tree; 3 where it cannot be told, as most boards have.
pub fn gic_version(dtb: Vec<u8>) -> u32 {
    let facts = open(dtb).and_then(|dtb| facts(&dtb));
    facts.map_or(3, |facts| facts.parts.gic_version)
}

/// Reads the properties of a board from its device tree, or gives the first one that is missing.
pub fn facts(dtb: &[u8]) -> Result<Facts, String> {
    facts_with(dtb, &[])
}

/// The same; the memory is `stated` if the tree tells of none, ascending.
pub fn facts_with(dtb: &[u8], stated: &[Memory]) -> Result<Facts, String> {
    let fdt = Fdt::new(dtb).map_err(|why| why.to_string())?;
    read(&Tree::new(fdt), fdt, stated)
}

/// Whether a tree tells of no memory, or leaves its size to the firmware.
pub fn lacks_memory(dtb: &[u8]) -> bool {
    Fdt::new(dtb).is_ok_and(|fdt| memory(&Tree::new(fdt)).is_ok_and(|found| found.is_empty()))
}

/// Reads the facts, or says which is missing.
fn read(tree: &Tree, fdt: Fdt, stated: &[Memory]) -> Result<Facts, String> {
    let mut memory = memory(tree)?;
    if memory.is_empty() {
        memory = stated.to_vec();
    }
    if memory.is_empty() {
        return Err("it has no memory".to_owned());
    }
    let reserved = reserved(tree, fdt);
    let mut cpus = cpus(tree)?;
    monitors(tree, &mut cpus);
    let within = |one: &Memory, at: u64| one.base <= at && at - one.base < one.size;
    if let Some(cpu) = cpus
        .iter()
        .find(|cpu| cpu.release != 0 && !memory.iter().any(|one| within(one, cpu.release)))
    {
        return Err(format!(
            "a CPU waits for an address at {:#x}, where it has no memory",
            cpu.release
        ));
    }
    let firmware = FirmwareTold::read(tree);
    if let Some(why) = firmware.out_of_reach().filter(|_| cpus[0].release == 0) {
        return Err(why);
    }
    let gic = gic(tree, cpus.len())?;
    let timer = tree
        .entries
        .iter()
        .find(|entry| entry.is("arm,armv8-timer"))
        .ok_or("it has no generic timer")?;
    is_plain("generic timer", timer)?;
    // Secure, EL1 physical, EL1 virtual, EL2 physical.
    let timer_intid = |number: usize, name: &str| {
        intid_of(tree, timer, number).ok_or_else(|| format!("it has no {name} timer"))
    };
    let console = console(tree)?;
    let &(uart, uart_size) = console
        .registers
        .first()
        .ok_or_else(|| unmapped("console", console))?;
    is_plain("console", console)?;
    let kind = uart_kind(console).unwrap_or(UartKind::Pl011);
    if uart % PAGE != 0 && !kind.is_within_page() {
        return Err(format!(
            "its console {} has no page of its own",
            console.path
        ));
    }
    let rtc = tree
        .entries
        .iter()
        .find(|entry| entry.is("arm,pl031"))
        .and_then(|entry| entry.registers.first());
    let parts = Parts {
        uart,
        // As EL2 has it: whole pages.
        uart_size: uart_size
            .checked_next_multiple_of(PAGE)
            .ok_or("the registers of its console have no end")?,
        uart_kind: kind as u32,
        rtc: rtc.map_or(0, |&(base, _)| base),
        uart_intid: intid_of(tree, console, 0).ok_or("its console has no interrupt")?,
        vtimer_intid: timer_intid(2, "virtual")?,
        ptimer_intid: timer_intid(1, "physical")?,
        hyp_timer_intid: timer_intid(3, "hypervisor")?,
        ..gic
    };
    Ok(Facts {
        memory,
        reserved,
        cpus,
        parts,
        console: console.path.clone(),
        firmware,
        caches: CachesTold::read(tree, cpu_nodes(tree).take(MAX_PCPUS)),
    })
}

/// Enters the interrupts of performance monitors: one private to each CPU, or an SPI for each (Linux, bindings/arm/pmu.yaml), in the order of
/// `interrupt-affinity` or, without it, of the CPUs.
fn monitors(tree: &Tree, cpus: &mut [Cpu]) {
    let is_monitors = |word: &String| {
        word.starts_with("arm,") && (word.ends_with("-pmu") || word == "arm,armv8-pmuv3")
    };
    let nodes = tree.entries.iter();
    let nodes =
        nodes.filter(|entry| entry.is_enabled() && entry.compatible().iter().any(is_monitors));
    for entry in nodes {
        let affinity = entry.cells("interrupt-affinity");
        let number_of = |phandle: &u32| {
            let reg = tree.by_phandle(*phandle)?.cells("reg")?;
            Some(affinity_of(&reg))
        };
        let named: Option<Vec<u64>> =
            affinity.map(|all| all.iter().filter_map(number_of).collect());
        let own = named.unwrap_or_else(|| cpus.iter().map(|cpu| cpu.mpidr).collect());
        let private = intid_of(tree, entry, 0).filter(|intid| *intid < 32);
        for (number, mpidr) in own.into_iter().enumerate() {
            if let Some(cpu) = cpus.iter_mut().find(|cpu| cpu.mpidr == mpidr) {
                cpu.pmu_intid = private.or_else(|| intid_of(tree, entry, number));
            }
        }
    }
}

/// The affinity fields in the `reg` of a CPU.
fn affinity_of(reg: &[u32]) -> u64 {
    reg.iter()
        .fold(0, |sum, cell| (sum << 32) | u64::from(*cell))
        & AFFINITY
}

/// The GIC of a board with so many CPUs; everything else is 0.
fn gic(tree: &Tree, cpus: usize) -> Result<Parts, String> {
    let gic = tree
        .entries
        .iter()
        .find(|entry| entry.is_enabled() && (entry.is("arm,gic-v3") || is_gicv2(entry)))
        .ok_or("it has neither a GICv2 nor a GICv3")?;
    if gic
        .cell("#interrupt-cells")
        .is_some_and(|cells| cells != 3 && cells != 4)
    {
        return Err("interrupts of its GIC have neither three nor four cells".to_owned());
    }
    if gic.registers.is_empty() {
        return Err(unmapped("GIC", gic));
    }
    let mut parts = Parts::new_zeroed();
    is_plain("GIC", gic)?;
    parts.maintenance_intid =
        intid_of(tree, gic, 0).ok_or("its GIC has no maintenance interrupt")?;
    if is_gicv2(gic) {
        let [gicd, gicc, gich, gicv, ..] = gic.registers[..] else {
            return Err("its GICv2 has no virtualization".to_owned());
        };
        parts.gic_version = 2;
        (parts.gicd, parts.gicd_size) = gicd;
        (parts.gicc, parts.gicc_size) = gicc;
        (parts.gich, parts.gich_size) = gich;
        (parts.gicv, parts.gicv_size) = gicv;
        return Ok(parts);
    }
    if gic
        .cell("#redistributor-regions")
        .is_some_and(|regions| regions != 1)
    {
        return Err("its GIC has several regions of redistributors".to_owned());
    }
    let [gicd, gicr, ..] = gic.registers[..] else {
        return Err("its GIC has no registers".to_owned());
    };
    if let Some(why) = redistributors(gicr.1, cpus) {
        return Err(why);
    }
    parts.gic_version = 3;
    (parts.gicd, parts.gicd_size) = gicd;
    (parts.gicr, parts.gicr_size) = gicr;
    Ok(parts)
}

/// Whether the interrupts of a part are in `interrupts` alone, which is what EL2 reads of its boot tree and compares with the plan
/// (`bulkhead_core::boot_tree`); the tool would take those of `interrupts-extended`.
fn is_plain(what: &str, entry: &Entry) -> Result<(), String> {
    // Without any of them it has none, which is said of each interrupt.
    match entry.bytes("interrupts-extended") {
        Some(_) => Err(format!(
            "its {what} has `interrupts-extended`, and EL2 reads `interrupts` only"
        )),
        None => Ok(()),
    }
}

/// What is wrong with the region of the redistributors of so many CPUs, each of which has two frames of 64 KiB (IHI 0069H, 12.10). EL2 looks at whole
/// ones only: trees may say more, as those of TI's AM65 say four and a half.
pub fn redistributors(size: u64, cpus: usize) -> Option<String> {
    const FRAME: u64 = 64 << 10;
    if !size.is_multiple_of(FRAME) {
        return Some("the redistributors of its GIC are no multiple of 64 KiB".to_owned());
    }
    let there = size / (2 * FRAME);
    let few = there < cpus as u64;
    few.then(|| format!("its GIC has {there} redistributors for {cpus} CPUs"))
}

/// Whether a node is a GICv2.
pub(super) fn is_gicv2(entry: &Entry) -> bool {
    GICV2.iter().any(|word| entry.is(word))
}

/// INTID of cells of the GIC binding: kind, number, flags, and perhaps the CPUs that it is about.
pub fn intid(cells: &[u32]) -> Option<u32> {
    match cells {
        [0, number, _] | [0, number, _, _] => number.checked_add(32),
        [1, number, _] | [1, number, _, _] => number.checked_add(16),
        _ => None,
    }
}

/// INTID of an interrupt of a node, by its number there, if it goes to a GIC.
pub fn intid_of(tree: &Tree, entry: &Entry, number: usize) -> Option<u32> {
    let all = tree.interrupts(entry)?;
    let (controller, cells) = all.get(number)?;
    let gic = |one: &Entry| one.is("arm,gic-v3") || is_gicv2(one);
    let through = |one: &Entry| THROUGH.iter().any(|word| one.is(word));
    // Of a tree without a GIC what is missing is the GIC, and not each interrupt.
    let goes = gic(controller) || through(controller) || !tree.entries.iter().any(gic);
    intid(cells).filter(|_| goes)
}

/// Controllers that pass interrupts on to the GIC under the same numbers: they wake a CPU that is switched off (Linux,
/// Documentation/devicetree/bindings/interrupt-controller).
const THROUGH: [&str; 3] = [
    "fsl,imx8mq-gpc",
    "nvidia,tegra210-ictlr",
    "nvidia,tegra30-ictlr",
];

/// Whole pages of all memory nodes, ascending; ranges that touch become one.
fn memory(tree: &Tree) -> Result<Vec<Memory>, String> {
    let nodes = tree.entries.iter().filter(|entry| {
        entry.text("device_type").as_deref() == Some("memory") && entry.is_enabled()
    });
    let mut ranges: Vec<Memory> = nodes
        .flat_map(|entry| entry.registers.iter())
        .filter_map(|&(base, size)| {
            let start = base.checked_next_multiple_of(PAGE)?;
            let end = base.checked_add(size)? & !(PAGE - 1);
            (start < end).then(|| Memory {
                base: start,
                size: end - start,
            })
        })
        .collect();
    ranges.sort_by_key(|range| range.base);
    let mut merged: Vec<Memory> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.base + last.size == range.base => last.size += range.size,
            Some(last) if last.base + last.size > range.base => {
                return Err("its memory nodes overlap".to_owned());
            }
            _ => merged.push(range),
        }
    }
    Ok(merged)
}

/// Memory that firmware keeps: /reserved-memory and the reservation block.
fn reserved(tree: &Tree, fdt: Fdt) -> Vec<Memory> {
    let nodes = tree
        .entries
        .iter()
        .filter(|entry| entry.path.starts_with("/reserved-memory/"))
        .flat_map(|entry| entry.registers.iter().copied());
    let block = fdt
        .memory_reservations()
        .map(|reservation| (reservation.address(), reservation.size()));
    nodes
        .chain(block)
        .map(|(base, size)| Memory { base, size })
        .collect()
}

/// Release address, at which a CPU waits for its start address: `cpu-release-addr`, 64 bits.
pub(crate) fn release(entry: &Entry) -> Option<u64> {
    match entry.cells("cpu-release-addr")?.as_slice() {
        [high, low] => Some(u64::from(*high) << 32 | u64::from(*low)),
        _ => None,
    }
    .filter(|release| *release != 0)
}

/// The nodes of the CPUs.
fn cpu_nodes<'t, 'a>(tree: &'t Tree<'a>) -> impl Iterator<Item = &'t Entry<'a>> {
    tree.entries.iter().filter(|entry| {
        entry.path.starts_with("/cpus/")
            && entry.text("device_type").as_deref() == Some("cpu")
            && entry.is_enabled()
    })
}

/// CPUs in the order of the tree.
fn cpus(tree: &Tree) -> Result<Vec<Cpu>, String> {
    let mut cpus = Vec::new();
    for entry in cpu_nodes(tree) {
        let reg = entry
            .cells("reg")
            .filter(|reg| !reg.is_empty() && reg.len() <= 2);
        let reg = reg.ok_or_else(|| format!("{} has no number", entry.path))?;
        let mpidr = affinity_of(&reg);
        let method = entry.text("enable-method");
        let release = match method.as_deref() {
            None | Some("psci") => 0,
            Some("spin-table") => release(entry)
                .ok_or_else(|| format!("{} does not say where it waits", entry.path))?,
            Some(method) => return Err(format!("{} is started by `{method}`", entry.path)),
        };
        let compatible = entry
            .compatible()
            .into_iter()
            .next()
            .unwrap_or("arm,armv8".to_owned());
        cpus.push(Cpu {
            mpidr,
            compatible,
            release,
            pmu_intid: None,
        });
    }
    cpus.truncate(MAX_PCPUS);
    if cpus
        .iter()
        .any(|cpu| (cpu.release == 0) != (cpus[0].release == 0))
    {
        return Err("firmware starts some of its CPUs, and others wait".to_owned());
    }
    if cpus.is_empty() {
        Err("it has no CPUs".to_owned())
    } else {
        Ok(cpus)
    }
}

/// The UART of /chosen/stdout-path.
fn console<'t, 'a>(tree: &'t Tree<'a>) -> Result<&'t Entry<'a>, String> {
    let chosen = tree
        .find("/chosen")
        .and_then(|chosen| chosen.text("stdout-path"));
    let path = chosen.ok_or("it names no console in /chosen/stdout-path")?;
    let console = tree
        .find(&path)
        .ok_or_else(|| format!("its console {path} does not exist"))?;
    if uart_kind(console).is_none() {
        return Err(format!(
            "EL2 has no driver for its console {}",
            console.path
        ));
    }
    Ok(console)
}

/// Kind of a UART, if EL2 has a driver for it.
pub fn uart_kind(entry: &Entry) -> Option<UartKind> {
    let is = |kind: &UartKind| kind.words().iter().any(|word| entry.is(word));
    let kind = UartKind::ALL.into_iter().find(is)?;
    if kind != UartKind::Ns16550 {
        return Some(kind);
    }
    // How registers of the 8250's family lie is a property, or goes without saying (Linux,
    // Documentation/devicetree/bindings/serial).
    let said = WORDS.iter().any(|word| entry.is(word));
    let (shift, width) = if said { (2, 4) } else { (0, 1) };
    let shift = entry.cell("reg-shift").unwrap_or(shift);
    UartKind::of_8250(shift, entry.cell("reg-io-width").unwrap_or(width))
}

/// Words of `compatible` of the 8250's family whose registers are words without a property that says so.
const WORDS: [&str; 2] = ["ti,am654-uart", "brcm,bcm2835-aux-uart"];

/// Message that a part that EL2 needs has no registers in memory.
fn unmapped(what: &str, entry: &Entry) -> String {
    format!(
        "its {what} {} has no registers, or no bus above it maps them (`ranges`)",
        entry.path
    )
}

#[cfg(test)]
mod tests {
    use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};

    use super::*;

    fn with(name: &str, properties: &[(&str, Vec<u8>)]) -> DeviceTreeNode {
        let mut node = DeviceTreeNode::new(name).expect("name");
        for (name, value) in properties {
            let property = DeviceTreeProperty::new(*name, value.clone());
            node.add_property(property.expect("property"));
        }
        node
    }

    fn cells(cells: &[u32]) -> Vec<u8> {
        cells.iter().flat_map(|cell| cell.to_be_bytes()).collect()
    }

    fn word(text: &str) -> Vec<u8> {
        [text.as_bytes(), b"\0"].concat()
    }

    /// The interrupts that the CPUs 0, 1 and 0x100 of a tree with these monitors have.
    fn found(own: &[(&str, Vec<u8>)]) -> [Option<u32>; 3] {
        const CPUS: [u32; 3] = [0, 1, 0x100];
        let mut root = with(
            "",
            &[
                ("#address-cells", cells(&[2])),
                ("#size-cells", cells(&[2])),
                ("interrupt-parent", cells(&[9])),
            ],
        );
        root.add_child(with(
            "gic",
            &[
                ("compatible", word("arm,gic-400")),
                ("phandle", cells(&[9])),
                ("#interrupt-cells", cells(&[3])),
            ],
        ));
        let mut nodes = with("cpus", &[("#address-cells", cells(&[1]))]);
        for (n, reg) in CPUS.into_iter().enumerate() {
            let name = format!("cpu@{reg:x}");
            let own = [("reg", cells(&[reg])), ("phandle", cells(&[20 + n as u32]))];
            nodes.add_child(with(&name, &own));
        }
        root.add_child(nodes);
        root.add_child(with("pmu", own));
        let mut tree = DeviceTree::new();
        tree.root = root;
        let bytes = tree.to_dtb();
        let mut cpus = CPUS.map(|mpidr| Cpu {
            mpidr: mpidr.into(),
            compatible: String::new(),
            release: 0,
            pmu_intid: None,
        });
        monitors(&Tree::new(Fdt::new(&bytes).expect("a tree")), &mut cpus);
        cpus.map(|cpu| cpu.pmu_intid)
    }

    #[test]
    fn a_private_one_is_of_all_cpus() {
        let own = ("compatible", word("arm,armv8-pmuv3"));
        let private = ("interrupts", cells(&[1, 7, 4]));
        assert_eq!(found(&[own.clone(), private.clone()]), [Some(23); 3]);
        let off = ("status", word("disabled"));
        assert_eq!(found(&[own, private.clone(), off]), [None; 3]);
        assert_eq!(
            found(&[("compatible", word("arm,smmu")), private]),
            [None; 3]
        );
    }

    #[test]
    fn shared_ones_are_of_the_cpus_that_they_name_or_of_each_in_order() {
        let own = ("compatible", word("arm,cortex-a53-pmu"));
        let three = ("interrupts", cells(&[0, 143, 4, 0, 144, 4, 0, 145, 4]));
        let in_order = [Some(175), Some(176), Some(177)];
        assert_eq!(found(&[own.clone(), three.clone()]), in_order);
        let affinity = ("interrupt-affinity", cells(&[22, 20, 21]));
        let named = [Some(176), Some(177), Some(175)];
        assert_eq!(found(&[own.clone(), three.clone(), affinity]), named);
        // Fewer than there are CPUs.
        let two = ("interrupts", cells(&[0, 143, 4, 0, 144, 4]));
        assert_eq!(found(&[own.clone(), two]), [Some(175), Some(176), None]);
        let one = ("interrupt-affinity", cells(&[21]));
        assert_eq!(found(&[own, three, one]), [None, Some(175), None]);
    }
}

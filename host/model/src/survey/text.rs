//! A survey as text.

use std::fmt::Write;

use super::cpus::Cache;
use super::devices::Device;
use super::facts::Survey;
use super::parts::{Gic, Range, Uart};
use crate::board::{Firmware, FirmwareTold};
use crate::describe::Size;
use crate::plural::count;

/// CPUs on which EL2 runs in the project's tests, in QEMU.
const TRIED: [&str; 5] = [
    "arm,cortex-a53",
    "arm,cortex-a57",
    "arm,cortex-a72",
    "arm,cortex-a76",
    "arm,neoverse-n1",
];

/// The survey as text.
pub(super) fn text(survey: &Survey, whole: bool) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_text(survey, whole, &mut out);
    out
}

/// "0", "0-3", "0,2,4-7".
fn numbers(list: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in list {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |&(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

fn cpus_named(list: &[usize]) -> String {
    let plural = if list.len() == 1 { "CPU" } else { "CPUs" };
    format!("{plural} {}", numbers(list))
}

fn range(range: &Range) -> String {
    format!("{:#011x} {:>9}", range.base, Size(range.size).to_string())
}

fn write_text(survey: &Survey, whole: bool, out: &mut String) -> std::fmt::Result {
    writeln!(out, "{}", survey.title())?;
    write_cpus(survey, out)?;
    write_caches(&survey.cpus.caches, out)?;
    write_firmware(&survey.firmware, out)?;
    writeln!(out, "\nMemory")?;
    if survey.memory.is_empty() {
        writeln!(out, "  none in the tree")?;
    }
    for memory in &survey.memory {
        match memory.size {
            0 => writeln!(
                out,
                "  {:#011x}   no size: the firmware fills it in",
                memory.base
            )?,
            _ => writeln!(out, "  {}", range(memory))?,
        }
    }
    for reserved in &survey.reserved {
        writeln!(out, "  {}  kept by the firmware", range(reserved))?;
    }
    writeln!(out, "\nInterrupts")?;
    for gic in &survey.interrupt_controllers {
        write_gic(gic, out)?;
    }
    if survey.interrupt_controllers.is_empty() {
        writeln!(out, "  no interrupt controller")?;
    }
    write_timers(survey, out)?;
    writeln!(out, "\nUARTs")?;
    for uart in &survey.uarts {
        write_uart(uart, out)?;
    }
    if survey.uarts.is_empty() {
        writeln!(out, "  none")?;
    }
    if !survey.iommus.is_empty() {
        writeln!(out, "\nSMMUs (this version sets none up)")?;
    }
    for iommu in &survey.iommus {
        let off = if iommu.enabled { "" } else { ", disabled" };
        let kind = iommu.compatible.first().map_or("", String::as_str);
        let masters = match iommu.masters {
            0 => "no device behind it".to_owned(),
            n => format!("{} behind it", count(n, "device")),
        };
        writeln!(out, "  {}  {kind}, {masters}{off}", iommu.path)?;
    }
    write_devices(&survey.devices, whole, out)?;
    writeln!(out)?;
    if survey.obstacles.is_empty() {
        return writeln!(
            out,
            "Bulkhead can run on this board, as far as its device tree tells."
        );
    }
    writeln!(out, "Bulkhead cannot run on this board:")?;
    for obstacle in &survey.obstacles {
        writeln!(out, "  {}: {}", obstacle.part, obstacle.what)?;
        writeln!(out, "    why:  {}", obstacle.why)?;
        writeln!(out, "    help: {}", obstacle.help)?;
    }
    Ok(())
}

fn write_cpus(survey: &Survey, out: &mut String) -> std::fmt::Result {
    let cpus = &survey.cpus;
    let from = if cpus.clusters_stated {
        ""
    } else {
        ", clusters by MPIDR"
    };
    writeln!(out, "\nCPUs: {}{from}", cpus.cpus.len())?;
    for cluster in &cpus.clusters {
        writeln!(out, "  {}", cluster.name)?;
        for &number in &cluster.cpus {
            let Some(cpu) = cpus.cpus.get(number) else {
                continue;
            };
            let how = cpu.enable_method.as_deref();
            let how = how.map_or("as /psci says".to_owned(), |how| format!("by {how}"));
            let tried = if TRIED.contains(&cpu.kind.as_str()) {
                ""
            } else {
                ", never tried"
            };
            let off = if cpu.enabled { "" } else { ", disabled" };
            let (kind, mpidr) = (&cpu.kind, cpu.mpidr);
            writeln!(
                out,
                "    CPU {number:<2} MPIDR {mpidr:#06x}  {kind}, started {how}{tried}{off}"
            )?;
        }
    }
    Ok(())
}

fn write_firmware(told: &FirmwareTold, out: &mut String) -> std::fmt::Result {
    writeln!(out, "\nFirmware")?;
    match &told.psci {
        Some(method) => writeln!(out, "  PSCI, called by {method}")?,
        None => writeln!(out, "  no PSCI in the tree")?,
    }
    for sign in told.signs() {
        writeln!(out, "  {sign}")?;
    }
    let events = match told.firmware() {
        Some(Firmware::El3) => "; whether it has events (SDEI) is not told",
        _ => "",
    };
    let word = told.assumed().word();
    match told.firmware() {
        Some(_) => writeln!(out, "  so firmware = \"{word}\"{events}"),
        None => writeln!(
            out,
            "  whether there is some at EL3 is not told; plans take firmware = \"{word}\""
        ),
    }
}

fn write_caches(caches: &[Cache], out: &mut String) -> std::fmt::Result {
    if caches.is_empty() {
        return writeln!(out, "  caches: the tree does not say");
    }
    // Caches that are alike and of one CPU each share a line.
    let mut shown: Vec<(&Cache, Vec<usize>)> = Vec::new();
    for cache in caches {
        let same = |one: &Cache| {
            let alike = (one.level, one.kind, one.size, one.line, one.sets)
                == (cache.level, cache.kind, cache.size, cache.line, cache.sets);
            alike && one.cpus.len() == 1 && cache.cpus.len() == 1
        };
        match shown.iter_mut().find(|(one, _)| same(one)) {
            Some((_, cpus)) => cpus.extend(&cache.cpus),
            None => shown.push((cache, cache.cpus.clone())),
        }
    }
    for (cache, cpus) in shown {
        let size = cache.size.map_or("size not said".to_owned(), |size| {
            Size(u64::from(size)).to_string()
        });
        let mut geometry = Vec::new();
        geometry.extend(cache.ways.map(|ways| count(ways as usize, "way")));
        geometry.extend(cache.sets.map(|sets| count(sets as usize, "set")));
        geometry.extend(cache.line.map(|line| format!("{line} bytes a line")));
        let geometry: String = geometry.iter().map(|part| format!(", {part}")).collect();
        let of = match (cache.cpus.len(), cpus.len()) {
            (1, 1) => format!("of {}", cpus_named(&cpus)),
            (1, _) => format!("in each of {}", cpus_named(&cpus)),
            _ => format!("shared by {}", cpus_named(&cpus)),
        };
        writeln!(
            out,
            "  L{} {:<11} {size}{geometry}, {of}",
            cache.level, cache.kind
        )?;
    }
    Ok(())
}

fn write_gic(gic: &Gic, out: &mut String) -> std::fmt::Result {
    let words = gic.compatible.join(", ");
    let kind = match gic.version {
        Some(version) => format!("GICv{version} ({words})"),
        None => format!("{words}, for which EL2 has no driver"),
    };
    writeln!(out, "  {}  {kind}", gic.path)?;
    let names: &[&str] = match gic.version {
        Some(2) => &["distributor", "CPU interface", "GICH", "GICV"],
        Some(_) => &["distributor", "redistributors", "", "", ""],
        None => &[],
    };
    for (number, frame) in gic.frames.iter().enumerate() {
        let name = names.get(number).copied().unwrap_or_default();
        writeln!(
            out,
            "{}",
            format!("    {}  {name}", range(frame)).trim_end()
        )?;
    }
    if let Some(intid) = gic.maintenance_intid {
        writeln!(out, "    maintenance interrupt INTID {intid}")?;
    }
    for its in &gic.its {
        writeln!(
            out,
            "    {its}  ITS; no VM gets message-signalled interrupts"
        )?;
    }
    Ok(())
}

fn write_timers(survey: &Survey, out: &mut String) -> std::fmt::Result {
    let Some(timers) = &survey.timers else {
        return writeln!(out, "  no generic timer");
    };
    let named = [
        ("secure", timers.secure),
        ("physical", timers.physical),
        ("virtual", timers.virtual_),
        ("hypervisor", timers.hypervisor),
    ];
    let said = named
        .iter()
        .filter_map(|(name, intid)| Some(format!("{name} {}", (*intid)?)));
    let said: Vec<String> = said.collect();
    let frequency = timers
        .frequency
        .map_or(String::new(), |hz| format!(", {hz} Hz"));
    writeln!(
        out,
        "  {}  timers: INTIDs {}{frequency}",
        timers.path,
        said.join(", ")
    )
}

fn write_uart(uart: &Uart, out: &mut String) -> std::fmt::Result {
    let base = uart
        .registers
        .first()
        .map_or("no address".to_owned(), |one| format!("{:#x}", one.base));
    let intid = uart
        .intid
        .map_or(String::new(), |intid| format!(", INTID {intid}"));
    let console = if uart.console { ", the console" } else { "" };
    let driver = if uart.driver {
        ""
    } else {
        ", no driver in EL2"
    };
    let off = if uart.enabled { "" } else { ", disabled" };
    writeln!(
        out,
        "  {}  {} at {base}{intid}{console}{driver}{off}",
        uart.path, uart.kind
    )
}

/// Devices that a VM can have.
fn write_passing(devices: &[&Device], out: &mut String) -> std::fmt::Result {
    for device in devices {
        let kind = device.compatible.first().map_or("", String::as_str);
        let base = device.registers.first().map_or(0, |one| one.base);
        let intids: Vec<String> = device.intids.iter().map(ToString::to_string).collect();
        let intids = match intids.len() {
            0 => String::new(),
            1 => format!(", INTID {}", intids.concat()),
            _ => format!(", INTIDs {}", intids.join(", ")),
        };
        writeln!(out, "  {}  {kind} at {base:#x}{intids}", device.path)?;
    }
    Ok(())
}

fn write_devices(devices: &[Device], whole: bool, out: &mut String) -> std::fmt::Result {
    let passes: Vec<&Device> = devices.iter().filter(|device| device.passes).collect();
    writeln!(out, "\nDevices that a VM can have: {}", passes.len())?;
    write_passing(&passes, out)?;
    let declared = devices.iter().filter(|device| device.passes_declared);
    let declared: Vec<&Device> = declared.collect();
    if !declared.is_empty() {
        writeln!(
            out,
            "\nDevices that a VM can have if the description says that they do no DMA (dma = \"none\"): {}",
            declared.len()
        )?;
        write_passing(&declared, out)?;
    }
    let refused = |device: &&Device| !device.passes && !device.passes_declared;
    let refused: Vec<&Device> = devices.iter().filter(refused).collect();
    let hint = if whole {
        ""
    } else {
        " (`board show --all` lists each)"
    };
    writeln!(
        out,
        "\nDevices that no VM can have: {}{hint}",
        refused.len()
    )?;
    let mut groups: Vec<(String, Vec<&Device>)> = Vec::new();
    for device in refused {
        let smmu = if device.behind_iommu {
            ", behind an SMMU"
        } else {
            ""
        };
        let why = format!("{}{smmu}", device.why);
        match groups.iter_mut().find(|(one, _)| *one == why && !whole) {
            Some((_, group)) => group.push(device),
            None => groups.push((why, vec![device])),
        }
    }
    for (why, group) in groups {
        let Some(first) = group.first() else {
            continue;
        };
        let more = match group.len() {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        writeln!(out, "  {}{more}: {why}", first.path)?;
    }
    let mut helps: Vec<&str> = Vec::new();
    for help in devices.iter().map(|device| device.help.as_str()) {
        if !help.is_empty() && !helps.contains(&help) {
            helps.push(help);
        }
    }
    for help in helps {
        writeln!(out, "  help: {help}")?;
    }
    Ok(())
}

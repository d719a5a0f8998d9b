//! A plan as text: who owns what, where, at what cost.

use std::fmt::Write;

use bulkhead_abi::plan::{DeviceKind, PCPU_PAGES, RegionKind, VCPU_PAGES, VIRTIO_PAGES, VM_PAGES};
use bulkhead_core::gppt::{Kick, Mode, Reclaim};
use bulkhead_core::sched::bound::Costs;

use bulkhead_model::describe::{CpuTime, Duration, Size, class_name};

use super::{
    access, count, cpus, crash, el2_bytes, listed, memory_map, profile_name, profile_why, reset,
    shown_colours, vcpu_name,
};
use super::{caches, colours_cost, declared, virtio};
use crate::gppt::masks;
use crate::ipa::PMEM;
use crate::{
    Planned, PlannedCpu, PlannedDoorbell, PlannedVm, Runs, Share, StopWay, costs, percent, usage,
};

/// The plan as text.
pub fn text(planned: &Planned) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_text(planned, &mut out);
    out
}

fn write_text(planned: &Planned, out: &mut String) -> std::fmt::Result {
    let board = &planned.board;
    let memory: u64 = board.memory.iter().map(|memory| memory.size).sum();
    writeln!(
        out,
        "{} on {}: {}, {} of {} CPUs, {} of memory",
        planned.name,
        board.name,
        count(planned.vms.len(), "VM"),
        planned.cpus.len(),
        board.cpus.len(),
        Size(memory)
    )?;
    if planned.provisional {
        writeln!(
            out,
            "provisional: made without what is not built or fetched yet"
        )?;
    }
    writeln!(out, "\nCPUs")?;
    for cpu in &planned.cpus {
        let runs = who(planned, cpu);
        let service = if cpu.service {
            ", drains the console"
        } else {
            ""
        };
        writeln!(
            out,
            "  CPU {}  MPIDR {:#x}  runs {runs}{service}{}",
            cpu.cpu,
            cpu.mpidr,
            called(cpu.call_spi)
        )?;
        write_usage(planned, cpu, out)?;
    }
    caches::write(planned, out)?;
    if let Some(io) = planned.io.as_ref().filter(|io| io.service.is_none()) {
        virtio::write_threads(planned, io, out)?;
    }
    if planned.vms.len() > FEW {
        write_list(planned, out)?;
    }
    for (index, vm) in planned.vms.iter().enumerate() {
        writeln!(
            out,
            "\nVM {}: {}, on {}",
            vm.name,
            class_name(vm.class),
            cpus(vm)
        )?;
        for deviation in &vm.deviations {
            writeln!(
                out,
                "  deviation  {}\n             the class asks for {}\n             this VM gets {}",
                deviation.stated, deviation.asked, deviation.got
            )?;
        }
        write_time(vm, out)?;
        write_interrupts(planned, vm, out)?;
        for mapped in &vm.regions {
            let region = &mapped.region;
            // Such pages are EL2's, wherever the image lies.
            let of_pool = [
                RegionKind::StolenTime,
                RegionKind::VirtioRegisters,
                RegionKind::StopWord,
            ];
            let pa = if of_pool.map(|kind| kind as u16).contains(&region.kind) {
                format!("{:<14}", "of EL2's pool")
            } else {
                format!("PA {:#011x}", region.pa)
            };
            writeln!(
                out,
                "  maps       IPA {:#011x}  {pa}  {:>9}  {}  {}{}",
                region.ipa,
                Size(region.size).to_string(),
                access(region),
                mapped.what,
                shown_colours(region.colours)
                    .map_or_else(String::new, |colours| format!(", colours {colours}"))
            )?;
        }
        for payload in &vm.payloads {
            let size = Size((payload.bytes.len() as u64).next_multiple_of(1024));
            writeln!(
                out,
                "  loads      IPA {:#011x}  {:>9}  {}",
                payload.ipa,
                size.to_string(),
                payload.what
            )?;
        }
        for (device, intids) in &vm.devices {
            for (irq, intid) in device.irqs.iter().zip(intids) {
                let kind = if irq.edge { "edge" } else { "level" };
                writeln!(
                    out,
                    "  interrupt  INTID {intid}  from the board's {}, {kind}  {}",
                    irq.intid, device.path
                )?;
            }
        }
        declared::write(vm, out)?;
        write_services(vm, out)?;
        write_channels(planned, index, out)?;
        write_doorbells(planned, index, out)?;
        virtio::write(planned, index, out)?;
        writeln!(
            out,
            "  costs      {} of stage-2 tables, {VM_PAGES} of shared state; {} SPIs in its vGIC",
            count(vm.s2_pages as usize, "page"),
            vm.spis
        )?;
        colours_cost::write(vm, out)?;
    }
    writeln!(out, "\nPhysical memory")?;
    for owned in memory_map(planned) {
        let owners: Vec<_> = owned
            .owners
            .iter()
            .map(|vm| planned.vms[*vm].name.as_str())
            .collect();
        let with = if owners.len() > 1 {
            format!(" ({})", owners.join(", "))
        } else {
            String::new()
        };
        writeln!(
            out,
            "  {:#011x} to {:#011x}  {:>9}  {}{with}",
            owned.start,
            owned.start + owned.size,
            Size(owned.size.next_multiple_of(1024)).to_string(),
            owned.what
        )?;
    }
    writeln!(
        out,
        "\nEL2 takes {} of memory: {} and the plan, {} of pool ({} for each CPU, {} for each vCPU{})",
        Size(el2_bytes(planned)),
        Size(planned.image.plan_offset),
        count(planned.image.page_pool_pages as usize, "page"),
        PCPU_PAGES,
        VCPU_PAGES,
        match planned.io {
            Some(_) => format!(", {VIRTIO_PAGES} for each virtio device"),
            None => String::new(),
        }
    )?;
    if let Some(colours) = shown_colours(planned.image.colours) {
        writeln!(
            out,
            "EL2 keeps to colours {colours}: it copies {} there at start, and of the pages among its own only stage-2 tables have some",
            Size(planned.image.plan_offset + planned.bytes.len() as u64)
        )?;
    }
    writeln!(
        out,
        "EL2's profile is {}: {}",
        profile_name(planned),
        profile_why(planned)
    )
}

/// Largest number of VMs that need no list of their own: their keys have one digit.
const FEW: usize = 9;

/// Writes a line for each VM: the keys that select it on the console, name, size of RAM, class and CPUs.
fn write_list(planned: &Planned, out: &mut String) -> std::fmt::Result {
    writeln!(out, "\nVMs, by what is typed for them on the console")?;
    let width = planned.vms.iter().map(|vm| vm.name.len()).max();
    let width = width.unwrap_or(0);
    for (vm, number) in planned.vms.iter().zip(1..) {
        let key = if number <= FEW {
            number.to_string()
        } else {
            format!("0{number:02}")
        };
        let ram = vm.regions.iter().map(|mapped| &mapped.region);
        let ram = ram.filter(|region| region.kind == RegionKind::Ram as u16);
        let ram: u64 = ram.map(|region| region.size).sum();
        writeln!(
            out,
            "  {key:>3}  {:<width$}  {:>9}  {:<13}  {}",
            vm.name,
            Size(ram).to_string(),
            class_name(vm.class),
            cpus(vm)
        )?;
    }
    Ok(())
}

/// Who runs on a CPU at first: vCPUs, by the names of their VMs where these have one, and the service thread.
fn who(planned: &Planned, cpu: &PlannedCpu) -> String {
    let vcpus = cpu.vcpus.iter();
    let vcpus = vcpus.map(|&(vm, number)| vcpu_name(planned, vm, number));
    let thread = cpu.thread.map(|_| runs_name(planned, Runs::Thread));
    listed(vcpus.chain(thread).collect())
}

/// Name of what runs on a CPU.
fn runs_name(planned: &Planned, of: Runs) -> String {
    match of {
        Runs::Vcpu { vm, vcpu } => vcpu_name(planned, vm, vcpu),
        Runs::Thread => "the service thread".to_owned(),
    }
}

/// Writes the shares of a CPU that its vCPUs get, if there are any.
fn write_usage(planned: &Planned, cpu: &PlannedCpu, out: &mut String) -> std::fmt::Result {
    let usage = usage(cpu, &planned.times(), |vm| planned.held(vm));
    for server in &usage.servers {
        writeln!(
            out,
            "         server  {}: {} in each {}, needs {} with two switches of {}; at most {} without",
            runs_name(planned, server.of),
            Duration(server.promise.budget),
            Duration(server.promise.period),
            Duration(server.bound.need),
            Duration(costs(cpu).switch),
            Duration(server.bound.gap)
        )?;
    }
    if let Some(worst) = usage.servers.iter().map(|server| server.bound.load).max() {
        writeln!(
            out,
            "         accepted: servers take {}, and {} of 100 % when EL2's longest path of {} comes at the worst moment{}",
            percent(usage.load),
            percent(worst),
            Duration(Costs::OF_BUILD.longest),
            if cpu.service {
                ", the console's drain included"
            } else {
                ""
            }
        )?;
    }
    let same = |share: &Share| (share.weight, share.least, share.cap);
    for alike in usage.shares.chunk_by(|one, next| same(one) == same(next)) {
        // Two have a line each; more would say the same again and again.
        if alike.len() > 2 {
            write_share(planned, alike, "each ", out)?;
        } else {
            for share in alike {
                write_share(planned, core::slice::from_ref(share), "", out)?;
            }
        }
    }
    Ok(())
}

/// Writes the share of fair vCPUs that all get the same.
fn write_share(
    planned: &Planned,
    alike: &[Share],
    each: &str,
    out: &mut String,
) -> std::fmt::Result {
    let Some(share) = alike.first() else {
        return Ok(());
    };
    let names = alike.iter().map(|share| runs_name(planned, share.of));
    let cap = share.cap.map_or(String::new(), |cap| {
        format!(", never more than {} of the CPU", percent(cap))
    });
    writeln!(
        out,
        "         fair    {}: {each}weight {}, {} while all others here want theirs{cap}",
        listed(names.collect()),
        share.weight,
        percent(share.least)
    )
}

/// Writes the CPU time of a VM, with the reason.
fn write_time(vm: &PlannedVm, out: &mut String) -> std::fmt::Result {
    let time = match vm.time {
        CpuTime::Pinned => "pinned: each vCPU has its CPU for itself".to_owned(),
        CpuTime::Server { budget, period } => format!(
            "server: {} in each {}, before all fair vCPUs",
            Duration(budget),
            Duration(period)
        ),
        CpuTime::Fair {
            weight,
            quota,
            period,
        } if quota < period => format!(
            "fair: weight {weight}, {} in each {} at most",
            Duration(quota),
            Duration(period)
        ),
        CpuTime::Fair { weight, .. } => format!("fair: weight {weight}, no cap"),
    };
    writeln!(out, "  cpu time   {time} ({})", vm.time_why)?;
    if let Some(accesses) = vm.accesses {
        writeln!(
            out,
            "  accesses   at most {} ({}) of each vCPU in each {}",
            accesses.most,
            accesses.event,
            Duration(accesses.period)
        )?;
    }
    if !vm.pool.is_empty() {
        let pool: Vec<String> = vm.pool.iter().map(ToString::to_string).collect();
        if vm.devices.iter().any(|(device, _)| !device.irqs.is_empty()) {
            writeln!(
                out,
                "  pool       stays where it is, though CPUs {} are its pool: interrupts of its devices go to its CPU",
                pool.join(", ")
            )?;
        } else {
            writeln!(out, "  pool       may be moved to CPUs {}", pool.join(", "))?;
        }
    }
    Ok(())
}

/// INTIDs by which others call a CPU, in words; empty if by SGIs.
fn called(first: u16) -> String {
    match first {
        0 => String::new(),
        first => format!(", called by INTIDs {first} and {}", first + 1),
    }
}

/// Writes the interrupt delivery of a VM.
fn write_interrupts(planned: &Planned, vm: &PlannedVm, out: &mut String) -> std::fmt::Result {
    let why = &vm.interrupts_why;
    let Some(mode) = vm.gppt else {
        return writeln!(out, "  interrupts through the virtual GIC ({why})");
    };
    let (name, escapes, lacks) = (mode.name(), mode.escapes(vm.reclaim), mode.lacks());
    writeln!(
        out,
        "  interrupts its own, taken at EL1 without an exit: GPPT, {name} ({why})"
    )?;
    writeln!(
        out,
        "             the CPU can be got back, unless by {escapes}"
    )?;
    if mode.kick() == Kick::RevokeAndPoke || vm.reclaim == Reclaim::Sdei {
        let how = match vm.reclaim {
            Reclaim::Guaranteed => "guaranteed: EL2 sleeps for it, an exit for each WFI",
            Reclaim::Cooperative => {
                "cooperative: if it closes its masks and sleeps, only a reset of the board stops it"
            }
            Reclaim::Sdei => "by an event of the board's firmware (SDEI), which it cannot mask",
        };
        writeln!(out, "             reclaim {how} ({})", vm.reclaim_why)?;
    }
    writeln!(out, "             {lacks}")?;
    writeln!(out, "             {}", masks(mode))?;
    if mode == Mode::PmrDirect {
        let mut others = planned.vms.iter().filter(|other| other.name != vm.name);
        let lent = others.find(|other| other.devices.iter().any(|(_, irqs)| !irqs.is_empty()));
        let end = match lent {
            Some(other) => format!(
                "each write to ICC_DIR_EL1 is an exit, because it could end interrupts of `{}`",
                other.name
            ),
            None => {
                "priority mask, EOImode and ends of interrupts are the board's, without an exit"
                    .to_owned()
            }
        };
        writeln!(out, "             {end}")?;
    }
    Ok(())
}

/// Writes the services of EL2 for a VM.
fn write_services(vm: &PlannedVm, out: &mut String) -> std::fmt::Result {
    let other = match (vm.gic.version, vm.cpus.len()) {
        (2, _) => "CPU interface",
        (_, 1) => "redistributor",
        _ => "redistributors",
    };
    writeln!(
        out,
        "  gic        GICv{}: distributor at IPA {:#x}, {other} at IPA {:#x}",
        vm.gic.version, vm.gic.gicd.0, vm.gic.interface.0
    )?;
    for device in &vm.emulated {
        let (what, name) = match device.kind {
            DeviceKind::Pl011 => ("console", "PL011"),
            DeviceKind::Pl031 => ("clock", "PL031"),
            DeviceKind::Watchdog => ("watchdog", "SBSA watchdog"),
        };
        let (ipa, intid) = (device.ipa, device.intid);
        writeln!(out, "  {what:<9}  {name} at IPA {ipa:#x}, INTID {intid}")?;
    }
    if vm.own_ptimer {
        writeln!(out, "  timer      the physical timer is its own")?;
    }
    if vm.time_stops {
        writeln!(out, "  time       stands still while the VM is paused")?;
    }
    if vm.debug {
        writeln!(
            out,
            "  debug      breakpoints, watchpoints and steps of its own"
        )?;
    }
    if vm.pmu {
        writeln!(
            out,
            "  counters   performance monitors of its own, but two counters of each CPU"
        )?;
    }
    if !vm.autostart {
        writeln!(out, "  start      when somebody starts it")?;
    }
    if vm.locked {
        writeln!(
            out,
            "  locked     no manager stops, pauses, restarts or changes it"
        )?;
    }
    if let Some(stop) = &vm.stop {
        let how = match stop.way {
            StopWay::Key(intid) => format!("the power key, INTID {intid}"),
            StopWay::Page(_) => format!("the word at IPA {:#x}", stop.word().unwrap_or(0)),
        };
        let time = Duration(u64::from(stop.timeout) * 1_000_000);
        writeln!(out, "  stop       asked by {how}; has {time} for it")?;
    }
    for (name, rights) in &vm.rights {
        writeln!(out, "  manages    {name}: {}", rights.join(", "))?;
    }
    if let Some(crash) = crash(vm) {
        writeln!(out, "  crash      {crash}")?;
    }
    if let Some(reset) = reset(vm) {
        writeln!(out, "  reset      {reset}")?;
    }
    if let Some(intid) = vm.event {
        writeln!(
            out,
            "  events     told of crashes of others by INTID {intid}"
        )?;
    }
    for call in &vm.calls {
        writeln!(out, "  calls      firmware may be asked for {call:#010x}")?;
    }
    let quiets = vm.devices.iter().map(|(device, _)| device.quiets.len());
    let quiets: usize = quiets.sum();
    if quiets > 0 {
        let what = count(quiets, "write");
        writeln!(out, "  restart    {what} quiet its devices first")?;
    }
    if vm.deterministic {
        writeln!(
            out,
            "  seeds      fixed: every boot has the same random numbers"
        )?;
    }
    Ok(())
}

/// Writes the channels of which a VM is an end.
fn write_channels(planned: &Planned, vm: usize, out: &mut String) -> std::fmt::Result {
    let mut regions = planned.vms[vm].regions.iter();
    let has_pmem = regions.any(|mapped| mapped.what == PMEM);
    for channel in &planned.channels {
        let [first, second] = channel.ends;
        let (own, peer) = match vm {
            vm if vm == first.vm => (first, second),
            vm if vm == second.vm => (second, first),
            _ => continue,
        };
        writeln!(
            out,
            "  channel    {} with {}: up to {} of up to {} bytes wait each way; writes at IPA {:#x}, reads at {:#x}{}; {}",
            channel.name,
            planned.vms[peer.vm].name,
            count(channel.shape.messages(), "message"),
            channel.shape.message(),
            own.memory.0,
            peer.memory.0,
            if !channel.cacheable {
                ", which nobody caches"
            } else if has_pmem {
                ", which programs map cached, by device-dax"
            } else {
                ""
            },
            if own.hears {
                "told by a doorbell"
            } else {
                "polls, without an exit"
            }
        )?;
    }
    Ok(())
}

/// Writes the doorbells that a VM rings and hears, and their cost.
fn write_doorbells(planned: &Planned, vm: usize, out: &mut String) -> std::fmt::Result {
    // The name of a channel's doorbell says it all.
    let title = |bell: &PlannedDoorbell, way: &str, other: usize| match bell.is_added {
        true => bell.name.clone(),
        false => format!("{} {way} {}", bell.name, planned.vms[other].name),
    };
    let own = planned.vms[vm].gppt;
    for bell in planned.doorbells.iter().filter(|bell| bell.from == vm) {
        let early = if own.is_some_and(|mode| mode.kick() == Kick::RevokeAndPoke) {
            "; too early, it is held"
        } else {
            "; too early, it waits"
        };
        writeln!(
            out,
            "  rings      {}, by the page at IPA {:#x}: an exit{early}",
            title(bell, "to", bell.to),
            bell.ipa
        )?;
    }
    for bell in planned.doorbells.iter().filter(|bell| bell.to == vm) {
        let is_gppt = planned.vms[vm].gppt.is_some();
        let how = match bell.spi {
            Some(_) if is_gppt => "an SPI that no device has, without an exit".to_owned(),
            Some(spi) => format!("SPI {spi} of the board, which no device has: an exit"),
            None => "an exit".to_owned(),
        };
        writeln!(
            out,
            "  hears      {}, INTID {}, once in {} at most: {how}",
            title(bell, "from", bell.from),
            bell.intid,
            Duration(bell.apart)
        )?;
    }
    Ok(())
}

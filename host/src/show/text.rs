//! A plan as text: who owns what, where, at what cost.

use std::fmt::Write;

use bulkhead_abi::plan::{DeviceKind, PCPU_POOL_PAGES, VCPU_POOL_PAGES, VM_POOL_PAGES};

use super::{access, count, cpus, crash, el2_bytes, memory_map};
use crate::describe::{Size, class_name};
use crate::planner::{Planned, PlannedVm};

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
        let runs = cpu.vm.map(|vm| &planned.vms[vm]);
        let runs = runs.map_or("nobody".to_owned(), |vm| match vm.cpus.len() {
            1 => vm.name.clone(),
            _ => format!("vCPU {} of {}", cpu.vcpu, vm.name),
        });
        let service = if cpu.service {
            ", drains the console"
        } else {
            ""
        };
        writeln!(
            out,
            "  CPU {}  MPIDR {:#x}  runs {runs}{service}",
            cpu.cpu, cpu.mpidr
        )?;
    }
    for vm in &planned.vms {
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
        for mapped in &vm.regions {
            let region = &mapped.region;
            writeln!(
                out,
                "  maps       IPA {:#011x}  PA {:#011x}  {:>9}  {}  {}",
                region.ipa,
                region.pa,
                Size(region.size).to_string(),
                access(region),
                mapped.what
            )?;
        }
        for load in &vm.loads {
            let size = Size((load.bytes.len() as u64).next_multiple_of(1024));
            writeln!(
                out,
                "  loads      IPA {:#011x}  {:>9}  {}",
                load.ipa,
                size.to_string(),
                load.what
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
        write_services(vm, out)?;
        writeln!(
            out,
            "  costs      {} of stage-2 tables, {VM_POOL_PAGES} of shared state; {} SPIs in its vGIC",
            count(vm.s2_pages as usize, "page"),
            vm.spis
        )?;
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
        "\nEL2 takes {} of memory: {} and the plan, {} of pool ({} for each CPU, {} for each vCPU)",
        Size(el2_bytes(planned)),
        Size(planned.image.plan_offset),
        count(planned.image.pool_pages as usize, "page"),
        PCPU_POOL_PAGES,
        VCPU_POOL_PAGES
    )
}

/// What EL2 does for a VM.
fn write_services(vm: &PlannedVm, out: &mut String) -> std::fmt::Result {
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
    if let Some(crash) = crash(vm) {
        writeln!(out, "  crash      {crash}")?;
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

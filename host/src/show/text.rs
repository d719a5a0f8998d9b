//! A plan as text: who owns what, where, at what cost.

use std::fmt::Write;

use bulkhead_abi::plan::PCPU_POOL_PAGES;

use super::{access, count, el2_bytes, memory_map};
use crate::describe::{Size, class_name};
use crate::planner::Planned;

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
        let runs = cpu.vm.map_or("nobody", |vm| planned.vms[vm].name.as_str());
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
            "\nVM {}: {}, on CPU {}",
            vm.name,
            class_name(vm.class),
            vm.cpu
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
        if vm.console {
            writeln!(out, "  console    PL011 at IPA 0x9000000, INTID 33")?;
        }
        if vm.deterministic {
            writeln!(
                out,
                "  seeds      fixed: every boot has the same random numbers"
            )?;
        }
        writeln!(
            out,
            "  costs      {} of stage-2 tables, 1 of console; {} SPIs in its vGIC",
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
        "\nEL2 takes {} of memory: {} and the plan, {} of pool ({} for each CPU)",
        Size(el2_bytes(planned)),
        Size(planned.image.plan_offset),
        count(planned.image.pool_pages as usize, "page"),
        PCPU_POOL_PAGES
    )
}

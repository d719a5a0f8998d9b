//! A plan as JSON. Addresses are strings, because numbers of JSON readers lose their lowest bits.

use serde_json::{Value, json as object};

use super::{access, el2_bytes, memory_map};
use crate::describe::class_name;
use crate::planner::{Planned, PlannedVm};

/// An address.
fn hex(value: u64) -> String {
    format!("{value:#x}")
}

/// The plan as JSON.
pub fn json(planned: &Planned) -> Value {
    let board = &planned.board;
    let emulated = board.emulated.as_ref().map(|emulated| {
        object!({
            "machine": emulated.machine,
            "cpu": emulated.cpu,
            "cpus": emulated.cpus,
            "memory_mib": emulated.memory_mib,
        })
    });
    let memory: Vec<Value> = memory_map(planned)
        .into_iter()
        .map(|owned| {
            let owners: Vec<&str> = owned
                .owners
                .iter()
                .map(|vm| planned.vms[*vm].name.as_str())
                .collect();
            object!({
                "pa": hex(owned.start), "size": owned.size, "owners": owners, "what": owned.what,
            })
        })
        .collect();
    let cpus: Vec<Value> = planned
        .cpus
        .iter()
        .map(|cpu| {
            object!({
                "cpu": cpu.cpu,
                "mpidr": hex(cpu.mpidr),
                "vm": cpu.vm.map(|vm| planned.vms[vm].name.as_str()),
                "service": cpu.service,
            })
        })
        .collect();
    object!({
        "name": planned.name,
        "provisional": planned.provisional,
        "board": { "name": board.name, "qemu": emulated },
        "cpus": cpus,
        "vms": planned.vms.iter().map(vm).collect::<Vec<_>>(),
        "memory": memory,
        "image": {
            "base": hex(planned.image.base),
            "size": planned.image.size,
            "plan_offset": planned.image.plan_offset,
            "plan_size": planned.bytes.len(),
            "pool_offset": planned.image.pool_offset,
            "pool_pages": planned.image.pool_pages,
            "el2_bytes": el2_bytes(planned),
        },
    })
}

/// A VM as JSON.
fn vm(vm: &PlannedVm) -> Value {
    let regions: Vec<Value> = vm
        .regions
        .iter()
        .map(|mapped| {
            object!({
                "what": mapped.what,
                "ipa": hex(mapped.region.ipa),
                "pa": hex(mapped.region.pa),
                "size": mapped.region.size,
                "access": access(&mapped.region),
            })
        })
        .collect();
    let loads: Vec<Value> = vm
        .loads
        .iter()
        .map(|load| {
            object!({
                "what": load.what, "ipa": hex(load.ipa), "size": load.bytes.len(), "offset": load.offset,
            })
        })
        .collect();
    let interrupts: Vec<Value> = vm
        .devices
        .iter()
        .flat_map(|(device, intids)| {
            device.irqs.iter().zip(intids).map(|(irq, intid)| {
                object!({
                    "device": device.path, "vintid": intid, "pintid": irq.intid, "edge": irq.edge,
                })
            })
        })
        .collect();
    let deviations: Vec<Value> = vm
        .deviations
        .iter()
        .map(|deviation| {
            object!({ "stated": deviation.stated, "asked": deviation.asked, "got": deviation.got })
        })
        .collect();
    object!({
        "name": vm.name,
        "class": class_name(vm.class),
        "deviations": deviations,
        "cpu": vm.cpu,
        "entry": hex(vm.entry),
        "device_tree": hex(vm.tree),
        "console": vm.console,
        "deterministic": vm.deterministic,
        "spis": vm.spis,
        "s2_pages": vm.s2_pages,
        "regions": regions,
        "loads": loads,
        "interrupts": interrupts,
    })
}

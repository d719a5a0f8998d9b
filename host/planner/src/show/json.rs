//! A plan as JSON. Addresses are strings, because numbers of JSON readers lose their lowest bits.

use bulkhead_abi::plan::{DeviceKind, PCPU_POOL_PAGES, VCPU_POOL_PAGES, VM_POOL_PAGES};
use bulkhead_core::gppt::{Kick, Mode, Reclaim};
use bulkhead_core::sched::bound::Costs;
use serde_json::{Value, json as object};

use bulkhead_model::describe::{CpuTime, CrashSpec, class_name};

use super::{access, el2_bytes, memory_map};
use crate::{Planned, PlannedCpu, PlannedDoorbell, PlannedVm, usage};

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
            "uarts": emulated.uarts,
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
                "vcpus": cpu.vcpus.iter().map(|&owner| vcpu(planned, owner)).collect::<Vec<_>>(),
                "service": cpu.service,
                "call_spi": cpu.call_spi,
                "usage": usage_of(planned, cpu),
            })
        })
        .collect();
    object!({
        "name": planned.name,
        "provisional": planned.provisional,
        "board": {
            "name": board.name,
            "gic": board.parts.gic_version,
            "qemu": emulated,
            "memory": board.memory.iter().map(|range| object!({ "pa": hex(range.base), "size": range.size })).collect::<Vec<_>>(),
            "cpus": board.cpus.iter().map(|cpu| hex(cpu.mpidr)).collect::<Vec<_>>(),
        },
        "cpus": cpus,
        "vms": planned.vms.iter().map(vm).collect::<Vec<_>>(),
        "doorbells": planned.doorbells.iter().map(|bell| doorbell(planned, bell)).collect::<Vec<_>>(),
        "memory": memory,
        "image": {
            "base": hex(planned.image.base),
            "size": planned.image.size,
            "plan_offset": planned.image.plan_offset,
            "plan_size": planned.bytes.len(),
            "pool_offset": planned.image.pool_offset,
            "pool_pages": planned.image.pool_pages,
            "el2_bytes": el2_bytes(planned),
            "pool": { "cpu_pages": PCPU_POOL_PAGES, "vcpu_pages": VCPU_POOL_PAGES, "vm_pages": VM_POOL_PAGES },
        },
    })
}

/// A doorbell as JSON.
fn doorbell(planned: &Planned, bell: &PlannedDoorbell) -> Value {
    object!({
        "name": bell.name,
        "from": planned.vms[bell.from].name,
        "to": planned.vms[bell.to].name,
        "ipa": hex(bell.ipa),
        "intid": bell.intid,
        "physical": bell.physical,
        "apart_ns": bell.apart,
        "shared": bell.shared,
    })
}

/// A vCPU as JSON.
fn vcpu(planned: &Planned, (vm, number): (usize, usize)) -> Value {
    object!({ "vm": planned.vms[vm].name, "vcpu": number })
}

/// What the vCPUs of a CPU get of it: nanoseconds, and millionths of the CPU.
fn usage_of(planned: &Planned, cpu: &PlannedCpu) -> Value {
    let usage = usage(cpu, &planned.times());
    let servers: Vec<Value> = usage
        .servers
        .iter()
        .map(|server| {
            object!({
                "vcpu": vcpu(planned, (server.vm, server.vcpu)),
                "budget_ns": server.promise.budget,
                "period_ns": server.promise.period,
                "need_ns": server.bound.need,
                "gap_ns": server.bound.gap,
                "load_ppm": server.bound.load,
            })
        })
        .collect();
    let shares: Vec<Value> = usage
        .shares
        .iter()
        .map(|share| {
            object!({
                "vcpu": vcpu(planned, (share.vm, share.vcpu)),
                "weight": share.weight,
                "least_ppm": share.least,
                "cap_ppm": share.cap,
            })
        })
        .collect();
    object!({
        "servers": servers,
        "servers_ppm": usage.load,
        "schedulable": usage.holds(),
        "switch_ns": Costs::OF_BUILD.switch,
        "longest_ns": Costs::OF_BUILD.longest,
        "fair": shares,
    })
}

/// What each vCPU of a VM may have of its CPU, as JSON.
fn time(vm: &PlannedVm) -> Value {
    let mut time = match vm.time {
        CpuTime::Pinned => object!({ "policy": "pinned" }),
        CpuTime::Server { budget, period } => {
            object!({ "policy": "rt", "budget_ns": budget, "period_ns": period })
        }
        CpuTime::Fair {
            weight,
            quota,
            window,
        } => object!({
            "policy": "fair",
            "weight": weight,
            "cap": (quota < window).then(|| object!({ "quota_ns": quota, "window_ns": window })),
            "pool": vm.pool,
        }),
    };
    time["why"] = vm.time_why.as_str().into();
    time
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
    let interface = if vm.gic.version == 2 { "gicc" } else { "gicr" };
    let gic = object!({ "gicd": hex(vm.gic.gicd.0), interface: hex(vm.gic.interface.0) });
    let emulated: Vec<Value> = vm
        .emulated
        .iter()
        .map(|device| {
            let kind = match device.kind {
                DeviceKind::Pl011 => "pl011",
                DeviceKind::Pl031 => "pl031",
                DeviceKind::Watchdog => "sbsa-watchdog",
            };
            object!({
                "kind": kind, "ipa": hex(device.ipa), "size": device.size, "vintid": device.intid,
            })
        })
        .collect();
    let crash = match &vm.crash {
        CrashSpec::Halt => object!({ "policy": "halt" }),
        CrashSpec::Restart { most, seconds } => {
            object!({ "policy": "restart", "most": most, "seconds": seconds })
        }
        CrashSpec::Notify(told) => object!({ "policy": "notify", "vm": told.value }),
    };
    let quiets: Vec<Value> = vm
        .devices
        .iter()
        .flat_map(|(device, _)| {
            device.quiets.iter().map(|(pa, width, value)| {
                object!({ "device": device.path, "pa": hex(*pa), "width": width, "value": value })
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
    let sdei = vm.reclaim == Reclaim::Sdei;
    let chosen = vm
        .gppt
        .filter(|mode| sdei || mode.kick() == Kick::RevokeAndPoke);
    let reclaim = chosen.map(|_| match vm.reclaim {
        Reclaim::Guaranteed => "guaranteed",
        Reclaim::Cooperative => "cooperative",
        Reclaim::Sdei => "sdei",
    });
    object!({
        "name": vm.name,
        "class": class_name(vm.class),
        "deviations": deviations,
        "cpus": vm.cpus,
        "cpu": time(vm),
        "interrupt_mode": { "mode": vm.gppt.map_or("vgic", Mode::name), "why": vm.interrupts_why },
        "reclaim": reclaim,
        "stolen_time": vm.stolen_time.map(hex),
        "entry": hex(vm.entry),
        "device_tree": hex(vm.tree),
        "gic": gic,
        "emulated": emulated,
        "ptimer": if vm.own_ptimer { "own" } else { "emulated" },
        "time": if vm.time_stops { "stops" } else { "runs" },
        "crash": crash,
        "events": vm.event,
        "smc": vm.calls.iter().map(|call| hex((*call).into())).collect::<Vec<_>>(),
        "deterministic": vm.deterministic,
        "spis": vm.spis,
        "s2_pages": vm.s2_pages,
        "regions": regions,
        "loads": loads,
        "interrupts": interrupts,
        "quiets": quiets,
    })
}

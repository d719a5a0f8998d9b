//! A plan that was saved as bytes (`out/NAME/plan.bin`), in the words of its JSON as far as bytes have them: they know no
//! names of devices, payloads and shared memory, and no reasons.

use bulkhead_abi::plan::{Class, CpuPolicy, Crash, NONE, Region, RegionKind, Vcpu, Vm};
use bulkhead_core::plan::{Plan, rows_of};
use serde_json::{Value, json};

use bulkhead_model::describe::class_name;

use super::access;

/// The plan in these bytes.
///
/// # Errors
/// The first rule that they break.
pub fn read(bytes: &[u8]) -> Result<Value, String> {
    // A plan lies at a multiple of 8, a vector of bytes need not.
    let words = bytes.as_chunks::<8>().0.iter();
    let words: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
    let plan = Plan::open(zerocopy::IntoBytes::as_bytes(&words[..]));
    let plan = plan.map_err(|violation| {
        let rule = violation.invariant;
        format!("{}: {}", rule.name(), rule.meaning())
    })?;
    let board = &plan.header.board;
    let image = &plan.header.image;
    let memory = plan.memory.iter();
    let cpus = plan.pcpus.iter();
    let bells = plan.doorbells.iter();
    Ok(json!({
        "board": {
            "gic": board.gic_version,
            "uart": hex(board.uart),
            "memory": memory.map(|range| json!({ "pa": hex(range.base), "size": range.size })).collect::<Vec<_>>(),
        },
        "cpus": cpus.map(|cpu| json!({ "cpu": hex(cpu.mpidr), "service": cpu.service != 0 })).collect::<Vec<_>>(),
        "image": { "base": hex(image.base), "size": image.size, "pool_pages": image.pool_pages },
        "vms": plan.vms.iter().enumerate().map(|(index, row)| vm(&plan, index, row)).collect::<Vec<_>>(),
        "doorbells": bells.map(|bell| {
            let (from, to) = (name_of(&plan, bell.vm), name_of(&plan, bell.to));
            json!({
                "name": format!("{from} to {to}"), "ipa": hex(bell.ipa), "intid": bell.vintid,
                "physical": bell.pintid != 0, "apart_ns": bell.apart,
            })
        }).collect::<Vec<_>>(),
    }))
}

/// Whether bytes may be a plan.
pub fn looks_like_one(bytes: &[u8]) -> bool {
    bytes.starts_with(b"BULKHEAD")
}

/// An address.
fn hex(value: u64) -> String {
    format!("{value:#x}")
}

/// Name of a VM by its index.
fn name_of(plan: &Plan, vm: u16) -> String {
    let row = plan.vms.get(usize::from(vm));
    row.map_or_else(String::new, |row| name(&row.name))
}

/// A name without what pads it.
fn name(padded: &[u8]) -> String {
    let text = padded.split(|byte| *byte == 0).next();
    String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
}

/// A VM.
fn vm(plan: &Plan, index: usize, row: &Vm) -> Value {
    let vcpus = rows_of(plan.vcpus, index);
    let classes = [
        Class::Management,
        Class::General,
        Class::SoftRealtime,
        Class::HardRealtime,
    ];
    let class = classes.iter().find(|class| **class as u16 == row.class);
    let mpidr = |vcpu: &Vcpu| {
        let cpu = plan.pcpus.get(usize::from(vcpu.pcpu));
        cpu.map_or_else(String::new, |cpu| hex(cpu.mpidr))
    };
    let crash = if row.crash == Crash::Restart as u16 {
        json!({ "policy": "restart", "most": row.restarts, "seconds": row.restart_seconds })
    } else if row.notify != NONE {
        json!({ "policy": "notify", "vm": name_of(plan, row.notify) })
    } else {
        json!({ "policy": "halt" })
    };
    let modes = ["vgic", "recoverable", "pmr-trapped", "pmr-direct", "gicv2"];
    let reclaims = ["always", "guaranteed", "cooperative", "sdei"];
    let word = |words: &[&'static str], number: u16| words.get(usize::from(number)).copied();
    json!({
        "name": name(&row.name),
        "class": class.map(|class| class_name(*class)),
        "cpus": vcpus.iter().map(mpidr).collect::<Vec<_>>(),
        "cpu": vcpus.first().map(time),
        "interrupt_mode": { "mode": word(&modes, row.interrupts) },
        "reclaim": word(&reclaims, row.reclaim),
        "flags": row.flags,
        "crash": crash,
        "events": row.event_intid,
        "entry": hex(row.entry),
        "device_tree": hex(row.boot_arg),
        "spis": row.spis,
        "s2_pages": row.s2_pages,
        "regions": rows_of(plan.regions, index).iter().map(region).collect::<Vec<_>>(),
        "loads": rows_of(plan.loads, index).iter().map(|load| {
            json!({ "what": format!("payload at {:#x}", load.ipa), "size": load.size })
        }).collect::<Vec<_>>(),
        "interrupts": rows_of(plan.irqs, index).iter().map(|irq| {
            json!({ "pintid": irq.pintid, "vintid": irq.vintid, "flags": irq.flags })
        }).collect::<Vec<_>>(),
        "gic": match row.gicr {
            0 => json!({ "gicd": hex(row.gicd), "gicc": hex(row.gicc) }),
            gicr => json!({ "gicd": hex(row.gicd), "gicr": hex(gicr) }),
        },
        "emulated": rows_of(plan.devices, index).iter().map(|device| {
            let kind = word(&["pl011", "pl031", "sbsa-watchdog"], device.kind);
            json!({ "kind": kind, "ipa": hex(device.ipa), "size": device.size, "vintid": device.vintid })
        }).collect::<Vec<_>>(),
        "quiets": rows_of(plan.quiets, index).iter().map(|quiet| {
            json!({ "pa": hex(quiet.pa), "width": quiet.width, "value": quiet.value })
        }).collect::<Vec<_>>(),
        "smc": rows_of(plan.calls, index).iter().map(|call| hex(call.function.into())).collect::<Vec<_>>(),
    })
}

/// What a vCPU may have of its CPU.
fn time(vcpu: &Vcpu) -> Value {
    if vcpu.policy == CpuPolicy::Server as u16 {
        json!({ "policy": "rt", "budget_ns": vcpu.budget, "period_ns": vcpu.period })
    } else if vcpu.policy == CpuPolicy::Fair as u16 {
        let cap = (vcpu.budget < vcpu.period)
            .then(|| json!({ "quota_ns": vcpu.budget, "window_ns": vcpu.period }));
        json!({ "policy": "fair", "weight": vcpu.weight, "cap": cap, "pool": vcpu.pool })
    } else {
        json!({ "policy": "pinned" })
    }
}

/// A region, which is known by what it is and where it lies.
fn region(region: &Region) -> Value {
    let what = if region.kind == RegionKind::Ram as u16 {
        "RAM".to_owned()
    } else if region.kind == RegionKind::Shared as u16 {
        format!("shared memory {}", region.shared)
    } else if region.kind == RegionKind::StolenTime as u16 {
        "stolen time".to_owned()
    } else if region.kind == RegionKind::Gicv as u16 {
        "CPU interface".to_owned()
    } else {
        format!("device at {:#x}", region.pa)
    };
    json!({
        "what": what, "ipa": hex(region.ipa), "pa": hex(region.pa), "size": region.size, "access": access(region),
    })
}

//! A plan that was saved as bytes (`out/NAME/plan.bin`), in the words of its JSON as far as bytes have them: they know no
//! names of devices, payloads and shared memory, and no reasons.

use bulkhead_abi::plan::{
    self, Class, CpuPolicy, NONE, Profile, Region, RegionKind, ServiceThread, Vcpu, VirtioDevice,
    Vm,
};
use bulkhead_core::plan::{Plan, rows_of};
use serde::Serialize;
use serde_json::{Value, json};

use bulkhead_model::describe::{EVENTS, class_name};

use super::document::{
    Accesses, Again, Cap, Crash, Emulated, Gic, Hex, Mapped, Quiet, Range, Time,
};
use super::{access, shown_colours};

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
    Ok(json!(Document {
        board: Board {
            gic: board.gic_version,
            uart: Hex(board.uart),
            memory: plan
                .memory
                .iter()
                .map(|range| Range {
                    pa: Hex(range.base),
                    size: range.size,
                })
                .collect(),
        },
        cpus: plan
            .pcpus
            .iter()
            .map(|cpu| Cpu {
                cpu: Hex(cpu.mpidr),
                service: cpu.service != 0,
                cache: (cpu.colours != 0).then_some(cpu.cache),
                colours: (cpu.colours != 0).then_some(cpu.colours),
            })
            .collect(),
        image: Image {
            base: Hex(image.base),
            size: image.size,
            profile: (Profile::ALL.into_iter())
                .find(|profile| *profile as u32 == image.profile)
                .map(Profile::name),
            page_pool_pages: image.page_pool_pages,
            colours: shown_colours(image.colours),
        },
        vms: (plan.vms.iter().enumerate())
            .map(|(index, row)| vm(&plan, index, row))
            .collect(),
        service: service(&plan),
        doorbells: plan
            .doorbells
            .iter()
            .map(|bell| Doorbell {
                name: format!("{} to {}", name_of(&plan, bell.vm), name_of(&plan, bell.to)),
                ipa: Hex(bell.ipa),
                intid: bell.vintid,
                physical: bell.pintid != 0,
                apart_ns: bell.apart,
            })
            .collect(),
    }))
}

#[derive(Serialize)]
struct Document {
    board: Board,
    cpus: Vec<Cpu>,
    image: Image,
    vms: Vec<VmRow>,
    service: Option<Service>,
    doorbells: Vec<Doorbell>,
}

/// Who serves virtio devices.
#[derive(Serialize)]
struct Service {
    /// None: EL2 serves all devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    vm: Option<String>,
    threads: Vec<Thread>,
}

/// A service thread.
#[derive(Serialize)]
struct Thread {
    /// MPIDR of its CPU.
    cpu: Option<Hex>,
    #[serde(flatten)]
    time: Time<u32>,
    #[serde(rename = "pool_pages")]
    page_pool_pages: u32,
}

/// A virtio device of a VM.
#[derive(Serialize)]
struct Virtio {
    kind: u16,
    /// Its number among those of its kind.
    name: u16,
    ipa: Hex,
    vintid: u16,
    poll_ns: u64,
    /// Row of its service thread.
    service: u16,
    config: String,
}

#[derive(Serialize)]
struct Board {
    gic: u32,
    uart: Hex,
    memory: Vec<Range>,
}

#[derive(Serialize)]
struct Cpu {
    /// Its MPIDR: bytes know no numbers of CPUs.
    cpu: Hex,
    service: bool,
    /// Number of its cache; none if nothing keeps to colours.
    cache: Option<u16>,
    /// Colours of that cache.
    colours: Option<u32>,
}

#[derive(Serialize)]
struct Image {
    base: Hex,
    size: u64,
    profile: Option<&'static str>,
    #[serde(rename = "pool_pages")]
    page_pool_pages: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    colours: Option<String>,
}

#[derive(Serialize)]
struct Doorbell {
    name: String,
    ipa: Hex,
    intid: u16,
    physical: bool,
    apart_ns: u64,
}

#[derive(Serialize)]
struct VmRow {
    name: String,
    class: Option<&'static str>,
    /// MPIDR of the CPU of each vCPU.
    cpus: Vec<Option<Hex>>,
    cpu: Option<Time<u32>>,
    accesses: Option<Accesses>,
    interrupt_mode: InterruptMode,
    reclaim: Option<&'static str>,
    flags: u16,
    crash: Crash<'static>,
    resets: Option<Again>,
    events: u16,
    entry: Hex,
    device_tree: Hex,
    spis: u32,
    s2_pages: u32,
    regions: Vec<Mapped<'static>>,
    #[serde(rename = "loads")]
    payloads: Vec<Payload>,
    interrupts: Vec<Interrupt>,
    gic: Gic,
    emulated: Vec<Emulated>,
    quiets: Vec<Quiet<'static>>,
    virtio: Vec<Virtio>,
    smc: Vec<Hex>,
}

#[derive(Serialize)]
struct InterruptMode {
    mode: Option<&'static str>,
}

#[derive(Serialize)]
struct Payload {
    what: String,
    size: u64,
}

#[derive(Serialize)]
struct Interrupt {
    pintid: u16,
    vintid: u16,
    flags: u16,
}

/// Whether bytes may be a plan.
pub fn looks_like_one(bytes: &[u8]) -> bool {
    bytes.starts_with(b"BULKHEAD")
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

/// The name of an event that boards count.
fn event(number: u32) -> Option<&'static str> {
    let known = EVENTS.into_iter().find(|(_, known)| *known == number);
    known.map(|(name, _)| name)
}

/// A VM.
fn vm(plan: &Plan, index: usize, row: &Vm) -> VmRow {
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
        cpu.map(|cpu| Hex(cpu.mpidr))
    };
    let modes = [
        "vgic",
        "recoverable",
        "pmr-trapped",
        "pmr-direct",
        "gicv2",
        "revocable",
        "revocable-pmr-trapped",
    ];
    let reclaims = ["always", "guaranteed", "cooperative", "sdei"];
    let kinds = ["pl011", "pl031", "sbsa-watchdog"];
    let word = |words: &[&'static str], number: u16| words.get(usize::from(number)).copied();
    let payloads = rows_of(plan.payloads, index).iter().map(|payload| Payload {
        what: format!("payload at {:#x}", payload.ipa),
        size: payload.size,
    });
    let interrupts = rows_of(plan.irqs, index).iter().map(|irq| Interrupt {
        pintid: irq.pintid,
        vintid: irq.vintid,
        flags: irq.flags,
    });
    let emulated = rows_of(plan.devices, index).iter().map(|device| Emulated {
        kind: word(&kinds, device.kind),
        ipa: Hex(device.ipa),
        size: device.size,
        vintid: device.vintid.into(),
    });
    let quiets = rows_of(plan.quiets, index).iter().map(|quiet| Quiet {
        device: None,
        pa: Hex(quiet.pa),
        width: quiet.width,
        value: quiet.value,
    });
    let calls = rows_of(plan.calls, index).iter();
    VmRow {
        name: name(&row.name),
        class: class.map(|class| class_name(*class)),
        cpus: vcpus.iter().map(mpidr).collect(),
        cpu: vcpus.first().map(time),
        accesses: { vcpus.first() }
            .filter(|vcpu| vcpu.events != 0)
            .map(|vcpu| Accesses {
                most: vcpu.events,
                period_ns: vcpu.events_period,
                event: event(plan.header.board.event),
            }),
        interrupt_mode: InterruptMode {
            mode: word(&modes, row.interrupts),
        },
        reclaim: word(&reclaims, row.reclaim),
        flags: row.flags,
        crash: crash(plan, row),
        resets: Again::of(row.resets, row.reset_seconds),
        events: row.event_intid,
        entry: Hex(row.entry),
        device_tree: Hex(row.boot_arg),
        spis: row.spis,
        s2_pages: row.s2_pages,
        regions: rows_of(plan.regions, index).iter().map(region).collect(),
        payloads: payloads.collect(),
        interrupts: interrupts.collect(),
        gic: match row.gicr {
            0 => Gic::v2(row.gicd, row.gicc),
            gicr => Gic::v3(row.gicd, gicr),
        },
        emulated: emulated.collect(),
        quiets: quiets.collect(),
        virtio: plan.virtio_devices_of(index).iter().map(virtio).collect(),
        smc: calls.map(|call| Hex(call.function.into())).collect(),
    }
}

/// Action when a VM crashes.
fn crash(plan: &Plan, row: &Vm) -> Crash<'static> {
    if row.crash == plan::Crash::Restart as u16 {
        Crash::Restart {
            most: row.restarts,
            seconds: row.restart_seconds,
        }
    } else if row.notify != NONE {
        Crash::Notify {
            vm: name_of(plan, row.notify).into(),
        }
    } else {
        Crash::Halt
    }
}

/// Share of its CPU that a vCPU may use.
fn time(vcpu: &Vcpu) -> Time<u32> {
    let promise = (vcpu.budget, vcpu.period);
    time_of(vcpu.policy, vcpu.weight, promise, vcpu.pool)
}

fn time_of(policy: u16, weight: u16, (budget, period): (u64, u64), pool: u32) -> Time<u32> {
    if policy == CpuPolicy::Server as u16 {
        Time::Rt {
            budget_ns: budget,
            period_ns: period,
        }
    } else if policy == CpuPolicy::Fair as u16 {
        Time::Fair {
            weight,
            cap: Cap::of(budget, period),
            pool,
        }
    } else {
        Time::Pinned
    }
}

/// Who serves virtio devices, if VMs have some.
fn service(plan: &Plan) -> Option<Service> {
    let backend = plan.backends().first()?;
    let vm = plan.vms.get(usize::from(backend.vm));
    Some(Service {
        vm: vm.map(|vm| name(&vm.name)),
        threads: plan
            .service_threads()
            .iter()
            .map(|it| thread(plan, it))
            .collect(),
    })
}

/// A service thread.
fn thread(plan: &Plan, thread: &ServiceThread) -> Thread {
    let cpu = plan.pcpus.get(usize::from(thread.pcpu));
    let promise = (thread.budget, thread.period);
    Thread {
        cpu: cpu.map(|cpu| Hex(cpu.mpidr)),
        time: time_of(thread.policy, thread.weight, promise, 0),
        page_pool_pages: thread.pages,
    }
}

/// A virtio device.
fn virtio(device: &VirtioDevice) -> Virtio {
    let config = device.config.iter().take(device.config_bytes.into());
    Virtio {
        kind: device.id,
        name: device.unit,
        ipa: Hex(device.ipa),
        vintid: device.vintid,
        poll_ns: device.poll,
        service: device.service,
        config: config.map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// A region, which is identified by its kind and IPA.
fn region(region: &Region) -> Mapped<'static> {
    let what = if region.kind == RegionKind::Ram as u16 {
        "RAM".to_owned()
    } else if region.kind == RegionKind::Shared as u16 {
        format!("shared memory {}", region.shared)
    } else if region.kind == RegionKind::StolenTime as u16 {
        "stolen time".to_owned()
    } else if region.kind == RegionKind::Gicv as u16 {
        "CPU interface".to_owned()
    } else if region.kind == RegionKind::StopWord as u16 {
        "word of a stop".to_owned()
    } else {
        let registers = region.kind == RegionKind::VirtioRegisters as u16;
        let at = if registers { region.ipa } else { region.pa };
        format!("device at {at:#x}")
    };
    Mapped {
        what: what.into(),
        ipa: Hex(region.ipa),
        pa: Hex(region.pa),
        size: region.size,
        access: access(region),
        colours: shown_colours(region.colours),
    }
}

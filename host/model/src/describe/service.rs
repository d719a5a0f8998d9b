//! `[service]`: who serves virtio devices.

use bulkhead_abi::plan::{Class, PAGE};
use toml::de::DeTable;

use super::code::Code;
use super::colours::{self, ColoursSpec};
use super::cpu::{self, CpuTime};
use super::finding::{Finding, Span};
use super::keys::SERVICE;
use super::reader::{Placed, Reader};
use super::size::Size;
use super::vm::{PayloadSpec, VmSpec};

/// Name of the VM that the planner adds.
pub const NAME: &str = "service";

/// `[service]`.
#[derive(Clone, Debug, Default)]
pub struct ServiceSpec {
    /// CPU of the board on which the thread and the VM run, if the file says so.
    pub pcpu: Option<Placed<u32>>,
    /// CPU time of the thread, if the file says so.
    pub time: Option<Placed<CpuTime>>,
    /// RAM of the VM, if the file says so.
    pub memory: Option<Placed<u64>>,
    /// Another program for the VM, if the file says so.
    pub image: Option<Placed<String>>,
    /// The colours of the memory of the VM.
    pub colours: ColoursSpec,
}

/// Reports a VM whose kernel cannot use the disks and networks that it has: Linux' drivers wait for interrupts.
fn check(vm: &VmSpec, findings: &mut Vec<Finding>) {
    let Some(place) = vm.first_served() else {
        return;
    };
    let PayloadSpec::Linux { kernel, .. } = &vm.payload else {
        return;
    };
    if vm.poll().is_none() {
        return;
    }
    let name = &vm.name.value;
    let help = match &vm.stated_poll {
        Some(_) => "leave `poll` out, or give them to a VM whose driver looks by itself",
        None => {
            "polled is what they are for hard real-time VMs and for VMs that take their interrupts themselves: let this one be neither, or give \
             them to a VM whose driver looks by itself"
        }
    };
    findings.push(
        Finding::new(
            Code::VirtioVm,
            format!("`{name}` cannot use disks and networks that are polled"),
        )
        .at(place.clone(), "never interrupts")
        .at(kernel.span.clone(), "Linux waits for its interrupts")
        .also(
            vm.stated_poll.as_ref().map(|poll| poll.span.clone()),
            "says that it is polled",
        )
        .help(help),
    );
}

/// Reports a VM that cannot have a virtio-console, which is not polled.
fn check_console(vm: &VmSpec, findings: &mut Vec<Finding>) {
    let Some(place) = &vm.virtio_console else {
        return;
    };
    let why = if vm.class == Class::HardRealtime {
        "a hard real-time VM: its driver would leave it for each batch"
    } else if vm.interrupts.is_gppt() {
        "takes its interrupts itself, and gets none of EL2"
    } else {
        return;
    };
    findings.push(
        Finding::new(
            Code::VirtioConsole,
            format!("`{}` cannot have a virtio-console", vm.name.value),
        )
        .at(vm.name.span.clone(), why)
        .at(place.clone(), "asks for one")
        .help("leave `console` out, and it has a PL011"),
    );
}

/// Reports a VM whose devices cannot be served on its own CPU, by its description alone: nobody else may run there.
fn check_cpu(vm: &VmSpec, findings: &mut Vec<Finding>) {
    let Some(own) = &vm.own_service else {
        return;
    };
    let name = &vm.name.value;
    if vm.first_virtio().is_none() {
        findings.push(
            Finding::new(Code::VirtioIdle, "there is nothing to serve")
                .at(
                    own.clone(),
                    "this VM has no disk, no network and no virtio-console",
                )
                .help("leave `service` out, or give the VM `disks` or `networks`"),
        );
        return;
    }
    let (place, why, lesser) = if vm.class == Class::HardRealtime {
        let why = "a hard real-time VM: its devices are served on another CPU";
        (None, why, "")
    } else if vm.interrupts.is_gppt() {
        let why = "takes its interrupts itself, and needs its CPU alone";
        let stated = vm.interrupts.stated.as_ref();
        (stated, why, "; or say interrupts = \"vgic\"")
    } else if let Some(timer) = &vm.own_ptimer {
        let why = "has the physical timer of its CPU, and needs it alone";
        (
            Some(timer),
            why,
            "; or leave `ptimer` out, and EL2 emulates it",
        )
    } else if !vm.cpu.shares() {
        let stated = vm.cpu.stated.as_ref();
        let lesser = "; or let the VM share its CPU: cpu = \"fair\", or \"rt\" with a budget";
        (stated, "has its CPU for itself", lesser)
    } else {
        return;
    };
    findings.push(
        Finding::new(
            Code::ServiceOwn,
            format!("the devices of `{name}` cannot be served on its own CPU"),
        )
        .at(place.unwrap_or(&vm.name.span).clone(), why)
        .at(own.clone(), "asks for it")
        .help(format!(
            "leave `service` out, and another CPU serves them{lesser}"
        )),
    );
}

/// Reads `[service]`, and checks that it has something to serve if it is there.
pub(super) fn read(
    table: Option<(Span, &DeTable)>,
    vms: &[VmSpec],
    findings: &mut Vec<Finding>,
) -> ServiceSpec {
    let served = vms.iter().find_map(VmSpec::first_served);
    let devices = vms.iter().find_map(VmSpec::first_virtio);
    if let (Some(served), Some(vm)) = (served, vms.iter().find(|vm| vm.name.value == NAME)) {
        findings.push(
            Finding::new(
                Code::ServiceName,
                format!("`{NAME}` is the VM that serves disks and networks"),
            )
            .at(vm.name.span.clone(), "another VM of that name")
            .at(served.clone(), "is served by it")
            .help("give this VM another name, such as `my-service`"),
        );
    }
    for vm in vms {
        check(vm, findings);
        check_console(vm, findings);
        check_cpu(vm, findings);
    }
    let Some((place, table)) = table else {
        return ServiceSpec::default();
    };
    if devices.is_none() {
        findings.push(
            Finding::new(Code::ServiceIdle, "there is nothing to serve")
                .at(place, "no VM has a disk, a network or a virtio-console")
                .help("leave [service] out, or give a VM `disks` or `networks`"),
        );
    }
    let mut reader = Reader::new(table, "[service]", SERVICE, findings);
    let pcpu = reader.read(const { SERVICE.number("pcpu") });
    let time = cpu::of_service(&mut reader);
    let memory = reader.read(const { SERVICE.quantity("memory") });
    let image = reader.read(const { SERVICE.text("image") });
    let colours = colours::of_service(&mut reader);
    let of_vm = [
        ("colours", colours.mask.as_ref().map(|mask| &mask.span)),
        ("memory", memory.as_ref().map(|memory| &memory.span)),
        ("image", image.as_ref().map(|image| &image.span)),
    ];
    for (key, span) in of_vm {
        let (Some(span), Some(_), None) = (span, devices, served) else {
            continue;
        };
        reader.report(
            Finding::new(
                Code::ServiceIdle,
                format!("there is no VM whose {key} this would be"),
            )
            .at(span.clone(), "no VM has a disk or a network")
            .help(format!("leave `{key}` out: EL2 serves consoles itself")),
        );
    }
    if let Some(size) = memory.as_ref().filter(|size| size.value % PAGE != 0) {
        reader.report(
            Finding::new(Code::MemoryAlign, "memory comes in pages of 4 KiB")
                .at(size.span.clone(), "not a multiple of 4 KiB")
                .help(format!(
                    "{} is one",
                    Size(size.value.next_multiple_of(PAGE))
                )),
        );
    }
    reader.finish();
    ServiceSpec {
        pcpu,
        time,
        memory,
        image,
        colours,
    }
}

//! Rights of VMs over others, when all VMs are known.

use bulkhead_abi::control::right;
use bulkhead_abi::plan::{Class, MAX_MANAGERS};

use super::code::Code;
use super::finding::Finding;
use super::manages::ManagesSpec;
use super::stop::StopBy;
use super::suggest::other_vm;
use super::vm::VmSpec;
use super::words::POWER_KEY;

/// Checks what VMs manage. `declared` are the names of all in the file; `monitor` is false if the console has none.
pub(super) fn check(
    vms: &[VmSpec],
    declared: &[String],
    monitor: bool,
    findings: &mut Vec<Finding>,
) {
    for (index, vm) in vms.iter().enumerate() {
        for entry in &vm.manages {
            check_entry(entry, vms, declared, findings);
        }
        check_port(vm, findings);
        check_start(vm, vms, monitor, findings);
        check_stop(index, vms, findings);
    }
    let managers = vms.iter().filter_map(|vm| vm.manages_place.as_ref());
    if let Some(first) = { managers }.nth(MAX_MANAGERS) {
        findings.push(
            Finding::new(Code::ManagesMany, "too many VMs manage others")
                .at(first.clone(), format!("the first after {MAX_MANAGERS}"))
                .help("give the rights to fewer VMs"),
        );
    }
}

fn check_entry(
    entry: &ManagesSpec,
    vms: &[VmSpec],
    declared: &[String],
    findings: &mut Vec<Finding>,
) {
    let Some(name) = &entry.vm else { return };
    if !declared.contains(&name.value) {
        let known = declared.iter().map(String::as_str);
        findings.push(
            Finding::new(
                Code::ManagesUnknownVm,
                format!("there is no VM `{}`", name.value),
            )
            .at(name.span.clone(), "not described here")
            .help(other_vm(&name.value, known)),
        );
        return;
    }
    let vm = vms.iter().find(|vm| vm.name.value == name.value);
    let Some(locked) = vm.and_then(|vm| vm.locked.as_ref()) else {
        return;
    };
    if entry.rights & !right::OF_LOCKED != 0 {
        findings.push(
            Finding::new(
                Code::ManagesLocked,
                format!("`{}` is locked against managers", name.value),
            )
            .at(entry.span.clone(), "more than \"list\" and \"stats\"")
            .at(locked.clone(), "locks it")
            .help("leave these rights out, or `locked`"),
        );
    }
}

/// Reports a manager that cannot have a control port.
fn check_port(vm: &VmSpec, findings: &mut Vec<Finding>) {
    let Some(place) = &vm.manages_place else {
        return;
    };
    let why = if vm.class == Class::HardRealtime {
        "a hard real-time VM: each message would be an exit"
    } else if vm.interrupts.is_gppt() {
        "takes its interrupts itself, and gets none of EL2"
    } else {
        return;
    };
    findings.push(
        Finding::new(
            Code::ManagesPort,
            format!("`{}` cannot have a control port", vm.name.value),
        )
        .at(vm.name.span.clone(), why)
        .at(place.clone(), "asks for one")
        .help("let a general or a management VM manage"),
    );
}

/// Reports a VM that nobody could start.
fn check_start(vm: &VmSpec, vms: &[VmSpec], monitor: bool, findings: &mut Vec<Finding>) {
    let Some(place) = &vm.waits else { return };
    let starts = right::START | right::RESTART;
    let granted = |entry: &ManagesSpec| {
        let all = entry.vm.is_none() && vm.locked.is_none();
        let named = entry
            .vm
            .as_ref()
            .is_some_and(|name| name.value == vm.name.value);
        entry.rights & starts != 0 && (all || named)
    };
    let mut others = vms.iter().filter(|other| other.name.value != vm.name.value);
    let by_manager = others.any(|other| other.manages.iter().any(granted));
    let by_monitor = monitor && vm.locked.is_none();
    if !by_manager && !by_monitor {
        findings.push(
            Finding::new(
                Code::VmNobodyStarts,
                format!("nobody can start `{}`", vm.name.value),
            )
            .at(place.clone(), "does not start by itself")
            .also(vm.locked.clone(), "locked against managers")
            .help("leave `autostart` out, or let another VM manage it by \"start\""),
        );
    }
}

/// Reports a VM that cannot be asked to stop in the way that its description says, or by nobody.
fn check_stop(index: usize, vms: &[VmSpec], findings: &mut Vec<Finding>) {
    let vm = &vms[index];
    let Some(stop) = &vm.stop else { return };
    let name = &vm.name.value;
    if stop.by == StopBy::PowerKey && vm.interrupts.is_gppt() {
        findings.push(
            Finding::new(
                Code::StopKey,
                format!("`{name}` cannot be told by a key that it is to stop"),
            )
            .at(
                stop.span.clone(),
                format!("\"{POWER_KEY}\" is an interrupt of EL2"),
            )
            .at(
                vm.name.span.clone(),
                "takes its interrupts itself, and gets none of EL2",
            )
            .help("say stop = \"word\", which its program polls, or interrupts = \"vgic\""),
        );
    }
    let mut managers = 0..vms.len();
    if !managers.any(|manager| rights(vms, manager, index) & right::STOP != 0) {
        findings.push(
            Finding::new(Code::StopNobody, format!("nobody asks `{name}` to stop"))
                .at(stop.span.clone(), "says how it would be asked")
                .also(vm.locked.clone(), "locked against managers")
                .help(format!(
                    "let a VM manage it, such as manages = {{ {name} = [\"stop\"] }}, or leave `stop` out"
                )),
        );
    }
}

/// The rights of VM `manager` over VM `vm`.
pub fn rights(vms: &[VmSpec], manager: usize, vm: usize) -> u32 {
    let (manager, vm) = (&vms[manager], &vms[vm]);
    let of = |entry: &ManagesSpec| match &entry.vm {
        Some(name) if name.value == vm.name.value => entry.rights,
        Some(_) => 0,
        None if vm.locked.is_some() => entry.rights & right::OF_LOCKED,
        None => entry.rights,
    };
    manager.manages.iter().fold(0, |all, entry| all | of(entry))
}

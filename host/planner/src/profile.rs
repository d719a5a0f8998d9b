//! The profile of EL2 that a system needs: the smallest that has what its vCPUs use, and the monitor
//! unless the description leaves it out.

use bulkhead_abi::plan::Profile;

use bulkhead_model::board::Board;
use bulkhead_model::describe::{Code, CpuTime, Finding, Span, System, VmSpec};

use crate::{cpus, io};

/// The profile of EL2 for a system that has not been planned yet. What is wrong with the description
/// is found when it is planned.
pub fn profile(system: &System, board: &Board) -> Profile {
    // How large disks are changes nothing here.
    let system = io::with_service(system, &io::Disks::default());
    let assigned = cpus::assign(&system, board, &mut Vec::new());
    choose(&system, &assigned.times, &mut Vec::new())
}

/// Bytes that EL2 takes in memory while it is not built: a little more than it takes then, so that what
/// is refused is the same before the first build and behind it.
pub const fn expected_size(profile: Profile) -> u64 {
    let kib = match profile {
        Profile::Static => 188,
        Profile::Shared => 240,
        Profile::Io => 284,
        Profile::Managed => 480,
    };
    kib * 1024
}

/// Chooses the profile. `times`: the CPU time of each VM.
pub(super) fn choose(system: &System, times: &[CpuTime], findings: &mut Vec<Finding>) -> Profile {
    let without = system.monitor.as_ref().filter(|monitor| !monitor.value);
    let all = system.vms.iter().zip(times);
    let sharer = { all }.find(|(_, time)| **time != CpuTime::Pinned);
    let least = if system.vms.iter().any(|vm| vm.manages_place.is_some()) {
        Profile::Managed
    } else if io::is_needed(system) || system.vms.iter().any(|vm| asks_for_registers(vm).is_some())
    {
        Profile::Io
    } else {
        Profile::Shared
    };
    // Each profile has all of the one before, the monitor too.
    let device =
        { system.vms.iter() }.find_map(|vm| vm.first_virtio().cloned().or(asks_for_registers(vm)));
    match (without, sharer) {
        (Some(monitor), None) if least > Profile::Shared => {
            findings.push(
                Finding::new(
                    Code::ConsoleMonitor,
                    "a system whose VMs have virtio devices, limits of accesses, debug registers or performance monitors, or manage others, has the monitor",
                )
                .at(monitor.span.clone(), "leaves it out")
                .also(device, "one of them")
                .help("leave `monitor` out"),
            );
            least
        }
        (Some(_), None) => Profile::Static,
        (Some(monitor), Some((vm, _))) => {
            let name = &vm.name.value;
            findings.push(
                Finding::new(
                    Code::ConsoleMonitor,
                    "a system whose VMs share CPUs has the monitor",
                )
                .at(monitor.span.clone(), "leaves out the scheduler, too")
                .also(
                    Some(vm.name.span.clone()),
                    format!("`{name}` shares its CPUs, or its CPU time has a limit"),
                )
                .help("leave `monitor` out, or give each vCPU a CPU of its own (cpu = \"pinned\")"),
            );
            least
        }
        (None, _) => least,
    }
}

/// Where a VM asks for what EL2 keeps registers of the CPU for: a limit of accesses, debug registers, or performance monitors.
fn asks_for_registers(vm: &VmSpec) -> Option<Span> {
    let budget = vm.bandwidth.as_ref().map(|it| it.accesses.span.clone());
    budget.or_else(|| vm.debug.clone().or_else(|| vm.pmu.clone()))
}

/// The reason for the profile of a plan. `times`: the CPU time of each VM.
pub(super) fn why(profile: Profile, mut times: impl Iterator<Item = CpuTime>) -> &'static str {
    match profile {
        Profile::Static => "each vCPU has a CPU to itself, and the console no monitor",
        Profile::Shared if times.any(|time| time != CpuTime::Pinned) => {
            "VMs share CPUs, or have limits of CPU time"
        }
        Profile::Shared => "for the monitor; without it (monitor = false) it would be static",
        Profile::Io => {
            "VMs have virtio devices, limits of accesses to memory, debug registers, or performance monitors"
        }
        Profile::Managed => "a VM manages others",
    }
}

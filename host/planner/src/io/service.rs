//! The service VM, which the planner adds for disks and networks.

use std::borrow::Cow;

use bulkhead_abi::plan::{Class, PAGE};
use bulkhead_model::describe::{
    Code, ColoursSpec, CpuSpec, CpuTime, CrashSpec, DeviceSpec, Finding, GicSpec, InterruptSpec,
    Limit, MemorySpec, PayloadSpec, Placed, RESETS, SERVICE_NAME, SharedSpec, Size, Span, System,
    VmSpec,
};

use super::device::{self, COUNTS, disk_places};
use super::disk::Disks;

/// The program of the service VM if the description names no other, which is built as EL2 itself is.
const PROGRAM: &str = "guest:service";
/// Bytes of RAM for the program, its device tree and its stack.
const ROOM: u64 = 2 << 20;
/// RAM is of whole blocks of stage 2.
const BLOCK: u64 = 2 << 20;
/// Name of the memory with the counters of disks and ports.
pub(crate) const COUNTERS: &str = "counters of disks and networks";
/// How often the service VM starts again at most when it crashes, and in how many seconds.
const CRASH: Limit = Limit {
    most: 10,
    seconds: 60,
};
/// Fair, as VMs are.
pub(super) const FAIR: CpuTime = CpuTime::Fair {
    weight: 1,
    quota: 100_000_000,
    period: 100_000_000,
};

/// The system with the service VM behind its other VMs, and the memory that outlives it, of disks and of counters, behind its other
/// shared memory. As it is where no VM has a disk or a network.
pub(crate) fn with_service<'a>(system: &'a System, disks: &Disks) -> Cow<'a, System> {
    let Some(place) = system.vms.iter().find_map(VmSpec::first_served) else {
        return Cow::Borrowed(system);
    };
    let place = place.clone();
    let mut all = system.clone();
    let vm = all.vms.len();
    let kept = |name: String, span: &Span, (ipa, size): (u64, u64)| {
        let at = |value| Placed {
            value,
            span: span.clone(),
        };
        SharedSpec {
            name: Placed {
                value: name,
                span: span.clone(),
            },
            size: at(size),
            ipa: at(ipa),
            vms: vec![(
                vm,
                Placed {
                    value: true,
                    span: span.clone(),
                },
            )],
            cacheable: true,
            is_added: true,
        }
    };
    let of_vms = system.vms.iter();
    let specs = of_vms.flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk)));
    // That of a shared disk is that of the first.
    let own = disks.all.iter().map(|disk| disk.same_as.is_none());
    let places = disk_places(disks).into_iter().zip(own);
    let memory = specs
        .zip(places)
        .filter_map(|(spec, (place, is_own))| Some((spec, place.filter(|_| is_own)?)));
    let memory = memory.map(|((of, disk), place)| {
        let name = format!("disk {} of {}", disk.name.value, of.name.value);
        let size = disk.size.as_ref().map(|size| &size.span);
        kept(name, size.unwrap_or(&disk.span), place)
    });
    all.shared.extend(memory);
    all.shared.push(kept(COUNTERS.to_owned(), &place, COUNTS));
    let windows: u64 = device::all(system, disks, &mut Vec::new())
        .iter()
        .map(|device| device.window_size)
        .sum();
    let windows = windows + disks.ram_bytes();
    let enough = least(windows);
    let size = system.io.memory.clone().unwrap_or(Placed {
        value: enough,
        span: place.clone(),
    });
    let image = system.io.image.clone().unwrap_or(Placed {
        value: PROGRAM.to_owned(),
        span: place.clone(),
    });
    let mut service = vm_spec(place, size, image);
    service.colours = system.io.colours.clone();
    all.vms.push(service);
    Cow::Owned(all)
}

/// RAM that the service VM needs with windows and images of so many bytes.
fn least(windows: u64) -> u64 {
    (ROOM + windows + PAGE).next_multiple_of(BLOCK)
}

/// Whether the RAM that the description gives the service VM is enough.
pub(super) fn fits(system: &System, windows: u64, findings: &mut Vec<Finding>) -> bool {
    let (Some(size), least) = (&system.io.memory, least(windows)) else {
        return true;
    };
    if size.value < least {
        findings.push(
            Finding::new(
                Code::MemorySmall,
                format!("the memory of `{SERVICE_NAME}` is too small for what it serves"),
            )
            .at(size.span.clone(), format!("{} here", Size(size.value)))
            .help(format!(
                "give it {} at least, or leave `memory` out",
                Size(least)
            )),
        );
    }
    size.value >= least
}

/// The service VM, as if it were described.
fn vm_spec(place: Span, size: Placed<u64>, image: Placed<String>) -> VmSpec {
    let at = |text: &str| Placed {
        value: text.to_owned(),
        span: place.clone(),
    };
    VmSpec {
        name: at(SERVICE_NAME),
        class: Class::General,
        deviations: Vec::new(),
        vcpus: 1,
        pcpus: Vec::new(),
        cpu: CpuSpec {
            time: FAIR,
            stated: None,
            budget: None,
            pool: Vec::new(),
        },
        interrupts: InterruptSpec::vgic(),
        memory: MemorySpec {
            size,
            ipa: None,
            pa: None,
        },
        payload: PayloadSpec::Program {
            image,
            load: None,
            entry: None,
            initrd: Vec::new(),
        },
        tree: None,
        cmdline: None,
        console: Some(DeviceSpec::default()),
        virtio_console: None,
        gic: GicSpec::default(),
        rtc: None,
        watchdog: None,
        crash: CrashSpec::Restart(CRASH),
        resets: Some(RESETS),
        own_ptimer: None,
        time_stops: false,
        debug: None,
        pmu: None,
        calls: Vec::new(),
        overlays: Vec::new(),
        disks: Vec::new(),
        ports: Vec::new(),
        stated_poll: None,
        own_service: None,
        devices: Vec::new(),
        board_reset: None,
        deterministic: false,
        manages: Vec::new(),
        manages_place: None,
        waits: None,
        locked: None,
        stop: None,
        bandwidth: None,
        colours: ColoursSpec::default(),
    }
}

/// Whether VMs have virtio devices.
pub(crate) fn is_needed(system: &System) -> bool {
    system.vms.iter().any(|vm| vm.first_virtio().is_some())
}

/// Index of the service VM in a system of [`with_service`]: the last, if VMs have disks or networks.
pub(crate) fn index(system: &System) -> Option<usize> {
    let served = system.vms.iter().any(|vm| vm.first_served().is_some());
    served.then(|| system.vms.len() - 1)
}

/// RAM of the service VM.
pub(super) fn ram(system: &System, vm: usize) -> (u64, u64) {
    (MemorySpec::USUAL, system.vms[vm].memory.size.value)
}

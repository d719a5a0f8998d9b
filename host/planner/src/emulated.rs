//! Devices that EL2 emulates for a VM: their IPAs and interrupts.

use bulkhead_abi::plan::{DeviceKind, PAGE};

use bulkhead_model::describe::{Code, DeviceSpec, Finding, Placed, System, VmSpec};

use super::EmulatedDevice;
use crate::planned::GuestGic;

/// Bytes of the distributor.
const GICD_SIZE: u64 = 0x1_0000;
/// Bytes of the redistributor of a vCPU.
const GICR_SIZE: u64 = 0x2_0000;
/// Bytes of the CPU interface of a GICv2.
const GICC_SIZE: u64 = 0x2000;

/// IPAs of the frames of the GIC, if the description does not say: as on QEMU's `virt`, so that guests run there too.
const GICD: u64 = 0x0800_0000;
const GICR: u64 = 0x080a_0000;
const GICC: u64 = 0x0801_0000;

/// Devices that EL2 emulates, if the description does not say otherwise. PL011 and PL031 are where QEMU's `virt` has
/// them; `virt` has no watchdog.
const DEVICES: [EmulatedDevice; 3] = [
    EmulatedDevice {
        kind: DeviceKind::Pl011,
        ipa: 0x0900_0000,
        size: PAGE,
        intid: 33,
    },
    EmulatedDevice {
        kind: DeviceKind::Pl031,
        ipa: 0x0901_0000,
        size: PAGE,
        intid: 34,
    },
    EmulatedDevice {
        kind: DeviceKind::Watchdog,
        ipa: 0x0908_0000,
        size: 2 * PAGE,
        intid: 35,
    },
];

/// Entry of the description for a device that it asks for, or that the VM has by default.
pub(super) fn placement(spec: &VmSpec, kind: DeviceKind) -> Option<&DeviceSpec> {
    let placement = match kind {
        DeviceKind::Pl011 => &spec.console,
        DeviceKind::Pl031 => &spec.rtc,
        DeviceKind::Watchdog => &spec.watchdog,
    };
    placement.as_ref()
}

/// The key by which the description moves a device.
pub(super) fn key(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Pl011 => "console",
        DeviceKind::Pl031 => "rtc",
        DeviceKind::Watchdog => "watchdog",
    }
}

/// The devices that EL2 emulates for a VM.
pub(super) fn devices(spec: &VmSpec) -> Vec<EmulatedDevice> {
    let devices = DEVICES.into_iter().filter_map(|usual| {
        let placement = placement(spec, usual.kind)?;
        Some(EmulatedDevice {
            ipa: placement.ipa.as_ref().map_or(usual.ipa, |ipa| ipa.value),
            intid: placement
                .intid
                .as_ref()
                .map_or(usual.intid, |intid| intid.value),
            ..usual
        })
    });
    devices.collect()
}

/// The interrupt controller of a VM on a board with this version of the GIC.
pub(super) fn gic(version: u32, spec: &VmSpec) -> GuestGic {
    let or = |stated: &Option<Placed<u64>>, usual| stated.as_ref().map_or(usual, |at| at.value);
    let interface = if version == 2 {
        (or(&spec.gic.gicc, GICC), GICC_SIZE)
    } else {
        let size = spec.vcpus as u64 * GICR_SIZE;
        (or(&spec.gic.gicr, GICR), size)
    };
    GuestGic {
        version,
        gicd: (or(&spec.gic.gicd, GICD), GICD_SIZE),
        interface,
    }
}

/// Reports a frame of the GIC that VMs on a board with this version do not have, and emulated devices that share an
/// interrupt.
pub(super) fn check(
    spec: &VmSpec,
    (system, version): (&System, u32),
    devices: &[EmulatedDevice],
    findings: &mut Vec<Finding>,
) {
    let (stray, name, other) = match version {
        2 => (&spec.gic.gicr, "gicr", "gicc"),
        _ => (&spec.gic.gicc, "gicc", "gicr"),
    };
    if let Some(stray) = stray {
        findings.push(
            Finding::new(Code::DeviceGic, format!("a GICv{version} has no `{name}`"))
                .at(
                    stray.span.clone(),
                    "a VM's GIC has the version of the board's",
                )
                .also(
                    system.board.as_ref().map(|board| board.gic_place()),
                    format!("the board has a GICv{version}"),
                )
                .help(format!("leave it out, or say `{other}`")),
        );
    }
    let stated = |device: &EmulatedDevice| {
        let intid = placement(spec, device.kind)?.intid.as_ref()?;
        Some(intid.span.clone())
    };
    for (index, device) in devices.iter().enumerate() {
        let mut before = devices[..index].iter();
        let Some(first) = before.find(|first| first.intid == device.intid) else {
            continue;
        };
        // One of them at least is by the description: the usual ones differ.
        let (one, other, place) = match stated(device) {
            Some(place) => (device, first, place),
            None => (first, device, stated(first).unwrap_or_default()),
        };
        let asked = || placement(spec, other.kind)?.asked.clone();
        findings.push(
            Finding::new(
                Code::DeviceIntidTaken,
                format!(
                    "{} and {} of `{}` have the same interrupt",
                    one.called(),
                    other.called(),
                    spec.name.value
                ),
            )
            .at(place, format!("INTID {} for {}", one.intid, one.called()))
            .also(
                stated(other).or_else(asked),
                format!("{} has it", other.called()),
            )
            .help(format!(
                "give one of them another: `intid` in `{}` or `{}`",
                key(one.kind),
                key(other.kind)
            )),
        );
    }
}

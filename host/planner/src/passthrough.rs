//! Devices of the board that VMs get.

use bulkhead_abi::plan::MAX_SPIS;
use dtoolkit::fdt::Fdt;

use bulkhead_model::board::{Board, PassthroughDevice, Tree, pass};
use bulkhead_model::describe::{Code, Finding, System, VmSpec};

/// The devices that a VM asks for, those that can be passed through.
pub(super) fn devices(
    vm: usize,
    system: &System,
    board: &Board,
    findings: &mut Vec<Finding>,
) -> Vec<PassthroughDevice> {
    let spec = &system.vms[vm];
    let requests = &spec.devices;
    let Some(fdt) = Fdt::new(&board.dtb).ok().filter(|_| !requests.is_empty()) else {
        superfluous(spec, &[], findings);
        return Vec::new();
    };
    let tree = Tree::new(fdt);
    let mut devices = Vec::new();
    for wish in requests {
        match pass(&tree, &wish.value, &board.console) {
            Ok(device) if device.resets_board && spec.board_reset.is_none() => findings.push(
                Finding::new(
                    Code::DeviceResets,
                    format!("`{}` could reset the board through this device", spec.name.value),
                )
                .at(
                    wish.span.clone(),
                    "a watchdog: unserved, it resets every VM and EL2",
                )
                .help(
                    "`watchdog = true` gives the VM one of its own; board_reset = \"allowed\" accepts this \
                     one: a deviation, shown in the plan",
                ),
            ),
            Ok(device) => devices.push(device),
            Err(refusal) => {
                let finding = Finding::new(
                    Code::DeviceRefused,
                    format!("`{}` cannot be passed through", wish.value),
                )
                .at(wish.span.clone(), refusal.why)
                .also(
                    system.board.as_ref().map(|board| board.place()),
                    "this board",
                );
                findings.push(if refusal.help.is_empty() {
                    finding.help("leave it out: on this board no VM can have it")
                } else {
                    finding.help(refusal.help)
                });
            }
        }
    }
    superfluous(spec, &devices, findings);
    devices
}

/// Reports `board_reset` if no device of the VM can reset the board.
fn superfluous(spec: &VmSpec, devices: &[PassthroughDevice], findings: &mut Vec<Finding>) {
    let accepted = spec.board_reset.clone();
    let resets =
        spec.devices.len() > devices.len() || devices.iter().any(|device| device.resets_board);
    if let Some(span) = accepted.filter(|_| !resets) {
        findings.push(
            Finding::new(
                Code::ClassSuperfluous,
                "board_reset = \"allowed\" states a deviation that this VM does not have",
            )
            .at(span, "none of its devices can reset the board")
            .help("leave `board_reset` out"),
        );
    }
}

/// Checks that no device has two owners.
pub(super) fn devices_twice(system: &System, findings: &mut Vec<Finding>) {
    let requests: Vec<_> = system
        .vms
        .iter()
        .flat_map(|vm| vm.devices.iter().map(move |wish| (vm, wish)))
        .collect();
    for (index, (vm, wish)) in requests.iter().enumerate() {
        let first = requests[..index]
            .iter()
            .find(|(_, other)| other.value == wish.value);
        if let Some((owner, other)) = first {
            findings.push(
                Finding::new(
                    Code::DeviceShared,
                    format!("`{}` has two owners", wish.value),
                )
                .at(wish.span.clone(), format!("`{}` wants it", vm.name.value))
                .at(
                    other.span.clone(),
                    format!("`{}` has it already", owner.name.value),
                )
                .help("a device belongs to one VM"),
            );
        }
    }
}

/// The INTID that a guest sees for the board's `intid`: the same if possible.
pub(super) fn vintid(intid: u32, taken: &mut Vec<u32>, next: &mut u32) -> u32 {
    let mut chosen = intid;
    if intid >= 32 + MAX_SPIS || taken.contains(&intid) {
        while taken.contains(next) {
            *next += 1;
        }
        chosen = *next;
    }
    taken.push(chosen);
    chosen
}

//! Devices of the board that VMs get.

use bulkhead_abi::plan::MAX_SPIS;
use dtoolkit::fdt::Fdt;

use bulkhead_model::board::{Board, PassthroughDevice, Refusal, Tree, pass};
use bulkhead_model::describe::{Code, Finding, PassedSpec, System, VmSpec};

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
    for request in requests {
        let wish = &request.path;
        let declared = request.no_dma.as_ref();
        match pass(&tree, &wish.value, &board.console, declared.is_some()) {
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
            Err(refusal) => findings.push(refused(request, refusal, system)),
        }
        let known = || pass(&tree, &wish.value, &board.console, false).is_ok();
        if let Some(span) = declared.filter(|_| known()) {
            findings.push(
                Finding::new(
                    Code::ClassSuperfluous,
                    "dma = \"none\" states a deviation that this VM does not have",
                )
                .at(span.clone(), "this device is known to do no DMA")
                .help("leave `dma` out"),
            );
        }
    }
    superfluous(spec, &devices, findings);
    devices
}

/// The finding that a VM cannot have a device.
fn refused(request: &PassedSpec, refusal: Refusal, system: &System) -> Finding {
    let path = &request.path;
    let board = system.board.as_ref().map(|board| board.place());
    if let Some(span) = request.no_dma.as_ref().filter(|_| refusal.moves_memory) {
        return Finding::new(
            Code::DeviceDma,
            format!(
                "`{}` is declared free of DMA, and the board's tree says otherwise",
                path.value
            ),
        )
        .at(path.span.clone(), refusal.why)
        .at(span.clone(), "declared here")
        .also(board, "this board")
        .help(
            "leave it out: it would reach the memory of every VM, and this version sets up no SMMU",
        );
    }
    let finding = Finding::new(
        Code::DeviceRefused,
        format!("`{}` cannot be passed through", path.value),
    )
    .at(path.span.clone(), refusal.why)
    .also(board, "this board");
    if refusal.help.is_empty() {
        finding.help("leave it out: on this board no VM can have it")
    } else {
        finding.help(refusal.help)
    }
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
        .flat_map(|vm| vm.devices.iter().map(move |wish| (vm, &wish.path)))
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

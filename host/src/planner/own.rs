//! What keeps a VM from taking its interrupts itself (`docs/adr/0016-own-interrupts.md`).

use bulkhead_abi::plan::InterruptMode;
use bulkhead_core::gppt::Mode;
use bulkhead_core::vgic::Version;

use crate::describe::{Finding, VmSpec};

/// How a plan says it.
pub(super) fn number(own: Option<Mode>) -> InterruptMode {
    match own {
        None => InterruptMode::Vgic,
        Some(Mode::Recoverable) => InterruptMode::GpptRecoverable,
        Some(Mode::PmrTrapped) => InterruptMode::GpptPmrTrapped,
        Some(Mode::PmrDirect) => InterruptMode::GpptPmrDirect,
        Some(Mode::V2) => InterruptMode::GpptV2,
    }
}

/// Reports what of a VM that is to take its interrupts itself needs a vGIC. `told`: other VMs' crashes are told to it;
/// `clash`: an INTID of a passed-through device is that of something emulated.
pub(super) fn check(
    spec: &VmSpec,
    gic_version: u32,
    told: bool,
    clash: Option<u32>,
    findings: &mut Vec<Finding>,
) {
    let Some(mode) = spec.interrupts.own else {
        return;
    };
    let version = if gic_version == 2 {
        Version::V2
    } else {
        Version::V3
    };
    let board = mode.refusal(version, true, false);
    let clash = clash.map(|intid| {
        format!("INTID {intid} of a passed-through device is also that of an emulated one")
    });
    let reasons = [
        board.or_else(|| mode.missing()).map(str::to_owned),
        (spec.vcpus > 1).then(|| "it has more than one vCPU".to_owned()),
        told.then(|| "the interrupt by which it is told of a crash is made by EL2".to_owned()),
        clash,
    ];
    for reason in reasons.into_iter().flatten() {
        findings.push(
            Finding::new(
                "bulkhead::interrupts::own",
                format!("`{}` cannot take its interrupts itself", spec.name.value),
            )
            .at(spec.name.span.clone(), reason)
            .help("say interrupts = \"vgic\": an exit for each interrupt"),
        );
    }
}

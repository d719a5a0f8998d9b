//! What keeps a VM from taking its interrupts itself (`docs/adr/0016-own-interrupts.md`).

use bulkhead_abi::plan::{InterruptMode, Reclaim as Number};
use bulkhead_core::gppt::{Kick, Mode, Reclaim};

use crate::describe::{Finding, InterruptSpec, VmSpec, gic_version};

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

/// Whether the mode leaves open how EL2 gets the CPU back, and `reclaim` is one of the ways.
fn can(mode: Mode, reclaim: Reclaim) -> bool {
    match reclaim {
        Reclaim::Sdei => mode.has_events(),
        Reclaim::Guaranteed | Reclaim::Cooperative => mode.kick() == Kick::RevokeAndPoke,
    }
}

/// How a plan says how EL2 gets the CPU back.
pub(super) fn reclaim(spec: &InterruptSpec, own: Option<Mode>) -> Number {
    match spec.reclaim {
        reclaim if !own.is_some_and(|mode| can(mode, reclaim)) => Number::Always,
        Reclaim::Guaranteed => Number::Guaranteed,
        Reclaim::Cooperative => Number::Cooperative,
        Reclaim::Sdei => Number::Sdei,
    }
}

/// What else is known of a VM that is to take its interrupts itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances {
    /// Version of the board's GIC.
    pub version: u32,
    /// Other VMs' crashes are told to it.
    pub told: bool,
    /// An INTID of a passed-through device that is also that of something emulated.
    pub clash: Option<u32>,
}

/// Reports what of a VM that is to take its interrupts itself needs a vGIC.
pub(super) fn check(spec: &VmSpec, known: Circumstances, findings: &mut Vec<Finding>) {
    let mode = spec.interrupts.own(known.version);
    let reclaim = spec.interrupts.reclaim;
    if let Some(span) = &spec.interrupts.reclaim_stated
        && !mode.is_some_and(|mode| can(mode, reclaim))
    {
        let (why, help) = match mode {
            Some(mode) if reclaim == Reclaim::Sdei => (
                format!(
                    "`{}` cannot be got back by events of the firmware",
                    spec.name.value
                ),
                format!(
                    "leave `reclaim` out: that is for a GICv3, and not for the mode {}",
                    mode.name()
                ),
            ),
            _ => (
                format!(
                    "`{}` has no choice how its CPU is got back",
                    spec.name.value
                ),
                "leave `reclaim` out".to_owned(),
            ),
        };
        let label = match mode {
            Some(_) if reclaim == Reclaim::Sdei => "not in its mode",
            _ => "EL2 gets it back in any case",
        };
        findings.push(
            Finding::new("bulkhead::interrupts::reclaim", why)
                .at(span.clone(), label)
                .help(help),
        );
    }
    let Some(mode) = mode else {
        return;
    };
    let board = mode.refusal(gic_version(known.version), true, false);
    let clash = known.clash.map(|intid| {
        format!("INTID {intid} of a passed-through device is also that of an emulated one")
    });
    let reasons = [
        board.or_else(|| mode.missing()).map(str::to_owned),
        (spec.vcpus > 1).then(|| "it has more than one vCPU".to_owned()),
        known
            .told
            .then(|| "the interrupt by which it is told of a crash is made by EL2".to_owned()),
        clash,
        (keeps_all(mode, reclaim) && spec.watchdog)
            .then(|| "the timer of its watchdog would interrupt it, and not EL2".to_owned()),
    ];
    for reason in reasons.into_iter().flatten() {
        findings.push(
            refused(spec, reason).help("say interrupts = \"vgic\": an exit for each interrupt"),
        );
    }
}

/// Warns of an emulated board without the firmware whose events are to get the VM's CPU back. No error: EL2 asks the
/// firmware that is there, and another one may be when the image is started.
pub(super) fn check_events(spec: &VmSpec, has_firmware: bool, findings: &mut Vec<Finding>) {
    if has_firmware || spec.interrupts.reclaim != Reclaim::Sdei {
        return;
    }
    if let Some(span) = &spec.interrupts.reclaim_stated {
        findings.push(
            Finding::new(
                "bulkhead::interrupts::events",
                format!(
                    "EL2 will refuse to get the CPU of `{}` back",
                    spec.name.value
                ),
            )
            .at(
                span.clone(),
                "by events of the firmware, and this board has none",
            )
            .help("add firmware = \"tf-a\" to [board], or leave `reclaim` out")
            .harmless(),
        );
    }
}

/// EL2 has the mode, and in it cannot take an interrupt of its own while the VM runs.
pub(super) fn keeps_all(mode: Mode, reclaim: Reclaim) -> bool {
    can(mode, reclaim) && mode.missing().is_none()
}

/// The console is drained on the CPU of such a VM.
pub(super) fn drains(spec: &VmSpec) -> Finding {
    let reason = "the console is drained on its CPU, and the UART would interrupt it, and not EL2";
    refused(spec, reason.to_owned())
        .help("let another CPU drain it: service = 1 in [console], for instance")
}

fn refused(spec: &VmSpec, reason: String) -> Finding {
    Finding::new(
        "bulkhead::interrupts::own",
        format!("`{}` cannot take its interrupts itself", spec.name.value),
    )
    .at(spec.name.span.clone(), reason)
}

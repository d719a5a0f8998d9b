//! Checks whether a VM can be a GPPT VM (`docs/adr/0016-gppt.md`).

use bulkhead_abi::plan::{InterruptMode, Reclaim as Number};
use bulkhead_core::gppt::{Kick, Mode, Reclaim};

use bulkhead_model::board::Board;
use bulkhead_model::describe::{
    BoardGic, Code, Finding, InterruptSpec, PayloadSpec, Placed, Span, System, VmSpec, gic_version,
};

use super::file::Content;
use super::payload::Program;
use super::{PlannedCpu, PlannedDoorbell, spis};

/// Interrupt mode in the plan.
pub(super) fn number(mode: Option<Mode>) -> InterruptMode {
    match mode {
        None => InterruptMode::Vgic,
        Some(Mode::Recoverable) => InterruptMode::GpptRecoverable,
        Some(Mode::PmrTrapped) => InterruptMode::GpptPmrTrapped,
        Some(Mode::PmrDirect) => InterruptMode::GpptPmrDirect,
        Some(Mode::V2) => InterruptMode::GpptV2,
        Some(Mode::Revocable) => InterruptMode::GpptRevocable,
        Some(Mode::RevocableTrapped) => InterruptMode::GpptRevocableTrapped,
    }
}

/// What masks interrupts of a VM in this mode, and what the register of the running priority shows its handlers. FreeRTOS' port
/// asserts on that one.
///
/// In a mode without traps in which HCR_EL2.FMO is set both are those of the virtual CPU interface, on which the guest's
/// interrupts are not active (IHI 0069H, 12.2). Else they are the board's, or EL2 converts what it reads there.
pub(super) fn masks(mode: Mode) -> &'static str {
    match mode {
        Mode::Recoverable | Mode::Revocable => {
            "PSTATE.DAIF masks them; ICC_RPR_EL1 reads 0xff, as with no interrupt active, in handlers, too"
        }
        Mode::PmrTrapped | Mode::RevocableTrapped => {
            "PSTATE.DAIF and ICC_PMR_EL1 mask them; ICC_RPR_EL1 reads the handler's priority, by an exit"
        }
        Mode::PmrDirect => {
            "PSTATE.DAIF and ICC_PMR_EL1 mask them; ICC_RPR_EL1 reads the handler's priority"
        }
        Mode::V2 => "PSTATE.DAIF and GICC_PMR mask them; GICC_RPR reads the handler's priority",
    }
}

/// Whether the mode leaves a choice how EL2 gets the CPU back, and `reclaim` is one of the choices. With each of them
/// EL2 cannot take an interrupt of its own while the VM runs.
pub(super) fn has_choice(mode: Mode, reclaim: Reclaim) -> bool {
    match reclaim {
        Reclaim::Sdei => mode.has_events(),
        Reclaim::Guaranteed | Reclaim::Cooperative => mode.kick() == Kick::RevokeAndPoke,
    }
}

/// Value of `reclaim` in the plan: the way in which EL2 gets the CPU back.
pub(super) fn reclaim(spec: &InterruptSpec, mode: Option<Mode>) -> Number {
    match spec.reclaim {
        reclaim if !mode.is_some_and(|mode| has_choice(mode, reclaim)) => Number::Always,
        Reclaim::Guaranteed => Number::Guaranteed,
        Reclaim::Cooperative => Number::Cooperative,
        Reclaim::Sdei => Number::Sdei,
    }
}

/// Facts about a VM that is to be a GPPT VM, besides its description.
#[derive(Clone, Debug)]
pub(super) struct Context<'a> {
    /// The board's GIC.
    pub gic: BoardGic,
    /// Place at which the description says which GIC the board has.
    pub gic_place: Option<Span>,
    /// Place at which the description says which firmware the board has.
    pub firmware_place: Option<Span>,
    /// Name of another GPPT VM.
    pub other: Option<&'a Placed<String>>,
    /// Place at which the description says that another VM's crash is told to it.
    pub told: Option<Span>,
    /// An INTID of a passed-through device that is also that of something emulated.
    pub clash: Option<u32>,
}

/// `mrs x0, ICC_PMR_EL1`; the register it goes to is in bits 4 to 0.
const MRS_ICC_PMR_EL1: u32 = 0xd538_4600;
/// The label of what says which firmware the board has.
const FIRMWARE: &str = "the board's firmware";

/// Reports each property of a requested GPPT VM that needs a vGIC.
pub(super) fn check(spec: &VmSpec, known: Context<'_>, findings: &mut Vec<Finding>) {
    let mode = spec.interrupts.gppt(known.gic);
    let reclaim = spec.interrupts.reclaim;
    if let Some(span) = &spec.interrupts.reclaim_stated
        && !mode.is_some_and(|mode| has_choice(mode, reclaim))
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
        let gic = known.gic_place.clone().filter(|_| known.gic.version == 2);
        findings.push(
            Finding::new(Code::InterruptsReclaim, why)
                .at(span.clone(), label)
                .also(gic, "the board has a GICv2")
                .help(help),
        );
    }
    let Some(mode) = mode else {
        return;
    };
    if let Some(debug) = &spec.debug
        && reclaim == Reclaim::Sdei
    {
        findings.push(
            Finding::new(
                Code::DebugMode,
                "a VM whose CPU is got back by events of the firmware has no debug registers",
            )
            .at(debug.clone(), "asked for here")
            .also(
                spec.interrupts.reclaim_stated.clone(),
                "EL2 needs its software step for that",
            )
            .help("leave `debug` out, or `reclaim`"),
        );
    }
    let version = gic_version(known.gic.version);
    let board = mode.refusal(version, true, false);
    let firmware = match spec.interrupts.reclaim {
        _ if !known.gic.two_states || board.is_some() => None,
        Reclaim::Sdei => None,
        Reclaim::Guaranteed | Reclaim::Cooperative => mode.refusal(version, false, false),
    };
    let strangers = known.other.filter(|_| !mode.filters_sgis());
    let strangers = strangers.map(|other| {
        let name = &other.value;
        let reason = format!(
            "EL2 does not see its SGIs, and `{name}`, which is a GPPT VM, too, could be sent them"
        );
        (reason, Some(other.span.clone()), "this other VM")
    });
    let clash = known.clash.map(|intid| {
        format!("INTID {intid} of a passed-through device is also that of an emulated one")
    });
    let gic = known.gic_place;
    let reasons = [
        board.map(|reason| (reason.to_owned(), gic.clone(), "the board's GIC")),
        firmware.map(|reason| (reason.to_owned(), known.firmware_place, FIRMWARE)),
        strangers,
        (spec.vcpus > 1).then(|| ("it has more than one vCPU".to_owned(), None, "")),
        known.told.map(|told| {
            let reason = "the interrupt by which it is told of a crash is made by EL2";
            (reason.to_owned(), Some(told), "a crash of this VM")
        }),
        clash.map(|reason| (reason, None, "")),
        (has_choice(mode, reclaim) && spec.watchdog.is_some()).then(|| {
            let reason = "the timer of its watchdog would interrupt it, and not EL2";
            (reason.to_owned(), None, "")
        }),
    ];
    for (reason, place, label) in reasons.into_iter().flatten() {
        let help = if label == FIRMWARE {
            "say interrupts = \"gppt-pmr-trapped\", an exit for each access to the mask (docs/adr/0023-gppt-under-firmware.md), or firmware = \"none\" if the board has one Security state"
        } else {
            "say interrupts = \"vgic\": an exit for each interrupt"
        };
        findings.push(refused(spec, reason).also(place, label).help(help));
    }
}

/// Reports a VM whose CPU is to be got back by events that the board's firmware has not, and warns where nobody knows whether
/// it has them: EL2 asks when it starts, and refuses the plan if it has none.
pub(super) fn check_events(
    (spec, system): (&VmSpec, &System),
    board: &Board,
    findings: &mut Vec<Finding>,
) {
    let mode = spec.interrupts.gppt(board.gic());
    let asks = spec.interrupts.reclaim == Reclaim::Sdei && mode.is_some_and(Mode::has_events);
    let has_events = board.has_events();
    let Some(span) = spec.interrupts.reclaim_stated.clone().filter(|_| asks) else {
        return;
    };
    if has_events == Some(true) {
        return;
    }
    let place = system.board.as_ref().map(|board| board.firmware_place());
    let name = &spec.name.value;
    let (code, what, why) = match has_events {
        Some(_) => (
            Code::InterruptsEvents,
            format!("nothing gets the CPU of `{name}` back"),
            "by events of the firmware, and this board has none",
        ),
        None => (
            Code::InterruptsEventsUnknown,
            format!("it is not known whether anything gets the CPU of `{name}` back"),
            "by events of the firmware, which may have none: then EL2 refuses the plan when it starts",
        ),
    };
    let help = match (board.emulated.is_some(), has_events) {
        (true, _) => "add firmware = \"tf-a\" to [board], or leave `reclaim` out",
        (false, Some(_)) => {
            "leave `reclaim` out, or say firmware = \"tf-a\" in [board] if the board's firmware has them"
        }
        (false, None) => {
            "say firmware = \"tf-a\" in [board] if the board's firmware has them, else leave `reclaim` out"
        }
    };
    findings.push(
        Finding::new(code, what)
            .at(span, why)
            .also(place, "this board")
            .help(help),
    );
}

/// Warns of a program that reads its priority mask in a mode in which that masks nothing, if nobody has chosen the mode.
/// Programs that mask by it look what it was, as FreeRTOS does; those that open it once do not.
pub(super) fn check_mask(
    (spec, board): (&VmSpec, &Board),
    program: &Program,
    findings: &mut Vec<Finding>,
) {
    let mode = spec.interrupts.gppt(board.gic());
    let masks_nothing = matches!(mode, Some(Mode::Recoverable | Mode::Revocable));
    let PayloadSpec::Program { image, .. } = &spec.payload else {
        return;
    };
    if !masks_nothing || spec.interrupts.stated.is_some() {
        return;
    }
    if let Some(place) = program.pieces.iter().find_map(reads_mask) {
        let name = &spec.name.value;
        findings.push(
            Finding::new(
                Code::InterruptsMask,
                format!("the priority mask of `{name}` would mask nothing"),
            )
            .at(
                image.span.clone(),
                format!("it reads ICC_PMR_EL1 at {place:#x}, as programs do that mask by it"),
            )
            .also(Some(spec.name.span.clone()), "hard-realtime, which takes `gppt`")
            .help("if it masks interrupts so (FreeRTOS ports do), say interrupts = \"gppt-pmr-trapped\"; if it does not, interrupts = \"gppt\""),
        );
    }
}

/// Address of the first `mrs` of ICC_PMR_EL1 in a piece of a program.
fn reads_mask((start, content): &(u64, Content)) -> Option<u64> {
    let (words, _) = content.as_chunks::<4>();
    let is_read = |word: &[u8; 4]| u32::from_le_bytes(*word) & !0x1f == MRS_ICC_PMR_EL1;
    let at = words.iter().position(is_read)?;
    Some(start + 4 * at as u64)
}

/// Whether the VM sends SGIs that EL2 does not see.
pub(super) fn sends_sgis_itself(spec: &VmSpec, gic: BoardGic) -> bool {
    let mode = spec.interrupts.gppt(gic);
    mode.is_some_and(|mode| !mode.filters_sgis())
}

/// SPIs by which pCPUs call each other: the first of two for each, the last ones that are free. If each VM's SGIs go
/// through EL2, only those have some on which EL2 shares Group 1 with a VM.
pub(super) fn call_spis(
    system: &System,
    board: &Board,
    doorbells: &[PlannedDoorbell],
    cpus: &[PlannedCpu],
    findings: &mut Vec<Finding>,
) -> Vec<u16> {
    let gic = board.gic();
    let unseen = system.vms.iter().find(|spec| sends_sgis_itself(spec, gic));
    let called = |cpu: &PlannedCpu| -> Option<&VmSpec> {
        let mut vms = cpu.vcpus.iter().map(|(vm, _)| &system.vms[*vm]);
        let shares = |spec: &&VmSpec| {
            let mode = spec.interrupts.gppt(gic);
            gic.two_states && mode.is_some_and(|mode| !mode.el2_in_group0())
        };
        unseen.or_else(|| vms.find(shares))
    };
    let number = cpus.iter().filter(|cpu| called(cpu).is_some()).count();
    let Some(spec) = cpus.iter().find_map(called) else {
        return vec![0; cpus.len()];
    };
    let mut free = spis::free(board);
    for spi in doorbells.iter().filter_map(|bell| bell.spi) {
        free.remove(&spi);
    }
    let mut spis = Vec::new();
    while spis.len() < number
        && let Some(last) = free.pop_last()
    {
        if let Some(first) = last.checked_sub(1).filter(|first| free.remove(first)) {
            spis.push(first as u16);
        }
    }
    if spis.len() < number {
        let why = if unseen.is_some() {
            "EL2 does not see its SGIs, so CPUs call each other"
        } else {
            "its SGIs and those of the firmware are all there are, so other CPUs call its CPU"
        };
        let reason = format!(
            "{why} by SPIs that no device has, two for each; the board has {} for {number}",
            2 * spis.len(),
        );
        findings.push(
            refused(spec, reason)
                .also(
                    system.board.as_ref().map(|board| board.place()),
                    "this board",
                )
                .help(if unseen.is_some() {
                    "say interrupts = \"gppt-pmr-trapped\""
                } else {
                    "say interrupts = \"vgic\": an exit for each interrupt"
                }),
        );
    }
    let mut spis = spis.into_iter();
    let first = |cpu: &PlannedCpu| called(cpu).and_then(|_| spis.next()).unwrap_or(0);
    cpus.iter().map(first).collect()
}

/// Finding that the console is drained on the CPU of such a VM, and that this `other` one could drain it.
pub(super) fn drains(spec: &VmSpec, other: Option<usize>) -> Finding {
    let reason = "the console is drained on its CPU, and the UART would interrupt it, and not EL2";
    refused(spec, reason.to_owned()).help(match other {
        Some(cpu) => format!("let another CPU drain it: service = {cpu} in [console]"),
        None => "say interrupts = \"vgic\": an exit for each interrupt; the board has no other CPU that could drain it".to_owned(),
    })
}

/// Warns of a watchdog whose first signal never reaches its VM. EL2 sees all the same when the second one is due.
pub(super) fn check_watchdog(spec: &VmSpec, gic: BoardGic, findings: &mut Vec<Finding>) {
    let mode = spec.interrupts.gppt(gic);
    let refused = mode.is_some_and(|mode| has_choice(mode, spec.interrupts.reclaim));
    if mode.is_none() || refused || spec.watchdog.is_none() {
        return;
    }
    let name = &spec.name.value;
    let stated = spec.interrupts.stated.clone();
    findings.push(
        Finding::new(
            Code::InterruptsWatchdog,
            format!("the watchdog of `{name}` never interrupts it"),
        )
        .at(
            stated.unwrap_or_else(|| spec.name.span.clone()),
            "takes its interrupts itself, and none that EL2 makes",
        )
        .help("the VM still counts as crashed when it has not served the watchdog for two of its periods: serve it without the interrupt of the first, or say interrupts = \"vgic\""),
    );
}

fn refused(spec: &VmSpec, reason: String) -> Finding {
    Finding::new(
        Code::InterruptsOwn,
        format!("`{}` cannot be a GPPT VM", spec.name.value),
    )
    .at(spec.name.span.clone(), reason)
}

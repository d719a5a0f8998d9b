//! Service classes: what each asks for, and what of that a description takes back or this version lacks. That must be stated
//! in the description as a deviation; less than a class asks for is never silent.

use bulkhead_abi::plan::Class;
use bulkhead_core::gppt::{Mode, Reclaim};
use bulkhead_core::vgic::Version;
use serde::Serialize;

use super::code::Code;
use super::cpu::{CpuSpec, CpuTime};
use super::finding::{Finding, Span};
use super::keys::{VM, Word};
use super::reader::{Placed, Reader};
use super::words::{CLASSES, GICV2, GPPT, NO_CONTROL, PMR_DIRECT, PMR_TRAPPED, SDEI, VGIC};

/// Name of a class.
pub fn class_name(class: Class) -> &'static str {
    CLASSES
        .iter()
        .find(|(_, known)| *known == class)
        .map_or("", |(name, _)| name)
}

/// Less than the class asks for, because the description says so.
#[derive(Clone, Debug, Serialize)]
pub struct Deviation {
    /// Key and value that state it.
    pub stated: &'static str,
    /// Property that the class asks for.
    pub asked: &'static str,
    /// Property that the VM gets instead.
    pub got: &'static str,
}

/// Less than every class asks for: a device of the VM can reset the board.
pub(super) const BOARD_RESET: Deviation = Deviation {
    stated: "board_reset = \"allowed\"",
    asked: "no VM can stop another one",
    got: "a watchdog of the board: unserved, it resets all VMs",
};

/// Less than every class asks for: that a device of the VM moves no memory by itself is only said.
pub(super) const NO_DMA: Deviation = Deviation {
    stated: "dma = \"none\"",
    asked: "no VM can reach the memory of another one",
    got: "devices that reach it, unless the description is right that they do no DMA",
};

/// A thing that a class asks for and that a VM can do without.
struct Lack {
    class: Class,
    key: Word,
    /// Value that states the deviation.
    lesser: &'static str,
    deviation: Deviation,
}

/// All things that a class asks for and that a VM can do without.
const LACKS: [Lack; 2] = [
    Lack {
        class: Class::HardRealtime,
        key: VM.word("interrupts"),
        lesser: VGIC,
        deviation: Deviation {
            stated: "interrupts = \"vgic\"",
            asked: "interrupts taken at EL1 without an exit (GPPT)",
            got: "interrupts through the vGIC: one exit for each",
        },
    },
    Lack {
        class: Class::Management,
        key: VM.word("control"),
        lesser: NO_CONTROL,
        deviation: Deviation {
            stated: "control = \"none\"",
            asked: "a control port to manage other VMs",
            got: "no control port: it manages nothing",
        },
    },
];

/// Reads `interrupts` and `control` and compares them with what `class` asks for.
pub(super) fn deviations(
    reader: &mut Reader,
    name: &Placed<String>,
    class: Class,
    class_span: Option<Span>,
) -> Vec<Deviation> {
    let mut deviations = Vec::new();
    for lack in &LACKS {
        let stated = reader.read(lack.key);
        let Some(word) = stated.filter(|word| word.value == lack.lesser) else {
            continue;
        };
        if class == lack.class {
            deviations.push(lack.deviation.clone());
            continue;
        }
        let (key, lesser) = (lack.key.0.name, lack.lesser);
        reader.report(
            Finding::new(
                Code::ClassSuperfluous,
                format!(
                    "{key} = \"{lesser}\" states a deviation that a {} VM does not have",
                    class_name(class)
                ),
            )
            .at(
                word.span,
                format!("only a {} VM asks for more", class_name(lack.class)),
            )
            .also(class_span.clone(), "the class of this one")
            .help(format!("leave `{key}` out")),
        );
    }
    if class == Class::Management {
        check_manager(reader, name, class_span);
    }
    deviations
}

/// Checks that a management VM manages somebody, or says that it does not.
fn check_manager(reader: &mut Reader, name: &Placed<String>, class_span: Option<Span>) {
    let control = const { VM.key("control") };
    let manages = const { VM.key("manages") };
    match (reader.key_span(control), reader.key_span(manages)) {
        (Some(control), Some(manages)) => reader.report(
            Finding::new(
                Code::ClassSuperfluous,
                format!(
                    "`{}` manages somebody, and says that it does not",
                    name.value
                ),
            )
            .at(control, "no control port")
            .at(manages, "what goes through it")
            .help("leave one of the two out"),
        ),
        (None, None) => {
            let span = class_span.unwrap_or_else(|| name.span.clone());
            reader.report(
                Finding::new(
                    Code::ClassLacking,
                    format!("`{}` is a management VM and manages nobody", name.value),
                )
                .at(span, "asks for a control port to manage other VMs")
                .help(
                    "say what it may do, such as manages = { \"*\" = [\"list\", \"restart\"] }, or control = \"none\" if that is \
                     nothing: a deviation, shown in the plan",
                ),
            );
        }
        _ => {}
    }
}

/// Deviation of a VM whose description states a CPU policy that gives less than its class asks for.
pub(super) fn cpu_deviation(class: Class, cpu: &CpuSpec) -> Option<Deviation> {
    let asked = match class {
        Class::HardRealtime => "a CPU for itself",
        Class::SoftRealtime => "a CPU for itself, or a budget in each period",
        Class::Management | Class::General => return None,
    };
    match (class, cpu.time) {
        (Class::HardRealtime, CpuTime::Server { .. }) => Some(Deviation {
            stated: "cpu = \"rt\"",
            asked,
            got: "a budget in each period: others run on its CPU, too",
        }),
        (_, CpuTime::Fair { .. }) => Some(Deviation {
            stated: "cpu = \"fair\"",
            asked,
            got: "a share of a CPU: no deadline is safe",
        }),
        _ => None,
    }
}

/// Interrupt delivery of a VM.
#[derive(Clone, Debug)]
pub struct InterruptSpec {
    /// GPPT mode, in which the VM takes interrupts itself at EL1; `None`: through the vGIC.
    asked: Option<Mode>,
    /// Place at which the description states the delivery; `None`: the class decides.
    pub stated: Option<Span>,
    /// Way in which EL2 gets the VM's CPU back, where the mode leaves a choice.
    pub reclaim: Reclaim,
    /// Place at which the description states `reclaim`; `None`: the class decides.
    pub reclaim_stated: Option<Span>,
}

impl InterruptSpec {
    /// Of a VM that has its interrupts through the vGIC, as its class has it.
    pub const fn vgic() -> Self {
        Self {
            asked: None,
            stated: None,
            reclaim: Reclaim::Guaranteed,
            reclaim_stated: None,
        }
    }

    /// Whether it is a GPPT VM.
    pub const fn is_gppt(&self) -> bool {
        self.asked.is_some()
    }

    /// GPPT mode on a board with this GIC: plain `gppt` means the GICv2 mode on a GICv2, and the mode in which EL2 shares
    /// Group 1 where Group 0 is the firmware's, unless its events get the CPU back.
    pub fn gppt(&self, gic: BoardGic) -> Option<Mode> {
        match self.asked {
            Some(Mode::Recoverable) if gic.version == 2 => Some(Mode::V2),
            Some(Mode::Recoverable) if gic.two_states && self.reclaim != Reclaim::Sdei => {
                Some(Mode::Revocable)
            }
            Some(Mode::PmrTrapped) if gic.two_states && self.reclaim != Reclaim::Sdei => {
                Some(Mode::RevocableTrapped)
            }
            other => other,
        }
    }
}

/// What the modes of GPPT VMs depend on.
#[derive(Clone, Copy, Debug)]
pub struct BoardGic {
    /// Version of the GIC.
    pub version: u32,
    /// Whether there is firmware at EL3, whose Group 0 is.
    pub two_states: bool,
}

/// The version of a GIC by its number.
pub const fn gic_version(number: u32) -> Version {
    if number == 2 {
        Version::V2
    } else {
        Version::V3
    }
}

/// Reads the interrupt delivery of a VM of this class. A wrong word is reported by [`deviations`].
///
/// A hard-realtime VM sleeps by itself, without an exit, unless its description asks for the guarantee.
pub(super) fn interrupts(reader: &mut Reader, class: Class) -> InterruptSpec {
    let value = reader.value(const { VM.key("interrupts") });
    let asked = match value.map(|value| value.get_ref().as_str()) {
        Some(Some(GPPT)) => Some(Mode::Recoverable),
        Some(Some(PMR_TRAPPED)) => Some(Mode::PmrTrapped),
        Some(Some(PMR_DIRECT)) => Some(Mode::PmrDirect),
        Some(Some(GICV2)) => Some(Mode::V2),
        None if class == Class::HardRealtime => Some(Mode::Recoverable),
        _ => None,
    };
    let word = reader.read(const { VM.word("reclaim") });
    let reclaim = match &word {
        Some(word) if word.value == SDEI => Reclaim::Sdei,
        Some(word) if word.value == "cooperative" => Reclaim::Cooperative,
        Some(_) => Reclaim::Guaranteed,
        None if class == Class::HardRealtime => Reclaim::Cooperative,
        None => Reclaim::Guaranteed,
    };
    InterruptSpec {
        asked,
        stated: value.map(|value| value.span()),
        reclaim,
        reclaim_stated: word.map(|word| word.span),
    }
}

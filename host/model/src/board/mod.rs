//! The board: what its device tree says about memory, CPUs, interrupt controller, console and devices.

mod device;
mod emulated;
mod facts;
mod named;
mod open;
mod plan_error;
mod quiesce;
mod tree;

use std::path::Path;

use bulkhead_abi::plan::Memory;
use dtoolkit::fdt::Fdt;
use zerocopy::FromZeros;

use self::named::Resolved;
use crate::describe::{BoardGic, BoardSource, BoardSpec, Code, Finding, Placed, System};

pub use device::{PassthroughDevice, PassthroughIrq, pass};
pub use emulated::{Emulated, EmulatedTree, Firmware};
pub use named::{Kind, Named, all, find, is_name};
pub use plan_error::PlanError;
pub use tree::{Entry, Tree};

pub use self::device::pass_entry;
pub use self::facts::{Cpu, Facts, Parts};
pub use self::facts::{GICV2, intid, uart_kind};
pub use self::named::read as read_file;
pub use self::open::open;

/// A board.
#[derive(Clone, Debug)]
pub struct Board {
    /// Name for messages.
    pub name: String,
    /// Parameters to run it in QEMU, if it is emulated.
    pub emulated: Option<Emulated>,
    /// Whether there is firmware at EL3, whose Group 0 is.
    pub two_states: bool,
    /// Its flattened device tree.
    pub dtb: Vec<u8>,
    /// Ranges of memory, ascending.
    pub memory: Vec<Memory>,
    /// Ranges that firmware keeps.
    pub reserved: Vec<Memory>,
    /// CPUs in the order of the tree; the first one boots.
    pub cpus: Vec<Cpu>,
    /// GIC, console, timer.
    pub parts: Parts,
    /// Path of the console in the tree.
    pub console: String,
}

impl Board {
    /// What the interrupt modes of VMs depend on.
    pub fn gic(&self) -> BoardGic {
        BoardGic {
            version: self.parts.gic_version,
            two_states: self.two_states,
        }
    }

    /// A board that has everything, in place of one that is not known: what is wrong here is so on any.
    pub fn any() -> Self {
        let cpu = |number| Cpu {
            mpidr: number,
            compatible: String::new(),
            release: 0,
        };
        let memory = Memory {
            base: 0,
            size: 1 << 52,
        };
        let parts = Parts {
            gic_version: 3,
            ..Parts::new_zeroed()
        };
        Self {
            name: String::new(),
            emulated: None,
            two_states: false,
            dtb: Vec::new(),
            memory: vec![memory],
            reserved: Vec::new(),
            cpus: (0..256).map(cpu).collect(),
            parts,
            console: String::new(),
        }
    }
}

/// Finds the board of a description. `emulated_tree` asks the emulator for the device tree of a board that it has.
///
/// # Errors
/// The description asks for what the board does not have (then `findings` says so), or a tool or file
/// is missing.
pub fn load(
    system: &System,
    emulated_tree: EmulatedTree,
    findings: &mut Vec<Finding>,
) -> Result<Board, PlanError> {
    let Some(spec) = &system.board else {
        return Err(PlanError::Description);
    };
    let (source, emulated, dtb) = match &spec.source {
        BoardSource::Named(name) => match named::resolve(name, &system.folder, spec, findings)? {
            Resolved::Emulated(emulated) => {
                let dtb = emulated_tree(&emulated)?;
                (name, Some(emulated), dtb)
            }
            Resolved::Tree(dtb) => {
                refuse_parameters(spec, findings);
                (name, None, dtb)
            }
        },
        BoardSource::Tree(path) => {
            refuse_parameters(spec, findings);
            (path, None, read_tree(system, path, findings)?)
        }
    };
    let two_states = match &emulated {
        Some(emulated) => emulated.firmware.is_present(),
        None => has_firmware(spec, findings),
    };
    let facts = open(dtb)
        .map_err(|why| format!("it is {why}"))
        .and_then(|dtb| Ok((facts(&dtb)?, dtb)));
    match facts {
        Ok((facts, dtb)) => Ok(Board {
            name: source.value.clone(),
            emulated,
            two_states,
            memory: facts.memory,
            reserved: facts.reserved,
            cpus: facts.cpus,
            parts: facts.parts,
            console: facts.console,
            dtb,
        }),
        Err(why) => {
            findings.push(
                Finding::new(
                    Code::BoardUnfit,
                    "Bulkhead cannot run on this board",
                )
                .at(source.span.clone(), why)
                .help("it needs arm64 CPUs, a GICv2 or GICv3 and a UART that EL2 drives as /chosen/stdout-path; `bulkhead board show` lists all that is missing"),
            );
            Err(PlanError::Description)
        }
    }
}

/// Reads the properties of a board from its device tree, or gives the first one that is missing.
pub fn facts(dtb: &[u8]) -> Result<Facts, String> {
    let fdt = Fdt::new(dtb).map_err(|why| why.to_string())?;
    facts::read(&Tree::new(fdt), fdt)
}

/// Whether a board that is not emulated has firmware at EL3: its device tree does not say that, and most have.
fn has_firmware(spec: &BoardSpec, findings: &mut Vec<Finding>) -> bool {
    let Some(firmware) = &spec.firmware else {
        return true;
    };
    if !["none", "el3"].contains(&firmware.value.as_str()) {
        let message = format!("this board cannot have firmware = {}", firmware.value);
        findings.push(
            Finding::new(Code::BoardValue, message)
                .at(firmware.span.clone(), "must be one of: none, el3")
                .help("leave `firmware` out: el3 is the default, by which EL2 asks for nothing but PSCI"),
        );
    }
    firmware.value != "none"
}

/// Reports parameters of a board that is not emulated: its device tree already states them.
fn refuse_parameters(spec: &BoardSpec, findings: &mut Vec<Finding>) {
    let spans = [
        spec.cpu.as_ref().map(|value| value.span.clone()),
        spec.cpus.as_ref().map(|value| value.span.clone()),
        spec.memory.as_ref().map(|value| value.span.clone()),
        spec.gic.as_ref().map(|value| value.span.clone()),
        spec.uarts.as_ref().map(|value| value.span.clone()),
    ];
    for span in spans.into_iter().flatten() {
        findings.push(
            Finding::new(
                Code::BoardParameter,
                "a board with a `dtb` has no parameters",
            )
            .at(span, "the device tree says that")
            .help("leave it out"),
        );
    }
}

/// Reads the device tree that a description names.
fn read_tree(
    system: &System,
    path: &Placed<String>,
    findings: &mut Vec<Finding>,
) -> Result<Vec<u8>, PlanError> {
    named::read_some(&system.folder.join(Path::new(&path.value))).map_err(|why| {
        findings.push(
            Finding::new(Code::BoardDtb, "the board's device tree cannot be read")
                .at(path.span.clone(), why.to_string())
                .help("paths start at the folder of the description"),
        );
        PlanError::Description
    })
}

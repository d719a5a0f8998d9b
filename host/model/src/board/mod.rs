//! The board: what its device tree says about memory, CPUs, interrupt controller, console and devices.

mod caches;
mod declared;
mod device;
mod emulated;
mod facts;
mod firmware;
mod named;
mod open;
mod plan_error;
mod quiesce;
mod tree;

use std::path::Path;

use bulkhead_abi::plan::{MAX_COLOURS, Memory};
use zerocopy::FromZeros;

use self::named::{Resolved, Stated};
use crate::describe::{BoardGic, BoardSource, BoardSpec, Code, Finding, Placed, System, nearest};

pub use caches::Cache;
pub use declared::Lack;
pub use device::{PassthroughDevice, PassthroughIrq, Refusal, pass};
pub use emulated::{Card, Emulated, EmulatedTree};
pub use firmware::{Firmware, FirmwareTold, Sign};
pub use named::{Kind, Named, all, find, is_name};
pub use plan_error::PlanError;
pub use tree::{Entry, Tree};

pub use self::device::pass_entry;
pub use self::facts::{Cpu, Facts, Parts};
pub use self::facts::{
    GICV2, facts, facts_with, gic_version, intid, intid_of, lacks_memory, redistributors, uart_kind,
};
pub use self::named::read as read_file;
pub use self::open::open;

/// A board.
#[derive(Clone, Debug)]
pub struct Board {
    /// Name for messages.
    pub name: String,
    /// Parameters to run it in QEMU, if it is emulated.
    pub emulated: Option<Emulated>,
    /// Its firmware. If there is some, Group 0 is the firmware's.
    pub firmware: Firmware,
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
    /// The last caches of its CPUs, by whose colours memory is divided: each CPU has one. Empty: their colours are not known.
    pub caches: Vec<Cache>,
}

impl Board {
    /// What the interrupt modes of VMs depend on.
    pub fn gic(&self) -> BoardGic {
        BoardGic {
            version: self.parts.gic_version,
            two_states: self.firmware.is_present(),
        }
    }

    /// Whether its firmware has events (SDEI); none: that is not known.
    pub fn has_events(&self) -> Option<bool> {
        match self.emulated {
            // What is known of that one is that QEMU is it.
            Some(_) if self.firmware == Firmware::El3 => Some(false),
            _ => self.firmware.has_events(),
        }
    }

    /// A board that has everything, in place of one that is not known: what is wrong here is so on any.
    pub fn any() -> Self {
        let cpu = |number| Cpu {
            mpidr: number,
            compatible: String::new(),
            release: 0,
            pmu_intid: Some(23),
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
            firmware: Firmware::None,
            dtb: Vec::new(),
            memory: vec![memory],
            reserved: Vec::new(),
            cpus: (0..256).map(cpu).collect(),
            parts,
            console: String::new(),
            caches: vec![Cache {
                cpus: (0..256).collect(),
                level: 0,
                colours: MAX_COLOURS,
            }],
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
    let (source, emulated, (dtb, stated)) = match &spec.source {
        BoardSource::Named(name) => match named::resolve(name, &system.folder, spec, findings)? {
            Resolved::Emulated(emulated) => {
                let dtb = emulated_tree(&emulated)?;
                (name, Some(emulated), (dtb, Stated::default()))
            }
            Resolved::Tree(dtb, stated) => {
                refuse_parameters(spec, findings);
                (name, None, (dtb, stated))
            }
        },
        BoardSource::Tree(path) => {
            refuse_parameters(spec, findings);
            let dtb = read_tree(system, path, findings)?;
            (path, None, (dtb, Stated::default()))
        }
    };
    let mut lacking = false;
    // The description comes first.
    let memory = match spec.ram.is_empty() {
        true => stated.memory,
        false => spec.ram_ranges(),
    };
    let facts = open(dtb)
        .map_err(|why| format!("it is {why}"))
        .and_then(|dtb| {
            lacking = lacks_memory(&dtb);
            Ok((facts_with(&dtb, &memory)?, dtb))
        });
    if let Some(ram) = spec.ram.first().filter(|_| !lacking && facts.is_ok()) {
        findings.push(
            Finding::new(Code::BoardMemory, "the board's memory is known")
                .at(ram.span.clone(), "the device tree says that")
                .help("leave `memory_ranges` out"),
        );
    }
    match facts {
        Ok((facts, dtb)) => Ok(Board {
            name: source.value.clone(),
            firmware: match &emulated {
                Some(emulated) => emulated.firmware,
                None => firmware_of(spec, stated.firmware, &facts.firmware, findings),
            },
            emulated,
            caches: caches::caches(spec, &facts.caches, facts.cpus.len(), findings),
            memory: facts.memory,
            reserved: facts.reserved,
            cpus: facts.cpus,
            parts: facts.parts,
            console: facts.console,
            dtb,
        }),
        Err(_) if lacking && spec.ram.is_empty() && memory.is_empty() => {
            findings.push(
                Finding::new(
                    Code::BoardMemory,
                    "the board's device tree does not say how much memory there is",
                )
                .at(source.span.clone(), "the firmware fills it in")
                .help("add memory_ranges = \"1GiB at 0x40000000\" to [board], with the size and the address that the board has, or give the tree that the firmware hands over (/sys/firmware/fdt)"),
            );
            Err(PlanError::Description)
        }
        // None of the ranges is one, which was reported where they stand.
        Err(_) if lacking && memory.is_empty() => Err(PlanError::Description),
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

/// The firmware of a board that is not emulated: what the description says, else its `board.toml`, else what its device
/// tree tells.
fn firmware_of(
    spec: &BoardSpec,
    stated: Option<Firmware>,
    told: &FirmwareTold,
    findings: &mut Vec<Finding>,
) -> Firmware {
    let known = stated.unwrap_or_else(|| told.assumed());
    let Some(word) = &spec.firmware else {
        return known;
    };
    let Some(said) = Firmware::named(&word.value) else {
        let words = Firmware::ALL.map(Firmware::word);
        let message = format!("this board cannot have firmware = {}", word.value);
        findings.push(
            Finding::new(Code::BoardValue, message)
                .at(
                    word.span.clone(),
                    format!("must be one of: {}", Firmware::words()),
                )
                .help(match nearest(&word.value, words) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("leave `firmware` out: {} is the default", known.word()),
                }),
        );
        return known;
    };
    if let Some(sign) = told.against(said) {
        let message = format!(
            "firmware = \"{}\" is not what the board's device tree tells",
            word.value
        );
        findings.push(
            Finding::new(Code::BoardFirmware, message)
                .at(word.span.clone(), sign.to_string())
                .help("leave `firmware` out, if that is so; EL2 compares it with the board when it starts, and refuses what does not fit"),
        );
    }
    said
}

/// Reports parameters of a board that is not emulated: its device tree already states them.
fn refuse_parameters(spec: &BoardSpec, findings: &mut Vec<Finding>) {
    let spans = [
        spec.cpu.as_ref().map(|value| value.span.clone()),
        spec.cpus.as_ref().map(|value| value.span.clone()),
        spec.memory.as_ref().map(|value| value.span.clone()),
        spec.gic.as_ref().map(|value| value.span.clone()),
        // An imported board may need `memory_ranges`: that is looked at with its tree.
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

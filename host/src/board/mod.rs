//! The board: what its device tree says about memory, CPUs, interrupt controller, console and devices.

mod device;
mod emulated;
mod facts;
mod quiet;
mod tree;

use std::fs;
use std::path::Path;

use bulkhead_abi::plan::Memory;
use dtoolkit::fdt::Fdt;

pub use device::{Passed, PassedIrq, pass};
pub use emulated::Emulated;
pub use tree::{Entry, Tree};

use crate::describe::{BoardSource, Finding, Placed, System};
use crate::failure::Failure;

/// A CPU of the board.
#[derive(Clone, Debug)]
pub struct Cpu {
    /// Affinity fields of its MPIDR_EL1.
    pub mpidr: u64,
    /// First word of `compatible`, for the guests' trees.
    pub compatible: String,
}

/// Parts of the board that EL2 uses, in the words of the plan.
pub type Parts = bulkhead_abi::plan::Board;

/// A board.
#[derive(Clone, Debug)]
pub struct Board {
    /// Name for messages.
    pub name: String,
    /// How to run it, if it is emulated.
    pub emulated: Option<Emulated>,
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

/// Why there is no board.
pub enum Trouble {
    /// The description is wrong, which the findings tell.
    Description,
    /// Something else.
    Failure(Failure),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Finds the board of a description.
///
/// # Errors
/// The description asks for what the board does not have (then `findings` says so), or a tool or file
/// is missing.
pub fn load(system: &System, findings: &mut Vec<Finding>) -> Result<Board, Trouble> {
    let (source, emulated, dtb) = match &system.board.source {
        BoardSource::Named(name) => {
            let emulated = emulated::resolve(name, &system.board, findings)?;
            let dtb = emulated.device_tree()?;
            (name, Some(emulated), dtb)
        }
        BoardSource::Tree(path) => {
            refuse_parameters(system, findings);
            (path, None, read_tree(system, path, findings)?)
        }
    };
    let facts = Fdt::new(&dtb)
        .map_err(|why| format!("it is no device tree: {why}"))
        .and_then(|fdt| facts::read(&Tree::new(fdt), fdt));
    match facts {
        Ok(facts) => Ok(Board {
            name: source.value.clone(),
            emulated,
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
                    "bulkhead::board::unfit",
                    "Bulkhead cannot run on this board",
                )
                .at(source.span.clone(), why)
                .help("it needs arm64 CPUs, a GICv2 or GICv3 and a PL011 as /chosen/stdout-path"),
            );
            Err(Trouble::Description)
        }
    }
}

/// Parameters are for emulated boards: a device tree already says all that.
fn refuse_parameters(system: &System, findings: &mut Vec<Finding>) {
    let spec = &system.board;
    let spans = [
        spec.cpu.as_ref().map(|value| value.span.clone()),
        spec.cpus.as_ref().map(|value| value.span.clone()),
        spec.memory.as_ref().map(|value| value.span.clone()),
        spec.gic.as_ref().map(|value| value.span.clone()),
        spec.firmware.as_ref().map(|value| value.span.clone()),
        spec.uarts.as_ref().map(|value| value.span.clone()),
    ];
    for span in spans.into_iter().flatten() {
        findings.push(
            Finding::new(
                "bulkhead::board::parameter",
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
) -> Result<Vec<u8>, Trouble> {
    fs::read(system.folder.join(Path::new(&path.value))).map_err(|why| {
        findings.push(
            Finding::new(
                "bulkhead::board::dtb",
                "the board's device tree cannot be read",
            )
            .at(path.span.clone(), why.to_string()),
        );
        Trouble::Description
    })
}

//! `bulkhead dtb`: what a guest will see.

use std::io::{IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};

use dtoolkit::fdt::Fdt;

use bulkhead_model::describe::nearest;
use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_planner::PlannedVm;
use bulkhead_runner::Effort;
use bulkhead_runner::prepare;
use bulkhead_runner::temp_files;

/// Show the device tree that a VM will find
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead dtb systems/demo.toml linux               # as text
  bulkhead dtb systems/demo.toml linux -o linux.dtb  # as the guest gets it
  bulkhead dtb systems/demo.toml linux -o - | dtc -I dtb -O dts

Nothing is built or fetched: where a payload is missing, its size in the tree is provisional. Seeds are
zeros; EL2 fills them in at boot, unless the description says `deterministic`.")]
pub struct Args {
    /// The description
    file: PathBuf,
    /// The VM; the only one if there is no other
    vm: Option<String>,
    /// Write the tree itself into this file; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    let prepared = match prepare::prepare(&args.file, Effort::WhatIsThere) {
        Ok(prepared) => prepared,
        Err(stopped) => return stopped.report(false),
    };
    eprint!(
        "{}",
        prepared.text.render(&prepared.findings, prepare::colours())
    );
    let shown = tree(&prepared.planned.vms, args.vm.as_deref())
        .and_then(|bytes| show(bytes, args.output.as_deref()));
    match shown {
        Ok(()) => Outcome::Done,
        Err(failure) => failure.report(),
    }
}

/// The device tree of the VM `name`, or of the only one, without what stands behind it in memory.
///
/// # Errors
///
/// There is no such VM, or several and no name, or it gets no tree.
pub fn tree<'a>(vms: &'a [PlannedVm], name: Option<&str>) -> Result<&'a [u8], Failure> {
    let names = || vms.iter().map(|vm| vm.name.as_str());
    let all = || format!("there are {}", names().collect::<Vec<_>>().join(", "));
    let vm = match (name, vms) {
        (None, [only]) => only,
        (None, _) => {
            let advice = "name one: bulkhead dtb FILE VM";
            return Err(Failure::input("which VM?", all(), advice));
        }
        (Some(name), _) => vms.iter().find(|vm| vm.name == name).ok_or_else(|| {
            let advice = nearest(name, names()).map(|known| format!("did you mean `{known}`?"));
            Failure::input(
                format!("there is no VM `{name}`"),
                all(),
                advice.unwrap_or_default(),
            )
        })?,
    };
    let tree = vm
        .payloads
        .iter()
        .find(|payload| payload.what == "device tree");
    tree.map(|payload| own_length(&payload.bytes))
        .ok_or_else(|| {
            Failure::input(
                format!("`{}` gets no device tree", vm.name),
                "its image is loaded as it is",
                "",
            )
        })
}

/// The second word is its length (Devicetree Specification 0.4, 5.2).
fn own_length(bytes: &[u8]) -> &[u8] {
    let length = bytes.get(4..8).and_then(|word| word.try_into().ok());
    let length = length.map_or(bytes.len(), |word| u32::from_be_bytes(word) as usize);
    bytes.get(..length).unwrap_or(bytes)
}

fn show(bytes: &[u8], output: Option<&Path>) -> Result<(), Failure> {
    let Some(output) = output else {
        let tree = Fdt::new(bytes)
            .map_err(|why| Failure::failed("the tree cannot be read back", why, ""))?;
        print!("{tree}");
        return Ok(());
    };
    let standard = output == Path::new("-");
    if standard && stdout().is_terminal() {
        let advice = "without -o it is shown as text";
        return Err(Failure::input(
            "a device tree is no text for a terminal",
            "",
            advice,
        ));
    }
    let written = if standard {
        stdout().write_all(bytes).and_then(|()| stdout().flush())
    } else {
        temp_files::write(output, bytes)
    };
    written.map_err(|why| {
        let what = format!("cannot write {}", output.display());
        Failure::environment(what, why, "choose another file")
    })
}

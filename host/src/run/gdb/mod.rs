//! What gdb needs to see a board that runs a system: which symbols lie where, and commands that know VMs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bulkhead_abi::plan::{PAGE, PCPU_POOL_PAGES, VCPU_POOL_PAGES};
use bulkhead_core::plan::{Plan, rows_of};
use object::{Object, ObjectSegment};
use serde_json::json;

use super::System;
use crate::failure::Failure;

/// Pages of a vCPU's stack, which lies before its state in the pool (`el2/src/hw/layout.rs`).
const STACK_PAGES: u64 = 2;
/// The commands.
const COMMANDS: &str = include_str!("bulkhead.py");

/// The files for gdb, and where the board's debugger stub listens.
#[derive(Debug)]
pub struct Files {
    /// Folder of the socket; it goes when the run has ended. A socket's path must be short.
    _folder: tempfile::TempDir,
    /// The stub's socket.
    pub socket: PathBuf,
    /// What to give to `gdb -x`.
    pub script: PathBuf,
}

impl Files {
    /// Writes them into the folder of the build. `symbols` are programs of VMs by name, besides those that the
    /// description names itself.
    ///
    /// # Errors
    /// A VM that there is not, or a file that cannot be read or written.
    pub fn write(system: &System, symbols: &[(String, PathBuf)]) -> Result<Self, Failure> {
        for (vm, file) in symbols {
            if !system.classes.contains_key(vm) {
                let known: Vec<&str> = system.classes.keys().map(String::as_str).collect();
                let advice = format!("the VMs are {}", known.join(", "));
                return Err(Failure::input(
                    format!("there is no VM `{vm}` to have symbols"),
                    "",
                    advice,
                ));
            }
            fs::metadata(file).map_err(|why| {
                let what = format!("cannot read {}", file.display());
                Failure::input(what, why, "name an ELF file with symbols")
            })?;
        }
        let folder = system.folder.join("gdb");
        let write = || -> io::Result<Self> {
            let sockets = tempfile::Builder::new().prefix("bulkhead-").tempdir()?;
            let socket = sockets.path().join("gdb");
            fs::create_dir_all(&folder)?;
            let facts = facts(system, symbols)?;
            fs::write(folder.join("system.json"), format!("{facts:#}\n"))?;
            fs::write(folder.join("bulkhead.py"), COMMANDS)?;
            let script = folder.join("attach.gdb");
            fs::write(&script, commands(&system.el2, &socket, &folder))?;
            Ok(Self {
                _folder: sockets,
                socket,
                script,
            })
        };
        write().map_err(|why| {
            let what = format!("cannot write what gdb needs into {}", folder.display());
            Failure::environment(what, why, "make room, or make the folder writable")
        })
    }
}

/// The command file.
fn commands(el2: &Path, socket: &Path, folder: &Path) -> String {
    format!(
        "set pagination off\nset confirm off\nset architecture aarch64\nfile {}\ntarget remote {}\n\
         source {}\necho Bulkhead: `help bulkhead` names the commands.\\n\n",
        el2.display(),
        socket.display(),
        folder.join("bulkhead.py").display()
    )
}

/// What the commands know about the system.
fn facts(system: &System, symbols: &[(String, PathBuf)]) -> io::Result<serde_json::Value> {
    let words = system.plan.as_chunks().0.iter();
    let words: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
    let plan = Plan::open(zerocopy::IntoBytes::as_bytes(&words[..]));
    let plan = plan.map_err(|violation| io::Error::other(violation.invariant.name()))?;
    // The pool: first what pCPUs need, then each vCPU's stack and state.
    let pool = system.base + plan.header.image.pool_offset;
    let vcpus = pool + plan.pcpus.len() as u64 * u64::from(PCPU_POOL_PAGES) * PAGE;
    let state = |id: u64| vcpus + (id * u64::from(VCPU_POOL_PAGES) + STACK_PAGES) * PAGE;
    let mut id = 0;
    let vms = plan.vms.iter().enumerate().map(|(index, vm)| {
        let name = vm.name.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        let rows = rows_of(plan.vcpus, index).iter().enumerate();
        let rows: Vec<_> = rows
            .map(|(number, vcpu)| {
                let row =
                    json!({ "id": id, "number": number, "pcpu": vcpu.pcpu, "state": state(id) });
                id += 1;
                row
            })
            .collect();
        let given = symbols.iter().rev().find(|(vm, _)| *vm == name);
        let program = given.map(|(_, file)| file).or(system.programs.get(&name));
        let program = program.and_then(|file| fs::canonicalize(file).ok());
        json!({ "name": name, "vmid": vm.vmid, "program": program, "vcpus": rows })
    });
    let vms: Vec<_> = vms.collect();
    Ok(json!({ "el2": system.el2, "link": link(&system.el2)?, "base": system.base, "vms": vms }))
}

/// The address at which EL2 is linked.
fn link(el2: &Path) -> io::Result<u64> {
    let bytes = fs::read(el2)?;
    let file = object::File::parse(&*bytes).map_err(io::Error::other)?;
    let first = file.segments().map(|segment| segment.address()).min();
    first.ok_or_else(|| io::Error::other("EL2 has no segments"))
}

//! Files that gdb needs to see a board that runs a system: the places of symbols, and commands that know VMs.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::{
    NONE, PCPU_PAGES, Profile, RegionKind, STOLEN_TIME_PAGE, VCPU_PAGES, VIRTIO_CONSOLE, VM_PAGES,
    VirtioDevice,
};
use bulkhead_core::colours;
use bulkhead_core::plan::{Plan, page_of, rows_of};
use object::{Object, ObjectSegment};
use serde::Serialize;
use serde_json::json;
use tempfile::TempDir;

use bulkhead_model::checkout;
use bulkhead_model::failure::Failure;

use super::System;
use crate::temp_files::{self, Noted};

/// Pages of a vCPU's stack, which lies before its state in the page pool (`el2/src/hw/layout.rs`).
const STACK_PAGES: u64 = 2;
/// Pages of a pCPU before what its threads share (likewise).
const PCPU_STATE_PAGE: u64 = 8;
/// Path of the source that says which registers EL2 keeps of a vCPU that is away, and where.
const SWITCH: &str = "el2/src/hw/switch.s";
/// The commands, and what they are made of.
const COMMANDS: [(&str, &str); 3] = [
    ("bulkhead.py", include_str!("bulkhead.py")),
    ("bulkhead_board.py", include_str!("bulkhead_board.py")),
    ("bulkhead_guest.py", include_str!("bulkhead_guest.py")),
];

/// Debian's gdb for all architectures.
pub const PROGRAM: &str = "gdb-multiarch";

/// Whether [`PROGRAM`] runs here.
pub fn is_installed() -> bool {
    let mut command = Command::new(PROGRAM);
    let quiet = command.arg("--version").stdin(Stdio::null());
    quiet.output().is_ok_and(|output| output.status.success())
}

/// The files for gdb, and where the board's debugger stub listens.
#[derive(Debug)]
pub struct Files {
    /// Folder of the socket; it goes when the run has ended. A socket's path must be short.
    _folder: Noted<TempDir>,
    /// The stub's socket.
    pub socket: PathBuf,
    /// Script for `gdb -x`.
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
            let sockets = temp_files::folder("bulkhead-")?;
            let socket = sockets.value.path().join("gdb");
            fs::create_dir_all(&folder)?;
            let facts = facts(system, symbols)?;
            fs::write(folder.join("system.json"), format!("{facts:#}\n"))?;
            for (name, text) in COMMANDS {
                fs::write(folder.join(name), text)?;
            }
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

/// Data about the system for the commands. Addresses are physical but for entries.
#[derive(Serialize)]
struct Facts<'a> {
    el2: &'a Path,
    /// The address at which EL2 is linked.
    link: u64,
    base: u64,
    /// Pages of the state of each pCPU.
    pcpus: Vec<Vec<u64>>,
    kept: BTreeMap<&'a str, usize>,
    classes: [&'static str; ExitClass::ALL.len()],
    vms: Vec<Vm>,
    devices: Vec<Device>,
}

/// A virtio device.
#[derive(Serialize)]
struct Device {
    vm: String,
    kind: &'static str,
    /// Its number among those of its kind, as the VM that serves it names it.
    unit: u16,
    ipa: u64,
    /// Its interrupt; 0 if it is polled.
    intid: u16,
    state: Vec<u64>,
    /// The VM that serves it, and the page of the window by which the two talk; none if EL2 does.
    backend: Option<(String, u64)>,
}

#[derive(Serialize)]
struct Vm {
    name: String,
    vmid: u16,
    linux: bool,
    /// Program with its symbols, if known.
    program: Option<PathBuf>,
    entry: u64,
    /// IPA, PA and size of each range.
    ram: Vec<[u64; 3]>,
    state: Vec<u64>,
    vcpus: Vec<Vcpu>,
}

#[derive(Serialize)]
struct Vcpu {
    id: usize,
    number: usize,
    pcpu: u16,
    state: Vec<u64>,
}

/// Collects them.
fn facts(system: &System, symbols: &[(String, PathBuf)]) -> io::Result<serde_json::Value> {
    let words = system.plan.as_chunks().0.iter();
    let words: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
    let plan = Plan::open(zerocopy::IntoBytes::as_bytes(&words[..]));
    let plan = plan.map_err(|violation| io::Error::other(violation.invariant.name()))?;
    let parts = plan
        .page_pool::<{ Profile::Managed as u32 }>(|_, _| {})
        .ok_or_else(|| io::Error::other("the plan has no page pool"))?;
    // First what pCPUs need, then each vCPU's stack and state, then what pCPUs share about each VM.
    let pages = |count: usize, pages: u32| count as u64 * u64::from(pages);
    let at = |first, last| {
        let page = |number| system.base + page_of(&parts.threads, number);
        (first..last).map(page).collect::<Vec<_>>()
    };
    let pcpu = |index| {
        at(
            pages(index, PCPU_PAGES) + PCPU_STATE_PAGE,
            pages(index + 1, PCPU_PAGES),
        )
    };
    let pcpus = (0..plan.pcpus.len()).map(pcpu).collect();
    let vcpus = pages(plan.pcpus.len(), PCPU_PAGES);
    let state = |id| {
        let first = vcpus + pages(id, VCPU_PAGES);
        at(first + STACK_PAGES, first + pages(1, VCPU_PAGES))
    };
    // Service threads have places behind the vCPUs.
    let threads = plan.vcpus.len() + plan.service_threads().len();
    let shared = |vm| {
        let first = vcpus + pages(threads, VCPU_PAGES) + pages(vm, VM_PAGES);
        at(first, first + u64::from(STOLEN_TIME_PAGE))
    };
    let names: Vec<_> = plan.vms.iter().map(|vm| name_of(&vm.name)).collect();
    let device = |(index, row): (usize, &VirtioDevice)| {
        let backend = plan.backends().get(usize::from(row.backend));
        let served = backend.filter(|backend| backend.vm != NONE).and_then(|it| {
            let regions = plan.regions_of(usize::from(it.vm)).iter();
            let mut ram = regions.filter(|region| region.kind == RegionKind::Ram as u16);
            let holds =
                ram.find(|region| (region.ipa..region.ipa + region.size).contains(&row.window))?;
            let name = names.get(usize::from(it.vm))?.clone();
            Some((name, colours::piece(holds, row.window - holds.ipa)?.pa))
        });
        Device {
            vm: names.get(usize::from(row.vm)).cloned().unwrap_or_default(),
            kind: match row.id {
                1 => "network",
                2 => "disk",
                VIRTIO_CONSOLE => "console",
                _ => "device",
            },
            unit: row.unit,
            ipa: row.ipa,
            intid: row.vintid,
            state: vec![system.base + page_of(&parts.virtio, index as u64)],
            backend: served,
        }
    };
    let devices = plan
        .virtio_devices()
        .iter()
        .enumerate()
        .map(device)
        .collect();
    let mut id = 0;
    let vms = plan.vms.iter().enumerate().map(|(index, vm)| {
        let name = name_of(&vm.name);
        let rows = rows_of(plan.vcpus, index).iter().enumerate();
        let rows: Vec<_> = rows
            .map(|(number, vcpu)| {
                let row = Vcpu {
                    id,
                    number,
                    pcpu: vcpu.pcpu,
                    state: state(id),
                };
                id += 1;
                row
            })
            .collect();
        let given = symbols.iter().rev().find(|(vm, _)| *vm == name);
        let program = given.map(|(_, file)| file).or(system.programs.get(&name));
        let program = program.and_then(|file| fs::canonicalize(file).ok());
        let ram = plan.regions_of(index).iter();
        let ram = ram.filter(|region| region.kind == RegionKind::Ram as u16);
        let ram = ram.flat_map(|region| {
            colours::pieces(region).scan(region.ipa, |ipa, piece| {
                let at = *ipa;
                *ipa += piece.size;
                Some([at, piece.pa, piece.size])
            })
        });
        let ram: Vec<_> = ram.collect();
        Vm {
            linux: system.linux.contains(&name),
            name,
            vmid: vm.vmid,
            program,
            entry: vm.entry,
            ram,
            state: shared(index),
            vcpus: rows,
        }
    });
    let vms: Vec<_> = vms.collect();
    let switch = fs::read_to_string(checkout::root().join(SWITCH))?;
    Ok(json!(Facts {
        el2: &system.el2,
        link: link(&system.el2)?,
        base: system.base,
        pcpus,
        kept: kept(&switch),
        classes: ExitClass::ALL.map(ExitClass::name),
        vms,
        devices,
    }))
}

/// A name in the plan.
fn name_of(bytes: &[u8]) -> String {
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// Returns the index of the double word in which EL2 keeps each register, as the macros in the text of
/// [`SWITCH`] list them.
fn kept(switch: &str) -> BTreeMap<&str, usize> {
    let pairs = switch.lines().filter_map(|line| {
        let (offset, registers) = line.trim().strip_prefix("\\what")?.split_once(',')?;
        Some((offset.trim().parse::<usize>().ok()?, registers))
    });
    let named = |(offset, registers): (usize, _)| {
        let names = str::split(registers, ',').map(str::trim);
        (offset / 8..).zip(names).map(|(at, name)| (name, at))
    };
    pairs.flat_map(named).collect()
}

/// The address at which EL2 is linked.
fn link(el2: &Path) -> io::Result<u64> {
    let bytes = fs::read(el2)?;
    let file = object::File::parse(&*bytes).map_err(io::Error::other)?;
    let first = file.segments().map(|segment| segment.address()).min();
    first.ok_or_else(|| io::Error::other("EL2 has no segments"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_vcpu_is_found_where_it_is() {
        let text = fs::read_to_string(checkout::root().join(SWITCH)).unwrap();
        let kept = kept(&text);
        let places: Vec<_> = ["sctlr_el1", "sp_el1", "elr_el2", "spsr_el2", "vttbr_el2"]
            .into_iter()
            .map(|name| kept.get(name).copied())
            .collect();
        assert_eq!(places, [Some(0), Some(13), Some(20), Some(21), Some(26)]);
        // A register that the commands name and nobody keeps would be an error in front of the user.
        let names = [
            "tcr",
            "ttbr0",
            "ttbr1",
            "mair",
            "vbar",
            "esr",
            "far",
            "elr",
            "spsr",
            "tpidr",
            "contextidr",
        ];
        for name in names.map(|name| format!("{name}_el1")) {
            assert!(kept.contains_key(name.as_str()), "{name}");
        }
    }
}

//! A built system, ready to run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bulkhead_model::describe::{self, PayloadSpec, VmSpec, class_name};
use bulkhead_model::failure::Failure;

use super::Qemu;
use crate::Effort;
use crate::build::{self, Built};
use crate::cross_build;
use crate::emulated;
use crate::fetch::firmware::TrustedFirmware;
use crate::prepare::{El2Source, Stopped};

/// A built system and the emulator for its board.
#[derive(Clone, Debug)]
pub struct System {
    /// Name: that of the description without its ending.
    pub name: String,
    /// Folder of its build.
    pub folder: PathBuf,
    /// QEMU with its image.
    pub qemu: Qemu,
    /// Trusted Firmware of its board, if that has it.
    pub firmware: Option<TrustedFirmware>,
    /// EL2 with its symbols.
    pub el2: PathBuf,
    /// Physical address at which the board's loader puts the image.
    pub base: u64,
    /// The plan, as the image carries it.
    pub plan: Vec<u8>,
    /// Class of each VM, by name.
    pub classes: BTreeMap<String, String>,
    /// Programs of VMs that are ELF files, by name of the VM.
    pub programs: BTreeMap<String, PathBuf>,
    /// The VMs that run Linux.
    pub linux: BTreeSet<String>,
}

impl System {
    /// Checks, plans and builds a description, in the folder `output` or in the usual one.
    ///
    /// # Errors
    ///
    /// The description is wrong, a tool is missing, or the board has no emulator.
    pub fn build(description: &Path, output: Option<&Path>) -> Result<Self, Stopped> {
        Self::of(description, build::build_in(description, output)?)
    }

    /// The same with an EL2 that the caller has, into a folder of the caller's.
    ///
    /// # Errors
    ///
    /// Those of [`Self::build`].
    pub fn build_with(
        description: &Path,
        effort: Effort,
        el2: El2Source<'_>,
        folder: &Path,
    ) -> Result<Self, Stopped> {
        Self::of(
            description,
            build::build_with(description, effort, el2, folder)?,
        )
    }

    fn of(description: &Path, built: Built) -> Result<Self, Stopped> {
        let Some(board) = &built.planned.board.emulated else {
            return Err(Stopped::Failure(Failure::input(
                format!("the board of `{}` has no emulator", built.planned.name),
                "it is described by a device tree alone",
                "boot the image on the board, or name a board of boards/ that has `[qemu]`",
            )));
        };
        let firmware = TrustedFirmware::of(board);
        if let Some(build) = firmware {
            build.make()?;
        }
        let vms = built.planned.vms.iter();
        let (programs, linux) = programs(description)?;
        let classes = vms.map(|vm| (vm.name.clone(), class_name(vm.class).to_owned()));
        Ok(Self {
            classes: classes.collect(),
            programs,
            linux,
            qemu: emulated::qemu(board, &built.image, built.planned.image.base)?,
            firmware,
            name: built.planned.name,
            folder: built.folder,
            el2: built.el2,
            base: built.planned.image.base,
            plan: built.planned.bytes,
        })
    }
}

/// The ELF files that a description names, which has been built, and the VMs that run Linux.
fn programs(description: &Path) -> Result<(BTreeMap<String, PathBuf>, BTreeSet<String>), Failure> {
    let text = describe::load(description)?;
    let system = describe::parse(&text, &mut Vec::new());
    let program = |payload: &PayloadSpec| {
        let PayloadSpec::Program {
            image, load: None, ..
        } = payload
        else {
            return None;
        };
        Some(match image.value.strip_prefix("guest:") {
            Some(guest) => cross_build::built_guest(guest),
            None => system.folder.join(&image.value),
        })
    };
    let vms = system.vms.iter();
    let named = vms.filter_map(|vm| Some((vm.name.value.clone(), program(&vm.payload)?)));
    let is_linux = |vm: &&VmSpec| matches!(vm.payload, PayloadSpec::Linux { .. });
    let linux = system.vms.iter().filter(is_linux);
    Ok((
        named.collect(),
        linux.map(|vm| vm.name.value.clone()).collect(),
    ))
}

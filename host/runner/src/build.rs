//! Building a system: the image of a description, in a folder with everything that belongs to it.

use std::fs;
use std::path::{Path, PathBuf};

use bulkhead_model::checkout;
use bulkhead_model::failure::Failure;
use bulkhead_planner::image::{El2, assemble};
use bulkhead_planner::{Planned, show};

use crate::Effort;
use crate::prepare::{self, El2Source, Prepared, Stopped};
use crate::temp_files;

/// Result of a build.
pub struct Built {
    /// Folder with everything.
    pub folder: PathBuf,
    /// The image.
    pub image: PathBuf,
    /// EL2 with its symbols.
    pub el2: PathBuf,
    /// The plan.
    pub planned: Planned,
}

/// Builds the system that the file at `path` describes. Warnings go to stderr.
///
/// # Errors
/// The description is wrong, or something is missing.
pub fn build(path: &Path) -> Result<Built, Stopped> {
    let prepared = prepare::prepare(path, Effort::Everything)?;
    eprint!(
        "{}",
        prepared.text.render(&prepared.findings, prepare::colours())
    );
    let folder = checkout::root().join("out");
    finish(prepared, &folder)
}

/// The same with an EL2 that the caller has, into a folder of the caller's.
///
/// # Errors
/// The description is wrong, or something is missing.
pub fn build_with(
    path: &Path,
    effort: Effort,
    el2: El2Source<'_>,
    folder: &Path,
) -> Result<Built, Stopped> {
    finish(prepare::prepare_with(path, effort, el2)?, folder)
}

fn finish(prepared: Prepared, folder: &Path) -> Result<Built, Stopped> {
    let Some((elf, el2)) = prepared.el2 else {
        return Err(Stopped::Failure(Failure::failed(
            "EL2 is not built",
            "",
            "",
        )));
    };
    let folder = folder.join(&prepared.planned.name);
    Ok(write(prepared.planned, &elf, &el2, folder)?)
}

/// Writes everything into the folder of the system.
fn write(planned: Planned, elf: &Path, el2: &El2, folder: PathBuf) -> Result<Built, Failure> {
    let trouble = |why: std::io::Error| {
        Failure::environment(
            format!("cannot write into {}", folder.display()),
            why,
            "make room, or make the folder writable",
        )
    };
    fs::create_dir_all(&folder).map_err(trouble)?;
    let image = folder.join("bulkhead.img");
    temp_files::write(&image, &assemble(el2, &planned)).map_err(trouble)?;
    temp_files::write(&folder.join("plan.bin"), &planned.bytes).map_err(trouble)?;
    let json = format!("{:#}\n", show::json(&planned));
    temp_files::write(&folder.join("plan.json"), json.as_bytes()).map_err(trouble)?;
    for vm in &planned.vms {
        if let Some(tree) = vm.payloads.iter().find(|payload| payload.ipa == vm.tree) {
            temp_files::write(
                &folder.join(format!("{}.dtb", vm.name)),
                tree.bytes.as_slice(),
            )
            .map_err(trouble)?;
        }
    }
    let copy = folder.join("el2.elf");
    fs::copy(elf, &copy).map_err(trouble)?;
    Ok(Built {
        folder,
        image,
        el2: copy,
        planned,
    })
}

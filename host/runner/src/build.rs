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

/// The folder of systems that are built: that of the checkout for descriptions in it, and one beside others, so that
/// projects do not meet there.
pub fn folder_of_systems(description: &Path) -> PathBuf {
    let root = checkout::root();
    let beside = match description.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let whole = |path: &Path| fs::canonicalize(path).ok();
    let folder = match (whole(beside), whole(&root)) {
        (Some(folder), Some(root)) if folder.starts_with(&root) => root,
        (Some(folder), _) => folder,
        (None, _) => beside.to_owned(),
    };
    folder.join("out")
}

/// The folder in which the system of a description is built, if its user does not choose one.
pub fn folder(description: &Path) -> PathBuf {
    folder_of_systems(description).join(description.file_stem().unwrap_or_default())
}

/// Builds the system that the file at `path` describes, in [`folder`]. Warnings go to stderr.
///
/// # Errors
/// The description is wrong, or something is missing.
pub fn build(path: &Path) -> Result<Built, Stopped> {
    build_in(path, None)
}

/// The same in the folder `output`, if that is some.
///
/// # Errors
/// Those of [`build`].
pub fn build_in(path: &Path, output: Option<&Path>) -> Result<Built, Stopped> {
    let prepared = prepare::prepare(path, Effort::Everything)?;
    eprint!(
        "{}",
        prepared.text.render(&prepared.findings, prepare::colours())
    );
    let folder = output.map_or_else(|| folder(path), Path::to_owned);
    finish(prepared, folder)
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
    let prepared = prepare::prepare_with(path, effort, el2)?;
    let folder = folder.join(&prepared.planned.name);
    finish(prepared, folder)
}

fn finish(prepared: Prepared, folder: PathBuf) -> Result<Built, Stopped> {
    let Some((elf, el2)) = prepared.el2 else {
        return Err(Stopped::Failure(Failure::failed(
            "EL2 is not built",
            "",
            "",
        )));
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_checkout_is_built_there_and_anything_else_beside_its_description() {
        let root = fs::canonicalize(checkout::root()).unwrap();
        let within = folder(&checkout::root().join("systems/hello.toml"));
        assert_eq!(within, root.join("out/hello"));
        let elsewhere = tempfile::tempdir().unwrap();
        let place = fs::canonicalize(elsewhere.path()).unwrap();
        for project in ["one", "two"] {
            fs::create_dir(place.join(project)).unwrap();
            let file = elsewhere.path().join(project).join("system.toml");
            assert_eq!(folder(&file), place.join(project).join("out/system"));
        }
        // A link to a description of the checkout is one of the checkout.
        let link = elsewhere.path().join("systems");
        std::os::unix::fs::symlink(checkout::root().join("systems"), &link).unwrap();
        assert_eq!(folder(&link.join("hello.toml")), root.join("out/hello"));
    }
}

//! Device trees of boards, from Debian's kernel package.

use std::fs;
use std::path::{Path, PathBuf};

use bulkhead_model::describe::nearest;
use bulkhead_model::failure::Failure;
use bulkhead_model::payload::DebianPayload;

use super::archive::Archive;
use super::cache::Cache;
use super::{apt, choose, deb};

/// The tree `VENDOR/NAME`, with or without `.dtb`, of Debian's stock kernel; fetched if the cache lacks it.
///
/// # Errors
/// There is no such tree, or the package cannot be had.
pub fn device_tree(name: &str) -> Result<PathBuf, Failure> {
    let cache = Cache::open()?;
    let folder = folder(&cache)?;
    let plain = name.strip_suffix(".dtb").unwrap_or(name);
    let file = folder.join(format!("{plain}.dtb"));
    let inside = plain
        .split('/')
        .all(|part| !part.is_empty() && part != "..");
    if inside && file.is_file() {
        return Ok(file);
    }
    let known = names(&folder);
    let help = nearest(plain, known.iter().map(String::as_str)).map_or_else(
        || format!("they are in {}", folder.display()),
        |known| format!("did you mean `debian:{known}`?"),
    );
    let what = format!("Debian's kernel has no device tree `{plain}`");
    let why = format!("it has {}, as VENDOR/NAME", known.len());
    Err(Failure::input(what, why, help))
}

/// The folder of all trees of Debian's stock kernel, in a folder for each vendor; fetched if the cache lacks them.
///
/// # Errors
/// The package cannot be had.
pub fn device_trees() -> Result<PathBuf, Failure> {
    folder(&Cache::open()?)
}

/// The folder of all trees of the kernel that is chosen, or is chosen now.
fn folder(cache: &Cache) -> Result<PathBuf, Failure> {
    let mut archive = None;
    let apt = || apt::Apt::new(&cache.folder().join("apt"));
    if cache.chosen(DebianPayload::Kernel)?.is_none() {
        choose(cache, DebianPayload::Kernel, archive.insert(apt()?))?;
    }
    let package = cache
        .chosen(DebianPayload::Kernel)?
        .into_iter()
        .flatten()
        .next();
    let package = package
        .ok_or_else(|| super::archive::missing("linux-image-arm64"))?
        .package;
    let target = cache.folder().join("trees").join(package.stem());
    if !target.is_dir() {
        let archive = match &mut archive {
            Some(archive) => archive,
            none => none.insert(apt()?),
        };
        for file in archive.get(std::slice::from_ref(&package))? {
            deb::unpack(&file, &["./usr/lib/linux-image-*"], &target)?;
        }
    }
    let lib = target.join("usr/lib");
    let inner = fs::read_dir(&lib).into_iter().flatten().flatten().next();
    inner
        .map(|entry| entry.path())
        .ok_or_else(|| super::archive::missing(&package.name))
}

/// `VENDOR/NAME` of all trees.
fn names(folder: &Path) -> Vec<String> {
    let vendors = fs::read_dir(folder).into_iter().flatten().flatten();
    let files =
        vendors.flat_map(|vendor| fs::read_dir(vendor.path()).into_iter().flatten().flatten());
    let mut names: Vec<String> = files
        .filter_map(|file| {
            let path = file.path();
            let name = path
                .strip_prefix(folder)
                .ok()?
                .to_str()?
                .strip_suffix(".dtb")?;
            Some(name.to_owned())
        })
        .collect();
    names.sort();
    names
}

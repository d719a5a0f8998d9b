//! Debian packages as files: their control fields, and unpacking them without root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use bulkhead_model::failure::Failure;

use crate::command::run;
use crate::temp_files;

/// Control fields of one package, as far as they matter here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// Name of the package.
    pub name: String,
    /// Debian version, epoch included.
    pub version: String,
    /// `arm64` or `all`.
    pub architecture: String,
    /// Names it depends on: the first alternative of each clause, without version bounds.
    pub depends: Vec<String>,
}

impl Package {
    /// Reads one stanza of control fields; none when a field that it needs is missing.
    pub fn parse(stanza: &str) -> Option<Self> {
        let field = |name: &str| {
            stanza.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim())
            })
        };
        let depends = ["Pre-Depends", "Depends"]
            .into_iter()
            .filter_map(field)
            .flat_map(|clauses| clauses.split(','))
            .filter_map(|clause| {
                let first = clause.split('|').next()?;
                let name = first.split([' ', '(', ':']).find(|word| !word.is_empty())?;
                Some(name.to_owned())
            })
            .collect();
        Some(Self {
            name: field("Package")?.to_owned(),
            version: field("Version")?.to_owned(),
            architecture: field("Architecture")?.to_owned(),
            depends,
        })
    }

    /// Name, version and architecture the way apt names files: the colon of an epoch as `%3a`.
    pub fn stem(&self) -> String {
        let version = self.version.replace(':', "%3a");
        format!("{}_{version}_{}", self.name, self.architecture)
    }
}

/// Reads the control fields of a `.deb` file.
pub fn read(file: &Path) -> Result<Package, Failure> {
    let what = || format!("cannot read the Debian package {}", file.display());
    // It puts the fields into a folder of its own, and leaves that when it is ended.
    let folder = temp_files::folder("bulkhead-").map_err(|why| {
        let advice = "set TMPDIR to a folder with room";
        Failure::environment(what(), why, advice)
    })?;
    let mut command = Command::new("dpkg-deb");
    command.env("TMPDIR", folder.value.path());
    let stanza = run(
        command.arg("--field").arg(file),
        what,
        "give a folder of complete .deb files",
    )?;
    Package::parse(&stanza)
        .ok_or_else(|| Failure::input(what(), "it names no package, version or architecture", ""))
}

/// Unpacks `deb` into `target`: all of it, or the members that match one of `patterns` (of tar, from
/// `./` on). The folder appears when it is complete, so an interrupted run leaves nothing half done.
pub fn unpack(deb: &Path, patterns: &[&str], target: &Path) -> Result<(), Failure> {
    if target.is_dir() {
        return Ok(());
    }
    let what = format!("cannot unpack {}", deb.display());
    let failed = |why: &dyn std::fmt::Display| {
        let advice = format!(
            "see that {} has room and is yours; a damaged .deb there may be deleted",
            target.parent().unwrap_or(target).display()
        );
        Failure::environment(what.clone(), why, advice)
    };
    let parent = target.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(|e| failed(&e))?;
    let partial = temp_files::folder_in(parent).map_err(|e| failed(&e))?;

    let options = ["--no-same-owner", "--wildcards"];
    extract(deb, &options, patterns, partial.value.path()).map_err(|e| failed(&e))?;
    match fs::rename(partial.value.path(), target) {
        Ok(()) => {
            // It has moved: there is nothing left to delete.
            let _moved: PathBuf = partial.value.keep();
            Ok(())
        }
        Err(_) if target.is_dir() => Ok(()),
        Err(e) => Err(failed(&e)),
    }
}

/// Has tar extract the files of `deb` into a folder; gives what it says. The error is why it did not.
pub(super) fn extract(
    deb: &Path,
    options: &[&str],
    patterns: &[&str],
    target: &Path,
) -> Result<String, String> {
    let mut reader = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(deb)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("dpkg-deb: {e}"))?;
    let pipe = reader.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let written = Command::new("tar")
        .args(["--extract", "--file=-"])
        .args(options)
        .arg("--directory")
        .arg(target)
        .args(patterns)
        .env("LC_ALL", "C.UTF-8")
        .stdin(pipe)
        .output()
        .map_err(|e| format!("tar: {e}"));
    let read = reader.wait().map_err(|e| e.to_string())?;
    let written = written?;
    if !written.status.success() || !read.success() {
        return Err(String::from_utf8_lossy(&written.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&written.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stanza_gives_name_version_and_the_first_alternatives() {
        let stanza = "Package: stress-ng\nVersion: 1:0.15-2\nArchitecture: arm64\n\
                      Pre-Depends: dpkg (>= 1.17)\nDepends: libc6 (>= 2.36), a:any | b, zlib1g\n";
        let package = Package::parse(stanza).expect("complete stanza");
        assert_eq!(package.depends, ["dpkg", "libc6", "a", "zlib1g"]);
        assert_eq!(package.stem(), "stress-ng_1%3a0.15-2_arm64");
        assert_eq!(Package::parse("Package: x\nVersion: 1\n"), None);
    }
}

//! Writes Debian packages. Same members, same bytes: times and owners are fixed.

pub mod managers;

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use flate2::{Compression, GzBuilder};

use bulkhead_model::failure::Failure;

use crate::{command, temp_files};

/// Time of all files of a package, unless the user's `SOURCE_DATE_EPOCH` says another: the beginning of 2025.
const TIME: &str = "1735689600";

/// A file of a package.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its path below the root; of what dpkg reads, below `DEBIAN`.
    pub path: String,
    /// What is in it.
    pub bytes: Vec<u8>,
    /// Whether it is a program.
    pub is_program: bool,
}

impl Member {
    /// A file.
    pub fn file(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.into(),
            bytes: bytes.into(),
            is_program: false,
        }
    }

    /// A program.
    pub fn program(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            is_program: true,
            ..Self::file(path, bytes)
        }
    }
}

/// Compresses as `gzip -9n` does: without a time and a name.
///
/// # Errors
/// There is no memory for it.
pub fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut writer = GzBuilder::new().write(Vec::new(), Compression::best());
    writer.write_all(bytes)?;
    writer.finish()
}

/// Writes a package of these members.
///
/// # Errors
/// It cannot be written, or dpkg-deb refuses it.
pub fn write(members: &[Member], to: &Path) -> Result<(), Failure> {
    let what = || format!("cannot write the package {}", to.display());
    let failed = |e: io::Error| {
        Failure::environment(
            what(),
            e,
            "see that the disk has room and the folder is yours",
        )
    };
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(failed)?;
    let root = temp_files::folder_in(folder).map_err(failed)?;
    let root = root.value.path();
    // Of folders dpkg-deb takes the modes as they are, whatever the user's umask is.
    let open = Permissions::from_mode(0o755);
    let tree = root.join("tree");
    for member in members {
        let path = tree.join(&member.path);
        let above = path.parent().unwrap_or(&tree);
        fs::create_dir_all(above).map_err(failed)?;
        for folder in above.ancestors().take_while(|folder| *folder != root) {
            fs::set_permissions(folder, open.clone()).map_err(failed)?;
        }
        fs::write(&path, &member.bytes).map_err(failed)?;
        let mode = if member.is_program { 0o755 } else { 0o644 };
        fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(failed)?;
    }
    // Each package has them, or dpkg does not take it for whole; what dpkg itself reads is not among them.
    let mut sums = Command::new("md5sum");
    sums.current_dir(&tree).arg("--");
    let files = members
        .iter()
        .filter(|member| !member.path.starts_with("DEBIAN/"));
    let files: Vec<&str> = files.map(|member| member.path.as_str()).collect();
    if !files.is_empty() {
        let sums = command::run(sums.args(files), what, "md5sum is in the package coreutils")?;
        fs::write(tree.join("DEBIAN/md5sums"), sums).map_err(failed)?;
    }
    let unfinished = root.join("package.deb");
    let mut build = Command::new("dpkg-deb");
    if std::env::var_os("SOURCE_DATE_EPOCH").is_none() {
        build.env("SOURCE_DATE_EPOCH", TIME);
    }
    build.args(["--root-owner-group", "-Zxz", "--build"]);
    build.arg(&tree).arg(&unfinished);
    command::run(&mut build, what, "dpkg-deb is in the package dpkg")?;
    fs::rename(&unfinished, to).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(arguments: &[&str], package: &Path) -> String {
        let output = Command::new("dpkg-deb")
            .args(arguments)
            .arg(package)
            .output();
        String::from_utf8_lossy(&output.expect("dpkg-deb").stdout).into_owned()
    }

    #[test]
    fn a_package_has_its_members_by_root_and_the_same_bytes_each_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let control = "Package: one\nVersion: 1\nArchitecture: all\nMaintainer: nobody <n@example.org>\nDescription: one\n";
        let members = [
            Member::file("DEBIAN/control", control),
            Member::program("DEBIAN/postinst", "#!/bin/sh\n"),
            Member::program("usr/bin/one", "#!/bin/sh\n"),
            Member::file(
                "usr/share/man/man1/one.1.gz",
                gzip(b".TH ONE 1\n").expect("memory"),
            ),
        ];
        let [first, second] = ["a/one.deb", "b/one.deb"].map(|name| folder.path().join(name));
        write(&members, &first).expect("written");
        write(&members, &second).expect("written");
        assert_eq!(
            fs::read(&first).expect("there"),
            fs::read(&second).expect("there")
        );
        assert_eq!(said(&["--show", "--showformat=${Package}"], &first), "one");
        let output = Command::new("dpkg-deb")
            .arg("--info")
            .arg(&first)
            .arg("md5sums")
            .output();
        let sums = String::from_utf8_lossy(&output.expect("dpkg-deb").stdout).into_owned();
        let files: Vec<_> = sums.lines().map(|line| line.split_once("  ")).collect();
        assert_eq!(files.len(), 2, "{sums}");
        assert!(
            files
                .iter()
                .all(|file| file
                    .is_some_and(|(sum, name)| sum.len() == 32 && name.starts_with("usr/"))),
            "{sums}"
        );
        let list = said(&["--contents"], &first);
        let line = |path: &str| {
            list.lines()
                .find(|line| line.ends_with(path))
                .unwrap_or_default()
                .to_owned()
        };
        assert!(
            line("./usr/bin/one").starts_with("-rwxr-xr-x root/root"),
            "{list}"
        );
        assert!(
            line("one.1.gz").starts_with("-rw-r--r-- root/root"),
            "{list}"
        );
        assert!(
            line("./usr/share/").starts_with("drwxr-xr-x root/root"),
            "{list}"
        );
        let left = fs::read_dir(folder.path().join("a"))
            .expect("there")
            .count();
        assert_eq!(left, 1, "nothing temporary is left");
    }
}

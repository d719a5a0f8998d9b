//! The files of the root file system, in a folder of the host: packages unpacked as dpkg would, and what it would know of them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use bulkhead_model::failure::Failure;

use super::database::{self, Member};
use crate::command::run;
use crate::fetch::deb::{self, Package};
use crate::fetch::modules::WANTED;

/// Modules of the kernel in the image besides those of the initramfs ([`WANTED`]), with what they need: what systemd and the usual programs of a server
/// ask for.
const FURTHER: [&str; 13] = [
    "autofs4", "configfs", "fuse", "overlay", "tun", "veth", "bridge", "8021q", "garp", "mrp",
    "stp", "llc", "squashfs",
];

/// Modules of the kernel in the image: those of the initramfs again, so that udev finds them known.
pub fn modules() -> impl Iterator<Item = &'static str> {
    WANTED.into_iter().chain(FURTHER)
}

/// Folders of documentation that stay on the host; `guests/rootfs/dpkg.cfg` tells the guest's dpkg the same.
const LEFT_OUT: [&str; 4] = [
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/lintian",
];

/// A file that is not root's.
pub type Owner = Member;

/// The folder under work.
#[derive(Debug)]
pub struct Root {
    /// The folder.
    path: PathBuf,
    /// What `status` of dpkg will say.
    status: String,
    /// The files that are not root's, where they are.
    owners: Vec<Owner>,
}

impl Root {
    /// Makes the folder with what has to be there before any package: Debian's links into `/usr`.
    pub fn new(path: &Path) -> Result<Self, Failure> {
        let root = Self {
            path: path.to_owned(),
            status: String::new(),
            owners: Vec::new(),
        };
        let make = || {
            for name in ["bin", "sbin", "lib"] {
                fs::create_dir_all(path.join("usr").join(name))?;
                symlink(format!("usr/{name}"), path.join(name))?;
            }
            fs::create_dir_all(path.join("var/lib/dpkg/info"))?;
            fs::create_dir_all(path.join("var/lib/dpkg/updates"))?;
            fs::write(path.join("var/lib/dpkg/info/format"), "1\n")?;
            fs::write(path.join("var/lib/dpkg/available"), "")
        };
        make().map_err(|e| root.trouble(&e))?;
        Ok(root)
    }

    fn trouble(&self, why: &dyn std::fmt::Display) -> Failure {
        let what = format!(
            "cannot write the root file system to {}",
            self.path.display()
        );
        Failure::environment(what, why, "see that the disk has room, some 600 MB")
    }

    /// Unpacks a package and enters it in dpkg's database.
    pub fn add(&mut self, package: &Package, deb: &Path) -> Result<(), Failure> {
        let broken = |why: String| {
            let what = format!("cannot unpack {}", deb.display());
            Failure::environment(what, why, "delete it if it is damaged; it is fetched again")
        };
        // Through no link of the tree, so that nothing is ever written outside: the links into /usr are followed by name.
        let options = [
            "--no-same-owner",
            "--same-permissions",
            "--transform=flags=rSh;s,^\\./\\(bin\\|sbin\\|lib\\)\\(/\\|$\\),./usr/\\1\\2,",
            "--verbose",
            "--verbose",
            "--numeric-owner",
            "--quoting-style=literal",
        ];
        let listed = deb::extract(deb, &options, &[], &self.path).map_err(broken)?;
        let members: Option<Vec<Member>> = listed.lines().map(Member::parse).collect();
        let members = members.ok_or_else(|| {
            let line = listed.lines().find(|line| Member::parse(line).is_none());
            broken(format!("tar says `{}`", line.unwrap_or_default()))
        })?;

        let control = self.path.join("var/lib/dpkg/tmp.ci");
        let mut command = Command::new("dpkg-deb");
        command.arg("--control").arg(deb).arg(&control);
        run(
            &mut command,
            || format!("cannot unpack {}", deb.display()),
            "delete it if it is damaged; it is fetched again",
        )?;
        self.enter(package, &control, &members)
            .map_err(|e| self.trouble(&e))?;
        let others = members.into_iter().filter(|m| (m.uid, m.gid) != (0, 0));
        self.owners.extend(others.map(|member| Owner {
            path: database::merged(&member.path),
            ..member
        }));
        Ok(())
    }

    /// Enters a package whose control files are in a folder, which goes away.
    fn enter(
        &mut self,
        package: &Package,
        folder: &Path,
        members: &[Member],
    ) -> std::io::Result<()> {
        let info = self.path.join("var/lib/dpkg/info");
        let control = fs::read_to_string(folder.join("control"))?;
        let name = database::info_name(&control, &package.name, "arm64");
        for entry in fs::read_dir(folder)? {
            let file = entry?;
            let kind = file.file_name();
            if kind != "control" {
                let kind = kind.to_string_lossy();
                fs::copy(file.path(), info.join(format!("{name}.{kind}")))?;
            }
        }
        fs::write(info.join(format!("{name}.list")), database::list(members))?;
        let conffiles = folder.join("conffiles");
        let conffiles = match conffiles.is_file() {
            true => fs::read_to_string(conffiles)?,
            false => String::new(),
        };
        for file in database::conffiles(&conffiles) {
            let place = self.path.join(file.trim_start_matches('/'));
            let mut waiting = place.clone().into_os_string();
            waiting.push(".dpkg-new");
            fs::rename(&place, waiting)?;
        }
        self.status += &database::stanza(&control, &conffiles);
        fs::remove_dir_all(folder)
    }

    /// Adds the modules of a kernel's package, and what it says of those that are built in; gives its release.
    pub fn add_modules(&mut self, deb: &Path) -> Result<String, Failure> {
        let broken = |why: String| {
            let what = format!("cannot unpack the kernel's modules from {}", deb.display());
            Failure::environment(what, why, "delete it if it is damaged; it is fetched again")
        };
        let mut patterns = vec!["./lib/modules/*/modules.*".to_owned()];
        patterns.extend(modules().map(|module| format!("*/{module}.ko*")));
        let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
        let options = [
            "--no-same-owner",
            "--wildcards",
            "--transform=flags=rSh;s,^\\./lib/,./usr/lib/,",
        ];
        deb::extract(deb, &options, &patterns, &self.path).map_err(broken)?;
        let releases = fs::read_dir(self.path.join("usr/lib/modules")).into_iter();
        let release = releases.flatten().flatten().next();
        let release = release.ok_or_else(|| broken("it has none".to_owned()))?;
        Ok(release.file_name().to_string_lossy().into_owned())
    }

    /// Writes a file that no package has.
    pub fn write(&self, path: &str, text: &str) -> Result<(), Failure> {
        let file = self.path.join(path);
        let write = || {
            fs::create_dir_all(file.parent().unwrap_or(&self.path))?;
            fs::write(&file, text)
        };
        write().map_err(|e| self.trouble(&e))
    }

    /// Leaves out documentation and writes the status of all packages; gives the files that are not root's.
    pub fn finish(self) -> Result<Vec<Owner>, Failure> {
        let finish = || {
            for folder in LEFT_OUT {
                empty(&self.path.join(folder), &|_| true)?;
            }
            // The licences stay.
            let documents = self.path.join("usr/share/doc");
            for entry in entries(&documents)? {
                if entry.file_type()?.is_dir() {
                    empty(&entry.path(), &|name| name != "copyright")?;
                }
            }
            for folder in ["dev", "proc", "sys", "run", "tmp"] {
                fs::create_dir_all(self.path.join(folder))?;
            }
            fs::write(self.path.join("var/lib/dpkg/status"), &self.status)
        };
        finish().map_err(|e| self.trouble(&e))?;
        Ok(self.owners)
    }
}

/// The entries of a folder; none if there is no such folder.
fn entries(folder: &Path) -> std::io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.collect(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// Deletes the entries of a folder whose names are chosen; not what a link points to.
fn empty(folder: &Path, chosen: &dyn Fn(&str) -> bool) -> std::io::Result<()> {
    for entry in entries(folder)? {
        if !chosen(&entry.file_name().to_string_lossy()) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A package as Debian's are, with a configuration file, documentation, a program in /sbin and one that sets its user.
    fn package(folder: &Path) -> (Package, PathBuf) {
        let root = folder.join("made");
        let file = |path: &str, text: &str, mode: u32| {
            let file = root.join(path);
            fs::create_dir_all(file.parent().expect("a folder")).expect("folders");
            fs::write(&file, text).expect("file");
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("mode");
        };
        let control = "Package: one\nVersion: 1:2\nArchitecture: arm64\nMulti-Arch: same\nMaintainer: nobody\nDescription: one\n";
        file("DEBIAN/control", control, 0o644);
        file("DEBIAN/conffiles", "/etc/one.conf\n", 0o644);
        file("DEBIAN/postinst", "#!/bin/sh\nexit 0\n", 0o755);
        file("etc/one.conf", "x\n", 0o644);
        file("sbin/one", "x\n", 0o4755);
        file("usr/share/man/man1/one.1", "x\n", 0o644);
        file("usr/share/doc/one/copyright", "x\n", 0o644);
        file("usr/share/doc/one/changelog", "x\n", 0o644);
        let deb = folder.join("one.deb");
        let mut command = Command::new("dpkg-deb");
        command.args(["-Zgzip", "--root-owner-group", "--build"]);
        let made = command.arg(&root).arg(&deb).output().expect("dpkg-deb");
        assert!(made.status.success(), "{made:?}");
        let package = deb::read(&deb).expect("a package");
        (package, deb)
    }

    #[test]
    fn a_package_is_unpacked_as_dpkg_would_and_entered() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (one, deb) = package(folder.path());
        let path = folder.path().join("root");
        let mut root = Root::new(&path).expect("a root");
        root.add(&one, &deb).expect("unpacked");
        assert_eq!(root.finish().expect("finished"), []);
        let mode = fs::metadata(path.join("usr/sbin/one")).expect("merged");
        assert_eq!(mode.permissions().mode() & 0o7777, 0o4755);
        assert!(path.join("sbin").is_symlink());
        assert!(path.join("etc/one.conf.dpkg-new").is_file());
        assert!(!path.join("etc/one.conf").exists());
        assert!(path.join("usr/share/doc/one/copyright").is_file());
        assert!(!path.join("usr/share/doc/one/changelog").exists());
        assert!(!path.join("usr/share/man/man1").exists());
        let info = |name: &str| fs::read_to_string(path.join("var/lib/dpkg").join(name));
        assert_eq!(
            info("info/one:arm64.postinst").expect("a script"),
            "#!/bin/sh\nexit 0\n"
        );
        let list = info("info/one:arm64.list").expect("a list");
        assert!(list.starts_with("/.\n"), "{list}");
        assert!(list.contains("\n/sbin/one\n") && list.contains("\n/usr/share/man/man1/one.1\n"));
        let status = info("status").expect("a status");
        assert!(status.starts_with("Package: one\nStatus: install ok unpacked\n"));
        assert!(status.contains("\nConffiles:\n /etc/one.conf newconffile\n"));
        assert!(!path.join("var/lib/dpkg/tmp.ci").exists());
    }

    #[test]
    fn a_broken_package_is_named() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (one, deb) = package(folder.path());
        let whole = fs::read(&deb).expect("file");
        fs::write(&deb, &whole[..whole.len() / 2]).expect("file");
        let mut root = Root::new(&folder.path().join("root")).expect("a root");
        let failure = root.add(&one, &deb).expect_err("half a package");
        assert_eq!(failure.what, format!("cannot unpack {}", deb.display()));
    }

    #[test]
    fn a_kernel_without_modules_is_refused() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (_, deb) = package(folder.path());
        let mut root = Root::new(&folder.path().join("root")).expect("a root");
        let failure = root.add_modules(&deb).expect_err("no modules");
        assert!(
            failure
                .what
                .starts_with("cannot unpack the kernel's modules")
        );
    }
}

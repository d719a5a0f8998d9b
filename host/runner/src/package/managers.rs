//! The Debian package of what manages a board: bulkheadctl and bulkheadd.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use sha2::{Digest, Sha256};

use bulkhead_model::checkout;
use bulkhead_model::failure::Failure;

use super::{Member, gzip, write};
use crate::fetch::deb::Package;
use crate::{cross_build, temp_files};

/// Name of the package.
pub const NAME: &str = "bulkhead-mgmt";
/// Its version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Folders of the checkout from which the programs are built.
const SOURCES: [&str; 3] = ["mgmt", "abi", "core"];

/// The package as apt would describe it.
pub fn package() -> Package {
    Package {
        name: NAME.to_owned(),
        version: VERSION.to_owned(),
        architecture: "arm64".to_owned(),
        depends: Vec::new(),
    }
}

/// Changes with whatever the programs are built of, without building them.
///
/// # Errors
/// The checkout cannot be read.
pub fn fingerprint() -> Result<[u8; 32], Failure> {
    let root = checkout::root();
    let mut files = vec![root.join("Cargo.lock"), root.join("Cargo.toml")];
    for folder in SOURCES {
        files_below(&root.join(folder), &mut files).map_err(|why| {
            let what = format!("cannot read {}", root.join(folder).display());
            Failure::environment(what, why, "see that the checkout is whole")
        })?;
    }
    files.sort();
    let mut sum = Sha256::new();
    for file in files {
        let bytes = read(&file)?;
        let name = file.strip_prefix(&root).unwrap_or(&file);
        sum.update(name.as_os_str().as_encoded_bytes());
        sum.update(bytes.len().to_le_bytes());
        sum.update(bytes);
    }
    Ok(sum.finalize().into())
}

fn files_below(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files_below(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Builds the programs and the package, in the folder of what is built if `output` does not say where.
///
/// # Errors
/// They cannot be built, or not written.
pub fn build(output: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let programs = [("bulkheadctl", "usr/bin"), ("bulkheadd", "usr/sbin")];
    let mut members = Vec::new();
    let mut folder = PathBuf::new();
    for (name, place) in programs {
        let file = cross_build::guest(name)?;
        let bytes = read(&file)?;
        members.push(Member::program(format!("{place}/{name}"), bytes));
        file.parent().unwrap_or(&file).clone_into(&mut folder);
    }
    let unit = checkout::root().join("mgmt/bulkheadd/bulkheadd.service");
    members.push(Member::file(
        "usr/lib/systemd/system/bulkheadd.service",
        read(&unit)?,
    ));
    members.push(Member::file(
        format!("usr/share/doc/{NAME}/copyright"),
        "Bulkhead is licensed under the Apache License, Version 2.0:\n/usr/share/common-licenses/Apache-2.0\n",
    ));
    members.extend(told().map_err(|why| {
        let what = "cannot write manual pages and completions";
        Failure::environment(what, why, "set TMPDIR to a folder with room")
    })?);
    let example = checkout::root().join("mgmt/bulkheadd/policy.toml.example");
    members.push(Member::file(
        format!("usr/share/doc/{NAME}/examples/policy.toml"),
        read(&example)?,
    ));
    let size: usize = members.iter().map(|member| member.bytes.len()).sum();
    members.extend(control(size.div_ceil(1024)));
    let package = output.unwrap_or_else(|| folder.join(format!("{NAME}_{VERSION}_arm64.deb")));
    write(&members, &package)?;
    Ok(package)
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(file).map_err(|why| {
        let what = format!("cannot read {}", file.display());
        Failure::environment(what, why, "see that the checkout is whole")
    })
}

/// Manual pages and completions.
fn told() -> io::Result<Vec<Member>> {
    let mut members = Vec::new();
    let mut add_page = |name: &str, section: u32, text: &[u8]| {
        let path = format!("usr/share/man/man{section}/{name}.gz");
        members.push(Member::file(path, gzip(text)?));
        Ok::<_, io::Error>(())
    };
    let folder = temp_files::folder("bulkhead-")?;
    bulkheadctl::pages(folder.value.path())?;
    let mut pages: Vec<PathBuf> = fs::read_dir(folder.value.path())?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    pages.sort();
    for page in pages {
        let name = page.file_name().unwrap_or_default().to_string_lossy();
        add_page(&name, 1, &fs::read(&page)?)?;
    }
    let mut text = Vec::new();
    let daemon = bulkheadd::cli::Cli::command();
    Man::new(daemon).section("8").render(&mut text)?;
    add_page("bulkheadd.8", 8, &text)?;
    for (shell, path) in [
        (
            Shell::Bash,
            "usr/share/bash-completion/completions/bulkheadctl",
        ),
        (Shell::Zsh, "usr/share/zsh/vendor-completions/_bulkheadctl"),
        (
            Shell::Fish,
            "usr/share/fish/vendor_completions.d/bulkheadctl.fish",
        ),
    ] {
        members.push(Member::file(path, bulkheadctl::complete(shell)));
    }
    Ok(members)
}

/// What dpkg reads. The daemon is enabled where there is systemd, also in an image that does not run, and started where that runs.
fn control(kib: usize) -> [Member; 4] {
    let control = format!(
        "Package: {NAME}
Version: {VERSION}
Architecture: arm64
Maintainer: Bulkhead's maintainers <maintainers@bulkhead.invalid>
Installed-Size: {kib}
Section: admin
Priority: optional
Description: manage the VMs of a board that runs Bulkhead
 bulkheadctl starts, stops and pauses VMs, shows what they do and changes
 their shares of the CPUs. bulkheadd lets several programs ask at once,
 writes events to the journal, gives metrics to Prometheus, and moves
 shares of the CPUs by measured load where a policy says so.
 .
 It is for the VM that the board's description lets manage the others.
"
    );
    let after = "#!/bin/sh
set -e
if [ \"$1\" = configure ] && command -v systemctl >/dev/null; then
	systemctl enable --quiet bulkheadd.service || :
	if [ -d /run/systemd/system ]; then
		systemctl daemon-reload
		systemctl restart bulkheadd.service || :
	fi
fi
";
    let before = "#!/bin/sh
set -e
if [ \"$1\" = remove ] && command -v systemctl >/dev/null; then
	if [ -d /run/systemd/system ]; then systemctl stop bulkheadd.service || :; fi
	systemctl disable --quiet bulkheadd.service || :
fi
";
    let purged = "#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi
";
    [
        Member::file("DEBIAN/control", control),
        Member::program("DEBIAN/postinst", after),
        Member::program("DEBIAN/prerm", before),
        Member::program("DEBIAN/postrm", purged),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_that_of_the_sources() {
        let first = fingerprint().expect("a checkout");
        assert_eq!(first, fingerprint().expect("a checkout"));
        // Each crate of this project on which one of these depends is one of these.
        let root = checkout::root();
        let workspace = fs::read_to_string(root.join("Cargo.toml")).expect("a checkout");
        let mut manifests = Vec::new();
        for folder in SOURCES {
            files_below(&root.join(folder), &mut manifests).expect("a checkout");
        }
        manifests.retain(|file| file.ends_with("Cargo.toml"));
        assert_eq!(manifests.len(), 7, "{manifests:?}");
        for manifest in manifests {
            let text = fs::read_to_string(&manifest).expect("a manifest");
            let uses = text
                .lines()
                .filter_map(|line| line.strip_suffix(".workspace = true"));
            for name in uses.filter(|name| name.starts_with("bulkhead")) {
                let place = format!("{name} = {{ path = \"");
                let path = workspace.lines().find_map(|line| line.strip_prefix(&place));
                let path = path.expect("it has a path in the workspace");
                assert!(
                    SOURCES.iter().any(|folder| path.starts_with(folder)),
                    "{path}"
                );
            }
        }
        let mut files = Vec::new();
        files_below(&checkout::root().join("mgmt"), &mut files).expect("a checkout");
        for file in ["bulkheadctl/src/cli.rs", "bulkheadd/bulkheadd.service"] {
            assert!(files.contains(&checkout::root().join("mgmt").join(file)));
        }
    }

    #[test]
    fn there_are_pages_of_both_programs_and_completions_of_three_shells() {
        let members = told().expect("they can be written");
        let has = |path: &str| {
            members
                .iter()
                .any(|member| member.path == path && !member.bytes.is_empty())
        };
        for path in [
            "usr/share/man/man1/bulkheadctl.1.gz",
            "usr/share/man/man1/bulkheadctl-top.1.gz",
            "usr/share/man/man1/bulkheadctl-policy-check.1.gz",
            "usr/share/man/man8/bulkheadd.8.gz",
            "usr/share/bash-completion/completions/bulkheadctl",
            "usr/share/zsh/vendor-completions/_bulkheadctl",
        ] {
            assert!(has(path), "{path}");
        }
    }

    #[test]
    fn dpkg_takes_what_it_reads_and_a_shell_the_scripts() {
        let folder = tempfile::tempdir().expect("a folder");
        let package = folder.path().join("one.deb");
        write(&control(7), &package).expect("dpkg-deb takes it");
        for member in control(7).into_iter().filter(|member| member.is_program) {
            let file = folder.path().join("script");
            fs::write(&file, &member.bytes).expect("a file");
            let checked = std::process::Command::new("sh")
                .arg("-n")
                .arg(&file)
                .status();
            assert!(checked.expect("a shell").success(), "{}", member.path);
        }
    }
}

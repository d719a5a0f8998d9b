//! A root file system of Debian's packages for guests: an ext4 image, made without root.
//!
//! The packages are unpacked here, with the database that dpkg would have written ([`tree`]), and become an image ([`image`]). What has to run on arm64, the
//! packages' own scripts, runs once in an emulator ([`second_stage`]). The image in the cache is whole or not there, and nobody writes to it any more:
//! the disk of a VM is a copy.

mod database;
mod image;
mod second_stage;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use sha2::{Digest, Sha256};

use bulkhead_model::failure::Failure;
use bulkhead_model::payload::DebianPayload;

use super::archive::{Archive, missing};
use super::cache::Cache;
use super::deb::Package;
use crate::package::managers;
use crate::progress::Step;
use crate::temp_files;

/// Changes whenever this module makes another image of the same packages, scripts and files.
const FORMAT: u32 = 2;

/// What is asked for; with all that it depends on it is everything in the image. First what Debian takes for granted everywhere (Essential: yes).
const PACKAGES: [&str; 41] = [
    "base-files",
    "base-passwd",
    "bash",
    "bsdutils",
    "coreutils",
    "dash",
    "debianutils",
    "diffutils",
    "dpkg",
    "findutils",
    "grep",
    "gzip",
    "hostname",
    "init-system-helpers",
    "libc-bin",
    "login",
    "mount",
    "ncurses-base",
    "ncurses-bin",
    "perl-base",
    "sed",
    "sysvinit-utils",
    "tar",
    "util-linux",
    // The rest of a system that boots, has a network and can get more packages. usr-is-merged stands for usrmerge, which would bring all of Perl.
    "usr-is-merged",
    "mawk",
    "systemd",
    "systemd-sysv",
    "systemd-resolved",
    "libnss-resolve",
    "udev",
    "dbus",
    "kmod",
    "e2fsprogs",
    "passwd",
    "procps",
    "netbase",
    "iproute2",
    "iputils-ping",
    "apt",
    "debian-archive-keyring",
];

/// Files of the project in the image: what an administrator would have written.
const FILES: [(&str, &str); 6] = [
    (
        "etc/systemd/network/99-bulkhead.network",
        include_str!("../../../../../guests/rootfs/default.network"),
    ),
    (
        "etc/systemd/resolved.conf.d/bulkhead.conf",
        include_str!("../../../../../guests/rootfs/resolved.conf"),
    ),
    (
        "etc/dpkg/dpkg.cfg.d/bulkhead",
        include_str!("../../../../../guests/rootfs/dpkg.cfg"),
    ),
    (
        "etc/inputrc",
        include_str!("../../../../../guests/rootfs/inputrc"),
    ),
    ("etc/hostname", "debian\n"),
    (
        "etc/fstab",
        "# The root file system is mounted by the initramfs, as the kernel's command line says.\n",
    ),
];

/// Images that stay in the cache.
const KEPT: usize = 2;

/// What a first run takes, as it is said before it starts.
const ANNOUNCEMENT: &str = "making Debian's root file system, once for these versions of its packages: some 45 MB to download, bulkheadctl and bulkheadd to build, then a minute or two";

/// The image of these packages, of what manages boards and of this kernel's modules, whether it is there yet or not.
fn place(cache: &Cache, kernel: &Package, packages: &[Package], managers: [u8; 32]) -> PathBuf {
    let mut key = Sha256::new();
    key.update(FORMAT.to_le_bytes());
    key.update(managers);
    for package in packages.iter().chain([kernel]) {
        key.update(package.stem());
        key.update([0]);
    }
    for text in FILES.iter().flat_map(|(path, text)| [*path, *text]) {
        key.update(text);
        key.update([0]);
    }
    for script in second_stage::SCRIPTS {
        key.update(script);
        key.update([0]);
    }
    for module in tree::modules() {
        key.update(module);
        key.update([0]);
    }
    let key = key.finalize();
    let key: String = key.iter().take(8).map(|b| format!("{b:02x}")).collect();
    folder(cache).join(format!("{key}.img"))
}

/// The images, and the log of the last run.
fn folder(cache: &Cache) -> PathBuf {
    cache.folder().join("rootfs")
}

/// The kernel whose modules are in the image.
fn kernel(cache: &Cache) -> Result<Option<Package>, Failure> {
    let kernel = cache.packages(DebianPayload::Kernel)?;
    Ok(kernel.and_then(|packages| packages.into_iter().next()))
}

/// The image that was made of the packages which are chosen; none if none was.
pub fn cached(cache: &Cache) -> Result<Option<PathBuf>, Failure> {
    let packages = cache.packages(DebianPayload::Rootfs)?;
    let Some((packages, kernel)) = packages.zip(kernel(cache)?) else {
        return Ok(None);
    };
    let place = place(cache, &kernel, &packages, managers::fingerprint()?);
    Ok(Some(place).filter(|image| image.is_file()))
}

/// Finds out the packages and makes the image of them, unless the cache has it; `boots` are the files of the kernel and
/// of the initramfs, which are chosen already.
pub fn choose(
    cache: &Cache,
    archive: &mut dyn Archive,
    boots: (&Path, &Path),
) -> Result<(), Failure> {
    let kernel = kernel(cache)?.ok_or_else(|| missing("linux-image-arm64"))?;
    let packages = archive.closure(&PACKAGES)?;
    let target = place(cache, &kernel, &packages, managers::fingerprint()?);
    if !target.is_file() {
        make(cache, archive, boots, (&kernel, &packages), &target)?;
        prune(&folder(cache));
    }
    // Only now: what is written down exists.
    cache.note(DebianPayload::Rootfs, packages)
}

fn make(
    cache: &Cache,
    archive: &mut dyn Archive,
    boots: (&Path, &Path),
    (kernel, packages): (&Package, &[Package]),
    target: &Path,
) -> Result<(), Failure> {
    let started = Instant::now();
    eprintln!("  {ANNOUNCEMENT}");
    let files = archive.get(packages)?;
    let kernel = archive.get(std::slice::from_ref(kernel))?;
    let kernel = kernel.first().ok_or_else(|| missing("linux-image-arm64"))?;
    let managers = (managers::package(), managers::build(None)?);

    let folder = folder(cache);
    let trouble = |e: std::io::Error| {
        let what = format!("cannot make a root file system in {}", folder.display());
        Failure::environment(
            what,
            e,
            "see that the disk has room, some 600 MB, and is yours",
        )
    };
    // Whoever holds the cache's lock is alone here: what lies in this folder was left by a run that was killed.
    let work = folder.join("work");
    if work.exists() {
        fs::remove_dir_all(&work).map_err(trouble)?;
    }
    fs::create_dir_all(&work).map_err(trouble)?;
    let work = temp_files::folder_in(&work).map_err(trouble)?;
    let work = work.value.path();

    let root = work.join("root");
    let step = Step::start(format!("unpacking {} packages", files.len()));
    let mut unpacked = tree::Root::new(&root)?;
    for (done, (package, file)) in packages.iter().zip(&files).enumerate() {
        unpacked.add(package, file)?;
        step.count(done + 1, files.len(), "unpacking packages");
    }
    unpacked.add(&managers.0, &managers.1)?;
    let release = unpacked.add_modules(kernel)?;
    for (path, text) in FILES {
        unpacked.write(path, text)?;
    }
    let owners = unpacked.finish()?;
    drop(step);

    let made = work.join("image");
    image::make(&root, &owners, &made)?;
    let all = packages.iter().chain([&managers.0]);
    let names: Vec<&str> = all.map(|package| package.name.as_str()).collect();
    let log = folder.join("second-stage.log");
    second_stage::run(boots, (&made, &log), &names, &release)?;
    image::check(&made, &log)?;
    fs::rename(&made, target).map_err(trouble)?;
    eprintln!(
        "  Debian's root file system is made: {} packages, {} s",
        names.len(),
        started.elapsed().as_secs()
    );
    Ok(())
}

/// Removes images but the newest ones, of which another checkout may have one. What cannot be removed stays.
fn prune(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let images = entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "img"));
    let mut images: Vec<_> = images
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    images.sort();
    let old = images.len().saturating_sub(KEPT);
    for (_, image) in images.drain(..old) {
        let _gone = fs::remove_file(image);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> Package {
        Package {
            name: name.to_owned(),
            version: version.to_owned(),
            architecture: "arm64".to_owned(),
            depends: Vec::new(),
        }
    }

    #[test]
    fn another_version_of_a_package_or_of_the_kernel_is_another_image() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let cache = Cache::open_at(folder.path().to_owned()).expect("cache");
        let place = |kernel: &str, libc: &str, managers: u8| {
            place(
                &cache,
                &package("linux-image-6.1.0-50-arm64", kernel),
                &[package("libc6", libc), package("dpkg", "1.21")],
                [managers; 32],
            )
        };
        let first = place("6.1.1", "2.36-9", 0);
        assert_eq!(first, place("6.1.1", "2.36-9", 0));
        assert_ne!(first, place("6.1.1", "2.36-10", 0));
        assert_ne!(first, place("6.1.2", "2.36-9", 0));
        assert_ne!(first, place("6.1.1", "2.36-9", 1));
    }

    #[test]
    fn a_choice_without_its_image_is_none() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let cache = Cache::open_at(folder.path().to_owned()).expect("cache");
        assert_eq!(cached(&cache).expect("readable"), None);
        let kernel = package("linux-image-6.1.0-50-arm64", "6.1.1");
        let packages = vec![package("libc6", "2.36-9")];
        let managers = managers::fingerprint().expect("a checkout");
        let image = place(&cache, &kernel, &packages, managers);
        cache
            .note(DebianPayload::Kernel, vec![kernel])
            .expect("written");
        cache
            .note(DebianPayload::Rootfs, packages)
            .expect("written");
        assert_eq!(cached(&cache).expect("readable"), None);
        // A run that was killed leaves this, which is never taken for an image.
        fs::create_dir_all(image.with_file_name("work").join("x")).expect("folders");
        fs::write(image.with_file_name("work").join("x/image"), "half").expect("file");
        assert_eq!(cached(&cache).expect("readable"), None);
        fs::write(&image, "whole").expect("file");
        assert_eq!(cached(&cache).expect("readable"), Some(image));
    }

    #[test]
    fn old_images_go() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let image = |n: u64| folder.path().join(format!("{n}.img"));
        for n in [3, 1, 2] {
            let file = fs::File::create(image(n)).expect("a file");
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(n);
            file.set_modified(time).expect("a time");
        }
        fs::write(folder.path().join("second-stage.log"), "").expect("a file");
        prune(folder.path());
        assert_eq!([1, 2, 3].map(|n| image(n).exists()), [false, true, true]);
        assert!(folder.path().join("second-stage.log").exists());
    }

    #[test]
    fn a_package_that_the_archive_lacks_is_named_before_anything_is_made() {
        let debs = tempfile::tempdir().expect("temporary folder");
        let mut archive = super::super::folder::Folder::open(debs.path()).expect("a folder");
        let folder = tempfile::tempdir().expect("temporary folder");
        let cache = Cache::open_at(folder.path().to_owned()).expect("cache");
        let kernel = package("linux-image-6.1.0-50-arm64", "6.1.1");
        cache
            .note(DebianPayload::Kernel, vec![kernel])
            .expect("written");
        let failure = choose(&cache, &mut archive, (Path::new(""), Path::new("")))
            .expect_err("nothing there");
        assert_eq!(
            failure.what,
            "the Debian package base-files for arm64 cannot be had"
        );
        assert!(!self::folder(&cache).exists());
        assert_eq!(
            cache.packages(DebianPayload::Rootfs).expect("readable"),
            None
        );
    }
}

//! The initramfs of the Linux guests: Debian's programs and modules, this project's `/init`; and archives of further programs and
//! modules that a description may put behind it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};

use bulkhead_model::failure::Failure;
use bulkhead_planner::cpio::{Entry, Tree};

use super::cache::{Cache, Unpacked};
use super::closure::{Closure, PROGRAMS, Program};
use super::modules;
use crate::progress::Step;

/// Changes whenever this module makes another archive of the same packages and scripts.
const FORMAT: u32 = 5;

/// The project's own files: path in the guest and contents.
const SCRIPTS: [(&str, &[u8]); 16] = [
    ("init", include_bytes!("../../../../guests/linux/init")),
    (
        "bin/control-status",
        include_bytes!("../../../../guests/linux/control-status"),
    ),
    (
        "bin/control-stop",
        include_bytes!("../../../../guests/linux/control-stop"),
    ),
    (
        "bin/hotplug",
        include_bytes!("../../../../guests/linux/hotplug"),
    ),
    (
        "bin/clocks",
        include_bytes!("../../../../guests/linux/clocks"),
    ),
    (
        "bin/tally",
        include_bytes!("../../../../guests/linux/tally"),
    ),
    (
        "bin/debug-tools",
        include_bytes!("../../../../guests/linux/debug-tools"),
    ),
    (
        "bin/devices",
        include_bytes!("../../../../guests/linux/devices"),
    ),
    (
        "bin/disk-verify",
        include_bytes!("../../../../guests/linux/disk-verify"),
    ),
    (
        "bin/logins",
        include_bytes!("../../../../guests/linux/logins"),
    ),
    (
        "bin/network",
        include_bytes!("../../../../guests/linux/network"),
    ),
    (
        "bin/realtime-io",
        include_bytes!("../../../../guests/linux/realtime-io"),
    ),
    (
        "bin/doorbells",
        include_bytes!("../../../../guests/linux/doorbells"),
    ),
    ("bin/demo", include_bytes!("../../../../guests/linux/demo")),
    (
        "bin/latency",
        include_bytes!("../../../../guests/linux/latency"),
    ),
    (
        "bin/traffic",
        include_bytes!("../../../../guests/linux/traffic"),
    ),
];

/// Applets that the scripts cannot do without.
const NEEDED: [&str; 26] = [
    "sh",
    "mount",
    "devmem",
    "cttyhack",
    "setsid",
    "poweroff",
    "sleep",
    "xargs",
    "modprobe",
    "awk",
    "nproc",
    "taskset",
    "hwclock",
    "watchdog",
    "killall",
    "sed",
    "nc",
    "ping",
    "ifconfig",
    "cmp",
    "dd",
    "sha256sum",
    "timeout",
    "switch_root",
    "chroot",
    "acpid",
];

/// Makes the initramfs from unpacked packages, unless the cache has it; gives its path.
pub fn make(cache: &Cache, kernel: &[Unpacked], packages: &[Unpacked]) -> Result<PathBuf, Failure> {
    let mut key = key_of(kernel.iter().chain(packages));
    for (path, data) in SCRIPTS {
        key.update(path);
        key.update(data.len().to_le_bytes());
        key.update(data);
    }
    pack(cache, key, || tree(kernel, packages))
}

/// Makes the archive of some programs, likewise.
pub fn make_programs(
    cache: &Cache,
    packages: &[Unpacked],
    programs: &[Program],
) -> Result<PathBuf, Failure> {
    pack(cache, key_of(packages.iter()), || {
        let mut tree = Tree::default();
        add_programs(&mut tree, packages, programs)?;
        Ok(tree)
    })
}

/// Makes the archive of a kernel's modules, likewise.
pub fn make_modules(cache: &Cache, kernel: &[Unpacked]) -> Result<PathBuf, Failure> {
    let mut key = key_of(kernel.iter());
    key.update("modules");
    pack(cache, key, || {
        let mut tree = Tree::default();
        add_modules(&mut tree, kernel)?;
        Ok(tree)
    })
}

/// What an archive of these packages depends on.
fn key_of<'a>(packages: impl Iterator<Item = &'a Unpacked>) -> Sha256 {
    let mut key = Sha256::new();
    key.update(FORMAT.to_le_bytes());
    for unpacked in packages {
        key.update(unpacked.package.stem());
        key.update([0]);
    }
    key
}

/// Packs an archive, unless the cache has one with this key.
fn pack(
    cache: &Cache,
    key: Sha256,
    tree: impl FnOnce() -> Result<Tree, Failure>,
) -> Result<PathBuf, Failure> {
    let key: String = key
        .finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let name = Path::new("initramfs").join(format!("{key}.cpio.gz"));
    let path = cache.folder().join(&name);
    if path.is_file() {
        return Ok(path);
    }
    let step = Step::start("packing the initramfs");
    let archive = tree()?.to_bytes();
    // No time and no name in the header: the same archive gives the same bytes.
    let mut packed = GzBuilder::new().write(Vec::new(), Compression::best());
    let packed = packed.write_all(&archive).and_then(|()| packed.finish());
    let packed = packed.map_err(|e| Failure::environment("cannot pack the initramfs", e, ""))?;
    drop(step);
    cache.write(&name, &packed)
}

/// Returns everything in the initramfs.
fn tree(kernel: &[Unpacked], packages: &[Unpacked]) -> Result<Tree, Failure> {
    let mut tree = Tree::default();
    for folder in ["dev", "proc", "sys", "tmp", "run", "root", "etc"] {
        tree.add(folder, Entry::Folder);
    }
    // The kernel opens it before /init can mount anything.
    tree.add("dev/console", Entry::Character(5, 1));
    for (path, data) in SCRIPTS {
        tree.add(path, Entry::File(0o755, data.to_vec()));
    }
    add_programs(&mut tree, packages, &PROGRAMS)?;
    add_modules(&mut tree, kernel)?;
    Ok(tree)
}

fn add_modules(tree: &mut Tree, kernel: &[Unpacked]) -> Result<(), Failure> {
    kernel
        .iter()
        .try_for_each(|unpacked| modules::add(tree, &unpacked.folder))
}

/// Adds programs and their libraries.
fn add_programs(
    tree: &mut Tree,
    packages: &[Unpacked],
    programs: &[Program],
) -> Result<(), Failure> {
    for (package, path) in programs {
        let Some(unpacked) = packages.iter().find(|p| p.package.name == *package) else {
            continue;
        };
        let data = read(&unpacked.folder.join(path))?;
        let name = path.rsplit('/').next().unwrap_or(path);
        if name == "busybox" {
            links(tree, &data)?;
        }
        tree.add(&format!("bin/{name}"), Entry::File(0o755, data));
    }
    for (name, path) in Closure::of(packages.iter(), programs)?.libraries {
        // The dynamic linker is named by its full path in every program.
        let at = if name.starts_with("ld-linux-") {
            "lib"
        } else {
            "lib/aarch64-linux-gnu"
        };
        tree.add(&format!("{at}/{name}"), Entry::File(0o755, read(&path)?));
    }
    Ok(())
}

/// Adds a link for each applet. The names stand in the program, sorted, each ended by a NUL, the first
/// two being `[` and `[[`; asking the program itself would take an arm64 machine.
fn links(tree: &mut Tree, busybox: &[u8]) -> Result<(), Failure> {
    let start = busybox.windows(5).position(|part| part == b"[\0[[\0");
    let names = start.map(|at| busybox.get(at..).unwrap_or_default());
    let names = names
        .into_iter()
        .flat_map(|list| list.split(|byte| *byte == 0));
    for name in names.take_while(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name);
        tree.add(&format!("bin/{name}"), Entry::Link("busybox".to_owned()));
    }
    match NEEDED.iter().find(|name| !tree.has(&format!("bin/{name}"))) {
        None => Ok(()),
        Some(name) => Err(Failure::environment(
            "Debian's busybox-static is not as expected",
            format!("it has no applet `{name}`"),
            "",
        )),
    }
}

/// Reads a file of an unpacked package.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|e| {
        let what = format!("cannot read {}", path.display());
        Failure::environment(
            what,
            e,
            "delete the folder `unpacked` of the cache and fetch again",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applets_become_links_and_a_missing_one_is_named() {
        let mut program = b"\x7fELF [ \0[\0[[\0".to_vec();
        for name in NEEDED {
            program.extend_from_slice(name.as_bytes());
            program.push(0);
        }
        program.extend_from_slice(b"\0not an applet\0");
        let mut tree = Tree::default();
        links(&mut tree, &program).expect("all there");
        assert!(tree.has("bin/[") && tree.has("bin/devmem") && !tree.has("bin/not an applet"));

        let failure = links(&mut Tree::default(), b"[\0[[\0sh\0\0").expect_err("no mount");
        assert_eq!(failure.why, "it has no applet `mount`");
    }
}

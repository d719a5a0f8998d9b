//! A few of the kernel's modules with the index files that `modprobe` reads. Debian makes those when
//! the package is installed; here the modules' own `.modinfo` says the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSection};

use bulkhead_model::failure::Failure;
use bulkhead_planner::cpio::{Entry, Tree};

/// Names of the modules in the initramfs, dependencies included: virtio devices, so that the same
/// initramfs serves on plain QEMU, block and network devices made of memory, the watchdog, keys, by which a doorbell is
/// heard, and ext4 for a root file system on a disk.
pub const WANTED: [&str; 17] = [
    "virtio_mmio",
    "virtio_blk",
    "virtio_console",
    "virtio_net",
    "net_failover",
    "failover",
    "virtio-rng",
    "loop",
    "dummy",
    "sbsa_gwdt",
    "gpio_keys",
    "evdev",
    "ext4",
    "jbd2",
    "mbcache",
    "crc16",
    "crc32c_generic",
];

/// Names of those that a kernel with device-dax has beside them: by these a program of Linux maps channels that are cached (ADR 26).
pub const WANTED_FOR_DAX: [&str; 6] = [
    "libnvdimm",
    "of_pmem",
    "nd_btt",
    "nd_pmem",
    "dax_pmem",
    "device_dax",
];

/// One module.
#[derive(Debug)]
struct Module {
    /// Path in `/lib/modules/RELEASE`.
    path: String,
    /// Names of the modules that have to be loaded before it, nearest first.
    depends: Vec<String>,
    /// Patterns of the devices it drives.
    aliases: Vec<String>,
    /// The file.
    data: Vec<u8>,
}

/// The file that names the modules that a kernel has built in, by their paths.
pub const BUILTIN: &str = "modules.builtin";

/// Whether an unpacked kernel package has all of these: one that an older version has unpacked may not.
pub fn are_all_in(kernel: &Path, wanted: impl IntoIterator<Item = &'static str>) -> bool {
    let files = files_below(&kernel.join("lib/modules")).unwrap_or_default();
    let (lists, modules): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| is_list(file));
    let mut names: Vec<String> = modules.iter().map(|file| name_of(file)).collect();
    for list in lists {
        let text = fs::read_to_string(list).unwrap_or_default();
        names.extend(text.lines().map(|line| name_of(Path::new(line))));
    }
    let mut wanted = wanted.into_iter();
    wanted.all(|name| names.contains(&canonical(name)))
}

/// Whether a file is [`BUILTIN`], and no module.
fn is_list(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == BUILTIN)
}

/// The module in a file, unpacked if it is packed (`.ko.xz`): who loads it in a guest may not know how. Returns its path then, too.
fn read_module(file: &Path) -> std::io::Result<(PathBuf, Vec<u8>)> {
    let data = fs::read(file)?;
    if file.extension().is_none_or(|extension| extension != "xz") {
        return Ok((file.to_owned(), data));
    }
    let mut module = Vec::new();
    lzma_rs::xz_decompress(&mut data.as_slice(), &mut module)
        .map_err(|error| std::io::Error::other(format!("it is no xz file: {error}")))?;
    Ok((file.with_extension(""), module))
}

/// Adds the modules of an unpacked kernel package, `modules.dep` and `modules.alias` to `tree`.
pub fn add(tree: &mut Tree, kernel: &Path) -> Result<(), Failure> {
    let failed = |path: &Path, why: &dyn std::fmt::Display| {
        let what = format!("cannot read the kernel module {}", path.display());
        Failure::environment(
            what,
            why,
            "delete the folder `unpacked` of the cache and fetch again",
        )
    };
    let base = kernel.join("lib/modules");
    for release in folder(&base).map_err(|e| failed(&base, &e))? {
        let mut modules: BTreeMap<String, Module> = BTreeMap::new();
        let files = files_below(&release).map_err(|e| failed(&release, &e))?;
        for file in files.into_iter().filter(|file| !is_list(file)) {
            let (file, data) = read_module(&file).map_err(|e| failed(&file, &e))?;
            let info = modinfo(&data).map_err(|e| failed(&file, &e))?;
            let path = file.strip_prefix(&release).unwrap_or(&file);
            let module = Module {
                path: path.to_string_lossy().into_owned(),
                depends: all(&info, "depends=")
                    .flat_map(|list| list.split(','))
                    .filter(|name| !name.is_empty())
                    .map(canonical)
                    .collect(),
                aliases: all(&info, "alias=").map(str::to_owned).collect(),
                data,
            };
            modules.insert(name_of(&file), module);
        }
        for module in modules.values() {
            if let Some(name) = module
                .depends
                .iter()
                .find(|name| !modules.contains_key(*name))
            {
                let why = format!(
                    "it depends on the module {name}, which is not in the list of wanted modules"
                );
                return Err(failed(Path::new(&module.path), &why));
            }
        }
        let release = release.file_name().unwrap_or_default().to_string_lossy();
        let at = |name: &str| format!("lib/modules/{release}/{name}");
        let (dep, alias) = indexes(&modules);
        tree.add(&at("modules.dep"), Entry::File(0o644, dep.into_bytes()));
        tree.add(&at("modules.alias"), Entry::File(0o644, alias.into_bytes()));
        for module in modules.into_values() {
            tree.add(&at(&module.path), Entry::File(0o644, module.data));
        }
    }
    Ok(())
}

/// The text of `modules.dep` and `modules.alias`.
fn indexes(modules: &BTreeMap<String, Module>) -> (String, String) {
    let (mut dep, mut alias) = (String::new(), String::new());
    for (name, module) in modules {
        let mut order: Vec<&str> = Vec::new();
        let mut queue: Vec<&String> = module.depends.iter().collect();
        while let Some(module) = queue.pop().and_then(|name| modules.get(name)) {
            if !order.contains(&module.path.as_str()) {
                order.push(&module.path);
                queue.extend(&module.depends);
            }
        }
        let order: String = order.iter().map(|path| format!(" {path}")).collect();
        dep += &format!("{}:{order}\n", module.path);
        for pattern in &module.aliases {
            alias += &format!("alias {pattern} {name}\n");
        }
    }
    (dep, alias)
}

/// A module's name with `_` for `-`, as the kernel compares them.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// The name of the module in a file.
fn name_of(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    canonical(name.split('.').next().unwrap_or_default())
}

/// The values of one key in the text of `.modinfo`.
fn all<'a>(info: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    info.split('\0')
        .filter_map(move |entry| entry.strip_prefix(key))
}

/// The section `.modinfo` of a module: entries `key=value`, each ended by a NUL.
fn modinfo(data: &[u8]) -> Result<String, object::Error> {
    let file = object::File::parse(data)?;
    let section = file.section_by_name(".modinfo");
    let bytes = section.map_or(Ok(&[][..]), |section| section.data())?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// Returns the entries of a folder, sorted.
fn folder(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path)?.map(|entry| Ok(entry?.path()));
    let mut entries = entries.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort();
    Ok(entries)
}

/// All files in a folder and the folders in it, sorted.
fn files_below(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in folder(path)? {
        if entry.is_dir() {
            found.extend(files_below(&entry)?);
        } else {
            found.push(entry);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_one_of_the_modules_is_not_whole() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let drivers = folder.path().join("lib/modules/6.1.0/kernel/drivers");
        fs::create_dir_all(&drivers).expect("folders");
        assert!(!are_all_in(folder.path(), WANTED));
        for name in WANTED {
            fs::write(drivers.join(format!("{name}.ko")), "").expect("file");
        }
        assert!(are_all_in(folder.path(), WANTED));
        fs::remove_file(drivers.join("virtio-rng.ko")).expect("file");
        assert!(!are_all_in(folder.path(), WANTED));
        let list = folder.path().join("lib/modules/6.1.0").join(BUILTIN);
        fs::write(list, "kernel/drivers/char/hw_random/virtio-rng.ko\n").expect("file");
        assert!(are_all_in(folder.path(), WANTED), "built in");
    }

    #[test]
    fn a_packed_module_is_unpacked_and_what_is_no_module_is_left_out() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let release = folder.path().join("lib/modules/6.12.1");
        fs::create_dir_all(release.join("kernel")).expect("folders");
        let module = object::write::Object::new(
            object::BinaryFormat::Elf,
            object::Architecture::Aarch64,
            object::Endianness::Little,
        );
        let module = module.write().expect("an ELF file");
        let mut packed = Vec::new();
        lzma_rs::xz_compress(&mut module.as_slice(), &mut packed).expect("packed");
        fs::write(release.join("kernel/loop.ko.xz"), &packed).expect("file");
        fs::write(release.join(BUILTIN), "kernel/dummy.ko\n").expect("file");
        let mut tree = Tree::default();
        add(&mut tree, folder.path()).expect("a kernel");
        let archive = tree.to_bytes();
        let has = |what: &[u8]| archive.windows(what.len()).any(|bytes| bytes == what);
        assert!(has(b"lib/modules/6.12.1/kernel/loop.ko\0"), "its name");
        assert!(has(&module), "its bytes");
        assert!(!has(BUILTIN.as_bytes()), "a list");
        fs::write(
            release.join("kernel/loop.ko.xz"),
            &packed[..packed.len() / 2],
        )
        .expect("file");
        let failure = add(&mut Tree::default(), folder.path()).expect_err("half a file");
        assert!(failure.why.contains("no xz file"), "{failure:?}");
    }

    #[test]
    fn a_module_lists_what_it_needs_and_what_that_needs() {
        let module = |path: &str, depends: &[&str], aliases: &[&str]| Module {
            path: path.to_owned(),
            depends: depends.iter().map(|name| (*name).to_owned()).collect(),
            aliases: aliases.iter().map(|name| (*name).to_owned()).collect(),
            data: Vec::new(),
        };
        let modules = BTreeMap::from([
            ("failover".to_owned(), module("k/failover.ko", &[], &[])),
            (
                "net_failover".to_owned(),
                module("k/net_failover.ko", &["failover"], &[]),
            ),
            (
                "virtio_net".to_owned(),
                module(
                    "k/virtio_net.ko",
                    &["net_failover"],
                    &["virtio:d00000001v*"],
                ),
            ),
        ]);
        let (dep, alias) = indexes(&modules);
        assert_eq!(
            dep,
            "k/failover.ko:\nk/net_failover.ko: k/failover.ko\n\
             k/virtio_net.ko: k/net_failover.ko k/failover.ko\n"
        );
        assert_eq!(alias, "alias virtio:d00000001v* virtio_net\n");
    }
}

//! Packages that the programs of an initramfs need: those that provide the shared libraries that
//! the programs and their libraries name (ELF `DT_NEEDED`), and no others. Debian's own dependencies
//! would bring a graphics stack along with stress-ng.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};

use bulkhead_model::failure::Failure;
use bulkhead_model::payload::DebianPayload;

use super::archive::{Archive, Suite, need, unpacked};
use super::cache::{Cache, Unpacked};
use super::deb::Package;

/// A program: its package and its path there.
pub type Program = (&'static str, &'static str);

/// The programs of the initramfs.
pub const PROGRAMS: [Program; 4] = [
    ("busybox-static", "bin/busybox"),
    ("rt-tests", "usr/bin/cyclictest"),
    ("rt-tests", "usr/bin/hackbench"),
    ("stress-ng", "usr/bin/stress-ng"),
];

/// The programs that load and check disks and networks.
pub const IO_TOOLS: [Program; 2] = [("fio", "usr/bin/fio"), ("iperf3", "usr/bin/iperf3")];

/// The programs that look into other programs, and measure them.
pub const DEBUG_TOOLS: [Program; 2] = [
    ("gdb-minimal", "usr/bin/gdb"),
    ("linux-perf", "usr/bin/perf"),
];

/// The programs of a payload that is an archive of some, to go behind the initramfs.
pub fn tools(payload: DebianPayload) -> Option<&'static [Program]> {
    match payload {
        DebianPayload::IoTools => Some(&IO_TOOLS),
        DebianPayload::DebugTools => Some(&DEBUG_TOOLS),
        _ => None,
    }
}

/// Folders of a package in which its shared libraries lie: those of the dynamic linker, and one that libraries of their package name
/// (`DT_RUNPATH`).
const LIBRARIES: [&str; 5] = [
    "lib/aarch64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib",
    "usr/lib",
    "usr/lib/aarch64-linux-gnu/ceph",
];

/// Files that programs need at run time, found in unpacked packages.
#[derive(Debug, Default)]
pub struct Closure {
    /// Shared libraries by the name that others call them.
    pub libraries: BTreeMap<String, PathBuf>,
    /// Packages that provide a program or a library.
    used: BTreeSet<String>,
    /// Packages with a program or library that names a library nobody provides, and that library.
    lacking: BTreeMap<String, String>,
}

/// Gets the packages of programs and of every library that they need.
pub fn gather(
    cache: &Cache,
    archive: &mut dyn Archive,
    programs: &[Program],
) -> Result<Vec<Unpacked>, Failure> {
    let mut have: BTreeMap<String, Unpacked> = BTreeMap::new();
    let mut wanted: BTreeSet<String> = programs.iter().map(|(p, _)| (*p).to_owned()).collect();
    loop {
        let new: Vec<_> = wanted.iter().filter(|n| !have.contains_key(*n)).collect();
        let mut packages: Vec<Package> = Vec::new();
        for name in &new {
            // A dependency that the archive lacks is virtual; a library that stays missing ends the work below.
            match archive.find(name, Suite::Stable)? {
                Some(package) => packages.push(package),
                None if programs.iter().any(|(p, _)| p == *name) => {
                    packages.push(need(archive, name, Suite::Stable)?);
                }
                None => {}
            }
        }
        if packages.is_empty() && !have.is_empty() {
            let lacking = Closure::of(have.values(), programs)?.lacking;
            let why: Vec<_> = lacking
                .iter()
                .map(|(p, l)| format!("{p} needs {l}"))
                .collect();
            return Err(Failure::environment(
                "no package provides a library that the initramfs needs",
                why.join("\n"),
                "see that the mirror is complete, or add the packages to the folder given with --from",
            ));
        }
        for package in unpacked(cache, archive, packages, &[])? {
            have.insert(package.package.name.clone(), package);
        }
        let closure = Closure::of(have.values(), programs)?;
        if closure.lacking.is_empty() {
            have.retain(|name, _| closure.used.contains(name));
            return Ok(have.into_values().collect());
        }
        let lacking = closure.lacking.keys().filter_map(|name| have.get(name));
        wanted.extend(lacking.flat_map(|unpacked| unpacked.package.depends.clone()));
    }
}

impl Closure {
    /// Follows the names of libraries from `programs` through `packages`.
    pub fn of<'a>(
        packages: impl Iterator<Item = &'a Unpacked> + Clone,
        programs: &[Program],
    ) -> Result<Self, Failure> {
        let mut closure = Self::default();
        let mut queue: Vec<(&Unpacked, PathBuf)> = Vec::new();
        for (name, path) in programs {
            if let Some(owner) = packages.clone().find(|p| p.package.name == *name) {
                queue.push((owner, owner.folder.join(path)));
            }
        }
        while let Some((owner, file)) = queue.pop() {
            closure.used.insert(owner.package.name.clone());
            for library in needed(&file)? {
                if closure.libraries.contains_key(&library) {
                    continue;
                }
                let provider = packages.clone().find_map(|p| {
                    let paths = LIBRARIES.iter().map(|at| p.folder.join(at).join(&library));
                    let found = paths.into_iter().find(|path| path.is_file());
                    found.map(|path| (p, path))
                });
                if let Some((provider, path)) = provider {
                    closure.libraries.insert(library, path.clone());
                    queue.push((provider, path));
                } else {
                    closure.lacking.insert(owner.package.name.clone(), library);
                }
            }
        }
        Ok(closure)
    }
}

/// The libraries that an ELF file names; none for a static program.
fn needed(file: &PathBuf) -> Result<Vec<String>, Failure> {
    let failed = |why: &dyn std::fmt::Display| {
        let what = format!("cannot read the program {}", file.display());
        Failure::environment(
            what,
            why,
            "delete the folder `unpacked` of the cache and fetch again",
        )
    };
    let data = std::fs::read(file).map_err(|e| failed(&e))?;
    let parsed = ElfFile64::<object::Endianness>::parse(&*data).map_err(|e| failed(&e))?;
    let endian = parsed.endian();
    let header = parsed.elf_header();
    let segments = header
        .program_headers(endian, &*data)
        .map_err(|e| failed(&e))?;
    let sections = header.sections(endian, &*data).map_err(|e| failed(&e))?;
    let Some((dynamic, index)) = sections.dynamic(endian, &*data).map_err(|e| failed(&e))? else {
        return Ok(Vec::new());
    };
    debug_assert!(segments.iter().any(|s| s.p_type(endian) == elf::PT_DYNAMIC));
    let strings = sections
        .strings(endian, &*data, index)
        .map_err(|e| failed(&e))?;
    let entries = dynamic
        .iter()
        .filter(|entry| entry.tag32(endian) == Some(elf::DT_NEEDED));
    entries
        .map(|entry| {
            let name = entry.string(endian, strings).map_err(|e| failed(&e))?;
            Ok(String::from_utf8_lossy(name).into_owned())
        })
        .collect()
}

//! Rust's standard library for a Linux on arm64, where the compiler is a package of Debian's or Ubuntu's: the same package for arm64, unpacked
//! into the cache. Nothing is installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use bulkhead_model::failure::Failure;

use super::apt::Apt;
use super::cache::{self, Cache};
use super::deb::{self, Package};
use crate::command;

/// The folder of the libraries, for the compiler `rustc`; none if that is no package of this system.
///
/// # Errors
/// It is a package, and the one with its library for arm64 cannot be had.
pub fn folder(rustc: &Path, target: &str) -> Result<Option<PathBuf>, Failure> {
    let Some(package) = library_of(rustc) else {
        return Ok(None);
    };
    let cache = open_in(&cache::folder())?;
    let place = cache.place(&package);
    if !place.is_dir() {
        // Other sources than those of what guests boot: this computer may run another release.
        let mut apt = Apt::of_host(&cache.folder().join("apt-host"))?;
        let file = apt.exact(&package)?;
        let pattern = format!("*/rustlib/{target}/*");
        deb::unpack(&file, &[&pattern], &place)?;
    }
    let found = libraries(&place, target);
    found.map(Some).ok_or_else(|| {
        let what = format!("the package {} has no library for {target}", package.stem());
        Failure::environment(what, "", format!("delete {}", place.display()))
    })
}

/// Opens a part of the cache that has a lock of its own: programs are built, too, while the cache is locked, for what is put into a root file system.
fn open_in(cache: &Path) -> Result<Cache, Failure> {
    Cache::open_at(cache.join("rust"))
}

/// The package with the library that belongs to a compiler, for arm64, in the very version of the compiler's: the two have to be of one build.
fn library_of(rustc: &Path) -> Option<Package> {
    let rustc = rustc.canonicalize().ok()?;
    let query = |words: &[&str]| {
        let mut command = Command::new("dpkg-query");
        command::run(command.args(words), || "no package", "").ok()
    };
    let owner = query(&["--search", rustc.to_str()?])?;
    let owner = owner.lines().next()?.split(':').next()?.trim().to_owned();
    let version = query(&["--show", "--showformat=${Version}", &owner])?;
    Some(Package {
        name: library_name(&owner)?,
        version: version.trim().to_owned(),
        architecture: "arm64".to_owned(),
        depends: Vec::new(),
    })
}

/// `libstd-rust-web-dev` of `rustc-web`, `libstd-rust-1.89-dev` of `rustc-1.89`.
fn library_name(compiler: &str) -> Option<String> {
    let flavour = compiler.strip_prefix("rustc")?;
    Some(format!("libstd-rust{flavour}-dev"))
}

/// The folder of libraries in an unpacked package. Ubuntu's compilers of several versions have a folder each.
fn libraries(place: &Path, target: &str) -> Option<PathBuf> {
    let below = |folder: &Path| {
        let folder = folder.join("rustlib").join(target).join("lib");
        folder.is_dir().then_some(folder)
    };
    let lib = place.join("usr/lib");
    below(&lib).or_else(|| {
        let versions = lib.read_dir().ok()?.flatten();
        versions
            .map(|version| version.path().join("lib"))
            .find_map(|lib| below(&lib))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_got_while_a_root_file_system_is_made() {
        let folder = tempfile::tempdir().expect("folder");
        let _made = Cache::open_at(folder.path().to_owned()).expect("cache");
        open_in(folder.path()).expect("it has a lock of its own");
    }

    #[test]
    fn a_library_is_named_as_its_compiler() {
        for (compiler, library) in [
            ("rustc", "libstd-rust-dev"),
            ("rustc-web", "libstd-rust-web-dev"),
            ("rustc-1.89", "libstd-rust-1.89-dev"),
        ] {
            assert_eq!(library_name(compiler).as_deref(), Some(library));
        }
        assert_eq!(library_name("rustup"), None);
    }

    #[test]
    fn libraries_are_found_in_packages_of_both_kinds() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = "aarch64-unknown-linux-gnu";
        assert_eq!(libraries(folder.path(), target), None);
        let of = |lib: &str| {
            folder
                .path()
                .join(lib)
                .join("rustlib")
                .join(target)
                .join("lib")
        };
        std::fs::create_dir_all(of("usr/lib/rust-1.89/lib")).expect("a folder");
        assert_eq!(
            libraries(folder.path(), target),
            Some(of("usr/lib/rust-1.89/lib"))
        );
        std::fs::create_dir_all(of("usr/lib")).expect("a folder");
        assert_eq!(libraries(folder.path(), target), Some(of("usr/lib")));
    }
}

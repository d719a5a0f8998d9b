//! Archives of packages, and getting packages from them into the cache.

use std::path::PathBuf;

use bulkhead_model::failure::Failure;

use super::cache::{Cache, Unpacked};
use super::deb::{self, Package};

/// Source of packages.
pub trait Archive {
    /// The package of this name in the version to use; none when there is no such package.
    fn find(&mut self, name: &str, suite: Suite) -> Result<Option<Package>, Failure>;
    /// The files of these packages, in their order.
    fn get(&mut self, packages: &[Package]) -> Result<Vec<PathBuf>, Failure>;
    /// The names of all packages, sorted, where there are few.
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Suite of Debian that a package comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// The release itself.
    Stable,
    /// Newer versions that Debian builds for the release.
    Backports,
}

/// A package that has to exist.
pub(super) fn need(
    archive: &mut dyn Archive,
    name: &str,
    suite: Suite,
) -> Result<Package, Failure> {
    archive.find(name, suite)?.ok_or_else(|| missing(name))
}

/// The failure of a package that is not there, or not whole.
pub(super) fn missing(name: &str) -> Failure {
    Failure::environment(
        format!("the Debian package {name} for arm64 cannot be had"),
        "",
        "see that the mirror in apt's sources is complete, or add the package to the folder given with --from",
    )
}

/// Gets packages and unpacks them into the cache.
pub(super) fn unpacked(
    cache: &Cache,
    archive: &mut dyn Archive,
    packages: Vec<Package>,
    patterns: &[&str],
) -> Result<Vec<Unpacked>, Failure> {
    let new: Vec<_> = packages
        .iter()
        .filter(|p| !cache.place(p).is_dir())
        .cloned()
        .collect();
    for (package, file) in new.iter().zip(archive.get(&new)?) {
        deb::unpack(&file, patterns, &cache.place(package))?;
    }
    let place = |package: Package| Unpacked {
        folder: cache.place(&package),
        package,
    };
    Ok(packages.into_iter().map(place).collect())
}

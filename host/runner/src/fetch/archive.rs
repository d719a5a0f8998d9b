//! Archives of packages, and getting packages from them into the cache.

use std::collections::BTreeSet;
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
    /// Packages and all that they depend on, in an order in which they can be unpacked; nothing that is only recommended.
    fn closure(&mut self, names: &[&str]) -> Result<Vec<Package>, Failure> {
        let mut closure = Dependencies::default();
        for name in names {
            closure.add(self, name)?;
        }
        // What somebody else depends on may be virtual; what was asked for has to be there.
        let lacks = |name: &&&str| closure.found.iter().all(|package| package.name != **name);
        match names.iter().find(lacks) {
            Some(name) => Err(missing(name)),
            None => Ok(closure.found),
        }
    }
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

/// Packages behind those that they depend on.
#[derive(Debug, Default)]
struct Dependencies {
    /// In that order; in a cycle one of them comes too early.
    found: Vec<Package>,
    /// Names that were looked for.
    seen: BTreeSet<String>,
}

impl Dependencies {
    /// Adds a package behind what it depends on; nothing if there is none of this name, which may be virtual: if it is not, dpkg says what it lacks.
    fn add(&mut self, archive: &mut (impl Archive + ?Sized), name: &str) -> Result<(), Failure> {
        if !self.seen.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(package) = archive.find(name, Suite::Stable)? else {
            return Ok(());
        };
        for name in &package.depends {
            self.add(archive, name)?;
        }
        self.found.push(package);
        Ok(())
    }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// An archive of names and what they depend on.
    struct Names(BTreeMap<&'static str, &'static [&'static str]>);

    impl Archive for Names {
        fn find(&mut self, name: &str, _: Suite) -> Result<Option<Package>, Failure> {
            Ok(self.0.get(name).map(|depends| Package {
                name: name.to_owned(),
                version: "1".to_owned(),
                architecture: "arm64".to_owned(),
                depends: depends.iter().map(|name| (*name).to_owned()).collect(),
            }))
        }

        fn get(&mut self, _: &[Package]) -> Result<Vec<PathBuf>, Failure> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn packages_come_behind_what_they_depend_on_and_once() {
        let mut archive = Names(BTreeMap::from([
            ("bash", &["libc6", "a-virtual-one"][..]),
            ("libc6", &["libgcc-s1"][..]),
            // As in Debian: the two depend on each other.
            ("libgcc-s1", &["libc6", "gcc-base"][..]),
            ("gcc-base", &[][..]),
        ]));
        let names = |closure: Vec<Package>| -> Vec<String> {
            closure.into_iter().map(|package| package.name).collect()
        };
        let closure = archive.closure(&["bash", "libc6"]).expect("all there");
        assert_eq!(names(closure), ["gcc-base", "libgcc-s1", "libc6", "bash"]);
        let failure = archive
            .closure(&["bash", "a-virtual-one"])
            .expect_err("asked for");
        assert_eq!(
            failure.what,
            "the Debian package a-virtual-one for arm64 cannot be had"
        );
    }
}

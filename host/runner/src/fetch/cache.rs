//! Cache of downloads: outside the repository, shared by all checkouts, named by package version.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use bulkhead_model::failure::Failure;
use bulkhead_model::payload::DebianPayload;

use super::deb::Package;
use crate::temp_files;

/// The cache folder: `$BULKHEAD_CACHE`, `$XDG_CACHE_HOME/bulkhead` or `~/.cache/bulkhead`; without a
/// home folder, `target/cache` of the checkout. It need not exist yet.
pub fn folder() -> PathBuf {
    let named = |name: &str| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    named("BULKHEAD_CACHE")
        .or_else(|| named("XDG_CACHE_HOME").map(|base| base.join("bulkhead")))
        .or_else(|| named("HOME").map(|home| home.join(".cache/bulkhead")))
        .unwrap_or_else(|| bulkhead_model::checkout::root().join("target/cache"))
}

/// A package and where it is unpacked.
#[derive(Clone, Debug)]
pub struct Unpacked {
    /// Its control fields.
    pub package: Package,
    /// The root of its files.
    pub folder: PathBuf,
}

/// The packages chosen for each payload, as `chosen.json` in the cache keeps them.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Chosen(BTreeMap<String, Vec<Package>>);

thread_local! {
    /// The folders that this thread has locked: it would wait for itself for ever.
    static LOCKED: RefCell<BTreeSet<PathBuf>> = const { RefCell::new(BTreeSet::new()) };
}

/// The cache folder, locked against other processes and threads until dropped.
#[derive(Debug)]
pub struct Cache {
    /// The folder.
    folder: PathBuf,
    /// Holds the lock.
    _lock: File,
    /// The thread that has locked it drops it, too.
    _of_thread: PhantomData<*const ()>,
}

impl Drop for Cache {
    fn drop(&mut self) {
        LOCKED.with_borrow_mut(|locked| locked.remove(&self.folder));
    }
}

impl Cache {
    /// Opens the cache, making it if need be, and waits until no other process uses it.
    pub fn open() -> Result<Self, Failure> {
        Self::open_at(folder())
    }

    /// Opens the cache in `folder`.
    ///
    /// # Errors
    /// The folder cannot be used, or this thread has opened it already.
    pub fn open_at(folder: PathBuf) -> Result<Self, Failure> {
        if !LOCKED.with_borrow_mut(|locked| locked.insert(folder.clone())) {
            return Err(Failure::failed(
                format!(
                    "internal error: the cache {} is opened twice",
                    folder.display()
                ),
                "who opens it has it open",
                "this is a bug of this tool; please report it with what you have called",
            ));
        }
        let open = || {
            fs::create_dir_all(&folder)?;
            let lock = File::create(folder.join("lock"))?;
            flock(&lock, FlockOperation::LockExclusive)?;
            Ok(lock)
        };
        let lock = open().map_err(|e: std::io::Error| {
            LOCKED.with_borrow_mut(|locked| locked.remove(&folder));
            let what = format!("cannot use the cache folder {}", folder.display());
            Failure::environment(
                what,
                e,
                "set BULKHEAD_CACHE to a folder that you may write to",
            )
        })?;
        Ok(Self {
            folder,
            _lock: lock,
            _of_thread: PhantomData,
        })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder into which a package is unpacked, whether it is there yet or not.
    pub fn place(&self, package: &Package) -> PathBuf {
        self.folder.join("unpacked").join(package.stem())
    }

    /// The packages chosen for a payload; none if none were, or if one of them is gone.
    pub fn chosen(&self, payload: DebianPayload) -> Result<Option<Vec<Unpacked>>, Failure> {
        let Some(packages) = self.packages(payload)? else {
            return Ok(None);
        };
        let unpacked = packages.into_iter().map(|package| {
            let folder = self.place(&package);
            folder.is_dir().then_some(Unpacked { package, folder })
        });
        Ok(unpacked.collect())
    }

    /// The packages chosen for a payload, unpacked one by one or not; none if none were.
    pub fn packages(&self, payload: DebianPayload) -> Result<Option<Vec<Package>>, Failure> {
        Ok(self.read()?.0.remove(payload.name()))
    }

    /// Writes the choice for a payload down.
    pub fn choose(&self, payload: DebianPayload, packages: &[Unpacked]) -> Result<(), Failure> {
        let packages = packages.iter().map(|unpacked| unpacked.package.clone());
        self.note(payload, packages.collect())
    }

    /// Writes down the choice for a payload whose packages are not unpacked one by one.
    pub fn note(&self, payload: DebianPayload, packages: Vec<Package>) -> Result<(), Failure> {
        let mut chosen = self.read()?;
        chosen.0.insert(payload.name().to_owned(), packages);
        let text = serde_json::to_string_pretty(&chosen)
            .map_err(|e| Failure::environment("cannot write the choice of packages", e, ""))?;
        self.write(Path::new("chosen.json"), text.as_bytes())?;
        Ok(())
    }

    /// Writes a file under the cache so that it is either whole or not there; gives its path.
    pub fn write(&self, name: &Path, data: &[u8]) -> Result<PathBuf, Failure> {
        let path = self.folder.join(name);
        let write = || {
            let parent = path.parent().unwrap_or(&self.folder);
            fs::create_dir_all(parent)?;
            temp_files::write(&path, data)
        };
        write().map_err(|e: std::io::Error| {
            let what = format!("cannot write {}", path.display());
            Failure::environment(what, e, "see that the disk has room")
        })?;
        Ok(path)
    }

    /// Returns the choices so far; none when the file does not exist or is of another version.
    fn read(&self) -> Result<Chosen, Failure> {
        let path = self.folder.join("chosen.json");
        match fs::read(&path) {
            Ok(text) => Ok(serde_json::from_slice(&text).unwrap_or_default()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Chosen::default()),
            Err(e) => Err(Failure::environment(
                format!("cannot read {}", path.display()),
                e,
                "make it readable, or delete it",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_it_open_is_told_so_instead_of_waiting_for_himself() {
        let folder = tempfile::tempdir().expect("folder");
        let open = || Cache::open_at(folder.path().to_owned());
        let first = open().expect("cache");
        assert!(open().is_err());
        drop(first);
        drop(open().expect("it is free again"));
        let file = folder.path().join("file");
        fs::write(&file, "").expect("file");
        let no_folder = || {
            Cache::open_at(file.clone())
                .expect_err("it is a file")
                .to_string()
        };
        assert_eq!(no_folder(), no_folder());
    }

    #[test]
    fn a_choice_holds_until_a_package_of_it_is_gone() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let cache = Cache::open_at(folder.path().join("with space")).expect("cache");
        let package = Package {
            name: "busybox-static".into(),
            version: "1:1.35".into(),
            architecture: "arm64".into(),
            depends: Vec::new(),
        };
        let place = cache.place(&package);
        fs::create_dir_all(&place).expect("unpacked package");
        let unpacked = Unpacked {
            package: package.clone(),
            folder: place.clone(),
        };
        cache
            .choose(DebianPayload::Initramfs, &[unpacked])
            .expect("written");
        let chosen = cache.chosen(DebianPayload::Initramfs).expect("readable");
        assert_eq!(chosen.map(|list| list[0].package.clone()), Some(package));
        assert!(
            cache
                .chosen(DebianPayload::Kernel)
                .expect("readable")
                .is_none()
        );
        fs::remove_dir(place).expect("removed");
        assert!(
            cache
                .chosen(DebianPayload::Initramfs)
                .expect("readable")
                .is_none()
        );
    }
}

//! Packages from a folder of `.deb` files, for machines without a network. Nothing is verified: the
//! folder is the user's own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bulkhead_model::failure::Failure;

use super::archive::{Archive, Suite};
use super::deb::{self, Package};

/// The packages in one folder, by name.
#[derive(Debug)]
pub struct Folder {
    /// The folder, for messages.
    path: PathBuf,
    /// Control fields and file of each package.
    packages: BTreeMap<String, (Package, PathBuf)>,
}

impl Folder {
    /// Reads the control fields of every `.deb` in `path`.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |e: std::io::Error| {
            let what = format!("cannot read the folder {}", path.display());
            Failure::input(what, e, "give a folder of .deb files with --from")
        };
        let mut packages = BTreeMap::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            if file.extension().is_some_and(|extension| extension == "deb") {
                let package = deb::read(&file)?;
                let name = package.name.clone();
                if let Some((_, other)) = packages.insert(name.clone(), (package, file.clone())) {
                    let why = format!("{}\n{}", other.display(), file.display());
                    let what = format!("two files give the package {name}");
                    return Err(Failure::input(what, why, "delete one of the two"));
                }
            }
        }
        Ok(Self {
            path: path.to_owned(),
            packages,
        })
    }
}

impl Archive for Folder {
    fn find(&mut self, name: &str, _: Suite) -> Result<Option<Package>, Failure> {
        Ok(self.packages.get(name).map(|(package, _)| package.clone()))
    }

    fn get(&mut self, packages: &[Package]) -> Result<Vec<PathBuf>, Failure> {
        let file = |package: &Package| {
            let found = self.packages.get(&package.name);
            found.map(|(_, file)| file.clone()).ok_or_else(|| {
                let what = format!("no {}.deb in {}", package.stem(), self.path.display());
                Failure::environment(what, "", "add it to the folder")
            })
        };
        packages.iter().map(file).collect()
    }

    fn names(&self) -> Vec<String> {
        self.packages.keys().cloned().collect()
    }
}

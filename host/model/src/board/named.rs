//! Boards by name: `boards/NAME/board.toml` beside a description or above it, or Bulkhead's own.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use bulkhead_abi::plan::Memory;
use serde::Deserialize;

use super::emulated::{self, Emulated, EmulatedTree};
use super::facts::gic_version;
use super::firmware::Firmware;
use super::open::MOST_BYTES;
use super::plan_error::PlanError;
use crate::checkout;
use crate::describe::{BoardSpec, Code, Finding, Placed, memory_ranges, nearest};
use crate::failure::Failure;

/// Kind of board that a `board.toml` describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A board that QEMU emulates.
    Emulated,
    /// A board with a device tree of its own.
    Imported,
}

/// A board that descriptions can name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Name.
    pub name: String,
    /// Its `board.toml`.
    pub file: PathBuf,
}

/// `board.toml` of an imported board.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Imported {
    dtb: PathBuf,
    firmware: Option<Firmware>,
    /// Memory, where the tree leaves that to the firmware.
    memory_ranges: Option<Ranges>,
}

/// One range of memory or several, as they stand in a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Ranges {
    One(String),
    Several(Vec<String>),
}

/// What the `board.toml` of an imported board says besides its tree.
#[derive(Default)]
pub struct Stated {
    /// Its firmware.
    pub firmware: Option<Firmware>,
    /// Its memory, if its tree does not tell of any.
    pub memory: Vec<Memory>,
}

/// A board that was found.
pub(super) enum Resolved {
    /// QEMU has it.
    Emulated(Emulated),
    /// Its device tree, as it is in the file, and what its `board.toml` says besides.
    Tree(Vec<u8>, Stated),
}

impl Named {
    /// Its `board.toml` is wrong.
    fn broken(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::input(
            format!("{} is wrong", self.file.display()),
            why,
            "correct it (docs/reference/boards.md), or import the board once more with --force",
        )
    }

    fn text(&self) -> Result<String, Failure> {
        fs::read_to_string(&self.file).map_err(|why| self.broken(&why))
    }

    /// Its `board.toml`, if it has a device tree of its own.
    fn imported(&self) -> Result<Option<Imported>, Failure> {
        let text = self.text()?;
        let table: toml::Table = toml::from_str(&text).map_err(|why| self.broken(&why))?;
        if !table.contains_key("dtb") {
            return Ok(None);
        }
        let file: Imported = toml::from_str(&text).map_err(|why| self.broken(&why))?;
        let folder = self.file.parent().unwrap_or(Path::new("."));
        let dtb = folder.join(&file.dtb);
        Ok(Some(Imported { dtb, ..file }))
    }

    /// The file of its device tree, if it has one.
    ///
    /// # Errors
    /// Its `board.toml` cannot be understood.
    pub fn dtb(&self) -> Result<Option<PathBuf>, Failure> {
        Ok(self.imported()?.map(|file| file.dtb))
    }

    /// The board as QEMU emulates it by default.
    fn defaults(&self) -> Result<Emulated, Failure> {
        emulated::defaults(&self.text()?).map_err(|why| self.broken(&why))
    }

    /// What its `board.toml` says of its firmware, if a description says nothing.
    ///
    /// # Errors
    /// Its `board.toml` cannot be understood.
    pub fn firmware(&self) -> Result<Option<Firmware>, Failure> {
        match self.imported()? {
            Some(file) => Ok(file.firmware),
            None => Ok(Some(self.defaults()?.firmware)),
        }
    }

    /// What its `board.toml` says of its memory, if a description says nothing; only that of an imported board can.
    ///
    /// # Errors
    /// Its `board.toml` cannot be understood.
    pub fn memory(&self) -> Result<Vec<Memory>, Failure> {
        let stated = self.imported()?.and_then(|file| file.memory_ranges);
        let texts = match stated {
            None => return Ok(Vec::new()),
            Some(Ranges::One(text)) => vec![text],
            Some(Ranges::Several(texts)) => texts,
        };
        memory_ranges(&texts).map_err(|why| self.broken(&why))
    }

    /// Version of its GIC, if a description says nothing.
    ///
    /// # Errors
    /// Its `board.toml` cannot be understood, or the file of its tree cannot be read.
    pub fn gic(&self) -> Result<u32, Failure> {
        match self.dtb()? {
            Some(dtb) => Ok(gic_version(read(&dtb)?)),
            None => Ok(self.defaults()?.gic),
        }
    }

    /// Reads which kind of board it is.
    ///
    /// # Errors
    /// Its `board.toml` cannot be understood.
    pub fn kind(&self) -> Result<Kind, Failure> {
        Ok(self.dtb()?.map_or(Kind::Emulated, |_| Kind::Imported))
    }

    /// The bytes of its device tree: its file, or the emulator's for the default parameters, which `emulated_tree` asks for.
    ///
    /// # Errors
    /// The file, or QEMU, is missing, or `board.toml` cannot be understood.
    pub fn bytes(&self, emulated_tree: EmulatedTree) -> Result<Vec<u8>, Failure> {
        if let Some(dtb) = self.dtb()? {
            return read(&dtb);
        }
        emulated_tree(&self.defaults()?)
    }
}

/// Reads a file that should be a device tree, so far as one can be long.
///
/// # Errors
/// There is no such file, or it cannot be read, or is larger than any tree.
pub fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let what = || format!("cannot read the device tree {}", file.display());
    let refuse = |why: &dyn std::fmt::Display, help: &str| Failure::input(what(), why, help);
    let bytes = read_some(file).map_err(|why| refuse(&why, "give the path of a .dtb file"))?;
    if bytes.len() > 2 * MOST_BYTES {
        let why = format!("it has more than {} bytes", 2 * MOST_BYTES);
        return Err(refuse(
            &why,
            "no device tree is so large; give the path of a .dtb file",
        ));
    }
    Ok(bytes)
}

/// The bytes of a file, a few more than a tree may have at most: it may be a device that never ends.
pub(super) fn read_some(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = 2 * MOST_BYTES as u64 + 1;
    fs::File::open(file)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether a board may have this name.
pub fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// Folders that hold boards, nearest first: `boards` in `start` and in each folder above it, then Bulkhead's own.
fn folders(start: &Path) -> Vec<PathBuf> {
    // The current folder has no name of its own in a relative path.
    let start = if start == Path::new("") {
        Path::new(".")
    } else {
        start
    };
    let start = start.canonicalize().unwrap_or_else(|_| start.to_owned());
    let mut folders: Vec<PathBuf> = start.ancestors().map(|one| one.join("boards")).collect();
    let own = checkout::root().join("boards");
    folders.push(own.canonicalize().unwrap_or(own));
    let mut seen = Vec::new();
    folders.retain(|folder| {
        let new = !seen.contains(folder);
        seen.push(folder.clone());
        new && folder.is_dir()
    });
    folders
}

/// All boards that a description in `start` can name, sorted; of several with a name the nearest.
pub fn all(start: &Path) -> Vec<Named> {
    let mut boards: Vec<Named> = Vec::new();
    for folder in folders(start) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let file = entry.path().join("board.toml");
            let known = boards.iter().any(|board| board.name == name);
            if is_name(&name) && file.is_file() && !known {
                boards.push(Named { name, file });
            }
        }
    }
    boards.sort_by(|one, other| one.name.cmp(&other.name));
    boards
}

/// The board `name` as a description in `start` finds it.
pub fn find(name: &str, start: &Path) -> Option<Named> {
    all(start).into_iter().find(|board| board.name == name)
}

/// Finds the board `name` for a description in `folder` and applies its parameters.
pub(super) fn resolve(
    name: &Placed<String>,
    folder: &Path,
    spec: &BoardSpec,
    findings: &mut Vec<Finding>,
) -> Result<Resolved, PlanError> {
    let boards = all(folder);
    let Some(board) = boards.iter().find(|board| board.name == name.value) else {
        let known: Vec<&str> = boards.iter().map(|board| board.name.as_str()).collect();
        let hint = nearest(&name.value, known.iter().copied()).map_or_else(
            || {
                format!(
                    "the boards are {}; `bulkhead board import BOARD.dtb` adds another",
                    known.join(", ")
                )
            },
            |known| format!("did you mean `{known}`?"),
        );
        findings.push(
            Finding::new(
                Code::BoardUnknown,
                format!("there is no board `{}`", name.value),
            )
            .at(name.span.clone(), "no such folder in boards/")
            .help(hint),
        );
        return Err(PlanError::Description);
    };
    if let Some(dtb) = board.dtb()? {
        let stated = Stated {
            firmware: board.firmware()?,
            memory: board.memory()?,
        };
        return Ok(Resolved::Tree(read(&dtb)?, stated));
    }
    let text = board.text()?;
    emulated::resolve(&text, |why| board.broken(&why), spec, findings).map(Resolved::Emulated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_board_of_a_name_is_taken() {
        let top = tempfile::tempdir().expect("folder");
        let below = top.path().join("systems/mine");
        for folder in [top.path(), &below] {
            let board = folder.join("boards/there");
            fs::create_dir_all(&board).expect("folder");
            fs::write(board.join("board.toml"), "dtb = \"board.dtb\"\n").expect("file");
        }
        fs::create_dir_all(top.path().join("boards/no-board")).expect("folder");
        let found = |start: &Path| find("there", start).expect("found").file;
        let place = |folder: &Path| {
            let folder = folder.canonicalize().expect("folder");
            folder.join("boards/there/board.toml")
        };
        assert_eq!(found(&below), place(&below));
        assert_eq!(found(&top.path().join("systems")), place(top.path()));
        let names: Vec<String> = all(&below).into_iter().map(|board| board.name).collect();
        assert_eq!(
            names,
            [
                "imx8mp-evk",
                "qemu-virt",
                "qemu-virt-8250",
                "raspi4b",
                "raspi4b-mini",
                "there",
                "zcu102"
            ]
        );
        assert_eq!(find("there", Path::new("/")), None);
    }

    #[test]
    fn a_board_file_that_says_anything_else_is_refused() {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("board.toml");
        let board = Named {
            name: "mine".to_owned(),
            file: file.clone(),
        };
        fs::write(&file, "dtb = \"board.dtb\"\nconsole = \"/x\"\n").expect("file");
        let failure = board.kind().expect_err("an unknown key");
        assert!(failure.why.contains("console"), "{failure}");
        fs::write(&file, "dtb = \"board.dtb\"\n").expect("file");
        assert_eq!(board.kind().expect("sound"), Kind::Imported);
        assert_eq!(board.firmware().expect("sound"), None);
        let known = "dtb = \"board.dtb\"\nfirmware = \"tf-a-no-sdei\"\n";
        fs::write(&file, known).expect("file");
        let known = Firmware::TrustedFirmware { sdei: false };
        assert_eq!(board.firmware().expect("sound"), Some(known));
        fs::write(&file, "dtb = \"board.dtb\"\nfirmware = \"tfa\"\n").expect("file");
        let failure = board.firmware().expect_err("no such word");
        let wanted = "\
TOML parse error at line 2, column 12
  |
2 | firmware = \"tfa\"
  |            ^^^^^
there is no firmware `tfa`; it is one of none, el3, tf-a, tf-a-no-sdei";
        assert_eq!(failure.why.trim_end(), wanted);
        assert!(failure.advice.contains("boards.md"), "{failure}");
        let ranges = "memory_ranges = \"1GiB at 0x40000000\"\n";
        fs::write(&file, format!("dtb = \"board.dtb\"\n{ranges}")).expect("file");
        let memory = board.memory().expect("sound");
        assert_eq!((memory[0].base, memory[0].size), (0x4000_0000, 1 << 30));
        fs::write(&file, "dtb = \"board.dtb\"\nmemory_ranges = [\"1GiB\"]\n").expect("file");
        let failure = board.memory().expect_err("no range");
        assert!(failure.why.contains("`1GiB` is no range"), "{failure}");
        fs::write(&file, "dtb = \"board.dtb\"\n").expect("file");
        let failure = board
            .bytes(&|_| unreachable!("it is not emulated"))
            .expect_err("no such file");
        assert!(failure.what.contains("board.dtb"), "{failure}");
    }
}

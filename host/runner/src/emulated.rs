//! Boards that QEMU emulates: QEMU for such a board, and the device tree that it has.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dtoolkit::fdt::Fdt;
use dtoolkit::model::DeviceTree;
use sha2::{Digest, Sha256};

use bulkhead_model::board::{Emulated, open, read_file};
use bulkhead_model::failure::Failure;

use crate::card;
use crate::fetch::firmware::{self, TrustedFirmware};
use crate::fetch::{self, cache};
use crate::run::{Qemu, Start};
use crate::temp_files;

/// QEMU for this board with `image`, which is at `base` on it.
///
/// # Errors
/// The tree that QEMU is to be given, or a program that comes before the image, cannot be had.
pub fn qemu(board: &Emulated, image: impl Into<PathBuf>, base: u64) -> Result<Qemu, Failure> {
    let mut qemu = Qemu::virt(image, &board.cpu, board.cpus, board.memory_mib);
    qemu.machine.clone_from(&board.machine);
    qemu.tree = given_tree(board)?;
    qemu.options.clone_from(&board.options);
    qemu.before = board.before;
    qemu.uarts = board.uarts;
    if board.firmware.is_present() {
        // With ACPI and firmware QEMU has another device in the place of the PL061.
        qemu.machine.push_str(",secure=on,acpi=off");
    }
    if let Some(build) = TrustedFirmware::of(board) {
        qemu.start = Start::Firmware {
            rom: build.file(),
            image: firmware::ENTRY,
        };
    }
    if let Some(card) = &board.card {
        qemu.card = Some(card.device.clone());
        qemu.start = Start::Before {
            program: kept("first", "img", &card::program(&card.writes, base))?,
            image: base,
        };
    }
    Ok(qemu)
}

/// The file of the tree that QEMU is given, fetched if need be.
fn given_tree(board: &Emulated) -> Result<Option<PathBuf>, Failure> {
    if let Some(card) = &board.card {
        let machine = Emulated {
            card: None,
            ..board.clone()
        };
        let change = |tree: &mut DeviceTree| card::add(card, tree);
        return changed(device_tree(&machine)?, &change).map(Some);
    }
    let name = board.tree.as_deref();
    let name = name.map(|name| name.strip_prefix("debian:").unwrap_or(name));
    let file = name.map(fetch::device_tree).transpose()?;
    match (file, &board.console) {
        (Some(file), Some(console)) => {
            let change = |tree: &mut DeviceTree| card::name_console(tree, console);
            changed(read_file(&file)?, &change).map(Some)
        }
        (file, _) => Ok(file),
    }
}

/// The device tree that QEMU makes for this board, or what it makes of the one that it is given, from the cache if it is there.
/// Trusted Firmware takes that tree.
pub fn device_tree(board: &Emulated) -> Result<Vec<u8>, Failure> {
    // Nothing starts it.
    let qemu = qemu(board, "", 0)?;
    let program = qemu.program;
    let version = version(&program)?;
    let key = format!("{version}\n{board:?}\n{:?}", qemu.tree);
    let name = format!("{}.dtb", digest(key.as_bytes()));
    let file = keep(&name, |place| {
        dump(board, (&program, qemu.tree.as_deref()), place)
    })?;
    read_file(&file)
}

/// Lets QEMU write the device tree of this board, which it makes, or gets and corrects.
fn dump(
    board: &Emulated,
    (program, tree): (&Path, Option<&Path>),
    file: &Path,
) -> Result<(), Failure> {
    // Seeds in a dump would make every dump another board. Into a tree that it gets QEMU puts none.
    let seeds = tree.map_or(",dtb-randomness=off", |_| "");
    let output = Command::new(program)
        .args(["-nodefaults", "-display", "none"])
        .args(&board.options)
        .args(
            tree.iter()
                .flat_map(|tree| [OsStr::new("-dtb"), tree.as_os_str()]),
        )
        .arg("-machine")
        .arg(format!(
            "{}{seeds},dumpdtb={}",
            board.machine,
            file.display()
        ))
        .args(["-cpu", &board.cpu, "-smp", &board.cpus.to_string()])
        .args(["-m", &format!("{}M", board.memory_mib)])
        .args((0..board.uarts).flat_map(|_| ["-serial", "null"]))
        .output()
        .map_err(|why| missing(program, why))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::environment(
        "QEMU does not give the board's device tree",
        String::from_utf8_lossy(&output.stderr),
        "Bulkhead needs QEMU 7.0 or later, and one that has the machine: 9.0 for raspi4b, 10.0 for imx8mp-evk",
    ))
}

/// A tree with a change, which says what it lacks for that: a file in the cache.
fn changed(
    bytes: Vec<u8>,
    change: &dyn Fn(&mut DeviceTree) -> Result<(), String>,
) -> Result<PathBuf, Failure> {
    let broken = |why: String| {
        let what = "cannot use the device tree of the board";
        Failure::failed(what, why, "delete the cache; it is fetched again")
    };
    let bytes = open(bytes).map_err(|why| broken(format!("it is {why}")))?;
    let fdt = Fdt::new(&bytes).map_err(|why| broken(why.to_string()))?;
    let mut tree = DeviceTree::from_fdt(&fdt);
    change(&mut tree).map_err(broken)?;
    kept("given", "dtb", &tree.to_dtb())
}

/// A file of the cache with these bytes.
fn kept(name: &str, ending: &str, bytes: &[u8]) -> Result<PathBuf, Failure> {
    keep(&format!("{name}-{}.{ending}", digest(bytes)), |place| {
        let what = || format!("cannot write {}", place.display());
        fs::write(place, bytes).map_err(|why| Failure::environment(what(), why, ""))
    })
}

/// A name for bytes.
fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let first = digest.iter().take(8);
    first.map(|byte| format!("{byte:02x}")).collect()
}

/// A file of the cache: if it is not there yet, `make` writes it.
fn keep(name: &str, make: impl FnOnce(&Path) -> Result<(), Failure>) -> Result<PathBuf, Failure> {
    let folder = cache::folder().join("boards");
    let file = folder.join(name);
    if file.is_file() {
        return Ok(file);
    }
    let trouble = |why: std::io::Error| {
        Failure::environment(
            format!(
                "cannot keep the board's device tree in {}",
                folder.display()
            ),
            why,
            "set BULKHEAD_CACHE to a folder that can be written",
        )
    };
    fs::create_dir_all(&folder).map_err(trouble)?;
    // Written beside it and renamed, so that nobody ever reads half of it.
    let temporary = temp_files::file_in(&folder).map_err(trouble)?;
    make(temporary.value.path())?;
    temporary
        .value
        .persist(&file)
        .map_err(|error| trouble(error.error))?;
    Ok(file)
}

/// First line of `qemu --version`.
fn version(program: &Path) -> Result<String, Failure> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(|why| missing(program, why))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// QEMU does not run.
fn missing(program: &Path, why: std::io::Error) -> Failure {
    Failure::environment(
        format!("cannot run {}", program.display()),
        why,
        "install QEMU (Debian and Ubuntu: package qemu-system-arm), or run the tool through `./bulkhead`, which does",
    )
}

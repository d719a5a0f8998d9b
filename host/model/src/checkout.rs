//! The checkout of Bulkhead that the tool works on, and the guest programs in it.

use std::env;
use std::path::{Path, PathBuf};

/// Folders of programs in C: of Linux, and guests without an operating system.
const LINUX_PROGRAMS: &str = "guests/linux-c";
const C_GUESTS: &str = "guests/c";
/// Programs of the Linux that manages a board, each a package of its own.
const MGMT: &str = "mgmt";
/// Programs in Rust of any Linux, and their package.
const CHANNEL_PROGRAMS: &str = "channel/linux/src/bin";
const CHANNEL_PACKAGE: &str = "bulkhead-channel-linux";
/// What all guests in C are made with, none by itself.
const C_SUPPORT: &str = "guest";

/// A program in C.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CProgram {
    /// Of Linux: its source.
    Linux(PathBuf),
    /// A guest: its sources, and the linker's script.
    Guest([PathBuf; 3], PathBuf),
}

/// The folder of the checkout: `$BULKHEAD_ROOT`, else the one that this tool was built from.
pub fn root() -> PathBuf {
    env::var_os("BULKHEAD_ROOT").map_or_else(
        || {
            let host = Path::new(env!("CARGO_MANIFEST_DIR"));
            host.ancestors().nth(2).unwrap_or(host).to_owned()
        },
        PathBuf::from,
    )
}

/// The package with all the small guest programs.
pub const SMALL_GUESTS: &str = "bulkhead-guests";

/// The package that makes a guest program: the one with all the small ones, or one of a few programs, or of one, that stand on
/// somebody's framework.
pub fn guest_package(guest: &str) -> Option<String> {
    let guests = root().join("guests");
    let program = format!("src/bin/{guest}.rs");
    if guests.join(&program).is_file() {
        return Some(SMALL_GUESTS.to_owned());
    }
    let has_it = |folder: &PathBuf| folder.ends_with(guest) || folder.join(&program).is_file();
    let package = packages(&guests).into_iter().find(has_it)?;
    Some(format!(
        "bulkhead-guest-{}",
        package.file_name()?.to_string_lossy()
    ))
}

/// Returns the program in C of that name, if there is one.
pub fn c_program(name: &str) -> Option<CProgram> {
    let source = |folder: &str, name: &str| root().join(folder).join(name);
    let linux = source(LINUX_PROGRAMS, &format!("{name}.c"));
    if linux.is_file() {
        return Some(CProgram::Linux(linux));
    }
    let guest = source(C_GUESTS, &format!("{name}.c"));
    let support = |name| source(C_GUESTS, name);
    (name != C_SUPPORT && guest.is_file()).then(|| {
        let sources = [support("start.S"), support("guest.c"), guest];
        CProgram::Guest(sources, support("guest.ld"))
    })
}

/// The package that makes a program in Rust of Linux: for the one that manages a board, or one that is an end of a channel.
pub fn linux_package(name: &str) -> Option<String> {
    let main = Path::new(name).join("src/main.rs");
    if name.contains('/') {
        return None;
    }
    if root().join(MGMT).join(main).is_file() {
        return Some(name.to_owned());
    }
    let program = root().join(CHANNEL_PROGRAMS).join(format!("{name}.rs"));
    program.is_file().then(|| CHANNEL_PACKAGE.to_owned())
}

/// The folders of packages of guest programs beside that of the small ones.
fn packages(guests: &Path) -> Vec<PathBuf> {
    let entries = guests.read_dir().into_iter().flatten().flatten();
    let folders = entries.map(|entry| entry.path());
    folders
        .filter(|folder| folder.join("Cargo.toml").is_file())
        .collect()
}

/// Whether there is a guest program of that name.
pub fn is_guest(name: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let is_there = || guest_package(name).is_some() || c_program(name).is_some();
    name.chars().all(plain) && (is_there() || linux_package(name).is_some())
}

/// The names of all guest programs, sorted.
pub fn guest_names() -> Vec<String> {
    let guests = root().join("guests");
    let own = packages(&guests);
    let several = own.iter().map(|package| package.join("src/bin"));
    let folders = [guests.join("src/bin"), guests.clone()]
        .into_iter()
        .chain(several);
    let entries = folders.filter_map(|folder| folder.read_dir().ok());
    let mut names: Vec<_> = entries
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.path().file_stem()?.to_string_lossy().into_owned();
            guest_package(&name).map(|_| name)
        })
        .collect();
    let folders = [LINUX_PROGRAMS, C_GUESTS].map(|folder| root().join(folder).read_dir());
    names.extend(
        folders
            .into_iter()
            .flatten()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.path().file_stem()?.to_string_lossy().into_owned();
                c_program(&name).map(|_| name)
            }),
    );
    let in_rust = [MGMT, CHANNEL_PROGRAMS].map(|folder| root().join(folder).read_dir());
    let in_rust = in_rust.into_iter().flatten().flatten().flatten();
    names.extend(in_rust.filter_map(|entry| {
        let name = entry.path().file_stem()?.to_string_lossy().into_owned();
        linux_package(&name).map(|_| name)
    }));
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_programs_have_a_package_in_common_or_one_of_their_own() {
        for known in ["control-net", "embassy", "hello", "tcp"] {
            assert!(guest_names().contains(&known.to_owned()), "{known}");
        }
        for linux in ["bulkheadctl", "bulkheadd", "channel-end-rust"] {
            assert!(guest_names().contains(&linux.to_owned()) && is_guest(linux));
        }
        assert!(!is_guest("fake-el2"), "a library");
        for in_c in ["c-loop", "loop-talk", "measured", "traced"] {
            assert!(guest_names().contains(&in_c.to_owned()), "{in_c}");
        }
        assert!(!is_guest("guest"), "no program by itself");
        assert_eq!(
            guest_package("embassy").as_deref(),
            Some("bulkhead-guest-embassy")
        );
        assert_eq!(
            guest_package("control-net").as_deref(),
            Some("bulkhead-guest-tcp")
        );
    }
}

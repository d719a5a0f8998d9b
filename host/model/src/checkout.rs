//! The checkout of Bulkhead that the tool works on, and the guest programs in it.

use std::env;
use std::path::{Path, PathBuf};

/// Folder of programs of Linux in C.
const LINUX_PROGRAMS: &str = "guests/linux-c";

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

/// The package that makes a guest program: the one with all the small ones, or one of a few programs, or of one, that stand on
/// somebody's framework.
pub fn guest_package(guest: &str) -> Option<String> {
    let guests = root().join("guests");
    let program = format!("src/bin/{guest}.rs");
    if guests.join(&program).is_file() {
        return Some("bulkhead-guests".to_owned());
    }
    let has_it = |folder: &PathBuf| folder.ends_with(guest) || folder.join(&program).is_file();
    let package = packages(&guests).into_iter().find(has_it)?;
    Some(format!(
        "bulkhead-guest-{}",
        package.file_name()?.to_string_lossy()
    ))
}

/// Returns the source of a program of Linux in C, of that name: a folder of them lies beside the guests.
pub fn linux_program(name: &str) -> Option<PathBuf> {
    let source = root().join(LINUX_PROGRAMS).join(format!("{name}.c"));
    source.is_file().then_some(source)
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
    name.chars().all(plain) && (guest_package(name).is_some() || linux_program(name).is_some())
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
    let programs = root().join(LINUX_PROGRAMS).read_dir().into_iter().flatten();
    names.extend(programs.flatten().filter_map(|entry| {
        let name = entry.path().file_stem()?.to_string_lossy().into_owned();
        linux_program(&name).map(|_| name)
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

//! The tool's own programs, which tests start as users do.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{env, io};

/// What the kernel puts behind the name of a program whose file is another one by now.
const REPLACED: &[u8] = b" (deleted)";

/// The program `bulkhead`, which the script builds beside this one.
///
/// # Errors
/// This program does not know where it is.
pub fn path() -> io::Result<PathBuf> {
    Ok(driver()?.with_file_name("bulkhead"))
}

/// This program. A test that builds the tool may have put a new file in the place of the one that runs, which is as good.
///
/// # Errors
/// This program does not know where it is.
pub fn driver() -> io::Result<PathBuf> {
    Ok(in_its_place(env::current_exe()?))
}

/// The file that stands where a program was started from.
fn in_its_place(program: PathBuf) -> PathBuf {
    let name = program.as_os_str().as_bytes();
    match name.strip_suffix(REPLACED) {
        Some(place) if !program.exists() => Path::new(OsStr::from_bytes(place)).to_owned(),
        _ => program,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_that_was_built_anew_while_it_runs() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        assert_eq!(in_its_place(place("tool (deleted)")), place("tool"));
        assert_eq!(in_its_place(place("tool")), place("tool"));
        std::fs::write(place("odd (deleted)"), "").unwrap();
        assert_eq!(in_its_place(place("odd (deleted)")), place("odd (deleted)"));
    }
}

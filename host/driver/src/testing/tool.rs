//! The user's tool, which tests start as users do.

use std::path::PathBuf;
use std::{env, io};

/// The program `bulkhead`, which the script builds beside this one.
///
/// # Errors
/// This program does not know where it is.
pub fn path() -> io::Result<PathBuf> {
    Ok(env::current_exe()?.with_file_name("bulkhead"))
}

//! Calls of cargo, and the lines of its output that matter.

use std::path::PathBuf;
use std::process::Command;

/// Cargo of the toolchain that `./bulkhead` chose, for programs of the host.
pub fn cargo() -> Command {
    let program = std::env::var_os("BULKHEAD_CARGO").map_or_else(|| "cargo".into(), PathBuf::from);
    let mut command = Command::new(&program);
    // The compiler and the formatter of the same toolchain, not the first on the path.
    let folder = program.parent().filter(|_| program.is_absolute());
    if let (Some(folder), Some(path)) = (folder, std::env::var_os("PATH")) {
        let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
        if let Ok(path) = std::env::join_paths(folders) {
            command.env("PATH", path);
        }
    }
    command
}

/// The lines of the output of cargo or of tests that tell what is wrong; its end if none does.
pub fn interesting(text: &str) -> Vec<String> {
    const MOST: usize = 60;
    let lines: Vec<_> = text.lines().collect();
    let telling = |line: &&str| {
        line.starts_with("error") || line.starts_with("Diff in") || line.starts_with("---- ")
    };
    let first = lines
        .iter()
        .position(telling)
        .unwrap_or(lines.len().saturating_sub(MOST));
    lines[first..]
        .iter()
        .take(MOST)
        .map(|line| (*line).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_starts_at_the_first_error() {
        let text = "   Compiling x\nerror[E0308]: mismatched types\n --> a.rs:1:2\n";
        assert_eq!(interesting(text)[0], "error[E0308]: mismatched types");
        assert_eq!(interesting("a\nb\n"), ["a", "b"]);
    }
}

//! Descriptions that tests make. They lie in `out/test/systems/`, where `check`, `plan`, `build` and `run` can use them, too.

use std::fs;
use std::path::{Path, PathBuf};

use super::suite::Context;

/// Versions of the GIC that QEMU's `virt` can have.
pub const GICS: [u8; 2] = [2, 3];

/// Writes a description, whole at any time: tests that run at the same time may share it. `name` is that of the system.
///
/// # Errors
///
/// It cannot be written.
pub fn write(context: &Context, name: &str, text: &str) -> Result<PathBuf, String> {
    let folder = context.logs.join("systems");
    let path = folder.join(format!("{name}.toml"));
    let written = fs::create_dir_all(&folder).and_then(|()| {
        let partial = tempfile::NamedTempFile::new_in(&folder)?;
        fs::write(partial.path(), text)?;
        partial.persist(&path)?;
        Ok(())
    });
    written.map_err(|error| format!("cannot write `{}`: {error}", path.display()))?;
    Ok(path)
}

/// Gives the board of a system this version of the GIC.
///
/// # Errors
///
/// It has no board, or says itself which version it has.
pub fn set_gic(system: &mut toml::Table, version: u8) -> Result<(), &'static str> {
    let board = system.get_mut("board").and_then(toml::Value::as_table_mut);
    let board = board.ok_or("its system has no board to give a GIC")?;
    match board.insert("gic".to_owned(), i64::from(version).into()) {
        None => Ok(()),
        Some(_) => Err("its board has a `gic` already"),
    }
}

/// Leaves the monitor out of a system.
///
/// # Errors
///
/// It says something about the monitor already.
pub fn leave_monitor_out(system: &mut toml::Table) -> Result<(), &'static str> {
    let console = system.entry("console").or_insert(toml::Table::new().into());
    let console = console.as_table_mut().ok_or("its console is no table")?;
    match console.insert("monitor".to_owned(), false.into()) {
        None => Ok(()),
        Some(_) => Err("its console has a `monitor` already"),
    }
}

/// Writes the description in a file of the repository for a board with a GICv2; returns its path. The name of its
/// system ends in `-gicv2`.
///
/// # Errors
///
/// It cannot be read or written, or its board says which GIC it has.
pub fn on_gicv2(context: &Context, file: &str) -> Result<PathBuf, String> {
    let why = |error: &dyn std::fmt::Display| format!("{file}: {error}");
    let text = fs::read_to_string(context.root.join(file)).map_err(|e| why(&e))?;
    let mut system: toml::Table = toml::from_str(&text).map_err(|e| why(&e))?;
    set_gic(&mut system, 2).map_err(|e| why(&e))?;
    let stem = Path::new(file).file_stem().unwrap_or_default();
    let name = format!("{}-gicv2", stem.to_string_lossy());
    write(context, &name, &system.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_gets_its_gic_and_nothing_else_changes() {
        let folder = tempfile::tempdir().unwrap();
        let text = "[vm.b]\nx = 1\n[vm.a]\ncrash = { restart = 1 }\n[board]\ncpus = 2\n";
        fs::write(folder.path().join("s.toml"), text).unwrap();
        let context = Context::new(folder.path().to_owned(), &[]);
        let path = on_gicv2(&context, "s.toml").unwrap();
        assert!(path.ends_with("out/test/systems/s-gicv2.toml"));
        let made: toml::Table = fs::read_to_string(&path).unwrap().parse().unwrap();
        let mut expected: toml::Table = text.parse().unwrap();
        set_gic(&mut expected, 2).unwrap();
        assert_eq!(made, expected);
        // VMs have numbers, in the order of the file.
        let vms: Vec<_> = made["vm"].as_table().unwrap().keys().collect();
        assert_eq!(vms, ["b", "a"]);
        assert!(set_gic(&mut expected, 3).is_err());
        assert!(set_gic(&mut toml::Table::new(), 2).is_err());
    }
}

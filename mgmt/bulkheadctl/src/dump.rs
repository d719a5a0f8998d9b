//! `dump`: memory and registers of a VM that does not run, as an ELF core.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bulkhead_control::failure::{Failure, Outcome};
use bulkhead_control::port::Access;
use serde_json::json;

use crate::cli::DumpArgs;
use crate::output::Printer;
use crate::verb::{Ended, connect};

/// Dumps a VM. The file is there when all of it is.
pub fn run(access: &Access, printer: &Printer, args: DumpArgs) -> Ended {
    let mut manager = connect(access)?;
    let vm = manager.find(&args.vm)?;
    let partial = partial(&args.output);
    let cannot = |error| {
        let what = format!("cannot write {}", args.output.display());
        Failure::environment("control::io", what, error).advise("choose another file")
    };
    let file = create(&partial).map_err(cannot)?;
    let dumped = manager.dump(&vm, file).inspect_err(|_| {
        let _ = fs::remove_file(&partial);
    })?;
    fs::rename(&partial, &args.output).map_err(cannot)?;
    if printer.json {
        printer.document(&json!({
            "ok": true,
            "vm": vm.name,
            "file": args.output,
            "life": dumped.life,
            "bytes": dumped.bytes,
            "vcpus": dumped.vcpus,
            "untold": dumped.untold,
            "linux": dumped.linux,
            "kernel_offset": dumped.kernel_offset,
        }))?;
        return Ok(Outcome::Done);
    }
    let mut text = format!(
        "{}: {} KiB of life {}, registers of {} of {} vCPUs",
        vm.name,
        dumped.bytes / 1024,
        dumped.life,
        dumped.vcpus.len(),
        vm.vcpus
    );
    if let Some(why) = dumped.untold {
        text = format!("{text} ({why})");
    }
    if let Some(release) = &dumped.linux {
        text = format!("{text}, Linux {release}");
    }
    if let Some(offset) = dumped.kernel_offset {
        text = format!("{text} (kernel offset {offset:#x})");
    }
    printer.text(&format!("{text}, in {}\n", args.output.display()))?;
    Ok(Outcome::Done)
}

/// The name of the file while it is written.
fn partial(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Makes an empty file that only this user reads: it has whatever the VM knew.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            options.open(path)
        }
        made => made,
    }
}

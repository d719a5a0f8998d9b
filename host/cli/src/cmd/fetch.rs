//! `bulkhead fetch`: gets what guests boot from Debian's archive into the cache.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use sha2::{Digest, Sha256};

use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_model::payload::DebianPayload;
use bulkhead_runner::columns::{Column, Columns};
use bulkhead_runner::fetch::apt::Apt;
use bulkhead_runner::fetch::cache::Cache;
use bulkhead_runner::fetch::folder::Folder;
use bulkhead_runner::fetch::{self, Archive};

/// Get Debian's kernel and the programs of the initramfs for the guests
#[derive(clap::Args)]
#[command(
    after_help = "Payloads: kernel, kernel-rt (6.1), kernel-6.12, kernel-6.12-rt (backports), initramfs,
modules-rt, modules-6.12, modules-6.12-rt (drivers of those kernels for disks, networks and channels, to go behind the initramfs),
io-tools (fio and iperf3) and debug-tools (gdb and perf, both to go behind the initramfs), u-boot (for QEMU's virt: a boot loader, or a guest),
rootfs (a root file system with systemd for a guest's disk; made once, in a minute or two);
a description names them debian:kernel and so on.
Without names: kernel, kernel-rt, initramfs and modules-rt, all that the example systems need.

The cache is $BULKHEAD_CACHE, else $XDG_CACHE_HOME/bulkhead, else ~/.cache/bulkhead.

Examples:
  bulkhead fetch                      # the newest that Debian has; downloads only what the cache lacks
  bulkhead fetch kernel-rt            # Debian's real-time kernel
  bulkhead fetch --offline --json     # what the cache holds, touching no network
  bulkhead fetch --from /media/debs   # take the packages from a folder of .deb files"
)]
pub struct Args {
    /// What to get
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Use what the cache holds; touch no network
    #[arg(long, conflicts_with = "from")]
    offline: bool,
    /// Take the packages from a folder of .deb files instead of Debian's archive
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// One payload as the verb reports it.
#[derive(Serialize)]
struct Fetched {
    /// Name in descriptions.
    name: String,
    /// The packages it is made of, `NAME VERSION`.
    packages: Vec<String>,
    /// The file.
    path: PathBuf,
    /// Its size.
    bytes: u64,
    /// Its SHA-256.
    sha256: String,
}

/// The JSON document.
#[derive(Serialize)]
struct Report {
    /// The cache folder.
    cache: PathBuf,
    /// The payloads asked for.
    payloads: Vec<Fetched>,
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    match fetch(&args) {
        Ok(report) => {
            show(&report, args.json);
            Outcome::Done
        }
        Err(failure) => failure.report(),
    }
}

/// Does the work.
fn fetch(args: &Args) -> Result<Report, Failure> {
    let payloads = chosen(&args.names)?;
    let cache = Cache::open()?;
    let mut archive: Option<Box<dyn Archive>> = match &args.from {
        Some(folder) => Some(Box::new(Folder::open(folder)?)),
        None if args.offline => None,
        None => Some(Box::new(Apt::new(&cache.folder().join("apt"))?)),
    };
    let mut report = Report {
        cache: cache.folder().to_owned(),
        payloads: Vec::new(),
    };
    for payload in payloads {
        if let Some(archive) = &mut archive {
            fetch::choose(&cache, payload, archive.as_mut())?;
        }
        let Some(path) = fetch::cached(&cache, payload)? else {
            return Err(Failure::environment(
                format!(
                    "the cache {} has no {}",
                    cache.folder().display(),
                    payload.name()
                ),
                "",
                format!(
                    "run `bulkhead fetch {}` once with a network",
                    payload.name()
                ),
            ));
        };
        let data = fs::read(&path)
            .map_err(|e| Failure::environment(format!("cannot read {}", path.display()), e, ""))?;
        let packages = cache.packages(payload)?.unwrap_or_default();
        let packages = packages.iter().map(|p| format!("{} {}", p.name, p.version));
        report.payloads.push(Fetched {
            name: format!("debian:{}", payload.name()),
            packages: packages.collect(),
            path,
            bytes: data.len() as u64,
            sha256: Sha256::digest(&data)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        });
    }
    Ok(report)
}

/// The payloads that the arguments ask for, kernels before the initramfs that takes modules from them.
fn chosen(names: &[String]) -> Result<Vec<DebianPayload>, Failure> {
    if names.is_empty() {
        return Ok(DebianPayload::USUAL.to_vec());
    }
    let mut wanted = Vec::new();
    for name in names {
        wanted.push(DebianPayload::named(name)?);
    }
    wanted.sort();
    wanted.dedup();
    Ok(wanted)
}

/// Prints what was fetched on stdout.
fn show(report: &Report, json: bool) {
    if json {
        match serde_json::to_string_pretty(report) {
            Ok(text) => println!("{text}"),
            Err(e) => eprintln!("error: cannot write JSON\n  | {e}"),
        }
        return;
    }
    let mut columns = Columns::new(&[Column::Left(0), Column::Right(0), Column::Left(0)]);
    for payload in &report.payloads {
        let mib = payload.bytes as f64 / f64::from(1 << 20);
        let path = payload.path.display();
        columns.row([
            payload.name.clone(),
            format!("{mib:.1} MiB"),
            path.to_string(),
        ]);
        columns.row([String::new(), String::new(), payload.packages.join(", ")]);
    }
    print!("{}", columns.text(""));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_checked_and_taken_once() {
        let names = |list: &[&str]| {
            list.iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        let usual = chosen(&[]).expect("the usual ones");
        assert_eq!(usual, DebianPayload::USUAL);
        let some = chosen(&names(&["initramfs", "debian:kernel", "kernel"])).expect("known names");
        assert_eq!(some, [DebianPayload::Kernel, DebianPayload::Initramfs]);
        let failure = chosen(&names(&["kernal"])).expect_err("unknown name");
        assert_eq!(
            failure.to_string(),
            "error: there is no payload `kernal`\n  \
             = help: the payloads are debian:kernel, debian:kernel-rt, debian:kernel-6.12, debian:kernel-6.12-rt, \
             debian:initramfs, debian:modules-rt, debian:modules-6.12, debian:modules-6.12-rt, debian:io-tools, debian:debug-tools, debian:u-boot, debian:rootfs"
        );
    }
}

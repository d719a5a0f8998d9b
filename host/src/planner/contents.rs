//! What a guest runs: files that are read and understood.

use super::Effort;
use super::payload::{self, Bytes, LinuxImage, Program};
use super::unpack;
use crate::board::Trouble;
use crate::describe::{self, Finding, PayloadSpec, Placed, System, VmSpec};
use crate::fetch::initramfs;

/// What a guest runs, understood.
pub(super) enum Contents {
    Linux {
        kernel: (LinuxImage, Vec<u8>),
        initrd: Option<Vec<u8>>,
    },
    Program(Program),
    Absent,
}

/// Reads what a VM runs; none if that is wrong.
pub(super) fn contents(
    spec: &VmSpec,
    system: &System,
    effort: Effort,
    findings: &mut Vec<Finding>,
) -> Result<Option<Contents>, Trouble> {
    let mut read = |source| match payload::read(source, &system.folder, effort, findings) {
        Ok(Bytes::There(bytes)) => Ok(Some(Some(bytes))),
        Ok(Bytes::Absent) => Ok(Some(None)),
        Err(Trouble::Description) => Ok(None),
        Err(other) => Err(other),
    };
    match &spec.payload {
        PayloadSpec::Unknown => Ok(None),
        PayloadSpec::Linux { kernel, initrd } => {
            let image = read(kernel)?;
            let disks: Vec<_> = initrd.iter().map(&mut read).collect::<Result<_, _>>()?;
            let (Some(image), Some(disks)) = (image, disks.into_iter().collect::<Option<Vec<_>>>())
            else {
                return Ok(None);
            };
            let Some(image) = image else {
                return Ok(Some(Contents::Absent));
            };
            let understood = unpack::kernel(image)
                .and_then(|image| payload::linux(&image).map(|header| (header, image)));
            let understood = understood.map_err(|why| {
                let what = format!("`{}` is no Linux Image", kernel.value);
                findings.push(
                    Finding::new("bulkhead::image::kernel", what)
                        .at(kernel.span.clone(), why)
                        .help("name an arm64 Image, as it is or packed with gzip or zstd; other programs go with `image`"),
                );
            });
            let Some(disks) = disks.into_iter().collect::<Option<Vec<_>>>() else {
                return Ok(Some(Contents::Absent));
            };
            let disk = ram_disk(initrd, disks, findings);
            Ok(match (understood, disk) {
                (Ok(kernel), Ok(initrd)) => Some(Contents::Linux { kernel, initrd }),
                _ => None,
            })
        }
        PayloadSpec::Program { image, load, entry } => {
            let Some(bytes) = read(image)? else {
                return Ok(None);
            };
            let Some(bytes) = bytes else {
                return Ok(Some(Contents::Absent));
            };
            let wrong = |span: &describe::Span, why: String, help: &str| {
                Finding::new(
                    "bulkhead::image::program",
                    format!("`{}` cannot be run", image.value),
                )
                .at(span.clone(), why)
                .help(help)
            };
            if payload::is_elf(&bytes) {
                for address in [load, entry].into_iter().flatten() {
                    let why = "an ELF file says that itself".to_owned();
                    let finding = wrong(&address.span, why, "leave it out");
                    findings.push(finding.at(image.span.clone(), "an ELF file"));
                }
                return match payload::elf(&bytes) {
                    Ok(program) => Ok(Some(Contents::Program(program))),
                    Err(why) => {
                        let help =
                            "an EL1 program is a static ELF file for AArch64, or raw with `load`";
                        findings.push(wrong(&image.span, why, help));
                        Ok(None)
                    }
                };
            }
            let Some(load) = load else {
                let why = "it is no ELF file, so where does it go?".to_owned();
                findings.push(wrong(
                    &image.span,
                    why,
                    "add load = \"0x40080000\", for instance",
                ));
                return Ok(None);
            };
            let end = load.value.saturating_add(bytes.len() as u64);
            let start = entry.as_ref().unwrap_or(load);
            if bytes.is_empty() || load.value % 8 != 0 {
                let why = "raw bytes, one at least, go to a multiple of 8".to_owned();
                findings.push(wrong(&load.span, why, "correct `load`"));
                return Ok(None);
            }
            if start.value % 4 != 0 || start.value < load.value || start.value >= end {
                let why = format!("the bytes lie from {:#x} to {end:#x}", load.value);
                findings.push(wrong(
                    &start.span,
                    why,
                    "start at a multiple of 4 inside them",
                ));
                return Ok(None);
            }
            let pieces = vec![(load.value, bytes)];
            Ok(Some(Contents::Program(Program {
                pieces,
                entry: start.value,
                end,
            })))
        }
    }
}

/// One RAM disk of several: kernels read archives one after the other, each in its own compression, and skip zeros
/// between them (Documentation/driver-api/early-userspace/buffer-format.rst).
fn ram_disk(
    sources: &[Placed<String>],
    files: Vec<Vec<u8>>,
    findings: &mut Vec<Finding>,
) -> Result<Option<Vec<u8>>, ()> {
    let mut disk = None;
    let mut sound = true;
    for (source, bytes) in sources.iter().zip(files) {
        // A program of this project becomes the one of an archive.
        let bytes = if source.value.starts_with("guest:") {
            initramfs::of_program(bytes)
        } else {
            bytes
        };
        if !payload::is_initrd(&bytes) {
            findings.push(
                Finding::new(
                    "bulkhead::image::initrd",
                    format!("`{}` is no initial RAM disk", source.value),
                )
                .at(
                    source.span.clone(),
                    "neither cpio nor a compression that kernels know",
                )
                .help("make one with `find . | cpio -o -H newc`, or take debian:initramfs"),
            );
            sound = false;
        }
        let disk: &mut Vec<u8> = disk.get_or_insert_default();
        // Each archive begins at a multiple of 4.
        disk.resize(disk.len().next_multiple_of(4), 0);
        disk.extend(bytes);
    }
    if sound { Ok(disk) } else { Err(()) }
}

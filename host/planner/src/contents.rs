//! Software of a guest: files that are read and parsed.

use bulkhead_model::board::PlanError;
use bulkhead_model::describe::{self, Code, Finding, PayloadSpec, VmSpec};

use super::file::File;
use super::payload::{self, LinuxImage, Program};
use super::store::Store;

/// Software of a guest, parsed.
pub(super) enum Contents {
    Linux {
        kernel: (LinuxImage, File),
        initrd: Option<File>,
    },
    Program(Program),
    Absent,
}

/// Reads the software of a VM; none if it is invalid.
pub(super) fn contents(
    spec: &VmSpec,
    store: &mut Store,
    findings: &mut Vec<Finding>,
) -> Result<Option<Contents>, PlanError> {
    let mut read = |source| match store.file(source, findings) {
        Ok(file) => Ok(Some(file)),
        Err(PlanError::Description) => Ok(None),
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
            let understood = store.kernel(kernel, image).map_err(|why| {
                let what = format!("`{}` is no Linux Image", kernel.value);
                findings.push(
                    Finding::new(Code::ImageKernel, what)
                        .at(kernel.span.clone(), why)
                        .help("name an arm64 Image, as it is or packed with gzip or zstd; other programs go with `image`"),
                );
            });
            let Some(disks) = disks.into_iter().collect::<Option<Vec<_>>>() else {
                return Ok(Some(Contents::Absent));
            };
            let disk = store.disk(initrd, disks, findings);
            Ok(match (understood, disk) {
                (Ok(kernel), Ok(initrd)) => Some(Contents::Linux { kernel, initrd }),
                _ => None,
            })
        }
        PayloadSpec::Program { image, load, entry } => {
            let Some(file) = read(image)? else {
                return Ok(None);
            };
            let Some(file) = file else {
                return Ok(Some(Contents::Absent));
            };
            let bytes = file.bytes();
            let wrong = |span: &describe::Span, why: String, help: &str| {
                Finding::new(
                    Code::ImageProgram,
                    format!("`{}` cannot be run", image.value),
                )
                .at(span.clone(), why)
                .help(help)
            };
            if payload::is_elf(bytes) {
                for address in [load, entry].into_iter().flatten() {
                    let why = "an ELF file says that itself".to_owned();
                    let finding = wrong(&address.span, why, "leave it out");
                    findings.push(finding.at(image.span.clone(), "an ELF file"));
                }
                return match store.program(image, &file) {
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
            let pieces = vec![(load.value, file.content())];
            Ok(Some(Contents::Program(Program {
                pieces,
                entry: start.value,
                end,
            })))
        }
    }
}

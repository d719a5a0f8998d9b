//! Software of a guest: files that are read and parsed.

use bulkhead_model::board::PlanError;
use bulkhead_model::describe::{self, Code, Finding, PayloadSpec, Placed, VmSpec};

use super::file::File;
use super::payload::{self, LinuxImage, Program};
use super::store::Store;

/// Software of a guest, parsed.
pub(super) enum Contents {
    Linux {
        kernel: (LinuxImage, File),
        initrd: Option<File>,
    },
    Program {
        program: Program,
        initrd: Option<File>,
    },
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
    let (source, initrd) = match &spec.payload {
        PayloadSpec::Unknown => return Ok(None),
        PayloadSpec::Linux { kernel, initrd } => (kernel, initrd),
        PayloadSpec::Program { image, initrd, .. } => (image, initrd),
    };
    let file = read(source)?;
    let disks: Vec<_> = initrd.iter().map(&mut read).collect::<Result<_, _>>()?;
    // All that is wrong with the files is reported before one that is not there yet ends this.
    let (Some(file), Some(disks)) = (file, disks.into_iter().collect::<Option<Vec<_>>>()) else {
        return Ok(None);
    };
    let Some(file) = file else {
        return Ok(Some(Contents::Absent));
    };
    let runs = match &spec.payload {
        PayloadSpec::Program { load, entry, .. } => {
            program((source, &file), (load, entry), store, findings).map(Runs::Program)
        }
        _ => kernel(source, file, store, findings).map(Runs::Linux),
    };
    let Some(disks) = disks.into_iter().collect::<Option<Vec<_>>>() else {
        return Ok(runs.map(|_| Contents::Absent));
    };
    let disk = store.disk(initrd, disks, findings);
    Ok(match (runs, disk) {
        (Some(Runs::Linux(kernel)), Ok(initrd)) => Some(Contents::Linux { kernel, initrd }),
        (Some(Runs::Program(program)), Ok(initrd)) => Some(Contents::Program { program, initrd }),
        _ => None,
    })
}

/// What a VM runs, without its initial RAM disk.
enum Runs {
    Linux((LinuxImage, File)),
    Program(Program),
}

/// A kernel by its header; none if it is no kernel.
fn kernel(
    source: &Placed<String>,
    image: File,
    store: &mut Store,
    findings: &mut Vec<Finding>,
) -> Option<(LinuxImage, File)> {
    let understood = store.kernel(source, image);
    understood
        .map_err(|why| {
            let what = format!("`{}` is no Linux Image", source.value);
            findings.push(
                Finding::new(Code::ImageKernel, what)
                    .at(source.span.clone(), why)
                    .help("name an arm64 Image, as it is or packed with gzip or zstd; other programs go with `image`"),
            );
        })
        .ok()
}

/// Guest addresses of raw bytes, and of the first instruction in them, as the description has them.
type Addresses<'a> = (&'a Option<Placed<u64>>, &'a Option<Placed<u64>>);

/// An ELF file, or raw bytes; none if it cannot be run.
fn program(
    (image, file): (&Placed<String>, &File),
    (load, entry): Addresses,
    store: &mut Store,
    findings: &mut Vec<Finding>,
) -> Option<Program> {
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
        let program = store.program(image, file);
        return program
            .map_err(|why| {
                let help = "an EL1 program is a static ELF file for AArch64, or raw with `load`";
                findings.push(wrong(&image.span, why, help));
            })
            .ok();
    }
    let Some(load) = load else {
        let why = "it is no ELF file, so where does it go?".to_owned();
        findings.push(wrong(
            &image.span,
            why,
            "add load = \"0x40080000\", for instance",
        ));
        return None;
    };
    let end = load.value.saturating_add(bytes.len() as u64);
    let start = entry.as_ref().unwrap_or(load);
    if bytes.is_empty() || load.value % 8 != 0 {
        let why = "raw bytes, one at least, go to a multiple of 8".to_owned();
        findings.push(wrong(&load.span, why, "correct `load`"));
        return None;
    }
    if start.value % 4 != 0 || start.value < load.value || start.value >= end {
        let why = format!("the bytes lie from {:#x} to {end:#x}", load.value);
        let help = "start at a multiple of 4 inside them";
        findings.push(wrong(&start.span, why, help));
        return None;
    }
    Some(Program {
        pieces: vec![(load.value, file.content())],
        entry: start.value,
        memory: vec![(load.value, end)],
    })
}

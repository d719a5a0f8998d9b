//! The files that VMs run, each opened, unpacked and parsed once, however many VMs name it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bulkhead_model::board::PlanError;
use bulkhead_model::describe::{Code, Finding, Placed, System};

use super::file::File;
use super::payload::{self, Bytes, LinuxImage, Program};
use super::sources::Sources;
use super::unpack;
use crate::cpio;

/// Statistics of the files read to make a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Files of payloads that were opened.
    pub files: usize,
    /// Bytes in them.
    pub bytes: u64,
    /// Kernels that were unpacked, programs that were taken apart, RAM disks that were put together.
    pub understood: usize,
}

/// Files that VMs run, by name; each is read and parsed once.
pub(super) struct Store<'a> {
    system: &'a System,
    sources: &'a dyn Sources,
    reads: Reads,
    /// Files by their names in the description; none for one that is not there yet.
    files: BTreeMap<String, Option<File>>,
    kernels: BTreeMap<String, (LinuxImage, File)>,
    programs: BTreeMap<String, Program>,
    disks: BTreeMap<Vec<String>, File>,
}

impl<'a> Store<'a> {
    pub(super) fn new(system: &'a System, sources: &'a dyn Sources) -> Self {
        Self {
            system,
            sources,
            reads: Reads::default(),
            files: BTreeMap::new(),
            kernels: BTreeMap::new(),
            programs: BTreeMap::new(),
            disks: BTreeMap::new(),
        }
    }

    pub(super) fn reads(&self) -> Reads {
        self.reads
    }

    /// A file that the description names; none if it has not been built or fetched yet, which is reported once.
    pub(super) fn file(
        &mut self,
        source: &Placed<String>,
        findings: &mut Vec<Finding>,
    ) -> Result<Option<File>, PlanError> {
        if let Some(known) = self.files.get(&source.value) {
            return Ok(known.clone());
        }
        let file = match payload::read(source, &self.system.folder, self.sources, findings)? {
            Bytes::There(bytes) => {
                self.reads.files += 1;
                self.reads.bytes += bytes.len() as u64;
                Some(File::new(bytes))
            }
            Bytes::Absent => None,
        };
        self.files.insert(source.value.clone(), file.clone());
        Ok(file)
    }

    /// The kernel in a file that was read from `source`.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn kernel(
        &mut self,
        source: &Placed<String>,
        file: File,
    ) -> Result<(LinuxImage, File), String> {
        if let Some(known) = self.kernels.get(&source.value) {
            return Ok(known.clone());
        }
        self.reads.understood += 1;
        let image = match unpack::kernel(file.bytes())? {
            Cow::Borrowed(whole) if whole.len() == file.bytes().len() => None,
            other => Some(other.into_owned()),
        };
        let image = image.map_or(file, File::new);
        let kernel = (payload::linux(image.bytes())?, image);
        self.kernels.insert(source.value.clone(), kernel.clone());
        Ok(kernel)
    }

    /// The program in an ELF file that was read from `source`.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn program(
        &mut self,
        source: &Placed<String>,
        file: &File,
    ) -> Result<Program, String> {
        if let Some(known) = self.programs.get(&source.value) {
            return Ok(known.clone());
        }
        self.reads.understood += 1;
        let program = payload::elf(file.bytes())?;
        self.programs.insert(source.value.clone(), program.clone());
        Ok(program)
    }

    /// One RAM disk of several: kernels read archives one after the other, each in its own compression, and skip zeros
    /// between them (Documentation/driver-api/early-userspace/buffer-format.rst).
    ///
    /// # Errors
    /// One of them is no RAM disk, which is reported.
    pub(super) fn disk(
        &mut self,
        sources: &[Placed<String>],
        files: Vec<File>,
        findings: &mut Vec<Finding>,
    ) -> Result<Option<File>, ()> {
        if files.is_empty() {
            return Ok(None);
        }
        let names: Vec<String> = sources.iter().map(|source| source.value.clone()).collect();
        if let Some(known) = self.disks.get(&names) {
            return Ok(Some(known.clone()));
        }
        self.reads.understood += 1;
        let before = findings.len();
        let archives: Vec<File> = sources
            .iter()
            .zip(files)
            .map(|(source, file)| archive(source, file, findings))
            .collect();
        if findings.len() > before {
            return Err(());
        }
        let disk = match &archives[..] {
            [one] => one.clone(),
            _ => {
                let mut disk = Vec::new();
                for archive in &archives {
                    // Each archive begins at a multiple of 4.
                    disk.resize(disk.len().next_multiple_of(4), 0);
                    disk.extend(archive.bytes());
                }
                File::new(disk)
            }
        };
        self.disks.insert(names, disk.clone());
        Ok(Some(disk))
    }
}

/// A file as an archive: a program of this project becomes the one of an archive.
fn archive(source: &Placed<String>, file: File, findings: &mut Vec<Finding>) -> File {
    let file = match source.value.strip_prefix("guest:") {
        Some(name) => File::new(cpio::of_program(name, file.bytes().to_vec())),
        None => file,
    };
    if !payload::is_initrd(file.bytes()) {
        findings.push(
            Finding::new(
                Code::ImageInitrd,
                format!("`{}` is no initial RAM disk", source.value),
            )
            .at(
                source.span.clone(),
                "neither cpio nor a compression that kernels know",
            )
            .help("make one with `find . | cpio -o -H newc`, or take debian:initramfs"),
        );
    }
    file
}

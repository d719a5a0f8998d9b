//! `disks` of a VM.

use bulkhead_abi::plan::PAGE;

use super::code::Code;
use super::finding::{Finding, Span};
use super::keys::{DISK, VM};
use super::reader::{Placed, Reader, check_name};
use super::size::Size;

/// A disk of a VM.
#[derive(Clone, Debug)]
pub struct DiskSpec {
    /// Its place in the description.
    pub span: Span,
    /// Name, which no other disk of the VM has.
    pub name: Placed<String>,
    /// Bytes; none: those of its image.
    pub size: Option<Placed<u64>>,
    /// What it holds when the board starts; none: zeros.
    pub image: Option<Placed<String>>,
    /// What the VM may do to it.
    pub access: DiskAccess,
}

/// What a VM may do to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskAccess {
    /// Read and write: the disk is its own.
    Write,
    /// Read and write: its changes are its own, the image may be others', too.
    CopyOnWrite,
    /// Read.
    ReadOnly,
}

/// Reads `disks`. One that has no name, and neither size nor image, is left out, which is reported.
pub(super) fn disks(reader: &mut Reader) -> Vec<DiskSpec> {
    let mut disks: Vec<DiskSpec> = Vec::new();
    let mut found = Vec::new();
    for (table, span) in reader.tables(const { VM.key("disks") }) {
        let mut disk = Reader::new(table, "a disk", DISK, &mut found);
        let name = disk.read(const { DISK.text("name") });
        let size = disk.read(const { DISK.quantity("size") });
        let image = disk.read(const { DISK.text("image") });
        let read_only = disk.read(const { DISK.flag("read_only") });
        let copy = disk.read(const { DISK.flag("copy_on_write") });
        let mut missing = disk.missing();
        let has = |key| disk.value(key).is_some();
        if !has(const { DISK.key("size") }) && !has(const { DISK.key("image") }) {
            missing.push("size or image");
        }
        disk.finish();
        if !missing.is_empty() {
            found.push(
                Finding::new(
                    Code::DiskIncomplete,
                    "a disk has a name, and a size or an image",
                )
                .at(span.clone(), format!("needs {}", missing.join(", ")))
                .help("such as { name = \"data\", size = \"64MiB\" }"),
            );
        }
        let access = access(image.is_some(), read_only, copy, &mut found);
        let (Some(name), true) = (name, size.is_some() || image.is_some()) else {
            continue;
        };
        check_name(&name, Code::DiskName, "a disk", &mut found);
        // A disk without image is all the memory that it has.
        let own = size.as_ref().filter(|_| image.is_none());
        if let Some(size) = own.filter(|size| size.value % PAGE != 0) {
            found.push(
                Finding::new(Code::DiskSize, "a disk comes in pages of 4 KiB")
                    .at(size.span.clone(), "not a multiple of 4 KiB")
                    .help(format!(
                        "{} is one",
                        Size(size.value.next_multiple_of(PAGE))
                    )),
            );
        }
        if let Some(first) = disks.iter().find(|disk| disk.name.value == name.value) {
            found.push(
                Finding::new(
                    Code::DiskTwice,
                    format!("there are two disks `{}` in one VM", name.value),
                )
                .at(name.span.clone(), "again")
                .at(first.name.span.clone(), "the first")
                .help("the guest tells its disks apart by their names: give each its own"),
            );
        }
        disks.push(DiskSpec {
            span,
            name,
            size,
            image,
            access,
        });
    }
    found.into_iter().for_each(|finding| reader.report(finding));
    disks
}

/// What a VM may do to a disk by its flags.
fn access(
    has_image: bool,
    read_only: Option<Placed<bool>>,
    copy: Option<Placed<bool>>,
    findings: &mut Vec<Finding>,
) -> DiskAccess {
    let read_only = read_only.filter(|flag| flag.value);
    let copy = copy.filter(|flag| flag.value);
    if let (Some(read_only), Some(copy)) = (&read_only, &copy) {
        findings.push(
            Finding::new(
                Code::DiskBoth,
                "a disk that cannot be written has nothing to copy on write",
            )
            .at(copy.span.clone(), "says that it is written")
            .at(read_only.span.clone(), "says that it is not")
            .help("leave one of them out"),
        );
    } else if let (Some(flag), false) = (read_only.as_ref().or(copy.as_ref()), has_image) {
        let (what, why) = match read_only.is_some() {
            true => (
                "a disk without image that cannot be written",
                "would hold zeros for ever",
            ),
            false => ("copy on write without an image", "there is nothing to copy"),
        };
        findings.push(
            Finding::new(Code::DiskStray, what)
                .at(flag.span.clone(), why)
                .help("add an image, such as image = \"root.img\", or leave it out"),
        );
    }
    match (read_only, copy) {
        (Some(_), _) => DiskAccess::ReadOnly,
        (None, Some(_)) => DiskAccess::CopyOnWrite,
        (None, None) => DiskAccess::Write,
    }
}

/// Reports images that a VM writes to and that another disk has, too. `vms` are the disks of each VM with its name.
pub(super) fn check<'a>(
    vms: impl Iterator<Item = (&'a str, &'a [DiskSpec])>,
    findings: &mut Vec<Finding>,
) {
    let disks = vms.flat_map(|(vm, disks)| disks.iter().map(move |disk| (vm, disk)));
    let images = disks.filter_map(|(vm, disk)| Some((vm, disk.image.as_ref()?, disk.access)));
    let images: Vec<_> = images.collect();
    for (number, (vm, image, access)) in images.iter().enumerate() {
        let mut before = images.iter().take(number);
        let alike = before.find(|(_, other, other_access)| {
            let writes = [*access, *other_access].contains(&DiskAccess::Write);
            other.value == image.value && writes
        });
        let Some((first_vm, first, _)) = alike else {
            continue;
        };
        findings.push(
            Finding::new(
                Code::DiskShared,
                format!(
                    "`{}` is the content of two disks, one of which is written",
                    image.value
                ),
            )
            .at(image.span.clone(), format!("of `{vm}`"))
            .at(first.span.clone(), format!("of `{first_vm}`"))
            .help(
                "copy_on_write = true for who writes gives each its own changes, read_only = true is for who does not: each disk needs one of them",
            ),
        );
    }
}

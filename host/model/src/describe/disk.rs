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
    /// Where it says that it is one disk with those of other VMs that have its name and say so, too.
    pub shared: Option<Span>,
}

impl DiskSpec {
    /// Whether both are one disk.
    pub fn is_one_with(&self, other: &Self) -> bool {
        self.shared.is_some() && other.shared.is_some() && self.name.value == other.name.value
    }
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
        let shared = disk.read(const { DISK.flag("shared") });
        let shared = shared.filter(|flag| flag.value).map(|flag| flag.span);
        let mut missing = disk.missing();
        let has = |key| disk.has(key);
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
        let access = access((image.is_some(), &shared), read_only, copy, &mut found);
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
            shared,
        });
    }
    found.into_iter().for_each(|finding| reader.report(finding));
    disks
}

/// What a VM may do to a disk by its flags.
fn access(
    (has_image, shared): (bool, &Option<Span>),
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
    } else if let (Some(copy), Some(shared)) = (&copy, shared) {
        findings.push(
            Finding::new(
                Code::DiskBoth,
                "a disk with changes of its own is not one with those of others",
            )
            .at(copy.span.clone(), "says that nobody else sees them")
            .at(shared.clone(), "says that others do")
            .help("leave one of them out"),
        );
    } else if let (Some(flag), false) = (
        read_only.as_ref().or(copy.as_ref()),
        // Somebody else may write what this one reads.
        has_image || shared.is_some(),
    ) {
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

/// Reports images that a VM writes to and that another disk has, too, and shared disks that are not one. `vms` are the disks of each VM
/// with its name.
pub(super) fn check<'a>(
    vms: impl Iterator<Item = (&'a str, &'a [DiskSpec])>,
    findings: &mut Vec<Finding>,
) {
    let disks = vms.flat_map(|(vm, disks)| disks.iter().map(move |disk| (vm, disk)));
    let disks: Vec<_> = disks.collect();
    for (number, (vm, disk)) in disks.iter().enumerate() {
        let (before, _) = disks.split_at(number);
        images(before, vm, disk, findings);
        shared(&disks, number, findings);
    }
}

/// Reports an image that a disk has with one before it, and that one of them writes.
fn images(before: &[(&str, &DiskSpec)], vm: &str, disk: &DiskSpec, findings: &mut Vec<Finding>) {
    let Some(image) = &disk.image else {
        return;
    };
    let alike = before.iter().find_map(|(first_vm, other)| {
        let first = other.image.as_ref()?;
        let writes = [disk.access, other.access].contains(&DiskAccess::Write);
        (first.value == image.value && writes && !disk.is_one_with(other))
            .then_some((first_vm, first))
    });
    let Some((first_vm, first)) = alike else {
        return;
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
            "copy_on_write = true for who writes gives each its own changes, read_only = true is for who does not: each disk needs one of them; with shared = true both are one disk",
        ),
    );
}

/// Reports a shared disk that nobody shares, one that is not as the first of its name, and, at the first, one that holds zeros for ever.
fn shared(disks: &[(&str, &DiskSpec)], number: usize, findings: &mut Vec<Finding>) {
    let Some((vm, disk)) = disks.get(number) else {
        return;
    };
    let Some(span) = &disk.shared else {
        return;
    };
    let name = &disk.name.value;
    let mut members = disks.iter().filter(|(_, other)| disk.is_one_with(other));
    let Some((first_vm, first)) = members.next() else {
        return;
    };
    let is_first = core::ptr::eq(*first, *disk);
    if is_first && members.clone().next().is_none() {
        let finding = Finding::new(Code::DiskShared, format!("nobody shares disk `{name}`"))
            .at(span.clone(), format!("only `{vm}` has it"));
        findings.push(finding.help(format!(
            "give another VM a disk {{ name = \"{name}\", shared = true }} with the same size or image, or leave `shared` out"
        )));
        return;
    }
    let value = |disk: &DiskSpec| {
        let size = disk.size.as_ref().map(|size| size.value);
        (size, disk.image.as_ref().map(|image| image.value.clone()))
    };
    if value(first) != value(disk) {
        findings.push(
            Finding::new(
                Code::DiskShared,
                format!("disk `{name}` is shared, and is not the same for all"),
            )
            .at(disk.span.clone(), format!("as `{vm}` has it"))
            .at(first.span.clone(), format!("as `{first_vm}` has it"))
            .help("give it the same size and the same image everywhere"),
        );
    }
    let reads = |disk: &DiskSpec| disk.access == DiskAccess::ReadOnly;
    if is_first && disk.image.is_none() && reads(disk) && members.all(|(_, other)| reads(other)) {
        findings.push(
            Finding::new(
                Code::DiskStray,
                format!("nobody writes to the shared disk `{name}`"),
            )
            .at(span.clone(), "would hold zeros for ever")
            .help("let one of its VMs write to it, or give it an image"),
        );
    }
}

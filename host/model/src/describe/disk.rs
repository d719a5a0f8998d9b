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
    /// Bytes.
    pub size: Placed<u64>,
}

/// Reads `disks`. One that has no name or no size is left out, which is reported.
pub(super) fn disks(reader: &mut Reader) -> Vec<DiskSpec> {
    let mut disks: Vec<DiskSpec> = Vec::new();
    let mut found = Vec::new();
    for (table, span) in reader.tables(const { VM.key("disks") }) {
        let mut disk = Reader::new(table, "a disk", DISK, &mut found);
        let name = disk.read(const { DISK.text("name") });
        let size = disk.read(const { DISK.quantity("size") });
        let missing = disk.missing();
        disk.finish();
        if !missing.is_empty() {
            found.push(
                Finding::new(Code::DiskIncomplete, "a disk has a name and a size")
                    .at(span.clone(), format!("needs {}", missing.join(", ")))
                    .help("such as { name = \"data\", size = \"64MiB\" }"),
            );
        }
        let (Some(name), Some(size)) = (name, size) else {
            continue;
        };
        check_name(&name, Code::DiskName, "a disk", &mut found);
        if size.value % PAGE != 0 {
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
        disks.push(DiskSpec { span, name, size });
    }
    found.into_iter().for_each(|finding| reader.report(finding));
    disks
}

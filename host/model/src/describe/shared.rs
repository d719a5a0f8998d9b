//! `[shared.NAME]`: memory that several VMs map, because the description says so.

use bulkhead_abi::plan::PAGE;
use toml::de::{DeTable, DeValue};

use super::code::Code;
use super::finding::Finding;
use super::keys::SHARED;
use super::reader::{Placed, Reader, check_name};
use super::suggest::other_vm;
use super::vm::VmSpec;

/// `[shared.NAME]`.
#[derive(Clone, Debug)]
pub struct SharedSpec {
    /// Name: label in the device trees of the guests.
    pub name: Placed<String>,
    /// Bytes.
    pub size: Placed<u64>,
    /// Guest address in all its VMs.
    pub ipa: Placed<u64>,
    /// Index of each VM that maps it, and whether that may write.
    pub vms: Vec<(usize, Placed<bool>)>,
    /// Whether its VMs cache it, if their own tables say so.
    pub cacheable: bool,
    /// Whether it is that of a channel, or one that the planner adds, such as a disk: no table of the description.
    pub is_added: bool,
}

/// Reads `[shared.NAME]`. `vms` are the VMs that are sound so far, and the names of all in the file.
pub(super) fn read(
    name: Placed<String>,
    table: &DeTable,
    vms: (&[VmSpec], &[String]),
    findings: &mut Vec<Finding>,
) -> Option<SharedSpec> {
    check_name(&name, Code::SharedName, "shared memory", findings);
    let mut reader = Reader::new(table, "shared memory", SHARED, findings);
    let size = reader.read(const { SHARED.quantity("size") });
    let ipa = reader.read(const { SHARED.quantity("ipa") });
    let users = reader.value(const { SHARED.key("vms") });
    let cacheable = reader.read(const { SHARED.flag("cacheable") });
    let missing = reader.missing();
    if !missing.is_empty() {
        reader.report(
            Finding::new(
                Code::SharedIncomplete,
                format!("shared memory `{}` is incomplete", name.value),
            )
            .at(name.span.clone(), format!("needs {}", missing.join(", ")))
            .help("such as size = \"4KiB\", ipa = \"0x70000000\", vms = { a = \"rw\", b = \"r\" }"),
        );
    }
    for value in [&size, &ipa].into_iter().flatten() {
        if value.value % PAGE != 0 {
            reader.report(
                Finding::new(Code::MemoryAlign, "shared memory comes in pages of 4 KiB")
                    .at(value.span.clone(), "not a multiple of 4 KiB")
                    .help(format!(
                        "{:#x} is one",
                        value.value.checked_next_multiple_of(PAGE).unwrap_or(0)
                    )),
            );
        }
    }
    let mut list = Vec::new();
    match users.map(|users| (users.get_ref(), users.span())) {
        Some((DeValue::Table(users), span)) => {
            for (vm, access) in users.iter() {
                let user = user(vm.get_ref(), vm.span(), access, vms, &mut reader);
                list.extend(user);
            }
            // One is enough: shared memory outlives the lives of a VM that starts again.
            if users.is_empty() {
                reader.report(
                    Finding::new(Code::SharedAlone, "shared memory that no VM has")
                        .at(span, "nobody here")
                        .help("name the VMs that have it, each with \"r\" or \"rw\""),
                );
            }
        }
        Some((_, span)) => reader.report(
            Finding::new(
                Code::ValueType,
                "`vms` must be a table of VMs and their access",
            )
            .at(span, "no table")
            .help("such as vms = { a = \"rw\", b = \"r\" }"),
        ),
        None => {}
    }
    reader.finish();
    list.sort_by_key(|(vm, _)| *vm);
    Some(SharedSpec {
        name,
        size: size?,
        ipa: ipa?,
        vms: list,
        cacheable: cacheable.is_none_or(|cacheable| cacheable.value),
        is_added: false,
    })
}

/// One VM of `vms` with its access.
fn user(
    name: &str,
    span: super::Span,
    access: &toml::Spanned<DeValue>,
    (vms, declared): (&[VmSpec], &[String]),
    reader: &mut Reader,
) -> Option<(usize, Placed<bool>)> {
    let write = match access.get_ref().as_str() {
        Some("r") => false,
        Some("rw") => true,
        _ => {
            reader.report(
                Finding::new(
                    Code::SharedAccess,
                    "access to shared memory is \"r\" or \"rw\"",
                )
                .at(access.span(), "neither")
                .help(format!(
                    "say {name} = \"rw\" if it may write, else {name} = \"r\""
                )),
            );
            return None;
        }
    };
    if !declared.iter().any(|vm| vm == name) {
        let finding = Finding::new(Code::SharedUnknownVm, format!("there is no VM `{name}`"))
            .at(span, "not described here");
        let known = declared.iter().map(String::as_str);
        reader.report(finding.help(other_vm(name, known)));
        return None;
    }
    // A VM that is described but missing here has an error of its own, which is reported at its place.
    let vm = vms.iter().position(|vm| vm.name.value == name)?;
    Some((vm, Placed { value: write, span }))
}

//! `[doorbell.NAME]`: by which one VM interrupts another, because the description says so.

use bulkhead_abi::plan::{MAX_APART, MAX_DOORBELLS, MIN_APART};
use toml::de::DeTable;

use super::code::Code;
use super::finding::{Finding, Span};
use super::keys::DOORBELL;
use super::reader::{Placed, Reader, check_name};
use super::shared::SharedSpec;
use super::size::Duration;
use super::suggest::{nearest, other_vm};
use super::vm::VmSpec;

/// Least time from one interrupt to the next, if the description does not say: 0.1 ms in nanoseconds.
pub(super) const APART: u64 = 100_000;

/// `[doorbell.NAME]`.
#[derive(Clone, Debug)]
pub struct DoorbellSpec {
    /// Name: label in the device trees of both VMs.
    pub name: Placed<String>,
    /// Index of the VM that rings.
    pub from: usize,
    /// Index of the VM that hears it.
    pub to: Placed<usize>,
    /// Index of the shared memory that it is about.
    pub shared: Option<usize>,
    /// Nanoseconds from one interrupt to the next at least.
    pub apart: u64,
    /// Whether it is one of a channel: no table of the description.
    pub is_added: bool,
}

/// VMs and shared memory of the description, to which doorbells refer.
#[derive(Clone, Copy)]
pub(super) struct Rest<'a> {
    pub vms: &'a [VmSpec],
    /// Names of all VMs in the file.
    pub vm_names: &'a [String],
    /// Shared memory that is sound so far.
    pub shared: &'a [SharedSpec],
    /// Names of all shared memory in the file.
    pub shared_names: &'a [String],
}

/// Reads `[doorbell.NAME]`.
pub(super) fn read(
    name: Placed<String>,
    table: &DeTable,
    rest: Rest,
    findings: &mut Vec<Finding>,
) -> Option<DoorbellSpec> {
    check_name(&name, Code::DoorbellName, "a doorbell", findings);
    let mut reader = Reader::new(table, "a doorbell", DOORBELL, findings);
    let from = reader.read(const { DOORBELL.text("from") });
    let to = reader.read(const { DOORBELL.text("to") });
    let shared = reader.read(const { DOORBELL.text("shared") });
    let apart = reader.read(const { DOORBELL.quantity("apart") });
    let missing = reader.missing();
    if !missing.is_empty() {
        reader.report(
            Finding::new(
                Code::DoorbellIncomplete,
                format!("doorbell `{}` is incomplete", name.value),
            )
            .at(name.span.clone(), format!("needs {}", missing.join(", ")))
            .help("such as from = \"a\", to = \"b\": `a` rings, `b` is interrupted"),
        );
    }
    if let Some(apart) = &apart
        && !(MIN_APART..=MAX_APART).contains(&apart.value)
    {
        reader.report(
            Finding::new(
                Code::DoorbellApart,
                format!(
                    "doorbell `{}` cannot be heard so often, or so seldom",
                    name.value
                ),
            )
            .at(
                apart.span.clone(),
                format!(
                    "{} to {} from one interrupt to the next",
                    Duration(MIN_APART),
                    Duration(MAX_APART)
                ),
            )
            .help(format!(
                "leave `apart` out: {} is the default",
                Duration(APART)
            )),
        );
    }
    if let (Some(from), Some(to)) = (&from, &to)
        && from.value == to.value
    {
        reader.report(
            Finding::new(
                Code::DoorbellItself,
                format!("`{}` would ring itself", from.value),
            )
            .at(to.span.clone(), "the same VM")
            .at(from.span.clone(), "rings")
            .help("name another VM; inside a VM its own interrupt controller has SGIs"),
        );
    }
    let from = from.and_then(|vm| known(&vm, rest, &mut reader).map(|index| vm.map(|_| index)));
    let to = to.and_then(|vm| known(&vm, rest, &mut reader).map(|index| vm.map(|_| index)));
    let ends = [&from, &to];
    let shared = shared.and_then(|request| about(&request, ends, rest, &mut reader));
    reader.finish();
    Some(DoorbellSpec {
        name,
        from: from?.value,
        to: to?,
        shared,
        apart: apart.map_or(APART, |apart| apart.value),
        is_added: false,
    })
}

/// Index of a VM.
fn known(vm: &Placed<String>, rest: Rest, reader: &mut Reader) -> Option<usize> {
    if !rest.vm_names.contains(&vm.value) {
        let finding = Finding::new(
            Code::DoorbellUnknownVm,
            format!("there is no VM `{}`", vm.value),
        )
        .at(vm.span.clone(), "not described here");
        let known = rest.vm_names.iter().map(String::as_str);
        reader.report(finding.help(other_vm(&vm.value, known)));
    }
    // One that is described but missing here has an error of its own, which is reported at its place.
    let mut vms = rest.vms.iter();
    vms.position(|known| known.name.value == vm.value)
}

/// Index of the shared memory that a doorbell is about, which both of its VMs have to map.
fn about(
    request: &Placed<String>,
    ends: [&Option<Placed<usize>>; 2],
    rest: Rest,
    reader: &mut Reader,
) -> Option<usize> {
    let Rest { vms, shared, .. } = rest;
    let found = shared
        .iter()
        .position(|known| known.name.value == request.value);
    let Some(index) = found else {
        if rest.shared_names.contains(&request.value) {
            // It has an error of its own, which is reported at its place.
            return None;
        }
        let finding = Finding::new(
            Code::DoorbellUnknownShared,
            format!("there is no shared memory `{}`", request.value),
        )
        .at(request.span.clone(), "not described here");
        let names = rest.shared_names.iter().map(String::as_str);
        reader.report(match nearest(&request.value, names) {
            Some(known) => finding.help(format!("did you mean `{known}`?")),
            None => finding.help("add a table [shared.NAME], or leave `shared` out"),
        });
        return None;
    };
    for end in ends.into_iter().flatten() {
        let mut users = shared[index].vms.iter();
        if users.all(|(user, _)| *user != end.value) {
            reader.report(
                Finding::new(
                    Code::DoorbellNotShared,
                    format!(
                        "`{}` does not map `{}`",
                        vms[end.value].name.value, request.value
                    ),
                )
                .at(end.span.clone(), "this VM")
                .at(shared[index].name.span.clone(), "has other VMs")
                .help("add it to `vms` there"),
            );
        }
    }
    Some(index)
}

/// Checks that there are no more doorbells than a plan holds.
pub(super) fn count(doorbells: &[DoorbellSpec], findings: &mut Vec<Finding>) {
    if let Some(first) = doorbells.get(MAX_DOORBELLS) {
        let span: Span = first.name.span.clone();
        findings.push(
            Finding::new(Code::DoorbellMany, "there are too many doorbells")
                .at(span, format!("the first after {MAX_DOORBELLS}"))
                .help("one doorbell can stand for several things: what is meant stands in shared memory"),
        );
    }
}

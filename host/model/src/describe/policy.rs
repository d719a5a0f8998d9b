//! Keys of `[vm.NAME]` about crashes, resets, time and calls of the firmware.

use bulkhead_core::plan::may_be_allowed;
use toml::de::{DeTable, DeValue};

use super::code::Code;
use super::finding::Finding;
use super::keys::{CRASH, RESET, VM};
use super::reader::{Placed, Reader};
use super::suggest::other_vm;

/// Limit on restarts of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Most restarts.
    pub most: u16,
    /// Seconds in which they are counted.
    pub seconds: u16,
}

/// Action when a VM crashes.
#[derive(Clone, Debug)]
pub enum CrashSpec {
    /// It stays stopped.
    Halt,
    /// It starts again, so often at most.
    Restart(Limit),
    /// It stays stopped, and the VM of this name is told.
    Notify(Placed<String>),
}

/// Example of a restart in a description, for messages.
const RESTART: &str = "such as crash = { restart = 3, within = \"60s\" }";

/// Reads `crash`.
pub(super) fn crash(reader: &mut Reader) -> CrashSpec {
    let Some(value) = reader.value(const { VM.key("crash") }) else {
        return CrashSpec::Halt;
    };
    if let DeValue::Table(table) = value.get_ref() {
        let mut inner = Vec::new();
        let crash = crash_table(table, value.span(), &mut inner);
        inner.into_iter().for_each(|finding| reader.report(finding));
        return crash.unwrap_or(CrashSpec::Halt);
    }
    let word = reader.read(const { VM.word("crash") });
    let incomplete = word.and_then(|word| {
        let help = match word.value {
            "restart" => RESTART,
            "notify" => "such as crash = { notify = \"NAME\" }",
            _ => return None,
        };
        let what = format!("crash = \"{}\" does not say enough", word.value);
        let why = match word.value {
            "restart" => "how often at most, and in which time?",
            _ => "which VM is told?",
        };
        Some(
            Finding::new(Code::CrashIncomplete, what)
                .at(word.span, why)
                .help(help),
        )
    });
    incomplete
        .into_iter()
        .for_each(|finding| reader.report(finding));
    CrashSpec::Halt
}

/// `crash = { restart = N, within = "TIME" }` or `crash = { notify = "VM" }`.
fn crash_table(
    table: &DeTable,
    span: super::Span,
    findings: &mut Vec<Finding>,
) -> Option<CrashSpec> {
    let mut reader = Reader::new(table, "`crash`", CRASH, findings);
    let restart = reader.read(const { CRASH.number("restart") });
    let within = reader.read(const { CRASH.quantity("within") });
    let notify = reader.read(const { CRASH.text("notify") });
    let has_restart = reader.has(const { CRASH.key("restart") });
    let has_within = reader.has(const { CRASH.key("within") });
    let has_notify = reader.has(const { CRASH.key("notify") });
    let nothing = !(has_restart || has_within || has_notify);
    if nothing && reader.unknown().next().is_some() {
        // What is meant by the keys that there are is not known, and that is the fault.
        reader.finish();
        return None;
    }
    let restarts = has_restart || has_within;
    if restarts == has_notify {
        let why = if restarts { "both" } else { "neither" };
        reader.report(
            Finding::new(
                Code::CrashBoth,
                "a VM that crashed starts again, or another VM is told",
            )
            .at(span, why)
            .help(format!("{RESTART}, or crash = {{ notify = \"NAME\" }}")),
        );
        reader.finish();
        return None;
    }
    if restarts && !(has_restart && has_within) {
        let missing = if has_restart { "within" } else { "restart" };
        reader.report(
            Finding::new(
                Code::CrashIncomplete,
                "restarts have a limit: how often, and in which time",
            )
            .at(span, format!("needs `{missing}`"))
            .help(RESTART),
        );
    }
    const HELP: &str = "without restarts: crash = \"halt\", which is also the default";
    let mut limit = |span, value| limit(&mut reader, span, value, (Code::CrashLimit, HELP));
    let most = restart.and_then(|number| limit(number.span, (number.value.into(), "times")));
    let seconds = within.and_then(|time| limit(time.span, (time.value, "seconds")));
    reader.finish();
    match notify {
        Some(name) => Some(CrashSpec::Notify(name)),
        None => Some(CrashSpec::Restart(Limit {
            most: most?,
            seconds: seconds?,
        })),
    }
}

/// A limit as the plan holds it, which `code` and `help` are about.
fn limit(
    reader: &mut Reader,
    span: super::Span,
    (value, what): (u64, &str),
    (code, help): (Code, &str),
) -> Option<u16> {
    let limit = u16::try_from(value).ok().filter(|limit| *limit > 0);
    if limit.is_none() {
        reader.report(
            Finding::new(
                code,
                format!("the limit of restarts is 1 to {} {what}", u16::MAX),
            )
            .at(span, format!("{value} {what}"))
            .help(help),
        );
    }
    limit
}

/// Resets that a VM may ask for, if the description says nothing. More than a guest that updates
/// or repairs itself needs; one that resets without end fills the log with a line for each.
pub const RESETS: Limit = Limit {
    most: 10,
    seconds: 60,
};

/// Reads `reset`: how often the VM starts again because its guest asks for a reset, if there is a limit.
pub(super) fn reset(reader: &mut Reader) -> Option<Limit> {
    let Some(value) = reader.value(const { VM.key("reset") }) else {
        return Some(RESETS);
    };
    let DeValue::Table(table) = value.get_ref() else {
        let word = reader.read(const { VM.word("reset") });
        return word.is_none().then_some(RESETS);
    };
    let mut inner = Vec::new();
    let read = reset_table(table, value.span(), &mut inner);
    inner.into_iter().for_each(|finding| reader.report(finding));
    Some(read.unwrap_or(RESETS))
}

/// `reset = { restart = N, within = "TIME" }`.
fn reset_table(table: &DeTable, span: super::Span, findings: &mut Vec<Finding>) -> Option<Limit> {
    const HELP: &str =
        "such as reset = { restart = 10, within = \"60s\" }, or reset = \"unlimited\"";
    let mut reader = Reader::new(table, "`reset`", RESET, findings);
    let most = reader.read(const { RESET.number("restart") });
    let within = reader.read(const { RESET.quantity("within") });
    let mut limit = |span, value| limit(&mut reader, span, value, (Code::ResetLimit, HELP));
    let most = most.and_then(|most| limit(most.span, (most.value.into(), "times")));
    let seconds = within.and_then(|within| limit(within.span, (within.value, "seconds")));
    // A key that is spelled wrong is the fault; that it is missing only follows from that.
    if reader.unknown().next().is_none()
        && let Some(missing) = reader.missing().first()
    {
        reader.report(
            Finding::new(
                Code::ResetLimit,
                "resets have a limit: how often, and in which time",
            )
            .at(span, format!("needs `{missing}`"))
            .help(HELP),
        );
    }
    reader.finish();
    Some(Limit {
        most: most?,
        seconds: seconds?,
    })
}

/// Reads `ptimer` and `time`: where it says that the physical timer is the VM's own, and whether its time stands
/// still while it is paused.
pub(super) fn time(reader: &mut Reader) -> (Option<super::Span>, bool) {
    let own = reader.read(const { VM.word("ptimer") });
    let own = own.filter(|word| word.value == "own");
    let stops = reader.read(const { VM.word("time") });
    let stops = stops.filter(|word| word.value == "stops");
    if let (Some(own), Some(stops)) = (&own, &stops) {
        reader.report(
            Finding::new(
                Code::TimeOwnTimer,
                "only the virtual timer of this VM stands still while it is paused",
            )
            .at(
                own.span.clone(),
                "its own physical timer goes on, as the board's time does",
            )
            .at(stops.span.clone(), "stops the VM's virtual time")
            .help("a guest that uses the virtual timer alone, as Linux does, sees no difference"),
        );
    }
    (own.map(|own| own.span), stops.is_some())
}

/// Checks that the VMs that are told of crashes exist. `vms`: the name of each VM, and the action when it crashes.
/// `declared` are the names of all VMs in the file: errors of one of them are reported where it stands, and not again here.
pub(super) fn notified<'a>(
    vms: impl Iterator<Item = (&'a Placed<String>, &'a CrashSpec)>,
    declared: &[String],
    findings: &mut Vec<Finding>,
) {
    for (vm, crash) in vms {
        let CrashSpec::Notify(told) = crash else {
            continue;
        };
        if told.value == vm.value {
            findings.push(
                Finding::new(
                    Code::CrashItself,
                    format!("`{}` cannot be told of its own crash", vm.value),
                )
                .at(told.span.clone(), "names the VM itself")
                .at(vm.span.clone(), "this VM")
                .help("name another VM, or say crash = \"halt\""),
            );
        } else if !declared.contains(&told.value) {
            let finding = Finding::new(
                Code::CrashUnknownVm,
                format!("there is no VM `{}`", told.value),
            )
            .at(told.span.clone(), "not described here");
            let names = declared.iter().map(String::as_str);
            let names = names.filter(|name| *name != vm.value);
            findings.push(finding.help(other_vm(&told.value, names)));
        }
    }
}

/// Reads `smc`: identifiers of calls that the VM may make, ascending.
pub(super) fn calls(reader: &mut Reader) -> Vec<u32> {
    let mut calls: Vec<Placed<u32>> = Vec::new();
    for call in reader
        .read(const { VM.numbers("smc") })
        .map_or_else(Vec::new, |list| list.value)
    {
        if !may_be_allowed(call.value) {
            reader.report(
                Finding::new(
                    Code::SmcFunction,
                    format!("a VM cannot be allowed the call {:#010x}", call.value),
                )
                .at(call.span.clone(), owner(call.value))
                .help(
                    "fast calls of the SoC's vendor (0x82.., 0xc2..), of the board's (0x83.., \
                     0xc3..) and of a trusted OS (0xb2.. to 0xbf.., 0xf2.. to 0xff..) can be allowed",
                ),
            );
        } else if let Some(first) = calls.iter().find(|other| other.value == call.value) {
            reader.report(
                Finding::new(
                    Code::SmcTwice,
                    format!("the call {:#010x} is allowed twice", call.value),
                )
                .at(call.span.clone(), "again")
                .at(first.span.clone(), "here first")
                .help("leave one of them out"),
            );
        }
        calls.push(call);
    }
    let mut calls: Vec<u32> = calls.into_iter().map(|call| call.value).collect();
    calls.sort_unstable();
    calls
}

/// Owner of a call, which is the reason why it cannot be allowed (DEN0028, ranges of function
/// identifiers).
fn owner(function: u32) -> String {
    let fast = function & 1 << 31 != 0;
    let owner = match function >> 24 & 0x3f {
        _ if !fast => "a yielding call: it may keep a CPU for as long as it likes",
        0 => "of the architecture: Bulkhead answers these",
        1 => "of the CPU: Bulkhead answers these",
        2 | 3 | 50..=63 => "bits 23 to 16 of a fast call are 0",
        4 => "of the standard services, such as PSCI: Bulkhead answers these",
        5 | 6 => "of the hypervisor: Bulkhead answers these",
        48 | 49 => "of a trusted application: these go through its trusted OS",
        _ => "of a service that is not assigned",
    };
    owner.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_that_is_refused_has_a_reason() {
        assert!(owner(0x8400_0003).contains("PSCI"));
        assert!(owner(0x0200_0001).contains("yielding"));
        assert!(owner(0xc201_0000).contains("bits 23 to 16"));
        assert!(owner(0xb100_0000).contains("trusted application"));
        assert!(owner(0x9000_0000).contains("not assigned"));
    }
}

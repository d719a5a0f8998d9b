//! Findings of the planner about a description that is already known to be wrong, so that all are shown at once.
//!
//! Findings that may only follow from a known error are held back: those about its words, those that depend on a board
//! or a VM of which something could not be read, and warnings.

use bulkhead_model::board::Board;
use bulkhead_model::describe::{Code, Finding, Span, System};

use crate::Sources;

/// Findings that depend on one word only, and not on the rest of its table.
const OF_ONE_WORD: [Code; 9] = [
    Code::ConsoleService,
    Code::DeviceRefused,
    Code::DeviceResets,
    Code::DeviceShared,
    Code::ImageInitrd,
    Code::ImageKernel,
    Code::ImageUnknown,
    Code::ImageUnreadable,
    Code::PcpuUnknown,
];
/// Findings that depend on the descriptions of all VMs.
const OF_ALL_VMS: [Code; 3] = [Code::PcpuTooFew, Code::ServicePcpu, Code::ServiceRoom];
/// Findings that are the same on every board.
const ON_ANY_BOARD: [Code; 14] = [
    Code::CpuOverload,
    Code::DeviceShared,
    Code::DiskImage,
    Code::DiskSmall,
    Code::ImageInitrd,
    Code::ImageKernel,
    Code::ImagePlace,
    Code::ImageProgram,
    Code::ImageTree,
    Code::ImageUnknown,
    Code::ImageUnreadable,
    Code::MemorySmall,
    Code::PcpuFull,
    Code::PcpuShared,
];
/// Findings that are the same on every board if both parties stand in the description.
const OF_TWO_PARTIES: [Code; 2] = [Code::MemoryOverlap, Code::MemoryTaken];

/// Subjects of errors in the table of a VM after which the planner would see another VM than was meant.
const MISREAD: [&str; 11] = [
    "class",
    "cpu",
    "interrupts",
    "key",
    "memory",
    "pcpu",
    "toml",
    "value",
    "vcpu",
    "version",
    "vm",
];

/// Those after which it would see other budgets, or on other CPUs.
const MISREAD_TIME: [&str; 7] = ["class", "cpu", "key", "pcpu", "toml", "value", "vcpu"];

/// Adds findings of the planner that do not follow from `findings`. `board` is the one of the description, if it could be
/// found; `sources` gives the files that are there.
pub fn look(
    system: &System,
    board: Option<Board>,
    sources: &dyn Sources,
    findings: &mut Vec<Finding>,
) {
    let tables = system.text.tables();
    let table = |place: &Span| tables.iter().position(|table| table.contains(&place.start));
    let errors = || findings.iter().filter(|finding| finding.is_error());
    let words: Vec<Span> = errors()
        .flat_map(|finding| &finding.labels)
        .map(|(place, _)| place.clone())
        .collect();
    let first = |finding: &Finding| finding.labels.first().and_then(|(place, _)| table(place));
    let wrong: Vec<usize> = errors().filter_map(first).collect();
    // A key that is misspelt was read as what it means, and one that is like no other can be left out. What other tools
    // say was not understood.
    let stray = |finding: &&Finding| {
        let help = finding.help.as_deref().unwrap_or_default();
        let understood = ["did you mean", "the keys are", "leave it out"];
        finding.code.subject() == "key" && understood.iter().any(|words| help.starts_with(words))
    };
    let misread_by = |subjects: &[&str]| -> Vec<usize> {
        errors()
            .filter(|finding| subjects.contains(&finding.code.subject()) && !stray(finding))
            .filter_map(first)
            .collect()
    };
    let (misread, misread_time) = (misread_by(&MISREAD), misread_by(&MISREAD_TIME));

    let place = system.board.as_ref().map(|board| board.place());
    let sound = place.is_some_and(|place| !table(&place).is_some_and(|at| wrong.contains(&at)));
    let board = board.filter(|_| sound);
    let is_known = board.is_some();

    let mut more = findings.clone();
    // Planning cannot succeed: the errors are in the list that it gets.
    let board = board.unwrap_or_else(Board::any);
    let _ = crate::plan(system, board, None, sources, &mut more);
    let is_news = |finding: &Finding| {
        let code = finding.code;
        let mut places = finding.labels.iter().map(|(place, _)| place);
        let meets = places.clone().any(|place| {
            let mut words = words.iter();
            words.any(|word| word.start < place.end && place.start < word.end)
        });
        let of_here = ON_ANY_BOARD.contains(&code)
            || OF_TWO_PARTIES.contains(&code) && finding.labels.len() > 1;
        let of_vms = !OF_ALL_VMS.contains(&code) || misread.is_empty();
        let misread = match code {
            Code::CpuOverload => &misread_time,
            _ => &misread,
        };
        let read = !places.any(|place| table(place).is_some_and(|at| misread.contains(&at)));
        finding.is_error()
            && !meets
            && (is_known || of_here)
            && (OF_ONE_WORD.contains(&code) || of_vms && read)
    };
    let more = more.into_iter().skip(findings.len());
    let more: Vec<Finding> = more.filter(is_news).collect();
    findings.extend(more);
}

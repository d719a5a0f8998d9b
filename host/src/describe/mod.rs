//! The description of a system: one TOML file, read with the place of every word, so that whatever is
//! wrong can be shown where it stands.

mod board;
mod class;
mod cpu;
mod doorbell;
mod finding;
mod policy;
mod reader;
mod shared;
mod size;
mod suggest;
mod vm;

use std::fs;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

pub use board::{BoardSource, BoardSpec};
pub use class::{Deviation, InterruptSpec, class_name, gic_version};
pub use cpu::{CpuSpec, CpuTime};
pub use doorbell::DoorbellSpec;
pub use finding::{Finding, Span, Text};
pub use policy::CrashSpec;
pub use reader::{Placed, Reader};
pub use shared::SharedSpec;
pub use size::{Duration, Size, parse_size};
pub use suggest::nearest;
pub use vm::{MemorySpec, PayloadSpec, VmSpec};

use crate::failure::Failure;

/// Keys at the top.
const KEYS: &[&str] = &["board", "vm", "shared", "doorbell", "console"];

/// A description as its file tells it: every value of the right kind, nothing looked up yet.
#[derive(Clone, Debug)]
pub struct System {
    /// Name: that of the file without its ending.
    pub name: String,
    /// Folder of the file; paths in it start here.
    pub folder: PathBuf,
    /// Text of the file, for messages.
    pub text: Text,
    /// The board.
    pub board: BoardSpec,
    /// VMs in the order of the file.
    pub vms: Vec<VmSpec>,
    /// Shared memory in the order of the file.
    pub shared: Vec<SharedSpec>,
    /// Doorbells in the order of the file.
    pub doorbells: Vec<DoorbellSpec>,
    /// CPU of the board that drains the console, if the file says so.
    pub service: Option<Placed<u32>>,
}

/// Reads the text of a description.
///
/// # Errors
/// The file cannot be read.
pub fn load(path: &Path) -> Result<Text, Failure> {
    let source = fs::read_to_string(path).map_err(|why| {
        Failure::input(
            format!("cannot read {}", path.display()),
            why,
            "give the path of a system description, such as systems/hello.toml",
        )
    })?;
    Ok(Text {
        name: path.display().to_string(),
        source: source.into(),
    })
}

/// Understands a description. `findings` gets everything that is wrong with it; without a system
/// there is an error among them, and with one there may be as well.
pub fn parse(text: &Text, findings: &mut Vec<Finding>) -> Option<System> {
    let (document, errors) = DeTable::parse_recoverable(&text.source);
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        let finding = Finding::new("bulkhead::toml::syntax", "this is not TOML");
        findings.push(finding.at(span, error.message()));
    }
    if !errors.is_empty() {
        return None;
    }
    let root = document.get_ref();
    let mut top = Reader::new(root, "a system", KEYS, findings);
    let board = table(&mut top, "board");
    let vms = named_tables(&mut top, "vm");
    let shared = named_tables(&mut top, "shared");
    let doorbells = named_tables(&mut top, "doorbell");
    let console = table(&mut top, "console");
    top.finish();

    let declared: Vec<String> = vms.iter().map(|(name, _)| name.value.clone()).collect();
    let vms: Vec<_> = vms
        .into_iter()
        .filter_map(|(name, table)| vm::read(name, table, findings))
        .collect();
    if vms.is_empty() && findings.is_empty() {
        findings.push(
            Finding::new("bulkhead::vm::none", "a system needs a VM")
                .help("add a table such as [vm.hello] with `memory` and `image`"),
        );
    }
    let shared: Vec<_> = shared
        .into_iter()
        .filter_map(|(name, table)| shared::read(name, table, (&vms, &declared), findings))
        .collect();
    let rest = (&vms[..], &declared[..], &shared[..]);
    let doorbells: Vec<_> = doorbells
        .into_iter()
        .filter_map(|(name, table)| doorbell::read(name, table, rest, findings))
        .collect();
    doorbell::count(&doorbells, findings);
    policy::notified(&vms, &declared, findings);
    let service = console.and_then(|table| {
        let mut reader = Reader::new(table, "the console", &["service"], findings);
        let service = reader.number("service");
        reader.finish();
        service
    });
    let Some(board) = board else {
        if root.get("board").is_none() {
            findings.push(
                Finding::new("bulkhead::board::missing", "the description names no board")
                    .help("add a table [board] with name = \"qemu-virt\", or with a `dtb`"),
            );
        }
        return None;
    };
    let board = board::read(board, findings)?;
    let path = Path::new(&text.name);
    Some(System {
        name: path
            .file_stem()
            .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()),
        folder: path.parent().map_or_else(PathBuf::new, Path::to_owned),
        text: text.clone(),
        board,
        vms,
        shared,
        doorbells,
        service,
    })
}

/// The table at `key`.
fn table<'a, 'i>(reader: &mut Reader<'a, 'i, '_>, key: &'static str) -> Option<&'a DeTable<'i>> {
    let value = reader.value(key)?;
    let table = value.get_ref().as_table();
    if table.is_none() {
        reader.report(
            Finding::new("bulkhead::value::type", format!("`{key}` must be a table"))
                .at(value.span(), format!("this is no [{key}]")),
        );
    }
    table
}

/// The tables under `key` with their names.
fn named_tables<'a, 'i>(
    reader: &mut Reader<'a, 'i, '_>,
    key: &'static str,
) -> Vec<(Placed<String>, &'a DeTable<'i>)> {
    let mut tables = Vec::new();
    for (name, value) in table(reader, key)
        .into_iter()
        .flat_map(|table| table.iter())
    {
        match value.get_ref() {
            DeValue::Table(table) => {
                let name = Placed {
                    value: name.get_ref().to_string(),
                    span: name.span(),
                };
                tables.push((name, table));
            }
            _ => reader.report(
                Finding::new(
                    "bulkhead::value::type",
                    format!("`{key}` holds tables with names"),
                )
                .at(name.span(), format!("did you mean a key of [{key}.NAME]?")),
            ),
        }
    }
    tables
}

//! The description of a system: one TOML file, read with the place of every word, so that each error
//! can be shown at its place.

mod bandwidth;
mod board;
mod channel;
mod class;
mod code;
mod colours;
mod cpu;
mod disk;
mod doorbell;
mod emulated;
mod finding;
mod foreign;
pub mod keys;
mod manages;
mod network;
mod passed;
mod pmem;
mod policy;
mod reader;
mod rights;
pub mod schema;
mod service;
mod shared;
mod size;
mod stop;
mod suggest;
mod syntax;
mod vm;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use crate::failure::Failure;
use keys::{CONSOLE, EL2, Key, SYSTEM};

pub use bandwidth::BandwidthSpec;
pub use board::{BoardSource, BoardSpec, CacheSpec, memory_ranges};
pub use channel::{ChannelEnd, ChannelSpec};
pub use class::{BoardGic, Deviation, InterruptSpec, class_name, gic_version};
pub use code::{Code, Severity};
pub use colours::{ColoursSpec, colours_text};
pub use cpu::{CpuSpec, CpuTime};
pub use disk::{DiskAccess, DiskSpec};
pub use doorbell::DoorbellSpec;
pub use emulated::{DeviceSpec, GicSpec};
pub use finding::{Finding, Position, Span, Text, Verdict};
pub use manages::ManagesSpec;
pub use network::{Mac, NetworkSpec, PortSpec};
pub use passed::PassedSpec;
pub use pmem::PmemRegion;
pub use policy::{CrashSpec, Limit, RESETS};
pub use reader::{Placed, Reader};
pub use rights::rights;
pub use service::{NAME as SERVICE_NAME, ServiceSpec};
pub use shared::SharedSpec;
pub use size::{Duration, Notation, Size, parse_address, parse_size};
pub use stop::{StopBy, StopSpec};
pub use suggest::{nearest, one_of};
pub use vm::{MemorySpec, PayloadSpec, VmSpec};
pub use words::{EVENTS, RESERVED};

/// A description as its file tells it: every value of the right kind, nothing looked up yet.
#[derive(Clone, Debug)]
pub struct System {
    /// Name: that of the file without its ending.
    pub name: String,
    /// Folder of the file; paths in it start here.
    pub folder: PathBuf,
    /// Text of the file, for messages.
    pub text: Text,
    /// The board, if the description says which.
    pub board: Option<BoardSpec>,
    /// VMs in the order of the file.
    pub vms: Vec<VmSpec>,
    /// Shared memory in the order of the file.
    pub shared: Vec<SharedSpec>,
    /// Doorbells in the order of the file.
    pub doorbells: Vec<DoorbellSpec>,
    /// Channels in the order of the file; their memory and doorbells are behind those of the file.
    pub channels: Vec<ChannelSpec>,
    /// Networks in the order of the file.
    pub networks: Vec<NetworkSpec>,
    /// What the file says of those who serve disks and networks.
    pub io: ServiceSpec,
    /// Colours of EL2's own memory.
    pub el2: ColoursSpec,
    /// CPU of the board that drains the console, if the file says so.
    pub service: Option<Placed<u32>>,
    /// Whether the console has the monitor, if the file says so.
    pub monitor: Option<Placed<bool>>,
}

impl System {
    /// The pmem region of VM `vm`; none if it is no Linux that maps cached memory, or has no channel that is cached.
    pub fn pmem(&self, vm: usize) -> Option<PmemRegion> {
        let own = |channel: &&ChannelSpec| channel.ends.iter().any(|end| end.vm == vm);
        let ends = self.channels.iter().filter(own).flat_map(|it| &it.ends);
        let memories = ends.filter_map(|end| self.shared.get(end.memory));
        let cached = memories.filter(|memory| memory.cacheable);
        let cached = cached.map(|memory| (memory.ipa.value, memory.size.value));
        PmemRegion::around(self.vms.get(vm)?, cached.collect())
    }
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

/// Parses a description as far as possible and adds all errors to `findings`. Each part that is left out of the system,
/// or made up so that parsing can go on, is such an error.
pub fn parse(text: &Text, findings: &mut Vec<Finding>) -> System {
    let (document, errors) = DeTable::parse_recoverable(&text.source);
    let before = findings.len();
    syntax::report(text, document.get_ref(), &errors, findings);
    let syntax = findings.len();
    let root = document.get_ref();
    let mut top = Reader::new(root, "a system", SYSTEM, findings);
    let board = table(&mut top, const { SYSTEM.key("board") });
    let board_place = top.key_span(const { SYSTEM.key("board") });
    let vms = named_tables(&mut top, const { SYSTEM.key("vm") });
    let shared = named_tables(&mut top, const { SYSTEM.key("shared") });
    let doorbells = named_tables(&mut top, const { SYSTEM.key("doorbell") });
    let channels = named_tables(&mut top, const { SYSTEM.key("channel") });
    let networks = named_tables(&mut top, const { SYSTEM.key("network") });
    let service_place = top.key_span(const { SYSTEM.key("service") });
    let io = table(&mut top, const { SYSTEM.key("service") });
    let el2 = table(&mut top, const { SYSTEM.key("el2") });
    let console = table(&mut top, const { SYSTEM.key("console") });
    top.finish();

    let declared: Vec<String> = vms.iter().map(|(name, _)| name.value.clone()).collect();
    let vms: Vec<_> = vms
        .into_iter()
        .map(|(name, table)| vm::read(name, table, findings))
        .collect();
    vm::count(&vms, findings);
    if vms.is_empty() && findings.is_empty() {
        findings.push(
            Finding::new(Code::VmNone, "a system needs a VM")
                .at(end(text), "no [vm.NAME] up to here")
                .help("add a table such as [vm.hello] with `memory` and `image`"),
        );
    }
    let shared_names: Vec<String> = shared.iter().map(|(name, _)| name.value.clone()).collect();
    let mut shared: Vec<_> = shared
        .into_iter()
        .filter_map(|(name, table)| shared::read(name, table, (&vms, &declared), findings))
        .collect();
    let rest = doorbell::Rest {
        vms: &vms,
        vm_names: &declared,
        shared: &shared,
        shared_names: &shared_names,
    };
    let mut doorbells: Vec<_> = doorbells
        .into_iter()
        .filter_map(|(name, table)| doorbell::read(name, table, rest, findings))
        .collect();
    let mut parts = channel::Parts {
        vms: &vms,
        vm_names: &declared,
        shared: &mut shared,
        doorbells: &mut doorbells,
    };
    let mut taken = 0;
    let channels: Vec<_> = channels
        .into_iter()
        .filter_map(|(name, table)| channel::read(name, table, &mut taken, &mut parts, findings))
        .collect();
    doorbell::count(&doorbells, findings);
    let networks: Vec<_> = networks
        .into_iter()
        .map(|(name, table)| network::read(name, table, findings))
        .collect();
    let ports: Vec<_> = vms.iter().flat_map(|vm| &vm.ports).collect();
    network::check(&networks, &ports, findings);
    let of_vms = vms.iter();
    let disks = of_vms.map(|vm| (vm.name.value.as_str(), vm.disks.as_slice()));
    disk::check(disks, findings);
    let io = service::read(service_place.zip(io), &vms, findings);
    let el2 = el2.map_or_else(ColoursSpec::default, |table| {
        let mut reader = Reader::new(table, "EL2", EL2, findings);
        let colours = colours::of_el2(&mut reader);
        reader.finish();
        colours
    });
    let crashes = vms.iter().map(|vm| (&vm.name, &vm.crash));
    policy::notified(crashes, &declared, findings);
    let (service, monitor) = console.map_or((None, None), |table| {
        let mut reader = Reader::new(table, "the console", CONSOLE, findings);
        let service = reader.read(const { CONSOLE.number("service") });
        let monitor = reader.read(const { CONSOLE.flag("monitor") });
        reader.finish();
        (service, monitor)
    });
    let has_monitor = monitor
        .as_ref()
        .is_none_or(|monitor: &Placed<bool>| monitor.value);
    rights::check(&vms, &declared, has_monitor, findings);
    let board = match (board, board_place) {
        (Some(table), place) => board::read(place.unwrap_or(0..0), table, findings),
        (None, Some(_)) => None,
        (None, None) => {
            findings.push(
                Finding::new(Code::BoardMissing, "the description names no board")
                    .at(end(text), "no [board] up to here")
                    .help("add a table [board] with name = \"qemu-virt\", or with a `dtb`"),
            );
            None
        }
    };
    if before < syntax {
        syntax::drop_what_follows(text, before..syntax, findings);
    }
    let path = Path::new(&text.name);
    System {
        name: path
            .file_stem()
            .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()),
        folder: path.parent().map_or_else(PathBuf::new, Path::to_owned),
        text: text.clone(),
        board,
        vms,
        shared,
        doorbells,
        channels,
        networks,
        io,
        el2,
        service,
        monitor,
    }
}

/// The last character of a text, at which a missing part of the whole is reported.
fn end(text: &Text) -> Span {
    let last = text.source.trim_end().char_indices().next_back();
    last.map_or(0..0, |(start, c)| start..start + c.len_utf8())
}

/// The table at `key`.
fn table<'a, 'i>(reader: &mut Reader<'a, 'i, '_>, key: &Key) -> Option<&'a DeTable<'i>> {
    let value = reader.value(key)?;
    let key = key.name;
    let table = value.get_ref().as_table();
    if table.is_none() {
        reader.report(
            Finding::new(Code::ValueType, format!("`{key}` must be a table"))
                .at(value.span(), format!("this is no [{key}]"))
                .help(format!(
                    "start it with [{key}], or [{key}.NAME] where there are several"
                )),
        );
    }
    table
}

/// The tables under `key` with their names.
fn named_tables<'a, 'i>(
    reader: &mut Reader<'a, 'i, '_>,
    key: &Key,
) -> Vec<(Placed<String>, &'a DeTable<'i>)> {
    let mut tables = Vec::new();
    let of_key = table(reader, key);
    let key = key.name;
    for (name, value) in of_key.into_iter().flat_map(|table| table.iter()) {
        match value.get_ref() {
            DeValue::Table(table) => {
                let name = Placed {
                    value: name.get_ref().to_string(),
                    span: name.span(),
                };
                tables.push((name, table));
            }
            _ => reader.report(
                Finding::new(Code::ValueType, format!("`{key}` holds tables with names"))
                    .at(name.span(), "no table")
                    .help(format!("did you mean a key of [{key}.NAME]?")),
            ),
        }
    }
    tables
}

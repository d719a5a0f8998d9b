//! `[channel.NAME]`: messages between two VMs. A channel is memory of each end, which the other reads, and a doorbell to each end
//! that is to be told.

use bulkhead_abi::plan::{MAX_APART, MIN_APART, PAGE};
use bulkhead_channel::Shape;
use toml::de::{DeTable, DeValue};

use super::code::Code;
use super::doorbell::{APART, DoorbellSpec};
use super::finding::Finding;
use super::keys::{CHANNEL, DOORBELL_END, POLLING_END};
use super::pmem::{self, PmemRegion, is_linux};
use super::reader::{Placed, Reader, check_name};
use super::shared::SharedSpec;
use super::size::Duration;
use super::suggest::other_vm;
use super::vm::VmSpec;

/// IPA of the first channel's memory, if the description does not say: beside RAM, where a guest maps memory anyway, or, if
/// an end has more RAM than fits below, where QEMU's `virt` has the window of a PCI host.
const PLACES: [u64; 2] = [0x7000_0000, 0x1000_0000];
/// IPA of the pmem region of a Linux in which the first cached channel's memory is, likewise: a guest maps it anyway, too.
const PMEM: u64 = 0x7800_0000;
/// Bytes of the longest message, if the description does not say.
const MESSAGE: u32 = 64;
/// Messages that wait, likewise.
const MESSAGES: u32 = 64;

/// `[channel.NAME]`.
#[derive(Clone, Debug)]
pub struct ChannelSpec {
    /// Name: label in the device trees of both VMs.
    pub name: Placed<String>,
    /// Its two ends, in the order of the VMs.
    pub ends: [ChannelEnd; 2],
    /// Length and number of its messages.
    pub shape: Shape,
}

/// One end of a channel.
#[derive(Clone, Debug)]
pub struct ChannelEnd {
    /// Index of the VM.
    pub vm: usize,
    /// Index of the shared memory that it writes and the other reads.
    pub memory: usize,
    /// Whether it is told of messages, by a doorbell.
    pub hears: bool,
}

/// What channels are made of.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    /// VMs that are sound so far.
    pub vms: &'a [VmSpec],
    /// Names of all VMs in the file.
    pub vm_names: &'a [String],
    /// All shared memory; that of channels is added.
    pub shared: &'a mut Vec<SharedSpec>,
    /// All doorbells, likewise.
    pub doorbells: &'a mut Vec<DoorbellSpec>,
}

/// Reads `[channel.NAME]`. `taken` is how many bytes channels take that do not say where their memory is.
pub(super) fn read(
    name: Placed<String>,
    table: &DeTable,
    taken: &mut u64,
    parts: &mut Parts,
    findings: &mut Vec<Finding>,
) -> Option<ChannelSpec> {
    check_name(&name, Code::ChannelName, "a channel", findings);
    let mut reader = Reader::new(table, "a channel", CHANNEL, findings);
    let message = reader.read(const { CHANNEL.number("message") });
    let messages = reader.read(const { CHANNEL.number("messages") });
    let ipa = reader.read(const { CHANNEL.quantity("ipa") });
    let apart = reader.read(const { CHANNEL.quantity("apart") });
    let cacheable = reader.read(const { CHANNEL.flag("cacheable") });
    let ends = ends(&name, &mut reader, parts);
    let shape = shape(&name, message, messages, &mut reader);
    if let Some(ipa) = &ipa
        && ipa.value % PAGE != 0
    {
        reader.report(
            Finding::new(
                Code::MemoryAlign,
                "the memory of a channel comes in pages of 4 KiB",
            )
            .at(ipa.span.clone(), "not a multiple of 4 KiB")
            .help(format!(
                "{:#x} is one, and without `ipa` the planner has one",
                ipa.value & !(PAGE - 1)
            )),
        );
    }
    if let Some(apart) = &apart
        && !(MIN_APART..=MAX_APART).contains(&apart.value)
    {
        let (least, most) = (Duration(MIN_APART), Duration(MAX_APART));
        reader.report(
            Finding::new(
                Code::DoorbellApart,
                format!(
                    "the ends of channel `{}` cannot be told so often, or so seldom",
                    name.value
                ),
            )
            .at(
                apart.span.clone(),
                format!("{least} to {most} from one interrupt to the next"),
            )
            .help(format!(
                "leave `apart` out: {} is the default",
                Duration(APART)
            )),
        );
    }
    reader.finish();
    let ([first, second], shape) = (ends?, shape?);
    let linux: Vec<_> = [&first, &second]
        .into_iter()
        .filter(|end| is_linux(&parts.vms[end.value.0]))
        .collect();
    let size = (shape.bytes() as u64).next_multiple_of(PAGE);
    let stated = cacheable.as_ref().filter(|stated| stated.value);
    let is_cached = cacheable.as_ref().map_or(linux.is_empty(), |it| it.value);
    let spans = (name.span.clone(), ipa.map(|ipa| (ipa.value, ipa.span)));
    let start = match &spans.1 {
        Some((ipa, _)) => *ipa,
        None => {
            let vms = [&first, &second].map(|end| end.value.0);
            let specs = vms.map(|vm| &parts.vms[vm]);
            let base = match is_cached && !linux.is_empty() {
                true => cached_place(specs),
                false => place(specs),
            };
            let start = beside(parts.shared, vms, base.saturating_add(*taken), 2 * size);
            *taken = start.saturating_add(2 * size) - base;
            start
        }
    };
    if let Some(stated) = stated {
        for end in &linux {
            if let Some((why, help)) = pmem::why_not(&parts.vms[end.value.0], start) {
                let what = format!(
                    "a program of Linux does not see what is cached of channel `{}`",
                    name.value
                );
                findings.push(
                    Finding::new(Code::ChannelCached, what)
                        .at(stated.span.clone(), "its other end may cache its memory")
                        .at(end.span.clone(), why)
                        .help(help),
                );
            }
        }
    }
    let at = spans.1.map_or(spans.0, |(_, span)| span);
    let mut memory = |own: &Placed<(usize, bool)>, other: &Placed<(usize, bool)>, ipa: u64| {
        let mut vms = vec![
            (own.value.0, own.clone().map(|_| true)),
            (other.value.0, other.clone().map(|_| false)),
        ];
        vms.sort_by_key(|(vm, _)| *vm);
        parts.shared.push(SharedSpec {
            name: Placed {
                value: format!(
                    "channel {}, written by {}",
                    name.value, parts.vms[own.value.0].name.value
                ),
                span: name.span.clone(),
            },
            size: Placed {
                value: size,
                span: name.span.clone(),
            },
            ipa: Placed {
                value: ipa,
                span: at.clone(),
            },
            vms,
            cacheable: is_cached,
            is_added: true,
        });
        parts.shared.len() - 1
    };
    let memories = [
        memory(&first, &second, start),
        memory(&second, &first, start.saturating_add(size)),
    ];
    let apart = apart.map_or(APART, |apart| apart.value);
    for (from, to, memory) in [
        (&first, &second, memories[0]),
        (&second, &first, memories[1]),
    ] {
        if to.value.1 {
            let hearing = &parts.vms[to.value.0].name.value;
            parts.doorbells.push(DoorbellSpec {
                name: name
                    .clone()
                    .map(|name| format!("channel {name} to {hearing}")),
                from: from.value.0,
                to: to.clone().map(|(vm, _)| vm),
                shared: Some(memory),
                apart,
                is_added: true,
            });
        }
    }
    let end = |end: Placed<(usize, bool)>, memory| ChannelEnd {
        vm: end.value.0,
        memory,
        hears: end.value.1,
    };
    Some(ChannelSpec {
        ends: [end(first, memories[0]), end(second, memories[1])],
        name,
        shape,
    })
}

/// The place of channels between two VMs.
fn place(ends: [&VmSpec; 2]) -> u64 {
    let [beside, below] = PLACES;
    let reaches = |vm: &VmSpec| {
        let ram = vm.memory.start();
        ram < beside && ram.saturating_add(vm.memory.size.value) > beside
    };
    match ends.into_iter().any(reaches) {
        true => below,
        false => beside,
    }
}

/// The place of cached channels of which an end is a Linux: in a pmem region above the start of its RAM, and of nobody's RAM.
fn cached_place(ends: [&VmSpec; 2]) -> u64 {
    let end = |vm: &VmSpec| vm.memory.start().saturating_add(vm.memory.size.value);
    let is_beside = |vm: &VmSpec| vm.memory.start() < PMEM && end(vm) <= PMEM;
    let start = match ends.into_iter().all(is_beside) {
        true => PMEM,
        false => ends.map(end).into_iter().fold(0, u64::max),
    };
    let start = start.checked_next_multiple_of(pmem::BLOCK);
    start.unwrap_or(0).saturating_add(PmemRegion::DATA)
}

/// The first place from `start` on at which no shared memory of these VMs is whose place the user has chosen.
fn beside(shared: &[SharedSpec], vms: [usize; 2], start: u64, size: u64) -> u64 {
    let theirs = |spec: &&SharedSpec| spec.vms.iter().any(|(vm, _)| vms.contains(vm));
    let mut taken: Vec<(u64, u64)> = shared
        .iter()
        .filter(theirs)
        .map(|spec| {
            (
                spec.ipa.value,
                spec.ipa.value.saturating_add(spec.size.value),
            )
        })
        .collect();
    taken.sort_unstable();
    taken.into_iter().fold(start, |start, (from, to)| {
        let is_free = to <= start || from >= start.saturating_add(size);
        match to.checked_next_multiple_of(PAGE) {
            Some(behind) if !is_free => behind,
            _ => start,
        }
    })
}

/// Length and number of the messages.
fn shape(
    name: &Placed<String>,
    message: Option<Placed<u32>>,
    messages: Option<Placed<u32>>,
    reader: &mut Reader,
) -> Option<Shape> {
    let value = |of: &Option<Placed<u32>>, default| of.as_ref().map_or(default, |of| of.value);
    let (bytes, count) = (value(&message, MESSAGE), value(&messages, MESSAGES));
    let made = |bytes: u32, count: u32| {
        Shape::new(
            usize::try_from(bytes).unwrap_or(0),
            usize::try_from(count).unwrap_or(0),
        )
    };
    let shape = made(bytes, count);
    for (stated, alone, rule, near) in [
        (
            message,
            made(bytes, MESSAGES),
            "1 to 4096 bytes",
            bytes.clamp(1, 4096),
        ),
        (
            messages,
            made(MESSAGE, count),
            "a power of two, up to 65536",
            count.clamp(1, 65_536).next_power_of_two(),
        ),
    ] {
        if let (Some(stated), None) = (stated, alone) {
            let what = format!("channel `{}` cannot have such messages", name.value);
            reader.report(
                Finding::new(Code::ChannelShape, what)
                    .at(stated.span, rule)
                    .help(format!("{near} is next to it")),
            );
        }
    }
    shape
}

/// The two ends: VM, and whether it hears, with the place of its name; in the order of the VMs.
fn ends(
    name: &Placed<String>,
    reader: &mut Reader,
    parts: &Parts,
) -> Option<[Placed<(usize, bool)>; 2]> {
    let such_as = format!("such as ends = {{ a = \"{DOORBELL_END}\", b = \"{POLLING_END}\" }}");
    let value = reader.value(const { CHANNEL.key("ends") });
    let Some(value) = value else {
        reader.report(
            Finding::new(
                Code::ChannelIncomplete,
                format!("channel `{}` is incomplete", name.value),
            )
            .at(name.span.clone(), "needs ends")
            .help(such_as),
        );
        return None;
    };
    let DeValue::Table(table) = value.get_ref() else {
        let what = "`ends` must be a table of two VMs and how each hears of messages";
        reader.report(
            Finding::new(Code::ValueType, what)
                .at(value.span(), "no table")
                .help(such_as),
        );
        return None;
    };
    if table.len() != 2 {
        reader.report(
            Finding::new(
                Code::ChannelEnds,
                format!("channel `{}` has to have two ends", name.value),
            )
            .at(value.span(), format!("{} here", table.len()))
            .help("a channel is between two VMs; several channels may have the same VM at one end"),
        );
        return None;
    }
    let mut found = Vec::new();
    for (vm, how) in table.iter() {
        let hears = match how.get_ref().as_str() {
            Some(DOORBELL_END) => Some(true),
            Some(POLLING_END) => Some(false),
            _ => {
                let vm = vm.get_ref();
                reader.report(
                    Finding::new(
                        Code::ChannelEnds,
                        format!(
                            "an end hears of messages by \"{DOORBELL_END}\", or looks: \"{POLLING_END}\""
                        ),
                    )
                    .at(how.span(), "neither")
                    .help(format!(
                        "say {vm} = \"{DOORBELL_END}\" if it is to be interrupted, else {vm} = \"{POLLING_END}\""
                    )),
                );
                None
            }
        };
        if !parts.vm_names.iter().any(|known| known == vm.get_ref()) {
            let what = format!("there is no VM `{}`", vm.get_ref());
            let known = parts.vm_names.iter().map(String::as_str);
            reader.report(
                Finding::new(Code::ChannelUnknownVm, what)
                    .at(vm.span(), "not described here")
                    .help(other_vm(vm.get_ref(), known)),
            );
        }
        // A VM that is described but missing here has an error of its own, which is reported at its place.
        let mut vms = parts.vms.iter();
        let index = vms.position(|known| known.name.value == *vm.get_ref());
        found.extend(index.zip(hears).map(|value| Placed {
            value,
            span: vm.span(),
        }));
    }
    found.sort_by_key(|end| end.value.0);
    found.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_has_its_place_beside_other_memory_of_its_ends() {
        let placed = |value| Placed { value, span: 0..0 };
        let memory = |ipa, size, vms: &[usize]| SharedSpec {
            name: Placed {
                value: String::new(),
                span: 0..0,
            },
            size: placed(size),
            ipa: placed(ipa),
            vms: vms
                .iter()
                .map(|vm| {
                    (
                        *vm,
                        Placed {
                            value: true,
                            span: 0..0,
                        },
                    )
                })
                .collect(),
            cacheable: true,
            is_added: false,
        };
        let start = PLACES[0];
        let at = |shared: &[SharedSpec]| beside(shared, [1, 2], start, 2 * PAGE) - start;
        assert_eq!(at(&[]), 0);
        assert_eq!(at(&[memory(start, PAGE, &[0, 3])]), 0, "of others");
        assert_eq!(at(&[memory(start + PAGE, PAGE, &[2, 3])]), 2 * PAGE);
        assert_eq!(at(&[memory(start + 2 * PAGE, PAGE, &[1])]), 0, "behind");
        assert_eq!(at(&[memory(start - PAGE, PAGE, &[1])]), 0, "before");
        let two = [
            memory(start + 3 * PAGE, PAGE + 1, &[1]),
            memory(start, 2 * PAGE, &[2]),
        ];
        assert_eq!(at(&two), 5 * PAGE, "in any order");
        assert_eq!(
            at(&[memory(start, u64::MAX, &[1])]),
            0,
            "which another rule refuses"
        );
    }
}

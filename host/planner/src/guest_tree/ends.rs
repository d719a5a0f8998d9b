//! What a VM is told by, as it sees it: doorbells and channels of others, and EL2's wish that it stops.

use bulkhead_abi::plan::PAGE;
use bulkhead_abi::shared_page::stop::WORD;
use bulkhead_channel::Shape;
use bulkhead_model::describe::{self, ChannelSpec, PmemRegion, System};

use super::build::{Build, EDGE};
use crate::planned::{PlannedDoorbell, PlannedStop, StopWay};

/// A doorbell as one of its two VMs sees it.
#[derive(Clone, Copy, Debug)]
pub struct DoorbellEnd<'a> {
    /// Name.
    pub name: &'a str,
    /// Way in which the VM uses it.
    pub way: Way,
    /// Name of the shared memory that it is about.
    pub shared: Option<&'a str>,
}

/// A channel as one of its two VMs sees it.
#[derive(Clone, Copy, Debug)]
pub struct ChannelEnd<'a> {
    /// Name.
    pub name: &'a str,
    /// Name of the VM at the other end.
    pub peer: &'a str,
    /// IPA and size of the memory that this end writes, and of that which the other writes.
    pub memory: [(u64, u64); 2],
    /// Whether it may be cached.
    pub cacheable: bool,
    /// Length and number of its messages.
    pub shape: Shape,
    /// IPA of the page by which it rings, if the other end hears.
    pub rings: Option<u64>,
    /// INTID by which it hears, if it does.
    pub hears: Option<u32>,
}

impl<'a> ChannelEnd<'a> {
    /// End of a channel that VM `vm` has; none if it has neither.
    pub fn of(
        channel: &'a ChannelSpec,
        vm: usize,
        system: &'a System,
        doorbells: &[PlannedDoorbell],
    ) -> Option<Self> {
        let [first, second] = &channel.ends;
        let (own, peer) = match vm {
            vm if vm == first.vm => (first, second),
            vm if vm == second.vm => (second, first),
            _ => return None,
        };
        let memory = |end: &describe::ChannelEnd| {
            let memory = &system.shared[end.memory];
            (memory.ipa.value, memory.size.value)
        };
        // A doorbell is about what is written by who rings it.
        let bell = |writer: &describe::ChannelEnd| {
            let written = system.shared[writer.memory].name.value.as_str();
            doorbells
                .iter()
                .find(|bell| bell.shared.as_deref() == Some(written))
        };
        Some(Self {
            name: &channel.name.value,
            peer: &system.vms[peer.vm].name.value,
            memory: [memory(own), memory(peer)],
            cacheable: system.shared[own.memory].cacheable,
            shape: channel.shape,
            rings: bell(own).map(|bell| bell.ipa),
            hears: bell(peer).map(|bell| bell.intid),
        })
    }
}

/// Way in which a VM uses a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It rings, by the page at this IPA.
    Rings(u64),
    /// It hears it by this INTID.
    Hears(u32),
}

impl<'a> DoorbellEnd<'a> {
    /// End of a doorbell that VM `vm` has; none if it has neither, or if the doorbell is a channel's.
    pub fn of(bell: &'a PlannedDoorbell, vm: usize) -> Option<Self> {
        if bell.is_added {
            return None;
        }
        let way = match vm {
            vm if vm == bell.from => Way::Rings(bell.ipa),
            vm if vm == bell.to => Way::Hears(bell.intid),
            _ => return None,
        };
        Some(Self {
            name: &bell.name,
            way,
            shared: bell.shared.as_deref(),
        })
    }
}

/// Nodes of a channel: what it is, and by what a Linux rings and hears.
pub(super) fn channel(end: &ChannelEnd, pmem: Option<&PmemRegion>) -> Vec<Build> {
    let [(own, size), (peer, peer_size)] = end.memory;
    let mut registers = vec![own, size, peer, peer_size];
    let mut names = vec!["own", "peer"];
    if let Some(page) = end.rings {
        registers.extend([page, PAGE]);
        names.push("doorbell");
    }
    // The planner's numbers are small.
    let cell = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let mut node = Build::new(format!("channel@{own:x}"))
        .texts("compatible", &["bulkhead,channel"])
        .texts("label", &[end.name])
        .texts("bulkhead,peer", &[end.peer])
        .wide("reg", &registers)
        .texts("reg-names", &names)
        .cells("bulkhead,message-size", &[cell(end.shape.message())])
        .cells("bulkhead,messages", &[cell(end.shape.messages())]);
    if !end.cacheable {
        node = node.bytes("bulkhead,uncached", &[]);
    } else if let Some(pmem) = pmem {
        node = node.wide("bulkhead,pmem", &[pmem.ipa, pmem.data()]);
    }
    if let Some(intid) = end.hears {
        node = node.cells("interrupts", &[0, intid - 32, EDGE]);
    }
    let mut nodes = vec![node];
    nodes.extend(end.rings.map(|page| line(end.name, page)));
    nodes.extend(end.hears.map(|intid| key(end.name, intid)));
    nodes
}

/// The node for a pmem region: persistent memory for Linux, which finds a block in it that says device-dax (drivers/nvdimm/of_pmem.c).
pub(super) fn pmem(pmem: &PmemRegion) -> Build {
    Build::new(format!("pmem@{:x}", pmem.ipa))
        .texts("compatible", &["pmem-region"])
        .wide("reg", &[pmem.ipa, pmem.size])
}

/// Nodes by which a Linux rings or hears a doorbell: they are for drivers that stock kernels have.
pub(super) fn way(end: &DoorbellEnd) -> Build {
    match end.way {
        Way::Rings(page) => line(end.name, page),
        Way::Hears(intid) => key(end.name, intid),
    }
}

/// A GPIO controller whose lines are the word of a doorbell: setting one writes the word, which rings (Linux, drivers/gpio/gpio-mmio.c).
fn line(name: &str, page: u64) -> Build {
    Build::new(format!("gpio@{page:x}"))
        .texts("compatible", &["wd,mbl-gpio"])
        .texts("label", &[name])
        .wide("reg", &[page, 4])
        .texts("reg-names", &["dat"])
        .bytes("gpio-controller", &[])
        .cells("#gpio-cells", &[2])
}

/// BTN_0, which no keyboard of a terminal has (Linux, include/uapi/linux/input-event-codes.h).
const BTN_0: u32 = 0x100;
/// KEY_POWER, which those know that end a Linux: systemd-logind, acpid.
const KEY_POWER: u32 = 116;

/// The node by which a VM is asked to stop: a key for Linux, or the place of a word.
pub(super) fn stop(stop: &PlannedStop) -> Build {
    match stop.way {
        StopWay::Key(intid) => press("power", ("power", KEY_POWER), intid),
        StopWay::Page(page) => {
            let word = page + WORD;
            Build::new(format!("stop@{word:x}"))
                .texts("compatible", &["bulkhead,stop"])
                .wide("reg", &[word, 8])
        }
    }
}

fn key(name: &str, intid: u32) -> Build {
    press("heard", (name, BTN_0), intid)
}

/// An input device whose key is pressed and released by each interrupt (Linux, Documentation/devicetree/bindings/input/gpio-keys.yaml).
fn press(node: &str, (name, code): (&str, u32), intid: u32) -> Build {
    Build::new(format!("gpio-keys-{intid}"))
        .texts("compatible", &["gpio-keys"])
        .texts("label", &[&format!("bulkhead {name}")])
        .child(
            Build::new(node)
                .texts("label", &[name])
                .cells("interrupts", &[0, intid - 32, EDGE])
                .cells("linux,code", &[code])
                // It is released at once.
                .cells("debounce-interval", &[0]),
        )
}

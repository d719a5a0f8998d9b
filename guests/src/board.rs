//! Machine that the guest runs on, read from the device tree.

use arrayvec::ArrayVec;
use bulkhead_channel::Shape;
use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node, Property};

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub base: usize,
    /// Bytes.
    pub size: usize,
}

impl Range {
    /// First address behind it.
    pub fn end(self) -> usize {
        self.base.saturating_add(self.size)
    }

    /// Whether the two have an address in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.base < other.end() && other.base < self.end()
    }
}

/// Memory that other VMs map too.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    /// Its name in the description of the system.
    pub label: &'static str,
    /// Range of its addresses.
    pub range: Range,
}

/// A doorbell that this machine rings, or hears.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell {
    /// Its name in the description of the system.
    pub label: &'static str,
    /// Address of the page by which it is rung, if it is.
    pub page: Option<usize>,
    /// INTID by which it is heard, if it is.
    pub intid: Option<u32>,
}

/// A channel of which this machine is an end.
#[derive(Clone, Copy, Debug)]
pub struct Channel {
    /// Its name in the description of the system.
    pub label: &'static str,
    /// Memory that this end writes, and the other.
    pub memory: [Range; 2],
    /// Length and number of its messages.
    pub shape: Shape,
    /// Address of the page by which the other end is rung, if it hears.
    pub page: Option<usize>,
    /// INTID by which this end hears, if it does.
    pub intid: Option<u32>,
}

/// How this machine is asked to stop.
#[derive(Clone, Copy, Debug)]
pub enum Stop {
    /// By a key, which is this INTID.
    Key(u32),
    /// By the word at this address: more than 0.
    Word(usize),
}

/// A device with one interrupt.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Address of its registers.
    pub base: usize,
    /// INTID; 0 if it has no interrupt.
    pub intid: u32,
}

/// The machine. Without a device tree it is what every Bulkhead guest gets by default, which is also
/// QEMU's `virt`.
pub struct Board {
    /// RAM.
    pub memory: ArrayVec<Range, 4>,
    /// Memory shared with other VMs.
    pub shared: ArrayVec<Shared, 8>,
    /// Doorbells, in the order of the device tree.
    pub doorbells: ArrayVec<Doorbell, 8>,
    /// Channels, in the order of the device tree.
    pub channels: ArrayVec<Channel, 4>,
    /// virtio-mmio devices, and places for such, in the order of the device tree.
    pub virtio: ArrayVec<Device, 32>,
    /// The node that says which devices of other VMs this machine serves ([`crate::backend`]).
    pub backend: Option<FdtNode<'static>>,
    /// Everything else that has an address: devices, the interrupt controller.
    pub devices: ArrayVec<Range, 64>,
    /// PL011.
    pub uart: Option<Range>,
    /// INTID of the PL011.
    pub uart_intid: u32,
    /// Another PL011: one of the board, passed through.
    pub second_uart: Option<Device>,
    /// Cadence's UART: one of the board, passed through.
    pub cadence: Option<Device>,
    /// PL061.
    pub gpio: Option<Device>,
    /// SPI by which it is told that another VM has ended.
    pub event_intid: Option<u32>,
    /// How it is asked to stop, if it is.
    pub stop: Option<Stop>,
    /// PL031.
    pub rtc: Option<Device>,
    /// SBSA watchdog: its control frame; the refresh frame is [`Self::watchdog_refresh`].
    pub watchdog: Option<Device>,
    /// Address of the watchdog's refresh frame, or 0.
    pub watchdog_refresh: usize,
    /// Version of the interrupt controller: 2 or 3.
    pub gic_version: usize,
    /// Distributor.
    pub gicd: Range,
    /// GICv3: redistributors.
    pub gicr: Range,
    /// GICv2: CPU interface.
    pub gicc: Range,
    /// Number of CPUs.
    pub cpus: usize,
    /// This program, its stack included.
    pub image: Range,
    /// The part of it that was loaded from a file.
    pub loaded: Range,
    /// The device tree itself, if there is one.
    pub tree: Option<Range>,
    /// The values of `/chosen/rng-seed` and `/chosen/kaslr-seed`, if they are there.
    pub seeds: [Option<Range>; 2],
    /// The initial RAM disk that `/chosen` names.
    pub initrd: Option<Range>,
    /// `/chosen/bootargs`.
    pub bootargs: &'static str,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            memory: ArrayVec::from_iter([Range {
                base: 0x4000_0000,
                size: 4 << 20,
            }]),
            shared: ArrayVec::new(),
            doorbells: ArrayVec::new(),
            channels: ArrayVec::new(),
            virtio: ArrayVec::new(),
            backend: None,
            devices: ArrayVec::new(),
            uart: Some(Range {
                base: 0x0900_0000,
                size: 0x1000,
            }),
            uart_intid: 33,
            second_uart: None,
            cadence: None,
            gpio: None,
            event_intid: None,
            stop: None,
            rtc: None,
            watchdog: None,
            watchdog_refresh: 0,
            gicd: Range {
                base: 0x0800_0000,
                size: 0x1_0000,
            },
            gicr: Range {
                base: 0x080a_0000,
                size: 0x2_0000,
            },
            gic_version: 3,
            gicc: Range {
                base: 0x0801_0000,
                size: 0x2000,
            },
            cpus: 1,
            image: image(),
            loaded: loaded(),
            tree: None,
            seeds: [None; 2],
            initrd: None,
            bootargs: "",
        }
    }
}

impl Board {
    /// The number behind `name=` in the boot arguments; with `0x` before it in base 16.
    pub fn argument(&self, name: &str) -> Option<u64> {
        self.bootargs.split_ascii_whitespace().find_map(|word| {
            let (key, value) = word.split_once('=')?;
            if key != name {
                return None;
            }
            match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => value.parse().ok(),
            }
        })
    }

    /// Returns the addresses of the shared region with this label.
    pub fn shared(&self, label: &str) -> Option<Range> {
        self.shared
            .iter()
            .find(|region| region.label == label)
            .map(|region| region.range)
    }
}

unsafe extern "C" {
    static __image_start: u8;
    static __image_end: u8;
    static __bss_start: u8;
}

fn image() -> Range {
    let base = (&raw const __image_start).addr();
    Range {
        base,
        size: (&raw const __image_end).addr() - base,
    }
}

fn loaded() -> Range {
    let base = image().base;
    Range {
        base,
        size: (&raw const __bss_start).addr() - base,
    }
}

/// The key by which Linux is asked to stop.
const KEY_POWER: u32 = 116;

/// First word of a device tree, as a little-endian load sees it.
const MAGIC: u32 = 0xd00d_feed_u32.swap_bytes();

/// Reads the device tree at `tree`. If that is 0, as when QEMU is given an ELF file, looks at the start
/// of the RAM, where QEMU puts one then.
pub(crate) fn discover(tree: usize) -> Board {
    let address = if tree == 0 {
        image().base & !0x3fff_ffff
    } else {
        tree
    };
    if !address.is_multiple_of(4) || crate::mmio::read32(address) != MAGIC {
        return Board::default();
    }
    // SAFETY: whoever started us put a device tree there and leaves it alone (I-BOOT); its magic number
    // has just been seen, and `from_raw` checks the rest.
    let parsed = unsafe { Fdt::from_raw(core::ptr::with_exposed_provenance(address)) };
    let Ok(fdt) = parsed else {
        return Board::default();
    };
    let mut board = read(fdt);
    board.tree = Some(Range {
        base: address,
        size: fdt.data().len(),
    });
    board
}

fn read(fdt: Fdt<'static>) -> Board {
    let mut board = Board {
        memory: ArrayVec::new(),
        uart: None,
        ..Board::default()
    };
    for node in fdt.root().children() {
        if matches!(
            node.name_without_address(),
            "cpus" | "chosen" | "psci" | "timer"
        ) {
            continue;
        }
        if is(node, "bulkhead,backend") {
            board.backend = Some(node);
            continue;
        }
        visit(&mut board, node);
        for child in node.children() {
            visit(&mut board, child);
        }
    }
    if let Some(cpus) = fdt.find_node("/cpus") {
        let is_cpu = |node: &FdtNode<'static>| node.name_without_address() == "cpu";
        board.cpus = cpus
            .children()
            .filter(is_cpu)
            .count()
            .clamp(1, crate::cpu::MOST);
    }
    let chosen = fdt.find_node("/chosen");
    if let Some(arguments) = chosen.and_then(|node| text(node, "bootargs")) {
        board.bootargs = arguments;
    }
    if let Some(chosen) = chosen {
        let place = |name| address(chosen, name);
        if let (Some(start), Some(end)) = (place("linux,initrd-start"), place("linux,initrd-end")) {
            board.initrd = Some(Range {
                base: start,
                size: end.saturating_sub(start),
            });
        }
        board.seeds = ["rng-seed", "kaslr-seed"].map(|name| {
            let mut properties = chosen.properties();
            let property = properties.find(|property| property.name() == name)?;
            let value = property.value();
            Some(Range {
                base: value.as_ptr().expose_provenance(),
                size: value.len(),
            })
        });
    }
    board
}

/// The text of a property.
pub(crate) fn text(node: FdtNode<'static>, name: &str) -> Option<&'static str> {
    let property = node.properties().find(|property| property.name() == name)?;
    property.value_as::<&'static str>().ok()
}

fn is(node: FdtNode<'static>, compatible: &str) -> bool {
    node.compatible()
        .is_some_and(|mut names| names.any(|name| name == compatible))
}

/// The addresses of a node.
pub(crate) fn ranges(node: FdtNode<'static>) -> ArrayVec<Range, 16> {
    let mut ranges = ArrayVec::new();
    let Ok(Some(regs)) = node.reg() else {
        return ranges;
    };
    for reg in regs {
        if let (Ok(base), Ok(size)) = (reg.address::<u64>(), reg.size::<u64>())
            && size != 0
        {
            ranges.push(Range {
                base: base as usize,
                size: size as usize,
            });
        }
    }
    ranges
}

fn visit(board: &mut Board, node: FdtNode<'static>) {
    let is = |compatible| is(node, compatible);
    if is("bulkhead,vm-events") {
        board.event_intid = interrupt(node);
    }
    let code = node.property("linux,code");
    if code.is_some_and(|code| code.value() == KEY_POWER.to_be_bytes()) {
        board.stop = interrupt(node).map(Stop::Key);
    }
    if is("bulkhead,doorbell") {
        let reg = node.reg().ok().flatten().and_then(|mut regs| regs.next());
        let page = reg.and_then(|reg| reg.address::<u64>().ok());
        board.doorbells.push(Doorbell {
            label: text(node, "label").unwrap_or_default(),
            page: page.map(|page| page as usize),
            intid: interrupt(node),
        });
    }
    let ranges = ranges(node);
    let Some(first) = ranges.first().copied() else {
        return;
    };
    if is("bulkhead,channel")
        && let Some(channel) = channel(node, &ranges)
    {
        board.channels.push(channel);
        board.devices.extend(ranges.into_iter().skip(2));
        return;
    }
    if text(node, "device_type") == Some("memory") {
        board.memory.extend(ranges);
        return;
    }
    if is("bulkhead,shared") {
        let label = text(node, "label").unwrap_or(node.name_without_address());
        board.shared.push(Shared {
            label,
            range: first,
        });
        return;
    }
    if is("arm,pl011") && board.uart.is_none() {
        board.uart = Some(first);
        board.uart_intid = interrupt(node).unwrap_or(board.uart_intid);
    } else if is("arm,pl011") {
        board.second_uart = device(node, first);
    }
    if is("bulkhead,stop") {
        board.stop = Some(Stop::Word(first.base));
    }
    if is("cdns,uart-r1p12") {
        board.cadence = device(node, first);
    }
    if is("arm,pl061") {
        board.gpio = device(node, first);
    }
    if is("arm,pl031") {
        board.rtc = device(node, first);
    }
    if is("virtio,mmio") {
        board.virtio.push(Device {
            base: first.base,
            intid: interrupt(node).unwrap_or(0),
        });
    }
    if is("arm,sbsa-gwdt")
        && let [control, refresh, ..] = ranges[..]
    {
        board.watchdog = device(node, control);
        board.watchdog_refresh = refresh.base;
    }
    if is("arm,gic-v3")
        && let [gicd, gicr, ..] = ranges[..]
    {
        board.gic_version = 3;
        board.gicd = gicd;
        board.gicr = gicr;
    }
    if (is("arm,cortex-a15-gic") || is("arm,gic-400"))
        && let [gicd, gicc, ..] = ranges[..]
    {
        board.gic_version = 2;
        board.gicd = gicd;
        board.gicc = gicc;
    }
    board.devices.extend(ranges);
}

fn channel(node: FdtNode<'static>, ranges: &[Range]) -> Option<Channel> {
    let [own, peer, rest @ ..] = ranges else {
        return None;
    };
    let count = |name| usize::try_from(number(node, name)?).ok();
    Some(Channel {
        label: text(node, "label").unwrap_or_default(),
        memory: [*own, *peer],
        shape: Shape::new(count("bulkhead,message-size")?, count("bulkhead,messages")?)?,
        page: rest.first().map(|page| page.base),
        intid: interrupt(node),
    })
}

/// An address of two cells in a property.
fn address(node: FdtNode<'static>, name: &str) -> Option<usize> {
    let property = node.properties().find(|property| property.name() == name)?;
    let bytes = property.value().try_into().ok()?;
    usize::try_from(u64::from_be_bytes(bytes)).ok()
}

/// A number in a property.
pub(crate) fn number(node: FdtNode<'static>, name: &str) -> Option<u32> {
    let mut properties = node.properties();
    let property = properties.find(|property| property.name() == name)?;
    property.value_as::<u32>().ok()
}

fn device(node: FdtNode<'static>, range: Range) -> Option<Device> {
    Some(Device {
        base: range.base,
        intid: interrupt(node)?,
    })
}

/// First interrupt of a node: GIC binding, three cells: 0 = SPI, number, flags.
pub(crate) fn interrupt(node: FdtNode<'static>) -> Option<u32> {
    let property = node
        .properties()
        .find(|property| property.name() == "interrupts")?;
    let value = property.value();
    let kind = u32::from_be_bytes(value.get(0..4)?.try_into().ok()?);
    let number = u32::from_be_bytes(value.get(4..8)?.try_into().ok()?);
    Some(if kind == 0 { number + 32 } else { number + 16 })
}

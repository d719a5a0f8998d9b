//! `[vm.NAME]`.

use bulkhead_abi::plan::{Class, MAX_POLL, MAX_VCPUS_PER_VM, MAX_VMS, MIN_POLL, NAME, PAGE};
use toml::de::{DeTable, DeValue};

use super::bandwidth::{self, BandwidthSpec};
use super::class::{self, Deviation, InterruptSpec};
use super::code::Code;
use super::colours::{self, ColoursSpec};
use super::cpu::{self, CpuSpec};
use super::disk::{self, DiskSpec};
use super::emulated::{self, DeviceSpec, GicSpec};
use super::finding::{Finding, Span};
use super::keys::{MEMORY, VM};
use super::manages::{self, ManagesSpec};
use super::network::{self, PortSpec};
use super::passed::{self, PassedSpec};
use super::policy::{self, CrashSpec, Limit};
use super::reader::{Placed, Reader, rename};
use super::size::{Duration, Size};
use super::stop::{self, StopSpec};
use super::words::{CLASSES, RESERVED};

/// RAM and its addresses are multiples of this, so that stage 2 maps it with blocks.
pub(super) const RAM_ALIGN: u64 = 2 << 20;

/// How often polled devices are looked at, if the description does not say: 1 ms in nanoseconds.
const POLL: u64 = 1_000_000;

/// RAM of a VM.
#[derive(Clone, Debug)]
pub struct MemorySpec {
    /// Bytes.
    pub size: Placed<u64>,
    /// Guest address, if not the default.
    pub ipa: Option<Placed<u64>>,
    /// Physical address, if not the planner's choice.
    pub pa: Option<Placed<u64>>,
}

impl MemorySpec {
    /// Guest address, if the description does not say.
    pub const USUAL: u64 = 0x4000_0000;

    /// Guest address.
    pub fn start(&self) -> u64 {
        self.ipa.as_ref().map_or(Self::USUAL, |ipa| ipa.value)
    }
}

/// Software that a VM runs.
#[derive(Clone, Debug)]
pub enum PayloadSpec {
    /// A Linux Image.
    Linux {
        /// Source of the Image.
        kernel: Placed<String>,
        /// Sources of the initial RAM disk, one behind the other.
        initrd: Vec<Placed<String>>,
    },
    /// An ELF file, or raw bytes.
    Program {
        /// Source of the file.
        image: Placed<String>,
        /// Guest address of raw bytes.
        load: Option<Placed<u64>>,
        /// Guest address of the first instruction of raw bytes.
        entry: Option<Placed<u64>>,
        /// Sources of its initial RAM disk, one behind the other.
        initrd: Vec<Placed<String>>,
    },
    /// Missing or invalid, which is an error of the description.
    Unknown,
}

/// `[vm.NAME]`.
#[derive(Clone, Debug)]
pub struct VmSpec {
    /// Name.
    pub name: Placed<String>,
    /// Service class.
    pub class: Class,
    /// Properties that the class asks for and the VM does not get.
    pub deviations: Vec<Deviation>,
    /// Number of vCPUs, 1 to 8.
    pub vcpus: usize,
    /// Number of the CPU on the board for each vCPU in order, if the description says so; else none.
    pub pcpus: Vec<Placed<u32>>,
    /// Share of its pCPU that each vCPU may use.
    pub cpu: CpuSpec,
    /// Interrupt delivery.
    pub interrupts: InterruptSpec,
    /// RAM.
    pub memory: MemorySpec,
    /// Software that it runs.
    pub payload: PayloadSpec,
    /// Guest address of its device tree, if not the planner's choice.
    pub tree: Option<Placed<u64>>,
    /// Command line.
    pub cmdline: Option<Placed<String>>,
    /// Its console, if it has one.
    pub console: Option<DeviceSpec>,
    /// Place at which it asks for a virtio-console.
    pub virtio_console: Option<Span>,
    /// Guest addresses of its interrupt controller.
    pub gic: GicSpec,
    /// Its emulated real-time clock, if it has one.
    pub rtc: Option<DeviceSpec>,
    /// Its emulated watchdog, if it has one.
    pub watchdog: Option<DeviceSpec>,
    /// Action when it crashes.
    pub crash: CrashSpec,
    /// Limit on resets that its guest asks for; `None`: without a limit.
    pub resets: Option<Limit>,
    /// The words that make the physical timer its own; none: it is emulated.
    pub own_ptimer: Option<Span>,
    /// Whether its time stands still while it is paused.
    pub time_stops: bool,
    /// Calls of the firmware that it may make, ascending.
    pub calls: Vec<u32>,
    /// Overlays for its device tree, in their order.
    pub overlays: Vec<Placed<String>>,
    /// Its disks, in their order.
    pub disks: Vec<DiskSpec>,
    /// Its network cards, in their order.
    pub ports: Vec<PortSpec>,
    /// How often these are looked at, in nanoseconds, if the description says so.
    pub stated_poll: Option<Placed<u64>>,
    /// Place at which it says that its devices are served on its own CPU.
    pub own_service: Option<Span>,
    /// Devices of the board that it asks for.
    pub devices: Vec<PassedSpec>,
    /// Place at which the description accepts that one of these can reset the board.
    pub board_reset: Option<Span>,
    /// Whether its seeds are fixed.
    pub deterministic: bool,
    /// What it may do with others.
    pub manages: Vec<ManagesSpec>,
    /// Place at which the description gives it a control port.
    pub manages_place: Option<Span>,
    /// Place at which the description says that it does not start with the board.
    pub waits: Option<Span>,
    /// Place at which the description locks it.
    pub locked: Option<Span>,
    /// Where it says that it has its CPUs' debug registers.
    pub debug: Option<Span>,
    /// Where it says that it has performance monitors.
    pub pmu: Option<Span>,
    /// How it is asked to stop; none: it is not.
    pub stop: Option<StopSpec>,
    /// The part of the memory's bandwidth that each vCPU has; none: no limit.
    pub bandwidth: Option<BandwidthSpec>,
    /// The colours of its memory.
    pub colours: ColoursSpec,
}

impl VmSpec {
    /// The place of its first disk or network card, which another VM serves; none: it has neither.
    pub fn first_served(&self) -> Option<&Span> {
        let disk = self.disks.first().map(|disk| &disk.span);
        disk.or_else(|| self.ports.first().map(|port| &port.network.span))
    }

    /// Whether its vCPUs have more to save and restore than most: performance monitors, debug registers, or what is left of a limit of accesses.
    pub const fn has_registers(&self) -> bool {
        self.pmu.is_some() || self.debug.is_some() || self.bandwidth.is_some()
    }

    /// The place of its first virtio device; none: it has none.
    pub fn first_virtio(&self) -> Option<&Span> {
        self.first_served().or(self.console_device())
    }

    /// The place at which it asks for a virtio-console, or for the control port, which is one of its ports.
    pub fn console_device(&self) -> Option<&Span> {
        self.virtio_console.as_ref().or(self.manages_place.as_ref())
    }

    /// How often its disks and network cards are looked at, in nanoseconds; none: they tell and are told by exits and interrupts. Those of
    /// hard real-time VMs do not, and GPPT VMs could not take the interrupts.
    pub fn poll(&self) -> Option<u64> {
        let stated = self.stated_poll.as_ref().map(|poll| poll.value);
        let silent = self.class == Class::HardRealtime || self.interrupts.is_gppt();
        stated.or_else(|| silent.then_some(POLL))
    }

    /// Whether the physical timer is its own: by the description, or because EL2 could not inject the interrupt of an
    /// emulated one.
    pub fn has_own_ptimer(&self) -> bool {
        self.own_ptimer.is_some() || self.interrupts.is_gppt()
    }
}

/// Reads `[vm.NAME]`. What is not to be had of its memory and of what it runs is made up, so that everything else can be
/// looked at; that was reported, and then nothing is planned.
pub(super) fn read(name: Placed<String>, table: &DeTable, findings: &mut Vec<Finding>) -> VmSpec {
    check_name(&name, findings);
    let mut reader = Reader::new(table, "a VM", VM, findings);
    let class_word = reader.read(const { VM.word("class") });
    let class_span = class_word.as_ref().map(|word| word.span.clone());
    let class = class_word
        .and_then(|word| CLASSES.iter().find(|(name, _)| *name == word.value))
        .map_or(Class::General, |(_, class)| *class);
    let mut deviations = class::deviations(&mut reader, &name, class, class_span);
    let interrupts = class::interrupts(&mut reader, class);
    let (vcpus, pcpus) = placement(&mut reader);
    let cpu = cpu::read(&mut reader, class);
    deviations.extend(class::cpu_deviation(class, &cpu));
    let payload = payload(&mut reader, &name);
    let tree = reader.read(const { VM.quantity("device_tree_ipa") });
    let cmdline = reader.read(const { VM.text("cmdline") });
    let (console, virtio_console) = emulated::console(&mut reader);
    let gic = emulated::gic(&mut reader);
    let crash = policy::crash(&mut reader);
    let resets = policy::reset(&mut reader);
    let (own_ptimer, time_stops) = policy::time(&mut reader);
    let calls = policy::calls(&mut reader);
    let overlays = reader
        .read(const { VM.text_or_texts("overlay") })
        .unwrap_or_default();
    let rtc = emulated::rtc(&mut reader);
    let watchdog = emulated::watchdog(&mut reader);
    let devices = passed::read(&mut reader);
    let declared = devices.iter().any(|device| device.no_dma.is_some());
    deviations.extend(declared.then_some(class::NO_DMA));
    let disks = disk::disks(&mut reader);
    let ports = network::ports(&mut reader);
    let stated_poll = poll(&mut reader, disks.is_empty() && ports.is_empty());
    let own_service = reader.read(const { VM.word("service") });
    let own_service = own_service.filter(|word| word.value == "own");
    let board_reset = reader.read(const { VM.word("board_reset") });
    deviations.extend(board_reset.as_ref().map(|_| class::BOARD_RESET));
    let deterministic = reader
        .read(const { VM.flag("deterministic") })
        .is_some_and(|flag| flag.value);
    let (manages, manages_place) = manages::read(&mut reader);
    let waits = reader.read(const { VM.flag("autostart") });
    let waits = waits.filter(|flag| !flag.value);
    let locked = reader.read(const { VM.flag("locked") });
    let locked = locked.filter(|flag| flag.value);
    let debug = reader.read(const { VM.flag("debug") });
    let debug = debug.filter(|flag| flag.value);
    let pmu = reader.read(const { VM.flag("pmu") });
    let pmu = pmu.filter(|flag| flag.value);
    let stop = stop::read(&mut reader);
    let bandwidth = bandwidth::read(&mut reader);
    let colours = colours::of_vm(&mut reader);
    let memory = memory_value(&mut reader, &name);
    reader.finish();
    let memory = memory.and_then(|memory| memory_spec(memory, findings));
    let made_up = || Placed {
        value: RAM_ALIGN,
        span: name.span.clone(),
    };
    let memory = memory.unwrap_or_else(|| MemorySpec {
        size: made_up(),
        ipa: None,
        pa: None,
    });
    let payload = payload.unwrap_or(PayloadSpec::Unknown);
    VmSpec {
        name,
        class,
        deviations,
        vcpus,
        pcpus,
        cpu,
        interrupts,
        memory,
        payload,
        tree,
        cmdline,
        console,
        virtio_console,
        gic,
        rtc,
        watchdog,
        crash,
        resets,
        own_ptimer,
        time_stops,
        calls,
        overlays,
        disks,
        ports,
        stated_poll,
        own_service: own_service.map(|word| word.span),
        devices,
        board_reset: board_reset.map(|word| word.span),
        deterministic,
        manages,
        manages_place,
        waits: waits.map(|flag| flag.span),
        locked: locked.map(|flag| flag.span),
        debug: debug.map(|flag| flag.span),
        pmu: pmu.map(|flag| flag.span),
        stop,
        bandwidth,
        colours,
    }
}

/// `poll`, of a VM that has no virtio devices if it is `idle`.
fn poll(reader: &mut Reader, idle: bool) -> Option<Placed<u64>> {
    let poll = reader.read(const { VM.quantity("poll") })?;
    let devices = [const { VM.key("disks") }, const { VM.key("networks") }];
    // What is wrong with those that there are was reported.
    if idle && !devices.into_iter().any(|key| reader.has(key)) {
        reader.report(
            Finding::new(Code::VirtioIdle, "there is nothing to poll")
                .at(poll.span.clone(), "this VM has no disk and no network")
                .help("leave `poll` out, or give the VM `disks` or `networks`"),
        );
    }
    if !(MIN_POLL..=MAX_POLL).contains(&poll.value) {
        let (least, most) = (Duration(MIN_POLL), Duration(MAX_POLL));
        let what = format!("devices are polled once in {least} to {most}");
        reader.report(
            Finding::new(Code::VirtioPoll, what)
                .at(poll.span.clone(), format!("{} here", Duration(poll.value)))
                .help("shorter would take the CPU of the service from what it serves; 1ms is usual for a control loop"),
        );
    }
    Some(poll)
}

/// Checks that there are no more VMs than a plan holds.
pub(super) fn count(vms: &[VmSpec], findings: &mut Vec<Finding>) {
    if let Some(first) = vms.get(MAX_VMS) {
        findings.push(
            Finding::new(Code::VmMany, "there are too many VMs")
                .at(
                    first.name.span.clone(),
                    format!("the first after {MAX_VMS}"),
                )
                .help("describe two systems, or let one guest do what two should"),
        );
    }
}

/// Checks that the plan can hold a name and that it can label lines of the console.
fn check_name(name: &Placed<String>, findings: &mut Vec<Finding>) {
    let text = &name.value;
    let sound = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if text.is_empty() || text.len() > NAME || !sound || RESERVED.contains(&&**text) {
        let why = if RESERVED.contains(&&**text) {
            "EL2 labels its own lines so".to_owned()
        } else {
            format!("1 to {NAME} of the characters a-z A-Z 0-9 -")
        };
        findings.push(
            Finding::new(Code::VmName, format!("`{text}` cannot be the name of a VM"))
                .at(name.span.clone(), why)
                .help(rename(text)),
        );
    }
}

/// `vcpus` and `pcpus`: how many vCPUs, and the CPUs of the board for them if named.
fn placement(reader: &mut Reader) -> (usize, Vec<Placed<u32>>) {
    let vcpus = reader.read(const { VM.number("vcpus") });
    let count = vcpus.as_ref().map_or(1, |vcpus| vcpus.value as usize);
    if vcpus.is_none() && reader.has(const { VM.key("vcpus") }) {
        // How many is not known, which was reported.
        reader.read(const { VM.numbers("pcpus") });
        return (1, Vec::new());
    }
    let vcpus_place = vcpus.as_ref().map(|vcpus| vcpus.span.clone());
    if let Some(vcpus) = vcpus.filter(|_| count == 0 || count > MAX_VCPUS_PER_VM) {
        let what = format!("a VM has 1 to {MAX_VCPUS_PER_VM} vCPUs");
        let here = if count == 0 {
            "none at all".to_owned()
        } else {
            format!("{count} vCPUs")
        };
        reader.report(
            Finding::new(Code::VcpuCount, what)
                .at(vcpus.span, here)
                .help("vcpus = 1 is the default"),
        );
        // Errors that only follow from the wrong number are not reported; `pcpus` is read for its own errors.
        reader.read(const { VM.numbers("pcpus") });
        return (1, Vec::new());
    }
    let Some(pcpus) = reader.read(const { VM.numbers("pcpus") }) else {
        return (count, Vec::new());
    };
    if pcpus.value.len() != count {
        let plural = if count == 1 { "" } else { "s" };
        reader.report(
            Finding::new(Code::PcpuCount, "each vCPU has a pCPU on which it starts")
                .at(
                    pcpus.span,
                    format!("{} pCPUs for {count} vCPU{plural}", pcpus.value.len()),
                )
                .also(vcpus_place, "so many vCPUs")
                .help(format!(
                    "name as many as `vcpus` says ({count}), or leave `pcpus` out and the planner chooses"
                )),
        );
        return (count, Vec::new());
    }
    (count, pcpus.value)
}

/// `kernel` with what goes with it, or `image` with what goes with it.
fn payload(reader: &mut Reader, name: &Placed<String>) -> Option<PayloadSpec> {
    let kernel = reader.read(const { VM.text("kernel") });
    let image = reader.read(const { VM.text("image") });
    let initrd = reader
        .read(const { VM.text_or_texts("initrd") })
        .unwrap_or_default();
    let load = reader.read(const { VM.quantity("load") });
    let entry = reader.read(const { VM.quantity("entry") });
    let mut misplaced = |span: &Span, key: &str, owner: &str| {
        reader.report(
            Finding::new(Code::VmStray, format!("`{key}` goes with `{owner}` only"))
                .at(span.clone(), format!("this VM has no `{owner}`"))
                .help(format!("leave `{key}` out")),
        );
    };
    match (kernel, image) {
        (Some(kernel), None) => {
            for (key, value) in [("load", &load), ("entry", &entry)] {
                if let Some(value) = value {
                    misplaced(&value.span, key, "image");
                }
            }
            Some(PayloadSpec::Linux { kernel, initrd })
        }
        (None, Some(image)) => Some(PayloadSpec::Program {
            image,
            load,
            entry,
            initrd,
        }),
        (Some(kernel), Some(image)) => {
            reader.report(
                Finding::new(Code::VmImage, "a VM runs a kernel or an image, not both")
                    .at(image.span, "an image")
                    .at(kernel.span, "a kernel")
                    .help("leave one of them out"),
            );
            None
        }
        (None, None) => {
            let stated = [const { VM.key("kernel") }, const { VM.key("image") }];
            if !stated.into_iter().any(|key| reader.has(key)) {
                reader.report(
                    Finding::new(Code::VmImage, format!("`{}` has nothing to run", name.value))
                        .at(name.span.clone(), "needs `kernel` or `image`")
                        .help("kernel = \"FILE\" for a Linux Image, image = \"FILE\" for an ELF or raw program"),
                );
            }
            None
        }
    }
}

/// Size, IPA and PA as they stand, not yet checked.
type MemoryValue = (
    Option<Placed<u64>>,
    Option<Placed<u64>>,
    Option<Placed<u64>>,
);

/// `memory`: a size, or a table of `size`, `ipa` and `pa`.
fn memory_value(reader: &mut Reader, name: &Placed<String>) -> Option<MemoryValue> {
    let Some(value) = reader.value(const { VM.key("memory") }) else {
        if reader.has(const { VM.key("memory") }) {
            return None;
        }
        reader.report(
            Finding::new(Code::VmMemory, format!("`{}` has no memory", name.value))
                .at(name.span.clone(), "needs `memory`")
                .help("add memory = \"64MiB\", for instance"),
        );
        return None;
    };
    if let DeValue::Table(table) = value.get_ref() {
        let mut inner = Vec::new();
        let mut table = Reader::new(table, "`memory`", MEMORY, &mut inner);
        let parts = (
            table.read(const { MEMORY.quantity("size") }),
            table.read(const { MEMORY.quantity("ipa") }),
            table.read(const { MEMORY.quantity("pa") }),
        );
        let sizeless = !table.has(const { MEMORY.key("size") });
        table.finish();
        if sizeless {
            inner.push(
                Finding::new(Code::VmMemory, format!("`{}` has no memory", name.value))
                    .at(value.span(), "needs `size`")
                    .help("such as memory = { size = \"64MiB\", ipa = \"0x40000000\" }"),
            );
        }
        inner.into_iter().for_each(|finding| reader.report(finding));
        return Some(parts);
    }
    Some((reader.read(const { VM.quantity("memory") }), None, None))
}

/// Checks alignment of RAM.
fn memory_spec(value: MemoryValue, findings: &mut Vec<Finding>) -> Option<MemorySpec> {
    let (size, ipa, pa) = value;
    let size = size?;
    if size.value % PAGE != 0 {
        findings.push(
            Finding::new(Code::MemoryAlign, "memory comes in pages of 4 KiB")
                .at(size.span.clone(), "not a multiple of 4 KiB")
                .help(format!(
                    "{} is one",
                    Size(size.value.next_multiple_of(PAGE))
                )),
        );
    }
    for address in [&ipa, &pa].into_iter().flatten() {
        if address.value % RAM_ALIGN != 0 {
            findings.push(
                Finding::new(Code::MemoryAlign, "RAM starts at a multiple of 2 MiB")
                    .at(address.span.clone(), "not a multiple of 2 MiB")
                    .help(format!("{:#x} is one", address.value & !(RAM_ALIGN - 1))),
            );
        }
    }
    Some(MemorySpec { size, ipa, pa })
}

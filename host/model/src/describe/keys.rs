//! The keys of a description. What the reader takes, what the JSON schema says and what the book
//! lists all come from the tables here: a new key is one entry, and the code that uses its value.
//!
//! Code gets a key from its table by name while it is compiled, such as
//! `const { VM.number("vcpus") }`: a key that the table does not have, or that holds something
//! else, is an error of the compiler. That no key of a table is left unread is held by a test.

use bulkhead_abi::control::right;
use bulkhead_abi::plan::{MAX_COLOURS, MAX_EVENTS, MAX_VCPUS_PER_VM, MAX_VMS, MAX_WEIGHT};

use super::size::{ADDRESS, DURATION, Notation, PERCENT, SIZE};
use super::words::{
    CLASS_NAMES, CPU, EVENT_NAMES, FIRST_INTID, INTERRUPTS, LAST_INTID, NO_CONTROL, RECLAIM,
    RESERVED, STOPS,
};

mod parts;
mod policy;

pub use parts::{Key, Kind, Rule, Table, Words};
use parts::{key, plain, words};
pub use policy::{CRASH, RESET, STOP};

/// Words of `manages`.
const RIGHTS: [&str; right::ALL.len()] = {
    let (mut words, mut n) = ([""; right::ALL.len()], 0);
    while n < words.len() {
        words[n] = right::ALL[n].1;
        n += 1;
    }
    words
};
const CRASH_WORDS: Words = Words {
    sound: &["halt"],
    refused: &["restart", "notify"],
};

/// The whole file.
pub const SYSTEM: &Table = &Table {
    name: "system",
    heading: "",
    about: "Which board, which VMs, and what they have together. `bulkhead check` says the rest.",
    keys: &[
        plain("board", Kind::Table(BOARD), BOARD.about),
        plain("vm", Kind::Named(VM, 1, &RESERVED), VM.about),
        plain("shared", Kind::Named(SHARED, 0, &[]), SHARED.about),
        plain("doorbell", Kind::Named(DOORBELL, 0, &[]), DOORBELL.about),
        plain("channel", Kind::Named(CHANNEL, 0, &[]), CHANNEL.about),
        plain("network", Kind::Named(NETWORK, 0, &[]), NETWORK.about),
        plain("service", Kind::Table(SERVICE), SERVICE.about),
        plain("el2", Kind::Table(EL2), EL2.about),
        plain("console", Kind::Table(CONSOLE), CONSOLE.about),
    ],
    rules: &[Rule::Has(&["board", "vm"])],
};

/// `[board]`.
#[rustfmt::skip]
pub const BOARD: &Table = &Table {
    name: "board",
    heading: "`[board]`",
    about: "What the system runs on. An imported board and one by its tree have no keys but that one, `firmware`, `memory_ranges`, `colours`, `caches` and `access_event`.",
    keys: &[
        key("name", Kind::Text, "\"qemu-virt\"", "A board of boards/, such as qemu-virt."),
        key("dtb", Kind::Text, "\"board.dtb\"", "A device tree that says what the board is: a path from the folder of this file."),
        key("cpu", Kind::Text, "\"cortex-a76\"", "CPU type of an emulated board."),
        key("cpus", Kind::Number(1, u32::MAX), "1", "CPUs of an emulated board."),
        plain("memory", Kind::Quantity(&SIZE), "Memory of an emulated board, in whole MiB."),
        key("memory_ranges", Kind::TextOrTexts, "\"1GiB at 0x40000000\"", "Memory of a board whose device tree does not say how much there is: size and address, or several, ascending."),
        key("gic", Kind::Number(0, u32::MAX), "3", "GIC version of an emulated board."),
        key("firmware", Kind::Text, "\"none\"", "What runs at EL3, whose Group 0 is. none: nothing, one Security state. el3: firmware of which no more is known than PSCI. tf-a, tf-a-no-sdei: firmware with events (SDEI) or without; on an emulated board, Trusted Firmware. Default: none for an emulated board; else what its board.toml says, or what its device tree tells, or el3."),
        key("uarts", Kind::Number(0, u32::MAX), "1", "PL011s of an emulated board; the first carries the consoles."),
        plain("access_event", words(&EVENT_NAMES), "Event of the CPUs' performance monitors that `accesses` of VMs counts, as the architecture calls it. Default: l2d_cache_refill, lines that a core's cluster gets from memory; on an emulated board cpu_cycles, since QEMU counts no accesses: a nanosecond of its time each."),
        key("colours", Kind::Number(2, MAX_COLOURS), "16", "Colours of memory: pages of the last cache that the CPUs share, in one of its ways, a power of two. 16 for 1 MiB of 16 ways, as a Cortex-A53 of a ZCU104 has. Default: what the board's device tree says of that cache (`cache-sets` by `cache-line-size`). Of each, where the tree tells of a cache for each cluster (`next-level-cache`)."),
        key("caches", Kind::TextOrTexts, "[\"0-1: 16\", \"2-5: 8\"]", "In place of `colours`, where clusters have caches of their own: the CPUs that share one, and its colours. VMs in different clusters may then have the same colours."),
    ],
    rules: &[Rule::Either(&[&["name"], &["dtb"]]), Rule::Without("dtb", &["cpu", "cpus", "memory", "gic", "uarts"])],
};

/// `[vm.NAME]`.
#[rustfmt::skip]
pub const VM: &Table = &Table {
    name: "vm",
    heading: "`[vm.NAME]`",
    about: "A VM. Their order is that in which the console counts them.",
    keys: &[
        plain("class", words(&CLASS_NAMES), "What the VM is promised: defaults of `cpu`, `interrupts` and `reclaim` follow from it. Default: general."),
        plain("control", words(&[NO_CONTROL]), "A deviation, less than the class asks for: a management VM that manages nothing."),
        plain("manages", Kind::WordsPerVm(&RIGHTS), "What it may do with other VMs through its control port, a list of rights for each, or for all (`*`): list (comes with each other one), start, stop, pause, restart, stats, limits (weights, caps, budgets, pools), dump (memory and registers, while it does not run), logs (what it prints on its console), console (that, and to type there)."),
        plain("interrupts", words(&INTERRUPTS),
            "vgic: through the virtual GIC. gppt: it takes them itself, without an exit; pinned, one vCPU. On a GICv3 gppt masks by DAIF only; with gppt-pmr-trapped priority masks work, an exit for each; with gppt-pmr-direct without one, for one VM of the system. Default: gppt for hard-realtime, for which vgic is a deviation; else vgic."),
        plain("reclaim", words(&RECLAIM),
            "How EL2 gets the CPU back from a GPPT VM on a GICv2, on a board with firmware at EL3 or with gppt-pmr-direct. guaranteed: an exit for each WFI. cooperative: not while it sleeps with its CPU interface closed. sdei: on a GICv3 by an event of firmware that has Group 0. Default: cooperative for hard-realtime, else guaranteed."),
        key("vcpus", Kind::Number(1, MAX_VCPUS_PER_VM as u32), "1", "vCPUs. Default: 1."),
        key("pcpus", Kind::Numbers, "[0]", "The board's CPU on which each vCPU starts, counted from 0; VMs that are not pinned may name the same one. Default: the planner chooses, one for each."),
        plain("cpu", words(&CPU), "What each vCPU gets of its CPU. pinned: all of it. rt: `budget` in each `period`, before others. fair: a share of the rest, by `weight`. Default: fair for management and general; rt for soft-realtime with a budget; else pinned."),
        key("weight", Kind::Number(1, MAX_WEIGHT as u32), "1", "Fair: the share while others want the CPU, too. Default: 1."),
        plain("cap", Kind::Quantity(&PERCENT), "Fair: the most that each vCPU gets of its CPU in each `period`. Default: no cap."),
        plain("budget", Kind::Quantity(&DURATION), "Server: time that each vCPU gets in each period."),
        plain("period", Kind::Quantity(&DURATION), "Server: its period. Fair: that of `cap`, 100ms by default. 100us to 10s."),
        key("pool", Kind::Numbers, "[0]", "Fair: CPUs among which the load balancer may move the vCPUs. Default: they stay."),
        plain("memory", Kind::Or(&Kind::Quantity(&SIZE), MEMORY), "RAM: a size, or a table of size, ipa and pa."),
        key("kernel", Kind::Text, "\"debian:kernel\"", "A Linux Image, also packed by gzip or zstd or as EFI zboot: a path from the folder of this file; or debian:kernel, debian:kernel-rt, debian:kernel-6.12, debian:kernel-6.12-rt."),
        key("initrd", Kind::TextOrTexts, "\"debian:initramfs\"", "Initial RAM disks, one behind the other: paths, debian:initramfs, or guest:NAME, which has that program as its /init. A program (`image`) finds it by /chosen, too."),
        key("cmdline", Kind::Text, "\"console=ttyAMA0\"", "The command line: /chosen/bootargs in the guest's device tree."),
        plain("device_tree_ipa", Kind::Quantity(&ADDRESS), "Guest address of the device tree that x0 points to, a multiple of 8 in its RAM. Default: behind a kernel; below a program, or at the end of the RAM."),
        key("overlay", Kind::TextOrTexts, "\"board.dtbo\"", "Overlays (.dtbo) for the guest's device tree, in their order: paths from the folder of this file. Labels are gic, console, and each node's name with `_` (cpu_0)."),
        key("image", Kind::Text, "\"guest:hello\"", "A program at EL1, ELF or raw: a path from the folder of this file, guest:NAME (guests/src/bin), or debian:u-boot."),
        plain("load", Kind::Quantity(&ADDRESS), "Guest address of a raw program."),
        plain("entry", Kind::Quantity(&ADDRESS), "Where a raw program starts. Default: its first byte."),
        plain("console", Kind::Or(&words(&["pl011", "virtio", "none"]), EMULATED), "The emulated console, or a table of its ipa and intid. `virtio`: a virtio-console (hvc0 of Linux) beside the PL011. Default: pl011."),
        plain("gic", Kind::Table(GIC), "Where the interrupt controller is."),
        plain("crash", Kind::Or(&Kind::Words(CRASH_WORDS), CRASH), "What happens when the VM crashes. halt: it stays stopped. A table: it starts again so often at most, or another VM is told. Default: halt."),
        plain("reset", Kind::Or(&words(&["unlimited"]), RESET), "How often at most the VM starts again because its guest asks for a reset: a table, or unlimited. Default: 10 in 60s."),
        key("devices", Kind::TextsAndTables(DEVICE), "[\"/pl061@9030000\"]", "Devices of the board that the VM gets: paths in its device tree, or tables that say more; `board show` lists those that can be given."),
        plain("disks", Kind::Tables(DISK), DISK.about),
        plain("networks", Kind::Tables(PORT), PORT.about),
        plain("poll", Kind::Quantity(&DURATION), "Its disks and networks are polled: EL2 looks at them once in this time, 50us to 1s, and they never interrupt; the guest's driver looks, too, without an exit. Default: 1ms for hard-realtime and for GPPT VMs; else none, the driver tells EL2 and is interrupted."),
        plain("service", words(&["shared", "own"]), "Who moves the data of its virtio devices. shared: the service thread on the CPU of `[service]`. own: one on the CPU on which its first vCPU starts, beside it; for boards with few CPUs, and not for VMs that have their CPUs for themselves or are hard-realtime. Default: shared."),
        plain("board_reset", words(&["allowed"]), "A deviation, less than any class asks for: one of `devices` is a watchdog, which resets the whole board when the guest does not serve it. Without it such a device is refused."),
        plain("rtc", Kind::Or(&Kind::Flag, EMULATED), "An emulated real-time clock (PL031): true, or a table of its ipa and intid."),
        plain("watchdog", Kind::Or(&Kind::Flag, EMULATED), "An emulated watchdog (SBSA): true, or a table of its ipa and intid."),
        plain("stop", Kind::Or(&words(&STOPS), STOP), "How a manager's stop asks the VM to end before it is ended: power-key, a key that Linux knows; word, one in memory that a program polls; or a table. Default: it is not asked."),
        plain("ptimer", words(&["emulated", "own"]), "The EL1 physical timer: emulated, or that of its CPU. Default: emulated."),
        plain("time", words(&["runs", "stops"]), "Whether virtual time goes on while the VM is paused. Default: runs."),
        key("smc", Kind::Numbers, "[0x82000001]", "Calls of the SoC's or board's vendor or of a trusted OS that the VM may make: function identifiers such as 0x82000001."),
        plain("autostart", Kind::Flag, "Whether the VM starts with the board. Default: true; else somebody starts it."),
        key("accesses", Kind::Number(1, MAX_EVENTS), "20000", "The most accesses to memory of each vCPU in each `access_period`, counted by its CPU as [board] `access_event` says. Who has had them waits for the next period. Default: no limit."),
        plain("access_period", Kind::Quantity(&DURATION), "The period of `accesses`, 100us to 10s. Default: 1ms."),
        key("colours", Kind::Text, "\"0-7\"", "Colours of memory that its RAM has, such as 0-7 or 0-3, 8: no other VM has pages of these, so that none evicts what it keeps in the cache that the CPUs share. Default: all, if no VM has this key or `cache`."),
        key("cache", Kind::Text, "\"1/4\"", "Part of the cache that the CPUs share, in place of `colours`: so many of its colours, which the planner chooses among those that nobody names."),
        plain("share_colours", Kind::Flag, "Other VMs that say so, too, may have memory of the same colours. Default: false."),
        plain("debug", Kind::Flag, "Whether breakpoints, watchpoints and single steps work in the VM, such as those of a gdb in its Linux. Default: false, which is cheaper where vCPUs share a CPU."),
        plain("pmu", Kind::Flag, "Whether the VM has performance monitors, such as `perf` in its Linux counts with: the event counters of its CPUs but two, and a cycle counter. Default: false, which is cheaper where vCPUs share a CPU."),
        plain("locked", Kind::Flag, "No manager stops, pauses, restarts or changes the VM, whatever rights are given; the monitor's keys do. Default: false."),
        plain("deterministic", Kind::Flag, "Fixed seeds in the device tree, for runs that are the same each time."),
    ],
    rules: &[
        Rule::Has(&["memory"]),
        Rule::Either(&[&["kernel"], &["image"]]),
        Rule::Without("kernel", &["load", "entry"]),
        Rule::When("cpu", "rt", &["budget", "period"]),
        Rule::AnyWhen("class", "management", &["control", "manages"]),
        Rule::Without("control", &["manages"]),
    ],
};

/// `memory`.
#[rustfmt::skip]
pub const MEMORY: &Table = &Table {
    name: "memory",
    heading: "`memory`",
    about: "Of a VM, as a table.",
    keys: &[
        plain("size", Kind::Quantity(&SIZE), "Bytes, in pages of 4 KiB."),
        plain("ipa", Kind::Quantity(&ADDRESS), "Guest address, a multiple of 2 MiB. Default: 0x40000000."),
        plain("pa", Kind::Quantity(&ADDRESS), "Physical address, a multiple of 2 MiB. Without it the planner chooses."),
    ],
    rules: &[Rule::Has(&["size"])],
};

/// `console`, `rtc` and `watchdog`.
#[rustfmt::skip]
pub const EMULATED: &Table = &Table {
    name: "emulated",
    heading: "`console`, `rtc`, `watchdog`",
    about: "Of a VM, as tables: where the guest finds the device.",
    keys: &[
        plain("ipa", Kind::Quantity(&ADDRESS), "Guest address, a multiple of 4 KiB. Default: that of QEMU's virt; 0x9080000 for the watchdog."),
        key("intid", Kind::Number(FIRST_INTID, LAST_INTID), "40", "Its interrupt. Default: 33 of the console, 34 of the clock, 35 of the watchdog."),
    ],
    rules: &[],
};

/// `gic` of a VM.
#[rustfmt::skip]
pub const GIC: &Table = &Table {
    name: "gic",
    heading: "`gic`",
    about: "Of a VM.",
    keys: &[
        plain("gicd", Kind::Quantity(&ADDRESS), "Guest address of the distributor, a multiple of 64 KiB. Default: 0x8000000."),
        plain("gicr", Kind::Quantity(&ADDRESS), "GICv3: guest address of the redistributors, a multiple of 64 KiB. Default: 0x80a0000."),
        plain("gicc", Kind::Quantity(&ADDRESS), "GICv2: guest address of the CPU interface, a multiple of 64 KiB. Default: 0x8010000."),
    ],
    rules: &[],
};

/// `[shared.NAME]`.
#[rustfmt::skip]
pub const SHARED: &Table = &Table {
    name: "shared",
    heading: "`[shared.NAME]`",
    about: "Memory that VMs have together, or that one has besides its RAM.",
    keys: &[
        plain("size", Kind::Quantity(&SIZE), "Bytes, in pages of 4 KiB."),
        plain("ipa", Kind::Quantity(&ADDRESS), "Guest address in all its VMs."),
        plain("vms", Kind::PerVm(&["r", "rw"], 1, MAX_VMS), "The VMs that have it, each with r or rw."),
        plain("cacheable", Kind::Flag, "false: no VM caches it, whatever its own tables say, so that a program of Linux sees by /dev/mem what the others see. Default: true."),
    ],
    rules: &[Rule::Has(&["size", "ipa", "vms"])],
};

/// `[doorbell.NAME]`.
#[rustfmt::skip]
pub const DOORBELL: &Table = &Table {
    name: "doorbell",
    heading: "`[doorbell.NAME]`",
    about: "An interrupt from one VM to another.",
    keys: &[
        key("from", Kind::Text, "\"one\"", "The VM that rings."),
        key("to", Kind::Text, "\"one\"", "The VM that is interrupted."),
        key("shared", Kind::Text, "\"ring\"", "The shared memory that it is about."),
        plain("apart", Kind::Quantity(&DURATION), "Least time from one interrupt to the next. Default: 100us."),
    ],
    rules: &[Rule::Has(&["from", "to"])],
};

/// How an end of a channel hears of messages: by an interrupt.
pub const DOORBELL_END: &str = "doorbell";
/// The same: it looks.
pub const POLLING_END: &str = "poll";

/// `[channel.NAME]`.
#[rustfmt::skip]
pub const CHANNEL: &Table = &Table {
    name: "channel",
    heading: "`[channel.NAME]`",
    about: "Messages between two VMs, in both directions: memory of each end, which only that end writes, and doorbells. The crate `bulkhead-channel` and `bulkhead_channel.h` send and receive.",
    keys: &[
        plain("ends", Kind::PerVm(&[DOORBELL_END, POLLING_END], 2, 2), "Its two VMs, each with how it hears of messages: `doorbell`, by an interrupt when it sleeps, or `poll`, not at all: it looks, without an exit."),
        key("message", Kind::Number(1, 4096), "64", "Bytes of the longest message. Default: 64."),
        key("messages", Kind::Number(1, 65536), "64", "Messages that wait in each direction at most, a power of two. Default: 64."),
        plain("ipa", Kind::Quantity(&ADDRESS), "Guest address of the memory, in both VMs. Default: one channel behind the other, from 0x70000000 on, or from 0x10000000 if an end has RAM there; cached ones of a Linux from 0x78200000 on, or 2 MiB behind the RAM of both ends if that goes further."),
        plain("apart", Kind::Quantity(&DURATION), "Least time from one interrupt to the next at an end that hears. Default: 100us."),
        plain("cacheable", Kind::Flag, "Whether its VMs cache the memory. Default: true, or false if an end is a Linux, of which a program maps it by /dev/mem. With true a Linux that has device-dax, as debian:kernel-6.12, maps it cached, in a pmem region of 16 MiB or more of its IPA space."),
    ],
    rules: &[Rule::Has(&["ends"])],
};

/// An entry of `devices`.
#[rustfmt::skip]
pub const DEVICE: &Table = &Table {
    name: "device",
    heading: "`devices`",
    about: "An entry of the list of devices of the board that a VM gets, as a table; a path alone is the same as a table that says no more.",
    keys: &[
        key("path", Kind::Text, "\"/axi/i2c@ff020000\"", "Its path in the board's device tree."),
        plain("dma", words(&["none"]), "A deviation, less than any class asks for: whoever describes the system says that the device never moves memory by itself, and nobody checks it. A device that does reaches the memory of every VM. Only of devices of which Bulkhead does not know it, and whose nodes do not say otherwise."),
    ],
    rules: &[Rule::Has(&["path"])],
};

/// An entry of `disks`.
#[rustfmt::skip]
pub const DISK: &Table = &Table {
    name: "disk",
    heading: "`disks`",
    about: "Disks (virtio-blk) of a VM, as a list of tables. Their content is that of an image, or zeros, when the board starts, and stays while VMs start again.",
    keys: &[
        key("name", Kind::Text, "\"data\"", "Its name, which the guest can read as its serial number."),
        plain("size", Kind::Quantity(&SIZE), "Bytes, in memory of the board; without image in pages of 4 KiB. Default: those of the image, up to a multiple of 512."),
        key("image", Kind::Text, "\"root.img\"", "A file that is its content when the board starts, with zeros behind it: a path from the folder of this file, or as `image` of a VM. Default: zeros."),
        plain("read_only", Kind::Flag, "The VM cannot write to it. Several disks may have one image then."),
        plain("copy_on_write", Kind::Flag, "Changes are the VM's own, and the image stays as it is for others. Several disks may have one image then."),
        plain("shared", Kind::Flag, "The disks of this name that say so, of several VMs, are one disk, with one content and one size."),
    ],
    rules: &[Rule::Has(&["name"]), Rule::Any(&["size", "image"])],
};

/// An entry of `networks`.
#[rustfmt::skip]
pub const PORT: &Table = &Table {
    name: "port",
    heading: "`networks`",
    about: "Networks of a VM, as a list of tables: each is a network card (virtio-net).",
    keys: &[
        key("name", Kind::Text, "\"lan\"", "The network: one of [network.NAME]."),
        key("mac", Kind::Text, "\"02:00:00:00:00:01\"", "Ethernet address of the card. Default: a locally administered one that stays the same while the names of the system and of the VM do."),
        key("vlan", Kind::Number(1, 4094), "5", "Only cards with the same VLAN in a network reach each other; the guest sees no tags. Default: none, which is one of its own."),
    ],
    rules: &[Rule::Has(&["name"])],
};

/// `[network.NAME]`.
#[rustfmt::skip]
pub const NETWORK: &Table = &Table {
    name: "network",
    heading: "`[network.NAME]`",
    about: "A network of VMs: a switch, to which nothing is connected but their cards. It has no keys.",
    keys: &[],
    rules: &[],
};

/// `[service]`.
#[rustfmt::skip]
pub const SERVICE: &Table = &Table {
    name: "service",
    heading: "`[service]`",
    about: "Who serves disks and networks: a thread of EL2, which moves the data, and the VM `service`, which the planner adds.",
    keys: &[
        key("pcpu", Kind::Number(0, u32::MAX), "3", "The board's CPU on which both run; nobody is pinned there. Without it the planner chooses."),
        key("weight", Kind::Number(1, MAX_WEIGHT as u32), "1", "The thread is fair, with this weight. Default: fair with 1 where its CPU has no server, else a server if there is room for one."),
        plain("budget", Kind::Quantity(&DURATION), "The thread is a server: time that it gets in each period."),
        plain("period", Kind::Quantity(&DURATION), "The period of `budget`. 100us to 10s."),
        plain("memory", Kind::Quantity(&SIZE), "RAM of the VM. Default: as much as it needs."),
        key("image", Kind::Text, "\"guest:hostile-backend\"", "Another program for the VM, which finds in its device tree what it is to serve: as `image` of a VM."),
        key("colours", Kind::Text, "\"8-11\"", "Colours of memory of the VM, as `colours` of a VM."),
        key("cache", Kind::Text, "\"1/8\"", "As `cache` of a VM."),
        plain("share_colours", Kind::Flag, "As `share_colours` of a VM."),
    ],
    rules: &[Rule::Both("budget", "period"), Rule::Without("weight", &["budget", "period"])],
};

/// `[el2]`.
#[rustfmt::skip]
pub const EL2: &Table = &Table {
    name: "el2",
    heading: "`[el2]`",
    about: "EL2's own memory: its binary, its stacks, its tables and what it knows of each VM.",
    keys: &[
        key("colours", Kind::Text, "\"14-15\"", "Colours of that memory, such as 14-15: EL2 moves into pages of these at start, and no VM has memory of them that does not say `share_colours`, so that neither evicts what the other keeps in the cache that the CPUs share. Default: all."),
        key("cache", Kind::Text, "\"1/8\"", "As `cache` of a VM: that part of the cache in place of `colours`."),
    ],
    rules: &[],
};

/// `[console]`.
#[rustfmt::skip]
pub const CONSOLE: &Table = &Table {
    name: "console",
    heading: "`[console]`",
    about: "The board's console.",
    keys: &[
        key("service", Kind::Number(0, u32::MAX), "0", "The board's CPU that drains the console. Without it the planner chooses."),
        plain("monitor", Kind::Flag, "Whether the console has the monitor (Ctrl-T m). Default: true. Where each vCPU has a CPU to itself, EL2 is smaller without it."),
    ],
    rules: &[],
};

/// All tables but the whole file, in the order of the book.
pub const TABLES: [&Table; 18] = [
    BOARD, VM, MEMORY, EMULATED, GIC, CRASH, RESET, STOP, DEVICE, DISK, PORT, SHARED, DOORBELL,
    CHANNEL, NETWORK, SERVICE, EL2, CONSOLE,
];

/// A key that holds a string.
#[derive(Clone, Copy, Debug)]
pub struct Text(pub &'static Key);
/// A key that holds `true` or `false`.
#[derive(Clone, Copy, Debug)]
pub struct Flag(pub &'static Key);
/// A key that holds a number.
#[derive(Clone, Copy, Debug)]
pub struct Number(pub &'static Key);
/// A key that holds a list of numbers.
#[derive(Clone, Copy, Debug)]
pub struct Numbers(pub &'static Key);
/// A key that holds a string or a list of strings.
#[derive(Clone, Copy, Debug)]
pub struct TextOrTexts(pub &'static Key);
/// A key that holds a string with a number and a unit, and how that is written.
#[derive(Clone, Copy, Debug)]
pub struct Quantity(pub &'static Key, pub &'static Notation);
/// A key that holds one of some words.
#[derive(Clone, Copy, Debug)]
pub struct Word(pub &'static Key, pub Words);

/// Panic message of [`Table::text`] and its like for a key that holds another kind of value.
const OTHER: &str = "the key holds something else";

impl Table {
    /// A key by its name, while the code is compiled.
    ///
    /// # Panics
    /// The table has none of this name; in `const { .. }` that is an error of the compiler.
    pub const fn key(&'static self, name: &str) -> &'static Key {
        let mut index = 0;
        while index < self.keys.len() {
            if same(self.keys[index].name, name) {
                return &self.keys[index];
            }
            index += 1;
        }
        panic!("the table has no such key")
    }

    /// A key that holds a string. Panics as [`Self::key`] does, and if it holds something else, as do
    /// all below.
    pub const fn text(&'static self, name: &str) -> Text {
        let key = self.key(name);
        assert!(matches!(key.kind, Kind::Text), "{}", OTHER);
        Text(key)
    }

    /// A key that holds `true` or `false`, and may hold a table instead.
    pub const fn flag(&'static self, name: &str) -> Flag {
        let key = self.key(name);
        assert!(matches!(key.value(), Kind::Flag), "{}", OTHER);
        Flag(key)
    }

    /// A key that holds a number.
    pub const fn number(&'static self, name: &str) -> Number {
        let key = self.key(name);
        assert!(matches!(key.kind, Kind::Number(..)), "{}", OTHER);
        Number(key)
    }

    /// A key that holds a list of numbers.
    pub const fn numbers(&'static self, name: &str) -> Numbers {
        let key = self.key(name);
        assert!(matches!(key.kind, Kind::Numbers), "{}", OTHER);
        Numbers(key)
    }

    /// A key that holds a string or a list of strings.
    pub const fn text_or_texts(&'static self, name: &str) -> TextOrTexts {
        let key = self.key(name);
        assert!(matches!(key.kind, Kind::TextOrTexts), "{}", OTHER);
        TextOrTexts(key)
    }

    /// A key that holds a number with a unit, and may hold a table instead.
    pub const fn quantity(&'static self, name: &str) -> Quantity {
        let key = self.key(name);
        match key.value() {
            Kind::Quantity(notation) => Quantity(key, notation),
            _ => panic!("{}", OTHER),
        }
    }

    /// A key that holds one of some words, and may hold a table instead.
    pub const fn word(&'static self, name: &str) -> Word {
        let key = self.key(name);
        match key.value() {
            Kind::Words(words) => Word(key, words),
            _ => panic!("{}", OTHER),
        }
    }

    /// The keys that it must always have.
    pub fn required(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.rules
            .iter()
            .flat_map(|rule| match rule {
                Rule::Has(keys) => *keys,
                _ => &[],
            })
            .copied()
    }

    /// The names of its keys.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.keys.iter().map(|key| key.name)
    }
}

impl Key {
    /// A value as it stands in a file, for messages.
    pub fn example(&self) -> String {
        match self.value() {
            Kind::Flag => "true".to_owned(),
            Kind::Quantity(notation) => format!("\"{}\"", notation.example),
            Kind::Words(words) => format!("\"{}\"", words.sound[0]),
            _ => self.example.to_owned(),
        }
    }

    /// Kind of its value if that is not a table.
    const fn value(&self) -> Kind {
        match self.kind {
            Kind::Or(value, _) => *value,
            kind => kind,
        }
    }
}

/// Whether two names are the same: `==` for constants.
const fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }
    index == one.len() && index == other.len()
}

#[cfg(test)]
mod tests;

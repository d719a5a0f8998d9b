//! Obstacles to running EL2 on a board, each with the reason and the remedy.

use super::cpus::Cpu;
use super::facts::{Obstacle, Survey};
use super::parts::{Gic, Timers};
use bulkhead_abi::plan::{MAX_PCPUS, Memory};
use bulkhead_core::boot_tree::KEPT as MOST_RANGES;

use crate::board::{self, Tree, redistributors};

/// Advice to import the tree as firmware leaves it.
const AS_LEFT: &str = "import the tree that the firmware hands over: on a Linux that it has started, /sys/firmware/fdt";

/// Finds all of them.
pub(super) fn find(
    survey: &Survey,
    tree: &Tree,
    (bytes, stated): (&[u8], &[Memory]),
) -> Vec<Obstacle> {
    let mut all = Vec::new();
    cpus(&survey.cpus.cpus, &mut all);
    firmware(survey, &mut all);
    controller(&survey.interrupt_controllers, &survey.cpus.cpus, &mut all);
    extended(survey, tree, &mut all);
    timer(survey, &mut all);
    console(survey, tree, &mut all);
    memory(survey, &mut all);
    // An error of the planner that is not among the obstacles yet.
    if let Some(why) = board::facts_with(bytes, stated)
        .err()
        .filter(|_| all.is_empty())
    {
        all.push(Obstacle {
            part: "board",
            what: why,
            why: "the planner needs it".to_owned(),
            help: AS_LEFT.to_owned(),
        });
    }
    all
}

/// The help for something that needs code.
fn unwritten(what: &str) -> String {
    format!("there is no way around it: EL2 has no {what} for it yet")
}

fn cpus(cpus: &[Cpu], all: &mut Vec<Obstacle>) {
    let mut add = |what: String, why: &str, help: String| {
        all.push(Obstacle {
            part: "CPUs",
            what,
            why: why.to_owned(),
            help,
        });
    };
    let cpus: Vec<&Cpu> = cpus.iter().filter(|cpu| cpu.enabled).collect();
    if cpus.is_empty() {
        let help = format!("it may be no tree of a whole board; {AS_LEFT}");
        add(
            "the tree has no CPUs".to_owned(),
            "there is nothing to run on",
            help,
        );
        return;
    }
    let first = |is: &dyn Fn(&Cpu) -> bool| cpus.iter().find(|cpu| is(cpu)).copied();
    // A tree without a method leaves it to /psci.
    let other = |cpu: &Cpu| {
        cpu.enable_method
            .as_deref()
            .is_some_and(|how| how != "psci" && how != "spin-table")
    };
    if let Some(cpu) = first(&other) {
        let how = cpu.enable_method.clone().unwrap_or_default();
        add(
            format!("{} is started by `{how}`", cpu.path),
            "EL2 starts CPUs by PSCI, or where they wait for an address (`spin-table`)",
            format!(
                "start the board with firmware that has PSCI (Trusted Firmware-A), and {AS_LEFT}"
            ),
        );
    }
    let old = [
        "arm,arm",
        "arm,cortex-a5",
        "arm,cortex-a7",
        "arm,cortex-a8",
        "arm,cortex-a9",
        "arm,cortex-a15",
        "arm,cortex-a17",
    ];
    if let Some(cpu) =
        first(&|cpu| old.contains(&cpu.kind.as_str()) || cpu.kind.starts_with("arm,arm1"))
    {
        add(
            format!("{} ({}) has 32 bits", cpu.path, cpu.kind),
            "EL2 is AArch64",
            "no other firmware changes that".to_owned(),
        );
    }
    if let Some(cpu) = first(&|cpu| cpu.kind.starts_with("apple,")) {
        add(
            format!("{} ({}) has HCR_EL2.E2H fixed to 1", cpu.path, cpu.kind),
            "EL2 needs it to be 0",
            unwritten("mode"),
        );
    }
    if let Some(cpu) = first(&|cpu| cpu.kind == "arm,cortex-r82") {
        add(
            format!("{} ({}) has regions of memory at EL2", cpu.path, cpu.kind),
            "EL2 keeps VMs apart by stage-2 translation",
            unwritten("protection"),
        );
    }
}

fn firmware(survey: &Survey, all: &mut Vec<Obstacle>) {
    let first = survey.cpus.cpus.iter().find(|cpu| cpu.enabled);
    let waits = first.is_some_and(|cpu| cpu.enable_method.as_deref() == Some("spin-table"));
    if let Some(what) = survey.firmware.out_of_reach().filter(|_| !waits) {
        all.push(Obstacle {
            part: "firmware",
            what,
            why: "it is the tree of a guest, or of a board that starts without EL2".to_owned(),
            help: format!("start the board at EL2 (QEMU: virtualization=on), and {AS_LEFT}"),
        });
    }
}

fn controller(controllers: &[Gic], cpus: &[Cpu], all: &mut Vec<Obstacle>) {
    let mut add = |what: String, why: &str, help: String| {
        all.push(Obstacle {
            part: "GIC",
            what,
            why: why.to_owned(),
            help,
        });
    };
    let Some(gic) = controllers.first() else {
        let help = format!("if the board has one, {AS_LEFT}");
        add(
            "the tree has no GIC".to_owned(),
            "EL2 drives GICv2 and GICv3",
            help,
        );
        return;
    };
    let path = &gic.path;
    let Some(version) = gic.version else {
        let words = gic.compatible.join(", ");
        let why = "EL2 drives GICv2 with virtualization (GIC-400) and GICv3";
        add(
            format!("EL2 has no driver for {path} ({words})"),
            why,
            unwritten("driver"),
        );
        return;
    };
    if gic.cells.is_some_and(|cells| cells != 3 && cells != 4) {
        let cells = gic.cells.unwrap_or_default();
        add(
            format!("interrupts of {path} have {cells} cells"),
            "EL2 reads three or four of each",
            unwritten("reader"),
        );
    }
    if gic.frames.is_empty() {
        add(
            format!("{path} has no registers in memory"),
            "no bus above it maps them (`ranges`)",
            format!("if the GIC has them, {AS_LEFT}"),
        );
        return;
    }
    let frames = if version == 2 { 4 } else { 2 };
    if gic.frames.len() < frames {
        let n = gic.frames.len();
        add(
            format!("{path} has {n} frames"),
            "a GICv2 needs four (distributor, CPU interface, GICH, GICV), a GICv3 two",
            format!(
                "if the GIC has them, add them to the tree's `reg`; else {}",
                unwritten("way")
            ),
        );
    }
    let cpus = cpus.iter().filter(|cpu| cpu.enabled).count();
    let region = gic.frames.get(1).filter(|_| version == 3);
    let small = region.and_then(|region| redistributors(region.size, cpus.min(MAX_PCPUS)));
    if let Some(what) = small.filter(|_| gic.redistributor_regions == 1) {
        add(
            what,
            "each CPU has two frames of 64 KiB",
            "correct the tree's `reg` of the GIC".to_owned(),
        );
    }
    if version == 3 && gic.redistributor_regions != 1 {
        let n = gic.redistributor_regions;
        add(
            format!("{path} has {n} regions of redistributors"),
            "EL2 looks through one",
            unwritten("search"),
        );
    }
    if gic.maintenance_intid.is_none() {
        add(
            format!("{path} has no maintenance interrupt"),
            "the virtual GIC needs it when list registers run out",
            "add its `interrupts` to the tree; most boards have INTID 25".to_owned(),
        );
    }
}

/// The parts whose interrupts EL2 would not find in its boot tree.
fn extended(survey: &Survey, tree: &Tree, all: &mut Vec<Obstacle>) {
    let gic = survey.interrupt_controllers.first().map(|gic| &gic.path);
    let timer = survey.timers.as_ref().map(|timers| &timers.path);
    let uart = survey.uarts.iter().find(|uart| uart.console);
    let parts = [
        ("GIC", gic),
        ("timer", timer),
        ("console", uart.map(|uart| &uart.path)),
    ];
    for (part, path) in parts {
        let Some(path) = path else { continue };
        let entry = tree.entries.iter().find(|entry| entry.path == *path);
        if entry.is_some_and(|entry| entry.bytes("interrupts-extended").is_some()) {
            all.push(Obstacle {
                part,
                what: format!("{path} has `interrupts-extended`"),
                why: "EL2 reads `interrupts` only".to_owned(),
                help: "let the tree have `interrupts` and `interrupt-parent` instead".to_owned(),
            });
        }
    }
}

fn timer(survey: &Survey, all: &mut Vec<Obstacle>) {
    let needed = |timers: &Timers| {
        timers.v8
            && timers
                .physical
                .and(timers.virtual_)
                .and(timers.hypervisor)
                .is_some()
    };
    if survey.timers.as_ref().is_some_and(needed) {
        return;
    }
    let what = match &survey.timers {
        None => "the tree has no generic timer".to_owned(),
        Some(timers) if !timers.v8 => format!("{} is a timer of Armv7", timers.path),
        Some(timers) => format!("{} does not name all of its interrupts", timers.path),
    };
    all.push(Obstacle {
        part: "timer",
        what,
        why: "EL2 uses the physical, the virtual and the hypervisor timer".to_owned(),
        help: "add a node `arm,armv8-timer` with its four interrupts to the tree".to_owned(),
    });
}

fn console(survey: &Survey, tree: &Tree, all: &mut Vec<Obstacle>) {
    let mut add = |what: String, why: &str, help: String| {
        all.push(Obstacle {
            part: "console",
            what,
            why: why.to_owned(),
            help,
        });
    };
    let other = survey.uarts.iter().find(|uart| uart.driver && uart.enabled);
    let usable = |otherwise: String| match other {
        Some(uart) => format!(
            "{} is a {}, which EL2 drives: let the firmware name it in /chosen/stdout-path",
            uart.path, uart.kind
        ),
        None => otherwise,
    };
    let why = "EL2 drives the UART that carries the consoles of all VMs";
    let stated = tree
        .find("/chosen")
        .and_then(|chosen| chosen.text("stdout-path"));
    let Some(uart) = survey.uarts.iter().find(|uart| uart.console) else {
        let what = match stated {
            Some(path) => format!("the console {path} does not exist"),
            None => "the tree names no console".to_owned(),
        };
        let help = usable(format!(
            "let the firmware name a UART that EL2 drives in /chosen/stdout-path, and {AS_LEFT}"
        ));
        add(what, why, help);
        return;
    };
    if !uart.driver {
        let help = usable(unwritten("driver"));
        add(
            format!("EL2 has no driver for {} ({})", uart.path, uart.kind),
            why,
            help,
        );
        return;
    }
    if uart.registers.is_empty() {
        add(
            format!("{} has no registers in memory", uart.path),
            "no bus above it maps them (`ranges`)",
            usable(format!("if the UART has them, {AS_LEFT}")),
        );
    }
    if uart.intid.is_none() {
        add(
            format!("{} has no interrupt of the GIC", uart.path),
            "EL2 sends and receives by interrupts",
            usable("add its `interrupts` to the tree".to_owned()),
        );
    }
}

fn memory(survey: &Survey, all: &mut Vec<Obstacle>) {
    let mut add = |what: &str, why: &str, help: &str| {
        all.push(Obstacle {
            part: "memory",
            what: what.to_owned(),
            why: why.to_owned(),
            help: help.to_owned(),
        });
    };
    let memory = &survey.memory;
    if memory.iter().all(|range| range.size == 0) {
        let what = if memory.is_empty() {
            "the tree has no memory"
        } else {
            "the tree leaves the size of the memory to the firmware"
        };
        let help = format!(
            "say what there is in [board] of the description, such as memory_ranges = \"1GiB at 0x40000000\"; or {AS_LEFT}"
        );
        add(what, "VMs are placed when the plan is made", &help);
    }
    if survey.reserved.len() > MOST_RANGES {
        add(
            &format!("firmware keeps more than {MOST_RANGES} ranges of memory"),
            "EL2 reads so many, and must not miss one",
            "join ranges that touch, or leave those out that nobody uses",
        );
    }
}

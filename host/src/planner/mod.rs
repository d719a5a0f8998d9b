//! From a description and a board to a plan: who gets which CPU, page, interrupt and address.
//!
//! Everything that can be wrong is found on the way and shown in the description. At the end the plan
//! is proven by the same code that EL2 uses (`bulkhead_core::plan`).

mod contents;
mod cpus;
mod doorbells;
mod emulated;
mod guest;
mod ipa;
mod overlay;
mod own;
mod passed;
mod payload;
mod place;
mod room;
mod share;
mod spis;
mod store;
mod tables;
mod unpack;

use bulkhead_abi::plan::{Class, DeviceKind, PAGE};
use bulkhead_core::gppt::{Mode, Reclaim};
use bulkhead_core::plan::{Plan, table_name};

use self::cpus::Assigned;
use crate::board::{Board, Passed, Trouble};
use crate::describe::{CpuTime, CrashSpec, Deviation, Finding, System};
use crate::failure::Failure;
use crate::guest_tree::GuestGic;

pub use doorbells::PlannedDoorbell;
pub use share::{Server, Share, Usage, percent, usage};
pub use store::{Content, Reads};

/// What to do about payloads that nobody made or fetched yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Build programs, fetch packages.
    Everything,
    /// Plan without them, and say so.
    WhatIsThere,
}

/// Bytes for EL2 in the image when nobody built it yet.
const EL2_GUESS: u64 = 96 * 1024;

/// A payload of a VM in the image.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it is: "kernel", "program", "device tree".
    pub what: &'static str,
    /// Where it goes.
    pub ipa: u64,
    /// Content, the same for all VMs that have it from one file.
    pub bytes: Content,
    /// Bytes from the start of the image.
    pub offset: u64,
}

/// A range that a VM's stage 2 maps.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// What it is: "RAM", the name of shared memory, the path of a device.
    pub what: String,
    /// In the words of the plan.
    pub region: bulkhead_abi::plan::Region,
}

/// A device that EL2 emulates for a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmulatedDevice {
    /// What it is.
    pub kind: DeviceKind,
    /// Where its registers are.
    pub ipa: u64,
    /// Bytes of its registers.
    pub size: u64,
    /// Its interrupt, an SPI.
    pub intid: u32,
}

impl EmulatedDevice {
    /// What people call it.
    pub fn called(&self) -> &'static str {
        match self.kind {
            DeviceKind::Pl011 => "the console (PL011)",
            DeviceKind::Pl031 => "the clock (PL031)",
            DeviceKind::Watchdog => "the watchdog (SBSA)",
        }
    }
}

/// A VM as planned.
#[derive(Clone, Debug)]
pub struct PlannedVm {
    /// Name.
    pub name: String,
    /// Class.
    pub class: Class,
    /// Less than the class asks for.
    pub deviations: Vec<Deviation>,
    /// Numbers of its CPUs on the board, by vCPU.
    pub cpus: Vec<usize>,
    /// What each vCPU may have of its CPU.
    pub time: CpuTime,
    /// Why: the class, or a line of the description.
    pub time_why: String,
    /// CPUs of the board to which the load balancer may move its vCPUs, besides their own.
    pub pool: Vec<usize>,
    /// Why it gets its interrupts that way.
    pub interrupts_why: String,
    /// IPA of the page in which it is told stolen time.
    pub stolen_time: Option<u64>,
    /// First instruction.
    pub entry: u64,
    /// IPA of its device tree.
    pub tree: u64,
    /// Whether its seeds are fixed.
    pub deterministic: bool,
    /// What happens when it crashes.
    pub crash: CrashSpec,
    /// The mode in which it takes its physical interrupts itself; `None`: through the vGIC.
    pub own_interrupts: Option<Mode>,
    /// How EL2 gets its CPU back, where that mode leaves a choice.
    pub reclaim: Reclaim,
    /// Where that comes from.
    pub reclaim_why: String,
    /// Whether the physical timer is its own; else it is emulated.
    pub own_ptimer: bool,
    /// Whether its time stands still while it is paused.
    pub time_stops: bool,
    /// Calls of the firmware that it may make, ascending.
    pub calls: Vec<u32>,
    /// Its interrupt controller.
    pub gic: GuestGic,
    /// Devices that EL2 emulates for it.
    pub emulated: Vec<EmulatedDevice>,
    /// SPI by which it is told of other VMs' crashes.
    pub event: Option<u32>,
    /// SPIs of its vGIC.
    pub spis: u32,
    /// Pages of its stage-2 tables.
    pub s2_pages: u32,
    /// Stage 2, ascending by IPA.
    pub regions: Vec<Mapped>,
    /// What EL2 copies into its RAM.
    pub loads: Vec<Loaded>,
    /// Passed-through devices with the INTIDs that it sees.
    pub devices: Vec<(Passed, Vec<u32>)>,
}

/// A pCPU as planned.
#[derive(Clone, Debug)]
pub struct PlannedCpu {
    /// Number on the board.
    pub cpu: usize,
    /// Affinity fields of its MPIDR_EL1.
    pub mpidr: u64,
    /// Who runs there at first: index of the VM, number of the vCPU.
    pub vcpus: Vec<(usize, usize)>,
    /// Whether it drains the console.
    pub service: bool,
    /// First of two SPIs by which others call it; 0: by SGIs.
    pub call_spi: u16,
}

/// A system as planned.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Name of the system.
    pub name: String,
    /// The board.
    pub board: Board,
    /// pCPUs that EL2 brings up.
    pub cpus: Vec<PlannedCpu>,
    /// VMs.
    pub vms: Vec<PlannedVm>,
    /// Doorbells between them, in the order of those that ring.
    pub doorbells: Vec<PlannedDoorbell>,
    /// The image.
    pub image: bulkhead_abi::plan::Image,
    /// The plan for EL2.
    pub bytes: Vec<u8>,
    /// Whether it was made without some payloads, or without EL2 itself: good to look at, not to run.
    pub provisional: bool,
    /// What was read for it.
    pub reads: Reads,
}

impl Planned {
    /// What each VM may have of its CPUs, by VM.
    pub fn times(&self) -> Vec<CpuTime> {
        self.vms.iter().map(|vm| vm.time).collect()
    }
}

/// Plans a system. `el2` is how many bytes EL2 takes in the image, if it is built.
///
/// # Errors
/// The description is wrong (then `findings` says how), or a tool or file is missing.
pub fn plan(
    system: &System,
    board: Board,
    el2: Option<u64>,
    effort: Effort,
    findings: &mut Vec<Finding>,
) -> Result<Planned, Trouble> {
    let Assigned { mut cpus, times } = cpus::assign(system, &board, findings);
    let mut doorbells = doorbells::assign(system, &board, findings);
    let mut store = store::Store::new(system, effort);
    let mut guests = Vec::new();
    let mut owners = Vec::new();
    let mut passed = Vec::new();
    for (index, spec) in system.vms.iter().enumerate() {
        passed.push(passed::devices(index, system, &board, findings));
        let unseen = own::sends_unseen(spec, board.parts.gic_version);
        let mut kinds: Vec<(u64, &str)> = cpus::of_vm(&cpus, index)
            .iter()
            .filter_map(|&cpu| board.cpus.get(cpu))
            .zip(0..)
            .map(|(cpu, number)| {
                let mpidr = if unseen { cpu.mpidr } else { number };
                (mpidr, cpu.compatible.as_str())
            })
            .collect();
        // A vCPU without a CPU was reported; what else is wrong is found all the same.
        kinds.resize(spec.vcpus, (0, ""));
        let contents = contents::contents(spec, &mut store, findings)?;
        let overlays = overlay::read(spec, &mut store, findings)?;
        if let Some(contents) = contents {
            let devices = passed.last().cloned().unwrap_or_default();
            let guest = guest::arrange(
                (index, spec),
                system,
                (&board, &kinds, times[index] != CpuTime::Pinned),
                (devices, &mut doorbells),
                (contents, &overlays),
                findings,
            );
            if let Some(guest) = guest {
                owners.push(index);
                guests.push(guest);
            }
        }
    }
    passed::devices_twice(system, findings);
    cpus::choose_service(system, board.parts.gic_version, &mut cpus, findings);

    let call_spis = own::call_spis(system, &board, &doorbells, cpus.len(), findings);
    for (cpu, spi) in cpus.iter_mut().zip(call_spis) {
        cpu.call_spi = spi;
    }

    let provisional = el2.is_none() || guests.iter().any(|guest| guest.absent);
    let el2 = el2.unwrap_or(EL2_GUESS).next_multiple_of(PAGE);
    let layout = tables::layout((el2, &doorbells), &mut guests, cpus.len(), system, &board);
    place::place(system, &board, &layout, (&owners, &mut guests), findings)?;
    if findings.iter().any(|finding| finding.is_error()) || guests.len() != system.vms.len() {
        return Err(Trouble::Description);
    }
    let (bytes, image) = tables::emit(
        &board,
        (&cpus, &times),
        (&mut guests, &doorbells),
        system,
        &layout,
    );
    let size = (bytes.len() as u64, image.pool_pages);
    room::check(system, &guests, size, findings);
    if findings.iter().any(|finding| finding.is_error()) {
        return Err(Trouble::Description);
    }
    prove(&bytes)?;

    let vms = guests
        .into_iter()
        .enumerate()
        .map(|(index, guest)| {
            let own = cpus::of_vm(&cpus, index);
            guest.into_planned(system, &system.vms[index], own, times[index])
        })
        .collect();
    Ok(Planned {
        name: system.name.clone(),
        board,
        cpus,
        vms,
        doorbells,
        image,
        bytes,
        provisional,
        reads: store.reads(),
    })
}

/// The last word: core's own proof. If it fails, this planner has a bug.
fn prove(bytes: &[u8]) -> Result<(), Failure> {
    Plan::open(bytes)
        .and_then(|plan| plan.check())
        .map_err(|violation| {
            let place = violation.table.map_or_else(
                || "header".to_owned(),
                |table| format!("{} {}", table_name(table), violation.row),
            );
            Failure::failed(
                format!(
                    "internal error: the plan breaks `{}` at {place}",
                    violation.invariant.name()
                ),
                violation.invariant.meaning(),
                "this is a bug of the planner; please report it with the description",
            )
        })
}

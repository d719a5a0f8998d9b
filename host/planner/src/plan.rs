//! From a description and a board to a plan: who gets which CPU, page, interrupt and address.
//!
//! Everything that can be wrong is found on the way and shown in the description. At the end the plan
//! is proven by the same code that EL2 uses (`bulkhead_core::plan`).

use bulkhead_abi::plan::PAGE;
use bulkhead_core::plan::{Plan, table_name};

use bulkhead_model::board::{Board, PlanError};
use bulkhead_model::describe::{Code, CpuTime, Finding, System};
use bulkhead_model::failure::Failure;

use crate::cpus::Assigned;
use crate::io::PlannedIo;
use crate::planned::{PlannedChannel, PlannedCpu, PlannedDoorbell, PlannedVm};
use crate::sources::Sources;
use crate::store::Reads;
use crate::{
    bandwidth, caches, capacity, contents, cpus, doorbells, gppt, guest, io, overlay, passthrough,
    place, pmu, profile, share, store, tables,
};

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
    /// Channels between them, in the order of the file; their doorbells are among the others.
    pub channels: Vec<PlannedChannel>,
    /// The virtio devices of VMs, if there are any, and who serves them.
    pub io: Option<PlannedIo>,
    /// The image.
    pub image: bulkhead_abi::plan::Image,
    /// The plan for EL2.
    pub bytes: Vec<u8>,
    /// Whether it was made without some payloads, or without EL2 itself: good to look at, not to run.
    pub provisional: bool,
    /// Statistics of the files read to make it.
    pub reads: Reads,
}

impl Planned {
    /// CPU time of each VM, by VM.
    pub fn times(&self) -> Vec<CpuTime> {
        self.vms.iter().map(|vm| vm.time).collect()
    }

    /// The period of a VM's limit of accesses; 0 if it has none.
    pub fn held(&self, vm: usize) -> u64 {
        let accesses = self.vms.get(vm).and_then(|vm| vm.accesses);
        accesses.map_or(0, |accesses| accesses.period)
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
    sources: &dyn Sources,
    findings: &mut Vec<Finding>,
) -> Result<Planned, PlanError> {
    let mut store = store::Store::new(system, sources);
    let disks = io::disks(system, &board, &mut store, findings)?;
    let system = &*io::with_service(system, &disks);
    let Assigned {
        mut cpus,
        times,
        io: chosen,
    } = cpus::assign(system, &board, findings);
    let mut io = io::plan(system, &disks, chosen, findings);
    let system = &*caches::choose(system, &board, &cpus, io.as_ref(), findings);
    let mut doorbells = doorbells::assign(system, &board, findings);
    let mut guests = Vec::new();
    let mut owners = Vec::new();
    let mut passed = Vec::new();
    for (index, spec) in system.vms.iter().enumerate() {
        passed.push(passthrough::devices(index, system, &board, findings));
        let unseen = gppt::sends_sgis_itself(spec, board.gic());
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
        let before = findings.len();
        let contents = contents::contents(spec, &mut store, findings)?;
        if io::service_vm(system) == Some(index) {
            // Nobody has named its program, which is built with EL2.
            let found = findings.split_off(before).into_iter();
            findings.extend(found.filter(|finding| finding.code != Code::ImageAbsent));
        }
        let overlays = overlay::read(spec, &mut store, findings)?;
        if let Some(contents) = contents {
            let devices = passed.last().cloned().unwrap_or_default();
            let guest = guest::arrange(
                (index, spec),
                system,
                (&board, &kinds, times[index] != CpuTime::Pinned),
                (devices, &mut doorbells, io.as_mut()),
                (contents, &overlays),
                findings,
            );
            if let Some(guest) = guest {
                owners.push(index);
                guests.push(guest);
            }
        }
    }
    passthrough::devices_twice(system, findings);
    cpus::choose_service(system, &board, &mut cpus, findings);
    for cpu in &cpus {
        share::overload(system, cpu, &times, findings);
    }

    let call_spis = gppt::call_spis(system, &board, &doorbells, &cpus, findings);
    for (cpu, spi) in cpus.iter_mut().zip(call_spis) {
        cpu.call_spi = spi;
    }
    doorbells::assign_spis(&board, (&cpus, &times), &mut doorbells, io.as_mut());

    bandwidth::plan(system, &board, &mut cpus, findings);
    pmu::plan(system, &board, &mut cpus, findings);
    let profile = profile::choose(system, &times, findings);
    let provisional = el2.is_none() || guests.iter().any(|guest| guest.absent);
    let el2 = el2
        .unwrap_or_else(|| profile::expected_size(profile))
        .next_multiple_of(PAGE);
    let layout = tables::layout(
        (el2, &doorbells),
        &mut io,
        &mut guests,
        cpus.len(),
        system,
        &board,
    );
    place::place(system, &board, &layout, (&owners, &mut guests), findings)?;
    if findings.iter().any(|finding| finding.is_error()) || guests.len() != system.vms.len() {
        return Err(PlanError::Description);
    }
    let (bytes, image) = tables::emit(
        &board,
        (&cpus, &times, profile),
        (&mut guests, &doorbells, &mut io),
        system,
        &layout,
    );
    let size = (bytes.len() as u64, image.page_pool_pages);
    capacity::check(system, &guests, size, findings);
    if findings.iter().any(|finding| finding.is_error()) {
        return Err(PlanError::Description);
    }
    prove(&bytes)?;

    let event = bandwidth::event(system, &board).map(|(name, _)| name);
    let vms = guests
        .into_iter()
        .enumerate()
        .map(|(index, guest)| {
            let own = cpus::of_vm(&cpus, index);
            let mut vm = guest.into_planned(system, &system.vms[index], (own, times[index], event));
            if let Some(service) = io.as_ref().and_then(|io| io.served_by(index)) {
                vm.time_why = format!("added by the planner: {}", service.time_why);
            }
            vm
        })
        .collect();
    Ok(Planned {
        name: system.name.clone(),
        board,
        cpus,
        vms,
        doorbells,
        channels: PlannedChannel::all(system),
        io,
        image,
        bytes,
        provisional,
        reads: store.reads(),
    })
}

/// Proves the plan by the code of `bulkhead_core`. If that fails, this planner has a bug.
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

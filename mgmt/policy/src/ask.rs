//! Looks at the board: no more is asked than the rules measure, since each question about time or exits is an exit of a pCPU.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use bulkhead_abi::control::Phase;
use bulkhead_abi::plan::CpuPolicy;
use bulkhead_control::board::{Vcpu, Vm};
use bulkhead_control::failure::{Failure, Outcome};
use bulkhead_control::manager::Manager;

use crate::meter::{Look, VcpuLook, VmLook};
use crate::rule::{Measure, Policy};

/// Why something of a vCPU is not known.
const NOT_ASKED: &str = "it was not asked for";

/// What has to be asked about the vCPUs of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// CPU time.
    pub time: bool,
    /// Exits.
    pub exits: bool,
}

/// The VMs of a policy, with what has to be asked about them: those that are measured, and those of which something is moved.
pub fn needs(policy: &Policy) -> BTreeMap<String, Needs> {
    let mut all: BTreeMap<String, Needs> = BTreeMap::new();
    for vm in policy.rules.iter().flat_map(|rule| &rule.vms) {
        all.entry(vm.value.clone()).or_default();
    }
    for (vm, measure) in policy.measured() {
        let needs = all.entry(vm.to_owned()).or_default();
        needs.exits |= measure.needs_exits();
        needs.time |= !measure.needs_exits();
    }
    all
}

/// A VM as it is seen, with its vCPUs.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its state.
    pub vm: Vm,
    /// Its vCPUs.
    pub vcpus: Vec<Vcpu>,
}

/// What is seen of the board.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Number of pCPUs.
    pub pcpus: u16,
    /// The VMs over which there is a right.
    pub vms: Vec<Seen>,
}

/// Asks what is there.
///
/// # Errors
/// EL2 does not answer.
pub fn facts<T: Read + Write + AsFd>(manager: &mut Manager<T>) -> Result<Facts, Failure> {
    let mut vms = Vec::new();
    for vm in manager.vms()? {
        let vcpus: Result<_, Failure> = (0..vm.vcpus)
            .map(|number| manager.vcpu(&vm, number))
            .collect();
        vms.push(Seen { vcpus: vcpus?, vm });
    }
    let pcpus = manager.hello.pcpus;
    Ok(Facts { pcpus, vms })
}

/// Looks at these VMs. One about which EL2 refuses to answer is not in the look.
///
/// # Errors
/// EL2 does not answer.
pub fn look<T: Read + Write + AsFd>(
    manager: &mut Manager<T>,
    vms: &BTreeMap<String, (u16, Needs)>,
    at: Duration,
) -> Result<Look, Failure> {
    let mut look = Look {
        at,
        ..Look::default()
    };
    for (name, (index, needs)) in vms {
        match look_at(manager, *index, *needs) {
            Ok(vm) => {
                look.vms.insert(name.clone(), vm);
            }
            Err(failure) if failure.outcome == Outcome::Environment => return Err(failure),
            Err(_) => {}
        }
    }
    Ok(look)
}

fn look_at<T: Read + Write + AsFd>(
    manager: &mut Manager<T>,
    index: u16,
    needs: Needs,
) -> Result<VmLook, Failure> {
    let vm = manager.vm(index)?;
    let runs = vm.is(Phase::Running);
    let mut vcpus = Vec::new();
    for number in 0..vm.vcpus {
        let state = manager.vcpu(&vm, number)?;
        let is_pinned = state.is(CpuPolicy::Pinned);
        let asks_time = runs && needs.time && !is_pinned;
        // Of one that has its pCPU to itself its cycles tell how long it ran.
        let asks_exits = runs && (needs.exits || needs.time && is_pinned);
        vcpus.push(VcpuLook {
            state,
            time: if asks_time {
                manager.time(&vm, number)?
            } else {
                Err(NOT_ASKED)
            },
            exits: if asks_exits {
                manager.exits(&vm, number)?
            } else {
                Err(NOT_ASKED)
            },
        });
    }
    Ok(VmLook {
        phase: vm.phase,
        lives: vm.lives,
        vcpus,
    })
}

/// Whether a measure is there for a vCPU of this policy.
pub const fn is_measured(measure: Measure, is_pinned: bool) -> bool {
    !is_pinned || matches!(measure, Measure::Cpu | Measure::Exits | Measure::El2)
}

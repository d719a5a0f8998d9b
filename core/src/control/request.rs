//! A request against the plan: each field is checked before anything is done.

use bulkhead_abi::control::{DATA, INPUT_DATA, Kind, OUTPUT_DATA, Request, Status, VERSION, crash};

use super::Order;
use crate::plan::{Plan, rows_of};
use crate::sched::Change;

/// A VM, and where one of its vCPUs stands in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Of {
    /// Index of the VM.
    pub vm: usize,
    /// Number of the vCPU.
    pub number: usize,
    /// Its row; 0 where the request is about no vCPU.
    pub id: usize,
}

/// What a question to a vCPU, or to its pCPU, is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// Its CPU time.
    Time,
    /// Its waits, from this class on.
    Waits(usize),
    /// Its exits, from this class on.
    Exits(usize),
    /// Its registers, from this word on.
    Registers(usize),
}

/// A request that the manager may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Who is there.
    Hello,
    /// State of a VM.
    Vm(usize),
    /// State of a vCPU.
    Vcpu(Of),
    /// An order about a VM.
    Order(Order, usize),
    /// To ask a VM to stop.
    ShutDown(usize),
    /// A change of a VM's limits.
    Change(Change, usize),
    /// A question.
    Ask(About, Of),
    /// The rest of what the last question brought.
    GoOn(About, Of),
    /// What the devices of a VM have had of the service thread.
    Service(usize),
    /// The last crash of a VM, from this word on.
    Report(usize, usize),
    /// RAM of a VM at this IPA or behind it, so many bytes.
    Memory(usize, u64, u16),
    /// What a VM has printed from this byte on, so many bytes.
    Output(usize, u64, u16),
    /// To type so many bytes on the console of a VM.
    Input(usize, u32, [u64; 3]),
}

/// Why not: the status, and its values.
pub type Error = (Status, [u64; 1]);

const fn no(status: Status) -> Error {
    (status, [0])
}

/// What a request of VM `own`, of so many bytes, asks for.
///
/// # Errors
/// The first reason not to do it.
pub fn check(plan: &Plan<'_>, own: usize, request: &Request, bytes: u32) -> Result<Command, Error> {
    if bytes != size_of::<Request>() as u32 {
        return Err((Status::Length, [bytes.into()]));
    }
    if request.version != VERSION {
        return Err((Status::Version, [VERSION.into()]));
    }
    let kind = Kind::of(request.kind).ok_or(no(Status::Kind))?;
    let values = &request.values;
    let mut unused = values.iter().skip(kind.values());
    let vm_unused = request.vm != 0 && !kind.is_about_vm();
    let vcpu_unused = request.vcpu != 0 && !kind.is_about_vcpu();
    if request.number == 0
        || request.flags & !kind.flags() != 0
        || vm_unused
        || vcpu_unused
        || unused.any(|value| *value != 0)
    {
        return Err(no(Status::Reserved));
    }
    let vm = usize::from(request.vm);
    if kind.is_about_vm() {
        if vm >= plan.vms.len() {
            return Err(no(Status::Vm));
        }
        let rights = plan.right(own, vm);
        if rights & kind.needs() == 0 {
            return Err((Status::Rights, [rights.into()]));
        }
    }
    let number = usize::from(request.vcpu);
    let mut id = 0;
    if kind.is_about_vcpu() {
        if number >= rows_of(plan.vcpus, vm).len() {
            return Err(no(Status::Vcpu));
        }
        let first = { plan.vcpus }.partition_point(|row| usize::from(row.vm) < vm);
        id = first.wrapping_add(number);
    }
    let of = Of { vm, number, id };
    if kind == Kind::Shutdown && plan.stop_of(vm).is_none() {
        return Err(no(Status::Unasked));
    }
    command(kind, of, values)
}

/// The command of a request whose VM and vCPU are there.
fn command(kind: Kind, of: Of, values: &[u64; 4]) -> Result<Command, Error> {
    let [first, second, third, fourth] = *values;
    let vm = of.vm;
    let class = || usize::try_from(first).map_err(|_| no(Status::Value));
    Ok(match kind {
        Kind::Hello => Command::Hello,
        Kind::Vm => Command::Vm(vm),
        Kind::Vcpu => Command::Vcpu(of),
        Kind::Start => Command::Order(Order::Start, vm),
        Kind::Stop => Command::Order(Order::Stop, vm),
        Kind::Restart => Command::Order(Order::Restart, vm),
        Kind::Pause => Command::Order(Order::Pause, vm),
        Kind::Resume => Command::Order(Order::Resume, vm),
        Kind::Shutdown => Command::ShutDown(vm),
        Kind::Time => Command::Ask(About::Time, of),
        Kind::Waits => {
            let class = class()?;
            if !class.is_multiple_of(2) {
                return Err(no(Status::Value));
            }
            Command::Ask(About::Waits(class), of)
        }
        Kind::Exits | Kind::Registers => {
            let first = class()?;
            let about = if kind == Kind::Exits {
                About::Exits(first)
            } else {
                About::Registers(first)
            };
            match second {
                0 => Command::Ask(about, of),
                1 => Command::GoOn(about, of),
                _ => return Err(no(Status::Value)),
            }
        }
        Kind::Memory if second > DATA as u64 => return Err(no(Status::Value)),
        Kind::Memory => Command::Memory(vm, first, second as u16),
        Kind::Output if second > OUTPUT_DATA as u64 => return Err(no(Status::Value)),
        Kind::Output => Command::Output(vm, first, second as u16),
        Kind::Input if first == 0 || first > INPUT_DATA as u64 => return Err(no(Status::Value)),
        Kind::Input => Command::Input(vm, first as u32, [second, third, fourth]),
        Kind::Service => Command::Service(vm),
        Kind::Report if first >= crash::WORDS as u64 => return Err(no(Status::Value)),
        Kind::Report => Command::Report(first as usize, vm),
        Kind::Weight => {
            let weight = u16::try_from(first).map_err(|_| no(Status::Value))?;
            Command::Change(Change::Weight(weight), vm)
        }
        Kind::Cap => Command::Change(
            Change::Cap {
                quota: first,
                period: second,
            },
            vm,
        ),
        Kind::Budget => Command::Change(
            Change::Server {
                budget: first,
                period: second,
            },
            vm,
        ),
        Kind::Pool => {
            let pool = u32::try_from(first).map_err(|_| no(Status::Value))?;
            Command::Change(Change::Pool(pool), vm)
        }
    })
}

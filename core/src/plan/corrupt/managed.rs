//! Alterations of plans in which VMs manage others. What [`MANAGED_CASES`] count on is:
//!
//! * The first virtio device is the console of the first VM, with the control port.
//! * The first VM has rights over itself and over the last one, which may be stopped, and nobody else has any.

use super::Case;
use super::Change::{Add, Flip, Like, Set};
use super::Row::Last;
use super::{MINUS, R, cases};
use crate::plan::Invariant;

cases! {
    /// Cases for plans with rights, for an EL2 of the profile `managed`. With those for other plans they alter each field and break each
    /// invariant that altering a field can break.
    MANAGED_CASES,
    TableLayout: ["Table[16].offset" R, Add(8)];
    TableLayout: ["Table[16].count" R, Set(u64::MAX)];
    PlanSize: ["Table[16].count" R, Add(MINUS)];
    Profile: ["Image.profile" R, Set(2)];
    VirtioConsole: ["VirtioDevice.features" R, Flip(1 << 1)]["VirtioDevice.flags" R, Set(0)];
    VirtioConsole: ["VirtioDevice.config" R, Set(1)];
    VirtioConsole: ["VirtioDevice.config_bytes" R, Set(12)];
    VirtioFlags: ["VirtioDevice.flags" R, Set(4)];
    TableOrder: ["Right.manager" R, Set(64)];
    ManagerPort: ["Right.manager" Last, Set(1)];
    TableOrder: ["Right.vm" R, Set(64)];
    TableOrder: ["Right.vm" Last, Like("Right.vm", R)];
    Rights: ["Right.rights" R, Set(2)];
    Rights: ["Right.rights" R, Flip(1 << 31)];
    Rights: ["Vm.flags" Last, Flip(1 << 5)];
}

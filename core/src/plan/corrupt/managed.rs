//! Alterations of plans in which VMs manage others. What [`MANAGED_CASES`] count on is:
//!
//! * The first virtio device is the console of the first VM, with the control port.
//! * The first VM has rights over itself and over the last one, which may be stopped, and nobody else has any.
//! * The first VM is asked to stop by a word, the last one by a key.

use bulkhead_abi::plan::RegionKind;

use super::Case;
use super::Change::{Add, Flip, Like, Set};
use super::Row::{First, Last};
use super::{MINUS, R, cases};
use crate::plan::Invariant;

cases! {
    /// Cases for plans with rights, for an EL2 of the profile `managed`. With those for other plans they alter each field and break each
    /// invariant that altering a field can break.
    MANAGED_CASES,
    TableLayout: ["Table[16].offset" R, Add(8)];
    TableLayout: ["Table[16].count" R, Set(u64::MAX)];
    TableLayout: ["Table[16].count" R, Add(MINUS)];
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
    TableLayout: ["Table[17].offset" R, Add(8)];
    TableLayout: ["Table[17].count" R, Set(u64::MAX)];
    PlanSize: ["Table[17].count" R, Add(MINUS)];
    TableOrder: ["Stop.vm" Last, Set(64)];
    TableOrder: ["Stop.vm" Last, Like("Stop.vm", R)];
    Stop: ["Stop.vintid" R, Set(40)];
    VintidShared: ["Stop.vintid" Last, Like("Device.vintid", Last)];
    Stop: ["Stop.timeout" R, Set(9)];
    Stop: ["Stop.timeout" Last, Set(3_600_001)];
    Stop: ["Stop.word" R, Add(4096)];
    Stop: ["Stop.word" Last, Like("Stop.word", R)];
    RegionAccess: ["Region.access" First(RegionKind::StopWord), Flip(2)];
    Stop: ["Region.pa" First(RegionKind::StopWord), Add(4096)];
}

//! Alterations of plans with virtio devices. Beside a row in each table, what [`IO_CASES`] count on is:
//!
//! * The first vCPU is pinned. The first service thread is on a pCPU without vCPUs.
//! * The first VM has two virtio devices, by IPA a disk with one queue and a network port with two, both of unit 0 and with
//!   EVENT_IDX, and an emulated device.
//! * There is one backend, in the last VM, for which something is loaded last.

use bulkhead_abi::plan::RegionKind;

use super::Case;
use super::Change::{Add, Flip, Like, Set};
use super::Row::{self, First, Last, Number};
use super::{MINUS, R, cases};
use crate::plan::Invariant;

/// The first page of registers.
const REG: Row = First(RegionKind::VirtioRegisters);
/// The network port; also its first queue.
const NET: Row = Number(1);
/// Its second queue.
const SECOND: Row = Number(2);

/// Minus the bytes of a row about a virtqueue.
const QUEUE: u64 = MINUS << 5;

cases! {
    /// Cases for plans with virtio devices, for an EL2 of the profile `io`. With those for other plans they alter each field
    /// and break each invariant that altering a field can break.
    IO_CASES,
    TableLayout: ["Table[12].offset" R, Add(8)];
    TableLayout: ["Table[12].count" R, Add(1)];
    TableLayout: ["Table[13].offset" R, Add(8)];
    TableLayout: ["Table[13].count" R, Add(1)];
    TableLayout: ["Table[14].offset" R, Add(8)];
    TableLayout: ["Table[14].count" R, Add(1)];
    TableLayout: ["Table[15].offset" R, Add(8)];
    TableLayout: ["Table[15].count" R, Set(u64::MAX)];
    PlanSize: ["Table[15].count" R, Add(MINUS)]["Table[16].offset" R, Add(QUEUE)]["Table[17].offset" R, Add(QUEUE)];
    Profile: ["Image.profile" R, Set(1)];
    RegionKind: ["Region.kind" REG, Set(7)];
    RegionAccess: ["Region.access" REG, Set(3)];
    RegionShared: ["Region.shared" REG, Set(0)];
    VirtioRegisters: ["Region.pa" REG, Set(4096)];
    VirtioRegisters: ["Region.size" REG, Set(8192)];
    ServicePlacement: ["ServiceThread.pcpu" R, Like("Vcpu.pcpu", R)];
    ServicePlacement: ["ServiceThread.pcpu" R, Set(8)];
    VcpuPolicy: ["ServiceThread.policy" R, Set(0)];
    VcpuPolicy: ["ServiceThread.policy" R, Set(3)];
    VcpuWeight: ["ServiceThread.weight" R, Set(1)]["ServiceThread.policy" R, Set(1)];
    VcpuWeight: ["ServiceThread.weight" R, Set(0)]["ServiceThread.policy" R, Set(2)];
    VcpuWeight: ["ServiceThread.weight" R, Set(1001)]["ServiceThread.policy" R, Set(2)];
    ReservedZero: ["ServiceThread.reserved" R, Set(1)];
    VcpuTime: ["ServiceThread.budget" R, Set(0)];
    VcpuTime: ["ServiceThread.budget" R, Like("ServiceThread.period", R)]["ServiceThread.budget" R, Add(1)];
    PcpuSchedulable: ["ServiceThread.budget" R, Like("ServiceThread.period", R)]["ServiceThread.policy" R, Set(1)]["ServiceThread.weight" R, Set(0)];
    VcpuTime: ["ServiceThread.period" R, Set(99_999)]["ServiceThread.budget" R, Set(1)];
    VcpuTime: ["ServiceThread.period" R, Set(10_000_000_001)];
    PagePoolPages: ["ServiceThread.pages" R, Add(1)];
    ServicePages: ["ServiceThread.pages" R, Add(1)]["Image.page_pool_pages" R, Add(1)]["Image.size" R, Add(4096)];
    ReservedZero: ["ServiceThread.reserved2" R, Set(1)];
    BoardEvent: ["Board.event" R, Set(8)];
    BoardEvent: ["Vcpu.events" R, Set(1)];
    VcpuEvents: ["Vcpu.events_period" R, Set(1)];
    VcpuEvents: ["Vcpu.events" R, Set(1)]["Vcpu.events_period" R, Set(99_999)]["Board.event" R, Set(8)]["Pcpu.pmu_intid" R, Set(23)];
    VcpuEvents: ["Vcpu.events" R, Set(0x8000_0001)]["Vcpu.events_period" R, Set(1_000_000)]["Board.event" R, Set(8)];
    BoardEvent: ["Board.event" R, Set(0x1_0000)]["Vcpu.events" R, Set(1)]["Vcpu.events_period" R, Set(1_000_000)];
    PmuInterrupt: ["Vcpu.events" R, Set(1)]["Vcpu.events_period" R, Set(1_000_000)]["Board.event" R, Set(8)];
    PmuInterrupt: ["Pcpu.pmu_intid" R, Set(23)];
    PmuInterrupt: ["Vm.flags" R, Set(256)];
    PmuInterrupt: ["Pcpu.pmu_intid" R, Like("Board.vtimer_intid", R)]["Vcpu.events" R, Set(1)]["Vcpu.events_period" R, Set(1_000_000)]["Board.event" R, Set(8)];
    TableOrder: ["Backend.vm" R, Set(64)];
    IrqVintid: ["Backend.vintid" R, Set(31)];
    Backend: ["Backend.vm" R, Set(0xffff)];
    ReservedZero: ["Backend.reserved" R, Set(1)];
    BackendNews: ["Backend.page" R, Add(8)];
    BackendNews: ["Backend.page" R, Set(0)];
    BackendNews: ["Backend.page" R, Like("Payload.ipa", Last)];
    DoorbellPage: ["Backend.bell" R, Add(8)];
    DoorbellPage: ["Backend.bell" R, Set(1 << 39)];
    IpaOverlap: ["Backend.bell" R, Like("Vm.gicd", Last)];
    IpaOverlap: ["Backend.bell" R, Like("Backend.page", R)];
    TableOrder: ["VirtioDevice.vm" R, Set(64)];
    VirtioVms: ["VirtioDevice.backend" R, Set(1)];
    VirtioConsole: ["Backend.vm" R, Set(0xffff)]["Backend.vintid" R, Set(0)]["Backend.page" R, Set(0)]["Backend.bell" R, Set(0)];
    VirtioType: ["VirtioDevice.id" R, Set(0)];
    VirtioType: ["VirtioDevice.id" NET, Set(16)];
    IrqVintid: ["VirtioDevice.vintid" R, Set(31)];
    VintidShared: ["VirtioDevice.vintid" R, Like("Device.vintid", R)];
    VintidShared: ["VirtioDevice.vintid" NET, Like("VirtioDevice.vintid", R)];
    VirtioNumber: ["VirtioDevice.unit" NET, Like("VirtioDevice.unit", R)]["VirtioDevice.id" NET, Like("VirtioDevice.id", R)];
    VirtioFlags: ["VirtioDevice.flags" R, Set(2)];
    VirtioFeatures: ["VirtioDevice.poll" R, Set(1_000_000)];
    VirtioPoll: ["VirtioDevice.poll" R, Set(1_000_000)]["VirtioDevice.features" R, Flip(1 << 29)];
    VirtioPoll: ["VirtioDevice.poll" R, Set(49_999)]["VirtioDevice.features" R, Flip(1 << 29)]["VirtioDevice.vintid" R, Set(0)];
    VirtioNumber: ["VirtioDevice.index" R, Set(64)];
    VirtioNumber: ["VirtioDevice.index" NET, Like("VirtioDevice.index", R)];
    VirtioService: ["VirtioDevice.service" R, Set(8)];
    ReservedZero: ["VirtioDevice.reserved" R, Set(1)];
    ReservedZero: ["VirtioDevice.reserved2" R, Set(1)];
    VirtioConfig: ["VirtioDevice.config_bytes" R, Set(65)];
    VirtioConfig: ["VirtioDevice.config" R, Set(1)]["VirtioDevice.config_bytes" R, Set(0)];
    TableOrder: ["VirtioDevice.ipa" NET, Like("VirtioDevice.ipa", R)];
    VirtioRegisters: ["VirtioDevice.ipa" NET, Add(4096)];
    VirtioWindow: ["VirtioDevice.window" R, Add(8)];
    VirtioWindow: ["VirtioDevice.window" R, Set(0)];
    VirtioWindow: ["VirtioDevice.window" NET, Like("VirtioDevice.window", R)]["VirtioDevice.window_size" NET, Set(4096)];
    VirtioWindow: ["VirtioDevice.window" R, Like("Backend.page", R)]["VirtioDevice.window_size" R, Set(4096)];
    VirtioWindow: ["VirtioDevice.window_size" R, Set(0)];
    VirtioWindow: ["VirtioDevice.window_size" R, Add(8)];
    VirtioWindow: ["VirtioDevice.window_size" R, Set(1 << 38)];
    VirtioFeatures: ["VirtioDevice.features" R, Flip(1 << 32)];
    VirtioFeatures: ["VirtioDevice.features" R, Flip(1 << 33)];
    VirtioFeatures: ["VirtioDevice.features" R, Flip(1 << 11)];
    TableOrder: ["Virtqueue.device" R, Set(64)];
    TableOrder: ["Virtqueue.device" SECOND, Set(0)];
    VirtioQueues: ["Virtqueue.device" R, Set(1)];
    VirtqueueSize: ["Virtqueue.size" R, Set(0)];
    VirtqueueSize: ["Virtqueue.size" R, Set(48)];
    VirtqueueSize: ["Virtqueue.size" R, Set(512)];
    VirtqueueSize: ["Virtqueue.slots" R, Set(1)];
    VirtqueueSize: ["Virtqueue.slots" R, Set(48)];
    VirtqueueSize: ["Virtqueue.slots" R, Set(512)];
    VirtioFlags: ["Virtqueue.flags" R, Set(4)];
    VirtqueueSize: ["Virtqueue.slot_bytes" R, Add(8)];
    VirtqueueSize: ["Virtqueue.slot_bytes" R, Set(0)];
    VirtqueueRequest: ["Virtqueue.readable" R, Set(0xffff_ffff)];
    VirtqueueRequest: ["Virtqueue.writable" R, Set(0xffff_ffff)];
    VirtqueueRequest: ["Virtqueue.writable" R, Set(0)]["Virtqueue.readable" R, Set(0)];
    VirtqueueWindow: ["Virtqueue.ring" R, Add(8)];
    VirtqueueWindow: ["Virtqueue.ring" R, Set(0)];
    VirtqueueWindow: ["Virtqueue.ring" R, Set(0xffff_fff0)];
    VirtqueueWindow: ["Virtqueue.ring" SECOND, Like("Virtqueue.ring", NET)];
    VirtqueueWindow: ["Virtqueue.ring" SECOND, Like("Virtqueue.slots_at", NET)];
    VirtqueueWindow: ["Virtqueue.slots_at" R, Add(8)];
    VirtqueueWindow: ["Virtqueue.slots_at" R, Set(0)];
    VirtqueueWindow: ["Virtqueue.slots_at" R, Like("Virtqueue.ring", R)];
    VirtqueueWindow: ["Virtqueue.slots_at" SECOND, Like("Virtqueue.slots_at", NET)];
    VirtqueueWindow: ["Virtqueue.slots_at" SECOND, Like("Virtqueue.ring", NET)];
    ReservedZero: ["Virtqueue.reserved" R, Set(1)];
}

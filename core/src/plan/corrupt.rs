//! Alterations of a valid plan that each break one named invariant, for the tests of the check and
//! of EL2's refusal. Those of this file are made for plans of two VMs that have a row in each table but those about
//! virtio devices ([`IO_CASES`]):
//!
//! * The first has a second vCPU, a device of the board with writes that quiet it, two interrupts,
//!   one emulated device of each kind in the order of their kinds, two calls, two doorbells into
//!   the second, and limits of restarts and of resets.
//! * The second has one vCPU, another device of the board with its interrupt and writes that quiet
//!   it, the PL011 as its only emulated device, and a doorbell into the first, which is notified
//!   when the second crashes.
//! * Both have RAM, the same shared memory, and the same program as one payload; then a device
//!   tree.
//! * The last pCPU has no vCPU and drains the console.

use bulkhead_abi::plan::{Doorbell, Header, PLAN_CONFIG, RegionKind, Table, TableId};
use core::mem::offset_of;

use super::fields::{Field, fields};
use super::view::seal;
use super::violation::Invariant;

mod io;
mod managed;

pub use io::IO_CASES;
pub use managed::MANAGED_CASES;

/// A row of a table.
#[derive(Clone, Copy, Debug)]
pub enum Row {
    /// The row with this index; 0 for the header.
    Number(usize),
    /// The last row.
    Last,
    /// The first region of a kind.
    First(RegionKind),
    /// The last region of a kind.
    LastOf(RegionKind),
}

/// A change of a field.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Set it to this value.
    Set(u64),
    /// Add this value.
    Add(u64),
    /// Invert these bits.
    Flip(u64),
    /// Copy the value of another field.
    Like(&'static str, Row),
}

/// An alteration and the invariant that it breaks.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Changed fields; the first is the one that the case tests.
    pub changes: &'static [(&'static str, Row, Change)],
    /// The invariant that no longer holds.
    pub breaks: Invariant,
}

use Change::{Add, Flip, Like, Set};
use Row::{First, Last, LastOf, Number};

/// The row that most cases change.
const R: Row = Number(0);
/// The first region of RAM.
const RAM: Row = First(RegionKind::Ram);
/// The first passed-through device.
const DEV: Row = First(RegionKind::Device);
/// The first region of shared memory.
const SHM: Row = First(RegionKind::Shared);
/// The CPU interface of a GICv2.
const GICV: Row = First(RegionKind::Gicv);
/// The addend that decrements a number.
const MINUS: u64 = u64::MAX;
/// The addend that takes the bytes of a doorbell away.
const BELL: u64 = (size_of::<Doorbell>() as u64).wrapping_neg();

/// Abbreviates the table of cases.
macro_rules! cases {
    ($(#[$doc:meta])* $name:ident, $($breaks:ident: $([$field:literal $row:expr, $change:expr])+;)*) => {
        $(#[$doc])*
        pub const $name: &[Case] = &[$(Case {
            changes: &[$(($field, $row, $change)),+],
            breaks: Invariant::$breaks,
        },)*];
    };
}
use cases;

cases! {
    /// Cases for plans of boards with a GICv3. Together they alter each field and break each
    /// invariant that altering a field can break, except those of [`GICV2_CASES`].
    CASES,
    PlanMagic: ["Header.magic" R, Flip(1)];
    PlanVersion: ["Header.version" R, Add(1)];
    HeaderSize: ["Header.header_size" R, Add(8)];
    PlanSize: ["Header.size" R, Add(4)];
    PlanSize: ["Header.size" R, Set(1 << 40)];
    PlanChecksum: ["Header.checksum" R, Flip(1)];
    BoardFrame: ["Board.gicd" R, Add(4096)];
    BoardFrame: ["Board.gicd_size" R, Set(0)];
    BoardFrame: ["Board.gicr" R, Add(4096)];
    BoardFrame: ["Board.gicr_size" R, Add(0x1000)];
    BoardFrame: ["Board.gicr_size" R, Set(0x1_0000)];
    BoardFrame: ["Board.uart" R, Add(1)];
    BoardFrame: ["Board.uart_size" R, Set(u64::MAX)];
    BoardFrameOverlap: ["Board.uart" R, Like("Board.gicd", R)];
    BoardFrameOverlap: ["Board.uart" R, Like("Memory.base", R)];
    BoardFrame: ["Board.gicc" R, Set(0x801_0000)];
    BoardFrame: ["Board.gicc_size" R, Set(0x2000)];
    BoardFrame: ["Board.gich" R, Set(0x803_0000)];
    BoardFrame: ["Board.gich_size" R, Set(0x1000)];
    BoardFrame: ["Board.gicv" R, Set(0x804_0000)];
    BoardFrame: ["Board.gicv_size" R, Set(0x2000)];
    BoardFrame: ["Board.rtc" R, Add(1)];
    BoardFrame: ["Board.rtc" R, Set(1 << 48)];
    BoardFrameOverlap: ["Board.rtc" R, Like("Board.uart", R)];
    BoardFrameOverlap: ["Board.rtc" R, Like("Memory.base", R)];
    BoardIntid: ["Board.uart_intid" R, Set(31)];
    BoardIntid: ["Board.vtimer_intid" R, Set(32)];
    BoardIntid: ["Board.ptimer_intid" R, Set(15)];
    BoardIntid: ["Board.ptimer_intid" R, Like("Board.vtimer_intid", R)];
    BoardIntid: ["Board.hyp_timer_intid" R, Like("Board.ptimer_intid", R)];
    BoardIntid: ["Board.maintenance_intid" R, Like("Board.vtimer_intid", R)];
    BoardFrame: ["Board.gic_version" R, Set(2)];
    GicVersion: ["Board.gic_version" R, Set(4)];
    UartKind: ["Board.uart_kind" R, Set(7)];
    ReservedZero: ["Board.event" R, Set(1)];
    El2Colours: ["Image.colours" R, Set(0)];
    PcpuCache: ["Pcpu.cache" R, Set(1)];
    PcpuCache: ["Pcpu.cache_level" R, Set(2)];
    PcpuCache: ["Pcpu.colours" R, Set(1)];
    PcpuCache: ["Pcpu.colours" R, Set(24)]["Pcpu.colours" Number(1), Set(24)]["Pcpu.colours" Number(2), Set(24)]["Pcpu.colours" Number(3), Set(24)];
    PcpuCache: ["Pcpu.colours" R, Set(128)];
    PcpuCache: ["Pcpu.colours" R, Set(16)];
    BoardGicd: ["Board.gicd" R, Add(0x1_0000)];
    BoardGicr: ["Board.gicr_size" R, Add(MINUS << 17)];
    BoardUart: ["Board.uart" R, Add(0x8_0000)];
    BoardUart: ["Board.uart_intid" R, Set(200)];
    BoardRtc: ["Board.rtc" R, Add(0x1000)];
    BoardTimer: ["Board.vtimer_intid" R, Set(20)];
    BoardTimer: ["Board.ptimer_intid" R, Set(20)];
    BoardTimer: ["Board.hyp_timer_intid" R, Set(20)];
    BoardTimer: ["Board.maintenance_intid" R, Set(20)];
    ImageBase: ["Image.base" R, Add(4096)];
    ImageMemory: ["Image.base" R, Set(1 << 36)];
    ImageOverlap: ["Image.base" R, Like("Region.pa", RAM)];
    ImageSize: ["Image.size" R, Add(4096)];
    PlanOffset: ["Image.plan_offset" R, Add(8)];
    PlanOffset: ["Image.plan_offset" R, Set(2 << 20)];
    ImageSize: ["Image.page_pool_offset" R, Add(4096)];
    PagePoolOffset: ["Image.page_pool_offset" R, Add(4096)]["Image.size" R, Add(4096)];
    ImageSize: ["Image.page_pool_pages" R, Add(1)];
    PagePoolPages: ["Image.page_pool_pages" R, Add(1)]["Image.size" R, Add(4096)];
    Profile: ["Image.profile" R, Set(0)]["Vcpu.policy" R, Set(1)]["Vcpu.budget" R, Set(1)]["Vcpu.period" R, Set(100_000)];
    Profile: ["Image.profile" R, Set(4)];
    TableLayout: ["Table[0].offset" R, Add(8)];
    TableLayout: ["Table[0].count" R, Add(1)];
    TableLayout: ["Table[1].offset" R, Add(8)];
    TableLayout: ["Table[1].count" R, Add(1)];
    TableLayout: ["Table[2].offset" R, Add(8)];
    TableLayout: ["Table[2].count" R, Add(1)];
    TableLayout: ["Table[3].offset" R, Add(8)];
    TableLayout: ["Table[3].count" R, Add(1)];
    TableLayout: ["Table[4].offset" R, Add(8)];
    TableLayout: ["Table[4].count" R, Add(1)];
    TableLayout: ["Table[5].offset" R, Add(8)];
    TableLayout: ["Table[5].count" R, Add(1)];
    TableLayout: ["Table[6].offset" R, Add(8)];
    TableLayout: ["Table[6].count" R, Add(1)];
    TableLayout: ["Table[7].offset" R, Add(8)];
    TableLayout: ["Table[7].count" R, Add(1)];
    TableLayout: ["Table[8].offset" R, Add(8)];
    TableLayout: ["Table[8].count" R, Add(1)];
    TableLayout: ["Table[9].offset" R, Add(8)];
    TableLayout: ["Table[9].count" R, Add(1)];
    TableLayout: ["Table[10].offset" R, Add(8)];
    TableLayout: ["Table[10].count" R, Set(u64::MAX)];
    TableLayout: ["Table[11].offset" R, Add(8)];
    TableLayout: ["Table[11].count" R, Set(u64::MAX)];
    PlanSize: ["Table[11].count" R, Add(MINUS)]["Table[12].offset" R, Add(BELL)]["Table[13].offset" R, Add(BELL)]["Table[14].offset" R, Add(BELL)]["Table[15].offset" R, Add(BELL)]["Table[16].offset" R, Add(BELL)]["Table[17].offset" R, Add(BELL)];
    MemoryRange: ["Memory.base" R, Add(1)];
    MemoryRange: ["Memory.size" R, Set(0)];
    RegionMemory: ["Memory.size" R, Set(4096)];
    BoardMemory: ["Memory.size" R, Add(1 << 30)];
    PcpuMpidr: ["Pcpu.mpidr" R, Flip(1 << 31)];
    PcpuMpidr: ["Pcpu.mpidr" Last, Like("Pcpu.mpidr", R)];
    BoardCpu: ["Pcpu.mpidr" R, Set(0xf00)];
    PcpuService: ["Pcpu.service" R, Flip(1)];
    PcpuService: ["Pcpu.service" R, Set(2)];
    PcpuCallSpi: ["Pcpu.call_spi" R, Set(280)];
    ReservedZero: ["Pcpu.pmu_intid" R, Set(1)];
    PcpuRelease: ["Pcpu.release" R, Set(0xd8)];
    PcpuRelease: ["Pcpu.release" R, Like("Memory.base", R)]["Pcpu.release" R, Add(4)];
    PcpuRelease: ["Pcpu.release" R, Like("Region.pa", RAM)];
    VmName: ["Vm.name" R, Flip(0x80)];
    VmName: ["Vm.name" R, Set(0)];
    VmNameUnique: ["Vm.name" Last, Like("Vm.name", R)];
    VmClass: ["Vm.class" R, Set(4)];
    VmCrash: ["Vm.crash" R, Set(3)];
    VmRestart: ["Vm.crash" R, Set(0)];
    VmRestart: ["Vm.restarts" R, Set(0)];
    VmRestart: ["Vm.restarts" Last, Set(1)];
    VmRestart: ["Vm.restart_seconds" R, Set(0)];
    VmRestart: ["Vm.restart_seconds" Last, Set(1)];
    VmReset: ["Vm.resets" R, Set(0)];
    VmReset: ["Vm.reset_seconds" R, Set(0)];
    VmNotify: ["Vm.crash" Last, Set(0)];
    VmNotify: ["Vm.notify" R, Set(1)];
    VmNotify: ["Vm.notify" Last, Set(1)];
    VmNotify: ["Vm.notify" Last, Set(2)];
    VmNotify: ["Vm.notify" Last, Set(0xffff)];
    VmEvent: ["Vm.event_intid" R, Set(0)];
    VmEvent: ["Vm.event_intid" Last, Set(36)];
    IrqVintid: ["Vm.event_intid" R, Set(31)];
    IrqVintid: ["Vm.event_intid" R, Set(1019)];
    VintidShared: ["Vm.event_intid" R, Like("Device.vintid", R)];
    VintidShared: ["Vm.event_intid" R, Like("Irq.vintid", R)];
    VmFlags: ["Vm.flags" R, Flip(512)];
    VmPmu: ["Vm.flags" R, Set(256)]["Vm.interrupts" R, Set(2)];
    VmDebug: ["Vm.flags" R, Set(128)]["Vm.reclaim" R, Set(3)];
    VmOwnTimer: ["Vm.flags" R, Set(2)]["Vcpu.policy" R, Set(1)]["Vcpu.budget" R, Set(1)]["Vcpu.period" R, Set(100_000)];
    VmInterrupts: ["Vm.interrupts" R, Set(7)];
    VmInterrupts: ["Vm.interrupts" R, Set(4)];
    VmInterrupts: ["Vm.interrupts" R, Set(1)]["Vcpu.policy" R, Set(1)]["Vcpu.budget" R, Set(1)]["Vcpu.period" R, Set(100_000)];
    VmReclaim: ["Vm.reclaim" R, Set(1)];
    VmReclaim: ["Vm.reclaim" R, Set(2)]["Vm.interrupts" R, Set(1)];
    VmReclaim: ["Vm.reclaim" R, Set(1)]["Vm.interrupts" R, Set(2)];
    VmReclaim: ["Vm.reclaim" R, Set(3)];
    VmReclaim: ["Vm.reclaim" R, Set(4)]["Vm.interrupts" R, Set(1)];
    VmReclaim: ["Vm.reclaim" R, Set(3)]["Vm.interrupts" R, Set(3)];
    VmInterruptsAlone: ["Vm.interrupts" R, Set(3)]["Vm.reclaim" R, Set(2)]["Vm.interrupts" Last, Set(1)];
    VmInterruptsBuilt: ["Vm.interrupts" R, Set(1)];
    VmInterruptsBuilt: ["Vm.interrupts" R, Set(2)];
    VmInterruptsBuilt: ["Vm.interrupts" R, Set(3)]["Vm.reclaim" R, Set(2)];
    VmStolenTime: ["Vm.stolen_time" R, Set(0x900_2000)];
    VmVmid: ["Vm.vmid" R, Set(0)];
    VmVmid: ["Vm.vmid" Last, Set(1)];
    VmEntry: ["Vm.entry" R, Add(2)];
    VmEntry: ["Vm.entry" R, Set(0)];
    VmBootArg: ["Vm.boot_arg" R, Add(8)];
    VgicFrame: ["Vm.gicd" R, Add(4096)];
    VgicFrame: ["Vm.gicr" R, Set(1 << 39)];
    VgicFrame: ["Vm.gicc" R, Set(0x801_0000)];
    IpaOverlap: ["Vm.gicd" R, Like("Region.ipa", RAM)];
    IpaOverlap: ["Vm.gicr" R, Like("Vm.gicd", R)];
    VgicSpis: ["Vm.spis" R, Add(1)];
    VgicSpis: ["Vm.spis" R, Set(288)];
    VmStage2Pages: ["Vm.s2_pages" R, Add(1)];
    VmStage2Place: ["Vm.s2_root" R, Add(4096)];
    VmStage2Place: ["Vm.s2_root" R, Set(0)];
    TableOrder: ["Vcpu.vm" R, Set(16)];
    VcpuCount: ["Vcpu.vm" Last, Set(0)];
    VcpuPolicy: ["Vcpu.policy" R, Set(3)];
    VcpuTime: ["Vcpu.policy" R, Set(1)];
    VcpuTime: ["Vcpu.budget" R, Set(1)];
    VcpuTime: ["Vcpu.period" R, Set(100_000)];
    VcpuTime: ["Vcpu.budget" R, Set(0)]["Vcpu.policy" R, Set(1)]["Vcpu.period" R, Set(100_000)];
    VcpuTime: ["Vcpu.budget" R, Set(100_001)]["Vcpu.policy" R, Set(1)]["Vcpu.period" R, Set(100_000)];
    VcpuTime: ["Vcpu.period" R, Set(99_999)]["Vcpu.policy" R, Set(1)]["Vcpu.budget" R, Set(1)];
    VcpuTime: ["Vcpu.period" R, Set(10_000_000_001)]["Vcpu.policy" R, Set(1)]["Vcpu.budget" R, Set(1)];
    VcpuWeight: ["Vcpu.weight" R, Set(1)];
    VcpuWeight: ["Vcpu.weight" R, Set(0)]["Vcpu.policy" R, Set(2)]["Vcpu.budget" R, Set(100_000)]["Vcpu.period" R, Set(100_000)];
    VcpuWeight: ["Vcpu.weight" R, Set(1001)]["Vcpu.policy" R, Set(2)]["Vcpu.budget" R, Set(100_000)]["Vcpu.period" R, Set(100_000)];
    VcpuPlacement: ["Vcpu.pcpu" R, Set(7)];
    VcpuPlacement: ["Vcpu.pcpu" Last, Like("Vcpu.pcpu", R)];
    VcpuPlacement: ["Vcpu.pcpu" Last, Like("Vcpu.pcpu", R)]["Vcpu.policy" R, Set(1)]["Vcpu.budget" R, Set(1)]["Vcpu.period" R, Set(100_000)];
    VcpuPool: ["Vcpu.pool" R, Set(1)];
    VcpuPool: ["Vcpu.pool" R, Set(0)]["Vcpu.policy" R, Set(2)]["Vcpu.weight" R, Set(1)]["Vcpu.budget" R, Set(100_000)]["Vcpu.period" R, Set(100_000)];
    VcpuPool: ["Vcpu.pool" R, Set(0x101)]["Vcpu.policy" R, Set(2)]["Vcpu.weight" R, Set(1)]["Vcpu.budget" R, Set(100_000)]["Vcpu.period" R, Set(100_000)];
    VcpuPool: ["Vcpu.pool" R, Set(7)]["Vcpu.policy" R, Set(2)]["Vcpu.weight" R, Set(1)]["Vcpu.budget" R, Set(100_000)]["Vcpu.period" R, Set(100_000)];
    PcpuSchedulable: ["Vcpu.budget" R, Set(100_000)]["Vcpu.policy" R, Set(1)]["Vcpu.period" R, Set(100_000)];
    ReservedZero: ["Vcpu.events" R, Set(1)];
    ReservedZero: ["Vcpu.events_period" R, Set(1)];
    VcpuMpidr: ["Vcpu.mpidr" R, Add(1)];
    VcpuMpidr: ["Vcpu.mpidr" Number(1), Set(0)];
    VcpuMpidr: ["Vcpu.mpidr" Last, Set(2)];
    TableOrder: ["Region.vm" R, Set(16)];
    TableOrder: ["Region.ipa" R, Set(0x60_0000_0000)];
    IpaOverlap: ["Region.ipa" SHM, Like("Region.ipa", RAM)];
    RegionShared: ["Region.shared" SHM, Set(1)]["Region.shared" LastOf(RegionKind::Shared), Set(1)];
    RegionKind: ["Region.kind" R, Set(7)];
    RegionGicv: ["Region.kind" DEV, Set(3)];
    RegionAccess: ["Region.kind" DEV, Set(4)];
    VmStolenTime: ["Region.kind" R, Set(4)]["Region.access" R, Set(1)];
    RegionAccess: ["Region.access" R, Set(0)];
    RegionAccess: ["Region.access" DEV, Flip(4)];
    RegionAccess: ["Region.access" SHM, Flip(4)];
    RegionAccess: ["Region.access" RAM, Flip(8)];
    RegionAccess: ["Region.access" DEV, Flip(8)];
    RegionShared: ["Region.access" SHM, Flip(8)];
    RegionShared: ["Region.access" LastOf(RegionKind::Shared), Flip(8)];
    RegionShared: ["Region.shared" RAM, Set(0)];
    RegionShared: ["Region.shared" SHM, Set(0xffff)];
    RegionShared: ["Region.pa" SHM, Add(4096)];
    RegionColours: ["Region.colours" RAM, Set(0)];
    RegionColours: ["Region.colours" DEV, Set(0xf)];
    RegionColours: ["Region.colours" RAM, Flip(1)]["Region.pa" RAM, Add(4096)];
    RegionCaches: ["Region.colours" SHM, Flip(1)];
    VmColours: ["Pcpu.colours" R, Set(64)]["Pcpu.colours" Number(1), Set(64)]["Pcpu.colours" Number(2), Set(64)]["Pcpu.colours" Number(3), Set(64)]["Region.colours" RAM, Flip(1)]["Region.size" RAM, Set(0x1000)];
    RegionRange: ["Region.ipa" RAM, Add(1)];
    RegionRange: ["Region.pa" RAM, Add(1)];
    RegionRange: ["Region.pa" RAM, Set(1 << 48)];
    RegionRange: ["Region.size" RAM, Add(1)];
    RegionRange: ["Region.size" RAM, Set(0)];
    RegionMemory: ["Region.pa" RAM, Set(1 << 40)];
    RegionDevice: ["Region.pa" DEV, Like("Board.uart", R)];
    RegionDevice: ["Region.pa" DEV, Like("Memory.base", R)];
    PaOverlap: ["Region.pa" LastOf(RegionKind::Ram), Like("Region.pa", RAM)];
    PaOverlap: ["Region.shared" LastOf(RegionKind::Shared), Add(1)];
    TableOrder: ["Payload.vm" R, Set(16)];
    ReservedZero: ["Payload.reserved" R, Set(1)];
    PayloadOffset: ["Payload.offset" R, Add(8)];
    PayloadOffset: ["Payload.size" Number(2), Add(8)];
    PayloadSize: ["Payload.size" R, Add(1)];
    PayloadSize: ["Payload.size" R, Set(0)];
    PayloadTarget: ["Payload.ipa" R, Add(4)];
    PayloadTarget: ["Payload.ipa" R, Set(0)];
    PayloadOverlap: ["Payload.ipa" Number(1), Like("Payload.ipa", R)];
    TableOrder: ["Seed.vm" R, Set(16)];
    SeedKind: ["Seed.kind" R, Set(2)];
    SeedKind: ["Seed.kind" Number(1), Like("Seed.kind", R)]["Seed.size" Number(1), Like("Seed.size", R)];
    SeedSize: ["Seed.size" R, Add(4)];
    SeedTarget: ["Seed.ipa" R, Add(2)];
    SeedTarget: ["Seed.ipa" R, Set(0)];
    SeedOverlap: ["Seed.ipa" Number(1), Like("Seed.ipa", R)];
    TableOrder: ["Irq.vm" R, Set(16)];
    IrqVintid: ["Irq.vintid" R, Set(31)];
    VintidShared: ["Irq.vintid" R, Like("Device.vintid", R)];
    VintidShared: ["Irq.vintid" Number(1), Like("Irq.vintid", R)];
    IrqPintid: ["Irq.pintid" R, Set(31)];
    PintidShared: ["Irq.pintid" R, Like("Board.uart_intid", R)];
    PintidShared: ["Irq.pintid" Last, Like("Irq.pintid", R)];
    IrqFlags: ["Irq.flags" R, Set(2)];
    IrqFlags: ["Irq.flags" R, Set(4)];
    DoorbellPhysical: ["Irq.flags" R, Set(3)];
    TableOrder: ["Device.vm" R, Set(16)];
    DeviceKind: ["Device.kind" R, Set(3)];
    DeviceKind: ["Device.kind" R, Set(1)];
    VintidShared: ["Device.vintid" Number(1), Like("Device.vintid", R)];
    IrqVintid: ["Device.vintid" R, Set(31)];
    ReservedZero: ["Device.reserved" R, Set(1)];
    IpaOverlap: ["Device.ipa" R, Like("Vm.gicd", R)];
    DeviceFrame: ["Device.ipa" R, Add(8)];
    DeviceFrame: ["Device.size" R, Add(4096)];
    DeviceFrame: ["Device.size" Number(2), Set(4096)];
    IpaOverlap: ["Device.ipa" Number(1), Like("Device.ipa", R)];
    TableOrder: ["Quiet.vm" R, Set(16)];
    QuietTarget: ["Quiet.pa" Last, Like("Quiet.pa", R)];
    QuietWidth: ["Quiet.width" R, Set(3)];
    QuietWidth: ["Quiet.value" R, Set(0x100)]["Quiet.width" R, Set(1)];
    QuietTarget: ["Quiet.pa" R, Add(2)];
    QuietTarget: ["Quiet.pa" R, Like("Memory.base", R)];
    QuietTarget: ["Quiet.pa" R, Like("Board.uart", R)];
    TableOrder: ["Call.vm" R, Set(16)];
    ReservedZero: ["Call.reserved" R, Set(1)];
    CallFunction: ["Call.function" R, Flip(1 << 31)];
    CallFunction: ["Call.function" R, Flip(1 << 16)];
    CallFunction: ["Call.function" R, Set(0x8000_8000)];
    CallFunction: ["Call.function" R, Set(0x8100_0000)];
    CallFunction: ["Call.function" R, Set(0x8400_0003)];
    CallFunction: ["Call.function" R, Set(0x8600_0000)];
    CallFunction: ["Call.function" R, Set(0xb100_0000)];
    CallOrder: ["Call.function" Number(1), Like("Call.function", R)];
    CallOrder: ["Call.function" R, Set(0xff00_ff01)];
    TableOrder: ["Doorbell.vm" R, Set(16)];
    TableOrder: ["Doorbell.vm" R, Set(1)];
    DoorbellVms: ["Doorbell.to" R, Set(0)];
    DoorbellVms: ["Doorbell.to" R, Set(2)];
    IrqVintid: ["Doorbell.vintid" R, Set(31)];
    VintidShared: ["Doorbell.vintid" R, Like("Irq.vintid", Last)];
    VintidShared: ["Doorbell.vintid" Last, Like("Device.vintid", R)];
    VintidShared: ["Doorbell.vintid" Last, Like("Vm.event_intid", R)];
    VintidShared: ["Doorbell.vintid" Number(1), Like("Doorbell.vintid", R)];
    DoorbellPhysical: ["Doorbell.pintid" R, Like("Irq.pintid", Last)];
    DoorbellPhysical: ["Doorbell.pintid" R, Like("Irq.pintid", Last)]["Irq.flags" Last, Set(3)];
    DoorbellPage: ["Doorbell.ipa" R, Add(8)];
    DoorbellPage: ["Doorbell.ipa" R, Set(1 << 39)];
    IpaOverlap: ["Doorbell.ipa" R, Like("Vm.gicd", R)];
    IpaOverlap: ["Doorbell.ipa" R, Like("Device.ipa", Number(2))];
    IpaOverlap: ["Doorbell.ipa" R, Like("Region.ipa", RAM)];
    IpaOverlap: ["Doorbell.ipa" Number(1), Like("Doorbell.ipa", R)];
    DoorbellApart: ["Doorbell.apart" R, Set(9_999)];
    DoorbellApart: ["Doorbell.apart" R, Set(1_000_000_001)];
}

cases! {
    /// Cases for plans of boards with a GICv2, for the rules that differ there.
    GICV2_CASES,
    BoardFrame: ["Board.gicd" R, Add(0x800)];
    BoardFrame: ["Board.gicr" R, Set(0x80a_0000)];
    BoardFrame: ["Board.gicr_size" R, Set(0x10_0000)];
    BoardFrame: ["Board.gicc" R, Add(0x800)];
    BoardFrame: ["Board.gicc_size" R, Set(0x1000)];
    BoardFrame: ["Board.gich" R, Add(0x800)];
    BoardFrame: ["Board.gich_size" R, Set(0)];
    BoardFrame: ["Board.gicv" R, Add(0x800)];
    BoardFrame: ["Board.gicv_size" R, Set(0x1000)];
    BoardFrame: ["Board.gic_version" R, Set(3)];
    BoardFrameOverlap: ["Board.gich" R, Like("Board.gicc", R)];
    BoardFrameOverlap: ["Board.gicc" R, Like("Memory.base", R)];
    BoardGicc: ["Board.gicc" R, Add(0x1_0000)];
    BoardGich: ["Board.gich" R, Add(MINUS << 16)];
    BoardGicv: ["Board.gicv_size" R, Set(0x3000)];
    VgicFrame: ["Vm.gicr" R, Set(0x80a_0000)];
    VgicFrame: ["Vm.gicc" R, Add(0x1000)];
    IpaOverlap: ["Vm.gicc" R, Like("Vm.gicd", R)];
    VmInterrupts: ["Vm.interrupts" R, Set(1)];
    VmReclaim: ["Vm.interrupts" R, Set(4)];
    VmInterruptsBuilt: ["Vm.interrupts" R, Set(4)]["Vm.reclaim" R, Set(2)]["Region.pa" GICV, Like("Board.gicc", R)];
    RegionGicv: ["Region.pa" GICV, Like("Board.gicc", R)];
    RegionGicv: ["Vm.gicc" R, Add(0x1_0000)];
    RegionGicv: ["Region.pa" GICV, Add(0x1000)];
    RegionGicv: ["Region.size" GICV, Set(0x2000)];
    RegionAccess: ["Region.access" GICV, Set(1)];
    RegionShared: ["Region.shared" GICV, Set(0)];
    RegionDevice: ["Region.kind" GICV, Set(1)];
    RegionGicv: ["Region.kind" R, Set(1)]["Region.pa" R, Set(0xf00_0000)];
}

/// Bytes of the longest field.
const LONGEST: usize = PLAN_CONFIG;

impl Case {
    /// Alters `plan`, a whole and valid one, and writes its checksum. Returns `false`, with the
    /// plan partly altered, if it has no such row.
    pub fn apply(&self, plan: &mut [u8]) -> bool {
        let mut checksum = None;
        for (name, row, change) in self.changes {
            let Some(place) = place(plan, name, *row) else {
                return false;
            };
            let (start, size) = place;
            let mut value = [0; LONGEST];
            value[..size].copy_from_slice(&plan[start..start + size]);
            let low = u64::from_le_bytes(value.first_chunk().copied().unwrap_or_default());
            let low = match change {
                Set(new) => *new,
                Add(more) => low.wrapping_add(*more),
                Flip(bits) => low ^ bits,
                Like(other, row) => {
                    let Some((start, other)) = self::place(plan, other, *row) else {
                        return false;
                    };
                    value = [0; LONGEST];
                    value[..other].copy_from_slice(&plan[start..start + other]);
                    u64::from_le_bytes(value.first_chunk().copied().unwrap_or_default())
                }
            };
            value[..8].copy_from_slice(&low.to_le_bytes());
            plan[start..start + size].copy_from_slice(&value[..size]);
            if *name == "Header.checksum" {
                checksum = Some((start, value));
            }
        }
        seal(plan);
        if let Some((start, value)) = checksum {
            plan[start..start + 8].copy_from_slice(&value[..8]);
        }
        true
    }
}

/// Reads a 32-bit word of the plan.
fn word(plan: &[u8], offset: usize) -> Option<usize> {
    let bytes = plan.get(offset..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes) as usize)
}

/// Offset of a field of a row in the plan, and its size.
fn place(plan: &[u8], name: &str, row: Row) -> Option<(usize, usize)> {
    let field = fields().find(|field| field.name == name)?;
    let Some(table) = field.table else {
        return Some((field.offset, field.size));
    };
    let (start, count) = rows(plan, table)?;
    let number = match row {
        Number(number) => number,
        Last => count.checked_sub(1)?,
        First(kind) => (0..count).find(|&row| is_kind(plan, start, field, row, kind))?,
        LastOf(kind) => (0..count)
            .rev()
            .find(|&row| is_kind(plan, start, field, row, kind))?,
    };
    (number < count).then_some((start + number * field.row + field.offset, field.size))
}

/// Offset and number of the rows of a table.
fn rows(plan: &[u8], table: TableId) -> Option<(usize, usize)> {
    let entry = offset_of!(Header, tables) + table as usize * size_of::<Table>();
    Some((word(plan, entry)?, word(plan, entry + 4)?))
}

/// Whether region `row` is of a kind.
fn is_kind(plan: &[u8], start: usize, field: &Field, row: usize, kind: RegionKind) -> bool {
    let offset = start + row * field.row + offset_of!(bulkhead_abi::plan::Region, kind);
    word(plan, offset).is_some_and(|word| word as u16 == kind as u16)
}

//! The physical GIC as EL2 uses it. A build of EL2 supports one version of the architecture, so
//! that hot paths need no branch: [`v3`], or [`v2`] with the feature `gicv2`. The common parts are
//! here: the banks of the distributor, and the targets of SGIs.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use bulkhead_abi::plan::{MAX_PCPUS, MAX_VCPUS_PER_VM};
use bulkhead_core::sync::Siblings;
use bulkhead_core::vgic::{Host, Maintenance, Version};

use super::mmio::Registers;
use super::sysreg;

pub use super::sysreg::publish;

#[cfg(feature = "gicv2")]
mod v2;
#[cfg(feature = "gicv2")]
use v2 as version;
#[cfg(not(feature = "gicv2"))]
mod v3;
#[cfg(not(feature = "gicv2"))]
use v3 as version;

mod revoke;

#[cfg(not(feature = "gicv2"))]
pub mod gppt;
#[cfg(feature = "gicv2")]
#[path = "gppt_v2.rs"]
pub mod gppt;

pub use version::{
    VERSION, VIRTUAL, acknowledge, acknowledge_group0, deactivate, drop_priority,
    empty_list_registers, ends_in_two_steps, gate, list_register, private_frames, route,
    set_list_register, set_timer_register, start_distributor,
};

/// The SGI by which pCPUs make each other look into their mailboxes. Below 8: firmware reserves
/// SGIs 8 to 15 for the Secure side (BSA), and where there is a Secure side they cannot even be
/// enabled.
pub const KICK: u32 = 7;
/// The SGI by which a vCPU notifies a sibling, which then looks at its interrupts.
pub const SIBLING: u32 = 6;
/// The SGI that replaces [`KICK`] on the pCPU of a GPPT VM. The VM has SGIs 0 to 7, and EL2 takes
/// the place of the Secure side.
pub const GPPT_KICK: u32 = 15;

/// The first INTID that means that there was no interrupt to acknowledge.
const SPECIAL: u32 = 1020;
/// The priority of all physical interrupts: EL2 takes them in the order in which they arrive.
const PRIORITY: u32 = 0x8080_8080;
/// The number of times that EL2 polls for the effect of a register write; hardware needs a few.
const PATIENCE: u32 = 1_000;

/// Banks of the distributor with a bit for each interrupt (IHI 0048B.b, 4.3; IHI 0069H, 12.9).
mod bank {
    pub const GROUP: u64 = 0x80;
    pub const ENABLE: u64 = 0x100;
    pub const DISABLE: u64 = 0x180;
    pub const SET_PENDING: u64 = 0x200;
    pub const CLEAR_PENDING: u64 = 0x280;
    pub const SET_ACTIVE: u64 = 0x300;
    pub const CLEAR_ACTIVE: u64 = 0x380;
}
/// Priorities, a byte for each interrupt.
const IPRIORITYR: u64 = 0x400;
/// Triggers, two bits for each interrupt.
const ICFGR: u64 = 0xc00;

/// ICH_HCR_EL2 and GICH_HCR: the virtual interface is on.
const HCR_ENABLE: u32 = 1;
/// Maintenance interrupt while no list register is pending (NPIE).
const HCR_NONE_PENDING: u32 = 1 << 3;
/// Maintenance interrupt while EOIcount is not 0 (LRENPIE).
const HCR_NOT_PRESENT: u32 = 1 << 2;
/// EOIcount: ends of interrupts that were in no list register.
const HCR_EOI_COUNT: u32 = 31 << 27;

/// An acknowledged interrupt in the form that the CPU interface wants back. On a GICv2 it includes
/// the sender of an SGI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Taken(u32);

impl Taken {
    /// No interrupt.
    pub const NOTHING: Self = Self(SPECIAL);

    /// Returns the INTID.
    #[inline(always)]
    pub const fn intid(self) -> u32 {
        self.0 & version::INTID
    }

    /// Whether there was no interrupt to acknowledge.
    #[inline(always)]
    pub const fn is_nothing(self) -> bool {
        self.intid() >= SPECIAL
    }
}

/// The encoding of each pCPU as the target of an SGI; 0 while it is not known.
static TARGETS: [AtomicU64; MAX_PCPUS] = [const { AtomicU64::new(0) }; MAX_PCPUS];

/// Sets the target of a pCPU.
fn set_target(pcpu: usize, target: u64) {
    if let Some(slot) = TARGETS.get(pcpu) {
        slot.store(target, Relaxed);
    }
}

fn target(pcpu: usize) -> u64 {
    const _: () = assert!(MAX_PCPUS == 8);
    TARGETS[pcpu & 7].load(Relaxed)
}

/// Sends an SGI to a pCPU, after everything that was written before it. A pCPU that has not started
/// its interrupts misses it.
#[inline(always)]
pub fn send(sgi: u32, pcpu: usize) {
    sysreg::publish();
    version::send(sgi, target(pcpu));
}

/// Sends an SGI like [`send`], to the pCPU that `place` holds after everything that was written:
/// see `bulkhead_core::sync::VcpuLocation`.
#[inline(always)]
pub fn send_to(sgi: u32, place: &AtomicU8) {
    sysreg::publish();
    version::send(sgi, target(usize::from(place.load(Relaxed))));
}

/// Returns the running priority from the active priorities bits, for five bits of priority: the
/// lowest bit is the most urgent.
fn running(active: u32) -> u64 {
    u64::from(active.trailing_zeros()) << 3
}

fn settled(done: impl Fn() -> bool) {
    for _ in 0..PATIENCE {
        if done() {
            return;
        }
    }
}

/// Disables, un-pends and deactivates the interrupts of a word of 32, and gives them all one
/// priority. `frame` has the banks from `at` on.
fn silence(frame: Registers, at: u64, word: u64) {
    let bits = at.wrapping_add(word.wrapping_mul(4));
    for bank in [bank::DISABLE, bank::CLEAR_PENDING, bank::CLEAR_ACTIVE] {
        frame.write(bits.wrapping_add(bank), u32::MAX);
    }
    let bytes = at.wrapping_add(word.wrapping_mul(32));
    for n in 0..8u64 {
        let at = bytes.wrapping_add(IPRIORITYR);
        frame.write(at.wrapping_add(n.wrapping_mul(4)), PRIORITY);
    }
}

/// Returns how many words of 32 interrupts a distributor has (GICD_TYPER.ITLinesNumber).
fn words(gicd: Registers) -> u64 {
    u64::from(gicd.read(4) & 31).saturating_add(1)
}

/// Returns how many INTIDs the distributor has.
pub fn intids(gicd: Registers) -> u32 {
    (words(gicd) as u32).wrapping_mul(32)
}

/// Configures the trigger of an SPI. Sixteen SPIs share a register, so the boot pCPU does it for
/// all SPIs before another pCPU runs.
pub fn configure(gicd: Registers, intid: u32, edge: bool) {
    let n = u64::from(intid);
    let at = ICFGR.wrapping_add(n / 16 * 4);
    let bit = 2u32 << (n % 16 * 2);
    let config = gicd.read(at);
    gicd.write(at, if edge { config | bit } else { config & !bit });
}

/// The siblings of a thread without a vCPU.
static NO_SIBLINGS: Siblings = [const { AtomicU8::new(0) }; MAX_VCPUS_PER_VM];

/// The physical GIC as one pCPU uses it.
#[derive(Clone, Copy, Debug)]
pub struct Gic {
    frames: version::Frames,
    /// The number of list registers of the virtual interface, at most 16.
    pub list_registers: u32,
    /// The list registers except that of the virtual timer, one bit for each.
    pub usable: u32,
    /// Whether the virtual interface has four list registers and one active priorities register of
    /// each group, as most have. The fast path of a switch relies on it.
    pub is_fastpath: bool,
    /// The pCPUs of all vCPUs of the VM, by the number of the vCPU.
    pub siblings: &'static Siblings,
}

impl Gic {
    /// Returns the GIC of pCPU `index`, in its private map, before it is started.
    pub fn of(index: usize) -> Self {
        Self {
            frames: version::Frames::of(index),
            list_registers: 1,
            usable: 0,
            is_fastpath: false,
            siblings: &NO_SIBLINGS,
        }
    }

    /// Starts the interrupts of this pCPU, which is number `index`: `wanted` has the SGIs and PPIs
    /// to enable.
    pub fn start(&mut self, index: usize, wanted: u32) {
        let own = gppt::is_there(index);
        self.frames.start(index, if own { 0 } else { wanted });
        self.list_registers = version::start_cpu_interface().min(16);
        if own {
            self.claim_for_gppt(wanted);
        }
        self.is_fastpath = version::is_fastpath(self.list_registers);
        self.usable = (1u32 << self.list_registers).wrapping_sub(1) & !1;
        self.reset_virtual();
    }

    /// Resets the virtual interface: masked, disabled, nothing pending or active. For each start of
    /// a vCPU: interrupts that the previous one had not ended would mask lower priorities for the
    /// next.
    pub fn reset_virtual(&self) {
        version::reset_virtual_interface(self.list_registers);
    }

    /// Writes the bit of an interrupt in a bank.
    fn write(&self, bank: u64, intid: u32) {
        let (frame, at) = self.frames.bank(bank, intid);
        frame.write(at, 1 << (intid % 32));
    }

    /// Reads the bit of an interrupt in a bank.
    fn read(&self, bank: u64, intid: u32) -> bool {
        let (frame, at) = self.frames.bank(bank, intid);
        frame.read(at) & 1 << (intid % 32) != 0
    }

    /// Enables an interrupt.
    pub fn enable(&self, intid: u32) {
        self.write(bank::ENABLE, intid);
    }

    /// Disables an interrupt, and waits until that is in effect.
    pub fn disable(&self, intid: u32) {
        self.write(bank::DISABLE, intid);
        self.frames.settle(intid);
    }

    /// Sets or clears the pending state of an interrupt.
    pub fn set_pending(&self, intid: u32, pending: bool) {
        let bank = if pending {
            bank::SET_PENDING
        } else {
            bank::CLEAR_PENDING
        };
        self.write(bank, intid);
    }

    /// Whether an interrupt is pending.
    pub fn is_pending(&self, intid: u32) -> bool {
        self.read(bank::SET_PENDING, intid)
    }

    /// Sets or clears the active state of an interrupt, whoever acknowledged it.
    pub fn set_active(&self, intid: u32, active: bool) {
        let bank = if active {
            bank::SET_ACTIVE
        } else {
            bank::CLEAR_ACTIVE
        };
        self.write(bank, intid);
    }

    /// Deactivates the private interrupts in `mask` that are active, and returns them.
    #[inline(always)]
    pub fn save_active(&self, mask: u32) -> u32 {
        let (frame, at) = self.frames.bank(bank::SET_ACTIVE, 0);
        let active = frame.read(at) & mask;
        if active != 0 {
            self.deactivate_private(active);
        }
        active
    }

    #[inline(never)]
    fn deactivate_private(&self, active: u32) {
        let (frame, at) = self.frames.bank(bank::CLEAR_ACTIVE, 0);
        frame.write(at, active);
    }

    /// Makes private interrupts active again.
    #[inline(always)]
    pub fn restore_active(&self, active: u32) {
        if active != 0 {
            let (frame, at) = self.frames.bank(bank::SET_ACTIVE, 0);
            frame.write(at, active);
        }
    }

    /// Enables the private interrupts of `mask` that are in `wanted`, and disables the others of
    /// `mask`.
    pub fn enable_private(&self, mask: u32, wanted: u32) {
        let (frame, at) = self.frames.bank(bank::DISABLE, 0);
        frame.write(at, mask & !wanted);
        let (frame, at) = self.frames.bank(bank::ENABLE, 0);
        frame.write(at, mask & wanted);
    }

    /// Routes an SPI to a pCPU.
    pub fn route(&self, intid: u32, pcpu: usize) {
        route(self.frames.gicd(), intid, pcpu);
    }
}

/// The saved virtual interface of a vCPU while another vCPU has the pCPU. All zeros: disabled and
/// empty.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VirtualInterface {
    /// ICH_HCR_EL2 or GICH_HCR.
    control: u32,
    /// ICH_VMCR_EL2 or GICH_VMCR.
    machine: u32,
    /// The active priorities of Group 0 and of Group 1, four words of each. A GICv2 has the first
    /// word only.
    active: [u32; 8],
    list: [u64; 16],
}

impl VirtualInterface {
    /// A virtual interface that is disabled and empty.
    pub const NEW: Self = Self {
        control: 0,
        machine: 0,
        active: [0; 8],
        list: [0; 16],
    };

    /// Saves the virtual interface of a [`Gic::is_fastpath`]. The hardware keeps it as well.
    #[inline(always)]
    pub fn save_fast(&mut self) {
        version::save_fast(self);
    }

    /// Saves the virtual interface. The hardware keeps it as well.
    pub fn save(&mut self, gic: &Gic) {
        self.control = version::control();
        version::save_rest(self, gic.list_registers);
    }

    /// Restores the state that [`Self::save_fast`] has saved.
    #[inline(always)]
    pub fn restore_fast(&self) {
        version::restore_fast(self);
    }

    /// Restores the state that [`Self::save`] has saved.
    pub fn restore(&self, gic: &Gic) {
        version::restore_rest(self, gic.list_registers);
        version::set_control(self.control);
    }

    /// Lets the hardware signal interrupts again, where it still has the rest of the state.
    pub fn signal_again(&self) {
        version::set_control(self.control);
    }
}

/// Stops the virtual interface of this pCPU from signalling interrupts.
pub fn signal_nothing() {
    version::set_control(version::control() & !HCR_ENABLE);
}

/// The physical GIC carries out what the vGIC asks for.
impl Host for Gic {
    const VERSION: Version = version::VIRTUAL;
    #[inline(always)]
    fn list_registers(&self) -> u32 {
        self.list_registers
    }
    #[inline(always)]
    fn usable(&self) -> u32 {
        self.usable
    }
    #[inline(always)]
    fn lr(&self, n: u32) -> u64 {
        list_register(n)
    }
    #[inline(always)]
    fn set_lr(&mut self, n: u32, value: u64) {
        set_list_register(n, value);
    }
    #[inline(always)]
    fn empty(&self) -> u32 {
        empty_list_registers()
    }
    fn eoi_count(&mut self) -> u32 {
        let now = version::control();
        version::set_control(now & !HCR_EOI_COUNT);
        // With EOImode 1 an interrupt ends with the write to DIR, which traps; what the count has
        // then are priority drops (IHI 0069H, ICH_HCR_EL2.EOIcount: an implementation counts ends
        // only, QEMU's does not).
        if version::ends_in_two_steps() {
            0
        } else {
            now >> 27
        }
    }
    fn groups(&self) -> u32 {
        version::virtual_groups()
    }
    fn ask(&mut self, what: Maintenance) {
        let mut wanted = version::CONTROL;
        if what.refill {
            // For each group, the interrupt of the one change that is possible now.
            let groups = version::virtual_groups();
            wanted |= HCR_NONE_PENDING;
            wanted |= if groups & 1 == 0 { 1 << 4 } else { 1 << 5 };
            wanted |= if groups & 2 == 0 { 1 << 6 } else { 1 << 7 };
        }
        if what.eoi {
            wanted |= HCR_NOT_PRESENT;
        }
        version::set_control(version::control() & HCR_EOI_COUNT | wanted);
    }
    fn enable(&mut self, pintid: u32) {
        Self::enable(self, pintid);
    }
    fn disable(&mut self, pintid: u32) {
        Self::disable(self, pintid);
    }
    fn deactivate(&mut self, pintid: u32) {
        Self::set_active(self, pintid, false);
    }
    fn set_active(&mut self, pintid: u32) {
        Self::set_active(self, pintid, true);
    }
    fn set_pending(&mut self, pintid: u32, pending: bool) {
        Self::set_pending(self, pintid, pending);
    }
    fn is_pending(&self, pintid: u32) -> bool {
        Self::is_pending(self, pintid)
    }
    fn route(&mut self, pintid: u32, vcpu: usize) {
        if let Some(pcpu) = self.siblings.get(vcpu) {
            Self::route(self, pintid, usize::from(pcpu.load(Relaxed)));
        }
    }
}

/// Waits for an interrupt on pCPU `index`, which is this one and has nothing to run. A separate
/// symbol for measurements: time spent here delays no guest.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn el2_wait(index: usize) {
    gppt::wait(index);
}

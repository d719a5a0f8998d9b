//! The physical GIC, and its virtual interface, as one pCPU uses them.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use bulkhead_abi::plan::MAX_VCPUS_PER_VM;
use bulkhead_core::sync::Siblings;
use bulkhead_core::vgic::{Host, Maintenance, Version};

use super::super::mmio::Registers;
use super::super::sysreg::dsb;

#[cfg(not(feature = "gicv2"))]
use super::gppt_pcpus::has_gppt_vm;
use super::registers::{
    HCR_ENABLE, HCR_EOI_COUNT, HCR_NONE_PENDING, HCR_NOT_PRESENT, VirtualInterface, bank,
};
#[cfg(feature = "gicv2")]
use super::revoke::has_gppt_vm;
#[cfg(feature = "gicv2")]
use super::v2 as version;
#[cfg(not(feature = "gicv2"))]
use super::v3 as version;

/// The siblings of a thread without a vCPU.
static NO_SIBLINGS: Siblings = [const { AtomicU8::new(0) }; MAX_VCPUS_PER_VM];

/// The physical GIC as one pCPU uses it.
#[derive(Clone, Copy, Debug)]
pub struct Gic {
    pub(super) frames: version::Frames,
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
        let own = has_gppt_vm(index);
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
    #[inline(always)]
    pub fn set_active(&self, intid: u32, active: bool) {
        let bank = if active {
            bank::SET_ACTIVE
        } else {
            bank::CLEAR_ACTIVE
        };
        let (frame, at) = self.frames.bank(bank, intid);
        write_active(frame, at, 1 << (intid % 32));
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
        write_active(frame, at, active);
    }

    /// Makes private interrupts active again.
    #[inline(always)]
    pub fn restore_active(&self, active: u32) {
        if active != 0 {
            let (frame, at) = self.frames.bank(bank::SET_ACTIVE, 0);
            write_active(frame, at, active);
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
        version::route(self.frames.gicd(), intid, pcpu);
    }
}

/// Writes a bank of active states, and waits until the write is in effect. Stores to a device are
/// posted: without the read-back, the guest's end of the interrupt, which goes by another way (a
/// list register), could reach the GIC before it, and the interrupt would then stay active. The
/// read returns after the store to the same frame has arrived (DDI 0487, Device memory, ordering of
/// accesses to one peripheral), and the DSB waits for the read.
#[inline(always)]
fn write_active(frame: Registers, at: u64, bits: u32) {
    frame.write(at, bits);
    frame.read(at);
    dsb();
}

impl VirtualInterface {
    /// A virtual interface that is disabled and empty.
    pub const NEW: Self = Self {
        control: 0,
        machine: 0,
        active: [0; 8],
        list: [0; 16],
    };

    /// Saves a virtual interface for which [`Gic::is_fastpath`] holds. The hardware keeps its state
    /// as well.
    #[inline(always)]
    pub fn save_fast(&mut self) {
        version::save_fast(self);
    }

    /// Saves the virtual interface. The hardware keeps its state as well.
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
        version::list_register(n)
    }
    #[inline(always)]
    fn set_lr(&mut self, n: u32, value: u64) {
        version::set_list_register(n, value);
    }
    #[inline(always)]
    fn empty(&self) -> u32 {
        version::empty_list_registers()
    }
    #[inline(always)]
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
    #[inline(always)]
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

//! The pCPU of a GPPT VM on a GICv2, where the VM has the frame of the CPU interface and can mask
//! every interrupt. EL2 reclaims the pCPU by taking the VM's stage 2 away
//! (`docs/adr/0016-gppt.md`): no interrupt of EL2's gets through while the guest has its stage 2
//! and the CPU interface.

use bulkhead_core::gppt::{Board, Controls, GUEST_SGIS, Read, Write, priority};

use super::super::cpu;
use super::super::mmio::Registers;
use super::super::sysreg::{dsb, isb, publish, read, write};
use super::call_spis::{self, clear_pending, kick_spi, set_pending};
use super::pcpu::Gic;
use super::registers::{GPPT_KICK, IPRIORITYR, KICK, bank, target};
use super::revoke;
use super::send::send;
use super::v2::{
    CPENDSGIR, GICC, GICC_BPR, GICC_CTLR, GICC_DIR, GICC_PMR, GICD, ON_SPLIT, SGIR, route,
    set_control,
};

pub use super::call_spis::{is_called, meaning, sibling_intid};
pub use super::revoke::{give_to, has_gppt_vm, is_gone};

/// Whether EL2 takes no interrupts of Group 1 there: a GICv2 is used with one group.
pub const EL2_LEAVES_GROUP1: bool = false;

/// Further registers of the CPU interface (IHI 0048B, 4.4): running priority, binary point of Group
/// 1, active priorities of both groups, which are adjacent.
const GICC_RPR: u64 = 0x14;
const GICC_ABPR: u64 = 0x1c;
const GICC_APR: u64 = 0xd0;
/// `GICC_CTLR`: group enables; ends do not deactivate.
const ENABLE: u32 = 0b11;
const SPLIT: u32 = 1 << 9;
const SPENDSGIR: u64 = 0xf20;
/// HCR_EL2: FMO and IMO, and TWI.
const TO_EL2: u64 = 1 << 3 | 1 << 4;
const TWI: u64 = 1 << 13;

/// Returns `false`: a GICv2 is not used with events of the firmware.
pub const fn has_events(_: usize) -> bool {
    false
}

/// Returns `false`: this is about a GICv3.
pub const fn shares_group1(_: usize) -> bool {
    false
}

/// Does nothing: a GICv2 is not used with events of the firmware.
pub const fn start_events(_: usize) {}

/// Waits for an interrupt.
pub fn wait(_: usize, _: bool) {
    cpu::wait();
}

/// Returns the bit of a pCPU's CPU interface, once the pCPU has started.
pub fn name(pcpu: usize) -> u64 {
    target(pcpu) >> 16
}

/// Makes a pCPU look into its mailbox, whether it runs a GPPT VM or not.
pub fn kick(pcpu: usize) {
    let poke = || {
        if let Some(intid) = kick_spi(pcpu) {
            return set_pending(intid);
        }
        send(GPPT_KICK, pcpu);
        // The SGI has arrived when the distributor answers.
        GICD.read(0);
        dsb();
    };
    if !revoke::revoke(pcpu, poke) {
        send(KICK, pcpu);
    }
}

/// Starts the SPIs by which pCPUs call each other, if the plan has them. Called by the boot pCPU.
pub fn start_calls(gicd: Registers) {
    call_spis::start(gicd, |intid, pcpu| {
        route(gicd, intid, pcpu);
        if has_gppt_vm(pcpu) {
            claim(gicd, intid, pcpu);
        }
    });
}

/// Whether the SGI is EL2's by which a pCPU is poked that no SPI calls. Where firmware has the Secure side it is Secure, and its enable reads
/// as zero. Called by the boot pCPU, on which it is asked of its own SGI.
pub fn may_poke(gicd: Registers) -> bool {
    let bit = 1 << GPPT_KICK;
    gicd.write(bank::ENABLE, bit);
    gicd.read(bank::ENABLE) & bit != 0
}

/// Restores the stage 2 of this pCPU's VM, and clears the interrupt that was sent with the
/// revocation. `false`: another pCPU has the claim.
pub fn give_back(index: usize) -> bool {
    revoke::restore(index, || {
        if let Some(intid) = kick_spi(index) {
            return clear_pending(intid);
        }
        GICD.write8(CPENDSGIR.wrapping_add(u64::from(GPPT_KICK)), 0xff);
        GICD.read(0);
    })
}

/// Gives an SPI of EL2's the most urgent priority, on the pCPU of a GPPT VM.
fn claim(gicd: Registers, intid: u32, _: usize) {
    gicd.write8(IPRIORITYR.wrapping_add(u64::from(intid)), priority::KICK);
}

/// Routes interrupts to EL2.
pub fn route_to_el2() {
    write!("hcr_el2", read!("hcr_el2") | TO_EL2);
    isb();
}

/// Routes interrupts as the guest has them.
pub fn route_to_guest(controls: Controls) {
    let rest = read!("hcr_el2") & !TO_EL2;
    write!("hcr_el2", rest | controls.hcr & TO_EL2);
    isb();
}

/// Sets the traps of the guest's mode, and disables the virtual interface.
pub fn trap(controls: Controls) {
    set_control(0);
    let rest = read!("hcr_el2") & !TWI;
    write!("hcr_el2", rest | controls.hcr & TWI);
    isb();
}

/// Whether the CPU interface signals an interrupt, regardless of the PSTATE masks (ISR_EL1).
pub fn is_signalled() -> bool {
    read!("isr_el1") & 0b11 << 6 != 0
}

/// Whether the CPU interface, in the state in which the guest has left it, would signal an
/// interrupt of EL2's.
pub fn lets_kick_through(_: usize) -> bool {
    let now = Interface::look();
    // The bits of the running priority that decide: those above the binary point.
    let below = now.point & 7;
    let pre_empts = now
        .running()
        .is_none_or(|running| running.wrapping_shr(below.wrapping_add(1)) != 0);
    now.control & ENABLE != 0 && now.mask != 0 && pre_empts
}

/// Deactivates an interrupt for the guest, which has an effect in EOImode 1 only.
pub fn deactivate(value: u32) {
    if GICC.read(GICC_CTLR) & SPLIT != 0 {
        GICC.write(GICC_DIR, value);
    }
}

/// The saved CPU interface of a guest while EL2 has it.
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// `GICC_CTLR`.
    pub control: u32,
    /// `GICC_PMR`.
    pub mask: u32,
    point: u32,
    alias: u32,
    running: u32,
    active: [u32; 8],
    /// The senders of each of SGIs 0 to 7: `GICD_SPENDSGIR`.
    senders: [u8; SGIS],
}

fn active(n: usize) -> u64 {
    GICC_APR.wrapping_add((n as u64).wrapping_mul(4))
}

/// The number of SGIs that a guest has: 0 to 7.
const SGIS: usize = 8;
const _: () = assert!(GUEST_SGIS == (1 << SGIS) - 1);

/// Returns the senders of each SGI of the guest.
fn senders() -> [u8; SGIS] {
    let (low, high) = (GICD.read(SPENDSGIR), GICD.read(SPENDSGIR + 4));
    let (low, high) = (low.to_le_bytes(), high.to_le_bytes());
    core::array::from_fn(|n| if n < 4 { low[n % 4] } else { high[n % 4] })
}

impl Interface {
    /// The state after a reset.
    pub const RESET: Self = Self {
        control: 0,
        mask: 0,
        point: 0,
        alias: 0,
        running: 0xff,
        active: [0; 8],
        senders: [0; SGIS],
    };

    /// Reads the current state.
    pub fn look() -> Self {
        Self {
            control: GICC.read(GICC_CTLR),
            mask: GICC.read(GICC_PMR),
            point: GICC.read(GICC_BPR),
            alias: GICC.read(GICC_ABPR),
            running: GICC.read(GICC_RPR),
            active: core::array::from_fn(|n| GICC.read(active(n))),
            senders: senders(),
        }
    }

    /// Writes the senders of the SGIs to a register with a byte for each SGI. The byte of an SGI
    /// without a sender is not written: QEMU takes such a write to GICD_SPENDSGIR for an SGI from
    /// nobody, and stops when it is acknowledged.
    fn write_senders(&self, register: u64) {
        for (n, whom) in (0u64..).zip(self.senders) {
            if whom != 0 {
                GICD.write8(register.wrapping_add(n), whom);
            }
        }
    }

    /// Returns the running priority, if there is one.
    pub fn running(&self) -> Option<u32> {
        Some(self.running & 0xff).filter(|running| *running != 0xff)
    }

    /// Saves the CPU interface and takes it over for EL2, with interrupts routed to EL2. The
    /// guest's SGIs, which may be permanently enabled, are cleared meanwhile; its other interrupts
    /// are disabled at this point.
    pub fn save() -> Self {
        let kept = Self::look();
        GICC.write(GICC_CTLR, 0);
        for n in 0..kept.active.len() {
            GICC.write(active(n), 0);
        }
        kept.write_senders(CPENDSGIR);
        GICC.write(GICC_PMR, 0xff);
        GICC.write(GICC_BPR, 0);
        GICC.write(GICC_CTLR, ON_SPLIT);
        route_to_el2();
        kept
    }

    /// Restores the CPU interface, with interrupts routed to the guest.
    pub fn restore(&self, controls: Controls) {
        GICC.write(GICC_CTLR, 0);
        for (n, bits) in self.active.into_iter().enumerate() {
            GICC.write(active(n), bits);
        }
        self.write_senders(SPENDSGIR);
        GICC.write(GICC_PMR, self.mask);
        GICC.write(GICC_BPR, self.point);
        GICC.write(GICC_ABPR, self.alias);
        GICC.write(GICC_CTLR, self.control);
        route_to_guest(controls);
    }
}

impl Gic {
    /// Starts EL2's private interrupts, with the most urgent priority. EL2 has the CPU interface at
    /// first.
    pub(super) fn claim_for_gppt(&self, own: u32) {
        for intid in 0..32u32 {
            if own >> intid & 1 != 0 {
                let at = IPRIORITYR.wrapping_add(u64::from(intid));
                GICD.write8(at, priority::KICK);
                self.enable(intid);
            }
        }
    }

    /// Performs a read for the filter.
    pub fn filtered_read(&self, read: &Read) -> u64 {
        // Bytes can be read as words.
        let word = GICD.read(read.offset & !3);
        u64::from(word >> ((read.offset & 3) as u32).wrapping_mul(8))
    }

    /// Returns what performs writes for the filter. [`Filtered::settle`] comes after them.
    #[inline(always)]
    pub const fn filtered(&self) -> Filtered {
        Filtered { written: false }
    }

    /// Waits until all writes have reached the distributor.
    pub fn settle_all(&self) {
        GICD.read(0);
    }
}

/// Performs writes for the filter of a GPPT VM.
#[derive(Debug)]
pub struct Filtered {
    written: bool,
}

impl Board for Filtered {
    #[inline(never)]
    fn write(&mut self, write: Write) {
        self.written = true;
        if write.offset == SGIR {
            publish();
        }
        match write.size {
            1 => GICD.write8(write.offset, write.value as u8),
            _ => GICD.write(write.offset, write.value as u32),
        }
    }
}

impl Filtered {
    /// Waits until the writes have arrived, as on a GICv3.
    #[inline(never)]
    pub fn settle(&self) {
        if self.written {
            GICD.read(bank::SET_ACTIVE);
        }
        dsb();
    }
}

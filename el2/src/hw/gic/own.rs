//! A pCPU whose VM takes its physical interrupts itself (`docs/adr/0016-own-interrupts.md`). On a GICv3 with one Security state EL2's
//! own interrupts are of Group 0 there, with the most urgent priority, and come as FIQ; Group 1 is the guest's. Where Group 0 is
//! the firmware's, EL2 has none there, and gets the pCPU back by an event of the firmware.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use bulkhead_core::gppt::{self, Common, Controls, Read, TWO_STEPS, Write, priority};
use bulkhead_core::text::Line;

use super::super::mmio::Registers;
use super::super::sysreg::{isb, read, write};
use super::super::{cpu, sdei};
use super::{Gic, HCR_ENABLE, IPRIORITYR, KICK, OWN_KICK, bank, target};
use crate::idle;
use crate::start::plan;

/// `GICD_CTLR.DS`: one Security state.
const DS: u32 = 1 << 6;
/// `GICD_CTLR.EnableGrp0`.
const GROUP0: u32 = 1;
/// HCR_EL2.FMO, IMO, TWI: those that [`Controls`] decides.
const ROUTING: u64 = 1 << 3 | 1 << 4 | 1 << 13;

/// ICC_RPR_EL1 while nothing is active.
const IDLE: u64 = 0xff;
/// Priorities that can be active at once, at most.
const PRIORITIES: usize = 128;

/// EL2's interrupts are not of Group 1 there.
pub const EL2_IN_GROUP0: bool = true;

/// pCPUs that are like this, a bit for each.
static THERE: AtomicU32 = AtomicU32::new(0);

/// Those of them that are got back by events.
static EVENTS: AtomicU32 = AtomicU32::new(0);

/// The board has what such pCPUs need; `which` has a bit for each that is got back by a Group 0 interrupt, `events` for the
/// others. For the boot pCPU, with the distributor started.
pub fn prepare(gicd: Registers, which: u32, events: u32) -> bool {
    THERE.store(which | events, Relaxed);
    EVENTS.store(events, Relaxed);
    if which == 0 {
        return true;
    }
    let control = gicd.read(0);
    gicd.write(0, control | GROUP0);
    control & DS != 0
}

/// pCPU `index` is got back by events.
pub fn has_events(index: usize) -> bool {
    EVENTS.load(Relaxed) >> (index & 31) & 1 != 0
}

/// Lets pCPU `index`, which is this one, be got back by events, if that is how it is.
pub fn start_events(index: usize) {
    if has_events(index) && !sdei::start(index) {
        idle::own_fault(
            Line::new()
                .text("firmware does not start events on pcpu ")
                .decimal(index as u64),
        );
    }
}

/// Waits for an interrupt, or an event, on pCPU `index`, which is this one.
pub fn wait(index: usize) {
    if has_events(index) {
        sdei::wait();
    } else {
        cpu::wait();
    }
}

/// pCPU `index` is such a one.
pub fn is_there(index: usize) -> bool {
    THERE.load(Relaxed) >> (index & 31) & 1 != 0
}

/// A pCPU as `GICD_IROUTER` names it.
pub fn name(pcpu: usize) -> u64 {
    plan().pcpus.get(pcpu).map_or(0, |row| row.mpidr)
}

/// Makes an SPI EL2's on such a pCPU: the console's, on the one that drains it.
pub fn claim(gicd: Registers, intid: u32) {
    let word = bank::GROUP.wrapping_add(u64::from(intid / 32).wrapping_mul(4));
    gicd.write(word, gicd.read(word) & !(1 << (intid % 32)));
    gicd.write8(IPRIORITYR.wrapping_add(u64::from(intid)), priority::KICK);
}

/// Makes a pCPU look into its mailbox, whichever kind it is.
pub fn kick(pcpu: usize) {
    if is_there(pcpu) {
        if has_events(pcpu) {
            return sdei::signal(pcpu);
        }
        super::super::sysreg::publish();
        // ICC_SGI0R_EL1
        write!("S3_0_C12_C11_7", u64::from(OWN_KICK) << 24 | target(pcpu));
        isb();
    } else {
        super::send(KICK, pcpu);
    }
}

/// The CPU interface as the guest finds it after a reset: Group 1 off, nothing active (ICC_IGRPEN1_EL1, ICC_AP1R<n>_EL1,
/// ICC_BPR1_EL1); and the virtual interface off but for what traps.
///
/// Where the common registers trap, the guest's priority mask is as after a reset, too; else it acts on nothing, and all
/// priorities are signalled.
pub fn reset_interface(controls: Controls, trapped: bool) {
    write!("S3_0_C12_C12_7", 0);
    clear_active();
    write!("S3_0_C12_C12_3", 0);
    set_common(Common::Control, 0);
    let mask = if trapped { priority::to_board(0) } else { 0xff };
    set_common(Common::Mask, u64::from(mask));
    // ICH_HCR_EL2.
    write!("S3_4_C12_C11_0", u64::from(controls.ich & !HCR_ENABLE));
    let rest = read!("hcr_el2") & !ROUTING;
    write!("hcr_el2", rest | controls.hcr);
    isb();
}

/// Nothing of Group 1 is active any more (ICC_AP1R\<n\>_EL1).
fn clear_active() {
    write!("S3_0_C12_C9_0", 0);
    // ICC_CTLR_EL1.PRIbits: as many words of active priorities as there are pre-emption bits for.
    let bits = (read!("S3_0_C12_C12_4") >> 8 & 7).saturating_add(1);
    if bits >= 6 {
        write!("S3_0_C12_C9_1", 0);
    }
    if bits >= 7 {
        write!("S3_0_C12_C9_2", 0);
        write!("S3_0_C12_C9_3", 0);
    }
    isb();
}

/// The same where there are two Security states. QEMU ignores those writes there: then each is dropped by an end (ICC_EOIR1_EL1),
/// which deactivates nothing with EOImode 1, and names SGI 0.
pub fn end_all() {
    clear_active();
    set_common(Common::Control, TWO_STEPS);
    for _ in 0..PRIORITIES {
        if common(Common::Running) == IDLE {
            break;
        }
        write!("S3_0_C12_C12_1", 0);
        isb();
    }
}

/// A register that both groups have in common, as the board has it.
pub fn common(which: Common) -> u64 {
    match which {
        Common::Mask => read!("S3_0_C4_C6_0"),
        Common::Running => read!("S3_0_C12_C11_3"),
        Common::Control => read!("S3_0_C12_C12_4"),
    }
}

/// Writes one.
pub fn set_common(which: Common, value: u64) {
    match which {
        Common::Mask => write!("S3_0_C4_C6_0", value),
        Common::Running => {}
        Common::Control => write!("S3_0_C12_C12_4", value),
    }
    isb();
}

/// ICC_IGRPEN1_EL1.
pub fn group1() -> u64 {
    read!("S3_0_C12_C12_7") & 1
}

/// Keeps Group 1 interrupts from ending the sleep of EL2 while the guest is not there; gives what [`show`] wants.
pub fn hide() -> u64 {
    let enabled = read!("S3_0_C12_C12_7");
    write!("S3_0_C12_C12_7", 0);
    isb();
    enabled
}

/// The guest is there again.
pub fn show(enabled: u64) {
    write!("S3_0_C12_C12_7", enabled);
    isb();
}

impl Gic {
    /// Puts EL2's own private interrupts in `own` into Group 0, and starts the CPU interface that way.
    pub(super) fn own(&self, own: u32) {
        if own == 0 {
            // Got back by events: EL2 has none, and what is there of Group 0 is the firmware's.
            set_common(Common::Control, 0);
            return show(0);
        }
        let (frame, at) = self.frames.bank(bank::GROUP, 0);
        frame.write(at, !own);
        for intid in 0..32u32 {
            if own >> intid & 1 != 0 {
                let (frame, at) = self.frames.bank(IPRIORITYR, 0);
                frame.write8(at.wrapping_add(u64::from(intid)), priority::KICK);
            }
        }
        let (frame, at) = self.frames.bank(bank::ENABLE, 0);
        frame.write(at, own);
        // ICC_CTLR_EL1.EOImode 0, ICC_BPR0_EL1, ICC_IGRPEN0_EL1, ICC_IGRPEN1_EL1.
        write!("S3_0_C12_C12_4", 0);
        write!("S3_0_C12_C8_3", 0);
        write!("S3_0_C12_C12_6", 1);
        write!("S3_0_C12_C12_7", 0);
        isb();
    }

    fn frame_of(&self, frame: gppt::Frame) -> Registers {
        match frame {
            gppt::Frame::Distributor => self.frames.gicd(),
            gppt::Frame::Redistributor => self.frames.gicr(),
        }
    }

    /// Performs a read for the filter.
    pub fn filtered_read(&self, read: &Read) -> u64 {
        let frame = self.frame_of(read.frame);
        if read.size == 8 {
            return frame.read64(read.offset);
        }
        // Bytes are those of priorities, which can be read as words.
        let word = frame.read(read.offset & !3);
        u64::from(word >> ((read.offset & 3) as u32).wrapping_mul(8))
    }

    /// Performs a write for the filter.
    pub fn filtered_write(&self, write: &Write) {
        let frame = self.frame_of(write.frame);
        match write.size {
            8 => frame.write64(write.offset, write.value),
            1 => frame.write8(write.offset, write.value as u8),
            _ => frame.write(write.offset, write.value as u32),
        }
    }

    /// Waits until what was disabled is so.
    pub fn settle_all(&self) {
        self.frames.settle(0);
        self.frames.settle(32);
    }
}

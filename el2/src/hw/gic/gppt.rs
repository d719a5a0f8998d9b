//! The pCPU of a GPPT VM on a GICv3 (`docs/adr/0016-gppt.md`). With one Security state, EL2's own
//! interrupts are in Group 0 there, with the most urgent priority, and arrive as FIQ; Group 1 is
//! the guest's. Where firmware has Group 0, EL2 has no interrupts there: it reclaims the pCPU by
//! an event of the firmware, or shares Group 1 with the guest ([`gppt_shared`]).

use bulkhead_core::console::text::TextLine;
use bulkhead_core::gppt::{self, Common, Controls, Read, TWO_STEPS, Write, priority};

use super::super::mmio::Registers;
use super::super::plan::plan;
use super::super::sysreg::{dsb, isb, read, send_event, write};
use super::super::{cpu, fault, sdei};
use super::by_spi::{BY_SPI, call};
use super::call_spis::{self, clear_pending, kick_spi};
use super::gppt_interface::{IDLE, priority_bits};
use super::gppt_pcpus;
use super::gppt_shared;
use super::pcpu::Gic;
use super::registers::{GPPT_KICK, HCR_ENABLE, IPRIORITYR, KICK, SIBLING, bank, target};
use super::revoke;
use super::send::send;
use super::v3::{route, sgi_target};

pub use super::call_spis::{meaning, sibling_intid};
pub use super::gppt_interface::{
    common, disable_group1, group1, restore_group1, route_to_el2, route_to_guest, set_common,
};
pub use super::gppt_pcpus::{GpptPcpus, has_events, has_gppt_vm, shares_group1};
pub use super::revoke::{give_to, is_gone};

/// `GICD_CTLR.DS`: one Security state.
const DS: u32 = 1 << 6;
/// `GICD_CTLR.EnableGrp0`.
const GROUP0: u32 = 1;
/// HCR_EL2.FMO, IMO, TWI: the bits that [`Controls`] decides.
const ROUTING: u64 = 1 << 3 | 1 << 4 | 1 << 13;

/// The largest number of priorities that can be active at once.
const PRIORITIES: usize = 128;

const _: () = assert!(SIBLING & 1 == 0 && KICK == SIBLING + 1 && GPPT_KICK & 1 == 1);

/// Whether EL2 takes no interrupts of Group 1 there.
pub const EL2_LEAVES_GROUP1: bool = true;

/// Prepares the board for GPPT VMs. Returns whether the board has what they need. Called by the
/// boot pCPU, with the distributor started.
pub fn prepare(gicd: Registers, pcpus: GpptPcpus) -> bool {
    gppt_pcpus::set(pcpus);
    if pcpus.group0 == 0 {
        return true;
    }
    let control = gicd.read(0);
    gicd.write(0, control | GROUP0);
    control & DS != 0
}

/// Whether the board has one Security state. Non-secure software reads 0 where there are two (IHI
/// 0069H, GICD_CTLR).
fn has_one_state(gicd: Registers) -> bool {
    gicd.read(0) & DS != 0
}

/// Starts events on pCPU `index`, which is this one, if it is reclaimed by events.
pub fn start_events(index: usize) {
    if has_events(index) && !sdei::start(index) {
        fault::el2_fault(
            TextLine::new()
                .text("firmware does not start events on pcpu ")
                .decimal(index as u64),
        );
    }
}

/// Waits for an interrupt, or an event, on pCPU `index`, which is this one; `for_guest`: for what
/// would end the guest's WFI.
pub fn wait(index: usize, for_guest: bool) {
    if has_events(index) {
        sdei::wait();
    } else if shares_group1(index) && !for_guest {
        gppt_shared::wait(index);
    } else {
        cpu::wait();
    }
}

/// Returns the name of a pCPU in `GICD_IROUTER`.
pub fn name(pcpu: usize) -> u64 {
    plan().pcpus.get(pcpu).map_or(0, |row| row.mpidr)
}

/// Moves an SPI of EL2's to Group 0, unless EL2 and the guest share Group 1, with the most urgent
/// priority, on the pCPU of a GPPT VM: that of the console's UART, if that pCPU drains the console,
/// or one by which pCPUs call each other.
pub fn claim(gicd: Registers, intid: u32, pcpu: usize) {
    if !shares_group1(pcpu) {
        let word = bank::GROUP.wrapping_add(u64::from(intid / 32).wrapping_mul(4));
        gicd.write(word, gicd.read(word) & !(1 << (intid % 32)));
    }
    gicd.write8(IPRIORITYR.wrapping_add(u64::from(intid)), priority::KICK);
}

/// Makes a pCPU look into its mailbox, whether it runs a GPPT VM or not.
pub fn kick(pcpu: usize) {
    if has_gppt_vm(pcpu) {
        if has_events(pcpu) {
            return sdei::signal(pcpu);
        }
        let shares = shares_group1(pcpu);
        if shares {
            gppt_shared::signal(pcpu);
        }
        super::super::sysreg::publish();
        let target = target(pcpu);
        if target & BY_SPI != 0 {
            call(KICK, target);
            if shares {
                send_event();
            }
            return;
        }
        // ICC_SGI0R_EL1
        write!("icc_sgi0r_el1", u64::from(GPPT_KICK) << 24 | target);
        isb();
    } else {
        send(KICK, pcpu);
    }
}

/// Sends an SGI of Group 1 to the guest of pCPU `index`, whatever calls that pCPU otherwise.
pub fn send_to_guest(sgi: u32, index: usize) {
    super::super::sysreg::publish();
    write!(
        "icc_sgi1r_el1",
        u64::from(sgi) << 24 | sgi_target(name(index))
    );
    isb();
}

/// Resets the CPU interface for the guest: Group 1 off, nothing active (ICC_IGRPEN1_EL1,
/// ICC_AP1R\<n\>_EL1, ICC_BPR1_EL1); disables the virtual interface except for its traps.
///
/// If the common registers trap, `mask` is the guest's priority mask after a reset; else the mask
/// that the guest writes acts on nothing, and all priorities are signalled.
pub fn reset_interface(controls: Controls, mask: u8) {
    write!("icc_igrpen1_el1", 0);
    set_active_priorities([0; 4]);
    write!("icc_bpr1_el1", 0);
    set_common(Common::Control, 0);
    set_common(Common::Mask, u64::from(mask));
    // ICH_HCR_EL2.
    write!("ich_hcr_el2", u64::from(controls.ich & !HCR_ENABLE));
    let rest = read!("hcr_el2") & !ROUTING;
    write!("hcr_el2", rest | controls.hcr);
    isb();
}

/// Clears the active priorities where there are two Security states. QEMU ignores writes to
/// ICC_AP1R\<n\>_EL1 there: then each priority is dropped by a write to ICC_EOIR1_EL1, which
/// deactivates nothing in EOImode 1, and names SGI 0.
pub fn end_all() {
    set_active_priorities([0; 4]);
    isb();
    set_common(Common::Control, TWO_STEPS);
    for _ in 0..PRIORITIES {
        if common(Common::Running) == IDLE {
            break;
        }
        write!("icc_eoir1_el1", 0);
        isb();
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

/// Restores the stage 2 of this pCPU's VM, and clears the interrupt that was sent with the
/// revocation. `false`: another pCPU has the claim.
pub fn give_back(index: usize) -> bool {
    revoke::restore(index, || forget_poke(index))
}

fn forget_poke(index: usize) {
    if let Some(intid) = kick_spi(index) {
        clear_pending(intid);
    }
}

/// Takes the mark of pCPU `index`, which is this one, shares Group 1 with its guest, and looks for
/// messages next. A poke that follows a later mark may vanish with those before: whoever sets the
/// mark has revoked the stage 2, too.
pub fn answer(index: usize) -> bool {
    let marked = gppt_shared::answer(index);
    if marked {
        forget_poke(index);
    }
    marked
}

/// Whether the CPU interface signals an interrupt, regardless of the PSTATE masks (ISR_EL1).
pub fn is_signalled() -> bool {
    read!("isr_el1") & 0b11 << 6 != 0
}

/// Whether the CPU interface of pCPU `index`, which is this one, would signal EL2's kick in the state
/// in which the guest has left it. Group 0 has a separate binary point, which is 0.
pub fn lets_kick_through(index: usize) -> bool {
    let running = common(Common::Running) & 0xff;
    if shares_group1(index) {
        return gppt_shared::lets_poke_through(running);
    }
    common(Common::Mask) != 0 && running >> 1 != 0
}

/// The CPU interface of a guest, which is the physical one: saved while EL2 has it.
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// ICC_CTLR_EL1.
    control: u64,
    /// ICC_PMR_EL1.
    pub mask: u64,
    /// ICC_RPR_EL1.
    pub running: u64,
    /// ICC_IGRPEN1_EL1.
    pub group1: u64,
    /// ICC_BPR1_EL1.
    point: u64,
    /// ICC_AP1R\<n\>_EL1.
    active: [u64; 4],
}

impl Interface {
    /// The state after a reset.
    pub const RESET: Self = Self {
        control: 0,
        mask: 0,
        running: 0xff,
        group1: 0,
        point: 0,
        active: [0; 4],
    };

    /// Reads the registers that decide which interrupts reach the guest.
    pub fn look() -> Self {
        Self {
            mask: common(Common::Mask),
            running: common(Common::Running),
            group1: group1(),
            ..Self::RESET
        }
    }

    /// Saves the CPU interface and takes it over for EL2, with interrupts routed to EL2. Group 1,
    /// which is the guest's, is disabled.
    pub fn save() -> Self {
        let seen = Self::look();
        let control = common(Common::Control);
        write!("icc_igrpen1_el1", 0);
        // With CBPR, ICC_BPR1_EL1 would read as something else.
        set_common(Common::Control, 0);
        let kept = Self {
            control,
            point: read!("icc_bpr1_el1"),
            active: active_priorities(),
            ..seen
        };
        set_active_priorities([0; 4]);
        set_common(Common::Mask, 0xff);
        route_to_el2();
        kept
    }

    /// Restores the CPU interface, with interrupts routed to the guest.
    pub fn restore(&self, controls: Controls) {
        set_active_priorities(self.active);
        write!("icc_bpr1_el1", self.point);
        set_common(Common::Mask, self.mask);
        set_common(Common::Control, self.control);
        restore_group1(self.group1);
        route_to_guest(controls);
    }
}

/// Reads ICC_AP1R\<n\>_EL1.
fn active_priorities() -> [u64; 4] {
    let bits = priority_bits();
    let mut active = [read!("icc_ap1r0_el1"), 0, 0, 0];
    if bits >= 6 {
        active[1] = read!("icc_ap1r1_el1");
    }
    if bits >= 7 {
        active[2] = read!("icc_ap1r2_el1");
        active[3] = read!("icc_ap1r3_el1");
    }
    active
}

fn set_active_priorities(active: [u64; 4]) {
    let bits = priority_bits();
    write!("icc_ap1r0_el1", active[0]);
    if bits >= 6 {
        write!("icc_ap1r1_el1", active[1]);
    }
    if bits >= 7 {
        write!("icc_ap1r2_el1", active[2]);
        write!("icc_ap1r3_el1", active[3]);
    }
}

impl Gic {
    /// Puts EL2's private interrupts in `own` into Group 0, and starts the CPU interface for them.
    pub(super) fn claim_for_gppt(&self, own: u32) {
        if own == 0 {
            // EL2 has none, and what is there of Group 0 is the firmware's.
            set_common(Common::Control, 0);
            restore_group1(0);
            return gppt_shared::start(has_one_state(self.frames.gicd()));
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
        write!("icc_ctlr_el1", 0);
        write!("icc_bpr0_el1", 0);
        write!("icc_igrpen0_el1", 1);
        write!("icc_igrpen1_el1", 0);
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

    /// Returns what performs writes for the filter. [`Filtered::settle`] comes after them.
    #[inline(always)]
    pub const fn filtered(&self) -> Filtered<'_> {
        Filtered {
            gic: self,
            distributor: false,
            redistributor: false,
        }
    }

    /// Waits until interrupts that were disabled are so.
    pub fn settle_all(&self) {
        self.frames.settle(0);
        self.frames.settle(32);
    }
}

/// Performs writes for the filter of a GPPT VM.
#[derive(Debug)]
pub struct Filtered<'a> {
    gic: &'a Gic,
    distributor: bool,
    redistributor: bool,
}

impl gppt::Board for Filtered<'_> {
    #[inline(never)]
    fn write(&mut self, write: Write) {
        match write.frame {
            gppt::Frame::Distributor => self.distributor = true,
            gppt::Frame::Redistributor => self.redistributor = true,
        }
        let frame = self.gic.frame_of(write.frame);
        match write.size {
            8 => frame.write64(write.offset, write.value),
            1 => frame.write8(write.offset, write.value as u8),
            _ => frame.write(write.offset, write.value as u32),
        }
    }
}

impl Filtered<'_> {
    /// Waits until the writes have arrived: what follows them goes another way, for example the
    /// guest's end of an interrupt that it has just made active. A frame answers a read after what
    /// was written to it before.
    #[inline(never)]
    pub fn settle(&self) {
        if self.distributor {
            self.gic.frames.gicd().read(bank::SET_ACTIVE);
        }
        if self.redistributor {
            let (frame, at) = self.gic.frames.bank(bank::SET_ACTIVE, 0);
            frame.read(at);
        }
        dsb();
    }
}

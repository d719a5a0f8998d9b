//! The pCPU of a GPPT VM where Group 0 is the firmware's, and EL2 and the guest share Group 1
//! (`docs/adr/0023-gppt-under-firmware.md`). EL2 relies on no interrupt there: what the guest has
//! active keeps them away, also while EL2 has the pCPU. A message comes with a mark, an interrupt
//! (the poke) and an event (SEV). The poke wakes a guest that sleeps, and EL2, unless the guest has
//! something active: then EL2 waits for the event.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bulkhead_abi::plan::MAX_PCPUS;
use bulkhead_core::gppt::{Common, priority};

use super::super::cpu;
use super::super::sysreg::{isb, read, write};
use super::gppt_interface::{
    IDLE, common, group1, priority_bits, restore_group1, route_to_el2, set_common,
};

/// Whether a message has been sent to a pCPU that it has not looked for.
static SIGNALLED: [AtomicBool; MAX_PCPUS] = [const { AtomicBool::new(false) }; MAX_PCPUS];

/// Whether priority mask and running priority are shown as they are on the board, although those
/// of interrupts are not. It is so on all pCPUs or on none.
static SHOWS_BOARD: AtomicBool = AtomicBool::new(false);

/// The largest value of ICC_BPR1_EL1 with which the poke pre-empts an interrupt of the guest's:
/// priorities of Non-secure software differ in bit 6, where the poke has 0x80 and the guest's have at
/// least 0xc0.
const SEPARATES: u64 = 6;

/// Finds out in which way the CPU interface shows priorities. Called once on each pCPU.
///
/// With two Security states, priorities of Non-secure software are halved and in the upper half. The
/// mask is shown in the same way, or as it is, as the firmware has SCR_EL3.FIQ (IHI 0069H, 4.8.6).
/// Where it is shown in that way, the lowest bit that there is does not stay.
pub(super) fn start(one_state: bool) {
    restore_group1(0);
    set_common(Common::Mask, 0x100 >> priority_bits());
    let as_it_is = common(Common::Mask) != 0;
    SHOWS_BOARD.store(as_it_is && !one_state, Relaxed);
    set_common(Common::Mask, 0xff);
}

/// Converts a priority as interrupts have it to what the CPU interface shows.
pub fn to_shown(nonsecure: u8) -> u8 {
    if SHOWS_BOARD.load(Relaxed) {
        priority::to_board(nonsecure)
    } else {
        nonsecure
    }
}

/// The least urgent priority mask that the guest's interrupts do not pass, and the poke does: the
/// most urgent priority that a guest has, as the CPU interface shows it.
fn most_urgent() -> u8 {
    to_shown(priority::MOST_URGENT)
}

/// Converts a mask or running priority that the CPU interface shows to what the guest sees.
pub fn to_guest(which: Common, shown: u64) -> u64 {
    let nonsecure = if SHOWS_BOARD.load(Relaxed) && which != Common::Control {
        which.to_guest(shown)
    } else {
        shown
    };
    which.to_guest(nonsecure)
}

/// Whether the poke is signalled while `running` is the running priority that is shown, with the
/// enable and the binary point that the guest has set. If not, neither is any interrupt of the
/// guest's.
pub(super) fn lets_poke_through(running: u64) -> bool {
    let separate = running >= u64::from(most_urgent()) && read!("icc_bpr1_el1") & 7 <= SEPARATES;
    group1() != 0 && (separate || running == IDLE)
}

/// Marks pCPU `index` before it is called.
pub(super) fn signal(index: usize) {
    SIGNALLED[index % MAX_PCPUS].store(true, Relaxed);
}

/// Takes the mark of pCPU `index`, which is this one and looks for messages next.
pub(super) fn answer(index: usize) -> bool {
    SIGNALLED[index % MAX_PCPUS].swap(false, Relaxed)
}

/// Waits for a mark of pCPU `index`, which is this one, while the guest's group is disabled.
pub(super) fn wait(index: usize) {
    let is_marked = || SIGNALLED[index % MAX_PCPUS].load(Relaxed);
    if common(Common::Running) != IDLE {
        while !is_marked() {
            // The event register is set by an SEV that came before.
            cpu::wait_for_event();
        }
        return;
    }
    let (routing, mask) = (read!("hcr_el2"), common(Common::Mask));
    route_to_el2();
    set_common(Common::Mask, u64::from(most_urgent()));
    restore_group1(1);
    // The poke follows the mark.
    if !is_marked() {
        cpu::wait();
    }
    restore_group1(0);
    set_common(Common::Mask, mask);
    write!("hcr_el2", routing);
    isb();
}

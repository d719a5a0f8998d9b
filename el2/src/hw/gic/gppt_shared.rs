//! The pCPU of a GPPT VM where Group 0 is the firmware's, and EL2 and the guest share Group 1
//! (`docs/adr/0023-gppt-under-firmware.md`). EL2 has no interrupts there: what the guest has active
//! would keep them away, also while EL2 has the pCPU. A message comes with a flag and an event
//! (SEV), for which EL2 waits; only a guest that sleeps is woken by an interrupt, the poke.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bulkhead_abi::plan::MAX_PCPUS;
use bulkhead_core::gppt::{Common, priority};

use super::super::sysreg::{read, send_event};
use super::gppt::{common, group1, priority_bits, restore_group1, set_common};

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

/// Converts a mask or running priority that the CPU interface shows to what the guest sees.
pub fn to_guest(which: Common, shown: u64) -> u64 {
    let nonsecure = if SHOWS_BOARD.load(Relaxed) {
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
    let least = if SHOWS_BOARD.load(Relaxed) {
        priority::to_board(priority::MOST_URGENT)
    } else {
        priority::MOST_URGENT
    };
    let separate = running >= u64::from(least) && read!("icc_bpr1_el1") & 7 <= SEPARATES;
    group1() != 0 && (separate || running == 0xff)
}

/// Marks pCPU `index` before it is called.
pub(super) fn signal(index: usize) {
    SIGNALLED[index % MAX_PCPUS].store(true, Relaxed);
}

/// Takes the mark of pCPU `index`, which is this one and looks for messages next.
pub fn answer(index: usize) -> bool {
    SIGNALLED[index % MAX_PCPUS].swap(false, Relaxed)
}

/// Waits for a mark of pCPU `index`, which is this one.
pub(super) fn wait(index: usize) {
    while !SIGNALLED[index % MAX_PCPUS].load(Relaxed) {
        // SAFETY: [R-SYSREG] a hint. The event register is set by an SEV that comes before it.
        unsafe { core::arch::asm!("wfe", options(nostack, preserves_flags)) }
    }
}

/// Wakes a pCPU that waits for its mark, after that was set.
pub(super) fn wake() {
    send_event();
}

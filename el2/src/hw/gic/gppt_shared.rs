//! The CPU interface of a GICv3 that a guest and EL2 share, because Group 0 is the firmware's
//! (`docs/adr/0023-gppt-under-firmware.md`). The guest has Group 1, with its priorities in the upper
//! half; EL2's interrupts have priority 0. While EL2 has the pCPU, the priority mask keeps the
//! guest's interrupts away.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use bulkhead_core::gppt::{Common, Controls, TWO_STEPS, priority};

use super::super::sysreg::{isb, read, write};
use super::gppt::common;
use super::gppt::{
    group1, priority_bits, restore_group1, route_to_el2, route_to_guest, set_common,
};

/// The priority mask that lets EL2's interrupts through and none of the guest's. It is the same on
/// all pCPUs.
static EL2_ONLY: AtomicU8 = AtomicU8::new(priority::MOST_URGENT);

/// The largest value of ICC_BPR1_EL1 with which EL2's interrupts pre-empt the guest's: priorities of
/// Non-secure software differ in bit 6 then, where EL2's are 0x80 and the guest's at least 0xc0.
const SEPARATES: u64 = 6;

/// Starts the CPU interface for EL2. Called once on each pCPU.
///
/// With two Security states, priorities of Non-secure software are halved and in the upper half; the
/// mask is shown in the same way, or as it is, as the firmware has SCR_EL3.FIQ (IHI 0069H, 4.8.6).
/// Where it is shown in that way, the lowest bit that there is does not stay.
pub(super) fn start(one_state: bool) {
    restore_group1(0);
    let lowest = 0x100u64 >> priority_bits();
    set_common(Common::Mask, lowest);
    let as_it_is = common(Common::Mask) != 0;
    let only = if as_it_is && !one_state {
        priority::to_board(priority::MOST_URGENT)
    } else {
        priority::MOST_URGENT
    };
    EL2_ONLY.store(only, Relaxed);
    take_over();
}

/// Whether the mask and the running priority are shown as they are on the board, although those of
/// interrupts are not.
pub fn shows_board_priorities() -> bool {
    EL2_ONLY.load(Relaxed) != priority::MOST_URGENT
}

/// Gives the CPU interface to EL2: interrupts are routed to it and end in two steps, and none of the
/// guest's arrives.
pub fn take_over() {
    write!("icc_igrpen1_el1", 0);
    write!("icc_bpr1_el1", 0);
    set_common(Common::Control, TWO_STEPS);
    set_common(Common::Mask, u64::from(EL2_ONLY.load(Relaxed)));
    route_to_el2();
    restore_group1(1);
}

/// Whether the poke is signalled, with the enable and the binary point that the guest has set. If
/// not, neither is any interrupt of the guest's.
pub(super) fn lets_poke_through(idle: bool) -> bool {
    group1() != 0 && (idle || read!("icc_bpr1_el1") & 7 <= SEPARATES)
}

/// What EL2 changes of the guest's CPU interface while it has the pCPU. Active priorities stay: EL2's
/// are more urgent.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    /// ICC_IGRPEN1_EL1.
    pub group1: u64,
    /// ICC_BPR1_EL1.
    point: u64,
}

impl Shared {
    /// The state after a reset.
    pub const RESET: Self = Self {
        group1: 0,
        point: 0,
    };

    /// Saves the state and takes the CPU interface over.
    pub fn save() -> Self {
        let kept = Self {
            group1: group1(),
            point: read!("icc_bpr1_el1"),
        };
        take_over();
        kept
    }

    /// Gives the CPU interface to the guest.
    pub fn restore(&self, controls: Controls) {
        write!("icc_igrpen1_el1", 0);
        write!("icc_bpr1_el1", self.point);
        set_common(Common::Control, 0);
        set_common(Common::Mask, 0xff);
        route_to_guest(controls);
        isb();
        restore_group1(self.group1);
    }
}

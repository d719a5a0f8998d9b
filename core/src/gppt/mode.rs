//! The modes of a GPPT VM: which part of the CPU interface the guest has, and how EL2 reclaims the
//! pCPU.

use crate::vgic::Version;

/// HCR_EL2.FMO: Group 0 interrupts are taken to EL2.
const FMO: u64 = 1 << 3;
/// HCR_EL2.TWI: WFI traps.
const TWI: u64 = 1 << 13;
/// ICH_HCR_EL2.TC: the registers that both groups have in common trap: PMR, RPR, CTLR, DIR, SGIs.
const TC: u32 = 1 << 10;
/// ICH_HCR_EL2.TALL0: the registers of Group 0 trap.
const TALL0: u32 = 1 << 11;
/// ICH_HCR_EL2.TDIR: writes to ICC_DIR_EL1 trap.
const TDIR: u32 = 1 << 14;

/// The way in which a GPPT VM takes its physical interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// GICv3 with one Security state. Group 0 stays EL2's: the kick is a FIQ that nothing at EL1
    /// masks. In return, the guest's priority mask is virtual and masks nothing, and ending an
    /// interrupt deactivates it (EOImode 0).
    Recoverable,
    /// As [`Self::Recoverable`], but the registers that both groups have in common trap: priority
    /// mask and EOImode are exact, at an exit for each access.
    PmrTrapped,
    /// GICv3 with one Security state. Priority mask and EOImode are the physical ones, without
    /// exits, and Group 0 interrupts are taken to EL1, too. EL2 does not see the guest's SGIs, so
    /// no other pCPU may have an SGI of any group enabled.
    PmrDirect,
    /// GICv2. The frame of the CPU interface is mapped into the VM.
    V2,
    /// GICv3, also where Group 0 is the firmware's: as [`Self::Recoverable`] to the guest, but EL2's
    /// interrupts are in Group 1 like the guest's, which could keep them away.
    Revocable,
    /// As [`Self::PmrTrapped`] to the guest, and else as [`Self::Revocable`].
    RevocableTrapped,
}

/// The way of reclaim that the plan chooses for a GPPT VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// WFI traps, and EL2 sleeps on behalf of the guest with its own masks open: an exit for each
    /// WFI.
    Guaranteed,
    /// The guest executes WFI without an exit. If it masks interrupts and sleeps, only a reset of
    /// the board gets the pCPU back.
    Cooperative,
    /// The firmware interrupts the guest by an event (SDEI). For boards on which Group 0 is the
    /// firmware's.
    Sdei,
}

/// The way in which another pCPU makes the pCPU of a GPPT VM come to EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// A Group 0 SGI, which EL1 cannot mask.
    Group0,
    /// Revoke and poke: revoking stage 2, and an interrupt (an SGI on a GICv2, else an SPI) that
    /// wakes the guest. Its next fetch or access faults to EL2.
    RevokeAndPoke,
}

/// The way in which the distributor looks to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// As to Non-secure software: the guest's priorities are the upper half of the board's.
    Upper,
    /// Priorities as they are on the board.
    Plain,
}

/// The control bits that differ from those of a VM with a vGIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controls {
    /// Those of HCR_EL2.FMO, IMO and TWI that are set.
    pub hcr: u64,
    /// ICH_HCR_EL2. En stays 0: there are no virtual interrupts.
    pub ich: u32,
}

impl Mode {
    /// Returns the name, as plans show it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recoverable => "recoverable",
            Self::PmrTrapped => "pmr-trapped",
            Self::PmrDirect => "pmr-direct",
            Self::V2 => "gicv2",
            Self::Revocable => "revocable",
            Self::RevocableTrapped => "revocable-pmr-trapped",
        }
    }

    /// Whether EL2's interrupts are in Group 0 on the pCPU of such a VM, and the guest's in Group 1.
    pub const fn el2_in_group0(self) -> bool {
        !matches!(self, Self::V2 | Self::Revocable | Self::RevocableTrapped)
    }

    /// Whether accesses to the registers trap that both groups have in common.
    pub const fn traps_common(self) -> bool {
        matches!(self, Self::PmrTrapped | Self::RevocableTrapped)
    }

    /// Returns the architecture of the GIC that the mode is for.
    pub const fn version(self) -> Version {
        match self {
            Self::V2 => Version::V2,
            _ => Version::V3,
        }
    }

    /// Returns the control bits that EL2 sets while the guest runs. IMO is 0 in all modes: Group 1
    /// interrupts are taken to EL1.
    ///
    /// With FMO=1 the registers of Group 1 are the physical ones, those of Group 0 and the common
    /// ones are virtual, and writes that send SGIs trap (IHI 0069H, 8.1.2, "the ICV registers", and
    /// 12.2, access of each). With FMO=0 all are physical. `lent`: other VMs have SPIs. A write to
    /// ICC_DIR_EL1 deactivates any of them, whichever pCPU has acknowledged it.
    pub const fn controls(self, reclaim: Reclaim, lent: bool) -> Controls {
        let hcr = match self {
            Self::Recoverable | Self::PmrTrapped => FMO,
            Self::Revocable | Self::RevocableTrapped => FMO,
            Self::PmrDirect | Self::V2 => 0,
        };
        let ich = match self {
            Self::PmrTrapped | Self::RevocableTrapped => TC,
            Self::PmrDirect if lent => TALL0 | TDIR,
            Self::PmrDirect => TALL0,
            Self::Recoverable | Self::Revocable | Self::V2 => 0,
        };
        let twi = match reclaim {
            Reclaim::Guaranteed => TWI,
            Reclaim::Cooperative | Reclaim::Sdei => 0,
        };
        Controls {
            hcr: hcr | twi,
            ich,
        }
    }

    /// Returns the way in which EL2 reclaims the pCPU.
    pub const fn kick(self) -> Kick {
        match self {
            Self::Recoverable | Self::PmrTrapped => Kick::Group0,
            Self::PmrDirect | Self::V2 | Self::Revocable | Self::RevocableTrapped => {
                Kick::RevokeAndPoke
            }
        }
    }

    /// Whether EL2 can reclaim the pCPU by an event of the firmware, too; what the guest masks does
    /// not matter then.
    pub const fn has_events(self) -> bool {
        matches!(self.kick(), Kick::Group0)
    }

    /// Returns the guest's view of the distributor. Where its priority mask is the physical one,
    /// its priorities are, too.
    pub const fn view(self) -> View {
        match self {
            Self::PmrDirect | Self::V2 => View::Plain,
            _ => View::Upper,
        }
    }

    /// Whether writes that send SGIs trap to EL2. Where they do not, no other pCPU may have an SGI
    /// enabled: where there is one Security state, `ICC_SGI0R_EL1` and `ICC_ASGI1R_EL1` can send
    /// those of Group 0, too (IHI 0069H, 12.2).
    pub const fn filters_sgis(self) -> bool {
        !matches!(self, Self::PmrDirect)
    }

    /// Returns, as text, what a guest can do to keep EL2 from reclaiming the pCPU.
    pub const fn escapes(self, reclaim: Reclaim) -> &'static str {
        match (self, reclaim) {
            (Self::Recoverable | Self::PmrTrapped, _) => {
                "forging active priorities in ICC_AP1R<n>_EL1"
            }
            (_, Reclaim::Guaranteed) => {
                "faulting without end at vectors that its own tables do not map"
            }
            (_, Reclaim::Cooperative | Reclaim::Sdei) => {
                "closing its masks and sleeping, or faulting without end at vectors that its own tables do not map"
            }
        }
    }

    /// Returns, as text, what a guest with a vGIC can do and a guest in this mode cannot.
    pub const fn lacks(self) -> &'static str {
        match self {
            Self::Recoverable => {
                "its priority mask (ICC_PMR_EL1) masks nothing, EOImode 1 ends interrupts as 0 does, and it has half of the GIC's priorities, 16 where there are 32, the lowest of which is never signalled"
            }
            Self::Revocable => {
                "its priority mask (ICC_PMR_EL1) masks nothing, EOImode 1 ends interrupts as 0 does, and it has a quarter of the GIC's priorities, 8 where there are 32, the lowest of which is never signalled"
            }
            Self::RevocableTrapped => {
                "each access to ICC_PMR_EL1, ICC_CTLR_EL1 or ICC_DIR_EL1 is an exit, and it has a quarter of the GIC's priorities, 8 where there are 32, the lowest of which is never signalled"
            }
            Self::PmrTrapped => {
                "each access to ICC_PMR_EL1, ICC_CTLR_EL1 or ICC_DIR_EL1 is an exit, and it has half of the GIC's priorities, 16 where there are 32, the lowest of which is never signalled"
            }
            Self::PmrDirect => {
                "its SGIs do not trap: it knows its CPU by the board's MPIDR, there is no other GPPT VM, and CPUs call each other by SPIs; it has all of the GIC's priorities, the lowest of which is never signalled"
            }
            Self::V2 => {
                "SGIs have the board's number of their sender, each write to GICC_DIR is an exit, and it has all of the GIC's priorities, or half of them beside firmware at EL3, the lowest of which is never signalled"
            }
        }
    }

    /// Returns why the mode is not possible, as a sentence; `None` if it is possible. `version` is
    /// that of the board's GIC, `one_state` says whether it has one Security state
    /// (`GICD_CTLR.DS`), `strangers` whether there is another GPPT VM.
    pub fn refusal(
        self,
        version: Version,
        one_state: bool,
        strangers: bool,
    ) -> Option<&'static str> {
        if version != self.version() {
            return Some(match version {
                Version::V2 => "the board has a GICv2, whose CPU interface has no such controls",
                Version::V3 => {
                    "the board has a GICv3, whose CPU interface is not a frame that a VM could have"
                }
            });
        }
        if self.el2_in_group0() && !one_state {
            return Some(
                "Group 0 belongs to the Secure side of the board (GICD_CTLR.DS is 0), so EL2 has no interrupt of another group than the guest's",
            );
        }
        if !self.filters_sgis() && strangers {
            return Some("its SGIs do not trap, and another GPPT VM could be sent them");
        }
        None
    }
}

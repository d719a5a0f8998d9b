//! How much of the CPU interface a VM has to itself, and how EL2 gets the pCPU back.

use crate::vgic::Version;

/// HCR_EL2.FMO: Group 0 interrupts come to EL2.
const FMO: u64 = 1 << 3;
/// HCR_EL2.TWI: WFI traps.
const TWI: u64 = 1 << 13;
/// ICH_HCR_EL2.TC: registers that both groups have in common trap: PMR, RPR, CTLR, DIR, SGIs.
const TC: u32 = 1 << 10;
/// ICH_HCR_EL2.TALL0: registers of Group 0 trap.
const TALL0: u32 = 1 << 11;
/// ICH_HCR_EL2.TDIR: writes to ICC_DIR_EL1 trap.
const TDIR: u32 = 1 << 14;

/// How a VM takes its physical interrupts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// GICv3 with one Security state. Group 0 stays EL2's: the kick is a FIQ that nothing at EL1 masks. For that the
    /// guest's priority mask is virtual and masks nothing; ends of interrupts deactivate (EOImode 0).
    Recoverable,
    /// The same, and the registers that both groups have in common trap: mask and EOImode are exact, at an exit each.
    PmrTrapped,
    /// GICv3 with one Security state: the mask and EOImode are the board's, without exits, and Group 0 comes to EL1, too. SGIs
    /// are not seen, so no pCPU but its own may have an SGI enabled, of whichever group.
    PmrDirect,
    /// GICv2: the VM has the CPU interface's frame.
    V2,
}

/// What the plan wants of a VM that takes its interrupts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// EL2 waits on behalf of the guest, with its own masks open: an exit for each WFI.
    Guaranteed,
    /// WFI is the guest's. If it closes its masks and sleeps, only a reset of the board helps.
    Cooperative,
    /// The board's firmware interrupts whatever runs there, by an event (SDEI). For boards on which Group 0 is the firmware's.
    Sdei,
}

/// How another pCPU makes one come to EL2 that runs such a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// A Group 0 SGI, which EL1 cannot mask.
    Group0,
    /// Taking stage 2 away, and an SGI that wakes: the next fetch or access faults to EL2.
    RevokeAndPoke,
}

/// How the distributor looks to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// As to Non-secure software: the guest's priorities are the upper half of the board's.
    Upper,
    /// Priorities as they are on the board.
    Plain,
}

/// Bits that differ from those with a vGIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controls {
    /// Of HCR_EL2.FMO, IMO, TWI those that are set.
    pub hcr: u64,
    /// ICH_HCR_EL2; En stays 0, there are no virtual interrupts.
    pub ich: u32,
}

impl Mode {
    /// Name, as plans show it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recoverable => "recoverable",
            Self::PmrTrapped => "pmr-trapped",
            Self::PmrDirect => "pmr-direct",
            Self::V2 => "gicv2",
        }
    }

    /// Architecture of the GIC that the mode is for.
    pub const fn version(self) -> Version {
        match self {
            Self::V2 => Version::V2,
            _ => Version::V3,
        }
    }

    /// What EL2 sets while the guest runs. IMO is 0 in all: Group 1 interrupts come to EL1.
    ///
    /// With FMO=1 the registers of Group 1 are the board's, those of Group 0 and the common ones are virtual, and
    /// writes that send SGIs trap (IHI 0069H, 8.1.2, "the ICV registers", and 12.2, access of each). With both 0
    /// all are the board's. `lent`: other VMs have SPIs. A write to ICC_DIR_EL1 deactivates any of them, whoever has taken it.
    pub const fn controls(self, reclaim: Reclaim, lent: bool) -> Controls {
        let hcr = match self {
            Self::Recoverable | Self::PmrTrapped => FMO,
            Self::PmrDirect | Self::V2 => 0,
        };
        let ich = match self {
            Self::PmrTrapped => TC,
            Self::PmrDirect if lent => TALL0 | TDIR,
            Self::PmrDirect => TALL0,
            Self::Recoverable | Self::V2 => 0,
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

    /// How EL2 gets the pCPU back.
    pub const fn kick(self) -> Kick {
        match self {
            Self::Recoverable | Self::PmrTrapped => Kick::Group0,
            Self::PmrDirect | Self::V2 => Kick::RevokeAndPoke,
        }
    }

    /// EL2 can get the pCPU back by an event of the firmware, too: what the guest masks does not count then.
    pub const fn has_events(self) -> bool {
        matches!(self.kick(), Kick::Group0)
    }

    /// What the guest sees of the distributor. Where its priority mask is the board's, its priorities are, too.
    pub const fn view(self) -> View {
        match self {
            Self::Recoverable | Self::PmrTrapped => View::Upper,
            Self::PmrDirect | Self::V2 => View::Plain,
        }
    }

    /// Writes that send SGIs come to EL2. Where they do not, no other pCPU may have an SGI enabled: those of Group 0 can be sent,
    /// too, by `ICC_SGI0R_EL1` and `ICC_ASGI1R_EL1` where there is one Security state (IHI 0069H, 12.2).
    pub const fn filters_sgis(self) -> bool {
        !matches!(self, Self::PmrDirect)
    }

    /// What a guest does from which EL2 does not get the pCPU back.
    pub const fn escapes(self, reclaim: Reclaim) -> &'static str {
        match (self, reclaim) {
            (Self::Recoverable | Self::PmrTrapped, _) => {
                "forging active priorities in ICC_AP1R<n>_EL1"
            }
            (Self::PmrDirect | Self::V2, Reclaim::Guaranteed) => {
                "faulting without end at vectors that its own tables do not map"
            }
            (Self::PmrDirect | Self::V2, Reclaim::Cooperative | Reclaim::Sdei) => {
                "closing its masks and sleeping, or faulting without end at vectors that its own tables do not map"
            }
        }
    }

    /// What a guest cannot do in this mode that it can with a vGIC.
    pub const fn lacks(self) -> &'static str {
        match self {
            Self::Recoverable => {
                "its priority mask (ICC_PMR_EL1) masks nothing, and EOImode 1 ends interrupts as 0 does"
            }
            Self::PmrTrapped => {
                "each access to ICC_PMR_EL1, ICC_CTLR_EL1 or ICC_DIR_EL1 is an exit"
            }
            Self::PmrDirect => {
                "its SGIs do not trap: it knows its CPU by the board's MPIDR, no other VM takes its interrupts itself, and CPUs call each other by SPIs"
            }
            Self::V2 => {
                "SGIs have the board's number of their sender, and each write to GICC_DIR is an exit"
            }
        }
    }

    /// Why the mode is not possible, as a sentence; `None` if it is. `version` is that of the board's GIC, `one_state`
    /// whether it has one Security state (`GICD_CTLR.DS`), `strangers` whether another VM takes its interrupts itself.
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
        if matches!(version, Version::V3) && !one_state {
            return Some(
                "Group 0 belongs to the Secure side of the board (GICD_CTLR.DS is 0), so EL2 has no interrupt of another group than the guest's",
            );
        }
        if !self.filters_sgis() && strangers {
            return Some(
                "its SGIs do not trap, and another VM that takes its interrupts itself could be sent them",
            );
        }
        None
    }
}

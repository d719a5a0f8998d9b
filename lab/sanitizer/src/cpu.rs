//! State of one CPU that the rules need.

use crate::decode::{Register, Scope, Tlbi};
use crate::memory::{ByNumber, Numbers, Store};
use crate::walks::Walks;

/// Most CPUs that are told apart: a bit for each.
pub const MOST: usize = 64;

/// The address in TTBR0_EL2 and VTTBR_EL2.
pub const ROOT: u64 = 0x0000_ffff_ffff_fffe;

/// Registers of a CPU when it is first seen at EL2.
#[derive(Clone, Copy, Debug, Default)]
pub struct Start {
    /// MPIDR_EL1
    pub mpidr: u64,
    /// MIDR_EL1
    pub midr: u64,
    /// SCTLR_EL2
    pub sctlr: u64,
    /// TTBR0_EL2
    pub ttbr0: u64,
    /// TCR_EL2
    pub tcr: u64,
    /// HCR_EL2
    pub hcr: u64,
    /// VTTBR_EL2
    pub vttbr: u64,
    /// VTCR_EL2
    pub vtcr: u64,
}

/// A register write that no context synchronization event has followed.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// The register.
    pub register: Register,
    /// Address of the instruction.
    pub pc: u64,
    /// Bits that changed.
    pub changed: u64,
}

/// A TLBI that is not complete and synchronised.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The TLBI.
    pub tlbi: Tlbi,
    /// Xt.
    pub xt: u64,
    /// Address of the instruction.
    pub pc: u64,
    /// VMID and root that VTTBR_EL2 named.
    pub vmid: u16,
    /// Entries in memory that it drops: their physical addresses.
    pub locations: Vec<u64>,
    /// A DSB has completed it.
    pub complete: bool,
}

/// A store that others may not see yet.
#[derive(Clone, Copy, Debug)]
pub struct Unseen {
    /// Physical address.
    pub pa: u64,
    /// Address of the instruction.
    pub pc: u64,
}

/// Start of a CPU by another.
#[derive(Clone, Copy, Debug)]
pub struct Parent {
    /// The CPU that started it.
    pub cpu: u8,
    /// That CPU's clock then.
    pub at: u64,
    /// Its stores before this time on its clock were complete.
    pub complete: u64,
}

/// A CPU.
#[derive(Debug, Default)]
pub struct Cpu {
    /// Registers, as written last.
    pub now: Start,
    /// Writes without synchronization.
    pub pending: Vec<Pending>,
    /// Clock of barriers: stores before a DSB have a smaller time than those after it.
    pub clock: u64,
    /// Stores before this time are complete for all PEs.
    complete: u64,
    /// Stores before this time are complete for this PE.
    complete_here: u64,
    /// TLBIs that are not complete and synchronised.
    pub tlbis: Vec<Issued>,
    /// Lines that were cleaned or invalidated since the last DSB.
    pub maintained: Vec<u64>,
    /// IC instructions since the last DSB: when, and how far.
    pub invalidating: Vec<(u64, Scope)>,
    /// Time at which its instruction cache was last invalidated.
    pub invalidated: u64,
    /// An AT whose result is not synchronised.
    pub translation: Option<u64>,
    /// Its TLB has no entries of EL2 from before its start.
    pub el2_dropped: bool,
    /// The map that its TLB may still hold entries of.
    pub former_root: Option<u64>,
    /// VMIDs without old entries; with the root that they were used with.
    pub vmids: ByNumber<Option<u64>>,
    /// No VMID has old entries, but those that `vmids` tells otherwise of.
    pub all_dropped: bool,
    /// The last store to shared memory that no DSB has followed.
    pub unseen: Option<Unseen>,
    /// The same for DMB.
    pub unordered: Option<Unseen>,
    /// Its start by another CPU.
    pub parent: Option<Parent>,
    /// A write to active states that may be under way.
    pub posted: Option<Posted>,
    /// Pages of its code that have been looked at since its map was another one.
    pub executed: Numbers,
    /// The one of them that was looked at last.
    pub executes: Option<u64>,
    /// VMID of the guest that was entered last.
    pub last_guest: Option<u16>,
    /// Address at which an SGI was acknowledged that no DSB has followed.
    pub acknowledged: Option<u64>,
    /// Clocks of all CPUs at its last DSB.
    pub seen: Vec<u64>,
    /// A DSB has waited since that guest ran; and ISR_EL1 was read behind it.
    pub waited: bool,
    /// As [`Self::waited`] says.
    pub looked: bool,
    /// Its DSBs of loads and stores that reach all PEs.
    pub barriers: u64,
    /// Walks of EL1&0, on a core that does some by speculation.
    pub walks: Walks,
    /// VMPIDR_EL2 of the vCPU of each VMID whose translations of stage 1 the TLB may hold.
    pub stage1_of: ByNumber<u64>,
}

/// A write to active states of the GIC.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// First byte of the frame.
    pub frame: u64,
    /// Address of the instruction.
    pub pc: u64,
    /// A register of the frame was read since.
    pub read_back: bool,
}

impl Cpu {
    /// A CPU that has just been seen.
    pub fn new(start: Start) -> Self {
        Self {
            now: start,
            ..Self::default()
        }
    }

    /// Whether its MMU is on.
    pub fn translates(&self) -> bool {
        self.now.sctlr & 1 == 1
    }

    /// Physical address of its own root table.
    pub fn root(&self) -> u64 {
        self.now.ttbr0 & ROOT
    }

    /// Physical address of the stage-2 root, and VMID.
    pub fn guest(&self) -> (u64, u16) {
        let root = self.now.vttbr & ROOT;
        (root, (self.now.vttbr >> 48) as u16)
    }

    /// A store by this CPU, number `cpu`, now.
    pub fn store(&self, cpu: usize, pc: u64) -> Store {
        Store {
            cpu: cpu as u8,
            at: self.clock,
            pc,
        }
    }

    /// A DSB has waited for stores.
    pub fn wait_for_stores(&mut self, scope: Scope) {
        self.clock += 1;
        self.complete_here = self.clock;
        if scope == Scope::Shared {
            self.complete = self.clock;
        }
    }

    /// Whether a store of this CPU is complete, as far as `scope` asks.
    pub fn has_completed(&self, store: Store, scope: Scope) -> bool {
        let complete = match scope {
            Scope::Own => self.complete_here,
            Scope::Shared => self.complete,
        };
        store.at < complete
    }

    /// It starts another CPU. Returns the stores that that one may count on.
    pub fn start_other(&mut self, cpu: usize) -> Parent {
        let parent = Parent {
            cpu: cpu as u8,
            at: self.clock,
            complete: self.complete,
        };
        self.clock += 1;
        parent
    }

    /// Nothing that it has done waits for synchronization that an access at EL2 relies on.
    pub fn is_quiet(&self) -> bool {
        self.pending.is_empty() && self.tlbis.is_empty() && self.former_root.is_none()
    }
}

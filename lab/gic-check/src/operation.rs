//! Operations on a VM's interrupts, one step at a time.

/// Registers that a guest reaches by MMIO; the number is that of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// GICD_CTLR.
    Control,
    /// IGROUPR.
    Group,
    /// ISENABLER.
    Enable,
    /// ICENABLER.
    Disable,
    /// ISPENDR.
    SetPending,
    /// ICPENDR.
    ClearPending,
    /// ISACTIVER.
    SetActive,
    /// ICACTIVER.
    ClearActive,
    /// IPRIORITYR, four in a word.
    Priority,
    /// ICFGR, sixteen in a word.
    Config,
    /// IROUTER (GICv3), ITARGETSR (GICv2).
    Route,
    /// CPENDSGIR (GICv2).
    ClearSgi,
    /// SPENDSGIR (GICv2).
    SetSgi,
    /// Any offset: the number is the offset divided by 4.
    Any,
}

impl Register {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Control,
        Self::Group,
        Self::Enable,
        Self::Disable,
        Self::SetPending,
        Self::ClearPending,
        Self::SetActive,
        Self::ClearActive,
        Self::Priority,
        Self::Config,
        Self::Route,
        Self::ClearSgi,
        Self::SetSgi,
        Self::Any,
    ];
}

/// A step. `cpu` and `intid` are taken modulo what there is.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// A vCPU writes a register. On a GICv3 word 0 is that of the redistributor of the vCPU `of`.
    Write {
        /// vCPU that writes.
        cpu: usize,
        /// vCPU of the redistributor.
        of: usize,
        /// The register.
        register: Register,
        /// Number of the word.
        n: u32,
        /// Value that is written.
        value: u32,
        /// If not 4: bytes of the access, where the register has such.
        size: u64,
    },
    /// ICC_SGI1R_EL1, ICC_SGI0R_EL1 or GICD_SGIR, in the form of that register.
    Sgi {
        /// vCPU that sends.
        cpu: usize,
        /// Group of the register (GICv3).
        group: usize,
        /// Value that is written.
        value: u64,
    },
    /// The line of an emulated device.
    Line {
        /// The pCPU that sees it, if one that runs a vCPU of the VM does.
        seen: Option<usize>,
        /// Its SPI.
        intid: u32,
        /// Up or down.
        up: bool,
    },
    /// An event from elsewhere makes an SPI pending.
    Post {
        /// Its INTID.
        intid: u32,
    },
    /// The input signal of a hardware interrupt of the board.
    Signal {
        /// pCPU of the interrupt, if it is private.
        cpu: usize,
        /// Index of the link.
        link: usize,
        /// Up or down.
        up: bool,
    },
    /// A vCPU acknowledges.
    Acknowledge {
        /// The vCPU.
        cpu: usize,
        /// Number of the register, of two.
        group: usize,
    },
    /// A vCPU ends what it acknowledged last.
    End {
        /// The vCPU.
        cpu: usize,
    },
    /// A vCPU deactivates one of those whose priority it has dropped.
    Deactivate {
        /// The vCPU.
        cpu: usize,
        /// Its index.
        which: usize,
    },
    /// ICC_PMR_EL1.
    Mask {
        /// The vCPU.
        cpu: usize,
        /// Value that is written.
        value: u8,
    },
    /// ICC_BPR0_EL1 or ICC_BPR1_EL1.
    Point {
        /// The vCPU.
        cpu: usize,
        /// Number of the register.
        group: usize,
        /// Value that is written.
        value: u8,
    },
    /// Group enables of the CPU interface.
    Groups {
        /// The vCPU.
        cpu: usize,
        /// Group 0 and group 1.
        enabled: [bool; 2],
    },
    /// ICC_CTLR_EL1.EOImode, when nothing is active.
    SplitEnd {
        /// The vCPU.
        cpu: usize,
        /// Ends drop the priority only.
        split: bool,
    },
    /// A pCPU gets to handle one thing that waits for it: a message, an interrupt.
    Deliver {
        /// The pCPU.
        cpu: usize,
    },
    /// All pCPUs handle all that waits, this one first, and everything is compared.
    Settle {
        /// The first pCPU.
        first: usize,
    },
    /// A vCPU ends or deactivates an interrupt whatever its state, if the guest is wild.
    Wild {
        /// The vCPU.
        cpu: usize,
        /// ICC_DIR_EL1, else an end.
        deactivate: bool,
        /// Its INTID.
        intid: u32,
    },
    /// A vCPU goes off, or comes back.
    Power {
        /// The vCPU.
        cpu: usize,
        /// On or off.
        on: bool,
    },
}

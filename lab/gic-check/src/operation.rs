//! What happens to a VM's interrupts, one step at a time.

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
        /// Who writes.
        cpu: usize,
        /// Whose redistributor.
        of: usize,
        /// Which register.
        register: Register,
        /// Which word.
        n: u32,
        /// What is written.
        value: u32,
        /// If not 4: bytes of the access, where the register has such.
        size: u64,
    },
    /// ICC_SGI1R_EL1, ICC_SGI0R_EL1 or GICD_SGIR, in the form of that register.
    Sgi {
        /// Who sends.
        cpu: usize,
        /// Group of the register (GICv3).
        group: usize,
        /// What is written.
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
        /// Which.
        intid: u32,
    },
    /// The input signal of a hardware interrupt of the board.
    Signal {
        /// Whose, if it is private.
        cpu: usize,
        /// Which of the links.
        link: usize,
        /// Up or down.
        up: bool,
    },
    /// A vCPU acknowledges.
    Acknowledge {
        /// Who.
        cpu: usize,
        /// Which of the two registers.
        group: usize,
    },
    /// A vCPU ends what it acknowledged last.
    End {
        /// Who.
        cpu: usize,
    },
    /// A vCPU deactivates one of those whose priority it has dropped.
    Deactivate {
        /// Who.
        cpu: usize,
        /// Which.
        which: usize,
    },
    /// ICC_PMR_EL1.
    Mask {
        /// Who.
        cpu: usize,
        /// What is written.
        value: u8,
    },
    /// ICC_BPR0_EL1 or ICC_BPR1_EL1.
    Point {
        /// Who.
        cpu: usize,
        /// Which.
        group: usize,
        /// What is written.
        value: u8,
    },
    /// Group enables of the CPU interface.
    Groups {
        /// Who.
        cpu: usize,
        /// Group 0 and group 1.
        enabled: [bool; 2],
    },
    /// ICC_CTLR_EL1.EOImode, when nothing is active.
    SplitEnd {
        /// Who.
        cpu: usize,
        /// Ends drop the priority only.
        split: bool,
    },
    /// A pCPU gets to handle one thing that waits for it: a message, an interrupt.
    Deliver {
        /// Which.
        cpu: usize,
    },
    /// All pCPUs handle all that waits, this one first, and everything is compared.
    Settle {
        /// Which.
        first: usize,
    },
    /// A vCPU ends or deactivates an interrupt whatever its state, if the guest is wild.
    Wild {
        /// Who.
        cpu: usize,
        /// ICC_DIR_EL1, else an end.
        deactivate: bool,
        /// Which.
        intid: u32,
    },
    /// A vCPU goes off, or comes back.
    Power {
        /// Which.
        cpu: usize,
        /// On or off.
        on: bool,
    },
}
